from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.bounds import (
    Bound,
    batch_norm_lipschitz,
    convolution_tail_probability,
    layer_norm_lipschitz,
    mean_field_attention,
    mean_field_attention_below,
    mean_field_multi_head,
    sequence_attention,
    tail_probability,
    topolip_attention,
    topolip_bound,
    topolip_convolution,
    topolip_resnet,
    topolip_transformer,
)

# The concrete setting of [chen2024] §4.1, with t = 2√d and s = 2σ, and its first one.
D, M, SIGMA, K, C = 512, 8, 0.05, 3, 512
T, S = 2 * math.sqrt(D), 2 * SIGMA


# --- attention --------------------------------------------------------------------------------------------------------


def test_printed_attention_has_the_full_numbers():
    assert topolip_attention(D, SIGMA, T, S, variant="printed").value == pytest.approx(16.6617, abs=1e-4)
    assert topolip_attention(D, SIGMA, T, S, heads=M, variant="printed").value == pytest.approx(184.2854, abs=1e-4)
    best = topolip_attention(D, SIGMA, math.sqrt(D), SIGMA * math.sqrt(2 * math.log(2)), heads=M, variant="printed")
    assert best.value == pytest.approx(60.789, abs=1e-3)
    first = topolip_attention(100, 0.01, 20, 0.02, heads=10, variant="printed")
    assert first.value == pytest.approx(0.06141, abs=1e-5)


def test_one_head_is_not_the_single_head_formula():
    a = 2 * SIGMA * math.sqrt(D) + S
    single = topolip_attention(D, SIGMA, T, S, variant="printed").value
    assert topolip_attention(D, SIGMA, T, S, heads=1, variant="printed").value == pytest.approx(single * a)
    corrected = topolip_attention(D, SIGMA, T, S).value
    assert topolip_attention(D, SIGMA, T, S, heads=1).value == pytest.approx(corrected * a)


def test_printed_attention_is_never_valid_and_says_why():
    found = topolip_attention(D, SIGMA, T, S, heads=M, variant="printed")
    assert (found.kind, found.variant, found.valid) == ("heuristic", "printed", False)
    assert "|A| >= 2/sigma^2: fails (|A| 0.697819, 2/sigma^2 800)" in found.reason
    # σ above (4Md)^{-1/8}: the paper's hypotheses hold, and it is still no theorem.
    sigma = 1.1 * (4 * M * D) ** -0.125
    assert pytest.approx(0.297, abs=1e-3) == (4 * M * D) ** -0.125
    strong = topolip_attention(D, sigma, T, 2 * sigma, heads=M, variant="printed")
    assert [one.holds for one in strong.hypotheses] == [True, True, True, False]
    assert not strong.valid
    assert "proof" in strong.reason
    low = topolip_attention(D, SIGMA, 3.0, 0.01, variant="printed")
    assert [one.holds for one in low.hypotheses][:2] == [False, False]


def test_corrected_attention_is_the_mean_field_bound_of_the_tails():
    a, radius = 2 * SIGMA * math.sqrt(D) + S, T * SIGMA
    expected = mean_field_attention(a, a**2 / math.sqrt(D), radius)
    found = topolip_attention(D, SIGMA, T, S)
    assert found.value == pytest.approx(expected.value, rel=1e-12)
    assert (found.kind, found.valid, found.reason) == ("upper", True, "")
    assert found.probability == pytest.approx(1 - 0.25 - 3 * math.exp(-2))
    out = SIGMA * math.sqrt(D) * (1 + math.sqrt(M)) + S
    heads = mean_field_multi_head([a] * M, [math.sqrt(M / D) * a**2] * M, out, radius)
    many = topolip_attention(D, SIGMA, T, S, heads=M)
    assert many.value == pytest.approx(heads.value, rel=1e-12)
    # Twenty-five matrices at q = 2: the union bound promises nothing, and the bound says so.
    assert not many.valid
    assert many.probability == 0
    assert "probability" in many.reason
    assert topolip_attention(D, SIGMA, T, 4 * SIGMA, heads=M).valid


def test_gaussian_weights_keep_under_the_tails():
    generator = torch.Generator().manual_seed(0)
    d, heads, sigma = 64, 4, 0.3
    s = 2 * sigma
    out = sigma * torch.randn(200, d, heads * d, generator=generator)
    norms = torch.linalg.matrix_norm(out, 2)
    assert float(norms.median()) > 2 * sigma * math.sqrt(d) + s  # the printed tail of W^O is too small
    assert float(norms.max()) < sigma * math.sqrt(d) * (1 + math.sqrt(heads)) + s


@pytest.mark.parametrize("variant", ["printed", "corrected"])
@settings(deadline=None, max_examples=40)
@given(
    d=st.integers(1, 600), sigma=st.floats(0.01, 0.2), p=st.floats(1.01, 4), q=st.floats(1.2, 4),
    heads=st.integers(1, 16), which=st.sampled_from(["d", "sigma", "t", "s", "heads"]), more=st.floats(1.05, 2),
)  # fmt: skip
def test_bounds_grow_with_everything(variant, d, sigma, p, q, heads, which, more):
    def value(d: int, sigma: float, p: float, q: float, heads: int) -> float:
        return topolip_attention(d, sigma, p * math.sqrt(d), q * sigma, heads=heads, variant=variant).log10

    base = {"d": d, "sigma": sigma, "p": p, "q": q, "heads": heads}
    key = {"t": "p", "s": "q"}.get(which, which)
    larger = dict(base, **{key: math.ceil(base[key] * more) + 1 if key in ("d", "heads") else base[key] * more})
    assert value(**larger) > value(**base)


# --- the mean-field bound ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("radius", "a", "printed", "corrected"),
    [(0.3, 1, 0.78, 1.5027164885), (1, 0.1, 2.2, 1.5656833098), (1, 1, 4, 23.167168297)],
)
def test_mean_field_attention_has_the_table(radius, a, printed, corrected):
    found = mean_field_attention(1, a, radius)
    assert found.value == pytest.approx(corrected, abs=1e-9 * corrected)
    assert found.valid
    old = mean_field_attention(1, a, radius, variant="printed")
    assert old.value == pytest.approx(printed)
    assert (old.kind, old.valid) == ("heuristic", False)
    assert mean_field_attention(3, a, radius).value == pytest.approx(3 * found.value)
    assert mean_field_attention_below(1, a, radius).value == pytest.approx(math.exp(a * radius**2 / 4))
    assert mean_field_attention_below(1, a, radius).value <= found.value


def test_a_query_bias_counts_as_more_form():
    plain = mean_field_attention(1, 1, 0.5)
    biased = mean_field_attention(1, 1, 0.5, bias_norm=0.25)
    reach = 2 * 0.5 * (0.5 + 0.25)
    assert biased.value == pytest.approx(0.25 + (1 + reach) * math.exp(reach))
    assert biased.value > plain.value


def test_heads_add_in_squares():
    parts = [mean_field_attention(v, a, 0.7, bias_norm=c).value for v, a, c in ((1, 2, 0), (3, 0.5, 0.1))]
    found = mean_field_multi_head([1, 3], [2, 0.5], 0.4, 0.7, bias_norms=[0, 0.1])
    assert found.value == pytest.approx(0.4 * math.hypot(*parts))
    printed = mean_field_multi_head([1, 1], [2, 2], 0.4, 0.7, variant="printed")
    assert printed.value == pytest.approx(0.4 * math.sqrt(2) * 2 * 0.7 * (1 + 0.7 * 2))
    assert printed.kind == "heuristic"


def test_what_overflows_keeps_its_logarithm():
    found = mean_field_attention(2, 1000, 10)
    assert found.value == math.inf
    assert found.log10 == pytest.approx((math.log(2) + 2e5 + math.log(1 + 2e5)) / math.log(10))
    assert mean_field_attention(0, 1, 1).value == 0
    assert mean_field_attention(0, 1, 1).log10 == -math.inf
    # The two ways to compute it meet.
    low, high = (mean_field_attention(1, a, 1).log10 for a in (349.999999, 350.000001))
    assert high - low == pytest.approx(4e-6 / math.log(10), rel=1e-2)


def test_sequences_of_tokens_are_under_their_bound():
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for _ in range(40):
        n, d = 6, 3
        a, v = (torch.randn(d, d, generator=generator, dtype=torch.float64) for _ in range(2))
        c = torch.randn(d, generator=generator, dtype=torch.float64)
        x = torch.nn.functional.normalize(torch.randn(n, d, generator=generator, dtype=torch.float64))

        def f(x, a=a, v=v, c=c):
            return torch.softmax((x @ a.T + c) @ x.T, 1) @ x @ v.T

        jacobian = torch.autograd.functional.jacobian(f, x).reshape(n * d, n * d)
        norms = [float(torch.linalg.matrix_norm(one, 2)) for one in (v, a, jacobian)]
        bound = sequence_attention(norms[0], norms[1], 1.0, n, bias_norm=float(c.norm()))
        assert norms[2] <= bound.value
        worst = max(worst, norms[2] / bound.value)
    assert worst > 0.05  # of the right size
    n, b, r = 6, 2.0, 1.5
    castin = math.sqrt(3 * (b**2 * r**4 * (4 * n + 1) + n))
    assert sequence_attention(1, b, r, n).value < castin
    expected = 3 * (math.sqrt(n) + b * r**2 + math.sqrt(n) * r * (r * b + 0.5))
    assert sequence_attention(3, b, r, n, bias_norm=0.5).value == pytest.approx(expected)
    # Everyone looks at one token: √n is reached.
    assert sequence_attention(1, 0, r, n).value == pytest.approx(math.sqrt(n))


# --- convolution ------------------------------------------------------------------------------------------------------


def test_convolution_has_the_numbers():
    printed = [topolip_convolution(K, C, SIGMA, t, variant="printed").value for t in (1, 2, 3)]
    assert printed == pytest.approx([35.529, 50.246, 61.538], abs=1e-3)
    corrected = [topolip_convolution(K, C, SIGMA, t).value for t in (1, 3)]
    assert corrected == pytest.approx([7.9198, 23.759], abs=1e-3)
    assert topolip_convolution(10, 100, 0.01, 1, variant="printed").value == pytest.approx(21.05, abs=1e-2)


def test_the_corrected_convolution_is_the_largest_gradient():
    k, c, sigma, t = 1, 4, 0.3, 3.0
    taps = (2 * k + 1) ** 2
    y = torch.full((taps,), t * sigma, dtype=torch.float64, requires_grad=True)
    w = torch.full((taps,), t * sigma / math.sqrt(taps * c), dtype=torch.float64, requires_grad=True)
    gradient = torch.cat(torch.autograd.grad((w * y).sum(), (w, y)))
    assert topolip_convolution(k, c, sigma, t).value == pytest.approx(float(gradient.norm()) * math.sqrt(c))


def test_convolution_at_one_deviation_promises_nothing():
    for variant in ("printed", "corrected"):
        found = topolip_convolution(K, C, SIGMA, 1, variant=variant)
        assert not found.valid
        assert found.probability == 0
        assert "probability" in found.reason
    assert topolip_convolution(K, C, SIGMA, 3).valid
    assert topolip_convolution(K, C, SIGMA, 3, variant="printed").kind == "heuristic"
    assert not topolip_convolution(K, C, SIGMA, 3, variant="printed").valid


# --- compositions -----------------------------------------------------------------------------------------------------


def test_compositions_have_the_numbers():
    assert topolip_transformer(D, SIGMA, T, S, heads=M, variant="printed").value == pytest.approx(1219.65, abs=1e-2)
    assert topolip_resnet(K, C, SIGMA, 1, variant="printed").value == pytest.approx(44850.1, abs=0.1)
    assert topolip_resnet(K, C, SIGMA, 1).value == pytest.approx(497.75, abs=1e-2)


def test_the_printed_transformer_in_its_parts():
    attention = topolip_attention(D, SIGMA, T, S, heads=2, variant="printed").value
    a = 2 * SIGMA * math.sqrt(D) + S
    found = topolip_transformer(D, SIGMA, T, S, heads=2, gamma=0.5, variant="printed")
    assert found.value == pytest.approx((a**2 * 0.5 + 1) * (1 + 0.5 * attention))
    assert (found.kind, found.valid) == ("heuristic", False)
    assert "Lip(LN)" in found.reason


def test_the_corrected_transformer_in_its_parts():
    d, heads, hidden, sigma, s, gamma, variance, eps = 8, 2, 32, 0.02, 0.1, 0.3, 0.5, 1e-3
    slope = gamma / math.sqrt(variance + eps)
    a = 2 * sigma * math.sqrt(d) + s
    out = sigma * math.sqrt(d) * (1 + math.sqrt(heads)) + s
    attention = mean_field_multi_head([a] * heads, [math.sqrt(heads / d) * a**2] * heads, out, math.sqrt(d) * gamma)
    mlp = (sigma * (math.sqrt(d) + math.sqrt(hidden)) + s) ** 2
    found = topolip_transformer(
        d, sigma, 9, s, heads=heads, hidden=hidden, gamma=gamma, variance=variance, eps=eps
    )  # fmt: skip
    assert found.value == pytest.approx((mlp * slope + 1) * (1 + slope * attention.value))
    assert found.valid
    huge = topolip_transformer(D, SIGMA, T, 5 * SIGMA, heads=M)
    assert huge.value == math.inf
    assert 300 < huge.log10 < 1000
    assert huge.valid


def test_the_resnet_in_its_parts():
    slope = 0.5 / math.sqrt(0.25 + 0.01)
    conv = topolip_convolution(1, 16, 0.1, 4)
    found = topolip_resnet(1, 16, 0.1, 4, gamma=0.5, variance=0.25, eps=0.01)
    assert found.value == pytest.approx(1 + (conv.value * slope) ** 3)
    assert found.valid == conv.valid
    printed = topolip_convolution(1, 16, 0.1, 4, variant="printed").value
    assert topolip_resnet(1, 16, 0.1, 4, gamma=0.5, variant="printed").value == pytest.approx(1 + (printed * 0.5) ** 3)


def test_normalisations():
    assert layer_norm_lipschitz(1.0) == pytest.approx(316.2, abs=0.03)
    assert layer_norm_lipschitz(2.0, 3.0, eps=1.0) == 1.0
    assert batch_norm_lipschitz(2.0, 3.0, eps=1.0) == 1.0
    assert layer_norm_lipschitz(1.0, eps=0.0) == math.inf
    # At a constant token the slope is reached.
    norm = torch.nn.LayerNorm(5, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(norm, torch.full((5,), 2.0, dtype=torch.float64))
    assert float(torch.linalg.matrix_norm(jacobian, 2)) == pytest.approx(layer_norm_lipschitz(1.0))


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 9999), variance=st.floats(0.01, 4), near=st.floats(1e-4, 1))
def test_layer_norm_is_under_its_constant_between_any_two_tokens(seed, variance, near):
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    y = x + near * y

    def raised(z):
        """At least that variance, not by a convex set."""
        z = z - z.mean()
        return z * max(1.0, math.sqrt(variance / float(z.var(correction=0))))

    x, y = raised(x), raised(y)
    norm = torch.nn.LayerNorm(6, eps=0.01, dtype=torch.float64)
    with torch.no_grad():
        moved = float((norm(x) - norm(y)).norm())
    assert moved <= layer_norm_lipschitz(1.0, variance, eps=0.01) * float((x - y).norm()) * (1 + 1e-9)


def test_topolip_of_matched_clouds():
    assert topolip_bound(3.0).value == pytest.approx(6)
    assert topolip_bound(3.0, p=2, points=5).value == pytest.approx(12)
    assert topolip_bound(3.0, p=1, points=5).value == pytest.approx(24)


# --- orders, terms, probabilities -------------------------------------------------------------------------------------


def test_tail_probabilities():
    tail = math.exp(-2)
    assert tail_probability(D, SIGMA, T, S, variant="printed") == pytest.approx(1 - 2 * tail)
    assert tail_probability(D, SIGMA, 1.1 * math.sqrt(D), S, variant="printed") == pytest.approx(1 - 1 / 1.21)
    assert tail_probability(D, SIGMA, T, S) == pytest.approx(0.75 - 6 * tail)
    assert tail_probability(D, SIGMA, T, S) < 0  # already negative at p = q = 2
    assert tail_probability(D, SIGMA, T, S, two_sided=False) == pytest.approx(0.75 - 3 * tail)
    assert tail_probability(D, SIGMA, T, S, tokens=3) == pytest.approx(0.25 - 6 * tail)
    assert tail_probability(D, SIGMA, T, S, heads=2) == pytest.approx(0.75 - 14 * tail)
    assert convolution_tail_probability(1, variant="printed") == 0
    assert convolution_tail_probability(2, variant="printed") == 0.75
    assert convolution_tail_probability(1.959963985, variables=2) == pytest.approx(0.9)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="topolip_attention: d must be a whole number of at least 1, got 0"):
        topolip_attention(0, 1, 1, 1)
    with pytest.raises(ValueError, match="topolip_attention: sigma must be positive and finite, got nan"):
        topolip_attention(4, math.nan, 1, 1)
    with pytest.raises(ValueError, match="topolip_attention: heads must be a whole number of at least 1, got 0"):
        topolip_attention(4, 1, 1, 1, heads=0)
    with pytest.raises(ValueError, match="topolip_attention: s must be finite and not negative, got -1"):
        topolip_attention(4, 1, 1, -1)
    with pytest.raises(ValueError, match="variant must be 'corrected' or 'printed', got 'new'"):
        topolip_convolution(1, 1, 1, 1, variant="new")
    with pytest.raises(ValueError, match=r"topolip_convolution: k must be a whole number, got 0\.5"):
        topolip_convolution(0.5, 1, 1, 1)
    with pytest.raises(ValueError, match="mean_field_attention: radius must be finite and not negative, got inf"):
        mean_field_attention(1, 1, math.inf)
    with pytest.raises(ValueError, match="one number per head, got 1, 2 and 1"):
        mean_field_multi_head([1], [1, 2], 1, 1)
    with pytest.raises(ValueError, match=r"topolip_bound: p must be at least 1, got 0\.5"):
        topolip_bound(1, p=0.5)
    with pytest.raises(ValueError, match=r"points must be given for p = 2"):
        topolip_bound(1, p=2)


def test_a_bound_is_a_number_with_its_say():
    found = topolip_attention(D, SIGMA, T, S)
    assert isinstance(found, Bound)
    assert float(found) == found.value
    assert 10**found.log10 == pytest.approx(found.value)
    assert str(found.hypotheses[0]).startswith("t > sqrt(d): holds")
