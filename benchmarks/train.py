"""What a training costs beside a bare PyTorch loop over resident tensors: at most 1.2× (GPU), 1.1× (CPU).

The bare loop keeps the images on the device as bytes, shuffles, makes floats, and does forward, backward and step: no
log, no test, no augmentation, no check of the loss. `lisse.train` does all that it always does; its crops and flips are
timed apart. Images are random, so that no data set is needed. On a CPU with one thread the time is that of the process,
which other work on the machine does not lengthen.

    python benchmarks/train.py                                                     # CPU: LeNet and ResNet18 steps
    python benchmarks/train.py --device cuda --model resnet18 --samples 50000      # GPU: epochs, batch 512, bf16
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time

import torch
from timing import Timing, arguments, clock, publish, table
from torch import nn

import lisse
from lisse.data import Dataset
from lisse.data.augmentation import CropFlip
from lisse.training import Recipe

LIMITS = {"cpu": 1.1, "cuda": 1.2}
FORWARD = {"lenet": 0.65e6, "resnet18": 0.56e9, "resnet50": 1.31e9, "resnet101": 2.53e9}  # multiply-adds of one image


def bare(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, options: argparse.Namespace) -> None:
    """One epoch in the fewest lines that train a network well on this device."""
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4, fused=True)
    half = images.is_cuda and options.precision == "bf16-mixed"
    mixed = torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=half)
    last = torch.channels_last if images.is_cuda else torch.contiguous_format
    model.train()
    order = torch.randperm(len(images), device=images.device)
    for rows in order.split(options.batch):
        x = images[rows].float().div_(255).contiguous(memory_format=last)
        with mixed:
            output = model(x)
        loss = nn.functional.cross_entropy(output.float(), labels[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def contest(name: str, options: argparse.Namespace) -> tuple[str, float]:
    """The table of one network, and our ratio without augmentation."""
    device = torch.device(options.device)
    cuda = device.type == "cuda"
    now = time.process_time if not cuda and options.threads == 1 else time.perf_counter
    size, channels = (28, 1) if name == "lenet" else (32, 3)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (options.samples, channels, size, size), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 10, (options.samples,), generator=generator)
    data = Dataset("random", images, labels).to(device)
    spec = f"zoo:{name}?in_channels={channels}&size={size}"
    models = [lisse.load_model(spec, device=device) for _ in range(3)]
    if cuda:
        torch.backends.cudnn.benchmark = True
        models[0] = models[0].to(memory_format=torch.channels_last)
    recipe = Recipe(
        optimizer="sgd", lr=1e-4, weight_decay=5e-4, batch=options.batch, epochs=1, schedule="constant", warmup=0.0
    )
    recipe = dataclasses.replace(recipe, batch=min(options.batch, options.samples))
    precision = options.precision if cuda else None

    # A long training pays for its start once: ours is timed from the end of its first epoch to the end of its last.
    def ours(model: nn.Module, augment: CropFlip | None) -> float:
        marks: list[float] = []

        def mark(moment: lisse.training.Moment) -> None:
            if moment.when == "epoch":
                if cuda:
                    torch.cuda.synchronize()
                marks.append(now())

        lisse.train(
            model, data, recipe=recipe, epochs=1 + options.epochs, augment=augment, callbacks=[mark],
            precision=precision, device=device,
        )  # fmt: skip
        return marks[-1] - marks[0]

    def theirs() -> float:
        bare(models[0], data.inputs, data.targets, options)  # type: ignore[arg-type]
        if cuda:
            torch.cuda.synchronize()
        start = now()
        for _ in range(options.epochs):
            bare(models[0], data.inputs, data.targets, options)  # type: ignore[arg-type]
        if cuda:
            torch.cuda.synchronize()
        return now() - start

    contenders = {
        "bare loop": theirs,
        "lisse.train": lambda: ours(models[1], None),
        "lisse.train, crop and flip": lambda: ours(models[2], CropFlip(4, True)),
    }
    # In turns; each contender says itself how long its epochs took.
    seconds: dict[str, list[float]] = {contender: [] for contender in contenders}
    for turn in range(1 + options.rounds):
        for contender, work in contenders.items():
            lasted = work() / options.epochs
            if turn:
                seconds[contender].append(lasted)
    timings = [Timing(contender, tuple(found)) for contender, found in seconds.items()]
    steps = -(-options.samples // recipe.batch)  # type: ignore[operator]
    work = 3 * 2 * FORWARD[name] * options.samples if name in FORWARD else 0.0
    text = f"## {name}, {options.samples:,} images, batch {recipe.batch}, {precision or '32-true'}, {device}\n\n"
    text += table(timings) + "\n\n"
    text += (
        f"A step of the bare loop: {clock(timings[0].best / steps)}; of lisse.train: {clock(timings[1].best / steps)}. "
    )
    text += f"Limit of the ratio: {LIMITS[device.type]}. "
    if work:
        text += f"Floor: 3 forwards of work an image are {work / 1e12:.3g} TFLOP an epoch, which the bare loop does at "
        text += f"{work / timings[0].best / 1e12:.3g} TFLOP/s; the bare loop is the floor of the ratio.\n"
    return text, timings[1].best / timings[0].best


def main() -> int:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default %(default)s)")
    parser.add_argument("--model", action="append", help="a network of the zoo; may be repeated")
    parser.add_argument("--samples", type=int, help="images (default: 50,000 on a GPU, 20 batches on a CPU)")
    parser.add_argument("--batch", type=int, help="default: 512 on a GPU, 128 (LeNet) or 32 on a CPU")
    parser.add_argument("--epochs", type=int, default=2, help="timed epochs of a round (default %(default)s)")
    parser.add_argument("--precision", default="bf16-mixed", help="on a GPU (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cuda = options.device.startswith("cuda")
    body, over = [], []
    for name in options.model or (["resnet18"] if cuda else ["lenet", "resnet18"]):
        own = argparse.Namespace(**vars(options))
        own.batch = options.batch or (512 if cuda else 128 if name == "lenet" else 32)
        own.samples = options.samples or (50_000 if cuda else own.batch * (30 if name == "lenet" else 4))
        text, ratio = contest(name, own)
        body.append(text)
        limit = LIMITS["cuda" if cuda else "cpu"]
        if ratio > limit:
            over.append(f"{name}: {ratio:.3f} > {limit}")
    publish("train-gpu" if cuda else "train", "Training", "\n".join(body), write=options.write)
    sys.stderr.writelines(f"over the limit: {line}\n" for line in over)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
