"""What the layers do to the distances of a cloud, and to the holes of its classes: the first half of Isometry."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.maths.homology import distance_matrix, persistence
from lisse.maths.isometry import distance_histogram, distortion
from lisse.profile import Row, Value
from lisse.run.rows import clouds_row, value_row
from lisse.taps import Tap

QUANTILES = (0.05, 0.5, 0.95)
_LEAST_RING = 4  # three points span no hole


@dataclass(frozen=True)
class Classes:
    """Which class each sample of the data belongs to, and what classes are called; none where there are no labels.

    The first ``most`` of them have holes and histograms of their own.
    """

    labels: Tensor | None
    names: Mapping[int, str]
    most: int

    def pairs(self, cloud: Tensor) -> dict[str, Tensor | None]:
        """``[n, n]`` per kind of pair; ``None`` stands for all pairs."""
        if self.labels is None:
            return {"all": None}
        labels = self.labels[cloud]
        within = labels[:, None] == labels[None]
        return {"within": within, "between": ~within}

    def members(self, cloud: Tensor, *, least: int) -> dict[str, Tensor]:
        """Which points of a cloud ``[n]`` are of a class, by its name, where there are at least so many."""
        if self.labels is None:
            return {}
        masks = {self.names[label]: self.labels[cloud] == label for label in sorted(self.names)[: self.most]}
        return {name: mask for name, mask in masks.items() if int(mask.sum()) >= least}


def cloud_numbers(before: Tensor, after: Tensor, cloud: Tensor, classes: Classes, *, holes: bool) -> dict[str, float]:
    """Every number of one cloud at one layer, from distances ``[n, n]`` in the input and at the layer.

    By quantity and coordinates, written as JSON, so that clouds can be averaged without knowing what they hold.
    """
    numbers: dict[str, float] = {}

    def note(quantity: str, number: float, **at: Value) -> None:
        numbers[json.dumps([quantity, at])] = number

    for kind, among in classes.pairs(cloud).items():
        change = distortion(before, after, among, quantiles=QUANTILES)
        if not change.pairs:
            continue
        note("distance_error", change.error, pairs=kind)
        note("distance_correlation", change.correlation, pairs=kind)
        for quantile, stretch in zip(QUANTILES, change.stretch, strict=True):
            note("stretch", stretch, pairs=kind, quantile=quantile)
        note("largest_stretch", change.largest, pairs=kind)
        gap = (before - after).square()
        loss = float((gap if among is None else gap * among).sum()) / len(before) ** 2
        note("isometric_loss", loss, pairs=kind)
    if holes:
        everyone = {"all": torch.ones(len(cloud), dtype=torch.bool)}
        members = everyone if classes.labels is None else classes.members(cloud, least=_LEAST_RING)
        for name, mask in members.items():
            length, share = longest_hole(after[mask][:, mask])
            note("longest_hole", length, **{"class": name})
            note("hole_share", share, **{"class": name})
    return numbers


def longest_hole(distances: Tensor) -> tuple[float, float]:
    """The length of the longest bar of H1, and its share of the largest distance; 0 where there is no hole."""
    size = float(distances.max())
    if size == 0:
        return 0.0, 0.0
    bars = persistence(distances=distances)[1]
    length = float((bars[:, 1] - bars[:, 0]).max()) if len(bars) else 0.0
    return length, length / size


def histograms(distances: Tensor, cloud: Tensor, classes: Classes, *, layer: str, bins: int) -> dict[str, Tensor]:
    """Counts and edges of the distances of a cloud: per kind of pair, and within each of the first classes."""
    kinds: dict[str, Tensor | None] = dict(classes.pairs(cloud))
    for name, mask in classes.members(cloud, least=2).items():
        kinds[f"class={name}"] = mask[:, None] & mask[None]
    arrays: dict[str, Tensor] = {}
    for kind, among in kinds.items():
        counts, edges = distance_histogram(distances, among, bins=bins)
        arrays[f"histogram/{layer}/{kind}/counts"] = torch.from_numpy(counts)
        arrays[f"histogram/{layer}/{kind}/edges"] = torch.from_numpy(edges)
    return arrays


def number_rows(numbers: Mapping[str, Tensor], tap: Tap, size: int, level: float) -> list[Row]:
    """One row per number of :func:`cloud_numbers` over clouds ``[k]``; a cloud without it (NaN) does not count."""
    rows = []
    for key, values in numbers.items():
        quantity, at = json.loads(key)
        at["cloud"] = size
        defined = values[~values.isnan()]
        if quantity == "largest_stretch":
            largest = defined.max() if len(defined) else math.nan
            rows.append(value_row(quantity, largest, "lower", size * len(values), tap, at))
        else:
            least, most = (-1.0, 1.0) if quantity == "distance_correlation" else (0.0, math.inf)
            rows.append(clouds_row(quantity, defined, size, tap, at, level=level, least=least, most=most))
    return rows


def distances_of(points: Tensor, cloud: Tensor, device: torch.device) -> Tensor:
    """Euclidean distances of the chosen rows, float64, made on ``device``."""
    return distance_matrix(points.flatten(1), rows=cloud, device=device)
