r"""Non-local means [buades2005]: the integral transform (10) of [cao2022] with a kernel that is not learned."""

from __future__ import annotations

import torch
from torch import Tensor

from lisse.maths.given import floating
from lisse.maths.integral.operators import SCORES_PER_CHUNK, IntegralOperator


def non_local_means(
    image: Tensor, bandwidth: float, *, patch: int = 5, sigma: float | None = None, search: int | None = None,
    chunk: int = SCORES_PER_CHUNK,
) -> Tensor:  # fmt: skip
    r"""Every pixel as the mean of all others, weighted by how alike their surroundings are.

    .. math:: z(x) = \alpha^{-1}(x) \sum_{x'} \exp\big(-\|P_x - P_{x'}\|^2 / h^2\big)\, u(x')

    ``image`` ``[h, w]`` or ``[c, h, w]``; ``P_x`` are the ``patch`` × ``patch`` pixels around x (borders reflected, all
    channels), in the mean square over the patch, Gaussian-weighted with width ``sigma`` pixels if given; ``bandwidth``
    is h, in grey values. This is the row-normalised ``rbf_w`` kernel with w = P and :math:`\gamma = 1/h^2`, applied
    without its matrix. ``search`` limits x' to a window of that radius (Chebyshev), as is usual; by default the sum is
    global, as attention's. O(N² patch² c) for N pixels, or O(N search² patch² c).
    """
    pixels = floating("non_local_means", "image", image)
    if pixels.ndim not in (2, 3):
        raise ValueError(f"non_local_means: image must be [h, w] or [c, h, w], got shape {list(pixels.shape)}.")
    if not bandwidth > 0:
        raise ValueError(f"non_local_means: bandwidth must be positive, got {bandwidth}.")
    if search is not None and search < 0:
        raise ValueError(f"non_local_means: search must not be negative, got {search}.")
    full = pixels[None] if pixels.ndim == 2 else pixels
    features = pixel_patches(full, patch, sigma=sigma)
    values = full.flatten(1).T
    gamma = 1 / bandwidth**2
    if search is None:
        means = IntegralOperator(
            features, torch.zeros_like(features), kind="rbf_w", gamma=gamma, way="chunked", chunk=chunk
        )(values)
    else:
        means = _windowed(features, values, gamma, (full.shape[1], full.shape[2]), search)
    return means.T.reshape(full.shape).reshape(pixels.shape)


def pixel_patches(image: Tensor, patch: int, *, sigma: float | None = None) -> Tensor:
    r"""The surroundings of every pixel of ``[c, h, w]`` as rows ``[h w, c patch²]``, borders reflected.

    Scaled so that :math:`\|P_x - P_y\|^2` is the mean square difference, weighted by a Gaussian of width ``sigma``.
    """
    if patch < 1 or patch % 2 == 0 or patch // 2 >= min(image.shape[-2:]):
        raise ValueError(
            f"pixel_patches: patch must be odd, positive and at most twice the image's side less one, got {patch} for "
            f"{image.shape[-2]} × {image.shape[-1]}."
        )
    half = patch // 2
    padded = torch.nn.functional.pad(image[None], (half,) * 4, mode="reflect") if half else image[None]
    rows = torch.nn.functional.unfold(padded, patch)[0].T
    weights = image.new_ones(patch, patch)
    if sigma is not None:
        if not sigma > 0:
            raise ValueError(f"pixel_patches: sigma must be positive, got {sigma}.")
        line = (-torch.arange(-half, half + 1).to(image).square() / (2 * sigma**2)).exp()
        weights = torch.outer(line, line)
    weights = (weights / weights.sum() / len(image)).reshape(-1).repeat(len(image))
    return rows * weights.sqrt()


def _windowed(features: Tensor, values: Tensor, gamma: float, size: tuple[int, int], search: int) -> Tensor:
    """Offset by offset: each is one shifted difference of all pixels at once."""
    h, w = size
    grid, colours = features.reshape(h, w, -1), values.reshape(h, w, -1)
    total, weight = torch.zeros_like(colours), colours.new_zeros(h, w, 1)
    for down in range(max(-search, 1 - h), min(search, h - 1) + 1):
        for right in range(max(-search, 1 - w), min(search, w - 1) + 1):
            targets = slice(max(0, -down), h - max(0, down)), slice(max(0, -right), w - max(0, right))
            sources = slice(max(0, down), h + min(0, down)), slice(max(0, right), w + min(0, right))
            alike = (-gamma * (grid[targets] - grid[sources]).square().sum(-1, keepdim=True)).exp()
            # The offset 0 has weight 1, so the sum never vanishes.
            total[targets] += alike * colours[sources]
            weight[targets] += alike
    return (total / weight).reshape(h * w, -1)
