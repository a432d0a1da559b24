"""Traffic forecasting: the speed on each road, at a given time (chapter *Three tasks, one recipe*)."""

import dataclasses

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import coo_array
from torch import nn

from ..encode import KernelKMeans, TrafficEncoder, graph_cut_kernel
from ..encode import calendar as calendar_features
from ..graph import TemporalGraph
from .cam import CaM, TokenMask, uniform
from .estimator import Estimator, Modulated
from .metrics import mae, mape, rmse
from .tpple import smoothness, tpple

PRESETS = {
    "paper": {"window": 1, "dim": 32, "mask_rate": 0.2, "loss": "mse", "adaptive": False, "split": (0.7, 0.2, 0.1)}
    | {"moment": "calendar"},
    "release": {"window": 12, "dim": 64, "mask_rate": 0.05, "loss": "mae", "adaptive": True, "split": (0.7, 0.1, 0.2)}
    | {"moment": "day"},
}
HORIZONS = (3, 6, 9, 12)
STEPS = HORIZONS[-1]
HOUR = 60.0  # the rates' unit, in minutes
MASKINGS = ("cam", "token", "none")


@dataclasses.dataclass(kw_only=True, eq=False)
class Forecaster(Estimator):
    r"""The protocol of traffic: forecast the next twelve readings of every road from the latest ones.

    Readings are standardised per road by the training data; zeros and NaN are missing readings: no input, no target.
    Training, validation and test data follow one another in time, and no window crosses a border. The loss is the error
    on all valid readings of the next twelve steps. A subclass names its model, a :class:`RoadModel`, as ``net``.

    Parameters
    ----------
    preset : {"paper", "release"}
        What the paper describes (width 32, 70/20/10), or what public code does (width 64, 70/10/20); it fills in the
        fields left at None.
    window : int
        Readings per road that the model sees; 12.
    dim : int
        Width, 32 or 64.
    loss : {"mse", "mae"}
        By default the absolute error, as the systems compared with have it.
    split : three floats
        Shares of training, validation and test data, in order of time.
    both_ways : bool
        Each edge is also read backwards.
    origin : str
        The date of time 0, for the calendar, where the data has no ``origin`` of its own; the worlds start on a Monday.
    **training
        Those of :class:`Training` and :class:`Estimator`; ``batch_size`` counts snapshots.
    """

    presets = {
        "paper": {"window": 12, "dim": 32, "loss": "mae", "split": (0.7, 0.2, 0.1)},
        "release": {"window": 12, "dim": 64, "loss": "mae", "split": (0.7, 0.1, 0.2)},
    }
    net = None
    farthest = STEPS  # ahead that can be asked for

    preset: str = "paper"
    window: int | None = None
    dim: int | None = None
    loss: str | None = None
    split: tuple | None = None
    batch_size: int = 64
    both_ways: bool = False
    origin: str = "2024-01-01"

    def __post_init__(self):
        super().__post_init__()
        self._given_origin = self.origin  # fit takes the data's own where it has one
        if self.preset not in self.presets:
            raise ValueError(f"preset must be one of {', '.join(self.presets)}, got {self.preset!r}")
        for name, value in self.presets[self.preset].items():
            setattr(self, name, value if getattr(self, name) is None else getattr(self, name))
        if self.loss not in ("mse", "mae"):
            raise ValueError(f"loss must be 'mse' or 'mae', got {self.loss!r}")

    def fit(self, data, **run):
        """Train on the first part of the readings, choose the epoch by the mean absolute error on the second.

        Parameters
        ----------
        data : object with ``graph``, ``readings`` (T, N), ``times`` (T,) in minutes, and perhaps ``origin``
            Such as :class:`easydgl_mini.simulate.Freeway`. A road without any reading in the training part is
            standardised by all roads' mean and deviation, and forecast from its neighbours.
        **run
            ``checkpoint``, ``resume``, ``progress``, ``log``: see :class:`FitConfig`. A model without parameters has
            no run to keep.
        """
        self.origin, self.sizes_ = str(getattr(data, "origin", None) or self._given_origin), {}
        readings, times = self._check(data)
        first, second, _ = self.parts(len(times))
        steps = np.diff(times)
        if not np.allclose(steps, steps[0]):
            wrong = 1 + int(np.argmax(~np.isclose(steps, steps[0])))
            raise ValueError(f"times must be evenly spaced for training; times[{wrong}] is {times[wrong]}")
        self._build(num_nodes=data.graph.num_nodes, num_edges=data.graph.num_edges, minutes=float(steps[0]))
        self.model_.learn(data.graph, readings[first], times[first], self)
        if not any(p.requires_grad for p in self.model_.parameters()):
            self.model_.eval()
            return self
        prepared = self.model_.prepare(readings, times)
        train = _Part(*prepared, *_limits(first, self.window))
        valid = _Part(*prepared, *_limits(second, self.window))
        valid = valid if valid.count > 0 else None
        return self._train(self._task(), (train, valid), run, (*data.graph.edges(), readings, times))

    def parts(self, length):
        """Slices of training, validation and test readings among ``length``."""
        a, b = int(round(self.split[0] * length)), int(round((self.split[0] + self.split[1]) * length))
        return slice(0, a), slice(a, b), slice(b, length)

    def predict(self, data, at):
        """Forecast every road's reading.

        Parameters
        ----------
        data : as in :meth:`fit`
            Readings up to now. A road whose readings are all missing is forecast from its neighbours.
        at : float or sequence, shape (m,)
            Minutes, on the clock of ``data.times``: from the last of them to twelve steps later. Between two steps the
            forecast is interpolated, before the first step between the last reading, where there is one, and the first
            forecast.

        Returns
        -------
        tensor, shape (N,), or (m, N)
        """
        model, part, when = self._ask(data, at)
        ahead = (when - part.times[-1].item()) / model.minutes
        if (ahead > STEPS + 1e-9).any():
            first, last = int((ahead > STEPS + 1e-9).argmax()), np.asarray(data.times)[-1]
            raise ValueError(
                f"at[{first}] is {np.atleast_1d(at)[first]}, more than {STEPS} steps of {model.minutes:g} minutes "
                f"after the last reading at {last}"
            )
        with torch.no_grad():
            guess = model.ahead(part, torch.tensor([part.start])).cpu()[0]  # (12, N)
        here = torch.where(part.valid[-1], model.readings(part, part.start), guess[0])
        line = torch.cat([here.unsqueeze(0), guess])  # (13, N): now, and the steps
        ahead = torch.from_numpy(ahead).clamp(0, STEPS)
        below = ahead.floor().long().clamp_max(STEPS - 1)
        share = (ahead - below).unsqueeze(1).to(line.dtype)
        out = (1 - share) * line[below] + share * line[below + 1]
        return out[0] if np.ndim(at) == 0 else out

    def score(self, data, horizons=HORIZONS, part="test"):
        """MAE, RMSE and MAPE at each horizon, in steps, over the valid readings of one part of the data.

        Windows and targets lie inside the part. ``part`` is "train", "valid", "test" or "all".
        """
        model, _ = self._ready()
        readings, times = self._check(data)
        parts = dict(zip(("train", "valid", "test"), self.parts(len(times)), strict=True))
        parts["all"] = slice(0, len(times))
        if part not in parts:
            raise ValueError(f"part must be one of {', '.join(parts)}, got {part!r}")
        bad = [h for h in horizons if not 1 <= h <= self.farthest or int(h) != h]
        if bad:
            raise ValueError(f"horizons must be whole numbers of steps from 1 to {self.farthest}, got {bad[0]}")
        start, count = _limits(parts[part], self.window, max(horizons))
        if count < 1:
            raise ValueError(
                f"data has no window of {self.window} readings and {max(horizons)} steps in its {part} part"
            )
        rows, result = _Part(*model.prepare(readings, times), start, count), {}
        for h, (guess, truth) in model.forecasts(rows, horizons).items():
            result |= {f"{name}@{h}": f(guess, truth) for name, f in (("mae", mae), ("rmse", rmse), ("mape", mape))}
        return result

    def _model(self, **sizes):
        return self.net(self, **sizes)

    def _task(self):
        return _Task(self)

    def _ask(self, data, at):
        """The model, the latest readings, and the times asked about on the model's own clock."""
        model, _ = self._ready()
        readings, times = self._check(data)
        when = np.atleast_1d(np.asarray(at, dtype=np.float64))
        last = float(np.asarray(data.times)[-1])
        bad = ~(when >= last) | ~np.isfinite(when)
        if bad.any():
            raise ValueError(
                f"at[{bad.argmax()}] is {when[bad.argmax()]}, before the last reading at {last}; ask later"
            )
        return model, _Part(*model.prepare(readings, times), len(times) - 1, 1), when + (times[-1] - last)

    def _check(self, data):
        """Readings (T, N), and their times on the clock that starts at ``origin``."""
        readings = torch.as_tensor(np.asarray(data.readings), dtype=torch.float32)
        times = np.asarray(data.times, dtype=np.float64)
        if readings.ndim != 2 or readings.shape[1] != data.graph.num_nodes or len(readings) != len(times):
            raise ValueError(
                f"readings must be (times, nodes), ({len(times)}, {data.graph.num_nodes}), got {tuple(readings.shape)}"
            )
        nodes = self.sizes_.get("num_nodes", data.graph.num_nodes)
        if data.graph.num_nodes != nodes:
            raise ValueError(f"graph must have the {nodes} roads of the training data, got {data.graph.num_nodes}")
        if len(times) < self.window or (np.diff(times) <= 0).any():
            raise ValueError(f"times must rise and be at least {self.window}, the window; got {len(times)}")
        theirs = getattr(data, "origin", None) or self.origin
        return readings, times + (np.datetime64(str(theirs)) - np.datetime64(self.origin)) / np.timedelta64(1, "m")


@dataclasses.dataclass
class _Part:
    """Prepared readings, of which ``count`` rows from ``start`` are "now" in turn."""

    scaled: torch.Tensor  # (T, N), 0 where missing
    valid: torch.Tensor  # (T, N)
    onset: torch.Tensor | None  # (T, N) congestion starts; None where the model has no use for it
    latest: torch.Tensor | None  # (T, N) minutes: when it last did; 0 before that
    times: torch.Tensor  # (T,) minutes
    start: int
    count: int


class RoadModel(nn.Module):
    """What every model of roads has: the graph, each road's mean and deviation, windows. Base of the baselines' models.

    A subclass gives ``forward(seen, there, clock)``: standardised readings (B, window, N), 0 where missing; 1 where
    there is a reading, else 0; share of the day and weekday (Monday 0) of the last row, (B, 2). It returns standardised
    forecasts of the next twelve steps, (B, 12, N). What it needs of the training data beyond the graph it takes in
    ``learn``, into buffers.
    """

    def __init__(self, settings, num_nodes, num_edges, minutes):
        super().__init__()
        self.num_nodes, self.minutes, self.window = num_nodes, minutes, settings.window
        self.origin = settings.origin
        edges = num_edges * (2 if settings.both_ways else 1)
        for name in ("src", "dst"):
            self.register_buffer(name, torch.zeros(edges, dtype=torch.int64))
        for name, size in (("edge_weights", edges), ("mean", num_nodes), ("scale", num_nodes)):
            self.register_buffer(name, torch.ones(size))

    def learn(self, graph, readings, times, settings):
        """Take the graph and the roads' statistics from the training data."""
        src, dst = graph.edges()
        weights = torch.ones(len(src)) if graph.weights is None else graph.weights.float()
        self.src.copy_(torch.cat([src, dst]) if settings.both_ways else src)
        self.dst.copy_(torch.cat([dst, src]) if settings.both_ways else dst)
        self.edge_weights.copy_(weights.repeat(2) if settings.both_ways else weights)
        valid = _valid(readings)
        if not valid.any():
            raise ValueError("readings has no valid reading in the training part")
        self.mean.copy_(_mean(readings, valid, readings[valid].mean()))
        spread = readings[valid].std().clamp_min(1e-3)
        self.scale.copy_(_mean((readings - self.mean).square(), valid, spread**2).sqrt().clamp_min(1e-3))

    def adjacency(self):
        """The graph as a dense matrix (N, N): row i, column j is the weight of the edges i → j."""
        dense = self.edge_weights.new_zeros(self.num_nodes, self.num_nodes)
        return dense.index_put_((self.src, self.dst), self.edge_weights, accumulate=True)

    def prepare(self, readings, times):
        """Standardised readings, which are there, two fields for congestion (None here), and the times."""
        valid = _valid(readings)
        scaled = torch.where(valid, (readings - self.mean.cpu()) / self.scale.cpu(), 0.0)
        return scaled, valid, None, None, torch.from_numpy(times)

    def see(self, part, now):
        """The windows that end at rows ``now`` (B,): readings and whether they are there, (B, window, N)."""
        rows = now.unsqueeze(1) - torch.arange(self.window - 1, -1, -1)
        seen = part.scaled[rows].to(self.mean.device)
        return seen, part.valid[rows].to(seen)

    def clock(self, times):
        """Share of the day and weekday (Monday 0), (…, 2), of times (…) in minutes."""
        start = np.datetime64(self.origin).astype("datetime64[m]").astype(np.int64) + 3 * 1440  # 1970 began on Thursday
        minutes = (times.double() + start) % (7 * 1440)
        return torch.stack([minutes % 1440 / 1440, minutes // 1440], -1).to(self.mean)

    def ahead(self, part, now):
        """Forecast readings of the twelve steps after rows ``now``: (B, 12, N)."""
        return self(*self.see(part, now), self.clock(part.times[now])).float() * self.scale + self.mean

    def forecasts(self, part, horizons, batch=256):
        """For each horizon, forecasts and readings of all the part's rows; 0 where there is no reading."""
        now = torch.arange(part.start, part.start + part.count)
        with torch.no_grad():
            guess = torch.cat([self._at(part, n, horizons).cpu() for n in now.split(batch)])  # (rows, horizons, N)
        return {h: (guess[:, n], self.readings(part, now + h)) for n, h in enumerate(horizons)}

    def readings(self, part, rows):
        """The readings of some rows, as they came; 0 where there is none."""
        return torch.where(part.valid[rows], part.scaled[rows] * self.scale.cpu() + self.mean.cpu(), 0.0)

    def _at(self, part, now, horizons):
        return self.ahead(part, now)[:, [h - 1 for h in horizons]]


class _Task:
    """Error on all valid readings of the next twelve steps."""

    metric, larger, terms = "mae", False, {"loss": 1.0}

    def __init__(self, settings):
        self.settings = settings

    def size(self, train):
        return train.count

    def errors(self, model, guess, labels):
        """Squared or absolute error of forecast readings, in units of one typical deviation."""
        error = (guess - labels.to(guess.device) * model.scale - model.mean) / model.scale.mean()
        return error.square() if self.settings.loss == "mse" else error.abs()

    def loss(self, model, train, ids, seed, epoch):
        now = train.start + ids
        rows = now.unsqueeze(1) + torch.arange(1, STEPS + 1)
        each = self.errors(model, model.ahead(train, now), train.scaled[rows])
        valid = train.valid[rows].to(each)
        return {"loss": ((each * valid).sum(), valid.sum())}

    def evaluate(self, model, valid):
        pairs = model.forecasts(valid, HORIZONS).values()
        return self.metrics(*(torch.cat(x) for x in zip(*pairs, strict=True)))

    def metrics(self, guess, truth):
        return {"mae": mae(guess, truth), "rmse": rmse(guess, truth)}


@dataclasses.dataclass(kw_only=True, eq=False)
class TrafficForecaster(Modulated, Forecaster):
    r"""EasyDGL on roads: one model for every time ahead.

    An event on a road is the *onset of congestion* on a road connected to it: a reading below that road's mean of the
    hour minus 1.645 standard deviations, where the one before was not. Two SAGEConv and one AIA layer embed each road
    at the time asked about, :math:`\hat y = \langle \mathbf h, \mathbf w\rangle + b`. Training draws that time among
    the next twelve steps, anew for each snapshot and epoch. Masked roads ask with the reading to be forecast and are
    nobody's neighbour; nothing is masked when the model is used.

    Parameters
    ----------
    preset : {"paper", "release"}
        What the paper describes, or what the authors' public code does; it fills in the fields left at None.
    window : int
        Readings per road that the model sees: 1, or 12.
    dim, num_heads : int
        Width (32, or 64) and heads (8).
    loss : {"mse", "mae"}
        On all roads with a reading.
    adaptive : bool
        Adds an embedding of each road and a learned dense graph between roads.
    split : three floats
        Shares of training, validation and test data, in order of time: 70/20/10, or 70/10/20.
    moment : {"calendar", "day"}
        What a road is told of the time asked about: month, day, weekday and hour; or the time of the day to the minute
        (three harmonics) and the weekday. The paper is silent. Test data has days and months that training never saw.
    masking : {"cam", "token", "none"}
        "token" is typical masking: a masked road's readings are replaced by a shared token, and it stays a neighbour.
    detach : bool
        See :class:`CaM`.
    regulariser : {"tpple", "smoothness"}
        What ``gamma`` weighs.
    both_ways : bool
        Congestion travels against the traffic: each edge is also read backwards.
    origin : str
        See :class:`Forecaster`.
    **training
        Those of :class:`Training`, :class:`Estimator` and :class:`Modulated`; ``batch_size`` counts snapshots.
    """

    presets, farthest = PRESETS, np.inf

    mask_rate: float | None = None
    adaptive: bool | None = None
    moment: str | None = None
    num_heads: int = 8
    masking: str = "cam"
    detach: bool = False
    regulariser: str = "tpple"
    both_ways: bool = True

    def __post_init__(self):
        super().__post_init__()
        choices = {"regulariser": ("tpple", "smoothness"), "masking": MASKINGS, "moment": ("calendar", "day")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        CaM(self.mask_rate, 1)

    def predict(self, data, at):
        """Forecast every road's reading.

        Parameters
        ----------
        data : as in :meth:`fit`
            Readings up to now. A road whose readings are all missing is forecast from its neighbours.
        at : float or sequence, shape (m,)
            Minutes, on the clock of ``data.times``, not before the last of them. Training asks up to twelve steps
            ahead; what lies further off is extrapolated.

        Returns
        -------
        tensor, shape (N,), or (m, N)
        """
        model, part, when = self._ask(data, at)
        with torch.no_grad():
            out = model(part, torch.full((len(when),), part.start), torch.from_numpy(when))[0].cpu()
        return out[0] if np.ndim(at) == 0 else out

    def _model(self, **sizes):
        return _TrafficModel(self, **sizes)

    def _task(self):
        return _TrafficTask(self)


class _TrafficModel(RoadModel):
    def __init__(self, settings, num_nodes, num_edges, minutes):
        super().__init__(settings, num_nodes, num_edges, minutes)
        K, own, self.moment = settings.num_clusters, 8 if settings.adaptive else 0, settings.moment
        self.places = nn.ParameterList([nn.Parameter(torch.randn(num_nodes, 8) / 8**0.5) for _ in range(2 * (own > 0))])
        width = 2 * self.window + 8 + 2 + K  # readings and if they are there, calendar of the target, how far, cluster
        width += self.window + own if own else 0
        self.encoder = TrafficEncoder(width, K, settings.dim, settings.num_heads, settings.dropout, **settings._layer())
        self.head = nn.Linear(settings.dim, 1)
        rate, kind = settings.mask_rate, settings.masking
        self.cam = CaM(rate, settings.dim, None, settings.detach) if kind == "cam" else None
        self.token = TokenMask(rate, 2 * self.window) if kind == "token" else None
        self.register_buffer("clusters", torch.zeros(num_nodes, dtype=torch.int64))
        self.register_buffer("bound", torch.ones(24, num_nodes))

    def learn(self, graph, readings, times, settings):
        """Take the graph, statistics, the bound of congestion and clusters from the training data."""
        super().learn(graph, readings, times, settings)
        valid, hour = _valid(readings), self._hour(torch.from_numpy(times))
        for h in range(24):
            now = valid & (hour == h).unsqueeze(1)
            usual = _mean(readings, now, self.mean)
            spread = _mean((readings - usual).square(), now, self.scale**2).sqrt()
            self.bound[h] = usual - 1.645 * spread
        src, dst = graph.edges()
        if len(src) and settings.num_clusters < self.num_nodes:
            links = coo_array((self.edge_weights[: len(src)], (src, dst)), shape=(self.num_nodes,) * 2).toarray()
            kernel, mass = graph_cut_kernel(np.abs(links + links.T))
            model = KernelKMeans(
                settings.num_clusters, "precomputed", init="partition", refine=True, seed=settings.seed
            )
            self.clusters.copy_(torch.from_numpy(model.fit(kernel, sample_weight=mass).labels_))
        else:
            self.clusters.copy_(torch.arange(self.num_nodes) % settings.num_clusters)

    def prepare(self, readings, times):
        """Standardised readings, which are there, where congestion starts, when it last did, and the times."""
        scaled, valid, _, _, times = super().prepare(readings, times)
        low = (readings < self.bound.cpu()[self._hour(times)]) & valid
        row = torch.arange(len(times)).unsqueeze(1)
        known = torch.where(valid, row, 0).cummax(0).values  # the latest reading's row
        before = torch.cat([torch.zeros_like(low[:1]), low.gather(0, known)[:-1]])
        onset = low & ~before
        latest = torch.where(onset, times.unsqueeze(1), _beginning(times)).cummax(0).values
        return scaled, valid, onset, latest, times

    def when(self, at):
        """What is told of the times ``at`` (B,): (B, 8), of the calendar, or of the day and the weekday."""
        if self.moment == "calendar":
            return calendar_features(at, "minutes", self.origin)
        share, weekday = self.clock(at).unbind(-1)
        angles = torch.stack([share, 2 * share, 3 * share, weekday / 7], -1) * (2 * torch.pi)
        return torch.cat([angles.sin(), angles.cos()], -1)

    def _hour(self, times):
        return (self.clock(times)[..., 0].cpu() * 24 + 1e-4).long()

    def forward(self, part, now, at, labels=None, masked=None):
        """Forecast from rows ``now`` (B,) for the times ``at`` (B,) in minutes.

        Returns
        -------
        guess : tensor, shape (B, N)
            Readings.
        rest : what the regularisers need.
        """
        device, B, N = self.mean.device, len(now), self.num_nodes
        seen, there = (x.transpose(1, 2) for x in self.see(part, now))  # (B, N, window)
        masked = None if masked is None or not masked.any() else masked.to(device).reshape(-1)
        if self.token is not None and masked is not None:
            both = self.token(torch.cat([seen, there], -1).reshape(B * N, -1), masked).reshape(B, N, -1)
            seen, there = both.split(self.window, -1)
        ahead = ((at - part.times[now]) / HOUR).to(device, seen.dtype)
        moment = torch.cat([self.when(at).to(ahead), torch.stack([ahead, ahead**2], 1)], 1)
        kinds = F.one_hot(self.clusters, self.encoder.aia.num_clusters).to(seen.dtype)
        feat = [seen, there, moment.unsqueeze(1).expand(-1, N, -1), kinds.expand(B, -1, -1)]
        if len(self.places):
            dense = torch.softmax(F.relu(self.places[0] @ self.places[1].t()), -1)  # who listens to whom, learned
            feat += [dense @ seen, self.places[0].expand(B, -1, -1)]
        feat = torch.cat(feat, -1).reshape(B * N, -1)

        shift = N * torch.arange(B, device=device).unsqueeze(1)
        latest = part.latest[now].to(device) / HOUR  # (B, N) hours
        graph = TemporalGraph._trusted(
            (self.src + shift).reshape(-1),
            (self.dst + shift).reshape(-1),
            B * N,
            latest[:, self.src].reshape(-1),
            self.edge_weights.repeat(B),
        )
        last = torch.full_like(latest, _beginning(part.times) / HOUR)
        last = last.scatter_reduce(1, self.dst.expand(B, -1), latest[:, self.src], "amax")
        when = (at.to(device) / HOUR).unsqueeze(1).expand(B, N)
        query = detach = None
        if self.cam is not None and masked is not None:
            graph = self.cam.keys(graph, masked)
            query = self.cam.query(labels.to(device).reshape(-1), masked)
            detach = masked if self.cam.detach else None
        h, _, _, s = self.encoder(
            graph,
            feat,
            (when - last).reshape(-1),
            self.clusters.repeat(B),
            when.reshape(-1),
            query,
            asks=None if query is None else masked,
            return_state=True,
            detach=detach,
        )
        guess = self.head(h).reshape(B, N).float() * self.scale + self.mean
        return guess, (h, s, last)

    def tpple(self, part, now, state, last, masked):
        """Log-rate of the onsets that arrive one step from now, minus the integral since each road's event before."""
        B, N, K = len(now), self.num_nodes, self.encoder.aia.num_clusters
        starts = part.onset[now + 1].to(last.device)[:, self.src].to(state.dtype)  # (B, E)
        counts = torch.zeros(B, N * K, dtype=state.dtype, device=last.device)
        counts.scatter_add_(1, (self.dst * K + self.clusters[self.src]).expand(B, -1), starts)
        gap = ((part.times[now + 1].to(last.device) / HOUR).unsqueeze(1) - last).to(state.dtype)
        rates = self.encoder.aia.intensity
        gap, counts = gap.reshape(-1, 1), counts.reshape(-1, 1, K)  # every road of every snapshot: one interval
        with torch.autocast(last.device.type, enabled=False):
            left, right = (rates(state, x.squeeze(1)).mean(1, keepdim=True) for x in (torch.zeros_like(gap), gap))
        return tpple(left, right, counts, gap, (counts.sum(-1) > 0) & ~masked.to(last.device).reshape(-1, 1))

    def ahead(self, part, now):
        """Forecast readings of the twelve steps after rows ``now``: (B, 12, N)."""
        return self._at(part, now, range(1, STEPS + 1))

    def _at(self, part, now, horizons):
        return torch.stack([self(part, now, part.times[now] + h * self.minutes)[0] for h in horizons], 1)


class _TrafficTask(_Task):
    """Error on all roads with a reading, at a horizon drawn for each snapshot, less γ TPPLE."""

    def __init__(self, settings):
        super().__init__(settings)
        sign = -1 if settings.regulariser == "tpple" else 1
        self.terms = {"loss": 1.0, settings.regulariser: sign * settings.gamma, "masked": 0.0, "unmasked": 0.0}

    def loss(self, model, train, ids, seed, epoch):
        now, roads = train.start + ids, torch.arange(model.num_nodes)
        draws = uniform(ids, seed, epoch, 1)[:, 0]
        steps = 1 + (draws * STEPS).long()
        valid, labels = train.valid[now + steps], train.scaled[now + steps]
        masked, mask = torch.zeros_like(valid), model.cam or model.token
        if mask is not None:
            road = (now.unsqueeze(1) * len(roads) + roads).reshape(-1)
            masked = mask.pick(road, seed, epoch, valid.reshape(-1)).reshape(valid.shape)
        guess, (h, state, last) = model(train, now, train.times[now] + steps * model.minutes, labels, masked)
        each = self.errors(model, guess, labels)
        valid, masked = valid.to(each.device), masked.to(each.device)
        parts = {"loss": (each[valid].sum(), valid.sum())}
        for name, some in (("masked", valid & masked), ("unmasked", valid & ~masked)):
            parts[name] = each[some].detach().sum(), some.sum()
        if self.settings.gamma and self.settings.regulariser == "tpple":
            parts["tpple"] = model.tpple(train, now, state, last, masked) * masked.numel(), masked.numel()
        elif self.settings.gamma:  # the same roads one step later
            later = model(train, now, train.times[now] + (steps + 1) * model.minutes, labels, masked)[1][0]
            pair = torch.stack([h, later], 1)
            parts["smoothness"] = smoothness(pair) * len(ids), len(ids)
        return parts

    def evaluate(self, model, valid):
        """Each row is asked about one of the horizons, in turn: one forward per row."""
        now = torch.arange(valid.start, valid.start + valid.count)
        steps = torch.tensor(HORIZONS)[now % len(HORIZONS)]
        asked = zip(now.split(256), (valid.times[now] + steps * model.minutes).split(256), strict=True)
        guess = torch.cat([model(valid, rows, at)[0].cpu() for rows, at in asked])
        return self.metrics(guess, model.readings(valid, now + steps))


def _limits(part, window, ahead=STEPS):
    """First row and number of rows that can be "now": windows and targets lie inside the part."""
    return part.start + window - 1, part.stop - part.start - (window - 1) - ahead


def _beginning(times):
    """When a road's clock starts if nothing happened yet: at 0, or with the data if that is earlier."""
    return min(0.0, times[0].item())


def _valid(readings):
    return ~torch.isnan(readings) & (readings != 0)


def _mean(x, valid, otherwise):
    """Mean over the valid rows of each road; roads without any get ``otherwise``."""
    count = valid.sum(0)
    return torch.where(count > 0, torch.where(valid, x, 0).sum(0) / count.clamp_min(1), otherwise)
