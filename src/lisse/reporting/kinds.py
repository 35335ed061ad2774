"""How every kind of number looks and is called, in figures and on the page: the one vocabulary of both."""

from __future__ import annotations

from dataclasses import dataclass

from lisse.profile import Kind, Row


@dataclass(frozen=True)
class KindLook:
    """Matplotlib's ``marker``, the same as a ``sign`` in a text, what it ``says``, and what stands before a number."""

    marker: str
    sign: str
    says: str
    before: str = ""


KINDS: dict[Kind, KindLook] = {
    "exact": KindLook("s", "■", "exact for these very samples"),
    "estimate": KindLook("o", "●", "estimate"),
    "lower": KindLook("^", "▲", "lower bound: the true value is at least this", "≥ "),
    "upper": KindLook("v", "▼", "upper bound: the true value is at most this", "≤ "),
    "heuristic": KindLook("D", "◆", "heuristic: no guarantee", "~ "),
}


def interval(row: Row) -> tuple[float, float] | None:
    """A row's interval over samples. The ends of an ``exact`` one are the range of several networks, which is none."""
    return None if row.low is None or row.high is None or row.kind == "exact" else (row.low, row.high)
