"""Raw files with random damage, 800 and more of each format: no crash, no hang, nothing lost in silence.

Each format has a slow reader of its own here, written from the documentation and not from the loader: plain Python, one
line at a time. The loader must keep what the slow reader keeps, and its counts must add up. To add a format: write
``sample(rng) -> dict of file names to bytes``, ``fast(paths, errors) -> (events, Report)`` and, where there is one,
``slow(dict of bytes) -> events`` (a list, in order), and append a :class:`Format` to ``FORMATS``.
"""

import dataclasses
import datetime
import math
import pickle
import re
import signal
import threading
from collections.abc import Callable

import numpy as np
import pytest

from easydgl_mini import data
from easydgl_mini.data import amazon, elliptic, koubei, metr_la, movielens, netflix, patent, tmall

FILES = 850  # mutated files of each format; each is read twice, strictly and leniently
SECONDS = 5  # of the processor for one file, after which it counts as hanging


@dataclasses.dataclass
class Format:
    """One format; ``exact`` where the loader must keep just what the slow reader keeps, else no more than that."""

    name: str
    sample: Callable
    fast: Callable
    slow: Callable | None = None
    exact: bool = True


# Damage ---------------------------------------------------------------------------------------------------------------

STRANGE = [b"", b",", b"\t", b"::", b":", b" ", b"\r", b"\r\n", b"\n", b"\n\n", b"\0", b"-", b"-1", b"+1", b"0", b"1.5"]
STRANGE += [b"nan", b"inf", b"1e5", b"9" * 30, b'"', b"'", b"\xff", b"\xc3\xa9", b"\xe4", b"\xef\xbb\xbf", b"\xff\xfe"]
STRANGE += [
    b"NULL",
    b"2005-02-30",
    b"1900-01-01",
    b"00000000",
    b"#",
    b";",
    b"/",
    b"\x0b",
    b"\x1a",
    "٣".encode(),
    b"1_0",
]


def damage(rng, text):
    """The bytes with one to three random changes."""
    for _ in range(rng.integers(1, 4)):
        text = CHANGES[rng.integers(len(CHANGES))](rng, text)
    return text


def change_byte(rng, text):
    at = rng.integers(len(text) + 1)
    return text[:at] + bytes([rng.integers(256)]) + text[at + 1 :]


def drop_bytes(rng, text):
    at, count = rng.integers(len(text) + 1), rng.integers(1, 4)
    return text[:at] + text[at + count :]


def insert(rng, text):
    at = rng.integers(len(text) + 1)
    return text[:at] + STRANGE[rng.integers(len(STRANGE))] + text[at:]


def cut_short(rng, text):
    return text[: rng.integers(len(text) + 1)]


def change_field(rng, text):
    fields = list(re.finditer(rb"[^\s,:]+", text))
    if not fields:
        return text
    chosen = fields[rng.integers(len(fields))]
    return text[: chosen.start()] + STRANGE[rng.integers(len(STRANGE))] + text[chosen.end() :]


def on_lines(change):
    def changed(rng, text):
        lines = text.splitlines(keepends=True)
        return b"".join(change(rng, lines)) if lines else text

    return changed


@on_lines
def repeat_line(rng, lines):
    at = rng.integers(len(lines))
    return [*lines[: at + 1], lines[at], *lines[at + 1 :]]


@on_lines
def drop_line(rng, lines):
    at = rng.integers(len(lines))
    return lines[:at] + lines[at + 1 :]


@on_lines
def shuffle(rng, lines):
    return [lines[i] for i in rng.permutation(len(lines))]


@on_lines
def insert_line(rng, lines):
    at = rng.integers(len(lines) + 1)
    return [*lines[:at], STRANGE[rng.integers(len(STRANGE))] + b"\n", *lines[at:]]


@on_lines
def swap_fields(rng, lines):
    at = rng.integers(len(lines))
    parts = re.split(rb"(,|\t|::| )", lines[at].rstrip(b"\r\n"))
    if len(parts) > 2:
        i, j = (2 * rng.integers((len(parts) + 1) // 2) for _ in range(2))
        parts[i], parts[j] = parts[j], parts[i]
    return [*lines[:at], b"".join(parts) + b"\n", *lines[at + 1 :]]


def windows(rng, text):
    return text.replace(b"\n", b"\r\n")


def mark(rng, text):
    return b"\xef\xbb\xbf" + text


def wide(rng, text):
    return text.decode("latin-1").encode("utf-16")


CHANGES = [change_byte, change_byte, drop_bytes, insert, insert, cut_short, change_field, change_field]
CHANGES += [repeat_line, drop_line, shuffle, insert_line, swap_fields, windows, mark, wide]


# Slow readers ---------------------------------------------------------------------------------------------------------


def written_lines(text):
    """The lines that are not blank, without their ends; None for a file that can't be read at all."""
    if not text or text.startswith((b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b", b"PK\x03\x04")):
        return None
    text = text.removeprefix(b"\xef\xbb\xbf")
    if not text:
        return None
    lines = text.split(b"\n")
    lines = lines[:-1] if lines[-1] == b"" else lines
    lines = [line.removesuffix(b"\r") for line in lines]
    return [line for line in lines if line.strip(b" \t")]


def readable(line):
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in line


def whole(field, low=0, high=2**31 - 1):
    """A whole number, or None."""
    if not re.fullmatch(rb"[0-9]{1,18}", field) or not low <= int(field) <= high:
        return None
    return int(field)


def decimal(field, low, high):
    if len(field) > 40 or not re.fullmatch(rb"[0-9.+\-eE]+", field):
        return None
    try:
        value = float(field)
    except ValueError:
        return None
    return value if low <= value <= high else None


def day_number(year, month, day):
    """Seconds since 1970, or None."""
    try:
        found = datetime.date(year, month, day)
    except ValueError:
        return None
    return (found - datetime.date(1970, 1, 1)).days * 86_400 if 1970 <= year < 2100 else None


def date(field, pattern):
    match = re.fullmatch(pattern, field)
    return day_number(*map(int, match.groups())) if match else None


def slow_netflix(files):
    """(customer, film, second), customers and times ascending is not asked for: in the order of the files."""
    events = []
    for text in files.values():
        lines, film = written_lines(text), None
        if lines is None:
            return None
        for line in lines:
            if readable(line) and line.endswith(b":"):
                film = whole(line[:-1], low=1)
                continue
            fields = line.split(b",")
            good = readable(line) and len(fields) == 3
            user = whole(fields[0]) if good else None
            rating = whole(fields[1], 1, 5) if good else None
            time = date(fields[2], rb"([0-9]{4})-([0-9]{2})-([0-9]{2})") if good else None
            if None in (user, rating, time):
                film = None if b"," not in line or b":" in line else film
            elif film is not None:
                events.append((user, film, time))
    return events


def unquoted(field, separator):
    """A field without double quotes around it, which commas allow."""
    both = separator == b"," and len(field) > 1 and field[:1] == field[-1:] and field[:1] in (b'"', '"')
    return field[1:-1] if both else field


def words_of(line, separator):
    """What a header says, in lower case."""
    fields = line.decode("utf-8", "replace").split(separator.decode())
    return [unquoted(field.strip().lower(), separator) for field in fields]


def header_of(line, names, separator):
    """Place of each name, or None where one is missing or there twice, or the line is no text."""
    if line is None or not names or not readable(line):
        return None
    header = words_of(line, separator)
    if any(header.count(name.lower()) != 1 for name in names):
        return None
    return {name: header.index(name.lower()) for name in names}, len(header)


def slow_table(text, names, separator, parse, optional=False, header=True):
    lines = written_lines(text)
    if lines is None:
        return None
    if not header:
        lines = [separator.join(name.encode() for name in names), *lines]
    words = set(words_of(lines[0], separator)) if lines else set()
    if optional and not words & {name.lower() for name in names}:
        place, count = {name: i for i, name in enumerate(names)}, len(names)
    else:
        found = header_of(lines[0] if lines else None, names, separator)
        if found is None:
            return None
        (place, count), lines = found, lines[1:]
    events = []
    for line in lines:
        fields = line.split(separator)
        if readable(line) and len(fields) == count:
            event = parse({name: unquoted(fields[i], separator) for name, i in place.items()})
            if event is not None and None not in event:
                events.append(event)
    return events


def tmall_row(fields):
    stamp, action = whole(fields["time_stamp"], 0, 1231), whole(fields["action_type"], 0, 3)
    if stamp is None or action is None:
        return None
    return whole(fields["user_id"]), whole(fields["item_id"]), day_number(2014, stamp // 100, stamp % 100)


def koubei_row(fields):
    if whole(fields["location_id"]) is None:
        return None
    when = date(fields["time_stamp"], rb"([0-9]{4})([0-9]{2})([0-9]{2})")
    return whole(fields["user_id"]), whole(fields["merchant_id"]), when


def rating_row(fields):
    if decimal(fields["rating"], 0.5, 5) is None:
        return None
    time = whole(fields["timestamp"], 788_918_400, 4_102_444_800)
    return whole(fields["userId"]), whole(fields["movieId"]), time


def atomic_row(fields):
    user, item = fields["user_id:token"], fields["item_id:token"]
    if not user or not item or len(user) > 256 or len(item) > 256:
        return None
    if "rating:float" in fields and decimal(fields["rating:float"], 0, 1e18) is None:
        return None
    return user, item, decimal(fields["timestamp:float"], 788_918_400, 4_102_444_800)


ATOMIC = ("user_id:token", "item_id:token", "timestamp:float")


def slow_atomic(files):
    (text,) = files.values()
    lines = written_lines(text)
    rated = header_of(lines[0] if lines else None, (*ATOMIC, "rating:float"), b"\t") is not None
    if lines and not rated:
        header = [field.strip().lower() for field in lines[0].decode("utf-8", "replace").split("\t")]
        if header.count("rating:float") > 1:
            return None
    return slow_table(text, (*ATOMIC, "rating:float") if rated else ATOMIC, b"\t", atomic_row)


def slow_amazon(files):
    (text,) = files.values()
    lines, events, known = written_lines(text), [], set()
    if lines is None:
        return None
    for line in lines:
        halves = line.split(b"\t")
        if not readable(line) or len(halves) != 2:
            continue
        left = [whole(field, high=10**18) for field in halves[0].split(b" ")]
        right = [whole(field, high=10**18) for field in halves[1].split(b" ")]
        if None in left or None in right or len(left) != len(right) + 1 or right[0] or sum(map(float, right)) > 2**52:
            continue
        if left[0] not in known:
            known.add(left[0])
            events += [(left[0], item, sum(right[: j + 1])) for j, item in enumerate(left[1:])]
    return events


# Formats --------------------------------------------------------------------------------------------------------------


def through_links(read, **options):
    """A loader of events without its filters: what it keeps, as (user, item, second)."""

    def fast(paths, errors):
        arrays, report = read(paths, errors=errors, duplicates="keep", min_user=1, min_item=1, **options)
        user = np.repeat(arrays["user_names"], np.diff(arrays["offsets"]))
        item = arrays["item_names"][arrays["item"]]
        log = data.links.make(arrays)
        assert len(log) == report.kept and log.num_users == len(arrays["user_names"])
        return list(zip(user.tolist(), item.tolist(), log.time.tolist(), strict=True)), report

    return fast


def sorted_events(events):
    """By user and then by time, ties in the order they came in: how every log is."""
    return sorted(events, key=lambda event: (event[0], event[2]))


def random_date(rng, layout, year=2004, days=900):
    return (datetime.date(year, 1, 1) + datetime.timedelta(days=int(rng.integers(days)))).strftime(layout)


def sample_netflix(rng):
    lines = []
    for film in rng.choice(20, size=3, replace=False) + 1:
        lines.append(f"{film}:")
        for _ in range(rng.integers(4)):
            lines.append(f"{rng.integers(1, 2_649_430)},{rng.integers(1, 6)},{random_date(rng, '%Y-%m-%d')}")
    return ("\n".join(lines) + "\n").encode()


def sample_combined(rng):
    return {f"combined_data_{n}.txt": sample_netflix(rng) for n in (1, 2)}


def sample_movies(rng):
    return {f"mv_000000{n}.txt": sample_netflix(rng) for n in (1, 2)}


def sample_tmall(rng):
    rows = ["user_id,item_id,cat_id,seller_id,brand_id,time_stamp,action_type"]
    for _ in range(5):
        ids = ",".join(str(rng.integers(1, 400_000)) for _ in range(4))
        brand = rng.choice(["", str(rng.integers(9000))])
        rows.append(f"{ids},{brand},{random_date(rng, '%m%d', 2014, 365).lstrip('0')},{rng.integers(4)}")
    if rng.random() < 0.3:
        rows = [",".join(f'"{field}"' for field in row.split(",")) for row in rows]
    return {"user_log_format1.csv": ("\n".join(rows) + "\n").encode()}


def sample_koubei(rng):
    rows = ["user_id,merchant_id,location_id,time_stamp"] if rng.random() < 0.3 else []
    rows += [
        f"{rng.integers(10**7)},{rng.integers(9999)},{rng.integers(600)},{random_date(rng, '%Y%m%d')}" for _ in range(6)
    ]
    return {"ijcai2016_koubei_train": ("\n".join(rows) + "\n").encode()}


def sample_ratings(name, separator, header=None, half=False):
    def sample(rng):
        rows = [header] if header else []
        for _ in range(6):
            rating = rng.integers(1, 11) / 2 if half else rng.integers(1, 6)
            fields = (rng.integers(1, 7000), rng.integers(1, 4000), rating, rng.integers(789_652_009, 1_427_784_002))
            rows.append(separator.join(map(str, fields)))
        return {name: ("\n".join(rows) + "\n").encode()}

    return sample


def sample_atomic(rng):
    names, rows = ["Père & fils (1990)", "Toy Story (1995)", "1m_7", "#1"], []
    rated = rng.random() < 0.7
    rows.append("user_id:token\titem_id:token" + "\trating:float" * rated + "\ttimestamp:float")
    for _ in range(5):
        rating = f"\t{rng.integers(1, 6)}" * rated
        rows.append(f"1m_{rng.integers(9)}\t{rng.choice(names)}{rating}\t{rng.integers(789_652_009, 1_427_784_002)}")
    return {"ml-1m.inter": ("\n".join(rows) + "\n").encode()}


def sample_amazon(rng):
    rows = []
    for user in range(1, 5):
        count = rng.integers(1, 5)
        items = " ".join(str(rng.integers(1, 99)) for _ in range(count))
        gaps = " ".join(["0", *(str(86_400 * rng.integers(3)) for _ in range(count - 1))])
        rows.append(f"{user} {items}\t{gaps}")
    return {"Beauty.txt": ("\n".join(rows) + "\n").encode()}


def some(slow):
    """No event at all is as good as no file."""
    return lambda files: slow(files) or None


def table(names, separator, parse, **options):
    return some(lambda files: slow_table(*files.values(), names, separator, parse, **options))


ALL = ("click", "cart", "purchase", "favourite")
FORMATS = [
    Format("netflix-combined", sample_combined, through_links(netflix.read), some(slow_netflix)),
    Format("netflix-movies", sample_movies, through_links(netflix.read), some(slow_netflix)),
    Format("tmall", sample_tmall, through_links(tmall.read, actions=ALL), table(tmall.COLUMNS, b",", tmall_row)),
    Format("koubei", sample_koubei, through_links(koubei.read), table(koubei.COLUMNS, b",", koubei_row, optional=True)),
    Format("ml-100k", sample_ratings("u.data", "\t"), through_links(movielens.read),
           table(movielens.COLUMNS, b"\t", rating_row, header=False)),
    Format("ml-1m", sample_ratings("ratings.dat", "::"), through_links(movielens.read),
           table(movielens.COLUMNS, b"::", rating_row, header=False)),
    Format("ml-20m", sample_ratings("ratings.csv", ",", "userId,movieId,rating,timestamp", half=True),
           through_links(movielens.read), table(movielens.COLUMNS, b",", rating_row)),
    Format("atomic", sample_atomic, through_links(movielens.read), some(slow_atomic)),
    Format("amazon", sample_amazon, through_links(amazon.read), some(slow_amazon)),
]  # fmt: skip


# Nodes and traffic ----------------------------------------------------------------------------------------------------
# What is kept is a list of (what, content, place) here, which has one order.


def real_number(field, low, high, missing=False):
    """A number, NaN for a missing one where that is allowed, or None."""
    if missing and field in (b"", b"nan", b"NaN", b"NA", b"-nan", b"-NaN"):
        return float("nan")
    if not re.fullmatch(rb"[0-9.+\-eE]+", field):
        return None
    try:
        value = float(field)
    except ValueError:
        return None
    return value if low <= value <= high else None


def good_rows(lines, count, separator=b","):
    """Fields of the readable lines that have ``count`` of them."""
    rows = [line.split(separator) for line in lines or [] if readable(line)]
    return [row for row in rows if len(row) == count]


def sample_elliptic(rng):
    ids = rng.choice(10**6, 6, replace=False)
    features = "".join(f"{i},{rng.integers(1, 50)},{rng.normal():.3f},{rng.normal():.6g}\n" for i in ids)
    edges = "".join(f"{ids[i]},{ids[j]}\n" for i, j in {tuple(rng.integers(6, size=2)) for _ in range(4)})
    classes = "".join(f"{i},{rng.choice(['unknown', '1', '2'])}\n" for i in rng.permutation(ids))
    files = {"features": features, "edgelist": f"txId1,txId2\n{edges}", "classes": f"txId,class\n{classes}"}
    return {f"elliptic_txs_{name}.csv": text.encode() for name, text in files.items()}


def fast_elliptic(paths, errors):
    arrays, report = elliptic.read(paths, errors)
    edges = zip(arrays["src"].tolist(), arrays["dst"].tolist(), arrays["time"].tolist(), strict=True)
    kept = [("class", kind, n) for n, kind in enumerate(arrays["labels"].tolist()) if kind >= 0]
    kept += [("edge", edge, n) for n, edge in enumerate(edges)]
    return kept + [("node", tuple(row), n) for n, row in enumerate(arrays["features"].tolist())], report


def slow_elliptic(files):
    features, edges, classes = files.values()
    if not written_lines(features):
        return None
    step, kept, node = [], [], {}
    widths = [line.count(b",") + 1 for line in written_lines(features)]
    for row in good_rows(written_lines(features), max(3, max(widths, key=widths.count))):  # what most lines have
        tx, when = whole(row[0], high=2**62), whole(row[1], 1, 49)
        values = [real_number(field, -1e30, 1e30) for field in row[2:]]
        if None not in (tx, when, *values) and tx not in node:
            node[tx] = len(node)
            step.append(when)
            kept.append(("node", (when, *(float(np.float32(x)) for x in values)), node[tx]))
    pairs = slow_table(edges, ("txId1", "txId2"), b",", lambda f: tuple(whole(x, high=2**62) for x in f.values()))
    names = {b"unknown": 2, b"1": 1, b"2": 0}
    kinds = slow_table(
        classes, ("txId", "class"), b",", lambda f: (whole(f["txId"], high=2**62), names.get(f["class"]))
    )
    if not node or pairs is None or kinds is None:
        return None
    pairs = dict.fromkeys((node[a], node[b]) for a, b in pairs if a in node and b in node)
    kept += [("edge", (a, b, max(step[a], step[b]) + 0.5), n) for n, (a, b) in enumerate(pairs)]
    labels = {}
    for tx, kind in kinds:
        if tx in node:
            labels.setdefault(node[tx], kind)
    return kept + [("class", kind, n) for n, kind in labels.items()]


def scaled_date(rng):
    date = int(random_date(rng, "%Y%m%d", 1976, 8000))
    return repr((date - 19_750_318) / 240_910)


def sample_patent(rng):
    edges = "".join(f"{rng.integers(8)} {rng.integers(8)} {scaled_date(rng)}\n" for _ in range(6))
    ids = sorted({field for line in edges.splitlines() for field in line.split()[:2]})
    labels = "".join(f"{n} {rng.integers(1, 7)}\n" for n in ids)
    return {"patent.txt": edges.encode(), "node2label.txt": labels.encode()}


def fast_patent(paths, errors):
    arrays, report = patent.read(paths, errors)
    edges = zip(arrays["src"].tolist(), arrays["dst"].tolist(), np.round(arrays["time"], 9).tolist(), strict=True)
    kept = [("edge", edge, n) for n, edge in enumerate(edges)]
    return kept + [("label", kind, n) for n, kind in enumerate(arrays["labels"].tolist()) if kind >= 0], report


def quarter_of(field):
    """Quarters since 1975, the day as a fraction of its quarter."""
    value = real_number(field, 0, 1) if len(field) <= 40 else None
    if value is None or abs(value * 240_910 - round(value * 240_910)) > 0.01:
        return None
    number = 19_750_318 + round(value * 240_910)
    try:
        day = datetime.date(number // 10_000, number // 100 % 100, number % 100)
    except ValueError:
        return None
    first = datetime.date(day.year, (day.month - 1) // 3 * 3 + 1, 1)
    after = datetime.date(day.year + (first.month == 10), (first.month + 3) % 12, 1)
    return 4 * (day.year - 1975) + (day.month - 1) // 3 + (day - first).days / (after - first).days


def slow_patent(files):
    edges, labels = files.values()
    if not written_lines(edges) or written_lines(labels) is None:
        return None
    kept = {}
    for src, dst, time in good_rows(written_lines(edges), 3, b" "):
        ends, when = (whole(src, high=2**62), whole(dst, high=2**62)), quarter_of(time)
        if None not in (*ends, when):
            kept[(*ends, round(when, 9))] = None
    if not kept:
        return None
    node = {name: n for n, name in enumerate(sorted({name for edge in kept for name in edge[:2]}))}
    found = {}
    for name, kind in good_rows(written_lines(labels), 2, b" "):
        name, kind = whole(name, high=2**62), whole(kind, 1, 6)
        if name in node and kind is not None:
            found.setdefault(node[name], kind - 1)
    edges = [("edge", (node[s], node[d], time), n) for n, (s, d, time) in enumerate(kept)]
    return edges + [("label", kind, n) for n, kind in found.items()]


SENSORS = ["11", "22", "33"]
GRAPH = pickle.dumps([SENSORS, {name: n for n, name in enumerate(SENSORS)}, np.eye(3, dtype=np.float32)], protocol=2)


def sample_metr_la(rng):
    timed, rows = rng.random() < 0.5, []
    for n in range(4):
        stamp = f"2012-03-0{rng.integers(1, 3)} {n:02d}:{5 * rng.integers(12):02d}:00," * timed
        rows.append(stamp + ",".join(str(rng.choice([0, 60, 61.25, 7.5])) for _ in SENSORS))
    return {"metr-la.csv": ("," * timed + ",".join(rng.permutation(SENSORS)) + "\n" + "\n".join(rows) + "\n").encode()}


def fast_metr_la(paths, errors):
    (paths[0].parent / "adj_mx.pkl").write_bytes(GRAPH)
    arrays, report = metr_la.read([*paths, paths[0].parent / "adj_mx.pkl"], errors, "2012-03-01")
    content = (str(arrays["origin"]), arrays["times"].tolist(), arrays["readings"].tolist(), arrays["sensors"].tolist())
    return [("all", content, 0), *(("row", None, n) for n in range(1, report.kept))], report


def stamp_of(field):
    """Minutes since 1970, or None."""
    match = re.fullmatch(rb"([0-9]{4})-([0-9]{2})-([0-9]{2})[ T]([0-9]{2}):([0-9]{2})(?::00)?", field)
    day = day_number(*map(int, match.groups()[:3])) if match else None
    if day is None or int(match[4]) > 23 or int(match[5]) > 59:
        return None
    return day // 60 + 60 * int(match[4]) + int(match[5])


def slow_metr_la(files):
    (text,) = files.values()
    lines = written_lines(text)
    if not lines:
        return None
    header = [field.strip().strip('"') for field in lines[0].decode("utf-8", "replace").split(",")]
    timed = header[0].lower() in metr_la.TIME_COLUMN and len(header) > 1
    sensors = header[1:] if timed else header
    if sorted(sensors) != SENSORS:
        return None
    read = []
    for n, line in enumerate(lines[1:]):
        (fields,) = good_rows([line], len(header)) or [None]
        values = [real_number(field, 0, 1000, missing=True) for field in fields[timed:]] if fields else [None]
        when = 22_176_000 + 5 * n if not timed else stamp_of(fields[0]) if fields else None  # 2012-03-01
        if None not in (when, *values):
            read.append((when, [0.0 if x != x else float(np.float32(x)) for x in values]))
    phases = [when % 5 for when, _ in read]
    usual, rows = max(range(5), key=phases.count), {}
    for when, values in read:
        if when % 5 == usual:
            rows.setdefault(when, values)
    if not rows:
        return None
    first, last = min(rows), max(rows)
    if not timed:  # a bad row keeps its place, the first and the last too
        first, last = 22_176_000, 22_176_000 + 5 * (len(lines) - 2)
    slots = (last - first) // 5 + 1
    if timed and slots > 2 * len(rows) + 10_000:
        return None
    origin = str(datetime.date(1970, 1, 1) + datetime.timedelta(minutes=first))
    times = [float(first % 1440 + 5 * n) for n in range(slots)]
    readings = [rows.get(first + 5 * n, [0.0] * 3) for n in range(slots)]
    return [("all", (origin, times, readings, sensors), 0), *(("row", None, n) for n in range(1, len(rows)))]


def sample_distances(rng):
    rows = ["from,to,cost"] if rng.random() < 0.5 else []
    for i, j in {tuple(rng.integers(3, size=2)) for _ in range(7)}:
        rows.append(f"{SENSORS[i]},{SENSORS[j]},{rng.integers(9000) / 10}")
    return {"distances_la_2012.csv": ("\n".join(rows) + "\n").encode()}


def fast_distances(paths, errors):
    readings = paths[0].parent / "metr-la.csv"
    readings.write_text("11,22,33\n1,2,3\n")
    arrays, report = metr_la.read([readings, *paths], errors, "2012-03-01")
    edges = zip(arrays["src"].tolist(), arrays["dst"].tolist(), np.round(arrays["weights"], 9).tolist(), strict=True)
    return [("all", list(edges), 0), *(("row", None, n) for n in range(1, report.kept))], report


def slow_distances(files):
    def row(fields):
        if max(map(len, fields.values())) > 256:
            return None
        return fields["from"], fields["to"], decimal(fields["cost"], 0, 1e9)

    (text,) = files.values()
    rows, known = slow_table(text, ("from", "to", "cost"), b",", row, optional=True), {}
    for one, two, cost in rows or []:
        if {one, two} <= {b"11", b"22", b"33"}:
            known.pop((one, two), None)
            known[one, two] = cost
    if not known:
        return None
    mean = sum(known.values()) / len(known)
    variance = sum((cost - mean) ** 2 for cost in known.values()) / len(known)
    near = {pair: math.exp(-(cost**2) / variance) if variance else 1.0 for pair, cost in known.items()}
    near = [(int(a) // 11 - 1, int(b) // 11 - 1, round(w, 9)) for (a, b), w in near.items() if w >= 0.1]
    return [("all", near, 0), *(("row", None, n) for n in range(1, 1 + len(known)))]


def sample_pickle(rng):
    content = [SENSORS, {name: n for n, name in enumerate(SENSORS)}, rng.random((3, 3)).astype(np.float32)]
    return {"adj_mx.pkl": pickle.dumps(content, protocol=int(rng.integers(6)))}


def fast_pickle(paths, errors):
    readings = paths[0].parent / "metr-la.csv"
    readings.write_text("11,22,33\n1,2,3\n")
    arrays, report = metr_la.read([readings, *paths], errors, "2012-03-01")
    return arrays["weights"].tolist(), report


FORMATS += [
    Format("elliptic", sample_elliptic, fast_elliptic, slow_elliptic),
    Format("patent", sample_patent, fast_patent, slow_patent),
    Format("metr-la", sample_metr_la, fast_metr_la, slow_metr_la),
    Format("metr-la-distances", sample_distances, fast_distances, slow_distances),
    Format("metr-la-pickle", sample_pickle, fast_pickle),
]


# Tests ----------------------------------------------------------------------------------------------------------------


class Watch:
    """Turns a hang into a failure, where the system has alarms."""

    def __enter__(self):
        self.on = hasattr(signal, "SIGPROF") and threading.current_thread() is threading.main_thread()
        if self.on:
            self.before = signal.signal(signal.SIGPROF, self.ring)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # a busy machine is no hang

    def ring(self, *_):
        raise TimeoutError(f"a file took more than {SECONDS} s")

    def __exit__(self, *_):
        if self.on:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, self.before)


def write(folder, files):
    paths = []
    for name, text in files.items():
        (folder / name).write_bytes(text)
        paths.append(folder / name)
    return paths


def read_both(form, paths):
    """What comes of strict and of lenient reading: (events, Report), or the DataError."""
    found = {}
    for errors in ("raise", "drop"):
        try:
            with Watch():
                found[errors] = form.fast(paths, errors)
        except data.DataError as error:
            found[errors] = error
    return found["raise"], found["drop"]


def check(form, files, paths):
    strict, lenient = read_both(form, paths)
    for got in (strict, lenient):
        if isinstance(got, data.DataError):
            assert got.file and got.reason and str(got).startswith(got.file)
        else:
            events, report = got
            assert report.read == report.kept + sum(report.dropped.values()), report
            assert all(count > 0 for count in report.dropped.values()), report
            assert form.slow is None or report.kept == len(events)
    if isinstance(lenient, data.DataError):
        assert isinstance(strict, data.DataError), "strict reading must refuse what lenient reading refuses"
    elif not isinstance(strict, data.DataError):
        assert strict[0] == lenient[0] and strict[1] == lenient[1]
    elif strict.line is not None:
        assert sum(lenient[1].dropped.values()) > lenient[1].dropped.get("blank line", 0), "the error must be counted"
    if form.slow is None:
        return strict, lenient
    wanted = form.slow(files)
    if isinstance(lenient, data.DataError):
        assert wanted is None, f"refused ({lenient}), though the slow reader keeps {len(wanted)} rows"
    elif form.exact:
        assert wanted is not None and lenient[0] == sorted_events(wanted)
    else:
        assert wanted is not None and set(lenient[0]) <= set(wanted)
    return strict, lenient


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_files_that_are_whole_are_kept_whole(form, tmp_path):
    rng = np.random.default_rng(1)
    for _ in range(20):
        files = form.sample(rng)
        strict, lenient = check(form, files, write(tmp_path, files))
        assert not isinstance(strict, data.DataError) and not strict[1].dropped and strict[1].kept > 0
        assert strict[0] == lenient[0]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_damaged_files(form, tmp_path, monkeypatch):
    rng, outcomes = np.random.default_rng(list(form.name.encode())), {"refused": 0, "dropped": 0, "kept": 0}
    for _ in range(FILES):
        files = form.sample(rng)
        name = list(files)[rng.integers(len(files))]
        files[name] = damage(rng, files[name])
        monkeypatch.setattr(data.files, "BLOCK", int(rng.choice([1, 40, 2**20])))  # lines meet the ends of blocks
        try:
            strict, lenient = check(form, files, write(tmp_path, files))
        except Exception as error:
            raise AssertionError(f"{form.name}: {error!r} on {files!r}") from error
        refused = isinstance(lenient, data.DataError)
        outcomes["refused" if refused else "dropped" if isinstance(strict, data.DataError) else "kept"] += 1
    assert outcomes["dropped"] + outcomes["refused"] > FILES / 4 and outcomes["kept"] > FILES / 40, outcomes


def test_there_are_ten_thousand_files():
    assert FILES * len(FORMATS) >= 10_000
