r"""How much a map of measures can stretch: a search for pairs with a large :math:`W(f\mu, f\nu) / W(\mu, \nu)`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from lisse.maths.transport import Measure, wasserstein


@dataclass(frozen=True)
class _Radius:
    dim: int
    radius: float

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.dim < 1:
            raise ValueError(f"{name}: dim must be at least 1, got {self.dim}.")
        if not 0 < self.radius < float("inf"):
            raise ValueError(f"{name}: radius must be positive and finite, got {self.radius}.")


class Ball(_Radius):
    """The ℓ2-ball of a radius in R^dim. Half of its samples are uniform inside, half on the sphere."""

    def __call__(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Points ``[count, dim]``."""
        direction = torch.randn(count, self.dim, generator=generator, dtype=torch.float64)
        direction = direction / direction.norm(dim=1, keepdim=True).clamp_min(1e-300)
        return self.radius * direction * _depth(count, self.dim, generator)

    def project(self, points: Tensor) -> Tensor:
        """The nearest points of the ball."""
        size = torch.linalg.vector_norm(points, dim=1, keepdim=True)
        return points * torch.clamp(self.radius / size.clamp_min(1e-300), max=1.0)


class Box(_Radius):
    """The cube [-radius, radius]^dim. Half of its samples are uniform inside, half are corners."""

    def __call__(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Points ``[count, dim]``."""
        inside = 2 * torch.rand(count, self.dim, generator=generator, dtype=torch.float64) - 1
        corner = torch.rand(count, 1, generator=generator) < 0.5
        return self.radius * torch.where(corner, torch.where(inside < 0, -1.0, 1.0).double(), inside)

    def project(self, points: Tensor) -> Tensor:
        """The nearest points of the cube."""
        return points.clamp(-self.radius, self.radius)


class CrossPolytope(_Radius):
    """The ℓ1-ball of a radius in R^dim. Its samples are uniform inside, on its boundary, or its corners ±R e_i."""

    def __call__(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Points ``[count, dim]``."""
        raw = -torch.rand(count, self.dim, generator=generator, dtype=torch.float64).clamp_min(1e-300).log()
        raw = raw * torch.where(torch.rand(count, self.dim, generator=generator) < 0.5, -1.0, 1.0)
        axis = torch.nn.functional.one_hot(raw.abs().argmax(1), self.dim) * raw
        raw = torch.where(torch.rand(count, 1, generator=generator) < 0.25, axis, raw)
        return self.radius * raw / raw.abs().sum(1, keepdim=True) * _depth(count, self.dim, generator)

    def project(self, points: Tensor) -> Tensor:
        """The nearest points of the ℓ1-ball (soft thresholding at the level that sorting finds)."""
        size = points.abs().sum(1, keepdim=True)
        ordered = points.abs().sort(1, descending=True).values
        counts = torch.arange(1, self.dim + 1, dtype=points.dtype)
        levels = (ordered.cumsum(1) - self.radius) / counts
        count = (ordered > levels).sum(1, keepdim=True).clamp_min(1)
        level = levels.gather(1, count - 1)
        return torch.where(size <= self.radius, points, points.sign() * (points.abs() - level).clamp_min(0))


def _depth(count: int, dim: int, generator: torch.Generator | None) -> Tensor:
    """How far out: uniform in volume for half of the points, on the boundary for the other half."""
    inside = torch.rand(count, 1, generator=generator, dtype=torch.float64) ** (1 / dim)
    return torch.where(torch.rand(count, 1, generator=generator) < 0.5, inside, 1.0)


_Map = Callable[[Measure], Measure]
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
class _Candidate:
    ratio: float
    pair: Pair
    move: str


def contraction(
    f: _Map,
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
    keep what makes the pair good (shared atoms, small distance). Where f is differentiable and keeps the number of
    atoms, some climb the local stretch: of measures :math:`\sum_iw_i\delta_{x_i}` whose first atom moves by
    h along an axis, :math:`(w_1^{-1}\sum_iw_i\|\partial_{x_1}f_i\|^p)^{1/p}` (small moves are their own optimal
    coupling), in points and log-weights, from starts in subspaces of dimension 1 and d: at random, and with two light
    atoms opposite a heavy one, which is where the steepest measures end. The former subspace is the same for all d, so
    that a domain that holds the sections of its kind loses little by more dimensions. ``weighted=False`` keeps to
    equal weights; ``start`` adds pairs to begin from.

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
    if search.project is not None:
        _steepest(search, high, budget // 8, seed)
    leaders = search.leaders()
    for rank, leader in enumerate(leaders):
        share = (budget - search.tried) // (len(leaders) - rank)
        search.climb(leader, share)
    best = search.best
    if best is None:
        raise ValueError("contraction: sampler must give pairs that differ, got none apart by more than rounding.")
    after = (f(best.pair[0]), f(best.pair[1]))
    near, far = (float(wasserstein(*pair, p=p, ground=ground)) for pair in (best.pair, after))
    return Witness(far / near, best.pair, after, near, far, best.move, search.tried, seed)


class _Search:
    """The state of one search: what was tried, and the best pair of each move."""

    def __init__(
        self, f: _Map, sampler: Sampler, p: float, ground: float, weighted: bool, generator: torch.Generator
    ) -> None:
        self.f, self.sampler, self.p, self.ground = f, sampler, p, ground
        self.weighted, self.generator = weighted, generator
        self.project: Callable[[Tensor], Tensor] | None = getattr(sampler, "project", None)
        self.tried = 0
        self.by_move: dict[str, _Candidate] = {}
        self.best: _Candidate | None = None

    def points(self, count: int) -> Tensor:
        """Fresh points of the domain."""
        points = torch.as_tensor(self.sampler(count, self.generator))
        if points.ndim != 2 or len(points) != count:
            raise ValueError(f"contraction: sampler must give points [{count}, d], got {list(points.shape)}.")
        return points

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

    def offer(self, pair: Pair, move: str) -> _Candidate:
        """Tries a pair and remembers it if it is the best of its move."""
        candidate = _Candidate(self.ratio(pair), pair, move)
        if candidate.ratio > 0:
            if move not in self.by_move or candidate.ratio > self.by_move[move].ratio:
                self.by_move[move] = candidate
            if self.best is None or candidate.ratio > self.best.ratio:
                self.best = candidate
        return candidate

    def leaders(self) -> list[_Candidate]:
        """The best pairs of the four best moves; light masses are always among them, for their ratios grow late."""
        climbing = (candidate for candidate in self.by_move.values() if candidate.move != "steepest")
        ordered = sorted(climbing, key=lambda candidate: -candidate.ratio)
        late = [candidate for candidate in ordered if candidate.move in ("light", "heavier")]
        return list(dict.fromkeys([*ordered[:3], *late]))

    def climb(self, candidate: _Candidate, budget: int) -> None:
        """Gradient ascent for a third of the budget, where there are gradients; random steps for the rest."""
        end = self.tried + budget
        if self.project is not None:
            candidate = _ascend(self, candidate, budget // 3)
        step = 0.3
        while self.tried < end:
            better = self.offer(_step(self, candidate.pair, step), candidate.move)
            if better.ratio > candidate.ratio:
                candidate, step = better, min(1.0, step * 1.5)
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
        single = torch.zeros(n, 1, dtype=x.dtype)
        single[search.integer(0, n - 1)] = 1
        yield "one atom", (mu, mu.push(x + small * single * (search.points(n) - x)))
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
    moving = torch.rand(max(n, m), 1, generator=search.generator) < search.number(0.2, 1.0)
    reach = torch.where(moving, reach, 0.0)
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


def _steepest(search: _Search, high: int, budget: int, seed: int) -> None:
    """The local stretch of a measure whose first atom moves along an axis: many short climbs, the best go on."""
    generator = torch.Generator().manual_seed(seed)
    sample = search.points(32)
    d, radius = sample.shape[1], float(sample.norm(dim=1).max())
    # A light atom that moves, a heavy one far from it and one between: three are as good as any number that was tried.
    sizes = [n for n in (3, 4) if n <= high] or [high]
    # A step solves no transport problem; six of them count as one pair, to leave the others their share.
    left, climbs = 6 * budget, list[tuple[float, _Climb]]()
    starts = [(k, n, n == sizes[0]) for k in sorted({1, d}) for n in sizes]
    short = max(5, min(30, left // (4 * len(starts))))
    search.tried += budget
    while left > 3 * budget:
        for k, n, opposed in starts:
            climb = _Climb.start(search, k, n, radius, d, generator, opposed=opposed)
            if climb is None:
                return
            climbs.append((climb.go(search, short), climb))
            left -= short
    climbs.sort(key=lambda pair: -pair[0])
    leaders = climbs[:2]
    for _, climb in leaders:
        for rate in (1.0, 0.3, 0.3):
            climb.slower(rate)
            climb.go(search, left // (3 * len(leaders)))
    for _, climb in climbs[: max(2, len(starts))]:
        climb.offer(search)


class _Climb:
    """Adam on the logarithm of the local stretch, in points that are projected and in log-weights."""

    def __init__(self, x: Tensor, logits: Tensor, radius: float, axis: int, *, weighted: bool) -> None:
        self.x, self.logits, self.radius = x.requires_grad_(), logits.requires_grad_(weighted), radius
        self.step = torch.zeros_like(x)
        self.step[0, axis] = 1e-3 * radius
        free = [{"params": [self.x], "lr": 0.08 * radius}]
        self.optimiser = torch.optim.Adam([*free, {"params": [self.logits], "lr": 0.3}] if weighted else free)
        self.best: tuple[float, Tensor, Tensor | None] = (-math.inf, x.detach().clone(), None)

    @classmethod
    def start(
        cls, search: _Search, k: int, n: int, radius: float, d: int, generator: torch.Generator, *, opposed: bool
    ) -> _Climb | None:
        """Atoms in the first k dimensions; ``None`` where f has no gradient there or other atoms."""
        directions = torch.randn(n, k, generator=generator, dtype=torch.float64)
        lengths = 2 * radius * torch.rand(n, 1, generator=generator, dtype=torch.float64)
        logits = 2 * torch.randn(n, generator=generator, dtype=torch.float64)
        if opposed:
            axis, side = directions[:1].sign(), torch.ones(n, 1, dtype=torch.float64)
            side[n // 2 + 1 :] = -1
            directions = side * axis + 0.3 * directions
            lengths = torch.where(side > 0, radius - 0.15 * lengths, radius)
            lengths[0] = radius
            logits = logits + 4 * (1 - side[:, 0]) - 4.0
            logits[0] = -8.0
        x = torch.zeros(n, d, dtype=torch.float64)
        x[:, :k] = directions / directions.norm(dim=1, keepdim=True) * lengths
        assert search.project is not None
        climb = cls(search.project(x).detach().clone(), logits, radius, 0, weighted=search.weighted)
        score = climb.score(search)
        return climb if score is not None and score.requires_grad and bool(torch.isfinite(score)) else None

    @property
    def weights(self) -> Tensor | None:
        """The weights; ``None`` where they are to be equal."""
        return torch.softmax(self.logits, 0) if self.logits.requires_grad else None

    def score(self, search: _Search) -> Tensor | None:
        """The logarithm of the stretch, by a central difference."""
        w = self.weights
        assert search.project is not None
        x, y = (search.project(self.x + sign * self.step) for sign in (1, -1))  # both inside
        ahead, behind = (search.f(Measure(points, w)) for points in (x, y))
        if len(ahead) != len(self.x) or len(behind) != len(self.x):
            return None
        moved = torch.linalg.vector_norm(ahead.points - behind.points, ord=search.ground, dim=1)
        share = self.x.new_ones(len(self.x)) if w is None else w / w[0]
        power = (share * moved.clamp_min(1e-300) ** search.p).sum().log() / search.p
        return power - torch.linalg.vector_norm(x[0] - y[0], ord=search.ground).clamp_min(1e-300).log()

    def go(self, search: _Search, steps: int) -> float:
        """Some steps upwards; the best score so far."""
        assert search.project is not None
        for _ in range(steps):
            score = self.score(search)
            if score is None or not bool(torch.isfinite(score)):
                break
            if float(score.detach()) > self.best[0]:
                w = self.weights
                self.best = float(score.detach()), self.x.detach().clone(), None if w is None else w.detach()
            self.optimiser.zero_grad()
            (-score).backward()
            if self.x.grad is None or not bool(torch.isfinite(self.x.grad).all()):
                break
            self.optimiser.step()
            with torch.no_grad():
                self.x.copy_(search.project(self.x))
                self.logits.sub_(self.logits.max()).clamp_(min=-9.0)
        return self.best[0]

    def slower(self, rate: float) -> None:
        """Shorter steps, from the best so far."""
        for group in self.optimiser.param_groups:
            group["lr"] *= rate
        with torch.no_grad():
            self.x.copy_(self.best[1])
            if self.best[2] is not None:
                self.logits.copy_(self.best[2].log())

    def offer(self, search: _Search) -> None:
        """The best measure and its neighbour, as a pair inside the domain."""
        assert search.project is not None
        _, x, w = self.best
        y, z = (search.project(x + sign * self.step) for sign in (1, -1))
        search.offer((Measure(y, w), Measure(z, w)), "steepest")


def _ascend(search: _Search, best: _Candidate, budget: int) -> _Candidate:
    """Adam on the logarithm of the ratio, in points, differences and logarithms of weights, projected each time."""
    project = search.project
    assert project is not None
    mu, nu = best.pair
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
            return best
        loss = near.log() - far.log() if near.requires_grad else -far.log()
        optimiser.zero_grad()
        loss.backward()
        if not all(bool(torch.isfinite(v.grad).all()) for v in free if v.grad is not None):
            return best
        optimiser.step()
        with torch.no_grad():
            x.copy_(project(x))
            inside = x.clone()
            other = inside if unit == 0 else project(inside + unit * direction if shared else direction)
        moved = search.offer((Measure(inside, weights[0]), Measure(other.detach(), weights[1])), best.move)
        if moved.ratio > best.ratio:
            best = moved
    return best
