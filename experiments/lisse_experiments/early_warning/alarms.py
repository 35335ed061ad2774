"""When a loss moves, and when a watched quantity gives an alarm: pure functions of series.

An alarm may only use what had been seen by then. Its threshold comes from other trainings, none of which diverged.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

#: Whose fall is the alarm; everything else alarms where it rises.
FALLS = ("effective_rank",)
DETECTORS = {"level": "its value", "jump": "its value over the median of the five looks before"}
_BEFORE = 5


def moved(losses: Sequence[float], *, by: float = 0.5, window: int = 5) -> int | None:
    """The first step at which the median of the last losses lies ``by`` nats above the smallest such median so far.

    A loss that is not finite has moved. ``None`` where it never does.
    """
    best = math.inf
    for step, loss in enumerate(losses):
        if not math.isfinite(loss):
            return step
        if step + 1 >= window:
            middle = statistics.median(losses[step + 1 - window : step + 1])
            best = min(best, middle)
            if middle > best + by:
                return step
    return None


def scores(values: Sequence[float], detector: str, *, falls: bool = False) -> list[float]:
    """How alarming each look is, in logarithms; -inf where a detector cannot say yet.

    A value that is zero or not finite alarms at once.
    """
    sign = -1.0 if falls else 1.0
    logs = [sign * math.log(value) if math.isfinite(value) and value > 0 else math.inf for value in values]
    if detector == "level":
        return logs
    series = []
    for index, value in enumerate(logs):
        before = [earlier for earlier in logs[max(0, index - _BEFORE) : index] if math.isfinite(earlier)]
        ready = len(before) >= min(_BEFORE, 3)
        series.append(value - statistics.median(before) if ready else (value if value == math.inf else -math.inf))
    return series


def threshold(calm: Sequence[Sequence[float]]) -> float:
    """The largest score that any look of the calm trainings reached: an alarm has to pass it."""
    return max((score for series in calm for score in series if math.isfinite(score)), default=math.inf)


def first_alarm(series: Sequence[float], limit: float, *, until: int | None = None) -> int | None:
    """The first look, of those before look ``until``, whose score passes the limit."""
    return next((index for index, score in enumerate(series[:until]) if score > limit), None)
