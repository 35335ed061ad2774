"""`lisse measure` killed and interrupted for real, at random moments from its start to its end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lisse.profile import Profile

pytestmark = pytest.mark.slow

LINE = [sys.executable, "-m", "lisse", "measure", "sensitivity"]
OPTIONS = ["--data", "data.npz", "--samples", "20", "--points", "32"]

Interrupt = Callable[..., tuple[int, str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import numpy as np

    images = np.random.default_rng(0).random((120, 1, 32, 32), dtype=np.float32)
    np.savez(tmp_path / "data.npz", inputs=images)
    (tmp_path / "temporary").mkdir()
    return tmp_path


def start(folder: Path, *more: str, model: str = "zoo:lenet?in_channels=1") -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "temporary")}
    return subprocess.Popen(
        [*LINE, model, *OPTIONS, *more],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a suite in the background ignores it
    )


def test_killed_at_random_moments_the_same_command_gives_the_same_profile(folder: Path) -> None:
    begun = time.monotonic()
    whole = start(folder, "--cache", "whole", "--out", "whole.profile")
    _, said = whole.communicate()
    assert whole.returncode == 0, said
    lasts = time.monotonic() - begun
    dice = random.Random(0)
    for _ in range(4):
        process = start(folder, "--cache", "killed", "--out", "killed.profile")
        time.sleep(dice.uniform(0.1, 1.0) * lasts)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (folder / "killed.profile").exists() or Profile.load(folder / "killed.profile").rows
    process = start(folder, "--cache", "killed", "--out", "killed.profile")
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert Profile.load(folder / "killed.profile").parts == Profile.load(folder / "whole.profile").parts
    assert os.listdir(folder / "temporary") == []


SLEEPY = """
import time
from pathlib import Path
from torch import nn
from lisse.networks import zoo

class Sleepy(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = zoo.build("lenet", seed=0, in_channels=1)
    def forward(self, x):
        if x.requires_grad:  # for the stretch: the recording is made and spilled, the measuring has begun
            Path("asleep").touch()
            time.sleep(3600)
        return self.network(x)
"""


def test_interrupted_it_says_so_in_one_line_and_leaves_nothing_behind(folder: Path, interrupt: Interrupt) -> None:
    (folder / "sleepy.py").write_text(SLEEPY)
    process = start(folder, "--memory", "100kB", "--no-cache", "--out", "x.profile", model="sleepy:Sleepy")
    code, said = interrupt(process, folder / "asleep")
    assert code == 130
    assert said.strip().splitlines()[-1] == "lisse: interrupted"
    assert os.listdir(folder / "temporary") == []
    assert not (folder / "x.profile").exists()
