"""Elliptic, METR-LA, PEMS-BAY and Patent: what comes out of hand-written files, number by number."""

import builtins
import dataclasses
import io
import os
import pickle
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from easydgl_mini import data, simulate
from easydgl_mini.data import DataError, elliptic, metr_la, patent, unpickle
from easydgl_mini.data.unpickle import load_arrays
from easydgl_mini.train import f1_of


def put(folder, **files):
    """Write files; a dot in a name is written as two underscores here."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        content = content if isinstance(content, bytes) else content.encode()
        (folder / name.replace("__", ".")).write_bytes(content)
    return folder


def load(name, folder, **options):
    return data.load(name, folder, cache=False, **options)


def adds_up(report):
    return report.read == report.kept + sum(report.dropped.values())


# ------------------------------------------------------------------------------------------------ Elliptic

FEATURES = "900000001,1,0.5,-2\n7,1,1e-3,3.25\n55,2,0,-0.125\n12,2,4,5\n13,49,1,1\n"
EDGES = "txId1,txId2\n900000001,7\n12,55\n"
CLASSES = "txId,class\n7,1\n900000001,2\n13,unknown\n55,unknown\n12,2\n"


def write_elliptic(folder, features=FEATURES, edges=EDGES, classes=CLASSES):
    return put(
        folder,
        elliptic_txs_features__csv=features,
        elliptic_txs_edgelist__csv=edges,
        elliptic_txs_classes__csv=classes,
    )


def test_elliptic_by_hand(tmp_path):
    got = load("elliptic", write_elliptic(tmp_path))
    expected = np.array([[1, 0.5, -2], [1, 0.001, 3.25], [2, 0, -0.125], [2, 4, 5], [49, 1, 1]], np.float32)
    assert got.features.dtype == np.float32
    np.testing.assert_array_equal(got.features, expected)
    assert got.labels.tolist() == [0, 1, 2, 0, 2]  # licit 0, illicit 1, unknown 2
    assert got.step.tolist() == [1, 1, 2, 2, 49]
    assert got.graph.src.tolist() == [0, 3]
    assert got.graph.dst.tolist() == [1, 2]
    assert got.graph.times.tolist() == [1.5, 2.5]
    assert (got.report.read, got.report.kept, got.report.dropped) == (12, 12, {})


def quoted(text):
    """Every field of a table in double quotes."""
    return "".join(",".join(f'"{field}"' for field in line.split(",")) + "\n" for line in text.splitlines())


def test_elliptic_in_the_folder_of_its_archive_and_quoted(tmp_path):
    write_elliptic(tmp_path / "elliptic" / "elliptic_bitcoin_dataset", FEATURES, quoted(EDGES), quoted(CLASSES))
    got = load("elliptic", tmp_path)
    assert got.labels.tolist() == [0, 1, 2, 0, 2]
    assert (got.graph.src.tolist(), got.graph.dst.tolist()) == ([0, 3], [1, 2])


def test_elliptic_classes_are_those_of_ledger_and_of_the_score(tmp_path):
    assert (elliptic.LICIT, elliptic.ILLICIT, elliptic.UNKNOWN) == (
        simulate.LICIT,
        simulate.ILLICIT,
        simulate.UNKNOWN,
    )
    labels = torch.from_numpy(load("elliptic", write_elliptic(tmp_path)).labels)
    illicit = torch.tensor([False, True, False, False, False])
    assert f1_of(1, illicit.long(), labels) == 1.0  # naming the one "1" of the file illicit is all right


def test_elliptic_elapsed_time_is_constant(tmp_path):
    """Half a step for whoever was paid: DECISIONS 32."""
    got = load("elliptic", write_elliptic(tmp_path))
    asked = torch.from_numpy(got.step).double() + 1
    elapsed = asked - got.graph.last_event(before=asked, fill=torch.nan)
    assert elapsed[got.graph.in_degrees() > 0].tolist() == [0.5, 0.5]


def test_elliptic_edge_across_steps_comes_with_the_later_end(tmp_path):
    got = load("elliptic", write_elliptic(tmp_path, edges="txId1,txId2\n13,7\n7,55\n"))
    assert got.graph.times.tolist() == [49.5, 2.5]
    assert got.report.notes[0] == "elliptic_txs_edgelist.csv: 2 edges join two steps"
    got = load("elliptic", write_elliptic(tmp_path, edges="txId1,txId2\n13,13\n"))
    assert got.report.notes[0] == "elliptic_txs_edgelist.csv: 1 edges join a transaction to itself"


def test_elliptic_counts_what_it_drops(tmp_path):
    write_elliptic(
        tmp_path,
        features=FEATURES + "\n7,3,9,9\n",
        edges=EDGES + "12,55\n1,7\n7,1\n55,12\n",
        classes="txId,class\n7,1\n7,2\n4,1\n12,2\n\n",
    )
    got = load("elliptic", tmp_path)
    assert got.report.dropped == {
        "blank line": 2,
        "transaction seen before": 1,
        "edge of a transaction without features": 2,
        "edge seen before": 1,
        "class of a transaction without features": 1,
        "class of a transaction classified before": 1,
    }
    assert got.report.read == 7 + 6 + 5
    assert adds_up(got.report)
    assert got.features[1].tolist() == [1, np.float32(0.001), 3.25]  # the first of the two
    assert got.labels.tolist() == [-1, 1, -1, 0, -1]
    assert "3 transactions have no class" in got.report.notes[0]
    assert list(zip(got.graph.src.tolist(), got.graph.dst.tolist(), strict=True)) == [(0, 1), (3, 2), (2, 3)]


@pytest.mark.parametrize(
    ("files", "file", "line", "reason"),
    [
        ({"features": "1,1,0.5\n2,1\n3,1,2\n"}, "features", 2, "expected 3 fields"),
        ({"features": "1,1,0.5\n2,1,x\n"}, "features", 2, "a feature is not a number"),
        ({"features": "1,1,0.5,1\n2,1,,1\n"}, "features", 2, "a feature is not a number"),
        ({"features": "1,1,0.5\n2,1,nan\n"}, "features", 2, "a feature is not a number"),
        ({"features": "1,1,0.5\n2,1,1.2.3\n"}, "features", 2, "a feature is not a number"),
        ({"features": "1,1,0.5\n2,1,1e999\n"}, "features", 2, "a feature is not"),
        ({"features": "1,1,0.5\n2,1,inf\n"}, "features", 2, "a feature is not a number"),
        ({"features": '1,1,0.5\n2,1,"3"\n'}, "features", 2, "a feature is not a number"),
        ({"features": "1,1,0.5\n2,1,3\r4\n"}, "features", 2, "a feature is not a number"),
        ({"features": "1,0,0.5\n"}, "features", 1, "step is not in 1 … 49"),
        ({"features": "1,50,0.5\n"}, "features", 1, "step is not in 1 … 49"),
        ({"features": "-1,1,0.5\n"}, "features", 1, "txId is not a whole number"),
        ({"features": "txId,step,a\n1,1,0.5\n"}, "features", 1, "txId is not a whole number"),
        ({"features": "1,1,0.5\n2,1,\xff\n".encode("latin1")}, "features", 2, "not UTF-8"),
        ({"features": "1,1,0.5\n2,1,\x00\n"}, "features", 2, "NUL"),
        ({"features": ""}, "features", None, "empty"),
        ({"features": "\n\n"}, "features", None, "no transaction could be read"),
        ({"edges": "900000001,7\n12,55\n"}, "edgelist", 1, "header"),
        ({"edges": "a,b\n12,55\n"}, "edgelist", 1, "header"),
        ({"edges": "txId1,txId2\n12,55\n7\n"}, "edgelist", 3, "expected 2 fields"),
        ({"edges": "txId1,txId2\n12,5.5\n"}, "edgelist", 2, "txId2 is not a whole number"),
        ({"classes": "txId,class\n7,3\n"}, "classes", 2, "not unknown, 1 or 2"),
        ({"classes": "txId,class\n7,\n"}, "classes", 2, "not unknown, 1 or 2"),
        ({"classes": "txId,class\n7,11\n"}, "classes", 2, "not unknown, 1 or 2"),
        ({"classes": "class\n1\n"}, "classes", 1, "header"),
    ],
)
def test_elliptic_names_file_and_line(tmp_path, files, file, line, reason):
    with pytest.raises(DataError) as error:
        load("elliptic", write_elliptic(tmp_path, **files))
    assert Path(error.value.file).name == f"elliptic_txs_{file}.csv"
    assert error.value.line == line
    assert reason in error.value.reason


def test_elliptic_drops_bad_rows_when_asked(tmp_path):
    write_elliptic(tmp_path, features="x,1,1\n1,1,0.5\n2,1,x\n3,9\n4,2,7\n5,2,1.2.3\n")
    got = load("elliptic", tmp_path, errors="drop")
    assert got.features.tolist() == [[1, 0.5], [2, 7]]
    assert got.report.dropped["a feature is not a number"] == 2
    assert got.report.dropped["expected 3 fields"] == 1
    assert got.report.dropped["txId is not a whole number"] == 1
    assert adds_up(got.report)


def test_elliptic_missing_file_is_named(tmp_path):
    write_elliptic(tmp_path)
    (tmp_path / "elliptic_txs_classes.csv").unlink()
    with pytest.raises(DataError, match="elliptic_txs_classes.csv.*no such file"):
        load("elliptic", tmp_path)


def test_elliptic_line_ends_and_marks_change_nothing(tmp_path):
    plain = load("elliptic", write_elliptic(tmp_path / "a"))
    windows = write_elliptic(
        tmp_path / "b",
        "\ufeff" + FEATURES.replace("\n", "\r\n"),
        EDGES.replace("\n", "\r\n"),
        CLASSES.replace("\n", "\r\n")[:-2],
    )
    other = load("elliptic", windows)
    np.testing.assert_array_equal(plain.features, other.features)
    np.testing.assert_array_equal(plain.labels, other.labels)
    assert plain.graph.dst.tolist() == other.graph.dst.tolist()
    assert any("Windows" in note for note in other.report.notes)


def test_elliptic_goes_through_the_cache(tmp_path):
    write_elliptic(tmp_path / "elliptic")
    first, second = (data.load("elliptic", tmp_path) for _ in range(2))
    np.testing.assert_array_equal(first.features, second.features)
    assert first.graph.times.tolist() == second.graph.times.tolist()
    assert first.fingerprint == second.fingerprint
    assert second.report == first.report
    assert data.verify("elliptic", tmp_path) == [
        "rows: the public files have 641,893, these have 12"
    ]  # nothing else is wrong


# ------------------------------------------------------------------------------------------------ METR-LA

IDS = ["11", "22", "33"]
MATRIX = np.array([[1, 0.5, 0], [0, 1, 0.25], [0.125, 0, 1]], np.float32)  # of no symmetry: rows and columns differ


def graph_pickle(ids=IDS, matrix=MATRIX, protocol=2):
    return pickle.dumps([ids, {name: n for n, name in enumerate(ids)}, matrix], protocol=protocol)


def edges_of(got):
    src, dst = got.graph.edges()
    return {(i, j): w for i, j, w in zip(src.tolist(), dst.tolist(), got.graph.weights.tolist(), strict=True)}


def test_metr_la_csv_without_times(tmp_path):
    put(tmp_path, metr_la__csv="", adj_mx__pkl=graph_pickle())
    (tmp_path / "metr-la.csv").write_text("11,22,33\n60,0,1.5\n,nan,70.25\n")
    got = load("metr-la", tmp_path)
    assert got.readings.tolist() == [[60, 0, 1.5], [0, 0, 70.25]]  # what is missing is zero
    assert got.readings.dtype == np.float32
    assert got.times.tolist() == [0, 5]
    assert got.origin == "2012-03-01"
    assert got.sensors.tolist() == IDS
    assert edges_of(got) == {(0, 0): 1, (0, 1): 0.5, (1, 1): 1, (1, 2): 0.25, (2, 0): 0.125, (2, 2): 1}
    assert "3 of 6 readings are missing" in got.report.notes[0]
    assert load("metr-la", tmp_path, start="2012-04-02").origin == "2012-04-02"
    with pytest.raises(ValueError, match="start must be a date"):
        load("metr-la", tmp_path, start="yesterday")


def write_metr(folder, csv, graph=None):
    put(folder, adj_mx__pkl=graph_pickle() if graph is None else graph)
    (folder / "metr-la.csv").write_text(csv)
    return folder


@pytest.mark.parametrize("head", ["", "timestamp", "Date"])
def test_metr_la_csv_with_times(tmp_path, head):
    rows = "2012-03-04 23:50:00,1,2,3\n2012-03-04T23:55,4,5,6\n2012-03-05 00:00:00,7,8,9\n"
    got = load("metr-la", write_metr(tmp_path, f"{head},11,22,33\n{rows}"))
    assert got.origin == "2012-03-04"
    assert got.times.tolist() == [1430, 1435, 1440]
    assert got.readings[2].tolist() == [7, 8, 9]


def test_metr_la_times_left_out_twice_and_out_of_order(tmp_path):
    rows = ["2012-03-01 00:20:00,7,8,9", "2012-03-01 00:00:00,1,2,3", "2012-03-01 00:05:00,4,5,6"]
    rows += ["2012-03-01 00:05:00,9,9,9"]
    got = load("metr-la", write_metr(tmp_path, "\n".join([",11,22,33", *rows, ""])))
    assert got.times.tolist() == [0, 5, 10, 15, 20]
    assert got.readings.tolist() == [[1, 2, 3], [4, 5, 6], [0, 0, 0], [0, 0, 0], [7, 8, 9]]
    assert got.report.dropped == {"time seen before": 1}
    assert (got.report.read, got.report.kept) == (4, 3)
    assert any("out of order" in note for note in got.report.notes)
    assert any("2 times are left out" in note for note in got.report.notes)


def test_metr_la_sensors_in_another_order(tmp_path):
    """The matrix follows the columns of the readings, rows and columns both."""
    got = load("metr-la", write_metr(tmp_path, "33,11,22\n3,1,2\n"))
    assert got.sensors.tolist() == ["33", "11", "22"]
    assert {k: v for k, v in edges_of(got).items() if k[0] != k[1]} == {(0, 1): 0.125, (1, 2): 0.5, (2, 0): 0.25}


@pytest.mark.parametrize(
    ("csv", "line", "reason"),
    [
        ("11,22,33\n1,2,3\n1,2\n", 3, "expected 3 fields"),
        ("11,22,33\n1,2,x\n", 2, "a reading is not a number"),
        ("11,22,33\n1,2,-3\n", 2, "a reading is not in 0 … 1000"),
        ("11,22,33\n1,2,3\n1,2,1e9\n", 3, "a reading is not in 0 … 1000"),
        ("11,22,33\n1,2,inf\n", 2, "a reading is not a number"),
        ("11,22,33\n1,2,NaN-\n", 2, "a reading is not a number"),
        ("11,22,11\n1,2,3\n", 1, "twice"),
        ("64.5,60.25,61.5\n1,2,3\n", 1, "header of sensor ids"),
        (",11,22,33\n2012-02-30 00:00:00,1,2,3\n", 2, "the time is"),
        (",11,22,33\n2012-03-01 24:00:00,1,2,3\n", 2, "the hour is not in"),
        (",11,22,33\n2012-03-01 00:60:00,1,2,3\n", 2, "the minute is not in"),
        (",11,22,33\n2012-03-01 00:00:30,1,2,3\n", 2, "the time is not like"),
        (",11,22,33\n2012/03/01 00:00:00,1,2,3\n", 2, "the time is not of the form"),
        (",11,22,33\n5,1,2,3\n", 2, "the time is not like"),
        (",11,22,33\n2012-03-01 00:00,1,2,3\n2012-03-01 00:07,1,2,3\n", 3, "every 5 minutes, as most are, got"),
        (",11,22,33\n2012-03-01 00:00,1,2,3\n2092-03-01 00:00,1,2,3\n", None, "is a date wrong"),
        ("11,22,33\n", None, "no readings"),
        ("\n\n", 1, "header of sensor ids"),
        ("", None, "empty"),
        ("11,22\n1,2\n", None, "3 sensors, not the 2 of metr-la.csv"),
        ("11,22,44\n1,2,3\n", None, "no sensor '44', one of the 3 of metr-la.csv; is line 1 there a header?"),
    ],
)
def test_metr_la_names_file_and_line(tmp_path, csv, line, reason):
    with pytest.raises(DataError) as error:
        load("metr-la", write_metr(tmp_path, csv))
    assert error.value.line == line
    assert reason in error.value.reason


def test_metr_la_drops_bad_rows_when_asked(tmp_path):
    write_metr(
        tmp_path, ",11,22,33\n2012-03-01 00:00,1,2,3\nx,1,2,3\n2012-03-01 00:10,4,-5,6\n2012-03-01 00:10,7,8,9\n"
    )
    got = load("metr-la", tmp_path, errors="drop")
    assert got.readings.tolist() == [[1, 2, 3], [0, 0, 0], [7, 8, 9]]
    assert (got.report.read, got.report.kept, adds_up(got.report)) == (4, 2, True)


LATER = [[1, 2, 3], [0, 0, 0], [7, 8, 9]]


@pytest.mark.parametrize("bad", ["4,5,x", "4,5", "4,-5,6", "4,5,6,7", "4,\xff,6"])
@pytest.mark.parametrize("block", [1, 2**20])
def test_without_times_a_bad_row_does_not_move_the_later_ones(tmp_path, monkeypatch, bad, block):
    monkeypatch.setattr(data.files, "BLOCK", block)
    write_metr(tmp_path, "")
    (tmp_path / "metr-la.csv").write_bytes(f"11,22,33\n1,2,3\n\n{bad}\n7,8,9\n".encode("latin1"))
    got = load("metr-la", tmp_path, errors="drop")
    assert got.readings.tolist() == LATER  # the blank line is no row
    assert got.times.tolist() == [0, 5, 10]
    assert (got.report.read, got.report.kept, adds_up(got.report)) == (4, 2, True)
    assert "metr-la.csv: 1 bad rows are now rows of missing readings" in got.report.notes[0]


def test_without_times_bad_rows_at_both_ends_keep_their_places(tmp_path):
    got = load("metr-la", write_metr(tmp_path, "11,22,33\nx\n1,2,3\nx\n"), errors="drop")
    assert got.readings.tolist() == [[0, 0, 0], [1, 2, 3], [0, 0, 0]]
    with pytest.raises(DataError, match="no readings could be read"):
        load("metr-la", write_metr(tmp_path, "11,22,33\nx\n1,2\n"), errors="drop")


def test_a_bad_row_of_an_npz_does_not_move_the_later_ones(tmp_path):
    put(tmp_path, adj_mx__pkl=graph_pickle())
    np.savez(tmp_path / "metr-la.npz", data=np.array([[1.0, 2, 3], [4, -5, 6], [7, 8, 9]]))
    got = load("metr-la", tmp_path, errors="drop")
    assert (got.readings.tolist(), got.times.tolist()) == (LATER, [0, 5, 10])
    assert (got.report.read, got.report.kept) == (3, 2)
    assert got.report.dropped == {"a reading is not in 0 … 1000": 1}


def test_a_time_off_the_grid_is_a_bad_row(tmp_path):
    """The grid is that of most times, so that a bad first row is the bad one."""
    rows = ["2012-03-01 00:03,9,9,9", "2012-03-01 00:05,1,2,3", "", "2012-03-01 00:12,9,9,9", "2012-03-01 00:15,7,8,9"]
    write_metr(tmp_path, "\n".join([",11,22,33", *rows, ""]))
    with pytest.raises(DataError, match=r"metr-la\.csv, line 2: .* every 5 minutes, .* got 2012-03-01T00:03"):
        load("metr-la", tmp_path)
    got = load("metr-la", tmp_path, errors="drop")
    assert (got.readings.tolist(), got.times.tolist()) == (LATER, [5, 10, 15])
    assert got.report.dropped == {"blank line": 1, metr_la.OFF_GRID: 2} and adds_up(got.report)
    write_metr(tmp_path, "\n".join([",11,22,33", *rows[1:], ""]))
    with pytest.raises(DataError, match="line 4: "):
        load("metr-la", tmp_path)


def test_metr_la_npz(tmp_path):
    put(tmp_path, adj_mx__pkl=graph_pickle())
    np.savez(tmp_path / "metr-la.npz", data=np.array([[1.0, np.nan, 3], [4, 5, 0]]))
    got = load("metr-la", tmp_path)
    assert got.readings.tolist() == [[1, 0, 3], [4, 5, 0]]
    assert got.sensors.tolist() == IDS
    deep = np.stack([np.arange(6).reshape(2, 3), np.full((2, 3), 99)], axis=2)
    np.savez(tmp_path / "metr-la.npz", data=deep)
    got = load("metr-la", tmp_path)
    assert got.readings.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert any("first of 2 features" in note for note in got.report.notes)
    for wrong in ({"x": deep}, {"data": np.array(["a"])}, {"data": np.array([None])}, {"data": np.zeros((2, 2))}):
        np.savez(tmp_path / "metr-la.npz", **wrong)
        with pytest.raises(DataError):
            load("metr-la", tmp_path)
    np.savez(tmp_path / "metr-la.npz", data=deep[:, :, 0] - 1.0)
    with pytest.raises(DataError, match="row 0: a reading is not in 0"):
        load("metr-la", tmp_path)
    (tmp_path / "metr-la.npz").write_bytes((tmp_path / "metr-la.npz").read_bytes()[:-30])
    with pytest.raises(DataError, match="not a whole .npz"):
        load("metr-la", tmp_path)


def test_gaussian_kernel_by_hand():
    """Distances 0, 1, 3: mean 4/3, variance 14/9."""
    got = metr_la.gaussian_kernel([0, 1, 3])
    np.testing.assert_allclose(got, [1, np.exp(-9 / 14), np.exp(-81 / 14)], rtol=1e-14)


@pytest.mark.parametrize("header", ["from,to,cost\n", ""])
def test_metr_la_graph_from_distances(tmp_path, header):
    """σ is over the pairs of sensors with readings; 11 → 33 is too far; the last of two lines on a pair counts."""
    (tmp_path / "metr-la.csv").write_text("33,11,22\n3,1,2\n")
    rows = "11,11,0\n11,22,9\n11,22,1\n11,33,3\n11,99,1\n99,98,7000\n"
    (tmp_path / "distances_la_2012.csv").write_text(header + rows)
    got = load("metr-la", tmp_path)
    assert edges_of(got) == pytest.approx({(1, 1): 1, (1, 2): np.exp(-9 / 14)}, rel=1e-14)
    assert got.report.dropped == {
        "distance of a sensor that has no readings": 2,
        "distance that comes again": 1,
    }
    assert (got.report.read, got.report.kept) == (7, 4)
    assert any("1 distances are too long" in note for note in got.report.notes)
    (tmp_path / "distances_la_2012.csv").write_text(header + "11,22,-1\n")
    with pytest.raises(DataError, match=f"line {2 if header else 1}: cost is not in 0"):
        load("metr-la", tmp_path)
    (tmp_path / "distances_la_2012.csv").write_text(header + "98,99,1\n")
    with pytest.raises(DataError, match="no distance between"):
        load("metr-la", tmp_path)


def test_distances_are_no_rows_of_the_public_readings(tmp_path, monkeypatch):
    """Two readings are the two that are public, whatever else is counted."""
    public = dataclasses.replace(data.DATASETS["metr-la"], expect={"rows": 2})
    monkeypatch.setitem(data.DATASETS, "metr-la", public)
    (tmp_path / "metr-la.csv").write_text("11,22\n1,2\n\n3,4\n")
    (tmp_path / "distances_la_2012.csv").write_text("from,to,cost\n11,22,1\n\n22,11,3\n22,99,3\n")
    report = load("metr-la", tmp_path).report
    assert (report.read, report.rows, adds_up(report)) == (7, 2, True)
    assert data.verify("metr-la", tmp_path, cache=False) == []
    (tmp_path / "metr-la.csv").write_text("11,22\n1,2\n")
    assert data.verify("metr-la", tmp_path, cache=False) == ["rows: the public files have 2, these have 1"]


def test_rows_come_back_from_the_cache(tmp_path):
    put(tmp_path / "metr-la", distances_la_2012__csv="11,22,1\n22,11,3\n")
    (tmp_path / "metr-la" / "metr-la.csv").write_text("11,22\n1,2\n")
    assert [data.load("metr-la", tmp_path).report.rows for _ in range(2)] == [1, 1]


def test_metr_la_npz_with_distances_needs_the_ids(tmp_path):
    np.savez(tmp_path / "metr-la.npz", data=np.ones((2, 2)))
    (tmp_path / "distances_la_2012.csv").write_text("from,to,cost\n11,22,1\n22,11,3\n11,11,0\n")
    with pytest.raises(DataError, match="graph_sensor_ids.txt.*no such file"):
        load("metr-la", tmp_path)
    for ids in ("22,11\n", "22\n11\n", "\ufeff22\r\n11\r\n", "22,\n11,\n", " 22 , 11 ", "22\n\n11"):
        (tmp_path / "graph_sensor_ids.txt").write_bytes(ids.encode())
        assert edges_of(load("metr-la", tmp_path)) == pytest.approx({(1, 0): np.exp(-9 / 14), (1, 1): 1})
    (tmp_path / "sensor_graph").mkdir()
    for name in ("distances_la_2012.csv", "graph_sensor_ids.txt"):
        (tmp_path / name).rename(tmp_path / "sensor_graph" / name)
    assert load("metr-la", tmp_path).graph.num_edges == 2
    (tmp_path / "sensor_graph" / "distances_la_2012.csv").rename(tmp_path / "distances_la_2012.csv")
    (tmp_path / "graph_sensor_ids.txt").write_text("22,11,33\n")
    with pytest.raises(DataError, match="2 columns, but 3 sensor ids"):
        load("metr-la", tmp_path)
    (tmp_path / "graph_sensor_ids.txt").write_text("22,22\n")
    with pytest.raises(DataError, match="graph_sensor_ids.txt.*has the sensor '22' twice"):
        load("metr-la", tmp_path)


def test_pems_bay_has_its_own_names_and_start(tmp_path):
    (tmp_path / "pems-bay.csv").write_text("11,22,33\n3,1,2\n")
    (tmp_path / "adj_mx_bay.pkl").write_bytes(graph_pickle())
    assert load("pems-bay", tmp_path).origin == "2017-01-01"


def test_graph_in_a_folder_of_its_own(tmp_path):
    write_metr(tmp_path, "11,22,33\n3,1,2\n")
    (tmp_path / "sensor_graph").mkdir()
    (tmp_path / "adj_mx.pkl").rename(tmp_path / "sensor_graph/adj_mx.pkl")
    assert load("metr-la", tmp_path).graph.num_edges == 6
    (tmp_path / "sensor_graph/adj_mx.pkl").unlink()
    (tmp_path / "sensor_graph/distances_la_2012.csv").write_text("11,22,0\n22,11,0\n")
    assert edges_of(load("metr-la", tmp_path)) == {(0, 1): 1, (1, 0): 1}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([IDS, {"11": 0, "22": 1, "33": 2}], "three things"),
        ({"a": 1}, "three things"),
        ([IDS, {"11": 0, "22": 1, "33": 2}, [[1, 0, 0]] * 3], "three things"),
        ([IDS, {"11": 0, "22": 2, "33": 1}, MATRIX], "don't fit"),
        ([IDS, {"11": 0, "22": 1}, MATRIX], "don't fit"),
        ([["11", "22", "22"], {"11": 0, "22": 1, "33": 2}, MATRIX], "don't fit"),
        ([IDS, IDS, MATRIX], "don't fit"),
        (["112", {"11": 0, "22": 1, "33": 2}, MATRIX], "sensor ids first"),
        ([IDS, {"11": 0, "22": 1, "33": 2}, MATRIX[:2]], "matrix of shape (2, 3)"),
        ([IDS, {"11": 0, "22": 1, "33": 2}, -MATRIX], "negative or not finite"),
        ([IDS, {"11": 0, "22": 1, "33": 2}, MATRIX * np.nan], "negative or not finite"),
        ([IDS, {"11": 0, "22": 1, "33": 2}, MATRIX.astype(str)], "matrix of shape"),
    ],
)
def test_graph_pickles_that_do_not_fit(tmp_path, content, reason):
    with pytest.raises(DataError) as error:
        load("metr-la", write_metr(tmp_path, "11,22,33\n1,2,3\n", pickle.dumps(content)))
    assert Path(error.value.file).name == "adj_mx.pkl"
    assert reason in error.value.reason


# ------------------------------------------------------------------------------------------------ HDF5


def test_h5_without_h5py_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    put(tmp_path, adj_mx__pkl=graph_pickle())
    (tmp_path / "metr-la.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    with pytest.raises(DataError, match=r"pip install h5py.*to_csv\('metr-la.csv'\)"):
        load("metr-la", tmp_path)


def write_h5(path, values, index, columns, group="df", kind=b"datetime64"):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        table = file.create_group(group)
        table["axis0"], table["axis1"], table["block0_values"] = columns, index, values
        if kind:
            table["axis1"].attrs["kind"] = np.bytes_(kind)


@pytest.mark.parametrize(("kind", "unit"), [(b"datetime64", "ns"), (b"datetime64[us]", "us"), (None, "ns")])
@pytest.mark.parametrize("columns", [np.array(IDS, "S2"), np.array([11, 22, 33])])
def test_h5_by_hand(tmp_path, kind, unit, columns):
    put(tmp_path, adj_mx__pkl=graph_pickle())
    index = (np.datetime64("2012-03-01T00:10") + 5 * np.arange(2)).astype(f"datetime64[{unit}]").astype(np.int64)
    write_h5(tmp_path / "metr-la.h5", np.array([[1.0, 2, 3], [4, np.nan, 6]]), index, columns, "speed", kind)
    got = load("metr-la", tmp_path)
    assert got.readings.tolist() == [[1, 2, 3], [4, 0, 6]]
    assert (got.times.tolist(), got.origin, got.sensors.tolist()) == ([10, 15], "2012-03-01", IDS)
    assert (got.report.read, got.report.kept) == (2, 2)


def test_h5_that_is_something_else(tmp_path):
    put(tmp_path, adj_mx__pkl=graph_pickle())
    path, index = tmp_path / "metr-la.h5", np.arange(2) * 300 * 10**9
    cases = [
        (np.ones((2, 2)), index, np.array(IDS, "S2"), b"datetime64", "don't fit"),
        (np.ones((2, 3)), index, np.array(IDS, "S2"), b"integer", "and times"),
        (np.ones((2, 3)), index.astype(float), np.array(IDS, "S2"), b"datetime64", "and times"),
        (-np.ones((2, 3)), index, np.array(IDS, "S2"), b"datetime64", "row 0: a reading"),
    ]
    for values, times, columns, kind, reason in cases:
        write_h5(path, values, times, columns, kind=kind)
        with pytest.raises(DataError) as error:
            load("metr-la", tmp_path)
        assert reason in error.value.reason
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(DataError, match="not a whole HDF5 file"):
        load("metr-la", tmp_path)


NAT = np.datetime64("NaT")


@pytest.mark.parametrize(
    ("when", "reason"),
    [
        (NAT, "row 1: the time is missing (time NaT"),
        (np.datetime64("2012-03-01T00:05:30"), "row 1: the time is not a whole minute (time 2012-03-01T00:05:30"),
        (np.datetime64("2012-03-01T00:05:00.001"), "row 1: the time is not a whole minute"),
        (
            np.datetime64("2012-03-01T00:07"),
            "row 1: expected times every 5 minutes, as most are (time 2012-03-01T00:07",
        ),
    ],
)
def test_h5_times_that_are_none(tmp_path, when, reason):
    """As in a .csv, where such a time has its line."""
    put(tmp_path, adj_mx__pkl=graph_pickle())
    times = [np.datetime64("2012-03-01T00:00"), when, np.datetime64("2012-03-01T00:10")]
    index = np.array(times, "datetime64[ns]").astype(np.int64)
    write_h5(tmp_path / "metr-la.h5", np.array([[1.0, 2, 3], [9, 9, 9], [7, 8, 9]]), index, np.array(IDS, "S2"))
    with pytest.raises(DataError) as error:
        load("metr-la", tmp_path)
    assert reason in error.value.reason
    got = load("metr-la", tmp_path, errors="drop")
    assert (got.readings.tolist(), got.times.tolist()) == (LATER, [0, 5, 10])
    assert sum(got.report.dropped.values()) == 1 and adds_up(got.report)
    assert "time seen before" not in got.report.dropped


def test_h5_names_its_first_bad_row_whatever_is_wrong_with_it(tmp_path):
    put(tmp_path, adj_mx__pkl=graph_pickle())
    index = np.array([NAT, "2012-03-01T00:05", "2012-03-01T00:10"], "datetime64[ns]").astype(np.int64)
    write_h5(tmp_path / "metr-la.h5", np.array([[1.0, 2, 3], [9, 9, -9], [7, 8, 9]]), index, np.array(IDS, "S2"))
    with pytest.raises(DataError, match="row 0: the time is missing"):
        load("metr-la", tmp_path)
    got = load("metr-la", tmp_path, errors="drop").report
    assert got.dropped == {"a reading is not in 0 … 1000": 1, "the time is missing": 1} and got.kept == 1


def test_h5_as_pandas_writes_it(tmp_path):
    pd, _ = pytest.importorskip("pandas"), pytest.importorskip("tables")
    pytest.importorskip("h5py")
    put(tmp_path, adj_mx__pkl=graph_pickle())
    frame = pd.DataFrame(np.array([[1.0, 2, 3], [4, 5, 6]]), pd.date_range("2012-03-01", periods=2, freq="5min"), IDS)
    frame.to_hdf(tmp_path / "metr-la.h5", key="df", mode="w")
    got = load("metr-la", tmp_path)
    assert (got.readings.tolist(), got.times.tolist()) == ([[1, 2, 3], [4, 5, 6]], [0, 5])
    frame.to_hdf(tmp_path / "metr-la.h5", key="df", mode="w", format="table")
    with pytest.raises(DataError, match="fixed format"):
        load("metr-la", tmp_path)


# ------------------------------------------------------------------------------------------------ pickles


class Call:
    """Pickles into a call of ``function(*arguments)``."""

    def __init__(self, function, *arguments, state=None):
        self.parts = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.parts


class Persistent(pickle.Pickler):
    def persistent_id(self, obj):
        return "x" if obj == "outside" else None


def persistent(value):
    file = io.BytesIO()
    Persistent(file, protocol=2).dump(value)
    return file.getvalue()


def self_containing():
    value = []
    value.append(value)
    return value


def deep(depth):
    """Lists inside lists."""
    return b"\x80\x02" + b"]" * (depth + 1) + b"a" * depth + b"."


def array_state(shape, kind, raw, order=False):
    """A pickle of an array of that state, whatever it says."""
    rebuild = (np.empty(0).__reduce__()[0], (np.ndarray, (0,), b"b"), (1, shape, kind, order, raw))
    return pickle.dumps(Call(rebuild[0], *rebuild[1], state=rebuild[2]), protocol=4)


def malicious(mark):
    """Pickles that would do something, by name; ``mark`` is a file that those which act would make."""
    touch = f"touch {mark}"
    open_it = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    reconstruct = np.empty(0).__reduce__()[0]
    name = f"{reconstruct.__module__}\n_reconstruct\n".encode()
    array = b"c" + name + b"cnumpy\nndarray\n(I0\ntS'b'\ntR"
    return {
        "os.system": pickle.dumps(Call(os.system, touch)),
        "eval": pickle.dumps(Call(builtins.eval, open_it)),
        "exec": pickle.dumps(Call(builtins.exec, open_it)),
        "getattr": pickle.dumps(Call(getattr, "a", "upper")),
        "open": pickle.dumps(Call(builtins.open, str(mark), "w")),
        "inside": pickle.dumps([IDS, {"11": (0, [Call(os.system, touch)])}, MATRIX]),
        "reduce in a reduce": pickle.dumps(Call(np.dtype, Call(os.system, touch))),
        "reduce as an array's state": pickle.dumps(
            Call(reconstruct, np.ndarray, (0,), b"b", state=Call(eval, open_it))
        ),
        "after an array": pickle.dumps([MATRIX, Call(os.system, touch)]),
        "protocol 0": pickle.dumps(Call(os.system, touch), protocol=0),
        "INST": f"(S'{touch}'\nios\nsystem\n.".encode(),
        "OBJ": f"(cos\nsystem\nS'{touch}'\no.".encode(),
        "NEWOBJ": f"cos\nsystem\n(S'{touch}'\nt\x81.".encode("latin1"),
        "a class alone": b"cos\nsystem\n.",
        "array class": b"cnumpy\nndarray\n.",
        "ndarray(10**12)": b"cnumpy\nndarray\n(I1000000000000\ntR.",
        "dtype alone": pickle.dumps(np.dtype("f4")),
        "function changed": b"cnumpy\ndtype\n}S'kind'\nI1\nsb.",
        "function changed by slots": b"cnumpy\ndtype\n(N}S'kind'\nI1\nstb.",
        "class changed": b"cnumpy\nndarray\n}S'name'\nI1\nsb.",
        "extension": b"\x80\x02\x82\x01.",
        "persistent": persistent(["outside"]),
        "object array": pickle.dumps(np.array([{}, None], dtype=object)),
        "object array of calls": pickle.dumps(np.array([Call(os.system, touch)], dtype=object)),
        "structured array": pickle.dumps(np.zeros(2, dtype=[("a", "f4")])),
        "datetime array": pickle.dumps(np.zeros(2, dtype="datetime64[s]")),
        "matrix class": pickle.dumps(np.ma.masked_array([1, 2])),
        "numpy scalar": pickle.dumps(np.float64(3)),
        "set": pickle.dumps({1, 2}),
        "complex": pickle.dumps(1 + 2j),
        "bytearray": pickle.dumps(bytearray(b"ab")),
        "array without content": array + b".",
        "array too large": array_state((10**6, 10**6), np.dtype("f8"), b"ab"),
        "array of overflow": array_state((2**33, 2**33), np.dtype("f8"), b""),
        "array of negative shape": array_state((-1,), np.dtype("f8"), b"12345678"),
        "array of bool shape": array_state((True,), np.dtype("u1"), b"1"),
        "array of raw objects": array_state((1,), np.dtype("f8"), ["x"]),
        "array of type object": array_state((1,), np.dtype("O"), ["x"]),
        "type is no type": array_state((1,), "f8", b"12345678"),
        "zero-size items": array_state((10**9, 10**9), np.dtype("S0"), b""),
        "itself": pickle.dumps(self_containing()),
        "deep": deep(30),
        "deeper": deep(50_000),
        "memo": b"\x80\x02]r\xff\xff\xff\x7f.",
        "no pickle": b"11,22,33\n",
        "empty": b"",
        "only a stop": b".",
        "unhashable key": b"\x80\x02}]]s.",
        "bytes by another codec": b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",
    }


NAMES = list(malicious("x"))


@pytest.mark.parametrize("name", NAMES)
def test_malicious_pickles_are_refused_and_do_nothing(tmp_path, name):
    mark = tmp_path / "mark"
    content = malicious(mark)[name]
    with pytest.raises(DataError):
        load_arrays(content, "adj_mx.pkl")
    with pytest.raises(DataError) as error:
        load("metr-la", write_metr(tmp_path / "data", "11,22,33\n1,2,3\n", content))
    assert Path(error.value.file).name == "adj_mx.pkl"
    assert not mark.exists()


@pytest.mark.parametrize("name", ["INST", "OBJ", "NEWOBJ", "extension", "persistent", "memo"])
def test_some_pickles_are_refused_before_they_run(monkeypatch, name):
    monkeypatch.setattr(unpickle, "_Unpickler", None)
    with pytest.raises(DataError, match="refused: it (uses the opcode|numbers an object)"):
        unpickle.load_arrays(malicious("x")[name])


@pytest.mark.parametrize("name", ["array too large", "array of overflow", "zero-size items"])
def test_arrays_must_bring_their_bytes(name):
    with pytest.raises(DataError, match="refused: an array of .* bytes that brings"):
        load_arrays(malicious("x")[name])


def test_the_malicious_pickles_are_malicious(tmp_path):
    """The file does appear when pickle reads them: the test above tests something."""
    mark = tmp_path / "mark"
    for name in ("os.system", "eval", "exec", "inside", "INST", "OBJ", "after an array", "protocol 0"):
        pickle.loads(malicious(mark)[name])
        assert mark.exists()
        mark.unlink()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_pickles_of_every_protocol(protocol):
    arrays = [
        MATRIX,
        np.asfortranarray(MATRIX),
        MATRIX.astype(">f8"),
        np.arange(6).reshape(1, 2, 3)[:, ::-1],
        np.array([True, False]),
        np.array(["a", "bcd"]),
        np.array([b"a", b"bcd"]),
        np.array(5.0),
        np.zeros((0, 3)),
        np.array([1 + 2], dtype=np.uint8),
    ]
    value = {"ids": IDS, "none": None, "n": (1, -2, 3.5, True, 10**30), "arrays": arrays, "b": b"\x00\xff"}
    got = load_arrays(pickle.dumps(value, protocol=protocol))
    assert {key: got[key] for key in ("ids", "none", "n", "b")} == {
        key: value[key] for key in ("ids", "none", "n", "b")
    }
    for one, two in zip(got["arrays"], arrays, strict=True):
        np.testing.assert_array_equal(one, two)
        assert one.dtype == two.dtype


def test_what_is_shared_is_made_once():
    """Ten references to ten references to …: 10^18 ends in two hundred bytes, none of which may be walked twice."""
    value = [MATRIX]
    for _ in range(18):
        value = [value] * 10
    got = load_arrays(pickle.dumps(value))
    for _ in range(18):
        assert len(got) == 10 and got[0] is got[9]
        got = got[3]
    np.testing.assert_array_equal(got[0], MATRIX)
    value = []
    value.append((1, value))
    with pytest.raises(DataError, match="containers inside containers without end"):
        load_arrays(pickle.dumps(value))


def python_2(ids, matrix):
    """What Python 2's cPickle writes for [ids, id to index, matrix] with protocol 2: byte strings throughout."""

    def string(value):
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value

    ids = [name.encode() for name in ids]
    parts = [b"\x80\x02](](", *(string(name) for name in ids), b"e}("]
    parts += [string(name) + b"K" + bytes([n]) for n, name in enumerate(ids)]
    parts += [b"ucnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"]
    parts += [b"(K\x01K\x03K\x03\x86cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xff"]
    parts += [b"J\xff\xff\xff\xffK\x00tb\x89", string(matrix.astype("<f4").tobytes()), b"tbe."]
    return b"".join(parts)


def test_pickles_of_python_2(tmp_path):
    content = python_2(IDS, MATRIX)
    np.testing.assert_array_equal(pickle.loads(content, encoding="latin1")[2], MATRIX)  # it is what it claims to be
    got = load("metr-la", write_metr(tmp_path, "11,22,33\n1,2,3\n", content))
    assert edges_of(got)[(1, 2)] == 0.25
    large = np.arange(900, dtype=np.float32).reshape(30, 30)
    content = python_2(IDS, MATRIX).replace(b"U" + bytes([36]) + MATRIX.tobytes(), b"T" + struct.pack("<i", 3600))
    assert large.nbytes == 3600
    with pytest.raises(DataError):  # the bytes are not there
        load_arrays(content)


def test_pickles_cut_short_or_altered():
    """Every prefix is refused; 3,000 altered pickles are read or refused, and nothing else ever happens."""
    content = graph_pickle()
    for n in range(len(content)):
        with pytest.raises(DataError):
            load_arrays(content[:n])
    rng, read = np.random.default_rng(0), 0
    for protocol in (2, 4, 5):
        content = np.frombuffer(graph_pickle(protocol=protocol), np.uint8)
        for _ in range(1000):
            other = content.copy()
            places = rng.integers(len(other), size=rng.integers(1, 4))
            other[places] = rng.integers(256, size=len(places))
            try:
                load_arrays(other.tobytes())
                read += 1
            except DataError:
                pass
    assert 0 < read < 3000


# ------------------------------------------------------------------------------------------------ Patent


def scaled(date):
    """A date as the file writes it."""
    return repr((date - 19_750_318) / 240_910)


def write_patent(folder, edges, labels):
    return put(folder, patent__txt="".join(f"{s} {d} {scaled(t)}\n" for s, d, t in edges), node2label__txt=labels)


CITES = [(10, 20, 19750318), (30, 20, 19750401), (40, 20, 19751231), (40, 50, 19751231), (60, 40, 19991228)]
LABELS = "10 1\n20 6\n30 2\n40 3\n50 4\n60 5\n"


def test_patent_by_hand(tmp_path):
    got = load("patent", write_patent(tmp_path, CITES, LABELS))
    # 18 March is day 76 of 90; 1 April begins a quarter; 31 December is day 91 of 92; 28 December day 88 of 92
    expected = [76 / 90, 1.0, 3 + 91 / 92, 3 + 91 / 92, 99 + 88 / 92]
    np.testing.assert_allclose(got.graph.times.numpy(), expected, rtol=1e-14)
    assert got.graph.src.tolist() == [0, 2, 3, 3, 5]
    assert got.graph.dst.tolist() == [1, 1, 1, 4, 3]
    assert got.labels.tolist() == [0, 5, 1, 2, 3, 4]
    assert got.step.tolist() == [0, 0, 1, 3, 3, 99]  # of the first edge at either end
    two = np.log(2)
    made = [two, 0, two, np.log(3), 0, two]
    received = [0, two, 0, 0, two, 0]  # 20 has one by the end of its step, 40 has none by the end of its own
    np.testing.assert_allclose(got.features[:, 0], made, rtol=1e-6)
    np.testing.assert_allclose(got.features[:, 1], received, rtol=1e-6)
    assert got.features[:, 2].tolist() == [1, 0, 1, 1, 0, 1]
    classes = np.zeros((6, 6))
    classes[2, 5] = classes[3, 5] = two  # 30 and 40 cite 20, of class 5, which was there before
    classes[5, 2] = two  # 60 cites 40, of class 2
    np.testing.assert_allclose(got.features[:, 3:], classes, rtol=1e-6)
    assert (got.report.read, got.report.kept, got.report.dropped) == (11, 11, {})


def test_patent_known_until(tmp_path):
    write_patent(tmp_path, CITES, LABELS)
    got = load("patent", tmp_path, known_until=0)
    assert got.features[2, 3 + 5] > 0  # the class of 20, step 0, is known
    assert got.features[5, 3:].max() == 0  # that of 40, step 3, is not
    assert load("patent", tmp_path, known_until=None).features.shape == (6, 3)
    with pytest.raises(ValueError, match="known_until"):
        load("patent", tmp_path, known_until=1.5)


def test_patent_nothing_of_the_future_is_used(tmp_path):
    """Without the edges and labels after a step, the nodes up to it are what they were."""
    rng = np.random.default_rng(0)
    days = np.arange("1975-03-18", "1999-12-28", dtype="datetime64[D]")
    when = sorted(int(str(day).replace("-", "")) for day in rng.choice(days, 300))
    edges = [(int(rng.integers(150)), int(rng.integers(150)), t) for t in when]
    labels = {n: 1 + int(rng.integers(6)) for n in range(150)}
    everything = load("patent", write_patent(tmp_path / "a", edges, "".join(f"{n} {k}\n" for n, k in labels.items())))
    nodes = sorted({n for s, d, _ in edges for n in (s, d)})
    for step in (10, 40, 80):
        last = 1975 * 10_000 + (step // 4) * 10_000 + 300 * (step % 4) + 331  # no later than the quarter's last day
        past = [edge for edge in edges if edge[2] <= last]
        seen = {n for s, d, _ in past for n in (s, d)}
        assert seen == {n for n, when in zip(nodes, everything.step, strict=True) if when <= step}
        text = "".join(f"{n} {k}\n" for n, k in labels.items() if n in seen)
        then = load("patent", write_patent(tmp_path / str(step), past, text))
        kept = everything.step <= step
        np.testing.assert_array_equal(then.features, everything.features[kept])
        np.testing.assert_array_equal(then.step, everything.step[kept])


@pytest.mark.parametrize(
    ("edges", "labels", "file", "line", "reason"),
    [
        ("1 2 0.0\n1 2\n", LABELS, "patent.txt", 2, "expected 3 fields"),
        ("1 2 0.0\n1 2 1.5\n", LABELS, "patent.txt", 2, "time is not in 0 … 1"),
        ("1 2 -0.1\n", LABELS, "patent.txt", 1, "time is not in 0 … 1"),
        ("1 2 0.0\n1 2 0.000001\n", LABELS, "patent.txt", 2, "not a date on the file's scale"),
        (f"1 2 0.0\n1 2 {scaled(19750431)}\n", LABELS, "patent.txt", 2, "the date that time stands for"),
        ("a 2 0.0\n", LABELS, "patent.txt", 1, "src is not a whole number"),
        ("", LABELS, "patent.txt", None, "empty"),
        ("\n", LABELS, "patent.txt", None, "no edge could be read"),
        ("1 2 0.0\n", "1 7\n", "node2label.txt", 1, "label is not in 1 … 6"),
        ("1 2 0.0\n", "1 0\n", "node2label.txt", 1, "label is not in 1 … 6"),
        ("1 2 0.0\n", "1 1\n2\n", "node2label.txt", 2, "expected 2 fields"),
    ],
)
def test_patent_names_file_and_line(tmp_path, edges, labels, file, line, reason):
    with pytest.raises(DataError) as error:
        load("patent", put(tmp_path, patent__txt=edges, node2label__txt=labels))
    assert (Path(error.value.file).name, error.value.line) == (file, line)
    assert reason in error.value.reason


def test_patent_counts_what_it_drops(tmp_path):
    edges = "1 2 0.0\n1 2 0.0\n1 2 1.0\n"
    got = load("patent", put(tmp_path, patent__txt=edges, node2label__txt="1 1\n1 2\n9 1\n"))
    assert got.report.dropped == {
        "edge seen before": 1,
        "label of a node without an edge": 1,
        "label of a node labelled before": 1,
    }
    assert (got.report.read, got.report.kept) == (6, 3)
    assert got.labels.tolist() == [0, -1]
    assert got.graph.num_edges == 2


# ------------------------------------------------------------------------------------------------ the real files


def real(*names):
    root = os.environ.get("EASYDGL_DATA")
    if not root:
        pytest.skip("EASYDGL_DATA is not set: it names the folder of the real data")
    folder = Path(root).joinpath(*names)
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    return folder


def test_the_real_patents():
    got = load("patent", real("patent"))
    assert (got.graph.num_nodes, got.graph.num_edges) == (12_214, 41_916)
    assert len(np.unique(got.graph.times)) == 891
    assert np.bincount(got.labels).tolist() == [3347, 2634, 3796, 933, 769, 735]
    assert (got.report.read, got.report.dropped) == (54_130, {})
    share = [np.mean(got.step <= 95), np.mean(got.step == 96), np.mean(got.step >= 97)]
    assert np.round(share, 2).tolist() == [0.67, 0.13, 0.2]


def test_the_real_patents_are_granted_on_tuesdays():
    """That the times are dates is a guess until the weekdays say so: no other reading gives 891 Tuesdays."""
    text = np.loadtxt(real("patent") / "patent.txt")[:, 2]
    dates = np.unique(patent.FIRST + np.round(text * patent.SPAN).astype(int))
    days = np.array([f"{d // 10_000:04d}-{d // 100 % 100:02d}-{d % 100:02d}" for d in dates], "datetime64[D]")
    assert len(days) == 891
    assert set((days.astype(int) + 3) % 7) == {1}  # Monday is 0
    assert (str(days[0]), str(days[-1])) == ("1975-03-18", "1999-12-28")


def test_the_real_week_of_metr_la():
    folder = real("metr-la-week")
    got = load("metr-la", folder)
    assert got.readings.shape == (2016, 207)
    assert got.graph.num_edges == 1722
    assert round(float(got.readings.mean()), 1) == 58.9
    assert (got.origin, got.times[-1]) == ("2012-03-01", 5 * 2015)
    with open(folder / "adj_mx.pkl", "rb") as file:  # a file we know
        ids, _, matrix = pickle.load(file, encoding="latin1")
    assert got.sensors.tolist() == ids
    src, dst = np.nonzero(matrix)
    assert got.graph.src.tolist() == src.tolist()
    assert got.graph.dst.tolist() == dst.tolist()
    np.testing.assert_array_equal(got.graph.weights, matrix[src, dst])
