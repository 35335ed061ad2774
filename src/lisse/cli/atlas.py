"""``lisse atlas FOLDER… --out FILE.html``: one page of every network that was measured."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lisse.cli.outcome import FileTrouble, arguments, check_writable


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="FOLDER|PROFILE|ATLAS.json...", type=click.Path())
@click.option("--out", default="atlas.html", type=click.Path(dir_okay=False), help="The page.  [default: atlas.html]")
@click.option("--table", type=click.Path(dir_okay=False), help="Also write the rows as JSON, to keep or to publish.")
@click.option("--title", default="Atlas", help="Of the page.")
@click.option("--reports/--no-reports", default=True, help="A page for every network, beside it.  [default: yes]")
@click.pass_context
def command(
    ctx: click.Context, sources: tuple[str, ...], out: str, table: str | None, title: str, reports: bool
) -> None:
    """Write one page of every profile in FOLDERs: a table to sort and filter, scatter plots, what each number is worth.

    The page needs no server and no network. A row is keyed by weights, data, options and versions; `lisse verify`
    makes it again. Of networks that failed in a sweep there is a row with the reason.
    """
    from lisse.progress import Bar
    from lisse.reporting.atlas import atlas

    for source in sources:
        if not Path(source).exists():
            raise FileTrouble(f"No such file or directory: {source}")
    for path in filter(None, (out, table)):
        check_writable(Path(path), "page")
    with Bar(keep=False) as bar, arguments(ctx, "sources"):
        saved = atlas(list(sources), out, title=title, reports=reports, table=table, progress=bar)
    if table:
        print(f"Saved {table}, {Path(table).stat().st_size / 1e3:.0f} kB.", file=sys.stderr)
    print(f"Saved {saved}, {saved.stat().st_size / 1e3:,.0f} kB. Open it in a browser.", file=sys.stderr)
