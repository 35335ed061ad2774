from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist, squareform

from lisse.maths.homology import persistence
from lisse.maths.wide_distances import covering, wide_distances


def cloud(n, d, seed=0, dtype=torch.float32):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def direct(points):
    return squareform(pdist(points.flatten(1).double().numpy()))


def test_a_right_triangle():
    found = wide_distances(torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]]))
    assert found.tolist() == [[0.0, 3.0, 4.0], [3.0, 0.0, 5.0], [4.0, 5.0, 0.0]]
    assert found.dtype == torch.float64


@pytest.mark.parametrize("shape", [(2, 1), (3, 5), (9, 2047), (40, 4097), (70, 3, 40, 20)])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_equal_to_direct_differences(shape, offset):
    points = torch.randn(shape, generator=torch.Generator().manual_seed(0)) + offset
    found = wide_distances(points)
    np.testing.assert_allclose(found.numpy(), direct(points), rtol=1e-11)
    assert torch.equal(found, found.T)
    assert not found.diagonal().any()


@settings(max_examples=25)
@given(st.integers(2, 20), st.integers(1, 60), st.integers(0, 1000), st.floats(-6, 6))
def test_equal_to_direct_differences_at_any_scale(n, d, seed, power):
    points = cloud(n, d, seed, torch.float64) * 10**power + 1
    np.testing.assert_allclose(wide_distances(points).numpy(), direct(points), rtol=1e-9, atol=10**power * 1e-12)


def test_near_and_equal_points_lose_no_digits():
    points = cloud(30, 3000, dtype=torch.float64)
    points[7] = points[3]
    points[9] = points[3] + 1e-9
    points[20] = points[21] * (1 + 1e-12)
    found = wide_distances(points)
    assert found[3, 7] == 0
    np.testing.assert_allclose(found.numpy(), direct(points), rtol=1e-11)


def test_constant_clouds_are_at_distance_zero():
    assert not wide_distances(torch.full((20, 3000), 0.1)).any()
    assert not wide_distances(torch.zeros(20, 3000)).any()


def test_rows_choose_points():
    points = cloud(50, 2100)
    rows = torch.tensor([4, 40, 7, 7])
    assert torch.equal(wide_distances(points, rows=rows), wide_distances(points[rows]))
    assert wide_distances(points, rows=rows)[2, 3] == 0


def test_numbers_whose_squares_overflow():
    points = cloud(5, 4, dtype=torch.float64) * 1e200
    np.testing.assert_allclose(wide_distances(points).numpy() / 1e200, direct(points / 1e200), rtol=1e-12)


def test_landmarks_are_far_apart_and_cover():
    line = torch.tensor([[0.0], [1.0], [2.0], [9.0], [10.0]])
    picks, radius = covering(wide_distances(line), 3)
    assert picks.tolist() == [0, 2, 4]  # 10 is farthest from 0, and 2 from both
    assert radius == 1.0
    everything, radius = covering(wide_distances(line), 5)
    assert everything.tolist() == [0, 1, 2, 3, 4]
    assert radius == 0.0


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 30))
def test_landmarks_keep_the_diagram_within_twice_the_radius(seed, count):
    from lisse.maths.homology import diagram_distance

    matrix = wide_distances(cloud(30, 2, seed))
    picks, radius = covering(matrix, count)
    assert float(matrix[picks].min(0).values.max()) == pytest.approx(radius)
    whole, few = persistence(distances=matrix), persistence(distances=matrix[picks][:, picks])
    for dim in (0, 1):
        assert diagram_distance(whole, few, dim=dim, p=torch.inf) <= 2 * radius + 1e-12


def test_bad_input():
    with pytest.raises(ValueError, match=r"^wide_distances: points must hold at least 2 points, got 1\.$"):
        wide_distances(torch.ones(1, 4))
    with pytest.raises(ValueError, match=r"^wide_distances: points must have shape \[n, …, d\], got \[4\]\.$"):
        wide_distances(torch.ones(4))
    with pytest.raises(ValueError, match="must be finite, got NaN or infinity in point 1"):
        wide_distances(torch.tensor([[0.0], [torch.nan], [1.0]]))
    with pytest.raises(ValueError, match=r"^covering: count must lie between 1 and the 3 points, got 4\.$"):
        covering(torch.zeros(3, 3), 4)
