"""Raw text files, read strictly and fast: every row is kept, dropped with a reason that is counted, or an error that
names file and line (chapter *Link prediction*).

What is what, in every format:

* Blank lines (nothing but spaces and tabs) are dropped and counted. A byte order mark and Windows line ends are taken
  off and noted.
* A row that does not fit its format (number of fields, a field that is no number, a date that does not exist, bytes
  that are not UTF-8, a NUL byte) is a :class:`DataError`; with ``errors="drop"`` it is dropped and counted instead.
* A missing or empty file, UTF-16, a wrong header and a damaged archive are always a :class:`DataError`.
* A last line without a line end is read like the others, and noted: the file may have been cut short there.
"""

import codecs
import copy
import dataclasses
import functools
import gzip
import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

import numpy as np

BLOCK = 2**20  # bytes read at a time: the temporary arrays of a block stay in the processor's cache
LONGEST = 2**20  # bytes of the longest line
FEW = 3  # ways to lay files out that a message lists; of more it has one
PAD = 24  # zeros in front of a block, so that a number may be looked at eight bytes at a time
ERRORS = ("raise", "drop")
BLANK = "blank line"
MARKS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16", b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip"}


class DataError(ValueError):
    """A raw file that can't be read, with ``file``, ``line`` (from 1; None where no line is to blame) and ``reason``.

    Examples
    --------
    >>> print(DataError("ratings.dat", 3, "expected 4 fields, got 2"))
    ratings.dat, line 3: expected 4 fields, got 2
    """

    def __init__(self, file, line, reason):
        super().__init__(f"{file}{f', line {line:,}' if line else ''}: {reason}")
        self.file, self.line, self.reason = str(file), line, reason

    def __reduce__(self):
        return DataError, (self.file, self.line, self.reason)


@dataclasses.dataclass
class Report:
    """What became of the rows of a dataset: ``read`` = ``kept`` + the sum of ``dropped``, always.

    A row is a line of a file that is neither its header nor, in Netflix's files, the line that names the film.
    ``beside`` says how many are of a file that only helps, such as METR-LA's distances, blank lines not counted.

    Examples
    --------
    >>> report = Report(read=5)
    >>> report.drop("blank line", 2)
    >>> print(report.close(3))
    5 rows read, 3 kept, 2 dropped (blank line: 2)
    >>> report.rows
    3
    """

    read: int = 0
    kept: int = 0
    dropped: dict = dataclasses.field(default_factory=dict)
    notes: list = dataclasses.field(default_factory=list)
    beside: int = 0

    @property
    def rows(self):
        """The rows to hold against what the public files have: kept or dropped, but no blank line, and none beside."""
        return int(self.read - self.dropped.get(BLANK, 0) - self.beside)

    def drop(self, reason, count=1):
        """Count rows that were dropped for a reason."""
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + int(count)

    def note(self, text):
        """Say something that is no loss, once."""
        if text not in self.notes:
            self.notes.append(text)

    def close(self, kept):
        """Set what was kept, and see that the counts add up."""
        self.read, self.kept = int(self.read), int(kept)
        if self.read != self.kept + sum(self.dropped.values()):
            raise RuntimeError(f"rows were lost: {self}")
        return self

    def __str__(self):
        lost = "; ".join(f"{reason}: {count:,}" for reason, count in self.dropped.items())
        lost = f", {sum(self.dropped.values()):,} dropped ({lost})" if lost else ""
        return f"{self.read:,} rows read, {self.kept:,} kept{lost}"


def check_errors(errors):
    """Refuse any ``errors`` but "raise" and "drop"."""
    if errors not in ERRORS:
        raise ValueError(f"errors must be one of {', '.join(ERRORS)}, got {errors!r}")
    return errors


# ------------------------------------------------------------------------------------------------ files and archives


def find(folder, layouts, title="the data"):
    """The files of the first layout that is there, in order.

    Parameters
    ----------
    folder : path
    layouts : sequence of sequences of str
        Each layout is a list of names or patterns, relative to ``folder``; all of them must be there, each as it is or
        with ``.gz`` at its end.
    title : str
        For the message.

    Returns
    -------
    list of Path
        The files of a pattern in ascending order of name.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(folder, None, f"no such folder; {title} needs {in_words(layouts)}")
    best, near, missing = -1, layouts[0], layouts[0][0]
    for layout in layouts:
        found = [_matches(folder, pattern) for pattern in layout]
        if all(found):
            return [path for paths in found for path in paths]
        if sum(map(bool, found)) > best:
            best, near = sum(map(bool, found)), layout
            missing = next(pattern for pattern, paths in zip(layout, found, strict=True) if not paths)
    raise DataError(folder / missing, None, f"no such file; {title} needs {in_words(layouts, near)}")


def in_words(layouts, usual=None):
    """Layouts as a text, the same names in another folder once; of more than ``FEW`` just the usual one (the first).

    Examples
    --------
    >>> in_words([("a.txt", "b.txt"), ("more/a.txt", "more/b.txt"), ("c.csv",)])
    'a.txt + b.txt or c.csv'
    """
    shown = {}
    for layout in layouts:
        shown.setdefault(tuple(PurePosixPath(name).name for name in layout), layout)
    shown = shown.values() if len(shown) <= FEW else [usual or layouts[0]]
    return " or ".join(" + ".join(layout) for layout in shown)


def _matches(folder, pattern):
    """The files of a name or pattern, each as it is or else packed, in ascending order of name."""
    found = {}
    for name in (pattern + ".gz", pattern):  # where a file is there in both forms, the one that is not packed counts
        found |= {str(path).removesuffix(".gz"): path for path in folder.glob(name) if path.is_file()}
    return [found[name] for name in sorted(found)]


def open_bytes(path):
    """A binary stream of a file, unpacked where its name ends in ``.gz``."""
    path = Path(path)
    if not path.is_file():
        raise DataError(path, None, "no such file")
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


def read_block(stream, size, path):
    """``size`` bytes of a stream (fewer at its end); a damaged archive is a :class:`DataError`."""
    try:
        return stream.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(path, None, f"the archive is damaged or cut short ({error})") from error
    except OSError as error:
        raise DataError(path, None, f"can't be read ({error})") from error


def unpack(archive, members, folder, limit=2**34):
    """Take some members out of a zip archive into a folder, flat, each whole or not at all.

    Parameters
    ----------
    archive : path
    members : sequence of str
        Names inside the archive. Nothing else is taken out; an archive that holds any name that leads out of the folder
        (``../x``, ``/x``, ``C:\\x``, a link) is refused as a whole.
    folder : path
        Where the members go, under the last part of their names.
    limit : int
        Refuse a member that unpacks to more bytes than this.

    Returns
    -------
    list of Path
    """
    folder, paths = Path(folder), []
    try:
        with zipfile.ZipFile(archive) as whole:
            known = {info.filename: info for info in whole.infolist()}
            for info in known.values():
                _refuse_escape(archive, info)
            for member in members:
                if member not in known:
                    raise DataError(archive, None, f"holds no {member}")
                if known[member].file_size > limit:
                    raise DataError(
                        archive, None, f"{member} unpacks to {known[member].file_size:,} bytes, over {limit:,}"
                    )
            for member in members:
                paths.append(folder / PurePosixPath(member).name)
                with whole.open(member) as source, whole_or_nothing(paths[-1]) as target:
                    shutil.copyfileobj(source, target, BLOCK)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(archive, None, f"the archive is damaged or cut short ({error})") from error
    return paths


def _refuse_escape(archive, info):
    name = info.filename.replace("\\", "/")
    link = stat.S_ISLNK(info.external_attr >> 16)
    if link or name.startswith("/") or ":" in name.split("/")[0] or ".." in name.split("/"):
        raise DataError(archive, None, f"member {info.filename!r} leads out of the folder; nothing was unpacked")


class whole_or_nothing:
    """``with whole_or_nothing(path) as file``: a binary file that appears under its name, complete and on disk, or not
    at all. What a killed process leaves behind is called ``.NAME.*.part`` and is removed when it is a day old.
    """

    def __init__(self, path):
        self.path = Path(path)

    def __enter__(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for old in self.path.parent.glob(f".{self.path.name}.*.part"):
            if old.stat().st_mtime < os.stat(self.path.parent).st_mtime - 86_400:
                old.unlink(missing_ok=True)
        handle, self.part = tempfile.mkstemp(prefix=f".{self.path.name}.", suffix=".part", dir=self.path.parent)
        self.file = os.fdopen(handle, "w+b")
        return self.file

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.file.flush()
                os.fsync(self.file.fileno())
            self.file.close()
            if kind is None:
                os.chmod(self.part, 0o666 & ~_umask())
                os.replace(self.part, self.path)
                sync_folder(self.path.parent)
        finally:
            self.file.close()
            Path(self.part).unlink(missing_ok=True)


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sync_folder(folder):
    """Ask the system to put a folder's names on disk, where it can (not on Windows)."""
    if os.name != "nt":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# ------------------------------------------------------------------------------------------------ lines


class Chunk:
    """Some whole lines of a text file, as bytes and places.

    Attributes
    ----------
    file : Path
    line : int
        Number of the first line, from 1.
    index : int array or None
        After :meth:`select`, which lines these are, counted from ``line``.
    data : uint8 array
        The bytes, after ``PAD`` zeros.
    start, end : int64 arrays, shape (n,)
        Line ``i`` is ``data[start[i] : end[i]]``, without its line end.
    """

    def __init__(self, file, line, data):
        self.file, self.line, self.data = Path(file), line, data
        self.index = None
        stops = np.flatnonzero(data == 10)
        self.start = np.concatenate(([PAD], stops[:-1] + 1)) if len(stops) else np.zeros(0, np.int64)
        self.returns = (data[stops - 1] == 13) & (stops > self.start)  # Windows line ends
        self.end = stops - self.returns
        self._why = np.zeros(len(self.start), np.uint8)
        self._reasons = [None]
        self._look()

    def __len__(self):
        return len(self.start)

    def row(self, i):
        """Line ``i`` as text; what is not UTF-8 is replaced."""
        return self.data[self.start[i] : self.end[i]].tobytes().decode("utf-8", "replace")

    def number_of(self, i):
        """Number of line ``i`` in the file, from 1."""
        return self.line + int(i if self.index is None else self.index[i])

    @property
    def numbers(self):
        """Numbers of all lines in the file: (n,), as :meth:`number_of`."""
        return self.line + (np.arange(len(self)) if self.index is None else self.index)

    def select(self, mask):
        """The chunk of the lines where ``mask`` is True, with what was said against them so far."""
        part = copy.copy(self)
        rows = np.flatnonzero(mask)
        part.index = rows if self.index is None else self.index[rows]
        part.start, part.end, part._why, part._reasons = (
            self.start[rows], self.end[rows], self._why[rows], list(self._reasons)
        )  # fmt: skip
        return part

    def refuse(self, bad, reason):
        """Mark rows (a mask or indices) as bad, for a reason; the first reason stays."""
        if bad.dtype == bool:
            if not bad.any():
                return
            bad = np.flatnonzero(bad)
        if reason not in self._reasons:
            self._reasons.append(reason)
        bad = bad[self._why[bad] == 0]
        self._why[bad] = self._reasons.index(reason)

    @property
    def good(self):
        """Mask of the rows that nothing was said against."""
        return self._why == 0

    def because(self, reason):
        """Mask of the rows that were refused for a reason."""
        return self._why == self._reasons.index(reason) if reason in self._reasons else np.zeros(len(self), bool)

    def settle(self, report, errors="raise", count=True):
        """Raise at the first bad row, or count the bad ones; returns the mask of the good rows.

        Blank lines are counted, never raised. With ``count=False`` the good rows are not added to ``report.read``
        (they were headings).
        """
        bad = np.flatnonzero(self._why)
        for i in bad:
            reason = self._reasons[self._why[i]]
            if reason != BLANK and errors == "raise":
                text = self.row(i)
                shown = text if len(text) <= 60 else text[:57] + "..."
                raise DataError(self.file, self.number_of(i), f"{reason}: {shown!r}")
        for code, number in enumerate(np.bincount(self._why[bad], minlength=1)):
            if code:
                report.drop(self._reasons[code], number)
        report.read += len(bad) + (len(self) - len(bad) if count else 0)
        return self.good

    def _look(self):
        """Mark blank lines, NUL bytes and lines that are not UTF-8."""
        first = self.data[np.minimum(self.start, len(self.data) - 1)] if len(self) else self.data[:0]
        doubt = np.flatnonzero((self.end == self.start) | (first == 32) | (first == 9))
        blank = [i for i in doubt if not self.data[self.start[i] : self.end[i]].tobytes().strip(b" \t")]
        self.refuse(np.array(blank, np.int64), BLANK)
        body = self.data[PAD:].tobytes()
        if b"\0" in body:
            self.refuse(self._rows_with(self.data == 0), "a NUL byte")
        if not body.isascii():
            try:
                body.decode()
            except UnicodeDecodeError:
                rows = self._rows_with(self.data > 127)
                wrong = [i for i in rows if not _is_text(self.data[self.start[i] : self.end[i]])]
                self.refuse(np.array(wrong, np.int64), "not UTF-8")

    def _rows_with(self, mask):
        places = np.flatnonzero(mask)
        return np.unique(np.searchsorted(self.start, places[places >= PAD], side="right") - 1)

    # -------------------------------------------------------------------------------------------- fields

    def split(self, separator, count):
        """Where the fields of each row start and end: two int64 arrays (n, count).

        ``separator`` is a byte string, ``count`` the number of fields expected. Rows with another number are refused,
        and all their fields are empty.
        """
        here = self.data == separator[0]
        for shift, byte in enumerate(separator[1:], 1):
            here[:-shift] &= self.data[shift:] == byte
        places, wide = np.flatnonzero(here), len(separator)
        if wide > 1:
            places = _without_overlap(places, wide)
        n = len(self)
        cut = places.reshape(n, count - 1) if len(places) == n * (count - 1) else None
        regular = cut is not None and (
            count == 1 or bool(np.all(cut[:, 0] >= self.start) and np.all(cut[:, -1] < self.end))
        )
        if not regular:
            after = np.searchsorted(places, self.end)
            number = after - np.searchsorted(places, self.start)
            fits = number == count - 1
            self.refuse(~fits & self.good, f"expected {count} fields")
            cut = np.repeat(self.start[:, None], count - 1, axis=1)
            rows = np.flatnonzero(fits)
            cut[rows] = places[(after[rows] - (count - 1))[:, None] + np.arange(count - 1)]
            wide = np.where(fits, wide, 0)[:, None]
            end = np.where(fits, self.end, self.start)
        else:
            end = self.end
        start = np.concatenate((self.start[:, None], cut + wide), axis=1)
        return start, np.concatenate((cut, end[:, None]), axis=1)

    def whole(self, start, end, what="a number", low=0, high=2**62):
        """Whole numbers without a sign, ``low`` to ``high``, from the fields ``[start, end)``; others are refused."""
        value, bad = digits(self.data, start, end)
        self.refuse(bad, f"{what} is not a whole number")
        out = ~bad & ((value < low) | (value > high))
        self.refuse(out, f"{what} is not in {low} … {high}")
        value[out] = low
        return value

    def number(self, start, end, what="a number", low=0.0, high=1e18):
        """Decimal numbers, ``low`` to ``high``, such as 4, 3.5 or 9.78e8; other rows are refused."""
        text = self.text(start, end, what, longest=40)
        letters = text.view(np.uint8).reshape(len(text), text.dtype.itemsize)
        bad = ~_DECIMAL[letters].all(axis=1) | (letters[:, 0] == 0)
        value = np.zeros(len(text))
        try:
            value[~bad] = text[~bad].astype(np.float64)
        except ValueError:  # rare: find out which
            for i in np.flatnonzero(~bad):
                try:
                    value[i] = float(text[i])
                except ValueError:
                    bad[i] = True
        self.refuse(bad, f"{what} is not a number")
        value[bad] = 0
        out = ~bad & ~((value >= low) & (value <= high))
        self.refuse(out, f"{what} is not in {low:g} … {high:g}")
        value[out] = low
        return value

    def text(self, start, end, what="a field", longest=256):
        """The fields ``[start, end)`` as a NumPy array of bytes; rows with one longer than that are refused."""
        length = end - start
        self.refuse(length > longest, f"{what} has more than {longest} bytes")
        length = np.where(length > longest, 0, length)
        width = max(1, int(length.max(initial=1)))
        place = start[:, None] + np.arange(width)
        np.minimum(place, len(self.data) - 1, out=place)
        letters = np.where(np.arange(width) < length[:, None], self.data[place], 0).astype(np.uint8)
        return letters.view(f"S{width}")[:, 0]

    def day(self, start, end, what="the date", mark=b"-"):
        """Days since 1970-01-01 of dates such as 2005-09-06 (``mark=b"-"``) or 20050906 (``mark=b""``)."""
        wide = len(mark)
        bad = end - start != 8 + 2 * wide
        if bad.any():
            start, end = np.where(bad, PAD, start), np.where(bad, PAD, end)
        last = _words(self.data, end - 8)
        if wide:  # 2005-09-06: the digits of year and month from the first eight bytes, those of the day from the last
            first = _words(self.data, end - 10)
            bad |= (self.data[end - 6] != mark[0]) | (self.data[end - 3] != mark[0])
            last = (first & _YEAR) | (first >> np.uint64(8) & _MONTH) | (last & _DAY)
        number, wrong = _eight(last, np.full(len(last), 8))
        bad |= wrong
        self.refuse(bad, f"{what} is not of the form yyyy{mark.decode()}mm{mark.decode()}dd")
        number[bad] = 19700101
        return self._existing(number, what)

    def civil(self, year, month, day, what="the date"):
        """Days since 1970-01-01; rows whose date does not exist, or is not in 1970 … 2099, are refused."""
        inside = (year < 10_000) & (month < 100) & (day < 100)
        return self._existing(np.where(inside, year * 10_000 + month * 100 + day, 0), what)

    def _existing(self, number, what):
        inside = (number >= 19_700_000) & (number < 21_000_000)
        found = _days()[np.where(inside, number - 19_700_000, 0)]
        self.refuse(found < 0, f"{what} is none from 1970 to 2099")
        return np.maximum(found, 0)


_ZEROS = np.uint64(0x3030303030303030)  # eight times '0'
_OVER = np.uint64(0x7676767676767676)  # added to a byte above 9, sets its highest bit
_HIGH = np.uint64(0x8080808080808080)
_YEAR, _MONTH, _DAY = np.uint64(0xFFFFFFFF), np.uint64(0xFFFF00000000), np.uint64(0xFFFF000000000000)
_DECIMAL = np.zeros(256, bool)
_DECIMAL[list(b"\x000123456789.+-eE")] = True


@functools.cache
def _days():
    """Day number of the date ``19700000 + i``, read as yyyymmdd, for 1970 to 2099; -1 where there is no such date."""
    table = np.full(1_300_000, -1, np.int32)
    days = np.arange("1970-01-01", "2100-01-01", dtype="datetime64[D]")
    month = days.astype("datetime64[M]")
    year = days.astype("datetime64[Y]")
    code = year.astype(np.int64) * 10_000 + ((month - year).astype(np.int64) + 1) * 100
    table[code + (days - month).astype(np.int64) + 1] = days.astype(np.int32)
    return table


def digits(data, start, end):
    """Whole numbers from the fields ``data[start[i] : end[i]]``: values, and a mask of the fields that are none.

    A number is 1 to 18 digits and nothing else. Eight are read at once: the bytes of a 64-bit word are the digits of a
    number in base 256, and three multiplications join neighbours into digits of base 100, 10,000 and 100,000,000.
    ``data`` starts with ``PAD`` bytes that are in no field.

    Examples
    --------
    >>> data = np.frombuffer(bytes(PAD) + b"12,x,1234567890123", np.uint8)
    >>> digits(data, PAD + np.array([0, 3, 5]), PAD + np.array([2, 4, 18]))
    (array([           12,             0, 1234567890123]), array([False,  True, False]))
    """
    length = end - start
    longest, bad = int(length.max(initial=0)), length < 1
    if longest == 1:
        value = data[end - 1].astype(np.int64) - 48
        bad |= (value < 0) | (value > 9)
    elif longest <= 8:
        value, wrong = _eight(_words(data, end - 8), length)
        bad |= wrong
    else:
        bad |= length > 18
        value = np.zeros(len(start), np.int64)
        for part in (2, 1, 0):  # digits 17 to 24 from the right, 9 to 16, 1 to 8
            inside = np.clip(length - 8 * part, 0, 8)
            number, wrong = _eight(_words(data, end - 8 * part - 8), inside)
            value = value * 10**8 + number
            bad |= wrong
    value[bad] = 0
    return value, bad


def _words(data, start):
    """The eight bytes from each place on, the first of them lowest: (n,) uint64."""
    return np.lib.stride_tricks.sliding_window_view(data, 8)[start].view("<u8")[:, 0]


def _eight(word, length):
    """The numbers in the last ``length`` (0 to 8) characters of 8-byte words, and a mask of those that are none."""
    shift = (64 - 8 * length).astype(np.uint64)
    empty = shift == 64
    shift[empty] = 0
    digit = word ^ _ZEROS
    digit >>= shift
    digit <<= shift  # bytes before the field: 0
    digit[empty] = 0
    bad = (((digit + _OVER) | digit) & _HIGH) != 0  # a byte above 9
    digit *= np.uint64(2561)
    digit >>= np.uint64(8)
    digit &= np.uint64(0x00FF00FF00FF00FF)
    digit *= np.uint64(6553601)
    digit >>= np.uint64(16)
    digit &= np.uint64(0x0000FFFF0000FFFF)
    digit *= np.uint64(42949672960001)
    digit >>= np.uint64(32)
    return digit.astype(np.int64), bad


def _is_text(part):
    try:
        part.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def _without_overlap(places, wide):
    """Of matches that overlap (``:::`` holds ``::`` twice) the first, from left to right."""
    close = np.flatnonzero(np.diff(places) < wide)
    if not len(close):
        return places
    keep, last = np.ones(len(places), bool), -wide
    for i in np.unique(np.concatenate((close, close + 1))):
        keep[i] = places[i] - last >= wide
        if keep[i]:
            last = places[i]
    return places[keep]


def chunks(path, report, size=None):
    """The lines of a text file, a :class:`Chunk` of about ``size`` bytes (default ``BLOCK``) at a time.

    Takes off a byte order mark, notes it, Windows line ends and a last line without a line end in ``report``. A file
    without any line, and one that starts like UTF-16 or an archive, is a :class:`DataError`.
    """
    path, line, rest, seen, size = Path(path), 1, b"", False, size or BLOCK
    with open_bytes(path) as stream:
        while True:
            block = read_block(stream, size if seen else max(size, 64), path)
            if not seen:
                block = _opening(path, block, report)
                seen = True
            final = not block
            block = rest + block
            if final and block:
                report.note(f"{path.name}: the last line has no line end; the file may be cut short there")
                block += b"\n"
            cut = block.rfind(b"\n") + 1
            rest = block[cut:]
            if len(rest) > LONGEST + 1:
                raise DataError(path, line + block.count(b"\n"), f"a line of more than {LONGEST:,} bytes")
            if cut:
                chunk = Chunk(path, line, np.frombuffer(b"\0" * PAD + block[:cut], np.uint8))
                if chunk.returns.any():
                    report.note(f"{path.name}: Windows line ends")
                wide = chunk.end - chunk.start > LONGEST
                if wide.any():
                    raise DataError(path, chunk.number_of(wide.argmax()), f"a line of more than {LONGEST:,} bytes")
                line += len(chunk)
                yield chunk
            if final:
                return


def _opening(path, block, report):
    for mark, kind in MARKS.items():
        if block.startswith(mark):
            raise DataError(path, 1, f"expected text in UTF-8; this is {kind}")
    if block.startswith(codecs.BOM_UTF8):
        report.note(f"{path.name}: byte order mark")
        block = block[3:]
    if not block:
        raise DataError(path, None, "the file is empty")
    return block


def lines(path, report, errors="raise"):
    """The lines of a text file, one at a time: (number from 1, text). For small files: a Python loop.

    Each line counts as read; blank ones and, with ``errors="drop"``, those that are not UTF-8 are dropped and counted.
    """
    for chunk in chunks(path, report):
        for i in np.flatnonzero(chunk.settle(report, errors)):
            yield chunk.line + int(i), chunk.row(i)
