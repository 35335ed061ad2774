"""What a bound is: a number, what it claims, and whether it may claim it."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, ParamSpec, TypeVar, get_args

_Kind = Literal["upper", "lower", "heuristic"]
BoundVariant = Literal["corrected", "printed"]
_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One condition of a bound, checked on the given numbers, which ``evidence`` names."""

    statement: str
    holds: bool
    evidence: str = ""

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "fails"
        return f"{self.statement}: {verdict}" + (f" ({self.evidence})" if self.evidence else "")


@dataclass(frozen=True, slots=True)
class Bound:
    """A Lipschitz bound with its hypotheses.

    ``value`` is always a number, ``inf`` where it is too large for one; ``log10`` then still has it. ``kind`` is
    ``"upper"`` or ``"lower"`` for a theorem and ``"heuristic"`` for a printed bound that is not one. ``valid`` is true
    when every hypothesis holds, and it is a theorem; :attr:`reason` says what fails. ``probability`` is the guaranteed
    probability of the statement over random weights (1 for given weights, never below 0).
    """

    value: float
    kind: _Kind
    variant: BoundVariant
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
        return "; ".join(str(condition) for condition in self.hypotheses if not condition.holds)

    def __float__(self) -> float:
        return self.value


def bound(
    logarithm: float,
    hypotheses: Iterable[Hypothesis] = (),
    *,
    kind: _Kind = "upper",
    variant: BoundVariant = "corrected",
    probability: float = 1.0,
) -> Bound:
    """The :class:`Bound` whose natural logarithm is ``logarithm``; ``valid`` is that all hypotheses hold."""
    conditions = tuple(hypotheses)
    value = math.exp(logarithm) if logarithm < 709.0 else math.inf
    valid = kind != "heuristic" and all(condition.holds for condition in conditions)
    return Bound(
        value, kind, variant, conditions, valid, log10=logarithm / math.log(10), probability=max(0.0, probability)
    )


def log(x: float) -> float:
    """Natural logarithm of a number that is not negative; minus infinity at 0. NaN promises nothing: infinity."""
    return math.inf if math.isnan(x) else math.log(x) if x > 0 else -math.inf


def log_sum(*logarithms: float) -> float:
    """Logarithm of a sum, from the logarithms of its terms."""
    top = max(logarithms)
    return top if math.isinf(top) else top + math.log(sum(math.exp(logarithm - top) for logarithm in logarithms))


_RULES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "natural": ("be a whole number of at least 1", lambda x: not isinstance(x, bool) and x >= 1 and x % 1 == 0),
    "above_zero": ("be positive and finite", lambda x: 0 < x < math.inf),
    "not_negative": ("be finite and not negative", lambda x: 0 <= x < math.inf),
}


def checked(**rules: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A function that refuses wrong numbers: ``natural="d heads", above_zero="sigma"`` names its arguments by rule.

    ``None`` passes. An argument ``variant`` must be one of :data:`BoundVariant`.
    """
    rule_of = {argument: rule for rule, arguments in rules.items() for argument in arguments.split()}

    def decorated(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            arguments = signature.bind(*args, **kwargs).arguments
            for argument, value in arguments.items():
                if argument in rule_of and value is not None:
                    rule, holds = _RULES[rule_of[argument]]
                    if not holds(value):
                        raise ValueError(f"{function.__name__}: {argument} must {rule}, got {value}.")
            variant = arguments.get("variant", "corrected")
            if variant not in get_args(BoundVariant):
                raise ValueError(f"{function.__name__}: variant must be 'corrected' or 'printed', got {variant!r}.")
            return function(*args, **kwargs)

        return call

    return decorated
