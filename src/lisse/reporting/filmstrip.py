"""Figure 3 of [cao2022]: what a masked autoencoder's decoder paints, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lisse.reporting.figure import GREY, INK, panels, plain_text

PAPER = "#d9d9d9"  # where a patch is hidden


def filmstrip_figure(
    image: np.ndarray,
    visible: np.ndarray,
    frames: np.ndarray,
    errors: Sequence[float],
    *,
    hidden: np.ndarray | None = None,
    side: int = 0,
    normalised_pixels: bool = False,
    name: str = "",
) -> Figure:
    """The image, what the network sees of it, and ``frames`` [1 + L, c, h, w], all in [0, 1], with each frame's error.

    The first frame is the decoder's input. ``visible`` has NaN where patches are hidden. With ``hidden`` [p] and
    ``side`` patches per row, visible patches are outlined in the frames. Values outside [0, 1] are cut.
    """
    if frames.ndim != 4 or len(frames) != len(errors) or frames.shape[1:] != image.shape:
        raise ValueError(
            f"filmstrip_figure: frames must be [1 + layers, {', '.join(map(str, image.shape))}] with an error each, "
            f"got {list(frames.shape)} and {len(errors)} errors."
        )
    layers = len(frames) - 1
    titles = ["image", "what the encoder sees", "decoder input"]
    titles += [f"layer {number} of {layers}" for number in range(1, layers + 1)]
    notes = ["", "", *(f"error {error:.3f}" for error in errors)]
    says = (
        "The decoder's norm and last layer applied to its input (the encoder's output, and mask tokens) and to what "
        "each of its layers gives. Error: root mean square over hidden pixels of values in [0, 1]; only the last layer "
        "was trained to be read this way. Patches that the encoder saw are outlined."
    )
    if normalised_pixels:
        says += (
            " This network was trained on normalised pixels: it paints each patch without its mean and contrast, which "
            "are given here from the true image, so that colours and errors look better than they are."
        )
    title = "What the decoder paints" + (f": {name}" if name else "")
    columns = math.ceil(len(titles) / math.ceil(len(titles) / 6))  # rows of at most six, as even as they go
    figure, axes = panels(len(titles), columns=columns, width=1.75, height=2.05, title=title, says=says, foot=0.1)
    for index, (ax, picture) in enumerate(zip(axes, (image, visible, *frames), strict=True)):
        _draw(ax, picture, titles[index], notes[index])
        if index >= 2 and hidden is not None and side:
            _outline(ax, hidden, side, image.shape[-1] / side)
    return figure


def _draw(ax: Axes, picture: np.ndarray, title: str, note: str) -> None:
    pixels = np.clip(np.moveaxis(np.asarray(picture, dtype=float), 0, -1), 0, 1)
    pixels = pixels[..., :1].repeat(3, -1) if pixels.shape[-1] != 3 else pixels
    blank = np.isnan(pixels)
    paper = np.array([int(PAPER[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    ax.imshow(np.where(blank, paper, pixels), interpolation="nearest")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    plain_text(ax.set_title(title, size=9, color=INK, pad=3))
    ax.set_xlabel(note, size=8.5, color=GREY, labelpad=2)


def _outline(ax: Axes, hidden: np.ndarray, side: int, patch: float) -> None:
    for index in np.flatnonzero(~hidden):
        row, column = divmod(int(index), side)
        corner = (column * patch - 0.5, row * patch - 0.5)
        # Dark under bright, so that one of the two is seen on any patch.
        for colour, width in ((INK, 1.1), ("white", 0.5)):
            ax.add_patch(Rectangle(corner, patch, patch, fill=False, edgecolor=colour, linewidth=width, alpha=0.7))
