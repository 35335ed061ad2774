"""Bounds of attention that use the data: closed forms, no violation by pairs, derivatives and the search, bad input."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.bounds import (
    attention_near,
    attention_on_ball,
    attention_on_hull,
    keys_near,
    keys_on_hull,
    mean_field_attention_below,
    near,
)
from lisse.maths.jacobian import jacobian_norm
from lisse.maths.markov import AttentionKernel, Bilinear, Linear, contraction, softmatch
from lisse.maths.transport import Measure, wasserstein

SEEDS = st.integers(0, 10_000)


def head(seed, d=3, k=2, v=4, size=1.0, bias=True):
    """A potential with a query's bias, and a lookup."""
    g = torch.Generator().manual_seed(seed)
    wq, wk = (size * torch.randn(k, d, generator=g, dtype=torch.float64) for _ in range(2))
    bq = torch.randn(k, generator=g, dtype=torch.float64) if bias else None
    return Bilinear(wq, wk, 0.7, bq), torch.randn(v, d, generator=g, dtype=torch.float64)


def cloud(seed, n, d=3, size=1.0):
    return size * torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attend(x, potential, weight, context=None):
    return AttentionKernel(potential, Linear(weight))(Measure(x), context or Measure(x))


# --- closed forms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ground", [1, 2])
def test_a_constant_potential_stretches_as_the_lookup_does(ground):
    none = Bilinear(torch.zeros(1, 2, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64))
    weight = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64)
    norm = 5.0 if ground == 1 else float(torch.linalg.matrix_norm(weight, 2))
    x = cloud(0, 4, 2)
    rows = torch.full((4, 4), 0.25, dtype=torch.float64)
    for found in (
        attention_on_hull(x, none, lookup=weight, ground=ground),
        keys_on_hull(x, x, none, lookup=weight, ground=ground),
        attention_near(rows, x, none, lookup=weight, ground=ground),
        keys_near(rows, x, x, none, lookup=weight, ground=ground),
    ):
        assert found.value == pytest.approx(norm, rel=1e-12)
        assert (found.kind, found.valid) == ("upper", True)


def test_two_points_on_a_line_by_hand():
    """a(x, y) = s x y with s = 2 on the tokens 0 and 1: diam 1, z = 2y of range 2, logits 0 … 2, slopes at most 2."""
    potential = Bilinear(torch.tensor([[2.0]]).double(), torch.tensor([[1.0]]).double())
    x = torch.tensor([[0.0], [1.0]]).double()
    expected = 0.5 * 1 * 2 + math.exp(2.0) * (1 + 2 * 1)
    assert attention_on_hull(x, potential).value == pytest.approx(expected, rel=1e-12)
    # In ℓ2: a quarter of the diameters 1 and 2.
    assert attention_on_hull(x, potential, ground=2).value == pytest.approx(0.25 * 1 * 2 + math.exp(2.0) * 3, rel=1e-12)
    assert attention_on_hull(x, potential, lookup=torch.tensor([[3.0]]).double()).value == pytest.approx(
        3 * expected, rel=1e-12
    )
    q = torch.tensor([[0.5]]).double()  # reach 1, slope 1
    assert keys_on_hull(q, x, potential).value == pytest.approx(math.e * 2, rel=1e-12)


def test_the_local_bound_by_hand():
    """One token: nothing spreads, and what is left is the lookup; two that see one key each: the same."""
    potential, weight = head(0)
    one = cloud(1, 1)
    norm = float(weight.abs().sum(0).max())
    assert attention_near(torch.ones(1, 1), one, potential, lookup=weight).value == pytest.approx(norm, rel=1e-12)
    both = cloud(2, 2)
    assert attention_near(torch.eye(2), both, potential, lookup=weight).value == pytest.approx(norm, rel=1e-12)
    # All look at the first: a column sum of 2, and the token that is looked at is its own mean.
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert attention_near(rows, both, potential, lookup=weight).value == pytest.approx(2 * norm, rel=1e-12)
    spectral = float(torch.linalg.matrix_norm(weight, 2))
    assert attention_near(rows, both, potential, lookup=weight, ground=2).value == pytest.approx(
        math.sqrt(2) * spectral, rel=1e-12
    )
    assert keys_near(rows, both, both, potential, lookup=weight).value == pytest.approx(2 * norm, rel=1e-12)


# --- no violation ---------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 5), st.integers(1, 5), st.sampled_from([1, 2]), st.sampled_from([1.0, 2.0]))
def test_no_pair_of_measures_on_the_hull_exceeds_it(seed, n, m, ground, p):
    potential, weight = head(seed)
    atoms = cloud(seed + 1, n + m + 2)
    g = torch.Generator().manual_seed(seed + 2)
    mixing = torch.rand(n + m, len(atoms), generator=g, dtype=torch.float64) ** 4
    inside = (mixing / mixing.sum(1, keepdim=True)) @ atoms  # points of the hull, not atoms
    a, b = (torch.rand(k, generator=g, dtype=torch.float64) + 1e-3 for k in (n, m))
    mu, nu = Measure(inside[:n], a / a.sum()), Measure(inside[n:], b / b.sum())
    kernel = AttentionKernel(potential, Linear(weight))
    before = wasserstein(mu, nu, p=p, ground=ground)
    after = wasserstein(kernel(mu, mu), kernel(nu, nu), p=p, ground=ground)
    found = attention_on_hull(atoms, potential, lookup=weight, ground=ground)
    assert float(after) <= found.value * float(before) * (1 + 1e-9)
    queries = cloud(seed + 3, 3)
    moved = (kernel(queries, mu).points - kernel(queries, nu).points).norm(p=ground, dim=1).max()
    keys = keys_on_hull(queries, atoms, potential, lookup=weight, ground=ground)
    assert float(moved) <= keys.value * float(before) * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(1, 6), st.booleans())
def test_the_local_bound_is_above_the_jacobian(seed, n, causal):
    potential, weight = head(seed, v=3)
    x = cloud(seed + 1, n).requires_grad_()
    mask = torch.ones(n, n, dtype=torch.bool).tril() if causal else None
    y = softmatch(potential, x, x, mask=mask)
    rows = y.matrix
    jacobian = torch.autograd.functional.jacobian(
        lambda z: softmatch(potential, z, z, mask=mask).on(z @ weight.T), x.detach()
    )
    columns = jacobian.abs().sum((0, 1))  # of every coordinate of every token: what all outputs do in ℓ1
    found = attention_near(rows, x, potential, lookup=weight)
    assert float(columns.max()) <= found.value * (1 + 1e-9)
    spectral = float(torch.linalg.matrix_norm(jacobian.reshape(3 * n, 3 * n), 2))
    two = attention_near(rows, x, potential, lookup=weight, ground=2)
    assert spectral <= two.value * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(1, 4), st.integers(1, 5), st.sampled_from([1, 2]))
def test_the_local_bound_in_the_keys_is_above_the_jacobian(seed, m, n, ground):
    potential, weight = head(seed, v=3)
    queries, keys = cloud(seed + 1, m), cloud(seed + 2, n)
    rows = softmatch(potential, queries, keys).matrix
    jacobian = torch.autograd.functional.jacobian(lambda k: softmatch(potential, queries, k).on(k @ weight.T), keys)
    found = keys_near(rows, queries, keys, potential, lookup=weight, ground=ground)
    # One token moves by δ, W1 is ‖δ‖/n: the operator norm of each block, times n.
    for i in range(m):
        for j in range(n):
            block = jacobian[i, :, j]
            norm = block.abs().sum(0).max() if ground == 1 else torch.linalg.matrix_norm(block, 2)
            assert n * float(norm) <= found.value * (1 + 1e-9)


def test_power_iteration_stays_under_the_local_bound():
    potential, weight = head(3, d=4, v=4)
    x = cloud(4, 6, 4)[None].requires_grad_()
    logits = potential(x, x)
    y = torch.softmax(logits, -1) @ (x @ weight.T)
    found = jacobian_norm(y, x, max_iter=60, tol=1e-8)
    rows = torch.softmax(logits, -1)[0]
    bound = attention_near(rows, x[0], potential, lookup=weight, ground=2)
    assert float(found.value) <= bound.value
    assert bound.value <= 20 * float(found.value)  # and it means something


def test_the_search_does_not_exceed_the_hull_and_the_hull_is_below_the_ball():
    """Atoms at the corners of a square: its hull lies in a ball, whose bound knows less."""
    potential = Bilinear(torch.eye(2).double(), torch.eye(2).double())
    r = 0.3
    corners = torch.tensor([[r, r], [r, -r], [-r, r], [-r, -r]]).double()

    def inside(count, generator):
        mixing = torch.rand(count, 4, generator=generator, dtype=torch.float64) ** 3
        return (mixing / mixing.sum(1, keepdim=True)) @ corners

    kernel = AttentionKernel(potential)
    witness = contraction(lambda mu: kernel(mu, mu), sampler=inside, budget=600)
    found = attention_on_hull(corners, potential)
    assert 1 <= witness.value <= found.value
    assert found.value < attention_on_ball(2, r * math.sqrt(2)).value


def test_it_is_not_below_what_is_known_from_below():
    r = 1.5
    ends = torch.tensor([[-r], [r]]).double()
    potential = Bilinear(torch.ones(1, 1).double(), torch.ones(1, 1).double())
    assert attention_on_hull(ends, potential).value >= mean_field_attention_below(1.0, 1.0, r).value


def test_a_small_move_of_one_token_costs_no_more_than_the_local_bound():
    potential, weight = head(11, v=3)
    x = cloud(12, 5)
    rows = softmatch(potential, x, x).matrix
    bound = attention_near(rows, x, potential, lookup=weight).value
    for k in range(5):
        step = torch.zeros_like(x)
        step[k] = 1e-6 * cloud(13 + k, 1)[0]
        before = wasserstein(x, x + step)
        after = wasserstein(attend(x, potential, weight), attend(x + step, potential, weight))
        assert float(after) <= bound * float(before) * (1 + 1e-4)


def test_invariance_under_translation_of_keys_and_order():
    """Adding one vector to all keys changes neither logits' ranges nor spreads; the order of tokens means nothing."""
    potential, weight = head(5, bias=False)
    x = cloud(6, 5)
    order = torch.tensor([3, 0, 4, 1, 2])
    rows = softmatch(potential, x, x).matrix
    assert attention_on_hull(x[order], potential, lookup=weight).value == pytest.approx(
        attention_on_hull(x, potential, lookup=weight).value, rel=1e-12
    )
    assert attention_near(rows[order][:, order], x[order], potential, lookup=weight).value == pytest.approx(
        attention_near(rows, x, potential, lookup=weight).value, rel=1e-12
    )
    q = cloud(7, 2)
    assert keys_on_hull(q, x + 1.3, potential, lookup=weight).value == pytest.approx(
        keys_on_hull(q, x, potential, lookup=weight).value, rel=1e-9
    )


def test_a_large_potential_keeps_its_logarithm():
    potential, weight = head(8, size=40.0)
    found = attention_on_hull(cloud(9, 4, size=3.0), potential, lookup=weight)
    assert math.isinf(found.value)
    assert 300 < found.log10 < 1e6


def test_arrays_are_taken_and_float32_too():
    potential, weight = head(1)
    x = cloud(2, 4)
    assert attention_on_hull(x.numpy(), potential, lookup=weight.numpy()).value == pytest.approx(
        attention_on_hull(x, potential, lookup=weight).value, rel=1e-12
    )
    assert attention_on_hull(x.float(), potential, lookup=weight).value == pytest.approx(
        attention_on_hull(x, potential, lookup=weight).value, rel=1e-5
    )


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"ground": 3}, ValueError, "attention_near: ground must be 1 or 2, got 3"),
        ({"atoms": np.zeros((0, 3))}, ValueError, r"attention_near: atoms must have shape \[n, 3\], got \[0, 3\]"),
        ({"atoms": np.zeros((2, 2))}, ValueError, r"attention_near: atoms must have shape \[n, 3\], got \[2, 2\]"),
        ({"atoms": np.full((2, 3), np.nan)}, ValueError, "attention_near: atoms must be finite, got NaN"),
        ({"rows": np.eye(3)}, ValueError, r"attention_near: rows must have shape \[2, 2\], got \[3, 3\]"),
        ({"rows": np.ones((2, 2))}, ValueError, "rows must not be negative and must sum to 1, got rows off by 1"),
        ({"lookup": np.ones((2, 2))}, ValueError, r"lookup must have shape \[n, 3\], got \[2, 2\]"),
        ({"potential": "dot"}, TypeError, "attention_near: potential must be a Bilinear, got str"),
    ],
)
def test_bad_input(change, error, says):
    given = {"rows": np.eye(2), "atoms": np.ones((2, 3)), "potential": head(0)[0], **change}
    with pytest.raises(error, match=says):
        attention_near(given.pop("rows"), given.pop("atoms"), given.pop("potential"), **given)


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 20.0, 300.0])
@pytest.mark.parametrize("total", [1.0, 1.0001])
def test_covariances_are_those_of_sums_and_never_less(sharpness, total):
    """By matrix products for all rows at once, from flat attention to rows that look at one token alone."""
    generator = torch.Generator().manual_seed(0)
    p, v, z = (torch.randn(3, 30, width, generator=generator, dtype=torch.float64) for width in (30, 7, 40))
    p = torch.softmax(sharpness * p, -1) * total
    both, spreads = near._covariances(p, v, z)
    for h, i in itertools.product(range(3), range(30)):
        row = p[h, i]
        centred = []
        for x in (v[h], z[h]):
            gram = x @ x.T
            cross = gram @ row
            centred.append(gram - cross[:, None] - cross[None] + row @ cross)
        squares = [(torch.outer(row, row) * centred[0] * other).sum() for other in (centred[1], centred[0])]
        for value, square in zip((both[h, i], spreads[h, i]), squares, strict=True):
            exact = float(square.clamp_min(0).sqrt())
            rounding = 1e-14 * float(centred[0].abs().max())  # of this very sum, which nearly cancels
            assert exact - rounding <= float(value) <= exact * (1 + 1e-6) + rounding
