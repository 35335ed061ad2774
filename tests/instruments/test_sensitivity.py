from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import lisse
from lisse.data import Dataset
from lisse.instruments import Sensitivity, sensitivity
from lisse.instruments.sensitivity.spreads import layer_spreads
from lisse.maths.jacobian import effective_rank

X = torch.rand(120, 6, generator=torch.Generator().manual_seed(1))


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3))


def rows(profile, quantity, **at):
    return {row.layer: row for row in profile.rows if row.quantity == quantity and dict(row.at) == at}


def test_a_linear_network_has_the_norms_of_its_products():
    model = linear()
    profile = lisse.measure(model, X, Sensitivity(samples=20, points=9, tol=1e-5))
    product = torch.eye(6)
    for place, layer in enumerate(model):
        product = layer.weight.detach() @ product
        top = float(torch.linalg.matrix_norm(product, 2))
        alone = float(torch.linalg.matrix_norm(layer.weight.detach(), 2))
        for over in ("mean", "max"):
            row = rows(profile, "lipschitz_from_input", over=over)[str(place)]
            assert row.value == pytest.approx(top, rel=1e-4)
            assert (row.kind, row.n) == ("lower", 9)
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
    rank = rows(profile, "effective_rank", cloud=30)["0"]
    assert (rank.kind, rank.n) == ("estimate", 120)
    assert 1 <= rank.low < rank.value < rank.high
    assert rank.value == pytest.approx(float(effective_rank(hidden)), rel=0.15)  # clouds of 30 instead of 120
    assert {row.quantity for row in profile.rows} == {"norm", "effective_rank"}


def test_one_cloud_is_exact_of_this_sample():
    profile = lisse.measure(linear(), X, Sensitivity(samples=50, clouds=1, points=8))
    row = rows(profile, "effective_rank", cloud=50)["1"]
    hidden = linear()[:2](X).detach()
    assert row.low is None
    assert row.kind == "exact"
    assert row.n == 50
    assert row.value < float(effective_rank(hidden)) * 1.3
    assert rows(profile, "norm")["1"].kind == "estimate"
    assert rows(profile, "lipschitz_from_input", over="mean")["1"].kind == "lower"
    assert rows(profile, "lipschitz_from_input", over="mean")["1"].n == 8


def test_clouds_are_as_large_as_their_number_allows():
    profile = lisse.measure(linear(), Dataset("d", X), Sensitivity(samples=100, points=0))
    assert rows(profile, "effective_rank", cloud=24)["1"].kind == "estimate"  # five clouds out of 120 samples
    few = lisse.measure(linear(), Dataset("d", X[:60]), Sensitivity(samples=40, points=0))
    assert rows(few, "effective_rank", cloud=40)["1"].kind == "exact"
    assert "rests on 1 disjoint cloud(s) of 40 samples, not 5: there are 60 samples" in few.notes[0]


def test_a_nonlinear_network_against_dense_jacobians():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    profile = lisse.measure(model, X, Sensitivity(samples=20, points=5, tol=1e-5), order="given")
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
    profile = lisse.measure(model, X, Sensitivity(samples=20, points=6, tol=1e-5))
    product = 1.0
    for layer, row in rows(profile, "lipschitz_from_previous", over="max").items():
        product *= row.value
        assert rows(profile, "lipschitz_from_input", over="max")[layer].value <= product * (1 + 1e-3)


def test_the_model_keeps_its_gradients_and_modes():
    model = linear().train()
    lisse.measure(model, X, Sensitivity(samples=20, points=4))
    assert all(weight.grad is None for weight in model.parameters())
    assert model.training


@pytest.mark.parametrize("kind", ["batch statistics", "mean over the batch", "untracked norm"])
def test_networks_that_mix_samples_have_no_constant_and_say_why(kind):
    class Mixes(nn.Module):
        def forward(self, x):
            return x + 3 * x.mean(0)

    torch.manual_seed(0)
    norm = {
        "batch statistics": nn.BatchNorm1d(6),
        "mean over the batch": Mixes(),
        "untracked norm": nn.BatchNorm1d(6, track_running_stats=False),
    }[kind]
    model = nn.Sequential(nn.Linear(6, 6), norm, nn.Linear(6, 3))
    statistics = "batch" if kind == "batch statistics" else "running"
    profile = lisse.measure(model, X, Sensitivity(samples=20, points=4), statistics=statistics)
    assert not rows(profile, "lipschitz_from_input", over="mean")
    assert "changes with the samples beside it" in profile.notes[0]
    kept = lisse.measure(nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)), X, Sensitivity(samples=20, points=4))
    assert rows(kept, "lipschitz_from_input", over="mean")


def test_a_residual_block_is_not_taken_for_the_identity():
    """J = I + g u uᵀ: a power iteration rests on a plateau at 1 and calls it converged; the truth is 1 + g."""

    class Residual(nn.Module):
        def __init__(self, d, g):
            super().__init__()
            self.a, self.b = nn.Linear(d, 1, bias=False), nn.Linear(1, d, bias=False)
            nn.init.constant_(self.a.weight, d**-0.5)
            nn.init.constant_(self.b.weight, g * d**-0.5)

        def forward(self, x):
            return x + self.b(self.a(x))

    model = nn.Sequential(Residual(4096, 1.0), Residual(4096, 0.3))
    profile = lisse.measure(model, torch.randn(20, 4096), Sensitivity(samples=20, points=8))
    assert rows(profile, "lipschitz_from_previous", over="mean")["0"].value == pytest.approx(2.0, rel=1e-3)
    assert rows(profile, "lipschitz_from_previous", over="mean")["1"].value == pytest.approx(1.3, rel=1e-3)


def test_the_default_tolerance_is_close_to_the_truth():
    from lisse.networks import zoo

    model = zoo.build("fc4", in_channels=1, size=4).eval()
    x = torch.rand(40, 1, 4, 4)
    loose = lisse.measure(model, x, Sensitivity(samples=20, points=8))
    tight = lisse.measure(model, x, Sensitivity(samples=20, points=8, tol=1e-6, max_iter=100))
    for quantity in ("lipschitz_from_input", "lipschitz_from_previous"):
        for layer, row in rows(loose, quantity, over="mean").items():
            assert row.value == pytest.approx(rows(tight, quantity, over="mean")[layer].value, rel=0.01)


@pytest.mark.parametrize("batch", [3, 100])
def test_neither_the_batch_nor_the_memory_changes_a_constant(batch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 4)).double()
    options = Sensitivity(samples=20, points=10, tol=0.2, max_iter=8)  # loose: steps differ from sample to sample
    one = lisse.measure(model, X.double(), options, batch=100)
    other = lisse.measure(model, X.double(), options, batch=batch, memory="30kB")
    for ours, theirs in zip(one.rows, other.rows, strict=True):
        assert ours.value == pytest.approx(theirs.value, rel=1e-9)


def test_chosen_layers_are_still_measured_from_the_input():
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(6, 6), nn.Tanh())])
    whole = lisse.measure(model, X, Sensitivity(samples=20, points=8))
    some = lisse.measure(model, X, Sensitivity(samples=20, points=8), layers=["3", "7"])
    assert some.notes == ()
    for layer in ("3", "7"):
        expected = rows(whole, "lipschitz_from_input", over="max")[layer].value
        assert rows(some, "lipschitz_from_input", over="max")[layer].value == pytest.approx(expected, rel=1e-3)


def test_data_and_buffers_are_not_changed_by_a_network_that_writes_in_place():
    class Rude(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            x.sub_(0.5).div_(0.25)
            self.calls += 1
            return self.b(torch.relu_(self.a(x)))

    model, x = Rude(), X.clone()
    profile = lisse.measure(model, x, Sensitivity(samples=20, points=8, tol=1e-5))
    assert torch.equal(x, X)
    assert model.calls == 0

    class Polite(Rude):
        def forward(self, x):
            return self.b(torch.relu(self.a((x - 0.5) / 0.25)))

    polite = Polite()
    polite.load_state_dict(model.state_dict())
    expected = lisse.measure(polite, x, Sensitivity(samples=20, points=8, tol=1e-5))
    for over in ("mean", "max"):
        ours, theirs = (rows(p, "lipschitz_from_input", over=over)["b"].value for p in (profile, expected))
        assert ours == pytest.approx(theirs, rel=1e-3)


def test_a_layer_of_width_one_has_rank_one():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 1))
    for seed in range(6):
        profile = lisse.measure(model, X, Sensitivity(samples=8, clouds=2, points=0), seed=seed)
        row = rows(profile, "effective_rank", cloud=8)["2"]
        assert row.low <= row.value <= row.high
        assert row.value == pytest.approx(1)


def test_rounding_does_not_put_a_rank_under_one(monkeypatch):
    ranks = itertools.cycle([1.0, 1 - 2e-16, 1 - 2e-16])
    monkeypatch.setattr(
        sensitivity, "effective_rank", lambda points, rows: torch.tensor(next(ranks), dtype=torch.float64)
    )
    profile = lisse.measure(linear(), X, Sensitivity(samples=8, clouds=3, points=0))
    for row in rows(profile, "effective_rank", cloud=8).values():
        assert 1 <= row.low <= row.value <= row.high


def test_half_precision_models_and_other_precisions_of_data(tmp_path):
    model = linear().bfloat16()
    profile = lisse.measure(model, X.double(), Sensitivity(samples=20, points=8), cache=tmp_path)
    again = lisse.measure(model, X.double(), Sensitivity(samples=20, points=8), cache=tmp_path)
    assert profile.rows == again.rows
    exact = lisse.measure(linear(), X, Sensitivity(samples=20, points=8))
    for quantity in ("lipschitz_from_input", "lipschitz_from_previous"):
        ours, theirs = (rows(p, quantity, over="mean")["2"].value for p in (profile, exact))
        assert ours == pytest.approx(theirs, rel=0.05)


def test_memory_is_bounded_also_while_measuring():
    import os
    import subprocess
    import sys

    code = """
import torch, lisse
from torch import nn
from lisse.instruments import Sensitivity
torch.set_num_threads(1)
class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 1))
    def forward(self, x):
        return (x * self.weight).expand(-1, 2**18).contiguous()
def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) / 1024
x = torch.rand(300, 1)
lisse.measure(nn.Sequential(nn.Linear(1, 1)), x, Sensitivity(samples=30, points=0))
before = peak()
lisse.measure(nn.Sequential(Wide()), x, Sensitivity(samples=100, clouds=3, points=0), memory="20MB", batch=20)
print(peak() - before)
"""
    if not os.path.exists("/proc/self/status"):
        pytest.skip("needs Linux's record of peak memory")
    # What is freed goes back to the system: it is what we hold that counts, not what the allocator keeps for later.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_ARENA_MAX": "1"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    # 300 MiB of activations; a batch is 20 MiB, and the mapped file counts while it is read: 300 MiB
    assert float(run.stdout) < 20 + 20 + 300 + 100


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
    profile = lisse.measure(model, data, Sensitivity(samples=12, points=8, tol=1e-5))
    assert list(rows(profile, "norm")) == ["stem", "a", "b"]
    assert any("holds integers" in note for note in profile.notes)
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
    assert any("No Lipschitz constant, at b" in n or "at b (input), b (previous)" in n for n in profile.notes)


def test_an_operation_without_second_derivative_is_noted_not_zero():
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad):
            return grad * 2

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            return self.b(Once.apply(self.a(x)))

    profile = lisse.measure(Net(), X, Sensitivity(samples=20, points=8))
    assert list(rows(profile, "lipschitz_from_input", over="max")) == ["a"]
    assert any("at b (input), b (previous)" in note for note in profile.notes)


def test_unsettled_iterations_are_counted():
    profile = lisse.measure(linear(), X, Sensitivity(samples=20, points=8, max_iter=1, tol=1e-4))
    assert "had a residual over 0.0001 after 1 steps" in profile.notes[0]


def test_few_points_have_no_interval_and_say_so():
    profile = lisse.measure(linear(), X, Sensitivity(samples=20, points=4))
    assert rows(profile, "lipschitz_from_input", over="mean")["1"].low is None
    assert profile.notes == ("4 points are too few for an interval of the local Lipschitz constants.",)


def test_the_seed_and_the_cache_give_the_same_rows(tmp_path):
    options = Sensitivity(samples=20, points=4)
    first, second = (lisse.measure(linear(), X, options, seed=3, cache=tmp_path) for _ in range(2))
    fresh = lisse.measure(linear(), X, options, seed=3)
    other = lisse.measure(linear(), X, options, seed=4)
    assert first.rows == second.rows == fresh.rows
    assert first.parts != other.parts


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"samples": 1}, "samples must be a whole number of at least 2, got 1"),
        ({"clouds": 0}, "clouds must be a whole number of at least 1, got 0"),
        ({"points": -1}, "points must be a whole number of at least 0, got -1"),
        ({"max_iter": 0}, "max_iter must be a whole number of at least 1, got 0"),
        ({"level": 1.0}, r"level must lie in \(0, 1\), got 1.0"),
        ({"tol": 0.0}, "tol must be positive and finite, got 0.0"),
    ],
)
def test_bad_options(options, match):
    with pytest.raises(ValueError, match=match):
        Sensitivity(**options)


def test_what_does_not_fit():
    one = lisse.measure(linear(), X[:1], Sensitivity())
    assert "at least 2 samples" in one.notes[0]
    tokens = lisse.measure(linear(), X, Sensitivity(), readout="tokens")
    assert "every token a row of its own" in tokens.notes[0]


# -- what judges -------------------------------------------------------------------------------------------------------


def plain(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def labelled(n: int = 600) -> Dataset:
    points = torch.randn(n, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return Dataset("toy", points, torch.arange(n) % 3)


def test_stretch_is_relative_to_that_of_the_data():
    model = linear()
    profile = lisse.measure(model, X, Sensitivity(samples=120, points=9, tol=1e-6))
    product = torch.eye(6)
    for place, layer in enumerate(model):
        product = layer.weight.detach() @ product
        clouds = X, X @ product.T
        unit = [float((cloud - cloud.mean(0)).square().sum(1).mean().sqrt()) for cloud in clouds]
        expected = float(torch.linalg.matrix_norm(product, 2)) * unit[0] / unit[1]
        row = rows(profile, "relative_stretch")[str(place)]
        assert row.value == pytest.approx(expected, rel=1e-4)
        assert (row.kind, row.n) == ("lower", 120 if place == 1 else 9)  # the last block at more samples
    array = profile["sensitivity"].arrays["samples/relative_stretch"]
    assert array.shape == (120,)
    assert array.mean() == pytest.approx(rows(profile, "relative_stretch")["1"].value)


def test_relative_stretch_rests_on_samples_drawn_over_the_data():
    model, data = plain(), labelled()
    options = Sensitivity(samples=50, clouds=5, points=8, draws=40, tol=1e-8)
    profile = lisse.measure(model, data, options, order="given")
    drawn = data.inputs[:250]
    norms = torch.stack([
        torch.linalg.matrix_norm(torch.autograd.functional.jacobian(model[:4], x), 2) for x in drawn[:40]
    ])  # fmt: skip
    with torch.no_grad():
        unit = [float((c - c.mean(0)).square().sum(1).mean().sqrt()) for c in (drawn, model[:4](drawn))]
    row = rows(profile, "relative_stretch")["3"]
    np.testing.assert_allclose(
        profile["sensitivity"].arrays["samples/relative_stretch"], norms * unit[0] / unit[1], rtol=1e-5
    )
    assert (row.n, row.value) == (40, pytest.approx(float(norms.mean()) * unit[0] / unit[1], rel=1e-5))
    assert row.low < row.value < row.high
    few = lisse.measure(model, data, options, layers=["3", "4"], order="given")  # whatever else is read
    assert rows(few, "relative_stretch")["3"].value == pytest.approx(row.value, rel=1e-9)


def test_words_are_spread_as_their_jacobians_see_them():
    """Whole activations, padding at zero; by hand with one batch and with several."""
    torch.manual_seed(0)
    ids = torch.randint(1, 9, (60, 5))
    mask = (torch.arange(5) < torch.randint(1, 6, (60, 1))).long()

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.a, self.b = nn.Embedding(9, 4), nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, input_ids, attention_mask):
            return self.b(torch.tanh(self.a(self.embedding(input_ids)))).mean(1)

    model, data = Words(), {"input_ids": ids, "attention_mask": mask}
    runs = [lisse.Run(model, lisse.data.as_dataset(data), readout="mean", batch=batch) for batch in (60, 7)]
    taps = [runs[0].taps.source, *runs[0].taps[1:]]
    several = [layer_spreads(Sensitivity(), run, taps, 60) for run in runs]
    with torch.no_grad():
        tokens = (model.embedding(ids) * mask[..., None]).flatten(1)
    assert several[0]["stem"] == pytest.approx(float((tokens - tokens.mean(0)).square().sum(1).mean().sqrt()), rel=1e-5)
    assert several[0] == pytest.approx(several[1], rel=1e-6)
    profile = lisse.measure(model, data, Sensitivity(samples=12, points=8), readout="mean")
    assert "relative_stretch" in {row.quantity for row in profile.rows}


def test_a_layer_that_is_a_point_has_no_relative_stretch():
    model = plain()
    model[2].weight.data.zero_()
    profile = lisse.measure(model, labelled(), Sensitivity(samples=20, points=8, draws=8))
    assert set(rows(profile, "relative_stretch")) == {"1"}
    assert any(note.startswith("No relative stretch at 3") for note in profile.notes)


def test_margins_of_a_linear_classifier_are_distances():
    """To the nearest of all faces, which is not always that of the runner-up; in both norms, at any temperature."""
    data = labelled()
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)).double()
    model[0].weight.data, model[0].bias.data = torch.eye(6).double(), torch.zeros(6).double()
    profile = lisse.measure(model, data, Sensitivity(samples=30, points=0, margins=80), order="given")
    x = data.inputs[:150][:80]
    weight, logits = model[1].weight.detach(), model(x).detach()
    answer = logits.argmax(1)
    for norm, order in (("l2", 2), ("linf", 1)):
        faces = [
            min(float(z[y] - z[k]) / float((weight[y] - weight[k]).norm(p=order)) for k in range(3) if k != int(y))
            for z, y in zip(logits, answer, strict=True)
        ]
        faces = np.array(faces) * (answer == data.targets[:80]).numpy()  # a wrong answer is no distance away
        (row,) = [row for row in profile.rows if row.quantity == "margin_distance" and row.at["norm"] == norm]
        assert (row.kind, row.n, row.layer) == ("estimate", 80, None)
        assert row.value == pytest.approx(float(np.median(faces)), rel=1e-9)
        assert row.low <= row.value <= row.high
        if norm == "l2":
            np.testing.assert_allclose(profile["sensitivity"].arrays["samples/margin_distance"], faces, rtol=1e-9)
    model[1].weight.data *= 100
    model[1].bias.data *= 100
    hot = lisse.measure(model, data, Sensitivity(samples=30, points=0, margins=80), order="given")
    assert [row.value for row in hot.rows if row.quantity == "margin_distance"] == pytest.approx(
        [row.value for row in profile.rows if row.quantity == "margin_distance"], rel=1e-9
    )


def test_a_network_without_gradients_has_no_distances_and_says_why():
    """One that always answers alike is far from its boundary, and one that rounds only seems to be."""
    model = plain()
    model[4].weight.data.zero_()
    data = labelled()
    data = Dataset("all of one class", data.inputs, model(data.inputs).argmax(1))
    profile = lisse.measure(model, data, Sensitivity(samples=30, points=0, margins=40), order="given")
    assert not [row for row in profile.rows if row.quantity == "margin_distance"]
    assert any("100% of the samples have no gradient" in note for note in profile.notes)


def test_hidden_states_are_no_answer():
    """A network that ends in features has as many of them as another has classes."""
    encoder = nn.Sequential(*plain()[:4])
    profile = lisse.measure(encoder, labelled(), Sensitivity(samples=20, points=0))
    assert not [row for row in profile.rows if row.quantity == "margin_distance"]
    assert "No distances to the boundary: the network ends in its last block, which is no answer." in profile.notes


@pytest.mark.parametrize("labels", [None, torch.arange(600) % 7, torch.rand(600)], ids=["none", "other", "numbers"])
def test_without_classes_there_is_no_boundary(labels):
    data = Dataset("toy", labelled().inputs, labels)
    profile = lisse.measure(plain(), data, Sensitivity(samples=20, points=0))
    assert not [row for row in profile.rows if row.quantity == "margin_distance"]


def test_a_hundred_layers_as_pytorch_makes_them():
    """Each shrinks what comes in: derivatives end below what float32 holds, and activations are one point."""
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(100) for layer in (nn.Linear(8, 8), nn.ReLU())])
    profile = lisse.measure(model, torch.randn(20, 8), Sensitivity(samples=20, points=2, draws=2))
    stretches = rows(profile, "lipschitz_from_input", over="mean")
    assert all(math.isfinite(row.value) for row in profile.rows if row.quantity.startswith("lipschitz"))
    assert len([note for note in profile.notes if note.startswith("No relative stretch at ")]) == 1
    assert len(stretches) == len(profile.provenance["layers"]) - 1


@pytest.mark.parametrize("size", [1e-25, 1e-22, 1e20])
def test_norms_of_very_small_and_very_large_activations(size):
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    for layer in model:
        torch.nn.init.eye_(layer.weight)
    points = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)) * size
    profile = lisse.measure(model, points, Sensitivity(samples=12, points=0, draws=0))
    wanted = float(points.double().norm(dim=1).mean())
    for row in profile.rows:
        if row.quantity == "norm":
            assert row.value == pytest.approx(wanted, rel=1e-6)


def test_a_derivative_that_is_not_finite_names_its_layer():
    class Root(nn.Module):
        def forward(self, x):
            return x.clamp_min(0).sqrt()

    model = nn.Sequential(nn.Linear(3, 3), Root(), nn.Linear(3, 3))
    points = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    points[:3] = -1
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(3))
        model[0].bias.zero_()
    profile = lisse.measure(model, points, Sensitivity(samples=20, points=8, draws=8))
    assert any("not finite" in note and " 1 (" in note for note in profile.notes), profile.notes
    assert all(math.isfinite(row.value) for row in profile.rows)


def test_a_layer_where_all_samples_are_one_point_has_no_effective_rank_and_a_note_says_why():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)).bfloat16()
    torch.nn.init.zeros_(model[0].weight)
    (part,) = lisse.measure(model, torch.randn(30, 4), Sensitivity(samples=30, points=0, draws=0)).parts
    ranks = {row.layer: row.value for row in part.rows if row.quantity == "effective_rank"}
    assert [layer for layer, value in ranks.items() if value != value] == ["0", "1"]
    assert "No effective rank at 0, 1: all samples of a cloud are one point there." in part.notes
