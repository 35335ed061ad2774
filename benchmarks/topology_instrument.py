"""The whole Topology instrument after the forward, against a script of ripser and gudhi.wasserstein.

Same activations, same number of threads, one cloud of 500 images, H0 and H1, W1 and W2, all adjacent layers. The script
is what one would write: ``ripser(X)`` on the flattened activations of each layer, in as many threads as we have, then
``wasserstein_distance`` (exact, ground norm l-infinity) on each pair of neighbours. The distances agree to what
ripser's float32 leaves. ``--weights FOLDER`` takes published weights of ResNet-56 and
CIFAR-10 images instead of random ones.
"""

from __future__ import annotations

import collections
import itertools
import os
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from timing import Timing, arguments, clock, publish, race, table

import lisse
from lisse.instruments import Topology, topology
from lisse.networks import zoo
from lisse.run import Run

BAR = 4.0
OPTIONS = Topology(samples=500, clouds=1)


def network(name: str, weights: str | None) -> torch.nn.Module:
    """Published weights where there are some in the folder, else those of the seed."""
    found = sorted(Path(weights).glob(f"{name}-*.th")) if weights else []
    if found:
        return lisse.load_model(f"zoo:{name}?weights={found[0]}")
    torch.manual_seed(0)
    return zoo.build(name).eval()


def script(layers: dict[str, np.ndarray], threads: int) -> np.ndarray:
    """``[pairs, p, dim]`` by the peers."""
    import gudhi.wasserstein
    from ripser import ripser

    warnings.filterwarnings("ignore", "The input point cloud has more columns than rows")

    def diagrams(points: np.ndarray) -> list[np.ndarray]:
        found = ripser(points.reshape(len(points), -1))["dgms"]
        return [bars[np.isfinite(bars[:, 1])] for bars in found]

    def distances(pair: tuple[list[np.ndarray], list[np.ndarray]]) -> list[list[float]]:
        a, b = pair
        return [
            [gudhi.wasserstein.wasserstein_distance(a[d], b[d], order=p, internal_p=np.inf) for d in (0, 1)]
            for p in (1, 2)
        ]

    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(diagrams, layers.values()))
        return np.array(list(pool.map(distances, itertools.pairwise(found))))


def ours(run: Run) -> np.ndarray:
    """The same numbers out of the instrument's rows."""
    rows = [row for row in OPTIONS.part(run).rows if row.quantity == "diagram_distance"]
    return np.array([[[r.value for r in rows if (r.at["p"], r.at["dim"]) == (p, d)] for d in (0, 1)] for p in (1, 2)])


def where_time_goes(run: Run) -> str:
    """Seconds of work (all threads added up) of one measurement, by part."""
    spent: collections.Counter[str] = collections.Counter()
    names = ("distance_matrix", "persistence", "diagram_distance")
    plain = {name: getattr(topology, name) for name in names}

    def timed(name):
        def call(*args, **options):
            begun = time.perf_counter()
            try:
                return plain[name](*args, **options)
            finally:
                spent[name] += time.perf_counter() - begun

        return call

    for name in names:
        setattr(topology, name, timed(name))
    try:
        begun = time.perf_counter()
        ours(run)
        whole = time.perf_counter() - begun
    finally:
        for name, function in plain.items():
            setattr(topology, name, function)
    parts = ", ".join(f"{name} {clock(spent[name])}" for name in names)
    return f"One measurement of {clock(whole)}, by the time threads spent in each part: {parts}."


def floor(run: Run, threads: int) -> tuple[float, float]:
    """FLOPs of the distances (a symmetric product of each layer), and the seconds they take at this machine's speed."""
    size = 2048
    a = np.random.default_rng(0).standard_normal((500, size * 4))
    (timing,) = race({"product": lambda: a @ a.T}, rounds=5)
    speed = 500**2 * a.shape[1] / timing.best  # a symmetric product: half of 2 n² d
    work = sum(500**2 * tap.numel for tap in run.taps)
    return work, work / speed


def main() -> int:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--networks", default="resnet18,resnet56")
    parser.add_argument("--weights", help="folder of published checkpoints (resnet56-*.th); needs CIFAR-10")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.weights:
        data = lisse.load_data("cifar10", limit=500)
    else:
        data = lisse.data.as_dataset(torch.rand(500, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    body, under = [], []
    for name in options.networks.split(","):
        run = Run(network(name, options.weights), data, memory="8GiB")
        recording = run.recording(500)
        layers = {layer: recording[layer].numpy() for layer in recording}
        theirs = script(layers, options.threads)
        mine = ours(run).transpose(2, 0, 1)
        apart = np.abs(mine - theirs) / np.maximum(theirs, 1e-3 * theirs.max((0,), keepdims=True))
        assert apart.max() < 1e-3, f"{name}: the two do not compute the same ({apart.max():.2g})"
        timings: list[Timing] = race(
            {
                "lisse": lambda run=run: ours(run),
                "ripser + gudhi": lambda layers=layers: script(layers, options.threads),
            },
            rounds=options.rounds,
            warmup=0,
        )
        ratio = timings[1].best / timings[0].best
        work, least = floor(run, options.threads)
        body.append(f"## {name}, {len(layers)} layers, 500 images, {options.threads} threads\n")
        body.append(table(timings))
        body.append(f"\nBar: {BAR:g}. {where_time_goes(run)}")
        body.append(
            f"Floor: the distances alone are {work / 1e9:.0f} billion multiply-adds in float64, {clock(least)} by "
            f"NumPy's symmetric product with its own threads. Largest relative difference: {apart.max():.1e} "
            "(ripser works in float32).\n"
        )
        if ratio < BAR:
            under.append(f"{name}: {ratio:.2f} < {BAR:g}")
        run.close()
    packages = ("gudhi", "ripser", "POT")
    title = "Topology: the whole instrument after the forward"
    publish("topology-instrument", title, "\n".join(body), write=options.write, packages=packages)
    sys.stderr.writelines(f"under the bar: {line}\n" for line in under)
    return 1 if under else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    sys.exit(main())
