"""From what Contraction measured to rows: means and maxima over pairs, the bounds of a layer's weights, and notes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.instruments.contraction_local import Form, head_sizes
from lisse.instruments.contraction_pairs import Metric
from lisse.maths.bounds import attention_on_ball, key_lipschitz, lookup_norm, mean_field_attention, sequence_attention
from lisse.maths.bounds.bound import log_sum
from lisse.maths.intervals import bootstrap
from lisse.maths.markov.potentials import Bilinear
from lisse.networks.attention_sites import AttentionSite
from lisse.networks.attention_weights import AttentionWeights
from lisse.profile import Kind, Row, Value
from lisse.run import Run

LEAST = 8  # a bootstrap of fewer does not cover what it says
_LN10 = math.log(10)


@dataclass(frozen=True)
class WeightBounds:
    """Bounds of one layer from its weights and a radius, as base-10 logarithms; ``nan`` where there is none."""

    layer: float
    heads: tuple[float, ...]
    printed: float
    sequence: float
    reason: str  # why the printed ones are no bounds


def weight_bounds(
    weights: AttentionWeights, radius: float, tokens: int, metric: Metric, *, cross: bool = False
) -> WeightBounds:
    """The closed-form bounds of a layer on the ball of ``radius``: corrected and printed, in the ground norm.

    Those in the keys where it is cross-attention, else those of self-attention.
    """
    width = weights.query.shape[-1]
    sizes = [math.log10(max(size, 1e-300)) for size in head_sizes(weights, metric.ground)]
    values, a, biases, out = weights.norms()
    proved, printed, own, reason = list[float](), list[float](), list[float](), ""
    for h, (q, k, v) in enumerate(zip(weights.query, weights.key, weights.value, strict=True)):
        if metric.ground == 1:
            potential = Bilinear(q, k, weights.scale, weights.query_bias[h])
            found = key_lipschitz if cross else attention_on_ball
            good = found(width, radius, potential=potential).log10
            said = found(width, radius, potential=potential, variant="printed")
            own.append(good + math.log10(max(lookup_norm(v), 1e-300)))
            printed.append(said.log10 + sizes[h])
            reason = reason or said.reason
        elif cross:
            reach = 2 * radius * (radius * a[h] + biases[h])  # part (ii) of mean_field_attention alone
            good = (reach + math.log1p(reach)) / _LN10
        else:
            good = mean_field_attention(1.0, a[h], radius, bias_norm=biases[h]).log10
            own.append(good + math.log10(max(values[h], 1e-300)))
        proved.append(good + sizes[h])
    rows = [
        2 * _LN10 * sequence_attention(values[h], a[h], radius, tokens, bias_norm=biases[h]).log10
        for h in range(len(values))
    ]
    sequence = (math.log(max(out, 1e-300)) + 0.5 * log_sum(*rows)) / _LN10
    return WeightBounds(_added(proved), tuple(own), _added(printed) if printed else math.nan, sequence, reason)


def _added(logarithms: Sequence[float]) -> float:
    return log_sum(*(one * _LN10 for one in logarithms)) / _LN10


@dataclass(frozen=True)
class Rows:
    """Makes rows: intervals over pairs, kinds, coordinates."""

    run: Run
    level: float
    quick: bool

    def mean(
        self, quantity: str, values: Tensor, kind: Kind, place: tuple[str | None, float | None], **at: Value
    ) -> Row:
        """The mean over pairs, with a bootstrap interval where there are enough of them for one to hold."""
        layer, depth = place
        if self.quick or len(values) < LEAST:
            exact: Kind = "exact" if kind == "estimate" else kind
            return Row(quantity, float(values.mean()), exact, len(values), layer, depth, at=at)
        generator = self.run.generator(f"contraction/{quantity}/{layer}/{sorted(at.items())}")
        found = bootstrap(values, level=self.level, generator=generator)
        return Row(
            quantity, float(found.value), kind, found.n, layer, depth, float(found.low), float(found.high), at=at
        )

    def correlation(self, x: Tensor, y: Tensor, place: tuple[str | None, float | None]) -> Row | None:
        """Pearson's correlation over pairs; ``None`` where one of the two does not vary."""
        both = torch.stack([x, y], 1).double()
        if len(both) < 3 or not bool((both.std(0) > 0).all()):
            return None
        layer, depth = place
        value = float(_pearson(both))
        if self.quick or len(both) < LEAST:
            return Row("correlation", value, "exact", len(both), layer, depth)
        generator = self.run.generator("contraction/correlation")
        picks = torch.randint(len(both), (2000, len(both)), generator=generator)
        drawn = torch.cat([_pearson(both[some]) for some in picks.split(200)])
        # Fisher's transform makes it nearly normal: centre and spread there, ends back here.
        spread = float(torch.atanh(drawn[drawn.isfinite()].clamp(-1 + 1e-12, 1 - 1e-12)).std())
        centre = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, value)))
        from scipy.special import stdtrit

        half = float(stdtrit(len(both) - 1, (1 + self.level) / 2)) * spread
        ends = math.tanh(centre - half), math.tanh(centre + half)
        return Row("correlation", value, "estimate", len(both), layer, depth, *ends)


def _pearson(both: Tensor) -> Tensor:
    """Over the last axis but one of ``[…, n, 2]``."""
    x, y = (both - both.mean(-2, keepdim=True)).unbind(-1)
    return (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))


def site_rows(
    rows: Rows, site: AttentionSite, place: int, form: Form, found: Mapping[str, Tensor], bounds: WeightBounds | None,
    metric: Metric, notes: Notes,
) -> list[Row]:  # fmt: skip
    """All rows of one layer from the pass over pairs, and its weights' bounds."""
    where = site.name, site.entry.depth
    made = [Row("radius", float(found[f"radius/{place}"].max()), "exact", len(found[f"radius/{place}"]), *where)]
    stretch = math.nan
    if not form.cross:
        before, after = found[f"before/{place}"], found[f"after/{place}"]
        made.append(rows.mean("distance_before", before, "estimate", where))
        made.append(rows.mean("distance_after", after, "estimate", where))
        ratios, kept = _ratios(before, after)
        if len(ratios):
            stretch = float(ratios.max())
            made.append(Row("stretch", stretch, "lower", len(ratios), *where))
            made.append(rows.mean("stretch_mean", ratios, "lower", where))
            if f"heads/{place}" in found:
                heads = found[f"heads/{place}"][kept] / before[kept, None]
                for h, column in enumerate(heads.unbind(1)):
                    made.append(Row("stretch", float(column.max()), "lower", len(column), *where, at={"head": h}))
                    made.append(rows.mean("stretch_mean", column, "lower", where, head=h))
        notes.alike += len(before) - len(ratios)
    if bounds is None:
        notes.refused.setdefault(form.reason, []).append(site.name)
        return made
    n = len(found[f"radius/{place}"])
    if form.cross:
        made.append(Row("log_key_bound", bounds.layer, "upper", n, *where))
        if not math.isnan(bounds.printed):
            made.append(Row("log_printed_key_bound", bounds.printed, "heuristic", n, *where))
            notes.printed_keys = True
        return made
    made.append(Row("log_sequence_bound", bounds.sequence, "upper", n, *where))
    if form.mode != "full":
        notes.refused.setdefault(form.reason, []).append(site.name)
        return made
    made.append(Row("log_bound", bounds.layer, "upper", n, *where))
    if not math.isnan(bounds.printed):  # it is printed for the sum of absolute differences
        made.append(Row("log_printed_bound", bounds.printed, "heuristic", n, *where))
        notes.printed.setdefault(bounds.reason, []).append(site.name)
    if stretch > 0:
        made.append(Row("log_looseness", bounds.layer - math.log10(stretch), "upper", n, *where))
    if f"heads/{place}" in found:
        made += [Row("log_bound", one, "upper", n, *where, at={"head": h}) for h, one in enumerate(bounds.heads)]
    notes.judge("log_bound", site.name, bounds.layer, before, found[f"room/{place}"])
    return made


def local_rows(
    rows: Rows, site: AttentionSite, place: int, form: Form, found: Mapping[str, Tensor], ground: int
) -> list[Row]:
    """All rows of one layer from the few points."""
    where, made = (site.name, site.entry.depth), list[Row]()

    def largest(quantity: str, values: Tensor, kind: Kind, **at: Value) -> None:
        values = values[values.isfinite()]
        if len(values):
            made.append(Row(quantity, float(values.max()), kind, len(values), *where, at=at))

    if f"jacobian/{place}" in found:
        values = found[f"jacobian/{place}"]
        largest("local_stretch", values, "lower")
        made.append(rows.mean("local_stretch_mean", values, "lower", where))
    for name, quantity in (("near", "local_bound"), ("near_tokens", "local_token_bound")):
        if f"{name}/{place}" in found and not (name == "near_tokens" and ground != 1):
            largest(quantity, 10 ** found[f"{name}/{place}"].double(), "upper")
    if f"hull/{place}" in found:
        largest("log_hull_bound", found[f"hull/{place}"], "upper")
    for name in ("pair", "noise"):
        if f"keys/{name}/{place}" in found:
            largest("key_stretch", found[f"keys/{name}/{place}"], "lower", keys=name)
    if f"keys/near/{place}" in found:
        largest("local_key_bound", 10 ** found[f"keys/near/{place}"].double(), "upper")
        largest("log_key_hull_bound", found[f"keys/hull/{place}"], "upper")
    return made


def _ratios(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """Stretch of the pairs that differ, and which they are."""
    kept = before > 0
    return after[kept] / before[kept], kept


class Notes:
    """What a person should know beside the rows; filled layer by layer."""

    def __init__(self) -> None:
        self.refused: dict[str, list[str]] = {}
        self.printed: dict[str, list[str]] = {}
        self.vacuous: dict[str, list[tuple[str, float]]] = {}
        self.printed_keys = False
        self.alike = 0

    def judge(self, quantity: str, layer: str, bound: float, before: Tensor, room: Tensor) -> None:
        """Note a bound that is vacuous: for every pair that differs it allows more than any two outputs are apart."""
        differ = before > 0
        if bool(differ.any()) and bool((bound + before[differ].log10() >= room[differ].log10()).all()):
            self.vacuous.setdefault(quantity, []).append((layer, bound))

    def sentences(self) -> list[str]:
        """Everything, in plain sentences."""
        said = []
        for reason, names in self.refused.items():
            holds = "log_sequence_bound and the local bounds hold all the same" if "order" in reason else "none holds"
            said.append(f"No bound as a map of measures at {_listed(names)}: {reason}. Of the others, {holds}.")
        for quantity, found in self.vacuous.items():
            low, high = min(b for _, b in found), max(b for _, b in found)
            ends = f"10^{low:.3g}" if high - low < 0.05 else f"10^{low:.3g} … 10^{high:.3g}"
            near = "local_bound" if "log_hull_bound" in self.vacuous else "log_hull_bound and local_bound"
            said.append(
                f"{quantity} is vacuous at {_listed([name for name, _ in found])}: for every pair here it allows more "
                f"than any two outputs are apart ({ends})."
                + (f" Look at {near}, from the data itself." if quantity == "log_bound" else "")
            )
        for reason, names in self.printed.items():
            why = reason or "its proof has a gap, though here it is not below the proved one"
            said.append(f"log_printed_bound is no theorem ({why}) at {_listed(names)}.")
        if self.printed_keys:
            said.append("log_printed_key_bound is no theorem: at a query of 0 it is 0, while the output moves.")
        if self.alike:
            said.append(f"Pairs with the same tokens on both sides have no stretch: {self.alike}, over all layers.")
        return said


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]} ({len(names)} layers)"
