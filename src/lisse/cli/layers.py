"""``lisse layers MODEL``: the tree of places where a model can be read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from lisse.cli import completion
from lisse.cli.outcome import arguments
from lisse.cli.table import print_table, printable

if TYPE_CHECKING:
    from torch import nn

    from lisse.taps import Tap, Taps

MOST_SKIPPED = 20


@click.command()
@click.argument("model", shell_complete=completion.models)
@click.option(
    "--data",
    metavar="SPEC",
    shell_complete=completion.data_sets,
    help="Example input; otherwise noise of the size that the model declares.",
)
@click.option("--split", default="test", metavar="NAME", help="Part of the data set.  [default: test]")
@click.option("--layers", multiple=True, metavar="GLOB", help="Places to show instead of the layers; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def command(
    ctx: click.Context, model: str, data: str | None, split: str, layers: tuple[str, ...], as_json: bool
) -> None:
    """Show the layers of MODEL along depth: shape and size of one sample, and what was skipped and why.

    In a GLOB `*` stays within one part of a dotted name, `**` crosses dots, and `name:in` is what enters a module.
    """
    import lisse
    from lisse.taps import find

    with arguments(ctx):
        network = lisse.load_model(model)
        example = example_of(ctx, network, data, split)
    with arguments(ctx, "layers"):
        taps = find(network, example, list(layers) or None)
    if as_json:
        print(json.dumps(_document(model, taps, parameter_counts(network, taps)), indent=2))
        return
    counts = parameter_counts(network, taps)
    lines = [(branch + name, *_cells(tap, counts)) for branch, name, tap in tree(taps)]
    print_table(["layer", "role", "kind", "shape", "parameters", "MB per 1,000"], lines, text_columns=(0, 1, 2, 3))
    print()
    total = sum(megabytes(tap) for tap in taps)
    weights = sum(weight.numel() for weight in network.parameters())
    print(f"{len(taps)} layers, {total:,.1f} MB per 1,000 samples, {weights:,} parameters.")
    for note in taps.notes:
        print(f"Note: {note}")
    if taps.skipped:
        print(f"Skipped {len(taps.skipped)}:")
        for skip in taps.skipped[:MOST_SKIPPED]:
            print(printable(f"  {skip.name} {skip.reason}"))
        if len(taps.skipped) > MOST_SKIPPED:
            print(f"  … and {len(taps.skipped) - MOST_SKIPPED} more (--json lists all)")
    sys.stdout.flush()


def megabytes(tap: Tap) -> float:
    """Millions of bytes that 1,000 samples take."""
    return tap.numel * tap.dtype.itemsize * 1000 / 1e6


def parameter_counts(network: nn.Module, taps: Sequence[Tap]) -> dict[str, int]:
    """Parameters of the module whose output each layer is; one that is read several times counts at the first."""
    from lisse.taps import plain

    modules, counted = dict(plain(network).named_modules()), set[str]()
    counts = {}
    for tap in taps:
        fresh = tap.side == "out" and tap.module in modules and tap.module not in counted and tap.module != ""
        counts[tap.name] = sum(weight.numel() for weight in modules[tap.module].parameters()) if fresh else 0
        if tap.side == "out":
            counted.add(tap.module)
    return counts


def tree(taps: Sequence[Tap]) -> Iterator[tuple[str, str, Tap | None]]:
    """Branch, name and tap of every line: dotted names as a tree in order of depth, single branches drawn together."""
    root: dict[str, Any] = {}
    for tap in taps:
        node = root
        for part in tap.name.split("."):
            node = node.setdefault(part, {})
        node[""] = tap
    yield from _branches(root, "")


def _branches(node: dict[str, Any], lead: str) -> Iterator[tuple[str, str, Tap | None]]:
    children = [(name, child) for name, child in node.items() if name]
    for index, (name, child) in enumerate(children):
        while "" not in child and len(child) == 1:
            (inner,) = child
            name, child = f"{name}.{inner}", child[inner]
        last = index == len(children) - 1
        yield lead + ("└─ " if last else "├─ "), name, child.get("")
        yield from _branches(child, lead + ("   " if last else "│  "))


def _cells(tap: Tap | None, counts: Mapping[str, int]) -> tuple[str, ...]:
    if tap is None:
        return ("",) * 5
    shape = " × ".join(map(str, tap.shape)) or "1"
    return tap.role, tap.kind, shape, f"{counts[tap.name]:,}" * bool(counts[tap.name]), f"{megabytes(tap):,.2f}"


def _document(model: str, taps: Taps, counts: Mapping[str, int]) -> dict[str, Any]:
    return {
        "model": model,
        "layers": [
            {
                "name": tap.name,
                "role": tap.role,
                "kind": tap.kind,
                "depth": tap.depth,
                "shape": list(tap.shape),
                "dtype": str(tap.dtype).removeprefix("torch."),
                "parameters": counts[tap.name],
                "megabytes_per_1000": megabytes(tap),
            }
            for tap in taps
        ],
        "notes": list(taps.notes),
        "skipped": [{"name": skip.name, "reason": skip.reason, "kind": skip.kind} for skip in taps.skipped],
    }


def example_of(ctx: click.Context, network: nn.Module, data: str | None, split: str, *, tokens: int = 0) -> Any:
    """Three samples of the data, or noise of the size that the network declares; ``tokens`` ids of each text."""
    import torch

    import lisse
    from lisse.models import tokenizer_for

    if data is not None:
        example = lisse.load_data(data, split=split, limit=3, tokenizer=tokenizer_for(network))
        return next(iter(example.batches(3))).inputs
    card = getattr(network, "lisse", None)
    size, generator = getattr(card, "input_size", None), torch.Generator().manual_seed(0)
    if size is not None:
        return torch.rand((3, *size), generator=generator)
    if tokens and getattr(card, "kind", "") == "text":
        return torch.zeros(3, tokens, dtype=torch.long)
    raise click.UsageError("this model does not say what it takes; give an example with --data", ctx)
