"""Isometry: how far the layers keep the distances and the holes of the data, and how steep the network is for it."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lisse.instruments.clouds import LEAST_CLOUDS, Clouds, engine_bytes, sample_clouds
from lisse.instruments.isometry.distances import Classes, cloud_numbers, distances_of, histograms, number_rows
from lisse.instruments.isometry.gradients import moved, steepness
from lisse.instruments.jacobians import graph_bytes, samples_at_once
from lisse.instruments.origin import inputs_of, no_derivative, origin_note, origin_of, points_at
from lisse.instruments.topology.pieces import Work, pieces_in_threads
from lisse.maths.bounds import sample_gradient_norms, translation_gradient_norm
from lisse.maths.isometry import isometric_gradient
from lisse.maths.isometry.distortion import scale_free_distortion
from lisse.profile import EVERYTHING, LAYERS, RIGID, Chart, Headline, Kind, Line, Panel, Part, Quantity, Row, Value
from lisse.recording import parse_bytes
from lisse.run import Instrument, Run, level_option, option
from lisse.run.rows import At, largest_row, sample_row, value_row
from lisse.taps import Tap

_MATRICES = 26  # of all pairs of a cloud, while those of one kind are sorted
_MOST_PAIRED = 1000  # samples of which all pairs are compared: half a million


@dataclass(frozen=True)
class Isometry(Instrument):
    """Per layer: what became of the distances of the input, within and between classes, and of each class's hole.

    For the network: the cross-entropy's gradient in the input and the Jacobians of the layers, at the data and beside
    them, with the bounds of [beshkov2022] eq. (5), (6) and (14) as corrected (docs/errata.md#isometric). Clouds of
    samples are the same at every layer; intervals are over disjoint clouds for distances and holes, by bootstrap for
    gradients.
    """

    samples: int = option(200, "most samples in a cloud (distances, holes, histograms)", quick=60, usual=100, least=4)
    clouds: int = option(5, "disjoint clouds behind the intervals", quick=3, least=1)
    holes: bool = option(True, "the longest bar of H1 of each class", quick=False)
    classes: int = option(10, "most classes with holes and histograms of their own", least=1)
    bins: int = option(40, "bins of a histogram of distances", least=1)
    points: int = option(16, "samples for gradients and Jacobians; 0 leaves them out", quick=0, usual=8, least=0)
    whole: int = option(128, "most numbers of Φ for exact Jacobians, which the bounds need", least=0)
    max_iter: int = option(30, "most Lanczos steps for a Jacobian's norm", usual=15, least=1)
    tol: float = option(1e-2, "relative residual at which they stop", above=0)
    level: float = level_option()

    # Jacobians of every layer at two places cost ten times the distances; Sensitivity has those at the data.
    LEFT_OUT: ClassVar = {
        "quick": "Left out by --quick: gradients and Jacobians at the data and beside them, and the classes' holes."
    }
    CHARTS: ClassVar[tuple[Chart, ...]] = (
        Chart(
            "isometry",
            "What the layers do to distances",
            "An isometry has error 0, correlation 1 and stretch 1 at every depth, and keeps every hole. Stretch: "
            "median, and band from the 5 % to the 95 % quantile of pairs.",
            (
                Panel("relative error of distances", (Line("distance_error"),)),
                Panel("relative error between classes", (Line("distance_error", at={"pairs": "between"}),)),
                Panel("correlation of distances", (Line("distance_correlation"),)),
                Panel("stretch of distances", (Line("stretch", band=("quantile", 0.05, 0.95)),)),
                Panel(
                    "longest H1 bar over the input's, mean over classes",
                    (Line("longest_hole", mean="class", relative=True),),
                ),
            ),
            columns=2,
            prefers={"pairs": ("within", "all"), "quantile": (0.5,)},
        ),
        Chart(
            "histograms",
            "Distances within classes",
            "How often a distance occurs between two samples of a class.",
            (Panel(form="histograms", arrays=("histogram/",), label="distance"),),
            columns=2,
        ),
    )
    QUANTITIES: ClassVar[tuple[Quantity, ...]] = (
        Quantity(
            "distance_error",
            "relative error of distances",
            "How far distances between samples are from those of the input, on average; 0 is an isometry.",
            r"\operatorname{mean}_{ij} |D^l_{ij} - D^0_{ij}| / D^0_{ij}",
            "[beshkov2022] def. 2",
            scale="log",
            better="lower",
            headline=Headline(
                "distance error",
                "how far distances between samples at the output are from those of the input",
                prefers={"pairs": ("all",)},
                # The mean over pairs needs neither holes nor Jacobians.
                amounts=("samples", "clouds", "holes", "points", "whole", "max_iter", "tol", "level"),
            ),
            lead=True,
            invariant=RIGID,
        ),
        Quantity(
            "scale_free_distortion",
            "distortion up to scale",
            "How far distances between samples are from a multiple of those of the input, on average: 0 where the "
            "layer keeps all their ratios, 1 where it tells nothing of them.",
            r"\min_{a\ge0} \operatorname{mean}_{ij} |a D^l_{ij} - D^0_{ij}| / D^0_{ij}",
            better="lower",
            lead=True,
            invariant=EVERYTHING,
        ),
        Quantity(
            "distance_correlation",
            "correlation of distances",
            "Whether far stays far: 1 where distances are those of the input up to a factor and a constant.",
            r"\operatorname{corr}_{ij}(D^0_{ij}, D^l_{ij})",
            "[beshkov2022] fig. 2B",
            better="higher",
            lead=True,
            invariant=EVERYTHING,
        ),
        Quantity(
            "stretch",
            "stretch of distances",
            "What a distance of the input is multiplied by on its way to this layer (quantiles over pairs).",
            r"D^l_{ij} / D^0_{ij}",
            "[beshkov2022] def. 3",
            scale="log",
            neutral=1.0,
            invariant=RIGID,
        ),
        Quantity(
            "largest_stretch",
            "largest stretch",
            "The largest stretch of a pair of samples, which the Lipschitz constant cannot be under.",
            r"\max_{ij} D^l_{ij} / D^0_{ij}",
            "[beshkov2022] def. 3",
            scale="log",
            better="lower",
            invariant=RIGID,
        ),
        Quantity(
            "isometric_loss",
            "isometric loss",
            "The loss that trains isometry, at this layer and on one cloud.",
            r"\frac1{N^2}\sum_{ij} G_{ij} (D^0_{ij} - D^l_{ij})^2",
            "[beshkov2022] eq. 1",
            scale="log",
            better="lower",
            invariant=RIGID,
        ),
        Quantity(
            "longest_hole",
            "longest H1 bar of a class",
            "How large the largest hole of a class is: a ring that survives keeps it.",
            r"\max (\text{death} - \text{birth}),\ H_1",
            "[beshkov2022] sec. 3.1",
            invariant=RIGID,
        ),
        Quantity(
            "hole_share",
            "longest H1 bar over the diameter",
            "The same as a share of the largest distance in the class, which does not depend on its scale.",
            r"\max (\text{death} - \text{birth}) / \max_{ij} D_{ij}",
            "[beshkov2022] sec. 3.1",
            invariant=EVERYTHING,
        ),
        Quantity(
            "input_gradient",
            "gradient in the input",
            "How steeply the cross-entropy of a sample rises: what a gradient attack climbs.",
            r"\|\nabla_x L_{CSE}\|",
            "[beshkov2022] eq. 4, 5",
            scale="log",
            better="lower",
            invariant=LAYERS,
        ),
        Quantity(
            "local_jacobian",
            "local stretch ‖∇Φ‖",
            "How much the steepest small change of a sample grows on its way to this layer (from below).",
            r"\|\partial x_l/\partial x_0\|_2",
            "[beshkov2022] sec. 3.2",
            scale="log",
            better="lower",
            invariant=RIGID,
        ),
        Quantity(
            "input_gradient_bound",
            "bound (5) on the gradient in the input",
            "What the slope of the cross-entropy in Φ times K allows; k=jacobian is a bound, k=1 the paper's K.",
            r"\|\partial L_{CSE}/\partial\Phi\|\,K",
            "[beshkov2022] eq. 5",
            scale="log",
            invariant=RIGID,
        ),
        Quantity(
            "isometric_gradient",
            "gradient of the isometric loss in a sample",
            "How the isometric loss of a cloud changes when one sample moves.",
            r"\|\partial L_{ISO}/\partial x_k\|",
            "[beshkov2022] eq. 6",
            scale="log",
            invariant=RIGID,
        ),
        Quantity(
            "isometric_gradient_bound",
            "its bound, as corrected",
            "What the errors of its distances and its Jacobian allow.",
            r"\frac4{N^2}\sum_j G_{kj}|H_{kj}|(1 + K_k)",
            "[beshkov2022] eq. 6, 14",
            scale="log",
            invariant=RIGID,
        ),
        Quantity(
            "translation_gradient",
            "gradient of the isometric loss, all samples together",
            "How the isometric loss changes when all samples of a cloud move together.",
            r"\|\sum_k \partial L_{ISO}/\partial x_k\|",
            "[beshkov2022] eq. 13",
            scale="log",
            invariant=RIGID,
        ),
        Quantity(
            "translation_gradient_bound",
            "its bound",
            "The bound (14): as corrected, a theorem; as printed, a number that bounds nothing.",
            r"\frac{8K}{N^2}\sum_{i>j} G_{ij}|H_{ij}|",
            "[beshkov2022] eq. 14",
            scale="log",
            invariant=RIGID,
        ),
    )

    SPARES: ClassVar[str] = "Give fewer samples=, a smaller memory=, holes=False or points=0."

    def seconds(self, per_sample: float, layers: int, n: int) -> float:
        """The forwards, and the Lanczos steps of every layer at the data and beside them."""
        samples = min(self.samples, n)
        clouds = max(1, min(self.clouds, n // samples))
        steps = 2 * min(self.points, n) * layers * self.max_iter
        pairs = layers * 1e-7 * min(self.samples * self.clouds, n, _MOST_PAIRED) ** 2
        return (clouds * samples + 2.5 * steps) * per_sample + pairs

    def bytes(self, run: Run) -> int:
        """Distances of every cloud, the sorted pairs of one, holes of a class, the widest layer; or graphs."""
        n, size = self.passes(run), run.take(self.samples)
        clouds, width = max(1, n // size), max(tap.numel for tap in run.taps)
        share, paired = self._bytes_each(run, size), 8 * _MATRICES * min(n, _MOST_PAIRED) ** 2
        pairs = max(8 * clouds * size**2 + share * _threads(run, share), paired * _threads(run, paired))
        graphs = graph_bytes(run, self.max_iter) if self.points else 0
        return max(4 * n * width + pairs, graphs)

    def _bytes_each(self, run: Run, size: int) -> int:
        """What a thread holds for a layer: the sorted pairs of a cloud, the holes of a class."""
        targets = run.data.targets
        labelled = targets is not None and targets.ndim == 1 and not targets.is_floating_point() and len(targets) > 0
        most = int(torch.unique(targets, return_counts=True)[1].max()) if labelled and targets is not None else size
        return 8 * _MATRICES * size**2 + (engine_bytes(min(size, most)) if self.holes else 0)

    def fits(self, run: Run) -> str | None:
        """Any network on at least four samples, one row each."""
        if run.readout == "tokens":
            return "it compares samples, and readout='tokens' makes every token a row of its own."
        return None if len(run) >= 4 else f"distances need at least 4 samples, and {run.data.name} has {len(run)}."

    def part(self, run: Run) -> Part:
        """Measure."""
        notes: list[str] = []
        classes = _classes(run, self.classes, notes)
        rows, arrays = self._distances(run, classes, notes)
        more, influences = self._scale_free(run)
        rows, arrays = rows + more, arrays | influences
        if self.points:
            rows += self._gradients(run, classes.labels, notes)
        order = {quantity.name: index for index, quantity in enumerate(self.QUANTITIES)}
        rows.sort(key=lambda row: order[row.quantity])  # a table begins with distances, not with the holes of one class
        return self.part_of(rows, notes, arrays)

    # -- distances, holes, histograms ------------------------------------------------------------------------------

    def _distances(self, run: Run, classes: Classes, notes: list[str]) -> tuple[list[Row], dict[str, np.ndarray]]:
        clouds = sample_clouds(run, run.taps, size=self.samples, clouds=self.clouds)
        reference = origin_of(run)
        notes += origin_note(run)
        if clouds.count < min(LEAST_CLOUDS, self.clouds):
            notes.append(
                f"Distances rest on one cloud of {clouds.size} samples, which gives no interval: {len(run)} samples do "
                f"not hold {LEAST_CLOUDS} clouds of {self.samples}."
            )
        if len(classes.names) > self.classes and self.holes:
            notes.append(f"Holes and histograms of {self.classes} of {len(classes.names)} classes alone.")
        before = functools.cache(lambda: _input_distances(run, reference, clouds))
        rows: list[Row] = []
        arrays: dict[str, np.ndarray] = {}
        # The device makes the distances of a layer while threads count those of others, and look for their holes.
        pieces = self._in_threads(
            run,
            {
                ("distances", tap.name): functools.partial(self._of_layer, run, tap, clouds, classes, before)
                for tap in run.taps
            },
            before=lambda: (run.recording(clouds.samples).samples, before()),
            task=f"{self.name}: distances",
            share=self._bytes_each(run, clouds.size),
        )
        for tap in run.taps:
            numbers = pieces["distances", tap.name]
            for name in [name for name in numbers if name.startswith("histogram/")]:
                arrays[name] = numbers.pop(name).numpy()
            # At the input itself the holes alone say anything.
            rows += [
                row
                for row in number_rows(numbers, tap, clouds.size, self.level)
                if tap.name != reference.name or row.quantity in ("longest_hole", "hole_share")
            ]
        return rows, arrays

    def _in_threads(
        self, run: Run, work: Mapping[tuple[str, ...], Work], *, before: Callable[[], object], task: str, share: int
    ) -> dict[tuple[str, ...], dict[str, Tensor]]:
        threads = _threads(run, share)
        if run.device.type == "cpu" and threads < torch.get_num_threads():
            # Few layers at a time with one core each would leave cores idle.
            before()
            finished = {}
            for index, (key, make) in enumerate(work.items()):
                finished[key] = run.piece(self, key, make)
                run.tell(task, index + 1, len(work), "layers")
            return finished
        pieces, failed = pieces_in_threads(run, self, work, before=before, task=task, unit="layers", threads=threads)
        for error in failed.values():
            raise error
        return pieces

    def _of_layer(
        self, run: Run, tap: Tap, clouds: Clouds, classes: Classes, before: Callable[[], Sequence[Tensor]]
    ) -> dict[str, Tensor]:
        """The numbers of all clouds ``[k]``, NaN for a cloud that has none, and the histograms of the first."""
        points = run.recording(clouds.samples)[tap.name]
        numbers: dict[str, Tensor] = {}
        for index, (cloud, distances) in enumerate(zip(clouds.rows[tap.name], before(), strict=True)):
            after = distances_of(points, cloud, run.device).cpu()
            for key, number in cloud_numbers(distances, after, cloud, classes, holes=self.holes).items():
                numbers.setdefault(key, torch.full((clouds.count,), math.nan))[index] = number
            if index == 0:
                numbers |= histograms(after, cloud, classes, layer=tap.name, bins=self.bins)
        return numbers

    def _scale_free(self, run: Run) -> tuple[list[Row], dict[str, np.ndarray]]:
        """One cloud of all samples; what each of them adds is its interval."""
        origin, last = origin_of(run), run.last_block
        n = run.take(min(self.passes(run), _MOST_PAIRED))
        before = functools.cache(lambda: distances_of(points_at(run, origin, n), torch.arange(n), run.device))
        rows: list[Row] = []
        arrays: dict[str, np.ndarray] = {}
        layers = [tap for tap in run.taps if tap.name != origin.name]

        def influences(tap: Tap) -> dict[str, Tensor]:
            after = distances_of(run.recording(n)[tap.name], torch.arange(n), run.device)
            return {"values": scale_free_distortion(before(), after).influence}

        pieces = self._in_threads(
            run,
            {("scale free", tap.name): functools.partial(influences, tap) for tap in layers},
            before=lambda: (run.recording(n).samples, before()),
            task=f"{self.name}: distances up to scale",
            share=8 * _MATRICES * n**2,
        )
        for tap in layers:
            values = pieces["scale free", tap.name]["values"]
            rows.append(self._mean_row(run, "scale_free_distortion", "estimate", values, tap, {}))
            if tap is last:
                arrays["samples/scale_free_distortion"] = values.numpy()
        return rows, arrays

    # -- gradients and Jacobians -----------------------------------------------------------------------------------

    def _gradients(self, run: Run, labels: Tensor | None, notes: list[str]) -> list[Row]:
        layers = [tap for tap in run.taps if tap.role != "input"]
        reason = _without_gradients(run, labels, layers)
        if labels is None or reason is not None:
            notes.append(f"No gradients and Jacobians: {reason}.")
            return []
        phi = layers[-2] if len(layers) > 1 else layers[-1]  # the last layer before the logits
        count = run.take(self.points)
        exact = phi.numel <= self.whole
        radius = self._radius(run, count)
        tensors: dict[str, dict[str, Tensor]] = {}
        for where in ("on", "off"):

            def make(start: int, stop: int, where: str = where) -> dict[str, Tensor]:
                points = moved(run, start, stop, radius if where == "off" else 0.0)
                return steepness(
                    run, points, labels[start:stop], layers, phi, start=start, where=where,
                    max_iter=self.max_iter, tol=self.tol, jacobians=exact and where == "on",
                )  # fmt: skip

            with warnings.catch_warnings():
                if where == "off":  # where images leave [0, 1], and are meant to
                    warnings.filterwarnings("ignore", "Normalised: images must lie in", UserWarning)
                step = samples_at_once(run, self.max_iter)
                task = f"{self.name}: gradients {where} the data"
                tensors[where] = run.blocks(self, ("gradients", where), count, make, task=task, step=step)
            if not tensors[where]:
                notes.append("No gradients and Jacobians: the model gives no logits for these labels.")
                return []
        notes.append(
            f"Off the data: {count} samples moved in random directions by {radius:.3g}, the median distance to the "
            f"nearest other sample. Φ of the bounds is {phi.name}."
        )
        rows = self._steep_rows(run, layers, tensors, radius)
        if exact:
            return rows + self._bound_rows(run, phi, tensors["on"], labels[:count])
        notes.append(
            f"No bounds from exact Jacobians: {phi.name} has {phi.numel} numbers, more than whole={self.whole}."
        )
        return rows

    def _radius(self, run: Run, count: int) -> float:
        """The median distance of a sample to its nearest other one: the scale of the data's own gaps."""
        n = max(run.take(self.samples), count)
        distances = distances_of(inputs_of(run, n), torch.arange(n), run.device)
        distances.fill_diagonal_(torch.inf)
        nearest = distances.min(1).values
        return float(nearest.median()) or float(distances[torch.isfinite(distances)].median())

    def _steep_rows(
        self, run: Run, layers: Sequence[Tap], tensors: Mapping[str, Mapping[str, Tensor]], radius: float
    ) -> list[Row]:
        rows = []
        for where, values in tensors.items():
            at: dict[str, Value] = {"where": where}
            if where == "off":
                at["radius"] = float(f"{radius:.6g}")
            rows += [
                self._mean_row(run, "input_gradient", "estimate", values[norm], None, {**at, "norm": norm})
                for norm in ("l1", "l2")
            ]
            for tap in layers:
                norms = values.get(f"norm/{tap.name}")
                if norms is not None:
                    rows.append(self._mean_row(run, "local_jacobian", "lower", norms, tap, {**at, "over": "mean"}))
                    rows.append(largest_row("local_jacobian", norms, "lower", tap, {**at, "over": "max"}))
        return rows

    def _bound_rows(self, run: Run, phi: Tap, values: Mapping[str, Tensor], labels: Tensor) -> list[Row]:
        """Eq. (5), (6) and (14), measured and bounded, from the Jacobians themselves: exact, no iteration."""
        x, z, slope = values["points"], values["phi"], values["slope"]
        steep = torch.linalg.matrix_norm(values["jacobians"], ord=2)
        gradient = isometric_gradient(x, z, values["jacobians"], labels)
        norms, bounds = torch.linalg.vector_norm(gradient, dim=1), sample_gradient_norms(x, z, steep, labels)
        k, n = float(steep.max()), len(x)
        corrected = translation_gradient_norm(x, z, k, labels, local_norm=k).value
        printed = translation_gradient_norm(x, z, k, labels, variant="printed").value
        at: dict[str, Value] = {"cloud": n}
        variant = {name: {**at, "variant": name} for name in ("corrected", "printed")}
        return [
            self._mean_row(run, "input_gradient_bound", "upper", slope * steep, phi, {"k": "jacobian"}),
            self._mean_row(run, "input_gradient_bound", "heuristic", slope, phi, {"k": "1"}),
            self._mean_row(run, "isometric_gradient", "estimate", norms, phi, at),
            self._mean_row(run, "isometric_gradient_bound", "upper", bounds, phi, at),
            value_row("translation_gradient", torch.linalg.vector_norm(gradient.sum(0)), "exact", n, phi, at),
            value_row("translation_gradient_bound", corrected, "upper", n, phi, variant["corrected"]),
            value_row("translation_gradient_bound", printed, "heuristic", n, phi, variant["printed"]),
        ]

    def _mean_row(self, run: Run, quantity: str, kind: Kind, values: Tensor, tap: Tap | None, at: At) -> Row:
        """The mean of norms over samples."""
        generator = run.generator(f"{quantity}{None if tap is None else tap.name}{sorted(at.items())}")
        return sample_row(quantity, values, tap, at, generator=generator, kind=kind, level=self.level, least=0.0)


def _threads(run: Run, share: int) -> int:
    """As many as PyTorch may use, while what each of them holds fits into the run's memory."""
    return max(1, min(torch.get_num_threads(), parse_bytes(run.memory) // share))


def _classes(run: Run, most: int, notes: list[str]) -> Classes:
    targets = run.data.targets
    if targets is None or targets.ndim != 1 or targets.is_floating_point():
        notes.append("There are no labels: all pairs count alike, and the whole cloud is one class.")
        return Classes(None, {}, most)
    labels = targets.long().cpu()
    names = run.data.classes or ()
    values = torch.unique(labels).tolist()
    by_label = {label: str(names[label]) if 0 <= label < len(names) else str(label) for label in values}
    return Classes(labels, by_label, most)


def _input_distances(run: Run, reference: Tap, clouds: Clouds) -> list[Tensor]:
    """The distances within each cloud where they come from."""
    points = points_at(run, reference, clouds.samples)
    distances = [distances_of(points, cloud, run.device).cpu() for cloud in next(iter(clouds.rows.values()))]
    if any(float(cloud.max()) == 0 for cloud in distances):
        raise ValueError(f"Isometry: samples must differ at {reference.name}, got a cloud in which all are equal.")
    return distances


def _without_gradients(run: Run, labels: Tensor | None, layers: Sequence[Tap]) -> str | None:
    """Why there are no gradients in the input; ``None`` where there are."""
    if labels is None:
        return "there are no labels to take a cross-entropy with"
    if (reason := no_derivative(run)) is not None:
        return reason
    if any(tap.mixes for tap in layers):
        return "a sample's activation changes with the samples beside it"
    return None if layers else "no layer behind the input was chosen"
