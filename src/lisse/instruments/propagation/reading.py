"""One stage of a model read batch by batch: what Propagation takes its means over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lisse.data import Batch
from lisse.instruments.propagation.masked import (
    TOGETHER,
    hidden_patches,
    interpolation,
    interpolation_weights,
    lemma,
    mask_mass,
)
from lisse.instruments.propagation.numbers import (
    Rings,
    added_rank,
    distances,
    grams,
    in_order,
    kernel,
    key,
    quantity_at,
    step,
    steps,
)
from lisse.instruments.propagation.sites import AttentionBlock, Stage, lengths_of
from lisse.maths.fetching import fetched
from lisse.maths.given import finiteness, overflow_advice
from lisse.maths.integral import row_sum_error
from lisse.maths.similarity import CKAStream
from lisse.maths.variation import token_norm, token_variation
from lisse.networks.attention import Heads, heads_called, heads_of, heads_seen, masked
from lisse.networks.zoo.vit import SplitHeadAttention
from lisse.run import Run
from lisse.run.rows import LEAST_SAMPLES
from lisse.taps import AttentionCall, Tap

if TYPE_CHECKING:
    from lisse.instruments.propagation import Propagation

LEAST_GROUP = 4  # the unbiased HSIC needs as many


def group_of(n: int) -> int:
    """How many of n images make a group for the similarity: eight groups or more, for an interval."""
    return max(LEAST_GROUP, min(50, n // LEAST_SAMPLES))


def reading_bytes(options: Propagation, run: Run, stage: Stage, n: int) -> int:
    """What :class:`Reading` holds beside the activations of a batch.

    Of a batch: the attention of one layer in a few copies, its ends, and the tokens behind every layer, with those of
    the images that wait for their group. Of the images taken apart: more such copies, for Lemma 6.1 in float64, and
    the inner products of their tokens in every layer. And
    the distances on the grid, a column for each radius.
    """
    size, last, largest = min(run.batch, n), 0, 0
    for layer in stage.layers:
        tokens, width = layer.site.entry.shape[0], layer.site.entry.shape[-1]
        table, squares = 4 * layer.site.count * tokens**2, (layer.grid[0] * layer.grid[1]) ** 2
        copies = 4 * size + 6 * min(size, options.kernels)
        if stage.part == "decoder":  # attention from masked to visible patches is scaled anew
            copies += 4 * size + 12 * min(size, options.lemma)
        radii = len(Rings.radii_of(options.radii, max(layer.grid))) + 1
        columns = 8 * 3 * radii * squares
        largest = max(largest, copies * table + columns + 4 * 14 * size * tokens * width)
        last += 4 * 2 * (size + group_of(n)) * layer.after.numel + 8 * 5 * min(size, options.kernels) * squares
    return largest + last


class Reading:
    """One stage of a model, as a function of a range of images: see :meth:`block`."""

    def __init__(self, options: Propagation, run: Run, stage: Stage, n: int) -> None:
        self.options, self.run, self.stage, self.n = options, run, stage, n
        self.key = ("reading", stage.part)
        self.group = group_of(n)
        self.roles = {tap: (i, word) for i, layer in enumerate(stage.layers) for word, tap in layer.taps.items()}
        self.rings: dict[tuple[tuple[int, int], tuple[int, int]], Rings] = {}
        self.waiting: list[Tensor] = []  # layer by layer, images before ``position`` that make no whole group yet
        self.position = 0
        # Of the batch that runs:
        self.batch = Batch(torch.empty(0), None, 0)
        self.hidden: Tensor | None = None  # its masked patches
        self.on: Callable[[Tap, Tensor], Tensor | None] = self._on
        self.numbers: dict[str, Tensor] = {}
        self.parts: dict[int, dict[str, Tensor]] = {}  # what was read of a layer whose end is still to come
        self.sites = {(layer.site.entry.module, layer.site.entry.call): i for i, layer in enumerate(stage.layers)}
        self.calls: dict[int, AttentionCall] = {}
        self.features: list[Tensor] = []  # what enters the first block, and what leaves each
        # Asked of the device behind the forward, all at once:
        self.finite: list[tuple[Tensor, str]] = []  # whether what was read is finite, and the error where it is not
        self.grams: list[tuple[int, list[tuple[Tensor, Tensor, Tensor]]]] = []
        self.lengths: dict[tuple[int, bool], Tensor] = {}
        self.post_norm: dict[int, bool] = {}

    def block(self, start: int, stop: int) -> dict[str, Tensor]:
        """Images ``start … stop - 1``, at most a batch of the run.

        Of layer l, under ``l `` and a :func:`~lisse.instruments.propagation.numbers.key`: a number per image [b], of
        the first images alone where they are taken apart. ``l lengths`` [b]: how many tokens are valid. Under
        ``l `` and the name of an array: attention by head [b, M, …]. ``similarity`` [k, L, L]: HSIC of the groups of
        images that end here.
        """
        if start != self.position:  # an interrupted run goes on: the group that is not finished is read again
            self._wait(start)
        self.numbers, self.finite, self.grams = {}, [], []
        for output in self._outputs(start, stop, self._on):
            self._refuse()
            if self.stage.part == "decoder":
                self._bound(output)
            if self.options.ablation:
                self.on = self._without_skip
                self.stage.run(self.run, self.batch)
        self._ranks()
        self.numbers["similarity"] = self._similarity(stop)
        return fetched(self.numbers)

    def _outputs(self, start: int, stop: int, on: Callable[[Tap, Tensor], Tensor | None]) -> Iterator[Any]:
        (self.batch,) = self.run.batches(stop, start=start)
        self.lengths = {}
        if self.stage.part == "decoder":
            assert self.stage.network is not None
            self.hidden = hidden_patches(self.stage.network, self.stage.noise(self.run, self.batch))
        self.on, self.features = on, []
        return self.stage.outputs(self.run, self.batch, lambda tap, value: self.on(tap, value), self._called)

    def _called(self, call: AttentionCall) -> None:
        index = self.sites.get((call.module, call.number))
        if index is not None and self.on == self._on:
            self.calls[index] = call

    def _add(self, index: int, numbers: Mapping[str, Tensor]) -> None:
        self.numbers |= {f"{index} {name}": values.double() for name, values in numbers.items()}

    def _refuse(self) -> None:
        """Layers whose activations are not finite."""
        flags = fetched({str(index): finite for index, (finite, _) in enumerate(self.finite)})
        for finite, (_, reason) in zip(flags.values(), self.finite, strict=True):
            if not bool(finite):
                raise ValueError(reason)

    def _lengths(self, layer: AttentionBlock, tokens: int, count: int) -> Tensor:
        """:func:`lengths_of` of the batch, asked of the device once."""
        kind = tokens, "decoder" in layer.name.split(".")
        if kind not in self.lengths:
            self.lengths[kind] = lengths_of(self.batch.inputs, tokens, count, layer.name)
        return self.lengths[kind]

    # -- one layer -------------------------------------------------------------------------------------------------

    def _on(self, tap: Tap, value: Tensor) -> None:
        index, word = self.roles[tap]
        if word in ("fed", "given") and self.batch.start >= self.options.kernels:
            return
        parts = self.parts.setdefault(index, {})
        # A copy: a residual sum may be written into what is read here.
        parts[word] = value if word in ("after", "qkv", "softmax") else value.clone()
        if word == "after":
            self._layer(index, self.parts.pop(index))

    def _layer(self, index: int, parts: dict[str, Tensor]) -> None:
        layer = self.stage.layers[index]
        for word, value in parts.items():
            reason = f"Propagation: activations must be finite, got nan or inf at {layer.name} ({word})."
            self.finite.append((finiteness(value), reason + overflow_advice(value)))
        if not parts["after"].is_cuda:  # where nothing waits for a device
            self._refuse()
            self.finite.clear()
        ends = [parts[word] for word in ("before", "entry", "out", "after")]
        v, u, z, after = ends = [x.float() if x.dtype.itemsize < 4 else x for x in ends]  # no sums in half precision
        lengths = self._lengths(layer, v.shape[1], len(v))
        heads = self._heads(index, layer, parts, lengths)

        def numbers(rows: Tensor, length: int) -> dict[str, Tensor]:
            if len(rows) == len(v):
                return self._numbers(layer, ends, heads, length)
            rows = rows.to(v.device)
            return self._numbers(layer, [x[rows] for x in ends], None if heads is None else heads.of(rows), length)

        self._add(index, {"lengths": lengths, **_by_length(lengths, numbers)})
        if heads is not None and self.batch.start < self.options.kernels:
            # Behind a norm that comes after the sum, the network's input and output are taken as they are.
            turned = "fed" in parts and "given" in parts and self._post_norm(index, u, v)
            ranked = (parts["fed"], parts["fed"] + parts["given"]) if turned else (v + z, after)
            self._kernels(index, heads, ranked, lengths[: self.options.kernels - self.batch.start])
        if heads is not None and self.hidden is not None and self.batch.start < self.options.lemma:
            few = slice(self.options.lemma - self.batch.start)
            self._add(index, self._lemma(layer, heads.of(few), self.hidden[few]))
        for tokens in (after,) if self.features else (v, after):
            self._feature(layer, tokens)

    def _heads(self, index: int, layer: AttentionBlock, parts: Mapping[str, Tensor], lengths: Tensor) -> Heads | None:
        """Queries, keys and values; ``None`` where nothing says what the attention does."""
        module = self.stage.model.get_submodule(layer.site.entry.module)
        if "softmax" in parts and isinstance(module, SplitHeadAttention):
            return heads_seen(module, parts["qkv"], parts["softmax"])
        if layer.source in ("call", "softmax"):
            call = self.calls.pop(index)
            # As many as are looked at: a clean pass grows in whole batches.
            return heads_called(call.first(self.batch.size))
        if layer.source is None:
            return None
        u, causal, tokens, added = parts["entry"], layer.mode == "causal", parts["before"].shape[1], None
        if causal or bool((lengths < tokens).any()):
            added = masked(torch.arange(tokens) < lengths[:, None], tokens, causal=causal).to(u.device)
        return heads_of(self.stage.model, layer.site, u, added)

    def _numbers(
        self, layer: AttentionBlock, ends: Sequence[Tensor], heads: Heads | None, length: int
    ) -> dict[str, Tensor]:
        """Of samples with ``length`` valid tokens: what moves, and how far the attention looks."""
        grid, span = layer.within(length), layer.span(length)
        v, u, z, after = (x[:, span] for x in ends)
        if heads is None:
            return steps(v, u, z, after, None, grid)
        mixed = None
        if ends[1].shape == ends[0].shape:
            mixed = heads.matrix.mean(1)[:, span, :length].to(ends[1]) @ ends[1][:, :length]
        numbers = steps(v, u, z, after, mixed, grid)
        numbers[key("row_sum_error")] = row_sum_error(heads.matrix[..., :length, :length]).amax(1)
        patches = heads.matrix[..., span, span]
        if patches.shape[-1] < heads.matrix.shape[-1]:
            patches = patches / patches.sum(-1, keepdim=True)
        rings = self.rings_of(layer, length)
        by_head = rings.of(patches)
        numbers |= distances(by_head, rings)
        numbers |= {"attention_distance": by_head[..., 0], "attention_mass": by_head[..., 1:]}
        if self.hidden is not None:
            by_head, even = rings.masked(patches, self.hidden)
            numbers |= distances(by_head, rings, queries="masked, unmasked keys")
            numbers |= distances(even[:, None], rings, queries="masked, unmasked keys, uniform")
            numbers |= {"attention_distance_masked": by_head[..., 0], "attention_mass_masked": by_head[..., 1:]}
            numbers["attention_mass_masked_uniform"] = even[:, 1:]
            numbers |= mask_mass(heads.matrix, self.hidden, layer.leading)
        return numbers

    def _post_norm(self, index: int, u: Tensor, v: Tensor) -> bool:
        """Whether the attention is given what enters the block; found out on the first batch that is read."""
        if index not in self.post_norm:
            self.post_norm[index] = torch.equal(u, v)
        return self.post_norm[index]

    def _kernels(self, index: int, heads: Heads, ranked: tuple[Tensor, Tensor], lengths: Tensor) -> None:
        """What is taken apart on a few images only: the kernel, and the rank before and after the FFN."""
        layer = self.stage.layers[index]
        tables: list[tuple[Tensor, Tensor, Tensor]] = []

        def numbers(rows: Tensor, length: int) -> dict[str, Tensor]:
            span, where = layer.span(length), rows.to(ranked[0].device)
            group = heads.of(where)
            patches = group.matrix[..., span, span]
            patches = patches / patches.sum(-1, keepdim=True)
            tables.append((rows, *grams(*(tokens[where, span] for tokens in ranked))))
            return kernel(group, patches, layer.within(length), span)

        self._add(index, _by_length(lengths, numbers))
        self.grams.append((index, tables))

    def _ranks(self) -> None:
        """The ranks that all layers' feed-forward networks add."""
        tables = [table for _, parts in self.grams for table in parts]
        ranks = iter(added_rank([table[1] for table in tables], [table[2] for table in tables]) if tables else [])
        for index, parts in self.grams:
            values = [{key("added_rank"): next(ranks)} for _ in parts]
            self._add(index, in_order(values, [rows for rows, _, _ in parts]))

    def _lemma(self, layer: AttentionBlock, heads: Heads, hidden: Tensor) -> dict[str, Tensor]:
        """Lemma 6.1, and how far the weights of (25) reach."""
        numbers = lemma(heads, hidden, layer.leading)
        rings = self.rings_of(layer)
        weights = interpolation_weights(heads, hidden, layer.leading)
        numbers |= distances(rings.masked(weights, hidden)[0], rings, queries="masked, weights of (25)")
        weights = interpolation_weights(heads, hidden, layer.leading, one_set=True)
        one_set = distances(rings.masked(weights, hidden)[0], rings, queries=f"masked, weights of (25), {TOGETHER}")
        # One set has no nearest and no farthest head.
        return numbers | {
            name: far for name, far in one_set.items() if quantity_at(name)[1].get("over", "mean") == "mean"
        }

    def rings_of(self, layer: AttentionBlock, length: int | None = None) -> Rings:
        """The rings around the tokens of a sample with ``length`` of them, or of the longest."""
        grid = layer.grid if length is None else layer.within(length)
        if (grid, layer.grid) not in self.rings:
            line = grid != layer.grid and grid[0] == layer.grid[0] == 1 and grid[1] < layer.grid[1]
            longest = self.rings_of(layer) if line else Rings(grid, self.options.radii, layer.grid)
            self.rings[grid, layer.grid] = longest.first(grid[1]) if line else longest
        return self.rings[grid, layer.grid]

    # -- beside the layers -----------------------------------------------------------------------------------------

    def _bound(self, logits: Tensor) -> None:
        """Both sides of (26) on a few images, beside the last layer."""
        few = max(0, self.options.kernels - self.batch.start)
        if few and self.stage.network is not None and self.hidden is not None:
            images = self.stage.fed(self.run, self.batch)[0][:few]
            numbers = interpolation(self.stage.network, logits[:few], images, self.hidden[:few])
            self._add(len(self.stage.layers) - 1, numbers)

    def _without_skip(self, tap: Tap, value: Tensor) -> Tensor | None:
        """The network without skips around attention: its output z is replaced by z - v."""
        index, word = self.roles[tap]
        if word == "before":
            self.parts[index] = {"before": value.clone()}
        elif word == "out":
            return value - self.parts[index]["before"]
        elif word == "after":
            layer, v = self.stage.layers[index], self.parts.pop(index)["before"]

            def numbers(rows: Tensor, length: int) -> dict[str, Tensor]:
                grid, span, rows = layer.within(length), layer.span(length), rows.to(v.device)
                before, of = v[rows, span], "block without skips"
                size = token_norm(before), token_variation(before, grid=grid)
                changes = step(of, value[rows, span] - before, size, grid)
                return changes | {key("norm", of=of): size[0], key("variation", of=of): size[1]}

            self._add(index, _by_length(self._lengths(layer, v.shape[1], len(v)), numbers))
        return None

    # -- between layers --------------------------------------------------------------------------------------------

    def _feature(self, layer: AttentionBlock, tokens: Tensor) -> None:
        """One row per image: the patches side by side, or the mean over valid words where their number differs."""
        inputs, count = self.batch.inputs, tokens.shape[1]
        if isinstance(inputs, dict) and "attention_mask" in inputs:
            valid = torch.arange(count) < self._lengths(layer, count, len(tokens))[:, None]
            weights = valid.to(tokens.device)[..., None].to(tokens)
            self.features.append((tokens * weights).sum(1) / weights.sum(1))
        else:
            self.features.append(tokens[:, layer.span(count)].clone().flatten(1))

    def _similarity(self, stop: int) -> Tensor:
        """HSIC of groups of consecutive images, across batches: the same for any size of these."""
        layers = self._waited()
        count = len(layers[0])
        stream, remainder = CKAStream(), count % self.group
        for start in range(0, count - remainder, self.group):
            stream.update(_factors([layer[start : start + self.group] for layer in layers]))
        if stop == self.n and remainder >= LEAST_GROUP:  # fewer at the end, where they are enough for an estimate
            stream.update(_factors([layer[count - remainder :] for layer in layers]))
        # A copy: a view would keep the whole batch.
        self.waiting = [layer[count - remainder :].clone() for layer in layers] if remainder else []
        self.position = stop
        return stream.tables if stream.batches else torch.zeros(0, len(layers), len(layers), dtype=torch.float64)

    def _waited(self) -> list[Tensor]:
        """The images that wait, and those of the batch behind them, layer by layer."""
        if not self.waiting:
            return self.features
        return [torch.cat(parts) for parts in zip(self.waiting, self.features, strict=True)]

    def queue(self) -> dict[str, Tensor]:
        """The images that wait, for a run that is interrupted here."""
        return {str(index): layer for index, layer in enumerate(self.waiting)}

    def _wait(self, start: int) -> None:
        """The images before ``start`` whose group ends behind it: kept, or read again in the batches they were in."""
        images = self.run.waited(self.options, self.key, self.n, start)
        if images is not None:
            self.waiting = [images[str(index)].to(self.run.device) for index in range(len(images))]
            return

        def on(tap: Tap, value: Tensor) -> None:
            index, word = self.roles[tap]
            if word == "after" or (word == "before" and not self.features):
                self._feature(self.stage.layers[index], value)

        self.waiting, batch, count = [], self.run.batch, start % self.group
        for position in range((start - count) // batch * batch, start if count else 0, batch):
            for _ in self._outputs(position, min(position + batch, start), on):
                self.waiting = self._waited()
        self.waiting = [layer[len(layer) - count :] for layer in self.waiting]


def _by_length(lengths: Tensor, numbers: Callable[[Tensor, int], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Numbers of all samples, from those with the same number of valid tokens each."""
    groups = [(lengths == length).nonzero()[:, 0] for length in lengths.unique()]
    parts = [numbers(rows, int(lengths[rows[0]])) for rows in groups]
    return in_order(parts, groups)


def _factors(layers: Sequence[Tensor]) -> list[Tensor]:
    """Few numbers with the same distances as many [n, f]: CKA sees inner products of centred rows alone."""
    centred = [features - features.mean(0) for features in layers]
    tables = [rows if rows.shape[1] <= len(rows) else rows @ rows.T for rows in centred]
    factors = list(fetched({str(index): table.double() for index, table in enumerate(tables)}).values())
    wide = [index for index, rows in enumerate(centred) if rows.shape[1] > len(rows)]
    for index in wide:
        values, vectors = torch.linalg.eigh(factors[index])
        factors[index] = vectors * values.clamp_min(0).sqrt()
    return factors
