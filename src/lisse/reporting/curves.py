"""The profiles of trainings sorted into curves: one per training, layer, coordinates and kind."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from lisse.maths.given import check_word
from lisse.profile import Profile, Value
from lisse.reporting.series import Series, matching

Time = Literal["epoch", "step"]
TimeScale = Literal["linear", "log"]
Watched = Mapping[int, Profile] | Iterable[Profile]

SAMPLED = 6  # layers that are shown of several trainings, where there are more and none are chosen


@dataclass
class Curve(Series):
    """One line of the figure: the rows of one training, layer, kind and set of coordinates, in order of time."""

    layer: str | None = None
    position: float | None = None
    time: list[float] = field(default_factory=list)


def trainings_of(profiles: Any, function: str) -> dict[str, list[Profile]]:
    """Trainings by name, each in order of its steps. A training alone has the name of its model."""
    if isinstance(profiles, Mapping) and profiles and all(isinstance(key, str) for key in profiles):
        return {name: _ordered(training, function) for name, training in profiles.items()}
    ordered = _ordered(profiles, function)
    return {ordered[0].name: ordered}


def _ordered(training: Any, function: str) -> list[Profile]:
    values: Any = training.values() if isinstance(training, Mapping) else training
    iterable = isinstance(values, Iterable) and not isinstance(values, (str, Profile))
    profiles: list[Profile] = list(values) if iterable else [values]
    if not profiles or not all(isinstance(profile, Profile) for profile in profiles):
        kinds = sorted({type(profile).__name__ for profile in profiles}) or "none"
        raise TypeError(
            f"{function}: profiles must be Profiles by step (of a Watch), or several such by name, got {kinds}. "
            "load_profiles reads a training's folder."
        )
    by_step: dict[float, Profile] = {}
    for profile in profiles:
        step = _moment(profile, "step")
        if step is None:
            raise ValueError(
                f"{function}: profiles must be of a training, got one of {profile.name} without a step. "
                "A Watch makes them."
            )
        if step in by_step:
            raise ValueError(
                f"{function}: profiles must be of different steps, got two of step {step:g}. "
                "Give several trainings by name: {'a': …, 'b': …}."
            )
        by_step[step] = profile
    return [profile for _, profile in sorted(by_step.items(), key=lambda item: item[0])]


def _moment(profile: Profile, time: Time) -> float | None:
    value = profile.about("training").get(time)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def all_profiles(trainings: Mapping[str, list[Profile]]) -> list[Profile]:
    """Every profile of every training."""
    return [profile for training in trainings.values() for profile in training]


def time_of(trainings: Mapping[str, list[Profile]], time: Time | None, function: str) -> Time:
    """The time to draw against: the one that was asked for, or epochs where every profile knows its own."""
    epochs = all(_moment(profile, "epoch") is not None for profile in all_profiles(trainings))
    if time is None:
        return "epoch" if epochs else "step"
    check_word(function, get_args(Time), time=time)
    if time == "epoch" and not epochs:
        raise ValueError(f"{function}: time must be 'step' for profiles without an epoch, got 'epoch'.")
    return time


def curves_of(
    trainings: Mapping[str, list[Profile]], quantity: str, time: Time, *, where: Mapping[str, Value] | None,
    layers: Sequence[str] | str | None, function: str,
) -> list[Curve]:  # fmt: skip
    """All lines of a quantity over time, from the input's layer to the output's; those without a layer come last."""
    globs = None if layers is None else [layers] if isinstance(layers, str) else list(layers)
    rows = [
        ((name, _moment(profile, time)), row)
        for name, training in trainings.items()
        for profile in training
        for row in profile.rows
        if row.quantity == quantity
    ]
    if not rows:
        raise ValueError(f"{function}: quantity must have rows, got {quantity!r}, which has none. See its notes.")
    matched = matching(rows, where, quantity, function)
    names = list(dict.fromkeys(row.layer for _, row, _ in matched if row.layer is not None))
    for glob in globs or ():
        if not any(_matches(name, glob) for name in names):
            near = difflib.get_close_matches(glob, names, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{function}: layers must be among {', '.join(names) or '(none)'}, got {glob!r}.{hint}")
    curves: dict[tuple[Any, ...], Curve] = {}
    for (name, moment), row, at in matched:
        if globs is None or any(_matches(row.layer or "", glob) for glob in globs):
            curve = curves.setdefault((name, row.layer, at, row.kind), Curve(name, at, row.kind, layer=row.layer))
            curve.position = row.depth
            curve.rows.append(row)
            curve.time.append(cast(float, moment))
    order = {name: index for index, name in enumerate(names)}

    def along(curve: Curve) -> tuple[float, int]:
        return math.inf if curve.position is None else curve.position, order.get(curve.layer or "", -1)

    return sorted(curves.values(), key=along)


def thinned_curves(curves: list[Curve]) -> tuple[list[Curve], str]:
    """Curves of a few layers along depth, where there are many, and a sentence that says so."""
    names = list(dict.fromkeys(curve.layer for curve in curves))
    if len(names) <= SAMPLED:
        return curves, ""
    drawn = {names[round(index * (len(names) - 1) / (SAMPLED - 1))] for index in range(SAMPLED)}
    return [curve for curve in curves if curve.layer in drawn], f" {SAMPLED} of {len(names)} layers along depth."


def options_differ(trainings: Mapping[str, list[Profile]], quantity: str) -> str:
    """A sentence where the measurement itself changed along the way, so that a step is not put down to the training."""
    for training in trainings.values():
        parts = [part for profile in training for part in profile.parts]
        options = [part.options for part in parts if any(row.quantity == quantity for row in part.rows)]
        if any(option != options[0] for option in options):
            return " The instrument's options changed along the way."
    return ""


def _matches(name: str, glob: str) -> bool:
    """As layers are chosen elsewhere: ``*`` stays within one part of a dotted name, ``**`` crosses dots."""
    special = {"**": ".*", "*": "[^.]*", "?": "[^.]"}
    parts = re.split(r"(\*\*|\*|\?)", glob)
    return re.fullmatch("".join(special.get(part, re.escape(part)) for part in parts), name) is not None
