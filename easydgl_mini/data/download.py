"""Getting the files: public archives over the network, when asked and never otherwise; instructions for the rest.

pooch checks the SHA-256 and keeps what is already there; the bytes come through a downloader of our own, because the
one pooch has starts again after an interruption. Ours keeps what has come so far in ``ARCHIVE.part`` and asks the
server for the rest the next time. A finished file appears under its name only with the right SHA-256.
"""

import os
from pathlib import Path

from . import cache, files
from .files import DataError
from .registry import dataset

TRIES = 3


def fetch(name, folder, progress=True):
    """Put a public dataset's files into ``folder/name``; returns their paths.

    Parameters
    ----------
    name : str
        A key of :data:`easydgl_mini.data.DATASETS`.
    folder : path
        The data folder.
    progress : bool
        Show a bar while the archive comes.

    Raises
    ------
    DataError
        Where a dataset is not public: what to download, and where to put it. Where an archive is not what it should be.
    """
    entry, target = dataset(name), Path(folder) / name
    for archive in entry.local:
        path = target / archive.url
        if path.is_file():
            _check(path, archive.sha256)
            return files.unpack(path, archive.members, target)
    try:
        return files.find(target, entry.layouts, entry.title)
    except DataError:
        if entry.fetch is None:
            raise DataError(
                target, None, f"{entry.title} can't be fetched for you. {instructions(entry, target)}"
            ) from None
    target.mkdir(parents=True, exist_ok=True)
    return files.unpack(_retrieve(entry.fetch, target, progress), entry.fetch.members, target)


def _retrieve(public, target, progress):
    """The path of a public archive, downloaded if it is not there."""
    import pooch

    downloader, logger = Resuming(progress), pooch.get_logger()
    known = {"known_hash": f"sha256:{public.sha256}", "fname": public.url.rsplit("/", 1)[1], "path": target}
    level = logger.level
    logger.setLevel("WARNING")  # the bar says it
    try:
        return pooch.retrieve(public.url, downloader=downloader, **known)
    except ValueError as error:
        if isinstance(error, DataError) or not downloader.resumed:
            raise
        return pooch.retrieve(public.url, downloader=downloader, **known)  # the part was of another file
    finally:
        logger.setLevel(level)


def instructions(entry, target):
    """What to download and where to put it, in a sentence or two."""
    text = f"Get {entry.files} from {entry.where}, and put it into the folder {target}"
    for archive in entry.local:
        text += f", or put {archive.url} (sha256 {archive.sha256}) there and fetch"
    return text


def _check(path, sha256):
    got = cache.sha256(path)
    if got != sha256:
        raise DataError(path, None, f"its SHA-256 is {got}, expected {sha256}; remove it and get it again")


class Resuming:
    """A downloader for pooch that goes on where an earlier one stopped: ``resumed`` says whether it did.

    What has come is in ``NAME.part`` beside the file to be. If the server does not do ranges, it starts again; a part
    that turns out to have the wrong SHA-256 is removed.
    """

    def __init__(self, progress=True, timeout=30):
        self.progress, self.timeout, self.resumed = progress, timeout, False

    def __call__(self, url, output_file, pooch):
        name = url.rsplit("/", 1)[1]
        part = Path(output_file).with_name(f"{name}.part")
        for left in reversed(range(TRIES)):
            try:
                self._download(url, part, name)
                break
            except OSError as error:
                if not left or getattr(error, "response", None) is not None:
                    have = part.stat().st_size if part.is_file() else 0
                    text = f"{_why(error)}; {have:,} bytes are kept, fetch again to go on"
                    text += f", or put {name} into {part.parent} yourself and fetch"
                    raise DataError(url, None, text) from error
        os.replace(part, output_file)

    def _download(self, url, part, name):
        import requests
        import tqdm

        have = part.stat().st_size if part.is_file() else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with requests.get(url, headers=headers, stream=True, timeout=self.timeout) as answer:
            if answer.status_code == 416:  # nothing is left to send, or the part is too long: the checksum will tell
                self.resumed = True
                return
            answer.raise_for_status()
            if answer.status_code != 206:
                have = 0
            self.resumed = have > 0
            size = int(answer.headers.get("Content-Length", 0)) + have or None
            bar = {"total": size, "initial": have, "unit": "B", "unit_scale": True, "disable": not self.progress}
            with open(part, "ab" if have else "wb") as file, tqdm.tqdm(desc=name, **bar) as shown:
                for block in answer.iter_content(2**14):
                    file.write(block)
                    shown.update(len(block))
        if size is not None and part.stat().st_size < size:
            raise OSError(f"only {part.stat().st_size:,} of {size:,} bytes came")


def _why(error):
    return " ".join(str(error).split())[:160] or type(error).__name__
