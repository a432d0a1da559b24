"""Elliptic: bitcoin transactions in 49 steps, some known to be illicit (chapter *Node classification*).

Folder layout, the three public files, there or in ``elliptic/elliptic_bitcoin_dataset/``::

    elliptic/elliptic_txs_features.csv    no header: txId, step 1 … 49, 165 features
    elliptic/elliptic_txs_edgelist.csv    header txId1,txId2: money flows from the first to the second
    elliptic/elliptic_txs_classes.csv     header txId,class: unknown, 1 (illicit) or 2 (licit)

What comes out:

- *Nodes* are transactions in the order of the features file. Their 166 features are the step and the 165 columns.
- *Labels*: licit 0, illicit 1, unknown 2, as in :func:`easydgl_mini.simulate.ledger`, so that the illicit class is the
  class 1 of ``NodeClassifier.score``. "Unknown" is a class like the others: the paper's macro-F1 is over three. A
  transaction without a line in the classes file has no label, -1.
- *Time*: the files have no time inside a step, so every edge has time step + 0.5. A transaction of step t is asked at
  t + 1: half a step after its edges, whoever it is. Elapsed time is constant, and the temporal part of a model has
  nothing to learn from here; *ledger* and Patent show it.
- *Split*: train on steps up to 37, validate on 38 and 39, test on 40 … 49.
"""

import numpy as np

from ..graph import TemporalGraph
from . import files
from .files import DataError, Report, chunks
from .floats import WIDE, table, usual_width
from .registry import Dataset, NodeData, register
from .table import rows

LICIT, ILLICIT, UNKNOWN = 0, 1, 2
CLASSES = {b"unknown": UNKNOWN, b"1": ILLICIT, b"2": LICIT}
FILES = ("elliptic_txs_features.csv", "elliptic_txs_edgelist.csv", "elliptic_txs_classes.csv")
INSIDE = 0.5  # where in its step an edge is put


def read(paths, errors="raise"):
    """Arrays ``features``, ``labels``, ``step``, ``src``, ``dst``, ``time`` from the three files, and the report."""
    report = Report()
    ids, features = _features(paths[0], report, errors)
    kept = len(ids)
    order = np.argsort(ids)
    ends = _columns(paths[1], report, errors, ("txId1", "txId2"))
    src, dst = _places(ids, order, ends[0]), _places(ids, order, ends[1])
    known = (src >= 0) & (dst >= 0)
    report.drop("edge of a transaction without features", (~known).sum())
    src, dst = src[known], dst[known]
    first = _first(src * np.int64(len(ids)) + dst)
    report.drop("edge seen before", len(src) - len(first))
    src, dst = src[first], dst[first]
    node, kind = _columns(paths[2], report, errors, ("txId", "class"), _class)
    node = _places(ids, order, node)
    report.drop("class of a transaction without features", (node < 0).sum())
    node, kind = node[node >= 0], kind[node >= 0]
    first = _first(node)
    report.drop("class of a transaction classified before", len(node) - len(first))
    labels = np.full(len(ids), -1, np.int64)
    labels[node[first]] = kind[first]
    if len(first) < len(ids):
        report.note(f"{paths[2].name}: {len(ids) - len(first):,} transactions have no class; their label is -1")
    step = features[:, 0].astype(np.int64)
    for what, many in (("join two steps", step[src] != step[dst]), ("join a transaction to itself", src == dst)):
        if many.any():
            report.note(f"{paths[1].name}: {many.sum():,} edges {what}")
    arrays = {
        "features": features,
        "labels": labels,
        "step": step,
        "src": src,
        "dst": dst,
        "time": np.maximum(step[src], step[dst]) + INSIDE,
    }
    return arrays, report.close(kept + len(src) + len(first))


def _features(path, report, errors):
    """Ids (N,) and float32 features (N, F): the step first."""
    ids, features, width = [], [], max(3, usual_width(path))
    for chunk in chunks(path, report, WIDE * files.BLOCK):
        start, end = chunk.split(b",", width)
        tx = chunk.whole(start[:, 0], end[:, 0], "txId")
        step = chunk.whole(start[:, 1], end[:, 1], "step", 1, 49)
        values = table(chunk, start[:, 2:], end[:, 2:], "a feature", -1e30, 1e30)
        good = chunk.settle(report, errors)
        ids.append(tx[good])
        features.append(np.column_stack([step[good], values[good]]).astype(np.float32))
    ids, features = np.concatenate(ids), np.concatenate(features)
    first = _first(ids)
    report.drop("transaction seen before", len(ids) - len(first))
    if not len(first):
        raise DataError(path, None, "no transaction could be read")
    return (ids, features) if len(first) == len(ids) else (ids[first], features[first])


def _columns(path, report, errors, names, second=None):
    """Two columns of a file with a header; ``second`` reads the second, by default a txId."""
    parts = []
    for chunk, field in rows(path, report, b",", names):
        one = chunk.whole(*field[names[0]], names[0])
        two = second(chunk, *field[names[1]]) if second else chunk.whole(*field[names[1]], names[1])
        good = chunk.settle(report, errors)
        parts.append((one[good], two[good]))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def _class(chunk, start, end):
    text, kind = chunk.text(start, end), np.full(len(start), -1, np.int64)
    for name, number in CLASSES.items():
        kind[text == name] = number
    chunk.refuse(kind < 0, "the class is not unknown, 1 or 2")
    return kind


def _places(ids, order, wanted):
    """Index in ``ids`` of each wanted id, -1 where there is none; ``order`` sorts ``ids``."""
    place = order[np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)]
    return np.where(ids[place] == wanted, place, -1)


def _first(keys):
    """Indices of the first occurrence of each key, ascending."""
    return np.sort(np.unique(keys, return_index=True)[1])


def make(arrays):
    """Arrays of :func:`read` as :class:`NodeData`."""
    graph = TemporalGraph(arrays["src"], arrays["dst"], len(arrays["labels"]), times=arrays["time"])
    return NodeData(graph, arrays["features"], arrays["labels"], arrays["step"])


register(
    Dataset(
        name="elliptic",
        title="Elliptic",
        task="node",
        layouts=(FILES, tuple(f"elliptic_bitcoin_dataset/{file}" for file in FILES)),
        where="kaggle.com/datasets/ellipticco/elliptic-data-set (a free account is needed)",
        read=read,
        make=make,
        defaults={"time_unit": 1.0, "num_classes": 3, "train_until": 37, "valid_until": 39, "test": (40, 49)},
        expect={"rows": 203_769 + 234_355 + 203_769},
    )
)
