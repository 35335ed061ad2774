"""How far an experiment is: one bar for all networks above the bars of the step at hand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from lisse.progress import Event, Listener

ALL_STEPS = "all networks"


class Steps:
    """Turns the progress of steps into that of all, each step weighed by the seconds it is thought to take.

    What an earlier start has finished does not count: the share is of the work that this start has to do, so that the
    time left is reckoned from work and not from files that were found.
    """

    def __init__(self, paper: str, listener: Listener | None, seconds: Sequence[float]) -> None:
        self.paper, self.listener, self.weights = paper, listener, list(seconds)
        self.total, self.finished = float(sum(seconds)), 0.0
        self.weight, self.heard = 0.0, False

    def step(self, label: str, text: str, tasks: Sequence[str] = ()) -> Listener:
        """A listener for the next step: ``tasks`` are the names of its own tasks, equal parts of it, in order."""
        self.weight, self.heard = self.weights.pop(0), False
        self._pass(Event(self.paper, say=f"{label}: {text}"))
        starts: dict[str, float] = {}

        def listen(event: Event) -> None:
            if event.say:
                self._pass(dataclasses.replace(event, task=f"{label}, {event.task}"))
                return
            self._pass(event)
            if event.task in tasks and event.total:
                self.heard = True
                share = event.done / event.total
                first = starts.setdefault(event.task, share)
                if first:  # taken up in the middle: what was there already is not work of this start
                    share = (share - first) / (1 - first) if first < 1 else 1.0
                self._tell((tasks.index(event.task) + share) / len(tasks))

        return listen

    def finish(self) -> None:
        """The step at hand is over. One that said nothing of its tasks had been done before."""
        if self.heard:
            self.finished += self.weight
        else:
            self.total -= self.weight
        self.weight = 0.0
        self._tell(0.0)

    def skip(self) -> None:
        """The next step falls out."""
        self.total -= self.weights.pop(0)
        self._tell(0.0)

    def _tell(self, share: float) -> None:
        if self.total > 0:
            percent = 100 * (self.finished + share * self.weight) / self.total
            self._pass(Event(ALL_STEPS, round(min(percent, 100.0), 1), 100, "%"))

    def _pass(self, event: Event) -> None:
        if self.listener is not None:
            self.listener(event)


def busy_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """How long at least one piece of work was done: the length of the union of their spans, begin and end each."""
    total, reach = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total
