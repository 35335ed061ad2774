"""The pairs that Contraction compares, and the transport distances between them at every attention layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lisse.data import Dataset
from lisse.maths.corruption import corrupt
from lisse.maths.fetching import fetched
from lisse.maths.given import finiteness, overflow_advice
from lisse.maths.transport import Measure, Plan, plan_of_cost, transport_plan, wasserstein_batch, wasserstein_infinity
from lisse.maths.transport.device import device_powers
from lisse.maths.transport.measure import carried
from lisse.networks.attention import AttentionSite, AttentionWeights, attended, masked
from lisse.recording import batch_seed
from lisse.run import Run
from lisse.taps import Tap, feed, prepared, reseed, still, tapped

Counterpart = Literal["partner", "corrupted", "shuffled"]
Embedding = Literal["auto", "mean", "first", "mask"]
_ALONG = (-1, "depth")  # what a tap is that belongs to no attention layer


@dataclass(frozen=True)
class Side:
    """One side of pairs: what is fed to the network, and which tokens of it are data."""

    inputs: Tensor | dict[str, Tensor]
    start: int
    lengths: Tensor | None

    def valid(self, tap: Tap, tokens: int, *, keys: bool = False) -> Tensor:
        """Which tokens at a tap are data, ``[b, tokens]``, on the CPU: padding is not. ``keys``: of cross-attention.

        The mask that was fed where it has as many tokens (the decoder's own, in a decoder, if there is one), else the
        data set's lengths, else all of them.
        """
        count = len(self.inputs if isinstance(self.inputs, Tensor) else next(iter(self.inputs.values())))
        decoder = "decoder" in tap.module.split(".") and not keys
        for name in ("decoder_attention_mask", "attention_mask") if decoder else ("attention_mask",):
            mask = self._masks.get(name)
            if mask is not None and mask.shape == (count, tokens):
                return mask
        if self.lengths is not None and int(self.lengths.max()) <= tokens and not isinstance(self.inputs, dict):
            return torch.arange(tokens)[None] < self.lengths[:, None].cpu()
        return torch.ones(count, tokens, dtype=torch.bool)

    @cached_property
    def _masks(self) -> dict[str, Tensor]:
        """The masks that were fed, asked of the device once."""
        masks = self.inputs if isinstance(self.inputs, dict) else {}
        names = ("decoder_attention_mask", "attention_mask")
        return {name: masks[name].bool().cpu() for name in names if masks.get(name) is not None}


@dataclass(frozen=True)
class Pairs:
    """A run's samples and what each is compared with."""

    run: Run
    against: Counterpart
    corruption: str
    severity: int

    def sides(self, start: int, stop: int) -> tuple[Side, Side]:
        """Both sides of pairs ``start … stop - 1``."""
        first = self._side(self.run.data, start, stop)
        if self.against == "partner":
            partner = self.run.data.partner
            assert partner is not None  # fits() has looked
            return first, self._side(partner, start, stop)
        if self.against == "shuffled":
            return first, self._side(self.run.data.subset(self._circle[start:stop]), 0, stop - start)
        assert isinstance(first.inputs, Tensor)
        key = f"contraction/{self.corruption}/{self.severity}"
        images = [
            corrupt(image[None], self.corruption, self.severity, generator=self.run.generator(f"{key}/{index}"))
            for index, image in enumerate(first.inputs.cpu(), start)
        ]
        return first, Side(torch.cat(images).to(first.inputs), start, None)

    @cached_property
    def _circle(self) -> Tensor:
        """Another sample for each: the next one along a random circle through all of them."""
        order = torch.randperm(len(self.run), generator=self.run.generator("contraction/pairs"))
        following = torch.empty_like(order)
        following[order] = order.roll(-1)
        return following

    def _side(self, data: Dataset, start: int, stop: int) -> Side:
        (batch,) = data.batches(stop - start, start=start, stop=stop, device=self.run.device)
        lengths = None if data.lengths is None else data.lengths[start:stop]
        return Side(batch.inputs, start, lengths)

    def forward(self, side: Side) -> None:
        """Feed one side; the network's own random numbers are the same for both."""
        reseed(self.run.model, batch_seed(self.run.seed, side.start))
        feed(self.run.model, prepared(self.run.model, side.inputs))

    def read(self, side: Side, taps: Sequence[Tap]) -> dict[Tap, Tensor]:
        """What the taps give for one side, copied where it is."""
        activations: dict[Tap, Tensor] = {}

        def on(tap: Tap, activation: Tensor) -> None:
            activations[tap] = activation.detach().clone()

        if taps:
            with (
                still(self.run.model, statistics=self.run.statistics, seed=self.run.seed),
                tapped(self.run.model, list(dict.fromkeys(taps)), on),
            ):
                self.forward(side)
        return activations


@dataclass(frozen=True)
class Metric:
    """W_p with a ground norm, of many pairs of token sets."""

    p: float
    ground: Literal[1, 2]

    def between(self, xs: Sequence[Tensor], ys: Sequence[Tensor]) -> Tensor:
        """One distance per pair of token sets that were found finite, float64, where the first are."""
        if math.isinf(self.p):
            values = [float(wasserstein_infinity(x, y, ground=self.ground)) for x, y in zip(xs, ys, strict=True)]
            return torch.tensor(values, dtype=torch.float64)
        if xs[0].is_cuda:
            return self.by_head(xs, ys, 1)[:, 0]
        like = Measure(xs[0])  # equal weights; the sets may be many and were checked already
        measures = [[carried(like, points) for points in side] for side in (xs, ys)]
        return wasserstein_batch(measures[0], measures[1], p=self.p, ground=self.ground).double()

    def by_head(self, xs: Sequence[Tensor], ys: Sequence[Tensor], count: int) -> Tensor:
        """Distances of each of ``count`` heads' part of the features, all in one batch: ``[b, M]``."""
        if xs[0].is_cuda and not math.isinf(self.p):
            (x, n), (y, m) = joined_sets(xs), joined_sets(ys)
            powers = device_powers(x, y, p=self.p, ground=self.ground, heads=count, x_sizes=n, y_sizes=m)
            return powers ** (1 / self.p)
        parts = ([part for tokens in side for part in tokens.unflatten(1, (count, -1)).unbind(1)] for side in (xs, ys))
        return self.between(*parts).reshape(len(xs), count)

    def plan(self, x: Tensor, y: Tensor) -> Plan:
        """An optimal coupling of two token sets; of p = ∞ the shortest of those that move no token further."""
        if not math.isinf(self.p):
            return transport_plan(x, y, p=self.p, ground=self.ground)
        value, costs = wasserstein_infinity(x, y, ground=self.ground), torch.cdist(x, y, p=float(self.ground))
        # A pair further apart costs more than all the mass by pairs that are not.
        far = (math.lcm(*costs.shape) + 1) * costs.max()
        return replace(plan_of_cost(torch.where(costs <= value * (1 + 1e-9), costs, far)), value=value)

    def apart(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances between vectors ``[b, d]`` in the ground norm."""
        return torch.linalg.vector_norm(x.double() - y.double(), ord=self.ground, dim=-1)

    def room(self, xs: Sequence[Tensor], ys: Sequence[Tensor]) -> Tensor:
        """Twice the largest distance of a token from the mean of a pair: no two measures on them are further apart."""
        diameters = []
        for x, y in zip(_groups(xs), _groups(ys), strict=True):
            parts = [(values.double(), _mask(values, sizes)) for values, sizes in (joined_sets(x), joined_sets(y))]
            (u, valid_u), (v, valid_v) = parts
            mean = (u.sum(1) + v.sum(1)) / (valid_u.sum(1) + valid_v.sum(1))[:, None]  # what pads is zero
            far = [self.apart(values, mean[:, None]).where(valid, 0.0).amax(1) for values, valid in parts]
            diameters.append(2 * torch.maximum(*far))
        return torch.cat(diameters)


def _groups(tokens: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    """All sets at once on a device; one by one on the CPU, where float64 copies of all would leave its caches."""
    return [tokens] if tokens[0].is_cuda else [[points] for points in tokens]


def joined_sets(tokens: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """Sets of points as one ``[b, n, d]``, zeros behind the shorter ones, and their sizes."""
    sizes = [len(points) for points in tokens]
    if len(tokens) == 1:
        return tokens[0][None], sizes
    return pad_sequence(list(tokens), batch_first=True), sizes


def _mask(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """Which of padded points count, ``[b, n]``."""
    if all(size == values.shape[1] for size in sizes):
        return values.new_ones((), dtype=torch.bool).expand(values.shape[:2])
    ends = torch.tensor(sizes).to(values.device)
    return torch.arange(values.shape[1], device=values.device) < ends[:, None]


def tokens_of(
    activation: Tensor, valid: Tensor, layer: str, refusals: list[tuple[Tensor, str]] | None = None
) -> list[Tensor]:
    """The valid tokens of each sample, ``[t_i, d]``, where they are; on the CPU in float32 or better.

    What is not finite is refused with its layer's name: at once, or, with ``refusals``, by :func:`refuse`.
    """
    values = activation.detach()
    if not values.is_cuda:
        values = values.float() if values.dtype != torch.float64 else values
    if bool(valid.all()):
        values = values.clone()
        tokens = list(values.unbind())
    else:
        indices = [rows.nonzero()[:, 0] for rows in valid]
        tokens = [value[rows.to(value.device)] for value, rows in zip(values, indices, strict=True)]
        values = torch.cat(tokens)
    reason = f"Contraction: activations at {layer} must be finite, got NaN or infinity there."
    flag = finiteness(values), reason + overflow_advice(activation)
    if refusals is None or not values.is_cuda:
        refuse([flag])
    else:
        refusals.append(flag)
    return tokens


def refuse(refusals: Sequence[tuple[Tensor, str]]) -> None:
    """Whatever was not finite; the device is asked once."""
    flags = fetched({str(index): finite for index, (finite, _) in enumerate(refusals)})
    for finite, (_, reason) in zip(flags.values(), refusals, strict=True):
        if not bool(finite):
            raise ValueError(reason)


# --- the pass over pairs --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Distances:
    """Everything that one pass over the pairs measures, as a function of a range of pairs: see :meth:`block`."""

    pairs: Pairs
    sites: Sequence[AttentionSite]
    depth: Sequence[Tap]
    metric: Metric
    embedding: Embedding
    mask_id: int | None = None  # of [MASK], where that is the embedding
    crossed: frozenset[int] = frozenset()  # which sites are cross-attention
    computed: Mapping[int, bool] = field(default_factory=dict)  # whose heads come from their weights; causal or not

    def block(self, start: int, stop: int) -> dict[str, Tensor]:
        """Pairs ``start … stop - 1``.

        Per site l: ``before/l`` and ``after/l`` ``[b]``, ``heads/l`` ``[b, M]`` where heads can be read, ``radius/l``
        ``[b]`` (largest Euclidean norm of a token on either side), ``room/l`` ``[b]`` (how far apart two measures on
        these outputs could be). Of cross-attention only the radii, and ``key_radius/l``. Per tap k along depth:
        ``depth/k`` ``[b]``. ``output`` ``[b]``: the embeddings'.
        """
        comparison = _Comparison(self, *self.pairs.sides(start, stop))
        for _ in self.pairs.run.clean(stop, self.taps, comparison.on, start=start):
            comparison.waiting = True
            self.pairs.forward(comparison.second)
        refuse(comparison.refusals)
        return fetched(comparison.numbers)

    @cached_property
    def roles(self) -> dict[Tap, tuple[int, str]]:
        """Which site a tap belongs to, and what it is there."""
        return {
            tap: (index, part)
            for index, site in enumerate(self.sites)
            for tap, part in _roles(site, cross=index in self.crossed)
        }

    @cached_property
    def along(self) -> dict[Tap, int]:
        """The taps along depth, numbered."""
        return {tap: index for index, tap in enumerate(self.depth)}

    @property
    def taps(self) -> list[Tap]:
        """All taps, each once."""
        return list(dict.fromkeys([*self.depth, *self.roles]))


def _roles(site: AttentionSite, *, cross: bool) -> Iterator[tuple[Tap, str]]:
    yield site.entry, "entry"
    if cross:
        assert site.keys is not None
        yield site.keys, "keys"
        return
    if site.heads is not None and site.heads != site.out:
        yield site.heads, "heads"
    yield site.out, "out"


class _Comparison:
    """One batch of pairs in the network: the tokens of the first side wait for those of the second."""

    def __init__(self, plan: Distances, first: Side, second: Side) -> None:
        self.plan, self.first, self.second = plan, first, second
        self.waiting = False  # for the second side
        self.numbers: dict[str, Tensor] = {}
        self.refusals: list[tuple[Tensor, str]] = []
        self.tokens: dict[Tap, list[Tensor]] = {}
        self.distances: dict[Tap, Tensor] = {}
        self.twins: dict[Tap, Tap] = {}  # taps that hold the very tensor of an earlier one
        self.vectors: Tensor | None = None
        self._last: tuple[Tap, Tensor] | None = None  # alive, so that an equal address means the same tensor

    def on(self, tap: Tap, activation: Tensor) -> None:
        """What a tap gives: of the first side, then of the second."""
        index, part = self.plan.roles.get(tap, _ALONG)
        side = self.second if self.waiting else self.first
        valid = side.valid(tap, activation.shape[1], keys=part == "keys")
        if not self.waiting:
            self._keep(tap, activation, valid)
        else:
            self._compare(tap, activation, valid, index, part)
        if self.plan.depth and tap == self.plan.depth[-1]:
            vectors = embedded(self.plan.embedding, side, activation, valid, self.plan.mask_id)
            if self.vectors is not None:
                self.numbers["output"] = self.plan.metric.apart(self.vectors, vectors)
            self.vectors = vectors

    def _keep(self, tap: Tap, activation: Tensor, valid: Tensor) -> None:
        if self._last is not None and _one_tensor(self._last[1], activation):
            self.twins[tap] = self._last[0]  # what enters attention is, without a norm before it, a block's output
        else:
            self.tokens[tap] = tokens_of(activation, valid, tap.name, self.refusals)
        if tap in self.plan.along:
            self._last = self.twins.get(tap, tap), activation

    def _compare(self, tap: Tap, activation: Tensor, valid: Tensor, index: int, part: str) -> None:
        plan, twin = self.plan, self.twins.get(tap, tap)
        xs, ys = self.tokens[twin], tokens_of(activation, valid, tap.name, self.refusals)
        if tap in plan.along:
            self.numbers[f"depth/{plan.along[tap]}"] = self._distance(twin, xs, ys)
        if index not in plan.crossed and part in ("entry", "out"):
            self.numbers[f"{'before' if part == 'entry' else 'after'}/{index}"] = self._distance(twin, xs, ys)
        if part in ("entry", "keys"):
            name = "radius" if part == "entry" else "key_radius"
            self.numbers[f"{name}/{index}"] = torch.maximum(_radii(xs), _radii(ys))
        if part == "out":
            self.numbers[f"room/{index}"] = plan.metric.room(xs, ys)
        if part == "heads" or (part == "entry" and index in plan.computed):
            site = plan.sites[index]
            if part == "entry":
                causal, weights = plan.computed[index], site.weights_on(activation.device)
                xs, ys = ([_heads(weights, tokens, causal) for tokens in side] for side in (xs, ys))
            self.numbers[f"heads/{index}"] = plan.metric.by_head(xs, ys, site.count)
        if tap not in self.twins.values():
            self.tokens.pop(tap, None)

    def _distance(self, tap: Tap, xs: Sequence[Tensor], ys: Sequence[Tensor]) -> Tensor:
        if tap not in self.distances:
            self.distances[tap] = self.plan.metric.between(xs, ys)
        return self.distances[tap]


def _heads(weights: AttentionWeights, tokens: Tensor, causal: bool) -> Tensor:
    """The heads' outputs side by side ``[t, M·h]`` of one sample's valid tokens."""
    n = len(tokens)
    added = masked(torch.ones(1, n, device=tokens.device), n, causal=True) if causal else None
    _, heads, _ = attended(weights, tokens[None], tokens[None], added)
    return heads[0].transpose(0, 1).flatten(1)


def _one_tensor(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


def _radii(tokens: Sequence[Tensor]) -> Tensor:
    norms = [torch.linalg.vector_norm(joined_sets(part)[0].double(), dim=-1).amax(1) for part in _groups(tokens)]
    return torch.cat(norms)  # what pads is no longer than any token


# --- embeddings -----------------------------------------------------------------------------------------------------


def embedded(embedding: Embedding, side: Side, activation: Tensor, valid: Tensor, mask_id: int | None) -> Tensor:
    """What stands for each sample behind the last block: a vector ``[b, d]`` of its tokens ``[b, t, d]``.

    ``mask`` is the token [MASK] (the first one, where there are several), ``first`` the first valid token, ``mean``
    the mean of the valid ones.
    """
    if embedding == "mean":
        weight = valid.to(activation.device)[..., None].double()
        return (activation.double() * weight).sum(1) / weight.sum(1)
    if embedding == "mask":
        assert isinstance(side.inputs, Mapping)
        valid = side.inputs["input_ids"].eq(mask_id or 0)
    index = valid.int().argmax(1).to(activation.device)
    return activation[torch.arange(len(activation), device=activation.device), index].clone()


def mask_token(run: Run) -> int | None:
    """The id of [MASK] where the model's tokenizer has one and both sides of every pair hold it."""
    card: Any = getattr(run.model, "lisse", None)
    token = getattr(getattr(card, "tokenizer", None), "mask_token_id", None)
    if not isinstance(token, int):
        return None
    for side in (run.data, run.data.partner):
        if side is None:
            continue
        ids = side.inputs.get("input_ids") if isinstance(side.inputs, dict) else None
        if ids is None or not bool((ids == token).any(1).all()):
            return None
    return token


# --- the picture of two sentences -----------------------------------------------------------------------------------


def picture(pairs: Pairs, site: AttentionSite, metric: Metric, count: int) -> dict[str, np.ndarray]:
    """Arrays of the first ``count`` pairs at one layer ([vuckovic2021] fig. 1).

    Per pair k and moment (``before``, ``after``): ``pair/k/MOMENT`` ``[n + m, 2]``, the tokens of both sides on their
    two principal axes; ``pair/k/MOMENT/plan`` ``[n, m]``, the optimal coupling; ``pair/k/MOMENT/distance``, its cost.
    ``pair/k/first`` and ``pair/k/second`` name the tokens.
    """
    moments = {site.entry: "before", site.out: "after"}
    sides = dict(zip(("first", "second"), pairs.sides(0, count), strict=True))
    tokens = {
        (name, tap): tokens_of(activation, side.valid(tap, activation.shape[1]), tap.name)
        for name, side in sides.items()
        for tap, activation in pairs.read(side, list(moments)).items()
    }
    arrays: dict[str, np.ndarray] = {}
    for k in range(count):
        for tap, moment in moments.items():
            x, y = (tokens[name, tap][k].double().cpu() for name in sides)
            plan = metric.plan(x, y)
            arrays[f"pair/{k}/{moment}"] = _axes(torch.cat([x, y])).numpy()
            arrays[f"pair/{k}/{moment}/plan"] = plan.coupling.numpy()
            arrays[f"pair/{k}/{moment}/distance"] = np.array([float(plan.value)])
        for name, side in sides.items():
            words = _words(pairs.run.model, side, site.entry, k, len(tokens[name, site.entry][k]))
            arrays[f"pair/{k}/{name}"] = np.array(words)
    return arrays


def _axes(points: Tensor) -> Tensor:
    """Points on their two principal axes, signs fixed so that the same points give the same picture."""
    centred = points - points.mean(0)
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    flat = torch.zeros(len(points), 2, dtype=torch.float64)
    flat[:, : min(2, s.shape[0])] = (u * s)[:, :2]
    signs = torch.sign(flat.gather(0, flat.abs().argmax(0, keepdim=True)))
    return flat * torch.where(signs == 0, 1.0, signs)


def _words(model: Any, side: Side, tap: Tap, k: int, count: int) -> list[str]:
    """The tokens as words where the model's tokenizer knows them, else their positions."""
    tokenizer = getattr(getattr(model, "lisse", None), "tokenizer", None)
    ids = side.inputs.get("input_ids") if isinstance(side.inputs, dict) else None
    if ids is not None:
        row = ids[k].cpu()
        row = row[side.valid(tap, len(row))[k]]
        if len(row) == count:
            words = getattr(tokenizer, "convert_ids_to_tokens", None)
            return [str(word) for word in (words(row.tolist()) if words else row.tolist())]
    return [str(index) for index in range(count)]
