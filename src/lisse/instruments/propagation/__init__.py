"""Propagation: how tokens move from layer to layer, and what the attention kernel that moves them is like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lisse.instruments.attention import attention_of
from lisse.instruments.propagation.masked import CONSTRUCTIONS, TOGETHER, check_positions, residuals_at, trivial
from lisse.instruments.propagation.numbers import is_key, quantity_at
from lisse.instruments.propagation.reading import LEAST_GROUP, Reading, reading_bytes
from lisse.instruments.propagation.sites import AttentionBlock, Stage, stages_of
from lisse.maths.intervals import Interval, bootstrap
from lisse.maths.power_law import power_law
from lisse.maths.similarity import CKAStream
from lisse.networks.attention import has_attention
from lisse.networks.decoder_frames import decoder_frames
from lisse.networks.masked import holds_masked
from lisse.profile import EVERYTHING, Chart, Headline, Line, Panel, Part, Quantity, Row, Value
from lisse.run import Instrument, Run, level_option, option
from lisse.run.rows import LEAST_SAMPLES, interval_row, value_row
from lisse.taps import Tap

_HEADS = ("attention_distance", "attention_distance_encoder", "attention_distance_decoder")
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

    samples: int = option(200, "most images", quick=40, usual=100, least=1)
    kernels: int = option(8, "of them, those whose kernels and ranks are taken apart", least=0)
    lemma: int = option(8, "of them, those on which Lemma 6.1 is tried (decoders only)", quick=2, least=0)
    radii: tuple[int, ...] = option((1, 2, 4), "radii of the attention nearby, in patches", least=0)
    sides: tuple[int, ...] = option((), "grids (patches per side) for Lemma 6.1's slope in n, three or more")
    ablation: bool = option(False, "also run the network without any skip around attention")
    grid: tuple[int, int] | None = option(None, "rows and columns of the tokens, where they are no square")
    leading: int | None = option(None, "tokens before them that have no place (class tokens)", least=0)
    level: float = level_option()

    STREAMS: ClassVar = True
    CHARTS: ClassVar[tuple[Chart, ...]] = (
        Chart(
            "propagation",
            "What becomes of the tokens along depth",
            "n·ρ is the relative change of the tokens in a layer times the patches per side, which Theorem 5.1 bounds "
            "by a constant. Bands are intervals over images.",
            (
                Panel("n·ρ: attention alone", (Line("scaled_ratio", at={"of": "attention"}),)),
                Panel(
                    "n·ρ: sub-layer with its skip",
                    (
                        Line("scaled_ratio", at={"of": "sublayer"}),
                        Line("scaled_ratio", "without", {"of": "sublayer without skip"}),
                    ),
                ),
                Panel(
                    "n·ρ: block",
                    (
                        Line("scaled_ratio", at={"of": "block"}),
                        Line("scaled_ratio", "no skips anywhere", {"of": "block without skips"}),
                    ),
                ),
                Panel(
                    "norm of tokens",
                    (Line("norm", at={"of": "block"}), Line("variation", "variation", {"of": "block"})),
                ),
                Panel(
                    "attention distance, patches; dots: heads",
                    (
                        Line("attention_distance", at={"over": "mean"}, dots=_HEADS),
                        Line("attention_distance", "of uniform attention", {"over": "uniform"}),
                    ),
                ),
                Panel(
                    "asymmetry of the kernel",
                    (Line("asymmetry", at={"of": "kernel"}), Line("asymmetry", "rows", {"of": "rows"})),
                ),
                Panel(
                    "masked: attention within one patch",
                    (
                        Line("attention_mass", at={"radius": 1, "queries": "masked, unmasked keys"}),
                        Line(
                            "attention_mass", "weights of eq. 25", {"radius": 1, "queries": "masked, weights of (25)"}
                        ),
                        Line("attention_mass", "uniform", {"radius": 1, "queries": "masked, unmasked keys, uniform"}),
                    ),
                ),
                Panel(
                    "masked patches: attention to mask tokens",
                    (
                        Line("mask_mass", at={"queries": "masked"}),
                        Line("span_residual", "output outside the span of eq. 25", {}),
                    ),
                ),
                Panel(
                    "Lemma 6.1: what is lost without mask tokens",
                    (
                        Line("lemma_share", at={"construction": "restricted"}),
                        Line("lemma_share", "their values zeroed", {"construction": "zeroed"}),
                        Line("lemma_share", "convex", {"construction": "simplex"}),
                    ),
                ),
                Panel("CKA", form="matrices", arrays=("similarity",), label="layer (0: what enters the blocks)"),
            ),
        ),
        Chart(
            "frames",
            "The decoder from layer to layer",
            "The decoder from layer to layer: what each one holds of the picture.",
            (Panel(form="images", arrays=("filmstrip/",)),),
            columns=1,
        ),
    )
    QUANTITIES: ClassVar[tuple[Quantity, ...]] = (
        Quantity(
            "scaled_ratio", "n·ρ", "Theorem 5.1 bounds this by a constant: the relative change of a layer times the "
            "patches per side.", r"n\,\|v' - v\| / (\|v\| + |v|_{BV})", "[cao2022] thm. 5.1", "log", "lower",
            headline=Headline(
                "n·ρ", "how much a layer changes its tokens, times the patches per side", prefers={"over": ("mean",)}
            ),
            lead=True,
            invariant=("rotation", "temperature"),
        ),
        Quantity(
            "ratio", "relative change ρ", "How much a layer changes its tokens, relative to their size and variation.",
            r"\rho = \|v' - v\| / (\|v\| + |v|_{BV})", "[cao2022] thm. 5.1", "log", "lower",
            invariant=("rotation", "temperature"),
        ),
        Quantity(
            "change", "change ‖v′ − v‖", "How far the tokens move: root mean square over patches.",
            r"\big(\tfrac1p\sum_i\|v'_i - v_i\|^2\big)^{1/2}", "[cao2022] eq. 16", "log",
            invariant=("rotation", "temperature"),
        ),
        Quantity(
            "norm", "norm ‖v‖", "How large the tokens are: root mean square over patches.",
            r"\big(\tfrac1p\sum_i\|v_i\|^2\big)^{1/2}", "[cao2022] eq. 16", "log",
            invariant=("rotation", "temperature"),
        ),
        Quantity(
            "variation", "variation |v|_BV", "How much neighbouring patches differ, summed over the grid.",
            r"\tfrac1{n^2}\sum_i\big(\sum_{j\in N_i}\tfrac{n^2}2\|v_i - v_j\|^2\big)^{1/2}", "[cao2022] eq. 1", "log",
            invariant=("rotation", "temperature"),
        ),
        Quantity(
            "similarity", "similarity (CKA)", "How alike two layers see the images: 1 up to rotation and scale, 0 if "
            "unrelated.", r"\mathrm{HSIC}(X, Y)/\sqrt{\mathrm{HSIC}(X, X)\,\mathrm{HSIC}(Y, Y)}", "[raghu2021]",
            invariant=EVERYTHING,
        ),
        Quantity(
            "attention_distance", "attention distance", "How many patches away the attention looks on average.",
            r"\tfrac1p\sum_{ij}A_{ij}\|x_i - x_j\|_2", "[cao2022] prop. 6.2", unit="patches", lead=True,
            invariant=EVERYTHING,
        ),
        Quantity(
            "attention_mass", "attention nearby", "Share of the attention within a radius of patches (Chebyshev).",
            r"\tfrac1p\sum_i\sum_{|x_j - x_i|_\infty\le r}A_{ij}", "[cao2022] prop. 6.2",
            invariant=EVERYTHING,
        ),
        Quantity(
            "row_sum_error", "row sum error", "How far a row of the attention matrix is from summing to 1.",
            r"\max_i|\textstyle\sum_jA_{ij} - 1|", "[cao2022] eq. 15", "log", "lower",
            invariant=EVERYTHING,
        ),
        Quantity(
            "asymmetry", "asymmetry", "How far the kernel is from symmetric: 0 symmetric, 1 antisymmetric.",
            r"\|K - K^\top\|_F / 2\|K\|_F", "[cao2022] eq. 13",
            invariant=EVERYTHING,
        ),
        Quantity(
            "offset_defect", "not a convolution", "Share of the mean attention that depends on more than the offset of "
            "two patches.", r"\|\bar A - P\bar A\|_F/\|\bar A\|_F", "[cao2022] eq. 13",
            invariant=EVERYTHING,
        ),
        Quantity(
            "reading_distance", "distance to the RBF reading", "Mean total variation between the rows of the attention "
            "and those of the translation-invariant kernel on the same queries and keys.",
            r"\tfrac1{2p}\sum_{ij}|A_{ij} - A'_{ij}|", "[cao2022] eq. 11-13",
        ),
        Quantity(
            "norm_term", "share of a term of (12)", "Size of ½‖q‖², ½‖k‖² and ½‖q−k‖² among the three.",
            r"qk^\top = \tfrac12qq^\top + \tfrac12kk^\top - \tfrac12(q-k)(q-k)^\top", "[cao2022] eq. 12",
        ),
        Quantity(
            "key_spread", "spread of key norms", "What a softmax sees of the two norm terms of (12): 0 where all keys "
            "are equally long.", r"\mathrm{std}_j\,\|k_j\|^2/2\sqrt d", "[cao2022] eq. 12",
        ),
        Quantity(
            "added_rank", "rank that the FFN adds", "Directions after the block's second half that its first half did "
            "not have.", r"\mathrm{rank}[y; y'] - \mathrm{rank}\,y", "[cao2022] sec. 6",
        ),
        Quantity(
            "mask_mass", "attention to mask tokens", "Share of a decoder's attention that goes to mask tokens.",
            r"a_i = \sum_{j\in M}A_{ij}", "[cao2022] lemma 6.1",
            invariant=EVERYTHING,
        ),
        Quantity(
            "lemma_share", "Lemma 6.1, residual", "What of the output is left when mask tokens are taken out, in five "
            "constructions.", r"\|z_i - \hat z_i\|/\|z_i\|", "[cao2022] lemma 6.1", better="lower",
        ),
        Quantity(
            "lemma_residual", "Lemma 6.1, residual (absolute)", "The same in the units of the values.",
            r"\|z_i - \hat z_i\|", "[cao2022] lemma 6.1", "log", "lower",
        ),
        Quantity(
            "lemma_slope", "Lemma 6.1, slope in n", "Power of n with which the residual changes; the lemma says −1.",
            r"\|z_i - \hat z_i\| \propto n^{b}", "[cao2022] lemma 6.1", better="lower",
        ),
        Quantity(
            "span_residual", "outside the span (25)", "Share of a masked patch's output that no combination of "
            "unmasked values gives: head by head, and with one set of weights for all heads together.",
            r"\|z_i - P_{\mathrm{span}\,v_N}z_i\|/\|z_i\|", "[cao2022] eq. 25", better="lower",
        ),
        Quantity(
            "interpolation_error", "error of (26)",
            "The largest error among masked patches, and what (26) puts beside it.",
            r"\|Rv_i - u_i\|_{BV(\Omega_i)}", "[cao2022] eq. 26", "log", "lower",
        ),
        Quantity(
            "interpolation_constant", "constant of (26)", "The least C for which (26) holds for an image; the paper "
            "gives none.", r"\max_{i\in M}\|e_i\| / (\max_{j\in N}\|e_j\| + \|u\|/n)", "[cao2022] eq. 26",
        ),
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sides and (len(set(self.sides)) < 3 or not _integers(self.sides, least=2)):
            raise ValueError(
                f"Propagation: sides must be three or more different grids of at least 2, got {self.sides}. A slope "
                "needs three points: sides=(4, 8, 16)."
            )
        if self.grid is not None and (len(self.grid) != 2 or not _integers(self.grid, least=1)):
            raise ValueError(
                f"Propagation: grid must be (rows, columns), got {self.grid}. Each is a whole number of at least 1."
            )

    def fits(self, run: Run) -> str | None:
        """Any network with attention on tokens."""
        if not has_attention(run.model) and not holds_masked(run.model):
            card = getattr(run.model, "lisse", None)
            name = getattr(card, "name", None) or type(run.model).__name__
            return f"it reads attention, and {name} has none that lisse knows."
        if not holds_masked(run.model):
            _, sites, reasons = attention_of(run)
            words = " ".join(reasons[:3]) or "what is called so gives no weights from tokens to tokens."
            return None if sites else f"no attention can be read: {words}"
        return None

    SPARES: ClassVar[str] = "Give a smaller --batch, or fewer kernels= and lemma=."

    def bytes(self, run: Run) -> int:
        """The attention of a batch in a few copies, the grid's distances, and the images that wait for their group."""
        try:
            stages, _ = self._stages(run)
        except ValueError:  # as the part will say
            return 0
        return max((reading_bytes(self, run, stage, run.take(self.samples)) for stage in stages), default=0)

    def passes(self, run: Run) -> int:
        """All samples; a masked autoencoder is read in passes of its own."""
        return 0 if holds_masked(run.model) else run.take(self.samples)

    def own_taps(self, run: Run) -> list[Tap] | None:
        """The ends of blocks, and what is in them; calls of attention are seen in the forward alone."""
        try:
            stages, _ = self._stages(run)
        except ValueError:  # as the part will say
            return []
        if any(layer.source in ("call", "softmax") for stage in stages for layer in stage.layers):
            return None
        return [tap for stage in stages for tap in stage.taps]

    def _stages(self, run: Run) -> tuple[list[Stage], list[str]]:
        """The stages of a run's model, and what is to say of them."""

        def search() -> tuple[list[Stage], list[str]]:
            notes: list[str] = []
            return stages_of(run, self.grid, self.leading, notes), notes

        return run.once(repr(self), search)

    def part(self, run: Run) -> Part:
        """Measure."""
        n = run.take(self.samples)
        notes = [] if n >= LEAST_SAMPLES else [f"{n} samples are too few for intervals."]
        rows: list[Row] = []
        arrays: dict[str, np.ndarray] = {}
        stages, reasons = self._stages(run)
        notes += reasons
        if n >= LEAST_SAMPLES:
            notes += self._without_interval(n, any(stage.part == "decoder" for stage in stages))
        if self.sides and stages[-1].part == "decoder":
            check_positions(stages[-1])  # before hours of reading, not after
        for stage in stages:
            reading = Reading(self, run, stage, n)
            task = f"{self.name}: {stage.part}" if stage.part else self.name
            numbers = run.blocks(self, reading.key, n, reading.block, task=task, waiting=reading.queue)
            groups = numbers.pop("similarity")
            stream = CKAStream.of(groups)
            layers = _by_layer(numbers, len(stage.layers))
            similarity = stream.value() if stream.batches else torch.full(groups.shape[1:], torch.nan)
            tables = {"similarity": similarity.numpy(), **_by_head(layers)}
            rows += self._rows(run, stage, layers)
            rows += _uniform(reading, layers, tables)
            if stream.batches:
                rows += self._similarities(run, stage, stream, n)
            notes += self._notes(stage, stream.batches, reading.group, n)
            arrays |= {f"{name}_{stage.part}" if stage.part else name: table for name, table in tables.items()}
            if self.sides and stage.part == "decoder":
                rows += self._slopes(run, stage)
        if self.sides and stages[-1].part != "decoder":
            notes.append("No slope in n: it is taken on the decoder of a masked autoencoder.")
        rows.sort(key=_headline)
        names = {row.quantity for row in rows}
        part = self.part_of(rows, dict.fromkeys(notes), arrays)
        return replace(part, quantities=tuple(quantity for quantity in self.QUANTITIES if quantity.name in names))

    def pictures(self, run: Run) -> dict[str, np.ndarray]:
        """The decoder of a masked autoencoder: the first image, what is visible (grey: hidden), then every layer."""
        (batch,) = run.data.batches(1, stop=1)
        if not holds_masked(run.model) or not isinstance(batch.inputs, Tensor):
            return {}
        film = decoder_frames(run.model, batch.inputs[0], seed=run.seed)
        strip = torch.cat([film.image[None], film.visible.nan_to_num(0.75)[None], film.frames])
        title = "filmstrip/the image, what is visible, the decoder layer by layer"
        return {title: strip[None].float().cpu().clamp(0, 1).numpy()}

    def _without_interval(self, n: int, decoder: bool) -> list[str]:
        """What is taken on fewer images than an interval needs, though it was asked for."""
        few = [("kernels", "Kernels and ranks", self.kernels), ("lemma", "Lemma 6.1", self.lemma)]
        return [
            f"{label}: {min(count, n)} image{'s are' if min(count, n) > 1 else ' is'} too few for intervals. They need "
            f"{name}={LEAST_SAMPLES} or more."
            for name, label, count in few[: 2 if decoder else 1]
            if 0 < count < LEAST_SAMPLES
        ]

    def _notes(self, stage: Stage, groups: int, size: int, n: int) -> list[str]:
        """What is to say of a stage's similarity, and of (25) in a decoder."""
        notes = []
        if stage.part == "decoder" and stage.network is not None and self.lemma:
            for layer in stage.layers:
                heads, width, _ = layer.site.weights.value.shape
                notes += trivial(heads, width, layer.leading + stage.network.visible_count())
        if not groups:
            notes.append(f"No similarity: it needs {LEAST_GROUP} samples, got {n}.")
        elif 0 < n % size < LEAST_GROUP:
            notes.append(
                f"similarity: the last {n % size} of {n} samples are left out, for it is taken in groups of {size}."
            )
        if LEAST_SAMPLES > groups > 0 and n >= LEAST_SAMPLES:
            notes.append(
                f"similarity has no interval: {n} samples make {groups} groups of {size}, and it needs {LEAST_SAMPLES} "
                f"({LEAST_SAMPLES * LEAST_GROUP} samples)."
            )
        return notes

    # -- rows ------------------------------------------------------------------------------------------------------

    def _rows(self, run: Run, stage: Stage, layers: Sequence[Mapping[str, Tensor]]) -> list[Row]:
        """One row per layer and key: the mean over images, all bootstrapped with the same resamples."""
        # Rows of all heads together have a table of their own (with the same resamples): ties are counted after
        # rounding, which depends on the place in the table, so that columns between the others would move their ends.
        groups: dict[tuple[int, bool], list[tuple[AttentionBlock, str, Tensor]]] = {}
        for layer, numbers in zip(stage.layers, layers, strict=True):
            for name, values in numbers.items():
                if is_key(name):
                    groups.setdefault((-len(values), TOGETHER in name), []).append((layer, name, values))
        rows = []
        for (minus, _), columns in sorted(groups.items(), key=lambda group: group[0]):
            table = torch.stack([values for _, _, values in columns], 1)
            ends = None
            if -minus >= LEAST_SAMPLES:
                generator = run.generator(f"propagation {stage.part} {-minus}")
                ends = bootstrap(table, level=self.level, generator=generator)
            for index, (layer, name, values) in enumerate(columns):
                quantity, at = quantity_at(name)
                # A kernel that is one and the same for all images is exact, and a degenerate bootstrap says nothing.
                if ends is None or quantity == "row_sum_error" or float(values.max() - values.min()) == 0:
                    value = values.max() if quantity == "row_sum_error" else values.mean()
                    rows.append(value_row(quantity, value, "exact", -minus, layer, at))
                else:
                    interval = Interval(values.mean(), ends.low[index], ends.high[index], -minus, self.level)
                    rows.append(interval_row(quantity, interval, "estimate", -minus, layer, at))
        order = {quantity.name: index for index, quantity in enumerate(self.QUANTITIES)}
        return sorted(rows, key=lambda row: (order[row.quantity], row.depth or 0.0))

    def _similarities(self, run: Run, stage: Stage, stream: CKAStream, n: int) -> list[Row]:
        """CKA of every layer with the one before it and with the first."""
        table, replicates = stream.value(), None
        if n >= LEAST_SAMPLES and stream.batches >= LEAST_SAMPLES:
            generator = run.generator(f"propagation similarity {stage.part}")
            picks = torch.randint(stream.batches, (_RESAMPLES, stream.batches), generator=generator)
            replicates = torch.stack([stream.value(batches=pick.tolist()) for pick in picks])
        rows = []
        for index, layer in enumerate(stage.layers, 1):
            for other in dict.fromkeys((index - 1, 0)):
                value, at = table[index, other], {"pair": "neighbours" if other == index - 1 else "first"}
                if replicates is None:
                    rows.append(value_row("similarity", value, "heuristic", n, layer, at))
                    continue
                tail = (1 - self.level) / 2
                low, high = torch.quantile(replicates[:, index, other], torch.tensor([tail, 1 - tail]).to(replicates))
                interval = Interval(value, torch.minimum(value, low), torch.maximum(value, high), n, self.level)
                rows.append(interval_row("similarity", interval, "estimate", n, layer, at))
        return rows

    def _slopes(self, run: Run, stage: Stage) -> list[Row]:
        """The power of n with which the residuals of Lemma 6.1 change, from the same images at several sizes."""
        count = run.take(max(2, self.lemma))
        residuals = [
            run.piece(self, ("side", side), partial(residuals_at, run, stage, side, count))["residuals"]
            for side in self.sides
        ]
        x, y = (
            torch.tensor([float(side) for side in self.sides]),
            torch.stack(residuals),
        )  # sides, layers, constructions
        rows = []
        for index, layer in enumerate(stage.layers):
            for name, points in zip(CONSTRUCTIONS, y[:, index].unbind(1), strict=True):
                if float(points.min()) > 1e-9:  # least squares reaches zero: there is no power of nothing
                    slope = power_law(x, points, level=self.level).slope
                    at: dict[str, Value] = {"construction": name, "sides": len(self.sides)}
                    rows.append(interval_row("lemma_slope", slope, "estimate", count, layer, at))
        return rows


def _by_layer(numbers: Mapping[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    """What was read of each layer."""
    layers: list[dict[str, Tensor]] = [{} for _ in range(count)]
    for label, values in numbers.items():
        index, _, name = label.partition(" ")
        layers[int(index)][name] = values
    return layers


def _by_head(layers: Sequence[Mapping[str, Tensor]]) -> dict[str, np.ndarray]:
    """Means over images of what was read head by head, ``[layers, M, …]``."""
    names = dict.fromkeys(name for numbers in layers for name in numbers if name.startswith("attention_"))
    return {name: _stacked([numbers[name].mean(0).numpy() for numbers in layers if name in numbers]) for name in names}


def _uniform(reading: Reading, layers: Sequence[Mapping[str, Tensor]], tables: dict[str, np.ndarray]) -> list[Row]:
    """What uniform attention would give, once per layer: rows, and every radius among the ``tables``."""
    rows, masses, radii = [], [], []
    for layer, numbers in zip(reading.stage.layers, layers, strict=True):
        if "attention_mass" not in numbers:
            continue
        lengths, counts = numbers["lengths"].unique(return_counts=True)
        sums = [k * reading.rings_of(layer, int(length)).uniform for length, k in zip(lengths, counts, strict=True)]
        even, rings = (torch.stack(sums).sum(0) / counts.sum()).tolist(), reading.rings_of(layer)
        rows.append(value_row("attention_distance", even[0], "exact", 0, layer, {"over": "uniform"}))
        for radius in rings.radii:
            at: dict[str, Value] = {"radius": radius, "over": "uniform"}
            rows.append(value_row("attention_mass", even[rings.column(radius)], "exact", 0, layer, at))
        masses.append(np.asarray(even[1:]))
        radii.append(np.asarray(rings.every))
    if masses:
        tables |= {"attention_mass_uniform": _stacked(masses), "attention_mass_radii": _stacked(radii)}
    return rows


def _stacked(tables: list[np.ndarray]) -> np.ndarray:
    """One entry per layer; NaN where layers have fewer heads or a smaller grid than others."""
    shape = tuple(max(sizes) for sizes in zip(*(table.shape for table in tables), strict=True))
    stack = np.full((len(tables), *shape), np.nan)
    for entry, table in zip(stack, tables, strict=True):
        entry[tuple(slice(size) for size in table.shape)] = table
    return stack


def _headline(row: Row) -> int:
    """Place among the rows: first what a table has room for, one reading of each kind of number."""
    at = dict(row.at)
    return _HEADLINES.index(at) if at in _HEADLINES else len(_HEADLINES)


def _integers(values: Sequence[object], least: int) -> bool:
    return all(isinstance(value, Integral) and int(value) >= least for value in values)
