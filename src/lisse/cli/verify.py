"""``lisse verify PROFILE|ATLAS.json#KEY``: measure it again, and say whether it is the same."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from lisse.cli.compare import CONDITION
from lisse.cli.files import load_atlas_row, load_profile
from lisse.cli.outcome import Failed, arguments

if TYPE_CHECKING:
    from lisse.reporting.atlas import AtlasRow


@click.command()
@click.argument("target", metavar="PROFILE|ATLAS.json#KEY")
@click.option("--model", metavar="SPEC", help="The network, where the row's own spec or recipe is not to be used.")
@click.option("--data", metavar="SPEC", help="The data, where a profile does not say their spec.")
@click.option("--trust", is_flag=True, help="Import the code, and open the files, that it names.")
@click.option("--out", type=click.Path(dir_okay=False), help="Save what was measured now as a profile.")
@click.pass_context
def command(ctx: click.Context, target: str, model: str | None, data: str | None, trust: bool, out: str | None) -> None:
    """Measure a profile or a row of an atlas again, and say whether it comes out the same.

    A network is made again from its public spec, or from recipe and seed; the answer is "the same", what differs (code
    5), or "cannot: no weights and no recipe" (code 1). Code and files that it names need your word (--trust).
    """
    from lisse.cli.table import printable
    from lisse.reporting.atlas import atlas_row, measured_by
    from lisse.reporting.page.frame import brief
    from lisse.sweeping.verification import Unmakeable, all_numbers, measured_origin, unit_again, verified

    if ".json#" in target:
        row, _ = load_atlas_row(target)
        if row.reason:
            raise Failed(f"cannot: {brief(row.name)} failed ({brief(row.reason)}); there are no numbers to compare.")
        before = _row_numbers(row)
        origin: dict[str, Any] = {"unit": row.unit, "spec": None, "weights": row.weights, "data_hash": row.data_hash}
        numbers, digits, version = (
            lambda profile: _row_numbers(atlas_row(profile)), 9, row.version,
        )  # fmt: skip
    else:
        profile = load_profile(target)
        before, numbers, digits = all_numbers(profile), all_numbers, 17
        origin = measured_origin(profile)
        version = measured_by(profile)
    try:
        unit = unit_again(origin, model=model, data=data, trust=trust)
    except Unmakeable as error:
        raise Failed(brief(str(error))) from error
    if not before:
        raise Failed(f"cannot: the {'row' if '.json#' in target else 'profile'} holds no numbers.")
    with arguments(ctx):
        result = verified(
            before, unit, numbers, weights=origin["weights"], data_hash=origin["data_hash"], digits=digits
        )
    for sentence in result.says:
        print(printable(brief(sentence)))
    sys.stdout.flush()
    current = measured_by(result.profile)
    print(printable(brief(f"It was measured by lisse {version}" + f"; here is {current}" * (current != version))) + ".",
          file=sys.stderr)  # fmt: skip
    if out:
        print(f"Saved {result.profile.save(out)}.", file=sys.stderr)
    if result.agreement == "different":
        ctx.exit(CONDITION)


def _row_numbers(row: AtlasRow) -> dict[str, float]:
    """All that a row measured: value, ends of the interval and n, of its test error and of every headline."""
    lines: dict[str, tuple[float | None, ...]] = {} if row.error is None else {"test error": row.error}
    lines |= {label: number[:4] for label, number in row.numbers.items()}
    return {
        f"{label}{end}": number
        for label, numbers in lines.items()
        for end, number in zip(("", " low", " high", " n"), numbers, strict=True)
        if number is not None
    }
