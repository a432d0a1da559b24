r"""Eigenvectors of a graph Laplacian that are truly orthonormal, three ways.

Chapter *An orthogonal Nyström decomposition*.

- ``exact``: dense, cubic in the number of nodes. For small graphs and as the yardstick.
- ``nystrom``: the paper's Algorithm 1 from a sample of columns, with the Rayleigh-Ritz matrix :math:`Z = Q^\top W Q` in
  its second step. Linear in N; good where a few columns tell the whole story (dense affinities), poor on sparse graphs.
- ``krylov``: a block of vectors is filtered by a Chebyshev polynomial of the operator, so that it lies in a block
  Krylov space, and a Rayleigh-Ritz step picks the best vectors in it; repeated until the residuals are small. It only
  multiplies by the operator, so it suits sparse and implicit ones.
"""

import warnings
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.sparse
import torch
from scipy.sparse.linalg import LinearOperator

from .fourier import asymmetry, matrix


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
    shift=2.0,
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
    shift : float
        ``nystrom``: low frequencies come from the columns of ``shift`` I - L, which must be positive semi-definite. 2
        is safe for every graph; the closer to the highest eigenvalue, the better. It is 1 at most for the affinities
        of :func:`item_affinity` with their diagonal.
    seed : int or numpy Generator
        The same seed gives the same answer.

    Returns
    -------
    Spectrum
        Orthonormal to 1e-10 or better. ``nystrom`` returns fewer vectors, with a warning, when its sample spans fewer.

    Notes
    -----
    ``krylov`` keeps two blocks of ``rank + oversampling`` columns, in float32 or float64, and work space for a few
    columns: not more than 6 N rank floats from a rank of 100 upwards. No N × N matrix is formed, unless the block would
    be as wide as the graph. Products run on as many threads as torch may use. ``nystrom`` keeps N × s.

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
    for name, value in (("tol", tol), ("shift", shift)):
        if not value > 0:
            raise ValueError(f"{name}: got {value}, expected a positive number")
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
        return _nystrom(L, count, shift if sign > 0 else 0, oversampling, num_columns, power, probabilities, rng)

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


def _nystrom(L, rank, shift, oversampling, num_columns, power, probabilities, rng):
    r"""Algorithm 1 on M = L (shift 0, high frequencies) or M = shift I - L (low ones), with Z = QᵀWQ.

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
    if shift:
        C *= -1
        C[chosen, np.arange(s)] += shift
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
    return (shift - z[keep] if shift else z[keep]), vectors


# ------------------------------------------------------------------------------------------------ Krylov


def _krylov(L, rank, sign, oversampling, tol, max_rounds, rng):
    """Chebyshev-filtered subspace iteration for the lowest (sign 1) or highest (sign -1) eigenpairs."""
    n, width = L.shape[0], rank + oversampling
    dtype = np.float32 if tol >= 1e-4 else np.float64
    step = _stepper(L, sign, dtype)
    low, edge, cut, high = _survey(step, n, rank, width, dtype, rng)
    bottom = low
    X = rng.standard_normal((n, width), dtype=dtype)
    LX = np.empty_like(X)
    active, target = np.arange(width), 0.9 * tol
    need = np.sqrt(n * (1 + rank / max(oversampling, 1))) * (high - cut) / 3 / target  # of random vectors, on average
    for number in range(max_rounds):
        cut = min(cut, low + 0.95 * (high - low))
        degree = _degree(bottom, low, edge, cut, high, need, dtype)
        for part in _parts(L, dtype, active):
            _filter(step, X, LX, low, cut, high, degree, part, known=number > 0)
        theta, residuals, X, LX = _rayleigh_ritz(X, LX)
        worst = residuals[:rank].max()
        if worst <= target or number == max_rounds - 1:
            values, errors, vectors = _ritz(L, X[:, :rank], LX[:, :rank], sign)
            if errors.max() <= tol:
                break
            target /= 3  # among equal eigenvalues the last step may gather the errors of many vectors in one
        active = np.flatnonzero(residuals > target / 3)
        bottom, low, edge, high = theta[0], theta[active[0]], theta[:rank][-1], max(high, theta[-1])
        need = worst / target
        cut = max(theta[-1], (edge + _frequency_of_error(step, X, LX, theta, residuals[:rank].argmax())) / 2)
    return sign * values, vectors.copy() if vectors.base is not None else vectors


def _frequency_of_error(step, X, LX, theta, j):
    """Rayleigh quotient of the residual of vector j: where in the spectrum lies what still has to be filtered out.

    Where many equal eigenvalues fill the block, its own last Ritz value doesn't tell.
    """
    r = LX[:, [j]] - X[:, [j]] * X.dtype.type(theta[j])
    return float(np.vdot(r, step(r)) / np.vdot(r, r))


def _degree(bottom, low, edge, cut, high, need, dtype):
    r"""Degree of the next filter: what is needed, or as much as rounding allows.

    Relative to the interval [cut, high] the filter raises a frequency by :math:`T_d(x)`. The highest frequency wanted,
    ``edge``, has to gain ``need``. But where it is raised 1e5 times less than the lowest one that is filtered, ``low``,
    it keeps few of its digits; and of those below, down to ``bottom``, a rounding error is left in every vector.
    """
    growth = np.arccosh(1 + 2 * np.maximum(cut - np.array([bottom, low, edge]), 0) / (high - cut))
    least = np.maximum([growth[0] - growth[2], growth[1] - growth[2], growth[2]], 1e-3)
    degrees = np.array([-np.log(np.finfo(dtype).eps), np.log(1e5), np.arccosh(max(need, 2))]) / least
    return int(np.clip(min(*np.floor(degrees[:2]), np.ceil(degrees[2])), 2, 60))


def _filter(step, X, LX, low, cut, high, degree, part, known):
    r"""Replace some columns of X by :math:`T_d((L - c)/e)\,X`, and write their image to LX (``known``: it was there).

    The Chebyshev polynomial of the interval [cut, high] is at most 1 there and grows as fast as a polynomial can below
    it; it is scaled to 1 at ``low`` on the way, so that nothing overflows.
    """
    low, cut, high = float(low), float(cut), float(high)  # NumPy's own scalars would turn float32 into float64
    e, c = (high - cut) / 2, (high + cut) / 2
    sigma = first = e / (low - c)
    x = X.take(part, 1)
    y = LX.take(part, 1) if known else step(x)
    y -= c * x
    y *= sigma / e
    for _ in range(degree - 1):
        after = 1 / (2 / first - sigma)
        x, y, sigma = y, step(y, x, 2 * after / e, -sigma * after, c), after
    X[:, part] = y
    LX[:, part] = step(y, x)


def _survey(step, n, rank, width, dtype, rng, steps=30):
    r"""Lowest frequency, guesses of number ``rank`` and of number ``width``, and the highest, from Lanczos steps.

    The Ritz values and the squared first entries of their vectors are the spectral density, as seen through a random
    vector: n times the sum of those below a frequency tells how many eigenvalues are. (Without orthogonalisation some
    Ritz values come twice; their squares then add up to the same.)
    """
    v, before, alpha, beta = rng.standard_normal(n), 0, [], [0.0]
    v /= np.linalg.norm(v)
    while len(alpha) < steps and (not alpha or beta[-1] > 1e-6 * max(map(abs, alpha + beta))):
        w = step(v[:, None].astype(dtype))[:, 0] - beta[-1] * before
        alpha.append(w @ v)
        w -= alpha[-1] * v
        beta.append(np.linalg.norm(w))
        before, v = v, w / (beta[-1] or 1)
    ritz, S = scipy.linalg.eigh_tridiagonal(alpha, beta[1:-1])
    count, last = n * np.cumsum(S[0] ** 2), len(alpha) - 1
    high = ritz[-1] + beta[-1] * abs(S[-1, -1])
    if high - ritz[0] <= 1e-10 * max(1, abs(high)):
        high = ritz[0] + 1  # every vector is an eigenvector, and no filter harms it
    ritz = np.append(ritz, high)
    spread = np.sqrt(2 * count)  # the standard deviation of such a count
    first = min(np.searchsorted(count - 4 * spread, rank), last)
    second = min(max(first + 1, np.searchsorted(count - 2 * spread, width)), last + 1)
    return ritz[0], ritz[first], ritz[second], high


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
    R, k, t = (T @ W).astype(X.dtype), len(theta), theta.astype(X.dtype)
    squares = np.zeros(k)
    for x, y in _rows(X, LX):
        x[:, :k], y[:, :k] = x @ R, y @ R
        squares += np.square(y[:, :k] - x[:, :k] * t).sum(0, dtype=np.float64)
    return theta, np.sqrt(squares), X[:, :k], LX[:, :k]


def _ritz(L, X, LX=None, sign=1):
    """Rayleigh-Ritz on L (or -L) in float64; once more where one pass leaves the basis short of orthonormal.

    X (and LX, as room for its image) are written to if they are float64 already.
    """
    X = X.astype(np.float64, copy=False)
    LX = np.empty_like(X) if LX is None or LX.dtype != X.dtype else LX
    step = _stepper(L, sign, X.dtype)
    for part in _parts(L, X.dtype, np.arange(X.shape[1])):
        LX[:, part] = step(X.take(part, 1))
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
    residuals, step = np.empty(len(values)), _stepper(L, 1, np.float64)
    for part in _parts(L, vectors.dtype, np.arange(len(values))):
        x = vectors.take(part, 1)
        residuals[part] = np.linalg.norm(step(x) - x * values[part], axis=0)
    error = _gram(vectors, vectors) - np.eye(len(values))
    return Spectrum(values, vectors, residuals, float(abs(error).max(initial=0)))


def _parts(L, dtype, columns):
    """Positions of columns, a few at a time, so that a product needs little work space."""
    width = 512 if isinstance(L, np.ndarray) else 128 if dtype == np.float32 else 32
    return np.array_split(columns, max(1, -(-len(columns) // width)))


def _rows(*arrays):
    """Rows of tall arrays, a few at a time."""
    return zip(*(np.array_split(array, 64) for array in arrays), strict=True)


def _stepper(L, sign, dtype):
    """The function (Y, X, a, b, c) -> a (±L - c) Y + b X, written over X; without X it is ±L Y."""
    if isinstance(L, LinearOperator):

        def add(X, Y, a, b):
            X.mul_(b).add_(torch.from_numpy(np.array(L.matmat(Y.numpy()), dtype=dtype)), alpha=a)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CSR is "beta"; L may be read-only
            if scipy.sparse.issparse(L):
                kinds = *[np.int32 if L.nnz < 2**31 else np.int64] * 2, dtype
                arrays = zip((L.indptr, L.indices, L.data), kinds, strict=True)
                tensors = (torch.from_numpy(array.astype(kind, copy=False)) for array, kind in arrays)
                M = torch.sparse_csr_tensor(*tensors, L.shape, check_invariants=False)
            else:
                M = torch.from_numpy(L.astype(dtype, copy=False))

        def add(X, Y, a, b):
            torch.addmm(X, M, Y, beta=b, alpha=a, out=X)

    def step(Y, X=None, a=1.0, b=0.0, c=0.0):
        X = np.zeros_like(Y) if X is None else X
        x, y = torch.from_numpy(X), torch.from_numpy(Y)
        add(x, y, sign * a, b)
        x.add_(y, alpha=-a * c)
        return X

    return step


def _gram(X, Y):
    """XᵀY, summed in float64 a few rows at a time."""
    total = torch.zeros(X.shape[1], Y.shape[1], dtype=torch.float64)
    for rows in _rows(X, Y):
        x, y = (torch.from_numpy(part.astype(np.float64, copy=False)) for part in rows)
        total.addmm_(x.T, y)
    return total.numpy()


def _columns(L, chosen):
    """Some columns of a symmetric L as a dense float64 array that may be written to, (N, s)."""
    if scipy.sparse.issparse(L):
        return np.ascontiguousarray(L[chosen].toarray().T)
    if isinstance(L, np.ndarray):
        return L[:, chosen]
    unit = np.zeros((L.shape[0], len(chosen)))
    unit[chosen, np.arange(len(chosen))] = 1
    return np.array(L.matmat(unit), dtype=np.float64)


def _operator(L):
    """L as float64 array, CSR matrix or LinearOperator; square, finite and symmetric (an operator: on two vectors)."""
    L = L if isinstance(L, LinearOperator) else matrix("L", L, signed=True)
    if L.shape[0] != L.shape[1] or L.shape[0] == 0:
        raise ValueError(f"L: got shape {L.shape}, expected a square matrix")
    if isinstance(L, LinearOperator):
        probe = np.random.default_rng(0).standard_normal((L.shape[0], 2))
        image = np.asarray(L.matmat(probe))
        product = probe.T @ image
        if not np.isfinite(product).all():
            raise ValueError("L: its product with a random vector is not finite")
        gap, size = abs(product[0, 1] - product[1, 0]), np.linalg.norm(image) * np.sqrt(L.shape[0])
    else:
        gap, size = asymmetry(L), max(L.max(), -L.min())
    if gap > 1e-6 * size:
        raise ValueError(f"L is not symmetric (entries differ by up to {gap:.1e}); build it with laplacian()")
    return L
