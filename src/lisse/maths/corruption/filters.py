"""Linear maps that the corruptions are made of: borders, Gaussian and box matrices, disks, zooms, streaks."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Border = Literal["edge", "mirror", "reflect"]


def border_index(size: int, before: int, after: int, border: Border, device: torch.device) -> Tensor:
    """Which pixel of an axis stands at ``-before … size + after - 1``.

    ``edge`` aaa|abc|ccc, ``mirror`` cb|abc|ba (the edge once), ``reflect`` ba|abc|cb (the edge twice); any distance.
    """
    index = torch.arange(-before, size + after, device=device)
    if border == "edge" or size == 1:
        return index.clamp(0, size - 1)
    if border == "mirror":
        index = index.remainder(2 * size - 2)
        return torch.minimum(index, 2 * size - 2 - index)
    index = index.remainder(2 * size)
    return torch.minimum(index, 2 * size - 1 - index)


def padded(x: Tensor, rows: int, columns: int, border: Literal["edge", "mirror"]) -> Tensor:
    """``x`` ``[n, c, h, w]`` with ``rows`` more above and below and ``columns`` more on both sides."""
    h, w = x.shape[-2:]
    if border == "edge" or (rows < h and columns < w):
        mode = "replicate" if border == "edge" else "reflect"
        return functional.pad(x, (columns, columns, rows, rows), mode=mode)
    x = x.index_select(-2, border_index(h, rows, rows, border, x.device))
    return x.index_select(-1, border_index(w, columns, columns, border, x.device))


def gaussian_matrix(size: int, sigma: float, like: Tensor, *, border: Border = "edge", truncate: float = 4.0) -> Tensor:
    r"""The matrix ``[size, size]`` that smooths an axis with a Gaussian cut off at ``truncate`` · sigma.

    A row holds :math:`e^{-d^2 / 2\sigma^2}` over its sum, d up to :math:`\lfloor t \sigma + 1/2 \rfloor`; weights that
    fall off the image go to the pixels that ``border`` puts there. Sigma 0 is the identity.
    """
    radius = int(truncate * sigma + 0.5) if sigma > 0 else 0
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / sigma) ** 2) if radius else torch.ones(1, dtype=torch.float64)
    source = border_index(size, radius, radius, border, torch.device("cpu")).unfold(0, 2 * radius + 1, 1)
    matrix = torch.zeros(size, size, dtype=torch.float64)
    matrix.scatter_add_(1, source, (weights / weights.sum()).expand(size, -1))
    return matrix.to(like)


def box_matrix(size: int, to: int, like: Tensor) -> Tensor:
    """The matrix ``[to, size]`` that shrinks an axis: each new pixel is the mean of the old centres inside it.

    Centres on the border between two are rounded the way Pillow does it, operation by operation.
    """
    scale = size / to
    centre = ((torch.arange(to, dtype=torch.float64) + 0.5) * scale)[:, None]
    pixel = torch.arange(size, dtype=torch.float64)
    offset = (pixel - centre + 0.5) * (1 / scale)
    near = (pixel >= (centre - scale / 2 + 0.5).floor()) & (pixel < (centre + scale / 2 + 0.5).floor())
    inside = (near & (offset > -0.5) & (offset <= 0.5)).double()
    return (inside / inside.sum(1, keepdim=True)).to(like)


def smoothed(x: Tensor, sigma: float, *, border: Border = "edge", truncate: float = 4.0) -> Tensor:
    """``x`` ``[…, h, w]`` through a Gaussian along both axes: a product from the left and one from the right."""
    rows = gaussian_matrix(x.shape[-2], sigma, x, border=border, truncate=truncate)
    columns = gaussian_matrix(x.shape[-1], sigma, x, border=border, truncate=truncate)
    return rows @ (x @ columns.T)


def disk(radius: float, softness: float) -> Tensor:
    """The kernel of a lens out of focus: a disk, its edge softened by a small Gaussian; float64, without zero border.

    The pixels within ``radius`` of the centre, smoothed with sigma ``softness`` over 3 × 3 pixels (5 × 5 beyond radius
    8), on a square of half side max(8, radius) at whose border the smoothing is mirrored.
    """
    half = 8 if radius <= 8 else int(radius)
    reach = 1 if radius <= 8 else 2
    axis = torch.arange(-half, half + 1, dtype=torch.float64)
    inside = (axis[:, None] ** 2 + axis**2 <= radius**2).double()
    near = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=torch.float64) / softness) ** 2)
    near = near / near.sum()
    wide = padded((inside / inside.sum())[None, None], reach, reach, "mirror")
    kernel = functional.conv2d(wide, torch.outer(near, near)[None, None])[0, 0]
    used = (kernel > 0).any(0).nonzero().flatten()
    return kernel[int(used[0]) : int(used[-1]) + 1, int(used[0]) : int(used[-1]) + 1]


def filtered(x: Tensor, kernel: Tensor) -> Tensor:
    """``x`` ``[n, c, h, w]`` correlated with a symmetric odd ``kernel``, the image mirrored at its border; by FFT."""
    h, w = x.shape[-2:]
    half = kernel.shape[-1] // 2
    wide = padded(x, half, half, "mirror")
    size = [_quick(side) for side in wide.shape[-2:]]
    product = torch.fft.rfft2(wide, s=size).mul_(torch.fft.rfft2(kernel.to(x), s=size))
    return torch.fft.irfft2(product, s=size)[..., 2 * half : 2 * half + h, 2 * half : 2 * half + w]


def _quick(size: int) -> int:
    """The next length without prime factors beyond 5, for which an FFT is quick."""
    cofactor = size
    for factor in (2, 3, 5):
        while cofactor % factor == 0:
            cofactor //= factor
    return size if cofactor == 1 else _quick(size + 1)


def cropped_size(size: int, zoom: float) -> tuple[int, int]:
    """Where the middle part of an axis begins, and how long it is, that ``zoom`` makes as long as the whole."""
    length = math.ceil(size / zoom)
    return (size - length) // 2, length


def zoomed(x: Tensor, zoom: float, size: tuple[int, int]) -> Tensor:
    """``x`` ``[n, c, ch, cw]`` enlarged ``zoom`` times (bilinear, corner to corner), its middle of ``size`` pixels."""
    if zoom == 1:
        return x
    to = (round(x.shape[-2] * zoom), round(x.shape[-1] * zoom))
    large = functional.interpolate(x, size=to, mode="bilinear", align_corners=True)
    top, left = ((have - want) // 2 for have, want in zip(to, size, strict=True))
    return large[..., top : top + size[0], left : left + size[1]]


def streaked(x: Tensor, degrees: Tensor, *, radius: float, sigma: float) -> Tensor:
    r"""``x`` ``[n, c, h, w]`` moved along a line, each image in its own direction ``degrees`` ``[n]``.

    :math:`y(p) = \sum_{i=0}^{2r} k_i\, x(p + \lceil i\,(\sin\theta, \cos\theta) - 1/2 \rceil)`, with
    :math:`k_i \propto e^{-i^2 / 2\sigma^2}`: a one-sided Gaussian along the direction, at whole pixels, the edge
    repeated beyond the border. Images whose lines pass through the same pixels are moved together.
    """
    taps = 2 * math.ceil(radius) + 1
    steps = torch.arange(taps, dtype=torch.float64)
    profile = torch.exp(-0.5 * (steps / sigma) ** 2)
    weights = (profile / profile.sum()).tolist()
    angle = torch.deg2rad(degrees.double().cpu())
    direction = torch.stack([torch.sin(angle), torch.cos(angle)], 1)
    paths = torch.ceil(steps * direction[..., None] - 0.5).long()  # [n, 2, taps]
    distinct, which = torch.unique(paths, dim=0, return_inverse=True)
    order = which.argsort(stable=True)
    h, w = x.shape[-2:]
    reach = taps - 1
    wide = padded(x[order.to(x.device)], reach, reach, "edge")
    moved = torch.zeros_like(x)
    start = 0
    for path, count in zip(distinct.tolist(), which.bincount().tolist(), strict=True):
        part, into = wide[start : start + count], moved[start : start + count]
        for weight, down, right in zip(weights, *path, strict=True):
            top, left = reach + down, reach + right
            into.add_(part[..., top : top + h, left : left + w], alpha=weight)
        start += count
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return moved[back.to(x.device)]
