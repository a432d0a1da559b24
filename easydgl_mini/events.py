r"""Histories :math:`\{(k_i, t_i)\}`: who did what, when; sorted, split, scaled, padded (chapter *Dynamic graphs*)."""

import dataclasses
import functools

import numpy as np
import torch

UNITS = {"millisecond": 0.001, "second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0}
"""Seconds in each named time unit."""


class EventLog:
    """User-item events in time, sorted by user and then by time; tied events keep the order they came in.

    Parameters
    ----------
    user, item : sequence of int, shape (n,)
        Ids from 0.
    time : sequence of float, shape (n,)
        Finite and not negative.
    num_users, num_items : int, optional
        Sizes of the id spaces; by default the largest id plus one.

    Examples
    --------
    >>> log = EventLog(user=[1, 0, 1], item=[5, 3, 4], time=[20.0, 0.0, 10.0])
    >>> log.user, log.item
    (array([0, 1, 1]), array([3, 4, 5]))
    """

    def __init__(self, user, item, time, num_users=None, num_items=None):
        user, item = _ids("user", user, num_users), _ids("item", item, num_items)
        time = np.array(time)
        if time.dtype not in (np.float32, np.float64):
            time = time.astype(np.float64)
        if not len(user) == len(item) == len(time) or time.ndim != 1:
            raise ValueError(
                f"user, item and time must be as long as each other, got {len(user)}, {len(item)} and {time.shape}"
            )
        bad = ~(np.isfinite(time) & (time >= 0))
        if bad.any():
            raise ValueError(
                f"time[{bad.argmax()}] is {time[bad.argmax()]}; expected finite times that are not negative"
            )
        if not _is_sorted(user, time):
            order = np.lexsort((time, user))  # stable
            user, item, time = user[order], item[order], time[order]
        self.user, self.item, self.time = user, item, time
        self.num_users = int(num_users) if num_users is not None else int(user.max(initial=-1)) + 1
        self.num_items = int(num_items) if num_items is not None else int(item.max(initial=-1)) + 1

    def __len__(self):
        return len(self.user)

    def __repr__(self):
        return f"EventLog({len(self):,} events, {len(self.users):,} users, {self.num_items:,} items)"

    @functools.cached_property
    def users(self):
        """Ids of the users that have events, ascending."""
        return np.unique(self.user)

    @functools.cached_property
    def offsets(self):
        """User u's events are ``[offsets[u], offsets[u + 1])``; shape (num_users + 1,)."""
        return np.concatenate([[0], np.cumsum(np.bincount(self.user, minlength=self.num_users))])

    def select(self, event_mask):
        """The log of the events where ``event_mask`` is True, same id spaces."""
        return EventLog(*(x[event_mask] for x in (self.user, self.item, self.time)), self.num_users, self.num_items)

    def split_users(self, ratios=(8, 1, 1), seed=0):
        """Split by *user*: each user's whole history goes to one part (the paper's inductive protocol).

        Returns one log per ratio, all with the same id spaces.
        """
        ratios = np.asarray(ratios, dtype=float)
        if ratios.ndim != 1 or not len(ratios) or not np.all(np.isfinite(ratios) & (ratios >= 0)) or ratios.sum() <= 0:
            raise ValueError(f"ratios must be numbers that are not negative and not all zero, got {ratios.tolist()}")
        users = np.random.default_rng(seed).permutation(self.users)
        cuts = np.round(np.cumsum(ratios)[:-1] / ratios.sum() * len(users)).astype(int)
        part_of = np.zeros(self.num_users, dtype=np.int64)
        for part, members in enumerate(np.split(users, cuts)):
            part_of[members] = part
        return tuple(self.select(part_of[self.user] == part) for part in range(len(ratios)))

    def hold_out_last(self):
        """Split each user's last event off: ``(history, last)``, with the same users in both.

        Of tied last events the one that came last in the input is held out. Users with a single event have no history
        to predict from and are in neither part.
        """
        starts, ends = self.offsets[self.users], self.offsets[self.users + 1]
        last = np.zeros(len(self), dtype=bool)
        last[ends[ends - starts > 1] - 1] = True
        single = np.zeros(len(self), dtype=bool)
        single[starts[ends - starts == 1]] = True
        return self.select(~last & ~single), self.select(last)

    def histories(self, max_len, time_unit=1.0):
        """Each user's last ``max_len`` events as padded tensors, most recent in the last column.

        Parameters
        ----------
        max_len : int
            Number of columns T.
        time_unit : float or {"millisecond", "second", "minute", "hour", "day", "week"}
            Times are divided by this; the names are for logs in seconds.

        Returns
        -------
        Histories
            One row per user that has events, in ascending order of id.

        Examples
        --------
        >>> log = EventLog(user=[0, 1, 1], item=[3, 4, 5], time=[0.0, 3600.0, 9000.0])
        >>> h = log.histories(max_len=3, time_unit="hour")
        >>> h.item
        tensor([[-1, -1,  3],
                [-1,  4,  5]])
        >>> h.gap
        tensor([[0.0000, 0.0000, 0.0000],
                [0.0000, 0.0000, 1.5000]], dtype=torch.float64)
        """
        if int(max_len) != max_len or max_len < 1:
            raise ValueError(f"max_len must be a whole number of at least 1, got {max_len!r}")
        unit = time_scale(time_unit)
        starts, ends = self.offsets[self.users], self.offsets[self.users + 1]
        position = ends[:, None] - np.arange(max_len, 0, -1)  # (U, T)
        mask = position >= starts[:, None]
        position = np.where(mask, position, 0)
        time = self.time.astype(np.float64) / unit
        first = np.zeros(len(self), dtype=bool)
        first[starts] = True
        gap = np.where(first, 0.0, np.diff(time, prepend=0.0))
        return Histories(
            user=torch.from_numpy(self.users.astype(np.int64)),
            item=torch.from_numpy(np.where(mask, self.item[position] if len(self) else -1, -1).astype(np.int64)),
            time=torch.from_numpy(np.where(mask, time[position] if len(self) else 0.0, 0.0)),
            gap=torch.from_numpy(np.where(mask, gap[position] if len(self) else 0.0, 0.0)),
            mask=torch.from_numpy(mask),
        )


@dataclasses.dataclass(frozen=True)
class Histories:
    """Padded histories of U users, T columns, the most recent event last.

    Attributes
    ----------
    user : int tensor, shape (U,)
    item : int tensor, shape (U, T)
        -1 where there is no event, so that using a padded item by mistake fails.
    time, gap : float64 tensors, shape (U, T)
        Time of the event and time since the *same user's* previous event, in the chosen unit. A user's very first
        event has gap 0; an event whose predecessor was cut off by ``max_len`` keeps its true gap.
    mask : bool tensor, shape (U, T)
        True at real events.
    """

    user: torch.Tensor
    item: torch.Tensor
    time: torch.Tensor
    gap: torch.Tensor
    mask: torch.Tensor

    def __len__(self):
        return len(self.user)

    def __getitem__(self, rows):
        """The histories of some rows: a slice, a list, or an index or boolean tensor."""
        rows = torch.as_tensor(rows) if not isinstance(rows, slice) else rows
        return Histories(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))

    def batches(self, batch_size, seed=None):
        """Yield histories of ``batch_size`` rows (fewer in the last), in order, or shuffled by ``seed``."""
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size!r}")
        order = torch.arange(len(self))
        if seed is not None:
            order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        for rows in order.split(batch_size):
            yield self[rows]


def time_scale(unit, name="time_unit"):
    """A named unit ("hour" or "hours") in seconds, or a positive number as it is."""
    if isinstance(unit, str) and unit.removesuffix("s") in UNITS:
        return UNITS[unit.removesuffix("s")]
    if isinstance(unit, str) or not np.isfinite(unit) or unit <= 0:
        raise ValueError(f"{name} must be a positive number or one of {', '.join(UNITS)}, got {unit!r}")
    return float(unit)


def _ids(name, values, count):
    values = np.asarray(values)
    if values.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {values.shape}")
    if not np.issubdtype(values.dtype, np.integer):
        if len(values):
            raise ValueError(f"{name} must hold whole numbers, got {values.dtype}")
        values = values.astype(np.int64)
    bad = values < 0 if count is None else (values < 0) | (values >= count)
    if bad.any():
        expected = "ids from 0" if count is None else f"ids in 0 … {count - 1}"
        raise ValueError(f"{name}[{bad.argmax()}] is {values[bad.argmax()]}; expected {expected}")
    return values.astype(np.int64 if values.dtype.kind == "u" else values.dtype)  # a signed copy


def _is_sorted(user, time):
    step = np.diff(user)
    return bool(np.all((step > 0) | ((step == 0) & (np.diff(time) >= 0))))
