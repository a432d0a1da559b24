r"""MRFCF: a Gaussian Markov random field of the items, in closed form (Steck, NeurIPS 2019).

If users' rows were Gaussian with precision :math:`\mathbf C`, the best guess of an item from all others would be
linear, with weights that are read off :math:`\mathbf C`: an item never explains itself, so the diagonal is zero.

.. math::
    S_{ij} &= \langle \mathbf r_i, \mathbf r_j \rangle / (s_i s_j)^\alpha, \qquad
    \mathbf C = (\mathbf S + \lambda \mathbf I)^{-1}, \qquad B_{ij} = -C_{ij} / C_{jj}, \quad B_{jj} = 0 \\
    \hat{\mathbf y} &= \mathbf y\,
        \operatorname{diag}(s)^{-\alpha} \mathbf B \operatorname{diag}(s)^{\alpha}

with :math:`\mathbf r_i` the centred column of item i over the users and :math:`s_i` its length. (The mean of the field
would be :math:`\boldsymbol\mu + (\mathbf y - \boldsymbol\mu)(\cdot)`; the original leaves the means out.)
With many items :math:`\mathbf C` is kept sparse: each item's neighbours are those it correlates with most, and the
matrix is inverted on one neighbourhood after the other, which then also serves the neighbours most like its centre.

Simplified here: neighbourhoods are the ``neighbours`` largest correlations (the original cuts at a threshold, then
caps), and a column is taken from the first inversion that serves it (the original averages over all that do).
"""

import dataclasses

import numpy as np
import torch
from scipy.sparse import csr_array, diags_array
from torch import nn

from .closed import ClosedForm
from .registry import register

DENSE = 13_000  # items up to which the whole matrix is inverted; 12,101 took two processor minutes and 6 GB
COLUMNS = 512  # columns of the covariance made at once


def precision_weights(S, ridge):
    r""":math:`B_{ij} = -C_{ij}/C_{jj}` off the diagonal, 0 on it, with :math:`C = (S + \lambda I)^{-1}`: (n, n).

    Column j is the ridge regression of item j on all others.

    >>> precision_weights(np.array([[1.0, 0.5], [0.5, 1.0]]), 0.0)
    array([[0. , 0.5],
           [0.5, 0. ]])
    """
    C = np.linalg.inv(S + ridge * np.eye(len(S)))
    B = -C / np.diag(C)
    np.fill_diagonal(B, 0.0)
    return B


class Covariance:
    """Scaled products of the centred columns of R (users, items), a few columns at a time."""

    def __init__(self, R, alpha):
        self.R, self.Rt, users = R.tocsc(), R.T.tocsr(), R.shape[0]
        self.mean = np.asarray(R.sum(0)).ravel() / users
        length = np.sqrt(np.maximum(users * (self.mean - self.mean**2), 1 / users))  # squares of 0 and 1 are themselves
        self.scale = length**alpha

    def __getitem__(self, columns):
        """All rows of some columns, (n, len(columns))."""
        product = (self.Rt @ self.R[:, columns]).toarray()
        product -= self.R.shape[0] * np.outer(self.mean, self.mean[columns])
        return product / np.outer(self.scale, self.scale[columns])

    def among(self, ids):
        """Rows and columns ``ids`` only, (m, m)."""
        part = self.R[:, ids]
        product = (part.T @ part).toarray() - part.shape[0] * np.outer(self.mean[ids], self.mean[ids])
        return product / np.outer(self.scale[ids], self.scale[ids])


def neighbourhoods(S, count, n):
    """The ``count`` items that each item correlates with most, itself first: ids (n, count)."""
    ids = np.empty((n, count), dtype=np.int64)
    for first in range(0, n, COLUMNS):
        columns = np.arange(first, min(first + COLUMNS, n))
        size = np.abs(S[columns].T)
        size[np.arange(len(columns)), columns] = np.inf
        best = np.argpartition(-size, count - 1, axis=1)[:, :count]
        order = np.argsort(-np.take_along_axis(size, best, 1), axis=1, kind="stable")
        ids[columns] = np.take_along_axis(best, order, 1)
    return ids


def sparse_weights(S, ids, ridge, share):
    """B (n, n), sparse: inverted on one neighbourhood after the other.

    Parameters
    ----------
    S : Covariance
    ids : int array, shape (n, m)
        Each item's neighbours, itself first, the most correlated next.
    ridge : float
    share : float
        Of a neighbourhood, how many items it serves: 0 its centre only (exact on the neighbourhood), more is faster.
    """
    n, m = ids.shape
    served = max(1, int(share * m))
    done = np.zeros(n, dtype=bool)
    rows, columns, values = [], [], []
    for centre in range(n):  # as many rounds as there are neighbourhoods, not items, when share > 0
        if done[centre]:
            continue
        around = ids[centre]
        B = precision_weights(S.among(around), ridge)
        mine = np.flatnonzero(~done[around[:served]])
        done[around[mine]] = True
        rows.append(np.tile(around, len(mine)))
        columns.append(np.repeat(around[mine], m))
        values.append(B[:, mine].T.ravel())
    where = np.concatenate(rows), np.concatenate(columns)
    return csr_array((np.concatenate(values), where), shape=(n, n))


@register("mrfcf", "MRFCF", "link")
@dataclasses.dataclass(kw_only=True, eq=False)
class MRFCF(ClosedForm):
    r"""Rank items by a Markov random field, given what the user has.

    Parameters
    ----------
    ridge : float
        λ; 1 is the original's, for sparse weights.
    alpha : float
        How much of the items' deviation is divided out, 0.75 in the original: less popular items shrink less.
    neighbours : int, optional
        Neighbourhood of an item, itself included; 1,000 is the original's. None, the default, inverts the whole matrix
        up to 13,000 items, and takes 1,000 beyond.
    share : float
        Of a neighbourhood, the share that is served by one inversion; 0.5.
    **rest
        Not used.

    Examples
    --------
    >>> import easydgl_mini as em
    >>> log = em.EventLog([0, 0, 1, 1, 2, 3], [0, 1, 0, 1, 2, 2], [0.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    >>> scores = MRFCF(ridge=0.1).fit(log).predict(([0], [0.0]), at=1.0)
    >>> bool(scores[1] > scores[2])  # who has 0 has 1
    True
    """

    ridge: float = 1.0
    alpha: float = 0.75
    neighbours: int | None = None
    share: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        if not self.ridge > 0:
            raise ValueError(f"ridge must be positive, got {self.ridge!r}")
        if self.neighbours is not None and (int(self.neighbours) != self.neighbours or self.neighbours < 1):
            raise ValueError(f"neighbours must be a whole number of at least 1, got {self.neighbours!r}")
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must lie in 0 … 1, got {self.share!r}")

    def _solve(self, R):
        n, S = R.shape[1], Covariance(R, self.alpha)
        count = self.neighbours or (n if n <= DENSE else 1_000)
        if count >= n:
            B = csr_array(precision_weights(S[np.arange(n)], self.ridge))
        else:
            B = sparse_weights(S, neighbourhoods(S, count, n), self.ridge, self.share)
        B = csr_array(diags_array(1 / S.scale) @ B @ diags_array(S.scale))
        model = self._build(num_items=n, entries=B.nnz)
        for name, x in (("weights", B.data), ("columns", B.indices), ("ends", B.indptr)):
            getattr(model, name).copy_(torch.from_numpy(x))

    def _recover(self, Y):
        return (Y @ self.weights()).toarray()

    def weights(self):
        """B with its scales, (items, items), sparse."""
        parts = [getattr(self._ready()[0], name).numpy() for name in ("weights", "columns", "ends")]
        return csr_array(tuple(parts), shape=(self.sizes_["num_items"],) * 2)

    def _model(self, num_items, entries):
        model = nn.Module()
        model.register_buffer("weights", torch.zeros(entries))
        model.register_buffer("columns", torch.zeros(entries, dtype=torch.int32))
        model.register_buffer("ends", torch.zeros(num_items + 1, dtype=torch.int64))
        return model
