"""Simulated raw files: what a loader reads back is what was simulated, as far as the format can hold it."""

import dataclasses
import datetime
import doctest
import pickle

import numpy as np
import pytest

from easydgl_mini import data, simulate
from easydgl_mini.data import metr_la, raw, unpickle

NAMES = ("netflix", "tmall", "koubei", "elliptic", "metr-la")
DAY = 86_400


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All five at tiny scale, seed 3."""
    root = tmp_path_factory.mktemp("raw")
    for name in NAMES:
        raw.write_raw(name, "tiny", root / name, seed=3)
    return root


@pytest.mark.parametrize("module", [raw, metr_la, unpickle])
def test_examples_in_the_docstrings(module):
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


# ------------------------------------------------------------------------------------------------ text from numbers


def lines(*columns):
    return raw.join(*columns, b"\n").tobytes().decode().splitlines()


@pytest.mark.parametrize("top", [9, 10, 99_999, 2**31, 10**15])
def test_digits_are_those_of_python(top):
    values = np.random.default_rng(0).integers(0, top, 500)
    values[:4] = [0, top, top - 1, 1]
    values = np.append(values, 10 ** np.arange(len(str(top)) - 1))
    assert lines(raw.digits(values)) == [str(value) for value in values.tolist()]
    assert lines(raw.digits(values, 18)) == [f"{value:018d}" for value in values.tolist()]


def test_digits_of_nothing_but_zeros():
    assert lines(raw.digits(np.zeros(3, int))) == ["0", "0", "0"]


@pytest.mark.parametrize("places", [1, 4, 6])
def test_decimals_are_those_of_python(places):
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.normal(size=500) * 10.0 ** rng.integers(-7, 5, 500), [0, -1, 1, 999.9999999, -0.05]])
    grid = np.rint(values * 10**places)
    expected = [f"{x / 10**places:.{places}f}" for x in grid.tolist()]
    expected = [text.replace("-0." + "0" * places, "0." + "0" * places) for text in expected]  # no negative zero
    assert lines(raw.decimals(values, places)) == expected


# ------------------------------------------------------------------------------------------------ round trips


def simulated(name, seed=3):
    """(user, item, day) of the market, days since 1970, in order of user and time; truth."""
    size = raw.MARKETS[name]["tiny"]
    user, item, day, truth = raw.market(size, seed)
    start = (datetime.date.fromisoformat(size.start) - datetime.date(1970, 1, 1)).days
    return user.astype(int), item.astype(int), day.astype(int) + start, truth


@pytest.mark.parametrize("name", ["netflix", "tmall", "koubei"])
def test_events_come_back(folder, name):
    """Every event with its user, item and day, tied ones in order (but in Netflix, whose lines are by film)."""
    user, item, day, _ = simulated(name)
    truth = np.load(folder / name / "truth.npz")
    log = data.load(name, folder, cache=False, min_user=1, min_item=1, duplicates="keep")
    found = np.stack([log.user_names[log.user], log.item_names[log.item], log.time / DAY])
    planted = np.stack([truth["user_ids"][user], truth["item_ids"][item], day])
    if name == "netflix":
        found, planted = (x[:, np.lexsort((x[1], x[2], x[0]))] for x in (found, planted))
    np.testing.assert_array_equal(found, planted)
    assert log.num_users == len(truth["mu"]) == user.max() + 1
    others = {"another action": int(truth["other_actions"])} if name == "tmall" else {}
    assert log.report.dropped == others
    assert log.report.kept == len(user)


@pytest.mark.parametrize(("name", "least"), [("netflix", 1), ("tmall", 10), ("koubei", 5)])
def test_the_loaders_filters_leave_the_size_that_was_asked_for(folder, name, least):
    log, size = data.load(name, folder, cache=False), raw.MARKETS[name]["tiny"]
    assert size.least == least
    assert (log.num_users, log.num_items) == (size.users, size.items)
    assert np.bincount(log.user).min() >= least


def test_netflix_line_by_line(folder):
    """Read the files with a few lines of Python: each film once, in order, over four files."""
    user, item, day, _ = simulated("netflix")
    films, rows = [], []
    for n in (1, 2, 3, 4):
        first = len(films)
        for line in (folder / f"netflix/combined_data_{n}.txt").read_text().splitlines():
            if line.endswith(":"):
                films.append(int(line[:-1]))
            else:
                customer, rating, date = line.split(",")
                assert rating in "12345"
                rows.append((int(customer), films[-1], datetime.date.fromisoformat(date).toordinal() - 719_163))
        assert len(films) > first
    assert films == (np.unique(item) + 1).tolist()
    truth = np.load(folder / "netflix/truth.npz")
    assert sorted(rows) == sorted(zip(truth["user_ids"][user], item + 1, day, strict=True))


def test_netflix_in_small_pieces_is_the_same(folder, tmp_path, monkeypatch):
    """However many lines are written at a time; ratings are drawn along the way, so they are left out."""
    monkeypatch.setattr(raw, "ROWS", 100)
    raw.write_raw("netflix", "tiny", tmp_path / "netflix", seed=3)
    monkeypatch.undo()
    for n in (1, 2, 3, 4):
        one, two = (
            [line.split(",")[::2] for line in (root / f"netflix/combined_data_{n}.txt").read_text().splitlines()]
            for root in (folder, tmp_path)
        )
        assert one == two


@pytest.mark.parametrize("name", ["tmall", "koubei"])
def test_other_files_in_small_pieces_are_the_same(folder, tmp_path, monkeypatch, name):
    monkeypatch.setattr(raw, "ROWS", 1000)
    raw.write_raw(name, "tiny", tmp_path / name, seed=3)
    for path in (folder / name).iterdir():
        if path.suffix != ".npz":
            assert path.read_bytes() == (tmp_path / name / path.name).read_bytes()


def test_transactions_come_back(folder):
    world, got = simulate.ledger("tiny", seed=3), data.load("elliptic", folder, cache=False)
    np.testing.assert_array_equal(got.labels, world.labels)
    np.testing.assert_array_equal(got.step, world.step)
    rounded = (np.rint(world.features.astype(np.float64) * 1e6) / 1e6).astype(np.float32)
    np.testing.assert_array_equal(got.features, rounded)
    src, dst = raw.payments(world)
    assert got.graph.src.tolist() == src.tolist()
    assert got.graph.dst.tolist() == dst.tolist()
    np.testing.assert_array_equal(got.graph.times, world.graph.times.floor() + 0.5)  # the step is what is left
    assert not got.report.dropped


def test_payments_are_those_of_the_ledger_but_each_pair_once():
    for seed in range(5):
        world = simulate.ledger("tiny", seed=seed)
        src, dst = raw.payments(world)
        old_src, old_dst = (end.numpy() for end in world.graph.edges())
        pairs = list(zip(src.tolist(), dst.tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)
        np.testing.assert_array_equal(src, old_src)
        first, moved = set(), dst != old_dst
        for n, pair in enumerate(zip(old_src.tolist(), old_dst.tolist(), strict=True)):
            assert not moved[n] or pair in first  # only what had come before is moved
            first |= {pair, pairs[n]}
        assert 0 < moved.sum() < 100
        np.testing.assert_array_equal(world.step[dst], world.step[src])
        assert not np.isin(dst[moved], src).any()  # whoever pays others is still paid at most once


def test_readings_come_back(folder):
    world, got = simulate.freeway("tiny", seed=3), data.load("metr-la", folder, cache=False)
    expected = (np.rint(world.readings.astype(np.float64) * 1e4) / 1e4).astype(np.float32)
    np.testing.assert_array_equal(got.readings, expected)
    np.testing.assert_array_equal(got.readings == 0, world.truth.missing)
    np.testing.assert_array_equal(got.times, world.times)
    assert (got.origin, datetime.date.fromisoformat(got.origin).weekday()) == ("2012-03-05", 0)
    links = got.graph.select(got.graph.src != got.graph.dst)
    assert links.src.tolist() == world.graph.src.tolist()
    assert links.dst.tolist() == world.graph.dst.tolist()
    np.testing.assert_array_equal(links.weights, world.graph.weights.float())
    assert got.graph.num_edges == world.graph.num_edges + 24
    with open(folder / "metr-la/adj_mx.pkl", "rb") as file:
        assert pickle.load(file)[0] == got.sensors.tolist()


# ------------------------------------------------------------------------------------------------ the market


def test_weekdays_and_popularity_are_as_planted():
    """Events per group and weekday follow the factors of the truth, so day 0 is a Monday; items follow popularity."""
    size = dataclasses.replace(raw.MARKETS["netflix"]["small"], strength=0.0, users=1500)
    _, item, day, truth = raw.market(size, 0)
    group = truth["group"][item]
    counts = np.zeros((size.groups, 7))
    np.add.at(counts, (group, day % 7), 1)
    share = counts / counts.mean(axis=1, keepdims=True)
    error = 3 / np.sqrt(counts.mean(axis=1, keepdims=True))  # nothing excites: Poisson counts
    assert (np.abs(share - truth["weekday"]) < 1.5 * error).all()
    flat = dataclasses.replace(size, even=1.0)
    _, item, _, truth = raw.market(flat, 0)
    np.testing.assert_allclose(truth["popularity"], 1 / 200)
    assert np.datetime64(size.start).astype(datetime.date).weekday() == 0


def test_excitation_is_planted():
    """Of the events within an hour of one of group j, many more are of group j + 1 than of j - 1."""
    size = raw.MARKETS["netflix"]["small"]
    user, item, day, truth = raw.market(size, 0)
    group, K = truth["group"][item], size.groups
    near = (user[1:] == user[:-1]) & (day[1:] == day[:-1])
    step = (group[1:] - group[:-1])[near] % K
    assert (step == 1).sum() > 5 * (step == K - 1).sum()
    assert truth["excitation"][1, 0] > 0 > truth["excitation"][K - 1, 0]


def test_the_file_ends_with_the_user_who_makes_it_enough():
    size = dataclasses.replace(raw.MARKETS["koubei"]["tiny"], users=900)
    user, item, _, truth = raw.market(size, 0)
    counts = np.bincount(user)
    assert (counts >= size.least).sum() == 900
    assert counts[-1] >= size.least
    assert counts.min() >= 1 and len(counts) == len(truth["mu"])
    other = raw.market(size, 1)
    assert len(other[1]) != len(item) or (other[1] != item).any()


def test_activity_is_that_of_the_truth():
    """Rows of mu belong to the users of the file: without excitation events per user are Poisson of mean Σ mu."""
    size = dataclasses.replace(raw.MARKETS["netflix"]["small"], strength=0.0, users=1500)
    user, _, _, truth = raw.market(size, 0)
    counts, expected = np.bincount(user), truth["mu"].sum(axis=1) * 168 * size.weeks
    score = (counts - expected) / np.sqrt(expected)
    assert abs(score[expected > 5].mean()) < 0.1
    assert score[expected > 5].std() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "per_user"),
    [
        ("netflix", 497_959, 100_444_166, 209.2),
        ("tmall", 342_373, 7_632_826, 23.8),
        ("koubei", 223_044, 1_828_250, 8.59),
    ],
)
def test_full_scale_has_the_papers_sizes(name, nodes, edges, per_user):
    """Nodes exactly; events per user on a sample of users, to 4 %."""
    size = raw.MARKETS[name]["full"]
    assert size.users + size.items == nodes
    assert round(edges / size.users, 1) == pytest.approx(per_user, abs=0.1)
    sample = dataclasses.replace(size, users=1_000 if name == "netflix" else 4_000)
    counts = np.bincount(raw.market(sample, 0)[0])
    assert counts[counts >= size.least].mean() == pytest.approx(per_user, rel=0.04)
    days = np.datetime64(size.start) + np.arange(7 * size.weeks)
    spans = {"netflix": ("1999-11-11", "2005-12-31"), "tmall": ("2014-05-11", "2014-11-12")}
    first, last = spans.get(name, ("2015-07-01", "2015-11-30"))
    assert np.datetime64(first) <= days[0] and days[-1] <= np.datetime64(last)


# ------------------------------------------------------------------------------------------------ the folder


@pytest.mark.parametrize("name", NAMES)
def test_the_folder_says_that_it_is_simulated(folder, name):
    text = (folder / name / "README.txt").read_text()
    assert text.startswith("Simulated, not observed")
    assert f"simulate {name} --scale tiny --seed 3" in text
    assert all(path.name in text for path in (folder / name).iterdir() if path.name != "README.txt")


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_bytes(folder, tmp_path, name):
    written = raw.write_raw(name, "tiny", tmp_path / "again", seed=3)
    assert sorted(written) == sorted(path.name for path in (folder / name).iterdir())
    for path in (folder / name).iterdir():
        if path.suffix != ".npz":  # an archive holds the time of writing
            assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name
    main = max((folder / name).iterdir(), key=lambda path: path.stat().st_size if path.suffix != ".npz" else 0)
    raw.write_raw(name, "tiny", tmp_path / "other", seed=4)
    assert main.read_bytes() != (tmp_path / "other" / main.name).read_bytes()


def test_bad_arguments(tmp_path):
    for arguments, word in [
        (("movielens", "tiny", tmp_path / "a"), "name"),
        (("netflix", "huge", tmp_path / "a"), "scale"),
        (("netflix", "tiny", None), "out"),
    ]:
        with pytest.raises(ValueError, match=f"{word} must be"):
            raw.write_raw(*arguments)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("mine")
    for name in ("file", "full"):
        with pytest.raises(ValueError, match="out must be a new folder"):
            raw.write_raw("koubei", "tiny", tmp_path / name)
    assert (tmp_path / "full/mine").read_text() == (tmp_path / "file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full"]
    (tmp_path / "empty").mkdir()
    raw.write_raw("koubei", "tiny", tmp_path / "empty")
    raw.write_raw("koubei", "tiny", tmp_path / "deep/er")


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def broken(folder, scale, seed):
        (folder / "ijcai2016_koubei_train").write_text("1,2,3,20150706\n")
        assert not (tmp_path / "koubei").exists()
        raise KeyboardInterrupt

    monkeypatch.setitem(raw.WRITERS, "koubei", broken)
    with pytest.raises(KeyboardInterrupt):
        raw.write_raw("koubei", "tiny", tmp_path / "koubei")
    assert list(tmp_path.iterdir()) == []
