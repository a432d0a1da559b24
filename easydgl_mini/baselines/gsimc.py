r"""GSIMC and BGSIMC: choices as a signal on the graph of items, smoothed in closed form (Chen et al., ICLR 2023).

What a user has is a noisy signal of ones on the item graph; what they would like is a smooth one close to it, and only
the lowest frequencies are looked at. With :math:`\mathbf L = \mathbf U \boldsymbol\Lambda \mathbf U^\top` the
hypergraph Laplacian of the training users and :math:`\tilde{\mathbf s} = \mathbf D^{-1/2} \mathbf s`:

.. math::
    \hat{\mathbf y} = \mathbf D^{1/2} \arg\min_{\mathbf y \in \operatorname{span} \mathbf U}
        \langle \mathbf y, R(\mathbf L) \mathbf y \rangle + \varphi \|\tilde{\mathbf s} - \mathbf y\|^2
        = \mathbf D^{1/2} \mathbf U\, \frac{\varphi}{R(\boldsymbol\Lambda) + \varphi}\, \mathbf U^\top \tilde{\mathbf s}

where R(λ) is 0 (bandlimited), :math:`e^{\gamma\lambda/2}` (diffusion), :math:`(a - \lambda)^{-1}` (random walk) or
:math:`1/\cos(\pi\lambda/4)` (inverse cosine). BGSIMC lets the signal's spectrum drift as new items arrive one by
one, predicts what an item adds, and corrects by the item itself, a noisy measurement of the taste of the moment (a
Kalman filter, one number per frequency). With :math:`\mathbf z = \mathbf U^\top \Delta\tilde{\mathbf s}` of the item:

.. math::
    \bar{\mathbf x} &= \hat{\mathbf x} + H \mathbf z, \qquad
    \bar P = P + \sigma_\eta^2, \qquad K = \bar P / (\bar P + \sigma_\nu^2) \\
    \hat{\mathbf x} &\leftarrow \bar{\mathbf x} + K (\mathbf z - \bar{\mathbf x}), \qquad
        P \leftarrow (1 - K) \bar P, \qquad P_0 = 1 / (R(\Lambda) + \varphi)

Simplified here: P starts at the covariance that goes with GSIMC's own answer (its objective, read as a Gaussian
posterior), and each of the two noises is one number. The power of D in both formulas, a half, is the setting ``scale``.
"""

import dataclasses

import numpy as np
import torch
from scipy.sparse import diags_array
from scipy.sparse.linalg import svds
from torch import nn

from ..interpret import decompose
from ..train.link import events_of
from .closed import ClosedForm, ones
from .registry import register

KERNELS = {
    "bandlimited": lambda v, c: np.zeros_like(v),
    "diffusion": lambda v, c: np.exp(c * v / 2),
    "random_walk": lambda v, c: 1 / (c - v),
    "inverse_cosine": lambda v, c: 1 / np.maximum(np.cos(np.pi * v / 4), 1e-12),
}
"""R(λ), which penalises frequencies; the second argument is γ or a."""


def waves(R, count, method="exact", seed=0):
    r"""The ``count`` lowest frequencies of the items' hypergraph Laplacian, and their waves.

    :math:`\mathbf L = \mathbf I - \mathbf S^\top \mathbf S` with :math:`\mathbf S = \mathbf D_U^{-1/2} \mathbf R
    \mathbf D_I^{-1/2}`: its lowest eigenvectors are the leading right singular vectors of S, so that "exact" need not
    make L unless most of them are wanted. An item that nobody has gets the frequency 1, the highest.

    Parameters
    ----------
    R : SciPy sparse matrix, shape (users, items)
    count : int
    method : {"exact", "krylov", "nystrom"}
        The latter two: see :func:`easydgl_mini.interpret.decompose`.

    Returns
    -------
    values : array, shape (count,), ascending
    vectors : array, shape (items, count)
    """
    users, items = (np.maximum(np.asarray(R.sum(axis)).ravel(), 1) ** -0.5 for axis in (1, 0))
    S = (diags_array(users) @ R @ diags_array(items)).tocsr()
    if method == "exact" and count < min(S.shape) // 2:
        start = np.random.default_rng(seed).random(min(S.shape))
        _, sigma, vectors = svds(S, k=count, v0=start)
        order = np.argsort(-sigma)
        return 1 - sigma[order] ** 2, vectors[order].T
    basis = decompose(np.eye(S.shape[1]) - (S.T @ S).toarray(), count, "low", method, seed=seed)
    return basis.values, basis.vectors


@register("gsimc", "GSIMC", "link")
@dataclasses.dataclass(kw_only=True, eq=False)
class GSIMC(ClosedForm):
    """Rank items by a smooth signal on the item graph.

    Parameters
    ----------
    kernel : {"bandlimited", "diffusion", "random_walk", "inverse_cosine"}
        How frequencies are penalised.
    num_waves : int
        How many of the lowest frequencies are kept.
    strength : float
        γ of the diffusion, or a of the random walk (at least 2).
    trust : float
        φ: how much what is seen weighs against smoothness.
    scale : float
        Power of the degrees in :math:`D^{1/2}` before and after; 0.5 is the formula's, less shows less of popularity.
    method : {"exact", "krylov", "nystrom"}
        How they are found, see :func:`waves`.
    **rest
        Not used.
    """

    kernel: str = "inverse_cosine"
    num_waves: int = 200
    strength: float = 2.0
    trust: float = 10.0
    scale: float = 0.5
    method: str = "exact"

    def __post_init__(self):
        super().__post_init__()
        if self.kernel not in KERNELS:
            raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, got {self.kernel!r}")
        if int(self.num_waves) != self.num_waves or self.num_waves < 1:
            raise ValueError(f"num_waves must be a whole number of at least 1, got {self.num_waves!r}")
        for name, least in (("strength", 2.0 if self.kernel == "random_walk" else 0.0), ("trust", 0.0)):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= least and (value > 0 or name != "trust")):
                raise ValueError(f"{name} must be at least {least} for {self.kernel!r}, got {value!r}")

    def _solve(self, R):
        n = R.shape[1]
        values, vectors = waves(R, min(self.num_waves, n), self.method, self.seed)
        model = self._build(num_items=n, rank=len(values))
        degree = np.maximum(np.asarray(R.sum(0)).ravel(), 1)
        for name, x in (("values", values), ("vectors", vectors), ("root", degree**self.scale)):
            getattr(model, name).copy_(torch.from_numpy(np.ascontiguousarray(x)))

    def _penalty(self):
        return KERNELS[self.kernel](self.model_.values.numpy(), self.strength)

    def _filter(self):
        """H(λ) = φ / (R(λ) + φ), one number per frequency."""
        return self.trust / (self._penalty() + self.trust)

    def _spectrum(self, Y):
        """Fourier coefficients (b, rank) of signals Y (b, items)."""
        return (Y @ diags_array(1 / self.model_.root.numpy())) @ self.model_.vectors.numpy()

    def _signal(self, x):
        return (x @ self.model_.vectors.numpy().T) * self.model_.root.numpy()

    def _recover(self, Y):
        return self._signal(self._spectrum(Y) * self._filter())

    def _model(self, num_items, rank):
        model = nn.Module()
        for name, shape in (("values", rank), ("vectors", (num_items, rank)), ("root", num_items)):
            model.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        return model


@register("bgsimc", "BGSIMC", "link")
@dataclasses.dataclass(kw_only=True, eq=False)
class BGSIMC(GSIMC):
    r"""GSIMC whose answer is updated as the newest items arrive.

    Parameters
    ----------
    arrivals : int
        How many of a user's last events arrive after the first answer, one by one; 0 is GSIMC. 30 is ours: the length
        that sequential models see.
    drift, noise : float
        :math:`\sigma_\eta^2` and :math:`\sigma_\nu^2`, ours. Without noise only the last item counts; with ever more
        of it BGSIMC becomes GSIMC.
    **rest
        See :class:`GSIMC`.
    """

    arrivals: int = 30
    drift: float = 0.1
    noise: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        if int(self.arrivals) != self.arrivals or self.arrivals < 0:
            raise ValueError(f"arrivals must be a whole number that is not negative, got {self.arrivals!r}")
        for name in ("drift", "noise"):
            if not (np.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} must be a finite number that is not negative, got {getattr(self, name)!r}")

    def _answer(self, log, users, at):
        row, item = events_of(log, users)
        shape = users.stop - users.start, self.sizes_["num_items"]
        left = np.bincount(row)[row] - (np.arange(len(row)) - np.searchsorted(row, row)) - 1  # events after this one
        fresh = np.zeros(len(row), dtype=bool)  # an item that comes back adds nothing to the signal
        fresh[np.unique(row * shape[1] + item, return_index=True)[1]] = True
        early = left >= self.arrivals
        x = self._spectrum(ones(row[early], item[early], shape)) * self._filter()
        P = np.broadcast_to(1 / (self._penalty() + self.trust), x.shape).copy()
        vectors, root = self.model_.vectors.numpy(), self.model_.root.numpy()
        for k in range(self.arrivals - 1, -1, -1):
            now = left == k  # at most one event of each user
            who, z = row[now], vectors[item[now]] / root[item[now], None]
            x[who], P[who] = self._step(x[who], P[who], z, fresh[now, None])
        return torch.as_tensor(self._signal(x))

    def _step(self, x, P, z, fresh):
        """State and covariance (m, rank) after items with the spectra z (m, rank) arrived."""
        x, P = x + np.where(fresh, z * self._filter(), 0.0), P + self.drift
        gain = P / (P + self.noise)
        return x + gain * (z - x), (1 - gain) * P
