"""Recipe.lipschitz: a network whose margins are certificates."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

import lisse
from lisse.networks.bounds import lipschitz_radius, of_module
from lisse.networks.zoo import seeded
from lisse.training import Recipe

RECIPE = Recipe(epochs=6, batch=20, lr=0.05, lipschitz=1.0)


def rings(n: int = 100) -> lisse.Dataset:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 3
    points = torch.randn(n, 4, generator=generator) + 3 * torch.eye(4)[labels]
    return lisse.Dataset("points", points, labels)


def network() -> nn.Module:
    with seeded(0):
        return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


def constant(model: nn.Module) -> float:
    return of_module(model, radius=1.0, input_shape=(4,), metric="euclidean").value


def test_a_trained_network_is_no_steeper_than_was_asked_and_certifies_more():
    kept, plain, data = network(), network(), rings()
    lisse.train(kept, data, recipe=RECIPE)
    lisse.train(plain, data, recipe=dataclasses.replace(RECIPE, lipschitz=None))
    assert constant(kept) <= 1.0 < 2.0 < constant(plain)
    radii = [lipschitz_radius(model.eval(), data.inputs, data.targets) for model in (kept, plain)]
    assert float(radii[0].mean()) > float(radii[1].mean()) > 0


def test_a_run_that_was_stopped_goes_on_to_the_same_weights(tmp_path: Path):
    class Stop(Exception):
        pass

    def stop(moment: lisse.training.Moment) -> None:
        if moment.step == 7:
            raise Stop

    whole, parts = network(), network()
    lisse.train(whole, rings(), recipe=RECIPE, out=tmp_path / "whole")
    with pytest.raises(Stop):
        lisse.train(parts, rings(), recipe=RECIPE, out=tmp_path / "parts", callbacks=[stop], checkpoint_seconds=0)
    again = network()
    lisse.train(again, rings(), recipe=RECIPE, out=tmp_path / "parts", checkpoint_seconds=0)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))


def test_recipes_and_networks_that_cannot_are_refused():
    with pytest.raises(ValueError, match="lipschitz must be a number above 0, got 0"):
        Recipe(lipschitz=0)
    norms = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    with pytest.raises(ValueError, match="got BatchNorm1d at 1"):
        lisse.train(norms, rings(), recipe=RECIPE)
