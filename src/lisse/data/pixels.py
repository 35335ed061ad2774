"""Pixels as bytes: pictures with deeper grey levels than eight bits are scaled, never cut off at 255."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

#: What Pillow decodes to 32-bit integers although no level exceeds 65,535 (16-bit grey PNG, PGM).
SIXTEEN = ("PNG", "PPM")


def eight_bits(function: str, what: object, picture: Picture) -> Picture:
    """``picture`` in a mode of eight bits.

    Pillow's own ``convert`` cuts 16-bit grey off at 255, so that almost every pixel turns white. Here 0 … 65,535
    becomes 0 … 255 (x / 257, rounded) and floats in [0, 1] become 255 x; other deep pictures are refused.
    """
    from PIL import Image

    mode = picture.mode
    if mode.startswith("I;16") or (mode == "I" and picture.format in SIXTEEN):
        scaled = np.asarray(picture).astype(np.float64) / 257
    elif mode == "F":
        scaled = np.asarray(picture).astype(np.float64) * 255
    elif mode == "I":
        scaled = np.array([-1.0])
    else:
        return picture
    if not (scaled.min() >= 0 and scaled.max() <= 255):  # also NaN
        kind = "32-bit integers" if mode == "I" else "floats outside [0, 1]"
        raise ValueError(
            f"{function}: {what} must have 8- or 16-bit pixels or floats in [0, 1], got {kind} (mode {mode}). "
            "Which value is white is not known: save it with 8 bits."
        )
    return Image.fromarray(scaled.round().astype(np.uint8))
