"""An attention layer head by head, from its weights or from what it was called with, and its attention matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lisse.networks.attention.sites import AttentionSite, close
from lisse.networks.zoo.vit import SplitHeadAttention
from lisse.taps import AttentionCall

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


def heads_called(call: AttentionCall) -> Heads:
    """The heads of one call: rebuilt in float32 or better, or, where its softmax alone was seen, only their matrix.

    Logits are s q·k (+ table), capped, + mask; sinks take their share of each row, which then sums to less than 1.
    """
    if call.query is None or call.key is None or call.value is None:
        assert call.matrix is not None  # a call has one or the other
        return Heads(None, None, None, call.matrix, 1.0, "dot")
    query, key, value = (shared(part, call.query.shape[1]) for part in (call.query, call.key, call.value))
    scores, shut = logits(call)
    return Heads(query, key, value, _rows(scores, call.sinks), call.scale, "dot", shut)


def logits(call: AttentionCall) -> tuple[Tensor, Tensor | None]:
    """Logits ``[n, M, t, s]`` with -inf where a query may not look, and where that is (``None``: nowhere)."""
    assert call.query is not None
    assert call.key is not None
    query, key = (x.float() if x.dtype.itemsize < 4 else x for x in (call.query, shared(call.key, call.query.shape[1])))
    scores = query @ key.transpose(-1, -2) * call.scale
    if call.bias is not None:
        scores = scores + call.bias.to(scores)
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    shut, mask = None, call.mask
    if mask is not None:
        while mask.ndim < 4:
            mask = mask[None]
        mask = mask[..., : scores.shape[-1]]
        # Numbers that close are the least of some precision, not always -inf.
        shut = ~mask if mask.dtype == torch.bool else mask <= torch.finfo(mask.dtype).min / 2
        if mask.dtype != torch.bool:
            scores = scores + mask.to(scores)
    if call.causal:
        back = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        shut = back if shut is None else shut | back
    if shut is None:
        return scores, None
    shut = (shut & ~shut.all(-1, keepdim=True)).expand_as(scores)  # a query to whom nothing is left is never read
    return scores.masked_fill(shut, -torch.inf), shut


def shared(part: Tensor, heads: int) -> Tensor:
    """Keys or values ``[n, G, s, h]`` of groups, once for every head."""
    return part if part.shape[1] == heads else part.repeat_interleave(heads // part.shape[1], 1)


def rebuilds(call: AttentionCall, valid: Tensor) -> bool:
    """Whether what :func:`heads_called` makes of a call gives the call's own output on the ``valid`` tokens [n, t]."""
    if call.query is None or call.output is None or call.output.shape[:3] != call.query.shape[:3]:
        return False
    heads = heads_called(call)
    assert heads.value is not None
    output = heads.matrix @ heads.value.to(heads.matrix)
    tol = 1e-4 if call.output.dtype.itemsize >= 4 else 5e-2
    rows = [x.transpose(1, 2).flatten(2).double() for x in (output, call.output)]
    return close(rows[0], rows[1], valid.to(output.device), tol)


def _rows(scores: Tensor, sinks: Tensor | None) -> Tensor:
    if sinks is None:
        return scores.softmax(-1)
    ends = sinks.to(scores).reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, ends], -1).softmax(-1)[..., :-1]
