"""Patent: citations between patents, classified as they appear (chapter *Node classification*).

Folder layout::

    patent/patent.txt        each line: src dst time; patent src cites patent dst; time scaled to [0, 1]
    patent/node2label.txt    each line: node label, 1 … 6

*The clock.* The times in the file are dates: the grant date written as a number, such as 19750318, scaled linearly to
[0, 1]. On that clock a month is worth 70 steps from its last day to the next day and New Year 8,870, so gaps are not
durations. All 891 of them turn into Tuesdays, the day on which patents are granted in the United States, between 18
March 1975 and 28 December 1999, and :func:`read` undoes the scaling. Time is then counted in quarters since 1 January
1975, with the day as a fraction of its quarter: the first quarter of 1975 is [0, 1), the last of 1999 is [99, 100).

*The protocol.* A node appears with its first edge, as the citing or as the cited end. Its ``step`` is the quarter of
that edge; it is classified at the end of the step, from the edges up to then, once. (A cited patent's own grant date
is not in the file.) Train on the steps up to 95 (the end of 1998), validate on 96, test on 97 … 99: about 67, 13 and 20
percent of the nodes, in order of time.

*Features.* The data has none. Each node gets what is known about it at the end of its own step: log(1 + n) of the
citations it made and of those it received, if it cites at all, and for each class log(1 + n) of the neighbours of that
class that appeared in an earlier step, counting steps up to ``known_until`` only (95, the end of training), so that
neither its own class nor one of validation or test is ever used. ``known_until=None`` leaves the classes out.
"""

import numpy as np

from ..graph import TemporalGraph
from .files import DataError, Report
from .registry import Dataset, NodeData, register
from .table import rows

FIRST, SPAN = 19_750_318, 240_910  # the earliest date as a number; the latest minus the earliest
YEAR = 1975
NUM_CLASSES = 6


def read(paths, errors="raise", known_until=95):
    """Arrays ``features``, ``labels``, ``step``, ``src``, ``dst``, ``time`` from the two files, and the report."""
    if known_until is not None and (isinstance(known_until, bool) or int(known_until) != known_until):
        raise ValueError(f"known_until must be a whole number or None, got {known_until!r}")
    report = Report()
    src, dst, time = _edges(paths[0], report, errors)
    node, label = _labels(paths[1], report, errors)
    ids, ends = np.unique(np.concatenate([src, dst]), return_inverse=True)
    src, dst = ends[: len(src)], ends[len(src) :]
    place = np.minimum(np.searchsorted(ids, node), len(ids) - 1)
    here = ids[place] == node
    report.drop("label of a node without an edge", (~here).sum())
    place, label = place[here], label[here]
    first = np.sort(np.unique(place, return_index=True)[1])
    report.drop("label of a node labelled before", len(place) - len(first))
    labels = np.full(len(ids), -1, np.int64)
    labels[place[first]] = label[first]
    if len(first) < len(ids):
        report.note(f"{paths[1].name}: {len(ids) - len(first):,} nodes have no label; theirs is -1")
    step = appearance(src, dst, time, len(ids))
    features = known(src, dst, time, step, labels, known_until)
    arrays = {"features": features, "labels": labels, "step": step, "src": src, "dst": dst, "time": time}
    return arrays, report.close(len(src) + len(first))


def _edges(path, report, errors):
    parts = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
    for chunk, field in rows(path, report, b" ", ("src", "dst", "time"), header="none"):
        src, dst = (chunk.whole(*field[name], name) for name in ("src", "dst"))
        time = quarters(chunk, chunk.number(*field["time"], "time", 0.0, 1.0))
        good = chunk.settle(report, errors)
        parts.append((src[good], dst[good], time[good]))
    src, dst, time = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not len(src):
        raise DataError(path, None, "no edge could be read")
    order = np.lexsort((np.arange(len(src)), time, dst, src))
    again = (src[order][1:] == src[order][:-1]) & (dst[order][1:] == dst[order][:-1])
    again &= time[order][1:] == time[order][:-1]
    report.drop("edge seen before", again.sum())
    first = np.sort(order[np.concatenate([[True], ~again])])
    return src[first], dst[first], time[first]


def quarters(chunk, scaled):
    """Quarters since 1 January 1975 of times scaled to [0, 1]; rows whose time is no date are refused."""
    number = scaled * SPAN
    date = FIRST + np.round(number).astype(np.int64)
    chunk.refuse(np.abs(number - np.round(number)) > 0.01, "time is not a date on the file's scale")
    day = chunk.civil(date // 10_000, date // 100 % 100, date % 100, "the date that time stands for")
    day = day.astype("datetime64[D]")
    month = day.astype("datetime64[M]").astype(np.int64)
    quarter = month // 3  # since 1970
    begin, after = ((3 * (quarter + i)).astype("datetime64[M]").astype("datetime64[D]") for i in (0, 1))
    inside = (day - begin).astype(np.int64) / (after - begin).astype(np.int64)
    return np.maximum(quarter - 4 * (YEAR - 1970) + inside, 0.0)


def _labels(path, report, errors):
    parts = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for chunk, field in rows(path, report, b" ", ("node", "label"), header="none"):
        node = chunk.whole(*field["node"], "node")
        label = chunk.whole(*field["label"], "label", 1, NUM_CLASSES) - 1
        good = chunk.settle(report, errors)
        parts.append((node[good], label[good]))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def appearance(src, dst, time, num_nodes):
    """The quarter of each node's first edge, at either end, (N,)."""
    first = np.full(num_nodes, np.inf)
    np.minimum.at(first, src, time)
    np.minimum.at(first, dst, time)
    return np.floor(first).astype(np.int64)


def known(src, dst, time, step, labels, known_until):
    """What is known of each node at the end of its step: (N, 3) or, with the classes of its neighbours, (N, 9)."""
    n, quarter = len(step), np.floor(time).astype(np.int64)
    made = np.bincount(src[quarter <= step[src]], minlength=n)
    received = np.bincount(dst[quarter <= step[dst]], minlength=n)
    columns = [np.log1p(made), np.log1p(received), (made > 0).astype(float)]
    if known_until is not None:
        node, other = np.concatenate([src, dst]), np.concatenate([dst, src])
        seen = np.concatenate([quarter, quarter]) <= step[node]
        seen &= (step[other] < step[node]) & (step[other] <= known_until) & (labels[other] >= 0)
        code = node[seen] * NUM_CLASSES + labels[other[seen]]
        columns.append(np.log1p(np.bincount(code, minlength=n * NUM_CLASSES).reshape(n, NUM_CLASSES)))
    return np.column_stack(columns).astype(np.float32)


def make(arrays):
    """Arrays of :func:`read` as :class:`NodeData`."""
    graph = TemporalGraph(arrays["src"], arrays["dst"], len(arrays["labels"]), times=arrays["time"])
    return NodeData(graph, arrays["features"], arrays["labels"], arrays["step"])


register(
    Dataset(
        name="patent",
        title="Patent",
        task="node",
        layouts=(("patent.txt", "node2label.txt"),),
        where="github.com/MGitHubL/Deep-Temporal-Graph-Clustering, folder data/patent",
        read=read,
        make=make,
        options={"known_until": 95},
        defaults={"time_unit": 1.0, "num_classes": NUM_CLASSES, "train_until": 95, "valid_until": 96, "test": (97, 99)},
        expect={"rows": 41_916 + 12_214},
    )
)
