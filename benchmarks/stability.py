"""The whole Stability instrument against the bare forwards it must make: 500 images, 3 cuts, all layers.

Bare: the clean pass and a deformed and a noisy view per cut, of the very same inputs, made beforehand, in the same
batches under ``no_grad``. The instrument also draws, deforms, tests for folds, takes distances at every layer, and
resamples for its intervals. Networks have the weights of the seed, images are random: neither changes the time. On two
threads of a small machine the distances wait for memory, which the forwards hardly do, so there the ratio is higher.
"""

from __future__ import annotations

import itertools
import os
import sys
from typing import Any

import torch
from timing import Timing, arguments, clock, publish, race, spent_in, table

import lisse
from lisse.instruments import Stability, stability
from lisse.instruments.stability import answers, rows, views
from lisse.networks import zoo
from lisse.run import Run

BAR = 1.15
CUTS = (3, 5, 15)


def inputs_of(run: Run, options: Stability, n: int) -> list[torch.Tensor]:
    """Every batch that the instrument feeds, in its order."""
    seen: list[torch.Tensor] = []
    handle = run.model.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    try:
        options.part(run)
    finally:
        handle.remove()
    return [batch for batch in seen if len(batch) == run.batch or n < run.batch]  # without the few reference samples


def bare(model: torch.nn.Module, inputs: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for batch in inputs:
            model(batch)


def where_time_goes(run: Run, options: Stability) -> str:
    """Seconds of one measurement, by part."""
    places: list[tuple[Any, str]] = [
        (answers, "squared_distances"),
        (views, "deform"),
        (views, "bijective"),
        (stability, "stability_rows"),
        (answers.ViewPass, "_reference_pass"),
        (rows, "resampled_centre"),
    ]
    whole, spent = spent_in(places, lambda: options.part(run))
    parts = ", ".join(f"{name} {clock(seconds)}" for name, seconds in spent.items())
    return f"One measurement of {clock(whole)}: {parts}; nearly all of the rest are forwards."


def floor(run: Run, n: int, views: int) -> str:
    """Bytes that the distances must read, and the time that takes at the speed of a copy on this machine."""
    numbers = sum(tap.numel for tap in run.taps)
    moved = 4 * n * numbers * (2 + 2 + 2 * views)  # a copy of the clean pass, its pairs, and both sides of every view
    a = torch.rand(run.batch, 64 * 32 * 32)
    b = torch.empty_like(a)
    (timing,) = race({"copy": lambda: b.copy_(a)}, rounds=5)
    return f"{moved / 1e9:.1f} GB, {clock(moved / (8 * a.numel() / timing.best))}"


def main() -> int:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--threads", default="1,2", help="numbers of threads, one after the other")
    parser.add_argument("--networks", default="resnet18,resnet56")
    parser.add_argument("--samples", type=int, default=500)
    options = parser.parse_args()
    counts = [int(count) for count in options.threads.split(",")]
    n = options.samples
    data = lisse.data.as_dataset(torch.rand(n, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    instrument = Stability(cut=CUTS, samples=n)
    body, over = [], []
    for threads, name in itertools.product(counts, options.networks.split(",")):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        model = zoo.build(name).eval()
        run = Run(model, data)
        inputs = inputs_of(run, instrument, n)
        assert sum(map(len, inputs)) == n * (1 + 2 * len(CUTS)), "not the forwards that are to be compared"
        timings: list[Timing] = race(
            {
                "bare forwards": lambda model=model, inputs=inputs: bare(model, inputs),
                "Stability": lambda run=run: instrument.part(run),
            },
            rounds=options.rounds,
        )
        ratio = timings[1].best / timings[0].best
        body.append(f"## {name}, {len(run.taps)} layers, {n} images, cuts {CUTS}, threads: {threads}\n")
        body.append(table(timings))
        body.append(f"\nBar: {BAR:g}. {where_time_goes(run, instrument)}")
        body.append(f"Floor of the distances: {floor(run, n, 2 * len(CUTS))} at the speed of a copy.\n")
        if ratio > BAR:
            over.append(f"{name}, threads: {threads}: {ratio:.3f} > {BAR:g}")
        run.close()
    publish("stability", "Stability: the whole instrument", "\n".join(body), write=options.write)
    sys.stderr.writelines(f"over the bar: {line}\n" for line in over)
    return 1 if over else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    sys.exit(main())
