"""The command line: doctor never fails, simulate writes what was made, bad input gets one line and exit code 2."""

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

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


@pytest.mark.parametrize("command", [[], ["doctor"], ["simulate"]], ids=["top", "doctor", "simulate"])
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
