"""From the squared distances of samples to the rows of Stability."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from lisse.instruments.stability.answers import LayerAnswers
from lisse.instruments.stability.views import FieldDraws, Setting
from lisse.maths.intervals import Interval
from lisse.maths.relative_stability import (
    Centre,
    centre,
    coordinate_medians,
    coordinate_ratio_interval,
    pair_counts,
    percentile_interval,
    resample_counts,
    resampled_centre,
)
from lisse.profile import Row
from lisse.run.rows import LEAST_SAMPLES, At, interval_row, sample_row, share_row, value_row
from lisse.taps import Tap

#: Quantity, what stands above the line, what stands below.
_RATIOS = (
    ("relative_stability", "deformed", "noisy"),
    ("deformation_stability", "deformed", "apart"),
    ("noise_stability", "noisy", "apart"),
)
Resampler = Callable[[Tensor], Tensor]


def setting_rows(
    setting: Setting, draws: FieldDraws, at: At, *, rejecting: bool, level: float, generator: torch.Generator
) -> list[Row]:
    """The rows that belong to a setting and to no layer."""
    n, count = draws.shift.shape[0], draws.shift.numel()
    tries = count + int(draws.tries.sum())
    enough = n >= LEAST_SAMPLES
    good = int(draws.bijective.sum())
    bijective = _share_row("bijective_share", good, count, at, level, interval=enough and not rejecting)
    radius = sample_row("noise_radius", draws.shift.double().mean(1), None, at, generator=generator, level=level)
    temperature = value_row("temperature", setting.temperature, "exact", n, None, at)
    if not rejecting:
        return [bijective, radius, temperature]
    acceptance = _share_row("acceptance", count, tries, at, level, interval=enough)
    return [bijective, acceptance, radius, temperature]


def _share_row(quantity: str, hits: int, n: int, at: At, level: float, *, interval: bool) -> Row:
    if interval:
        return share_row(quantity, hits, n, None, at, level=level)
    return value_row(quantity, hits / n, "exact", n, None, at)


def setting_notes(setting: Setting, draws: FieldDraws) -> list[str]:
    """What a person should know about a setting."""
    notes = []
    good = float(draws.bijective.double().mean())
    if good < 0.5:
        notes.append(
            f"{1 - good:.0%} of the fields at cut {setting.cut:g}, δ = {setting.delta:g} fold: R speaks of tears as "
            "much as of smooth deformations there. A smaller delta or bijective=True avoids that."
        )
    delta = float(setting.ensemble.delta(setting.temperature))
    if abs(delta / setting.delta - 1) > 1e-3:
        notes.append(
            f"By eq. 3, δ = {setting.delta:g} at cut {setting.cut:g} is an RMS displacement of {delta:.4g} pixels."
        )
    return notes


def stability_rows(
    taps: Sequence[Tap],
    answers: Sequence[LayerAnswers],
    ats: Sequence[At],
    *,
    statistic: str,
    level: float,
    pairs: Tensor,
    generator: Callable[[], torch.Generator],
) -> tuple[list[Row], list[str]]:
    """R, D and G of every layer and setting. All intervals rest on the same resamples of the samples.

    ``pairs`` ``[n]`` is the sample on the other side of each sample's pair.
    """
    n = len(pairs)
    ratios: Callable[[LayerAnswers], Iterable[Sequence[Interval]]]
    if statistic == "coordinates":
        ratios = functools.partial(_coordinate_ratios, level=level, pairs=pairs, generator=generator)
    else:
        norm: Centre = "mean" if statistic == "mean" else "median"
        resamplers = _resamplers(norm, pairs, generator()) if n >= LEAST_SAMPLES else None
        ratios = functools.partial(_norm_ratios, statistic=norm, level=level, resamplers=resamplers)
    by_layer = [list(ratios(layer)) for layer in answers]  # [layers, settings, quantities]
    rows = [
        _ratio_row(quantity, by_setting[setting][index], n, tap, at)
        for index, (quantity, _, _) in enumerate(_RATIOS)
        for setting, at in enumerate(ats)
        for tap, by_setting in zip(taps, by_layer, strict=True)
    ]
    silent = dict.fromkeys(row.layer for row in rows if not math.isfinite(row.value))
    if not silent:
        return rows, []
    note = (
        f"No ratio at {', '.join(map(str, silent))}: what stands below the line (the answer to noise, or the distance "
        "between samples) is zero there."
    )
    return rows, [note]


def _ratio_row(quantity: str, interval: Interval, n: int, tap: Tap, at: At) -> Row:
    if n < LEAST_SAMPLES:
        return value_row(quantity, interval.value, "exact", n, tap, at)
    return interval_row(quantity, interval, "estimate", n, tap, at)


def _resamplers(statistic: Centre, pairs: Tensor, generator: torch.Generator) -> dict[str, Resampler]:
    """What gives the statistic of either side of a ratio in every resample, ``[n, …]`` to ``[resamples]``."""
    counts = resample_counts(len(pairs), generator=generator)
    single, double = (
        functools.partial(resampled_centre, counts=drawn, statistic=statistic, sizes=drawn.sum(1, dtype=torch.int64))
        for drawn in (counts, pair_counts(counts, pairs))
    )
    return {"deformed": single, "noisy": single, "apart": double}


def _norm_ratios(
    layer: LayerAnswers, *, statistic: Centre, level: float, resamplers: Mapping[str, Resampler] | None
) -> Iterator[list[Interval]]:
    """Ratios of means or medians of squared norms, for every setting."""

    def side(name: str, values: Tensor) -> tuple[Tensor, Tensor | None]:
        return centre(values, statistic=statistic), None if resamplers is None else resamplers[name](values)

    def ratio(above: tuple[Tensor, Tensor | None], below: tuple[Tensor, Tensor | None]) -> Interval:
        value = torch.where(below[0] > 0, above[0] / below[0], torch.nan)
        if above[1] is None or below[1] is None:
            return Interval(value, value, value, len(layer.apart), level)
        return percentile_interval(value, above[1], below[1], n=len(layer.apart), level=level)

    sides = {"apart": side("apart", layer.apart)}
    for setting in range(layer.deformed.shape[1]):
        sides["deformed"] = side("deformed", layer.deformed[:, setting])
        sides["noisy"] = side("noisy", layer.noisy[:, setting])
        yield [ratio(sides[above], sides[below]) for _, above, below in _RATIOS]


def _coordinate_ratios(
    layer: LayerAnswers, *, level: float, pairs: Tensor, generator: Callable[[], torch.Generator]
) -> Iterator[list[Interval]]:
    """Ratios of sums of coordinate-wise medians, for every setting."""

    def ratio(above: Tensor, below: Tensor) -> Interval:
        if len(pairs) >= LEAST_SAMPLES:
            partners = pairs if below is apart else None
            return coordinate_ratio_interval(above, below, level=level, partners=partners, generator=generator())
        top, bottom = (coordinate_medians(values.flatten(0, 1)) for values in (above, below))
        value = torch.where(bottom > 0, top / bottom, torch.nan)
        return Interval(value, value, value, len(pairs), level)

    apart = layer.apart[:, None]
    for setting in range(layer.deformed.shape[1]):
        sides = {"deformed": layer.deformed[:, setting], "noisy": layer.noisy[:, setting], "apart": apart}
        yield [ratio(sides[above], sides[below]) for _, above, below in _RATIOS]
