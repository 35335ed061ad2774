from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.homology import distance_matrix
from lisse.maths.homology.shape import shape_of
from lisse.maths.spread import spread


def cloud(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_square_by_hand():
    """Corners at (±1, ±1), shifted by 3: spread √2, the farthest corner at 4√2 from the origin."""
    square = torch.tensor([[4.0, 4], [4, 2], [2, 4], [2, 2]], dtype=torch.float64)
    shape = shape_of(square, rounding=0.01)
    assert shape.spread == pytest.approx(2**0.5)
    assert shape.slack == pytest.approx(2 * 0.01 * 4 * 2**0.5)
    assert shape.error == pytest.approx(0.08)
    assert sorted(shape.pairs.tolist()) == pytest.approx([2, 2, 2, 2, 8**0.5, 8**0.5])


def test_points_that_coincide_have_no_size():
    shape = shape_of(torch.ones(4, 3))
    assert shape.spread == 0
    assert shape.error == math.inf


@settings(max_examples=40)
@given(
    st.integers(2, 30),
    st.integers(1, 6),
    st.integers(0, 1000),
    st.sampled_from([1e-200, 1e-3, 1.0, 1e150]),
    st.floats(0, 10),
    st.sampled_from(["centroid", "mean_pair", "median_pair"]),
)
def test_it_is_what_the_functions_of_the_cloud_say(n, d, seed, factor, shift, kind):
    x = factor * (cloud(n, d, seed) + shift)
    shape = shape_of(x, kind=kind)
    assert shape.distances.equal(distance_matrix(x))
    assert shape.spread == pytest.approx(spread(x, kind=kind), rel=1e-9)
    largest, radius = x.norm(dim=1).max(), (x - x.mean(0)).norm(dim=1).max()
    assert shape.slack == pytest.approx(float(2 * (2.0**-53 * largest + 1e-12 * radius)), rel=1e-6)


@settings(max_examples=30)
@given(st.integers(0, 1000), st.floats(0, 1e4), st.sampled_from([torch.float32, torch.float16]))
def test_distances_move_no_more_than_their_slack(seed, shift, dtype):
    """The points rounded to fewer digits, against the points themselves."""
    if dtype == torch.float16:
        shift = shift / 10
    x = cloud(8, 5, seed) + shift
    rounded = shape_of(x.to(dtype))
    off = distance_matrix(x) - distance_matrix(x.to(dtype).double())
    assert float(off.abs().max()) <= rounded.slack * 1.001
    assert shape_of(x.to(dtype), rounding=0.0).error < 1e-11


def test_slack_by_hand():
    x = torch.tensor([[3.0, 4.0], [-3.0, -4.0]])
    assert shape_of(x, rounding=0.01).slack == pytest.approx(2 * 0.01 * 5)
    assert shape_of(x).slack == pytest.approx(2 * 2.0**-24 * 5, rel=1e-4)
    assert shape_of(torch.ones(3, 2)).error == math.inf


def test_rows_of_images_are_a_cloud_of_their_own():
    images = cloud(8, 12).float().reshape(8, 3, 2, 2)
    rows = torch.tensor([6, 1, 3])
    shape, alone = shape_of(images, rows=rows), shape_of(images[rows])
    assert shape.distances.equal(alone.distances)
    assert (shape.spread, shape.slack) == (alone.spread, alone.slack)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: shape_of(torch.ones(3)), r"shape \[n, d\]"),
        (lambda: shape_of(torch.tensor([[1.0], [math.nan]])), "points must be finite"),
        (lambda: shape_of(cloud(3, 2), kind="x"), "kind must be one of"),
        (lambda: shape_of(cloud(3, 2), rounding=-1.0), "rounding must be at least 0"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.gpu
def test_distances_made_on_a_gpu_are_the_same():
    x = cloud(50, 7)
    near = shape_of(x, device="cuda")
    assert near.distances.device.type == "cpu"
    assert near.spread == pytest.approx(spread(x), rel=1e-12)
