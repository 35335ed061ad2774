"""Instrument: a measurement as a frozen dataclass of options; measure(): a run of several of them."""

from __future__ import annotations

import abc
import dataclasses
import datetime
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn

import lisse
from lisse.data import as_dataset
from lisse.profile import Part, Profile, Quantity, options_of
from lisse.progress import Bar, Listener
from lisse.recording.recorder import Readout
from lisse.run.run import Run
from lisse.taps.stillness import Statistics


class Instrument(abc.ABC):
    """One way to look at a network. Subclasses are frozen dataclasses: their fields are their options.

    ``QUANTITIES`` describes what the rows mean, once; the report, the command line and the cache learn it from there.
    """

    QUANTITIES: ClassVar[tuple[Quantity, ...]] = ()

    @property
    def name(self) -> str:
        """What the command line and a profile call it."""
        return type(self).__name__.lower()

    def fits(self, run: Run) -> str | None:
        """Why this instrument cannot look at this run, in one plain sentence; ``None`` where it can."""
        return None

    @abc.abstractmethod
    def part(self, run: Run) -> Part:
        """Measure."""

    def measure(
        self,
        model: nn.Module,
        data: Any,
        *,
        layers: Sequence[str] | str | None = None,
        seed: int = 0,
        batch: int = 100,
        memory: str | int = "2GiB",
        device: str | torch.device | None = None,
        statistics: Statistics = "running",
        readout: Readout | None = None,
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
    memory: str | int = "2GiB",
    device: str | torch.device | None = None,
    statistics: Statistics = "running",
    readout: Readout | None = None,
    cache: str | Path | bool | None = None,
    progress: Listener | bool | None = None,
    name: str | None = None,
    on_error: Literal["raise", "note"] = "raise",
) -> Profile:
    """One model on one data set, seen by several instruments that share one pass: a :class:`~lisse.profile.Profile`.

    ``data`` is a :class:`~lisse.data.Dataset` or anything :func:`~lisse.data.as_dataset` takes (tensors, a
    ``DataLoader``…). ``layers`` chooses by name or glob (see :func:`lisse.taps.find`). The model is left as it was,
    except that ``device`` moves it. With ``cache`` (a folder, or ``True`` for the person's cache) finished work is
    kept, and an interrupted measurement goes on where it stopped. ``progress`` is a listener, or ``True`` for a bar.

    An instrument that does not fit gives an empty part with the reason; one that fails raises, or with
    ``on_error="note"`` gives an empty part with the error, so that the others are not lost.
    """
    chosen: list[Any] = list(instruments) if isinstance(instruments, (list, tuple)) else [instruments]
    for instrument in chosen:
        if not isinstance(instrument, Instrument) or not dataclasses.is_dataclass(instrument):
            hint = f" Write {instrument.__name__}()." if isinstance(instrument, type) else ""
            raise TypeError(f"measure: instruments must be Instruments, got {instrument!r}.{hint}")
    names = [instrument.name for instrument in chosen]
    if len(set(names)) != len(names):
        raise ValueError(f"measure: instruments must be different ones, got {', '.join(names)}.")
    if on_error not in ("raise", "note"):
        raise ValueError(f"measure: on_error must be one of raise, note, got {on_error!r}.")
    bar = Bar() if progress is True else None
    listener: Any = bar or (None if progress is False else progress)
    begun = time.perf_counter()
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
        cache=cache,
        progress=listener,
    )
    try:
        parts = [_part(instrument, run, on_error) for instrument in chosen]
    finally:
        run.close()
        if bar is not None:
            bar.close()
    return Profile(tuple(parts), _provenance(run, model, name, time.perf_counter() - begun))


def _part(instrument: Instrument, run: Run, on_error: str) -> Part:
    reason = instrument.fits(run)
    options = options_of(instrument)
    if reason is not None:
        run.say(instrument.name, f"not measured: {reason}", level="warning")
        return Part(instrument.name, notes=(f"Not measured: {reason}",), options=options)
    try:
        part = run.part(instrument, lambda: instrument.part(run))
    except Exception as error:
        if on_error == "raise":
            raise
        run.say(instrument.name, f"failed: {error}", level="warning")
        return Part(instrument.name, notes=(f"Failed: {type(error).__name__}: {error}",), options=options)
    return dataclasses.replace(part, options=options)


def _provenance(run: Run, model: nn.Module, name: str | None, seconds: float) -> dict[str, Any]:
    """Plain JSON: enough to make the same numbers again, and to know when two profiles cannot be compared."""
    card = getattr(model, "lisse", None)
    skipped = [{"name": place.name, "reason": place.reason} for place in run.taps.skipped]
    return {
        "model": {
            "name": name or getattr(card, "name", None) or type(run.model).__name__,
            "spec": getattr(card, "spec", None),
            "class": f"{type(run.model).__module__}.{type(run.model).__qualname__}",
            "parameters": sum(weight.numel() for weight in run.model.parameters()),
            "fingerprint": run.fingerprints["model"],
        },
        "data": {"name": run.data.name, "samples": len(run.data), "fingerprint": run.fingerprints["data"]},
        "layers": [
            {"name": tap.name, "role": tap.role, "kind": tap.kind, "shape": list(tap.shape), "depth": tap.depth}
            for tap in run.taps
        ],
        "skipped": skipped[:100],
        "seed": run.seed,
        "batch": run.batch,
        "statistics": run.statistics,
        "readout": run.readout,
        "device": _device_name(run.device),
        "versions": {
            "lisse": lisse.__version__,
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "machine": {"system": platform.platform(), "cpus": os.cpu_count(), "threads": torch.get_num_threads()},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
    }


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
