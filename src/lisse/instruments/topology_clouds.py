"""Which rows of a recording make up the clouds of Topology, and its work in threads that can be taken up again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from lisse.maths.intervals import disjoint_clouds
from lisse.run import Instrument, Run
from lisse.taps import Tap

Key = TypeVar("Key", bound=Hashable)
Work = Callable[[], Mapping[str, Tensor]]

LEAST_CLOUDS = 3  # Student's factor for two is 12.7: an interval that says nothing
_LEAST_HALF = 8  # fewer points are no cloud to compare with


@dataclass(frozen=True)
class Clouds:
    """The points of each cloud, the same at every layer.

    ``rows[layer]`` ``[k, size]`` are indices into the layer's activations, ``halves`` ``[k, size // 2]`` indices into
    a cloud (``None`` where no halves are wanted), ``samples`` how many samples must be recorded.
    """

    rows: Mapping[str, Tensor]
    halves: Tensor | None
    size: int
    samples: int

    @property
    def count(self) -> int:
        """How many clouds there are."""
        return len(next(iter(self.rows.values())))


def sample_clouds(run: Run, taps: Sequence[Tap], *, size: int, clouds: int, halves: bool) -> Clouds:
    """Disjoint clouds of ``size`` samples: as many as ``clouds``, or one where the data do not hold three."""
    size = run.take(size)
    fitting = min(clouds, len(run) // size)
    fitting = fitting if fitting >= min(LEAST_CLOUDS, clouds) else 1
    rows = disjoint_clouds(size * fitting, size, clouds=fitting, generator=run.generator("clouds"))
    return Clouds({tap.name: rows for tap in taps}, _halves(run, rows, halves), size, size * fitting)


def token_clouds(
    run: Run, instrument: Instrument, taps: Sequence[Tap], *, size: int, clouds: int, halves: bool
) -> Clouds:
    """Clouds of ``size`` random tokens (fewer where there are not so many), each from samples of its own.

    Tokens of one sample are not independent: clouds share no sample. Layers without tokens (pixels, a pooled output)
    have no rows in the result.
    """
    clouds = clouds if len(run) >= max(LEAST_CLOUDS, clouds) else 1
    share = min(size, len(run) // clouds)
    owned = disjoint_clouds(share * clouds, share, clouds=clouds, generator=run.generator("clouds"))

    def make() -> dict[str, Tensor]:
        recording = run.recording(share * clouds)
        found: dict[int, list[Tensor]] = {}
        lengths = {place: len(recording[tap.name]) for place, tap in enumerate(taps) if len(tap.shape) == 2}
        for length in sorted(set(lengths.values())):
            owners = recording.owners
            if len(owners) != length:  # no padding here: every sample has the same number of tokens
                samples = recording.samples
                owners = torch.arange(samples).repeat_interleave(length // samples)
            found[length] = [torch.isin(owners, cloud).nonzero()[:, 0] for cloud in owned]
        least = min((len(tokens) for some in found.values() for tokens in some), default=0)
        kept = {}
        for place, length in lengths.items():
            # Layers with the same tokens keep the same ones.
            generator = run.generator(f"tokens {length}")
            picks = [
                tokens[torch.randperm(len(tokens), generator=generator)[: min(size, least)]].sort().values
                for tokens in found[length]
            ]
            kept[str(place)] = torch.stack(picks)
        return kept

    rows = {taps[int(place)].name: found for place, found in run.piece(instrument, ("tokens",), make).items()}
    if not rows:
        return Clouds({}, None, 0, share * clouds)
    first = next(iter(rows.values()))
    return Clouds(rows, _halves(run, first, halves), first.shape[1], share * clouds)


def _halves(run: Run, rows: Tensor, wanted: bool) -> Tensor | None:
    count, size = rows.shape
    if not wanted or size // 2 < _LEAST_HALF:
        return None
    generator = run.generator("halves")
    return torch.stack([torch.randperm(size, generator=generator)[: size // 2].sort().values for _ in range(count)])


class _NotYet(Exception):
    """A piece is not in the cache."""


def pieces_in_threads(
    run: Run,
    instrument: Instrument,
    task: str,
    work: Mapping[Key, tuple[tuple[str, ...], Work]],
    *,
    before: Callable[[], object],
    threads: int,
    unit: str,
) -> tuple[dict[Key, dict[str, Tensor]], dict[Key, Exception]]:
    """The results of ``work`` (key of the piece, function) and what went wrong, each by its own key.

    What the cache has is not done again; ``before()`` runs once, in this thread, if anything is left to do. The rest
    is done by ``threads`` threads with one core each. Only this thread touches the run, its cache and its progress.
    """
    found: dict[Key, dict[str, Tensor]] = {}
    failed: dict[Key, Exception] = {}
    for name, (key, _) in work.items():
        kept = _kept(run, instrument, key)
        if kept is not None:
            found[name] = kept
    missing = [name for name in work if name not in found]
    if missing:
        before()
        run.tell(task, len(found), len(work), unit)
        with _single_threaded_workers(min(threads, len(missing))) as pool:
            futures = {pool.submit(work[name][1]): name for name in missing}
            try:
                for future in as_completed(futures):
                    name = futures[future]
                    try:
                        result = future.result()
                        found[name] = run.piece(instrument, work[name][0], lambda result=result: result)  # type: ignore[misc]
                    except Exception as error:
                        failed[name] = error
                    run.tell(task, len(found) + len(failed), len(work), unit)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
    return {name: found[name] for name in work if name in found}, failed


def _kept(run: Run, instrument: Instrument, key: tuple[str, ...]) -> dict[str, Tensor] | None:
    """What the cache holds of a piece, or ``None``: the run gives a piece only with a way to make it."""

    def refuse() -> dict[str, Tensor]:
        raise _NotYet

    try:
        return run.piece(instrument, key, refuse)
    except _NotYet:
        return None


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
