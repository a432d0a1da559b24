"""The three estimators on their worlds: better than the obvious guess, the same after saving, clear errors."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import easydgl_mini as em
from easydgl_mini.train import (
    LinkPredictor,
    NodeClassifier,
    TrafficForecaster,
    hit_rate,
    macro_f1,
    mae,
    ndcg,
    rank_of,
)
from easydgl_mini.train.link import Windows, item_clusters, link_tpple, windows
from easydgl_mini.train.traffic import HORIZONS

LINK = {"dim": 16, "epochs": 1, "num_clusters": 4, "calendar": "hours", "origin": "2024-01-01", "batch_size": 64}
NODE = {"epochs": 1, "lr": 5e-3, "num_clusters": 4}
ROAD = {"epochs": 1, "lr": 5e-3, "dim": 16, "num_heads": 2, "num_clusters": 4}


@pytest.fixture(scope="module")
def bazaar():
    return em.simulate.bazaar("tiny")


@pytest.fixture(scope="module")
def ledger():
    return em.simulate.ledger("tiny")


@pytest.fixture(scope="module")
def freeway():
    world = em.simulate.freeway("tiny")
    return SimpleNamespace(graph=world.graph, readings=world.readings[:1000], times=world.times[:1000])


@pytest.fixture(scope="module")
def link(bazaar):
    return LinkPredictor(**LINK).fit(bazaar.events)


@pytest.fixture(scope="module")
def node(ledger):
    return NodeClassifier(**NODE).fit(ledger)


@pytest.fixture(scope="module")
def road(freeway):
    return TrafficForecaster(**ROAD).fit(freeway)


# --- better than the obvious guess


def test_links_beat_popularity():
    """Margins, on users that training did not see: 5 % in NDCG@100, 0.05 nats per event in log-probability."""
    log = em.simulate.bazaar("small").events
    train, valid, test = log.split_users((70, 5, 25))
    settings = {"dim": 32, "max_len": 20, "lr": 0.01, "batch_size": 64, "epochs": 5, "schedule": "cosine"}
    model = LinkPredictor(**settings, calendar="hours", origin="2024-01-01").fit(train, valid)
    history, last = test.hold_out_last()
    target = torch.from_numpy(last.item.astype(np.int64))
    popular = torch.from_numpy(np.bincount(train.item, minlength=log.num_items)).double() + 1
    seen = history.histories(int(np.bincount(history.user).max())).item
    ranks = rank_of(popular.expand(len(seen), -1), target, exclude=seen)
    scores = model.score(test)
    assert scores["users"] == len(ranks) > 450
    assert scores["ndcg@100"] > 1.05 * ndcg(ranks, 100) and scores["hr@100"] > hit_rate(ranks, 100)
    nats = model.predict(history, at=last.time).log_softmax(-1).gather(1, target[:, None]).mean()
    assert nats > (popular / popular.sum())[target].log().mean() + 0.05


def test_nodes_beat_the_majority():
    """Margin: macro-F1 0.08 above the majority's on the labelled nodes of four steps before the change of regime."""
    world = em.simulate.ledger("small")
    labels = np.where(world.labels == em.simulate.UNKNOWN, -1, world.labels)  # hidden whatever the class: no signal
    world = dataclasses.replace(world, labels=labels)
    settings = {"epochs": 8, "lr": 5e-3, "balance": 0.5, "num_classes": 2}
    scores = NodeClassifier(**settings).fit(world, train_until=34, valid_until=38).score(world, (39, 42))
    truth = torch.from_numpy(labels[(world.step >= 39) & (world.step <= 42) & (labels >= 0)])
    majority = macro_f1(torch.zeros_like(truth), truth, 2)
    assert scores["nodes"] == len(truth) and scores["macro_f1"] > majority + 0.08 and scores["illicit_f1"] > 0.2


@pytest.mark.parametrize("preset", ["paper", "release"])
def test_roads_beat_the_last_value(preset):
    """Margin: mean absolute error at least 5 % below the last reading's, at every horizon."""
    world = em.simulate.freeway("tiny")
    model = TrafficForecaster(preset=preset, lr=1e-2, schedule="cosine", epochs=5 if preset == "paper" else 3).fit(
        world
    )
    scores, start = model.score(world), model.parts(len(world.times))[2].start + model.window - 1
    now = np.arange(start, len(world.times) - 12)
    row = np.maximum.accumulate(np.where(world.readings > 0, np.arange(len(world.times))[:, None], 0))
    last = torch.from_numpy(np.take_along_axis(world.readings, row, 0)[now])  # the latest reading there is
    for h in HORIZONS:
        guess = mae(last, torch.from_numpy(world.readings[now + h]))
        assert scores[f"mae@{h}"] < 0.95 * guess


# --- save, load, predict


def test_a_saved_estimator_predicts_the_same(tmp_path, link, node, road, bazaar, ledger, freeway):
    for model, ask in (
        (link, lambda m: m.predict(bazaar.events, at=2000.0)),
        (link, lambda m: m.predict(int(bazaar.events.users[3]), at=2000.0)),
        (node, lambda m: m.predict(ledger)),
        (road, lambda m: m.predict(freeway, at=5100.0)),
    ):
        model.save(tmp_path / "model.pt")
        new = type(model).load(tmp_path / "model.pt")
        assert torch.equal(ask(model), ask(new)) and repr(new) == repr(model)
    with pytest.raises(ValueError, match="holds a TrafficForecaster"):
        LinkPredictor.load(tmp_path / "model.pt")


def test_what_is_not_fitted_says_so(tmp_path, bazaar):
    with pytest.raises(ValueError, match="not been fitted"):
        LinkPredictor().predict(bazaar.events, at=1.0)
    with pytest.raises(ValueError, match="not been fitted"):
        NodeClassifier().save(tmp_path / "x")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_same_seed_same_result_in_both_precisions(precision, bazaar, freeway, ledger):
    for make, data in (
        (lambda: LinkPredictor(**LINK, precision=precision), bazaar.events),
        (lambda: NodeClassifier(**NODE, precision=precision), ledger),
        (lambda: TrafficForecaster(**ROAD, precision=precision), freeway),
    ):
        first, second = make().fit(data), make().fit(data)
        assert first.result_.history == second.result_.history
        one, two = first.model_.state_dict(), second.model_.state_dict()
        assert all(torch.equal(one[name], two[name]) for name in one)


def test_estimators_keep_checkpoints_and_resume(tmp_path, bazaar):
    whole = LinkPredictor(**(LINK | {"epochs": 2})).fit(bazaar.events)
    LinkPredictor(**LINK).fit(bazaar.events, checkpoint=tmp_path)
    resumed = LinkPredictor(**(LINK | {"epochs": 2})).fit(bazaar.events, checkpoint=tmp_path, resume=True)
    assert whole.result_.history == resumed.result_.history
    one, two = whole.model_.state_dict(), resumed.model_.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


# --- links


def test_windows_are_pieces_of_histories():
    log = em.EventLog(user=[0] * 5 + [1] + [2] * 2, item=range(8), time=[0, 1, 3, 6, 10, 4, 2, 7])
    w = windows(log, 2, time_unit=0.5)
    assert w.user.tolist() == [0, 0, 0, 2] and w.item.tolist() == [[3, 4], [1, 2], [-1, 0], [6, 7]]
    assert w.gap.tolist() == [[6, 8], [2, 4], [0, 0], [0, 10]]  # an event at a cut keeps its true gap
    assert w.time.tolist() == [[12, 20], [2, 6], [0, 0], [4, 14]] and w.mask.tolist()[2] == [False, True]


def test_item_clusters_find_the_planted_groups(bazaar):
    from sklearn.metrics import adjusted_rand_score

    found = item_clusters(bazaar.events, 4)
    often = np.bincount(bazaar.events.item, minlength=400) > 20
    assert adjusted_rand_score(found[often], bazaar.group[often]) > 0.8


def test_time_matters_and_a_prediction_belongs_to_its_user(link, bazaar):
    log = bazaar.events
    everyone = link.predict(log, at=2000.0)
    users = log.users[[2, 5]]
    some = link.predict(log.select(np.isin(log.user, users)), at=[2000.0, 2050.0])
    torch.testing.assert_close(some[0], everyone[2])
    assert (some[1] - everyone[5]).abs().max() > 1e-4  # asked 50 hours later
    mine = slice(log.offsets[users[0]], log.offsets[users[0] + 1])
    torch.testing.assert_close(link.predict((log.item[mine], log.time[mine]), at=2000.0), everyone[2])
    torch.testing.assert_close(link.predict(int(users[0]), at=2000.0), everyone[2])


def test_a_user_asked_about_by_id_keeps_the_gap_of_their_oldest_event(link, bazaar):
    log = bazaar.events
    long = log.users[(np.diff(log.offsets)[log.users] > link.max_len)][:5]
    assert len(long) == 5
    by_log = link.predict(log.select(np.isin(log.user, long)), at=2000.0)
    for row, user in zip(by_log, long, strict=True):
        torch.testing.assert_close(link.predict(int(user), at=2000.0), row)
        mine = slice(log.offsets[user + 1] - link.max_len, log.offsets[user + 1])
        cut = link.predict((log.item[mine], log.time[mine]), at=2000.0)  # nothing before it: the gap is unknown
        assert not torch.equal(cut, row)


def test_asking_is_hiding_the_last_event(link):
    """What is appended at inference is what was hidden in training: same item (none), time, gap and calendar."""
    items, times = np.array([3, 50, 7, 120]), np.array([1.0, 4.0, 6.0, 30.0])
    rows = em.EventLog(np.zeros(4, dtype=int), items, times, num_items=400).histories(4)
    hidden = torch.tensor([[False, False, False, True]])
    with torch.no_grad():
        h, _, _ = link.model_.encode(rows, hidden)
    expected = link.model_.scores(h[0, -1])
    torch.testing.assert_close(link.predict((items[:3], times[:3]), at=30.0), expected.detach())


def test_the_calendar_reads_the_logs_own_clock(bazaar, monkeypatch):
    import sys

    seen = []
    module = sys.modules["easydgl_mini.train.link"]
    monkeypatch.setattr(module, "calendar_features", lambda t, *_: seen.append(t) or torch.zeros(*t.shape, 8))
    model = LinkPredictor(dim=8, num_clusters=1, epochs=1, time_unit=24.0, calendar="hours").fit(bazaar.events)
    seen.clear()
    model.predict(([1, 2], [48.0, 60.0]), at=72.0)
    assert seen[0][0, -3:].tolist() == [48.0, 60.0, 72.0]


def test_few_users_leave_no_validation(link):
    log = em.EventLog([0, 0, 1, 1], [0, 1, 1, 0], [0.0, 1.0, 0.0, 2.0])
    result = LinkPredictor(dim=8, num_clusters=1, epochs=3).fit(log).result_
    assert len(result.history) == 3 and result.best_metric is None and result.best_epoch == 3


def test_score_is_what_predict_says(link, bazaar):
    log = bazaar.events.split_users((9, 1), 1)[1]
    scores, by_hand = link.score(log), []
    for user in log.users:
        mine = slice(log.offsets[user], log.offsets[user + 1])
        item, time = log.item[mine], log.time[mine]
        if len(item) > 1:
            value = link.predict((item[:-1], time[:-1]), at=time[-1])
            rivals = np.setdiff1d(np.arange(400), [*item[:-1], item[-1]])
            by_hand.append(1 + int((value[rivals] >= value[item[-1]]).sum()))
    ranks = torch.tensor(by_hand)
    assert scores["users"] == len(ranks) and scores["hr@10"] == hit_rate(ranks, 10)
    assert scores["ndcg@50"] == pytest.approx(ndcg(ranks, 50))


def test_link_bad_input(link, bazaar):
    with pytest.raises(ValueError, match=r"at\[0\] is 3.0.*last event is at 4.0"):
        link.predict(([1, 2], [1.0, 4.0]), at=3.0)
    with pytest.raises(ValueError, match=r"at\[0\] is nan"):
        link.predict(([1, 2], [1.0, 4.0]), at=math.nan)
    with pytest.raises(ValueError, match=r"item\[1\] is 400"):
        link.predict(([1, 400], [1.0, 4.0]), at=5.0)
    with pytest.raises(ValueError, match=r"item\[0\] is 400"):
        link.predict(em.EventLog([0], [400], [1.0]), at=5.0)
    with pytest.raises(ValueError, match="no user of the training log"):
        link.predict(10**6, at=5.0)
    with pytest.raises(ValueError, match="one event or more"):
        link.predict(([], []), at=5.0)
    with pytest.raises(ValueError, match="two events"):
        link.score(em.EventLog([0, 1], [1, 2], [0.0, 0.0]))
    with pytest.raises(ValueError, match="two events"):
        LinkPredictor(num_clusters=2).fit(em.EventLog([0, 1], [1, 2], [0.0, 0.0]), em.EventLog([0], [1], [0.0]))
    with pytest.raises(ValueError, match="item_clusters"):
        LinkPredictor(item_clusters=[0, 1]).fit(bazaar.events)
    with pytest.raises(ValueError, match="mask_rate"):
        LinkPredictor(mask_rate=1.0)


def test_one_event_is_enough_and_an_item_never_seen_has_a_finite_score(link):
    assert torch.isfinite(link.predict(([7], [0.0]), at=0.0)).all()
    log = em.EventLog([0, 0, 0, 1, 1, 1, 2], [0, 1, 2, 0, 1, 2, 3], [0.0, 1, 2, 0, 1, 2, 0], num_items=5)
    model = LinkPredictor(dim=8, num_clusters=2, epochs=2).fit(log, log)
    scores = model.predict(([4, 3], [0.0, 1.0]), at=2.0)  # 4: in nobody's history; 3: in that of a user with one event
    assert torch.isfinite(scores).all() and scores.argmax() in (0, 1, 2)


def test_a_causal_link_predictors_rates_do_not_see_the_future(bazaar):
    model = LinkPredictor(**LINK, causal=True).fit(bazaar.events)
    items, times = [3, 50, 7, 120], [1.0, 4.0, 6.0, 9.0]
    at = np.array([2.0, 4.0, 5.9])
    before = model.intensity((items, times), at)
    torch.testing.assert_close(before, model.intensity((items[:2] + [200, 9], [1.0, 4.0, 6.5, 30.0]), at))
    assert (before[0] - model.intensity(([4] + items[1:], times), at)[0]).abs().max() > 1e-6
    both = LinkPredictor(**LINK).fit(bazaar.events)
    seen = both.intensity((items, times), at)
    assert (seen - both.intensity((items[:2] + [200, 9], [1.0, 4.0, 6.5, 30.0]), at)).abs().max() > 1e-6
    with pytest.raises(ValueError, match=r"at\[1\]"):
        model.intensity((items, times), [2.0, 0.5])


def test_link_tpple_is_the_two_point_likelihood_of_the_models_own_rates(bazaar):
    """Against the exact function, for one history, with rates asked at both ends of each interval."""
    model = LinkPredictor(**LINK, causal=True).fit(bazaar.events)
    times, items = torch.tensor([1.0, 4.0, 6.0, 9.5], dtype=torch.float64), np.array([3, 50, 7, 120])
    rows = em.EventLog(np.zeros(4, dtype=int), items, times.numpy(), num_items=400).histories(6)
    encoder = model.model_.encoder
    with torch.no_grad():
        _, _, state = model.model_.encode(rows, torch.zeros_like(rows.mask))
        ours = link_tpple(encoder, state, rows)
    right = model.intensity((items, times.numpy()), times[1:])
    left = model.intensity((items, times.numpy()), times[:-1] + 1e-9)
    marks = encoder.item_clusters[items][1:]
    by_hand = right.gather(1, marks[:, None]).log().sum() - (times.diff() / 2 * (left + right).sum(1)).sum()
    assert ours.item() == pytest.approx(by_hand.item(), abs=1e-4)


def test_tied_events_teach_without_exploding():
    log = em.EventLog(np.repeat(np.arange(20), 6), np.arange(120) % 10, np.repeat(np.arange(60.0), 2))
    model = LinkPredictor(dim=8, num_clusters=2, epochs=30, gamma=10.0, lr=0.02, patience=None).fit(log, log)
    history = [row["train_tpple"] for row in model.result_.history]
    assert all(math.isfinite(x) for x in history) and history[-1] > history[0]
    assert model.intensity(([0, 1], [0.0, 1.0]), [1.0]).max() < 50


def test_tpple_learns_the_rate_of_events(bazaar):
    rows = {}
    for gamma in (0.0, 0.1):
        settings = LINK | {"epochs": 3, "lr": 0.01, "gamma": gamma}
        model = LinkPredictor(**settings, causal=True).fit(bazaar.events)
        seen = windows(bazaar.events, 30)
        with torch.no_grad():
            _, _, state = model.model_.encode(seen, torch.zeros_like(seen.mask))
            rows[gamma] = link_tpple(model.model_.encoder, state, seen).item()
    assert rows[0.1] > rows[0.0] + 100


def test_token_masking_keeps_hidden_positions_as_keys(bazaar):
    """With CaM a hidden position's time reaches nobody else; with a token it does, its item still does not."""
    rows = em.EventLog(np.zeros(4, dtype=int), [3, 50, 7, 120], [1.0, 4.0, 6.0, 30.0], num_items=400).histories(4)
    other, later = (dataclasses.replace(rows, **{name: getattr(rows, name).clone()}) for name in ("item", "time"))
    other.item[:, 2] = 9
    later.time[:, 2] += 1.0  # the gaps stay
    hidden = torch.tensor([[False, False, True, False]])
    for masking in ("cam", "token"):
        net = LinkPredictor(**LINK, masking=masking).fit(bazaar.events).model_
        with torch.no_grad():
            h, _, _ = net.encode(rows, hidden)
            torch.testing.assert_close(net.encode(other, hidden)[0], h)
            moved = (net.encode(later, hidden)[0] - h).abs().amax(-1)[0] > 1e-6
        assert moved.tolist() == ([True] * 4 if masking == "token" else [False, False, True, False])
    with pytest.raises(ValueError, match="masking must be 'cam' or 'token', got 'none'"):
        LinkPredictor(masking="none")


def test_louder_items_are_the_same_as_longer_embeddings(bazaar):
    """Where the scores don't see it: an item scale of 2 is an encoder whose items, clusters and q(1) are doubled."""
    rows = bazaar.events.histories(6)
    plain, loud = (
        LinkPredictor(**LINK, item_scale=scale)._build(num_items=400, num_clusters=8) for scale in (1.0, 2.0)
    )
    loud.load_state_dict(plain.state_dict())
    with torch.no_grad():
        for table in (plain.encoder.items.weight, plain.encoder.clusters.weight, plain.encoder.token):
            table.mul_(2)
        nothing = torch.zeros_like(rows.mask)
        torch.testing.assert_close(plain.eval()(rows, nothing), loud.eval()(rows, nothing))
    with pytest.raises(ValueError, match="item_scale must be a positive number, got 0"):
        LinkPredictor(item_scale=0)


@pytest.mark.parametrize("causal", [False, True])
def test_a_relative_clock_does_not_know_the_year(causal):
    """Counted back from the newest position, or forward from the oldest for who may not know the newest."""
    nets = {}
    for clock in ("absolute", "relative"):
        nets[clock] = LinkPredictor(**LINK | {"calendar": None}, clock=clock, causal=causal)
        nets[clock]._build(num_items=9, num_clusters=4)
    nets["relative"].model_.load_state_dict(nets["absolute"].model_.state_dict())
    absolute, relative = (nets[clock].model_.eval() for clock in ("absolute", "relative"))
    log = em.EventLog([0] * 4 + [1] * 2, [3, 1, 4, 1, 5, 6], [2.0, 2.5, 7.0, 7.0, 1.0, 9.0], num_items=9)
    with torch.no_grad():
        rows = log.histories(5)  # both histories are padded
        later = dataclasses.replace(rows, time=torch.where(rows.mask, rows.time + 1e4, 0.0))
        start = torch.tensor([[2.0], [1.0]] if causal else [[7.0], [9.0]])
        from_there = dataclasses.replace(rows, time=torch.where(rows.mask, rows.time - start, 0.0))
        hidden = torch.zeros_like(rows.mask)
        hidden[:, -1] = True
        real, shown = rows.mask, relative(rows, hidden)
        torch.testing.assert_close(shown[real], absolute(from_there, hidden)[real])
        torch.testing.assert_close(shown[real], relative(later, hidden)[real])
        assert (absolute(rows, hidden) - absolute(later, hidden))[real].abs().max() > 0.1
        moved = dataclasses.replace(rows, time=rows.time + torch.tensor([0, 0, 0, 0, 1.0]))
        before = real & (torch.arange(5) < 4)
        change = (relative(moved, hidden) - shown)[before].abs().max()
        assert (change < 1e-6) == causal  # the past does not know when the last event came
    with pytest.raises(ValueError, match="clock must be 'absolute' or 'relative', got 'cuckoo'"):
        LinkPredictor(clock="cuckoo")


def test_a_token_speaks_with_the_mean_rate_of_all_clusters(bazaar):
    """One layer, by hand: the hidden key's weight is modulated by the mean over clusters of the query's rates."""
    net = LinkPredictor(**LINK, masking="token", num_layers=1).fit(bazaar.events).model_
    rows = em.EventLog(np.zeros(3, dtype=int), [3, 50, 7], [1.0, 4.0, 6.0], num_items=400).histories(3)
    hidden, seen = torch.tensor([[False, True, False]]), {}
    layer = net.encoder.layers[0]
    layer.register_forward_hook(lambda _, args, out: seen.update(x=args[0], out=out))
    with torch.no_grad():
        _, lam, state = net.encode(dataclasses.replace(rows, time=rows.time + 0), hidden)
        x, k = seen["x"], layer.num_clusters
        v = layer._heads(layer.value(x))[0].transpose(0, 1)  # (H, T, d)
        # attention weights from the state: s = Q v has one solution where the three values are independent
        Q = torch.linalg.lstsq(v.transpose(1, 2), state[0].transpose(1, 2)).solution.transpose(1, 2)  # (H, query, key)
        kinds = net.encoder.item_clusters[rows.item[0]]
        rates = torch.stack([lam[0, :, :, kinds[0]], lam[0].sum(-1) / k, lam[0, :, :, kinds[2]]], -1)
        by_hand = ((Q * rates) @ v).transpose(0, 1).reshape(3, -1)
    torch.testing.assert_close(seen["out"][0][0], by_hand, rtol=1e-3, atol=1e-5)


def test_rank_wants_one_event_of_each_user(link, bazaar):
    history, last = bazaar.events.hold_out_last()
    with pytest.raises(ValueError, match="last must have one event of each user"):
        link.rank(history, bazaar.events)


def test_the_link_objective_by_hand(bazaar):
    """The mean over histories of the mean over each one's hidden items, less γ times TPPLE."""
    model = LinkPredictor(**LINK | {"gamma": 0.3, "mask_rate": 0.4, "dropout": 0.0, "max_len": 12})
    model._start(bazaar.events)
    net, task, pieces, ids = model.model_.eval(), model._task(), Windows(bazaar.events, 12), torch.tensor([4, 9, 30])
    parts = task.loss(net, pieces, ids, 7, 2)
    rows, hidden = task.rows(net, pieces, ids, 7, 2)
    h, _, state = net.encode(rows, hidden)
    each = []
    for n in range(3):
        places = hidden[n].nonzero()[:, 0].tolist()
        names = [-net.scores(h[n, j]).log_softmax(-1)[rows.item[n, j]] for j in places]
        each.append(sum(names) / len(names))
    assert len(set(hidden.sum(1).tolist())) > 1  # else a mean over all items would be the same
    torch.testing.assert_close(parts["loss"][0], sum(each))
    assert parts["loss"][1] == 3 and task.terms == {"loss": 1.0, "tpple": -0.3}
    value, count = parts["tpple"]
    torch.testing.assert_close(value / count, link_tpple(net.encoder, state, rows))


def test_likelihoods_are_raised_and_movement_is_lowered():
    """Training lowers loss + Σ weight × term."""
    for cls in (LinkPredictor, NodeClassifier, TrafficForecaster):
        assert cls(gamma=0.3)._task().terms["tpple"] == -0.3
    for cls in (LinkPredictor, TrafficForecaster):
        terms = cls(gamma=0.3, regulariser="smoothness")._task().terms
        assert terms["smoothness"] == 0.3 and "tpple" not in terms


def test_smoothness_is_an_alternative(bazaar):
    model = LinkPredictor(**LINK, regulariser="smoothness").fit(bazaar.events)
    assert model.result_.history[0]["train_smoothness"] > 0
    with pytest.raises(ValueError, match="regulariser"):
        LinkPredictor(regulariser="ridge")


# --- nodes


def small_ledger():
    """Six nodes in two steps; node 1 is paid twice."""
    graph = em.TemporalGraph([0, 2, 1, 3], [1, 1, 2, 4], 6, times=[1.2, 1.6, 1.9, 2.5])
    features = np.arange(12, dtype=np.float32).reshape(6, 2)
    return SimpleNamespace(
        graph=graph, features=features, labels=np.array([0, 1, 2, -1, 0, 1]), step=np.array([1, 1, 1, 2, 2, 2])
    )


def test_a_snapshot_by_hand():
    data = small_ledger()
    (one,) = NodeClassifier(both_ways=False)._snapshots(data, [1])
    assert one["nodes"].tolist() == [0, 1, 2] and one["src"].tolist() == [0, 2, 1] and one["dst"].tolist() == [1, 1, 2]
    assert one["elapsed"].tolist() == pytest.approx([1.0, 0.4, 0.1])  # node 0 was never paid: its step began at 1
    assert one["gap"].tolist() == pytest.approx([0.0, 0.4, 0.9]) and one["latest"].tolist() == [False, True, True]
    (early,) = NodeClassifier(both_ways=False)._snapshots(data, [None], at=1.7)
    assert early["elapsed"].tolist() == pytest.approx([0.7, 0.1, 0.7]) and early["dst"].tolist() == [1, 1]
    (unit,) = NodeClassifier(both_ways=True, time_unit=0.1)._snapshots(data, [2])
    assert unit["elapsed"].tolist() == pytest.approx([5.0, 5.0, 10.0]) and unit["times"].tolist() == [25.0, 25.0]


def test_node_tpple_by_hand():
    """λ at the latest edge's mark given the edges before it, minus the trapezoid since the edge before."""
    model = NodeClassifier(both_ways=False, num_clusters=2, epochs=1, dropout=0.0)
    model.fit(small_ledger(), train_until=1, valid_until=1)
    (snap,) = model._snapshots(small_ledger(), [1])
    net = model.model_
    with torch.no_grad():
        _, x, clusters = net.embed(snap)
        ours = net.tpple(snap, x, clusters).item()
        past = em.TemporalGraph([0], [1], 3, times=[1.2])  # node 1's edge at 1.6 and node 2's at 1.9 are the latest
        query = net.encoder.ask(x, torch.tensor([1.0, 1.6, 1.9]))
        gap = torch.tensor([0.0, 0.4, 0.9])
        _, right, s = net.encoder.aia(past, x, gap, clusters, query=query, return_state=True)
        left = net.encoder.aia.intensity(s, torch.zeros(3))
        left, right = left.mean(1), right.mean(1)
        by_hand = sum(
            right[u, clusters[i]].log() - gap[u] / 2 * (left[u] + right[u]).sum() for u, i in ((1, 2), (2, 1))
        )
    assert ours == pytest.approx(by_hand.item() / 3, abs=1e-5)


def test_the_future_is_not_known(node, ledger):
    """Asked at 20.5, edges and nodes after that change nothing."""
    early = node.predict(ledger, at=20.5)
    assert torch.isnan(early[ledger.step > 20]).all() and torch.isfinite(early[ledger.step <= 20]).all()
    graph = ledger.graph
    past = graph.select(graph.times < 20.5)
    torch.testing.assert_close(node.predict(dataclasses.replace(ledger, graph=past), at=20.5), early, equal_nan=True)
    assert (early - node.predict(ledger, at=20.9))[ledger.step == 20].abs().max() > 1e-4
    torch.testing.assert_close(early[: (ledger.step < 21).sum()].sum(1), torch.ones(int((ledger.step < 21).sum())))


def test_predictions_do_not_look_at_labels(node, ledger):
    blind = dataclasses.replace(ledger, labels=np.full_like(ledger.labels, -1))
    assert torch.equal(node.predict(ledger), node.predict(blind))


def test_masked_and_unmasked_losses_are_reported_apart(node):
    row = node.result_.history[0]
    assert row["train_masked"] != row["train_unmasked"] and row["train_loss"] == pytest.approx(
        0.2 * row["train_masked"] + 0.8 * row["train_unmasked"], abs=0.02
    )


def test_scores_per_step(node, ledger):
    each, whole = node.score(ledger, (40, 42), per_step=True), node.score(ledger, (40, 42))
    assert list(each) == [40, 41, 42] and sum(x["nodes"] for x in each.values()) == whole["nodes"]
    right = sum(x["nodes"] * x["accuracy"] for x in each.values())
    assert whole["accuracy"] == pytest.approx(right / whole["nodes"])


@pytest.mark.parametrize("masking", ["token", "none"])
def test_other_maskings_train(masking, ledger):
    row = NodeClassifier(**NODE, masking=masking).fit(ledger).result_.history[0]
    assert ("train_masked" in row) == (masking == "token")


def test_the_node_calendar_reads_the_graphs_own_clock(ledger, monkeypatch):
    import sys

    seen = []
    module, real = sys.modules["easydgl_mini.train.node"], sys.modules["easydgl_mini.train.node"].calendar_features
    monkeypatch.setattr(module, "calendar_features", lambda t, *rest: seen.append((t, *rest)) or real(t, *rest))
    settings = NODE | {"time_unit": 0.5, "calendar": "days", "origin": "2024-01-01", "dim": 8}
    model = NodeClassifier(**settings).fit(ledger, 3, 4)
    seen.clear()
    out = model.predict(ledger, at=20.5)
    assert len(seen) == 1 and set(seen[0][0].tolist()) == {20.5} and seen[0][1:] == ("days", "2024-01-01")
    monkeypatch.setattr(module, "calendar_features", lambda t, *rest: real(t + 3, *rest))  # three days later
    assert (model.predict(ledger, at=20.5) - out)[ledger.step <= 20].abs().max() > 1e-5


def test_features_may_be_absent_or_constant(ledger):
    """Without features a node is known by its edges; a column that never varies in training is not blown up."""
    bare = SimpleNamespace(graph=ledger.graph, features=None, labels=ledger.labels, step=ledger.step)
    model = NodeClassifier(**NODE, dim=8).fit(bare, 3, 4)
    assert model.sizes_ == {"in_feats": 2} and torch.isfinite(model.predict(bare)).all()
    fixed = dataclasses.replace(ledger, features=np.where(np.arange(16) == 0, 7.0, ledger.features))
    model = NodeClassifier(**NODE, dim=8).fit(fixed, 3, 4)
    (snapshot,) = model._snapshots(dataclasses.replace(fixed, features=fixed.features + 1.0), [5])
    assert (snapshot["features"][:, 0] == 1.0).all() and snapshot["features"].abs().max() < 20


def test_node_bad_input(ledger, node):
    labels = ledger.labels.copy()
    labels[17] = 3
    with pytest.raises(ValueError, match=r"labels\[17\] is 3; expected 0 … 2"):
        NodeClassifier(**NODE).fit(dataclasses.replace(ledger, labels=labels))
    with pytest.raises(ValueError, match="edge times"):
        node.predict(dataclasses.replace(ledger, graph=em.TemporalGraph([0], [1], 6000)))
    with pytest.raises(ValueError, match="features must have one row per node"):
        node.predict(dataclasses.replace(ledger, features=ledger.features[:5]))
    features = ledger.features.copy()
    features[4, 2] = np.nan
    with pytest.raises(ValueError, match=r"features\[4\]"):
        node.predict(dataclasses.replace(ledger, features=features))
    with pytest.raises(ValueError, match="no labelled node"):
        node.score(ledger, (60, 70))
    with pytest.raises(ValueError, match="masking"):
        NodeClassifier(masking="some")
    with pytest.raises(ValueError, match="at must be"):
        node.predict(ledger, at=math.inf)


# --- roads


def test_presets():
    paper, release = TrafficForecaster(), TrafficForecaster(preset="release")
    assert (paper.window, paper.dim, paper.mask_rate, paper.loss, paper.split) == (1, 32, 0.2, "mse", (0.7, 0.2, 0.1))
    assert (release.window, release.dim, release.mask_rate, release.loss) == (12, 64, 0.05, "mae")
    assert TrafficForecaster(preset="release", dim=16).dim == 16
    assert release.parts(100) == (slice(0, 70), slice(70, 80), slice(80, 100))
    with pytest.raises(ValueError, match="preset"):
        TrafficForecaster(preset="best")


def test_congestion_and_normalisation_by_hand():
    """One road's hour: mean 60, deviation 10 → bound 43.55. An onset is the first reading below, gaps bridged."""
    graph = em.TemporalGraph([0], [1], 2)
    times = np.arange(40) * 5.0
    steady = np.tile([50.0, 70.0], 20)
    readings = np.stack([steady, np.zeros(40)], 1)
    model = TrafficForecaster(num_clusters=1, epochs=1, split=(0.3, 0.5, 0.2), mask_rate=0.0)
    model._build(num_nodes=2, num_edges=1, minutes=5.0)
    net = model.model_
    net.learn(graph, torch.tensor(readings[:12], dtype=torch.float32), times[:12], model)
    assert net.mean.tolist() == [60, 60] and net.scale.tolist() == pytest.approx([10, 10.44], abs=0.1)
    assert net.bound[0, 0].item() == pytest.approx(60 - 16.45) and net.bound[5, 0].item() == pytest.approx(60 - 16.45)
    now = torch.tensor([[60.0, 60], [40, 60], [41, 60], [0, 60], [42, 60], [60, 60], [0, 0], [43, 60]])
    scaled, valid, onset, latest, _ = net.prepare(now, times[:8])
    assert onset[:, 0].tolist() == [False, True, False, False, False, False, False, True] and not onset[:, 1].any()
    assert latest[:, 0].tolist() == [0, 5, 5, 5, 5, 5, 5, 35]
    assert scaled[:4, 0].tolist() == pytest.approx([0, -2, -1.9, 0]) and valid[3].tolist() == [False, True]


def test_road_tpple_by_hand():
    """Roads 0 → 1 ← 2. Congestion starts on 0 and 2 one step from now: two marks for road 1, none for the others."""
    model = TrafficForecaster(num_clusters=3, num_heads=2, dim=4, both_ways=False)
    net = model._build(num_nodes=3, num_edges=2, minutes=5.0)
    net.src.copy_(torch.tensor([0, 2]))
    net.dst.copy_(torch.tensor([1, 1]))
    net.clusters.copy_(torch.tensor([2, 0, 1]))
    onset = torch.tensor([[False, False, False], [True, True, True]])
    part = SimpleNamespace(onset=onset, times=torch.tensor([60.0, 90.0]))
    state, last = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([[0.0, 0.25, 0.5]])
    with torch.no_grad():
        ours = net.tpple(part, torch.tensor([0]), state, last, torch.zeros(1, 3, dtype=torch.bool))
        gap = 1.5 - 0.25  # hours
        left, right = (net.encoder.aia.intensity(state, torch.full((3,), dt)).mean(1)[1] for dt in (0.0, gap))
        by_hand = right[2].log() + right[1].log() - gap / 2 * (left + right).sum()
        masked = net.tpple(part, torch.tensor([0]), state, last, torch.tensor([[False, True, False]]))
    assert ours.item() == pytest.approx(by_hand.item() / 3, abs=1e-6) and masked == 0


def test_a_roads_clock_runs_from_its_neighbours_congestion(road, monkeypatch):
    """Elapsed time is counted from the latest onset on a road that is heard, edge times are that onset's."""
    net, seen = road.model_, {}
    real = net.encoder.forward

    def spy(graph, feat, elapsed, *rest, **more):
        seen.update(graph=graph, elapsed=elapsed)
        return real(graph, feat, elapsed, *rest, **more)

    monkeypatch.setattr(net.encoder, "forward", spy)
    latest = torch.rand(5, 24, generator=torch.Generator().manual_seed(0)) * 600
    part = SimpleNamespace(
        scaled=torch.zeros(5, 24),
        valid=torch.ones(5, 24, dtype=torch.bool),
        latest=latest,
        times=600 + 5.0 * torch.arange(5, dtype=torch.float64),
    )
    with torch.no_grad():
        net(part, torch.tensor([1, 4]), torch.tensor([620.0, 650.0], dtype=torch.float64))
    for copy, (row, at) in enumerate(((1, 620.0), (4, 650.0))):
        for u in range(24):
            heard = [int(i) for i, v in zip(net.src, net.dst, strict=True) if v == u]
            since = at - max(latest[row, i].item() for i in heard)
            assert seen["elapsed"][24 * copy + u].item() == pytest.approx(since / 60, abs=1e-4)
    edge = len(net.src) + 3  # in the second copy
    assert seen["graph"].times[edge].item() == pytest.approx(latest[4, net.src[3]].item() / 60, abs=1e-5)
    assert (int(seen["graph"].src[edge]), int(seen["graph"].dst[edge])) == (24 + net.src[3], 24 + net.dst[3])


def test_windows_never_cross_a_border(freeway):
    """Changing readings of one part changes neither the other parts' scores nor the training."""
    model = TrafficForecaster(**ROAD, window=4).fit(freeway)
    other = SimpleNamespace(graph=freeway.graph, readings=freeway.readings.copy(), times=freeway.times)
    other.readings[900:] = 33.0  # the test part
    assert model.score(other, part="valid") == model.score(freeway, part="valid")
    again = TrafficForecaster(**ROAD, window=4).fit(other)
    one, two = model.model_.state_dict(), again.model_.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert model.score(other) != model.score(freeway)


def test_score_is_what_predict_says_road_by_road(road, freeway):
    errors = []
    for n in range(900, 1000 - 12):
        until = SimpleNamespace(graph=freeway.graph, readings=freeway.readings[: n + 1], times=freeway.times[: n + 1])
        if n % 29 == 0:  # a sample: each forecast from the data up to then alone
            guess = road.predict(until, at=freeway.times[n] + 30.0)
            full = road.model_.forecasts(_part(road, freeway, n), [6])[6][0][0]
            torch.testing.assert_close(guess, full, rtol=1e-4, atol=1e-3)
            errors.append(n)
    assert len(errors) >= 3


def _part(model, data, n):
    from easydgl_mini.train.traffic import _Part

    return _Part(*model.model_.prepare(*model._check(data)), n, 1)


def test_roads_hear_upstream_and_downstream_only_when_told(freeway):
    model = TrafficForecaster(**ROAD, both_ways=False).fit(freeway)
    src, dst = freeway.graph.edges()
    reach = {int(src[0])}
    for _ in range(3):
        reach |= {int(v) for u, v in zip(src, dst, strict=True) if int(u) in reach}
    other = SimpleNamespace(graph=freeway.graph, readings=freeway.readings.copy(), times=freeway.times)
    other.readings[-1, src[0]] += 5.0
    moved = (model.predict(freeway, at=5100.0) - model.predict(other, at=5100.0)).abs() > 1e-6
    assert set(moved.nonzero()[:, 0].tolist()) <= reach and moved[src[0]] and moved[dst[0]]


def test_missing_readings(freeway, road):
    """A road without any reading is still forecast; a missing target is neither learned from nor counted."""
    readings = freeway.readings.copy()
    readings[:, 3] = 0.0
    silent = SimpleNamespace(graph=freeway.graph, readings=readings, times=freeway.times)
    model = TrafficForecaster(**ROAD).fit(silent)
    assert torch.isfinite(model.predict(silent, at=5000.0)).all() and math.isfinite(model.score(silent)["mape@12"])
    nothing = SimpleNamespace(graph=freeway.graph, readings=np.zeros((3, 24)), times=freeway.times[:3])
    assert torch.isfinite(road.predict(nothing, at=15.0)).all()
    with pytest.raises(ValueError, match="no valid reading"):
        TrafficForecaster(**ROAD).fit(
            SimpleNamespace(graph=freeway.graph, readings=np.zeros((300, 24)), times=freeway.times[:300])
        )
    nan = np.where(readings == 0, np.nan, readings)
    as_nan = SimpleNamespace(graph=freeway.graph, readings=nan, times=freeway.times)
    torch.testing.assert_close(model.predict(as_nan, at=5000.0), model.predict(silent, at=5000.0))
    assert model.score(as_nan) == model.score(silent)


def test_any_time_can_be_asked(road, freeway):
    both = road.predict(freeway, at=[4995.0, 5007.5])
    torch.testing.assert_close(both[1], road.predict(freeway, at=5007.5))
    assert (both[0] - both[1]).abs().max() > 1e-4


def test_road_bad_input(road, freeway):
    with pytest.raises(ValueError, match=r"at\[1\] is 10.0, before the last reading"):
        road.predict(freeway, at=[5000.0, 10.0])
    with pytest.raises(ValueError, match="readings must be"):
        road.predict(SimpleNamespace(graph=freeway.graph, readings=np.ones((5, 3)), times=np.arange(5.0)), at=9.0)
    with pytest.raises(ValueError, match="part must be"):
        road.score(freeway, part="tests")
    few = em.TemporalGraph([0], [1], 3)
    with pytest.raises(ValueError, match="24 roads"):
        road.predict(SimpleNamespace(graph=few, readings=np.ones((5, 3)), times=np.arange(5.0)), at=9.0)
    with pytest.raises(ValueError, match="no window"):
        road.score(SimpleNamespace(graph=freeway.graph, readings=freeway.readings[:60], times=freeway.times[:60]))
    uneven = freeway.times.copy()
    uneven[5:] += 2
    with pytest.raises(ValueError, match=r"evenly spaced.*times\[5\] is 27.0"):
        TrafficForecaster(**ROAD).fit(SimpleNamespace(graph=freeway.graph, readings=freeway.readings, times=uneven))


def test_road_smoothness_is_about_time_not_masking(freeway, monkeypatch):
    """Both forecasts that are compared are of the same masked roads."""
    model = TrafficForecaster(**ROAD, regulariser="smoothness", mask_rate=0.5).fit(freeway)
    task, part, seen = model._task(), _part(model, freeway, 400), []
    forward = type(model.model_).forward
    monkeypatch.setattr(type(model.model_), "forward", lambda net, *args: seen.append(args) or forward(net, *args))
    task.loss(model.model_, part, torch.arange(3), 0, 0)
    (_, now, at, labels, masked), (_, then, later, known, hidden) = seen
    assert torch.equal(now, then) and torch.equal(later - at, torch.full_like(at, 5.0)) and masked.any()
    assert torch.equal(labels, known) and torch.equal(masked, hidden)


def test_road_smoothness_and_detach_train(freeway):
    row = TrafficForecaster(**ROAD, regulariser="smoothness", detach=True).fit(freeway).result_.history[0]
    assert row["train_smoothness"] > 0 and row["train_masked"] > 0


@pytest.mark.parametrize("preset", ["paper", "release"])
def test_token_masking_of_roads(freeway, preset):
    """A road under the token is silent: its readings move no forecast, not even its own. Under CaM only its own."""
    hidden, labels = torch.zeros(2, 24, dtype=torch.bool), torch.zeros(2, 24)
    hidden[:, 5] = True
    rows, at = torch.tensor([300, 400]), torch.tensor([1530.0, 2040.0], dtype=torch.float64)
    for masking, listeners in (("token", []), ("cam", [5])):
        model = TrafficForecaster(**ROAD, preset=preset, masking=masking, adaptive=False).fit(freeway)
        part = _part(model, freeway, 400)
        other = dataclasses.replace(part, scaled=part.scaled.clone())
        other.scaled[:, 5] += 1.0
        with torch.no_grad():
            a, b = (model.model_(x, rows, at, labels, hidden)[0] for x in (part, other))
            heard = [model.model_(x, rows, at)[0] for x in (part, other)]
        assert (a - b).abs().amax(0).gt(1e-6).nonzero()[:, 0].tolist() == listeners
        assert (heard[0] - heard[1]).abs().amax(0).gt(1e-6).sum() > 1  # unmasked, it is


def test_maskings_of_roads_train(freeway):
    token, none = (TrafficForecaster(**ROAD, masking=x).fit(freeway) for x in ("token", "none"))
    assert "train_masked" in token.result_.history[0] and "train_masked" not in none.result_.history[0]
    assert {"token.token"} == {n for n, _ in token.model_.named_parameters() if "token" in n}
    assert not any(n.startswith(("token", "cam")) for n, _ in none.model_.named_parameters())
    with pytest.raises(ValueError, match="masking must be one of cam, token, none, got 'bert'"):
        TrafficForecaster(masking="bert")


def test_roads_follow_the_datas_own_calendar(freeway):
    """The same week, told in another clock: a forecast depends on the moment, not on where the clock starts."""
    data = SimpleNamespace(**vars(freeway), origin="2012-03-01T06:00")
    model = TrafficForecaster(**ROAD).fit(data)
    assert model.origin == "2012-03-01T06:00"
    shifted = SimpleNamespace(**vars(freeway), origin="2012-03-01")
    shifted.times = freeway.times + 360.0
    torch.testing.assert_close(model.predict(data, at=5010.0), model.predict(shifted, at=5370.0))
    earlier = SimpleNamespace(graph=freeway.graph, readings=freeway.readings[:9], times=freeway.times[:9])
    earlier.origin = "2012-02-20"  # before the clock of training started
    assert torch.isfinite(model.predict(earlier, at=45.0)).all()
    plain = TrafficForecaster(**ROAD).fit(freeway)
    assert (plain.predict(freeway, at=5010.0) - model.predict(data, at=5010.0)).abs().max() > 1e-3


def test_what_roads_are_told_of_the_time(freeway):
    """ "day": 6:00 on a Thursday is a quarter turn, a half, three quarters, and 3/7 of a week; no day is ever new."""
    model = TrafficForecaster(**ROAD, moment="day").fit(freeway)
    times = torch.tensor([3 * 1440 + 360.0, 3 * 1440 + 365.0, 31 * 1440 + 360.0], dtype=torch.float64)
    angle = 2 * np.pi * np.array([[1 / 4, 2 / 4, 3 / 4, 3 / 7]])
    expected = np.concatenate([np.sin(angle), np.cos(angle)], 1)
    told = model.model_.when(times).numpy()
    assert told[:1] == pytest.approx(expected, abs=1e-5) and told[2] == pytest.approx(told[0], abs=1e-5)
    assert [bool(x) for x in np.abs(told[1] - told[0]) > 1e-5] == [True, True, True, False] * 2  # five minutes later
    plain = TrafficForecaster(**ROAD)._build(num_nodes=24, num_edges=54, minutes=5.0)
    assert torch.equal(plain.when(times), em.encode.calendar(times, "minutes", "2024-01-01"))
    assert TrafficForecaster(preset="release").moment == "day"
    with pytest.raises(ValueError, match="moment must be one of calendar, day, got 'night'"):
        TrafficForecaster(moment="night")


def test_validation_asks_each_row_about_one_horizon(freeway, road):
    from easydgl_mini.train.traffic import _limits, _Part

    part = _Part(*road.model_.prepare(*road._check(freeway)), *_limits(slice(700, 900), 1))
    with torch.no_grad():
        ours = road._task().evaluate(road.model_, part)["mae"]
    guess, truth = [], []
    for n in range(700, 700 + part.count):
        h = HORIZONS[n % 4]
        full = road.model_.forecasts(_part(road, freeway, n), [h])[h]
        guess.append(full[0][0])
        truth.append(torch.from_numpy(freeway.readings[n + h]))
    assert ours == pytest.approx(mae(torch.stack(guess), torch.stack(truth)), abs=1e-4)
