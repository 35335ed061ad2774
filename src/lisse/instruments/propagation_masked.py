"""What mask tokens do in a decoder: their share of the attention, Lemma 6.1, the span of (25), both sides of (26)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lisse.instruments.propagation_layers import Key, key
from lisse.maths.masking import attention_residuals, interpolation_bound, span_residual
from lisse.networks.attention_heads import Heads
from lisse.networks.masked import MaskedAutoencoder, sincos_positions

# How rows say that one set of weights was taken for the values of all heads side by side.
TOGETHER = "all heads together"
CONSTRUCTIONS = ("restricted", "zeroed", "refitted", "simplex", "least_squares")


def hidden_patches(network: MaskedAutoencoder, noise: Tensor) -> Tensor:
    """Which patches [n, p] are hidden for ``noise``: true where hidden."""
    return noise.argsort(dim=1).argsort(dim=1) >= network.kept()


def mask_mass(matrix: Tensor, hidden: Tensor, first: int) -> dict[Key, Tensor]:
    """The share of attention [n, M, t, t] that goes to mask tokens, from masked and from unmasked patches."""
    patches = matrix[..., first:, :]
    onto = torch.einsum("nmij,nj->nmi", patches[..., first:], hidden.to(matrix)).mean(1)
    weights = hidden.to(matrix)
    return {
        key("mask_mass", queries="masked"): (onto * weights).sum(1) / weights.sum(1),
        key("mask_mass", queries="unmasked"): (onto * (1 - weights)).sum(1) / (1 - weights).sum(1),
    }


def lemma(heads: Heads, hidden: Tensor, first: int) -> dict[Key, Tensor]:
    """Residuals of Lemma 6.1 in five constructions at the masked queries, means over these and over heads.

    ``lemma_residual`` is in the units of the values (for slopes), ``lemma_share`` over the mean norm of the output.
    The class token counts as unmasked. ``span_residual`` is the share of the output outside the span of (25): head by
    head, where every head has weights of its own and as many seen tokens as it is wide give anything, and for all heads
    ``together``, one set of weights for their values side by side, which is (25) in the width of the decoder.
    """
    n, count = len(hidden), heads.matrix.shape[1]
    seen = torch.zeros(n, first, dtype=torch.bool, device=hidden.device)
    masked = torch.cat((seen, hidden), 1)
    found: dict[Key, list[Tensor]] = {}
    matrix, values = heads.matrix.double(), heads.value.double()
    for image in range(n):
        here = masked[image]
        sums: dict[str, Tensor] = {}
        size = torch.zeros((), dtype=torch.float64)
        for head in range(count):
            a, v = matrix[image, head], values[image, head]
            # Convex weights to a few digits: they take most of the time here.
            residuals = attention_residuals(a / a.sum(-1, keepdim=True), v, here, queries=here, tol=1e-7)
            size = size + (a @ v)[here].norm(dim=-1).mean().cpu() / count
            for name in CONSTRUCTIONS:
                sums[name] = sums.get(name, torch.zeros(())) + getattr(residuals, name).mean().cpu() / count
        for name in CONSTRUCTIONS:
            found.setdefault(key("lemma_residual", construction=name), []).append(sums[name])
            found.setdefault(key("lemma_share", construction=name), []).append(sums[name] / size)
        found.setdefault(key("span_residual"), []).append(sums["least_squares"] / size)
        whole = together(values[image : image + 1])[0, 0]
        output = together(matrix[image : image + 1] @ values[image : image + 1])[0, 0][here]
        share = span_residual(output, whole[~here]).mean() / output.norm(dim=-1).mean()
        found.setdefault(key("span_residual", queries=f"masked, {TOGETHER}"), []).append(share.cpu())
    return {name: torch.stack(numbers) for name, numbers in found.items()}


def together(by_head: Tensor) -> Tensor:
    """Values or outputs ``[n, M, t, h]`` of all heads side by side, as one head ``[n, 1, t, M·h]``."""
    return by_head.transpose(1, 2).flatten(2)[:, None]


def trivial(heads: Heads, hidden: Tensor, first: int) -> list[str]:
    """In which of its two readings (25) holds whatever the network does: as many seen tokens as the values are wide."""
    seen = first + int((~hidden[0]).sum())
    count, width = heads.value.shape[1], heads.value.shape[-1]
    found = []
    if seen >= width:
        found.append(
            f"Head by head (25) says nothing: {seen} tokens are seen and a head is {width} wide, so that span_residual "
            f"and lemma_share of least_squares are 0 for any values. Read span_residual at queries=masked, {TOGETHER} "
            f"({count * width} wide)."
        )
    if seen >= count * width:
        found.append(
            f"(25) says nothing even for all heads together: {seen} tokens are seen and the values are "
            f"{count * width} wide."
        )
    return found


def interpolation_weights(heads: Heads, hidden: Tensor, first: int, *, one_set: bool = False) -> Tensor:
    r"""The weights of (25), ``[n, M, p, p]``: at masked queries and unmasked keys, 0 elsewhere.

    Those of least norm with the least :math:`\|z_i - \sum_j a_j v_j\|`, taken over the unmasked values and the
    ``first`` tokens before the patches, whose weights have no place on the grid and are left out. With ``one_set`` the
    values of all heads side by side have one set of weights, ``[n, 1, p, p]``.
    """
    values = heads.value.double()
    outputs = heads.matrix.double() @ values
    if one_set:
        values, outputs = together(values), together(outputs)
    p = heads.matrix.shape[-1] - first
    found = values.new_zeros(*values.shape[:2], p, p)
    for image, masked in enumerate(hidden):
        seen = torch.cat((masked.new_zeros(first), masked)).logical_not()
        points = values[image][:, seen]  # M, |N|, h
        targets = outputs[image][:, ~seen]
        weights = targets @ torch.linalg.pinv(points)
        rows, columns = (~seen[first:]).nonzero(), seen[first:].nonzero()[:, 0]
        found[image, :, rows, columns] = weights[..., first:]
    return found.to(heads.matrix)


def interpolation(network: MaskedAutoencoder, logits: Tensor, images: Tensor, hidden: Tensor) -> dict[Key, Tensor]:
    """Both sides of (26), image by image: reconstruction against target, in the network's own units.

    With normalised pixels the target is the normalised image, for that is what is painted.
    """
    found: dict[Key, list[Tensor]] = {}
    painted, target = network.unpatchify(logits.double()), network.unpatchify(network.target(images.double()))
    for one, other, masked in zip(painted, target, hidden, strict=True):
        bound = interpolation_bound(one, other, masked)
        for name, value in (
            ("masked patches", bound.left.max()),
            ("unmasked patches", bound.unmasked),
            ("remainder", bound.remainder),
        ):
            found.setdefault(key("interpolation_error", of=name), []).append(value.cpu())
        found.setdefault(key("interpolation_constant"), []).append(bound.constant.cpu())
    return {name: torch.stack(numbers) for name, numbers in found.items()}


def movable(network: MaskedAutoencoder) -> None:
    """Refuse a network with other positions than the sine-cosine ones: on another grid they are not known."""
    for embedding in (network.pos_embed, network.decoder_pos_embed):
        own = sincos_positions(network.side, embedding.shape[-1]).to(embedding)
        if not torch.allclose(embedding[0, 1:], own, atol=1e-3):
            raise ValueError(
                "Propagation: sides must be left out for a network whose positions are not the sine-cosine ones, got "
                f"others in the {'encoder' if embedding is network.pos_embed else 'decoder'}. Leave out sides."
            )


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
    kept = {name: value for name, value in network.state_dict().items() if not name.endswith("pos_embed")}
    other.load_state_dict(kept, strict=False)
    weight = next(network.parameters())
    return other.to(weight.device, weight.dtype).eval()


def resized(images: Tensor, size: int) -> Tensor:
    """Images at another size, bilinear with antialiasing."""
    return nn.functional.interpolate(images, (size, size), mode="bilinear", antialias=True, align_corners=False)
