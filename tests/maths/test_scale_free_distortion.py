from __future__ import annotations

import math

import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.homology import distance_matrix
from lisse.maths.intervals import bootstrap
from lisse.maths.isometry.distortion import scale_free_distortion


def cloud(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def objective(scale: float, before: torch.Tensor, after: torch.Tensor) -> float:
    upper = torch.ones_like(before).triu(1).bool() & (before > 0)
    return float(((scale * after[upper] - before[upper]).abs() / before[upper]).mean())


def test_by_hand():
    before = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    after = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 4.0], [2.0, 4.0, 0.0]])
    # points 1/4, 1/2, 1 with weights 4, 2, 1: half of 7 is reached at the first
    result = scale_free_distortion(before, after, groups=[0, 0, 1])
    assert result.scale == 0.25
    assert result.error == pytest.approx((0.75 + 0.5 + 0) / 3)
    assert (result.within, result.between) == (0.75, 0.25)
    means = torch.tensor([(0.75 + 0.5) / 2, (0.75 + 0) / 2, (0.5 + 0) / 2], dtype=torch.float64)
    torch.testing.assert_close(result.influence, 2 * means - result.error)
    assert result.pairs == 3


def test_a_cloud_that_falls_into_a_point():
    result = scale_free_distortion(distance_matrix(cloud(5, 2)), torch.zeros(5, 5))
    assert result.error == 1
    assert math.isnan(result.scale)
    assert result.influence.tolist() == [1] * 5


def test_a_similarity_has_none_and_pairs_at_zero_are_left_out():
    x = torch.cat([cloud(6, 3), cloud(6, 3)[:2]])
    rotation = torch.linalg.qr(cloud(3, 3, 1))[0]
    result = scale_free_distortion(distance_matrix(x), distance_matrix(7 * x @ rotation + 3))
    assert result.error < 1e-12
    assert result.scale == pytest.approx(1 / 7)
    assert result.pairs == 8 * 7 // 2 - 2


@settings(max_examples=40)
@given(st.integers(3, 15), st.integers(0, 1000), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_neither_unit_counts(n, seed, first, second):
    x, z = cloud(n, 3, seed), cloud(n, 4, seed + 1)
    groups = [index % 2 for index in range(n)]
    rotation = torch.linalg.qr(cloud(4, 4, seed + 2))[0]
    base = scale_free_distortion(distance_matrix(x), distance_matrix(z), groups=groups)
    moved = scale_free_distortion(
        distance_matrix(first * x + 5), distance_matrix(second * z @ rotation - 2), groups=groups
    )
    assert moved.error == pytest.approx(base.error, rel=1e-6)
    assert (moved.within, moved.between) == pytest.approx((base.within, base.between), rel=1e-6)
    assert moved.scale == pytest.approx(base.scale * first / second, rel=1e-6)
    assert 0 <= base.error <= 1
    assert float(base.influence.mean()) == pytest.approx(base.error)
    torch.testing.assert_close(moved.influence, base.influence, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_scipy_finds_no_better_factor(seed):
    before, after = distance_matrix(cloud(9, 3, seed)), distance_matrix(cloud(9, 4, seed + 100).exp())
    result = scale_free_distortion(before, after)
    assert objective(result.scale, before, after) == pytest.approx(result.error, rel=1e-12)
    best = scipy.optimize.minimize_scalar(
        lambda a: objective(a, before, after), bounds=(0, 5 * result.scale), method="bounded", options={"xatol": 1e-10}
    )
    assert result.error <= best.fun + 1e-9
    assert result.error == pytest.approx(best.fun, rel=1e-5)


def test_the_influence_is_what_a_point_does_to_the_error():
    """Leaving a point out moves the error by its influence over n - 1, to first order."""
    n = 300
    x = cloud(n, 3)
    before, after = distance_matrix(x), distance_matrix(x + 0.5 * x.sin() * cloud(1, 3, 1))
    result = scale_free_distortion(before, after)
    for index in range(0, n, 60):
        remaining = [other for other in range(n) if other != index]
        error = scale_free_distortion(before[remaining][:, remaining], after[remaining][:, remaining]).error
        step = float(result.influence[index]) - result.error
        assert (n - 1) * (result.error - error) == pytest.approx(step, rel=0.05, abs=0.01)


@pytest.mark.slow
def test_its_bootstrap_covers_what_many_points_give():
    """500 draws of 50 points, the interval of the mean influence: a share of 0.95 has a standard error of 0.0097; four
    of those, and 3 % for a bootstrap of 50. The means over the pairs of a point cover about 0.7 only."""

    def draw(n, seed):
        x = cloud(n, 2, seed)
        return distance_matrix(x), distance_matrix(torch.tanh(1.5 * x))

    truth = sum(scale_free_distortion(*draw(1500, 10_000 + seed)).error for seed in range(4)) / 4
    covered = narrow = 0
    for seed in range(500):
        result = scale_free_distortion(*draw(50, seed))
        for factor in (1.0, 0.5):
            values = result.error + factor * (result.influence - result.error)
            interval = bootstrap(values, generator=torch.Generator().manual_seed(seed), resamples=500)
            inside = bool(interval.low <= truth <= interval.high)
            covered, narrow = covered + inside * (factor == 1), narrow + inside * (factor != 1)
    assert 0.95 - 0.03 - 0.039 < covered / 500 < 0.95 + 0.039
    assert narrow / 500 < 0.8


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: scale_free_distortion(torch.ones(3, 2), torch.ones(3, 2)), r"distances \[n, n\]"),
        (lambda: scale_free_distortion(torch.ones(3, 3), torch.ones(2, 2)), r"got \[3, 3\] and \[2, 2\]"),
        (lambda: scale_free_distortion(torch.zeros(1, 1), torch.zeros(1, 1)), "2 points or more"),
        (lambda: scale_free_distortion(torch.zeros(3, 3), torch.ones(3, 3)), "all of them at distance 0"),
        (lambda: scale_free_distortion(torch.full((2, 2), math.nan), torch.ones(2, 2)), "must be finite"),
        (lambda: scale_free_distortion(torch.ones(2, 2), -torch.ones(2, 2)), "at least 0, got -1"),
        (lambda: scale_free_distortion(torch.ones(2, 2), torch.ones(2, 2), groups=[1]), "one label per point"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match):
        call()
