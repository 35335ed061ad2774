"""Progress: what long work says while it runs, and a bar that shows it.

Work says :class:`Event`; anything callable with one may listen: a bar in a terminal or a notebook, lines in a log, a
test. Listening never changes a result.
"""

from __future__ import annotations

import html
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@dataclass(frozen=True, slots=True)
class Event:
    """``task`` has done ``done`` of ``total`` (``None``: unknown) ``unit``, of which ``failed``; or it has ``say``."""

    task: str
    done: float = 0
    total: float | None = None
    unit: str = ""
    failed: int = 0
    say: str = ""
    level: Literal["info", "warning"] = "info"


Listener = Callable[[Event], None]


_SILENT: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silent(quiet: bool = True) -> Iterator[None]:
    """Within it a new :class:`Bar` shows no progress, only warnings."""
    before = _SILENT.set(quiet)
    try:
        yield
    finally:
        _SILENT.reset(before)


class Bar:
    """Shows events: a live bar with rate and time left in a terminal or a notebook, a line a minute elsewhere.

    Use it as a context manager, or hand it to ``measure(progress=…)`` and call :meth:`close` at the end. ``stream``
    is standard error by default, so that a table on standard output can still be piped. Without a terminal there is a
    first line, at most one every ``every`` seconds, of whichever task is at work, and a last one that says what was
    done. In a notebook a bar is a line of HTML that changes in place, and needs no widgets. ``memory`` also shows how
    much this process holds; ``keep=False`` takes finished bars off the screen, for work of many tasks. ``quiet`` (or
    :func:`silent` around it) shows warnings alone.
    """

    def __init__(
        self,
        stream: IO[str] | None = None,
        *,
        every: float = 60.0,
        live: bool | None = None,
        memory: bool = False,
        keep: bool = True,
        quiet: bool | None = None,
    ) -> None:
        from rich.console import Console

        self.console = Console(file=stream or sys.stderr, emoji=False, force_jupyter=False)
        self.every, self.memory, self.keep = every, memory, keep
        self.quiet = _SILENT.get() if quiet is None else quiet
        self.notebook = _Notebook(keep) if stream is None and live is not False and _in_notebook() else None
        self.live = self.console.is_terminal if live is None else live
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._starts: dict[str, tuple[float, float]] = {}  # when, and what was done then
        self._began, self._spoke = time.monotonic(), -math.inf
        self._finished: dict[str, None] = {}

    def __call__(self, event: Event) -> None:
        """Show one event. A recording grows in whole batches: no more is said to be done than there is."""
        if event.total is not None and event.done > event.total:
            event = replace(event, done=event.total)
        if event.say:
            if self.quiet and event.level != "warning":
                return
            style = "yellow" if event.level == "warning" else None
            text = f"{event.task}: {event.say}"
            self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
            return
        if self.quiet:
            return
        if event.total is not None and event.done > event.total:
            event = replace(event, done=event.total)  # whole batches may reach beyond what was asked for
        if self.notebook is not None:
            self.notebook.show(event, self._text(event))
        elif self.live:
            self._draw(event)
        else:
            self._line(event)

    def close(self) -> None:
        """Stop drawing; the finished bars stay on the screen."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
        self._tasks.clear()
        if self.notebook is not None:
            self.notebook.draw()
        if self._finished:
            count, seconds = len(self._finished), time.monotonic() - self._began
            text = f"{next(reversed(self._finished))}: done" if count == 1 else f"{count} steps of work done"
            self.console.print(f"{text} in {_duration(seconds)}", markup=False, highlight=False, soft_wrap=True)
            self._finished.clear()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self._finished.clear()  # what went wrong is the last line
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
        title = event.task + _failed(event)
        self._bars.update(self._tasks[event.task], completed=event.done, total=event.total, description=title)
        if not self.keep and event.total is not None and event.done >= event.total:
            self._bars.remove_task(self._tasks.pop(event.task))

    def _line(self, event: Event) -> None:
        instant, text = time.monotonic(), self._text(event)
        if event.total is not None and event.done >= event.total:
            self._finished[event.task] = None
        if instant - self._spoke >= self.every:
            self._spoke = instant
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _text(self, event: Event) -> str:
        """An event in words, with rate and time left."""
        instant = time.monotonic()
        start, before = self._starts.setdefault(event.task, (instant, event.done))
        finished = event.total is not None and event.done >= event.total
        rate = (event.done - before) / (instant - start) if instant > start else 0.0
        text = f"{event.task}: {_count(event.done)}" + (f" of {_count(event.total)}" if event.total is not None else "")
        text += (f" {event.unit}" if event.unit else "") + _failed(event)
        if rate > 0:
            text += f", {_figure(rate)} {event.unit}/s"
            if event.total is not None and not finished:
                text += f", about {_duration((event.total - event.done) / rate)} left"
        if self.memory:
            text += f", {memory_text()}"
        if finished:
            self._starts.pop(event.task, None)
        return text


def _failed(event: Event) -> str:
    return f", {event.failed:,} failed" if event.failed else ""


class _Notebook:
    """Bars of a notebook: one display of plain HTML that is replaced in place, a few times a second."""

    least = 0.2  # seconds between two pictures of a task that is not at its end

    def __init__(self, keep: bool) -> None:
        self.keep = keep
        self._handle: Any = None
        self._lines: dict[str, str] = {}
        self._drawn = 0.0

    def show(self, event: Event, text: str) -> None:
        """Take a task's newest state, and show it unless that was done a moment ago."""
        finished = event.total is not None and event.done >= event.total
        share = "" if event.total is None else f' value="{event.done:g}" max="{max(event.total, 1e-9):g}"'
        if finished and not self.keep:
            self._lines.pop(event.task, None)
        else:
            self._lines[event.task] = f"<progress{share}></progress> {html.escape(text)}"
        instant = time.monotonic()
        if finished or instant - self._drawn >= self.least:
            self._drawn = instant
            self.draw()

    def draw(self) -> None:
        """Show what every line says now."""
        if not self._lines and self._handle is None:
            return
        from IPython.display import HTML, display

        picture = HTML("<br>".join(self._lines.values()))
        if self._handle is None:
            self._handle = display(picture, display_id=True)
        else:
            self._handle.update(picture)


def _in_notebook() -> bool:
    """Whether this is the kernel of a notebook, which shows HTML; IPython in a terminal is a terminal."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def memory_text() -> str:
    """What this process holds in memory now, in words; empty where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        size = pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        try:
            import resource
        except ImportError:
            return ""
        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _count(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else f"{number:g}"


def _figure(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
