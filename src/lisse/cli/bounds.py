"""``lisse bounds MODEL``: what a network's weights promise of its smoothness, layer by layer, without data."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lisse.cli import completion
from lisse.cli.balls import ball_document, print_balls
from lisse.cli.layers import example_of
from lisse.cli.outcome import Failed, arguments, check_writable
from lisse.cli.table import LEGEND, SIGNS, number_text, print_table, printable

if TYPE_CHECKING:
    from lisse.networks.bounds import LayerBound

LARGEST = 1e6  # above it a table shows the power of ten


@click.command()
@click.argument("model", shell_complete=completion.models)
@click.option("--layers", multiple=True, metavar="GLOB", help="These modules instead: '**' is all; may be repeated.")
@click.option(
    "--radius", type=float, default=1.0, help="Largest norm of what enters a module: attention.  [default: 1]"
)
@click.option("--variance", type=float, default=0.0, help="Least variance of a token at a layer norm.  [default: 0]")
@click.option(
    "--metric",
    type=click.Choice(["euclidean", "worst_token", "wasserstein"]),
    default="euclidean",
    help="Between samples: of all entries, of the worst token, or W1 of any number of tokens.  [default: euclidean]",
)
@click.option("--tokens", type=click.IntRange(min=1), default=32, help="Tokens of a sample of text.  [default: 32]")
@click.option(
    "--data",
    metavar="SPEC",
    shell_complete=completion.data_sets,
    help="Example of the inputs' shape, where the model does not say it.",
)
@click.option("--split", default="test", metavar="NAME", help="Part of the data set.  [default: test]")
@click.option(
    "--eps",
    type=float,
    multiple=True,
    metavar="SIZE",
    help="Of a ball around each sample of --data instead; may be repeated.",
)
@click.option(
    "--norm",
    "ball",
    type=click.Choice(["l2", "linf"]),
    default="l2",
    help="The ball's, of a classifier.  [default: l2]",
)
@click.option("--samples", type=click.IntRange(min=1), default=20, help="A classifier's balls.  [default: 20]")
@click.option("--seed", type=int, default=0, help="Of the samples and their attack.  [default: 0]")
@click.option("--device", metavar="NAME", help="Where to compute: cpu, cuda, cuda:1.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--out", type=click.Path(dir_okay=False), help="Also write that document here.")
@click.pass_context
def command(ctx: click.Context, radius: float, variance: float, metric: Any, **values: Any) -> None:
    """Show what the weights of MODEL promise, from above: the Lipschitz constant of every block, of the layers beside
    blocks, and of the whole network, with what it holds for. It needs no data.

    A linear layer has its operator norm for the size of its input, between two proved ends. Norms are Euclidean.

    With --data and --eps: of balls around samples. How many answers of a classifier are proved to stay, beside an
    attack; how far each block of a Transformer can stretch changes of its tokens, beside what it does at the sample.
    """
    import lisse
    from lisse.networks.bounds import layer_bounds
    from lisse.progress import Bar

    if values["out"]:
        check_writable(Path(values["out"]), "table")
    with arguments(ctx):
        model = lisse.load_model(values["model"], device=values["device"] or "cpu")
    if values["eps"]:
        document = {"model": values["model"], "data": values["data"], **ball_document(ctx, model, values)}
        _give(values, document, print_balls)
        return
    with arguments(ctx):
        example = example_of(ctx, model, values["data"], values["split"], tokens=values["tokens"])
    with Bar() as bar, arguments(ctx):
        rows = layer_bounds(
            model, example, layers=list(values["layers"]) or None, progress=bar, radius=radius, variance=variance,
            metric=metric,
        )  # fmt: skip
    options = {"model": values["model"], "metric": metric, "largest_norm": radius, "least_variance": variance}
    _give(values, {**options, "layers": [as_document(row) for row in rows]}, lambda _: _print(rows))
    if not any(row.bound for row in rows):
        raise Failed(
            f"no layer has a bound. {rows[0].name}: {rows[0].reason}" if rows else "there is no layer to bound."
        )


def _give(values: dict[str, Any], document: dict[str, Any], show: Callable[[dict[str, Any]], None]) -> None:
    """On standard output as a table or as JSON, and in a file where one was asked for."""
    from lisse.profile_file import writing

    text = json.dumps(document, indent=2)
    if values["out"]:
        with writing(values["out"]) as file:
            file.write(text.encode() + b"\n")
        print(f"Saved {values['out']}.", file=sys.stderr)
    if values["as_json"]:
        print(text)
    else:
        show(document)
    sys.stdout.flush()


def as_document(row: LayerBound) -> dict[str, Any]:
    """A row as plain JSON; a value beyond a float is null, and ``log10`` has it."""
    document: dict[str, Any] = {"name": row.name, "kind": row.kind, "shape": list(row.shape)}
    if row.bound is None:
        return {**document, "bound": None, "reason": row.reason}
    bound = {
        "value": row.bound.value if math.isfinite(row.bound.value) else None,
        "log10": row.bound.log10 if math.isfinite(row.bound.log10) else None,
        "kind": row.bound.kind,
        "variant": row.bound.variant,
        "valid": row.bound.valid,
        "hypotheses": [str(condition) for condition in row.bound.hypotheses],
    }
    return {**document, "bound": bound, "lower": row.lower}


def _print(rows: Sequence[LayerBound]) -> None:
    lines, hypotheses, kinds = [], list[str](), set[str]()
    for row in rows:
        shape = " × ".join(map(str, row.shape))
        if row.bound is None:
            lines.append((row.name, row.kind, shape, "", "none", ""))
            continue
        conditions = [str(condition) for condition in row.bound.hypotheses]
        hypotheses += [condition for condition in conditions if condition not in hypotheses]
        marks = "".join(f"[{hypotheses.index(condition) + 1}]" for condition in conditions)
        kinds |= {row.bound.kind} | ({"lower"} if row.lower is not None else set())
        lower = "" if row.lower is None else SIGNS["lower"] + number_text(row.lower)
        lines.append((row.name, row.kind, shape, lower, SIGNS[row.bound.kind] + _size(row), marks))
    header = ["layer", "kind", "enters", "from below", "bound", "if"]
    columns = [index for index in range(len(header)) if index < 3 or any(line[index] for line in lines)]
    print_table(
        [header[index] for index in columns],
        [[line[index] for index in columns] for line in lines],
        text_columns=(0, 1, 2),
    )
    print()
    for index, condition in enumerate(hypotheses):
        print(printable(f"[{index + 1}] {condition}"))
    if kinds:
        print("; ".join(text for kind, text in LEGEND.items() if kind in kinds) + ".")
    for reason in dict.fromkeys(row.reason for row in rows if row.bound is None):
        names = [row.name for row in rows if row.reason == reason]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        print(printable(f"No bound of {', '.join(names[:3])}{more}: {reason}"))


def _size(row: LayerBound) -> str:
    assert row.bound is not None
    log10 = row.bound.log10
    return number_text(row.bound.value) if log10 <= math.log10(LARGEST) else f"10^{number_text(log10)}"
