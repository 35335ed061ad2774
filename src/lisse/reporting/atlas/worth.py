"""What each headline is worth: how well it predicts test error within a family of networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from lisse.maths.prediction import Power, predictive_power
from lisse.reporting.atlas.rows import AtlasRow

#: Networks below which a family says nothing.
LEAST_FAMILY = 20

RowNumber = Callable[[AtlasRow], float | None]


@dataclass(frozen=True)
class Worth:
    """The power of a headline about an outcome within a family, of ``n`` networks."""

    family: str
    label: str
    n: int
    power: Power


def test_error_of(row: AtlasRow) -> float | None:
    """The share of the test samples that the network gets wrong."""
    return None if row.error is None else float(row.error[0])


def worths(
    rows: Iterable[AtlasRow],
    words: Mapping[str, Mapping[str, str]],
    outcome: RowNumber = test_error_of,
    *,
    labels: Sequence[str] | None = None,
    resamples: int = 2000,
) -> list[Worth]:
    """Of every headline (of those in ``labels``) in every family of networks that were measured in one setting.

    A headline on a logarithmic scale is taken by its logarithm. Networks without the number, or where it is infinite or
    has no logarithm, are left out, and ``n`` says how many there are. Seeds of one recipe are one group.
    """
    families: dict[tuple[str, str], list[AtlasRow]] = {}
    for row in rows:
        if not row.reason:
            families.setdefault((row.family, row.setting), []).append(row)
    results = []
    for (family, _), members in sorted(families.items()):
        names = dict.fromkeys(label for row in members for label in row.numbers)
        for label in names if labels is None else [label for label in names if label in labels]:
            log = words.get(label, {}).get("scale") == "log"
            pairs = [
                (value, target, row.group)
                for row in members
                if label in row.numbers
                and (value := _finite(row.numbers[label][0], log)) is not None
                and (target := outcome(row)) is not None
            ]
            if len(pairs) < LEAST_FAMILY or all(abs(value + target - 1) < 1e-9 for value, target, _ in pairs):
                continue  # too few, or the outcome itself: accuracy is one less the error
            x, y, groups = zip(*pairs, strict=True)
            generator = torch.Generator().manual_seed(0)
            power = predictive_power(
                torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64), groups,
                resamples=resamples, generator=generator,
            )  # fmt: skip
            results.append(Worth(family, label, len(pairs), power))
    return results


def _finite(value: float, log: bool) -> float | None:
    if log:
        value = math.log10(value) if value > 0 else math.nan
    return value if math.isfinite(value) else None
