"""Raw files of public datasets to events, graphs and readings (chapters *Link prediction*, *Node classification*,
*Traffic forecasting*).

    log = em.data.load("ml-1m", "data")      # reads data/ml-1m/, keeps a cache in data/.easydgl-cache/
    print(log.report)                        # rows read, kept and dropped, with reasons: they add up

:data:`DATASETS` has every dataset by name, with the files it needs and where to get them. To add one: a module here
that calls ``register(Dataset(...))``.
"""

import importlib
import pkgutil
from pathlib import Path

from . import cache as _cache
from . import files
from .download import fetch
from .files import DataError, Report
from .registry import DATASETS, Dataset, Fetch, NodeData, Readings, dataset, register

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "DATASETS",
    "DataError",
    "Dataset",
    "Fetch",
    "NodeData",
    "Readings",
    "Report",
    "dataset",
    "fetch",
    "folder_of",
    "load",
    "prepare",
    "register",
    "simulated",
    "verify",
]


def folder_of(name, folder):
    """The folder of a dataset's files: ``folder/name``, or ``folder`` itself where that is not there and files are."""
    inner, folder = Path(folder) / name, Path(folder)
    patterns = {pattern for layout in dataset(name).layouts for pattern in layout}
    here = not inner.is_dir() and any(path.is_file() for pattern in patterns for path in folder.glob(pattern + "*"))
    return folder if here else inner


def load(name, folder, *, errors="raise", cache=True, **options):
    """A dataset from its raw files, or from the cache of an earlier call.

    Parameters
    ----------
    name : str
        A key of :data:`DATASETS`.
    folder : path
        The data folder; the files are in ``folder/name`` (or in ``folder`` itself).
    errors : {"raise", "drop"}
        A row that does not fit its format stops the reading with a :class:`DataError` (file, line, reason), or is
        dropped and counted.
    cache : bool or path
        Keep prepared data in ``folder/.easydgl-cache`` (True), in a folder of your own, or not at all (False).
    **options
        See the dataset's ``options``.

    Returns
    -------
    EventLog, NodeData or Readings
        With ``report`` and ``fingerprint``.
    """
    prepared = prepare(name, folder, errors=errors, cache=cache, **options)
    data = dataset(name).make(prepared.arrays)
    data.report, data.fingerprint = prepared.report, prepared.fingerprint
    return data


def prepare(name, folder, *, errors="raise", cache=True, **options):
    """Read and cache a dataset; returns :class:`cache.Prepared`. Arguments as in :func:`load`."""
    entry, paths, settings = _asked(name, folder, errors, options)

    def build():
        arrays, report = entry.read(paths, **settings)
        if not report.kept:
            raise DataError(paths[0], None, f"nothing is left of it: {report}")
        return arrays, report

    prepared = _cache.prepare(name, entry.version, settings, paths, build, _cache_folder(folder, cache))
    for text in _unlike_public(name, folder, {"rows": prepared.report.rows}):
        prepared.report.note(text)
    return prepared


def verify(name, folder, *, errors="raise", cache=True, **options):
    """What is wrong with a dataset's files and cache: a list of sentences, empty if nothing is.

    Every raw file is read and hashed again, whatever its date says, and parsed; a cache that is there must hold the
    same arrays.
    """
    entry, paths, settings = _asked(name, folder, errors, options)
    kept = _cache_folder(folder, cache)
    digests = [_cache.sha256(path) for path in paths]
    fingerprint = _cache.fingerprint_of(name, entry.version, settings, paths, digests)
    wrong = []
    found, why = (None, "") if kept is None else _cache.load(_cache.place(kept, name, settings), fingerprint)
    if found is None and why and why != _cache.NONE_YET:
        wrong.append(f"{why}: run prepare")
    arrays, report = entry.read(paths, **settings)
    if found is not None and not _same(arrays, found.arrays):
        wrong.append(f"{found.path}: the cache does not hold what the files say; remove it and run prepare")
    facts = {"rows": report.rows} | {key: int(arrays[key]) for key in ("num_users", "num_items") if key in arrays}
    return wrong + _unlike_public(name, folder, facts)


def simulated(name, folder):
    """Whether a dataset's files were simulated: their truth lies beside them."""
    return (folder_of(name, folder) / "truth.npz").exists()


def _unlike_public(name, folder, facts):
    """Where a copy is not like the public files, as far as their sizes are known: a list of sentences."""
    whose = ", which are simulated," if simulated(name, folder) else ""
    expect = dataset(name).expect
    wrong = {key: value for key, value in expect.items() if facts.get(key, value) != value}
    return [f"{key}: the public files have {n:,}, these{whose} have {facts[key]:,}" for key, n in wrong.items()]


def _same(some, other):
    return some.keys() == other.keys() and all(
        some[key].dtype == other[key].dtype and some[key].tobytes() == other[key].tobytes() for key in some
    )


def _asked(name, folder, errors, options):
    entry = dataset(name)
    files.check_errors(errors)
    unknown = set(options) - set(entry.options)
    if unknown:
        known = ", ".join(entry.options) or "none"
        raise ValueError(f"{name} has no option {sorted(unknown)[0]!r}; its options are {known}")
    try:
        paths = files.find(folder_of(name, folder), entry.layouts, entry.title)
    except DataError as error:
        how = f"easydgl-mini data fetch {name} --data {folder}" if entry.fetch else entry.where
        raise DataError(error.file, None, f"{error.reason} (to get it: {how})") from None
    return entry, paths, {**entry.options, **options, "errors": errors}


def _cache_folder(folder, where):
    if where is False or where is None:
        return None
    return Path(folder) / _cache.FOLDER if where is True else Path(where)
