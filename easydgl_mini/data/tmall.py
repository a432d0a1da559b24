"""Tmall: half a year of clicks, carts, purchases and favourites before the sale of 11 November 2014, dated to the day.

Folder ``tmall/``: ``user_log_format1.csv``, there or in ``data_format1/``, with the header ``user_id,item_id,cat_id,
seller_id,brand_id,time_stamp,action_type`` in any order; the other columns may be empty. ``time_stamp`` is month and
day (``829`` or ``0829``); the year is not in the file and is taken to be 2014. ``action_type`` is 0 click, 1 cart, 2
purchase, 3 favourite.

The paper calls its 7,632,826 edges purchases, but there are fewer purchases than that; its conference version speaks of
clicks, of users with at least 10 and items with at least 200 of them. Those are the defaults. Its time unit is the day.

Rows of the same user, item and day are one event: the first is kept, the others are dropped and counted before the
minimum counts are applied. ``duplicates="keep"`` keeps them all.
"""

import numpy as np

from . import links
from .files import Report
from .registry import Dataset, register
from .table import rows

ACTIONS = {"click": 0, "cart": 1, "purchase": 2, "favourite": 3}
COLUMNS = ("user_id", "item_id", "time_stamp", "action_type")


def read(paths, errors="raise", actions=("click",), year=2014, **filters):
    """Raw file to events. ``actions``: which of click, cart, purchase and favourite count; ``year``: of the dates."""
    unknown = set(actions) - set(ACTIONS)
    if unknown or isinstance(actions, str):
        raise ValueError(f"actions must be a list of {', '.join(ACTIONS)}, got {actions!r}")
    wanted = np.isin(np.arange(4), [ACTIONS[name] for name in actions])
    report, parts = Report(), []
    for path in paths:
        for chunk, field in rows(path, report, b",", COLUMNS):
            user = chunk.whole(*field["user_id"], "user_id", high=2**31 - 1)
            item = chunk.whole(*field["item_id"], "item_id", high=2**31 - 1)
            stamp = chunk.whole(*field["time_stamp"], "time_stamp", high=1231)
            action = chunk.whole(*field["action_type"], "action_type", high=3)
            day = chunk.civil(np.full(len(chunk), year), stamp // 100, stamp % 100, "time_stamp")
            good = chunk.settle(report, errors)
            other = good & ~wanted[action]
            report.drop("another action", other.sum())
            keep = good & ~other
            parts.append((user[keep].astype(np.int32), item[keep].astype(np.int32), day[keep].astype(np.int32)))
    return links.finish(*links.gather(parts, paths[0], report), report, links.DAY, **filters)


register(
    Dataset(
        name="tmall",
        title="Tmall (IJCAI-15 repeat buyers)",
        task="link",
        layouts=(("user_log_format1.csv",), ("data_format1/user_log_format1.csv",)),
        where="https://tianchi.aliyun.com/dataset/42, file data_format1.zip (a free account is needed)",
        read=read,
        make=links.make,
        options={"actions": ["click"], "year": 2014, **links.OPTIONS, "min_user": 10, "min_item": 200},
        defaults={"time_unit": "day", **links.PROTOCOL},
        expect={"rows": 54_925_330},
    )
)
