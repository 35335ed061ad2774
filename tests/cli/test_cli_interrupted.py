"""`lisse measure` killed and interrupted for real, at random moments from its start to its end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lisse.profile import Profile

pytestmark = pytest.mark.slow

LINE = [sys.executable, "-m", "lisse", "measure", "sensitivity", "zoo:lenet?in_channels=1", "--data", "data.npz"]
LINE += ["--samples", "20", "--points", "32"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import numpy as np

    images = np.random.default_rng(0).random((120, 1, 32, 32), dtype=np.float32)
    np.savez(tmp_path / "data.npz", inputs=images)
    (tmp_path / "temporary").mkdir()
    return tmp_path


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "temporary")}
    return subprocess.Popen(
        [*LINE, *more],
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


def test_interrupted_it_says_so_in_one_line_and_leaves_nothing_behind(folder: Path) -> None:
    process = start(folder, "--memory", "100kB", "--no-cache", "--out", "x.profile")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("sensitivity"):  # the recording is made and spilled; the measuring has begun
            break
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.strip().splitlines()[-1] == "lisse: interrupted"
    assert os.listdir(folder / "temporary") == []
    assert not (folder / "x.profile").exists()
