"""Deformations on a CUDA device: the fused kernel and the plain way give what the CPU gives."""

from __future__ import annotations

import pytest
import torch

from lisse.maths.diffeomorphism import INTERPOLATIONS, Diffeomorphism, deform, fused
from lisse.networks.augment import MaxEntropyDiffeo

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
# Several strips of rows and columns, an unfinished one of each, one alone, and the smallest there is.
SHAPES = [(32, 32), (224, 224), (37, 130), (2, 3), (9, 64)]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int, c: int, h: int, w: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    drawn = torch.rand(n, c, h, w, generator=generator())
    return (drawn * 255).to(dtype) if dtype == torch.uint8 else drawn.to(dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cut", [2, 3, 15])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_the_fused_kernel_is_the_cpus_result(shape, cut, channels):
    ensemble = Diffeomorphism(shape, cut)
    x, field = images(5, channels, *shape), ensemble.sample(5, ensemble.temperature(1.5), generator=generator(1))
    assert fused.kernel_deformed(x.cuda(), field.to("cuda")) is not None
    found = deform(x.cuda(), field)
    torch.testing.assert_close(found.cpu(), deform(x, field), atol=2e-4, rtol=0)
    single = deform(x.cuda(), field[2:3])
    torch.testing.assert_close(single.cpu(), deform(x, field[2:3]), atol=2e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_zero_fields_are_the_identity_in_the_kernel(dtype):
    x = images(3, 3, 50, 70, dtype).cuda()
    field = Diffeomorphism((50, 70), 4).sample(3, torch.tensor([0.0, 0.01, 0.0]), generator=generator())
    found = deform(x, field)
    assert found.dtype == dtype
    assert torch.equal(found[0], x[0])
    assert torch.equal(found[2], x[2])
    assert not torch.equal(found[1], x[1])


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_every_interpolation_on_the_device(interpolation, dtype):
    ensemble = Diffeomorphism((40, 33), 5)
    x, field = images(6, 3, 40, 33, dtype), ensemble.sample(6, ensemble.temperature(2.0), generator=generator(2))
    found = deform(x.cuda(), field, interpolation=interpolation).cpu()
    expected = deform(x, field, interpolation=interpolation)
    assert found.dtype == dtype
    wrong = (found.double() - expected.double()).abs() > (1.0 if dtype == torch.uint8 else 2e-4)
    assert wrong.double().mean() < (2e-3 if interpolation == "nearest" else 1e-9)  # ties of nearest may go either way


def test_tf32_products_do_not_tear_images():
    ensemble = Diffeomorphism((224, 224), 3)
    x, field = images(4, 3, 224, 224), ensemble.sample(4, ensemble.temperature(1.0), generator=generator(2))
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        for interpolation in ("bilinear", "bicubic"):
            found = deform(x.cuda(), field, interpolation=interpolation).cpu()
            torch.testing.assert_close(found, deform(x, field, interpolation=interpolation), atol=2e-2, rtol=0)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_gradients_go_the_plain_way():
    ensemble = Diffeomorphism((16, 16), 3)
    x = images(2, 3, 16, 16).cuda()
    z = torch.randn(2, 2, 4, generator=generator()).cuda().requires_grad_()
    deform(x, ensemble.whitened_field(z, 1e-3)).square().sum().backward()
    assert z.grad is not None
    assert z.grad.abs().sum() > 0


def test_the_augmentation_draws_the_same_on_every_device():
    x = images(8, 3, 32, 32)
    on_cpu = MaxEntropyDiffeo(3, (0.5, 1.5), p=0.7, generator=generator(3))(x)
    on_gpu = MaxEntropyDiffeo(3, (0.5, 1.5), p=0.7, generator=generator(3))(x.cuda())
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, atol=2e-4, rtol=0)
    field = Diffeomorphism((8, 8), 3).sample(4, 1.0, generator=torch.Generator("cuda").manual_seed(0))
    assert field.cu.is_cuda
    assert field.bijective().is_cuda
