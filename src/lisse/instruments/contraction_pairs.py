"""The pairs that Contraction compares, and the transport distances between them at every attention layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from lisse.data import Dataset
from lisse.maths.corruption import corrupt
from lisse.maths.transport import Measure, wasserstein_batch
from lisse.maths.transport.measure import carried
from lisse.networks.attention_sites import AttentionSite, attended, masked
from lisse.networks.attention_weights import AttentionWeights
from lisse.recording import batch_seed
from lisse.run import Run
from lisse.taps import Tap, feed, prepared, reseed, still, tapped

Source = Literal["partner", "corrupted", "shuffled"]
Embedding = Literal["auto", "mean", "first", "mask"]
Inputs = Tensor | dict[str, Tensor]
_ALONG = (-1, "depth")  # what a tap is that belongs to no attention layer


@dataclass(frozen=True)
class Side:
    """One side of some pairs: what is fed to the network, and which tokens of it are data."""

    inputs: Inputs
    start: int
    lengths: Tensor | None

    def valid(self, tap: Tap, tokens: int, *, keys: bool = False) -> Tensor:
        """Which tokens at a tap are data, ``[b, tokens]``, on the CPU: padding is not. ``keys``: of cross-attention.

        The mask that was fed where it has as many tokens (the decoder's own, in a decoder, if there is one), else the
        data set's lengths, else all of them.
        """
        count = len(self.inputs if isinstance(self.inputs, Tensor) else next(iter(self.inputs.values())))
        masks = self.inputs if isinstance(self.inputs, dict) else {}
        decoder = "decoder" in tap.module.split(".") and not keys
        for name in ("decoder_attention_mask", "attention_mask") if decoder else ("attention_mask",):
            mask = masks.get(name)
            if mask is not None and mask.shape == (count, tokens):
                return mask.bool().cpu()
        if self.lengths is not None and int(self.lengths.max()) <= tokens and not masks:
            return torch.arange(tokens)[None] < self.lengths[:, None].cpu()
        return torch.ones(count, tokens, dtype=torch.bool)


Readout = Callable[[Side, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Pairs:
    """A run's samples and what each is compared with."""

    run: Run
    source: Source
    corruption: str
    severity: int

    def sides(self, start: int, stop: int) -> tuple[Side, Side]:
        """Both sides of pairs ``start … stop - 1``."""
        first = self._side(self.run.data, start, stop)
        if self.source == "partner":
            partner = self.run.data.partner
            assert partner is not None  # fits() has looked
            return first, self._side(partner, start, stop)
        if self.source == "shuffled":
            return first, self._side(self.run.data.subset(self._others[start:stop]), 0, stop - start)
        assert isinstance(first.inputs, Tensor)
        images = [
            corrupt(image[None], self.corruption, self.severity, generator=self.run.generator(f"{self._key}/{place}"))
            for place, image in enumerate(first.inputs.cpu(), start)
        ]
        return first, Side(torch.cat(images).to(first.inputs), start, None)

    @property
    def _key(self) -> str:
        return f"contraction/{self.corruption}/{self.severity}"

    @cached_property
    def _others(self) -> Tensor:
        """Another sample for each: the next one along a random circle through all of them."""
        order = torch.randperm(len(self.run), generator=self.run.generator("contraction/pairs"))
        others = torch.empty_like(order)
        others[order] = order.roll(-1)
        return others

    def _side(self, data: Dataset, start: int, stop: int) -> Side:
        (batch,) = data.batches(stop - start, start=start, stop=stop, device=self.run.device)
        lengths = None if data.lengths is None else data.lengths[start:stop]
        return Side(batch.inputs, start, lengths)

    def forward(self, side: Side) -> None:
        """Feed one side; the network's own random numbers are the same for both."""
        reseed(self.run.model, batch_seed(self.run.seed, side.start))
        feed(self.run.model, prepared(self.run.model, side.inputs))


@dataclass(frozen=True)
class Metric:
    """W_p with a ground norm, of many pairs of token sets."""

    p: float
    ground: int

    def between(self, xs: Sequence[Tensor], ys: Sequence[Tensor]) -> Tensor:
        """One distance per pair of token sets that were found finite, float64."""
        like = Measure(xs[0])  # equal weights; the sets may be many and were checked already
        measures = [[carried(like, points) for points in side] for side in (xs, ys)]
        return wasserstein_batch(measures[0], measures[1], p=self.p, ground=self.ground).double()

    def apart(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances between vectors ``[b, d]`` in the ground norm."""
        return torch.linalg.vector_norm(x.double() - y.double(), ord=self.ground, dim=-1)


def tokens_of(activation: Tensor, valid: Tensor, where: str) -> list[Tensor]:
    """The valid tokens of each sample, ``[t_i, d]`` on the CPU; what is not finite is refused with its layer's name."""
    values = activation.detach().float() if activation.dtype != torch.float64 else activation.detach()
    values = values.cpu()
    if bool(valid.all()):
        kept = list(values.clone().unbind())
    else:
        kept = [value[rows] for value, rows in zip(values, valid, strict=True)]
    if not bool(torch.isfinite(values[valid].sum())):
        raise ValueError(f"Contraction: activations at {where} must be finite, got NaN or infinity there.")
    return kept


@dataclass(frozen=True)
class Distances:
    """Everything that one pass over the pairs measures, as a function of a range of pairs: see :meth:`block`."""

    pairs: Pairs
    sites: Sequence[AttentionSite]
    depth: Sequence[Tap]
    metric: Metric
    embedding: Readout | None
    crossed: frozenset[int] = frozenset()  # which sites are cross-attention
    computed: Mapping[int, bool] = field(default_factory=dict)  # whose heads come from their weights; causal or not

    def block(self, start: int, stop: int) -> dict[str, Tensor]:
        """Pairs ``start … stop - 1``.

        Per site l: ``before/l`` and ``after/l`` ``[b]``, ``heads/l`` ``[b, M]`` where heads can be read, ``radius/l``
        ``[b]`` (largest Euclidean norm of a token on either side), ``room/l`` ``[b]`` (how far apart two measures on
        these outputs could be). Of cross-attention only the radii, and ``key_radius/l``. Per tap k along depth:
        ``depth/k`` ``[b]``. ``output`` ``[b]``: the embeddings'.
        """
        run, found = self.pairs.run, dict[str, Tensor]()
        owner = {
            tap: (place, part)
            for place, site in enumerate(self.sites)
            for tap, part in _roles(site, cross=place in self.crossed)
        }
        along = {tap: place for place, tap in enumerate(self.depth)}
        first, second = self.pairs.sides(start, stop)
        end = self.depth[-1] if self.depth and self.embedding is not None else None
        kept: dict[Tap, list[Tensor]] = {}
        vectors: list[Tensor] = []
        last: tuple[Tap, Tensor] | None = None  # alive, so that an equal address means the same tensor
        same: dict[Tap, Tap] = {}
        values: dict[Tap, Tensor] = {}

        def look(tap: Tap, activation: Tensor) -> None:
            nonlocal last
            valid = first.valid(tap, activation.shape[1], keys=owner.get(tap, _ALONG)[1] == "keys")
            if last is not None and _one(last[1], activation):
                same[tap] = last[0]  # what enters attention is, without a norm before it, the output of a block
            else:
                kept[tap] = tokens_of(activation, valid, tap.name)
            if tap in along:
                last = same.get(tap, tap), activation
            if tap == end and self.embedding is not None:
                vectors.append(self.embedding(first, activation, valid))

        def compare(tap: Tap, activation: Tensor) -> None:
            place, part = owner.get(tap, _ALONG)
            valid = second.valid(tap, activation.shape[1], keys=part == "keys")
            xs, ys = kept[same.get(tap, tap)], tokens_of(activation, valid, tap.name)
            if part == "heads":
                found[f"heads/{place}"] = self._heads(xs, ys, len(self.sites[place].weights.query))
            elif tap in same:
                values[tap] = values[same[tap]]
            elif part != "keys" and (tap in along or place not in self.crossed):
                values[tap] = self.metric.between(xs, ys)
            if tap in along:
                found[f"depth/{along[tap]}"] = values[tap]
            if part in ("entry", "keys"):
                name = "radius" if part == "entry" else "key_radius"
                found[f"{name}/{place}"] = torch.maximum(_radii(xs), _radii(ys))
            if part in ("entry", "out") and place not in self.crossed:
                found[f"{'before' if part == 'entry' else 'after'}/{place}"] = values[tap]
            if part == "entry" and place in self.computed:
                weights, causal = self.sites[place].weights, self.computed[place]
                made = [[_side_by_side(weights, tokens, causal) for tokens in side] for side in (xs, ys)]
                found[f"heads/{place}"] = self._heads(made[0], made[1], len(weights.query))
            if part == "out":
                found[f"room/{place}"] = self._room(xs, ys)
            if tap == end and self.embedding is not None:
                found["output"] = self.metric.apart(vectors[0], self.embedding(second, activation, valid))
            if tap not in same.values():
                kept.pop(tap, None)

        taps = list(dict.fromkeys([*self.depth, *owner]))
        with still(run.model, statistics=run.statistics, seed=run.seed):
            for on, side in ((look, first), (compare, second)):
                with tapped(run.model, taps, on):
                    self.pairs.forward(side)
        return found

    def _heads(self, xs: Sequence[Tensor], ys: Sequence[Tensor], count: int) -> Tensor:
        """Distances of each head's part, all pairs and heads in one batch: ``[b, M]``."""
        both = ([part for tokens in side for part in tokens.unflatten(1, (count, -1)).unbind(1)] for side in (xs, ys))
        return self.metric.between(*both).reshape(len(xs), count)

    def _room(self, xs: Sequence[Tensor], ys: Sequence[Tensor]) -> Tensor:
        """Twice the largest distance of an output from their mean: no two measures on them are further apart."""
        found = []
        for x, y in zip(xs, ys, strict=True):
            both = torch.cat([x, y]).double()
            found.append(2 * torch.linalg.vector_norm(both - both.mean(0), ord=self.metric.ground, dim=1).max())
        return torch.stack(found)


def _roles(site: AttentionSite, *, cross: bool) -> Iterable[tuple[Tap, str]]:
    yield site.entry, "entry"
    if cross:
        assert site.keys is not None
        yield site.keys, "keys"
        return
    if site.heads is not None and site.heads != site.out:
        yield site.heads, "heads"
    yield site.out, "out"


def _side_by_side(weights: AttentionWeights, tokens: Tensor, causal: bool) -> Tensor:
    """The heads' outputs ``[t, M·h]`` of one sample's valid tokens."""
    n = len(tokens)
    added = masked(torch.ones(1, n), n, causal=True) if causal else None
    _, heads, _ = attended(weights, tokens[None], tokens[None], added)
    return heads[0].transpose(0, 1).flatten(1)


def _one(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


def _radii(tokens: Sequence[Tensor]) -> Tensor:
    return torch.stack([torch.linalg.vector_norm(each.double(), dim=1).max() for each in tokens])


def embedding_of(name: Embedding, mask_id: int | None) -> Readout:
    """What stands for a sample behind the last block: a vector ``[b, d]`` of its tokens ``[b, t, d]``.

    ``mask`` is the token [MASK] (the first one, where there are several), ``first`` the first valid token, ``mean``
    the mean of the valid ones.
    """

    def mean(side: Side, activation: Tensor, valid: Tensor) -> Tensor:
        weight = valid.to(activation.device)[..., None].double()
        return ((activation.double() * weight).sum(1) / weight.sum(1)).cpu()

    def first(side: Side, activation: Tensor, valid: Tensor) -> Tensor:
        places = valid.int().argmax(1).to(activation.device)
        return activation[torch.arange(len(activation), device=activation.device), places].cpu()

    def mask(side: Side, activation: Tensor, valid: Tensor) -> Tensor:
        assert isinstance(side.inputs, Mapping)
        places = side.inputs["input_ids"].eq(mask_id or 0).int().argmax(1).to(activation.device)
        return activation[torch.arange(len(activation), device=activation.device), places].cpu()

    made: dict[str, Readout] = {"mean": mean, "first": first, "mask": mask}
    return made[name]


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
