"""layer_bounds: the table of a network's blocks and layers from weights alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lisse.models import declare
from lisse.networks.bounds import layer_bounds, of_module, operator_norm
from lisse.networks.bounds.layers import WHOLE_NETWORK
from lisse.networks.zoo import build, seeded
from lisse.progress import Event


class Residual(nn.Module):
    def __init__(self, channels: int, kind: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.act = kind()
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(self.act(self.first(x)))


def small_network(kind: type[nn.Module] = nn.ReLU) -> nn.Module:
    with seeded(0):
        return nn.Sequential(
            nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.BatchNorm2d(2), Residual(2, kind), Residual(2, kind),
            nn.AvgPool2d(2), nn.Flatten(), nn.Linear(18, 4),
        ).eval()  # fmt: skip


IMAGES = torch.zeros(3, 1, 12, 12)


def test_blocks_layers_beside_them_and_the_network():
    network = small_network()
    rows = layer_bounds(network, IMAGES)
    assert [(row.name, row.shape) for row in rows] == [
        ("0", (1, 12, 12)), ("1", (2, 6, 6)), ("2", (2, 6, 6)), ("3", (2, 6, 6)), ("4", (2, 6, 6)), ("6", (18,)),
        (WHOLE_NETWORK, (1, 12, 12)),
    ]  # fmt: skip
    by_name = {row.name: row for row in rows}
    for name, shape in (("0", (1, 12, 12)), ("2", (2, 6, 6))):
        expected = of_module(network.get_submodule(name), radius=1.0, input_shape=shape)
        assert by_name[name].bound == expected
    # Layers multiply; the network is no tighter and no looser than its parts.
    assert sum(row.bound.log10 for row in rows[:-1]) == pytest.approx(rows[-1].bound.log10)


def test_linear_layers_lie_between_two_ends():
    network = small_network()
    rows = {row.name: row for row in layer_bounds(network, IMAGES)}
    for name in ("0", "1", "4", "6"):
        exact = operator_norm(network.get_submodule(name), rows[name].shape, tol=1e-8)
        assert rows[name].lower <= exact.upper
        assert exact.lower <= rows[name].bound.value <= exact.upper * 1.002
        assert rows[name].lower == pytest.approx(rows[name].bound.value, rel=2e-3)
    assert rows["2"].lower is None


@pytest.mark.parametrize("kind", [nn.ReLU, nn.GELU, nn.Tanh])
def test_no_search_exceeds_the_bound(kind):
    """An adversary: gradient ascent of the stretch of a small difference, from several starts."""
    network = small_network(kind).double()
    whole = layer_bounds(network.float(), IMAGES)[-1].bound
    network.double()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 1, 12, 12, generator=generator, dtype=torch.float64, requires_grad=True)
    shift = torch.randn(8, 1, 12, 12, generator=generator, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([x, shift], 0.05)
    for _ in range(60):
        ratios = (network(x + shift) - network(x)).norm(dim=1) / shift.flatten(1).norm(dim=1)
        optimiser.zero_grad()
        (-ratios.log().sum()).backward()
        optimiser.step()
    assert float(ratios.detach().max()) <= whole.value
    assert float(ratios.detach().max()) > 0.02 * whole.value  # the search is worth something


def test_a_chosen_layer_is_listed_alone():
    (row,) = layer_bounds(small_network(), IMAGES, layers=["2.first"])
    assert (row.name, row.kind) == ("2.first", "Conv2d")
    with pytest.raises(ValueError, match="layers must match a layer's name, got 'nothing'"):
        layer_bounds(small_network(), IMAGES, layers=["nothing"])


def test_normalisation_inside_the_model_counts():
    network = declare(small_network(), input_size=(1, 12, 12), mean=(0.5,), std=(0.25,))
    rows = layer_bounds(network, IMAGES)
    bare = layer_bounds(small_network(), IMAGES)[-1]
    assert rows[-1].bound.value == pytest.approx(4 * bare.bound.value)


def test_radius_and_variance_reach_attention_and_layer_norms():
    with seeded(0):
        layers = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True) for _ in range(2)]
    network = nn.Sequential(*layers).eval()
    tokens = torch.zeros(3, 5, 8)
    plain, near, calm = (
        layer_bounds(network, tokens, **options)[-1].bound
        for options in ({}, {"radius": 0.1}, {"radius": 1.0, "variance": 0.5})
    )
    assert near.log10 <= plain.log10
    assert calm.log10 < plain.log10
    assert [str(condition) for condition in calm.hypotheses] == [
        "inputs have norm at most 1: holds (given)",
        "tokens have variance at least 0.5 before each layer norm: holds (given)",
    ]
    measures = layer_bounds(network, tokens, metric="wasserstein")[0].bound
    assert measures.log10 > plain.log10 / 2
    assert measures != layer_bounds(network, tokens)[0].bound


def test_what_has_no_bound_has_its_reason():
    class Squares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x) ** 2)

    *blocks, whole = layer_bounds(nn.Sequential(Squares(), Squares()), torch.zeros(3, 4))
    assert all(row.bound is None and "'pow'" in row.reason for row in (*blocks, whole))
    names = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(8, 2))
    ids = layer_bounds(names, torch.zeros(3, 2, dtype=torch.long))
    assert ids[-1].reason == "what enters it is no tensor of numbers, one row a sample"
    assert {row.name: row.bound is not None for row in ids}["2"]


def test_progress_and_models_of_the_zoo():
    events: list[Event] = []
    rows = layer_bounds(build("lenet"), torch.zeros(3, 3, 32, 32), progress=events.append)
    assert [event.done for event in events] == list(range(1, len(rows) + 1))
    assert events[0].total == len(rows)
    assert math.isfinite(rows[-1].bound.value)


def test_a_transformer_of_words_is_bounded_from_its_first_block_on():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=31, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=20
    )
    with seeded(0):
        network = transformers.BertModel(config, add_pooling_layer=False).eval()
    row = layer_bounds(network, torch.randint(0, 31, (3, 5)), metric="worst_token")[-1]
    assert (row.name, row.shape) == (WHOLE_NETWORK, (5, 16))
    assert row.bound is not None
    assert row.bound.log10 == pytest.approx(of_module(network, radius=1.0, metric="worst_token").log10)
    assert any("enter the first block" in str(condition) for condition in row.bound.hypotheses)
