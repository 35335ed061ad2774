"""The whole Contraction instrument against the bare forwards it must make: BERT-base shape, 256 pairs, all layers.

Bare: both sides of every pair through the same network, in the same batches under ``no_grad``. The instrument also
takes transport distances at every layer and of every head, bounds every layer's weights, takes local constants at 8
inputs, and resamples for its intervals. Weights are those of the seed and sentences random words, 24 to 32 tokens
long: neither changes the time. The floor is the arithmetic of a bare pass.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from timing import Timing, arguments, clock, publish, race, spent_in, table

from lisse.data import Dataset
from lisse.instruments import Contraction, contraction
from lisse.instruments.contraction import local
from lisse.instruments.contraction import pairs as pairs_module
from lisse.networks.zoo.text import bert
from lisse.run import Run

BAR = 2.0


def sentences(n: int, seed: int, *, least: int, most: int, vocabulary: int) -> Dataset:
    """Random words, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(least, most + 1, (n,), generator=generator)
    mask = (torch.arange(most)[None] < lengths[:, None]).long()
    ids = torch.randint(5, vocabulary, (n, most), generator=generator) * mask
    return Dataset("sentences", {"input_ids": ids, "attention_mask": mask}, None, lengths)


def bare(run: Run) -> None:
    """Both sides, nothing read."""
    partner = run.data.partner
    assert partner is not None
    run.model.eval()
    with torch.no_grad():
        for side in (run.data, partner):
            for batch in side.batches(run.batch):
                run.model(**batch.inputs)  # type: ignore[arg-type]


def where_time_goes(run: Run, options: Contraction) -> str:
    """Seconds of one measurement, by part."""
    places: list[tuple[Any, str]] = [
        (pairs_module, "wasserstein_batch"),
        (pairs_module, "tokens_of"),
        (contraction, "weight_bounds"),
        (contraction, "forms_of"),
        (contraction, "picture"),
        (contraction, "attention_of"),
        (local, "jacobian_norm"),
        (local, "head_terms"),
        (local, "log10_sum"),
        (local.LocalConstants, "block"),
    ]
    whole, spent = spent_in(places, lambda: options.part(run))
    return "\n".join(f"- {name}: {clock(seconds)}" for name, seconds in {"all of it": whole, **spent}.items())


def main() -> None:
    """See the module."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--pairs", type=int, default=256)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--threads", type=int, default=int(os.environ.get("OMP_NUM_THREADS", "2")))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    model = bert(layers=given.layers, width=768, heads=12, output="hidden")
    sides = [sentences(given.pairs, seed, least=24, most=32, vocabulary=30522) for seed in (0, 1)]
    data = Dataset("pairs", sides[0].inputs, None, sides[0].lengths, sides[1])
    run = Run(model, data, batch=64)
    options = Contraction(samples=given.pairs)
    timings: list[Timing] = race(
        {"bare forwards": lambda: bare(run), "Contraction": lambda: options.part(run)}, rounds=given.rounds, warmup=1
    )
    tokens = int(sum(32 * len(side) for side in sides))
    layer = sum(w.numel() for w in model.encoder.layer[0].parameters())  # type: ignore[index, union-attr]
    flops = 2.0 * layer * given.layers * tokens
    ratio = timings[1].best / timings[0].best
    body = (
        f"{given.pairs} pairs of 24 to 32 tokens, {given.layers} layers of width 768 with 12 heads, "
        f"{given.threads} threads; 8 points, intervals.\n\n{table(timings)}\n\n"
        f"Bar: at most {BAR:g} times the forwards: {ratio:.2f}, {'met' if ratio <= BAR else 'NOT met'}. "
        f"Floor of the forwards: {flops / 1e9:.0f} GFLOP, {flops / timings[0].best / 1e9:.0f} GFLOP/s reached.\n\n"
        f"Where the time goes:\n\n{where_time_goes(run, options)}"
    )
    publish("contraction", "Contraction against its forwards", body, write=given.write, packages=("transformers",))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
