"""The attention of a layer from what it was called with: behind rotations, norms and shared keys, whoever wrote it."""

from __future__ import annotations

import torch
from torch import Tensor

from lisse.networks.attention.heads import Heads
from lisse.networks.attention.sites import close
from lisse.taps import AttentionCall


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
