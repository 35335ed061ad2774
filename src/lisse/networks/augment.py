"""Random smooth deformations as a data augmentation."""

from __future__ import annotations

import functools
import math
import numbers
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from lisse.maths.diffeomorphism import Diffeomorphism, Field, deform, warn_if_folding
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
    same kind: bytes stay bytes, floats keep dtype and device. Fits ``torchvision.transforms.v2.Compose``, and like its
    transforms takes several inputs or one sample of any form, such as ``(image, label)`` or ``{"image": …, "label":
    …}``: PIL images and torchvision's ``Image`` and ``Video`` are deformed, or where there are none the first tensor
    that can be an image, all by one field, and so are masks, by their nearest pixel; a video's frames share their
    field. Everything else is passed on, but bounding boxes and key points, which would not fit any more, are refused.
    It acts in training and in evaluation mode alike. Gaussian interpolation also blurs (see :func:`deform`).

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
        if not (_is_number(p) and 0 <= p <= 1):
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

    def forward(self, *sample: Any) -> Any:
        """The sample with its image or images deformed; several inputs give a tuple of as many."""
        leaves, form = tree_flatten(sample[0] if len(sample) == 1 else sample)
        roles = _roles(leaves)
        tensors = {index: _pixels(leaves[index]) for index in roles}
        images = {index: role for index, role in roles.items() if role != "mask"}
        shapes = {_fields_and_size(tensors[index], video=role == "video") for index, role in images.items()}
        if len(shapes) > 1:
            raise ValueError(
                "MaxEntropyDiffeo: image must be one, or several of one size and number, got "
                f"{' and '.join(str(list(tensors[index].shape)) for index in images)}."
            )
        ((count, size),) = shapes
        field, still = self._field(count, size, tensors[next(iter(images))].device)
        for index, role in roles.items():
            leaves[index] = _like(leaves[index], self._moved(tensors[index], field, still, mask=role == "mask"))
        return tree_unflatten(leaves, form)

    def extra_repr(self) -> str:
        """The options, as ``print(transform)`` shows them."""
        size = f"delta={self.delta}" if self.delta is not None else f"temperature={self.temperature}"
        rules = f"modes={self.modes!r}, grid={self.grid!r}"
        return f"cut={self.cut}, {size}, p={self.p}, interpolation={self.interpolation!r}, {rules}"

    def _field(self, count: int, size: tuple[int, int], device: torch.device) -> tuple[Field, Tensor | None]:
        """As many fields, and which of them are to leave their image alone ``[count]`` (None: none)."""
        ensemble, low, high = _ensemble(size, self.cut, self.modes, self.grid, self.delta, self.temperature)
        if size not in self._warned:
            self._warned.add(size)
            warn_if_folding("MaxEntropyDiffeo", ensemble, high**2)
        width = 2 * ensemble.mode_count
        drawn = normals(count, width + 2, self.generator).to(device)
        uniform = torch.special.ndtr(drawn[:, width:].double())
        root = low + (high - low) * uniform[:, 0]
        still = uniform[:, 1] >= self.p if self.p < 1 else None
        # All images go through: an image that is left alone has the zero field, which is the identity.
        root = root if still is None else torch.where(still, 0.0, root)
        return ensemble.whitened_field(drawn[:, :width].reshape(count, 2, ensemble.mode_count), root**2), still

    def _moved(self, pixels: Tensor, field: Field, still: Tensor | None, *, mask: bool) -> Tensor:
        """Any ``[…, h, w]`` deformed; its first axis is the fields' where there are several."""
        h, w = pixels.shape[-2:]
        if (h, w) != field.size or (len(field) > 1 and (pixels.ndim < 3 or len(pixels) != len(field))):
            raise ValueError(
                f"MaxEntropyDiffeo: mask must be as large as its image, {list(field.size)}"
                f"{f', and {len(field)} of them' if len(field) > 1 else ''}, got shape {list(pixels.shape)}."
            )
        channels = math.prod(pixels.shape[:-2]) // max(len(field), 1)
        batch = pixels.reshape(len(field), channels, h, w)
        if mask:  # classes may be integers of any width; nearest neither changes nor mixes them
            return deform(batch.double(), field, interpolation="nearest").to(pixels.dtype).reshape(pixels.shape)
        moved = deform(batch, field, interpolation=self.interpolation)
        if self.interpolation == "gaussian" and still is not None:  # whose zero field is a blur
            moved = torch.where(still[:, None, None, None], batch, moved)
        return moved.reshape(pixels.shape)


def _roles(leaves: list[Any]) -> dict[int, str]:
    """Which parts of a sample are deformed, by their index: ``image``, ``video`` or ``mask``."""
    kinds = sys.modules.get("torchvision.tv_tensors")  # no sample holds them as long as nobody has imported it
    names = {"Image": "image", "Video": "video", "Mask": "mask", "BoundingBoxes": "box", "KeyPoints": "key point"}
    roles: dict[int, str] = {}
    plain: list[int] = []
    for index, leaf in enumerate(leaves):
        role = next((names[n] for n in names if isinstance(leaf, getattr(kinds, n, ()))), None)
        if role in ("box", "key point"):
            raise TypeError(
                f"MaxEntropyDiffeo: a sample must hold images, masks and what does not depend on places, got a {role}. "
                "Smooth deformations bend boxes: take them from a deformed mask."
            )
        if role is not None or _is_picture(leaf):
            roles[index] = role or "image"
        elif isinstance(leaf, Tensor):
            plain.append(index)
    if not any(role != "mask" for role in roles.values()):
        pictures = [index for index in plain if leaves[index].ndim >= 3] or plain
        if not pictures:
            raise TypeError(
                "MaxEntropyDiffeo: image must be a tensor or a PIL image, alone or in a sample, got "
                f"{', '.join(sorted({type(leaf).__name__ for leaf in leaves})) or 'nothing'}. "
                "Convert arrays with torch.from_numpy."
            )
        roles[pictures[0]] = "image"
    return roles


def _is_picture(leaf: Any) -> bool:
    pictures = sys.modules.get("PIL.Image")
    return pictures is not None and isinstance(leaf, pictures.Image)


def _pixels(leaf: Any) -> Tensor:
    """A plain tensor, channels first, of whatever holds an image."""
    if isinstance(leaf, Tensor):
        return leaf.as_subclass(Tensor)
    if leaf.mode not in ("L", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV"):
        raise ValueError(
            f"MaxEntropyDiffeo: image must have channels of 8 bits, got mode {leaf.mode!r}. Use convert('RGB')."
        )
    pixels = torch.from_numpy(np.array(leaf))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)


def _like(leaf: Any, moved: Tensor) -> Any:
    """The deformed pixels as the kind of image that they came in."""
    if not isinstance(leaf, Tensor):
        from PIL import Image

        pixels = moved.numpy()
        return Image.fromarray(pixels[0]) if len(pixels) == 1 else Image.fromarray(pixels.transpose(1, 2, 0), leaf.mode)
    # torchvision's own kinds of tensors (Image, Video) stay what they are, as its transforms keep them.
    return moved if isinstance(leaf, nn.Parameter) else moved.as_subclass(type(leaf))


def _fields_and_size(pixels: Tensor, *, video: bool) -> tuple[int, tuple[int, int]]:
    """How many fields an image or a video needs, and (h, w)."""
    batched = pixels.ndim - video == 4
    if pixels.ndim - video not in (3, 4):
        shapes = "[t, c, h, w] or [n, t, c, h, w]" if video else "[c, h, w] or [n, c, h, w]"
        raise ValueError(f"MaxEntropyDiffeo: image must be {shapes}, got shape {list(pixels.shape)}.")
    return len(pixels) if batched else 1, (int(pixels.shape[-2]), int(pixels.shape[-1]))


@functools.lru_cache(maxsize=32)
def _ensemble(
    size: tuple[int, int],
    cut: float,
    modes: ModeRule,
    grid: GridRule,
    delta: tuple[float, float] | None,
    temperature: tuple[float, float] | None,
) -> tuple[Diffeomorphism, float, float]:
    """The ensemble of an image size and the roots of the temperatures between which √T is drawn."""
    ensemble = Diffeomorphism(size, cut, modes=modes, grid=grid)
    if delta is not None:
        low, high = (math.sqrt(float(ensemble.temperature(end))) for end in delta)
    else:
        assert temperature is not None  # one of them is
        low, high = (math.sqrt(end) for end in temperature)
    return ensemble, low, high


def _ends(name: str, size: Range) -> tuple[float, float]:
    ends = size if isinstance(size, (tuple, list)) else (size, size)
    sound = len(ends) == 2 and all(_is_number(end) for end in ends)
    if not sound or not 0 <= ends[0] <= ends[1]:
        raise ValueError(f"MaxEntropyDiffeo: {name} must be a number of at least 0 or a range of them, got {size!r}.")
    return float(ends[0]), float(ends[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
