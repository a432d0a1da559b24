"""Graph models without time: the layers against DGL's and dense matrices, and the three tasks they are used for."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import easydgl_mini as em
from easydgl_mini.baselines import REGISTRY, static
from easydgl_mini.baselines.static import LAYERS, TITLES, APPNPConv, ARMAConv, ChebConv, SGConv, StaticEncoder
from easydgl_mini.events import Histories
from easydgl_mini.train.link import RankingTask, Windows
from easydgl_mini.train.node import graph_of, union, with_loops

try:
    import dgl
    import dgl.nn.pytorch as dglnn
except ImportError:
    dglnn = None

needs_dgl = pytest.mark.skipif(dglnn is None, reason="DGL is not installed")
BACKENDS = ["torch", pytest.param("dgl", marks=needs_dgl)]
KINDS = list(TITLES)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def a_graph(weights=False):
    """Directed, with a double edge; node 3 hears nobody, node 4 is alone."""
    w = draw(6, seed=4).abs() if weights else None
    return em.TemporalGraph([0, 1, 2, 3, 3, 0], [1, 1, 0, 2, 2, 2], 5, weights=w)


def scrambled(module, seed=1):
    """The module in float64 with random parameters and, where it has them, random statistics."""
    module = module.double().eval()
    for n, x in enumerate([*module.parameters(), *module.buffers()]):
        if x.is_floating_point():
            x.data.copy_(
                draw(*x.shape, seed=seed + n).abs() + 0.1 if x in set(module.buffers()) else draw(*x.shape, seed=n)
            )
    return module


def dense(graph, loops=True):
    """D^{-1/2} (A + I) D^{-1/2} by NumPy, row = who hears."""
    A = np.zeros((graph.num_nodes, graph.num_nodes))
    weights = np.ones(graph.num_edges) if graph.weights is None else graph.weights.numpy()
    np.add.at(A, (graph.dst.numpy(), graph.src.numpy()), weights)
    A += np.eye(len(A)) * loops
    d = np.maximum(A.sum(1), 1e-12) ** -0.5
    return d[:, None] * A * d


# --- the layers


@needs_dgl
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weights", [False, True])
def test_sgconv_equals_dgl(backend, weights):
    ours, theirs = SGConv(3, 4).double(), dglnn.SGConv(3, 4, k=2, allow_zero_in_degree=True).double()
    theirs.fc.load_state_dict(ours.fc.state_dict())
    graph, x = a_graph(weights), draw(5, 3)
    with em.use_backend(backend):
        torch.testing.assert_close(ours(graph, x), theirs(graph.to_dgl(), x, edge_weight=graph.weights))


@needs_dgl
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_chebconv_equals_dgl(backend, hops):
    ours, theirs = ChebConv(3, 4, hops).double(), dglnn.ChebConv(3, 4, hops + 1, activation=None).double()
    theirs.linear.load_state_dict(ours.linear.state_dict())
    x = draw(5, 3)
    with em.use_backend(backend):
        torch.testing.assert_close(ours(a_graph(), x), theirs(a_graph().to_dgl(), x, lambda_max=[2]))


@needs_dgl
@pytest.mark.parametrize("backend", BACKENDS)
def test_appnpconv_equals_dgl(backend):
    ours, theirs, x = APPNPConv(3, 4), dglnn.APPNPConv(10, 0.1), draw(5, 3).float()
    with em.use_backend(backend):
        torch.testing.assert_close(ours(a_graph(), x), theirs(a_graph().to_dgl(), ours.fc(x)))
    weighted = a_graph(weights=True)
    torch.testing.assert_close(
        ours(weighted, x), theirs(weighted.to_dgl(), ours.fc(x), edge_weight=weighted.weights.float())
    )


def mirrored(pairs, num_nodes, weights):
    """Each pair an edge both ways, of one weight; a weight of its own for each pair, or none."""
    (a, b), w = torch.tensor(pairs).T, draw(len(pairs), seed=6).abs() + 0.1
    return em.TemporalGraph(
        torch.cat([a, b]), torch.cat([b, a]), num_nodes, weights=torch.cat([w, w]) if weights else None
    )


@pytest.mark.parametrize("weights", [False, True])
def test_chebyshev_polynomials_are_cosines(weights):
    """T_k(x) = cos(k arccos x), of the eigenvalues of -Â: another way to the same filter."""
    graph = mirrored([(0, 1), (1, 2), (3, 0)], 4, weights)
    layer, x = ChebConv(3, 2, hops=3).double(), draw(4, 3)
    values, vectors = np.linalg.eigh(-dense(graph, loops=False))
    parts = [vectors @ np.diag(np.cos(k * np.arccos(values.clip(-1, 1)))) @ vectors.T @ x.numpy() for k in range(4)]
    expected = layer.linear(torch.from_numpy(np.concatenate(parts, 1)))
    torch.testing.assert_close(layer(graph, x), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weights", [False, True])
def test_armaconv_by_dense_matrices(backend, weights):
    """One stack after the other, two steps each, the second with its own weights, the input let in again each time."""
    layer, x = scrambled(ARMAConv(3, 4, stacks=3, steps=2)), draw(5, 3).numpy()
    plain = mirrored([(0, 1), (2, 3), (3, 1)], 5, weights)
    graph, A, stacks = with_loops(plain), dense(plain, loops=True), []
    for s in range(3):
        V, b = layer.V[s].detach().numpy(), layer.bias[s].detach().numpy()
        h = x
        for W in layer.W:
            h = np.tanh(A @ h @ W[s].detach().numpy() + x @ V + b)
        stacks.append(h)
    with em.use_backend(backend):
        ours = layer(graph, torch.from_numpy(x))
    torch.testing.assert_close(ours, torch.from_numpy(np.mean(stacks, 0)))


def test_appnp_tends_to_personalised_pagerank():
    """α (I - (1 - α) Â)^{-1} H: what the steps sum up."""
    layer, x = APPNPConv(3, 4, steps=200, alpha=0.1).double(), draw(4, 3)
    graph = mirrored([(0, 1), (1, 2), (3, 0)], 4, weights=True)
    limit = 0.1 * np.linalg.solve(np.eye(4) - 0.9 * dense(graph, loops=True), layer.fc(x).detach().numpy())
    torch.testing.assert_close(layer(with_loops(graph), x).detach(), torch.from_numpy(limit))


# --- the recipe of the supplement


@needs_dgl
@pytest.mark.parametrize("kind", ["gat", "sage", "gcn", "chebynet", "appnp"])
def test_the_recipe_with_dgls_layers(kind):
    """Self-loops, as many layers as the supplement says, batch normalisation, its activation: layer by layer in DGL."""
    ours, x, graph = StaticEncoder(kind, 3, 8, num_heads=4), draw(5, 3).float(), a_graph()
    ours = scrambled(ours).float()
    g, h = dgl.add_self_loop(graph.to_dgl()), x
    assert len(ours.layers) == (2 if kind == "sage" else 1)
    for layer, norm in zip(ours.layers, ours.norms, strict=True):
        if kind == "gat":
            theirs = dglnn.GATConv(3, 2, 4)
            state = {"fc.weight": layer.fc.weight, "bias": layer.bias}
            state |= {"attn_r": layer.a[:, :2].unsqueeze(0), "attn_l": layer.a[:, 2:].unsqueeze(0)}
            theirs.load_state_dict(state)
            h = theirs(g, h).flatten(1)
        elif kind == "sage":
            theirs = dglnn.SAGEConv(h.shape[1], 8, "mean")
            theirs.load_state_dict(layer.state_dict())
            h = theirs(g, h)
        elif kind == "gcn":
            theirs = dglnn.SGConv(3, 8, k=2)
            theirs.fc.load_state_dict(layer.fc.state_dict())
            h = theirs(g, h)
        elif kind == "chebynet":
            theirs = dglnn.ChebConv(3, 8, 3, activation=None)
            theirs.linear.load_state_dict(layer.linear.state_dict())
            h = theirs(g, h, lambda_max=[2])
        else:
            h = dglnn.APPNPConv(10, 0.1)(g, layer.fc(h))
        h = (h - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
        h = torch.tanh(h) if kind == "gat" else F.relu(h)
    torch.testing.assert_close(ours(graph, x), h, rtol=1e-4, atol=1e-4)


def test_arma_has_a_tanh_and_one_node_trains():
    encoder = scrambled(StaticEncoder("arma", 3, 8))
    assert (encoder(a_graph(), 9 * draw(5, 3)).abs() <= 1).all()
    lonely = StaticEncoder("gcn", 3, 8).train()(em.TemporalGraph([0], [0], 1), torch.ones(1, 3))
    assert torch.isfinite(lonely).all()


@pytest.mark.parametrize("kind", KINDS)
def test_renaming_nodes_renames_the_output(kind):
    encoder, graph, x = scrambled(StaticEncoder(kind, 3, 8)), a_graph(weights=kind != "gat"), draw(5, 3)
    new = torch.tensor([3, 0, 4, 1, 2])  # node n is now called new[n]
    renamed = em.TemporalGraph(new[graph.src], new[graph.dst], 5, weights=graph.weights)
    moved = torch.empty_like(x)
    moved[new] = x
    out = encoder(graph, x)
    torch.testing.assert_close(encoder(renamed, moved)[new], out)
    assert (out[0] - out[1]).abs().max() > 1e-3


def test_registry():
    for kind, title in TITLES.items():
        assert REGISTRY[kind].title == title and set(REGISTRY[kind].tasks) == {"node", "link", "traffic"}
        assert {REGISTRY[kind](task).kind for task in ("node", "link", "traffic")} == {kind}
    assert REGISTRY["gat"]("link").num_heads == 4 and REGISTRY["gcn"]("traffic").window == 1
    with pytest.raises(ValueError, match="task must be one of"):
        REGISTRY["popularity"]("traffic")


# --- nodes


def chain(length=16):
    """A path whose far end lies beyond everybody's hearing, one step each."""
    src = np.arange(length - 1)
    rng = np.random.default_rng(0)
    return SimpleNamespace(
        graph=em.TemporalGraph(src, src + 1, length, times=src + 0.5),
        features=rng.standard_normal((length, 3)).astype(np.float32),
        labels=rng.integers(0, 3, length),
        step=np.arange(length),
    )


@pytest.mark.parametrize("kind", [*KINDS, "tgat", "tgn"])
def test_what_a_snapshot_leaves_out_is_not_heard(kind):
    """The last node of a path, asked with the nodes that ``hops`` edges lead from, and with all of them."""
    data, model = chain(), REGISTRY[kind]("node", dim=8)
    net = scrambled(model._build(in_feats=3))
    everyone = SimpleNamespace(**vars(data) | {"step": np.full(16, 15)})
    part, whole = (
        s | {"features": s["features"].double()} for d in (data, everyone) for s in model._snapshots(d, [15])
    )
    assert len(part["nodes"]) == model.hops + 1 < 16 == len(whole["nodes"])
    torch.testing.assert_close(net(part)[-1], net(whole)[-1], rtol=1e-12, atol=1e-12)
    if kind not in KINDS:  # a clock has no degrees
        return
    away = LAYERS[kind][3] - (kind not in ("gat", "sage"))  # hops of features; the last hop may be for degrees
    moved = part | {"features": part["features"] + torch.eye(len(part["nodes"]))[:, [-1 - away]]}
    assert (net(moved)[-1] - net(part)[-1]).abs().max() > 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_nodes_beat_the_majority(kind):
    """Margin: macro-F1 0.1 above the majority's, every transaction labelled, four steps before the change."""
    world = em.simulate.ledger("tiny")
    world = dataclasses.replace(world, labels=world.truth.label)
    model = REGISTRY[kind]("node", num_classes=2, epochs=6, lr=1e-2, balance=0.5).fit(world, 34, 38)
    majority = REGISTRY["majority"]("node", num_classes=2).fit(world, 34, 38).score(world, (39, 42))
    assert model.score(world, (39, 42))["macro_f1"] > majority["macro_f1"] + 0.1


def test_edge_times_do_not_matter():
    world = em.simulate.ledger("tiny")
    model = REGISTRY["arma"]("node", epochs=1).fit(world)
    late = em.TemporalGraph(world.graph.src, world.graph.dst, 6000, times=world.step[world.graph.src] + 0.9)
    torch.testing.assert_close(model.predict(dataclasses.replace(world, graph=late)), model.predict(world))


# --- links


def test_item_graph_by_hand():
    """Items 0 and 1 share two users of two and three; 2 shares one with 1; nobody has 3."""
    log = em.EventLog([0, 0, 0, 1, 1, 2, 2], [0, 1, 0, 0, 1, 1, 2], np.arange(7.0), num_items=4)
    found = {(int(a), int(b)): w for a, b, w in zip(*static.item_graph(log), strict=True)}
    assert found == pytest.approx(
        {(0, 1): 2 / 6**0.5, (1, 0): 2 / 6**0.5, (1, 2): 1 / 3**0.5, (2, 1): 1 / 3**0.5}, rel=1e-6
    )
    one = {(int(a), int(b)) for a, b, _ in zip(*static.item_graph(log, neighbours=1), strict=True)}
    assert one == {(0, 1), (1, 0), (1, 2), (2, 1)}  # 2 hears 1, so 1, whose strongest is 0, hears 2
    small = static.item_graph(log, block=1)
    assert all(np.array_equal(a, b) for a, b in zip(small, static.item_graph(log), strict=True))


def test_an_item_hears_its_strongest_neighbours():
    rng = np.random.default_rng(0)
    log = em.EventLog(rng.integers(0, 60, 900), rng.integers(0, 40, 900), rng.random(900), num_items=40)
    R = np.zeros((40, 60))
    R[log.item, log.user] = 1
    cosine = R @ R.T / np.sqrt(np.outer(R.sum(1), R.sum(1)))
    np.fill_diagonal(cosine, 0)
    src, dst, weights = static.item_graph(log, neighbours=5)
    kept = np.zeros((40, 40))
    kept[dst, src] = weights
    np.testing.assert_allclose(np.sort(kept, 1)[:, -5:], np.sort(cosine, 1)[:, -5:], atol=1e-6)
    np.testing.assert_allclose(kept[kept > 0], cosine[kept > 0], atol=1e-6)
    fifth = np.sort(cosine, 1)[:, -5] - 1e-6
    assert np.array_equal(kept, kept.T) and (cosine >= np.minimum(fifth[:, None], fifth))[kept > 0].all()


def test_the_item_graph_knows_training_users_only():
    log = em.simulate.bazaar("tiny").events
    train, valid = log.split_users((9, 1), 0)
    other = em.EventLog(
        np.concatenate([train.user, valid.user]),
        np.concatenate([train.item, np.zeros_like(valid.item)]),
        np.concatenate([train.time, valid.time]),
        num_items=log.num_items,
    )
    one, two = (REGISTRY["gcn"]("link", dim=8, epochs=1).fit(data).model_ for data in (log, other))
    assert all(torch.equal(getattr(one, name), getattr(two, name)) for name in ("src", "dst", "weights", "bias"))


def bag():
    return scrambled(static.StaticItems("gcn", 6, 4, 8, 4, 0.0))


def rows(item):
    item = torch.as_tensor(item)
    zeros = torch.zeros(item.shape, dtype=torch.float64)
    return Histories(torch.arange(len(item)), item, zeros, zeros, item >= 0)


def test_a_user_is_the_mean_of_what_is_told():
    model, hidden = bag(), torch.tensor([[False, False, True, False]])
    model.src.copy_(torch.tensor([0, 1, 2, 3]))
    model.dst.copy_(torch.tensor([1, 0, 3, 2]))
    h = model(rows([[-1, 4, 2, 0]]), hidden)
    graph = em.TemporalGraph(model.src, model.dst, 6, weights=model.weights)
    z = model.encoder(graph, model.items.weight)
    torch.testing.assert_close(h[0, 2], (z[4] + z[0]) / 2)
    assert torch.equal(h[0, 2], model(rows([[-1, 4, 5, 0]]), hidden)[0, 2])  # what is hidden is not told
    torch.testing.assert_close(model.scores(h[0, 2]), h[0, 2] @ model.items.weight.T + model.bias)
    assert (model(rows([[-1, -1, -1, -1]]), hidden) == 0).all()
    other = {name: x.clone() for name, x in model.state_dict().items()}
    other["dst"] = torch.tensor([2, 3, 0, 1])
    model.load_state_dict(other)  # the edges that were loaded are the ones that count
    z = model.encoder(em.TemporalGraph(other["src"], other["dst"], 6, weights=model.weights), model.items.weight)
    torch.testing.assert_close(model(rows([[-1, 4, 2, 0]]), hidden)[0, 2], (z[4] + z[0]) / 2)


def test_one_softmax_per_window_is_the_loss_of_each_position():
    log = em.simulate.bazaar("tiny").events
    settings = REGISTRY["sage"]("link", dim=8, max_len=10, mask_rate=0.4)
    settings._start(log)
    model, pieces, ids = settings.model_.eval(), Windows(log, 10), torch.arange(40)
    ours, theirs = (task(settings).loss(model, pieces, ids, 0, 0)["loss"] for task in (static.BagTask, RankingTask))
    torch.testing.assert_close(ours[0], theirs[0])
    assert ours[1] == theirs[1] > 50


def shop(users=300, events=12):
    """Three tastes of twenty items each; a user stays with theirs four times in five."""
    rng = np.random.default_rng(0)
    shelf = np.where(
        rng.random((users, events)) < 0.8, rng.integers(0, 3, (users, 1)), rng.integers(0, 3, (users, events))
    )
    item = 20 * shelf + rng.integers(0, 20, (users, events))
    who, when = np.repeat(np.arange(users), events), np.tile(np.arange(events, dtype=float), users)
    return em.EventLog(who, item.reshape(-1), when, num_items=60)


@pytest.mark.parametrize("kind", KINDS)
def test_links_find_tastes(kind):
    """Margin: three times popularity's NDCG@10, on users that training did not see."""
    train, valid, test = shop().split_users((70, 5, 25))
    model = REGISTRY[kind]("link", dim=16, lr=1e-2, batch_size=32, epochs=5).fit(train, valid)
    popular = REGISTRY["popularity"]("link").fit(train).score(test)
    assert model.score(test)["ndcg@10"] > 3 * popular["ndcg@10"]


def test_links_beat_popularity_on_bazaar():
    """Margin: 3 % in NDCG@100. What is planted there are sessions, of which the mean of eight items keeps little."""
    train, valid, test = em.simulate.bazaar("small").events.split_users((70, 5, 25))
    settings = {"dim": 16, "lr": 5e-3, "batch_size": 256, "epochs": 3, "max_len": 8}
    model = REGISTRY["gcn"]("link", **settings).fit(train, valid)
    popular = REGISTRY["popularity"]("link").fit(train).score(test)
    assert model.score(test)["ndcg@100"] > 1.03 * popular["ndcg@100"]


def test_a_users_order_does_not_matter():
    log = em.simulate.bazaar("tiny").events
    model = REGISTRY["appnp"]("link", dim=8, epochs=1).fit(log)
    a = model.predict(([3, 50, 7], [0.0, 1.0, 2.0]), at=3.0)
    torch.testing.assert_close(a, model.predict(([7, 3, 50], [0.0, 5.0, 9.0]), at=99.0))
    assert (a - model.predict(([7, 3, 51], [0.0, 5.0, 9.0]), at=99.0)).abs().max() > 1e-5


# --- roads


@pytest.fixture(scope="module")
def freeway():
    return em.simulate.freeway("tiny")


@pytest.mark.parametrize("kind", KINDS)
def test_roads_beat_the_last_value(kind, freeway):
    """Margin: mean absolute error at least 10 % below the last reading's, at every horizon."""
    scores = REGISTRY[kind]("traffic", lr=1e-2, schedule="cosine", epochs=2).fit(freeway).score(freeway)
    last = REGISTRY["last_value"]("traffic").fit(freeway).score(freeway)
    assert all(scores[f"mae@{h}"] < 0.9 * last[f"mae@{h}"] for h in (3, 6, 9, 12))


def test_roads_of_a_batch_do_not_hear_each_other(freeway):
    model = REGISTRY["sage"]("traffic", epochs=1, batch_size=256).fit(freeway).model_
    part = model.prepare(torch.as_tensor(freeway.readings, dtype=torch.float32), freeway.times)
    seen, there = part[0][[100, 500]].unsqueeze(1), part[1][[100, 500]].unsqueeze(1).float()
    clock = model.clock(part[4][[100, 500]])
    with torch.no_grad():
        both = model(seen, there, clock)
        torch.testing.assert_close(both[1:], model(seen[1:], there[1:], clock[1:]))
        weekend = clock + torch.tensor([0.0, 5.0]) - clock * torch.tensor([0.0, 1.0])
        assert both.shape == (2, 12, 24) and (model(seen, there, weekend) - both).abs().max() > 1e-3


def test_a_road_hears_two_layers_far(freeway):
    """GraphSAGE: a changed reading reaches the roads two edges away, in either direction, and no other."""
    model = REGISTRY["sage"]("traffic", epochs=1, batch_size=256).fit(freeway).model_
    src, dst = freeway.graph.edges()
    reach = {0}
    for _ in range(2):
        reach |= {int(b) for a, b in [*zip(src, dst, strict=True), *zip(dst, src, strict=True)] if int(a) in reach}
    seen, there = torch.zeros(1, 1, 24), torch.ones(1, 1, 24)
    more = seen.clone()
    more[0, 0, 0] = 2.0
    with torch.no_grad():
        moved = (model(more, there, torch.zeros(1, 2)) - model(seen, there, torch.zeros(1, 2))).abs().amax(
            (0, 1)
        ) > 1e-6
    assert set(moved.nonzero()[:, 0].tolist()) == reach < set(range(24))


# --- all of them


def cases(freeway):
    world, log = em.simulate.ledger("tiny"), em.simulate.bazaar("tiny").events
    return {
        "node": (world, lambda m: m.predict(world)),
        "link": (log, lambda m: m.predict(log, at=5000.0)),
        "traffic": (freeway, lambda m: m.predict(freeway, at=freeway.times[-1] + 7.0)),
    }


@pytest.mark.parametrize("task", ["node", "link", "traffic"])
def test_saved_and_resumed(task, tmp_path, freeway):
    data, ask = cases(freeway)[task]
    small = {"dim": 8, "epochs": 2, "lr": 1e-2, "batch_size": {"node": 8, "link": 64, "traffic": 256}[task]}
    whole = REGISTRY["arma"](task, **small).fit(data)
    REGISTRY["arma"](task, **small | {"epochs": 1}).fit(data, checkpoint=tmp_path)
    resumed = REGISTRY["arma"](task, **small).fit(data, checkpoint=tmp_path, resume=True)
    assert torch.equal(ask(whole), ask(resumed))
    whole.save(tmp_path / "model.pt")
    assert torch.equal(ask(type(whole).load(tmp_path / "model.pt")), ask(whole))
    with pytest.raises(ValueError, match="holds a ARMA"):
        REGISTRY["gcn"].tasks[task].load(tmp_path / "model.pt")


@pytest.mark.parametrize("kind", KINDS)
def test_in_bfloat16(kind):
    world = em.simulate.ledger("tiny")
    model = REGISTRY[kind]("node", dim=8, epochs=1, precision="bf16").fit(world, 3, 4)
    assert math.isfinite(model.result_.history[0]["train_loss"])


def test_snapshots_keep_apart():
    """Two steps at once give what each gives alone."""
    world, model = em.simulate.ledger("tiny"), REGISTRY["appnp"]("node", epochs=1)
    net = model.fit(world, 3, 4).model_
    parts = model._snapshots(world, [5, 6])
    with torch.no_grad():
        alone = torch.cat([net(part) for part in parts])
        torch.testing.assert_close(net(union(parts)), alone)
    assert graph_of(parts[0]).num_nodes == len(parts[0]["nodes"])


def test_evolvegcn_hears_the_degrees_of_the_last_ones():
    data, model = chain(), REGISTRY["evolvegcn"]("node", dim=8)
    net = scrambled(model._build(in_feats=3))
    everyone = SimpleNamespace(**vars(data) | {"step": np.full(16, 15)})
    net.first.fill_(15)
    part, whole = (
        s | {"features": s["features"].double()} for d in (data, everyone) for s in model._snapshots(d, [15])
    )
    assert len(part["nodes"]) < 16 == len(whole["nodes"])
    torch.testing.assert_close(net(part)[-1], net(whole)[-1], rtol=0, atol=1e-12)
