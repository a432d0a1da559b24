"""Correlation-adjusted masking: what is hidden, what can be heard, and where the label can and cannot travel."""

import math

import pytest
import torch
from torch import nn

import easydgl_mini as em
from easydgl_mini.encode import AIAConv
from easydgl_mini.train import CaM, TokenMask
from easydgl_mini.train.cam import pick_nodes, pick_positions, uniform


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_draws_depend_on_seed_epoch_and_id_alone():
    ids = torch.tensor([5, 2, 9, 2**40])
    whole = uniform(ids, 3, 4, 6)
    assert torch.equal(whole[[2, 0]], uniform(ids[[2, 0]], 3, 4, 6))  # in another batch, in another order
    assert torch.equal(uniform(ids, 3, 4), torch.cat([uniform(i[None], 3, 4) for i in ids]))
    for other in (uniform(ids, 4, 4, 6), uniform(ids, 3, 5, 6), uniform(ids + 1, 3, 4, 6)):
        assert not (whole == other).any()


def test_draws_are_uniform_and_independent():
    x = uniform(torch.arange(20_000), 0, 0, 3)
    assert x.min() >= 0 and x.max() < 1
    counts = torch.histc(x.reshape(-1), 20, 0, 1)
    assert ((counts - 3_000).square() / 3_000).sum() < 43.8  # chi-squared, 19 degrees of freedom, 0.1 %
    y = uniform(torch.arange(20_000), 0, 1)
    columns = torch.stack([x[:, 0], x[:, 1], x[:, 2], y, y.roll(1)])
    off = torch.corrcoef(columns) - torch.eye(5)
    assert off.abs().max() < 4 / math.sqrt(20_000)


def test_the_mask_rate_is_respected():
    n, rate = 20_000, 0.2
    assert abs(pick_nodes(rate, torch.arange(n), 0, 0).double().mean() - rate) < 3 * math.sqrt(rate * (1 - rate) / n)
    mask = torch.ones(1000, 20, dtype=torch.bool)
    hidden = pick_positions(rate, torch.arange(1000), mask, 0, 0)
    assert abs(hidden.double().mean() - rate) < 3 * math.sqrt(rate * (1 - rate) / n)
    assert not pick_nodes(0.0, torch.arange(100), 0, 0).any()


def test_only_allowed_nodes_and_real_positions_are_hidden():
    allowed = torch.arange(1000) % 2 == 0
    picked = pick_nodes(0.5, torch.arange(1000), 0, 0, allowed)
    assert picked.any() and not (picked & ~allowed).any()
    mask = torch.arange(10) >= torch.arange(10).unsqueeze(1)
    assert not (pick_positions(0.9, torch.arange(10), mask, 0, 0) & ~mask).any()


def test_a_sequence_keeps_a_key_and_one_event_is_never_hidden():
    mask = torch.arange(8) >= 8 - torch.arange(1, 9).repeat(50).unsqueeze(1)
    hidden = pick_positions(0.99, torch.arange(400), mask, 0, 0)
    assert ((mask & ~hidden).sum(1) >= 1).all() and not hidden[mask.sum(1) == 1].any()
    assert (hidden[mask.sum(1) > 1].any(1)).all()


def test_wider_padding_hides_the_same_events():
    mask = torch.ones(5, 6, dtype=torch.bool)
    wide = torch.cat([torch.zeros(5, 4, dtype=torch.bool), mask], 1)
    a, b = (pick_positions(0.5, torch.arange(5), m, 0, 0) for m in (mask, wide))
    assert torch.equal(a, b[:, 4:]) and a.any()


@pytest.mark.parametrize("rate", [-0.1, 1.0, math.nan])
def test_a_bad_rate_is_named(rate):
    with pytest.raises(ValueError, match="rate"):
        CaM(rate, 4)


# ----------------------------------------------------------------------------------------- what the layer makes of it


def world(nodes=6, seed=0):
    """A complete graph without loops, a layer, features, clusters, elapsed times, and two masked nodes."""
    torch.manual_seed(seed)
    src, dst = (1 - torch.eye(nodes)).nonzero().T
    graph = em.TemporalGraph(src, dst, nodes)
    conv = AIAConv(4, 8, 2, 3).double()
    masked = torch.zeros(nodes, dtype=torch.bool)
    masked[[1, 4]] = True
    return graph, conv, draw(nodes, 4), torch.arange(nodes) % 3, draw(nodes, seed=1).abs(), masked


def attend(cam, conv, graph, x, clusters, elapsed, masked, labels):
    keys = cam.keys(graph, masked)
    query = torch.where(masked.unsqueeze(-1), cam.query(labels, masked), x)
    return conv(keys, x, elapsed, clusters, query=query, detach=masked if cam.detach else None)[0]


def test_the_label_is_heard_only_through_attention():
    graph, conv, x, clusters, elapsed, masked = world()
    cam = CaM(0.2, 4, num_labels=3).double()
    with torch.no_grad():
        cam.embed.weight.copy_(3 * draw(3, 4, seed=5))
    one, two = torch.zeros(6, dtype=torch.int64), torch.full((6,), 2)
    a, b = (attend(cam, conv, graph, x, clusters, elapsed, masked, y) for y in (one, two))
    assert (a - b)[masked].abs().max() > 1e-3 and torch.equal(a[~masked], b[~masked])
    with torch.no_grad():
        x[:, 0] = 1.0
        conv.value.weight[:, 1:] = 0  # values read the first feature only: all equal; keys differ as before
    flat = torch.zeros_like(clusters)
    a, b = (attend(cam, conv, graph, x, flat, elapsed, masked, y) for y in (one, two))
    torch.testing.assert_close(a, b)  # equal values and clusters: weights can't matter
    a, b = (attend(cam, conv, graph, x, clusters, elapsed, masked, y) for y in (one, two))
    assert (a - b)[masked].abs().max() > 1e-4  # equal values alone are not enough: λ differs by cluster


def test_masked_nodes_are_nobodys_keys():
    graph, conv, x, clusters, elapsed, masked = world()
    cam = CaM(0.2, 4, num_labels=3).double()
    x = x.requires_grad_()
    labels = torch.zeros(6, dtype=torch.int64)
    out = attend(cam, conv, graph, x, clusters, elapsed, masked, labels)
    out.square().sum().backward()
    assert (x.grad[masked] == 0).all() and (x.grad[~masked].abs().sum(1) > 0).all()
    rest = ~masked  # and the others hear what they would if the masked nodes were not there
    src, dst = (1 - torch.eye(4)).nonzero().T
    alone, _ = conv(em.TemporalGraph(src, dst, 4), x[rest], elapsed[rest], clusters[rest])
    torch.testing.assert_close(out[rest], alone)


def test_a_query_without_keys_gives_zeros_and_finite_gradients():
    graph, conv, x, clusters, elapsed, _ = world()
    cam = CaM(0.2, 4, num_labels=3).double()
    everyone = torch.ones(6, dtype=torch.bool)
    out = attend(cam, conv, graph, x, clusters, elapsed, everyone, torch.zeros(6, dtype=torch.int64))
    assert (out == 0).all()
    out.square().sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in [*conv.parameters(), *cam.parameters()])


def test_queries_by_hand():
    cam = CaM(0.2, 2, num_labels=3)
    masked = torch.tensor([True, False, True])
    q = cam.query(torch.tensor([2, -1, 0]), masked)
    assert torch.equal(q, torch.stack([cam.embed.weight[2], torch.zeros(2), cam.embed.weight[0]]))
    real = CaM(0.2, 2)
    q = real.query(torch.tensor([2.0, math.nan, -1.0]), masked)
    weight, bias = real.embed.weight[:, 0], real.embed.bias
    torch.testing.assert_close(q, torch.stack([2 * weight + bias, torch.zeros(2), bias - weight]))


def test_a_label_out_of_range_is_named():
    with pytest.raises(ValueError, match=r"labels\[2\] is 3; expected 0 … 2"):
        CaM(0.2, 2, num_labels=3).query(torch.tensor([7, 1, 3]), torch.tensor([False, True, True]))


def test_detach_stops_the_gradient_through_masked_attention_and_nothing_else():
    graph, conv, x, clusters, elapsed, masked = world()
    labels, outputs = torch.arange(6) % 3, []
    for detach in (False, True):
        torch.manual_seed(1)
        cam = CaM(0.2, 4, num_labels=3, detach=detach).double()
        conv.zero_grad()
        out = attend(cam, conv, graph, x, clusters, elapsed, masked, labels)
        outputs.append(out.detach())
        out[masked].square().sum().backward()
        through = [cam.embed.weight, conv.query.weight, conv.key.weight]
        moved = [p.grad is not None and bool(p.grad.abs().max() > 0) for p in through]
        assert moved == [not detach] * 3 and conv.value.weight.grad.abs().max() > 0
    assert torch.equal(*outputs)
    conv.zero_grad()
    attend(cam, conv, graph, x, clusters, elapsed, masked, labels)[~masked].square().sum().backward()
    assert conv.key.weight.grad.abs().max() > 0  # unmasked queries still learn to attend


def test_typical_masking_keeps_keys_and_shares_one_token():
    mask = TokenMask(0.5, 3)
    x, masked = torch.randn(4, 3), torch.tensor([True, False, True, False])
    out = mask(x, masked)
    assert torch.equal(out[masked], mask.token.expand(2, 3)) and torch.equal(out[~masked], x[~masked])
    assert torch.equal(mask.pick(torch.arange(50), 1, 2), CaM(0.5, 3).pick(torch.arange(50), 1, 2))


def test_random_labels_leak_through_the_attention_weights():
    """AUDIT 31: labels drawn by coin are read from a masked query's output, though no residual path carries them."""
    nodes, keys = 200, 200
    graph = em.TemporalGraph(
        (nodes + torch.arange(keys)).repeat(nodes)[torch.arange(nodes * 6) * 7 % (nodes * keys)],
        torch.arange(nodes).repeat_interleave(6),
        nodes + keys,
    )
    torch.manual_seed(0)
    cam, conv, head = CaM(0.2, 8, num_labels=2), AIAConv(8, 8, 2, 2), nn.Linear(8, 2)
    optimiser = torch.optim.Adam([*cam.parameters(), *conv.parameters(), *head.parameters()], lr=0.02)
    clusters, elapsed = torch.arange(nodes + keys) % 2, torch.ones(nodes + keys)
    listens = torch.arange(nodes + keys) < nodes

    def accuracy(told, train):
        """Fresh features and fresh labels each time."""
        labels, x = torch.randint(0, 2, (nodes + keys,)), torch.randn(nodes + keys, 8)
        query = torch.where(listens.unsqueeze(-1), cam.query(labels, listens), x) if told else x
        logits = head(conv(graph, x, elapsed, clusters, query=query)[0])[:nodes]
        if train:
            optimiser.zero_grad()
            nn.functional.cross_entropy(logits, labels[:nodes]).backward()
            optimiser.step()
        return (logits.argmax(-1) == labels[:nodes]).float().mean().item()

    with torch.random.fork_rng():
        torch.manual_seed(1)
        for _ in range(150):
            accuracy(True, train=True)
        told = sum(accuracy(True, train=False) for _ in range(10)) / 10
        untold = sum(accuracy(False, train=False) for _ in range(10)) / 10
    assert told > 0.9 and abs(untold - 0.5) < 0.06
