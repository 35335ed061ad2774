"""The page on measuring while training: its own loop and its figures run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "watching.md"


def test_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    for block in re.findall(r"^``` python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S):
        exec(compile(block, "watching.md", "exec"), space)
    assert "epoch" in capsys.readouterr().out
    assert {path.name for path in tmp_path.glob("*.png")} == {"stretch.png", "rank.png", "all.png", "two.png"}
    assert len(list(tmp_path.glob("run/profiles/*.profile"))) == 4
