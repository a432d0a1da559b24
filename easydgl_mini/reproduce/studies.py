"""Studies of trained link models: the paper's spectral ones, and what a file's order of ties is worth (Part 5)."""

import numpy as np
import pandas as pd
import torch
from scipy.sparse import coo_array

from ..events import EventLog
from ..interpret import band, decompose, energy, energy_over_time, item_affinity, laplacian, report
from ..interpret.report import METRICS
from ..train.link import log_popularity
from ..train.metrics import hit_rate, ndcg, rank_of
from .records import paper_figures

SPECTRAL = {
    "perturbation": ("bert4rec", "gsimc", "tgat", "easydgl"),
    "recall": ("gsimc",),
    "energy": ("gsimc", "bert4rec", "tgat", "easydgl"),
}
"""The paper's studies, and the rows of the link table that each needs."""
STUDIES = SPECTRAL | {"ties": ("popularity", "sasrec", "bert4rec", "easydgl")}
CUTS = (50, 100, 200, 300, 500, 700, 1000)


def study(name, models, parts, rank=1000, users=2000, seed=0):
    """One study on the test users of a split.

    Parameters
    ----------
    name : {"perturbation", "recall", "energy", "ties"}
    models : dict of name -> fitted estimator
    parts : training, validation and test logs
        The item graph is made of the training users' choices.
    rank : int
        Frequencies, counted from the lowest; at most the number of items. The paper's cuts at 50, 500, 900 and 1,000
        are placed at the same shares of ``rank``.
    users : int
        Test users, at most.

    Returns
    -------
    dict
        Of plain lists and numbers; for the spectral ones with the basis' largest residual.
    """
    train, _, test = parts
    if name == "ties":
        return ties(models, test, seed=seed)
    spectrum = basis(train, rank, seed)
    history, last = test.hold_out_last()
    chosen = np.random.default_rng(seed).permutation(last.users)[:users]
    history, last = (log.select(np.isin(log.user, chosen)) for log in (history, last))
    made = {"perturbation": _perturbation, "recall": _recall, "energy": _energy}[name]
    found = made(models, spectrum, train, history, last)
    sizes = {"users": len(last), "items": train.num_items, "frequencies": len(spectrum)}
    return found | sizes | {"largest residual": float(spectrum.residuals.max())}


def as_table(name, found):
    """What a study found as a table for people (the record has all of it); perturbations with the paper's below.

    Examples
    --------
    >>> rows = [{"model": "gsimc", "cut": 50, "degree group": g, "users": 9, "recall@100": g / 4} for g in range(4)]
    >>> as_table("recall", {"rows": rows, "degree edges": [3.0, 5.0, 8.0]}).loc[50].to_dict()
    {'≤ 3': 0.0, '> 3': 0.25, '> 5': 0.5, '> 8': 0.75}
    """
    if name == "perturbation":
        ours, figures = paper_form(found), paper_figures()
        theirs = figures[figures.table == "tbl:perturb"].pivot(index="row", columns="metric", values="value")
        order = [row for row in ours.index if row in theirs.index]
        return pd.concat({"here": ours, "the paper's, Netflix": theirs.loc[order, ours.columns]}).round(4)
    if name == "recall":
        frame, edges = pd.DataFrame(found["rows"]), found["degree edges"]
        names = [f"≤ {edges[0]:.0f}", *(f"> {edge:.0f}" for edge in edges)]  # how often the held-out item was chosen
        table = frame.pivot(index="cut", columns="degree group", values="recall@100")
        table.loc["users"] = frame.groupby("degree group").users.first()
        return table.set_axis(names, axis=1).round(4)
    if name == "ties":
        parts = {line["model"]: line["hr@10"] | line["hr@10 of"] for line in found["rows"]}
        return pd.DataFrame(parts).T.drop(columns="draws").astype(float).round(4).add_prefix("hr@10, ")
    low, lines = _place(range(found["frequencies"]), 50), {}
    for model, shares in found["models"].items():
        for key, scores in (("", "as written"), ("centred ", "centred")):
            days = np.array(shares[f"{key}over days"])[:, :low].sum(1)
            lines[model, scores] = [sum(shares[f"{key}energy"][:low]), *days]
    columns = ["at the true time", *(f"day {day}" for day in range(len(days)))]
    return pd.DataFrame(lines, columns).T.rename_axis(columns=f"share of the lowest {low}").round(4)


def paper_form(found, key="rows"):
    """A perturbation study's rows in the form of the paper's table: before, then after, for each pair."""
    lines, frame = {}, pd.DataFrame(found[key])
    frame = frame[~frame.control]
    for (model, donor), part in frame.groupby(["model", "donor"], sort=False):
        part = part.set_index(part.metric.str.replace("N@", "ndcg@").str.replace("HR@", "hr@"))
        lines[model] = part.before
        lines[f"{donor} perturb. {model}".strip()] = part.after
    return pd.DataFrame(lines).T


def basis(train, rank, seed=0):
    """The lowest frequencies of the graph of items that training users share."""
    seen = coo_array((np.ones(len(train)), (train.user, train.item)), (train.num_users, train.num_items)).tocsr()
    seen.data[:] = 1.0
    rank = min(rank, train.num_items)
    method = "exact" if train.num_items <= 5000 else "krylov"
    return decompose(laplacian(item_affinity(seen)), rank, method=method, seed=seed)


def scores(model, history, last):
    """Scores (users, items) at each user's time, standardised later; nothing is excluded yet."""
    return np.asarray(model.predict(history, at=last.time), dtype=np.float64)


def excluded(history, last):
    """What each user already has: bool (users, items)."""
    seen = np.zeros((len(last), history.num_items), dtype=bool)
    seen[np.searchsorted(last.users, history.user), history.item] = True
    return seen


def _place(spectrum, share):
    """A cut of the paper's 1,000 frequencies at the same share of ours."""
    return int(round(share / 1000 * len(spectrum)))


def centred(y):
    """Each user's scores (users, items) less their mean, which no ranking and no softmax can see, but a band can."""
    return y - y.mean(1, keepdims=True)


def _perturbation(models, spectrum, train, history, last):
    """The paper's rows on scores as the models write them, and on centred ones; popularity loses its band beside."""
    predictions = {name: scores(model, history, last) for name, model in models.items()}
    predictions["popularity"] = np.tile(log_popularity(train).numpy(), (len(last), 1))
    high = band(spectrum, _place(spectrum, 500), None, tolerance=0)
    ends = band(spectrum, None, _place(spectrum, 50), tolerance=0) | band(
        spectrum, _place(spectrum, 900), None, tolerance=0
    )
    bands = {"> λ500": high, "≤ λ50 and λ900–λ1000": ends}
    settings = last.item, spectrum, bands, excluded(history, last), METRICS
    wanted = [("bert4rec", "", "> λ500"), ("popularity", "", "> λ500"), ("gsimc", "bert4rec", "> λ500"),
              ("tgat", "easydgl", "≤ λ50 and λ900–λ1000")]  # fmt: skip
    found = {}
    for key, given in (("rows", predictions), ("centred rows", {name: centred(y) for name, y in predictions.items()})):
        table = report(given, *settings, complement=True).set_index(["model", "donor", "band", "control"])
        found[key] = []
        for model, donor, name in wanted:
            for control in (False, True):
                for line in table.loc[[(model, donor, name, control)]].itertuples():
                    keys = {"model": model, "donor": donor, "band": name, "control": control, "metric": line.metric}
                    values = {key: float(getattr(line, key)) for key in ("before", "after", "change", "low", "high")}
                    found[key].append(keys | values)
    return found


def _recall(models, spectrum, train, history, last):
    """HR@100 of each model's low-passed scores, by how often the held-out item was chosen."""
    degree = np.bincount(train.item, minlength=train.num_items)
    edges = np.quantile(degree[degree > 0], (0.5, 0.8, 0.95)).tolist()
    place, hidden, rows = np.searchsorted(edges, degree[last.item]), excluded(history, last), []
    for name, model in models.items():
        y = scores(model, history, last)
        for cut in CUTS:
            U = spectrum.vectors[:, : max(1, _place(spectrum, cut))]
            ranks = rank_of(
                torch.from_numpy((y @ U) @ U.T), torch.from_numpy(last.item), torch.from_numpy(hidden)
            ).numpy()
            for group in range(4):
                mine = ranks[place == group]
                rows.append({"model": name, "cut": cut, "degree group": group, "users": len(mine),
                             "recall@100": float((mine <= 100).mean()) if len(mine) else None})  # fmt: skip
    return {"rows": rows, "degree edges": edges}


def _energy(models, spectrum, train, history, last, days=8):
    """Mean share of each frequency when asked at the true time, and as days pass after the last event; centred too."""
    ends = history.time[history.offsets[last.users + 1] - 1]
    found = {}
    for name, model in models.items():
        found[name] = {}
        for key, change in (("", lambda y: y), ("centred ", centred)):
            now = energy(spectrum, change(scores(model, history, last)).T).mean(1)
            later = lambda d, f=change, m=model: f(np.asarray(m.predict(history, at=ends + 86400.0 * d))).T  # noqa: E731
            trend = energy_over_time(later, spectrum, range(days))
            found[name] |= {f"{key}energy": np.round(now, 8).tolist(), f"{key}over days": np.round(trend, 8).tolist()}
    return {"models": found}


def ties(models, test, draws=10, seed=0):
    """What the order of events at one instant is worth: a clock has none, a file does.

    Each model ranks the users' last events as filed; with each user's simultaneous events in random order, so that
    another of them may be the last; and, as filed, those that share their instant with the event before, and the rest.

    Returns
    -------
    dict
        ``rows``, per model: each metric as filed, its mean over the ``draws`` and each draw's; HR@10 of the two groups.
        ``tied events`` and ``tied targets``: shares that happen at the instant of the event before.
    """
    history, last = test.hold_out_last()
    tied = torch.from_numpy(last.time == history.time[history.offsets[last.users + 1] - 1])
    rng, rows = np.random.default_rng(seed), []
    mixed = [shuffle_ties(test, rng).hold_out_last() for _ in range(draws)]
    for name, model in models.items():
        ranks, row = model.rank(history, last), {"model": name}
        others = [model.rank(*pair) for pair in mixed]
        for metric, f in (("hr@10", hit_rate), ("ndcg@10", ndcg)):
            each = [float(f(other, 10)) for other in others]
            row[metric] = {"as filed": float(f(ranks, 10)), "shuffled": float(np.mean(each)), "draws": each}
        row["hr@10 of"] = {
            group: float(hit_rate(ranks[mine], 10)) if mine.any() else None
            for group, mine in (("tied targets", tied), ("other targets", ~tied))
        }
        rows.append(row)
    same = (test.user[1:] == test.user[:-1]) & (test.time[1:] == test.time[:-1])
    pairs = (test.user[1:] == test.user[:-1]).sum()
    shares = {"tied events": float(same.sum() / max(pairs, 1)), "tied targets": float(tied.double().mean())}
    return {"rows": rows, "users": len(last), "items": test.num_items, "draws": draws} | shares


def shuffle_ties(log, rng):
    """The log with each user's events at one instant in random order."""
    order = np.lexsort((rng.random(len(log)), log.time, log.user))
    sizes = {"num_users": log.num_users, "num_items": log.num_items}
    return EventLog(log.user[order], log.item[order], log.time[order], **sizes)
