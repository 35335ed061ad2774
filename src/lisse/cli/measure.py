"""``lisse measure INSTRUMENT MODEL --data SPEC | --pairs FILE``: a table with a row per layer, and a saved profile."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from lisse.cli import completion, fields
from lisse.cli.options import measuring, run_options
from lisse.cli.outcome import Failed, FileTrouble, arguments, check_writable


def common_options() -> list[click.Parameter]:
    """What every measurement takes, whatever the instrument."""
    return [
        click.Argument(["model"], shell_complete=completion.models),
        *measuring(),
        click.Option(
            ["--pairs"], metavar="FILE", help="For --data, pairs of texts: .jsonl, .tsv or .csv, for the model to read."
        ),
        click.Option(
            ["--statistics"],
            type=click.Choice(["running", "batch"]),
            default="running",
            help="Batch norm by its running statistics or by those of the batch.  [default: running]",
        ),
        click.Option(
            ["--out"], type=click.Path(dir_okay=False), help="Profile.  [default: MODEL-DATA-INSTRUMENT.profile]"
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the rows as JSON, one per line."),
        click.Option(["--traceback"], is_flag=True, help="Show where an error came from."),
    ]


class Instruments(click.Group):
    """The instruments as subcommands; several, separated by commas, share one pass over the data."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all instruments."""
        from lisse.instruments import ALL

        return [kind.__name__.lower() for kind in ALL if kind.SIDES == 1]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """The command of one instrument or of several, of lisse or of anybody (``package.module:Class``)."""
        from lisse.instruments.by_name import kinds_named

        with arguments(ctx):
            kinds = kinds_named(cmd_name)
        params = common_options()
        reserved = {str(param.name) for param in params} | {"json"}
        return fields.FieldCommand(
            cmd_name,
            params=[*params, *fields.options(kinds, reserved)],
            options_metavar="--data SPEC | --pairs FILE [OPTIONS]",
            callback=lambda **values: _measure(kinds, values),
            help="\n\n".join(_summary(kind) for kind in kinds),
            short_help=_summary(kinds[0]),
        )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Instruments, also the second of several."""
        return [*completion.instruments(ctx, None, incomplete), *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The instruments with a sentence for each."""
        from lisse.instruments import ALL

        with formatter.section("Instruments"):
            formatter.write_dl([(kind.__name__.lower(), _summary(kind)) for kind in ALL if kind.SIDES == 1])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but options before the instrument are a clear error."""
        if args and args[0].startswith("-"):
            raise click.UsageError(f"the instrument comes first, got {args[0]!r}", ctx)
        return args[0], self.get_command(ctx, args[0]), args[1:]


@click.group(
    cls=Instruments,
    options_metavar="",
    subcommand_metavar="INSTRUMENT[,INSTRUMENT…] MODEL --data SPEC [OPTIONS]",
)
def command() -> None:
    """Measure a model on data: a table with a row per layer, and a saved profile.

    MODEL is zoo:NAME, hf:NAME, timm:NAME, torchvision:NAME, package.module:factory, a .safetensors checkpoint, or
    recorded:FOLDER, which brings its data.
    INSTRUMENT is one of those below, or one of your own, package.module:Class.
    `lisse measure INSTRUMENT --help` shows an instrument's options.
    """


def _measure(kinds: list[Any], values: dict[str, Any]) -> None:
    """Load, measure, save, print."""
    import lisse
    from lisse.models import tokenizer_for
    from lisse.progress import Bar
    from lisse.surveying import profile_name

    ctx = click.get_current_context()
    with arguments(ctx):
        instruments = fields.instruments_of(kinds, fields.typed(ctx), size="quick" if values["quick"] else "full")
    options = run_options(ctx, values)
    recorded = str(values["model"]).startswith("recorded:") and not values["data"] and not values["pairs"]
    spec = "" if recorded else _source(ctx, values)
    if values["out"]:
        check_writable(Path(values["out"]), "profile")
    with arguments(ctx):
        model: Any = lisse.load_model(values["model"], device=values["device"] or "cpu")
        if recorded:
            data = model.lisse.data
            data = data.take(min(values["limit"] or len(data), len(data)))
        else:
            limits = {key: values[key] for key in ("split", "limit", "seed")}
            data = lisse.load_data(spec, **limits, tokenizer=tokenizer_for(model))
    if values["pairs"] and data.partner is None:
        raise Failed(f"--pairs must hold two texts a line, got one in {values['pairs']}. Name them: ?first=A&second=B.")
    card = getattr(model, "lisse", None)
    names = "+".join(instrument.name for instrument in instruments)
    out = Path(values["out"] or profile_name(getattr(card, "name", None) or values["model"], data.name, names))
    check_writable(out, "profile")
    with Bar() as bar, arguments(ctx, "layers", "memory", "batch", "seed", "statistics", "readout"):
        profile = lisse.measure(
            model, data, instruments, **options, statistics=values["statistics"], progress=bar,
            on_error="note" if len(instruments) > 1 else "raise",
        )  # fmt: skip
    failed = [part for part in profile.parts if not (part.complete or part.rows)]
    if not profile.rows:  # nothing to save: a good profile from before stays
        raise Failed("nothing was measured: " + (" ".join(profile.notes) or "the instruments gave no rows."))
    replaced = " (in place of the one before)" if out.exists() else ""
    try:
        profile.save(out)
    except OSError:  # a full disk does not take what was measured with it
        _print_profile(profile, values["as_json"])
        raise
    if not (values["no_cache"] or failed):
        _keep(profile, values["cache"])
    _print_profile(profile, values["as_json"])
    charts = [chart.name for part in profile.parts for chart in part.charts]
    figure = "overview" if any(row.layer is not None for row in profile.rows) else next(iter(charts), "NAME")
    print(
        f"Saved {out}{replaced}. Draw it: lisse figure {figure} {shlex.quote(str(out))} -o figure.png", file=sys.stderr
    )
    if failed:
        raise Failed("; ".join(f"{part.instrument} has no numbers: {' '.join(part.notes)}" for part in failed))


def _print_profile(profile: Any, as_json: bool) -> None:
    from lisse.cli.table import print_profile
    from lisse.reporting.page.headline import headline_rows

    if as_json:
        print_json(profile)
    else:
        print_profile(profile, headline_rows(profile))
    sys.stdout.flush()


def print_json(profile: Any) -> None:
    """One strictly valid JSON object per row on standard output, notes on standard error."""
    from lisse.profile_file import row_to_json

    for part in profile.parts:
        for row in part.rows:
            print(json.dumps({"instrument": part.instrument, **row_to_json(row)}, allow_nan=False))
    for note in profile.notes:
        print(f"Note: {note}", file=sys.stderr)


def _source(ctx: click.Context, values: dict[str, Any]) -> str:
    """What the data are: a spec, or a file of pairs, which has an ending that says how to read it."""
    if values["data"] and values["pairs"]:
        raise click.UsageError("--data and --pairs exclude each other", ctx)
    if values["data"]:
        return str(values["data"])
    if not values["pairs"]:
        option = next(param for param in ctx.command.params if param.name == "data")
        raise click.MissingParameter(ctx=ctx, param=option)
    file = Path(values["pairs"].partition("?")[0])
    endings = (".jsonl", ".ndjson", ".tsv", ".csv")
    if not any(suffix.lower() in endings for suffix in file.suffixes):
        raise click.UsageError(f"--pairs takes a file that ends in {', '.join(endings)}, got {values['pairs']!r}", ctx)
    if not file.exists():
        raise FileTrouble(f"there is no file {str(file)!r}. Check the path of --pairs.")
    return f"text:{values['pairs']}"


def _keep(profile: Any, folder: str | None) -> None:
    """A copy for `lisse runs` to list; a full disk is no reason to lose what was measured."""
    from lisse.run.cache import Cache, default_cache

    cache = Cache(folder or default_cache())
    try:
        cache.keep_profile(profile)
    except OSError as error:
        print(f"lisse: warning: the profile is not kept in {cache.folder} ({error}).", file=sys.stderr)


def _summary(kind: type) -> str:
    return " ".join((kind.__doc__ or "").strip().split("\n\n")[0].split())
