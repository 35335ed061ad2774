"""Certified accuracy on MNIST of a network that was kept Lipschitz beside a plain one, and of other ways to keep it so.

python benchmarks/lipschitz.py --write    # needs MNIST under LISSE_DATA; some twenty minutes of one core

zoo:fc2 (two hidden layers of 64, ReLU, pixels in [0, 1]), three epochs of the default recipe, all 60,000 images; the
certificate is the margin over √2 times the proved bound of the weights (``lipschitz_radius``), on all 10,000 test
images, in ℓ2. Ways beside ``Recipe.lipschitz``: torch's parametrizations ``spectral_norm`` and ``orthogonal`` on every
layer, and orthogonium's ``OrthoLinear`` where it is installed, with logits times the constant.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import lisse
from lisse.networks.bounds import lipschitz_radius, of_module
from lisse.training import Recipe

SPEC = "zoo:fc2?in_channels=1&size=28&mean=none"
SIZES = (0.1, 0.5, 1.58)
CONSTANT = 3.0
SEEDS = (0, 1, 2)


class Scaled(nn.Module):
    """Layers of norm 1, and logits times the constant."""

    def __init__(self, wrap: Callable[[nn.Linear], nn.Module], seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        sizes = (784, 64, 64, 10)
        layers: list[nn.Module] = [nn.Flatten()]
        for index in range(3):
            layers += [wrap(nn.Linear(sizes[index], sizes[index + 1])), *([nn.ReLU()] if index < 2 else [])]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) * CONSTANT


def orthogonium(layer: nn.Linear) -> nn.Module:
    """Of the same sizes."""
    from orthogonium.layers.linear import OrthoLinear  # type: ignore[import-not-found]

    return OrthoLinear(layer.in_features, layer.out_features)


def networks(seed: int) -> dict[str, Callable[[], tuple[nn.Module, Recipe]]]:
    """What is trained, by name."""
    plain, kept = Recipe(epochs=3), Recipe(epochs=3, lipschitz=CONSTANT)
    spec = f"{SPEC}&seed={seed}"
    return {
        "plain": lambda: (lisse.load_model(spec), plain),
        f"lipschitz={CONSTANT:g}": lambda: (lisse.load_model(spec), kept),
        "lipschitz=10": lambda: (lisse.load_model(spec), Recipe(epochs=3, lipschitz=10.0)),
        "torch spectral_norm": lambda: (Scaled(parametrizations.spectral_norm, seed), plain),
        "torch orthogonal": lambda: (Scaled(parametrizations.orthogonal, seed), plain),
        "orthogonium OrthoLinear": lambda: (Scaled(orthogonium, seed), plain),
    }


def baked(model: nn.Module) -> nn.Module:
    """With plain weights in place of parametrizations."""
    for part in model.modules():
        if parametrize.is_parametrized(part):
            parametrize.remove_parametrizations(part, "weight")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="Write benchmarks/results/lipschitz.md.")
    parser.add_argument("--limit", type=int, help="Train on at most this many images.")
    options = parser.parse_args()
    data = lisse.load_data("mnist", split="train", limit=options.limit)
    test = lisse.load_data("mnist", split="test")
    (batch,) = test.batches(len(test))
    lines = ["| way | bound | accuracy | " + " | ".join(f"certified at {eps:g}" for eps in SIZES) + " | s |"]
    lines.append("|---" * (len(SIZES) + 4) + "|")
    for name in networks(0):
        numbers: list[list[float]] = []
        for seed in SEEDS:
            try:
                model, recipe = networks(seed)[name]()
            except ImportError:
                break
            clock = time.perf_counter()
            lisse.train(model, data, recipe=recipe, seed=seed, augment=None)
            seconds = time.perf_counter() - clock
            model = baked(model.eval())
            bound = of_module(model, radius=1.0, input_shape=(1, 28, 28)).value
            radii = lipschitz_radius(model, batch.inputs, batch.targets)
            with torch.no_grad():
                right = (model(batch.inputs).argmax(1) == batch.targets).double().mean()
            shares = [float((radii >= eps).double().mean()) for eps in SIZES]
            numbers.append([bound, float(right), *shares, seconds])
        if not numbers:
            continue
        cells = []
        for index, column in enumerate(zip(*numbers, strict=True)):
            share = 0 < index < len(SIZES) + 2
            mean, spread = statistics.mean(column), statistics.stdev(column)
            cells.append(f"{100 * mean:.1f} ± {100 * spread:.1f} %" if share else f"{mean:.3g}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    text = "\n".join(lines)
    if options.write:
        head = (
            f"# Kept Lipschitz, MNIST, ℓ2, pixels in [0, 1]\n\nMean ± standard deviation over {len(SEEDS)} seeds "
            f"({', '.join(map(str, SEEDS))}), {len(data):,} training and {len(test):,} test images, torch "
            f"{torch.__version__}. Made by `python benchmarks/lipschitz.py --write`; seconds are those of a shared "
            "machine.\n\n"
        )
        path = Path(__file__).parent / "results" / "lipschitz.md"
        path.write_text(head + text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
