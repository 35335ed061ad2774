"""What an attack makes large: a number for each sample, from its logits and its class."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

AttackLoss = Literal["margin", "dlr", "cross-entropy"]


def lost_margins(logits: Tensor, y: Tensor) -> Tensor:
    r""":math:`\max_{c \ne y} z_c - z_y` ``[n]``: above 0 exactly where the answer is wrong."""
    true = logits.gather(1, y[:, None])[:, 0]
    return logits.scatter(1, y[:, None], -torch.inf).amax(1) - true


def attack_losses(logits: Tensor, y: Tensor, loss: AttackLoss) -> Tensor:
    r"""The loss of each sample ``[n]``.

    - ``margin``: :math:`\max_{c \ne y} z_c - z_y`; its gradient turns with no temperature of the logits, since the step
      takes its direction alone.
    - ``dlr``: the margin over :math:`z_{\pi_1} - z_{\pi_3}`, the gap between the largest and the third logit: the same
      at any temperature in value too ([croce2020] eq. 6). Needs three classes.
    - ``cross-entropy``: :math:`-\log p_y`, the papers' own; its gradient goes to 0 where the network is sure.
    """
    if loss == "cross-entropy":
        return functional.cross_entropy(logits, y, reduction="none")
    margins = lost_margins(logits, y)
    if loss == "margin":
        return margins
    largest = logits.topk(3, 1).values
    return margins / (largest[:, 0] - largest[:, 2]).clamp_min(1e-12)
