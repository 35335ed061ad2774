"""The bounds of the attention paper: reference values, the counterexamples of its errata, and what holds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.bounds import (
    attention_gaussian,
    attention_on_ball,
    boltzmann_gibbs_lipschitz,
    key_lipschitz,
    lookup_norm,
    query_lipschitz,
)
from lisse.maths.markov import (
    AttentionKernel,
    Ball,
    Bilinear,
    Box,
    CrossPolytope,
    DotProduct,
    Gaussian,
    boltzmann_gibbs,
)
from lisse.maths.transport import Measure, wasserstein

DOMAINS = {"ball": Ball, "box": Box, "l1": CrossPolytope}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cloud(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=generator(seed), dtype=torch.float64)


# --- values ---------------------------------------------------------------------------------------------------------


def test_the_reference_values_of_theorem_1():
    assert attention_on_ball(2, 0.5, variant="printed").value == pytest.approx(9.3265759264, abs=1e-10)
    assert attention_on_ball(2, 0.5).value == pytest.approx(3.9803652523, abs=1e-10)
    assert attention_on_ball(2, 1.0, variant="printed").value == pytest.approx(167.2, abs=0.05)
    assert attention_on_ball(2, 1.0).value == pytest.approx(49.2, abs=0.05)
    for radius, printed in ((0.1, 0.0816), (0.2, 0.3467), (0.3, 0.8620)):
        assert attention_on_ball(1, radius, variant="printed").value == pytest.approx(printed, abs=5e-5)


@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("radius", [0.3, 2.0])
def test_closed_forms_on_every_domain(d, radius):
    r2 = radius**2
    slope = {"ball": 4 * d**0.5 * r2, "l1": 4 * r2, "box": 4 * d * r2}
    reach = {"ball": 2 * r2, "l1": 2 * r2, "box": 2 * d * r2}
    for domain in DOMAINS:
        assert attention_on_ball(d, radius, domain=domain).value == pytest.approx(
            (slope[domain] + 1) * math.exp(reach[domain])
        )
        assert attention_on_ball(d, radius, domain=domain, variant="printed").value == pytest.approx(
            2 * d * slope[domain] * math.exp(reach[domain])
        )
    scaled = attention_on_ball(d, radius, potential="scaled").value
    assert scaled == pytest.approx((4 * r2 + 1) * math.exp(2 * r2 / d**0.5))
    assert scaled == pytest.approx(attention_on_ball(d, radius, potential=DotProduct(d**-0.5)).value)
    gauss = attention_on_ball(d, radius, potential=Gaussian(0.5)).value
    assert gauss == pytest.approx((2 * math.sqrt(1 / math.e) * 2 * radius * d**0.5 + 1) * math.exp(2 * r2))
    assert attention_on_ball(d, radius, lookup=2.5).value == pytest.approx(2.5 * attention_on_ball(d, radius).value)


@pytest.mark.parametrize("domain", list(DOMAINS))
def test_a_bilinear_potential_that_is_the_dot_product_gives_its_bound(domain):
    eye = torch.eye(3, dtype=torch.float64)
    found = attention_on_ball(3, 0.4, potential=Bilinear(eye, eye), domain=domain)
    assert found.value == pytest.approx(attention_on_ball(3, 0.4, domain=domain).value)
    biased = Bilinear(eye, eye, bq=torch.tensor([0.1, 0.0, 0.0], dtype=torch.float64))
    assert attention_on_ball(3, 0.4, potential=biased, domain=domain).value > found.value
    # A key's bias adds what is constant in the keys, and cancels.
    free = Bilinear(eye, eye, bk=torch.tensor([9.0, 0.0, 0.0], dtype=torch.float64))
    assert attention_on_ball(3, 0.4, potential=free, domain=domain).value == pytest.approx(found.value)


@pytest.mark.parametrize("domain", list(DOMAINS))
@pytest.mark.parametrize("seed", range(3))
def test_the_constants_of_a_bilinear_potential_bound_its_logits_and_slopes(domain, seed):
    from lisse.maths.bounds.attention import constants_of

    potential = Bilinear(cloud(2, 3, seed), cloud(2, 3, seed + 1), 0.7, bq=cloud(1, 2, seed + 2)[0])
    found = constants_of("f", 3, 0.8, potential, domain)
    x, y = (DOMAINS[domain](3, 0.8)(300, generator(s)) for s in (5, 6))
    logits = potential(x, y)
    assert float((logits.amax(1) - logits.amin(1)).max()) <= found.reach
    x.requires_grad_()
    y = y.clone().requires_grad_()
    gx, gy = torch.autograd.grad((potential.matrix @ y[0]) @ x[0], (x, y))
    assert float(gx.abs().max()) <= found.slope_x
    gx, gy = torch.autograd.grad(potential(x[:1], y).sum(), (x, y))
    assert float(gy.abs().max()) <= found.slope_y


def test_the_reference_values_of_theorem_2():
    for n, intended, literal in ((2, 9.6066418121, 9.9806629210), (16, 10.949774271, 11.645772143)):
        assert attention_gaussian(n, 1).value == pytest.approx(intended, abs=1e-8)
        assert attention_gaussian(n, 1, variant="printed").value == pytest.approx(literal, abs=1e-8)
    bound = attention_gaussian(16, 3, lookup=2.0)
    assert bound.value == pytest.approx(2 * attention_gaussian(16, 3).value)
    assert bound.kind == "heuristic"
    assert not bound.valid


def test_large_radii_keep_their_logarithm():
    bound = attention_on_ball(768, 50.0)
    assert bound.value == math.inf
    assert bound.log10 == pytest.approx((5000 + math.log(4 * 768**0.5 * 2500 + 1)) / math.log(10))


def test_the_norm_of_a_linear_lookup():
    assert lookup_norm(torch.tensor([[1.0, -2.0], [0.5, 3.0]])) == 5.0


def test_kinds():
    assert attention_on_ball(2, 0.5).kind == "upper"
    assert attention_on_ball(2, 0.5).valid
    small = attention_on_ball(1, 0.2, variant="printed")
    assert small.kind == "heuristic"
    assert not small.valid
    assert "drops" in small.reason
    assert attention_on_ball(2, 1.0, variant="printed").reason == ""  # larger than what is proved
    assert query_lipschitz(2, 0.5, variant="printed").valid


# --- errata: what is false, and its replacement ---------------------------------------------------------------------


def test_e1_a_constant_potential_is_the_identity():
    mu, nu = Measure(cloud(3, 2)), Measure(cloud(4, 2, 1))
    moved = wasserstein(boltzmann_gibbs(mu, torch.zeros(3)), boltzmann_gibbs(nu, torch.zeros(4)))
    torch.testing.assert_close(moved, wasserstein(mu, nu))
    printed = boltzmann_gibbs_lipschitz(0.0, 1.0, 1.0, 4.0, variant="printed")
    assert printed.value == 0
    assert not printed.valid
    assert boltzmann_gibbs_lipschitz(0.0, 1.0, 1.0, 4.0).value == pytest.approx(1)
    assert boltzmann_gibbs_lipschitz(2.0, 3.0, 0.5, 4.0).value == pytest.approx(22)
    assert boltzmann_gibbs_lipschitz(2.0, 3.0, 0.5, 4.0, variant="printed").value == pytest.approx(32)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 5),
    m=st.integers(1, 5),
    d=st.integers(1, 3),
    radius=st.floats(0.05, 1.5),
)
def test_the_corrected_inequality_of_e1(seed, n, m, d, radius):
    ball, g = Ball(d, radius), generator(seed)
    x, y, q = ball(n, g), ball(m, g), ball(1, g)
    top = math.exp(float(q.norm()) * radius)
    constant = boltzmann_gibbs_lipschitz(float(q.abs().max()) * top, top, 1 / top, 2 * radius * d**0.5).value
    moved = wasserstein(boltzmann_gibbs(x, (x @ q.T)[:, 0]), boltzmann_gibbs(y, (y @ q.T)[:, 0]))
    assert float(moved) <= constant * float(wasserstein(x, y)) + 1e-12


def test_e3_the_query_zero_moves_with_the_mean_of_its_keys():
    i, j = torch.arange(1, 4).double()[:, None], torch.arange(1, 3).double()
    x = torch.sin(i * j) + 0.5 * torch.cos(0.5 * i + j)
    i = torch.arange(1, 6).double()[:, None]
    y = torch.sin(0.8 * i * j) + 0.5 * torch.cos(0.3 * i + j)
    zero = torch.zeros(1, 2, dtype=torch.float64)
    kernel = AttentionKernel(DotProduct())
    moved = float((kernel(zero, x).points - kernel(zero, y).points).norm())
    assert moved == pytest.approx(float((x.mean(0) - y.mean(0)).norm()))
    assert moved > 0.3
    assert key_lipschitz(2, 2.0, query=zero[0], variant="printed").value == 0
    assert moved <= key_lipschitz(2, 2.0, query=zero[0]).value * float(wasserstein(x, y))


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 5),
    m=st.integers(1, 5),
    d=st.integers(1, 3),
    radius=st.floats(0.05, 1.5),
    domain=st.sampled_from(list(DOMAINS)),
    bilinear=st.booleans(),
)
def test_queries_keys_and_both_stay_within_their_bounds(seed, n, m, d, radius, domain, bilinear):
    space, g = DOMAINS[domain](d, radius), generator(seed)
    potential = (
        Bilinear(cloud(2, d, seed), cloud(2, d, seed + 1), bq=cloud(1, 2, seed)[0]) if bilinear else DotProduct()
    )
    kernel = AttentionKernel(potential)
    x, y, q = space(n, g), space(m, g), space(2, g)
    options = {"potential": potential, "domain": domain}
    a, b = kernel(q, x).points
    apart = float((q[0] - q[1]).norm())
    for variant in ("corrected", "printed"):  # corollary 1 is true as printed
        assert float((a - b).norm()) <= query_lipschitz(d, radius, variant=variant, **options).value * apart + 1e-12
    near = float(wasserstein(x, y))
    moved = float((kernel(q[:1], x).points - kernel(q[:1], y).points).abs().sum())
    assert moved <= key_lipschitz(d, radius, query=q[0], **options).value * near + 1e-12
    assert key_lipschitz(d, radius, query=q[0], **options).value <= key_lipschitz(d, radius, **options).value * (
        1 + 1e-9
    )
    both = float(wasserstein(kernel(x, x), kernel(y, y)))
    assert both <= attention_on_ball(d, radius, **options).value * near + 1e-12


@pytest.mark.parametrize(("n", "violated"), [(4, False), (8, True), (100, True)])
def test_e5_proposition_8_loses_a_factor_n(n, violated):
    """X = {0, 1, 100, …}, Y = {0, 1.001, 100, …}, x = y = 0: the ratio is 0.66179 N."""
    x = torch.full((n, 1), 100.0, dtype=torch.float64)
    x[0], x[1] = 0, 1
    y = x.clone()
    y[1] = 1.001
    moved = wasserstein(boltzmann_gibbs(x, -(x[:, 0] ** 2)), boltzmann_gibbs(y, -(y[:, 0] ** 2)))
    ratio = float(moved / wasserstein(x, y))
    assert ratio == pytest.approx(0.66179 * n, rel=1e-4)
    bracket = attention_gaussian(n, 1).value / 2  # 2 d τ(L) [bracket] at d = 1
    assert (ratio > bracket) == violated


def _spread(k: int, r: float, centre: float) -> torch.Tensor:
    side = torch.full((k, 1), r, dtype=torch.float64)
    return torch.cat([-side, torch.full((1, 1), centre, dtype=torch.float64), side])


def test_e6_theorem_2_is_exceeded_by_24001_points():
    k, r, eps = 12000, 2.86, 1e-3
    kernel = AttentionKernel(Gaussian())

    def image(x):  # only three different places: their weighted measure is the same measure
        places, counts = torch.unique(x[:, 0], return_counts=True)
        mu = Measure(places[:, None], counts.double() / len(x))
        return kernel(mu, mu), mu

    (a, mu), (b, nu) = image(_spread(k, r, 0.0)), image(_spread(k, r, eps))
    ratio = float(wasserstein(a, b) / wasserstein(mu, nu))
    assert ratio == pytest.approx(14.380089, abs=2e-6)
    assert attention_gaussian(2 * k + 1, 1).value == pytest.approx(13.497668, abs=1e-6)
    assert ratio > attention_gaussian(2 * k + 1, 1).value


def test_e7_a_single_token_is_mapped_to_its_value():
    x, y = cloud(1, 3), cloud(1, 3, 1)
    kernel = AttentionKernel(DotProduct())
    torch.testing.assert_close(wasserstein(kernel(x, x), kernel(y, y)), wasserstein(x, y))


def test_lemma_3_is_true_and_loose():
    for n, expected, cap in ((1, 0.2779, 0.4289), (10_000, 2.394, 3.065)):
        x = torch.linspace(0, 6, 200_001, dtype=torch.float64)
        sup = float((n * x * (-x * x).exp() / (1 + n * (-x * x).exp())).max())
        assert sup == pytest.approx(expected, abs=5e-4)
        assert math.sqrt(math.log(n) + 1 / (2 * math.e)) == pytest.approx(cap, abs=5e-4)


# --- bad input ------------------------------------------------------------------------------------------------------


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="d must be a whole number"):
        attention_on_ball(0, 1.0)
    with pytest.raises(ValueError, match="radius must be finite and not negative"):
        attention_on_ball(2, -1.0)
    with pytest.raises(ValueError, match="lookup must be finite"):
        attention_on_ball(2, 1.0, lookup=-1)
    with pytest.raises(ValueError, match="domain must be 'ball', 'box' or 'l1', got 'cube'"):
        attention_on_ball(2, 1.0, domain="cube")
    with pytest.raises(ValueError, match="potential must be 'dot', 'scaled' or"):
        attention_on_ball(2, 1.0, potential="cosine")
    with pytest.raises(ValueError, match=r"must act on R\^2"):
        attention_on_ball(2, 1.0, potential=Bilinear(torch.eye(3), torch.eye(3)))
    with pytest.raises(ValueError, match="variant must be"):
        attention_on_ball(2, 1.0, variant="best")
    with pytest.raises(ValueError, match="query must have 2 coordinates, got 3"):
        key_lipschitz(2, 1.0, query=torch.zeros(3))
    with pytest.raises(ValueError, match="left out for a Gaussian"):
        key_lipschitz(2, 1.0, query=torch.zeros(2), potential=Gaussian())
    with pytest.raises(ValueError, match="bottom must be positive"):
        boltzmann_gibbs_lipschitz(1.0, 1.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="finite matrix"):
        lookup_norm(torch.zeros(3))
