"""Cap: every layer's norm capped, so that the proved constant of the whole is what was asked for."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lisse.models import declare
from lisse.networks.bounds import of_module
from lisse.networks.cap import Cap
from lisse.networks.zoo import build, seeded


def dense() -> nn.Module:
    with seeded(0):
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))


def constant(model: nn.Module, *shape: int) -> float:
    return of_module(model, radius=1.0, input_shape=shape, metric="euclidean").value


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(self.act(self.first(x)))


def test_singular_values_above_the_cap_are_set_to_it_and_others_stay():
    model = dense()
    before = [part.weight.detach().double().clone() for part in model if isinstance(part, nn.Linear)]
    cap = Cap(model, torch.rand(3, 6), 0.2)
    assert cap.share == pytest.approx(0.2 ** (1 / 3), rel=0.03)
    assert cap.keep() <= 1.0
    for part, old in zip((part for part in model if isinstance(part, nn.Linear)), before, strict=True):
        expected = torch.linalg.svdvals(old).clamp_max(cap.share * 0.99)
        torch.testing.assert_close(torch.linalg.svdvals(part.weight.double()), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("goal", [0.1, 1.0, 7.0])
def test_the_whole_is_proved_to_be_what_was_asked_for(goal):
    model = dense()
    for part in model:
        if isinstance(part, nn.Linear):
            part.weight.data *= 20
    Cap(model, torch.rand(3, 6), goal).keep()
    assert 0.85 * goal < constant(model, 6) <= goal


def test_convolutions_residual_sums_pools_and_normalisation_inside_the_model():
    with seeded(0):
        network = nn.Sequential(
            nn.Conv2d(1, 2, 3, stride=2, padding=1), Residual(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 4)
        )
    model = declare(network, input_size=(1, 12, 12), mean=(0.5,), std=(0.25,))
    for part in model.parameters():
        part.data *= 5
    images = torch.rand(3, 1, 12, 12)
    cap = Cap(model, images, 2.0)
    assert cap.keep() > 1.0
    assert constant(model, 1, 12, 12) <= 2.0
    assert constant(model, 1, 12, 12) > 1.5
    weights = [part.detach().clone() for part in model.parameters()]
    assert cap.keep() <= 1.0
    for before, after in zip(weights, model.parameters(), strict=True):
        torch.testing.assert_close(before, after)


@pytest.mark.parametrize("goal", [0.05, 30.0])
def test_the_cap_of_a_chain_takes_few_bounds_and_that_of_sums_as_close_a_one(goal, monkeypatch):
    bounds = []
    monkeypatch.setattr("lisse.networks.cap.of_module", lambda *a, **k: bounds.append(of_module(*a, **k)) or bounds[-1])
    Cap(dense(), torch.rand(3, 6), goal)
    assert len(bounds) <= 5
    with seeded(0):
        model = nn.Sequential(Residual(), Residual(), nn.Flatten(), nn.Linear(72, 4))
    for part in model.parameters():
        part.data *= 100
    Cap(model, torch.rand(3, 2, 6, 6), goal).keep()
    assert 0.85 * goal < constant(model, 2, 6, 6) <= goal


def test_networks_of_the_zoo_are_converted_in_place():
    with seeded(0):
        model = build("lenet", in_channels=1, size=28)
    Cap(model, torch.rand(3, 1, 28, 28), 1.0).keep()
    assert constant(model, 1, 28, 28) <= 1.0


@pytest.mark.parametrize(
    ("model", "goal", "message"),
    [
        (nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), 1.0, "got BatchNorm1d at 1"),
        (nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4)), 1.0, "no normalisation layers"),
        (nn.Sequential(nn.ReLU(), nn.Tanh()), 1.0, "must have linear layers"),
        (dense(), 0.0, "constant must be positive and finite, got 0.0"),
        (dense(), math.inf, "constant must be positive and finite"),
        (Residual(), 0.5, "constant must be above 1, what is left of this network .* got 0.5"),
    ],
)
def test_what_cannot_be_kept_is_refused(model, goal, message):
    example = torch.rand(3, 2, 6, 6) if isinstance(model, Residual) else torch.rand(3, 6)
    with pytest.raises(ValueError, match=message):
        Cap(model, example, goal)
