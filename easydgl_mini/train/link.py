"""Dynamic link prediction: which item, at a given time (chapter *Three tasks, one recipe*)."""

import dataclasses

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import coo_array, diags_array
from scipy.sparse.linalg import svds
from torch import nn

from ..encode import KernelKMeans, LinkEncoder
from ..encode import calendar as calendar_features
from ..events import EventLog, Histories, time_scale
from .cam import check_rate, pick_positions
from .estimator import Estimator
from .metrics import hit_rate, ndcg, rank_of
from .tpple import merge_ties, smoothness, tpple

TOP = (10, 50, 100)


@dataclasses.dataclass(kw_only=True, eq=False)
class LinkPredictor(Estimator):
    r"""Rank all items for a user at any time after their last event.

    Trained by hiding items of histories (q(1), not a key) and naming them by a softmax over all items,
    :math:`\hat{\mathbf y} = \operatorname{softmax}(\mathbf h \mathbf E^\top + \mathbf b)`; asked by appending q(1) at
    the time in question. Users are inductive: a user is their history, known to the model or not.

    Parameters
    ----------
    dim, num_layers, num_heads, max_len : int
        Width 64, two layers, two heads, the last 30 events: the paper's.
    time_unit : float or str
        Times are divided by this (see :meth:`EventLog.histories`); the paper's is hours, days or weeks by dataset.
    calendar : str, optional
        Unit of the log's times ("seconds", "hours", …) since a date, by default 1970: then weekday and hour enter the
        attention (α). None, for a clock without a calendar, switches that off.
    origin : str
        That date.
    causal : bool
        Positions see the past only; then TPPLE is a likelihood.
    regulariser : {"tpple", "smoothness"}
        What ``gamma`` weighs.
    item_clusters : sequence of int, optional
        Each item's cluster; by default kernel k-means of the training users' co-occurrences.
    **training
        Those of :class:`Training` and :class:`Estimator`.

    Examples
    --------
    >>> import easydgl_mini as em
    >>> log = em.EventLog(user=[0, 0, 0, 1, 1, 1], item=[0, 1, 2, 0, 1, 2], time=[0.0, 1.0, 2.0, 0.0, 2.0, 5.0])
    >>> model = LinkPredictor(dim=8, num_clusters=2, epochs=1).fit(log, valid=log)
    >>> model.predict(([0, 1], [0.0, 1.0]), at=2.0).shape
    torch.Size([3])
    """

    dim: int = 64
    num_layers: int = 2
    num_heads: int = 2
    max_len: int = 30
    time_unit: float | str = 1.0
    calendar: str | None = None
    origin: str = "1970-01-01"
    causal: bool = False
    regulariser: str = "tpple"
    item_clusters: list | None = None

    def __post_init__(self):
        super().__post_init__()
        check_rate("mask_rate", self.mask_rate)
        time_scale(self.time_unit)
        if self.item_clusters is not None:
            self.item_clusters = [int(k) for k in self.item_clusters]
        if self.regulariser not in ("tpple", "smoothness"):
            raise ValueError(f"regulariser must be 'tpple' or 'smoothness', got {self.regulariser!r}")

    def fit(self, data, valid=None, **run):
        """Train on an event log.

        Parameters
        ----------
        data : EventLog
            A user with one event has nothing to predict from, and teaches nothing.
        valid : EventLog, optional
            Other users, to choose the epoch by NDCG@10 of their last events; by default a tenth of ``data``'s users.
        **run
            ``checkpoint``, ``resume``, ``progress``, ``log``: see :class:`FitConfig`.
        """
        train = data
        if valid is None:
            train, valid = data.split_users((9, 1), self.seed)
            valid = valid if len(valid.hold_out_last()[1]) else None  # too few users: the last epoch is kept
        clusters = (
            item_clusters(train, self.num_clusters, self.seed) if self.item_clusters is None else self.item_clusters
        )
        clusters = torch.as_tensor(clusters)
        if clusters.shape != (data.num_items,):
            raise ValueError(f"item_clusters must have shape ({data.num_items},), got {tuple(clusters.shape)}")
        if len(train.hold_out_last()[1]) == 0:
            raise ValueError("data has no user with two events, so there is nothing to learn")
        model = self._build(num_items=data.num_items, num_clusters=max(self.num_clusters, int(clusters.max()) + 1))
        counts = np.bincount(train.item, minlength=data.num_items)
        model.encoder.item_clusters.copy_(clusters)
        model.bias.data.copy_(torch.from_numpy(np.log((counts + 1) / (counts + 1).sum())))
        last = data.select(data.offsets[data.user + 1] - np.arange(len(data)) <= self.max_len)
        self.extra_ = {name: torch.from_numpy(getattr(last, name).copy()) for name in ("user", "item", "time")}
        return self._train(_LinkTask(self), (windows(train, self.max_len, self.time_unit), valid), run)

    def predict(self, history, at):
        """Scores of all items at a time; higher is likelier, ``softmax`` makes them probabilities.

        Parameters
        ----------
        history : EventLog, pair of sequences (items, times), or int
            Many users, one user, or the id of a user of the log given to :meth:`fit`. One event is enough. An item
            that training never saw has an embedding that was never trained; one beyond the training log's items is
            refused.
        at : float or sequence, shape (users,)
            In the log's own unit, not before a user's last event.

        Returns
        -------
        tensor, shape (users, items), or (items,) for one user
        """
        model, device = self._ready()
        log, one = self._log(history)
        at = np.broadcast_to(np.asarray(at, dtype=np.float64), (len(log.users),))
        last = log.time[log.offsets[log.users + 1] - 1]
        bad = ~(at >= last) | ~np.isfinite(at)
        if bad.any():
            n = int(bad.argmax())
            raise ValueError(f"at[{n}] is {at[n]}, but user {log.users[n]}'s last event is at {last[n]}; ask later")
        rows, unit = log.histories(self.max_len, self.time_unit), time_scale(self.time_unit)
        end = torch.from_numpy(at / unit).unsqueeze(1)
        query = Histories(rows.user, *(_append(getattr(rows, name), x) for name, x in self._query(rows, end)))
        hidden = torch.zeros_like(query.mask)
        hidden[:, -1] = True
        parts = []
        with torch.no_grad():
            for ids in torch.arange(len(query)).split(256):
                h, _, _ = self._encode(model, query[ids], hidden[ids], device)
                parts.append(model.scores(h[:, -1]).float().cpu())
        scores = torch.cat(parts)
        return scores[0] if one else scores

    def score(self, data):
        """Hold out each user's last event, rank all items they don't have at its time: HR and NDCG at 10, 50, 100.

        Users with one event are left out; ``users`` says how many were counted.
        """
        history, last = data.hold_out_last()
        if len(last) == 0:
            raise ValueError("data has no user with two events, so there is nothing to score")
        ranks = self.rank(history, last)
        named = [(f"{name}@{k}", f(ranks, k)) for k in TOP for name, f in (("hr", hit_rate), ("ndcg", ndcg))]
        return dict(named) | {"users": len(ranks)}

    def rank(self, history, last):
        """Rank (users,) of each user's item in ``last`` among all that are not in their history, 1 the best."""
        ranks = []
        for users in np.array_split(last.users, -(-len(last.users) // 256)):
            mine = history.select(np.isin(history.user, users))
            target = last.select(np.isin(last.user, users))
            scores = self.predict(mine, at=target.time)
            seen = torch.zeros_like(scores, dtype=torch.bool)
            seen[np.searchsorted(users, mine.user), torch.from_numpy(mine.item.astype(np.int64))] = True
            ranks.append(rank_of(scores, torch.from_numpy(target.item.astype(np.int64)), exclude=seen))
        return torch.cat(ranks)

    def intensity(self, history, at):
        """Rates of all clusters for one user at times between or after their events, per ``time_unit``: (m, K).

        Parameters
        ----------
        history : pair (items, times), or int
            As in :meth:`predict`; only the last ``max_len`` events count.
        at : sequence, shape (m,)
            After the first of those. At an event's own time the rate is the one before it happens.

        Notes
        -----
        With ``causal=True`` a rate depends on the events before it alone. Otherwise it has seen the later ones too.
        """
        model, device = self._ready()
        log, _ = self._log(history)
        rows, unit = log.histories(self.max_len, self.time_unit), time_scale(self.time_unit)
        at = torch.as_tensor(np.asarray(at, dtype=np.float64) / unit)
        times = rows.time[0][rows.mask[0]]
        before = torch.searchsorted(times, at) - 1  # the last event strictly before
        if (before < 0).any():
            raise ValueError(f"at[{int((before < 0).nonzero()[0, 0])}] is not after the first event")
        with torch.no_grad():
            _, _, state = self._encode(model, rows, torch.zeros_like(rows.mask), device)
            state = state[0][:, rows.mask[0].to(device)][:, before]  # (H, m, d)
            rates = model.encoder.layers[-1].intensity(state.unsqueeze(0), (at - times[before]).to(device).unsqueeze(0))
        return rates.mean(1)[0].cpu()  # over heads

    def _model(self, num_items, num_clusters):
        return _LinkModel(self, num_items, num_clusters)

    def _query(self, rows, end):
        gap = end - rows.time[:, -1:]
        return ("item", torch.full_like(end, -1)), ("time", end), ("gap", gap), ("mask", torch.ones_like(end))

    def _encode(self, model, rows, hidden, device):
        features = None
        if self.calendar is not None:
            raw = rows.time * time_scale(self.time_unit)
            features = calendar_features(raw, self.calendar, self.origin).to(device)
        item, time, gap, mask = (x.to(device) for x in (rows.item, rows.time, rows.gap, rows.mask))
        return model.encoder(item, time, gap, mask, hidden.to(device), features, self.causal)

    def _log(self, history):
        """A log of the users asked about, with items checked; and whether it was one user."""
        items, one = self.sizes_["num_items"], not isinstance(history, EventLog)
        if one and np.ndim(history) == 0:
            known, user = self.extra_["user"].numpy(), int(history)
            if user not in known:
                raise ValueError(f"history is {user}, which is no user of the training log; give (items, times)")
            history = [self.extra_[name].numpy()[known == user] for name in ("item", "time")]
        if one:
            if len(history) != 2 or not len(history[0]):
                raise ValueError("history must be an EventLog, a user's id, or (items, times) with one event or more")
            return EventLog(np.zeros(len(history[0]), dtype=np.int64), *history, num_users=1, num_items=items), True
        if (history.item >= items).any():
            first = int((history.item >= items).argmax())
            raise ValueError(f"item[{first}] is {history.item[first]}; expected an item in 0 … {items - 1}")
        return history, False


class _LinkModel(nn.Module):
    def __init__(self, settings, num_items, num_clusters):
        super().__init__()
        self.encoder = LinkEncoder(
            torch.zeros(num_items, dtype=torch.int64),
            settings.dim,
            settings.num_layers,
            settings.num_heads,
            num_clusters,
            settings.dropout,
            **settings._layer(),
        )
        self.bias = nn.Parameter(torch.zeros(num_items))

    def scores(self, h):
        """Inner product with each item's embedding, which is its own plus its cluster's, as at the input."""
        encoder = self.encoder
        return F.linear(h, encoder.items.weight + encoder.clusters(encoder.item_clusters), self.bias)


class _LinkTask:
    """Cross-entropy on hidden positions, averaged over each sequence's, then over sequences; less γ TPPLE."""

    metric, larger = "ndcg@10", True

    def __init__(self, settings):
        self.settings = settings
        sign = -1 if settings.regulariser == "tpple" else 1
        self.terms = {"loss": 1.0, settings.regulariser: sign * settings.gamma}

    def size(self, train):
        return len(train)

    def loss(self, model, train, ids, seed, epoch):
        settings, rows, device = self.settings, train[ids], model.bias.device
        hidden = pick_positions(settings.mask_rate, ids, rows.mask, seed, epoch)
        h, _, state = settings._encode(model, rows, hidden, device)
        row = hidden.nonzero()[:, 0]
        logits = model.scores(h[hidden.to(device)])
        each = F.cross_entropy(logits, rows.item[hidden].to(device), reduction="none")
        parts = {"loss": ((each / hidden.sum(1)[row].to(device)).sum(), (hidden.any(1)).sum())}
        if settings.gamma and settings.regulariser == "tpple":
            parts["tpple"] = link_tpple(model.encoder, state, rows, device) * len(ids), len(ids)
        elif settings.gamma:
            parts["smoothness"] = smoothness(h, rows.mask.to(device)) * len(ids), len(ids)
        return parts

    def evaluate(self, model, valid):
        return self.settings.score(valid)


def link_tpple(encoder, state, rows, device="cpu"):
    r"""TPPLE of histories: what position j's state says of the interval up to event j + 1, both its ends.

    Parameters
    ----------
    encoder : LinkEncoder
    state : tensor, shape (B, heads, T, head width)
    rows : Histories

    Returns
    -------
    tensor, scalar
        A likelihood if the states came from a causal encoder that hid nothing, a regulariser otherwise.
    """
    item, gap = rows.item[:, 1:].to(device), rows.gap[:, 1:].to(device)
    real = (rows.mask[:, 1:] & rows.mask[:, :-1]).to(device)
    marks = encoder.item_clusters[item.clamp_min(0)]
    counts, real = merge_ties(marks, gap.to(state.dtype), real, encoder.clusters.num_embeddings)
    rate = encoder.layers[-1].intensity
    with torch.autocast(state.device.type, enabled=False):
        left, right = (rate(state[:, :, :-1], dt).mean(1) for dt in (torch.zeros_like(gap), gap))  # mean over heads
    return tpple(left, right, counts, gap, real)


def windows(log, max_len, time_unit=1.0):
    """Cut each user's history into pieces of ``max_len`` events, the most recent whole: :class:`Histories`.

    An event at a cut keeps its true gap. Users with one event are left out.
    """
    starts, ends = log.offsets[log.users], log.offsets[log.users + 1]
    many = np.where(ends - starts > 1, -(-(ends - starts) // max_len), 0)
    user = np.repeat(np.arange(len(many)), many)
    nth = np.arange(len(user)) - np.repeat(np.cumsum(many) - many, many)  # 0: the most recent
    position = (ends[user] - nth * max_len)[:, None] - np.arange(max_len, 0, -1)
    mask = position >= starts[user, None]
    position = np.where(mask, position, 0)
    time = log.time.astype(np.float64) / time_scale(time_unit)
    gap = np.diff(time, prepend=0.0)
    gap[starts] = 0.0
    item = np.where(mask, log.item[position], -1).astype(np.int64)
    time, gap = (np.where(mask, x[position], 0.0) for x in (time, gap))
    return Histories(*(torch.from_numpy(x) for x in (log.users[user].astype(np.int64), item, time, gap, mask)))


def item_clusters(log, num_clusters, seed=0):
    r"""Cluster items by the users they share.

    Kernel k-means with :math:`\mathbf D_I^{-1/2} \mathbf R \mathbf D_U^{-1} \mathbf R^\top \mathbf D_I^{-1/2}`, where
    :math:`R_{iu} = 1` if user u has item i, cut down to its 2K leading eigenvectors (what is left is mostly noise) and
    made a cosine; items weigh as much as they have users. Any number of items: the matrix stays sparse.
    """
    seen = coo_array((np.ones(len(log)), (log.item, log.user)), shape=(log.num_items, log.num_users)).tocsr()
    seen.data[:] = 1.0
    users, items = seen.sum(1), seen.sum(0)  # of each item, of each user
    scaled = diags_array(np.maximum(users, 1) ** -0.5) @ seen @ diags_array(np.maximum(items, 1) ** -0.5)
    if min(scaled.shape) <= 4 * num_clusters:
        vectors, values, _ = np.linalg.svd(scaled.toarray(), full_matrices=False)
    else:
        start = np.random.default_rng(seed).random(min(scaled.shape))
        vectors, values, _ = svds(scaled, k=2 * num_clusters, v0=start)
    features = vectors * values
    norm = np.sqrt((features * features).sum(1, keepdims=True))
    features = features / np.where(norm > 1e-12, norm, 1.0)
    return KernelKMeans(num_clusters, kernel="linear", seed=seed).fit(features, sample_weight=users).labels_


def _append(rows, column):
    return torch.cat([rows, column.to(rows.dtype)], 1)
