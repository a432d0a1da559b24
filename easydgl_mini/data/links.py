"""What the loaders of user-item events share: compact ids, repeated events, minimum counts, order, and the form in the
cache (chapter *Link prediction*).
"""

import numpy as np

from ..events import EventLog
from .files import DataError

DAY = 86_400
REPEATED = "the same event again"
PROTOCOL = {"split": (8, 1, 1), "seeds": (12345, 54321, 56789, 98765, 7401)}
"""The paper's: users split 8:1:1, once for each of five seeds (:meth:`EventLog.split_users`)."""
OPTIONS = {"min_user": 1, "min_item": 1, "duplicates": "drop"}
TABLE = 2**26  # ids below this are made compact by a table, others by sorting


def compact(ids):
    """Ids from 0 without gaps, in ascending order of what they stand for: (codes, names).

    Examples
    --------
    >>> compact(np.array([30, 10, 30]))
    (array([1, 0, 1], dtype=int32), array([10, 30]))
    """
    if ids.dtype.kind in "iu" and len(ids) and ids.min() >= 0 and ids.max() < TABLE:
        there = np.zeros(int(ids.max()) + 1, bool)
        there[ids] = True
        names = np.flatnonzero(there)
        table = np.zeros(len(there), np.int32)
        table[names] = np.arange(len(names), dtype=np.int32)
        return table[ids], names
    names, codes = np.unique(ids, return_inverse=True)
    return codes.astype(np.int32).reshape(-1), names


def join(parts):
    """Columns (user, item, time) from a list of chunks of them."""
    if not parts:
        return tuple(np.zeros(0, np.int64) for _ in range(3))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def gather(parts, path, report):
    """As :func:`join`, of a dataset's file; no event at all is a :class:`DataError`."""
    user, item, time = join(parts)
    if not len(user):
        raise DataError(path, None, f"no event could be read ({report.close(0)})")
    return user, item, time


def finish(user, item, time, report, step=1, names=None, min_user=1, min_item=1, duplicates="drop"):
    """Events as the cache keeps them, and the report closed.

    Parameters
    ----------
    user, item : arrays, shape (n,)
        Raw ids: whole numbers that are not negative.
    time : array, shape (n,)
        In units of ``step`` seconds: whole numbers, or float64 with ``step=1``.
    report : Report
        With what was read and dropped so far; ``n`` is what is left.
    names : (array, array), optional
        What ids 0, 1, … of users and of items are called; by default the ids are their own names.
    min_user, min_item : int
        Drop items with fewer events, and then users with fewer of the events that are left: once each, in this order,
        as the authors' released script does.
    duplicates : {"drop", "keep"}
        What to do with an event of the same user, item and time as an earlier one.

    Returns
    -------
    (dict of arrays, Report)
        ``offsets`` (users + 1,), ``item`` and ``time`` (events,) sorted by user and then by time, tied events in the
        order of the files; time in seconds is (``base`` + time) * ``step``; ``user_names``, ``item_names``.
    """
    for name, value in (("min_user", min_user), ("min_item", min_item)):
        if not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    if duplicates not in ("drop", "keep"):
        raise ValueError(f"duplicates must be 'drop' or 'keep', got {duplicates!r}")
    (user, user_names), (item, item_names) = compact(user), compact(item)
    everything = len(user)
    base = time.min() if len(time) and time.dtype.kind in "iu" else 0
    time = time if time.dtype.kind == "f" else (time - base).astype(_small(time, base))
    if duplicates == "drop":
        again = _repeated(user, item, time)
        if again is not None:
            report.drop(REPEATED, again.sum())
            user, item, time = user[~again], item[~again], time[~again]
    for name, least in (("item", min_item), ("user", min_user)):
        if least > 1:
            ids = item if name == "item" else user
            few = (np.bincount(ids) < least)[ids]
            report.drop(f"{name} with fewer than {least} events", few.sum())
            user, item, time = user[~few], item[~few], time[~few]
    if len(user) < everything:
        (user, left), (item, left_items) = compact(user), compact(item)
        user_names, item_names = user_names[left], item_names[left_items]
    if names is not None:
        user_names, item_names = names[0][user_names], names[1][item_names]
    order = _order(user, time)
    arrays = {
        "offsets": np.concatenate(([0], np.cumsum(np.bincount(user, minlength=len(user_names))))).astype(np.int64),
        "item": item.astype(_small(np.array([0, len(item_names)])))[order],
        "time": time[order],
        "base": np.array(base, np.int64),
        "step": np.array(step, np.int64),
        "num_users": np.array(len(user_names)),
        "num_items": np.array(len(item_names)),
        "user_names": user_names,
        "item_names": item_names,
    }
    return arrays, report.close(len(user))


def make(arrays):
    """The :class:`EventLog` of arrays from :func:`finish`: times in seconds, and the raw ids as ``user_names`` and
    ``item_names``."""
    count = np.diff(arrays["offsets"])
    time = arrays["time"].astype(np.float64)
    time += float(arrays["base"])
    time *= float(arrays["step"])
    log = EventLog(
        user=np.repeat(np.arange(len(count), dtype=np.int32), count),
        item=arrays["item"].astype(np.int32),
        time=time,
        num_users=int(arrays["num_users"]),
        num_items=int(arrays["num_items"]),
    )
    log.user_names, log.item_names = arrays["user_names"], arrays["item_names"]
    return log


def _small(values, base=0):
    """The smallest unsigned type for ``values - base``."""
    return np.min_scalar_type(max(int(values.max(initial=0)) - int(base), 0))


def _bits(count):
    return max(int(count) - 1, 0).bit_length()


def _pack(*columns):
    """Columns of whole numbers from 0, side by side in 64 bits, first column highest; None where they don't fit."""
    if not len(columns[0]) or any(column.dtype.kind == "f" for column in columns):
        return None
    widths = [_bits(int(column.max()) + 1) for column in columns]
    if sum(widths) > 64:
        return None
    key = columns[0].astype(np.uint64)
    for column, width in zip(columns[1:], widths[1:], strict=True):
        key <<= np.uint64(width)
        key |= column.astype(np.uint64)
    return key


def _order(user, time):
    """Indices that sort by user and then by time, stable. Sorting packed numbers is several times faster."""
    rows = np.arange(len(user), dtype=np.uint32 if len(user) < 2**32 else np.uint64)
    key = _pack(user, time, rows)
    if key is None:
        return np.lexsort((time, user))
    key.sort()
    key &= np.uint64((1 << _bits(len(user))) - 1)
    return key.astype(np.int64)


def _repeated(user, item, time):
    """Mask of the events that are equal to an earlier one, or None where there are none."""
    key = _pack(user, item, time)
    rows = np.arange(len(user))
    if key is not None:
        key.sort()
        double = np.unique(key[1:][key[1:] == key[:-1]])
        if not len(double):
            return None
        key = _pack(user, item, time)
        near = np.minimum(np.searchsorted(double, key), len(double) - 1)
        rows = np.flatnonzero(double[near] == key)
    order = rows[np.lexsort((time[rows], item[rows], user[rows]))]  # stable: the earliest of equals comes first
    same = np.zeros(len(user), bool)
    a, b = order[:-1], order[1:]
    same[b] = (user[a] == user[b]) & (item[a] == item[b]) & (time[a] == time[b])
    return same if same.any() else None
