"""``lisse drift A B --data SPEC``: two networks that should agree, where they part, and whether it is noise."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from lisse.cli import completion
from lisse.cli.options import measuring, run_options
from lisse.cli.outcome import Failed, arguments, check_writable


@click.command(
    params=[
        click.Argument(["a"], shell_complete=completion.models),
        click.Argument(["b"], shell_complete=completion.models),
        *[option for option in measuring() if option.name != "readout"],
    ]
)
@click.option("--alone", is_flag=True, help="Also put each layer of B into A alone: how sensitive the answer is to it.")
@click.option("--margin", type=click.FloatRange(min=0, min_open=True), help="Times the noise that count.  [default: 3]")
@click.option("--out", type=click.Path(dir_okay=False), help="Profile.  [default: B-beside-A.profile]")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON, one per line.")
@click.pass_context
def command(ctx: click.Context, a: str, b: str, **values: Any) -> None:
    """Compare B with A, layer by layer, on the same data: which layer parts first, in which part of it, how much of the
    change of the answer comes from there, and whether it is more than noise.

    A and B are models as for `lisse measure`; one of them may be recorded:FOLDER, activations that another engine wrote
    for all samples of the data, in their order. Interrupted, the same command goes on.
    """
    import lisse
    from lisse.instruments.drift import Drift
    from lisse.progress import Bar
    from lisse.surveying import profile_name

    if not values["data"]:
        raise click.UsageError("--data is needed; `lisse data` lists what there is", ctx)
    sizes = {key: values[key] for key in ("alone", "margin") if values[key]}
    with arguments(ctx):
        instrument = Drift.sized("quick" if values["quick"] else "full", **sizes)
        models = [lisse.load_model(spec, device=values["device"] or "cpu") for spec in (a, b)]
        data = _data(models, values)
    out = Path(values["out"] or profile_name(f"{Path(b).name} beside {Path(a).name}", data.name, "drift"))
    check_writable(out, "profile")
    options = {key: value for key, value in run_options(ctx, values | {"readout": None}).items() if key != "readout"}
    with Bar() as bar, arguments(ctx, "data", "layers", "memory", "batch", "seed", "a"):
        profile = lisse.drift(models[0], models[1], data, instrument=instrument, progress=bar, **options)
    if not profile.rows:
        raise Failed("nothing was measured: " + " ".join(profile.notes))
    try:
        profile.save(out)
    except OSError:  # a full disk does not take what was measured with it
        _print(profile, values["as_json"])
        raise
    _print(profile, values["as_json"])
    print(f"Saved {out}. Draw it: lisse figure drift {shlex.quote(str(out))} -o figure.png", file=sys.stderr)


def _print(profile: Any, as_json: bool) -> None:
    from lisse.cli.measure import print_json
    from lisse.cli.table import print_profile, printable

    if as_json:
        print_json(profile)
    else:
        print(printable(profile.notes[0]))
        print()
        print_profile(profile)
    sys.stdout.flush()


def _data(models: list[Any], values: dict[str, Any]) -> Any:
    """The data as both networks read them: text by the tokenizer of one, where the other's is the same."""
    import lisse
    from lisse.models import tokenizer_for

    tokenizers = [tokenizer for model in models if (tokenizer := tokenizer_for(model)) is not None]
    options = {key: values[key] for key in ("split", "limit", "seed")}
    data = [lisse.load_data(values["data"], **options, tokenizer=tokenizer) for tokenizer in tokenizers[:2]]
    if len(data) == 2 and data[0].is_text and data[0].tensor_fingerprint() != data[1].tensor_fingerprint():
        raise Failed(
            "A and B read the same text as other tokens, so that no layer can be compared with another. Compare "
            "networks of one tokenizer."
        )
    return data[0] if data else lisse.load_data(values["data"], **options)
