import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lisse.maths.variation import (
    bv_seminorm,
    extension,
    patch_variation,
    patchify,
    propagated,
    token_norm,
    token_variation,
    total_variation,
    unpatchify,
    variation_field,
)

A = torch.arange(8, dtype=torch.float64)
U = torch.sin(0.5 * A)[:, None] * torch.cos(0.8 * A) + 0.1 * A[:, None] * A / 7


def image(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def naive(u, weight=1.0, steps=((1, 0), (-1, 0), (0, 1), (0, -1))):
    """Equation 1, pixel by pixel."""
    h, w = u.shape[-2:]
    total = 0.0
    for i in range(h):
        for j in range(w):
            inside = [(i + a, j + b) for a, b in steps if 0 <= i + a < h and 0 <= j + b < w]
            total += math.sqrt(sum(weight * float((u[..., i, j] - u[..., a, b]).square().sum()) for a, b in inside))
    return total


EIGHT = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1), (1, -1), (-1, 1))

# --- the seminorm ---------------------------------------------------------------------------------------------------


def test_the_reference_image():
    assert float(bv_seminorm(U)) == pytest.approx(36.380019554643, abs=1e-11)
    assert float(total_variation(U)) == pytest.approx(24.482555848, abs=1e-8)
    assert float(patch_variation(U, 4).sum()) == pytest.approx(27.036058073, abs=1e-8)
    assert patchify(U, 4)[5].tolist() == [U[2, 2], U[2, 3], U[3, 2], U[3, 3]]


def test_a_step_is_seen_from_both_sides():
    step = torch.zeros(8, 8)
    step[:, 4:] = 1
    assert float(bv_seminorm(step)) == 16
    assert float(total_variation(step)) == float(total_variation(step, kind="anisotropic")) == 8
    # Across the step a pixel has three of its eight neighbours, two on the border.
    assert float(bv_seminorm(step, neighbours=8)) == pytest.approx(12 * 3**0.5 + 4 * 2**0.5, rel=1e-6)


@pytest.mark.parametrize("neighbours", [4, 8])
def test_it_is_the_sum_of_equation_one(neighbours):
    steps = EIGHT if neighbours == 8 else EIGHT[:4]
    for u in (image(4, 5), image(3, 4, 5)):
        found = bv_seminorm(u, weights=1.7, neighbours=neighbours)
        assert float(found) == pytest.approx(naive(u, 1.7, steps), rel=1e-12)
    batch = image(2, 3, 4, 5)
    both = bv_seminorm(batch, neighbours=neighbours)
    torch.testing.assert_close(both, torch.stack([bv_seminorm(u, neighbours=neighbours) for u in batch]))
    field = variation_field(batch, neighbours=neighbours)
    assert field.shape == (2, 4, 5)
    torch.testing.assert_close(field.sum((1, 2)), both)


def test_weights_of_one_direction_and_of_single_edges():
    u = image(4, 5)
    down = torch.cat([u[:1] * 0, u[1:] - u[:-1]]).square() + torch.cat([u[1:] - u[:-1], u[:1] * 0]).square()
    torch.testing.assert_close(bv_seminorm(u, weights=(1.0, 0.0)), down.sqrt().sum())
    edge = torch.zeros(4, 4, dtype=torch.float64)
    edge[1, 2] = 4.0
    assert float(bv_seminorm(u, weights=(0.0, edge))) == pytest.approx(4 * abs(float(u[1, 2] - u[1, 3])))
    with_diagonals = bv_seminorm(u, weights=(0.0, 0.0, 1.0, 0.0), neighbours=8)
    assert float(with_diagonals) == pytest.approx(naive(u, steps=((1, 1), (-1, -1))))


def test_in_the_continuum_it_is_the_integral_of_the_gradient():
    exact = 2.1283439642
    found = {}
    for n in (16, 64, 256):
        x = (torch.arange(n, dtype=torch.float64) + 0.5) / n
        u = torch.sin(math.pi * x)[:, None] * torch.sin(math.pi * x)
        found[n] = float(bv_seminorm(u, scaling="continuum"))
        assert found[n] == pytest.approx(float(bv_seminorm(u, weights=n * n / 2)) / n**2, rel=1e-12)
        assert abs(float(bv_seminorm(u, scaling="continuum", neighbours=8)) - exact) < 2.5 / n
    assert [round(value, 3) for value in found.values()] == [1.984, 2.092, 2.119]
    assert abs(found[256] - exact) < abs(found[64] - exact) / 3.5


@pytest.mark.parametrize("neighbours", [4, 8])
def test_the_continuum_of_a_ramp_on_an_oblong_grid(neighbours):
    # |∇(2x + 3y)| = √13; only pixels on the border, a share that falls like 1/h, lack a neighbour.
    h, w = 300, 150
    y, x = (torch.arange(h, dtype=torch.float64) / h)[:, None], torch.arange(w, dtype=torch.float64) / w
    field = variation_field(2 * x + 3 * y, scaling="continuum", neighbours=neighbours)
    torch.testing.assert_close(field[1:-1, 1:-1] * h * w, torch.full((h - 2, w - 2), 13**0.5, dtype=torch.float64))


def test_eight_neighbours_have_equal_shares_on_a_square_grid():
    u = torch.zeros(5, 5, dtype=torch.float64)
    u[2, 2] = 1.0
    field = variation_field(u, scaling="continuum", neighbours=8) * 25
    edge = 25 / 6  # N²/6 each: a ramp then has its slope
    assert float(field[2, 2]) == pytest.approx((8 * edge) ** 0.5)
    assert field[1, 1:4].tolist() == pytest.approx([edge**0.5] * 3)
    assert float(field[0].sum()) == 0


floats = st.floats(-10, 10)


@st.composite
def pictures(draw, count=1):
    c, h, w = draw(st.integers(1, 3)), 2 * draw(st.integers(1, 3)), 2 * draw(st.integers(1, 3))
    numbers = st.lists(floats, min_size=c * h * w, max_size=c * h * w)
    return [torch.tensor(draw(numbers), dtype=torch.float64).reshape(c, h, w) for _ in range(count)]


@given(pictures(2), floats, st.sampled_from([4, 8]))
def test_it_is_a_seminorm(us, factor, neighbours):
    u, v = us
    size = {"neighbours": neighbours}
    bv = bv_seminorm(u, **size)
    slack = 1e-9 * (1 + float(bv))
    assert float(bv_seminorm(torch.full_like(u, factor), **size)) == 0
    assert (float(bv) > 0) == bool((u != u[:, :1, :1]).any()) or float(bv) < 1e-150
    assert abs(float(bv_seminorm(u + factor, **size) - bv)) < slack + 1e-12
    assert abs(float(bv_seminorm(factor * u, **size) - abs(factor) * bv)) < slack * (1 + abs(factor))
    assert float(bv_seminorm(u + v, **size)) <= float(bv + bv_seminorm(v, **size)) + slack + 1e-9
    for same in (u.flip(1), u.flip(2), u.mT):
        assert abs(float(bv_seminorm(same, **size) - bv)) < slack
    assert float(patch_variation(u, 2, **size).sum()) <= float(bv) + slack


def test_gradients():
    u = image(2, 3, 4).requires_grad_()
    for options in ({}, {"neighbours": 8}, {"scaling": "continuum"}, {"weights": (1.0, 2.0)}):
        assert torch.autograd.gradcheck(lambda u, o=options: bv_seminorm(u, **o), u)
    weights = torch.rand(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).add(0.1)
    assert torch.autograd.gradcheck(lambda w: bv_seminorm(u.detach(), weights=(w, 1.0)), weights.requires_grad_())
    flat = torch.ones(4, 4, dtype=torch.float64, requires_grad=True)
    (bv_seminorm(flat) + total_variation(flat)).backward()
    assert float(flat.grad.abs().max()) == 0


def test_kinds_of_numbers():
    assert bv_seminorm(U.float()).dtype == torch.float32
    assert float(bv_seminorm(U.numpy())) == float(bv_seminorm(U))
    bytes_ = torch.tensor([[0, 255], [255, 0]], dtype=torch.uint8)
    assert float(bv_seminorm(bytes_)) == pytest.approx(4 * 255 * 2**0.5)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: bv_seminorm(torch.zeros(3)), r"bv_seminorm: u must be \[h, w\]"),
        (lambda: bv_seminorm(torch.full((2, 2), torch.nan)), "u must be finite"),
        (lambda: bv_seminorm(U, neighbours=6), "neighbours must be 4 or 8, got 6"),
        (lambda: bv_seminorm(U, scaling="x"), "scaling must be discrete or continuum"),
        (lambda: bv_seminorm(U, weights=-1.0), "weights must not be negative"),
        (lambda: bv_seminorm(U, weights=(1.0,)), r"one per direction \(2: down, right\), got 1"),
        (lambda: bv_seminorm(U, weights=torch.ones(3, 3)), "weights must fit the edges"),
        (lambda: bv_seminorm("x"), "u must be a tensor"),
        (lambda: bv_seminorm(U + 0j), "u must be real"),
        (lambda: total_variation(U, kind="x"), "kind must be forward or anisotropic"),
        (lambda: token_variation(torch.zeros(197, 4)), r"square grid, got 197. Leave out a class token, or pass grid="),
        (lambda: token_variation(torch.zeros(6, 4), grid=(2, 2)), r"grid must have as many places .* for 6"),
        (lambda: token_variation(torch.zeros(6)), r"v must be \[..., tokens, features\]"),
        (lambda: propagated(torch.zeros(4, 2), torch.zeros(4, 3)), "the same shape"),
    ],
)
def test_bad_input(call, says):
    with pytest.raises((ValueError, TypeError), match=says):
        call()


# --- patches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 8), (3, 8, 8), (2, 8, 8), (5, 3, 8, 8), (5, 1, 8, 8)])
def test_patches_come_back_as_the_image(shape):
    u = image(*shape)
    patches = patchify(u, 4)
    assert patches.shape == (*shape[:-3], 16, 4 * (shape[-3] if len(shape) > 2 else 1))
    assert torch.equal(unpatchify(patches), u)
    torch.testing.assert_close(torch.linalg.vector_norm(patches), torch.linalg.vector_norm(u))
    other = image(*shape, seed=1)
    torch.testing.assert_close(patchify(2 * u + other, 4), 2 * patches + patchify(other, 4))


def test_the_channel_axis_stays_where_it_is_asked_for():
    assert unpatchify(patchify(image(1, 8, 8), 2), channels=1).shape == (1, 8, 8)
    assert unpatchify(patchify(image(4, 8, 8), 2), channels=4).shape == (4, 8, 8)
    assert unpatchify(patchify(image(4, 8, 8), 2)).shape == (16, 16)  # 4 channels of 4 × 4 are 8 × 8 of one


def test_oblong_grids_and_patches():
    u = image(3, 6, 8)
    patches = patchify(u, (3, 2))
    assert patches.shape == (6, 2 * 4 * 3)
    assert torch.equal(unpatchify(patches, grid=(3, 2), patch=(2, 4)), u)
    assert torch.equal(unpatchify(patchify(u, 2), channels=3, patch=(3, 4)), u)
    bytes_ = torch.arange(16, dtype=torch.uint8).reshape(4, 4)
    assert patchify(bytes_, 2).dtype == torch.uint8
    assert torch.equal(patchify(np.arange(16).reshape(4, 4), 2), patchify(bytes_, 2).long())


def test_the_order_is_that_of_maes_targets():
    # Patches row by row, pixels row by row, channels last: as einsum nchpwq->nhwpqc.
    u = image(2, 3, 8, 8)
    theirs = torch.einsum("nchpwq->nhwpqc", u.reshape(2, 3, 4, 2, 4, 2)).reshape(2, 16, 12)
    assert torch.equal(patchify(u, 4), theirs)


def test_the_image_is_the_sum_of_its_extended_patches():
    for u in (image(6, 6), image(3, 6, 6)):
        patches = patchify(u, 3)
        parts = [extension(patch, i, 3) for i, patch in enumerate(patches)]
        torch.testing.assert_close(sum(parts), u, rtol=0, atol=0)
        assert int((parts[4] != 0).sum()) == patches.shape[1]


def test_patch_sums_miss_exactly_the_edges_between_patches():
    step = torch.zeros(8, 8, dtype=torch.float64)
    step[:, 4:] = 1
    assert patch_variation(step, 2).tolist() == [0, 0, 0, 0]
    assert patch_variation(step, 1).tolist() == [16]
    inside = patch_variation(image(2, 3, 8, 8), 4)
    assert inside.shape == (2, 16)
    assert float(inside[1, 6]) == pytest.approx(naive(image(2, 3, 8, 8)[1, :, 2:4, 4:6]))
    smooth = torch.linspace(0, 1, 256, dtype=torch.float64)[:, None] * torch.ones(256, dtype=torch.float64)
    assert float(patch_variation(smooth, 2, scaling="continuum").sum()) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: patchify(U, 3), "n must divide the image's height, got 3 patches for 8 pixels. Crop or resize"),
        (lambda: patchify(image(8, 9), 4), "width, got 4 patches for 9"),
        (lambda: patchify(U, 0), "n must be a positive number"),
        (lambda: patchify(torch.zeros(8), 2), "u must be"),
        (lambda: unpatchify(torch.zeros(3, 4)), "square grid, got 3"),
        (lambda: unpatchify(torch.zeros(4, 4), channels=3), "channels must divide the length of a patch, got 3 for 4"),
        (lambda: unpatchify(torch.zeros(4, 8), channels=1), r"Pass channels= and patch="),
        (lambda: unpatchify(torch.zeros(4)), "patches must be"),
        (
            lambda: unpatchify(patchify(image(8, 12), 4)),
            "at most 4 channels if nothing else is said, got 6 numbers each",
        ),
        (lambda: extension(torch.zeros(4), 4, 2), r"index must lie in \[0, 4\), got 4"),
        (lambda: extension(torch.zeros(4, 1), 0, 2), "patch must be one row"),
        (lambda: patch_variation(image(8, 6), (2, 1), scaling="continuum"), "n must be the same both ways"),
    ],
)
def test_bad_patches(call, says):
    with pytest.raises(ValueError, match=says):
        call()


# --- tokens ---------------------------------------------------------------------------------------------------------


def test_variation_of_tokens_is_that_of_an_image_of_vectors():
    v = image(2, 5, 12, 3)
    found = token_variation(v, grid=(3, 4), scaling="discrete")
    assert found.shape == (2, 5)
    assert float(found[1, 2]) == pytest.approx(naive(v[1, 2].reshape(3, 4, 3).permute(2, 0, 1)))
    square = image(9, 2)
    exact = naive(square.reshape(3, 3, 2).permute(2, 0, 1), weight=9 / 2) / 9
    assert float(token_variation(square)) == pytest.approx(exact)


def smooth_tokens(n):
    g = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    places = torch.stack(torch.meshgrid(g, g, indexing="ij"), -1).reshape(-1, 2)
    return places, (torch.sin(2 * math.pi * places[:, 0]) * torch.cos(math.pi * places[:, 1]) + 0.5)[:, None]


def test_the_ratio_of_theorem_51():
    places, v = smooth_tokens(8)
    matrix = (-64 * torch.cdist(places, places).square()).softmax(-1)
    found = propagated(v, matrix @ v)
    change = float((matrix @ v - v).square().mean().sqrt())
    assert float(found.change) == pytest.approx(change, rel=1e-12)
    assert float(found.norm) == pytest.approx(float(v.square().mean().sqrt()), rel=1e-12)
    assert float(found.norm) == float(token_norm(v))
    assert float(found.ratio) == pytest.approx(change / float(found.norm + found.variation), rel=1e-12)
    assert float(found.scaled) == pytest.approx(8 * float(found.ratio))
    assert float(found.scaled) == pytest.approx(0.208, abs=5e-4)
    assert float(found.supremum) == pytest.approx(
        float((matrix @ v - v).abs().max()) / float(v.abs().max() + found.variation), rel=1e-12
    )
    assert float(found.scaled_supremum) == pytest.approx(8 * float(found.supremum))


def test_the_ratio_has_a_value_per_image_and_a_grid():
    v = image(4, 6, 5)
    found = propagated(v, 2 * v, grid=(2, 3))
    assert found.ratio.shape == (4,)
    torch.testing.assert_close(found.change, found.norm)
    torch.testing.assert_close(found.scaled, 6**0.5 * found.ratio)
    assert float(propagated(v, v, grid=(3, 2)).scaled.max()) == 0
    assert not torch.equal(propagated(v, 2 * v, grid=(3, 2)).variation, found.variation)
