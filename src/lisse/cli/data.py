"""``lisse data``: what data is available, where, with checksums."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(as_json: bool) -> None:
    """List the data sets that lisse knows, which of them are on this machine, and their checksums."""
    from lisse.data.inventory import inventory
    from lisse.data.places import places

    found = inventory()
    if as_json:
        where = [
            {"label": place.label, "folder": str(place.folder), "exists": place.folder.is_dir()} for place in places()
        ]
        click.echo(json.dumps({"places": where, "data": [item.as_dict() for item in found]}, indent=2))
        return
    width = max(len(item.spec) for item in found)
    states = max(len(item.state) for item in found)
    verdicts = {True: "official", False: "DIFFERS from the official file", None: "no published checksum"}
    for item in found:
        click.echo(f"{item.spec:<{width}}  {item.state:<{states}}  {item.about}")
        if item.place and item.state != "embedded":
            click.echo(f"    in {item.place}")
        names = [file.path.rsplit("/", 1)[-1] for file in item.files]
        for name, file in zip(names, item.files, strict=True):
            click.echo(f"    {name:<{max(map(len, names))}}  {file.bytes:>13,} bytes  {verdicts[file.official]}")
            click.echo(f"        sha256 {file.sha256}")
    click.echo()
    click.echo("Also: FILE.npz, FILE.txt, PAIRS.jsonl, PAIRS.tsv, a folder of images, package.module:factory.")
    click.echo("Searched:")
    for place in places():
        click.echo(f"    {place.folder} ({place.label})")
    if any(item.state in ("missing", "partial") for item in found):
        click.echo("Missing ones: copy them into LISSE_DATA/NAME, or add ?download=true to the name.")
