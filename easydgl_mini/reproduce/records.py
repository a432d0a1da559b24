"""Result files: what was run, on what, by what code, seed by seed; and the paper's own figures (Part 5 of the book).

One JSON file per (table, dataset, scale, row). Only :func:`write` makes one, anew after every seed, in one step. A cell
of a table without a record says "not yet run".
"""

import csv
import datetime
import json
import math
import os
import platform
import subprocess
from importlib import resources
from pathlib import Path

import pandas as pd
import torch

from .. import __version__
from ..data.files import whole_or_nothing
from ..interpret.report import check_ranking_metrics

SEEDS = (12345, 54321, 56789, 98765, 7401)
"""The paper's five."""
NOT_RUN = "not yet run"
PRINTED = {
    "bare": "easydgl w/o cam and tpple",
    "bare-and-masking": "easydgl w/ masking",
    "without-tpple": "easydgl w/ cam",
    "bare-and-smoothness": "easydgl w/ temporal smoothness",
    "without-cam": "easydgl w/ tpple",
}
"""Rows of the ablation as the paper's tab:motiv calls them."""


def paper_figures():
    """The paper's tables as it prints them: DataFrame with table, row, dataset, metric, value and spread.

    Rows are models, by their names in :data:`easydgl_mini.baselines.REGISTRY` where we have them. For nodes a metric
    ends in the steps it is over, for traffic in the horizon.

    Examples
    --------
    >>> figures = paper_figures()
    >>> one = figures[(figures.row == "easydgl") & (figures.dataset == "netflix") & (figures.metric == "hr@10")]
    >>> one.value.tolist(), one.table.tolist()
    ([0.29651], ['tab:cmp_hr'])
    """
    with resources.files("easydgl_mini").joinpath("paper.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    table = pd.DataFrame(rows)
    for name in ("value", "spread"):
        table[name] = pd.to_numeric(table[name])
    return table


def label(dataset, part=""):
    """A dataset's name in files, ``metr-la``; of a part of it with what the part is, ``metr-la-2016-rows``."""
    return "-".join([dataset, *part.split()])


def path_of(folder, table, dataset, scale, row):
    """Where the record of one row lives."""
    return Path(folder) / f"{table}_{dataset}_{scale}_{row}.json"


def read(path):
    """A record, or None where there is none."""
    path = Path(path)
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or "dataset" not in record:
            raise ValueError("it names no dataset")
    except ValueError as error:
        raise ValueError(f"{path} is no result file ({error}); delete it to run again") from None
    return record


def write(path, record):
    """Write a record in one step, after checking what every ranking has to satisfy."""
    check_rankings(record)
    write_plain(path, record)


def check_rankings(record):
    """Assert of every run, and of what a study found, what hits and gains of one ranking have to satisfy."""
    for metrics in (*(run["metrics"] for run in record["runs"]), *_studied(record.get("found", {}))):
        check_ranking_metrics({rename(name): value for name, value in metrics.items()}, 1e-6)


def _studied(found):
    """The rankings that a study reports: before and after a perturbation, or with ties in each order."""
    rankings = {}
    for key in ("rows", "centred rows"):
        for line in found.get(key, ()):
            if "before" in line:
                which = key, line["model"], line["donor"], line["band"], line["control"]
                for when in ("before", "after"):
                    rankings.setdefault((*which, when), {})[line["metric"]] = line[when]
            elif "hr@10" in line:
                orders = zip(*([line[m]["as filed"], *line[m]["draws"]] for m in ("hr@10", "ndcg@10")), strict=True)
                rankings |= {(line["model"], n): {"hr@10": hr, "ndcg@10": n10} for n, (hr, n10) in enumerate(orders)}
    return rankings.values()


def write_plain(path, record):
    """Write any record in one step."""
    with whole_or_nothing(path) as file:
        file.write((json.dumps(record, indent=1) + "\n").encode())


def rename(metric):
    """``ndcg@10`` as the lens calls it, ``N@10``."""
    return metric.replace("ndcg@", "N@").replace("hr@", "HR@")


def provenance(device):
    """By what code, on what machine and when; ``device`` as for training."""
    device = "cuda" if device == "auto" and torch.cuda.is_available() else device
    chip = (
        torch.cuda.get_device_name() if str(device).startswith("cuda") else f"{os.cpu_count()} CPU cores, no GPU used"
    )
    return {
        "code": f"easydgl-mini {__version__}{_commit()}",
        "machine": f"{platform.system()} {platform.machine()}, {chip}, {torch.get_num_threads()} threads",
        "versions": f"Python {platform.python_version()}, torch {torch.__version__.split('+')[0]}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def load_all(folder):
    """All records of a folder, by file name."""
    return [read(path) for path in sorted(Path(folder).glob("*.json"))]


def summary(records, metrics=None):
    """Mean over seeds, spread (sample standard deviation; nothing for one seed) and number of seeds: a DataFrame."""
    rows = []
    for record in (record for record in records if record["runs"]):  # a study has none
        for metric in metrics or record["runs"][0]["metrics"]:
            values = [run["metrics"][metric] for run in record["runs"] if metric in run["metrics"]]
            if values:
                series = pd.Series(values, dtype=float)
                keys = {name: record[name] for name in ("table", "dataset", "scale", "simulated", "row")}
                spread = series.std() if len(series) > 1 else math.nan
                rows.append(keys | {"metric": metric, "mean": series.mean(), "spread": spread, "seeds": len(series)})
    columns = ["table", "dataset", "scale", "simulated", "row", "metric", "mean", "spread", "seeds"]
    return pd.DataFrame(rows, columns=columns)


def beside_paper(records, dataset, metrics, rows, digits=4):
    """A table for people: ours (mean ± spread over seeds) beside the paper's figure for the same dataset, per metric.

    Parameters
    ----------
    records : list of dict
        Rankings are checked again: no table shows what no ranking can have.
    dataset : str
    metrics, rows : sequences of str
        Columns and rows, in order; a row without a record says "not yet run". For rankings a column says how many test
        users each seed has.
    """
    records = [r for r in records if r["dataset"] == dataset]
    for record in records:
        check_rankings(record)
    ours, figures = summary(records), paper_figures()
    figures = figures[(figures.dataset == dataset) & (figures.table != "tbl:perturb")]
    lines, ranked = [], any(metric.startswith(("hr@", "ndcg@")) for metric in metrics)
    for row in rows:
        mine, line = ours[ours.row == row], {"row": row}
        line["seeds"] = int(mine.seeds.max()) if len(mine) else 0
        if ranked:
            users = mine[mine.metric == "users"]
            line["users"] = f"{users['mean'].iloc[0]:.0f}" if len(users) else "–"
        for metric in metrics:
            cell = mine[mine.metric == metric]
            line[metric] = _cell(cell.iloc[0], digits) if len(cell) else NOT_RUN
            theirs = figures[(figures.row == PRINTED.get(row, row)) & (figures.metric == metric)]
            if len(figures):
                line[f"paper {metric}"] = f"{theirs.value.iloc[0]:.{digits}f}" if len(theirs) else "–"
        lines.append(line)
    return pd.DataFrame(lines).set_index("row")


def _cell(line, digits):
    spread = "" if math.isnan(line.spread) else f" ± {line.spread:.{digits}f}"
    return f"{line['mean']:.{digits}f}{spread}"


def _commit():
    """The commit the code was at, if it is a repository, and whether the package was changed since."""
    here = Path(__file__).resolve().parent.parent
    try:
        git = ["git", "-C", str(here)]
        name = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=10)
        changed = subprocess.run([*git, "status", "--porcelain", "--", "."], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    if name.returncode:
        return ""
    return f", commit {name.stdout.strip()}" + (" with changes" if changed.stdout.strip() else "")
