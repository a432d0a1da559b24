"""The attention-intensity-attention layer against what it could be compared with; forward and backward, one thread.

    python tests/benchmarks/bench_aia.py [attention|conv|linear ...] [--rounds 9]

``attention``: AIAAttention at batch 128, length 31, width 64, 2 heads, 18 clusters, against the direct transcription
    of the equations (rates tiled over queries x keys x clusters) and torch.nn.MultiheadAttention with weights returned.
    Targets: at most 0.5x the time and 0.65x the memory of the transcription, at most 5x MultiheadAttention's time.
``conv``: AIAConv at 200,000 nodes, 2 million edges, width 64, 8 heads, 8 clusters, against dgl.nn.GATConv.
    Targets: at most 2.5x with score="gat", 3x with "sa".
``linear``: AIAConv at 200,000 nodes, from 0.25 to 4 million edges: a straight line through its times.

Runs are interleaved, and seconds are the processor's; a ratio is the median over rounds of ratios inside one round.
Memory is the growth of a process's high-water mark, the median of five processes.
"""

import argparse
import math
import multiprocessing
import statistics

import torch
from measure import interleaved, peak_memory, ratio
from torch import nn

import easydgl_mini as em
from easydgl_mini.encode import AIAAttention, AIAConv

B, T, WIDTH, HEADS, CLUSTERS = 128, 31, 64, 2, 18


class Transcription(AIAAttention):
    """The same layer with every index of the equations made a dimension: (B, H, T, T, K)."""

    def forward(self, x, elapsed, clusters, key_mask):
        q, k, v = (self._heads(f(x)).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        weights = torch.softmax(scores.masked_fill(~key_mask[:, None, None, :], torch.finfo(scores.dtype).min), -1)
        s = weights @ v  # (B, H, T, d)
        r = self.intensity
        inner = torch.einsum("bhtd,hked->bhtke", s, r.W) + elapsed[:, None, :, None, None] * r.b[:, None]
        phi = r.log_phi.exp()[:, None]
        lam = phi * nn.functional.softplus(((torch.sigmoid(inner) * r.w[:, None]).sum(-1) + r.mu[:, None]) / phi)
        one_hot = nn.functional.one_hot(clusters, self.num_clusters).to(x.dtype)  # (B, T, K)
        tiled = lam.unsqueeze(3).expand(-1, -1, -1, T, -1) * one_hot[:, None, None]  # (B, H, T, T, K)
        h = (weights * tiled.sum(-1)) @ v
        return h.transpose(1, 2).reshape(B, T, -1), lam


def attention_case(name):
    """A function that runs one forward and backward pass."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(B, T, WIDTH, requires_grad=True)
    elapsed, clusters = torch.rand(B, T), torch.randint(0, CLUSTERS, (B, T))
    mask = torch.ones(B, T, dtype=torch.bool)
    if name == "MultiheadAttention":
        plain = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        call = lambda: plain(x, x, x, key_padding_mask=~mask, need_weights=True, average_attn_weights=False)  # noqa: E731
    else:
        layer = (Transcription if name == "transcription" else AIAAttention)(WIDTH, WIDTH, HEADS, CLUSTERS)
        call = lambda: layer(x, elapsed, clusters, mask)  # noqa: E731

    def run():
        h, other = call()
        (h.square().mean() + other.square().mean()).backward()
        return h.detach(), other.detach()

    return run


def conv_case(name, nodes=200_000, edges=2_000_000):
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, nodes, (2, edges), generator=draw)
    graph = em.TemporalGraph(src, dst, nodes)
    x = torch.randn(nodes, 64, generator=draw, requires_grad=True)
    if name == "GATConv":
        import dgl.nn.pytorch as dglnn

        g, layer = graph.to_dgl(), dglnn.GATConv(64, 8, 8, allow_zero_in_degree=True)
        call = lambda: layer(g, x)  # noqa: E731
    else:
        elapsed, clusters = torch.rand(nodes, generator=draw), torch.randint(0, 8, (nodes,), generator=draw)
        layer = AIAConv(64, 64, 8, 8, score=name)
        call = lambda: layer(graph, x, elapsed, clusters)[0]  # noqa: E731
    return lambda: call().square().mean().backward()


def bench_attention(rounds):
    names = ("AIAAttention", "transcription", "MultiheadAttention")
    runs = {name: attention_case(name) for name in names}
    for a, b in zip(runs["AIAAttention"](), runs["transcription"](), strict=True):
        torch.testing.assert_close(a, b)
    seconds = interleaved(runs, rounds)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        memory = {name: [pool.apply(peak_memory, (attention_case, name)) for _ in range(5)] for name in names}
    memory = {name: statistics.median(values) for name, values in memory.items()}  # one process may be lucky
    for name in names:
        print(f"{name:>20}: {1000 * statistics.median(seconds[name]):7.1f} ms   {memory[name]:6.1f} MB")
    times = ratio(seconds, "AIAAttention", "transcription"), ratio(seconds, "AIAAttention", "MultiheadAttention")
    print(f"time:   {times[0]:.2f} x transcription (target 0.5), {times[1]:.2f} x MultiheadAttention (target 5)")
    print(f"memory: {memory['AIAAttention'] / memory['transcription']:.2f} x transcription (target 0.65)")


def on(backend, run):
    """The same run with the backend forced."""

    def forced():
        with em.use_backend(backend):
            run()

    return forced


def bench_conv(rounds):
    cases = {name: conv_case(name) for name in ("GATConv", "gat", "sa")}
    runs = {"GATConv": cases["GATConv"]}
    runs |= {(score, backend): on(backend, cases[score]) for score in ("gat", "sa") for backend in ("dgl", "torch")}
    seconds = interleaved(runs, rounds)
    print(f"dgl.nn.GATConv: {statistics.median(seconds['GATConv']):.2f} s")
    for score, backend in list(runs)[1:]:
        middle, times = statistics.median(seconds[score, backend]), ratio(seconds, (score, backend), "GATConv")
        target = 2.5 if score == "gat" else 3
        print(f"AIAConv {score:>3}, {backend:>5} backend: {middle:.2f} s, {times:.2f} x GATConv (target {target})")


def bench_linear(rounds):
    sizes = [250_000, 500_000, 1_000_000, 2_000_000, 4_000_000]
    seconds = interleaved({edges: conv_case("sa", edges=edges) for edges in sizes}, max(2, rounds // 3))
    middle = [statistics.median(seconds[edges]) for edges in sizes]
    line = statistics.linear_regression(sizes, middle)
    for edges, value in zip(sizes, middle, strict=True):
        fitted = line.intercept + line.slope * edges
        print(f"{edges / 1e6:5.2f} million edges: {value:6.2f} s, on the line {fitted:6.2f} s")
    r = statistics.correlation(sizes, middle)
    print(f"{line.intercept:.2f} s for the nodes and {1e6 * line.slope:.2f} s for a million edges; correlation {r:.4f}")


def main():
    benches = {"attention": bench_attention, "conv": bench_conv, "linear": bench_linear}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", choices=[*benches, []], default=[])
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    for name in args.which or benches:
        print(f"--- {name}: forward and backward, one thread, {args.rounds} rounds")
        benches[name](args.rounds)


if __name__ == "__main__":
    main()
