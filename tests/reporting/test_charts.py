"""Charts as data: what a declaration draws, of an instrument that nobody knows."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from lisse.profile import Chart, Line, Panel, Part, Profile, Quantity, Row
from lisse.reporting import chart_figure, charts_of, former, named_figure, report
from lisse.reporting.declared import up_to_date

LAYERS = (("in", 0.0), ("mid", 0.5), ("out", 1.0))
WEIGHT = Quantity("weight", "weight", "How heavy.", scale="log", neutral=1.0)
PRICE = Quantity("price", "price", "How dear.")
TOTAL = Quantity("total", "total", "Of the whole network.")
SHARE = Quantity("share", "share kept", "Of all.")


def profile(*panels: Panel, name: str = "net", factor: float = 1.0, **more) -> Profile:
    """Weights 1, 10, 100 (times ``factor``) along depth at a=1 and ten times as much at a=2; prices by class."""
    rows = []
    for (layer, depth), a in itertools.product(LAYERS, (1, 2)):
        value = factor * 10 ** (2 * depth) * (1 if a == 1 else 10)
        rows.append(Row("weight", value, "lower", 9, layer, depth, value / 2, value * 2, {"a": a}))
    for (layer, depth), (kind, start) in itertools.product(LAYERS, (("x", 1.0), ("y", 2.0))):
        rows += [
            Row("price", start * (1 + depth) * size, "exact", 9, layer, depth, at={"class": kind, "quantile": level})
            for level, size in ((0.1, 0.5), (0.5, 1.0), (0.9, 3.0))
        ]
    rows += [
        Row("total", 7.0, "exact", 9),
        Row("share", 0.5, "exact", 9, at={"a": 1}),
        Row("share", 1.0, "exact", 9, at={"a": 2}),
    ]
    chart = Chart("scales", "Scales", "What is weighed.", panels, **more)
    part = Part("weighing", rows, (WEIGHT, PRICE, TOTAL, SHARE), charts=(chart,))
    return Profile((part,), {"model": {"name": name}})


def heights(ax, points=3):
    return [np.asarray(line.get_ydata(), dtype=float) for line in ax.lines if len(line.get_ydata()) == points]


def texts(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_a_line_per_set_of_coordinates_with_its_neutral_value_and_whole_number():
    figure = chart_figure(profile(Panel("by layer", (Line("weight"),), base="total")), "scales")
    (ax,) = figure.axes
    np.testing.assert_allclose(heights(ax), [[1, 10, 100], [10, 100, 1000]])
    assert [line.get_ydata()[0] for line in ax.lines[2:]] == [1.0, 7.0]  # neutral, then the whole network's
    assert texts(figure)[:2] == ["a=1", "a=2"]
    assert "lower bound: the true value is at least this, with its interval over samples" in texts(figure)
    assert (ax.get_yscale(), ax.get_title("left")) == ("log", "by layer")


STANDING = Panel("by layer", (
    Line("weight", "above", {"a": 2}), Line("weight", "each", {"a": 1}, look="bars"),
    Line("price", "least", {"class": "x", "quantile": 0.5}, look="floor"),
))  # fmt: skip


def test_bars_and_a_floor_stand_on_the_axis():
    figure = chart_figure([profile(STANDING, apart=True)], "scales")
    (ax,) = figure.axes
    foot = ax.get_ylim()[0]
    bars = [(bar.get_y(), round(bar.get_y() + bar.get_height(), 9)) for bar in ax.patches]
    assert bars == [(foot, 1), (foot, 10), (foot, 100)]
    (floor,) = [
        patch for patch in ax.collections if patch.get_paths()[0].vertices[:, 1].min() == foot and patch.get_alpha()
    ]
    assert floor.get_paths()[0].vertices[:, 1].max() == 2
    assert texts(figure)[:3] == ["above", "each", "least"]
    both = chart_figure([profile(STANDING), profile(STANDING, name="b")], "scales").axes[0]
    assert both.get_title("left") == "by layer\n(bars: each, shaded: least)"
    first, second = both.patches[0], both.patches[3]
    assert first.get_x() + first.get_width() == pytest.approx(second.get_x())  # of two models beside each other
    with pytest.raises(ValueError, match="look must be one of line, bars, floor, got 'pie'"):
        Line("weight", look="pie")  # type: ignore[arg-type]


def test_bars_and_a_floor_stand_on_the_axis_of_a_page():
    text = report(profile(STANDING, lead=True)).text
    (bars,) = re.findall(r'<path d="([^"]+)" class="bars m0"', text)
    assert [float(y) for y in re.findall(r"M[\d.]+ ([\d.]+)V", bars)] == [248.0] * 3
    tops = [float(y) for y in re.findall(r"V([\d.]+)h", bars)]
    assert tops == sorted(tops, reverse=True)
    assert text.count('class="floor m0"') == 1
    assert "What is weighed. Line: above. Bars: each. Shaded: least." in text
    twice = report([profile(STANDING, lead=True), profile(STANDING, name="b", lead=True)]).text
    paths = " ".join(re.findall(r'd="([^"]+)" class="bars', twice))
    assert re.findall(r"h([\d.]+)V", paths) == ["11.00"] * 6  # of two models beside each other


def test_models_have_colours_and_coordinates_dashes():
    panel = Panel(lines=(Line("weight"),))
    figure = chart_figure([profile(panel, name="p"), profile(panel, name="q", factor=2.0)], "scales")
    (ax,) = figure.axes
    drawn = [(line.get_color(), line.get_linestyle()) for line in ax.lines[:4]]
    assert len(set(drawn)) == 4
    assert len({colour for colour, _ in drawn}) == 2
    assert texts(figure)[:4] == ["p", "q", "a=1", "a=2"]


def test_where_and_preferences_choose_one_value():
    chosen = chart_figure(profile(Panel(lines=(Line("weight"),))), "scales", where={"a": 2})
    np.testing.assert_allclose(heights(chosen.axes[0]), [[10, 100, 1000]])
    preferred = profile(Panel(lines=(Line("weight"),)), prefers={"a": (3, 2, 1)})
    np.testing.assert_allclose(heights(chart_figure(preferred, "scales").axes[0]), [[10, 100, 1000]])
    other = chart_figure(preferred, "scales", where={"a": 1})
    np.testing.assert_allclose(heights(other.axes[0]), [[1, 10, 100]])
    exact = profile(Panel(lines=(Line("weight", at={"a": 1}),)))
    np.testing.assert_allclose(heights(chart_figure(exact, "scales").axes[0]), [[1, 10, 100]])


def test_means_over_a_coordinate_over_the_first_layer_and_between_quantiles():
    mean = Line("price", at={"quantile": 0.5}, mean="class")
    relative = Line("price", at={"quantile": 0.9, "class": "y"}, relative=True)
    band = Line("price", at={"quantile": 0.5, "class": "x"}, band=("quantile", 0.1, 0.9))
    figure = chart_figure(profile(*(Panel(lines=(line,)) for line in (mean, relative, band))), "scales")
    np.testing.assert_allclose(heights(figure.axes[0]), [[1.5, 2.25, 3.0]])
    np.testing.assert_allclose(heights(figure.axes[1]), [[1.0, 1.5, 2.0]])
    np.testing.assert_allclose(heights(figure.axes[2]), [[1.0, 1.5, 2.0]])
    ends = figure.axes[2].collections[0].get_paths()[0].vertices[:, 1]
    assert (ends.min(), ends.max()) == (0.5, 6.0)


def test_powers_of_ten_and_models_apart():
    panel = Panel(
        "powers", (Line("weight", "heavy", {"a": 1}),
                   Line("price", "dear", {"class": "x", "quantile": 0.5}, power=True)), powers=True,
    )  # fmt: skip
    figure = chart_figure([profile(panel, name=name) for name in "pq"], "scales")
    assert len(figure.axes) == 1  # not apart: one panel, dashed for the second line
    assert figure.axes[0].get_title("left") == "powers\n(dashed: dear)"
    figure = chart_figure([profile(panel, name=name, apart=True) for name in "pq"], "scales")
    assert [ax.get_title("left") for ax in figure.axes] == ["p: powers", "q: powers"]
    np.testing.assert_allclose(heights(figure.axes[1]), [[0, 1, 2], [1, 1.5, 2]])
    assert texts(figure)[:2] == ["heavy", "dear"]


def test_the_legend_says_a_share_that_is_not_one():
    figure = chart_figure(profile(Panel(lines=(Line("weight"),)), beside="share"), "scales")
    assert texts(figure)[:2] == ["a=1 (share kept 0.5)", "a=2"]


def test_limits_hold_for_all_panels():
    panels = (Panel(lines=(Line("price"),)), Panel(lines=(Line("weight", at={"a": 1}),)))
    figure = chart_figure(profile(*panels, limits=(0.0, 10.0)), "scales")
    assert [ax.get_ylim() for ax in figure.axes] == [(-0.2, 10.2)] * 2


def test_arrays_of_every_form_are_drawn():
    strip = np.zeros((2, 3, 3, 4, 4), dtype=np.uint8)
    arrays = {
        "curve/weight/p=1": np.ones((2, 101)), "strip/a": strip, "table": np.eye(3), "x": np.arange(4.0),
        "y": np.arange(4.0) ** 2, "bars/l/H0": np.array([[0.0, 1.0]]), "bins/l/class=c/counts": np.ones(2),
        "bins/l/class=c/edges": np.arange(3.0),
    }  # fmt: skip
    panels = [
        Panel("c", form="curves", arrays=("curve/weight",)), Panel(form="images", arrays=("strip/",)),
        Panel("t", form="matrices", arrays=("table",)), Panel("y", form="scatter", arrays=("x", "y"), base="total"),
        Panel(form="diagrams", arrays=("bars/",)), Panel(form="barcodes", arrays=("bars/",)),
        Panel(form="histograms", arrays=("bins/",)),
    ]  # fmt: skip
    (part,) = profile(*panels).parts
    whole = Profile((Part(part.instrument, part.rows, part.quantities, (), arrays, {}, part.charts),))
    titles = [ax.get_title("left") for ax in chart_figure(whole, "scales").axes]
    assert titles[:7] == ["c · p=1", "a", "t: model", "total 7.00, n = 9", "l", "l", "c"]


def test_names_are_charts_quantities_and_the_overview():
    one = profile(Panel(lines=(Line("weight"),)))
    assert list(charts_of(one)) == ["scales"]
    assert named_figure(one, "scales").texts[0].get_text() == "Scales: net"
    assert named_figure(one, "weight", where={"a": 1}).texts[0].get_text() == "weight: net"
    assert len(named_figure(one, "overview").axes) == 2
    with pytest.raises(
        ValueError, match=r"name must be one of scales, price, share, .*, got 'scale'\. Did you mean 's"
    ):
        named_figure(one, "scale")
    with pytest.raises(ValueError, match="where goes with a chart or a quantity, not with the overview"):
        named_figure(one, "overview", where={"a": 1})
    with pytest.raises(ValueError, match=r"name must be one of scales, got 'x'\."):
        chart_figure(one, "x")
    with pytest.raises(ValueError, match=r"where of 'scales' must take a=…, got b=1\."):
        chart_figure(one, "scales", where={"b": 1})
    with pytest.raises(ValueError, match=r"must hold what 'scales' draws at a=3, got none of it in net\."):
        chart_figure(one, "scales", where={"a": 3})


def test_every_chart_draws_quantities_and_forms_that_there_are():
    from lisse.instruments import ALL

    for kind in ALL:
        names = {quantity.name for quantity in kind.QUANTITIES}
        for chart in kind.CHARTS:
            assert chart.says, chart.name
            used = {line.quantity for panel in chart.panels for line in panel.lines}
            used |= {panel.base for panel in chart.panels} | {chart.beside}
            assert used - {""} <= names, chart.name
    charts = [chart.name for kind in ALL for chart in kind.CHARTS]
    assert len(set(charts)) == len(charts)


def test_a_part_without_charts_is_completed_by_the_instrument_of_its_name():
    from lisse.instruments import Stability

    bare = [Quantity(quantity.name, quantity.label, quantity.says) for quantity in Stability.QUANTITIES]
    part = up_to_date(Profile((Part("stability", quantities=tuple(bare)),))).parts[0]
    assert part.charts == Stability.CHARTS
    by_name = {quantity.name: quantity for quantity in part.quantities}
    assert by_name["relative_stability"].headline.label == "R_f"
    assert by_name["relative_stability"].neutral == 1.0
    unknown = Profile((Part("weighing", quantities=(WEIGHT,)),))
    assert up_to_date(unknown) == unknown


@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_figures_by_their_former_names_work_with_a_warning():
    part = Part("robustness", [Row("mean_accuracy", 0.5, "estimate", 9, at={"corruption": "fog"})],
                (Quantity("mean_accuracy", "a", "b"),))  # fmt: skip
    with pytest.warns(DeprecationWarning, match=r"lisse\.reporting\.robustness has moved"):
        from lisse.reporting.robustness import corruption_figure
    new = r"corruption_figure is now lisse\.reporting\.chart_figure\(profiles, 'c"
    with pytest.warns(DeprecationWarning, match=new):
        figure = corruption_figure(Profile((part,)))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["fog"]
    with pytest.warns(DeprecationWarning, match=r"lisse\.reporting\.stability has moved"):
        from lisse.reporting.stability import error_figure
    assert error_figure.__module__ == "lisse_experiments.diffeomorphisms.law_figures"
    with pytest.raises(AttributeError):
        former.nothing  # noqa: B018
