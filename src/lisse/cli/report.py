"""``lisse report MODEL… --data SPEC``: every instrument that fits, and one page about it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lisse.cli import completion
from lisse.cli.options import measuring, run_options
from lisse.cli.outcome import Failed, arguments, check_writable


@click.command(
    params=[
        click.Argument(["models"], nargs=-1, required=True, metavar="MODEL...", shell_complete=completion.models),
        *measuring(),
    ]
)
@click.option("--full", is_flag=True, help="The papers' sizes.")
@click.option(
    "--instruments",
    metavar="NAME[,…]",
    shell_complete=completion.instruments,
    help="Only these; package.module:Class too.  [default: all that fit]",
)
@click.option(
    "--start/--no-start", default=None, help="Also measure networks of the zoo with random weights.  [default: yes]"
)
@click.option("--start-seeds", type=click.IntRange(min=1), help="How many such networks.  [default: 1, 2 or 3 by size]")
@click.option(
    "--join", multiple=True, metavar="NAME=GLOB", help="MODELs that match are seeds of one training: one band."
)
@click.option("--out", default="report.html", type=click.Path(dir_okay=False), help="The page.  [default: report.html]")
@click.option("--profiles", "folder", type=click.Path(file_okay=False), help="Also save the profiles in this folder.")
@click.option("--title", help="Of the page.  [default: the models' names]")
@click.pass_context
def command(
    ctx: click.Context, models: tuple[str, ...], out: str, title: str | None, folder: str | None, **values: Any
) -> None:
    """Measure MODELs on data by every instrument that fits, and write one page that compares them.

    MODEL is zoo:NAME, hf:NAME, timm:NAME, torchvision:NAME, package.module:factory, a .safetensors checkpoint, or a
    saved .profile. Ctrl-C keeps what is finished, and the same command goes on from there.
    """
    import lisse
    from lisse.progress import Bar
    from lisse.surveying.networks import STARTS, SUFFIX

    if values["quick"] and values["full"]:
        raise click.UsageError("--quick and --full exclude each other", ctx)
    if values["data"] is None and not all(spec.endswith(SUFFIX) for spec in models):
        raise click.UsageError("--data is needed to measure a model; `lisse data` lists what there is", ctx)
    check_writable(Path(out), "page")
    size: Any = "quick" if values["quick"] else "full" if values["full"] else "usual"
    starts = 0 if values["start"] is False else values["start_seeds"] or (STARTS[size] if values["start"] else None)
    options = {key: values[key] for key in ("data", "instruments", "split", "limit", "device")}
    options |= run_options(ctx, values) | {"join": _groups(ctx, values["join"])}
    with Bar(memory=True, keep=False) as bar, arguments(ctx):
        profiles = lisse.survey(models, size=size, starts=starts, folder=folder, progress=bar, **options)
    if not any(profile.rows for profile in profiles):
        reasons = dict.fromkeys(note for profile in profiles for note in profile.notes)
        raise Failed("nothing was measured: " + (" ".join(reasons) or "the profiles have no rows."))
    replaced = " (in place of the one before)" if Path(out).exists() else ""
    sentences = lisse.verdict(profiles)
    with arguments(ctx, "profiles"):
        saved = lisse.report(profiles, out, title=title, sentences=sentences)
    print_verdict(sentences)
    print(f"Saved {saved}{replaced}, {saved.stat().st_size / 1e6:.1f} MB. Open it in a browser.", file=sys.stderr)


def print_verdict(sentences: Sequence[Any]) -> None:
    """The lines on top of the page, on standard output: what differs, how sure that is, what it means."""
    from lisse.cli.table import printable
    from lisse.reporting.page.sentence import TOP

    for sentence in sentences:
        if sentence.topic in TOP:
            print(printable(sentence.text))
    sys.stdout.flush()


def _groups(ctx: click.Context, join: Sequence[str]) -> dict[str, str]:
    """``NAME=GLOB``, several times, as a mapping."""
    groups: dict[str, str] = {}
    for text in join:
        name, _, pattern = (word.strip() for word in text.partition("="))
        if not name or not pattern:
            raise click.UsageError(f"--join takes NAME=GLOB, got {text!r}", ctx)
        if name in groups:
            raise click.UsageError(f"--join has two groups called {name!r}", ctx)
        groups[name] = pattern
    return groups
