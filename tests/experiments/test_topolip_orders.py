from __future__ import annotations

import math

import pytest

from lisse.maths.bounds import topolip_attention
from lisse_experiments.topolip.orders import (
    attention_order,
    attention_terms,
    convolution_order,
    resnet_order,
    transformer_order,
)

# The concrete setting of [chen2024] §4.1.
D, M, SIGMA, K, C = 512, 8, 0.05, 3, 512


def test_the_printed_orders():
    assert attention_order(D, SIGMA) == pytest.approx(0.08192)
    assert attention_order(D, SIGMA, heads=M) == pytest.approx(0.741455, abs=1e-6)
    assert convolution_order(K, C, SIGMA) == pytest.approx(15.178933, abs=1e-6)
    assert attention_order(100, 0.01, heads=10) == pytest.approx(1e-6)
    assert convolution_order(10, 100, 0.01) == pytest.approx(10)
    assert convolution_order(K, C, SIGMA, variant="corrected") == pytest.approx(3 * 0.05 * math.sqrt(512))
    assert transformer_order(D, SIGMA, heads=M) == pytest.approx((1, 0.8389, 1.2148), abs=1e-4)
    assert resnet_order(K, C, SIGMA)[1] == pytest.approx(2.03e6, rel=5e-3)
    assert resnet_order(10, 100, 0.01)[1] == pytest.approx(1e4)
    assert resnet_order(K, C, SIGMA, exponent="consistent")[1] == pytest.approx(5064.5, abs=0.1)
    assert resnet_order(10, 100, 0.01, exponent="consistent")[1] == pytest.approx(1)
    assert resnet_order(K, C, SIGMA, exponent="unit")[1] == pytest.approx(27 * 0.05**1.5 * 512**1.5)


@pytest.mark.parametrize("heads", [None, 1, 8])
def test_the_terms_are_the_bound_without_a_tail(heads):
    p = 1.7
    terms = attention_terms(D, SIGMA, p=p, heads=heads)
    bound = topolip_attention(D, SIGMA, p * math.sqrt(D), 0.0, heads=heads, variant="printed")
    assert sum(terms) == pytest.approx(bound.value)
    assert terms[1] / attention_order(D, SIGMA, heads=heads) == pytest.approx((16 if heads is None else 32) * p**2)
    if heads != 8:
        assert terms[0] > terms[1]  # the paper keeps the smaller one


def test_bad_input():
    with pytest.raises(ValueError, match="exponent must be one of printed, consistent, unit, got 'x'"):
        resnet_order(1, 1, 1, exponent="x")
