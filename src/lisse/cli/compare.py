"""``lisse compare A B``: two profiles side by side."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from lisse.cli.conditions import check
from lisse.cli.files import load_atlas_row, load_profile
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
    there is no interval to tell. Rows are matched by instrument, quantity, layer and coordinates: blocks by their place
    along depth where both have as many, the last block with the last block, other layers by name. A or B may be a row
    of an atlas, ATLAS.json#KEY: then the headlines are compared.

    A CONDITION is like 'R_f > 0.2' (of B), 'b.R_f > 1.1 * a.R_f' or 'low(TopoLip{p=2}) > high(a.TopoLip{p=2})': see
    docs/command-line.md. One that cannot be checked is an error, never a success.
    """
    from lisse.cli.table import number_text, print_table, printable
    from lisse.profile_file import number_to_json

    first, second = _profiles(a, b)
    frame = first.compare(second)
    both = len(frame)
    if both == 0:
        raise Failed(f"{a} and {b} have no rows in common: {_summary(first)}; {_summary(second)}.")
    for text in _differences(first, second):
        print(f"lisse: warning: {text}", file=sys.stderr)
    if only_apart:
        frame = frame[[flag is True for flag in frame["apart"]]]
    lines: list[dict[str, Any]] = frame.to_dict("records")
    for line in lines:  # a frame may hold NaN for a layer that is not there
        line["layer"] = line["layer"] if isinstance(line["layer"], str) else None
    numbers = ("a", "b", "difference")
    if as_json:
        for line in lines:
            print(json.dumps(line | {key: number_to_json(line[key]) for key in numbers}, allow_nan=False))
    else:
        words = {True: "yes", False: "no", None: "?"}
        cells = [
            [line["quantity"], line["layer"] or "", line["where"], *(number_text(line[key]) for key in numbers),
             words[line["apart"]]]
            for line in lines
        ]  # fmt: skip
        print_table(["quantity", "layer", "where", "a", "b", "b - a", "apart"], cells, text_columns=(0, 1, 2))
    sys.stdout.flush()
    alone = len(first.rows) - both, len(second.rows) - both
    tail = f"; {alone[0]} only in a, {alone[1]} only in b" if any(alone) else ""
    heading = f"a: {a} ({first.name}), b: {b} ({second.name}); {both} rows in both{tail}."
    print(printable(heading), file=sys.stderr)
    outcomes = []
    for text in conditions:
        try:
            outcomes.append(check(text, first, second))
        except ValueError as error:
            raise click.UsageError(f"--fail-if {text!r}: {error}", ctx) from error
        print(f"lisse: {'failed: ' * outcomes[-1].holds}{outcomes[-1]}.", file=sys.stderr)
    if any(outcome.holds for outcome in outcomes):
        ctx.exit(CONDITION)


def _profiles(*targets: str) -> list[Profile]:
    """The profiles of files; where one is a row of an atlas, the headlines of all, which is what a row holds."""
    if not any(".json#" in target for target in targets):
        return [load_profile(target) for target in targets]
    from lisse.reporting.atlas import atlas_row, headline_words, row_profile

    profiles = []
    for target in targets:
        if ".json#" in target:
            row, words = load_atlas_row(target)
        else:
            profile = load_profile(target)
            row, words = atlas_row(profile), headline_words([profile])
        profiles.append(row_profile(row, words))
    return profiles


def _summary(profile: Profile) -> str:
    return f"{profile.name} has {', '.join(sorted({row.quantity for row in profile.rows})) or 'no rows'}"


def _differences(first: Profile, second: Profile) -> Iterator[str]:
    """What besides the model differs, so that a difference of numbers is not put down to the model."""
    from lisse.profile import order_of, tokenizers_apart

    a, b = (profile.about("data") for profile in (first, second))
    if a.get("fingerprint") != b.get("fingerprint"):
        yield f"the two were measured on different data ({a.get('name', '?')} and {b.get('name', '?')})."
    if (names := tokenizers_apart(a, b)) is not None:
        yield f"tokenizers differ ({names[0]}; {names[1]}): the texts are the same, the tokens are not."
    for key in ("seed", "statistics", "readout"):
        values = [profile.provenance.get(key) for profile in (first, second)]
        if values[0] != values[1]:
            yield f"{key} differs ({values[0]} and {values[1]})."
    settings = [profile.provenance.get("setting") for profile in (first, second)]
    if settings[0] != settings[1] and a.get("fingerprint") == b.get("fingerprint"):
        versions = [str(profile.provenance.get("version")) for profile in (first, second)]
        apart = "with other instruments, options, numbers of samples or batches"
        if versions[0] != versions[1]:
            apart = f"by other versions ({'; '.join(versions)}), and perhaps with other options"
        yield f"the two were measured {apart}: their headlines may differ for that alone."
    orders = [order_of(profile) for profile in (first, second)]
    if orders[0] != orders[1]:
        words = " and ".join(order["by"] for order in orders)
        yield f"the order of the samples differs ({words}): numbers of fewer than all rest on other samples."
