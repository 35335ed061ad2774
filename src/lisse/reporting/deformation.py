"""Pictures of deformations: the (T, c) phase diagram, a grid of deformed pictures over it, an animation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from torch import Tensor

from lisse.maths.diffeomorphism import Diffeomorphism, PhaseDiagram, deform, phase_diagram
from lisse.maths.diffeomorphism.modes import ModeRule
from lisse.maths.diffeomorphism.warp import Interpolation
from lisse.profile_file import writing
from lisse.reporting.figure import GREY, INK, panels

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

GREEN, RED = "#009E73", "#D55E00"
#: A column of the grid is a factor of 10^½ in temperature.
_COLUMNS = 6


def phase_figure(diagram: PhaseDiagram) -> Figure:
    """The phase diagram of [petrini2021] fig. 1: temperature against cut-off, the region of good fields in green.

    Lines: δ = ½ and δ = 1 pixel (exact), and the temperature at which half of the fields are bijective; green: between
    the first and the last. Needs at least two cuts.
    """
    if len(diagram.cuts) < 2:
        raise ValueError(f"phase_figure: diagram must have at least 2 cuts, got {len(diagram.cuts)}.")
    h, w = diagram.size
    figure, (ax,) = panels(
        1,
        columns=1,
        width=7.2,
        height=4.6,
        title=f"Max-entropy deformations of images of {h} × {w} pixels",
        says="Green: displacements of at least half a pixel by fields of which at least half are diffeomorphisms. To "
        "the left they are too small to see, to the right they fold.",
        foot=0.75,
    )
    ax.grid(False)
    cuts = diagram.cuts.numpy()
    _fill(ax, cuts, diagram.delta_half.numpy(), diagram.half.numpy())
    ax.plot(diagram.delta_half.numpy(), cuts, color=INK, linestyle=":", linewidth=1.6)
    ax.plot(diagram.delta_one.numpy(), cuts, color=INK, linestyle="--", linewidth=1.6)
    ax.plot(diagram.half.numpy(), cuts, color=RED, linewidth=2.0)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ticks = [cut for cut in (2, 3, 5, 10, 15, 20, 30, 50, 100) if cuts.min() <= cut <= cuts.max()]
    ax.set_yticks(ticks, [f"{cut:g}" for cut in ticks])
    ax.minorticks_off()
    ax.set_xlabel("temperature T", size=10, color=INK)
    ax.set_ylabel("cut-off c", size=10, color=INK)
    handles = [
        Patch(facecolor=GREEN, alpha=0.22, label="δ ≥ ½ and mostly bijective"),
        Line2D([], [], color=RED, linewidth=2.0, label=f"half bijective (n = {diagram.samples} fields per cut)"),
        Line2D([], [], color=INK, linestyle=":", label="δ = ½ pixel"),
        Line2D([], [], color=INK, linestyle="--", label="δ = 1 pixel"),
    ]
    figure.legend(handles=handles, loc="lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def _fill(ax: Axes, cuts: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Green between two lines that are straight on logarithmic axes, where the first is below: up to their crossing."""
    fine = np.concatenate([np.geomspace(a, b, 200) for a, b in itertools.pairwise(cuts.tolist())])
    start, end = (np.exp(np.interp(np.log(fine), np.log(cuts), np.log(line))) for line in (low, high))
    ax.fill_betweenx(fine, start, end, where=(end >= start).tolist(), color=GREEN, alpha=0.22, linewidth=0)


def deformation_grid(
    image: Tensor,
    *,
    cuts: Sequence[float] = (3, 5, 10, 15, 30),
    temperatures: Sequence[float] | None = None,
    interpolation: Interpolation = "bilinear",
    modes: ModeRule = "paper",
    samples: int = 128,
    seed: int = 0,
) -> Figure:
    """The image ``[c, h, w]`` (bytes, or floats in [0, 1]) deformed at every (T, c): [petrini2021] fig. 1.

    Rows are cut-offs, columns temperatures (default: so spaced that they span the green region of all rows). Every row
    is one field that grows with the temperature. A picture has a green frame where δ ≥ ½ and at least half of the
    ensemble's fields are diffeomorphisms; below it stand δ in pixels and the share of bijective fields.
    """
    image = _image("deformation_grid", image)
    size = (int(image.shape[1]), int(image.shape[2]))
    if not len(cuts):
        raise ValueError("deformation_grid: cuts must not be empty.")
    cuts = sorted(cuts, reverse=True)
    if temperatures is None:
        temperatures = _spanning(size, cuts, modes, samples, seed)
    diagram = phase_diagram(size, cuts, temperatures, modes=modes, samples=samples, seed=seed)
    rows, columns = len(cuts), len(temperatures)
    wide = 1.75
    figure, axes = panels(
        rows * columns,
        columns=columns,
        width=wide,
        height=wide * size[0] / size[1] + 0.22,
        title="Max-entropy deformations over temperature and cut-off",
        says=f"The picture has {size[0]} × {size[1]} pixels. Green frames: displacements of at least half a pixel by "
        "fields of which at least half are diffeomorphisms. Below each picture: RMS displacement δ at the centre and "
        f"the share of bijective fields ({diagram.samples} per row).",
        foot=0.1,
    )
    for row, cut in enumerate(cuts):
        ensemble = Diffeomorphism(size, cut, modes=modes)
        field = ensemble.sample(1, 1.0, generator=torch.Generator().manual_seed(seed))
        for column, temperature in enumerate(diagram.temperatures.tolist()):
            moved = deform(image[None], field * temperature**0.5, interpolation=interpolation)[0]
            ax = axes[row * columns + column]
            _show(ax, moved, green=bool(diagram.green[row, column]))
            share = float(diagram.bijective[row, column])
            delta = _short(float(diagram.delta[row, column]))
            ax.set_xlabel(f"δ = {delta} px · {share:.0%}", size=7.5, color=GREY, labelpad=5)
            if column == 0:
                ax.set_ylabel(f"c = {cut:g}", size=10, color=INK)
            if row == 0:
                ax.set_title(f"T = {_power(temperature)}", size=9, color=INK, pad=4)
    return figure


def growing_pictures(
    image: Tensor,
    ensemble: Diffeomorphism,
    *,
    largest: float | None = None,
    frames: int = 48,
    interpolation: Interpolation = "bilinear",
    seed: int = 0,
) -> list[Picture]:
    """The image ``[c, h, w]`` under one field whose temperature grows from 0 to ``largest``: frames of an animation.

    δ grows evenly. By default up to one and a half times the size at which this field folds. Each frame says T, δ and
    whether the field is still a diffeomorphism.
    """
    image = _image("growing_pictures", image)
    if frames < 2:
        raise ValueError(f"growing_pictures: frames must be at least 2, got {frames}.")
    field = ensemble.sample(1, 1.0, generator=torch.Generator().manual_seed(seed))
    fold = float(field.critical_scale())
    top = 1.5 * fold if largest is None else largest**0.5
    pictures = []
    for root in np.linspace(0, top, frames).tolist():
        moved = deform(image[None], field * root, interpolation=interpolation)[0]
        pictures.append(_captioned(moved, ensemble, root**2, folds=root >= fold))
    return pictures


def save_animation(pictures: Sequence[Picture], path: str | Path, *, rate: float = 12.0) -> Path:
    """Write pictures as an animated ``.gif`` or ``.webp``, there and back, atomically; ``rate`` frames a second."""
    path = Path(path)
    kinds = {".gif": "GIF", ".webp": "WEBP"}
    if path.suffix.lower() not in kinds:
        raise ValueError(f"save_animation: path must end in {', '.join(kinds)}, got {str(path)!r}.")
    if not pictures or not rate > 0:
        raise ValueError(f"save_animation: there must be pictures and a positive rate, got {len(pictures)} and {rate}.")
    frames = _in_one_palette(pictures) if path.suffix.lower() == ".gif" else list(pictures)
    first, *following = [*frames, *reversed(frames[1:-1])]
    with writing(path) as file:
        first.save(
            file,
            format=kinds[path.suffix.lower()],
            save_all=True,
            append_images=following,
            loop=0,
            duration=1000 / rate,
        )
    return path


def _in_one_palette(pictures: Sequence[Picture]) -> list[Picture]:
    """The pictures in 256 colours that all of them share: a palette each flickers, and takes most of the time to find.

    A deformation moves colours and makes no new ones, so the first, the middle and the last picture have them all.
    """
    from PIL import Image

    samples = [pictures[index].convert("RGB") for index in sorted({0, len(pictures) // 2, len(pictures) - 1})]
    sheet = Image.new("RGB", (max(sample.width for sample in samples), sum(sample.height for sample in samples)))
    top = 0
    for sample in samples:
        sheet.paste(sample, (0, top))
        top += sample.height
    # The words below are too few pixels to get colours by themselves, and Pillow takes a near white for white.
    words = [round(255 + (c - 255) * share) for colour in (INK, GREEN, RED) for share in (1, 0.75, 0.5, 0.25)
             for c in bytes.fromhex(colour[1:])]  # fmt: skip
    entries = np.array(sheet.quantize(256 - 13).getpalette()).reshape(-1, 3)[: 256 - 13]
    entries[entries.min(1) > 247] = 255
    colours = Image.new("P", (1, 1))
    colours.putpalette([255, 255, 255, *words, *entries.flatten().tolist()])
    return [picture.convert("RGB").quantize(palette=colours) for picture in pictures]


def _image(where: str, image: Tensor) -> Tensor:
    image = torch.as_tensor(image)
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise ValueError(f"{where}: image must be [1 or 3, h, w], got shape {list(image.shape)}.")
    return image


def _spanning(size: tuple[int, int], cuts: Sequence[float], modes: ModeRule, samples: int, seed: int) -> list[float]:
    """Temperatures from below the lowest δ = ½ to above the highest half-way one, evenly in their logarithm."""
    diagram = phase_diagram(size, cuts, [1.0], modes=modes, samples=samples, seed=seed)
    low, high = float(diagram.delta_half.min()) / 2, float(diagram.half.max()) * 2
    return np.geomspace(low, max(high, 4 * low), _COLUMNS).tolist()


def _pixels(image: Tensor) -> np.ndarray:
    """Bytes ``[h, w, 3]``."""
    values = image if image.dtype == torch.uint8 else (image.float().clamp(0, 1) * 255).round().to(torch.uint8)
    return values.expand(3, -1, -1).permute(1, 2, 0).numpy()


def _show(ax: Axes, image: Tensor, *, green: bool) -> None:
    ax.grid(False)
    ax.imshow(_pixels(image), interpolation="antialiased")
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_visible(True)
        spine.set_color(GREEN if green else "#d0d0d0")
        spine.set_linewidth(4.0 if green else 0.8)
        spine.set_zorder(3)


def _short(value: float) -> str:
    """Two digits, or all before the point: 0.35, 4.6, 16, 207."""
    return f"{value:.2g}" if value < 99.5 else f"{value:.0f}"


def _power(value: float) -> str:
    """As 1.8·10⁻⁵."""
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa}·10{raised}"


def _captioned(image: Tensor, ensemble: Diffeomorphism, temperature: float, *, folds: bool) -> Picture:
    from PIL import Image, ImageDraw, ImageFont

    pixels = _pixels(image)
    scale = max(1, -(-256 // pixels.shape[1]))  # small pictures are shown with pixels as squares
    pixels = pixels.repeat(scale, 0).repeat(scale, 1)
    h, w = pixels.shape[:2]
    delta = float(ensemble.delta(temperature))
    caption = f"c = {ensemble.cut:g}   T = {_power(temperature)}   δ = {delta:.1f} px"
    verdict, colour = ("folds", RED) if folds else ("diffeomorphism", GREEN)
    size = max(26, w // 16) * 0.45
    font = ImageFont.truetype(findfont("DejaVu Sans"), size=size)  # Pillow's own font has no δ
    # One line where both fit at every temperature, else two: a caption that jumps cannot be read.
    lines = (
        1 if font.getlength(f"c = {ensemble.cut:g}   T = 8.8·10⁻⁸   δ = 888.8 px   diffeomorphism") < w - size else 2
    )
    band = round(size * (0.8 + 1.4 * lines))
    canvas = Image.new("RGB", (w, h + band), "white")
    canvas.paste(Image.fromarray(pixels), (0, 0))
    draw = ImageDraw.Draw(canvas)
    first, last = (h + size * (1.1 + 1.4 * line) for line in (0, lines - 1))
    draw.text((size * 0.7, first), caption, fill=INK, font=font, anchor="lm")
    draw.text((w - size * 0.7, last), verdict, fill=colour, font=font, anchor="rm")
    return canvas
