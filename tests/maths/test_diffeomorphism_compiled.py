"""The compiled loop against grid_sample: the same pictures, with and without numba."""

import pytest
import torch

from lisse.maths.diffeomorphism import Diffeomorphism, compiled, deform, warp

pytest.importorskip("numba", reason="the compiled loop needs numba (lisse[fast])")


def pictures(n: int = 5, c: int = 3, h: int = 17, w: int = 23) -> torch.Tensor:
    return torch.rand(n, c, h, w, generator=torch.Generator().manual_seed(0))


def fields(images: torch.Tensor, cut: int = 4, delta: float = 2.0, count: int | None = None):
    ensemble = Diffeomorphism(tuple(images.shape[2:]), cut)
    count = len(images) if count is None else count
    return ensemble.sample(count, ensemble.temperature(delta), generator=torch.Generator().manual_seed(1))


def bilinear(images: torch.Tensor, field) -> torch.Tensor | None:
    return compiled.loop_deformed(images, field, "bilinear", sigma=warp.SIGMA)


@pytest.fixture
def plainly(monkeypatch):
    """``deform`` as it is where numba is missing."""

    def deformed(images, field, **options):
        with monkeypatch.context() as patch:
            patch.setattr(compiled, "loops", lambda _: None)
            return deform(images, field, **options)

    return deformed


@pytest.mark.parametrize(("cut", "delta"), [(2, 0.5), (4, 2.0), (9, 4.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8])
def test_it_gives_what_grid_sample_gives(plainly, cut, delta, dtype):
    images = pictures()
    images = (images * 255).to(dtype) if dtype == torch.uint8 else images.to(dtype)
    field = fields(images, cut, delta)
    assert bilinear(images.float(), field) is not None
    within = {torch.float32: 1e-5, torch.float16: 1e-3, torch.uint8: 1.0}[dtype]
    difference = deform(images, field).double() - plainly(images, field).double()
    assert float(difference.abs().max()) <= within
    assert float((difference != 0).double().mean()) < 0.05 or dtype != torch.uint8


@pytest.mark.parametrize(("cut", "delta"), [(2, 0.5), (4, 2.0), (9, 4.0)])
@pytest.mark.parametrize("shape", [(17, 23), (2, 3), (5, 6), (40, 7)])
def test_gaussian_is_the_full_sum_over_the_picture(plainly, shape, cut, delta):
    images = pictures(3, 2, *shape)
    field = fields(images, cut, delta)
    h, w = shape
    u, v = field.to(dtype=torch.float64).displacement.unbind(1)
    columns, rows = torch.arange(w).double(), torch.arange(h).double()[:, None]
    x, y = (columns - u).clamp(0, w - 1), (rows - v).clamp(0, h - 1)
    across, down = ((x[..., None] - columns) ** 2, (y[..., None] - rows[:, 0]) ** 2)  # [n, h, w, places]
    across, down = (torch.exp(-far / (2 * warp.SIGMA**2)) for far in (across, down))
    across, down = (weights / weights.sum(-1, keepdim=True) for weights in (across, down))
    expected = torch.einsum("nyxj,nyxi,ncij->ncyx", across, down, images.double())
    found = deform(images, field, interpolation="gaussian")
    torch.testing.assert_close(found.double(), expected, atol=5e-6, rtol=0)  # positions in float32
    torch.testing.assert_close(plainly(images, field, interpolation="gaussian"), found, atol=2e-5, rtol=0)
    whole = (images * 255).to(torch.uint8)
    off = deform(whole, field, interpolation="gaussian").int() - plainly(whole, field, interpolation="gaussian").int()
    assert int(off.abs().max()) <= 1
    still = deform(images, field * 0.0, interpolation="gaussian")
    torch.testing.assert_close(still, warp.blurred(images), atol=1e-6, rtol=0)


@pytest.mark.parametrize("side", [32, 64])
def test_gaussian_in_float32_is_the_full_sum_to_a_millionth(side):
    images = pictures(3, 1, side, side)
    field = fields(images, 5, 2.0)
    exact = deform(images.double(), field.to(dtype=torch.float64), interpolation="gaussian")  # to 1e-8, elsewhere
    found = deform(images, field, interpolation="gaussian").double()
    assert float((found - exact).abs().max()) < 1e-6


def test_it_is_closer_to_float64_than_grid_sample_is(plainly):
    images = pictures(2, 1, 150, 150)
    field = fields(images, 5, 6.0)
    exact = deform(images.double(), field.to(dtype=torch.float64))
    ours, theirs = ((found.double() - exact).abs().mean() for found in (deform(images, field), plainly(images, field)))
    assert ours < theirs


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_and_pieces_change_no_bit(monkeypatch, threads):
    images = pictures(11)
    field = fields(images)
    whole = deform(images, field)
    monkeypatch.setattr(compiled, "_PIXELS", 2 * 17 * 23)
    monkeypatch.setattr(compiled, "_FACTORS", 5 * 2 * 4 * 23)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert torch.equal(deform(images, field), whole)


def test_one_field_serves_all_pictures(plainly):
    images = pictures()
    field = fields(images, count=1)
    torch.testing.assert_close(deform(images, field), plainly(images, field), atol=1e-5, rtol=0)


def test_pictures_that_are_not_contiguous_are_left_as_they_are(plainly):
    images = pictures().to(memory_format=torch.channels_last)
    before = images.clone()
    torch.testing.assert_close(deform(images, fields(images)), plainly(images, fields(images)), atol=1e-5, rtol=0)
    assert torch.equal(images, before)


def test_a_position_that_is_not_a_number_stays_inside_the_picture():
    images = pictures(1)
    field = fields(images) * float("nan")
    assert torch.isfinite(bilinear(images, field)).all()
    assert float(bilinear(images, fields(images) * 1e30).max()) <= float(images.max())
    assert torch.isfinite(compiled.loop_deformed(images, field, "gaussian", sigma=warp.SIGMA)).all()
    far = deform(images, fields(images) * 1e6, interpolation="gaussian")  # every position at an edge or past it
    wide = deform(images.double(), fields(images).to(dtype=torch.float64) * 1e6, interpolation="gaussian")
    torch.testing.assert_close(far.double(), wide, atol=1e-6, rtol=0)


def test_gradients_go_the_other_way():
    images = pictures().requires_grad_()
    assert bilinear(images, fields(images)) is None
    assert deform(images, fields(images)).requires_grad
    with torch.no_grad():
        assert bilinear(images, fields(images)) is not None
    assert bilinear(images.detach().double(), fields(images)) is None
