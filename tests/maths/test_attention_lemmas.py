"""The propositions and lemmas of [vuckovic2021] app. B and C that no function of lisse is named after."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.markov import AttentionKernel, Ball, DotProduct, FiniteKernel, Gaussian, Table, boltzmann_gibbs
from lisse.maths.transport import Measure, wasserstein

seeds = st.integers(0, 10_000)


def cloud(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights(n: int, seed: int = 0) -> torch.Tensor:
    return torch.softmax(cloud(1, n, seed)[0], 0)


@settings(deadline=None, max_examples=40)
@given(seed=seeds, n=st.integers(1, 6), d=st.integers(1, 3), radius=st.floats(0.05, 1.5))
def test_proposition_5_moving_the_query(seed, n, d, radius):
    """W1(Ψ_{G_x} µ, Ψ_{G_y} µ) ≤ ‖G‖_{Lip,∞} diam / ε · ‖x - y‖₁: half of what is printed."""
    ball, g = Ball(d, radius), torch.Generator().manual_seed(seed)
    points, (x, y) = ball(n, g), ball(2, g)
    mu = Measure(points, weights(n, seed))
    moved = wasserstein(boltzmann_gibbs(mu, points @ x), boltzmann_gibbs(mu, points @ y))
    slope, bottom, diameter = radius * math.exp(radius**2), math.exp(-(radius**2)), 2 * radius * math.sqrt(d)
    assert float(moved) <= slope * diameter / bottom * float((x - y).abs().sum()) + 1e-12


@settings(deadline=None, max_examples=25)
@given(seed=seeds, n=st.integers(2, 4), m=st.integers(2, 4), k=st.integers(1, 4))
def test_lemma_1_1_constants_of_compositions_multiply_at_most(seed, n, m, k):
    places, middle, atoms = cloud(n, 2, seed), cloud(m, 2, seed + 1), cloud(k, 2, seed + 2)
    first = FiniteKernel(torch.softmax(cloud(n, m, seed + 3), 1), middle)
    second = FiniteKernel(torch.softmax(cloud(m, k, seed + 4), 1), atoms)
    together = float(first.then(second).contraction(places))
    assert together <= float(first.contraction(places)) * float(second.contraction(middle)) + 1e-9


@settings(deadline=None, max_examples=25)
@given(seed=seeds, n=st.integers(1, 5), m=st.integers(1, 5), d=st.integers(1, 3))
def test_proposition_7_a_lookup_has_the_constant_of_its_function(seed, n, m, d):
    w = cloud(d, d, seed)
    constant = float(w.abs().sum(0).max())  # of tanh(W x): |tanh'| ≤ 1
    x, y = Measure(cloud(n, d, seed + 1), weights(n, seed)), Measure(cloud(m, d, seed + 2), weights(m, seed + 3))
    after = [mu.push(torch.tanh(mu.points @ w.T)) for mu in (x, y)]
    assert float(wasserstein(*after)) <= constant * float(wasserstein(x, y)) + 1e-9


def test_remark_1_a_table_need_not_be_lipschitz():
    kernel = AttentionKernel(DotProduct(), Table(torch.tensor([[0.0], [1e-9]]), torch.tensor([[0.0], [1.0]])))
    keys = kernel.lookup.keys
    near, far = wasserstein(keys[:1], keys[1:]), wasserstein(kernel.lookup(keys[:1]), kernel.lookup(keys[1:]))
    assert float(far / near) > 1e8


@pytest.mark.parametrize("f", [lambda x: torch.sin(3 * x) + x, lambda x: x.abs().sqrt(), lambda x: (x**2).cos()])
def test_lemma_2_near_pairs_tell_the_lipschitz_constant_of_an_interval(f):
    x = torch.linspace(-4, 4, 1001, dtype=torch.float64)
    apart = (x[:, None] - x).abs()
    slopes = torch.where(apart > 0, (f(x)[:, None] - f(x)).abs() / apart.clamp_min(1e-300), 0.0)
    assert float(slopes.max()) == pytest.approx(float(slopes[apart <= 1].max()), rel=1e-12)
    gap = (x[:, None].abs() > 1) & (x.abs() > 1)  # not convex: [-4, -1] and [1, 4]
    step = torch.where(x > 0, 5.0, 0.0)
    far = torch.where(apart > 0, (step[:, None] - step).abs() / apart.clamp_min(1e-300), 0.0)
    assert float(far[gap & (apart <= 1)].max()) == 0 < float(far[gap].max())


@settings(deadline=None, max_examples=40)
@given(seed=seeds, n=st.integers(1, 50), scale=st.floats(0.1, 5))
def test_lemma_3_whatever_the_numbers(seed, n, scale):
    z = scale * cloud(1, n, seed)[0].abs()
    mass = (-(z**2)).exp()
    assert float((z * mass).sum() / (1 + mass.sum())) <= math.sqrt(math.log(n) + 1 / (2 * math.e))


@pytest.mark.parametrize(("d", "sup"), [(1, 2.362), (200, 6.695)])
def test_the_constant_of_proposition_8_is_below_its_cap(d, sup):
    """C = sup 2 (2 + ‖t‖₁) ‖t‖_∞ e^{-‖t‖²}: one coordinate a ≥ the others, which are equal to b at the supremum."""
    a, b = torch.linspace(0, 2, 2001, dtype=torch.float64)[:, None], torch.linspace(0, 0.5, 2001, dtype=torch.float64)
    value = 2 * (2 + a + (d - 1) * b) * a * (-(a**2) - (d - 1) * b**2).exp()
    found = float(torch.where(b <= a, value, 0.0).max())
    assert found == pytest.approx(sup, abs=1e-3)
    assert found < math.sqrt(d) + 2
    t = 0.3 * cloud(2000, d)
    some = 2 * (2 + t.abs().sum(1)) * t.abs().max(1).values * (-(t**2).sum(1)).exp()
    assert float(some.max()) <= found


def test_gaussian_attention_stretches_exponentially_in_the_dimension():
    """One point in the middle of the corners ±√0.2747 of a cube moves: what it does to all grows by 1.14 with d."""
    kernel, side = AttentionKernel(Gaussian()), math.sqrt(math.log(3) / 4)

    def stretch(d: int) -> float:
        corners = side * torch.tensor(list(itertools.product((-1.0, 1.0), repeat=d)), dtype=torch.float64)
        step = torch.zeros(1, d, dtype=torch.float64)
        step[0, 0] = 1

        def outputs(middle: torch.Tensor) -> torch.Tensor:
            points = torch.cat([middle, corners])
            return kernel(points, points).points

        _, moved = torch.autograd.functional.jvp(outputs, torch.zeros(1, d, dtype=torch.float64), step)
        return float(moved.abs().sum())

    found = [stretch(d) for d in range(4, 10)]
    growth = [b / a for a, b in itertools.pairwise(found)]
    assert all(1.13 < factor < 1.45 for factor in growth)  # 1.1397 times what a factor of order d adds
    assert growth == sorted(growth, reverse=True)
