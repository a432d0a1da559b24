"""Where a model's energy lies, and how that changes as time passes (chapter *How models evolve*)."""

import numpy as np

from .fourier import gft


def energy(spectrum, y):
    r"""Share of each frequency in a signal's energy, :math:`\tilde y(\lambda_l)^2 / \sum_m \tilde y(\lambda_m)^2`.

    The transform is l2-normalised per signal, so that a user with large scores counts no more than one with small ones;
    the shares of a signal add up to one (zeros for a signal without any energy in the spectrum). What r < N vectors
    don't span does not count. Chapter *How models evolve*.

    Parameters
    ----------
    spectrum : Spectrum
    y : array, shape (N,) or (N, signals)

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
    total = squares.sum(0)
    return np.divide(squares, total, out=np.zeros_like(squares), where=total > 0)


def energy_over_time(predict, spectrum, elapsed, relative=False):
    """Mean share of each frequency as a function of the time that has passed.

    Parameters
    ----------
    predict : callable
        ``predict(dt)`` gives the signals, (N,) or (N, signals), a time ``dt`` after the last event.
    spectrum : Spectrum
    elapsed : sequence of float, shape (T,)
    relative : bool
        Divide by the first row: by which factor a share grew or shrank. A frequency without energy there gives NaN.

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
        shares = energy(spectrum, predict(dt))
        rows.append(shares if shares.ndim == 1 else shares.mean(1))
    table = np.stack(rows)
    if not relative:
        return table
    return np.divide(table, table[0], out=np.full_like(table, np.nan), where=table[0] > 0)
