"""The three scoring functions: by hand, against DGL's layers, and what each can and cannot see."""

import math

import pytest
import torch

import easydgl_mini as em
from easydgl_mini.encode import attention_scores

try:
    import dgl.nn.pytorch as dglnn
except ImportError:
    dglnn = None

needs_dgl = pytest.mark.skipif(dglnn is None, reason="DGL is not installed")
KINDS = ("sa", "gat", "gatv2")


def test_by_hand():
    q, k = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -4.0]])
    assert attention_scores("sa", q, k).item() == pytest.approx((3 - 8) / math.sqrt(2))
    a = torch.tensor([1.0, 0.5, 2.0, 3.0])  # query: 1 + 1 = 2, key: 6 - 12 = -6, together -4, leaky -0.8
    assert attention_scores("gat", q, k, a).item() == pytest.approx(-0.8)
    a = torch.tensor([1.0, 10.0])  # q + k = (4, -2) -> leaky (4, -0.4) -> 4 - 4
    assert attention_scores("gatv2", q, k, a).item() == pytest.approx(0.0, abs=1e-6)


def _draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["torch", pytest.param("dgl", marks=needs_dgl)])
def test_on_a_graph_equals_the_dense_form_read_at_its_edges(kind, backend):
    src, dst = [0, 1, 2, 3, 3, 0], [1, 1, 0, 2, 2, 0]
    q, k = _draw(4, 2, 3), _draw(4, 2, 3, seed=1)
    a = {"sa": None, "gat": _draw(2, 6, seed=2), "gatv2": _draw(2, 3, seed=2)}[kind]
    dense = attention_scores(kind, q.transpose(0, 1), k.transpose(0, 1), None if a is None else a.unsqueeze(1))
    with em.use_backend(backend):
        sparse = attention_scores(kind, q, k, a, em.TemporalGraph(src, dst, 4))
    torch.testing.assert_close(sparse, dense[:, dst, src].t())  # dense is (H, query, key)


@pytest.mark.parametrize("kind", KINDS)
def test_an_edge_key_is_added_to_the_key(kind):
    """With one edge per source, adding to the edge's key is adding to the source's key."""
    graph = em.TemporalGraph([0, 1, 2], [1, 2, 2], 3)
    q, k, extra = _draw(3, 2, 4), _draw(3, 2, 4, seed=1), _draw(3, 2, 4, seed=2)
    a = {"sa": None, "gat": _draw(2, 8, seed=3), "gatv2": _draw(2, 4, seed=3)}[kind]
    got = attention_scores(kind, q, k, a, graph, edge_key=extra)
    torch.testing.assert_close(got, attention_scores(kind, q, k + extra, a, graph))


@needs_dgl
def test_gatv2_equals_dgl():
    graph = em.TemporalGraph([0, 1, 2, 2], [1, 0, 0, 1], 3)
    layer = dglnn.GATv2Conv(5, 4, 2, bias=False, allow_zero_in_degree=True).double()
    x = _draw(3, 5)
    expected = layer(graph.to_dgl(), x)
    key, query = layer.fc_src(x).reshape(3, 2, 4), layer.fc_dst(x).reshape(3, 2, 4)
    e = attention_scores("gatv2", query, key, layer.attn[0], graph)
    torch.testing.assert_close(em.aggregate(graph, key, em.edge_softmax(graph, e)), expected)


def test_gat_ranks_keys_the_same_for_every_query_and_gatv2_does_not():
    q, k = _draw(30, 4), _draw(6, 4, seed=1)
    rank = lambda kind, a: attention_scores(kind, q, k, a).argsort(-1).unique(dim=0)  # noqa: E731
    assert len(rank("gat", _draw(8, seed=2))) == 1
    assert len(rank("gatv2", _draw(4, seed=2))) > 1
    assert len(rank("sa", None)) > 1


def test_sa_scores_have_unit_variance_at_any_width():
    for d in (4, 64):
        e = attention_scores("sa", _draw(400, d), _draw(400, d, seed=1))
        assert e.std().item() == pytest.approx(1.0, abs=0.05)


def test_bad_input_is_named():
    q = torch.zeros(2, 4)
    for args, message in [
        (("dot", q, q), "kind"),
        (("sa", q, torch.zeros(2, 3)), "query and key"),
        (("gat", q, q), "a must be of width 8"),
        (("gat", q, q, torch.zeros(4)), "a must be of width 8"),
        (("gatv2", q, q, torch.zeros(8)), "a must be of width 4"),
        (("sa", q, q, torch.zeros(4)), "a must be None"),
        (("sa", q.long(), q.long()), "query"),
    ]:
        with pytest.raises(ValueError, match=message):
            attention_scores(*args)
