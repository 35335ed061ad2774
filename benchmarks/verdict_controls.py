"""Which headlines tell a trained network from one with random weights, and from one that has learnt random labels?

A number that does not is no headline. LeNet and a two-layer perceptron on 2,000 images of MNIST, trained to 99 % of the
labels they were given (true, or drawn at random), or not at all; five seeds of each, measured on the same test images.
Groups of seeds are compared as the page does with `--join`: by their networks, corrected for all comparisons of a page.

    LISSE_DATA=FOLDER python benchmarks/verdict_controls.py [--seeds 5] [--folder PROFILES] [--write]

A number that failed, the distortion up to scale, stands in a last row by the same test without the correction.

About ten minutes of two cores. With a folder, profiles are kept there and found again.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from timing import publish
from torch import nn

import lisse
from lisse.instruments import Isometry, Robustness, Sensitivity, Stability, Topology
from lisse.maths.comparison import group_difference
from lisse.profile import Profile, last_block
from lisse.reporting import joined
from lisse.reporting.page.comparisons import compare_pairs
from lisse.reporting.page.entries import entries_of
from lisse.reporting.page.headline import headline_rows, roles
from lisse.run import Instrument

NETWORKS = {"LeNet": "zoo:lenet?in_channels=1&size=28", "perceptron": "zoo:fc2?in_channels=1&size=28&width=128"}
CONDITIONS = ("trained", "random weights", "random labels")
IMAGES, BATCH, MOST_EPOCHS, FITTED = 2000, 100, 200, 0.99

INSTRUMENTS: tuple[Instrument, ...] = (
    Topology(samples=100, clouds=5, p=(1,)),
    Stability(samples=300),
    Isometry(samples=100, clouds=3, holes=False, points=0),
    Sensitivity(samples=100, clouds=3, points=2, draws=64, max_iter=15, margins=300),
    Robustness(
        corruptions=("gaussian_noise", "defocus_blur", "fog", "jpeg_compression"), severities=(1, 3, 5),
        attacks=("fgsm",), eps=(0.1,), sigma=(), delta=(), samples=200, clean=2000, distances=100,
    ),
)  # fmt: skip


def network(kind: str, condition: str, seed: int) -> nn.Module:
    """One network; what it is told of an image depends on the condition, and everything random on the seed."""
    model = lisse.load_model(f"{NETWORKS[kind]}&seed={seed}&mean=none")
    if condition == "random weights":
        return model
    data = lisse.load_data("mnist", split="train", limit=IMAGES)
    generator = torch.Generator().manual_seed(seed)
    labels = data.targets if condition == "trained" else torch.randint(10, (IMAGES,), generator=generator)
    inputs = data.inputs.float() / 255
    adam = torch.optim.Adam(model.parameters(), 1e-3)
    model.train()
    for _ in range(MOST_EPOCHS):
        hits = 0
        for rows in torch.randperm(IMAGES, generator=generator).split(BATCH):
            logits = model(inputs[rows])
            adam.zero_grad()
            nn.functional.cross_entropy(logits, labels[rows]).backward()
            adam.step()
            hits += int((logits.argmax(1) == labels[rows]).sum())
        if hits >= FITTED * IMAGES:
            break
    print(f"{kind}, {condition}, seed {seed}: {hits / IMAGES:.1%} of its labels", flush=True)
    return model.eval()


def profile_of(kind: str, condition: str, seed: int, folder: Path | None) -> Profile:
    """The measurements of one network on the same 2,000 test images."""
    file = None if folder is None else folder / f"{kind}-{condition.replace(' ', '-')}-{seed}.profile"
    if file is not None and file.exists():
        return Profile.load(file)
    profile = lisse.measure(
        network(kind, condition, seed), test_images(), INSTRUMENTS, name=f"{kind}, {condition}, seed {seed}"
    )
    return profile if file is None else Profile.load(profile.save(file))


@functools.cache
def test_images() -> lisse.data.Dataset:
    return lisse.load_data("mnist", limit=2000)


def compared(first: Profile, second: Profile) -> dict[str, float]:
    """By headline, the p value of the page that joins each group of seeds."""
    entries = entries_of([first, second])
    (tests,) = compare_pairs(entries, [(entries.models[0], entries.models[1])]).values()
    return {test.heading.label: float(test.p) for test in tests if test.p is not None}


def bold(p: float | None) -> str:
    return "" if p is None else f"**{p:.2g}**" if p <= 0.05 else f"{p:.2g}"


def means(profile: Profile) -> dict[str, str]:
    return {label: f"{row.value:.3g}" for label, row in headline_rows(profile).items()}


def distortions(profiles: Sequence[Profile]) -> torch.Tensor:
    """The distortion up to scale at the last block, of each network."""
    numbers = []
    for profile in profiles:
        block = last_block(roles(profile))
        rows = (row for row in profile["isometry"].rows if row.quantity == "scale_free_distortion")
        numbers.append(next(row.value for row in rows if row.layer == block))
    return torch.tensor(numbers, dtype=torch.float64)


def table(kind: str, profiles: Mapping[str, Sequence[Profile]]) -> str:
    groups = {condition: joined(members, condition) for condition, members in profiles.items()}
    trained, weights, labels = (groups[condition] for condition in CONDITIONS)
    tests = compared(trained, weights), compared(trained, labels), compared(weights, labels)
    numbers = [means(groups[condition]) for condition in CONDITIONS]
    heads = ["headline", *CONDITIONS, "p: trained, random weights", "p: trained, random labels", "p: the other two"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for label in tests[0]:
        values = [number.get(label, "") for number in numbers]
        lines.append(f"| {' | '.join([label, *values, *(bold(test.get(label)) for test in tests)])} |")
    failed = [distortions(profiles[condition]) for condition in CONDITIONS]
    p = [bold(group_difference(*pair).p) for pair in itertools.combinations(failed, 2)]
    cells = ["distortion up to scale (no headline; p not corrected)", *(f"{group.mean():.3g}" for group in failed), *p]
    lines.append(f"| {' | '.join(cells)} |")
    return f"### {kind}\n\n" + "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
    tables = []
    for kind in NETWORKS:
        profiles = {
            condition: [profile_of(kind, condition, seed, given.folder) for seed in range(given.seeds)]
            for condition in CONDITIONS
        }
        tables.append(table(kind, profiles))
    text = (
        f"Means over {given.seeds} seeds. p: of the page that joins the seeds of each (Welch's test over networks, "
        "Holm's correction for all judging headlines); **bold** is at most 0.05."
    )
    publish("verdict-controls", "Headlines and controls", "\n\n".join([text, *tables]), write=given.write)


if __name__ == "__main__":
    main()
