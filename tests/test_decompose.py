"""Three decompositions against dense eigh, SciPy's Lanczos and the facts of linear algebra that define them."""

import tracemalloc
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import LinearOperator, aslinearoperator, eigsh

from easydgl_mini.interpret import decompose, laplacian


def path(n):
    return np.eye(n, k=1) + np.eye(n, k=-1)


def star(n):
    A = np.zeros((n, n))
    A[0, 1:] = A[1:, 0] = 1
    return A


def random_graph(n, degree=6, seed=0):
    rng = np.random.default_rng(seed)
    A = sp.coo_array((rng.random(n * degree // 2), rng.integers(n, size=(2, n * degree // 2))), (n, n)).tocsr()
    return A + A.T


def communities(n, groups, seed=0):
    """A sparse graph of degree 20: four edges of five stay inside a group."""
    rng = np.random.default_rng(seed)
    i = rng.integers(n, size=10 * n)
    j = (i % groups + groups * rng.integers(n // groups, size=10 * n)) % n
    out = rng.random(10 * n) < 0.2
    j[out] = rng.integers(n, size=out.sum())
    A = sp.coo_array((np.ones(10 * n), (i, j)), (n, n)).tocsr()
    return A + A.T


GRAPHS = {
    "ring": np.roll(np.eye(300), 1, 0) + np.roll(np.eye(300), -1, 0),  # pairs of equal eigenvalues
    "grid": np.kron(path(15), np.eye(20)) + np.kron(np.eye(15), path(20)),
    "star": star(300),  # eigenvalue 1, 298 times
    "complete": np.ones((250, 250)) - np.eye(250),
    "components": np.kron(np.eye(40), np.ones((8, 8)) - np.eye(8)),  # eigenvalue 0, 40 times
    "isolated": np.pad(random_graph(200).toarray(), (0, 100)),  # more zeros than the block is wide
    "bipartite": np.kron(np.array([[0, 1], [1, 0]]), np.ones((120, 120))),
    "empty": np.zeros((150, 150)),
    "loops": random_graph(250, seed=2).toarray() + np.diag(np.arange(250) / 100),
    "random": random_graph(400, seed=1).toarray(),
}


def wanted(values, rank, which):
    low = {"low": rank, "high": 0, "both": -(-rank // 2)}[which]
    return np.r_[values[:low], values[len(values) - (rank - low) :]]


def check(spectrum, L, count, residual):
    """What every spectrum promises, measured from outside."""
    dense = L @ np.eye(L.shape[0])
    U, values = spectrum.vectors, spectrum.values
    assert U.shape == (L.shape[0], count) and U.dtype == np.float64
    error = abs(U.T @ U - np.eye(count)).max()
    assert error <= 1e-10 and abs(spectrum.orthogonality - error) < 1e-12
    assert (np.diff(values) >= 0).all()
    residuals = np.linalg.norm(dense @ U - U * values, axis=0)
    np.testing.assert_allclose(spectrum.residuals, residuals, atol=1e-12)
    assert residuals.max() <= residual
    assert (U[abs(U).argmax(0), np.arange(count)] > 0).all()


# Krylov ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["low", "high", "both"])
@pytest.mark.parametrize("name", GRAPHS)
def test_krylov_finds_what_eigh_finds(name, which):
    L = laplacian(sp.csr_array(GRAPHS[name]))
    exact = np.linalg.eigvalsh(L.toarray())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rank, tol in ((1, 1e-8), (7, 1e-6), (50, 1e-6), (50, 1e-3)):
            spectrum = decompose(L, rank, which, tol=tol)
            check(spectrum, L, rank, tol)
            np.testing.assert_allclose(spectrum.values, wanted(exact, rank, which), atol=max(tol, 1e-10))


@pytest.mark.parametrize("name", ["ring", "random", "isolated"])
def test_krylov_spans_the_eigenspaces(name):
    """Vectors of equal eigenvalues are arbitrary, so compare subspaces, cut at a gap."""
    L = laplacian(GRAPHS[name])
    values, vectors = np.linalg.eigh(L)
    rank = int(np.flatnonzero(np.diff(values[20:120]) > 1e-3)[0]) + 21
    for kind in (sp.csr_array(L), L, aslinearoperator(L)):
        U = decompose(kind, rank, tol=1e-9, oversampling=20).vectors
        difference = U @ U.T - vectors[:, :rank] @ vectors[:, :rank].T
        assert np.linalg.norm(difference, 2) < 1e-5


def test_krylov_agrees_with_scipy_on_a_sparse_graph():
    L = laplacian(communities(3000, 30))
    values, vectors = eigsh(L, 40, which="SA")
    ours = decompose(L, 40, tol=1e-8)
    np.testing.assert_allclose(ours.values, np.sort(values), atol=1e-10)
    top = decompose(L, 10, "high", tol=1e-8)
    np.testing.assert_allclose(top.values, np.sort(eigsh(L, 10, which="LA")[0]), atol=1e-10)
    U = vectors[:, np.argsort(values)[:30]]  # the thirty communities are below a gap
    assert np.linalg.norm(ours.vectors[:, :30] - U @ (U.T @ ours.vectors[:, :30])) < 1e-6


@settings(max_examples=40, deadline=None)
@given(
    st.integers(12, 60),
    st.integers(1, 12),
    st.sampled_from(["low", "high", "both"]),
    st.sampled_from([1e-3, 1e-7]),
    st.integers(0, 10**6),
)
def test_krylov_on_random_graphs(n, rank, which, tol, seed):
    L = laplacian(random_graph(n, degree=3, seed=seed))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spectrum = decompose(L, rank, which, tol=tol, oversampling=3, seed=seed, max_rounds=400)
    check(spectrum, L, rank, tol)
    np.testing.assert_allclose(
        spectrum.values, wanted(np.linalg.eigvalsh(L.toarray()), rank, which), atol=max(2 * tol, 1e-10)
    )


def test_the_last_step_may_gather_errors():
    """Among 498 equal eigenvalues it can put the errors of many vectors into one; then filtering goes on."""
    L = laplacian(star(500))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(decompose(L, 150, tol=1e-3), L, 150, 1e-3)


def test_any_symmetric_operator_will_do():
    M = np.random.default_rng(0).normal(size=(200, 200))
    M = 30 * (M + M.T)  # indefinite, far from [0, 2]
    exact = np.linalg.eigvalsh(M)
    for which in ("low", "high", "both"):
        spectrum = decompose(M, 12, which, tol=1e-5)
        check(spectrum, M, 12, 1e-5)
        np.testing.assert_allclose(spectrum.values, wanted(exact, 12, which), atol=1e-6)


def test_loose_tolerance_filters_in_float32_and_ends_in_float64():
    L = laplacian(random_graph(300))
    for tol, filtering in ((1e-3, np.float32), (1e-6, np.float64)):
        seen = []

        def product(X, seen=seen):
            seen.append(X.dtype)
            return (L @ X).astype(X.dtype)

        operator = LinearOperator(L.shape, matvec=product, matmat=product, dtype=np.float64)
        check(decompose(operator, 5, tol=tol), L, 5, tol)
        inside = seen[1:-2]  # between the symmetry probe and the last Ritz step with its residuals
        assert set(inside[:-1]) == {np.dtype(filtering)}
        assert seen[-1] == np.float64


def test_same_seed_same_answer():
    L = laplacian(random_graph(300))
    for method in ("krylov", "nystrom"):
        a, b, c = (decompose(L, 6, method=method, seed=s) for s in (3, 3, 4))
        assert np.array_equal(a.vectors, b.vectors) and np.array_equal(a.values, b.values)
        assert not np.array_equal(a.vectors, c.vectors)


class Counting(LinearOperator):
    """A matrix that counts the vectors it was multiplied with."""

    def __init__(self, matrix):
        self.matrix, self.vectors = matrix, 0
        super().__init__(matrix.dtype, matrix.shape)

    def _matmat(self, X):
        self.vectors += X.shape[1]
        return self.matrix @ X


@pytest.mark.parametrize(("tol", "most", "seed"), [(1e-3, 12, 0), (1e-3, 12, 1), (1e-6, 18, 2)])
def test_no_more_products_than_the_accuracy_needs(tol, most, seed):
    """The survey finds the gap after the two hundred communities, which fit into the block: one filter is enough."""
    L = laplacian(communities(10_000, 200))
    counting = Counting(L)
    spectrum = decompose(counting, 100, tol=tol, seed=seed)
    assert spectrum.residuals.max() <= tol and spectrum.orthogonality <= 1e-10
    assert counting.vectors <= most * 210 + 30 + 2 * 100 + 2  # blocks, the survey, the last step twice, the probe


@pytest.mark.parametrize("which", ["low", "high"])
def test_forms_of_the_same_matrix_agree(which):
    """Dense, sparse, implicit; duplicate entries, 64-bit indices, read-only memory: all without a word."""
    L = laplacian(random_graph(150, seed=4))
    halves = sp.csr_array(
        (np.repeat(L.data / 2, 2), np.repeat(L.indices, 2).astype(np.int64), (2 * L.indptr).astype(np.int64)), L.shape
    )
    assert halves.nnz == 2 * L.nnz
    frozen = L.toarray()
    frozen.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spectra = [decompose(form, 6, which, tol=1e-9) for form in (L, halves, frozen, aslinearoperator(L), L.tocoo())]
    for spectrum in spectra:
        check(spectrum, L, 6, 1e-9)
        np.testing.assert_allclose(spectrum.values, spectra[0].values, atol=1e-12)
    assert abs(halves.toarray() - frozen).max() < 1e-15  # and left as they were


def test_missing_accuracy_is_announced():
    L = laplacian(random_graph(500))
    with pytest.warns(UserWarning, match=r"largest residual .* after 1 rounds, asked for 1.0e-12"):
        spectrum = decompose(L, 5, tol=1e-12, max_rounds=1)
    assert spectrum.residuals.max() > 1e-12
    check(spectrum, L, 5, 1.0)  # orthonormal and honest all the same


@pytest.mark.parametrize("tol", [1e-3, 1e-6])
def test_memory_is_six_floats_per_node_and_frequency_at_most(tol):
    n, rank = 20_000, 100
    L = laplacian(communities(n, 250))
    tracemalloc.start()
    try:
        spectrum = decompose(L, rank, tol=tol)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert spectrum.residuals.max() <= tol and spectrum.orthogonality <= 1e-10
    assert peak <= 6 * n * rank * 8


# All methods ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["krylov", "exact", "nystrom"])
@pytest.mark.parametrize("which", ["low", "high", "both"])
def test_rank_of_n_and_more(method, which):
    L = laplacian(random_graph(30, seed=5)) + 0.05 * sp.diags_array(np.ones(30))  # no eigenvalue is 0 or 2
    L = L * 0.9
    options = {"num_columns": 30, "oversampling": 30} if method == "nystrom" and which != "both" else {}
    exact = np.linalg.eigvalsh(L.toarray())
    if method == "nystrom" and which == "both":
        options = {"num_columns": 30, "oversampling": 15, "power": 30}
        spectrum = decompose(L, 30, which, method, **options)
        check(spectrum, L, len(spectrum), 1.0)
        return
    spectrum = decompose(L, 30, which, method, **options)
    check(spectrum, L, 30, 1e-8)
    np.testing.assert_allclose(spectrum.values, exact, atol=1e-9)
    with pytest.warns(UserWarning, match="rank is 31, but L has only 30"):
        assert len(decompose(L, 31, which, method, **options)) == 30


@pytest.mark.parametrize("method", ["krylov", "nystrom"])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 33, 120])
def test_orthonormal_at_every_size_and_rank(method, n):
    L = 0.9 * laplacian(random_graph(n, degree=8, seed=n)) + 0.05 * sp.eye_array(n)
    for rank in {1, 2, n // 3, n // 2, n - 1, n} - {0}:
        for which in ("low", "high", "both"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                spectrum = decompose(L, rank, which, method, oversampling=2)
            assert len(spectrum) == min(rank, n) or method == "nystrom"
            check(spectrum, L, len(spectrum), 1e-6 if method == "krylov" else 3.0)


def test_exact_splits_the_spectrum():
    L = laplacian(path(9))
    exact = 1 - np.cos(np.pi * np.arange(9) / 8)
    np.testing.assert_allclose(decompose(L, 5, "both", "exact").values, exact[[0, 1, 2, 7, 8]], atol=1e-14)
    np.testing.assert_allclose(decompose(L, 1, "both", "exact").values, exact[:1], atol=1e-14)
    np.testing.assert_allclose(decompose(aslinearoperator(L), 2, "high", "exact").values, exact[7:], atol=1e-14)


@pytest.mark.parametrize("method", ["krylov", "nystrom"])
def test_both_is_the_ritz_step_on_the_two_bases(method):
    """The values are Rayleigh quotients, and U^T L U is diagonal."""
    L = laplacian(random_graph(200))
    spectrum = decompose(L, 9, "both", method, **({"tol": 1e-2} if method == "krylov" else {}))
    inner = spectrum.vectors.T @ (L @ spectrum.vectors)
    np.testing.assert_allclose(inner, np.diag(spectrum.values), atol=1e-12)


def test_bad_arguments_are_refused():
    L = laplacian(path(6))
    for rank in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="rank: got"):
            decompose(L, rank)
    for name, value in {
        "which": "middle",
        "method": "qr",
        "tol": 0,
        "shift": 0,
        "oversampling": -1,
        "power": -1,
        "max_rounds": 0,
    }.items():
        with pytest.raises(ValueError, match=f"{name}: got"):
            decompose(L, 2, **{name: value})
    with pytest.raises(ValueError, match=r"L: got shape \(4,\)"):
        decompose(np.ones(4), 1)
    with pytest.raises(ValueError, match=r"L: got shape \(0, 0\)"):
        decompose(np.ones((0, 0)), 1)
    with pytest.raises(ValueError, match=r"L: got shape \(2, 3\)"):
        decompose(np.ones((2, 3)), 1)
    with pytest.raises(ValueError, match="not symmetric"):
        decompose(np.triu(np.ones((4, 4))), 1)
    with pytest.raises(ValueError, match="not symmetric"):
        decompose(aslinearoperator(np.triu(np.ones((4, 4)))), 1)
    L[2, 3] = np.nan
    for given_as in (np.asarray, sp.csr_array):
        with pytest.raises(ValueError, match=r"L\[2, 3\] is nan"):
            decompose(given_as(L), 1)
    with pytest.raises(ValueError, match="not finite"):
        decompose(aslinearoperator(L), 1)


# Nyström --------------------------------------------------------------------------------------------------------------


def low_rank(n, values, seed=0):
    """A symmetric matrix with the given non-zero eigenvalues."""
    Q = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, len(values))))[0]
    return Q @ np.diag(values) @ Q.T, Q


@pytest.mark.parametrize("given_as", [np.asarray, sp.csr_array, aslinearoperator])
def test_nystrom_recovers_a_low_rank_matrix_exactly(given_as):
    values = np.array([0.4, 0.7, 1.1, 1.3, 1.9])
    M, Q = low_rank(60, values)
    high = decompose(given_as(M), 5, "high", "nystrom", num_columns=20)
    check(high, M, 5, 1e-10)
    np.testing.assert_allclose(high.values, values, atol=1e-10)
    np.testing.assert_allclose(high.vectors @ high.vectors.T, Q @ Q.T, atol=1e-9)
    low = decompose(given_as(2 * np.eye(60) - M), 5, "low", "nystrom", num_columns=20)
    np.testing.assert_allclose(low.values, np.sort(2 - values), atol=1e-10)
    np.testing.assert_allclose(low.vectors @ low.vectors.T, Q @ Q.T, atol=1e-9)


def test_nystrom_with_all_directions_is_the_classical_approximation():
    """With r + p = s nothing is lost in the sample: U diag(values) U^T = C A^+ C^T for the columns that were drawn."""
    L = laplacian(random_graph(50).toarray())
    chosen = np.array([3, 8, 9, 20, 31, 44])
    probabilities = np.zeros(50)
    probabilities[chosen] = [1, 5, 1, 1, 9, 1]
    spectrum = decompose(L, 6, "high", "nystrom", num_columns=6, oversampling=0, probabilities=probabilities)
    C = L[:, chosen]
    approximation = C @ np.linalg.pinv(C[chosen]) @ C.T
    ours = spectrum.vectors @ np.diag(spectrum.values) @ spectrum.vectors.T
    np.testing.assert_allclose(ours, approximation, atol=1e-10)
    assert np.linalg.eigvalsh(L - ours)[0] > -1e-10  # Nyström never overestimates


def test_nystrom_ritz_step():
    """With r + p < s, the values are those of W restricted to Q, and the vectors are C A^{-1/2} Q U_Z Z^{-1/2}."""
    L = laplacian(random_graph(80, degree=30).toarray())
    spectrum = decompose(L, 4, "high", "nystrom", num_columns=40, oversampling=3, power=3, seed=9)
    rng = np.random.default_rng(9)
    chosen = np.sort(rng.choice(80, 40, replace=False))
    C, A = L[:, chosen], L[np.ix_(chosen, chosen)]
    Q = np.linalg.qr(np.linalg.matrix_power(A, 3) @ rng.standard_normal((40, 7)))[0]
    a, V = np.linalg.eigh(A)
    inverse_root = V @ np.diag(a**-0.5) @ V.T
    W = inverse_root @ C.T @ C @ inverse_root
    z, U = np.linalg.eigh(Q.T @ W @ Q)
    np.testing.assert_allclose(spectrum.values, z[-4:], rtol=1e-8)
    vectors = C @ inverse_root @ Q @ U[:, -4:] / np.sqrt(z[-4:])
    np.testing.assert_allclose(abs(np.sum(vectors * spectrum.vectors, 0)), 1, atol=1e-8)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(10, 60),
    st.integers(1, 12),
    st.sampled_from(["low", "high", "both"]),
    st.integers(0, 4),
    st.integers(0, 10**6),
)
def test_nystrom_is_orthonormal_on_random_graphs(n, rank, which, power, seed):
    L = laplacian(random_graph(n, degree=4, seed=seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spectrum = decompose(L, min(rank, n), which, "nystrom", power=power, seed=seed)
    check(spectrum, L, len(spectrum), 3.0)


@pytest.mark.parametrize("which", ["low", "high", "both"])
@pytest.mark.parametrize("name", GRAPHS)
def test_nystrom_is_orthonormal_on_hard_graphs(name, which):
    """Equal eigenvalues, components, isolated nodes: the sample may span fewer vectors, never crooked ones."""
    L = laplacian(sp.csr_array(GRAPHS[name]))
    for rank in (1, 7, 50):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                spectrum = decompose(L, rank, which, "nystrom", seed=rank)
            except ValueError as error:
                assert name == "empty" and "columns are zero" in str(error)
                continue
        check(spectrum, L, len(spectrum), 3.0)


def test_nystrom_with_a_tight_shift_sees_low_frequencies():
    """shift I - L has the eigenvectors of L; with I - L, where that is positive semi-definite, they stand out."""
    R = np.random.default_rng(0).random((300, 4)) @ np.random.default_rng(1).random((4, 120)) ** 6
    L = laplacian(R.T @ R)
    options = {"num_columns": 30, "seed": 5}
    tight, loose = (decompose(L, 4, "low", "nystrom", shift=shift, **options) for shift in (1, 2))
    check(tight, L, 4, 1e-8)  # I - L has rank four
    assert loose.residuals.max() > 0.01
    turned = decompose(np.eye(120) - L, 4, "high", "nystrom", **options)
    np.testing.assert_allclose(tight.values, 1 - turned.values[::-1], atol=1e-12)
    np.testing.assert_allclose(tight.values, np.linalg.eigvalsh(L)[:4], atol=1e-10)


@pytest.mark.parametrize("power", [0, 2])
def test_nystrom_stays_orthonormal_when_a_is_nearly_singular(power):
    x = np.linspace(0, 1, 400)
    K = np.exp(-20 * (x[:, None] - x) ** 2)  # eigenvalues fall below 1e-16
    K *= 2 / np.linalg.eigvalsh(K)[-1]
    with pytest.warns(UserWarning, match="fewer than the 60 asked for"):
        spectrum = decompose(K, 60, "high", "nystrom", num_columns=120, power=power)
    check(spectrum, K, len(spectrum), 1e-4 if power else 2.0)  # without powers the sample is blind, but orthonormal
    assert len(spectrum) > 8


def test_nystrom_on_the_sample_of_a_whole_component():
    """Then A is singular and the inverse root must be a pseudo-inverse."""
    L = laplacian(np.kron(np.eye(2), np.ones((5, 5)) - np.eye(5)))
    only_first = np.r_[np.ones(5), np.zeros(5)]
    with pytest.warns(UserWarning, match="nystrom spans 4 directions, fewer than the 5 asked for"):
        spectrum = decompose(L, 5, "high", "nystrom", num_columns=5, probabilities=only_first)
    np.testing.assert_allclose(spectrum.values, 5 / 4, atol=1e-12)
    np.testing.assert_allclose(spectrum.vectors[5:], 0, atol=1e-12)
    check(spectrum, L, 4, 1e-12)


def test_nystrom_refuses_bad_columns():
    L = laplacian(path(6))
    for value in (1, 7):
        with pytest.raises(ValueError, match=rf"num_columns: got {value}, expected rank … N, 2 … 6"):
            decompose(L, 2, method="nystrom", num_columns=value)
    with pytest.raises(ValueError, match=r"probabilities\[1\] is -1.0"):
        decompose(L, 2, method="nystrom", probabilities=[1, -1, 1, 1, 1, 1])
    with pytest.raises(ValueError, match=r"probabilities: got shape \(5,\)"):
        decompose(L, 2, method="nystrom", probabilities=np.ones(5))
    with pytest.raises(ValueError, match="probabilities: 3 are positive, fewer than 4 columns"):
        decompose(L, 2, method="nystrom", num_columns=4, probabilities=[1, 1, 1, 0, 0, 0])
    with pytest.raises(ValueError, match="sampled columns are zero"):
        decompose(np.zeros((6, 6)), 2, "high", "nystrom")
