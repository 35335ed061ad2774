"""lisse drift."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result
from safetensors.torch import save_file

import lisse as package

Run = Callable[..., Result]
FC = "zoo:fc2?in_channels=1&size=8&mean=none"


def weights(folder: Path, name: str, factor: float) -> str:
    torch.manual_seed(0)
    network = package.load_model(FC)
    state = {key: tensor.clone() for key, tensor in network.network.state_dict().items()}
    last = [key for key in state if key.endswith("weight")][1]
    state[last] *= factor
    save_file(state, folder / f"{name}.safetensors")
    return f"{FC}&weights={folder / name}.safetensors"


def test_the_sentence_comes_first_and_the_profile_is_saved(lisse: Run, folder: Path) -> None:
    a, b = (weights(folder, name, factor) for name, factor in (("a", 1.0), ("b", 1.05)))
    result = lisse("drift", a, b, "--data", "digits", "--quick", "--alone", "--out", "d.profile")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("B parts from A at network.")
    assert "of the change of the output comes from there" in result.stdout.splitlines()[0]
    profile = package.Profile.load(folder / "d.profile")
    assert profile.provenance["beside"]["model"]["spec"] == a
    assert any(row.quantity == "alone" for row in profile.rows)
    again = lisse("drift", a, b, "--data", "digits", "--quick", "--alone", "--out", "d.profile", "--json")
    rows = [json.loads(line) for line in again.stdout.splitlines()]
    assert {row["quantity"] for row in rows} >= {"drift", "injected", "inherited"}


def test_a_network_does_not_part_from_itself(lisse: Run, folder: Path) -> None:
    a = weights(folder, "a", 1.0)
    result = lisse("drift", a, a, "--data", "digits", "--quick")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("B does not part from A")


def test_a_full_disk_does_not_take_what_was_found(lisse: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(profile: package.Profile, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(package.Profile, "save", full)
    result = lisse("drift", FC, FC, "--data", "digits", "--quick", "--out", "d.profile")
    assert result.exit_code == 3
    assert "No space left on device: d.profile" in result.stderr
    assert result.stdout.startswith("B does not part from A")


def test_what_is_wrong_is_one_line(lisse: Run, folder: Path) -> None:
    a = weights(folder, "a", 1.0)
    assert "--data is needed" in lisse("drift", a, a).stderr
    result = lisse("drift", a, "zoo:fc2?in_channels=3&size=8&mean=none", "--data", "digits", "--quick")
    assert result.exit_code == 2
    assert "what B does not run on" in result.stderr
