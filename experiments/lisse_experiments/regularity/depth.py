"""Residual attention undone, and attention repeated: what the scale of the values decides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.maths.bounds import attention_on_ball
from lisse.maths.markov import AttentionKernel, Ball, DotProduct, evolve, fixed_point, invert, invertible_scale

RADIUS, DIM, TOKENS = 1.0, 2, 12
_KERNEL = AttentionKernel(DotProduct())


@dataclass(frozen=True)
class Inversion:
    """x + c · attention(x) undone: the scale c, whether and in how many steps, the error, the rate.

    ``rate`` is what a step leaves of the error, from the last steps.
    """

    scale: float
    tokens: int
    converged: bool
    iterations: int
    error: float
    rate: float


@dataclass(frozen=True, eq=False)
class Consensus:
    """Tokens over depth: the largest distance between two of them at each depth, and where two inputs end."""

    spreads: tuple[float, ...]
    ends: tuple[Tensor, Tensor]

    @property
    def apart(self) -> float:
        """The ℓ1 distance between the places where the two inputs end, a mean over tokens."""
        return float((self.ends[0] - self.ends[1]).abs().sum(1).mean())


def attention(tokens: Tensor, scale: float = 1.0) -> Tensor:
    """c · SelfAttention with the dot product, the identity as lookup; infinite where an iteration has run away."""
    if float(tokens.abs().max()) > 1e6:
        return torch.full_like(tokens, torch.inf)
    return scale * _KERNEL(tokens, tokens).points


def guaranteed_scale() -> float:
    """Below this inversion is certain: the corrected bound is below 1 on the ball that holds y and all iterates."""
    return invertible_scale(lambda radius: attention_on_ball(DIM, radius).value, RADIUS, target=1 - 1e-12)[0]


def tokens_of(seed: int, count: int = TOKENS) -> Tensor:
    """Tokens of the unit ball."""
    return Ball(DIM, RADIUS)(count, torch.Generator().manual_seed(seed))


def inversions(scales: Iterable[float], *, count: int = TOKENS, seed: int = 0, max_iter: int = 2000) -> list[Inversion]:
    """For each scale, y = x + c · attention(x) and back by x ← y - c · attention(x) from y."""
    x = tokens_of(seed, count)
    results = []
    for scale in scales:
        back = invert(lambda z, c=scale: attention(z, c), x + attention(x, scale), tol=1e-10, max_iter=max_iter)  # type: ignore[misc]
        error = float((back.solution - x).abs().max())
        # The last steps that are above rounding tell the asymptotic rate.
        steps = [step for step in back.steps if 1e-9 * back.steps[0] < step < 1e3][-20:]
        rate = (steps[-1] / steps[0]) ** (1 / (len(steps) - 1)) if len(steps) > 1 else 0.0
        results.append(Inversion(scale, count, back.converged, back.iterations, error, rate))
    return results


def largest_invertible(*, count: int = TOKENS, seed: int = 0) -> float:
    """Up to which scale the iteration finds its way back, by bisection to 1e-3; 2 where it always does below 2."""
    low, high = 0.0, 2.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        (inversion,) = inversions([middle], count=count, seed=seed)
        low, high = (middle, high) if inversion.converged and inversion.error < 1e-6 else (low, middle)
    return (low + high) / 2


def without_injection(first: Tensor, second: Tensor, *, scale: float = 1.0, depth: int = 200) -> Consensus:
    """H ← c · attention(H) from two inputs."""

    def layer(queries: object, context: object) -> object:
        moved = _KERNEL(queries, context)  # type: ignore[arg-type]
        return moved.push(scale * moved.points)

    states = [evolve(layer, start, depth) for start in (first, second)]  # type: ignore[arg-type]
    return Consensus(tuple(_spread(state.points) for state in states[0]), (states[0][-1].points, states[1][-1].points))


def with_injection(first: Tensor, second: Tensor, *, scale: float, depth: int = 200) -> Consensus:
    """H ← c · attention(H + X) from 0, for two inputs X."""
    spreads, state = [], torch.zeros_like(first)
    for _ in range(depth + 1):
        spreads.append(_spread(state))
        state = attention(state + first, scale)
    ends = [fixed_point(lambda h: attention(h, scale), x, tol=1e-12).solution for x in (first, second)]
    return Consensus(tuple(spreads), (ends[0], ends[1]))


def depends_on_start(x: Tensor, *, scale: float) -> float:
    """How far two fixed points of one input are apart, found from 0 and from elsewhere: 0 but for rounding."""
    other = 0.5 * torch.ones_like(x)
    ends = [fixed_point(lambda h: attention(h, scale), x, start=start, tol=1e-12).solution for start in (None, other)]
    return float((ends[0] - ends[1]).abs().max())


def _spread(tokens: Tensor) -> float:
    return float((tokens[:, None] - tokens[None]).abs().sum(-1).max())
