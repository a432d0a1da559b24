"""What a dataset is: its files, where to get them, how to read them, and what comes out."""

import dataclasses
from collections.abc import Callable

import numpy as np

from .files import in_words

TASKS = ("link", "node", "traffic")
DATASETS = {}
"""From a name, such as ``netflix``, to its :class:`Dataset`."""


@dataclasses.dataclass(frozen=True)
class Fetch:
    """A public archive: ``url``, the ``sha256`` of its bytes, the ``members`` to take out of it."""

    url: str
    sha256: str
    members: tuple


@dataclasses.dataclass(frozen=True)
class Dataset:
    """One dataset.

    Attributes
    ----------
    name, title : str
        ``ml-1m`` and ``MovieLens 1M``. Its files are in the folder of that name in the data folder.
    task : {"link", "node", "traffic"}
    layouts : tuple of tuples of str
        Each a list of names or patterns that are needed together (see :func:`easydgl_mini.data.files.find`); the first
        layout that is there is read.
    where : str
        One line: where to get the files.
    read : function (paths, errors, **options) -> (dict of arrays, Report)
        Raw files to arrays of numbers or fixed-width text: what the cache holds.
    make : function (dict of arrays) -> EventLog, NodeData or Readings
    version : int
        Raise it when ``read`` would return something else for the same files: older caches are then built again.
    options : dict
        The options of ``read`` with their defaults.
    defaults : dict
        What the paper uses with this dataset, such as ``time_unit``.
    fetch : Fetch or None
        None where the files need an account, or are public under a name whose content may change: we have not
        checked such a place against a checksum of our own.
    local : tuple of Fetch
        Other archives that hold the files: ``url`` is then the name of a file that you put into the folder.
    expect : dict
        Facts of the public files to check a copy against: ``rows`` (of :attr:`Report.rows`), ``num_users``,
        ``num_items``.
    """

    name: str
    title: str
    task: str
    layouts: tuple
    where: str
    read: Callable
    make: Callable
    version: int = 1
    options: dict = dataclasses.field(default_factory=dict)
    defaults: dict = dataclasses.field(default_factory=dict)
    fetch: Fetch | None = None
    local: tuple = ()
    expect: dict = dataclasses.field(default_factory=dict)

    @property
    def files(self):
        """The expected files, in words."""
        return in_words(self.layouts)


def register(dataset):
    """Enter a dataset into :data:`DATASETS`."""
    if dataset.task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {dataset.task!r}")
    if DATASETS.setdefault(dataset.name, dataset) is not dataset:
        raise ValueError(f"name {dataset.name!r} is taken")
    return dataset


def dataset(name):
    """The :class:`Dataset` of a name."""
    if name not in DATASETS:
        raise ValueError(f"name must be one of {', '.join(sorted(DATASETS))}, got {name!r}")
    return DATASETS[name]


@dataclasses.dataclass(repr=False)
class NodeData:
    """Nodes in time: ``graph`` (a TemporalGraph), ``features`` (N, F), ``labels`` (N,), -1 for none, ``step`` (N,).

    ``report`` and ``fingerprint`` say what was read from which bytes.
    """

    graph: object
    features: np.ndarray
    labels: np.ndarray
    step: np.ndarray
    report: object = None
    fingerprint: str = ""

    def __repr__(self):
        return (
            f"NodeData({len(self.labels):,} nodes, {self.graph.num_edges:,} edges, {self.features.shape[1]} features)"
        )


@dataclasses.dataclass(repr=False)
class Readings:
    """Sensors in time: ``graph``, ``readings`` (T, N), ``times`` (T,) minutes since ``origin``, ``sensors`` (N,) names.

    ``report`` and ``fingerprint`` say what was read from which bytes.
    """

    graph: object
    readings: np.ndarray
    times: np.ndarray
    origin: str
    sensors: np.ndarray
    report: object = None
    fingerprint: str = ""

    def __repr__(self):
        steps, sensors = self.readings.shape
        return f"Readings({steps:,} steps, {sensors:,} sensors, from {self.origin})"
