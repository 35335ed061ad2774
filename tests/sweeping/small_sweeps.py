"""Plans of networks of a few numbers, and what the tests of sweeps hand to other processes."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from torch import nn

from lisse.models import load_model
from lisse.sweeping import UnitOutcome

NETWORK = "zoo:fc2?in_channels=1&size=8&mean=none&width=4"


def small(**changes: Any) -> dict[str, Any]:
    """Two random networks on 30 digits, by the quickest instrument."""
    return {
        "models": [NETWORK, NETWORK.replace("width=4", "width=5")],
        "data": ["digits"],
        "instruments": ["sensitivity"],
        "options": {"sensitivity": {"samples": 20}},
        "limit": 30,
        **changes,
    }


class Inline(Executor):
    """Calls in this process, at once; the calls in ``deadly`` (counted from 0) die of it."""

    window = 1

    def __init__(self, deadly: Any = ()) -> None:
        self.deadly, self.calls = deadly, 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        from concurrent.futures import BrokenExecutor

        future: Future[Any] = Future()
        self.calls += 1
        if self.calls - 1 in self.deadly:
            future.set_exception(BrokenExecutor("gone"))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


def dying(task: tuple[int, str]) -> UnitOutcome:
    """Task 1 kills its process the first time; task 2 does so every time; all others are done."""
    number, folder = task
    mark = Path(folder) / f"{number}-{len(list(Path(folder).glob(f'{number}-*')))}"
    mark.touch()
    if number == 2 or (number == 1 and mark.name == "1-0"):
        os.kill(os.getpid(), signal.SIGKILL)
    return UnitOutcome("done", file=str(number))


def seeded_network(*, seed: int = 0, width: int = 4) -> nn.Module:
    return load_model(f"zoo:fc2?in_channels=1&size=8&mean=none&width={width}&seed={seed}")


def broken_network() -> nn.Module:
    raise RuntimeError("no network today")


def nothing(task: int) -> UnitOutcome:
    return UnitOutcome("done", file=str(task))
