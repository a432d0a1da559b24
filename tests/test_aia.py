"""The attention-intensity-attention layer: by hand, against its equations in loops, and facts that pin its indices."""

import math

import pytest
import torch

import easydgl_mini as em
from easydgl_mini.encode import CALENDAR_DIM, AIAAttention, AIAConv, time_encoding

try:
    import dgl
except ImportError:
    dgl = None

KINDS = ("sa", "gat", "gatv2")
BACKENDS = ["torch", pytest.param("dgl", marks=pytest.mark.skipif(dgl is None, reason="DGL is not installed"))]


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(cls=AIAConv, in_feats=3, out_feats=4, num_heads=2, num_clusters=3, **kwargs):
    torch.manual_seed(0)
    layer = cls(in_feats, out_feats, num_heads, num_clusters, **kwargs).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.7)
    return layer


SRC, DST = [0, 1, 2, 3, 0, 2, 4, 4], [1, 1, 1, 0, 2, 2, 3, 3]  # a multi-edge 4 -> 3; node 4 hears nobody


def example(times=False, n=5, seed=0):
    when = draw(len(SRC), seed=9).abs() * 10
    when[-1] = when[0]  # two edges at one time
    graph = em.TemporalGraph(SRC, DST, n, times=when if times else None)
    return {
        "graph": graph,
        "feat": draw(n, 3, seed=seed),
        "elapsed": draw(n, seed=seed + 1).abs(),
        "clusters": torch.tensor([0, 1, 2, 1, 0]),
        "calendar": draw(n, CALENDAR_DIM, seed=seed + 2),
    }


# ------------------------------------------------------------------------------------------------- by hand


def by_hand_layer(cls):
    """One head of width one; every weight chosen so that the answer can be done on paper."""
    layer = cls(1, 1, 1, 2).double()
    with torch.no_grad():
        for linear in (layer.query, layer.key, layer.value):
            linear.weight.fill_(1.0)
        rate = layer.intensity
        rate.W.zero_()
        rate.b[:] = torch.tensor(
            [[[0.0], [math.log(3.0)]]], dtype=torch.float64
        )  # cluster 1's gate: logistic(elapsed log 3)
        rate.w[:] = torch.tensor([[[2.0], [4.0]]])
        rate.mu.zero_()
        rate.log_phi.zero_()
    return layer


# Node 0 has feature 0, so it scores its keys 0: weights 1/2 and 1/2. At elapsed 1 the gates are 1/2 and 3/4, so
# lambda_0 = log(1 + e^1), lambda_1 = log(1 + e^3), and h = (lambda_{k of 1} x_1 + lambda_{k of 2} x_2) / 2.
X_BY_HAND, ELAPSED_BY_HAND, CLUSTERS_BY_HAND = [0.0, 10.0, 2.0], [1.0, 5.0, 7.0], [0, 1, 0]
H0_BY_HAND = (math.log(1 + math.exp(3)) * 10 + math.log(1 + math.exp(1)) * 2) / 2


def test_graph_layer_by_hand_on_three_nodes():
    layer = by_hand_layer(AIAConv)
    graph = em.TemporalGraph(src=[1, 2], dst=[0, 0], num_nodes=3)
    x = torch.tensor(X_BY_HAND, dtype=torch.float64).unsqueeze(-1)
    elapsed = torch.tensor(ELAPSED_BY_HAND, dtype=torch.float64)
    h, lam = layer(graph, x, elapsed, torch.tensor(CLUSTERS_BY_HAND))
    assert h[0].item() == pytest.approx(H0_BY_HAND, rel=1e-12)
    assert h[1:].tolist() == [[0.0], [0.0]]  # nobody speaks to them
    assert lam[0, 0].tolist() == pytest.approx([math.log(1 + math.e), math.log(1 + math.exp(3))])


def test_sequence_layer_by_hand_on_three_positions():
    layer = by_hand_layer(AIAAttention)
    x = torch.tensor(X_BY_HAND, dtype=torch.float64).reshape(1, 3, 1)
    elapsed = torch.tensor([ELAPSED_BY_HAND], dtype=torch.float64)
    h, lam = layer(x, elapsed, torch.tensor([CLUSTERS_BY_HAND]), key_mask=torch.tensor([[False, True, True]]))
    assert h[0, 0].item() == pytest.approx(H0_BY_HAND, rel=1e-12)
    assert lam[0, 0, 0].tolist() == pytest.approx([math.log(1 + math.e), math.log(1 + math.exp(3))])


# ----------------------------------------------------------------------------------- the equations, in loops


def in_loops(layer, graph, feat, elapsed, clusters, query=None, calendar=None):
    """Every sum of the paper's section on encoding, written out; rows are nodes."""
    H, d, n = layer.num_heads, layer.head_dim, len(feat)
    query = feat if query is None else query
    h_out = torch.zeros(n, H, d, dtype=feat.dtype)
    lam_out = torch.zeros(n, H, layer.num_clusters, dtype=feat.dtype)
    for head in range(H):
        rows = slice(head * d, (head + 1) * d)
        WQ, WK, WV = (m.weight[rows] for m in (layer.query, layer.key, layer.value))
        rate = layer.intensity
        for u in range(n):
            edges = [e for e in range(graph.num_edges) if graph.dst[e] == u]
            scores = []
            for e in edges:
                i = int(graph.src[e])
                key = WK @ feat[i]
                if graph.times is not None:
                    key = key + WK @ time_encoding(graph.times[e], layer.in_feats)
                q = WQ @ query[u]
                if layer.score == "sa":
                    score = q @ key / math.sqrt(d)
                elif layer.score == "gat":
                    score = torch.nn.functional.leaky_relu(layer.a[head] @ torch.cat([q, key]), 0.2)
                else:
                    score = layer.a[head] @ torch.nn.functional.leaky_relu(q + key, 0.2)
                if calendar is not None:
                    z = layer.types[head]
                    W = layer.clock(calendar[u]).reshape(H, *[z.shape[-1]] * 2)[head]
                    score = score + layer.beta * torch.tanh(z[clusters[u]] @ W @ z[clusters[i]])
                scores.append(score)
            Q = torch.softmax(torch.stack(scores), 0) if edges else []
            values = [WV @ feat[int(graph.src[e])] for e in edges]
            s = sum((w * v for w, v in zip(Q, values, strict=True)), torch.zeros(d, dtype=feat.dtype))
            for k in range(layer.num_clusters):
                g = torch.sigmoid(rate.W[head, k] @ s + rate.b[head, k] * elapsed[u])
                phi = rate.log_phi[head, k].exp()
                x = rate.w[head, k] @ g + rate.mu[head, k]
                lam_out[u, head, k] = phi * torch.log(1 + torch.exp(x / phi))
            for e, w, v in zip(edges, Q, values, strict=True):
                h_out[u, head] += w * lam_out[u, head, clusters[int(graph.src[e])]] * v  # u's rate, i's cluster
    return h_out.reshape(n, -1), lam_out


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("score", KINDS)
@pytest.mark.parametrize("times", [False, True])
@pytest.mark.parametrize("calendar", [False, True])
def test_graph_layer_equals_its_equations_in_loops(backend, score, times, calendar):
    layer, inputs = make(score=score, beta=1.5), example(times)
    if not calendar:
        inputs["calendar"] = None
    inputs["query"] = draw(5, 3, seed=5)
    with em.use_backend(backend), torch.no_grad():
        h, lam = layer(**inputs)
        expected_h, expected_lam = in_loops(layer, **inputs)
    torch.testing.assert_close(h, expected_h)
    torch.testing.assert_close(lam, expected_lam)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("score", KINDS)
def test_on_a_complete_graph_both_layers_agree(backend, score):
    B, T = 3, 4
    conv, att = make(AIAConv, score=score), make(AIAAttention, score=score)
    att.load_state_dict(conv.state_dict())
    x, elapsed, calendar = draw(B, T, 3), draw(B, T, seed=1).abs(), draw(B, T, CALENDAR_DIM, seed=2)
    query, clusters = draw(B, T, 3, seed=3), torch.tensor([[0, 1, 2, 0], [1, 1, 0, 2], [2, 0, 0, 1]])
    h, lam, s = att(x, elapsed, clusters, torch.ones(B, T, dtype=torch.bool), query, calendar, return_state=True)
    src, dst = (m.reshape(-1) for m in torch.meshgrid(torch.arange(T), torch.arange(T), indexing="ij"))
    graph = em.TemporalGraph(src, dst, T)
    with em.use_backend(backend):
        for b in range(B):
            hb, lb, sb = conv(graph, x[b], elapsed[b], clusters[b], query[b], calendar[b], return_state=True)
            torch.testing.assert_close(h[b], hb, atol=1e-6, rtol=1e-6)
            torch.testing.assert_close(lam[b], lb.transpose(0, 1), atol=1e-6, rtol=1e-6)
            torch.testing.assert_close(s[b], sb.transpose(0, 1), atol=1e-6, rtol=1e-6)


@pytest.mark.skipif(dgl is None, reason="DGL is not installed")
def test_a_dgl_graph_may_be_passed_with_its_times():
    layer, inputs = make(), example(times=True)
    expected = layer(**inputs)
    got = layer(**{**inputs, "graph": inputs["graph"].to_dgl()})
    torch.testing.assert_close(got, expected)


# ------------------------------------------------------------------------------------- facts that pin indices


@pytest.mark.parametrize("backend", BACKENDS)
def test_elapsed_of_one_node_changes_that_node_only(backend):
    """The test that catches the swapped index: with the neighbour's rate, other rows would move."""
    layer, inputs = make(), example()
    with em.use_backend(backend):
        jacobian = torch.autograd.functional.jacobian(lambda e: layer(**{**inputs, "elapsed": e})[0], inputs["elapsed"])
    moved = jacobian.abs().sum(1) > 1e-9  # (output node, elapsed node)
    assert torch.equal(moved, torch.diag(torch.tensor([True, True, True, True, False])))  # node 4 hears nobody


def test_elapsed_of_one_position_changes_that_position_only():
    layer = make(AIAAttention)
    x, elapsed, clusters = draw(1, 4, 3), draw(1, 4, seed=1).abs(), torch.tensor([[0, 1, 2, 1]])
    run = lambda e: layer(x, e, clusters, torch.ones(1, 4, dtype=torch.bool))[0]  # noqa: E731
    moved = torch.autograd.functional.jacobian(run, elapsed).abs().sum(2).squeeze() > 1e-9
    assert torch.equal(moved, torch.eye(4, dtype=torch.bool))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("score", KINDS)
def test_renaming_nodes_renames_the_output(backend, score):
    layer, inputs = make(score=score), example(times=True)
    perm = torch.tensor([3, 0, 4, 1, 2])  # new name of each node
    back = torch.argsort(perm)
    g = inputs["graph"]
    shuffle = torch.tensor([5, 2, 7, 0, 1, 6, 4, 3])  # the order of edges does not matter either
    renamed = em.TemporalGraph(perm[g.src][shuffle], perm[g.dst][shuffle], 5, times=g.times[shuffle])
    moved = {key: value[back] for key, value in inputs.items() if key != "graph"}
    with em.use_backend(backend):
        h, lam = layer(**inputs)
        h2, lam2 = layer(graph=renamed, **moved)
    torch.testing.assert_close(h2[perm], h)
    torch.testing.assert_close(lam2[perm], lam)


class _Ones(torch.nn.Module):
    def __init__(self, like):
        super().__init__()
        self.like, self.endogenous = like, True

    def forward(self, s, elapsed):
        return torch.ones_like(self.like(s, elapsed))


@pytest.mark.parametrize("cls", [AIAConv, AIAAttention])
def test_rates_of_one_give_plain_attention_exactly(cls):
    layer = make(cls)
    layer.intensity = _Ones(layer.intensity)
    plain = make(cls, modulate=False)
    plain.load_state_dict({k.replace("intensity.like.", "intensity."): v for k, v in layer.state_dict().items()})
    if cls is AIAConv:
        a, b = layer(**example())[0], plain(**example())[0]
    else:
        args = (draw(2, 4, 3), draw(2, 4).abs(), torch.zeros(2, 4, dtype=torch.int64), torch.ones(2, 4).bool())
        a, b = layer(*args)[0], plain(*args)[0]
    assert torch.equal(a, b)


@pytest.mark.parametrize("backend", BACKENDS)
def test_plain_attention_is_dgl_message_passing(backend):
    layer, inputs = make(modulate=False), example()
    inputs["calendar"] = None
    with em.use_backend(backend):
        h, _ = layer(**inputs)
        q, k, v = (m(inputs["feat"]).reshape(5, 2, 2) for m in (layer.query, layer.key, layer.value))
        g = inputs["graph"]
        e = (q[g.dst] * k[g.src]).sum(-1) / math.sqrt(2)  # a head is two wide
        torch.testing.assert_close(h, em.aggregate(g, v, em.edge_softmax(g, e)).reshape(5, 4))


def test_query_changes_attention_weights_and_nothing_else():
    """With the same value and cluster at every key the weights can't matter, so neither can the query."""
    layer, inputs = make(), example()
    inputs["feat"], inputs["clusters"] = draw(1, 3).expand(5, 3), torch.zeros(5, dtype=torch.int64)
    h, lam = layer(**inputs)
    h2, lam2 = layer(**inputs, query=draw(5, 3, seed=8))
    torch.testing.assert_close(h2, h)
    torch.testing.assert_close(lam2, lam)
    inputs = example()
    assert (layer(**inputs)[0] - layer(**inputs, query=draw(5, 3, seed=8))[0]).abs().max() > 1e-3


@pytest.mark.parametrize("backend", BACKENDS)
def test_removing_a_source_equals_never_having_had_it(backend):
    layer, inputs = make(), example()
    mask = torch.tensor([False, False, True, False, False])
    keep = [e for e in range(len(SRC)) if SRC[e] != 2]
    fresh = em.TemporalGraph([SRC[e] for e in keep], [DST[e] for e in keep], 5)
    with em.use_backend(backend):
        a = layer(**{**inputs, "graph": inputs["graph"].without_sources(mask)})
        b = layer(**{**inputs, "graph": fresh})
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize("causal", [False, True])
def test_masking_a_key_equals_removing_it(causal):
    layer = make(AIAAttention)
    x, elapsed = draw(1, 5, 3), draw(1, 5, seed=1).abs()
    clusters, calendar = torch.tensor([[0, 1, 2, 1, 0]]), draw(1, 5, CALENDAR_DIM, seed=2)
    mask, keep = torch.tensor([[True, True, False, True, True]]), [0, 1, 3, 4]
    h, lam = layer(x, elapsed, clusters, mask, calendar=calendar, causal=causal)
    ones = torch.ones(1, 4, dtype=torch.bool)
    h2, lam2 = layer(x[:, keep], elapsed[:, keep], clusters[:, keep], ones, calendar=calendar[:, keep], causal=causal)
    torch.testing.assert_close(h[:, keep], h2)
    torch.testing.assert_close(lam[:, :, keep], lam2)


def test_masked_keys_get_no_gradient():
    layer = make(AIAAttention)
    x = draw(1, 4, 3).requires_grad_()
    mask = torch.tensor([[True, False, True, True]])
    h, lam = layer(x, torch.ones(1, 4, dtype=torch.float64), torch.tensor([[0, 1, 2, 0]]), mask)
    (grad,) = torch.autograd.grad(h[:, [0, 2, 3]].sum() + lam[:, :, [0, 2, 3]].sum(), x)
    assert torch.equal(grad[0, 1], torch.zeros(3, dtype=torch.float64)) and (grad[0, [0, 2, 3]] != 0).any()


def test_causal_positions_do_not_see_later_ones():
    layer = make(AIAAttention)
    x, elapsed, clusters = draw(1, 5, 3), draw(1, 5, seed=1).abs(), torch.tensor([[0, 1, 2, 1, 0]])
    run = lambda x: layer(x, elapsed, clusters, torch.ones(1, 5, dtype=torch.bool), causal=True)[0]  # noqa: E731
    seen = torch.autograd.functional.jacobian(run, x).abs().sum((2, 5)).squeeze() > 1e-9  # (output, input)
    assert torch.equal(seen, torch.ones(5, 5, dtype=torch.bool).tril())


def test_a_query_without_keys_gets_zeros_and_finite_gradients():
    layer = make(AIAAttention)
    x = draw(2, 3, 3).requires_grad_()
    mask = torch.tensor([[False, False, False], [False, True, True]])
    clusters = torch.tensor([[-1, -1, -1], [0, 1, 2]])
    h, lam = layer(x, torch.ones(2, 3, dtype=torch.float64), clusters, mask, causal=True)
    assert torch.equal(h[0], torch.zeros(3, 4, dtype=torch.float64)) and torch.equal(h[1, 0], h[0, 0])
    (h.sum() + lam.log().sum()).backward()
    assert torch.isfinite(x.grad).all() and all(torch.isfinite(p.grad).all() for p in layer.intensity.parameters())


def test_the_state_gives_rates_at_any_time():
    att, conv = make(AIAAttention), make(AIAConv)
    x, elapsed, clusters = draw(2, 4, 3), draw(2, 4, seed=1).abs(), torch.zeros(2, 4, dtype=torch.int64)
    ones = torch.ones(2, 4, dtype=torch.bool)
    _, lam, s = att(x, elapsed, clusters, ones, return_state=True)
    torch.testing.assert_close(att.intensity(s, elapsed), lam)
    torch.testing.assert_close(att.intensity(s, elapsed + 1), att(x, elapsed + 1, clusters, ones)[1])
    inputs = example()
    _, lam, s = conv(**inputs, return_state=True)
    torch.testing.assert_close(conv.intensity(s, inputs["elapsed"]), lam)


def test_cluster_weights_generalise_ids():
    conv, att, inputs = make(), make(AIAAttention), example()
    one_hot = torch.nn.functional.one_hot(inputs["clusters"], 3).double()
    torch.testing.assert_close(conv(**{**inputs, "clusters": one_hot}), conv(**inputs))
    mix = torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.float64).expand(5, 3)
    h, lam = conv(**{**inputs, "clusters": mix, "calendar": None})
    blend = 0.25 * lam[..., 0] + 0.75 * lam[..., 1]  # (N, H): every speaker has the same mixed rate
    _, _, s = conv(**{**inputs, "clusters": mix, "calendar": None}, return_state=True)
    torch.testing.assert_close(h.reshape(5, 2, 2), blend.unsqueeze(-1) * s)
    x, elapsed, ones = inputs["feat"][None], inputs["elapsed"][None], torch.ones(1, 5, dtype=torch.bool)
    torch.testing.assert_close(att(x, elapsed, one_hot[None], ones), att(x, elapsed, inputs["clusters"][None], ones))


def test_a_hidden_cluster_does_not_leak_into_the_query():
    """alpha uses the query's event type; -1 must give the same answer whatever the true type is."""
    layer = make(AIAAttention, beta=2.0)
    x, elapsed, calendar = draw(1, 3, 3), draw(1, 3, seed=1).abs(), draw(1, 3, CALENDAR_DIM, seed=2)
    mask = torch.tensor([[True, True, False]])
    run = lambda k: layer(x, elapsed, torch.tensor([[0, 1, k]]), mask, calendar=calendar)[0][0, 2]  # noqa: E731
    assert (run(0) - run(1)).abs().max() > 1e-3 and (run(0) - run(-1)).abs().max() > 1e-3
    with torch.no_grad():
        layer.types[:, -1] += 1.0
    assert torch.isfinite(run(-1)).all()


def test_switches():
    inputs = example()
    base, off = make(beta=1.0), make(beta=0.0)
    torch.testing.assert_close(off(**inputs), base(**{**inputs, "calendar": None}))
    assert (base(**inputs)[0] - off(**inputs)[0]).abs().max() > 1e-3
    blind = make(endogenous=False)
    lam = blind(**inputs)[1]
    lam2 = blind(**{**inputs, "feat": draw(5, 3, seed=7)})[1]
    assert torch.equal(lam, lam2)  # without endogenous dynamics the rates know only the clock
    inputs["elapsed"] = torch.ones(5, dtype=torch.float64)
    assert torch.equal(blind(**inputs)[1][0], blind(**inputs)[1][1])


def test_dependence_on_time_is_only_through_elapsed_calendar_and_edge_encoding():
    layer, inputs = make(), example(times=True)
    g, shift = inputs["graph"], 2 * math.pi * 10000 ** (2 / 3)
    later = em.TemporalGraph(g.src, g.dst, 5, times=g.times + 3.0)
    assert (layer(**inputs)[0] - layer(**{**inputs, "graph": later})[0]).abs().max() > 1e-4  # the encoding sees it
    without = {**inputs, "graph": em.TemporalGraph(g.src, g.dst, 5), "calendar": None}
    h = layer(**without)[0]
    with torch.no_grad():
        layer.intensity.b.zero_()
    still = layer(**without)[0]
    assert (h - still).abs().max() > 1e-4
    torch.testing.assert_close(layer(**{**without, "elapsed": without["elapsed"] + shift})[0], still)


@pytest.mark.parametrize("score", KINDS)
@pytest.mark.parametrize("cls", [AIAConv, AIAAttention])
def test_gradients_meet_finite_differences_for_every_parameter(cls, score):
    layer = make(cls, in_feats=2, out_feats=2, num_heads=2, num_clusters=2, score=score, type_dim=2)
    names = [name for name, _ in layer.named_parameters()]
    n = 3
    x, elapsed = draw(n, 2).requires_grad_(), (draw(n, seed=1).abs() + 0.1).requires_grad_()
    query, calendar = draw(n, 2, seed=3).requires_grad_(), draw(n, CALENDAR_DIM, seed=4)
    clusters, graph = (
        torch.tensor([0, 1, 1]),
        em.TemporalGraph([0, 1, 2, 0], [1, 1, 0, 2], n, times=[1.0, 2.0, 3.0, 4.0]),
    )

    def run(x, elapsed, query, *parameters):
        if cls is AIAConv:
            args = (graph, x, elapsed, clusters, query, calendar)
        else:
            args = (
                x[None],
                elapsed[None],
                clusters[None],
                torch.ones(1, n, dtype=torch.bool),
                query[None],
                calendar[None],
            )
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), args)

    with em.use_backend("torch"):
        assert torch.autograd.gradcheck(run, (x, elapsed, query, *layer.parameters()))


@pytest.mark.skipif(dgl is None, reason="DGL is not installed")
@pytest.mark.parametrize("score", KINDS)
def test_both_backends_have_the_same_gradients(score):
    layer, inputs = make(score=score), example(times=True)
    results = []
    for backend in ("torch", "dgl"):
        with em.use_backend(backend):
            h, lam = layer(**inputs)
            results.append(torch.autograd.grad(h.square().sum() + lam.sum(), layer.parameters(), allow_unused=True))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_float32_agrees_with_float64(backend):
    layer, inputs = make(), example()
    h, lam = layer(**inputs)
    single = {k: v.float() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in inputs.items()}
    with em.use_backend(backend):
        h32, lam32 = layer.float()(**single)
    assert h32.dtype == lam32.dtype == torch.float32
    torch.testing.assert_close(h32.double(), h, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(lam32.double(), lam, atol=1e-4, rtol=1e-4)


# ------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clusters": torch.tensor([0, 1, 3, 1, 0])}, r"clusters\[2\] is 3; expected an id in 0 … 2"),
        ({"clusters": torch.tensor([0, -2, 1, 1, 0])}, r"clusters\[1\] is -2"),
        ({"clusters": torch.tensor([0, 1])}, "clusters must be whole numbers of shape"),
        ({"clusters": torch.full((5, 3), 0.5)}, r"clusters\[0\] is \[0.5, 0.5, 0.5\]; expected weights"),
        ({"clusters": torch.tensor([0, 1, -1, 1, 0])}, r"clusters\[2\] is hidden, but edge 2 leaves"),
        ({"elapsed": torch.tensor([0.0, 1.0, -1.0, 0.0, 0.0])}, r"elapsed\[2\] is -1"),
        ({"elapsed": torch.tensor([0.0, float("nan"), 1.0, 0.0, 0.0])}, r"elapsed\[1\] is nan"),
        ({"elapsed": torch.zeros(4)}, r"elapsed must have shape \(5,\)"),
        ({"feat": torch.zeros(5, 2).double()}, "feat must be 3 wide"),
        (
            {"feat": torch.zeros(4, 3).double(), "elapsed": torch.zeros(4), "calendar": None},
            "feat must have one row per node",
        ),
        ({"query": torch.zeros(5, 2).double()}, "query must have the shape of feat"),
        ({"calendar": torch.zeros(5, 3).double()}, "calendar must have shape"),
        ({"graph": "roads"}, "graph must be"),
    ],
)
def test_bad_input_to_the_graph_layer_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        make()(**{**example(), **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key_mask": torch.ones(2, 4)}, "key_mask must be boolean"),
        ({"key_mask": torch.ones(2, 3, dtype=torch.bool)}, "key_mask must be boolean"),
        ({"clusters": torch.tensor([[0, 1, 2, 0], [0, 1, 5, 0]])}, r"clusters\[1, 2\] is 5"),
        ({"clusters": torch.tensor([[0, 1, 2, 0], [0, 1, -1, 0]])}, r"clusters\[1, 2\] is hidden"),
        ({"elapsed": torch.tensor([[0.0, 1, 2, 0], [0, 1, -5, 0]])}, r"elapsed\[1, 2\] is -5"),
        ({"x": torch.zeros(2, 4, 7).double()}, "x must be 3 wide"),
    ],
)
def test_bad_input_to_the_sequence_layer_is_named(change, message):
    good = {
        "x": draw(2, 4, 3),
        "elapsed": torch.ones(2, 4),
        "clusters": torch.zeros(2, 4, dtype=torch.int64),
        "key_mask": torch.ones(2, 4, dtype=torch.bool),
    }
    with pytest.raises(ValueError, match=message):
        make(AIAAttention)(**{**good, **change})


def test_bad_sizes_are_named():
    for args, message in [
        ((3, 5, 2, 3), "out_feats must be divisible by num_heads"),
        ((0, 4, 2, 3), "in_feats"),
        ((3, 4, 2, 0), "num_clusters"),
        ((3, 4, 0, 3), "num_heads"),
    ]:
        with pytest.raises(ValueError, match=message):
            AIAConv(*args)
    with pytest.raises(ValueError, match="score"):
        AIAConv(3, 4, 2, 3, score="cosine")
