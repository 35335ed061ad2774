from __future__ import annotations

import pytest
import torch
from torch import nn

import lisse
from lisse.data import Dataset
from lisse.instruments import Sensitivity
from lisse.maths.jacobian import effective_rank

X = torch.rand(120, 6, generator=torch.Generator().manual_seed(1))


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3))


def rows(profile, quantity, **at):
    return {row.layer: row for row in profile.rows if row.quantity == quantity and dict(row.at) == at}


def test_a_linear_network_has_the_norms_of_its_products():
    model = linear()
    profile = lisse.measure(model, X, Sensitivity(samples=20, points=7, tol=1e-5, max_iter=1000))
    product = torch.eye(6)
    for place, layer in enumerate(model):
        product = layer.weight.detach() @ product
        top = float(torch.linalg.matrix_norm(product, 2))
        alone = float(torch.linalg.matrix_norm(layer.weight.detach(), 2))
        for over in ("mean", "max"):
            row = rows(profile, "lipschitz_from_input", over=over)[str(place)]
            assert row.value == pytest.approx(top, rel=1e-4)
            assert (row.kind, row.n) == ("lower", 7)
            row = rows(profile, "lipschitz_from_previous", over=over)[str(place)]
            assert row.value == pytest.approx(alone, rel=1e-4)
    assert profile.notes == ()


def test_norm_and_rank_are_those_of_the_activations():
    model = linear()
    profile = lisse.measure(model, X, Sensitivity(samples=30, clouds=4, points=0))
    hidden = model[0](X).detach()
    norm = rows(profile, "norm")["0"]
    assert norm.value == pytest.approx(float(hidden.norm(dim=1).mean()), rel=1e-5)
    assert (norm.kind, norm.n) == ("estimate", 120)
    assert norm.low < norm.value < norm.high
    rank = rows(profile, "effective_rank")["0"]
    assert (rank.kind, rank.n) == ("estimate", 120)
    assert 1 <= rank.low < rank.value < rank.high
    assert rank.value == pytest.approx(float(effective_rank(hidden)), rel=0.15)  # clouds of 30 instead of 120
    assert {row.quantity for row in profile.rows} == {"norm", "effective_rank"}


def test_quick_is_exact_of_this_sample():
    profile = lisse.measure(linear(), X, Sensitivity(samples=50, quick=True))
    row = rows(profile, "effective_rank")["1"]
    hidden = linear()[:2](X).detach()
    assert row.low is None
    assert row.kind == "exact"
    assert row.n == 50
    assert row.value < float(effective_rank(hidden)) * 1.3
    assert rows(profile, "norm")["1"].kind == "exact"
    assert rows(profile, "lipschitz_from_input", over="mean")["1"].kind == "lower"
    assert rows(profile, "lipschitz_from_input", over="mean")["1"].n == 8


def test_too_few_samples_for_clouds_is_said():
    profile = lisse.measure(linear(), Dataset("d", X), Sensitivity(samples=100, points=0))
    assert rows(profile, "effective_rank")["1"].kind == "exact"
    assert "rests on 1 disjoint cloud(s) of 100 samples, not 5: d has 120 samples" in profile.notes[0]


def test_a_nonlinear_network_against_dense_jacobians():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    profile = lisse.measure(model, X, Sensitivity(samples=20, points=5, tol=1e-6, max_iter=300))
    dense = [
        float(torch.linalg.matrix_norm(torch.autograd.functional.jacobian(model[:4], x[None]).reshape(8, 6), 2))
        for x in X[:5]
    ]
    assert rows(profile, "lipschitz_from_input", over="mean")["3"].value == pytest.approx(sum(dense) / 5, rel=1e-3)
    assert rows(profile, "lipschitz_from_input", over="max")["3"].value == pytest.approx(max(dense), rel=1e-3)


def test_chains_bound_the_whole():
    """|J_L … J_1| ≤ Π |J_l| at each sample, hence for the maxima."""
    torch.manual_seed(1)
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(6, 6), nn.Tanh())])
    profile = lisse.measure(model, X, Sensitivity(samples=20, points=6, tol=1e-5, max_iter=1000))
    product = 1.0
    for layer, row in rows(profile, "lipschitz_from_previous", over="max").items():
        product *= row.value
        assert rows(profile, "lipschitz_from_input", over="max")[layer].value <= product * (1 + 1e-3)


def test_the_model_keeps_its_gradients_and_modes():
    model = linear().train()
    lisse.measure(model, X, Sensitivity(samples=20, points=4))
    assert all(weight.grad is None for weight in model.parameters())
    assert model.training


def test_batch_statistics_leave_jacobians_out_with_the_reason():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    profile = lisse.measure(model, X, Sensitivity(samples=20, points=4), statistics="batch")
    assert not rows(profile, "lipschitz_from_input", over="mean")
    assert "with batch statistics each sample acts on the others" in profile.notes[0]


class Padded(nn.Module):
    """A linear map per token that stretches padding a hundred times more: padding must not show."""

    def __init__(self):
        super().__init__()
        self.embedding, self.a, self.b = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, input_ids, attention_mask):
        x = self.a(self.embedding(input_ids)) * torch.where(attention_mask > 0, 1.0, 100.0)[..., None]
        return self.b(x)


def test_token_models_are_measured_from_their_embedding_without_padding():
    torch.manual_seed(0)
    model = Padded()
    mask = (torch.arange(6) < torch.randint(2, 6, (12,))[:, None]).long()
    data = {"input_ids": torch.randint(1, 9, (12, 6)) * mask, "attention_mask": mask}
    profile = lisse.measure(model, data, Sensitivity(samples=12, points=4, tol=1e-6, max_iter=500))
    assert list(rows(profile, "norm")) == ["stem", "a", "b"]
    assert any("token ids" in note for note in profile.notes)
    weights = model.b.weight.detach() @ model.a.weight.detach()
    found = rows(profile, "lipschitz_from_input", over="max")["b"].value
    assert found == pytest.approx(float(torch.linalg.matrix_norm(weights, 2)), rel=1e-3)


def test_a_transformer_has_second_derivatives():
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=30
    )
    model = transformers.BertModel(config).eval()
    assert model.config._attn_implementation == "sdpa"
    profile = lisse.measure(
        model, {"input_ids": torch.randint(1, 30, (12, 5))}, Sensitivity(samples=12, points=3, max_iter=5)
    )
    assert list(rows(profile, "lipschitz_from_input", over="max")) == ["encoder.layer.0", "encoder.layer.1"]


def test_a_layer_without_derivative_is_noted_and_the_others_measured():
    class Rounds(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            return self.b(self.a(x).detach().round())

    profile = lisse.measure(Rounds(), X, Sensitivity(samples=20, points=4))
    assert "a" in rows(profile, "lipschitz_from_input", over="max")
    assert "b" not in rows(profile, "lipschitz_from_input", over="max")
    assert "No derivative, so no Lipschitz constant, at b (input), b (previous)" in profile.notes[0]


def test_unsettled_iterations_are_counted():
    profile = lisse.measure(linear(), X, Sensitivity(samples=20, points=4, max_iter=1))
    assert "still moved by more than" in profile.notes[0]


def test_the_seed_and_the_cache_give_the_same_rows(tmp_path):
    options = Sensitivity(samples=20, points=4)
    first, second = (lisse.measure(linear(), X, options, seed=3, cache=tmp_path) for _ in range(2))
    fresh = lisse.measure(linear(), X, options, seed=3)
    other = lisse.measure(linear(), X, options, seed=4)
    assert first.parts == second.parts == fresh.parts
    assert first.parts != other.parts


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"samples": 1}, "samples must be at least 2, got 1"),
        ({"clouds": 0}, "clouds must be at least 1, got 0"),
        ({"points": -1}, "points must be at least 0, got -1"),
        ({"max_iter": 0}, "max_iter must be at least 1, got 0"),
        ({"level": 1.0}, r"level must lie in \(0, 1\), got 1.0"),
        ({"tol": 0.0}, "tol must be positive, got 0.0"),
    ],
)
def test_bad_options(options, match):
    with pytest.raises(ValueError, match=match):
        Sensitivity(**options)


def test_what_does_not_fit():
    one = lisse.measure(linear(), X[:1], Sensitivity())
    assert "at least 2 samples" in one.notes[0]
