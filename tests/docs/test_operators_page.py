"""The page on operators: its code runs and says what it says."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operators.md"


def test_the_code_of_the_page_runs():
    (block,) = re.findall(r"^``` python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    space: dict[str, object] = {}
    exec(compile(block, "operators.md", "exec"), space)
    assert space["tokens"].shape == (64, 64)
    solved = space["tikhonov"](space["kernel"], space["tokens"], 0.3, weighting="alpha")
    assert float(solved.residual) < 1e-12
