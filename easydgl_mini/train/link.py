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
from .cam import check_rate, pick_positions, uniform
from .estimator import Estimator, Modulated
from .metrics import hit_rate, ndcg, rank_of
from .naming import naming_loss
from .tpple import merge_ties, smoothness, tpple

TOP = (10, 50, 100)
SAMPLINGS = ("all", "random", "last")
CHUNK = 1 << 20  # scores made at once when asking, about


@dataclasses.dataclass(kw_only=True, eq=False)
class Recommender(Estimator):
    r"""What all link predictors share: histories in, a ranking of all items at a given time out.

    A subclass gives ``_model(num_items)``, a module with ``model(rows, hidden) -> h`` (B, T, dim), where ``rows`` are
    :class:`Histories` on its device and h[:, j] is the embedding that *names* item j; ``naming(h)`` and ``scores(h)``
    of all items (:class:`ItemModel` has them); and ``objective``:

    - "masked": a share ``mask_rate`` of the positions is hidden, and not told its item; the loss is on them.
    - "causal": h[:, j] uses items before j and times up to its own; ``hidden`` is ignored, and the loss is on every
      event that has one before it in its window.

    Both are asked in the same way, by one more position: item -1, the time in question, hidden. Users are inductive: a
    user is their history, known to the model or not.

    Parameters
    ----------
    dim, num_layers, num_heads, max_len : int
        Width 64, two layers, two heads, the last 30 events: the paper's for EasyDGL.
    time_unit : float or str
        Times are divided by this (see :meth:`EventLog.histories`); the paper's is hours, days or weeks by dataset.
    sampling : {"all", "random", "last"}
        What an epoch is: every history, cut into windows of ``max_len`` events; or one window of each user, drawn anew
        every epoch; or each user's last events, always the same (the released code's).
    by_length : bool
        Put histories of like length into a batch, and cut its padding to the longest: much less work where most are
        short, and the same but for which histories meet.
    **training
        Those of :class:`Training` and :class:`Estimator`.
    """

    dim: int = 64
    num_layers: int = 2
    num_heads: int = 2
    max_len: int = 30
    time_unit: float | str = 1.0
    sampling: str = "all"
    by_length: bool = False

    objective = "masked"

    def __post_init__(self):
        super().__post_init__()
        time_scale(self.time_unit)
        for name in ("dim", "num_layers", "num_heads", "max_len"):
            if int(getattr(self, name)) != getattr(self, name) or getattr(self, name) < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {getattr(self, name)!r}")
        if self.sampling not in SAMPLINGS:
            raise ValueError(f"sampling must be one of {', '.join(SAMPLINGS)}, got {self.sampling!r}")
        if hasattr(self, "mask_rate"):
            check_rate("mask_rate", self.mask_rate)

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
        if not (np.diff(train.offsets) > 1).any():
            raise ValueError("data has no user with two events, so there is nothing to learn")
        self._start(train)
        self._remember(data)
        windows = Windows(train, self.max_len, self.time_unit, self.sampling)
        seen = [part for log in (train, valid) if log is not None for part in (log.user, log.item, log.time)]
        return self._train(self._task(), (windows, valid), run, seen)

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
        self._ready()
        log, one = self._log(history)
        scores = torch.cat([part for _, part in self._chunks(log, at)])
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
        self._ready()
        history, _ = self._log(history)
        if not np.array_equal(history.users, last.user):
            raise ValueError("last must have one event of each user in history, and of no other")
        target = torch.from_numpy(last.item.astype(np.int64))
        ranks = []
        for users, scores in self._chunks(history, last.time):
            row, item = events_of(history, users)
            seen = torch.zeros_like(scores, dtype=torch.bool)
            seen[torch.from_numpy(row), torch.from_numpy(item)] = True
            ranks.append(rank_of(scores, target[users], exclude=seen))
        return torch.cat(ranks)

    # --- what a baseline may replace

    def _start(self, train):
        """Make the model; names start at the log of the items' shares, so that nothing has to learn popularity."""
        model = self._build(num_items=train.num_items)
        model.bias.data.copy_(log_popularity(train))

    def _task(self):
        return RankingTask(self)

    def _answer(self, log, users, at):
        """Scores (b, items) for the users ``users``, a slice of ``log.users``, at the times ``at`` (b,)."""
        model, device = self._ready()
        ends = Windows(log, self.max_len, self.time_unit, "last", alone=True)
        rows = ends.take(torch.arange(users.start, users.stop))
        rows = ask(rows, torch.from_numpy(at / time_scale(self.time_unit)))
        hidden = torch.zeros_like(rows.mask)
        hidden[:, -1] = True
        return model.scores(model(moved(rows, device), hidden.to(device))[:, -1])

    # --- the rest

    def _remember(self, data, events=None):
        """Keep the users' last events, for who is asked about by id; one more than are seen, for the oldest's gap."""
        last = data.select(data.offsets[data.user + 1] - np.arange(len(data)) <= (events or self.max_len + 1))
        self.extra_ = {name: torch.from_numpy(getattr(last, name).copy()) for name in ("user", "item", "time")}

    def _chunks(self, log, at):
        """Pairs of a slice of ``log.users`` and their scores (b, items) on the CPU; times are checked."""
        at = np.broadcast_to(np.asarray(at, dtype=np.float64), (len(log.users),))
        last = log.time[log.offsets[log.users + 1] - 1]
        bad = ~(at >= last) | ~np.isfinite(at)
        if bad.any():
            n = int(bad.argmax())
            raise ValueError(f"at[{n}] is {at[n]}, but user {log.users[n]}'s last event is at {last[n]}; ask later")
        size = min(max(CHUNK // self.sizes_["num_items"], 1), 512)
        for first in range(0, len(at), size):
            users = slice(first, min(first + size, len(at)))
            with torch.no_grad():
                yield users, self._answer(log, users, at[users]).float().cpu()

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


class ItemModel(nn.Module):
    r"""Item embeddings that serve twice: at the input, and for the scores :math:`\mathbf h \mathbf E^\top + \mathbf b`.

    Base of the baselines' models; ``bias`` is what :class:`Recommender` sets to the items' popularity.
    """

    def __init__(self, num_items, dim, dropout=0.0):
        super().__init__()
        self.items = nn.Embedding(num_items, dim)
        self.bias = nn.Parameter(torch.zeros(num_items))
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.items.weight, std=0.02)

    def embed(self, item):
        """Embeddings (…, dim) of items (…), √dim times as long as in the scores; zeros where there is none (-1).

        Longer, so that what else goes in does not drown them; with it they learn from the first steps on.
        """
        return self.items(item.clamp_min(0)) * ((item >= 0).unsqueeze(-1) * self.items.embedding_dim**0.5)

    def naming(self, h):
        """What names items at embeddings (…, dim): vectors (…, dim), a table (items, dim) and its bias (items,)."""
        return h, self.items.weight, self.bias

    def scores(self, h):
        """Scores of all items, (…, items): inner products with the table, plus the bias."""
        return F.linear(*self.naming(h))


def before(x, fill):
    """Each position's predecessor in its row (B, T, …), ``fill`` at the first: what a causal model may know."""
    return torch.cat([torch.full_like(x[:, :1], fill), x[:, :-1]], 1)


@dataclasses.dataclass(kw_only=True, eq=False)
class LinkPredictor(Modulated, Recommender):
    r"""Rank all items for a user at any time after their last event.

    Trained by hiding items of histories (q(1), not a key) and naming them by a softmax over all items,
    :math:`\hat{\mathbf y} = \operatorname{softmax}(\mathbf h \mathbf E^\top + \mathbf b)`; asked by appending q(1) at
    the time in question. Users are inductive: a user is their history, known to the model or not.

    Parameters
    ----------
    dim, num_layers, num_heads, max_len, time_unit, sampling, by_length
        See :class:`Recommender`.
    calendar : str, optional
        Unit of the log's times ("seconds", "hours", …) since a date, by default 1970: then weekday and hour enter the
        attention (α). None, for a clock without a calendar, switches that off.
    origin : str
        That date.
    causal : bool
        Positions see the past only; then TPPLE is a likelihood.
    masking : {"cam", "token"}
        "token" is typical masking, to compare with: hidden positions stay keys, with q(1) for content and the mean
        of all clusters' rates for theirs.
    regulariser : {"tpple", "smoothness"}
        What ``gamma`` weighs.
    item_clusters : sequence of int, optional
        Each item's cluster; by default kernel k-means of the training users' co-occurrences.
    item_scale : float
        How loud items are beside the encoding of time: see :class:`LinkEncoder`. Where the items of a history say more
        than its clock, √dim trains much faster.
    clock : {"absolute", "relative"}
        From where the encoded times are counted: see :class:`LinkEncoder`. "relative" makes answers independent of the
        log's zero of time, and trains much faster where histories lie years apart.
    positions : bool
        Count places too, from the end of the history, as the released code does: see :class:`LinkEncoder`. The paper
        has the time alone, to which simultaneous events are all alike.
    **training
        Those of :class:`Training`, :class:`Estimator` and :class:`Modulated`.

    Notes
    -----
    There is no ``detach`` here, as there is for nodes and roads: q(1) is the same for every hidden item, so attention
    weights can't carry a label.

    Examples
    --------
    >>> import easydgl_mini as em
    >>> log = em.EventLog(user=[0, 0, 0, 1, 1, 1], item=[0, 1, 2, 0, 1, 2], time=[0.0, 1.0, 2.0, 0.0, 2.0, 5.0])
    >>> model = LinkPredictor(dim=8, num_clusters=2, epochs=1).fit(log, valid=log)
    >>> model.predict(([0, 1], [0.0, 1.0]), at=2.0).shape
    torch.Size([3])
    """

    calendar: str | None = None
    origin: str = "1970-01-01"
    causal: bool = False
    masking: str = "cam"
    regulariser: str = "tpple"
    item_clusters: list | None = None
    item_scale: float = 1.0
    clock: str = "absolute"
    positions: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.item_clusters is not None:
            self.item_clusters = [int(k) for k in self.item_clusters]
        if not (np.isfinite(self.item_scale) and self.item_scale > 0):
            raise ValueError(f"item_scale must be a positive number, got {self.item_scale!r}")
        choices = {
            "regulariser": ("tpple", "smoothness"),
            "masking": ("cam", "token"),
            "clock": ("absolute", "relative"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}, got {getattr(self, name)!r}")

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
            _, _, state = model.encode(moved(rows, device), torch.zeros_like(rows.mask, device=device))
            state = state[0][:, rows.mask[0].to(device)][:, before]  # (H, m, d)
            rates = model.encoder.layers[-1].intensity(state.unsqueeze(0), (at - times[before]).to(device).unsqueeze(0))
        return rates.mean(1)[0].cpu()  # over heads

    def _start(self, train):
        clusters = self.item_clusters
        if clusters is None:
            clusters = item_clusters(train, self.num_clusters, self.seed)
        clusters = torch.as_tensor(clusters)
        if clusters.shape != (train.num_items,):
            raise ValueError(f"item_clusters must have shape ({train.num_items},), got {tuple(clusters.shape)}")
        model = self._build(num_items=train.num_items, num_clusters=max(self.num_clusters, int(clusters.max()) + 1))
        model.encoder.item_clusters.copy_(clusters)
        model.bias.data.copy_(log_popularity(train))

    def _model(self, num_items, num_clusters):
        return _LinkModel(self, num_items, num_clusters)

    def _task(self):
        return _LinkTask(self)


class _LinkModel(nn.Module):
    def __init__(self, settings, num_items, num_clusters):
        super().__init__()
        self.settings = settings
        self.encoder = LinkEncoder(
            torch.zeros(num_items, dtype=torch.int64),
            settings.dim,
            settings.num_layers,
            settings.num_heads,
            num_clusters,
            settings.dropout,
            settings.item_scale,
            settings.clock,
            settings.max_len * settings.positions,
            **settings._layer(),
        )
        self.bias = nn.Parameter(torch.zeros(num_items))

    def encode(self, rows, hidden):
        """What :class:`LinkEncoder` gives: embeddings, rates and states."""
        settings, features = self.settings, None
        if settings.calendar is not None:
            raw = rows.time * time_scale(settings.time_unit)
            features = calendar_features(raw, settings.calendar, settings.origin)
        keep = settings.masking == "token"
        return self.encoder(rows.item, rows.time, rows.gap, rows.mask, hidden, features, settings.causal, None, keep)

    def forward(self, rows, hidden):
        return self.encode(rows, hidden)[0]

    def naming(self, h):
        """As in :class:`ItemModel`; an item's embedding is its own plus its cluster's, as at the input."""
        encoder = self.encoder
        return h, encoder.items.weight + encoder.clusters(encoder.item_clusters), self.bias

    scores = ItemModel.scores


class RankingTask:
    """Cross-entropy of naming items: of the hidden ones, or of all that have one before them."""

    metric, larger = "ndcg@10", True

    def __init__(self, settings):
        self.settings = settings
        self.terms = {"loss": 1.0}

    def size(self, train):
        return len(train)

    def lengths(self, train):
        """Events of each sample, where batches are to be made by them."""
        return train.lengths if self.settings.by_length else None

    def rows(self, model, train, ids, seed, epoch):
        """Histories of the samples ``ids`` and which positions are to be named, both on the model's device."""
        rows = train.take(ids, seed, epoch)
        if self.settings.objective == "causal":
            asked = rows.mask & before(rows.mask, False)
        else:
            asked = pick_positions(self.settings.mask_rate, train.key(ids), rows.mask, seed, epoch)
        if self.settings.by_length:
            width = int(rows.mask.sum(1).max())
            rows, asked = newest(rows, width), asked[:, -width:]
        device = model.bias.device
        return moved(rows, device), asked.to(device)

    def loss(self, model, train, ids, seed, epoch):
        rows, asked = self.rows(model, train, ids, seed, epoch)
        h = model(rows, asked)[asked]
        return {"loss": (naming_loss(*model.naming(h), rows.item[asked], h.new_ones(len(h))), len(h))}

    def evaluate(self, model, valid):
        return self.settings.score(valid)


class _LinkTask(RankingTask):
    """Cross-entropy on hidden positions, averaged over each sequence's, then over sequences; less γ TPPLE."""

    def __init__(self, settings):
        super().__init__(settings)
        sign = -1 if settings.regulariser == "tpple" else 1
        self.terms = {"loss": 1.0, settings.regulariser: sign * settings.gamma}

    def loss(self, model, train, ids, seed, epoch):
        settings = self.settings
        rows, hidden = self.rows(model, train, ids, seed, epoch)
        h, _, state = model.encode(rows, hidden)
        share = 1 / hidden.sum(1)[hidden.nonzero()[:, 0]]  # of a position in its sequence's mean
        loss = naming_loss(*model.naming(h[hidden]), rows.item[hidden], share)
        parts = {"loss": (loss, hidden.any(1).sum())}
        if settings.gamma and settings.regulariser == "tpple":
            parts["tpple"] = link_tpple(model.encoder, state, rows) * len(ids), len(ids)
        elif settings.gamma:
            parts["smoothness"] = smoothness(h, rows.mask) * len(ids), len(ids)
        return parts


def link_tpple(encoder, state, rows):
    r"""TPPLE of histories: what position j's state says of the interval up to event j + 1, both its ends.

    Parameters
    ----------
    encoder : LinkEncoder
    state : tensor, shape (B, heads, T, head width)
    rows : Histories
        On the state's device.

    Returns
    -------
    tensor, scalar
        A likelihood if the states came from a causal encoder that hid nothing, a regulariser otherwise.
    """
    item, gap = rows.item[:, 1:], rows.gap[:, 1:]
    real = rows.mask[:, 1:] & rows.mask[:, :-1]
    marks = encoder.item_clusters[item.clamp_min(0)]
    counts, real = merge_ties(marks, gap.to(state.dtype), real, encoder.clusters.num_embeddings)
    rate = encoder.layers[-1].intensity
    with torch.autocast(state.device.type, enabled=False):
        left, right = rate(state[:, :, :-1], torch.stack([torch.zeros_like(gap), gap])).mean(2)  # over heads
    return tpple(left, right, counts, gap, real)


class Windows:
    """Pieces of histories of at most ``max_len`` consecutive events, padded only when they are asked for.

    Parameters
    ----------
    log : EventLog
    max_len : int
    time_unit : float or str
    sampling : {"all", "random", "last"}
        "all": each history is cut, the most recent piece whole. "random": each user is one sample, whose piece is drawn
        from (seed, epoch, user) alone, each piece being as likely as another. "last": each user's last events.
    alone : bool
        Whether users with a single event are samples too: there is something to ask about them, nothing to learn.

    Notes
    -----
    It holds the log and three numbers per sample, however long the padding.
    """

    def __init__(self, log, max_len, time_unit=1.0, sampling="all", alone=False):
        starts, ends = log.offsets[log.users], log.offsets[log.users + 1]
        many = np.where(ends - starts > (0 if alone else 1), 1, 0)
        if sampling == "all":
            many *= -(-(ends - starts) // max_len)
        index = np.repeat(np.arange(len(many)), many)
        nth = np.arange(len(index)) - np.repeat(np.cumsum(many) - many, many)  # 0: the most recent
        self.log, self.max_len, self.unit, self.sampling = log, max_len, time_scale(time_unit), sampling
        self.user, self.start, self.end = log.users[index], starts[index], ends[index] - nth * max_len

    def __len__(self):
        return len(self.user)

    @property
    def lengths(self):
        """Events of each sample: tensor (samples,)."""
        return torch.from_numpy(np.minimum(self.end - self.start, self.max_len))

    def key(self, ids):
        """What random numbers of samples depend on: the user where a user is a sample, else the sample's number."""
        ids = torch.as_tensor(ids)
        return torch.from_numpy(self.user[ids.numpy()].astype(np.int64)) if self.sampling != "all" else ids

    def take(self, ids, seed=0, epoch=0):
        """The samples ``ids`` as :class:`Histories`. An event at a cut keeps its true gap."""
        index = torch.as_tensor(ids).numpy()
        start, end, log = self.start[index], self.end[index], self.log
        if self.sampling == "random":
            choices = np.maximum(end - start - self.max_len, 0) + 1
            end = end - (uniform(self.key(ids), seed, epoch).numpy() * choices).astype(np.int64)
        position = end[:, None] - np.arange(self.max_len, 0, -1)
        mask = position >= start[:, None]
        position = np.where(mask, position, start[:, None])
        first = position == start[:, None]
        time = log.time[position].astype(np.float64) / self.unit
        gap = time - log.time[position - ~first].astype(np.float64) / self.unit
        item = np.where(mask, log.item[position], -1).astype(np.int64)
        time, user = np.where(mask, time, 0.0), self.user[index].astype(np.int64)
        return Histories(*(torch.from_numpy(x) for x in (user, item, time, gap, mask)))


def windows(log, max_len, time_unit=1.0):
    """Cut each user's history into pieces of ``max_len`` events, the most recent whole: :class:`Histories`.

    An event at a cut keeps its true gap. Users with one event are left out.
    """
    pieces = Windows(log, max_len, time_unit)
    return pieces.take(torch.arange(len(pieces)))


def newest(rows, width):
    """The last ``width`` positions of histories."""
    return Histories(rows.user, *(getattr(rows, name)[:, -width:] for name in ("item", "time", "gap", "mask")))


def ask(rows, at):
    """Histories with one more position: no item, at times ``at`` (B,) in the rows' unit."""
    at = at.unsqueeze(1)
    more = {"item": torch.full_like(at, -1), "time": at, "gap": at - rows.time[:, -1:], "mask": torch.ones_like(at)}
    return Histories(rows.user, *(torch.cat([getattr(rows, k), x.to(getattr(rows, k))], 1) for k, x in more.items()))


def moved(rows, device):
    """Histories on a device."""
    return Histories(*(getattr(rows, field.name).to(device) for field in dataclasses.fields(rows)))


def log_popularity(log):
    """Logarithm of each item's share of the events, with one more for each: (items,)."""
    counts = np.bincount(log.item, minlength=log.num_items) + 1
    return torch.from_numpy(np.log(counts / counts.sum()))


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


def events_of(log, users):
    """Rows (from 0) and items of all events of the users ``users``, a slice of ``log.users``."""
    ids = log.users[users]
    mine = slice(log.offsets[ids[0]], log.offsets[ids[-1] + 1])
    return np.searchsorted(ids, log.user[mine]), log.item[mine].astype(np.int64)
