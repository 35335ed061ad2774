import dataclasses
import sys
import types
from pathlib import Path

import pytest
from click.testing import CliRunner

import lisse_experiments as experiments
from lisse.cli.outcome import Failed
from lisse.cli.reproduce import command
from lisse_experiments import About, Claim, Finding, Outcome, Task


@pytest.fixture
def study(tmp_path, monkeypatch):
    """An experiment that finds what ``found`` says, in a folder of its own."""
    found = {"value": 0.5, "holds": True, "tasks": []}

    def run(task: Task) -> Outcome:
        found["tasks"].append(task)
        finding = Finding("a", "accuracy of a", found["value"], theirs=0.6, source="Table 1", within=0.01)
        return Outcome((finding,), (Claim("c", "a is smooth", found["holds"]),), (task.out / "figure.png",), ("Note.",))

    folder = tmp_path / "paper"
    folder.mkdir()
    module = types.ModuleType("lisse_experiments.fake.run")
    module.run = run
    module.ABOUT = About("fake", "A paper", "who 2024", "All is smooth.", {"smoke": "1 s", "paper": "1 h"}, folder)
    monkeypatch.setitem(sys.modules, "lisse_experiments.fake.run", module)
    monkeypatch.setitem(experiments.PAPERS, "fake", "a paper that is not there")
    monkeypatch.chdir(tmp_path)
    return found


def call(*words: str):
    return CliRunner().invoke(command, words)


def test_without_a_paper_it_lists_them(study):
    assert "a paper that is not there" in call().output


def test_ours_stands_beside_theirs(study):
    result = call("fake")
    assert result.exit_code == 0
    assert "0.6 Table 1" in result.output
    assert "a is smooth" in result.output
    assert "Note." in result.output
    assert "Nothing is committed for this scale" in result.output
    assert Path("lisse-fake-smoke").is_dir()


def test_options_reach_the_experiment(study):
    call("fake", "--scale", "paper", "--out", "here", "--seed", "7", "--device", "meta")
    (task,) = study["tasks"]
    assert (task.scale, str(task.out), task.seed, task.device) == ("paper", "here", 7, "meta")


def test_several_at_once_where_an_experiment_can(study, monkeypatch):
    result = call("fake", "--workers", "3")
    assert result.exit_code == 2
    assert "fake takes no --workers" in result.output
    module = sys.modules["lisse_experiments.fake.run"]
    monkeypatch.setattr(module, "ABOUT", dataclasses.replace(module.ABOUT, side_by_side=True))
    call("fake", "--workers", "3")
    assert [task.workers for task in study["tasks"]] == [3]


def test_a_scale_that_an_experiment_does_not_have(study):
    refused = call("fake", "--scale", "small")
    assert refused.exit_code == 2
    assert "fake has no --scale small: choose one of smoke, paper" in refused.output
    assert not Path("lisse-fake-small").exists()


def test_a_model_reaches_an_experiment_that_takes_one(study):
    refused = call("fake", "--model", "hf:mine")
    assert refused.exit_code == 2
    assert "fake takes no --model: its networks are the paper's" in refused.output
    module = sys.modules["lisse_experiments.fake.run"]
    module.ABOUT = dataclasses.replace(module.ABOUT, models="any")
    call("fake", "--model", "hf:mine")
    call("fake")
    assert [task.model for task in study["tasks"]] == ["hf:mine", None]


def test_what_is_written_is_compared_with_the_next_time(study):
    assert "Kept in" in call("fake", "--write").output
    again = call("fake")
    assert again.exit_code == 0
    assert "As committed on" in again.output
    assert "Nothing is committed" in call("fake", "--seed", "1").output
    study["value"] = 0.52
    changed = call("fake")
    assert changed.exit_code == Failed.exit_code == 1
    assert "a: 0.52 instead of 0.5" in changed.output
    study.update(value=0.5, holds=False)
    assert "does not hold, and did" in call("fake").output


def test_an_unknown_paper_names_the_nearest(study):
    result = call("fak")
    assert result.exit_code == 2
    assert "Did you mean fake?" in result.output
