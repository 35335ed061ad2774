"""Queries, keys and values of an attention layer head by head, and its attention matrix, in the model's precision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lisse.networks.attention.sites import AttentionSite
from lisse.networks.zoo.vit import SplitHeadAttention

# Names under which layers keep the map of their keys; its bias is not among the weights, for it cancels in a softmax.
_KEYS = ("key", "k_proj", "k_lin", "k", "to_k")
_FUSED = ("c_attn", "qkv", "in_proj", "query_key_value")


@dataclass(frozen=True)
class Heads:
    """Queries, keys, values ``[n, M, t, h]`` and what the layer makes of the first two.

    ``matrix`` ``[n, M, t, t]`` is the attention; where it alone is known, the others are ``None``. ``shut`` ``[n, M, t,
    t]`` is true where a query may not look (``None``: it may look everywhere).
    """

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    matrix: Tensor
    scale: float
    reading: str
    shut: Tensor | None = None

    def of(self, rows: Any) -> Heads:
        """The heads of some samples."""
        names = ("query", "key", "value", "matrix", "shut")
        return replace(self, **{name: part[rows] for name in names if (part := getattr(self, name)) is not None})


def heads_of(model: nn.Module, site: AttentionSite, entry: Tensor, added: Tensor | None = None) -> Heads:
    """The heads of ``site`` on what enters it ``[n, t, d]``; ``added`` goes on the scores (0 or -inf: a mask).

    For the zoo's layers by themselves, also in the readings of [cao2022]; for others from their weights: dot products.
    """
    module = model.get_submodule(site.entry.module)
    if isinstance(module, SplitHeadAttention):
        query, key, value = module.projected(entry)
        a, b, c = module.sides(query, key)
        scale, reading = (module.width // module.heads) ** -0.5, module.reading
        scores = a @ b.transpose(-1, -2) * scale
        scores = scores if c is None else scores + c[..., None, :]
    else:
        weights, reading, scale = site.weights, "dot", site.weights.scale
        query = _projected(entry, weights.query, weights.query_bias)
        key = _projected(entry, weights.key, _key_bias(module, weights.key))
        value = _projected(entry, weights.value, weights.value_bias)
        scores = query @ key.transpose(-1, -2) * scale
    if added is not None:
        scores = scores + added.to(scores)
    shut = None if added is None else added.isneginf().expand_as(scores)
    return Heads(query, key, value, scores.softmax(-1), scale, reading, shut)


def heads_seen(module: SplitHeadAttention, stacked: Tensor, matrix: Tensor) -> Heads:
    """The same from what a layer of the zoo made on its way: the output of its ``qkv`` and of its ``softmax``."""
    query, key, value = module.split(stacked)
    return Heads(query, key, value, matrix, (module.width // module.heads) ** -0.5, module.reading)


def _projected(x: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    """``x`` [n, t, d] through ``matrix`` [M, h, d] to [n, M, t, h]."""
    heads, width, d = matrix.shape
    flat = nn.functional.linear(x, matrix.reshape(-1, d).to(x), bias.reshape(-1).to(x))
    return flat.reshape(*x.shape[:2], heads, width).transpose(1, 2)


def _key_bias(module: nn.Module, key: Tensor) -> Tensor:
    """The bias of the keys' map ``[M, h]``, zero where there is none."""
    heads, width, _ = key.shape
    bias: Any = None
    for name in _KEYS:
        layer = getattr(module, name, None)
        if isinstance(layer, nn.Module):
            bias = getattr(layer, "bias", None)
            break
    else:
        fused = getattr(module, "in_proj_bias", None)
        for name in _FUSED:
            layer = getattr(module, name, None)
            fused = getattr(layer, "bias", None) if isinstance(layer, nn.Module) else fused  # GPT-2's is a Conv1D
        if isinstance(fused, Tensor) and len(fused) == 3 * heads * width:
            bias = fused.chunk(3)[1]
    if not isinstance(bias, Tensor) or bias.numel() != heads * width:
        return torch.zeros(heads, width)
    return bias.detach().reshape(heads, width)
