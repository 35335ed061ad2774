"""Loops that run as machine code: where they are, and threads to share their work."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

Item = TypeVar("Item")


@cache
def loops(module: str) -> Any:
    """A module whose import needs a compiler (numba, from ``lisse[fast]``, or Triton); None where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


@cache
def workers(threads: int) -> ThreadPoolExecutor:
    """So many threads, the same ones at every call: to start one takes as long as a small loop.

    What is submitted must not submit to them and wait.
    """
    return ThreadPoolExecutor(threads, thread_name_prefix="lisse-worker")


def in_turn(function: Callable[[Item], None], items: Iterable[Item], threads: int) -> None:
    """Call ``function`` on every item, on this thread and ``threads`` - 1 others, each taking the next when it is free.

    Not in equal shares: for some milliseconds after an operation of its own PyTorch's threads spin, and a thread on
    such a core has half of it. One that has not begun when nothing is left is not waited for.
    """
    queue = iter(items)

    def take() -> None:
        for item in queue:
            function(item)

    futures = [workers(threads - 1).submit(take) for _ in range(threads - 1)] if threads > 1 else []
    try:
        take()
    finally:
        for future in futures:
            if not future.cancel():
                future.result()


if hasattr(os, "register_at_fork"):  # a child process has the pool, but not its threads
    os.register_at_fork(after_in_child=workers.cache_clear)
