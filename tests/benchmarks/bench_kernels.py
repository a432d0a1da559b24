"""edge_softmax + aggregate, forward and backward: our two backends side by side with calling DGL directly.

    python tests/benchmarks/bench_kernels.py [--nodes 200000 --edges 2000000 --heads 8 --dims 64 --rounds 7]

Targets: our DGL backend within 1.1x of DGL itself, our torch backend within 1.5x, both the same bits from run to run.
The three are interleaved; each ratio is the median over rounds of a ratio taken inside one round.
"""

import argparse
import statistics
import time

import torch

import easydgl_mini as em


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("nodes", 200_000), ("edges", 2_000_000), ("heads", 8), ("dims", 64), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()

    import dgl.ops

    draw = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, args.nodes, (2, args.edges), generator=draw)
    graph = em.TemporalGraph(src, dst, args.nodes)
    direct = graph.to_dgl()
    scores = torch.randn(args.edges, args.heads, generator=draw, requires_grad=True)
    values = torch.randn(args.nodes, args.heads, args.dims // args.heads, generator=draw, requires_grad=True)
    grad = torch.randn(values.shape, generator=draw)

    def ours():
        return em.aggregate(graph, values, em.edge_softmax(graph, scores))

    def plain_dgl():
        return dgl.ops.u_mul_e_sum(direct, values, dgl.ops.edge_softmax(direct, scores.unsqueeze(-1)))

    def run(name):
        scores.grad = values.grad = None
        start = time.perf_counter()
        if name == "DGL itself":
            out = plain_dgl()
        else:
            with em.use_backend(name):
                out = ours()
        out.backward(grad)
        return time.perf_counter() - start, (out.detach(), scores.grad, values.grad)

    names = ("DGL itself", "dgl", "torch")
    first = {name: run(name)[1] for name in names}  # warm-up: sorted orders and formats are made once
    seconds = {name: [] for name in names}
    for _ in range(args.rounds):
        for name in names:
            duration, results = run(name)
            seconds[name].append(duration)
            same = all(torch.equal(a, b) for a, b in zip(results, first[name], strict=True))
            assert same, f"{name}: not the same bits from run to run"
    for name in names:
        gap = max((a - b).abs().max().item() for a, b in zip(first[name], first["DGL itself"], strict=True))
        ratio = statistics.median(a / b for a, b in zip(seconds[name], seconds["DGL itself"], strict=True))
        middle = statistics.median(seconds[name])
        print(f"{name:>10}: {middle:6.3f} s   {ratio:5.2f} x DGL itself   largest difference {gap:.1e}")


if __name__ == "__main__":
    main()
