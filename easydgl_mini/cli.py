"""The command line, ``easydgl-mini``: see ``easydgl-mini --help`` (chapter *How to read and run*)."""

import argparse
import dataclasses
import os
import platform
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from . import __version__, graph, simulate

NEEDED = ("numpy", "scipy", "pandas", "matplotlib", "torch")
OPTIONAL = {
    "dgl": "the DGL backend (builds up to Python 3.11); plain torch serves without it",
    "jupyter-book": "rendering the book",
    "jupyterlab": "reading the chapters as notebooks",
    "pytest": "the tests",
    "nbval": "the tests of the chapters",
    "playwright": "the tests of the rendered pages",
}
WORLDS = ("bazaar", "ledger", "freeway")
SCALES = ("tiny", "small", "full")


class Parser(argparse.ArgumentParser):
    """Bad input ends with exit code 2 and one line."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def version_of(package):
    """Installed version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def device():
    """What torch could compute on here, in words."""
    threads = f"{torch.get_num_threads()} threads"
    if torch.cuda.is_available():
        return f"cuda ({torch.cuda.get_device_name(0)}, {torch.cuda.device_count()} device(s)); cpu with {threads}"
    if torch.backends.mps.is_available():
        return f"mps; cpu with {threads}"
    return f"cpu with {threads}"


def backend():
    """The backend in use, or why there is none."""
    problem = graph._dgl_problem()
    try:
        name = graph.backend()
    except (ValueError, RuntimeError) as error:
        return f"none: {error}"
    forced = " (forced by EASYDGL_BACKEND)" if os.environ.get("EASYDGL_BACKEND") else ""
    return name + forced + (f"; DGL cannot be used: {problem}" if problem and not forced else "")


def doctor(arguments):
    """Print versions, backend, device and what is missing: what a bug report should contain."""
    data = os.environ.get("EASYDGL_DATA")
    rows = [
        ("easydgl-mini", __version__),
        ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        *((name, version_of(name) or "missing") for name in NEEDED),
        *((name, version_of(name) or f"not installed: {use}") for name, use in OPTIONAL.items()),
        ("backend", backend()),
        ("device", device()),
        ("EASYDGL_DATA", "not set" if not data else data if Path(data).is_dir() else f"{data} (no such folder)"),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    missing = [name for name in NEEDED if version_of(name) is None]
    print(f"\nMissing: {', '.join(missing)}." if missing else "\nEverything the package needs is here.")


def truth_arrays(truth):
    """The arrays and numbers of a world's truth, by name."""
    fields = ((field.name, getattr(truth, field.name)) for field in dataclasses.fields(truth))
    return {name: np.asarray(value) for name, value in fields if isinstance(value, np.ndarray | int | float)}


def tables(name, world):
    """A world as files: names of CSV files with their tables, names of NPZ files with their arrays."""
    npz = {"truth.npz": truth_arrays(world.truth)}
    if name == "bazaar":
        log = world.events
        events = pd.DataFrame({"user": log.user, "item": log.item, "hour": log.time})
        return {"events.csv": events, "items.csv": pd.DataFrame({"group": world.group})}, npz
    src, dst = (ends.numpy() for ends in world.graph.edges())
    if name == "ledger":
        edges = pd.DataFrame({"src": src, "dst": dst, "time": world.graph.times.numpy()})
        npz["nodes.npz"] = {"features": world.features, "labels": world.labels, "step": world.step}
        return {"edges.csv": edges}, npz
    edges = pd.DataFrame({"src": src, "dst": dst, "weight": world.graph.weights.numpy()})
    npz["readings.npz"] = {"readings": world.readings, "times": world.times}
    return {"edges.csv": edges, "sensors.csv": pd.DataFrame(world.positions, columns=["x_km", "y_km"])}, npz


def write_world(arguments):
    """Simulate a world and write it, with its truth, into a folder."""
    out = Path(arguments.out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; give a folder")
    if out.is_dir() and any(out.iterdir()):
        raise ValueError(f"--out {out} is not empty; give a new folder")
    csv, npz = tables(arguments.world, getattr(simulate, arguments.world)(arguments.scale, seed=arguments.seed))
    out.mkdir(parents=True, exist_ok=True)
    for name, table in csv.items():
        table.to_csv(out / name, index=name in ("items.csv", "sensors.csv"), index_label="id")
        print(f"{out / name}: {len(table):,} rows ({', '.join(table.columns)})")
    for name, arrays in npz.items():
        np.savez_compressed(out / name, **arrays)
        print(f"{out / name}: " + ", ".join(f"{key} {value.shape}" for key, value in arrays.items()))
    print(f"Simulated, not observed: {arguments.world} at scale {arguments.scale}, seed {arguments.seed}.")


def natural(text):
    """A whole number that is not negative."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, got {value}")
    return value


def parser():
    """The arguments of ``easydgl-mini``."""
    raw = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    text = "The companion package of the EasyDGL book."
    top = Parser(prog="easydgl-mini", description=text, epilog="example:\n  easydgl-mini doctor", **raw)
    top.add_argument("--version", action="version", version=f"easydgl-mini {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    text, example = "print versions, backend, device and what is missing", "easydgl-mini doctor"
    sub = commands.add_parser("doctor", help=text, description=text, epilog=f"example:\n  {example}", **raw)
    sub.set_defaults(run=doctor)

    text = "write a simulated world and its truth as CSV and NPZ files"
    example = "easydgl-mini simulate bazaar --scale tiny --out bazaar-tiny"
    sub = commands.add_parser("simulate", help=text, description=text, epilog=f"example:\n  {example}", **raw)
    sub.add_argument("world", choices=WORLDS, metavar="NAME", help="bazaar, ledger or freeway")
    sub.add_argument("--scale", choices=SCALES, default="small", help="tiny, small (default) or full")
    sub.add_argument("--seed", type=natural, default=0, help="same seed, same world (default 0)")
    sub.add_argument("--out", required=True, metavar="DIR", help="a new folder for the files")
    sub.set_defaults(run=write_world)
    return top


def main(argv=None):
    """Run the command line; returns the exit code."""
    arguments = parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except (ValueError, OSError) as error:
        print(f"easydgl-mini {arguments.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
