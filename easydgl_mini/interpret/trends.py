"""Where a model's energy lies, and how that changes as time passes (chapter *How models evolve*)."""

import numpy as np

from .fourier import gft


def energy(spectrum, y, whole=False):
    r"""Share of each frequency in a signal's energy, :math:`\tilde y(\lambda_l)^2 / \sum_m \tilde y(\lambda_m)^2`.

    A user with large scores counts no more than one with small ones. A signal without energy has shares of zero.
    Chapter *How models evolve*.

    Parameters
    ----------
    spectrum : Spectrum
    y : array, shape (N,) or (N, signals)
    whole : bool
        With r < N vectors, False takes shares of what they span (adding up to one) and True shares of the whole signal,
        of :math:`\|y\|^2` (adding up to less, by what lies outside).

    Returns
    -------
    array, shape (r,) or (r, signals)

    Examples
    --------
    >>> from easydgl_mini.interpret import decompose
    >>> pair = decompose(np.array([[1.0, -1.0], [-1.0, 1.0]]), rank=2)
    >>> energy(pair, np.array([3.0, 1.0])).round(3)       # 2 in the sum, 1 in the difference: 4 to 1
    array([0.8, 0.2])
    """
    squares = np.square(gft(spectrum, y), dtype=np.float64)
    total = np.square(y, dtype=np.float64).sum(0) if whole else squares.sum(0)
    return np.divide(squares, total, out=np.zeros_like(squares), where=total > 0)


def energy_over_time(predict, spectrum, elapsed, relative=False, whole=False):
    """Mean share of each frequency as a function of the time that has passed.

    Parameters
    ----------
    predict : callable
        ``predict(dt)`` gives the signals, (N,) or (N, signals), a time ``dt`` after the last event.
    spectrum : Spectrum
    elapsed : sequence of float, shape (T,)
    relative : bool
        Divide by the first row: by which factor a share grew or shrank. A frequency without energy there gives NaN.
    whole : bool
        As in :func:`energy`.

    Returns
    -------
    array, shape (T, r)
        Means over signals of :func:`energy`. Chapter *How models evolve*.
    """
    elapsed = list(elapsed)
    if not elapsed:
        raise ValueError("elapsed: got no times, expected at least one")
    rows = []
    for dt in elapsed:
        shares = energy(spectrum, predict(dt), whole)
        rows.append(shares if shares.ndim == 1 else shares.mean(1))
    table = np.stack(rows)
    if not relative:
        return table
    return np.divide(table, table[0], out=np.full_like(table, np.nan), where=table[0] > 0)
