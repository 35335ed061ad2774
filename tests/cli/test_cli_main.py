"""The group of commands: help without weight, one-line errors, exit codes, pipes, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import lisse as package
from lisse.cli import COMMANDS, cli
from lisse.cli.outcome import Failed, FileTrouble, arguments, exit_code

Run = Callable[..., Result]
Shell = Callable[..., "subprocess.CompletedProcess[str]"]
Interrupt = Callable[..., tuple[int, str]]
MODEL = "tiny_models:sound"


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    script = (
        "import sys; sys.argv = ['lisse', '--help']\n"
        "from lisse.cli import main\n"
        "try: main()\n"
        "except SystemExit as stop: code = stop.code\n"
        "heavy = [n for n in ('torch', 'numpy', 'pandas', 'matplotlib', 'rich', 'scipy') if n in sys.modules]\n"
        "print(); print(code, *heavy)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    code, *heavy = done.stdout.splitlines()[-1].split()
    assert code == "0"
    assert heavy == []
    for name, about in COMMANDS.items():
        assert re.search(rf"^  {name} +{about.split()[0]}", done.stdout, re.MULTILINE)


def test_every_command_of_the_table_exists_and_explains_itself(lisse: Run) -> None:
    for name in COMMANDS:
        result = lisse(name, "--help")
        assert result.exit_code == 0, name
        assert result.stdout.startswith(f"Usage: lisse {name}")


def test_version(lisse: Run) -> None:
    assert lisse("--version").stdout == f"lisse {package.__version__}\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["demoo"], 2, r"no command 'demoo'\. Did you mean demo or deform\? See lisse --help\."),
        (["zzz"], 2, r"no command 'zzz'\. There are demo, train"),
        (["layers"], 2, r"Missing argument 'MODEL'\. See lisse layers --help\."),
        (["layers", MODEL, "--no-such"], 2, r"No such option.*--no-such"),
        (["layers", "zoo:nope"], 2, r"nope"),
        (["layers", MODEL, "--data", "nope"], 2, r"load_data: spec must be one of"),
        (["layers", "missing.safetensors"], 3, r"missing\.safetensors"),
        (["figure", "norm", "missing.profile", "-o", "x.png"], 3, r"No such file or directory: missing\.profile"),
        (["figure", "norm", "points.npz", "-o", "x.png"], 3, r"load: path must be a sound lisse profile"),
        (["compare", "missing.profile", "missing.profile"], 3, r"No such file"),
        (["measure", "sensitivity", f"{MODEL}?how=raises", "--data", "points.npz"], 1, r"the pump is broken"),
        (["measure", "sensitivity", f"{MODEL}?how=nan", "--data", "points.npz"], 1, r"nan|NaN|finite"),
    ],
)
def test_errors_are_one_line_with_a_code(lisse: Run, words: list[str], code: int, said: str) -> None:
    result = lisse(*words)
    lines = [line for line in result.stderr.splitlines() if line.startswith("lisse: ")]
    assert result.exit_code == code, result.stderr
    assert len(lines) == 1
    assert re.search(rf"^lisse: error: .*{said}", lines[0])
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("place", [0, 2, 4])
def test_traceback_shows_the_rest_wherever_it_stands(lisse: Run, place: int) -> None:
    words = ["measure", "sensitivity", f"{MODEL}?how=raises", "--data", "points.npz"]
    words.insert(place, "--traceback")
    result = lisse(*words)
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr
    assert "RuntimeError: the pump\nis broken" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("lisse: error: ")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("x"), 1), (RuntimeError("x"), 1), (ZeroDivisionError("x"), 1), (MemoryError(), 1),
        (ImportError("x"), 1), (Failed("x"), 1), (click.UsageError("x"), 2), (OSError(5, "x", "y"), 3),
        (PermissionError("x"), 3), (FileTrouble("x"), 3), (click.FileError("x"), 3), (KeyboardInterrupt(), 130),
        (click.Abort(), 130), (BrokenPipeError(), 141), (click.exceptions.Exit(7), 7), (SystemExit(0), 0),
        (SystemExit("x"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)  # fmt: skip
def test_every_end_has_its_code(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "dup2", lambda *_: None)  # keep this process's own output

    def work() -> None:
        raise error

    assert exit_code(work) == code
    assert exit_code(lambda: None) == 0


def test_only_complaints_about_named_arguments_are_usage_errors() -> None:
    ctx = click.Context(cli, info_name="lisse")

    def complain(error: Exception, *names: str) -> None:
        with arguments(ctx, *names):
            raise error

    with pytest.raises(click.UsageError, match="find: layers must match"):
        complain(ValueError("find: layers must match"), "layers")
    with pytest.raises(ValueError, match="find: model must"):
        complain(ValueError("find: model must"), "layers")
    with pytest.raises(ValueError, match="something else"):
        complain(ValueError("something else"), "layers")
    with pytest.raises(click.UsageError, match=r"^anything$"):
        complain(KeyError("anything"))


def test_nothing_at_all_shows_the_help(lisse: Run) -> None:
    result = lisse()
    assert result.exit_code == 2
    assert "Commands:" in result.output


def test_a_reader_that_goes_away_is_no_error(shell: Shell) -> None:
    done = shell("lisse layers zoo:vgg19_bn --json | head -1; echo ${PIPESTATUS[0]}")
    assert done.stdout in ("{\n141\n", "{\n0\n")  # 0 where all was written before the reader went
    assert done.stderr == ""
    done = shell("lisse --help | head -1; echo ${PIPESTATUS[0]}")
    assert done.stdout.splitlines()[1] in ("0", "141")
    assert done.stderr == ""


def test_a_warning_is_one_line(lisse: Run, folder: Path) -> None:
    (folder / "importable" / "warning_models.py").write_text(
        "import warnings\nfrom tiny_models import sound as make\n\n\ndef sound():\n"
        "    warnings.warn('mind\\nthe gap')\n    return make()\n"
    )
    result = lisse("layers", "warning_models:sound", "--data", "points.npz")
    assert result.exit_code == 0
    assert result.stderr == "lisse: warning: mind the gap\n"


def test_a_terminal_that_cannot_show_a_name_gets_it_spelled_out(shell: Shell) -> None:
    done = shell("PYTHONIOENCODING=ascii lisse layers tiny_models:sound --data points.npz")
    assert done.returncode == 0, done.stderr
    assert "\\u251c" in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_control_c_ends_with_130_and_one_line(folder: Path, interrupt: Interrupt) -> None:
    words = [sys.executable, "-m", "lisse", "demo", "--epochs", "100000"]
    running = subprocess.Popen(
        words,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a suite in the background ignores it
    )
    assert running.stderr is not None
    assert running.stderr.readline().startswith("train plain: 1 of 100,000")
    time.sleep(0.1)
    code, errors = interrupt(running)
    assert code == 130
    assert errors.splitlines()[-1] == "lisse: interrupted"
    assert "Traceback" not in errors
    assert list((folder / "lisse-demo").iterdir()) == []


def test_data_prints_json(lisse: Run) -> None:
    result = lisse("data", "--json")
    assert result.exit_code == 0
    assert "digits" in json.dumps(json.loads(result.stdout))


def test_the_runner_and_the_script_are_the_same_thing() -> None:
    assert CliRunner().invoke(cli, ["--version"]).exit_code == 0
    done = subprocess.run([sys.executable, "-m", "lisse", "zzz"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")


def test_quiet_wherever_it_stands_leaves_the_result_alone(tmp_path):
    """Progress goes, the table stays; without it a short run says two lines."""
    words = [
        "-m",
        "lisse",
        "measure",
        "sensitivity",
        "zoo:fc4?in_channels=1&size=8",
        "--data",
        "digits",
        "--limit",
        "30",
    ]
    loud, quiet = (
        subprocess.run(
            [sys.executable, *words, "--no-cache", "--quick", *more],
            capture_output=True, text=True, cwd=tmp_path, check=True,
        )
        for more in ((), ("--quiet",))
    )  # fmt: skip
    progress = [line for line in loud.stderr.splitlines() if "samples" in line or " done in " in line]
    assert len(progress) == 2
    assert not any(line in quiet.stderr for line in progress)
    assert quiet.stdout.split("Saved")[0] == loud.stdout.split("Saved")[0]
