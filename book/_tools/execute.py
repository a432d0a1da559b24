"""Run chapters in place: ``make execute`` for all, ``make execute NB=book/tour.ipynb`` for one.

A file is replaced only when every cell of it ran; volatile metadata (times, versions) is stripped, so that running a
chapter twice leaves nothing to commit.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parents[2]
VOLATILE = "metadata.language_info.version metadata.jupytext cell.metadata.execution cell.metadata.lines_to_next_cell"


def strip(path):
    """Remove times, versions and editors' notes from the notebook at ``path``; outputs and counts stay."""
    command = [sys.executable, "-m", "nbstripout", "--keep-output", "--keep-count", "--extra-keys", VOLATILE, str(path)]
    subprocess.run(command, check=True)


def execute(path):
    """Run the notebook at ``path`` from its own folder and replace it; raises and leaves it alone if a cell fails."""
    path = Path(path)
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": path.parent}},
    )
    client.execute()
    draft = path.with_name(f".{path.name}.draft.ipynb")
    try:
        nbformat.write(notebook, draft)
        strip(draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def main(arguments):
    """Run the notebooks named, or all of ``book/``; the exit code tells if one failed."""
    os.environ.setdefault("DGLBACKEND", "pytorch")
    paths = [Path(name) for name in arguments] or sorted((ROOT / "book").glob("*.ipynb"))
    missing = [str(path) for path in paths if path.suffix != ".ipynb" or not path.exists()]
    if missing or not paths:
        sys.exit(f"make execute: no such notebook: {', '.join(missing) or 'book/*.ipynb'} (use NB=book/NAME.ipynb)")
    failed = []
    for path in paths:
        start = time.perf_counter()
        print(f"{path.name} ...", end=" ", flush=True)
        try:
            execute(path)
            print(f"ran in {time.perf_counter() - start:.0f} s")
        except CellExecutionError as error:
            failed.append(path.name)
            print(f"FAILED, the file was left as it was\n{error}")
    if failed:
        sys.exit(f"make execute: {len(failed)} of {len(paths)} failed: {', '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
