"""The atlas in a real browser, with 1,000 rows: what is looked for, sorted and drawn is what the table holds."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lisse.reporting.atlas import AtlasRow, atlas, save_atlas

pytestmark = pytest.mark.browser
COUNT = 1000


@pytest.fixture(scope="module")
def page_file(tmp_path_factory) -> Path:
    """1,000 networks of five families, some without a number, some failed, with names that try to break out."""
    rows = [
        AtlasRow(
            key=f"{i:016x}", name=f"net {i} <b>&\"'</b>", family=f"family <{i % 5}>", data=f"data {i % 3}",
            setting=str(i % 2), version="0.1.0", date="2026-01-01", samples=100, parameters=10 + i,
            error=None if i % 10 == 0 else (i / COUNT, i / COUNT, i / COUNT, 100),
            numbers={} if i % 10 == 0 else {"calmness": (math.sin(i), math.sin(i) - 1, math.sin(i) + 1, 9, "estimate")},
            reason="it <broke>" if i % 10 == 0 else "",
        )
        for i in range(COUNT)
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("atlas")
    return atlas(save_atlas(rows, {"calmness": {"says": "How calm.", "scale": "linear"}}, folder / "a.json"),
                 folder / "atlas.html", title="A thousand networks")  # fmt: skip


def column(page, index: int) -> list[str]:
    return page.evaluate(
        "index => [...document.querySelectorAll('#table tbody tr')].filter(row => !row.hidden)"
        ".map(row => row.cells[index].dataset.sort ?? row.cells[index].textContent)", index,
    )  # fmt: skip


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_a_thousand_rows(page_file, opened, screenshots, size):
    shown = opened(page_file, size)
    page = shown.page
    assert [url for url in shown.requests if not url.startswith(("file:", "data:"))] == []
    assert shown.console == []
    assert page.locator("#table tbody tr").count() == COUNT
    assert page.locator("#table tbody b").count() == 0  # names are text
    assert page.locator("#scatter circle").count() == 900  # of those that have both numbers
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.screenshot(path=screenshots / f"atlas-{size}.png")

    # sorted both ways, what is missing last
    heads = page.locator("#table thead button")
    heads.nth(3).click()
    numbers = column(page, 3)
    assert numbers[900:] == [""] * 100
    assert [float(text) for text in numbers[:900]] == sorted(float(text) for text in numbers[:900])
    heads.nth(3).click()
    assert float(column(page, 3)[0]) == 0.999
    assert column(page, 3)[900:] == [""] * 100

    # looked for by words, by choice, by family
    page.fill("#words", "it <broke>")
    assert page.locator("#count").text_content() == "100 of 1000 rows."
    page.fill("#words", "")
    page.select_option("#family", "family <1>")
    page.select_option("#setting", "2")
    assert set(column(page, 1)) == {"family <1>"}
    assert page.locator("#count").text_content() == "100 of 1000 rows."
    assert page.locator("#scatter circle").count() == 100
    page.select_option("#family", "")
    page.select_option("#setting", "")
    page.locator(".chip").first.click()
    assert page.locator("#count").text_content() == "800 of 1000 rows."
    page.locator(".chip").first.click()

    # any number against any other, and a dot leads to its row
    page.select_option("#across", "parameters")
    page.select_option("#up", "calmness")
    page.check("#log-up")
    assert page.locator("#scatter circle").count() == sum(math.sin(i) > 0 for i in range(COUNT) if i % 10)
    index = page.locator("#scatter circle").last.get_attribute("data-index")
    page.locator("#scatter circle").last.dispatch_event("click")
    assert page.locator("#table tr.lit").get_attribute("data-index") == index
    assert shown.console == []
