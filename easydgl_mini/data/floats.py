"""Tables of decimal numbers, read strictly: what the loaders of features and of readings share."""

import collections
import io

import numpy as np
import pandas as pd

from .files import PAD, open_bytes, read_block

WIDE = 8  # blocks to read at a time: the lines of a table are long
_NUMBER = np.zeros(256, bool)
_NUMBER[list(b",0123456789.+-eE\n")] = True
_MISSING = _NUMBER.copy()
_MISSING[list(b"nNaA")] = True


def usual_width(path):
    """The number of comma-separated fields that most of a file's first lines have."""
    with open_bytes(path) as stream:
        lines = read_block(stream, 2**22, path).split(b"\n")[:1000]
    counts = collections.Counter(line.count(b",") + 1 for line in lines if line.strip())
    return counts.most_common(1)[0][0] if counts else 1


def table(chunk, start, end, what, low, high, missing=False):
    """The last columns of a comma-separated chunk as float64, (n, F); rows with anything else are refused.

    Parameters
    ----------
    chunk : Chunk
    start, end : int64 arrays, shape (n, F)
        Places of the fields, as ``chunk.split`` gives them; the last ``F`` of each line.
    what : str
        What a number is, for the reason.
    low, high : float
        Numbers outside are refused.
    missing : bool
        An empty field, ``nan`` or ``NA`` is NaN, instead of a reason to refuse the row.
    """
    n, width = start.shape
    allowed = _MISSING if missing else _NUMBER
    odd = np.flatnonzero(~allowed[chunk.data])
    row = np.searchsorted(chunk.start, odd, side="right") - 1
    inside = row >= 0
    odd, row = odd[inside], row[inside]
    chunk.refuse(np.unique(row[(odd >= start[row, 0]) & (odd < end[row, -1])]), f"{what} is not a number")
    values, rows = np.zeros((n, width)), np.flatnonzero(chunk.good)
    if not len(rows):
        return values
    if len(rows) == n and chunk.index is None and not chunk.returns.any():
        text = chunk.data[PAD:].tobytes()
    else:
        text = b"\n".join(chunk.data[chunk.start[i] : chunk.end[i]].tobytes() for i in rows)
    parsed = _parse(text, width)
    if parsed is None or len(parsed) != len(rows):
        parsed = np.full((len(rows), width), np.inf)
        for n_good, i in enumerate(rows):  # one line is to blame: find it
            single = _parse(chunk.data[chunk.start[i] : chunk.end[i]].tobytes(), width)
            if single is not None and len(single) == 1:
                parsed[n_good] = single[0]
    values[rows] = parsed
    none = np.isinf(values) if missing else ~np.isfinite(values)
    chunk.refuse(none.any(axis=1), f"{what} is not a number")
    outside = (values < low) | (values > high)
    chunk.refuse(outside.any(axis=1), f"{what} is not in {low:g} … {high:g}")
    return values


def _parse(text, width):
    """Numbers of the last ``width`` columns, (n, width), or None where something is no number."""
    total = text[: (text.find(b"\n") + 1 or len(text))].count(b",") + 1
    try:
        frame = pd.read_csv(
            io.BytesIO(text),
            header=None,
            names=range(total),
            usecols=range(total - width, total),
            dtype=np.float64,
            engine="c",
            quoting=3,
            skip_blank_lines=False,
            index_col=False,
            low_memory=False,
        )
    except ValueError:
        return None
    return frame.to_numpy()
