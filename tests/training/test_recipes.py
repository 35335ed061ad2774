"""Recipes say what the papers say, and their schedules are torch's in closed form."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lisse.training import RECIPES, Recipe, recipes
from lisse.training.optimiser import rate_factor


def rates(recipe: Recipe, steps: int, per_epoch: int = 10) -> list[float]:
    return [recipe.lr * rate_factor(recipe, step, steps, per_epoch) for step in range(steps)]


def of_torch(make, steps: int, lr: float, *, every: int = 1) -> list[float]:
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    schedule = make(optimiser)
    found = []
    for step in range(steps):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        if (step + 1) % every == 0:
            schedule.step()
    return found


@pytest.mark.parametrize(("steps", "share"), [(100, 0.3), (37, 0.25), (1000, 0.5)])
def test_one_cycle_is_torchs(steps, share):
    recipe = Recipe(lr=0.4, schedule="onecycle", warmup=share)
    theirs = of_torch(
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.4, steps, pct_start=share, cycle_momentum=False), steps, 0.4
    )
    assert rates(recipe, steps) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("fraction", [1.0, 0.8, 0.5])
def test_cosine_is_torchs_also_beyond_its_lowest_point(fraction):
    recipe = Recipe(lr=0.1, schedule="cosine", warmup=0.0, cosine_fraction=fraction)
    theirs = of_torch(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, fraction * 100), 100, 0.1)
    assert rates(recipe, 100) == pytest.approx(theirs, rel=1e-6, abs=1e-9)


def test_exponential_is_torchs_and_changes_once_an_epoch():
    recipe = Recipe(lr=0.1, schedule="exponential", warmup=0.0, gamma=0.9)
    theirs = of_torch(lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9), 60, 0.1, every=10)
    assert rates(recipe, 60) == pytest.approx(theirs, rel=1e-9)


def test_the_warm_up_is_a_straight_line_to_the_peak():
    found = rates(Recipe(lr=1.0, schedule="constant", warmup=0.1), 100)
    assert found[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert set(found[10:]) == {1.0}


@given(
    schedule=st.sampled_from(["constant", "cosine", "onecycle", "exponential"]),
    steps=st.integers(1, 300),
    warmup=st.floats(0, 0.9),
)
def test_every_rate_lies_between_zero_and_the_peak(schedule, steps, warmup):
    recipe = Recipe(lr=0.3, schedule=schedule, warmup=warmup)
    found = rates(recipe, steps)
    assert all(-1e-12 <= rate <= 0.3 * (1 + 1e-12) and math.isfinite(rate) for rate in found)


def test_the_papers_recipes_are_the_papers():
    paper = RECIPES["sgd"]
    assert RECIPES["diffeomorphisms"] == dataclasses.replace(paper, deform=1.0)
    assert (paper.optimizer, paper.lr, paper.momentum, paper.weight_decay) == ("sgd", 0.1, 0.9, 5e-4)
    assert (paper.schedule, paper.cosine_fraction, paper.batch, paper.epochs) == ("cosine", 0.8, 128, 250)
    assert paper.crop == 4
    assert paper.flip
    transfer = RECIPES["diffeomorphisms-transfer"]
    assert (transfer.lr, transfer.head_lr, transfer.nesterov) == (1e-3, 1e-2, True)
    assert (transfer.weight_decay, transfer.schedule, transfer.gamma, transfer.epochs) == (
        1e-3, "exponential", 0.975, 100,
    )  # fmt: skip
    epochs = {name: RECIPES[f"topolip-{name}"].epochs for name in ("attention", "convolution", "resnet", "vit")}
    assert epochs == {"attention": 100, "convolution": 200, "resnet": 100, "vit": 200}
    iso, full = RECIPES["isometry"], RECIPES["isometry-full-batch"]
    assert (iso.optimizer, iso.lr, iso.batch, iso.epochs, iso.schedule) == ("adam", 1e-3, 100, 5, "constant")
    assert iso.penalties == full.penalties == ("isometric=0.1@head:in",)
    assert (full.optimizer, full.lr, full.batch, full.epochs) == ("adam", 1e-3, None, 10_000)


def test_every_paper_recipe_has_a_short_form_of_a_tenth_of_its_epochs():
    ours = {"default", "attacks", "corruptions", "augmix", "gradient-penalty"}
    ours |= {f"adversarial-{way}" for way in ("fgsm", "pgd", "trades")}
    long = [name for name in RECIPES if not name.endswith("-short") and name not in ours]
    assert len(long) == 11
    most = {name: RECIPES[name].epochs for name in long} | {
        "diffeomorphisms": 350,
        "sgd": 350,
    }  # 250 to 350 in the paper
    for name in long:
        assert RECIPES[f"{name}-short"].epochs == max(1, round(most[name] / 10))


def test_every_constant_is_listed_and_has_a_source():
    constants = [value for value in vars(recipes).values() if isinstance(value, Recipe)]
    assert all(any(value is listed for listed in RECIPES.values()) for value in constants)
    source = Path(recipes.__file__).read_text("utf-8")
    assert all(key in source for key in ("[petrini2021]", "[chen2024]", "[beshkov2022]", "[he2022]"))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"optimizer": "lion"}, "optimizer must be one of sgd, adam, adamw, got 'lion'"),
        ({"schedule": "step"}, "schedule must be one of"),
        ({"lr": 0.0}, "lr must be a number above 0, got 0.0"),
        ({"lr": float("nan")}, "lr must be a number"),
        ({"momentum": 1.0}, "momentum must be a number at least 0 and below 1"),
        ({"weight_decay": -1}, "weight_decay must"),
        ({"warmup": 1.0}, "warmup must"),
        ({"cosine_fraction": 0}, "cosine_fraction must"),
        ({"gamma": 0}, "gamma must"),
        ({"label_smoothing": 1.0}, "label_smoothing must"),
        ({"head_lr": -1.0}, "head_lr must"),
        ({"clip": 0}, "clip must"),
        ({"epochs": 0}, "epochs must be an integer of at least 1, got 0"),
        ({"batch": 0}, "batch must be an integer of at least 1"),
        ({"batch": 1.5}, "batch must be an integer"),
        ({"crop": -1}, "crop must be an integer of at least 0"),
        ({"nesterov": True}, "nesterov must go with SGD"),
    ],
)
def test_a_recipe_that_cannot_train_is_refused(changes, match):
    with pytest.raises(ValueError, match=match):
        dataclasses.replace(Recipe(), **changes)
