"""Instrument: a measurement as a frozen dataclass of options; measure(): a run of several of them."""

from __future__ import annotations

import abc
import dataclasses
import datetime
import os
import platform
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from torch import nn

import lisse
from lisse.data import as_dataset
from lisse.maths.fetching import fetched
from lisse.models.room import free_bytes
from lisse.profile import Chart, Part, Profile, Quantity, Row, options_of
from lisse.progress import Bar, Listener
from lisse.recording import parse_bytes
from lisse.recording.recorder import Readout
from lisse.run.fingerprint import library_versions, package_fingerprint
from lisse.run.options import Size, check_options, sizes_of
from lisse.run.run import Order, Run
from lisse.taps import Tap, unseen_norms
from lisse.taps.stillness import Statistics

if TYPE_CHECKING:
    from lisse.run.pair import RunPair


@dataclass(frozen=True)
class Instrument(abc.ABC):
    """One way to look at a network. Subclasses are frozen dataclasses: their fields are their options.

    An instrument says everything about itself: each field is an :func:`~lisse.run.options.option` with its help, sizes
    and limits; ``QUANTITIES`` describes what the rows mean, which of them are headlines and which figures lead, and
    ``CHARTS`` what ``lisse figure`` draws beside the figure that every quantity has;
    ``AT_START`` says whether its numbers also tell something of a network with random weights, ``LEFT_OUT`` what a size
    leaves out, :meth:`seconds` what it costs. The report, the command line and the cache learn it from there.
    """

    QUANTITIES: ClassVar[tuple[Quantity, ...]] = ()
    CHARTS: ClassVar[tuple[Chart, ...]] = ()
    AT_START: ClassVar[bool] = False
    LEFT_OUT: ClassVar[Mapping[Size, str]] = {}
    #: What makes :meth:`bytes` smaller, for a person whose machine has fewer.
    SPARES: ClassVar[str] = "Take fewer samples."
    #: Whether its clean pass reads places of its own: it then goes first, and the recording is made in passing.
    STREAMS: ClassVar[bool] = False
    #: How many networks it looks at: one (:meth:`part` of a run), or two beside each other (:meth:`part_of_pair`).
    SIDES: ClassVar[int] = 1
    #: Whether several processes may each take some blocks of its samples: a block then depends on no other.
    SHARED: ClassVar[bool] = False

    # Until the next release: what sized("quick") is now.
    quick: bool = dataclasses.field(default=False, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.quick:
            kind = type(self).__name__
            warnings.warn(f"{kind}: quick=True is now {kind}.sized('quick').", DeprecationWarning, stacklevel=3)
            defaults = {item.name: item.default for item in dataclasses.fields(self)}
            for name, value in {**sizes_of(type(self), "quick"), "quick": False}.items():
                if name == "quick" or getattr(self, name) == defaults[name]:
                    object.__setattr__(self, name, value)
        check_options(self)

    @classmethod
    def sized(cls, size: Size, **options: Any) -> Self:
        """The instrument at a size: ``quick`` (fewer samples, with intervals), ``usual`` (a report's) or ``full``."""
        if size not in get_args(Size):
            raise ValueError(f"{cls.__name__}: size must be one of {', '.join(get_args(Size))}, got {size!r}.")
        return cls(**{**sizes_of(cls, size), **options})

    @property
    def name(self) -> str:
        """What the command line and a profile call it."""
        return type(self).__name__.lower()

    def fits(self, run: Run) -> str | None:
        """Why this instrument cannot look at this run, in one plain sentence; ``None`` where it can."""
        return None

    def fits_pair(self, pair: RunPair) -> str | None:
        """Where ``SIDES`` is 2, why a survey has nothing to ask it about two networks; ``None`` where it has."""
        return None

    def passes(self, run: Run) -> int:
        """How many samples its clean pass goes over: with those of the other instruments, what is worth sharing."""
        samples = getattr(self, "samples", 0)
        return run.take(samples and samples * getattr(self, "clouds", 1))

    def own_taps(self, run: Run) -> Sequence[Tap] | None:
        """What its clean pass reads beside the run's layers: the pass of an instrument before it keeps that for it.

        ``None``: it must see the forward itself, and goes first.
        """
        return ()

    def seconds(self, per_sample: float, layers: int, n: int) -> float:
        """What it takes, roughly, where a forward takes ``per_sample`` and there are ``n`` samples."""
        return 10 * min(getattr(self, "samples", 500) or n, n) * per_sample

    def bytes(self, run: Run) -> int:
        """What its mathematics holds at once, beside the run's ``memory`` and the activations of a batch."""
        return 0

    def accuracy(self, part: Part) -> Row | None:
        """Of its own part, the row that says how often the network is right, where it counts that.

        A survey then takes this number for the network's, so that a page has one accuracy.
        """
        return None

    @abc.abstractmethod
    def part(self, run: Run) -> Part:
        """Measure."""

    def part_of_pair(self, pair: RunPair) -> Part:
        """Measure two networks beside each other, where ``SIDES`` is 2."""
        raise NotImplementedError(f"{self.name}: it looks at one network at a time")

    def pictures(self, run: Run) -> Mapping[str, np.ndarray]:
        """Images for a page, beside the part: no measurement, so only a survey makes them.

        ``filmstrip/TITLE`` is a strip ``[rows, columns, c, h, w]`` in [0, 1].
        """
        return {}

    def part_of(
        self,
        rows: Iterable[Row],
        notes: Iterable[str] = (),
        arrays: Mapping[str, np.ndarray] | None = None,
        *,
        finding: str = "",
        complete: bool = True,
    ) -> Part:
        """The part with these rows, and with the instrument's own quantities."""
        return Part(
            self.name, tuple(rows), self.QUANTITIES, tuple(notes), arrays or {}, finding=finding, complete=complete
        )

    def measure(
        self,
        model: nn.Module,
        data: Any,
        *,
        layers: Sequence[str] | str | None = None,
        seed: int = 0,
        batch: int = 100,
        memory: str | int | None = None,
        device: str | torch.device | None = None,
        statistics: Statistics = "running",
        readout: Readout | None = None,
        order: Order = "drawn",
        cache: str | Path | bool | None = None,
        progress: Listener | bool | None = None,
        name: str | None = None,
    ) -> Profile:
        """``measure(model, data, [self])``."""
        return measure(
            model,
            data,
            [self],
            layers=layers,
            seed=seed,
            batch=batch,
            memory=memory,
            device=device,
            statistics=statistics,
            readout=readout,
            order=order,
            cache=cache,
            progress=progress,
            name=name,
        )


def measure(
    model: nn.Module,
    data: Any,
    instruments: Instrument | Sequence[Instrument],
    *,
    layers: Sequence[str] | str | None = None,
    seed: int = 0,
    batch: int = 100,
    memory: str | int | None = None,
    device: str | torch.device | None = None,
    statistics: Statistics = "running",
    readout: Readout | None = None,
    order: Order = "drawn",
    cache: str | Path | bool | None = None,
    progress: Listener | bool | None = None,
    name: str | None = None,
    on_error: Literal["raise", "note"] = "raise",
    processes: bool = False,
) -> Profile:
    """One model on one data set, seen by several instruments that share one pass: a :class:`~lisse.profile.Profile`.

    ``data`` is a :class:`~lisse.data.Dataset` or anything :func:`~lisse.data.as_dataset` takes (tensors, a
    ``DataLoader``…). ``layers`` chooses by name or glob (see :func:`lisse.taps.find`). The model is left as it was,
    except that ``device`` moves it. Samples are taken in an ``order`` that is ``drawn`` with the seed, so that a
    hundred of a sorted file are a sample of all, or as ``given``. With ``cache`` (a folder, or ``True`` for the
    person's cache) finished work is kept, and an interrupted measurement goes on where it stopped. ``progress`` is
    a listener, or ``True`` for a bar.

    An instrument that does not fit gives an empty part with the reason; one that fails raises, or with
    ``on_error="note"`` gives an empty part with the error, so that the others are not lost. With ``processes`` every
    process of the group makes this call, each takes its share of the samples where an instrument allows that, and only
    numbers are gathered: all get the same profile.
    """
    instruments = distinct_instruments("measure", instruments)
    bar = Bar() if progress is True else None
    listener: Any = bar or (None if progress is False else progress)
    run = Run(
        model,
        as_dataset(data),
        layers=layers,
        seed=seed,
        batch=batch,
        memory=memory,
        device=device,
        statistics=statistics,
        readout=readout,
        order=order,
        cache=cache,
        progress=listener,
        processes=processes,
    )
    try:
        return profile_of(run, instruments, name=name, on_error=on_error)
    finally:
        run.close()
        if bar is not None:
            bar.close()


def profile_of(
    run: Run,
    instruments: Instrument | Sequence[Instrument],
    *,
    name: str | None = None,
    on_error: Literal["raise", "note"] = "raise",
) -> Profile:
    """What :func:`measure` gives, of a run that is open already; whoever opened it closes it."""
    instruments = distinct_instruments("measure", instruments)
    if on_error not in ("raise", "note"):
        raise ValueError(f"measure: on_error must be one of raise, note, got {on_error!r}.")
    clock, before = time.perf_counter(), _sums(run.model)
    parts = _with_word_on_norms(run, _parts(instruments, run, on_error))
    changed = [key for key, value in _sums(run.model).items() if repr(before.get(key)) != repr(value)]
    if changed:
        parts = _noted(
            parts,
            f"A forward of this model writes its own parameters, which stay changed ({len(changed)} of them, the first "
            f"is {changed[0]}): numbers rest on several networks.",
        )
    if run.restless:
        parts = _noted(
            parts,
            f"The same samples twice give other activations at {len(run.restless)} places, the first is "
            f"{run.restless[0]}: the same call may give other numbers.",
        )
    for note in run.taps.notes:
        parts = _noted(parts, note)
    run.forget()
    return Profile(tuple(parts), provenance_of(run, name, time.perf_counter() - clock))


def distinct_instruments(where: str, instruments: Any) -> list[Instrument]:
    """One instrument or several as a list, where they are instruments and no two have one name."""
    items = list(instruments) if isinstance(instruments, (list, tuple)) else [instruments]
    for instrument in items:
        if not isinstance(instrument, Instrument) or not dataclasses.is_dataclass(instrument):
            hint = f" Write {instrument.__name__}()." if isinstance(instrument, type) else ""
            raise TypeError(f"{where}: instruments must be Instruments, got {instrument!r}.{hint}")
    names = [instrument.name for instrument in items]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"{where}: instruments must be different ones, got {', '.join(names) or 'none'}.")
    return items


def _parts(instruments: Sequence[Instrument], run: Run, on_error: str) -> list[Part]:
    """The parts in the order of the instruments; those that read places of their own are measured first."""
    reasons = {
        instrument.name: _other_sides(instrument) or instrument.fits(run) or _no_room(instrument, run)
        for instrument in instruments
    }
    order = sorted(instruments, key=lambda instrument: not instrument.STREAMS)
    fitting = [instrument for instrument in order if reasons[instrument.name] is None and instrument.passes(run)]
    readers = [instrument for instrument in fitting if type(instrument).own_taps is not Instrument.own_taps]
    taps = {instrument.name: instrument.own_taps(run) for instrument in readers} if len(readers) > 1 else {}
    order.sort(key=lambda instrument: taps.get(instrument.name, ()) is not None)
    later = [instrument.name for instrument in order if instrument in readers][1:]
    run.share((instrument.passes(run) for instrument in fitting), (tap for name in later for tap in taps[name] or ()))
    parts: dict[str, Part] = {}
    for instrument in order:
        part = _part(instrument, run, reasons[instrument.name], on_error)
        parts[instrument.name] = with_options(instrument, part)
    return [parts[instrument.name] for instrument in instruments]


def with_options(instrument: Instrument, part: Part) -> Part:
    """The part with the options it was measured by, and with charts where there is something to draw."""
    charts = instrument.CHARTS if part.rows or part.arrays else ()
    return dataclasses.replace(part, options=options_of(instrument), charts=charts)


def _noted(parts: Sequence[Part], note: str) -> list[Part]:
    """The parts with a warning, and a note in each that has numbers."""
    warnings.warn(f"measure: {note}", stacklevel=3)
    return [dataclasses.replace(part, notes=(note, *part.notes)) if part.rows else part for part in parts]


def _sums(model: nn.Module) -> dict[str, complex]:
    """A number for each parameter that nearly any change of it changes: a pass over the weights, and no copy."""
    sums = {name: weight.detach().sum(dtype=_wide(weight)) for name, weight in model.named_parameters()}
    # Of weights that are spread over processes every process asks for its own.
    totals = {name: total.full_tensor() if hasattr(total, "full_tensor") else total for name, total in sums.items()}
    return {name: total.item() for name, total in fetched(totals).items()}


def _wide(weight: torch.Tensor) -> torch.dtype:
    if weight.device.type == "mps":
        return weight.dtype
    return torch.complex128 if weight.is_complex() else torch.float64


def _other_sides(instrument: Instrument) -> str | None:
    if instrument.SIDES == 1:
        return None
    return f"it looks at {instrument.SIDES} networks beside each other: lisse {instrument.name} A B --data SPEC."


def _no_room(instrument: Instrument, run: Run) -> str | None:
    """Why the machine has no room for an instrument's mathematics; what takes more than the budget is announced."""
    need, free = instrument.bytes(run), free_bytes(torch.device("cpu"))
    budget = parse_bytes(run.memory)
    if run.device.type == "cuda":  # graphs and clouds are held there, diagrams here
        free, budget = None if free is None else free + (free_bytes(run.device) or 0), budget + run.device_memory
    if need > budget:
        run.say(instrument.name, f"takes {need / 2**30:.2g} GiB beside memory={run.memory}. {instrument.SPARES}")
    if free is None or need <= free:
        return None
    return f"it takes {need / 2**30:.2g} GiB of memory, and {free / 2**30:.2g} are free. {instrument.SPARES}"


def _with_word_on_norms(run: Run, parts: Sequence[Part]) -> list[Part]:
    """The parts, with a warning and a note in each that has numbers where batch norms computed with no statistics."""
    names = unseen_norms(run.model) if run.statistics == "running" else []
    if not names or not any(part.rows for part in parts):
        return list(parts)
    count = f"{len(names)} batch norm{'s have' if len(names) > 1 else ' has'}"
    note = f"{count} never seen data: running statistics are 0 and 1, and numbers say nothing of a trained network."
    hint = "statistics='batch' takes those of each batch"
    warnings.warn(f"measure: {note} The first is {names[0] or 'the network itself'}; {hint}.", stacklevel=3)
    return [dataclasses.replace(part, notes=(note, *part.notes)) if part.rows else part for part in parts]


def _part(instrument: Instrument, run: Run, reason: str | None, on_error: str) -> Part:
    if reason is not None:
        run.say(instrument.name, f"not measured: {reason}", level="warning")
        return Part(instrument.name, notes=(f"Not measured: {reason}",))
    batch = run.batch
    try:
        part = _with_room(instrument, run)
    except Exception as error:
        if on_error == "raise":
            raise
        run.say(instrument.name, f"failed: {error}", level="warning")
        return Part(instrument.name, notes=(f"Failed: {type(error).__name__}: {error}",), complete=False)
    if run.batch == batch:
        return part
    note = f"The device had no room for {batch} samples at a time: {run.batch} were taken, the same ones."
    return dataclasses.replace(part, notes=(*part.notes, note))


def _with_room(instrument: Instrument, run: Run) -> Part:
    """The part, with fewer samples at a time where the device has no room for more."""
    while True:
        try:
            return run.part(instrument, lambda: instrument.part(run))
        except torch.OutOfMemoryError as error:
            if not run.may_shrink(run.batch):
                raise torch.OutOfMemoryError(
                    f"{instrument.name}: the device has no room for {run.batch} sample{'s' * (run.batch > 1)} at a "
                    "time. Take fewer layers (--layers), half the precision (?dtype=bfloat16), or several devices "
                    f"(?device_map=auto). It said: {str(error).partition('. ')[0]}"
                ) from error
        run.shrink(run.batch)


def provenance_of(run: Run, name: str | None, seconds: float) -> dict[str, Any]:
    """Plain JSON: enough to make the same numbers again, and to know when two profiles cannot be compared."""
    card = getattr(run.model, "lisse", None)
    data: dict[str, Any] = {"name": run.data.name, "samples": len(run.data), "fingerprint": run.fingerprints["data"]}
    data["distinct"] = run.data.distinct()
    labels = run.data.targets
    if labels is not None and labels.ndim == 1 and not labels.is_floating_point() and len(labels):
        data["labels"] = len(labels.unique())
    if run.data.texts is not None:
        data["tokenizer"] = {"name": run.data.tokenizer, "fingerprint": run.fingerprints["tensors"]}
    skipped = [{"name": spot.name, "reason": spot.reason} for spot in run.taps.skipped]
    return {
        "model": {
            "name": name or getattr(card, "name", None) or type(run.model).__name__,
            "spec": getattr(card, "spec", None),
            "class": f"{type(run.model).__module__}.{type(run.model).__qualname__}",
            "parameters": sum(weight.numel() for weight in run.model.parameters()),
            "fingerprint": run.fingerprints["model"],
        },
        "data": data,
        "layers": [
            {"name": tap.name, "role": tap.role, "kind": tap.kind, "shape": list(tap.shape), "depth": tap.depth}
            for tap in run.taps
        ],
        "last_block": None if run.taps.end is None else run.taps.end.name,
        "skipped": skipped[:100],
        "seed": run.seed,
        "batch": run.batch,
        "statistics": run.statistics,
        "readout": run.readout,
        "order": run.order,
        "device": _device_name(run.device),
        "deterministic": not run.restless,
        "versions": {
            "lisse": lisse.__version__,
            "code": package_fingerprint()[:8],
            "torch": str(torch.__version__),
            **library_versions(),
            "python": platform.python_version(),
        },
        "machine": {"system": platform.platform(), "cpus": os.cpu_count(), "threads": torch.get_num_threads()},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
    }


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
