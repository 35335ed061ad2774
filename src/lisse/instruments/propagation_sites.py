"""Where Propagation reads a model: its attention blocks, the grid their tokens lie on, and what is fed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lisse.networks.attention_sites import AttentionSite, attention_sites
from lisse.networks.masked import MaskedAutoencoder, MaskedDecoder, WholeEncoder, masked_network, normalised
from lisse.networks.zoo.vit import SplitHeadAttention
from lisse.recording import batch_seed
from lisse.run import Run
from lisse.taps import Tap, feed, find, prepared, reseed

# Tokens without a place that are believed unasked: a class token, a distillation token, registers.
_MOST_LEADING = 16


@dataclass(frozen=True)
class Layer:
    """One block with attention in it.

    ``before`` and ``after`` are its ends, ``site`` its attention, ``grid`` (rows, columns) where its tokens lie behind
    the ``leading`` ones (class tokens), ``depth`` from 0 to 1 over all blocks.
    """

    name: str
    site: AttentionSite
    before: Tap
    after: Tap
    grid: tuple[int, int]
    leading: int
    made: tuple[Tap, ...] = ()  # of a layer of the zoo: queries, keys and values; the attention matrix
    feed: tuple[Tap, ...] = ()  # of others: what enters the feed-forward network, and what it gives
    depth: float = 0.0

    @property
    def taps(self) -> dict[str, Tap]:
        """Those that are read, by what is read there."""
        ends = {"before": self.before, "entry": self.site.entry, "out": self.site.out, "after": self.after}
        more = (*zip(("qkv", "softmax"), self.made, strict=False), *zip(("fed", "given"), self.feed, strict=False))
        return {**ends, **dict(more)}

    def within(self, length: int) -> tuple[int, int]:
        """The grid of a sample with ``length`` valid tokens: a shorter text lies on a shorter line."""
        rows, columns = self.grid
        return self.grid if length >= self.leading + rows * columns else (1, length - self.leading)


@dataclass(frozen=True)
class Stage:
    """A forward and the layers that are read in it: a whole model, or one half of a masked autoencoder."""

    part: Literal["", "encoder", "decoder"]
    model: nn.Module
    layers: tuple[Layer, ...]
    network: MaskedAutoencoder | None = None

    def run(self, run: Run, inputs: Any, start: int) -> Any:
        """One batch through the stage."""
        reseed(run.model, batch_seed(run.seed, start))
        return feed(self.model, self.fed(run, inputs, start))

    def fed(self, run: Run, inputs: Any, start: int) -> Any:
        """What the stage's model takes for a batch of the run."""
        inputs = prepared(run.model, inputs)
        if self.network is None:
            return inputs
        images = normalised(run.model, inputs)
        return (images, self.noise(run, start, len(images))) if self.part == "decoder" else images

    def noise(self, run: Run, start: int, count: int) -> Tensor:
        """The masks of samples ``start …``, the same in any batch size."""
        assert self.network is not None
        return run.draw("propagation masks", start, count, (self.network.side**2,), law="uniform")


def stages_of(run: Run, grid: tuple[int, int] | None, leading: int | None, notes: list[str]) -> list[Stage]:
    """The stages of a run's model; what cannot be read is told in ``notes``."""
    (batch,) = list(run.data.batches(min(3, len(run)), stop=min(3, len(run)), device=run.device))
    network = masked_network(run.model)
    whole = Stage("", run.model, ())
    plain = [whole]
    if network is not None:
        if grid is not None or leading is not None:
            raise ValueError(
                "Propagation: grid and leading must be left out for a masked autoencoder, which knows its grid, got "
                f"{grid} and {leading}. Leave them out."
            )
        plain = [Stage("encoder", WholeEncoder(network), (), network)]
        if len(network.decoder_blocks):
            plain.append(Stage("decoder", MaskedDecoder(network), (), network))
        notes.append(
            "The encoder is read with every patch in view, so that its tokens fill their grid; the decoder with "
            f"{network.mask_ratio:.0%} of them hidden, one mask per image."
        )
    found = []
    for stage in plain:
        layers = _layers(run, stage, batch.inputs, grid, leading, notes)
        if stage.part:
            home = "network.blocks." if stage.part == "encoder" else "network.decoder_blocks."
            layers = [
                replace(layer, name=layer.name.removeprefix("network."))
                for layer in layers
                if home in layer.before.module
            ]
        found.append(replace(stage, layers=tuple(layers)))
    total = sum(len(stage.layers) for stage in found)
    if not total:
        raise ValueError(
            "Propagation: model must have attention on tokens [n, t, d] that can be read, got none. "
            + " ".join(notes[:3] or ["It suits Transformers."])
        )
    place = 0
    placed = []
    for stage in found:
        layers = []
        for layer in stage.layers:
            layers.append(replace(layer, depth=place / max(1, total - 1)))
            place += 1
        placed.append(replace(stage, layers=tuple(layers)))
    told = {layer.leading for stage in placed for layer in stage.layers}
    if told - {0}:
        notes.append(
            f"{max(told)} token{'s' if max(told) > 1 else ''} before the patches (class tokens) "
            f"{'are' if max(told) > 1 else 'is'} left out: no place on the grid."
        )
    return placed


def _layers(
    run: Run, stage: Stage, inputs: Any, grid: tuple[int, int] | None, leading: int | None, notes: list[str]
) -> list[Layer]:
    example = stage.fed(run, inputs, 0)
    places = find(stage.model, example, ["**", "**:in"], statistics=run.statistics)
    sites, reasons = attention_sites(stage.model, example, places=places, statistics=run.statistics)
    if stage.network is None:  # one half of a masked autoencoder never calls the other
        notes.extend(f"Not read: {reason}" for reason in reasons)
    by_place = {(tap.module, tap.call, tap.side): tap for tap in places}
    layers = []
    for site in sites:
        block = _block(stage.model, site.entry.module)
        ends = [by_place.get((block, site.entry.call, side)) for side in ("in", "out")]
        if ends[0] is None or ends[1] is None or len(ends[0].shape) != 2 or ends[0].shape != ends[1].shape:
            notes.append(f"Not read: {site.name}, whose block {block} has no tokens of one shape at its two ends.")
            continue
        if ends[0].shape != site.out.shape or site.entry.shape[0] != ends[0].shape[0]:
            notes.append(
                f"Not read: {site.name}, whose output {list(site.out.shape)} is not added to its block's input."
            )
            continue
        if site.keys is not None and site.keys.shape[0] != site.entry.shape[0]:
            notes.append(f"Not read: {site.name}, which looks at other tokens (cross-attention).")
            continue
        tokens = ends[0].shape[0]
        lies, first = _grid(stage, example, tokens, grid, leading, site.name)
        name = block if site.entry.calls == 1 or not site.entry.calls else f"{block}#{site.entry.call}"
        before, after = replace(ends[0], name=f"{name}:before"), replace(ends[1], name=f"{name}:after")
        inner = (by_place.get((f"{site.entry.module}.{part}", site.entry.call, "out")) for part in ("qkv", "softmax"))
        made = tuple(tap for tap in inner if tap is not None)
        zoo = isinstance(stage.model.get_submodule(site.entry.module), SplitHeadAttention) and len(made) == 2
        fed = () if zoo else _feed_forward(stage.model, block, site, by_place)
        layers.append(Layer(name, site, before, after, lies, first, made if zoo else (), fed))
    return layers


def _feed_forward(
    model: nn.Module, block: str, site: AttentionSite, by_place: Mapping[tuple[str, int, Literal["in", "out"]], Tap]
) -> tuple[Tap, ...]:
    """The two ends of a block's feed-forward network: its first linear map behind the attention, and its last."""
    inside = (f"{site.entry.module}.", f"{site.out.module}.")
    maps = [
        f"{block}.{name}"
        for name, module in model.get_submodule(block).named_modules()
        if isinstance(module, nn.Linear) and not f"{block}.{name}.".startswith(inside)
    ]
    if len(maps) < 2:
        return ()
    ends = by_place.get((maps[0], site.entry.call, "in")), by_place.get((maps[-1], site.entry.call, "out"))
    found = tuple(tap for tap in ends if tap is not None and tap.shape == site.out.shape)
    return found if len(found) == 2 else ()


def _block(model: nn.Module, module: str) -> str:
    """The block that an attention layer is in: the nearest entry of a list of modules around it, or its parent."""
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        if parts[end - 1].isdigit():
            return ".".join(parts[:end])
    return ".".join(parts[:-1])


def _grid(
    stage: Stage, example: Any, tokens: int, grid: tuple[int, int] | None, leading: int | None, name: str
) -> tuple[tuple[int, int], int]:
    """Rows and columns, and how many tokens come before them."""
    if grid is not None:
        count = grid[0] * grid[1]
        first = tokens - count if leading is None else leading
        if first < 0 or first + count > tokens:
            raise ValueError(
                f"Propagation: grid must have at most as many places as there are tokens ({tokens} at {name}"
                f"{f', {leading} of them leading' if leading else ''}), got {grid}. Give grid=(rows, columns)."
            )
        if leading is None and first > _MOST_LEADING:
            raise ValueError(
                f"Propagation: grid must have a place for every token but the class tokens, got {grid} for {tokens} "
                f"tokens at {name}. If {first} of them have no place, say so: leading={first} (--leading {first})."
            )
        return grid, first
    if stage.network is not None:
        return (stage.network.side, stage.network.side), 1
    images = example if isinstance(example, Tensor) else next(iter(_tensors(example)), None)
    if isinstance(images, Tensor) and not images.is_floating_point():
        first = leading or 0
        return (1, tokens - first), first
    if isinstance(images, Tensor) and images.ndim == 4:
        for module in stage.model.modules():
            if isinstance(module, nn.Conv2d) and module.kernel_size == module.stride and module.kernel_size != (1, 1):
                lies = (images.shape[2] // module.kernel_size[0], images.shape[3] // module.kernel_size[1])
                count = lies[0] * lies[1]
                if count > tokens:
                    hides = any(type(part).__name__.startswith("ViTMAE") for part in stage.model.modules())
                    advice = (
                        "hidden: give the whole ViTMAEForPreTraining, not its encoder."
                        if hides
                        else "merged or left out on the way: pass grid=(rows, columns) of those that stay, and "
                        "leading=… for class tokens before them."
                    )
                    raise ValueError(
                        f"Propagation: grid must be that of the tokens, got {tokens} tokens at {name} for "
                        f"{lies[0]} × {lies[1]} patches. Part of them is {advice}"
                    )
                return lies, tokens - count if leading is None else leading
    guesses = (0, 1) if isinstance(images, Tensor) and images.ndim == 4 else (0,)
    for first in guesses if leading is None else (leading,):
        side = round((tokens - first) ** 0.5)
        if side > 1 and side * side == tokens - first:
            return (side, side), first
    raise ValueError(
        f"Propagation: grid must be given where the tokens are no square, got {tokens} at {name}. Pass "
        "grid=(rows, columns), and leading=… for class tokens before them (--grid 2,3 --leading 1)."
    )


def _tensors(inputs: Any) -> list[Tensor]:
    values = inputs.values() if isinstance(inputs, dict) else inputs if isinstance(inputs, (tuple, list)) else [inputs]
    return [value for value in values if isinstance(value, Tensor)]


def lengths_of(inputs: Any, tokens: int, count: int) -> Tensor:
    """Valid tokens of every sample [n]: all, or as many as its attention mask says."""
    mask = inputs.get("attention_mask") if isinstance(inputs, dict) else None
    if not isinstance(mask, Tensor) or mask.ndim != 2 or mask.shape[1] != tokens:
        return torch.full((count,), tokens)
    lengths = mask.sum(1).long().cpu()
    if not torch.equal(mask.cpu() > 0, torch.arange(tokens) < lengths[:, None]):
        raise ValueError(
            "Propagation: attention_mask must be ones and then zeros in every row, got padding before a word. Pad on "
            "the right (padding_side='right')."
        )
    return lengths


def all_taps(stage: Stage) -> list[Tap]:
    """Every tap of a stage, each once."""
    return list(dict.fromkeys(tap for layer in stage.layers for tap in layer.taps.values()))
