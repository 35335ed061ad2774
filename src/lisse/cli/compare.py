"""``lisse compare A B``: two profiles side by side."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from lisse.cli.conditions import check
from lisse.cli.figure import load
from lisse.cli.outcome import Failed

if TYPE_CHECKING:
    from lisse.profile import Profile

CONDITION = 5  # the exit code where a condition of --fail-if holds


@click.command()
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option("--apart", "only_apart", is_flag=True, help="Only rows whose intervals do not overlap.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON, one per line.")
@click.option(
    "--fail-if", "conditions", multiple=True, metavar="CONDITION", help="Exit with 5 if it holds; may be repeated."
)
@click.pass_context
def command(ctx: click.Context, a: str, b: str, only_apart: bool, as_json: bool, conditions: tuple[str, ...]) -> None:
    """Put the profiles A and B side by side, row by row, and say where they are apart.

    Apart is `yes` where two intervals do not overlap (or two exact numbers differ), `no` where they do, and `?` where
    there is no interval to tell. Rows are matched by instrument, quantity, layer and coordinates.

    A CONDITION is like 'R_f > 0.2' (of B), 'b.R_f > 1.1 * a.R_f' or 'low(TopoLip{p=2}) > high(a.TopoLip{p=2})': see
    docs/command-line.md. One that cannot be checked is an error, never a success.
    """
    from lisse.cli.table import number, print_table
    from lisse.profile_file import number_to_json

    mine, yours = load(a), load(b)
    frame = mine.compare(yours)
    both = len(frame)
    if both == 0:
        raise Failed(f"{a} and {b} have no rows in common: {_what(mine)}; {_what(yours)}.")
    for text in _differences(mine, yours):
        print(f"lisse: warning: {text}", file=sys.stderr)
    if only_apart:
        frame = frame[[flag is True for flag in frame["apart"]]]
    lines: list[dict[str, Any]] = frame.to_dict("records")
    for line in lines:  # a frame may hold NaN for a layer that is not there
        line["layer"] = line["layer"] if isinstance(line["layer"], str) else None
    if as_json:
        for line in lines:
            numbers = {key: number_to_json(line[key]) for key in ("a", "b", "difference")}
            print(json.dumps(line | numbers, allow_nan=False))
    else:
        header = ["quantity", "layer", "where", "a", "b", "b - a", "apart"]
        words = {True: "yes", False: "no", None: "?"}
        cells = [
            [
                line["quantity"],
                line["layer"] or "",
                line["where"],
                *(number(line[key]) for key in ("a", "b", "difference")),
                words[line["apart"]],
            ]
            for line in lines
        ]
        print_table(header, cells, left=(0, 1, 2))
    sys.stdout.flush()
    alone = len(mine.rows) - both, len(yours.rows) - both
    tail = f"; {alone[0]} only in a, {alone[1]} only in b" if any(alone) else ""
    print(f"a: {a} ({mine.name}), b: {b} ({yours.name}); {both} rows in both{tail}.", file=sys.stderr)
    if _held(ctx, conditions, mine, yours):
        ctx.exit(CONDITION)


def _held(ctx: click.Context, conditions: tuple[str, ...], mine: Profile, yours: Profile) -> bool:
    """Whether any condition holds; each is said."""
    held = False
    for text in conditions:
        try:
            outcome = check(text, mine, yours)
        except ValueError as error:
            raise click.UsageError(f"--fail-if {text!r}: {error}", ctx) from error
        print(f"lisse: {'failed: ' if outcome.holds else ''}{outcome.told()}.", file=sys.stderr)
        held = held or outcome.holds
    return held


def _what(profile: Profile) -> str:
    return f"{profile.name} has {', '.join(sorted({row.quantity for row in profile.rows})) or 'no rows'}"


def _differences(mine: Profile, yours: Profile) -> list[str]:
    """What besides the model differs, so that a difference of numbers is not put down to the model."""
    found = []
    a, b = _data(mine), _data(yours)
    if a.get("fingerprint") != b.get("fingerprint"):
        found.append(f"the two were measured on different data ({a.get('name', '?')} and {b.get('name', '?')}).")
    found += [
        f"{key} differs ({mine.provenance.get(key)} and {yours.provenance.get(key)})."
        for key in ("seed", "statistics", "readout")
        if mine.provenance.get(key) != yours.provenance.get(key)
    ]
    return found


def _data(profile: Profile) -> Mapping[str, Any]:
    data = profile.provenance.get("data")
    return data if isinstance(data, Mapping) else {}
