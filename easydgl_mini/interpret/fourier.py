r"""Graphs as matrices, signals as sums of waves (chapter *Graph Fourier transform*).

A signal is one number per node. The eigenvectors of the normalised Laplacian are the waves of the graph, and their
eigenvalues say how much a wave changes along the edges: near 0 hardly at all, near 2 as much as it can.
"""

import warnings
from dataclasses import dataclass

import numpy as np
import scipy.sparse

# ------------------------------------------------------------------------------------------------ graphs


def laplacian(A):
    r"""Normalised Laplacian :math:`L = I - D^{-1/2} A D^{-1/2}`, with :math:`d_i = \sum_j A_{ij}`.

    An isolated node (:math:`d_i = 0`) gets a row of zeros, so :math:`L_{ii} = 0`: it is a component of its own, and
    each component has one eigenvalue 0. A self-loop counts once in the degree and stays on the diagonal,
    :math:`L_{ii} = 1 - A_{ii}/d_i`. Chapter *Graph Fourier transform*.

    Parameters
    ----------
    A : array or SciPy sparse matrix, shape (N, N)
        Edge weights, finite and not negative. A directed graph (``A`` not symmetric) is replaced by
        :math:`(A + A^\top)/2`, with a warning.

    Returns
    -------
    array or CSR matrix of float64, as the input was, shape (N, N)
        Symmetric, with eigenvalues in [0, 2].

    Examples
    --------
    >>> laplacian(np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]]))
    array([[ 1., -1.,  0.],
           [-1.,  1.,  0.],
           [ 0.,  0.,  0.]])
    """
    A = matrix("A", A)
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"A: got shape {A.shape}, expected a square matrix")
    gap = asymmetry(A)
    if gap > 0:
        if gap > 1e-10 * abs(A).max():
            warnings.warn("A is not symmetric: taking (A + A.T) / 2, which forgets directions", stacklevel=2)
        A = (A + A.T) / 2
    degree = np.asarray(A.sum(1)).ravel()
    linked = degree > 0
    root = np.zeros_like(degree)
    root[linked] = 1 / np.sqrt(degree[linked])
    if scipy.sparse.issparse(A):
        root = scipy.sparse.diags_array(root)
        return scipy.sparse.csr_array(scipy.sparse.diags_array(linked.astype(float)) - root @ A @ root)
    L = 0 - A
    L *= root
    L *= root[:, None]
    L[np.diag_indices_from(L)] += linked
    return L


def item_affinity(R, kind="covariance", self_loops=True):
    r"""Affinity of items from who chose what.

    - ``"covariance"``: :math:`A = R^\top R / U`, the uncentred covariance (a centred one has negative entries and is no
      affinity). A user with many items speaks for many pairs.
    - ``"hypergraph"``: :math:`A = R^\top D_U^{-1} R` with :math:`D_U` the users' sums: a user is a hyperedge, and
      shares out one vote per item over all their items. Row i sums to item i's own sum, so :func:`laplacian` of it is
      the hypergraph Laplacian :math:`I - D_I^{-1/2} R^\top D_U^{-1} R D_I^{-1/2}`.

    Both are positive semi-definite with their diagonal, and the Laplacian's eigenvalues then lie in [0, 1].
    Chapter *Graph Fourier transform*.

    Parameters
    ----------
    R : array or SciPy sparse matrix, shape (users, items)
        Finite and not negative: counts, ratings or zeros and ones.
    kind : {"covariance", "hypergraph"}
    self_loops : bool
        False clears the diagonal.

    Returns
    -------
    array or CSR matrix of float64, as the input was, shape (items, items)

    Examples
    --------
    >>> item_affinity(np.array([[1, 1, 0], [0, 1, 0]]), "hypergraph")
    array([[0.5, 0.5, 0. ],
           [0.5, 1.5, 0. ],
           [0. , 0. , 0. ]])
    """
    R = matrix("R", R)
    if kind == "covariance":
        weight = np.full(R.shape[0], 1 / max(R.shape[0], 1))
    elif kind == "hypergraph":
        total = np.asarray(R.sum(1)).ravel()
        weight = np.divide(1, total, out=np.zeros_like(total), where=total > 0)
    else:
        raise ValueError(f"kind: got {kind!r}, expected 'covariance' or 'hypergraph'")
    root = np.sqrt(weight)  # so that the product is symmetric to the last bit
    if scipy.sparse.issparse(R):
        half = scipy.sparse.csr_array(scipy.sparse.diags_array(root) @ R)
        A = scipy.sparse.csr_array(half.T @ half)
        return A if self_loops else scipy.sparse.csr_array(A - scipy.sparse.diags_array(A.diagonal()))
    half = root[:, None] * R
    A = half.T @ half
    if not self_loops:
        np.fill_diagonal(A, 0)
    return A


def smoothness(L, y):
    r"""How much a signal varies over the graph, :math:`y^\top L y / y^\top y`: the mean frequency of its energy.

    Parameters
    ----------
    L : array, SciPy sparse matrix or LinearOperator, shape (N, N)
    y : array, shape (N,) or (N, signals)

    Returns
    -------
    float or array, shape (signals,)
        Between the lowest and the highest eigenvalue of ``L``; 0 for a signal that is zero everywhere.

    Examples
    --------
    >>> smoothness(np.array([[1.0, -1.0], [-1.0, 1.0]]), np.array([[1, 1], [1, -1]])).tolist()
    [0.0, 2.0]
    """
    y = np.asarray(y, dtype=np.float64)
    if y.ndim not in (1, 2) or len(y) != L.shape[0]:
        raise ValueError(f"y: got shape {y.shape}, expected ({L.shape[0]},) or ({L.shape[0]}, signals)")
    size = (y * y).sum(0)
    answer = np.divide((y * (L @ y)).sum(0), size, out=np.zeros_like(size), where=size > 0)
    return answer if y.ndim == 2 else float(answer)


# ------------------------------------------------------------------------------------------------ transform


def gft(spectrum, y):
    r"""Graph Fourier transform :math:`\tilde y(\lambda_l) = u_l^\top y`.

    Parameters
    ----------
    spectrum : Spectrum
    y : array, shape (N,) or (N, signals)

    Returns
    -------
    array, shape (r,) or (r, signals)
        With all N vectors nothing is lost: the squares add up to :math:`\|y\|^2` (Parseval), and :func:`igft` returns
        ``y``. With r < N they add up to the energy of what the r vectors span. Chapter *Graph Fourier transform*.
    """
    y = signals("y", y, len(spectrum.vectors))
    with np.errstate(all="ignore"):  # what is not finite is refused, with its place
        coefficients = spectrum.vectors.T.astype(y.dtype, copy=False) @ y
    return finite("y", coefficients, y)


def igft(spectrum, coefficients):
    r"""Inverse transform :math:`\sum_l \tilde y(\lambda_l)\, u_l`, from (r,) or (r, signals) to N rows."""
    coefficients = signals("coefficients", coefficients, len(spectrum.values))
    return spectrum.vectors.astype(coefficients.dtype, copy=False) @ coefficients


# ------------------------------------------------------------------------------------------------ bands


@dataclass(frozen=True, eq=False)
class Band:
    """A set of frequencies: positions ``index`` (sorted) in a spectrum of ``size`` values, and a name for tables."""

    index: np.ndarray
    size: int
    name: str

    def __or__(self, other):
        if not isinstance(other, Band):
            return NotImplemented
        if self.size != other.size:
            raise ValueError(f"bands of different spectra: {self.size} and {other.size} frequencies")
        return Band(np.union1d(self.index, other.index), self.size, f"{self.name} | {other.name}")

    def __len__(self):
        return len(self.index)


def band(spectrum, start=None, stop=None, *, tolerance=None):
    """Frequencies by position, as in a slice: ``band(s, stop=50)`` is the 50 lowest, ``band(s, -50)`` the 50 highest.

    Positions count from the lowest frequency *of the spectrum*; which end of the graph's spectrum that is depends on
    ``which`` in :func:`decompose`. Two bands join with ``|``.

    Where a border separates eigenvalues that are (nearly) equal the band depends on which basis of their common space
    the decomposition happened to return, and so does everything computed from it: a warning says so. Nearly equal
    means closer than ``tolerance``; the default is 1e-8 or the residuals of the two vectors, whichever is larger,
    because a vector is only known up to its residual. Chapter *Perturbations*.

    Examples
    --------
    >>> from easydgl_mini.interpret import decompose
    >>> path = decompose(laplacian(np.diag([1.0, 1, 1], 1) + np.diag([1.0, 1, 1], -1)), rank=4)
    >>> (band(path, stop=1) | band(path, start=3)).index
    array([0, 3])
    """
    index = np.arange(len(spectrum.values))[start:stop]
    name = f"{'' if start is None else start}:{'' if stop is None else stop}"
    return whole(spectrum, Band(index, len(spectrum.values), name), tolerance)


def band_by_value(spectrum, low=None, high=None, *, tolerance=None):
    """Frequencies whose eigenvalue lies in ``[low, high]``, ends included; None is an open end. See :func:`band`."""
    inside = (spectrum.values >= (-np.inf if low is None else low)) & (
        spectrum.values <= (np.inf if high is None else high)
    )
    name = f"{'' if low is None else f'{low:g} ≤ '}λ{'' if high is None else f' ≤ {high:g}'}"
    return whole(spectrum, Band(np.flatnonzero(inside), len(spectrum.values), name), tolerance)


def apart(spectrum, tolerance=None):
    """Which neighbouring eigenvalues can be told apart, (r - 1,) bool."""
    if tolerance is None:
        tolerance = np.maximum(1e-8, np.maximum(spectrum.residuals[1:], spectrum.residuals[:-1]))
    return np.diff(spectrum.values) > tolerance


def whole(spectrum, chosen, tolerance=None):
    """Warn where a border of ``chosen`` lies between eigenvalues that can't be told apart."""
    inside = np.isin(np.arange(chosen.size), chosen.index)
    cut = np.flatnonzero((inside[1:] != inside[:-1]) & ~apart(spectrum, tolerance))
    if len(cut):
        at = int(cut[0])
        warnings.warn(
            f"band {chosen.name} cuts between eigenvalues {at} and {at + 1} ({spectrum.values[at]:.6g} and "
            f"{spectrum.values[at + 1]:.6g}), which are equal or not resolved: it depends on the basis",
            stacklevel=3,
        )
    return chosen


# ------------------------------------------------------------------------------------------------ checks


def signals(name, y, length):
    """``y`` as float32 or float64 with ``length`` rows; other types become float64."""
    y = np.asarray(y)
    y = y if y.dtype in (np.float32, np.float64) else y.astype(np.float64)
    if y.ndim not in (1, 2) or y.shape[0] != length:
        raise ValueError(f"{name}: got shape {y.shape}, expected ({length},) or ({length}, signals)")
    return y


def finite(name, image, y):
    """``image``, a linear image of ``y``; refuses with the place in ``y`` if a NaN or an infinity came through."""
    if not np.isfinite(image).all() and len(bad := np.argwhere(~np.isfinite(y))):
        at, wanted = bad[0].tolist(), "finite numbers (leave items out with `exclude`, not with -inf)"
        raise ValueError(f"{name}{at} is {y[*at]}; expected {wanted}")
    return image


def matrix(name, A, signed=False):
    """A dense or CSR matrix in float64 whose entries are finite and, unless ``signed``, not negative."""
    sparse = scipy.sparse.issparse(A)
    A = scipy.sparse.csr_array(A, dtype=np.float64) if sparse else np.asarray(A, dtype=np.float64)
    if A.ndim != 2:
        raise ValueError(f"{name}: got shape {A.shape}, expected a matrix")
    entries = A.data if sparse else A
    bad = ~np.isfinite(entries) if signed else ~(np.isfinite(entries) & (entries >= 0))
    if bad.any():
        entry = A.tocoo() if sparse else None
        axes = (entry.row[bad], entry.col[bad]) if sparse else bad.nonzero()
        at = [int(axis[0]) for axis in axes]
        raise ValueError(
            f"{name}{at} is {entries[bad][0]}; expected finite entries{'' if signed else ', not negative'}"
        )
    return A


def asymmetry(A, rows=1024):
    """Largest entry of ``|A - A.T|``, a few rows at a time."""
    if scipy.sparse.issparse(A):
        return abs(A - A.T).max() if A.nnz else 0.0
    starts = range(0, len(A), rows)
    return max((abs(A[i : i + rows] - A[:, i : i + rows].T).max() for i in starts), default=0.0)
