"""Lipschitz: blocks between what their weights promise and what was measured."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import lisse
from lisse.instruments import ALL, Lipschitz
from lisse.networks.bounds import layer_bounds
from lisse.networks.zoo import build, seeded


def points(*shape: int, n: int = 6) -> lisse.Dataset:
    return lisse.Dataset("points", torch.randn(n, *shape, generator=torch.Generator().manual_seed(0)))


def rows_of(model: nn.Module, data: lisse.Dataset, **options: float) -> dict[tuple[str, str | None], lisse.Row]:
    profile = lisse.measure(model.eval(), data, Lipschitz(**options))
    return {(row.quantity, row.layer): row for row in profile.rows}


def test_a_linear_network_is_exact_on_both_sides():
    with seeded(0):
        network = nn.Sequential(nn.Linear(5, 4, bias=False), nn.Linear(4, 3, bias=False)).double()
    rows = rows_of(network, points(5), tol=1e-6)
    for index, layer in enumerate(network):
        exact = math.log10(float(torch.linalg.matrix_norm(layer.weight.detach(), 2)))
        assert rows["log_block_stretch", str(index)].value == pytest.approx(exact, abs=1e-6)
        assert rows["log_weights_bound", str(index)].value == pytest.approx(exact, abs=1e-3)
    product = float(torch.linalg.matrix_norm((network[1].weight @ network[0].weight).detach(), 2))
    assert rows["log_block_stretch", None].value == pytest.approx(math.log10(product), abs=1e-6)


def test_both_ends_stand_beside_each_other_in_every_block():
    with seeded(0):
        network = build("resnet20").eval()
    rows = rows_of(network, points(3, 32, 32, n=3), points=2, max_iter=4)
    bounds = {row.name: row for row in layer_bounds(network, torch.zeros(3, 3, 32, 32))}
    blocks = [name for name in bounds if name.startswith("layer")]
    assert len(blocks) == 9
    for name in blocks:
        upper, lower, room = (rows[key, name] for key in ("log_weights_bound", "log_block_stretch", "log_room"))
        assert (upper.kind, lower.kind, room.kind, lower.n, upper.n) == ("upper", "lower", "upper", 2, 0)
        assert lower.value < upper.value == bounds[name].bound.log10
        assert room.value == pytest.approx(upper.value - lower.value, abs=1e-6)


def test_a_vacuous_bound_is_left_out_with_its_reason():
    with seeded(0):
        network = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(3)))
    profile = lisse.measure(network.eval(), points(4), Lipschitz(vacuous=1e-3))
    assert None not in [row.layer for row in profile.rows if row.quantity == "log_weights_bound"]
    assert any("the constants of its layers multiply" in note for note in profile.notes)
    assert ("log_weights_bound", None) in rows_of(network, points(4))


def test_a_transformer_is_bounded_for_tokens_as_large_as_those_seen():
    with seeded(0):
        network = build("vit_small", width=12, heads=2, depth=2, size=8, in_channels=1)
    data = points(1, 8, 8)
    notes = lisse.measure(network.eval(), data, Lipschitz(vacuous=0.1)).notes
    assert any("its norm divides by a deviation" in note for note in notes)
    rows = rows_of(network, data, variance=0.05, vacuous=12.0)
    assert all(rows["log_room", f"blocks.{index}"].value > 0 for index in range(2))


def test_it_is_offered_and_says_what_has_no_bound():
    class Squares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x) ** 2)

    assert Lipschitz in ALL
    profile = lisse.measure(nn.Sequential(Squares(), Squares()).eval(), points(4), Lipschitz())
    assert {row.quantity for row in profile.rows} == {"log_block_stretch"}
    assert any("'pow'" in note for note in profile.notes)
