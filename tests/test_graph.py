"""The graph and its two kernels: against plain loops, against DGL, forward and backward, on graphs nobody tuned to."""

import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import easydgl_mini as em
from easydgl_mini.graph import edge_dot

try:
    import dgl
except ImportError:
    dgl = None

BACKENDS = ["torch", pytest.param("dgl", marks=pytest.mark.skipif(dgl is None, reason="DGL is not installed"))]
DTYPES = {torch.float32: 1e-5, torch.float64: 1e-12}


def loop_softmax(src, dst, num_nodes, scores):
    out = torch.zeros_like(scores)
    for u in range(num_nodes):
        into = [e for e in range(len(src)) if dst[e] == u]
        if into:
            z = torch.exp(scores[into] - scores[into].max(0).values)
            out[into] = z / z.sum(0)
    return out


def loop_aggregate(src, dst, num_nodes, values, weights):
    rows = [
        0 * values.sum() + values.new_zeros(torch.broadcast_shapes(values.shape[1:], weights.shape[1:]))
    ] * num_nodes
    for e in range(len(src)):
        rows[dst[e]] = rows[dst[e]] + weights[e] * values[src[e]]
    return torch.stack(rows)


@st.composite
def graphs(draw):
    """Multi-edges, self-loops, isolated nodes and no edges at all occur."""
    n = draw(st.integers(1, 7))
    pairs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=20))
    src, dst = [p[0] for p in pairs], [p[1] for p in pairs]
    return em.TemporalGraph(torch.tensor(src, dtype=torch.int64), torch.tensor(dst, dtype=torch.int64), n), src, dst


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=40, deadline=None)
@given(data=graphs(), seed=st.integers(0, 2**31))
def test_kernels_equal_a_plain_loop_forward_and_backward(backend, dtype, data, seed):
    graph, src, dst = data
    draw = torch.Generator().manual_seed(seed)
    scores = (3 * torch.randn(len(src), 2, generator=draw)).to(dtype).requires_grad_()
    values = torch.randn(graph.num_nodes, 2, 3, generator=draw).to(dtype).requires_grad_()
    grad = torch.randn(graph.num_nodes, 2, 3, generator=draw).to(dtype)

    def gradients(out):
        return torch.autograd.grad((out * grad).sum(), (scores, values), allow_unused=True, materialize_grads=True)

    with em.use_backend(backend):
        weights = em.edge_softmax(graph, scores)
        out = em.aggregate(graph, values, weights)
        ours = gradients(out)
    expected_weights = loop_softmax(src, dst, graph.num_nodes, scores)
    expected = loop_aggregate(src, dst, graph.num_nodes, values, expected_weights.unsqueeze(-1))
    theirs = gradients(expected)
    for a, b in ((weights, expected_weights), (out, expected), *zip(ours, theirs, strict=True)):
        torch.testing.assert_close(a, b, atol=DTYPES[dtype], rtol=DTYPES[dtype])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "shapes",
    [
        ((5,), (8,)),
        ((5, 4), (8,)),
        ((5, 4), (8, 4)),
        ((5, 2, 3), (8, 2)),
        ((5, 2, 3), (8,)),
        ((5, 2, 3), (8, 2, 3)),
        ((5, 2, 3), (8, 1, 3)),
        ((5, 1, 3), (8, 2)),
        ((5, 4), None),
    ],
)
def test_aggregate_broadcasts_weights_with_values(backend, shapes):
    draw = torch.Generator().manual_seed(0)
    src, dst = [0, 1, 2, 3, 4, 0, 0, 2], [1, 1, 1, 0, 3, 1, 3, 2]
    values = torch.randn(shapes[0], generator=draw, dtype=torch.float64)
    weights = None if shapes[1] is None else torch.randn(shapes[1], generator=draw, dtype=torch.float64)
    with em.use_backend(backend):
        out = em.aggregate(em.TemporalGraph(src, dst, 5), values, weights)
    w = torch.ones(8, dtype=torch.float64) if weights is None else weights
    w = w.reshape(*w.shape, *[1] * (values.ndim - w.ndim))
    torch.testing.assert_close(out, loop_aggregate(src, dst, 5, values, w))


@pytest.mark.parametrize("backend", BACKENDS)
def test_edge_dot_pairs_each_source_with_its_own_destination(backend):
    at_src, at_dst = torch.arange(6.0).reshape(3, 1, 2), torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[1.0, 1.0]]])
    with em.use_backend(backend):
        out = edge_dot(em.TemporalGraph([0, 1, 2, 2], [1, 2, 0, 2], 3), at_src, at_dst)
    assert out.squeeze().tolist() == [1.0, 5.0, 4.0, 9.0]


def test_torch_kernels_have_right_first_and_second_derivatives():
    graph = em.TemporalGraph([0, 1, 2, 2, 0, 3], [1, 1, 1, 0, 1, 3], 5)
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(6, 2, generator=draw, dtype=torch.float64, requires_grad=True)
    values = torch.randn(5, 2, 2, generator=draw, dtype=torch.float64, requires_grad=True)
    with em.use_backend("torch"):
        attend = lambda s, v: em.aggregate(graph, v, em.edge_softmax(graph, s))  # noqa: E731
        assert torch.autograd.gradcheck(attend, (scores, values))
        assert torch.autograd.gradgradcheck(attend, (scores, values))
        dot = lambda a, b: edge_dot(graph, a, b)  # noqa: E731
        assert torch.autograd.gradcheck(dot, (values, values.detach().clone().requires_grad_()))


@pytest.mark.skipif(dgl is None, reason="DGL is not installed")
@pytest.mark.parametrize("backend", ["torch", "dgl"])
def test_kernels_equal_dgl_called_directly(backend):
    draw = torch.Generator().manual_seed(1)
    src, dst = torch.randint(0, 50, (2, 400), generator=draw)
    graph = em.TemporalGraph(src, dst, 60)  # the last ten nodes are isolated
    scores, values = torch.randn(400, 4, generator=draw), torch.randn(60, 4, 5, generator=draw)
    g = dgl.graph((src, dst), num_nodes=60)
    expected_weights = dgl.ops.edge_softmax(g, scores.unsqueeze(-1)).squeeze(-1)
    expected = dgl.ops.u_mul_e_sum(g, values, expected_weights.unsqueeze(-1))
    with em.use_backend(backend):
        weights = em.edge_softmax(graph, scores)
        torch.testing.assert_close(weights, expected_weights, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(em.aggregate(graph, values, weights), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(edge_dot(graph, values, values), dgl.ops.u_dot_v(g, values, values).squeeze(-1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_softmax_survives_huge_scores(backend):
    graph = em.TemporalGraph([0, 1, 2], [0, 0, 1], 3)
    with em.use_backend(backend):
        weights = em.edge_softmax(graph, torch.tensor([1e4, 1e4 - 1, -1e4]))
    p = 1 / (1 + np.exp(-1))
    np.testing.assert_allclose(weights, [p, 1 - p, 1.0], rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_without_edges_gives_zeros_that_can_be_differentiated(backend):
    graph = em.TemporalGraph([], [], 3)
    values = torch.ones(3, 2, requires_grad=True)
    with em.use_backend(backend):
        out = em.aggregate(graph, values, em.edge_softmax(graph, torch.zeros(0)))
    assert torch.equal(out, torch.zeros(3, 2))
    out.sum().backward()
    assert torch.equal(values.grad, torch.zeros(3, 2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_kernels_give_the_same_bits_every_time(backend):
    draw = torch.Generator().manual_seed(2)
    src, dst = torch.randint(0, 300, (2, 5000), generator=draw)
    graph = em.TemporalGraph(src, dst, 300)
    scores = torch.randn(5000, 4, generator=draw, requires_grad=True)
    values = torch.randn(300, 4, 8, generator=draw, requires_grad=True)

    def run():
        out = em.aggregate(graph, values, em.edge_softmax(graph, scores))
        return (out, *torch.autograd.grad(out.square().sum(), (scores, values)))

    with em.use_backend(backend):
        assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


# ---------------------------------------------------------------------------------------------- the graph itself


def test_last_event_by_hand():
    g = em.TemporalGraph(src=[0, 1, 2, 3], dst=[2, 2, 2, 0], num_nodes=4, times=[1.0, 3.0, 2.0, 5.0])
    assert g.last_event(before=3.0).tolist() == [1.0, 1.0, 2.0, 1.0]  # strictly before: not the edge at 3.0
    assert g.last_event(before=10.0).tolist() == [5.0, 1.0, 3.0, 1.0]
    assert g.last_event(before=3.0, fill=-7).tolist() == [-7.0, -7.0, 2.0, -7.0]
    per_node = torch.tensor([5.1, 9.0, 1.5, 9.0])
    assert g.last_event(before=per_node, fill=0).tolist() == [5.0, 0.0, 1.0, 0.0]
    with pytest.raises(ValueError, match="times"):
        em.TemporalGraph([0], [1], 2).last_event(1.0)
    with pytest.raises(ValueError, match="before"):
        g.last_event(torch.zeros(3))
    with pytest.raises(ValueError, match="fill"):
        em.TemporalGraph([], [], 2, times=[]).last_event(1.0)


@settings(max_examples=30, deadline=None)
@given(data=graphs(), seed=st.integers(0, 2**31))
def test_without_sources_equals_building_the_smaller_graph(data, seed):
    graph, src, dst = data
    draw = torch.Generator().manual_seed(seed)
    graph = em.TemporalGraph(src, dst, graph.num_nodes, times=torch.rand(len(src), generator=draw))
    mask = torch.rand(graph.num_nodes, generator=draw) < 0.5
    values = torch.randn(graph.num_nodes, 3, generator=draw)
    _ = graph.by_dst  # the sorted order is carried over, not computed again
    part = graph.without_sources(mask)
    keep = [e for e in range(len(src)) if not mask[src[e]]]
    fresh = em.TemporalGraph([src[e] for e in keep], [dst[e] for e in keep], graph.num_nodes)
    assert torch.equal(part.src, fresh.src) and torch.equal(part.dst, fresh.dst)
    assert torch.equal(part.times, graph.times[keep])
    assert all(torch.equal(a, b) for a, b in zip(part.by_dst, fresh.by_dst, strict=True))
    with em.use_backend("torch"):
        torch.testing.assert_close(em.aggregate(part, values), em.aggregate(fresh, values))


def test_in_degrees_count_multi_edges():
    assert em.TemporalGraph([0, 0, 1], [1, 1, 1], 3).in_degrees().tolist() == [0, 3, 0]


def test_scipy_rows_are_sources():
    A = scipy.sparse.csr_array(np.array([[0, 2.0, 0], [0, 0, 3.0], [0, 0, 0]]))
    g = em.TemporalGraph.from_scipy(A)
    assert g.src.tolist() == [0, 1] and g.dst.tolist() == [1, 2] and g.weights.tolist() == [2.0, 3.0]


@pytest.mark.skipif(dgl is None, reason="DGL is not installed")
def test_round_trip_through_dgl_keeps_edges_times_and_weights():
    g = em.TemporalGraph([2, 0, 1], [1, 1, 0], 4, times=[3.0, 1.0, 2.0], weights=[0.5, 1.5, 2.5])
    back = em.TemporalGraph.from_dgl(g.to_dgl())
    for name in ("src", "dst", "times", "weights"):
        assert torch.equal(getattr(g, name), getattr(back, name))
    assert back.num_nodes == 4
    g.to_dgl().edata["time"][0] = 99.0
    assert g.times[0] == 3.0
    hetero = dgl.heterograph({("user", "buys", "item"): ([0], [0])})
    with pytest.raises(ValueError, match="homogeneous"):
        em.TemporalGraph.from_dgl(hetero)


def test_times_from_a_list_keep_their_seconds():
    g = em.TemporalGraph([0, 1], [2, 2], 3, times=[1_700_000_000, 1_700_000_001])
    assert g.times.diff().item() == 1.0 and g.times.dtype == torch.float64
    assert em.TemporalGraph([0], [0], 1, times=torch.tensor([1.0])).times.dtype == torch.float32


def test_the_graph_does_not_follow_later_changes_of_its_input():
    src, times = np.array([0, 1]), np.array([1.0, 2.0])
    g = em.TemporalGraph(src, [1, 0], 2, times=times)
    src[0], times[0] = 1, 50.0
    assert g.src.tolist() == [0, 1] and g.times.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"src": [0, 1], "dst": [0], "num_nodes": 2}, "src and dst"),
        ({"src": [0, 3], "dst": [0, 1], "num_nodes": 3}, r"src\[1\] is 3"),
        ({"src": [0, 1], "dst": [-1, 1], "num_nodes": 3}, r"dst\[0\] is -1"),
        ({"src": [0.5], "dst": [0], "num_nodes": 1}, "src must hold whole numbers"),
        ({"src": [[0]], "dst": [[0]], "num_nodes": 1}, "src must have one dimension"),
        ({"src": [], "dst": [], "num_nodes": 0}, "num_nodes"),
        ({"src": [0], "dst": [0], "num_nodes": 1, "times": [float("nan")]}, r"times\[0\] is nan"),
        ({"src": [0, 0], "dst": [0, 0], "num_nodes": 1, "times": [1.0, -2.0]}, r"times\[1\] is -2"),
        ({"src": [0], "dst": [0], "num_nodes": 1, "times": [1.0, 2.0]}, "times must have one value per edge"),
        ({"src": [0], "dst": [0], "num_nodes": 1, "weights": [float("inf")]}, r"weights\[0\] is inf"),
    ],
)
def test_bad_graphs_are_refused_by_name_and_index(kwargs, message):
    with pytest.raises(ValueError, match=message):
        em.TemporalGraph(**kwargs)


def test_bad_kernel_input_is_refused_by_name():
    g = em.TemporalGraph([0, 1], [1, 0], 2)
    for call, message in [
        (lambda: em.edge_softmax(g, torch.zeros(3)), "scores must have 2 rows"),
        (lambda: em.edge_softmax(g, torch.zeros(2, dtype=torch.int64)), "scores must be a floating-point"),
        (lambda: em.edge_softmax("g", torch.zeros(2)), "graph must be"),
        (lambda: em.aggregate(g, torch.zeros(3, 1)), "values must have 2 rows"),
        (lambda: em.aggregate(g, torch.zeros(2, 3), torch.zeros(2, 2)), "weights"),
        (lambda: em.aggregate(g, torch.zeros(2), torch.zeros(2, 2)), "weights has 2 dimensions"),
        (lambda: g.without_sources(torch.zeros(3, dtype=torch.bool)), "mask"),
        (lambda: g.without_sources(torch.zeros(2)), "mask"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


# ------------------------------------------------------------------------------------------------- the backend


def test_use_backend_is_local_and_refuses_unknown_names():
    before = em.backend()
    with em.use_backend("torch"):
        assert em.backend() == "torch"
    assert em.backend() == before
    with pytest.raises(ValueError, match="name"), em.use_backend("jax"):
        pass


@pytest.mark.skipif(dgl is None, reason="DGL is not installed")
def test_half_precision_falls_back_to_torch_unless_dgl_is_forced(monkeypatch):
    monkeypatch.delenv("EASYDGL_BACKEND", raising=False)
    g = em.TemporalGraph([0, 1], [0, 0], 2)
    assert em.edge_softmax(g, torch.zeros(2, dtype=torch.bfloat16)).tolist() == [0.5, 0.5]
    with em.use_backend("dgl"), pytest.raises(RuntimeError, match="bfloat16"):
        em.edge_softmax(g, torch.zeros(2, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("backend", "code", "expected"),
    [
        ("torch", "print(em.backend())", "torch"),
        ("jax", "em.backend()", "EASYDGL_BACKEND must be 'dgl' or 'torch', got 'jax'"),
        ("dgl", "em.backend()", "forced to DGL, which cannot be used here (ImportError: no dgl today)"),
        ("", "print(em.backend())", "torch"),
    ],
)
def test_the_environment_chooses_the_backend_and_says_why_it_cannot(backend, code, expected):
    """In a process where DGL does not import."""
    block = "import sys, types\nclass F:\n    def find_spec(self, name, *rest):\n        if name == 'dgl': raise ImportError('no dgl today')\nsys.meta_path.insert(0, F())\n"  # noqa: E501
    env = {**os.environ, "EASYDGL_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-c", block + "import easydgl_mini as em\n" + code], capture_output=True, text=True, env=env
    )
    assert expected in done.stdout + done.stderr
