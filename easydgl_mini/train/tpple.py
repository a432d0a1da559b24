r"""TPPLE: how likely the events were under the model's own rates (chapter *TPPLE*).

.. math:: R = \sum_i \log \lambda^*_{k_i}(t_i) - \int_{t_0}^{t_n} \sum_k \lambda^*_k(s)\, ds

The integral has no closed form under a softplus. :func:`compensator` has three rules for it; :func:`tpple` is the
paper's two-point rule for batches, the term that training adds to a task's loss.
"""

import numpy as np
import torch

RULES = ("trapezoid", "montecarlo", "gauss")
FLOOR = 1e-12  # of a rate inside a logarithm


def compensator(intensity, times, rule="trapezoid", num_points=None, start=0.0, end=None, generator=None):
    r"""Expected number of events, :math:`\Lambda = \int \lambda^*(s)\,ds` from ``start`` to ``end``.

    Parameters
    ----------
    intensity : callable
        ``intensity(i, dt)`` is the rate given the first ``i`` events, ``dt`` after the last of them (after ``start``
        for i = 0): called once with integer and float tensors of one shape (m, p), it returns (m, p), or (m, p, K) with
        one rate per mark, over which the integral sums.
    times : tensor, shape (n,)
        Event times, in order, at or after ``start``.
    rule : {"trapezoid", "montecarlo", "gauss"}
        How each interval between events is integrated. The trapezoid's error falls with the square of the number of
        points, Monte Carlo is unbiased, Gauss-Legendre is exact for polynomials of degree 2 ``num_points`` - 1.
    num_points : int, optional
        Evaluations per interval: 2 by default for the trapezoid (the paper's eqn:nu), 16 for the others.
    start, end : float
        Limits of the integral; ``end`` is the last event's time by default.
    generator : torch.Generator, optional
        For Monte Carlo.

    Returns
    -------
    tensor, scalar

    Examples
    --------
    >>> hawkes = lambda i, dt: 0.5 + (i > 0) * 0.8 * torch.exp(-dt)      # forgets all but the last event
    >>> round(compensator(hawkes, torch.tensor([1.0, 2.0]), rule="gauss").item(), 4)    # 2 * 0.5 + 0.8 (1 - 1/e)
    1.5057
    """
    times = _times(times, start)
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")
    num_points = (2 if rule == "trapezoid" else 16) if num_points is None else num_points
    least = 2 if rule == "trapezoid" else 1
    if int(num_points) != num_points or num_points < least:
        raise ValueError(f"num_points must be a whole number of at least {least} for {rule!r}, got {num_points!r}")
    edges = torch.cat([times.new_tensor([start]), times])
    if end is not None:
        if end < edges[-1]:
            raise ValueError(f"end must not be before the last event, {edges[-1].item()}, got {end}")
        edges = torch.cat([edges, times.new_tensor([end])])
    gaps = edges.diff()  # (m,): the i-th is lived after i events
    if rule == "montecarlo":
        nodes = torch.rand(len(gaps), num_points, dtype=times.dtype, device=times.device, generator=generator)
        weights = torch.full_like(nodes, 1 / num_points)
    elif rule == "gauss":
        x, w = np.polynomial.legendre.leggauss(num_points)
        nodes = torch.as_tensor((x + 1) / 2, dtype=times.dtype, device=times.device).expand(len(gaps), -1)
        weights = torch.as_tensor(w / 2, dtype=times.dtype, device=times.device)
    else:
        nodes = torch.linspace(0, 1, num_points, dtype=times.dtype, device=times.device).expand(len(gaps), -1)
        weights = torch.full((num_points,), 1 / (num_points - 1), dtype=times.dtype, device=times.device)
        weights[[0, -1]] /= 2
    i = torch.arange(len(gaps), device=times.device).unsqueeze(-1).expand_as(nodes)
    rates = _rates(intensity, i, gaps.unsqueeze(-1) * nodes).sum(-1)  # (m, p)
    return (gaps.unsqueeze(-1) * weights * rates).sum()


def log_likelihood(intensity, times, marks, rule="gauss", num_points=None, start=0.0, end=None, generator=None):
    r"""Log-likelihood of a marked point pattern, :math:`\sum_i \log \lambda^*_{k_i}(t_i) - \Lambda`.

    Parameters are those of :func:`compensator`; ``marks`` (n,) are the events' types. The rate at an event is the left
    limit: given the events before it.

    Examples
    --------
    >>> poisson = lambda i, dt: torch.tensor([2.0, 1.0]).expand(*dt.shape, 2)
    >>> log_likelihood(poisson, torch.tensor([0.5, 1.0]), torch.tensor([0, 1]), end=3.0)    # log 2 + log 1 - 3 * 3
    tensor(-8.3069)
    """
    times = _times(times, start)
    marks = torch.as_tensor(marks, device=times.device)
    if marks.shape != times.shape or marks.is_floating_point():
        raise ValueError(f"marks must be whole numbers, one per event, ({len(times)},), got {tuple(marks.shape)}")
    gaps = torch.cat([times.new_tensor([start]), times]).diff()
    i = torch.arange(len(times), device=times.device)
    rates = _rates(intensity, i.unsqueeze(-1), gaps.unsqueeze(-1)).squeeze(1)  # (n, K)
    bad = (marks < 0) | (marks >= rates.shape[-1])
    if bad.any():
        first = int(bad.nonzero()[0, 0])
        raise ValueError(f"marks[{first}] is {marks[first].item()}; expected a mark in 0 … {rates.shape[-1] - 1}")
    seen = rates.gather(-1, marks.long().unsqueeze(-1)).clamp_min(FLOOR).log().sum()
    return seen - compensator(intensity, times, rule, num_points, start, end, generator)


def tpple(lam_left, lam_right, marks, gaps, mask=None):
    r"""The paper's regulariser :math:`\mathbf E_u R` with the two-point rule (eq:ctreg with eqn:nu).

    Row j of a sequence is the interval that *ends* at its j-th event. Both rates of an interval come from the same
    state, so that the right one is the left limit at the event that ends it.

    Parameters
    ----------
    lam_left, lam_right : tensors, shape (B, T, K)
        Rates at the beginning and at the end of each interval.
    marks : int tensor, shape (B, T), or float tensor, shape (B, T, K)
        The mark of the event that ends the interval, or how many events of each mark it has (tied events, merged by
        :func:`merge_ties`).
    gaps : tensor, shape (B, T)
        Length of each interval.
    mask : bool tensor, shape (B, T), optional
        True = a real event.

    Returns
    -------
    tensor, scalar
        To be *added* to what is maximised: the loss subtracts :math:`\gamma` times this.
    """
    shape = lam_right.shape[:-1]
    if lam_left.shape != lam_right.shape or gaps.shape != shape or (mask is not None and mask.shape != shape):
        raise ValueError(
            f"lam_left and lam_right must be (B, T, K), gaps and mask (B, T); got {tuple(lam_left.shape)}, "
            f"{tuple(lam_right.shape)}, {tuple(gaps.shape)} and {None if mask is None else tuple(mask.shape)}"
        )
    log_rates = lam_right.clamp_min(FLOOR).log()
    if marks.shape == lam_right.shape:
        seen = (marks * log_rates).sum(-1)
    else:
        real = marks if mask is None else torch.where(mask, marks, 0)
        seen = log_rates.gather(-1, real.unsqueeze(-1)).squeeze(-1)
    expected = gaps / 2 * (lam_left + lam_right).sum(-1)
    each = seen - expected
    each = each if mask is None else torch.where(mask, each, 0)
    return each.sum(-1).mean()


def merge_ties(marks, gaps, mask, num_marks):
    """Merge events at the same time into one event with several marks, so that no interval has length zero.

    Without this a tied event adds log λ but no integral, and λ could grow without bound. The first event of a
    sequence (gap zero, nothing before it) ends no interval and is left out as well.

    Parameters
    ----------
    marks : int tensor, shape (B, T)
    gaps : tensor, shape (B, T)
    mask : bool tensor, shape (B, T)
    num_marks : int

    Returns
    -------
    counts : float tensor, shape (B, T, K)
        How many events of each mark end the interval; zeros where it is not one.
    mask : bool tensor, shape (B, T)
        True at intervals of positive length.

    Examples
    --------
    >>> marks, gaps = torch.tensor([[0, 1, 1]]), torch.tensor([[2.0, 0.0, 3.0]])
    >>> counts, kept = merge_ties(marks, gaps, torch.ones(1, 3).bool(), 2)
    >>> counts[0].tolist(), kept[0].tolist()
    ([[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]], [True, False, True])
    """
    opens = mask & (gaps > 0)
    group = torch.cumsum(opens, -1)  # events of one instant share a number; 0: before the first interval
    one_hot = torch.nn.functional.one_hot(torch.where(mask, marks, 0), num_marks).to(gaps.dtype)
    one_hot = one_hot * (mask & (group > 0)).unsqueeze(-1)
    totals = one_hot.new_zeros(marks.shape[0], marks.shape[1] + 1, num_marks)
    totals.scatter_add_(1, group.unsqueeze(-1).expand_as(one_hot), one_hot)
    counts = totals.gather(1, group.unsqueeze(-1).expand_as(one_hot))
    return counts * opens.unsqueeze(-1), opens


def smoothness(h, mask=None):
    r"""The term TPPLE replaces: mean of :math:`\|h_j - h_{j-1}\|^2` over consecutive embeddings, h (B, T, d)."""
    steps = (h[:, 1:] - h[:, :-1]).square().sum(-1)
    if mask is None:
        return steps.mean()
    both = mask[:, 1:] & mask[:, :-1]
    return (steps * both).sum() / both.sum().clamp_min(1)


def _rates(intensity, i, dt):
    """What ``intensity`` says, as (m, p, K)."""
    rates = torch.as_tensor(intensity(i, dt))
    if rates.shape == dt.shape:
        rates = rates.unsqueeze(-1)
    if rates.ndim != dt.ndim + 1 or rates.shape[:-1] != dt.shape:
        raise ValueError(
            f"intensity must return shape {tuple(dt.shape)} or {(*dt.shape, 'K')}, got {tuple(rates.shape)}"
        )
    if not torch.isfinite(rates).all() or (rates < 0).any():
        raise ValueError("intensity must return finite rates that are not negative")
    return rates


def _times(times, start):
    times = torch.as_tensor(times)
    times = times if times.is_floating_point() else times.to(torch.get_default_dtype())
    if times.ndim != 1:
        raise ValueError(f"times must have one dimension, got shape {tuple(times.shape)}")
    bad = ~torch.isfinite(times) | (torch.cat([times.new_tensor([start]), times]).diff() < 0)
    if bad.any():
        first = int(bad.nonzero()[0, 0])
        raise ValueError(
            f"times[{first}] is {times[first].item()}; expected finite times in order, from start = {start}"
        )
    return times
