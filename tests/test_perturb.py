"""Both propositions, their corner cases, and energy over frequencies and time."""

import importlib
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easydgl_mini.interpret import (
    Spectrum,
    band,
    band_by_value,
    decompose,
    energy,
    energy_over_time,
    gft,
    laplacian,
    perturb,
)


def weighted(n, seed=0):
    rng = np.random.default_rng(seed)
    A = np.triu(rng.random((n, n)) * (rng.random((n, n)) < 0.6), 1)
    return A + A.T


def setting(n=14, rank=14, signals=5, seed=0):
    spectrum = decompose(laplacian(weighted(n, seed)), rank, method="exact")
    rng = np.random.default_rng(seed + 1)
    return spectrum, rng.normal(size=(n, signals)), 3 + 7 * rng.normal(size=(n, signals))


def matched(donor, y):
    """The donor with the mean and the spread of y, signal by signal."""
    return (donor - donor.mean(0)) / donor.std(0) * y.std(0) + y.mean(0)


# The two propositions -------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 16), st.data(), st.integers(0, 10**6))
def test_intra_perturbation_clears_the_band_and_nothing_else(n, data, seed):
    rank = data.draw(st.integers(1, n))
    start, stop = sorted(data.draw(st.tuples(st.integers(0, rank), st.integers(0, rank))))
    spectrum, y, _ = setting(n, rank, seed=seed)
    chosen = band(spectrum, start, stop, tolerance=-1)
    inside = np.isin(np.arange(rank), chosen.index)
    after, before = gft(spectrum, perturb(y, spectrum, chosen)), gft(spectrum, y)
    np.testing.assert_allclose(after[inside], 0, atol=1e-12)
    np.testing.assert_allclose(after[~inside], before[~inside], atol=1e-12)
    outside = y - spectrum.vectors @ before
    np.testing.assert_allclose(perturb(y, spectrum, chosen) - spectrum.vectors @ after, outside, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 16), st.data(), st.booleans(), st.integers(0, 10**6))
def test_inter_perturbation_swaps_the_band_and_nothing_else(n, data, standardize, seed):
    rank = data.draw(st.integers(1, n))
    start, stop = sorted(data.draw(st.tuples(st.integers(0, rank), st.integers(0, rank))))
    spectrum, y, donor = setting(n, rank, seed=seed)
    chosen = band(spectrum, start, stop, tolerance=-1)
    inside = np.isin(np.arange(rank), chosen.index)
    result = perturb(y, spectrum, chosen, donor=donor, standardize=standardize)
    after, given_ = gft(spectrum, result), matched(donor, y) if standardize else donor
    np.testing.assert_allclose(after[inside], gft(spectrum, given_)[inside], atol=1e-11)
    np.testing.assert_allclose(after[~inside], gft(spectrum, y)[~inside], atol=1e-11)


def test_all_bands_give_zero_no_band_the_input_and_the_own_band_nothing():
    spectrum, y, donor = setting()
    np.testing.assert_allclose(perturb(y, spectrum, band(spectrum)), 0, atol=1e-12)
    np.testing.assert_allclose(perturb(y, spectrum, [band(spectrum, stop=6), band(spectrum, start=6)]), 0, atol=1e-12)
    assert np.array_equal(perturb(y, spectrum, band(spectrum, 3, 3)), y)
    np.testing.assert_allclose(perturb(y, spectrum, band(spectrum), donor=donor, standardize=False), donor, atol=1e-12)
    for standardize in (True, False):
        for chosen in (band(spectrum, stop=5), band(spectrum)):
            result = perturb(y, spectrum, chosen, donor=y, standardize=standardize)
            np.testing.assert_allclose(result, y, atol=1e-12)


def test_several_bands_are_their_union():
    spectrum, y, donor = setting()
    low, high = band(spectrum, stop=4), band(spectrum, start=11)
    for extra in ({}, {"donor": donor}):
        joint = perturb(y, spectrum, low | high, **extra)
        np.testing.assert_allclose(perturb(y, spectrum, [low, high], **extra), joint, atol=1e-13)
    one_after_the_other = perturb(perturb(y, spectrum, low), spectrum, high)
    np.testing.assert_allclose(perturb(y, spectrum, low | high), one_after_the_other, atol=1e-12)
    overlapping = [band(spectrum, stop=9), band(spectrum, start=3)]  # counted once
    np.testing.assert_allclose(perturb(y, spectrum, overlapping), 0, atol=1e-12)


def test_complement_counts_what_the_vectors_do_not_span():
    spectrum, y, donor = setting(rank=6)
    U, high = spectrum.vectors, band(spectrum, start=2)
    low_part = U[:, :2] @ U[:, :2].T
    np.testing.assert_allclose(perturb(y, spectrum, high, complement=True), low_part @ y, atol=1e-12)
    assert abs(perturb(y, spectrum, high) - low_part @ y).max() > 0.1  # without it the unspanned part stays
    mixed = perturb(y, spectrum, high, complement=True, donor=donor, standardize=False)
    np.testing.assert_allclose(mixed, low_part @ y + donor - low_part @ donor, atol=1e-12)
    full, _, _ = setting()
    for chosen in (band(full, start=5), band(full, stop=5)):  # nothing is unspanned: no difference
        np.testing.assert_allclose(perturb(y, full, chosen, complement=True), perturb(y, full, chosen), atol=1e-12)


# Scale, type, layout --------------------------------------------------------------------------------------------------


def test_the_scale_of_scores_does_not_matter():
    spectrum, y, donor = setting()
    chosen = band(spectrum, start=7)
    reference = perturb(y, spectrum, chosen, donor=donor)
    factors = np.array([0.01, 5, 1, 300, 2])
    np.testing.assert_allclose(perturb(y, spectrum, chosen, donor=donor * factors - 4), reference, atol=1e-10)
    scaled = perturb(y * factors + 9, spectrum, chosen, donor=donor)
    np.testing.assert_allclose(scaled, reference * factors + 9, atol=1e-9)
    raw = (perturb(y, spectrum, chosen, donor=d, standardize=False) for d in (donor, 10 * donor))
    assert abs(next(raw) - next(raw)).max() > 1


def test_a_constant_donor_counts_as_the_mean():
    spectrum, y, _ = setting()
    chosen = band(spectrum, stop=7)
    expected = perturb(y, spectrum, chosen, donor=np.broadcast_to(y.mean(0), y.shape), standardize=False)
    result = perturb(y, spectrum, chosen, donor=np.full_like(y, 0.1))
    np.testing.assert_allclose(result, expected, atol=1e-12)
    single = perturb(y.astype(np.float32), spectrum, chosen, donor=np.full(y.shape, 0.1, np.float32))
    np.testing.assert_allclose(single, expected, atol=1e-5)


def test_batches_columns_and_layouts_agree(monkeypatch):
    spectrum, y, donor = setting(signals=7)
    chosen = band(spectrum, 2, 9)
    expected = perturb(y, spectrum, chosen, donor=donor)
    for j in range(7):
        np.testing.assert_allclose(perturb(y[:, j], spectrum, chosen, donor=donor[:, j]), expected[:, j], atol=1e-13)
    users_first = np.ascontiguousarray(y.T)  # (users, items), as models write them
    by_user = perturb(users_first.T, spectrum, chosen, donor=np.asfortranarray(donor))
    np.testing.assert_allclose(by_user, expected, atol=1e-13)
    assert by_user.T.flags.c_contiguous
    monkeypatch.setattr(importlib.import_module("easydgl_mini.interpret.perturb"), "CHUNK", 3)
    for complement in (False, True):
        whole = perturb(y[:, :3], spectrum, chosen, complement)
        np.testing.assert_allclose(perturb(y, spectrum, chosen, complement)[:, :3], whole, atol=1e-13)
    np.testing.assert_allclose(perturb(y, spectrum, chosen, donor=donor), expected, atol=1e-13)
    assert perturb(y.astype(np.float32), spectrum, chosen, donor=donor).dtype == np.float32
    assert perturb(np.arange(14), spectrum, chosen).dtype == np.float64
    before = y.copy()
    perturb(y, spectrum, chosen)
    assert np.array_equal(y, before)


def test_bad_input_is_refused():
    spectrum, y, donor = setting(rank=6)
    chosen = band(spectrum, stop=3)
    with pytest.raises(ValueError, match=r"y: got shape \(13, 5\)"):
        perturb(y[1:], spectrum, chosen)
    with pytest.raises(ValueError, match=r"donor: got shape \(14, 4\), expected that of y"):
        perturb(y, spectrum, chosen, donor=donor[:, 1:])
    with pytest.raises(ValueError, match="made for a spectrum of 14 frequencies, this one has 6"):
        perturb(y, spectrum, band(setting()[0], stop=3))
    for name in ("y", "donor"):
        bad = {"y": y.copy(), "donor": donor.copy()}
        bad[name][4, 2] = np.nan
        with pytest.raises(ValueError, match=rf"{name}\[4, 2\] is nan"):
            perturb(bad["y"], spectrum, chosen, donor=bad["donor"])


@pytest.mark.parametrize("bad", [-np.inf, np.inf, np.nan])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_what_is_not_finite_is_refused_without_noise(bad, kind):
    spectrum, y, donor = setting(rank=6)
    y, donor = y.astype(kind), donor.astype(kind)
    broken = y.copy()
    broken[4, 2] = bad
    chosen = band(spectrum, stop=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in ({}, {"complement": True}, {"standardize": False}):
            with pytest.raises(ValueError, match=rf"y\[4, 2\] is {bad}; expected finite"):
                perturb(broken, spectrum, chosen, donor=donor, **options)
            with pytest.raises(ValueError, match=rf"donor\[4, 2\] is {bad}; expected finite"):
                perturb(y, spectrum, chosen, donor=broken, **options)
        for function in (gft, energy):
            with pytest.raises(ValueError, match=rf"y\[4\] is {bad}"):
                function(spectrum, broken[:, 2])


def test_a_band_closed_under_equal_eigenvalues_does_not_depend_on_the_basis():
    """A star: eigenvalues 0, 1 (n - 2 times), 2. Any rotation inside the middle is as good a basis."""
    A = np.zeros((9, 9))
    A[0, 1:] = A[1:, 0] = 1
    first = decompose(laplacian(A), 9, method="exact")
    rotation = np.eye(9)
    rotation[1:8, 1:8] = np.linalg.qr(np.random.default_rng(0).normal(size=(7, 7)))[0]
    second = Spectrum(first.values, first.vectors @ rotation, first.residuals, 0.0)
    y = np.random.default_rng(1).normal(size=9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        closed = [perturb(y, s, band_by_value(s, 0.5, 1.5)) for s in (first, second)]
    np.testing.assert_allclose(*closed, atol=1e-12)
    cut = []
    for s in (first, second):
        with pytest.warns(UserWarning, match="depends on the basis"):
            cut.append(perturb(y, s, band(s, stop=4)))
    assert np.linalg.norm(cut[0] - cut[1]) > 0.1


# Energy ---------------------------------------------------------------------------------------------------------------


def test_energy_by_hand_and_as_shares():
    spectrum, y, _ = setting(rank=8)
    U = spectrum.vectors
    shares = energy(spectrum, 3 * U[:, 2] - 4 * U[:, 5])
    np.testing.assert_allclose(shares, [0, 0, 0.36, 0, 0, 0.64, 0, 0], atol=1e-15)
    shares = energy(spectrum, y)
    np.testing.assert_allclose(shares.sum(0), 1)
    np.testing.assert_allclose(energy(spectrum, y * [1, -2, 0.1, 50, 7]), shares)
    assert (energy(spectrum, np.zeros(14)) == 0).all()


def test_energy_of_the_whole_signal():
    """A unit vector along two waves and one direction that the six vectors don't span."""
    spectrum, y, _ = setting(rank=6)
    U, full = spectrum.vectors, setting()[0].vectors
    mixed = 2 * U[:, 1] + 1 * U[:, 4] + 2 * full[:, 9]
    np.testing.assert_allclose(energy(spectrum, mixed, whole=True), np.array([0, 4, 0, 0, 1, 0]) / 9, atol=1e-14)
    np.testing.assert_allclose(energy(spectrum, mixed), np.array([0, 4, 0, 0, 1, 0]) / 5, atol=1e-14)
    inside = ((U @ (U.T @ y)) ** 2).sum(0) / (y**2).sum(0)
    np.testing.assert_allclose(energy(spectrum, y, whole=True).sum(0), inside)
    np.testing.assert_allclose(energy(spectrum, y, whole=True), energy(spectrum, y) * inside)
    np.testing.assert_allclose(energy(setting()[0], y, whole=True), energy(setting()[0], y))  # all is spanned
    assert (energy(spectrum, np.zeros(14), whole=True) == 0).all()
    table = energy_over_time(lambda dt: y + dt, spectrum, [0.0, 1.0], whole=True)
    np.testing.assert_allclose(table[1], energy(spectrum, y + 1, whole=True).mean(1))


def test_energy_over_time_follows_a_known_decay():
    """Two frequencies, one fading: shares e^{-2t} / (1 + e^{-2t}) and 1 / (1 + e^{-2t}), whatever the user's scale."""
    spectrum, _, _ = setting(rank=8)
    U, scale, elapsed = spectrum.vectors, np.array([1.0, 9.0]), np.array([0.0, 0.5, 2.0])

    def predict(dt):
        return (np.exp(-dt) * U[:, 6] + U[:, 1])[:, None] * scale

    table = energy_over_time(predict, spectrum, elapsed)
    fading = np.exp(-2 * elapsed) / (1 + np.exp(-2 * elapsed))
    np.testing.assert_allclose(table[:, 6], fading)
    np.testing.assert_allclose(table[:, 1], 1 - fading)
    np.testing.assert_allclose(np.delete(table, [1, 6], axis=1), 0, atol=1e-28)
    relative = energy_over_time(lambda dt: predict(dt) + U[:, [0]], spectrum, elapsed, relative=True)
    assert (relative[0] == 1).sum() >= 3 and np.isclose(relative[2, 6], relative[2, 1] * np.exp(-4.0))
    np.testing.assert_allclose(energy_over_time(lambda dt: predict(dt)[:, 0], spectrum, elapsed), table, atol=1e-15)


def test_energy_over_time_averages_users_and_needs_times():
    spectrum, y, _ = setting(rank=8)
    table = energy_over_time(lambda dt: y + dt, spectrum, [0.0, 1.0])
    np.testing.assert_allclose(table[1], np.mean([energy(spectrum, y[:, j] + 1) for j in range(5)], axis=0))
    with pytest.raises(ValueError, match="elapsed: got no times"):
        energy_over_time(lambda dt: y, spectrum, [])
