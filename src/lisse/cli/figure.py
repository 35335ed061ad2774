"""``lisse figure QUANTITY PROFILE… -o FILE``: a quantity over depth, for one or more models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lisse.cli.outcome import FileTrouble, arguments

if TYPE_CHECKING:
    from lisse.profile import Profile, Value


@click.command()
@click.argument("quantity")
@click.argument("profiles", nargs=-1, required=True, type=click.Path(), metavar="PROFILE...")
@click.option("-o", "--out", required=True, type=click.Path(dir_okay=False), help="Where to: .png, .svg or .pdf.")
@click.option("--where", multiple=True, metavar="KEY=VALUE", help="Only rows at this coordinate; may be repeated.")
@click.pass_context
def command(ctx: click.Context, quantity: str, profiles: tuple[str, ...], out: str, where: tuple[str, ...]) -> None:
    """Draw QUANTITY of the profiles over depth: a line per model, with intervals.

    With the word `overview` as QUANTITY: every quantity, as small multiples.
    """
    from lisse.reporting import depth_figure, overview_figure, save_figure

    loaded = [load(path) for path in profiles]
    chosen = dict(_coordinate(ctx, text) for text in where)
    with arguments(ctx):
        if quantity == "overview" and all("overview" not in profile.quantities for profile in loaded):
            if chosen:
                raise click.UsageError("--where goes with a quantity, not with the overview", ctx)
            figure = overview_figure(loaded)
        else:
            figure = depth_figure(loaded, quantity, where=chosen or None)
        saved = save_figure(figure, Path(out))
    print(f"Saved {saved}", file=sys.stderr)


def load(path: str) -> Profile:
    """A profile from a file; whatever is wrong with it is trouble with a file."""
    from lisse.profile import Profile

    try:
        return Profile.load(path)
    except ValueError as error:
        raise FileTrouble(str(error)) from error


def _coordinate(ctx: click.Context, text: str) -> tuple[str, Value]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise click.UsageError(f"--where takes KEY=VALUE, got {text!r}", ctx)
    if value.lower() in ("true", "false"):
        return key, value.lower() == "true"
    for kind in (int, float):
        try:
            return key, kind(value)
        except ValueError:
            continue
    return key, value
