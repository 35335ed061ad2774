"""Which rows of a recording make up the disjoint clouds of an instrument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.maths.intervals import disjoint_clouds
from lisse.run import Instrument, Run
from lisse.taps import Tap

# Bytes that the engine of diagrams holds for H1 of 1,000 points that are noise in many dimensions (the worst of
# clouds), and how that grows with their number.
_ENGINE, _SWELLING = 1.0e9, 2.8
LEAST_CLOUDS = 3  # Student's factor for two is 12.7: an interval that says nothing
_LEAST_HALF = 8  # fewer points are no cloud to compare with
# Two models are told apart by swapping their clouds: of k there are 2^k ways, and twelve leave room for Holm's
# correction over a hundred comparisons (lisse.maths.comparison.least_clouds).
_JUDGES = 12
_LEAST_JUDGE = 20  # points of one of them


@dataclass(frozen=True)
class Clouds:
    """The points of each cloud, the same at every layer.

    ``rows[layer]`` ``[k, size]`` are indices into the layer's activations, ``halves`` ``[k, size // 2]`` indices into
    a cloud (``None`` where none were asked for), ``samples`` how many samples must be recorded.
    """

    rows: Mapping[str, Tensor]
    halves: Tensor | None
    size: int
    samples: int

    @property
    def count(self) -> int:
        """How many clouds there are."""
        return len(next(iter(self.rows.values())))


def engine_bytes(points: int) -> int:
    """What holes (H1 and beyond) of so many points take at most."""
    return int(_ENGINE * (points / 1000) ** _SWELLING)


def sample_clouds(run: Run, taps: Sequence[Tap], *, size: int, clouds: int, halves: bool = False) -> Clouds:
    """Disjoint clouds of ``size`` samples: as many as ``clouds``, or one where the data do not hold three."""
    size = run.take(size)
    fitting = min(clouds, len(run) // size)
    fitting = fitting if fitting >= min(LEAST_CLOUDS, clouds) else 1
    rows = disjoint_clouds(size * fitting, size, clouds=fitting, generator=run.generator("clouds"))
    return Clouds({tap.name: rows for tap in taps}, _halves(run, rows) if halves else None, size, size * fitting)


def judging_clouds(run: Run, instrument: Instrument, taps: Sequence[Tap], *, samples: int) -> Clouds:
    """Twelve disjoint clouds out of ``samples``, for two models to be compared cloud by cloud; fewer of few samples.

    Small clouds, but many: their mean has an interval as short as that of few large ones has, and a test that can say
    no.
    """
    total = run.take(samples)
    clouds = max(1, min(_JUDGES, total // _LEAST_JUDGE))
    if run.readout == "tokens":
        return token_clouds(run, instrument, taps, size=total // clouds, clouds=clouds)
    return sample_clouds(run, taps, size=total // clouds, clouds=clouds)


def token_clouds(
    run: Run, instrument: Instrument, taps: Sequence[Tap], *, size: int, clouds: int, halves: bool = False
) -> Clouds:
    """Clouds of ``size`` random tokens (fewer where there are not so many), each from samples of its own.

    Tokens of one sample are not independent: clouds share no sample. Layers without tokens (pixels, a pooled output)
    have no rows in the result.
    """
    clouds = clouds if len(run) >= max(LEAST_CLOUDS, clouds) else 1
    share = min(size, len(run) // clouds)
    samples = disjoint_clouds(share * clouds, share, clouds=clouds, generator=run.generator("clouds"))

    def picks() -> dict[str, Tensor]:
        recording = run.recording(share * clouds)
        lengths = {str(index): len(recording[tap.name]) for index, tap in enumerate(taps) if len(tap.shape) == 2}
        tokens: dict[int, list[Tensor]] = {}
        for length in sorted(set(lengths.values())):
            owners = recording.owners
            if len(owners) != length:  # no padding here: every sample has the same number of tokens
                owners = torch.arange(recording.samples).repeat_interleave(length // recording.samples)
            tokens[length] = [torch.isin(owners, cloud).nonzero()[:, 0] for cloud in samples]
        fewest = min((len(cloud) for by_cloud in tokens.values() for cloud in by_cloud), default=0)
        # Layers with the same tokens keep the same ones.
        picked = {length: _subsets(run, f"tokens {length}", tokens[length], min(size, fewest)) for length in tokens}
        return {index: picked[length] for index, length in lengths.items()}

    rows = {
        taps[int(index)].name: cloud for index, cloud in run.piece(instrument, ("tokens", size, clouds), picks).items()
    }
    if not rows:
        return Clouds({}, None, 0, share * clouds)
    first = next(iter(rows.values()))
    return Clouds(rows, _halves(run, first) if halves else None, first.shape[1], share * clouds)


def _halves(run: Run, rows: Tensor) -> Tensor | None:
    """Half the points of each cloud ``[k, size]``, as indices into it; ``None`` where that is too few."""
    count, size = rows.shape
    if size // 2 < _LEAST_HALF:
        return None
    return _subsets(run, "halves", [torch.arange(size)] * count, size // 2)


def _subsets(run: Run, key: str, clouds: Sequence[Tensor], size: int) -> Tensor:
    """Random ``size`` entries of each cloud, in order ``[k, size]``."""
    generator = run.generator(key)
    picks = (torch.randperm(len(cloud), generator=generator)[:size] for cloud in clouds)
    return torch.stack([cloud[pick].sort().values for cloud, pick in zip(clouds, picks, strict=True)])
