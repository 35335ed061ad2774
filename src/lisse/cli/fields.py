"""The fields of an instrument's dataclass as options of a command, and back."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import click

_NOTHING = type(None)
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_LISTS = (tuple, list, frozenset, set, Sequence)


class FieldType(click.ParamType):
    """Reads a text as a value of an annotation: ``2``, ``0.5``, ``median``, ``1,2,inf``, ``none``."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self.name = described(annotation)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value, or a usage error that says what the option takes."""
        if not isinstance(value, str):
            return value
        try:
            return parsed(self.annotation, value)
        except ValueError:
            self.fail(f"{value!r} is not {self.name}", param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """What the help shows after the option."""
        return self.name


def options(
    instruments: Sequence[type], taken: Collection[str], *, left_out: Collection[str] = ()
) -> list[click.Option]:
    """One option per field of the instruments but those ``left_out``, named like the field.

    A field that several instruments have with the same type is one option for all of them. Where types differ, or a
    name is ``taken`` by an option of the command itself, it is ``--INSTRUMENT-FIELD``.
    """
    found = []
    for name, owners in _by_name(instruments).items():
        if name in left_out:
            continue
        shared = name not in taken and len({repr(_hints(owner)[name]) for owner in owners}) == 1
        if shared:
            found.append(_option(_spelled(name), _key(name), owners[0], name))
        else:
            for owner in owners:
                spelled = f"{owner.__name__.lower()}-{_spelled(name)}"
                found.append(_option(spelled, _key(name, owner), owner, name))
    return found


def build(instruments: Sequence[type], values: dict[str, Any]) -> list[Any]:
    """The instruments with the options that were given: ``values`` holds those and no others, by parameter name."""
    made = []
    for kind in instruments:
        given = {}
        for name in _hints(kind):
            for key in (_key(name), _key(name, kind)):
                if key in values:
                    given[name] = values[key]
        made.append(kind(**given))
    return made


def parsed(annotation: Any, text: str) -> Any:
    """``text`` as a value of ``annotation``; a ``ValueError`` where it is none."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is _NOTHING:
        if text.lower() != "none":
            raise ValueError(text)
        return None
    if annotation is bool:
        if text.lower() not in _WORDS:
            raise ValueError(text)
        return _WORDS[text.lower()]
    if annotation in (int, float, str, Path):
        return annotation(text)
    if origin is Literal:
        for choice in inner:
            if str(choice) == text:
                return choice
        raise ValueError(text)
    if origin in (typing.Union, types.UnionType):
        # A string takes anything: it comes last, and none comes first.
        for option in sorted(inner, key=lambda option: (option is str, option is not _NOTHING)):
            try:
                return parsed(option, text)
            except ValueError:
                continue
        raise ValueError(text)
    if origin in _LISTS:
        items = [item.strip() for item in text.strip("()[] ").split(",") if item.strip()]
        if origin is tuple and inner and inner[-1] is not Ellipsis:
            if len(items) != len(inner):
                raise ValueError(text)
            return tuple(parsed(kind, item) for kind, item in zip(inner, items, strict=True))
        return tuple(parsed(inner[0], item) for item in items)
    raise ValueError(text)


def described(annotation: Any) -> str:
    """What an option of this type takes, for its help; empty where a command line cannot say it."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    plain = {int: "INTEGER", float: "NUMBER", str: "TEXT", bool: "yes|no", Path: "PATH", _NOTHING: "none"}
    if annotation in plain:
        return plain[annotation]
    if origin is Literal:
        return "|".join(str(choice) for choice in inner)
    if origin in (typing.Union, types.UnionType):
        names = [described(option) for option in inner]
        return "|".join(names) if all(names) else "|".join(filter(None, names))
    if origin in _LISTS and inner and all(described(kind) for kind in inner if kind is not Ellipsis):
        fixed = origin is tuple and inner[-1] is not Ellipsis
        return ",".join(described(kind) for kind in inner) if fixed else f"{described(inner[0])},…"
    return ""


def _option(spelled: str, key: str, owner: type, name: str) -> click.Option:
    annotation = _hints(owner)[name]
    item = next(item for item in dataclasses.fields(owner) if item.name == name)
    text = str(item.metadata.get("help", ""))
    default = _default(item)
    text += f"  [default: {_shown(default)}]" if default is not dataclasses.MISSING else ""
    required = default is dataclasses.MISSING
    common: dict[str, Any] = {"help": text.strip(), **({"required": True} if required else {"default": None})}
    if annotation is bool:
        return click.Option([f"--{spelled}/--no-{spelled}", key], **common)
    return click.Option([f"--{spelled}", key], type=FieldType(annotation), **common)


def _by_name(instruments: Sequence[type]) -> dict[str, list[type]]:
    by_name: dict[str, list[type]] = {}
    for kind in instruments:
        for name, annotation in _hints(kind).items():
            if described(annotation):
                by_name.setdefault(name, []).append(kind)
    return by_name


def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {item.name: hints[item.name] for item in dataclasses.fields(kind) if item.init}


def _default(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return item.default


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list, set, frozenset)):
        return ",".join(_shown(part) for part in value)
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _key(name: str, owner: type | None = None) -> str:
    return f"field_{name}" if owner is None else f"field_{owner.__name__.lower()}__{name}"


def _spelled(name: str) -> str:
    return name.replace("_", "-")
