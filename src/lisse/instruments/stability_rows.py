"""From the squared distances of samples to the rows of Stability."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lisse.instruments.stability_views import Drawn, Setting
from lisse.maths.intervals import Interval, bootstrap, share_interval
from lisse.maths.relative_stability import (
    Statistic,
    centre,
    coordinate_medians,
    coordinate_ratio_interval,
    pair_counts,
    percentile_interval,
    resample_counts,
    resampled_centre,
)
from lisse.profile import Row, Value
from lisse.taps import Tap

At = Mapping[str, Value]
#: Quantity, what stands above the line, what stands below.
_RATIOS = (
    ("relative_stability", "deformed", "noisy"),
    ("deformation_stability", "deformed", "apart"),
    ("noise_stability", "noisy", "apart"),
)


@dataclass(frozen=True)
class Found:
    """Of one layer: squared distances ``[n, settings, fields]``, and to the sample's partner in ``pairs`` ``[n]``.

    For coordinate-wise medians, differences with one more axis instead.
    """

    deformed: Tensor
    noisy: Tensor
    apart: Tensor


def setting_rows(
    setting: Setting, drawn: Drawn, at: At, *, rejecting: bool, level: float, interval: bool, generator: torch.Generator
) -> tuple[list[Row], list[str]]:
    """The rows that belong to a setting and to no layer, and what a person should know about it."""
    n, count = drawn.shift.shape[0], drawn.shift.numel()
    good, tried = int(drawn.bijective.sum()), count + int(drawn.tries.sum())
    shift = drawn.shift.double().mean(1)
    exact = Interval(shift.mean(), shift.mean(), shift.mean(), n, level)
    radius = bootstrap(shift, level=level, generator=generator) if interval else exact
    whole = share_interval(good / count, count, level=level)
    rows = [
        _row("bijective_share", whole, count, at, interval=interval and not rejecting),
        _row("noise_radius", radius, n, at, interval=interval),
        Row("temperature", setting.temperature, "exact", n, at=at),
    ]
    if rejecting:
        accepted = share_interval(count / tried, tried, level=level)
        rows.insert(1, _row("acceptance", accepted, tried, at, interval=interval))
    notes = []
    if good < count / 2:
        notes.append(
            f"{1 - good / count:.0%} of the fields at cut {setting.cut:g}, δ = {setting.delta:g} fold: R speaks of "
            "tears as much as of smooth deformations there. A smaller delta or bijective=True avoids that."
        )
    true = float(setting.ensemble.delta(setting.temperature))
    if abs(true / setting.delta - 1) > 1e-3:
        notes.append(
            f"By eq. 3, δ = {setting.delta:g} at cut {setting.cut:g} is an RMS displacement of {true:.4g} pixels."
        )
    return rows, notes


def stability_rows(
    taps: Sequence[Tap],
    found: Sequence[Found],
    ats: Sequence[At],
    *,
    statistic: Statistic | str,
    level: float,
    interval: bool,
    pairs: Tensor,
    generator: Callable[[], torch.Generator],
) -> tuple[list[Row], list[str]]:
    """R, D and G of every layer and setting. All intervals rest on the same resamples of the samples.

    ``pairs`` ``[n]`` is the sample on the other side of each sample's pair.
    """
    n = len(found[0].apart)
    ratios: Callable[..., dict[str, Interval]]
    if statistic == "coordinates":
        ratios = _Coordinates(level, interval, pairs, generator)
    else:
        counts = resample_counts(n, generator=generator()) if interval else None
        both = None if counts is None else pair_counts(counts, pairs)
        ratios = _Distances("mean" if statistic == "mean" else "median", level, counts, both)
    by_quantity: dict[str, list[Row]] = {name: [] for name, _, _ in _RATIOS}
    silent: dict[str, list[str]] = {}
    for j, at in enumerate(ats):
        for tap, some in zip(taps, found, strict=True):
            for name, got in ratios(some, j).items():
                by_quantity[name].append(_row(name, got, n, at, tap, interval=interval))
                if not bool(torch.isfinite(got.value)):
                    silent.setdefault(tap.name, []).append(name)
    notes = []
    if silent:
        notes.append(
            f"No ratio at {', '.join(silent)}: what stands below the line (the answer to noise, or the distance "
            "between samples) is zero there."
        )
    return [row for rows in by_quantity.values() for row in rows], notes


@dataclass
class _Distances:
    """Ratios of means or medians of squared norms."""

    statistic: Statistic
    level: float
    counts: Tensor | None
    pair_counts: Tensor | None
    pairs: dict[int, Tensor] = field(default_factory=dict)  # resampled distances between samples, by layer
    sizes: dict[int, Tensor] = field(default_factory=dict)  # how many each resample has, by its counts

    def __call__(self, found: Found, setting: int) -> dict[str, Interval]:
        values = {"deformed": found.deformed[:, setting], "noisy": found.noisy[:, setting], "apart": found.apart}
        middle = {name: centre(some, statistic=self.statistic) for name, some in values.items()}
        counts, both = self.counts, self.pair_counts
        again: dict[str, Tensor] = {}
        if counts is not None and both is not None:
            if id(found) not in self.pairs:  # the same ones for every setting
                self.pairs[id(found)] = self._resampled(found.apart, both)
            again["apart"] = self.pairs[id(found)]
            for name in ("deformed", "noisy"):
                again[name] = self._resampled(values[name], counts)
        n, ratios = len(found.apart), {}
        for name, above, below in _RATIOS:
            value = torch.where(middle[below] > 0, middle[above] / middle[below], torch.nan)
            if counts is None:
                ratios[name] = Interval(value, value, value, n, self.level)
            else:
                ratios[name] = percentile_interval(value, again[above], again[below], n=n, level=self.level)
        return ratios

    def _resampled(self, values: Tensor, counts: Tensor) -> Tensor:
        if id(counts) not in self.sizes:
            self.sizes[id(counts)] = counts.sum(1, dtype=torch.int64)
        return resampled_centre(values, counts, statistic=self.statistic, sizes=self.sizes[id(counts)])


@dataclass
class _Coordinates:
    """Ratios of sums of coordinate-wise medians."""

    level: float
    interval: bool
    pairs: Tensor
    generator: Callable[[], torch.Generator]

    def __call__(self, found: Found, setting: int) -> dict[str, Interval]:
        values = {
            "deformed": found.deformed[:, setting],
            "noisy": found.noisy[:, setting],
            "apart": found.apart[:, None],
        }
        ratios = {}
        for name, above, below in _RATIOS:
            if self.interval:
                ratios[name] = coordinate_ratio_interval(
                    values[above],
                    values[below],
                    level=self.level,
                    partners=self.pairs if below == "apart" else None,
                    generator=self.generator(),
                )
                continue
            top, bottom = (coordinate_medians(values[side].flatten(0, 1)) for side in (above, below))
            value = torch.where(bottom > 0, top / bottom, torch.nan)
            ratios[name] = Interval(value, value, value, len(found.apart), self.level)
        return ratios


def _row(quantity: str, found: Interval, n: int, at: At, tap: Tap | None = None, *, interval: bool = True) -> Row:
    layer, depth = (None, None) if tap is None else (tap.name, tap.depth)
    low: float | None = None
    high: float | None = None
    if interval and bool(torch.isfinite(found.low)):
        low, high = float(found.low), float(found.high)
    return Row(quantity, float(found.value), "estimate" if interval else "exact", n, layer, depth, low, high, at)
