"""`lisse sweep`: a plan from a file or from the line, a table, failures with their reasons."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

NETWORK = "zoo:fc2?in_channels=1&size=8&mean=none&width=4"
LINE = ["--data", "digits", "--instruments", "sensitivity", "--limit", "20", "--out", "out"]


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch):
    monkeypatch.setattr("lisse.sweeping.driver.Workers", lambda count, devices: ThreadPoolExecutor(1))


def test_a_plan_is_measured_and_the_same_command_goes_on(lisse, folder):
    (folder / "plan.toml").write_text(
        f"models = ['{NETWORK}', 'tiny_models:sound']\ndata = 'digits'\ninstruments = ['sensitivity']\nlimit = 20\n"
    )
    first = lisse("sweep", "plan.toml", "--out", "out")
    assert first.exit_code == 0, first.output
    assert "failed: tiny_models:sound on digits" in first.stderr
    assert "1 profile in" in first.stderr
    again = lisse("sweep", "plan.toml", "--out", "out", "--json")
    rows = [json.loads(line) for line in again.stdout.splitlines()]
    assert [row["status"] for row in rows] == ["whole", "failed"]
    assert rows[0]["file"] == str(next((folder / "out" / "profiles").iterdir()))


def test_models_seeds_and_data_on_the_line_are_a_plan(lisse, folder):
    listed = lisse("sweep", NETWORK, *LINE, "--seeds", "0..2", "--list")
    assert listed.exit_code == 0, listed.output
    assert [line.rpartition(" on ")[0][18:] for line in listed.stdout.splitlines()] == [
        NETWORK, f"{NETWORK} · seed 1", f"{NETWORK} · seed 2",
    ]  # fmt: skip
    assert not (folder / "out").exists()
    assert lisse("sweep", NETWORK, *LINE, "--seeds", "0,5", "--list").stderr.startswith("2 units")


@pytest.mark.parametrize(
    ("name", "value"),
    [("limit", "3"), ("data", "cifar10"), ("seeds", "0..99"), ("instruments", "topology"), ("size", "full")],
)
def test_what_a_plan_states_itself_is_not_given_on_the_line(lisse, folder, name, value):
    (folder / "plan.toml").write_text(f"models = '{NETWORK}'\ndata = 'digits'\ninstruments = 'sensitivity'\n")
    done = lisse("sweep", "plan.toml", f"--{name}", value, "--list")
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"--{name} is for a line without a plan; write {name} into plan.toml" in done.stderr
    line = ["--out", "o", "--workers", "1", "--gpus", "0", "--retries", "1", "--json", "--list"]
    assert lisse("sweep", "plan.toml", *line).exit_code == 0


def test_nothing_measured_is_a_failure(lisse, folder):
    done = lisse("sweep", "tiny_models:sound", *LINE)
    assert done.exit_code == 1
    assert "nothing was measured" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plan.toml"], "plan must be a file that is there"),
        (["plan.toml", "other.toml"], "plan.toml: a PLAN.toml stands alone"),
        (["plan.py"], "a plan in Python calls lisse.sweep"),
        ([NETWORK], "--data and --instruments are needed"),
        (["zoo:fc22", *LINE], "Did you mean fc2"),
        ([NETWORK, *LINE, "--seeds", "a..b"], "seeds must be whole numbers"),
    ],
)
def test_a_slip_is_a_line(lisse, folder, words, says):
    done = lisse("sweep", *words)
    assert done.exit_code != 0
    assert says in done.stderr
    assert done.stderr.count("\n") <= 1
