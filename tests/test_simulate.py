"""The simulators against theory: Hawkes processes, and that each world contains what its docstring claims."""

import doctest
import os
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

from easydgl_mini import simulate
from easydgl_mini.simulate import (
    bazaar,
    freeway,
    hawkes,
    hawkes_compensator,
    hawkes_intensity,
    hawkes_log_likelihood,
    ledger,
)

MU, ALPHA, BETA = np.array([0.5, 0.2]), np.array([[0.3, 0.6], [0.05, 0.2]]), 2.0  # asymmetric on purpose


@cache
def sample():
    return hawkes(MU, ALPHA, BETA, horizon=40_000.0, seed=0)


@cache
def world(name, scale="tiny", seed=0):
    return getattr(simulate, name)(scale, seed)


def test_docstring_examples():
    assert doctest.testmod(simulate).failed == 0


# --- Hawkes -----------------------------------------------------------------------------------------------------------


def test_hawkes_mean_rate_and_long_run_covariance():
    times, marks = sample()
    inverse = np.linalg.inv(np.eye(2) - ALPHA)
    rate = inverse @ MU
    covariance = inverse @ np.diag(rate) @ inverse.T  # of the counts, per unit of time
    observed = np.bincount(marks) / 40_000
    assert np.all(np.abs(observed - rate) < 4 * np.sqrt(np.diag(covariance) / 40_000))
    counts = np.stack([np.histogram(times[marks == i], bins=800, range=(0, 40_000))[0] for i in range(2)])
    assert np.allclose(np.cov(counts) / 50, covariance, rtol=0.2)


def test_hawkes_time_rescaling_per_mark():
    times, marks = sample()
    for alpha, fits in ((ALPHA, True), (ALPHA.T, False)):
        for i in range(2):
            gaps = np.diff(hawkes_compensator(times, marks, MU, alpha, BETA, times[marks == i])[:, i])
            assert (stats.kstest(gaps, "expon").pvalue > 1e-3) == fits


def test_hawkes_children_go_from_column_to_row():
    times, marks = hawkes(mu=[0.0, 1.0], alpha=[[0.0, 0.9], [0.0, 0.0]], beta=3.0, horizon=20_000.0, seed=1)
    assert marks[0] == 1  # type 0 is only ever a child
    assert np.isclose((marks == 0).sum() / (marks == 1).sum(), 0.9, atol=0.03)
    lag = times[marks == 0] - times[marks == 1][np.searchsorted(times[marks == 1], times[marks == 0]) - 1]
    assert lag.min() >= 0


@pytest.mark.parametrize("window", [0.5, 2.0, 20.0])
def test_hawkes_variance_of_counts(window):
    """Stationary: Var N(w) = rate (k² w + (1 - k²)(1 - exp(-g w)) / g), k = 1/(1 - alpha), g = beta (1 - alpha)."""
    mu, alpha, beta, horizon = 1.0, 0.5, 2.0, 40_000.0
    times, _ = hawkes(mu, alpha, beta, horizon, seed=2)
    k, g = 1 / (1 - alpha), beta * (1 - alpha)
    expected = mu * k * (k**2 * window + (1 - k**2) * -np.expm1(-g * window) / g)
    counts = np.histogram(times, bins=int(horizon / window), range=(0, horizon))[0][int(100 / window) :]
    folds = [fold.var() for fold in np.array_split(counts, 20)]
    error = np.std(folds, ddof=1) / np.sqrt(20)
    assert abs(counts.var() - expected) < 4 * error
    assert error < 0.1 * expected  # the test has power: Poisson would give half or less at the longer windows


def test_hawkes_functions_against_plain_loops():
    times, marks = hawkes(MU, ALPHA, BETA, horizon=30.0, seed=3)

    def lam(i, t):
        return MU[i] + sum(
            ALPHA[i, j] * BETA * np.exp(-BETA * (t - s)) for s, j in zip(times, marks, strict=True) if s < t
        )

    at = np.concatenate([[0.0, 35.0], times, times + 0.1])
    slow = np.array([[lam(i, t) for i in range(2)] for t in at])
    assert np.allclose(hawkes_intensity(times, marks, MU, ALPHA, BETA, at), slow, rtol=1e-12)
    integral = [quad(lambda t, i=i: lam(i, t), 0, 30, points=times, limit=500)[0] for i in range(2)]
    assert np.allclose(hawkes_compensator(times, marks, MU, ALPHA, BETA, 30.0)[0], integral, rtol=1e-6)


def test_hawkes_log_likelihood_by_hand():
    expected = np.log(0.5) + np.log(0.5 + 0.5 * np.exp(-1)) - (1.5 + 0.5 * (1 - np.exp(-2)) + 0.5 * (1 - np.exp(-1)))
    assert np.isclose(hawkes_log_likelihood([1.0, 2.0], [0, 0], 0.5, 0.5, 1.0, 3.0), expected, rtol=1e-14)
    assert np.isclose(hawkes_log_likelihood([], [], 0.5, 0.5, 1.0, 3.0), -1.5)
    times, marks = sample()
    best = hawkes_log_likelihood(times, marks, MU, ALPHA, BETA, 40_000.0)
    for mu, alpha, beta in (
        (1.1 * MU, ALPHA, BETA),
        (MU, ALPHA.T, BETA),
        (MU, ALPHA, 1.2 * BETA),
        (MU, 0.8 * ALPHA, BETA),
    ):
        assert hawkes_log_likelihood(times, marks, mu, alpha, beta, 40_000.0) < best - 10


def test_hawkes_memory_is_stable_over_long_times():
    times = np.array([0.0, 1e-9, 1.0, 1e6, 1e6 + 0.5])
    got = hawkes_intensity(times, [0] * 5, 0.1, 0.5, 50.0, at=[2.0, 1e6 + 0.5, 1e9])[:, 0]
    assert np.allclose(got, [0.1 + 25 * np.exp(-50), 0.1 + 25 * np.exp(-25), 0.1], rtol=1e-12)


def test_hawkes_edges_and_scalars():
    times, marks = hawkes(0.0, 0.5, 1.0, 10.0, seed=0)
    assert len(times) == len(marks) == 0
    assert np.array_equal(hawkes(1.0, 0.5, 1.0, 50.0, seed=0)[0], hawkes([1.0], [[0.5]], 1.0, 50.0, seed=0)[0])
    times, marks = sample()
    assert np.all(np.diff(times) > 0) and times[0] > 0 and times[-1] < 40_000
    assert not np.array_equal(hawkes(1.0, 0.5, 1.0, 50.0, seed=1)[0], hawkes(1.0, 0.5, 1.0, 50.0, seed=0)[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mu": [0.5, -0.1]}, r"mu\[1\]: got -0.1"),
        ({"mu": [[0.5, 0.1]]}, r"mu: got shape \(1, 2\)"),
        ({"mu": []}, "mu: got shape"),
        ({"alpha": [[0.1, 0.1], [np.nan, 0.1]]}, r"alpha\[1, 0\]: got nan"),
        ({"alpha": [[0.1, -0.2], [0.1, 0.1]]}, r"alpha\[0, 1\]: got -0.2"),
        ({"alpha": [0.1, 0.1]}, r"alpha: got shape \(2,\), expected \(2, 2\)"),
        ({"alpha": [[0.5, 0.5], [0.5, 0.5]]}, "alpha: spectral radius is 1"),
        ({"beta": 0.0}, "beta: got 0.0"),
        ({"beta": [1.0, 2.0]}, "beta: got"),
        ({"horizon": -1.0}, "horizon: got -1.0"),
        ({"horizon": np.inf}, "horizon: got inf"),
    ],
)
def test_hawkes_refuses_bad_input(change, message):
    arguments = {"mu": [0.5, 0.1], "alpha": [[0.1, 0.1], [0.1, 0.1]], "beta": 1.0, "horizon": 10.0, "seed": 0}
    with pytest.raises(ValueError, match=message):
        hawkes(**(arguments | change))


@pytest.mark.parametrize(
    ("times", "marks", "message"),
    [
        ([1.0, 0.5], [0, 0], r"times\[1\]: got 0.5 after 1.0"),
        ([1.0, np.nan], [0, 0], r"times\[1\]: got nan"),
        ([1.0, 2.0], [0], r"marks: got shape \(1,\)"),
        ([1.0, 2.0], [0, 2], r"marks\[1\]: got 2"),
    ],
)
def test_hawkes_functions_refuse_bad_events(times, marks, message):
    for function in (hawkes_intensity, hawkes_compensator, hawkes_log_likelihood):
        with pytest.raises(ValueError, match=message):
            function(times, marks, MU, ALPHA, BETA, 5.0)
    with pytest.raises(ValueError, match="horizon: got 1.5"):
        hawkes_log_likelihood([1.0, 2.0], [0, 0], MU, ALPHA, BETA, 1.5)


# --- All worlds -------------------------------------------------------------------------------------------------------

FINGERPRINT = """
import hashlib, sys
import numpy as np
from easydgl_mini import simulate

def arrays(thing):
    if hasattr(thing, "numpy"):
        thing = thing.numpy()
    if isinstance(thing, np.ndarray):
        yield thing
    elif hasattr(thing, "__dict__"):
        for name in sorted(vars(thing)):
            yield from arrays(vars(thing)[name])

def fingerprint(thing):
    parts = list(arrays(thing)) if not isinstance(thing, tuple) else list(thing)
    return hashlib.sha256(b"".join(np.ascontiguousarray(p).tobytes() for p in parts)).hexdigest(), len(parts)
"""
RUN = """
print(fingerprint(simulate.hawkes([0.5, 0.2], [[0.3, 0.6], [0.05, 0.2]], 2.0, 500.0, 7)))
for name in ("bazaar", "ledger", "freeway"):
    print(fingerprint(getattr(simulate, name)("tiny", 7)))
"""


def test_same_seed_same_bytes_on_any_number_of_threads():
    def run(threads):
        env = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
        root = os.path.dirname(os.path.dirname(os.path.abspath(simulate.__file__)))
        return subprocess.run(
            [sys.executable, "-c", FINGERPRINT + RUN], env=env, cwd=root, capture_output=True, text=True, check=True
        ).stdout

    one = run("1")
    assert one == run("2") and len(one.split("\n")) == 5
    scope = {}
    exec(FINGERPRINT, scope)
    here = [scope["fingerprint"](world(name, "tiny", 7)) for name in ("bazaar", "ledger", "freeway")]
    other = [scope["fingerprint"](world(name, "tiny", 8)) for name in ("bazaar", "ledger", "freeway")]
    assert [str(x) for x in here] == one.split("\n")[1:4]
    assert all(a[0] != b[0] and a[1] == b[1] > 8 for a, b in zip(here, other, strict=True))


@pytest.mark.parametrize("make", [bazaar, ledger, freeway])
def test_worlds_refuse_unknown_scales_and_seeds(make):
    with pytest.raises(ValueError, match="scale: got 'huge', expected one of 'tiny', 'small', 'full'"):
        make("huge")
    with pytest.raises(ValueError):
        make("tiny", seed=-1)


def test_sizes():
    got = world("bazaar")
    assert (got.events.num_users, got.events.num_items, got.truth.mu.shape) == (240, 400, (240, 4))
    assert 30 < len(got.events) / 240 < 50
    assert 45 < len(world("bazaar", "small").events) / 2_000 < 55
    for scale, nodes, edges, features in (("tiny", 6_000, 6_900, 16), ("full", 203_769, 234_355, 166)):
        got = world("ledger", scale)
        assert got.features.shape == (nodes, features) and got.features.dtype == np.float32
        assert got.graph.num_nodes == len(got.labels) == nodes and len(got.graph.edges()[0]) == edges
        assert set(got.step) == set(range(1, 50))
    got = world("freeway", "full")
    assert got.readings.shape == (34_272, 207) and got.readings.dtype == np.float32
    assert got.graph.num_nodes == 207 and got.times[-1] == 5.0 * 34_271


# --- Bazaar -----------------------------------------------------------------------------------------------------------


def integrate(got, users, step=0.1):
    """Midpoint grid of the true intensities: mid (G,), lam (users, G, K)."""
    mid = np.arange(step / 2, got.truth.horizon, step)
    return mid, step * np.stack([got.truth.intensity(u, mid) for u in users])


@cache
def expected_counts():
    """Expected counts of the tiny bazaar from its true intensity: (K, 7 weekdays, 2: within 3 h of an event or not)."""
    got = world("bazaar")
    mid, mass = integrate(got, range(240))
    recent = np.zeros(mass.shape[:2], dtype=bool)
    for u in range(240):
        mine = got.events.time[got.events.offsets[u] : got.events.offsets[u + 1]]
        before = np.searchsorted(mine, mid)
        recent[u] = (before > 0) & (mid - np.append(-99.0, mine)[before] < 3)
    cell = (mid // 24).astype(int) % 7 * 2 + recent
    return np.stack([np.bincount(cell.ravel(), mass[..., k].ravel(), 14).reshape(7, 2) for k in range(4)])


def observed_counts(got):
    same = np.append(False, np.diff(got.events.user) == 0)
    recent = same & (np.diff(got.events.time, prepend=0) < 3)
    cell = (got.events.time // 24).astype(int) % 7 * 2 + recent
    group = got.group[got.events.item]
    return np.bincount(group * 14 + cell, minlength=4 * 14).reshape(4, 7, 2)


def test_bazaar_events_follow_the_true_intensity():
    """Counts minus their compensators are a martingale whose variance is the compensator."""
    expected, observed = expected_counts(), observed_counts(world("bazaar"))
    z = (observed - expected) / np.sqrt(expected)
    assert np.abs(z).max() < 4.5 and (z**2).mean() < 1.6
    assert expected.min() > 20


def test_bazaar_thinning_against_theory():
    """Without memory a Poisson process with the weekday's rate; without weekdays and inhibition a Hawkes process."""
    order, shelf = np.arange(4), np.array([0.5, 1.0, 1.5, 2.0])  # items 0 and 1 in group 0, 2 and 3 in group 1
    weekday = np.array([[1.6, 1.2, 0.8, 0.4, 0.6, 0.9, 1.5], [1.0] * 7])
    mu = np.tile([0.5, 0.1], (100, 1))
    user, item, time = simulate._visit(mu, np.zeros((2, 2)), 0.25, weekday, 168.0 * 4, order, shelf, seed=0)
    counts = np.histogram2d(item // 2, time // 24 % 7, bins=[[0, 1, 2], np.arange(8)])[0]
    expected = 100 * 4 * 24 * np.array([[0.5], [0.1]]) * weekday
    assert np.abs((counts - expected) / np.sqrt(expected)).max() < 4
    assert np.array_equal(np.lexsort((time, user)), np.arange(len(user))) and time.max() < 168 * 4

    mu, horizon = np.tile(MU, (100, 1)), 800.0
    user, item, time = simulate._visit(mu, BETA * ALPHA, BETA, np.ones((2, 7)), horizon, order, shelf, seed=1)
    inverse = np.linalg.inv(np.eye(2) - ALPHA)
    error = np.sqrt(np.diag(inverse @ np.diag(inverse @ MU) @ inverse.T) / (100 * horizon))
    assert np.all(np.abs(np.bincount(item // 2) / (100 * horizon) - inverse @ MU) < 4 * error + 0.002)
    for i in range(2):
        gaps = []
        for u in range(100):
            t, k = time[user == u], item[user == u] // 2
            gaps.append(np.diff(hawkes_compensator(t, k, MU, ALPHA, BETA, t[k == i])[:, i]))
        assert stats.kstest(np.concatenate(gaps), "expon").pvalue > 1e-3


def test_bazaar_weekdays():
    got = world("bazaar")
    expected, observed = expected_counts().sum(axis=2), observed_counts(got).sum(axis=2)
    factor = observed / (expected / got.truth.weekday)  # the observed factor, free of what the weekday table says
    assert np.all(np.abs(factor - got.truth.weekday) < 4.5 * got.truth.weekday / np.sqrt(expected))
    assert np.allclose(got.truth.weekday.mean(axis=1), 1)
    assert np.isclose(got.truth.weekday.max(), 1.6) and 0.45 < got.truth.weekday.min() < 0.47
    assert np.corrcoef(factor.ravel(), got.truth.weekday.ravel())[0, 1] > 0.9


def test_bazaar_intensity_against_a_plain_loop():
    got = world("bazaar")
    u = int(np.argmax(np.diff(got.events.offsets)))
    mine = slice(got.events.offsets[u], got.events.offsets[u + 1])
    history = list(zip(got.events.time[mine], got.group[got.events.item[mine]], strict=True))
    for t in (0.0, 100.5, history[7][0], history[7][0] + 1, got.truth.horizon - 1):
        for k in range(4):
            total = got.truth.mu[u, k]
            for s, j in history:
                if s < t:
                    total += got.truth.excitation[k, j] * np.exp(-0.25 * (t - s))
            slow = got.truth.weekday[k, int(t // 24) % 7] * max(0.0, total)
            assert np.isclose(got.truth.intensity(u, t)[0, k], slow, rtol=1e-9, atol=1e-15)
    with pytest.raises(ValueError, match="user: got 240"):
        got.truth.intensity(240, [0.0])


def test_bazaar_groups_excite_the_next_and_inhibit_the_previous():
    """Who follows an event that came after a quiet day, within two hours, relative to what the base rates would bring.

    After a quiet day there is no memory of anything else, so only the sign of one entry of A is at work.
    """
    got = world("bazaar", "small")
    group, groups = got.group[got.events.item], 8
    same, gaps = np.diff(got.events.user) == 0, np.diff(got.events.time)
    here = 1 + np.flatnonzero(same[:-1] & same[1:] & (gaps[:-1] > 24))
    gap = np.minimum(gaps[here], 2.0)
    lift = np.zeros((groups, groups))
    for i in range(groups):
        came = (group[here + 1] == i) & (gap < 2)
        alone = got.truth.mu[got.events.user[here], i] * gap
        lift[i] = np.bincount(group[here], came, groups) / np.bincount(group[here], alone, groups)
    sign = np.sign(got.truth.excitation)
    j = np.arange(groups)
    assert np.all(sign[j, j] == 1) and np.all(sign[(j + 1) % groups, j] == 1) and np.all(sign[j - 1, j] == -1)
    assert np.all((sign != 0).sum(axis=0) == 3)
    assert np.all(got.truth.excitation[(j + 1) % groups, j] > got.truth.excitation[j, j])
    assert lift[sign > 0].min() > 5 and lift[sign < 0].max() < 0.1 and abs(lift[sign == 0].mean() - 1) < 0.3


@pytest.mark.parametrize(("scale", "margin"), [("tiny", 0.35), ("small", 0.6)])
def test_bazaar_time_tells_the_next_group(scale, margin):
    """Log-loss of the next group: true rates; the user's own frequencies; true rates just after the previous event."""
    got = world("bazaar", scale)
    oracle, static, frozen = [], [], []
    for u in range(0, got.events.num_users, got.events.num_users // 200):
        mine = slice(got.events.offsets[u], got.events.offsets[u + 1])
        t, k = got.events.time[mine], got.group[got.events.item[mine]]
        if len(t) < 2:
            continue
        share = np.bincount(k, minlength=got.truth.mu.shape[1]) / len(k)  # knows the future: the best a profile can do
        now = got.truth.intensity(u, t[1:])
        then = got.truth.intensity(u, np.nextafter(t[:-1], np.inf))
        p, q = ((lam + 1e-9) / (lam + 1e-9).sum(axis=1, keepdims=True) for lam in (now, then))
        q = 0.95 * q + 0.05 * share  # never certain
        oracle.append(-np.log(p[np.arange(len(t) - 1), k[1:]]))
        frozen.append(-np.log(q[np.arange(len(t) - 1), k[1:]]))
        static.append(-np.log(share[k[1:]]))
    oracle, static, frozen = (np.concatenate(x).mean() for x in (oracle, static, frozen))
    assert oracle < static - margin
    assert oracle < frozen - 0.15  # elapsed time matters


def test_bazaar_popularity_is_zipf_and_repeats_are_rare():
    got = world("bazaar", "small")
    group = got.group[got.events.item]
    sums = np.bincount(got.group, got.truth.popularity)
    assert np.allclose(sums, 1)
    _, first = np.unique(got.events.user * 8 + group, return_index=True)  # first pick in a group: nothing to avoid yet
    rank = np.empty(1_600, dtype=int)
    for k in range(8):
        items = np.flatnonzero(got.group == k)
        assert len(items) == 200
        rank[items[np.argsort(-got.truth.popularity[items])]] = np.arange(1, 201)
    assert np.allclose(got.truth.popularity * rank, (1 / np.sum(1 / np.arange(1, 201))))
    picks = np.log(rank[got.events.item[first]]).mean()
    ranks = np.log(np.arange(1, 201))
    fit = minimize_scalar(lambda s: s * picks + np.log(np.exp(-s * ranks).sum()), bounds=(0.1, 3), method="bounded")
    assert abs(fit.x - 1) < 0.03
    assert abs(np.corrcoef(np.arange(1_600), rank)[0, 1]) < 0.1  # ids tell nothing
    pairs = got.events.user.astype(np.int64) * 1_600 + got.events.item
    assert len(np.unique(pairs)) > 0.999 * len(pairs)


# --- Ledger -----------------------------------------------------------------------------------------------------------


def test_ledger_labels_and_steps():
    got = world("ledger", "small")
    src, dst = (x.numpy() for x in got.graph.edges())
    times, known = got.graph.times.numpy(), got.labels != 2
    assert np.array_equal(got.step[src], got.step[dst]) and np.array_equal(np.floor(times), got.step[src])
    assert np.array_equal(got.labels[known], got.truth.label[known])
    assert np.allclose(np.bincount(got.labels) / len(got.labels), [0.21, 0.02, 0.77], atol=0.01)
    assert np.isclose(known[got.truth.label == 1].mean(), known[got.truth.label == 0].mean(), atol=0.03)
    paid = got.truth.payer >= 0
    same = (got.truth.label[paid] == got.truth.label[got.truth.payer[paid]])[got.step[paid] < 43]
    assert np.isclose(same.mean(), 0.7 + 0.3 * (0.1**2 + 0.9**2), atol=0.02)


def test_ledger_illicit_money_moves_fast():
    """The wait, read off the graph alone, has the planted law."""
    got = world("ledger", "small")
    src, dst = (x.numpy() for x in got.graph.edges())
    times, degree = got.graph.times.numpy(), np.bincount(dst, minlength=got.graph.num_nodes)
    assert degree[src].max() == 1
    arrival = np.full(got.graph.num_nodes, np.nan)
    arrival[dst] = times
    gap = times - arrival[src]
    wait = gap / (got.step[src] + 1 - arrival[src])
    assert np.allclose(wait[degree[src] > 0], got.truth.wait[degree[src] > 0], atol=1e-9)
    for label, b in ((0, 3.0), (1, 30.0)):
        mine = (got.truth.label[src] == label) & (degree[src] > 0)
        assert mine.sum() > 500 and stats.kstest(wait[mine], stats.beta(1, b).cdf).pvalue > 1e-3
    licit, illicit = (np.median(gap[(got.truth.label[src] == c) & (degree[src] > 0)]) for c in (0, 1))
    assert licit > 3 * illicit


@pytest.mark.parametrize(("scale", "spread"), [("small", 0.04), ("full", 0.02)])  # chains make shares vary by step
def test_ledger_regime_changes_at_step_43(scale, spread):
    got = world("ledger", scale)
    late, illicit = got.step >= 43, got.truth.label == 1
    share = np.array([illicit[got.step == s].mean() for s in range(1, 50)])
    assert abs(share[:42].mean() - 0.1) < spread and abs(share[42:].mean() - 0.02) < spread / 2
    loss = [share[:n].var() * n + share[n:].var() * (49 - n) for n in range(1, 49)]
    assert got.truth.change == 43
    assert abs(int(np.argmin(loss)) + 2 - 43) <= (scale == "small")  # the best place to cut the series in two
    local = got.truth.direction.shape[1]
    x = got.features[:, 1 : 1 + local]
    old, new = got.truth.direction
    assert abs(old @ new) < 1e-12 and np.isclose(old @ old, 1.5**2) and np.isclose(new @ new, 1.5**2)
    for when, mine, other in ((~late, old, new), (late, new, old)):
        shift = x[when & illicit].mean(axis=0) - x[when & ~illicit].mean(axis=0)
        error = 1 / np.sqrt((when & illicit).sum())
        assert abs(shift @ mine / 1.5 - 1.5) < 4.5 * error and abs(shift @ other / 1.5) < 4.5 * error
    score = x @ old  # a detector trained before the change: fine, then blind
    auc = [
        stats.mannwhitneyu(score[when & illicit], score[when & ~illicit]).statistic
        / (when & illicit).sum()
        / (when & ~illicit).sum()
        for when in (~late, late)
    ]
    assert auc[0] > 0.8 and 0.35 < auc[1] < 0.65


def test_ledger_features_aggregate_the_neighbours():
    got = world("ledger")
    src, dst = (x.numpy() for x in got.graph.edges())
    local, around = got.features[:, 1:9], got.features[:, 9:]
    assert np.array_equal(got.features[:, 0], got.step) and around.shape[1] == 7
    difference = []
    for v in range(0, 6_000, 40):
        near = np.concatenate([src[dst == v], dst[src == v]])
        mean = local[near, :7].mean(axis=0) if len(near) else np.zeros(7)
        difference.append(around[v] - mean)
    assert np.isclose(np.std(difference), 0.1, atol=0.01) and abs(np.mean(difference)) < 0.015


# --- Freeway ----------------------------------------------------------------------------------------------------------


def congestion(got):
    return got.truth.usual / got.truth.clean - 1


def test_freeway_graph_points_downstream():
    got = world("freeway", "small")
    src, dst = (x.numpy() for x in got.graph.edges())
    edges = dict(zip(zip(src.tolist(), dst.tolist(), strict=True), got.graph.weights.tolist(), strict=True))
    up, down = got.truth.link.T
    length = np.linalg.norm(got.positions[up] - got.positions[down], axis=1)
    assert np.allclose(got.truth.delay, 5 * length) and got.truth.delay.min() >= 7 and got.truth.delay.max() <= 13
    for u, v, d in zip(up.tolist(), down.tolist(), length, strict=True):
        assert np.isclose(edges[u, v], np.exp(-((d / 4) ** 2))) and (v, u) not in edges
    assert len(edges) == len(src) and len(link_set := set(zip(up.tolist(), down.tolist(), strict=True))) == 59
    two = {
        (u, w): a + b
        for (u, v), a in zip(got.truth.link, length, strict=True)
        for (x, w), b in zip(got.truth.link, length, strict=True)
        if v == x
    }
    far = {pair: d for pair, d in two.items() if d <= 6 and tuple(map(int, pair)) not in link_set}
    assert far and all(np.isclose(edges[int(u), int(w)], np.exp(-((d / 4) ** 2))) for (u, w), d in far.items())
    assert np.bincount(down).max() == 2 and np.bincount(up).max() == 2  # merges and branches both exist
    assert {(0, 1), (13, 12), (12, 6), (18, 24), (24, 25)} <= link_set  # highway 1 flows into 0, highway 2 out of 1


def test_freeway_daily_rhythm():
    got = world("freeway", "small")
    speed = np.where(got.truth.missing, np.nan, got.readings)
    hour, day = got.times / 60 % 24, got.times // 1440 % 7

    def mean(low, high, weekend):
        return np.nanmean(speed[(hour >= low) & (hour < high) & ((day >= 5) == weekend)])

    night = mean(1, 4, False)
    assert mean(7, 8.5, False) < 0.85 * night and mean(16.5, 18, False) < 0.85 * night
    assert mean(7, 8.5, True) > 0.95 * night and 0.8 * night < mean(13, 15, True) < 0.97 * night
    assert got.truth.free_flow.min() >= 55 and got.truth.free_flow.max() <= 70
    assert np.allclose(got.truth.usual[hour == 3].mean(axis=0), got.truth.free_flow, rtol=0.01)


def test_freeway_onsets_are_a_poisson_process_with_rush_hours():
    got = world("freeway", "full")
    t = got.truth.onset_time
    days = 5 * 34_272 / 1440
    assert abs(len(t) - 0.4 * 207 * days) < 4 * np.sqrt(0.4 * 207 * days) + 0.01 * len(t)
    bell = [stats.norm(7.75, 1.0), stats.norm(17.25, 1.25), stats.norm(14.0, 2.5)]
    hour, working = t / 60 % 24, t // 1440 % 7 < 5
    peak = [np.sum((abs(hour - c) < 0.5) & working) for c in (7.75, 17.25)]
    night = np.sum((hour < 3) & working) / 3
    inside = [
        0.1 + 0.9 * (b.cdf(c + 0.5) - b.cdf(c - 0.5)) / b.pdf(c) for b, c in zip(bell, (7.75, 17.25), strict=False)
    ]
    for got_ratio, expected in zip(np.array(peak) / night, np.array(inside) / 0.1, strict=True):
        assert abs(got_ratio / expected - 1) < 0.25
    weekend = np.sum((abs(hour - 14) < 0.5) & ~working) / (np.sum((hour < 3) & ~working) / 3)
    assert abs(weekend / 3.7 - 1) < 0.35
    assert np.all(np.diff(t) > 0) and np.bincount(got.truth.onset_road, minlength=207).min() > 10
    clock = np.bincount(
        (t // 60).astype(int), minlength=int(days * 24)
    )  # Poisson: within one kind of hour, variance = mean
    kind = (np.arange(len(clock)) % 24) * 2 + (np.arange(len(clock)) // 24 % 7 < 5)
    ratio = np.mean([(clock[kind == k].var(ddof=1) / clock[kind == k].mean()) for k in range(48)])
    assert abs(ratio - 1) < 0.15


@pytest.mark.parametrize("scale", ["tiny", "small"])
def test_freeway_congestion_spreads_upstream_after_the_delay(scale):
    """The jump of the congestion level z at a neighbour, at the moment it is due there."""
    got = world("freeway", scale)
    level = congestion(got)
    up, down = got.truth.link.T

    def jump(road, time):
        slot = np.ceil(time / 5).astype(int)
        ok = (slot > 0) & (slot < len(level))
        decayed = level[slot[ok] - 1, road[ok]] * np.exp(-5 / got.truth.relief)
        return (level[slot[ok], road[ok]] - decayed), ok

    which, via = np.nonzero(got.truth.onset_road[:, None] == down)
    time, strength = got.truth.onset_time[which], got.truth.onset_strength[which]
    rise, ok = jump(up[via], time + got.truth.delay[via])
    assert np.isclose(np.mean(rise / strength[ok]), 0.75 * 0.9, atol=0.06)  # 0.9: on average 2.5 of 25 minutes gone
    which, via = np.nonzero(got.truth.onset_road[:, None] == up)
    for time_there in (got.truth.onset_time[which] + got.truth.delay[via], got.truth.onset_time[which]):
        rise, ok = jump(down[via], time_there)
        assert np.mean(rise) < 0.06  # nothing goes downstream
    rise, ok = jump(got.truth.onset_road, got.truth.onset_time)
    assert np.isclose(np.mean(rise / got.truth.onset_strength[ok]), 0.9, atol=0.04)
    assert got.truth.onset_strength.min() >= 1 and got.truth.onset_strength.max() <= 3


def test_freeway_upstream_shows_in_the_readings():
    """Without the truth's onsets: the drop of a road leads the drop of the road upstream of it, not the other way."""
    got = world("freeway", "small")
    x = np.where(got.truth.missing, np.nan, got.readings / got.truth.usual)
    drop = np.diff(x, axis=0) < -0.25
    up, down = got.truth.link.T
    lead = [np.mean(drop[lag:, up] & drop[: len(drop) - lag, down]) for lag in range(1, 5)]
    follow = [np.mean(drop[lag:, down] & drop[: len(drop) - lag, up]) for lag in range(1, 5)]
    assert int(np.argmax(lead)) + 1 == 2  # ten minutes
    assert max(lead) > 10 * max(follow)


def test_freeway_waves_fade_over_four_links():
    got = world("freeway", "small")
    truth = got.truth
    assert set(truth.arrival_hop) == {0, 1, 2, 3, 4}
    first = truth.arrival_hop == 0
    assert np.array_equal(truth.arrival_time[first], truth.onset_time)
    assert np.array_equal(truth.arrival_road[first], truth.onset_road)
    ranges = [truth.arrival_strength[truth.arrival_hop == h] for h in range(5)]
    assert all(z.min() >= 0.75**h and z.max() <= 3 * 0.75**h for h, z in enumerate(ranges))
    # rebuild the congestion of one road from the arrivals, one by one
    road, slow = int(np.argmax(np.bincount(truth.arrival_road))), np.zeros(len(got.times))
    mine = truth.arrival_road == road
    for t, z in zip(truth.arrival_time[mine], truth.arrival_strength[mine], strict=True):
        slow += np.where(got.times >= t, z * np.exp(-np.maximum(got.times - t, 0) / 25), 0)
    assert np.allclose(slow, congestion(got)[:, road], atol=1e-4)


def test_freeway_missing_readings_are_the_zeros():
    got = world("freeway", "full")
    assert np.array_equal(got.readings == 0, got.truth.missing)
    assert got.readings[~got.truth.missing].min() >= 1
    assert np.isclose(got.truth.missing.mean(), 1 - 0.98 * 0.96, atol=0.005)
    after = got.truth.missing[1:][got.truth.missing[:-1]].mean()  # outages last: alone, 2 % would follow 2 %
    share = 0.04 / (1 - 0.98 * 0.96)
    assert np.isclose(after, share * (1 - 1 / 24) + (1 - share) * 0.06, atol=0.03)
    noise = (got.readings - got.truth.clean)[~got.truth.missing & (got.truth.clean > 20)]
    assert np.isclose(noise.std(), 1.5, atol=0.01) and abs(noise.mean()) < 0.01
