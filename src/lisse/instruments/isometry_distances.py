"""What the layers do to the distances of a cloud, and to the holes of its classes: the first half of Isometry."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lisse.maths.homology import distance_matrix, persistence
from lisse.maths.intervals import across_clouds
from lisse.maths.isometry import distance_histogram, distortion
from lisse.profile import Row, Value
from lisse.taps import Tap

QUANTILES = (0.05, 0.5, 0.95)
_LEAST_RING = 4  # three points span no hole
_NEVER_NEGATIVE = ("distance_error", "stretch", "isometric_loss", "longest_hole", "hole_share")


@dataclass(frozen=True)
class Classes:
    """Which class each sample of the data belongs to, and what classes are called; none where there are no labels."""

    labels: Tensor | None
    names: Mapping[int, str]

    def pairs(self, cloud: Tensor) -> dict[str, Tensor | None]:
        """``[n, n]`` per kind of pair; ``None`` stands for all pairs."""
        if self.labels is None:
            return {"all": None}
        some = self.labels[cloud]
        same = some[:, None] == some[None]
        return {"within": same, "between": ~same}


def cloud_numbers(
    before: Tensor, after: Tensor, cloud: Tensor, classes: Classes, *, holes: bool, chosen: Sequence[int]
) -> dict[str, float]:
    """Every number of one cloud at one layer, from distances ``[n, n]`` in the input and at the layer.

    Keys are ``quantity|coordinate=value|…``, so that clouds can be averaged without knowing what they hold.
    """
    found: dict[str, float] = {}
    n = len(before)
    for kind, among in classes.pairs(cloud).items():
        seen = distortion(before, after, among, quantiles=QUANTILES)
        if not seen.pairs:
            continue
        found[f"distance_error|pairs={kind}"] = seen.error
        found[f"distance_correlation|pairs={kind}"] = seen.correlation
        for level, value in zip(QUANTILES, seen.stretch, strict=True):
            found[f"stretch|pairs={kind}|quantile={level:g}"] = value
        found[f"largest_stretch|pairs={kind}"] = seen.largest
        gap = (before - after).square()
        found[f"isometric_loss|pairs={kind}"] = float((gap if among is None else gap * among).sum()) / n**2
    if holes:
        for name, place in class_places(cloud, classes, chosen).items():
            length, share = longest_hole(after[place][:, place])
            found[f"longest_hole|class={name}"] = length
            found[f"hole_share|class={name}"] = share
    return found


def class_places(cloud: Tensor, classes: Classes, chosen: Sequence[int]) -> dict[str, Tensor]:
    """Where the points of each chosen class are in a cloud, by name; classes of fewer than four points are left out."""
    if classes.labels is None:
        return {"all": torch.arange(len(cloud))}
    some = classes.labels[cloud]
    places = {classes.names[label]: (some == label).nonzero()[:, 0] for label in chosen}
    return {name: place for name, place in places.items() if len(place) >= _LEAST_RING}


def longest_hole(distances: Tensor) -> tuple[float, float]:
    """The length of the longest bar of H1, and its share of the largest distance; 0 where there is no hole."""
    size = float(distances.max())
    if size == 0:
        return 0.0, 0.0
    bars = persistence(distances=distances)[1]
    length = float((bars[:, 1] - bars[:, 0]).max()) if len(bars) else 0.0
    return length, length / size


def histograms(
    distances: Tensor, cloud: Tensor, classes: Classes, *, layer: str, bins: int, chosen: Sequence[int]
) -> dict[str, np.ndarray]:
    """Counts and edges of the distances of the first cloud: per kind of pair, and within each chosen class."""
    made: dict[str, np.ndarray] = {}
    kinds: dict[str, Tensor | None] = dict(classes.pairs(cloud))
    if classes.labels is not None:
        some = classes.labels[cloud]
        for label in chosen:
            own = some == label
            if int(own.sum()) > 1:
                kinds[f"class={classes.names[label]}"] = own[:, None] & own[None]
    for kind, among in kinds.items():
        counts, edges = distance_histogram(distances, among, bins=bins)
        made[f"histogram/{layer}/{kind}/counts"] = counts
        made[f"histogram/{layer}/{kind}/edges"] = edges
    return made


def rows_of(found: Sequence[Mapping[str, float]], tap: Tap, size: int, level: float) -> list[Row]:
    """One row per number, over the clouds that have it; a cloud's own number where there is only one."""
    keys = dict.fromkeys(key for one in found for key in one)
    rows = []
    for key in keys:
        quantity, _, where = key.partition("|")
        at: dict[str, Value] = {}
        for item in filter(None, where.split("|")):
            name, _, value = item.partition("=")
            at[name] = float(value) if name == "quantile" else value
        at["cloud"] = size
        values = [one[key] for one in found if key in one and not math.isnan(one[key])]
        if quantity == "largest_stretch":
            top = max(values, default=math.nan)
            rows.append(Row(quantity, top, "lower", size * len(found), tap.name, tap.depth, at=at))
            continue
        if len(found) == 1 or len(values) < 2:
            only = values[0] if values else math.nan
            rows.append(Row(quantity, only, "exact", size, tap.name, tap.depth, at=at))
            continue
        ends = across_clouds(torch.tensor(values, dtype=torch.float64), level=level)
        middle, low, high = (float(end) for end in (ends.value, ends.low, ends.high))
        if quantity in _NEVER_NEGATIVE:
            low = max(0.0, low)
        if quantity == "distance_correlation":
            low, high = max(-1.0, low), min(1.0, high)
        rows.append(Row(quantity, middle, "estimate", size * len(values), tap.name, tap.depth, low, high, at))
    return rows


def distances_of(points: Tensor, cloud: Tensor) -> Tensor:
    """Euclidean distances of the chosen rows, float64."""
    return distance_matrix(points.flatten(1), rows=cloud)
