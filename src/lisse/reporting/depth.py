"""The figure every instrument gets for free: a quantity over depth, for several models, with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lisse.profile import Profile, Quantity, Value
from lisse.reporting.figure import INK, PALETTE, panels, plain_text
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
    said,
)
from lisse.reporting.series import Series, collect, described, legend_names, several

MOST_NAMES = 30
MOST_PANELS = 24


def depth_figure(
    profiles: Profile | Iterable[Profile], quantity: str, *, where: Mapping[str, Value] | None = None
) -> Figure:
    """Draw one quantity over depth: a line per model, a band per interval, a marker per kind of number.

    ``where`` keeps the rows with these coordinates, e.g. ``{"p": 2}``. Several models with several coordinates give a
    panel per set of coordinates; a single model shows up to eight of them as colours in one panel.
    """
    given = several(profiles, "depth_figure")
    meaning = described(given, quantity, "depth_figure")
    lines = collect(given, quantity, where=where, function="depth_figure")
    ats = list(dict.fromkeys(line.at for line in lines))
    models = list(dict.fromkeys(line.model for line in lines))
    apart = len(ats) > 1 and (len(models) > 1 or len(ats) > len(PALETTE))
    if apart and len(ats) > MOST_PANELS:
        raise ValueError(
            f"depth_figure: where must leave at most {MOST_PANELS} sets of coordinates, got {len(ats)} "
            f"({ats[0]}; {ats[1]}; …). Choose some with where={{…}}."
        )
    groups = [(at, [line for line in lines if line.at == at]) for at in ats] if apart else [("", lines)]
    by_at = not apart and len(models) == 1 and len(ats) > 1
    keys = ats if by_at else legend_names(given)
    colours = {key: PALETTE[place % len(PALETTE)] for place, key in enumerate(keys)}
    handles = _legend(lines, colours, by_at)
    says = meaning.says + (f" Here: {said(where)}." if where else "") + left_out(lines, meaning)
    figure, axes = panels(
        len(groups),
        columns=3,
        width=7.2 if len(groups) == 1 else 4.2,
        height=3.7 if len(groups) == 1 else 2.9,
        title=_title(meaning, models),
        says=says,
        foot=foot(len(handles), 2),
        share=True,
    )
    for place, (ax, (at, some)) in enumerate(zip(axes, groups, strict=True)):
        _draw(ax, some, meaning, colours, by_at)
        _label_depth(ax, some, short=len(groups) > 1)
        if place % 3 == 0:
            plain_text(ax.set_ylabel(axis_label(meaning), size=10, color=INK))
        if at:
            plain_text(ax.set_title(at, loc="left", size=10, color=INK))
    put_legend(figure, handles, 2)
    return figure


def overview_figure(profiles: Profile | Iterable[Profile]) -> Figure:
    """Draw every quantity that has rows along depth, as small multiples: the whole profile at a glance.

    A panel per quantity and, with several models, per set of coordinates; at most 24 panels, and the rest is named.
    """
    given = several(profiles, "overview_figure")
    names = list(dict.fromkeys(row.quantity for profile in given for row in profile.rows if row.depth is not None))
    if not names:
        raise ValueError(
            "overview_figure: profiles must have rows along depth, got none. Measure a per-layer quantity."
        )
    panel: list[tuple[Quantity, str, list[Series]]] = []
    for name in names:
        meaning = described(given, name, "overview_figure")
        lines = collect(given, name, where=None, function="overview_figure")
        ats = list(dict.fromkeys(line.at for line in lines))
        if len(given) == 1 and len(ats) <= len(PALETTE):
            panel.append((meaning, "", lines))
        else:
            panel += [(meaning, at, [line for line in lines if line.at == at]) for at in ats]
    models = legend_names(given)
    colours = {model: PALETTE[place % len(PALETTE)] for place, model in enumerate(models)}
    shown, rest = panel[:MOST_PANELS], panel[MOST_PANELS:]
    # One legend at the foot for the coordinates of all panels: inside the panels it would lie on the lines.
    many = [lines for _, _, lines in shown if len({line.at for line in lines}) > 1]
    ats = list(dict.fromkeys(line.at for lines in many for line in lines))
    by_coordinates = {at: PALETTE[place] for place, at in enumerate(ats)} if len(ats) <= len(PALETTE) else {}
    handles = [handle(at or "(no coordinates)", colour) for at, colour in by_coordinates.items()]
    handles += _legend([line for _, _, lines in shown for line in lines], colours, False)
    more = f" Not shown: {', '.join(dict.fromkeys(meaning.name for meaning, _, _ in rest))}." if rest else ""
    missing = "".join(dict.fromkeys(left_out(lines, meaning, named=True) for meaning, _, lines in shown))
    figure, axes = panels(
        len(shown),
        columns=2 if len(shown) in (2, 4) else 3,
        width=4.6,
        height=3.0,
        title=", ".join(models) if len(models) <= 3 else f"{len(models)} models",
        says="Each quantity along depth, from the input on the left to the output on the right." + more + missing,
        foot=foot(len(handles), 3 if by_coordinates else 2),
    )
    for ax, (meaning, at, lines) in zip(axes, shown, strict=True):
        ats = list(dict.fromkeys(line.at for line in lines))
        by_at = len(ats) > 1
        own = {key: PALETTE[place % len(PALETTE)] for place, key in enumerate(ats)}
        keys = (by_coordinates or own) if by_at else colours
        _draw(ax, lines, meaning, keys, by_at)
        _label_depth(ax, lines, short=True)
        plain_text(ax.set_title(" · ".join(filter(None, (axis_label(meaning), at))), loc="left", size=10, color=INK))
        if by_at and not by_coordinates:
            inner = [handle(key, colour) for key, colour in keys.items()]
            legend = ax.legend(handles=inner, fontsize=7.5, frameon=False, ncols=1 + len(inner) // 4)
            for text in legend.get_texts():
                plain_text(text)
    put_legend(figure, handles, 3 if by_coordinates else 2)
    return figure


def _draw(ax: Axes, lines: Sequence[Series], meaning: Quantity, colours: Mapping[str, str], by_at: bool) -> None:
    log = is_log(lines, meaning)
    if log:
        log_axis(ax, lines)
    for line in lines:
        label = " ".join(filter(None, (line.model, line.at, line.kind)))
        draw_line(ax, line.depth, line, colours[line.at if by_at else line.model], log=log, label=label)
    ax.set_xlim(-0.04, 1.04)


def _label_depth(ax: Axes, lines: Sequence[Series], *, short: bool) -> None:
    """Layers by name where every line has the same few of them, normalised depth otherwise."""
    places = {(row.depth, row.layer) for line in lines for row in line.rows}
    names = dict(sorted((depth, layer) for depth, layer in places if depth is not None and layer is not None))
    if len(places) == len(names) <= MOST_NAMES and (len({line.model for line in lines}) == 1 or _shared(lines)):
        texts = [_cut(name, 14 if short else 24) for name in names.values()]
        ax.set_xticks(list(names))
        crowded = len(texts) * (max(map(len, texts)) + 2) > (50 if short else 80)
        ax.set_xticklabels(texts, rotation=90 if crowded else 0, size=7.5 if short else 8.5)
        for text in ax.get_xticklabels():
            plain_text(text)
    else:
        ax.set_xlabel("depth (0: first layer, 1: last)", size=8.5 if short else 10, color=INK)


def _shared(lines: Sequence[Series]) -> bool:
    layers: dict[str, set[str | None]] = {}
    for line in lines:
        layers.setdefault(line.model, set()).update(row.layer for row in line.rows)
    return len(set(map(frozenset, layers.values()))) == 1


def _legend(lines: Sequence[Series], colours: Mapping[str, str], by_at: bool) -> list[Line2D]:
    """An entry per colour, when there is more than one, then one per kind of number that is drawn."""
    used = list(dict.fromkeys(line.at if by_at else line.model for line in lines))
    handles = [handle(key or "(no coordinates)", colours[key]) for key in used if len(used) > 1]
    return handles + kinds_legend(lines)


def _title(meaning: Quantity, models: Sequence[str]) -> str:
    return meaning.label + (f": {models[0]}" if len(models) == 1 else "")


def _cut(name: str, most: int) -> str:
    return name if len(name) <= most else "…" + name[-(most - 1) :]
