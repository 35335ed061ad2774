"""Searches that try to leave the bounds in a ball: ascents and corners, on networks made to break them."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lisse.networks.bounds import ball_bounds, certified_radius, tangent
from lisse.networks.zoo import seeded

ACTIVATIONS = [nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.Softplus]
SHAPES = ["dense", "deep", "pooled", "residual"]
WEIGHTS = ["plain", "steep", "bfloat16", "underflowing", "sparse", "huge"]


class Residual(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.act, self.end = nn.Conv2d(4, 4, 3, padding=1, bias=False), kind(), kind()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.end(x + self.second(self.act(self.norm(self.first(x)))))


def drawn(index: int, *choices: list) -> list:
    """One of each, by index: neighbours differ in all of them."""
    return [choice[index * step % len(choice)] for choice, step in zip(choices, (1, 3, 5, 7, 11, 13), strict=False)]


def network_of(shape: str, kind: type[nn.Module], weights: str, seed: int) -> nn.Module:
    with seeded(seed):
        if shape == "dense":
            parts = [nn.Flatten(), nn.Linear(72, 20), kind(), nn.Linear(20, 20), kind(), nn.Linear(20, 3)]
        elif shape == "deep":
            inner = [part for _ in range(8) for part in (kind(), nn.Linear(12, 12))]
            parts = [nn.Flatten(), nn.Linear(72, 12), *inner, kind(), nn.Linear(12, 3)]
        elif shape == "pooled":
            pool = nn.MaxPool2d(2 + seed % 2, 1 + seed % 3 % 2)
            parts = [nn.Conv2d(2, 4, 3, padding=1), kind(), pool, nn.Conv2d(4, 4, 2), kind(), nn.AdaptiveAvgPool2d(1)]
            parts += [nn.Flatten(), nn.Linear(4, 3)]
        else:
            parts = [nn.Conv2d(2, 4, 3, padding=1), Residual(kind), nn.MaxPool2d(2), Residual(kind), nn.Flatten()]
            parts += [nn.Linear(36, 3)]
        network = nn.Sequential(*parts)
        network(torch.randn(32, 2, 6, 6))  # running statistics
        matrices = [weight.data for weight in network.parameters() if weight.ndim > 1]
        if weights == "steep":
            for matrix in matrices:
                matrix *= 10 ** (torch.rand(()) * 2)
        elif weights == "bfloat16":
            network = network.bfloat16().float()
        elif weights == "underflowing":
            network = network.double()
            matrices = [weight.data for weight in network.parameters() if weight.ndim > 1]
            matrices[0] *= 1e-308
            matrices[-1] *= 1e290
        elif weights == "sparse":
            for weight in network.parameters():
                weight.data *= torch.rand(weight.shape) < 0.5
        elif weights == "huge":
            matrices[-1] *= 1e20
    return network.eval()


def searches(start: int, stop: int) -> None:
    for index in range(start, stop):
        search(index)


def search(index: int) -> None:
    kind, shape, weights, norm, refine, size = drawn(
        index, ACTIVATIONS, SHAPES, WEIGHTS, ["l2", "linf"], [2000, 50, 3, 0], [0.0, 0.01, 1.0, 30.0]
    )
    generator = torch.Generator().manual_seed(index)
    network = network_of(shape, kind, weights, index)
    x = size * torch.randn(2, 2, 6, 6, generator=generator)
    eps = float(10 ** (11 * torch.rand((), generator=generator) - 10))
    lower, upper = ball_bounds(network, x, eps, norm=norm, refine=refine)
    network, x = network.double(), x.double()

    def inside(shift: torch.Tensor) -> torch.Tensor:
        if norm == "linf":
            return x + shift.clamp(-eps, eps)
        sizes = shift.flatten(1).norm(dim=1).clamp_min(1e-300)
        return x + shift * (eps / sizes).clamp_max(1).reshape(-1, 1, 1, 1)

    for trial in range(6):
        shift = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        point = inside(eps * (shift.sign() if norm == "linf" else F.normalize(shift.flatten(1)).reshape(shift.shape)))
        for step in range(8):
            output = network(point.requires_grad_())
            beyond = torch.maximum(lower - output, output - upper).amax()
            # The forward here rounds too.
            assert float(beyond.detach()) <= 1e-10 * float(output.detach().abs().max()), (
                index,
                shape,
                kind,
                weights,
                norm,
                eps,
                refine,
            )
            (gradient,) = torch.autograd.grad((-1) ** trial * output[:, trial % 3].sum(), point)
            along = gradient.sign() if norm == "linf" else F.normalize(gradient.flatten(1)).reshape(shift.shape)
            point = inside(point.detach() - x + eps * (1.0 if step < 2 else 0.3) * along)


@pytest.mark.parametrize("index", range(24))
def test_searches_do_not_leave_the_bounds(index):
    search(index)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(6))
def test_many_searches_do_not_leave_the_bounds(block, monkeypatch):
    if block % 2:
        monkeypatch.setattr(tangent, "_GROWN", -1.0)  # what rounding leaves goes along the tangent everywhere
    count = int(os.environ.get("LISSE_DRAWS", "50"))
    searches(1000 + block * count, 1000 + (block + 1) * count)


def test_the_search_sees_departures_that_are_left_out(monkeypatch):
    def half(self, slope, low, high):
        bottom, top = departure(self, slope, low, high)
        return bottom / 4, top / 4

    departure = tangent.Node.departure
    monkeypatch.setattr(tangent.Node, "departure", half)
    with pytest.raises(AssertionError):
        searches(0, 24)


class Spread(nn.Module):
    """A sum in which one entry goes to both logits."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(1, 2)

    def forward(self, x):
        return self.fc(x) + x


def test_a_sum_that_spreads_one_part_over_the_other_is_refused():
    with pytest.raises(TypeError, match="must be of one shape"):
        certified_radius(Spread(), torch.tensor([[0.9]]), torch.tensor([0]), norm="linf", largest=1.0)


def test_an_average_with_a_negative_divisor_is_refused():
    network = nn.Sequential(nn.AvgPool2d(2, divisor_override=-1), nn.Flatten())
    with pytest.raises(TypeError, match="positive divisor"):
        ball_bounds(network, torch.ones(1, 2, 2, 2), 1.0, norm="linf")


@pytest.mark.parametrize("refine", [0, 1024])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("sizes", [(1e-170,), (1e150, 1e150, 1e-165, 1e-165), (1e-80, 1e-80, 1e-10)])
def test_what_underflows_on_the_way_back_certifies_nothing_it_should_not(sizes, norm, refine):
    """Two logits ±s(x₁ − x₂): half an ℓ∞ distance, and its ℓ2 one, to where the answer changes."""
    difference = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    layers = [nn.Linear(2, 2, bias=False, dtype=torch.float64) for _ in sizes]
    for index, (layer, size) in enumerate(zip(layers, sizes, strict=True)):
        layer.weight.data = (difference if index == 0 else torch.eye(2, dtype=torch.float64)) * size
    x = torch.tensor([[1.0, 0.8]], dtype=torch.float64)
    radius = certified_radius(nn.Sequential(*layers), x, torch.tensor([0]), norm=norm, largest=10.0, refine=refine)
    assert float(radius) <= (0.1 if norm == "linf" else 0.2 / 2**0.5) * (1 + 1e-9)
