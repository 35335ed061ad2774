"""How often does a page call different what is not, and how often does it find what is?

Pages of two models and six numbers such as instruments have them: a heavy-tailed mean, a skewed one, a share, a
statistic of clouds, a median, a ratio of medians. *Swapped*: the models differ on every sample, and a coin says which
of the two a value belongs to: whatever is called different is called so by chance. *Joined*: the networks of one
recipe, split into two groups (`--join`); with `--folder`, also the trained networks that `verdict_controls.py` left.
*Power*: pages on which one number truly differs, by a stated size.

    python benchmarks/verdict_errors.py [--pages 500] [--power-pages 100] [--folder PROFILES] [--write]

About ten minutes of one core.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from timing import publish

from lisse.profile import EVERYTHING, Headline, Part, Profile, Quantity, Row
from lisse.reporting import joined
from lisse.reporting.page.comparisons import compare_pairs
from lisse.reporting.page.entries import entries_of

Draw = Callable[[np.random.Generator, int], np.ndarray]


def ratio(values: np.ndarray) -> float:
    return float(np.median(values[:, 0]) / np.median(values[:, 1]))


#: Name: values of both models ``[2, n, …]``, what the number is of them, of samples or of clouds.
NUMBERS: Mapping[str, tuple[Draw, Callable[[np.ndarray], float], str, str]] = {
    "tails": (lambda g, n: g.standard_t(3, size=(2, n)), np.mean, "mean", "samples"),
    "skew": (lambda g, n: np.exp(g.normal(size=(2, n)) + np.array([[0.0], [0.5]])), np.mean, "mean", "samples"),
    "share": (lambda g, n: (g.random((2, n)) < [[0.8], [0.6]]).astype(float), np.mean, "mean", "samples"),
    "clouds": (lambda g, n: g.normal(size=(2, 12)) + np.array([[0.0], [3.0]]), np.mean, "mean", "clouds"),
    "median": (lambda g, n: np.exp(g.normal(size=(2, n))) * [[1.0], [2.0]], np.median, "median", "samples"),
    "ratio": (lambda g, n: np.exp(g.normal(size=(2, n, 2))) * [[[1.0, 1.0]], [[2.0, 1.0]]], ratio, "ratio of medians",
              "samples"),
}  # fmt: skip


def profile(name: str, values: Mapping[str, np.ndarray]) -> Profile:
    """A profile with these values of samples, and their numbers."""
    parts = []
    for key, array in values.items():
        _, function, statistic, way = NUMBERS[key]
        number = float(function(array))
        meaning = Quantity(
            key, key, key, better="lower", headline=Headline(key), invariant=EVERYTHING, statistic=statistic
        )
        row = Row(key, number, "estimate", len(array), low=number - 1, high=number + 1)
        parts.append(Part(key, (row,), (meaning,), arrays={f"{way}/{key}": array}))
    said = {"model": {"name": name, "fingerprint": name}, "data": {"name": "d", "fingerprint": "d"}, "seed": 0}
    return Profile(tuple(parts), said)


def different(first: Profile, second: Profile) -> set[str]:
    """What a page of two models calls different."""
    entries = entries_of([first, second])
    (tests,) = compare_pairs(entries, [(entries.models[0], entries.models[1])]).values()
    return {test.heading.label for test in tests if test.better is not None}


def swapped_pages(count: int, *, n: int = 60, seed: int = 0) -> list[set[str]]:
    """What is called different on pages of two models whose values are swapped sample by sample."""
    generator, pages = np.random.default_rng(seed), []
    for _ in range(count):
        sides: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] = ({}, {})
        for key, (draw, *_) in NUMBERS.items():
            values = draw(generator, n)
            swap = (generator.random(values.shape[1]) < 0.5).reshape(-1, *[1] * (values.ndim - 2))
            sides[0][key], sides[1][key] = np.where(swap, values[::-1], values)
        pages.append(different(profile("a", sides[0]), profile("b", sides[1])))
    return pages


def power_pages(count: int, shift: float, *, n: int, seed: int = 0) -> int:
    """Pages on which the first of six normal means is found, that differs by ``shift`` spreads of a difference."""
    generator, hits = np.random.default_rng(seed), 0
    for _ in range(count):
        sides = [dict(zip(NUMBERS, generator.normal(size=(6, n)), strict=True)) for _ in range(2)]
        sides[1]["tails"] = sides[1]["tails"] + shift * 2**0.5
        means = [
            Profile(tuple(_as_mean(part, values) for part, values in zip(shape, side.values(), strict=True)), said)
            for side, (shape, said) in zip(sides, _shapes(n), strict=True)
        ]
        hits += "tails" in different(*means)
    return hits


def _shapes(n: int) -> list[tuple[tuple[Part, ...], dict[str, object]]]:
    generator = np.random.default_rng(0)
    blank = [profile(name, {key: draw(generator, n)[0] for key, (draw, *_) in NUMBERS.items()}) for name in ("a", "b")]
    return [(one.parts, dict(one.provenance)) for one in blank]


def _as_mean(part: Part, values: np.ndarray) -> Part:
    (row,), (meaning,) = part.rows, part.quantities
    number = float(values.mean())
    row = Row(row.quantity, number, row.kind, len(values), low=number - 1, high=number + 1)
    meaning = Quantity(meaning.name, meaning.name, "", better="lower", headline=meaning.headline, invariant=EVERYTHING)
    return Part(part.instrument, (row,), (meaning,), arrays={f"samples/{meaning.name}": values})


def joined_pages(count: int, networks: int, *, shift: float = 0.0, n: int = 60, seed: int = 0) -> list[set[str]]:
    """Two groups of networks of one recipe (the second ``shift`` of its spreads away): skewed over trainings."""
    generator, pages = np.random.default_rng(seed), []
    for page in range(count):
        groups = []
        for group in range(2):
            members = []
            for network in range(networks):
                level = generator.gamma(4.0, size=3) / 2  # of spread 1
                values = {
                    key: level[index] + group * shift + 0.1 * generator.normal(size=n)
                    for index, key in enumerate(("tails", "skew", "median"))
                }
                members.append(profile(f"{page} {group} {network}", values))
            groups.append(joined(members, "ab"[group]))
        pages.append(different(*groups))
    return pages


def split_pages(profiles: Sequence[Profile]) -> list[set[str]]:
    """Every way to split the networks of one recipe into two halves."""
    pages = []
    for half in itertools.combinations(range(1, len(profiles)), len(profiles) // 2 - 1):
        first = [profiles[index] for index in (0, *half)]
        second = [profile for index, profile in enumerate(profiles) if index not in (0, *half)]
        pages.append(different(joined(first, "a"), joined(second, "b")))
    return pages


def line(what: str, pages: Sequence[set[str]]) -> str:
    counts = {key: sum(key in page for page in pages) for page in pages for key in sorted(page)}
    which = ", ".join(f"{key} {count}" for key, count in sorted(counts.items())) or "none"
    return f"| {what} | {sum(map(bool, pages))} of {len(pages)} | {which} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=500)
    parser.add_argument("--power-pages", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="profiles of verdict_controls.py --folder")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    lines = ["| nothing differs | pages that call something different | by which number |", "|---|---|---|"]
    lines.append(line("values swapped sample by sample, six numbers of 60 samples", swapped_pages(given.pages)))
    for networks in (2, 3, 5):
        what = f"{2 * networks} networks of one recipe in two groups, three numbers, skewed over trainings"
        lines.append(line(what, joined_pages(given.pages, networks)))
    for kind in ("perceptron", "LeNet"):
        files = [] if given.folder is None else sorted(given.folder.glob(f"{kind}-trained-*.profile"))
        if len(files) >= 6:
            files = files[: len(files) // 2 * 2]
            what = f"{len(files)} trained networks ({kind}, MNIST), every split into halves"
            lines.append(line(what, split_pages([Profile.load(file) for file in files])))
    lines += ["", "| one number truly differs | found |", "|---|---|"]
    for n, shift in ((60, 0.3), (60, 0.5), (200, 0.2), (200, 0.3)):
        hits = power_pages(given.power_pages, shift, n=n)
        what = f"by {shift} spreads of a sample's difference, {n} samples, six comparisons"
        lines.append(f"| {what} | {hits} of {given.power_pages} |")
    for networks, shift in ((3, 2.0), (3, 4.0), (5, 2.0), (8, 2.0)):
        pages = joined_pages(given.power_pages, networks, shift=shift, seed=1)
        hits = sum("tails" in page for page in pages)
        lines.append(
            f"| by {shift:g} spreads over trainings, {networks} and {networks} networks, three comparisons "
            f"| {hits} of {given.power_pages} |"
        )
    publish("verdict-errors", "False and true differences of a page", "\n".join(lines), write=given.write)


if __name__ == "__main__":
    main()
