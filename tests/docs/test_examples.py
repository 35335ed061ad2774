"""The documentation's Python blocks run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def blocks(path: Path) -> list[str]:
    return re.findall(r"^``` python\n(.*?)^```$", path.read_text(encoding="utf-8"), re.M | re.S)


def test_the_page_on_adding_an_instrument_works_and_is_fifty_lines(tmp_path, monkeypatch, capsys):
    first, second = blocks(ROOT / "docs" / "add-an-instrument.md")
    assert len(first.strip().splitlines()) <= 50
    path = tmp_path / "silence.py"
    path.write_text(first, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import silence

    space = vars(silence)
    exec(compile(second, "add-an-instrument.md", "exec"), space)
    profile = space["profile"]
    rows = [row for row in profile.rows if row.quantity == "silent_share"]
    assert [row.layer for row in rows] == ["input", "1", "2"]
    model, inputs = space["model"], space["data"].inputs
    for row, activations in zip(rows, (inputs, model[:2](inputs), model(inputs)), strict=True):
        assert row.value == pytest.approx(float((activations <= 0).double().mean()))
        assert row.low <= row.value <= row.high
        assert row.n == 100
    assert "silent_share" in capsys.readouterr().out
    (axes,) = space["figure"].axes[:1]
    assert axes.lines or axes.collections


def test_the_readmes_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for block in blocks(ROOT / "README.md"):
        exec(compile(block, "README.md", "exec"), {})
    assert "lipschitz_from_input" in capsys.readouterr().out
