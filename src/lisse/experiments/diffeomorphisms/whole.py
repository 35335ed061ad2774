"""How far the whole experiment is: one line for all steps above those of the step at hand."""

from __future__ import annotations

from collections.abc import Sequence

from lisse.progress import Event, Listener

WHOLE = "diffeomorphisms"


class Whole:
    """Counts steps, each weighed by the seconds that it is thought to take, and passes on what they say themselves."""

    def __init__(self, listener: Listener | None, seconds: Sequence[float]) -> None:
        self.listener, self.left = listener, list(seconds)
        self.total, self.done = sum(seconds), 0.0

    def step(self, label: str, main: str = "") -> Listener:
        """A listener for the next step; ``main`` is the task of its own whose progress counts."""
        weight = self.left[0] if self.left else 0.0
        self._pass(Event(WHOLE, say=label))

        def listen(event: Event) -> None:
            if event.say and event.level != "warning":
                return
            self._pass(event)
            if event.task == main and event.total:
                self._tell(weight * event.done / event.total)

        return listen

    def finish(self) -> None:
        """The step at hand is over."""
        self.done += self.left.pop(0) if self.left else 0.0
        self._tell(0.0)

    def _tell(self, more: float) -> None:
        if self.total > 0:
            share = min(100.0, 100 * (self.done + more) / self.total)
            self._pass(Event(WHOLE, round(share, 1), 100, "%"))

    def _pass(self, event: Event) -> None:
        if self.listener is not None:
            self.listener(event)
