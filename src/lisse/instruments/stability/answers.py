"""What a network's layers make of the views of Stability: distances between their activations and the clean ones."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lisse.data import Batch
from lisse.instruments.stability.views import FieldDraws, Perturbations, Setting
from lisse.maths.given import all_finite, overflow_advice
from lisse.maths.relative_stability import squared_distances
from lisse.recording.store import Store
from lisse.run import Run
from lisse.taps import Tap, feed, prepared, still, tapped

if TYPE_CHECKING:
    from lisse.instruments.stability import Stability

_REFERENCES = 50  # samples z that stand on the other side of the pairs x ≠ z


@dataclass(frozen=True)
class LayerAnswers:
    """Of one layer: squared distances ``[n, settings, fields]``, and to the sample on the other side of a pair ``[n]``.

    For coordinate-wise medians, differences with one more axis instead.
    """

    deformed: Tensor
    noisy: Tensor
    apart: Tensor


@dataclass(frozen=True)
class ViewPass:
    """The views of the first ``n`` samples against the clean pass, at every layer."""

    options: Stability
    run: Run
    views: Perturbations
    settings: Sequence[Setting]
    draws: Sequence[FieldDraws]
    taps: Sequence[Tap]
    n: int
    buffers: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def answers(self) -> list[LayerAnswers]:
        """Of every layer, batch by batch."""
        key, task = ("views", *(tap.name for tap in self.taps)), f"{self.options.name}: views"
        tensors = self.run.blocks(self.options, key, self.n, self._block, task=task)
        return [
            LayerAnswers(*(tensors[f"{side}/{tap.name}"] for side in ("deformed", "noisy", "apart")))
            for tap in self.taps
        ]

    @cached_property
    def references(self) -> Tensor:
        """The samples z, in order."""
        order = torch.randperm(self.n, generator=self.run.generator("stability/references"))
        return order[:_REFERENCES].sort().values

    @property
    def pairs(self) -> Tensor:
        """``[n]``: the sample on the other side of each sample's pair."""
        return self.references[partners(self.references, 0, self.n)]

    def _block(self, start: int, stop: int) -> dict[str, Tensor]:
        """``deformed/…``, ``noisy/…`` ``[b, settings, fields(, d)]`` and ``apart/…`` ``[b(, d)]``, by layer."""
        tensors: dict[str, Tensor] = {}
        opposite = self._reference_activations

        def look(tap: Tap, clean: Tensor, begin: int) -> None:
            rows: Tensor | None = partners(self.references, begin, len(clean))
            activations = opposite[tap.name]
            if activations.device != clean.device:
                activations, rows = activations[rows].to(clean.device), None
            values = self._distances(tap, clean, activations, rows)
            tensors[f"apart/{tap.name}"] = values if values.ndim == 1 else values.cpu()

        reference = None if self.options.interpolation != "gaussian" else self.views.clean_batch
        names = [tap.name for tap in self.taps]
        numbers = self.run.views(
            stop,
            self._views_of,
            self._distances,
            layers=names,
            start=start,
            reference=reference,
            look=look,
            task=None,
            buffers=self.buffers,
        )
        shape = len(self.settings), self.options.fields
        for side, name in itertools.product(("deformed", "noisy"), names):
            columns = [numbers[f"{side}/{index}"][name] for index in range(math.prod(shape))]
            tensors[f"{side}/{name}"] = torch.stack(columns, 1).unflatten(1, shape)
        tensors = {key: values.cpu() for key, values in tensors.items()}
        for tap, side in itertools.product(self.taps, ("apart", "deformed", "noisy")):
            if not all_finite(tensors[f"{side}/{tap.name}"]):
                raise ValueError(
                    f"Stability: activations at {tap.name} must be finite, got NaN or infinity there."
                    f"{overflow_advice(torch.empty(0, dtype=tap.dtype))}"
                )
        return tensors

    def _views_of(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        """The images of a batch with every field and every noise."""
        images, clean = batch.inputs, self.views.clean_batch(batch)
        assert isinstance(images, Tensor)  # fits() has looked
        rows = slice(batch.start, batch.start + len(images))
        combinations = itertools.product(zip(self.settings, self.draws, strict=True), range(self.options.fields))
        for index, ((setting, draws), number) in enumerate(combinations):
            yield (
                f"deformed/{index}",
                self.views.deformed(images, setting, number, batch.start, draws.tries[rows, number]),
            )
            shift = draws.shift
            radius = shift[rows, number] if self.options.radius == "sample" else float(shift.double().mean())
            yield f"noisy/{index}", self.views.noisy(clean, number, batch.start, radius)

    def _distances(self, tap: Tap, clean: Tensor, view: Tensor, rows: Tensor | None = None) -> Tensor:
        if self.options.statistic == "coordinates":
            other = view if rows is None else view[rows.to(view.device)]
            return (clean.float() if clean.dtype != torch.float64 else clean).flatten(1) - other.flatten(1)
        return squared_distances(clean, view, rows=rows)

    @cached_property
    def _reference_activations(self) -> Mapping[str, Tensor]:
        """Clean activations of the references, as many whatever the memory.

        On the device where a quarter of the memory holds them, narrow layers first; the wider ones are in files.
        """
        narrow = narrowest(self.taps, self.run.device_memory // (4 * 4 * len(self.references)))
        make = functools.partial(self._reference_pass, narrow)
        if len(narrow) < len(self.taps):
            return make()
        activations = self.run.piece(self.options, "references", make, lasting=False)
        return {name: values.to(self.run.device) for name, values in activations.items()}

    def _reference_pass(self, narrow: set[str]) -> dict[str, Tensor]:
        activations: dict[str, list[Tensor]] = {}
        files = Store(0)

        def on(tap: Tap, activation: Tensor) -> None:
            if tap.name in narrow:
                activations.setdefault(tap.name, []).append(activation.clone())
            else:
                files.append(tap.name, activation)

        run = self.run
        with still(run.model, statistics=run.statistics, seed=run.seed), tapped(run.model, self.taps, on):
            for batch in run.data.subset(self.references).batches(run.batch, device=run.device):
                feed(run.model, prepared(run.model, self.views.clean_batch(batch)))
        names = [tap.name for tap in self.taps]
        return {name: torch.cat(activations[name]) if name in narrow else files.read(name) for name in names}


def partners(references: Tensor, start: int, count: int) -> Tensor:
    """Which of the ``references`` is opposite each of ``start … start + count - 1``: never the sample itself."""
    samples = torch.arange(start, start + count)
    rows = samples % len(references)
    return torch.where(references[rows] == samples, (rows + 1) % len(references), rows)


def narrowest(taps: Sequence[Tap], budget: int) -> set[str]:
    """The names of the narrowest layers that have no more than ``budget`` numbers together."""
    ordered = sorted(taps, key=lambda tap: tap.numel)
    totals = itertools.accumulate(tap.numel for tap in ordered)
    return {tap.name for tap, total in zip(ordered, totals, strict=True) if total <= budget}
