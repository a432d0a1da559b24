"""Records, tables and the command of Part 5: what is kept is true, whole, and can be taken up again."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import easydgl_mini as em
from easydgl_mini import reproduce as rp
from easydgl_mini.baselines import REGISTRY
from easydgl_mini.cli import main
from easydgl_mini.data import DATASETS
from easydgl_mini.data.raw import write_raw
from easydgl_mini.interpret.report import check_ranking_metrics
from easydgl_mini.reproduce import command, protocol, records, run, studies

FIGURES = rp.paper_figures()


# ------------------------------------------------------------------------------------------------ the paper's figures


def test_the_papers_tables_are_whole():
    counts = FIGURES.groupby("table").size().to_dict()
    assert counts == {
        "tab:cmp_hr": 23 * 9,
        "tab:cmp_ndcg": 23 * 9,
        "tab:nclassify": 15 * 9,
        "tab:traffic": 15 * 9,
        "tbl:perturb": 6 * 6,
        "tab:motiv": 5 * 3,
    }
    assert not FIGURES.duplicated(["table", "row", "dataset", "metric"]).any()
    assert FIGURES.value.notna().all()


@pytest.mark.parametrize(
    "table, row, dataset, metric, value",
    [
        ("tab:cmp_hr", "gat", "koubei", "hr@10", 0.19715),
        ("tab:cmp_hr", "easydgl", "tmall", "hr@100", 0.49420),
        ("tab:cmp_ndcg", "easydgl", "koubei", "ndcg@50", 0.25350),
        ("tab:nclassify", "tgn", "elliptic", "illicit_f1@47-49", 0.071),
        ("tab:traffic", "stid", "metr-la", "mae@9", 3.382),
        ("tab:traffic", "easydgl", "metr-la", "rmse@6", 6.197),
        ("tbl:perturb", "easydgl perturb. tgat", "netflix", "ndcg@100", 0.21197),
        ("tab:motiv", "easydgl w/ temporal smoothness", "metr-la", "rmse@9", 7.161),
    ],
)
def test_some_of_the_papers_cells(table, row, dataset, metric, value):
    where = (FIGURES.table == table) & (FIGURES.row == row) & (FIGURES.dataset == dataset) & (FIGURES.metric == metric)
    assert FIGURES[where].value.tolist() == [value]


def test_five_pairs_of_the_papers_rankings_are_impossible():
    """AUDIT 1, with a tolerance for the printed fifth digit: which pairs, and no others."""
    wide = FIGURES[FIGURES.table.isin(["tab:cmp_hr", "tab:cmp_ndcg"])].pivot_table(
        index=["row", "dataset"], columns="metric", values="value"
    )
    bad = []
    for (row, dataset), line in wide.iterrows():
        for a, b in ((10, 50), (50, 100)):
            hits, gain = line[f"hr@{b}"] - line[f"hr@{a}"], line[f"ndcg@{b}"] - line[f"ndcg@{a}"]
            if not hits / math.log2(b + 1) - 2e-5 <= gain <= hits / math.log2(a + 2) + 2e-5:
                bad.append((row, dataset, b))
    assert sorted(bad) == [
        ("easydgl", "tmall", 50),
        ("easydgl", "tmall", 100),
        ("neufilter", "tmall", 100),
        ("ptgcn", "tmall", 100),
        ("sasrec", "koubei", 100),
    ]


def test_the_perturbation_table_of_the_paper_could_come_from_rankings():
    for _, line in FIGURES[FIGURES.table == "tbl:perturb"].groupby("row"):
        check_ranking_metrics({records.rename(m): v for m, v in zip(line.metric, line.value, strict=True)}, 2e-5)


@pytest.mark.parametrize("table", ["links", "nodes", "traffic"])
def test_every_row_of_a_table_that_we_promise_has_a_name(table):
    cls = protocol.PROTOCOLS[table]
    for row in cls.rows:
        assert cls.task in REGISTRY[row].tasks, row


# ------------------------------------------------------------------------------------------------ records


def a_record(row="sasrec", values=((1, 0.2), (2, 0.4)), dataset="netflix"):
    runs = [{"seed": seed, "metrics": {"hr@10": value, "ndcg@10": value * 0.6}} for seed, value in values]
    keys = {"table": "links", "dataset": dataset, "scale": "full", "simulated": False, "row": row}
    return keys | {"runs": runs}


def test_write_and_read(tmp_path):
    path = records.path_of(tmp_path, "links", "netflix", "full", "sasrec")
    assert path.name == "links_netflix_full_sasrec.json" and records.read(path) is None
    records.write(path, a_record())
    assert records.read(path) == a_record()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # no draft is left
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ValueError, match="no result file.*delete it"):
        records.read(path)


def test_an_impossible_ranking_is_not_written(tmp_path):
    record = a_record()
    record["runs"][1]["metrics"]["ndcg@10"] = 0.41  # more than the hit rate
    with pytest.raises(AssertionError, match="N@10"):
        records.write(tmp_path / "x.json", record)
    assert not list(tmp_path.iterdir())


def test_summary_by_hand():
    table = records.summary([a_record(), a_record("gat", ((1, 0.5),))], ["hr@10"])
    assert table["mean"].tolist() == pytest.approx([0.3, 0.5])
    assert table.spread.iloc[0] == pytest.approx(math.sqrt(0.02)) and math.isnan(table.spread.iloc[1])
    assert table.seeds.tolist() == [2, 1]


def test_a_record_without_runs_is_no_row():
    study = {"table": "energy", "dataset": "netflix", "scale": "full", "simulated": True, "row": "study", "runs": []}
    assert len(records.summary([study])) == 0
    assert records.beside_paper([study], "netflix", ["hr@10"], ["sasrec"]).loc["sasrec", "hr@10"] == records.NOT_RUN


def test_a_registered_name_can_be_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr(protocol.Links, "rows", ("popularity",))
    assert tiny(tmp_path, rows=["appnp"], seeds=(1,)).loc["appnp", "seeds"] == 1
    usual = run._job("links", None, None, None, "tiny", "paper", "cpu", None, tmp_path / "work", None, print)[1]
    assert list(usual) == list(protocol.Links.rows)  # what nobody asked for is left out


@pytest.mark.parametrize("table, rows", [("traffic", protocol.Traffic.rows[:2]), ("nodes", protocol.Nodes.rows[:3])])
def test_what_does_not_train_is_recorded_too(table, rows, tmp_path):
    done = rp.reproduce(table, rows=list(rows), seeds=(1,), work=tmp_path, scale="tiny", say=lambda line: None)
    assert list(done.index) == list(rows) and (done.seeds == 1).all()
    for record in records.load_all(tmp_path / "results"):
        line = record["runs"][0]
        assert "validation" not in line and all(math.isfinite(value) for value in line["metrics"].values())


def test_a_table_beside_the_papers():
    table = records.beside_paper([a_record()], "netflix", ["hr@10"], ["sasrec", "gat", "popularity"])
    assert table.loc["sasrec"].tolist() == [2, "–", "0.3000 ± 0.1414", "0.2263"]
    assert table.loc["gat"].tolist() == [0, "–", "not yet run", "0.0871"]
    assert table.loc["popularity"].tolist() == [0, "–", "not yet run", "–"]
    other = records.beside_paper([a_record(dataset="ml-1m")], "ml-1m", ["hr@10"], ["sasrec"])
    assert list(other.columns) == ["seeds", "users", "hr@10"]  # the paper has nothing to say of this dataset


def test_a_table_of_rankings_says_how_many_users_it_is_about():
    counted = a_record()
    for one in counted["runs"]:
        one["metrics"]["users"] = 604.0
    table = records.beside_paper([counted], "netflix", ["hr@10"], ["sasrec"])
    assert table.loc["sasrec", "users"] == "604"
    assert "users" not in records.beside_paper([], "metr-la", ["mae@3"], ["stid"]).columns


def test_a_table_refuses_what_no_ranking_can_have():
    wrong = a_record()
    wrong["runs"][0]["metrics"] |= {"hr@10": 0.3, "ndcg@10": 0.2, "hr@50": 0.4, "ndcg@50": 0.3}
    with pytest.raises(AssertionError):
        records.beside_paper([wrong], "netflix", ["hr@10"], ["sasrec"])


def test_the_papers_table_of_five_combinations_has_a_row_for_each():
    rows = list(run.variants("traffic"))
    table = records.beside_paper([], "metr-la", ["rmse@3"], [row for row in rows if row in records.PRINTED])
    expected = {"bare": 5.367, "bare-and-masking": 5.340, "without-tpple": 5.291, "bare-and-smoothness": 5.429}
    assert {row: float(x) for row, x in table["paper rmse@3"].items()} == expected | {"without-cam": 5.250}
    bare = protocol.make("easydgl", "traffic", 0, run.variants("traffic")["bare"])
    assert (bare.masking, bare.gamma) == ("none", 0.0)


def test_a_variant_that_is_the_full_model_is_not_trained(tmp_path):
    said = []
    rows = ["easydgl", "mask-rate-0.2", "mask-rate-0.4"]
    table = tiny(tmp_path, "ablations-links", rows=rows, seeds=(1,), epochs=1, dim=8, say=said.append)
    assert list(table.index) == ["easydgl", "mask-rate-0.4"] and "  mask-rate-0.2 is the full model" in said
    with pytest.raises(ValueError, match="rows must have a variant that differs from the full model"):
        tiny(tmp_path, "ablations-links", rows=["mask-rate-0.2"], seeds=(1,), epochs=1, dim=8)


def test_a_closed_form_is_searched_too(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "SEARCH", {("gsimc", "link"): ({"num_waves": 2}, {"num_waves": 12})})
    tiny(tmp_path, rows=["gsimc", "popularity"], search=True, seeds=(1,))
    (path,) = (tmp_path / "results" / "search").iterdir()  # popularity has nothing to choose
    search = json.loads(path.read_text())
    values = [trial["metrics"]["ndcg@10"] for trial in search["tried"]]
    assert search["best"] == int(np.argmax(values)) and values[0] != values[1]
    tiny(tmp_path, rows=["gsimc"], seeds=(1,))
    assert found(tmp_path, "gsimc")["settings"]["num_waves"] == (2, 12)[search["best"]]


# ------------------------------------------------------------------------------------------------ the command's work


def tiny(tmp_path, table="links", **more):
    """Two rows on a simulated Netflix, as small as it gets."""
    quiet = {"out": tmp_path / "results", "work": tmp_path / "work", "scale": "tiny", "say": lambda line: None}
    rows = {"rows": ["popularity", "sasrec"]} if table == "links" else {}
    return rp.reproduce(table, **rows | quiet | {"seeds": (1, 2)} | more)


def found(tmp_path, row="sasrec", table="links", dataset="netflix"):
    return records.read(records.path_of(tmp_path / "results", table, dataset, "tiny", row))


def plain(record):
    """A record without what may differ between two runs of the same thing."""
    free = ("seconds", "processor_seconds", "peak_gb", "date", "resumed", "code")
    runs = [{key: value for key, value in line.items() if key not in free} for line in record["runs"]]
    return {key: value for key, value in record.items() if key != "settings"} | {"runs": runs}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, tiny(folder)


def test_a_table_is_run_and_recorded(whole):
    folder, table = whole
    record = found(folder)
    assert record["simulated"] is True and record["data"]["users"] > 10
    assert [line["seed"] for line in record["runs"]] == [1, 2]
    for line in record["runs"]:
        assert set(protocol.Links.metrics) <= set(line["metrics"]) and line["metrics"]["users"] > 0
        assert line["epochs"] == 2 and len(line["validation"]) == 2 and line["seconds"] > 0 < line["processor_seconds"]
        assert "easydgl-mini" in line["code"] and "torch" in line["versions"]
    mean = np.mean([line["metrics"]["hr@10"] for line in record["runs"]])
    assert table.loc["sasrec", "hr@10"].startswith(f"{mean:.4f} ± ")
    assert table.loc["sasrec", "paper hr@10"] == "0.2263" and "simulated" in table.attrs["note"]


def test_an_interrupted_table_is_taken_up_and_says_the_same(whole, tmp_path):
    class Interrupted(Exception): ...

    def stop(line):
        if "sasrec, seed 1" in line:
            raise Interrupted

    with pytest.raises(Interrupted):
        tiny(tmp_path, say=stop)
    assert [line["seed"] for line in found(tmp_path)["runs"]] == [1]
    stamp = records.path_of(tmp_path / "results", "links", "netflix", "tiny", "popularity").stat().st_mtime_ns
    tiny(tmp_path)
    assert stamp == records.path_of(tmp_path / "results", "links", "netflix", "tiny", "popularity").stat().st_mtime_ns
    assert plain(found(tmp_path)) == plain(found(whole[0]))


def test_other_settings_are_not_mixed_into_a_record(whole):
    folder, _ = whole
    with pytest.raises(ValueError, match="has epochs 2, now it is 1; --again"):
        tiny(folder, epochs=1, rows=["sasrec"])
    tiny(folder, rows=["sasrec"], device="cpu")  # where it ran is no setting
    assert len(found(folder)["runs"]) == 2


def test_a_record_that_does_not_fit_is_refused_before_anything_is_trained(tmp_path, monkeypatch):
    tiny(tmp_path, rows=["popularity"])
    path = records.path_of(tmp_path / "results", "links", "netflix", "tiny", "popularity")
    records.write_plain(path, records.read(path) | {"dataset": "tmall"})
    monkeypatch.setattr(run, "_run", lambda *args: pytest.fail("trained"))
    with pytest.raises(ValueError, match="dataset 'tmall', now it is 'netflix'.*--again"):
        tiny(tmp_path, rows=["sasrec", "popularity"])


def test_time_left_counts_what_is_run_now_and_again_replaces_all(tmp_path):
    lines = []
    tiny(tmp_path, rows=["popularity"])
    tiny(tmp_path, rows=["popularity"], seeds=(1, 2, 3), say=lines.append)
    assert ["1 of 1, about 0 min left" in line for line in lines] == [False, True]
    old = found(tmp_path, "popularity")["runs"]
    assert [one["seed"] for one in old] == [1, 2, 3]
    tiny(tmp_path, rows=["popularity"], seeds=(2, 4), again=True, say=lines.append)
    assert "2 of 2, about 0 min left" in lines[-1]
    assert [one["seed"] for one in found(tmp_path, "popularity")["runs"]] == [2, 4]


def test_time_left_is_that_of_what_trains(tmp_path, monkeypatch):
    """Popularity takes no time and says nothing about SASREC; a search and a study say how far they are too."""
    lines, real, many = [], run._run, []

    def slow(*args, **more):
        return real(*args, **more) | {"seconds": 600.0}

    monkeypatch.setattr(run, "_run", slow)
    tiny(tmp_path, rows=["popularity", "sasrec"], seeds=(1, 2), say=lines.append, epochs=1)
    left = [line.rsplit("; ", 1)[1] for line in lines if "seed" in line]
    assert left == [
        "1 of 4, time left not known yet",
        "2 of 4, time left not known yet",
        "3 of 4, about 10 min left",
        "4 of 4, about 0 min left",
    ]
    monkeypatch.setattr(run, "PLAIN", ({}, {"lr": 0.01}))
    tiny(tmp_path, rows=["sasrec"], search=True, epochs=1, say=many.append)
    assert "600 s; 1 of 2, about 10 min left" in many[1] and "2 of 2" in many[2]
    many.clear()
    monkeypatch.setattr(run, "study", lambda *args: {"a": 1})
    tiny(tmp_path, "ties", rows=None, epochs=1, say=many.append)
    assert [line.split("; ")[1][:6] for line in many if "ready" in line] == ["1 of 4", "2 of 4", "3 of 4", "4 of 4"]


def test_seconds_are_of_all_parts_of_an_interrupted_run(tmp_path, monkeypatch):
    module, done = sys.modules["easydgl_mini.train.fit"], []
    real = module._Run.judge

    def stop(self, valid):
        real(self, valid)
        done.append(1)
        if len(done) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(module._Run, "judge", stop)
    monkeypatch.setattr(module._Run, "spent", lambda self: {"seconds": 1000.0, "processor_seconds": 500.0})
    with pytest.raises(KeyboardInterrupt):
        tiny(tmp_path, rows=["sasrec"], epochs=3, seeds=(1,))
    tiny(tmp_path, rows=["sasrec"], epochs=3, seeds=(1,))
    (one,) = found(tmp_path, "sasrec")["runs"]
    assert 1000 < one["seconds"] < 1100 and 500 < one["processor_seconds"] < 600
    assert one["resumed"] == "seconds are of all parts"


def test_a_call_that_can_not_do_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "write_raw", lambda *args, **more: pytest.fail("simulated"))
    (tmp_path / "afile").touch()
    for words, more in (
        ("preset must be 'paper' or 'release', got 'best'", {"preset": "best"}),
        ("rows must be among popularity, gru4rec, .*, easydgl, got gcn", {"preset": "release", "rows": ["gcn"]}),
        ("rows must be among .*, got foo", {"rows": ["foo"]}),
        ("out must be a folder", {"out": tmp_path / "afile"}),
    ):
        with pytest.raises(ValueError, match=words):
            rp.reproduce("links", scale="tiny", work=tmp_path / "work", **more)
    for table in ("nodes", "ablations-nodes", "perturbation"):  # nothing was released
        with pytest.raises(ValueError, match=f"'release' is for links, traffic and their ablations; {table} has"):
            rp.reproduce(table, scale="tiny", work=tmp_path / "work", preset="release")
    with pytest.raises(ValueError, match="ties has rows of its own, popularity, sasrec, bert4rec, easydgl"):
        rp.reproduce("ties", scale="tiny", work=tmp_path / "work", rows=["sasrec"])


def test_a_full_run_without_a_search_says_so(tmp_path, monkeypatch):
    write_raw("netflix", "tiny", tmp_path / "data" / "netflix")
    monkeypatch.setattr(run, "_run", lambda *args: {"seed": 1, "metrics": dict.fromkeys(protocol.Links.metrics, 0.0),
                                                    "seconds": 1.0})  # fmt: skip
    monkeypatch.chdir(tmp_path)
    lines, where = [], {"data": tmp_path / "data", "out": tmp_path / "out", "work": tmp_path / "work"}
    rp.reproduce("links", rows=["popularity", "sasrec"], seeds=(1,), scale="full", say=lines.append, **where)
    assert [line for line in lines if "defaults" in line] == [
        f"  sasrec: no search in {tmp_path / 'out'} or {Path('book/results')}, so with the defaults"
    ]


def test_a_study_whose_rankings_can_not_be_is_refused(tmp_path):
    line = {"model": "a", "donor": "", "band": "b", "control": False}
    rows = [
        line | {"metric": "HR@10", "before": 0.2, "after": 0.1},
        line | {"metric": "N@10", "before": 0.1, "after": 0.2},
    ]
    tied = {"hr@10": {"as filed": 0.2, "draws": [0.2, 0.1]}, "ndcg@10": {"as filed": 0.1, "draws": [0.1, 0.15]}}
    for found in ({"rows": rows}, {"rows": [], "centred rows": rows}, {"rows": [{"model": "a"} | tied]}):
        with pytest.raises(AssertionError):
            records.write(tmp_path / "x.json", {"runs": [], "found": found})
    tied["ndcg@10"]["draws"][1] = rows[1]["after"] = 0.05
    for found in ({"rows": rows, "centred rows": rows}, {"rows": [{"model": "a"} | tied]}):
        records.write(tmp_path / "x.json", {"runs": [], "found": found})


def test_a_search_is_kept_and_its_best_is_used(tmp_path, monkeypatch):
    tried = ({"lr": 0.0}, {"lr": 0.01})
    monkeypatch.setattr(run, "PLAIN", tried)
    tiny(tmp_path, rows=["sasrec"], search=True)
    path = tmp_path / "results" / "search" / "links_netflix_tiny_sasrec.json"
    record = json.loads(path.read_text())
    values = [trial["metrics"]["ndcg@10"] for trial in record["tried"]]
    assert [trial["settings"] for trial in record["tried"]] == list(tried) and record["best"] == int(np.argmax(values))
    assert found(tmp_path) is None  # no test score was looked at
    tiny(tmp_path, rows=["sasrec"], seeds=(1,))
    assert found(tmp_path)["settings"]["lr"] == tried[record["best"]]["lr"]
    path.write_text(json.dumps(record | {"tried": record["tried"][:1], "best": 0}))  # as if interrupted
    with pytest.raises(ValueError, match="has 1 of 2 settings; finish it with --search"):
        tiny(tmp_path, rows=["sasrec"], seeds=(2,))
    tiny(tmp_path, rows=["sasrec"], search=True)
    assert [trial["metrics"]["ndcg@10"] for trial in json.loads(path.read_text())["tried"]] == values
    with pytest.raises(ValueError, match="begun with {'epochs': 2, 'seed': 1}, now it is {'epochs': 1, 'seed': 1}"):
        tiny(tmp_path, rows=["sasrec"], search=True, epochs=1)
    with pytest.raises(ValueError, match="'precision': 'bf16'}; --again"):
        tiny(tmp_path, rows=["sasrec"], search=True, precision="bf16")
    tiny(tmp_path, rows=["sasrec"], search=True, epochs=1, precision="bf16", again=True)
    lower = json.loads(path.read_text())
    assert [trial["epochs"] for trial in lower["tried"]] == [1, 1] and lower["given"] == {"precision": "bf16"}
    tiny(tmp_path, rows=["sasrec"], search=True, epochs=1, again=True)
    monkeypatch.setattr(run, "PLAIN", ({"lr": 0.02}, {"lr": 0.01}))
    with pytest.raises(ValueError, match="tried {'lr': 0.0}, now it would be {'lr': 0.02}; --again"):
        tiny(tmp_path, rows=["sasrec"], search=True, epochs=1)
    path.write_text(json.dumps(record | {"fingerprint": "of another file"}))
    for search in (True, False):
        with pytest.raises(ValueError, match="is about other data"):
            tiny(tmp_path, rows=["sasrec"], seeds=(3,), search=search)


def test_an_ablation_is_not_searched(tmp_path):
    """It would replace what was found for the model that it is an ablation of."""
    with pytest.raises(ValueError, match="ablations-links takes the settings"):
        tiny(tmp_path, "ablations-links", rows=["without-tpple"], search=True)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("kind", list(protocol.PROTOCOLS))
def test_every_model_that_trains_has_six_different_settings(kind):
    task = protocol.PROTOCOLS[kind].task
    for row in protocol.PROTOCOLS[kind].rows:
        plain = protocol.make(row, task, 1, {})
        tried = [protocol.make(row, task, 1, dict(change)) for change in run.SEARCH.get((row, task), run.PLAIN)]
        same = {repr(sorted(vars(one).items(), key=str)) for one in tried}
        assert len(same) == 6 and repr(sorted(vars(plain).items(), key=str)) in same, row


def test_a_seed_is_recorded_once(tmp_path, monkeypatch):
    tiny(tmp_path, rows=["popularity"], seeds=(1, 1))
    assert [one["seed"] for one in found(tmp_path, "popularity")["runs"]] == [1]
    whole = run._run

    def meanwhile(*args):  # another call finishes the same seed
        line = whole(*args)
        monkeypatch.undo()
        tiny(tmp_path, rows=["popularity"], seeds=(2,))
        return line

    monkeypatch.setattr(run, "_run", meanwhile)
    tiny(tmp_path, rows=["popularity"], seeds=(2,))
    assert [one["seed"] for one in found(tmp_path, "popularity")["runs"]] == [1, 2]


def test_a_finished_training_is_kept_until_its_record_is_written(tmp_path, monkeypatch):
    def full(*args):
        raise OSError("no space left")

    monkeypatch.setattr(records, "write", full)
    with pytest.raises(OSError, match="no space"):
        tiny(tmp_path, rows=["sasrec"], seeds=(1,))
    monkeypatch.undo()
    loop = sys.modules["easydgl_mini.train.fit"]
    monkeypatch.setattr(loop._Run, "train_epoch", lambda *args: pytest.fail("trained again"))
    tiny(tmp_path, rows=["sasrec"], seeds=(1,))
    assert found(tmp_path)["runs"][0]["epochs"] == 2
    assert not list((tmp_path / "work").rglob("checkpoint.pt"))


def test_what_an_interrupted_run_was_about_is_checked(tmp_path):
    """A checkpoint of other settings or data is not taken up under a new name."""
    log = em.simulate.bazaar("tiny").events
    kept = {"checkpoint": tmp_path, "resume": True}
    small = {"dim": 8, "num_heads": 2, "max_len": 5, "epochs": 1}
    REGISTRY["bert4rec"]("link", **small).fit(log, **kept)
    with pytest.raises(ValueError, match="mask_rate is 0.6, but .* was made with 0.2"):
        REGISTRY["bert4rec"]("link", **small, mask_rate=0.6).fit(log, **kept)
    with pytest.raises(ValueError, match="data is "):
        REGISTRY["bert4rec"]("link", **small).fit(log.select(log.user > 3), **kept)
    train, valid = log.split_users((9, 1), 0)
    with pytest.raises(ValueError, match="data is "):  # the epoch would be chosen by other users
        REGISTRY["bert4rec"]("link", **small).fit(train, valid=valid.select(valid.user != valid.user[0]), **kept)
    with pytest.raises(ValueError, match="model is 'SASREC', but"):
        REGISTRY["sasrec"]("link", **small).fit(log, **kept)
    REGISTRY["bert4rec"]("link", **small).fit(log, **kept)


def test_provenance_says_where_it_ran(monkeypatch):
    assert "no GPU used" in records.provenance("cpu")["machine"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    assert "a GPU" in records.provenance("auto")["machine"] and "a GPU" not in records.provenance("cpu")["machine"]


def test_part_of_a_public_file_is_said_to_be_a_part(tmp_path):
    data = tmp_path / "data"
    write_raw("metr-la", "tiny", data / "metr-la", seed=0)
    (data / "metr-la" / "truth.npz").unlink()  # as if it were real
    table = tiny(tmp_path, "traffic", rows=["last_value"], seeds=(1,), data=data)
    assert table.attrs["note"].startswith("The public files have 34,272 rows, these ")
    (path,) = (tmp_path / "results").glob("*.json")  # under a name that leaves room for the whole
    many = len(em.data.load("metr-la", data).readings)
    assert path.name == f"traffic_metr-la-{many}-rows_tiny_last_value.json"
    assert records.read(path)["part"] == f"{many} rows" and records.read(path)["dataset"] == "metr-la"


def test_more_seeds_of_a_record_are_trained_as_long_and_as_exactly(tmp_path):
    tiny(tmp_path, rows=["sasrec"], seeds=(1,), epochs=1, precision="bf16", patience=7)
    tiny(tmp_path, rows=["sasrec"], seeds=(2,))
    assert [one["epochs"] for one in found(tmp_path)["runs"]] == [1, 1]
    settings = found(tmp_path)["settings"]
    assert (settings["epochs"], settings["precision"], settings["patience"]) == (1, "bf16", 7)
    with pytest.raises(ValueError, match="has precision 'bf16', now it is 'fp32'; --again"):
        tiny(tmp_path, rows=["sasrec"], seeds=(3,), precision="fp32")
    tiny(tmp_path, rows=["sasrec"], seeds=(3,), again=True)
    assert [one["epochs"] for one in found(tmp_path)["runs"]] == [2]


def test_what_the_book_found_serves_records_elsewhere_if_it_is_about_these_data(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "PLAIN", ({"lr": 0.01}, {"lr": 0.02}))
    tiny(tmp_path, rows=["sasrec"], search=True)
    monkeypatch.setattr(run, "BOOK", tmp_path / "results")
    best = json.loads((path := next((tmp_path / "results" / "search").iterdir())).read_text())
    mine = tmp_path / "mine"
    tiny(tmp_path, rows=["sasrec"], seeds=(1,), out=mine)
    record = records.read(records.path_of(mine, "links", "netflix", "tiny", "sasrec"))
    assert record["settings"]["lr"] == best["tried"][best["best"]]["settings"]["lr"]
    path.write_text(json.dumps(best | {"fingerprint": "of another file"}))
    tiny(tmp_path, rows=["sasrec"], seeds=(1,), out=mine, again=True)
    assert "lr" not in records.read(records.path_of(mine, "links", "netflix", "tiny", "sasrec"))["settings"]
    tiny(tmp_path, rows=["sasrec"], search=True, out=mine)  # a search of one's own begins anew
    assert len(json.loads((mine / "search" / path.name).read_text())["tried"]) == 2


@pytest.mark.parametrize(
    "words, what",
    [
        (["nodes", "--dataset", "ml-1m"], "ml-1m is a dataset for the task link, nodes has another"),
        (["links", "--dataset", "patent"], "patent is a dataset for the task node, links has another"),
        (["links", "--rows", ","], "rows must have one name or more"),
        (["links", "--seeds", ","], "seeds must have one seed or more"),
        (["links", "--device", "gpu"], "device is 'gpu', which torch"),
        (["links", "--rows", "sasrec", "--seeds", "99999999999999999999"], "seed must be a whole number from 0 to"),
    ],
)
def test_wrong_words_are_one_line_and_exit_code_two(words, what, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["reproduce", *words, "--scale", "tiny"]) == 2
    assert what in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_refused_in_words(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "links", "--scale", "tiny", "--device", "cuda"]) == 2
    assert "device is 'cuda:0', which torch" in capsys.readouterr().err


def test_an_interrupted_command_says_that_it_can_go_on(capsys, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "reproduce", stop)
    assert main(["reproduce", "links", "--scale", "tiny"]) == 130
    assert capsys.readouterr().err == (
        "easydgl-mini reproduce: interrupted; what is finished is kept, the same command goes on from there\n"
    )


@pytest.mark.parametrize("content", ["{}", "[]", "{"])
def test_a_record_that_is_none_is_refused_with_its_name(tmp_path, content):
    tiny(tmp_path, rows=["popularity"], seeds=(1,))
    path = records.path_of(tmp_path / "results", "links", "netflix", "tiny", "popularity")
    path.write_text(content)
    with pytest.raises(ValueError, match=r"popularity\.json is no result file .*; delete it to run again"):
        tiny(tmp_path, rows=["popularity"], seeds=(1,))


def test_what_the_book_found_serves_another_file_of_the_same_dataset_and_says_so(tmp_path, monkeypatch):
    data = tmp_path / "data" / "netflix"
    write_raw("netflix", "tiny", data, seed=0)
    (data / "truth.npz").unlink()  # as if they were real
    monkeypatch.setattr(run, "PLAIN", ({"lr": 0.01}, {"lr": 0.02}))
    tiny(tmp_path, rows=["sasrec"], search=True, data=tmp_path / "data")
    (path,) = (tmp_path / "results" / "search").iterdir()
    best = json.loads(path.read_text())
    path.write_text(json.dumps(best | {"fingerprint": "of another file"}))
    monkeypatch.setattr(run, "BOOK", tmp_path / "results")
    mine, said = tmp_path / "mine", []
    tiny(tmp_path, rows=["sasrec"], seeds=(1,), out=mine, data=tmp_path / "data", say=said.append)
    (record,) = (records.read(path) for path in mine.glob("*.json"))
    assert record["settings"]["lr"] == best["tried"][best["best"]]["settings"]["lr"]
    assert "  sasrec: with the settings that the book's search found on another file of netflix" in said


@pytest.mark.parametrize("table", ["ablations-links", "ablations-nodes", "ablations-traffic"])
def test_every_variant_is_a_different_model(table, tmp_path):
    kind = table.removeprefix("ablations-")
    task = protocol.PROTOCOLS[kind].task
    variants = run.variants(kind)
    made = {name: protocol.make("easydgl", task, 1, own) for name, own in variants.items()}
    usual = {"mask-rate-0.2", "gamma-0.0001"}
    for name, own in variants.items():
        assert all(getattr(made[name], key) == value for key, value in own.items())
        assert any(value != getattr(made["easydgl"], key) for key, value in own.items()) == (
            name not in usual | {"easydgl"}
        )


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"table": "tables"}, "table must be one of links"),
        ({"scale": "huge"}, "scale must be one of tiny"),
        ({"scale": "full"}, "needs --data.*data fetch netflix.*simulate makes some"),
        ({"dataset": "ml-1m"}, "ml-1m at scale 'tiny' needs --data.*data fetch ml-1m --data DIR says how to get them$"),
        ({"rows": ["sasrek"]}, "rows must be among .*sasrec.*got sasrek"),
        ({"rows": ["sasrec"], "depth": 3}, "sasrec has no setting depth"),
    ],
)
def test_bad_calls(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        tiny(tmp_path, **{"table": "links"} | arguments)


@pytest.mark.filterwarnings("ignore:band")  # few users: many items share an eigenvalue, and the lens says so
@pytest.mark.parametrize("table", ["perturbation", "recall", "energy", "ties"])
def test_studies_of_trained_models(table, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "studies"
    seen = tiny(folder, table)
    record = found(folder, "study", table)
    assert record["found"] | {"seed": 1, "simulated": True} == json.loads(json.dumps(seen)) and record["seed"] == 1
    assert table == "ties" or seen["largest residual"] < 1e-6
    if table == "ties":
        assert [line["model"] for line in seen["rows"]] == ["popularity", "sasrec", "bert4rec", "easydgl"]
    if table == "energy":
        for model in seen["models"].values():
            assert sum(model["energy"]) == pytest.approx(1, abs=1e-4)
            assert np.sum(model["over days"], 1) == pytest.approx(1, abs=1e-4)
    if table == "recall":
        whole = [line for line in seen["rows"] if line["cut"] == 1000]
        assert sum(line["users"] for line in whole) == seen["users"]
    if table == "perturbation":
        assert {(line["model"], line["donor"]) for line in seen["rows"]} == {
            ("bert4rec", ""), ("popularity", ""), ("gsimc", "bert4rec"), ("tgat", "easydgl")}  # fmt: skip


class Scores:
    """A model that answers with the same random scores whenever it is asked, plus a number per day since ``start``."""

    def __init__(self, seed, offset=0.0, drift=0.0):
        self.seed, self.offset, self.drift = seed, offset, drift

    def predict(self, history, at):
        y = np.random.default_rng(self.seed).standard_normal((len(history.users), history.num_items))
        return torch.from_numpy(y + self.offset + self.drift * (np.asarray(at)[:, None] - history.time.min()) / 86400)


@pytest.mark.filterwarnings("ignore:band")
def test_centred_studies_do_not_see_what_rankings_do_not_see():
    parts = em.simulate.bazaar("tiny").events.split_users((8, 1, 1), 0)
    names = ("bert4rec", "gsimc", "tgat", "easydgl")
    plain = {name: Scores(n) for n, name in enumerate(names)}
    lifted = plain | {"bert4rec": Scores(0, offset=8.0)}
    one, two = (studies.study("perturbation", models, parts) for models in (plain, lifted))

    def after(found, key, model="bert4rec"):
        return [line["after"] for line in found[key] if line["model"] == model and not line["donor"]]

    assert [line["before"] for line in one["rows"]] == [line["before"] for line in two["rows"]]
    assert after(one, "centred rows") == after(two, "centred rows") and after(one, "rows") != after(two, "rows")
    counts = np.bincount(parts[0].item, minlength=parts[0].num_items)
    history, last = parts[2].hold_out_last()
    ranks = em.train.rank_of(
        torch.from_numpy(np.tile(counts, (len(last), 1))),
        torch.from_numpy(last.item.astype(np.int64)),
        torch.from_numpy(studies.excluded(history, last)),
    )
    (before,) = {line["before"] for line in one["rows"] if line["model"] == "popularity" and line["metric"] == "N@50"}
    assert before == pytest.approx(em.train.ndcg(ranks, 50))

    drifting = studies.study("energy", {"tgat": Scores(2, drift=0.5)}, parts)["models"]["tgat"]
    assert np.ptp(np.array(drifting["over days"])[:, 0]) > 0.01  # the mean alone moves
    assert np.ptp(drifting["centred over days"], axis=0).max() < 1e-7
    assert sum(drifting["centred energy"]) == pytest.approx(1, abs=1e-4)


def test_a_study_takes_the_models_of_the_table_as_they_are(tmp_path, monkeypatch):
    tiny(tmp_path, rows=["gsimc"], seeds=(1,), num_waves=7)
    made = []
    monkeypatch.setattr(run, "make", lambda *given: made.append(given) or protocol.make(*given))
    monkeypatch.setattr(protocol.Links, "fit", lambda *given: pytest.fail("it is trained"))
    monkeypatch.setattr(run, "study", lambda name, models, parts: {"waves": models["gsimc"].num_waves})
    assert tiny(tmp_path, "recall", seeds=(1,)) == {"waves": 7, "seed": 1, "simulated": True}
    assert made[-1][3]["num_waves"] == 7
    with pytest.raises(ValueError, match="has seed 1, now it is 2; --again"):
        tiny(tmp_path, "recall", seeds=(2,))


class Filed:
    """Names the item after the last one it is shown: right wherever items are filed in a row."""

    def rank(self, history, last):
        shown = history.item[history.offsets[history.users + 1] - 1]
        return torch.from_numpy(np.where(last.item == shown + 1, 1, 50))


def test_what_a_files_order_of_ties_is_worth_by_hand():
    """Users 0 … 299 have items 0, 1, 2, all at once; users 300 … 399 have them one by one, with times that say so."""
    user, item = np.repeat(np.arange(400), 3), np.tile(np.arange(3), 400)
    log = em.EventLog(user, item, np.where(user < 300, 5.0, item), num_users=400, num_items=3)
    found = rp.studies.ties({"filed": Filed()}, log, draws=40)
    assert found["users"] == 400 and found["tied events"] == found["tied targets"] == 0.75
    line = found["rows"][0]
    assert line["hr@10"]["as filed"] == line["ndcg@10"]["as filed"] == 1.0
    assert line["hr@10 of"] == {"tied targets": 1.0, "other targets": 1.0}
    # of the six orders of three items two end in neighbours: 0 1 2 and 2 0 1
    assert line["hr@10"]["shuffled"] == pytest.approx(0.25 + 0.75 * 2 / 6, abs=0.02)
    assert len(line["hr@10"]["draws"]) == 40 and np.std(line["hr@10"]["draws"]) > 0
    assert line["hr@10"]["shuffled"] == pytest.approx(np.mean(line["hr@10"]["draws"]))


def test_shuffled_ties_are_the_same_events_at_the_same_times():
    log = em.EventLog([1, 1, 1, 1, 3, 3], [4, 5, 6, 7, 8, 9], [0.0, 2.0, 2.0, 2.0, 1.0, 1.5], num_users=5)
    seen = set()
    for seed in range(60):
        mixed = rp.studies.shuffle_ties(log, np.random.default_rng(seed))
        assert mixed.user.tolist() == log.user.tolist() and mixed.time.tolist() == log.time.tolist()
        assert mixed.item[[0, 4, 5]].tolist() == [4, 8, 9] and mixed.num_users == 5
        seen.add(tuple(mixed.item[1:4].tolist()))
    assert len(seen) == 6  # every order of the three


def test_seeds_that_another_call_has_added_meanwhile_are_kept(tmp_path, monkeypatch):
    """Two calls may share a row: each writes what is on disk and its own."""
    first = run._run

    def slow(job, row, model, settings, seed, **more):
        monkeypatch.setattr(run, "_run", first)
        tiny(tmp_path, rows=["popularity"], seeds=(7,))
        return first(job, row, model, settings, seed, **more)

    monkeypatch.setattr(run, "_run", slow)
    tiny(tmp_path, rows=["popularity"], seeds=(1, 2))
    assert sorted(line["seed"] for line in found(tmp_path, "popularity")["runs"]) == [1, 2, 7]
    tiny(tmp_path, rows=["popularity"], seeds=(3, 4), again=True)
    assert [line["seed"] for line in found(tmp_path, "popularity")["runs"]] == [3, 4]


def test_the_released_traffic_model_has_records_and_checkpoints_of_its_own(tmp_path):
    for preset in ("paper", "release"):
        tiny(tmp_path, "traffic", rows=["last_value", "stid"], seeds=(1,), preset=preset, epochs=1)
    for name, preset in (("traffic", "paper"), ("traffic-release", "release")):
        for row in ("last_value", "stid"):
            record = found(tmp_path, row, name, "metr-la")
            assert (record["table"], record["preset"]) == (name, preset)
        assert (tmp_path / "work" / f"{name}_metr-la_tiny" / "stid" / "1" / "model.pt").exists()
    tiny(tmp_path, "traffic", rows=["stid"], seeds=(1,), preset="release", epochs=1, search=True)
    assert [path.name for path in (tmp_path / "results" / "search").iterdir()] == [
        "traffic-release_metr-la_tiny_stid.json"
    ]


def test_the_released_link_models_have_the_scripts_settings_and_records_of_their_own(tmp_path):
    say = []
    for preset in ("paper", "release"):
        more = {"seeds": (1,), "epochs": 1, "preset": preset}
        table = tiny(tmp_path, rows=["popularity", "easydgl"], **more)
    assert list(table.index) == ["popularity", "easydgl"] and (table.seeds == 1).all()
    paper, release = (found(tmp_path, "easydgl", name)["settings"] for name in ("links", "links-release"))
    assert "positions" not in paper and (paper["dim"], release["dim"]) == (16, 16)  # the scale's
    told = {"num_layers": 1, "num_heads": 8, "time_unit": "day", "gamma": 1e-7, "positions": True, "sampling": "last"}
    assert {key: release[key] for key in told} == told and paper["time_unit"] == "hour"
    model = em.LinkPredictor.load(tmp_path / "work" / "links-release_netflix_tiny" / "easydgl" / "1" / "model.pt")
    assert len(model.model_.encoder.layers) == 1 and model.model_.encoder.layers[0].num_heads == 8
    assert model.model_.encoder.places.weight.shape == (30, 16)
    tiny(tmp_path, "ablations-links", rows=["with-places", "without-tpple"], say=say.append, **more)
    assert "  with-places is the full model" in say
    assert found(tmp_path, "without-tpple", "ablations-links-release")["settings"]["gamma"] == 0


def test_the_released_settings_at_full_size():
    for name, batch in (("netflix", 512), ("ml-1m", 64)):
        job = run.Job("links", protocol.Links, name, "full", "release", "cpu", False, "", Path(), Path())
        for model in run.RELEASED:
            settings = run._settings(job, model, {})
            made = protocol.make(model, "link", 1, settings)
            assert settings["batch_size"] == batch and settings["epochs"] == 100
            if model != "popularity":
                assert (made.dim, made.max_len, made.time_unit, made.sampling) == (512, 30, "day", "last")
        assert (made.num_layers, made.num_heads, made.lr, made.mask_rate, made.clock) == (1, 8, 5e-4, 0.2, "absolute")
        assert run._settings(job, "easydgl", {"epochs": 7, "dim": 8})["dim"] == 8
    asked = {name: run._settings(job, name, {}) for name in ("sasrec", "bert4rec", "tgat", "ctsma")}
    found = {name: (s["num_layers"], s["num_heads"], s["lr"], s["dropout"]) for name, s in asked.items()}
    assert found["sasrec"] == (2, 8, 5e-4, 0.0) and found["bert4rec"] == (3, 8, 5e-5, 0.2)
    assert found["tgat"] == (3, 1, 5e-5, 0.1) and found["ctsma"] == (2, 4, 5e-4, 0.1)


def test_the_command_line(tmp_path, capsys):
    words = ["reproduce", "links", "--scale", "tiny", "--rows", "popularity", "--seeds", "1,2", "--out"]
    assert main([*words, str(tmp_path / "results"), "--work", str(tmp_path / "work")]) == 0
    printed = capsys.readouterr().out
    assert "popularity, seed 2" in printed and "simulated: these numbers say nothing" in printed
    assert [line["seed"] for line in found(tmp_path, "popularity")["runs"]] == [1, 2]
    words = ["reproduce", "links", "--scale", "tiny", "--seeds", "3", "4,5", "--rows", "popularity", "gsimc", "--out"]
    assert main([*words, str(tmp_path / "results"), "--work", str(tmp_path / "work")]) == 0
    assert [line["seed"] for line in found(tmp_path, "popularity")["runs"]] == [1, 2, 3, 4, 5]
    assert [line["seed"] for line in found(tmp_path, "gsimc")["runs"]] == [3, 4, 5]
    capsys.readouterr()
    assert main(["reproduce", "links", "--scale", "full"]) == 2
    assert capsys.readouterr().err.startswith("easydgl-mini reproduce: netflix at scale 'full' needs --data")


def test_patent_is_split_by_its_quarters_and_has_no_illicit_class(tmp_path):
    """Labels that training steps don't show are never guessed: with class 4 only in training, accuracy is its share."""
    folder, rng = tmp_path / "patent", np.random.default_rng(0)
    folder.mkdir()
    dates = {95: 19981006, 96: 19990105, 97: 19990406, 98: 19990706, 99: 19991005}  # the quarter of each
    edges, labels = [], []
    for quarter, date in dates.items():
        for node in range(10 * (quarter - 95), 10 * (quarter - 94)):
            edges.append(f"{node} {rng.integers(0, node + 1)} {(date - 19750318) / 240910:.9f}")
            labels.append(f"{node} {5 if quarter == 95 or node % 10 < 3 else 2}")
    (folder / "patent.txt").write_text("\n".join(edges) + "\n")
    (folder / "node2label.txt").write_text("\n".join(labels) + "\n")
    settings = {"dataset": "patent", "data": tmp_path, "seeds": (1,), "scale": "tiny", "say": lambda text: None}
    rp.reproduce("nodes", rows=["majority", "gat"], **settings)
    majority, gat = (
        records.read(next((tmp_path / ".easydgl" / "results").glob(f"nodes_patent-*-rows_tiny_{row}.json")))
        for row in ("majority", "gat")
    )
    assert majority["runs"][0]["metrics"]["accuracy@97-99"] == 0.3
    for record in (majority, gat):
        assert list(record["runs"][0]["metrics"]) == ["macro_f1@97-99", "accuracy@97-99"]
        assert record["settings"]["num_classes"] == 6


def test_six_settings_are_tried_for_every_model_and_each_is_its_own():
    for (model, task), tried in run.SEARCH.items():
        made = [protocol.make(model, task, 1, own) for own in tried]
        assert len({str(vars(estimator)) for estimator in made}) == 6, (model, task)
    assert len({str(sorted(own.items())) for own in run.PLAIN}) == 6


def test_what_reproduce_says_of_a_dataset_is_what_the_dataset_says():
    for name, own in run.SETTINGS.items():
        defaults = DATASETS[name].defaults
        assert all(value == defaults[key] for key, value in own.items() if key in defaults), name
        assert "time_unit" in own or DATASETS[name].task != "link"
    for name, (train, valid, windows) in protocol.STEPS.items():
        defaults = DATASETS[name].defaults
        assert (train, valid) == (defaults["train_until"], defaults["valid_until"])
        assert (windows[0][0], windows[-1][1]) == defaults["test"] and windows[0][0] == valid + 1
        assert all(b[0] == a[1] + 1 for a, b in zip(windows, windows[1:], strict=False))


RESULTS = sorted((Path(__file__).parents[1] / "book" / "results").glob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_what_is_recorded_is_sound(path):
    """Named after what it is about, of clean code, seeds once each, one training per seed, rankings that can be."""
    record = records.read(path)
    name = records.label(record["dataset"], record.get("part", ""))
    assert path == records.path_of(path.parent, record["table"], name, record["scale"], record["row"])
    assert not record["simulated"] and record["data"]["fingerprint"]
    if record["row"] == "study":
        assert record["found"] and record["seed"] in records.SEEDS and record["seconds"] > 0
        assert "commit" in record["code"] and "changes" not in record["code"]
        assert list(record["models"]) == list(studies.STUDIES[record["table"]])
        for row, settings in record["models"].items():  # those of the table, as it is now
            table = records.read(records.path_of(path.parent, "links", name, record["scale"], row))
            free = dict.fromkeys(("device", "epochs", "patience", "precision"))  # how long, and how exactly
            assert settings | free == table["settings"] | free
            assert record["seed"] in [run["seed"] for run in table["runs"]]
        return
    assert record["model"] in REGISTRY
    if search := records.read(path.parent / "search" / path.name):  # what was found best is what was run
        best = search["tried"][search["best"]]["settings"] | search.get("given", {})
        assert {key: record["settings"].get(key) for key in best} == best
    seeds = [run["seed"] for run in record["runs"]]
    assert seeds and len(set(seeds)) == len(seeds) and set(seeds) <= set(records.SEEDS)
    for one in record["runs"]:
        assert {"code", "machine", "versions", "date", "seconds", "peak_gb"} <= set(one)
        assert "commit" in one["code"] and "changes" not in one["code"]
        check_ranking_metrics({records.rename(name): value for name, value in one["metrics"].items()}, 1e-6)
        if "validation" in one:
            kind = record["table"].removeprefix("ablations-").removesuffix("-release")
            best = max if protocol.PROTOCOLS[kind].larger else min
            assert one["validation"].index(best(one["validation"])) + 1 == one["best_epoch"]
            assert len(one["validation"]) == one["epochs"]


def test_a_search_of_errors_takes_the_smallest(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "PLAIN", ({"lr": 0.0}, {"lr": 0.01}))
    tiny(tmp_path, "traffic", rows=["stid"], search=True, epochs=1, seeds=(1,))
    (path,) = (tmp_path / "results" / "search").iterdir()
    record = json.loads(path.read_text())
    values = [trial["metrics"]["mae"] for trial in record["tried"]]
    assert values[1] < values[0] and record["best"] == 1


class Asked:
    """Remembers what it was fitted on and asked about."""

    def __init__(self):
        self.calls = []

    def fit(self, *args, **more):
        self.calls.append(("fit", args, more))
        return self

    def score(self, *args, **more):
        self.calls.append(("score", args, more))
        return {f"mae@{h}": h for h in (3, 6, 9, 12)} | {"macro_f1": 0.1, "illicit_f1": 0.2, "accuracy": 0.3}


def test_protocols_fit_choose_and_score_on_their_own_parts():
    log = em.simulate.bazaar("tiny").events
    links, model = protocol.Links("netflix", log), Asked()
    parts, other = links.parts(1), links.parts(2)
    assert not np.array_equal(parts[2].users, other[2].users)
    sizes = [len(p.users) / len(log.users) for p in parts]
    assert sizes == pytest.approx([0.8, 0.1, 0.1], abs=0.02)
    links.fit(model, parts, {}), links.validate(model, parts), links.score(model, parts)
    (_, (train,), more), (_, (valid,), _), (_, (test,), _) = model.calls
    assert train is parts[0] and more == {"valid": parts[1]} and valid is parts[1] and test is parts[2]
    model, nodes = Asked(), protocol.Nodes("elliptic", "data")
    nodes.fit(model, "data", {}), nodes.validate(model, "data"), nodes.score(model, "data")
    assert model.calls == [("fit", ("data",), {"train_until": 37, "valid_until": 39})] + [
        ("score", ("data",), {"steps": steps}) for steps in ((38, 39), (40, 42), (43, 46), (47, 49))
    ]
    model, traffic = Asked(), protocol.Traffic("metr-la", "data")
    assert traffic.validate(model, "data")["mae"] == 7.5
    traffic.score(model, "data")
    assert [more for *_, more in model.calls] == [{"part": "valid"}, {"part": "test"}]
    assert protocol.make("sasrec", "link", 54321, {}).seed == 54321


class Known:
    """Scores that a number generator made, by user's last item and time."""

    def predict(self, history, at):
        self.at = np.asarray(at)
        return torch.from_numpy(np.random.default_rng(3).random((len(history.users), history.num_items)))


def world():
    rng = np.random.default_rng(0)
    n = 3000
    log = em.EventLog(
        rng.integers(0, 150, n), np.minimum(rng.geometric(0.02, n), 130) - 1, rng.random(n).cumsum(), 150, 130
    )
    return log.split_users((6, 1, 3))


@pytest.mark.filterwarnings("ignore:band")
def test_recall_by_hand():
    train, valid, test = world()
    found = studies.study("recall", {"known": Known()}, (train, valid, test), rank=130)
    history, last = test.hold_out_last()
    y, degree = Known().predict(history, last.time).numpy(), np.bincount(train.item, minlength=130)
    edges = np.quantile(degree[degree > 0], (0.5, 0.8, 0.95))
    spectrum = studies.basis(train, 130)
    assert (np.diff(spectrum.values) > -1e-9).all()
    for cut in (50, 500, 1000):
        k = max(1, round(cut / 1000 * 130))
        U = spectrum.vectors[:, :k]
        z = y @ U @ U.T
        hits = [[] for _ in range(4)]
        for n, user in enumerate(last.users):
            own = history.item[history.user == user]
            rivals = np.setdiff1d(np.arange(130), [*own, last.item[n]])
            rank = 1 + (z[n, rivals] >= z[n, last.item[n]]).sum()
            hits[int((edges < degree[last.item[n]]).sum())].append(rank <= 100)
        mine = [row for row in found["rows"] if row["cut"] == cut]
        assert [row["users"] for row in mine] == [len(h) for h in hits] and found["degree edges"] == edges.tolist()
        assert [row["recall@100"] for row in mine] == pytest.approx([np.mean(h) for h in hits])


def test_the_basis_is_of_training_users(monkeypatch):
    train, valid, test = world()
    seen, real = [], studies.basis
    monkeypatch.setattr(studies, "basis", lambda log, *rest: seen.append(log) or real(log, *rest))
    studies.study("recall", {"known": Known()}, (train, valid, test), rank=10)
    assert len(seen) == 1 and seen[0] is train


def test_perturbation_has_the_papers_bands_and_hides_what_users_have(monkeypatch):
    train, valid, test = world()
    models, seen = {name: Known() for name in studies.SPECTRAL["perturbation"]}, []
    real = studies.report
    monkeypatch.setattr(studies, "report", lambda *a, **k: seen.append((a, k)) or real(*a, **k))
    studies.study("perturbation", models, (train, valid, test), rank=100)
    (predictions, target, spectrum, bands, hidden, *_), _ = seen[0]
    history, last = test.hold_out_last()
    assert np.array_equal(target, last.item) and hidden is not None
    for n, user in enumerate(last.users):
        assert set(np.flatnonzero(hidden[n])) == set(history.item[history.user == user])
    high, ends = (np.isin(np.arange(100), band.index) for band in bands.values())
    assert np.array_equal(high, np.arange(100) >= 50)
    assert np.array_equal(ends, (np.arange(100) < 5) | (np.arange(100) >= 90))


def test_energy_asks_day_by_day():
    train, valid, test = world()
    asked = []

    class Watch(Known):
        def predict(self, history, at):
            asked.append((history, np.asarray(at)))
            return super().predict(history, at)

    studies.study("energy", {"m": Watch()}, (train, valid, test), rank=10)
    history, last = test.hold_out_last()
    ends = np.array([history.time[history.user == u].max() for u in last.users])
    assert len(asked) == 18  # scores as written, then centred
    for first in (0, 9):
        assert np.array_equal(asked[first][1], last.time)
        for d in range(8):
            np.testing.assert_allclose(asked[first + 1 + d][1], ends + 86400.0 * d)


def test_a_study_is_about_its_seeds_test_users(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(run, "study", lambda name, models, parts: seen.append(parts) or {"a": 1})
    tiny(tmp_path, "recall", seeds=(2,))
    job = run._job("links", None, None, None, "tiny", "paper", "cpu", None, tmp_path / "work", None, lambda line: None)[
        0
    ]
    assert np.array_equal(seen[0][2].users, job.protocol.parts(2)[2].users)


def test_an_ablation_changes_what_it_is_about_whatever_was_found_best(tmp_path, monkeypatch):
    """An ablation changes what it is about, whatever the search found best."""
    tried = ({"mask_rate": 0.3}, {"mask_rate": 0.3, "lr": 0.01})
    monkeypatch.setattr(run, "SEARCH", {("easydgl", "link"): tried})
    places = tmp_path, tmp_path / "work"
    job = run._job("ablations-links", None, None, None, "tiny", "paper", "cpu", *places, None, lambda line: None)[0]
    found = {"dataset": "netflix", "best": 1, "fingerprint": job.fingerprint}
    found["tried"] = [{"settings": own} for own in tried]
    records.write_plain(job.search_path("easydgl"), found)
    chosen = run._chosen(job, "easydgl", {"mask_rate": 0.6})
    assert (chosen["mask_rate"], chosen["lr"]) == (0.6, 0.01)
    assert run._chosen(job, "easydgl", {})["mask_rate"] == 0.3


def test_the_full_model_of_an_ablation_is_the_main_tables(tmp_path, monkeypatch):
    """It is not trained twice, and its variants are trained as long as it was."""
    tiny(tmp_path, "links", rows=["easydgl"], seeds=(1,), epochs=1, dim=8)
    trained, real = [], run._run
    monkeypatch.setattr(run, "_run", lambda *given: trained.append((given[1], given[3]["epochs"])) or real(*given))
    table = tiny(tmp_path, "ablations-links", rows=["easydgl", "without-tpple"], seeds=(1,), dim=8)
    assert trained == [("without-tpple", 1)] and table.seeds.tolist() == [1, 1]
    names = {path.name.split("_")[0]: path.stem.split("_")[-1] for path in (tmp_path / "results").glob("*.json")}
    assert names == {"links": "easydgl", "ablations-links": "without-tpple"}
    found = records.read(tmp_path / "results" / "ablations-links_netflix_tiny_without-tpple.json")
    assert found["table"] == "ablations-links" and found["settings"]["gamma"] == 0.0


def test_a_model_of_other_settings_is_no_model_of_the_study(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(run, "study", lambda name, models, parts: seen.append(models["gsimc"].num_waves) or {"a": 1})
    tiny(tmp_path, "recall", seeds=(1,), num_waves=7)
    kept = found(tmp_path, "study", "recall")
    assert kept["models"]["gsimc"]["num_waves"] == 7 and kept["seconds"] >= 0  # how, how long
    tiny(tmp_path, "recall", seeds=(1,), num_waves=5, again=True)
    assert seen == [7, 5]


def test_a_table_is_of_one_dataset():
    both = [a_record(dataset="ml-1m", values=((1, 0.5),)), a_record()]
    table = records.beside_paper(both, "netflix", ["hr@10"], ["sasrec"])
    assert table.loc["sasrec"].tolist() == [2, "–", "0.3000 ± 0.1414", "0.2263"]


def test_a_search_has_the_settings_given(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(run, "PLAIN", ({}, {"lr": 0.01}))
    monkeypatch.setattr(run, "make", lambda *given: made.append(given[3]) or protocol.make(*given))
    tiny(tmp_path, rows=["gru4rec"], search=True, seeds=(1,), epochs=1, weight_decay=0.5)
    assert [(own.get("weight_decay"), own["epochs"]) for own in made] == [(0.5, 1)] * 2


def test_a_model_of_other_data_is_no_model_of_the_study(tmp_path, monkeypatch):
    for n in (0, 1):
        write_raw("netflix", "tiny", tmp_path / f"data{n}", seed=n)
    tiny(tmp_path, rows=["gsimc"], seeds=(1,), data=tmp_path / "data0")
    fitted, real = [], protocol.Links.fit
    monkeypatch.setattr(protocol.Links, "fit", lambda self, *rest: fitted.append(self) or real(self, *rest))
    monkeypatch.setattr(run, "study", lambda name, models, parts: {"a": 1})
    tiny(tmp_path, "recall", seeds=(1,), data=tmp_path / "data1")
    assert len(fitted) == 1
    tiny(tmp_path, "recall", seeds=(1,), data=tmp_path / "data1", again=True)  # that one is kept
    assert len(fitted) == 1


def test_more_epochs_than_asked_for_are_not_called_fewer(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "write", lambda *args: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError):
        tiny(tmp_path, rows=["gru4rec"], seeds=(1,), epochs=2)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="epochs is 1, but .* has 2 already; delete it to start"):
        tiny(tmp_path, rows=["gru4rec"], seeds=(1,), epochs=1)
    tiny(tmp_path, rows=["gru4rec"], seeds=(1,), epochs=2)


# ------------------------------------------------------------------------------------------------ studies as tables


def test_perturbations_are_shown_in_the_papers_form():
    def line(model, donor, metric, before, after, control=False):
        return {"model": model, "donor": donor, "control": control, "metric": metric, "before": before, "after": after}

    rows = [line("bert4rec", "", "HR@10", 0.3, 0.1), line("bert4rec", "", "N@10", 0.2, 0.05)]
    rows += [line("gsimc", "bert4rec", "HR@10", 0.08, 0.09), line("gsimc", "bert4rec", "N@10", 0.04, 0.06)]
    rows += [line("gsimc", "bert4rec", "HR@10", 0.08, 0.7, control=True)]
    table = studies.as_table("perturbation", {"rows": rows})
    assert table.loc["here"].T.to_dict() == {
        "bert4rec": {"hr@10": 0.3, "ndcg@10": 0.2},
        "perturb. bert4rec": {"hr@10": 0.1, "ndcg@10": 0.05},
        "gsimc": {"hr@10": 0.08, "ndcg@10": 0.04},
        "bert4rec perturb. gsimc": {"hr@10": 0.09, "ndcg@10": 0.06},
    }
    assert table.loc[("the paper's, Netflix", "bert4rec perturb. gsimc"), "hr@10"] == 0.2529


def test_energies_are_shown_as_the_share_of_the_lowest_twentieth():
    """Of 40 frequencies the lowest 2 (the paper's 50 of 1,000)."""
    one = {"energy": [0.5, 0.25] + [0.25 / 38] * 38, "over days": [[0.4, 0.2] + [0.4 / 38] * 38, [0.1] * 10 + [0] * 30]}
    flat = {"centred energy": [0.025] * 40, "centred over days": [[0.025] * 40] * 2}
    table = studies.as_table("energy", {"frequencies": 40, "models": {"tgat": one | flat}})
    assert list(table.columns) == ["at the true time", "day 0", "day 1"]
    assert table.loc[("tgat", "as written")].tolist() == [0.75, 0.6, 0.2]
    assert table.loc[("tgat", "centred")].tolist() == [0.05, 0.05, 0.05]


@pytest.mark.parametrize("name", ["recall", "ties"])
def test_a_study_prints_a_table_and_not_its_record(name, tmp_path, capsys):
    assert main(["reproduce", name, "--scale", "tiny", "--work", str(tmp_path), "--epochs", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 20 and "_study.json" in lines[-1]
    assert "test users, seed 12345, one checkpoint of each model. The data is simulated" in lines[-2]
    (path,) = (tmp_path / "results").glob("*_study.json")
    shown = records.read(path)["found"]["rows"][0]
    value = shown["recall@100"] if name == "recall" else shown["hr@10"]["as filed"]
    row = next(line for line in lines if line.startswith("50 " if name == "recall" else "popularity "))
    assert math.isclose(float(row.split()[1]), value, abs_tol=1e-4)
