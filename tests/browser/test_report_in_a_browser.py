"""The report in a real browser: what is drawn is what was measured, and everything that can be pressed works."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reporting"))
from page_samples import RATE, profile, smooth, stability, topology, torn

import lisse
from lisse import Profile
from lisse.profile import Part, Quantity, Row

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's folder, trained for one epoch: the page is the same, the networks are worse."""
    from click.testing import CliRunner

    from lisse.cli import cli

    folder = tmp_path_factory.mktemp("demo")
    result = CliRunner().invoke(cli, ["demo", "--out", str(folder), "--epochs", "1"])
    assert result.exit_code == 0, result.output
    assert "Failed: " not in (folder / "report.html").read_text("utf-8")
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lisse.report([smooth(), torn()], tmp_path_factory.mktemp("page") / "r.html")


def settled(opened) -> None:
    """Nothing was asked for but the page itself, and nothing was complained about."""
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in opened.requests if url.startswith("file:")]) == 1
    assert opened.console == []


@pytest.mark.parametrize("size", ["desktop", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_demos_page(demo, opened, screenshots, size, dark):
    shown = opened(demo / "report.html", size, dark=dark)
    page = shown.page
    assert (demo / "report.html").stat().st_size < 5_000_000
    data = json.loads(page.locator("#data").text_content())
    names = {name: place for place, name in enumerate(data["columns"])}
    # every row of the two profiles is on the page, in order, with the same bits
    wanted = [row for name in ("plain", "deformed") for row in Profile.load(demo / f"{name}.profile").rows]
    mine = [row for row in data["rows"] if not row[names["initial"]]]
    assert [(row[names["quantity"]], row[names["layer"]]) for row in mine] == [
        (row.quantity, row.layer) for row in wanted
    ]
    assert [row[names["value"]] for row in mine if isinstance(row[names["value"]], float)] == [
        row.value for row in wanted if row.value == row.value and abs(row.value) != float("inf")
    ]
    # marks per figure are the rows behind it
    figures = page.locator("figure[data-rows]")
    assert figures.count() > 10
    counted = figures.evaluate_all(
        "all => all.map(f => [f.id, Number(f.dataset.rows), f.querySelectorAll('.mark').length,"
        " new Set([...f.querySelectorAll('.mark')].map(m => m.dataset.row)).size])"
    )
    for name, rows, marks, different in counted:
        assert rows == marks == different, name
    behind = {}
    for row in data["rows"]:
        key = (row[names["instrument"]], row[names["quantity"]])
        value = row[names["value"]]
        behind.setdefault(key, []).append(value)
    for instrument, quantity in (("topology", "change_rate"), ("stability", "relative_stability")):
        figure = page.locator(f"#{instrument}-{quantity.replace('_', '-')}")
        left = int(figure.get_attribute("data-left-out"))
        assert figure.locator(".mark").count() + left == len(behind[instrument, quantity])
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    page.screenshot(path=screenshots / f"demo-{size}-{'dark' if dark else 'light'}.png", full_page=True)
    settled(shown)


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_hovering_shows_the_layer_and_the_value(small, opened, size):
    shown = opened(small, size)
    page = shown.page
    rows = [row for one in (smooth(), torn()) for row in one.rows]
    figure = page.locator("#stability-relative-stability")
    for place in range(figure.locator(".panel.on .mark").count()):
        mark = figure.locator(".panel.on .mark").nth(place)
        row = rows[int(mark.get_attribute("data-row"))]
        mark.dispatch_event("pointermove", {"bubbles": True})
        tip = page.locator("#tip")
        assert tip.is_visible()
        assert row.layer in tip.text_content()
        assert float(tip.locator("[data-value]").get_attribute("data-value")) == row.value
        assert f"n = {row.n}" in tip.text_content()
    # with a real pointer, at the mark that lies alone
    mark = figure.locator(".panel.on .mark.m0").last
    mark.scroll_into_view_if_needed()
    mark.hover()
    assert float(page.locator("#tip [data-value]").get_attribute("data-value")) == 0.2
    settled(shown)


def frames(page) -> None:
    """Two frames: what was scrolled has been announced."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_on_a_phone_every_number_and_what_it_says_are_in_view(small, opened):
    boxes = opened(small, "phone").page.evaluate(
        "[...document.querySelectorAll('.headline tbody td')].map(cell => cell.getBoundingClientRect())"
        ".map(box => [box.left, box.right, box.height])"
    )
    assert boxes
    assert all(left >= 0 and right <= 390 and height > 0 for left, right, height in boxes)


def test_arrow_keys_walk_along_the_marks(small, opened):
    page = opened(small, "phone").page
    svg = page.locator("#stability-relative-stability svg")
    svg.focus()
    tip = page.locator("#tip")
    for layer in ("input", "first", "second"):
        page.keyboard.press("ArrowRight")
        assert tip.locator("b").first.text_content() == layer
        # As a focus that scrolls, or a person's other hand: the walk keeps its place, and the words stay at their mark.
        away = tip.bounding_box()["y"] - svg.locator(".mark.at").bounding_box()["y"]
        before = page.evaluate("scrollY")
        page.evaluate("scrollBy({top: -20, behavior: 'instant'})")
        frames(page)
        assert page.evaluate("scrollY") == before - 20
        assert tip.is_visible()
        assert tip.bounding_box()["y"] - svg.locator(".mark.at").bounding_box()["y"] == pytest.approx(away, abs=1)
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_scrolling_takes_the_words_from_the_pointer(small, opened):
    page = opened(small, "phone").page
    mark = page.locator("#stability-relative-stability .panel.on .mark").first
    mark.scroll_into_view_if_needed()
    frames(page)
    mark.dispatch_event("pointermove", {"bubbles": True})
    assert page.locator("#tip").is_visible()
    page.evaluate("scrollBy({top: -20, behavior: 'instant'})")
    frames(page)
    assert page.locator("#tip").is_hidden()


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_a_model_can_be_hidden_and_shown(small, opened, size):
    shown = opened(small, size)
    page = shown.page
    button = page.locator("button[data-model='1']")
    marks = page.locator("#topology-change-rate .mark.m1")
    assert marks.count() == 3
    assert marks.first.is_visible()
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert not marks.first.is_visible()
    assert page.locator("#topology-change-rate .mark.m0").first.is_visible()
    page.locator("#topology-change-rate details.table summary").click()
    page.locator("#topology-change-rate tbody tr").first.wait_for()
    assert page.locator("#topology-change-rate tbody tr").count() == 3
    button.click()
    assert marks.first.is_visible()
    assert page.locator("#topology-change-rate tbody tr").count() == 6
    settled(shown)


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_several_networks_are_one_line_in_a_band(tmp_path, opened, screenshots, size):
    seeds = [profile("seed", topology((1.0, 2.0 + seed, 3.0)), fingerprint=f"seed {seed}") for seed in range(3)]
    shown = opened(lisse.report([lisse.reporting.joined(seeds, "wide"), torn()], tmp_path / "r.html"), size)
    page = shown.page
    figure = page.locator("#topology-change-rate")
    assert figure.locator(".line.m0").count() == 1
    # The outlines reach from 0.9 at the first layer to 4.1 at the second, and from 0.4 to 4.1.
    heights = [figure.locator(f".band.m{model}").bounding_box()["height"] for model in (0, 1)]
    assert heights[0] == pytest.approx((4.1 - 0.9) / (4.1 - 0.4) * heights[1], rel=0.02)
    figure.locator(".mark.m0").nth(1).dispatch_event("pointermove", {"bubbles": True})
    assert "3 [1.9, 4.1]" in page.locator("#tip").text_content()
    assert "wide (3 networks)" in page.locator("#tip").text_content()
    page.screenshot(path=screenshots / f"band-{size}.png", full_page=True)
    settled(shown)


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_the_slider_walks_through_the_layers(small, opened, size):
    shown = opened(small, size)
    page = shown.page
    slider = page.locator("#depth-slider")
    bars = {
        layer["layer"]: layer["bars"]
        for layer in json.loads(page.locator("#data").text_content())["diagrams"][0]["layers"]
    }
    assert list(bars) == ["input", "first", "second", "output"]
    view = page.locator("[data-view='0']")
    for place, layer in enumerate(bars):
        slider.evaluate(
            "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')); }", str(place)
        )
        assert view.locator(".layer").text_content() == layer
        for dim in ("H0", "H1"):
            assert view.locator(f"svg .bar.{dim}").count() == len(bars[layer][dim]) == 3 + place
    slider.focus()
    page.keyboard.press("Home")
    assert view.locator(".layer").text_content() == "input"
    settled(shown)


def test_a_choice_of_coordinates_changes_the_panels(tmp_path, opened):
    quantity = Quantity("q", "q", "Says.")
    rows = [Row("q", float(p), "exact", 3, f"layer{k}", k / 2, at={"p": p}) for p in (1, 2) for k in range(3)]
    path = lisse.report(profile("m", Part("thing", rows, (quantity,))), tmp_path / "r.html")
    page = opened(path).page
    panels = page.locator("#thing-q .panel")
    assert [panels.nth(k).is_visible() for k in range(2)] == [True, False]
    page.locator("select[data-choice='p']").select_option("2")
    assert [panels.nth(k).is_visible() for k in range(2)] == [False, True]
    page.locator("#thing-q details.table summary").click()
    page.locator("#thing-q tbody tr").first.wait_for()
    values = page.locator("#thing-q tbody td:nth-child(4)").all_text_contents()
    assert values == ["2", "2", "2"]


def test_the_data_can_be_saved(small, opened):
    page = opened(small).page
    with page.expect_download() as saved:
        page.locator("button[data-download='csv']").click()
    lines = list(csv.DictReader(io.StringIO(Path(saved.value.path()).read_text("utf-8"))))
    rows = [row for one in (smooth(), torn()) for row in one.rows]
    assert [float(line["value"]) for line in lines] == [row.value for row in rows]
    assert lines[0]["model"] == "smooth"
    with page.expect_download() as saved:
        page.locator("button[data-download='json']").click()
    assert json.loads(Path(saved.value.path()).read_text("utf-8"))["models"] == ["smooth", "torn"]


def test_strange_names_are_shown_and_not_run(tmp_path, opened, screenshots):
    strange = '<img src=x onerror="window.ran=1"></script><script>window.ran=1</script>&amp;"\''
    at = {"p": 1, "dim": strange, "cloud": 5}
    rate = Quantity("change_rate", strange, strange, better="lower")
    rows = [Row("change_rate", 1.0 + k, "estimate", 5, f"{strange}{k}", k / 2, 0.5 + k, 1.5 + k, at) for k in range(3)]
    part = Part(
        "topology",
        rows,
        (rate,),
        (strange,),
        {f"diagram/{strange}{k}/H0": topology((1, 2, 3)).arrays["diagram/first/H0"] for k in range(3)},
    )
    path = lisse.report([profile(strange, part), profile(strange, part)], tmp_path / "r.html")
    shown = opened(path)
    page = shown.page
    assert page.locator("button[data-model='0']").text_content().strip() == strange
    page.locator("#topology-change-rate .mark").first.dispatch_event("pointermove", {"bubbles": True})
    assert strange in page.locator("#tip").text_content()
    page.locator("#topology-change-rate details.table summary").click()
    page.locator("#topology-change-rate tbody tr").first.wait_for()
    assert strange in page.locator("#topology-change-rate tbody").text_content()
    assert page.evaluate("window.ran") is None
    assert page.locator("img").count() == 0
    page.screenshot(path=screenshots / "strange-names.png", full_page=True)
    settled(shown)


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_long_names_many_layers_and_no_values_keep_the_page_in_its_width(tmp_path, opened, screenshots, size):
    def deep(name, layers):
        rows = []
        for k in range(1, layers + 1):
            value = math.nan if k % 7 == 0 else 1.0 + math.sin(k / 9) ** 2
            ends = () if math.isnan(value) else (value - 0.1, value + 0.1)
            rows.append(Row("change_rate", value, "estimate", 50, f"{'block_of_blocks.' * 12}{k}", k / layers, *ends))
        return profile(name, Part("topology", rows, (RATE,)))

    path = lisse.report([deep("a_name_without_an_end_" * 8, 300), deep("b", 40), smooth()], tmp_path / "r.html")
    shown = opened(path, size)
    page = shown.page
    assert page.evaluate("document.documentElement.scrollWidth") <= page.evaluate("window.innerWidth")
    for place, n in enumerate((300, 40)):
        marks = page.locator(f"#topology-change-rate .mark.m{place}")
        assert marks.count() == sum(k % 7 != 0 for k in range(1, n + 1))
    page.locator("#topology-change-rate details.table summary").click()
    page.locator("#topology-change-rate tbody tr").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= page.evaluate("window.innerWidth")
    page.screenshot(path=screenshots / f"long-names-{size}.png", full_page=True)
    settled(shown)


def test_without_script_the_figures_are_there(small, opened):
    page = opened(small, script=False).page
    assert page.locator("#stability-relative-stability .mark").first.is_visible()
    assert page.locator("#topology-change-rate .mark").first.is_visible()


def test_what_failed_is_seen(tmp_path, opened):
    failed = Part("robustness", notes=("Failed: RuntimeError: the pump is broken",))
    path = lisse.report(profile("m", stability((1.0, 0.8, 0.5, 0.2)), failed), tmp_path / "r.html")
    shown = opened(path)
    assert shown.page.locator(".note.failed").is_visible()
    assert "the pump is broken" in shown.page.locator(".note.failed").text_content()
    settled(shown)


def test_it_prints(small, opened, screenshots):
    page = opened(small).page
    page.emulate_media(media="print")
    assert page.locator("#topology-change-rate .mark").first.is_visible()
    assert page.locator("button[data-download='csv']").is_hidden()
    page.pdf(path=screenshots / "printed.pdf")
