r"""Simulated data with known truth: the marked Hawkes process and three small worlds.

Everything here is *simulated*. Each world keeps what was planted in ``.truth``, so that a chapter or a test can compare
what a model found with what is there. Chapters: *Temporal point processes* (Hawkes), *Dynamic graphs* (the worlds).
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

from .events import EventLog
from .graph import TemporalGraph

# --- The marked Hawkes process ----------------------------------------------------------------------------------------


def hawkes(mu, alpha, beta, horizon, seed):
    r"""Draw one realisation of a marked Hawkes process on ``[0, horizon)`` by Ogata's thinning.

    .. math:: \lambda_i(t) = \mu_i + \sum_{(s, j):\, s < t} \alpha_{ij}\, \beta\, e^{-\beta (t - s)}

    Between events the total rate only falls, so its value now bounds it until the next event: propose the next point at
    that rate, keep it with probability (rate there) / (bound). A kept point gets mark ``i`` with probability
    proportional to :math:`\lambda_i`. Chapter *Temporal point processes*.

    Parameters
    ----------
    mu : float or array (K,)
        Base rates, at least zero.
    alpha : float or array (K, K)
        ``alpha[i, j]`` is the mean number of type-``i`` children of a type-``j`` event; at least zero, spectral radius
        below one.
    beta : float
        Decay rate of the memory, above zero, common to all types.
    horizon : float
        Length of the observation, above zero.
    seed : int or numpy.random.Generator
        The same seed gives the same events on any number of threads.

    Returns
    -------
    times : array (n,), float64
        Increasing.
    marks : array (n,), int64
        In ``0 … K-1``.

    Examples
    --------
    >>> times, marks = hawkes(mu=[0.5, 0.2], alpha=[[0.3, 0.4], [0.0, 0.2]], beta=2.0, horizon=1000.0, seed=0)
    >>> bool((np.diff(times) > 0).all()), sorted(set(marks.tolist()))
    (True, [0, 1])
    """
    mu, alpha, beta = _hawkes_parameters(mu, alpha, beta)
    horizon = _positive("horizon", horizon)
    radius = np.abs(np.linalg.eigvals(alpha)).max()
    if radius >= 1:
        raise ValueError(f"alpha: spectral radius is {radius:.6g}, expected below 1 (the process would explode)")
    rng = np.random.default_rng(seed)
    base, jumps = mu.tolist(), (beta * alpha).T.tolist()  # jumps[j][i]: what a type-j event adds to the rate of type i
    total, last, exp = sum(base), len(base) - 1, math.exp
    excess = [0.0] * len(base)  # of each type, at the latest event
    surplus, now, event = 0.0, 0.0, 0.0  # surplus: sum of the excesses at `now`
    times, marks = [], []
    while total > 0 and now < horizon:
        for wait, uniform in zip(rng.standard_exponential(1 << 14).tolist(), rng.random(1 << 14).tolist(), strict=True):
            bound = total + surplus
            wait /= bound
            now += wait
            if now >= horizon:
                break
            surplus *= exp(-beta * wait)
            left = uniform * bound  # given that it is kept, uniform on [0, rate now)
            if left >= total + surplus:
                continue
            decay = exp(-beta * (now - event))
            excess = [x * decay for x in excess]
            mark = 0
            left -= base[0] + excess[0]
            while left >= 0 and mark < last:
                mark += 1
                left -= base[mark] + excess[mark]
            excess = [x + jump for x, jump in zip(excess, jumps[mark], strict=True)]
            surplus, event = sum(excess), now
            times.append(now)
            marks.append(mark)
    return np.array(times, dtype=np.float64), np.array(marks, dtype=np.int64)


def _memory(times, marks, num_marks, beta, at):
    """Per query time and mark: the decayed and the plain number of events strictly before it, two (len(at), K) arrays.

    ``x_n = sum_{m <= n} exp(-beta (t_n - t_m))`` by doubling: after k rounds x_n holds its latest 2^k terms, and the
    window before them is the same sum at an earlier event. Nothing overflows and nothing cancels.
    """
    decayed = np.eye(num_marks)[marks]
    counts = np.vstack([np.zeros(num_marks), np.cumsum(decayed, axis=0)])
    shift = 1
    while shift < len(times):
        decay = np.exp(-beta * (times[shift:] - times[:-shift]))
        if not decay.any():
            break
        decayed[shift:] += decay[:, None] * decayed[:-shift]
        shift *= 2
    before = np.searchsorted(times, at, side="left")
    gaps = at - np.concatenate([[-np.inf], times])[before]
    return np.exp(-beta * gaps)[:, None] * np.vstack([np.zeros(num_marks), decayed])[before], counts[before]


def hawkes_intensity(times, marks, mu, alpha, beta, at):
    r"""Intensity :math:`\lambda_i(t)` of each type at the times ``at``, given the events before each: (len(at), K).

    At an event's own time this is the left limit, the value the likelihood needs. Parameters as in :func:`hawkes`.

    Examples
    --------
    >>> hawkes_intensity([1.0], [0], mu=0.5, alpha=0.5, beta=2.0, at=[1.0, 1.5]).round(4).tolist()
    [[0.5], [0.8679]]
    """
    mu, alpha, beta = _hawkes_parameters(mu, alpha, beta)
    times, marks = _hawkes_events(times, marks, len(mu))
    decayed, _ = _memory(times, marks, len(mu), beta, np.atleast_1d(np.asarray(at, dtype=np.float64)))
    return mu + beta * decayed @ alpha.T


def hawkes_compensator(times, marks, mu, alpha, beta, at):
    r"""Expected number of events :math:`\Lambda_i(t) = \int_0^t \lambda_i(s)\,ds` of each type at ``at``: (len(at), K).

    .. math:: \Lambda_i(t) = \mu_i t + \sum_{(s, j):\, s < t} \alpha_{ij} \left(1 - e^{-\beta (t - s)}\right)

    Time rescaling: the differences of ``hawkes_compensator(…, at=times[marks == i])[:, i]`` are Exp(1) draws.
    """
    mu, alpha, beta = _hawkes_parameters(mu, alpha, beta)
    times, marks = _hawkes_events(times, marks, len(mu))
    at = np.atleast_1d(np.asarray(at, dtype=np.float64))
    decayed, counts = _memory(times, marks, len(mu), beta, at)
    return at[:, None] * mu + (counts - decayed) @ alpha.T


def hawkes_log_likelihood(times, marks, mu, alpha, beta, horizon):
    r"""Log-likelihood :math:`\sum_n \log \lambda_{k_n}(t_n) - \sum_i \Lambda_i(T)` of the events seen on ``[0, T]``.

    ``horizon`` is T, at least the last event's time. Parameters as in :func:`hawkes`; the cost is O(n K log n).
    """
    lam = hawkes_intensity(times, marks, mu, alpha, beta, times)
    horizon = _positive("horizon", horizon)
    if len(lam) and horizon < times[-1]:
        raise ValueError(f"horizon: got {horizon}, expected at least the last event's time {times[-1]}")
    total = hawkes_compensator(times, marks, mu, alpha, beta, horizon).sum()
    return float(np.log(lam[np.arange(len(lam)), np.asarray(marks, dtype=np.int64)]).sum() - total)


def _positive(name, value):
    """The argument as a float, if it is one finite number above zero."""
    number = np.asarray(value, dtype=np.float64)
    if number.ndim or not np.isfinite(number) or number <= 0:
        raise ValueError(f"{name}: got {value!r}, expected one finite number above 0")
    return float(number)


def _not_negative(name, array):
    """The array, if all its entries are finite and at least zero; the error names the first that is not."""
    bad = np.argwhere(~(np.isfinite(array) & (array >= 0)))
    if len(bad):
        first = tuple(bad[0].tolist())
        where = ", ".join(map(str, first))
        raise ValueError(f"{name}[{where}]: got {array[first]}, expected a finite number, at least 0")
    return array


def _hawkes_parameters(mu, alpha, beta):
    """Base rates (K,), children (K, K) and decay, checked; scalars stand for K = 1."""
    mu = np.atleast_1d(np.asarray(mu, dtype=np.float64))
    alpha = np.asarray(alpha, dtype=np.float64)
    alpha = alpha.reshape(1, 1) if alpha.ndim == 0 else alpha
    if mu.ndim != 1 or len(mu) == 0:
        raise ValueError(f"mu: got shape {mu.shape}, expected (K,) with K at least 1")
    if alpha.shape != (len(mu), len(mu)):
        raise ValueError(f"alpha: got shape {alpha.shape}, expected {(len(mu), len(mu))} to match mu")
    return _not_negative("mu", mu), _not_negative("alpha", alpha), _positive("beta", beta)


def _hawkes_events(times, marks, num_marks):
    """Times (n,) in order and marks (n,) in 0 … K-1, checked."""
    times, marks = np.asarray(times, dtype=np.float64), np.asarray(marks, dtype=np.int64)
    if times.ndim != 1 or marks.shape != times.shape:
        raise ValueError(f"marks: got shape {marks.shape}, expected that of times, {times.shape}, one-dimensional")
    _not_negative("times", times)
    if (np.diff(times) < 0).any():
        first = int(np.argmax(np.diff(times) < 0)) + 1
        raise ValueError(f"times[{first}]: got {times[first]} after {times[first - 1]}, expected times in order")
    if ((marks < 0) | (marks >= num_marks)).any():
        first = int(np.argmax((marks < 0) | (marks >= num_marks)))
        raise ValueError(f"marks[{first}]: got {marks[first]}, expected an id in 0 … {num_marks - 1}")
    return times, marks


# --- The three worlds -------------------------------------------------------------------------------------------------

_SIZES = {  # full: the sizes of Netflix, Elliptic and METR-LA, the data of the paper
    "bazaar": {
        "tiny": {"users": 240, "items": 400, "groups": 4, "weeks": 8, "spontaneous": 17.0},
        "small": {"users": 2_000, "items": 1_600, "groups": 8, "weeks": 12, "spontaneous": 21.0},
        "full": {"users": 480_189, "items": 17_770, "groups": 16, "weeks": 320, "spontaneous": 75.25},
    },
    "ledger": {
        "tiny": {"nodes": 6_000, "edges": 6_900, "features": 16},
        "small": {"nodes": 20_000, "edges": 23_000, "features": 32},
        "full": {"nodes": 203_769, "edges": 234_355, "features": 166},
    },
    "freeway": {
        "tiny": {"sensors": 24, "highways": 3, "steps": 14 * 288},
        "small": {"sensors": 60, "highways": 5, "steps": 28 * 288},
        "full": {"sensors": 207, "highways": 9, "steps": 34_272},
    },
}


def _size(world, scale):
    """The numbers of one world at one scale."""
    if scale not in _SIZES[world]:
        raise ValueError(f"scale: got {scale!r}, expected one of {', '.join(map(repr, _SIZES[world]))}")
    return _SIZES[world][scale]


@dataclass(frozen=True, repr=False)
class BazaarTruth:
    """What was planted in a :class:`Bazaar`. Times are hours since a Monday, 00:00; rates are per hour."""

    mu: np.ndarray  # (users, K) base rates
    excitation: np.ndarray  # (K, K) signed; [i, j] is what an event of group j adds to the rate of group i
    decay: float  # per hour
    weekday: np.ndarray  # (K, 7) factors, Monday first; each row has mean one
    popularity: np.ndarray  # (items,) share inside the item's group
    horizon: float  # hours
    events: EventLog
    group: np.ndarray  # (items,)

    def intensity(self, user, at):
        r"""True rates :math:`\lambda_{uk}(t)` of all groups for one user at ``at`` (left limits): (len(at), K)."""
        if not 0 <= user < len(self.mu):
            raise ValueError(f"user: got {user}, expected an id in 0 … {len(self.mu) - 1}")
        at = np.atleast_1d(np.asarray(at, dtype=np.float64))
        mine = slice(self.events.offsets[user], self.events.offsets[user + 1])
        marks = self.group[self.events.item[mine]]
        decayed, _ = _memory(self.events.time[mine], marks, self.mu.shape[1], self.decay, at)
        return self.weekday.T[_weekday(at)] * np.maximum(self.mu[user] + decayed @ self.excitation.T, 0)


@dataclass(frozen=True, repr=False)
class Bazaar:
    """A simulated market: ``events`` (time in hours since a Monday, 00:00), ``group`` of each item, ``truth``."""

    events: EventLog
    group: np.ndarray
    truth: BazaarTruth


def bazaar(scale="small", seed=0):
    r"""Simulate users who pick items from groups that excite and inhibit one another.

    Time is in hours since a Monday, 00:00. User ``u`` picks from group ``k`` at rate

    .. math::
        \lambda_{uk}(t) = w_{k,\mathrm{weekday}(t)}
        \max\Big(0,\; \mu_{uk} + \sum_j A_{kj} \sum_{s < t,\, k_s = j} e^{-\delta (t-s)}\Big)

    What is planted:

    - *Excitation and inhibition.* An event of group ``j`` raises the rate of ``j`` itself and, more, of ``j + 1``; it
      lowers the rate of ``j - 1`` (all modulo K), often to exactly zero. All other entries of ``A`` are zero.
    - *A short memory.* :math:`\delta` = 1/4 per hour: what happened is mostly forgotten within half a day, so events
      come in sessions, and *when* the last event was says as much as what it was.
    - *Tastes.* :math:`\mu_u` is a Gamma(2) activity times a Dirichlet(0.7, …, 0.7) share of the groups.
    - *Weekdays.* The factor of group ``k`` is a cosine over the week, 0.46 at its quietest, 1.6 on its busiest day;
      the busiest day varies with the group.
    - *Popularity.* Inside its group the item of rank r is drawn with probability proportional to 1/r. A user who
      draws an item they already have draws again, up to twenty times: repeats are rare.

    Simulated by thinning, all users at once; no user depends on another. Users come in blocks of 16,384 and each block
    has its own stream of random numbers. Chapter *Dynamic graphs*.

    Parameters
    ----------
    scale : {"tiny", "small", "full"}
        240 users × 400 items, 4 groups, 8 weeks; 2,000 × 1,600, 8 groups, 12 weeks; 480,189 × 17,770, 16 groups, 320
        weeks, about 100 million events (the size of Netflix).
    seed : int

    Examples
    --------
    >>> world = bazaar("tiny")
    >>> world.truth.intensity(user=0, at=[12.0, 36.0]).shape
    (2, 4)
    """
    size = _size("bazaar", scale)
    users, items, groups, block = size["users"], size["items"], size["groups"], 1 << 14
    root, *seeds = np.random.SeedSequence(seed).spawn(1 + -(-users // block))
    rng, horizon, decay = np.random.default_rng(root), 168.0 * size["weeks"], 0.25

    here = np.arange(groups)
    excitation = np.zeros((groups, groups))
    for step, strength in ((0, 0.25), (1, 0.45), (-1, -0.5)):
        excitation[(here + step) % groups, here] = decay * strength * rng.uniform(0.9, 1.1, groups)
    busiest = rng.permutation(groups) * 7 // groups
    weekday = 1 + 0.6 * np.cos(2 * np.pi * (np.arange(7) - busiest[:, None]) / 7)
    activity = rng.gamma(2.0, 0.5, users) * size["spontaneous"] / horizon
    mu = activity[:, None] * rng.dirichlet(np.full(groups, 0.7), users)

    group = rng.permutation(np.arange(items) % groups)
    order = rng.permutation(items)
    order = order[np.argsort(group[order], kind="stable")]  # items by group, in a random order of popularity
    last = np.cumsum(np.bincount(group)) - 1  # of each group, in that order
    weight = 1 / np.concatenate([np.arange(1, n + 1) for n in np.bincount(group)])
    popularity = np.empty(items)
    popularity[order] = weight / np.bincount(group[order], weights=weight)[group[order]]
    shelf = np.cumsum(popularity[order])  # a uniform draw on [k, k + 1) finds an item of group k
    shelf[last] = here + 1.0  # exactly

    parts = []
    for first, child in zip(range(0, users, block), seeds, strict=True):
        part = _visit(mu[first : first + block], excitation, decay, weekday, horizon, order, shelf, child)
        parts.append((part[0] + np.int32(first), *part[1:]))
    user, item, time = (np.concatenate([part[n] for part in parts]) for n in range(3))
    del parts
    events = EventLog(user, item, time, num_users=users, num_items=items)
    return Bazaar(events, group, BazaarTruth(mu, excitation, decay, weekday, popularity, horizon, events, group))


def _visit(mu, excitation, decay, weekday, horizon, order, shelf, seed):
    """Events of one block of users, by thinning with one proposal per user and round: user, item, time, sorted.

    The bound of a user: no inhibition, every group at its busiest day. It only falls until the next event.
    """
    rng = np.random.default_rng(seed)
    busiest, jumps = weekday.max(axis=1), excitation.T
    jump_bound = (busiest * np.maximum(jumps, 0)).sum(axis=1)
    base_bound = (mu * busiest).sum(axis=1)
    base, excess = mu.copy(), np.zeros_like(mu)  # excess: signed, of each user and group
    surplus, now, who = np.zeros(len(mu)), np.zeros(len(mu)), np.arange(len(mu), dtype=np.int32)
    seen = np.zeros((len(mu), len(order)), dtype=bool)
    users, items, times = [], [], []
    while len(who):
        bound = base_bound + surplus
        wait = rng.standard_exponential(len(who)) / bound
        now += wait
        fade = np.exp(-decay * wait)
        surplus *= fade
        excess *= fade[:, None]
        rates = np.cumsum(weekday.T[_weekday(now)] * np.maximum(base + excess, 0), axis=1)
        draw = rng.random(len(who)) * bound
        kept = np.flatnonzero((draw < rates[:, -1]) & (now < horizon))
        if len(kept):
            mark = (rates[kept] <= draw[kept, None]).sum(axis=1)
            excess[kept] += jumps[mark]
            surplus[kept] += jump_bound[mark]
            users.append(who[kept])
            times.append(now[kept])
            items.append(_pick(mark, who[kept], seen, order, shelf, rng))
        live = now < horizon
        if live.mean() < 0.95:  # forget the users who are done
            base, excess, base_bound = base[live], excess[live], base_bound[live]
            surplus, now, who = surplus[live], now[live], who[live]
    users = np.concatenate(users)
    sort = np.argsort(users, kind="stable")  # rounds are in order of time for each user
    return users[sort], np.concatenate(items)[sort], np.concatenate(times)[sort]


def _pick(mark, who, seen, order, shelf, rng):
    """One item for each event from its group, by popularity, avoiding what the user has seen; marks it as seen."""
    item = np.empty(len(mark), dtype=np.int32)
    todo = np.arange(len(mark))
    for _ in range(20):
        item[todo] = order[np.searchsorted(shelf, mark[todo] + rng.random(len(todo)), side="right")]
        todo = todo[seen[who[todo], item[todo]]]
        if not len(todo):
            break
    seen[who, item] = True
    return item


def _weekday(hours):
    """0 for Monday … 6 for Sunday."""
    return (hours // 24).astype(np.int64) % 7


LICIT, ILLICIT, UNKNOWN = 0, 1, 2
"""Labels of a :class:`Ledger`."""


@dataclass(frozen=True, repr=False)
class LedgerTruth:
    """What was planted in a :class:`Ledger`."""

    label: np.ndarray  # (N,) 0 or 1: the true class of every transaction, those of unknown label too
    received: np.ndarray  # (N,) step + fraction: when the transaction came to life
    payer: np.ndarray  # (N,) who paid it first; -1 if nobody did
    wait: np.ndarray  # (E,) share of the rest of the step that the payer of each edge waited
    wait_rate: np.ndarray  # (2,) b of the Beta(1, b) law of `wait`, by the payer's class
    direction: np.ndarray  # (2, local features) what being illicit adds to the local features, before and from `change`
    illicit_share: np.ndarray  # (2,) share of illicit transactions, before and from `change`
    change: int  # first step of the new regime


@dataclass(frozen=True, repr=False)
class Ledger:
    """Simulated transactions: ``graph`` of payments, ``features`` (N, F), ``labels`` (N,), ``step`` (N,), ``truth``."""

    graph: TemporalGraph
    features: np.ndarray
    labels: np.ndarray
    step: np.ndarray
    truth: LedgerTruth


def ledger(scale="small", seed=0):
    r"""Simulate transactions in 49 steps, some of them illicit, in the manner of the Elliptic data.

    Nodes are transactions, an edge is a payment from one to another. Nodes are numbered by step, and each node and edge
    lives in one step, 1 … 49. Unlike Elliptic's, edges have a time inside the step: time = step + fraction.

    What is planted:

    - *Classes.* Licit 0, illicit 1. A tenth of all transactions are illicit up to step 42. A transaction has the
      class of the one that paid it first with probability 0.7, and is drawn afresh otherwise, so illicit money moves
      in chains.
    - *Labels.* Each transaction's label is unknown (2) with probability 0.771, whatever its class: about 77 %
      unknown, 21 % licit, 2 % illicit.
    - *Elapsed time.* A transaction that nobody paid appears at a uniform time of its step; any other when it is first
      paid. It pays others after waiting a Beta(1, b) share of what is left of the step, with b = 3 if it is licit and
      b = 30 if it is illicit (a quarter or a thirty-first of the rest on average): illicit money moves on fast.
      Whoever pays others was paid at most once, so the wait can be read off the graph: a payment's time minus the one
      arrival at its source.
    - *Features.* Column 0 is the step. Then come local features: standard normal noise, plus a vector of length 1.5
      if the transaction is illicit. The last 44 % are aggregated: the mean of a local feature over all payers and
      payees (zero without any) plus noise of standard deviation 0.1.
    - *A change of regime at step 43.* The share of illicit transactions falls to 2 %, and the vector that betrays
      them is replaced by one orthogonal to it. Waits keep their law.

    Chapter *Dynamic graphs*.

    Parameters
    ----------
    scale : {"tiny", "small", "full"}
        6,000 nodes, 6,900 edges, 16 features; 20,000, 23,000, 32; 203,769, 234,355, 166 (the size of Elliptic).
    seed : int

    Examples
    --------
    >>> world = ledger("tiny")
    >>> world.features.shape, int(world.step.min()), int(world.step.max())
    ((6000, 16), 1, 49)
    """
    size, rng = _size("ledger", scale), np.random.default_rng(seed)
    nodes, num_edges, width, change = size["nodes"], size["edges"], size["features"], 43
    wait_rate, illicit_share = np.array([3.0, 30.0]), np.array([0.1, 0.02])

    step = np.sort(
        np.concatenate([np.arange(1, 50), rng.choice(49, nodes - 49, p=rng.dirichlet(np.full(49, 8.0))) + 1])
    )
    sizes = np.bincount(step)[1:]
    place = np.arange(nodes) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # 0, 1, … inside the step
    born = (rng.random(nodes) < 0.15) | (place == 0)  # paid by nobody
    payer = np.where(born, -1, np.arange(nodes) - place + (rng.random(nodes) * place).astype(np.int64))

    fresh = born | (rng.random(nodes) > 0.7)
    label = (rng.random(nodes) < illicit_share[(step >= change).astype(int)]).astype(np.int64)
    label = label[_founder(np.where(fresh, np.arange(nodes), payer))]

    # On the clock -log(1 - fraction) a Beta(1, b) share of the rest is an exponential wait of rate b, and waits add up.
    wait = rng.standard_exponential(nodes) / np.where(born, 1.0, wait_rate[label[payer]])
    received = step + -np.expm1(-_sum_of_ancestors(wait, payer))

    paid, spends = np.flatnonzero(~born), np.bincount(payer[~born], minlength=nodes) > 0
    idle = np.flatnonzero(~spends)  # who pays nobody may be paid again
    first, many = np.searchsorted(step[idle], np.arange(51)), np.bincount(step[idle], minlength=50)
    source = rng.choice(np.flatnonzero(spends), num_edges - len(paid))
    again = idle[first[step[source]] + (rng.random(len(source)) * many[step[source]]).astype(np.int64)]
    extra = rng.standard_exponential(len(source)) / wait_rate[label[source]]
    src, dst = np.concatenate([payer[paid], source]), np.concatenate([paid, again])
    wait = -np.expm1(-np.concatenate([wait[paid], extra]))
    times = received[src] + wait * (step[src] + 1 - received[src])
    order = np.argsort(times, kind="stable")
    src, dst, times, wait = src[order], dst[order], times[order], wait[order]

    aggregated = round(0.44 * width)
    local = width - 1 - aggregated
    old, new = rng.standard_normal((2, local))
    new -= old * (old * new).sum() / (old * old).sum()  # orthogonal to the old one
    direction = 1.5 * np.stack([old / np.sqrt((old * old).sum()), new / np.sqrt((new * new).sum())])
    ends = coo_array(
        (np.ones(2 * num_edges, np.float32), (np.r_[src, dst], np.r_[dst, src])), shape=(nodes, nodes)
    ).tocsr()
    features = rng.standard_normal((nodes, width), dtype=np.float32)
    features[:, 0] = step
    x, around = features[:, 1 : 1 + local], features[:, 1 + local :]
    bad = np.flatnonzero(label)
    x[bad] += direction[(step[bad] >= change).astype(int)]
    around *= 0.1
    around += ends @ x[:, :aggregated] / np.maximum(ends.sum(axis=1), 1)[:, None]
    labels = np.where(rng.random(nodes) < 0.771, UNKNOWN, label)
    truth = LedgerTruth(label, received, payer, wait, wait_rate, direction, illicit_share, change)
    return Ledger(TemporalGraph(src, dst, nodes, times=times), features, labels, step, truth)


def _founder(parent):
    """Follow each node's parent to the top; tops are their own parents. (N,) → (N,)"""
    while (parent[parent] != parent).any():
        parent = parent[parent]
    return parent


def _sum_of_ancestors(value, parent):
    """Each node's value plus those of all its ancestors, by doubling; a node without a parent has -1."""
    total = np.append(value, 0.0)  # -1 finds the zero at the end, which is its own parent
    parent = np.append(parent, -1)
    while (parent >= 0).any():
        total, parent = total + total[parent], parent[parent]
    return total[:-1]


@dataclass(frozen=True, repr=False)
class FreewayTruth:
    """What was planted in a :class:`Freeway`. Times in minutes since a Monday, 00:00; speeds in miles per hour."""

    free_flow: np.ndarray  # (N,) speed of the empty road
    usual: np.ndarray  # (T, N) speed of an ordinary day: the daily rhythm without congestion
    clean: np.ndarray  # (T, N) speed with congestion, before noise and missing readings
    missing: np.ndarray  # (T, N) True where the reading is missing
    onset_time: np.ndarray  # (C,) where and when congestion starts, and how strongly
    onset_road: np.ndarray
    onset_strength: np.ndarray
    arrival_time: np.ndarray  # (A,) every arrival of a wave, the onsets (hop 0) included
    arrival_road: np.ndarray
    arrival_strength: np.ndarray
    arrival_hop: np.ndarray
    link: np.ndarray  # (L, 2) upstream road, downstream road: traffic flows from the first to the second
    delay: np.ndarray  # (L,) minutes congestion takes to cross the link, from downstream to upstream
    relief: float  # minutes after which 1/e of a congestion is left


@dataclass(frozen=True, repr=False)
class Freeway:
    """Simulated speeds: ``graph``, ``readings`` (T, N), ``times`` (T,) minutes, ``positions`` (N, 2) km, ``truth``."""

    graph: TemporalGraph
    readings: np.ndarray
    times: np.ndarray
    positions: np.ndarray
    truth: FreewayTruth


def freeway(scale="small", seed=0):
    r"""Simulate speeds on a network of one-way highways, in the manner of METR-LA.

    Each sensor stands for the road it is on. Readings are in miles per hour, every five minutes; times are minutes
    since a Monday, 00:00. Even highways branch off, odd ones merge into, the middle of the highway before them.

    What is planted:

    - *The graph* is directed downstream, as the cars drive: an edge u → v where v can be reached from u within 6 km,
      about three links, with weight exp(-(distance / 4 km)²). Congestion travels the other way: whoever wants to see
      it coming has to listen to the reversed edges too.
    - *Daily rhythm.* Speed is the road's free flow (55 to 70) times one minus a dip: around 7:45 and 17:15 on working
      days, up to a third deep and of different depth on each road; a shallow one around 14:00 at weekends.
    - *Congestion* starts as a Poisson process, independent on each road (0.4 a day on average), whose rate is ten
      times higher at the worst of the rush hours than at night (3.7 times at the worst of a weekend); drawn by
      thinning. An onset of strength z divides the speed by 1 + z, z uniform on (1, 3); it is sudden, and z decays by
      1/e in 25 minutes. Overlapping congestions add their z.
    - *Spreading.* It reaches the roads *upstream* one by one, at 12 km/h (a delay of 7 to 13 minutes per link), 0.75
      times as strong on each link, for four links. Nothing ever travels downstream.
    - *Noise* of 1.5 mph, readings at least 1 mph; *missing* readings are zeros, and only they: 2 % at random, and
      outages (two hours on average, geometric) that cover another 4 %.

    Chapter *Dynamic graphs*.

    Parameters
    ----------
    scale : {"tiny", "small", "full"}
        24 sensors, two weeks; 60 sensors, four weeks; 207 sensors, 34,272 readings each (the size of METR-LA).
    seed : int

    Examples
    --------
    >>> world = freeway("tiny")
    >>> world.readings.shape, world.times[:3].tolist()
    ((4032, 24), [0.0, 5.0, 10.0])
    """
    size, rng = _size("freeway", scale), np.random.default_rng(seed)
    roads, steps, relief, hops = size["sensors"], size["steps"], 25.0, 4
    positions, link = _highways(roads, size["highways"], rng)
    length = np.hypot(*(positions[link[:, 0]] - positions[link[:, 1]]).T)
    delay = 60 * length / 12
    reach = dijkstra(coo_array((length, link.T), shape=(roads, roads)).tocsr(), limit=6.0)
    src, dst = np.nonzero(np.isfinite(reach) & (reach > 0))

    times = 5.0 * np.arange(steps)
    rhythm = _rhythm(times)  # (T, 3): morning, evening, weekend
    free_flow = rng.uniform(55, 70, roads)
    depth = np.stack([rng.uniform(0.05, 0.35, roads), rng.uniform(0.05, 0.35, roads), np.full(roads, 0.08)])
    usual = free_flow * (1 - np.einsum("tk,kn->tn", rhythm, depth))

    # Onsets: propose at the highest rate, keep in proportion to the rate there.
    def relative_rate(t):
        return 0.1 + 0.9 * (_rhythm(t) * [1.0, 1.0, 0.3]).sum(axis=1)

    highest = 0.4 / 1440 / relative_rate(5.0 * np.arange(7 * 288)).mean()
    time = np.sort(rng.uniform(0, 5.0 * steps, rng.poisson(highest * roads * 5.0 * steps)))
    time = time[rng.random(len(time)) < relative_rate(time)]
    road, strength = rng.integers(roads, size=len(time)), rng.uniform(1, 3, len(time))

    waves = [(time, road, strength)]
    for _ in range(hops):
        waves.append(_upstream(*waves[-1], link, delay))
    hop = np.repeat(np.arange(hops + 1), [len(wave[0]) for wave in waves])
    at, where, z = (np.concatenate(part) for part in zip(*waves, strict=True))
    slot = np.ceil(at / 5.0).astype(np.int64)  # the first reading that sees it
    seen = slot < steps
    impulse = np.bincount(
        slot[seen] * roads + where[seen],
        weights=(z * np.exp(-(5.0 * slot - at) / relief))[seen],
        minlength=steps * roads,
    ).reshape(steps, roads)
    clean = usual / (1 + lfilter([1.0], [1.0, -np.exp(-5.0 / relief)], impulse, axis=0))

    missing = _outages(steps, roads, rng) | (rng.random((steps, roads)) < 0.02)
    noisy = np.maximum(clean + 1.5 * rng.standard_normal((steps, roads)), 1.0)
    readings = np.where(missing, 0, noisy).astype(np.float32)
    graph = TemporalGraph(src, dst, roads, weights=np.exp(-((reach[src, dst] / 4) ** 2)))
    truth = FreewayTruth(
        free_flow,
        usual.astype(np.float32),
        clean.astype(np.float32),
        missing,
        time,
        road,
        strength,
        at,
        where,
        z,
        hop,
        link,
        delay,
        relief,
    )
    return Freeway(graph, readings, times, positions, truth)


def _highways(roads, highways, rng):
    """Positions (N, 2) in km and links (L, 2) from each road to the next one downstream."""
    ids = np.array_split(np.arange(roads), highways)
    positions, links = np.empty((roads, 2)), []
    for n, mine in enumerate(ids):
        heading = np.pi / 2 * (n % 2) + rng.uniform(-0.2, 0.2)
        anchor = ids[n - 1][len(ids[n - 1]) // 2] if n else None
        gaps = rng.uniform(1.4, 2.6, len(mine))
        along = np.cumsum(gaps)[:, None] * [np.cos(heading), np.sin(heading)]
        positions[mine] = along + (positions[anchor] if n else 0.0)
        chain = mine if n % 2 == 0 else mine[::-1]  # odd highways drive towards their junction
        links.append(np.stack([chain[:-1], chain[1:]], axis=1))
        if n:
            links.append([[anchor, mine[0]] if n % 2 == 0 else [mine[0], anchor]])
    return positions, np.concatenate(links)


def _rhythm(minutes):
    """How much it is morning rush, evening rush and weekend afternoon, between 0 and 1 each: (len(minutes), 3)."""
    hour, working = minutes / 60 % 24, (minutes // 1440 % 7 < 5)[:, None]
    bumps = np.exp(-0.5 * ((hour[:, None] - [7.75, 17.25, 14.0]) / [1.0, 1.25, 2.5]) ** 2)
    return bumps * np.where([True, True, False], working, ~working)


def _upstream(time, road, strength, link, delay):
    """Pass each wave on to all roads that lead into its road: later, and weaker."""
    order = np.argsort(link[:, 1], kind="stable")
    first, last = (np.searchsorted(link[order, 1], road, side=side) for side in ("left", "right"))
    wave = np.repeat(np.arange(len(road)), last - first)
    via = order[np.arange(len(wave)) - np.repeat(np.cumsum(last - first) - last, last - first)]
    return time[wave] + delay[via], link[via, 0], 0.75 * strength[wave]


def _outages(steps, roads, rng, share=0.04, mean_length=24):
    """Runs of missing readings, (T, N) bool: outages start at random, their lengths are geometric."""
    count = rng.poisson(-np.log1p(-share) / mean_length * steps * roads)
    road, start = rng.integers(roads, size=count), rng.integers(steps, size=count)
    end = np.minimum(start + rng.geometric(1 / mean_length, count), steps)
    change = np.zeros((steps + 1, roads), dtype=np.int32)
    np.add.at(change, (start, road), 1)
    np.add.at(change, (end, road), -1)
    return np.cumsum(change[:-1], axis=0) > 0
