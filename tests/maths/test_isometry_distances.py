import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from lisse.maths.isometry import cosine, distance_histogram, distortion, euclidean, geodesic, pair_correlation


def cloud(n, d, seed=0, dtype=torch.float64):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# --- distances ------------------------------------------------------------------------------------------------------


def test_the_3_4_5_triangle():
    points = torch.tensor([[0.0, 0.0], [3.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    assert torch.equal(euclidean(points), torch.tensor([[0, 3, 5], [3, 0, 4], [5, 4, 0]], dtype=torch.float64))
    assert torch.equal(euclidean(points, rows=slice(1, 3)), euclidean(points)[1:3])


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 12), st.integers(1, 5), st.integers(0, 99))
def test_euclidean_and_cosine_are_scipys(n, d, seed):
    points = cloud(n, d, seed)
    np.testing.assert_allclose(euclidean(points), cdist(points, points), atol=1e-12)
    np.testing.assert_allclose(cosine(points), cdist(points, points, "cosine"), atol=1e-12)
    np.testing.assert_allclose(cosine(points, rows=slice(0, 2)), cosine(points)[:2], atol=1e-15)


def test_small_angles_keep_their_digits():
    points = torch.tensor([[1.0, 0.0], [1.0, 1e-6]], dtype=torch.float64)
    assert float(cosine(points)[0, 1]) == pytest.approx(5e-13, rel=1e-6)


def test_a_zero_vector_is_at_cosine_distance_one_without_gradient():
    points = torch.tensor([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    found = cosine(points)
    assert found.tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    found.sum().backward()
    assert torch.equal(points.grad, torch.zeros(3, 2, dtype=torch.float64))


def test_gradients_are_finite_where_points_coincide_and_right_elsewhere():
    points = torch.tensor([[1.0, 1.0], [1.0, 1.0], [4.0, 5.0]], dtype=torch.float64, requires_grad=True)
    euclidean(points)[0].sum().backward()
    expected = torch.tensor([[-0.6, -0.8], [0.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
    assert torch.allclose(points.grad, expected, atol=1e-12)


@pytest.mark.parametrize(
    "function",
    [euclidean, cosine, functools.partial(geodesic, neighbours=3), functools.partial(euclidean, rows=slice(1, 4))],
)
def test_gradcheck(function):
    points = cloud(7, 3, 1).requires_grad_()
    assert torch.autograd.gradcheck(function, (points,))


def test_second_derivatives():
    points = cloud(5, 2, 2).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: euclidean(x).square().sum() + euclidean(x).sum(), (points,))


def test_float32_keeps_near_pairs_at_their_true_distance():
    points = cloud(200, 784, 3, torch.float32)
    points[1] = points[0] + 1e-3
    found = euclidean(points)
    assert found.dtype == torch.float32
    true = float((points[1].double() - points[0].double()).norm())
    assert float(found[0, 1]) == pytest.approx(true, rel=1e-5)


def test_geodesic_goes_around_a_circle():
    n = 40
    angle = torch.arange(n, dtype=torch.float64) * (2 * math.pi / n)
    points = torch.stack([angle.cos(), angle.sin()], 1)
    step = 2 * math.sin(math.pi / n)
    found = geodesic(points, neighbours=2)
    assert float(found[0, n // 2]) == pytest.approx(n // 2 * step, rel=1e-12)
    assert float(found[0, 3]) == pytest.approx(3 * step, rel=1e-12)
    assert torch.allclose(geodesic(points, neighbours=n), euclidean(points))
    assert torch.equal(found, found.T)


def test_geodesic_is_infinite_between_parts_and_zero_between_copies():
    points = torch.tensor([[0.0], [0.0], [1.0], [50.0], [51.0]], dtype=torch.float64, requires_grad=True)
    found = geodesic(points, neighbours=1)
    assert float(found[0, 1].detach()) == pytest.approx(0.0, abs=1e-300)
    assert torch.isinf(found[0, 3])
    assert float(geodesic(points.detach(), neighbours=4)[0, 3]) == 50.0
    torch.where(torch.isfinite(found), found, 0.0).sum().backward()
    assert bool(torch.isfinite(points.grad).all())
    with pytest.raises(ValueError, match="neighbours must be a whole number"):
        geodesic(points, neighbours=0)


# --- distortion -----------------------------------------------------------------------------------------------------


def test_a_scaling_has_its_factor_as_stretch():
    points = cloud(30, 3)
    found = distortion(euclidean(points), euclidean(3 * points))
    assert found.error == pytest.approx(2.0)
    assert found.correlation == pytest.approx(1.0)
    assert found.stretch == pytest.approx((3.0, 3.0, 3.0))
    assert (found.largest, found.pairs) == (pytest.approx(3.0), 435)
    assert distortion(euclidean(points), euclidean(points)).error == 0.0


def test_pairs_quantiles_and_copies_count_as_asked():
    before = torch.tensor([[0.0, 1, 2], [1, 0, 0], [2, 0, 0]])
    after = torch.tensor([[0.0, 3, 2], [3, 0, 9], [2, 9, 0]])
    found = distortion(before, after, quantiles=(0.0, 1.0))
    assert found.pairs == 2  # the pair at distance 0 has no stretch
    assert found.stretch == (1.0, 3.0)
    among = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.bool)
    assert distortion(before, after, among).error == 2.0
    assert math.isnan(distortion(before, after, torch.eye(3, dtype=torch.bool)).error)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99))
def test_correlation_is_numpys_and_no_stretch_exceeds_the_norm(seed):
    points = cloud(12, 3, seed)
    weight = cloud(4, 3, seed + 100)
    before, after = euclidean(points), euclidean(points @ weight.T)
    found = distortion(before, after)
    upper = np.triu_indices(12, 1)
    expected = np.corrcoef(before.numpy()[upper], after.numpy()[upper])[0, 1]
    assert found.correlation == pytest.approx(expected, abs=1e-12)
    assert found.largest <= float(torch.linalg.matrix_norm(weight, 2)) * (1 + 1e-12)


def test_constant_distances_have_no_correlation():
    assert math.isnan(pair_correlation(torch.ones(5), torch.arange(5.0)))


def test_histogram_counts_every_pair_once():
    points = cloud(20, 2)
    counts, edges = distance_histogram(euclidean(points), bins=7)
    assert (counts.sum(), len(counts), len(edges), edges[0]) == (190, 7, 8, 0.0)
    few, _ = distance_histogram(euclidean(points), bins=7, top=float(edges[-1]) / 2)
    assert few.sum() < 190
    with pytest.raises(ValueError, match="bins must be at least 1"):
        distance_histogram(euclidean(points), bins=0)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="distances \\[n, n\\]"):
        distortion(torch.zeros(3, 3), torch.zeros(4, 4))
    with pytest.raises(ValueError, match="quantiles must lie"):
        distortion(torch.ones(3, 3), torch.ones(3, 3), quantiles=(2.0,))
    with pytest.raises(ValueError, match="among must have shape"):
        distortion(torch.ones(3, 3), torch.ones(3, 3), torch.ones(2, 2))
    with pytest.raises(ValueError, match="must be finite"):
        distortion(torch.ones(3, 3), torch.full((3, 3), math.nan))
