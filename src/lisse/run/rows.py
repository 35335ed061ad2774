"""Numbers with their intervals as rows: the mean of samples, a share, the largest, a statistic of disjoint clouds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from lisse.maths.intervals import Interval, across_clouds, bootstrap, median, share_interval
from lisse.profile import Kind, Row, Value

LEAST_SAMPLES = 8  # a bootstrap of fewer does not cover what it says

At = Mapping[str, Value]


class Layer(Protocol):
    """Where a row applies: a :class:`~lisse.taps.Tap`, or anything else with a name and a depth."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def depth(self) -> float | None: ...  # noqa: D102


def value_row(
    quantity: str, value: Tensor | float, kind: Kind, n: int, layer: Layer | None = None, at: At | None = None
) -> Row:
    """A number without an interval."""
    name, depth = (None, None) if layer is None else (layer.name, layer.depth)
    return Row(quantity, float(value), kind, n, name, depth, at=dict(at or {}))


def interval_row(
    quantity: str, interval: Interval, kind: Kind, n: int, layer: Layer | None = None, at: At | None = None,
    *, least: float = -math.inf, most: float = math.inf,
) -> Row:  # fmt: skip
    """An interval as it was computed, cut to ``[least, most]``, which the quantity cannot leave.

    Without finite ends, as of a ratio over zero, the row has the value alone.
    """
    value, low, high = (min(max(float(end), least), most) for end in (interval.value, interval.low, interval.high))
    name, depth = (None, None) if layer is None else (layer.name, layer.depth)
    if not (math.isfinite(float(interval.low)) and math.isfinite(float(interval.high))):
        return Row(quantity, value, kind, n, name, depth, at=dict(at or {}))
    return Row(quantity, value, kind, n, name, depth, low, high, dict(at or {}))


def sample_row(
    quantity: str,
    values: Tensor,
    layer: Layer | None = None,
    at: At | None = None,
    *,
    generator: torch.Generator,
    statistic: Literal["mean", "median"] = "mean",
    kind: Kind = "estimate",
    level: float = 0.95,
    least: float = -math.inf,
) -> Row:
    """The mean or median of values ``[n]`` over samples, with a bootstrap interval where they are enough for it.

    Of fewer than ``LEAST_SAMPLES`` an estimate is called ``exact``: it speaks of these very samples.
    """
    n = len(values)
    if n < LEAST_SAMPLES:
        value = values.mean() if statistic == "mean" else median(values)
        return value_row(quantity, value, "exact" if kind == "estimate" else kind, n, layer, at)
    interval = bootstrap(values, statistic, level=level, generator=generator)
    return interval_row(quantity, interval, kind, n, layer, at, least=least)


def mean_rows(
    quantity: str, values: Tensor, ats: Sequence[At], *, generator: torch.Generator, level: float = 0.95
) -> list[Row]:
    """Means of columns ``[n, k]``, one for each of ``ats``; their intervals rest on the same resamples."""
    n = len(values)
    if n < LEAST_SAMPLES:
        return [value_row(quantity, values[:, k].mean(), "exact", n, at=at) for k, at in enumerate(ats)]
    ends = bootstrap(values, level=level, generator=generator)
    columns = [Interval(ends.value[k], ends.low[k], ends.high[k], n, level) for k in range(len(ats))]
    return [interval_row(quantity, column, "estimate", n, at=at) for column, at in zip(columns, ats, strict=True)]


def share_row(
    quantity: str, hits: int | Tensor, n: int, layer: Layer | None = None, at: At | None = None, *, level: float = 0.95
) -> Row:
    """The share of ``hits`` among ``n``, with Wilson's interval."""
    return interval_row(quantity, share_interval(float(hits) / n, n, level=level), "estimate", n, layer, at)


def largest_row(
    quantity: str, values: Tensor, kind: Kind = "lower", layer: Layer | None = None, at: At | None = None
) -> Row:
    """The largest of values ``[n]``: a lower estimate of what any sample could give, unless said otherwise."""
    return value_row(quantity, values.max(), kind, len(values), layer, at)


def clouds_row(
    quantity: str,
    values: Tensor,
    size: int,
    layer: Layer | None = None,
    at: At | None = None,
    *,
    level: float = 0.95,
    least: float = -math.inf,
    most: float = math.inf,
) -> Row:
    """The mean of values ``[k]`` of disjoint clouds of ``size`` points with Student's interval; NaN does not count.

    The number of one cloud is exact: of this cloud. The statistic cannot leave ``[least, most]``.
    """
    defined = values[~values.isnan()]
    if len(values) == 1 or len(defined) < 2:
        value = float(defined[0]) if len(values) == len(defined) == 1 else math.nan
        return value_row(quantity, value, "exact", size, layer, at)
    interval = across_clouds(defined, level=level)
    return interval_row(quantity, interval, "estimate", size * len(defined), layer, at, least=least, most=most)
