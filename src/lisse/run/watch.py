"""Watch: any instruments while a network trains, and the sequence of profiles that gives."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import numpy as np
import torch
from torch import nn

from lisse.data import as_dataset
from lisse.identity import class_source
from lisse.profile import Part, Profile, options_of
from lisse.progress import Listener
from lisse.recording.recorder import Readout
from lisse.run.fingerprint import digest_of, package_fingerprint
from lisse.run.instrument import Instrument, distinct_instruments, measure
from lisse.run.sequence import FOLDER, file_name, files, time_frame, training_of
from lisse.run.untouched import first_process, from_first, network, untouched, weights_fingerprint
from lisse.taps import model_device
from lisse.taps.stillness import Statistics

if TYPE_CHECKING:
    import pandas as pd

REPLACED = "replaced"


class TrainingMoment(Protocol):
    """What a training says to its callbacks: where it is, and the model as it is now.

    ``when`` is ``"start"``, ``"step"`` (after each step of the optimiser), ``"epoch"`` or ``"end"``; ``step`` and
    ``epoch`` count what is done, ``steps`` and ``epochs`` what there will be; ``out`` is the training's own folder and
    ``log`` its latest numbers. Anything with these attributes will do.
    """

    @property
    def model(self) -> nn.Module: ...  # noqa: D102
    @property
    def when(self) -> str: ...  # noqa: D102
    @property
    def step(self) -> int: ...  # noqa: D102
    @property
    def steps(self) -> int | None: ...  # noqa: D102
    @property
    def epoch(self) -> float: ...  # noqa: D102
    @property
    def epochs(self) -> float | None: ...  # noqa: D102
    @property
    def out(self) -> Path | None: ...  # noqa: D102
    @property
    def log(self) -> Mapping[str, Any]: ...  # noqa: D102


class Watch:
    """Instruments that look at a network while it trains: a plain callback, and where the others come from.

    - ``lisse.train(…, callbacks=[watch])``, or any loop that calls ``watch(moment)`` with a :class:`TrainingMoment`;
    - ``watch.measure(model, step=…, epoch=…)`` in a loop of one's own;
    - ``Trainer(callbacks=[watch.lightning()])`` for Lightning, ``Trainer(callbacks=[watch.trainer()])`` for
      Hugging Face.

    It measures at every ``every``-th epoch (``None``: at none), after the chosen ``steps``, before the first step
    (``start``) and after the last one (``end``); all instruments share one run each time, always on the same ``data``.
    ``layers``, ``seed``, ``batch``, ``memory``, ``statistics``, ``readout``, ``cache``, ``progress`` and ``name`` are
    those of :func:`~lisse.run.measure`. ``module`` names the network inside a larger module (``"net"`` in a
    LightningModule whose ``net`` it is).

    The headline numbers of every profile also go where the training's own numbers go (:meth:`Profile.log`): to the
    loggers of a Lightning Trainer, to what a Hugging Face Trainer reports to. ``log=False`` keeps them out, any other
    ``log`` is a logger of one's own (a ``SummaryWriter``, a run of W&B, ``mlflow``); ``figures`` adds a picture.

    ``profiles`` maps steps to :class:`~lisse.profile.Profile`, in order; ``provenance["training"]`` of each says where
    in the training it was made. With ``out`` (or a training that has a folder) they are also files,
    ``out/profiles/step-00001234.profile``: a training that was killed and goes on finds them there. A file counts only
    where instruments, options, data, seed and, if the step comes again, the very weights are the same; else it is
    measured anew, and what stood there is moved to ``profiles/replaced``. Two watches need two folders.

    Measuring leaves no trace in the training: modes, buffers, gradients and random states are put back. An instrument
    that fails gives an empty part with the reason and a warning, and the training goes on; ``on_error="raise"`` stops
    it. In a distributed training only the process of rank 0 measures, with the whole model; the others wait at their
    next exchange, so a measurement should be shorter than the process group's timeout. With ``ranks="all"`` every
    process calls the watch and measures: each its share of the samples, where an instrument allows that
    (:class:`~lisse.instruments.Extremes` does), and only numbers are gathered. So is measured what no process holds
    alone, a network behind ``fully_shard``. Rank 0 has the profiles.
    """

    def __init__(
        self,
        data: Any,
        instruments: Instrument | Sequence[Instrument],
        *,
        every: int | None = 1,
        steps: Sequence[int] = (),
        start: bool = True,
        end: bool = True,
        out: str | Path | None = None,
        module: str | None = None,
        layers: Sequence[str] | str | None = None,
        seed: int = 0,
        batch: int = 100,
        memory: str | int = "2GiB",
        statistics: Statistics = "running",
        readout: Readout | None = None,
        cache: str | Path | bool | None = None,
        progress: Listener | bool | None = None,
        name: str | None = None,
        on_error: Literal["note", "raise"] = "note",
        log: Any = True,
        figures: bool = False,
        ranks: Literal["first", "all"] = "first",
    ) -> None:
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise ValueError(f"Watch: every must be a positive number of epochs or None, got {every!r}.")
        wrong = [step for step in steps if isinstance(step, bool) or not isinstance(step, int) or step < 0]
        if wrong:
            raise ValueError(f"Watch: steps must be integers from 0 on, got {wrong[0]!r}.")
        if on_error not in ("note", "raise"):
            raise ValueError(f"Watch: on_error must be one of note, raise, got {on_error!r}.")
        if ranks not in ("first", "all"):
            raise ValueError(f"Watch: ranks must be one of first, all, got {ranks!r}.")
        if statistics not in get_args(Statistics):
            raise ValueError(f"Watch: statistics must be one of running, batch, got {statistics!r}.")
        if every is None and not steps and not start and not end:
            raise ValueError("Watch: every must be given where steps, start and end are not, got None.")
        self.instruments = distinct_instruments("Watch", instruments)
        self.data = as_dataset(data)
        self.every, self.steps, self.start, self.end = every, frozenset(steps), start, end
        self.out = None if out is None else Path(out)
        self.module, self.layers, self.seed, self.batch, self.memory = module, layers, seed, batch, memory
        self.statistics: Statistics = statistics
        self.readout: Readout | None = readout
        self.cache, self.progress, self.name = cache, progress, name
        self.on_error: Literal["note", "raise"] = on_error
        self.log, self.figures = log, figures
        self.ranks: Literal["first", "all"] = ranks
        self.profiles: dict[int, Profile] = {}
        self._began: int | None = None  # the step at which this process took the training up
        self._sure: set[int] = set()  # steps measured, or found and seen to be of the same weights, since then

    # -- when --------------------------------------------------------------------------------------------------------

    def __call__(self, moment: TrainingMoment) -> None:
        """The plain callback: measure, if this is one of the moments to measure at."""
        if not first_process() and self.ranks == "first":
            return
        step = int(moment.step)
        out = self.out if self.out is not None or moment.out is None else Path(moment.out)
        out = out if first_process() else None
        if moment.when == "start" or self._began is None:
            self._begin(step, out)
        if step not in self._sure and self._wants(moment.when, step, moment.epoch):
            self._measure(
                moment.model,
                out,
                {
                    "step": step,
                    "epoch": _number(moment.epoch),
                    "steps": _number(moment.steps),
                    "epochs": _number(moment.epochs),
                    "when": str(moment.when),
                    "log": {str(key): value for key, value in moment.log.items() if _is_plain(value)},
                },
                getattr(moment, "loggers", ()),
            )
        if moment.when == "end":  # what this training did not come by is of another one
            self._set_aside(path for step, path in files(out).items() if self._is_unsure(step))

    def _wants(self, when: str, step: int, epoch: float | None) -> bool:
        if step in self.steps or (when == "start" and self.start and step == 0) or (when == "end" and self.end):
            return True
        if when != "epoch" or self.every is None or epoch is None:
            return False
        count = round(epoch)
        # An epoch that was broken off is no epoch.
        return abs(epoch - count) < 1e-6 and count > 0 and count % self.every == 0

    def measure(self, model: nn.Module, *, step: int, epoch: float | None = None) -> Profile | None:
        """Measure now, after ``step`` steps, whatever ``every`` and ``steps`` say; ``None`` where rank is not 0.

        A profile of the same step and the same weights is not made again.
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"Watch.measure: step must be an integer from 0 on, got {step!r}.")
        if not first_process() and self.ranks == "first":
            return None
        out = self.out if first_process() else None
        if self._began is None or step < max(self._sure, default=0):  # back in time: another training
            self._begin(step, out)
        profile = self._measure(model, out, {"step": step, "epoch": _number(epoch)})
        return profile if first_process() else None

    def _begin(self, step: int, out: Path | None) -> None:
        """A training starts, or goes on, at ``step``: earlier profiles are its past, others are of another course."""
        self._began = step
        self._sure.clear()
        past = dict(self.profiles) if step > 0 else {}
        for earlier, path in files(out).items() if step > 0 else ():
            profile = self._read(path)
            if profile is not None and training_of(profile).get("watch") == self._identity:
                past[earlier] = profile
        self.profiles = {earlier: past[earlier] for earlier in sorted(past) if earlier <= step}

    # -- measuring ---------------------------------------------------------------------------------------------------

    def _measure(
        self, model: nn.Module, out: Path | None, training: dict[str, Any], loggers: Sequence[Any] = ()
    ) -> Profile:
        step = training["step"]
        training |= {"watch": self._identity, "weights": "", "device": ""}
        try:
            root = network(model, self.module, self.statistics, alone=self.ranks == "first")
            training |= {"weights": weights_fingerprint(root), "device": model_device(root).type}
            with untouched(root):
                earlier = self._earlier(training["weights"], training["device"], out, step)
                again = earlier is None
                if self.ranks == "all":
                    again = from_first(again)
                if again:
                    earlier, fresh = (
                        None,
                        measure(
                            root,
                            self.data,
                            self.instruments,
                            layers=self.layers,
                            seed=self.seed,
                            batch=self.batch,
                            memory=self.memory,
                            statistics=self.statistics,
                            readout=self.readout,
                            cache=self.cache,
                            progress=self.progress,
                            name=self.name,
                            on_error=self.on_error,
                            processes=self.ranks == "all",
                        ),
                    )
                elif earlier is None:  # of another process than the first, which has it
                    earlier = Profile(())
            profile = self._save(fresh, out, training) if earlier is None else earlier
        except Exception as error:
            if self.on_error == "raise":
                raise
            reason = f"Failed: {type(error).__name__}: {error}"
            parts = tuple(Part(item.name, notes=(reason,), options=options_of(item)) for item in self.instruments)
            origin = {"model": {"name": self.name or type(model).__name__}, "data": {"name": self.data.name}}
            profile = self._save(Profile(parts, origin), out, training)
        for part in profile.parts:
            for note in part.notes:
                if note.startswith("Failed: "):
                    reason = note.removeprefix("Failed: ")
                    warnings.warn(f"Watch: at step {step}, {part.instrument} failed: {reason}", stacklevel=3)
        self._sure.add(step)
        if first_process():
            self._send(profile, step, loggers)
        self.profiles[step] = profile
        self.profiles = dict(sorted(self.profiles.items()))
        return profile

    def _send(self, profile: Profile, step: int, loggers: Sequence[Any]) -> None:
        """The headline numbers, to the host's loggers or to one's own; a logger that fails stops no training."""
        targets = (loggers if self.log else ()) if isinstance(self.log, bool) else (self.log,)
        for target in targets:
            try:
                profile.log(target, step=step, figure=self.figures)
            except Exception as error:
                if self.on_error == "raise":
                    raise
                kind = type(target).__name__
                warnings.warn(f"Watch: step {step} is not in {kind}: {type(error).__name__}: {error}", stacklevel=5)

    @cached_property
    def _identity(self) -> str:
        """A hash of all that a profile depends on besides the weights and the machine."""
        kinds = [type(instrument) for instrument in self.instruments]
        instruments = [
            (kind.__module__, kind.__qualname__, class_source(kind), options_of(instrument))
            for kind, instrument in zip(kinds, self.instruments, strict=True)
        ]
        settings = [self.module, self.layers, self.seed, self.batch, self.statistics, self.readout]
        versions = [package_fingerprint(), str(torch.__version__), np.__version__]
        return digest_of(instruments, self.data.tensor_fingerprint(), settings, versions)

    # -- files -------------------------------------------------------------------------------------------------------

    def _earlier(self, weights: str, device: str, out: Path | None, step: int) -> Profile | None:
        """The profile of this step, if there is one of the same measurement and the same weights.

        One of other weights is of another course of training, and so are all that this process has not seen to be of
        this one; they are moved to ``profiles/replaced``, so that the folder holds one training and nothing is lost.
        """
        paths = files(out)
        profile = self._read(paths[step]) if step in paths else self.profiles.get(step)
        if profile is None:
            return None
        training = training_of(profile)
        if training.get("weights") and training["weights"] != weights:
            self._set_aside(path for number, path in paths.items() if number >= step or self._is_unsure(number))
            return None
        if training.get("watch") == self._identity and training.get("device") == device and not _failed(profile):
            return profile
        if step in paths:
            self._set_aside([paths[step]])
        return None

    def _is_unsure(self, step: int) -> bool:
        return step not in self._sure and self._began is not None and step > self._began

    def _set_aside(self, paths: Iterable[Path]) -> None:
        for path in paths:
            try:
                (path.parent / REPLACED).mkdir(exist_ok=True)
                path.replace(path.parent / REPLACED / path.name)
            except OSError as error:
                warnings.warn(f"Watch: an old profile cannot be moved ({error})", stacklevel=5)

    def _save(self, profile: Profile, out: Path | None, training: dict[str, Any]) -> Profile:
        profile = dataclasses.replace(profile, provenance={**profile.provenance, "training": training})
        if out is not None:
            try:
                profile.save(out / FOLDER / file_name(training["step"]))
            except (OSError, ValueError) as error:
                if self.on_error == "raise":
                    raise
                warnings.warn(f"Watch: the profile of step {training['step']} is not on disk: {error}", stacklevel=4)
        return profile

    def _read(self, path: Path) -> Profile | None:
        try:
            return Profile.load(path)
        except (OSError, ValueError) as error:
            warnings.warn(f"Watch: a profile is damaged and does not count ({error})", stacklevel=4)
            return None

    # -- what came of it ---------------------------------------------------------------------------------------------

    def frame(self) -> pd.DataFrame:
        """All profiles as one long table: ``step``, ``epoch``, and the columns of ``Profile.frame``."""
        return time_frame(self.profiles)

    def lightning(self) -> Any:
        """A Lightning callback, for ``Trainer(callbacks=[…])`` of ``lightning.pytorch`` or ``pytorch_lightning``."""
        from lisse.run.callbacks import lightning_callback

        return lightning_callback(self)

    def trainer(self) -> Any:
        """A Hugging Face ``TrainerCallback``, for ``transformers.Trainer(callbacks=[…])``."""
        from lisse.run.callbacks import trainer_callback

        return trainer_callback(self)


def _failed(profile: Profile) -> bool:
    return any(note.startswith("Failed: ") for note in profile.notes)


def _number(value: float | None) -> float | int | None:
    if value is None or not math.isfinite(value):
        return None
    return int(value) if isinstance(value, int) else float(value)


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, bool)) or (isinstance(value, float) and math.isfinite(value))
