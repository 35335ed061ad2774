"""Random crops and flips, a whole batch at once on its device, bytes or floats."""

from __future__ import annotations

import torch
from torch import Tensor


def crop_flip(
    images: Tensor, *, padding: int = 4, flip: bool = True, generator: torch.Generator | None = None
) -> Tensor:
    """Each image ``[n, c, h, w]`` shifted by up to ``padding`` pixels (zeros come in), half of them mirrored.

    The usual training augmentation of CIFAR-10: pad by 4 with zeros, crop back at a random place, flip left and right.
    Every sample has its own shift and flip, drawn from ``generator`` on its device, so a CPU generator gives the same
    draws for images on any device. Keeps dtype, shape and device; does not change ``images``.
    """
    if images.ndim != 4:
        raise ValueError(
            f"crop_flip: images must be [n, c, h, w], got shape {tuple(images.shape)}. Add a sample axis with x[None]."
        )
    if isinstance(padding, bool) or not isinstance(padding, int) or padding < 0:
        raise ValueError(
            f"crop_flip: padding must be an integer of at least 0, got {padding!r}. 4 is usual for 32 × 32."
        )
    n, _, h, w = images.shape
    source = generator.device if generator is not None else images.device
    shift = torch.randint(0, 2 * padding + 1, (2, n), generator=generator, device=source).to(images.device)
    turned = torch.randint(0, 2, (n,), generator=generator, device=source).to(images.device).bool() & flip
    padded = torch.nn.functional.pad(images, (padding,) * 4)
    rows = shift[0][:, None] + torch.arange(h, device=images.device)  # [n, h]
    columns = torch.arange(w, device=images.device).expand(n, w)
    columns = shift[1][:, None] + torch.where(turned[:, None], w - 1 - columns, columns)
    samples = torch.arange(n, device=images.device)[:, None, None]
    # Advanced indices around the channel slice put it last: [n, h, w, c].
    return padded[samples, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
