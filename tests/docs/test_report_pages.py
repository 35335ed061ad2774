"""The pages on the report run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("page", "made"), [("report.md", "report.html"), ("tutorial.md", "tutorial.html")])
def test_the_python_of_a_page_runs(page, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / page).read_text("utf-8")
    for block in re.findall(r"^``` python\n(.*?)^```$", text, re.M | re.S):
        exec(compile(block, page, "exec"), {})
    assert (tmp_path / made).read_text("utf-8").startswith("<!doctype html>")


def test_the_grammar_on_the_page_is_the_grammar_of_the_code():
    from lisse.cli import conditions

    rules = re.findall(r"^ *(\w+ +=.*)$", conditions.__doc__, re.M)
    page = (ROOT / "docs" / "command-line.md").read_text("utf-8")
    assert len(rules) == 6
    assert all(rule in page for rule in rules)
