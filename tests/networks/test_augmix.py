"""AugMix: its operations against PIL's, its mixture in the hull of the images, its divergence in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from lisse.networks.augmix import AugMix, autocontrast, divergence, flat_histogram, posterised, solarised, warped


def pictures(n: int = 5, size: int = 16, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(20, 200, (n, 3, size, size), generator=generator).float() / 255


def of_pil(x, change):
    from PIL import Image

    rows = [np.asarray(change(Image.fromarray(np.uint8(image.permute(1, 2, 0).numpy() * 255 + 0.5)))) for image in x]
    return torch.from_numpy(np.stack(rows)).permute(0, 3, 1, 2).float() / 255


def test_the_operations_on_values_are_those_of_pil():
    ops, x, half = pytest.importorskip("PIL.ImageOps"), pictures(size=64), torch.full((5,), 0.5)
    assert float((autocontrast(x) - of_pil(x, ops.autocontrast)).abs().max()) <= 1.5 / 255
    assert torch.allclose(flat_histogram(x), of_pil(x, ops.equalize), atol=1e-6)
    assert torch.allclose(posterised(x, half), of_pil(x, lambda image: ops.posterize(image, 6)), atol=1e-6)
    assert torch.allclose(solarised(x, half), of_pil(x, lambda image: ops.solarize(image, 128)), atol=1e-6)


def test_one_level_stays_as_it_is():
    flat = torch.full((2, 3, 8, 8), 0.4)
    assert torch.equal(autocontrast(flat), flat)
    assert torch.equal(flat_histogram(flat), flat)


def test_geometry_in_closed_form():
    x = pictures(1, 12)
    shift = warped(x, torch.tensor([3]), torch.tensor([0.25]))  # a twelfth of the width: one pixel
    assert torch.allclose(shift[..., :-1], x[..., 1:], atol=1e-5)
    assert not shift[..., -1].any()
    down = warped(x, torch.tensor([4]), torch.tensor([-0.25]))
    assert torch.allclose(down[..., 1:, :], x[..., :-1, :], atol=1e-5)
    for which in range(3):
        assert torch.allclose(warped(x, torch.tensor([which]), torch.tensor([0.0])), x, atol=1e-6)
        assert not torch.allclose(warped(x, torch.tensor([which]), torch.tensor([0.8])), x, atol=1e-2)
    assert torch.equal(warped(x, torch.tensor([7]), torch.tensor([0.8])), x)
    quarter = warped(x, torch.tensor([0]), torch.tensor([1.0]))
    back = warped(quarter, torch.tensor([0]), torch.tensor([-1.0]))
    assert float((back - x)[..., 4:8, 4:8].abs().mean()) < float((quarter - x)[..., 4:8, 4:8].abs().mean())


@given(st.integers(0, 99), st.floats(1, 10), st.integers(1, 4))
def test_mixtures_stay_images(seed, severity, width):
    torch.manual_seed(seed)
    x = pictures(3, 8, seed)
    mixed = AugMix(severity, width)(x)
    assert mixed.shape == x.shape
    assert -1e-6 <= float(mixed.min()) <= float(mixed.max()) <= 1 + 1e-6
    torch.manual_seed(seed)
    assert torch.equal(AugMix(severity, width)(x), mixed)


def test_every_image_has_draws_of_its_own_and_severity_counts():
    torch.manual_seed(0)
    x = pictures(1).repeat(200, 1, 1, 1)
    mild, strong = ((AugMix(severity)(x) - x).abs().mean((1, 2, 3)) for severity in (1.0, 10.0))
    assert len(mild.unique()) > 190
    assert float(strong.mean()) > float(mild.mean())


def test_the_divergence_in_closed_form():
    a, b = torch.tensor([[0.0, -math.inf]]), torch.tensor([[-math.inf, 0.0]])
    big = torch.tensor([[50.0, -50.0]])
    assert float(divergence(big, -big)) == pytest.approx(math.log(2), rel=1e-5)
    assert float(divergence(big, big, big)) == pytest.approx(0.0, abs=1e-7)
    assert a.shape == b.shape
    p, q, r = (torch.randn(6, 5, generator=torch.Generator().manual_seed(k)) for k in range(3))
    middle = sum(z.softmax(1) for z in (p, q, r)) / 3
    naive = sum(functional.kl_div(middle.log(), z.softmax(1), reduction="batchmean") for z in (p, q, r)) / 3
    assert float(divergence(p, q, r)) == pytest.approx(float(naive), rel=1e-5)


def test_the_loss_is_that_of_the_clean_images_and_the_divergence():
    model, x, y = nn.Sequential(nn.Flatten(), nn.Linear(768, 4)), pictures(), torch.tensor([0, 1, 2, 3, 0])
    lesson = AugMix(consistency=7.0)
    views = lesson.views(model, x, y)
    assert torch.equal(views[:5], x)
    logits = model(views)
    expected = functional.cross_entropy(logits[:5], y) + 7 * divergence(logits[:5], logits[5:10], logits[10:])
    assert float(lesson.task(logits, y)) == pytest.approx(float(expected))
    torch.manual_seed(1)
    value = lesson.loss(model, x, y)
    value.backward()
    assert model[1].weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"severity": 0}, "severity must be from 1 to 10, got 0"),
        ({"width": 0}, "width must be a whole number of at least 1, got 0"),
        ({"consistency": -1}, "consistency must be at least 0, got -1"),
    ],
)
def test_bad_options(options, match):
    with pytest.raises(ValueError, match=f"^AugMix: {match}"):
        AugMix(**options)
    with pytest.raises(ValueError, match=r"^AugMix: images must be floats \[n, c, h, w\], got torch.uint8"):
        AugMix()(torch.zeros(2, 3, 4, 4, dtype=torch.uint8))
