r"""Eigenvectors of a graph Laplacian that are truly orthonormal, three ways.

Chapter *An orthogonal Nyström decomposition*.

- ``exact``: dense, cubic in the number of nodes. For small graphs and as the yardstick.
- ``nystrom``: the paper's Algorithm 1 from a sample of columns, with the Rayleigh-Ritz matrix :math:`Z = Q^\top W Q` in
  its second step. Linear in N; good where a few columns tell the whole story (dense affinities), poor on sparse graphs.
- ``krylov``: a block of vectors is filtered by a Chebyshev polynomial of the operator, so that it lies in a block
  Krylov space, and a Rayleigh-Ritz step picks the best vectors in it; repeated until the residuals are small. It only
  multiplies by the operator, so it suits sparse and implicit ones.
"""

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import LinearOperator

from .fourier import _asymmetry

LINE = 128  # bytes of a row that a sparse product handles at a time: two cache lines
ROWS = 2048  # rows handled at a time where a tall matrix is rotated in place


@dataclass(frozen=True, eq=False, repr=False)
class Spectrum:
    r"""Some eigenpairs of a symmetric matrix, as :func:`decompose` returns them.

    Attributes
    ----------
    values : array, shape (r,)
        Eigenvalues of L (for ``nystrom`` and ``krylov``: their approximations), ascending.
    vectors : array, shape (N, r)
        Orthonormal columns; the entry of largest magnitude of each is positive.
    residuals : array, shape (r,)
        :math:`\|L u_l - \lambda_l u_l\|_2`. An eigenvalue of L lies within that distance of :math:`\lambda_l`.
    orthogonality : float
        Largest entry of :math:`|U^\top U - I|`.
    """

    values: np.ndarray
    vectors: np.ndarray
    residuals: np.ndarray
    orthogonality: float

    def __len__(self):
        return len(self.values)

    def __repr__(self):
        return (
            f"Spectrum({len(self.vectors)} nodes, {len(self)} frequencies, largest residual "
            f"{max(self.residuals, default=0):.1e}, orthogonality {self.orthogonality:.1e})"
        )


def decompose(
    L,
    rank,
    which="low",
    method="krylov",
    *,
    tol=1e-6,
    oversampling=None,
    max_rounds=60,
    num_columns=None,
    power=2,
    probabilities=None,
    seed=0,
):
    r"""Orthonormal eigenvectors of a graph Laplacian, from the low end of the spectrum, the high end or both.

    Parameters
    ----------
    L : array, SciPy sparse matrix or LinearOperator, shape (N, N)
        Symmetric. ``exact`` and ``krylov`` take any symmetric operator; ``nystrom`` needs eigenvalues in [0, 2], those
        of :func:`laplacian`.
    rank : int
        Number of eigenvectors. More than N can't be had: N are returned, with a warning.
    which : {"low", "high", "both"}
        The lowest or the highest eigenvalues; ``"both"`` is the :math:`\lceil r/2\rceil` lowest and the
        :math:`\lfloor r/2\rfloor` highest: the two bases stacked, orthonormalised, and one Rayleigh-Ritz step on L.
    method : {"krylov", "nystrom", "exact"}
    tol : float
        ``krylov``: the largest residual allowed; a warning says when it was not reached. From 1e-4 upwards the
        filtering runs in float32; the last Rayleigh-Ritz step is always in float64.
    oversampling : int, optional
        ``krylov``: extra vectors in the block, by default ``rank + 10`` (a quarter of the rank for a dense matrix,
        where products are dear). ``nystrom``: the paper's p, 10 by default.
    max_rounds : int
        ``krylov``: filter steps before it gives up.
    num_columns : int, optional
        ``nystrom``: the paper's s, at least ``rank``; by default ``2 * (rank + oversampling)``.
    power : int
        ``nystrom``: the paper's q, powers of A applied to the random start.
    probabilities : array, shape (N,), optional
        ``nystrom``: chance of each column to be drawn (without replacement), up to a factor; uniform by default. The
        approximation :math:`C A^+ C^\top` does not change when columns are rescaled, so no reweighting is needed.
    seed : int or numpy Generator
        The same seed gives the same answer.

    Returns
    -------
    Spectrum
        Orthonormal to 1e-10 or better. ``nystrom`` returns fewer vectors, with a warning, when its sample spans fewer.

    Notes
    -----
    ``krylov`` keeps two blocks of ``rank + oversampling`` columns, in float32 or float64, and work space of 64 columns
    per thread (four threads at most, two in float64): not more than 6 N rank floats from a rank of 100 upwards. No
    N × N matrix is formed, unless the block would be as wide as the graph. ``nystrom`` keeps N × s.

    Examples
    --------
    A ring of eight nodes has the eigenvalues 1 - cos(2πk/8):

    >>> from easydgl_mini.interpret import laplacian
    >>> ring = np.roll(np.eye(8), 1, 0) + np.roll(np.eye(8), -1, 0)
    >>> decompose(laplacian(ring), rank=3).values.round(4) + 0.0
    array([0.    , 0.2929, 0.2929])
    """
    L = _operator(L)
    n = L.shape[0]
    if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)) or rank < 1:
        raise ValueError(f"rank: got {rank!r}, expected an integer of at least 1")
    if which not in ("low", "high", "both"):
        raise ValueError(f"which: got {which!r}, expected 'low', 'high' or 'both'")
    if method not in ("krylov", "nystrom", "exact"):
        raise ValueError(f"method: got {method!r}, expected 'krylov', 'nystrom' or 'exact'")
    if not tol > 0:
        raise ValueError(f"tol: got {tol}, expected a positive number")
    for name, value, least in (("oversampling", oversampling, 0), ("power", power, 0), ("max_rounds", max_rounds, 1)):
        if value is not None and value < least:
            raise ValueError(f"{name}: got {value}, expected {least} or more")
    if rank > n:
        warnings.warn(f"rank is {rank}, but L has only {n} eigenvectors: returning {n}", stacklevel=2)
    asked = rank = min(int(rank), n)
    rng = np.random.default_rng(seed)

    if oversampling is None:
        usual = max(10, rank // 4) if isinstance(L, np.ndarray) else rank + 10
        oversampling = 10 if method == "nystrom" else usual
    low = {"low": rank, "high": 0, "both": -(-rank // 2)}[which]  # this many from the low end
    if method == "exact" or (method == "krylov" and max(low, rank - low) + oversampling >= n):
        values, vectors = np.linalg.eigh(_columns(L, np.arange(n)))
        index = np.r_[:low, n - (rank - low) : n]
        return _finish(L, values[index], vectors[:, index])

    def one_end(count, sign):
        if method == "krylov":
            return _krylov(L, count, sign, oversampling, tol, max_rounds, rng)
        return _nystrom(L, count, sign, oversampling, num_columns, power, probabilities, rng)

    if low in (0, rank):
        values, vectors = one_end(rank, 1 if low else -1)
    else:
        values, _, vectors = _ritz(L, np.hstack([one_end(low, 1)[1], one_end(rank - low, -1)[1]]))
    spectrum = _finish(L, values, vectors)
    if len(spectrum) < asked:
        warnings.warn(f"{method} spans {len(spectrum)} directions, fewer than the {asked} asked for", stacklevel=2)
    if method == "krylov" and (worst := spectrum.residuals.max()) > tol:
        warnings.warn(
            f"krylov: largest residual {worst:.1e} after {max_rounds} rounds, asked for {tol:.1e}", stacklevel=2
        )
    return spectrum


# ------------------------------------------------------------------------------------------------ Nyström


def _nystrom(L, rank, sign, oversampling, num_columns, power, probabilities, rng):
    r"""Algorithm 1 on M = L (sign -1, high frequencies) or M = 2I - L (sign 1, low ones), with Z = QᵀWQ.

    :math:`\tilde U = C A^{-1/2} U_W \Sigma_W^{-1/2}` has :math:`\tilde U^\top\tilde U = I` in exact arithmetic, because
    :math:`U_W` diagonalises :math:`Q^\top W Q`. In floating point a direction with a small eigenvalue of A or of Z is
    divided by its root and its rounding error grows by as much; so eigenvalues below 1e-10 of the largest are dropped
    (that is the pseudo-inverse), and what is left, orthonormal to 1e-6 at worst, is replaced by the nearest orthonormal
    basis.
    """
    n = L.shape[0]
    s = min(n, 2 * (rank + oversampling)) if num_columns is None else num_columns
    if not rank <= s <= n:
        raise ValueError(f"num_columns: got {s}, expected rank … N, {rank} … {n}")
    if probabilities is not None:
        probabilities = np.asarray(probabilities, dtype=np.float64)
        if probabilities.shape != (n,):
            raise ValueError(f"probabilities: got shape {probabilities.shape}, expected ({n},)")
        bad = np.flatnonzero(~(np.isfinite(probabilities) & (probabilities >= 0)))
        if len(bad):
            raise ValueError(f"probabilities[{bad[0]}] is {probabilities[bad[0]]}; expected finite, not negative")
        if np.count_nonzero(probabilities) < s:
            raise ValueError(f"probabilities: {np.count_nonzero(probabilities)} are positive, fewer than {s} columns")
        probabilities = probabilities / probabilities.sum()
    chosen = np.sort(rng.choice(n, s, replace=False, p=probabilities))
    C = _columns(L, chosen)  # (N, s)
    if sign > 0:
        C *= -1
        C[chosen, np.arange(s)] += 2
    A = C[chosen]

    sample = rng.standard_normal((s, min(s, rank + oversampling)))
    for _ in range(power):
        sample = A @ np.linalg.qr(sample)[0]  # the range of A^q Ω; orthonormalised on the way, or it loses its digits
    Q = np.linalg.qr(sample)[0]
    a, V = np.linalg.eigh(A)
    keep = a > 1e-10 * a[-1]
    if not keep.any():
        raise ValueError("the sampled columns are zero: nothing to extend; draw others (seed, probabilities)")
    Y = C @ (V[:, keep] @ (V[:, keep].T @ Q / np.sqrt(a[keep])[:, None]))  # C A^{-1/2} Q, so that Z = QᵀWQ = YᵀY
    z, U = np.linalg.eigh(_gram(Y, Y))
    keep = np.flatnonzero(z > 1e-10 * z[-1])[::-1][:rank]
    vectors = Y @ (U[:, keep] / np.sqrt(z[keep]))
    for _ in range(2):
        g, G = np.linalg.eigh(_gram(vectors, vectors))
        vectors = vectors @ ((G / np.sqrt(g)) @ G.T)
    return (2 - z[keep] if sign > 0 else z[keep]), vectors


# ------------------------------------------------------------------------------------------------ Krylov


def _krylov(L, rank, sign, oversampling, tol, max_rounds, rng):
    """Chebyshev-filtered subspace iteration for the lowest (sign 1) or highest (sign -1) eigenpairs."""
    n, width = L.shape[0], rank + oversampling
    dtype = np.float32 if tol >= 1e-4 else np.float64
    multiply = _multiplier(L, sign, dtype)
    low, cut, high = _reach(multiply, n, dtype, rng)
    edge, need = low, np.inf  # the highest frequency wanted, and the factor by which its residual must still fall
    X = rng.standard_normal((n, width), dtype=dtype)
    LX = np.empty_like(X)
    _image(L, multiply, X, LX)
    active, target = np.arange(width), 0.9 * tol
    for number in range(max_rounds):
        if high - low > 1e-10 * max(1, abs(high)):  # or every vector is an eigenvector
            cut = min(cut, low + 0.95 * (high - low))
            degree = _degree(low, edge, cut, high, need)
            _by_columns(L, dtype, active, partial(_filter, multiply, X, LX, low, cut, high, degree))
        theta, residuals, X, LX = _rayleigh_ritz(X, LX)
        worst = residuals[:rank].max()
        if worst <= target or number == max_rounds - 1:
            values, errors, vectors = _ritz(L, X[:, :rank], LX[:, :rank], sign)
            if errors.max() <= tol:
                break
            target /= 3  # among equal eigenvalues the last step may gather the errors of many vectors in one
        active = np.flatnonzero(residuals > target / 3)
        low, edge, need = theta[0], theta[rank - 1], worst / target
        cut = max(theta[-1], (edge + _frequency_of_error(multiply, X, LX, theta, residuals[:rank].argmax())) / 2)
    return sign * values, vectors.copy() if vectors.base is not None else vectors


def _frequency_of_error(multiply, X, LX, theta, j):
    """Rayleigh quotient of the residual of vector j: where in the spectrum lies what still has to be filtered out.

    Where many equal eigenvalues fill the block, its own last Ritz value doesn't tell.
    """
    r = LX[:, j] - X[:, j] * float(theta[j])
    return float(np.vdot(r, multiply(r[:, None])[:, 0]) / np.vdot(r, r))


def _degree(low, edge, cut, high, need):
    r"""Degree of the next filter: what is needed, or as much as rounding allows.

    Relative to the interval [cut, high] the filter raises a frequency by :math:`T_d(x)`. The highest frequency wanted
    has to gain ``need``; and a direction raised 1e5 times less than the lowest one keeps few of its digits next to it.
    """
    growth = np.arccosh(1 + 2 * np.maximum(cut - np.array([low, edge]), 0) / (high - cut))
    allowed, needed = np.arccosh([1e5, 4 * max(need, 1)]) / np.maximum(growth, 1e-3)
    return int(np.clip(np.ceil(min(allowed, needed)), 2, 60))


def _filter(multiply, X, LX, low, cut, high, degree, part):
    r"""Replace some columns of X by :math:`T_d((L - c)/e)\,X`, and LX along with them.

    The Chebyshev polynomial of the interval [cut, high] is at most 1 there and grows as fast as a polynomial can below
    it; it is scaled to 1 at ``low`` on the way, so that nothing overflows.
    """
    low, cut, high = float(low), float(cut), float(high)  # NumPy's own scalars would turn float32 into float64
    e, c = (high - cut) / 2, (high + cut) / 2
    sigma = first = e / (low - c)
    x = np.ascontiguousarray(X[:, part])
    y = (LX[:, part] - c * x) * (sigma / e)
    for _ in range(degree - 1):
        after = 1 / (2 / first - sigma)
        new = multiply(y)
        new -= c * y
        new *= 2 * after / e
        x *= sigma * after
        new -= x
        x, y, sigma = y, new, after
    X[:, part] = y
    LX[:, part] = multiply(y)


def _reach(multiply, n, dtype, rng, steps=12):
    """Lowest Ritz value, mean and an upper bound of the spectrum, from a few Lanczos steps."""
    basis = np.zeros((steps + 1, n))
    basis[0] = rng.standard_normal(n)
    basis[0] /= np.linalg.norm(basis[0])
    T = np.zeros((steps + 1, steps + 1))
    for k in range(steps):
        w = multiply(basis[k][:, None].astype(dtype))[:, 0].astype(np.float64)
        for _ in range(2):
            along = basis[: k + 1] @ w
            w -= along @ basis[: k + 1]
            T[: k + 1, k] += along
        T[k + 1, k] = np.linalg.norm(w)
        if T[k + 1, k] <= 1e-6 * abs(T).max():
            break
        basis[k + 1] = w / T[k + 1, k]
    ritz = np.linalg.eigvalsh((T[: k + 1, : k + 1] + T[: k + 1, : k + 1].T) / 2)
    return ritz[0], T[0, 0], ritz[-1] + T[k + 1, k]


def _rayleigh_ritz(X, LX):
    r"""Ritz values and residuals of span X and, in place, the Ritz vectors and their images under L.

    Gram matrices are summed in float64, whatever X is; directions that are dependent to rounding are dropped.
    """
    G, H = _gram(X, X), _gram(X, LX)
    scale = 1 / np.sqrt(np.diag(G))
    g, V = np.linalg.eigh(G * scale * scale[:, None])
    keep = g > 1e-13 * g[-1]
    T = scale[:, None] * V[:, keep] / np.sqrt(g[keep])
    theta, W = np.linalg.eigh(T.T @ ((H + H.T) / 2) @ T)
    R, k = (T @ W).astype(X.dtype), len(theta)
    squares = np.zeros(k)
    for i in range(0, len(X), ROWS):
        x, y = X[i : i + ROWS] @ R, LX[i : i + ROWS] @ R
        X[i : i + ROWS, :k], LX[i : i + ROWS, :k] = x, y
        squares += np.square(y - x * theta.astype(X.dtype)).sum(0, dtype=np.float64)
    return theta, np.sqrt(squares), X[:, :k], LX[:, :k]


def _ritz(L, X, LX=None, sign=1):
    """Rayleigh-Ritz on L (or -L) in float64; once more where one pass leaves the basis short of orthonormal.

    X (and LX, as room for its image) are written to if they are float64 already.
    """
    X = X.astype(np.float64, copy=False)
    LX = np.empty_like(X) if LX is None or LX.dtype != X.dtype else LX
    _image(L, _multiplier(L, sign, np.float64), X, LX)
    for _ in range(4):
        theta, residuals, X, LX = _rayleigh_ritz(X, LX)
        if abs(_gram(X, X) - np.eye(len(theta))).max() < 1e-12:
            break
    return theta, residuals, X


# ------------------------------------------------------------------------------------------------ shared


def _finish(L, values, vectors):
    """Sort, fix signs, and measure residuals and orthogonality in float64."""
    order = np.argsort(values, kind="stable")
    values = values[order]
    vectors = vectors if (np.diff(order) == 1).all() else vectors[:, order]
    largest = np.abs(vectors).argmax(0)
    vectors *= np.where(vectors[largest, np.arange(len(values))] < 0, -1.0, 1.0)
    residuals, multiply = np.empty(len(values)), _multiplier(L, 1, np.float64)

    def measure(part):
        x = vectors[:, part]
        residuals[part] = np.linalg.norm(multiply(x) - x * values[part], axis=0)

    _by_columns(L, np.float64, range(len(values)), measure)
    error = _gram(vectors, vectors) - np.eye(len(values))
    return Spectrum(values, vectors, residuals, float(abs(error).max(initial=0)))


def _image(L, multiply, X, out):
    """Write the product with X into ``out``."""

    def write(part):
        out[:, part] = multiply(X[:, part])

    _by_columns(L, X.dtype, range(X.shape[1]), write)


def _by_columns(L, dtype, columns, task):
    """Run ``task`` on a few columns at a time; in threads for a sparse matrix, whose product releases the lock."""
    columns, size = np.asarray(columns), np.dtype(dtype).itemsize
    width = (2048 if isinstance(L, np.ndarray) else LINE) // size
    parts = [columns[i : i + width] for i in range(0, len(columns), width)]
    if not scipy.sparse.issparse(L):
        for part in parts:
            task(part)
        return
    with ThreadPoolExecutor(min(16 // size, os.cpu_count() or 1)) as pool:  # more would need more work space
        list(pool.map(task, parts))


def _multiplier(L, sign, dtype):
    """The function X -> sign L X in ``dtype``."""
    if isinstance(L, LinearOperator):
        return lambda X: np.asarray(sign * L.matmat(X), dtype=dtype)
    matrix = L.astype(dtype, copy=False)

    def multiply(X):
        product = matrix @ np.ascontiguousarray(X)
        return product if sign > 0 else np.negative(product, out=product)

    return multiply


def _gram(X, Y):
    """XᵀY, summed in float64 a few rows at a time."""
    total = np.zeros((X.shape[1], Y.shape[1]))
    for i in range(0, len(X), ROWS):
        total += X[i : i + ROWS].T.astype(np.float64) @ Y[i : i + ROWS].astype(np.float64, copy=False)
    return total


def _columns(L, chosen):
    """Some columns of a symmetric L as a dense float64 array that may be written to, (N, s)."""
    if scipy.sparse.issparse(L):
        return np.ascontiguousarray(L[chosen].toarray().T)
    if isinstance(L, np.ndarray):
        return L[:, chosen]
    n, parts = L.shape[0], [chosen[i : i + LINE] for i in range(0, len(chosen), LINE)]
    unit = [scipy.sparse.csc_array((np.ones(len(p)), (p, np.arange(len(p)))), (n, len(p))).toarray() for p in parts]
    return np.hstack([np.asarray(L.matmat(e), dtype=np.float64) for e in unit])


def _operator(L):
    """L as float64 array, CSR matrix or LinearOperator; square, finite and symmetric (an operator: on two vectors)."""
    if not isinstance(L, LinearOperator):
        L = scipy.sparse.csr_array(L, dtype=np.float64) if scipy.sparse.issparse(L) else np.asarray(L, dtype=np.float64)
    if len(L.shape) != 2 or L.shape[0] != L.shape[1] or L.shape[0] == 0:
        raise ValueError(f"L: got shape {L.shape}, expected a square matrix")
    if isinstance(L, LinearOperator):
        probe = np.random.default_rng(0).standard_normal((L.shape[0], 2))
        image = np.asarray(L.matmat(probe))
        product = probe.T @ image
        if not np.isfinite(product).all():
            raise ValueError("L: its product with a random vector is not finite")
        gap, size = abs(product[0, 1] - product[1, 0]), np.linalg.norm(image) * np.sqrt(L.shape[0])
    else:
        entries = L.data if scipy.sparse.issparse(L) else L
        if not np.isfinite(entries.sum()) and len(bad := np.argwhere(~np.isfinite(entries))):
            if scipy.sparse.issparse(L):
                coo = L.tocoo()
                bad = [[coo.row[bad[0, 0]], coo.col[bad[0, 0]]]]
            raise ValueError(f"L[{int(bad[0][0])}, {int(bad[0][1])}] is not finite; expected finite entries")
        gap, size = _asymmetry(L), max(entries.max(initial=0), -entries.min(initial=0))
    if gap > 1e-6 * size:
        raise ValueError(f"L is not symmetric (entries differ by up to {gap:.1e}); build it with laplacian()")
    return L
