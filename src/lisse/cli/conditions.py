"""Conditions on two profiles, such as ``R_f > 0.2``: a small grammar, read by hand and never evaluated as code.

::

    condition  = comparison { ("and" | "or") comparison }        "and" binds more tightly
    comparison = sum ("<" | "<=" | ">" | ">=" | "==" | "!=") sum
    sum        = product { ("+" | "-") product }
    product    = factor { ("*" | "/") factor }
    factor     = number | value | ("low" | "high" | "abs") "(" sum ")" | "-" factor | "(" sum ")"
    value      = [ "a." | "b." ] [ instrument "." ] name [ "@" layer ] [ "{" key "=" text { "," key "=" text } "}" ]

A name is a quantity (``relative_stability``) or a headline (``R_f``, ``TopoLip``, ``mCE``). Without a layer it is the
row without one, or else the last layer's; a layer with signs in its name stands in double quotes. Without ``a.`` it is
of the second profile, b. ``low`` and ``high`` take the ends of the intervals of the values inside them.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-zα-ωΑ-Ω_][\w]*)|"
    r'@\s*(?P<layer>"[^"]*"|[\w.:/]+)|(?P<quoted>"[^"]*")|(?P<sign><=|>=|==|!=|[-+*/<>(){}.,=]))'
)
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_ENDS = ("value", "low", "high")


@dataclass(frozen=True)
class Outcome:
    """Whether a condition holds, and the numbers that it looked at."""

    text: str
    holds: bool
    values: tuple[tuple[str, float], ...]

    def told(self) -> str:
        """``R_f > 0.2 holds (R_f = 0.31)``."""
        seen = ", ".join(f"{name} = {value:.4g}" for name, value in dict(self.values).items())
        return f"{self.text} {'holds' if self.holds else 'does not hold'}" + (f" ({seen})" if seen else "")


def check(text: str, a: Any, b: Any) -> Outcome:
    """Whether a condition holds for the profiles ``a`` and ``b``; a ``ValueError`` where it cannot be checked."""
    reader = _Reader(text, a, b)
    holds = reader.condition()
    if reader.place < len(reader.tokens):
        raise ValueError(f"{reader.tokens[reader.place][1]!r} was not expected there")
    return Outcome(text.strip(), holds, tuple(reader.values))


class _Reader:
    def __init__(self, text: str, a: Any, b: Any) -> None:
        self.profiles = {"a": a, "b": b}
        self.tokens: list[tuple[str, str]] = []
        self.values: list[tuple[str, float]] = []
        self.place = 0
        self.end = "value"
        place = 0
        while text[place:].strip():
            match = _TOKEN.match(text, place)
            if match is None:
                raise ValueError(f"{text[place:].strip()[:10]!r} was not expected there")
            self.tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
            place = match.end()

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.place] if self.place < len(self.tokens) else ("end", "the end")

    def take(self, *signs: str) -> str | None:
        kind, words = self.peek()
        if kind in ("sign", "name") and words in signs:
            self.place += 1
            return words
        return None

    def need(self, sign: str) -> None:
        if self.take(sign) is None:
            raise ValueError(f"{sign!r} was expected before {self.peek()[1]!r}")

    def condition(self) -> bool:
        holds = self.conjunction()
        while self.take("or"):
            holds = self.conjunction() or holds
        return holds

    def conjunction(self) -> bool:
        holds = self.comparison()
        while self.take("and"):
            holds = self.comparison() and holds
        return holds

    def comparison(self) -> bool:
        left = self.sum()
        sign = self.take(*_COMPARE)
        if sign is None:
            raise ValueError(f"one of {' '.join(_COMPARE)} was expected before {self.peek()[1]!r}")
        return _COMPARE[sign](left, self.sum())

    def sum(self) -> float:
        value = self.product()
        while sign := self.take("+", "-"):
            value = value + self.product() if sign == "+" else value - self.product()
        return value

    def product(self) -> float:
        value = self.factor()
        while sign := self.take("*", "/"):
            other = self.factor()
            if sign == "/" and other == 0:
                raise ValueError("it divides by zero")
            value = value * other if sign == "*" else value / other
        return value

    def factor(self) -> float:
        if self.take("-"):
            return -self.factor()
        if self.take("("):
            value = self.sum()
            self.need(")")
            return value
        kind, words = self.peek()
        if kind == "number":
            self.place += 1
            return float(words)
        if (
            kind == "name"
            and words in ("low", "high", "abs")
            and self.tokens[self.place + 1 : self.place + 2] == [("sign", "(")]
        ):
            self.place += 2
            before, self.end = self.end, words if words in _ENDS else self.end
            value = self.sum()
            self.end = before
            self.need(")")
            return abs(value) if words == "abs" else value
        if kind == "name":
            return self.value()
        raise ValueError(f"a number or a quantity was expected before {words!r}")

    def value(self) -> float:
        start = self.place
        name = self.word()
        whose = "b"
        if name in self.profiles and self.take("."):
            whose, name = name, self.word()
        instrument = ""
        if any(part.instrument == name for part in self.profiles[whose].parts) and self.take("."):
            instrument, name = name, self.word()
        layer = None
        if self.peek()[0] == "layer":
            layer = self.peek()[1].strip('"')
            self.place += 1
        at: dict[str, str] = {}
        if self.take("{"):
            while True:
                key = self.word()
                self.need("=")
                at[key] = self.word()
                if not self.take(","):
                    break
            self.need("}")
        label = "".join("@" * (kind == "layer") + words for kind, words in self.tokens[start : self.place])
        row = _row(self.profiles[whose], name, instrument, layer, at, whose)
        value = getattr(row, self.end)
        if value is None:
            raise ValueError(f"{label} has no interval")
        if math.isnan(value):
            raise ValueError(f"{label} has no value")
        self.values.append((label if self.end == "value" else f"{self.end}({label})", float(value)))
        return float(value)

    def word(self) -> str:
        kind, words = self.peek()
        if kind not in ("name", "number", "quoted"):
            raise ValueError(f"a name was expected before {words!r}")
        self.place += 1
        return words.strip('"')


def _row(profile: Any, name: str, instrument: str, layer: str | None, at: dict[str, str], whose: str) -> Any:
    from lisse.reporting.page.headline import HEADLINES, Headline, chosen

    line = next((some for some in HEADLINES if name in (some.label, some.quantity)), Headline(name, instrument, name))
    parts = [part for part in profile.parts if instrument in ("", part.instrument)]
    parts = [part for part in parts if any(row.quantity == line.quantity for row in part.rows)]
    if not parts:
        there = ", ".join(sorted({row.quantity for row in profile.rows})) or "nothing"
        raise ValueError(f"{whose} ({profile.name}) has no {name}; it has {there}")
    if len(parts) > 1 and line.label != name:
        raise ValueError(
            f"{name} is of {' and '.join(part.instrument for part in parts)}: write {parts[0].instrument}.{name}"
        )
    own = [part for part in parts if part.instrument == line.instrument] or parts
    rows = [row for row in own[0].rows if row.quantity == line.quantity]
    some = [row for row in rows if all(_same(row.at.get(key), text) for key, text in at.items())]
    if not some:
        there = "; ".join(dict.fromkeys(row.where() or "(no coordinates)" for row in rows))
        raise ValueError(f"{whose} has no {name} at {', '.join(f'{k}={v}' for k, v in at.items())}; it has {there}")
    if layer is not None:
        layers = list(dict.fromkeys(row.layer for row in some if row.layer is not None))
        some = [row for row in some if row.layer == layer]
        if not some:
            raise ValueError(f"{whose} has no {name} at layer {layer!r}; it has {', '.join(layers) or 'no layers'}")
    found = chosen(some, line, lambda row: row)
    assert found is not None  # there are rows
    return found


def _same(value: Any, text: str) -> bool:
    if value is None:
        return False
    try:
        return float(value) == float(text)
    except (TypeError, ValueError):
        return str(value) == text
