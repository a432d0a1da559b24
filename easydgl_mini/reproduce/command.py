"""``easydgl-mini reproduce``: arguments in, a table out."""

import argparse

from .records import SEEDS
from .run import DATASETS, PROTOCOLS, SCALES, STUDIES, reproduce
from .studies import as_table

EXAMPLE = f"""example:
  easydgl-mini reproduce links --scale tiny --rows popularity,sasrec --seeds 1
  easydgl-mini reproduce links --dataset ml-1m --data data --scale full --rows easydgl --seeds 12345 --device cuda
  easydgl-mini reproduce traffic --data data --scale full --preset release --search --epochs 10

tables:
  links, nodes, traffic                       every row by name; the paper's datasets are {", ".join(DATASETS.values())}
  ablations-links, ablations-nodes, ablations-traffic    EasyDGL with one part off, or one number changed; the full
                                              model is the row of links, nodes or traffic, and is not trained again
  perturbation, recall, energy                the spectral study of the link models
  ties                                        what link models gain from a file's order of simultaneous events
                                              (these four have rows of their own and take the first seed alone)

A row's record is DIR/TABLE_DATASET_SCALE_ROW.json, written after every seed. An interrupted call goes on where it was
when it is made again; seeds that have a record are not run again (--out DIR keeps yours apart from the book's).
Settings that --search found are taken from DIR/search, or else from book/results/search. Where the files are a part of
a dataset (one week of METR-LA), the record's name says so. Without --data, at --scale tiny or small, raw files are
simulated first, and the record says so.
"""


def add_parser(commands, raw):
    """Add the command to the others."""
    text = "run a table of the paper, seed by seed, and keep what it says"
    sub = commands.add_parser("reproduce", help=text, description=text, epilog=EXAMPLE, **raw)
    names = [*PROTOCOLS, *(f"ablations-{name}" for name in PROTOCOLS), *STUDIES]
    sub.add_argument("table", choices=names, metavar="TABLE", help=", ".join(names))
    sub.add_argument("--dataset", metavar="NAME", help="by default the paper's (for links netflix)")
    sub.add_argument("--data", metavar="DIR", help="the data folder, as for easydgl-mini data; files are in DIR/NAME")
    sub.add_argument("--rows", metavar="A", nargs="+", type=_names, help="only these rows, with commas or spaces")
    seeds = ",".join(map(str, SEEDS))
    sub.add_argument("--seeds", metavar="S", nargs="+", type=_seeds, default=[SEEDS], help=f"by default {seeds}")
    sub.add_argument("--scale", choices=SCALES, default="small", help="tiny, small (default) or full")
    sub.add_argument(
        "--preset", choices=("paper", "release"), default="paper", help="links, traffic: as printed, or released"
    )
    sub.add_argument("--device", default="auto", help="cpu, cuda, or auto (default)")
    sub.add_argument("--epochs", type=int, help="at most so many")
    sub.add_argument("--patience", type=int, help="stop after so many epochs without a better one on validation")
    sub.add_argument("--precision", choices=("fp32", "bf16"), help="of matrix products in training")
    sub.add_argument(
        "--out", metavar="DIR", help="folder of the records (book/results at --scale full, else in --work)"
    )
    sub.add_argument("--work", metavar="DIR", help="folder of checkpoints and models (by default .easydgl in --data)")
    sub.add_argument("--search", action="store_true", help="try each row's settings on validation data; no test score")
    sub.add_argument("--again", action="store_true", help="replace records made with other settings or data")
    sub.set_defaults(run=run)


def run(arguments):
    """Run a table and print it."""
    names = ("dataset", "data", "rows", "seeds", "scale", "preset", "device", "out", "work", "search", "again")
    settings = {name: getattr(arguments, name) for name in names}
    for name in ("rows", "seeds"):
        settings[name] = settings[name] and [one for part in settings[name] for one in part]
    for name in ("epochs", "patience", "precision"):
        if getattr(arguments, name) is not None:
            settings[name] = getattr(arguments, name)
    found = reproduce(arguments.table, **settings)
    study = arguments.table in STUDIES
    print((as_table(arguments.table, found) if study else found).to_string())
    if study:
        print(f"{found['users']:,} test users, seed {found['seed']}, one checkpoint of each model.", end=" ")
        print("The data is simulated: these numbers say nothing about the paper's." * found["simulated"])
        print("The record, whose name ends in _study.json, has all of it.")
    if note := getattr(found, "attrs", {}).get("note"):
        print(note)


def _names(text):
    """Comma-separated names."""
    return [part for part in text.split(",") if part]


def _seeds(text):
    """Comma-separated whole numbers."""
    try:
        return [int(part) for part in _names(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected whole numbers, got {text!r}") from None
