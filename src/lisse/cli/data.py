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
    for item in found:
        state = item.state if not item.place or item.state == "embedded" else f"{item.state} in {item.place}"
        click.echo(f"{item.spec:<{width}}  {state:<10}  {item.about}")
        for file in item.files:
            verdict = {True: "official", False: "DIFFERS from the official file", None: "no published checksum"}[
                file.official
            ]
            name = file.path.rsplit("/", 1)[-1]
            click.echo(f"{'':<{width}}    {name}  {file.bytes:,} bytes  sha256 {file.sha256}  {verdict}")
    click.echo()
    click.echo("Also: FILE.npz, FILE.txt, PAIRS.jsonl, PAIRS.tsv, a folder of images, package.module:factory.")
    click.echo("Searched: " + ", ".join(f"{place.folder} ({place.label})" for place in places()))
    if any(item.state in ("missing", "partial") for item in found):
        click.echo("Missing ones: copy them into LISSE_DATA/NAME, or add ?download=true to the name.")
