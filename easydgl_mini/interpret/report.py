"""One call from predictions and a graph to a table: which frequencies does each model's accuracy rest on?

Chapters *Perturbations* and *How models evolve*.
"""

import base64
import html
import io
import re

import numpy as np
import pandas as pd
import scipy.sparse

from .fourier import Band, apart, whole
from .perturb import perturb

METRICS = ("HR@10", "HR@50", "HR@100", "N@10", "N@50", "N@100")
KEYS = ["slice", "model", "donor", "band", "control"]


def report(
    predictions,
    truth,
    spectrum,
    bands,
    exclude=None,
    metrics=METRICS,
    *,
    donors=None,
    complement=False,
    standardize=True,
    degree=None,
    edges=(100, 2000, 5000),
    interval="bootstrap",
    level=0.95,
    draws=1000,
    seed=0,
    chunk=None,
):
    r"""How every model's ranking changes when a band is removed from its scores, or replaced by another model's.

    Parameters
    ----------
    predictions : dict of name -> array, shape (users, items)
        Scores; higher is better. Memory maps are read a few users at a time.
    truth : int array, shape (users,)
        The held-out item of each user.
    spectrum : Spectrum
        Of the graph over items.
    bands : dict of name -> Band, or sequence of Bands
    exclude : bool mask or SciPy sparse matrix (users, items), or int array (users, m) padded with -1, optional
        Items that don't compete, as in :func:`easydgl_mini.train.rank_of`.
    metrics : sequence of str
        ``"HR@k"`` (hit rate) and ``"N@k"`` (NDCG with one relevant item).
    donors : sequence of names, optional
        Models whose content is transplanted into all others; by default every model, ``()`` for none.
    complement, standardize : bool
        As in :func:`perturb`.
    degree : array, shape (items,), optional
        Popularity of each item. Adds the same rows for slices of users by the degree of their held-out item.
    edges : sequence of float
        Borders of the slices, those of the paper by default; a slice includes its upper border.
    interval : {"bootstrap", "normal"}
        Confidence interval of the change, over users. Both look at each user's own difference (before and after are
        paired). ``bootstrap``: percentiles over ``draws`` resamples of the users.
    level : float
    draws : int
    seed : int
        Of the control bands and the bootstrap.
    chunk : int, optional
        Users handled at a time.

    Returns
    -------
    Report
        A pandas DataFrame with one row per slice, model, donor ("" where the band is removed), band, control and
        metric, and columns ``before``, ``after``, ``change``, ``low``, ``high``, ``users``. Rows with ``control`` True
        use as many frequencies as the band, drawn at random outside it (among all, where too few lie outside): a band
        matters if its change stands out from its control's. Equal eigenvalues are drawn together, because a part of
        them depends on the basis; a warning says where no such control was found.

    Raises
    ------
    AssertionError
        If a row of the table breaks :func:`check_ranking_metrics`: no ranking can.

    Examples
    --------
    >>> from easydgl_mini.interpret import band, decompose, laplacian
    >>> ring = laplacian(np.roll(np.eye(9), 1, 0) + np.roll(np.eye(9), -1, 0))
    >>> spectrum = decompose(ring, rank=9)
    >>> table = report({"oracle": np.eye(9)}, np.arange(9), spectrum, [band(spectrum, stop=9)], metrics=["HR@1"])
    >>> float(table.query("not control").change.iloc[0])      # removing everything leaves a tie of all items
    -1.0
    """
    predictions, truth = _inputs(predictions, truth, spectrum)
    users, items = len(truth), len(spectrum.vectors)
    bands = bands if isinstance(bands, dict) else {band.name: band for band in bands}
    donors = list(predictions) if donors is None else list(donors)
    for name in donors:
        if name not in predictions:
            raise ValueError(f"donors: got {name!r}, expected one of {list(predictions)}")
    if interval not in ("bootstrap", "normal"):
        raise ValueError(f"interval: got {interval!r}, expected 'bootstrap' or 'normal'")
    if not 0 < level < 1:
        raise ValueError(f"level: got {level}, expected a number between 0 and 1")
    parsed = {name: _metric(name) for name in metrics}
    rng = np.random.default_rng(seed)
    pairs = [(name, band, False) for name, band in bands.items()]
    pairs += [(name, _control(spectrum, band, rng), True) for name, band in bands.items()]
    settings = [(m, d, *p) for m in predictions for d in ["", *(d for d in donors if d != m)] for p in pairs]

    chunk = chunk or max(1, 2**25 // items)
    before, after = np.empty((len(predictions), users), int), np.empty((len(settings), users), int)
    for i in range(0, users, chunk):
        here = slice(i, i + chunk)
        scores = {name: np.array(array[here]).T for name, array in predictions.items()}
        hide = None if exclude is None else exclude[here]
        for row, y in zip(before, scores.values(), strict=True):
            row[here] = _ranks(y, truth[here], hide)
        for row, (model, donor, _, band, _) in zip(after, settings, strict=True):
            new = perturb(scores[model], spectrum, band, complement, scores[donor] if donor else None, standardize)
            row[here] = _ranks(new, truth[here], hide)

    slices = {"all": np.arange(users)}
    if degree is not None:
        slices |= _slices(np.asarray(degree), truth, items, edges)
    rows, position = [], {name: n for n, name in enumerate(predictions)}
    for part, who in slices.items():
        old, new = ({name: gain(ranks[:, who]) for name, gain in parsed.items()} for ranks in (before, after))
        bounds = _intervals(np.stack([new[m] - old[m][[position[s[0]] for s in settings]] for m in parsed], 1),
                            interval, level, draws, seed)  # fmt: skip
        for n, (model, donor, name, _, control) in enumerate(settings):
            for k, metric in enumerate(parsed):
                was, now = old[metric][position[model]].mean(), new[metric][n].mean()
                rows.append((part, model, donor, name, control, metric, was, now, now - was, *bounds[n, k], len(who)))
    columns = [*KEYS, "metric", "before", "after", "change", "low", "high", "users"]
    table = Report(rows, columns=columns)
    for _, group in table.groupby(KEYS, sort=False):
        for column in ("before", "after"):
            check_ranking_metrics(dict(zip(group["metric"], group[column], strict=True)))
    return table


class Report(pd.DataFrame):
    """The table of :func:`report`: a DataFrame that can draw itself and write itself to a page."""

    def summary(self):
        """The table in the paper's form, one row per perturbation and one column per metric, as text."""
        cells = [f"{a:.4f} ({c:+.4f} [{lo:+.4f}, {hi:+.4f}])" for a, c, lo, hi in
                 zip(self["after"], self["change"], self["low"], self["high"], strict=True)]  # fmt: skip
        wide = pd.DataFrame(self[[*KEYS, "metric"]]).assign(cell=cells)
        order = wide["metric"].unique()
        keys = wide[KEYS].drop_duplicates()
        return wide.pivot(index=KEYS, columns="metric", values="cell").loc[pd.MultiIndex.from_frame(keys), order]

    def plot(self, metric=None, ax=None):
        """Changes of one metric (the table's first by default) with their intervals; controls in grey."""
        from ..plotting import COLORS

        metric = self["metric"].iloc[0] if metric is None else metric
        rows = self[(self["metric"] == metric) & (self["slice"] == "all")]
        if rows.empty:
            raise ValueError(f"metric: got {metric!r}, expected one of {list(self['metric'].unique())}")
        shown = rows[~rows["control"]]
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots(figsize=(6.4, 1.2 + 0.4 * len(shown)))[1]
        for control, color, shift in ((False, COLORS["event"], -0.12), (True, COLORS["muted"], 0.12)):
            low, middle, high = rows.loc[rows["control"] == control, ["low", "change", "high"]].to_numpy(float).T
            ends = np.stack([middle - low, high - middle]).clip(0)  # a percentile may pass the mean
            label = "control of equal size" if control else "band"
            ax.errorbar(middle, np.arange(len(middle)) + shift, xerr=ends, fmt="o", color=color, label=label)
        names = [f"{d + ' into ' if d else ''}{m}, {b}" for m, d, b in
                 zip(shown["model"], shown["donor"], shown["band"], strict=True)]  # fmt: skip
        ax.set_yticks(np.arange(len(names)), [name.replace("$", r"\$") for name in names])
        ax.invert_yaxis()
        ax.axvline(0, color=COLORS["truth"], linewidth=0.8)
        ax.set_xlabel(f"change of {metric}")
        ax.legend()
        return ax

    def to_html(self, path=None, title="Frequencies and accuracy"):
        """A page that needs nothing else: summary table and figure. Written to ``path``, or returned if it is None."""
        from matplotlib.figure import Figure

        shown = ((self["slice"] == "all") & ~self["control"] & (self["metric"] == self["metric"].iloc[0])).sum()
        figure = Figure(figsize=(7.5, 1.2 + 0.4 * shown), layout="constrained")
        self.plot(ax=figure.add_subplot())
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=110)
        table = self.summary().rename_axis(columns=None).reset_index()
        table["control"] = table["control"].map({False: "", True: "control"})
        title = html.escape(title)
        page = (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>'
            "body{font-family:sans-serif;margin:2em}table{border-collapse:collapse;font-size:.85em}"
            "td,th{padding:.3em .6em;border-bottom:1px solid #ccc;text-align:left}</style></head><body>"
            f"<h1>{title}</h1><p>Each cell: the metric after the perturbation (its change [interval over users]).</p>"
            f'<img alt="Changes per model and band" src="data:image/png;base64,'
            f'{base64.b64encode(picture.getvalue()).decode()}">'
            f"{pd.DataFrame(table).to_html(index=False, border=0, escape=True)}</body></html>\n"
        )
        if path is None:
            return page
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)


def check_ranking_metrics(values, tolerance=1e-9):
    r"""Raise AssertionError if hit rates and NDCGs can't come from one ranking, or from any average of rankings.

    With one held-out item per user, those ranked between :math:`k` and :math:`k'` add between
    :math:`1/\log_2(k'+1)` and :math:`1/\log_2(k+2)` each to the NDCG, so

    .. math::
        \frac{HR_{k'} - HR_k}{\log_2(k'+1)} \le N_{k'} - N_k \le \frac{HR_{k'} - HR_k}{\log_2(k+2)}

    for all :math:`k < k'`, and for :math:`k = 0` with both zero there. Chapter *Paper, code and truth*.

    Parameters
    ----------
    values : dict of str -> float
        Such as ``{"HR@10": 0.3, "N@10": 0.2, …}``. Cut-offs with only one of the two say nothing and are passed over.
    tolerance : float
        Rounding of the values.
    """
    cuts = sorted(int(k[3:]) for k in values if k.startswith("HR@") and f"N@{k[3:]}" in values)
    steps = [(0, 0.0, 0.0)] + [(k, values[f"HR@{k}"], values[f"N@{k}"]) for k in cuts]
    for (k, hr, ndcg), (k2, hr2, ndcg2) in zip(steps, steps[1:], strict=False):
        hits, gain = hr2 - hr, ndcg2 - ndcg
        least, most = hits / np.log2(k2 + 1), hits / np.log2(k + 2)
        if not least - 2 * tolerance <= gain <= most + 2 * tolerance:
            raise AssertionError(
                f"N@{k2} - N@{k} is {gain:.6f}, but HR@{k2} - HR@{k} = {hits:.6f} allows only {least:.6f} … {most:.6f}"
            )


# ------------------------------------------------------------------------------------------------ parts


def _inputs(predictions, truth, spectrum):
    if not predictions:
        raise ValueError("predictions: got none, expected a dict of name -> (users, items)")
    truth, items = np.asarray(truth), len(spectrum.vectors)
    if truth.ndim != 1 or not len(truth) or not np.issubdtype(truth.dtype, np.integer):
        raise ValueError(f"truth: got {truth.dtype} of shape {truth.shape}, expected an item per user")
    for name, array in predictions.items():
        if np.shape(array) != (len(truth), items):
            raise ValueError(f"predictions[{name!r}]: got shape {np.shape(array)}, expected ({len(truth)}, {items})")
    return predictions, truth


def _metric(name):
    """Per-user value of a metric as a function of ranks."""
    match = re.fullmatch(r"(HR|N)@([1-9]\d*)", name)
    if not match:
        raise ValueError(f"metrics: got {name!r}, expected 'HR@k' or 'N@k'")
    k = int(match[2])
    if match[1] == "HR":
        return lambda ranks: (ranks <= k).astype(float)
    return lambda ranks: np.where(ranks <= k, 1 / np.log2(1 + ranks), 0)


def _ranks(scores, truth, exclude):
    """Ranks of the held-out items; scores are (items, users)."""
    import torch

    from ..train.metrics import rank_of

    if scipy.sparse.issparse(exclude):
        exclude = exclude.toarray() != 0
    exclude = None if exclude is None else torch.as_tensor(np.array(exclude))
    scores = torch.as_tensor(np.ascontiguousarray(scores.T))
    return rank_of(scores, torch.as_tensor(truth), exclude).numpy()


def _control(spectrum, band, rng):
    """As many frequencies as the band has, outside it if there are enough; equal eigenvalues all or none."""
    free = ~np.isin(np.arange(band.size), band.index)
    free |= free.sum() < len(band)
    index = np.sort(rng.choice(np.flatnonzero(free), len(band), replace=False))
    group = np.append(0, np.cumsum(apart(spectrum)))
    if len(np.unique(group)) < band.size:
        picked = np.zeros(band.size, bool)
        for g in rng.permutation(group[-1] + 1):
            members = group == g
            picked |= members & (free[members].all() and (picked | members).sum() <= len(band))
        index = np.flatnonzero(picked) if picked.sum() == len(band) else index
    return whole(spectrum, Band(index, band.size, f"control of {band.name}"))


def _slices(degree, truth, items, edges):
    """Users by the degree of their item: (…, e1], (e1, e2], …; empty slices are left out."""
    if degree.shape != (items,):
        raise ValueError(f"degree: got shape {degree.shape}, expected ({items},)")
    edges = list(edges)
    names = [f"degree ≤ {edges[0]:g}", *(f"{a:g} < degree ≤ {b:g}" for a, b in zip(edges, edges[1:], strict=False))]
    names.append(f"degree > {edges[-1]:g}")
    place = np.searchsorted(edges, degree[truth], side="left")
    return {name: who for n, name in enumerate(names) if len(who := np.flatnonzero(place == n))}


def _intervals(differences, interval, level, draws, seed):
    """Ends of the confidence interval of each mean: (…, users) -> (…, 2)."""
    from scipy.stats import norm

    users, flat = differences.shape[-1], differences.reshape(-1, differences.shape[-1])
    if interval == "normal":
        half = norm.ppf((1 + level) / 2) * flat.std(1, ddof=1 if users > 1 else 0) / np.sqrt(users)
        ends = np.stack([flat.mean(1) - half, flat.mean(1) + half], 1)
    else:
        rng, block, means = np.random.default_rng(seed), max(1, 2**22 // users), []
        for i in range(0, draws, block):
            picks = rng.multinomial(users, np.full(users, 1 / users), size=min(block, draws - i))
            means.append(flat @ picks.T.astype(float) / users)
        ends = np.quantile(np.hstack(means), [(1 - level) / 2, (1 + level) / 2], axis=1).T
    return ends.reshape(*differences.shape[:-1], 2)
