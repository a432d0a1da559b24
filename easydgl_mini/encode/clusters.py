"""Weighted kernel k-means, and graph cuts through its kernel (chapter *Clusters of events*)."""

import warnings

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg

EXACT_LIMIT = 10_000
"""Up to this many points the whole kernel matrix is used; beyond it, features of landmarks."""

REFINE_LIMIT = 1_000  # up to this many points single moves are tried unless ``refine`` says otherwise
DEFAULT_LANDMARKS = 256
CHUNK = 4_096  # rows of points handled at a time where the whole would be too large


class KernelKMeans:
    r"""Weighted kernel k-means: k-means among the images :math:`\varphi(x_i)` of points, by inner products alone.

    With weights :math:`w_i \ge 0`, kernel :math:`\kappa(x, y) = \varphi(x)^\top\varphi(y)` and cluster weight
    :math:`s_c = \sum_{i\in c} w_i` it lowers

    .. math::

        J = \sum_c \sum_{i \in c} w_i \,\lVert \varphi(x_i) - m_c \rVert^2, \qquad
        m_c = \frac1{s_c} \sum_{j \in c} w_j \varphi(x_j),

    by moving every point to the nearest centroid, where

    .. math::

        \lVert \varphi(x) - m_c \rVert^2 = \kappa(x, x) - \frac{2}{s_c}\sum_{j\in c} w_j\,\kappa(x, x_j)
            + \frac1{s_c^2}\sum_{j,l\in c} w_j w_l\,\kappa(x_j, x_l),

    until nothing moves; :math:`J` never rises on the way (Dhillon, Guan and Kulis, 2007).

    Parameters
    ----------
    n_clusters : int
        Number of clusters :math:`K`.
    kernel : {"rbf", "linear", "precomputed"} or callable
        ``"rbf"`` is :math:`\exp(-\gamma\lVert x-y\rVert^2)`, ``"linear"`` is :math:`x^\top y` (ordinary k-means); with
        ``"precomputed"`` the X of `fit` is the kernel matrix (n, n) and that of `predict` is (n_new, n); a callable
        takes NumPy arrays (n, d) and (m, d) and returns (n, m).
    gamma : float, "scale" or None
        Of the rbf kernel. None means 1 / d, right for features of unit variance, as in scikit-learn's ``rbf_kernel``;
        ``"scale"`` means 1 / (d · variance of X), as in its ``SVC``.
    init : {"k-means++", "random", "partition"} or array
        How a start is drawn: K centres by greedy k-means++ in kernel space, K random points (both by weight), or a
        random partition, which suits kernels with a large diagonal, such as those of graph cuts, where a single point
        is a poor centre. An array fixes the one start: integers (K,) are indices of points taken as centres, integers
        (n,) are a first partition, floats (K, d) are centres. (Where K = n, integers are indices.)
    n_init : int
        Number of starts; the one of lowest objective is kept.
    landmarks : int, array (m, d) or None
        Work with Nyström features of this many points drawn at random, or of these points. None means none up to
        10,000 points and 256 beyond (none are needed for a linear kernel, whose features are the points themselves).
    seed : int
        Of all draws. The same seed gives the same clusters.
    max_iter : int
        Most rounds of one start.
    tol : float or None
        Stop when a round lowers the objective by less than this part of it. None means 0 up to 10,000 points (go on
        until nothing moves) and 1e-4 beyond.
    refine : bool or None
        When nothing moves any more, move single points as long as that lowers the objective, counting in that both
        centroids follow the point; then go on. Plain rounds often stop short of the best partition, even on 8 points.
        None means True for starts that are drawn, up to 1,000 points, and False for a given start (which is then
        ordinary k-means) and for more points.

    Attributes
    ----------
    labels_ : ndarray (n,) of int64
        Cluster of each point (NumPy, as in scikit-learn): each point's nearest centroid.
    inertia_ : float
        The objective :math:`J` of `labels_`.
    inertia_path_ : ndarray (n_iter_,)
        The objective after each round of the start that won; it never rises.
    n_iter_ : int
        Rounds of that start.
    shift_ : float
        :math:`\sigma` of the shift below; 0 for a positive semi-definite kernel.
    landmarks_ : ndarray (m, d) or None
        The landmarks used.

    Notes
    -----
    *Ties.* A point at equal distances (up to rounding) from several centroids goes to the one with the lowest index.

    *Empty clusters.* A cluster left without weight takes the point that contributes most, :math:`w_i d_i^2`, to the
    objective, which therefore falls. If all contributions are zero there are fewer distinct points than clusters: the
    cluster stays empty, nothing is ever assigned to it, and a warning says so.

    *Weights.* A point of weight zero moves no centroid, and still gets the label of its nearest one.

    *Indefinite kernels.* If :math:`W^{1/2} K W^{1/2}` has its lowest eigenvalue :math:`-\sigma < 0`, then
    :math:`K + \sigma W^{-1}` is used, and a warning says so. Among n points of positive weight that adds the same
    constant, σ (n − K), to the objective of every partition into K non-empty clusters: the best partition stays the
    best. But points now cling to the cluster they are in: use many starts, ``init="partition"`` and ``refine=True``.
    `inertia_` includes the constant. The shift belongs to training points alone: `predict` gives a row equal to a
    training row that point's label (the r-th of several equal rows the r-th such point's), and measures plain distances
    for the others. With landmarks the negative part of their kernel is dropped instead.

    *Large sets.* Beyond 10,000 points the ``n_init`` starts compete on a sample of 10,000, and the best goes on with
    all points. With landmarks the centroids lie in the span of the landmarks' images; `inertia_` is measured in the
    full kernel space.

    Inputs may be NumPy arrays or torch tensors. Distances that decide are computed in float64.

    Examples
    --------
    >>> x = np.array([[0.0], [1.0], [10.0], [12.0]])
    >>> model = KernelKMeans(2, kernel="linear").fit(x)
    >>> bool(model.labels_[0] == model.labels_[1] != model.labels_[2] == model.labels_[3])
    True
    >>> round(model.inertia_, 6)  # 2 · 0.5² + 2 · 1²
    2.5
    >>> bool(model.predict([[7.0]])[0] == model.labels_[2])
    True
    """

    def __init__(
        self,
        n_clusters,
        kernel="rbf",
        gamma=None,
        init="k-means++",
        n_init=10,
        landmarks=None,
        seed=0,
        *,
        max_iter=300,
        tol=None,
        refine=None,
    ):
        self.n_clusters, self.kernel, self.gamma = n_clusters, kernel, gamma
        self.init, self.n_init, self.landmarks, self.seed = init, n_init, landmarks, seed
        self.max_iter, self.tol, self.refine = max_iter, tol, refine

    def fit(self, X, sample_weight=None):
        """Cluster the points.

        Parameters
        ----------
        X : array or tensor (n, d), or (n, n) with ``kernel="precomputed"``
        sample_weight : array or tensor (n,) or None
            Non-negative, at least K of them positive. None means ones. An integer weight is worth that many copies.

        Returns
        -------
        self
        """
        self._check_arguments()
        X = _matrix(X, "X")
        weights = _weights(sample_weight, len(X), self.n_clusters)
        self._measure(X, weights)
        starts_rng, landmarks_rng, sample_rng = map(np.random.default_rng, np.random.SeedSequence(self.seed).spawn(3))
        self.landmarks_ = self._choose_landmarks(X, weights, landmarks_rng)
        if self.refine and len(X) > EXACT_LIMIT:
            raise ValueError(f"refine=True is for at most {EXACT_LIMIT:,} points, got {len(X):,}")
        space = self._gram(X, weights) if self.landmarks_ is None else self._features(X, weights)
        tol = (0.0 if len(X) <= EXACT_LIMIT else 1e-4) if self.tol is None else self.tol
        labels, path = self._best_start(X, space, tol, starts_rng, sample_rng)

        self._coefficients, self._norms, self._spread = space.dual(labels)
        products = space.products(self._coefficients)
        self.labels_ = _nearest(products, self._norms, self._spread).astype(np.int64)
        own = np.arange(len(X)), self.labels_
        self.inertia_ = float(weights @ (space.self_products - 2.0 * products[own] + self._norms[self.labels_]))
        self.inertia_path_, self.n_iter_ = np.array(path) + space.residual, len(path)
        self._training_rows = X.copy() if self.shift_ else None
        occupied = np.isfinite(self._norms).sum()
        if occupied < self.n_clusters:
            warnings.warn(
                f"only {occupied} of n_clusters={self.n_clusters} clusters are occupied: too few distinct points",
                stacklevel=2,
            )
        return self

    def fit_predict(self, X, sample_weight=None):
        """Cluster the points and return `labels_`."""
        return self.fit(X, sample_weight).labels_

    def predict(self, X):
        """Cluster of new points: the nearest centroid in kernel space. Gives `labels_` on the training points.

        Parameters
        ----------
        X : array or tensor (n_new, d), or (n_new, n) with ``kernel="precomputed"``
            In the latter case the kernel between new and training points; :math:`\\kappa(x, x)` is the same for every
            centroid and is not needed.

        Returns
        -------
        ndarray (n_new,) of int64
        """
        if not hasattr(self, "labels_"):
            raise ValueError("this KernelKMeans has no clusters yet: call fit before predict")
        X = _matrix(X, "X", allow_empty=True)
        if X.shape[1] != self.n_features_in_:
            raise ValueError(f"X has {X.shape[1]} columns, but fit saw {self.n_features_in_}")
        labels = np.empty(len(X), dtype=np.int64)
        for rows in _chunks(len(X)):
            products = self._cross(X[rows], self._anchors) @ self._coefficients
            labels[rows] = _nearest(products, self._norms, self._spread)
        if self.shift_:
            index = _match_rows(X, self._training_rows)
            labels[index >= 0] = self.labels_[index[index >= 0]]
        return labels

    # what the constructor was given --------------------------------------------------------------------------------

    def _check_arguments(self):
        for name in ("n_clusters", "n_init", "max_iter"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        if not callable(self.kernel) and self.kernel not in ("rbf", "linear", "precomputed"):
            raise ValueError(f"kernel must be 'rbf', 'linear', 'precomputed' or a callable, got {self.kernel!r}")
        is_number = isinstance(self.gamma, int | float | np.number) and not isinstance(self.gamma, bool)
        if not (self.gamma is None or _is(self.gamma, "scale") or (is_number and 0 < self.gamma < np.inf)):
            raise ValueError(f"gamma must be a positive number, 'scale' or None, got {self.gamma!r}")
        if isinstance(self.init, str) and self.init not in STARTS:
            raise ValueError(f"init must be one of {', '.join(map(repr, STARTS))} or an array, got {self.init!r}")
        if self.landmarks is not None and self.kernel == "precomputed":
            raise ValueError("landmarks must be None with kernel='precomputed': the whole matrix is there already")
        if self.refine not in (None, True, False):
            raise ValueError(f"refine must be True, False or None, got {self.refine!r}")
        if self.tol is not None and not 0 <= self.tol < np.inf:
            raise ValueError(f"tol must be a non-negative number or None, got {self.tol!r}")

    def _measure(self, X, weights):
        """What the kernel needs to know of the data: width, centre, gamma."""
        self.n_features_in_ = X.shape[1]
        if self.kernel == "precomputed" and X.shape[0] != X.shape[1]:
            raise ValueError(f"X must be a square kernel matrix with kernel='precomputed', got shape {X.shape}")
        mean = np.zeros(X.shape[1])
        if self.kernel in ("rbf", "linear"):  # neither minds a translation, and centred points lose fewer digits
            mean = np.asarray(weights @ X / weights.sum(), dtype=np.float64)
        self._mean = mean
        scale = X.shape[1] * (float(X.var(dtype=np.float64)) or 1.0) if _is(self.gamma, "scale") else X.shape[1]
        self.gamma_ = 1.0 / scale if self.gamma is None or _is(self.gamma, "scale") else float(self.gamma)
        self.shift_ = 0.0

    def _choose_landmarks(self, X, weights, rng):
        landmarks = self.landmarks
        if landmarks is None:
            if self.kernel == "precomputed" or len(X) <= EXACT_LIMIT:
                return None
            if self.kernel == "linear":
                return np.eye(X.shape[1]) + self._mean  # x · e_j is x_j: these features are the points themselves
            landmarks = DEFAULT_LANDMARKS
        if np.ndim(landmarks) == 0:
            if isinstance(landmarks, bool) or not isinstance(landmarks, int | np.integer) or landmarks < 1:
                raise ValueError(f"landmarks must be a positive integer or points (m, d), got {landmarks!r}")
            if landmarks > len(X):
                raise ValueError(f"landmarks={landmarks} is more than the {len(X)} points")
            pool = np.flatnonzero(weights) if landmarks <= np.count_nonzero(weights) else np.arange(len(X))
            return X[np.sort(rng.choice(pool, size=landmarks, replace=False))].astype(np.float64)
        landmarks = _matrix(landmarks, "landmarks").astype(np.float64)
        if landmarks.shape[1] != X.shape[1]:
            raise ValueError(f"landmarks has {landmarks.shape[1]} columns, but X has {X.shape[1]}")
        return landmarks

    # the kernel ----------------------------------------------------------------------------------------------------

    def _cross(self, X, Y):
        """Kernel between the rows of X and those of Y, in float64; X itself where it is precomputed."""
        if self.kernel == "precomputed":
            return X.astype(np.float64, copy=False)
        if callable(self.kernel):
            K = _matrix(self.kernel(X, Y), "kernel(X, Y)", allow_empty=True).astype(np.float64, copy=False)
            if K.shape != (len(X), len(Y)):
                raise ValueError(f"kernel must return shape ({len(X)}, {len(Y)}), got {K.shape}")
            return K
        X, Y = X - self._mean, Y - self._mean
        K = X @ Y.T
        if self.kernel == "rbf":
            K *= 2.0
            K -= np.einsum("ij,ij->i", X, X)[:, None]
            K -= np.einsum("ij,ij->i", Y, Y)
            np.minimum(K, 0.0, out=K)
            K *= self.gamma_
            np.exp(K, out=K)
        return K

    def _diagonal(self, X):
        """Kernel of each row of X with itself."""
        if self.kernel == "rbf":
            return np.ones(len(X))
        if self.kernel == "linear":
            return np.concatenate([((X[rows] - self._mean) ** 2).sum(1) for rows in _chunks(len(X))])
        blocks = (X[rows] for rows in _chunks(len(X), 64))
        return np.concatenate([np.diagonal(self._cross(block, block)) for block in blocks])

    def _gram(self, X, weights):
        K = np.empty((len(X), len(X)))
        for rows in _chunks(len(X)):
            K[rows] = self._cross(X[rows], X)
        self._anchors = None if self.kernel == "precomputed" else X.copy()
        if self.kernel == "rbf":
            np.fill_diagonal(K, 1.0)
        elif self.kernel != "linear":  # rbf and linear are positive semi-definite by nature
            eps = np.finfo(X.dtype).eps if X.dtype.kind == "f" else np.finfo(np.float64).eps
            _require_symmetric(K, "X" if self.kernel == "precomputed" else "kernel(X, X)")
            self.shift_ = _shift(K, weights, eps)
        if self.shift_:
            warnings.warn(
                f"the kernel is indefinite: shifted by {self.shift_:.3g} / weight on the diagonal, which moves the "
                "objective of all partitions alike (use many starts)",
                stacklevel=3,
            )
            positive = weights > 0
            K[positive, positive] += self.shift_ / weights[positive]
        return _Gram(K, weights, self.n_clusters)

    def _features(self, X, weights):
        self._anchors = self.landmarks_
        K = self._cross(self._anchors, self._anchors)
        _require_symmetric(K, "kernel(landmarks, landmarks)")
        values, vectors = np.linalg.eigh((K + K.T) / 2)
        floor = len(K) * np.finfo(np.float64).eps * np.abs(values).max()
        if values[0] < -1e3 * floor:
            warnings.warn(
                f"the kernel is indefinite: its negative part among the landmarks (down to {values[0]:.3g}) is dropped",
                stacklevel=3,
            )
        keep = values > 1e2 * floor  # a pseudo-inverse: directions the landmarks do not span are left out
        if not keep.any():
            raise ValueError("landmarks have no direction in kernel space: the kernel between them is zero")
        root = vectors[:, keep] / np.sqrt(values[keep])
        F = np.empty((len(X), keep.sum()), dtype=np.float64 if len(X) <= EXACT_LIMIT else np.float32)
        for rows in _chunks(len(X)):
            F[rows] = self._cross(X[rows], self._anchors) @ root
        space = _Features(F, weights, self.n_clusters)
        space.root, space.products = root, lambda coefficients: self._products(X, coefficients)
        space.self_products = self._diagonal(X)
        # what the landmarks do not span lies equally far from every centroid
        space.residual = float(weights @ (space.self_products - space.diagonal))
        return space

    def _products(self, X, coefficients):
        """Inner products φ(x)·m of all points and centroids, (n, K), in float64."""
        blocks = (self._cross(X[rows], self._anchors) @ coefficients for rows in _chunks(len(X)))
        return np.concatenate(list(blocks))

    # starts --------------------------------------------------------------------------------------------------------

    def _best_start(self, X, space, tol, rng, sample_rng):
        if not isinstance(self.init, str):
            return _lloyd(space, self._given_start(X, space), self.max_iter, tol, bool(self.refine))
        refine = len(X) <= REFINE_LIMIT if self.refine is None else self.refine
        field = space  # where the starts compete
        if len(X) > EXACT_LIMIT and self.landmarks_ is not None:
            field = space.sample(sample_rng, EXACT_LIMIT)
        best, best_path = None, None
        for _ in range(self.n_init):
            labels = STARTS[self.init](field, rng)
            labels, path = _lloyd(field, labels, self.max_iter, tol, refine)
            if best is None or path[-1] < best_path[-1] - 1e-10 * abs(best_path[-1]):  # more than rounding
                best, best_path = labels, path
        if field is not space:
            best, best_path = _lloyd(space, space.labels_like(field, best), self.max_iter, tol)
        return best, best_path

    def _given_start(self, X, space):
        start, k, n = _array(self.init), self.n_clusters, len(X)
        if start.dtype.kind in "iu" and start.shape == (k,):
            bad = np.flatnonzero((start < 0) | (start >= n))
            if bad.size:
                raise ValueError(f"init must hold indices of points below {n}, got {start[bad[0]]} at index {bad[0]}")
            return _nearest_point(space, start)
        if start.dtype.kind in "iu" and start.shape == (n,):
            bad = np.flatnonzero((start < 0) | (start >= k))
            if bad.size:
                raise ValueError(f"init must hold cluster ids below {k}, got {start[bad[0]]} at index {bad[0]}")
            return start.astype(np.int64)
        if start.ndim == 2 and start.shape == (k, X.shape[1]) and self.kernel != "precomputed":
            centres = _matrix(start, "init").astype(np.float64)
            norms = self._diagonal(centres)
            blocks = (self._cross(X[rows], centres) for rows in _chunks(n))
            return np.concatenate([_nearest(block, norms, norms) for block in blocks])
        raise ValueError(
            f"init must be integers of shape ({k},) (points) or ({n},) (cluster ids), or centres ({k}, d); "
            f"got {start.dtype} of shape {start.shape}"
        )


def graph_cut_kernel(adjacency, objective="ncut"):
    r"""The kernel and weights with which weighted kernel k-means minimises a graph cut (chapter *Clusters of events*).

    Write :math:`\ell(a, b) = \sum_{i\in a, j\in b} A_{ij}`, :math:`d_i = \sum_j A_{ij}`, :math:`D = \mathrm{diag}(d)`,
    :math:`V` for all nodes and :math:`|c|` for the number of nodes in cluster :math:`c`.

    ============== ======================================== =================================== ==========
    objective      minimises                                kernel                              weights
    ============== ======================================== =================================== ==========
    "ncut"         :math:`\sum_c \ell(c, V∖c) / \ell(c, V)` :math:`D^{-1}AD^{-1}+\sigma D^{-1}` :math:`d`
    "ratio-cut"    :math:`\sum_c \ell(c, V∖c) / |c|`        :math:`A - D + \sigma I`            ones
    "ratio-assoc"  :math:`-\sum_c \ell(c, c) / |c|`         :math:`A + \sigma I`                ones
    ============== ======================================== =================================== ==========

    *Proof.* Expanding the square, the objective of weighted kernel k-means is
    :math:`J = \sum_i w_i K_{ii} - \sum_c \frac1{s_c} \sum_{i,j\in c} w_i w_j K_{ij}`, whose first term is the same for
    all partitions. For "ncut", :math:`w_i w_j K_{ij} = A_{ij} + \sigma d_i [i = j]` and :math:`s_c = \ell(c, V)`, so a
    cluster's term is :math:`\ell(c,c)/\ell(c,V) + \sigma = 1 - \ell(c, V∖c)/\ell(c,V) + \sigma`, and with :math:`k`
    non-empty clusters :math:`J = \mathrm{const} - k(1 + \sigma) + \mathrm{NCut}`. For "ratio-cut" the term is
    :math:`(\ell(c,c) - \ell(c,V))/|c| + \sigma = \sigma - \ell(c,V∖c)/|c|`, for "ratio-assoc" it is
    :math:`\ell(c,c)/|c| + \sigma`. ∎

    :math:`\sigma \ge 0` is the least shift to a positive semi-definite kernel (Dhillon, Guan and Kulis, 2007).
    It changes no comparison between partitions, but makes points cling to their clusters. Small graphs need nothing
    special; on larger ones use ``KernelKMeans(k, kernel="precomputed", init="partition", refine=True)``. For nodes that
    join later, `predict` takes :math:`D_{new}^{-1} A_{new} D^{-1}` (or just :math:`A_{new}`).

    Parameters
    ----------
    adjacency : array, tensor or SciPy sparse matrix (n, n)
        Symmetric, non-negative. A node without edges has weight 0 under "ncut".
    objective : {"ncut", "ratio-cut", "ratio-assoc"}

    Returns
    -------
    kernel : ndarray (n, n) of float64
        Dense, for ``KernelKMeans(k, kernel="precomputed")``.
    weights : ndarray (n,) of float64
        For its ``fit(kernel, sample_weight=weights)``.

    Examples
    --------
    Two triangles joined by one edge are cut at that edge:

    >>> A = np.zeros((6, 6))
    >>> for i, j in [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5), (2, 3)]:
    ...     A[i, j] = A[j, i] = 1
    >>> kernel, weights = graph_cut_kernel(A)
    >>> labels = KernelKMeans(2, kernel="precomputed").fit_predict(kernel, weights)
    >>> (labels == labels[0]).tolist()
    [True, True, True, False, False, False]
    """
    A = _matrix(adjacency, "adjacency").astype(np.float64)
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"adjacency must be square, got shape {A.shape}")
    _require_symmetric(A, "adjacency")
    if (A < 0).any():
        i, j = np.argwhere(A < 0)[0]
        raise ValueError(f"adjacency must be non-negative, got {A[i, j]} at index ({i}, {j})")
    degree = A.sum(axis=1)
    if objective == "ncut":
        if not degree.any():
            raise ValueError("adjacency has no edges, so no normalised cut")
        inverse = np.divide(1.0, degree, out=np.zeros_like(degree), where=degree > 0)
        K, weights = inverse[:, None] * A * inverse, degree
    elif objective == "ratio-cut":
        K, weights = A - np.diag(degree), np.ones(len(A))
    elif objective == "ratio-assoc":
        K, weights = A, np.ones(len(A))
    else:
        raise ValueError(f"objective must be 'ncut', 'ratio-cut' or 'ratio-assoc', got {objective!r}")
    K = (K + K.T) / 2
    shift = _shift(K, weights, np.finfo(np.float64).eps)
    positive = weights > 0
    K[positive, positive] += shift / weights[positive]
    return K, weights


# two ways to know the points: all their inner products, or a few features --------------------------------------------


class _Gram:
    """Points known by their kernel matrix; a centroid is a column of weights over all points."""

    residual = 0.0

    def __init__(self, kernel, weights, n_clusters):
        self.kernel, self.weights, self.n_clusters = kernel, weights, n_clusters
        self.diagonal = self.self_products = kernel.diagonal().copy()
        self._sums = self._labels = None

    def to_points(self, index):
        """Inner products of all points with the points ``index``, (n, len(index))."""
        return self.kernel[:, index]

    def centroids(self, labels):
        """Inner products of all points with the centroids of this partition (n, K), their squared norms and spreads."""
        moved = None if self._labels is None else np.flatnonzero(self._labels != labels)
        if moved is None or 4 * len(moved) > len(labels):
            self._sums = self.kernel @ self._membership(labels)
        elif len(moved):  # few points moved: update the sums by those alone
            change = self._membership(labels, moved) - self._membership(self._labels, moved)
            self._sums += self.kernel[moved].T @ change
        self._labels = labels.copy()
        size, spread = _sizes(labels, self)
        within = np.bincount(labels, self.weights * self._sums[np.arange(len(labels)), labels], self.n_clusters)
        return self._sums / _or_one(size), np.where(size > 0, within / _or_one(size) ** 2, np.inf), spread

    def dual(self, labels):
        """Centroids as combinations of points: coefficients (n, K), squared norms (K,) and spreads (K,)."""
        size, spread = _sizes(labels, self)
        coefficients = self._membership(labels) / _or_one(size)
        norms = np.einsum("ik,ik->k", coefficients, self.kernel @ coefficients)
        return coefficients, np.where(size > 0, norms, np.inf), spread

    def products(self, coefficients):
        return self.kernel @ coefficients

    def _membership(self, labels, rows=slice(None)):
        return self.weights[rows, None] * (labels[rows, None] == np.arange(self.n_clusters))


class _Features:
    """Points known by their coordinates in the landmarks' span; a centroid is a point there."""

    def __init__(self, features, weights, n_clusters):
        self.features, self.weights, self.n_clusters = features, weights, n_clusters
        blocks = (features[rows] for rows in _chunks(len(features)))
        self.diagonal = np.concatenate([np.einsum("ij,ij->i", block, block) for block in blocks])

    def to_points(self, index):
        return self.features @ self.features[index].T

    def centroids(self, labels):
        means, norms, spread = self.means(labels)
        return self.features @ means.T.astype(self.features.dtype), norms.astype(self.features.dtype), spread

    def means(self, labels):
        """Centroids in feature coordinates (K, r), their squared norms (K,) and spreads (K,)."""
        size, spread = _sizes(labels, self)
        means = np.zeros((self.n_clusters, self.features.shape[1]))
        for rows in _chunks(len(labels)):
            block, label = self.features[rows], labels[rows]
            entries = self.weights[rows].astype(block.dtype), (label, np.arange(len(label)))
            means += scipy.sparse.csr_array(entries, shape=(self.n_clusters, len(label))) @ block
        means /= _or_one(size)[:, None]
        return means, np.where(size > 0, (means**2).sum(1), np.inf), spread

    def dual(self, labels):
        means, norms, spread = self.means(labels)
        return self.root @ means.T, norms, spread

    def sample(self, rng, size):
        """A smaller space of ``size`` points of positive weight drawn at random."""
        pool = np.flatnonzero(self.weights)
        index = np.sort(rng.choice(pool, size=min(size, len(pool)), replace=False))
        return _Features(self.features[index], self.weights[index], self.n_clusters)

    def labels_like(self, other, labels):
        """Nearest of the centroids of another space's partition."""
        means, norms, spread = other.means(labels)
        dtype = self.features.dtype
        return _nearest(self.features @ means.T.astype(dtype), norms.astype(dtype), spread)


# k-means itself ----------------------------------------------------------------------------------------------------


def _lloyd(space, labels, max_iter, tol, refine=False):
    """Move points to the nearest centroid until nothing moves: the last partition and the objective of each round."""
    path = []
    for _ in range(max_iter):
        products, norms, spread = space.centroids(labels)
        own = _own_distance(space, labels, products, norms)
        for empty in np.flatnonzero(np.isinf(norms)):  # refill empty clusters, one at a time
            share = space.weights * (own - _rounding(products) * (space.diagonal + spread[labels]))
            if share.max() <= 0.0:
                break
            labels = labels.copy()
            labels[share.argmax()] = empty
            products, norms, spread = space.centroids(labels)
            own = _own_distance(space, labels, products, norms)
        path.append(float(space.weights @ own))
        nearest = _nearest(products, norms, spread)
        if refine and np.array_equal(nearest, labels):
            nearest = _single_moves(space, labels)
        if np.array_equal(nearest, labels) or (len(path) > 1 and path[-2] - path[-1] < tol * path[-2]):
            break
        labels = nearest
    return labels, path


def _single_moves(space, labels):
    """Move one point at a time, the most profitable first, until no move lowers the objective."""
    everyone, weights, labels = np.arange(len(labels)), space.weights, labels.copy()
    for _ in range(10 * len(labels)):  # far more than it ever takes
        products, norms, spread = space.centroids(labels)
        size, _ = _sizes(labels, space)
        own, rest = _own_distance(space, labels, products, norms), size[labels] - weights
        movable = (weights > 0) & (rest > 1e-12 * size[labels])  # not the only one in its cluster
        leave = np.where(movable, weights * size[labels] * own / np.where(movable, rest, 1.0), 0.0)
        with np.errstate(invalid="ignore"):
            distances = space.diagonal[:, None] - 2.0 * products + norms
            join = weights[:, None] * size / (size + weights[:, None]) * distances
        join[:, size == 0] = np.inf
        noise = _rounding(own) * weights[:, None] * (space.diagonal[:, None] + spread)
        gain = np.where(movable[:, None], leave[:, None] - join - noise, -np.inf)
        gain[everyone, labels] = -np.inf
        point, cluster = np.unravel_index(gain.argmax(), gain.shape)
        if gain[point, cluster] <= 0.0:
            break
        labels[point] = cluster
    return labels


def _own_distance(space, labels, products, norms):
    """Squared distance of each point to the centroid of its cluster (a cluster of zero weight has none: 0 for it)."""
    norms = np.where(np.isinf(norms), 0.0, norms)
    return space.diagonal - 2.0 * products[np.arange(len(labels)), labels] + norms[labels]


def _nearest(products, norms, spread):
    """Nearest centroid: the least ‖m‖² − 2 φ(x)·m; of several that are equal up to rounding, the first.

    ``spread``, the clusters' mean κ(x, x), bounds the rounding errors. In float32 a plain minimum is taken.
    """
    score = norms - 2.0 * products
    best = score.argmin(axis=1)
    if score.dtype == np.float32:
        return best
    slack = _rounding(score) * (spread + 2.0 * np.abs(products))
    row = np.arange(len(score))
    return (score - slack <= (score[row, best] + slack[row, best])[:, None]).argmax(axis=1)


def _nearest_point(space, index):
    norms = space.diagonal[index]
    return _nearest(space.to_points(index), norms, np.abs(norms))


def _random_partition(space, rng):
    return rng.integers(space.n_clusters, size=len(space.weights))


def _random_points(space, rng):
    share = space.weights / space.weights.sum()
    return _nearest_point(space, rng.choice(len(share), space.n_clusters, replace=False, p=share))


def _plus_plus(space, rng):
    """Greedy k-means++: of a few candidates drawn by weight times squared distance, keep the most useful, K times."""
    weights, trials = space.weights, 2 + int(np.log(space.n_clusters))
    chosen = [_draw(weights, rng, 1)[0]]
    closest = _squared_distances(space, chosen)[:, 0]
    while len(chosen) < space.n_clusters:
        mass = weights * closest
        if not mass.any():  # every point lies on a chosen one: take any other
            mass = np.where(np.isin(np.arange(len(weights)), chosen), 0.0, weights)
        candidates = _draw(mass, rng, trials)
        after = np.minimum(closest[:, None], _squared_distances(space, candidates))
        best = (weights @ after).argmin()
        chosen.append(candidates[best])
        closest = after[:, best]
    return _nearest_point(space, np.array(chosen))


STARTS = {"k-means++": _plus_plus, "random": _random_points, "partition": _random_partition}


def _squared_distances(space, index):
    """To the points ``index``, (n, len(index)); what may be rounding is zero."""
    size = space.diagonal[:, None] + space.diagonal[index]
    distances = size - 2.0 * space.to_points(index)
    return np.where(distances > _rounding(distances) * size, distances, 0.0)


def _draw(mass, rng, size):
    """Indices drawn with probability proportional to ``mass``."""
    edges = np.cumsum(mass, dtype=np.float64)
    index = np.searchsorted(edges, rng.random(size) * edges[-1], side="right")
    return np.minimum(index, np.flatnonzero(mass)[-1])


def _sizes(labels, space):
    """Weight of each cluster, and the weighted mean of kappa(x, x) in it."""
    size = np.bincount(labels, space.weights, space.n_clusters)
    return size, np.bincount(labels, space.weights * np.abs(space.diagonal), space.n_clusters) / _or_one(size)


def _or_one(size):
    return np.where(size > 0, size, 1.0)


def _rounding(x):
    """Relative size below which a difference is taken for a rounding error."""
    return 1e3 * np.finfo(x.dtype).eps


# indefinite kernels ------------------------------------------------------------------------------------------------


def _shift(K, weights, eps):
    """Least σ ≥ 0 with K + σ/W positive semi-definite among the points of positive weight."""
    index = np.flatnonzero(weights)
    root = np.sqrt(weights[index])
    M = root[:, None] * (K if len(index) == len(K) else K[np.ix_(index, index)]) * root
    size = np.abs(M).max()
    slack = 4.0 * np.sqrt(len(M)) * max(eps, np.finfo(np.float64).eps) * size
    try:  # much cheaper than an eigenvalue, and all there is to do for an honest kernel
        np.linalg.cholesky(M + slack * np.eye(len(M)))
        return 0.0
    except np.linalg.LinAlgError:
        pass
    if len(M) <= 1_000:
        lowest = scipy.linalg.eigh(M, eigvals_only=True, subset_by_index=[0, 0])[0]
        return float(max(0.0, slack - lowest))
    start = np.random.default_rng(0).standard_normal(len(M))
    lowest = scipy.sparse.linalg.eigsh(M, k=1, which="SA", v0=start, tol=1e-4, return_eigenvectors=False)[0]
    return float(max(0.0, slack - 1.001 * lowest))


def _match_rows(X, training):
    """For each row of X the index of an equal training row, the r-th time the r-th such (or the last), else -1."""
    where = {}
    for i, row in enumerate(np.asarray(training, dtype=np.float64)):
        where.setdefault(row.tobytes(), []).append(i)
    index = np.full(len(X), -1)
    for i, row in enumerate(np.asarray(X, dtype=np.float64)):
        same = where.get(row.tobytes())
        if same:
            index[i] = same.pop(0) if len(same) > 1 else same[0]
    return index


# input -------------------------------------------------------------------------------------------------------------


def _is(value, text):
    return isinstance(value, str) and value == text


def _chunks(n, size=CHUNK):
    return [slice(start, start + size) for start in range(0, n, size)]


def _array(x):
    if scipy.sparse.issparse(x):
        return x.toarray()
    return x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)


def _matrix(x, name, allow_empty=False):
    """``x`` as a finite NumPy matrix, its floating dtype kept."""
    x = _array(x)
    if x.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, got shape {x.shape}")
    if x.dtype.kind not in "fiub":
        raise ValueError(f"{name} must hold real numbers, got dtype {x.dtype}")
    if not allow_empty and 0 in x.shape:
        raise ValueError(f"{name} must not be empty, got shape {x.shape}")
    if x.dtype.kind != "f" or x.dtype.itemsize < 4:
        x = x.astype(np.float64)
    finite = np.isfinite(x)
    if not finite.all():
        i, j = np.argwhere(~finite)[0]
        raise ValueError(f"{name} must be finite, got {x[i, j]} at index ({i}, {j})")
    return x


def _weights(weights, n, n_clusters):
    weights = np.ones(n) if weights is None else np.asarray(_array(weights), dtype=np.float64)
    if weights.shape != (n,):
        raise ValueError(f"sample_weight must have shape ({n},), got {weights.shape}")
    bad = np.flatnonzero(~((weights >= 0) & (weights < np.inf)))
    if bad.size:
        raise ValueError(f"sample_weight must be non-negative and finite, got {weights[bad[0]]} at index {bad[0]}")
    if n_clusters > np.count_nonzero(weights):
        raise ValueError(
            f"n_clusters={n_clusters} is more than the {np.count_nonzero(weights)} points of positive weight"
        )
    return weights


def _require_symmetric(K, name):
    difference = np.abs(K - K.T)
    if difference.max() > 1e-5 * np.abs(K).max():
        i, j = np.unravel_index(difference.argmax(), K.shape)
        raise ValueError(f"{name} must be symmetric, got {K[i, j]} at ({i}, {j}) and {K[j, i]} at ({j}, {i})")
