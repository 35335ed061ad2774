"""Worst-token bounds, and those between given numbers of tokens: closed forms, no violation, bad input."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import lambertw

from lisse.maths.bounds import (
    attention_between,
    attention_on_ball,
    attention_on_hull,
    attention_worst_token,
    gaussian_worst_token,
    mean_field_attention,
)
from lisse.maths.bounds.between import of_token_maps, on_ball
from lisse.maths.markov import AttentionKernel, Bilinear, DotProduct, Gaussian, Linear
from lisse.maths.transport import Measure, wasserstein

SEEDS = st.integers(0, 10_000)
INF = math.inf


def head(seed, d=3, k=2, v=4, size=1.0):
    g = torch.Generator().manual_seed(seed)
    wq, wk = (size * torch.randn(k, d, generator=g, dtype=torch.float64) for _ in range(2))
    bq = torch.randn(k, generator=g, dtype=torch.float64)
    return Bilinear(wq, wk, 0.7, bq), torch.randn(v, d, generator=g, dtype=torch.float64)


def cloud(seed, n, d=3, size=1.0):
    return size * torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def worst(x, y):
    """W_inf in ℓ2 of equal-weight tokens, by trying every permutation of what is repeated until both are as many."""
    count = math.lcm(len(x), len(y))
    x, y = x.repeat_interleave(count // len(x), 0), y.repeat_interleave(count // len(y), 0)
    costs = torch.cdist(x, y)
    return min(float(costs[range(count), list(order)].max()) for order in itertools.permutations(range(count)))


def attended(x, potential, weight, mask=None):
    logits = potential(x, x)
    return torch.softmax(logits if mask is None else logits + mask, -1) @ (x @ weight.T)


# --- closed forms -----------------------------------------------------------------------------------------------------


def test_two_points_on_a_line_by_hand():
    """a(x, y) = 2xy on the tokens 0 and 1, W = 3: D(v) = 3, |g| ≤ 2, D(h) = 2, logits of range 2."""
    potential, weight = Bilinear(torch.tensor([[2.0]]), torch.tensor([[1.0]])), torch.tensor([[3.0]])
    x = torch.tensor([[0.0], [1.0]])
    assert attention_worst_token(potential, atoms=x, lookup=weight).value == pytest.approx(3 + 3 + 1.5, rel=1e-12)
    c = 6 / (1 + 5 * math.exp(-2))
    for p, share in ((1.0, 1.0), (1.5, 0.25 ** (1 / 3)), (2.0, 0.5), (4.0, 0.5), (INF, 0.5)):
        between = attention_between(2, 3, potential, atoms=x, lookup=weight, p=p, ground=2)
        assert between.value == pytest.approx(c ** (1 / p) * (3 + share * 3 * 2) + 1.5, rel=1e-12)
    between = attention_between(2, 3, potential, atoms=x, lookup=weight, p=2)  # ℓ1: half of 3 times the range 2
    assert between.value == pytest.approx(math.sqrt(c) * (3 + 6) + 3, rel=1e-12)
    # On the ball of radius 1: ‖A‖ = 2, G = 2, reach 4.
    assert attention_worst_token(potential, radius=1.0, lookup=weight).value == pytest.approx(
        3 * (1 + 2 + 2), rel=1e-12
    )
    ball = attention_between(2, 2, potential, radius=1.0, lookup=weight, p=2, ground=2)
    assert ball.value == pytest.approx(3 * (math.sqrt(2 / (1 + math.exp(-4))) * 3 + 2), rel=1e-12)
    line = attention_between(2, 2, potential, radius=1.0, lookup=weight)  # diam 2, slopes 2
    assert line.value == pytest.approx(3 * (2 / (1 + math.exp(-4)) * (1 + 4) + 4), rel=1e-12)


def test_its_limits_are_the_bounds_for_any_weights():
    potential, weight = head(0)
    x = cloud(1, 5)
    for ground in (1, 2):
        between = attention_between(None, 7, potential, atoms=x, lookup=weight, ground=ground)
        hull = attention_on_hull(x, potential, lookup=weight, ground=ground)
        assert between.value == pytest.approx(hull.value, rel=1e-12)
        finite = [
            attention_between(n, 1, potential, atoms=x, lookup=weight, ground=ground).value for n in (1, 2, 10, 10**9)
        ]
        assert finite == sorted(finite)
        assert finite[-1] <= hull.value
    assert on_ball(2.0, 0.5, 1.3, bias_norm=0.2, p=1).log10 == pytest.approx(
        mean_field_attention(2.0, 0.5, 1.3, bias_norm=0.2).log10, rel=1e-12
    )
    # The W1 bound of theorem 1, corrected, lets the query's part grow exponentially too: this one is below it.
    assert (
        attention_between(None, None, potential, radius=1.0).value
        < attention_on_ball(3, 1.0, potential=potential).value
    )
    # One token: the exponential is gone.
    assert attention_between(1, 1, "dot", radius=50.0, lookup=torch.eye(2)).log10 < 5


def test_the_gaussian_bound_is_lamberts_function():
    for n, m in ((1, 1), (2, 2), (31, 31), (4, 6), (10**6, 10**6)):
        s = float(lambertw((math.lcm(n, m) - 1) / math.e).real)
        assert gaussian_worst_token(n, m, lookup=2.0).value == pytest.approx(2 * (1 + 4 * s), rel=1e-9)
    assert gaussian_worst_token(31).value == pytest.approx(8.24, abs=6e-3)
    assert gaussian_worst_token(24001).value > 14.380089  # where theorem 2 as printed fails, in another norm


def test_the_local_bound_begins_at_the_derivative_and_grows_with_eps():
    """Two tokens at ±1 of a(x, y) = xy: rows (1, e^-2)/(1 + e^-2) …, variances 4p(1 - p), slopes 1, D(h) = 2."""
    x = torch.tensor([[1.0], [-1.0]])
    potential = Bilinear(torch.ones(1, 1), torch.ones(1, 1))
    share = 1 / (1 + math.exp(-2))
    spread = 2 * math.sqrt(share * (1 - share))
    assert attention_worst_token(potential, atoms=x, eps=0).value == pytest.approx(1 + spread * (1 + spread), rel=1e-6)
    eps = 0.1
    wide = math.exp((eps * (2 + 2) + 2 * eps**2) / 2) * spread + eps
    bound = attention_worst_token(potential, atoms=x, eps=eps)
    assert bound.value == pytest.approx(1 + wide * (1 + eps + wide), rel=1e-6)
    alone = attention_worst_token(potential, atoms=x, eps=eps, rows=torch.eye(2))
    assert alone.value == pytest.approx(1 + eps * (1 + eps + eps), rel=1e-6)


def test_logits_beyond_a_float_leave_half_a_diameter():
    """Rows that see one token have no spread; e^r overflows, and 0 times infinity is no bound of 0."""
    x = torch.tensor([[30.0], [-30.0]])
    potential = Bilinear(torch.full((1, 1), 900.0), torch.full((1, 1), 1.0))
    bound = attention_worst_token(potential, atoms=x, eps=0.1)
    half, slope = 30.0, 900.0 * 30.1
    assert bound.value == pytest.approx(1 + (half + 0.1) * (slope + 900 * half + 90), rel=1e-6)


@pytest.mark.parametrize(("gap", "climb", "eps"), [(60.0, 7e4, 1e-3), (600.0, 8000.0, 0.1), (800.0, 1e7, 1e-4)])
def test_a_weight_that_a_float_takes_for_nothing_may_grow_to_one(gap, climb, eps):
    """Two tokens ``gap`` of logits apart; the second moves along a third axis to where the two are alike."""
    matrix = torch.zeros(3, 3, dtype=torch.float64)
    matrix[0, 2] = climb
    atoms = torch.tensor([[0.5, 0.0, 0.0], [-0.5, 0.0, 0.0]], dtype=torch.float64)
    eye = torch.eye(3, dtype=torch.float64)
    potential = Bilinear(matrix, eye, 1.0, torch.tensor([gap, 0.0, 0.0], dtype=torch.float64))
    rows = torch.softmax(potential(atoms, atoms), -1)
    bound = attention_worst_token(potential, lookup=eye, atoms=atoms, eps=eps, rows=rows)

    def attended(x):
        return torch.softmax(potential(x, x), -1) @ x

    stretches = []
    for step in torch.linspace(-1, 1, 401, dtype=torch.float64).tolist():
        moved = atoms.clone()
        moved[1, 2] += step * eps
        jacobian = torch.autograd.functional.jacobian(attended, moved)
        stretches.append(float(torch.linalg.matrix_norm(jacobian[1, :, 1], 2)))
    assert bound.valid
    assert 100 < max(stretches) <= bound.value


def test_maps_of_tokens_multiply_as_they_must():
    assert of_token_maps(2.0, 3.0, 0.5, (1.0, 4.0), (5.0, 7.0)) == 2 + 3 * 0.5 * (4 * 5 + 7 * 1)


# --- no violation -----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    SEEDS, st.integers(1, 4), st.integers(1, 4), st.sampled_from([0.1, 1.0, 3.0]), st.sampled_from([1.0, 1.5, 2.0, 3.0])
)
def test_no_pair_of_token_sets_exceeds_them(seed, n, m, size, p):
    potential, weight = head(seed, size=size)
    x, y = cloud(seed + 1, n), cloud(seed + 2, m)
    if seed % 3 == 0 and n == m:
        y = x + 1e-3 * y  # near pairs
    out_x, out_y = attended(x, potential, weight), attended(y, potential, weight)
    atoms = torch.cat([x, y])
    radius = float(atoms.norm(dim=1).max())
    for ground in (1, 2):
        before = float(wasserstein(Measure(x), Measure(y), p=p, ground=ground))
        after = float(wasserstein(Measure(out_x), Measure(out_y), p=p, ground=ground))
        for where in ({"atoms": atoms}, {"radius": radius}):
            bound = attention_between(n, m, potential, lookup=weight, p=p, ground=ground, **where)
            assert after <= bound.value * before * (1 + 1e-9)
    if math.lcm(n, m) <= 6:
        before, after = worst(x, y), worst(out_x, out_y)
        for where in ({"atoms": atoms}, {"radius": radius}):
            assert after <= attention_worst_token(potential, lookup=weight, **where).value * before * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 6), st.sampled_from(["none", "causal", "table"]), st.sampled_from([0.3, 1.0, 3.0]))
def test_sequences_under_any_mask_stay_within_it(seed, n, kind, size):
    potential, weight = head(seed, size=size)
    x = cloud(seed + 1, n)
    added = {
        "none": None,
        "causal": torch.full((n, n), -INF, dtype=torch.float64).triu(1),
        "table": cloud(seed + 3, n, n, size=3.0),
    }[kind]
    rows = torch.softmax(potential(x, x) + (0 if added is None else added), -1)
    g = torch.Generator().manual_seed(seed)
    for eps in (0.0, 1e-2, 0.3):
        away, step = (
            torch.nn.functional.normalize(torch.randn(n, 3, generator=g, dtype=torch.float64), dim=1) for _ in range(2)
        )
        _, change = torch.func.jvp(lambda t: attended(t, potential, weight, added), (x + eps * away,), (step,))
        near = attention_worst_token(potential, lookup=weight, atoms=x, eps=eps, rows=rows)
        assert float(change.norm(dim=1).max()) <= near.value * (1 + 1e-6)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 8), st.integers(1, 5), st.sampled_from([0.2, 1.0, 2.5]), st.sampled_from([0.3, 1.0]))
def test_gaussian_attention_stays_within_its_bound_everywhere(seed, n, d, size, gamma):
    x, step = cloud(seed, n, d, size), cloud(seed + 1, n, d)
    step = step / step.norm(dim=1, keepdim=True)
    kernel = Gaussian(gamma)
    _, change = torch.func.jvp(lambda t: torch.softmax(kernel(t, t), -1) @ t, (x,), (step,))
    assert float(change.norm(dim=1).max()) <= gaussian_worst_token(n).value * (1 + 1e-9)


def test_the_gaussian_bound_is_nearly_attained():
    """One token at 0 and N - 1 around it at the distance of the proof: the derivative comes to over half of it."""
    n = 31
    s = float(lambertw((n - 1) / math.e).real)
    side = torch.ones((n - 1) // 2, 1, dtype=torch.float64) * math.sqrt(1 + s)
    x = torch.cat([torch.zeros(1, 1, dtype=torch.float64), side, -side])
    step = torch.cat([torch.ones(1, 1), -torch.ones(n - 1, 1)]).double()
    _, change = torch.func.jvp(lambda t: torch.softmax(Gaussian()(t, t), -1) @ t, (x,), (step,))
    assert 0.5 * gaussian_worst_token(n).value <= float(change.abs().max()) <= gaussian_worst_token(n).value


def test_dot_product_attention_has_none_on_the_whole_space():
    """[vuckovic2021] sec. 5.2: a token at 0 between two at ±R moves (1 + 2R²)/3 times as far as it is moved."""
    for radius in (1.0, 10.0, 100.0):
        x = torch.tensor([[0.0], [radius], [-radius]], dtype=torch.float64)
        step = torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64)
        _, change = torch.func.jvp(lambda t: torch.softmax(DotProduct()(t, t), -1) @ t, (x,), (step,))
        assert float(change[0].abs()) == pytest.approx((1 + 2 * radius**2) / 3, rel=1e-9)
        bound = attention_worst_token(DotProduct(), radius=radius)
        assert float(change.abs().max()) <= bound.value == pytest.approx(1 + 2 * radius**2, rel=1e-12)


def test_a_measure_of_any_weights_is_a_sequence_with_repetitions():
    potential, weight = head(3)
    x, y = cloud(4, 3), cloud(5, 3)
    w = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    kernel = AttentionKernel(potential, Linear(weight))
    outs = [kernel(Measure(t, w), Measure(t, w)).points for t in (x, y)]
    far = float((outs[0] - outs[1]).norm(dim=1).max())  # coupled as they are
    assert far <= attention_worst_token(potential, atoms=torch.cat([x, y]), lookup=weight).value * float(
        (x - y).norm(dim=1).max()
    )


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: attention_between(0, 2, "dot", radius=1.0), "n must be a whole number"),
        (lambda: attention_between(1, 2, "dot", radius=1.0, p=0.5), "p must be at least 1"),
        (lambda: attention_between(1, 2, "dot"), "radius must be given, or atoms"),
        (lambda: attention_between(1, 2, "dot", radius=1.0, atoms=torch.eye(2)), "and not both"),
        (lambda: attention_between(1, 2, "dot", radius=-1.0), "radius must be finite"),
        (lambda: attention_between(1, 2, "dot", radius=1.0), "lookup must be given"),
        (lambda: attention_between(1, 2, "dot", radius=1.0, ground=2, domain="box"), "domain must be 'ball'"),
        (lambda: attention_worst_token("dot", radius=1.0, rows=torch.eye(2)), "rows must come with eps"),
        (lambda: attention_worst_token("dot", radius=1.0, eps=0.1), "eps must come with atoms"),
        (lambda: gaussian_worst_token(2.5), "n must be a whole number"),
    ],
)
def test_bad_input_is_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_wrong_potentials_are_named():
    with pytest.raises(TypeError, match="gaussian_worst_token"):
        attention_worst_token(Gaussian(), radius=1.0)
    with pytest.raises(TypeError, match="potential must be a Bilinear"):
        attention_worst_token("dot", atoms=torch.eye(2))
