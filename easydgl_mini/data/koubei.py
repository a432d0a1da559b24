"""Koubei: purchases in shops, July to November 2015, dated to the day.

Folder ``koubei/``: ``ijcai2016_koubei_train`` (or with ``.csv``), lines ``user_id,merchant_id,location_id,yyyymmdd``
without a header; one that names these columns is welcome. An item is a merchant, wherever the shop. The paper's
conference version keeps users with at least 5 and merchants with at least 100 purchases; those are the defaults. The
paper's time unit is the week.

Rows of the same user, merchant and day are one event, whatever the location: the first is kept, the others are dropped
and counted before the minimum counts are applied. ``duplicates="keep"`` keeps them all.
"""

import numpy as np

from . import links
from .files import Report
from .registry import Dataset, register
from .table import rows

COLUMNS = ("user_id", "merchant_id", "location_id", "time_stamp")


def read(paths, errors="raise", **filters):
    """Raw file to events."""
    report, parts = Report(), []
    for path in paths:
        for chunk, field in rows(path, report, b",", COLUMNS, header="welcome"):
            user, item, _ = (chunk.whole(*field[name], name, high=2**31 - 1) for name in COLUMNS[:3])
            day = chunk.day(*field["time_stamp"], "time_stamp", mark=b"")
            good = chunk.settle(report, errors)
            parts.append((user[good].astype(np.int32), item[good].astype(np.int32), day[good].astype(np.int32)))
    return links.finish(*links.gather(parts, paths[0], report), report, links.DAY, **filters)


register(
    Dataset(
        name="koubei",
        title="Koubei (IJCAI-16 brick-and-mortar stores)",
        task="link",
        layouts=(("ijcai2016_koubei_train",), ("ijcai2016_koubei_train.csv",)),
        where="https://tianchi.aliyun.com/dataset/53, file ijcai2016_koubei_train (a free account is needed)",
        read=read,
        make=links.make,
        options={**links.OPTIONS, "min_user": 5, "min_item": 100},
        defaults={"time_unit": "week", **links.PROTOCOL},
    )
)
