"""The loss of naming one item among all: torch's own cross-entropy, but for the memory."""

import pytest
import torch
import torch.nn.functional as F

from easydgl_mini.train import naming
from easydgl_mini.train.naming import naming_loss


def problem(rows=11, items=7, dim=5, dtype=torch.float64, scale=1.0):
    draw = torch.Generator().manual_seed(0)
    h, table, bias = (
        (scale * torch.randn(*shape, generator=draw, dtype=dtype)).requires_grad_()
        for shape in ((rows, dim), (items, dim), (items,))
    )
    target = torch.randint(items, (rows,), generator=draw)
    return h, table, bias, target, torch.rand(rows, generator=draw, dtype=dtype)


def reference(h, table, bias, target, weight):
    return (F.cross_entropy(F.linear(h, table, bias), target, reduction="none") * weight).sum()


@pytest.mark.parametrize("chunk", [1, 7, 21, 30, 10_000])
def test_value_and_gradients_are_cross_entropys_however_many_rows_at_once(monkeypatch, chunk):
    monkeypatch.setattr(naming, "CHUNK", chunk)
    given = problem()
    found = naming_loss(*given)
    torch.testing.assert_close(found, reference(*given))
    expected = torch.autograd.grad(3 * reference(*given), given[:3])
    torch.testing.assert_close(torch.autograd.grad(3 * found, given[:3]), expected)  # 3: what comes from above counts


def test_by_hand():
    """Scores log 1 and log 3: the first item has a quarter of the chance."""
    h, table = torch.tensor([[1.0]], requires_grad=True), torch.tensor([[0.0], [3.0]]).log().clamp_min(0)
    loss = naming_loss(h, table, torch.zeros(2), torch.tensor([0]), torch.tensor([2.0]))
    torch.testing.assert_close(loss, 2 * torch.tensor(4.0).log())
    (dh,) = torch.autograd.grad(loss, h)  # w (p - 1 of the item) E = 2 * 3/4 * log 3
    torch.testing.assert_close(dh, 1.5 * torch.tensor([[3.0]]).log())


def test_far_scores_stay_finite():
    given = problem(dtype=torch.float32, scale=200.0)
    found, expected = naming_loss(*given), reference(*given)
    assert expected > 1e4
    torch.testing.assert_close(found, expected)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(found, given[:3]))


def test_autocast_rounds_the_products_only():
    given = problem(rows=200, items=300, dim=16, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = naming_loss(*given)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, reference(*given), rtol=2e-3, atol=0)
    pairs = zip(*(torch.autograd.grad(loss, given[:3]) for loss in (found, reference(*given))), strict=True)
    for mine, theirs in pairs:
        assert mine.dtype == torch.float32
        assert (mine - theirs).norm() < 1e-2 * theirs.norm()


def test_no_rows_cost_nothing():
    h, table, bias, *_ = problem(rows=0)
    loss = naming_loss(h, table, bias, torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    assert loss == 0
    assert torch.autograd.grad(loss, table)[0].abs().sum() == 0
