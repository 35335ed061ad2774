"""What came of a sweep: a row for each unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lisse.sweeping.unit import Unit, UnitOutcome

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class SweepTable:
    """The units of a plan in its order, each with its outcome; profiles are in ``folder / "profiles"``."""

    folder: Path
    rows: tuple[tuple[Unit, UnitOutcome], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[Unit, UnitOutcome]]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return f"SweepTable({len(self.finished)} finished, {len(self.failed)} failed, in {self.folder})"

    @property
    def finished(self) -> tuple[tuple[Unit, UnitOutcome], ...]:
        """The units that have a profile."""
        return tuple(row for row in self.rows if row[1].file)

    @property
    def failed(self) -> tuple[tuple[Unit, UnitOutcome], ...]:
        """The others, with their reasons."""
        return tuple(row for row in self.rows if not row[1].file)

    def records(self) -> list[dict[str, Any]]:
        """The rows as plain values."""
        return [
            {
                "family": unit.family,
                "model": unit.model,
                "data": unit.data,
                "recipe": None if unit.training is None else unit.training.recipe,
                "seed": unit.seed if unit.training is None else unit.training.seed,
                "status": outcome.status,
                "error": outcome.score.get("error"),
                "seconds": round(outcome.seconds, 2),
                "reason": outcome.reason or " ".join(outcome.notes),
                "file": outcome.file or None,
                "key": unit.key,
            }
            for unit, outcome in self.rows
        ]

    def frame(self) -> pd.DataFrame:
        """The rows as a pandas table."""
        import pandas as pd

        return pd.DataFrame.from_records(self.records())
