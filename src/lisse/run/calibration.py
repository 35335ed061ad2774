"""Running statistics of batch norm for a network whose weights are random: those of the data it will be trained on."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lisse.data import Dataset
from lisse.taps import feed, prepared, tracking_norms

CALIBRATION = 300  # samples that set the running statistics of a network with random weights


def calibrated(model: nn.Module, data: Dataset, batch: int, device: Any) -> nn.Module:
    """Set the running statistics of batch norm from data: what a network computes when its training starts.

    A new network's running statistics are 0 and 1 and fit no data; where the data cannot set them, it is refused.
    """
    norms = list(tracking_norms(model).values())
    if not norms:
        return model
    if min(batch, len(data)) < 2:
        raise ValueError(
            "calibrated: batch must hold at least 2 samples where batch norms have never seen data, "
            f"got batches of {min(batch, len(data))}. Give more samples, or weights."
        )
    momenta = [module.momentum for module in norms]
    for module in norms:
        module.reset_running_stats()
        module.momentum = None  # the mean over all batches
        module.train()
    with torch.no_grad():
        for part in data.batches(batch, stop=min(len(data), CALIBRATION), device=device):
            if part.size > 1:
                feed(model, prepared(model, part.inputs))
    for module, momentum in zip(norms, momenta, strict=True):
        module.momentum = momentum
    return model.eval()
