import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import lisse
from lisse.data import Dataset, generators
from lisse.instruments import ALL, Isometry
from lisse.instruments.isometry.distances import longest_hole
from lisse.maths.homology import persistence
from lisse.maths.isometry import distortion, euclidean
from lisse.maths.isometry.distortion import scale_free_distortion
from lisse.networks.isometric import LocallyIsometric, isometric_loss

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(60) % 3
DATA = Dataset("toy", X, Y)


def rows(profile, quantity, **at):
    return [
        row
        for row in profile.rows
        if row.quantity == quantity and all(row.at.get(key) == value for key, value in at.items())
    ]


def one(profile, quantity, layer=None, **at):
    (found,) = [row for row in rows(profile, quantity, **at) if row.layer == layer]
    return found


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def test_it_is_offered():
    assert Isometry in ALL


def test_a_rotation_is_an_isometry_and_a_scaling_is_not():
    turn, _ = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(2)))
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[0].weight.data, model[1].weight.data = turn, 3 * torch.eye(4)
    profile = Isometry(samples=60, points=0).measure(model, DATA)
    for pairs in ("within", "between"):
        assert one(profile, "distance_error", "0", pairs=pairs).value == pytest.approx(0.0, abs=1e-6)
        assert one(profile, "distance_error", "1", pairs=pairs).value == pytest.approx(2.0, rel=1e-5)
        assert one(profile, "distance_correlation", "1", pairs=pairs).value == pytest.approx(1.0)
        for quantile in (0.05, 0.5, 0.95):
            found = one(profile, "stretch", "1", pairs=pairs, quantile=quantile)
            assert found.value == pytest.approx(3.0, rel=1e-5)
        largest = one(profile, "largest_stretch", "1", pairs=pairs)
        assert (largest.kind, largest.value) == ("lower", pytest.approx(3.0, rel=1e-5))
    name = "0"
    before = one(profile, "longest_hole", "input", **{"class": name}).value
    assert one(profile, "longest_hole", "1", **{"class": name}).value == pytest.approx(3 * before, rel=1e-4, abs=1e-6)
    share = one(profile, "hole_share", "input", **{"class": name}).value
    assert one(profile, "hole_share", "1", **{"class": name}).value == pytest.approx(share, rel=1e-4, abs=1e-6)


def test_numbers_are_those_of_the_activations():
    model = network()
    profile = Isometry(samples=60, points=0, clouds=1).measure(model, DATA)
    with torch.no_grad():
        z = model[:2](X)
    before, after = euclidean(X.double()), euclidean(z.double())
    same = Y[:, None] == Y[None]
    for pairs, among in (("within", same), ("between", ~same)):
        expected = distortion(before, after, among)
        row = one(profile, "distance_error", "1", pairs=pairs)
        assert row.value == pytest.approx(expected.error, rel=1e-5)
        assert (row.kind, row.n, row.low) == ("exact", 60, None)
        found = one(profile, "distance_correlation", "1", pairs=pairs)
        assert found.value == pytest.approx(expected.correlation, rel=1e-5)
        loss = one(profile, "isometric_loss", "1", pairs=pairs).value
        assert loss == pytest.approx(float(((before - after).square() * among).sum()) / 3600, rel=1e-4)
    assert one(profile, "isometric_loss", "1", pairs="within").value == pytest.approx(
        float(isometric_loss(X, z, Y)), rel=1e-4
    )
    bars = persistence(z[Y == 1])[1]
    longest = float((bars[:, 1] - bars[:, 0]).max()) if len(bars) else 0.0
    assert one(profile, "longest_hole", "1", **{"class": "1"}).value == pytest.approx(longest, rel=1e-4, abs=1e-6)


def test_clouds_give_intervals():
    data = Dataset("toy", X.repeat(3, 1) + 0.1 * torch.randn(180, 4), Y.repeat(3))
    profile = Isometry(samples=36, clouds=5, points=0).measure(network(), data)
    row = one(profile, "distance_error", "1", pairs="within", cloud=36)
    assert (row.kind, row.n) == ("estimate", 180)
    assert row.low < row.value < row.high
    assert one(profile, "distance_error", "1", pairs="within").at["cloud"] == 36
    few = Isometry(samples=100, clouds=5, points=0).measure(network(), data)
    assert one(few, "distance_error", "1", pairs="within").kind == "exact"
    assert any("one cloud of 100 samples" in note for note in few.notes)


def test_histograms_are_of_every_pair():
    profile = Isometry(samples=60, points=0, bins=11, clouds=1).measure(network(), DATA)
    arrays = profile["isometry"].arrays
    assert arrays["histogram/input/within/counts"].shape == (11,)
    assert arrays["histogram/input/within/edges"].shape == (12,)
    assert arrays["histogram/1/within/counts"].sum() == 3 * 190
    assert arrays["histogram/1/between/counts"].sum() == 1770 - 570
    assert arrays["histogram/1/class=2/counts"].sum() == 190


def test_classes_limits_what_is_looked_at_one_by_one():
    profile = Isometry(samples=60, points=0, classes=2, clouds=1).measure(network(), DATA)
    assert {row.at["class"] for row in rows(profile, "longest_hole")} == {"0", "1"}
    assert any("2 of 3 classes" in note for note in profile.notes)
    bare = Isometry(samples=60, points=0, holes=False, clouds=1).measure(network(), DATA)
    assert not rows(bare, "longest_hole")


def test_a_class_may_be_called_anything(tmp_path):
    named = Dataset("toy", X, Y, classes=("a|pairs=b", "quantile=1|", '["c"/0]'))
    profile = Isometry(samples=60, points=0, clouds=1).measure(network(), named, cache=tmp_path)
    for file in tmp_path.rglob("*.part"):
        file.unlink()  # what is read back is the pieces
    again = Isometry(samples=60, points=0, clouds=1).measure(network(), named, cache=tmp_path)
    assert again.rows == profile.rows
    holes = rows(profile, "longest_hole")
    assert {row.at["class"] for row in holes} == set(named.classes)
    assert {frozenset(row.at) for row in holes} == {frozenset({"class", "cloud"})}


def test_a_ring_has_its_hole_and_a_line_none():
    angle = torch.arange(20, dtype=torch.float64) * (2 * math.pi / 20)
    ring = torch.stack([angle.cos(), angle.sin()], 1)
    length, share = longest_hole(euclidean(ring))
    # Rips of a regular 20-gon: the hole is filled when 7 steps make a triangle around the centre.
    assert length == pytest.approx(2 * math.sin(7 * math.pi / 20) - 2 * math.sin(math.pi / 20), rel=1e-9)
    assert share == pytest.approx(length / 2, rel=1e-9)
    assert longest_hole(euclidean(torch.arange(9.0).double()[:, None])) == (0.0, 0.0)
    assert longest_hole(torch.zeros(5, 5)) == (0.0, 0.0)


def test_gradients_jacobians_and_bounds():
    model = network().double()
    data = Dataset("toy", X.double(), Y)
    profile = Isometry(samples=60, points=8, tol=1e-6, max_iter=8).measure(model, data, order="given")
    x = X[:8].double().requires_grad_()
    entropy = functional.cross_entropy(model(x), Y[:8], reduction="sum")
    (gradient,) = torch.autograd.grad(entropy, x)
    row = one(profile, "input_gradient", where="on", norm="l2")
    assert row.value == pytest.approx(float(gradient.norm(dim=1).mean()), rel=1e-6)
    assert (row.kind, row.n) == ("estimate", 8)
    assert row.low < row.value < row.high
    l1 = one(profile, "input_gradient", where="on", norm="l1").value
    assert l1 == pytest.approx(float(gradient.abs().sum(1).mean()), rel=1e-6)
    jacobians = torch.func.vmap(torch.func.jacrev(lambda point: model[:4](point)))(x.detach())
    steep = torch.linalg.matrix_norm(jacobians, ord=2).detach()
    found = one(profile, "local_jacobian", "3", where="on", over="max")
    assert (found.kind, found.value) == ("lower", pytest.approx(float(steep.max()), rel=1e-5))
    mean = one(profile, "local_jacobian", "3", where="on", over="mean")
    assert mean.value == pytest.approx(float(steep.mean()), rel=1e-5)
    off = one(profile, "local_jacobian", "3", where="off", over="mean")
    assert off.value != mean.value
    assert off.at["radius"] > 0
    bound = one(profile, "input_gradient_bound", "3", k="jacobian")
    assert bound.kind == "upper"
    assert row.value <= bound.value
    assert one(profile, "input_gradient_bound", "3", k="1").kind == "heuristic"
    measured, most = one(profile, "isometric_gradient", "3"), one(profile, "isometric_gradient_bound", "3")
    assert (most.kind, measured.kind) == ("upper", "estimate")
    assert measured.value <= most.value
    moved = one(profile, "translation_gradient", "3")
    corrected = one(profile, "translation_gradient_bound", "3", variant="corrected")
    printed = one(profile, "translation_gradient_bound", "3", variant="printed")
    assert moved.value <= corrected.value
    assert (corrected.kind, printed.kind) == ("upper", "heuristic")
    whole = isometric_loss(x, model[:4](x), Y[:8], fixed_input=False)
    (slope,) = torch.autograd.grad(whole, x)
    assert moved.value == pytest.approx(float(slope.sum(0).norm()), rel=1e-6)
    assert measured.value == pytest.approx(float(slope.norm(dim=1).mean()), rel=1e-6)


def test_whole_and_points_are_limits():
    profile = Isometry(samples=60, points=5, whole=2).measure(network(), DATA)
    assert not rows(profile, "input_gradient_bound")
    assert any("more than whole=2" in note for note in profile.notes)
    row = one(profile, "input_gradient", where="on", norm="l2")
    assert (row.kind, row.n) == ("exact", 5)  # too few for a bootstrap


def test_without_labels_all_pairs_count():
    profile = Isometry(samples=60).measure(network(), X)
    assert {row.at["pairs"] for row in rows(profile, "distance_error")} == {"all"}
    assert {row.at["class"] for row in rows(profile, "longest_hole")} == {"all"}
    assert any("no labels" in note for note in profile.notes)
    assert not rows(profile, "input_gradient")


def test_labels_beyond_the_logits_are_told():
    profile = Isometry(samples=60).measure(network(), Dataset("toy", X, Y + 5))
    assert any("no logits for these labels" in note for note in profile.notes)
    assert rows(profile, "distance_error")


def test_chosen_layers_are_still_compared_with_the_input():
    every = Isometry(samples=60, points=0, clouds=1).measure(network(), DATA)
    some = Isometry(samples=60, points=0, clouds=1).measure(network(), DATA, layers=["3"])
    layer = rows(some, "distance_error", pairs="within")[0].layer
    assert rows(some, "distance_error", pairs="within")[0].value != 0
    assert {row.layer for row in rows(some, "distance_error")} == {layer}
    assert len(rows(every, "distance_error", pairs="within")) == 3


def test_the_cache_and_the_batch_size_change_nothing(tmp_path):
    first = Isometry(samples=40).measure(network(), DATA, cache=tmp_path)
    again = Isometry(samples=40).measure(network(), DATA, cache=tmp_path)
    other = Isometry(samples=40).measure(network(), DATA, batch=7)
    values = [[row.value for row in profile.rows] for profile in (first, again, other)]
    assert values[0] == values[1]
    np.testing.assert_allclose(values[2], values[0], rtol=1e-5, atol=1e-7)


def test_images_tokens_and_profiles(tmp_path):
    images = Dataset("images", torch.rand(24, 3, 8, 8), torch.arange(24) % 3)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    profile = Isometry(samples=24, points=4).measure(model, images)
    assert rows(profile, "local_jacobian")
    profile.save(tmp_path / "a.profile")
    back = lisse.Profile.load(tmp_path / "a.profile")
    assert [row.value for row in back.rows] == [row.value for row in profile.rows]
    tokens = Dataset("words", torch.randint(9, (20, 5)), torch.arange(20) % 2)
    words = nn.Sequential(nn.Embedding(9, 6), nn.Flatten(), nn.Linear(30, 8), nn.Tanh(), nn.Linear(8, 2))
    profile = Isometry(samples=20).measure(words, tokens)
    assert any("no derivative" in note for note in profile.notes)
    assert any("holds integers" in note for note in profile.notes)


def test_points_beside_the_data_may_leave_the_range_without_a_word():
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 4).reshape(16, 1, 2, 2)
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))

    def said(images):
        model = lisse.models.declare(network, input_size=(1, 2, 2), mean=(0.5,), std=(0.5,))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            profile = Isometry(samples=16, points=16).measure(model, Dataset("corners", images, torch.arange(16) % 3))
        assert rows(profile, "local_jacobian", where="off", radius=1.0)
        return [str(one.message) for one in caught if "must lie in [0, 1]" in str(one.message)]

    assert said(corners) == []
    assert len(said(corners + 1)) == 1  # the data themselves are still looked at


def test_a_trained_network_shows_what_training_did():
    data = generators.rings(60, seed=0)
    model = LocallyIsometric(3, classes=2)
    profile = Isometry(samples=60, clouds=1).measure(model, data)
    assert {row.at["class"] for row in rows(profile, "longest_hole")} == {"first ring", "second ring"}
    assert any("Φ of the bounds is blocks.3" in note for note in profile.notes)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"samples": 3}, "samples must be a whole number of at least 4"), ({"clouds": 0}, "clouds"),
        ({"classes": 0}, "classes"),
        ({"bins": 0}, "bins"), ({"points": -1}, "points"), ({"whole": -1}, "whole"), ({"max_iter": 0}, "max_iter"),
        ({"level": 1.0}, "level must lie"), ({"tol": 0.0}, "tol must be positive"),
    ],
)  # fmt: skip
def test_bad_options(options, match):
    with pytest.raises(ValueError, match=match):
        Isometry(**options)


def test_too_few_or_equal_samples_are_refused():
    profile = Isometry().measure(network(), X[:3])
    assert "at least 4 samples" in profile.notes[0]
    with pytest.raises(ValueError, match="all are equal"):
        Isometry().measure(network(), torch.ones(9, 4))


def test_max_iter_and_tol_decide_how_close_the_norm_comes():
    model = nn.Sequential(nn.Linear(4, 30, bias=False), nn.Linear(30, 3, bias=False))
    loose = Isometry(samples=60, max_iter=1).measure(model, DATA)
    tight = Isometry(samples=60, max_iter=30, tol=1e-6).measure(model, DATA)
    layer = rows(tight, "local_jacobian", over="max", where="on")[0].layer
    assert (
        one(loose, "local_jacobian", layer, over="max", where="on").value
        < one(tight, "local_jacobian", layer, over="max", where="on").value
    )


def test_a_similarity_has_no_distortion_up_to_scale():
    turn, _ = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(2)))
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    for layer, factor in zip(model[:3], (3.0, 0.01, 500.0), strict=True):
        layer.weight.data = factor * turn
    profile = Isometry(points=0, holes=False).measure(model, DATA)
    assert [row.layer for row in rows(profile, "scale_free_distortion")] == ["0", "1", "2", "3"]
    for layer in "012":
        assert one(profile, "scale_free_distortion", layer).value == pytest.approx(0.0, abs=1e-5)
    assert one(profile, "distance_error", "0", pairs="within").value == pytest.approx(2.0, rel=1e-4)  # the paper's
    assert one(profile, "scale_free_distortion", "3").value > 0.1  # a plane does not hold four dimensions
    np.testing.assert_allclose(profile["isometry"].arrays["samples/scale_free_distortion"], 0, atol=1e-5)


def test_distortion_up_to_scale_is_that_of_all_pairs_of_samples():
    data = Dataset("toy", torch.randn(900, 4, generator=torch.Generator().manual_seed(5)), torch.arange(900) // 300)
    data.inputs[300:] *= torch.tensor([1.0, 9.0, 0.1, 3.0])
    model = network()
    profile = Isometry(samples=20, clouds=5, points=0, holes=False).measure(model, data, order="given")
    drawn = data.inputs[:100]
    with torch.no_grad():
        expected = scale_free_distortion(euclidean(drawn), euclidean(model[:4](drawn)))
    row = one(profile, "scale_free_distortion", "3")
    assert (row.kind, row.n) == ("estimate", 100)
    assert row.value == pytest.approx(expected.error, rel=1e-5)
    assert row.low < row.value < row.high
    array = profile["isometry"].arrays["samples/scale_free_distortion"]  # of the last block, not of the logits
    np.testing.assert_allclose(array, expected.influence, rtol=1e-4)
    few = Isometry(samples=20, clouds=5, points=0, holes=False).measure(model, data, layers=["1", "3"], order="given")
    assert one(few, "scale_free_distortion", "3").value == row.value  # whatever is read between, or not at all


def test_a_layer_that_is_a_point_is_wholly_distorted():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3), nn.Tanh())
    model[1].weight.data.zero_()
    profile = Isometry(points=0, holes=False).measure(model, Dataset("toy", X))
    assert one(profile, "scale_free_distortion", "2").value == 1.0
