"""The protocol of each task: how data is split, what is chosen by validation, what is counted on the test data."""

import dataclasses
import inspect

from ..baselines import REGISTRY
from ..train import FitConfig
from .records import SEEDS  # noqa: F401  (part of the protocol)

STEPS = {"elliptic": (37, 39, ((40, 42), (43, 46), (47, 49))), "patent": (95, 96, ((97, 99),))}
"""Last training step, last validation step, and the windows of the test steps."""
RUN = {f.name for f in dataclasses.fields(FitConfig)} - {"checkpoint", "resume", "progress", "log"}

SHARED = {"sampling", "by_length", "time_unit", "calendar", "origin", "preset", "max_len"}
"""What a dataset or preset may ask for, of the models that have it."""


class Links:
    """Inductive users 8:1:1, split anew by each seed; the last event of a test user is ranked among all items."""

    task, metric, larger = "link", "ndcg@10", True
    metrics = tuple(f"{name}@{k}" for name in ("hr", "ndcg") for k in (10, 50, 100))
    rows = (
        "popularity", "gat", "sage", "gcn", "chebynet", "arma", "appnp", "mrfcf", "gsimc", "bgsimc", "gru4rec",
        "sasrec", "grec", "bert4rec", "tgat", "tisasrec", "ctsma", "easydgl",
    )  # fmt: skip

    def __init__(self, dataset, data):
        self.data = data

    def parts(self, seed):
        return self.data.split_users((8, 1, 1), seed)

    def fit(self, model, parts, run):
        return model.fit(parts[0], valid=parts[1], **run)

    def validate(self, model, parts):
        return model.score(parts[1])

    def score(self, model, parts):
        return model.score(parts[2])

    def facts(self):
        log = self.data
        return {"events": len(log), "users": len(log.users), "items": log.num_items}


class Nodes:
    """Steps in order of time; the seeds differ in weights and masks only."""

    task, metric, larger = "node", "macro_f1", True
    rows = (
        "majority", "label_propagation", "random_forest", "appnp", "gat", "sage", "arma", "chebynet", "gcn", "tgat",
        "evolvegcn", "tgn", "easydgl",
    )  # fmt: skip

    def __init__(self, dataset, data):
        self.data = data
        self.train, self.valid, self.windows = STEPS[dataset]
        names = ("macro_f1", "accuracy") if dataset == "patent" else ("macro_f1", "illicit_f1", "accuracy")
        self.metrics = tuple(f"{name}@{a}-{b}" for a, b in self.windows for name in names)

    def parts(self, seed):
        return self.data

    def fit(self, model, parts, run):
        return model.fit(parts, train_until=self.train, valid_until=self.valid, **run)

    def validate(self, model, parts):
        return model.score(parts, steps=(self.train + 1, self.valid))

    def score(self, model, parts):
        found = {}
        for a, b in self.windows:
            found |= {f"{name}@{a}-{b}": value for name, value in model.score(parts, steps=(a, b)).items()}
        return {name: found[name] for name in self.metrics}

    def facts(self):
        graph = self.data.graph
        return {"nodes": graph.num_nodes, "edges": graph.num_edges, "features": self.data.features.shape[1]}


class Traffic:
    """Readings in order of time, 70/20/10 or 70/10/20 by preset; windows never cross a border."""

    task, metric, larger = "traffic", "mae", False
    metrics = tuple(f"{name}@{h}" for h in (3, 6, 9, 12) for name in ("mae", "rmse", "mape"))
    rows = (
        "last_value", "historical_average", "appnp", "gat", "sage", "arma", "chebynet", "gcn", "dcrnn", "stgcn",
        "stid", "graph_wavenet", "easydgl",
    )  # fmt: skip

    def __init__(self, dataset, data):
        self.data = data

    def parts(self, seed):
        return self.data

    def fit(self, model, parts, run):
        return model.fit(parts, **run)

    def validate(self, model, parts):
        found = model.score(parts, part="valid")
        return found | {"mae": sum(found[f"mae@{h}"] for h in (3, 6, 9, 12)) / 4}

    def score(self, model, parts):
        return model.score(parts, part="test")

    def facts(self):
        steps, sensors = self.data.readings.shape
        return {"steps": steps, "sensors": sensors, "edges": self.data.graph.num_edges}


PROTOCOLS = {"links": Links, "nodes": Nodes, "traffic": Traffic}


def make(name, task, seed, settings):
    """An estimator from the registry: ``settings`` as far as it has them, but a name that nobody has is an error."""
    cls = REGISTRY[name].tasks.get(task)
    if cls is None:
        raise ValueError(f"{name} has no {task} task; it has {', '.join(REGISTRY[name].tasks)}")
    known = set(inspect.signature(cls).parameters)
    own = {key: value for key, value in settings.items() if key in known}
    lost = set(settings) - known - RUN - SHARED
    if lost:
        raise ValueError(f"{name} has no setting {', '.join(sorted(lost))}")
    return REGISTRY[name](task, **own | ({"seed": seed} if "seed" in known else {}))
