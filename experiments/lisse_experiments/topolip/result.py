"""What is known of one network after its training and measurement, read from its log and profile."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from lisse.maths.change_rate import change_rate, topolip
from lisse.maths.intervals import across_clouds
from lisse.profile import Part, Profile, Row, Value
from lisse_experiments.outputs import keep, stored
from lisse_experiments.topolip.networks import Network

Statistic = Literal["max", "mean", "shape"]
QUANTITY: Mapping[Statistic, str] = {
    "max": "topolip_change_rate", "mean": "mean_change_rate", "shape": "shape_distance",
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """A network, how its training went, and its profile; ``None`` where the training diverged, at ``step``.

    ``machine`` and ``span`` say where and when (begin and end, in seconds of the clock) it was trained and measured.
    """

    network: Network
    log: Sequence[Mapping[str, float]] = field(repr=False)
    profile: Profile | None = field(repr=False)
    step: int = 0
    steps: int = 0
    machine: str = ""
    span: tuple[float, float] = (0.0, 0.0)

    @property
    def diverged(self) -> bool:
        """Whether the loss stopped being a number."""
        return self.profile is None

    @property
    def note(self) -> str:
        """What a reader should know."""
        return f"diverged at step {self.step:,} of {self.steps:,}" if self.diverged else ""

    def part(self, instrument: str) -> Part | None:
        """What an instrument found."""
        return None if self.profile is None else next((p for p in self.profile if p.instrument == instrument), None)

    def rate(self, statistic: Statistic, p: int, dim: Value = "all") -> Row | None:
        """TopoLip (``max``), the mean change rate of the whole clouds, or how far the last block's shape is from the
        input's; ``None`` where it has no value.
        """
        part = self.part("topology")
        rows = [
            row
            for row in (part.rows if part else ())
            if row.quantity == QUANTITY[statistic] and row.at["p"] == p and row.at["dim"] == dim
            if row.layer is None or (self.profile and row.layer == self.profile.provenance.get("last_block"))
        ]
        largest = max(rows, key=lambda row: int(row.at["cloud"]), default=None)
        return largest if largest is not None and math.isfinite(largest.value) else None

    def reading(self, p: int, dim: Value = "all", *, head: bool = True, normalised: bool = False) -> Row | None:
        """TopoLip where the head's answer is a layer or not, and layer 0 the images as they are or as normalised.

        With an interval over clouds; ``None`` where a cloud has no value.
        """
        shape, first = self.part("topology"), self.part("normalisedinput")
        name = f"p={p}/dim={dim}"
        if shape is None or first is None or f"steps/{name}" not in shape.arrays:
            return None
        steps = torch.from_numpy(shape.arrays[f"steps/{name}"].copy())
        if normalised:
            steps[:, 0] = torch.from_numpy(first.arrays[f"first/{name}"])
        values = topolip(change_rate(steps if head else steps[:, :-1]))
        if len(values) < 2 or bool(values.isnan().any()):
            return None
        mean = across_clouds(values)
        low, high = max(0.0, float(mean.low)), float(mean.high)
        return Row("topolip_change_rate", float(mean.value), "estimate", len(values), low=low, high=high)

    def accuracy(self, quantity: str, corruption: str, severity: int | None = None) -> Row | None:
        """A number of Table 2."""
        part = self.part("corruptedaccuracy")
        for row in part.rows if part else ():
            matches = row.quantity == quantity and row.at["corruption"] == corruption
            if matches and (severity is None or row.at.get("severity") == severity):
                return row
        return None


def keep_result(result: Result, file: Path, request: str) -> None:
    """Leave a result as ``file`` and a profile beside it: all that tables and figures need, without the weights."""
    if result.profile is not None:
        result.profile.save(file.with_suffix(".profile"))
    keep(file, {
        "request": request, "log": list(result.log), "diverged": result.diverged, "step": result.step,
        "steps": result.steps, "machine": result.machine, "span": list(result.span),
    })  # fmt: skip


def stored_result(network: Network, file: Path, request: str) -> Result | None:
    """What :func:`keep_result` left for the same ``request``; ``None`` where it left nothing or another answer."""
    was = stored(file, request)
    if was is None:
        return None
    profile = None if was["diverged"] else Profile.load(file.with_suffix(".profile"))
    start, end = was["span"]
    return Result(network, was["log"], profile, was["step"], was["steps"], was["machine"], (start, end))


def over_seeds(results: Sequence[Result]) -> Result:
    """One result of the trainings of a network: its numbers are means over seeds with Student's interval.

    That of one training stays as it is, with its intervals over clouds and images. Trainings that diverged count only
    where all did. Curves have a line a seed, the mean over its clouds; steps keep the clouds of all.
    """
    first, *more_seeds = [result for result in results if not result.diverged] or results[:1]
    if not more_seeds or first.profile is None:
        return first
    parts = tuple(_mean_part(part, [other.part(part.instrument) for other in more_seeds]) for part in first.profile)
    return dataclasses.replace(first, profile=Profile(parts, first.profile.provenance))


def _mean_part(first: Part, more_seeds: Sequence[Part | None]) -> Part:
    tables = [{_where(row): row.value for row in part.rows} if part else {} for part in more_seeds]
    rows = []
    for row in first.rows:
        values = [row.value, *(table[_where(row)] for table in tables if _where(row) in table)]
        if len(values) > 1:
            mean = across_clouds(torch.tensor(values, dtype=torch.float64))
            value, low, high = (float(end) for end in (mean.value, mean.low, mean.high))
            row = dataclasses.replace(row, value=value, low=low, high=high, n=len(values))
        rows.append(row)
    arrays = dict(first.arrays)
    for name in arrays:
        lines = [part.arrays[name] for part in (first, *more_seeds) if part and name in part.arrays]
        if name.startswith("landscape/"):
            arrays[name] = np.stack([line.mean(0) for line in lines])
        elif name.startswith(("steps/", "first/")):
            arrays[name] = np.concatenate(lines)
    return dataclasses.replace(first, rows=tuple(rows), arrays=arrays)


def _where(row: Row) -> tuple[object, ...]:
    return row.quantity, row.layer, tuple(sorted(row.at.items(), key=str))
