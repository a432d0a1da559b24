"""The traffic baselines: what makes each of them itself, by hand or against dense matrices; one protocol for all."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import easydgl_mini as em
from easydgl_mini.baselines import REGISTRY
from easydgl_mini.baselines.dcrnn import DCGRUCell, DiffusionConv, both_walks, channels, diffuse, random_walk
from easydgl_mini.baselines.graph_wavenet import DILATIONS, FIELD, adaptive_walk
from easydgl_mini.baselines.stgcn import Block, GatedConv, chebyshev, rescaled_laplacian, taps
from easydgl_mini.train import TrafficForecaster, mae
from easydgl_mini.train.traffic import HORIZONS, STEPS, _limits, _Part

CLOSED = ("last_value", "historical_average")
TRAINED = ("dcrnn", "stgcn", "stid", "graph_wavenet")
N = 5


def roads(times=400, weights=True, seed=0):
    """Five roads, a directed ring with one short cut; readings that repeat every day, with noise and gaps."""
    rng = np.random.default_rng(seed)
    src, dst = np.array([0, 1, 2, 3, 4, 0]), np.array([1, 2, 3, 4, 0, 2])
    graph = em.TemporalGraph(src, dst, N, weights=rng.uniform(0.2, 1, 6) if weights else None)
    minutes = 5.0 * np.arange(times)
    usual = 60 + 8 * np.sin(2 * np.pi * (minutes[:, None] / 1440 + np.arange(N) / N))
    readings = usual + rng.standard_normal((times, N))
    readings[rng.random(readings.shape) < 0.05] = 0.0
    return SimpleNamespace(graph=graph, readings=readings, times=minutes)


def model(name, data=None, **settings):
    """An untrained network that has taken its graph and statistics from the data."""
    estimator, data = REGISTRY[name]("traffic", **settings), roads() if data is None else data
    estimator._build(num_nodes=N, num_edges=data.graph.num_edges, minutes=5.0)
    estimator.model_.learn(data.graph, *estimator._check(data), estimator)
    return estimator.model_.eval()


def windows(rows=12, batch=3, seed=0):
    """Random standardised windows, all there, and clocks."""
    draw = torch.Generator().manual_seed(seed)
    seen = torch.randn(batch, rows, N, generator=draw)
    clock = torch.stack([torch.rand(batch, generator=draw), torch.arange(batch) % 7], 1)
    return seen, torch.ones_like(seen), clock


# --- the protocol


def test_every_row_of_the_table_has_a_name():
    for name in CLOSED + TRAINED:
        estimator = REGISTRY[name]("traffic")
        assert (estimator.window, estimator.dim, estimator.loss, estimator.split) == (12, 32, "mae", (0.7, 0.2, 0.1))
        assert REGISTRY[name]("traffic", preset="release").split == (0.7, 0.1, 0.2)
    with pytest.raises(ValueError, match="preset must be one of paper, release, got 'best'"):
        REGISTRY["stid"]("traffic", preset="best")
    with pytest.raises(ValueError, match="loss must be"):
        REGISTRY["stid"]("traffic", loss="huber")


def test_last_value_by_hand():
    """The latest reading that is there, gaps bridged; the road's mean where the window has none."""
    net = model("last_value", window=3)
    seen = torch.tensor([[[1.0, 2, 3, 4, 0], [5, 0, 7, 0, 0], [9, 0, 0, 0, 0]]])
    there = torch.tensor([[[1.0, 1, 1, 1, 0], [1, 0, 1, 0, 0], [1, 0, 0, 0, 0]]])
    out = net(seen, there, torch.zeros(1, 2))
    assert out.shape == (1, STEPS, N) and out[0, 0].tolist() == [9, 2, 7, 4, 0] and torch.equal(out[:, 0], out[:, 11])
    data = roads()
    data.readings[-1] = np.arange(51.0, 51 + N)
    ahead = REGISTRY["last_value"]("traffic").fit(data).predict(data, at=data.times[-1] + 37)
    assert ahead.numpy() == pytest.approx(data.readings[-1], abs=1e-3)


def test_a_second_fit_forgets_the_first_ones_roads():
    data, estimator = roads(), REGISTRY["last_value"]("traffic").fit(roads())
    data.readings[-1] = np.arange(51.0, 51 + N)
    kept = (data.graph.src < N - 1) & (data.graph.dst < N - 1)
    graph = em.TemporalGraph(data.graph.src[kept], data.graph.dst[kept], N - 1)
    fewer = SimpleNamespace(graph=graph, readings=data.readings[:, :-1], times=data.times)
    with pytest.raises(ValueError, match=f"must have the {N} roads of the training data"):
        estimator.predict(fewer, at=data.times[-1] + 5)
    again = estimator.fit(fewer).predict(fewer, at=data.times[-1] + 5)
    assert again.shape == (N - 1,) and again.numpy() == pytest.approx(data.readings[-1, :-1], abs=1e-3)


def test_historical_average_is_by_time_of_week_where_covered_else_of_day():
    """Eight training days from a Monday. A Monday is averaged over two of them, a Tuesday stands alone."""
    data = roads(10 * 288)
    data.readings = np.where(data.readings == 0, 0.0, 50 + (data.times[:, None] // 1440) + np.arange(N))
    data.readings[5] = data.readings[5 + 7 * 288] = 0.0  # nobody read anything on Mondays at 0:25
    estimator = REGISTRY["historical_average"]("traffic", split=(0.8, 0.1, 0.1)).fit(data)
    until = SimpleNamespace(graph=data.graph, readings=data.readings[: 8 * 288], times=data.times[: 8 * 288])
    ahead = estimator.predict(until, at=8 * 1440.0 + 25)  # Tuesday 0:25
    has = data.readings[288 + 5] > 0
    assert ahead.numpy()[has] == pytest.approx((51 + np.arange(N))[has], abs=1e-3)
    monday = SimpleNamespace(graph=data.graph, readings=data.readings[: 7 * 288], times=data.times[: 7 * 288])
    both = (data.readings[6] > 0) & (data.readings[7 * 288 + 6] > 0)
    assert both.any()
    got = estimator.predict(monday, at=7 * 1440.0 + 30).numpy()
    assert got[both] == pytest.approx((53.5 + np.arange(N))[both], abs=1e-3)  # mean of days 0 and 7
    that_time = data.readings[5 : 8 * 288 : 288]
    by_day = that_time.sum(0) / (that_time > 0).sum(0)
    assert estimator.predict(monday, at=7 * 1440.0 + 25).numpy() == pytest.approx(by_day, abs=1e-3)


def test_historical_average_follows_the_datas_own_calendar():
    """The same readings, said to start on a Thursday: what was learned on Thursdays is asked for on Thursdays."""
    data = roads(9 * 288)
    data.readings = 50 + (data.times[:, None] // 1440) + np.zeros((1, N))
    data.origin = "2012-03-01"
    estimator = REGISTRY["historical_average"]("traffic", split=(0.8, 0.1, 0.1)).fit(data)
    assert estimator.origin == "2012-03-01"
    later = SimpleNamespace(
        graph=data.graph, readings=data.readings[:12], times=data.times[:12], origin="2012-03-09T00:00"
    )
    ask = estimator.predict(later, at=60.0)  # a Friday, 1:00
    assert ask.numpy() == pytest.approx(51.0, abs=1e-3)
    later.origin = "2012-03-12"
    assert estimator.predict(later, at=60.0).numpy() == pytest.approx(54.0, abs=1e-3)  # a Monday


def test_between_two_steps_the_forecast_is_a_line(monkeypatch):
    data = roads()
    estimator = REGISTRY["last_value"]("traffic").fit(data)
    steps = torch.arange(1.0, 13).view(1, 12, 1) * torch.arange(1.0, N + 1)
    monkeypatch.setattr(estimator.model_, "ahead", lambda part, now: steps)
    last = data.times[-1]
    data.readings[-1] = [10.0, 20.0, 0.0, 40.0, 50.0]
    got = estimator.predict(data, at=[last + 5, last + 12.5, last + 60, last, last + 2.5])
    one = torch.arange(1.0, N + 1)
    torch.testing.assert_close(got[:3], torch.stack([one, 2.5 * one, 12 * one]))
    torch.testing.assert_close(got[3], torch.tensor([10.0, 20, 3, 40, 50]), rtol=1e-5, atol=1e-4)  # no reading: step 1
    torch.testing.assert_close(got[4], torch.tensor([5.5, 11, 3, 22, 27.5]), rtol=1e-5, atol=1e-4)
    assert estimator.predict(data, at=last + 12.5).shape == (N,)
    with pytest.raises(ValueError, match=rf"at\[1\] is {last + 60.5}, more than 12 steps of 5 minutes"):
        estimator.predict(data, at=[last + 60, last + 60.5])
    with pytest.raises(ValueError, match=r"at\[0\] is 0.0, before the last reading"):
        estimator.predict(data, at=0.0)
    with pytest.raises(ValueError, match="horizons must be whole numbers of steps from 1 to 12, got 13"):
        estimator.score(data, horizons=(3, 13))


def test_a_score_is_one_pass_and_what_predict_says(monkeypatch):
    data = roads(600)
    estimator = REGISTRY["stid"]("traffic", dim=4, epochs=1).fit(data)
    rows, real = [], estimator.model_.forward
    monkeypatch.setattr(estimator.model_, "forward", lambda seen, *x: rows.append(len(seen)) or real(seen, *x))
    score = estimator.score(data)
    first = 540
    assert sum(rows) == 60 - 11 - 12  # every row of the test part once, whatever the number of horizons
    guess, truth = [], []
    for now in range(first + 11, 600 - 12):
        until = SimpleNamespace(graph=data.graph, readings=data.readings[: now + 1], times=data.times[: now + 1])
        guess.append(estimator.predict(until, at=data.times[now] + 45.0))
        truth.append(torch.from_numpy(data.readings[now + 9]))
    assert score["mae@9"] == pytest.approx(mae(torch.stack(guess), torch.stack(truth)), abs=1e-4)


@pytest.mark.parametrize("name", CLOSED + TRAINED)
def test_what_lies_under_a_missing_mark_is_never_seen(name):
    """A road's missing readings may be 0 or NaN; training, scores and forecasts are the same. Nor does a road that is
    silent stop the others."""
    data = roads(300)
    data.readings[:, 3] = 0.0
    nan = SimpleNamespace(
        graph=data.graph, readings=np.where(data.readings == 0, np.nan, data.readings), times=data.times
    )
    settings = {"dim": 4, "epochs": 1, "batch_size": 32}
    one, two = (REGISTRY[name]("traffic", **settings).fit(x) for x in (data, nan))
    a, b = one.model_.state_dict(), two.model_.state_dict()
    assert all(torch.equal(a[key], b[key]) for key in a) and one.score(data) == two.score(nan)
    asked = one.predict(data, at=data.times[-1] + 10)
    assert torch.equal(asked, two.predict(nan, at=data.times[-1] + 10)) and torch.isfinite(asked).all()


def test_missing_targets_have_no_weight(monkeypatch):
    """The loss is the mean over valid readings among the next twelve: by hand, with deviations as the unit."""
    data = roads(200)
    estimator = REGISTRY["stid"]("traffic", dim=4)
    estimator._build(num_nodes=N, num_edges=6, minutes=5.0)
    readings, times = estimator._check(data)
    net = estimator.model_
    net.learn(data.graph, readings, times, estimator)
    from easydgl_mini.train.traffic import _Part

    part = _Part(*net.prepare(readings, times), 11, 150)
    monkeypatch.setattr(net, "ahead", lambda part, now: torch.full((len(now), 12, N), 61.0))
    for loss, power in (("mae", 1), ("mse", 2)):
        estimator.loss = loss
        total, count = estimator._task().loss(net, part, torch.tensor([4, 90]), 0, 0)["loss"]
        target = np.concatenate([data.readings[16:28], data.readings[102:114]])
        error = np.abs(target[target != 0] - 61.0) / net.scale.mean().item()
        assert count == len(error) < 24 * N and total.item() == pytest.approx((error**power).sum(), rel=1e-5)


@pytest.mark.parametrize("name", CLOSED + TRAINED)
def test_saved_and_loaded(name, tmp_path):
    data = roads(300)
    estimator = REGISTRY[name]("traffic", dim=4, epochs=1).fit(data)
    estimator.save(tmp_path / "model.pt")
    again = type(estimator).load(tmp_path / "model.pt")
    at = [data.times[-1] + 5, data.times[-1] + 33]
    assert torch.equal(estimator.predict(data, at), again.predict(data, at)) and repr(again) == repr(estimator)


def test_clocks():
    """Monday 1 January 2024, 0:00 is (0, 0); minutes and days move on; another origin, another weekday."""
    net = model("stid")
    clock = net.clock(torch.tensor([0.0, 360.0, 1440.0 * 6 + 720, 1440.0 * 7 + 5]))
    torch.testing.assert_close(clock, torch.tensor([[0.0, 0], [0.25, 0], [0.5, 6], [5 / 1440, 0]]))
    data = roads()
    data.origin = "2012-03-01T06:00"
    net = REGISTRY["stid"]("traffic", dim=4, epochs=1).fit(data).model_
    torch.testing.assert_close(net.clock(torch.tensor([0.0, 1080.0])), torch.tensor([[0.25, 3.0], [0.0, 4.0]]))


# --- DCRNN


def test_walks_are_row_stochastic():
    data = roads()
    A = model("dcrnn", data, dim=4).adjacency()
    src, dst = data.graph.edges()
    dense = np.zeros((N, N))
    dense[src, dst] = data.graph.weights
    assert A.numpy() == pytest.approx(dense, abs=1e-6)
    forth, back = both_walks(A)
    assert forth.numpy() == pytest.approx(dense / dense.sum(1, keepdims=True), abs=1e-6)
    assert back.numpy() == pytest.approx(dense.T / dense.T.sum(1, keepdims=True), abs=1e-6)
    assert not torch.allclose(forth, back)
    A[2] = 0.0  # a road that leads nowhere
    assert random_walk(A).sum(1).tolist() == pytest.approx([1, 1, 0, 1, 1])


def test_diffusion_is_powers_of_the_walks():
    draw = torch.Generator().manual_seed(0)
    walks = both_walks(torch.rand(N, N, generator=draw)).double()
    x = torch.randn(2, N, 3, generator=draw, dtype=torch.float64)
    got = diffuse(walks, x, 3).numpy()
    powers = [np.linalg.matrix_power(p, k) for p in walks.numpy() for k in (1, 2, 3)]
    expected = np.concatenate([p @ x.numpy() for p in [np.eye(N), *powers]], -1)
    assert got == pytest.approx(expected, abs=1e-12)
    conv = DiffusionConv(3, 2, order=2).double()
    theta = conv.linear.weight.detach().numpy().T.reshape(5, 3, 2)
    by_hand = sum(
        p @ x.numpy() @ t for p, t in zip([np.eye(N), *(powers[i] for i in (0, 1, 3, 4))], theta, strict=True)
    )
    assert conv(walks, x).detach().numpy() == pytest.approx(by_hand + conv.linear.bias.detach().numpy(), abs=1e-12)


def test_the_cell_by_hand_and_without_walks_is_a_gru_on_each_road():
    draw = torch.Generator().manual_seed(1)
    walks = both_walks(torch.rand(N, N, generator=draw))
    x, h = torch.randn(1, N, 2, generator=draw), torch.randn(1, N, 3, generator=draw)
    for order in (0, 2):
        cell = DCGRUCell(2, 3, order)
        with torch.no_grad():
            cell.gates.linear.bias.normal_(generator=draw)
            new = cell(walks, x, h)[0].numpy()
        P = [np.eye(N)] + [np.linalg.matrix_power(p, k) for p in walks.numpy() for k in range(1, order + 1)]
        W, b = cell.gates.linear.weight.detach().numpy(), cell.gates.linear.bias.detach().numpy()
        V, c = cell.candidate.linear.weight.detach().numpy(), cell.candidate.linear.bias.detach().numpy()
        sigmoid = lambda z: 1 / (1 + np.exp(-z))  # noqa: E731
        xs, hs = x[0].numpy(), h[0].numpy()
        both = sigmoid(np.concatenate([p @ np.concatenate([xs, hs], 1) for p in P], 1) @ W.T + b)
        r, u = both[:, :3], both[:, 3:]
        new_c = np.tanh(np.concatenate([p @ np.concatenate([xs, r * hs], 1) for p in P], 1) @ V.T + c)
        assert new == pytest.approx(u * hs + (1 - u) * new_c, abs=1e-6)
    with torch.no_grad():  # r = 1 makes it torch's GRU cell, whose z is our u
        cell, gru = DCGRUCell(2, 3, 0), torch.nn.GRUCell(2, 3)
        W, V = cell.gates.linear.weight, cell.candidate.linear.weight
        cell.gates.linear.bias[:3] = 50.0
        gru.bias_hh.zero_()
        gru.bias_ih.copy_(torch.cat([cell.gates.linear.bias, cell.candidate.linear.bias]))
        gru.weight_ih.copy_(torch.cat([W[:, :2], V[:, :2]]))
        gru.weight_hh.copy_(torch.cat([W[:, 2:], V[:, 2:]]))
        torch.testing.assert_close(cell(walks, x, h)[0], gru(x[0], h[0]))


def test_the_decoder_is_fed_its_own_forecasts():
    """Unrolled by hand: an encoder over the window, then twelve steps that start from zero."""
    net = model("dcrnn", dim=4, num_layers=2)
    seen, there, clock = windows()
    with torch.no_grad():
        out, walks = net(seen, there, clock), both_walks(net.adjacency())
        inputs, low, high = channels(net, seen, there, clock), torch.zeros(3, N, 4), torch.zeros(3, N, 4)
        for row in range(12):
            low = net.encoder[0](walks, inputs[:, row], low)
            high = net.encoder[1](walks, low, high)
        forecast = torch.zeros(3, N, 1)
        for step in range(12):
            low = net.decoder[0](walks, forecast, low)
            high = net.decoder[1](walks, low, high)
            forecast = net.head(high)
            torch.testing.assert_close(out[:, step], forecast[..., 0])


def test_channels_know_each_rows_time():
    net = model("dcrnn", dim=4)
    seen, there, _ = windows(batch=1)
    x = channels(net, seen, there * 0.5, torch.tensor([[10 / 1440, 2.0]]))
    assert x[0, :, 1, 2].mul(1440).tolist() == pytest.approx([1395 + 5 * n for n in range(9)] + [0, 5, 10], abs=1e-2)
    assert torch.equal(x[..., 0], seen) and (x[..., 1] == 0.5).all()


# --- STGCN


def test_chebyshev_is_the_polynomial_of_the_laplacian():
    rng = np.random.default_rng(0)
    A = rng.uniform(0, 1, (N, N)) * (rng.random((N, N)) < 0.6)
    A[4] = A[:, 4] = 0.0  # a road by itself
    scaled = rescaled_laplacian(torch.from_numpy(A)).numpy()
    W = (A + A.T) / 2
    d = W.sum(1)
    D = np.diag(np.where(d > 0, 1 / np.sqrt(np.where(d > 0, d, 1)), 0))
    L = np.diag((d > 0).astype(float)) - D @ W @ D
    top = np.linalg.eigvalsh(L)[-1]
    assert scaled == pytest.approx(2 * L / top - np.eye(N), abs=1e-10)
    values, vectors = np.linalg.eigh(scaled)
    assert values.min() == pytest.approx(-1) and values.max() == pytest.approx(1)
    x = rng.standard_normal((2, N, 3))
    angle = np.arccos(np.clip(values, -1, 1))
    expected = [vectors @ np.diag(np.cos(k * angle)) @ vectors.T @ x for k in range(4)]  # T_k(cos θ) = cos kθ
    for order in (1, 2, 3, 4):
        got = chebyshev(torch.from_numpy(scaled), torch.from_numpy(x), order).numpy()
        assert got == pytest.approx(np.concatenate(expected[:order], -1), abs=1e-8)


def test_gated_convolution_by_hand():
    conv = GatedConv(2, 2, kernel=3)
    x = torch.randn(1, 4, 1, 2, generator=torch.Generator().manual_seed(0))
    W, b = conv.conv.weight.detach(), conv.conv.bias.detach()
    for row in range(2):
        z = W @ x[0, row : row + 3, 0].reshape(-1) + b  # oldest row first
        expected = (z[:2] + x[0, row + 2, 0]) * torch.sigmoid(z[2:])
        torch.testing.assert_close(conv(x)[0, row, 0].detach(), expected)
    assert conv(x).shape[1] == 2


def reach(f, rows, *shape):
    """Which input rows (rows,) each output row depends on, by perturbation: bool (output rows, rows)."""
    x = torch.randn(1, rows, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        base, moved = f(x), []
        for row in range(rows):
            y = x.clone()
            y[:, row] += 1.0
            moved.append((f(y) - base).abs().amax((0, 2, 3)) > 1e-13)
    return torch.stack(moved, 1)


@pytest.mark.parametrize("kernel, dilation", [(3, 1), (2, 2), (2, 1)])
def test_temporal_layers_see_what_they_say(kernel, dilation):
    """Output row j sees inputs j, j + δ, … and nothing later than j + (kernel - 1) δ: no future, no padding."""
    seen = reach(lambda x: taps(x, kernel, dilation), 8, 2, 3)
    out, row = torch.meshgrid(torch.arange(seen.shape[0]), torch.arange(8), indexing="ij")
    ahead = row - out
    assert torch.equal(seen, (ahead >= 0) & (ahead <= (kernel - 1) * dilation) & (ahead % dilation == 0))
    assert seen.shape[0] == 8 - (kernel - 1) * dilation


def test_stgcn_blocks_are_causal_and_leave_four_rows():
    net = model("stgcn", dim=4).double()
    both = lambda x: net.blocks[1](net.laplacian, net.blocks[0](net.laplacian, x))  # noqa: E731
    seen = reach(both, 12, N, 2)
    out, row = torch.meshgrid(torch.arange(4), torch.arange(12), indexing="ij")
    assert torch.equal(seen, (row >= out) & (row <= out + 8))  # nine rows each, the last of them its own time
    with pytest.raises(ValueError, match="window must be at least 9"):
        model("stgcn", window=8)


def test_a_block_hears_two_hops():
    """Three Chebyshev terms reach two edges away, in either direction, and no further."""
    path = torch.diag(torch.ones(6), 1)  # 0 → 1 → … → 6
    block = Block(2, 4, order=3, dropout=0.0)
    laplacian = rescaled_laplacian(path)
    x = torch.randn(1, 5, 7, 2, generator=torch.Generator().manual_seed(0))
    y = x.clone()
    y[:, :, 3] += 1.0
    with torch.no_grad():
        moved = (block(laplacian, x) - block(laplacian, y)).abs().amax((0, 1, 3)) > 1e-6
    assert moved.tolist() == [False, True, True, True, True, True, False]


# --- Graph WaveNet


def test_the_adaptive_graph_is_a_walk_between_embeddings():
    net = model("graph_wavenet", dim=4)
    walks = net.walks().detach()
    torch.testing.assert_close(walks.sum(-1), torch.ones(3, N))
    score = np.maximum(net.sources.detach().numpy() @ net.targets.detach().numpy().T, 0)
    dense = np.exp(score) / np.exp(score).sum(1, keepdims=True)
    assert walks[2].numpy() == pytest.approx(dense, abs=1e-6) and not torch.allclose(walks[2], walks[2].t())
    torch.testing.assert_close(walks[:2], both_walks(net.adjacency()))
    assert adaptive_walk(torch.zeros(3, 2), torch.ones(3, 2)).tolist() == [[pytest.approx(1 / 3)] * 3] * 3


def test_the_receptive_field_is_thirteen_rows():
    net = model("graph_wavenet", dim=4).double()
    walks = net.walks()

    def stack(x):
        for layer in net.layers:
            x, _ = layer(walks, x)
        return x

    seen = reach(stack, 16, N, 4)
    assert FIELD == 13 and sum(DILATIONS) == 12 and seen.shape[0] == 4
    out, row = torch.meshgrid(torch.arange(4), torch.arange(16), indexing="ij")
    assert torch.equal(seen, (row >= out) & (row <= out + 12))
    seen, there, clock = (x.double() for x in windows())
    with torch.no_grad():
        base = net(seen, there, clock)
        for row in range(12):  # every row of the window is heard
            other = seen.clone()
            other[:, row] += 1.0
            assert (net(other, there, clock) - base).abs().max() > 1e-9


def test_a_wavenet_hears_the_last_rows_of_a_long_window():
    net, (seen, there, clock) = model("graph_wavenet", window=16, dim=4).double(), windows(rows=16)
    seen, there, clock = seen.double(), there.double(), clock.double()
    with torch.no_grad():
        base, heard = net(seen, there, clock), []
        for row in range(16):
            other = seen.clone()
            other[:, row] += 1.0
            heard.append(bool((net(other, there, clock) != base).any()))
    assert heard == [False] * 3 + [True] * 13


def test_a_wavenet_layer_by_hand():
    net = model("graph_wavenet", dim=2)
    layer, walks = net.layers[1], net.walks().detach()  # dilation 2
    x = torch.randn(1, 4, N, 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        got, last = layer(walks, x)
        for row in range(2):
            z = layer.time(torch.cat([x[0, row], x[0, row + 2]], -1))
            z = torch.tanh(z[:, :2]) * torch.sigmoid(z[:, 2:])
            found = [z] + [torch.linalg.matrix_power(p, k) @ z for p in walks for k in (1, 2)]
            mixed = layer.space.linear(torch.cat(found, -1)) + x[0, row + 2]
            torch.testing.assert_close(got[0, row], F.layer_norm(mixed, (2,), layer.norm.weight, layer.norm.bias))
        torch.testing.assert_close(last[0], z)


# --- which road is which


@pytest.mark.parametrize("name", TRAINED)
def test_renaming_the_roads_renames_the_forecasts(name):
    """Roads have no numbers, only neighbours; where a model has parameters of each road they are renamed too."""
    data, order = roads(), torch.tensor([3, 0, 4, 1, 2])  # new road n is old road order[n]
    place = torch.argsort(order)
    src, dst = data.graph.edges()
    renamed = SimpleNamespace(
        graph=em.TemporalGraph(place[src], place[dst], N, weights=data.graph.weights),
        readings=data.readings[:, order],
        times=data.times,
    )
    one, two = model(name, data, dim=4), model(name, renamed, dim=4)
    with torch.no_grad():
        for key in ("roads.weight", "sources", "targets"):
            for (a, p), (_, q) in zip(one.named_parameters(), two.named_parameters(), strict=True):
                if a == key:
                    q.copy_(p[order])
        seen, there, clock = windows()
        torch.testing.assert_close(two(seen[..., order], there, clock), one(seen, there, clock)[..., order])
        if name in ("dcrnn", "stgcn", "graph_wavenet"):  # and they do look at the neighbours
            other = seen.clone()
            other[..., 0] += 1.0
            assert (one(other, there, clock) - one(seen, there, clock))[..., 1].abs().max() > 1e-6


def test_stid_has_no_graph_but_a_clock_and_identities():
    data = roads()
    other = SimpleNamespace(graph=em.TemporalGraph([4, 4, 4], [0, 1, 2], N), readings=data.readings, times=data.times)
    one, two = model("stid", data, dim=4), model("stid", other, dim=4)
    seen, there, clock = windows()
    with torch.no_grad():
        out = one(seen, there, clock)
        assert torch.equal(out, two(seen, there, clock))
        moved = seen.clone()
        moved[..., 2] += 1.0
        changed = (one(moved, there, clock) - out).abs().amax((0, 1)) > 1e-6
        assert changed.tolist() == [False, False, True, False, False]  # nobody hears road 2 but itself
        alike = seen[..., :1].expand(-1, -1, N)
        assert one(alike, there, clock)[0, 0].unique().numel() == N  # same windows, other roads
        for column, step in ((0, 1 / 288), (1, 1.0)):  # five minutes later; a day later
            later = clock.clone()
            later[:, column] = (later[:, column] + step) % (1 if column == 0 else 7)
            assert (one(seen, there, later) - out).abs().amax((1, 2)).min() > 1e-4
        same = clock.clone()
        same[:, 0] = ((clock[:, 0] * 288).floor() + 0.5) / 288  # within the same five minutes
        torch.testing.assert_close(one(seen, there, same), out)
    names = {"roads.weight": N, "times.weight": 288, "days.weight": 7}
    assert {n: len(p) for n, p in one.named_parameters() if n in names} == names


def test_a_missing_mark_is_told_from_a_mean_reading():
    """A standardised 0 may be a road's mean or no reading at all; the trained models can tell."""
    seen, there, clock = windows()
    seen[:, -1], gone = 0.0, there.clone()
    gone[:, -1] = 0.0
    for name in TRAINED:
        net = model(name, dim=4)
        with torch.no_grad():
            assert (net(seen, there, clock) - net(seen, gone, clock)).abs().max() > 1e-5


# --- better than the last value


@pytest.fixture(scope="module")
def freeway():
    world = em.simulate.freeway("tiny")
    return SimpleNamespace(graph=world.graph, readings=world.readings, times=world.times)


@pytest.fixture(scope="module")
def last_value(freeway):
    return REGISTRY["last_value"]("traffic").fit(freeway).score(freeway)


@pytest.mark.parametrize("name, epochs", [("dcrnn", 1), ("stgcn", 2), ("stid", 4), ("graph_wavenet", 1)])
def test_beats_the_last_value_an_hour_ahead(name, epochs, freeway, last_value):
    """Margin: mean absolute error at horizon 12 at least 10 % below the last reading's."""
    settings = {"dim": 16, "epochs": epochs, "lr": 5e-3, "batch_size": 32, "schedule": "cosine"}
    score = REGISTRY[name]("traffic", **settings).fit(freeway).score(freeway)
    print(name, score["mae@12"] / last_value["mae@12"], score["mae@3"] / last_value["mae@3"])
    assert score["mae@12"] < 0.9 * last_value["mae@12"]


def test_wavenet_adds_up_all_skips():
    net = model("graph_wavenet", dim=4)
    seen, there, clock = windows()
    with torch.no_grad():
        x = channels(net, seen, there, clock)
        x = net.start(torch.cat([torch.zeros_like(x[:, :1]), x], 1))
        total = 0
        for layer, skip in zip(net.layers, net.skips, strict=True):
            x, last = layer(net.walks(), x)
            total = total + skip(last)
        first, last = (layer for layer in net.head if isinstance(layer, torch.nn.Linear))
        expected = last(first(total.relu()).relu()).transpose(1, 2)
        torch.testing.assert_close(net(seen, there, clock), expected)


def test_stgcn_ends_in_a_norm_and_a_head_of_two_layers():
    net, (seen, there, clock) = model("stgcn", dim=4), windows()
    with torch.no_grad():
        net.norm.bias += 0.2
        x = torch.stack([seen, there], -1)
        for block in net.blocks:
            x = block(net.laplacian, x)
        y = F.layer_norm(net.last(x)[:, 0], (4,), net.norm.weight, net.norm.bias)
        expected = net.head[2](net.head[0](y).relu()).transpose(1, 2)
        torch.testing.assert_close(net(seen, there, clock), expected)


def test_stgcn_block_by_hand():
    net = model("stgcn", dim=4)
    block, x = net.blocks[1], torch.randn(2, 6, N, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        block.norm.bias += 0.2
        y = block.before(x)
        terms = chebyshev(net.laplacian, y, 3)
        y = torch.relu(y + block.space(terms))
        torch.testing.assert_close(
            block(net.laplacian, x), F.layer_norm(block.after(y), (4,), block.norm.weight, block.norm.bias)
        )


def test_stid_by_hand():
    net, (seen, there, clock) = model("stid", dim=4), windows()
    with torch.no_grad():
        out = net(seen, there, clock)
        for b in range(3):
            for u in range(N):
                slot, day = int(clock[b, 0] * 288), int(clock[b, 1])
                window = torch.cat([seen[b, :, u], there[b, :, u]])
                z = torch.cat([net.history(window), net.roads.weight[u], net.times.weight[slot], net.days.weight[day]])
                for layer in net.layers:
                    z = z + layer[3](layer[0](z).relu())
                torch.testing.assert_close(out[b, :, u], net.head(z))


def test_dcrnn_starts_by_keeping_its_state():
    net = model("dcrnn", dim=4)
    assert all((cell.gates.linear.bias == 1).all() for cell in (*net.encoder, *net.decoder))


@pytest.mark.parametrize(
    "make",
    [
        lambda: REGISTRY["stid"]("traffic", dim=4, epochs=3, patience=None),
        lambda: TrafficForecaster(dim=8, num_heads=2, num_clusters=2, epochs=3),
    ],
)
def test_the_epoch_is_not_chosen_on_test_data(make):
    data, other = roads(400), roads(400)
    other.readings[360:] = 33.0
    assert make().fit(data).result_.history == make().fit(other).result_.history


def test_the_epoch_is_chosen_by_all_horizons():
    data = roads(300)
    est = REGISTRY["stid"]("traffic", dim=4, epochs=1).fit(data)
    scores = est.score(data, part="valid")
    every = [scores[f"mae@{h}"] for h in HORIZONS]
    assert min(every) < est.result_.history[0]["mae"] < max(every)
    part = _Part(*est.model_.prepare(*est._check(data)), *_limits(est.parts(300)[1], 12))
    pairs = est.model_.forecasts(part, HORIZONS)
    guess, truth = (torch.cat([pairs[h][n] for h in HORIZONS]) for n in (0, 1))
    assert est.result_.history[0]["mae"] == pytest.approx(mae(guess, truth), rel=1e-6)


def test_easydgl_is_asked_about_one_to_twelve_steps_ahead(monkeypatch):
    data = roads(400)
    model = TrafficForecaster(dim=8, num_heads=2, num_clusters=2)
    net = model._build(num_nodes=5, num_edges=6, minutes=5.0)
    readings, times = model._check(data)
    net.learn(data.graph, readings, times, model)
    part, seen = _Part(*net.prepare(readings, times), *_limits(slice(0, 400), 1)), []
    real = type(net).forward
    monkeypatch.setattr(type(net), "forward", lambda self, *a: seen.append(a) or real(self, *a))
    model._task().loss(net, part, torch.arange(300), 0, 0)
    _, now, at, labels, _ = seen[0]
    steps = ((at - part.times[now]) / 5).round().long()
    assert steps.unique().tolist() == list(range(1, 13))
    assert torch.equal(labels, part.scaled[now + steps])


def test_released_easydgl_hears_roads_by_rows_that_sum_to_one(monkeypatch):
    data = roads(400)
    model = TrafficForecaster(preset="release", dim=8, num_heads=2, num_clusters=2)
    net = model._build(num_nodes=5, num_edges=6, minutes=5.0).eval()
    readings, times = model._check(data)
    net.learn(data.graph, readings, times, model)
    part, seen = _Part(*net.prepare(readings, times), 50, 1), []
    real = net.encoder.forward
    monkeypatch.setattr(net.encoder, "forward", lambda *a, **k: seen.append(a[1]) or real(*a, **k))
    with torch.no_grad():
        net(part, torch.tensor([50]), part.times[[51]])
        score = (net.places[0] @ net.places[1].t()).relu().exp()
        heard = (score / score.sum(1, keepdim=True)) @ part.scaled[39:51].T
    torch.testing.assert_close(seen[0][:, -20:-8], heard)
    torch.testing.assert_close(seen[0][:, -8:], net.places[0].detach())


def test_easydgl_is_told_the_moment_it_is_asked_about(monkeypatch):
    data = roads(400)
    model = TrafficForecaster(dim=8, num_heads=2, num_clusters=2)
    net = model._build(num_nodes=5, num_edges=6, minutes=5.0).eval()
    readings, times = model._check(data)
    net.learn(data.graph, readings, times, model)
    part, seen = _Part(*net.prepare(readings, times), 50, 1), []
    real = net.encoder.forward
    monkeypatch.setattr(net.encoder, "forward", lambda *a, **k: seen.append(a[1]) or real(*a, **k))
    at = part.times[[50]] + 60.0
    with torch.no_grad():
        net(part, torch.tensor([50]), at)
    told = torch.cat([net.when(at)[0], torch.ones(2)]).float()  # the moment asked about, an hour ahead, squared
    torch.testing.assert_close(seen[0][:, 2:12], told.expand(5, -1))


@pytest.mark.parametrize("kind", ["gat", "sage", "gcn", "chebynet", "arma", "appnp"])
def test_roads_of_a_batch_are_roads_one_by_one(kind):
    """Several snapshots at once and one by one, with unequal weights; what is missing, hour and weekday count."""
    data = roads()
    est = REGISTRY[kind]("traffic", dim=8)
    net = est._build(num_nodes=5, num_edges=6, minutes=5.0)
    net.learn(data.graph, *est._check(data), est)
    net.eval()
    seen, there, clock = windows(rows=1)
    with torch.no_grad():
        both = net(seen, there, clock)
        for n in range(3):
            torch.testing.assert_close(both[n : n + 1], net(seen[n : n + 1], there[n : n + 1], clock[n : n + 1]))
        assert (net(seen, there * 0, clock) - both).abs().max() > 1e-5
        noon = torch.stack([(clock[:, 0] + 0.25) % 1, clock[:, 1]], 1)
        assert ((net(seen, there, noon) - both).abs().amax((1, 2)) > 1e-6).all()
        for day in range(1, 7):
            other = clock.clone()
            other[:, 1] = (clock[:, 1] + day) % 7
            assert ((net(seen, there, other) - both).abs().amax((1, 2)) > 1e-6).all()


def test_the_datas_own_origin_does_not_stay_behind():
    dated, plain = roads(), roads()
    dated.origin = "2012-03-01"  # a Thursday
    estimator = REGISTRY["last_value"]("traffic").fit(dated)
    assert estimator.model_.clock(torch.zeros(1))[0, 1] == 3
    assert estimator.fit(plain).model_.clock(torch.zeros(1))[0, 1] == 0  # the default is a Monday
