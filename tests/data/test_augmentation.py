from __future__ import annotations

import pytest
import torch

from lisse.data import crop_flip


def naive(images, padding, flip, generator):
    n, c, h, w = images.shape
    shift = torch.randint(0, 2 * padding + 1, (2, n), generator=generator)
    turned = torch.randint(0, 2, (n,), generator=generator)
    out = torch.zeros_like(images)
    for k in range(n):
        big = torch.zeros(c, h + 2 * padding, w + 2 * padding, dtype=images.dtype)
        big[:, padding : padding + h, padding : padding + w] = images[k]
        cut = big[:, shift[0, k] : shift[0, k] + h, shift[1, k] : shift[1, k] + w]
        out[k] = cut.flip(-1) if flip and turned[k] else cut
    return out


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("flip", [True, False])
def test_agrees_with_a_loop(dtype, padding, flip):
    x = torch.randint(1, 256, (40, 3, 6, 7), generator=torch.Generator().manual_seed(0)).to(dtype)
    kept = x.clone()
    got = crop_flip(x, padding=padding, flip=flip, generator=torch.Generator().manual_seed(1))
    assert torch.equal(got, naive(x, padding, flip, torch.Generator().manual_seed(1)))
    assert got.dtype == dtype
    assert got.is_contiguous()
    assert torch.equal(x, kept)


def test_half_are_flipped_and_every_shift_occurs():
    x = torch.arange(9.0).view(1, 1, 1, 9).expand(4000, 1, 1, 9) + 1
    got = crop_flip(x, padding=1, generator=torch.Generator().manual_seed(0))
    flipped = float((got[:, 0, 0, 3] > got[:, 0, 0, 5]).float()[got[:, 0, 0, 4] > 0].mean())
    assert abs(flipped - 0.5) < 5 * 0.5 / 36
    assert len(torch.unique(got.view(4000, -1), dim=0)) == 3 * 2 + 1  # 3 columns × flip; rows out of sight: zeros


def test_seeded():
    x = torch.rand(8, 1, 5, 5)
    one = crop_flip(x, generator=torch.Generator().manual_seed(3))
    assert torch.equal(one, crop_flip(x, generator=torch.Generator().manual_seed(3)))
    assert not torch.equal(one, crop_flip(x, generator=torch.Generator().manual_seed(4)))


def test_bad_input():
    with pytest.raises(ValueError, match=r"must be \[n, c, h, w\], got shape \(3, 4, 4\)"):
        crop_flip(torch.zeros(3, 4, 4))
    with pytest.raises(ValueError, match="padding must be an integer of at least 0, got -1"):
        crop_flip(torch.zeros(1, 3, 4, 4), padding=-1)


@pytest.mark.gpu
def test_same_on_the_gpu():
    x = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)
    there = crop_flip(x.cuda(), generator=torch.Generator().manual_seed(0))
    assert torch.equal(there.cpu(), crop_flip(x, generator=torch.Generator().manual_seed(0)))
