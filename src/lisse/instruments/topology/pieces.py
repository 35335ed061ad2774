"""Work in threads, layer by layer, every finished piece kept so that an interrupted run goes on from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager

import torch
from torch import Tensor

from lisse.recording import parse_bytes
from lisse.run import Instrument, Run
from lisse.taps import is_shortage

Work = Callable[[], Mapping[str, Tensor]]


def pieces_in_threads(
    run: Run,
    instrument: Instrument,
    work: Mapping[tuple[str, ...], Work],
    *,
    task: str,
    unit: str,
    threads: int,
    before: Callable[[], object] = lambda: None,
) -> tuple[dict[tuple[str, ...], dict[str, Tensor]], dict[tuple[str, ...], Exception]]:
    """The results of ``work`` and what went wrong, both by the keys of its pieces.

    What the cache has is not made again; ``before()`` runs once, in this thread, if anything is missing. That is made
    by ``threads`` threads with one core each. Only this thread touches the run, its cache and its progress. A lack of
    memory or of room on a disk passes, and says nothing of the piece: it is raised.
    """
    finished = {key: run.finished(instrument, key) for key in work}
    pieces = {key: piece for key, piece in finished.items() if piece is not None}
    missing = [key for key in work if key not in pieces]
    failed: dict[tuple[str, ...], Exception] = {}
    if missing:
        before()
        run.tell(task, len(pieces), len(work), unit)
        with _single_threaded_workers(min(threads, len(missing))) as pool:
            futures = {pool.submit(work[key]): key for key in missing}
            for future in as_completed(futures):
                key = futures[future]
                try:
                    pieces[key] = run.piece(instrument, key, future.result)
                except Exception as error:
                    if is_shortage(error):
                        raise
                    failed[key] = error
                run.tell(task, len(pieces) + len(failed), len(work), unit)
    return {key: pieces[key] for key in work if key in pieces}, failed


def free_threads(run: Run, size: int) -> int:
    """As many as PyTorch may use, while their matrices of ``size`` points fit into the run's memory."""
    return max(1, min(torch.get_num_threads(), parse_bytes(run.memory) // (8 * 8 * size**2)))


@contextmanager
def _single_threaded_workers(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads whose matrix products use one core each, so that they do not get into each other's way."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    threads = torch.get_num_threads()
    # NumPy's products have threads of their own, which PyTorch does not know of.
    with (
        threadpool_limits(1, "blas"),
        ThreadPoolExecutor(count, "lisse", initializer=lambda: torch.set_num_threads(1)) as pool,
    ):
        try:
            yield pool
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            torch.set_num_threads(threads)
