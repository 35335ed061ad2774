"""A profile, a figure and a page as a notebook shows them."""

from __future__ import annotations

import math
from html.parser import HTMLParser
from pathlib import Path

import pytest

import lisse
from lisse.profile import Headline, Part, Profile, Quantity, Row

HOSTILE = "<script>alert('&')</script>"
R = Quantity("ratio", "R", f"a ratio {HOSTILE}", better="lower", scale="log", headline=Headline(HOSTILE))


def profile(values: list[float], name: str = HOSTILE, notes: tuple[str, ...] = ()) -> Profile:
    rows = [
        Row("ratio", value, "lower", 10, layer=f"{HOSTILE}{index}", depth=index / 4, low=value, high=2 * value)
        for index, value in enumerate(values)
    ]
    return Profile(
        (Part("toy", rows, (R,), notes),), {"model": {"name": name}, "data": {"name": HOSTILE, "samples": 9}}
    )


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.attributes: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.append(dict(attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_profile_is_a_line_in_a_terminal() -> None:
    assert repr(profile([1.0, 2.0], "net", ("a", "b"))) == f"Profile('net' on {HOSTILE}: toy with 2 rows and 2 notes)"
    assert repr(profile([1.0])["toy"]) == "Part(toy with 1 row)"
    assert repr(Profile(())) == "Profile('model': no parts)"


def test_a_profile_is_a_table_and_curves_in_a_notebook_and_every_word_is_text() -> None:
    shown = Tags(profile([1.0, 10.0, 100.0], notes=(HOSTILE,))._repr_html_())
    assert "script" not in shown.tags
    assert shown.tags.count("svg") == 1
    assert "≥ 100 [100, 200]" in shown.text  # the headline, which stands at the last layer
    assert "1 → 100, most 100" in shown.text
    assert f"{HOSTILE} · {HOSTILE} · 9 samples" in shown.text
    assert "1 note" in shown.text
    points = [(float(item["cx"]), float(item["cy"])) for item in shown.attributes if "cx" in item]
    assert [x for x, _ in points] == [4, 49.5, 95]
    ys = [y for _, y in points]
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2])  # logarithmic: a factor of ten each


def test_what_cannot_be_drawn_leaves_a_gap() -> None:
    shown = Tags(profile([1.0, math.nan, 0.0, 4.0])._repr_html_())
    assert sum("cx" in item for item in shown.attributes) == 2
    assert "1 → 4, most 4" in shown.text
    assert "svg" not in Tags(profile([1.0])._repr_html_()).tags  # one point is no curve
    assert Tags(Profile(())._repr_html_()).tags.count("table") == 0


def test_a_figure_shows_itself() -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    figure = profile([1.0, 2.0], "net").plot("ratio")
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert profile([1.0, 2.0], "net").plot()._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"name must be one of ratio, overview, got 'ratios'\. Did you mean 'ratio'"):
        profile([1.0, 2.0], "net").plot("ratios")


def test_a_page_without_a_path_is_shown_in_a_frame_that_sees_nothing_of_the_notebook(tmp_path: Path) -> None:
    page = lisse.report(profile([1.0, 2.0], "net"))
    shown = Tags(page._repr_html_())
    assert shown.tags == ["iframe"]
    assert shown.attributes[0]["srcdoc"] == page.text
    assert shown.attributes[0]["sandbox"] == "allow-scripts"
    assert page._repr_html_().endswith("</iframe>")
    assert len(repr(page)) < 80
    assert page.save(tmp_path / "page.html").read_text("utf-8") == page.text
    assert lisse.report(profile([1.0, 2.0], "net"), tmp_path / "other.html") == tmp_path / "other.html"
