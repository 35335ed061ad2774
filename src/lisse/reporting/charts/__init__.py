"""Charts that instruments declare, as figures: panels of rows over depth or a coordinate, and pictures of arrays.

Nothing here knows an instrument: a :class:`~lisse.profile.Chart` says what to draw, and its forms how.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from matplotlib.figure import Figure

from lisse.profile import Chart, Part, Profile, Value, words_of
from lisse.reporting.charts import arrays, rows
from lisse.reporting.charts.scene import Drawing, Scene
from lisse.reporting.declared import INSTRUMENTS
from lisse.reporting.depth import depth_figure, overview_figure
from lisse.reporting.figure import INK, panels, plain_text
from lisse.reporting.marks import foot, put_legend
from lisse.reporting.series import listed_profiles

#: Inches of one picture, by the form of a chart's first panel.
SIZES = {
    "diagrams": (2.7, 2.7),
    "barcodes": (2.7, 2.4),
    "measures": (5.6, 4.4),
    "dots": (6.8, 1.0),
    "images": (7.0, 1.9),
}
USUAL = (4.2, 2.9)
# Charts of instruments that these profiles may lack, and whose they are.
_EVERYWHERE = {chart.name: instrument for instrument, kind in INSTRUMENTS.items() for chart in kind.CHARTS}


def charts_of(profiles: Profile | Iterable[Profile]) -> dict[str, Chart]:
    """The charts that the profiles' instruments declare, by name."""
    listed = listed_profiles(profiles, "charts_of")
    return {chart.name: chart for profile in listed for part in profile for chart in part.charts}


def chart_figure(
    profiles: Profile | Iterable[Profile], name: str, *, where: Mapping[str, Value] | None = None
) -> Figure:
    """The figure of a chart: a colour per model, or a row of panels per model where the chart keeps them apart.

    ``where`` chooses coordinates, e.g. ``{"dim": 0}``, ``{"layer": "blocks.0"}`` or ``{"pair": 1}``.
    """
    drawn = listed_profiles(profiles, "chart_figure")
    parts = [_part(profile, drawn, name) for profile in drawn]
    chart = next(chart for chart in parts[0].charts if chart.name == name)
    scene = Scene(chart, drawn, parts, dict(where or {}))
    pictures = sorted(_pictures(scene), key=lambda picture: picture.model)
    shared = [item for item in pictures[0].at.items() if all(item in picture.at.items() for picture in pictures)]
    if shared:
        scene.remarks.append(f"Everywhere: {words_of(dict(shared))}.")
    width, height = SIZES.get(chart.panels[0].form, USUAL)
    names = [name for name, _, _ in scene.models]
    columns = 2 if len(scene.handles) > 3 or max(map(len, scene.handles), default=0) > 40 else 3
    figure, axes = panels(
        len(pictures),
        columns=chart.columns,
        width=width,
        height=max(height, *(picture.height for picture in pictures)),
        title=chart.title + (f": {names[0]}" if len(names) == 1 else ""),
        says=" ".join([chart.says, *dict.fromkeys(scene.remarks)]),
        foot=foot(len(scene.handles), columns),
        share=bool(chart.limits),
    )
    for ax, picture in zip(axes, pictures, strict=True):
        words = words_of({key: value for key, value in picture.at.items() if (key, value) not in shared})
        title = " · ".join(filter(None, (picture.title, words)))
        plain_text(ax.set_title(title, loc="left", size=10 if width > 3 else 9, color=INK))
        picture.fill(ax)
        if width < 3:
            ax.tick_params(labelsize=7.5)
    put_legend(figure, list(scene.handles.values()), columns)
    return figure


def named_figure(
    profiles: Profile | Iterable[Profile], name: str, *, where: Mapping[str, Value] | None = None
) -> Figure:
    """What ``lisse figure NAME`` draws: a chart, a quantity over depth, or the ``overview`` of all quantities."""
    drawn = listed_profiles(profiles, "named_figure")
    charts, quantities = charts_of(drawn), {name for profile in drawn for name in profile.quantities}
    if name in charts or name in _EVERYWHERE:
        return chart_figure(drawn, name, where=where)
    if name in quantities:
        return depth_figure(drawn, name, where=where)
    if name == "overview":
        if where:
            raise ValueError("named_figure: where goes with a chart or a quantity, not with the overview.")
        return overview_figure(drawn)
    names = [*charts, *sorted(quantities), "overview"]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"named_figure: name must be one of {', '.join(names)}, got {name!r}.{hint}")


def _pictures(scene: Scene) -> list[Drawing]:
    """All pictures of all panels; a choice of coordinates that leaves none is an error that says what there is."""
    pictures, coordinates = [], dict.fromkeys(scene.chart.prefers)
    for panel in scene.chart.panels:
        form = rows.ROW_FORMS.get(panel.form) or arrays.ARRAY_FORMS[panel.form]
        drawings, keys = form(scene, panel)
        pictures += drawings
        coordinates |= dict.fromkeys(keys)
    unknown = [key for key in scene.where if key not in coordinates]
    if unknown:
        rule = f"take {' and '.join(f'{key}=…' for key in coordinates)}" if coordinates else "be left out"
        raise ValueError(f"chart_figure: where of {scene.chart.name!r} must {rule}, got {words_of(scene.where)}.")
    if not pictures:
        at = f" at {words_of(scene.where)}" if scene.where else ""
        raise ValueError(
            f"chart_figure: profiles must hold what {scene.chart.name!r} draws{at}, got none of it in "
            f"{', '.join(profile.name for profile in scene.profiles)}."
        )
    return pictures


def _part(profile: Profile, profiles: list[Profile], name: str) -> Part:
    """The part of a profile whose instrument declares a chart of that name."""
    for part in profile:
        if any(chart.name == name for chart in part.charts):
            return part
    owners = {chart.name: part.instrument for other in profiles for part in other for chart in part.charts}
    instrument = (_EVERYWHERE | owners).get(name)
    if instrument is None:
        raise ValueError(f"chart_figure: name must be one of {', '.join(owners) or '(none)'}, got {name!r}.")
    raise ValueError(
        f"chart_figure: profiles must hold what {instrument.capitalize()} measured, got {profile.name!r} without it. "
        f"Run `lisse measure {instrument} MODEL --data SPEC`."
    )
