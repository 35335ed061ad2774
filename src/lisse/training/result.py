"""What a training gives back: how it ended, its log, its score on test data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import nn

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class Score:
    """Loss and accuracy on ``n`` samples; ``low`` and ``high`` are the 95 % interval of the accuracy.

    Without labels (a regression) there is no accuracy and no interval.
    """

    loss: float
    n: int
    accuracy: float | None = None
    low: float | None = None
    high: float | None = None

    def as_dict(self) -> dict[str, float | None]:
        """The fields, for JSON."""
        return dataclasses.asdict(self)

    @property
    def error(self) -> float | None:
        """One less the accuracy."""
        return None if self.accuracy is None else 1 - self.accuracy


def binomial_interval(right: int, n: int, *, level: float = 0.95) -> tuple[float, float]:
    r"""The exact (Clopper–Pearson) interval of a share: ``right`` of ``n``.

    The ends are the quantiles :math:`B_{\alpha/2}(k, n - k + 1)` and :math:`B_{1 - \alpha/2}(k + 1, n - k)` of beta
    distributions, so that the interval covers the true share with at least ``level``, whatever the share is.
    """
    if n < 1 or not 0 <= right <= n:
        raise ValueError(f"binomial_interval: right must lie in 0 … n, n at least 1, got {right} and {n}.")
    if not 0 < level < 1:
        raise ValueError(f"binomial_interval: level must lie in (0, 1), got {level}.")
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = float(betaincinv(right, n - right + 1, tail)) if right else 0.0
    high = float(betaincinv(right + 1, n - right, 1 - tail)) if right < n else 1.0
    return low, high


class Log(Sequence[Mapping[str, float]]):
    """One row per epoch; a value that an epoch does not have (a test that was not made) is left out of its row."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Mapping[str, float]] = ()) -> None:
        self.columns = tuple(columns)
        self._rows = [dict(row) for row in rows]

    def __getitem__(self, place):  # type: ignore[no-untyped-def]
        return self._rows[place]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, float]]:
        return iter(self._rows)

    def __repr__(self) -> str:
        return f"Log({len(self)} epochs: {', '.join(self.columns)})"

    def append(self, row: Mapping[str, float]) -> None:
        """Add an epoch's row."""
        self._rows.append(dict(row))

    def frame(self) -> pandas.DataFrame:
        """The rows as a pandas table."""
        import pandas

        return pandas.DataFrame([[row.get(c, math.nan) for c in self.columns] for row in self], columns=self.columns)


@dataclass(frozen=True)
class Training:
    """How a training ended.

    ``status`` is ``"finished"``, or ``"diverged"``: then ``step`` is the step (from 1) whose loss was not finite. With
    a folder, ``checkpoint`` is a file that :func:`lisse.load_model` reads: the final weights, or those of the last
    good checkpoint; ``model`` holds these weights. ``seconds`` are of work, over all resumes; ``resumed`` is the step
    from which this call went on (0: from the start).
    """

    status: Literal["finished", "diverged"]
    step: int
    steps: int
    epoch: float
    epochs: int
    log: Log = field(repr=False)
    test: Score | None = None
    seconds: float = 0.0
    checkpoint: Path | None = None
    out: Path | None = None
    resumed: int = 0
    model: nn.Module | None = field(default=None, repr=False, compare=False)

    def frame(self) -> pandas.DataFrame:
        """The log as a pandas table, one row per epoch."""
        return self.log.frame()
