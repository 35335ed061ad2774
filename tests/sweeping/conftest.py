"""No test of a sweep waits for ever, whatever it waits for."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

SECONDS = 600


@pytest.fixture(autouse=True)
def _every_wait_ends() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"a test of sweeps took more than {SECONDS} s: something waits for what does not come")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 30)  # and again, where a `with` waits for its threads
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
