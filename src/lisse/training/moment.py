"""What a callback is told: the model and where the training stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torch import nn

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
