"""The loop: same seed same weights, two processes as one, a killed run resumed to the last bit."""

import csv
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import easydgl_mini as em
from easydgl_mini.train import FitConfig, LinkPredictor, NodeClassifier, TrafficForecaster, fit
from easydgl_mini.train.fit import CHECKPOINT, batches_of


class Net(nn.Module):
    """A small regression with dropout, so that random states matter."""

    def __init__(self, dropout=0.3):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x).squeeze(-1)


class Task:
    terms, metric, larger = {"loss": 1.0, "size": 0.0}, "error", False

    def __init__(self, spoil=None):
        self.spoil = spoil  # (epoch, sample): where the loss becomes nan

    def size(self, train):
        return len(train[0])

    def loss(self, model, train, ids, seed, epoch):
        x, y = train[0][ids], train[1][ids]
        each = (model(x) - y).square()
        if self.spoil is not None and epoch == self.spoil[0] and (ids == self.spoil[1]).any():
            each = each * math.nan
        return {"loss": (each.sum(), len(ids)), "size": (model(x).detach().abs().sum(), len(ids))}

    def evaluate(self, model, valid):
        return {"error": (model(valid[0]) - valid[1]).square().mean().item()}


def data(n=50):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2 * n, 3, generator=draw)
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.randn(2 * n, generator=draw)
    return (x[:n], y[:n]), (x[n:], y[n:])


def net(**kwargs):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Net(**kwargs)


def trained(task=None, model=None, valid=True, **config):
    model = model or net()
    train, held_out = data()
    settings = {"epochs": 6, "batch_size": 8, "lr": 0.01, "patience": None} | config
    result = fit(model, task or Task(), (train, held_out if valid else None), FitConfig(**settings))
    return result, [p.detach().clone() for p in model.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_it_learns_and_its_history_says_so(tmp_path):
    result, _ = trained(model=net(dropout=0.0), epochs=25, checkpoint=tmp_path)
    errors = [row["error"] for row in result.history]
    assert errors[-1] < 0.25 * errors[0] and result.stopped == "epochs"
    assert result.best_metric == min(errors) and result.best_epoch == 1 + errors.index(min(errors))
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [float(row["error"]) for row in rows] == errors and rows[0].keys() == result.history[0].keys()


def test_one_epoch_is_adam_on_global_means_by_hand():
    """One batch, no dropout: the step is Adam's on the plain mean loss, with weight decay, clipped."""
    model, by_hand = net(dropout=0.0), net(dropout=0.0)
    (x, y), _ = data()
    optimiser = torch.optim.Adam(by_hand.parameters(), lr=0.01, weight_decay=0.1)
    (by_hand(x) - y).square().mean().backward()
    norm = nn.utils.clip_grad_norm_(by_hand.parameters(), 0.5)
    assert norm > 0.5
    optimiser.step()
    trained(model=model, epochs=1, batch_size=50, valid=False, weight_decay=0.1, clip=0.5)
    for a, b in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_term_of_weight_zero_is_reported_only():
    result, weights = trained(epochs=2)
    assert result.history[0]["train_size"] > 0
    task = Task()
    task.terms = {"loss": 1.0}
    assert same(weights, trained(task, epochs=2)[1])


def test_same_seed_same_weights_and_nothing_else_is_touched():
    state = torch.get_rng_state()
    first = trained()[1]
    assert torch.equal(state, torch.get_rng_state())
    torch.rand(5)
    assert same(first, trained()[1]) and not same(first, trained(seed=1)[1])


def test_every_epoch_sees_every_sample_once_in_an_order_of_its_own():
    class Watch(Task):
        def loss(self, model, train, ids, seed, epoch):
            seen.setdefault(epoch, []).extend(ids.tolist())
            return super().loss(model, train, ids, seed, epoch)

    seen = {}
    trained(Watch(), epochs=3)
    assert all(sorted(order) == list(range(50)) for order in seen.values())
    assert seen[0] != seen[1] != seen[2] != list(range(50))


def test_batches_by_length_have_every_sample_once_and_little_padding():
    lengths = torch.randint(1, 31, (10_007,), generator=torch.Generator().manual_seed(0))
    made = []
    for seed in (1, 2):
        draw = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(lengths), generator=draw)
        assert [b.tolist() for b in batches_of(order, 64)] == [b.tolist() for b in order.split(64)]
        batches = batches_of(order, 64, lengths, draw)
        assert sorted(map(len, batches)) == sorted(map(len, order.split(64)))
        assert torch.equal(torch.cat(batches).sort().values, torch.arange(len(lengths)))
        padded = sum(len(b) * int(lengths[b].max()) for b in batches)
        assert padded < 1.05 * lengths.sum()  # in any order it would be 1.9 times
        means = torch.stack([lengths[b].double().mean() for b in batches])
        assert abs(torch.corrcoef(torch.stack([means, torch.arange(len(means)).double()]))[0, 1]) < 0.3  # no trend
        made.append(batches)
    assert [b.tolist() for b in made[0]] != [b.tolist() for b in made[1]]


def test_the_best_weights_are_restored_and_patience_stops():
    class Rising(Task):
        values = iter([5.0, 3.0, 4.0, 3.0, 9.0, 1.0])

        def evaluate(self, model, valid):
            kept.append([p.clone() for p in model.parameters()])
            return {"error": next(self.values)}

    kept = []
    result, weights = trained(Rising(), patience=3)
    assert (result.stopped, result.best_epoch, result.best_metric, len(kept)) == ("patience", 2, 3.0, 5)
    assert same(weights, kept[1])  # an equal metric is not a better one


def test_larger_can_be_better():
    class Score(Task):
        larger = True
        values = iter([1.0, 3.0, 3.0])

        def evaluate(self, model, valid):
            return {"error": next(self.values)}

    assert trained(Score(), epochs=3)[0].best_epoch == 2


def test_cosine_schedule_ends_at_zero():
    rates = {}
    for schedule in ("cosine", "constant"):
        config = FitConfig(epochs=4, schedule=schedule, lr=0.1, batch_size=50)
        run = sys.modules["easydgl_mini.train.fit"]._Run(net(), Task(), config, 0, 1, torch.device("cpu"))
        rates[schedule] = []
        for _ in range(4):
            rates[schedule].append(run.optimiser.param_groups[0]["lr"])
            run.train_epoch(data()[0])
    half = math.sqrt(0.5)
    np.testing.assert_allclose(rates["cosine"], [0.1, 0.05 * (1 + half), 0.05, 0.05 * (1 - half)])
    assert run.optimiser.param_groups[0]["lr"] == 0.1 and rates["constant"] == [0.1] * 4


def test_bf16_trains():
    result, weights = trained(precision="bf16", epochs=10)
    assert result.history[-1]["error"] < result.history[0]["error"] and weights[0].dtype == torch.float32


@pytest.mark.parametrize(("again", "schedule"), [(1, "constant"), (3, "cosine"), (5, "constant")])
def test_resume_after_any_epoch_is_bit_identical(tmp_path, again, schedule):
    class Stops(Task):
        def evaluate(self, model, valid):
            calls.append(1)
            if len(calls) > again:
                raise KeyboardInterrupt
            return super().evaluate(model, valid)

    calls = []
    expected, weights = trained(checkpoint=tmp_path / "a", schedule=schedule)
    with pytest.raises(KeyboardInterrupt):
        trained(Stops(), checkpoint=tmp_path / "b", schedule=schedule)
    result, resumed = trained(checkpoint=tmp_path / "b", resume=True, model=Net(), schedule=schedule)
    assert same(weights, resumed) and result.history == expected.history
    assert (tmp_path / "a" / "log.csv").read_text() == (tmp_path / "b" / "log.csv").read_text()


def test_seconds_add_up_over_interruptions(tmp_path):
    """What a checkpoint says was spent is what came before it and what came since."""
    path = tmp_path / "checkpoint.pt"
    begun = time.time()
    result, _ = trained(checkpoint=tmp_path, epochs=1)
    state = torch.load(path, weights_only=True)
    assert not result.earlier and 0 < state["spent"]["seconds"] <= time.time() - begun
    torch.save(state | {"spent": {"seconds": 1000.0, "processor_seconds": 500.0}}, path)
    result, _ = trained(checkpoint=tmp_path, resume=True, model=Net(), epochs=2)
    assert result.earlier == {"seconds": 1000.0, "processor_seconds": 500.0}
    spent = torch.load(path, weights_only=True)["spent"]
    assert 1000 < spent["seconds"] < 1100 and 500 < spent["processor_seconds"] < 600


def test_resume_without_a_checkpoint_starts_and_after_the_end_does_nothing(tmp_path):
    _, weights = trained(checkpoint=tmp_path, resume=True)
    stamp = (tmp_path / CHECKPOINT).stat().st_mtime_ns
    assert same(weights, trained(checkpoint=tmp_path, resume=True, model=Net())[1])
    assert stamp == (tmp_path / CHECKPOINT).stat().st_mtime_ns


def test_resume_refuses_other_settings_and_a_missing_folder(tmp_path):
    trained(checkpoint=tmp_path, epochs=1)
    with pytest.raises(ValueError, match="lr is 0.5"):
        trained(checkpoint=tmp_path, resume=True, lr=0.5)
    with pytest.raises(ValueError, match="checkpoint"):
        trained(resume=True)


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:1000], lambda b: b"no archive", lambda b: b[200:]])
def test_a_damaged_checkpoint_is_refused_in_words(tmp_path, damage):
    trained(checkpoint=tmp_path, epochs=1)
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"checkpoint\.pt is damaged, .*; delete it to train again"):
        trained(checkpoint=tmp_path, resume=True)


def test_nan_names_the_batch_the_epoch_and_the_last_good_checkpoint(tmp_path):
    with pytest.raises(FloatingPointError) as error:
        trained(Task(spoil=(2, 17)), checkpoint=tmp_path)
    text = str(error.value)
    for part in ("the loss is nan in epoch 3", "of 7", str(tmp_path / CHECKPOINT), "after epoch 2"):
        assert part in text
    state = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    assert state["epoch"] == 2 and all(torch.isfinite(x).all() for x in state["model"].values())
    assert same(trained()[1], trained(checkpoint=tmp_path, resume=True)[1])  # mended, it goes on as if nothing was


def test_an_infinite_gradient_stops_too():
    class Steep(Task):
        def loss(self, model, train, ids, seed, epoch):
            first = next(model.parameters()).reshape(-1)[0]
            return {"loss": (torch.sqrt(first - first.detach()), 1)}  # 0, with slope infinity

    with pytest.raises(FloatingPointError, match="gradient"):
        trained(Steep())


def test_no_progress_unless_asked_or_on_a_terminal(capfd, monkeypatch):
    trained(epochs=2)
    assert capfd.readouterr() == ("", "")
    trained(epochs=2, progress=True)
    out, err = capfd.readouterr()
    assert out == "" and "loss=" in err and "error=" in err and "epoch=2" in err and "14/14" in err


def test_a_torn_write_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    trained(epochs=1, checkpoint=tmp_path)
    old = (tmp_path / CHECKPOINT).read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError):
        trained(epochs=2, checkpoint=tmp_path)
    assert (tmp_path / CHECKPOINT).read_bytes() == old
    assert sorted(path.name for path in tmp_path.iterdir()) == [CHECKPOINT, "log.csv"]  # and nothing half-written


@pytest.mark.parametrize(
    "bad",
    [
        {"epochs": 0},
        {"batch_size": 2.5},
        {"lr": math.nan},
        {"clip": -1.0},
        {"schedule": "warm"},
        {"precision": "fp8"},
        {"seed": -1},
        {"patience": 0},
    ],
)
def test_bad_settings_are_named(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        FitConfig(**bad)


# --- real processes

KILLER = """
    import os, signal, sys
    sys.path.insert(0, {tests!r})
    import torch
    torch.set_num_threads(1)
    import test_fit
    loop = sys.modules["easydgl_mini.train.fit"]
    torch.optim.Adam([torch.zeros(1, requires_grad=True)]).step()   # imports what the children need, once

    def die(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGKILL)

    def after(n, function, then=die):
        calls = [0]
        def wrapped(*args, **kwargs):
            calls[0] += 1
            return then() if calls[0] == n else function(*args, **kwargs)
        return wrapped

    folder, codes = {folder!r}, []
    points = {{
        "batch": lambda: setattr(test_fit.Task, "loss", after(18, test_fit.Task.loss)),
        "evaluate": lambda: setattr(test_fit.Task, "evaluate", after(3, test_fit.Task.evaluate)),
        "sync": lambda: setattr(os, "fsync", after(5, os.fsync)),
        "replace": lambda: setattr(os, "replace", after(4, os.replace)),
        "log": lambda: setattr(loop._Run, "write_log", after(4, loop._Run.write_log)),
        "first": lambda: setattr(test_fit.Task, "loss", after(2, test_fit.Task.loss)),
    }}
    for name, arm in points.items():
        child = os.fork()
        if child == 0:
            arm()
            test_fit.trained(checkpoint=os.path.join(folder, name))
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(codes)
"""


def run(script, *command, **environment):
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])} | environment
    code = [*command, "-c", textwrap.dedent(script)] if not command else [*command, script]
    command = [sys.executable, *code]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_sigkill_at_any_moment_then_resume_is_bit_identical(tmp_path):
    """In the middle of an epoch, while judging, before the bytes are on the disk, before the file is replaced …"""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        expected, weights = trained()
        done = run(KILLER.format(tests=str(Path(__file__).parent), folder=str(tmp_path)))
        assert done.stdout.strip() == str([-signal.SIGKILL] * 6), done.stderr
        for name in ("batch", "evaluate", "sync", "replace", "log", "first"):
            fresh = net() if name == "first" else Net()  # killed before any checkpoint: the same start is needed
            result, resumed = trained(checkpoint=tmp_path / name, resume=True, model=fresh)
            assert same(weights, resumed) and result.history == expected.history, name
            assert len(list(csv.DictReader((tmp_path / name / "log.csv").read_text().splitlines()))) == 6
    finally:
        torch.set_num_threads(threads)


PAIR = """
import os, sys
sys.path.insert(0, {tests!r})
import torch
import test_fit

model = test_fit.net(dropout=0.0)
toy, _ = test_fit.trained(model=model, batch_size=7, checkpoint={folder!r})   # 50 samples: batches of 4 and 3
three = test_fit.three()
assert torch.distributed.get_world_size() == 2
state = [(toy.history, model.state_dict())] + [(x.result_.history, x.model_.state_dict()) for x in three]
torch.save(state, {out!r} + os.environ["RANK"])
"""


def three():
    """The three estimators, briefly trained without dropout."""
    settings = {"dim": 8, "epochs": 2, "dropout": 0.0, "num_clusters": 4, "lr": 0.003, "gamma": 0.01}
    link = LinkPredictor(**settings, batch_size=63, max_len=12).fit(em.simulate.bazaar("tiny").events)
    node = NodeClassifier(**settings, batch_size=7).fit(em.simulate.ledger("tiny"))
    world = em.simulate.freeway("tiny")
    part = SimpleNamespace(graph=world.graph, readings=world.readings[:400], times=world.times[:400])
    return link, node, TrafficForecaster(**settings, num_heads=2, batch_size=33).fit(part)


def test_two_gloo_processes_equal_one(tmp_path):
    script = tmp_path / "pair.py"
    script.write_text(
        PAIR.format(tests=str(Path(__file__).parent), out=str(tmp_path / "out"), folder=str(tmp_path / "c"))
    )
    done = run(str(script), "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    assert done.returncode == 0, done.stderr
    model = net(dropout=0.0)
    toy, _ = trained(model=model, batch_size=7)
    single = [(toy.history, model.state_dict())] + [(x.result_.history, x.model_.state_dict()) for x in three()]
    for rank in "01":
        double = torch.load(tmp_path / f"out{rank}", weights_only=True)
        for (history, state), (other_history, other) in zip(single, double, strict=True):
            for name in state:
                torch.testing.assert_close(state[name], other[name], rtol=0, atol=1e-5, msg=name)
            for a, b in zip(history, other_history, strict=True):
                assert all(a[k] == pytest.approx(b[k], abs=1e-4) for k in a)
    assert torch.load(tmp_path / "c" / CHECKPOINT, weights_only=True)["world"] == 2


def test_it_trains_in_training_mode_and_judges_in_the_other():
    class Watch(Task):
        def loss(self, model, *rest):
            assert model.training
            return super().loss(model, *rest)

        def evaluate(self, model, valid):
            assert not model.training
            return super().evaluate(model, valid)

    trained(Watch(), epochs=3)
