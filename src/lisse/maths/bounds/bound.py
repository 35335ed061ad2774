"""What a bound is: a number, what it claims, and whether it may claim it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["upper", "lower", "heuristic"]
Variant = Literal["corrected", "printed"]
VARIANTS = ("corrected", "printed")


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One condition of a bound, checked on the given numbers. ``found`` says what was seen."""

    statement: str
    holds: bool
    found: str = ""

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "fails"
        return f"{self.statement}: {verdict}" + (f" ({self.found})" if self.found else "")


@dataclass(frozen=True, slots=True)
class Bound:
    """A Lipschitz bound with its hypotheses.

    ``value`` is always a number, ``inf`` where it is too large for one; ``log10`` then still has it. ``kind`` is
    ``"upper"`` or ``"lower"`` for a theorem and ``"heuristic"`` for a printed bound that is not one. ``valid`` is true
    when every hypothesis holds, and it is a theorem; :attr:`reason` says what fails. ``probability`` is the guaranteed
    probability of the statement over random weights (1 for given weights, never below 0).
    """

    value: float
    kind: Kind
    variant: Variant
    hypotheses: tuple[Hypothesis, ...]
    valid: bool
    log10: float = math.nan
    probability: float = 1.0

    def __post_init__(self) -> None:
        if math.isnan(self.log10):
            object.__setattr__(self, "log10", math.log10(self.value) if self.value > 0 else -math.inf)

    @property
    def reason(self) -> str:
        """Why the bound is not valid; empty where it is."""
        return "; ".join(str(one) for one in self.hypotheses if not one.holds)

    def __float__(self) -> float:
        return self.value


def bound(
    logarithm: float,
    hypotheses: Iterable[Hypothesis] = (),
    *,
    kind: Kind = "upper",
    variant: Variant = "corrected",
    probability: float = 1.0,
) -> Bound:
    """The :class:`Bound` whose natural logarithm is ``logarithm``; ``valid`` is that all hypotheses hold."""
    conditions = tuple(hypotheses)
    value = math.exp(logarithm) if logarithm < 709.0 else math.inf
    valid = kind != "heuristic" and all(one.holds for one in conditions)
    return Bound(
        value, kind, variant, conditions, valid, log10=logarithm / math.log(10), probability=max(0.0, probability)
    )


def log(x: float) -> float:
    """Natural logarithm of a number that is not negative; minus infinity at 0."""
    return math.log(x) if x > 0 else -math.inf


def log_sum(*logarithms: float) -> float:
    """Logarithm of a sum, from the logarithms of its terms."""
    top = max(logarithms)
    return top if math.isinf(top) else top + math.log(sum(math.exp(one - top) for one in logarithms))


def checked_variant(function: str, variant: str) -> Variant:
    """``variant`` if there is one of that name."""
    if variant not in VARIANTS:
        raise ValueError(f"{function}: variant must be 'corrected' or 'printed', got {variant!r}.")
    return "corrected" if variant == "corrected" else "printed"


def not_negative(function: str, **numbers: float) -> None:
    """Refuse negative, infinite and missing numbers."""
    for name, number in numbers.items():
        if not (math.isfinite(number) and number >= 0):
            raise ValueError(f"{function}: {name} must be finite and not negative, got {number}.")


def positive(function: str, **numbers: float) -> None:
    """Refuse what is not a positive, finite number."""
    for name, number in numbers.items():
        if not (math.isfinite(number) and number > 0):
            raise ValueError(f"{function}: {name} must be positive and finite, got {number}.")


def whole(function: str, **numbers: float) -> None:
    """Refuse what is not a whole number of at least 1."""
    for name, number in numbers.items():
        if isinstance(number, bool) or number != number or number in (math.inf,) or number != int(number) or number < 1:
            raise ValueError(f"{function}: {name} must be a whole number of at least 1, got {number}.")
