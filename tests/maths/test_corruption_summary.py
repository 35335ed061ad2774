from __future__ import annotations

import pytest
import torch

from lisse.maths.corruption import corruption_errors, mean_corruption_error

ERRORS = {"fog": [0.1, 0.2, 0.3, 0.4, 0.5], "snow": [0.2, 0.2, 0.4, 0.6, 0.6]}
BASE = {"snow": [0.4, 0.8, 0.8, 1.0, 1.0], "fog": [0.2, 0.4, 0.6, 0.8, 1.0]}


def test_without_a_baseline_it_is_the_mean_error():
    assert float(mean_corruption_error(ERRORS)) == pytest.approx(0.35)
    assert corruption_errors(ERRORS).tolist() == pytest.approx([0.3, 0.4])


def test_with_a_baseline_sums_are_divided_before_the_mean():
    assert corruption_errors(ERRORS, BASE).tolist() == pytest.approx([0.5, 0.5])
    uneven = {"fog": [0.5] * 5, "snow": [0.25] * 5}
    assert float(mean_corruption_error(ERRORS, uneven)) == pytest.approx((0.6 + 1.6) / 2)
    # the mean of the ratios at each severity would be another number
    assert float(mean_corruption_error([[0.1, 0.9]], [[0.1, 0.3]])) == pytest.approx(1.0 / 0.4)


def test_properties():
    table = torch.rand(15, 5, dtype=torch.float64)
    assert float(mean_corruption_error(table, table)) == pytest.approx(1)
    assert float(mean_corruption_error(table * 100, table * 50)) == pytest.approx(2)
    assert float(mean_corruption_error(table[torch.randperm(15)])) == pytest.approx(float(table.mean()))
    assert mean_corruption_error(table.float()).dtype == torch.float64
    assert float(mean_corruption_error(table.numpy())) == pytest.approx(float(table.mean()))


@pytest.mark.parametrize(
    ("errors", "baseline", "match"),
    [
        (torch.rand(5), None, r"errors must be \[corruptions, severities\], got shape \(5,\)"),
        ({}, None, "errors must be"),
        ({"fog": [0.1], "snow": [0.1, 0.2]}, None, "as many severities for every corruption, got fog 1, snow 2"),
        ([[float("nan")]], None, "errors must be finite"),
        ([[-0.1]], None, "not negative"),
        ([[0.1]], [[0.1, 0.2]], "baseline must have the shape of errors"),
        ([[0.1]], [[0.0]], "baseline must make some error"),
        (ERRORS, {"fog": [1.0] * 5}, "baseline must hold the corruptions of errors, got a difference: snow"),
    ],
)
def test_bad_input(errors, baseline, match):
    with pytest.raises(ValueError, match=match):
        mean_corruption_error(errors, baseline)
    if baseline is not None:
        with pytest.raises(TypeError, match="kind of errors"):
            mean_corruption_error(ERRORS, [[0.1]])
