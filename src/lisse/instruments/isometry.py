"""Isometry: how far the layers keep the distances and the holes of the data, and how steep the network is for it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lisse.instruments import isometry_distances as geometry
from lisse.instruments.isometry_distances import Classes
from lisse.instruments.isometry_gradients import Steepness, isometric_gradients, moved, representation, steepness
from lisse.instruments.isometry_quantities import QUANTITIES
from lisse.instruments.topology_clouds import LEAST_CLOUDS, sample_clouds
from lisse.maths.intervals import bootstrap
from lisse.profile import Kind, Part, Quantity, Row, Value
from lisse.recording import parse_bytes
from lisse.run import Instrument, Run
from lisse.taps import Tap

_LEAST_SAMPLES = 8  # a bootstrap of fewer does not cover what it says


@dataclass(frozen=True)
class Isometry(Instrument):
    """Per layer: what became of the distances of the input, within and between classes, and of each class's hole.

    For the network: the cross-entropy's gradient in the input and the Jacobians of the layers, at the data and beside
    them, with the bounds of [beshkov2022] eq. (5), (6) and (14) as SPEC corrects them. Clouds of samples are the same
    at every layer; intervals are over disjoint clouds for distances and holes, by bootstrap for gradients.
    """

    samples: int = field(default=200, metadata={"help": "most samples in a cloud (distances, holes, histograms)"})
    clouds: int = field(default=5, metadata={"help": "disjoint clouds behind the intervals"})
    holes: bool = field(default=True, metadata={"help": "the longest bar of H1 of each class"})
    classes: int = field(default=10, metadata={"help": "most classes with holes and histograms of their own"})
    bins: int = field(default=40, metadata={"help": "bins of a histogram of distances"})
    points: int = field(default=16, metadata={"help": "samples for gradients and Jacobians; 0 leaves them out"})
    whole: int = field(default=128, metadata={"help": "most numbers of Φ for exact Jacobians, which the bounds need"})
    max_iter: int = field(default=30, metadata={"help": "most Lanczos steps for a Jacobian's norm"})
    tol: float = field(default=1e-2, metadata={"help": "relative residual at which they stop"})
    level: float = field(default=0.95, metadata={"help": "confidence level of the intervals"})
    quick: bool = field(default=False, metadata={"help": "one cloud, few points, no intervals"})

    QUANTITIES: ClassVar[tuple[Quantity, ...]] = QUANTITIES

    def __post_init__(self) -> None:
        least = {"samples": 4, "clouds": 1, "classes": 1, "bins": 1, "points": 0, "whole": 0, "max_iter": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"Isometry: {name} must be at least {low}, got {getattr(self, name)}.")
        if not 0 < self.level < 1:
            raise ValueError(f"Isometry: level must lie in (0, 1), got {self.level}.")
        if not self.tol > 0:
            raise ValueError(f"Isometry: tol must be positive, got {self.tol}.")

    def fits(self, run: Run) -> str | None:
        """Any network on at least four samples, one row each."""
        if run.readout == "tokens":
            return "it compares samples, and readout='tokens' makes every token a row of its own."
        return None if len(run) >= 4 else f"distances need at least 4 samples, and {run.data.name} has {len(run)}."

    def part(self, run: Run) -> Part:
        """Measure."""
        notes: list[str] = []
        classes = _classes(run, notes)
        rows, arrays = self._distances(run, classes, notes)
        if self.points:
            rows += self._gradients(run, classes, notes)
        order = {quantity.name: place for place, quantity in enumerate(QUANTITIES)}
        rows.sort(key=lambda row: order[row.quantity])  # a table begins with distances, not with the holes of one class
        return Part(self.name, tuple(rows), self.QUANTITIES, tuple(notes), arrays)

    # -- distances, holes, histograms ------------------------------------------------------------------------------

    def _distances(self, run: Run, classes: Classes, notes: list[str]) -> tuple[list[Row], dict[str, np.ndarray]]:
        wanted = 1 if self.quick else self.clouds
        chosen = list(run.taps)
        clouds = sample_clouds(run, chosen, size=self.samples, clouds=wanted, halves=False)
        recording = run.recording(clouds.samples)
        reference = _reference(run, notes)
        indices = next(iter(clouds.rows.values()))
        if clouds.count < min(LEAST_CLOUDS, wanted):
            notes.append(
                f"Distances rest on one cloud of {clouds.size} samples, which gives no interval: {len(run)} samples do "
                f"not hold {LEAST_CLOUDS} clouds of {self.samples}."
            )
        labelled = sorted(classes.names)[: self.classes] if classes.labels is not None else []
        if classes.labels is not None and len(classes.names) > self.classes and self.holes:
            notes.append(f"Holes and histograms of {self.classes} of {len(classes.names)} classes alone.")
        before = [geometry.distances_of(_input(run, recording, reference, clouds.samples), one) for one in indices]
        if any(float(one.max()) == 0 for one in before):
            raise ValueError(f"Isometry: samples must differ at {reference.name}, got a cloud in which all are equal.")
        rows: list[Row] = []
        arrays: dict[str, np.ndarray] = {}
        for place, tap in enumerate(chosen):

            def make(tap: Tap = tap) -> dict[str, Tensor]:
                found: dict[str, Tensor] = {}
                for k, cloud in enumerate(indices):
                    after = geometry.distances_of(recording[tap.name], cloud)
                    numbers = geometry.cloud_numbers(
                        before[k], after, cloud, classes, holes=self.holes, chosen=labelled
                    )
                    found |= {f"{k}/{key}": torch.tensor(value) for key, value in numbers.items()}
                    if k == 0:
                        made = geometry.histograms(
                            after, cloud, classes, layer=tap.name, bins=self.bins, chosen=labelled
                        )
                        found |= {name: torch.from_numpy(value) for name, value in made.items()}
                return found

            found = run.piece(self, ("distances", tap.name), make)
            numbers: list[dict[str, float]] = [{} for _ in indices]
            for key, value in found.items():
                if key.startswith("histogram/"):
                    arrays[key] = value.numpy()
                else:
                    k, _, name = key.partition("/")
                    numbers[int(k)][name] = float(value)
            made = geometry.rows_of(numbers, tap, clouds.size, self.level)
            own = ("longest_hole", "hole_share")  # at the input itself nothing else says anything
            rows += [row for row in made if tap.name != reference.name or row.quantity in own]
            run.tell(f"{self.name}: distances", place + 1, len(chosen), "layers")
        return rows, arrays

    # -- gradients and Jacobians -----------------------------------------------------------------------------------

    def _gradients(self, run: Run, classes: Classes, notes: list[str]) -> list[Row]:
        layers = [tap for tap in run.taps if tap.role != "input"]
        source = run.taps.source
        reason = None
        if classes.labels is None:
            reason = "there are no labels to take a cross-entropy with"
        elif source is None or source.role != "input" or not isinstance(run.data.inputs, Tensor):
            reason = "the input has no derivative (token ids)"
        elif any(tap.mixes for tap in layers):
            reason = "a sample's activation changes with the samples beside it"
        elif not layers:
            reason = "no layer behind the input was chosen"
        if reason is not None:
            notes.append(f"No gradients and Jacobians: {reason}.")
            return []
        assert classes.labels is not None
        phi = representation(layers)
        count = run.take(min(self.points, 8) if self.quick else self.points)
        whole = phi.numel <= self.whole
        radius = self._radius(run, count)
        found: dict[str, list[Steepness]] = {"on": [], "off": []}
        step = self._step(run)
        for begin in range(0, count, step):
            stop = min(begin + step, count)
            for where, some in found.items():

                def make(begin: int = begin, stop: int = stop, where: str = where) -> dict[str, Tensor]:
                    labels = classes.labels
                    assert labels is not None
                    points = moved(run, begin, stop, radius if where == "off" else 0.0)
                    one = steepness(
                        run, points, labels[begin:stop], layers, phi, start=begin, where=where,
                        max_iter=self.max_iter, tol=self.tol, whole=whole and where == "on",
                    )  # fmt: skip
                    return {} if one is None else one.tensors()

                with warnings.catch_warnings():
                    if where == "off":  # where images leave [0, 1], and are meant to
                        warnings.filterwarnings("ignore", "Normalised: images must lie in", UserWarning)
                    made = run.piece(self, ("gradients", where, begin, stop), make)
                if not made:
                    notes.append("No gradients and Jacobians: the model gives no logits for these labels.")
                    return []
                some.append(Steepness.from_tensors(made))
            run.tell(f"{self.name}: gradients", stop, count, "samples")
        notes.append(
            f"Off the data: {count} samples moved in random directions by {radius:.3g}, the median distance to the "
            f"nearest other sample. Φ of the bounds is {phi.name}."
        )
        rows = self._steep_rows(run, layers, found, radius)
        if whole:
            rows += self._bound_rows(run, phi, found["on"], classes.labels[:count])
        else:
            notes.append(
                f"No bounds from exact Jacobians: {phi.name} has {phi.numel} numbers, more than whole={self.whole}."
            )
        return rows

    def _step(self, run: Run) -> int:
        """How many samples at once: the Lanczos vectors and the graph within the run's memory, eight at most."""
        vectors = 2 * self.max_iter * max(tap.numel for tap in run.taps)
        graph = 24 * sum(tap.numel for tap in run.taps)
        return max(1, min(8, parse_bytes(run.memory) // (4 * (vectors + graph))))

    def _radius(self, run: Run, count: int) -> float:
        """The median distance of a sample to its nearest other one: the scale of the data's own gaps."""
        n = max(min(run.take(self.samples), len(run)), min(count, len(run)))
        cloud = torch.cat([batch.inputs.flatten(1).cpu() for batch in run.batches(n)])  # type: ignore[union-attr]
        distances = geometry.distances_of(cloud, torch.arange(len(cloud)))
        distances.fill_diagonal_(torch.inf)
        nearest = distances.min(1).values
        return float(nearest.median()) or float(distances[torch.isfinite(distances)].median())

    def _steep_rows(
        self, run: Run, layers: Sequence[Tap], found: Mapping[str, list[Steepness]], radius: float
    ) -> list[Row]:
        rows = []
        for where, some in found.items():
            place: dict[str, Value] = {"where": where}
            if where == "off":
                place["radius"] = float(f"{radius:.6g}")
            for norm, each in (("l1", [one.l1 for one in some]), ("l2", [one.l2 for one in some])):
                at = {**place, "norm": norm}
                rows.append(self._mean(run, "input_gradient", "estimate", torch.cat(each), None, at))
            for tap in layers:
                if all(tap.name in one.norms for one in some):
                    values = torch.cat([one.norms[tap.name] for one in some])
                    rows.append(self._mean(run, "local_jacobian", "lower", values, tap, {**place, "over": "mean"}))
                    top, at = float(values.max()), {**place, "over": "max"}
                    rows.append(Row("local_jacobian", top, "lower", len(values), tap.name, tap.depth, at=at))
        return rows

    def _bound_rows(self, run: Run, phi: Tap, some: Sequence[Steepness], labels: Tensor) -> list[Row]:
        x, z = torch.cat([one.points for one in some]), torch.cat([one.representation for one in some])
        jacobians = torch.cat([one.jacobians for one in some if one.jacobians is not None])
        slope = torch.cat([one.slope for one in some])
        found = isometric_gradients(x, z, jacobians, labels)
        n = len(x)
        at = {"cloud": n}
        return [
            self._mean(run, "input_gradient_bound", "upper", slope * found.steep, phi, {"k": "jacobian"}),
            self._mean(run, "input_gradient_bound", "heuristic", slope, phi, {"k": "1"}),
            self._mean(run, "isometric_gradient", "estimate", found.samples, phi, at),
            self._mean(run, "isometric_gradient_bound", "upper", found.sample_bounds, phi, at),
            Row("translation_gradient", found.translation, "exact", n, phi.name, phi.depth, at=at),
            Row("translation_gradient_bound", found.translation_bound, "upper", n, phi.name, phi.depth,
                at={**at, "variant": "corrected"}),
            Row("translation_gradient_bound", found.translation_printed, "heuristic", n, phi.name, phi.depth,
                at={**at, "variant": "printed"}),
        ]  # fmt: skip

    def _mean(
        self, run: Run, quantity: str, kind: Kind, values: Tensor, tap: Tap | None, at: Mapping[str, Value]
    ) -> Row:
        """The mean over samples, with a bootstrap interval where there are enough for one to hold."""
        layer, depth = (None, None) if tap is None else (tap.name, tap.depth)
        if self.quick or len(values) < _LEAST_SAMPLES:
            exact: Kind = "exact" if kind == "estimate" else kind
            return Row(quantity, float(values.mean()), exact, len(values), layer, depth, at=at)
        key = f"{quantity}{layer}{sorted(at.items())}"
        ends = bootstrap(values.double(), level=self.level, generator=run.generator(key))
        low, high = max(0.0, float(ends.low)), float(ends.high)
        return Row(quantity, float(ends.value), kind, len(values), layer, depth, low, high, at)


def _classes(run: Run, notes: list[str]) -> Classes:
    targets = run.data.targets
    if targets is None or targets.ndim != 1 or targets.is_floating_point():
        notes.append("There are no labels: all pairs count alike, and the whole cloud is one class.")
        return Classes(None, {})
    labels = targets.long().cpu()
    names = run.data.classes or ()
    found = torch.unique(labels).tolist()
    return Classes(labels, {label: str(names[label]) if 0 <= label < len(names) else str(label) for label in found})


def _reference(run: Run, notes: list[str]) -> Tap:
    """Where distances come from: the input; for token ids, which have none, the first layer."""
    source = run.taps.source
    if source is not None and (source.name in run.taps.names or source.role == "input"):
        if source.role != "input":
            notes.append(f"The input has no distances (it holds integers): they are those of {source.name}.")
        return source
    first = run.taps[0]
    notes.append(f"Distances are compared with those of {first.name}, the first layer that was chosen.")
    return first


def _input(run: Run, recording: object, reference: Tap, count: int) -> Tensor:
    if reference.name in run.taps.names:
        found: Tensor = recording[reference.name]  # type: ignore[index]
        return found
    parts = [batch.inputs.flatten(1).cpu() for batch in run.batches(count)]  # type: ignore[union-attr]
    return torch.cat(parts)
