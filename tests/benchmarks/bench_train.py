"""What training costs, against what it could be compared with; one thread, interleaved.

    python tests/benchmarks/bench_train.py [keys|links|naming ...] [--rounds 5] [--users 6040] [--data DIR]

``keys``: an epoch of the node task on a simulated graph like *ledger*'s, of mean degree 20, at mask rate 0.5: masked
    keys removed (CaM) against special tokens that keep them. Target: at least 1.4x faster.
``links``: an epoch of EasyDGL, with 8 clusters (the default) and with 18, against our BERT4REC of the same width (64),
    layers (2), heads (2) and length (30): same masks, full softmax. With ``--data``, on MovieLens-1M from that folder,
    its training users of the inductive protocol, times in days; else on simulated histories of that size (6,040 users,
    3,706 items, a million events). Targets: at most 2x the time, 1.5x the memory. ``--users``: fewer.
``naming``: value and gradients of naming 1,000 items among Beauty's 12,101 at width 64, a few rows at a time, in
    float32 and with products in bfloat16, against torch's cross-entropy of all scores at once.

A ratio is the median over rounds of ratios inside one round. Memory is the growth of a process's high-water mark over
an epoch, each measured in a process of its own (Linux).
"""

import argparse
import multiprocessing
import statistics
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from measure import interleaved, peak_memory, ratio

import easydgl_mini as em
from easydgl_mini.train import NodeClassifier
from easydgl_mini.train.fit import FitConfig, _Run
from easydgl_mini.train.link import Windows
from easydgl_mini.train.node import _NodeTask


def an_epoch(model, task, data, batch_size):
    """A function that trains one epoch."""
    run = _Run(model, task, FitConfig(batch_size=batch_size), 0, 1, torch.device("cpu"))
    return lambda: run.train_epoch(data)


def dense_ledger(nodes=8_000, degree=20, features=64):
    """Steps, features and labels as in *ledger*, with many more payments, inside steps."""
    rng = np.random.default_rng(0)
    step = np.sort(rng.integers(1, 17, nodes))
    first, size = np.searchsorted(step, np.arange(17)), np.bincount(step, minlength=17)
    src = rng.integers(0, nodes, nodes * degree)
    dst = first[step[src]] + rng.integers(0, size[step[src]])
    graph = em.TemporalGraph(src, dst, nodes, times=step[src] + rng.random(len(src)))
    x = rng.standard_normal((nodes, features)).astype(np.float32)
    return SimpleNamespace(graph=graph, features=x, labels=rng.integers(0, 3, nodes), step=step)


def keys_case(masking):
    torch.set_num_threads(1)
    settings = NodeClassifier(masking=masking, mask_rate=0.5, gamma=0.0, both_ways=False)
    data = dense_ledger()
    model = settings._build(in_feats=data.features.shape[1])
    return an_epoch(model, _NodeTask(settings), settings._snapshots(data, range(1, 17)), 4)


def links_log(users, data):
    """Training users of MovieLens-1M, or simulated ones; at most ``users`` of them."""
    if data:
        log = em.data.load("ml-1m", data, cache=False).split_users((8, 1, 1), 0)[0]
        return log.select(log.user <= log.users[:users][-1])
    rng, items, events = np.random.default_rng(0), 3706, 166
    item, time = rng.integers(0, items, users * events), np.sort(rng.random((users, events)) * 1e3) * 86_400
    return em.EventLog(np.repeat(np.arange(users), events), item, time.ravel(), users, items)


def links_case(name, users=6040, data=None):
    torch.set_num_threads(1)
    log = links_log(users, data)
    settings = {"dim": 64, "num_layers": 2, "num_heads": 2, "max_len": 30, "time_unit": "day"}
    if name == "BERT4REC":
        estimator = em.baselines.REGISTRY["bert4rec"]("link", **settings)
    else:
        estimator = em.LinkPredictor(num_clusters=int(name.split("K=")[1]), **settings)
    estimator._start(log)
    rows = Windows(log, estimator.max_len, estimator.time_unit, estimator.sampling)
    return an_epoch(estimator.model_, estimator._task(), rows, estimator.batch_size)


def naming_case(name, rows=1000, items=12_101, dim=64):
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    h, table, bias = (torch.randn(*n, generator=draw).requires_grad_() for n in ((rows, dim), (items, dim), (items,)))
    item = torch.randint(items, (rows,), generator=draw)

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "naming_loss, bf16"):
            if name == "cross_entropy":
                loss = F.cross_entropy(F.linear(h, table, bias), item, reduction="sum")
            else:
                loss = em.train.naming_loss(h, table, bias, item, torch.ones(rows))
        torch.autograd.grad(loss, (h, table, bias))

    return step


def bench_naming(rounds, users, data):
    names = ("naming_loss", "naming_loss, bf16", "cross_entropy")
    seconds = interleaved({name: naming_case(name) for name in names}, rounds)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        memory = {name: pool.apply(peak_memory, (naming_case, name)) for name in names}
    for name in names:
        print(
            f"{name:>18}: {1e3 * statistics.median(seconds[name]):6.1f} ms, {memory[name]:6.1f} MB; "
            f"time {ratio(seconds, name, names[-1]):.2f} x, memory {memory[name] / memory[names[-1]]:.2f} x"
        )


def bench_keys(rounds, users, data):
    seconds = interleaved({name: keys_case(name) for name in ("cam", "token")}, rounds)
    for name, label in (("cam", "masked keys removed"), ("token", "special tokens")):
        print(f"{label:>20}: {statistics.median(seconds[name]):.2f} s per epoch")
    print(f"removing masked keys is {ratio(seconds, 'token', 'cam'):.2f} x faster (target 1.4)")


def bench_links(rounds, users, data):
    names = ("EasyDGL K=8", "EasyDGL K=18", "BERT4REC")
    seconds = interleaved({name: links_case(name, users, data) for name in names}, rounds)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        memory = {name: pool.apply(peak_memory, (links_case, name, users, data)) for name in names}
    for name in names:
        print(
            f"{name:>13}: {statistics.median(seconds[name]):6.2f} s an epoch, {memory[name]:6.1f} MB; "
            f"time {ratio(seconds, name, names[-1]):.2f} x (target 2), "
            f"memory {memory[name] / memory[names[-1]]:.2f} x (target 1.5)"
        )


def main():
    benches = {"keys": bench_keys, "links": bench_links, "naming": bench_naming}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", choices=[*benches, []], default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--users", type=int, default=6040)
    parser.add_argument("--data", help="folder with ml-1m, for links on MovieLens-1M")
    args = parser.parse_args()
    for name in args.which or benches:
        print(f"--- {name}: one thread, {args.rounds} rounds")
        benches[name](args.rounds, args.users, args.data)


if __name__ == "__main__":
    main()
