"""How a command ends: one line on standard error and a documented exit code."""

from __future__ import annotations

import os
import re
import sys
import traceback as traces
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

FINE, FAILED, USAGE, FILE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 130, 141


class Failed(click.ClickException):
    """The measurement failed: the model, the data or the numbers."""

    exit_code = FAILED


class FileTrouble(click.ClickException):
    """A file could not be read or written."""

    exit_code = FILE


def check_writable(path: Path, result: str) -> None:
    """Say before an hour of work, not after it, that its ``result`` has no place."""
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise FileTrouble(f"the {result} cannot be written to {path}. Choose another place with --out.")


def exit_code(work: Callable[[], None], *, traceback: bool = False) -> int:
    """Run ``work``; say what went wrong in one line on standard error, and return the code to exit with."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a layer's name that the terminal cannot show is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        work()
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except BrokenPipeError:
        return _quietly()
    except SystemExit as stop:
        # rich turns a broken pipe into SystemExit(1)
        return _quietly() if isinstance(stop.__context__, BrokenPipeError) else _code(stop)
    except (KeyboardInterrupt, Exception) as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # of click 8.2: the message is the whole help
            print(error, file=sys.stderr)
            return USAGE
        return _say(*_ending(error), traceback)
    return FINE


def _ending(error: BaseException) -> tuple[str, int]:
    """What is said about an error, and the code to exit with."""
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return "interrupted", INTERRUPTED
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx is not None else "lisse"
        text = error.format_message().strip()
        return f"error: {text}{'' if text.endswith(('.', '?')) else '.'} See {command} --help.", USAGE
    if isinstance(error, click.ClickException):
        return f"error: {error.format_message()}", FILE if isinstance(error, click.FileError) else error.exit_code
    if isinstance(error, OSError):
        explained = error.strerror and error.filename
        return f"error: {error.strerror}: {error.filename}" if explained else f"error: {error}", FILE
    explained = isinstance(error, (ValueError, RuntimeError, ImportError)) and str(error)
    return f"error: {error}" if explained else f"error: {type(error).__name__}: {error}", FAILED


@contextmanager
def arguments(ctx: click.Context, *names: str) -> Iterator[None]:
    """A complaint about what a person typed is a usage error.

    The house style of an error is ``function: argument must rule``: with ``names``, only complaints about these
    arguments count; without, every ``ValueError``, ``TypeError`` and ``LookupError`` does.
    """
    try:
        yield
    except (ValueError, TypeError, LookupError) as error:
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        about = re.match(r"([\w.]+): (\w+) must ", text)
        if about is not None and about.groups() == ("load", "path"):  # of a profile that is damaged, or none
            raise FileTrouble(text) from error
        if names and (about is None or about[2] not in names):
            raise
        raise click.UsageError(text, ctx) from error


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Show warnings as ``lisse: warning: …`` instead of with a line of source."""
    with warnings.catch_warnings():

        def show(message: Warning | str, *_: object) -> None:
            print(f"lisse: warning: {_one_line(str(message))}", file=sys.stderr)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _say(text: str, code: int, traceback: bool) -> int:
    try:
        if traceback:
            traces.print_exc()
        print(f"lisse: {_one_line(text)}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        return _quietly()
    return code


def _one_line(text: str) -> str:
    from lisse.cli.table import printable

    return printable(" ".join(text.split()))


def _quietly() -> int:
    """The reader went away (``| head``): nothing more can be said, also not by Python while it shuts down."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(nowhere, stream.fileno())
        except (OSError, ValueError):  # no real file behind it
            continue
    return BROKEN_PIPE


def _code(stop: SystemExit) -> int:
    return stop.code if isinstance(stop.code, int) else FAILED if stop.code else FINE
