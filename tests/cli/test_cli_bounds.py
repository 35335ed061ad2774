"""lisse bounds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from lisse.models import load_model
from lisse.networks.bounds import of_module

Run = Callable[..., Result]
FC = "zoo:fc2?in_channels=1&size=8&mean=none"


def test_a_table_without_data(lisse: Run) -> None:
    result = lisse("bounds", FC)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["layer", "kind", "enters", "from", "below", "bound"]
    assert lines[-1].startswith("≥ from below")
    network = next(line for line in lines if line.startswith("(network)"))
    bound = of_module(load_model(FC), radius=1, input_shape=(1, 8, 8))
    assert f"≤ {bound.value:.4g}" in network
    assert "bounds: done" in result.stderr


def test_json_and_file_say_the_same(lisse: Run, folder: Path) -> None:
    result = lisse("bounds", FC, "--json", "--out", "bounds.json", "--radius", 2)
    document = json.loads(result.stdout)
    assert document == json.loads((folder / "bounds.json").read_text())
    assert document["largest_norm"] == 2
    linear = document["layers"][-2]
    assert linear["bound"]["kind"] == "upper"
    assert 0 < linear["lower"] <= linear["bound"]["value"]
    assert linear["bound"]["hypotheses"] == []


def test_layers_are_chosen_by_name(lisse: Run) -> None:
    result = lisse("bounds", FC, "--layers", "**", "--json")
    assert len(json.loads(result.stdout)["layers"]) > 4


def test_attention_has_hypotheses_and_a_power_of_ten(lisse: Run) -> None:
    result = lisse("bounds", "zoo:vit_small?width=16&heads=2&depth=2&size=8&in_channels=1&mean=none")
    assert result.exit_code == 0, result.stderr
    assert "[1] inputs have norm at most 1: holds (given)" in result.stdout
    assert "≤ 10^" in next(line for line in result.stdout.splitlines() if line.startswith("(network)"))


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["tiny_models:sound"], 2, "this model does not say what it takes; give an example with --data"),
        ([FC, "--layers", "nothing"], 2, "layers must match a layer's name"),
        ([FC, "--radius", "-1"], 2, "radius must be finite and not negative, got -1"),
        ([FC, "--out", "points.npz/a.json"], 3, "the table cannot be written to points.npz/a.json"),
    ],
)
def test_mistakes_are_one_line(lisse: Run, words: list[str], code: int, message: str) -> None:
    result = lisse("bounds", *words)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_no_bound_at_all_is_a_failure_with_its_reason(lisse: Run) -> None:
    result = lisse("bounds", "zoo:efficientnet_b0", "--layers", "network.blocks.0.0")
    assert result.exit_code == 1
    assert "No bound of network.blocks.0.0: the operation 'mul'" in result.stdout
    assert "no layer has a bound" in result.stderr


def test_data_show_the_shape(lisse: Run) -> None:
    result = lisse("bounds", "tiny_models:sound", "--data", "points.npz")
    assert result.exit_code == 0, result.stderr
    assert "(network)" in result.stdout
