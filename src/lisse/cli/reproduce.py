"""``lisse reproduce PAPER``: run a paper's experiment again, and print our numbers beside theirs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lisse.cli.outcome import Failed, arguments


@click.command()
@click.argument("paper", required=False)
@click.option(
    "--scale",
    type=click.Choice(["smoke", "small", "medium", "paper"]),
    default="smoke",
    help="smoke: minutes on a CPU with embedded data; paper: the paper's sizes. For diffeomorphisms also small: two "
    "hours on a CPU with real data, and medium: about a quarter of an hour on a GPU.  [default: smoke]",
)
@click.option("--out", type=click.Path(file_okay=False), help="Folder.  [default: lisse-PAPER-SCALE]")
@click.option("--seed", default=0, type=int, help="Of everything random.  [default: 0]")
@click.option("--device", default=None, help="cpu, cuda, cuda:1 …  [default: cuda where there is one, but for smoke]")
@click.option(
    "--model", metavar="SPEC", help="In place of the experiment's own, where it takes one: hf:… for regularity."
)
@click.option("--write", is_flag=True, help="Keep what is found in expected.json and README.md beside the experiment.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.pass_context
def command(
    ctx: click.Context,
    paper: str | None,
    scale: str,
    out: str | None,
    seed: int,
    device: str | None,
    model: str | None,
    write: bool,
    quiet: bool,
) -> None:
    """Run the experiment of PAPER again, and print our numbers beside theirs. Without PAPER, list the papers.

    What is finished stays in the folder: the same command goes on where it was interrupted. Where numbers of this
    scale and seed are committed, the command ends with exit code 1 if it finds others.
    """
    from lisse.cli.table import print_table
    from lisse.experiments import PAPERS, Task, form, study
    from lisse.progress import Bar

    if paper is None:
        print_table(["paper", "what is run"], [[name, line] for name, line in PAPERS.items()])
        return
    with arguments(ctx, "paper"):
        chosen = study(paper)
    about = chosen.about
    if model is not None and not about.models:
        raise click.UsageError(f"{paper} takes no --model: its networks are the paper's", ctx)
    if scale not in about.needs:
        raise click.UsageError(f"{paper} has no --scale {scale}: choose one of {', '.join(about.needs)}", ctx)
    folder = Path(out or f"lisse-{paper}-{scale}")
    print(
        f"{about.title} ({about.reference})\nClaim    {about.claim}\nNeeds    {about.needs[scale]}\n", file=sys.stderr
    )
    bar = None if quiet else Bar()
    try:
        task = Task(scale, folder, seed, device or _device(scale), bar, model)  # type: ignore[arg-type]
        outcome, seconds = form.timed(chosen, task)
    finally:
        if bar is not None:
            bar.close()
    print_table(["", "ours", "interval", "theirs"], [list(row) for row in form.rows(outcome)])
    if outcome.claims:
        print()
        words = {True: "yes", False: "no"}
        rows = [[claim.says, words[claim.theirs], words[claim.holds], claim.detail] for claim in outcome.claims]
        print_table(["claim", "the paper's", "holds here", ""], rows)
    for note in outcome.notes:
        print(f"\n{note}")
    print(f"\n{form.clock(seconds)}, files in {folder}")
    for file in outcome.files:
        print(f"  {file}")
    if write:
        print(f"Kept in {form.keep(about.folder, outcome, task, seconds)}")
        return
    committed = form.expected(about.folder).get(scale)
    if committed is None or committed["seed"] != seed:
        print("Nothing is committed for this scale and seed to compare with.")
        return
    found = form.differences(outcome, committed)
    if found:
        told = "; ".join(f"{difference.key}: {difference.says}" for difference in found)
        raise Failed(f"reproduce: {len(found)} of the results are not the committed ones. {told}")
    print(f"As committed on {committed['date']} ({committed['machine']}).")


def _device(scale: str) -> str:
    import torch

    return "cuda" if scale != "smoke" and torch.cuda.is_available() else "cpu"
