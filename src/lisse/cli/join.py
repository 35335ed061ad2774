"""``--join NAME=GLOB``: which MODELs of a report are trainings of one network, and become one line with a band."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import click


def groups(ctx: click.Context, given: Sequence[str], models: Sequence[str]) -> dict[str, str]:
    """By spec, the name of the group it belongs to; what is wrong with the words is said before any work."""
    found: dict[str, str] = {}
    specs = list(dict.fromkeys(models))
    for words in given:
        name, equals, pattern = (word.strip() for word in words.partition("="))
        if not equals or not name or not pattern:
            raise click.UsageError(f"--join takes NAME=GLOB, got {words!r}", ctx)
        if name in found.values():
            raise click.UsageError(f"--join has two groups called {name!r}", ctx)
        own = [spec for spec in specs if fnmatchcase(spec, pattern)]
        if len(own) < 2:
            raise click.UsageError(
                f"--join {words} needs two MODELs or more that match {pattern!r}, got {', '.join(own) or 'none'}", ctx
            )
        for spec in own:
            if spec in found:
                raise click.UsageError(f"{spec} is in two groups of --join, {found[spec]} and {name}", ctx)
            found[spec] = name
    return found


def together(profiles: Sequence[tuple[str, Sequence[Any]]], names: Mapping[str, str]) -> list[Any]:
    """The profiles of all specs, each followed by its references, with those of a group joined in the first's place.

    Networks that cannot be joined stay apart, with a warning: what was measured still becomes a page.
    """
    from lisse.reporting.seeds import joined

    bands: dict[str, Any] = {}
    for name in dict.fromkeys(names.values()):
        try:
            bands[name] = joined([own for spec, (own, *_) in _once(profiles) if names.get(spec) == name], name)
        except ValueError as error:
            print(f"lisse: warning: {name} is not joined: {error}", file=sys.stderr)
    found: list[Any] = []
    joins = set(bands)
    for spec, (own, *references) in profiles:
        name = names.get(spec, "")
        if name not in joins:
            found.append(own)
        elif name in bands:
            found.append(bands.pop(name))
        found += references
    return found


def _once(profiles: Sequence[tuple[str, Sequence[Any]]]) -> list[tuple[str, Sequence[Any]]]:
    """A MODEL that was given twice is one network."""
    return list(dict(profiles).items())
