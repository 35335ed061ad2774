"""``lisse data``: what data is available, where, with checksums; ``lisse data make``: data sets made of others."""

from __future__ import annotations

import json
from typing import Any

import click


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the data sets that lisse knows, which of them are on this machine, and their checksums."""
    if ctx.invoked_subcommand is not None:
        return
    from lisse.data.inventory import inventory
    from lisse.data.places import search_folders

    items, folders = inventory(), search_folders()
    if as_json:
        searched = [
            {"label": item.label, "folder": str(item.folder), "exists": item.folder.is_dir()} for item in folders
        ]
        click.echo(json.dumps({"places": searched, "data": [item.as_dict() for item in items]}, indent=2))
        return
    width = max(len(item.spec) for item in items)
    states = max(len(item.state) for item in items)
    verdicts = {True: "official", False: "DIFFERS from the official file", None: "no published checksum"}
    for item in items:
        click.echo(f"{item.spec:<{width}}  {item.state:<{states}}  {item.about}")
        if item.folder and item.state != "embedded":
            click.echo(f"    in {item.folder}")
        names = [file.path.rsplit("/", 1)[-1] for file in item.files]
        for name, file in zip(names, item.files, strict=True):
            click.echo(f"    {name:<{max(map(len, names))}}  {file.bytes:>13,} bytes  {verdicts[file.official]}")
            click.echo(f"        sha256 {file.sha256}")
    click.echo()
    click.echo("Also: FILE.npz, FILE.txt, PAIRS.jsonl (tsv, csv), a folder of images, package.module:factory.")
    click.echo("Searched:")
    for folder in folders:
        click.echo(f"    {folder.folder} ({folder.label})")
    if any(item.state in ("missing", "partial") for item in items):
        click.echo("Missing ones: copy them into LISSE_DATA/NAME, or add ?download=true to the name.")


@command.command()
@click.argument("name", type=click.Choice(["cifar10-c"]))
@click.option("--out", type=click.Path(file_okay=False), help="Folder.  [default: cifar10-c in the cache]")
@click.option("--corruptions", default="all", help="Names, commas between them; or main, extra, all.  [default: all]")
@click.option("--seed", default=0, type=int, help="Of everything random.  [default: 0]")
@click.option(
    "--variant",
    default="hendrycks",
    type=click.Choice(["hendrycks", "corrected"]),
    help="As in the official files, or without their slips in glass_blur and frost.  [default: hendrycks]",
)
@click.option("--download", is_flag=True, help="Fetch CIFAR-10 and frost's textures where they are missing.")
@click.pass_context
def make(
    ctx: click.Context, name: str, out: str | None, corruptions: str, seed: int, variant: str, download: bool
) -> None:
    """Write CIFAR-10-C in its official layout: a .npy file for each corruption, five severities of the test set.

    154 MB a file. Files that are there are kept: the same command goes on after an interruption.
    """
    import lisse
    from lisse.cli.outcome import arguments
    from lisse.data.corrupted import check_corruptions, make_cifar10_c
    from lisse.progress import Bar

    with arguments(ctx):
        names = check_corruptions("make", [word.strip() for word in corruptions.split(",") if word.strip()])
    with Bar() as bar:
        clean = lisse.load_data("cifar10" + ("?download=true" if download else ""), progress=bar)
        options: dict[str, Any] = {"seed": seed, "variant": variant, "download": download, "progress": bar}
        files = make_cifar10_c(clean, out, corruptions=names, **options)
    click.echo(f"{len(files) - 1} corruptions and labels in {files[-1].parent}")
