"""The rows of profiles sorted into lines: one per model, coordinates and kind."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from lisse.profile import Kind, Line, Look, Panel, Profile, Quantity, Row, Value, words_of
from lisse.reporting.declared import up_to_date

Owner = TypeVar("Owner")

#: How a chart's lines are called where they look unlike.
LOOK_WORDS: dict[Look, str] = {"line": "line", "bars": "bars", "floor": "shaded"}


@dataclass
class Series:
    """One line of a figure: the rows of one model, kind and set of coordinates, in order of depth."""

    model: str
    at: str
    kind: Kind
    rows: list[Row] = field(default_factory=list)

    @property
    def depth(self) -> list[float]:
        """Where the points are."""
        return [row.depth if row.depth is not None else math.nan for row in self.rows]

    def values(self, log: bool) -> list[float]:
        """The points, with NaN where one cannot be drawn (not finite, or not positive on a logarithmic axis)."""
        return [row.value if drawable(row.value, log) else math.nan for row in self.rows]

    def band(self, log: bool) -> tuple[list[float], list[float]]:
        """The ends of the intervals, with NaN where there is none or it cannot be drawn."""
        ends = [
            (row.low, row.high)
            if row.kind != "exact" and row.low is not None and row.high is not None
            and math.isfinite(row.low) and drawable(row.high, log)
            else (math.nan, math.nan)
            for row in self.rows
        ]  # fmt: skip
        return [low for low, _ in ends], [high for _, high in ends]


def drawable(value: float, log: bool) -> bool:
    """Whether a value has a place on the axis."""
    return math.isfinite(value) and (value > 0 or not log)


def listed_profiles(profiles: Profile | Iterable[Profile], function: str) -> list[Profile]:
    """One profile or many, as a list, with what their instruments declare today where they were saved before."""
    listed = [profiles] if isinstance(profiles, Profile) else list(profiles)
    if not listed or not all(isinstance(profile, Profile) for profile in listed):
        kinds = sorted({type(profile).__name__ for profile in listed}) or "none"
        raise TypeError(
            f"{function}: profiles must be one Profile or several, got {kinds}. Load files with Profile.load."
        )
    return [up_to_date(profile) for profile in listed]


def legend_names(profiles: Sequence[Profile]) -> list[str]:
    """The models' names, told apart by their data, or else by a number, where two are the same."""
    names = [profile.name for profile in profiles]
    data = [profile.about("data").get("name", "") for profile in profiles]
    with_data = [f"{name} on {where}" for name, where in zip(names, data, strict=True)]
    if len(set(names)) < len(names) and len(set(with_data)) == len(names):
        return [full if names.count(name) > 1 else name for name, full in zip(names, with_data, strict=True)]
    counts: Counter[str] = Counter()
    numbered = []
    for name in names:
        counts[name] += 1
        numbered.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return numbered


def meaning_of(profiles: Sequence[Profile], quantity: str, function: str) -> Quantity:
    """The quantity of that name in the first profile that has it; a wrong name lists the right ones."""
    quantities = {name: meaning for profile in reversed(profiles) for name, meaning in profile.quantities.items()}
    if quantity not in quantities:
        near = difflib.get_close_matches(str(quantity), quantities, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"{function}: quantity must be one of {', '.join(sorted(quantities)) or '(none)'}, got {quantity!r}.{hint}"
        )
    return quantities[quantity]


def matching(
    items: Sequence[tuple[Owner, Row]], where: Mapping[str, Value] | None, quantity: str, function: str
) -> list[tuple[Owner, Row, str]]:
    """The rows at these coordinates, each with its other coordinates in words; none is an error that lists them."""
    keys = dict(where or {})
    rows = [(owner, row) for owner, row in items if all(row.at.get(key) == value for key, value in keys.items())]
    if not rows:
        sets = sorted({row.where() or "(no coordinates)" for _, row in items})
        listed = "; ".join(sets[:12]) + ("; …" if len(sets) > 12 else "")
        raise ValueError(f"{function}: where must match some rows of {quantity!r}, got {keys}. There are: {listed}.")
    return [(owner, row, words_of(without(row.at, keys))) for owner, row in rows]


def collect(
    profiles: Sequence[Profile], quantity: str, *, where: Mapping[str, Value] | None, function: str
) -> list[Series]:
    """All lines of a quantity along depth; rows without a depth are left out, and so are those that miss ``where``."""
    pairs = zip(legend_names(profiles), profiles, strict=True)
    rows = [(name, row) for name, profile in pairs for row in profile.rows if row.quantity == quantity]
    along = [(name, row) for name, row in rows if row.depth is not None]
    if not along:
        raise ValueError(
            f"{function}: quantity must have rows along depth, got {quantity!r}, which has none. "
            "Profile.frame() shows what there is."
        )
    lines: dict[tuple[str, str, Kind], Series] = {}
    for name, row, at in matching(along, where, quantity, function):
        lines.setdefault((name, at, row.kind), Series(name, at, row.kind)).rows.append(row)
    for line in lines.values():
        line.rows.sort(key=lambda row: row.depth or 0.0)
    return list(lines.values())


def on_line(row: Row, panel: Panel, line: Line) -> bool:
    """Whether a row belongs to a line of a chart's panel: its quantity, a place on the axis, and its coordinates.

    The size of a cloud is none of those that a line chooses by.
    """
    if row.quantity != line.quantity or not (panel.over in row.at or (panel.over == "depth" and row.depth is not None)):
        return False
    beside = {panel.over, line.mean, *map(str, line.band[:1])}
    return line.at is None or without(row.at, {*beside, "cloud"}) == without(line.at, beside)


def without(at: Mapping[str, Value], keys: Iterable[str]) -> dict[str, Value]:
    """Coordinates other than these."""
    return {key: value for key, value in at.items() if key not in keys}


def in_powers(row: Row) -> Row:
    """The row in powers of ten: no value where it is not positive."""
    ends = [None if end is None else math.log10(end) if end > 0 else -math.inf for end in (row.low, row.high)]
    return replace(row, value=math.log10(row.value) if row.value > 0 else math.nan, low=ends[0], high=ends[1])
