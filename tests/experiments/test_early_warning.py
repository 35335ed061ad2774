"""When a loss moves, which alarms count, thresholds from the other half, and a run that goes on."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from lisse_experiments import Task
from lisse_experiments.early_warning import alarms, figures, plan, run, tables, train
from lisse_experiments.early_warning.plan import Training


def test_a_loss_moves_half_a_nat_above_the_best_median_and_one_spike_does_not_move_it():
    calm = [5.0, 4.0, 3.0, 3.0, 3.0, 3.0, 3.0]
    assert alarms.moved([*calm, 9.0, *calm[2:]]) is None
    # The median of five passes 3.5 at the third step of the new level.
    assert alarms.moved([*calm, 3.6, 3.6, 3.6]) == 9
    assert alarms.moved([*calm, 3.4, 3.4, 3.4, 3.4]) is None


def test_a_loss_that_is_not_finite_has_moved():
    assert alarms.moved([3.0, math.nan]) == 1
    assert alarms.moved([3.0] * 9 + [math.inf]) == 9


def test_a_jump_is_over_the_median_of_the_five_looks_before():
    series = alarms.scores([1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 8.0], "jump")
    assert series[:3] == [-math.inf] * 3
    assert series[-1] == pytest.approx(math.log(4))


def test_a_fall_of_the_rank_is_a_rise_of_its_score_and_a_broken_value_alarms_at_once():
    assert alarms.scores([4.0, 2.0], "level", falls=True) == pytest.approx([-math.log(4), -math.log(2)])
    assert alarms.scores([1.0, math.nan], "level")[1] == math.inf
    assert alarms.scores([1.0, 0.0], "jump")[1] == math.inf


def test_the_threshold_is_the_largest_score_of_calm_trainings_and_has_to_be_passed():
    limit = alarms.threshold([[0.0, 1.0], [2.0, -math.inf]])
    assert limit == 2.0
    assert alarms.first_alarm([0.0, 2.0, 2.1], limit) == 2
    assert alarms.first_alarm([0.0, 2.0, 2.1], limit, until=2) is None
    assert alarms.threshold([]) == math.inf


def results(*, warns: int, calm: float = 1.0) -> tables.Results:
    """Two calm and two diverging trainings a half; the quantity of a diverging one rises at look ``warns``."""
    quiet = {"losses": [3.0] * 100, "looks": [{"gradient": 1.0, "logit": calm}] * 10}
    loud = {
        "losses": [3.0] * 60 + [9.0] * 40,
        "looks": [{"gradient": 1.0, "logit": 50.0 if look >= warns else 1.0} for look in range(10)],
    }
    return {Training(way, seed): loud if way.startswith("driven") else quiet for seed in range(2) for way in plan.WAYS}


def logit(lines: list[tables.Line]) -> tables.Line:
    """The line of the logit's level."""
    return next(line for line in lines if (line.quantity, line.detector) == ("logit", "level"))


@pytest.mark.parametrize(("look", "warned", "lead"), [(4, 4, 22), (6, 4, 2), (7, 0, None)])
def test_an_alarm_counts_before_the_loss_moves_and_not_after(look, warned, lead):
    ten = dataclasses.replace(plan.settings("small"), every=10)
    line = logit(tables.lines(ten, results(warns=look)))
    assert sum(line.warned) == warned  # the loss moves at step 62
    assert set(line.leads) == ({lead} if lead else set())
    assert not any(line.false)
    assert len(line.false) == 4


def test_a_threshold_comes_from_the_other_half():
    ten = dataclasses.replace(plan.settings("small"), every=10)
    mixed = dict(results(warns=4))
    high = {"losses": [3.0] * 100, "looks": [{"gradient": 1.0, "logit": 60.0}] * 10}
    mixed[Training("calm", 0)] = high  # lifts the threshold of the odd seeds alone, and is a false alarm itself
    line = logit(tables.lines(ten, mixed))
    assert sum(line.warned) == 2
    assert sum(line.false) == 1


def test_claims_are_corrected_and_say_nothing_of_four_trainings():
    ten = dataclasses.replace(plan.settings("small"), every=10)
    claims = tables.claims(tables.lines(ten, results(warns=4)))
    assert {claim.key for claim in claims} == {"gradient/level", "logit/level", "logit/jump"}
    level = next(claim for claim in claims if claim.key == "logit/level")
    assert level.holds is None  # 4 against 0: p = 0.125 before correction
    assert level.detail.startswith("4 against 0 of 4")


def test_a_driven_rate_rises_tenfold_and_the_calm_one_stays():
    small = plan.settings("small")
    assert plan.rate(small, Training("calm", 3), 399) == pytest.approx(1e-3)
    assert plan.rate(small, Training("calm", 3), 0) == pytest.approx(1e-3 / 50)
    rates = [plan.rate(small, Training("driven", 3), step) for step in (100, 150, 190)]
    assert rates[0] == pytest.approx(1e-3)
    assert rates[1] <= 1e-2 <= rates[2]


def test_an_interrupted_run_goes_on_and_gives_the_same(tmp_path, monkeypatch):
    short = dataclasses.replace(plan.settings("smoke"), seeds=1, steps=25)
    monkeypatch.setattr(run, "settings", lambda scale: short)
    draw = figures.draw
    monkeypatch.setattr(figures, "draw", lambda plan, results, out: out / "trainings.png")
    whole = run.run(Task("smoke", tmp_path / "whole"))
    count = 0

    def killed(*arguments, **options):
        nonlocal count
        count += 1
        if count > 2:
            raise KeyboardInterrupt
        return train_followed(*arguments, **options)

    train_followed = train.followed
    monkeypatch.setattr(train, "followed", killed)
    with pytest.raises(KeyboardInterrupt):
        run.run(Task("smoke", tmp_path / "half"))
    kept = {file.name: file.read_bytes() for file in (tmp_path / "half" / "trainings").iterdir()}
    assert len(kept) == 2
    monkeypatch.setattr(train, "followed", train_followed)
    monkeypatch.setattr(figures, "draw", draw)
    again = run.run(Task("smoke", tmp_path / "half"))
    assert again.findings == whole.findings
    assert all((tmp_path / "half" / "trainings" / name).read_bytes() == text for name, text in kept.items())
    assert (tmp_path / "half" / "trainings.png").stat().st_size > 10_000
    # Another plan does not take the files for its own.
    assert run.stored(tmp_path / "half" / "trainings" / "calm-0.json", "another") is None


def test_looking_does_not_change_the_training():
    short = dataclasses.replace(plan.settings("smoke"), steps=12)
    rarely = dataclasses.replace(short, every=100)
    corpus = run.corpus_of(short)
    series = [
        train.followed(each, Training("plain", 1), corpus, device="cpu", tell=lambda step: None)["losses"]
        for each in (short, rarely)
    ]
    assert series[0] == series[1]


def test_watched_takes_one_number_a_quantity_with_norms_where_they_are():
    short = dataclasses.replace(plan.settings("smoke"), steps=1)
    looks = train.followed(short, Training("calm", 0), run.corpus_of(short), device="cpu", tell=lambda step: None)[
        "looks"
    ]
    assert {"gradient", "largest_logit", "massive_activation", "effective_rank", "norm"} <= set(looks[0])
    assert json.loads(json.dumps(looks)) == looks
    with_norms, without = (train.network(short, Training(way, 0)) for way in ("calm", "plain"))
    assert any("q_norm" in name for name, _ in with_norms.named_parameters())
    assert not any("q_norm" in name for name, _ in without.named_parameters())
