"""TPPLE: compensators against closed forms, likelihoods against exact ones, ties that cannot explode."""

import math

import numpy as np
import pytest
import torch

import easydgl_mini as em
from easydgl_mini.train import compensator, log_likelihood, merge_ties, smoothness, tpple

MU, ALPHA, BETA, HORIZON = [0.6, 0.3], [[0.3, 0.4], [0.1, 0.2]], 1.5, 40.0


def hawkes_rates(times, marks, mu=MU, alpha=ALPHA, beta=BETA):
    """``intensity(i, dt)`` of a marked Hawkes process, from its definition: a sum over the first i events."""
    times, marks = torch.as_tensor(times), torch.as_tensor(marks)
    mu, alpha, beta = (torch.as_tensor(x, dtype=torch.float64) for x in (mu, alpha, beta))

    def intensity(i, dt):
        start = torch.cat([times.new_zeros(1), times])[i]  # (m, p): the last event's time
        age = (start + dt).unsqueeze(-1) - times  # (m, p, n)
        known = torch.arange(len(times)) < i.unsqueeze(-1)
        kernel = torch.where(known, beta * torch.exp(-beta * age.clamp_min(0)), 0)
        return mu + kernel @ alpha[:, marks].T

    return intensity


@pytest.fixture(scope="module")
def hawkes():
    times, marks = em.simulate.hawkes(MU, ALPHA, BETA, HORIZON, seed=3)
    assert len(times) > 30
    return torch.from_numpy(times), torch.from_numpy(marks)


def test_likelihood_equals_the_closed_form_of_a_hawkes_process(hawkes):
    times, marks = hawkes
    exact = em.simulate.hawkes_log_likelihood(times.numpy(), marks.numpy(), MU, ALPHA, BETA, HORIZON)
    ours = log_likelihood(hawkes_rates(times, marks), times, marks, rule="gauss", end=HORIZON)
    assert abs(ours.item() - exact) < 1e-6


def test_likelihood_equals_the_closed_form_of_a_poisson_process():
    rate = torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64)
    times, marks = torch.tensor([0.5, 1.25, 4.0], dtype=torch.float64), torch.tensor([0, 2, 1])
    for rule in ("gauss", "trapezoid", "montecarlo"):  # a constant is integrated exactly by all three
        ours = log_likelihood(lambda i, dt: rate.expand(*dt.shape, 3), times, marks, rule=rule, end=6.0)
        assert abs(ours.item() - (math.log(2.0) + math.log(1.0) + math.log(0.5) - 3.5 * 6.0)) < 1e-6


def test_the_integral_starts_at_start_and_ends_at_the_last_event_unless_told():
    one = lambda i, dt: torch.ones_like(dt)  # noqa: E731
    times = torch.tensor([2.0, 5.0])
    assert compensator(one, times).item() == 5 and compensator(one, times, start=1.5).item() == 3.5
    assert compensator(one, times, start=1.5, end=7.0).item() == 5.5
    assert compensator(one, torch.zeros(0), end=3.0).item() == 3


def test_each_interval_has_its_own_history():
    """λ = i on the interval after i events: 0 · 2 + 1 · 3 + 2 · 4."""
    assert compensator(lambda i, dt: i.double(), torch.tensor([2.0, 5.0], dtype=torch.float64), end=9.0).item() == 11


def test_the_integral_is_over_all_marks():
    rates = lambda i, dt: torch.stack([dt, 2 * dt, torch.ones_like(dt)], -1)  # noqa: E731
    assert compensator(rates, torch.tensor([2.0]), rule="gauss").item() == pytest.approx(2 + 4 + 2)


def test_monte_carlo_is_unbiased_within_its_standard_error(hawkes):
    times, marks = hawkes
    exact = em.simulate.hawkes_compensator(times.numpy(), marks.numpy(), MU, ALPHA, BETA, HORIZON).sum()
    draw, rates = torch.Generator().manual_seed(0), hawkes_rates(times, marks)
    runs = torch.stack(
        [compensator(rates, times, "montecarlo", num_points=2, end=HORIZON, generator=draw) for _ in range(400)]
    )
    error = runs.std() / math.sqrt(len(runs))
    assert abs(runs.mean() - exact) < 3 * error and error < 0.02 * exact


def test_trapezoid_converges_with_the_square_of_the_number_of_pieces(hawkes):
    times, marks = hawkes
    exact = em.simulate.hawkes_compensator(times.numpy(), marks.numpy(), MU, ALPHA, BETA, HORIZON).sum()
    rates = hawkes_rates(times, marks)
    errors = [compensator(rates, times, num_points=n + 1, end=HORIZON).item() - exact for n in (8, 16, 32)]
    assert all(3.9 < a / b < 4.1 for a, b in zip(errors, errors[1:], strict=False))
    two_points = compensator(rates, times, end=HORIZON).item() - exact
    assert two_points > 20 * errors[0]  # the paper's rule: both ends and nothing between, too high for a convex rate


def test_gauss_is_exact_for_polynomials_of_its_degree():
    cubic = lambda i, dt: dt**3  # noqa: E731
    times = torch.tensor([2.0], dtype=torch.float64)
    assert compensator(cubic, times, rule="gauss", num_points=2).item() == pytest.approx(4.0, abs=1e-12)
    assert abs(compensator(cubic, times, rule="gauss", num_points=1).item() - 4.0) > 1


def test_time_rescaling_on_held_out_events_with_fitted_rates():
    """Fit a Hawkes process by our likelihood's gradient; on new data its compensators must be Exp(1) draws."""
    from scipy.stats import kstest

    def rates(times, theta):
        mu, alpha, beta = theta
        age = (times.unsqueeze(-1) - times).clamp_min(0)
        sums = torch.exp(-beta * age).tril().sum(-1)  # after each event
        sums = torch.cat([sums.new_zeros(1), sums])
        return lambda i, dt: mu + alpha * beta * torch.exp(-beta * dt) * sums[i]

    train = torch.from_numpy(em.simulate.hawkes(0.5, 0.5, 1.0, 800.0, seed=0)[0])
    raw = torch.tensor([0.0, 0.0, 0.5], dtype=torch.float64, requires_grad=True)  # μ, α, β through a softplus
    optimiser = torch.optim.LBFGS([raw], max_iter=15)

    def closure():
        optimiser.zero_grad()
        marks, theta = torch.zeros(len(train), dtype=torch.int64), torch.nn.functional.softplus(raw)
        loss = -log_likelihood(rates(train, theta), train, marks, num_points=4, end=800.0) / len(train)
        loss.backward()
        return loss

    optimiser.step(closure)
    theta = torch.nn.functional.softplus(raw.detach())
    np.testing.assert_allclose(theta.numpy(), [0.5, 0.5, 1.0], rtol=0.25)
    new = torch.from_numpy(em.simulate.hawkes(0.5, 0.5, 1.0, 300.0, seed=1)[0])
    gaps = new.diff(prepend=new.new_zeros(1))

    def waits(theta):
        rate = rates(new, theta)
        each = [compensator(lambda i, dt, n=n: rate(i + n, dt), gaps[n : n + 1], "gauss", 6) for n in range(len(new))]
        return torch.stack(each).numpy()

    assert kstest(waits(theta), "expon").pvalue > 0.05
    poisson = torch.tensor([len(new) / 300.0, 0.0, 1.0], dtype=torch.float64)
    assert kstest(waits(poisson), "expon").pvalue < 1e-3  # the same number of events, but not their clustering


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rule": "simpson"}, "rule"),
        ({"num_points": 1}, "num_points"),
        ({"num_points": 2.5}, "num_points"),
        ({"end": 1.0}, "end"),
        ({"times": torch.tensor([2.0, 1.0])}, r"times\[1\]"),
        ({"times": torch.tensor([1.0, math.nan])}, r"times\[1\]"),
        ({"times": torch.tensor([-1.0])}, r"times\[0\]"),
        ({"intensity": lambda i, dt: -dt}, "intensity"),
        ({"intensity": lambda i, dt: dt.sum()}, "intensity"),
    ],
)
def test_bad_input_is_named(change, word):
    arguments = {"intensity": lambda i, dt: torch.ones_like(dt), "times": torch.tensor([1.0, 2.0])} | change
    with pytest.raises(ValueError, match=word):
        compensator(**arguments)


def test_a_mark_out_of_range_is_named():
    poisson = lambda i, dt: torch.ones(*dt.shape, 2)  # noqa: E731
    with pytest.raises(ValueError, match=r"marks\[1\] is 2"):
        log_likelihood(poisson, torch.tensor([1.0, 2.0]), torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="marks"):
        log_likelihood(poisson, torch.tensor([1.0, 2.0]), torch.tensor([0]))


# ------------------------------------------------------------------------------------- the two-point form, in batches


def test_tpple_by_hand():
    left = torch.tensor([[[1.0, 2.0], [3.0, 1.0]]])
    right = torch.tensor([[[0.5, 4.0], [2.0, 8.0]]])
    marks, gaps = torch.tensor([[1, 0]]), torch.tensor([[2.0, 1.0]])
    by_hand = math.log(4) - 2 / 2 * (3 + 4.5) + math.log(2) - 1 / 2 * (4 + 10)
    assert tpple(left, right, marks, gaps).item() == pytest.approx(by_hand)
    counts = torch.tensor([[[0.0, 1.0], [2.0, 1.0]]])
    tied = math.log(4) - 7.5 + 2 * math.log(2) + math.log(8) - 7
    assert tpple(left, right, counts, gaps).item() == pytest.approx(tied)
    mask = torch.tensor([[True, False]])
    assert tpple(left, right, torch.tensor([[1, -1]]), gaps, mask).item() == pytest.approx(math.log(4) - 7.5)


def test_tpple_is_a_sum_over_events_and_a_mean_over_sequences():
    lam, marks, gaps = torch.ones(2, 3, 1), torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3)
    mask = torch.tensor([[True, True, True], [False, False, True]])
    assert tpple(lam, lam, marks, gaps, mask).item() == -2.0  # (-3 - 1) / 2


def test_tpple_is_the_two_point_likelihood(hawkes):
    times, marks = hawkes
    rates = hawkes_rates(times, marks)
    gaps, i = times.diff(prepend=times.new_zeros(1)), torch.arange(len(times)).unsqueeze(-1)
    left = rates(i, torch.zeros_like(gaps).unsqueeze(-1)).squeeze(1)
    right = rates(i, gaps.unsqueeze(-1)).squeeze(1)
    ours = tpple(left[None], right[None], marks[None], gaps[None])
    torch.testing.assert_close(ours, log_likelihood(rates, times, marks, rule="trapezoid"))


def test_a_zero_rate_gives_the_floor_not_infinity():
    zero = torch.zeros(1, 1, 1)
    assert tpple(zero, zero, torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1)).item() == pytest.approx(
        math.log(1e-12)
    )


def test_tpple_refuses_shapes_that_do_not_fit():
    lam = torch.ones(2, 3, 4)
    with pytest.raises(ValueError, match="gaps"):
        tpple(lam, lam, torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 4))


def test_ties_become_one_event_of_several_marks():
    marks = torch.tensor([[2, 0, 1, 1, 2, 0], [-1, -1, 1, 0, 0, 2]])
    gaps = torch.tensor([[0.0, 2.0, 0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0, 3.0, 1.0]])
    counts, kept = merge_ties(marks, gaps, marks >= 0, 3)
    assert kept.tolist() == [[False, True, False, False, True, False], [False] * 4 + [True, True]]
    zero = [0, 0, 0]
    assert counts[0].tolist() == [zero, [1, 2, 0], zero, zero, [1, 0, 1], zero]
    assert counts[1].tolist() == [zero] * 4 + [[1, 0, 0], [0, 0, 1]]


def test_ties_cannot_make_the_likelihood_explode():
    """All events at two instants. Unmerged, larger rates are always better; merged, there is a best one."""
    gaps, marks = torch.tensor([[1.0, 0.0, 0.0, 1.0]]), torch.zeros(1, 4, dtype=torch.int64)
    real = torch.ones(1, 4, dtype=torch.bool)
    counts, kept = merge_ties(marks, gaps, real, 1)

    def merged(rate):
        lam = torch.full((1, 4, 1), rate)
        return tpple(lam, lam, counts, gaps, kept).item()

    assert merged(2.0) > max(merged(1.0), merged(3.0), merged(1e6))  # 4 events in 2 units of time
    # and an event that ends no interval gets no gradient: with zero gaps only, the term is 0 whatever the rate
    counts, kept = merge_ties(marks, gaps * 0, real, 1)
    lam = torch.full((1, 4, 1), 5.0, requires_grad=True)
    value = tpple(lam, lam, counts, gaps * 0, kept)
    value.backward()
    assert value.item() == 0 and lam.grad.abs().max() == 0


def test_smoothness_by_hand():
    h = torch.tensor([[[0.0, 0.0], [3.0, 4.0], [3.0, 5.0]]])
    assert smoothness(h).item() == 13.0
    assert smoothness(h, torch.tensor([[False, True, True]])).item() == 1.0
    assert smoothness(h, torch.zeros(1, 3, dtype=torch.bool)).item() == 0.0
