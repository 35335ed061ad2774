"""The plans of the atlas name the papers' networks as the experiments do: the same specs, the same recipes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from lisse.sweeping import plan_of
from lisse.training import RECIPES
from lisse_experiments.diffeomorphisms import networks as diffeomorphisms
from lisse_experiments.isometry.mnist.networks import BETAS
from lisse_experiments.recipes.plan import settings
from lisse_experiments.topolip import networks as topolip

PLANS = Path(__file__).resolve().parents[2] / "benchmarks" / "plans"


def expected(family: str):
    if family.startswith("TopoLip"):
        return [(network.spec, network.recipe) for network in topolip.small()]
    if family == "diffeomorphisms' five on digits":
        return [(network.spec, network.recipe) for network in diffeomorphisms.for_digits()]
    if family.startswith("diffeomorphisms"):
        ways = [(item.spec, item.recipe) for item in diffeomorphisms.for_photographs() if "zoo:" in item.spec]
        options = diffeomorphisms.CIFAR_SMALL.options
        return [(f"{spec}?{options}", recipe) for spec, recipe in ways if "zoo:resnet" not in spec]
    if family.startswith("isometric"):
        penalties = [(f"isometric={beta:g}@head:in",) if beta else () for beta in BETAS]
        spec = "zoo:isometry?in_channels=1&size=28&mean=none"
        return [(spec, dataclasses.replace(RECIPES["isometry"], penalties=each)) for each in penalties]
    scale = settings("medium" if "mnist" in family else "smoke")
    return [(scale.network, recipe) for recipe in scale.recipes.values()]


@pytest.mark.parametrize(("file", "families"), [("papers", 3), ("papers_mnist", 2), ("papers_cifar10", 1)])
def test_a_plan_names_what_the_experiments_train(file, families, monkeypatch):
    monkeypatch.setattr("lisse.sweeping.plan.check_data", lambda spec, split: None)  # whose files need not be here
    members: dict[str, list] = {}
    for unit in plan_of(PLANS / f"{file}.toml").units:
        members.setdefault(unit.family, []).append((unit.model, unit.training.full_recipe))
    assert len(members) == families
    for family, networks in members.items():
        assert set(networks) == set(expected(family))
        if "lenet" in family:
            assert len(networks) == sum(settings("medium").seeds.values())
