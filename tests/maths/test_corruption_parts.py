"""Each corruption against a closed form, a naive version, or imagecorruptions-imaug (its numbers, or itself)."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import torch
from corruption_statistics import FIXED, TABLE, picture, statistics
from PIL import Image

from lisse.maths.corruption import corrupt
from lisse.maths.corruption.blur import _wavefronts, glass_blur
from lisse.maths.corruption.digital import _moved
from lisse.maths.corruption.draws import Draws
from lisse.maths.corruption.filters import (
    border_index,
    box_matrix,
    disk,
    filtered,
    gaussian_matrix,
    padded,
    smoothed,
    streaked,
    zoomed,
)
from lisse.maths.corruption.weather import (
    edge_distances,
    edges,
    equalised,
    frost_scale,
    plasma,
    relief,
    scaled_textures,
)

CPU = torch.device("cpu")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def flat(level: int, n: int = 1, side: int = 64) -> torch.Tensor:
    return torch.full((n, 3, side, side), level, dtype=torch.uint8)


# --- random numbers -------------------------------------------------------------------------------------------------


def test_normal_numbers():
    z = Draws(200, seeded(), CPU).normal(3, 333).flatten().double()
    assert scipy.stats.kstest(z.numpy(), "norm").pvalue > 1e-3
    assert float(z.abs().max()) < 5.8
    assert abs(float((z.reshape(-1, 9) ** 2).mean()) - 1) < 4 * math.sqrt(2 / len(z))


def test_an_odd_number_of_normal_numbers():
    assert Draws(4, seeded(), CPU).normal(5).shape == (4, 5)


@pytest.mark.parametrize(("photons", "level"), [(500, 255), (60, 200), (3, 100), (3, 1), (50, 0)])
@pytest.mark.parametrize("bytes_", [True, False])
def test_shot_noise_is_poisson(photons, level, bytes_):
    """χ² of the counts against the Poisson law, from bytes (tabulated) and from floats."""
    from lisse.maths.corruption.noise import shot_noise

    x = torch.full((8, 3, 64, 64), level / 255)
    count = (shot_noise(x, Draws(8, seeded(1), CPU), photons=photons, bytes_=bytes_) * photons).round().long().flatten()
    rate = photons * level / 255
    if rate == 0:
        assert int(count.max()) == 0
        return
    law = scipy.stats.poisson(rate)
    assert abs(float(count.double().mean()) - rate) < 4 * math.sqrt(rate / len(count))
    low, high = int(law.ppf(1e-3)), int(law.ppf(1 - 1e-3))
    seen = np.array([int((count <= low).sum()), *[int((count == k).sum()) for k in range(low + 1, high)]])
    seen = np.append(seen, len(count) - seen.sum())
    expected = np.array([law.cdf(low), *law.pmf(np.arange(low + 1, high)), law.sf(high - 1)]) * len(count)
    assert scipy.stats.chisquare(seen, expected).pvalue > 1e-4


# --- noises: closed forms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strength", "severity", "sigma"), [("cifar", 1, 0.04), ("cifar", 5, 0.1), ("imagenet", 1, 0.08)]
)
def test_gaussian_and_speckle_noise(strength, severity, sigma):
    x = torch.full((16, 3, 32, 32), 0.5)
    noise = (corrupt(x, "gaussian_noise", severity, strength=strength, generator=seeded()) - 0.5).flatten()
    n = len(noise)
    assert abs(float(noise.mean())) < 4 * sigma / math.sqrt(n)
    assert abs(float(noise.std()) - sigma) < 4 * sigma / math.sqrt(2 * n)
    sigma = {"cifar": (0.06, 0.1, 0.12, 0.16, 0.2), "imagenet": (0.15,)}[strength][severity - 1]
    noise = (corrupt(x, "speckle_noise", severity, strength=strength, generator=seeded()) - 0.5).flatten()
    assert abs(float(noise.std()) - 0.5 * sigma) < 4 * sigma / math.sqrt(2 * n)
    assert corrupt(flat(0), "speckle_noise", 5, generator=seeded()).max() == 0


def test_impulse_noise():
    x = flat(100, 16)
    made = corrupt(x, "impulse_noise", 4, generator=seeded())
    n, p = made.numel(), 0.05 / 2
    for value in (0, 255):
        assert abs(float((made == value).double().mean()) - p) < 4 * math.sqrt(p / n)
    assert set(made.unique().tolist()) == {0, 100, 255}
    hit = made != 100
    assert not torch.equal(hit[:, 0], hit[:, 1]), "each channel on its own"


# --- filters --------------------------------------------------------------------------------------------------------


def test_borders():
    assert border_index(3, 3, 2, "edge", CPU).tolist() == [0, 0, 0, 0, 1, 2, 2, 2]
    assert border_index(3, 3, 4, "mirror", CPU).tolist() == [1, 2, 1, 0, 1, 2, 1, 0, 1, 2]
    assert border_index(3, 2, 4, "reflect", CPU).tolist() == [1, 0, 0, 1, 2, 2, 1, 0, 0]
    x = torch.arange(12.0).reshape(1, 1, 3, 4)
    for rows, columns in ((1, 2), (2, 3), (5, 7)):
        for border, mode in (("edge", "edge"), ("mirror", "reflect")):
            expected = np.pad(x[0, 0].numpy(), ((rows, rows), (columns, columns)), mode=mode)
            assert np.array_equal(padded(x, rows, columns, border)[0, 0].numpy(), expected)


@pytest.mark.parametrize("sigma", [0.05, 0.4, 1, 2.5, 9])
@pytest.mark.parametrize(("border", "mode", "truncate"), [("edge", "nearest", 4), ("reflect", "reflect", 3)])
def test_smoothing_is_scipys(sigma, border, mode, truncate):
    x = torch.rand(2, 1, 20, 13, dtype=torch.float64, generator=seeded())
    made = smoothed(x, sigma, border=border, truncate=truncate)
    for image, expected in zip(made, x, strict=True):
        want = scipy.ndimage.gaussian_filter(expected[0].numpy(), sigma, mode=mode, truncate=truncate)
        assert np.allclose(image[0], want, atol=1e-12)
    assert torch.equal(gaussian_matrix(5, 0.0, x), torch.eye(5, dtype=torch.float64))


@pytest.mark.parametrize("radius", [0.3, 1.5, 3, 8, 10])
def test_defocus_is_a_correlation_with_the_disk(radius):
    kernel = disk(radius, 0.5)
    assert torch.allclose(kernel, kernel.T)
    assert torch.allclose(kernel, kernel.flip(0))
    x = torch.rand(1, 1, 15, 22, dtype=torch.float64, generator=seeded())
    want = scipy.ndimage.correlate(x[0, 0].numpy(), kernel.numpy(), mode="mirror")
    assert np.allclose(filtered(x, kernel)[0, 0], want, atol=1e-12)


def test_the_disk_of_radius_one():
    """Five pixels, softened by [e, 1, e] / (1 + 2e) along both axes."""
    e = math.exp(-0.5 / 0.2**2)
    side = 1 + 2 * e
    kernel = disk(1, 0.2)
    assert kernel.shape == (5, 5)
    assert float(kernel[2, 2]) == pytest.approx((1 + 4 * e) / 5 / side**2, abs=1e-12)
    assert float(kernel.sum()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("zoom", [1, 1.01, 1.13, 1.31, 2.25, 4.5])
def test_zoom_is_scipys(zoom):
    x = torch.rand(1, 1, 20, 17, dtype=torch.float64, generator=seeded())
    want = scipy.ndimage.zoom(x[0, 0].numpy(), zoom, order=1)
    size = (want.shape[0] - 2, want.shape[1] - 3) if zoom > 2 else want.shape
    top, left = (want.shape[0] - size[0]) // 2, (want.shape[1] - size[1]) // 2
    want = want[top : top + size[0], left : left + size[1]]
    assert np.allclose(zoomed(x, zoom, size)[0, 0], want, atol=1e-6)


def test_box_is_pillows():
    for size, to in ((32, 20), (32, 31), (17, 5), (9, 9)):
        x = np.random.default_rng(0).random((1, size), dtype=np.float32)
        want = np.asarray(Image.fromarray(x).resize((to, 1), Image.Resampling.BOX))[0]
        assert np.allclose(box_matrix(size, to, torch.zeros(1)).numpy() @ x[0], want, atol=1e-6)


def test_streaks_of_one_point():
    """A point at (20, 20) leaves its light up-left of itself, along the line, in Gaussian proportions."""
    x = torch.zeros(4, 1, 41, 41, dtype=torch.float64)
    x[..., 20, 20] = 1
    degrees = torch.tensor([0.0, 45.0, -45.0, -90.0])
    made = streaked(x, degrees, radius=4, sigma=2)
    weights = torch.exp(-(torch.arange(9) ** 2) / 8.0).double()
    weights /= weights.sum()
    assert torch.allclose(made[0, 0, 20, 12:21].flip(0), weights)
    assert float(made[0, 0, 20, 21:].sum()) == 0
    steps = torch.ceil(torch.arange(9) * math.sqrt(0.5) - 0.5).long()
    for index, sign in ((1, 1), (2, -1)):
        want = torch.zeros(41, 41, dtype=torch.float64)
        want.index_put_((20 - sign * steps, 20 - steps), weights, accumulate=True)
        assert torch.allclose(made[index, 0], want)
    assert torch.allclose(made[3, 0, 20:29, 20], weights)


def test_streaks_do_not_depend_on_the_company():
    x = torch.rand(6, 3, 12, 12, generator=seeded())
    degrees = torch.tensor([3.0, -40.0, 3.0, 11.0, 3.1, -40.0])
    whole = streaked(x, degrees, radius=3, sigma=1)
    for k in range(6):
        assert torch.equal(whole[k : k + 1], streaked(x[k : k + 1], degrees[k : k + 1], radius=3, sigma=1))


@pytest.mark.parametrize(("h", "w", "reach", "rounds"), [(9, 9, 1, 1), (12, 7, 1, 2), (16, 15, 2, 3), (23, 31, 4, 2)])
@pytest.mark.parametrize("variant", ["corrected", "hendrycks"])
def test_glass_exchanges_as_one_after_the_other(h, w, reach, rounds, variant):
    x = torch.rand(3, 2, h, w, generator=seeded(1))
    made = glass_blur(x, Draws(3, seeded(2), CPU), level=(0.0, reach, rounds), variant=variant, bytes_=False)
    order, _ = _wavefronts(h, w, reach)
    place = {int(p): k for k, p in enumerate(order)}
    shifts = Draws(3, seeded(2), CPU).uniform(*[[2, len(order)]] * rounds)
    want = x.clone()
    for n in range(3):
        for shift in shifts:
            for row in range(h - reach, reach, -1):
                for column in range(w - reach, reach, -1):
                    k = place[row * w + column]
                    down, right = (int(v * 2 * reach) - reach for v in shift[n, :, k])
                    mine, other = want[n, :, row, column].clone(), want[n, :, row + down, column + right].clone()
                    want[n, :, row, column] = other
                    if variant == "corrected":
                        want[n, :, row + down, column + right] = mine
    assert torch.equal(made, want)
    if variant == "corrected":
        assert torch.equal(made.flatten(2).sort(2).values, x.flatten(2).sort(2).values), "a permutation"


# --- weather --------------------------------------------------------------------------------------------------------


def test_frost_of_a_flat_texture():
    """Severity 3 of CIFAR: 0.9 image + 0.4 frost; the variant never takes the last texture."""
    textures = [torch.full((3, 200, 200), level, dtype=torch.uint8) for level in (50, 100)]
    made = corrupt(flat(60, 64, 16), "frost", 3, textures=textures, generator=seeded())
    assert set(made.unique().tolist()) == {54 + 20, 54 + 40}
    made = corrupt(flat(60, 64, 16), "frost", 3, textures=textures, generator=seeded(), variant="hendrycks")
    assert set(made.unique().tolist()) == {54 + 20}
    stacked = corrupt(flat(60, 64, 16), "frost", 3, textures=torch.stack(textures), generator=seeded())
    assert set(stacked.unique().tolist()) == {54 + 20, 54 + 40}


def test_frost_takes_random_pieces():
    ramp = torch.arange(200, dtype=torch.uint8).expand(3, 200, 200)
    made = corrupt(flat(0, 200, 8), "frost", 1, strength="imagenet", textures=[ramp], generator=seeded())
    left = made[:, 0, 0, 0].float() / 0.4
    assert left.min() < 15
    assert left.max() > 170
    assert torch.equal(made[:, :, 0], made[:, :, 7]), "columns of the texture stay columns"


def test_frost_scales():
    assert frost_scale((500, 500), (32, 32), "cifar") == 0.2
    assert frost_scale((500, 500), (32, 32), "imagenet") == 1.1
    assert frost_scale((100, 500), (200, 300), "imagenet") == pytest.approx(2.2)
    assert frost_scale((100, 500), (200, 300), "cifar") == pytest.approx(2.2)
    texture = torch.randint(0, 256, (3, 63, 57), dtype=torch.uint8, generator=seeded())
    (small,) = scaled_textures([texture], torch.zeros(0, 3, 8, 8), strength="cifar")
    assert small.shape == (3, 13, 11)
    assert torch.equal(small, texture[:, 2::5, 2::5] / 255)


@pytest.mark.parametrize("decay", [3, 1.4])
def test_plasma_is_diamond_and_square(decay):
    """Against a point by point version fed the same numbers."""
    made = plasma(Draws(2, seeded(3), CPU), 16, decay, torch.zeros(1, dtype=torch.float64))
    (u,) = Draws(2, seeded(3), CPU).uniform([255])
    for n in range(2):
        grid, used, step, size = {(0, 0): 0.0}, 0, 16, 100.0
        while step > 1:
            half, k = step // 2, 16 // step
            noise = (u[n, used : used + 3 * k * k].double() * 2 - 1).reshape(3, k, k) * size**2
            corners = [(a, b) for a in range(0, 16, step) for b in range(0, 16, step)]
            for a, b in corners:
                four = sum(grid[(a + i) % 16, (b + j) % 16] for i in (0, step) for j in (0, step))
                grid[a + half, b + half] = four / 4 + float(noise[0, a // step, b // step])
            for kind, shift in ((1, (0, half)), (2, (half, 0))):
                for a, b in corners:
                    p, q = a + shift[0], b + shift[1]
                    around = ((half, 0), (-half, 0), (0, half), (0, -half))
                    four = sum(grid[(p + i) % 16, (q + j) % 16] for i, j in around)
                    grid[p, q] = four / 4 + float(noise[kind, a // step, b // step])
            used, step, size = used + 3 * k * k, half, size / decay
        want = torch.tensor([[grid[a, b] for b in range(16)] for a in range(16)], dtype=torch.float64)
        want = (want - want.min()) / (want.max() - want.min())
        assert torch.allclose(made[n], want, atol=1e-9)


def test_fog_keeps_the_maximum():
    made = corrupt(flat(100, 4), "fog", 3, generator=seeded()).float()
    low, high = 100 * 100 / 255 / (100 / 255 + 0.75), 100
    assert low - 1 <= float(made.min()) < low + 2
    assert high - 2 < float(made.max()) <= high
    assert corrupt(flat(0), "fog", 5, generator=seeded()).max() == 0


def test_snow_on_black():
    """The pale image of black is 0.5 everywhere; flakes only add, and the picture is its own rotation by 180°."""
    made = corrupt(flat(0, 8).double() / 255, "snow", 2, generator=seeded())
    assert float(made.min()) == pytest.approx(0.05, abs=1e-9)
    assert torch.allclose(made, made.flip(-2, -1))
    assert float(made.max()) > 0.3
    assert torch.equal(made[:, 0], made[:, 1])


# --- spatter --------------------------------------------------------------------------------------------------------


def test_edges_of_a_square():
    amount = torch.zeros(1, 12, 12)
    amount[0, 4:8, 4:8] = 200
    found = edges(amount)[0]
    assert not found[5:7, 5:7].any()
    assert not found[:2].any()
    assert found.sum() >= 12


def test_hysteresis_joins_weak_to_strong():
    """A step that fades: weak where it joins the strong part, and nothing where it is alone."""
    amount = torch.zeros(2, 9, 40)
    amount[0, :, 20:] = torch.linspace(60, 14, 9)[:, None].floor()
    amount[1, :, 20:] = 20
    found = edges(amount)
    assert found[0].any(1)[1:].all(), "4 · 14 = 56 > 50 joins 4 · 60 > 150"
    assert not found[1].any(), "4 · 20 = 80 < 150 alone"


def test_distances_are_shortest_paths():
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import dijkstra

    h, w = 13, 17
    found = torch.rand(2, h, w, generator=seeded(4)) < 0.03
    made = edge_distances(found)
    moves = {(i, j): {1: 65536, 2: 91750, 5: 143976}.get(i * i + j * j) for i in range(-2, 3) for j in range(-2, 3)}
    links = [
        (r * w + c, (r + i) * w + c + j, cost)
        for r in range(h)
        for c in range(w)
        for (i, j), cost in moves.items()
        if cost and i * i + j * j in (1, 2, 5) and 0 <= r + i < h and 0 <= c + j < w
    ]
    rows, columns, costs = (np.array(column) for column in zip(*links, strict=True))
    graph = coo_matrix((costs, (rows, columns)), shape=(h * w, h * w)).tocsr()
    for image, mask in zip(made, found, strict=True):
        want = dijkstra(graph, indices=mask.flatten().nonzero().flatten().numpy(), min_only=True)
        assert np.array_equal(image.flatten().numpy(), want.astype(np.int64))
    assert int(edge_distances(torch.zeros(1, 5, 5, dtype=torch.bool)).min()) > 20 * 65536


def test_equalised():
    values = torch.tensor([[[0, 0, 1, 1], [1, 1, 3, 4]], [[2, 2, 2, 2], [2, 2, 2, 2]]])
    # of the 6 values beyond the first: 4 at 1, 5 at 3, 6 at 4
    assert equalised(values, 5).tolist() == [[[0, 0, 170, 170], [170, 170, 212, 255]], [[2] * 4] * 2]


def test_mud_covers_and_water_brightens():
    white, black = flat(255, 6), flat(0, 6)
    mud = corrupt(white, "spatter", 5, strength="imagenet", generator=seeded())
    assert sorted(mud[:, 0].unique().tolist())[0] == 63
    water = corrupt(black, "spatter", 3, strength="imagenet", generator=seeded()).float()
    assert float(water[:, 0].max()) == pytest.approx(175 * 0.5, abs=1)
    assert float(water[:, 1].max()) == pytest.approx(238 * 0.5, abs=1)


# --- colours and geometry -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["brightness", "saturate"])
@pytest.mark.parametrize("severity", [1, 3, 5])
def test_hsv_by_colorsys(name, severity):
    import colorsys

    from lisse.maths.corruption.parameters import CIFAR_LEVELS

    level = CIFAR_LEVELS[name][severity - 1]
    x = torch.rand(1, 3, 6, 6, dtype=torch.float64, generator=seeded())
    x[..., 0, 0], x[..., 0, 1], x[..., 0, 2] = 0.0, 0.4, 1.0
    made = corrupt(x, name, severity)
    for row in range(6):
        for column in range(6):
            hue, saturation, value = colorsys.rgb_to_hsv(*x[0, :, row, column].tolist())
            if name == "brightness":
                value = min(value + level[0], 1)
            else:
                saturation = min(max(saturation * level[0] + level[1], 0), 1)
            want = colorsys.hsv_to_rgb(hue, saturation, value)
            assert made[0, :, row, column].tolist() == pytest.approx(want, abs=1e-9)


def test_contrast_about_the_mean():
    x = torch.tensor([0.2, 0.6]).double().repeat(1, 3, 4, 2)
    x[:, 1] += 0.1
    made = corrupt(x, "contrast", 2)
    assert made[0, 0, 0].tolist() == pytest.approx([0.3, 0.5, 0.3, 0.5])
    assert made[0, 1, 0].tolist() == pytest.approx([0.4, 0.6, 0.4, 0.6])


@pytest.mark.parametrize("strength", ["cifar", "imagenet"])
@pytest.mark.parametrize("severity", [1, 2, 5])
def test_pixelate_is_pillows(strength, severity):
    from lisse.maths.corruption.parameters import PARAMETERS

    (scale,) = PARAMETERS[strength]["pixelate"][severity - 1]
    clean = picture(48)[:, :37]
    back = Image.Resampling.BOX if strength == "cifar" else Image.Resampling.NEAREST
    small = Image.fromarray(clean).resize((int(37 * scale), int(48 * scale)), Image.Resampling.BOX)
    want = np.asarray(small.resize((37, 48), back))
    made = corrupt(torch.from_numpy(clean.copy()).permute(2, 0, 1), "pixelate", severity, strength=strength)
    assert np.abs(made.permute(1, 2, 0).numpy().astype(int) - want).max() <= 1
    assert (made.permute(1, 2, 0).numpy() != want).mean() < 0.01


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_is_pillows(channels):
    clean = picture(40)[..., :channels]
    made = corrupt(torch.from_numpy(clean.copy()).permute(2, 0, 1), "jpeg_compression", 4)
    buffer = io.BytesIO()
    Image.fromarray(clean[..., 0] if channels == 1 else clean).save(buffer, "JPEG", quality=50)
    assert np.array_equal(made.permute(1, 2, 0).numpy(), np.asarray(Image.open(buffer)).reshape(clean.shape))


def test_the_affine_part_moves_points():
    """All three points by (2, -1): a translation, exact inside the image."""
    x = torch.rand(1, 1, 18, 18, generator=seeded())
    axis = torch.arange(18.0)
    made = _moved(x, torch.tensor([2.0, -1.0]).expand(1, 3, 2), axis, axis)
    assert torch.allclose(made[..., :17, 2:], x[..., 1:, :16], atol=1e-5)
    assert torch.allclose(_moved(x, torch.zeros(1, 3, 2), axis, axis), x, atol=1e-5)


def test_elastic_field():
    """The displacement of a ramp image is the field itself: its spread is that of smoothed uniform noise."""
    n, side = 48, 48
    ramp = torch.arange(side).double().div(2 * side).add(0.25).expand(n, 1, side, side)
    made = corrupt(ramp, "elastic_transform", 5, strength="imagenet", generator=seeded())
    shift = ((made - ramp) * 2 * side)[..., 12:-12, 12:-12]
    smooth = gaussian_matrix(side, 0.01 * side, torch.zeros(1, dtype=torch.float64), border="reflect", truncate=3)[24]
    expected = 30 * 0.005 * side / math.sqrt(3) * float((smooth**2).sum())
    values = shift[:, 0, ::3, ::3].flatten()
    assert float(values.std()) == pytest.approx(expected, rel=4 / math.sqrt(2 * len(values)))


@pytest.mark.parametrize(("strength", "severity"), [("imagenet", 4), ("cifar", 2)])
def test_elastic_is_scipys(strength, severity):
    """The same noise, smoothed and interpolated by SciPy, after the affine part."""
    h, w = 27, 21
    x = torch.rand(2, 3, h, w, dtype=torch.float64, generator=seeded())
    made = corrupt(x, "elastic_transform", severity, strength=strength, generator=seeded(7))
    moved = x
    if strength == "cifar":
        noise, corners = Draws(2, seeded(7), CPU).uniform([2, h, w], [3, 2])
        shifts = (2 * corners.double() - 1) * 0.07 * w
        moved = _moved(x, shifts, torch.arange(h).double(), torch.arange(w).double())
        scale, sigma = 0.05 * w, (0.2 * w, 0.2 * w)
    else:
        (noise,) = Draws(2, seeded(7), CPU).uniform([2, h, w])
        scale, sigma = 25 * 0.005 * h, (0.01 * h, 0.01 * w)
    rows, columns = np.mgrid[0:h, 0:w]
    for n in range(2):
        right, down = (
            scale * scipy.ndimage.gaussian_filter(2 * part.double().numpy() - 1, sigma, mode="reflect", truncate=3)
            for part in noise[n]
        )
        for channel in range(3):
            at = [rows + down, columns + right]
            want = scipy.ndimage.map_coordinates(moved[n, channel].numpy(), at, order=1, mode="reflect")
            assert np.allclose(made[n, channel], want, atol=1e-9)


# --- imagecorruptions-imaug -----------------------------------------------------------------------------------------


def ours(name: str, severity: int, draws: int, seed: int = 0) -> np.ndarray:
    clean = torch.from_numpy(picture()).permute(2, 0, 1)
    batch = clean.expand(1 if name in FIXED else draws, -1, -1, -1)
    options = {"strength": "imagenet", "variant": "hendrycks", "generator": seeded(seed)}
    return corrupt(batch, name, severity, **options).permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize(("name", "severity"), list(TABLE))
def test_statistics_of_the_difference_are_those_of_imagecorruptions(name, severity):
    """Within 0.2 levels, and within 4 standard errors (both sides') of what is random."""
    value, error = (np.array(numbers) for numbers in TABLE[name, severity])
    found = statistics(ours(name, severity, 40), picture())
    spread = found.std(0, ddof=1) / len(found) ** 0.5 if len(found) > 1 else 0
    assert np.all(np.abs(found.mean(0) - value) <= 0.2 + 4 * np.hypot(error, spread)), (found.mean(0), value)


@pytest.fixture(scope="module")
def peer():
    return pytest.importorskip("imagecorruptions", reason="imagecorruptions-imaug is not installed")


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_pixels_of_what_is_not_random_are_the_peers(peer, name, severity):
    """On average within 0.2 levels: floats that just miss a whole number are cut off differently."""
    want = peer.corrupt(picture(), severity=severity, corruption_name=name).astype(int)
    gap = np.abs(ours(name, severity, 1)[0].astype(int) - want)
    assert gap.mean() < 0.2
    assert gap.max() <= 1


@pytest.mark.parametrize("degrees", [-44.0, -7.3, 0.0, 12.0, -90.0, -131.0])
def test_motion_is_the_peers(peer, degrees):
    from imagecorruptions.corruptions import _motion_blur

    clean = picture().astype(np.float32)
    made = streaked(torch.from_numpy(clean).permute(2, 0, 1)[None], torch.tensor([degrees]), radius=10, sigma=3)
    assert np.abs(made[0].permute(1, 2, 0).numpy() - _motion_blur(clean, 10, 3, degrees)).max() < 1e-3


def test_relief_is_opencvs(peer):
    cv2 = pytest.importorskip("cv2")
    random = np.random.default_rng(0)
    for k in range(30):
        amount = scipy.ndimage.gaussian_filter(random.normal(0.65, 0.3, (50, 38)), (4, 2, 1, 0.7)[k % 4])
        amount = np.where(amount < 0.69, 0, amount * 255).clip(0, 255).astype(np.uint8)
        depth = cv2.distanceTransform(255 - cv2.Canny(amount, 50, 150), cv2.DIST_L2, 5)
        depth = cv2.equalizeHist(cv2.blur(np.minimum(depth, 20), (3, 3)).astype(np.uint8))
        depth = cv2.filter2D(depth, cv2.CV_8U, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]))
        made = relief(torch.from_numpy(amount.astype(np.float32))[None])[0].numpy()
        assert np.array_equal(made, cv2.blur(depth, (3, 3)))
