"""The page as text: complete, self-contained, escaped, and written whole or not at all. Browsers: tests/browser."""

from __future__ import annotations

import errno
import html
import json
import math
import re
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from page_samples import LAYERS, STABLE, profile, smooth, stability, topology, torn

import lisse
from lisse.profile import Part, Quantity, Row
from lisse.reporting.page import page
from lisse.reporting.page.axis import Extent, extent_of, short_number, tick_label
from lisse.reporting.page.entries import entries_of
from lisse.reporting.page.formulas import formula_html
from lisse.reporting.page.pictures import MOST_BARS, diagrams, image_strips

ROOT = Path(__file__).resolve().parents[2]


class Tree(HTMLParser):
    """Elements with their attributes, and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = tag

    def handle_data(self, data):
        if self.inside not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def data_of(text: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    return json.loads(found[1])


def figures(text: str) -> dict[str, list[int]]:
    """Figure to the rows of its marks."""
    found = {}
    for each in re.findall(r'<figure id="([\w-]+)"(.*?)</figure>', text, re.S):
        found[each[0]] = [int(row) for row in re.findall(r'data-row="(\d+)"', each[1])]
    return found


# -- what is on it ----------------------------------------------------------------------------------------------------


def test_a_report_is_one_file_with_its_data(tmp_path):
    path = lisse.report([smooth(), torn()], tmp_path / "new folder" / "report.html")
    assert path == tmp_path / "new folder" / "report.html"
    text = path.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert len(text) < 200_000
    data = data_of(text)
    assert data["models"] == ["smooth", "torn"]
    rows = [row for one in (smooth(), torn()) for row in one.rows]
    column = {name: place for place, name in enumerate(data["columns"])}
    assert [row[column["value"]] for row in data["rows"]] == [row.value for row in rows]
    assert [row[column["low"]] for row in data["rows"]] == [row.low for row in rows]
    assert [row[column["at"]] for row in data["rows"]] == [dict(row.at) for row in rows]


def test_every_drawn_row_has_one_mark_in_its_figure():
    text = page([smooth(), torn()])
    entries = entries_of([smooth(), torn()])
    for name, quantity in (
        ("topology-change-rate", "change_rate"),
        ("stability-relative-stability", "relative_stability"),
    ):
        wanted = [entry.index for entry in entries.rows if entry.row.quantity == quantity]
        assert sorted(figures(text)[name]) == wanted


def test_values_without_a_place_on_the_axis_are_counted_and_stay_in_the_data():
    part = stability((1.0, 0.8, 0.5, 0.2))
    rows = (
        *part.rows[:2],
        Row("relative_stability", math.nan, "estimate", 5, "second", 0.6, at=part.rows[0].at),
        part.rows[3],
    )
    text = page(profile("a", Part("stability", rows, (STABLE,))))
    assert len(figures(text)["stability-relative-stability"]) == 3
    assert 'data-rows="3" data-left-out="1"' in text
    assert "1 value outside this axis" in text
    assert [row[6] for row in data_of(text)["rows"]].count("nan") == 1 or "NaN" in json.dumps(data_of(text)["rows"])


def test_nothing_is_loaded_from_outside():
    tree = Tree(page([smooth(), torn()]))
    for _, attributes in tree.elements:
        for key in ("src", "href", "action", "data", "srcset"):
            value = attributes.get(key)
            assert value is None or value.startswith(("#", "data:")), value
    policy = next(a["content"] for tag, a in tree.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'{{ 7*7 }}"


def test_names_are_shown_and_not_run():
    at = {"p": 1, "dim": HOSTILE, "cloud": 5}
    quantity = Quantity("q" + HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, better="lower")
    rows = [Row(quantity.name, 1.0 + k, "estimate", 5, HOSTILE + str(k), k / 2, 0.5, 9.0, at) for k in range(3)]
    part = Part("strange" + HOSTILE, rows, (quantity,), (HOSTILE, "Failed: " + HOSTILE))
    text = page([profile(HOSTILE, part, data=HOSTILE), profile("b", part, data=HOSTILE)], title=HOSTILE)
    tree = Tree(text)
    assert [a for tag, a in tree.elements if tag == "script"] == [{"type": "application/json", "id": "data"}, {}]
    assert not any(key.startswith("on") for _, attributes in tree.elements for key in attributes)
    assert all(a["src"].startswith("data:") for tag, a in tree.elements if tag == "img")
    assert "alert(1)" in tree.text
    assert "{{ 7*7 }}" in tree.text
    assert "49" not in html.unescape(tree.text)
    assert data_of(text)["models"][0] == HOSTILE


def test_an_instrument_the_page_has_never_heard_of_is_drawn():
    quantity = Quantity(
        "sparkle", "sparkle", "How much a layer sparkles.", r"\frac1n\sum_i s_i", better="higher", unit="lm"
    )
    rows = [Row("sparkle", value, "lower", 7, layer, place / 3, at={"colour": colour})
            for colour in ("red", "blue")
            for place, (layer, value) in enumerate(zip(LAYERS, range(1, 5), strict=True))]  # fmt: skip
    text = page(profile("a", Part("glitter", rows, (quantity,))))
    assert len(figures(text)["glitter-sparkle"]) == 8
    tree = Tree(text)
    assert {a.get("data-choice") for tag, a in tree.elements if tag == "select"} == {"colour"}
    assert "How much a layer sparkles." in tree.text
    assert "▲ lower bound: the true value is at least this" in tree.text
    assert "sparkle [lm] · higher is better" in tree.text


def test_rows_over_a_coordinate_and_side_by_side_without_layers():
    accuracy = Quantity("accuracy_under", "accuracy", "How many stay right.", better="higher")
    share = Quantity("share", "share", "One per word.")
    rows = [Row("accuracy_under", 1 - 0.1 * s, "estimate", 9, low=0.0, high=1.0, at={"corruption": c, "severity": s})
            for c in ("fog", "snow") for s in (1, 3, 5)]  # fmt: skip
    rows += [Row("share", value, "exact", 9, at={"word": word}) for word, value in (("a", 0.1), ("b", 0.4))]
    text = page(profile("m", Part("weather", rows, (accuracy, share))))
    assert len(figures(text)["weather-accuracy-under"]) == 6
    assert len(figures(text)["weather-share"]) == 2
    assert text.count('<div class="panel"') == 3  # fog, snow, words


def test_a_measured_stretch_stands_between_its_bounds():
    low = Quantity("stretch", "stretch", "Seen.", scale="log", better="lower")
    high = Quantity("log_bound", "bound", "Proved.", r"\log_{10} b", better="lower")
    rows = [Row("stretch", 100.0, "lower", 9, "first", 0.5), Row("log_bound", 30.0, "upper", 9, "first", 0.5)]
    text = page(profile("m", Part("contraction", rows, (low, high))))
    assert figures(text)["contraction-against-bounds"] == [1, 0]


def test_a_bound_that_is_left_out_breaks_its_line_and_words_keep_off_each_other():
    """Both lines end in one point; the upper one has no value at the second layer."""
    low = Quantity("log_block_stretch", "stretch", "Seen.", better="lower")
    high = Quantity("log_weights_bound", "bound", "Proved.", r"\log_{10} L", better="lower")
    spots = ("input", 0.0), ("first", 0.4), ("second", 0.7), ("output", 1.0)
    rows = [
        Row(q.name, value, kind, n, layer, depth)
        for q, kind, n, values in ((low, "lower", 4, (0.1, 0.2, 0.2, 0.5)), (high, "upper", 0, (1.0, None, 1.2, 0.5)))
        for (layer, depth), value in zip(spots, values, strict=True)
        if value is not None
    ]
    text = page(profile("m", Part("lipschitz", rows, (high, low))))
    (figure,) = re.findall(r'<figure id="lipschitz-lipschitz".*?</figure>', text, re.S)
    lines = re.findall(r'<path d="(M[^"]*)" class="line m0"', figure)
    assert sorted(line.count("M") for line in lines) == [1, 2]
    words = {
        word: (float(x), float(y))
        for x, y, word in re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="label m0"[^>]*>([^<]*)</text>', figure)
    }
    (x, y), (u, v) = words["proved, of the weights"], words["measured"]
    assert y < v  # the upper line's words are the upper ones
    assert v - y > 12 or abs(x - u) > 6.4 * len("proved, of the weights")
    tree = Tree(text)
    assert "at output" in tree.text  # no number of the whole network
    assert "these numbers are proved of the weights alone, and rest on no sample" in tree.text


def test_what_was_not_measured_is_said_with_the_reason():
    silent = Part("contraction", notes=("Not measured: it needs attention.",))
    failed = Part("robustness", notes=("Failed: RuntimeError: the pump is broken",))
    text = page([profile("a", topology((1.0, 2.0, 1.0)), silent, failed), profile("b", topology((1.0, 2.0, 1.0)))])
    tree = Tree(text)
    assert "a. Not measured: it needs attention." in tree.text
    assert "a. Failed: RuntimeError: the pump is broken" in tree.text
    assert "b. Not measured: this profile was made without the instrument." in tree.text
    assert 'class="note failed"' in text
    assert "lost never ran." in tree.text  # a layer that could not be read


def test_random_weights_are_references_and_no_models():
    before = profile(
        "start",
        topology((0.5, 1.0, 0.7)),
        fingerprint="x",
        reference={"kind": "initialisation", "model": "weights of torn"},
    )
    text = page([torn(), before])
    assert data_of(text)["models"] == ["torn"]
    assert sum(row[1] for row in data_of(text)["rows"]) == len(before.rows)
    assert len(figures(text)["topology-change-rate"]) == 6
    assert 'class="mark m0 initial"' in text
    alone = page(before)  # a reference of nothing that is here is a model
    assert data_of(alone)["models"] == ["start"]


def test_references_far_away_do_not_choose_the_axis_and_are_arrows():
    start = profile("start", topology((0.6, 126.0, 0.7)), fingerprint="other",
                    reference={"kind": "initialisation", "model": "weights of smooth"})  # fmt: skip
    text = page([smooth(), start])
    (figure,) = re.findall(r'<figure id="topology-change-rate".*?</figure>', text, re.S)
    assert re.findall(r'<text[^>]*class="beyond m0 initial"[^>]*>([^<]*)</text>', figure) == ["↑ 126"]
    ticks = [float(tick) for tick in re.findall(r'class="tick" text-anchor="end">([\d.]+)</text>', figure)]
    assert 1 <= max(ticks) < 3
    assert "1 value outside this axis" in figure


def test_a_page_of_one_model_says_how_sure_once_and_speaks_of_no_second():
    words = Tree(page(smooth())).text
    assert words.count("How sure") == 1
    assert "two models" not in words
    assert "smooth answers smooth deformations of its input less strongly" in words


def test_numbers_of_weights_alone_have_no_n_of_zero():
    quantity = Quantity("norm", "norm", "A norm of weights.", "n")
    rows = [Row("norm", 1.0, "exact", 0, "first", 0.5), Row("norm", 1.0, "estimate", 9, "output", 1.0)]
    assert "exact and estimate · n = 9 ·" in page(profile("a", Part("weighing", rows, (quantity,))))
    assert "of the weights alone" in page(profile("a", Part("weighing", rows[:1], (quantity,))))


def test_a_file_of_format_version_1_has_its_headlines_and_its_leads(tmp_path):
    path = smooth().save(tmp_path / "now.profile")
    with zipfile.ZipFile(path) as packed, zipfile.ZipFile(tmp_path / "old.profile", "w") as old:
        for name in packed.namelist():
            content = packed.read(name)
            if name == "profile.json":
                document = json.loads(content)
                document["version"] = 1
                for part in document["parts"]:
                    del part["charts"]
                content = json.dumps(document).encode()
            old.writestr(name, content)
    text = page(lisse.Profile.load(tmp_path / "old.profile"))
    assert text == page(smooth())
    assert [label for label in ("TopoLip", "R_f") if f">{label}</a>" in text] == ["TopoLip", "R_f"]
    assert "Samples as they are, and deformed by the fields" in text


def test_the_title_is_the_models_or_what_is_asked_for():
    assert "<title>smooth and torn · lisse report</title>" in page([smooth(), torn()])
    assert "<title>Mine · lisse report</title>" in page([smooth()], title="Mine")


def test_figures_say_estimator_n_seed_and_interval():
    tree = Tree(page([smooth(), torn()]))
    assert "estimate · n = 150 · seed 0 · 95% interval · p 1 · dim all · cloud 50" in tree.text
    without = Tree(page(profile("a", topology((1.0, 2.0, 1.0), half=None))))
    assert "exact · n = 150 · seed 0 · no interval" in without.text


def test_pictures_are_in_it():
    text = page([smooth(), torn()])
    assert len(re.findall(r'<img src="data:image/png;base64,', text)) == 6  # the same strip of two models once
    assert [len(each["layers"]) for each in data_of(text)["diagrams"]] == [4, 4]
    assert "Persistence diagram of smooth at output" in text


# -- pieces -----------------------------------------------------------------------------------------------------------


def test_only_the_longest_bars_are_kept():
    bars = np.stack([np.zeros(400), np.arange(1.0, 401.0)], 1)
    part = Part("topology", arrays={"diagram/a/b/H0": bars})
    (found,) = diagrams(entries_of(profile("m", part)))
    assert found["layers"][0]["layer"] == "a/b"
    kept = found["layers"][0]["bars"]["H0"]
    assert len(kept) == MOST_BARS
    assert kept[0] == [0.0, 400 - MOST_BARS + 1]
    assert found["layers"][0]["total"] == {"H0": 400}


@pytest.mark.parametrize("shape", [(4, 5, 5), (4, 3, 5, 5), (2, 4, 1, 5, 5), (2, 4, 5, 5, 3)])
def test_strips_of_several_shapes_become_images(shape):
    from base64 import b64decode
    from io import BytesIO

    from PIL import Image

    ((title, rows),) = image_strips(
        Part("x", arrays={"filmstrip/t": np.full(shape, 0.5, dtype=np.float32), "other": np.zeros(3)})
    )
    assert title == "t"
    assert len(rows[0]) == 4
    image = Image.open(BytesIO(b64decode(rows[0][0].partition(",")[2])))
    assert image.size == (5, 5)
    assert np.asarray(image).ravel()[0] == 128


def test_every_formula_of_every_instrument_is_understood():
    from lisse.instruments import ALL

    unread = [q.formula for kind in ALL for q in kind.QUANTITIES if "<code>" in formula_html(q.formula)]
    assert unread == []


@pytest.mark.parametrize(
    ("latex", "words"),
    [
        (r"\frac1n", "<mfrac><mrow><mn>1</mn></mrow><mrow><mi>n</mi></mrow></mfrac>"),
        (r"x_i^2", "<msubsup><mrow><mi>x</mi></mrow><mrow><mi>i</mi></mrow><mrow><mn>2</mn></mrow></msubsup>"),
        (r"\max_l r", "<munder>"),
        (r"\|x\|", "<mo>‖</mo><mi>x</mi><mo>‖</mo>"),
        (r"a < b", "<mo>&lt;</mo>"),
        (r"\unheard{x}", r"<code>\unheard{x}</code>"),
        (r"\frac{1", r"<code>\frac{1</code>"),
        ("", ""),
    ],
)
def test_formulas_become_mathml(latex, words):
    assert words in formula_html(latex)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.23125, "0.231"), (12345.0, "12,345"), (0.0, "0"), (1e-7, "1·10⁻⁷"), (-2.5e9, "−2.5·10⁹"), (math.inf, "∞"),
     (math.nan, "no value"),
     (0.99999, "1"), (100.0, "100"), (None, ""), (5e-324, "4.94·10⁻³²⁴"), (-1.7976931348623157e308, "−1.8·10³⁰⁸")],
)  # fmt: skip
def test_numbers_are_short(value, text):
    assert short_number(value) == text


def test_axes_hold_their_values_and_have_round_ticks():
    axis = extent_of([0.2, 3.0], log=False, zero=True)
    assert axis.low == 0.0
    assert axis.share(0.0) == 0.0
    assert [value for value, _ in axis.ticks()] == [0.0, 1.0, 2.0, 3.0] or len(axis.ticks()) >= 4
    log = extent_of([1e-3, 1e4, -1.0, math.nan], log=True)
    assert 0 < log.share(1e-3) < log.share(1e4) < 1
    assert [label for _, label in Extent(1.0, 1000.0, True).ticks()] == ["1", "10", "100", "1,000"]
    assert tick_label(1e-5) == "10⁻⁵"
    assert extent_of([], log=True).log
    assert extent_of([2.0, 2.0], log=False).high > 2.0


def test_the_papers_are_those_of_the_bibliography():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from papers import PAPERS, papers
    finally:
        sys.path.pop(0)
    wanted = papers((ROOT / "docs" / "references.bib").read_text("utf-8"))
    kept = json.loads(PAPERS.read_text("utf-8"))
    assert kept == {key: wanted.get(key) for key in kept}, "run python tools/papers.py"
    from lisse.instruments import ALL

    cited = {
        key for kind in ALL for q in kind.QUANTITIES for key in re.findall(r"\[([a-z]+\d{4}[a-z]?)\]", q.reference)
    }
    assert cited <= kept.keys(), "run python tools/papers.py"


# -- bad input --------------------------------------------------------------------------------------------------------


def test_what_is_no_profile_is_refused(tmp_path):
    with pytest.raises(TypeError, match="report: profiles must be one Profile or several"):
        lisse.report(["a.profile"], tmp_path / "r.html")
    with pytest.raises(TypeError, match="report: profiles must be"):
        lisse.report([], tmp_path / "r.html")


def test_a_profile_without_rows_still_gives_a_page():
    tree = Tree(page(profile("empty", Part("topology", notes=("Failed: it broke",)))))
    assert "empty. Failed: it broke" in tree.text


def test_a_page_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(sys.modules[page.__module__], "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="report: profiles must fit on a page"):
        page(smooth())


def test_a_full_disk_leaves_the_old_page(tmp_path, monkeypatch):
    path = lisse.report(smooth(), tmp_path / "r.html")
    before = path.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        lisse.report(torn(), path)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["r.html"]


def test_an_interrupted_write_leaves_the_old_page(tmp_path, monkeypatch):
    path = lisse.report(smooth(), tmp_path / "r.html")
    before = path.read_bytes()

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        lisse.report(torn(), path)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["r.html"]


def test_the_page_needs_no_matplotlib(tmp_path):
    smooth().save(tmp_path / "a.profile")
    code = (
        "import sys; sys.modules['matplotlib'] = None\nimport lisse\n"
        f"lisse.report(lisse.Profile.load({str(tmp_path / 'a.profile')!r}), {str(tmp_path / 'r.html')!r})\n"
        "try:\n    lisse.reporting.depth_figure\nexcept ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (tmp_path / "r.html").exists()
    assert 'pip install "lisse[report]"' in done.stdout
