"""The fields of an instrument's dataclass as options of a command, and back."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource

if typing.TYPE_CHECKING:
    from lisse.run import Instrument, Size

_NOTHING = type(None)
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_LISTS = (tuple, list, frozenset, set, Sequence)


class FieldType(click.ParamType):
    """Reads a text as a value of an annotation: ``2``, ``0.5``, ``median``, ``1,2,inf``, ``none``."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self.name = metavar_of(annotation)

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
    instruments: Sequence[type], reserved: Collection[str], *, left_out: Collection[str] = ()
) -> list[click.Option]:
    """One option per field of the instruments but those ``left_out``, named like the field.

    A field that several instruments have with the same type is one option for all of them. Where types differ, or a
    name is ``reserved`` for an option of the command itself, it is ``--INSTRUMENT-FIELD``.
    """
    options = []
    for name, owners in _by_name(instruments).items():
        if name in left_out:
            continue
        shared = name not in reserved and len({repr(_hints(owner)[name]) for owner in owners}) == 1
        if shared:
            options.append(_option(_spelled(name), _key(name), owners[0], name))
        else:
            for owner in owners:
                spelled = f"{owner.__name__.lower()}-{_spelled(name)}"
                options.append(_option(spelled, _key(name, owner), owner, name))
    return options


def typed(ctx: click.Context) -> dict[str, Any]:
    """The fields that were set on the command line, by parameter name."""
    return {
        key: value
        for key, value in ctx.params.items()
        if key.startswith("field_") and ctx.get_parameter_source(key) is ParameterSource.COMMANDLINE
    }


class FieldCommand(click.Command):
    """A command whose help keeps the options that are fields apart from its own, under the ``titles`` of both."""

    titles = ("Options of {name}", "Options of every measurement")
    fields_first = True

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Two sections of options."""
        params = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        for fields, title in zip((self.fields_first, not self.fields_first), self.titles, strict=True):
            group = [param for param in params if str(param.name).startswith("field_") == fields]
            with formatter.section(title.format(name=ctx.info_name)):
                formatter.write_dl([record for param in group if (record := param.get_help_record(ctx))])


def instruments_of(
    kinds: Sequence[type[Instrument]], values: dict[str, Any], *, size: Size = "full"
) -> list[Instrument]:
    """The instruments at a size with the options that a person chose: ``values`` holds no others, by parameter name."""
    instruments = []
    for kind in kinds:
        options = {
            name: values[key] for name in _hints(kind) for key in (_key(name), _key(name, kind)) if key in values
        }
        instruments.append(kind.sized(size, **options))
    return instruments


def parsed(annotation: Any, text: str) -> Any:
    """``text`` as a value of ``annotation``; a ``ValueError`` where it is none."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is float and "/" in text:
        above, _, below = text.partition("/")
        return float(above) / (float(below) or float("nan"))
    if annotation in (int, float, str, Path):
        return annotation(text)
    if annotation in (bool, _NOTHING) or origin is Literal:
        words = {str(value): value for value in inner} or (_WORDS if annotation is bool else {"none": None})
        word = text if inner else text.lower()
        if word not in words:
            raise ValueError(text)
        return words[word]
    if origin in (typing.Union, types.UnionType):
        # A string takes anything: it comes last, and none comes first.
        for option in sorted(inner, key=lambda option: (option is str, option is not _NOTHING)):
            try:
                return parsed(option, text)
            except ValueError:
                continue
    if origin not in _LISTS:
        raise ValueError(text)
    items = [item.strip() for item in text.strip("()[] ").split(",") if item.strip()]
    kinds = inner if origin is tuple and inner[-1] is not Ellipsis else [inner[0]] * len(items)
    return tuple(parsed(kind, item) for kind, item in zip(kinds, items, strict=True))


def metavar_of(annotation: Any) -> str:
    """What an option of this type takes, for its help; empty where a command line cannot say it."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    plain = {int: "INTEGER", float: "NUMBER", str: "TEXT", bool: "yes|no", Path: "PATH", _NOTHING: "none"}
    if annotation in plain:
        return plain[annotation]
    if origin is Literal:
        return "|".join(str(choice) for choice in inner)
    if origin in (typing.Union, types.UnionType):
        names = [metavar_of(option) for option in inner]
        return "|".join(names) if all(names) else "|".join(filter(None, names))
    if origin in _LISTS and inner and all(metavar_of(kind) for kind in inner if kind is not Ellipsis):
        fixed = origin is tuple and inner[-1] is not Ellipsis
        return ",".join(metavar_of(kind) for kind in inner) if fixed else f"{metavar_of(inner[0])},…"
    return ""


def _option(spelled: str, key: str, owner: type, name: str) -> click.Option:
    annotation = _hints(owner)[name]
    item = next(item for item in dataclasses.fields(owner) if item.name == name)
    text = str(item.metadata.get("help", ""))
    default = _default(item)
    text += f"  [default: {_text(default)}]" if default is not dataclasses.MISSING else ""
    required = default is dataclasses.MISSING
    common: dict[str, Any] = {"help": text.strip(), **({"required": True} if required else {"default": None})}
    if annotation is bool:
        return click.Option([f"--{spelled}/--no-{spelled}", key], **common)
    return click.Option([f"--{spelled}", key], type=FieldType(annotation), **common)


def _by_name(instruments: Sequence[type]) -> dict[str, list[type]]:
    by_name: dict[str, list[type]] = {}
    for kind in instruments:
        for name, annotation in _hints(kind).items():
            if metavar_of(annotation):
                by_name.setdefault(name, []).append(kind)
    return by_name


def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {item.name: hints[item.name] for item in dataclasses.fields(kind) if item.compare}


def _default(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return item.default


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list, set, frozenset)):
        return ",".join(_text(part) for part in value)
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _key(name: str, owner: type | None = None) -> str:
    return f"field_{name}" if owner is None else f"field_{owner.__name__.lower()}__{name}"


def _spelled(name: str) -> str:
    return name.replace("_", "-")
