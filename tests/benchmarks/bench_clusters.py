"""Kernel k-means at 500,000 nodes x 64 features into 32 groups: time and peak memory, with scikit-learn beside it.

    python tests/benchmarks/bench_clusters.py [--nodes 500000 --dims 64 --clusters 32 --spread 0.3 --threads 2]

Target: one minute and 3 GB on two cores. Everything is at its default (rbf kernel, 256 landmarks, ten starts that
compete on a sample, the best of them run on all nodes). Each method runs in a process of its own, so that its peak
resident memory is its own; a process that only makes the data gives the floor. On a busy machine look at the processor
time: the clock then says more about the neighbours. scikit-learn's KMeans (one start, no
kernel) and MiniBatchKMeans are there for orientation: they solve an easier problem, and the ratios say how much easier.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

METHODS = ("data only", "KernelKMeans", "KMeans (sklearn)", "MiniBatchKMeans (sklearn)")


def make_data(args):
    """Gaussian groups; the smaller the spread of their centres, the more they overlap and the longer k-means takes."""
    import numpy as np

    rng = np.random.default_rng(0)
    centres = args.spread * rng.standard_normal((args.clusters, args.dims), dtype=np.float32)
    X = rng.standard_normal((args.nodes, args.dims), dtype=np.float32)
    X += centres[rng.integers(args.clusters, size=args.nodes)]
    return X


def run(args):
    """One method, in this process; prints a line of JSON."""
    if args.method == "KernelKMeans":
        from easydgl_mini.encode.clusters import KernelKMeans

        model = KernelKMeans(args.clusters)
    elif args.method != "data only":
        import sklearn.cluster

        starts = {"KMeans": {"n_init": 1}, "MiniBatchKMeans": {}}
        name = args.method.split()[0]
        model = getattr(sklearn.cluster, name)(args.clusters, random_state=0, **starts[name])
    X, result = make_data(args), {}
    if args.method != "data only":
        start, start_cpu = time.perf_counter(), time.process_time()
        model.fit(X)
        result = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - start_cpu}
        result["rounds"] = int(model.n_iter_)
        result["predict agrees"] = bool((model.predict(X) == model.labels_).all())
    result["peak GB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)
    print(json.dumps(result))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=500_000)
    parser.add_argument("--dims", type=int, default=64)
    parser.add_argument("--clusters", type=int, default=32)
    parser.add_argument("--spread", type=float, default=0.3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--method", choices=METHODS, help="run this one in the present process")
    args = parser.parse_args()
    if args.method:
        return run(args)

    variables = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = os.environ | dict.fromkeys(variables, str(args.threads))
    print(f"{args.nodes:,} nodes x {args.dims} features -> {args.clusters} clusters, {args.threads} threads")
    seconds = {}
    for method in METHODS:
        command = [sys.executable, __file__, *sys.argv[1:], "--method", method]
        answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        result = json.loads(answer.stdout.splitlines()[-1])
        peak = f"{method:26s} {result['peak GB']:6.2f} GB peak"
        if "seconds" not in result:
            print(peak)
            continue
        seconds[method] = result["seconds"]
        ratio = seconds["KernelKMeans"] / result["seconds"]
        agrees = "predict = labels" if result["predict agrees"] else "predict differs from labels"
        took = f"{result['seconds']:6.1f} s ({result['cpu']:.1f} s of processor time)"
        print(f"{peak}, {took}, {result['rounds']} rounds, {agrees}; ours / this {ratio:.2f}")


if __name__ == "__main__":
    main()
