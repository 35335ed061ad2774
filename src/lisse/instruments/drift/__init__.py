"""Drift: two networks that should agree, layer by layer: which parts first, and is it more than noise."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lisse.data import as_dataset
from lisse.instruments.drift.likeness import CLOUD, COMPARED, FEW_TOKENS
from lisse.instruments.drift.parts import (
    LEAST_TESTED,
    chances,
    culprits,
    effects,
    inside,
    modules_in_words,
    own_differences,
    side_of,
)
from lisse.instruments.drift.passes import ORDERS, attention_differences, layer_differences, singles, swaps
from lisse.instruments.drift.words import Finding, sentence
from lisse.maths.drift import floor_of
from lisse.models import load_model
from lisse.networks.recorded import Recorded
from lisse.profile import Chart, Line, Panel, Part, Profile, Quantity, Row, Value
from lisse.progress import Bar, Listener
from lisse.run import Instrument, Order, Run, RunPair, level_option, option, profile_of_pair
from lisse.run.pair import autocast_of, recorded_dtype
from lisse.run.rows import At, Layer, clouds_row, largest_row, sample_row, value_row
from lisse.taps import Tap, is_shortage

#: Numbers of clouds: their key, the quantity, its coordinates.
CLOUDS: tuple[tuple[str, str, dict[str, Value]], ...] = (
    ("cka", "cka", {}),
    ("aligned", "aligned", {}),
    ("holes0", "topology_change", {"dim": 0}),
    ("holes1", "topology_change", {"dim": 1}),
)


_NO_BLOCKS = ("input", "stem", "output")


@dataclass(frozen=True)
class Drift(Instrument):
    """Two networks beside each other: what each layer adds to their difference and what it inherits, above noise.

    The noise is that of the first network beside itself, under another batch size and in another precision. A layer
    parts where what it adds on the same input is above the margin times the largest noise in more samples than chance
    gives, corrected for how many layers there are, and the answers differ by more than noise.
    """

    samples: int = option(200, "samples to look at", quick=40, usual=100, least=1)
    noise: int = option(64, "samples by which noise is measured", quick=24, usual=48, least=1)
    swaps: int = option(64, "samples on which layers are swapped", quick=24, usual=48, least=1)
    margin: float = option(3.0, "times the largest noise that counts as more than noise", above=0)
    likeness: bool = option(True, "also compare attention, and clouds: similarity, holes, tokens", quick=False)
    alone: bool = option(False, "put each layer of B into A alone, and measure the change of the answer")
    level: float = level_option()

    SIDES: ClassVar = 2
    LEFT_OUT: ClassVar = {"quick": "Left out: how alike attention and clouds of samples are; it is without --quick."}
    CHARTS: ClassVar[tuple[Chart, ...]] = (
        Chart(
            "drift",
            "Where two networks part",
            "What a layer adds on the same input, the difference that has gathered up to there, and the noise of one "
            "network against itself.",
            (
                Panel(
                    "relative to the activations",
                    (
                        Line("drift", "gathered", {}),
                        Line("injected", "added by the layer", {}, look="bars"),
                        Line("noise_floor", "noise", {}, look="floor"),
                    ),
                ),
            ),
            apart=True,
            lead=True,
        ),
    )
    QUANTITIES: ClassVar[tuple[Quantity, ...]] = (
        Quantity(
            "drift", "relative difference",
            "How far a sample's activations in B are from those in A, relative to their size.",
            r"\|b - a\| / \|a\|", scale="log", better="lower",
        ),
        Quantity(
            "injected", "added by the layer",
            "What the layer of B adds to the difference on the input that A's layer got.",
            r"\|B_l(a) - A_l(a)\| / \|A_l(a)\|", scale="log", better="lower",
        ),
        Quantity(
            "inherited", "inherited",
            "What the layer of B makes of the difference that arrived; with what it adds, the difference behind it.",
            r"\|B_l(b) - B_l(a)\| / \|A_l(a)\|", scale="log", better="lower",
        ),
        Quantity(
            "noise_floor", "noise",
            "The largest that a layer of A itself adds where it is computed otherwise (batch size, kernels, "
            "precision), times the margin.",
            r"m \max_i \|A'_l(a_i) - A_l(a_i)\| / \|A_l(a_i)\|", scale="log",
        ),
        Quantity(
            "parting", "p of parting",
            "The chance of as many samples above the noise, were B no more than that, corrected for all layers.",
            reference="[balakrishnan2006]", scale="log",
        ),
        Quantity(
            "output_share", "share of the output's change",
            "The share of the change of the answer that comes with this layer, while layers are swapped one by one.",
            r"\langle z_j - z_{j-1}, z_k - z_0\rangle / \|z_k - z_0\|^2",
        ),
        Quantity("part_effect", "change by a part alone",
                 "The relative change of A's answer where of this layer one part alone is B's.", scale="log"),
        Quantity("alone", "change by the layer alone",
                 "The relative change of A's answer where this layer alone is B's.", scale="log"),
        Quantity("prediction_divergence", "divergence of predictions",
                 "Kullback-Leibler divergence of B's predictions from A's.", r"\sum_c p_c\log(p_c/q_c)", scale="log",
                 better="lower"),
        Quantity("changed_decisions", "changed decisions", "The share of answers whose largest logit is another one.",
                 better="lower"),
        Quantity(
            "first_parting", "first layer that parts",
            "The first layer that parts, by its share of the change of the answer; its part is the coordinate.",
        ),
        Quantity("cosine", "cosine", "The cosine of the angle between a sample's activations in A and B.",
                 r"\langle a, b\rangle / \|a\|\|b\|", better="higher", neutral=1.0),
        Quantity(
            "aligned", "difference after rotation and scale",
            "What is left of the difference of tokens or pixels after the best rotation and scale.",
            r"\min_{s,R}\|Y - sXR\| / \|Y\|", "[schonemann1966]", better="lower",
        ),
        Quantity("cka", "similarity (CKA)", "Linear centred kernel alignment of clouds of twenty samples, unbiased.",
                 reference="[kornblith2019]", better="higher", neutral=1.0),
        Quantity(
            "topology_change", "change of the diagram",
            "W1 between the persistence diagrams of a cloud in A and in B, over that to a diagram without bars.",
            r"W_1(D_A, D_B) / W_1(D_A, \emptyset)", better="lower",
        ),
        Quantity(
            "token_distance", "between tokens as measures",
            "W_p between the tokens of a sample in A and in B as measures, over their mean norm in A.",
            r"W_p(\mu_A, \mu_B) / \overline{\|x\|}", scale="log", better="lower",
        ),
        Quantity(
            "attention_change", "change of attention",
            "How much of its attention a query gives to other keys, the mean of heads and queries.",
            r"\frac12 \sum_j |A_{ij} - B_{ij}|", better="lower",
        ),
    )  # fmt: skip

    def seconds(self, per_sample: float, layers: int, n: int) -> float:
        """Three forwards of each sample, nine of each for noise, and two per layer that parts."""
        return per_sample * (3 * min(self.samples, n) + 9 * min(self.noise, n) + 2 * layers * min(self.swaps, n))

    def fits_pair(self, pair: RunPair) -> str | None:
        """Most blocks of one must stand for blocks of the other, of the same shapes, and both read the same."""
        data = [run.data.tensor_fingerprint() for run in (pair.a, pair.b)]
        if data[0] != data[1]:
            return "the two read the same text as other tokens, so that no layer can be compared with another."
        counts = [len([tap for tap in run.taps if tap.role not in _NO_BLOCKS]) for run in (pair.a, pair.b)]
        alike = len([layer for layer in pair.alike if layer.role not in _NO_BLOCKS])
        if 2 * alike > max(counts):
            return None
        return f"{alike} of {max(counts)} blocks of one stand for blocks of the other: too few to say where they part."

    def part(self, run: Run) -> Part:
        """One network is no pair: see :meth:`part_of_pair`."""
        return self.part_of((), ["It looks at two networks beside each other."])

    def part_of_pair(self, pair: RunPair) -> Part:
        """Measure."""
        n = pair.take(self.samples)
        notes = list(pair.notes)
        taps = [getattr(layer, side) for layer in pair.layers for side in ("a", "b")]
        step = pair.step(taps, copies=2)
        if self.likeness and step > CLOUD:
            step -= step % CLOUD  # no sample of a cloud is left over
        numbers = pair.blocks(self, "layers", n, functools.partial(layer_differences, pair, full=self.likeness), step)
        floors, kinds = self._floors(pair, notes)
        rows = list(self._layer_rows(pair, numbers, floors, n))
        notes += _nonfinite(pair, numbers)
        finding, p = self._finding(pair, numbers, floors, n, notes)
        rows += [value_row("parting", chance, "estimate", n, _spot(pair, name)) for name, chance in p.items()]
        share = largest = None
        if finding.first is not None and finding.output_parts:
            shares = self._shares(pair, finding, notes)
            first = [row for row in shares if row.layer == finding.first]
            share = next((row for row in first if row.at["order"] == "both"), first[0] if first else None)
            alike = [row for row in shares if row.layer and share and row.at["order"] == share.at["order"]]
            largest = max(alike, key=lambda row: row.value, default=None)
            parts, effect = self._part(pair, finding.first, kinds, notes)
            rows += [*shares, *effect, self._first_row(pair, finding.first, parts, share, n)]
            finding = replace(finding, parts=parts)
        rows += self._attention_rows(pair) if self.likeness else []
        if self.alone and pair.is_live("a") and pair.is_live("b"):
            count = pair.take(self.swaps)
            values = pair.blocks(self, "alone", count, lambda start, stop: singles(pair, start, stop), pair.step(taps))
            for layer in pair.alike:
                rows += self._row(pair, f"alone {layer.name}", "alone", values[f"alone/{layer.name}"], layer)
        drift = next((row for row in rows if row.quantity == "drift" and row.layer == pair.output), None)
        order = [quantity.name for quantity in self.QUANTITIES]
        rows.sort(key=lambda row: order.index(row.quantity))
        words = sentence(pair.names, finding, share, drift, largest)
        return self.part_of(rows, [words, *dict.fromkeys(notes)], finding=words)

    def _attention_rows(self, pair: RunPair) -> list[Row]:
        """How attention differs, layer by layer, of a few samples; nothing where there is none to see."""
        taps = {tap.name: tap for tap in pair.a.attention_taps}
        if not taps or not pair.b.attention_taps:
            return []
        values = pair.blocks(
            self, "attention", pair.take(FEW_TOKENS), functools.partial(attention_differences, pair),
            pair.step(list(taps.values())),
        )  # fmt: skip
        names = [name for name in taps if f"maps/{name}" in values]
        rows = [
            self._row(pair, f"maps {name}", "attention_change", values[f"maps/{name}"], taps[name]) for name in names
        ]
        return list(itertools.chain(*rows))

    def _row(
        self, pair: RunPair, key: str, quantity: str, values: Tensor, spot: Layer | None, at: At | None = None,
        least: float = -math.inf,
    ) -> list[Row]:  # fmt: skip
        """A row of the samples that are finite; none where none is."""
        finite = values[values.isfinite()]
        options: dict[str, Any] = {"generator": pair.generator(key), "level": self.level, "least": least}
        return [sample_row(quantity, finite, spot, at, **options)] if len(finite) else []

    def _first_row(self, pair: RunPair, name: str, parts: Sequence[str], share: Row | None, n: int) -> Row:
        spot, at = _spot(pair, name), {"part": next(iter(parts), "unknown")}
        if share is None:
            return Row("first_parting", math.nan, "estimate", n, name, spot.depth, at=at)
        return Row("first_parting", share.value, share.kind, share.n, name, spot.depth, share.low, share.high, at)

    # -- noise ------------------------------------------------------------------------------------------------------

    def _floors(self, pair: RunPair, notes: list[str]) -> tuple[dict[str, Tensor], list[tuple[str, RunPair]]]:
        """Of one network against itself, the largest of all kinds of noise for each sample."""
        floors: dict[str, Tensor] = {}
        kinds: list[tuple[str, RunPair]] = []
        for words, twin in pair.noises(pair.take(self.noise)):
            taps = [tap for layer in twin.layers for tap in (layer.a, layer.b)]
            try:
                numbers = pair.blocks(
                    self, f"noise {words}", pair.take(self.noise),
                    functools.partial(layer_differences, twin, full=False), pair.step(taps),
                )  # fmt: skip
            except (RuntimeError, TypeError, ValueError) as error:  # a network that runs in one precision only
                if is_shortage(error):
                    raise
                notes.append(f"Noise {words} was not measured: {str(error).splitlines()[0]}")
                continue
            kinds.append((words, twin))
            for key, values in numbers.items():
                values = values.nan_to_num(0.0, posinf=0.0)
                floors[key] = torch.maximum(floors[key], values) if key in floors else values
        if kinds:
            names = ", ".join(words for words, _ in kinds)
            notes.append(f"Noise is that of {kinds[0][1].names[0]} against itself: {names}.")
        else:
            notes.append("Noise was not measured: the least that the precision can tell stands for it.")
        return floors, kinds

    # -- rows -------------------------------------------------------------------------------------------------------

    def _layer_rows(
        self, pair: RunPair, numbers: Mapping[str, Tensor], floors: Mapping[str, Tensor], n: int
    ) -> Iterable[Row]:
        spots: list[Layer] = [*pair.layers, _spot(pair, pair.output)]
        for spot in spots:
            for quantity in ("drift", "injected", "inherited", "cosine"):
                values = numbers.get(f"{quantity}/{spot.name}", torch.empty(0))
                yield from self._row(pair, f"{quantity} {spot.name}", quantity, values, spot)
            for key, quantity, at in CLOUDS:
                if (clouds := numbers.get(f"{key}/{spot.name}")) is not None:
                    size = min(n, COMPARED) if key == "aligned" else CLOUD
                    least, most = (-1.0, 1.0) if key == "cka" else (0.0, math.inf)
                    yield clouds_row(quantity, clouds, size, spot, at, level=self.level, least=least, most=most)
            for key, order in (("tokens1", 1.0), ("tokensinf", math.inf)):
                values = numbers.get(f"{key}/{spot.name}", torch.empty(0))
                yield from self._row(pair, f"{key} {spot.name}", "token_distance", values, spot, {"p": order})
            if (floor := floors.get(f"injected/{spot.name}")) is not None:
                yield largest_row("noise_floor", (self.margin * floor).clamp_min(_least(pair)), "lower", spot)
        for quantity in ("prediction_divergence", "changed_decisions"):
            values = numbers.get(quantity, torch.empty(0))
            yield from self._row(pair, quantity, quantity, values, _spot(pair, pair.output), least=0.0)

    def _finding(
        self, pair: RunPair, numbers: Mapping[str, Tensor], floors: Mapping[str, Tensor], n: int, notes: list[str]
    ) -> tuple[Finding, dict[str, float]]:
        """Which layers part, in order, and whether the answer does; p values by layer."""
        spots = [layer.name for layer in pair.alike] + [pair.output]
        names = [name for name in spots if f"injected/{name}" in numbers]
        p = dict(zip(names, self._p(pair, numbers, floors, "injected", names), strict=True))
        layers, few = [name for name in names if p[name] <= 1 - self.level], None
        answer = self._p(pair, numbers, floors, "drift", [pair.output], margin=1.0)
        if not layers:  # then nothing but the answer says so, and a little more rounding than A has is no news
            answer = self._p(pair, numbers, floors, "drift", [pair.output])
        # Answers of two shapes are no noise; where one was not recorded, a layer that parts is what there is.
        output_parts = answer[0] <= 1 - self.level if answer else bool(layers) or pair.is_answered
        if n < LEAST_TESTED:
            notes.append(
                f"With fewer than {LEAST_TESTED} samples a layer parts where all are above the noise, at no level."
            )
        elif names and output_parts and not layers:  # in few samples, but far: the answer is sure, the layer likely
            values, floor = self._table(numbers, floors, "injected", names)
            hits = (values > floor_of(floor, margin=self.margin, least=_least(pair))).sum(0).tolist()
            layers = [name for name, count in zip(names, hits, strict=True) if count]
            few = (max(hits), n) if layers else None
        elif layers and 0 < (count := int(numbers[f"broken/injected/{layers[0]}"].sum())) < n and p[layers[0]] == 0:
            few = (count, n)
        return Finding(layers, (), output_parts, few, bool(names), pair.is_answered), p

    def _p(
        self, pair: RunPair, numbers: Mapping[str, Tensor], floors: Mapping[str, Tensor], quantity: str,
        names: Sequence[str], *, margin: float | None = None,
    ) -> list[float]:  # fmt: skip
        if not all(f"{quantity}/{name}" in numbers for name in names) or not names:
            return []
        values, floor = self._table(numbers, floors, quantity, names)
        margin = self.margin if margin is None else margin
        p = chances(values, floor, margin=margin, least=_least(pair))
        certain = [bool(numbers[f"broken/{quantity}/{name}"].any()) for name in names]  # no noise makes a number none
        return [0.0 if broken else float(chance) for broken, chance in zip(certain, p, strict=True)]

    def _table(
        self, numbers: Mapping[str, Tensor], floors: Mapping[str, Tensor], quantity: str, names: Sequence[str]
    ) -> tuple[Tensor, Tensor]:
        """Differences ``[n, L]`` and noise ``[m, L]`` of these layers; what is finite in neither does not differ."""
        columns = [numbers[f"{quantity}/{name}"].nan_to_num(nan=0.0, posinf=torch.inf) for name in names]
        breaks = [numbers[f"broken/{quantity}/{name}"].bool() for name in names]
        values = torch.stack(
            [column.masked_fill(broken, torch.inf) for column, broken in zip(columns, breaks, strict=True)], 1
        )
        silent = torch.zeros(max([len(floor) for floor in floors.values()], default=len(values)), dtype=torch.float64)
        return values, torch.stack([floors.get(f"{quantity}/{name}", silent) for name in names], 1)

    def _shares(self, pair: RunPair, finding: Finding, notes: list[str]) -> list[Row]:
        """What each layer that parts is of the change of the answer, in both orders and between them."""
        if not finding.answered:
            notes.append("No layer has a share of the change of the answer, for it was not recorded.")
            return []
        count = pair.take(self.swaps)
        taps = [tap for layer in pair.alike for tap in (layer.a, layer.b)]
        key = f"swaps {' '.join(finding.layers)}"
        try:
            values = pair.blocks(
                self, key, count, lambda start, stop: swaps(pair, finding.layers, start, stop), pair.step(taps)
            )
        except ValueError as error:  # answers of two shapes
            if "one shape" not in str(error):
                raise
            notes.append("Layers were not swapped, for there is no change between the answers: they have other shapes.")
            return []
        rows = []
        for name in (*finding.layers, "rest"):
            orders = {order: values[key] for order in ORDERS if (key := f"{order}/{name}") in values}
            if len(orders) == 2:
                orders = {"both": torch.stack(list(orders.values())).mean(0), **orders}
            spot = _spot(pair, name) if name != "rest" else None
            for order, part in orders.items():
                at = {"order": order} if spot else {"order": order, "layers": "all others"}
                rows += self._row(pair, f"share {name} {order}", "output_share", part, spot, at)
        if not any(row.layer for row in rows):
            notes.append("No layer has a share of the change of the answer, for one of the answers is not finite.")
        return rows

    def _part(
        self, pair: RunPair, name: str, kinds: Sequence[tuple[str, RunPair]], notes: list[str]
    ) -> tuple[list[str], list[Row]]:
        """The parts of a layer whose difference alone changes the answer most, in order, and what each of them does."""
        if side_of(pair) is None:
            return [], []
        if not (twins := inside(pair, name)):
            return ["head"] if name == pair.output else [], []
        step = pair.step([tap for twin in twins for tap in (twin.a, twin.b)] + [layer.a for layer in pair.layers], 2)
        count = pair.take(self.swaps)
        inner = pair.blocks(
            self, f"inside {name}", count, lambda start, stop: own_differences(pair, name, start, stop), step
        )
        floors: list[Tensor] = []
        for words, twin in kinds:
            values = pair.blocks(
                self, f"inside {name}, noise {words}", pair.take(self.noise),
                functools.partial(own_differences, twin, name), step,
            )  # fmt: skip
            keys = [f"own/{both.a.name}" for both in twins]
            silent = torch.zeros(pair.take(self.noise), dtype=torch.float64)
            floors.append(torch.stack([values.get(key, silent).nan_to_num(0.0) for key in keys], 1))
        floor = torch.stack(floors).amax(0) if floors else torch.zeros(count, len(twins), dtype=torch.float64)
        groups = culprits(pair, name, inner, floor, margin=self.margin, least=_least(pair), level=self.level)
        rows: list[Row] = []
        if len(groups) > 1:
            values = pair.blocks(
                self, f"parts {name}", count, lambda start, stop: effects(pair, name, groups, start, stop), step
            )
            for part in groups:
                rows += self._row(
                    pair, f"part {part}", "part_effect", values[f"part/{part}"], _spot(pair, name), {"part": part}
                )
        largest = max((row.value for row in rows), default=0.0)
        parts = [str(row.at["part"]) for row in rows if row.value >= 0.5 * largest] or list(groups)[:1]
        if parts:
            notes.append(f"In {name}, what differs by itself: {modules_in_words(groups, parts)}.")
        return parts, rows


def _spot(pair: RunPair, name: str) -> Tap:
    """Where a row stands: a layer of the pair, or its answer."""
    layer = next((layer for layer in pair.layers if layer.name == name), None)
    return Tap(name, "", depth=1.0 if layer is None else layer.depth)


def _least(pair: RunPair) -> float:
    """The least relative difference that a precision can tell: a quarter of what the coarser of both rounds by."""
    dtypes = [dtype for run in (pair.a, pair.b) for dtype in (recorded_dtype(run), autocast_of(run)) if dtype]
    return max(torch.finfo(dtype).eps for dtype in dtypes) / 4


def _nonfinite(pair: RunPair, numbers: Mapping[str, Tensor]) -> list[str]:
    for name in (*[layer.name for layer in pair.alike], pair.output):
        values, broken = (numbers.get(f"{key}drift/{name}", torch.zeros(1)) for key in ("", "broken/"))
        count, both = int(broken.sum()), int((~values.isfinite() & (broken == 0)).sum())
        if count or both:
            words = f"{count} of {len(values)} samples are not finite in one of the two"
            more = f", and {both} in neither (or nothing but zeros in the first)" if both else ""
            return [f"From {name} on, {words}{more}: averages are over the others."]
    return []


def drift(
    a: nn.Module | str,
    b: nn.Module | str,
    data: Any = None,
    *,
    instrument: Drift | None = None,
    layers: Sequence[str] | str | None = None,
    seed: int = 0,
    batch: int = 100,
    memory: str | int | None = None,
    device: str | torch.device | None = None,
    order: Order = "drawn",
    cache: str | Path | bool | None = None,
    progress: Listener | bool | None = None,
    names: tuple[str, str] = ("A", "B"),
) -> Profile:
    """Where network B parts from A on the same data: rows ``drift``, ``injected``, ``inherited`` per layer, and more.

    ``a`` and ``b`` are modules or specs of :func:`~lisse.load_model`; one may be ``recorded:FOLDER``, whose samples are
    those of ``data`` in their order. The first note is the finding in one sentence. Reads the data three times (once
    each, and once through B whose layers get what they get in A), and ``forwards`` of the provenance counts the rest.
    With ``cache`` an interrupted comparison goes on where it stopped. ``device=None`` leaves both where they are.
    """
    networks = [load_model(model, device="cpu") if isinstance(model, str) else model for model in (a, b)]
    bar = Bar() if progress is True else None
    listener: Any = bar or (None if progress is False else progress)
    options: dict[str, Any] = {
        "layers": layers, "seed": seed, "batch": batch, "memory": memory, "device": device, "order": order,
        "cache": cache, "progress": listener,
    }  # fmt: skip
    runs = []
    try:
        for network, name in zip(networks, names, strict=True):
            if isinstance(network, Recorded):
                samples: Any = as_dataset(network.samples)
            elif data is None:
                raise ValueError("drift: data must be given where a model is to be run, got None.")
            else:
                samples = as_dataset(data)
            try:
                runs.append(Run(network, samples, **options))
            except (RuntimeError, IndexError, TypeError, ValueError) as error:
                if re.match(r"\w+: (layers|memory|batch|seed|device|order) must ", str(error)):
                    raise
                words = " Its vocabulary may be smaller than that of the tokens." if "IndexError" in str(error) else ""
                raise ValueError(
                    f"drift: data must be what both networks take, got what {name} does not run on: {error}{words}"
                ) from error
        pair = RunPair(runs[0], runs[1], names)
        return profile_of_pair(pair, instrument or Drift(), name=f"{names[1]} beside {names[0]}")
    finally:
        for run in runs:
            run.close()
        if bar is not None:
            bar.close()
