"""The command line, ``easydgl-mini``: see ``easydgl-mini --help`` (chapter *How to read and run*)."""

import argparse
import dataclasses
import os
import platform
import re
import sys
import time
import warnings
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse
import torch

from . import __version__, data, graph, interpret, simulate
from .data.files import whole_or_nothing
from .interpret.report import METRICS
from .reproduce import command

NEEDED = ("numpy", "scipy", "pandas", "matplotlib", "torch", "pooch", "tqdm")
OPTIONAL = {
    "dgl": "the DGL backend (builds up to Python 3.11); plain torch serves without it",
    "jupyter-book": "rendering the book",
    "jupyterlab": "reading the chapters as notebooks",
    "pytest": "the tests",
    "nbval": "the tests of the chapters",
    "playwright": "the tests of the rendered pages",
}
WORLDS = ("bazaar", "ledger", "freeway")
RAW = ("netflix", "tmall", "koubei", "elliptic", "metr-la")
SCALES = ("tiny", "small", "full")
LOOK = 2**24  # numbers checked at a time
YES_NO = {True: "yes", False: "no"}
SIMULATE_EXAMPLE = """example:
  easydgl-mini simulate bazaar --scale tiny --out bazaar-tiny
  easydgl-mini simulate netflix --scale full --out data/netflix

bazaar, ledger and freeway are worlds of our own, with their truth. netflix, tmall, koubei, elliptic and metr-la are
simulated raw files in the public format of the dataset, of the paper's size at --scale full, with their truth.
"""
DATA_EXAMPLE = """example:
  easydgl-mini data fetch ml-1m --data data
  easydgl-mini data prepare ml-1m --data data
  easydgl-mini data verify ml-1m --data data

fetch    downloads a public dataset into DIR/NAME, checks its SHA-256, and goes on where it was interrupted; of the
         others it says what to download and where to put it (exit code 2). Only this command uses the network.
prepare  reads the raw files in DIR/NAME, keeps them in a compact form in DIR/.easydgl-cache, prints what was dropped.
verify   reads and hashes everything again and says what is wrong (exit code 2), or that nothing is.

datasets:
"""
LENS_EXAMPLE = """example:
  easydgl-mini lens --graph g.npz --predictions a.npy --donor b.npy --truth t.npy --band :50 --band 500:

made-up files to try it on:
python -c '
import numpy as np, scipy.sparse
rng = np.random.default_rng(0)
links = rng.random((600, 600)) < 0.01
scipy.sparse.save_npz("g.npz", scipy.sparse.csr_array((links | links.T).astype(float)))
np.save("a.npy", rng.random((40, 600)))
np.save("b.npy", rng.random((40, 600)))
np.save("t.npy", rng.integers(600, size=40))'
"""


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
    rows = [
        ("easydgl-mini", __version__),
        ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        *((name, version_of(name) or "missing") for name in NEEDED),
        *((name, version_of(name) or f"not installed: {use}") for name, use in OPTIONAL.items()),
        ("backend", backend()),
        ("device", device()),
        ("EASYDGL_DATA", f"{_folder(os.environ.get('EASYDGL_DATA'))}; only tests of real files look for it"),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    missing = [name for name in NEEDED if version_of(name) is None]
    print(f"\nMissing: {', '.join(missing)}." if missing else "\nEverything the package needs is here.")


def _folder(path):
    return "not set" if not path else path if Path(path).is_dir() else f"{path} (no such folder)"


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


def write_raw(arguments):
    """Write simulated raw files in the public format of a dataset, with their truth."""
    try:
        written = data.raw.write_raw(arguments.world, arguments.scale, arguments.out, arguments.seed)
    except ValueError as error:
        raise ValueError(f"--{error}") from error  # out, the only argument that was not checked
    for name, text in written.items():
        print(f"{Path(arguments.out) / name}: {text}")
    print(f"Simulated, not observed: {arguments.world} at scale {arguments.scale}, seed {arguments.seed}.")


# ------------------------------------------------------------------------------------------------ data


def datasets():
    """The datasets by name, with where to get them, as a list to print."""
    rows = []
    for name, entry in sorted(data.DATASETS.items()):
        rows.append(f"  {name}: {entry.title}, {entry.task}; {entry.files}")
        rows.append(f"      {'fetch, or ' if entry.fetch else ''}{entry.where}")
    return "\n".join(rows)


def data_fetch(arguments):
    """Download a public dataset, or say what to do."""
    for path in data.fetch(arguments.name, arguments.data, progress=sys.stderr.isatty()):
        print(f"{path}: {path.stat().st_size:,} bytes")


def data_prepare(arguments):
    """Read and cache a dataset, and print what became of its rows."""
    start = time.perf_counter()
    prepared = data.prepare(arguments.name, arguments.data, errors=arguments.errors)
    seconds = time.perf_counter() - start
    print(prepared.report)
    for note in prepared.report.notes:
        print(f"note: {note}")
    print(data.DATASETS[arguments.name].make(prepared.arrays))
    print(f"fingerprint {prepared.fingerprint}")
    if prepared.path is None:
        print(f"read in {seconds:.1f} s; not kept")
    else:
        size = prepared.path.stat().st_size / 1e6
        how = f"written in {seconds:.1f} s ({prepared.built})" if prepared.built else f"up to date ({seconds:.1f} s)"
        print(f"{prepared.path}: {size:,.1f} MB, {how}")


def data_verify(arguments):
    """Read and hash a dataset again; raise if something is wrong."""
    wrong = data.verify(arguments.name, arguments.data, errors=arguments.errors)
    if wrong:
        raise ValueError(f"{arguments.name}: " + "; ".join(wrong))
    whose = ", which are simulated" if data.simulated(arguments.name, arguments.data) else ""
    print(f"{arguments.name}: nothing is wrong with the raw files{whose}, nor with what was prepared from them")


# ------------------------------------------------------------------------------------------------ lens


def read(option, path, kinds, ndim, sparse=False):
    """The array in a .npy file or, where ``sparse``, the SciPy matrix in a .npz file. Pickles are refused."""
    path, wanted = Path(path), "a SciPy sparse .npz or a .npy array" if sparse else "a .npy array"
    if not path.is_file():
        raise ValueError(f"{option} {path}: no such file")
    try:
        if sparse and path.suffix == ".npz":
            got = scipy.sparse.load_npz(path)
            if hasattr(got, "check_format"):
                got.check_format(full_check=True)  # before anything follows its indices
            got = got if got.ndim != 2 else scipy.sparse.csr_array(got)
        else:
            got = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a foreign file can break the readers in many ways
        raise ValueError(f"{option} {path}: expected {wanted}; {error}") from error
    if not isinstance(got, np.ndarray) and not scipy.sparse.issparse(got):
        raise ValueError(f"{option} {path}: expected {wanted}")
    if got.dtype.kind not in kinds or got.ndim != ndim:
        numbers = "integers" if kinds == "iu" else "numbers"
        raise ValueError(f"{option} {path}: got {got.dtype} of shape {got.shape}, expected {numbers} in {ndim}-D")
    return got


def refuse(where, array, bad, wanted, start=0):
    """Raise at the first entry that is ``bad``; ``array`` begins at row ``start`` of what ``where`` names."""
    if bad.any():
        first = tuple(np.argwhere(bad)[0].tolist())
        raise ValueError(f"{where}: entry {[first[0] + start, *first[1:]]} is {array[first]}, expected {wanted}")


def read_scores(option, path, shape):
    """A model's scores, left on disk if they are float32 or float64, after one look at every number."""
    where, scores = f"{option} {path}", read(option, path, "biuf", 2)
    if scores.shape != shape:
        wanted = f"{shape}: users in --truth, nodes in --graph"
        raise ValueError(f"{where}: got shape {scores.shape}, expected {wanted}")
    scores = scores if scores.dtype in (np.float32, np.float64) else scores.astype(np.float64)
    step = max(1, LOOK // shape[1])
    for i in range(0, shape[0], step):
        part = scores[i : i + step]
        refuse(where, part, ~np.isfinite(part), "finite numbers (leave items out with --exclude)", i)
    return scores


def read_exclude(path, shape):
    """Items that don't compete: a mask (bool or sparse), or ids padded with -1."""
    where, array = f"--exclude {path}", read("--exclude", path, "biuf", 2, sparse=True)
    if scipy.sparse.issparse(array) or array.dtype == bool:
        if array.shape != shape:
            raise ValueError(f"{where}: got a mask of shape {array.shape}, expected {shape}")
        return array
    if array.dtype.kind == "f" or len(array) != shape[0]:
        raise ValueError(f"{where}: got {array.dtype} of shape {array.shape}, expected a bool mask {shape} or item ids "
                         f"({shape[0]}, m)")  # fmt: skip
    if array.shape == shape and shape[1] > 2 and np.isin(array, (0, 1)).all():
        raise ValueError(f"{where}: integers 0 and 1 of shape {shape} look like a mask; save it as bool")
    array = array.astype(np.int64)
    refuse(where, array, (array < -1) | (array >= shape[1]), f"an item in 0 … {shape[1] - 1}, or -1")
    return array


def read_models(arguments, shape):
    """Scores by model name, and the names of the donors."""
    found, donors = {}, [named(text)[0] for text in arguments.donor]
    for option, texts in (("--predictions", arguments.predictions), ("--donor", arguments.donor)):
        for name, path in map(named, texts):
            known = found.setdefault(name, (option, path))[1]
            if known != path:
                raise ValueError(f"two files are called {name!r}, {known} and {path}; name them, as in other={path}")
    if donors and len(found) == 1:
        raise ValueError(f"--donor {arguments.donor[0]} is the only model: there is none to transplant into")
    return {name: read_scores(*source, shape) for name, source in found.items()}, donors


def named(text):
    """NAME=FILE, or FILE, which is then called by its stem."""
    name, equals, path = text.partition("=")
    return (name, path) if equals and name and not Path(text).exists() else (Path(text).stem, text)


def check_bands(bands, size):
    """Refuse a band without frequencies."""
    for start, stop in bands:
        if not range(size)[start:stop]:
            name = f"{'' if start is None else start}:{'' if stop is None else stop}"
            raise ValueError(f"--band {name} is empty: the spectrum has {size} frequencies (see --rank)")


def check_out(out):
    """Refuse, before any work is done, a page that could not be written."""
    if out.suffix != ".html":
        raise ValueError(f"--out {out}: expected a name that ends in .html")
    if out.is_dir() or not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise ValueError(f"--out {out}: expected a file in a folder that exists and can be written to")


def look(arguments):
    """The spectrum and the report that ``lens`` asks for."""
    truth = read("--truth", arguments.truth, "iu", 1).astype(np.int64)
    if not len(truth):
        raise ValueError(f"--truth {arguments.truth}: expected at least one user")
    A = read("--graph", arguments.graph, "biuf", 2, sparse=True)
    shape = (len(truth), A.shape[0])
    refuse(f"--truth {arguments.truth}", truth, (truth < 0) | (truth >= shape[1]), f"a node in 0 … {shape[1] - 1}")
    reach = max(abs(place or 0) for band in arguments.band for place in band)
    rank = min(max(200, 2 * reach), shape[1]) if arguments.rank is None else arguments.rank
    check_bands(arguments.band, min(rank, shape[1]))
    exclude = None if arguments.exclude is None else read_exclude(arguments.exclude, shape)
    try:
        L = interpret.laplacian(A)
    except ValueError as error:
        raise ValueError(f"--graph {arguments.graph}: {error}") from error
    predictions, donors = read_models(arguments, shape)
    spectrum = interpret.decompose(L, rank, arguments.which, arguments.method, seed=arguments.seed)
    check_bands(arguments.band, len(spectrum))
    bands = [interpret.band(spectrum, start, stop) for start, stop in arguments.band]
    settings = {"donors": donors, "complement": arguments.complement, "seed": arguments.seed}
    return spectrum, interpret.report(
        predictions, truth, spectrum, bands, exclude, arguments.metric or METRICS, **settings
    )


def lens(arguments):
    """Print what each model's ranking loses or gains with every band, and write the page."""
    out = Path(arguments.out)
    check_out(out)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # torch only reads it
        spectrum, table = look(arguments)
        page = table.to_html()
    rows = pd.DataFrame(table).assign(donor=table["donor"].replace("", "-"), control=table["control"].map(YES_NO))
    rows = rows.sort_values("metric", key=lambda names: pd.factorize(names)[0], kind="stable")
    columns = ["metric", "model", "donor", "band", "control", "before", "after", "change", "low", "high"]
    signed = dict.fromkeys(("change", "low", "high"), "{:+.4f}".format)
    print(rows[columns].to_string(index=False, float_format="{:.4f}".format, formatters=signed))
    users, (items, count), worst = table["users"].iloc[0], spectrum.vectors.shape, spectrum.residuals.max()
    ends = f"{abs(spectrum.values[0]):.4f} to {spectrum.values[-1]:.4f}"
    print(f"\n{users:,} users, {items:,} items, {count:,} frequencies from {ends}, largest residual {worst:.1e}")
    with whole_or_nothing(out) as file:
        file.write(page.encode())
    print(f"{out}: the table and a figure")
    for note in dict.fromkeys(str(warning.message) for warning in notes):
        print(f"easydgl-mini lens: note: {note}", file=sys.stderr)


# ------------------------------------------------------------------------------------------------ arguments


def place(text):
    """Positions as in a slice: START:STOP, either may be left out."""
    match = re.fullmatch(r"(-?\d+)?:(-?\d+)?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected START:STOP as in a slice, such as :50, 500: or 10:20")
    return tuple(None if end is None else int(end) for end in match.groups())


def metric(text):
    """HR@k or N@k."""
    if not re.fullmatch(r"(HR|N)@[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected HR@k or N@k, such as HR@10")
    return text


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

    text = "write a simulated world, or a dataset's raw files, and the truth"
    sub = commands.add_parser("simulate", help=text, description=text, epilog=SIMULATE_EXAMPLE, **raw)
    sub.add_argument("world", choices=WORLDS + RAW, metavar="NAME", help=", ".join(WORLDS + RAW))
    sub.add_argument("--scale", choices=SCALES, default="small", help="tiny, small (default) or full")
    sub.add_argument("--seed", type=natural, default=0, help="same seed, same world (default 0)")
    sub.add_argument("--out", required=True, metavar="DIR", help="a new folder for the files")
    sub.set_defaults(run=lambda arguments: (write_raw if arguments.world in RAW else write_world)(arguments))

    text = "fetch a dataset's files, prepare them for use, verify them"
    sub = commands.add_parser("data", help=text, description=text, epilog=DATA_EXAMPLE + datasets(), **raw)
    actions = {"fetch": data_fetch, "prepare": data_prepare, "verify": data_verify}
    sub.add_argument("action", choices=actions, metavar="ACTION", help=", ".join(actions))
    sub.add_argument("name", choices=sorted(data.DATASETS), metavar="NAME", help="a dataset of the list below")
    sub.add_argument("--data", required=True, metavar="DIR", help="the data folder; the files are in DIR/NAME")
    text = "a row that does not fit its format: raise (default) stops with its line number, drop counts it"
    sub.add_argument("--errors", choices=("raise", "drop"), default="raise", help=text)
    sub.set_defaults(run=lambda arguments: actions[arguments.action](arguments))

    command.add_parser(commands, raw)

    text = "remove bands of frequencies from models' scores, or transplant them, and see how the ranking changes"
    sub = commands.add_parser("lens", help=text, description=text, epilog=LENS_EXAMPLE, **raw)
    sub.add_argument("--graph", required=True, metavar="FILE", help="symmetric adjacency of the items: .npz or .npy")
    files = {"action": "append", "metavar": "[NAME=]FILE"}
    sub.add_argument("--predictions", required=True, **files, help="scores (users, items), .npy; may be repeated")
    sub.add_argument("--donor", default=[], **files, help="a model whose bands go into the others; may be repeated")
    sub.add_argument("--truth", required=True, metavar="FILE", help="the held-out item of each user (users,), .npy")
    text = "items that don't compete: a mask (users, items), .npz or bool .npy, or ids (users, m) padded with -1, .npy"
    sub.add_argument("--exclude", metavar="FILE", help=text)
    text = "positions in the spectrum, lowest first, as in a slice; may be repeated (negative ones: --band=-50:)"
    sub.add_argument("--band", required=True, action="append", type=place, metavar="START:STOP", help=text)
    text = "frequencies to compute (default 200, or twice the largest position in a band if that is more)"
    sub.add_argument("--rank", type=natural, metavar="R", help=text)
    text = "end of the spectrum to compute: low (default), high or both"
    sub.add_argument("--which", choices=("low", "high", "both"), default="low", help=text)
    text = "krylov (default), nystrom or exact"
    sub.add_argument("--method", choices=("krylov", "nystrom", "exact"), default="krylov", help=text)
    text = "count what the R frequencies don't span as part of each band"
    sub.add_argument("--complement", action="store_true", help=text)
    text = f"HR@k or N@k; may be repeated (default {' '.join(METRICS)})"
    sub.add_argument("--metric", action="append", type=metric, metavar="M", help=text)
    sub.add_argument("--seed", type=natural, default=0, help="of decomposition, controls and intervals (default 0)")
    text = "page to write, replacing an older one (default report.html)"
    sub.add_argument("--out", default="report.html", metavar="FILE.html", help=text)
    sub.set_defaults(run=lens)
    return top


def main(argv=None):
    """Run the command line; returns the exit code."""
    arguments = parser().parse_args(argv)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda text, *_, **__: print(f"note: {' '.join(str(text).split())}", file=sys.stderr)
            arguments.run(arguments)
    except KeyboardInterrupt:
        goes_on = arguments.command == "reproduce" or getattr(arguments, "action", None) == "fetch"
        kept = "; what is finished is kept, the same command goes on from there" if goes_on else ""
        print(f"easydgl-mini {arguments.command}: interrupted{kept}", file=sys.stderr)
        return 130
    except (ValueError, OSError, FloatingPointError, ImportError) as error:  # the last: a package that is optional
        print(f"easydgl-mini {arguments.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
