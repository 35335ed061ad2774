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

import difflib
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
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
# Both sides of "and" and "or" are read, so that a condition that cannot be checked is an error.
_CHAINED: dict[str, Callable[[Any, Any], Any]] = {
    "or": operator.or_, "and": operator.and_,
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip
_ENDS = ("value", "low", "high")


@dataclass(frozen=True)
class Outcome:
    """Whether a condition holds, and the numbers that it looked at."""

    text: str
    holds: bool
    values: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        """``R_f > 0.2 holds (R_f = 0.31)``."""
        numbers = ", ".join(f"{name} = {value:.4g}" for name, value in dict(self.values).items())
        return f"{self.text} {'holds' if self.holds else 'does not hold'}" + (f" ({numbers})" if numbers else "")


def check(text: str, a: Any, b: Any) -> Outcome:
    """Whether a condition holds for the profiles ``a`` and ``b``; a ``ValueError`` where it cannot be checked."""
    reader = _Reader(text, a, b)
    try:
        holds = reader.condition()
    except ZeroDivisionError:
        raise ValueError("it divides by zero") from None
    except RecursionError:
        raise ValueError("it has too many brackets or signs inside each other") from None
    if reader.position < len(reader.tokens):
        raise ValueError(f"{reader.tokens[reader.position][1]!r} was not expected there")
    return Outcome(text.strip(), holds, tuple(reader.values))


class _Reader:
    def __init__(self, text: str, a: Any, b: Any) -> None:
        self.profiles = {"a": a, "b": b}
        self.tokens: list[tuple[str, str]] = []
        self.values: list[tuple[str, float]] = []
        self.position = 0
        self.end = "value"
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(f"{text[position:].strip()[:10]!r} was not expected there")
            self.tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
            position = match.end()

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.position] if self.position < len(self.tokens) else ("end", "the end")

    def take(self, *signs: str) -> str | None:
        kind, text = self.peek()
        if kind in ("sign", "name") and text in signs:
            self.position += 1
            return text
        return None

    def need(self, sign: str) -> None:
        if self.take(sign) is None:
            raise ValueError(f"{sign!r} was expected before {self.peek()[1]!r}")

    def chain(self, operand: Callable[[], Any], *signs: str) -> Any:
        """Operands with signs between them, from the left."""
        value = operand()
        while sign := self.take(*signs):
            value = _CHAINED[sign](value, operand())
        return value

    def condition(self) -> bool:
        return bool(self.chain(lambda: self.chain(self.comparison, "and"), "or"))

    def comparison(self) -> bool:
        value = self.sum()
        sign = self.take(*_COMPARE)
        if sign is None:
            raise ValueError(f"one of {' '.join(_COMPARE)} was expected before {self.peek()[1]!r}")
        return _COMPARE[sign](value, self.sum())

    def sum(self) -> float:
        return float(self.chain(lambda: self.chain(self.factor, "*", "/"), "+", "-"))

    def factor(self) -> float:
        if self.take("-"):
            return -self.factor()
        if self.take("("):
            return self.closed()
        kind, text = self.peek()
        if kind == "number":
            self.position += 1
            return float(text)
        if kind != "name":
            raise ValueError(f"a number or a quantity was expected before {text!r}")
        if text not in ("low", "high", "abs") or self.tokens[self.position + 1 : self.position + 2] != [("sign", "(")]:
            return self.value()
        self.position += 2
        before, self.end = self.end, text if text in _ENDS else self.end
        value = self.closed()
        self.end = before
        return abs(value) if text == "abs" else value

    def closed(self) -> float:
        value = self.sum()
        self.need(")")
        return value

    def value(self) -> float:
        start = self.position
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
            self.position += 1
        at: dict[str, str] = {}
        if self.take("{"):
            while True:
                key = self.word()
                self.need("=")
                at[key] = self.word()
                if not self.take(","):
                    break
            self.need("}")
        label = "".join("@" * (kind == "layer") + text for kind, text in self.tokens[start : self.position])
        row = _row(self.profiles[whose], name, instrument, layer, at, whose)
        value = getattr(row, self.end)
        if value is None:
            raise ValueError(f"{label} has no interval")
        if math.isnan(value):
            raise ValueError(f"{label} has no value")
        self.values.append((label if self.end == "value" else f"{self.end}({label})", float(value)))
        return float(value)

    def word(self) -> str:
        kind, text = self.peek()
        if kind not in ("name", "number", "quoted"):
            raise ValueError(f"a name was expected before {text!r}")
        self.position += 1
        return text.strip('"')


def _row(profile: Any, name: str, instrument: str, layer: str | None, at: dict[str, str], whose: str) -> Any:
    from lisse.profile import Headline
    from lisse.reporting.page.headline import profile_headings, representative, standing_layer

    headings = [line for line in profile_headings(profile) if name in (line.label, line.quantity.name)]
    headings = [line for line in headings if instrument in ("", line.instrument)]
    headline = headings[0].headline if headings else Headline(name)
    quantity = headings[0].quantity.name if headings else name
    parts = [part for part in profile.parts if instrument in ("", part.instrument)]
    parts = [part for part in parts if any(row.quantity == quantity for row in part.rows)]
    if not parts:
        names = sorted({row.quantity for row in profile.rows} | {line.label for line in profile_headings(profile)})
        hint = _suggestion(name, names)
        raise ValueError(f"{whose} ({profile.name}) has no {name}; it has {', '.join(names) or 'nothing'}.{hint}")
    if len(parts) > 1 and headline.label != name:
        raise ValueError(
            f"{name} is of {' and '.join(part.instrument for part in parts)}: write {parts[0].instrument}.{name}"
        )
    part = next((part for part in parts if headings and part.instrument == headings[0].instrument), parts[0])
    everywhere = [row for row in part.rows if row.quantity == quantity]
    rows = [row for row in everywhere if all(_equal(row.at.get(key), text) for key, text in at.items())]
    if not rows:
        sets = "; ".join(dict.fromkeys(row.where() or "(no coordinates)" for row in everywhere))
        raise ValueError(f"{whose} has no {name} at {', '.join(f'{k}={v}' for k, v in at.items())}; it has {sets}")
    if layer is not None:
        layers = list(dict.fromkeys(row.layer for row in rows if row.layer is not None))
        rows = [row for row in rows if row.layer == layer]
        if not rows:
            raise ValueError(f"{whose} has no {name} at layer {layer!r}; it has {', '.join(layers) or 'no layers'}")
    return representative(rows, headline, block=standing_layer(profile, headings[0].quantity) if headings else None)


def _suggestion(name: str, names: list[str]) -> str:
    """The nearest of a profile's names, or of those that it would have if another instrument had measured."""
    from lisse.instruments import ALL

    owners: dict[str, str] = {}
    for kind in ALL:
        for quantity in kind.QUANTITIES:
            for text in (quantity.name, getattr(quantity.headline, "label", None)):
                if text is not None and text not in names:
                    owners.setdefault(text, kind.__name__.lower())
    candidates = [*names, *owners]  # the profile's own first: of two that are as near, they win
    near = difflib.get_close_matches(name.lower(), [text.lower() for text in candidates], n=1, cutoff=0.5)
    text = next((text for text in candidates if text.lower() in near), None)
    if text is None or text in names:
        return "" if text is None else f" Did you mean {text}?"
    mean = "" if text == name else f" Did you mean {text}?"
    return f"{mean} lisse measure {owners[text]} gives {text}."


def _equal(value: Any, text: str) -> bool:
    if value is None:
        return False
    try:
        return float(value) == float(text)
    except (TypeError, ValueError):
        return str(value) == text
