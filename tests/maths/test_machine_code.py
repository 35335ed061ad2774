from __future__ import annotations

import os
import threading

import pytest

from lisse.maths.machine_code import in_turn, workers


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
        os._exit(0 if found.exception(timeout=300) is None and found.result() == 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_item_is_taken_once_whoever_takes_it(threads):
    taken = []
    in_turn(taken.append, range(200), threads)
    assert sorted(taken) == list(range(200))


def test_a_thread_that_is_held_up_leaves_the_rest_to_the_others():
    """In equal shares this thread would wait for ever: the other one is held until all else is done."""
    here, taken, free = threading.current_thread(), [], threading.Event()

    def function(item):
        if threading.current_thread() is not here:
            assert free.wait(300)
        taken.append(item)
        if len(taken) >= 9:
            free.set()

    in_turn(function, range(10), 2)
    assert sorted(taken) == list(range(10))


@pytest.mark.parametrize("bad", [0, 7])
def test_what_goes_wrong_in_any_thread_is_told(bad):
    def function(item):
        if item == bad:
            raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match=f"item {bad}"):
        in_turn(function, range(8), 3)
