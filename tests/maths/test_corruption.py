"""What holds for every corruption: kinds of images, randomness, severities, bad input."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.corruption import CORRUPTIONS, EXTRA, MAIN, PARAMETERS, corrupt
from lisse.maths.corruption.application import _CHUNK

RANDOM = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "glass_blur",
    "motion_blur",
    "snow",
    "frost",
    "fog",
    "elastic_transform",
    "speckle_noise",
    "spatter",
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scenes(n: int, side: int = 32, *, channels: int = 3, seed: int = 0) -> torch.Tensor:
    """Smooth bytes ``[n, channels, side, side]`` with some edges."""
    coarse = torch.rand(n, channels, 5, 5, generator=seeded(seed))
    fine = torch.nn.functional.interpolate(coarse, size=side, mode="bicubic", align_corners=True)
    fine[..., side // 2 :, : side // 3] *= 0.4
    return fine.clamp(0, 1).mul(255).to(torch.uint8)


@pytest.fixture(scope="module")
def textures() -> list[torch.Tensor]:
    return [scenes(1, size, seed=k)[0] for k, size in enumerate((180, 200, 220))]


@pytest.fixture(scope="module")
def apply(textures):
    def made(images, name, severity=3, **options):
        options.setdefault("generator", seeded())
        return corrupt(images, name, severity, textures=textures, **options)

    return made


def test_the_names():
    assert len(MAIN) == 15
    assert len(EXTRA) == 4
    assert CORRUPTIONS == MAIN + EXTRA
    for table in PARAMETERS.values():
        assert tuple(sorted(table)) == tuple(sorted(CORRUPTIONS))
        assert all(len(levels) == 5 for levels in table.values())


#: The published generator's numbers, as one would write them down from it.
PUBLISHED = """
gaussian_noise: .04 .06 .08 .09 .10
shot_noise: 500 250 100 75 50
impulse_noise: .01 .02 .03 .05 .07
defocus_blur: (.3,.4) (.4,.5) (.5,.6) (1,.2) (1.5,.1)
glass_blur: (.05,1,1) (.25,1,1) (.4,1,1) (.25,1,2) (.4,1,2)
motion_blur: (6,1) (6,1.5) (6,2) (8,2) (9,2.5)
zoom_blur: 1.06 1.11 1.16 1.21 1.26
snow: (.1,.2,1,.6,8,3,.95) (.1,.2,1,.5,10,4,.9) (.15,.3,1.75,.55,10,4,.9) \
      (.25,.3,2.25,.6,12,6,.85) (.3,.3,1.25,.65,14,12,.8)
frost: (1,.2) (1,.3) (.9,.4) (.85,.4) (.75,.45)
fog: (.2,3) (.5,3) (.75,2.5) (1,2) (1.5,1.75)
brightness: .05 .1 .15 .2 .3
contrast: .75 .5 .4 .3 .15
elastic_transform: (0,0,.08) (.05,.2,.07) (.08,.06,.06) (.1,.04,.05) (.1,.03,.03)
pixelate: .95 .9 .85 .75 .65
jpeg_compression: 80 65 58 50 40
speckle_noise: .06 .1 .12 .16 .2
gaussian_blur: .4 .6 .7 .8 1
spatter: (.62,.1,.7,.7,.5,0) (.65,.1,.8,.7,.5,0) (.65,.3,1,.69,.5,0) (.65,.1,.7,.69,.6,1) (.65,.1,.5,.68,.6,1)
saturate: (.3,0) (.1,0) (1.5,0) (2,.1) (2.5,.2)
"""


def test_the_published_parameters_of_cifar():
    for line in PUBLISHED.strip().splitlines():
        name, _, numbers = line.partition(":")
        levels = PARAMETERS["cifar"][name]
        if name == "zoom_blur":
            assert {step for _, step in levels} == {0.01}
            levels = [level[:1] for level in levels]
        groups = re.findall(r"\(([^)]*)\)", numbers) or numbers.split()
        assert [tuple(map(float, group.split(","))) for group in groups] == [tuple(map(float, x)) for x in levels], name


@pytest.mark.parametrize("strength", ["cifar", "imagenet"])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_shape_dtype_and_range_are_kept(apply, name, strength):
    images = scenes(3, 32)
    made = apply(images, name, strength=strength)
    assert made.shape == images.shape
    assert made.dtype == torch.uint8
    assert not torch.equal(made, images)
    for dtype in (torch.float64, torch.float32, torch.float16):
        floats = (images.double() / 255).to(dtype)
        same = apply(floats, name, strength=strength)
        assert same.shape == images.shape
        assert same.dtype == dtype
        assert float(same.min()) >= 0
        assert float(same.max()) <= 1
    single, flat = apply(images[0], name, strength=strength), apply(images[0, 0], name, strength=strength)
    assert single.shape == (3, 32, 32)
    assert flat.shape == (32, 32)
    assert torch.equal(single, apply(images[:1], name, strength=strength)[0])
    grey = apply(images[:, :1], name, strength=strength)
    assert grey.shape == (3, 1, 32, 32)
    assert torch.equal(images, scenes(3, 32)), "the images given must not change"


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_arrays_and_odd_sizes(apply, name):
    for shape in ((4, 4), (5, 11), (21, 8), (33, 20)):
        array = scenes(2, 40)[..., : shape[0], : shape[1]].numpy()
        for strength in ("cifar", "imagenet"):
            made = apply(array, name, 5, strength=strength)
            assert isinstance(made, torch.Tensor)
            assert made.shape == array.shape


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_bytes_are_the_floats_cut_off(apply, name):
    """Bytes in give the floats' result within what the bytes inside (glass_blur, pixelate) change."""
    if name == "shot_noise":
        pytest.skip("bytes and floats draw their Poisson numbers in different ways")
    images = scenes(4)
    made, floats = apply(images, name), apply(images.double() / 255, name) * 255
    slack = {"glass_blur": 1.01, "pixelate": 1.01}.get(name, 0.01)
    gap = floats - made.double()
    assert float(gap.min()) > -slack
    assert float(gap.max()) < 1 + slack


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_batch_does_not_depend_on_how_it_is_cut(apply, name):
    images = scenes(7)
    whole = apply(images, name, generator=seeded(5))
    generator = seeded(5)
    parts = [apply(part, name, generator=generator) for part in (images[:1], images[1:4], images[4:])]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("name", ["gaussian_noise", "snow", "spatter", "shot_noise"])
def test_a_batch_beyond_one_chunk(apply, name):
    images = scenes(3).repeat(_CHUNK // 3072 // 3 + 2, 1, 1, 1)
    generator = seeded(1)
    first = apply(images[:5], name, generator=generator)
    rest = apply(images[5:], name, generator=generator)
    assert torch.equal(apply(images, name, generator=seeded(1)), torch.cat([first, rest]))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_seeds(apply, name):
    images = scenes(1).expand(4, -1, -1, -1)
    one, again, other = (apply(images, name, generator=seeded(k)) for k in (0, 0, 1))
    assert torch.equal(one, again)
    if name in RANDOM:
        assert not torch.equal(one, other)
        assert all(not torch.equal(one[0], one[k]) for k in (1, 2, 3)), "every image has its own randomness"
    else:
        assert torch.equal(one, other)
        assert torch.equal(one[0], one[3])


def test_without_a_generator_torchs_own_is_used():
    images = scenes(1)
    torch.manual_seed(3)
    one = corrupt(images, "gaussian_noise", 1)
    torch.manual_seed(3)
    assert torch.equal(one, corrupt(images, "gaussian_noise", 1))
    state = torch.get_rng_state()
    corrupt(images, "gaussian_noise", 1, generator=seeded())
    assert torch.equal(state, torch.get_rng_state())


# The published parameters of these do not distort more in every step: saturate fades and then colours, spatter changes
# from water to mud at severity 4, snow trades its numbers, fog keeps the image's maximum, frost darkens what it covers;
# on CIFAR elastic_transform exchanges the affine part for the smooth one, and glass_blur smooths what it swaps.
UNSTEADY = ("saturate", "spatter", "snow", "fog", "frost")
STEADY = {
    "cifar": tuple(n for n in CORRUPTIONS if n not in (*UNSTEADY, "elastic_transform", "glass_blur")),
    "imagenet": tuple(n for n in CORRUPTIONS if n not in UNSTEADY),
}


@pytest.mark.parametrize(("strength", "name"), [(s, n) for s in STEADY for n in STEADY[s]])
def test_distortion_grows_with_severity(apply, strength, name):
    images = scenes(48, 32, seed=1)
    made = [apply(images, name, severity, strength=strength) for severity in range(1, 6)]
    each = torch.stack([(y.float() - images.float()).abs().mean((1, 2, 3)) for y in made])
    means = each.mean(1)
    error = (each[1:] - each[:-1]).std(1) / each.shape[1] ** 0.5
    assert bool((means[1:] - means[:-1] >= -3 * error).all()), means
    assert means[-1] > means[0]


@pytest.mark.parametrize("strength", ["cifar", "imagenet"])
@pytest.mark.parametrize("name", ["glass_blur", "elastic_transform", "spatter", "snow", "fog", "frost"])
def test_the_strongest_distorts_more_than_the_slightest(apply, strength, name):
    images = scenes(48, 32, seed=1)
    if name == "elastic_transform" and strength == "cifar":
        pytest.skip("CIFAR's affine part shrinks as the smooth one grows")
    slight, strong = ((apply(images, name, s, strength=strength).float() - images).abs().mean() for s in (1, 5))
    assert strong > slight


def test_saturate_fades_and_then_colours(apply):
    images = scenes(8)

    def chroma(x):
        return float((x.amax(1).float() - x.amin(1).float()).mean())

    levels = [chroma(apply(images, "saturate", severity)) for severity in range(1, 6)]
    assert levels[1] < levels[0] < chroma(images) < levels[2] < levels[3] < levels[4]


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from([n for n in CORRUPTIONS if n != "frost"]),
    severity=st.integers(1, 5),
    level=st.integers(0, 255),
    shape=st.tuples(st.integers(4, 24), st.integers(4, 24)),
    strength=st.sampled_from(["cifar", "imagenet"]),
)
def test_flat_images(name, severity, level, shape, strength):
    """Blurs, deformations and compression leave a flat image as it is; nothing fails on any level or size."""
    images = torch.full((2, 3, *shape), level, dtype=torch.uint8)
    made = corrupt(images, name, severity, strength=strength, generator=seeded())
    still = ("gaussian_blur", "glass_blur", "motion_blur", "zoom_blur", "contrast", "elastic_transform", "pixelate")
    if name in still:
        assert torch.equal(made, images), (made.float() - level).abs().max()
    if name == "jpeg_compression":
        # Of a flat block only the mean is coded: 8·(level − 128), in steps of the luminance table's first entry, which
        # is 16·(5000/quality)/100 below quality 50 and 16·(200 − 2·quality)/100 above. The error: half a step over 8.
        (quality,) = PARAMETERS[strength]["jpeg_compression"][severity - 1]
        first = max(1, (16 * (5000 // quality if quality < 50 else 200 - 2 * quality) + 50) // 100)
        assert int((made.int() - level).abs().max()) <= first / 16 + 1
    if name == "defocus_blur" and strength == "cifar":
        assert torch.equal(made, images)


def test_the_two_strengths_differ(apply):
    images = scenes(4)
    for name in CORRUPTIONS:
        weak, strong = apply(images, name), apply(images, name, strength="imagenet")
        assert not torch.equal(weak, strong), name


def test_no_gradient_and_no_alias():
    images = torch.rand(1, 3, 8, 8, requires_grad=True)
    for name in ("gaussian_noise", "contrast"):
        assert not corrupt(images, name, 1, generator=seeded()).requires_grad
    grey = torch.rand(1, 1, 8, 8)
    assert corrupt(grey, "saturate", 1).data_ptr() != grey.data_ptr()


def test_an_empty_batch(apply):
    assert apply(torch.zeros(0, 3, 8, 8), "fog").shape == (0, 3, 8, 8)


@pytest.mark.parametrize("severity", [0, 6, -1, 2.5, "3", None, True])
def test_severity_outside(severity):
    with pytest.raises(ValueError, match="corrupt: severity must be an integer from 1 to 5, got"):
        corrupt(scenes(1), "fog", severity)


def test_severity_may_be_numpys():
    assert torch.equal(corrupt(scenes(1), "contrast", np.int64(2)), corrupt(scenes(1), "contrast", 2))


def test_unknown_names():
    with pytest.raises(
        ValueError, match=r"name must be one of gaussian_noise, .*saturate, got 'motion blurr'. Did you"
    ):
        corrupt(scenes(1), "motion blurr", 1)
    with pytest.raises(ValueError, match=r"got 'Gaussian-Noise'. Did you mean 'gaussian_noise'"):
        corrupt(scenes(1), "Gaussian-Noise", 1)
    with pytest.raises(ValueError, match="Check the spelling"):
        corrupt(scenes(1), "xyz", 1)
    with pytest.raises(ValueError, match="strength must be 'cifar' or 'imagenet', got 'strong'"):
        corrupt(scenes(1), "fog", 1, strength="strong")
    with pytest.raises(ValueError, match="variant must be 'corrected' or 'hendrycks', got 'x'"):
        corrupt(scenes(1), "fog", 1, variant="x")


@pytest.mark.parametrize(
    ("images", "error", "match"),
    [
        (torch.zeros(2, 3, 8, 8, dtype=torch.int64), TypeError, "uint8 or floats in .0, 1., got torch.int64"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.bool), TypeError, "got torch.bool"),
        (torch.full((1, 3, 8, 8), 1.5), ValueError, r"must lie in \[0, 1\] when they are floats, got 1.5 … 1.5"),
        (torch.full((1, 3, 8, 8), -0.1), ValueError, "got -0.1"),
        (torch.full((1, 3, 8, 8), float("nan")), ValueError, "got NaN"),
        (torch.tensor([0.5, float("nan")]).repeat(1, 3, 8, 4), ValueError, "got NaN"),
        (torch.full((1, 3, 8, 8), float("inf")), ValueError, "got inf"),
        (torch.zeros(2, 8, 8, 3), ValueError, "1 or 3 channels, got 8 .*permute"),
        (torch.zeros(2, 4, 8, 8), ValueError, "1 or 3 channels, got 4"),
        (torch.zeros(8), ValueError, r"must be \[n, c, h, w\], .*got shape \(8,\)"),
        (torch.zeros(1, 1, 3, 8, 8), ValueError, "got shape"),
        (torch.zeros(1, 3, 3, 8), ValueError, "at least 4 pixels"),
        ("a picture", TypeError, "must be a tensor or an array, got str"),
    ],
)
def test_wrong_images(images, error, match):
    with pytest.raises(error, match=match):
        corrupt(images, "gaussian_noise", 1)


@pytest.mark.parametrize("nothing", [{}, {"textures": None}, {"textures": []}])
def test_frost_needs_textures_and_says_where_they_are(nothing):
    with pytest.raises(ValueError, match=r"textures must hold .* for frost, got none.*lisse\.data\.frost_textures"):
        corrupt(scenes(1), "frost", 1, **nothing)


def test_frost_refuses_what_is_no_picture():
    with pytest.raises(ValueError, match=r"textures must be byte pictures \[3, H, W\].*got torch.float32"):
        corrupt(scenes(1), "frost", 1, textures=[torch.zeros(3, 20, 20)])
    with pytest.raises(ValueError, match=r"of shape \(20, 20, 3\)"):
        corrupt(scenes(1), "frost", 1, textures=[torch.zeros(20, 20, 3, dtype=torch.uint8)])


def test_options_are_keywords():
    kinds = {p.name: p.kind for p in inspect.signature(corrupt).parameters.values()}
    assert [n for n, k in kinds.items() if k is inspect.Parameter.POSITIONAL_OR_KEYWORD] == [
        "images",
        "name",
        "severity",
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_on_a_gpu(apply, name):
    images = scenes(4)
    made = apply(images.cuda(), name)
    assert made.is_cuda
    assert (made.cpu().int() - apply(images, name).int()).abs().float().mean() < 0.5
