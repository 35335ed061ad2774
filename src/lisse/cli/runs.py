"""``lisse runs``: what was measured before, from the cache."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from lisse.cli.outcome import Failed


@click.command()
@click.option("--cache", type=click.Path(file_okay=False), help="Folder of finished work.  [default: the person's]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the newest so many.")
@click.option(
    "--check", is_flag=True, help="Read every file of the cache, name the damaged ones, remove what killed runs left."
)
def command(cache: str | None, as_json: bool, limit: int | None, check: bool) -> None:
    """List the profiles in the cache, the newest first: model, data, sizes, seed, date and headline numbers.

    The files are ordinary profiles: `lisse report`, `compare` and `figure` take them.
    """
    from itertools import islice

    from lisse.cli.table import print_table
    from lisse.run.cache import Cache, default_cache

    store = Cache(cache or default_cache())
    if check:
        _check(store)
        return
    lines, damaged = [], []
    for path, profile in islice(store.profiles(), limit):
        if profile is None:
            damaged.append(path)
            continue
        lines.append({"file": str(path), **_summary(profile)})
    if as_json:
        for line in lines:
            print(json.dumps(line))
    elif lines:
        cells = [
            [line["model"], line["data"], f"{line['samples']:,}" if line["samples"] else "", str(line["seed"]),
             line["date"][:16].replace("T", " "),
             ", ".join(f"{name} {n:,}" if n else name for name, n in line["sizes"].items()),
             ", ".join(f"{label} {value}" for label, value in line["headline"].items())]
            for line in lines
        ]  # fmt: skip
        titles = ["model", "data", "samples", "seed", "date", "instruments and their samples", "headline"]
        print_table(titles, cells, text_columns=(0, 1, 4, 5, 6))
    sys.stdout.flush()
    for path in damaged:
        print(f"lisse: warning: {path} is damaged and is not listed; it is safe to delete.", file=sys.stderr)
    if not lines:
        print(
            f"Nothing is kept in {store.folder} yet. `lisse report` and `lisse measure` put profiles there.",
            file=sys.stderr,
        )
    elif not as_json:
        print(f"{len(lines)} profiles in {store.folder / 'profiles'}. --json names the files.", file=sys.stderr)


def _check(store: Any) -> None:
    sound, damaged, left = store.check()
    print(f"{sound} whole, {len(damaged)} damaged, {left} left by killed runs and removed, in {store.folder}.")
    if damaged:
        raise Failed(f"damaged, and safe to delete: {', '.join(map(str, damaged))}")


def _summary(profile: Any) -> dict[str, Any]:
    """One profile as plain values."""
    from lisse.cli.table import value_text
    from lisse.reporting.page.headline import headline_rows

    data = profile.about("data")
    sizes = {part.instrument: max((row.n or 0 for row in part.rows), default=0) for part in profile.parts if part.rows}
    return {
        "model": profile.name,
        "data": str(data.get("name", "?")),
        "samples": data.get("samples"),
        "seed": profile.provenance.get("seed", "?"),
        "date": str(profile.provenance.get("date", "?")),
        "instruments": list(sizes),
        "sizes": sizes,
        "headline": {label: value_text(row) for label, row in headline_rows(profile).items()},
    }
