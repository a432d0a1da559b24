r"""Simulated raw files in the public formats, up to the sizes of the paper's data (chapter *Link prediction*).

The real files can't come with this package. :func:`write_raw` writes files that look like them to a loader, with a
known truth beside them, so that everything from the raw text to a trained model can be run and measured. All of it is
*simulated*: no number in these files was observed.

- Netflix, Tmall and Koubei: the law of :func:`easydgl_mini.simulate.bazaar` with the size, the span and the dates of
  each. Times are cut to the day, which is all that the formats keep.
- Elliptic: :func:`easydgl_mini.simulate.ledger`. The format keeps the step of a payment, not its time inside.
- METR-LA: :func:`easydgl_mini.simulate.freeway`, from Monday 5 March 2012 on, so that weekdays are weekdays.
"""

import contextlib
import dataclasses
import os
import pickle
import shutil
import tempfile
from pathlib import Path

import numpy as np

from .. import simulate
from .files import sync_folder

SCALES = ("tiny", "small", "full")
BLOCK = 1 << 14  # users simulated at a time, each block with random numbers of its own
ROWS = 1 << 19  # lines written at a time
RATINGS = np.repeat(np.frombuffer(b"12345", np.uint8), [5, 10, 29, 34, 22])[:, None]  # a hundred, to draw one from


def write_raw(name, scale="small", out=None, seed=0):
    """Write simulated raw files in a dataset's public format, with the truth they were made from.

    Parameters
    ----------
    name : {"netflix", "tmall", "koubei", "elliptic", "metr-la"}
    scale : {"tiny", "small", "full"}
        ``full`` is the size of the paper's data.
    out : path
        A new folder. It appears under its name when everything is in it: an interrupted write leaves nothing that could
        be taken for a dataset.
    seed : int
        Same seed, same bytes.

    Returns
    -------
    dict
        From each file's name to what is in it, in words.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sorted(write_raw("koubei", "tiny", Path(folder) / "koubei"))
    ['README.txt', 'ijcai2016_koubei_train', 'truth.npz']
    """
    if name not in WRITERS:
        raise ValueError(f"name must be one of {', '.join(WRITERS)}, got {name!r}")
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    if out is None:
        raise ValueError("out must be a new folder, got None")
    with _new_folder(out) as folder:
        written, truth = WRITERS[name](folder, scale, seed)
        np.savez(folder / "truth.npz", **truth)
        written["truth.npz"] = f"what was planted: {', '.join(truth)}"
        (folder / "README.txt").write_text(_readme(name, scale, seed, written), encoding="utf-8")
        written["README.txt"] = "what this is"
    return written


@contextlib.contextmanager
def _new_folder(out):
    """A folder beside ``out`` that takes its name at the end, or is removed."""
    out = Path(out)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ValueError(f"out must be a new folder, got {out}, which is {'not empty' if out.is_dir() else 'a file'}")
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
    try:
        yield part
        os.chmod(part, 0o755)
        if out.is_dir():
            out.rmdir()
        os.rename(part, out)
        sync_folder(out.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _readme(name, scale, seed, written):
    lines = [f"{file}: {what}" for file, what in written.items()]
    head = f"Simulated, not observed: raw files in the format of {name}, scale {scale}, seed {seed}."
    made = f"Made by: easydgl-mini simulate {name} --scale {scale} --seed {seed} --out FOLDER"
    return "\n".join([head, made, "", *lines, ""])


# ------------------------------------------------------------------------------------------------ text from numbers
# A column of text is a uint8 array (n, width) in which 0 stands for nothing; rows are joined and the zeros left out.


def digits(value, width=None):
    """Whole numbers that are not negative as text, (n, width); ``width`` given: with zeros in front.

    Examples
    --------
    >>> join(digits(np.array([7, 120])), b",", digits(np.array([3, 4]), 2), b";").tobytes()
    b'7,03;120,04;'
    """
    value = np.asarray(value)
    wide = width or len(str(int(value.max(initial=0))))
    text, rest = np.empty((len(value), wide), np.uint8), value.astype(np.uint32 if wide < 10 else np.uint64)
    for place in range(wide - 1, -1, -1):
        ahead = rest // 10
        text[:, place] = 48 + (rest - 10 * ahead)
        rest = ahead
    if width is None:
        for place in range(wide - 1):
            text[value < 10 ** (wide - 1 - place), place] = 0
    return text


def decimals(value, places):
    """Numbers as text with a fixed number of decimal places, (n, width), rounded to even.

    Examples
    --------
    >>> join(decimals(np.array([-0.5, 12.0, -0.001]), 2), b" ").tobytes()
    b'-0.50 12.00 0.00 '
    """
    scaled = np.rint(np.asarray(value, np.float64) * 10**places).astype(np.int64)
    size = np.abs(scaled)
    sign = np.where(scaled < 0, ord("-"), 0).astype(np.uint8)[:, None]
    point = np.full((len(size), 1), ord("."), np.uint8)
    return np.concatenate([sign, digits(size // 10**places), point, digits(size % 10**places, places)], axis=1)


def beside(*columns):
    """Columns side by side, (n, width); a byte string stands in every row."""
    rows = next(len(column) for column in columns if not isinstance(column, bytes))
    columns = [
        np.broadcast_to(np.frombuffer(column, np.uint8), (rows, len(column))) if isinstance(column, bytes) else column
        for column in columns
    ]
    return np.concatenate(columns, axis=1)


def join(*columns):
    """Columns side by side as one run of bytes."""
    text = beside(*columns).reshape(-1)
    return text[text != 0]


def _words(texts):
    """Texts as a table of bytes, (n, width), to look rows up in."""
    table = np.array(texts, dtype=np.bytes_)
    return table.view(np.uint8).reshape(len(table), -1)


def _write_lines(path, count, lines, header=b""):
    """``lines(a, b)`` gives the bytes of the lines a … b - 1; written some at a time."""
    with open(path, "wb") as file:
        file.write(header)
        for first in range(0, count, ROWS):
            file.write(lines(first, min(first + ROWS, count)).data)
        file.flush()
        os.fsync(file.fileno())


# ------------------------------------------------------------------------------------------------ user-item events


@dataclasses.dataclass(frozen=True)
class Market:
    """The size of a simulated market.

    ``users`` have at least ``least`` events each; those with fewer, who turn up on the way, are in the file too.
    ``spontaneous`` events per user are nobody's children; activity is Gamma with this ``shape``; ``even`` is the share
    of an item's popularity that does not fall with its rank; ``strength`` multiplies what *bazaar*'s groups do to one
    another. Raw user ids rise by 1 … ``gap``.
    """

    users: int
    items: int
    groups: int
    weeks: int
    start: str  # a Monday
    spontaneous: float
    least: int = 1
    shape: float = 2.0
    even: float = 0.0
    strength: float = 1.0
    gap: int = 10


MARKETS = {
    "netflix": {
        "tiny": Market(240, 400, 4, 8, "2005-10-31", 17.0),
        "small": Market(2_000, 1_600, 8, 12, "2005-10-03", 21.0),
        "full": Market(480_189, 17_770, 16, 319, "1999-11-15", 79.0),
    },
    # The paper gives nodes and edges: 342,373 and 7,632,826; 223,044 and 1,828,250. Users and items are split so that
    # the density is what it prints. Loaders keep items with 200 (100) events and users with 10 (5), so items are
    # almost equally popular: 349 (179) events each are the mean.
    "tmall": {
        "tiny": Market(1_500, 100, 4, 26, "2014-05-12", 7.53, 10, 8.0, 0.8),
        "small": Market(6_000, 400, 8, 26, "2014-05-12", 7.53, 10, 8.0, 0.8),
        "full": Market(320_497, 21_876, 16, 26, "2014-05-12", 7.53, 10, 8.0, 0.8),
    },
    "koubei": {
        "tiny": Market(1_500, 60, 4, 21, "2015-07-06", 3.85, 5, 8.0, 0.8, 0.5),
        "small": Market(6_000, 240, 8, 21, "2015-07-06", 3.85, 5, 8.0, 0.8, 0.5),
        "full": Market(212_831, 10_213, 16, 21, "2015-07-06", 3.85, 5, 8.0, 0.8, 0.5),
    },
}


def market(size, seed):
    r"""Events of a market by the law of :func:`easydgl_mini.simulate.bazaar`, block by block.

    Returns
    -------
    user, item, day : arrays (n,), int32, uint16 or uint32, uint16
        Sorted by user and then by time; days since ``size.start``.
    truth : dict of arrays
        ``mu`` (users, K) base rates per hour, ``excitation`` (K, K), ``decay`` per hour, ``weekday`` (K, 7), ``group``
        and ``popularity`` of the items, ``start``.
    """
    rng, decay, horizon, K = np.random.default_rng([seed, 0]), 0.25, 168.0 * size.weeks, size.groups
    here = np.arange(K)
    excitation = np.zeros((K, K))
    for step, strength in ((0, 0.25), (1, 0.45), (-1, -0.5)):
        excitation[(here + step) % K, here] = decay * size.strength * strength * rng.uniform(0.9, 1.1, K)
    busiest = rng.permutation(K) * 7 // K
    weekday = 1 + 0.6 * np.cos(2 * np.pi * (np.arange(7) - busiest[:, None]) / 7)
    group = rng.permutation(np.arange(size.items) % K)
    order = rng.permutation(size.items)
    order = order[np.argsort(group[order], kind="stable")]  # items by group, in a random order of popularity
    many = np.bincount(group)
    share = np.concatenate([_shares(n, size.even) for n in many])
    popularity = np.empty(size.items)
    popularity[order] = share
    shelf = np.cumsum(share)  # a uniform draw on [k, k + 1) finds an item of group k
    shelf[np.cumsum(many) - 1] = here + 1.0  # exactly

    parts, rates, found, first, block = [], [], 0, 0, 0
    small = np.min_scalar_type(size.items)
    while found < size.users:
        block += 1
        child = np.random.default_rng([seed, block])
        activity = child.gamma(size.shape, 1 / size.shape, BLOCK) * size.spontaneous / horizon
        mu = activity[:, None] * child.dirichlet(np.full(K, 0.7), BLOCK)
        mu = mu[: max(1024, min(BLOCK, 2 * (size.users - found)))]
        user, item, time = simulate._visit(mu, excitation, decay, weekday, horizon, order, shelf, child)
        count = np.bincount(user, minlength=len(mu))
        last = np.searchsorted(np.cumsum(count >= size.least), size.users - found)  # the user who makes it enough
        kept = user <= last
        user, count, mu = user[kept], count[: last + 1], mu[: last + 1]
        found += int((count >= size.least).sum())
        new = np.cumsum(count > 0) - 1  # users without any event don't exist
        day = (time[kept] / 24).astype(np.uint16)
        parts.append((first + new[user].astype(np.int32), item[kept].astype(small), day))
        rates.append(mu[count > 0])
        first = np.int32(first + len(rates[-1]))
    user, item, day = (np.concatenate(column) for column in zip(*parts, strict=True))
    truth = {"mu": np.concatenate(rates), "excitation": excitation, "decay": decay, "weekday": weekday}
    return user, item, day, truth | {"group": group, "popularity": popularity, "start": np.array(size.start)}


def _shares(count, even):
    """Popularity inside a group by rank: ``even`` of it equal, the rest proportional to 1/rank."""
    zipf = 1 / np.arange(1, count + 1)
    return even / count + (1 - even) * zipf / zipf.sum()


def _ids(count, gap, rng):
    """Raw ids, rising by 1 … gap."""
    return np.cumsum(rng.integers(1, gap + 1, count))


def _dates(size, form):
    """The market's days as text, (days, width)."""
    days = np.datetime64(size.start) + np.arange(7 * size.weeks)
    return _words([day.item().strftime(form) for day in days])


def _netflix(folder, scale, seed):
    size = MARKETS["netflix"][scale]
    user, item, day, truth = market(size, seed)
    rng = np.random.default_rng([seed, 1 << 32])
    truth["user_ids"], truth["item_ids"] = _ids(len(truth["mu"]), size.gap, rng), np.arange(1, size.items + 1)
    order = np.argsort(item, kind="stable")
    user, day = user[order], day[order]
    del order
    starts = np.concatenate([[0], np.cumsum(np.bincount(item, minlength=size.items))])
    del item
    names, dates = digits(truth["user_ids"]), _dates(size, "%Y-%m-%d")
    borders = np.round(size.items * np.array([0, 4_499, 9_210, 13_367, 17_770]) / 17_770).astype(int)
    written = {}
    for n in range(4):
        written[f"combined_data_{n + 1}.txt"] = f"{starts[borders[n + 1]] - starts[borders[n]]:,} ratings"
        with open(folder / f"combined_data_{n + 1}.txt", "wb") as file:
            film = borders[n]
            while film < borders[n + 1]:  # as many films at a time as have about ROWS ratings
                after = max(film + 1, int(np.searchsorted(starts, starts[film] + ROWS, side="right")) - 1)
                after = min(after, borders[n + 1])
                here = slice(starts[film], starts[after])
                stars = RATINGS[rng.integers(100, size=here.stop - here.start, dtype=np.uint8)]
                text = beside(names[user[here]], b",", stars, b",", dates[day[here]], b"\n")
                _write_films(file, film, starts[film : after + 1] - starts[film], text)
                film = after
            file.flush()
            os.fsync(file.fileno())
    return written, truth


def _write_films(file, first, starts, text):
    """Headings and lines of the films ``first``, …; film i's lines are ``text[starts[i] : starts[i + 1]]``."""
    there = text != 0
    ends = np.concatenate([[0], np.cumsum(there.sum(axis=1))])[starts]
    text = text[there]
    for i in range(len(starts) - 1):
        if ends[i + 1] > ends[i]:
            file.write(b"%d:\n" % (first + i + 1))
            file.write(text[ends[i] : ends[i + 1]].data)


def _tmall(folder, scale, seed):
    """Each event is a click; every eighth is followed by a line of another action, which is no event."""
    size = MARKETS["tmall"][scale]
    user, item, day, truth = market(size, seed)
    rng = np.random.default_rng([seed, 1 << 32])
    truth["user_ids"], truth["item_ids"] = _ids(len(truth["mu"]), size.gap, rng), _ids(size.items, size.gap, rng)
    again = np.flatnonzero(rng.random(len(user)) < 0.125)
    row = np.sort(np.concatenate([np.arange(len(user)), again]), kind="stable")
    action = np.zeros(len(row), np.uint8)
    action[again + np.arange(1, len(again) + 1)] = rng.choice(
        np.array([1, 2, 3], np.uint8), len(again), p=[0.01, 0.52, 0.47]
    )
    truth["other_actions"] = len(again)
    users, items = digits(truth["user_ids"]), digits(truth["item_ids"])
    seller, brand = digits(1 + np.arange(size.items) // 5), digits(1 + np.arange(size.items) // 3)
    brand[rng.random(size.items) < 0.01] = 0  # some have none, as in the original
    category, dates = digits(1 + truth["group"]), _dates(size, "%m%d")
    dates[dates[:, 0] == 48, 0] = 0  # 829, not 0829

    def lines(a, b):
        i, u, d = item[row[a:b]], user[row[a:b]], day[row[a:b]]
        text = (users[u], items[i], category[i], seller[i], brand[i], dates[d])
        return join(*(part for column in text for part in (column, b",")), digits(action[a:b], 1), b"\n")

    header = b"user_id,item_id,cat_id,seller_id,brand_id,time_stamp,action_type\n"
    _write_lines(folder / "user_log_format1.csv", len(row), lines, header)
    return {"user_log_format1.csv": f"{len(user):,} clicks, {len(again):,} other actions"}, truth


def _koubei(folder, scale, seed):
    size = MARKETS["koubei"][scale]
    user, item, day, truth = market(size, seed)
    rng = np.random.default_rng([seed, 1 << 32])
    truth["user_ids"], truth["item_ids"] = _ids(len(truth["mu"]), size.gap, rng), _ids(size.items, size.gap, rng)
    users, items, dates = digits(truth["user_ids"]), digits(truth["item_ids"]), _dates(size, "%Y%m%d")
    place = digits(1 + rng.integers(500, size=size.items))

    def lines(a, b):
        i = item[a:b]
        return join(users[user[a:b]], b",", items[i], b",", place[i], b",", dates[day[a:b]], b"\n")

    _write_lines(folder / "ijcai2016_koubei_train", len(user), lines)
    return {"ijcai2016_koubei_train": f"{len(user):,} purchases"}, truth


# ------------------------------------------------------------------------------------------------ nodes and readings


def _truth(world):
    fields = ((field.name, getattr(world.truth, field.name)) for field in dataclasses.fields(world.truth))
    return {name: np.asarray(value) for name, value in fields if isinstance(value, np.ndarray | int | float)}


def payments(world):
    """Payers and payees of a *ledger*, each pair once, as in Elliptic: a payment that comes again goes to the next
    transaction of the step that pays nobody."""
    src, dst = (end.numpy().copy() for end in world.graph.edges())
    idle = np.flatnonzero(np.bincount(src, minlength=len(world.step)) == 0)  # in order of step
    first = np.searchsorted(world.step[idle], world.step[idle])  # of its step
    after = np.arange(1, len(idle) + 1)
    after = np.where(np.append(world.step[idle[1:]], 0) == world.step[idle], after, first)
    while True:
        again = np.ones(len(src), bool)
        again[np.unique(src * np.int64(len(world.step)) + dst, return_index=True)[1]] = False
        if not again.any():
            return src, dst
        dst[again] = idle[after[np.searchsorted(idle, dst[again])]]


def _elliptic(folder, scale, seed):
    world = simulate.ledger(scale, seed=seed)
    rng = np.random.default_rng([seed, 1 << 32])
    ids = rng.permutation(1_000 + _ids(len(world.labels), 2_000, rng))
    names, (src, dst) = digits(ids), payments(world)
    kinds = _words(["2", "1", "unknown"])

    def features(a, b):
        values = world.features[a:b, 1:]
        cells = decimals(values.reshape(-1), 6)
        cells = beside(b",", cells).reshape(b - a, -1)
        return join(names[a:b], b",", digits(world.step[a:b]), cells, b"\n")

    with open(folder / "elliptic_txs_features.csv", "wb") as file:
        for first in range(0, len(ids), 4096):
            file.write(features(first, min(first + 4096, len(ids))).data)
    _write_lines(
        folder / "elliptic_txs_edgelist.csv",
        len(src),
        lambda a, b: join(names[src[a:b]], b",", names[dst[a:b]], b"\n"),
        b"txId1,txId2\n",
    )
    _write_lines(
        folder / "elliptic_txs_classes.csv",
        len(ids),
        lambda a, b: join(names[a:b], b",", kinds[world.labels[a:b]], b"\n"),
        b"txId,class\n",
    )
    written = {
        "elliptic_txs_features.csv": f"{len(ids):,} transactions, {world.features.shape[1]} features with the step",
        "elliptic_txs_edgelist.csv": f"{len(src):,} payments",
        "elliptic_txs_classes.csv": f"{len(ids):,} classes",
    }
    return written, _truth(world) | {"ids": ids, "src": src, "dst": dst, "time": world.graph.times.numpy()}


def _metr_la(folder, scale, seed):
    world = simulate.freeway(scale, seed=seed)
    rng = np.random.default_rng([seed, 1 << 32])
    steps, roads = world.readings.shape
    sensors = (715_000 + _ids(roads, 250, rng)).astype(str).tolist()
    stamps = np.datetime64("2012-03-05T00:00") + world.times.astype(np.int64)
    stamps = _words(np.char.replace(np.datetime_as_string(stamps), "T", " "))

    def lines(a, b):
        cells = decimals(world.readings[a:b].reshape(-1), 4)
        return join(stamps[a:b], b":00", beside(b",", cells).reshape(b - a, -1), b"\n")

    with open(folder / "metr-la.csv", "wb") as file:
        file.write(("timestamp," + ",".join(sensors) + "\n").encode())
        for first in range(0, steps, 2048):
            file.write(lines(first, min(first + 2048, steps)).data)
    matrix = np.eye(roads, dtype=np.float32)  # a sensor is next to itself, as in the original
    src, dst = (end.numpy() for end in world.graph.edges())
    matrix[src, dst] = world.graph.weights.numpy()
    with open(folder / "adj_mx.pkl", "wb") as file:
        pickle.dump([sensors, {name: n for n, name in enumerate(sensors)}, matrix], file, protocol=2)
    written = {
        "metr-la.csv": f"{steps:,} times, {roads} sensors",
        "adj_mx.pkl": f"{len(src):,} links between sensors, and each with itself",
    }
    return written, _truth(world) | {"positions": world.positions}


WRITERS = {"netflix": _netflix, "tmall": _tmall, "koubei": _koubei, "elliptic": _elliptic, "metr-la": _metr_la}
