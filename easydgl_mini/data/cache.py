"""Prepared data on disk: one ``.npz`` per dataset and options, without pickles, whole or not there at all.

The archive holds the arrays and a manifest (which bytes they were made from, by which version of the loader, with which
options, and what was dropped). Its last 64 bytes, the zip comment, are the SHA-256 of everything before them: a file
that was cut short or altered anywhere is noticed and built again. ``np.load`` reads it too.
"""

import dataclasses
import hashlib
import json
import os
import warnings
import zipfile
from pathlib import Path

import numpy as np

from .files import BLOCK, DataError, Report, whole_or_nothing

FORMAT = 1
FOLDER = ".easydgl-cache"
MEMO = "sha256.json"
MANIFEST = "manifest.json"
NONE_YET = "there is no cache yet"


@dataclasses.dataclass
class Prepared:
    """Arrays with what they were made from.

    Attributes
    ----------
    arrays : dict of arrays
    report : Report
    fingerprint : str
        SHA-256 over the content of the raw files, the loader's version and the options.
    path : Path or None
        The cache's file.
    built : str
        Why the raw files were read; empty where the cache served.
    """

    arrays: dict
    report: Report
    fingerprint: str
    path: Path | None = None
    built: str = ""


def sha256(path):
    """SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_digests(paths, folder=None):
    """SHA-256 of each file, in order.

    With a ``folder`` the digests are remembered there, and a file whose size and times of change are what they were is
    not read again.
    """
    memo_path = None if folder is None else Path(folder) / MEMO
    memo = _read_json(memo_path) if memo_path else {}
    known = dict(memo)
    for path in paths:
        key, state = str(Path(path).resolve()), _state(path)
        entry = known.get(key)
        if not (isinstance(entry, list) and len(entry) == 2 and entry[0] == state and isinstance(entry[1], str)):
            known[key] = [state, sha256(path)]
    if memo_path and known != memo:
        _try_to_write(memo_path, lambda file: file.write(json.dumps(known, indent=1).encode()))
    return [known[str(Path(path).resolve())][1] for path in paths]


def _state(path):
    info = os.stat(path)
    return [info.st_size, info.st_mtime_ns, info.st_ctime_ns]


def fingerprint_of(name, version, options, paths, digests):
    """SHA-256 over the files' content and names, the loader's version and the options."""
    files = [[Path(path).name, digest] for path, digest in zip(paths, digests, strict=True)]
    return hashlib.sha256(_canonical([FORMAT, name, version, options, files])).hexdigest()


def prepare(name, version, options, paths, build, folder=None):
    """Arrays from the cache where it is whole and fits the raw files; else from ``build()``, which is then cached.

    Parameters
    ----------
    name, version, options : str, int, dict
        Which loader, and how it is asked to read. ``options`` must go into JSON.
    paths : sequence of paths
        The raw files.
    build : function () -> (dict of arrays, Report)
    folder : path or None
        Where caches are kept; None for none.

    Returns
    -------
    Prepared
    """
    before = [_state(path) for path in paths]
    fingerprint = fingerprint_of(name, version, options, paths, file_digests(paths, folder))
    path = None if folder is None else place(folder, name, options)
    found, why = (None, "no cache is kept") if path is None else load(path, fingerprint)
    if found is not None:
        return found
    arrays, report = build()
    for file, state in zip(paths, before, strict=True):
        if _state(file) != state:
            raise DataError(file, None, "changed while it was being read; try again")
    done = Prepared(arrays, report, fingerprint, path, why)
    if path is not None:
        save(done, name, version, options)
    return done


def place(folder, name, options):
    """The cache's file for a dataset read with some options."""
    return Path(folder) / f"{name}-{hashlib.sha256(_canonical([name, options])).hexdigest()[:12]}.npz"


def save(prepared, name, version, options):
    """Write a cache, atomically. Where the folder can't be written to, warn and go without."""
    manifest = {
        "format": FORMAT,
        "name": name,
        "version": version,
        "options": options,
        "fingerprint": prepared.fingerprint,
        "report": dataclasses.asdict(prepared.report),
    }

    def write(file):
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.comment = b"0" * 64
            for key, array in prepared.arrays.items():
                with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(MANIFEST), _canonical(manifest))
        file.seek(-64, os.SEEK_END)
        end = file.tell()
        file.seek(0)
        digest = _digest_until(file, end)
        file.seek(end)
        file.write(digest.encode())

    if not _try_to_write(prepared.path, write):
        prepared.path = None


def load(path, fingerprint=None):
    """``(Prepared, "")``, or ``(None, reason)``: there is no cache, it is damaged, or made from something else."""
    path = Path(path)
    if not path.is_file():
        return None, NONE_YET
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size < 64:
                return None, "the cache is cut short"
            file.seek(0)
            if _digest_until(file, size - 64) != file.read().decode("ascii", "replace"):
                return None, "the cache is altered or cut short"
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                manifest = json.loads(archive[MANIFEST])
                if manifest.get("format") != FORMAT:
                    return None, "the cache is of another format"
                if fingerprint is not None and manifest["fingerprint"] != fingerprint:
                    return None, "the raw files or the loader have changed"
                arrays = {key: archive[key] for key in archive.files if key != MANIFEST}
                report = Report(**manifest["report"])
                return Prepared(arrays, report, manifest["fingerprint"], path), ""
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        return None, f"the cache can't be read ({error})"


def _digest_until(file, end):
    digest, left = hashlib.sha256(), end - file.tell()
    while left > 0:
        block = file.read(min(BLOCK, left))
        if not block:
            break
        digest.update(block)
        left -= len(block)
    return digest.hexdigest()


def _canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _read_json(path):
    try:
        value = json.loads(Path(path).read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _try_to_write(path, write):
    try:
        with whole_or_nothing(path) as file:
            write(file)
    except OSError as error:
        warnings.warn(f"{path}: the prepared data can't be kept ({error.strerror or error})", stacklevel=2)
        return False
    return True
