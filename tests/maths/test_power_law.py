from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lisse.maths.power_law import geometric_mean, power_law


def points(n: int = 12, noise: float = 0.2, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(n, generator=generator, dtype=torch.float64) - 2).exp()
    return x, 0.24 * x**0.5 * (noise * torch.randn(n, generator=generator, dtype=torch.float64)).exp()


@given(a=st.floats(1e-3, 1e3), b=st.floats(-3, 3))
@settings(max_examples=30, deadline=None)
def test_an_exact_law_is_found(a, b):
    x = torch.tensor([0.1, 0.2, 0.7, 3.0], dtype=torch.float64)
    law = power_law(x, a * x**b)
    assert float(law.slope.value) == pytest.approx(b, abs=1e-9)
    assert float(law.prefactor.value) == pytest.approx(a, rel=1e-9)
    assert law.residual == pytest.approx(0, abs=1e-7)
    torch.testing.assert_close(law(x), a * x**b)


def test_against_scipy():
    x, y = points()
    law = power_law(x, y)
    theirs = stats.linregress(x.log().numpy(), y.log().numpy())
    t = stats.t.ppf(0.975, 10)
    assert float(law.slope.value) == pytest.approx(theirs.slope)
    assert float(law.slope.high - law.slope.value) == pytest.approx(t * theirs.stderr)
    assert float(law.prefactor.value) == pytest.approx(math.exp(theirs.intercept))
    assert float(law.prefactor.low) == pytest.approx(math.exp(theirs.intercept - t * theirs.intercept_stderr))
    assert float(law.correlation.value) == pytest.approx(theirs.rvalue)
    low, high = stats.pearsonr(x.log().numpy(), y.log().numpy()).confidence_interval(0.95)
    assert float(law.correlation.low) == pytest.approx(low)
    assert float(law.correlation.high) == pytest.approx(high)
    assert not law.fixed
    assert law.n == 12


def test_a_fixed_slope_leaves_the_prefactor():
    x, y = points()
    law = power_law(x, y, slope=0.5)
    logs = (y / x.sqrt()).log()
    assert law.fixed
    assert float(law.slope.value) == float(law.slope.low) == float(law.slope.high) == 0.5
    assert float(law.prefactor.value) == pytest.approx(float(logs.mean().exp()))
    half = stats.t.ppf(0.975, 11) * float(logs.std()) / 12**0.5
    assert float(law.prefactor.high) == pytest.approx(float((logs.mean() + half).exp()))
    assert float(power_law(x, y).slope.value) != 0.5


def test_intervals_cover():
    hits = torch.zeros(2)
    for seed in range(200):
        law = power_law(*points(seed=seed))
        hits += torch.tensor([law.slope.low <= 0.5 <= law.slope.high, law.prefactor.low <= 0.24 <= law.prefactor.high])
    assert (hits >= 200 * (0.95 - 5 * (0.95 * 0.05 / 200) ** 0.5)).all()


def test_the_level_widens():
    x, y = points()
    half, most = power_law(x, y, level=0.5), power_law(x, y)
    for name in ("slope", "prefactor", "correlation"):
        assert getattr(half, name).high < getattr(most, name).high
        assert getattr(half, name).low > getattr(most, name).low


def test_three_points_and_a_flat_line():
    law = power_law(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 3.0, 4.0]))
    assert (float(law.correlation.low), float(law.correlation.high)) == (-1, 1)
    assert math.isnan(power_law(torch.tensor([1.0, 2.0, 4.0]), torch.ones(3)).correlation.value)


def test_geometric_means():
    found = geometric_mean(torch.tensor([1.0, 4.0, 16.0]))
    assert float(found.value) == pytest.approx(4.0)
    half = stats.t.ppf(0.975, 2) * math.log(4) / 3**0.5
    assert float(found.high) == pytest.approx(4 * math.exp(half))
    assert float(found.low) == pytest.approx(4 * math.exp(-half))
    assert geometric_mean([1.0, 4.0, 16.0], level=0.5).high < found.high
    one = geometric_mean(torch.tensor([3.0]))
    assert float(one.value) == pytest.approx(3.0)
    assert math.isnan(one.low)


def test_bad_arguments():
    good = torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"power_law: y must be positive and finite, got 0\.0"):
        power_law(good, torch.tensor([1.0, 0.0, 2.0]))
    with pytest.raises(ValueError, match="power_law: x must be positive and finite, got nan"):
        power_law(torch.tensor([1.0, math.nan, 2.0]), good)
    with pytest.raises(ValueError, match="y must have one value per x, got 2 for 3"):
        power_law(good, good[:2])
    with pytest.raises(ValueError, match="x must hold at least 3 points, got 2"):
        power_law(good[:2], good[:2])
    with pytest.raises(ValueError, match="x must hold different values"):
        power_law(torch.ones(3), good)
    with pytest.raises(ValueError, match=r"level must lie in \(0, 1\), got 1"):
        power_law(good, good, level=1)
    with pytest.raises(ValueError, match=r"geometric_mean: values must be numbers in one row, got shape \[1, 3\]"):
        geometric_mean(good[None])
