"""Amazon reviews in the gap format: one line per user, ``user i1 … iN<TAB>gap1 … gapN``, gaps in seconds.

Folder ``amazon-beauty/``: ``Beauty.txt``, the 5-core of the category. A gap is the time since the user's previous
event; the first is 0, so each clock starts at 0 and the calendar is not known. Not in the paper: the time unit is
the day.

In the report a row is an item of a line; a line that can't be read counts as one.
"""

import numpy as np

from . import links
from .files import Report, chunks, digits
from .registry import Dataset, register

TWICE = "the user had a line before"


def read(paths, errors="raise", **filters):
    """Raw file to events."""
    report, parts, known = Report(), [], np.zeros(0, np.int64)
    for path in paths:
        for chunk in chunks(path, report):
            user, item, time, known = _parse(chunk, known, report, errors)
            parts.append((user, item, time))
    return links.finish(*links.gather(parts, paths[0], report), report, **filters)


def _parse(chunk, known, report, errors):
    """A chunk's events, and the users known after it."""
    data, n = chunk.data, len(chunk)
    tabs = np.flatnonzero(data == 9)
    number = np.searchsorted(tabs, chunk.end) - np.searchsorted(tabs, chunk.start)
    chunk.refuse(number != 1, "expected one tab between items and gaps")
    tab = np.where(number == 1, np.concatenate((tabs, [0]))[np.searchsorted(tabs, chunk.start)], chunk.end)

    cuts = np.flatnonzero((data == 32) | (data == 9) | (data == 10))
    start = np.concatenate((chunk.start[:1], cuts[:-1] + 1))
    row = np.searchsorted(chunk.end, start)  # the line each field is in; a line's last field starts at most at its end
    end = np.minimum(cuts, chunk.end[row])  # Windows line ends
    value, bad = digits(data, start, end)
    chunk.refuse(np.unique(row[bad]), "an entry is not a whole number")
    after = start > tab[row]
    items, gaps = np.bincount(row[~after], minlength=n) - 1, np.bincount(row[after], minlength=n)
    chunk.refuse((items != gaps) | (items < 1), "expected as many gaps as items, and at least one")

    first = np.searchsorted(row, np.arange(n))  # of each line: the user
    user = value[first]
    first_gap = np.minimum(first + 1 + items, len(value) - 1)
    chunk.refuse(value[first_gap] != 0, "the first gap is not 0")
    chunk.refuse(np.bincount(row[after], value[after].astype(float), n) > 2**52, "the gaps add up to too much")
    chunk.refuse(np.isin(user, known) | _seen_above(user, chunk.good), TWICE)

    good = chunk.settle(report, errors)
    report.read += int((items[good] - 1).sum())  # a good line was counted as one row so far
    field = good[row]
    is_user = np.zeros(len(row), bool)
    is_user[first] = True
    item, gap = value[field & ~after & ~is_user], value[field & after]
    time = np.cumsum(gap)
    count = items[good]
    begin = np.cumsum(count) - count
    time -= np.repeat(time[begin], count) if len(count) else 0  # the first gap is 0, so this is each line's own clock
    return np.repeat(user[good], count), item, time, np.concatenate((known, user[good]))


def _seen_above(user, good):
    """Mask of the lines whose user has a good line above, in the same chunk."""
    rows = np.flatnonzero(good)
    _, first = np.unique(user[rows], return_index=True)
    again = np.zeros(len(user), bool)
    again[np.delete(rows, first)] = True
    return again


register(
    Dataset(
        name="amazon-beauty",
        title="Amazon Beauty, 5-core",
        task="link",
        layouts=(("Beauty.txt",),),
        where="github.com/AraVio/TimeWeaver, file data/Beauty.txt: lines user i1 … iN<TAB>gap1 … gapN, one per user, "
        "gaps in seconds, the first 0 (the reviews at jmcauley.ucsd.edu/data/amazon are in another format)",
        read=read,
        make=links.make,
        options=dict(links.OPTIONS),
        defaults={"time_unit": "day", **links.PROTOCOL},
        expect={"rows": 198_502, "num_users": 22_363, "num_items": 12_101},
    )
)
