"""The table of recipes: units, parts of a run, what is measured, and what the lines say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from lisse_experiments import Task, form, study
from lisse_experiments.recipes import plan, run, tables


def test_units_are_a_seed_before_the_next_and_can_be_chosen():
    whole = plan.units(plan.settings("paper"), 0)
    assert [unit.name for unit in whole[:3]] == ["plain:0", "fgsm:0", "pgd:0"]
    assert sum(unit.recipe == "trades" for unit in whole) == 1
    assert len(whole) == 22
    recipes = plan.settings("paper").recipes.values()
    assert {(recipe.batch, recipe.epochs, recipe.lr, recipe.nesterov) for recipe in recipes} == {(128, 15, 0.2, False)}
    chosen = plan.units(plan.settings("paper"), 5, ("fgsm:6", "trades"))
    assert [unit.name for unit in chosen] == ["trades:5", "fgsm:6"]
    with pytest.raises(ValueError, match=r"recipe:seed of plain, .* got fgsn\. One is plain:0"):
        plan.units(plan.settings("paper"), 0, ("fgsn",))


def small(monkeypatch):
    """The smoke scale in two short recipes."""
    usual = plan.settings("smoke")
    few = {name: dataclasses.replace(usual.recipes[name], epochs=1) for name in ("plain", "fgsm")}
    short = dataclasses.replace(
        usual, recipes=few, seeds=dict.fromkeys(few, 2), images=40, steps=3, corrupted=20, samples=30,
        printed=("fgsm",), comparison=50,
    )  # fmt: skip
    monkeypatch.setattr(run, "settings", lambda scale: short)
    return short


def test_a_part_is_kept_and_the_same_command_goes_on(tmp_path, monkeypatch):
    small(monkeypatch)
    part = run.run(Task("smoke", tmp_path, units=("plain:0",)))
    assert [path.name for path in (tmp_path / "units").iterdir()] == ["plain-0.json"]
    assert part.notes == ("Not done yet: fgsm:0, plain:1, fgsm:1. The same command goes on.",)
    before = (tmp_path / "units" / "plain-0.json").read_text()
    with pytest.raises(ValueError, match="minutes must be enough for one network"):
        run.run(Task("smoke", tmp_path / "none", minutes=0.0))
    whole = run.run(Task("smoke", tmp_path))
    assert (tmp_path / "units" / "plain-0.json").read_text() == before
    assert whole.notes == ()
    by = {finding.key: finding for finding in whole.findings}
    assert not any(key.endswith("/cost") for key in by), "a busy machine's seconds are no finding"
    assert by["fgsm/clean"].note == "2 seeds"
    assert 0 <= by["fgsm/pgd-50-10"].value <= by["fgsm/clean"].value + 0.2
    assert by["fgsm/pgd-50-10"].n == 50
    assert "plain/pgd-50-10" not in by
    assert {claim.key for claim in whole.claims} >= {"fgsm withstands", "fgsm printed"}
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert lines[0].startswith("| recipe | clean | ℓ∞ 0.15 | ℓ∞ 0.05 |")
    assert len(lines) == 4
    result = json.loads(before)
    assert result["request"] == run.request(run.settings("smoke"), plan.Unit("plain", 0))
    assert run.stored(tmp_path / "units" / "plain-0.json", "another") is None


def test_experiments_that_are_done_as_a_whole_take_no_parts():
    with pytest.raises(ValueError, match="units and minutes must be left out, got some"):
        form.timed(study("early_warning"), Task("smoke", Path("unused"), minutes=3.0))


def result(value: float, seconds: float, n: int = 400) -> dict:
    row = {"value": value, "low": value - 0.02, "high": value + 0.02, "n": n}
    numbers = {"clean": row, "attack/linf/0.03137": row, "headline/R_f": row | {"quantity": "relative_stability"}}
    return {
        "status": "finished",
        "seconds": seconds,
        "epochs": 2.0,
        "measuring": 1.0,
        "machine": "m",
        "numbers": numbers,
    }


def test_the_lines_are_means_over_seeds_and_costs_are_over_plain(tmp_path):
    settings = plan.settings("paper")
    results = {
        plan.Unit("plain", 0): result(0.01, 10),
        plan.Unit("plain", 1): result(0.03, 20),
        plan.Unit("plain", 2): result(0.02, 10),
        plan.Unit("fgsm", 0): result(0.44, 30),
        plan.Unit("fgsm", 1): result(0.46, 30),
        plan.Unit("trades", 0): result(0.5, 100),
    }
    outcome = tables.outcome(settings, results, tmp_path, [])
    by = {finding.key: finding for finding in outcome.findings}
    assert by["plain/attack/linf/0.03137"].value == pytest.approx(0.02)
    assert tables.costs(results)["fgsm"] == 3.0
    assert by["trades/clean"].low == pytest.approx(0.48)
    low, high = by["plain/headline/R_f"].low, by["plain/headline/R_f"].high
    assert (high - low) / 2 == pytest.approx(4.302653 * 0.01 / 3**0.5, rel=1e-5)
    holds = {claim.key: claim.holds for claim in outcome.claims}
    assert "trades withstands" not in holds  # one seed
    assert holds["fgsm withstands"] is True  # +43 and +43 points
    assert tables.heading("attack/linf/0.03137") == "ℓ∞ 8/255"
    assert tables.heading("attack/l2/0.5") == "ℓ2 0.5"
    assert outcome.seconds == pytest.approx(206)


def test_the_literature_is_beside_the_interval_of_what_is_held_against_it(tmp_path):
    share = {"value": 0.44, "low": 0.4212, "high": 0.46, "n": 4000}
    fgsm = result(0.8, 10)
    fgsm["numbers"]["pgd-50-10"] = share
    pgd = result(0.8, 10)
    pgd["numbers"]["pgd-50-10"] = share
    results = {plan.Unit("fgsm", 0): fgsm, plan.Unit("pgd", 0): pgd}
    claims = {claim.key: claim for claim in tables.outcome(plan.settings("paper"), results, tmp_path, []).claims}
    assert (claims["fgsm printed"].holds, claims["fgsm printed"].detail) == (True, "-0.9 [-2.8 to +1.1] points")
    assert (claims["pgd printed"].holds, claims["pgd printed"].detail) == (False, "-3.2 [-5.1 to -1.2] points")
