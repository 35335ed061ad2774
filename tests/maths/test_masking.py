import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from lisse.maths.masking import (
    attention_residuals,
    interpolation_bound,
    masked_attention,
    simplex_weights,
    span_residual,
    span_weights,
)
from lisse.maths.variation import bv_seminorm
from lisse_experiments.masked_autoencoders.operators.lemma import lemma_residuals, random_mask

I, J = torch.arange(1, 10, dtype=torch.float64)[:, None], torch.arange(1, 5, dtype=torch.float64)
Y = torch.sin(0.45 * I * J) + 0.2 * torch.cos(I + J)
MASKED = torch.ones(9, dtype=torch.bool)
MASKED[[0, 2, 4, 8]] = False
TOKENS = torch.where(MASKED[:, None], torch.tensor([0.3, -0.2, 0.1, 0.4], dtype=torch.float64), Y)


def weights(s):
    return torch.cos(s * (J[:, None] + 2 * J))


WQ, WK, WV = weights(0.4), weights(0.7), weights(1.1)


def head(tokens):
    return (tokens @ WQ @ (tokens @ WK).T / 2).softmax(-1), tokens @ WV


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- the identity ---------------------------------------------------------------------------------------------------


def test_the_reference_tokens():
    a, v = head(TOKENS)
    found = masked_attention(a, v, MASKED)
    assert float(found.mass[1]) == pytest.approx(0.5267368499, abs=1e-10)
    assert float((found.output - found.restricted)[1].norm()) == pytest.approx(0.6885583784, abs=1e-10)
    # Without positions all masked outputs are one.
    torch.testing.assert_close(found.output[MASKED], found.output[1].expand(5, 4))
    torch.testing.assert_close(found.masked_part, v[1].expand(9, 4))


@given(st.integers(0, 1000), st.integers(2, 9))
def test_the_masked_identity(seed, p):
    a, v = draw(p, p, seed=seed).softmax(-1), draw(p, 3, seed=seed + 1)
    masked = random_mask(1, p, 0.5, generator=torch.Generator().manual_seed(seed))[0]
    same = torch.where(masked[:, None], draw(3, seed=seed + 2), v)
    for values in (v, same):
        found = masked_attention(a, values, masked)
        mixed = (1 - found.mass)[:, None] * found.restricted + found.mass[:, None] * found.masked_part
        torch.testing.assert_close(mixed, found.output)
    restricted = a[:, ~masked].log().softmax(-1) @ same[~masked]  # the softmax over unmasked keys alone
    torch.testing.assert_close(found.restricted, restricted)
    residual = attention_residuals(a, same, masked).restricted
    mask_value = same[masked][0]
    torch.testing.assert_close(residual, found.mass * (mask_value - found.restricted).norm(dim=1))


# --- the constructions of Lemma 6.1 ---------------------------------------------------------------------------------


def test_the_five_constructions():
    found = lemma_residuals(TOKENS, MASKED, WQ, WK, WV)
    a, v = head(TOKENS)
    z, kept = a @ v, ~MASKED
    assert float(found.restricted[1]) == pytest.approx(0.6885583784, abs=1e-10)
    zero, its = head(torch.where(MASKED[:, None], 0.0, TOKENS))
    torch.testing.assert_close(found.zeroed, (z - zero @ its).norm(dim=1))
    restricted = a[:, kept] / a[:, kept].sum(1, keepdim=True) @ v[kept]
    design = np.c_[restricted.numpy(), np.ones(9)]
    fitted = design @ np.linalg.lstsq(design, z.numpy(), rcond=None)[0]
    torch.testing.assert_close(found.refitted, torch.from_numpy(np.linalg.norm(z.numpy() - fitted, axis=1)))
    assert float(found.least_squares.max()) < 1e-12  # the unmasked values span the range of W^V: trivial


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_the_more_is_allowed_the_less_is_left(seed):
    masked = random_mask(1, 12, 0.6, generator=torch.Generator().manual_seed(seed))[0]
    tokens = torch.where(masked[:, None], draw(8, seed=seed), draw(12, 8, seed=seed + 1))
    maps = [draw(8, 8, seed=seed + s) / 3 for s in (2, 3, 4)]
    found = lemma_residuals(tokens, masked, *maps, positions=draw(12, 8, seed=seed + 5))
    slack = 1e-4 * float(found.restricted.max())
    assert bool((found.simplex <= found.restricted + slack).all())
    assert bool((found.least_squares <= found.simplex + slack).all())
    assert float(found.refitted.square().sum()) <= float(found.restricted.square().sum()) + slack


def test_positions_scale_and_values_alone():
    plain = lemma_residuals(TOKENS, MASKED, WQ, WK, WV)
    placed = lemma_residuals(TOKENS, MASKED, WQ, WK, WV, positions=draw(9, 4))
    assert float(plain.restricted[MASKED].std()) < 1e-12
    assert float(placed.restricted[MASKED].std()) > 1e-3
    assert not torch.allclose(lemma_residuals(TOKENS, MASKED, WQ, WK, WV, scale=1.0).restricted, plain.restricted)
    a, v = head(TOKENS)
    alone = attention_residuals(a, v, MASKED)
    torch.testing.assert_close(alone.restricted, plain.restricted)
    torch.testing.assert_close(alone.zeroed, a[:, MASKED].sum(1) * v[1].norm())
    torch.testing.assert_close(
        attention_residuals(a, v, MASKED, zeroed=head(torch.where(MASKED[:, None], 0.0, TOKENS))).zeroed, plain.zeroed
    )


# --- interpolation --------------------------------------------------------------------------------------------------


def test_weights_in_the_span():
    points, targets = draw(3, 5), draw(4, 5, seed=1)
    exact = np.linalg.lstsq(points.numpy().T, targets.numpy().T, rcond=None)[0].T
    torch.testing.assert_close(span_weights(targets, points), torch.from_numpy(exact))
    left = np.linalg.norm(targets.numpy() - exact @ points.numpy(), axis=1)
    torch.testing.assert_close(span_residual(targets, points), torch.from_numpy(left))
    assert float(span_residual(draw(2, 3, seed=2) @ points, points).max()) < 1e-12
    twice = torch.cat([points, points[:1]])  # points that depend on each other
    torch.testing.assert_close(span_residual(targets, twice), span_residual(targets, points))
    # What (25) leaves without the mask token's value is gone with it.
    values = torch.where(MASKED[:, None], draw(7, seed=3), draw(9, 7, seed=4))
    output = head(TOKENS)[0] @ values
    assert float(span_residual(output, values[~MASKED]).min()) > 1e-2
    assert float(span_residual(output, values[~MASKED | (torch.arange(9) == 1)]).max()) < 1e-12


@settings(max_examples=20)
@given(st.integers(0, 1000), st.integers(1, 9), st.integers(1, 6))
def test_convex_weights_are_the_nearest(seed, n, d):
    points, targets = draw(n, d, seed=seed), 1.5 * draw(3, d, seed=seed + 1)
    found = simplex_weights(targets, points)
    assert float(found.min()) >= 0
    torch.testing.assert_close(found.sum(1), torch.ones(3, dtype=torch.float64))
    for row, target in zip(found, targets, strict=True):
        heavy = np.r_[points.numpy().T, 1e5 * np.ones((1, n))]
        exact = nnls(heavy, np.r_[target.numpy(), 1e5])[0] @ points.numpy()
        assert float((row @ points - target).norm()) == pytest.approx(np.linalg.norm(exact - target.numpy()), abs=1e-3)


def test_a_target_inside_and_one_outside_of_a_triangle():
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    found = simplex_weights(torch.tensor([[0.2, 0.3], [1.0, 1.0]], dtype=torch.float64), corners)
    torch.testing.assert_close(
        found, torch.tensor([[0.5, 0.2, 0.3], [0.0, 0.5, 0.5]], dtype=torch.float64), atol=1e-4, rtol=0
    )
    assert simplex_weights(corners, torch.zeros(2, 2)).tolist() == [[0.5, 0.5]] * 3
    rough = simplex_weights(draw(1, 6), draw(9, 6, seed=1), max_iter=1)
    assert not torch.allclose(rough, simplex_weights(draw(1, 6), draw(9, 6, seed=1)))


def test_both_sides_of_26():
    image, error = draw(3, 8, 8), torch.zeros(3, 8, 8, dtype=torch.float64)
    masked = torch.tensor([False, True, True, False])
    error[:, :4, 4:] = draw(3, 4, 4, seed=1)  # patch 1, masked
    error[0, 4, 4] = 0.5  # patch 3, not masked
    found = interpolation_bound(image + error, image, masked)
    one = error[:, :4, 4:]
    assert found.left.tolist() == pytest.approx([float(one.abs().mean() + bv_seminorm(one) / 16), 0], abs=1e-12)
    other = error[:, 4:, 4:]
    assert float(found.unmasked) == pytest.approx(float(other.abs().mean() + bv_seminorm(other) / 16))
    assert float(found.remainder) == pytest.approx(float(image.square().mean().sqrt()) / 2)
    assert float(found.constant) == pytest.approx(float(found.left[0] / (found.unmasked + found.remainder)))
    wide = interpolation_bound(image[0, :4] + error[0, :4], image[0, :4], masked[:2], grid=(1, 2))
    assert wide.left.shape == (1,)


# --- masks ----------------------------------------------------------------------------------------------------------


def test_masks_hide_the_share_they_are_asked_for():
    masks = random_mask(50, 196, generator=torch.Generator().manual_seed(0))
    assert masks.sum(1).unique().tolist() == [147]  # 49 stay, as in MAE
    assert len(masks.unique(dim=0)) == 50
    share = masks.double().mean(0)
    assert float(share.min()) > 0.75 - 5 * (0.75 * 0.25 / 50) ** 0.5
    assert random_mask(1, 4, 0.01).sum() == 1
    assert random_mask(1, 4, 0.99).sum() == 3
    assert torch.equal(masks, random_mask(50, 196, generator=torch.Generator().manual_seed(0)))


def test_residuals_of_some_queries_and_how_exactly():
    a, v = (3 * draw(9, 9)).softmax(-1), draw(9, 4, seed=1)
    every = attention_residuals(a, v, MASKED)
    for chosen in (MASKED, MASKED.nonzero()[:, 0]):
        some = attention_residuals(a, v, MASKED, queries=chosen)
        for field in dataclasses.fields(every):
            torch.testing.assert_close(
                getattr(some, field.name), getattr(every, field.name)[MASKED], atol=1e-7, rtol=1e-7
            )
    rough = attention_residuals(a, v, MASKED, tol=0.5)
    assert torch.equal(rough.restricted, every.restricted)
    assert bool((rough.simplex >= every.simplex - 1e-9).all())
    assert float((rough.simplex - every.simplex).max()) > 1e-6


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: random_mask(1, 9, 0.0), r"ratio must lie in \(0, 1\), got 0.0"),
        (lambda: random_mask(1, 9, 1.0), r"ratio must lie in \(0, 1\), got 1.0"),
        (lambda: random_mask(1, 1), "tokens at least 2"),
        (lambda: masked_attention(torch.eye(9), Y, torch.ones(9, dtype=torch.bool)), "some tokens but not all, got 9"),
        (lambda: masked_attention(torch.eye(9), Y, torch.arange(9)), "masked must be 9 booleans"),
        (lambda: masked_attention(torch.eye(9), Y, MASKED), "leave some weight on unmasked keys"),
        (
            lambda: masked_attention(torch.eye(9), Y[:8], MASKED),
            r"must be \[..., p, p\] and \[..., p, e\], got \[9, 9\]",
        ),
        (lambda: masked_attention(torch.eye(9)[:8], Y, MASKED), r"Give a value per key"),
        (lambda: lemma_residuals(TOKENS, MASKED, WQ, WK[:, :3], WV), "wq and wk must have the same width, got 4 and 3"),
        (lambda: lemma_residuals(TOKENS, MASKED, WQ, WK, WV, positions=Y[:3]), r"positions must be \[9, 4\]"),
        (lambda: lemma_residuals(TOKENS[None], MASKED, WQ, WK, WV), r"tokens must be \[p, d\]"),
        (lambda: lemma_residuals(TOKENS, MASKED, WQ[:2], WK, WV), r"wq must be \[4, e\]"),
        (lambda: span_residual(Y, Y[:, :2]), r"must be \[m, e\] and \[n, e\]"),
        (lambda: interpolation_bound(draw(8, 8), draw(8, 9), MASKED), "must both be"),
        (lambda: interpolation_bound(draw(8, 8), draw(8, 8), MASKED), "n must divide"),
        (lambda: interpolation_bound(draw(8, 8), draw(8, 8), MASKED[:5]), "square grid, got 5"),
    ],
)
def test_bad_input(call, says):
    with pytest.raises(ValueError, match=says):
        call()
