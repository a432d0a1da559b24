"""Interpret: what a model knows, frequency by frequency (Part 4 of the book). Arrays are NumPy and SciPy here."""

from .decompose import Spectrum, decompose
from .fourier import Band, band, band_by_value, gft, igft, item_affinity, laplacian, smoothness
from .perturb import perturb
from .report import Report, check_ranking_metrics, report
from .trends import energy, energy_over_time

__all__ = [
    "Band",
    "Report",
    "Spectrum",
    "band",
    "band_by_value",
    "check_ranking_metrics",
    "decompose",
    "energy",
    "energy_over_time",
    "gft",
    "igft",
    "item_affinity",
    "laplacian",
    "perturb",
    "report",
    "smoothness",
]
