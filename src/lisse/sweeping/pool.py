"""Workers: a pool of processes in which one that dies takes only its own work with it."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import Any

import torch

from lisse.models.room import free_bytes
from lisse.recording import parse_bytes

#: What a process that has imported torch holds, roughly, beside activations.
PROCESS_BYTES = 2**30


class Workers(Executor):
    """``count`` processes, each a :class:`~concurrent.futures.ProcessPoolExecutor` of its own, started when needed.

    One pool of several processes ends as a whole when one of them is killed, and nobody can say which work did it. Here
    a dead process breaks one future (``BrokenProcessPool``) and is replaced by the next call. A process ends with its
    parent, whatever killed that. ``devices`` are given out in turn, as ``CUDA_VISIBLE_DEVICES``.
    """

    def __init__(self, count: int, *, devices: Sequence[str] = ()) -> None:
        self.window = count
        self._devices = tuple(devices)
        self._pools: list[ProcessPoolExecutor | None] = [None] * count
        self._pending = [0] * count
        self._lock = threading.Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Hand a call to the process that has the least to do."""
        with self._lock:
            index = min(range(len(self._pools)), key=self._pending.__getitem__)
            self._pending[index] += 1
        try:
            future = self._pool(index).submit(fn, *args, **kwargs)
        except BrokenExecutor:  # died while it had nothing to do
            self._pools[index] = None
            future = self._pool(index).submit(fn, *args, **kwargs)
        future.add_done_callback(functools.partial(self._over, index, self._pools[index]))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes, when they have done what they were given."""
        for pool in self._pools:
            if pool is not None:
                pool.shutdown(wait=wait, cancel_futures=cancel_futures)

    def kill(self) -> None:
        """End the processes at once: what they were at is lost."""
        for pool in self._pools:
            for process in list((getattr(pool, "_processes", None) or {}).values()):
                process.kill()
        self.shutdown(cancel_futures=True)

    def _pool(self, index: int) -> ProcessPoolExecutor:
        pool = self._pools[index]
        if pool is None:
            device = self._devices[index % len(self._devices)] if self._devices else None
            context = get_context("spawn")  # threads and CUDA do not survive a fork
            pool = ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(device,))
            self._pools[index] = pool
        return pool

    def _over(self, index: int, pool: ProcessPoolExecutor | None, future: Future[Any]) -> None:
        with self._lock:
            self._pending[index] -= 1
            if not future.cancelled() and isinstance(future.exception(), BrokenExecutor) and self._pools[index] is pool:
                self._pools[index] = None


def _begin(device: str | None) -> None:
    """The start of a process: Ctrl-C is the parent's to hear, and nobody outlives the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fitting_workers(*, memory: str, threads: int, device: str, gpus: float) -> tuple[int, list[str]]:
    """How many processes the machine has room for, and the GPUs that they take in turn."""
    count = max(1, cores() // threads)
    free = free_bytes(torch.device("cpu"))
    if free is not None:
        count = max(1, min(count, free // (parse_bytes(memory) + PROCESS_BYTES)))
    if not device.startswith("cuda"):
        return count, []
    share = max(1, int(1 / gpus) if gpus else 1)
    if device != "cuda":
        return min(count, share), []  # units say themselves which one
    masked = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = masked.split(",") if masked else [str(index) for index in range(torch.cuda.device_count())]
    if not devices:
        raise ValueError("sweep: device must be there, got cuda, and this machine has no GPU that torch can use.")
    return min(count, len(devices) * share), devices
