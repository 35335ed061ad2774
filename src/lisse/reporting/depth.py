"""The figure every instrument gets for free: a quantity over depth, for several models, with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lisse.profile import Profile, Quantity, Value
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
from lisse.reporting.series import Series, collect, legend_names, listed_profiles, meaning_of

MOST_NAMES = 30
MOST_PANELS = 24


def depth_figure(
    profiles: Profile | Iterable[Profile], quantity: str, *, where: Mapping[str, Value] | None = None
) -> Figure:
    """Draw one quantity over depth: a line per model, a band per interval, a marker per kind of number.

    ``where`` keeps the rows with these coordinates, e.g. ``{"p": 2}``. Several models with several coordinates give a
    panel per set of coordinates; a single model shows up to eight of them as colours in one panel.
    """
    drawn = listed_profiles(profiles, "depth_figure")
    meaning = meaning_of(drawn, quantity, "depth_figure")
    lines = collect(drawn, quantity, where=where, function="depth_figure")
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
    colours = palette(ats if by_at else legend_names(drawn))
    handles = _legend(lines, colours, by_at)
    single = len(groups) == 1
    figure, axes = panels(
        len(groups),
        columns=3,
        width=7.2 if single else 4.2,
        height=3.7 if single else 2.9,
        title=meaning.label + (f": {models[0]}" if len(models) == 1 else ""),
        says=meaning.says + where_words(where) + left_out(lines, meaning),
        foot=foot(len(handles), 2),
        share=True,
    )
    for index, (ax, (at, group)) in enumerate(zip(axes, groups, strict=True)):
        _draw(ax, group, meaning, colours, by_at)
        _label_depth(ax, group, short=not single)
        if index % 3 == 0:
            plain_text(ax.set_ylabel(axis_label(meaning), size=10, color=INK))
        if at:
            plain_text(ax.set_title(at, loc="left", size=10, color=INK))
    put_legend(figure, handles, 2)
    return figure


def overview_figure(profiles: Profile | Iterable[Profile]) -> Figure:
    """Draw every quantity that has rows along depth, as small multiples: the whole profile at a glance.

    A panel per quantity and, with several models, per set of coordinates; at most 24 panels, and the rest is named.
    """
    drawn = listed_profiles(profiles, "overview_figure")
    names = list(dict.fromkeys(row.quantity for profile in drawn for row in profile.rows if row.depth is not None))
    if not names:
        raise ValueError(
            "overview_figure: profiles must have rows along depth, got none. Measure a per-layer quantity."
        )
    multiples: list[tuple[Quantity, str, list[Series]]] = []
    for name in names:
        meaning = meaning_of(drawn, name, "overview_figure")
        lines = collect(drawn, name, where=None, function="overview_figure")
        ats = list(dict.fromkeys(line.at for line in lines))
        if len(drawn) == 1 and len(ats) <= len(PALETTE):
            multiples.append((meaning, "", lines))
        else:
            multiples += [(meaning, at, [line for line in lines if line.at == at]) for at in ats]
    models = legend_names(drawn)
    colours = palette(models)
    multiples, more = first_panels(multiples)
    # One legend at the foot for the coordinates of all panels: inside the panels it would lie on the lines.
    crowded = [lines for _, _, lines in multiples if len({line.at for line in lines}) > 1]
    ats = list(dict.fromkeys(line.at for lines in crowded for line in lines))
    by_coordinates = palette(ats) if len(ats) <= len(PALETTE) else {}
    handles = [handle(at or "(no coordinates)", colour) for at, colour in by_coordinates.items()]
    handles += _legend([line for _, _, lines in multiples for line in lines], colours, False)
    columns = 3 if by_coordinates else 2
    figure, axes = panels(
        len(multiples),
        columns=2 if len(multiples) in (2, 4) else 3,
        width=4.6,
        height=3.0,
        title=", ".join(models) if len(models) <= 3 else f"{len(models)} models",
        says="Each quantity along depth, from the input on the left to the output on the right." + more,
        foot=foot(len(handles), columns),
    )
    for ax, (meaning, at, lines) in zip(axes, multiples, strict=True):
        ats = list(dict.fromkeys(line.at for line in lines))
        keys = (by_coordinates or palette(ats)) if len(ats) > 1 else colours
        _draw(ax, lines, meaning, keys, len(ats) > 1)
        _label_depth(ax, lines, short=True)
        plain_text(ax.set_title(" · ".join(filter(None, (axis_label(meaning), at))), loc="left", size=10, color=INK))
        if len(ats) > 1 and not by_coordinates:
            inner = [handle(key, colour) for key, colour in keys.items()]
            legend = ax.legend(handles=inner, fontsize=7.5, frameon=False, ncols=1 + len(inner) // 4)
            for text in legend.get_texts():
                plain_text(text)
    put_legend(figure, handles, columns)
    return figure


def first_panels(multiples: list[tuple[Quantity, str, list]]) -> tuple[list[tuple[Quantity, str, list]], str]:
    """As many small multiples as a figure holds, and a sentence on those that are missing and on missing values."""
    drawn, missing = multiples[:MOST_PANELS], multiples[MOST_PANELS:]
    words = f" Not shown: {', '.join(dict.fromkeys(meaning.name for meaning, _, _ in missing))}." if missing else ""
    return drawn, words + "".join(
        dict.fromkeys(left_out(lines, meaning, with_name=True) for meaning, _, lines in drawn)
    )


def cut_name(name: str, most: int) -> str:
    """The end of a long name, which says more than its beginning."""
    return name if len(name) <= most else "…" + name[-(most - 1) :]


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
    layers = {(row.depth, row.layer) for line in lines for row in line.rows}
    names = dict(sorted((depth, layer) for depth, layer in layers if depth is not None and layer is not None))
    by_model = {model: frozenset(row.layer for line in lines if line.model == model for row in line.rows)
                for model in {line.model for line in lines}}  # fmt: skip
    if len(layers) == len(names) <= MOST_NAMES and len(set(by_model.values())) == 1:
        texts = [cut_name(name, 14 if short else 24) for name in names.values()]
        ax.set_xticks(list(names))
        crowded = len(texts) * (max(map(len, texts)) + 2) > (50 if short else 80)
        ax.set_xticklabels(texts, rotation=90 if crowded else 0, size=7.5 if short else 8.5)
        for text in ax.get_xticklabels():
            plain_text(text)
    else:
        ax.set_xlabel("depth (0: first layer, 1: last)", size=8.5 if short else 10, color=INK)


def _legend(lines: Sequence[Series], colours: Mapping[str, str], by_at: bool) -> list[Line2D]:
    """An entry per colour, when there is more than one, then one per kind of number that is drawn."""
    keys = list(dict.fromkeys(line.at if by_at else line.model for line in lines))
    handles = [handle(key or "(no coordinates)", colours[key]) for key in keys if len(keys) > 1]
    return handles + kinds_legend(lines)
