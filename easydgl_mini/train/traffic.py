"""Traffic forecasting: the speed on each road, at a given time (chapter *Three tasks, one recipe*)."""

import contextlib
import dataclasses

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import coo_array
from torch import nn

from ..encode import KernelKMeans, TrafficEncoder, graph_cut_kernel
from ..encode import calendar as calendar_features
from ..graph import TemporalGraph
from .cam import CaM, uniform
from .estimator import Estimator
from .metrics import mae, mape, rmse
from .tpple import smoothness, tpple

PRESETS = {
    "paper": {"window": 1, "dim": 32, "mask_rate": 0.2, "loss": "mse", "adaptive": False, "split": (0.7, 0.2, 0.1)},
    "release": {"window": 12, "dim": 64, "mask_rate": 0.05, "loss": "mae", "adaptive": True, "split": (0.7, 0.1, 0.2)},
}
HORIZONS = (3, 6, 9, 12)
HOUR = 60.0  # the rates' unit, in minutes


@dataclasses.dataclass(kw_only=True, eq=False)
class TrafficForecaster(Estimator):
    r"""Forecast readings on a road network from the latest ones.

    Readings are standardised per road by the training data; zeros and NaN are missing readings: no input, no target. An
    event on a road is the *onset of congestion* on a road connected to it: a reading below that road's mean of the hour
    minus 1.645 standard deviations, where the one before was not. Two SAGEConv and one AIA layer embed each road at the
    time asked about, :math:`\hat y = \langle \mathbf h, \mathbf w\rangle + b`. Masked roads ask with the reading to be
    forecast and are nobody's neighbour; nothing is masked when the model is used.

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
    detach : bool
        See :class:`CaM`.
    regulariser : {"tpple", "smoothness"}
        What ``gamma`` weighs.
    both_ways : bool
        Congestion travels against the traffic: each edge is also read backwards.
    origin : str
        The date of time 0, for the calendar; the worlds start on a Monday.
    **training
        Those of :class:`Training` and :class:`Estimator`; ``batch_size`` counts snapshots.
    """

    preset: str = "paper"
    window: int | None = None
    dim: int | None = None
    mask_rate: float | None = None
    loss: str | None = None
    adaptive: bool | None = None
    split: tuple | None = None
    num_heads: int = 8
    batch_size: int = 64
    detach: bool = False
    regulariser: str = "tpple"
    both_ways: bool = True
    origin: str = "2024-01-01"

    def __post_init__(self):
        super().__post_init__()
        if self.preset not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {self.preset!r}")
        for name, value in PRESETS[self.preset].items():
            setattr(self, name, value if getattr(self, name) is None else getattr(self, name))
        for name, allowed in (("loss", ("mse", "mae")), ("regulariser", ("tpple", "smoothness"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        CaM(self.mask_rate, 1)

    def fit(self, data, **run):
        """Train on the first part of the readings, choose the epoch by the mean absolute error on the second.

        Parameters
        ----------
        data : object with ``graph``, ``readings`` (T, N), ``times`` (T,) in minutes
            Such as :class:`easydgl_mini.simulate.Freeway`. A road without any reading in the training part is
            standardised by all roads' mean and deviation, and forecast from its neighbours.
        **run
            ``checkpoint``, ``resume``, ``progress``, ``log``: see :class:`FitConfig`.
        """
        readings, times = self._check(data)
        first, second, _ = self.parts(len(times))
        steps = np.diff(times)
        if not np.allclose(steps, steps[0]):
            first = 1 + int(np.argmax(~np.isclose(steps, steps[0])))
            raise ValueError(f"times must be evenly spaced for training; times[{first}] is {times[first]}")
        self._build(num_nodes=data.graph.num_nodes, num_edges=data.graph.num_edges, minutes=float(steps[0]))
        self.model_.learn(data.graph, readings[first], times[first], self)
        prepared = self.model_.prepare(readings, times)
        train = _Part(*prepared, *_limits(first, self.window))
        valid = _Part(*prepared, *_limits(second, self.window))
        return self._train(_TrafficTask(self), (train, valid if valid.count > 0 else None), run)

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
            Minutes, on the clock of ``data.times``, not before the last of them. Training asks up to twelve steps
            ahead; what lies further off is extrapolated.

        Returns
        -------
        tensor, shape (N,), or (m, N)
        """
        model, _ = self._ready()
        readings, times = self._check(data)
        when = np.atleast_1d(np.asarray(at, dtype=np.float64))
        bad = ~(when >= times[-1]) | ~np.isfinite(when)
        if bad.any():
            raise ValueError(
                f"at[{bad.argmax()}] is {when[bad.argmax()]}, before the last reading at {times[-1]}; ask later"
            )
        part = _Part(*model.prepare(readings, times), len(times) - 1, 1)
        with torch.no_grad():
            out = model(part, torch.full((len(when),), len(times) - 1), torch.from_numpy(when))[0].cpu()
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
        start, count = _limits(parts[part], self.window, max(horizons))
        if count < 1:
            raise ValueError(
                f"data has no window of {self.window} readings and {max(horizons)} steps in its {part} part"
            )
        result = {}
        for h, (guess, truth) in model.forecasts(
            _Part(*model.prepare(readings, times), start, count), horizons
        ).items():
            result |= {f"{name}@{h}": f(guess, truth) for name, f in (("mae", mae), ("rmse", rmse), ("mape", mape))}
        return result

    def _model(self, **sizes):
        return _TrafficModel(self, **sizes)

    def _check(self, data):
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
        return readings, times


@dataclasses.dataclass
class _Part:
    """Prepared readings, of which ``count`` rows from ``start`` are "now" in turn."""

    scaled: torch.Tensor  # (T, N), 0 where missing
    valid: torch.Tensor  # (T, N)
    onset: torch.Tensor  # (T, N) congestion starts
    latest: torch.Tensor  # (T, N) minutes: when it last did, 0 before
    times: torch.Tensor  # (T,) minutes
    start: int
    count: int


class _TrafficModel(nn.Module):
    def __init__(self, settings, num_nodes, num_edges, minutes):
        super().__init__()
        K, self.window, self.minutes, self.num_nodes = settings.num_clusters, settings.window, minutes, num_nodes
        self.origin = settings.origin
        own = 8 if settings.adaptive else 0
        self.places = nn.ParameterList([nn.Parameter(torch.randn(num_nodes, 8) / 8**0.5) for _ in range(2 * (own > 0))])
        width = 2 * self.window + 8 + 2 + K  # readings and if they are there, calendar of the target, how far, cluster
        width += self.window + own if own else 0
        self.encoder = TrafficEncoder(width, K, settings.dim, settings.num_heads, settings.dropout, **settings._layer())
        self.head = nn.Linear(settings.dim, 1)
        self.cam = CaM(settings.mask_rate, settings.dim, None, settings.detach)
        edges = num_edges * (2 if settings.both_ways else 1)
        for name, size in (("src", edges), ("dst", edges), ("clusters", num_nodes)):
            self.register_buffer(name, torch.zeros(size, dtype=torch.int64))
        for name, shape in (
            ("edge_weights", edges),
            ("mean", num_nodes),
            ("scale", num_nodes),
            ("bound", (24, num_nodes)),
        ):
            self.register_buffer(name, torch.ones(shape))

    def learn(self, graph, readings, times, settings):
        """Take the graph, statistics, the bound of congestion and clusters from the training data."""
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
        hour = torch.from_numpy(times / 60 % 24).long()
        for h in range(24):
            now = valid & (hour == h).unsqueeze(1)
            usual = _mean(readings, now, self.mean)
            spread = _mean((readings - usual).square(), now, self.scale**2).sqrt()
            self.bound[h] = usual - 1.645 * spread
        links = coo_array((weights, (src, dst)), shape=(self.num_nodes,) * 2).toarray()
        if len(src) and settings.num_clusters < self.num_nodes:
            kernel, mass = graph_cut_kernel(np.abs(links + links.T))
            model = KernelKMeans(
                settings.num_clusters, "precomputed", init="partition", refine=True, seed=settings.seed
            )
            self.clusters.copy_(torch.from_numpy(model.fit(kernel, sample_weight=mass).labels_))
        else:
            self.clusters.copy_(torch.arange(self.num_nodes) % settings.num_clusters)

    def prepare(self, readings, times):
        """Standardised readings, which are there, where congestion starts, when it last did, and the times."""
        times, valid = torch.from_numpy(times), _valid(readings)
        bound = self.bound.cpu()[(times / 60 % 24).long()]
        low = (readings < bound) & valid
        known = (
            torch.where(valid, torch.arange(len(times)).unsqueeze(1), 0).cummax(0).values
        )  # the latest reading's row
        before = torch.cat([torch.zeros_like(low[:1]), low.gather(0, known)[:-1]])
        onset = low & ~before
        latest = torch.where(onset, times.unsqueeze(1), 0.0).cummax(0).values
        scaled = torch.where(valid, (readings - self.mean.cpu()) / self.scale.cpu(), 0.0)
        return scaled, valid, onset, latest, times

    def forward(self, part, now, at, labels=None, masked=None):
        """Forecast from rows ``now`` (B,) for the times ``at`` (B,) in minutes.

        Returns
        -------
        guess : tensor, shape (B, N)
            Readings.
        rest : what the regularisers need.
        """
        device, B, N = self.mean.device, len(now), self.num_nodes
        rows = now.unsqueeze(1) - torch.arange(self.window - 1, -1, -1)
        seen, there = (x[rows].transpose(1, 2) for x in (part.scaled, part.valid))  # (B, N, window)
        seen, there = seen.to(device), there.to(device, seen.dtype)
        ahead = ((at - part.times[now]) / HOUR).to(device, seen.dtype)
        moment = torch.cat(
            [calendar_features(at, "minutes", self.origin).to(ahead), torch.stack([ahead, ahead**2], 1)], 1
        )
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
        last = torch.zeros_like(latest).scatter_reduce(1, self.dst.expand(B, -1), latest[:, self.src], "amax")
        when = (at.to(device) / HOUR).unsqueeze(1).expand(B, N)
        query, guard = None, contextlib.nullcontext()
        if masked is not None and masked.any():
            masked = masked.to(device).reshape(-1)
            graph = self.cam.keys(graph, masked)
            query = self.cam.query(labels.to(device).reshape(-1), masked)
            guard = self.cam.guard(self.encoder.aia, graph, masked)
        clusters, elapsed = self.clusters.repeat(B), (when - last).reshape(-1)
        with guard:
            h, _, _, s = self.encoder(
                graph,
                feat,
                elapsed,
                clusters,
                when.reshape(-1),
                query,
                None,
                masked if query is not None else None,
                return_state=True,
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

    def forecasts(self, part, horizons, batch=256):
        """For each horizon, forecasts and readings of all the part's rows; 0 where there is no reading."""
        now = torch.arange(part.start, part.start + part.count)
        result = {}
        with torch.no_grad():
            for h in horizons:
                guess = [self(part, n, part.times[n] + h * self.minutes)[0].cpu() for n in now.split(batch)]
                truth = part.scaled[now + h] * self.scale.cpu() + self.mean.cpu()
                result[h] = torch.cat(guess), torch.where(part.valid[now + h], truth, 0.0)
        return result


class _TrafficTask:
    """Error on all roads with a reading, at a horizon drawn for each snapshot, less γ TPPLE."""

    metric, larger = "mae", False

    def __init__(self, settings):
        self.settings = settings
        sign = -1 if settings.regulariser == "tpple" else 1
        self.terms = {"loss": 1.0, settings.regulariser: sign * settings.gamma, "masked": 0.0, "unmasked": 0.0}

    def size(self, train):
        return train.count

    def loss(self, model, train, ids, seed, epoch):
        now, roads = train.start + ids, torch.arange(model.num_nodes)
        draws = uniform(ids, seed, epoch, 1)[:, 0]
        steps = 1 + (draws * max(HORIZONS)).long()
        valid, labels = train.valid[now + steps], train.scaled[now + steps]
        masked = model.cam.pick((now.unsqueeze(1) * len(roads) + roads).reshape(-1), seed, epoch, valid.reshape(-1))
        masked = masked.reshape(valid.shape)
        guess, (h, state, last) = model(train, now, train.times[now] + steps * model.minutes, labels, masked)
        error = (guess - model.mean) / model.scale - labels.to(guess.device)
        error = error * model.scale / model.scale.mean()  # miles per hour, in units of one typical deviation
        each = error.square() if self.settings.loss == "mse" else error.abs()
        valid, masked = valid.to(each.device), masked.to(each.device)
        parts = {"loss": (each[valid].sum(), valid.sum())}
        for name, some in (("masked", valid & masked), ("unmasked", valid & ~masked)):
            parts[name] = each[some].detach().sum(), some.sum()
        if self.settings.gamma and self.settings.regulariser == "tpple":
            parts["tpple"] = model.tpple(train, now, state, last, masked) * masked.numel(), masked.numel()
        elif self.settings.gamma:  # the same roads one step later
            later = model(train, now, train.times[now] + (steps + 1) * model.minutes)[1][0]
            pair = torch.stack([h, later], 1)
            parts["smoothness"] = smoothness(pair) * len(ids), len(ids)
        return parts

    def evaluate(self, model, valid):
        pairs = model.forecasts(valid, HORIZONS).values()
        guess, truth = (torch.cat(x) for x in zip(*pairs, strict=True))
        return {"mae": mae(guess, truth), "rmse": rmse(guess, truth)}


def _limits(part, window, ahead=HORIZONS[-1]):
    """First row and number of rows that can be "now": windows and targets lie inside the part."""
    return part.start + window - 1, part.stop - part.start - (window - 1) - ahead


def _valid(readings):
    return ~torch.isnan(readings) & (readings != 0)


def _mean(x, valid, otherwise):
    """Mean over the valid rows of each road; roads without any get ``otherwise``."""
    count = valid.sum(0)
    return torch.where(count > 0, torch.where(valid, x, 0).sum(0) / count.clamp_min(1), otherwise)
