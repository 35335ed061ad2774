"""Threads for loops that run as machine code, kept: to start one takes as long as a small loop."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache


@cache
def workers(threads: int) -> ThreadPoolExecutor:
    """So many threads, the same ones at every call. What is submitted must not submit to them and wait."""
    return ThreadPoolExecutor(threads, thread_name_prefix="lisse-worker")


if hasattr(os, "register_at_fork"):  # a child process has the pool, but not its threads
    os.register_at_fork(after_in_child=workers.cache_clear)
