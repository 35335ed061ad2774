"""Attention-only networks of TopoLip [chen2024], Table 1: patches, ten attention layers, no MLP, no normalisation.

Heads have full width (Definition 1): 12 heads on d = 512 cannot be split evenly, and need not be
(docs/errata.md#topology). What the paper leaves open is chosen so: patch 4, learned positions, no residual connection
(``residual=true`` adds it), the mean over tokens and a linear head. Parameters: 40·M·d² + (16c + 1 + t)·d +
classes·(d + 1), t tokens.

======================  ==================  =============
name                    configuration       parameters
======================  ==================  =============
``attention_small``     4 heads, d = 128    2,637,194
``attention_large``     12 heads, d = 512   125,892,106
======================  ==================  =============
"""

from __future__ import annotations

import math

import torch
from torch import nn

from lisse.networks.zoo.options import check_divisible, check_sizes


class FullWidthAttention(nn.Module):
    """Multi-head self-attention whose heads all have the full width d (TopoLip, Definition 1).

        head_m(X)_i = Σ_j softmax_j( x_iᵀ Q_mᵀ K_m x_j / √(d/M) ) V_m x_j ,   o_i = W^O (head_1 ⊕ … ⊕ head_M)_i

    with Q_m, K_m, V_m in R^{d×d} and W^O in R^{d×Md}, all without bias. ``query.weight`` [M·d, d] stacks the Q_m, and
    so on; :meth:`matrices` takes them apart. Cost: O(M t d (d + t)) per sample.

    The weights pass through the submodule ``softmax``: a hook on it sees the attention matrices [n, M, t, t].
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.query = nn.Linear(width, heads * width, bias=False)
        self.key = nn.Linear(width, heads * width, bias=False)
        self.value = nn.Linear(width, heads * width, bias=False)
        self.softmax = nn.Softmax(dim=-1)
        self.out = nn.Linear(heads * width, width, bias=False)

    def matrices(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """``(Q, K, V, W_O)`` of shapes [M, d, d] (three times) and [d, M·d]."""
        shape = (self.heads, self.width, self.width)
        q, k, v = (layer.weight.reshape(shape) for layer in (self.query, self.key, self.value))
        return q, k, v, self.out.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [n, t, d] to [n, t, d]."""
        n, t, _ = x.shape
        q, k, v = (
            layer(x).reshape(n, t, self.heads, self.width).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        # Definition 1 scales by √(d/M), the width a split head would have, although these heads have width d.
        weights = self.softmax(q @ k.transpose(-1, -2) / math.sqrt(self.width / self.heads))
        mixed = (weights @ v).transpose(1, 2).reshape(n, t, self.heads * self.width)
        output: torch.Tensor = self.out(mixed)
        return output


class AttentionLayer(nn.Module):
    """One layer of the attention-only network: attention, and ``x +`` it where ``residual``."""

    def __init__(self, width: int, heads: int, *, residual: bool) -> None:
        super().__init__()
        self.attention = FullWidthAttention(width, heads)
        self.residual = residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [n, t, d] to [n, t, d]."""
        mixed: torch.Tensor = self.attention(x)
        return x + mixed if self.residual else mixed


class AttentionOnly(nn.Module):
    """Patch embedding with learned positions, ``depth`` attention layers in ``blocks``, token mean, linear ``head``."""

    def __init__(
        self, in_channels: int, size: int, classes: int, *, width: int, heads: int, depth: int, patch: int,
        residual: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.patch_embed = nn.Conv2d(in_channels, width, patch, stride=patch)
        self.pos_embed = nn.Parameter(torch.zeros(1, (size // patch) ** 2, width))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.blocks = nn.Sequential(*(AttentionLayer(width, heads, residual=residual) for _ in range(depth)))
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """``images`` [n, c, h, w] to logits [n, classes]."""
        tokens = self.patch_embed(images).flatten(2).transpose(1, 2) + self.pos_embed
        logits: torch.Tensor = self.head(self.blocks(tokens).mean(dim=1))
        return logits


def attention_network(
    name: str, *, in_channels: int = 3, size: int = 32, classes: int = 10, width: int, heads: int, depth: int = 10,
    patch: int = 4, residual: bool = False, sigma: float | None = None,
) -> AttentionOnly:  # fmt: skip
    """An attention-only network of TopoLip's Table 1; ``name`` is what errors call it.

    ``sigma`` draws Q, K, V, W^O from N(0, σ²) as the paper's §4 does; by default they have torch's linear init.
    """
    check_sizes(
        name, in_channels=in_channels, size=size, classes=classes, width=width, heads=heads, depth=depth, patch=patch
    )
    check_divisible(name, "size", size, "patch", patch)
    if sigma is not None and not (math.isfinite(sigma) and sigma > 0):
        raise ValueError(f"{name}: sigma must be positive and finite, got {sigma}. Leave it out for torch's default.")
    network = AttentionOnly(
        in_channels, size, classes, width=width, heads=heads, depth=depth, patch=patch, residual=residual
    )
    if sigma is not None:
        for module in network.modules():
            if isinstance(module, FullWidthAttention):
                for linear in (module.query, module.key, module.value, module.out):
                    nn.init.normal_(linear.weight, std=sigma)
    return network
