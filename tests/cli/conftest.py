"""A runner in an empty folder, with models and data of a few numbers in place of real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

FACTORIES = '''
import torch
from torch import nn


class Failing(nn.Module):
    """Sound on the two and three samples on which layers are found, not on more."""

    def __init__(self, how):
        super().__init__()
        self.first, self.second, self.how = nn.Linear(3, 4), nn.Linear(4, 2), how

    def forward(self, x):
        if len(x) > 3 and self.how == "raises":
            raise RuntimeError("the pump\\nis broken")
        y = self.first(x)
        return self.second(y * float("nan") if len(x) > 3 and self.how == "nan" else y)


def sound(how="not"):
    torch.manual_seed(0)
    return Failing(how)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with a cache of its own, `tiny_models` to import and `points.npz` to measure on."""
    import numpy as np

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LISSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    place = tmp_path / "importable"
    place.mkdir()
    (place / "tiny_models.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("PYTHONPATH", str(place))
    np.savez(tmp_path / "points.npz", inputs=np.random.default_rng(0).normal(size=(30, 3)).astype("f4"))
    return tmp_path


@pytest.fixture
def interrupt() -> Callable[..., tuple[int, str]]:
    """Ctrl-C to a process, once the file ``asleep``, with which it says that it waits, is there: code and errors."""

    def interrupted(process: subprocess.Popen[str], asleep: Path | None = None) -> tuple[int, str]:
        with process:
            try:
                deadline = time.monotonic() + 600
                while asleep is not None and not asleep.exists():
                    assert process.poll() is None, process.communicate()
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
                for _ in range(3):  # Python passes over one that meets it in a callback: then there is another
                    process.send_signal(signal.SIGINT)
                    try:
                        errors = process.communicate(timeout=100)[1]
                        return process.returncode, errors
                    except subprocess.TimeoutExpired:
                        pass
                pytest.fail("three times Ctrl-C, and it goes on")
            finally:
                process.kill()

    return interrupted


@pytest.fixture
def lisse(folder: Path) -> Callable[..., Result]:
    """Run a command line in this process."""
    from lisse.cli import cli

    def run(*words: Any) -> Result:
        return CliRunner().invoke(cli, [str(word) for word in words])

    return run


@pytest.fixture
def shell(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a line in bash, with `lisse` as a command of it; pipes report the code of the first part."""

    def run(line: str, **options: Any) -> subprocess.CompletedProcess[str]:
        script = f'lisse() {{ "{sys.executable}" -m lisse "$@"; }}; {line}'
        return subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, cwd=folder, env=os.environ.copy(), **options
        )

    return run
