"""``lisse runs``: what was measured before, from the cache."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import click


@click.command()
@click.option("--cache", type=click.Path(file_okay=False), help="Folder of finished work.  [default: the person's]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the newest so many.")
def command(cache: str | None, as_json: bool, limit: int | None) -> None:
    """List the profiles in the cache, the newest first: model, data, date, instruments and headline numbers.

    The files are ordinary profiles: `lisse report`, `compare` and `figure` take them.
    """
    from itertools import islice

    from lisse.cli.table import print_table
    from lisse.run.cache import Cache, default_cache

    place = Cache(cache or default_cache())
    lines, damaged = [], []
    for path, profile in islice(place.profiles(), limit):
        if profile is None:
            damaged.append(path)
            continue
        lines.append({"file": str(path), **described(profile)})
    if as_json:
        for line in lines:
            print(json.dumps(line))
    elif lines:
        cells = [
            [line["model"], line["data"], line["date"][:16].replace("T", " "), ", ".join(line["instruments"]),
             ", ".join(f"{label} {value}" for label, value in line["headline"].items())]
            for line in lines
        ]  # fmt: skip
        print_table(["model", "data", "date", "instruments", "headline"], cells, left=(0, 1, 2, 3, 4))
    sys.stdout.flush()
    for path in damaged:
        print(f"lisse: warning: {path} is damaged and is not listed; it is safe to delete.", file=sys.stderr)
    if not lines:
        print(
            f"Nothing is kept in {place.folder} yet. `lisse report` and `lisse measure` put profiles there.",
            file=sys.stderr,
        )
    elif not as_json:
        print(f"{len(lines)} profiles in {place.folder / 'profiles'}. --json names the files.", file=sys.stderr)


def described(profile: Any) -> dict[str, Any]:
    """One profile as plain values."""
    from lisse.cli.table import shown
    from lisse.reporting.page.headline import headline_row, headlines

    said = profile.provenance
    data = said.get("data") if isinstance(said.get("data"), Mapping) else {}
    lines = headlines((part.instrument, {each.name: each for each in part.quantities}) for part in profile.parts)
    found = {line.label: headline_row(profile, line) for line in lines}
    return {
        "model": profile.name,
        "data": str(data.get("name", "?")),
        "date": str(said.get("date", "?")),
        "instruments": [part.instrument for part in profile.parts if part.rows],
        "headline": {label: shown(row) for label, row in found.items() if row is not None},
    }
