"""Rates: by hand, against the equations written out, at the edges of the number range, and their gradients."""

import math

import pytest
import torch

from easydgl_mini.encode import Intensity, softplus


def written_out(module, s, elapsed):
    """eqn:att_g, eqn:att_l and eq:splus, one head, one cluster, one number at a time."""
    rates = torch.empty(len(s), module.w.shape[0], module.num_clusters, dtype=s.dtype)
    for n in range(len(s)):
        for h in range(module.w.shape[0]):
            for k in range(module.num_clusters):
                g = torch.sigmoid(module.W[h, k] @ s[n, h] + module.b[h, k] * elapsed[n])
                x, phi = module.w[h, k] @ g + module.mu[h, k], module.log_phi[h, k].exp()
                rates[n, h, k] = phi * torch.log(1 + torch.exp(x / phi))
    return rates


def randomised(**kwargs):
    torch.manual_seed(0)
    module = Intensity(**kwargs).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def test_by_hand():
    rate = Intensity(in_feats=1, num_clusters=1)
    with torch.no_grad():
        for p, value in ((rate.W, 2.0), (rate.b, -1.0), (rate.w, 3.0), (rate.mu, -0.5), (rate.log_phi, math.log(0.5))):
            p.fill_(value)
    # s = 1, elapsed = 2: gate = logistic(2 - 2) = 1/2, drive = 3/2 - 1/2 = 1, rate = 1/2 log(1 + e^2)
    lam = rate(torch.ones(1), torch.tensor(2.0))
    assert lam.item() == pytest.approx(0.5 * math.log(1 + math.exp(2)), rel=1e-6)


@pytest.mark.parametrize("endogenous", [True, False])
def test_equals_the_equations_written_out(endogenous):
    module = randomised(in_feats=3, num_clusters=4, num_heads=2, endogenous=endogenous)
    s, elapsed = torch.randn(5, 2, 3, dtype=torch.float64), torch.rand(5, dtype=torch.float64) * 3
    expected = written_out(module, torch.zeros_like(s), elapsed) if not endogenous else written_out(module, s, elapsed)
    torch.testing.assert_close(module(s, elapsed), expected)


def test_many_blocks_equal_one():
    """The gates are made a block at a time; how many blocks must not matter, forward or backward."""
    from easydgl_mini.encode.intensity import _Drive

    module = randomised(in_feats=3, num_clusters=4, num_heads=2)
    s = torch.randn(50, 2, 3, dtype=torch.float64, requires_grad=True)
    elapsed = torch.rand(50, dtype=torch.float64, requires_grad=True)

    def run():
        lam = module(s, elapsed)
        return (lam, *torch.autograd.grad(lam.square().sum(), (s, elapsed, *module.parameters())))

    one, size = run(), _Drive.BLOCK
    try:
        _Drive.BLOCK = 100  # four rows
        many = run()
    finally:
        _Drive.BLOCK = size
    for a, b in zip(one, many, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("endogenous", [True, False])
def test_gradients_meet_finite_differences(endogenous):
    module = randomised(in_feats=2, num_clusters=3, num_heads=2, endogenous=endogenous)
    s = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    elapsed = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in module.named_parameters()]

    def rates(s, elapsed, *parameters):
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (s, elapsed))

    assert torch.autograd.gradcheck(rates, (s, elapsed, *module.parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("phi", [1e-3, 1.0, 1e3])
def test_softplus_is_stable_positive_and_right(dtype, phi):
    x = torch.tensor([-1e4, -50.0, -1.0, 0.0, 1.0, 50.0, 1e4], dtype=dtype, requires_grad=True)
    y = softplus(x, torch.tensor(phi, dtype=dtype))
    assert torch.isfinite(y).all() and (y > 0).all() and (y[1:] >= y[:-1]).all()
    exact = torch.tensor(
        [phi * (max(v / phi, 0) + math.log1p(math.exp(-abs(v / phi)))) for v in x.tolist()], dtype=dtype
    )
    torch.testing.assert_close(y, exact)
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(slope, torch.sigmoid(x / phi))


@pytest.mark.parametrize("log_phi", [math.log(1e-3), 0.0, math.log(1e3)])
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_extreme_states_and_parameters_stay_finite(log_phi, size):
    rate = Intensity(in_feats=4, num_clusters=3, num_heads=2)
    with torch.no_grad():
        rate.log_phi.fill_(log_phi)
        rate.mu.fill_(size)
    s = torch.full((2, 2, 4), size, requires_grad=True)
    lam = rate(s, torch.tensor([0.0, 1e4]))
    lam.sum().backward()
    assert torch.isfinite(lam).all() and (lam > 0).all() and torch.isfinite(s.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in rate.parameters())


def test_a_fresh_module_gives_rates_near_one_and_moves_with_time():
    torch.manual_seed(0)
    rate = Intensity(in_feats=16, num_clusters=8, num_heads=4)
    s = torch.randn(100, 4, 16)
    lam = rate(s, torch.zeros(100))
    assert 0.5 < lam.mean() < 2
    assert (rate.b != 0).all() and not torch.allclose(lam, rate(s, torch.ones(100)))


def test_heads_stand_where_head_axis_says_and_elapsed_broadcasts():
    first, last = (
        randomised(in_feats=3, num_clusters=2, num_heads=4, head_axis=-3),
        randomised(in_feats=3, num_clusters=2, num_heads=4),
    )
    s, elapsed = torch.randn(2, 4, 5, 3, dtype=torch.float64), torch.rand(2, 5, dtype=torch.float64)
    torch.testing.assert_close(first(s, elapsed), last(s.transpose(1, 2), elapsed).transpose(1, 2))
    grid = torch.linspace(0, 3, 7, dtype=torch.float64)
    many = last(s[0, :, 0], grid)  # one state (4, 3), seven times
    torch.testing.assert_close(many[2], last(s[0, :, 0], grid[2]))
    assert many.shape == (7, 4, 2)


def test_bad_elapsed_is_refused_with_its_index():
    rate = Intensity(2, 2)
    for bad, message in [
        (torch.tensor([1.0, -0.5]), r"elapsed\[1\] is -0.5"),
        (torch.tensor([float("nan"), 0.0]), r"elapsed\[0\] is nan"),
        (torch.tensor([0.0, float("inf")]), r"elapsed\[1\] is inf"),
        (3.0, "elapsed must be a tensor"),
    ]:
        with pytest.raises(ValueError, match=message):
            rate(torch.zeros(2, 2), bad)
