"""Masked autoencoders ([he2022]): an encoder that sees a quarter of the patches, a decoder that paints the others.

Parameter names are those of facebookresearch/mae, so that its checkpoints load; :mod:`lisse.networks.masked` changes
weights with Hugging Face's ``ViTMAEForPreTraining``, both ways.

==============  ==================================  ==================================  =========================
name            encoder                             decoder                             parameters
==============  ==================================  ==================================  =========================
``mae_small``   6 blocks, d = 192, 3 heads          4 blocks, d = 128, 4 heads          3,503,536 on 32×32×3
``mae_base``    12 blocks, d = 768, 12 heads        8 blocks, d = 512, 16 heads         111,655,680 on 224×224×3
==============  ==================================  ==================================  =========================
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lisse.networks.zoo.options import check_above_zero, check_divisible, check_sizes
from lisse.networks.zoo.vit import Block, PatchEmbedding, ScoreReading

# Added to a patch's variance before its root is taken, where targets are normalised patch by patch ([he2022]'s code).
PIXEL_EPS = 1e-6


def sincos_positions(side: int, width: int) -> Tensor:
    r"""Fixed two-dimensional sine-cosine positions [side², width], row by row ([he2022]).

    With :math:`\omega_m = 10000^{-4m/d}`, m < d/4, the patch in row r and column c gets :math:`\sin(c\,\omega)`,
    :math:`\cos(c\,\omega)`, :math:`\sin(r\,\omega)`, :math:`\cos(r\,\omega)`, in this order: the column first, as in
    the published code and weights. ``width`` is a multiple of 4.
    """
    omega = 10000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    along = torch.arange(side, dtype=torch.float64)[:, None] * omega
    waves = torch.cat((along.sin(), along.cos()), dim=1)
    rows, columns = waves.repeat_interleave(side, 0), waves.repeat(side, 1)
    return torch.cat((columns, rows), dim=1).to(torch.get_default_dtype())


class MaskedAutoencoder(nn.Module):
    """The network of [he2022]: patches, an encoder on the visible ones, mask tokens, a decoder on all, pixels.

    ``forward`` gives a dict: ``logits`` [n, p, patch²·c] (pixels of each patch, rows by columns by channels), ``mask``
    [n, p] (1: hidden), ``ids_restore`` [n, p] (place of each patch in the shuffled order) and ``loss``, the mean
    squared error over the hidden patches. With ``norm_pix`` the targets are each patch less its mean over its standard
    deviation. ``hidden`` and ``decoder_hidden`` are the widths inside the feed-forward networks, four times those of
    the tokens unless told.

    A patch is hidden where its ``noise`` [n, p] is among the largest: ⌊p·(1 - mask_ratio)⌋ stay. Without noise it is
    drawn anew in training, from torch's global generator; in evaluation it is one fixed draw, the same for every image,
    so that an image's output depends on nothing else.
    """

    pos_embed: Tensor
    decoder_pos_embed: Tensor

    def __init__(
        self, in_channels: int, size: int, *, patch: int, width: int, heads: int, depth: int, decoder_width: int,
        decoder_heads: int, decoder_depth: int, mask_ratio: float, norm_pix: bool, positions: bool, eps: float,
        attention: ScoreReading = "dot", qk_norm: bool = False, hidden: int | None = None,
        decoder_hidden: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_channels, self.size, self.patch, self.side = in_channels, size, patch, size // patch
        self.mask_ratio, self.norm_pix = mask_ratio, norm_pix
        self.hidden, self.decoder_hidden = hidden or 4 * width, decoder_hidden or 4 * decoder_width

        def block(width: int, heads: int, hidden: int) -> Block:
            return Block(width, heads, hidden, eps=eps, reading=attention, qk_norm=qk_norm)

        self.patch_embed = PatchEmbedding(in_channels, width, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.register_buffer("pos_embed", self._positions(width, positions))
        self.blocks = nn.ModuleList(block(width, heads, self.hidden) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=eps)
        self.decoder_embed = nn.Linear(width, decoder_width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, decoder_width))
        self.register_buffer("decoder_pos_embed", self._positions(decoder_width, positions))
        self.decoder_blocks = nn.ModuleList(
            block(decoder_width, decoder_heads, self.decoder_hidden) for _ in range(decoder_depth)
        )
        self.decoder_norm = nn.LayerNorm(decoder_width, eps=eps)
        self.decoder_pred = nn.Linear(decoder_width, patch**2 * in_channels)
        nn.init.normal_(self.cls_token, std=0.02)
        nn.init.normal_(self.mask_token, std=0.02)
        weight = self.patch_embed.proj.weight
        nn.init.xavier_uniform_(weight.view(len(weight), -1))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def _positions(self, width: int, positions: bool) -> Tensor:
        if not positions:
            return torch.zeros(1, 1 + self.side**2, width)
        return torch.cat((torch.zeros(1, width), sincos_positions(self.side, width)))[None]

    # -- patches -----------------------------------------------------------------------------------------------------

    def patchify(self, images: Tensor) -> Tensor:
        """``images`` [n, c, size, size] to [n, p, patch²·c], rows by columns by channels within a patch."""
        n, (c, k, g) = len(images), (self.in_channels, self.patch, self.side)
        if images.ndim != 4 or tuple(images.shape[1:]) != (c, self.size, self.size):
            raise ValueError(
                f"MaskedAutoencoder: images must have shape [n, {c}, {self.size}, {self.size}], got "
                f"{list(images.shape)}. Resize them, or build the network with size=… (a multiple of patch={k})."
            )
        return images.reshape(n, c, g, k, g, k).permute(0, 2, 4, 3, 5, 1).reshape(n, g * g, k * k * c)

    def unpatchify(self, patches: Tensor) -> Tensor:
        """The inverse of :meth:`patchify`."""
        n, (c, k, g) = len(patches), (self.in_channels, self.patch, self.side)
        if patches.ndim != 3 or tuple(patches.shape[1:]) != (g * g, k * k * c):
            raise ValueError(
                f"MaskedAutoencoder: patches must have shape [n, {g * g}, {k * k * c}], got {list(patches.shape)}. "
                "patchify makes them."
            )
        return patches.reshape(n, g, g, k, k, c).permute(0, 5, 1, 3, 2, 4).reshape(n, c, g * k, g * k)

    def target(self, images: Tensor) -> Tensor:
        """What the logits are compared with: the patches, normalised one by one where ``norm_pix`` says so."""
        patches = self.patchify(images)
        if not self.norm_pix:
            return patches
        return (patches - patches.mean(-1, keepdim=True)) / (patches.var(-1, keepdim=True) + PIXEL_EPS).sqrt()

    # -- masks -------------------------------------------------------------------------------------------------------

    def visible_count(self, mask_ratio: float | None = None) -> int:
        """How many patches stay visible at a ratio."""
        ratio = self.mask_ratio if mask_ratio is None else mask_ratio
        return visible_patches("MaskedAutoencoder", self.side**2, ratio)

    def _order(self, images: Tensor, noise: Tensor | None) -> Tensor:
        n, p = len(images), self.side**2
        if noise is None:
            if self.training:
                noise = torch.rand(n, p, device=images.device)
            else:
                noise = torch.rand(p, generator=torch.Generator().manual_seed(0)).to(images.device).expand(n, p)
        elif tuple(noise.shape) != (n, p):
            raise ValueError(
                f"MaskedAutoencoder: noise must have shape [{n}, {p}], a number per patch, got {list(noise.shape)}. "
                "torch.rand makes it."
            )
        elif not bool(torch.isfinite(noise).all()):
            raise ValueError("MaskedAutoencoder: noise must be finite, got NaN or infinity. torch.rand makes it.")
        return noise.to(images.device).argsort(dim=1)

    # -- the two halves ----------------------------------------------------------------------------------------------

    def embedded(self, images: Tensor) -> Tensor:
        """Patch embeddings with their positions [n, p, d], without the class token."""
        if images.ndim != 4 or tuple(images.shape[1:]) != (self.in_channels, self.size, self.size):
            self.patchify(images)  # says what is wrong
        return self.patch_embed(images) + self.pos_embed[:, 1:]

    def encode(self, images: Tensor, ids_keep: Tensor | None = None) -> Tensor:
        """The encoder's output [n, 1 + visible, d], class token first; without ``ids_keep`` it sees every patch."""
        tokens = self.embedded(images)
        if ids_keep is not None:
            tokens = tokens.gather(1, ids_keep[..., None].expand(-1, -1, tokens.shape[-1]))
        tokens = torch.cat(((self.cls_token + self.pos_embed[:, :1]).expand(len(tokens), -1, -1), tokens), dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        out: Tensor = self.norm(tokens)
        return out

    def filled(self, latent: Tensor, ids_restore: Tensor) -> Tensor:
        """What enters the decoder [n, 1 + p, d]: the encoder's tokens at their places, mask tokens at the others."""
        latent = self.decoder_embed(latent)
        n, p = ids_restore.shape
        missing = self.mask_token.to(latent.dtype).expand(n, 1 + p - latent.shape[1], -1)
        tokens = torch.cat((latent[:, 1:], missing), dim=1)
        tokens = tokens.gather(1, ids_restore[..., None].expand(-1, -1, tokens.shape[-1]))
        return torch.cat((latent[:, :1], tokens), dim=1) + self.decoder_pos_embed

    def painted(self, tokens: Tensor) -> Tensor:
        """Pixels [n, p, patch²·c] of a decoder layer's output [n, 1 + p, d]: the decoder's norm and its last layer."""
        pixels: Tensor = self.decoder_pred(self.decoder_norm(tokens))
        return pixels[:, 1:]

    def forward(
        self, images: Tensor, noise: Tensor | None = None, mask_ratio: float | None = None
    ) -> dict[str, Tensor]:
        """See the class."""
        target = self.target(images)
        order = self._order(images, noise)
        restore, count = order.argsort(dim=1), self.visible_count(mask_ratio)
        tokens = self.filled(self.encode(images, order[:, :count]), restore)
        for block in self.decoder_blocks:
            tokens = block(tokens)
        logits = self.painted(tokens)
        mask = (restore >= count).to(images.dtype)
        error = (logits - target).square().mean(-1)
        return {"logits": logits, "mask": mask, "ids_restore": restore, "loss": (error * mask).sum() / mask.sum()}


def visible_patches(function: str, patches: int, ratio: float) -> int:
    """⌊p·(1 - ratio)⌋ patches, at least one of them visible and one hidden."""
    if not (isinstance(ratio, (int, float)) and math.isfinite(ratio) and 0 < ratio < 1):
        raise ValueError(f"{function}: mask_ratio must lie in (0, 1), got {ratio}. The paper uses 0.75.")
    count = int(patches * (1 - ratio))
    if not 1 <= count < patches:
        raise ValueError(
            f"{function}: mask_ratio must leave at least one of the {patches} patches visible and hide one, got "
            f"{ratio} ({count} visible). Use 0.75."
        )
    return count


def mae(
    name: str, *, in_channels: int = 3, size: int = 32, patch: int = 4, width: int = 192, heads: int = 3,
    depth: int = 6, decoder_width: int = 128, decoder_heads: int = 4, decoder_depth: int = 4, mask_ratio: float = 0.75,
    norm_pix: bool = False, positions: bool = True, eps: float = 1e-6, attention: ScoreReading = "dot",
    qk_norm: bool = False,
) -> MaskedAutoencoder:  # fmt: skip
    """A masked autoencoder, by default for CIFAR: 8×8 patches of 4×4; ``name`` is what errors call it."""
    check_sizes(
        name, in_channels=in_channels, size=size, patch=patch, width=width, heads=heads, depth=depth,
        decoder_width=decoder_width, decoder_heads=decoder_heads,
    )  # fmt: skip
    if not 0 <= decoder_depth <= 1000:
        raise ValueError(f"{name}: decoder_depth must lie in 0..1000, got {decoder_depth}. The paper uses 8.")
    check_divisible(name, "size", size, "patch", patch)
    check_divisible(name, "width", width, "heads", heads)
    check_divisible(name, "decoder_width", decoder_width, "decoder_heads", decoder_heads)
    if positions:
        for which, value in (("width", width), ("decoder_width", decoder_width)):
            if value % 4:
                raise ValueError(
                    f"{name}: {which} must be a multiple of 4 for sine-cosine positions, got {value}. Use "
                    f"{which}={max(4, value - value % 4)}, or positions=false."
                )
    check_above_zero(name, eps=eps)
    visible_patches(name, (size // patch) ** 2, mask_ratio)
    return MaskedAutoencoder(
        in_channels, size, patch=patch, width=width, heads=heads, depth=depth, decoder_width=decoder_width,
        decoder_heads=decoder_heads, decoder_depth=decoder_depth, mask_ratio=mask_ratio, norm_pix=norm_pix,
        positions=positions, eps=eps, attention=attention, qk_norm=qk_norm,
    )  # fmt: skip
