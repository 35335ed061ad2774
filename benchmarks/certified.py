"""Certified ≤ true ≤ attacked, sample by sample: how far no change loses the answer, and how near one does.

python benchmarks/certified.py --write    # needs MNIST, CIFAR-10 and the checkpoint under LISSE_DATA

Networks that ``lisse.train`` made here (three epochs of the default recipe on all training images, seed 0, no
augmentation; ``lipschitz=L`` caps the whole network's constant), and the published ResNet-20 of CIFAR-10. The first
images of the test set in the order of seed 0. Certified: ``certified_radius``, the larger of linear relaxation and of
the weights' promise. Attacked: the distance that a search with PGD's gradients finds, which is never too small. An
image that the network gets wrong has 0 on both sides and counts among n, in the medians too.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

import lisse
from lisse.instruments import Robustness
from lisse.training import Recipe

Norm = Literal["l2", "linf"]
DEEP = "ResNet-20, published"
REFINE = {DEEP: 512}  # units of a layer from which there is a walk back; of nineteen layers all would take hours
SHARES = {"fc2": 1, "fc2, lipschitz=3": 1, DEEP: 50}  # one image in so many; else in ten
CHECKPOINT = "checkpoints/resnet20-12fca82f.th"


def trained(data: str, spec: str, lipschitz: float | None, limit: int | None) -> nn.Module:
    """A network from its first weights on."""
    model = lisse.load_model(spec)
    recipe = Recipe(epochs=3, lipschitz=lipschitz)
    lisse.train(model, lisse.load_data(data, split="train", limit=limit), recipe=recipe, seed=0, augment=None)
    return model.eval()


def networks(limit: int | None) -> dict[tuple[str, str], Callable[[], nn.Module]]:
    """By data set and name."""
    fc, conv = "zoo:fc2?in_channels=1&size=28&mean=none&seed=0", "zoo:lenet?in_channels=1&size=28&mean=none&seed=0"
    colour = "zoo:lenet?mean=none&seed=0"
    return {
        ("mnist", "fc2"): lambda: trained("mnist", fc, None, limit),
        ("mnist", "fc2, lipschitz=3"): lambda: trained("mnist", fc, 3.0, limit),
        ("mnist", "lenet"): lambda: trained("mnist", conv, None, limit),
        ("cifar10", "lenet, lipschitz=10"): lambda: trained("cifar10", colour, 10.0, limit),
        ("cifar10", DEEP): lambda: lisse.load_model(
            f"zoo:resnet20?weights={Path(os.environ['LISSE_DATA']) / CHECKPOINT}"
        ),
    }


def interval(row: Any) -> str:
    """A value and its ends, where the images are enough for them."""
    return f"{row.value:.3g}" + ("" if row.low is None else f" ({row.low:.3g} … {row.high:.3g})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="Write benchmarks/results/certified.md.")
    parser.add_argument("--samples", type=int, default=100, help="Test images of fc2; of the others fewer.")
    parser.add_argument("--steps", type=int, default=40, help="Of the attack, at every size that it tries.")
    parser.add_argument("--only", default="", help="Networks whose name holds this; the others' rows stay as they are.")
    parser.add_argument("--limit", type=int, help="Train on at most this many images.")
    options = parser.parse_args()
    header = "network | norm | n | right | certified, median | attacked, median | attacked / certified | violated | s"
    path = Path(__file__).parent / "results" / "certified.md"
    former = path.read_text(encoding="utf-8").splitlines() if options.only and path.exists() else []
    lines = [f"| data | {header} |", "|---" * 10 + "|"]
    for (data, name), build in networks(options.limit).items():
        if options.only not in name:
            lines += [line for line in former if line.startswith(f"| {data} | {name} |")]
            continue
        model = build()
        few = max(1, options.samples // SHARES.get(name, 10))
        test = lisse.load_data(data, split="test", limit=few)
        norms: tuple[Norm, ...] = ("l2", "linf")
        for norm in norms:
            clock = time.perf_counter()
            instrument = Robustness(
                corruptions=(), attacks=("pgd",), eps=(0.0,), sigma=(), delta=(), norm=norm, steps=options.steps,
                clip=False, samples=len(test), distances=len(test), certified=len(test),
                refine=REFINE.get(name, 1024),
            )  # fmt: skip
            profile = lisse.measure(model, test, instrument, batch=50)
            seconds = time.perf_counter() - clock
            rows = {row.quantity: row for row in profile.rows}
            arrays = profile.parts[0].arrays
            low, high = (torch.as_tensor(arrays[f"samples/{key}"]) for key in ("certified_radius", "attack_distance"))
            both = low > 0
            room = (high[both] / low[both]).median() if both.any() else torch.tensor(torch.inf)
            lines.append(
                f"| {data} | {name} | {norm} | {len(low)} | {float((high > 0).double().mean()):.0%} | "
                f"{interval(rows['certified_radius'])} | {interval(rows['attack_distance'])} | {float(room):.3g} | "
                f"{int((low > high).sum())} | {seconds:.0f} |"
            )
            print(lines[-1], flush=True)
    if options.write:
        head = (
            f"# Certified ≤ true ≤ attacked\n\ntorch {torch.__version__}, 2 cores, shared; medians with 95 % "
            "intervals over images (bootstrap), attacked / certified the median over the images of which something is "
            "certified, violated the images whose certified radius is over the attack's. Made by `python "
            "benchmarks/certified.py --write`, which says what the networks are.\n\n"
        )
        path.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
