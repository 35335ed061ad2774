"""`lisse improve`: a fine-tuned network, a page of before and after, and the same command again."""

from __future__ import annotations

import json

import pytest

from lisse.models import load_model
from lisse.profile_file import load

MODEL = "zoo:fc2?in_channels=1&size=8&mean=none"


@pytest.fixture
def checkpoint(lisse):
    done = lisse("train", MODEL, "--data", "digits", "--out", "plain", "--epochs", "4", "--lr", "0.01")
    assert done.exit_code == 0, done.output
    return "plain/model.safetensors"


@pytest.mark.slow
def test_it_ends_in_a_page_of_before_and_after(lisse, folder, checkpoint):
    line = [
        "improve",
        checkpoint,
        "--data",
        "digits",
        "--for",
        "attacks",
        "--out",
        "better",
        "--quick",
        "--epochs",
        "3",
    ]
    done = lisse(*line, "--eps", "15/100")
    assert done.exit_code == 0, done.output
    recipe = json.loads((folder / "better" / "config.json").read_text())["recipe"]
    assert (recipe["adversary"], recipe["adversary_steps"], recipe["eps"], recipe["epochs"]) == ("pgd", 7, 0.15, 3)
    (words,) = [text for text in done.stdout.splitlines() if text.startswith("Right under APGD at linf 0.15: before")]
    before, after = (float(words.partition(name)[2].split("%")[0]) for name in ("before ", "after "))
    assert after > before + 5
    page = (folder / "better" / "report.html").read_text()
    assert "Before and after" in page
    assert words in page
    names = {load(path).name for path in (folder / "better" / "profiles").glob("*.profile")}
    assert names == {"before", "after"}
    start, end = (load_model(str(file)).state_dict() for file in (checkpoint, "better/model.safetensors"))
    assert start.keys() == end.keys()
    assert all(not start[name].equal(end[name]) for name in start if name.endswith("weight"))
    again = lisse(*line, "--eps", "15/100")
    assert again.exit_code == 0
    assert "nothing is left to do" in again.stderr
    assert words in again.stdout


@pytest.mark.slow
def test_against_corruptions_it_says_what_they_leave(lisse, folder, checkpoint):
    line = ["improve", checkpoint, "--data", "digits", "--for", "corruptions", "--quick", "--epochs", "1"]
    done = lisse(*line, "--out", "calm")
    assert done.exit_code == 0, done.output
    (words,) = [
        text for text in done.stdout.splitlines() if text.startswith("Right under corruptions, a mean over 4: ")
    ]
    rows = [row for path in (folder / "calm" / "profiles").glob("*.profile") for row in load(path).rows]
    for row in rows:
        if row.quantity == "mean_accuracy" and row.at == {"corruption": "all"}:
            assert f"{row.value:.1%} [{row.low:.1%}, {row.high:.1%}]" in words
    assert words in (folder / "calm" / "report.html").read_text()


def test_what_it_cannot_do_is_a_line(lisse, folder):
    for options, words in (
        (["--for", "weather"], "is not one of 'attacks', 'corruptions'"),
        ([], "Missing option '--for'"),
        (["--for", "attacks", "--eps", "8"], "Write 8 / 255"),
        (["--for", "attacks", "--eps", "much"], "'much' is not"),
        (["--for", "attacks", "--penalty", "isometric=0.1@netwrk"], "nearest are network, network:in"),
    ):
        done = lisse("improve", MODEL, "--data", "digits", "--out", "x", *options)
        assert done.exit_code == 2
        assert words in done.stderr
