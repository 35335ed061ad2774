"""What a step of each recipe costs over a plain one, beside its floor and a bare loop of the same mathematics.

The floor counts passes, forward and backward, over as many samples as a plain step has: PGD of k steps needs k + 1. The
bare loops (plain, fgsm, pgd, gradient) keep the images on the device as bytes and do nothing but the mathematics: no
log, no check of the loss. The watch for catastrophic overfitting, at the ends of epochs, is not in a step: it adds at
most a twentieth of the passes. Images are random, so that no data set is needed.

    python benchmarks/recipes.py                   # CPU: LeNet, batch 128
    python benchmarks/recipes.py --device cuda     # GPU: ResNet18, batch 512, bf16, channels last
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch
from timing import arguments, publish
from torch import nn
from torch.nn import functional

import lisse
from lisse.data import Dataset
from lisse.training import Recipe

EPS = 8 / 255
# Options of a recipe, and its floor in passes of a plain step.
WAYS: dict[str, tuple[dict[str, object], str]] = {
    "plain": ({}, "1"),
    "fgsm": ({"adversary": "fgsm"}, "2"),
    "pgd, 7 steps": ({"adversary": "pgd", "adversary_steps": 7}, "8"),
    "trades, 7 steps": ({"adversary": "trades", "adversary_steps": 7}, "9.3"),
    "gradient penalty": ({"penalties": ("gradient=0.1",)}, "2"),
    "jacobian penalty": ({"penalties": ("jacobian=0.01",)}, "2"),
    "isometric loss": ({"penalties": ("isometric=0.1@head:in",)}, "1"),
    "deformations": ({"deform": 1.0}, "1"),
    "augmix": ({"augmix": 12.0}, "3"),
}


def bare_loss(way: str, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The loss of a step in the fewest lines."""
    if way == "gradient penalty":
        x = x.requires_grad_()
        value = functional.cross_entropy(model(x).float(), y)
        (slope,) = torch.autograd.grad(value * len(x), x, create_graph=True)
        return value + 0.1 * slope.square().sum() / len(x)
    if way != "plain":
        steps = 1 if way == "fgsm" else 7
        length = 1.25 * EPS if way == "fgsm" else 2.5 * EPS / 7
        model.eval()
        z = (x + EPS * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
        for _ in range(steps):
            z.requires_grad_()
            (slope,) = torch.autograd.grad(functional.cross_entropy(model(z).float(), y), z)
            z = (z.detach() + length * slope.sign()).clamp(x - EPS, x + EPS).clamp(0, 1)
        model.train()
        x = z
    return functional.cross_entropy(model(x).float(), y)


def bare(way: str, model: nn.Module, data: Dataset, options: argparse.Namespace) -> float:
    """Seconds of a step of a bare loop, from the second epoch on."""
    images, labels = data.inputs, data.targets
    assert isinstance(images, torch.Tensor)
    assert labels is not None
    cuda = images.is_cuda
    last = torch.channels_last if cuda else torch.contiguous_format
    model.train().to(memory_format=last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4, fused=True)
    start, steps = 0.0, 0
    for epoch in range(options.epochs + 1):
        if epoch == 1:
            start, steps = now(cuda), 0
        for rows in torch.randperm(len(images), device=images.device).split(options.batch):
            x = images[rows].float().div_(255).contiguous(memory_format=last)
            with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=cuda):
                loss = bare_loss(way, model, x, labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            steps += 1
    return (now(cuda) - start) / steps


def ours(way: str, model: nn.Module, data: Dataset, options: argparse.Namespace) -> float:
    """Seconds of a step of ``lisse.train``, from the second epoch on."""
    marks: list[float] = []

    per_epoch = -(-len(data) // options.batch)

    def mark(moment: lisse.training.Moment) -> None:
        if moment.when == "step" and moment.step > per_epoch and moment.step % per_epoch in (0, 1):
            marks.append(now(options.device.startswith("cuda")))

    recipe = Recipe(
        optimizer="sgd", lr=1e-4, weight_decay=5e-4, batch=options.batch, epochs=options.epochs + 1, eps=EPS,
        schedule="constant", warmup=0.0, **WAYS[way][0],  # type: ignore[arg-type]
    )  # fmt: skip
    precision = "bf16-mixed" if options.device.startswith("cuda") else None
    lisse.train(model, data, recipe=recipe, device=options.device, callbacks=[mark], precision=precision)
    epochs = [last - first for first, last in zip(marks[::2], marks[1::2], strict=True)]
    return sum(epochs) / len(epochs) / (per_epoch - 1)


def now(cuda: bool) -> float:
    """The clock once the device is done; on a CPU with one thread the time of the process."""
    if cuda:
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def main() -> int:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default %(default)s)")
    parser.add_argument("--samples", type=int, help="images (default: 10,240 on a GPU, 1,280 on a CPU)")
    parser.add_argument("--batch", type=int, help="default: 512 on a GPU, 128 on a CPU")
    parser.add_argument("--epochs", type=int, default=2, help="timed epochs of a round (default %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cuda = options.device.startswith("cuda")
    torch.backends.cudnn.benchmark = True
    name, size, channels = ("resnet18", 32, 3) if cuda else ("lenet", 28, 1)
    options.batch = options.batch or (512 if cuda else 128)
    options.samples = options.samples or (10_240 if cuda else 1_280)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (options.samples, channels, size, size), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 10, (options.samples,), generator=generator)
    data = Dataset("random", images, labels).to(options.device)

    def network() -> nn.Module:
        return lisse.load_model(f"zoo:{name}?in_channels={channels}&size={size}", device=options.device)

    bares = ("plain", "fgsm", "pgd, 7 steps", "gradient penalty")
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    bare_times: dict[str, list[float]] = {way: [] for way in bares}
    for _ in range(options.rounds):
        for way in WAYS:
            times[way].append(ours(way, network(), data, options))
            if way in bares:
                bare_times[way].append(bare(way, network(), data, options))
    best = {way: min(values) for way, values in times.items()}
    lines = [
        "| recipe | step, ms | median | over plain | floor | a bare loop, ms | ours over it |",
        "|---|---|---|---|---|---|---|",
    ]
    for way, (_, floor) in WAYS.items():
        alone = min(bare_times[way]) if way in bares else None
        beside = ["", ""] if alone is None else [f"{1e3 * alone:.2f}", f"{best[way] / alone:.2f}"]
        middle = 1e3 * statistics.median(times[way])
        cells = [way, f"{1e3 * best[way]:.2f}", f"{middle:.2f}", f"{best[way] / best['plain']:.2f}", floor, *beside]
        lines.append("| " + " | ".join(cells) + " |")
    head = f"{name}, batch {options.batch}, {options.samples:,} random images of {channels} × {size}², "
    head += "bf16 and channels last" if cuda else "float32, one thread, seconds of the process"
    text = (
        f"{head}; best and median of {options.rounds} rounds of {options.epochs} epochs.\n\n" + "\n".join(lines) + "\n"
    )
    publish("recipes-gpu" if cuda else "recipes", "Recipes", text, write=options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
