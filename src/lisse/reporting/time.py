"""The figure of a training: a quantity against training time, layer by layer, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, Colormap, ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from lisse.maths.given import check_word
from lisse.profile import Quantity, Value
from lisse.reporting.curves import (
    Curve,
    Time,
    TimeScale,
    Watched,
    all_profiles,
    curves_of,
    options_differ,
    thinned_curves,
    time_of,
    trainings_of,
)
from lisse.reporting.depth import MOST_PANELS, cut_name, first_panels
from lisse.reporting.figure import INK, PALETTE, palette, panels, plain_text
from lisse.reporting.marks import (
    axis_label,
    draw_line,
    foot,
    handle,
    is_log,
    kinds_legend,
    left_out,
    log_axis,
    put_legend,
    where_words,
)
from lisse.reporting.series import drawable, meaning_of

MOST_NAMED = 16  # names on the colour bar
FEW = 4  # layers that are told apart by colours of their own


def time_figure(
    profiles: Watched | Mapping[str, Watched],
    quantity: str,
    *,
    where: Mapping[str, Value] | None = None,
    layers: Sequence[str] | str | None = None,
    time: Time | None = None,
    scale: TimeScale = "linear",
) -> Figure:
    """Draw one quantity against training time: a line per layer, coloured by depth; a band per interval.

    ``profiles`` is one training (``watch.profiles``, ``load_profiles(folder)``, or a list of profiles that a
    :class:`~lisse.run.Watch` made), or several by name: ``{"plain": …, "isometric": …}``. Of one training all layers
    share a panel, and there is a panel per set of coordinates; of several there is a panel per layer (six along depth
    where none are chosen and there are more) and a colour per training. A quantity that has no layers is one line.

    ``where`` keeps the rows with these coordinates, ``layers`` those of these layers (names or globs). ``time`` is
    ``"epoch"``, or ``"step"`` where epochs are not unit; ``scale="log"`` shows the first steps of a long training.
    """
    function = "time_figure"
    trainings = trainings_of(profiles, function)
    check_word(function, get_args(TimeScale), scale=scale)
    unit = time_of(trainings, time, function)
    meaning = meaning_of(all_profiles(trainings), quantity, function)
    curves = curves_of(trainings, quantity, unit, where=where, layers=layers, function=function)
    thinned = ""
    if len(trainings) > 1 and layers is None:
        curves, thinned = thinned_curves(curves)
    keys = list(dict.fromkeys((curve.layer, curve.at) if len(trainings) > 1 else (None, curve.at) for curve in curves))
    if len(keys) > MOST_PANELS:
        raise ValueError(
            f"{function}: where must leave at most {MOST_PANELS} panels, got {len(keys)} "
            f"({_panel_title(*keys[0])}; {_panel_title(*keys[1])}; …). Choose with where={{…}} or layers=[…]."
        )
    groups = [
        [curve for curve in curves if (layer is None or curve.layer == layer) and curve.at == at] for layer, at in keys
    ]
    paint = _Paint(curves, trainings)
    handles = [*paint.handles, *kinds_legend(curves)]
    single = len(groups) == 1
    figure, axes = panels(
        len(groups),
        columns=3,
        width=7.6 if single else 4.2,
        height=3.9 if single else 2.9,
        title=meaning.label + (f": {next(iter(trainings))}" if len(trainings) == 1 else " while training"),
        says=meaning.says + where_words(where) + thinned + left_out(curves, meaning)
        + options_differ(trainings, quantity),
        foot=foot(len(handles), 2),
        share=True,
    )  # fmt: skip
    for index, (ax, group, key) in enumerate(zip(axes, groups, keys, strict=True)):
        paint.draw(ax, group, meaning, among=curves)
        _time_axis(ax, unit, scale, [moment for curve in group for moment in curve.time])
        if index % 3 == 0:
            plain_text(ax.set_ylabel(axis_label(meaning), size=10, color=INK))
        if _panel_title(*key):
            plain_text(ax.set_title(_panel_title(*key), loc="left", size=10, color=INK))
    paint.bar(figure, axes)
    put_legend(figure, handles, 2)
    return figure


def time_overview_figure(
    profiles: Watched,
    *,
    time: Time | None = None,
    scale: TimeScale = "linear",
    layers: Sequence[str] | str | None = None,
) -> Figure:
    """Draw every quantity of one training against time, as small multiples; at most 24 panels, the rest is named."""
    function = "time_overview_figure"
    trainings = trainings_of(profiles, function)
    if len(trainings) > 1:
        raise ValueError(f"{function}: profiles must be of one training, got {len(trainings)}. Use time_figure.")
    check_word(function, get_args(TimeScale), scale=scale)
    unit = time_of(trainings, time, function)
    multiples: list[tuple[Quantity, str, list[Curve]]] = []
    for name in dict.fromkeys(row.quantity for profile in all_profiles(trainings) for row in profile.rows):
        try:
            curves = curves_of(trainings, name, unit, where=None, layers=layers, function=function)
        except ValueError:
            if layers is None:
                raise
            continue  # it has none of these layers
        meaning = meaning_of(all_profiles(trainings), name, function)
        ats = dict.fromkeys(curve.at for curve in curves)
        multiples += [(meaning, at, [curve for curve in curves if curve.at == at]) for at in ats]
    if not multiples:
        raise ValueError(f"{function}: profiles must have rows, got none{' at these layers' if layers else ''}.")
    multiples, more = first_panels(multiples)
    drawn = [curve for _, _, curves in multiples for curve in curves]
    paint = _Paint(drawn, trainings)
    handles = [*paint.handles, *kinds_legend(drawn)]
    figure, axes = panels(
        len(multiples),
        columns=2 if len(multiples) in (2, 4) else 3,
        width=4.4,
        height=2.9,
        title=f"{next(iter(trainings))} while training",
        says="Each quantity against training time, a line per layer." + more,
        foot=foot(len(handles), 2),
    )
    for ax, (meaning, at, curves) in zip(axes, multiples, strict=True):
        paint.draw(ax, curves, meaning, among=curves)
        _time_axis(ax, unit, scale, [moment for curve in curves for moment in curve.time])
        plain_text(ax.set_title(" · ".join(filter(None, (axis_label(meaning), at))), loc="left", size=10, color=INK))
    paint.bar(figure, axes)
    put_legend(figure, handles, 2)
    return figure


def time_heatmap(
    profiles: Watched,
    quantity: str,
    *,
    where: Mapping[str, Value] | None = None,
    layers: Sequence[str] | str | None = None,
    time: Time | None = None,
) -> Figure:
    """Draw one quantity of one training as a map: layers upwards from input to output, training time to the right.

    A cell per layer and measurement, as wide as the time until the next one. Values alone: intervals need
    :func:`time_figure`. A panel per set of coordinates and kind of number.
    """
    function = "time_heatmap"
    trainings = trainings_of(profiles, function)
    if len(trainings) > 1:
        raise ValueError(f"{function}: profiles must be of one training, got {len(trainings)}. Draw one at a time.")
    unit = time_of(trainings, time, function)
    meaning = meaning_of(all_profiles(trainings), quantity, function)
    curves = curves_of(trainings, quantity, unit, where=where, layers=layers, function=function)
    curves = [curve for curve in curves if curve.layer is not None]
    if not curves:
        raise ValueError(f"{function}: quantity must have rows with layers, got {quantity!r}. Use time_figure.")
    keys = list(dict.fromkeys((curve.at, curve.kind) for curve in curves))
    if len(keys) > MOST_PANELS:
        raise ValueError(f"{function}: where must leave at most {MOST_PANELS} panels, got {len(keys)}.")
    log = is_log(curves, meaning)
    values = [row.value for curve in curves for row in curve.rows if drawable(row.value, log)]
    if not values:
        raise ValueError(f"{function}: quantity must have finite values, got none of {quantity!r}.")
    low, high = min(values), max(values)
    norm = LogNorm(low, high) if log and high > low else Normalize(low, high)
    figure, axes = panels(
        len(keys),
        columns=3,
        width=7.6 if len(keys) == 1 else 4.2,
        height=3.9 if len(keys) == 1 else 3.1,
        title=f"{meaning.label}: {next(iter(trainings))}",
        says=meaning.says + where_words(where) + left_out(curves, meaning),
        foot=0.1,
        share=True,
    )
    image: Any = None
    for ax, (at, kind) in zip(axes, keys, strict=True):
        image = _map(ax, [curve for curve in curves if (curve.at, curve.kind) == (at, kind)], log, norm)
        ax.set_xlabel(_TIMES[unit], size=10, color=INK)
        ax.grid(visible=False)
        title = " · ".join(filter(None, (at, kind if len({key[1] for key in keys}) > 1 else "")))
        if title:
            plain_text(ax.set_title(title, loc="left", size=10, color=INK))
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=30)
    bar.outline.set_visible(False)
    bar.ax.tick_params(which="both", colors=INK, labelsize=8.5)
    if log:
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        bar.ax.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    plain_text(bar.ax.set_ylabel(axis_label(meaning), size=9, color=INK))
    return figure


_TIMES = {"epoch": "epochs of training", "step": "steps of training"}


class _Paint:
    """Which colour a curve has: its training's; or its layer's, by name where they are few and by depth otherwise."""

    def __init__(self, curves: Sequence[Curve], trainings: Mapping[str, Any]) -> None:
        self.names = list(dict.fromkeys(curve.layer for curve in curves if curve.layer is not None))
        self.map: Colormap | None = None
        self.many = len(trainings) > 1
        self.colours: dict[str | None, Any] = {None: PALETTE[0]}
        if self.many or len(self.names) <= FEW:
            self.colours.update(palette(trainings if self.many else self.names))
        else:
            # From dark to light, without the weak yellow end; equal steps of lightness, so it also reads in grey.
            self.map = ListedColormap(mpl.colormaps["viridis"](np.linspace(0.0, 0.9, len(self.names))))
            self.colours = {None: INK} | {name: self.map(index) for index, name in enumerate(self.names)}
        listed = list(trainings) if self.many else self.names if self.map is None and len(self.names) > 1 else []
        self.handles = [handle(name, self.colours[name]) for name in listed]

    def draw(self, ax: Axes, curves: Sequence[Curve], meaning: Quantity, *, among: Sequence[Curve]) -> None:
        """Draw curves into a panel; ``among`` are all that share its vertical axis."""
        log = is_log(among, meaning)
        if log:
            log_axis(ax, among)
        for curve in curves:
            label = " ".join(filter(None, (curve.model if self.many else "", curve.layer, curve.at, curve.kind)))
            draw_line(
                ax, curve.time, curve, self.colours[curve.model if self.many else curve.layer], log=log, label=label
            )

    def bar(self, figure: Figure, axes: Sequence[Axes]) -> None:
        """The colours of the layers from the input's up to the output's, with as many names as can be read."""
        if self.map is None:
            return
        count = len(self.names)
        scale = ScalarMappable(BoundaryNorm(np.arange(count + 1) - 0.5, count), self.map)
        bar = figure.colorbar(scale, ax=list(axes), pad=0.02, aspect=30, fraction=0.05)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0, colors=INK, labelsize=8)
        bar.ax.minorticks_off()
        step = max(1, math.ceil((count - 1) / (MOST_NAMED - 1)))
        bar.set_ticks(list(range(0, count, step)), labels=[cut_name(name, 22) for name in self.names[::step]])
        for text in bar.ax.get_yticklabels():
            plain_text(text)
        bar.ax.set_title("layer" if step == 1 else f"{count} layers", size=8.5, color=INK, loc="left")


def _time_axis(ax: Axes, time: Time, scale: TimeScale, moments: Sequence[float]) -> None:
    ax.set_xlabel(_TIMES[time], size=10, color=INK)
    if scale == "log":
        # Linear up to the first measurement after the start, so that step 0 has its place.
        ax.set_xscale("symlog", linthresh=min((moment for moment in moments if moment > 0), default=1.0), linscale=0.4)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    elif time == "step" or max(moments) >= 4:
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))


def _map(ax: Axes, curves: Sequence[Curve], log: bool, norm: Normalize) -> Any:
    moments = sorted({moment for curve in curves for moment in curve.time})
    names = list(dict.fromkeys(curve.layer for curve in curves))
    cells = np.full((len(names), len(moments)), np.nan)
    for curve in curves:
        for moment, value in zip(curve.time, curve.values(log), strict=True):
            cells[names.index(curve.layer), moments.index(moment)] = value
    last = moments[-1] - moments[-2] if len(moments) > 1 else 1.0
    edges = [*moments, moments[-1] + last]
    image = ax.pcolormesh(edges, np.arange(len(names) + 1) - 0.5, cells, cmap="viridis", norm=norm)
    step = -(-len(names) // 30)
    ax.set_yticks(range(0, len(names), step), labels=[cut_name(str(name), 22) for name in names[::step]], size=8)
    for text in ax.get_yticklabels():
        plain_text(text)
    return image


def _panel_title(layer: str | None, at: str) -> str:
    return " · ".join(filter(None, (layer, at)))
