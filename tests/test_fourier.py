"""The Laplacian, affinities, the transform and bands: closed forms, values by hand, PyGSP, and what is refused."""

import doctest
import importlib
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from easydgl_mini import interpret
from easydgl_mini.interpret import band, band_by_value, decompose, gft, igft, item_affinity, laplacian, smoothness


def ring(n):
    return np.roll(np.eye(n), 1, 0) + np.roll(np.eye(n), -1, 0)


def path(n):
    return np.eye(n, k=1) + np.eye(n, k=-1)


def weighted(n, seed=0, density=0.5):
    rng = np.random.default_rng(seed)
    A = np.triu(rng.random((n, n)) * (rng.random((n, n)) < density), 1)
    return A + A.T


@pytest.mark.parametrize("module", ["fourier", "decompose", "perturb", "trends", "report"])
def test_docstring_examples_run(module):
    result = doctest.testmod(importlib.import_module(f"easydgl_mini.interpret.{module}"))
    assert result.failed == 0 and result.attempted > 0


# The Laplacian --------------------------------------------------------------------------------------------------------


def test_laplacian_of_a_weighted_path_by_hand():
    A = np.array([[0, 2, 0], [2, 0, 6], [0, 6, 0]])  # degrees 2, 8, 6
    expected = np.array([[1, -2 / 4, 0], [-2 / 4, 1, -6 / np.sqrt(48)], [0, -6 / np.sqrt(48), 1]])
    np.testing.assert_allclose(laplacian(A), expected, atol=1e-15)


@pytest.mark.parametrize("n", [5, 8])
def test_ring_and_path_have_their_closed_form_eigenvalues(n):
    np.testing.assert_allclose(
        np.linalg.eigvalsh(laplacian(ring(n))), np.sort(1 - np.cos(2 * np.pi * np.arange(n) / n)), atol=1e-14
    )
    np.testing.assert_allclose(
        np.linalg.eigvalsh(laplacian(path(n))), 1 - np.cos(np.pi * np.arange(n) / (n - 1)), atol=1e-14
    )


def test_isolated_nodes_have_a_zero_on_the_diagonal_and_count_as_components():
    A = np.zeros((6, 6))
    A[0, 1] = A[1, 0] = A[3, 4] = A[4, 3] = 1.0  # two pairs, nodes 2 and 5 alone
    L = laplacian(A)
    assert L[2, 2] == L[5, 5] == 0 and L[0, 0] == 1
    np.testing.assert_allclose(np.linalg.eigvalsh(L), [0, 0, 0, 0, 2, 2], atol=1e-14)


def test_self_loops_count_once_in_the_degree():
    L = laplacian(np.array([[3.0, 1, 0], [1, 0, 0], [0, 0, 5]]))  # degrees 4, 1, 5
    np.testing.assert_allclose(L, [[1 - 3 / 4, -1 / 2, 0], [-1 / 2, 1, 0], [0, 0, 0]], atol=1e-15)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 12), st.integers(0, 10**6), st.sampled_from([0.2, 0.6, 1.0]))
def test_quadratic_form_is_the_sum_over_edges(n, seed, density):
    A = weighted(n, seed, density)
    A[0, 0] = 1.5
    L, degree = laplacian(A), A.sum(1)
    y = np.random.default_rng(seed).normal(size=n)
    z = np.divide(y, np.sqrt(degree), out=np.zeros(n), where=degree > 0)
    assert np.isclose(y @ L @ y, (A * (z[:, None] - z) ** 2).sum() / 2, atol=1e-12)
    np.testing.assert_allclose(L @ np.sqrt(degree), 0, atol=1e-12)
    values = np.linalg.eigvalsh(L)
    assert values[0] > -1e-12 and values[-1] < 2 + 1e-12
    np.testing.assert_allclose(laplacian(sp.coo_array(A)).toarray(), L, atol=1e-14)


def test_directed_input_is_symmetrised_with_a_warning():
    A = np.array([[0, 1.0, 0], [0, 0, 4.0], [0, 2.0, 0]])
    for given_as in (np.asarray, sp.csr_matrix):
        with pytest.warns(UserWarning, match="not symmetric"):
            L = laplacian(given_as(A))
        L = L.toarray() if sp.issparse(L) else L
        np.testing.assert_allclose(L, laplacian((A + A.T) / 2))


@pytest.mark.parametrize("given_as", [np.asarray, sp.csr_array, sp.coo_matrix])
@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_bad_weights_are_refused_with_their_place(given_as, bad):
    A = path(4)
    A[1, 2] = bad
    with pytest.raises(ValueError, match=rf"A\[1, 2\] is {bad}"):
        laplacian(given_as(A))
    stored_zero = sp.csr_array((np.array([0.0, bad, bad, 1.0]), ([0, 1, 2, 3], [0, 2, 1, 3])), (4, 4))
    with pytest.raises(ValueError, match=rf"A\[1, 2\] is {bad}"):
        laplacian(stored_zero)
    R = np.ones((3, 4))
    R[2, 1] = bad
    with pytest.raises(ValueError, match=rf"R\[2, 1\] is {bad}"):
        item_affinity(given_as(R))


def test_shapes_are_refused():
    with pytest.raises(ValueError, match=r"A: got shape \(2, 3\)"):
        laplacian(np.ones((2, 3)))
    with pytest.raises(ValueError, match="A: got shape"):
        laplacian(np.ones(3))
    with pytest.raises(ValueError, match="kind: got 'cosine'"):
        item_affinity(np.ones((2, 3)), "cosine")


# Affinities -----------------------------------------------------------------------------------------------------------

R = np.array([[1.0, 2, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0], [3, 0, 1, 0]])  # user 2 has no item, item 3 no user


def test_covariance_counts_co_occurrences():
    expected = [[sum(row[i] * row[j] for row in R) / 4 for j in range(4)] for i in range(4)]
    np.testing.assert_allclose(item_affinity(R), expected)


def test_hypergraph_shares_out_a_users_vote():
    A = item_affinity(R, "hypergraph")
    assert np.isclose(A[0, 2], 3 * 1 / 4) and np.isclose(A[1, 1], 2 * 2 / 3 + 1 / 2)
    np.testing.assert_allclose(A.sum(1), R.sum(0))  # an item's degree in the graph is its own sum
    users, items = R.sum(1), R.sum(0)
    half = np.divide(1, np.sqrt(items), out=np.zeros(4), where=items > 0)
    inverse = np.divide(1, users, out=np.zeros(4), where=users > 0)
    L = np.diag((items > 0).astype(float)) - np.diag(half) @ R.T @ np.diag(inverse) @ R @ np.diag(half)
    np.testing.assert_allclose(laplacian(A), L, atol=1e-14)


@pytest.mark.parametrize("kind", ["covariance", "hypergraph"])
def test_affinities_are_psd_and_sparse_agrees(kind):
    votes = (np.random.default_rng(0).random((30, 12)) < 0.3).astype(int)
    A = item_affinity(votes, kind)
    assert np.linalg.eigvalsh(A)[0] > -1e-12
    assert np.linalg.eigvalsh(laplacian(A))[-1] < 1 + 1e-12
    np.testing.assert_allclose(item_affinity(sp.csr_matrix(votes), kind).toarray(), A)
    without = item_affinity(votes, kind, self_loops=False)
    np.testing.assert_allclose(without, A - np.diag(np.diag(A)))
    np.testing.assert_allclose(item_affinity(sp.csr_matrix(votes), kind, self_loops=False).toarray(), without)


# The transform --------------------------------------------------------------------------------------------------------


def test_transform_against_pygsp():
    graphs = pytest.importorskip("pygsp.graphs")
    A = weighted(20, seed=3)
    theirs = graphs.Graph(A)
    theirs.compute_laplacian("normalized")
    theirs.compute_fourier_basis()
    ours = decompose(laplacian(A), 20, method="exact")
    np.testing.assert_allclose(ours.values, theirs.e, atol=1e-12)
    y = np.random.default_rng(0).normal(size=(20, 3))
    np.testing.assert_allclose(abs(gft(ours, y)), abs(theirs.gft(y)), atol=1e-10)
    np.testing.assert_allclose(igft(ours, gft(ours, y)), theirs.igft(theirs.gft(y)), atol=1e-10)


@pytest.mark.parametrize("method", ["exact", "krylov"])
@pytest.mark.parametrize("name", ["Ring", "Path", "Grid2d", "Sensor", "BarabasiAlbert"])
def test_graphs_of_pygsp(name, method):
    graphs = pytest.importorskip("pygsp.graphs")
    theirs = getattr(graphs, name)(*{"Grid2d": (9, 10)}.get(name, (90,)), **({"seed": 1} if name[0] in "SB" else {}))
    theirs.compute_laplacian("normalized")
    theirs.compute_fourier_basis()
    A = sp.csr_array(theirs.W)
    L = laplacian(A.astype(float))
    np.testing.assert_allclose(L.toarray(), theirs.L.toarray(), atol=1e-12)
    ours = decompose(L, 12, method=method, tol=1e-9)
    np.testing.assert_allclose(ours.values, theirs.e[:12], atol=1e-8)
    y = np.random.default_rng(0).normal(size=90)
    assert np.isclose(smoothness(L, y), y @ theirs.L @ y / (y @ y))
    level = np.flatnonzero(np.diff(theirs.e[:12]) > 1e-3)[-1] + 1  # up to a gap, so that no basis matters
    np.testing.assert_allclose((gft(ours, y)[:level] ** 2).sum(), (theirs.gft(y)[:level] ** 2).sum(), atol=1e-8)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 15), st.integers(0, 10**6))
def test_parseval_and_inverse(n, seed):
    spectrum = decompose(laplacian(weighted(n, seed)), n)
    y = np.random.default_rng(seed).normal(size=(n, 4))
    coefficients = gft(spectrum, y)
    np.testing.assert_allclose((coefficients**2).sum(0), (y**2).sum(0), rtol=1e-12)
    np.testing.assert_allclose(igft(spectrum, coefficients), y, atol=1e-12)
    np.testing.assert_allclose(gft(spectrum, y[:, 2]), coefficients[:, 2], atol=1e-14)


def test_transform_of_a_wave_on_a_path_is_a_peak():
    spectrum = decompose(laplacian(path(6)), 6)
    np.testing.assert_allclose(gft(spectrum, spectrum.vectors[:, 4]), np.eye(6)[4], atol=1e-13)
    first = gft(spectrum, np.sqrt(path(6).sum(1)))  # the square root of the degrees has frequency 0
    np.testing.assert_allclose(abs(first), [np.sqrt(10), 0, 0, 0, 0, 0], atol=1e-13)


def test_fewer_vectors_keep_the_low_part():
    full, low = (decompose(laplacian(weighted(12)), r, method="exact") for r in (12, 5))
    y = np.arange(12.0)
    np.testing.assert_allclose(gft(low, y), gft(full, y)[:5], atol=1e-12)
    np.testing.assert_allclose(igft(low, gft(low, y)), full.vectors[:, :5] @ full.vectors[:, :5].T @ y, atol=1e-12)


def test_float32_stays_float32_and_integers_become_float64():
    spectrum = decompose(laplacian(ring(5)), 5)
    assert gft(spectrum, np.ones(5, np.float32)).dtype == np.float32
    assert igft(spectrum, np.ones(5, np.float32)).dtype == np.float32
    assert gft(spectrum, [1, 2, 3, 4, 5]).dtype == np.float64


def test_bad_signals_are_refused():
    spectrum = decompose(laplacian(ring(5)), 3, method="exact")
    y = np.ones((5, 2))
    y[3, 1] = -np.inf
    with pytest.raises(ValueError, match=r"y\[3, 1\] is -inf"):
        gft(spectrum, y)
    with pytest.raises(ValueError, match=r"y: got shape \(4,\), expected \(5,\)"):
        gft(spectrum, np.ones(4))
    with pytest.raises(ValueError, match=r"coefficients: got shape \(5,\), expected \(3,\)"):
        igft(spectrum, np.ones(5))


def test_smoothness_is_the_mean_frequency():
    L = laplacian(weighted(10))
    spectrum = decompose(L, 10)
    np.testing.assert_allclose(smoothness(L, spectrum.vectors), spectrum.values, atol=1e-12)
    y = np.arange(10.0) - 3
    share = gft(spectrum, y) ** 2 / (y @ y)
    assert np.isclose(smoothness(sp.csr_array(L), y), share @ spectrum.values)
    assert smoothness(L, np.zeros(10)) == 0
    with pytest.raises(ValueError, match="y: got shape"):
        smoothness(L, np.ones(9))


# Bands ----------------------------------------------------------------------------------------------------------------


def test_bands_select_like_slices_and_by_value():
    spectrum = decompose(laplacian(path(9)), 9)  # all eigenvalues differ
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert band(spectrum, stop=3).index.tolist() == [0, 1, 2]
        assert band(spectrum, -2).index.tolist() == [7, 8]
        assert band(spectrum, 2, 5).index.tolist() == [2, 3, 4]
        assert band(spectrum).index.tolist() == list(range(9))
        assert len(band(spectrum, 4, 4)) == 0
        middle = 1 - np.cos(np.pi * 4 / 8)  # the fifth, included on both sides
        assert band_by_value(spectrum, high=middle + 1e-12).index.tolist() == [0, 1, 2, 3, 4]
        assert band_by_value(spectrum, middle - 1e-12).index.tolist() == [4, 5, 6, 7, 8]
        assert band_by_value(spectrum, *spectrum.values[[2, 5]]).index.tolist() == [2, 3, 4, 5]
        joined = band(spectrum, stop=2) | band(spectrum, start=7) | band(spectrum, 1, 3)
    assert joined.index.tolist() == [0, 1, 2, 7, 8] and joined.name == ":2 | 7: | 1:3"
    with pytest.raises(ValueError, match="different spectra"):
        joined | band(decompose(laplacian(path(5)), 5), stop=1)


def test_bands_warn_where_they_cut_equal_eigenvalues():
    spectrum = decompose(laplacian(ring(8)), 8)  # 0, then pairs, then 2
    for start, stop in ((None, 2), (2, None), (4, 5), (1, 4)):
        with pytest.warns(UserWarning, match="depends on the basis"):
            band(spectrum, start, stop)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        band(spectrum, 1, 3)
        band(spectrum, 3, 5)
        band_by_value(spectrum, 0.2, 0.3)
        band(spectrum, 2, tolerance=0) if np.diff(spectrum.values)[1] > 0 else None
    with pytest.warns(UserWarning, match="eigenvalues 0 and 1"):
        band_by_value(spectrum, 0.1, tolerance=0.5)


def test_bands_warn_where_the_decomposition_cannot_tell():
    rough = interpret.Spectrum(np.array([0.1, 0.2, 0.5]), np.eye(3), np.array([0.0, 0.15, 0.0]), 0.0)
    with pytest.warns(UserWarning, match="not resolved"):
        band(rough, stop=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        band(rough, stop=2)
