"""Dynamic node classification: what kind of node, at a given time (chapter *Three tasks, one recipe*)."""

import contextlib
import dataclasses

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ..encode import KernelKMeans, NodeEncoder
from ..events import time_scale
from ..graph import TemporalGraph
from .cam import CaM, TokenMask
from .estimator import Estimator
from .metrics import accuracy, f1_of, macro_f1
from .tpple import tpple

MASKINGS = ("cam", "token", "none")
CLUSTER_SAMPLE = 5_000  # nodes that the clusters are learned from, at most


@dataclasses.dataclass(kw_only=True, eq=False)
class NodeClassifier(Estimator):
    r"""Classify the nodes of a graph whose edges arrive in time, step by step.

    A node of step t is asked at the step's end, t + 1 (or at any time, see :meth:`predict`), from the edges before
    that: two GATConv and one AIA layer, then :math:`\operatorname{softmax}(\mathbf h \mathbf W + \mathbf b)`. Masked
    nodes ask the AIA layer with their label and are nobody's neighbour; the loss is on all nodes, and nothing is masked
    when the model is used.

    Parameters
    ----------
    dim, num_heads : int
        Width 32 and two heads: the paper's.
    num_classes : int
        Three in the paper: licit, illicit, unknown.
    batch_size : int
        *Steps* of time per update.
    masking : {"cam", "token", "none"}
        "token" is typical masking: features replaced by a shared token, keys kept.
    detach : bool
        See :class:`CaM`.
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
    masking: str = "cam"
    detach: bool = False
    balance: float = 0.0
    both_ways: bool = True
    time_unit: float | str = 1.0

    def __post_init__(self):
        super().__post_init__()
        if self.masking not in MASKINGS:
            raise ValueError(f"masking must be one of {', '.join(MASKINGS)}, got {self.masking!r}")
        CaM(self.mask_rate, 1)
        time_scale(self.time_unit)

    def fit(self, data, train_until=37, valid_until=39, **run):
        """Train on the steps up to ``train_until``, choose the epoch by macro-F1 on those up to ``valid_until``.

        Parameters
        ----------
        data : object with ``graph``, ``features`` (N, F), ``labels`` (N,), ``step`` (N,)
            Such as :class:`easydgl_mini.simulate.Ledger`. A label of -1 is none: neither learned from nor counted.
        **run
            ``checkpoint``, ``resume``, ``progress``, ``log``: see :class:`FitConfig`.
        """
        features, labels, step = self._check(data, self.num_classes)
        seen = step <= train_until
        if not (seen & (labels >= 0)).any():
            raise ValueError(f"data has no labelled node up to step {train_until}")
        self._build(in_feats=features.shape[1])
        model = self.model_
        model.mean.copy_(features[seen].mean(0))
        model.scale.copy_(features[seen].std(0).clamp_min(1e-6))
        sample = torch.from_numpy(np.random.default_rng(self.seed).permutation(int(seen.sum()))[:CLUSTER_SAMPLE].copy())
        sample = model.standard(features[seen][sample]).numpy()
        clusters = KernelKMeans(self.num_clusters, kernel="linear", n_init=3, seed=self.seed).fit(sample).labels_
        centres = [
            sample[clusters == k].mean(0) if (clusters == k).any() else sample[0] for k in range(self.num_clusters)
        ]
        model.centres.copy_(torch.from_numpy(np.stack(centres)))
        counts = torch.bincount(labels[seen & (labels >= 0)], minlength=self.num_classes)
        model.weights.copy_((counts / counts.sum()).clamp_min(1e-6) ** -self.balance)
        steps = sorted(set(step.tolist()))
        train = self._snapshots(data, [t for t in steps if t <= train_until])
        valid = self._snapshots(data, [t for t in steps if train_until < t <= valid_until])
        return self._train(_NodeTask(self), (train, valid or None), run)

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
        model, _ = self._ready()
        step = torch.as_tensor(data.step)
        if at is not None and not np.isfinite(at):
            raise ValueError(f"at must be a finite time, got {at}")
        times = [None] if at is not None else sorted(set(step.tolist()))
        out = torch.full((len(step), self.num_classes), torch.nan)
        with torch.no_grad():
            for snapshot in self._snapshots(data, times, at):
                mine = snapshot["asked"]
                out[snapshot["nodes"][mine]] = model(snapshot)[0].softmax(-1).cpu()[mine]
        return out

    def score(self, data, steps=(40, 49), per_step=False):
        """Macro-F1, the illicit class's F1 (class 1) and accuracy on the labelled nodes of steps first … last.

        ``per_step=True`` gives a dict of them for each step.
        """
        self._ready()
        _, labels, step = self._check(data, self.num_classes)
        wanted = (step >= steps[0]) & (step <= steps[1]) & (labels >= 0)
        if not wanted.any():
            raise ValueError(f"data has no labelled node in steps {steps[0]} … {steps[1]}")
        guess = self.predict(data).argmax(-1)
        if not per_step:
            return self._metrics(guess[wanted], labels[wanted])
        each = sorted(set(step[wanted].tolist()))
        return {t: self._metrics(guess[wanted & (step == t)], labels[wanted & (step == t)]) for t in each}

    def _metrics(self, guess, truth):
        parts = {"macro_f1": macro_f1(guess, truth, self.num_classes), "illicit_f1": f1_of(1, guess, truth)}
        return parts | {"accuracy": accuracy(guess, truth), "nodes": len(truth)}

    def _model(self, in_feats):
        return _NodeModel(self, in_feats)

    def _check(self, data, num_classes=None):
        graph, features = data.graph, torch.as_tensor(data.features, dtype=torch.float32)
        labels, step = (torch.as_tensor(x).long() for x in (data.labels, data.step))
        if graph.times is None:
            raise ValueError("graph must have edge times; got a graph made with times=None")
        for name, x in (("features", features), ("labels", labels), ("step", step)):
            if len(x) != graph.num_nodes:
                raise ValueError(f"{name} must have one row per node, {graph.num_nodes}, got {len(x)}")
        bad = ~torch.isfinite(features).all(1)
        if bad.any():
            raise ValueError(f"features[{int(bad.nonzero()[0, 0])}] has a value that is not finite")
        bad = (labels < -1) | (labels >= num_classes) if num_classes else torch.zeros(1, dtype=torch.bool)
        if bad.any():
            first = int(bad.nonzero()[0, 0])
            raise ValueError(f"labels[{first}] is {labels[first]}; expected 0 … {num_classes - 1}, or -1 for none")
        return features, labels, step

    def _snapshots(self, data, steps, at=None):
        """What is known at the end of each step (or at ``at``), on the nodes that three layers can hear from."""
        features, labels, step = self._check(data)
        graph, unit = data.graph, time_scale(self.time_unit)
        src, dst, times = graph.src, graph.dst, graph.times.double()
        if self.both_ways:
            src, dst, times = torch.cat([src, dst]), torch.cat([dst, src]), times.repeat(2)
        return [_snapshot(src, dst, times, features, labels, step, t, at, unit) for t in steps]


class _NodeModel(nn.Module):
    def __init__(self, settings, in_feats):
        super().__init__()
        K, rate = settings.num_clusters, settings.mask_rate
        self.encoder = NodeEncoder(
            in_feats + K, K, settings.dim, settings.num_heads, settings.dropout, **settings._layer()
        )
        self.head = nn.Linear(settings.dim, settings.num_classes)
        self.cam = CaM(rate, settings.dim, settings.num_classes, settings.detach) if settings.masking == "cam" else None
        self.token = TokenMask(rate, in_feats + K) if settings.masking == "token" else None
        for name, shape in (("mean", in_feats), ("scale", in_feats), ("centres", (K, in_feats))):
            self.register_buffer(name, torch.ones(shape))
        self.register_buffer("weights", torch.ones(settings.num_classes))

    def standard(self, features):
        return (features - self.mean) / self.scale

    def forward(self, snapshot, masked=None):
        """Logits (n, C), and what TPPLE needs: the plain layers' output and the clusters."""
        snapshot = {name: x.to(self.mean.device) for name, x in snapshot.items()}
        feat = self.standard(snapshot["features"])
        clusters = torch.cdist(feat, self.centres).argmin(-1)
        feat = torch.cat([feat, F.one_hot(clusters, len(self.centres)).to(feat.dtype)], -1)  # [X^f ‖ X^c]
        keys = _graph(snapshot)
        masked = torch.zeros(len(feat), dtype=torch.bool) if masked is None else masked
        masked, query = masked.to(feat.device), None
        if self.token is not None:
            feat = self.token(feat, masked)
        guard = contextlib.nullcontext()
        if self.cam is not None and masked.any():
            keys, query = self.cam.keys(keys, masked), self.cam.query(snapshot["labels"], masked)
            guard = self.cam.guard(self.encoder.aia, keys, masked)
        own = torch.arange(len(feat), device=feat.device)
        plain = TemporalGraph._trusted(torch.cat([keys.src, own]), torch.cat([keys.dst, own]), len(feat))
        with guard:
            h, _, x, _ = self.encoder(
                keys, feat, snapshot["elapsed"], clusters, snapshot["at"], query, None, masked, plain, return_state=True
            )
        return self.head(h), x, clusters

    def tpple(self, snapshot, x, clusters):
        """Log-rate of each node's latest edges, given those before them, minus the integral since the edge before."""
        snapshot = {name: y.to(x.device) for name, y in snapshot.items()}
        graph, gap = _graph(snapshot), snapshot["gap"].to(x.dtype)
        past, query = graph.select(snapshot["past"]), self.encoder.ask(x, snapshot["last"])
        with torch.autocast(x.device.type, enabled=False):
            _, right, state = self.encoder.aia(past, x, gap, clusters, query=query, return_state=True)
            left = self.encoder.aia.intensity(state, torch.zeros_like(gap))
        latest = snapshot["latest"]
        counts = torch.zeros(len(x), right.shape[-1], dtype=x.dtype, device=x.device)
        counts.index_put_((graph.dst[latest], clusters[graph.src[latest]]), x.new_ones(()), accumulate=True)
        left, right = (lam.mean(1, keepdim=True) for lam in (left, right))  # over heads; (n, 1, K): one interval each
        return tpple(left, right, counts.unsqueeze(1), gap.unsqueeze(1), (gap > 0).unsqueeze(1))


class _NodeTask:
    """Cross-entropy on all labelled nodes of the steps, masked or not, less γ TPPLE; the two kinds reported apart."""

    metric, larger = "macro_f1", True

    def __init__(self, settings):
        self.settings = settings
        self.terms = {"loss": 1.0, "tpple": -settings.gamma, "masked": 0.0, "unmasked": 0.0}

    def size(self, train):
        return len(train)

    def loss(self, model, train, ids, seed, epoch):
        snapshot = _union([train[i] for i in ids.tolist()])
        labelled = snapshot["asked"] & (snapshot["labels"] >= 0)
        masked = torch.zeros_like(labelled)
        if self.settings.masking != "none":
            masked = (model.cam or model.token).pick(snapshot["nodes"], seed, epoch, labelled)
        logits, x, clusters = model(snapshot, masked)
        labels = snapshot["labels"][labelled].to(logits.device)
        each = F.cross_entropy(logits[labelled.to(logits.device)], labels, reduction="none")
        weights, hidden = model.weights[labels], masked[labelled].to(each.device)
        parts = {"loss": ((weights * each).sum(), weights.sum())}
        for name, some in (("masked", hidden), ("unmasked", ~hidden)):
            parts[name] = each[some].detach().sum(), some.sum()
        if self.settings.gamma:
            parts["tpple"] = model.tpple(snapshot, x, clusters) * len(x), len(x)
        return parts

    def evaluate(self, model, valid):
        snapshot = _union(valid)
        labelled = snapshot["asked"] & (snapshot["labels"] >= 0)
        guess = model(snapshot)[0].argmax(-1).cpu()
        return self.settings._metrics(guess[labelled], snapshot["labels"][labelled])


def _snapshot(src, dst, times, features, labels, step, t, at, unit):
    asked = step <= at if t is None else step == t
    at = float(t + 1) if at is None else float(at)
    known = times < at
    src, dst, times = src[known], dst[known], times[known]
    inside = asked.clone()
    for _ in range(3):  # as many as there are layers
        inside[src[inside[dst]]] = True
    kept, number = inside[src] & inside[dst], torch.cumsum(inside, 0) - 1
    nodes = inside.nonzero()[:, 0]
    src, dst, times = number[src[kept]], number[dst[kept]], times[kept]
    start = step[nodes].double().clamp_max(at)  # before its first edge a node's clock runs from its step's beginning
    never = torch.full_like(start, -torch.inf)
    last = never.scatter_reduce(0, dst, times, "amax")
    latest = times == last[dst]
    before = never.scatter_reduce(0, dst[~latest], times[~latest], "amax")
    seen = torch.isfinite(last)
    before, last = torch.where(torch.isfinite(before), before, start), torch.where(seen, last, start)
    return {
        "nodes": nodes,
        "src": src,
        "dst": dst,
        "times": times / unit,
        "latest": latest,
        "past": ~latest,
        "features": features[nodes],
        "labels": labels[nodes],
        "asked": asked[nodes],
        "at": torch.full_like(start, at / unit),
        "elapsed": (at - last) / unit,
        "last": last / unit,
        "gap": torch.where(seen, (last - before).clamp_min(0), 0) / unit,
    }


def _union(snapshots):
    """Several snapshots side by side, as one that has no edge between them."""
    sizes = torch.tensor([len(s["nodes"]) for s in snapshots])
    offsets = (torch.cumsum(sizes, 0) - sizes).tolist()
    joined = {name: torch.cat([s[name] for s in snapshots]) for name in snapshots[0]}
    for end in ("src", "dst"):
        joined[end] = torch.cat([s[end] + offset for s, offset in zip(snapshots, offsets, strict=True)])
    return joined


def _graph(snapshot):
    return TemporalGraph._trusted(snapshot["src"], snapshot["dst"], len(snapshot["nodes"]), snapshot["times"])
