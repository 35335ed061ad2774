"""Training of small isometric networks on all of their points at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lisse.maths.isometry import euclidean
from lisse.networks.isometric.network import LocallyIsometric
from lisse.networks.isometric.stacked import StackedIsometric


def fit(
    network: LocallyIsometric | StackedIsometric,
    x: Tensor,
    targets: Tensor | Sequence[Tensor],
    *,
    epochs: int,
    alpha: float = 1.0,
    beta: float = 1.0,
    rate: float = 1e-3,
    all_pairs: bool = False,
    watch: Callable[[int, Sequence[float]], None] | None = None,
) -> list[float]:
    r"""Train with Adam on :math:`\alpha L_{CSE} + \beta L_{ISO}`, one batch of all points; the losses of every epoch.

    The recipe of [beshkov2022] §2.2 for rings and torus (10,000 epochs). A stack is trained on the sum of its stages'
    losses, with one tensor of ``targets`` per stage. ``all_pairs``: global isometry (a single network only). ``watch``
    is called after every epoch with its number (from 1) and the losses so far. A loss that is not finite ends it: the
    list is then shorter than ``epochs``, its last entry not finite, and the weights are those before that step.
    """
    if epochs < 0:
        raise ValueError(f"fit: epochs must be at least 0, got {epochs}.")
    if all_pairs and isinstance(network, StackedIsometric):
        raise ValueError("fit: all_pairs must be false for a stack: its stages have partitions of their own.")
    labels = [targets] if isinstance(targets, Tensor) else list(targets)
    weights = [p for p in network.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(weights, lr=rate, fused=True)  # small weights: most of the time is calls
    # The input does not move: its distances are made once.
    distances = euclidean(x.detach()) if beta else None
    network.train()
    losses: list[float] = []
    for epoch in range(1, epochs + 1):
        if isinstance(network, StackedIsometric):
            stages = network.losses(x, labels, alpha=alpha, beta=beta, distances=distances)
            total = torch.stack([loss.total for loss in stages]).sum()
        else:
            total = network.loss(x, labels[0], alpha=alpha, beta=beta, all_pairs=all_pairs, distances=distances).total
        losses.append(float(total.detach()))
        if not torch.isfinite(total.detach()):
            break
        optimiser.zero_grad(set_to_none=True)
        total.backward()
        optimiser.step()
        if watch is not None:
            watch(epoch, losses)
    optimiser.zero_grad(set_to_none=True)
    network.eval()
    return losses
