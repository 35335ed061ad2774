"""Random crops and flips, a whole batch at once on its device, bytes or floats."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class CropFlip:
    """Pad by ``padding`` zeros, cut back at a random place, mirror half of the images: in three parts.

    Padding is done once for a whole data set, the draws once for many batches, and the cut is one gather per batch,
    so that nothing waits for the host while a GPU works. :func:`crop_flip` does all three at once.
    """

    padding: int = 4
    flip: bool = True

    def padded(self, images: Tensor) -> Tensor:
        """Images ``[n, c, h, w]`` with their frame of zeros, channels last in memory: ``[n, h + 2p, w + 2p, c]``."""
        n, c, h, w = images.shape
        p = self.padding
        framed = images.new_zeros(n, h + 2 * p, w + 2 * p, c)
        framed[:, p : p + h, p : p + w] = images.permute(0, 2, 3, 1)
        return framed

    def draws(self, n: int, *, generator: torch.Generator | None = None, device: torch.device | None = None) -> Tensor:
        """For ``n`` images, row and column of the cut and whether to mirror: integers ``[3, n]``."""
        where = generator.device if generator is not None else device
        shift = torch.randint(0, 2 * self.padding + 1, (2, n), generator=generator, device=where)
        turned = torch.randint(0, 2, (n,), generator=generator, device=where)
        return torch.cat([shift, (turned * self.flip)[None]])

    def cut(self, padded: Tensor, samples: Tensor, draws: Tensor) -> Tensor:
        """Images ``samples`` ``[m]`` of ``padded``, cut by ``draws`` ``[3, m]``: ``[m, c, h, w]``, channels last."""
        _, tall, wide, c = padded.shape
        h, w = tall - 2 * self.padding, wide - 2 * self.padding
        rows = (samples * tall + draws[0])[:, None] + torch.arange(h, device=padded.device)  # [m, h]
        columns = torch.arange(w, device=padded.device)
        columns = draws[1][:, None] + torch.where(draws[2][:, None].bool(), w - 1 - columns, columns)  # [m, w]
        pixels = rows[:, :, None] * wide + columns[:, None, :]  # [m, h, w]
        colours = padded.reshape(-1, c).index_select(0, pixels.reshape(-1))
        return colours.view(len(samples), h, w, c).permute(0, 3, 1, 2)


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
    augmentation = CropFlip(padding, flip)
    draws = augmentation.draws(len(images), generator=generator, device=images.device).to(images.device)
    samples = torch.arange(len(images), device=images.device)
    return augmentation.cut(augmentation.padded(images), samples, draws).contiguous()
