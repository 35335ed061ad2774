"""The Python blocks of docs/training.md run as they stand, and its table has every recipe."""

from __future__ import annotations

import re
from pathlib import Path

from lisse.training import RECIPES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "training.md").read_text("utf-8")


def test_the_pages_python_runs(capsys):
    for block in re.findall(r"^``` python\n(.*?)^```$", PAGE, re.M | re.S):
        exec(compile(block, "training.md", "exec"), {})
    assert "finished" in capsys.readouterr().out


def test_the_page_names_every_recipe():
    missing = [name for name in RECIPES if not name.endswith("-short") and f"`{name}`" not in PAGE]
    assert missing == []
