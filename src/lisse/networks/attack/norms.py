"""Balls of perturbations: the steepest step, the way back into the ball and the box, a random point."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

Norm = Literal["linf", "l2"]
_NAMES: dict[Any, Norm] = {
    "linf": "linf", "inf": "linf", "l∞": "linf", "Linf": "linf", "l2": "l2", "L2": "l2", "2": "l2", 2: "l2",
    math.inf: "linf",
}  # fmt: skip
_TINY = 1e-12


def norm_named(function: str, norm: Any) -> Norm:
    """``linf`` or ``l2``, however it is spelled (``inf``, ``math.inf``, ``2``…)."""
    name = _NAMES.get(norm) if isinstance(norm, (str, int, float)) and not isinstance(norm, bool) else None
    if name is None:
        raise ValueError(f"{function}: norm must be 'linf' (or inf) or 'l2' (or 2), got {norm!r}. Choose one of these.")
    return name


def lengths(x: Tensor) -> Tensor:
    """Euclidean norms of the samples, shaped to multiply ``x`` ``[n, …]``."""
    return torch.linalg.vector_norm(x.flatten(1), dim=1).reshape(-1, *[1] * (x.ndim - 1))


def steepest(gradient: Tensor, norm: Norm) -> Tensor:
    """The direction of unit norm along which the loss grows fastest; 0 where the gradient is."""
    return gradient.sign() if norm == "linf" else gradient / lengths(gradient).clamp_min(_TINY)


class NormBall:
    """The perturbations that are allowed: within ``eps`` of ``x``, and inside the box ``bounds`` where there is one.

    ``eps`` may be a number for each sample, shaped to multiply ``x``.
    The box holds ``x``; so going back first into the ball and then into the box ends in both. For ℓ∞ both are one
    clamp.
    """

    def __init__(self, x: Tensor, norm: Norm, eps: float | Tensor, bounds: tuple[float, float] | None) -> None:
        self.x, self.norm, self.eps, self.bounds = x, norm, eps, bounds
        if norm == "linf":
            self.low, self.high = x - eps, x + eps
            if bounds is not None:
                self.low.clamp_min_(bounds[0])
                self.high.clamp_max_(bounds[1])

    def back(self, moved: Tensor) -> Tensor:
        """``moved`` brought back; changed in place."""
        if self.norm == "linf":
            # clamp of a tensor between tensors is slower than the two halves
            return torch.minimum(torch.maximum(moved, self.low, out=moved), self.high, out=moved)
        shift = moved.sub_(self.x)
        shift.mul_((self.eps / lengths(shift).clamp_min(_TINY)).clamp_max_(1)).add_(self.x)
        return shift if self.bounds is None else shift.clamp_(*self.bounds)

    def random(self, generator: torch.Generator | None) -> Tensor:
        """A point uniform in the ball (then brought into the box). Drawn on the CPU in float64, whatever the device."""
        n, d = len(self.x), self.x[0].numel() if len(self.x) else 1
        if self.norm == "linf":
            drawn = torch.rand(n, d, generator=generator, dtype=torch.float64).mul_(2).sub_(1)
        else:
            # The first d coordinates of a uniform point of the sphere in d + 2 dimensions.
            drawn = torch.randn(n, d + 2, generator=generator, dtype=torch.float64)
            drawn = drawn[:, :d] / torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
        return self.back(self.x + self.eps * drawn.reshape(self.x.shape).to(self.x))
