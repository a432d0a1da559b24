"""Dynamic node classification: what kind of node, at a given time (chapter *Three tasks, one recipe*)."""

import dataclasses
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ..encode import KernelKMeans, NodeEncoder
from ..encode import calendar as calendar_features
from ..events import time_scale
from ..graph import TemporalGraph
from .cam import CaM, TokenMask
from .estimator import Estimator, Modulated
from .fit import FitResult
from .metrics import accuracy, f1_of, macro_f1
from .tpple import tpple

MASKINGS = ("cam", "token", "none")
CLUSTER_SAMPLE = 5_000  # nodes that the clusters are learned from, at most


@dataclasses.dataclass(kw_only=True, eq=False)
class Classifier(Estimator):
    r"""What all node classifiers share: snapshots of a graph that grows in, probabilities of classes out.

    A node of step t is asked at the step's end, t + 1 (or at any time, see :meth:`predict`), from the edges before
    that. A subclass gives ``_model(in_feats)``, a module with ``model(snapshot) -> logits`` (n, C), where ``snapshot``
    is a dict of tensors on the model's device (see :func:`snapshot_at`), and ``hops``, how many edges away it hears.

    Parameters
    ----------
    dim, num_heads : int
        Width 32 and two heads: the paper's for EasyDGL.
    num_classes : int
        Three in the paper: licit, illicit, unknown.
    batch_size : int
        *Steps* of time per update.
    balance : float
        Classes weigh (their share) to the power -balance in the loss: 0 is the paper's, 1 makes classes equal.
    both_ways : bool
        Payers hear of what they paid, too: each edge is also read backwards.
    time_unit : float
        Times are divided by this.
    **training
        Those of :class:`Training` and :class:`Estimator`.
    """

    dim: int = 32
    num_heads: int = 2
    num_classes: int = 3
    batch_size: int = 4
    balance: float = 0.0
    both_ways: bool = True
    time_unit: float | str = 1.0

    hops = 3

    def __post_init__(self):
        super().__post_init__()
        time_scale(self.time_unit)

    def fit(self, data, train_until=37, valid_until=39, **run):
        """Train on the steps up to ``train_until``, choose the epoch by macro-F1 on those up to ``valid_until``.

        Parameters
        ----------
        data : object with ``graph``, ``features`` (N, F), ``labels`` (N,), ``step`` (N,)
            Such as :class:`easydgl_mini.simulate.Ledger`. A label of -1 is none: neither learned from nor counted.
            Features are standardised by the training steps'. With ``features=None`` a node is described by the
            logarithms of one plus the number of edges into it and out of it so far.
        **run
            ``checkpoint``, ``resume``, ``progress``, ``log``: see :class:`FitConfig`. A model without parameters has
            no run to keep.
        """
        features, labels, step = self._check(data)
        seen = step <= train_until
        if not (seen & (labels >= 0)).any():
            raise ValueError(f"data has no labelled node up to step {train_until}")
        scale = features[seen].std(0) if features.shape[1] and seen.sum() > 1 else torch.ones(features.shape[1])
        self.extra_ = {"mean": features[seen].mean(0), "scale": torch.where(scale > 1e-6, scale, 1.0)}
        counts = torch.bincount(labels[seen & (labels >= 0)], minlength=self.num_classes)
        self.extra_["share"] = counts / counts.sum()
        train = self._snapshots(data, sorted(set(step[seen].tolist())))
        valid = self._snapshots(data, sorted(set(step[(step > train_until) & (step <= valid_until)].tolist())))
        self._start(train)
        if not any(p.requires_grad for p in self.model_.parameters()):
            self.result_ = FitResult([], 0, None, "closed form")
            self.model_.eval()
            return self
        ends = data.graph.edges()
        return self._train(self._task(), (train, valid or None), run, (*ends, features, labels, step))

    def predict(self, data, at=None):
        """Probabilities of the classes, (N, C).

        Parameters
        ----------
        data : as in :meth:`fit`
            Labels are not looked at.
        at : float, optional
            One time for all nodes, in the graph's unit: edges before it count, and nodes whose step is later get NaN.
            By default each node is asked at the end of its own step.
        """
        if at is not None and not np.isfinite(at):
            raise ValueError(f"at must be a finite time, got {at}")
        return self._ask(data, sorted(set(torch.as_tensor(data.step).tolist())) if at is None else [None], at)

    def score(self, data, steps=(40, 49), per_step=False):
        """Macro-F1, the illicit class's F1 (class 1) and accuracy on the labelled nodes of steps first … last.

        ``per_step=True`` gives a dict of them for each step.
        """
        self._ready()
        _, labels, step = self._check(data)
        wanted = (step >= steps[0]) & (step <= steps[1]) & (labels >= 0)
        if not wanted.any():
            raise ValueError(f"data has no labelled node in steps {steps[0]} … {steps[1]}")
        each = sorted(set(step[wanted].tolist()))
        guess = self._ask(data, each).argmax(-1)
        if not per_step:
            return self._metrics(guess[wanted], labels[wanted])
        return {t: self._metrics(guess[wanted & (step == t)], labels[wanted & (step == t)]) for t in each}

    # --- what a baseline may replace

    def _start(self, train):
        """Make the model, with what it takes from the training snapshots other than by gradients."""
        self._build(in_feats=train[0]["features"].shape[1])

    def _task(self):
        return LabelTask(self)

    # --- the rest

    def _ask(self, data, steps, at=None):
        """Probabilities (N, C) of the nodes of some steps; NaN for the others."""
        model, device = self._ready()
        out = torch.full((data.graph.num_nodes, self.num_classes), torch.nan)
        with torch.no_grad():
            for snapshot in self._each_snapshot(data, steps, at):
                mine = snapshot["asked"]
                out[snapshot["nodes"][mine]] = model(moved(snapshot, device)).softmax(-1).float().cpu()[mine]
        return out

    def _metrics(self, guess, truth):
        parts = {"macro_f1": macro_f1(guess, truth, self.num_classes), "illicit_f1": f1_of(1, guess, truth)}
        return parts | {"accuracy": accuracy(guess, truth), "nodes": len(truth)}

    def _check(self, data, labelled=True):
        graph, features = data.graph, data.features
        features = torch.zeros(graph.num_nodes, 0) if features is None else torch.as_tensor(features).float()
        labels, step = (torch.as_tensor(x).long() for x in (data.labels, data.step))
        if graph.times is None:
            raise ValueError("graph must have edge times; got a graph made with times=None")
        for name, x in (("features", features), ("labels", labels), ("step", step)):
            if len(x) != graph.num_nodes:
                raise ValueError(f"{name} must have one row per node, {graph.num_nodes}, got {len(x)}")
        bad = ~torch.isfinite(features).all(1)
        if bad.any():
            raise ValueError(f"features[{int(bad.nonzero()[0, 0])}] has a value that is not finite")
        bad = (labels < -1) | (labels >= self.num_classes)
        if labelled and bad.any():
            first = int(bad.nonzero()[0, 0])
            raise ValueError(f"labels[{first}] is {labels[first]}; expected 0 … {self.num_classes - 1}, or -1 for none")
        return features, labels, step

    def _snapshots(self, data, steps, at=None):
        return list(self._each_snapshot(data, steps, at))

    def _each_snapshot(self, data, steps, at=None):
        """What is known at the end of each step (or at ``at``), on the nodes that ``hops`` edges lead from."""
        features, labels, step = self._check(data, labelled=False)
        features = (features - self.extra_.get("mean", 0)) / self.extra_.get("scale", 1)
        src, dst, times = data.graph.src, data.graph.dst, data.graph.times.double()
        for t in steps:
            snapshot = snapshot_at(src, dst, times, features, labels, step, t, at, self.hops, self.both_ways)
            for name in ("times", "at", "elapsed", "last", "gap"):
                snapshot[name] = snapshot[name] / time_scale(self.time_unit)
            yield snapshot


@dataclasses.dataclass(kw_only=True, eq=False)
class NodeClassifier(Modulated, Classifier):
    r"""Classify the nodes of a graph whose edges arrive in time, step by step.

    Two GATConv and one AIA layer, then :math:`\operatorname{softmax}(\mathbf h \mathbf W + \mathbf b)`. Masked nodes
    ask the AIA layer with their label and are nobody's neighbour; the loss is on all nodes, and nothing is masked when
    the model is used.

    Parameters
    ----------
    dim, num_heads, num_classes, batch_size, balance, both_ways, time_unit
        See :class:`Classifier`.
    masking : {"cam", "token", "none"}
        "token" is typical masking: features replaced by a shared token, keys kept.
    detach : bool
        See :class:`CaM`.
    calendar : str, optional
        Unit of the graph's times ("seconds", "hours", …) since ``origin``: then weekday and hour enter the attention
        (α). None, for a clock without a calendar, switches that off.
    origin : str
        A date, by default 1970's first.
    **training
        Those of :class:`Training`, :class:`Estimator` and :class:`Modulated`.
    """

    masking: str = "cam"
    detach: bool = False
    calendar: str | None = None
    origin: str = "1970-01-01"

    def __post_init__(self):
        super().__post_init__()
        if self.masking not in MASKINGS:
            raise ValueError(f"masking must be one of {', '.join(MASKINGS)}, got {self.masking!r}")
        CaM(self.mask_rate, 1)

    def _start(self, train):
        super()._start(train)
        rows = torch.cat([s["features"][s["asked"]] for s in train])
        sample = np.random.default_rng(self.seed).permutation(len(rows))[:CLUSTER_SAMPLE]
        sample = rows[torch.from_numpy(sample.copy())].numpy()
        clusters = KernelKMeans(self.num_clusters, kernel="linear", n_init=3, seed=self.seed).fit(sample).labels_
        mine = [sample[clusters == k] if (clusters == k).any() else sample[:1] for k in range(self.num_clusters)]
        self.model_.centres.copy_(torch.from_numpy(np.stack([x.mean(0) for x in mine])))

    def _model(self, in_feats):
        return _NodeModel(self, in_feats)

    def _task(self):
        return _NodeTask(self)


class _NodeModel(nn.Module):
    def __init__(self, settings, in_feats):
        super().__init__()
        K, rate, self.settings = settings.num_clusters, settings.mask_rate, settings
        self.encoder = NodeEncoder(
            in_feats + K, K, settings.dim, settings.num_heads, settings.dropout, **settings._layer()
        )
        self.head = nn.Linear(settings.dim, settings.num_classes)
        self.cam = CaM(rate, settings.dim, settings.num_classes, settings.detach) if settings.masking == "cam" else None
        self.token = TokenMask(rate, in_feats + K) if settings.masking == "token" else None
        self.register_buffer("centres", torch.ones(K, in_feats))

    def forward(self, snapshot):
        return self.embed(snapshot)[0]

    def embed(self, snapshot, masked=None):
        """Logits (n, C), and what TPPLE needs: the plain layers' output and the clusters."""
        feat = snapshot["features"]
        clusters = torch.cdist(feat, self.centres).argmin(-1)
        feat = torch.cat([feat, F.one_hot(clusters, len(self.centres)).to(feat.dtype)], -1)  # [X^f ‖ X^c]
        keys, query, detach = graph_of(snapshot), None, None
        if self.token is not None and masked is not None:
            feat = self.token(feat, masked)
        if self.cam is not None and masked is not None:
            keys, query = self.cam.keys(keys, masked), self.cam.query(snapshot["labels"], masked)
            detach = masked if self.cam.detach else None
        h, _, x, _ = self.encoder(
            keys,
            feat,
            snapshot["elapsed"],
            clusters,
            snapshot["at"],
            query,
            self.calendar(snapshot["at"]),
            masked,
            with_loops(keys),
            return_state=True,
            detach=detach,
        )
        return self.head(h), x, clusters

    def calendar(self, times):
        """What the calendar says at these times (n,), in the model's unit; None without one."""
        settings = self.settings
        if settings.calendar is None:
            return None
        return calendar_features(times * time_scale(settings.time_unit), settings.calendar, settings.origin).float()

    def tpple(self, snapshot, x, clusters):
        """Log-rate of each node's latest edges, given those before them, minus the integral since the edge before."""
        graph, gap, last = graph_of(snapshot), snapshot["gap"].to(x.dtype), snapshot["last"]
        past, query = graph.select(~snapshot["latest"]), self.encoder.ask(x, last)
        with torch.autocast(x.device.type, enabled=False):
            _, right, state = self.encoder.aia(past, x, gap, clusters, query, self.calendar(last), return_state=True)
            left = self.encoder.aia.intensity(state, torch.zeros_like(gap))
        latest = snapshot["latest"]
        counts = torch.zeros(len(x), right.shape[-1], dtype=x.dtype, device=x.device)
        counts.index_put_((graph.dst[latest], clusters[graph.src[latest]]), x.new_ones(()), accumulate=True)
        left, right = (lam.mean(1, keepdim=True) for lam in (left, right))  # over heads; (n, 1, K): one interval each
        return tpple(left, right, counts.unsqueeze(1), gap.unsqueeze(1), (gap > 0).unsqueeze(1))


class LabelTask:
    """Cross-entropy on all labelled nodes of the steps, weighed by class."""

    metric, larger = "macro_f1", True

    def __init__(self, settings):
        self.settings, self.terms = settings, {"loss": 1.0}
        share = settings.extra_.get("share", torch.ones(settings.num_classes))
        self.weights = share.clamp_min(1e-6) ** -settings.balance

    def size(self, train):
        return len(train)

    def batch(self, model, snapshots):
        """Snapshots side by side on the model's device, and who is asked and has a label."""
        snapshot = moved(union(snapshots), next(model.parameters()).device)
        return snapshot, snapshot["asked"] & (snapshot["labels"] >= 0)

    def mean(self, logits, snapshot, labelled):
        """Each labelled node's cross-entropy, and the weighted sum with its count."""
        labels = snapshot["labels"][labelled]
        each, weights = F.cross_entropy(logits[labelled], labels, reduction="none"), self.weights.to(labels.device)
        return each, ((weights[labels] * each).sum(), weights[labels].sum())

    def loss(self, model, train, ids, seed, epoch):
        snapshot, labelled = self.batch(model, [train[i] for i in ids.tolist()])
        return {"loss": self.mean(model(snapshot), snapshot, labelled)[1]}

    def evaluate(self, model, valid):
        snapshot, labelled = self.batch(model, valid)
        return self.settings._metrics(model(snapshot).argmax(-1)[labelled], snapshot["labels"][labelled])


class _NodeTask(LabelTask):
    """The same, masked or not, less γ TPPLE; the masked and the others reported apart."""

    def __init__(self, settings):
        super().__init__(settings)
        self.terms = {"loss": 1.0, "tpple": -settings.gamma, "masked": 0.0, "unmasked": 0.0}

    def loss(self, model, train, ids, seed, epoch):
        snapshot, labelled = self.batch(model, [train[i] for i in ids.tolist()])
        masked = torch.zeros_like(labelled)
        if self.settings.masking != "none":
            masked = (model.cam or model.token).pick(snapshot["nodes"], seed, epoch, labelled)
        logits, x, clusters = model.embed(snapshot, masked)
        each, loss = self.mean(logits, snapshot, labelled)
        parts, hidden = {"loss": loss}, masked[labelled]
        for name, some in (("masked", hidden), ("unmasked", ~hidden)):
            parts[name] = each[some].detach().sum(), some.sum()
        if self.settings.gamma:
            parts["tpple"] = model.tpple(snapshot, x, clusters) * len(x), len(x)
        return parts


def snapshot_at(src, dst, times, features, labels, step, t, at=None, hops=3, both_ways=True):
    """What is known at the end of step ``t`` (or, with ``t=None``, at the time ``at``) to the nodes asked about.

    Parameters
    ----------
    src, dst, times : tensors, shape (E,)
    features : tensor, shape (N, F)
    labels, step : int tensors, shape (N,)
    hops : int
        Nodes that lie further than this from those asked about are left out.
    both_ways : bool
        Each edge is also read backwards.

    Returns
    -------
    dict of tensors
        By node (n,): ``nodes`` (their ids), ``features``, ``labels``, ``step``, ``asked``, ``now`` (the step asked
        about; at the time t + 1, the end of step t, still t), ``at`` (the time), ``last`` (of the latest edge into it;
        its step's beginning without any), ``elapsed`` (since then), ``gap`` (from the edge before to the last).
        By edge (e,): ``src``, ``dst``, ``times``, ``latest`` (of those into its node).
    """
    asked = step <= at if t is None else step == t
    at = float(t + 1) if t is not None else float(at)
    known = times < at
    src, dst, times = src[known], dst[known], times[known]
    if not features.shape[1]:
        degree = torch.stack([torch.bincount(end, minlength=len(step)) for end in (dst, src)], 1)
        features = torch.log1p(degree.float())
    if both_ways:
        src, dst, times = torch.cat([src, dst]), torch.cat([dst, src]), times.repeat(2)
    inside = asked.clone()
    for _ in range(hops):
        heard = src[inside[dst]]
        if inside[heard].all():
            break
        inside[heard] = True
    kept, number = inside[src] & inside[dst], torch.cumsum(inside, 0) - 1
    nodes = inside.nonzero()[:, 0]
    src, dst, times = number[src[kept]], number[dst[kept]], times[kept]
    start = step[nodes].double().clamp_max(at)
    never = torch.full_like(start, -torch.inf)
    last = never.scatter_reduce(0, dst, times, "amax")
    latest = times == last[dst]
    second = never.scatter_reduce(0, dst[~latest], times[~latest], "amax")
    heard = torch.isfinite(last)
    second, last = torch.where(torch.isfinite(second), second, start), torch.where(heard, last, start)
    return {
        "nodes": nodes,
        "features": features[nodes],
        "labels": labels[nodes],
        "step": step[nodes],
        "asked": asked[nodes],
        "now": torch.full_like(nodes, math.ceil(at) - 1 if t is None else t),
        "at": torch.full_like(start, at),
        "last": last,
        "elapsed": at - last,
        "gap": torch.where(heard, (last - second).clamp_min(0), 0),
        "src": src,
        "dst": dst,
        "times": times,
        "latest": latest,
    }


def union(snapshots):
    """Several snapshots side by side, as one that has no edge between them."""
    sizes = torch.tensor([len(s["nodes"]) for s in snapshots])
    offsets = (torch.cumsum(sizes, 0) - sizes).tolist()
    joined = {name: torch.cat([s[name] for s in snapshots]) for name in snapshots[0]}
    for end in ("src", "dst"):
        joined[end] = torch.cat([s[end] + offset for s, offset in zip(snapshots, offsets, strict=True)])
    return joined


def moved(snapshot, device):
    """A snapshot on a device."""
    return {name: x.to(device) for name, x in snapshot.items()}


def graph_of(snapshot):
    """A snapshot's edges as a :class:`TemporalGraph`."""
    return TemporalGraph._trusted(snapshot["src"], snapshot["dst"], len(snapshot["nodes"]), snapshot["times"])


def with_loops(graph):
    """The graph and an edge of weight one from every node to itself; times are left out. Kept with the graph."""
    if "_looped" not in graph.__dict__:
        own = torch.arange(graph.num_nodes, device=graph.device)
        weights = None if graph.weights is None else torch.cat([graph.weights, graph.weights.new_ones(len(own))])
        ends = torch.cat([graph.src, own]), torch.cat([graph.dst, own])
        graph.__dict__["_looped"] = TemporalGraph._trusted(*ends, graph.num_nodes, weights=weights)
    return graph.__dict__["_looped"]
