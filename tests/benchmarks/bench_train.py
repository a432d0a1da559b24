"""What training costs, against what it could be compared with; one thread, interleaved.

    python tests/benchmarks/bench_train.py [keys|links ...] [--rounds 5] [--users 6040]

``keys``: an epoch of the node task on a simulated graph like *ledger*'s, of mean degree 20, at mask rate 0.5: masked
    keys removed (CaM) against special tokens that keep them. Target: at least 1.4x faster.
``links``: an epoch of EasyDGL, with 8 clusters and with 18, against a plain BERT4REC of the same width (64), layers
    (2), heads (2) and length (30), on simulated histories of the size of MovieLens-1M (6,040 users, 3,706 items, a
    million events), same masks, full softmax. Targets: at most 2x the time, 1.5x the memory. ``--users``: fewer.

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
from torch import nn

import easydgl_mini as em
from easydgl_mini.train import LinkPredictor, NodeClassifier
from easydgl_mini.train.cam import pick_positions
from easydgl_mini.train.fit import FitConfig, _Run
from easydgl_mini.train.link import _LinkTask, windows
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


class Bert4Rec(nn.Module):
    """Items and positions, two post-norm transformer layers, inner products: what EasyDGL is without clocks."""

    def __init__(self, items, dim=64, length=30):
        super().__init__()
        self.items, self.places = nn.Embedding(items + 1, dim), nn.Embedding(length, dim)  # the last item: the mask
        layer = nn.TransformerEncoderLayer(dim, 2, 4 * dim, dropout=0.1, batch_first=True)
        self.layers, self.bias = (
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            nn.Parameter(torch.zeros(items)),
        )

    def forward(self, item, mask):
        x = self.items(item) + self.places.weight
        return self.layers(x, src_key_padding_mask=~mask)


class BertTask:
    terms, metric, larger = {"loss": 1.0}, "none", True

    def size(self, train):
        return len(train)

    def loss(self, model, train, ids, seed, epoch):
        rows, items = train[ids], len(model.bias)
        hidden = pick_positions(0.2, ids, rows.mask, seed, epoch)
        told = torch.where(rows.mask & ~hidden, rows.item, items)
        h = model(told, rows.mask)[hidden]
        each = F.cross_entropy(h @ model.items.weight[:-1].t() + model.bias, rows.item[hidden], reduction="none")
        return {"loss": (each.sum(), len(each))}


def links_case(name, users=6040, items=3706, events=166):
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    n = users * events
    item = rng.integers(0, items, n)
    log = em.EventLog(
        np.repeat(np.arange(users), events), item, np.sort(rng.random((users, events)) * 1e3).ravel(), users, items
    )
    rows = windows(log, 30)
    if name == "BERT4REC":
        torch.manual_seed(0)
        return an_epoch(Bert4Rec(items), BertTask(), rows, 128)
    clusters = int(name.split("K=")[1])
    settings = LinkPredictor(num_clusters=clusters)
    model = settings._build(num_items=items, num_clusters=clusters)
    model.encoder.item_clusters.copy_(torch.from_numpy(rng.integers(0, clusters, items)))
    return an_epoch(model, _LinkTask(settings), rows, 128)


def bench_keys(rounds, users):
    seconds = interleaved({name: keys_case(name) for name in ("cam", "token")}, rounds)
    for name, label in (("cam", "masked keys removed"), ("token", "special tokens")):
        print(f"{label:>20}: {statistics.median(seconds[name]):.2f} s per epoch")
    print(f"removing masked keys is {ratio(seconds, 'token', 'cam'):.2f} x faster (target 1.4)")


def bench_links(rounds, users):
    names = ("EasyDGL K=8", "EasyDGL K=18", "BERT4REC")
    seconds = interleaved({name: links_case(name, users) for name in names}, rounds)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        memory = {name: pool.apply(peak_memory, (links_case, name, users)) for name in names}
    for name in names:
        print(
            f"{name:>13}: {statistics.median(seconds[name]):6.2f} s an epoch of {users} users, {memory[name]:6.1f} MB; "
            f"time {ratio(seconds, name, names[-1]):.2f} x (target 2), "
            f"memory {memory[name] / memory[names[-1]]:.2f} x (target 1.5)"
        )


def main():
    benches = {"keys": bench_keys, "links": bench_links}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", choices=[*benches, []], default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--users", type=int, default=6040)
    args = parser.parse_args()
    for name in args.which or benches:
        print(f"--- {name}: one thread, {args.rounds} rounds")
        benches[name](args.rounds, args.users)


if __name__ == "__main__":
    main()
