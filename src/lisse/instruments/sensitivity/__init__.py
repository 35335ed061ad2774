"""Sensitivity: how large, how many-dimensional and how stretched the data are at every layer."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lisse.instruments.jacobians import graph, graph_bytes, local_norm, samples_at_once
from lisse.instruments.origin import box_width, inputs_of
from lisse.instruments.sensitivity.margins import MOST_CLASSES, margin_distances, no_margins
from lisse.instruments.sensitivity.spreads import layer_spreads, token_mask, valid_tokens
from lisse.maths.intervals import disjoint_clouds
from lisse.maths.jacobian import effective_rank
from lisse.maths.spread import relative_stretch
from lisse.networks.attack.sanity import FLAT
from lisse.profile import EVERYTHING, RIGID, Headline, Part, Quantity, Row
from lisse.run import Instrument, Run, level_option, option
from lisse.run.rows import LEAST_SAMPLES, clouds_row, largest_row, sample_row
from lisse.taps import Tap

_LEAST_CLOUD = 20  # fewer points are no cloud to speak of


@dataclass(frozen=True)
class Sensitivity(Instrument):
    """Per layer: the norm, the effective rank, and the local Lipschitz constant from the input and the layer before.

    The Lipschitz constants are spectral norms of Jacobians at the samples, found by Lanczos iteration: every one is a
    lower estimate, and so is their maximum of the network's Lipschitz constant. For token ids, which have no
    derivative, "the input" is the first layer (the embedding).
    """

    samples: int = option(500, "most samples in a cloud (norm, effective rank)", quick=60, usual=200, least=2)
    clouds: int = option(5, "disjoint clouds behind the effective rank's interval", quick=3, least=1)
    points: int = option(16, "samples at which Jacobians are taken; 0 leaves them out", quick=8, usual=8, least=0)
    max_iter: int = option(30, "most Lanczos steps for a Jacobian's norm", quick=3, usual=15, least=1)
    tol: float = option(1e-2, "relative residual at which they stop", above=0)
    draws: int = option(
        256, "samples for the relative stretch of the last block; 0 leaves it out", quick=16, usual=64, least=0
    )
    margins: int = option(
        1000, "samples for distances to the boundary; 0 leaves them out", quick=100, usual=300, least=0
    )
    level: float = level_option()

    QUANTITIES: ClassVar[tuple[Quantity, ...]] = (
        Quantity(
            "norm",
            "norm ‖x‖",
            "How large activations are: the mean Euclidean norm over samples.",
            r"\frac1n\sum_i \|x_i\|_2",
            scale="log",
            invariant=("rotation",),
        ),
        Quantity(
            "effective_rank",
            "effective rank",
            "How many directions a cloud of samples spreads over; a cloud of n points shows n − 1 at most.",
            r"\left(\sum_i\lambda_i\right)^2 / \sum_i\lambda_i^2",
            scale="log",
            invariant=EVERYTHING,
        ),
        Quantity(
            "lipschitz_from_input",
            "stretch from the input",
            "How much the steepest small change of the input grows on its way to this layer (from below).",
            r"\left\|\partial x_l / \partial x_0\right\|_2",
            scale="log",
            better="lower",
            headline=Headline(
                "stretch",
                "how much small changes of the input grow up to the output, from below",
                prefers={"over": ("mean", "max")},
                amounts=("samples", "clouds", "points", "draws", "margins", "level"),
            ),
            lead=True,
            invariant=RIGID,
        ),
        Quantity(
            "relative_stretch",
            "stretch over the spread of the data",
            "How much the steepest small change of the input grows up to this layer, over how much the data as a whole "
            "do (from below): 1 where all differences grow alike.",
            r"\left\|\partial x_l / \partial x_0\right\|_2 \, s_0/s_l, \quad s^2 = \tfrac1n\sum_i\|x_i - \bar x\|^2",
            scale="log",
            better="lower",
            headline=Headline(
                "relative stretch",
                "how much small changes of the input grow up to the last block, over how much the data as a whole do",
                alone="stretches the steepest small change of its input by {value} times as much as its data",
                evidence="With less relative stretch no small change grows far more than the data do. That it errs "
                "less has not been seen.",
                amounts=("samples", "clouds", "points", "draws", "margins", "level"),
            ),
            lead=True,
            neutral=1.0,
            invariant=EVERYTHING,
        ),
        Quantity(
            "margin_distance",
            "distance to the boundary, by the gradient",
            "How far half of the samples are from a wrong answer, if the margins went on as steeply as they begin: an "
            "estimate, no certificate; 0 where the answer is wrong already.",
            r"\operatorname{median}_i \max(0, \min_{k \ne y_i} m_{ik} / \|\nabla_x m_{ik}\|_*), "
            r"\quad m_{ik} = z_{iy_i} - z_{ik}",
            "[moosavi2016] sec. 3",
            better="higher",
            headline=Headline(
                "margin",
                "the estimated distance of half of the samples to the boundary of their answer",
                makes="harder to move across a boundary (judged by its gradient)",
                evidence="A larger margin estimates that an answer is further from another; only an attack tells.",
                prefers={"norm": ("l2", "linf")},
                amounts=("samples", "clouds", "points", "max_iter", "tol", "draws", "margins", "level"),
            ),
            invariant=EVERYTHING,
            statistic="median",
        ),
        Quantity(
            "lipschitz_from_previous",
            "stretch from the layer before",
            "How much this layer alone stretches the steepest small change of what enters it (from below).",
            r"\left\|\partial x_l / \partial x_{l-1}\right\|_2",
            scale="log",
            better="lower",
            lead=True,
            invariant=RIGID,
        ),
    )

    SPARES: ClassVar[str] = "Give fewer samples=, a smaller memory= or points=0."

    def seconds(self, per_sample: float, layers: int, n: int) -> float:
        """The forwards, the Lanczos steps of every layer and of the last block, and the gradients of margins."""
        steps = 2.5 * (min(self.points, n) * layers + min(self.draws, n)) * self.max_iter
        margins = min(self.margins, n) * (1 + 2 * MOST_CLASSES)
        return (min(self.samples, n) + steps + margins) * per_sample

    def bytes(self, run: Run) -> int:
        """The widest layer, its Gram matrices and columns in float64, then graphs and Lanczos vectors."""
        n, size, width = self.passes(run), run.take(self.samples), max(tap.numel for tap in run.taps)
        cloud = 4 * n * width + 8 * (3 * size**2 + 3 * n * min(width, 4096))
        steps = graph_bytes(run, self.max_iter) if self.points or self.draws else 0
        margins = graph_bytes(run, 0, most=run.batch) if self.margins and run.data.targets is not None else 0
        return max(cloud, steps, margins)

    def fits(self, run: Run) -> str | None:
        """Any network on at least two samples, one row each."""
        if run.readout == "tokens":
            return "it compares samples, and readout='tokens' makes every token a row of its own."
        return None if len(run) >= 2 else f"a cloud needs at least 2 samples, and {run.data.name} has {len(run)}."

    def part(self, run: Run) -> Part:
        """Measure."""
        notes: list[str] = []
        rows = self._cloud_rows(run, notes)
        arrays: dict[str, np.ndarray] = {}
        source = run.taps.source
        layers = [tap for tap in run.taps if source is not None and tap.name != source.name]
        mixed = [tap.name for tap in layers if tap.mixes]
        if self.points and (mixed or source is None):
            notes.append(
                f"No local Lipschitz constants: a sample's activation at {_listed(mixed)} changes with the samples "
                "beside it (batch statistics, or random numbers in the network), so it is no function of the sample."
            )
        elif self.points and source is not None:
            norms = self._norms_at_points(run, source, layers)
            rows += self._stretch_rows(run, source, layers, norms, notes)
            rows += self._relative_rows(run, source, layers, norms, arrays, notes)
        rows += self._margin_rows(run, arrays, notes)
        return self.part_of(rows, notes, arrays)

    # -- norm and effective rank -----------------------------------------------------------------------------------

    def _cloud_rows(self, run: Run, notes: list[str]) -> list[Row]:
        # Clouds small enough for all of them, as long as they are clouds; else as many as there are.
        size = run.take(self.samples)
        if len(run) // self.clouds >= _LEAST_CLOUD:
            size = min(size, len(run) // self.clouds)
        total = run.take(size * self.clouds) // size * size
        clouds = disjoint_clouds(total, size, clouds=self.clouds, generator=run.generator("clouds"))
        if len(clouds) < self.clouds:
            notes.append(
                f"The effective rank rests on {len(clouds)} disjoint cloud(s) of {size} samples, not {self.clouds}: "
                f"there are {len(run)} samples." + (" One cloud gives no interval." if len(clouds) == 1 else "")
            )

        def effective_ranks(points: Tensor) -> Tensor:
            return torch.stack([effective_rank(points, rows=cloud) for cloud in clouds]).cpu()

        norms = run.per_layer(self, _norms, n=total)
        ranks = run.per_layer(self, effective_ranks, n=total)
        rows = []
        for tap, norm_row in zip(run.taps, run.mean_rows("norm", norms, level=self.level), strict=True):
            # A participation ratio is never under 1, nor is its mean; rounding must not say so.
            at = {"cloud": size}
            rank_row = clouds_row("effective_rank", ranks[tap.name], size, tap, at, level=self.level, least=1.0)
            rows += [norm_row, rank_row]
        if points := [tap.name for tap in run.taps if bool(ranks[tap.name].isnan().any())]:
            notes.append(f"No effective rank at {_listed(points)}: all samples of a cloud are one point there.")
        return rows

    # -- local Lipschitz constants ---------------------------------------------------------------------------------

    def _norms_at_points(self, run: Run, source: Tap, layers: Sequence[Tap]) -> dict[str, Tensor]:
        """Of every layer, at the first samples."""
        return run.blocks(
            self,
            "stretch",
            run.take(self.points),
            functools.partial(self._norms_at, run, source, layers),
            task=f"{self.name}: stretch",
            step=samples_at_once(run, self.max_iter),
        )

    def _stretch_rows(
        self, run: Run, source: Tap, layers: Sequence[Tap], norms: Mapping[str, Tensor], notes: list[str]
    ) -> list[Row]:
        rows, missing, infinite, unsettled = [], [], [], 0
        for index, tap in enumerate(layers):
            for origin in ("input", "previous"):
                quantity, key = f"lipschitz_from_{origin}", f"{origin if index else 'input'}/{index}"
                if key not in norms:
                    missing.append(f"{tap.name} ({origin})")
                    continue
                finite = norms[key].isfinite()
                if not bool(finite.all()):
                    infinite.append(f"{tap.name} ({origin}, {int((~finite).sum())} of {len(finite)})")
                if not bool(finite.any()):
                    continue
                values, generator = norms[key][finite], run.generator(quantity + tap.name)
                unsettled += int((~norms[key + "/converged"].bool()[finite]).sum())
                rows += [
                    sample_row(
                        quantity, values, tap, {"over": "mean"}, generator=generator, kind="lower", level=self.level
                    ),
                    largest_row(quantity, values, "lower", tap, {"over": "max"}),
                ]
        if infinite:
            notes.append(f"The derivative is not finite, and its samples are left out, at {_listed(infinite)}.")
        notes += self._stretch_notes(run, source, run.take(self.points), missing, unsettled)
        return rows

    def _stretch_notes(
        self, run: Run, source: Tap, points: int, missing: Sequence[str], unsettled: int
    ) -> Iterator[str]:
        if points < LEAST_SAMPLES:
            yield f"{points} points are too few for an interval of the local Lipschitz constants."
        if source.role != "input":
            yield f"The input has no derivative (it holds integers): stretch is measured from {source.name}."
        if run.readout is not None:
            yield f"Stretch is that of all valid tokens together, not of the readout ({run.readout})."
        if missing:
            yield f"No derivative, so no Lipschitz constant, at {_listed(missing)}."
        if unsettled:
            yield (
                f"{unsettled} Jacobian norms had a residual over {self.tol:g} after {self.max_iter} steps; "
                "they are lower estimates all the same."
            )

    # -- what judges -----------------------------------------------------------------------------------------------

    def _relative_rows(
        self,
        run: Run,
        source: Tap,
        layers: Sequence[Tap],
        norms: Mapping[str, Tensor],
        arrays: dict[str, np.ndarray],
        notes: list[str],
    ) -> list[Row]:
        """The last block at more samples, the other layers at those whose norms there are already."""
        n, last = self.passes(run), run.last_block
        by_layer = {tap.name: norms[f"input/{index}"] for index, tap in enumerate(layers) if f"input/{index}" in norms}
        if self.draws and last is not None and last.name != source.name:
            stretches = run.blocks(
                self,
                "relative stretch",
                min(self.draws, n),
                functools.partial(self._norms_at, run, source, [last]),
                task=f"{self.name}: relative stretch",
                step=samples_at_once(run, self.max_iter),
            )
            by_layer |= {last.name: stretches["input/0"]} if "input/0" in stretches else {}
        spreads = layer_spreads(self, run, [source, *(tap for tap in layers if tap.name in by_layer)], n)
        rows, points = [], []
        for tap in (tap for tap in layers if tap.name in by_layer):
            norms_here = by_layer[tap.name][by_layer[tap.name].isfinite()]
            if not (spreads[source.name] > 0 and spreads[tap.name] > 0):
                points.append(tap.name)
            if tap.name in points or not len(norms_here):
                continue
            values = relative_stretch(norms_here, spreads[source.name], spreads[tap.name])
            generator = run.generator(f"relative_stretch{tap.name}")
            rows.append(
                sample_row("relative_stretch", values, tap, generator=generator, kind="lower", level=self.level)
            )
            if tap is last and self.draws and len(values) == len(by_layer[tap.name]):
                arrays["samples/relative_stretch"] = values.numpy()
        if points:
            notes.append(
                f"No relative stretch at {_listed(points)}: all samples are one point there, or where it begins."
            )
        return rows

    def _margin_rows(self, run: Run, arrays: dict[str, np.ndarray], notes: list[str]) -> list[Row]:
        reason = no_margins(run)
        if not self.margins or reason == "there are no labels":
            return []
        if reason is not None:
            notes.append(f"No distances to the boundary: {reason}.")
            return []
        n = min(self.margins, self.passes(run))
        make, task = functools.partial(margin_distances, run), f"{self.name}: margins"
        distances = run.blocks(self, "margins", n, make, task=task, step=samples_at_once(run, 0, most=run.batch))
        if not distances:
            return []
        flat = float(distances["l2"].isinf().double().mean())
        if flat > FLAT:
            notes.append(
                f"No distances to the boundary: {flat:.0%} of the samples have no gradient at all, which says nothing "
                "of how near a wrong answer is. Probabilities that are 0 or 1 to the last digit do that: measure the "
                "logits."
            )
            return []
        rows = []
        for norm, width in box_width(inputs_of(run, n)).items():
            values = distances[norm].clamp_max(width)
            generator, at = run.generator(f"margin_distance{norm}"), {"norm": norm}
            rows.append(
                sample_row("margin_distance", values, at=at, statistic="median", generator=generator, level=self.level)
            )
            if norm == "l2":
                arrays["samples/margin_distance"] = values.numpy()
        return rows

    def _norms_at(self, run: Run, source: Tap, taps: Sequence[Tap], start: int, stop: int) -> dict[str, Tensor]:
        """Jacobian norms at samples ``start … stop - 1``: ``input/l`` and ``previous/l`` of the l-th layer.

        Before the first layer is the input: it has no ``previous``.
        """
        (batch,) = run.data.batches(stop - start, start=start, stop=stop, device=run.device)
        mask = token_mask(batch.inputs)
        norms: dict[str, Tensor] = {}
        with graph(run, [source, *taps], batch.inputs, source) as (_, activations, _):
            layers = [activations[tap.name] for tap in (source, *taps)]
            for index, activation in enumerate(layers[1:]):
                y = valid_tokens(activation, mask)
                origins = {"input": layers[0], "previous": layers[index]} if index else {"input": layers[0]}
                for origin, x in origins.items():
                    key = f"{origin}/{index}"
                    # Its first vector is the sample's own: the result does not depend on who shares the block.
                    first = run.draw(f"lipschitz_from_{key}", start, stop - start, x.shape[1:])
                    norm = local_norm(y, x, start=first, max_iter=self.max_iter, tol=self.tol)
                    if norm is not None:
                        norms[key], norms[key + "/converged"] = norm.value, norm.converged
        return {key: values.cpu() for key, values in norms.items()}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _norms(points: Tensor) -> Tensor:
    """Euclidean norms ``[n]`` of activations ``[n, …]``, a few at a time: squares are added up in float64."""
    flat = points.flatten(1)
    if flat.device.type != "cpu":
        parts = flat.split(max(1, 2**24 // max(1, flat.shape[1])))  # each is widened as a whole
        return torch.cat([torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts]).cpu()
    rows = max(1, min(64, 2**21 // max(1, flat.shape[1])))
    # 16 MB that are used again: fresh ones pile up in the heap.
    wide = flat.new_empty((rows, flat.shape[1]), dtype=torch.float64)
    norms = flat.new_empty(len(flat), dtype=torch.float64)
    for start in range(0, len(flat), rows):
        part = flat[start : start + rows]
        norms[start : start + rows] = torch.linalg.vector_norm(wide[: len(part)].copy_(part), dim=1)
    return norms
