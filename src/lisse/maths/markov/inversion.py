"""Residual blocks undone and infinite depth reached by fixed-point iteration, with error bounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class FixedPoint:
    r"""The last iterate and how far it can be from the fixed point, in the norm :math:`\frac1N\sum_i\|x_i\|_1`.

    ``a_priori`` :math:`= \frac{c^k}{1-c}\|x_1-x_0\|` and ``error_bound`` (a posteriori) :math:`= \frac{c}{1-c}
    \|x_k-x_{k-1}\|`. They are guaranteed where ``guaranteed`` is true: a constant was given. Otherwise c is the
    largest ratio of successive steps that was seen, and they are estimates. ``steps`` are the :math:`\|x_{k+1}-x_k\|`.
    """

    solution: Tensor
    converged: bool
    iterations: int
    error_bound: float
    a_priori: float
    constant: float
    guaranteed: bool
    steps: tuple[float, ...] = field(repr=False)  # as many as iterations: no one reads a thousand


def invert(
    residual: Callable[[Tensor], Tensor],
    y: Tensor,
    *,
    constant: float | None = None,
    tol: float = 1e-10,
    max_iter: int = 1000,
) -> FixedPoint:
    """The x with x + g(x) = y, g = ``residual``, by x ← y - g(x) from x = y ([vuckovic2021] sec. 6.3).

    ``constant`` is a Lipschitz constant of g, which must be below 1: then the block is invertible, and the error
    bounds are guaranteed. Without it the iteration is tried; it ends when a step is below ``tol``, and a diverging or
    oscillating one is returned with ``converged=False``. Vanilla self-attention is never a contraction: its constant
    is at least that of its lookup (a single token is mapped to its value); see ``value_scale``.
    """
    start = torch.as_tensor(y)
    return _iterate("invert", lambda x: start - residual(x), start, constant, tol, max_iter)


def fixed_point(
    f: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    start: Tensor | None = None,
    constant: float | None = None,
    tol: float = 1e-10,
    max_iter: int = 1000,
) -> FixedPoint:
    r"""Infinite depth with input injection, :math:`H^* = f(H^* + x)`, by iteration from ``start`` (0 by default).

    If f is a contraction (``constant`` < 1) the limit exists, is unique and does not depend on ``start``
    ([vuckovic2021] sec. 6.3). For f without injection give ``x`` = 0: then a contraction forgets its start, while
    vanilla dot-product attention does not and ends in a consensus that depends on it.
    """
    injected = torch.as_tensor(x)
    first = torch.zeros_like(injected) if start is None else torch.as_tensor(start).to(injected)
    return _iterate("fixed_point", lambda h: f(h + injected), first, constant, tol, max_iter)


def value_scale(bound: float, *, target: float = 0.9) -> float:
    """The factor c for the values that makes c · ``bound`` at most ``target`` < 1; 1 where it is so already.

    The constant of attention is proportional to its values, so c · attention is then a contraction.
    """
    if not bound > 0:
        raise ValueError(f"value_scale: bound must be positive, got {bound}.")
    if not 0 < target < 1:
        raise ValueError(f"value_scale: target must lie in (0, 1), got {target}.")
    return min(1.0, target / bound)


def _iterate(
    where: str,
    step: Callable[[Tensor], Tensor],
    start: Tensor,
    constant: float | None,
    tol: float,
    max_iter: int,
) -> FixedPoint:
    if constant is not None and not 0 <= constant < 1:
        raise ValueError(
            f"{where}: constant must be below 1, got {constant:g}. Scale the values by value_scale(constant), or leave "
            "the constant out to try without a guarantee."
        )
    if not tol > 0 or max_iter < 1:
        raise ValueError(f"{where}: tol must be positive and max_iter at least 1, got {tol} and {max_iter}.")
    if not bool(torch.isfinite(start).all()):
        raise ValueError(f"{where}: the start must be finite, got NaN or infinity in it.")
    x, moves, converged = start, list[float](), False
    for _ in range(max_iter):
        new = step(x)
        if new.shape != x.shape:
            raise ValueError(f"{where}: the map must keep the shape {list(x.shape)}, got {list(new.shape)}.")
        moves.append(_size(new - x))
        x = new
        if not math.isfinite(moves[-1]):
            break
        if moves[-1] <= tol:
            converged = True
            break
    c = _seen(moves) if constant is None else constant
    k = len(moves)
    inside = c < 1 and all(map(math.isfinite, moves))
    posterior = c / (1 - c) * moves[-1] if inside else math.inf
    prior = c**k / (1 - c) * moves[0] if inside else math.inf
    return FixedPoint(x, converged, k, posterior, prior, c, constant is not None, tuple(moves))


def _size(x: Tensor) -> float:
    """(1/N) Σ‖x_i‖₁ over tokens; of a vector, its ℓ1 norm."""
    tokens = x.shape[-2] if x.ndim >= 2 else 1
    return float(x.detach().double().abs().sum()) / tokens


def _seen(moves: list[float]) -> float:
    """The largest ratio of successive steps, as long as they stand above rounding."""
    floor = 1e-12 * max(moves[0], 1e-300)
    ratios = [b / a for a, b in itertools.pairwise(moves) if a > floor and b > floor]
    return max(ratios, default=0.0)
