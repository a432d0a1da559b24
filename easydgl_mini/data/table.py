"""Tables: lines of fields, with a header that says which is which, or without."""

import numpy as np

from .files import BLANK, DataError, chunks

QUOTE = 34


def rows(path, report, separator, names, header="needed", extra=()):
    """The lines of a table, a chunk at a time, with where the wanted fields are.

    Parameters
    ----------
    path : path
    report : Report
    separator : bytes
    names : sequence of str
        Columns that must be there.
    header : {"needed", "welcome", "none"}
        With "needed" the first line that is not blank names the columns, in any order and case; there may be others.
        Double quotes around a whole field, in the header or below, are taken off where the separator is a comma.
        With "welcome" it may be missing, and with "none" it always is: the columns are then just ``names``.
    extra : sequence of str
        Columns that a header may name or not.

    Yields
    ------
    (Chunk, dict)
        From each name to the (start, end) arrays of its field. Lines with another number of fields are refused.
    """
    place = {name: i for i, name in enumerate(names)} if header == "none" else None
    count = len(names)
    for chunk in chunks(path, report):
        if place is None:
            written = np.flatnonzero(~chunk.because(BLANK))
            if not len(written):
                chunk.settle(report)
                continue
            chunk, place, count = _header(chunk, int(written[0]), separator, names, header, extra, report)
        start, end = chunk.split(separator, count)
        if separator == b",":
            start, end = unquoted(chunk.data, start, end)
        yield chunk, {name: (start[:, i], end[:, i]) for name, i in place.items()}
    if place is None and header == "needed":
        raise DataError(path, None, f"has only blank lines; expected a header with {', '.join(names)}")


def unquoted(data, start, end):
    """Where the fields ``data[start : end]`` are without the double quotes around them; half a pair stays."""
    if not (data == QUOTE).any():
        return start, end
    both = (end - start > 1) & (data[start] == QUOTE) & (data[end - 1] == QUOTE)
    return start + both, end - both


def _names(line, separator):
    """The columns that a header names, in lower case and without quotes."""
    found = [field.strip().lower() for field in line.split(separator.decode())]
    if separator != b",":
        return found
    return [field[1:-1] if len(field) > 1 and field[0] == field[-1] == '"' else field for field in found]


def _header(chunk, first, separator, names, header, extra, report):
    """The lines after the header, the place of each column, the number of columns."""
    found = _names(chunk.row(first), separator)
    wanted = [name.lower() for name in names]
    if header == "welcome" and not set(wanted) & set(found):
        return chunk, {name: i for i, name in enumerate(names)}, len(names)
    for name in [*wanted, *(name.lower() for name in extra if name.lower() in found)]:
        if found.count(name) != 1:
            many = "no" if name not in found else "more than one"
            shown = chunk.row(first)
            shown = shown if len(shown) <= 60 else shown[:57] + "..."
            raise DataError(chunk.file, chunk.number_of(first), f"the header has {many} column {name!r}: {shown!r}")
    here = np.arange(len(chunk))
    chunk.select(here == first).settle(report, count=False)  # bytes that are no text
    chunk.select(here < first).settle(report)  # blank lines
    place = {name: found.index(name.lower()) for name in (*names, *extra) if name.lower() in found}
    return chunk.select(here > first), place, len(found)
