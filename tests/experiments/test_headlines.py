import json
from pathlib import Path

import pytest

from lisse_experiments import PAPERS, form, headlines

ROOT = Path(headlines.HERE)
PAGE = Path(__file__).parents[2] / "docs" / "papers.md"


def test_the_page_is_what_the_committed_numbers_make():
    assert PAGE.read_text(encoding="utf-8") == headlines.page(headlines.chapters()), (
        "python -m lisse_experiments.headlines docs/papers.md"
    )


def test_every_paper_has_a_chapter_and_every_scale_its_seeds():
    papers = headlines.chapters()
    assert {chapter.paper for chapter in papers} == set(PAPERS) - {"recipes", "early_warning"}  # claims of no paper
    for chapter in papers:
        assert set(chapter.seeds) == set(form.expected(ROOT / chapter.paper))


def test_a_headline_without_numbers_says_why():
    for chapter in headlines.chapters():
        for headline in chapter.headlines:
            assert headline.claims or headline.left, headline.says


@pytest.mark.parametrize(
    ("answers", "word"),
    [
        ([True, True], "holds"),
        ([False], "fails"),
        ([None, None], "undecided"),
        ([True, None], "in part"),
        ([True, False], "in part"),
        ([False, None], "fails in part, rest undecided"),
    ],
)
def test_the_verdicts_of_several_claims_make_one(answers, word):
    assert headlines.verdict(answers) == word


def test_a_verdict_comes_from_the_largest_scale_that_has_all_of_it(tmp_path):
    folder = tmp_path / "topolip"
    folder.mkdir()
    claim = {"says": "a is larger", "holds": True, "detail": "2 against 1", "theirs": True}
    about = {"date": "2026-01-01", "machine": "a machine", "seconds": 90, "findings": {}}
    (folder / "expected.json").write_text(
        json.dumps(
            {
                "smoke": about | {"claims": {"x": claim, "y": claim}},
                "paper": about | {"claims": {"x": claim | {"holds": None, "detail": "1.5 against 1"}}},
            }
        )
    )
    chapter = headlines.Chapter(
        "topolip",
        "A paper",
        {"smoke": "one seed", "paper": "five seeds"},
        (headlines.Headline("X", claims={"x": ""}), headlines.Headline("XY", claims={"x": "x", "y": "y"})),
    )
    page = headlines.page([chapter], tmp_path)
    assert "| X | 1.5 against 1 | paper | **undecided** |" in page
    assert "| XY | x: 2 against 1; y: 2 against 1 | smoke | **holds** |" in page
    assert "five seeds; a machine, 2026-01-01, 90 s" in page


def test_a_key_that_no_scale_has_is_named():
    with pytest.raises(KeyError, match="no scale has all of nothing/such"):
        headlines.scale_of(
            headlines.Headline("X", claims={"nothing/such": ""}), {"smoke": {"claims": {}, "findings": {}}}
        )


@pytest.mark.parametrize(
    ("ends", "other", "answer"),
    [
        ((0.2, 0.3), (0.0, 0.1), True),
        ((0.0, 0.1), (0.2, 0.3), False),
        ((0.0, 0.2), (0.1, 0.3), None),
        ((0.1, 0.2), (0.2, 0.3), None),
        ((float("nan"), float("nan")), (0.0, 0.0), None),
    ],
)
def test_an_interval_is_above_another_below_it_or_neither(ends, other, answer):
    assert form.above(ends, other) is answer
