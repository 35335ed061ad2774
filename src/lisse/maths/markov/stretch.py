r"""How much a map of measures can stretch: a search for pairs with a large :math:`W(f\mu, f\nu) / W(\mu, \nu)`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from lisse.maths.transport import Measure, wasserstein

Map = Callable[[Measure], Measure]
Pair = tuple[Measure, Measure]


class Sampler(Protocol):
    """Points ``[count, d]`` of a convex domain. ``project`` (optional) moves points to it and opens gradient ascent."""

    def __call__(self, count: int, generator: torch.Generator, /) -> Tensor:
        """Random points of the domain."""


@dataclass(frozen=True, eq=False)
class Witness:
    """A lower estimate of τ and the pair of measures that attains it.

    ``value`` = ``distance_after`` / ``distance_before``; ``before`` and ``after`` are the pair and its image; ``move``
    says how the pair was first made; ``n`` pairs were tried, from ``seed``.
    """

    value: float
    before: Pair
    after: Pair
    distance_before: float
    distance_after: float
    move: str
    n: int
    seed: int
    kind: Literal["lower"] = "lower"

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True, eq=False)
class _Found:
    ratio: float
    pair: Pair
    move: str


def contraction(
    f: Map,
    *,
    sampler: Sampler,
    p: float = 1.0,
    ground: float = 1,
    budget: int = 3000,
    sizes: tuple[int, int] = (1, 6),
    weighted: bool = True,
    start: Iterable[Pair] = (),
    seed: int = 0,
) -> Witness:
    r"""A lower estimate of :math:`\tau(f) = \sup_{\mu \ne \nu} W_p(f\mu, f\nu) / W_p(\mu, \nu)`, with its pair.

    ``f`` is any map of measures, such as ``lambda mu: kernel(mu, mu)``. ``sampler(count, generator)`` gives points of
    a convex domain: ``Ball``, ``Box``, ``CrossPolytope``, or a function of one's own. A third of ``budget`` pairs is
    random: Diracs; independent measures of ``sizes`` atoms, of equal and of unequal size; small moves of one atom or
    all; tokens inserted, deleted, replaced, negated (where the domain has a projection); a light mass
    :math:`q \to 0` brought in or made a little heavier. The best of each kind are then improved: by gradient ascent on
    the logarithm of the ratio where f is differentiable and the domain can be projected on, and by random steps that
    keep what makes the pair good (shared atoms, small distance). ``weighted=False`` keeps to equal weights; ``start``
    adds pairs to begin from.

    Every pair lies in the domain, and every ratio is computed in full, so the value is a true lower estimate up to
    rounding: pairs nearer than :math:`\sqrt{\varepsilon}` of their size, where it could be noise, are not counted.
    It says nothing from above. About 2 evaluations of f and 2 transport problems per pair. Reference:
    [vuckovic2021] def. 7.
    """
    low, high = sizes
    if budget < 10:
        raise ValueError(f"contraction: budget must be at least 10 pairs, got {budget}.")
    if not 1 <= low <= high:
        raise ValueError(f"contraction: sizes must be 1 <= smallest <= largest, got {sizes}.")
    generator = torch.Generator().manual_seed(seed)
    search = _Search(f, sampler, p, ground, weighted, generator)
    for pair in start:
        search.offer(pair, "given")
    moves = _moves(search, low, high)
    while search.tried < budget // 3:
        move, pair = next(moves)
        search.offer(pair, move)
    leaders = search.leaders()
    for rank, found in enumerate(leaders):
        share = (budget - search.tried) // (len(leaders) - rank)
        search.climb(found, share)
    best = search.best
    if best is None:
        raise ValueError("contraction: sampler must give pairs that differ, got none apart by more than rounding.")
    after = (f(best.pair[0]), f(best.pair[1]))
    near, far = (float(wasserstein(*pair, p=p, ground=ground)) for pair in (best.pair, after))
    return Witness(far / near, best.pair, after, near, far, best.move, search.tried, seed)


class _Search:
    """The state of one search: what was tried, and the best pair of each move."""

    def __init__(
        self, f: Map, sampler: Sampler, p: float, ground: float, weighted: bool, generator: torch.Generator
    ) -> None:
        self.f, self.sampler, self.p, self.ground = f, sampler, p, ground
        self.weighted, self.generator = weighted, generator
        self.project: Callable[[Tensor], Tensor] | None = getattr(sampler, "project", None)
        self.tried = 0
        self.by_move: dict[str, _Found] = {}
        self.best: _Found | None = None

    def points(self, count: int) -> Tensor:
        """Fresh points of the domain."""
        found = torch.as_tensor(self.sampler(count, self.generator))
        if found.ndim != 2 or len(found) != count:
            raise ValueError(f"contraction: sampler must give points [{count}, d], got {list(found.shape)}.")
        return found

    def number(self, low: float = 0.0, high: float = 1.0) -> float:
        """A uniform number."""
        return low + (high - low) * float(torch.rand((), generator=self.generator, dtype=torch.float64))

    def integer(self, low: int, high: int) -> int:
        """A uniform integer in [low, high]."""
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def ratio(self, pair: Pair) -> float:
        """The stretch of a pair; 0 for one too near to tell from rounding, or whose image cannot be compared."""
        self.tried += 1
        mu, nu = pair
        near = float(wasserstein(mu, nu, p=self.p, ground=self.ground))
        size = float(torch.maximum(mu.points.abs().max(), nu.points.abs().max()))
        if near <= torch.finfo(mu.points.dtype).eps ** 0.5 * size or near == 0:
            return 0.0
        with torch.no_grad():
            far = float(wasserstein(self.f(mu), self.f(nu), p=self.p, ground=self.ground))
        return far / near

    def offer(self, pair: Pair, move: str) -> _Found:
        """Tries a pair and remembers it if it is the best of its move."""
        found = _Found(self.ratio(pair), pair, move)
        if found.ratio > 0:
            if move not in self.by_move or found.ratio > self.by_move[move].ratio:
                self.by_move[move] = found
            if self.best is None or found.ratio > self.best.ratio:
                self.best = found
        return found

    def leaders(self) -> list[_Found]:
        """The best pairs of the four best moves; light masses are always among them, for their ratios grow late."""
        ordered = sorted(self.by_move.values(), key=lambda found: -found.ratio)
        late = [found for found in ordered if found.move in ("light", "heavier")]
        return list(dict.fromkeys([*ordered[:3], *late]))

    def climb(self, found: _Found, budget: int) -> None:
        """Gradient ascent for a third of the budget, where there are gradients; random steps for the rest."""
        end = self.tried + budget
        if self.project is not None:
            found = _ascend(self, found, budget // 3)
        step = 0.3
        while self.tried < end:
            better = self.offer(_step(self, found.pair, step), found.move)
            if better.ratio > found.ratio:
                found, step = better, min(1.0, step * 1.5)
            else:
                step = max(1e-4, step * 0.93)
                if step <= 1e-4:
                    step = 0.3  # stuck: look further away again


# --- first pairs ----------------------------------------------------------------------------------------------------


def _moves(search: _Search, low: int, high: int) -> Iterator[tuple[str, Pair]]:
    """Pairs of each kind in turns, for ever."""
    while True:
        n, m = search.integer(low, high), search.integer(low, high)
        x = search.points(n)
        mu = _cloud(search, x)
        yield "diracs", (Measure(search.points(1)), Measure(search.points(1)))
        yield "random", (mu, _cloud(search, search.points(n)))
        yield "sizes", (mu, _cloud(search, search.points(m)))
        small = 10 ** search.number(-6, -0.5)
        yield "local", (mu, mu.push(x + small * (search.points(n) - x)))
        one = torch.zeros(n, 1, dtype=x.dtype)
        one[search.integer(0, n - 1)] = 1
        yield "one atom", (mu, mu.push(x + small * one * (search.points(n) - x)))
        new = search.points(1)
        yield "insert", (Measure(x), Measure(torch.cat([x, new])))
        if n > low and n > 1:
            yield "delete", (Measure(x), Measure(x[1:]))
        yield "replace", (Measure(x), Measure(torch.cat([x[1:], new])))
        if search.project is not None:  # which leaves -x where it is if the domain is symmetric
            yield "negate", (Measure(x), Measure(torch.cat([x[1:], search.project(-x[:1])])))
        if search.weighted:
            heavy = x[: search.integer(1, n)]
            few = torch.cat([heavy, new])
            q = 10 ** search.number(-6, -0.3)
            base = torch.full((len(heavy),), 1 / len(heavy), dtype=x.dtype)
            light = torch.cat([(1 - q) * base, base.new_tensor([q])])
            more = torch.cat([(1 - 1.1 * q) * base, base.new_tensor([1.1 * q])]) if 1.1 * q < 1 else light
            none = torch.cat([base, base.new_zeros(1)])
            yield "light", (Measure(few, none), Measure(few, light))
            yield "heavier", (Measure(few, light), Measure(few, more))


def _cloud(search: _Search, points: Tensor) -> Measure:
    """The points with equal weights, or half of the time with random ones (flat Dirichlet)."""
    if not search.weighted or search.number() < 0.5:
        return Measure(points)
    raw = -torch.rand(len(points), generator=search.generator, dtype=points.dtype).clamp_min(1e-12).log()
    return Measure(points, raw / raw.sum())


# --- better pairs ---------------------------------------------------------------------------------------------------


def _step(search: _Search, pair: Pair, size: float) -> Pair:
    """A neighbour of a pair that keeps its kind: atoms move together, weights change by factors, distances shrink."""
    mu, nu = pair
    n, m = len(mu), len(nu)
    shared = mu.points.shape == nu.points.shape
    # Towards a random point of the domain, atom by atom: convexity keeps us inside.
    reach = size * torch.rand(max(n, m), 1, generator=search.generator, dtype=mu.points.dtype)
    chosen = torch.rand(max(n, m), 1, generator=search.generator) < search.number(0.2, 1.0)
    reach = torch.where(chosen, reach, 0.0)
    target = search.points(max(n, m))
    x = mu.points + reach[:n] * (target[:n] - mu.points)
    y = nu.points + reach[:m] * (target[:m] - nu.points)
    kind = search.number()
    if shared and kind < 0.3 and not torch.equal(mu.points, nu.points):
        shrink = search.number(0.05, 1.0)
        y = x + shrink * (y - x)
    elif kind < 0.45 and not (shared and torch.equal(mu.points, nu.points)):
        y = nu.points  # only one of the two moves
    if mu.weights is None or nu.weights is None or not search.weighted:
        return Measure(x, mu.weights), Measure(y, nu.weights)
    a, b = mu.weights, nu.weights
    if n == m and search.number() < 0.5:
        change = b - a
        factor = math.exp(search.number(-3, 0.5) * size)
        scale = (size * torch.randn(n, generator=search.generator, dtype=a.dtype)).exp()
        a = a * scale
        a = a / a.sum()
        b = (a + factor * change * scale).clamp_min(0)
        b = b / b.sum()
    return Measure(x, a), Measure(y, b)


def _ascend(search: _Search, found: _Found, budget: int) -> _Found:
    """Adam on the logarithm of the ratio, in points, differences and logarithms of weights, projected each time."""
    project = search.project
    assert project is not None
    mu, nu = found.pair
    shared = mu.points.shape == nu.points.shape
    x = mu.points.clone().requires_grad_()
    gap = nu.points - mu.points if shared else nu.points
    unit = float(gap.abs().max()) if shared else 1.0
    free = [x]
    direction = (gap / unit if unit > 0 else gap).clone()
    if unit > 0:
        free.append(direction.requires_grad_())
    weights = [None if m.weights is None else m.weights for m in (mu, nu)]
    scale = float(mu.points.abs().max()) or 1.0
    optimiser = torch.optim.Adam([{"params": [x], "lr": 0.03 * scale}, {"params": free[1:], "lr": 0.03}])
    for _ in range(budget):
        inside = project(x)
        other = inside if unit == 0 else project(inside + unit * direction if shared else direction)
        pair = Measure(inside, weights[0]), Measure(other, weights[1])
        images = search.f(pair[0]), search.f(pair[1])
        far = wasserstein(*images, p=search.p, ground=search.ground)
        near = wasserstein(*pair, p=search.p, ground=search.ground)
        if not (far.requires_grad and float(far.detach()) > 0 and float(near.detach()) > 0):
            return found
        loss = near.log() - far.log() if near.requires_grad else -far.log()
        optimiser.zero_grad()
        loss.backward()
        if not all(bool(torch.isfinite(v.grad).all()) for v in free if v.grad is not None):
            return found
        optimiser.step()
        with torch.no_grad():
            x.copy_(project(x))
            inside = x.clone()
            other = inside if unit == 0 else project(inside + unit * direction if shared else direction)
        moved = search.offer((Measure(inside, weights[0]), Measure(other.detach(), weights[1])), found.move)
        if moved.ratio > found.ratio:
            found = moved
    return found
