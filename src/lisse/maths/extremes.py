"""How large the largest numbers of a network are: what half precision and softmax can bear, and what diverges first."""

from __future__ import annotations

import torch
from torch import Tensor


def massive_activation(activation: Tensor, mask: Tensor | None = None) -> Tensor:
    r""":math:`\max_i|a_i| / \mathrm{median}_i|a_i|` of each sample's numbers ``[n, …]``: ``[n]``, float32 or better.

    ``mask`` ``[n, t]`` says which tokens of ``[n, t, d]`` are data. Infinite where half of the numbers are zero. Cost:
    one selection in each sample's numbers. Reference: [sun2024], who call a hundredfold and more massive.
    """
    sizes = (activation.float() if activation.dtype.itemsize < 4 else activation).abs()
    if mask is not None and sizes.ndim == 3 and mask.shape == sizes.shape[:2]:
        sizes = sizes.masked_fill(~mask.bool().to(sizes.device)[..., None], torch.nan)
    flat = sizes.flatten(1)
    return flat.nan_to_num(0.0, posinf=torch.inf).amax(1) / flat.nanmedian(1).values


def largest_logit(logits: Tensor, valid: Tensor | None = None) -> Tensor:
    """The largest attention logit of each head: ``[n, M]`` of logits ``[n, M, t, s]``, of ``valid`` queries [n, t].

    What a mask shuts is -inf (or the least number there is) and never the largest.
    """
    if valid is not None and valid.shape == (logits.shape[0], logits.shape[2]):
        logits = logits.masked_fill(~valid.bool().to(logits.device)[:, None, :, None], -torch.inf)
    return logits.flatten(2).amax(2)
