"""A runner in an empty folder, with models and data of a few numbers in place of real ones."""

from __future__ import annotations

import os
import subprocess
import sys
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
