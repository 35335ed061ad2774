"""Two processes (gloo) give the loss curve of one, at equal global batch: started for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import atexit, json, os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch

# Each process writes its own file: two that share one standard output may write into each other's lines.
def tell(name, what):
    Path(sys.argv[3], name + os.environ.get("LOCAL_RANK", "0")).write_text(json.dumps(what))

# Registered first, called last: threads of a group that is still there may abort the process as it ends.
atexit.register(lambda: tell("in a group ", torch.distributed.is_initialized()))
torch.set_num_threads(1)
import dataclasses
import lisse
from small_trainings import RECIPE, network, points, images, convolutional
from torch import nn

def norms(activations, batch):
    return activations["0"].pow(2).mean()

devices = int(sys.argv[1])
recipe = dataclasses.replace(RECIPE, lr=0.05, epochs=6, crop={crop}, flip=bool({crop}))
if {crop}:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    data, test = images(53), images(31)
else:
    model, data, test = network(), points(53), points(31, seed=2)  # the last batch is of five: three and two
told = []
found = lisse.train(
    model, data, recipe=recipe, test=test, devices=devices, out=sys.argv[2], callbacks=[told.append],
    penalties=[] if {crop} else [lisse.training.Penalty(norms, 0.1, "0")],
)
if int(os.environ.get("LOCAL_RANK", 0)) == 0:
    rows = [dict(row) for row in found.log]
    weights = [p.detach().flatten().tolist() for p in model.parameters()]
    tell("result ", [rows, weights, len(told), found.test.accuracy, found.status])
else:
    assert told == []
"""


def run(tmp_path: Path, devices: int, crop: int) -> list:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent), crop=crop))
    told = Path(tempfile.mkdtemp(dir=tmp_path))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("LOCAL_", "RANK", "WORLD"))}
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, str(script), str(devices), str(tmp_path / f"out{devices}"), str(told)],
            capture_output=True, text=True, timeout=600, env={**environment, "OMP_NUM_THREADS": "1"}, check=False,
        )  # fmt: skip
        if "EADDRINUSE" not in done.stderr:  # the port that Fabric found free has been taken meanwhile
            break
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(devices):
        assert json.loads((told / f"in a group {rank}").read_text()) is False
    return json.loads((told / "result 0").read_text())


@pytest.mark.parametrize("crop", [0, 1])
def test_two_processes_give_the_loss_curve_of_one(tmp_path, crop):
    rows, weights, told, accuracy, status = run(tmp_path, 1, crop)
    rows2, weights2, told2, accuracy2, status2 = run(tmp_path, 2, crop)
    assert (status, status2) == ("finished", "finished")
    assert len(rows) == len(rows2) == 6
    for one, two in zip(rows, rows2, strict=True):
        for name in one.keys() - {"seconds"}:
            assert two[name] == pytest.approx(one[name], rel=2e-4), name
    for one, two in zip(weights, weights2, strict=True):
        assert two == pytest.approx(one, rel=1e-3, abs=1e-5)
    assert accuracy2 == pytest.approx(accuracy)
    assert told == told2 > 0
    # and the folder is that of a finished run for both
    again = run(tmp_path, 2, crop)
    assert again[4] == "finished"
    assert again[2] == 0
