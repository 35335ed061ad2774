from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lisse.maths.change_rate import change_rate, cumulative_rate, mean_rate, rate_curve, topolip

# By hand: layers [B, D, C, E, B], H0, W1, ground l2
REFERENCE = torch.tensor([7.449853620, 8.074164531, 2.886323375, 2.38566014], dtype=torch.float64)

positive = st.floats(1e-3, 1e3)
walks = st.lists(positive, min_size=2, max_size=12)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def test_the_reference_pipeline():
    rates = change_rate(REFERENCE)
    assert rates.tolist() == pytest.approx([0.08380177, 0.64252359, 0.17346055], abs=1e-7)
    assert float(topolip(rates)) == pytest.approx(0.6425235869, abs=1e-8)
    assert cumulative_rate(rates).tolist() == pytest.approx([0.08380177, 0.72632536, 0.89978591], abs=1e-7)
    assert float(mean_rate(rates)) == pytest.approx(0.89978591 / 3, abs=1e-7)
    five = rate_curve(rates, points=5)
    halves = [(0.08380177 + 0.64252359) / 2, (0.64252359 + 0.17346055) / 2]
    assert five.tolist() == pytest.approx([0.08380177, halves[0], 0.64252359, halves[1], 0.17346055], abs=1e-7)


def test_a_geometric_sequence_has_a_constant_rate():
    rates = change_rate(tensor([3.0 * 1.5**k for k in range(6)]))
    assert rates.tolist() == pytest.approx([0.5] * 5)
    assert float(topolip(rates)) == pytest.approx(0.5)
    assert cumulative_rate(rates).tolist() == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.5])
    assert rate_curve(rates).tolist() == pytest.approx([0.5] * 101)


def test_equal_layers_have_no_rate_and_are_left_out():
    rates = change_rate(tensor([2.0, 0.0, 3.0, 6.0]))
    assert rates[0] == 1.0
    assert math.isnan(rates[1])
    assert rates[2] == 1.0
    assert float(topolip(rates)) == 1.0
    assert float(mean_rate(rates)) == 1.0
    assert cumulative_rate(rates).tolist() == [1.0, 1.0, 2.0]
    drawn = rate_curve(rates, points=5)
    assert drawn[[0, 4]].tolist() == [1.0, 1.0]
    assert drawn[1:4].isnan().all()
    nothing = change_rate(tensor([0.0, 0.0, 0.0]))
    assert math.isnan(topolip(nothing))
    assert math.isnan(mean_rate(nothing))
    assert cumulative_rate(nothing).tolist() == [0.0, 0.0]


def test_a_missing_distance_makes_the_rates_beside_it_missing():
    rates = change_rate(tensor([1.0, 2.0, math.nan, 2.0, 3.0]))
    assert [math.isnan(rate) for rate in rates] == [False, True, True, False]
    assert float(topolip(rates)) == 1.0


@given(walks, st.floats(1e-3, 1e3))
def test_properties_of_rates(values, factor):
    """Rates are at least 0 and scale-free, the cumulative one grows, interpolation never exceeds the maximum."""
    rates = change_rate(tensor(values))
    assert (rates >= 0).all()
    assert change_rate(tensor(values) * factor).tolist() == pytest.approx(rates.tolist(), rel=1e-9, abs=1e-9)
    assert (cumulative_rate(rates).diff() >= 0).all()
    for points in (2, 7, 101):
        assert rate_curve(rates, points=points).max() <= topolip(rates)
        assert rate_curve(rates, points=points).min() >= rates.min()
    assert float(mean_rate(rates)) <= float(topolip(rates)) * (1 + 1e-12)


@given(st.lists(positive, min_size=1, max_size=12), st.integers(2, 60))
def test_the_landscape_is_numpys_interpolation(values, points):
    expected = np.interp(np.linspace(0, 1, points), np.linspace(0, 1, len(values)), values)
    assert rate_curve(tensor(values), points=points).tolist() == pytest.approx(expected.tolist(), rel=1e-9)


@given(st.lists(st.tuples(positive, positive, positive, positive), min_size=1, max_size=5))
def test_several_sequences_at_once_are_each_alone(rows):
    together = change_rate(tensor(rows))
    for row, rates in zip(rows, together, strict=True):
        alone = change_rate(tensor(row))
        assert torch.equal(rates, alone)
    assert torch.equal(topolip(together), torch.stack([topolip(rates) for rates in together]))
    assert torch.equal(rate_curve(together), torch.stack([rate_curve(rates) for rates in together]))


def test_cumulating_and_interpolating_do_not_commute():
    rates = tensor([1.0, 0.0, 2.0])
    assert rate_curve(cumulative_rate(rates))[-1] == 3
    assert cumulative_rate(rate_curve(rates))[-1] > 3


def test_precision_and_arrays():
    assert change_rate(REFERENCE.float()).dtype == torch.float32
    assert torch.equal(change_rate(REFERENCE.numpy()), change_rate(REFERENCE))
    assert change_rate([2, 4, 1]).tolist() == [1.0, 0.75]


def test_bad_input():
    with pytest.raises(ValueError, match=r"^change_rate: distances must hold at least 2 values, got 1\."):
        change_rate(tensor([1.0]))
    with pytest.raises(ValueError, match=r"^change_rate: distances must have layers on the last axis"):
        change_rate(tensor(1.0))
    with pytest.raises(ValueError, match=r"^change_rate: distances must not be negative, got -2\."):
        change_rate(tensor([1.0, -2.0]))
    with pytest.raises(ValueError, match=r"^change_rate: distances must be finite"):
        change_rate(tensor([1.0, math.inf]))
    with pytest.raises(ValueError, match=r"^rate_curve: points must be at least 2, got 1\."):
        rate_curve(tensor([1.0, 2.0]), points=1)
    with pytest.raises(ValueError, match=r"^topolip: there must be at least one value"):
        topolip(tensor([]))
