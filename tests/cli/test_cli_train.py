"""`lisse train`: the folder, the table, resuming after a real SIGKILL, divergence, bad input."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lisse.models import read_weights

MODEL = "zoo:fc2?in_channels=1&size=8&mean=none"
LINE = ["train", MODEL, "--data", "digits", "--out", "run", "--epochs", "2"]


def test_it_trains_says_how_well_and_leaves_a_checkpoint_that_can_be_measured(lisse, folder):
    done = lisse(*LINE, "--lr", "0.01")
    assert done.exit_code == 0, done.output
    assert "Test accuracy" in done.stdout
    assert done.stdout.splitlines()[0].split() == [
        "epoch", "loss", "accuracy", "lr", "seconds", "test_loss", "test_accuracy",
    ]  # fmt: skip
    assert "Saved run/model.safetensors" in done.stderr
    config = json.loads((folder / "run" / "config.json").read_text())
    assert (config["recipe"]["lr"], config["recipe"]["epochs"]) == (0.01, 2)
    assert (folder / "run" / "log.csv").read_text().count("\n") == 3
    measured = lisse("measure", "sensitivity", "run/model.safetensors", "--data", "digits", "--quick")
    assert measured.exit_code == 0, measured.output
    again = lisse(*LINE, "--lr", "0.01")
    assert again.exit_code == 0
    assert "is finished; nothing is left to do" in again.stderr
    assert again.stdout == done.stdout


def test_every_option_reaches_the_training(lisse, folder):
    done = lisse(
        *LINE, "--recipe", "diffeomorphisms", "--batch", "64", "--limit", "300", "--seed", "3", "--label-smoothing",
        "0.1", "--no-flip", "--crop", "1", "--test", "none", "--precision", "bf16-mixed", "--tensorboard", "--head-lr",
        "0.05", "--clip", "1", "--checkpoint-seconds", "0",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    config = json.loads((folder / "run" / "config.json").read_text())
    recipe = config["recipe"]
    assert (recipe["optimizer"], recipe["lr"], recipe["batch"], recipe["clip"]) == ("sgd", 0.1, 64, 1)
    assert (recipe["crop"], recipe["flip"], recipe["label_smoothing"], recipe["head_lr"]) == (1, False, 0.1, 0.05)
    assert (config["data"]["samples"], config["test"], config["seed"]) == (300, None, 3)
    assert config["precision"] == "bf16-mixed"
    assert config["model"]["architecture"].endswith("seed=3")
    assert list((folder / "run" / "tensorboard").iterdir())
    assert "Test" not in done.stdout


def test_a_full_batch_and_another_test_set(lisse, folder):
    done = lisse(*LINE, "--batch", "none", "--test", "train")
    assert done.exit_code == 0, done.output
    assert "2 steps, 2 epochs" in done.stdout
    assert "on 1,433 samples" in done.stdout


def test_measuring_while_training(lisse, folder):
    done = lisse(*LINE, "--limit", "100", "--batch", "50", "--test", "none", "--measure", "sensitivity", "--every", "2")
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (folder / "run" / "profiles").glob("*.profile")) == [
        "step-00000000.profile", "step-00000004.profile",
    ]  # fmt: skip


def test_measuring_a_run_that_has_ended_measures_nothing_and_says_so(lisse, folder):
    assert lisse(*LINE).exit_code == 0
    done = lisse(*LINE, "--measure", "sensitivity")
    assert done.exit_code == 0, done.output
    assert "Nothing was measured" in done.stderr
    assert "Profiles" not in done.stderr


def test_fine_tuning_with_another_classifier(lisse, folder):
    assert lisse(*LINE).exit_code == 0
    refused = lisse("train", f"{MODEL}&classes=7", "--data", "digits", "--out", "other")
    assert refused.exit_code == 2
    assert "labels in 0 … 6" in refused.stderr
    assert "--classes 10" in refused.stderr
    assert not (folder / "other").exists()
    done = lisse("train", "run/model.safetensors", "--data", "digits", "--out", "tuned", "--epochs", "1", "--classes",
                 "12", "--recipe", "diffeomorphisms-transfer", "--test", "none")  # fmt: skip
    assert done.exit_code == 0, done.output
    before, after = read_weights("run/model.safetensors"), read_weights("tuned/model.safetensors")
    assert [len(value) for name, value in after.items() if before[name].shape != value.shape] == [12, 12]
    moved = {name for name in before if before[name].shape == after[name].shape}
    assert moved
    assert all(not torch.equal(before[name], after[name]) for name in moved)
    loaded = lisse("layers", "tuned/model.safetensors")
    assert loaded.exit_code == 0, loaded.output


def test_a_changed_option_is_refused(lisse, folder):
    assert lisse(*LINE).exit_code == 0
    done = lisse(*LINE, "--lr", "0.5", "--seed", "1")
    assert done.exit_code == 1
    for part in ("recipe lr = 0.003 instead of 0.5", "seed = 0 instead of 1", "Choose another folder"):
        assert part in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_diverging_run_is_a_result_with_a_code_of_its_own(lisse, folder):
    line = [*LINE, "--optimizer", "sgd", "--lr", "1e20", "--schedule", "constant"]
    for _ in range(2):
        done = lisse(*line)
        assert done.exit_code == 4, done.output
        assert "Diverged: the loss of step" in done.stdout
        assert re.search(r"^\d+ of 24 steps, ", done.stdout, re.MULTILINE)
        assert "last-good.safetensors" in done.stderr
        assert "Traceback" not in done.output


def test_the_recipes_are_listed(lisse):
    done = lisse("train", "--recipes")
    assert done.exit_code == 0
    assert "diffeomorphisms-transfer" in done.stdout
    assert "isometry-full-batch" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["train", MODEL, "--data", "digits"], 2, "--out"),
        (["train", MODEL, "--out", "x"], 2, "--data"),
        ([*LINE, "--recipe", "difeomorphisms"], 2, "no recipe 'difeomorphisms'. The nearest: diffeomorphisms"),
        ([*LINE, "--lr", "fast"], 2, "'fast' is not NUMBER"),
        ([*LINE, "--lr", "-1"], 2, "lr must be a number above 0"),
        ([*LINE[:-1], "0"], 2, "epochs must be an integer of at least 1"),
        ([*LINE, "--batch", "5000"], 2, "batch must not exceed the 1433 samples"),
        ([*LINE, "--device", "cuda:9"], 2, "device must be there"),
        ([*LINE, "--measure", "sensitivty"], 2, "no instrument 'sensitivty'. The nearest: sensitivity"),
        (
            ["train", "zoo:lenet", "--data", "digits", "--out", "x"],
            2,
            "data must fit the model, which takes [3, 32, 32], got samples of [1, 8, 8]",
        ),
        (["train", "zoo:lenet?weights=none.safetensors", "--data", "digits", "--out", "x"], 3, "none.safetensors"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(lisse, folder, words, code, said):
    done = lisse(*words)
    assert done.exit_code == code, done.output
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (folder / "x").exists()
    assert not (folder / "run").exists()


# --- real processes --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_at_random_moments_the_same_command_gives_the_same_weights(folder):
    line = [sys.executable, "-m", "lisse", "train", "zoo:lenet?in_channels=1&size=28&seed=2", "--data", "data.npz",
            "--epochs", "6", "--checkpoint-seconds", "0.2", "--batch", "32", "--test", "none"]  # fmt: skip
    import numpy as np

    dice = np.random.default_rng(0)
    pixels = dice.integers(0, 256, (600, 1, 28, 28), dtype=np.uint8)
    np.savez(folder / "data.npz", inputs=pixels, targets=dice.integers(0, 10, 600))
    begun = time.monotonic()
    subprocess.run([*line, "--out", "whole"], cwd=folder, check=True, capture_output=True)
    lasts = time.monotonic() - begun
    moments = random.Random(1)
    for _ in range(4):
        process = subprocess.Popen(
            [*line, "--out", "killed"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(moments.uniform(0.4, 1.0) * lasts)
        process.kill()
        process.wait()
    subprocess.run([*line, "--out", "killed"], cwd=folder, check=True, capture_output=True)
    whole, killed = (read_weights(folder / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    steps = [[row.split(",")[:3] for row in Path(folder / n / "log.csv").read_text().splitlines()] for n in
             ("whole", "killed")]  # fmt: skip
    assert steps[0] == steps[1]


@pytest.mark.large
def test_lenet_learns_mnist(lisse):
    """99.13 % [98.93 %, 99.30 %] with seed 0, in 40 s of one core."""
    done = lisse("train", "zoo:lenet?in_channels=1&size=28", "--data", "mnist", "--epochs", "6", "--out", "lenet")
    assert done.exit_code == 0, done.output
    accuracy = float(done.stdout.partition("Test accuracy ")[2].partition("%")[0])
    assert accuracy >= 98.8
