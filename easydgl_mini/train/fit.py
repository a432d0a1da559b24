"""The loop under the three tasks: plain torch, on one process or several (chapter *Three tasks, one recipe*).

What a run does depends on its seed alone. Masks, batches and drawn horizons are functions of (seed, epoch, sample id);
sums and counts are added up over all processes before they are divided. So two processes take the steps that one would,
and a run that was killed and resumed ends where an uninterrupted one does.
"""

import atexit
import contextlib
import csv
import dataclasses
import io
import math
import os
import pickle
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from tqdm import tqdm

from ..data.files import whole_or_nothing

CHECKPOINT = "checkpoint.pt"


@dataclasses.dataclass(kw_only=True, eq=False)
class Training:
    """What training depends on.

    Parameters
    ----------
    epochs : int
        Most passes over the training data; the paper's 200.
    batch_size : int
        Samples per step, over all processes together.
    lr, weight_decay : float
        Of Adam; the decay is the paper's ℓ2 regulariser.
    clip : float or None
        Largest norm of the gradient.
    schedule : {"constant", "cosine"}
        Of the learning rate, epoch by epoch; "cosine" falls to zero at ``epochs``.
    patience : int or None
        Stop after this many epochs without a better validation metric.
    seed : int
    device : str
        "auto" takes a GPU where there is one.
    precision : {"fp32", "bf16"}
        "bf16" runs linear maps in bfloat16; attention, rates and losses stay in float32.
    """

    epochs: int = 200
    batch_size: int = 128
    lr: float = 1e-3
    weight_decay: float = 1e-5
    clip: float | None = 5.0
    schedule: str = "constant"
    patience: int | None = 10
    seed: int = 0
    device: str = "auto"
    precision: str = "fp32"

    def __post_init__(self):
        for name in ("epochs", "batch_size", "patience"):
            value = getattr(self, name)
            if not (value is None and name == "patience") and (int(value) != value or value < 1):
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("lr", "weight_decay", "clip"):
            value = getattr(self, name)
            if not (value is None and name == "clip") and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a finite number that is not negative, got {value!r}")
        choices = {"schedule": ("constant", "cosine"), "precision": ("fp32", "bf16")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if int(self.seed) != self.seed or not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be a whole number from 0 to 2**63 - 1, got {self.seed!r}")


@dataclasses.dataclass(kw_only=True, eq=False)
class FitConfig(Training):
    """What training depends on, and how one run of it is kept.

    Parameters
    ----------
    checkpoint : path, optional
        Folder for ``checkpoint.pt``, written after every epoch, and for the log.
    resume : bool
        Go on from the folder's checkpoint if there is one.
    progress : bool, optional
        A progress bar on stderr; by default only where stderr is a terminal (so never in a stored notebook).
    log : path, optional
        CSV with one row per epoch; ``log.csv`` in the checkpoint folder by default.
    about : dict, optional
        What else the run depends on, such as the model's settings and the data: a checkpoint about something else is
        refused.
    """

    checkpoint: str | os.PathLike | None = None
    resume: bool = False
    progress: bool | None = None
    log: str | os.PathLike | None = None
    about: dict | None = None


@dataclasses.dataclass
class FitResult:
    """What a run left behind: one dict per epoch, the best epoch (from 1) and its metric, and why it stopped.

    ``earlier`` has the seconds and processor seconds up to the checkpoint it was resumed from.
    """

    history: list
    best_epoch: int
    best_metric: float | None
    stopped: str
    earlier: dict = dataclasses.field(default_factory=dict)


def fit(model, task, data, config=None):
    """Train ``model`` on a task, keep the best weights by one validation metric.

    Parameters
    ----------
    model : nn.Module
        Trained in place; ends with the weights of the best epoch (of the last, without validation data).
    task : object
        With ``terms``, a dict from the name of each part of the loss to its weight (0 = only reported);
        ``size(train)``, the number of samples; ``loss(model, train, ids, seed, epoch)``, a dict from name to
        (sum, count) over the samples ``ids``; ``evaluate(model, valid)``, a dict of metrics; ``metric``, the one to
        choose by; ``larger``, True where more of it is better; and, if it likes, ``lengths(train)``, how long each
        sample is, for batches of samples of like length.
    data : pair
        Training and validation data, as the task knows them; the second may be None.
    config : FitConfig, optional

    Returns
    -------
    FitResult

    Raises
    ------
    FloatingPointError
        At a loss or gradient that is not finite, with the batch, the step and the last good checkpoint.
    """
    config = config or FitConfig()
    train, valid = data
    if task.size(train) < 1:
        raise ValueError("data has no training samples")
    with _processes(config) as (rank, world, device):
        model.to(device)
        torch.manual_seed(config.seed + 1_000_003 * rank)
        run = _Run(model, task, config, rank, world, device)
        if world > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0)
        if config.resume:
            run.load()
        with _Bar(config, rank, run.epoch, -(-task.size(train) // config.batch_size)) as bar:
            while not run.stopped():
                run.train_epoch(train, bar.update)
                run.judge(valid)
                run.save()
                bar.show(run)
        if run.best is not None:
            model.load_state_dict(run.best)
        return FitResult(run.history, run.best_epoch, run.best_metric, run.stopped(), run.earlier)


def batches_of(order, size, lengths=None, draw=None, pool=32):
    """Cut samples ``order`` (N,) into batches of ``size``, the last may be smaller.

    With ``lengths`` (N,), a batch has samples of like length: ``pool`` batches at a time are sorted by it, and then the
    batches put in random order by the generator ``draw``.
    """
    if lengths is None:
        return order.split(size)
    sorted_ = torch.cat([some[lengths[some].argsort(stable=True)] for some in order.split(pool * size)])
    batches = sorted_.split(size)
    return [batches[n] for n in torch.randperm(len(batches), generator=draw).tolist()]


def usable(device):
    """The :class:`torch.device` of a name; "auto" is the GPU where there is one. A ValueError where it can't be used.

    Of several processes on GPUs each has its own.

    >>> usable("cpu")
    device(type='cpu')
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = " ".join(str(error).split())[:120]
        raise ValueError(f"device is {device!r}, which torch {torch.__version__} can't use here: {why}") from error
    return torch.device(device)


def read_state(path):
    """What :func:`torch.save` wrote to a file: tensors and plain values only; a ValueError where it is damaged."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError, RuntimeError, KeyError, UnicodeDecodeError) as error:
        why = f"{path} is damaged, or not a file of this package ({type(error).__name__})"
        raise ValueError(f"{why}; delete it to train again") from error


class _Run:
    """The state of a run between two epochs; everything in it is in the checkpoint."""

    def __init__(self, model, task, config, rank, world, device):
        self.model, self.task, self.config = model, task, config
        self.rank, self.world, self.device = rank, world, device
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimiser = torch.optim.Adam(self.parameters, lr=config.lr, weight_decay=config.weight_decay)
        cosine = lambda epoch: (1 + math.cos(math.pi * min(epoch / config.epochs, 1))) / 2  # noqa: E731
        shape = cosine if config.schedule == "cosine" else lambda epoch: 1.0
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimiser, shape)
        self.epoch, self.history = 0, []
        self.earlier, self.started = {}, (time.time(), time.process_time())
        self.best, self.best_epoch, self.best_metric = None, 0, None
        self.path = Path(config.checkpoint) / CHECKPOINT if config.checkpoint is not None else None

    def stopped(self):
        """Why there is no next epoch, or the empty string."""
        if self.config.patience is not None and self.epoch - self.best_epoch >= self.config.patience:
            return "patience"
        return "epochs" if self.epoch >= self.config.epochs else ""

    def train_epoch(self, train, tick=lambda: None):
        self.model.train()
        draw = torch.Generator().manual_seed(self.config.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.task.size(train), generator=draw)
        lengths = self.task.lengths(train) if hasattr(self.task, "lengths") else None
        batches = batches_of(order, self.config.batch_size, lengths, draw)
        totals = 0
        for n, ids in enumerate(batches):
            totals = totals + self.step(train, ids, n, len(batches))
            tick()
        self.scheduler.step()
        self.epoch += 1
        row = {name: (s / c).item() for name, (s, c) in zip(self.task.terms, totals, strict=True) if c > 0}
        self.history.append({"epoch": self.epoch} | {f"train_{name}": value for name, value in row.items()})

    def step(self, train, ids, batch, batches):
        """One step of Adam on one batch; returns the (sum, count) of each term over all processes."""
        mine = ids[self.rank :: self.world]
        half = torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16")
        with half:
            seed, epoch = self.config.seed, self.epoch
            parts = self.task.loss(self.model, train, mine, seed, epoch) if len(mine) else {}
        zero = torch.zeros((), dtype=torch.float64, device=self.device)
        parts = [[torch.as_tensor(x).to(zero) for x in parts.get(name, (zero, zero))] for name in self.task.terms]
        totals = torch.stack([torch.stack(part) for part in parts]).detach()
        self.add_up(totals)
        weights = torch.tensor(list(self.task.terms.values()), dtype=totals.dtype, device=self.device)
        per_count = weights / totals[:, 1].clamp_min(1e-9)
        loss = sum(scale * part[0] for scale, part in zip(per_count, parts, strict=True))
        where = f"in epoch {self.epoch + 1}, batch {batch + 1} of {batches} (samples {ids[:5].tolist()} …)"
        value = (per_count * totals[:, 0]).sum().item()
        if not math.isfinite(value):
            raise FloatingPointError(f"the loss is {value} {where}; {self.last_good()}")

        self.optimiser.zero_grad()
        if loss.requires_grad:
            loss.backward()
        for p in self.parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        flat = torch.cat([p.grad.reshape(-1) for p in self.parameters])
        self.add_up(flat)
        norm = flat.double().norm().item()
        if not math.isfinite(norm):
            raise FloatingPointError(f"the gradient's norm is {norm} {where}; {self.last_good()}")
        if self.config.clip is not None and norm > self.config.clip:
            flat *= self.config.clip / norm
        for p, grad in zip(self.parameters, flat.split([p.numel() for p in self.parameters]), strict=True):
            p.grad.copy_(grad.view_as(p))
        self.optimiser.step()
        return totals

    def add_up(self, tensor):
        if self.world > 1:
            dist.all_reduce(tensor)

    def judge(self, valid):
        """Measure on validation data, in one process, and keep the weights if they are the best so far."""
        metrics = [{}]
        if valid is not None and self.rank == 0:
            self.model.eval()
            with torch.no_grad():
                metrics = [self.task.evaluate(self.model, valid)]
        if self.world > 1:
            dist.broadcast_object_list(metrics, 0)
        self.history[-1].update(metrics[0])
        value = metrics[0].get(self.task.metric)
        better = value is None or self.best_metric is None
        if not better:
            better = value > self.best_metric if self.task.larger else value < self.best_metric
        if better:
            self.best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
            self.best_epoch, self.best_metric = self.epoch, value

    def last_good(self):
        """Where a run that failed can be taken up again."""
        if self.path is None:
            return "no checkpoint was asked for"
        return (
            f"the last good checkpoint is {self.path}, after epoch {self.epoch}" if self.epoch else "no epoch was done"
        )

    def save(self):
        """Write the checkpoint and the log; whoever looks finds the old one or the new one, never half of one."""
        random = self.random_states()
        if self.rank == 0:
            state = {
                "settings": self.settings(),
                "world": self.world,
                "epoch": self.epoch,
                "history": self.history,
                "best": self.best,
                "best_epoch": self.best_epoch,
                "best_metric": self.best_metric,
                "model": self.model.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "random": random,
                "spent": self.spent(),
            }
            if self.path is not None:
                with whole_or_nothing(self.path) as file:
                    torch.save(state, file)
            self.write_log()

    def spent(self):
        """Seconds, of the clock and of the processor, with those before an interruption."""
        now = zip(("seconds", "processor_seconds"), (time.time(), time.process_time()), self.started, strict=True)
        return {name: end - start + self.earlier.get(name, 0.0) for name, end, start in now}

    def write_log(self):
        log = self.config.log or (self.path and self.path.parent / "log.csv")
        if log:
            text = io.StringIO()
            rows = csv.DictWriter(text, list(dict.fromkeys(key for row in self.history for key in row)))
            rows.writeheader()
            rows.writerows(self.history)
            with whole_or_nothing(log) as file:
                file.write(text.getvalue().encode())

    def load(self):
        """Take up the run where its checkpoint left it; without a checkpoint, start."""
        if self.path is None:
            raise ValueError("resume needs checkpoint, the folder to resume from; got None")
        if not self.path.exists():
            return
        state = read_state(self.path)
        for name, value in self.settings().items():
            old = state["settings"].get(name)
            if old != value:
                raise ValueError(
                    f"{name} is {value!r:.80}, but {self.path} was made with {old!r:.80}; delete it to start"
                )
        if state["epoch"] > self.config.epochs:
            raise ValueError(
                f"epochs is {self.config.epochs}, but {self.path} has {state['epoch']} already; delete it to start"
            )
        if state["world"] != self.world:
            raise ValueError(f"{self.path} was made by {state['world']} processes, got {self.world}")
        self.epoch, self.history, self.earlier = state["epoch"], state["history"], state.get("spent", {})
        self.best, self.best_epoch, self.best_metric = state["best"], state["best_epoch"], state["best_metric"]
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["random"][self.rank][0])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state["random"][self.rank][1], self.device)
        if self.rank == 0:
            self.write_log()

    def settings(self):
        """What has to be the same for a resumed run to be the same run."""
        free = {"epochs", "patience", "device"}
        own = {f.name: getattr(self.config, f.name) for f in dataclasses.fields(Training) if f.name not in free}
        return (self.config.about or {}) | own

    def random_states(self):
        state = [torch.get_rng_state()]
        if self.device.type == "cuda":
            state.append(torch.cuda.get_rng_state(self.device))
        states = [state] * self.world
        if self.world > 1:
            dist.all_gather_object(states, state)
        return states


class _Bar(tqdm):
    """Steps done, epoch, loss, metric and time left on stderr; silent unless asked for or on a terminal."""

    def __init__(self, config, rank, done, steps):
        wanted = sys.stderr.isatty() if config.progress is None else config.progress
        total, silent = config.epochs * steps, not wanted or rank > 0
        super().__init__(total=total, initial=done * steps, unit="step", dynamic_ncols=True, disable=silent)

    def show(self, run):
        row, first = run.history[-1], next(iter(run.task.terms))
        shown = {"epoch": row["epoch"], first: row.get(f"train_{first}"), run.task.metric: row.get(run.task.metric)}
        self.set_postfix({name: f"{value:.4g}" for name, value in shown.items() if value is not None})


@contextlib.contextmanager
def _processes(config):
    """(rank, number of processes, device), with a process group where torchrun started several, kept until the exit."""
    device = usable(config.device)
    several = dist.is_available() and dist.is_initialized()
    if not several and int(os.environ.get("WORLD_SIZE", 1)) > 1 and "RANK" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(dist.destroy_process_group)  # not sooner: a second group could meet the first one's addresses
        several = True
    with torch.random.fork_rng([device] if device.type == "cuda" else []):  # the caller's random numbers are theirs
        yield (dist.get_rank(), dist.get_world_size(), device) if several else (0, 1, device)
