"""Which spread should a cloud be divided by? The shape at the last block of published ResNets, under three of them.

Twelve disjoint clouds of 80 test images of CIFAR-10, the same for every network and spread; each network beside the
same one with random weights (batch norms calibrated on 500 training images). *Scatter*: the standard deviation over
clouds as a share of the mean. *Apart*: Welch's t between trained and random weights. *One far point*: by what share the
number moves when one activation of each cloud is moved to ten times its distance from the centroid.

    python benchmarks/spreads.py [--write]

LISSE_DATA: CIFAR-10, and checkpoints/resnet20-….th to resnet56-….th. About three minutes of one core.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import get_args

import torch
from timing import arguments, publish
from torch import Tensor, nn

import lisse
from lisse.maths.homology import diagram_distance
from lisse.maths.homology.divergence import normalised_diagram
from lisse.maths.spread import SpreadKind

KINDS: tuple[SpreadKind, ...] = get_args(SpreadKind)
CLOUDS, POINTS = 12, 80


def networks() -> dict[str, dict[str, nn.Module]]:
    """Every depth trained by others, and with random weights and calibrated batch norms."""
    folder = Path(os.environ["LISSE_DATA"]) / "checkpoints"
    batch = next(iter(lisse.load_data("cifar10", split="train", limit=500, seed=0).batches(500))).inputs
    pairs = {}
    for depth in (20, 32, 44, 56):
        (file,) = folder.glob(f"resnet{depth}-*.th")
        fresh = lisse.load_model(f"zoo:resnet{depth}?seed=0").train()
        with torch.no_grad():
            fresh(batch)
        pairs[f"ResNet-{depth}"] = {
            "trained": lisse.load_model(f"zoo:resnet{depth}?weights={file}").eval(), "random": fresh.eval()
        }  # fmt: skip
    return pairs


def distances(model: nn.Module, data: lisse.Dataset, *, far: bool = False) -> dict[SpreadKind, Tensor]:
    """``[clouds]`` per spread: W1 of H0 and H1 from the cloud of images to the one at the last block."""
    recording = lisse.record(model, data.batches(100))
    block = [name for name in recording if "layer3" in name][-1]
    images = torch.cat([batch.inputs for batch in data.batches(500)]).flatten(1).double()
    features = torch.as_tensor(recording[block]).flatten(1).double()
    values: dict[SpreadKind, list[float]] = {kind: [] for kind in KINDS}
    for rows in torch.arange(CLOUDS * POINTS).reshape(CLOUDS, POINTS):
        before, after = images[rows], features[rows].clone()
        if far:
            after[0] = after.mean(0) + 10 * (after[0] - after.mean(0))
        for kind in KINDS:
            first, second = (normalised_diagram(cloud, kind=kind) for cloud in (before, after))
            values[kind].append(float(diagram_distance(first, second, dim=None, p=1.0)))
    return {kind: torch.tensor(numbers) for kind, numbers in values.items()}


def main() -> int:
    options = arguments(__doc__).parse_args()
    data = lisse.load_data("cifar10", limit=CLOUDS * POINTS, seed=0)
    lines = []
    for name, pair in networks().items():
        trained, random = distances(pair["trained"], data), distances(pair["random"], data)
        moved = distances(pair["trained"], data, far=True)
        for kind in KINDS:
            a, b = trained[kind], random[kind]
            t = float((a.mean() - b.mean()) / ((a.var() + b.var()) / CLOUDS).sqrt())
            lines.append([
                name, kind, f"{a.mean():.3g}", f"{a.std() / a.mean():.1%}", f"{b.mean():.3g}", f"{t:+.1f}",
                f"{(moved[kind] / a - 1).median():+.1%}",
            ])  # fmt: skip
    columns = ["network", "spread", "shape, trained", "scatter", "random weights", "apart (t)", "one far point"]
    rows = [columns, ["---"] * len(columns), *lines]
    body = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    publish("spreads", "Spreads to divide a cloud by", f"{CLOUDS} clouds of {POINTS}.\n\n{body}", write=options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
