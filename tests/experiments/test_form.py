import json
import math
import subprocess
from pathlib import Path

import pytest

from lisse.experiments import PAPERS, Claim, Finding, Outcome, Task, form, study


def outcome(value: float = 0.5, *, holds: bool = True, within: float | None = 0.1) -> Outcome:
    finding = Finding("table/a", "accuracy of a", value, value - 0.1, value + 0.1, 100, "", 0.6, "Table 1", within)
    return Outcome((finding,), (Claim("smooth", "a is smoother than b", holds, "0.5 < 0.7"),))


def kept(folder, found: Outcome, **task) -> dict:
    form.keep(folder, found, Task("smoke", folder / "out", **task), 61.4)
    return form.expected(folder)


def test_what_is_kept_comes_back(tmp_path):
    was = kept(tmp_path, outcome(), seed=3)["smoke"]
    assert was["seed"] == 3
    assert was["seconds"] == 61
    assert was["findings"]["table/a"] == {
        "says": "accuracy of a", "value": 0.5, "low": 0.4, "high": 0.6, "n": 100, "theirs": 0.6, "source": "Table 1",
        "within": 0.1,
    }  # fmt: skip
    assert was["claims"]["smooth"]["holds"] is True
    assert was["machine"]
    assert was["commit"]


def test_one_scale_does_not_replace_the_other(tmp_path):
    kept(tmp_path, outcome(0.5))
    form.keep(tmp_path, outcome(0.9), Task("paper", tmp_path / "out"), 3.0)
    both = form.expected(tmp_path)
    assert both["smoke"]["findings"]["table/a"]["value"] == 0.5
    assert both["paper"]["findings"]["table/a"]["value"] == 0.9


@pytest.mark.parametrize(("value", "differs"), [(0.5, False), (0.59, False), (0.41, False), (0.61, True), (0.3, True)])
def test_a_finding_may_move_by_within_and_no_further(tmp_path, value, differs):
    committed = kept(tmp_path, outcome(0.5))["smoke"]
    found = form.differences(outcome(value), committed)
    assert [difference.key for difference in found] == (["table/a"] if differs else [])


def test_a_finding_without_within_is_never_compared(tmp_path):
    committed = kept(tmp_path, outcome(0.5, within=None))["smoke"]
    assert form.differences(outcome(100.0, within=None), committed) == []


def test_a_claim_that_turns_is_a_difference_both_ways(tmp_path):
    committed = kept(tmp_path, outcome(holds=True))["smoke"]
    (turned,) = form.differences(outcome(holds=False), committed)
    assert turned.key == "smooth"
    assert "does not hold, and did" in turned.says
    committed = kept(tmp_path, outcome(holds=False))["smoke"]
    assert "holds, and did not" in form.differences(outcome(holds=True), committed)[0].says


def test_what_is_missing_is_a_difference(tmp_path):
    committed = kept(tmp_path, outcome())["smoke"]
    assert {difference.key for difference in form.differences(Outcome(()), committed)} == {"table/a", "smooth"}


def test_a_number_that_json_lacks_is_kept_as_a_word_and_compared(tmp_path):
    nan = Outcome((Finding("loss", "loss", math.nan, within=0.1, note="diverged"),))
    committed = kept(tmp_path, nan)["smoke"]
    json.loads((tmp_path / "expected.json").read_text(), parse_constant=pytest.fail)
    assert form.differences(nan, committed) == []
    assert form.differences(Outcome((Finding("loss", "loss", 1.0),)), committed) != []


def test_the_readme_is_filled_from_the_file_and_nothing_else_in_it_changes(tmp_path):
    (tmp_path / "README.md").write_text("# Paper\n<!-- numbers: smoke -->\nstale\n<!-- end -->\nkept\n")
    kept(tmp_path, outcome())
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("# Paper\n")
    assert text.endswith("kept\n")
    assert "stale" not in text
    assert "| accuracy of a | 0.5 | 0.4 … 0.6 | 100 | 0.6 | Table 1 |" in text
    assert "| a is smoother than b | yes | yes | 0.5 < 0.7 |" in text
    assert form.fill(text, form.expected(tmp_path)) == text


def test_the_commit_says_when_the_tree_was_changed(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "a").write_text("1")
    for words in (["init", "-q"], ["add", "a"], ["commit", "-qm", "a"]):
        subprocess.run([*git, *words], check=True)
    clean = form.commit(tmp_path)
    assert len(clean) == 10
    (tmp_path / "a").write_text("2")
    assert form.commit(tmp_path) == clean + "+"


def test_bad_input():
    with pytest.raises(ValueError, match="Finding: low and high must come together"):
        Finding("a", "a", 1.0, low=0.0)
    with pytest.raises(ValueError, match="within must be at least 0"):
        Finding("a", "a", 1.0, within=-1.0)
    with pytest.raises(ValueError, match="keys must be different, got a more than once"):
        Outcome((Finding("a", "a", 1.0), Finding("a", "b", 1.0)))
    with pytest.raises(ValueError, match="scale must be one of smoke, small, medium, paper, got 'huge'"):
        Task("huge", None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scale must be one of smoke, paper for topolip, got 'small'"):
        form.timed(study("topolip"), Task("small", Path("unused")))
    with pytest.raises(ValueError, match="study: paper must be one of"):
        study("nothing")


@pytest.mark.parametrize("paper", PAPERS)
def test_each_readme_says_what_its_expected_json_says(paper):
    """Break it: change a number in a README by hand."""
    folder = study(paper).about.folder
    text = (folder / "README.md").read_text(encoding="utf-8")
    everything = form.expected(folder)
    assert "smoke" in everything
    assert form.fill(text, everything) == text
    assert set(study(paper).about.needs) in ({"smoke", "paper"}, {"smoke", "small", "medium", "paper"})
