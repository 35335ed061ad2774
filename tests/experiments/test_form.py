import json
import math
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from lisse_experiments import PAPERS, Claim, Finding, Outcome, Task, form, study


def outcome(value: float = 0.5, *, holds: bool = True, within: float | None = 0.1) -> Outcome:
    finding = Finding("table/a", "accuracy of a", value, value - 0.1, value + 0.1, 100, "", 0.6, "Table 1", within)
    return Outcome((finding,), (Claim("smooth", "a is smoother than b", holds, "0.5 < 0.7"),))


def committed(folder, result: Outcome, **task) -> dict:
    form.keep(folder, result, Task("smoke", folder / "out", **task), 61.4)
    return form.expected(folder)


def test_what_is_kept_comes_back(tmp_path):
    was = committed(tmp_path, outcome(), seed=3)["smoke"]
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
    committed(tmp_path, outcome(0.5))
    form.keep(tmp_path, outcome(0.9), Task("paper", tmp_path / "out"), 3.0)
    both = form.expected(tmp_path)
    assert both["smoke"]["findings"]["table/a"]["value"] == 0.5
    assert both["paper"]["findings"]["table/a"]["value"] == 0.9


@pytest.mark.parametrize(("value", "differs"), [(0.5, False), (0.59, False), (0.41, False), (0.61, True), (0.3, True)])
def test_a_finding_may_move_by_within_and_no_further(tmp_path, value, differs):
    entry = committed(tmp_path, outcome(0.5))["smoke"]
    found = form.differences(outcome(value), entry)
    assert [difference.key for difference in found] == (["table/a"] if differs else [])


def test_a_finding_without_within_is_never_compared(tmp_path):
    entry = committed(tmp_path, outcome(0.5, within=None))["smoke"]
    assert form.differences(outcome(100.0, within=None), entry) == []


def test_a_claim_that_turns_is_a_difference_both_ways(tmp_path):
    entry = committed(tmp_path, outcome(holds=True))["smoke"]
    (turned,) = form.differences(outcome(holds=False), entry)
    assert turned.key == "smooth"
    assert "does not hold, and did" in turned.says
    entry = committed(tmp_path, outcome(holds=False))["smoke"]
    assert "holds, and did not" in form.differences(outcome(holds=True), entry)[0].says


def test_what_is_missing_is_a_difference(tmp_path):
    entry = committed(tmp_path, outcome())["smoke"]
    assert {difference.key for difference in form.differences(Outcome(()), entry)} == {"table/a", "smooth"}


def test_a_number_that_json_lacks_is_kept_as_a_word_and_compared(tmp_path):
    nan = Outcome((Finding("loss", "loss", math.nan, within=0.1, note="diverged"),))
    entry = committed(tmp_path, nan)["smoke"]
    json.loads((tmp_path / "expected.json").read_text(), parse_constant=pytest.fail)
    assert form.differences(nan, entry) == []
    assert form.differences(Outcome((Finding("loss", "loss", 1.0),)), entry) != []


def test_the_tables_are_made_from_the_file_and_the_readme_stays(tmp_path):
    (tmp_path / "README.md").write_text("# Paper\n")
    (tmp_path / "tables.md").write_text("stale")
    committed(tmp_path, outcome())
    text = (tmp_path / "tables.md").read_text()
    assert "stale" not in text
    assert "\n## Smoke\n" in text
    assert "| accuracy of a | 0.5 | 0.4 … 0.6 | 100 | 0.6 | Table 1 |" in text
    assert "| a is smoother than b | yes | yes | 0.5 < 0.7 |" in text
    assert (tmp_path / "README.md").read_text() == "# Paper\n"


def test_a_finding_a_claim_and_a_note_have_a_line_each(tmp_path):
    findings = (Finding("a", "a", 0.1), Finding("b", 'of "b", {b}', math.inf))
    claims = (Claim("c", "a < b", True), Claim("d", "b < a", False))
    entries = committed(tmp_path, Outcome(findings, claims, (), ("A note.", "Another [1, 2].")))
    text = (tmp_path / "expected.json").read_text()
    assert json.loads(text) == entries
    assert list(entries["smoke"]["findings"]) == ["a", "b"]
    for line in (
        '"a": {"says": "a", "value": 0.1},',
        '"c": {"says": "a < b", "holds": true, "theirs": true},',
        '"A note.",',
    ):
        assert f"\n   {line}\n" in text
    assert form.json_text({"smoke": {"findings": {}, "notes": []}}).split() == (
        ["{", '"smoke":', "{", '"findings":', "{},", '"notes":', "[]", "}", "}"]
    )


def test_the_commit_says_when_the_tree_was_changed(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "a").write_text("1")
    for words in (["init", "-q"], ["add", "a"], ["commit", "-qm", "a"]):
        subprocess.run([*git, *words], check=True)
    clean = form.commit(tmp_path)
    assert len(clean) == 10
    (tmp_path / "a").write_text("2")
    assert form.commit(tmp_path) == clean + "+"


def test_a_verdict_may_be_open(tmp_path):
    """Break it: leave out of the file what is None; or call it a no."""
    result = Outcome((), (Claim("c", "it falls", None, "-0.2 [-0.5, 0.1]"),))
    form.keep(tmp_path, result, Task("smoke", tmp_path / "out"), 1.0)
    entry = form.expected(tmp_path)["smoke"]
    assert entry["claims"]["c"]["holds"] is None
    assert "| it falls | yes | undecided | -0.2 [-0.5, 0.1] |" in form.markdown(entry)
    assert form.differences(result, entry) == []
    (turned,) = form.differences(Outcome((), (Claim("c", "it falls", True),)), entry)
    assert turned.says.startswith("holds, and was undecided")


def test_a_part_that_was_looked_at_again_leaves_the_others(tmp_path):
    findings = tuple(Finding(key, key, 1.0, within=0.1) for key in ("a/x", "b/y", "c/z"))
    before = committed(
        tmp_path, Outcome(findings, (Claim("b/c", "c", True), Claim("c/c", "c", True)), notes=("early",))
    )
    part = Outcome((Finding("b/new", "new", 3.0),), notes=("late",), parts=("b",))
    for _ in range(2):  # again is the same
        entry = committed(tmp_path, part)["smoke"]
        assert {key: was["value"] for key, was in entry["findings"].items()} == {"a/x": 1.0, "b/new": 3.0, "c/z": 1.0}
        assert list(entry["findings"]) == ["a/x", "b/new", "c/z"]  # where it was
        assert list(entry["claims"]) == ["c/c"]
        assert entry["notes"][:2] == ["early", "late"]
        assert entry["notes"][2].startswith("B: renewed 2")
        assert len(entry["notes"]) == 3
        assert entry["seconds"] == before["smoke"]["seconds"]
    assert form.differences(part, entry) == []  # what was not asked for is not missing
    assert [change.key for change in form.differences(Outcome(part.findings), entry)] == ["a/x", "c/z", "c/c"]


def test_results_that_remember_where_they_were_made_say_so(tmp_path):
    result = Outcome((), machine="a GPU", seconds=77.0)
    form.keep(tmp_path, result, Task("smoke", tmp_path / "out"), 1.0)
    entry = form.expected(tmp_path)["smoke"]
    assert (entry["machine"], entry["seconds"]) == ("a GPU", 77)


def test_bad_input():
    with pytest.raises(ValueError, match="Finding: low and high must come together"):
        Finding("a", "a", 1.0, low=0.0)
    with pytest.raises(ValueError, match="within must be at least 0"):
        Finding("a", "a", 1.0, within=-1.0)
    with pytest.raises(ValueError, match="keys must be different, got a more than once"):
        Outcome((Finding("a", "a", 1.0), Finding("a", "b", 1.0)))
    with pytest.raises(ValueError, match="scale must be one of smoke, small, medium, sizes, paper, got 'huge'"):
        Task("huge", None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scale must be one of smoke, medium, paper for topolip, got 'small'"):
        form.timed(study("topolip"), Task("small", Path("unused")))
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        Task("smoke", Path("unused"), workers=0)
    with pytest.raises(ValueError, match="workers must be 1, got 2"):
        form.timed(study("isometry"), Task("smoke", Path("unused"), workers=2))
    with pytest.raises(ValueError, match="study: paper must be one of"):
        study("nothing")


@pytest.mark.parametrize("paper", PAPERS)
def test_the_committed_files_are_as_they_are_written(paper):
    """Break it: change a number in a table by hand, or a finding's line in expected.json into two."""
    folder = study(paper).about.folder
    entries = form.expected(folder)
    assert "smoke" in entries
    assert (folder / "expected.json").read_text(encoding="utf-8") == form.json_text(entries)
    assert (folder / "tables.md").read_text(encoding="utf-8") == form.tables(entries)
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) < 40
    assert all(f"({name})" in readme for name in ("tables.md", "method.md"))
    assert (folder / "method.md").is_file()
    needs = set(study(paper).about.needs)
    assert {"smoke", *entries} <= needs <= {*get_args(form.Scale)}
    assert len(needs) > 1
