"""Baselines for nodes: counts, propagation and trees against oracles; attention, evolving weights, memory by hand."""

import dataclasses
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import easydgl_mini as em
from easydgl_mini.baselines import REGISTRY
from easydgl_mini.baselines.evolvegcn import EvolveGCNModel, EvolvingWeight
from easydgl_mini.baselines.tgat_node import TemporalConv, TGATModel, TimeCode
from easydgl_mini.baselines.tgn import Memory, TGNModel
from easydgl_mini.train import NodeClassifier
from easydgl_mini.train.node import LabelTask, graph_of, snapshot_at, union

TRAINED = ["tgat", "evolvegcn", "tgn"]
NAMES = ["majority", "label_propagation", "random_forest", *TRAINED]


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scrambled(module):
    """The module in float64, with random parameters, at rest."""
    module = module.double().eval()
    for n, x in enumerate(module.parameters()):
        x.data.copy_(draw(*x.shape, seed=n) * 0.5)
    return module


def small(labels=(0, 1, 1, 2, -1, 0, 1, 2)):
    """Eight nodes in three steps, edges across steps; node 7 is alone."""
    return SimpleNamespace(
        graph=em.TemporalGraph(
            [0, 1, 3, 4, 2, 6, 5], [1, 2, 1, 3, 4, 5, 0], 8, times=[0.2, 0.6, 1.1, 1.3, 1.3, 2.1, 2.5]
        ),
        features=draw(8, 3).numpy(),
        labels=np.array(labels),
        step=np.array([0, 0, 0, 1, 1, 2, 2, 2]),
    )


def busy():
    """Six nodes with forty edges, so that all have events early and late."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 6, (2, 40))
    return SimpleNamespace(
        graph=em.TemporalGraph(src, dst, 6, times=3 * rng.random(40)),
        features=draw(6, 3).numpy(),
        labels=np.zeros(6, dtype=np.int64),
        step=np.full(6, 2),
    )


def a_snapshot(data=None, t=2, hops=9):
    data = data or small()
    (snapshot,) = REGISTRY["tgat"]("node", num_layers=hops)._snapshots(data, [t])
    return snapshot | {"features": snapshot["features"].double()}


@pytest.fixture(scope="module")
def ledger():
    """Every transaction's label told: the smallest world is then large enough to tell systems apart."""
    world = em.simulate.ledger("tiny")
    return dataclasses.replace(world, labels=world.truth.label)


@pytest.fixture(scope="module")
def fitted(ledger):
    settings = {"num_classes": 2, "balance": 0.5}
    return {
        name: REGISTRY[name]("node", **settings, **({"epochs": 5, "lr": 1e-2} if name in TRAINED else {})).fit(
            ledger, 34, 38
        )
        for name in NAMES
    }


# --- all of them


@pytest.mark.parametrize("name", ["random_forest", *TRAINED])
def test_better_than_the_majority(name, fitted, ledger):
    """Margin: macro-F1 0.1 above the majority's, on four steps before the change of regime."""
    least = fitted["majority"].score(ledger, (39, 42))["macro_f1"] + 0.1
    assert fitted[name].score(ledger, (39, 42))["macro_f1"] > least


@pytest.mark.parametrize("name", NAMES)
def test_saved(name, fitted, ledger, tmp_path):
    fitted[name].save(tmp_path / "model.pt")
    again = type(fitted[name]).load(tmp_path / "model.pt")
    assert torch.equal(again.predict(ledger), fitted[name].predict(ledger)) and repr(again) == repr(fitted[name])


@pytest.mark.parametrize("name", NAMES)
def test_the_future_is_not_known(name, fitted, ledger):
    model, early = fitted[name], fitted[name].predict(ledger, at=20.5)
    assert torch.isnan(early[ledger.step > 20]).all() and torch.isfinite(early[ledger.step <= 20]).all()
    torch.testing.assert_close(early[ledger.step <= 20].sum(1), torch.ones(int((ledger.step <= 20).sum())))
    past = dataclasses.replace(ledger, graph=ledger.graph.select(ledger.graph.times < 20.5))
    torch.testing.assert_close(model.predict(past, at=20.5), early, equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
def test_renaming_nodes_renames_the_answers(name, fitted, ledger):
    new = np.random.default_rng(0).permutation(6000)  # node n is now called new[n]
    src, dst = (torch.from_numpy(new)[end] for end in ledger.graph.edges())
    graph = em.TemporalGraph(src, dst, 6000, times=ledger.graph.times)
    old = np.argsort(new)
    parts = {key: getattr(ledger, key)[old] for key in ("features", "labels", "step")}
    renamed = fitted[name].predict(SimpleNamespace(graph=graph, **parts))
    torch.testing.assert_close(renamed[new], fitted[name].predict(ledger), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TRAINED)
def test_steps_together_and_alone(name, fitted, ledger):
    """No state passes from one snapshot to another: two at once, in either order, give what each gives alone."""
    model, parts = fitted[name].model_, fitted[name]._snapshots(ledger, [12, 40])
    with torch.no_grad():
        first, second = model(parts[0]), model(parts[1])
        torch.testing.assert_close(model(union(parts)), torch.cat([first, second]), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model(union(parts[::-1])), torch.cat([second, first]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TRAINED)
def test_resumed_is_uninterrupted(name, ledger, tmp_path):
    settings = {"num_classes": 2, "dim": 8, "batch_size": 2}
    whole = REGISTRY[name]("node", epochs=2, **settings).fit(ledger, 6, 7)
    REGISTRY[name]("node", epochs=1, **settings).fit(ledger, 6, 7, checkpoint=tmp_path)
    resumed = REGISTRY[name]("node", epochs=2, **settings).fit(ledger, 6, 7, checkpoint=tmp_path, resume=True)
    one, two = whole.model_.state_dict(), resumed.model_.state_dict()
    assert whole.result_.history == resumed.result_.history and all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("name", TRAINED)
def test_in_bfloat16_and_without_features(name, ledger):
    bare = SimpleNamespace(graph=ledger.graph, features=None, labels=ledger.labels, step=ledger.step)
    model = REGISTRY[name]("node", dim=8, epochs=1, precision="bf16").fit(bare, 3, 4)
    assert torch.isfinite(model.predict(bare)).all()


# --- majority


def test_majority_by_hand():
    """Labelled nodes of steps 0 and 1: 0, 1, 1, 2; node 4 has no label, step 2 is not training."""
    model = REGISTRY["majority"]("node").fit(small(), train_until=1, valid_until=1)
    torch.testing.assert_close(model.predict(small()), torch.tensor([0.25, 0.5, 0.25]).expand(8, -1))
    scores = model.score(small(), (2, 2))  # truth 0, 1, 2, guess 1
    assert scores["macro_f1"] == pytest.approx(0.5 / 3) and scores["accuracy"] == pytest.approx(1 / 3)
    assert scores["illicit_f1"] == pytest.approx(0.5) and model.result_.stopped == "closed form"


# --- label propagation


def spread(data, t, known, alpha, rounds=None):
    """Dense, by NumPy: iterated, or with ``rounds=None`` solved."""
    now = data.graph.times.numpy() < t + 1
    A = np.zeros((8, 8))
    np.add.at(A, (data.graph.src.numpy()[now], data.graph.dst.numpy()[now]), 1.0)
    A = A + A.T
    d = np.maximum(A.sum(1), 1) ** -0.5
    S, Y = d[:, None] * A * d, np.eye(3)[data.labels] * known[:, None]
    if rounds is None:
        F = np.linalg.solve(np.eye(8) - alpha * S, (1 - alpha) * Y)
    else:
        F = Y
        for _ in range(rounds):
            F = alpha * S @ F + (1 - alpha) * Y
    with np.errstate(invalid="ignore"):
        return F / F.sum(1, keepdims=True)


@pytest.mark.parametrize(("rounds", "oracle"), [(3, 3), (400, None)])
def test_label_propagation_by_dense_matrices(rounds, oracle):
    data = small()
    settings = {"rounds": rounds, "alpha": 0.8, "known_until": 9}
    ours = REGISTRY["label_propagation"]("node", **settings).fit(data, 1, 1).predict(data)
    for t in (1, 2):
        known = (data.step < t) & (data.labels >= 0)
        expected = spread(data, t, known, 0.8, oracle)
        asked = (data.step == t) & np.isfinite(expected).all(1)
        assert asked.sum() == 2
        np.testing.assert_allclose(ours[asked], expected[asked], atol=1e-5)
    assert ours[7].tolist() == pytest.approx([0.25, 0.5, 0.25])  # nothing arrives: the shares in training


def test_label_propagation_knows_earlier_labels_of_training_only():
    data = small()
    model = REGISTRY["label_propagation"]("node").fit(data, 0, 0)
    np.testing.assert_allclose(
        model.predict(data)[[5, 6]], spread(data, 2, (data.step == 0) & (data.labels >= 0), 0.9)[[5, 6]], atol=0.02
    )
    for change in ([3, 4, 5, 6, 7], [3]):  # later than training, or asked about
        other = small()
        other.labels[change] = 0
        assert torch.equal(model.predict(other), model.predict(data))
    up_to_date = REGISTRY["label_propagation"]("node", known_until=9).fit(data, 0, 0)
    other = small()
    other.labels[3] = 0
    assert (up_to_date.predict(other) - up_to_date.predict(data))[[5, 6]].abs().max() > 0.05
    before = up_to_date.predict(other)
    other.labels[5:] = 0  # of those who are asked about
    assert torch.equal(up_to_date.predict(other)[5:], before[5:])
    with pytest.raises(ValueError, match="alpha"):
        REGISTRY["label_propagation"]("node", alpha=1.0)


def test_label_propagation_without_earlier_neighbours_is_the_majority(fitted, ledger):
    torch.testing.assert_close(fitted["label_propagation"].predict(ledger), fitted["majority"].predict(ledger))


# --- random forest


def test_the_forest_is_scikit_learns(fitted, ledger):
    from sklearn.ensemble import RandomForestClassifier

    x, seen = torch.from_numpy(ledger.features), ledger.step <= 34
    standard = ((x - x[seen].mean(0)) / x[seen].std(0)).numpy()
    y = ledger.labels[seen]
    weights = (np.bincount(y) / len(y)).astype(np.float32) ** -0.5
    theirs = RandomForestClassifier(50, random_state=0).fit(standard[seen], y, sample_weight=weights[y])
    np.testing.assert_allclose(fitted["random_forest"].predict(ledger), theirs.predict_proba(standard), atol=1e-5)


def test_a_class_that_training_lacks_has_no_vote():
    data = small(labels=(0, 2, 2, 0, -1, 0, 1, 2))
    probability = REGISTRY["random_forest"]("node", trees=5).fit(data, 1, 1).predict(data)
    assert (probability[:, 1] < 1e-6).all() and (probability[:4].argmax(1) == torch.tensor([0, 2, 2, 0])).sum() >= 3


def test_without_scikit_learn_it_says_what_to_install(monkeypatch, fitted, ledger):
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        REGISTRY["random_forest"]("node").fit(small(), 1, 1)
    assert torch.isfinite(fitted["random_forest"].predict(ledger)).all()  # a fitted one needs it no more


def test_the_forest_looks_at_labelled_nodes_only(ledger):
    from sklearn.ensemble import RandomForestClassifier

    some = SimpleNamespace(**vars(ledger) | {"labels": ledger.labels.copy()})
    some.labels[::5] = -1
    x, seen = torch.from_numpy(ledger.features), ledger.step <= 34
    standard = ((x - x[seen].mean(0)) / x[seen].std(0)).numpy()
    seen = seen & (some.labels >= 0)
    theirs = RandomForestClassifier(5, random_state=0)
    theirs.fit(standard[seen], some.labels[seen], sample_weight=np.ones(seen.sum()))
    mine = REGISTRY["random_forest"]("node", num_classes=2, trees=5, balance=0.0).fit(some, 34, 37).predict(some)
    np.testing.assert_allclose(mine, theirs.predict_proba(standard), atol=1e-5)


# --- TGAT


def by_loops(layer, graph, x, age):
    """One TGAT layer, node by node and head by head."""
    heads, width = layer.heads
    phi = lambda t: np.cos(t * layer.clock.frequency.detach().numpy()) / np.sqrt(x.shape[1])  # noqa: E731
    layer.clock.phase.data.zero_()
    Wq, Wn, Wt = (m.weight.detach().numpy() for m in (layer.query, layer.of_node, layer.of_time))
    out = []
    for u in range(len(x)):
        edges = [e for e in range(graph.num_edges) if graph.dst[e] == u]
        heard = np.zeros(heads * width)
        for h in range(heads if edges else 0):
            row = slice(h * width, (h + 1) * width)
            value = slice(heads * width + h * width, heads * width + (h + 1) * width)
            q = Wq[row] @ np.concatenate([x[u], phi(0.0)])
            keys = np.stack([Wn[row] @ x[graph.src[e]] + Wt[row] @ phi(age[e]) for e in edges])
            values = np.stack([Wn[value] @ x[graph.src[e]] + Wt[value] @ phi(age[e]) for e in edges])
            weights = np.exp(keys @ q / np.sqrt(width))
            heard[row] = weights / weights.sum() @ values
        out.append(np.concatenate([heard, x[u]]))
    with torch.no_grad():
        return layer.mixer(torch.from_numpy(np.stack(out)))


@pytest.mark.parametrize("heads", [1, 3])
def test_a_temporal_layer_by_loops(heads):
    """Three heads of two share a width of four: they are then wider together."""
    layer, graph = scrambled(TemporalConv(4, heads)), graph_of(a_snapshot())
    x, age = draw(graph.num_nodes, 4), draw(graph.num_edges, seed=3).abs()
    expected = by_loops(layer, graph, x.numpy(), age.numpy())
    torch.testing.assert_close(layer(graph, x, age).detach(), expected)


def test_the_time_code_by_hand():
    code = TimeCode(2).double()
    code.frequency.data.copy_(torch.tensor([1.0, 0.5]))
    code.phase.data.copy_(torch.tensor([0.0, np.pi / 2]))
    got = code(torch.tensor(np.pi))
    torch.testing.assert_close(got, torch.tensor([-1.0, -1.0], dtype=torch.float64) / 2**0.5)
    start = TimeCode(5)
    torch.testing.assert_close(start(torch.zeros(3)), torch.full((3, 5), 5**-0.5))


@pytest.mark.parametrize("make", [TGATModel, TGNModel])
def test_shifting_all_times_changes_nothing(make):
    """Only ages count; a later question, or one older edge, does change the answer."""
    more = (2,) if make is TGNModel else ()
    model, snapshot = scrambled(make(3, 4, 2, 1, 0.0, 3, *more)), a_snapshot()
    shifted = snapshot | {"times": snapshot["times"] + 1000, "at": snapshot["at"] + 1000}
    out = model(snapshot)
    torch.testing.assert_close(model(shifted), out)
    assert (model(snapshot | {"at": snapshot["at"] + 1}) - out).abs().max() > 1e-3
    older = snapshot["times"].clone()
    older[0] -= 0.1
    assert (model(snapshot | {"times": older}) - out).abs().max() > 1e-4


# --- EvolveGCN


def test_weights_evolve_by_the_gru_equation():
    assert (EvolvingWeight(3, 2).B[0] == -4).all()  # a fresh gate lets little of a weight go
    weight = scrambled(EvolvingWeight(3, 2))
    W, U, V, B = (x.detach().numpy() for x in (weight.start, weight.U, weight.V, weight.B))
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    by_hand = [W]
    for _ in range(4):
        Z, R = sigmoid(U[0] @ W + B[0]), sigmoid(U[1] @ W + B[1])
        W = (1 - Z) * W + Z * np.tanh(U[2] @ W + V @ (R * W) + B[2])
        by_hand.append(W)
    at = weight.at([0, 2, 4])
    assert torch.equal(at[0], weight.start)
    for got, n in zip(at, (0, 2, 4), strict=True):
        np.testing.assert_allclose(got.detach().numpy(), by_hand[n], atol=1e-12)


def test_the_first_training_step_has_the_initial_weights(ledger):
    model = REGISTRY["evolvegcn"]("node", num_classes=2, dim=8, epochs=1).fit(ledger, 3, 4).model_
    assert model.first == 1
    (snapshot,) = REGISTRY["evolvegcn"]("node")._snapshots(ledger, [1])
    with torch.no_grad():
        before = model(snapshot)
        for layer in model.weights:
            layer.B.add_(1.0)  # the GRU has not run yet at the first step …
        assert torch.equal(model(snapshot), before)
        moved = model(snapshot | {"now": snapshot["now"] + 1})
        assert (moved - before).abs().max() > 1e-3  # … and runs once at the second


def test_each_step_has_its_own_weights():
    """Against dense matrices: two snapshots in one batch, steps 3 and 5, the first training step being 2."""
    model = scrambled(EvolveGCNModel(3, 4, 2, 0.0, 3))
    model.first.fill_(2)
    data = small()
    parts = [
        a_snapshot(data, t) | {"now": torch.full_like(a_snapshot(data, t)["nodes"], now)} for t, now in ((1, 3), (2, 5))
    ]
    out, start = model(union(parts)).detach(), 0
    for part, gru in zip(parts, (1, 3), strict=True):
        n = len(part["nodes"])
        A = torch.zeros(n, n, dtype=torch.float64)
        A.index_put_((part["dst"], part["src"]), torch.ones(len(part["src"]), dtype=torch.float64), accumulate=True)
        A += torch.eye(n)
        A = A / (A.sum(1)[:, None] * A.sum(1)).sqrt()
        h = part["features"]
        for layer in model.weights:
            (W,) = layer.at([gru])
            h = torch.relu(A @ h @ W)
        torch.testing.assert_close(out[start : start + n], model.head(h).detach())
        start += n


# --- TGN


def a_memory(chunks, snapshot):
    """A memory with random weights that has met this snapshot's ages."""
    memory = scrambled(Memory(4, chunks))
    memory.learn([snapshot])
    return memory


def test_chunks_part_the_ages_of_training_into_equal_shares():
    snapshot = a_snapshot()
    age = (snapshot["at"][snapshot["dst"]] - snapshot["times"]).sort().values
    memory = Memory(4, 5)
    memory.learn([snapshot, snapshot])
    assert len(age) == 14  # seven edges, read both ways; two are of one time
    assert memory.borders.tolist() == pytest.approx([age[int(2 * 14 * k / 5) // 2].item() for k in (1, 2, 3, 4)])
    model = REGISTRY["tgn"]("node", dim=8, num_classes=3, epochs=1).fit(busy(), 2, 2)
    ages = torch.cat([s["at"][s["dst"]] - s["times"] for s in model._snapshots(busy(), [2])])
    parts = torch.bincount(torch.searchsorted(model.model_.memory.borders, ages.float(), right=True), minlength=5)
    assert parts.tolist() == [16] * 5


def test_only_nodes_with_events_change_their_memory():
    snapshot = a_snapshot()
    memory = a_memory(2, snapshot)
    s = memory(snapshot)
    quiet = torch.ones(len(s), dtype=torch.bool)
    quiet[snapshot["dst"]] = False
    assert quiet.sum() == 1 and (s[quiet] == 0).all() and (s[~quiet].abs().amax(1) > 1e-3).all()
    # of two chunks the second has node 1's last message no more: it keeps what the first chunk wrote
    young = (snapshot["at"][snapshot["dst"]] - snapshot["times"]).float() < memory.borders
    first = {k: (v[~young] if len(v) == len(snapshot["src"]) else v) for k, v in snapshot.items()}
    early = scrambled(Memory(4, 1))(first)
    later = torch.zeros_like(quiet)
    later[snapshot["dst"][young]] = True
    torch.testing.assert_close(s[~later], early[~later])
    assert (later & ~quiet).any() and ((s - early)[later].abs().amax(1) > 1e-4).all()


def test_memory_by_loops():
    """Chunk by chunk, node by node, torch's GRU cell given the mean of the messages."""
    snapshot = a_snapshot(busy())
    memory = a_memory(3, snapshot)
    src, dst, times = (snapshot[name].tolist() for name in ("src", "dst", "times"))
    younger = [sum(other > t for other in times) for t in times]  # all times differ, but each edge is read both ways
    state = {u: torch.zeros(4, dtype=torch.float64) for u in range(len(snapshot["nodes"]))}
    seen = {u: min((t for t, v in zip(times, dst, strict=True) if v == u), default=None) for u in state}
    for chunk in range(3):
        mine = [e for e in range(len(src)) if 2 - sum(younger[e] >= 80 * k // 3 // 2 * 2 for k in (1, 2)) == chunk]
        new = dict(state)
        for u in {dst[e] for e in mine}:
            events = [e for e in mine if dst[e] == u]
            messages = [
                torch.cat([state[u], state[src[e]], memory.clock(torch.tensor(times[e] - seen[u]))]) for e in events
            ]
            new[u] = memory.gru(torch.stack(messages).mean(0)[None], state[u][None])[0]
        for e in mine:
            seen[dst[e]] = max(seen[dst[e]], times[e])
        state = new
    torch.testing.assert_close(memory(snapshot), torch.stack([state[u] for u in range(len(state))]))


def test_edges_are_played_in_order_of_time_not_of_the_file():
    snapshot = a_snapshot()
    memory = a_memory(3, snapshot)
    order = torch.randperm(len(snapshot["src"]), generator=torch.Generator().manual_seed(0))
    edges = {name: snapshot[name][order] for name in ("src", "dst", "times", "latest")}
    torch.testing.assert_close(memory(snapshot | edges), memory(snapshot))
    back = snapshot | {"times": snapshot["times"].max() + snapshot["times"].min() - snapshot["times"]}
    assert (memory(back) - memory(snapshot)).abs().max() > 1e-4


@pytest.mark.parametrize("name", ["tgat", "tgn"])
def test_an_answer_does_not_depend_on_who_else_is_asked(name):
    """Steps that no edge joins: asked alone at its step's end, or with all the others at that time."""
    world = em.simulate.ledger("tiny")
    model = REGISTRY[name]("node", dim=8, num_heads=1, num_classes=3, epochs=1, lr=0.0).fit(world, 10, 12)
    scrambled(model.model_)
    model.model_.float()
    alone, together = model.predict(world), model.predict(world, at=5.0)
    mine = world.step == 4
    torch.testing.assert_close(together[mine], alone[mine], rtol=0, atol=1e-5)
    assert alone[mine].std(0).max() > 1e-3


@pytest.mark.parametrize("name", ["evolvegcn", "label_propagation"])
def test_the_end_of_a_step_is_still_that_step(name):
    """No label of the step, and no weights of the next one."""
    data, settings = small(), {"dim": 4, "epochs": 1, "lr": 0.0} if name == "evolvegcn" else {}
    model = REGISTRY[name]("node", **settings).fit(data, 1, 1)
    if name == "evolvegcn":
        scrambled(model.model_).float()
    alone = model.predict(data)
    for t in range(3):
        mine = data.step == t
        torch.testing.assert_close(model.predict(data, at=t + 1.0)[mine], alone[mine], rtol=0, atol=1e-6)
    assert (model.predict(data, at=3.0) - alone)[data.step == 0].abs().max() > 1e-4  # later it is another question


def test_tgn_reads_its_memory_and_learns_to_write_it():
    model, snapshot = scrambled(TGNModel(3, 8, 2, 2, 0.0, 3, 2)), a_snapshot()
    out = model(snapshot)
    x = model.memory(snapshot) + model.enter(snapshot["features"])
    torch.testing.assert_close(out, model.head(model.attend(snapshot, x)))
    out.square().sum().backward()
    assert model.memory.gru.weight_hh.grad.abs().max() > 0 and model.memory.clock.frequency.grad.abs().max() > 0


# --- what a snapshot says


def test_steps_and_degrees_of_a_snapshot():
    data = small()
    features = torch.zeros(8, 0)
    labels, step = torch.from_numpy(data.labels), torch.from_numpy(data.step)
    s = snapshot_at(data.graph.src, data.graph.dst, data.graph.times, features, labels, step, 1, hops=9)
    assert (
        s["nodes"].tolist() == [0, 1, 2, 3, 4]
        and s["now"].tolist() == [1] * 5
        and s["step"].tolist() == [0, 0, 0, 1, 1]
    )
    into, out = [0, 2, 1, 1, 1], [1, 1, 1, 1, 1]
    np.testing.assert_allclose(s["features"].numpy(), np.log1p(np.stack([into, out], 1)), rtol=1e-6)
    near = snapshot_at(data.graph.src, data.graph.dst, data.graph.times, features, labels, step, 1, hops=0)
    assert near["nodes"].tolist() == [3, 4] and len(near["src"]) == 2
    np.testing.assert_allclose(near["features"].numpy(), s["features"][3:].numpy())  # degrees are of the whole graph


def test_tgat_has_a_relu_after_each_layer():
    model, snapshot = scrambled(TGATModel(3, 4, 2, 1, 0.0, 3)), a_snapshot()
    graph, age = graph_of(snapshot), snapshot["at"][snapshot["dst"]] - snapshot["times"]
    x = model.enter(snapshot["features"])
    for layer in model.layers:
        x = torch.relu(layer(graph, x, age))
    torch.testing.assert_close(model(snapshot), model.head(x))


def test_features_of_later_steps_change_nothing_earlier():
    """Features of later steps change neither the training nor the answers about earlier ones."""
    world = em.simulate.ledger("tiny")
    later = world.features.copy()
    later[world.step > 4] = 9 * later[world.step > 4] + 5
    one, two = (
        REGISTRY["sage"]("node", dim=4, epochs=1).fit(dataclasses.replace(world, features=x), 3, 4)
        for x in (world.features, later)
    )
    assert all(torch.equal(one.extra_[k], two.extra_[k]) for k in one.extra_)
    seen = torch.as_tensor(world.features[world.step <= 3]).float()
    torch.testing.assert_close(one.extra_["mean"], seen.mean(0))
    torch.testing.assert_close(one.extra_["scale"], seen.std(0))


def test_labels_of_later_steps_do_not_choose_the_epoch():
    world = em.simulate.ledger("tiny")
    labels = world.labels.copy()
    labels[world.step > 4] = 0
    one, two = (
        REGISTRY["sage"]("node", dim=4, epochs=2).fit(dataclasses.replace(world, labels=x), 3, 4)
        for x in (world.labels, labels)
    )
    assert one.result_.history == two.result_.history
    assert one.result_.history[-1]["nodes"] == (world.labels[world.step == 4] >= 0).sum()


@pytest.mark.parametrize("name", ["gcn", "easydgl", "tgat"])
def test_loss_and_validation_are_about_the_steps_own_nodes(name):
    data = small()
    model = REGISTRY[name]("node", dim=8, epochs=1, **({"num_clusters": 2} if name == "easydgl" else {})).fit(
        data, 1, 2
    )
    assert model.result_.history[0]["nodes"] == 3  # of step 2: 5, 6, 7, whoever they are connected to
    train = model._snapshots(data, [0, 1])
    _, labelled = model._task().batch(model.model_, train)
    assert labelled.sum() == 4  # 0, 1, 2 and 3; 4 has no label


def test_balance_by_torchs_weighted_cross_entropy():
    settings = SimpleNamespace(num_classes=3, balance=0.5, extra_={"share": torch.tensor([0.25, 0.5, 0.25])})
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 1, 2])
    _, (total, count) = LabelTask(settings).mean(logits, {"labels": labels}, torch.ones(4, dtype=torch.bool))
    torch.testing.assert_close(total / count, F.cross_entropy(logits, labels, weight=torch.tensor([2.0, 2**0.5, 2.0])))


def test_a_masked_node_is_nobodys_neighbour():
    data = small()
    model = NodeClassifier(dim=8, num_clusters=2, epochs=1).fit(data, 1, 1)
    (snap,) = model._snapshots(data, [2])
    masked = snap["nodes"] == 3
    other = snap | {"features": snap["features"].clone()}
    other["features"][masked] += 3.0
    with torch.no_grad():
        a, b = (model.model_.embed(s, masked)[0] for s in (snap, other))
        c, d = (model.model_.embed(s)[0] for s in (snap, other))
    assert not ((a - b).abs().amax(1) > 1e-7)[~masked].any()
    assert ((c - d).abs().amax(1) > 1e-7)[~masked].any()
