"""The augmentation: same deformations as the ensemble's, per sample, any kind of image, ranges and probabilities."""

from __future__ import annotations

import math
import sys
import types
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from lisse.maths.diffeomorphism import Diffeomorphism, deform
from lisse.maths.diffeomorphism.modes import normals
from lisse.networks.augment import MaxEntropyDiffeo


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    drawn = torch.rand(n, 3, 16, 12, generator=generator(1))
    return (drawn * 255).to(dtype) if dtype == torch.uint8 else drawn.to(dtype)


def test_it_is_the_ensembles_deformation():
    ensemble = Diffeomorphism((16, 12), 3)
    z = normals(4, 2 * ensemble.mode_count + 2, generator())[:, :-2].reshape(4, 2, -1)
    expected = deform(images(), ensemble.whitened_field(z, ensemble.temperature(1.5)))
    torch.testing.assert_close(MaxEntropyDiffeo(3, 1.5, generator=generator())(images()), expected)
    by_heat = MaxEntropyDiffeo(3, temperature=float(ensemble.temperature(1.5)), generator=generator())
    torch.testing.assert_close(by_heat(images()), expected)


def test_every_option_changes_the_result():
    base = MaxEntropyDiffeo(3, 1.0, generator=generator())(images())
    others = [
        MaxEntropyDiffeo(4, 1.0, generator=generator()),
        MaxEntropyDiffeo(3, 1.1, generator=generator()),
        MaxEntropyDiffeo(3, (1.0, 1.2), generator=generator()),
        MaxEntropyDiffeo(3, 1.0, p=0.0, generator=generator()),
        MaxEntropyDiffeo(3, 1.0, interpolation="bicubic", generator=generator()),
        MaxEntropyDiffeo(3, 1.0, modes="code", generator=generator()),
        MaxEntropyDiffeo(3, 1.0, grid="linspace", generator=generator()),
        MaxEntropyDiffeo(3, 1.0, generator=generator(9)),
    ]
    for other in others:
        assert not torch.allclose(other(images()), base)


def test_each_image_has_its_own_field_whatever_the_batch():
    same = images(1).expand(6, -1, -1, -1)
    for options in ({}, {"p": 0.5}, {"delta": (0.5, 1.5)}):
        options = {"delta": 1.0, **options}
        whole = MaxEntropyDiffeo(3, generator=generator(), **options)(same)
        parts = MaxEntropyDiffeo(3, generator=generator(), **options)
        torch.testing.assert_close(torch.cat([parts(same[:2]), parts(same[2:])]), whole)
        alone = MaxEntropyDiffeo(3, generator=generator(), **options)
        torch.testing.assert_close(torch.stack([alone(one) for one in same]), whole)
    assert len({float(image.sum()) for image in MaxEntropyDiffeo(3, 1.0, generator=generator())(same)}) == 6


def test_the_share_of_deformed_images_is_p():
    x = torch.rand(1, 1, 8, 8, generator=generator()).expand(2000, -1, -1, -1)
    for interpolation in ("bilinear", "gaussian"):
        moved = MaxEntropyDiffeo(2, 1.0, p=0.3, interpolation=interpolation, generator=generator(2))(x)
        share = float((moved != x).flatten(1).any(1).double().mean())
        assert abs(share - 0.3) < 4 * (0.3 * 0.7 / 2000) ** 0.5
    assert torch.equal(MaxEntropyDiffeo(2, 1.0, p=0.0)(x), x)
    assert (MaxEntropyDiffeo(2, 1.0, p=1.0)(x) != x).flatten(1).any(1).all()


@pytest.mark.parametrize("kind", ["delta", "temperature"])
def test_a_range_is_drawn_uniformly_in_displacement(kind):
    # An image with slope 1 along columns moves by the displacement: its RMS at the centre is that of δ over the range.
    n, low, high = 4000, 0.2, 0.8
    ensemble = Diffeomorphism((17, 17), 2)
    given = (low, high) if kind == "delta" else tuple(ensemble.temperature(d) for d in (low, high))
    x = torch.arange(17.0).expand(n, 1, 17, 17)
    square = (MaxEntropyDiffeo(2, generator=generator(3), **{kind: given})(x) - x)[:, 0, 8, 8] ** 2
    expected = (high**3 - low**3) / (3 * (high - low)) / 2  # E δ², half of it along columns
    assert abs(float(square.mean()) - expected) < 4 * float(square.std()) / n**0.5


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float64])
def test_tensors_keep_their_kind(dtype):
    for x in (images(dtype=dtype), images(dtype=dtype)[0]):
        moved = MaxEntropyDiffeo(3, 1.0, generator=generator())(x)
        assert (moved.dtype, moved.shape) == (dtype, x.shape)
        assert not torch.equal(moved, x)


class Marked(torch.Tensor):
    """A tensor that turns plain in every operation, as torchvision's kinds of tensors do."""

    __torch_function__ = torch._C._disabled_torch_function_impl


def test_kinds_of_tensors_stay_what_they_are():
    for x in (images(2), images(2)[0]):
        moved = MaxEntropyDiffeo(3, 1.0, generator=generator())(x.as_subclass(Marked))
        assert type(moved) is Marked
        assert torch.equal(moved.as_subclass(torch.Tensor), MaxEntropyDiffeo(3, 1.0, generator=generator())(x))


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_pil_images_give_pil_images(mode):
    picture = Image.fromarray(images(1, torch.uint8)[0].permute(1, 2, 0).numpy()).convert(mode)
    moved = MaxEntropyDiffeo(3, 1.0, generator=generator())(picture)
    assert (moved.mode, moved.size) == (mode, picture.size)
    array = np.array(picture)
    tensor = torch.from_numpy(array)[None] if array.ndim == 2 else torch.from_numpy(array).permute(2, 0, 1)
    expected = MaxEntropyDiffeo(3, 1.0, generator=generator())(tensor)
    np.testing.assert_array_equal(np.array(moved), expected[0] if mode == "L" else expected.permute(1, 2, 0))


def test_in_a_pipeline():
    x = images(2)
    network = nn.Sequential(MaxEntropyDiffeo(3, 1.0, generator=generator()), nn.Flatten())
    assert network(x).shape == (2, 576)
    moved, label = MaxEntropyDiffeo(3, 1.0)(x, torch.tensor([1, 2]))
    assert moved.shape == x.shape
    assert label.tolist() == [1, 2]
    assert "cut=3, delta=(1.0, 1.0), p=1.0" in repr(MaxEntropyDiffeo(3, 1.0))
    assert not list(MaxEntropyDiffeo(3, 1.0).parameters())


@pytest.mark.parametrize("batch", [images(2), images(2)[0]])
def test_samples_of_any_form_keep_it(batch):
    expected = MaxEntropyDiffeo(3, 1.0, generator=generator())(batch)
    label = torch.tensor([1, 2])
    forms = {
        "pair": ((batch, label), lambda found: (found[0], found[1])),
        "list": ([label, batch], lambda found: (found[1], found[0])),
        "nested": ({"meta": {"label": label, "id": 7}, "image": batch}, lambda f: (f["image"], f["meta"]["label"])),
    }
    for name, (sample, parts) in forms.items():
        found = MaxEntropyDiffeo(3, 1.0, generator=generator())(sample)
        assert type(found) is type(sample), name
        moved, same = parts(found)
        assert same is label, name
        torch.testing.assert_close(moved, expected)
    picture = Image.fromarray(images(1, torch.uint8)[0].permute(1, 2, 0).numpy())
    tensor = images(1)  # beside a picture, a tensor is data and not an image
    both = MaxEntropyDiffeo(3, 1.0, generator=generator())({"features": tensor, "picture": picture})
    assert both["features"] is tensor
    alone = MaxEntropyDiffeo(3, 1.0, generator=generator())(picture)
    np.testing.assert_array_equal(np.array(both["picture"]), np.array(alone))


def kinds() -> types.SimpleNamespace:
    """Kinds of tensors with the names that torchvision gives them."""
    names = ("Image", "Video", "Mask", "BoundingBoxes", "KeyPoints")
    return types.SimpleNamespace(**{name: type(name, (Marked,), {}) for name in names})


def test_torchvisions_kinds_share_a_field(monkeypatch):
    tv = kinds()
    monkeypatch.setitem(sys.modules, "torchvision.tv_tensors", tv)

    def transform(**options):
        return MaxEntropyDiffeo(3, 1.5, generator=generator(), **options)

    x, features = images(1)[0], torch.rand(3, 16, 12)
    alone = transform()(x)
    found = transform()(
        {"features": features, "left": x.as_subclass(tv.Image), "right": x.flip(0).as_subclass(tv.Image)}
    )
    assert found["features"] is features
    assert type(found["left"]) is tv.Image
    for name, expected in (("left", alone), ("right", alone.flip(0))):
        torch.testing.assert_close(found[name].as_subclass(torch.Tensor), expected)

    # Classes go with their pixels: the mask of an image is the mask of the deformed image, by nearest neighbours.
    near = transform(interpolation="nearest")(x)
    for mask, expected in (
        ((x[0] > 0.5), near[0] > 0.5),
        ((x > 0.5).long() * 70_000, (near > 0.5).long() * 70_000),
    ):
        moved, also = transform()(x.as_subclass(tv.Image), mask.as_subclass(tv.Mask))
        torch.testing.assert_close(moved.as_subclass(torch.Tensor), alone)
        assert type(also) is tv.Mask
        assert torch.equal(also.as_subclass(torch.Tensor), expected)
    several = images(3)
    masks = (several[:, 0] > 0.5).byte()
    moved, also = transform(interpolation="nearest")(several, masks.as_subclass(tv.Mask))
    assert torch.equal((moved[:, 0] > 0.5).byte(), also.as_subclass(torch.Tensor))

    film = x.expand(5, -1, -1, -1)
    frames = transform()(film.as_subclass(tv.Video)).as_subclass(torch.Tensor)
    torch.testing.assert_close(frames, alone.expand(5, -1, -1, -1))
    two = transform()(film.expand(2, -1, -1, -1, -1).as_subclass(tv.Video)).as_subclass(torch.Tensor)
    torch.testing.assert_close(two[:, 4], transform()(x.expand(2, -1, -1, -1)))

    for name in ("BoundingBoxes", "KeyPoints"):
        with pytest.raises(TypeError, match="take them from a deformed mask"):
            transform()(x.as_subclass(tv.Image), torch.ones(1, 4).as_subclass(getattr(tv, name)))
    with pytest.raises(ValueError, match=r"mask must be as large as its image, \[16, 12\], got shape \[4, 4\]"):
        transform()(x, torch.ones(4, 4).as_subclass(tv.Mask))
    with pytest.raises(ValueError, match=r"mask must be .* and 3 of them, got shape \[2, 16, 12\]"):
        transform()(several, torch.ones(2, 16, 12).as_subclass(tv.Mask))
    with pytest.raises(ValueError, match="several of one size and number"):
        transform()(x.as_subclass(tv.Image), x[:, :8].as_subclass(tv.Image))
    with pytest.raises(ValueError, match=r"image must be \[t, c, h, w\]"):
        transform()(x.as_subclass(tv.Video))


def test_numbers_of_numpy_and_batches_of_none():
    given = MaxEntropyDiffeo(3, (np.float32(0.5), np.float64(1)), p=np.float32(0.5))
    assert (given.delta, given.p) == ((0.5, 1.0), 0.5)
    assert MaxEntropyDiffeo(3, 1.0)(torch.empty(0, 3, 8, 8)).shape == (0, 3, 8, 8)


def test_gradients_flow_through_images():
    x = images().requires_grad_()
    MaxEntropyDiffeo(3, 1.0)(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_its_repr_has_every_option():
    said = repr(MaxEntropyDiffeo(3, 1.0, modes="code", grid="linspace"))
    assert said == (
        "MaxEntropyDiffeo(cut=3, delta=(1.0, 1.0), p=1.0, interpolation='bilinear', modes='code', grid='linspace')"
    )


def test_it_warns_once_where_most_fields_fold():
    x = torch.rand(2, 1, 28, 28)
    transform = MaxEntropyDiffeo(15, 1.0)
    with pytest.warns(
        UserWarning, match=r"MaxEntropyDiffeo: (9\d|100)% of the fields at cut 15, δ = 1 px on 28 × 28 pixels"
    ):
        transform(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        transform(x)
        MaxEntropyDiffeo(3, 1.0)(x)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: MaxEntropyDiffeo(1, 1.0), ValueError, "cut must be at least √2"),
        (lambda: MaxEntropyDiffeo(3), ValueError, "delta must be given, or temperature instead"),
        (lambda: MaxEntropyDiffeo(3, 1.0, temperature=1.0), ValueError, "delta must be given, or temperature"),
        (lambda: MaxEntropyDiffeo(3, -1.0), ValueError, "delta must be a number of at least 0 or a range"),
        (lambda: MaxEntropyDiffeo(3, True), ValueError, "delta must be a number of at least 0 or a range"),
        (lambda: MaxEntropyDiffeo(3, (2.0, 1.0)), ValueError, "delta must be a number"),
        (lambda: MaxEntropyDiffeo(3, temperature=math.nan), ValueError, "temperature must be a number"),
        (lambda: MaxEntropyDiffeo(3, 1.0, p=1.5), ValueError, r"p must lie in \[0, 1\]"),
        (lambda: MaxEntropyDiffeo(3, 1.0, interpolation="area"), ValueError, "interpolation must be one of"),
        (lambda: MaxEntropyDiffeo(3, 1.0)(torch.ones(4, 4)), ValueError, r"image must be \[c, h, w\]"),
        (lambda: MaxEntropyDiffeo(3, 1.0)(np.ones((3, 4, 4))), TypeError, "must be a tensor or a PIL image"),
        (lambda: MaxEntropyDiffeo(3, 1.0)((1, "cat")), TypeError, "got int, str"),
        (lambda: MaxEntropyDiffeo(3, 1.0)([]), TypeError, "got nothing"),
        (lambda: MaxEntropyDiffeo(3, 1.0)(Image.new("P", (4, 4))), ValueError, "channels of 8 bits, got mode 'P'"),
        (lambda: MaxEntropyDiffeo(3, 1.0)(torch.ones(1, 1, 1, 4)), ValueError, "at least 2 pixels"),
    ],
)
def test_bad_input(make, error, match):
    with pytest.raises(error, match=match):
        make()
