from __future__ import annotations

import os
import threading

import pytest

from lisse.maths.workers import workers


def test_the_threads_are_kept():
    assert workers(2) is workers(2)
    assert workers(2) is not workers(3)
    names = set(workers(2).map(lambda _: threading.current_thread().name, range(50)))
    assert len(names) <= 2
    assert threading.current_thread().name not in names


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_starts_its_own():
    assert list(workers(2).map(abs, [-1, -2])) == [1, 2]
    child = os.fork()
    if child == 0:
        # With the parent's pool, whose threads are not here, this would wait for ever.
        found = workers(2).submit(abs, -3)
        os._exit(0 if found.exception(timeout=20) is None and found.result() == 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
