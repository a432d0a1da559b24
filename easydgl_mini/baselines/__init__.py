"""The systems the paper compares with, one short module each: a layer or a model; data, loop and metrics are shared.

To add one: a file here with an estimator under ``@register(name, title, task)`` (a subclass of ``Recommender``,
``Classifier`` or ``Forecaster`` that gives a model), and a test of a property that only the right implementation has.
``easydgl-mini reproduce TABLE --rows NAME`` then runs it. To be part of a table it needs its name in the rows of
``reproduce/protocol.py``; for the chapter *The baselines*, in its ``FAMILIES`` and ``OURS``. CONTRIBUTING.md has the
list.
"""

import importlib
import pkgutil

from .registry import REGISTRY, Baseline, register

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["REGISTRY", "Baseline", "register"]
