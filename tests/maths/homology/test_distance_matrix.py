from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist, squareform

from lisse.maths.homology import covering, diagram_distance, distance_matrix, persistence
from lisse.maths.homology.metric import _batched, distance_matrices
from lisse.maths.homology.shape import shapes_of


def cloud(n, d, seed=0, dtype=torch.float32):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def direct(points):
    return squareform(pdist(points.flatten(1).double().numpy()))


def test_a_right_triangle():
    found = distance_matrix(torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]]))
    assert found.tolist() == [[0.0, 3.0, 4.0], [3.0, 0.0, 5.0], [4.0, 5.0, 0.0]]
    assert found.dtype == torch.float64


@pytest.mark.parametrize("shape", [(2, 1), (3, 5), (9, 2047), (40, 4097), (70, 3, 40, 20)])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_equal_to_direct_differences(shape, offset):
    points = torch.randn(shape, generator=torch.Generator().manual_seed(0)) + offset
    found = distance_matrix(points)
    np.testing.assert_allclose(found.numpy(), direct(points), rtol=1e-11)
    assert torch.equal(found, found.T)
    assert not found.diagonal().any()


@settings(max_examples=25)
@given(st.integers(2, 20), st.integers(1, 60), st.integers(0, 1000), st.floats(-6, 6))
def test_equal_to_direct_differences_at_any_scale(n, d, seed, power):
    points = cloud(n, d, seed, torch.float64) * 10**power + 1
    np.testing.assert_allclose(distance_matrix(points).numpy(), direct(points), rtol=1e-9, atol=10**power * 1e-12)


def test_near_and_equal_points_lose_no_digits():
    points = cloud(30, 3000, dtype=torch.float64)
    points[7] = points[3]
    points[9] = points[3] + 1e-9
    points[20] = points[21] * (1 + 1e-12)
    found = distance_matrix(points)
    assert found[3, 7] == 0
    np.testing.assert_allclose(found.numpy(), direct(points), rtol=1e-11)


def test_constant_clouds_are_at_distance_zero():
    assert not distance_matrix(torch.full((20, 3000), 0.1)).any()
    assert not distance_matrix(torch.zeros(20, 3000)).any()


def test_rows_choose_points():
    points = cloud(50, 2100)
    rows = torch.tensor([4, 40, 7, 7])
    assert torch.equal(distance_matrix(points, rows=rows), distance_matrix(points[rows]))
    assert distance_matrix(points, rows=rows)[2, 3] == 0


@pytest.mark.parametrize("size", [1e200, 1e-200])
@pytest.mark.parametrize("precision", [torch.float64, torch.float32])
def test_numbers_whose_squares_leave_the_range(size, precision):
    points = cloud(5, 4, dtype=torch.float64) * size
    tol = 1e-12 if precision == torch.float64 else 1e-4
    found = distance_matrix(points, precision=precision)
    np.testing.assert_allclose(found.numpy() / size, direct(points / size), rtol=tol)


@pytest.mark.parametrize(("n", "d"), [(1030, 3), (2300, 7), (40, 30000)])
def test_several_bands_and_blocks_are_one_matrix(n, d):
    points = cloud(n, d, dtype=torch.float64) + 3
    points[n // 2] = points[1]
    points[-1] = points[-2] + 1e-7
    found = distance_matrix(points)
    np.testing.assert_allclose(found.numpy(), direct(points), rtol=1e-11)
    assert torch.equal(found, found.T)
    assert not found.diagonal().any()
    assert found[1, n // 2] == 0
    single = distance_matrix(points, precision=torch.float32)
    np.testing.assert_allclose(single.numpy(), direct(points), rtol=1e-4)
    assert not torch.equal(single, found)


@pytest.mark.parametrize("n", [2, 65, 500, 1100])
def test_several_threads_give_the_same_matrix(n):
    points = cloud(n, 40)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = distance_matrix(points)
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_allclose(found.numpy(), direct(points), rtol=1e-11)
    assert torch.equal(found, found.T)


def test_a_cloud_is_not_copied_as_a_whole(monkeypatch):
    points = cloud(4, 2**18)
    sizes = []
    plain = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: (sizes.append(size), plain(*size, **options))[1])
    distance_matrix(points)
    assert 0 < max(np.prod(size) for size in sizes) <= points.numel() / 2


def test_on_two_coincident_groups_nothing_is_lost():
    points = torch.zeros(40, 5, dtype=torch.float64)
    points[20:] = 1e3
    points += 1e-6 * cloud(40, 5, dtype=torch.float64)
    np.testing.assert_allclose(distance_matrix(points).numpy(), direct(points), rtol=1e-12)


def test_landmarks_are_far_apart_and_cover():
    line = torch.tensor([[0.0], [1.0], [2.0], [9.0], [10.0]])
    picks, radius = covering(distance_matrix(line), 3)
    assert picks.tolist() == [0, 2, 4]  # 10 is farthest from 0, and 2 from both
    assert radius == 1.0
    everything, radius = covering(distance_matrix(line), 5)
    assert everything.tolist() == [0, 1, 2, 3, 4]
    assert radius == 0.0


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 30))
def test_landmarks_keep_the_diagram_within_twice_the_radius(seed, count):
    matrix = distance_matrix(cloud(30, 2, seed))
    picks, radius = covering(matrix, count)
    assert float(matrix[picks].min(0).values.max()) == pytest.approx(radius)
    whole, few = persistence(distances=matrix), persistence(distances=matrix[picks][:, picks])
    for dim in (0, 1):
        assert diagram_distance(whole, few, dim=dim, p=torch.inf) <= 2 * radius + 1e-12


def test_bad_input():
    with pytest.raises(
        ValueError,
        match=r"^distance_matrix: points must hold at least 2 points in 1 dim",
    ):
        distance_matrix(torch.ones(1, 4))
    with pytest.raises(
        ValueError,
        match=r"^distance_matrix: points must have shape \[n, d\], got \[4\]\. For points",
    ):
        distance_matrix(torch.ones(4))
    with pytest.raises(ValueError, match=r"^distance_matrix: rows must be 2 indices or more, got shape \[1\]\.$"):
        distance_matrix(torch.ones(3, 4), rows=torch.tensor([1]))
    with pytest.raises(ValueError, match="must be finite, got NaN or infinity in point 1"):
        distance_matrix(torch.tensor([[0.0], [torch.nan], [1.0]]))
    with pytest.raises(ValueError, match=r"^covering: count must lie between 1 and the 3 points, got 4\.$"):
        covering(torch.zeros(3, 3), 4)


@settings(max_examples=25)
@given(st.integers(4, 9), st.integers(1, 3), st.integers(1, 5000), st.integers(0, 1000), st.floats(-6, 6))
def test_clouds_of_one_size_are_done_at_once(n, k, d, seed, power):
    """As on a GPU: batched products agree with direct differences, and points that coincide are at exactly 0."""
    points = cloud(k * n + 3, d, seed, torch.float64) * 10**power + 1
    rows = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[: k * n].view(k, n)
    points[rows[0, 1]] = points[rows[0, 0]]
    points[rows[-1, -1]] = points[rows[-1, 0]] * (1 + 1e-9)
    matrices = _batched(points, rows, points.device)
    assert matrices is not None
    assert torch.equal(matrices, matrices.mT)
    assert matrices[0, 0, 1] == 0
    for index, matrix in zip(rows, matrices, strict=True):
        np.testing.assert_allclose(matrix.numpy(), direct(points[index]), rtol=1e-10)
    assert torch.equal(distance_matrices(points, rows)[0], distance_matrix(points[rows[0]]))


@pytest.mark.parametrize("scale", [0.0, 1e-200, 1e200, float("nan")])
def test_what_squares_cannot_hold_is_not_done_at_once(scale):
    points = cloud(8, 5, dtype=torch.float64) * scale
    assert _batched(points, torch.arange(8).view(2, 4), points.device) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("scale", [1.0, 1e-200])
def test_clouds_on_a_gpu_are_those_of_the_cpu(scale):
    points = cloud(90, 3000, dtype=torch.float64) * scale
    rows = torch.randperm(90, generator=torch.Generator().manual_seed(0)).view(3, 30)
    matrices = distance_matrices(points.cuda(), rows)
    assert matrices.is_cuda
    torch.testing.assert_close(matrices.cpu(), distance_matrices(points, rows), rtol=1e-10, atol=0)
    shapes = zip(shapes_of(points.cuda(), rows), shapes_of(points, rows), strict=True)
    assert all(near.spread == pytest.approx(far.spread, rel=1e-10) for near, far in shapes)
