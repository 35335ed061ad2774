"""Axes of the page's figures: where a value lies, which values get a tick, and how a number is written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from lisse.reporting.series import drawable

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Extent:
    """The values of an axis, linear or logarithmic."""

    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        """Where ``value`` lies: 0 at ``low``, 1 at ``high``; values outside are put on the edge."""
        low, high, at = (
            (math.log(self.low), math.log(self.high), math.log(max(value, self.low)))
            if self.log
            else (self.low, self.high, value)
        )
        return min(1.0, max(0.0, (at - low) / (high - low)))

    def holds(self, value: float) -> bool:
        """Whether a value lies inside."""
        return self.low <= value <= self.high

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """Round values inside the interval with their labels."""
        values = _log_ticks(self.low, self.high, most) if self.log else _linear_ticks(self.low, self.high, most)
        return [(value, tick_label(value)) for value in values]


def extent_of(values: Iterable[float], *, log: bool, zero: bool = False) -> Extent:
    """An axis around ``values`` (those that can be drawn), a little wider than they are; ``zero`` includes 0."""
    drawn = [value for value in values if drawable(value, log)]
    if not drawn:
        return Extent(0.1, 1.0, True) if log else Extent(0.0, 1.0)
    low, high = min(drawn), max(drawn)
    if log:
        pad = max((high / low) ** 0.06, 1.02)
        return Extent(low / pad, high * pad, True)
    if zero and low >= 0:
        low = 0.0
    pad = (high - low) * 0.06 or max(abs(high), 1e-12) * 0.1
    return Extent(low if zero and low == 0.0 else low - pad, high + pad)


def short_number(value: float | None, digits: int = 3) -> str:
    """A few significant digits, without a row of zeros: ``0.231``, ``12,300``, ``4.2·10⁻⁵``."""
    if value is None:
        return ""
    if math.isnan(value):
        return "no value"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    mantissa, exponent = _scientific(value, digits)
    if -4 <= exponent < 6:
        decimals = max(0, digits - 1 - exponent)
        text = f"{value:,.{decimals}f}"
        if decimals and "." in text:
            text = text.rstrip("0").rstrip(".")
        return text.replace("-", "−")
    return f"{mantissa:.{digits}g}·10{str(exponent).translate(_SUPERSCRIPT)}".replace("-", "−")


def _scientific(value: float, digits: int) -> tuple[float, int]:
    """The ``a`` and ``b`` of a·10ᵇ, rounded to so many digits; of the smallest and the largest numbers as well."""
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return float(mantissa), int(exponent)


def tick_label(value: float) -> str:
    """A tick's number, shorter than :func:`short_number`."""
    if value == 0:
        return "0"
    mantissa, exponent = _scientific(value, 9)
    if exponent >= 5 or exponent <= -4:
        power = f"10{str(exponent).translate(_SUPERSCRIPT)}"
        return power if abs(mantissa - 1) < 1e-6 else f"{mantissa:.3g}·{power}"
    return f"{value:,.6g}".replace("-", "−")


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    span = high - low
    step = 10.0 ** math.floor(math.log10(span / most))
    step = next(step * factor for factor in (1, 2, 2.5, 5, 10, 20) if span / (step * factor) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round(count * step, 12) for count in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    decades = math.log10(high / low)
    if decades < 0.9:
        return [value for value in _linear_ticks(low, high, most) if value > 0]
    bottom, top = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if decades < 2.5:
        factors: tuple[int, ...] = (1, 2, 5) if decades < 1.8 else (1, 3)
        ticks = [factor * 10.0**power for power in range(bottom, top + 1) for factor in factors]
    else:
        every = math.ceil((top - bottom) / most)
        ticks = [10.0**power for power in range(bottom, top + 1) if power % every == 0]
    return [value for value in ticks if low <= value <= high]
