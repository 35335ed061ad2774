"""``lisse sweep PLAN --out DIR``: every unit of a plan by many processes; the same command goes on."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import click

from lisse.cli import completion
from lisse.cli.outcome import Failed, arguments


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="PLAN.toml | MODEL...", shell_complete=completion.models)
@click.option("--out", default="sweep", type=click.Path(file_okay=False), help="Folder of the sweep.  [default: sweep]")
@click.option(
    "--data",
    multiple=True,
    metavar="SPEC",
    shell_complete=completion.data_sets,
    help="Without a plan: data sets; may be repeated.",
)
@click.option(
    "--instruments", metavar="NAME[,…]", shell_complete=completion.instruments, help="Without a plan: the instruments."
)
@click.option("--seeds", metavar="N..N", help="Without a plan: seeds, as 0..4 or 0,3.  [default: 0]")
@click.option("--size", type=click.Choice(["quick", "usual", "full"]), help="Without a plan.  [default: quick]")
@click.option("--limit", type=click.IntRange(min=1), help="Without a plan: at most this many samples.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes.  [default: as cores and memory allow]")
@click.option("--executor", type=click.Choice(["ray"]), help="A Ray cluster instead of processes of this machine.")
@click.option("--gpus", type=click.FloatRange(min=0, max=1), default=0.0, help="Share of a GPU per unit, such as 0.25.")
@click.option("--retries", type=click.IntRange(min=0), default=2, help="After a worker that died.  [default: 2]")
@click.option("--list", "listed", is_flag=True, help="Print the units, and measure nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON, one row per line.")
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...], out: str, listed: bool, as_json: bool, **values: Any) -> None:
    """Measure many networks: models × data × instruments × seeds, and trainings, by many processes.

    PLAN.toml says which (docs/atlas.md); or MODELs, and globs of checkpoints, with --data and --instruments. Profiles
    go to DIR/profiles. A network that fails is a row with its reason. Stopped at any moment, the same command goes on;
    two at once share the work. `lisse atlas DIR` makes a page of it.
    """
    from lisse.progress import Bar
    from lisse.sweeping import plan_of, sweep

    from_file = words[0].endswith(".toml") and len(words) == 1
    stated = [name for name in ("data", "instruments", "seeds", "size", "limit") if values[name] not in (None, ())]
    if from_file and stated:
        raise click.UsageError(f"--{stated[0]} is for a line without a plan; write {stated[0]} into {words[0]}", ctx)
    with arguments(ctx):
        plan = plan_of(words[0] if from_file else _mapping(ctx, words, values))
    if listed:
        for unit in plan.units:
            print(f"{unit.key[:16]}  {unit.label} on {unit.data}")
        print(f"{len(plan.units)} unit{'' if len(plan.units) == 1 else 's'}.", file=sys.stderr)
        return
    options = {key: values[key] for key in ("workers", "executor", "gpus", "retries")}
    # What Ray says of processes that died is no line of the table.
    with Bar() as bar, contextlib.redirect_stdout(sys.stderr), arguments(ctx, "executor", "workers", "device"):
        table = sweep(plan, out=out, progress=bar, **options)
    print_sweep(table, as_json)
    if table.failed and not table.finished:
        raise Failed("nothing was measured: " + table.failed[0][1].reason)


def _mapping(ctx: click.Context, words: tuple[str, ...], values: dict[str, Any]) -> dict[str, Any]:
    """The plan that the command line spells out."""
    if plans := [word for word in words if word.endswith((".toml", ".py"))]:
        raise click.UsageError(f"{plans[0]}: a PLAN.toml stands alone, and a plan in Python calls lisse.sweep", ctx)
    if not values["data"] or not values["instruments"]:
        raise click.UsageError("without a PLAN.toml, --data and --instruments are needed", ctx)
    seeds = values["seeds"] or "0"
    mapping: dict[str, Any] = {"models": list(words), "data": list(values["data"])}
    mapping["instruments"] = values["instruments"]
    mapping["seeds"] = [int(word) for word in seeds.split(",")] if seeds.replace(",", "").isdigit() else seeds
    return mapping | {key: values[key] for key in ("size", "limit") if values[key] is not None}


def print_sweep(table: Any, as_json: bool) -> None:
    """A line for each family and status; failures with their reasons on standard error."""
    import json
    from collections import Counter

    from lisse.cli.table import number_text, print_table, printable

    records = table.records()
    if as_json:
        for record in records:
            print(json.dumps(record))
    else:
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for record in records:
            groups.setdefault((record["family"], record["data"]), []).append(record)
        cells = []
        for (family, data), rows in groups.items():
            counts = Counter("failed" if row["file"] is None else row["status"] for row in rows)
            errors = sorted(row["error"] for row in rows if row["error"] is not None)
            span = " … ".join(dict.fromkeys(number_text(error, 3) for error in (errors[:1] + errors[-1:])))
            seconds = sum(row["seconds"] for row in rows)
            cells.append([family, data, str(counts["done"]), str(counts["whole"]), str(counts["failed"]), span,
                          number_text(seconds, 3)])  # fmt: skip
        header = ["family", "data", "measured", "there before", "failed", "error", "seconds"]
        print_table(header, cells, text_columns=(0, 1))
    sys.stdout.flush()
    for unit, outcome in table.failed:
        print(printable(f"lisse: failed: {unit.label} on {unit.data}: {outcome.reason}"), file=sys.stderr)
    count = len(table.finished)
    words = f"{count} profile{'' if count == 1 else 's'} in {table.folder / 'profiles'}, {len(table.failed)} failed."
    print(words, file=sys.stderr)
