"""Remove a band of frequencies from a signal, or transplant it from another model (chapter *Perturbations*)."""

from functools import reduce
from operator import or_

import numpy as np

from .fourier import Band, finite, signals

CHUNK = 2048  # signals at a time


def perturb(y, spectrum, band, complement=False, donor=None, standardize=True):
    r"""Take the content of band S out of ``y``; put the donor's in its place if there is one.

    .. math::
        \text{intra: } y - \sum_{l\in S} u_l u_l^\top y, \qquad
        \text{inter: } y - \sum_{l\in S} u_l u_l^\top y + \sum_{l\in S} u_l u_l^\top y_{\text{donor}}

    After the first the transform of the result is zero on S and unchanged elsewhere; after the second it is the donor's
    on S and that of ``y`` elsewhere (the paper's two propositions; chapter *Perturbations*).

    Parameters
    ----------
    y : array, shape (N,) or (N, signals)
        Predictions or embeddings, one column per user or dimension. (users, items) scores enter as their transpose.
    spectrum : Spectrum
    band : Band or sequence of Bands
        Several bands are joined.
    complement : bool
        With r < N vectors part of a signal lies outside their span. False leaves it alone; True counts it as part of
        the band. The two can differ a lot: "above frequency 500" means one thing inside the basis and another outside.
    donor : array, the shape of ``y``, optional
    standardize : bool
        Bring each signal of the donor to the mean and the spread of the signal it goes into, before mixing. Multiplying
        all of a model's scores by ten doesn't change its ranking and should not change the mixture's either. A donor
        equal to ``y`` changes nothing. A donor signal that is constant has no spread: it counts as the mean of ``y``.

    Returns
    -------
    array of the shape and floating type of ``y``

    Examples
    --------
    >>> from easydgl_mini.interpret import band, decompose
    >>> pair = decompose(np.array([[1.0, -1.0], [-1.0, 1.0]]), rank=2)       # frequencies 0 (sum) and 2 (difference)
    >>> perturb(np.array([3.0, 1.0]), pair, band(pair, start=1))
    array([2., 2.])
    >>> perturb(np.array([3.0, 1.0]), pair, band(pair, start=1), donor=np.array([0.0, 8.0]), standardize=False)
    array([-2.,  6.])
    """
    n, r = spectrum.vectors.shape
    y = signals("y", y, n)
    band = band if isinstance(band, Band) else reduce(or_, band)
    if band.size != r:
        raise ValueError(f"band: made for a spectrum of {band.size} frequencies, this one has {r}")
    if donor is not None:
        donor = signals("donor", donor, n)
        if donor.shape != y.shape:
            raise ValueError(f"donor: got shape {donor.shape}, expected that of y, {y.shape}")
    index = np.setdiff1d(np.arange(r), band.index) if complement else band.index
    U = spectrum.vectors[:, index].astype(y.dtype, copy=False)
    out = np.empty_like(y)
    columns, result = (y[:, None], out[:, None]) if y.ndim == 1 else (y, out)
    given = None if donor is None else donor.reshape(columns.shape)
    with np.errstate(all="ignore"):  # what is not finite is refused below, with its place
        for i in range(0, columns.shape[1], CHUNK):
            here = slice(i, i + CHUNK)
            part = columns[:, here]
            other = None if given is None else given[:, here].astype(y.dtype, copy=False)
            if other is not None and standardize:
                other = _matched(other, part)
            change = -part if other is None else other - part
            inside = _through(U, change)
            result[:, here] = part + (change - inside if complement else inside)
    if not np.isfinite(result).all():
        finite("y", result, y)
        finite("donor", result, donor)
    return out


def _through(U, change):
    """The part of ``change`` that the columns of U span, in the memory order that ``change`` has."""
    if change.flags.f_contiguous and not change.flags.c_contiguous:
        return ((change.T @ U) @ U.T).T
    return U @ (U.T @ change)


def _matched(donor, y):
    """The donor's signals with the mean and standard deviation of those of ``y``."""
    spread = donor.std(0)
    flat = spread <= 10 * np.finfo(donor.dtype).eps * np.abs(donor).max(0)
    factor = np.where(flat, 0, y.std(0) / np.where(flat, 1, spread)).astype(y.dtype)
    return (donor - donor.mean(0)) * factor + y.mean(0)
