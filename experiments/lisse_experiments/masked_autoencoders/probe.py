"""Linear probes: how well a straight line through frozen features tells the classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lisse.maths.intervals import share_interval
from lisse.networks.masked import masked_network
from lisse.networks.zoo.vit import VisionTransformer

DECAYS = (1e-4, 1e-3, 1e-2, 1e-1)


@dataclass(frozen=True)
class Probe:
    """Right answers on ``n`` test samples, with the interval of the share, and the weight decay that was chosen."""

    accuracy: float
    low: float
    high: float
    n: int
    decay: float


def features(model: nn.Module, images: Tensor, *, batch: int = 1000) -> Tensor:
    """The mean over all patches of what the encoder gives after its last norm [n, d]; images in [0, 1], none hidden."""
    network = masked_network(model)
    vit: Any = next((module for module in model.modules() if isinstance(module, VisionTransformer)), None)
    mean, std = getattr(model, "mean", None), getattr(model, "std", None)
    parts = []
    with torch.no_grad():
        for start in range(0, len(images), batch):
            part = images[start : start + batch]
            normal = part if mean is None or std is None else (part - mean) / std
            if network is not None:
                tokens = network.encode(normal)
            elif vit is not None:
                patches = vit.patch_embed(normal)
                tokens = torch.cat((vit.cls_token.expand(len(patches), -1, -1), patches), dim=1) + vit.pos_embed
                tokens = vit.norm(vit.blocks(tokens))
            else:
                raise TypeError(f"features: model must be a masked autoencoder or a ViT, got {type(model).__name__}.")
            parts.append(tokens[:, 1:].mean(1).float())
    return torch.cat(parts)


def linear_probe(x: Tensor, y: Tensor, test: Tensor, labels: Tensor, *, iterations: int = 200) -> Probe:
    """Logistic regression on standardised features by L-BFGS, all samples at once.

    The penalty decay/2·‖W‖² is the one of :data:`DECAYS` that does best on the last tenth of the training samples; the
    regression is then made with all of them. No randomness.
    """
    mean, std = x.mean(0), x.std(0).clamp_min(1e-6)
    x, test = (x - mean) / std, (test - mean) / std
    classes, cut = int(max(y.max(), labels.max())) + 1, len(x) - len(x) // 10
    scores = {}
    for decay in DECAYS:
        weights = _fitted(x[:cut], y[:cut], classes, decay, iterations)
        scores[decay] = int(_right(weights, x[cut:], y[cut:]))
    best = max(scores, key=scores.__getitem__)
    right = int(_right(_fitted(x, y, classes, best, iterations), test, labels))
    share = share_interval(right / len(test), len(test))
    return Probe(float(share.value), float(share.low), float(share.high), share.n, best)


def _right(weights: tuple[Tensor, Tensor], x: Tensor, y: Tensor) -> Tensor:
    matrix, bias = weights
    return ((x @ matrix + bias).argmax(1) == y).sum()


def _fitted(x: Tensor, y: Tensor, classes: int, decay: float, iterations: int) -> tuple[Tensor, Tensor]:
    matrix = torch.zeros(x.shape[1], classes, device=x.device, dtype=x.dtype, requires_grad=True)
    bias = torch.zeros(classes, device=x.device, dtype=x.dtype, requires_grad=True)
    solver = torch.optim.LBFGS(
        [matrix, bias], max_iter=iterations, tolerance_grad=1e-6, line_search_fn="strong_wolfe", history_size=10
    )

    def closure() -> Tensor:
        solver.zero_grad()
        loss: Tensor = nn.functional.cross_entropy(x @ matrix + bias, y) + decay / 2 * matrix.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        solver.step(closure)
    return matrix.detach(), bias.detach()
