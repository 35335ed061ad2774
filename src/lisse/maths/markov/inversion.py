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
    \|x_k-x_{k-1}\|`. Without a given constant, c is the largest ratio of successive steps, and they are estimates.
    ``steps`` are the :math:`\|x_{k+1}-x_k\|`.

    ``guaranteed`` says that Banach's theorem was applied where it holds: the map has a given constant c < 1 on the
    ball of a given radius, and that ball holds the tokens of every point that the map is applied to, now and later.
    ``reach`` is the largest of their ℓ2 norms, and may not exceed the radius. It is checked, not assumed: if
    :math:`x_0, \dots, x_k` lie in the ball, then as long as later iterates do they are within ``error_bound`` of
    :math:`x_k`, hence each token within N times that of its place in :math:`x_k` (ℓ2 ≤ ℓ1); so where the largest
    token of :math:`x_k` and N · ``error_bound`` together do not exceed the radius, no iterate can be the first to
    leave. The limit then exists, lies in the ball, and is the only fixed point there. ∎ Steps that shrink by less than
    c refute the constant, and then nothing is guaranteed. All of it up to rounding.
    """

    solution: Tensor
    converged: bool
    iterations: int
    error_bound: float
    a_priori: float
    constant: float
    guaranteed: bool
    reach: float
    steps: tuple[float, ...] = field(repr=False)  # as many as iterations: no one reads a thousand


def invert(
    residual: Callable[[Tensor], Tensor],
    y: Tensor,
    *,
    constant: float | None = None,
    radius: float | None = None,
    tol: float = 1e-10,
    max_iter: int = 1000,
) -> FixedPoint:
    r"""The x with x + g(x) = y, g = ``residual``, by x ← y - g(x) from x = y ([vuckovic2021] sec. 6.3).

    ``constant`` < 1 is a Lipschitz constant of g, in the norm :math:`\frac1N\sum_i\|x_i\|_1`, for tokens in the
    ℓ2-ball of ``radius`` (``inf``: everywhere). The answer is ``guaranteed`` if that ball holds y and all iterates,
    which is not so for the ball that x came from: where g is c · attention with the identity as lookup, tokens of x in
    the ball R give :math:`|y_i| \le R(1 + c)`, and iterates stay in the ball :math:`R(1 + c)/(1 - c)`, on which the
    constant must be taken; :func:`invertible_scale` does it. Without a constant or a radius the iteration is tried and
    nothing is guaranteed; it ends when a step is below ``tol``, and a diverging or oscillating one is returned with
    ``converged=False``. Vanilla self-attention is never a contraction: its constant is at least that of its lookup
    (a single token is mapped to its value).
    """
    start = torch.as_tensor(y)
    ball = _Ball("invert", constant, radius, torch.zeros_like(start))
    return _iterate(ball, lambda x: start - residual(x), start, tol, max_iter)


def fixed_point(
    f: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    start: Tensor | None = None,
    constant: float | None = None,
    radius: float | None = None,
    tol: float = 1e-10,
    max_iter: int = 1000,
) -> FixedPoint:
    r"""Infinite depth with input injection, :math:`H^* = f(H^* + x)`, by iteration from ``start`` (0 by default).

    If f is a contraction (``constant`` < 1) the limit exists, is unique and does not depend on ``start``
    ([vuckovic2021] sec. 6.3). ``constant`` and ``radius`` are those of f, as in :func:`invert`: the ball must hold
    every H + x, for c · attention from 0 the ball :math:`\max|x_i|/(1 - c)`. For f without injection give ``x`` = 0:
    then a contraction forgets its start, while vanilla dot-product attention does not and ends in a consensus that
    depends on it.
    """
    injected = torch.as_tensor(x)
    first = torch.zeros_like(injected) if start is None else torch.as_tensor(start).to(injected)
    ball = _Ball("fixed_point", constant, radius, injected)
    return _iterate(ball, lambda h: f(h + injected), first, tol, max_iter)


def value_scale(bound: float, *, target: float = 0.9) -> float:
    """The factor c for the values that makes c · ``bound`` at most ``target`` < 1; 1 where it is so already.

    The constant of attention is proportional to its values, so c · attention is then a contraction, where the bound
    holds. A residual block leaves the ball that its input lies in: see :func:`invertible_scale`.
    """
    if not bound > 0:
        raise ValueError(f"value_scale: bound must be positive, got {bound}.")
    _checked_target("value_scale", target)
    return min(1.0, target / bound)


def invertible_scale(bound: Callable[[float], float], radius: float, *, target: float = 0.9) -> tuple[float, float]:
    r"""The largest c < 1 for which x + c f(x) is undone for all tokens x in the ball R = ``radius``; and the ball.

    ``bound(r)`` is a Lipschitz constant of f on tokens in the ℓ2-ball of radius r, such as ``attention_on_ball(d,
    r).value``, and f keeps balls, :math:`|f(x)_i| \le \max_j|x_j|`, as attention with the identity as lookup does (of
    other values, divide f by the norm of the lookup). The result is the root of :math:`c\,L(\rho(c)) =`
    ``target`` < 1 with :math:`\rho(c) = R\,\frac{1 + c}{1 - c}`, and :math:`\rho(c)`: what :func:`invert` takes as
    ``radius``, with c · ``bound(ρ)`` as ``constant``.

    Proof: :math:`|y_i| \le R + cR`. The iteration starts at y, and if :math:`|x_i| \le \rho` then
    :math:`|y_i - c f(x)_i| \le R(1 + c) + c\rho = \rho`. So the map takes the ball ρ, which is complete, into itself,
    and is a contraction there. ∎ As L does not decrease, the left side increases with c, and bisection finds the root.

    For the dot product, d = 2, R = 1, target → 1 it is 0.01672. That is less than 1/L(R) = 0.02033, which is no
    guarantee: y of a token on the sphere lies outside the ball on which L(R) was taken.
    """
    if not 0 < radius < math.inf:
        raise ValueError(f"invertible_scale: radius must be positive and finite, got {radius}.")
    _checked_target("invertible_scale", target)
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        inside = middle * bound(radius * (1 + middle) / (1 - middle)) <= target
        low, high = (middle, high) if inside else (low, middle)
    return low, radius * (1 + low) / (1 - low)


def _checked_target(where: str, target: float) -> None:
    if not 0 < target < 1:
        raise ValueError(f"{where}: target must lie in (0, 1), got {target}.")


@dataclass(frozen=True, eq=False)
class _Ball:
    """Where a map is known to contract: by ``constant`` < 1 where the tokens of x + ``shift`` are within ``radius``."""

    where: str
    constant: float | None
    radius: float | None
    shift: Tensor

    def __post_init__(self) -> None:
        if self.constant is not None and not 0 <= self.constant < 1:
            raise ValueError(
                f"{self.where}: constant must be below 1, got {self.constant:g}. Scale the values by invertible_scale "
                "or value_scale, or leave the constant out to try without a guarantee."
            )
        if self.radius is not None and not self.radius > 0:
            raise ValueError(f"{self.where}: radius must be positive, got {self.radius}. It is that of the ball on "
                             "which the constant holds; inf if it holds everywhere.")  # fmt: skip

    def norm(self, x: Tensor) -> float:
        """The largest ℓ2 norm of a token of x + shift."""
        return float(torch.linalg.vector_norm((x + self.shift).detach().double(), dim=-1).max())


def _iterate(ball: _Ball, step: Callable[[Tensor], Tensor], start: Tensor, tol: float, max_iter: int) -> FixedPoint:
    if not tol > 0 or max_iter < 1:
        raise ValueError(f"{ball.where}: tol must be positive and max_iter at least 1, got {tol} and {max_iter}.")
    if not bool(torch.isfinite(start).all()):
        raise ValueError(f"{ball.where}: the start must be finite, got NaN or infinity in it.")
    x, moves, norms = start if start.is_floating_point() else start.double(), list[float](), [ball.norm(start)]
    for _ in range(max_iter):
        new = step(x)
        if new.shape != x.shape:
            raise ValueError(f"{ball.where}: the map must keep the shape {list(x.shape)}, got {list(new.shape)}.")
        moves.append(_size(new - x))
        norms.append(ball.norm(new))
        x = new
        if not tol < moves[-1] < math.inf:
            break
    c = _largest_ratio(moves) if ball.constant is None else ball.constant
    contracts = c < 1 and math.isfinite(moves[-1])
    posterior = c / (1 - c) * moves[-1] if contracts else math.inf
    prior = c ** len(moves) / (1 - c) * moves[0] if contracts else math.inf
    reach = max(*norms, norms[-1] + _tokens(x) * posterior) if contracts else math.inf
    rounding = 64 * torch.finfo(x.dtype).eps * x.numel() / _tokens(x) * max(norms)
    guaranteed = (
        contracts
        and ball.constant is not None
        and ball.radius is not None
        and reach <= ball.radius
        and all(after <= c * before + rounding for before, after in itertools.pairwise(moves))
    )
    return FixedPoint(x, moves[-1] <= tol, len(moves), posterior, prior, c, guaranteed, reach, tuple(moves))


def _tokens(x: Tensor) -> int:
    return x.shape[-2] if x.ndim >= 2 else 1


def _size(x: Tensor) -> float:
    """(1/N) Σ‖x_i‖₁ over tokens; of a vector, its ℓ1 norm."""
    return float(x.detach().double().abs().sum()) / _tokens(x)


def _largest_ratio(moves: list[float]) -> float:
    """The largest ratio of successive steps, as long as they stand above rounding."""
    floor = 1e-12 * max(moves[0], 1e-300)
    ratios = [b / a for a, b in itertools.pairwise(moves) if a > floor and b > floor]
    return max(ratios, default=0.0)
