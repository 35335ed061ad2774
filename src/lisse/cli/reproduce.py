"""``lisse reproduce PAPER``: run a paper's experiment again, and print our numbers beside theirs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from lisse.cli.outcome import Failed, arguments


@click.command()
@click.argument("paper", required=False)
@click.option(
    "--scale",
    type=click.Choice(["smoke", "small", "medium", "sizes", "paper"]),
    default="smoke",
    help="smoke: minutes on a CPU with embedded data; paper: the paper's sizes. For diffeomorphisms and topolip also "
    "medium: about a quarter of an hour on a GPU; for diffeomorphisms small: two hours on a CPU with real data, and "
    "sizes: two networks on seven training sets.  [default: smoke]",
)
@click.option("--out", type=click.Path(file_okay=False), help="Folder.  [default: lisse-PAPER-SCALE]")
@click.option("--seed", default=0, type=int, help="Of everything random.  [default: 0]")
@click.option("--device", default=None, help="cpu, cuda, cuda:1 …  [default: cuda where there is one, but for smoke]")
@click.option(
    "--model", metavar="SPEC", help="In place of the experiment's own, where it takes one: hf:… for regularity."
)
@click.option("--workers", default=1, type=click.IntRange(1), help="Processes that train side by side.  [default: 1]")
@click.option("--units", metavar="NAME[,…]", help="Only these networks or parts now, such as fgsm:0,plain (recipes).")
@click.option("--minutes", type=click.FloatRange(min=0), help="Begin no network that may end later (recipes, topolip).")
@click.option("--write", is_flag=True, help="Keep what is found in expected.json and tables.md beside the experiment.")
@click.pass_context
def command(
    ctx: click.Context,
    paper: str | None,
    scale: str,
    out: str | None,
    seed: int,
    device: str | None,
    model: str | None,
    workers: int,
    units: str | None,
    minutes: float | None,
    write: bool,
) -> None:
    """Run the experiment of PAPER again, and print our numbers beside theirs. Without PAPER, list the papers.

    What is finished stays in the folder: the same command goes on where it was interrupted. Where numbers of this
    scale and seed are committed, the command ends with exit code 1 if it finds others.
    """
    from lisse.cli.table import print_table
    from lisse.progress import Bar

    papers = _experiments()
    if paper is None:
        print_table(["paper", "what is run"], [[name, line] for name, line in papers.PAPERS.items()])
        return
    with arguments(ctx, "paper"):
        experiment = papers.study(paper)
    about, form = experiment.about, papers.form
    _check_options(ctx, paper, about, scale, model, workers)
    if (units or minutes is not None) and not about.in_parts:
        raise click.UsageError(f"{paper} takes no --units or --minutes: it is done as a whole", ctx)
    folder = Path(out or f"lisse-{paper}-{scale}")
    print(
        f"{about.title} ({about.reference})\nClaim    {about.claim}\nNeeds    {about.needs[scale]}\n", file=sys.stderr
    )
    names = tuple(name.strip() for name in units.split(",")) if units else ()
    with Bar() as bar:
        task = papers.Task(scale, folder, seed, device or _device(scale), bar, model, workers, names, minutes)
        outcome, seconds = form.timed(experiment, task)
    _print_outcome(form, outcome, seconds, folder)
    if write:
        print(f"Kept in {form.keep(about.folder, outcome, task, seconds)}")
        return
    _compare(form, outcome, form.expected(about.folder).get(scale), seed)


def _experiments() -> Any:
    """The package of experiments, which is a distribution of its own."""
    try:
        import lisse_experiments
    except ImportError as error:
        if error.name != "lisse_experiments":
            raise
        raise ImportError(
            "reproduce: the experiments must be installed, got lisse alone. pip install 'lisse[experiments]', "
            "or in a checkout: pip install ./experiments"
        ) from error
    return lisse_experiments


def _check_options(ctx: click.Context, paper: str, about: Any, scale: str, model: str | None, workers: int) -> None:
    """Options that this paper's experiment does not take are usage errors."""
    if model is not None and not about.models:
        raise click.UsageError(f"{paper} takes no --model: its networks are the paper's", ctx)
    if scale not in about.needs:
        raise click.UsageError(f"{paper} has no --scale {scale}: choose one of {', '.join(about.needs)}", ctx)
    if workers > 1 and not about.side_by_side:
        raise click.UsageError(f"{paper} takes no --workers: it does one thing at a time", ctx)


def _print_outcome(form: Any, outcome: Any, seconds: float, folder: Path) -> None:
    """Findings beside the paper's, claims with their verdicts, notes and files."""
    from lisse.cli.table import print_table

    print_table(["", "ours", "interval", "theirs"], [list(row) for row in form.rows(outcome)])
    if outcome.claims:
        print()
        words = form.VERDICTS
        rows = [[claim.says, words[claim.theirs], words[claim.holds], claim.detail] for claim in outcome.claims]
        print_table(["claim", "the paper's", "holds here", ""], rows)
    for note in outcome.notes:
        print(f"\n{note}")
    print(f"\n{form.clock(seconds)}, files in {folder}")
    for file in outcome.files:
        print(f"  {file}")


def _compare(form: Any, outcome: Any, committed: Any, seed: int) -> None:
    """A failure where the results are not the committed ones."""
    if committed is None or committed["seed"] != seed:
        print("Nothing is committed for this scale and seed to compare with.")
        return
    changes = form.differences(outcome, committed)
    if changes:
        lines = "; ".join(f"{change.key}: {change.says}" for change in changes)
        raise Failed(f"reproduce: {len(changes)} of the results are not the committed ones. {lines}")
    print(f"As committed on {committed['date']} ({committed['machine']}).")


def _device(scale: str) -> str:
    import torch

    return "cuda" if scale != "smoke" and torch.cuda.is_available() else "cpu"
