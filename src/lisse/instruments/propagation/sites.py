"""Where Propagation reads a model: its attention blocks, the grid their tokens lie on, and what is fed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lisse.data import Batch
from lisse.instruments.attention import attention_of
from lisse.networks.attention import AttentionSite, Mode, attended, attention_sites, masked, mode_of, rebuilds
from lisse.networks.masked import MaskedAutoencoder, MaskedDecoder, WholeEncoder, masked_network, normalised
from lisse.networks.zoo.vit import SplitHeadAttention
from lisse.recording import batch_seed
from lisse.run import Run
from lisse.taps import AttentionCall, Tap, attending, feed, find, prepared, reseed, still, tapped
from lisse.taps.tap import tensors

# What an attention is read from: the zoo's own layers, the queries and keys that are multiplied, the weights on what
# enters, the layer's own softmax; the first that gives what the layer gives.
Origin = Literal["inner", "call", "weights", "softmax"]
# Tokens without a place that are believed unasked: a class token, a distillation token, registers.
_MOST_LEADING = 16


@dataclass(frozen=True)
class AttentionBlock:
    """One block with attention in it.

    ``before`` and ``after`` are its ends, ``site`` its attention, ``grid`` (rows, columns) where its tokens lie behind
    the ``leading`` ones (class tokens), ``source`` what its attention is read from (:data:`Origin`), ``mode`` how its
    weights make it where they do, ``depth`` from 0 to 1 over all blocks.
    """

    name: str
    site: AttentionSite
    before: Tap
    after: Tap
    grid: tuple[int, int]
    leading: int
    inner: tuple[Tap, ...] = ()  # of a layer of the zoo: queries, keys and values; the attention matrix
    feed: tuple[Tap, ...] = ()  # of others: what enters the feed-forward network, and what it gives
    source: Origin | None = "inner"
    mode: Mode = "full"
    depth: float = 0.0

    @property
    def taps(self) -> dict[str, Tap]:
        """Those that are read, by what is read there."""
        inner, ends = zip(("qkv", "softmax"), self.inner, strict=False), zip(("fed", "given"), self.feed, strict=False)
        taps = {"before": self.before, "entry": self.site.entry, **dict(inner), "out": self.site.out, **dict(ends)}
        return {**taps, "after": self.after}  # in the order of the forward

    def within(self, length: int) -> tuple[int, int]:
        """The grid of a sample with ``length`` valid tokens: a shorter text lies on a shorter line."""
        rows, columns = self.grid
        return self.grid if length >= self.leading + rows * columns else (1, length - self.leading)

    def span(self, length: int) -> slice:
        """The tokens of such a sample that lie on its grid."""
        rows, columns = self.within(length)
        return slice(self.leading, self.leading + rows * columns)


@dataclass(frozen=True)
class Stage:
    """A forward and the layers that are read in it: a whole model, or one half of a masked autoencoder."""

    part: Literal["", "encoder", "decoder"]
    model: nn.Module
    layers: tuple[AttentionBlock, ...] = ()
    network: MaskedAutoencoder | None = None

    @property
    def taps(self) -> list[Tap]:
        """Every tap, each once."""
        return list(dict.fromkeys(tap for layer in self.layers for tap in layer.taps.values()))

    def outputs(
        self, run: Run, batch: Batch, on: Callable[[Tap, Tensor], Any], called: Callable[[AttentionCall], None]
    ) -> Iterator[Any]:
        """The output for one batch; ``on`` also sees what is fed while that is looked at, ``called`` the attention."""
        names = {layer.site.entry.module for layer in self.layers if layer.source in ("call", "softmax")}
        if self.network is None:  # the run's own clean pass, whose output nobody needs
            with attending(run.model, called, names) if names else nullcontext():
                for _ in run.clean(batch.start + batch.size, self.taps, on, start=batch.start):
                    yield None
        else:
            with self.reading(run, self.taps, on):
                yield self.run(run, batch)

    @contextmanager
    def reading(self, run: Run, taps: Sequence[Tap], on: Callable[[Tap, Tensor], Any]) -> Iterator[None]:
        """The model held still, and ``on`` at some of its taps."""
        with (
            still(run.model, statistics=run.statistics, seed=run.seed),
            still(self.model),
            tapped(self.model, taps, on),
        ):
            yield

    def run(self, run: Run, batch: Batch) -> Any:
        """One batch through the stage."""
        reseed(run.model, batch_seed(run.seed, batch.start))
        return feed(self.model, self.fed(run, batch))

    def fed(self, run: Run, batch: Batch) -> Any:
        """What the stage's model takes for a batch of the run."""
        inputs = prepared(run.model, batch.inputs)
        if self.network is None:
            return inputs
        images = normalised(run.model, inputs)
        return (images, self.noise(run, batch)) if self.part == "decoder" else images

    def noise(self, run: Run, batch: Batch) -> Tensor:
        """What the masks of a batch are made of, the same in any batch size."""
        assert self.network is not None
        return run.draw("propagation masks", batch.start, batch.size, (self.network.side**2,), law="uniform")


def stages_of(run: Run, grid: tuple[int, int] | None, leading: int | None, notes: list[str]) -> list[Stage]:
    """The stages of a run's model; what cannot be read is told in ``notes``."""
    network = masked_network(run.model)
    stages = [Stage("", run.model)]
    if network is not None:
        if grid is not None or leading is not None:
            raise ValueError(
                "Propagation: grid and leading must be left out for a masked autoencoder, which knows its grid, got "
                f"{grid} and {leading}. Leave them out."
            )
        stages = [Stage("encoder", WholeEncoder(network), network=network)]
        if len(network.decoder_blocks):
            stages.append(Stage("decoder", MaskedDecoder(network), network=network))
        notes.append(
            "The encoder is read with every patch in view, so that its tokens fill their grid; the decoder with "
            f"{network.mask_ratio:.0%} of them hidden, one mask per image."
        )
    example = next(iter(run.data.batches(min(3, len(run)), stop=min(3, len(run)), device=run.device)))
    blocks = [_blocks(run, stage, example, grid, leading, notes) for stage in stages]
    total = sum(len(layers) for layers in blocks)
    if not total:
        raise ValueError(
            "Propagation: model must have attention on tokens [n, t, d] that can be read, got none. "
            + " ".join(notes[:3] or ["It suits Transformers."])
        )
    depths = iter(index / max(1, total - 1) for index in range(total))
    stages = [
        replace(stage, layers=tuple(replace(layer, depth=next(depths)) for layer in layers))
        for stage, layers in zip(stages, blocks, strict=True)
    ]
    most = max(layer.leading for stage in stages for layer in stage.layers)
    if most:
        notes.append(
            f"{most} token{'s' if most > 1 else ''} before the patches (class tokens) "
            f"{'are' if most > 1 else 'is'} left out: no place on the grid."
        )
    return stages


def _blocks(
    run: Run, stage: Stage, batch: Batch, grid: tuple[int, int] | None, leading: int | None, notes: list[str]
) -> list[AttentionBlock]:
    example = stage.fed(run, batch)
    if stage.network is None:
        taps, sites, reasons = attention_of(run)
        notes.extend(f"Not read: {reason}" for reason in reasons)
    else:  # one half of a masked autoencoder never calls the other
        taps = find(stage.model, example, ["**", "**:in"], statistics=run.statistics)
        home = "network.blocks." if stage.part == "encoder" else "network.decoder_blocks."
        sites, _ = attention_sites(stage.model, example, taps=taps, statistics=run.statistics)
        sites = [site for site in sites if home in site.entry.module]
    tap_at = {(tap.module, tap.call, tap.side): tap for tap in taps}
    blocks: list[AttentionBlock] = []
    for site in sites:
        name = _block_name(site.entry.module)
        before, after = (tap_at.get((name, site.entry.call, side)) for side in ("in", "out"))
        reason = _unreadable(site, name, before, after, blocks)
        if before is None or after is None or reason is not None:
            notes.append(f"Not read: {site.name}, {reason}.")
            continue
        staged = len({site.entry.shape[0] for site in sites}) > 1
        lies, first = _grid(stage, example, before.shape[0], grid, leading, site.name, staged=staged)
        if lies[0] == 1 and grid is None:
            notes.append("Tokens lie on a line; where they are patches of something, pass grid=(rows, columns).")
        label = name if site.entry.calls == 1 or not site.entry.calls else f"{name}#{site.entry.call}"
        parts = (tap_at.get((f"{site.entry.module}.{part}", site.entry.call, "out")) for part in ("qkv", "softmax"))
        inner = tuple(tap for tap in parts if tap is not None)
        zoo = isinstance(stage.model.get_submodule(site.entry.module), SplitHeadAttention) and len(inner) == 2
        blocks.append(
            AttentionBlock(
                label.removeprefix("network.") if stage.part else label,
                site,
                replace(before, name=f"{label}:before"),
                replace(after, name=f"{label}:after"),
                lies,
                first,
                inner if zoo else (),
                () if zoo else _feed_forward(stage.model, name, site, tap_at),
            )
        )
    return _with_sources(run, stage, batch, blocks, notes)


def _unreadable(
    site: AttentionSite, name: str, before: Tap | None, after: Tap | None, blocks: Sequence[AttentionBlock]
) -> str | None:
    """Why an attention layer in the block ``name`` is not read; ``None`` where it is."""
    if before is None or after is None or len(before.shape) != 2 or before.shape != after.shape:
        return f"whose block {name} has no tokens of one shape at its two ends"
    if before.shape != site.out.shape or site.entry.shape[0] != before.shape[0]:
        return f"whose output {list(site.out.shape)} is not added to its block's input"
    if site.keys is not None and site.keys.shape[0] != site.entry.shape[0]:
        return "whose keys are of other tokens (cross-attention) or of fewer (merged)"
    if any((block.before.module, block.before.call) == (name, site.entry.call) for block in blocks):
        return f"the second attention of its block {name}"
    return None


def _feed_forward(
    model: nn.Module, block: str, site: AttentionSite, tap_at: Mapping[tuple[str, int, Literal["in", "out"]], Tap]
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
    ends = tap_at.get((maps[0], site.entry.call, "in")), tap_at.get((maps[-1], site.entry.call, "out"))
    taps = tuple(tap for tap in ends if tap is not None and tap.shape == site.out.shape)
    return taps if len(taps) == 2 else ()


def _block_name(module: str) -> str:
    """The block that an attention layer is in: the nearest entry of a list of modules around it, or its parent."""
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        if parts[end - 1].isdigit():
            return ".".join(parts[:end])
    return ".".join(parts[:-1])


def _with_sources(
    run: Run, stage: Stage, batch: Batch, blocks: Sequence[AttentionBlock], notes: list[str]
) -> list[AttentionBlock]:
    """The blocks with what their attention is read from, tried on the first image; those of the zoo are known."""
    foreign = {(block.site.entry.module, block.site.entry.call): block for block in blocks if not block.inner}
    taps = [tap for block in foreign.values() for tap in (block.site.entry, block.site.out)]
    activations: dict[Tap, Tensor] = {}
    sources: dict[str, Origin | None] = {}

    def on(tap: Tap, activation: Tensor) -> None:
        activations[tap] = activation[:1].detach().clone()

    def valid(block: AttentionBlock) -> Tensor:
        tokens = block.site.entry.shape[0]
        return torch.arange(tokens) < lengths_of(batch.inputs, tokens, batch.size, block.name)[:1, None]

    def called(call: AttentionCall) -> None:
        block = foreign.get((call.module, call.number))
        if block is not None:
            sources[block.name] = _call_source(call, batch.size, block.site.entry.shape[0], valid(block))

    if foreign:
        with stage.reading(run, taps, on), attending(stage.model, called, [tap.module for tap in taps]):
            stage.run(run, batch)
    tried = []
    for block in blocks:
        source: Origin | None = "inner" if block.inner else sources.get(block.name)
        mode = block.mode
        if source in (None, "softmax"):
            by_weights = _mode(block.site, activations[block.site.entry], activations[block.site.out], valid(block))
            source, mode = ("weights", by_weights) if by_weights is not None else (source, mode)
        if source in _UNREAD:
            notes.append(f"{block.name}: {_UNREAD[source]}")
        tried.append(replace(block, source=source, mode=mode))
    return tried


def _call_source(call: AttentionCall, samples: int, tokens: int, valid: Tensor) -> Origin | None:
    """Whether a call shows queries and keys that make its output, or else its own softmax, of all tokens."""
    if call.query is not None and call.key is not None:
        square = call.query.shape[0] == samples and call.query.shape[2] == call.key.shape[2] == tokens
        return "call" if square and rebuilds(call.first(), valid) else None
    matrix = call.matrix
    square = matrix is not None and matrix.shape[::2] == (samples, tokens) == matrix.shape[::3]
    return "softmax" if square else None


#: What is said of attention whose kernel is not read.
_UNREAD: dict[Origin | None, str] = {
    None: "neither its queries and keys nor its weights give what its attention gives (keys that are fewer than the "
    "tokens, or a form of its own): no kernel is read there.",
    "softmax": "the attention is the model's own softmax; its queries and keys are turned or shifted inside, so that "
    "nothing is told of the kernel they make.",
}


def _mode(site: AttentionSite, x: Tensor, output: Tensor, valid: Tensor) -> Mode | None:
    """How the weights give what the layer gives for ``x`` [1, t, d]; ``None`` where they do not."""
    if site.read is None or len(site.weights_on(x.device).out_bias) != output.shape[-1]:
        return None
    output = output.double()
    mode = mode_of(site, x, x, valid, valid, output)
    if mode is None and x.shape[-1] == site.weights_on(x.device).key.shape[-1]:
        # Tokens that have become alike differ by rounding alone; then they are compared as they are.
        mask = masked(valid.to(x.device), x.shape[1], causal=False)
        rebuilt = attended(site.weights_on(x.device), x, x, mask)[2]
        mode = "full" if bool((rebuilt - output).norm() <= 1e-5 * output.norm()) else None
    return mode


# --- grids ----------------------------------------------------------------------------------------------------------


def _grid(
    stage: Stage,
    example: Any,
    tokens: int,
    grid: tuple[int, int] | None,
    leading: int | None,
    name: str,
    *,
    staged: bool,
) -> tuple[tuple[int, int], int]:
    """Rows and columns, and how many tokens come before them; ``staged``: layers differ in how many they have."""
    if grid is not None:
        return grid, _leading(grid, leading, tokens, name)
    if stage.network is not None:
        return (stage.network.side, stage.network.side), 1
    parts = [value for _, value in tensors(example)]
    inputs = next((value for value in parts if value.ndim == 4 and value.is_floating_point()), next(iter(parts), None))
    texts = any(not value.is_floating_point() for value in parts)
    if inputs is not None and texts and (inputs.ndim != 4 or any("text" in word for word in name.split("."))):
        return (1, tokens - (leading or 0)), leading or 0
    images = inputs if inputs is not None and inputs.ndim == 4 else None
    patched = None if images is None else _patch_grid(stage.model, images, tokens, leading, name, staged=staged)
    if patched is not None:
        return patched
    for first in ((0,) if images is None else (0, 1)) if leading is None else (leading,):
        side = round((tokens - first) ** 0.5)
        if side > 1 and side * side == tokens - first:
            return (side, side), first
    if images is None:  # sound, or words that were embedded before
        return (1, tokens - (leading or 0)), leading or 0
    raise ValueError(
        f"Propagation: grid must be given where the tokens are no square, got {tokens} at {name}. Pass "
        "grid=(rows, columns), and leading=… for class tokens before them (--grid 2,3 --leading 1)."
    )


def _patch_grid(
    model: nn.Module, images: Tensor, tokens: int, leading: int | None, name: str, *, staged: bool
) -> tuple[tuple[int, int], int] | None:
    """The grid of the patches that a network cuts images into; ``None`` where it is not seen to cut them."""
    if staged and leading is None:  # patches are merged on the way, in the image's form
        rows = round((tokens * images.shape[2] / images.shape[3]) ** 0.5)
        if rows and rows * (tokens // rows) == tokens and (tokens // rows) * images.shape[2] == rows * images.shape[3]:
            return (rows, tokens // rows), 0
    patches = _patches(model, images)
    if patches is None:
        return None
    count = patches[0] * patches[1]
    if count > tokens:
        hides = any(type(part).__name__.startswith("ViTMAE") for part in model.modules())
        advice = (
            "hidden: give the whole ViTMAEForPreTraining, not its encoder."
            if hides
            else "merged or left out on the way: pass grid=(rows, columns) of those that stay, and "
            "leading=… for class tokens before them."
        )
        raise ValueError(
            f"Propagation: grid must be that of the tokens, got {tokens} tokens at {name} for "
            f"{patches[0]} × {patches[1]} patches. Part of them is {advice}"
        )
    return patches, tokens - count if leading is None else leading


def _leading(grid: tuple[int, int], leading: int | None, tokens: int, name: str) -> int:
    """How many tokens come before those of a grid that a person gave."""
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
    return first


def _patches(model: nn.Module, images: Tensor) -> tuple[int, int] | None:
    """Rows and columns of the patches that a convolution with stride cuts images into, where there is one."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == module.stride and module.kernel_size != (1, 1):
            return images.shape[2] // module.kernel_size[0], images.shape[3] // module.kernel_size[1]
    return None


def lengths_of(inputs: Any, tokens: int, count: int, block: str = "") -> Tensor:
    """Valid tokens of every sample [n] in a block: all, or as many as its mask says (a decoder has its own)."""
    decoder = "decoder" in block.split(".") and isinstance(inputs, dict) and "decoder_input_ids" in inputs
    mask = inputs.get("decoder_attention_mask" if decoder else "attention_mask") if isinstance(inputs, dict) else None
    if not isinstance(mask, Tensor) or mask.ndim != 2 or mask.shape[1] != tokens:
        return torch.full((count,), tokens)
    lengths = mask.sum(1).long().cpu()
    if not torch.equal(mask.cpu() > 0, torch.arange(tokens) < lengths[:, None]):
        raise ValueError(
            "Propagation: attention_mask must be ones and then zeros in every row, got padding before a word. Pad on "
            "the right (padding_side='right')."
        )
    return lengths
