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
from collections.abc import Callable


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


class Log(Sequence[Mapping[str, float]]):
    """One row per epoch; a value that an epoch does not have (a test that was not made) is left out of its row."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Mapping[str, float]] = ()) -> None:
        self.columns = tuple(columns)
        self._rows = [dict(row) for row in rows]

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._rows[index]

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


Status = Literal["finished", "diverged", "collapsed"]


@dataclass(frozen=True)
class Training:
    """How a training ended.

    ``status`` is ``"finished"``, or ``"diverged"``: then ``step`` is the step (from 1) whose loss was not finite; or
    ``"collapsed"``: then a network under adversarial training fell to a stronger attack by ``step``. With
    a folder, ``checkpoint`` is a file that :func:`lisse.load_model` reads: the final weights, or those of the last
    good checkpoint; ``model`` holds these weights. ``seconds`` are of work, over all resumes; ``resumed`` is the step
    from which this call went on (0: from the start).
    """

    status: Status
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


When = Literal["start", "step", "epoch", "end"]


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of a training.

    Callbacks are called in the first process, with ``when``

    - ``"start"`` once in every process that does work: ``step`` is 0, or where a resumed run goes on;
    - ``"step"`` after every optimiser step;
    - ``"epoch"`` at each epoch's end, after its last step, its test and its row of the log;
    - ``"end"`` once, when all steps are done (not after a divergence).

    They are called before the checkpoint of the same step is written. A run that is killed goes on from its last
    checkpoint, so no moment is ever lost, and those after the checkpoint come again, with the same weights on a CPU:
    a callback that keeps something keeps it by ``step``. A finished run calls nothing.

    ``model`` is the plain module on its device: read it, do not change it. Modes and random state are put back after
    each callback, so that one cannot change the training. ``log`` has the last values known: ``lr``, ``loss``,
    ``accuracy`` and, at an epoch's end, its whole row; on a GPU, ``loss`` may be some steps old.
    """

    model: nn.Module = field(repr=False)
    when: When
    step: int
    steps: int
    epoch: float
    epochs: int
    out: Path | None = None
    log: Mapping[str, float] = field(default_factory=dict)


Callback = Callable[[Moment], object]
