"""``easydgl-mini reproduce TABLE``: run a table's rows, seed by seed, and keep what they say (Part 5 of the book).

The same code runs a chapter's small live training and a full table: only ``scale`` and the data differ.
"""

import contextlib
import dataclasses
import json
import shutil
import sys
import time
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None

from .. import data as datasets
from ..baselines import REGISTRY
from ..data.raw import WRITERS, write_raw
from ..train.fit import usable
from . import records
from .protocol import PROTOCOLS, make
from .studies import STUDIES, study

BOOK = Path("book/results")
"""The records of the book, in a clone of its repository."""
DATA = "data.txt"
"""Beside a trained model: the fingerprint of what it was trained on."""
SCALES = {
    "tiny": {"epochs": 2, "dim": 16, "patience": 2},
    "small": {"epochs": 15, "dim": 32, "patience": 5},
    "full": {"epochs": 200, "patience": 20},
}
"""What a scale changes in the settings; ``full`` keeps the paper's."""
DATASETS = {"links": "netflix", "nodes": "elliptic", "traffic": "metr-la"}
"""The paper's dataset for each table (its largest, for links)."""
SETTINGS = {
    "netflix": {"time_unit": "hour", "sampling": "random"},
    "tmall": {"time_unit": "day", "sampling": "random"},
    "koubei": {"time_unit": "week", "sampling": "random"},
    "ml-1m": {"time_unit": "minute", "sampling": "random", "batch_size": 64},
    "amazon-beauty": {"time_unit": "day", "sampling": "random", "by_length": True, "precision": "bf16"},
    "patent": {"num_classes": 6},
}
"""What a dataset asks for: the clock, one random window of each history per epoch, smaller batches of few users, less
padding of short histories, faster products where naming one of many items is most of the work."""

WIDE = {"dim": 512, "dropout": 0.1, "lr": 5e-4, "weight_decay": 1e-4, "time_unit": "day", "sampling": "last"}
SHARP = {"gamma": 1e-7, "positions": True, "item_scale": 512**0.5, "clock": "absolute"}
RELEASED = {
    "popularity": {},
    "gru4rec": WIDE | {"num_layers": 1},
    "sasrec": WIDE | {"num_layers": 2, "num_heads": 8, "dropout": 0.0, "weight_decay": 0.0},
    "grec": WIDE,
    "bert4rec": WIDE | {"num_layers": 3, "num_heads": 8, "dropout": 0.2, "lr": 5e-5},
    "tgat": WIDE | {"num_layers": 3, "num_heads": 1, "lr": 5e-5},
    "tisasrec": WIDE | {"num_layers": 2, "num_heads": 8, "span": 256},
    "ctsma": WIDE | SHARP | {"num_layers": 2, "num_heads": 4},
    "easydgl": WIDE | SHARP | {"num_layers": 1, "num_heads": 8, "mask_rate": 0.2},
}
"""The preset "release" of the link models: what the authors' public script gives each of them on Netflix (as far as our
models have it), where the paper has two layers, two heads and hours. Batches of 512, except where a dataset has few
users; 100 epochs, a patience of 10."""

VARIANTS = {
    "easydgl": {},
    "without-endode": {"endogenous": False},
    "without-intensity": {"modulate": False},
    "without-tpple": {"gamma": 0.0},
    "typical-masking": {"masking": "token"},
    "smoothness": {"regulariser": "smoothness"},
    **{f"mask-rate-{r}": {"mask_rate": r} for r in (0.1, 0.2, 0.4, 0.6)},
    **{f"gamma-{g:g}": {"gamma": g} for g in (1e-6, 1e-4, 1e-2)},
}
"""EasyDGL with one part switched off or one number changed; "without-cam" depends on the task. A number that the full
model has already is no row of its own."""
PLACES = {"with-places": {"positions": True}}
"""A part that the released code has and the paper has not."""
WITHOUT_CAM = {"links": {"causal": True}, "nodes": {"masking": "none"}, "traffic": {"masking": "none"}}
BARE = {"masking": "none", "gamma": 0.0}
MOTIVATION = {
    "bare": BARE,
    "bare-and-masking": BARE | {"masking": "token"},
    "bare-and-smoothness": {"masking": "none", "regulariser": "smoothness"},
}
"""The paper's tab:motiv adds parts to a bare model; with CaM alone it is "without-tpple", with TPPLE "without-cam"."""


def variants(kind):
    """The rows of an ablation. A node lives in one step, so there is nothing to smooth in time."""
    rows = VARIANTS | {"without-cam": WITHOUT_CAM[kind]} | {"links": PLACES, "nodes": {}, "traffic": MOTIVATION}[kind]
    return {row: own for row, own in rows.items() if kind != "nodes" or row != "smoothness"}


PLAIN = ({}, {"lr": 3e-3}, {"lr": 3e-4}, {"dropout": 0.3}, {"lr": 3e-3, "dropout": 0.3}, {"lr": 3e-3, "dim": 128})
FAST, SLOW, MILD, MORE = {"lr": 3e-3}, {"lr": 1e-3}, {"dropout": 0.1}, {"mask_rate": 0.4}
HIDE = FAST | {"mask_rate": 0.4}
ITEMS = HIDE | {"item_scale": 8.0}
AGES = ITEMS | {"clock": "relative"}
OWN_LINK = ({}, ITEMS, AGES, AGES | {"gamma": 1e-2}, AGES | {"dim": 128}, AGES | {"num_clusters": 16})
OWN = ({}, FAST, HIDE, FAST | {"gamma": 1e-2}, FAST | {"dim": 128}, FAST | {"num_clusters": 16})
WAVES = {"num_waves": 500}
SEARCH = {
    ("mrfcf", "link"): (
        {},
        {"ridge": 10.0},
        {"ridge": 0.1},
        {"ridge": 10.0, "alpha": 0.5},
        {"ridge": 300.0, "alpha": 0.0},
        {"ridge": 3000.0, "alpha": 0.0},
    ),
    ("gsimc", "link"): (
        {},
        {"num_waves": 50},
        WAVES,
        WAVES | {"trust": 1.0},
        WAVES | {"scale": 0.25},
        {"num_waves": 1000},
    ),
    ("bgsimc", "link"): ({}, WAVES, {"noise": 0.1}, {"noise": 10.0}, {"arrivals": 10}, WAVES | {"scale": 0.25}),
    ("label_propagation", "node"): (
        {},
        {"alpha": 0.5},
        {"alpha": 0.7},
        {"alpha": 0.8},
        {"alpha": 0.99},
        {"rounds": 10},
    ),
    ("random_forest", "node"): (
        {},
        {"trees": 200},
        {"balance": 0.5},
        {"balance": 1.0},
        {"trees": 200, "balance": 0.5},
        {"trees": 200, "balance": 1.0},
    ),
    ("bert4rec", "link"): ({}, HIDE, MORE, MORE | {"dropout": 0.3}, MORE | {"dim": 128}, {"mask_rate": 0.6}),
    ("ctsma", "link"): OWN_LINK,
    ("easydgl", "link"): OWN_LINK,
    ("easydgl", "node"): OWN,
    ("easydgl", "traffic"): OWN,
    ("dcrnn", "traffic"): ({}, SLOW, {"lr": 3e-4}, {"dropout": 0.3}, SLOW | {"dropout": 0.3}, {"dim": 128}),
    ("graph_wavenet", "traffic"): ({}, FAST, {"lr": 3e-4}, MILD, FAST | MILD, FAST | {"dim": 128}),
}
"""The settings that are tried, as changes of the defaults: six for every model that has any, chosen on validation."""
FIXED = ("popularity", "majority", "last_value", "historical_average")
"""Models without settings."""


@dataclasses.dataclass
class Job:
    """What one call of ``reproduce`` is about."""

    table: str
    protocol: object
    dataset: str
    scale: str
    preset: str
    device: str
    simulated: bool
    fingerprint: str
    out: Path
    work: Path
    progress: bool | None = None
    partial: str = ""
    part: str = ""

    @property
    def label(self):
        """The data's name in files: a part of a dataset is not the dataset."""
        return records.label(self.dataset, self.part)

    def name(self, row):
        """The table's name in files. An ablation's full model is the main table's; the released one has its own."""
        table = self.table.removeprefix("ablations-") if row == "easydgl" else self.table
        return table if self.preset == "paper" else f"{table}-{self.preset}"

    def record_path(self, row):
        return records.path_of(self.out, self.name(row), self.label, self.scale, row)

    def search_path(self, model):
        table = "links" if self.table in STUDIES else self.name(model)
        return records.path_of(self.out / "search", table, self.label, self.scale, model)

    def folder(self, row, seed):
        table = "links" if self.table in STUDIES else self.name(row)
        return self.work / f"{table}_{self.label}_{self.scale}" / row / str(seed)


def reproduce(
    table, *, dataset=None, data=None, rows=None, seeds=records.SEEDS, scale="small", preset="paper", device="auto",
    out=None, work=None, search=False, again=False, progress=None, say=print, **settings,
):  # fmt: skip
    """Run a table and return it beside the paper's figures.

    Parameters
    ----------
    table : str
        "links", "nodes", "traffic"; "ablations-links", "ablations-nodes", "ablations-traffic"; or a study of the link
        models, "perturbation", "recall", "energy", "ties", which trains what it needs with the first seed.
    dataset : str, optional
        By default the paper's.
    data : path, optional
        Folder with the raw files. Without it, at scales "tiny" and "small", files of the same format are simulated.
    rows : sequence of str, optional
        Which of the table's rows; by default all. For a table of models, any name in the registry that has the task.
    seeds : sequence of int
    scale : {"tiny", "small", "full"}
    preset : {"paper", "release"}
        As the paper says, or as the authors' public code does: for traffic see :class:`easydgl_mini.TrafficForecaster`,
        for links :data:`RELEASED`. There is no released code for nodes, and the studies are of the paper's.
    out : path, optional
        Folder of the result files: by default ``book/results`` for the scale "full", ``results`` in ``work`` otherwise.
    work : path, optional
        Folder of checkpoints and trained models; by default ``.easydgl`` beside the data. An interrupted call goes on
        from there.
    search : bool
        Instead of the table: try each row's settings with the first seed, on validation data alone, and keep what was
        found; later calls use the best of them.
    again : bool
        Replace records that were made with other settings or other data.
    **settings
        Changes for every row, such as ``epochs=50``.
    """
    if table in STUDIES and rows is not None:
        raise ValueError(f"{table} has rows of its own, {', '.join(STUDIES[table])}; rows can't be chosen")
    rows = list(STUDIES[table]) if table in STUDIES else rows
    seeds = list(dict.fromkeys(seeds))
    if not seeds:
        raise ValueError("seeds must have one seed or more, got none")
    job, rows = _job(table, dataset, data, rows, scale, preset, device, out, work, progress, say)
    say(f"{table} on {job.dataset} ({'simulated' if job.simulated else 'real'}), scale {scale}: {', '.join(rows)}")
    if search:
        if table not in PROTOCOLS:
            raise ValueError(f"{table} takes the settings of the models' own tables; search those")
        for row, (model, _) in rows.items():
            _search(job, row, model, settings, seeds[0], again, say)
        return _table(job, rows)
    if table in STUDIES:
        return _study(job, table, rows, seeds[0], settings, again, say)
    todo = []  # known before the first training, so that a record that does not fit is refused at once
    for row, (model, own) in list(rows.items()):
        chosen = _chosen(job, model, own | settings) | _recorded(job, row, settings, again)
        search = _searched(job, model)
        if search and search["fingerprint"] != job.fingerprint:
            say(f"  {row}: with the settings that the book's search found on another file of {job.dataset}")
        if not search and scale == "full" and model not in FIXED:
            what = "the defaults" if preset == "paper" else "what was released"
            say(f"  {row}: no search in {job.out} or {BOOK}, so with {what}")
        full = make(model, job.protocol.task, 0, _chosen(job, model, settings)) if own else None
        if own and all(getattr(full, key) == value for key, value in own.items()):
            say(f"  {row} is the full model")
            del rows[row]
            continue
        kept = {run["seed"] for run in _begin(job, row, model, chosen, again)["runs"]}
        todo += [(row, model, chosen, seed) for seed in seeds if seed not in kept]
    if not rows:
        raise ValueError("rows must have a variant that differs from the full model, the row easydgl; got none")
    took = []
    for n, (row, model, chosen, seed) in enumerate(todo, 1):
        run = _run(job, row, model, chosen, seed)
        took += [run["seconds"]] if "epochs" in run else []  # what is not trained says nothing about the rest
        first = all(other != row for other, *_ in todo[: n - 1])
        record = _begin(job, row, model, chosen, again and first)  # read anew: another call may run other seeds
        record["runs"] = [other for other in record["runs"] if other["seed"] != seed] + [run]
        records.write(job.record_path(row), record)
        (job.folder(row, seed) / "checkpoint.pt").unlink(missing_ok=True)  # not before the record is safe
        some = ", ".join(f"{name} {run['metrics'][name]:.4f}" for name in job.protocol.metrics[:4])
        say(f"  {row}, seed {seed}: {some}; {run['seconds']:.0f} s; {_left(n, len(todo), took)}")
    return _table(job, rows)


def _left(done, of, took):
    """How far a call is, and how long the rest will take if it takes as long as what was trained, ``took`` seconds.

    >>> _left(1, 3, []), _left(2, 3, [60, 180])
    ('1 of 3, time left not known yet', '2 of 3, about 2 min left')
    """
    if done < of and not took:
        return f"{done} of {of}, time left not known yet"
    return f"{done} of {of}, about {sum(took) / max(len(took), 1) * (of - done) / 60:.0f} min left"


def _job(table, dataset, data, rows, scale, preset, device, out, work, progress, say):
    kind = "links" if table in STUDIES else table.removeprefix("ablations-")
    if kind not in PROTOCOLS:
        names = [*PROTOCOLS, *(f"ablations-{name}" for name in PROTOCOLS), *STUDIES]
        raise ValueError(f"table must be one of {', '.join(names)}, got {table!r}")
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    if preset not in ("paper", "release"):
        raise ValueError(f"preset must be 'paper' or 'release', got {preset!r}")
    if preset == "release" and (kind == "nodes" or table in STUDIES):
        raise ValueError(f"preset 'release' is for links, traffic and their ablations; {table} has 'paper'")
    dataset = dataset or DATASETS[kind]
    if datasets.dataset(dataset).task != PROTOCOLS[kind].task:
        raise ValueError(f"{dataset} is a dataset for the task {datasets.dataset(dataset).task}, {table} has another")
    usable(device)
    if rows is not None and not rows:
        raise ValueError("rows must have one name or more, got none")
    known = {row: (row, {}) for row, entry in REGISTRY.items() if PROTOCOLS[kind].task in entry.tasks}
    usual = PROTOCOLS[kind].rows
    if preset == "release" and kind == "links":
        known = usual = {row: (row, {}) for row in RELEASED}
    if table.startswith("ablations-"):
        known = usual = {row: ("easydgl", own) for row, own in variants(kind).items()}
    bad = [row for row in rows or () if row not in known]
    if bad:
        raise ValueError(f"rows must be among {', '.join(known)}, got {', '.join(bad)}")
    work = Path(work) if work else Path(data or ".") / ".easydgl"
    out = Path(out or (BOOK if scale == "full" else work / "results"))
    if out.exists() and not out.is_dir():
        raise ValueError(f"out must be a folder, {out} is a file")
    if data is None:
        if scale == "full" or dataset not in WRITERS:
            some = ", easydgl-mini simulate makes some" if dataset in WRITERS else ""
            raise ValueError(
                f"{dataset} at scale {scale!r} needs --data, the folder with its raw files: "
                f"easydgl-mini data fetch {dataset} --data DIR says how to get them{some}"
            )
        data = work / "simulated" / f"{dataset}-{scale}"
        if not data.exists():
            say(f"no --data: simulating {dataset} at scale {scale} in its raw format")
            write_raw(dataset, scale, data, seed=0)
    loaded = datasets.load(dataset, data)
    protocol = PROTOCOLS[kind](dataset, loaded)
    simulated = datasets.simulated(dataset, data)
    has, public = loaded.report.rows, datasets.dataset(dataset).expect.get("rows")
    partial = f"The public files have {public:,} rows, these {has:,}" if public and has != public else ""
    part = f"{has} rows" if partial and not simulated else ""
    places = {"out": out, "work": work, "progress": progress, "partial": partial, "part": part}
    job = Job(table, protocol, dataset, scale, preset, device, simulated, loaded.fingerprint, **places)
    return job, {row: known[row] for row in rows or usual}


def _settings(job, model, own):
    """All settings of a row before the search: the dataset's, the preset's, the scale's, then its own."""
    known = SETTINGS.get(job.dataset, {}) | {"device": job.device}
    if job.protocol.task == "traffic":
        known["preset"] = job.preset
    if job.protocol.task == "link" and job.preset == "release":
        known = {"batch_size": 512} | known | RELEASED[model] | {"epochs": 100, "patience": 10}
        return known | (SCALES[job.scale] if job.scale != "full" else {}) | own
    return SCALES[job.scale] | known | own


def _chosen(job, model, own):
    found = _searched(job, model)
    if found and len(found["tried"]) < len(_candidates(job, model)):
        many = f"{len(found['tried'])} of {len(_candidates(job, model))}"
        raise ValueError(f"{job.search_path(model)} has {many} settings; finish it with --search, or delete it")
    best = found["tried"][found["best"]]["settings"] if found else {}
    return _settings(job, model, best | own)


def _recorded(job, row, given, again):
    """How long and how exactly a row was trained, of its record, so that other seeds are trained alike.

    A variant without a record is trained as the full model was.
    """
    old = None if again else records.read(job.record_path(row))
    if old is None and job.table.startswith("ablations-"):
        old = records.read(job.record_path("easydgl"))
    keys = {"epochs", "patience", "precision"} & (old["settings"].keys() if old else set()) - given.keys()
    return {key: old["settings"][key] for key in keys}


def _searched(job, model):
    """What was found for this model and dataset, in the folder of the records or else in the book's, or None.

    The book's serves another file of the same events too (users and items may be numbered otherwise), but nothing that
    is simulated.
    """
    path = job.search_path(model)
    found, known = records.read(path), records.read(BOOK / "search" / path.name)
    if found and found["fingerprint"] != job.fingerprint:
        raise ValueError(f"{path} is about other data; --search --again replaces it")
    return found or (known if known and (known["fingerprint"] == job.fingerprint or not job.simulated) else None)


def _candidates(job, model):
    return SEARCH.get((model, job.protocol.task), PLAIN)


def _begin(job, row, model, settings, again):
    """The record so far if it is about the same thing, a new one otherwise."""
    record = {
        "table": job.name(row),
        "dataset": job.dataset,
        "part": job.part,
        "scale": job.scale,
        "simulated": job.simulated,
        "preset": job.preset,
        "row": row,
        "model": model,
        "settings": settings,
        "data": job.protocol.facts() | {"fingerprint": job.fingerprint},
        "runs": [],
    }
    record = json.loads(json.dumps(record))  # as it will be read again
    old = records.read(job.record_path(row))
    if old is None or again:
        return record
    free = {"runs", "settings"}
    pairs = [(key, old.get(key, ""), value) for key, value in record.items() if key not in free]
    keys = (old["settings"].keys() | record["settings"].keys()) - {"device"}
    pairs += [(key, old["settings"].get(key), record["settings"].get(key)) for key in sorted(keys)]
    for key, then, value in pairs:
        if then != value:
            raise ValueError(f"{job.record_path(row)} has {key} {then!r}, now it is {value!r}; --again replaces it")
    return old


def _run(job, row, model_name, settings, seed, validate_only=False):
    """Train (or fit in closed form) and score once; an interrupted training is taken up where it was."""
    model, folder = make(model_name, job.protocol.task, seed, settings), job.folder(row, seed)
    _forget_peak()
    parts, started, used = job.protocol.parts(seed), time.time(), time.process_time()
    resumed = (folder / "checkpoint.pt").exists()
    job.protocol.fit(model, parts, {"checkpoint": folder, "resume": True, "progress": job.progress})
    score = job.protocol.validate if validate_only else job.protocol.score
    found = {"seed": seed, "metrics": {name: float(value) for name, value in score(model, parts).items()}}
    history, metric = model.result_.history if model.result_ else [], job.protocol.metric  # none: nothing to train
    if history:
        found |= {"best_epoch": model.result_.best_epoch, "epochs": len(history), "stopped": model.result_.stopped}
        found["validation"] = [round(line[metric], 5) for line in history if metric in line]
    _keep(job, model, folder)
    earlier = model.result_.earlier if history else {}
    found |= {"seconds": round(time.time() - started + earlier.get("seconds", 0), 1), "peak_gb": _peak()}
    used = time.process_time() - used + earlier.get("processor_seconds", 0)  # of all threads, whatever else runs
    found["processor_seconds"] = round(used, 1)
    if resumed:
        found["resumed"] = "seconds are of all parts" if earlier else "seconds count from the last interruption"
    return found | records.provenance(job.device if history else "cpu")


def _keep(job, model, folder):
    """Save a trained model, and beside it what data it has seen."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DATA).unlink(missing_ok=True)
    model.save(folder / "model.pt")
    (folder / DATA).write_text(job.fingerprint)


def _kept(job, fresh, folder, settings):
    """The model of a folder if it was trained on these data with these settings, or None."""
    file = folder / "model.pt"
    if not file.exists() or not (folder / DATA).exists() or (folder / DATA).read_text() != job.fingerprint:
        return None
    old = type(fresh).load(file)
    same = all(getattr(old, key, value) == value for key, value in settings.items() if key != "device")
    return old if same else None


def _peak():
    """Largest memory of the process in GB, or None where the system does not say (Windows)."""
    if resource is None:
        return None
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** (30 if sys.platform == "darwin" else 20), 2)


def _forget_peak():
    """Count the process's largest memory from here on, where the system can (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _study(job, name, rows, seed, settings, again, say):
    """Train what is not trained yet, by default as the table's record says, look at it, and keep what was seen."""
    path, parts, models, how, started = job.record_path("study"), job.protocol.parts(seed), {}, {}, time.time()
    about, took = {"seed": seed, "simulated": job.simulated}, []
    record = _begin(job, "study", name, settings, again)
    if "found" in record:
        if record["seed"] != seed:
            raise ValueError(f"{path} has seed {record['seed']}, now it is {seed}; --again replaces it")
        return record["found"] | about
    for row, (model, own) in rows.items():
        known = None if settings else records.read(records.path_of(job.out, "links", job.label, job.scale, row))
        chosen = known["settings"] if known else _chosen(job, model, own | settings)
        fresh, folder, how[row] = make(model, "link", seed, chosen), job.folder(row, seed), chosen
        models[row] = _kept(job, fresh, folder, chosen)
        if models[row] is None:
            run, begun = {"checkpoint": folder, "resume": True, "progress": job.progress}, time.time()
            models[row] = job.protocol.fit(fresh, parts, run)
            _keep(job, fresh, folder)
            (folder / "checkpoint.pt").unlink(missing_ok=True)
            took += [time.time() - begun] if fresh.result_ and fresh.result_.history else []
        say(f"  {row}: ready; {_left(len(models), len(rows), took)}")
    record |= {"seed": seed, "models": how, "found": study(name, models, parts)} | records.provenance(job.device)
    record["seconds"] = round(time.time() - started, 1)  # with the training of what was not trained yet
    records.write(path, record)
    return record["found"] | about


def _search(job, row, model, given, seed, again, say):
    """Try a row's settings on validation data alone, and write down all that were tried."""
    if model in FIXED:
        return
    path = job.search_path(model)
    known = None if again or not path.exists() else _searched(job, model)
    epochs, tried = _settings(job, model, given)["epochs"], known["tried"] if known else []
    fixed = {key: value for key, value in given.items() if key != "epochs"}
    now = {"epochs": epochs, "seed": seed} | fixed
    if known:
        then = {"epochs": known["epochs"], "seed": tried[0]["seed"]} | known.get("given", {})
        if then != now:
            raise ValueError(f"{path} was begun with {then}, now it is {now}; --again replaces it")
    for trial, change in zip(tried, _candidates(job, model), strict=False):
        if trial["settings"] != dict(change):
            raise ValueError(f"{path} tried {trial['settings']}, now it would be {dict(change)}; --again replaces it")
    for n, change in enumerate(_candidates(job, model)):
        if n < len(tried):
            continue
        settings = _settings(job, model, given | dict(change))
        run = _run(job, f"{row}-search-{n}", model, settings, seed, validate_only=True)
        keep = ("metrics", "best_epoch", "epochs", "seconds", "processor_seconds", "code", "machine", "date")
        tried.append({"settings": dict(change), "seed": seed} | {key: run[key] for key in keep if key in run})
        values = [trial["metrics"][job.protocol.metric] for trial in tried]
        best = values.index((max if job.protocol.larger else min)(values))
        record = {"model": model, "dataset": job.dataset, "metric": f"validation {job.protocol.metric}", "best": best}
        record |= {"fingerprint": job.fingerprint, "epochs": epochs, "given": fixed, "tried": tried}
        records.write_plain(path, record)
        shutil.rmtree(job.folder(f"{row}-search-{n}", seed), ignore_errors=True)
        left = _left(n + 1, len(_candidates(job, model)), [trial["seconds"] for trial in tried])
        say(f"  {row}: {change or 'defaults'}: {job.protocol.metric} {values[-1]:.4f}, {run['seconds']:.0f} s; {left}")


def _table(job, rows):
    found = [record for row in rows if (record := records.read(job.record_path(row))) and record["runs"]]
    table = records.beside_paper(found, job.dataset, job.protocol.metrics, list(rows))
    if job.simulated:
        table.attrs["note"] = "The data is simulated: these numbers say nothing about the paper's."
    elif job.partial:
        table.attrs["note"] = f"{job.partial}: the paper's figures are about other data."
    return table
