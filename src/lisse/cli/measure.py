"""``lisse measure INSTRUMENT MODEL --data SPEC | --pairs FILE``: a table with a row per layer, and a saved profile."""

from __future__ import annotations

import difflib
import json
import re
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from lisse.cli import fields
from lisse.cli.outcome import Failed, FileTrouble, arguments, check_writable


def common_options() -> list[click.Parameter]:
    """What every measurement takes, whatever the instrument."""
    return [
        click.Argument(["model"]),
        click.Option(["--data"], metavar="SPEC", help="Data set; `lisse data` lists them."),
        click.Option(
            ["--pairs"], metavar="FILE", help="Or pairs of texts: .jsonl, .tsv or .csv, for the model to read."
        ),
        click.Option(["--split"], default="test", metavar="NAME", help="Part of the data set.  [default: test]"),
        click.Option(["--limit"], type=click.IntRange(min=1), help="Use at most this many samples."),
        click.Option(["--layers"], multiple=True, metavar="GLOB", help="Only these layers; may be repeated."),
        click.Option(["--quick"], is_flag=True, help="Fewer samples and no intervals: a first look."),
        click.Option(["--seed"], type=int, default=0, help="Of everything random.  [default: 0]"),
        click.Option(["--batch"], type=click.IntRange(min=1), default=100, help="Samples at a time.  [default: 100]"),
        click.Option(["--memory"], default="2GiB", metavar="SIZE", help="Most for activations.  [default: 2GiB]"),
        click.Option(["--device"], metavar="NAME", help="Where to compute: cpu, cuda, cuda:1, mps."),
        click.Option(
            ["--statistics"],
            type=click.Choice(["running", "batch"]),
            default="running",
            help="Batch norm by its running statistics or by those of the batch.  [default: running]",
        ),
        click.Option(
            ["--readout"],
            type=click.Choice(["cls", "mean", "tokens"]),
            help="What a sample of text is.  [default: mean, where samples differ in length]",
        ),
        click.Option(["--cache"], type=click.Path(file_okay=False), help="Folder of finished work, to go on from."),
        click.Option(["--no-cache"], is_flag=True, help="Keep no finished work."),
        click.Option(
            ["--out"], type=click.Path(dir_okay=False), help="Profile.  [default: MODEL-DATA-INSTRUMENT.profile]"
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the rows as JSON, one per line."),
        click.Option(["--traceback"], is_flag=True, help="Show where an error came from."),
    ]


class Measurement(click.Command):
    """A command whose help keeps the instrument's options apart from those that all have."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Two sections of options."""
        params = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = [(param, param.get_help_record(ctx)) for param in params]
        own = [record for param, record in records if record and str(param.name).startswith("field_")]
        shared = [record for param, record in records if record and not str(param.name).startswith("field_")]
        for title, some in ((f"Options of {ctx.info_name}", own), ("Options of every measurement", shared)):
            if some:
                with formatter.section(title):
                    formatter.write_dl(some)


class Instruments(click.Group):
    """The instruments as subcommands; several, separated by commas, share one pass over the data."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all instruments."""
        return list(known())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """The command of one instrument or of several; an unknown name is an error with the nearest ones."""
        there = known()
        names = [name.strip().lower() for name in cmd_name.split(",") if name.strip()]
        for name in names:
            if name not in there:
                near = difflib.get_close_matches(name, there, n=3, cutoff=0.4) or list(there)
                raise click.UsageError(f"no instrument {name!r}. The nearest: {', '.join(near)}", ctx)
        if not names or len(set(names)) != len(names):
            raise click.UsageError(f"instruments must be named once each, separated by commas, got {cmd_name!r}", ctx)
        kinds = [there[name] for name in names]
        params = common_options()
        taken = {str(param.name) for param in params} | {"json"}
        return Measurement(
            cmd_name,
            params=[*params, *fields.options(kinds, taken, left_out={"quick"})],
            options_metavar="--data SPEC | --pairs FILE [OPTIONS]",
            callback=lambda **values: run(kinds, values),
            help="\n\n".join(_summary(kind) for kind in kinds),
            short_help=_summary(kinds[0]),
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The instruments with a sentence for each."""
        with formatter.section("Instruments"):
            formatter.write_dl([(name, _summary(kind)) for name, kind in known().items()])

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

    MODEL is zoo:NAME, hf:NAME, timm:NAME, torchvision:NAME, package.module:factory or a .safetensors checkpoint.
    `lisse measure INSTRUMENT --help` shows an instrument's options.
    """


def known() -> dict[str, type]:
    """The instruments by name."""
    from lisse.instruments import ALL

    return {kind.__name__.lower(): kind for kind in ALL}


def run(kinds: list[type], values: dict[str, Any]) -> None:
    """Load, measure, save, print."""
    import lisse
    from lisse.cli.table import print_profile
    from lisse.models import tokenizer_for
    from lisse.progress import Bar

    ctx = click.get_current_context()
    with arguments(ctx):
        instruments = fields.build(kinds, _given(ctx, kinds, values))
    if values["cache"] and values["no_cache"]:
        raise click.UsageError("--cache and --no-cache exclude each other", ctx)
    spec = _source(ctx, values)
    if values["out"]:
        check_writable(Path(values["out"]), "profile")
    with arguments(ctx):
        model = lisse.load_model(values["model"], device=values["device"] or "cpu")
        chosen = {key: values[key] for key in ("split", "limit", "seed")}
        data = lisse.load_data(spec, **chosen, tokenizer=tokenizer_for(model))
    if values["pairs"] and data.partner is None:
        raise Failed(f"--pairs must hold two texts a line, got one in {values['pairs']}. Name them: ?first=A&second=B.")
    card = getattr(model, "lisse", None)
    names = "+".join(kind.__name__.lower() for kind in kinds)
    out = Path(values["out"] or file_name(getattr(card, "name", None) or values["model"], data.name, names))
    check_writable(out, "profile")
    with Bar() as bar, arguments(ctx, "layers", "memory", "batch", "seed", "statistics", "readout"):
        profile = lisse.measure(
            model,
            data,
            instruments,
            layers=list(values["layers"]) or None,
            seed=values["seed"],
            batch=values["batch"],
            memory=values["memory"],
            statistics=values["statistics"],
            readout=values["readout"],
            cache=False if values["no_cache"] else values["cache"] or True,
            progress=bar,
        )
    if not profile.rows:  # nothing to save: a good profile from before stays
        raise Failed("nothing was measured: " + (" ".join(profile.notes) or "the instruments gave no rows."))
    replaced = " (in place of the one before)" if out.exists() else ""
    profile.save(out)
    if not values["no_cache"]:
        _keep(profile, values["cache"])
    if values["as_json"]:
        print_json(profile)
    else:
        print_profile(profile)
    sys.stdout.flush()
    figure = "overview" if any(row.layer is not None for row in profile.rows) else profile.parts[0].instrument
    print(f"Saved {out}{replaced}. Draw it: lisse figure {figure} {_quoted(out)} -o figure.png", file=sys.stderr)


def print_json(profile: Any) -> None:
    """One strictly valid JSON object per row on standard output, notes on standard error."""
    from lisse.profile_file import row_to_json

    for part in profile.parts:
        for row in part.rows:
            print(json.dumps({"instrument": part.instrument, **row_to_json(row)}, allow_nan=False))
    for note in profile.notes:
        print(f"Note: {note}", file=sys.stderr)


def file_name(model: str, data: str, instruments: str) -> str:
    """``MODEL-DATA-INSTRUMENT.profile`` with nothing in it that a file's name cannot have."""
    words = (re.sub(r"[^\w.+]+", "-", word).strip("-.") or "unnamed" for word in (model, data, instruments))
    return "-".join(word[:80] for word in words) + ".profile"


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


def _given(ctx: click.Context, kinds: list[type], values: dict[str, Any]) -> dict[str, Any]:
    given = {
        key: value
        for key, value in values.items()
        if key.startswith("field_") and ctx.get_parameter_source(key) is ParameterSource.COMMANDLINE
    }
    if values["quick"]:
        able = [kind for kind in kinds if "quick" in getattr(kind, "__dataclass_fields__", {})]
        if not able:
            raise click.UsageError(f"--quick is not known to {ctx.info_name}", ctx)
        given["field_quick"] = True
    return given


def _keep(profile: Any, folder: str | None) -> None:
    """A copy for `lisse runs` to list; a full disk is no reason to lose what was measured."""
    from lisse.run.cache import Cache, default_cache

    place = Cache(folder or default_cache())
    try:
        place.keep_profile(profile)
    except OSError as error:
        print(f"lisse: warning: the profile is not kept in {place.folder} ({error}).", file=sys.stderr)


def _summary(kind: type) -> str:
    return " ".join((kind.__doc__ or "").strip().split("\n\n")[0].split())


def _quoted(path: Path) -> str:
    import shlex

    return shlex.quote(str(path))
