"""The rows of profiles sorted into lines: one per model, coordinates and kind."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lisse.profile import Kind, Part, Profile, Quantity, Row, Value


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


def several(profiles: Profile | Iterable[Profile], function: str) -> list[Profile]:
    """One profile or many, as a list."""
    given = [profiles] if isinstance(profiles, Profile) else list(profiles)
    if not given or not all(isinstance(profile, Profile) for profile in given):
        kinds = sorted({type(profile).__name__ for profile in given}) or "none"
        raise TypeError(
            f"{function}: profiles must be one Profile or several, got {kinds}. Load files with Profile.load."
        )
    return given


def part_of(profile: Profile, instrument: str, function: str, *, arrays: bool = False) -> Part:
    """What an instrument measured, where it has rows, or arrays if these are wanted."""
    for part in profile:
        if part.instrument == instrument and (part.arrays if arrays else part.rows):
            return part
    raise ValueError(
        f"{function}: profiles must hold what {instrument.capitalize()} measured, got {profile.name!r} without it. "
        f"Run `lisse measure {instrument} MODEL --data SPEC`."
    )


def legend_names(profiles: Sequence[Profile]) -> list[str]:
    """The models' names, told apart by their data, or else by a number, where two are the same."""
    names = [profile.name for profile in profiles]
    with_data = [f"{name} on {_data(profile)}" for name, profile in zip(names, profiles, strict=True)]
    if len(set(names)) < len(names) and len(set(with_data)) == len(names):
        return [full if names.count(name) > 1 else name for name, full in zip(names, with_data, strict=True)]
    seen: dict[str, int] = {}
    for place, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        names[place] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return names


def described(profiles: Sequence[Profile], quantity: str, function: str) -> Quantity:
    """The quantity of that name in the first profile that has it; a wrong name lists the right ones."""
    known: dict[str, Quantity] = {}
    for profile in profiles:
        for name, meaning in profile.quantities.items():
            known.setdefault(name, meaning)
    if quantity not in known:
        near = difflib.get_close_matches(str(quantity), known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"{function}: quantity must be one of {', '.join(sorted(known)) or '(none)'}, got {quantity!r}.{hint}"
        )
    return known[quantity]


def collect(
    profiles: Sequence[Profile], quantity: str, *, where: Mapping[str, Value] | None, function: str
) -> list[Series]:
    """All lines of a quantity along depth; rows without a depth are left out, and so are those that miss ``where``."""
    rows = [(name, row) for name, profile in zip(legend_names(profiles), profiles, strict=True) for row in profile.rows]
    along = [(name, row) for name, row in rows if row.quantity == quantity and row.depth is not None]
    if not along:
        raise ValueError(
            f"{function}: quantity must have rows along depth, got {quantity!r}, which has none. "
            "Profile.frame() shows what there is."
        )
    wanted = dict(where or {})
    matching = [(name, row) for name, row in along if all(row.at.get(key) == value for key, value in wanted.items())]
    if not matching:
        there = sorted({row.where() or "(no coordinates)" for _, row in along})
        shown = "; ".join(there[:12]) + ("; …" if len(there) > 12 else "")
        raise ValueError(f"{function}: where must match some rows of {quantity!r}, got {wanted}. There are: {shown}.")
    lines: dict[tuple[str, str, Kind], Series] = {}
    for name, row in matching:
        at = Row.where(_without(row, wanted))
        lines.setdefault((name, at, row.kind), Series(name, at, row.kind)).rows.append(row)
    for line in lines.values():
        line.rows.sort(key=lambda row: row.depth or 0.0)
    return list(lines.values())


def _without(row: Row, keys: Mapping[str, Value]) -> Row:
    at = {key: value for key, value in row.at.items() if key not in keys}
    return Row(row.quantity, row.value, row.kind, row.n, at=at)


def _data(profile: Profile) -> str:
    data = profile.provenance.get("data")
    return str(data.get("name", "")) if isinstance(data, Mapping) else ""
