"""What is known of one network after its training and measurement, read from its log and profile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lisse.profile import Part, Profile, Row, Value
from lisse_experiments.topolip.networks import Network

Statistic = Literal["max", "mean"]
QUANTITY: Mapping[Statistic, str] = {"max": "topolip_change_rate", "mean": "mean_change_rate"}


@dataclass(frozen=True)
class Result:
    """A network, how its training went, and its profile; ``None`` where the training diverged, at ``step``."""

    network: Network
    log: Sequence[Mapping[str, float]] = field(repr=False)
    profile: Profile | None = field(repr=False)
    step: int = 0
    steps: int = 0

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
        """TopoLip (``max``) or the mean change rate of the whole clouds; ``None`` where it has no value."""
        part = self.part("topology")
        rows = [
            row
            for row in (part.rows if part else ())
            if row.quantity == QUANTITY[statistic] and row.at["p"] == p and row.at["dim"] == dim
        ]
        largest = max(rows, key=lambda row: int(row.at["cloud"]), default=None)
        return largest if largest is not None and math.isfinite(largest.value) else None

    def accuracy(self, quantity: str, corruption: str, severity: int | None = None) -> Row | None:
        """A number of Table 2."""
        part = self.part("corruptedaccuracy")
        for row in part.rows if part else ():
            matches = row.quantity == quantity and row.at["corruption"] == corruption
            if matches and (severity is None or row.at.get("severity") == severity):
                return row
        return None
