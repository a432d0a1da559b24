"""Raw files at the paper's sizes: time and memory to write them, to read them into the cache, to read the cache.

    python tests/benchmarks/bench_raw.py elliptic metr-la koubei tmall      # a minute or two
    python tests/benchmarks/bench_raw.py netflix                            # several minutes, 2 GB of disk
    python tests/benchmarks/bench_raw.py --scale tiny                       # all five, small

Reading user-item events is measured in ``bench_data.py``, and not here. Each step is a process of its own. ``cpu`` is
processor time, on which other work on the machine counts little. Files go into a temporary folder (``--folder`` to
choose where) and are removed afterwards (``--keep`` to keep them).
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAMES = ("elliptic", "metr-la", "koubei", "tmall", "netflix")
READ = ("elliptic", "metr-la")


def write(name, scale, folder):
    """Simulate a dataset and write its raw files."""
    from easydgl_mini.data.raw import write_raw

    write_raw(name, scale, folder / name)
    return f"{sum(path.stat().st_size for path in (folder / name).iterdir()) / 1e9:.2f} GB"


def read(name, scale, folder):
    """From raw files, or from the cache where there is one, to what a model is trained on."""
    from easydgl_mini import data

    found = data.load(name, folder)
    return f"{found}; {found.report}"


STEPS = {"write": write, "raw to cache": read, "cache": read}


def measured(step, name, scale, folder):
    """Run one step in a process of its own."""
    command = [sys.executable, __file__, "--step", step, name, "--scale", scale, "--folder", str(folder)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def run(step, name, scale, folder):
    """One step, here; prints what it took."""
    import easydgl_mini.data  # noqa: F401  (torch's import is not what is measured)

    start, cpu = time.perf_counter(), time.process_time()
    what = STEPS[step](name, scale, Path(folder))
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": peak, "what": what}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)} (default: all)")
    parser.add_argument("--scale", default="full", choices=("tiny", "small", "full"))
    parser.add_argument("--folder", help="where the files go (default: a temporary folder)")
    parser.add_argument("--keep", action="store_true", help="don't remove the files")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if set(arguments.names) - set(NAMES):
        parser.error(f"NAME must be one of {', '.join(NAMES)}")
    if arguments.step:
        return run(arguments.step, arguments.names[0], arguments.scale, arguments.folder)
    for name in arguments.names or NAMES:
        folder = Path(tempfile.mkdtemp(prefix="easydgl-raw-", dir=arguments.folder))
        try:
            for step in STEPS if name in READ else ("write",):
                took = measured(step, name, arguments.scale, folder)
                seconds = f"{took['seconds']:7.1f} s {took['cpu']:7.1f} s cpu {took['peak']:6.2f} GB"
                print(f"{name:9s} {step:13s} {seconds}  {took['what']}", flush=True)
        finally:
            if arguments.keep:
                print(f"{name:9s} kept in {folder}")
            else:
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
