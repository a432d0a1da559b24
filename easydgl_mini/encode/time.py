"""The clock: a sinusoidal encoding of time, and what a calendar says of a timestamp (chapters of *Encode*)."""

import math
from datetime import datetime

import numpy as np
import torch

from ..events import time_scale

CALENDAR_DIM = 8
"""Width of what :func:`calendar` returns: sine and cosine of month, day, weekday and hour."""


def time_encoding(t, dim):
    r"""Sinusoidal encoding of time (chapter *Modulated attention*; the paper's eq:te with its exponent mended).

    .. math::

        \mathrm{TE}(t, j) = \begin{cases}
            \sin\big(t / 10000^{2\lfloor j/2\rfloor/d}\big) & j \text{ even},\\
            \cos\big(t / 10000^{2\lfloor j/2\rfloor/d}\big) & j \text{ odd},
        \end{cases}
        \qquad j = 0, \dots, d-1 .

    Components :math:`2m` and :math:`2m+1` are one hand of a clock, :math:`(\sin, \cos)` of the same angle, so for even
    :math:`d` the inner product of two encodings depends on the two times only through their difference. An odd ``dim``
    is allowed: the last component is then a sine without its cosine, and that property holds for the others.

    Parameters
    ----------
    t : Tensor, array or number, shape (...)
        Times, in the unit you work in: the fastest hand turns once in :math:`2\pi` units.
    dim : int
        Width :math:`d \ge 1`.

    Returns
    -------
    Tensor, shape (..., dim)
        Of the dtype of ``t`` where that is a floating tensor or array, else of torch's default dtype. Angles are
        taken in float64, so a large ``t`` loses only what its own dtype had lost already. NaN times give NaN.

    Examples
    --------
    >>> time_encoding(torch.tensor([0.0, math.pi / 2]), 2).round(decimals=4) + 0.0
    tensor([[0., 1.],
            [1., 0.]])
    """
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 1:
        raise ValueError(f"dim must be a positive integer, got {dim!r}")
    t, dtype = _times(t)
    hand = torch.arange((dim + 1) // 2, device=t.device)  # m: components 2m and 2m + 1
    frequency = 10_000.0 ** (-2.0 * hand.double() / dim)
    angle = t.double().unsqueeze(-1) * frequency  # (..., hands)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)[..., :dim].to(dtype)


def calendar_fields(t, unit="seconds", origin="1970-01-01"):
    """Month (1-12), day of the month (1-31), weekday (Monday 0 to Sunday 6) and hour (0-23) of timestamps, in UTC.

    The Gregorian calendar repeats every 400 years, 146,097 days: a timestamp's month is found by bisection among the
    4,800 month starts of one such cycle. Times before the origin are negative and just as welcome. Time is resolved to
    the millisecond, so that whole hours given as fractions of a week fall on the hour in spite of rounding.

    Parameters
    ----------
    t : Tensor, array or number, shape (...)
        Times since ``origin``. Seconds of today need float64 or integers: float32 resolves them to two minutes only.
    unit : {"milliseconds", "seconds", "minutes", "hours", "days", "weeks"} or float
        The unit of ``t``, by name or in seconds.
    origin : str or datetime
        What ``t = 0`` means: an ISO date or date-time without a time zone, read as UTC. No daylight saving, no leap
        seconds.

    Returns
    -------
    Tensor of int64, shape (..., 4)

    Examples
    --------
    >>> calendar_fields(1_709_209_800)  # Thursday 29 February 2024, 12:30 UTC
    tensor([ 2, 29,  3, 12])
    >>> calendar_fields([-1.0, 24.0], unit="hours", origin="2024-03-01")
    tensor([[ 2, 29,  3, 23],
            [ 3,  2,  5,  0]])
    """
    t, _ = _times(t)
    milliseconds = (t.double() * (time_scale(unit, "unit") * 1000.0)).round()
    bad = ~(milliseconds.abs() < 2**62)  # NaN and infinity fail the comparison too
    if bad.any():
        where = tuple(bad.nonzero()[0].tolist())
        raise ValueError(f"t must be finite and within 10^8 years, got {t[where].item()} at index {where}")
    seconds = torch.div(milliseconds.long(), 1000, rounding_mode="floor") + _origin_seconds(origin)
    days = torch.div(seconds, 86_400, rounding_mode="floor")  # since Thursday 1 January 1970
    starts = np.arange("1970-01", "2370-01", dtype="datetime64[M]").astype("datetime64[D]").astype(np.int64)
    starts = torch.as_tensor(starts, device=t.device)
    in_cycle = days % 146_097
    month = torch.searchsorted(starts, in_cycle, right=True) - 1  # months since January of the cycle's first year
    fields = month % 12 + 1, in_cycle - starts[month] + 1, (days + 3) % 7, seconds % 86_400 // 3_600
    return torch.stack(fields, dim=-1)


def calendar(t, unit="seconds", origin="1970-01-01"):
    r"""What the calendar says at time ``t``: the vector :math:`\mathbf d_u^{(t)}` of the paper's eq:tt_alpha.

    Month, day of the month, weekday and hour, each as a point on a circle:

    .. math::

        \big(\sin 2\pi x, \cos 2\pi x\big) \quad\text{for}\quad
        x = \tfrac{\text{month} - 1}{12},\ \tfrac{\text{day} - 1}{31},
        \ \tfrac{\text{weekday}}{7},\ \tfrac{\text{hour}}{24} .

    December lies next to January and Sunday next to Monday, every component is in :math:`[-1, 1]`, the width is fixed
    (:data:`CALENDAR_DIM` = 8), and different (month, day, weekday, hour) have different vectors: fit for an MLP.
    The features are constant within the hour. For the whole numbers themselves see :func:`calendar_fields`.

    Parameters
    ----------
    t, unit, origin
        As in :func:`calendar_fields`: Unix seconds unless you say otherwise, UTC always.

    Returns
    -------
    Tensor, shape (..., 8)
        In the order sin month, cos month, sin day, cos day, sin weekday, cos weekday, sin hour, cos hour; of the
        dtype of ``t`` where that is a floating tensor or array, else of torch's default dtype.

    Examples
    --------
    >>> noon = calendar(torch.tensor(12), unit="hours", origin="2024-01-01")  # a Monday, 1 January
    >>> noon.round(decimals=3) + 0.0
    tensor([ 0.,  1.,  0.,  1.,  0.,  1.,  0., -1.])
    """
    t, dtype = _times(t)
    fields = calendar_fields(t, unit, origin)
    first = torch.tensor([1, 1, 0, 0], device=t.device)
    period = torch.tensor([12, 31, 7, 24], device=t.device)
    angle = 2.0 * math.pi * (fields - first).double() / period
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2).to(dtype)


def _times(t):
    """``t`` as a tensor of real numbers (float64 if it came as plain Python numbers), and the dtype to answer in."""
    dtype = torch.get_default_dtype()
    if isinstance(t, np.ndarray | np.generic | torch.Tensor):
        t = torch.as_tensor(t)
        dtype = t.dtype if t.is_floating_point() else dtype
    else:
        t = torch.as_tensor(np.asarray(t))
    if t.is_complex() or t.dtype == torch.bool:
        raise ValueError(f"t must be real numbers, got dtype {t.dtype}")
    return t, dtype


def _origin_seconds(origin):
    """Seconds from 1970-01-01 to ``origin``."""
    try:
        moment = origin if isinstance(origin, datetime) else datetime.fromisoformat(origin)
    except (TypeError, ValueError):
        raise ValueError(f"origin must be an ISO date such as '1970-01-01', got {origin!r}") from None
    if moment.tzinfo is not None:
        raise ValueError(f"origin must have no time zone (it is read as UTC), got {origin!r}")
    since = moment - datetime(1970, 1, 1)
    return since.days * 86_400 + since.seconds
