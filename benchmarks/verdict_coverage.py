"""How often does the interval of a headline, at the size of a report, hold what ten times as many samples give?

One measurement of a network at ten times the samples leaves its values sample by sample; random tenths of them are what
a report may have drawn. The share of tenths whose interval holds the number of all is to be 95 %, and a little more,
since a tenth is a part of the whole. The shape of the data is a number of clouds: there, whole measurements with other
seeds (other samples) are asked about the mean of them all.

    python benchmarks/verdict_coverage.py [--draws 200] [--seeds 40] [--share 1] [--write] [SPEC DATA …]

A LeNet trained on 2,000 images of MNIST, if no networks are named: a few minutes of one core. Networks that are named
have a table of their own, `verdict-coverage-NETWORKS.md`; a ResNet-20 on CIFAR-10 takes about ten minutes with
`--share 0.2`.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterator

import numpy as np
import torch
from timing import publish
from torch import nn
from verdict_cases import fitted

import lisse
from lisse.instruments import Robustness, Sensitivity, Stability, Topology
from lisse.maths.comparison import statistic_of
from lisse.maths.intervals import bootstrap, share_interval
from lisse.maths.relative_stability import percentile_interval, resample_counts, resampled_centre
from lisse.run import Instrument


def tenfold(share: float) -> tuple[Instrument, ...]:
    """Ten times the samples of a report; ``share`` of them for what takes long on a large network."""
    return (
        Sensitivity(samples=1000, clouds=1, points=2, max_iter=15, draws=640, margins=3000),
        Robustness(
            corruptions=("gaussian_noise", "defocus_blur", "fog", "jpeg_compression"), severities=(1, 3, 5),
            attacks=("fgsm",), eps=(0.1,), sigma=(), delta=(), samples=round(3000 * share), clean=10000,
            distances=round(1000 * share),
        ),
        Stability(samples=round(5000 * share)),
    )  # fmt: skip


def ends(values: torch.Tensor, statistic: str, generator: torch.Generator) -> tuple[float, float]:
    """The interval of a row, as its instrument makes it."""
    if statistic == "ratio of medians":
        counts = resample_counts(len(values), generator=generator)
        above, below = (values[:, side] for side in (0, 1))
        value = torch.tensor(statistic_of(values, statistic))
        both = (resampled_centre(side, counts=counts, statistic="median", sizes=None) for side in (above, below))
        found = percentile_interval(value, *both, n=len(values), level=0.95)
    elif statistic == "mean" and set(values.unique().tolist()) <= {0.0, 1.0}:
        found = share_interval(float(values.mean()), len(values))
    else:
        found = bootstrap(values, statistic, generator=generator)
    return float(found.low), float(found.high)


def by_samples(
    model: nn.Module, data: lisse.data.Dataset, draws: int, share: float
) -> Iterator[tuple[str, int, int, int, float]]:
    for instrument in tenfold(share):  # one by one, so that what is counted is printed while the next is measured
        (part,) = lisse.measure(model, data, instrument)
        for quantity in part.quantities:
            array = part.arrays.get(f"samples/{quantity.name}")
            if array is None or not quantity.judges:
                continue
            values, generator = torch.from_numpy(array).double(), torch.Generator().manual_seed(0)
            whole, n, hits = statistic_of(array, quantity.statistic), len(array) // 10, 0
            for _ in range(draws):
                rows = torch.randperm(len(values), generator=generator)[:n]
                low, high = ends(values[rows], quantity.statistic, generator)
                hits += low <= whole <= high
            yield quantity.headline.label, n, draws, hits, whole


def by_seeds(model: nn.Module, data: lisse.data.Dataset, seeds: int) -> Iterator[tuple[str, int, int, int, float]]:
    rows = []
    for seed in range(seeds):
        part = lisse.measure(model, data, Topology(samples=200, clouds=5, dims=(0, 1), p=(1,)), seed=seed)["topology"]
        block = [row for row in part.rows if row.quantity == "shape_distance" and row.at["dim"] == "all"][-2:]
        rows.append(block[0])
    whole = float(np.mean([row.value for row in rows]))
    yield "shape", rows[0].n, seeds, sum(row.low <= whole <= row.high for row in rows), whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", metavar="SPEC DATA")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--share", type=float, default=1.0, help="of the samples of Stability and Robustness")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    lines = [
        "| network | headline | samples | draws | intervals that hold it | value of ten times |",
        "|---|" + "---|" * 5,
    ]
    pairs = list(zip(given.networks[::2], given.networks[1::2], strict=True))
    networks = [
        (f"{spec.partition('?')[0]}, {data}", lisse.load_model(spec), lisse.load_data(data)) for spec, data in pairs
    ]
    kept = "-".join(["verdict-coverage", *(re.sub(r"\W+", "-", name.removeprefix("zoo:")) for name, _, _ in networks)])
    if not networks:
        model = lisse.load_model("zoo:lenet?in_channels=1&size=28&mean=none&seed=0")
        model = fitted(model, lisse.load_data("mnist", split="train", limit=2000), epochs=20)
        networks = [("LeNet, MNIST", model, lisse.load_data("mnist"))]
    for name, model, data in networks:
        for label, n, draws, hits, whole in itertools.chain(
            by_samples(model, data, given.draws, given.share), by_seeds(model, data, given.seeds)
        ):
            ends_of = share_interval(hits / draws, draws)
            lines.append(
                f"| {name} | {label} | {n:,} | {draws} | {hits / draws:.3f} [{float(ends_of.low):.3f}, "
                f"{float(ends_of.high):.3f}] | {whole:.4g} |"
            )
            print(lines[-1], flush=True)
    publish(kept, "Intervals of headlines against ten times the samples", "\n".join(lines), write=given.write)


if __name__ == "__main__":
    main()
