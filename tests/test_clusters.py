"""Weighted kernel k-means against scikit-learn, brute force and the facts its docstring claims."""

import doctest
import itertools
import warnings

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.metrics.pairwise import rbf_kernel

import easydgl_mini.encode.clusters as clusters
from easydgl_mini.encode.clusters import KernelKMeans, graph_cut_kernel


def blobs(n=60, dim=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, dim)) + 3.0 * rng.integers(0, 3, size=(n, 1)), rng.random(n) + 0.1


def objective(K, weights, labels):
    """The weighted kernel objective, straight from its definition by double sums."""
    total = 0.0
    for c in np.unique(labels):
        inside = np.flatnonzero(labels == c)
        size = weights[inside].sum()
        if size == 0:
            continue
        for i in inside:
            first = sum(weights[j] * K[i, j] for j in inside) / size
            second = sum(weights[j] * weights[k] * K[j, k] for j in inside for k in inside) / size**2
            total += weights[i] * (K[i, i] - 2 * first + second)
    return total


def same_partition(a, b):
    return np.array_equal(a[:, None] == a, b[:, None] == b)


def all_partitions(n, k):
    """Every way to put n points into exactly k unnamed clusters."""
    for rest in itertools.product(range(k), repeat=n - 1):
        labels = np.array((0, *rest))
        _, first = np.unique(labels, return_index=True)
        if len(first) == k and (np.diff(first) > 0).all():
            yield labels


def test_docstring_examples_run():
    assert doctest.testmod(clusters).failed == 0


# scikit-learn's k-means is the linear kernel -------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_linear_kernel_is_sklearns_kmeans_from_the_same_start(seed, weighted):
    X, weights = blobs(n=120, seed=seed)
    X = X + [50.0, -20.0, 0.0]
    weights = weights if weighted else None
    index = np.random.default_rng(seed).choice(len(X), size=4, replace=False)
    theirs = KMeans(4, init=X[index], n_init=1, algorithm="lloyd", tol=0.0).fit(X, sample_weight=weights)
    labels = ((X[:, None] - X[index]) ** 2).sum(-1).argmin(1)
    gram = (X - X.mean(0)) @ (X - X.mean(0)).T
    models = [KernelKMeans(4, kernel="linear", init=start).fit(X, weights) for start in (index, X[index], labels)]
    models.append(KernelKMeans(4, kernel="precomputed", init=index).fit(gram, weights))
    models.append(KernelKMeans(4, kernel=lambda a, b: a @ b.T, init=X[index]).fit(X, weights))
    new = np.random.default_rng(seed + 100).normal(size=(50, 3)) * 3 + X.mean(0)
    for model in models:
        assert np.array_equal(model.labels_, theirs.labels_)
        assert model.inertia_ == pytest.approx(theirs.inertia_, rel=1e-10)
        if model.kernel != "precomputed":
            assert np.array_equal(model.predict(new), theirs.predict(new))


@pytest.mark.parametrize("limit", [50, 10_000])
def test_linear_kernel_is_exact_at_any_size(monkeypatch, limit):
    monkeypatch.setattr(clusters, "EXACT_LIMIT", limit)  # 120 points are "large" when the limit is 50
    X, weights = blobs(n=120)
    X = X - weights @ X / weights.sum() + 1 / 3  # about the mean (1/3, 1/3, 1/3) the unit vectors span a plane only
    theirs = KMeans(4, init=X[:4], n_init=1, algorithm="lloyd", tol=0.0).fit(X, sample_weight=weights)
    model = KernelKMeans(4, kernel="linear", init=X[:4], tol=0.0).fit(X, weights)
    assert np.array_equal(model.labels_, theirs.labels_)
    assert model.inertia_ == pytest.approx(theirs.inertia_, rel=1e-5)


def test_four_points_by_hand():
    # 0, 1, 10, 12 from the start {0}, {1, 10, 12}: centroids 0 and 23/3; 1 goes to the first; then nothing moves
    X = np.array([[0.0], [1.0], [10.0], [12.0]])
    model = KernelKMeans(2, kernel="linear", init=np.array([0, 1, 1, 1])).fit(X)
    assert model.labels_.tolist() == [0, 0, 1, 1]
    first = (1 - 23 / 3) ** 2 + (10 - 23 / 3) ** 2 + (12 - 23 / 3) ** 2
    np.testing.assert_allclose(model.inertia_path_, [first, 2.5], rtol=1e-12)
    assert model.inertia_ == pytest.approx(2.5, rel=1e-12) and model.n_iter_ == 2
    # weight 3 on the point 10 draws its centroid to (3 * 10 + 12) / 4 = 10.5: 0.5 + 3 * 0.25 + 2.25
    heavy = KernelKMeans(2, kernel="linear", init=np.array([0, 1, 1, 1])).fit(X, [1, 1, 3, 1])
    assert heavy.inertia_ == pytest.approx(3.5, rel=1e-12)


# the objective -----------------------------------------------------------------------------------------------------


@st.composite
def problems(draw, indefinite=False):
    n = draw(st.integers(3, 12))
    k = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    B = rng.normal(size=(n, draw(st.integers(1, 4))))
    K = rng.normal(size=(n, n)) if indefinite else B @ B.T
    if draw(st.booleans()):  # many ties
        K = K.round()
    weights = rng.random(n) if draw(st.booleans()) else rng.integers(0, 3, size=n).astype(float)
    weights[rng.choice(n, size=k, replace=False)] += 0.5
    labels = rng.integers(0, k, size=n)
    return (
        (K + K.T) / 2,
        weights,
        k,
        draw(st.sampled_from(["k-means++", "random", "partition", labels])),
        draw(st.sampled_from([None, True, False])),
    )


@settings(max_examples=150, deadline=None)
@given(problems())
def test_objective_never_rises_and_is_what_the_definition_says(problem):
    K, weights, k, init, refine = problem
    if np.linalg.eigvalsh(K)[0] < -1e-9:  # rounding the entries may have made it indefinite
        K = K - np.linalg.eigvalsh(K)[0] * np.eye(len(K))
    model = KernelKMeans(k, kernel="precomputed", init=init, n_init=3, refine=refine)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="only .* clusters are occupied")
        model.fit(K, weights)
    scale = (weights * K.diagonal()).sum() + 1e-300
    assert (np.diff(model.inertia_path_) <= 1e-10 * scale).all()
    assert abs(model.inertia_ - objective(K, weights, model.labels_)) <= 1e-9 * scale
    assert abs(model.inertia_ - model.inertia_path_[-1]) <= 1e-9 * scale
    assert np.array_equal(model.predict(K), model.labels_)


@settings(max_examples=150, deadline=None)
@given(problems(indefinite=True))
def test_indefinite_kernel_is_shifted_with_a_warning_and_the_objective_never_rises(problem):
    K, weights, k, init, refine = problem
    model = KernelKMeans(k, kernel="precomputed", init=init, n_init=3, refine=refine)
    root, live = np.sqrt(weights[weights > 0]), np.ix_(weights > 0, weights > 0)
    lowest = np.linalg.eigvalsh(root[:, None] * K[live] * root)[0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(K, weights)
    shifted = any("indefinite" in str(w.message) for w in caught)
    assert shifted == (model.shift_ > 0)
    if lowest < -1e-8:
        assert model.shift_ == pytest.approx(-lowest, rel=1e-6)
    scale = np.abs(K).max() * weights.sum() + model.shift_ * len(K)
    assert (np.diff(model.inertia_path_) <= 1e-10 * scale).all()
    assert np.array_equal(model.predict(K), model.labels_)
    reverse = np.arange(len(K))[::-1]
    if len(np.unique(K, axis=0)) == len(K):
        assert np.array_equal(model.predict(K[reverse]), model.labels_[reverse])
    # the shift adds one constant, sigma (n - K), to the objective of every full partition
    if len(np.unique(model.labels_[weights > 0])) == k:
        want = objective(K, weights, model.labels_) + model.shift_ * (np.count_nonzero(weights) - k)
        assert model.inertia_ == pytest.approx(want, abs=1e-8 * scale)


def test_predict_tells_equal_rows_apart_by_their_order():
    K = np.array([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])  # twins
    with pytest.warns(UserWarning, match="indefinite"):
        model = KernelKMeans(2, kernel="precomputed", init=np.array([0, 1, 0, 1])).fit(K)
    assert model.labels_.tolist() == [0, 1, 0, 1]  # the shift makes them cling to where they are
    assert model.predict(K).tolist() == [0, 1, 0, 1]
    assert model.predict(K[[3, 2, 0]]).tolist() == [0, 1, 0]  # first and second of the second pair, first of the first


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_best_of_20_starts_is_the_best_of_all_partitions(kernel, k):
    members = np.stack([np.eye(k)[labels] for labels in all_partitions(8, k)])  # (partitions, 8, k)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        X, weights = rng.normal(size=(8, 2)), rng.random(8) + 0.2
        K = rbf_kernel(X, gamma=0.7) if kernel == "rbf" else X @ X.T
        weighted = members * weights[:, None]
        within = np.einsum("pic,ij,pjc->pc", weighted, K, weighted, optimize=True) / weighted.sum(1)
        best = (weights * K.diagonal()).sum() - within.sum(1).max()
        model = KernelKMeans(k, kernel=kernel, gamma=0.7, n_init=20).fit(X, weights)
        assert model.inertia_ == pytest.approx(objective(K, weights, model.labels_), rel=1e-9)
        assert model.inertia_ == pytest.approx(best, rel=1e-9), seed


def test_refine_ends_where_no_single_move_helps():
    X, weights = blobs(n=25, seed=3)
    K = rbf_kernel(X, gamma=0.3)
    start = np.arange(25) % 4
    plain = KernelKMeans(4, kernel="precomputed", init=start).fit(K, weights)  # a given start is not refined unasked
    fine = KernelKMeans(4, kernel="precomputed", init=start, refine=True).fit(K, weights)
    assert fine.inertia_ < plain.inertia_ - 1e-3
    here = objective(K, weights, fine.labels_)
    for i, c in itertools.product(range(25), range(4)):
        moved = fine.labels_.copy()
        moved[i] = c
        assert objective(K, weights, moved) >= here - 1e-10


# weights, order, new points ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_integer_weights_are_repeated_points(kernel):
    X, _ = blobs(n=40)
    counts = np.random.default_rng(0).integers(1, 5, size=40)
    start = np.arange(40) % 3
    one = KernelKMeans(3, kernel=kernel, init=start).fit(X, counts)
    many = KernelKMeans(3, kernel=kernel, init=np.repeat(start, counts)).fit(np.repeat(X, counts, axis=0))
    assert np.array_equal(np.repeat(one.labels_, counts), many.labels_)
    assert one.inertia_ == pytest.approx(many.inertia_, rel=1e-10)
    np.testing.assert_allclose(one.inertia_path_, many.inertia_path_, rtol=1e-10)


def test_all_weights_times_seven_changes_only_the_objective():
    X, weights = blobs()
    a, b = KernelKMeans(3).fit(X, weights), KernelKMeans(3).fit(X, 7 * weights)
    assert np.array_equal(a.labels_, b.labels_)
    assert b.inertia_ == pytest.approx(7 * a.inertia_)


def test_points_of_zero_weight_follow_without_pulling():
    X, weights = blobs(n=50)
    weights[::5] = 0.0
    live = weights > 0
    start = np.arange(50) % 3
    model = KernelKMeans(3, init=start).fit(X, weights)
    alone = KernelKMeans(3, init=start[live], gamma=1 / 3).fit(X[live], weights[live])
    assert np.array_equal(model.labels_[live], alone.labels_)
    assert np.array_equal(model.labels_[~live], alone.predict(X[~live]))
    assert model.inertia_ == pytest.approx(alone.inertia_, rel=1e-10)


@pytest.mark.parametrize("landmarks", [None, 15])
def test_permuting_the_points_permutes_the_labels(landmarks):
    X, weights = blobs()
    landmarks = None if landmarks is None else X[:landmarks]
    order = np.random.default_rng(5).permutation(len(X))
    start = np.arange(len(X)) % 4
    a = KernelKMeans(4, init=start, landmarks=landmarks).fit(X, weights)
    b = KernelKMeans(4, init=start[order], landmarks=landmarks).fit(X[order], weights[order])
    assert np.array_equal(a.labels_[order], b.labels_)


def test_moving_all_points_changes_nothing():
    X, _ = blobs()
    for kernel in ("rbf", "linear"):
        a, b = KernelKMeans(3, kernel=kernel).fit(X), KernelKMeans(3, kernel=kernel).fit(X + 1e6)
        assert np.array_equal(a.labels_, b.labels_)
        assert a.inertia_ == pytest.approx(b.inertia_, rel=1e-6)


@pytest.mark.parametrize("kernel", ["rbf", "linear", "callable"])
@pytest.mark.parametrize("landmarks", [None, 20])
def test_predict_gives_labels_on_training_points_alone_or_together(kernel, landmarks):
    X, weights = blobs(n=100)
    X[50:] = X[:50].round()  # ties and repeated points
    kernel = (lambda a, b: (1 + a @ b.T) ** 2) if kernel == "callable" else kernel
    model = KernelKMeans(5, kernel=kernel, landmarks=landmarks, n_init=3).fit(X, weights)
    assert np.array_equal(model.predict(X), model.labels_)
    assert np.array_equal([model.predict(x[None])[0] for x in X], model.labels_)
    assert np.array_equal(model.fit_predict(X, weights), model.labels_)


def test_predict_new_points_by_distance_in_kernel_space():
    X, weights = blobs()
    new = np.random.default_rng(9).normal(size=(30, 3)) * 3
    model = KernelKMeans(3, gamma=0.4).fit(X, weights)
    member = weights[:, None] * (model.labels_[:, None] == np.arange(3))
    member /= member.sum(0)
    K, cross = rbf_kernel(X, gamma=0.4), rbf_kernel(new, X, gamma=0.4)
    distance = 1 - 2 * cross @ member + np.einsum("ic,ij,jc->c", member, K, member)
    assert np.array_equal(model.predict(new), distance.argmin(1))
    again = KernelKMeans(3, kernel="precomputed", init=model.labels_).fit(K, weights)
    assert np.array_equal(again.predict(cross), distance.argmin(1))
    assert model.predict(new[:0]).shape == (0,)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_a_tie_goes_to_the_lowest_index_whatever_the_rounding(kernel):
    # the last point lies halfway between the two pairs; the coordinates make rounding differ from case to case
    line = np.array([[-3.0], [-1.0], [1.0], [3.0], [0.0]])
    for seed in range(50):
        X = line @ np.random.default_rng(seed).normal(size=(1, 7)) + 0.1
        model = KernelKMeans(2, kernel=kernel, init=np.array([1, 1, 0, 0, 1])).fit(X, [1, 1, 1, 1, 0])
        assert model.labels_.tolist() == [1, 1, 0, 0, 0]
        assert model.predict(X[::-1]).tolist() == [0, 0, 0, 1, 1]
        assert model.predict(X[4:]).tolist() == [0]


# empty clusters ----------------------------------------------------------------------------------------------------


def test_an_empty_cluster_takes_the_largest_contribution():
    X = np.array([[0.0], [1.0], [10.0], [14.0]])
    # all in one cluster, centroid 6.25: the contributions w d² are 39.1, 27.6, 14.1 and 60.1, so 14 leaves
    model = KernelKMeans(2, kernel="linear", init=np.zeros(4, dtype=int)).fit(X)
    rest = np.array([0.0, 1.0, 10.0])
    assert model.inertia_path_[0] == pytest.approx(((rest - rest.mean()) ** 2).sum(), rel=1e-12)
    assert model.inertia_ == pytest.approx(0.5 + 8.0, rel=1e-12)
    # the farthest point is not the costliest: weights 60, 40, 1, centroid 1.90, contributions 217, 384 and 98
    Y = np.array([[0.0], [5.0], [-8.0]])
    heavy = KernelKMeans(2, kernel="linear", init=np.zeros(3, dtype=int)).fit(Y, [60, 40, 1])
    assert same_partition(heavy.labels_, np.array([0, 1, 0]))
    assert heavy.inertia_ == pytest.approx(60 * (8 / 61) ** 2 + (8 - 8 / 61) ** 2, rel=1e-12)


@pytest.mark.parametrize("landmarks", [None, 6])
def test_fewer_distinct_points_than_clusters_warns_and_leaves_the_rest_empty(landmarks):
    X = np.repeat([[0.0, 1.0], [2.0, 5.0]], 3, axis=0)
    with pytest.warns(UserWarning, match="only 2 of n_clusters=4"):
        model = KernelKMeans(4, landmarks=landmarks).fit(X)
    assert same_partition(model.labels_, np.array([0, 0, 0, 1, 1, 1]))
    assert model.inertia_ == pytest.approx(0.0, abs=1e-12)
    assert np.array_equal(model.predict(X), model.labels_)


def test_a_start_with_clusters_of_zero_weight_is_refilled():
    X, weights = blobs(n=20)
    weights[:4] = 0.0
    start = np.where(weights > 0, 0, 2)  # cluster 1 empty, cluster 2 without weight
    model = KernelKMeans(3, init=start).fit(X, weights)
    assert set(model.labels_[weights > 0]) == {0, 1, 2}
    assert np.isfinite(model.inertia_path_).all() and (np.diff(model.inertia_path_) <= 1e-10).all()


# landmarks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("init", ["k-means++", "random", "partition"])
@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_all_points_as_landmarks_is_the_exact_method(kernel, init):
    X, weights = blobs()
    weights[3] = 0.0
    exact = KernelKMeans(4, kernel=kernel, init=init, n_init=5).fit(X, weights)
    for landmarks in (len(X), X):
        model = KernelKMeans(4, kernel=kernel, init=init, n_init=5, landmarks=landmarks).fit(X, weights)
        assert np.array_equal(model.labels_, exact.labels_)
        assert model.inertia_ == pytest.approx(exact.inertia_, rel=1e-7)
        np.testing.assert_allclose(model.inertia_path_, exact.inertia_path_, rtol=1e-7)


def test_landmark_distances_are_those_to_centroids_in_the_landmarks_span():
    X, weights = blobs(n=50)
    Z = X[:7]
    model = KernelKMeans(3, gamma=0.2, landmarks=Z).fit(X, weights)
    K, cross, inner = rbf_kernel(X, gamma=0.2), rbf_kernel(X, Z, gamma=0.2), rbf_kernel(Z, gamma=0.2)
    approximate = cross @ np.linalg.solve(inner, cross.T)  # the Nyström kernel
    outside = (weights * (K - approximate).diagonal()).sum()
    assert model.inertia_ == pytest.approx(objective(approximate, weights, model.labels_) + outside, rel=1e-8)
    assert model.inertia_path_[-1] == pytest.approx(model.inertia_, rel=1e-8)
    assert model.inertia_ >= objective(K, weights, model.labels_)  # a centroid held to a subspace is no better


def test_large_sets_use_landmarks_and_a_sample_for_the_starts(monkeypatch):
    monkeypatch.setattr(clusters, "EXACT_LIMIT", 300)
    monkeypatch.setattr(clusters, "CHUNK", 128)
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, size=2_000)
    X = (10 * np.eye(5)[truth] + rng.normal(size=(2_000, 5))).astype(np.float32)
    with pytest.raises(ValueError, match="refine=True is for at most 300 points, got 2,000"):
        KernelKMeans(5, refine=True).fit(X)
    model = KernelKMeans(5, gamma=0.02).fit(X)
    assert model.landmarks_.shape == (256, 5)
    assert same_partition(model.labels_, truth)
    assert np.array_equal(model.predict(X), model.labels_)
    assert np.array_equal(model.predict(X[7:9]), model.labels_[7:9])
    assert (np.diff(model.inertia_path_) <= 1e-4 * model.inertia_).all()
    monkeypatch.setattr(clusters, "EXACT_LIMIT", 10_000)
    exact = KernelKMeans(5, gamma=0.02, init=model.labels_).fit(X)
    assert np.array_equal(exact.labels_, model.labels_)
    assert exact.inertia_ <= model.inertia_ <= 1.2 * exact.inertia_


def test_an_indefinite_kernel_among_landmarks_warns():
    X, _ = blobs()
    with pytest.warns(UserWarning, match="indefinite: its negative part"):
        model = KernelKMeans(3, kernel=lambda a, b: np.tanh(a @ b.T - 1.0), landmarks=30).fit(X)
    assert np.array_equal(model.predict(X), model.labels_)


# graph cuts --------------------------------------------------------------------------------------------------------


def cut(A, labels, kind):
    """The cut of a partition, from its definition."""
    total = 0.0
    for c in np.unique(labels):
        a, b = labels == c, labels != c
        crossing, volume, inside = A[np.ix_(a, b)].sum(), A[a].sum(), A[np.ix_(a, a)].sum()
        total += {"ncut": crossing / volume, "ratio-cut": crossing / a.sum(), "ratio-assoc": -inside / a.sum()}[kind]
    return total


def random_graph(seed, n=8):
    rng = np.random.default_rng(seed)
    A = np.triu(rng.random((n, n)) < 0.5, 1) * rng.random((n, n))
    A += np.diag(rng.random(n) * (seed % 2))  # with and without self-loops
    A[np.arange(n - 1), np.arange(1, n)] += 0.1  # connected
    return A + np.triu(A, 1).T


@pytest.mark.parametrize("kind", ["ncut", "ratio-cut", "ratio-assoc"])
@pytest.mark.parametrize("seed", range(4))
def test_kernel_objective_is_the_cut_up_to_a_constant_and_finds_the_best_cut(kind, seed):
    A, k = random_graph(seed), 2 + seed % 2
    kernel, weights = graph_cut_kernel(A, kind)
    assert np.linalg.eigvalsh(kernel)[0] >= -1e-10 * np.abs(kernel).max()
    cuts = [(cut(A, labels, kind), labels) for labels in all_partitions(8, k)]
    differences = [objective(kernel, weights, labels) - value for value, labels in cuts[::40]]
    np.testing.assert_allclose(differences, differences[0], rtol=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the kernel is positive semi-definite already: nothing to warn of
        model = KernelKMeans(k, kernel="precomputed", n_init=20).fit(kernel, weights)
    best = min(value for value, _ in cuts)
    assert cut(A, model.labels_, kind) == pytest.approx(best, rel=1e-10)
    assert np.array_equal(model.predict(kernel), model.labels_)


def test_graph_cut_kernel_takes_sparse_matrices_and_tensors():
    A = random_graph(1)
    K, w = graph_cut_kernel(A)
    for other in (scipy.sparse.csr_array(A), scipy.sparse.coo_matrix(A), torch.tensor(A)):
        K2, w2 = graph_cut_kernel(other)
        assert np.array_equal(K, K2) and np.array_equal(w, w2)


def test_random_partitions_and_single_moves_find_the_blocks_of_a_larger_graph():
    rng = np.random.default_rng(0)
    truth = rng.permutation(np.repeat(np.arange(4), 60))
    A = np.triu(rng.random((240, 240)) < np.where(truth[:, None] == truth, 0.25, 0.05), 1).astype(float)
    A += A.T
    kernel, weights = graph_cut_kernel(A)
    model = KernelKMeans(4, kernel="precomputed", init="partition", refine=True).fit(kernel, weights)
    assert same_partition(model.labels_, truth)
    stuck = KernelKMeans(4, kernel="precomputed", refine=False).fit(kernel, weights)
    assert stuck.inertia_ > model.inertia_ + 0.1  # plain rounds from single points: the shift holds everything in place


def test_shift_of_a_larger_graph_by_lanczos_is_enough_and_not_much_more():
    rng = np.random.default_rng(0)
    A = np.triu(rng.random((1_200, 1_200)) < 0.02, 1).astype(float)
    A += A.T
    kernel, weights = graph_cut_kernel(A, "ratio-assoc")
    lowest = np.linalg.eigvalsh(kernel)[0]
    assert 0 <= lowest <= 0.01 * kernel[0, 0]
    assert (kernel - np.diag(kernel.diagonal()) == A).all() and np.ptp(kernel.diagonal()) == 0


def test_a_node_that_joins_later_goes_where_its_edges_are():
    A = scipy.sparse.block_diag([np.ones((4, 4)) - np.eye(4)] * 2).toarray()
    A[3, 4] = A[4, 3] = 1.0
    kernel, weights = graph_cut_kernel(A)
    model = KernelKMeans(2, kernel="precomputed").fit(kernel, weights)
    edges = np.array([[1.0, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 0, 0]])
    new = edges / edges.sum(1, keepdims=True) / weights
    assert model.predict(new).tolist() == [model.labels_[0], model.labels_[7]]


def test_isolated_nodes_have_no_weight_in_the_normalised_cut():
    A = random_graph(0)
    A[2] = A[:, 2] = 0.0
    kernel, weights = graph_cut_kernel(A)
    assert weights[2] == 0.0 and not kernel[2].any()
    rest = np.delete(np.arange(8), 2)
    smaller = KernelKMeans(2, kernel="precomputed", n_init=20).fit(*graph_cut_kernel(A[np.ix_(rest, rest)]))
    model = KernelKMeans(2, kernel="precomputed", n_init=20).fit(kernel, weights)
    assert same_partition(model.labels_[rest], smaller.labels_)


# conventions -------------------------------------------------------------------------------------------------------


def test_rings_need_the_kernel():
    angle = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    X, truth = np.concatenate([ring, 4 * ring]), np.repeat([0, 1], 40)
    flat = KernelKMeans(2, kernel="linear").fit(X)
    bent = KernelKMeans(2, gamma=2.0, n_init=20).fit(X)
    assert not same_partition(flat.labels_, truth)
    # the inner ring is one cluster for a kernel that rewards the radius
    radius = KernelKMeans(2, kernel=lambda a, b: (a**2).sum(1)[:, None] * (b**2).sum(1)).fit(X)
    assert same_partition(radius.labels_, truth)
    assert bent.inertia_ < 80


def test_kmeans_plus_plus_puts_a_centre_into_every_far_group_however_small():
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(5), [200, 5, 5, 5, 5])
    X = 100.0 * rng.normal(size=(5, 3))[truth] + 0.01 * rng.normal(size=(220, 3))
    for seed in range(10):
        model = KernelKMeans(5, kernel="linear", n_init=1, refine=False, seed=seed).fit(X)
        assert same_partition(model.labels_, truth) and model.n_iter_ == 1


def test_same_seed_same_clusters_other_seed_other_starts():
    X = np.random.default_rng(0).normal(size=(200, 4))
    a, b = KernelKMeans(8, n_init=1, seed=3).fit(X), KernelKMeans(8, n_init=1, seed=3).fit(X)
    assert np.array_equal(a.labels_, b.labels_) and a.inertia_ == b.inertia_
    assert len({KernelKMeans(8, n_init=1, seed=s).fit(X).inertia_ for s in range(5)}) > 1
    assert KernelKMeans(8, n_init=8, seed=3).fit(X).inertia_ <= a.inertia_


def test_torch_and_numpy_float32_and_float64_agree():
    X, weights = blobs()
    X, weights = X.astype(np.float32), weights.astype(np.float32)
    want = KernelKMeans(3).fit(X.astype(np.float64), weights.astype(np.float64))
    for x, w in (
        (X, weights),
        (torch.tensor(X), torch.tensor(weights)),
        (torch.tensor(X, requires_grad=True), weights),
    ):
        model = KernelKMeans(3).fit(x, w)
        assert isinstance(model.labels_, np.ndarray) and model.labels_.dtype == np.int64
        assert np.array_equal(model.labels_, want.labels_)
        assert np.array_equal(model.predict(x), want.labels_)


def test_gamma_none_is_one_over_width_and_scale_divides_by_the_variance():
    X, _ = blobs()
    start = np.arange(60) % 3
    for gamma, value in ((None, 1 / 3), ("scale", 1 / (3 * X.var())), (0.25, 0.25)):
        model = KernelKMeans(3, gamma=gamma, init=start).fit(X)
        plain = KernelKMeans(3, kernel="precomputed", init=start).fit(rbf_kernel(X, gamma=value))
        assert np.array_equal(model.labels_, plain.labels_)
        assert model.inertia_ == pytest.approx(plain.inertia_, rel=1e-9)


GOOD = np.arange(12.0).reshape(6, 2)


@pytest.mark.parametrize(
    ("arguments", "X", "weights", "message"),
    [
        ({"n_clusters": 0}, GOOD, None, "n_clusters must be a positive integer, got 0"),
        ({"n_clusters": 2.0}, GOOD, None, "n_clusters must be a positive integer"),
        ({"n_clusters": 7}, GOOD, None, "n_clusters=7 is more than the 6 points"),
        ({"n_clusters": 2, "n_init": 0}, GOOD, None, "n_init must be a positive integer"),
        ({"n_clusters": 2, "max_iter": -1}, GOOD, None, "max_iter must be a positive integer"),
        ({"n_clusters": 2, "kernel": "polynomial"}, GOOD, None, "kernel must be"),
        ({"n_clusters": 2, "gamma": -1.0}, GOOD, None, "gamma must be a positive number"),
        ({"n_clusters": 2, "gamma": float("nan")}, GOOD, None, "gamma must be a positive number"),
        ({"n_clusters": 2, "gamma": "auto"}, GOOD, None, "gamma must be a positive number"),
        ({"n_clusters": 2, "init": "best"}, GOOD, None, "init must be"),
        ({"n_clusters": 2, "init": np.array([0, 6])}, GOOD, None, "init must hold indices of points below 6, got 6 at"),
        ({"n_clusters": 2, "init": np.array([0, 1, 2, 0, 0, 0])}, GOOD, None, "below 2, got 2 at index 2"),
        ({"n_clusters": 2, "init": np.zeros((2, 3))}, GOOD, None, "init must be integers of shape"),
        ({"n_clusters": 2, "init": np.array([0.0, 1.0])}, GOOD, None, "init must be integers of shape"),
        ({"n_clusters": 2, "landmarks": 0}, GOOD, None, "landmarks must be a positive integer"),
        ({"n_clusters": 2, "landmarks": 7}, GOOD, None, "landmarks=7 is more than the 6 points"),
        ({"n_clusters": 2, "landmarks": np.ones((3, 5))}, GOOD, None, "landmarks has 5 columns, but X has 2"),
        ({"n_clusters": 2, "refine": "yes"}, GOOD, None, "refine must be True, False or None"),
        ({"n_clusters": 2, "landmarks": 2, "kernel": "precomputed"}, np.eye(6), None, "landmarks must be None"),
        ({"n_clusters": 2, "tol": -1.0}, GOOD, None, "tol must be"),
        ({"n_clusters": 2}, GOOD[0], None, "X must have two dimensions"),
        ({"n_clusters": 2}, GOOD[:0], None, "X must not be empty"),
        ({"n_clusters": 2}, np.array([["a", "b"]] * 3), None, "X must hold real numbers"),
        ({"n_clusters": 2}, np.where(GOOD == 5, np.nan, GOOD), None, r"X must be finite, got nan at index \(2, 1\)"),
        ({"n_clusters": 2}, np.where(GOOD == 6, np.inf, GOOD), None, r"X must be finite, got inf at index \(3, 0\)"),
        ({"n_clusters": 2}, GOOD, [1, 1, 1], r"sample_weight must have shape \(6,\)"),
        ({"n_clusters": 2}, GOOD, [1, 1, -1, 1, 1, 1], "sample_weight must be non-negative.*-1.0 at index 2"),
        ({"n_clusters": 2}, GOOD, [1, np.nan, 1, 1, 1, 1], "sample_weight must be non-negative.*nan at index 1"),
        ({"n_clusters": 2}, GOOD, np.zeros(6), "n_clusters=2 is more than the 0 points of positive weight"),
        ({"n_clusters": 2, "kernel": "precomputed"}, GOOD, None, "X must be a square kernel matrix"),
        ({"n_clusters": 2, "kernel": "precomputed"}, np.triu(np.ones((3, 3))), None, "X must be symmetric"),
        ({"n_clusters": 2, "kernel": lambda a, b: a}, GOOD, None, r"kernel must return shape \(6, 6\)"),
        ({"n_clusters": 2, "kernel": lambda a, b: a @ b.T * np.nan}, GOOD, None, r"kernel\(X, Y\) must be finite"),
    ],
)
def test_bad_input_is_named(arguments, X, weights, message):
    with pytest.raises(ValueError, match=message):
        KernelKMeans(**arguments).fit(X, weights)


def test_predict_names_bad_input():
    with pytest.raises(ValueError, match="call fit before predict"):
        KernelKMeans(2).predict(GOOD)
    model = KernelKMeans(2).fit(GOOD)
    with pytest.raises(ValueError, match="X has 3 columns, but fit saw 2"):
        model.predict(np.ones((1, 3)))
    with pytest.raises(ValueError, match=r"X must be finite, got nan at index \(0, 1\)"):
        model.predict([[0.0, np.nan]])


@pytest.mark.parametrize(
    ("adjacency", "objective", "message"),
    [
        (np.ones((2, 3)), "ncut", "adjacency must be square"),
        (np.array([[0, 1], [0, 0]]), "ncut", "adjacency must be symmetric, got 1.0 at"),
        (np.array([[0, -1], [-1, 0]]), "ncut", r"adjacency must be non-negative, got -1.0 at index \(0, 1\)"),
        (np.zeros((3, 3)), "ncut", "adjacency has no edges"),
        (np.array([[0, np.nan], [np.nan, 0]]), "ncut", "adjacency must be finite"),
        (np.ones((2, 2)), "cut", "objective must be"),
    ],
)
def test_graph_cut_kernel_names_bad_input(adjacency, objective, message):
    with pytest.raises(ValueError, match=message):
        graph_cut_kernel(adjacency, objective)
