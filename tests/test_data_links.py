"""Loaders of user-item events: small files written by hand with the events that are in them, and real ones where they
are."""

import calendar
import os
import re
from pathlib import Path

import numpy as np
import pytest

from easydgl_mini import cli, data
from easydgl_mini.data import DataError, links

DAY = 86_400


def utc(year, month, day):
    """Seconds since 1970 of a day's first moment, by the standard library."""
    return calendar.timegm((year, month, day, 0, 0, 0))


def put(folder, name, files):
    for file, text in files.items():
        path = folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def events(log):
    """(raw user, raw item, second) of every event, in the log's order."""
    user, item = log.user_names[log.user], log.item_names[log.item]
    return list(zip(user.tolist(), item.tolist(), log.time.tolist(), strict=True))


def load(name, folder, **options):
    return data.load(name, folder, cache=False, **options)


# Netflix --------------------------------------------------------------------------------------------------------------

FILMS = ["1:\n1488844,3,2005-09-06\n822109,5,2005-05-13\n", "2:\n1488844,4,2005-09-06\n"]
FILMS += ["9:\n822109,1,1999-12-31\n7,2,2004-02-29\n", "10:\n11:\n1488844,5,2005-09-05\n"]
NETFLIX = [
    (7, 9, utc(2004, 2, 29)),
    (822109, 9, utc(1999, 12, 31)),
    (822109, 1, utc(2005, 5, 13)),
    (1488844, 11, utc(2005, 9, 5)),
    (1488844, 1, utc(2005, 9, 6)),  # two films on one day: in the order of the files
    (1488844, 2, utc(2005, 9, 6)),
]
NETFLIX_NAMES = [f"combined_data_{n}.txt" for n in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    "names", [NETFLIX_NAMES, *([f"{place}mv_000000{n}.txt" for n in (1, 2, 3, 4)] for place in ("training_set/", ""))]
)
def test_netflix(tmp_path, names):
    log = load("netflix", put(tmp_path, "netflix", dict(zip(names, FILMS, strict=True))))
    assert events(log) == NETFLIX
    assert log.num_users == 3 and log.num_items == 4  # film 10 has no ratings
    assert log.user.max() == 2 and log.item.max() == 3
    assert log.report.read == log.report.kept == 6 and not log.report.dropped
    assert log.report.notes[0] == "6 film numbers are missing in between"
    assert [note.split(" have")[0] for note in log.report.notes[1:]] == ["rows: the public files"]


def netflix(tmp_path, text, **options):
    put(tmp_path, "netflix", dict.fromkeys(NETFLIX_NAMES, "1:\n") | {NETFLIX_NAMES[0]: text})
    return load("netflix", tmp_path, **options)


def test_netflix_keeps_low_ratings_unless_asked(tmp_path):
    text = "1:\n1,1,2005-01-01\n2,5,2005-01-02\n"
    assert len(netflix(tmp_path, text)) == 2
    log = netflix(tmp_path, text, min_rating=4)
    assert events(log) == [(2, 1, utc(2005, 1, 2))] and log.report.dropped == {"rating below 4": 1}


def test_each_netflix_file_must_name_its_film(tmp_path):
    files = dict(zip(NETFLIX_NAMES, FILMS, strict=True)) | {NETFLIX_NAMES[1]: "1,4,2005-09-06\n2:\n1,4,2005-09-06\n"}
    with pytest.raises(DataError, match=r"combined_data_2\.txt, line 1: no film is named before it: '1,4,2005-09-06'"):
        load("netflix", put(tmp_path, "netflix", files))
    assert load("netflix", tmp_path, errors="drop").report.dropped == {"no film is named before it": 1}


@pytest.mark.parametrize("line", ["2x:", "12", "2:3,4,2005-01-01", ":", "2;", "-2:", "0:"])
def test_after_a_line_that_may_have_named_a_film_nothing_is_guessed(tmp_path, line):
    text = f"1:\n5,1,2005-01-01\n{line}\n6,1,2005-01-02\n3:\n7,1,2005-01-03\n"
    with pytest.raises(DataError, match=r"combined_data_1\.txt, line 3"):
        netflix(tmp_path, text)
    log = netflix(tmp_path, text, errors="drop")
    assert events(log) == [(5, 1, utc(2005, 1, 1)), (7, 3, utc(2005, 1, 3))]
    assert log.report.read == 4 and log.report.dropped["no film is named before it"] == 1


def test_a_bad_rating_does_not_lose_its_film(tmp_path):
    text = "1:\n5,1,2005-01-01\n5,6,2005-01-02\n5,2,2005-01-32\n,2,2005-01-03\n6,1,2005-01-04\n"
    log = netflix(tmp_path, text, errors="drop")
    assert events(log) == [(5, 1, utc(2005, 1, 1)), (6, 1, utc(2005, 1, 4))]
    reasons = ("the rating is not in 1 … 5", "the date is none from 1970 to 2099", "the customer is not a whole number")
    assert log.report.dropped == dict.fromkeys(reasons, 1)


def test_a_netflix_file_that_is_missing_is_named(tmp_path):
    files = dict(zip(NETFLIX_NAMES[:3], FILMS, strict=False))
    with pytest.raises(DataError, match=r"combined_data_4\.txt: no such file; Netflix prize needs"):
        load("netflix", put(tmp_path, "netflix", files))


# Tmall ----------------------------------------------------------------------------------------------------------------

TMALL = """user_id,item_id,cat_id,seller_id,brand_id,time_stamp,action_type
328862,323294,833,2882,2661,829,0
328862,844400,1271,2882,,1111,2
34176,323294,833,2882,2661,0512,0
328862,323294,833,2882,2661,829,0
34176,575153,1271,2882,,1112,3
328862,575153,1271,2882,2661,511,0
"""
EVERY = {"min_user": 1, "min_item": 1}


def quoted(text):
    """Every field of a table in double quotes."""
    return "".join(",".join(f'"{field}"' for field in line.split(",")) + "\n" for line in text.splitlines())


@pytest.mark.parametrize("text", [TMALL, quoted(TMALL)], ids=["plain", "quoted"])
@pytest.mark.parametrize("file", ["user_log_format1.csv", "data_format1/user_log_format1.csv"])
def test_tmall_clicks(tmp_path, file, text):
    log = load("tmall", put(tmp_path, "tmall", {file: text}), **EVERY)
    assert events(log) == [
        (34176, 323294, utc(2014, 5, 12)),
        (328862, 575153, utc(2014, 5, 11)),
        (328862, 323294, utc(2014, 8, 29)),
    ]
    assert log.report.read == 6
    assert log.report.dropped == {"another action": 2, "the same event again": 1}


def test_tmall_other_actions_another_year_and_repeats(tmp_path):
    put(tmp_path, "tmall", {"user_log_format1.csv": TMALL})
    log = load("tmall", tmp_path, actions=["purchase", "favourite"], year=2013, **EVERY)
    assert events(log) == [(34176, 575153, utc(2013, 11, 12)), (328862, 844400, utc(2013, 11, 11))]
    log = load("tmall", tmp_path, duplicates="keep", **EVERY)
    assert [event[1] for event in events(log)] == [323294, 575153, 323294, 323294]
    with pytest.raises(ValueError, match="actions must be a list of click, cart, purchase, favourite, got"):
        load("tmall", tmp_path, actions=["look"])


def test_tmall_defaults_are_those_of_the_conference_paper():
    assert data.DATASETS["tmall"].options | {"min_user": 10, "min_item": 200} == data.DATASETS["tmall"].options
    assert data.DATASETS["koubei"].options | {"min_user": 5, "min_item": 100} == data.DATASETS["koubei"].options
    units = {name: data.DATASETS[name].defaults["time_unit"] for name in ("netflix", "tmall", "koubei")}
    assert units == {"netflix": "hour", "tmall": "day", "koubei": "week"}
    for entry in data.DATASETS.values():
        if entry.task == "link":
            assert entry.defaults["split"] == (8, 1, 1)
            assert entry.defaults["seeds"] == (12345, 54321, 56789, 98765, 7401)


def test_a_tmall_header_in_another_order(tmp_path):
    text = "action_type,time_stamp,item_id,user_id\n0,1231,5,6\n"
    log = load("tmall", put(tmp_path, "tmall", {"user_log_format1.csv": text}), **EVERY)
    assert events(log) == [(6, 5, utc(2014, 12, 31))]


def test_a_header_that_is_no_text_is_refused(tmp_path):
    text = b"action_type,time_stamp,item_id,user_id,c\xe4t_id\n0,1231,5,6,7\n"
    with pytest.raises(DataError, match="line 1: not UTF-8"):
        load("tmall", put(tmp_path, "tmall", {"user_log_format1.csv": text}), **EVERY)


def test_files_of_which_nothing_is_left_are_refused(tmp_path):
    put(tmp_path, "tmall", {"user_log_format1.csv": TMALL})
    with pytest.raises(DataError, match="nothing is left of it: .* 0 kept.*item with fewer than 200 events"):
        load("tmall", tmp_path)
    assert not (tmp_path / ".easydgl-cache").exists() or not list((tmp_path / ".easydgl-cache").glob("*.npz"))


def test_a_copy_that_is_shorter_than_the_public_files_says_so(tmp_path):
    log = load("tmall", put(tmp_path, "tmall", {"user_log_format1.csv": TMALL}), **EVERY)
    rows = log.report.rows
    assert log.report.notes[-1] == f"rows: the public files have 54,925,330, these have {rows}"
    assert load("tmall", tmp_path, **EVERY).report.notes == log.report.notes  # from the cache too
    (tmp_path / "tmall" / "truth.npz").touch()
    assert f"these, which are simulated, have {rows}" in load("tmall", tmp_path, **EVERY).report.notes[-1]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1,2,3,4,5,229,0", "time_stamp is none from 1970 to 2099"),
        ("1,2,3,4,5,1300,0", "time_stamp is not in 0 … 1231"),
        ("1,2,3,4,5,829,4", "action_type is not in 0 … 3"),
        ("1,2,3,4,5,829", "expected 7 fields"),
        ("1,,3,4,5,829,0", "item_id is not a whole number"),
        ("-1,2,3,4,5,829,0", "user_id is not a whole number"),
        ('"1,2,3,4,5,829,0', "user_id is not a whole number"),
        ('"1","2,3",4,5,6,829,0', "expected 7 fields"),
    ],
)
def test_bad_rows_of_tmall(tmp_path, row, reason):
    put(tmp_path, "tmall", {"user_log_format1.csv": TMALL + row + "\n"})
    with pytest.raises(DataError, match=re.escape(f"user_log_format1.csv, line 8: {reason}: {row!r}")):
        load("tmall", tmp_path)
    assert load("tmall", tmp_path, errors="drop", **EVERY).report.dropped[reason] == 1


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("tmall", "user_log_format1.csv", TMALL[: TMALL.index("\n") + 1]),
        ("koubei", "ijcai2016_koubei_train", "user_id,merchant_id,location_id,time_stamp\n\n"),
        ("koubei", "ijcai2016_koubei_train", "\n\n"),
        ("ml-20m", "ratings.csv", "userId,movieId,rating,timestamp\n"),
        ("netflix", "mv_0000001.txt", "1:\n"),
    ],
)
def test_a_file_without_an_event_is_refused(tmp_path, name, file, text):
    put(tmp_path, name, {file: text})
    for errors in ("raise", "drop"):
        with pytest.raises(DataError, match=rf"{file}: no event could be read \(\d rows read, 0 kept"):
            load(name, tmp_path, errors=errors)


def test_a_file_whose_rows_are_all_dropped_says_why(tmp_path):
    put(tmp_path, "tmall", {"user_log_format1.csv": TMALL})
    with pytest.raises(DataError, match=re.escape("read (6 rows read, 0 kept, 6 dropped (another action: 6))")):
        load("tmall", tmp_path, actions=["cart"])


# Koubei ---------------------------------------------------------------------------------------------------------------

KOUBEI = "1027765,1,2,20150826\r\n300,1,3,20151130\r\n1027765,4,2,20150701\r\n\r\n300,1,2,20151130\r\n300,1,2,20150930"
KOUBEI_EVENTS = [
    (300, 1, utc(2015, 9, 30)),
    (300, 1, utc(2015, 11, 30)),
    (1027765, 4, utc(2015, 7, 1)),
    (1027765, 1, utc(2015, 8, 26)),
]


@pytest.mark.parametrize("name", ["ijcai2016_koubei_train", "ijcai2016_koubei_train.csv"])
@pytest.mark.parametrize("header", ["", "User_id,Merchant_id,Location_id,Time_Stamp\r\n"])
def test_koubei(tmp_path, name, header):
    log = load("koubei", put(tmp_path, "koubei", {name: header + KOUBEI}), **EVERY)
    assert events(log) == KOUBEI_EVENTS
    assert log.report.read == 6 and log.report.dropped == {"blank line": 1, "the same event again": 1}
    assert any("Windows" in note for note in log.report.notes) and any("cut short" in note for note in log.report.notes)


def test_a_date_cut_short_is_no_date(tmp_path):
    put(tmp_path, "koubei", {"ijcai2016_koubei_train": KOUBEI[:-1]})
    with pytest.raises(DataError, match="line 6: time_stamp is not of the form yyyymmdd: '300,1,2,2015093'"):
        load("koubei", tmp_path)


# MovieLens ------------------------------------------------------------------------------------------------------------

RATINGS = [(196, 242, 3, 881250949), (186, 302, 3, 891717742), (22, 377, 1, 878887116), (196, 51, 4, 881250949)]
RATED = [(22, 377, 878887116), (186, 302, 891717742), (196, 242, 881250949), (196, 51, 881250949)]


@pytest.mark.parametrize(
    ("name", "file", "separator", "head"),
    [
        ("ml-100k", "u.data", "\t", ""),
        ("ml-1m", "ratings.dat", "::", ""),
        ("ml-20m", "ratings.csv", ",", "userId,movieId,rating,timestamp\n"),
    ],
)
def test_movielens(tmp_path, name, file, separator, head):
    text = head + "".join(separator.join(map(str, row)) + "\n" for row in RATINGS)
    log = load(name, put(tmp_path, name, {file: text}))
    assert events(log) == RATED and log.report.read == 4
    assert load(name, tmp_path, min_rating=3.5).report.dropped == {"rating below 3.5": 3}
    put(tmp_path, name, {file: text[:-2]})  # a timestamp that lost its last digit is before MovieLens began
    with pytest.raises(DataError, match=f"line {4 + bool(head)}: the timestamp is not in 788918400"):
        load(name, tmp_path)


def test_half_stars(tmp_path):
    text = "userId,movieId,rating,timestamp\n1,2,0.5,1112486027\n1,3,3.5,1112484676\n1,4,5.5,1112484676\n"
    put(tmp_path, "ml-20m", {"ratings.csv": text})
    log = load("ml-20m", tmp_path, errors="drop")
    assert events(log) == [(1, 3, 1112484676), (1, 2, 1112486027)]
    assert log.report.dropped == {"the rating is not in 0.5 … 5": 1}


ATOMIC = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
ATOMIC += "u_2\tPère (1990)\t5\t978300760\nu_10\tTwo words\t3\t978300761.0\nu_2\tTwo words\t1\t9.783e8\n"


def test_atomic_files(tmp_path):
    log = load("ml-1m", put(tmp_path, "ml-1m", {"ml-1m.inter": ATOMIC}))
    assert events(log) == [
        (b"u_10", b"Two words", 978300761),
        (b"u_2", b"Two words", 978300000),
        (b"u_2", "Père (1990)".encode(), 978300760),
    ]
    text = ATOMIC.replace("\trating:float", "").replace("\t5\t", "\t").replace("\t3\t", "\t").replace("\t1\t", "\t")
    assert events(load("ml-1m", put(tmp_path, "ml-1m", {"ml-1m.inter": text}))) == events(log)
    put(tmp_path, "ml-1m", {"ratings.dat": "1::2::3::978300760\n"})
    assert events(load("ml-1m", tmp_path)) == [(1, 2, 978300760)]  # the archive's own file comes first


def test_fractions_of_a_second_are_kept(tmp_path):
    log = load("ml-1m", put(tmp_path, "ml-1m", {"ml-1m.inter": ATOMIC.replace("761.0", "761.25")}))
    assert log.time[0] == 978300761.25


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("user_id:token", "user_id:float", 1, "no column 'user_id:token'"),
        ("u_10\t", "\t", 3, "user_id:token is empty"),
        ("Two words", "w" * 257, 3, "item_id:token has more than 256 bytes"),
        ("978300761.0", "yesterday", 3, "timestamp:float is not a number"),
        ("978300761.0", "nan", 3, "timestamp:float is not a number"),
        ("\t3\t", "\t", 3, "expected 4 fields"),
    ],
)
def test_bad_atomic_files(tmp_path, old, new, line, reason):
    put(tmp_path, "ml-1m", {"ml-1m.inter": ATOMIC.replace(old, new, 1)})
    with pytest.raises(DataError, match=re.escape(reason)) as caught:
        load("ml-1m", tmp_path)
    assert caught.value.line == line


# Amazon ---------------------------------------------------------------------------------------------------------------

BEAUTY = "1 10 20 10\t0 0 86400\n3 20\t0\n2 5 6\t0 172800\n"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_amazon_gaps_add_up(tmp_path, end):
    log = load("amazon-beauty", put(tmp_path, "amazon-beauty", {"Beauty.txt": BEAUTY.replace("\n", end)}))
    assert events(log) == [
        (1, 10, 0.0), (1, 20, 0.0), (1, 10, 86_400.0), (2, 5, 0.0), (2, 6, 172_800.0), (3, 20, 0.0)
    ]  # fmt: skip
    assert log.report.read == log.report.kept == 6


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("4 1 2\t0", "expected as many gaps as items"),
        ("4 1\t0 0", "expected as many gaps as items"),
        ("4\t0", "expected as many gaps as items"),
        ("4 1 2 0 0", "expected one tab"),
        ("4 1\t0\t0", "expected one tab"),
        ("4 1 2\t5 0", "the first gap is not 0"),
        ("4 1 2\t0 -5", "an entry is not a whole number"),
        ("4 1  2\t0 5 5", "an entry is not a whole number"),
        ("x 1\t0", "an entry is not a whole number"),
        ("1 1\t0", "the user had a line before"),
        ("4 1 2\t0 9007199254740993", "the gaps add up to too much"),
    ],
)
def test_bad_lines_of_amazon(tmp_path, line, reason, monkeypatch):
    put(tmp_path, "amazon-beauty", {"Beauty.txt": BEAUTY + line + "\n7 8\t0\n"})
    for block in (2**20, 1):
        monkeypatch.setattr(data.files, "BLOCK", block)
        with pytest.raises(DataError, match=re.escape(f"Beauty.txt, line 4: {reason}")):
            load("amazon-beauty", tmp_path)
        log = load("amazon-beauty", tmp_path, errors="drop")
        assert len(log) == 7 and log.num_users == 4
        assert log.report.read == 8 and sum(log.report.dropped.values()) == 1


# Filters and order ----------------------------------------------------------------------------------------------------


def finish(rows, **options):
    user, item, time = np.array(rows).T.reshape(3, -1)
    arrays, report = links.finish(user, item, time, data.Report(read=len(rows)), **options)
    return links.make(arrays), report


def test_minimum_counts_are_applied_once_items_first():
    rows = [(1, 10, 0), (1, 11, 1), (2, 10, 0), (2, 12, 5), (3, 10, 0), (3, 11, 2)]
    log, report = finish(rows, min_item=2, min_user=2)
    assert events(log) == [(1, 10, 0), (1, 11, 1), (3, 10, 0), (3, 11, 2)]
    assert report.dropped == {"item with fewer than 2 events": 1, "user with fewer than 2 events": 1}
    log, report = finish(rows, min_item=3, min_user=1)
    assert events(log) == [(1, 10, 0), (2, 10, 0), (3, 10, 0)]
    log, report = finish(rows, min_item=100)
    assert len(log) == 0 and log.num_users == 0 and report.read == 6 == sum(report.dropped.values())


def test_repeated_events_keep_their_first_place():
    rows = [(1, 5, 3), (1, 6, 3), (1, 5, 3), (1, 5, 4), (2, 5, 3), (1, 6, 3)]
    log, report = finish(rows)
    assert events(log) == [(1, 5, 3), (1, 6, 3), (1, 5, 4), (2, 5, 3)] and report.dropped == {"the same event again": 2}
    assert len(finish(rows, duplicates="keep")[0]) == 6


@pytest.mark.parametrize("wide", [1, 2**40])
def test_order_and_repeats_against_a_slow_one(wide):
    """Ids and times small enough to be packed into 64 bits, and too large for it."""
    rng = np.random.default_rng(0)
    rows = np.stack([rng.integers(n, size=3000) for n in (30, 20, 25)], axis=1) * [wide, wide, 1]
    rows[:, 2] *= 2**55 if wide > 1 else 1
    log, report = finish(rows.tolist())
    first = list(dict.fromkeys(map(tuple, rows.tolist())))
    assert events(log) == sorted(first, key=lambda row: (row[0], row[2]))
    assert report.dropped == {"the same event again": 3000 - len(first)}


def test_the_cache_is_compact():
    rng = np.random.default_rng(0)
    user, item, day = (rng.integers(top, size=5000) for top in (99, 999, 999))
    arrays, _ = links.finish(user, item, 12_000 + day, data.Report(read=5000), links.DAY, duplicates="keep")
    assert arrays["item"].dtype == arrays["time"].dtype == np.uint16  # four bytes an event
    assert links.make(arrays).time.min() >= 12_000 * DAY


# The paper's protocol from raw files ----------------------------------------------------------------------------------


def test_histories_from_raw_files_are_in_the_papers_unit(tmp_path):
    log = load("koubei", put(tmp_path, "koubei", {"ijcai2016_koubei_train": KOUBEI}), **EVERY)
    rows = log.histories(2, data.DATASETS["koubei"].defaults["time_unit"])
    weeks = [(utc(2015, 11, 30) - utc(2015, 9, 30)) / (7 * DAY), (utc(2015, 8, 26) - utc(2015, 7, 1)) / (7 * DAY)]
    np.testing.assert_allclose(rows.gap[:, 1], weeks)


# Simulated files in the public formats --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["netflix", "tmall", "koubei"])
def test_simulated_raw_files_are_read_whole(name, tmp_path, capsys):
    out = tmp_path / name
    assert cli.main(["simulate", name, "--scale", "tiny", "--out", str(out)]) == 0
    assert "Simulated, not observed" in capsys.readouterr().out
    log = load(name, tmp_path, duplicates="keep", **EVERY)
    assert log.report.read == len(log) + log.report.dropped.get("another action", 0) and len(log) > 100
    assert not set(log.report.dropped) - {"another action"}
    assert cli.main(["simulate", name, "--scale", "tiny", "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "--out" in error


# Real files -----------------------------------------------------------------------------------------------------------


def real(name):
    """The data folder, if this dataset is in it."""
    folder = os.environ.get("EASYDGL_DATA")
    if not folder:
        pytest.skip("EASYDGL_DATA is not set: no real data here")
    if not (Path(folder) / name).is_dir():
        pytest.skip(f"there is no {name} in EASYDGL_DATA ({folder})")
    return folder


@pytest.mark.parametrize(
    ("name", "counts"), [("amazon-beauty", (198_502, 22_363, 12_101)), ("ml-1m", (1_000_209, 6_040, 3_706))]
)
def test_real_data_has_its_known_size(name, counts, tmp_path):
    folder = real(name)
    log = data.load(name, folder, cache=tmp_path)
    assert (len(log), len(log.users), len(np.unique(log.item))) == counts
    assert log.report.read == log.report.kept == counts[0]
    assert log.num_users == counts[1] and log.num_items == counts[2]
    again = data.load(name, folder, cache=tmp_path)
    assert again.fingerprint == log.fingerprint
    np.testing.assert_array_equal(again.time, log.time)
    assert data.verify(name, folder, cache=tmp_path) == []


def test_beauty_line_by_line(tmp_path):
    folder = real("amazon-beauty")
    log = data.load("amazon-beauty", folder, cache=tmp_path)
    wanted = []
    for line in (Path(folder) / "amazon-beauty" / "Beauty.txt").read_text().splitlines():
        (user, *items), gaps = ([int(field) for field in half.split()] for half in line.split("\t"))
        wanted += [(user, item, sum(gaps[: j + 1])) for j, item in enumerate(items)]
    assert events(log) == sorted(wanted, key=lambda event: (event[0], event[2]))
    assert np.mean(np.concatenate([np.diff(part) for part in np.split(log.time, log.offsets[1:-1])]) == 0) > 0.4
