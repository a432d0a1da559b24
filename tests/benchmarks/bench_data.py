"""Raw text to cached histories, beside a plain ``pandas.read_csv`` of the same files.

    python tests/benchmarks/bench_data.py [netflix|tmall|koubei ...] [--scale full] [--data DIR]

Without ``--data`` the raw files are simulated into a temporary folder (``easydgl-mini simulate NAME --scale full``: 100
million ratings, about 2 GB, for netflix). Each step runs in a process of its own:

``prepare``: raw files to the cache: hashed, parsed, checked, repeated rows dropped, sorted by user and time, written.
``load``: the cache to an EventLog. ``histories``: the last 31 events of every user, in the paper's time unit.
``read_csv``: pandas' C parser on the same files, one after the other, nothing kept, sorted or checked.

Target for netflix at full scale: prepare and histories in under 3 minutes and 10 GB on two cores. Seconds are those of
the clock and, in brackets, of the processor; memory is the process's high-water mark, imports included.
"""

import argparse
import multiprocessing
import os
import re
import tempfile
import time
from pathlib import Path


def files_of(name, folder):
    from easydgl_mini import data

    return data.files.find(data.folder_of(name, folder), data.dataset(name).layouts)


def prepare(name, folder):
    from easydgl_mini import data

    return str(data.prepare(name, folder, errors="raise").report)


def load(name, folder):
    from easydgl_mini import data

    return repr(data.load(name, folder))


def histories(name, folder):
    from easydgl_mini import data

    rows = data.load(name, folder).histories(31, data.dataset(name).defaults["time_unit"])
    return f"{len(rows):,} rows of 31"


def read_csv(name, folder):
    import pandas as pd

    count = 0
    for path in files_of(name, folder):
        options = {} if name == "tmall" else {"header": None, "names": ["a", "b", "c", "d"][: 3 + (name == "koubei")]}
        count += len(pd.read_csv(path, **options))
    return f"{count:,} lines"


def measured(step, *args):
    """What a step returns, its seconds and its peak memory in GB (Linux)."""
    start, begin = time.perf_counter(), time.process_time()
    result = step(*args)
    seconds, cpu = time.perf_counter() - start, time.process_time() - begin
    peak = int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 2**20
    return result, seconds, cpu, peak


def bench(name, folder):
    size = sum(path.stat().st_size for path in files_of(name, folder))
    print(f"--- {name}: {size / 1e9:.2f} GB of text, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for step in (prepare, load, histories, read_csv):
            result, seconds, cpu, peak = pool.apply(measured, (step, name, folder))
            print(f"{step.__name__:>10}: {seconds:6.1f} s ({cpu:6.1f} s), {peak:5.2f} GB   {result}", flush=True)
    kept = max((Path(folder) / ".easydgl-cache").glob(f"{name}-*.npz"), key=os.path.getmtime)
    print(f"     cache: {kept.stat().st_size / 1e9:.2f} GB")


def main():
    names = ("netflix", "tmall", "koubei")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", choices=[*names, []], default=[])
    parser.add_argument("--scale", default="full", choices=["tiny", "small", "full"])
    parser.add_argument("--data", help="a data folder with the raw files, simulated or real")
    args = parser.parse_args()
    for name in args.which or names:
        with tempfile.TemporaryDirectory() as scratch:
            folder = args.data or scratch
            if not args.data:
                from easydgl_mini.data.raw import write_raw

                write_raw(name, args.scale, Path(scratch) / name, seed=0)
            for old in (Path(folder) / ".easydgl-cache").glob(f"{name}-*.npz"):
                old.unlink()
            bench(name, folder)


if __name__ == "__main__":
    main()
