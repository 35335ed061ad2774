"""AugMix: images mixed from chains of small operations, and the loss that keeps the answers to them together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_GEOMETRIC = 5  # rotate, shear in x and y, shift in x and y; then the four operations on values
_OPERATIONS = 9


@dataclass(frozen=True)
class AugMix:
    r"""Every image beside two mixtures of itself, whose answers are kept together ([hendrycks2020] algorithm 1).

    .. math:: \tilde x = (1 - m)\, x + m \sum_{k=1}^{w} a_k\, c_k(x), \quad
              a \sim \mathrm{Dirichlet}(1), \; m \sim \mathrm{Beta}(1, 1), \qquad
              L(p, y) + \lambda\, \mathrm{JS}(p; \tilde p_1; \tilde p_2)

    with chains :math:`c_k` of one to three operations out of nine that no common corruption uses: rotation, shears and
    shifts, autocontrast, equalisation, posterisation and solarisation, of strength 1 to ``severity`` out of 10; w =
    ``width``, λ = ``consistency``. Images are ``[n, c, h, w]`` in [0, 1]; every image has draws of its own, a whole
    batch at a time on its device, from torch's global generators. As a ``lesson`` of :func:`lisse.train`, or in a loop
    of one's own: ``augmix.loss(model, x, y)``; ``augmix(x)`` is one mixture alone, an augmentation.

    Differences from the published program: strengths are drawn in [1, ``severity``] and not below, all chains have
    their operations done for the whole batch, and bilinear interpolation is used. Cost: the network sees three images
    for one, and two times ``width`` times three rounds of operations are made.
    """

    severity: float = 3.0
    width: int = 3
    consistency: float = 12.0

    def __post_init__(self) -> None:
        """Check the options."""
        if not 1 <= self.severity <= 10:
            raise ValueError(f"AugMix: severity must be from 1 to 10, got {self.severity!r}. 3 is the paper's.")
        if isinstance(self.width, bool) or not isinstance(self.width, int) or self.width < 1:
            raise ValueError(f"AugMix: width must be a whole number of at least 1, got {self.width!r}.")
        if not 0 <= self.consistency < math.inf:
            raise ValueError(f"AugMix: consistency must be at least 0, got {self.consistency!r}. 12 is the paper's.")

    def __call__(self, x: Tensor) -> Tensor:
        """A mixture of every image ``[n, c, h, w]``."""
        if x.ndim != 4 or not x.is_floating_point():
            raise ValueError(f"AugMix: images must be floats [n, c, h, w], got {x.dtype} {list(x.shape)}.")
        n, device = len(x), x.device
        gammas = -torch.rand(self.width, n, dtype=torch.float32, device=device).clamp_min(1e-12).log()
        shares = gammas / gammas.sum(0)
        mixed = torch.zeros_like(x)
        for share in shares:
            chain, depth = x, torch.randint(1, 4, (n,), device=device)
            for turn in range(3):
                chain = torch.where((turn < depth)[:, None, None, None], self._operated(chain), chain)
            mixed += share.to(x)[:, None, None, None] * chain
        weight = torch.rand(n, dtype=torch.float32, device=device).to(x)[:, None, None, None]
        return torch.lerp(x, mixed, weight)

    def views(self, network: Callable[[Tensor], Any], x: Tensor, y: Tensor | None) -> Tensor:
        """What the network is to see: the images, and two mixtures of each ``[3 n, …]``."""
        with torch.no_grad():
            return torch.cat([x, self(x), self(x)])

    def task(self, output: Tensor, y: Tensor, loss: Callable[[Any, Any], Tensor] = functional.cross_entropy) -> Tensor:
        """The loss of the answers to :meth:`views`."""
        clean, *mixtures = output.float().chunk(3)
        return loss(clean, y) + self.consistency * divergence(clean, *mixtures)

    def loss(self, network: Callable[[Tensor], Any], x: Tensor, y: Tensor) -> Tensor:
        """The whole loss of a batch, for a loop of one's own."""
        return self.task(network(self.views(network, x, y)), y)

    def _operated(self, x: Tensor) -> Tensor:
        """One operation for each image, of nine, and of a strength of its own."""
        n, device = len(x), x.device
        which = torch.randint(0, _OPERATIONS, (n,), device=device)
        strength = (1 + (self.severity - 1) * torch.rand(n, dtype=torch.float32, device=device)) / 10
        sign = 2.0 * torch.randint(0, 2, (n,), device=device) - 1
        result = warped(x, which, strength * sign)
        values = (autocontrast, flat_histogram, lambda v: posterised(v, strength), lambda v: solarised(v, strength))
        for index, change in enumerate(values, _GEOMETRIC):
            result = torch.where((which == index)[:, None, None, None], change(x), result)
        return result


def divergence(*logits: Tensor) -> Tensor:
    r"""Jensen–Shannon divergence of answers ``[n, c]`` each, a mean over samples: 0 where they agree.

    .. math:: \mathrm{JS} = \frac1v \sum_k KL(p_k \,\|\, \bar p), \quad \bar p = \frac1v \sum_k p_k
    """
    logs = torch.stack([values.log_softmax(1) for values in logits])
    middle = torch.logsumexp(logs, 0) - math.log(len(logits))
    return (logs.exp() * (logs - middle)).sum(2).mean()


def warped(x: Tensor, which: Tensor, strength: Tensor) -> Tensor:
    """Images turned by up to 30°, sheared by up to 0.3 or shifted by up to a third, by their number 0 … 4 in that
    order; others stay. ``strength`` is in [-1, 1]; black comes in."""
    angle = strength * math.pi / 6 * (which == 0)
    cos, sin = angle.cos(), angle.sin()
    shear = [0.3 * strength * (which == 1), 0.3 * strength * (which == 2)]
    shift = [2 / 3 * strength * (which == 3), 2 / 3 * strength * (which == 4)]
    rows = [torch.stack([cos, shear[0] - sin, shift[0]], 1), torch.stack([shear[1] + sin, cos, shift[1]], 1)]
    grid = functional.affine_grid(torch.stack(rows, 1).to(x), list(x.shape), align_corners=False)
    moved = functional.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return torch.where((which < _GEOMETRIC)[:, None, None, None], moved, x)


def autocontrast(x: Tensor) -> Tensor:
    """Every channel stretched to [0, 1]; one of a single value stays."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp_min(1e-6), x)


def flat_histogram(x: Tensor) -> Tensor:
    """Every channel with the histogram of its 256 levels made flat, rounded as PIL's ``equalize`` does."""
    n, c, h, w = x.shape
    levels = (x * 255).round().clamp(0, 255).long().reshape(n * c, h * w)
    weights = torch.ones_like(levels, dtype=torch.float32)  # whatever the default type: it is bf16 in such a training
    counts = torch.zeros(n * c, 256, dtype=torch.float32, device=x.device).scatter_add_(1, levels, weights)
    step = ((h * w - counts.gather(1, levels.amax(1, keepdim=True))) / 255).floor()
    table = (((step / 2).floor() + counts.cumsum(1) - counts) / step.clamp_min(1)).floor().clamp_max(255)
    flat = table.gather(1, levels).div_(255).reshape(x.shape).to(x)
    return torch.where((step > 0).reshape(n, c, 1, 1), flat, x)


def posterised(x: Tensor, strength: Tensor) -> Tensor:
    """Levels of 8 bits with up to four of the low ones cut off."""
    step = 2.0 ** (4 * strength).ceil()[:, None, None, None].to(x)
    return (x * 255 / step).floor() * step / 255


def solarised(x: Tensor, strength: Tensor) -> Tensor:
    """Values above 1 - ``strength`` turned into their negative."""
    return torch.where(x >= (1 - strength)[:, None, None, None].to(x), 1 - x, x)
