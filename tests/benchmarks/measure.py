"""What the benchmarks share: interleaved timing, ratios inside a round, and the growth of a process's memory."""

import re
import statistics
import time
from pathlib import Path


def interleaved(runs, rounds):
    """Processor seconds per round for each name, one round after the other; the first, cold, is not counted."""
    seconds = {name: [] for name in runs}
    for n in range(rounds + 1):
        for name, run in runs.items():
            start = time.process_time()
            run()
            if n:
                seconds[name].append(time.process_time() - start)
    return seconds


def ratio(seconds, name, other):
    """Median over rounds of the ratio inside a round."""
    return statistics.median(a / b for a, b in zip(seconds[name], seconds[other], strict=True))


def peak_memory(case, *args):
    """Growth of the high-water mark of resident memory over one run of ``case(*args)``, in MB (Linux)."""
    run = case(*args)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far

    def peak():
        return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024

    before = peak()
    run()
    return peak() - before
