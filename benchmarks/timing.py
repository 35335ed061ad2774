"""Two or more ways to do the same work, timed in turns in one process, and the table that says so.

The contenders take turns (a, b, a, b, …), so that a machine that slows down half-way slows both. The best of the rounds
is compared: noise only ever adds time.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Timing:
    """The rounds of one contender, in seconds."""

    name: str
    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def race(
    contenders: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 10,
    warmup: int = 1,
    after: Callable[[], object] | None = None,
    now: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Times each contender ``rounds`` times, in turns, after ``warmup`` untimed turns.

    ``after`` runs before the clock is read: ``torch.cuda.synchronize`` on a GPU. ``now`` is the clock:
    ``time.process_time`` counts what the processor did, which a busy neighbour changes less.
    """
    if rounds < 1:
        raise ValueError(f"race: rounds must be at least 1, got {rounds}.")
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(warmup + rounds):
        for name, work in contenders.items():
            start = now()
            work()
            if after is not None:
                after()
            if turn >= warmup:
                seconds[name].append(now() - start)
    return [Timing(name, tuple(found)) for name, found in seconds.items()]


def processor() -> str:
    """The name of the CPU, as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine(*packages: str) -> str:
    """One line: CPU, cores, threads, GPU if torch was asked to look, versions, date."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts = [processor(), f"{cores} cores", f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}"]
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        facts.append(torch.cuda.get_device_name())
    facts.append(f"Python {platform.python_version()}")
    facts += [f"{name} {metadata.version(name)}" for name in ("torch", *packages)]
    facts.append(datetime.datetime.now(datetime.UTC).date().isoformat())
    return ", ".join(facts)


def table(timings: Sequence[Timing], *, ratio: bool = True) -> str:
    """Best, median and the ratio of bests to the first contender, in Markdown; ``ratio=False`` for different works."""
    base = timings[0].best
    lines = ["| | best | median |", "|---|---|---|"]
    lines += [f"| {timing.name} | {clock(timing.best)} | {clock(timing.median)} |" for timing in timings]
    if ratio:
        column = [" ratio of bests |", "---|", *(f" {timing.best / base:.3f} |" for timing in timings)]
        lines = [line + cell for line, cell in zip(lines, column, strict=True)]
    return "\n".join(lines)


def clock(seconds: float) -> str:
    """A time with three figures and a unit."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1.0:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def arguments(description: str | None, *, rounds: int = 10) -> argparse.ArgumentParser:
    """The options all benchmarks have; add your own."""
    first = (description or "").strip().partition("\n")[0]
    parser = argparse.ArgumentParser(description=first)
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="timed rounds of each contender (default %(default)s)"
    )
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results")
    return parser


def publish(name: str, title: str, body: str, *, write: bool, packages: Sequence[str] = ()) -> None:
    """Prints a result with its machine, and keeps it as ``benchmarks/results/NAME.md`` if asked to."""
    text = f"# {title}\n\n{machine(*packages)}\n\n{body}\n"
    sys.stdout.write(text)
    if write:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{name}.md"
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"\nwritten to {path.relative_to(RESULTS.parent.parent)}\n")


def spent_in(places: Sequence[tuple[Any, str]], work: Callable[[], object]) -> tuple[float, dict[str, float]]:
    """Seconds of one ``work()`` and inside each function ``(owner, name)``, most first; nested calls count in both."""
    spent: dict[str, float] = collections.defaultdict(float)
    plain = [(owner, name, getattr(owner, name)) for owner, name in places]

    def timed(name: str, function: Any) -> Any:
        def call(*args: Any, **keywords: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*args, **keywords)
            finally:
                spent[name] += time.perf_counter() - begun

        return call

    for owner, name, function in plain:
        setattr(owner, name, timed(name, function))
    try:
        begun = time.perf_counter()
        work()
        whole = time.perf_counter() - begun
        return whole, dict(sorted(spent.items(), key=lambda item: -item[1]))
    finally:
        for owner, name, function in plain:
            setattr(owner, name, function)
