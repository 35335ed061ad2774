"""One stage of a model read batch by batch: what Propagation takes its means over."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lisse.instruments.propagation_layers import Key, Rings, added_rank, distances, joined, kernel, key, steps
from lisse.instruments.propagation_masked import (
    TOGETHER,
    hidden_patches,
    interpolation,
    interpolation_weights,
    lemma,
    mask_mass,
    trivial,
)
from lisse.instruments.propagation_sites import Layer, Stage, all_taps, lengths_of
from lisse.maths.given import all_finite
from lisse.maths.integral import row_sum_error
from lisse.maths.similarity import CKAStream
from lisse.networks.attention_heads import Heads, heads_of, heads_seen
from lisse.networks.attention_sites import Mode, attended, masked, mode_of
from lisse.networks.zoo.vit import SplitHeadAttention
from lisse.profile import Row, Value
from lisse.run import Run
from lisse.taps import Tap, still, tapped

LEAST_SAMPLES = 8  # a bootstrap of fewer does not cover what it says
LEAST_CHUNK = 4  # the unbiased HSIC needs as many


class Options(Protocol):
    """What the reading needs to know of the instrument."""

    @property
    def kernels(self) -> int:
        """Images whose kernels are taken apart."""

    @property
    def lemma(self) -> int:
        """Images on which Lemma 6.1 is tried."""

    @property
    def radii(self) -> tuple[int, ...]:
        """Radii of the attention nearby."""

    @property
    def ablation(self) -> bool:
        """Whether the network is also run without skips."""


class Reading:
    """One stage of a model, read batch by batch: numbers per image and layer, similarities, heads."""

    def __init__(self, options: Options, run: Run, stage: Stage, n: int, notes: list[str]) -> None:
        self.options, self.run, self.stage, self.n, self.notes = options, run, stage, n, notes
        self.rings: dict[tuple[tuple[int, int], tuple[int, int]], Rings] = {}
        self.stream = CKAStream()
        self.chunk = max(LEAST_CHUNK, min(50, n // LEAST_SAMPLES))  # eight chunks or more, for an interval
        self.modes: dict[int, Mode | None] = {}
        self.numbers: list[dict[Key, list[Tensor]]] = [{} for _ in stage.layers]
        self.by_head: dict[str, dict[int, np.ndarray]] = {}
        self.heads: dict[tuple[str, int], list[Tensor]] = {}
        self.even: dict[int, list[tuple[int, Tensor]]] = {}  # uniform attention, and for how many images it stands
        self.fixed: list[Row] = []
        self.held: dict[int, dict[str, Tensor]] = {}
        self.layers: list[Tensor] = []
        self.waiting: list[list[Tensor]] = []  # batches, layer by layer, whose samples make no whole chunk yet
        self.start = 0  # of the batch that runs
        self.inputs: Any = None
        self.roles = {
            tap: (place, word) for place, layer in enumerate(stage.layers) for word, tap in layer.taps.items()
        }

    def through(self) -> list[dict[Key, Tensor]]:
        """All batches; numbers by layer and key, one per image."""
        run, stage = self.run, self.stage
        with still(run.model, statistics=run.statistics, seed=run.seed), still(stage.model):
            for batch in run.batches(self.n):
                self.start, self.inputs = batch.start, batch.inputs
                self.layers = []
                with tapped(stage.model, all_taps(stage), self._on):
                    output = stage.run(run, batch.inputs, batch.start)
                self._compare()
                if stage.part == "decoder":
                    self._bound(output)
                if self.options.ablation:
                    self._without_skips(batch.inputs)
                done = min(self.n, self.start + run.batch)
                run.tell(f"propagation{f': {stage.part}' if stage.part else ''}", done, self.n, "samples")
        self._compare_rest()
        for place, layer in enumerate(stage.layers):
            self._baseline(place, layer)
        for (name, place), parts in self.heads.items():
            self.by_head.setdefault(name, {})[place] = torch.cat(parts).double().mean(0).cpu().numpy()
        return [{name: torch.cat(values) for name, values in one.items()} for one in self.numbers]

    def _on(self, tap: Tap, value: Tensor) -> None:
        place, word = self.roles[tap]
        if word in ("fed", "given") and self.start >= self.options.kernels:
            return
        held = self.held.setdefault(place, {})
        # A copy: a residual sum may be written into what is read here.
        held[word] = value if word in ("after", "qkv", "softmax") else value.clone()
        if word == "after":
            self._layer(place, self.stage.layers[place], held)
            del self.held[place]

    # -- one layer -------------------------------------------------------------------------------------------------

    def _layer(self, place: int, layer: Layer, held: dict[str, Tensor]) -> None:
        v, u, z, after = (held[word] for word in ("before", "entry", "out", "after"))
        for word, value in held.items():
            if not all_finite(value):
                raise ValueError(f"Propagation: activations must be finite, got nan or inf at {layer.name} ({word}).")
        count, tokens = v.shape[:2]
        lengths = lengths_of(self.inputs, tokens, count)
        added = None
        valid = torch.arange(tokens) < lengths[:, None]
        if place not in self.modes:
            self.modes[place] = self._mode(layer, u, z, valid)
        if bool((lengths < tokens).any()) or self.modes[place] == "causal":
            added = masked(valid, tokens, causal=self.modes[place] == "causal").to(u.device)
        heads = None
        module = self.stage.model.get_submodule(layer.site.entry.module)
        if "softmax" in held and isinstance(module, SplitHeadAttention):
            heads = heads_seen(module, held["qkv"], held["softmax"])
        elif self.modes[place] is not None:
            heads = heads_of(self.stage.model, layer.site, u, added)
        hidden = None
        if self.stage.part == "decoder":
            assert self.stage.network is not None
            hidden = hidden_patches(self.stage.network, self.stage.noise(self.run, self.start, count))
        parts, places = [], []
        for length, rows in _of_one_length(lengths):
            everything = len(rows) == count
            part = [x if everything else x[rows.to(x.device)] for x in (v, u, z, after)]
            some = heads if heads is None or everything else heads.of(rows.to(heads.matrix.device))
            parts.append(self._numbers(place, layer, part, some, length, hidden))
            places.append(rows)
        for name, values in joined(parts, places, count).items():
            self.numbers[place].setdefault(name, []).append(values)
        if heads is not None and self.start < max(self.options.kernels, self.options.lemma):
            # Behind a norm that comes after the sum, the network's input and output are taken as they are.
            turned = "fed" in held and "given" in held and torch.equal(u, v)
            ends = (held["fed"], held["fed"] + held["given"]) if turned else (v + z, after)
            self._few(place, layer, heads, ends, hidden, lengths)
        padded = isinstance(self.inputs, dict) and "attention_mask" in self.inputs
        if not self.layers:
            self.layers.append(_flat(v, layer, valid, padded))
        self.layers.append(_flat(after, layer, valid, padded))

    def _numbers(
        self, place: int, layer: Layer, part: list[Tensor], heads: Heads | None, length: int, hidden: Tensor | None
    ) -> dict[Key, Tensor]:
        first, grid = layer.leading, layer.within(length)
        stop = first + grid[0] * grid[1]
        v, u, z, after = (x[:, first:stop] for x in part)
        mixed = None
        if heads is not None and part[1].shape == part[0].shape:
            mean = heads.matrix.mean(1)[:, first:stop, :length]
            mixed = mean @ part[1][:, :length]
        found = steps(v, u, z, after, mixed, grid)
        if heads is None:
            return found
        found[key("row_sum_error")] = row_sum_error(heads.matrix[..., :length, :length]).amax(1)
        patches = heads.matrix[..., first:stop, first:stop]
        patches = patches / patches.sum(-1, keepdim=True) if stop - first < heads.matrix.shape[-1] else patches
        rings = self._rings(grid, layer.grid)
        by_head = rings.of(patches)
        found |= distances(by_head, rings)
        self.even.setdefault(place, []).append((len(v), rings.uniform))
        self.heads.setdefault(("attention_distance", place), []).append(by_head[..., 0])
        self.heads.setdefault(("attention_mass", place), []).append(by_head[..., 1:])
        if hidden is not None:
            chosen, even = rings.chosen(patches, hidden)
            found |= distances(chosen, rings, queries="masked, unmasked keys")
            found |= distances(even[:, None], rings, queries="masked, unmasked keys, uniform")
            self.heads.setdefault(("attention_distance_masked", place), []).append(chosen[..., 0])
            self.heads.setdefault(("attention_mass_masked", place), []).append(chosen[..., 1:])
            self.heads.setdefault(("attention_mass_masked_uniform", place), []).append(even[:, 1:])
            found |= mask_mass(heads.matrix, hidden, first)
        return found

    def _few(
        self,
        place: int,
        layer: Layer,
        heads: Heads,
        ends: tuple[Tensor, Tensor],
        hidden: Tensor | None,
        lengths: Tensor,
    ) -> None:
        """What is taken apart on a few images only: kernels, ranks (before and after the FFN), Lemma 6.1."""
        first = layer.leading
        count = len(ends[0])
        few = min(count, max(0, self.options.kernels - self.start))
        parts, places = [], []
        for length, rows in _of_one_length(lengths[:few]):
            grid = layer.within(length)
            span, rows = slice(first, first + grid[0] * grid[1]), rows.to(ends[0].device)
            some = heads.of(rows)
            patches = some.matrix[..., span, span]
            patches = patches / patches.sum(-1, keepdim=True)
            part = kernel(some, patches, grid, first, causal=self.modes[place] == "causal")
            part[key("added_rank")] = added_rank(ends[0][rows, span], ends[1][rows, span])
            parts.append(part)
            places.append(rows.cpu())
        found = joined(parts, places, few) if few else {}
        tried = slice(0, min(count, max(0, self.options.lemma - self.start)))
        if hidden is not None and tried.stop:
            some, hides = heads.of(tried), hidden[tried]
            found |= lemma(some, hides, first)
            self.notes.extend(trivial(some, hides, first))
            rings, weights = self._rings(layer.grid, layer.grid), interpolation_weights(some, hides, first)
            found |= distances(rings.chosen(weights, hides)[0], rings, queries="masked, weights of (25)")
            weights = interpolation_weights(some, hides, first, one_set=True)
            one_set = distances(rings.chosen(weights, hides)[0], rings, queries=f"masked, weights of (25), {TOGETHER}")
            # One set has no nearest and no farthest head.
            found |= {name: far for name, far in one_set.items() if dict(name[1]).get("over", "mean") == "mean"}
        for name, values in found.items():
            self.numbers[place].setdefault(name, []).append(values.double().cpu())

    def _mode(self, layer: Layer, u: Tensor, z: Tensor, valid: Tensor) -> Mode | None:
        """Whether the weights give what the layer gives, on one image; its heads are not read where they do not."""
        module = self.stage.model.get_submodule(layer.site.entry.module)
        if isinstance(module, SplitHeadAttention):
            return "full"
        one, seen = u[:1].cpu(), z[:1].cpu().double()
        found = mode_of(layer.site, one, one, valid[:1], valid[:1], seen)
        if found is None and one.shape[-1] == layer.site.weights.key.shape[-1]:
            # Tokens that have become alike differ by rounding alone; then they are compared as they are.
            made = attended(layer.site.weights, one, one, masked(valid[:1], one.shape[1], causal=False))[2]
            found = "full" if float((made - seen).norm()) <= 1e-5 * float(seen.norm()) else None
        if found is None:
            self.notes.append(
                f"{layer.name}: the attention does more than its weights say (turned or normalised queries, a table of "
                "positions): no kernel is read there."
            )
        return found

    def _rings(self, grid: tuple[int, int], whole: tuple[int, int]) -> Rings:
        if (grid, whole) not in self.rings:
            self.rings[grid, whole] = Rings(grid, self.options.radii, whole)
        return self.rings[grid, whole]

    def _baseline(self, place: int, layer: Layer) -> None:
        """What uniform attention would give, once per layer."""
        if place not in self.even:
            return
        rings = self._rings(layer.grid, layer.grid)
        parts = self.even[place]
        whole = torch.stack([count * part for count, part in parts]).sum(0)
        even = (whole / sum(count for count, _ in parts)).tolist()
        layer_at = (layer.name, layer.depth)
        self.fixed.append(Row("attention_distance", even[0], "exact", 0, *layer_at, at={"over": "uniform"}))
        for radius in rings.radii:
            at: dict[str, Value] = {"radius": radius, "over": "uniform"}
            self.fixed.append(Row("attention_mass", even[rings.place(radius)], "exact", 0, *layer_at, at=at))
        self.by_head.setdefault("attention_mass_uniform", {})[place] = np.asarray(even[1:])
        self.by_head.setdefault("attention_mass_radii", {})[place] = np.asarray(rings.every)

    # -- between layers --------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Chunks of consecutive samples, across batches: the same for any size of these."""
        self.waiting.append(self.layers)
        held = sum(len(batch[0]) for batch in self.waiting)
        if held < self.chunk:
            return
        layers, whole = self._waited(), held - held % self.chunk
        for start in range(0, whole, self.chunk):
            self.stream.update([_factor(layer[start : start + self.chunk]) for layer in layers])
        # A copy: a view would keep the whole batch.
        self.waiting = [[layer[whole:].clone() for layer in layers]] if whole < held else []

    def _compare_rest(self) -> None:
        """What is left at the end, as a smaller chunk where that is enough for an estimate."""
        layers, self.waiting = self._waited(), []
        left = len(layers[0]) if layers else 0
        if left >= LEAST_CHUNK:
            self.stream.update([_factor(layer) for layer in layers])
        elif left and self.stream.batches:
            self.notes.append(
                f"similarity: the last {left} of {self.n} samples are left out, for it is taken in groups of "
                f"{self.chunk}."
            )

    def _waited(self) -> list[Tensor]:
        """Layer by layer, the samples that wait."""
        if len(self.waiting) < 2:
            return self.waiting[0] if self.waiting else []
        return [torch.cat(parts) for parts in zip(*self.waiting, strict=True)]

    def _bound(self, logits: Tensor) -> None:
        """Both sides of (26) on a few images, beside the last layer."""
        network = self.stage.network
        few = max(0, min(self.options.kernels - self.start, len(logits)))
        if network is None or not few:
            return
        images = self.stage.fed(self.run, self.inputs, self.start)[0][:few]
        hidden = hidden_patches(network, self.stage.noise(self.run, self.start, len(logits)))[:few]
        for name, values in interpolation(network, logits[:few], images, hidden).items():
            self.numbers[-1].setdefault(name, []).append(values)

    def _without_skips(self, inputs: Any) -> None:
        """The same batch through the network without skips around attention: its output z is replaced by z - v."""
        held: dict[int, Tensor] = {}
        found: dict[int, dict[Key, Tensor]] = {}
        seen = [tap for layer in self.stage.layers for tap in (layer.before, layer.site.out, layer.after)]

        def on(tap: Tap, value: Tensor) -> Tensor | None:
            place, word = self.roles[tap]
            layer = self.stage.layers[place]
            if word == "before":
                held[place] = value.clone()
            elif word == "out":
                return value - held[place]
            else:
                v = held.pop(place)
                parts, places = [], []
                for length, rows in _of_one_length(lengths_of(self.inputs, v.shape[1], len(v))):
                    grid, rows = layer.within(length), rows.to(v.device)
                    span = slice(layer.leading, layer.leading + grid[0] * grid[1])
                    before, behind = v[rows, span], value[rows, span]
                    parts.append(steps(before, before, before, behind, None, grid))
                    places.append(rows.cpu())
                found[place] = {
                    (quantity, (("of", "block without skips"),)): values
                    for (quantity, at), values in joined(parts, places, len(v)).items()
                    if dict(at)["of"] == "block"
                }
            return None

        with tapped(self.stage.model, dict.fromkeys(seen), on):
            self.stage.run(self.run, inputs, self.start)
        for place, numbers in found.items():
            for name, values in numbers.items():
                self.numbers[place].setdefault(name, []).append(values.double().cpu())


def _of_one_length(lengths: Tensor) -> list[tuple[int, Tensor]]:
    """Samples with the same number of valid tokens, and that number."""
    return [(int(length), (lengths == length).nonzero()[:, 0]) for length in lengths.unique()]


def _flat(tokens: Tensor, layer: Layer, valid: Tensor, padded: bool) -> Tensor:
    """One row per image: the patches side by side, or the mean over valid words where their number differs."""
    if padded:
        weights = valid.to(tokens.device)[..., None].to(tokens)
        return (tokens * weights).sum(1) / weights.sum(1)
    return tokens[:, layer.leading : layer.leading + layer.grid[0] * layer.grid[1]].flatten(1)


def _factor(features: Tensor) -> Tensor:
    """Few numbers with the same distances as many [n, f]: CKA sees inner products of centred rows alone."""
    centred = features - features.mean(0)
    if centred.shape[1] <= len(centred):
        return centred.double().cpu()
    values, vectors = torch.linalg.eigh((centred @ centred.T).double().cpu())
    return vectors * values.clamp_min(0).sqrt()
