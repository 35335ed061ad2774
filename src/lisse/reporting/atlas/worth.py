"""What each headline is worth: how well it predicts an outcome within a family of networks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from lisse.maths.prediction import Power, predictive_power
from lisse.reporting.atlas.rows import AtlasRow, Words

#: Networks below which a family says nothing.
LEAST_FAMILY = 20
#: The outcome that every row has of itself.
TEST_ERROR = "Test error"

RowNumber = Callable[[AtlasRow], float | None]


@dataclass(frozen=True)
class Worth:
    """The power of a headline about an outcome within a family at a setting, of ``n`` networks."""

    family: str
    setting: str
    label: str
    n: int
    power: Power


def test_error_of(row: AtlasRow) -> float | None:
    """The share of the test samples that the network gets wrong."""
    return None if row.error is None else float(row.error[0])


def outcomes(words: Words) -> dict[str, RowNumber]:
    """What headlines are asked to predict, by title: test error, and the headlines that declare themselves outcomes."""
    declared: dict[str, RowNumber] = {
        meaning["outcome"]: functools.partial(_outcome, label, over_error=meaning.get("over") == "error")
        for label, meaning in words.items()
        if meaning.get("outcome")
    }
    declared.pop(TEST_ERROR, None)
    return {TEST_ERROR: test_error_of, **declared}


def _outcome(label: str, row: AtlasRow, *, over_error: bool) -> float | None:
    number = row.numbers.get(label)
    if number is None or not math.isfinite(number[0]) or (over_error and row.error is None):
        return None
    return number[0] - row.error[0] if over_error and row.error is not None else number[0]


def worths(
    rows: Iterable[AtlasRow], words: Words, outcome: RowNumber = test_error_of, *, resamples: int = 2000
) -> list[Worth]:
    """Of every headline that is no outcome itself, in every family of networks that were measured in one setting.

    A headline on a logarithmic scale is taken by its logarithm. Networks without the number, or where it is infinite or
    has no logarithm, are left out, and ``n`` says how many there are. Seeds of one recipe are one group.
    """
    families: dict[tuple[str, str], list[AtlasRow]] = {}
    for row in sorted(rows, key=lambda row: row.key):  # draws of the bootstrap do not depend on who comes first
        if not row.reason:
            families.setdefault((row.family, row.setting), []).append(row)
    results = []
    for (family, setting), members in sorted(families.items()):
        for label in dict.fromkeys(label for row in members for label in row.numbers):
            meaning = words.get(label, {})
            if meaning.get("outcome"):
                continue
            log = meaning.get("scale") == "log"
            pairs = [
                (value, target, row)
                for row in members
                if label in row.numbers
                and (value := _finite(row.numbers[label][0], log)) is not None
                and (target := outcome(row)) is not None
            ]
            networks = {row.weights or row.key for *_, row in pairs}  # one that was measured twice is one
            if len(networks) < LEAST_FAMILY or all(abs(value + target - 1) < 1e-9 for value, target, _ in pairs):
                continue  # too few, or the outcome itself: accuracy is one less the error
            x, y, origins = zip(*pairs, strict=True)
            groups = [row.group for row in origins]
            generator = torch.Generator().manual_seed(0)
            power = predictive_power(
                torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64), groups,
                resamples=resamples, generator=generator,
            )  # fmt: skip
            results.append(Worth(family, setting, label, len(networks), power))
    return results


def _finite(value: float, log: bool) -> float | None:
    if log:
        value = math.log10(value) if value > 0 else math.nan
    return value if math.isfinite(value) else None
