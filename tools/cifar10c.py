"""Published ResNets on our CIFAR-10-C: accuracy under every corruption, severities 1 to 5, as a Markdown table.

    python tools/cifar10c.py --networks 20 32 44 56 --limit 10000 --device cuda --out FOLDER

Needs CIFAR-10's test set, the checkpoints (akamaster/pytorch_resnet_cifar10) and the frost textures under LISSE_DATA.
The corrupted images are made as they are needed, in the published variant; every network sees the same. The same
command goes on after a stop; profiles are kept in FOLDER.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch

import lisse
from lisse.instruments import Robustness
from lisse.maths.corruption import CORRUPTIONS, MAIN
from lisse.profile import Profile
from lisse.progress import Bar

FILES = {
    20: "resnet20-12fca82f.th",
    32: "resnet32-d509ac18.th",
    44: "resnet44-014dd654.th",
    56: "resnet56-4bfd9763.th",
}


def profile_of(depth: int, options: argparse.Namespace) -> Profile:
    """Measure one network, unless that has been done."""
    file = options.out / f"resnet{depth}-{options.limit}-seed{options.seed}.profile"
    if file.is_file():
        return Profile.load(file)
    weights = Path(os.environ["LISSE_DATA"]) / "checkpoints" / FILES[depth]
    model = lisse.load_model(f"zoo:resnet{depth}?weights={weights}", device=options.device)
    # Without a seed all images in their order; with a limit a seeded choice of them.
    data = lisse.load_data("cifar10", limit=options.limit, seed=options.seed if options.limit < 10_000 else None)
    instrument = Robustness(corruptions=("all",), attacks=(), sigma=(), delta=(), samples=options.limit)
    with Bar() as bar:
        profile = instrument.measure(
            model, data, seed=options.seed, batch=options.batch, cache=options.out / "cache", progress=bar,
            name=f"ResNet-{depth}",
        )  # fmt: skip
    profile.save(file)
    return profile


def table(profiles: list[Profile]) -> str:
    """Mean accuracies over severities in per cent, with intervals; corruptions downwards."""
    lines = ["| corruption | " + " | ".join(profile.name for profile in profiles) + " |"]
    lines.append("|---|" + "---|" * len(profiles))
    cells: dict[str, list[str]] = {}
    for profile in profiles:
        clean = next(row for row in profile.rows if row.quantity == "clean_accuracy")
        cells.setdefault("clean", []).append(_cell(clean.value, clean.low, clean.high))
        means = {str(row.at["corruption"]): row for row in profile.rows if row.quantity == "mean_accuracy"}
        for name in CORRUPTIONS:
            if name in means:
                row = means[name]
                cells.setdefault(name, []).append(_cell(row.value, row.low, row.high))
        right = {name: means[name].value for name in MAIN if name in means}
        cells.setdefault(f"mean of the {len(right)} main ones", []).append(_cell(sum(right.values()) / len(right)))
    lines += [f"| {name} | " + " | ".join(row) + " |" for name, row in cells.items()]
    return "\n".join(lines)


def _cell(value: float, low: float | None = None, high: float | None = None) -> str:
    interval = "" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
    return f"{100 * value:.1f}{interval}"


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--networks", type=int, nargs="+", choices=sorted(FILES), default=sorted(FILES))
    parser.add_argument("--limit", type=int, default=10_000, help="images (default: all 10,000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    profiles = []
    for depth in options.networks:
        profiles.append(profile_of(depth, options))
        (options.out / "table.md").write_text(table(profiles) + "\n", encoding="utf-8")
    sys.stdout.write(table(profiles) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
