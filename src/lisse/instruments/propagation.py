"""Propagation: how tokens move from layer to layer, and what the attention kernel that moves them is like."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lisse.instruments.propagation_layers import Key, key
from lisse.instruments.propagation_masked import (
    CONSTRUCTIONS,
    TOGETHER,
    hidden_patches,
    lemma,
    movable,
    resized,
    with_side,
)
from lisse.instruments.propagation_quantities import QUANTITIES
from lisse.instruments.propagation_reading import LEAST_CHUNK, LEAST_SAMPLES, Reading
from lisse.instruments.propagation_sites import Layer, Stage, stages_of
from lisse.maths.intervals import bootstrap
from lisse.maths.power_law import power_law
from lisse.maths.similarity import CKAStream
from lisse.networks.attention_heads import heads_of
from lisse.networks.attention_sites import has_attention
from lisse.networks.masked import MaskedDecoder, holds_masked, normalised
from lisse.profile import Kind, Part, Quantity, Row, Value
from lisse.run import Instrument, Run
from lisse.taps import Tap, feed, prepared, still, tapped

_QUICK = 32
# Coordinates whose rows come first.
_HEADLINES: tuple[dict[str, Value], ...] = (
    {"of": "block"}, {"pair": "neighbours"}, {"over": "mean"}, {"of": "kernel"}, {"of": "attention"},
    {"of": "sublayer"},
)  # fmt: skip
_RESAMPLES = 200  # of the similarity, whose every resample is a table of all pairs


@dataclass(frozen=True)
class Propagation(Instrument):
    """Per attention block: the two sides of Theorem 5.1, the kernel, how far it looks, and what mask tokens do.

    Works on Transformers over patches or words. Class tokens are found and left out. A masked autoencoder is read in
    two passes: its encoder with every patch in view, its decoder with patches hidden.
    """

    samples: int = field(default=200, metadata={"help": "most images"})
    kernels: int = field(default=8, metadata={"help": "of them, those whose kernels and ranks are taken apart"})
    lemma: int = field(default=8, metadata={"help": "of them, those on which Lemma 6.1 is tried (decoders only)"})
    radii: tuple[int, ...] = field(default=(1, 2, 4), metadata={"help": "radii of the attention nearby, in patches"})
    sides: tuple[int, ...] = field(
        default=(), metadata={"help": "grids (patches per side) for Lemma 6.1's slope in n, three or more"}
    )
    ablation: bool = field(default=False, metadata={"help": "also run the network without any skip around attention"})
    grid: tuple[int, int] | None = field(
        default=None, metadata={"help": "rows and columns of the tokens, where they are no square"}
    )
    leading: int | None = field(default=None, metadata={"help": "tokens before them that have no place (class tokens)"})
    level: float = field(default=0.95, metadata={"help": "confidence level of the intervals"})
    quick: bool = field(default=False, metadata={"help": f"at most {_QUICK} samples, no intervals"})

    QUANTITIES: ClassVar[tuple[Quantity, ...]] = QUANTITIES

    def __post_init__(self) -> None:
        for name, least in (("samples", 1), ("kernels", 0), ("lemma", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"Propagation: {name} must be at least {least}, got {getattr(self, name)}.")
        if not 0 < self.level < 1:
            raise ValueError(f"Propagation: level must lie in (0, 1), got {self.level}.")
        if any(not _whole(radius) or radius < 0 for radius in self.radii):
            raise ValueError(
                f"Propagation: radii must not be negative, and whole numbers, got {self.radii}. Use (1, 2, 4) patches."
            )
        if self.sides and (
            not all(_whole(side) for side in self.sides) or len(set(self.sides)) < 3 or min(self.sides) < 2
        ):
            raise ValueError(
                f"Propagation: sides must be three or more different grids of at least 2, got {self.sides}. A slope "
                "needs three points: sides=(4, 8, 16)."
            )
        if self.grid is not None and (
            len(self.grid) != 2 or not all(_whole(side) for side in self.grid) or min(self.grid) < 1
        ):
            raise ValueError(
                f"Propagation: grid must be (rows, columns), got {self.grid}. Each is a whole number of at least 1."
            )
        if self.leading is not None and self.leading < 0:
            raise ValueError(f"Propagation: leading must not be negative, got {self.leading}. A class token is one.")

    def fits(self, run: Run) -> str | None:
        """Any network with attention on tokens."""
        if not has_attention(run.model) and not holds_masked(run.model):
            card = getattr(run.model, "lisse", None)
            name = getattr(card, "name", None) or type(run.model).__name__
            return f"it reads attention, and {name} has none that lisse knows."
        return None

    def part(self, run: Run) -> Part:
        """Measure."""
        notes: list[str] = []
        arrays: dict[str, np.ndarray] = {}
        rows: list[Row] = []
        n = run.take(min(self.samples, _QUICK) if self.quick else self.samples)
        interval = not self.quick and n >= LEAST_SAMPLES
        if not self.quick and not interval:
            notes.append(f"{n} samples are too few for intervals.")
        stages = stages_of(run, self.grid, self.leading, notes)
        if interval:
            notes += self._without_interval(n, any(stage.part == "decoder" for stage in stages))
        for stage in stages:
            if self.sides and stage.part == "decoder" and stage.network is not None:
                movable(stage.network)  # before hours of reading, not after
        for stage in stages:
            reading = Reading(self, run, stage, n, notes)
            found = reading.through()
            rows += self._rows(run, stage, found, interval)
            rows += reading.fixed
            suffix = f"_{stage.part}" if stage.part else ""
            similar, table = self._similar(run, stage, reading.stream, interval, n)
            rows += similar
            if not reading.stream.batches:
                notes.append(f"No similarity: it needs {LEAST_CHUNK} samples, got {n}.")
            elif interval and reading.stream.batches < LEAST_SAMPLES:
                notes.append(
                    f"similarity has no interval: {n} samples make {reading.stream.batches} groups of {reading.chunk}, "
                    f"and it needs {LEAST_SAMPLES} ({LEAST_SAMPLES * LEAST_CHUNK} samples)."
                )
            arrays[f"similarity{suffix}"] = table
            for name, by_layer in reading.by_head.items():
                arrays[f"{name}{suffix}"] = _stacked([by_layer[place] for place in sorted(by_layer)])
            if self.sides and stage.part == "decoder":
                rows += self._slopes(run, stage)
        if self.sides and not any(row.quantity == "lemma_slope" for row in rows):
            notes.append("No slope in n: it is taken on the decoder of a masked autoencoder.")
        rows.sort(key=_headline)
        used = {row.quantity for row in rows}
        told = tuple(quantity for quantity in self.QUANTITIES if quantity.name in used)
        return Part(self.name, tuple(rows), told, tuple(dict.fromkeys(notes)), arrays)

    def _without_interval(self, n: int, decoder: bool) -> list[str]:
        """What is taken on fewer images than an interval needs, though it was asked for."""
        few = [("kernels", "Kernels and ranks", self.kernels), ("lemma", "Lemma 6.1", self.lemma)]
        return [
            f"{what}: {min(count, n)} image{'s are' if min(count, n) > 1 else ' is'} too few for intervals. They need "
            f"{name}={LEAST_SAMPLES} or more."
            for name, what, count in few[: 2 if decoder else 1]
            if 0 < count < LEAST_SAMPLES
        ]

    # -- rows ------------------------------------------------------------------------------------------------------

    def _rows(self, run: Run, stage: Stage, found: list[dict[Key, Tensor]], interval: bool) -> list[Row]:
        """One row per layer and key: the mean over images, all bootstrapped with the same resamples."""
        entries = [
            (layer, name, values)
            for layer, one in zip(stage.layers, found, strict=True)
            for name, values in one.items()
        ]
        # Rows of all heads together have a table of their own (with the same resamples): ties are counted after
        # rounding, which depends on the place in the table, so that columns between the others would move their ends.
        groups: dict[tuple[int, bool], list[tuple[Layer, Key, Tensor]]] = {}
        for entry in entries:
            apart = any(TOGETHER in str(coordinate) for _, coordinate in entry[1][1])
            groups.setdefault((-len(entry[2]), apart), []).append(entry)
        rows = []
        for (minus, _), some in sorted(groups.items(), key=lambda group: group[0]):
            count = -minus
            table = torch.stack([values for _, _, values in some], 1).double()
            ends = None
            if interval and count >= LEAST_SAMPLES:
                ends = bootstrap(table, level=self.level, generator=run.generator(f"propagation {stage.part} {count}"))
            for place, (layer, (quantity, at), values) in enumerate(some):
                exact = quantity == "row_sum_error"
                value = float(values.max()) if exact else float(values.mean())
                # A kernel that is one and the same for all images is exact, and a degenerate bootstrap says nothing.
                sure = ends is None or exact or float(values.max() - values.min()) == 0
                bounds = (
                    {} if sure or ends is None else {"low": float(ends.low[place]), "high": float(ends.high[place])}
                )
                kind: Kind = "exact" if sure else "estimate"
                rows.append(Row(quantity, value, kind, count, layer.name, layer.depth, at=dict(at), **bounds))
        order = {quantity.name: place for place, quantity in enumerate(self.QUANTITIES)}
        return sorted(rows, key=lambda row: (order[row.quantity], row.depth or 0.0))

    def _similar(
        self, run: Run, stage: Stage, stream: CKAStream, interval: bool, n: int
    ) -> tuple[list[Row], np.ndarray]:
        """CKA of every layer with the one before it and with the first; the table of all pairs, input first."""
        count = len(stage.layers) + 1
        if not stream.batches:
            return [], np.full((count, count), np.nan)
        table = stream.value()
        drawn = None
        if interval and stream.batches >= LEAST_SAMPLES:
            generator = run.generator(f"propagation similarity {stage.part}")
            picks = torch.randint(stream.batches, (_RESAMPLES, stream.batches), generator=generator)
            drawn = torch.stack([stream.value(batches=pick.tolist()) for pick in picks])
        rows = []
        for place, layer in enumerate(stage.layers, 1):
            for other in dict.fromkeys((place - 1, 0)):
                value = float(table[place, other])
                at: dict[str, Value] = {"pair": "neighbours" if other == place - 1 else "first"}
                bounds = {}
                if drawn is not None:
                    tail = (1 - self.level) / 2
                    low, high = torch.quantile(drawn[:, place, other], torch.tensor([tail, 1 - tail]).to(drawn))
                    bounds = {"low": min(value, float(low)), "high": max(value, float(high))}
                kind: Kind = "estimate" if bounds else "heuristic"
                rows.append(Row("similarity", value, kind, n, layer.name, layer.depth, at=at, **bounds))
        return rows, table.numpy()

    # -- Lemma 6.1 on several grids --------------------------------------------------------------------------------

    def _slopes(self, run: Run, stage: Stage) -> list[Row]:
        """The power of n with which the residuals change, layer by layer, from the same images at several sizes."""
        assert stage.network is not None
        count = run.take(max(2, self.lemma))
        (batch,) = list(run.data.batches(count, stop=count, device=run.device))
        images = prepared(run.model, batch.inputs)
        points: dict[tuple[int, str], list[float]] = {}
        places = {layer.site.entry: place for place, layer in enumerate(stage.layers)}
        for side in self.sides:
            network = with_side(stage.network, side)
            noise = run.draw(f"propagation side {side}", 0, count, (side * side,), law="uniform")
            hidden = hidden_patches(network, noise)
            other = MaskedDecoder(network).eval()
            seen: dict[int, Tensor] = {}

            def on(tap: Tap, value: Tensor, seen: dict[int, Tensor] = seen) -> None:
                seen[places[tap]] = value.clone()

            with still(other, seed=run.seed), tapped(other, places, on):
                feed(other, (normalised(run.model, resized(images, network.size)), noise))
                for place, entry in seen.items():
                    residuals = lemma(heads_of(other, stage.layers[place].site, entry), hidden, 1)
                    for name in CONSTRUCTIONS:
                        mean = float(residuals[key("lemma_residual", construction=name)].mean())
                        points.setdefault((place, name), []).append(mean)
        rows = []
        x = torch.tensor([float(side) for side in self.sides])
        for (place, name), y in points.items():
            if min(y) <= 1e-9:  # least squares reaches zero: there is no power of nothing
                continue
            law, layer = power_law(x, torch.tensor(y), level=self.level), stage.layers[place]
            slope = law.slope
            rows.append(
                Row(
                    "lemma_slope", float(slope.value), "estimate", count, layer.name, layer.depth,
                    float(slope.low), float(slope.high), {"construction": name, "sides": len(self.sides)},
                )
            )  # fmt: skip
        return rows


def _whole(value: object) -> bool:
    return isinstance(value, Integral)


def _headline(row: Row) -> int:
    """Place among the rows: first what a table has room for, one reading of each kind of number."""
    at = dict(row.at)
    return _HEADLINES.index(at) if at in _HEADLINES else len(_HEADLINES)


def _stacked(tables: list[np.ndarray]) -> np.ndarray:
    """One entry per layer; NaN where layers have fewer heads or a smaller grid than others."""
    shape = tuple(max(sizes) for sizes in zip(*(table.shape for table in tables), strict=True))
    found = np.full((len(tables), *shape), np.nan)
    for one, table in zip(found, tables, strict=True):
        one[tuple(slice(size) for size in table.shape)] = table
    return found
