"""The plain layers against DGL's, and the three encoders of the paper's supplement."""

import pytest
import torch

import easydgl_mini as em
from easydgl_mini.encode import CALENDAR_DIM, GATConv, LinkEncoder, NodeEncoder, SAGEConv, TrafficEncoder, time_encoding

try:
    import dgl.nn.pytorch as dglnn
except ImportError:
    dglnn = None

needs_dgl = pytest.mark.skipif(dglnn is None, reason="DGL is not installed")
BACKENDS = ["torch", pytest.param("dgl", marks=needs_dgl)]


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def a_graph(weights=False):
    w = draw(6, seed=4).abs() if weights else None
    return em.TemporalGraph([0, 1, 2, 3, 3, 0], [1, 1, 0, 2, 2, 2], 5, weights=w)  # node 3 and 4 hear nobody


@needs_dgl
@pytest.mark.parametrize("backend", BACKENDS)
def test_gatconv_equals_dgl(backend):
    ours = GATConv(3, 8, num_heads=2).double()
    theirs = dglnn.GATConv(3, 4, 2, allow_zero_in_degree=True).double()
    with torch.no_grad():
        ours.bias.normal_()
        theirs.fc.weight.copy_(ours.fc.weight)
        theirs.attn_r[0].copy_(ours.a[:, :4])  # the destination's half
        theirs.attn_l[0].copy_(ours.a[:, 4:])
        theirs.bias.copy_(ours.bias)
    x = draw(5, 3)
    with em.use_backend(backend):
        torch.testing.assert_close(ours(a_graph(), x), theirs(a_graph().to_dgl(), x).reshape(5, 8))


@needs_dgl
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weights", [False, True])
def test_sageconv_equals_dgl(backend, weights):
    ours, theirs = SAGEConv(3, 4).double(), dglnn.SAGEConv(3, 4, "mean").double()
    theirs.load_state_dict(ours.state_dict())
    graph, x = a_graph(weights), draw(5, 3)
    g = graph.to_dgl()
    expected = theirs(g, x, edge_weight=g.edata["weight"] if weights else None)
    with em.use_backend(backend):
        torch.testing.assert_close(ours(graph, x), expected)


def test_sageconv_by_hand():
    layer = SAGEConv(1, 1)
    with torch.no_grad():
        layer.fc_self.weight.fill_(1.0)
        layer.fc_self.bias.fill_(0.5)
        layer.fc_neigh.weight.fill_(10.0)
    graph = em.TemporalGraph([1, 2], [0, 0], 3, weights=[1.0, 3.0])
    assert layer(graph, torch.tensor([[1.0], [2.0], [4.0]])).squeeze().tolist() == [1.5 + 10 * (2 + 12) / 2, 2.5, 4.5]


def link_encoder(**kwargs):
    torch.manual_seed(0)
    encoder = LinkEncoder(torch.tensor([0, 1, 2, 0, 1, 2]), dim=8, **kwargs).double()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(std=0.5)
    return encoder


def a_history():
    item = torch.tensor([[-1, 0, 3, 5], [1, 2, 4, 0]])
    time = torch.tensor([[0.0, 1.0, 2.5, 4.0], [0.5, 1.5, 1.5, 9.0]], dtype=torch.float64)
    elapsed = torch.tensor([[0.0, 0.0, 1.5, 1.5], [0.0, 1.0, 0.0, 7.5]], dtype=torch.float64)
    return item, time, elapsed, item >= 0


def test_link_encoder_has_the_papers_two_layers_and_two_heads():
    encoder = LinkEncoder(torch.tensor([0, 1, 2]))
    assert len(encoder.layers) == 2 and encoder.layers[0].num_heads == 2 and encoder.layers[0].num_clusters == 3


@pytest.mark.parametrize("num_places", [0, 3, 4])
def test_padding_changes_nothing(num_places):
    """Places are counted from the end, and those beyond the last known take the oldest's."""
    encoder, (item, time, elapsed, mask) = link_encoder(num_places=num_places), a_history()
    h, lam, s = encoder(item, time, elapsed, mask)
    short = encoder(item[:1, 1:], time[:1, 1:], elapsed[:1, 1:], mask[:1, 1:])
    for a, b in ((h[:1, 1:], short[0]), (lam[:1, :, 1:], short[1]), (s[:1, :, 1:], short[2])):
        torch.testing.assert_close(a, b)


def test_a_hidden_item_cannot_be_read_from_its_own_position_or_any_other():
    encoder, (item, time, elapsed, mask) = link_encoder(), a_history()
    hidden = torch.tensor([[False, False, True, False], [False, False, False, True]])
    calendar = draw(2, 4, CALENDAR_DIM)
    other = item.clone()
    other[hidden] = torch.tensor([1, 2])
    a = encoder(item, time, elapsed, mask, hidden, calendar)
    b = encoder(other, time, elapsed, mask, hidden, calendar)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not torch.equal(a[0], encoder(item, time, elapsed, mask, None, calendar)[0])


def test_times_enter_by_their_encoding():
    """One layer, written out: 3 (item + cluster) + encoding of time, then AIA and the feed-forward map."""
    encoder, (item, time, elapsed, mask) = link_encoder(item_scale=3.0), a_history()
    h = encoder(item, time, elapsed, mask)[0][mask]
    moved = encoder(item, time + torch.pi, elapsed, mask)[0][mask]
    assert (moved - h).abs().amin(0).max() > 1e-3
    x = encoder.items(item.clamp_min(0)) + encoder.clusters(encoder.item_clusters[item.clamp_min(0)])
    x = 3 * x + time_encoding(time, 8)
    first = encoder.layers[0](x[1:], elapsed[1:], encoder.item_clusters[item[1:]], mask[1:])[0]
    with torch.no_grad():
        encoder.layers, encoder.mixers = encoder.layers[:1], encoder.mixers[:1]
        y = encoder.norms[0](x[1:] + first)
        expected = encoder.norms[1](y + encoder.mixers[0](y))
        torch.testing.assert_close(encoder(item, time, elapsed, mask)[0][1:], expected)


def test_places_are_added_to_the_items_and_tell_simultaneous_events_apart():
    item, time, elapsed, mask = (x[1:].clone() for x in a_history())
    item, elapsed = torch.tensor([[1, 2, 4, 0]]), torch.zeros_like(elapsed)
    time = torch.full_like(time, 2.0)
    plain, counting = link_encoder(), link_encoder(num_places=3)
    exchanged = item[:, [0, 2, 1, 3]]
    for encoder, same in ((plain, True), (counting, False)):
        last, other = (encoder(which, time, elapsed, mask)[0][0, -1] for which in (item, exchanged))
        assert torch.allclose(last, other, atol=1e-12) == same
    with torch.no_grad():  # written out: 3 (item + place), the places 2, 2, 1, 0 from the first on
        counting.item_scale = 3.0
        expected = counting(item, time, elapsed, mask)[0]
        counting.items.weight = torch.nn.Parameter(
            counting.items.weight[item[0]] + counting.places.weight[[2, 2, 1, 0]]
        )
        counting.item_clusters, counting.places = counting.item_clusters[item[0]], None
        torch.testing.assert_close(counting(torch.tensor([[0, 1, 2, 3]]), time, elapsed, mask)[0], expected)


def test_a_hidden_position_has_its_place_too():
    encoder, (item, time, elapsed, mask) = link_encoder(num_places=4), (x[:1] for x in a_history())
    hidden = torch.tensor([[False, False, True, False]])
    before = encoder(item, time, elapsed, mask, hidden)[0]
    with torch.no_grad():
        encoder.places.weight[1] += 1.0  # the last but one; hidden, so nobody's key
    moved = (encoder(item, time, elapsed, mask, hidden)[0] - before).abs().amax(-1) > 1e-6
    assert moved.tolist() == [[False, False, True, False]]


def test_places_leave_the_other_weights_where_they_start():
    plain, counting = (torch.manual_seed(3) and LinkEncoder(torch.tensor([0, 1, 2]), num_places=n) for n in (0, 5))
    theirs = dict(counting.named_parameters())
    assert theirs.pop("places.weight").shape == (5, 64) and theirs.keys() == dict(plain.named_parameters()).keys()
    assert all(torch.equal(theirs[name], parameter) for name, parameter in plain.named_parameters())


def test_a_hidden_position_has_an_event_type_of_its_own():
    encoder, (item, time, elapsed, mask) = link_encoder(), a_history()
    hidden = torch.tensor([[False, False, True, False], [False, False, False, True]])
    run = lambda: encoder(item, time, elapsed, mask, hidden, draw(2, 4, CALENDAR_DIM))[0]  # noqa: E731
    before = run()
    with torch.no_grad():
        encoder.layers[-1].types[:, -1] += 1.0  # the last one: the hidden type
    moved = (run() - before).abs().sum(-1) > 1e-9
    assert torch.equal(moved & mask, hidden)


def test_causal_link_encoder_does_not_see_the_future():
    encoder, (item, time, elapsed, mask) = link_encoder(), a_history()
    h, lam, _ = encoder(item, time, elapsed, mask, causal=True)
    later = (item.clone(), time.clone(), elapsed.clone())
    later[0][1, 3], later[1][1, 3], later[2][1, 3] = 5, 20.0, 18.5
    h2, lam2, _ = encoder(*later, mask, causal=True)
    assert torch.equal(h[1, :3], h2[1, :3]) and torch.equal(lam[1, :, :3], lam2[1, :, :3])
    assert not torch.equal(h[1, 3], h2[1, 3])


def test_only_the_last_layer_sees_last_elapsed():
    encoder, (item, time, elapsed, mask) = link_encoder(), a_history()
    h, lam, state = encoder(item, time, elapsed, mask, causal=True)
    later = elapsed + 2.0
    h2, lam2, state2 = encoder(item, time, elapsed, mask, causal=True, last_elapsed=later)
    torch.testing.assert_close(state, state2)  # the state does not move between events
    torch.testing.assert_close(lam2, encoder.layers[-1].intensity(state, later))
    assert (h2 - h).abs().max() > 1e-3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("cls", "plain", "heads"), [(NodeEncoder, GATConv, 2), (TrafficEncoder, SAGEConv, 8)])
def test_graph_encoders_are_two_plain_layers_and_one_aia(backend, cls, plain, heads):
    encoder = cls(in_feats=3, num_clusters=2, dim=16).double()
    assert [type(layer) for layer in encoder.layers] == [plain, plain] and encoder.aia.num_heads == heads
    graph, feat, elapsed, clusters = a_graph(), draw(5, 3), draw(5, seed=1).abs(), torch.tensor([0, 1, 1, 0, 1])
    with em.use_backend(backend):
        h, lam = encoder(graph, feat, elapsed, clusters, at=7.0)
        x = torch.relu(encoder.layers[1](graph, torch.relu(encoder.layers[0](graph, feat))))
        ask = x + time_encoding(torch.full((5,), 7.0, dtype=torch.float64), 16)
        out, expected_lam = encoder.aia(graph, x, elapsed, clusters, query=ask)
        torch.testing.assert_close(h, torch.relu(x + out))
        torch.testing.assert_close(lam, expected_lam)
        other, _ = encoder(graph, feat, elapsed, clusters, at=8.0)
    assert (other - h).abs().max() > 1e-9


@pytest.mark.parametrize("cls", [NodeEncoder, TrafficEncoder])
def test_a_label_given_as_query_cannot_travel_on_the_residual_path(cls):
    """Equal values and clusters at all keys: weights can't matter, so a query that holds a label can't either."""
    encoder = cls(in_feats=3, num_clusters=2, dim=16).double()
    feat, clusters = draw(1, 3).expand(5, 3), torch.zeros(5, dtype=torch.int64)
    graph = em.TemporalGraph([0, 1, 2, 3, 4], [1, 2, 3, 4, 0], 5)  # everyone has one neighbour: all stay equal
    a, _ = encoder(graph, feat, torch.ones(5, dtype=torch.float64), clusters, query=draw(5, 16))
    b, _ = encoder(graph, feat, torch.ones(5, dtype=torch.float64), clusters, query=draw(5, 16, seed=1))
    torch.testing.assert_close(a, b)


def test_layer_switches_reach_the_layer():
    encoder = NodeEncoder(3, 2, dim=16, score="gatv2", modulate=False, endogenous=False, beta=0.0)
    assert (encoder.aia.score, encoder.aia.modulate, encoder.aia.beta) == ("gatv2", False, 0.0)
    assert not encoder.aia.intensity.endogenous
