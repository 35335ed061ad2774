"""From distances between neighbouring diagrams to the rows, curves and warnings of Topology."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lisse.maths.change_rate import change_rate, cumulative_rate, landscape, mean_rate, topolip
from lisse.maths.intervals import across_clouds
from lisse.profile import Row, Value
from lisse.taps import Tap

Table = list[tuple[dict[str, Value], "Distances"]]

_MOVES = 0.1  # a summary that changes by more than this share from half a cloud to a whole one has not settled


@dataclass(frozen=True)
class Distances:
    """Distances between neighbouring layers ``[k, pairs]`` over clouds of ``size`` points; NaN where one is missing.

    ``floors`` of the same shape: what rounding may make of two equal diagrams.
    """

    values: Tensor
    floors: Tensor
    size: int

    @property
    def rates(self) -> Tensor:
        """Change rates ``[k, pairs - 1]``, with distances of the size of rounding taken for 0."""
        return change_rate(torch.where(self.equal, 0.0, self.values))

    @property
    def equal(self) -> Tensor:
        """``[k, pairs]``: where two diagrams are the same."""
        return self.values <= self.floors


def layer_rows(taps: Sequence[Tap], found: Distances, at: Mapping[str, Value], level: float) -> list[Row]:
    """Distance, rate and cumulative rate along depth, without those that need a missing distance."""
    missing = found.values.isnan().any(0)
    rates = found.rates
    cumulative = cumulative_rate(rates)
    rows = []
    for place, tap in enumerate(taps[1:]):
        if not missing[place]:
            rows.append(_row("diagram_distance", found.values[:, place], found.size, tap, at, level))
        if place > 0 and not missing[place - 1 : place + 1].any():
            rows.append(_row("change_rate", rates[:, place - 1], found.size, tap, at, level))
        if place > 0 and not missing[: place + 1].any():
            rows.append(_row("cumulative_change_rate", cumulative[:, place - 1], found.size, tap, at, level))
    return rows


def summary_rows(found: Distances, at: Mapping[str, Value], level: float) -> list[Row]:
    """The largest and the mean rate; none where a distance is missing, for it might have been the largest."""
    if bool(found.values.isnan().any()):
        return []
    rates = found.rates
    return [
        _row("topolip_change_rate", topolip(rates), found.size, None, at, level),
        _row("mean_change_rate", mean_rate(rates), found.size, None, at, level),
    ]


def curves(found: Distances, at: Mapping[str, Value]) -> dict[str, np.ndarray]:
    """Curves ``[k, 101]`` over normalised depth; cumulated first, interpolated then."""
    if bool(found.values.isnan().any()):
        return {}
    rates = found.rates
    whole = {
        "diagram_distance": found.values,
        "change_rate": rates,
        "cumulative_change_rate": cumulative_rate(rates),
    }
    return {f"landscape/{name}/p={at['p']:g}/dim={at['dim']}": landscape(some).numpy() for name, some in whole.items()}


def equal_layers(taps: Sequence[Tap], found: Sequence[Distances]) -> list[str]:
    """Where rates have no value because the two diagrams before them are the same."""
    equal = torch.stack([some.equal[:, :-1] for some in found])
    if not bool(equal.any()):
        return []
    places = equal.any(0).any(0).nonzero()[:, 0].tolist()
    names = [f"{taps[place].name} = {taps[place + 1].name}" for place in places]
    return [
        f"{int(equal.sum())} of {equal.numel()} change rates have no value and are left out of maximum and mean: the "
        f"diagrams before them are equal ({', '.join(names[:5])}{', …' if len(names) > 5 else ''})."
    ]


def unsettled(half: Table, whole: Table, level: float) -> list[str]:
    """Warnings where summaries still move with the number of points, or vary too much to tell.

    Halves are parts of the clouds, so each cloud is compared with its own half: the change has an interval of its own,
    and what the clouds have in common does not blur it.
    """
    moving: list[tuple[float, str]] = []
    open_: list[tuple[float, str]] = []
    for (at, small), (_, large) in zip(half, whole, strict=True):
        if bool(small.values.isnan().any() or large.values.isnan().any()):
            continue
        for name, summary in (("topolip_change_rate", topolip), ("mean_change_rate", mean_rate)):
            before, after = summary(small.rates), summary(large.rates)
            there = ~(before.isnan() | after.isnan())
            before, after = before[there], after[there]
            if not len(after):
                continue
            change, size = after - before, float(after.mean())
            what = f"{name} p={at['p']:g} dim={at['dim']}: {float(before.mean()):.3g} to {size:.3g}"
            share = abs(float(change.mean())) / size if size else 0.0
            if len(change) == 1:
                known = True
            else:
                ends = across_clouds(change, level=level)
                known = not float(ends.low) <= 0.0 <= float(ends.high)
            if share > _MOVES:
                (moving if known else open_).append((share, what))
    said = []
    sizes = f"from {half[0][1].size} to {whole[0][1].size} points a cloud" if half else ""
    if moving:
        said.append(
            f"Not settled: {len(moving)} of {2 * len(whole)} summaries still move by more than {_MOVES:.0%} {sizes} "
            f"(most: {max(moving)[1]}). Compare clouds of one size only, or take more samples."
        )
    if open_:
        said.append(
            f"Perhaps not settled: {len(open_)} of {2 * len(whole)} summaries differ by more than {_MOVES:.0%} {sizes} "
            f"but vary as much from cloud to cloud (most: {max(open_)[1]}). More clouds or more samples would tell."
        )
    return said


def _row(quantity: str, values: Tensor, size: int, tap: Tap | None, at: Mapping[str, Value], level: float) -> Row:
    """One number from its values over clouds ``[k]``; those without a value do not count."""
    at = {"p": at["p"], "dim": at["dim"], "cloud": size, **at}
    layer, depth = (None, None) if tap is None else (tap.name, tap.depth)
    defined = values[~values.isnan()]
    if len(values) == 1 or len(defined) < 2:
        value = float(defined[0]) if len(values) == len(defined) == 1 else math.nan
        return Row(quantity, value, "exact", size, layer, depth, at=at)
    interval = across_clouds(defined, level=level)
    # None of these is ever negative, nor is its mean.
    value, low, high = (max(0.0, float(end)) for end in (interval.value, interval.low, interval.high))
    return Row(quantity, value, "estimate", size * len(defined), layer, depth, low, high, at)
