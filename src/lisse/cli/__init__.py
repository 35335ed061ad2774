"""The command line: parse, call, print. One module per command, imported only when the command is used.

``lisse --help`` needs none of them: :data:`COMMANDS` holds a line for each. Errors are one line on standard error;
``docs/command-line.md`` lists the exit codes.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from lisse import __version__
from lisse.cli.outcome import exit_code, one_line_warnings
from lisse.progress import silent

COMMANDS = {
    "demo": "Train a small network on scikit-learn's digits, measure it, draw it: a first look, in seconds.",
    "train": "Train a model by a recipe; the same command resumes.",
    "improve": "Fine-tune a model against attacks or corruptions, and write one page of before and after.",
    "report": "Measure models by every instrument that fits, and write one page that compares them.",
    "measure": "Measure a model on data: a table with a row per layer, and a saved profile.",
    "drift": "Put two networks that should agree beside each other: where they part, and is it noise?",
    "layers": "Show where a model can be read: its layers along depth, with shapes and sizes.",
    "bounds": "Show what a model's weights promise: a Lipschitz bound of every block and layer, without data.",
    "figure": "Draw a quantity of one or more profiles over depth.",
    "compare": "Put two profiles side by side, and say where their intervals are apart.",
    "runs": "List what was measured before: model, data, date and headline numbers.",
    "export": "Write profiles as a table (CSV) or for TensorBoard.",
    "sweep": "Measure many networks by many processes: a plan of models, data, instruments, seeds and trainings.",
    "atlas": "Write one page of every network in some folders: a table, scatter plots, what each number is worth.",
    "verify": "Measure a profile or a row of an atlas again: the same, what differs, or why it cannot be.",
    "reproduce": "Run a paper's experiment again, and print our numbers beside theirs.",
    "deform": "Deform a picture by a random diffeomorphism; a grid over (T, c), or an animation.",
    "data": "List the data sets that lisse knows, and which of them are on this machine.",
}


class Lisse(click.Group):
    """The group of all commands: knows their names and one line about each, imports the one that is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module; an unknown name is an error with the nearest ones."""
        if cmd_name not in COMMANDS:
            near = difflib.get_close_matches(cmd_name, COMMANDS, n=2, cutoff=0.5)
            hint = f"Did you mean {' or '.join(near)}?" if near else f"There are {', '.join(COMMANDS)}."
            raise click.UsageError(f"no command {cmd_name!r}. {hint}", ctx)
        command: click.Command = importlib.import_module(f"lisse.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line and exit with the documented code."""
        if not standalone_mode or os.environ.get("_LISSE_COMPLETE"):
            importlib.import_module("lisse.cli.completion")
            return super().main(args, prog_name or "lisse", complete_var, standalone_mode, **extra)
        words = list(sys.argv[1:] if args is None else args)
        # Wherever it stands, and also where the rest of the line cannot be parsed.
        traceback, quiet = "--traceback" in words, "--quiet" in words
        words = [word for word in words if word not in ("--traceback", "--quiet")]

        def work() -> None:
            with one_line_warnings(), silent(quiet), self.make_context("lisse", words, **extra) as ctx:
                self.invoke(ctx)

        sys.exit(exit_code(work, traceback=traceback))


@click.command(cls=Lisse, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, message="lisse %(version)s")
@click.option("--traceback", is_flag=True, help="With any command: show where an error came from.")
@click.option("--quiet", is_flag=True, help="With any command: no progress; warnings and results stay.")
def cli(traceback: bool, quiet: bool) -> None:
    """lisse: how smoothly a neural network carries its data, layer by layer.

    Start with `lisse demo`. `lisse COMMAND --help` explains a command.
    """


def main() -> None:
    """The ``lisse`` script."""
    cli.main()
