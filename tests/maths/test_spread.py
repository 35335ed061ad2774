from __future__ import annotations

import math

import pytest
import scipy.spatial.distance
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.spread import relative_stretch, spread, squared_radii

KINDS = ("centroid", "mean_pair", "median_pair")


def cloud(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_by_hand():
    square = torch.tensor([[0.0, 0.0], [0.0, 2.0], [2.0, 0.0], [2.0, 2.0]])
    assert spread(square) == pytest.approx(2**0.5)
    assert spread(square, kind="mean_pair") == pytest.approx((4 * 2 + 2 * 8**0.5) / 6)
    assert spread(square, kind="median_pair") == 2
    assert spread(torch.ones(5, 3)) == 0
    assert squared_radii(square).tolist() == pytest.approx([2, 2, 2, 2])


def test_images_count_as_points():
    assert spread(cloud(6, 12).reshape(6, 3, 2, 2)) == pytest.approx(spread(cloud(6, 12)))


@settings(max_examples=40)
@given(
    n=st.integers(2, 20),
    d=st.integers(1, 6),
    seed=st.integers(0, 1000),
    factor=st.floats(1e-3, 1e3),
    shift=st.floats(-10, 10),
    kind=st.sampled_from(KINDS),
)
def test_it_scales_and_neither_turns_nor_shifts(n, d, seed, factor, shift, kind):
    x = cloud(n, d, seed)
    rotation = torch.linalg.qr(cloud(d, d, seed + 1))[0]
    assert spread(factor * x @ rotation + shift, kind=kind) == pytest.approx(factor * spread(x, kind=kind), rel=1e-6)


@settings(max_examples=20)
@given(st.integers(2, 30), st.integers(1, 5), st.integers(0, 1000))
def test_it_agrees_with_all_pairs(n, d, seed):
    x = cloud(n, d, seed)
    pairs = scipy.spatial.distance.pdist(x.numpy())
    assert spread(x) ** 2 == pytest.approx((pairs**2).sum() / n**2)
    assert spread(x, kind="mean_pair") == pytest.approx(pairs.mean())
    groups = [x[: n // 2], x[n // 2 :]]
    means = torch.stack([group.mean(0) for group in groups for _ in group])
    within = sum(len(group) * spread(group) ** 2 for group in groups if len(group) > 1) / n
    assert spread(x) ** 2 == pytest.approx(within + spread(means) ** 2)


def test_who_is_robust_to_what():
    x = cloud(100, 3)
    base = {kind: spread(x, kind=kind) for kind in KINDS}
    far = x.clone()
    far[0] = 1e6
    ratio = {kind: spread(far, kind=kind) / base[kind] for kind in KINDS}
    assert ratio["centroid"] == pytest.approx(1e6 * 3**0.5 / 10 / base["centroid"], rel=0.02)
    assert ratio["mean_pair"] == pytest.approx(2 * 1e6 * 3**0.5 / 100 / base["mean_pair"], rel=0.02)
    assert ratio["median_pair"] < 1.1
    far[:28] = 1e6 * cloud(28, 3, 1)
    assert spread(far, kind="median_pair") < 20 * base["median_pair"]
    far[:31] = 1e6 * cloud(31, 3, 1)
    assert spread(far, kind="median_pair") > 1e4


def test_a_map_stretches_a_cloud_no_more_than_any_pair():
    x = cloud(40, 4)
    matrix = cloud(4, 4, 1)
    norm = float(torch.linalg.matrix_norm(matrix, 2))
    for kind in KINDS:
        assert spread(x @ matrix, kind=kind) <= norm * spread(x, kind=kind)
    whitened = torch.linalg.qr(x - x.mean(0))[0] * 40**0.5  # unit covariance
    assert spread(whitened @ matrix) == pytest.approx(float(torch.linalg.matrix_norm(matrix)))
    stretch = relative_stretch(torch.tensor([norm]), spread(whitened), spread(whitened @ matrix))
    assert float(stretch) == pytest.approx(2 * norm / float(torch.linalg.matrix_norm(matrix)))


def test_relative_stretch_of_a_similarity_is_one_and_sees_no_unit():
    norms = torch.tensor([1.0, 2.0, 4.0])
    assert relative_stretch(norms, 3.0, 6.0).tolist() == [0.5, 1, 2]
    # the output times 7, the input times 5: norms times 7/5
    assert relative_stretch(norms * 7 / 5, 15.0, 42.0).tolist() == pytest.approx([0.5, 1, 2])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: spread(torch.ones(1, 2)), "at least 2 points"),
        (lambda: spread(torch.ones(3)), r"shape \[n, d\]"),
        (lambda: spread(torch.tensor([[1.0], [math.nan]])), "points must be finite"),
        (lambda: spread(torch.ones(3, 2), kind="range"), "kind must be one of centroid, mean_pair, median_pair"),
        (lambda: relative_stretch(torch.tensor([-1.0]), 1.0, 1.0), "norms must be at least 0"),
        (lambda: relative_stretch(torch.ones(1), 1.0, 0.0), "spread_out must be positive, got 0"),
        (lambda: relative_stretch(torch.ones(1), math.nan, 1.0), "spread_in must be positive"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match):
        call()
