"""Threads for loops that run as machine code, kept: to start one takes as long as a small loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

Item = TypeVar("Item")


@cache
def workers(threads: int) -> ThreadPoolExecutor:
    """So many threads, the same ones at every call. What is submitted must not submit to them and wait."""
    return ThreadPoolExecutor(threads, thread_name_prefix="lisse-worker")


def in_turn(function: Callable[[Item], None], items: Iterable[Item], threads: int) -> None:
    """Call ``function`` on every item, on this thread and ``threads`` - 1 others, each taking the next when it is free.

    Not in equal shares: for some milliseconds after an operation of its own PyTorch's threads spin, and a thread on
    such a core has half of it. One that has not begun when nothing is left is not waited for.
    """
    rest = iter(items)

    def take() -> None:
        for item in rest:
            function(item)

    others = [workers(threads - 1).submit(take) for _ in range(threads - 1)] if threads > 1 else []
    try:
        take()
    finally:
        for other in others:
            if not other.cancel():
                other.result()


if hasattr(os, "register_at_fork"):  # a child process has the pool, but not its threads
    os.register_at_fork(after_in_child=workers.cache_clear)
