"""Random smooth deformations as a data augmentation."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lisse.maths.diffeomorphism import Diffeomorphism, deform, warn_if_folding
from lisse.maths.diffeomorphism.modes import GridRule, ModeRule, check_rules, normals
from lisse.maths.diffeomorphism.warp import INTERPOLATIONS, Interpolation

Range = float | tuple[float, float]


class MaxEntropyDiffeo(nn.Module):
    r"""Deform every image by its own maximum-entropy diffeomorphism ([petrini2021] sec. 2 and 8).

    ``cut`` is the cut-off c of the field's frequencies, ``delta`` the RMS displacement at the image's centre in pixels:
    a number, or a range (low, high) out of which every image draws uniformly. Instead of ``delta``, ``temperature``
    may be given, a number or a range; out of it, :math:`\sqrt T`, which is what δ is proportional to, is drawn
    uniformly. ``p`` is the probability that an image is deformed at all.

    Takes an image ``[c, h, w]``, a batch ``[n, c, h, w]`` (n independent fields) or a PIL image, and gives back the
    same kind: bytes stay bytes, floats keep dtype and device. Fits ``torchvision.transforms.v2.Compose``: with several
    inputs, such as ``(image, label)``, the first is deformed and the others are passed on. Like those transforms it
    acts in training and in evaluation mode alike. Gaussian interpolation also blurs (see :func:`deform`).

    Randomness comes from ``generator``; with one on the CPU it does not depend on how images are batched. Without,
    from torch's global generator, which ``DataLoader`` seeds differently in each worker; a generator of your own would
    be the same in every worker. Warns once per image size where most of the largest fields fold.
    """

    def __init__(
        self,
        cut: float,
        delta: Range | None = None,
        p: float = 1.0,
        *,
        temperature: Range | None = None,
        interpolation: Interpolation = "bilinear",
        modes: ModeRule = "paper",
        grid: GridRule = "cell",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_rules("MaxEntropyDiffeo", cut, modes, grid)
        if (delta is None) == (temperature is None):
            raise ValueError(
                f"MaxEntropyDiffeo: delta must be given, or temperature instead, got {delta} and {temperature}."
            )
        if not (isinstance(p, (int, float)) and 0 <= p <= 1):
            raise ValueError(f"MaxEntropyDiffeo: p must lie in [0, 1], got {p!r}.")
        if interpolation not in INTERPOLATIONS:
            raise ValueError(
                f"MaxEntropyDiffeo: interpolation must be one of {', '.join(INTERPOLATIONS)}, got {interpolation!r}."
            )
        self.cut, self.p, self.interpolation = cut, float(p), interpolation
        self.delta = None if delta is None else _ends("delta", delta)
        self.temperature = None if temperature is None else _ends("temperature", temperature)
        self.modes, self.grid, self.generator = modes, grid, generator
        self._warned: set[tuple[int, int]] = set()

    def forward(self, image: Any, *others: Any) -> Any:
        """The deformed image or images; with ``others``, a tuple of it and them."""
        moved = self._picture(image) if not isinstance(image, Tensor) else self._tensor(image)
        return (moved, *others) if others else moved

    def extra_repr(self) -> str:
        """The options, as ``print(transform)`` shows them."""
        size = f"delta={self.delta}" if self.delta is not None else f"temperature={self.temperature}"
        return f"cut={self.cut}, {size}, p={self.p}, interpolation={self.interpolation!r}"

    def _tensor(self, images: Tensor) -> Tensor:
        if images.ndim not in (3, 4):
            raise ValueError(
                f"MaxEntropyDiffeo: image must be [c, h, w] or [n, c, h, w], got shape {list(images.shape)}."
            )
        plain = images.as_subclass(Tensor)
        batch = plain if images.ndim == 4 else plain[None]
        n, _, h, w = batch.shape
        ensemble = _ensemble((h, w), self.cut, self.modes, self.grid)
        low, high = (math.sqrt(t) for t in self._temperatures(ensemble))
        if (h, w) not in self._warned:
            self._warned.add((h, w))
            warn_if_folding("MaxEntropyDiffeo", ensemble, high**2)
        width = 2 * ensemble.mode_count
        drawn = normals(n, width + 2, self.generator).to(batch.device)
        uniform = torch.special.ndtr(drawn[:, width:].double())
        root = low + (high - low) * uniform[:, 0]
        # All images go through: an image that is left alone has the zero field, which is the identity.
        root = torch.where(uniform[:, 1] < self.p, root, 0.0) if self.p < 1 else root
        field = ensemble.whitened_field(drawn[:, :width].reshape(n, 2, -1), root**2)
        moved = deform(batch, field, interpolation=self.interpolation)
        if self.interpolation == "gaussian" and self.p < 1:  # whose zero field is a blur
            moved = torch.where((root == 0)[:, None, None, None], batch, moved)
        moved = moved if images.ndim == 4 else moved[0]
        # torchvision's own kinds of tensors (Image, Video) stay what they are, as its transforms keep them.
        return moved if isinstance(images, nn.Parameter) else moved.as_subclass(type(images))

    def _temperatures(self, ensemble: Diffeomorphism) -> tuple[float, float]:
        if self.temperature is not None:
            return self.temperature
        assert self.delta is not None  # one of them is
        low, high = (float(ensemble.temperature(delta)) for delta in self.delta)
        return low, high

    def _picture(self, image: Any) -> Any:
        from PIL import Image

        if not isinstance(image, Image.Image):
            raise TypeError(
                f"MaxEntropyDiffeo: image must be a tensor or a PIL image, got {type(image).__name__}. "
                "Convert arrays with torch.from_numpy."
            )
        if image.mode not in ("L", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV"):
            raise ValueError(
                f"MaxEntropyDiffeo: image must have channels of 8 bits, got mode {image.mode!r}. Use convert('RGB')."
            )
        pixels = torch.from_numpy(np.array(image))
        channels = pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)
        moved = self._tensor(channels).numpy()
        return Image.fromarray(moved[0]) if len(moved) == 1 else Image.fromarray(moved.transpose(1, 2, 0), image.mode)


@functools.lru_cache(maxsize=32)
def _ensemble(size: tuple[int, int], cut: float, modes: ModeRule, grid: GridRule) -> Diffeomorphism:
    return Diffeomorphism(size, cut, modes=modes, grid=grid)


def _ends(name: str, given: Range) -> tuple[float, float]:
    ends = given if isinstance(given, (tuple, list)) else (given, given)
    sound = len(ends) == 2 and all(isinstance(end, (int, float)) and math.isfinite(end) for end in ends)
    if not sound or not 0 <= ends[0] <= ends[1]:
        raise ValueError(f"MaxEntropyDiffeo: {name} must be a number of at least 0 or a range of them, got {given!r}.")
    return float(ends[0]), float(ends[1])
