"""W∞ between point sets: closed forms, the limit of W_p, a brute-force and a linear-programme oracle, bad input."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.transport import Measure, exact, wasserstein, wasserstein_infinity


def points(n, d, seed):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_one_atom_and_the_line_have_closed_forms():
    x, y = torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)
    assert [float(wasserstein_infinity(x, y, ground=g)) for g in (1, 2, math.inf)] == [7.0, 5.0, 4.0]
    # One atom against several goes to all of them: the furthest counts.
    assert float(wasserstein_infinity(torch.zeros(1, 1), torch.tensor([[1.0], [-2.0], [0.5]]))) == 2.0
    # On the line the monotone coupling is optimal: quantiles of 0, 6 beside those of 0, 1, 6.
    assert float(wasserstein_infinity(torch.tensor([[0.0], [6.0]]), torch.tensor([[0.0], [1.0], [6.0]]))) == 5.0
    # The worst pair counts, also where the sum would pair otherwise: 0, 2 and 2, 3 are 2 apart as sets, not 3.
    assert float(wasserstein_infinity(torch.tensor([[0.0], [2.0]]), torch.tensor([[2.0], [3.0]]))) == 2.0


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3), st.integers(0, 10**6))
def test_it_is_a_distance_over_every_w_p_and_sees_no_order_no_copies_and_no_shift(n, m, d, seed):
    x, y = points(n, d, seed), points(m, d, seed + 1)
    value = float(wasserstein_infinity(x, y))
    assert value == float(wasserstein_infinity(y.flip(0), x.roll(1, 0)))
    assert float(wasserstein_infinity(x, x.flip(0))) == 0.0
    assert float(wasserstein_infinity(x.repeat(2, 1), y)) == pytest.approx(value)
    assert float(wasserstein_infinity(x + 1, y + 1)) == pytest.approx(value)
    assert float(wasserstein(x, y, p=2, ground=2)) <= value * (1 + 1e-9)
    z = points(3, d, seed + 2)
    assert value <= float(wasserstein_infinity(x, z) + wasserstein_infinity(z, y)) * (1 + 1e-9)


@pytest.mark.parametrize("ground", [1, 2, math.inf])
def test_it_is_the_best_of_all_permutations_of_repeated_tokens(ground):
    for n, m in ((4, 4), (2, 3), (2, 6), (5, 1)):
        x, y = points(n, 2, n), points(m, 2, 9 + m)
        total = math.lcm(n, m)
        costs = torch.cdist(x.repeat_interleave(total // n, 0), y.repeat_interleave(total // m, 0), p=ground)
        best = min(float(costs[range(total), list(order)].max()) for order in itertools.permutations(range(total)))
        assert float(wasserstein_infinity(x, y, ground=ground)) == pytest.approx(best, rel=1e-12)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.integers(0, 10**6), st.sampled_from([2, 5, 10**6]))
def test_paths_and_bisection_agree(n, seed, levels):
    costs = np.random.default_rng(seed).integers(0, levels, (n, n)).astype(float)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "loops", lambda _: None)
        expected = exact.bottleneck(costs)
    assert exact.bottleneck(costs) == expected


def test_below_it_no_linear_programme_carries_the_mass():
    from scipy.optimize import linprog

    for n, m in ((7, 7), (5, 8), (9, 6)):
        x, y = points(n, 3, n), points(m, 3, 20 + m)
        value, costs = float(wasserstein_infinity(x, y)), torch.cdist(x, y).numpy()
        rows = np.vstack([np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))])
        masses = np.r_[np.full(n, 1 / n), np.full(m, 1 / m)]
        for edge, feasible in ((value * (1 + 1e-9), True), (value * (1 - 1e-9), False)):
            ends = [(0, None if near else 0) for near in (costs <= edge).ravel()]
            assert (linprog(np.zeros(n * m), A_eq=rows, b_eq=masses, bounds=ends).status == 0) is feasible


@pytest.mark.gpu
def test_it_comes_back_where_the_points_are():
    x, y = points(4, 2, 0).cuda(), points(5, 2, 1).cuda()
    assert wasserstein_infinity(x, y).is_cuda


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match=r"wasserstein_infinity: x and y must have one dimension, got 2 and 3"):
        wasserstein_infinity(points(2, 2, 0), points(2, 3, 0))
    with pytest.raises(ValueError, match=r"wasserstein_infinity: x and y must have equal weights"):
        wasserstein_infinity(Measure(points(2, 2, 0), torch.tensor([0.3, 0.7])), points(2, 2, 1))
    with pytest.raises(ValueError, match=r"wasserstein_infinity: ground must be 1, 2 or inf, got 3"):
        wasserstein_infinity(points(2, 2, 0), points(2, 2, 1), ground=3)
    with pytest.raises(ValueError, match="finite"):
        wasserstein_infinity(points(2, 2, 0) / 0, points(2, 2, 1))
