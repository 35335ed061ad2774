"""From what Contraction measured to rows: means and maxima over pairs, the bounds of a layer's weights, and notes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lisse.instruments.contraction.local import AttentionForm, WeightNorms, head_sizes
from lisse.instruments.contraction.pairs import Metric
from lisse.maths.bounds import attention_between, attention_on_ball, key_lipschitz, lookup_norm, sequence_attention
from lisse.maths.bounds.between import on_ball
from lisse.maths.bounds.bound import log_sum
from lisse.maths.intervals import Interval, student
from lisse.maths.markov.kernels import Bilinear
from lisse.networks.attention import AttentionSite, AttentionWeights
from lisse.networks.bounds.tokens import TokenAttention, token_attention
from lisse.profile import Kind, Row, Value
from lisse.run import Run
from lisse.run.rows import LEAST_SAMPLES, Layer, interval_row, largest_row, sample_row, value_row
from lisse.taps import Tap

_LN10 = math.log(10)
Mean = Callable[..., Row | Future[Row]]  # of a quantity, its values over pairs, a layer, a kind, and coordinates


def pair_mean(
    run: Run, level: float, quantity: str, values: Tensor, layer: Layer | None, kind: Kind = "estimate", **at: Value
) -> Row:
    """The mean over pairs, with its interval."""
    name = None if layer is None else layer.name
    generator = run.generator(f"contraction/{quantity}/{name}/{sorted(at.items())}")
    return sample_row(quantity, values, layer, at, generator=generator, kind=kind, level=level)


# --- along depth ----------------------------------------------------------------------------------------------------


def depth_rows(mean: Mean, depth: Sequence[Tap], numbers: Mapping[str, Tensor]) -> Iterator[Row | Future[Row]]:
    """Distances at the entry of the blocks, behind each, and of the embeddings."""
    before = torch.zeros(0)
    for index, tap in enumerate(depth):
        values = numbers[f"depth/{index}"]
        yield mean("distance", values, tap)
        if bool((before > 0).any()):
            yield largest_row("block_stretch", values[before > 0] / before[before > 0], layer=tap)
        before = values
    if depth:
        yield mean("output_distance", numbers["output"], None)


def correlation_row(run: Run, level: float, x: Tensor, y: Tensor) -> Row | None:
    """Pearson's correlation over pairs; ``None`` where one of the two does not vary."""
    pairs = torch.stack([x, y], 1).double()
    n = len(pairs)
    if n < 3 or not bool((pairs.std(0) > 0).all()):
        return None
    value = _pearson(pairs)
    if n < LEAST_SAMPLES:
        return value_row("correlation", value, "exact", n)
    picks = torch.randint(n, (2000, n), generator=run.generator("contraction/correlation"))
    replicates = torch.cat([_pearson(pairs[pick]) for pick in picks.split(200)])
    # Fisher's transform makes it nearly normal: centre and spread there, ends back here.
    spread = float(torch.atanh(replicates[replicates.isfinite()].clamp(-1 + 1e-12, 1 - 1e-12)).std())
    centre = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, float(value))))
    half = student(n - 1, level) * spread
    low, high = (torch.tensor(math.tanh(end), dtype=torch.float64) for end in (centre - half, centre + half))
    return interval_row("correlation", Interval(value, low, high, n, level), "estimate", n)


def _pearson(pairs: Tensor) -> Tensor:
    """Over the last axis but one of ``[…, n, 2]``."""
    x, y = (pairs - pairs.mean(-2, keepdim=True)).unbind(-1)
    return (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))


# --- one layer ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WeightBounds:
    """Bounds of one layer from its weights and a radius, as base-10 logarithms; ``nan`` where there is none."""

    layer: float
    heads: tuple[float, ...]
    printed: float
    sequence: float
    reason: str  # why the printed ones are no bounds


def weight_bounds(
    weights: AttentionWeights,
    norms: WeightNorms,
    radius: float,
    tokens: int,
    metric: Metric,
    *,
    cross: bool = False,
) -> WeightBounds:
    """The closed-form bounds of a layer on the ball of ``radius``: corrected and printed, in the ground norm.

    Those in the keys where it is cross-attention, else those of self-attention: in Euclidean ground those of W_p, of
    p = ∞ with no exponential; in ℓ1 below p = ∞ those of W_1, which hold for every p.
    """
    width = weights.query.shape[-1]
    sizes = [_log10(size) for size in head_sizes(weights, metric.ground)]
    values, a, biases, out = norms
    proved, printed, heads, reason = list[float](), list[float](), list[float](), ""
    for h, (q, k, v) in enumerate(zip(weights.query, weights.key, weights.value, strict=True)):
        if metric.ground == 1:
            potential = Bilinear(q, k, weights.scale, weights.query_bias[h])
            bound = key_lipschitz if cross else attention_on_ball
            if math.isinf(metric.p) and not cross:
                head = attention_between(None, None, potential, radius=radius, p=metric.p).log10
            else:
                head = bound(width, radius, potential=potential).log10
            paper = bound(width, radius, potential=potential, variant="printed")
            heads.append(head + _log10(lookup_norm(v)))
            printed.append(paper.log10 + sizes[h])
            reason = reason or paper.reason
        elif cross:
            reach = 2 * radius * (radius * a[h] + biases[h])  # part (ii) of mean_field_attention alone
            head = (reach + math.log1p(reach)) / _LN10
        else:
            head = on_ball(1.0, a[h], radius, bias_norm=biases[h], p=metric.p).log10
            heads.append(head + _log10(values[h]))
        proved.append(head + sizes[h])
    squares = [
        2 * _LN10 * sequence_attention(values[h], a[h], radius, tokens, bias_norm=biases[h]).log10
        for h in range(len(values))
    ]
    sequence = (math.log(max(out, 1e-300)) + 0.5 * log_sum(*squares)) / _LN10
    layer = _sum(proved)
    if math.isinf(metric.p) and metric.ground == 2 and not cross:  # heads side by side may be less
        attention = TokenAttention(weights, torch.zeros_like(weights.query_bias), False)
        layer = min(layer, attention.worst_token(radius, 0.0)[0] / _LN10)
    return WeightBounds(layer, tuple(heads), _sum(printed) if printed else math.nan, sequence, reason)


def _log10(size: float) -> float:
    return math.log10(max(size, 1e-300))


def _sum(logarithms: Sequence[float]) -> float:
    return log_sum(*(logarithm * _LN10 for logarithm in logarithms)) / _LN10


@dataclass(frozen=True)
class LayerNumbers:
    """One attention layer and what was measured there, by name: the numbers whose keys end in its index."""

    site: AttentionSite
    form: AttentionForm
    numbers: Mapping[str, Tensor]

    @property
    def n(self) -> int:
        """How many pairs there are."""
        return len(self.numbers["radius"])

    @property
    def radius(self) -> float:
        """The largest norm of a token that enters the layer, or its keys."""
        return max(float(self.numbers[name].max()) for name in ("radius", "key_radius") if name in self.numbers)

    def stretches(self, name: str = "after") -> Tensor:
        """Over the pairs that differ, how far apart they are behind the layer (or its heads) over that before it."""
        differ = self.numbers["before"] > 0
        values, before = self.numbers[name][differ], self.numbers["before"][differ]
        return values / (before if values.ndim == 1 else before[:, None])


def layer_numbers(
    sites: Sequence[AttentionSite], forms: Sequence[AttentionForm], numbers: Mapping[str, Tensor]
) -> list[LayerNumbers]:
    """Every site with its own numbers."""
    return [
        LayerNumbers(
            site, form, {key.removesuffix(f"/{index}"): v for key, v in numbers.items() if key.endswith(f"/{index}")}
        )
        for index, (site, form) in enumerate(zip(sites, forms, strict=True))
    ]


def stretch_rows(mean: Mean, layer: LayerNumbers) -> Iterator[Row | Future[Row]]:
    """What the pass over pairs has seen at one layer."""
    site, numbers = layer.site, layer.numbers
    yield largest_row("radius", numbers["radius"], "exact", site)
    if layer.form.cross:
        return
    yield mean("distance_before", numbers["before"], site)
    yield mean("distance_after", numbers["after"], site)
    if not len(layer.stretches()):
        return
    yield largest_row("stretch", layer.stretches(), layer=site)
    yield mean("stretch_mean", layer.stretches(), site, "lower")
    if "heads" in numbers:
        for h, stretches in enumerate(layer.stretches("heads").unbind(1)):
            yield largest_row("stretch", stretches, layer=site, at={"head": h})
            yield mean("stretch_mean", stretches, site, "lower", head=h)


def bound_rows(layer: LayerNumbers, bounds: WeightBounds) -> Iterator[Row]:
    """The bounds of one layer's weights."""
    site, n = layer.site, layer.n

    def row(quantity: str, value: float, kind: Kind = "upper", **at: Value) -> Row:
        return value_row(quantity, value, kind, n, site, at)

    printed = not math.isnan(bounds.printed)  # it is printed for the sum of absolute differences
    if layer.form.cross:
        yield row("log_key_bound", bounds.layer)
        if printed:
            yield row("log_printed_key_bound", bounds.printed, "heuristic")
        return
    yield row("log_sequence_bound", bounds.sequence)
    if layer.form.mode != "full":
        return
    yield row("log_bound", bounds.layer)
    if printed:
        yield row("log_printed_bound", bounds.printed, "heuristic")
    stretches = layer.stretches()
    if bool((stretches > 0).any()):
        yield row("log_looseness", bounds.layer - math.log10(stretches.max()))
    if "heads" in layer.numbers:
        for h, bound in enumerate(bounds.heads):
            yield row("log_bound", bound, head=h)


def local_rows(mean: Mean, layer: LayerNumbers, metric: Metric) -> Iterator[Row | Future[Row]]:
    """All rows of one layer from the few points."""
    site, numbers = layer.site, layer.numbers
    if "jacobian" in numbers:
        yield mean("local_stretch_mean", numbers["jacobian"], site, "lower")
    columns: list[tuple[str, str, Kind, dict[str, Value]]] = [
        ("jacobian", "local_stretch", "lower", {}),
        ("near", "local_bound", "upper", {}),
        ("near_tokens", "local_token_bound", "upper", {}),
        ("hull", "log_hull_bound", "upper", {}),
        ("keys/pair", "key_stretch", "lower", {"keys": "pair"}),
        ("keys/noise", "key_stretch", "lower", {"keys": "noise"}),
        ("keys/near", "local_key_bound", "upper", {}),
        ("keys/hull", "log_key_hull_bound", "upper", {}),
    ]
    for name, quantity, kind, at in columns:
        if name not in numbers or (name == "near_tokens" and (metric.ground, metric.p) != (1, 1)):
            continue
        values = 10 ** numbers[name].double() if kind == "upper" and not quantity.startswith("log_") else numbers[name]
        values = values[values.isfinite()]
        if len(values):
            yield largest_row(quantity, values, kind, site, at)


def worst_token_rows(
    layer: LayerNumbers, near: LayerNumbers, vacuous: float, module: nn.Module
) -> tuple[list[Row], str]:
    """The worst token's stretch, the best bound of it and the room between; why there is no bound, where it is out.

    The bound is of the very pairs ``near`` where weights make the output, else of all tokens up to the radius.
    """
    site, stretches = layer.site, near.numbers.get("worst", torch.zeros(0))
    stretches = stretches[stretches > 0]  # without those that cannot be compared
    if layer.form.cross or "worst" not in near.numbers:
        return [], ""
    if not len(stretches):
        moved = layer.form.mode == "full" or len(layer.stretches()) == 0
        return [], "" if moved else "order matters there, and no pair looked at has its tokens at the same places"
    n, rows = len(stretches), [largest_row("token_stretch", stretches, layer=site)]
    if "worst_hull" in near.numbers:
        bound = float(near.numbers["worst_hull"].nan_to_num(-math.inf).max())
    elif (attention := turned_attention(site, module)) is not None:
        bound = attention.worst_token(layer.radius, 0.0)[0] / _LN10
    else:
        return rows, "neither the weights alone nor what is known of its class say what it does"
    room = bound - math.log10(stretches.max())
    if not room <= vacuous:
        return rows, (
            f"more than {vacuous:g} powers of ten above what was measured, as it takes the steepest query, the widest "
            "values and the widest keys together"
        )
    both = (("log_token_bound", bound), ("log_token_room", room))
    return [*rows, *(value_row(quantity, value, "upper", n, site) for quantity, value in both)], ""


def turned_attention(site: AttentionSite, module: nn.Module) -> TokenAttention | None:
    """What is known of a layer whose queries and keys are turned by positions, normalised or capped; else None."""
    try:
        attention = token_attention(module) if f"{site.out.module}.".startswith(f"{site.entry.module}.") else None
    except TypeError:  # positions that scale as well
        return None
    return attention if attention is not None and (attention.turned or attention.norms is not None) else None


# --- notes ----------------------------------------------------------------------------------------------------------


class Notes:
    """What a person should know beside the rows; filled layer by layer."""

    def __init__(self) -> None:
        self.refused: dict[str, list[str]] = {}
        self.printed: dict[str, list[str]] = {}
        self.vacuous: dict[str, list[tuple[str, float]]] = {}
        self.loose: dict[str, list[str]] = {}
        self.printed_keys = False
        self.alike = 0

    def look(self, layer: LayerNumbers, bounds: WeightBounds | None) -> None:
        """Take note of one layer."""
        name, form, printed = layer.site.name, layer.form, bounds is not None and not math.isnan(bounds.printed)
        if not form.cross:
            self.alike += layer.n - len(layer.stretches())
        if bounds is None or (form.mode != "full" and not form.cross):
            self.refused.setdefault(form.reason, []).append(name)
        elif form.cross:
            self.printed_keys |= printed
        else:
            if printed:
                self.printed.setdefault(bounds.reason, []).append(name)
            self.judge("log_bound", layer, bounds.layer)

    def judge(self, quantity: str, layer: LayerNumbers, bound: float) -> None:
        """Note a bound that is vacuous: for every pair that differs it allows more than any two outputs are apart."""
        before, room = layer.numbers["before"], layer.numbers["room"]
        differ = before > 0
        if bool(differ.any()) and bool((bound + before[differ].log10() >= room[differ].log10()).all()):
            self.vacuous.setdefault(quantity, []).append((layer.site.name, bound))

    def sentences(self) -> Iterator[str]:
        """Everything, in plain sentences."""
        for reason, names in self.refused.items():
            holds = (
                "log_sequence_bound and the local bounds hold all the same"
                if "order" in reason
                else "only log_token_bound may hold"
            )
            yield f"No bound as a map of measures at {_listed(names)}: {reason}. Of the others, {holds}."
        for quantity, layers in self.vacuous.items():
            low, high = min(bound for _, bound in layers), max(bound for _, bound in layers)
            ends = f"10^{low:.3g}" if high - low < 0.05 else f"10^{low:.3g} … 10^{high:.3g}"
            near = "local_bound" if "log_hull_bound" in self.vacuous else "log_hull_bound and local_bound"
            advice = f" Look at {near}, from the data itself." if quantity == "log_bound" else ""
            yield (
                f"{quantity} is vacuous at {_listed([name for name, _ in layers])}: for every pair here it allows more "
                f"than any two outputs are apart ({ends}).{advice}"
            )
        for reason, names in self.printed.items():
            why = reason or "its proof has a gap, though here it is not below the proved one"
            yield f"log_printed_bound is no theorem ({why}) at {_listed(names)}."
        if self.printed_keys:
            yield "log_printed_key_bound is no theorem: at a query of 0 it is 0, while the output moves."
        for reason, names in self.loose.items():
            yield f"log_token_bound is left out at {_listed(names)}: {reason}."
        if self.alike:
            yield f"Pairs with the same tokens on both sides have no stretch: {self.alike}, over all layers."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]} ({len(names)} layers)"
