"""The Netflix prize: 100,480,507 ratings of 17,770 films by 480,189 customers, 1999 to 2005, dated to the day.

Folder ``netflix/``: ``combined_data_1.txt`` to ``combined_data_4.txt``, or ``mv_*.txt``, there or in ``training_set/``.
A line ``7:`` names a film, the lines after it are ``customer,rating,yyyy-mm-dd``. All ratings are kept, whatever their
value: the paper's 497,959 nodes are all customers and films. (Its 100,444,166 edges are 36,341 fewer than the public
files have; it does not say which are left out.) The paper's time unit is the hour, though dates are days.
"""

import numpy as np

from . import links
from .files import BLANK, Report, chunks
from .registry import Dataset, register

ORPHAN = "no film is named before it"


def read(paths, errors="raise", min_rating=1, **filters):
    """Raw files to events; with ``errors="drop"`` the ratings after a line that may have named a film are dropped too.

    ``min_rating`` drops ratings below it.
    """
    report, parts, films = Report(), [], []
    for path in paths:
        film = -1
        for chunk in chunks(path, report):
            film = _parse(chunk, film, report, errors, min_rating, parts, films)
    films = np.unique(np.concatenate(films)) if films else np.zeros(0, np.int64)
    if len(films) and len(films) < films[-1] - films[0] + 1:
        report.note(f"{int(films[-1] - films[0]) + 1 - len(films):,} film numbers are missing in between")
    return links.finish(*links.gather(parts, paths[0], report), report, links.DAY, **filters)


def _parse(chunk, film, report, errors, min_rating, parts, films):
    """Append a chunk's (customer, film, day) and return the film that is named last, -1 for none."""
    heading = chunk.good & (chunk.data[chunk.end - 1] == ord(":"))
    heads, rows = chunk.select(heading), chunk.select(~heading)
    named = heads.whole(heads.start, heads.end - 1, "the film's number", low=1, high=2**31 - 1)
    heads.settle(report, errors, count=False)
    named[~heads.good] = -1

    start, end = rows.split(b",", 3)
    user = rows.whole(start[:, 0], end[:, 0], "the customer", high=2**31 - 1)
    rating = rows.whole(start[:, 1], end[:, 1], "the rating", low=1, high=5)
    day = rows.day(start[:, 2], end[:, 2])
    films.append(named[named > 0])

    place = np.flatnonzero(heading)
    lost = _may_name_a_film(rows)
    if len(lost):  # from there to the next film nobody knows whose ratings these are
        place = np.concatenate((place, rows.index[lost]))
        named = np.concatenate((named, np.full(len(lost), -1)))
        order = np.argsort(place, kind="stable")
        place, named = place[order], named[order]
    of = np.concatenate(([film], named))[np.searchsorted(place, rows.index)] if len(place) else np.full(len(rows), film)
    rows.refuse(rows.good & (of < 0), ORPHAN)
    good = rows.settle(report, errors)
    low = good & (rating < min_rating)
    report.drop(f"rating below {min_rating}", low.sum())
    keep = good & ~low
    parts.append((user[keep].astype(np.int32), of[keep].astype(np.int32), day[keep].astype(np.int32)))
    return int(named[-1]) if len(named) else film


def _may_name_a_film(rows):
    """Indices of the bad rows that are no rating: without a comma, or with a colon."""
    bad = np.flatnonzero(~rows.good & ~rows.because(BLANK))
    text = (rows.data[rows.start[i] : rows.end[i]].tobytes() for i in bad)
    return bad[[b"," not in line or b":" in line for line in text]] if len(bad) else bad


register(
    Dataset(
        name="netflix",
        title="Netflix prize",
        task="link",
        layouts=(tuple(f"combined_data_{n}.txt" for n in (1, 2, 3, 4)), ("training_set/mv_*.txt",), ("mv_*.txt",)),
        where="https://www.kaggle.com/datasets/netflix-inc/netflix-prize-data (a free account is needed)",
        read=read,
        make=links.make,
        options={"min_rating": 1, **links.OPTIONS},
        defaults={"time_unit": "hour", **links.PROTOCOL},
        expect={"rows": 100_480_507, "num_users": 480_189, "num_items": 17_770},
    )
)
