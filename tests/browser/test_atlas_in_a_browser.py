"""The atlas in a real browser, with 1,000 rows: what is looked for, sorted and drawn is what the table holds."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lisse.profile import Part, Profile, Quantity, Row
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
    assert page.locator("#setting option").nth(2).text_content() == "2: data 0, 500 rows"
    page.select_option("#setting", index=2)
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


RUN = "window.ran=1"
EVIL = f'</script><script>{RUN}</script><img src=x onerror="{RUN}"><a href="javascript:{RUN}">x</a>&amp;"\''
HUGE = "a_name_without_an_end_" * 3000
#: Of which a slip in the steps of an axis makes a loop without an end, or circles nowhere; so does a single 4e15.
NUMBERS = (1e308, 5e-324, -1e17, 0.0, -1e299)
LONE = "file-\udc80\ud800.pt  of two  spaces\n"


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_what_strangers_wrote_is_shown_and_not_run(tmp_path, opened, screenshots, size):
    texts = [EVIL, "javascript:window.ran=1", HUGE, LONE, "\x00\x01\u202e\u2028"]
    rows = [
        AtlasRow(
            key=f"{i:x}", name=text, family=text, data=text, setting=text, version=text, date=text, spec=text,
            error=(0.1 * i, 0.0, 1.0, 10), reason=text if i % 2 else "", parameters=4 * 10**15,
            numbers={label: (NUMBERS[i - k], None, 1.0, 9, text) for k, label in enumerate(texts)},
        )
        for i, text in enumerate(texts)
    ]  # fmt: skip
    words = {text: {"says": text, "better": text, "scale": text, "outcome": text} for text in texts}
    table = save_atlas(rows, words, tmp_path / "a.json")
    (tmp_path / f"{EVIL.replace('/', '')}.profile").write_text("none")
    part = Part("silence", (Row("calm", 1.0, "exact", 1),), (Quantity("calm", EVIL, EVIL),))
    Profile((part,), {"model": {"name": texts[1]}, "sweep": {"family": texts[1]}}).save(tmp_path / "a.profile")
    path = atlas([table, *tmp_path.glob("*.profile")], tmp_path / "javascript:a.html", title=EVIL + HUGE)
    shown = opened(path, size)
    page = shown.page
    page.locator("details.warn summary").click()
    assert page.locator("details.warn p").text_content().count("window.ran=1") == 3
    assert page.locator("#table tbody tr").count() == len(texts) + 1
    assert page.locator("#table tbody th").first.text_content() == EVIL
    assert (
        page.locator("#table tbody td:nth-child(2)").nth(4).text_content() == "file-\\udc80\\ud800.pt  of two  spaces\n"
    )
    for index in range(len(texts)):  # whatever it is called, it is found, drawn and sorted
        for choice in ("#family", "#data-set", "#setting"):
            page.locator(choice).select_option(index=index + 1)
            assert page.locator("#table tbody tr:visible").count() == (2 if (choice, index) == ("#family", 1) else 1)
            page.locator(choice).select_option(index=0)
        page.locator("#across").select_option(index=index + 1)
        assert page.locator("#scatter circle").count() == len(texts) - 1  # 1e308 is on no paper
        page.locator("#table thead button").nth(index).dispatch_event("click")
    page.locator("#up").select_option(index=len(texts) + 1)
    assert page.locator("#table a").evaluate_all("links => links.map(link => link.protocol)") == ["file:"]
    assert page.locator("img, :not(th) > a, #table b, body script:not(#data) ~ script").count() == 0
    assert page.evaluate("window.ran") is None
    assert "\u202e" not in page.content()  # it turns our words round, too
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate("document.documentElement.scrollHeight") < 20_000  # no name hides the others
    assert [url for url in shown.requests if not url.startswith(("file:", "data:"))] == []
    assert shown.console == []
    page.screenshot(path=screenshots / f"atlas-hostile-{size}.png")
