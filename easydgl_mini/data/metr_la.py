r"""METR-LA and PEMS-BAY: speeds on the highways of Los Angeles and of the Bay Area (chapter *Traffic forecasting*).

Folder layout: one file of readings and one of the sensor graph::

    metr-la/metr-la.h5     pandas' HDF (needs the package h5py), or
            metr-la.csv    a header of sensor ids, one line per time, with or without a column of times in front, or
            metr-la.npz    an array ``data`` of shape (T, N) or (T, N, F), of which the first of F is read
    metr-la/adj_mx.pkl                                          the usual pickle: ids, id to index, matrix; or
            distances_la_2012.csv (+ graph_sensor_ids.txt)      from,to,cost, with or without that header

The files of the graph may be in ``sensor_graph/``. ``graph_sensor_ids.txt`` is needed with ``.npz`` only; its ids are
separated by commas or line ends. The same goes for ``pems-bay.*``, ``adj_mx_bay.pkl`` and
``distances_bay_2017.csv`` of PEMS-BAY. What comes out:

- *Readings* (T, N), float32. A zero is a missing reading, not a speed of zero; an empty field and NaN become zeros too.
- *Times* are minutes since 00:00 of ``origin``, the date of the first reading, five minutes apart. A file without times
  starts at ``start`` (2012-03-01, 2017-01-01). Where times are left out (PEMS-BAY skips an hour in March, when clocks
  change) rows of missing readings are put in, and the report says how many. A time that is not a whole number of steps
  from most others is a bad row.
- *Bad rows*, with ``errors="drop"``: without times a row's place is its time, so a bad row becomes one of missing
  readings, and those after it stay where they were. It counts as dropped all the same, and the report notes it.
- *Graph*: an edge i → j of weight :math:`w_{ij}` where the matrix has an entry, self-loops included, as in the file.
  From distances it is DCRNN's Gaussian kernel, :math:`w_{ij} = \exp(-d_{ij}^2 / \sigma^2)` with :math:`\sigma` the
  standard deviation of all distances between the sensors, and no edge where it is below 0.1.

The pickle goes through :func:`easydgl_mini.data.unpickle.load_arrays`, which calls nothing that a file asks for.
"""

import io
import re
import zipfile

import numpy as np

from ..graph import TemporalGraph
from . import files
from .files import BLANK, DataError, Report, chunks, open_bytes, read_block
from .floats import WIDE, table
from .registry import Dataset, Readings, register
from .table import rows
from .unpickle import load_arrays

MINUTES = 5
FASTEST = 1000.0  # no reading is above this
THRESHOLD = 0.1
OFF_GRID = f"expected times every {MINUTES} minutes, as most are"
OUTSIDE = f"a reading is not in 0 … {FASTEST:g}"
TIME_COLUMN = ("", "timestamp", "time", "date", "datetime", "index", "unnamed: 0")
NO_H5PY = (
    "reading .h5 needs the package h5py (pip install h5py); or turn it into a .csv, where pandas and tables are: "
    "python -c \"import pandas; pandas.read_hdf('metr-la.h5').to_csv('metr-la.csv')\""
)


def read(paths, errors="raise", start=None):
    """Arrays ``readings``, ``times``, ``origin``, ``sensors``, ``src``, ``dst``, ``weights``, and the report."""
    report = Report()
    kinds, source = {_kind(path): path for path in paths}, paths[0]
    sensors, stamps, values, lost = {"h5": _h5, "npz": _npz, "csv": _csv}[_kind(source)](source, report, errors)
    if not values.size or lost == len(values):
        raise DataError(source, None, "no readings could be read")
    if sensors is None and "ids" in kinds:
        sensors = _sensor_ids(kinds["ids"])
    stamps, values = _in_order(source, stamps, values, report)
    kept = len(values) - lost
    if lost:
        report.note(f"{source.name}: {lost:,} bad rows are now rows of missing readings; the others keep their times")
    if stamps is None:
        first = np.datetime64(_date("start", start), "m")
        stamps = first + MINUTES * np.arange(len(values))
    else:
        stamps, values = _regular(source, stamps, values, report)
    origin = stamps[0].astype("datetime64[D]")
    values = np.where(np.isnan(values), 0, values).astype(np.float32)
    report.note(f"{source.name}: {int((values == 0).sum()):,} of {values.size:,} readings are missing")
    if "pickle" in kinds:
        sensors, (src, dst, weights) = _from_pickle(kinds["pickle"], sensors, values.shape[1], source, report)
        edges = 0
    else:
        if sensors is None or len(sensors) != values.shape[1]:
            count = 0 if sensors is None else len(sensors)
            raise DataError(source, None, f"{values.shape[1]} columns, but {count} sensor ids")
        main = report.rows
        src, dst, weights, edges = _from_distances(kinds["distances"], sensors, report, errors)
        report.beside = report.rows - main
    arrays = {
        "readings": values,
        "times": (stamps - origin).astype(np.float64),
        "origin": np.array(str(origin)),
        "sensors": np.array(sensors, dtype=np.str_),
        "src": src,
        "dst": dst,
        "weights": weights,
    }
    return arrays, report.close(kept + edges)


def _kind(path):
    name = path.name.removesuffix(".gz")
    if name.startswith("distances"):
        return "distances"
    return {"h5": "h5", "npz": "npz", "csv": "csv", "pkl": "pickle", "txt": "ids"}[name.rpartition(".")[2]]


def _date(name, value):
    try:
        return np.datetime64(value, "D")
    except ValueError:
        raise ValueError(f"{name} must be a date such as 2012-03-01, got {value!r}") from None


def _bytes(path):
    with open_bytes(path) as stream:
        return read_block(stream, -1, path)


# ------------------------------------------------------------------------------------------------ readings
# Each reader returns sensor ids (None where the file has none), times (datetime64[m], or None), values (T, N) and how
# many of the T rows stand for a bad one, all NaN.


def _csv(path, report, errors):
    sensors, parts, timed = None, [], False
    for chunk in chunks(path, report, WIDE * files.BLOCK):
        if sensors is None:
            sensors, timed, chunk = _header(chunk, report)
        start, end = chunk.split(b",", len(sensors) + timed)
        times = _stamps(chunk, start[:, 0], end[:, 0]) if timed else np.zeros(len(chunk), "datetime64[m]")
        values = table(chunk, start[:, int(timed) :], end[:, int(timed) :], "a reading", 0.0, FASTEST, missing=True)
        good = chunk.settle(report, errors)
        values[~good] = np.nan
        here = good if timed else ~chunk.because(BLANK)
        parts.append((times[here], values[here], good[here], chunk.numbers[here]))
    times, values, good, lines = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not timed:
        return sensors, None, values, int((~good).sum())
    off = _off_grid(times)
    if off.any() and errors == "raise":
        first = int(off.argmax())
        raise DataError(path, int(lines[first]), f"{OFF_GRID}, got {times[first]}")
    report.drop(OFF_GRID, off.sum())
    return sensors, times[~off], values[~off], 0


def _off_grid(times):
    """Mask of the times (datetime64[m]) that are not on the grid of five minutes that most are on."""
    phase = times.astype(np.int64) % MINUTES
    return phase != np.bincount(phase, minlength=MINUTES).argmax()


def _header(chunk, report):
    """Sensor ids, if a column of times is in front of them, and the lines after the header."""
    written = np.flatnonzero(~chunk.because(BLANK))
    if not len(written):
        raise DataError(chunk.file, 1, "expected a header of sensor ids")
    first, lines = int(written[0]), np.arange(len(chunk))
    chunk.select(lines < first).settle(report)
    fields = [field.strip().strip('"') for field in chunk.row(first).split(",")]
    timed = fields[0].lower() in TIME_COLUMN and len(fields) > 1
    sensors = fields[1:] if timed else fields
    wrong = next((field for field in sensors if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", field)), None)
    if wrong is not None:
        raise DataError(chunk.file, chunk.number_of(first), f"expected a header of sensor ids, got {wrong!r:.60}")
    if len(set(sensors)) < len(sensors):
        again = next(name for n, name in enumerate(sensors) if name in sensors[:n])
        raise DataError(chunk.file, chunk.number_of(first), f"the header has the sensor {again!r} twice")
    return sensors, timed, chunk.select(lines > first)


def _stamps(chunk, start, end):
    """Times such as 2012-03-01 00:05:00, with or without the seconds, in minutes."""
    length = end - start
    text = chunk.text(start, end).astype("S19").view(np.uint8).reshape(len(start), 19)
    bad = ~np.isin(length, (16, 19)) | ~np.isin(text[:, 10], list(b" T")) | (text[:, 13] != 58)
    bad |= (length == 19) & ((text[:, 16] != 58) | (text[:, 17] != 48) | (text[:, 18] != 48))
    chunk.refuse(bad, "the time is not like 2012-03-01 00:05:00")
    begin = np.where(bad, end, start)
    day = chunk.day(begin, np.where(bad, end, start + 10), "the time")
    hour = chunk.whole(np.where(bad, end, start + 11), np.where(bad, end, start + 13), "the hour", 0, 23)
    minute = chunk.whole(np.where(bad, end, start + 14), np.where(bad, end, start + 16), "the minute", 0, 59)
    return (day.astype(np.int64) * 1440 + hour * 60 + minute).astype("datetime64[m]")


def _npz(path, report, errors):
    data = _bytes(path)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(info.file_size for info in archive.infolist()) > 2**33:
                raise DataError(path, None, "unpacks to more than 8 GB")
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            if "data" not in archive.files:
                raise DataError(path, None, f"expected an array called data, got {', '.join(archive.files) or 'none'}")
            values = archive["data"]
    except DataError:
        raise
    except Exception as error:  # a damaged archive can break the reader in many ways
        raise DataError(path, None, f"not a whole .npz without pickles ({error})") from error
    if values.dtype.kind not in "iuf" or values.ndim not in (2, 3) or (values.ndim == 3 and not values.shape[2]):
        raise DataError(
            path, None, f"data is {values.dtype} of shape {values.shape}, expected numbers, (T, N) or (T, N, F)"
        )
    if values.ndim == 3:
        if values.shape[2] > 1:
            report.note(f"{path.name}: the first of {values.shape[2]} features is read")
        values = values[:, :, 0]
    values = values.astype(np.float64)
    good = _settle(path, {OUTSIDE: _outside(values)}, report, errors)
    values[~good] = np.nan
    return None, None, values, int((~good).sum())


def _h5(path, report, errors):
    """pandas' fixed format: axis0 the columns, axis1 the index, block0_values the numbers. Nothing is unpickled."""
    try:
        import h5py
    except ImportError:
        raise DataError(path, None, NO_H5PY) from None
    try:
        with h5py.File(io.BytesIO(_bytes(path)), "r") as file:
            groups = [group for group in file.values() if isinstance(group, h5py.Group) and "block0_values" in group]
            if len(groups) != 1 or "axis0" not in groups[0] or "axis1" not in groups[0]:
                raise DataError(path, None, "expected one table of pandas' fixed format (axis0, axis1, block0_values)")
            parts = [groups[0][name] for name in ("axis0", "axis1", "block0_values")]
            columns, index, values = (part[()] for part in parts)
            kind = parts[1].attrs.get("kind", b"datetime64")
    except DataError:
        raise
    except Exception as error:  # a damaged file can break the reader in many ways
        raise DataError(path, None, f"not a whole HDF5 file ({error})") from error
    kind = kind.decode() if isinstance(kind, bytes) else str(kind)
    unit = re.fullmatch(r"datetime64(?:\[(s|ms|us|ns)\])?", kind)
    if not unit or index.dtype.kind != "i" or columns.dtype.kind not in "SUi" or values.dtype.kind not in "iuf":
        raise DataError(path, None, f"expected a table of numbers with sensor ids over it and times ({kind})")
    if values.shape != (len(index), len(columns)):
        raise DataError(path, None, f"{values.shape} readings, {len(index)} times and {len(columns)} sensors don't fit")
    sensors = [name.decode("latin1") if isinstance(name, bytes) else str(name) for name in columns.tolist()]
    exact, values = index.astype(f"datetime64[{unit[1] or 'ns'}]"), values.astype(np.float64)
    times = exact.astype("datetime64[m]")
    faults = {
        OUTSIDE: _outside(values),
        "the time is missing": np.isnat(exact),
        "the time is not a whole minute": times != exact,
    }
    whole = ~np.any(list(faults.values()), axis=0)
    off = np.zeros(len(times), bool)
    off[whole] = _off_grid(times[whole])
    good = _settle(path, faults | {OFF_GRID: off}, report, errors, exact)
    return sensors, times[good], values[good], 0


def _outside(values):
    """Mask of the rows with a reading that is neither missing nor in 0 … FASTEST."""
    return ((values < 0) | (values > FASTEST)).any(axis=1)


def _settle(path, faults, report, errors, times=None):
    """Mask of the rows without a fault. The first row with one raises, or all are counted, each for its first fault.

    ``faults`` maps a reason to the mask of the rows it is true of; ``times`` of the rows are for the message.
    """
    masks = np.stack(list(faults.values()))  # (faults, rows)
    bad, why = masks.any(axis=0), masks.argmax(axis=0)
    report.read += len(bad)
    if bad.any() and errors == "raise":
        row = int(bad.argmax())
        when = "" if times is None else f" (time {times[row]})"
        raise DataError(path, None, f"row {row}: {list(faults)[why[row]]}{when}")
    for n, reason in enumerate(faults):
        report.drop(reason, (bad & (why == n)).sum())
    return ~bad


def _in_order(path, stamps, values, report):
    """Rows in order of time, each time once."""
    if stamps is None:
        return None, values
    if (np.diff(stamps) < np.timedelta64(0, "m")).any():
        report.note(f"{path.name}: times out of order were sorted")
    order = np.argsort(stamps, kind="stable")
    first = np.concatenate([[True], np.diff(stamps[order]) > np.timedelta64(0, "m")])
    report.drop("time seen before", (~first).sum())
    order = order[first]
    return stamps[order], values[order]


def _regular(path, stamps, values, report):
    """The rows on a grid of five minutes, with missing readings where a time is left out."""
    slot = (stamps - stamps[0]).astype(np.int64) // MINUTES
    total = int(slot[-1]) + 1
    if total > 2 * len(slot) + 10_000:
        raise DataError(
            path, None, f"{len(slot):,} times lie in {total:,} slots of {MINUTES} minutes; is a date wrong?"
        )
    if total == len(slot):
        return stamps, values
    report.note(f"{path.name}: {total - len(slot):,} times are left out; rows of missing readings were put in")
    whole = np.zeros((total, values.shape[1]))
    whole[slot] = values
    return stamps[0] + MINUTES * np.arange(total), whole


# ------------------------------------------------------------------------------------------------ the sensor graph


def _sensor_ids(path):
    """Ids separated by commas, line ends or both; each sensor once."""
    ids = re.split(r"\s*[,\n]\s*", _bytes(path).decode("utf-8-sig", "replace").strip(", \t\r\n"))
    seen = set()
    again = next((name for name in ids if name in seen or seen.add(name)), None)
    if again is not None:
        raise DataError(path, None, f"has the sensor {again!r} twice")
    return ids


def _from_pickle(path, sensors, width, source, report):
    """Sensors (T's columns) and edges in their order, from the pickle of (ids, id to index, matrix)."""
    content = load_arrays(_bytes(path), path)
    if not isinstance(content, list | tuple) or len(content) != 3 or not isinstance(content[2], np.ndarray):
        raise DataError(path, None, "expected three things: sensor ids, id to index, and a matrix")
    ids, index, matrix = content
    if isinstance(ids, np.ndarray) and ids.ndim == 1:
        ids = ids.tolist()
    if not isinstance(ids, list | tuple) or not all(isinstance(name, str | bytes | int) for name in ids):
        raise DataError(path, None, "expected sensor ids first: a list of strings")
    ids = [name.decode("latin1") if isinstance(name, bytes) else str(name) for name in ids]
    if matrix.shape != (len(ids), len(ids)) or matrix.dtype.kind not in "iuf":
        raise DataError(path, None, f"{len(ids)} sensors, but a matrix of shape {matrix.shape}")
    if len(set(ids)) < len(ids) or not isinstance(index, dict) or len(index) != len(ids):
        raise DataError(path, None, "sensor ids and the dictionary of their places don't fit")
    places = {k.decode("latin1") if isinstance(k, bytes) else str(k): v for k, v in index.items()}
    if any(places.get(name) != n for n, name in enumerate(ids)):
        raise DataError(path, None, "sensor ids and the dictionary of their places don't fit")
    matrix = matrix.astype(np.float64)
    if not (np.isfinite(matrix) & (matrix >= 0)).all():
        raise DataError(path, None, "a weight is negative or not finite")
    sensors = ids if sensors is None else sensors
    if len(sensors) != width or set(sensors) != set(ids):
        odd = next((name for name in sensors if name not in places), None)
        why = f"{len(ids)} sensors, not the {width}" if odd is None else f"no sensor {odd!r}, one of the {width}"
        ask = "; is line 1 there a header?" if source.name.removesuffix(".gz").endswith(".csv") else ""
        raise DataError(path, None, f"it has {why} of {source.name}{ask}")
    if sensors != ids:
        report.note(f"{path.name}: sensors were put into the order of {source.name}")
        order = [places[name] for name in sensors]
        matrix = matrix[np.ix_(order, order)]
    src, dst = np.nonzero(matrix)
    return sensors, (src, dst, matrix[src, dst])


def _from_distances(path, sensors, report, errors):
    """Edges, and the number of distances they are made from."""
    names = np.array(sensors, dtype=np.bytes_)
    order, parts = np.argsort(names), [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
    for chunk, field in rows(path, report, b",", ("from", "to", "cost"), header="welcome"):
        one, two = (_place(names, order, chunk.text(*field[name])) for name in ("from", "to"))
        cost = chunk.number(*field["cost"], "cost", 0.0, 1e9)
        good = chunk.settle(report, errors)
        parts.append((one[good], two[good], cost[good]))
    src, dst, cost = (np.concatenate(column) for column in zip(*parts, strict=True))
    known = (src >= 0) & (dst >= 0)
    report.drop("distance of a sensor that has no readings", (~known).sum())
    src, dst, cost = src[known], dst[known], cost[known]
    code = (src * np.int64(len(sensors)) + dst)[::-1]  # of a pair that is there twice the last counts
    last = np.sort(len(code) - 1 - np.unique(code, return_index=True)[1])
    report.drop("distance that comes again", len(src) - len(last))
    src, dst, cost = src[last], dst[last], cost[last]
    if not len(cost):
        raise DataError(path, None, "no distance between sensors with readings")
    weights = gaussian_kernel(cost)
    near = weights >= THRESHOLD
    report.note(f"{path.name}: {int((~near).sum()):,} distances are too long for an edge (weight below {THRESHOLD})")
    return src[near], dst[near], weights[near], len(cost)


def _place(names, order, wanted):
    place = order[np.minimum(np.searchsorted(names, wanted, sorter=order), len(names) - 1)]
    return np.where(names[place] == wanted, place, -1)


def gaussian_kernel(distances):
    r"""Weights :math:`\exp(-d^2 / \sigma^2)`, with :math:`\sigma` the standard deviation of the distances.

    Examples
    --------
    >>> gaussian_kernel(np.array([0.0, 2.0])).round(4).tolist()      # σ = 1
    [1.0, 0.0183]
    """
    distances = np.asarray(distances, dtype=np.float64)
    spread = distances.std()
    if spread == 0:
        return np.ones_like(distances)
    return np.exp(-np.square(distances / spread))


def make(arrays):
    """Arrays of :func:`read` as :class:`Readings`."""
    graph = TemporalGraph(arrays["src"], arrays["dst"], len(arrays["sensors"]), weights=arrays["weights"])
    return Readings(graph, arrays["readings"], arrays["times"], str(arrays["origin"]), arrays["sensors"])


def _enter(name, title, start, readings, pickle, distances, rows, where):
    places = ("", "sensor_graph/")
    layouts = [(file, place + pickle) for file in readings for place in places]
    for file in readings:
        names = (distances, "graph_sensor_ids.txt") if file.endswith(".npz") else (distances,)
        layouts += [(file, *(place + name for name in names)) for place in places]
    register(
        Dataset(
            name=name,
            title=title,
            task="traffic",
            layouts=tuple(layouts),
            where=where,
            read=read,
            make=make,
            options={"start": start},
            defaults={"minutes": MINUTES, "missing": 0.0},
            expect={"rows": rows},
        )
    )


_enter(
    "metr-la",
    "METR-LA",
    "2012-03-01",
    ("metr-la.h5", "metr-la.npz", "metr-la.csv", "los_speed.csv"),
    "adj_mx.pkl",
    "distances_la_2012.csv",
    34_272,
    "github.com/liyaguang/DCRNN, which has data/sensor_graph/adj_mx.pkl and links to the other (metr-la.csv, "
    "metr-la.npz and one week, los_speed.csv, serve too)",
)
_enter(
    "pems-bay",
    "PEMS-BAY",
    "2017-01-01",
    ("pems-bay.h5", "pems-bay.npz", "pems-bay.csv"),
    "adj_mx_bay.pkl",
    "distances_bay_2017.csv",
    52_116,
    "github.com/liyaguang/DCRNN, which has data/sensor_graph/adj_mx_bay.pkl and links to the other (pems-bay.csv and "
    "pems-bay.npz serve too)",
)
