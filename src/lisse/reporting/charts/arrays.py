"""Pictures of arrays: curves over depth, clouds of pairs, tables, histograms, diagrams, barcodes, measures, images."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from lisse.maths.intervals import across_clouds
from lisse.profile import Panel, Part, coordinate_text, words_of
from lisse.reporting.charts.scene import Drawing, Scene, agrees
from lisse.reporting.figure import GREY, INK, PALETTE, plain_text
from lisse.reporting.marks import handle, log_ticks
from lisse.reporting.measures import draw_measures

MOST_LAYERS = 24
LONGEST_BARS = 60
MOST_TABLES = 6
MOST_GROUPS = 4
MOST_WRITTEN = 9  # rows of a table whose entries are also written
DIMENSIONS = {"H0": "H0: parts", "H1": "H1: loops", "H2": "H2: cavities"}

Pictures = tuple[list[Drawing], list[str]]


def curve_pictures(scene: Scene, panel: Panel) -> Pictures:
    """Arrays ``NAME/key=value/…`` ``[clouds, points]`` over depth: the mean of each model, with its interval."""
    (prefix,) = panel.arrays
    curves = [
        {key: array for key, array in part.arrays.items() if key.startswith(f"{prefix}/")} for part in scene.parts
    ]
    ats = {key: _coordinates(key.removeprefix(f"{prefix}/")) for tables in curves for key in tables}
    drawn = scene.choices(ats.values())
    names = [key for key, at in ats.items() if agrees(at, drawn) and scene.where.keys() <= at.keys()]
    quantity = scene.quantity(prefix.rpartition("/")[2])
    fixed = {key: value for key, value in drawn.items() if any(key in at for at in ats.values())}
    if fixed:
        scene.remarks.append(f"Here: {words_of(fixed)}.")

    def fill_with(name: str) -> Callable[[Axes], None]:
        def fill(ax: Axes) -> None:
            top: list[float] = []
            for (_, part, colour), tables in zip(scene.models, curves, strict=True):
                if name in tables:
                    top += _curve(ax, tables[name], colour)
                base = scene.base(part, panel.base, ats[name]) if panel.base else None
                if base is not None and np.isfinite(base.value):
                    ax.axhline(base.value, color=colour, lw=1.0, ls=":")
            if quantity.scale == "log" and max(top, default=0.0) > 0:
                log_ticks(ax, [value for value in top if value > 0])
            else:
                ax.set_ylim(bottom=0)
            ax.set_xlim(-0.02, 1.02)
            ax.set_xlabel(panel.label or "normalised depth", size=9, color=INK)

        return fill

    if len(scene.parts) > 1:
        scene.handles |= {name: handle(name, colour) for name, _, colour in scene.models}
    titles = {name: words_of({key: value for key, value in ats[name].items() if key not in drawn}) for name in names}
    drawings = [
        Drawing(" · ".join(filter(None, (panel.title, title))), fill_with(name)) for name, title in titles.items()
    ]
    return drawings, list(dict.fromkeys(key for at in ats.values() for key in at))


def _coordinates(words: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words.split("/") if "=" in word)


def _curve(ax: Axes, clouds: np.ndarray, colour: str) -> list[float]:
    """The mean over the clouds that have a value, and the interval where all have one; returns the mean."""
    finite = np.isfinite(clouds)
    total, count = np.where(finite, clouds, 0.0).sum(0), finite.sum(0)
    mean = np.divide(total, count, out=np.full(clouds.shape[1], np.nan), where=count > 0)
    depth = np.linspace(0, 1, clouds.shape[1])
    ax.plot(depth, mean, color=colour, lw=1.6)
    if len(clouds) > 1 and finite.all():
        interval = across_clouds(torch.from_numpy(clouds))
        low, high = interval.low.clamp_min(0).numpy(), interval.high.numpy()
        ax.fill_between(depth, low, high, color=colour, alpha=0.18, linewidth=0)
    return [float(value) for value in mean[np.isfinite(mean)]]


def scatter_pictures(scene: Scene, panel: Panel) -> Pictures:
    """A dot per entry of two arrays, a picture per model; ``base`` is a number about them."""
    across, up = panel.arrays
    drawings = []
    for index, part in enumerate(scene.parts):
        base = scene.base(part, panel.base, {})
        title = ""
        if base is not None:
            ends = "" if base.low is None else f" [{base.low:.2f}, {base.high:.2f}]"
            title = f"{scene.quantity(panel.base).label} {base.value:.2f}{ends}, n = {base.n}"

        def fill(ax: Axes, part: Part = part) -> None:
            if across in part.arrays and up in part.arrays:
                ax.scatter(part.arrays[across], part.arrays[up], s=12, color=PALETTE[2], alpha=0.6, linewidths=0)
            else:
                ax.text(0.5, 0.5, "not measured", ha="center", va="center", color=GREY, transform=ax.transAxes)
            plain_text(ax.set_xlabel(panel.label, size=9, color=INK))
            plain_text(ax.set_ylabel(panel.title, size=9, color=INK))

        drawings.append(Drawing(title, fill, model=index))
    return drawings if any(part.rows for part in scene.parts) else [], []


def matrix_pictures(scene: Scene, panel: Panel) -> Pictures:
    """Square tables of numbers up to 1, all on one scale, so that they can be compared: at most six."""
    (prefix,) = panel.arrays
    tables = [
        (f"{name}{key.removeprefix(prefix).replace('_', ', ')}", array)
        for name, part, _ in scene.models
        for key, array in part.arrays.items()
        if key.startswith(prefix)
    ][:MOST_TABLES]
    lowest = min((float(np.nanmin(table)) for _, table in tables if np.isfinite(table).any()), default=0.0)
    # Layers may be so alike that a scale from 0 would show nothing.
    floor = min(max(0.0, np.floor(10 * lowest) / 10) if lowest < 0.95 else np.floor(100 * lowest) / 100, 0.99)
    return [Drawing(f"{panel.title}: {title}", _table(panel, table, floor)) for title, table in tables], []


def _table(panel: Panel, table: np.ndarray, floor: float) -> Callable[[Axes], None]:
    def fill(ax: Axes) -> None:
        image = ax.imshow(table, vmin=floor, vmax=1, cmap="viridis", origin="lower")
        for (row, column), value in np.ndenumerate(table if len(table) <= MOST_WRITTEN else np.empty((0, 0))):
            text = f"{value:.{3 if floor > 0.9 else 2}f}".replace("0.", ".", 1)
            colour = "white" if value < (1 + floor) / 2 else INK
            ax.text(column, row, text, ha="center", va="center", size=7, color=colour)
        ax.grid(False)
        ax.set_xlabel(panel.label, size=8.5, color=INK)
        ticks = range(0, len(table), max(1, len(table) // 6))
        ax.set_xticks(ticks)
        ax.set_yticks(ticks)
        bar = ax.figure.colorbar(image, ax=ax, shrink=0.9)
        bar.ax.tick_params(labelsize=8, colors=GREY)

    return fill


def histogram_pictures(scene: Scene, panel: Panel) -> Pictures:
    """``NAME/LAYER/GROUP/counts`` and ``…/edges`` at one layer, a picture per group; the first layer as a line."""
    (prefix,) = panel.arrays
    layers, groups = _names(scene.parts[0], prefix)
    if not groups:
        return [], []
    drawn = {name: _layer(scene, part, prefix) for name, part, _ in scene.models}
    classes = [group for group in groups if group.startswith("class=")]
    scene.remarks.append(f"At {' and '.join(dict.fromkeys(drawn.values()))}; line: at {layers[0]}.")
    scene.handles |= {name: Patch(color=colour, alpha=0.45, label=name) for name, _, colour in scene.models}
    scene.handles[layers[0]] = Line2D([], [], color=INK, lw=1.3, label=layers[0])

    def fill_with(group: str) -> Callable[[Axes], None]:
        def fill(ax: Axes) -> None:
            for name, part, colour in scene.models:
                if f"{prefix}{drawn[name]}/{group}/counts" in part.arrays:
                    ax.stairs(*_density(part, f"{prefix}{drawn[name]}/{group}"), fill=True, color=colour, alpha=0.45)
            ax.stairs(*_density(scene.parts[0], f"{prefix}{layers[0]}/{group}"), color=INK, lw=1.3)
            if scene.where.get("log"):
                ax.set_yscale("log", nonpositive="clip")
            ax.set_xlabel(panel.label, size=9, color=INK)
            ax.set_ylabel("density", size=9, color=INK)

        return fill

    drawings = [
        Drawing(group.removeprefix("class="), fill_with(group)) for group in classes[:MOST_GROUPS] or groups[:1]
    ]
    return drawings, ["layer", "log"]


def _names(part: Part, prefix: str) -> tuple[list[str], list[str]]:
    """Layers and groups of the arrays ``PREFIX LAYER/GROUP/…``, in their order."""
    names = [key.removeprefix(prefix).rsplit("/", 2) for key in part.arrays if key.startswith(prefix)]
    return list(dict.fromkeys(name[0] for name in names)), list(dict.fromkeys(name[1] for name in names))


def _layer(scene: Scene, part: Part, prefix: str) -> str:
    """The layer that was asked for, or else the last one before the output."""
    layers, _ = _names(part, prefix)
    if "layer" not in scene.where:
        return layers[-2] if len(layers) > 2 else layers[-1]
    layer = coordinate_text(scene.where["layer"])
    if layer not in layers:
        raise ValueError(f"chart_figure: layer must be one of {', '.join(layers)}, got {layer!r}.")
    return layer


def _density(part: Part, name: str) -> tuple[np.ndarray, np.ndarray]:
    counts, edges = part.arrays[f"{name}/counts"], part.arrays[f"{name}/edges"]
    return np.asarray(counts / (max(1, counts.sum()) * np.diff(edges))), edges


def diagram_pictures(scene: Scene, panel: Panel) -> Pictures:
    """``NAME/LAYER/H0``…: birth along, death up, a picture per layer."""
    return _by_layer(scene, panel, _diagram)


def barcode_pictures(scene: Scene, panel: Panel) -> Pictures:
    """The same as bars from birth to death, dimension by dimension, longer ones higher; at most 60 of each."""
    return _by_layer(scene, panel, _barcode)


def _by_layer(scene: Scene, panel: Panel, draw: Callable[..., None]) -> Pictures:
    _, part = scene.alone(panel.form)
    (prefix,) = panel.arrays
    layers: dict[str, dict[str, np.ndarray]] = {}
    for name, bars in part.arrays.items():
        if name.startswith(prefix):
            layer, _, dim = name.removeprefix(prefix).rpartition("/")
            layers.setdefault(layer, {})[dim] = bars
    names = [coordinate_text(scene.where["layer"])] if "layer" in scene.where else list(layers)
    if not set(names) <= layers.keys():
        raise ValueError(f"chart_figure: layer must be one of {', '.join(layers)}, got {names[0]!r}.")
    if len(names) > MOST_LAYERS:
        scene.remarks.append(f"{MOST_LAYERS} of {len(names)} layers.")
        names = [names[index] for index in np.linspace(0, len(names) - 1, MOST_LAYERS).round().astype(int)]
    dims = dict.fromkeys(dim for name in names for dim in layers[name])
    scene.handles |= {dim: handle(DIMENSIONS.get(dim, dim), _colour(dim)) for dim in dims}
    return [Drawing(name, functools.partial(draw, bars=layers[name])) for name in names], ["layer"]


def _colour(dim: str) -> str:
    return PALETTE[int(dim.removeprefix("H")) % len(PALETTE)] if dim.removeprefix("H").isdigit() else INK


def _diagram(ax: Axes, bars: Mapping[str, np.ndarray]) -> None:
    top = max((float(points.max()) for points in bars.values() if len(points)), default=1.0) * 1.05 or 1.0
    ax.plot([0, top], [0, top], color=GREY, lw=0.8)
    for order, (dim, points) in enumerate(bars.items()):
        ax.scatter(
            points[:, 0], points[:, 1], s=12 if order else 8, color=_colour(dim), alpha=0.6, linewidths=0,
            zorder=3 - order,
        )  # fmt: skip
    ax.set_xlim(-0.03 * top, top)
    ax.set_ylim(-0.03 * top, top)
    ax.set_aspect("equal")
    ax.locator_params(nbins=4)


def _barcode(ax: Axes, bars: Mapping[str, np.ndarray]) -> None:
    height, total = 0, sum(min(len(points), LONGEST_BARS) + 4 for points in bars.values())
    for dim, points in bars.items():
        longest = points[np.argsort(points[:, 1] - points[:, 0], kind="stable")[-LONGEST_BARS:]]
        heights = np.arange(height, height + len(longest))
        # Two thirds of a bar's room, in a panel about 120 points high.
        ax.hlines(heights, longest[:, 0], longest[:, 1], color=_colour(dim), lw=min(3.0, 80 / total))
        height += len(longest) + max(2, len(longest) // 15)
    ax.set_yticks([])
    ax.set_xlim(left=0)
    ax.grid(visible=False)
    ax.locator_params(axis="x", nbins=4)


def measure_pictures(scene: Scene, panel: Panel) -> Pictures:
    """A pair ``NAME/0/…`` as discs in the plane, before and after, with the coupling between them."""
    _, part = scene.alone(panel.form)
    (prefix,) = panel.arrays
    pairs = sorted({int(key.removeprefix(prefix).split("/")[0]) for key in part.arrays if key.startswith(prefix)})
    if not pairs:
        return [], ["pair"]
    pair = scene.where.get("pair", pairs[0])
    if pair not in pairs:
        raise ValueError(f"chart_figure: pair must be one of {', '.join(map(str, pairs))}, got {pair}.")
    pair_arrays = {key.removeprefix(f"{prefix}{pair}/"): array for key, array in part.arrays.items()
           if key.startswith(f"{prefix}{pair}/")}  # fmt: skip
    words = tuple([str(word) for word in pair_arrays[side]] for side in ("first", "second"))
    distances = {moment: float(pair_arrays[f"{moment}/distance"][0]) for moment in ("before", "after")}
    if distances["before"] > 0:
        scene.remarks.append(f"Here a stretch of {distances['after'] / distances['before']:.3g}.")
    scene.handles |= {str(index): handle(_sentence(side), PALETTE[index]) for index, side in enumerate(words)}

    def fill_with(moment: str) -> Callable[[Axes], None]:
        points, plan = pair_arrays[moment], pair_arrays[f"{moment}/plan"]
        return lambda ax: draw_measures(ax, points[: len(plan)], points[len(plan) :], plan, names=(words[0], words[1]))

    return [
        Drawing(f"{moment} {panel.title}: distance {distance:.4g}", fill_with(moment))
        for moment, distance in distances.items()
    ], ["pair"]


def _sentence(words: Sequence[str]) -> str:
    text = " ".join(words)
    return text if len(text) <= 110 else text[:107] + "…"


def image_pictures(scene: Scene, panel: Panel) -> Pictures:
    """Strips ``NAME/TITLE`` ``[rows, columns, c, h, w]``, a picture each."""
    _, part = scene.alone(panel.form)
    strips = {key.removeprefix(prefix): array for prefix in panel.arrays for key, array in part.arrays.items()
              if key.startswith(prefix) and array.ndim == 5}  # fmt: skip

    def fill_with(strip: np.ndarray) -> Callable[[Axes], None]:
        pixels = strip / 255 if strip.dtype == np.uint8 else np.clip(strip, 0, 1)
        sheet = np.concatenate([np.concatenate(list(np.moveaxis(row, 1, -1)), 1) for row in pixels], 0)

        def fill(ax: Axes) -> None:
            ax.imshow(sheet if sheet.shape[-1] == 3 else sheet[..., :1].repeat(3, -1), interpolation="nearest")
            ax.set_axis_off()

        return fill

    return [Drawing(title, fill_with(strip)) for title, strip in strips.items()], []


ARRAY_FORMS: dict[str, Callable[[Scene, Panel], Pictures]] = {
    "curves": curve_pictures,
    "scatter": scatter_pictures,
    "matrices": matrix_pictures,
    "histograms": histogram_pictures,
    "diagrams": diagram_pictures,
    "barcodes": barcode_pictures,
    "measures": measure_pictures,
    "images": image_pictures,
}
