"""The report against brute force, its intervals, its slices, the bound no ranking can break, and what it writes."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from easydgl_mini.interpret import Report, band, check_ranking_metrics, decompose, laplacian, perturb, report
from easydgl_mini.train.metrics import hit_rate, ndcg, rank_of

USERS, ITEMS = 60, 40
METRICS = ("HR@1", "HR@5", "HR@20", "N@1", "N@5", "N@20")


@pytest.fixture(scope="module")
def world():
    """Two models' scores over the items of a random graph; the truth is what the first one likes, blurred."""
    rng = np.random.default_rng(0)
    A = np.triu(rng.random((ITEMS, ITEMS)), 1)
    spectrum = decompose(laplacian(A + A.T), 30, method="exact")
    predictions = {name: rng.normal(size=(USERS, ITEMS)) for name in ("a", "b")}
    truth = (predictions["a"] + rng.normal(size=(USERS, ITEMS))).argmax(1)
    return {
        "predictions": predictions,
        "truth": truth,
        "spectrum": spectrum,
        "bands": {"low": band(spectrum, stop=10), "high": band(spectrum, start=25)},
        "metrics": METRICS,
    }


def pick(table, **keys):
    for name, value in keys.items():
        table = table[table[name] == value]
    return table


def brute_ranks(scores, truth, hidden=()):
    """Rank of each truth by counting, ties against it."""
    hidden = hidden if len(hidden) else [[]] * len(truth)
    return torch.tensor(
        [
            1 + sum(s[i] >= s[t] for i in range(len(s)) if i != t and i not in h)
            for s, t, h in zip(scores, truth, hidden, strict=True)
        ]
    )


# What the numbers are -------------------------------------------------------------------------------------------------


def test_every_number_against_brute_force(world):
    table = report(**world)
    assert isinstance(table, pd.DataFrame) and isinstance(table, Report)
    assert len(table) == 2 * 2 * 2 * 2 * len(METRICS)  # models, removed or transplanted, bands, control, metrics
    value = {"HR": hit_rate, "N": ndcg}
    for model, other in (("a", "b"), ("b", "a")):
        y, z = (world["predictions"][name] for name in (model, other))
        old = brute_ranks(y, world["truth"])
        for donor in ("", other):
            for name, chosen in world["bands"].items():
                new = perturb(y.T, world["spectrum"], chosen, donor=z.T if donor else None).T
                ranks = brute_ranks(new, world["truth"])
                rows = pick(table, model=model, donor=donor, band=name, control=False).set_index("metric")
                for metric in METRICS:
                    kind, k = metric.split("@")
                    row = rows.loc[metric]
                    assert np.isclose(row.before, value[kind](old, int(k)))
                    assert np.isclose(row.after, value[kind](ranks, int(k)))
                    assert np.isclose(row.change, row.after - row.before) and row.users == USERS


def test_an_oracle_rests_on_all_frequencies():
    ring = laplacian(np.roll(np.eye(12), 1, 0) + np.roll(np.eye(12), -1, 0))
    spectrum = decompose(ring, 12)
    table = report({"oracle": np.eye(12)}, np.arange(12), spectrum, [band(spectrum)], metrics=["HR@1", "N@1"])
    assert (table.before == 1).all() and (pick(table, control=False).after == 0).all()
    assert set(table.band) == {":"} and set(table.donor) == {""}


def test_donors_can_be_chosen(world):
    assert set(report(**world, donors=()).donor) == {""}
    table = report(**world, donors=["b"])
    assert set(map(tuple, table[["model", "donor"]].to_numpy())) == {("a", ""), ("b", ""), ("a", "b")}
    with pytest.raises(ValueError, match="donors: got 'c', expected one of"):
        report(**world, donors=["c"])


def test_complement_and_standardize_reach_the_perturbation(world):
    chosen, y, z = world["bands"]["high"], world["predictions"]["a"], world["predictions"]["b"] * 50
    args = world | {"predictions": {"a": y, "b": z}, "bands": [chosen], "donors": ["b"]}
    for options in ({"complement": True}, {"standardize": False}):
        after = perturb(y.T, world["spectrum"], chosen, donor=z.T, **options).T
        row = pick(report(**args, **options), model="a", donor="b", control=False, metric="N@20")
        assert np.isclose(row.after.item(), ndcg(brute_ranks(after, world["truth"]), 20))


def test_control_bands_have_equal_size_and_lie_outside(world, monkeypatch):
    import importlib

    module, seen = importlib.import_module("easydgl_mini.interpret.report"), []
    monkeypatch.setattr(module, "perturb", lambda y, s, chosen, *rest: seen.append(chosen) or y)
    report(**world, donors=())
    low, high, control_low, control_high = seen[:4]
    assert len(control_low) == len(low) == 10 and len(control_high) == len(high) == 5
    assert not set(low.index) & set(control_low.index) and not set(high.index) & set(control_high.index)
    seen.clear()
    report(**world | {"bands": [band(world["spectrum"], stop=20)]}, donors=(), seed=1)
    assert len(seen[1]) == 20 and len(set(seen[1].index)) == 20  # ten lie outside: drawn among all


def controls(monkeypatch, spectrum, bands, seeds=range(20)):
    """The control bands that a report would use."""
    import importlib

    module, seen = importlib.import_module("easydgl_mini.interpret.report"), []
    monkeypatch.setattr(module, "perturb", lambda y, s, chosen, *rest: seen.append(chosen) or y)
    for seed in seeds:
        report(
            {"a": np.eye(len(spectrum.vectors))},
            np.arange(len(spectrum.vectors)),
            spectrum,
            bands,
            metrics=["HR@1"],
            seed=seed,
        )
    return [chosen for chosen in seen if chosen.name.startswith("control")]


def test_controls_draw_equal_eigenvalues_together(monkeypatch):
    ring = laplacian(np.roll(np.eye(40), 1, 0) + np.roll(np.eye(40), -1, 0))  # 0, nineteen pairs, 2
    spectrum = decompose(ring, 40, method="exact")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = controls(monkeypatch, spectrum, [band(spectrum, stop=7), band(spectrum, 11, 27)])
    assert len({tuple(chosen.index) for chosen in drawn}) > 30  # random all the same
    for chosen in drawn:
        assert len(chosen) == (7 if chosen.name == "control of :7" else 16)
        pairs = {(i + 1) // 2 for i in chosen.index}  # 0 | 1 2 | 3 4 | … | 37 38 | 39
        assert sum(1 if pair in (0, 20) else 2 for pair in pairs) == len(chosen)
        if chosen.name == "control of :7":
            assert chosen.index.min() >= 7


def test_controls_that_cannot_help_cutting_say_so(monkeypatch):
    spectrum = decompose(laplacian(np.kron(np.eye(5), np.ones((4, 4)))), 20, method="exact")  # 0 five times, 1 fifteen
    with pytest.warns(UserWarning, match="band control of :5 cuts between eigenvalues .* depends on the basis"):
        drawn = controls(monkeypatch, spectrum, [band(spectrum, stop=5)], seeds=[0])
    assert len(drawn[0]) == 5 and drawn[0].index.min() >= 5


@pytest.mark.parametrize("form", ["mask", "ids", "sparse"])
def test_excluded_items_do_not_compete(world, form):
    rng = np.random.default_rng(3)
    mask = rng.random((USERS, ITEMS)) < 0.3
    ids = np.full((USERS, mask.sum(1).max()), -1)
    for row, hidden in zip(ids, mask, strict=True):
        row[: hidden.sum()] = np.flatnonzero(hidden)
    exclude = {"mask": mask, "ids": ids, "sparse": sp.csr_array(mask)}[form]
    table = report(**world, exclude=exclude, chunk=7)
    hidden = [np.flatnonzero(row) for row in mask]
    expected = brute_ranks(world["predictions"]["a"], world["truth"], hidden)
    assert np.isclose(pick(table, model="a", metric="N@20").before.iloc[0], ndcg(expected, 20))
    direct = rank_of(torch.tensor(world["predictions"]["a"]), torch.tensor(world["truth"]), torch.tensor(mask))
    assert torch.equal(direct, expected)


def test_chunks_and_memory_maps_change_nothing(world, tmp_path):
    whole = report(**world)
    pd.testing.assert_frame_equal(pd.DataFrame(report(**world, chunk=7)), pd.DataFrame(whole))
    maps = {}
    for name, array in world["predictions"].items():
        np.save(tmp_path / name, array)
        maps[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    pd.testing.assert_frame_equal(pd.DataFrame(report(**world | {"predictions": maps}, chunk=11)), pd.DataFrame(whole))


# Intervals ------------------------------------------------------------------------------------------------------------


def test_normal_interval_is_of_paired_differences(world):
    row = pick(report(**world, interval="normal"), model="a", donor="", band="low", control=False, metric="HR@5")
    old = brute_ranks(world["predictions"]["a"], world["truth"]) <= 5
    new = perturb(world["predictions"]["a"].T, world["spectrum"], world["bands"]["low"]).T
    difference = (brute_ranks(new, world["truth"]) <= 5).double() - old.double()
    half = 1.959964 * difference.std().item() / np.sqrt(USERS)
    np.testing.assert_allclose([row.low.item(), row.high.item()], difference.mean().item() + np.array([-half, half]))


def test_bootstrap_is_seeded_and_close_to_normal(world):
    a, b, c = (report(**world, seed=s, donors=()) for s in (5, 5, 6))
    pd.testing.assert_frame_equal(pd.DataFrame(a), pd.DataFrame(b))
    shown = ~a.control
    assert (a[shown].change == c[shown].change).all() and (a[shown].low != c[shown].low).any()
    normal = report(**world, donors=(), interval="normal", seed=5)
    spread = normal.high - normal.low
    assert abs((a.high - a.low) - spread).max() < 0.25 * spread.max()
    assert ((a.low <= a.change) & (a.change <= a.high)).all()
    many, smooth = report(**world, seed=5, donors=(), draws=4000), normal["metric"] == "N@20"
    for end in ("low", "high"):
        assert abs(((many[end] - normal[end]) / spread)[smooth].mean()) < 0.03
    narrow = report(**world, donors=(), level=0.5, seed=5)
    assert ((narrow.high - narrow.low) <= (a.high - a.low)).all()
    assert (narrow.high - narrow.low).sum() < 0.6 * (a.high - a.low).sum()


# Slices ---------------------------------------------------------------------------------------------------------------


def test_slices_by_degree_of_the_held_out_item(world):
    degree = np.arange(ITEMS) * 10
    table = report(**world, degree=degree, edges=(100, 250))
    mine = degree[world["truth"]]
    groups = {
        "degree ≤ 100": mine <= 100,
        "100 < degree ≤ 250": (mine > 100) & (mine <= 250),
        "degree > 250": mine > 250,
    }
    assert list(table["slice"].unique()) == ["all", *groups]
    ranks = brute_ranks(world["predictions"]["b"], world["truth"])
    for name, inside in groups.items():
        row = pick(table, slice=name, model="b", donor="", band="low", control=False, metric="HR@20")
        assert row.users.item() == inside.sum()
        assert np.isclose(row.before.item(), hit_rate(ranks[torch.tensor(inside)], 20))
    assert list(report(**world, degree=degree)["slice"].unique()) == ["all", "degree ≤ 100", "100 < degree ≤ 2000"]
    with pytest.raises(ValueError, match=r"degree: got shape \(3,\)"):
        report(**world, degree=np.ones(3))


# The bound ------------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 150), min_size=1, max_size=40))
def test_rankings_keep_the_bound(ranks):
    ranks = torch.tensor(ranks)
    check_ranking_metrics(
        {f"HR@{k}": hit_rate(ranks, k) for k in (10, 50, 100)} | {f"N@{k}": ndcg(ranks, k) for k in (10, 50, 100)}
    )


@pytest.mark.parametrize("rank", [11, 50])
def test_the_bound_is_tight(rank):
    """Everybody at rank 11, or at rank 50, meets one of its ends exactly; a little beyond is refused."""
    values = {"HR@10": 0.0, "N@10": 0.0, "HR@50": 1.0, "N@50": 1 / np.log2(1 + rank)}
    check_ranking_metrics(values)
    beyond = 1e-4 if rank == 11 else -1e-4
    with pytest.raises(AssertionError, match=r"N@50 - N@10 is"):
        check_ranking_metrics(values | {"N@50": values["N@50"] + beyond})


def test_the_bound_on_printed_tables():
    """Two rows of the paper on Tmall: one could come from a ranking, one can't. Printed to five digits."""
    possible = {
        "HR@10": 0.26760,
        "HR@50": 0.40477,
        "HR@100": 0.47310,
        "N@10": 0.18020,
        "N@50": 0.21039,
        "N@100": 0.22164,
    }
    check_ranking_metrics(possible, tolerance=1e-5)
    printed = {
        "HR@10": 0.27693,
        "HR@50": 0.42240,
        "HR@100": 0.49420,
        "N@10": 0.21723,
        "N@50": 0.23617,
        "N@100": 0.24052,
    }
    with pytest.raises(
        AssertionError, match=r"N@50 - N@10 is 0.018940, but HR@50 - HR@10 = 0.145470 allows only 0.0256"
    ):
        check_ranking_metrics(printed, tolerance=1e-5)
    with pytest.raises(AssertionError, match="N@10 - N@0"):
        check_ranking_metrics({"HR@10": 0.2, "N@10": 0.21})
    check_ranking_metrics({"HR@10": 0.2, "N@50": 0.9})  # no cut-off has both: nothing to say


def test_report_holds_the_bound_on_every_row(world, monkeypatch):
    import importlib

    module, seen = importlib.import_module("easydgl_mini.interpret.report"), []
    monkeypatch.setattr(module, "check_ranking_metrics", lambda values: seen.append(values))
    table = report(**world)
    assert len(seen) == 2 * len(table) / len(METRICS) and all(set(values) == set(METRICS) for values in seen)


# Output ---------------------------------------------------------------------------------------------------------------


def test_summary_has_a_row_per_perturbation(world):
    table = report(**world)
    wide = table.summary()
    assert wide.shape == (16, len(METRICS)) and list(wide.columns) == list(METRICS)
    row = pick(table, model="b", donor="a", band="high", control=True, metric="N@5").iloc[0]
    cell = wide.loc[("all", "b", "a", "high", True), "N@5"]
    assert cell == f"{row.after:.4f} ({row.change:+.4f} [{row.low:+.4f}, {row.high:+.4f}])"


def test_page_is_self_contained_and_escapes_names(world, tmp_path):
    bad = "<script>alert('x')</script>"
    predictions = {bad: world["predictions"]["a"], "b$ & c": world["predictions"]["b"]}
    bands = {"<b>low</b>": world["bands"]["low"]}
    table = report(**world | {"predictions": predictions, "bands": bands})
    table.to_html(tmp_path / "lens.html", title="A < B")
    page = (tmp_path / "lens.html").read_text(encoding="utf-8")
    assert "<script" not in page and "<b>low" not in page and "A < B" not in page
    assert "&lt;script&gt;" in page and "&lt;b&gt;low" in page and "b$ &amp; c" in page and "A &lt; B" in page
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", page) and "http" not in page
    assert page.count("data:image/png;base64,") == 1 and page == table.to_html(title="A < B")
    assert f"{table.after.iloc[0]:.4f}" in page


def test_plot_shows_changes_and_controls(world):
    from matplotlib.figure import Figure

    table = report(**world, degree=np.arange(ITEMS))
    ax = table.plot("N@5", ax=Figure().add_subplot())
    rows = pick(table, slice="all", metric="N@5")
    shown, control = (container.lines[0].get_xdata() for container in ax.containers)
    np.testing.assert_allclose(shown, rows[~rows.control].change)
    np.testing.assert_allclose(control, rows[rows.control].change)
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == [
        "a, low",
        "a, high",
        "b into a, low",
        "b into a, high",
        "b, low",
        "b, high",
        "a into b, low",
        "a into b, high",
    ]
    assert ax.get_xlabel() == "change of N@5"
    with pytest.raises(ValueError, match="metric: got 'HR@7'"):
        table.plot("HR@7", ax=ax)


def test_bad_input_is_refused(world):
    def refuse(match, **changes):
        with pytest.raises(ValueError, match=match):
            report(**world | changes)

    y = world["predictions"]["a"]
    refuse("predictions: got none", predictions={})
    refuse(r"predictions\['x'\]: got shape \(60, 39\), expected \(60, 40\)", predictions={"x": y[:, 1:]})
    refuse("truth: got float64", truth=np.zeros(USERS))
    refuse(r"target\[0\] is 40", truth=np.full(USERS, ITEMS))
    refuse("metrics: got 'MRR'", metrics=["MRR"])
    refuse("metrics: got 'HR@0'", metrics=["HR@0"])
    refuse("interval: got 'exact'", interval="exact")
    refuse("level: got 95", level=95)
    broken = y.copy()
    broken[3, 7] = -np.inf
    refuse(r"y\[7, 3\] is -inf", predictions={"a": broken})
