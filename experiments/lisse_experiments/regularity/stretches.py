"""How much attention stretches, measured, beside the paper's bounds and the proved ones: over d and R, and over N."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from lisse.maths.bounds import attention_gaussian, attention_on_ball
from lisse.maths.markov import AttentionKernel, Ball, DotProduct, Gaussian, contraction
from lisse.maths.transport import Measure, wasserstein
from lisse.profile_file import writing

STEP = 1e-4  # how far the middle point of the Gaussian example is moved
_RADII = (1.0, 6.5)  # among which the best place of the outer points lies, for every N that is drawn


@dataclass(frozen=True)
class Stretch:
    """Self-attention with the dot product on the ℓ2-ball of a radius in R^d: a lower estimate of τ, and two bounds."""

    d: int
    radius: float
    measured: float
    move: str
    n: int

    @property
    def printed(self) -> float:
        """Theorem 1 as it is printed."""
        return float(attention_on_ball(self.d, self.radius, variant="printed").value)

    @property
    def corrected(self) -> float:
        """Theorem 1 as it is proved in lisse."""
        return float(attention_on_ball(self.d, self.radius).value)

    @property
    def below(self) -> float:
        """What light masses attain on the line, e^{R²/4}: no bound can grow more slowly."""
        return math.exp(self.radius**2 / 4)

    @property
    def violated(self) -> bool:
        """Whether a pair of measures was found that the printed bound denies."""
        return self.measured > self.printed * (1 + 1e-9)


@dataclass(frozen=True)
class Growth:
    """Gaussian attention on ``n`` points of the line: (n - 1)/2 at -r, one at 0, (n - 1)/2 at r; the one moves."""

    n: int
    radius: float
    measured: float

    @property
    def intended(self) -> float:
        """Theorem 2 with 1/2e inside of the root, as its proof has it."""
        return float(attention_gaussian(self.n, 1).value)

    @property
    def literal(self) -> float:
        """Theorem 2 as it is typeset."""
        return float(attention_gaussian(self.n, 1, variant="printed").value)


def stretches(dims: Iterable[int], radii: Sequence[float], *, budget: int, seed: int) -> list[Stretch]:
    """The search of :func:`lisse.maths.markov.contraction`, with the same budget everywhere."""
    kernel = AttentionKernel(DotProduct())
    results = []
    for d in dims:
        for radius in radii:
            best = contraction(lambda mu: kernel(mu, mu), sampler=Ball(d, radius), budget=budget, seed=seed)
            results.append(Stretch(d, radius, best.value, best.move, best.n))
    return results


def kept_stretches(
    file: Path,
    dims: Sequence[int],
    radii: Sequence[float],
    *,
    budget: int,
    seed: int,
    tell: Callable[[int], None] | None = None,
) -> list[Stretch]:
    """:func:`stretches`, each unless an earlier start left it in ``file``."""
    document = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    results = []
    for d, radius in itertools.product(dims, radii):
        key = f"d={d} R={radius:g} budget={budget} seed={seed}"
        if key not in document:
            (stretch,) = stretches([d], [radius], budget=budget, seed=seed)
            document[key] = asdict(stretch)
            file.parent.mkdir(parents=True, exist_ok=True)
            with writing(file) as stream:
                stream.write(json.dumps(document, indent=1).encode())
        results.append(Stretch(**document[key]))
        if tell is not None:
            tell(len(results))
    return results


def gaussian_ratio(half: int, radius: float, step: float = STEP) -> float:
    """W1 after over W1 before for 2·``half`` + 1 points; exact, for the copies are one atom with their weight."""
    kernel, n = AttentionKernel(Gaussian()), 2 * half + 1
    weights = torch.tensor([half / n, 1 / n, half / n], dtype=torch.float64)
    mu, nu = (Measure(torch.tensor([[-radius], [x], [radius]], dtype=torch.float64), weights) for x in (0.0, step))
    return float(wasserstein(kernel(mu, mu), kernel(nu, nu)) / wasserstein(mu, nu))


def growth(halves: Iterable[int]) -> list[Growth]:
    """For each number of points the best r, by golden section: the ratio has one hump."""
    return [Growth(2 * half + 1, *_best(half)) for half in halves]


def first_violation(literal: bool = False) -> int:
    """The smallest number of points of the family that exceeds Theorem 2, by bisection over (n - 1)/2."""
    low, high = 1, 1 << 20

    def exceeds(half: int) -> bool:
        (family,) = growth([half])
        return family.measured > (family.literal if literal else family.intended)

    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if exceeds(middle) else (middle, high)
    return 2 * high + 1


def _best(half: int) -> tuple[float, float]:
    left, right, ratio = *_RADII, (math.sqrt(5) - 1) / 2
    for _ in range(40):
        inner, outer = right - ratio * (right - left), left + ratio * (right - left)
        if gaussian_ratio(half, inner) < gaussian_ratio(half, outer):
            left = inner
        else:
            right = outer
    return (left + right) / 2, gaussian_ratio(half, (left + right) / 2)
