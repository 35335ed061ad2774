"""Progress: what long work says while it runs, and a bar that shows it.

Work says :class:`Event`; anything callable with one may listen: a bar in a terminal or a notebook, lines in a log, a
test. Listening never changes a result.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@dataclass(frozen=True, slots=True)
class Event:
    """``task`` has done ``done`` of ``total`` (``None``: not known) ``unit``; or only something to ``say``."""

    task: str
    done: float = 0
    total: float | None = None
    unit: str = ""
    say: str = ""
    level: Literal["info", "warning"] = "info"


Listener = Callable[[Event], None]


class Bar:
    """Shows events: a live bar with rate and time left in a terminal or notebook, a line now and then elsewhere.

    Use it as a context manager, or hand it to ``measure(progress=…)`` and call :meth:`close` at the end. ``stream``
    is standard error by default, so that a table on standard output can still be piped. Without a terminal a task
    prints a line at its start, at most one every ``every`` seconds, and one at its end. ``memory`` also shows how much
    this process holds; ``keep=False`` takes finished bars off the screen, for work of many tasks.
    """

    def __init__(
        self,
        stream: IO[str] | None = None,
        *,
        every: float = 10.0,
        live: bool | None = None,
        memory: bool = False,
        keep: bool = True,
    ) -> None:
        from rich.console import Console

        self.console = Console(file=stream or sys.stderr, emoji=False)
        self.every, self.memory, self.keep = every, memory, keep
        self.live = (self.console.is_terminal or self.console.is_jupyter) if live is None else live
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._begun: dict[str, tuple[float, float]] = {}  # when, and what was done then
        self._said: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if event.say:
            style = "yellow" if event.level == "warning" else None
            text = f"{event.task}: {event.say}"
            self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
            return
        if self.live:
            self._draw(event)
        else:
            self._line(event)

    def close(self) -> None:
        """Stop drawing; the finished bars stay on the screen."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
        self._tasks.clear()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _draw(self, event: Event) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.text import Text

        class Rate(TextColumn):
            def render(self, task: Any) -> Text:
                speed = task.finished_speed or task.speed
                return Text("" if speed is None else f"{_figure(speed)} {task.fields['unit']}/s", style="cyan")

        class Memory(TextColumn):
            def render(self, task: Any) -> Text:
                return Text(memory_text(), style="dim")

        if self._bars is None:
            more = [Memory("")] if self.memory else []
            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                Rate(""),
                TimeRemainingColumn(elapsed_when_finished=True),
                *more,
                console=self.console,
            )
            self._bars.start()
        if event.task not in self._tasks:
            self._tasks[event.task] = self._bars.add_task(event.task, total=event.total, unit=event.unit)
        self._bars.update(self._tasks[event.task], completed=event.done, total=event.total)
        if not self.keep and event.total is not None and event.done >= event.total:
            self._bars.remove_task(self._tasks.pop(event.task))

    def _line(self, event: Event) -> None:
        now = time.monotonic()
        begun, before = self._begun.setdefault(event.task, (now, event.done))
        finished = event.total is not None and event.done >= event.total
        if not finished and now - self._said.get(event.task, -self.every) < self.every:
            return
        self._said[event.task] = now
        rate = (event.done - before) / (now - begun) if now > begun else 0.0
        text = f"{event.task}: {_count(event.done)}" + (f" of {_count(event.total)}" if event.total is not None else "")
        text += f" {event.unit}" if event.unit else ""
        if rate > 0:
            text += f", {_figure(rate)} {event.unit}/s"
            if event.total is not None and not finished:
                text += f", about {_duration((event.total - event.done) / rate)} left"
        if self.memory:
            text += f", {memory_text()}"
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        if finished:
            self._begun.pop(event.task, None)
            self._said.pop(event.task, None)


def memory_text() -> str:
    """What this process holds in memory now, in words; empty where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        held = pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        try:
            import resource
        except ImportError:
            return ""
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return f"{held / 2**30:.1f} GiB" if held >= 2**30 else f"{held / 2**20:.0f} MiB"


def _count(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else f"{number:g}"


def _figure(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
