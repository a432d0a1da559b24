"""The command line: doctor never fails, simulate writes what was made, lens prints what report says, and bad input gets
one line and exit code 2."""

import os
import pickle
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import easydgl_mini as em
from easydgl_mini import cli


def run(*arguments, **environment):
    """Run the command line in its own process."""
    command = [sys.executable, "-m", "easydgl_mini.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def test_doctor_says_what_is_here():
    done = run("doctor")
    assert done.returncode == 0 and done.stderr == ""
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if len(line.split()) > 1)
    assert rows["easydgl-mini"] == em.__version__
    assert rows["numpy"] == np.__version__
    assert rows["Python"].startswith(".".join(map(str, sys.version_info[:3])))
    assert rows["backend"].split()[0].strip(";") == em.backend()
    assert "Everything the package needs is here." in done.stdout


def test_doctor_survives_a_backend_that_does_not_exist():
    done = run("doctor", EASYDGL_BACKEND="jax")
    assert done.returncode == 0
    assert "none: EASYDGL_BACKEND must be 'dgl' or 'torch', got 'jax'" in done.stdout


def test_doctor_reports_a_forced_backend_and_a_missing_folder(tmp_path):
    done = run("doctor", EASYDGL_BACKEND="torch", EASYDGL_DATA=str(tmp_path / "nowhere"))
    assert "torch (forced by EASYDGL_BACKEND)" in done.stdout
    assert "nowhere (no such folder)" in done.stdout


def test_doctor_names_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(cli, "version_of", lambda name: None if name in ("scipy", "nbval") else "1.0")
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "Missing: scipy." in printed
    assert "nbval         not installed: the tests of the chapters" in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "COMMAND"),
        (["dance"], "'dance'"),
        (["simulate", "atlantis", "--out", "x"], "'atlantis'"),
        (["simulate", "bazaar"], "--out"),
        (["simulate", "bazaar", "--scale", "huge", "--out", "x"], "'huge'"),
        (["simulate", "bazaar", "--seed", "-1", "--out", "x"], "must not be negative"),
        (["simulate", "bazaar", "--seed", "one", "--out", "x"], "'one'"),
        (["lens", "--graph", "g.npz"], "--predictions, --truth, --band"),
        (["lens", "--band", "50"], "'50', expected START:STOP"),
        (["lens", "--band", "::2"], "'::2', expected START:STOP"),
        (["lens", "--band", "a:b"], "'a:b', expected START:STOP"),
        (["lens", "--band", "1.5:"], "'1.5:', expected START:STOP"),
        (["lens", "--metric", "MRR"], "'MRR', expected HR@k or N@k"),
        (["lens", "--metric", "HR@0"], "'HR@0', expected HR@k or N@k"),
        (["lens", "--rank", "-1"], "must not be negative"),
        (["lens", "--which", "middle"], "'middle'"),
        (["lens", "--method", "magic"], "'magic'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, words, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert error.count("\n") == 1 and words in error


def test_simulate_refuses_a_folder_with_files_and_a_file(tmp_path, capsys):
    (tmp_path / "old.csv").write_text("")
    assert cli.main(["simulate", "bazaar", "--scale", "tiny", "--out", str(tmp_path)]) == 2
    assert cli.main(["simulate", "bazaar", "--scale", "tiny", "--out", str(tmp_path / "old.csv")]) == 2
    assert capsys.readouterr().err.count("\n") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["old.csv"]


@pytest.mark.parametrize("command", [[], ["doctor"], ["simulate"], ["lens"]], ids=["top", "doctor", "simulate", "lens"])
def test_help_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([*command, "--help"])
    assert stop.value.code == 0
    assert "example:\n  easydgl-mini" in capsys.readouterr().out


def test_bazaar_comes_back_from_its_files(tmp_path):
    assert cli.main(["simulate", "bazaar", "--scale", "tiny", "--seed", "3", "--out", str(tmp_path / "b")]) == 0
    world = em.simulate.bazaar("tiny", seed=3)
    events, items = pd.read_csv(tmp_path / "b" / "events.csv"), pd.read_csv(tmp_path / "b" / "items.csv")
    np.testing.assert_array_equal(events["user"], world.events.user)
    np.testing.assert_array_equal(events["item"], world.events.item)
    np.testing.assert_array_equal(events["hour"], world.events.time)
    np.testing.assert_array_equal(items["group"], world.group)
    np.testing.assert_array_equal(items["id"], np.arange(len(world.group)))
    np.testing.assert_array_equal(np.load(tmp_path / "b" / "truth.npz")["excitation"], world.truth.excitation)


def test_ledger_comes_back_from_its_files(tmp_path):
    assert cli.main(["simulate", "ledger", "--scale", "tiny", "--out", str(tmp_path)]) == 0
    world = em.simulate.ledger("tiny", seed=0)
    edges, nodes = pd.read_csv(tmp_path / "edges.csv"), np.load(tmp_path / "nodes.npz")
    src, dst = world.graph.edges()
    np.testing.assert_array_equal(edges[["src", "dst"]].to_numpy(), np.stack([src, dst], axis=1))
    np.testing.assert_array_equal(edges["time"], world.graph.times)
    np.testing.assert_array_equal(nodes["features"], world.features)
    np.testing.assert_array_equal(nodes["labels"], world.labels)
    assert np.load(tmp_path / "truth.npz")["change"] == 43


def test_freeway_comes_back_from_its_files(tmp_path):
    assert cli.main(["simulate", "freeway", "--scale", "tiny", "--out", str(tmp_path)]) == 0
    world = em.simulate.freeway("tiny", seed=0)
    edges, sensors = pd.read_csv(tmp_path / "edges.csv"), pd.read_csv(tmp_path / "sensors.csv")
    np.testing.assert_allclose(edges["weight"], world.graph.weights, rtol=1e-12)
    np.testing.assert_allclose(sensors[["x_km", "y_km"]], world.positions, rtol=1e-12)
    np.testing.assert_array_equal(np.load(tmp_path / "readings.npz")["readings"], world.readings)
    np.testing.assert_array_equal(np.load(tmp_path / "truth.npz")["delay"], world.truth.delay)


# lens -----------------------------------------------------------------------------------------------------------------

USERS, ITEMS = 50, 40


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A random weighted graph, two models that know something of the truth, the truth; in the current folder."""
    rng = np.random.default_rng(5)
    A = np.triu(rng.random((ITEMS, ITEMS)) * (rng.random((ITEMS, ITEMS)) < 0.2), 1)
    truth = rng.integers(ITEMS, size=USERS)
    data = {"A": A + A.T, "truth": truth, "exclude": rng.random((USERS, ITEMS)) < 0.3}
    for name, skill in (("a", 2.0), ("b", 1.0)):
        data[name] = rng.standard_normal((USERS, ITEMS)).astype(np.float32)
        data[name][np.arange(USERS), truth] += skill
        np.save(tmp_path / f"{name}.npy", data[name])
    scipy.sparse.save_npz(tmp_path / "g.npz", scipy.sparse.coo_array(data["A"]))
    np.save(tmp_path / "t.npy", truth)
    monkeypatch.chdir(tmp_path)
    return data


BASE = ["lens", "--graph", "g.npz", "--truth", "t.npy"]
BOTH = [*BASE, "--predictions", "a.npy", "--donor", "b.npy", "--band", ":9"]


def printed_rows(text):
    """The printed table as {(metric, model, donor, band, control): numbers}."""
    head, *lines = text.split("\n\n")[0].splitlines()
    assert head.split() == ["metric", "model", "donor", "band", "control", "before", "after", "change", "low", "high"]
    rows = {tuple(line.split()[:5]): [float(x) for x in line.split()[5:]] for line in lines}
    assert len(rows) == len(lines)
    return rows


def expected_rows(table):
    return {
        (r.metric, r.model, r.donor or "-", r.band, "yes" if r.control else "no"): (
            r.before, r.after, r.change, r.low, r.high
        )
        for r in table.itertuples()
    }  # fmt: skip


def assert_printed(text, table):
    rows, wanted = printed_rows(text), expected_rows(table)
    assert rows.keys() == wanted.keys()
    for key, numbers in rows.items():
        np.testing.assert_allclose(numbers, wanted[key], atol=5.1e-5, rtol=0, err_msg=str(key))
    assert len({tuple(numbers) for numbers in rows.values()}) > len(rows) / 3  # most numbers tell the rows apart


def direct(data, predictions, bands, rank=20, which="low", method="krylov", seed=0, **settings):
    spectrum = em.interpret.decompose(em.interpret.laplacian(data["A"]), rank, which, method, seed=seed)
    bands = [em.interpret.band(spectrum, *ends) for ends in bands]
    return em.interpret.report(predictions, data["truth"], spectrum, bands, seed=seed, **settings)


def test_lens_prints_what_report_says_and_writes_it(files, capsys):
    options = ["--rank", "20", "--band", ":6", "--band", "15:", "--band", "6:15", "--out", "page.html"]
    assert cli.main([*BASE, "--predictions", "a.npy", "--donor", "b.npy", *options]) == 0
    table = direct(files, {"a": files["a"], "b": files["b"]}, [(None, 6), (15, None), (6, 15)], donors=["b"])
    shown = capsys.readouterr()
    assert_printed(shown.out, table)
    assert shown.err == ""
    assert "50 users, 40 items, 20 frequencies from 0.0000 to" in shown.out
    with open("page.html", encoding="utf-8") as page:
        assert page.read() == table.to_html()
    assert sorted(os.listdir()) == ["a.npy", "b.npy", "g.npz", "page.html", "t.npy"]


@pytest.mark.filterwarnings("ignore:band .* cuts between eigenvalues")
def test_lens_passes_every_option_on(files, capsys):
    np.save("e.npy", files["exclude"])
    options = [
        "--which",
        "both",
        "--method",
        "nystrom",
        "--rank",
        "12",
        "--complement",
        "--seed",
        "3",
        "--exclude",
        "e.npy",
    ]
    options += ["--metric", "N@5", "--metric", "HR@3", "--band=-4:", "--band", "2:5"]
    models = ["--predictions", "old=a.npy", "--predictions", "new=b.npy", "--donor", "old=a.npy"]
    assert cli.main([*BASE, *models, *options]) == 0
    settings = {"rank": 12, "which": "both", "method": "nystrom", "seed": 3, "complement": True, "donors": ["old"]}
    settings |= {"exclude": files["exclude"], "metrics": ["N@5", "HR@3"]}
    models, bands = {"old": files["a"], "new": files["b"]}, [(-4, None), (2, 5)]
    table = direct(files, models, bands, **settings)
    text = capsys.readouterr().out
    assert_printed(text, table)
    wanted = expected_rows(table)
    for change in (
        {"which": "low"},
        {"method": "exact"},
        {"rank": 11},
        {"seed": 0},
        {"complement": False},
        {"exclude": None},
    ):
        assert expected_rows(direct(files, models, bands, **settings | change)) != wanted  # each option matters here
    assert text.split()[10] == "N@5"  # metrics in the order they were asked for


def test_lens_without_a_donor_only_removes(files, capsys):
    models = ["--predictions", "a.npy", "--predictions", "b.npy"]
    assert cli.main([*BASE, *models, "--rank", "20", "--band", "3:9"]) == 0
    text = capsys.readouterr().out
    assert {key[2] for key in printed_rows(text)} == {"-"}
    assert_printed(text, direct(files, {"a": files["a"], "b": files["b"]}, [(3, 9)], donors=()))


def test_lens_takes_a_dense_graph_and_three_kinds_of_exclusions(files, capsys):
    np.save("g.npy", files["A"])
    np.save("mask.npy", files["exclude"])
    scipy.sparse.save_npz("mask.npz", scipy.sparse.coo_array(files["exclude"].astype(np.int8)))
    ids = np.full((USERS, ITEMS), -1, dtype=">i4")
    for row, mask in zip(ids, files["exclude"], strict=True):
        row[: mask.sum()] = np.flatnonzero(mask)
    np.save("ids.npy", ids)
    texts = []
    for exclude in ("mask.npy", "mask.npz", "ids.npy"):
        dense = [*BOTH, "--graph", "g.npy", "--method", "exact", "--rank", "20"]
        assert cli.main([*dense, "--exclude", exclude]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2]
    models = {"a": files["a"], "b": files["b"]}
    assert_printed(texts[0], direct(files, models, [(None, 9)], method="exact", donors=["b"], exclude=files["exclude"]))


@pytest.mark.parametrize("kind", [np.float16, np.int32, ">f8", np.longdouble])
def test_lens_takes_scores_of_any_number_type(files, kind, capsys):
    scores = (8 * files["a"]).round().astype(kind)  # exact in every one of them
    np.save("a.npy", scores)
    np.save("t.npy", files["truth"].astype(np.uint32))
    assert cli.main([*BASE, "--predictions", "a.npy", "--rank", "20", "--band", ":9"]) == 0
    assert_printed(capsys.readouterr().out, direct(files, {"a": scores.astype(float)}, [(None, 9)], donors=()))


def test_lens_chooses_a_rank_that_reaches_the_bands(files, capsys):
    assert cli.main([*BOTH, "--band", "30:"]) == 0  # 200 at least, but not more than there are items
    assert "40 frequencies" in capsys.readouterr().out
    assert cli.main([*BOTH, "--rank", "20", "--band", "30:"]) == 2
    error = capsys.readouterr().err
    assert "--band 30: is empty: the spectrum has 20 frequencies" in error and error.count("\n") == 1


def test_lens_help_shows_an_example_that_works(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        cli.main(["lens", "--help"])
    text = capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    _, _, make = shlex.split(text[text.index("python -c") :])
    subprocess.run([sys.executable, "-c", make], check=True)
    example = next(line for line in text.splitlines() if line.startswith("  easydgl-mini lens"))
    assert cli.main(shlex.split(example)[1:]) == 0
    assert {key[3] for key in printed_rows(capsys.readouterr().out)} == {":50", "500:"}
    assert "<table" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_lens_says_in_one_line_what_to_mind(files):
    directed = np.triu(files["A"])
    scipy.sparse.save_npz("g.npz", scipy.sparse.csr_array(directed))
    done = run(*BOTH, "--rank", "20")
    assert done.returncode == 0
    assert (
        done.stderr == "easydgl-mini lens: note: A is not symmetric: taking (A + A.T) / 2, which forgets directions\n"
    )


def put(name, value, at=None, to=None):
    """Save an array, with one entry changed if ``at`` is given."""
    value = np.array(value)
    if at is not None:
        value[at] = to
    np.save(name, value)


def put_graph(value, at=None, to=None):
    value = value.copy()
    if at is not None:
        value[at] = value[at[::-1]] = to
    scipy.sparse.save_npz("g.npz", scipy.sparse.csr_array(value))


def put_text(name, value):
    with open(name, "wb") as file:
        file.write(value)


def put_broken_graph(data):
    """A CSR matrix that points outside itself."""
    graph = scipy.sparse.csr_array(data["A"])
    graph.indices[3] = 10**6
    scipy.sparse.save_npz("g.npz", graph)


BAD = {
    "no graph": (lambda d: os.remove("g.npz"), [], "--graph g.npz: no such file"),
    "no scores": (lambda d: os.remove("a.npy"), [], "--predictions a.npy: no such file"),
    "no donor": (lambda d: os.remove("b.npy"), [], "--donor b.npy: no such file"),
    "no truth": (lambda d: os.remove("t.npy"), [], "--truth t.npy: no such file"),
    "no exclude": (None, ["--exclude", "e.npz"], "--exclude e.npz: no such file"),
    "a folder": (lambda d: os.mkdir("d"), ["--graph", "d"], "--graph d: no such file"),
    "negative": (lambda d: put_graph(d["A"], (3, 5), -1), [], "--graph g.npz: A[3, 5] is -1.0"),
    "nan in graph": (lambda d: put_graph(d["A"], (3, 5), np.nan), [], "--graph g.npz: A[3, 5] is nan"),
    "not square": (lambda d: put_graph(d["A"][:, :-1]), [], "--graph g.npz: A: got shape (40, 39), expected a square"),
    "other graph": (lambda d: put_graph(d["A"][:-1, :-1]), [], "--truth t.npy: entry"),
    "broken graph": (put_broken_graph, [], "--graph g.npz: expected a SciPy sparse .npz"),
    "graph of arrays": (lambda d: np.savez("g.npz", A=d["A"]), [], "--graph g.npz: expected a SciPy sparse .npz"),
    "text as graph": (lambda d: put_text("g.npz", b"hello"), [], "--graph g.npz: expected a SciPy sparse .npz"),
    "empty file": (lambda d: put_text("a.npy", b""), [], "--predictions a.npy: expected a .npy array"),
    "cut file": (lambda d: os.truncate("a.npy", 4000), [], "--predictions a.npy: expected a .npy array"),
    "pickle": (lambda d: put_text("a.npy", pickle.dumps([1])), [], "--predictions a.npy: expected a .npy array"),
    "objects": (lambda d: put("a.npy", d["a"].astype(object)), [], "--predictions a.npy: expected a .npy array"),
    "pickled truth": (lambda d: put("t.npy", d["truth"].astype(object)), [], "--truth t.npy: expected a .npy array"),
    "npz as scores": (lambda d: np.savez("s.npz", d["a"]), ["--predictions", "s.npz"], "s.npz: expected a .npy array"),
    "complex": (lambda d: put("a.npy", d["a"] + 0j), [], "--predictions a.npy: got complex64"),
    "nan in scores": (lambda d: put("a.npy", d["a"], (7, 3), np.nan), [], "--predictions a.npy: entry [7, 3] is nan"),
    "inf in donor": (lambda d: put("b.npy", d["b"], (49, 3), -np.inf), [], "--donor b.npy: entry [49, 3] is -inf"),
    "transposed": (lambda d: put("a.npy", d["a"].T), [], "--predictions a.npy: got shape (40, 50), expected (50, 40)"),
    "donor short": (lambda d: put("b.npy", d["b"][1:]), [], "--donor b.npy: got shape (49, 40), expected (50, 40)"),
    "one signal": (lambda d: put("a.npy", d["a"][0]), [], "--predictions a.npy: got float32 of shape (40,)"),
    "truth of floats": (lambda d: put("t.npy", d["truth"] * 1.0), [], "--truth t.npy: got float64 of shape (50,)"),
    "truth outside": (lambda d: put("t.npy", d["truth"], 4, 40), [], "--truth t.npy: entry [4] is 40, expected a node"),
    "truth below": (lambda d: put("t.npy", d["truth"], 4, -1), [], "--truth t.npy: entry [4] is -1, expected a node"),
    "no users": (lambda d: put("t.npy", d["truth"][:0]), [], "--truth t.npy: expected"),
    "mask shape": (
        lambda d: put("e.npy", d["exclude"].T),
        ["--exclude", "e.npy"],
        "e.npy: got a mask of shape (40, 50)",
    ),
    "mask of ints": (lambda d: put("e.npy", d["exclude"] * 1), ["--exclude", "e.npy"], "look like a mask"),
    "mask of floats": (lambda d: put("e.npy", d["exclude"] * 1.0), ["--exclude", "e.npy"], "e.npy: got float64"),
    "ids outside": (
        lambda d: put("e.npy", np.full((USERS, 2), -1), (6, 1), 40),
        ["--exclude", "e.npy"],
        "--exclude e.npy: entry [6, 1] is 40, expected an item in 0 … 39, or -1",
    ),
    "empty band": (None, ["--band", "9:9"], "--band 9:9 is empty"),
    "rank 0": (None, ["--rank", "0"], "the spectrum has 0 frequencies"),
    "two of a name": (None, ["--predictions", "b=a.npy"], "two files are called 'b', a.npy and b.npy"),
    "out an input": (None, ["--out", "a.npy"], "--out a.npy: expected a name that ends in .html"),
    "out nowhere": (None, ["--out", "no/such/x.html"], "--out no/such/x.html: expected a file in a folder that exists"),
    "out a folder": (lambda d: os.mkdir("x.html"), ["--out", "x.html"], "--out x.html: expected a file"),
}


def folder():
    """Names in the current folder with the contents of the files."""
    return {path.name: path.is_file() and path.read_bytes() for path in Path.cwd().iterdir()}


@pytest.mark.parametrize("case", BAD)
def test_lens_refuses_in_one_line_and_writes_nothing(files, case, capfd):
    spoil, options, words = BAD[case]
    if spoil:
        spoil(files)
    before = folder()
    assert cli.main([*BOTH, *options]) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("easydgl-mini lens: ") and words in shown.err and shown.err.count("\n") == 1
    assert folder() == before


def test_lens_finds_a_nan_in_a_later_piece_of_the_file(files, monkeypatch, capsys):
    monkeypatch.setattr(cli, "LOOK", 3 * ITEMS)  # three users at a time
    put("a.npy", files["a"], (49, 3), np.nan)
    assert cli.main(BOTH) == 2
    assert "--predictions a.npy: entry [49, 3] is nan" in capsys.readouterr().err


def test_lens_refuses_a_donor_without_a_recipient(files, capsys):
    assert cli.main([*BASE, "--predictions", "a.npy", "--donor", "a.npy", "--band", ":9"]) == 2
    assert "--donor a.npy is the only model" in capsys.readouterr().err


def test_lens_never_unpickles(files, capsys):
    class Trap:
        def __reduce__(self):
            return os.mkdir, ("sprung",)

    for name in ("a.npy", "g.npz", "t.npy"):
        with open(name, "rb") as file:
            good = file.read()
        put_text(name, pickle.dumps(Trap()))
        assert cli.main(BOTH) == 2
        np.save(name[:1], np.array([Trap()]), allow_pickle=True)
        os.replace(f"{name[:1]}.npy", name)
        assert cli.main(BOTH) == 2
        put_text(name, good)
    assert not os.path.exists("sprung")


def test_lens_leaves_the_old_page_when_writing_fails(files, monkeypatch, capsys):
    put_text("report.html", b"old")
    monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError("disk full")))
    assert cli.main([*BOTH, "--rank", "20"]) == 2
    assert capsys.readouterr().err == "easydgl-mini lens: disk full\n"
    assert folder().keys() == {"a.npy", "b.npy", "g.npz", "report.html", "t.npy"}
    assert folder()["report.html"] == b"old"


def test_lens_replaces_an_older_page(files):
    put_text("report.html", b"old")
    assert cli.main([*BOTH, "--rank", "20"]) == 0
    with open("report.html", encoding="utf-8") as page:
        assert page.read().startswith("<!doctype html>")
    assert sorted(os.listdir()) == ["a.npy", "b.npy", "g.npz", "report.html", "t.npy"]
