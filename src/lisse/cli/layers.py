"""``lisse layers MODEL``: the tree of places where a model can be read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from lisse.cli.outcome import arguments
from lisse.cli.table import printable

if TYPE_CHECKING:
    from torch import nn

    from lisse.taps import Tap, Taps

MOST_SKIPPED = 20


@click.command()
@click.argument("model")
@click.option("--data", metavar="SPEC", help="Example input; otherwise noise of the size that the model declares.")
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
        example = _example(ctx, network, data, split)
    with arguments(ctx, "layers"):
        taps = find(network, example, list(layers) or None)
    if as_json:
        print(json.dumps(_document(model, taps), indent=2))
        return
    lines = [("layer", "role", "kind", "shape", "MB per 1,000")]
    lines += [(prefix + printable(name), *_cells(tap)) for prefix, name, tap in tree(taps)]
    widths = [max(len(line[place]) for line in lines) for place in range(5)]
    for line in lines:
        cells = [text.ljust(width) for text, width in zip(line[:4], widths, strict=False)]
        print("  ".join([*cells, line[4].rjust(widths[4])]).rstrip())
    print()
    total = sum(megabytes(tap) for tap in taps)
    print(f"{len(taps)} layers, {total:,.1f} MB per 1,000 samples.")
    if taps.skipped:
        print(f"Skipped {len(taps.skipped)}:")
        for place in taps.skipped[:MOST_SKIPPED]:
            print(printable(f"  {place.name} {place.reason}"))
        if len(taps.skipped) > MOST_SKIPPED:
            print(f"  … and {len(taps.skipped) - MOST_SKIPPED} more (--json lists all)")
    sys.stdout.flush()


def megabytes(tap: Tap) -> float:
    """Millions of bytes that 1,000 samples take."""
    return tap.numel * tap.dtype.itemsize * 1000 / 1e6


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
    for place, (name, child) in enumerate(children):
        while "" not in child and len(child) == 1:
            (inner,) = child
            name, child = f"{name}.{inner}", child[inner]
        last = place == len(children) - 1
        yield lead + ("└─ " if last else "├─ "), name, child.get("")
        yield from _branches(child, lead + ("   " if last else "│  "))


def _cells(tap: Tap | None) -> tuple[str, str, str, str]:
    if tap is None:
        return "", "", "", ""
    shape = " × ".join(map(str, tap.shape)) or "1"
    return tap.role, tap.kind, shape, f"{megabytes(tap):,.2f}"


def _document(model: str, taps: Taps) -> dict[str, Any]:
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
                "megabytes_per_1000": megabytes(tap),
            }
            for tap in taps
        ],
        "skipped": [{"name": place.name, "reason": place.reason, "kind": place.kind} for place in taps.skipped],
    }


def _example(ctx: click.Context, network: nn.Module, data: str | None, split: str) -> Any:
    import torch

    import lisse
    from lisse.models import tokenizer_for

    if data is not None:
        found = lisse.load_data(data, split=split, limit=3, tokenizer=tokenizer_for(network))
        batch = next(iter(found.batches(3)))
        return batch.inputs
    size = getattr(getattr(network, "lisse", None), "input_size", None)
    if size is None:
        raise click.UsageError("this model does not say what it takes; give an example with --data", ctx)
    return torch.rand((3, *size), generator=torch.Generator().manual_seed(0))
