"""option(): what an instrument says of each of its fields: help, limits, and its values at other sizes."""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, Literal

Size = Literal["quick", "usual", "full"]

_SAME: Any = dataclasses.MISSING


def option(
    default: Any,
    help: str,  # as click and argparse call it
    *,
    quick: Any = _SAME,
    usual: Any = _SAME,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Sequence[Any] | None = None,
) -> Any:
    """A field of an instrument: its default (the paper's size), a sentence of help, its other sizes, its limits.

    ``quick`` and ``usual`` are the values of a first look and of a report where they differ from the default.
    ``least`` is the smallest value, ``above`` and ``below`` are limits that are not values themselves; they hold for
    every entry of a tuple, and not for ``None``. A whole number must be one where the annotation says ``int``, and a
    ``Literal`` is a list of ``choices`` already.
    """
    sizes = {size: value for size, value in (("quick", quick), ("usual", usual)) if value is not _SAME}
    limits = {"least": least, "above": above, "below": below, "choices": choices}
    return dataclasses.field(default=default, metadata={"help": help, "sizes": sizes, **limits})


def level_option() -> Any:
    """The field that every instrument with intervals has."""
    return option(0.95, "confidence level of the intervals", above=0, below=1)


def sizes_of(kind: type, size: Size) -> dict[str, Any]:
    """The options of a kind of instrument that differ from their defaults at a size."""
    return {
        item.name: item.metadata["sizes"][size]
        for item in dataclasses.fields(kind)
        if size in item.metadata.get("sizes", {})
    }


def check_options(instrument: Any) -> None:
    """A ``ValueError`` that names the first option that is outside what its field declares."""
    kind: Any = type(instrument)
    for item in dataclasses.fields(kind):
        value = getattr(instrument, item.name)
        rule = _broken_rule(value, item.metadata, _annotations(kind)[item.name])
        if rule is not None:
            raise ValueError(f"{kind.__name__}: {item.name} must {rule}, got {value!r}.")


@functools.cache
def _annotations(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _broken_rule(value: Any, limits: typing.Mapping[str, Any], annotation: Any) -> str | None:
    """What a value must be and is not; ``None`` where nothing is wrong with it."""
    choices = limits.get("choices") or _literals(annotation)
    entries = value if isinstance(value, (tuple, list)) else (value,)
    if choices:
        allowed = ", ".join(str(choice) for choice in choices)
        return None if all(entry is None or entry in choices for entry in entries) else f"be one of {allowed}"
    least, above, below = (limits.get(key) for key in ("least", "above", "below"))
    if least is above is below is None:
        return None
    numbers = [entry for entry in entries if entry is not None]
    kinds, noun = (Integral, "a whole number") if _integral(annotation) else (Real, "a number")
    right = all(isinstance(entry, kinds) and not isinstance(entry, bool) for entry in numbers)
    if least is not None and not (right and all(entry >= least for entry in numbers)):
        return f"be {noun} of at least {least:g}"
    if above is not None and below is not None:
        return None if right and all(above < entry < below for entry in numbers) else f"lie in ({above:g}, {below:g})"
    if above is not None and not (right and all(above < entry < math.inf for entry in numbers)):
        return "be positive and finite" if above == 0 else f"be above {above:g}"
    if below is not None and not (right and all(entry < below for entry in numbers)):
        return f"be below {below:g}"
    return None


def _literals(annotation: Any) -> tuple[Any, ...]:
    """The values of a ``Literal``, alone, with ``None`` beside it, or as the entries of a tuple."""
    if typing.get_origin(annotation) is Literal:
        return typing.get_args(annotation)
    inner = [part for part in typing.get_args(annotation) if part not in (type(None), Ellipsis)]
    return _literals(inner[0]) if len(inner) == 1 else ()


def _integral(annotation: Any) -> bool:
    """Whether an annotation allows whole numbers and no others."""
    inner = [part for part in typing.get_args(annotation) if part not in (type(None), Ellipsis)]
    return annotation is int or (bool(inner) and all(_integral(part) for part in inner))
