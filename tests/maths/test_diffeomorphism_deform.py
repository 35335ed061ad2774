"""Deformed images: golden numbers, identity, properties, the full Gaussian, gradients, the worst field, bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import map_coordinates

from lisse.maths.diffeomorphism import INTERPOLATIONS, SIGMA, Diffeomorphism, blurred, deform, undeformed


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int = 2, c: int = 3, h: int = 12, w: int = 9, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    drawn = torch.rand(n, c, h, w, generator=generator(5), dtype=torch.float64)
    return (drawn * 255).to(dtype) if dtype == torch.uint8 else drawn.to(dtype)


def fields(n: int = 2, h: int = 12, w: int = 9, delta: float = 1.5, dtype: torch.dtype = torch.float64):
    ensemble = Diffeomorphism((h, w), 3)
    return ensemble.sample(n, ensemble.temperature(delta), generator=generator(6), dtype=dtype)


def full_gaussian(image: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """The O(n⁴) sum for one image ``[c, h, w]`` and displacements ``[2, h, w]``."""
    _, h, w = image.shape
    rows, columns = np.mgrid[:h, :w].astype(float)
    x, y = (columns - moves[0]).clip(0, w - 1), (rows - moves[1]).clip(0, h - 1)
    weights = np.exp(-((x[..., None, None] - columns) ** 2 + (y[..., None, None] - rows) ** 2) / (2 * SIGMA**2))
    weights /= weights.sum((2, 3), keepdims=True)
    return np.einsum("yxab,cab->cyx", weights, image)


# --- golden numbers and oracles -------------------------------------------------------------------------------------


def test_the_fixed_field_on_the_fixed_image():
    i = torch.arange(1, 4, dtype=torch.float64)[:, None]
    field = Diffeomorphism((8, 8), 3).field(0.02 * torch.cos(i + 2 * i.T), 0.02 * torch.sin(2 * i + i.T))
    r = torch.arange(8, dtype=torch.float64)[:, None]
    image = (torch.sin(0.7 * r) + torch.cos(0.3 * r.T) + 0.05 * r * r.T)[None, None]
    moved = deform(image, field)
    assert float(moved[0, 0, 3, 4]) == pytest.approx(1.8053922629, abs=1e-9)
    assert float((moved - image).norm()) == pytest.approx(0.3406357836, abs=1e-9)
    assert float(deform(image, field, interpolation="gaussian")[0, 0, 3, 4]) == pytest.approx(1.7782605097, abs=1e-8)


@pytest.mark.parametrize(
    ("interpolation", "expected"), [("bilinear", 31.75), ("gaussian", 31.7847034567), ("nearest", 36)]
)
def test_the_published_codes_remap(interpolation, expected):
    image = torch.arange(64, dtype=torch.float64).reshape(1, 1, 8, 8)
    moves = torch.tensor([0.25, -0.5], dtype=torch.float64)[None, :, None, None].expand(1, 2, 8, 8)
    assert float(deform(image, moves, interpolation=interpolation)[0, 0, 3, 4]) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(("interpolation", "order"), [("bilinear", 1), ("nearest", 0)])
@pytest.mark.parametrize("shape", [(12, 9), (2, 30), (16, 16)])
def test_against_scipy(interpolation, order, shape):
    x, field = images(3, 2, *shape), fields(3, *shape, delta=2.0)
    found = deform(x, field, interpolation=interpolation)
    moves = field.displacement.numpy()
    rows, columns = np.mgrid[: shape[0], : shape[1]].astype(float)
    for n in range(3):
        at = [(rows - moves[n, 1]).clip(0, shape[0] - 1), (columns - moves[n, 0]).clip(0, shape[1] - 1)]
        for c in range(2):
            expected = map_coordinates(x[n, c].numpy(), at, order=order, mode="nearest")
            np.testing.assert_allclose(found[n, c], expected, atol=1e-12)


@pytest.mark.parametrize("delta", [0.0, 0.7, 4.0])
@pytest.mark.parametrize("shape", [(12, 9), (2, 3), (32, 32)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 2e-8), (torch.float32, 3e-6)])
def test_the_gaussian_window_is_the_full_sum(delta, shape, dtype, tolerance):
    x, field = images(2, 2, *shape), fields(2, *shape, delta=delta)
    found = deform(x.to(dtype), field, interpolation="gaussian")
    assert found.dtype == dtype
    for n in range(2):
        expected = full_gaussian(x[n].numpy(), field.displacement[n].numpy())
        np.testing.assert_allclose(found[n].double(), expected, atol=tolerance)


def test_the_blurred_reference_is_the_gaussian_at_rest():
    x = images()
    still = fields(delta=0.0)
    torch.testing.assert_close(blurred(x), deform(x, still, interpolation="gaussian"), atol=2e-8, rtol=0)
    assert (blurred(x) - x).abs().max() > 0.05
    assert torch.equal(undeformed(x, interpolation="gaussian"), blurred(x))
    for other in ("bilinear", "bicubic", "nearest"):
        assert torch.equal(undeformed(x, interpolation=other), x)


def test_bicubic_is_cubic_convolution():
    x, field = images(1, 1, 14, 14), fields(1, 14, 14, delta=1.0)
    found = deform(x, field, interpolation="bicubic")[0, 0].numpy()
    moves, picture, a = field.displacement[0].numpy(), x[0, 0].numpy(), -0.75

    def kernel(t: float) -> float:
        t = abs(t)
        return (a + 2) * t**3 - (a + 3) * t**2 + 1 if t <= 1 else a * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0

    for row, column in ((0, 0), (3, 7), (13, 5), (8, 13)):
        y, z = np.clip(row - moves[1, row, column], 0, 13), np.clip(column - moves[0, row, column], 0, 13)
        top, left = math.floor(y), math.floor(z)
        expected = sum(
            kernel(y - p) * kernel(z - q) * picture[np.clip(p, 0, 13), np.clip(q, 0, 13)]
            for p in range(top - 1, top + 3) for q in range(left - 1, left + 3)
        )  # fmt: skip
        assert found[row, column] == pytest.approx(expected, abs=1e-9)


# --- dtypes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(12, 9), (31, 37)])
def test_zero_fields_are_the_identity_bit_for_bit(interpolation, dtype, shape):
    x = images(3, 3, *shape, dtype=dtype)
    heat = torch.tensor([0.0, 0.01, 0.0])
    field = Diffeomorphism(shape, 3).sample(3, heat, generator=generator())
    found = deform(x, field, interpolation=interpolation)
    assert found.dtype == dtype
    assert torch.equal(found[0], x[0])
    assert torch.equal(found[2], x[2])
    assert not torch.equal(found[1], x[1])


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_bytes_are_rounded_to_nearest(interpolation):
    x, field = images(dtype=torch.uint8), fields()
    exact = deform(x.double(), field, interpolation=interpolation)
    found = deform(x, field, interpolation=interpolation)
    assert found.dtype == torch.uint8
    assert (found.double() - exact.clamp(0, 255)).abs().max() <= 0.5 + 1e-3
    halves = torch.tensor([[[[0, 1, 2, 3]] * 4]], dtype=torch.uint8)
    moves = torch.zeros(1, 2, 4, 4)
    moves[:, 0] = 0.5
    assert deform(halves, moves)[0, 0, 1].tolist() == [0, 0, 2, 2]  # 0.5, 1.5, 2.5 to even


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-3), (torch.bfloat16, 8e-3), (torch.float32, 5e-6)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "gaussian"])
def test_lower_precision_is_the_same_to_its_rounding(dtype, tolerance, interpolation):
    x, field = images(2, 3, 40, 33, dtype=dtype), fields(2, 40, 33)
    expected = deform(x.double(), field, interpolation=interpolation)
    torch.testing.assert_close(deform(x, field, interpolation=interpolation).double(), expected, atol=tolerance, rtol=0)


def test_numpy_images_and_a_single_field_for_all():
    x = images(4)
    field = fields(1)
    together = deform(x.numpy(), field)
    torch.testing.assert_close(together, torch.cat([deform(one[None], field) for one in x]))
    torch.testing.assert_close(together, deform(x, field.displacement), atol=1e-12, rtol=0)


def test_numpy_displacements():
    x, moves = images(), fields().displacement
    assert torch.equal(deform(x.numpy(), moves.numpy()), deform(x, moves))


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_chunks_do_not_change_the_result(interpolation, monkeypatch):
    from lisse.maths.diffeomorphism import warp

    for dtype in (torch.uint8, torch.float32, torch.bfloat16):
        x, field = images(11, dtype=dtype), fields(11, dtype=torch.float32)
        whole = deform(x, field, interpolation=interpolation)
        monkeypatch.setitem(warp._PIXELS, "cpu", 3 * 12 * 9)
        parts = deform(x, field, interpolation=interpolation)
        monkeypatch.undo()
        torch.testing.assert_close(
            parts.double(), whole.double(), atol=1e-6 if dtype != torch.bfloat16 else 8e-3, rtol=0
        )


def test_autocast_does_not_touch_positions():
    x, field = images(2, 3, 64, 64, dtype=torch.float32), fields(2, 64, 64, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(deform(x, field), deform(x, field.to()))
        under = deform(x, field)
    assert torch.equal(under, deform(x, field))


# --- properties -----------------------------------------------------------------------------------------------------

cases = st.tuples(st.integers(2, 14), st.integers(2, 14), st.floats(0, 5), st.integers(0, 1000))


def one_field(h, w, delta, seed):
    ensemble = Diffeomorphism((h, w), 3)
    return ensemble.sample(1, ensemble.temperature(delta), generator=generator(seed), dtype=torch.float64)


@settings(deadline=None, max_examples=40)
@given(cases, st.sampled_from(INTERPOLATIONS))
def test_constant_images_stay(case, interpolation):
    h, w, _, _ = case
    x = torch.full((1, 1, h, w), 0.7, dtype=torch.float64)
    torch.testing.assert_close(deform(x, one_field(*case), interpolation=interpolation), x, rtol=1e-12, atol=0)


@settings(deadline=None, max_examples=40)
@given(cases, st.sampled_from(["bilinear", "gaussian", "nearest"]))
def test_outputs_stay_in_the_range_of_the_inputs(case, interpolation):
    h, w, _, seed = case
    x = torch.rand(1, 2, h, w, generator=generator(seed + 1), dtype=torch.float64)
    found = deform(x, one_field(*case), interpolation=interpolation)
    assert found.min() >= x.min() - 1e-12
    assert found.max() <= x.max() + 1e-12


@settings(deadline=None, max_examples=40)
@given(cases, st.floats(-2, 2), st.floats(-2, 2))
def test_affine_images_move_by_their_slope(case, a, b):
    h, w, _, _ = case
    field = one_field(*case)
    moves = field.displacement
    rows, columns = torch.meshgrid(torch.arange(h).double(), torch.arange(w).double(), indexing="ij")
    inside = (columns - moves[:, 0] >= 0) & (columns - moves[:, 0] <= w - 1)
    inside &= (rows - moves[:, 1] >= 0) & (rows - moves[:, 1] <= h - 1)
    x = (a * columns + b * rows)[None, None]
    expected = (-a * moves[:, 0] - b * moves[:, 1])[inside]
    torch.testing.assert_close((deform(x, field) - x)[:, 0][inside], expected, atol=1e-10, rtol=0)


@settings(deadline=None, max_examples=40)
@given(cases, st.sampled_from(INTERPOLATIONS))
def test_transposing_the_image_and_swapping_u_and_v_commute(case, interpolation):
    h, w, delta, seed = case
    field = one_field(h, w, delta, seed)
    x = torch.rand(1, 2, h, w, generator=generator(seed + 1), dtype=torch.float64)
    other = Diffeomorphism((w, h), 3).field(field.cv.mT, field.cu.mT)
    found = deform(x.mT, other, interpolation=interpolation)
    if interpolation == "nearest":
        assert (found.mT == deform(x, field, interpolation=interpolation)).double().mean() > 0.99  # ties by rounding
    else:
        torch.testing.assert_close(found.mT, deform(x, field, interpolation=interpolation), atol=1e-9, rtol=0)


def test_a_deformed_image_is_undone_by_the_inverse():
    n = 96
    line = torch.linspace(0, 1, n, dtype=torch.float64)
    x = (torch.sin(5 * line) * torch.cos(4 * line[:, None]))[None, None]
    ensemble = Diffeomorphism((n, n), 3)
    field = ensemble.sample(1, ensemble.temperature(4.0), generator=generator(1), dtype=torch.float64)
    moved = deform(x, field, interpolation="bicubic")
    back = deform(moved, field.inverse(tol=1e-8).displacement, interpolation="bicubic")
    # At the outermost pixels positions are clamped, which no field undoes.
    assert (back - x)[..., 2:-2, 2:-2].abs().max() < 2e-3
    assert (moved - x).abs().max() > 0.1


# --- gradients and the worst field ----------------------------------------------------------------------------------


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "gaussian"])
def test_gradcheck(interpolation):
    ensemble = Diffeomorphism((5, 6), 3)
    x = images(2, 1, 5, 6).requires_grad_()
    z = torch.randn(2, 2, 4, generator=generator(3), dtype=torch.float64).requires_grad_()

    def f(x, z):
        return deform(x, ensemble.whitened_field(z, 2e-3), interpolation=interpolation)

    assert torch.autograd.gradcheck(f, (x, z), eps=1e-7, atol=1e-5)


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: deform(images()[0], fields()), ValueError, r"images must be \[n, c, h, w\]"),
        (lambda: deform(torch.ones(1, 1, 1, 5), fields(1)), ValueError, "at least 2 pixels a side"),
        (lambda: deform(images(h=13), fields()), ValueError, r"field must be made for images of \[13, 9\] pixels"),
        (lambda: deform(images(3), fields(2)), ValueError, r"one field per image \(3\) or a single one, got 2"),
        (lambda: deform(images(), fields(), interpolation="lanczos"), ValueError, "must be one of bilinear"),
        (lambda: deform(images() * math.nan, fields()), ValueError, "images must be finite"),
        (lambda: deform(images() / 0, fields()), ValueError, "images must be finite"),
        (lambda: deform(images(), torch.full((2, 2, 12, 9), math.inf)), ValueError, "field must be finite"),
        (lambda: deform(images(), fields() * math.nan), ValueError, "field must be finite, got NaN"),
        (lambda: deform(images(), fields() * math.inf), ValueError, "field must be finite"),
        (lambda: deform(images(), whitened_nan(), interpolation="nearest"), ValueError, "field must be finite"),
        (lambda: deform(images().long(), fields()), TypeError, "images must be uint8 or floating point"),
        (lambda: deform(images(), torch.zeros(2, 3, 12, 9)), TypeError, "field must be a Field or displacements"),
        (lambda: deform(images(), None), TypeError, "field must be a Field"),
        (lambda: undeformed(images(), interpolation="x"), ValueError, "interpolation must be one of"),
        (lambda: undeformed(images()[0]), ValueError, r"undeformed: images must be \[n, c, h, w\]"),
        (lambda: undeformed(images() * math.nan), ValueError, "undeformed: images must be finite"),
        (lambda: undeformed(images() * math.nan, interpolation="gaussian"), ValueError, "images must be finite"),
        (lambda: blurred(images()[0]), ValueError, r"blurred: images must be \[n, c, h, w\]"),
        (lambda: blurred(images() * math.nan), ValueError, "blurred: images must be finite"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()


def whitened_nan():
    normals = torch.zeros(2, 2, 4)
    normals[1, 0, 2] = math.nan
    return Diffeomorphism((12, 9), 3).whitened_field(normals, 1e-3)


def test_nan_may_be_let_through():
    x = images()
    x[0, 0, 0, 0] = math.nan
    assert deform(x, fields(), check=False)[1].isfinite().all()
