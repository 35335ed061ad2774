"""An empty figure in the house style, and how one becomes a file. No pyplot, no global state."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from lisse.profile_file import writing

# Okabe & Ito: told apart by people with any kind of colour vision, and in grey. Yellow is last: it is weak on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#F0E442")
INK = "#222222"
GREY = "#6b6b6b"
FORMATS = (".png", ".svg", ".pdf")


class InlineFigure(Figure):
    """A figure that a notebook shows as a picture, without pyplot."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def panels(
    count: int, *, columns: int, width: float, height: float, title: str, says: str, foot: float, share: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` axes, ``width`` by ``height`` inches each, under a title and a plain sentence.

    ``foot`` inches at the bottom stay free for a legend; ``share`` gives all panels the same vertical axis.
    """
    columns = min(columns, count)
    rows = -(-count // columns)
    wide = max(width * columns, 6.0)
    lines = textwrap.wrap(says, int(wide * 14.5))
    head = (0.5 if title else 0.18) + 0.19 * len(lines)
    tall = height * rows + head + foot
    figure = InlineFigure(figsize=(wide, tall), layout="constrained", facecolor="white", dpi=100)
    FigureCanvasAgg(figure)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0.0, foot / tall, 1.0, 1.0 - (head + foot) / tall), w_pad=0.08, h_pad=0.06)
    margin = 0.12 / wide
    plain_text(figure.text(margin, 1 - 0.12 / tall, title, size=13, weight="bold", color=INK, va="top"))
    text = figure.text(margin, 1 - 0.42 / tall, "\n".join(lines), size=9.5, color=GREY, va="top", linespacing=1.35)
    plain_text(text)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=share)
    axes = list(grid.flat)
    for spare in axes[count:]:
        spare.remove()
    for ax in axes[:count]:
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(GREY)
        ax.tick_params(colors=INK, labelsize=9)
        ax.grid(axis="y", color="#e4e4e4", linewidth=0.8)
        ax.set_axisbelow(True)
    return figure, axes[:count]


def palette(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, the same again where they are many."""
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(names)}


def plain_text(text: Text) -> Text:
    """Show a person's text as it is: a dollar sign in a layer's name does not begin a formula."""
    text.set_parse_math(False)
    return text


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure as ``.png``, ``.svg`` or ``.pdf`` (by the path's ending), atomically; returns the path."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"save_figure: path must end in {', '.join(FORMATS)}, got {str(path)!r}.")
    kind = path.suffix.lower().removeprefix(".")
    undated: dict[str, Any] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    with writing(path) as file:
        figure.savefig(file, format=kind, dpi=200, metadata=undated)
    return path
