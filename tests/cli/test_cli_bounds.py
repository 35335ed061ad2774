"""lisse bounds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
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


# --- balls around samples ---------------------------------------------------------------------------------------------


def test_a_classifier_s_answers_in_balls(lisse: Run) -> None:
    model = "zoo:fc2?in_channels=1&size=8&mean=none&width=16&seed=3"
    words = ["--data", "digits", "--norm", "linf", "--samples", 12, "--eps", 0.001, "--eps", 0.5]
    result = lisse("bounds", model, *words)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("ε, linf ")
    document = json.loads(lisse("bounds", model, *words, "--json").stdout)
    assert (document["ball"], document["n"], len(document["samples"])) == ("linf", 12, 12)
    assert all(row["certified"] <= row["attacked"] for row in document["samples"])
    small, large = document["balls"]
    assert small["proved"]["value"] == sum(row["certified"] >= 0.001 for row in document["samples"]) / 12
    assert small["proved"]["low"] < small["proved"]["value"] <= small["not_reached"]["value"]
    assert 0 < small["proved"]["value"] > large["proved"]["value"] == 0
    assert document["certified"]["value"] <= document["attacked"]["value"]
    other = json.loads(lisse("bounds", model, *words, "--json", "--seed", 1).stdout)
    assert other["samples"] != document["samples"]


def test_blocks_of_tokens_in_balls(lisse: Run, folder: Path) -> None:
    pytest.importorskip("transformers")
    (folder / "importable" / "tokens.py").write_text(
        "import torch\nfrom transformers import ViTConfig, ViTModel\n\n\ndef layers():\n    torch.manual_seed(0)\n"
        "    sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)\n"
        "    return ViTModel(ViTConfig(**sizes, image_size=4, patch_size=2), add_pooling_layer=False)\n"
    )
    inputs = np.random.default_rng(0).uniform(size=(4, 3, 4, 4)).astype("f4")
    np.savez(folder / "tokens.npz", inputs=inputs)
    words = ["bounds", "tokens:layers", "--data", "tokens.npz", "--eps", 0.0001, "--eps", 5]
    result = lisse(*words)
    assert result.exit_code == 0, result.stderr
    assert "No bound of layers.0 at ε = 5: " in result.stdout
    rows = json.loads(lisse(*words, "--json").stdout)["blocks"]
    assert [row["eps"] for row in rows] == [0.0001, 5] * 2
    assert 0 < rows[0]["lower"] <= rows[0]["upper"] < 1.1 * rows[0]["lower"]
    assert rows[0]["reason"] == ""
    assert lisse(*words, "--layers", "layers.1").stdout.count("layers.1") == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--eps", "0.1"], "say of which with --data"),
        (["--data", "digits", "--eps", "0.1", "--radius", "2"], "--radius says nothing of a ball"),
        (["--data", "digits", "--eps", "0.1", "--layers", "**"], "--layers chooses blocks of tokens"),
        (["--data", "digits", "--eps", "-1"], "eps must"),
    ],
)
def test_mistakes_about_balls_are_one_line(lisse: Run, words: list[str], message: str) -> None:
    result = lisse("bounds", FC, *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
