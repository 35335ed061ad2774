"""The options that commands which measure share, said once."""

from __future__ import annotations

from typing import Any

import click

from lisse.cli import completion


def measuring() -> list[click.Parameter]:
    """What everything that measures takes: the data, the layers, how large, where, and what is kept."""
    return [
        click.Option(
            ["--data"],
            metavar="SPEC",
            shell_complete=completion.data_sets,
            help="Data set; `lisse data` lists them.",
        ),
        click.Option(["--split"], default="test", metavar="NAME", help="Part of the data set.  [default: test]"),
        click.Option(["--limit"], type=click.IntRange(min=1), help="Use at most this many samples."),
        click.Option(["--layers"], multiple=True, metavar="GLOB", help="Only these layers; may be repeated."),
        click.Option(["--quick"], is_flag=True, help="Fewer samples, with intervals: a first look."),
        click.Option(["--seed"], type=int, default=0, help="Of everything random.  [default: 0]"),
        click.Option(
            ["--order"],
            type=click.Choice(["drawn", "given"]),
            default="drawn",
            help="Of the samples: drawn with the seed, or as they are.  [default: drawn]",
        ),
        click.Option(["--batch"], type=click.IntRange(min=1), default=100, help="Samples at a time.  [default: 100]"),
        click.Option(["--memory"], metavar="SIZE", help="Most for activations.  [default: 2GiB; a GPU's own, 6GiB]"),
        click.Option(["--device"], metavar="NAME", help="Where to compute: cpu, cuda, cuda:1, mps."),
        click.Option(
            ["--readout"],
            type=click.Choice(["cls", "mean", "tokens"]),
            help="What a sample of text is.  [default: mean]",
        ),
        click.Option(["--cache"], type=click.Path(file_okay=False), help="Folder of finished work, to go on from."),
        click.Option(["--no-cache"], is_flag=True, help="Keep no finished work."),
    ]


def run_options(ctx: click.Context, values: dict[str, Any]) -> dict[str, Any]:
    """Of :func:`measuring`, what a run takes, as :func:`lisse.measure` and :func:`lisse.survey` call it."""
    if values["cache"] and values["no_cache"]:
        raise click.UsageError("--cache and --no-cache exclude each other", ctx)
    options = {key: values[key] for key in ("seed", "order", "batch", "memory", "readout")}
    cache = False if values["no_cache"] else values["cache"] or True
    return {**options, "layers": list(values["layers"]) or None, "cache": cache}
