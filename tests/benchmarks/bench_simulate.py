"""How fast the simulators are: events per second of processor time on one thread, and the time for a million.

    python tests/benchmarks/bench_simulate.py            # about half a minute
    python tests/benchmarks/bench_simulate.py --full     # also bazaar at full scale: minutes, and 7 GB of memory

Exits with status 1 if a million events take 20 seconds or longer in any generator of events.
"""

import argparse
import os
import resource
import sys
import time
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from easydgl_mini import simulate

LIMIT = 20.0  # seconds per million events


def timed(make):
    """The result and the seconds of processor time it took, so that other work on the machine counts little."""
    start = time.process_time()
    result = make()
    return result, time.process_time() - start


def bazaar_of_a_million():
    """*bazaar* with the full scale's items, groups and weeks, for as many users as have about a million events."""
    sizes = {"bazaar": {"million": simulate._SIZES["bazaar"]["full"] | {"users": 5_000}}}
    with mock.patch.object(simulate, "_SIZES", sizes):
        return simulate.bazaar("million")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--full", action="store_true", help="also run bazaar at full scale")
    full = parser.parse_args().full
    two = np.array([[0.3, 0.6], [0.05, 0.2]])
    cases = [  # what, how to make it, how many it made, of what
        ("hawkes, K = 1", lambda: simulate.hawkes(0.5, 0.5, 2.0, 1_000_000.0, 0), lambda x: len(x[0]), "events"),
        ("hawkes, K = 2", lambda: simulate.hawkes([0.5, 0.2], two, 2.0, 780_000.0, 0), lambda x: len(x[0]), "events"),
        (
            "hawkes, K = 8",
            lambda: simulate.hawkes(np.full(8, 0.2), np.full((8, 8), 0.08), 2.0, 225_000.0, 0),
            lambda x: len(x[0]),
            "events",
        ),
        ("bazaar, small", simulate.bazaar, lambda x: len(x.events), "events"),
        ("bazaar, 5,000 users of full", bazaar_of_a_million, lambda x: len(x.events), "events"),
        ("ledger, full", lambda: simulate.ledger("full"), lambda x: len(x.graph.edges()[0]), "payments"),
        ("freeway, full", lambda: simulate.freeway("full"), lambda x: x.readings.size, "readings"),
    ]
    if full:
        cases.append(("bazaar, full", lambda: simulate.bazaar("full"), lambda x: len(x.events), "events"))
    slow = []
    for name, make, count, unit in cases:
        result, seconds = timed(make)
        number = count(result)
        million = seconds / number * 1e6
        print(
            f"{name:28s} {number:>11,} {unit:8s} {seconds:7.2f} s {number / seconds:>12,.0f}/s {million:6.2f} s/million"
        )
        slow += [name] if million >= LIMIT else []
        del result
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)
    print(f"peak memory {peak:.1f} GB")
    if slow:
        sys.exit(f"slower than {LIMIT:.0f} s per million: {', '.join(slow)}")


if __name__ == "__main__":
    main()
