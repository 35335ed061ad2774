"""The whole Propagation instrument against the bare forward with attention weights: ViT-Base shape, 64 images.

Bare: the network in the same batches under ``no_grad``, its attention matrices computed and seen (a forward pre-hook
and a hook on every softmax keep a reference, as an instrument that reads them must). The instrument also finds the
places (forwards on two and on three images), reads four places of every block, and makes all its numbers and intervals.
Weights are those of the seed, images are random: neither changes the time.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from timing import arguments, clock, publish, race, spent_in, table

import lisse
from lisse.instruments import Propagation, propagation
from lisse.instruments.propagation import reading
from lisse.networks import zoo
from lisse.networks.zoo.vit import SplitHeadAttention
from lisse.run import Run

BAR = 1.5


def bare(model: torch.nn.Module, images: torch.Tensor, batch: int) -> list[torch.Tensor]:
    """The forward, every attention matrix seen."""
    seen: list[torch.Tensor] = []
    hooks = [
        module.softmax.register_forward_hook(lambda _, args, out: seen.append(out[:1, :1, :1, :1].clone()))
        for module in model.modules()
        if isinstance(module, SplitHeadAttention)
    ]
    try:
        with torch.no_grad():
            for start in range(0, len(images), batch):
                model(images[start : start + batch])
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def where_time_goes(run: Run, options: Propagation) -> str:
    """Seconds of one measurement, by part."""
    names = ("steps", "heads_of", "kernel", "added_rank", "distances", "row_sum_error", "_factor")
    places: list[tuple[Any, str]] = [(reading, name) for name in names]
    places += [(propagation, "stages_of"), (propagation, "bootstrap"), (reading.Rings, "of")]
    whole, spent = spent_in(places, lambda: options.part(run))
    parts = ", ".join(f"{name} {clock(seconds)}" for name, seconds in spent.items())
    return f"One measurement of {clock(whole)}: {parts}; nearly all of the rest is the forward."


def main() -> int:
    parser = arguments(__doc__, rounds=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    n, batch = options.samples, options.batch
    images = torch.rand(n, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    model = zoo.build("vit_base", size=224, patch=16).eval()
    run = Run(model, lisse.data.as_dataset(images), batch=batch)
    instrument = Propagation(samples=n)
    timings = race(
        {"forward with attention": lambda: bare(model, images, batch), "Propagation": lambda: instrument.part(run)},
        rounds=options.rounds, warmup=0,
    )  # fmt: skip
    ratio = timings[1].best / timings[0].best
    blocks, tokens, width = 12, 197, 768
    # What the instrument must at least do: apply the mean attention once more, and read four places of every block.
    again = n * blocks * 2 * tokens**2 * width
    whole = n * blocks * (2 * tokens * 12 * width**2 + 2 * tokens**2 * width * 2)
    read = 4 * n * blocks * (6 * tokens * width + 12 * tokens**2)
    body = [
        f"ViT-Base shape (12 × 768, 196 patches), {n} images in batches of {batch}, {options.threads} threads.\n",
        table(timings),
        f"\nBar: {BAR:g}. Floor: {again / whole:.1%} of the forward's products again, {read / 1e9:.1f} GB read once; "
        f"places are found on 5 images, {5 / n:.1%}. {where_time_goes(run, instrument)}\n",
    ]
    publish("propagation", "Propagation: the whole instrument", "\n".join(body), write=options.write)
    run.close()
    if ratio > BAR:
        sys.stderr.write(f"over the bar: {ratio:.3f} > {BAR:g}\n")
    return int(ratio > BAR)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    sys.exit(main())
