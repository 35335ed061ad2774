"""A Watch as a callback of other people's trainers: Lightning's and Hugging Face's."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from lisse.libraries import extra

if TYPE_CHECKING:
    from lisse.run.watch import Watch

_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


@dataclass(frozen=True)
class Instant:
    """A :class:`~lisse.run.watch.TrainingMoment` of a trainer."""

    model: nn.Module
    when: str
    step: int
    epoch: float
    steps: int | None = None
    epochs: float | None = None
    out: Path | None = None
    log: Mapping[str, Any] = field(default_factory=dict)
    loggers: tuple[Any, ...] = ()  # where the trainer's own numbers go


def lightning_callback(watch: Watch) -> Any:
    """A callback for the Trainer of ``lightning.pytorch`` or of ``pytorch_lightning``, whichever is in use."""

    def tell(trainer: Any, module: Any, when: str, epoch: float) -> None:
        if trainer.is_global_zero and not trainer.sanity_checking:
            ends, loggers = (_limit(trainer.max_steps), _limit(trainer.max_epochs)), tuple(trainer.loggers)
            watch(Instant(module, when, int(trainer.global_step), epoch, *ends, loggers=loggers))

    class WatchCallback(*_lightning_bases()):  # type: ignore[misc]
        """Measures while a Lightning Trainer fits."""

        reached = 0.0

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            """Before the first step; of a resumed training, before its next one."""
            tell(trainer, pl_module, "start", float(trainer.current_epoch))

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            """After every batch; with accumulated gradients not every one is a step."""
            tell(trainer, pl_module, "step", trainer.current_epoch + _share(trainer, batch_idx + 1))

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            """After every epoch, also one that max_steps broke off."""
            done = 1.0 if trainer.is_last_batch else _share(trainer, trainer.fit_loop.batch_idx + 1)
            self.reached = trainer.current_epoch + done
            tell(trainer, pl_module, "epoch", self.reached)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            """After the last step; Lightning by now counts an epoch that was broken off as a whole one."""
            tell(trainer, pl_module, "end", self.reached)

    return WatchCallback()


def trainer_callback(watch: Watch) -> Any:
    """A ``TrainerCallback`` for ``transformers.Trainer``."""
    callback: Any = extra("transformers", "hf", "Watch.trainer").TrainerCallback
    loggers = _TrainerLoggers()

    def tell(args: Any, state: Any, model: Any, when: str) -> None:
        if state.is_world_process_zero:
            watch(_instant(state, model, when, loggers.of(args)))
            if when == "end":
                loggers.close()

    class WatchCallback(callback):
        """Measures while a Hugging Face Trainer trains."""

        def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
            """Before the first step; of a resumed training, before its next one."""
            tell(args, state, model, "start")

        def on_step_end(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
            """After every step of the optimiser."""
            tell(args, state, model, "step")

        def on_epoch_end(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
            """After every epoch, also one that max_steps broke off."""
            tell(args, state, model, "epoch")
            # Here and not only in on_train_end: before that, load_best_model_at_end may put older weights in.
            if control.should_training_stop or (state.max_steps and state.global_step >= state.max_steps):
                tell(args, state, model, "end")

        def on_train_end(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
            """After the last step."""
            if not args.load_best_model_at_end:
                tell(args, state, model, "end")

    return WatchCallback()


def _instant(state: Any, model: Any, when: str, loggers: tuple[Any, ...]) -> Instant:
    """What a Hugging Face Trainer's state says of the moment."""
    log = state.log_history[-1] if state.log_history else {}
    ends = _limit(state.max_steps), float(state.num_train_epochs)
    step, epoch = int(state.global_step), float(state.epoch or 0.0)
    return Instant(model, when, step, epoch, *ends, log=log, loggers=loggers)


class _TrainerLoggers:
    """Where a Hugging Face Trainer reports to: a callback is not shown the trainer, so they are found by what is open.

    W&B's and MLflow's runs are the process's own; TensorBoard gets a second file in the folder of the trainer's, which
    it shows as one run.
    """

    def __init__(self) -> None:
        self._writer: Any = None

    def of(self, args: Any) -> tuple[Any, ...]:
        names = {args.report_to} if isinstance(args.report_to, str) else set(args.report_to or ())
        loggers: list[Any] = []
        if "tensorboard" in names and self._folder(args) is not None:
            if self._writer is None:
                from torch.utils.tensorboard import SummaryWriter

                self._writer = SummaryWriter(str(self._folder(args)))
            loggers.append(self._writer)
        wandb, mlflow = (sys.modules.get(name) if name in names else None for name in ("wandb", "mlflow"))
        if wandb is not None and wandb.run is not None:
            loggers.append(wandb.run)
        if mlflow is not None and mlflow.active_run() is not None:
            loggers.append(mlflow)
        return tuple(loggers)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _folder(self, args: Any) -> Path | None:
        """The folder that the trainer's own writer has made: it comes before a person's callbacks."""
        folder = os.environ.get("TENSORBOARD_LOGGING_DIR")
        if folder:
            return Path(folder).expanduser()
        events = Path(args.output_dir).glob("runs/**/events.out.tfevents.*")
        latest = max(events, key=lambda path: path.stat().st_mtime, default=None)
        return None if latest is None else latest.parent


def _lightning_bases() -> tuple[Any, ...]:
    """The Callback of each Lightning that is imported already (its Trainer is the person's), or of one that can be."""
    for name in () if any(sys.modules.get(name) for name in _LIGHTNING) else _LIGHTNING:
        try:
            importlib.import_module(name)
            break
        except ImportError:
            continue
    bases = tuple(dict.fromkeys(sys.modules[name].Callback for name in _LIGHTNING if sys.modules.get(name)))
    if not bases:
        raise ImportError("Watch.lightning: needs Lightning, got none installed. pip install lightning")
    return bases


def _limit(count: int | None) -> int | None:
    """The end of a training, where there is one: trainers write 0, -1 or None for none."""
    return count if count and count > 0 else None


def _share(trainer: Any, batches: int) -> float:
    """How much of the epoch so many batches are; 0 for data without a length."""
    total = trainer.num_training_batches
    return min(1.0, batches / total) if total and math.isfinite(total) else 0.0
