"""What mask tokens do in a decoder: their share of the attention, Lemma 6.1, the span of (25), both sides of (26)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lisse.instruments.propagation.numbers import key
from lisse.instruments.propagation.sites import Stage
from lisse.maths.masking import attention_residuals, interpolation_bound, span_residual
from lisse.networks.attention import Heads, heads_of
from lisse.networks.masked import MaskedAutoencoder, MaskedDecoder, normalised, sincos_positions
from lisse.run import Run
from lisse.taps import Tap, feed, prepared, still, tapped

# How rows say that one set of weights was taken for the values of all heads side by side.
TOGETHER = "all heads together"
CONSTRUCTIONS = ("restricted", "zeroed", "refitted", "simplex", "least_squares")


def hidden_patches(network: MaskedAutoencoder, noise: Tensor) -> Tensor:
    """Which patches [n, p] are hidden for ``noise``: true where hidden."""
    return noise.argsort(dim=1).argsort(dim=1) >= network.visible_count()


def mask_mass(matrix: Tensor, hidden: Tensor, first: int) -> dict[str, Tensor]:
    """The share of attention [n, M, t, t] that goes to mask tokens, from masked and from unmasked patches."""
    patches = matrix[..., first:, :]
    onto = torch.einsum("nmij,nj->nmi", patches[..., first:], hidden.to(matrix)).mean(1)
    weights = hidden.to(matrix)
    return {
        key("mask_mass", queries="masked"): (onto * weights).sum(1) / weights.sum(1),
        key("mask_mass", queries="unmasked"): (onto * (1 - weights)).sum(1) / (1 - weights).sum(1),
    }


def lemma(heads: Heads, hidden: Tensor, first: int) -> dict[str, Tensor]:
    """Residuals of Lemma 6.1 in five constructions at the masked queries, means over these and over heads.

    ``lemma_residual`` is in the units of the values (for slopes), ``lemma_share`` over the mean norm of the output.
    The class token counts as unmasked. ``span_residual`` is the share of the output outside the span of (25): head by
    head, where every head has weights of its own and as many seen tokens as it is wide give anything, and for all heads
    ``together``, one set of weights for their values side by side, which is (25) in the width of the decoder.
    """
    assert heads.value is not None  # a decoder of the zoo
    matrix, values = heads.matrix.double(), heads.value.double()
    outputs = matrix @ values
    unmasked = torch.zeros(len(hidden), first, dtype=torch.bool, device=hidden.device)
    images = []
    for image, masked in enumerate(torch.cat((unmasked, hidden), 1)):
        # Convex weights to a few digits: they take most of the time here.
        residuals = [
            attention_residuals(a / a.sum(-1, keepdim=True), v, masked, queries=masked, tol=1e-7)
            for a, v in zip(matrix[image], values[image], strict=True)
        ]
        size = _mean([output[masked].norm(dim=-1) for output in outputs[image]])
        numbers: dict[str, Tensor] = {}
        for name in CONSTRUCTIONS:
            mean = _mean([getattr(head, name) for head in residuals])
            numbers[key("lemma_residual", construction=name)] = mean
            numbers[key("lemma_share", construction=name)] = mean / size
        numbers[key("span_residual")] = numbers[key("lemma_share", construction="least_squares")]
        points, output = (as_one_head(part[image : image + 1])[0, 0] for part in (values, outputs))
        share = span_residual(output[masked], points[~masked]).mean() / output[masked].norm(dim=-1).mean()
        numbers[key("span_residual", queries=f"masked, {TOGETHER}")] = share.cpu()
        images.append(numbers)
    return _stacked(images)


def _mean(heads: list[Tensor]) -> Tensor:
    """The mean over heads of means over queries."""
    return sum((values.mean().cpu() / len(heads) for values in heads), torch.zeros((), dtype=torch.float64))


def _stacked(images: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([numbers[name] for numbers in images]) for name in images[0]}


def as_one_head(by_head: Tensor) -> Tensor:
    """Values or outputs ``[n, M, t, h]`` of all heads side by side, as one head ``[n, 1, t, M·h]``."""
    return by_head.transpose(1, 2).flatten(2)[:, None]


def trivial(count: int, width: int, visible: int) -> list[str]:
    """In which of its two readings (25) holds whatever the network does: as many seen tokens as the values are wide.

    The layer has ``count`` heads of ``width``, and sees ``visible`` tokens.
    """
    notes = []
    if visible >= width:
        notes.append(
            f"Head by head (25) says nothing: {visible} tokens are seen and a head is {width} wide, so that "
            "span_residual and lemma_share of least_squares are 0 for any values. Read span_residual at "
            f"queries=masked, {TOGETHER} ({count * width} wide)."
        )
    if visible >= count * width:
        notes.append(
            f"(25) says nothing even for all heads together: {visible} tokens are seen and the values are "
            f"{count * width} wide."
        )
    return notes


def interpolation_weights(heads: Heads, hidden: Tensor, first: int, *, one_set: bool = False) -> Tensor:
    r"""The weights of (25), ``[n, M, p, p]``: at masked queries and unmasked keys, 0 elsewhere.

    Those of least norm with the least :math:`\|z_i - \sum_j a_j v_j\|`, taken over the unmasked values and the
    ``first`` tokens before the patches, whose weights have no place on the grid and are left out. With ``one_set`` the
    values of all heads side by side have one set of weights, ``[n, 1, p, p]``.
    """
    assert heads.value is not None
    values = heads.value.double()
    outputs = heads.matrix.double() @ values
    if one_set:
        values, outputs = as_one_head(values), as_one_head(outputs)
    p = heads.matrix.shape[-1] - first
    weights = values.new_zeros(*values.shape[:2], p, p)
    for image, masked in enumerate(hidden):
        visible = torch.cat((masked.new_zeros(first), masked)).logical_not()
        points, targets = values[image][:, visible], outputs[image][:, ~visible]  # M, |N|, h and M, |M|, h
        rows, columns = (~visible[first:]).nonzero(), visible[first:].nonzero()[:, 0]
        weights[image, :, rows, columns] = (targets @ torch.linalg.pinv(points))[..., first:]
    return weights.to(heads.matrix)


def interpolation(network: MaskedAutoencoder, logits: Tensor, images: Tensor, hidden: Tensor) -> dict[str, Tensor]:
    """Both sides of (26), image by image: reconstruction against target, in the network's own units.

    With normalised pixels the target is the normalised image, for that is what is painted.
    """
    painted, target = network.unpatchify(logits.double()), network.unpatchify(network.target(images.double()))
    numbers = []
    for reconstruction, image, masked in zip(painted, target, hidden, strict=True):
        bound = interpolation_bound(reconstruction, image, masked)
        numbers.append(
            {
                key("interpolation_error", of="masked patches"): bound.left.max().cpu(),
                key("interpolation_error", of="unmasked patches"): bound.unmasked.cpu(),
                key("interpolation_error", of="remainder"): bound.remainder.cpu(),
                key("interpolation_constant"): bound.constant.cpu(),
            }
        )
    return _stacked(numbers)


# --- Lemma 6.1 on several grids -------------------------------------------------------------------------------------


def check_positions(stage: Stage) -> None:
    """Refuse a network with other positions than the sine-cosine ones: on another grid they are not known."""
    network = _network(stage)
    for embedding in (network.pos_embed, network.decoder_pos_embed):
        positions = sincos_positions(network.side, embedding.shape[-1]).to(embedding)
        if not torch.allclose(embedding[0, 1:], positions, atol=1e-3):
            raise ValueError(
                "Propagation: sides must be left out for a network whose positions are not the sine-cosine ones, got "
                f"others in the {'encoder' if embedding is network.pos_embed else 'decoder'}. Leave out sides."
            )


def residuals_at(run: Run, stage: Stage, side: int, count: int) -> dict[str, Tensor]:
    """Mean residuals of Lemma 6.1 over ``count`` images at another size: ``[layers, constructions]``."""
    network = with_side(_network(stage), side)
    (batch,) = run.data.batches(count, stop=count, device=run.device)
    images = resized(prepared(run.model, batch.inputs), network.size)
    noise = run.draw(f"propagation side {side}", 0, count, (side * side,), law="uniform")
    decoder, hidden = MaskedDecoder(network).eval(), hidden_patches(network, noise)
    entries: dict[Tap, Tensor] = {}

    def on(tap: Tap, value: Tensor) -> None:
        entries[tap] = value.clone()

    means = []
    with still(decoder, seed=run.seed), tapped(decoder, [layer.site.entry for layer in stage.layers], on):
        feed(decoder, (normalised(run.model, images), noise))
        for layer in stage.layers:
            residuals = lemma(heads_of(decoder, layer.site, entries[layer.site.entry]), hidden, layer.leading)
            means.append([float(residuals[key("lemma_residual", construction=name)].mean()) for name in CONSTRUCTIONS])
    return {"residuals": torch.tensor(means)}


def _network(stage: Stage) -> MaskedAutoencoder:
    assert stage.network is not None
    return stage.network


def with_side(network: MaskedAutoencoder, side: int) -> MaskedAutoencoder:
    """The same weights on another grid of patches; the sine-cosine positions are those of that grid."""
    attention: Any = network.blocks[0].attn
    decoding: Any = network.decoder_blocks[0].attn
    width, decoder = network.norm.weight.numel(), network.decoder_norm.weight.numel()
    with torch.random.fork_rng(devices=[]):
        other = MaskedAutoencoder(
            network.in_channels, side * network.patch, patch=network.patch, width=width, heads=attention.heads,
            depth=len(network.blocks), decoder_width=decoder,
            decoder_heads=decoding.heads, decoder_depth=len(network.decoder_blocks),
            mask_ratio=network.mask_ratio, norm_pix=network.norm_pix, positions=True, eps=network.norm.eps,
            attention=attention.reading, qk_norm=attention.q_norm is not None, hidden=network.hidden,
            decoder_hidden=network.decoder_hidden,
        )  # fmt: skip
    weights = {name: value for name, value in network.state_dict().items() if not name.endswith("pos_embed")}
    other.load_state_dict(weights, strict=False)
    weight = next(network.parameters())
    return other.to(weight.device, weight.dtype).eval()


def resized(images: Tensor, size: int) -> Tensor:
    """Images at another size, bilinear with antialiasing."""
    return nn.functional.interpolate(images, (size, size), mode="bilinear", antialias=True, align_corners=False)
