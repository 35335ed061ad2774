"""Every Python block of every page runs as it stands, in the order of the page, as a reader would paste it.

What needs a reader's own things, or what is not on every machine, is fenced ``py`` and says so in its first line.
"""

from __future__ import annotations

import ast
import re
import sys
import types
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).resolve().parents[2]
OTHERWISE = "# Not run by the tests: "
SLOW, TRANSFORMERS = {"bounds.md", "contraction.md", "isometry.md"}, {"bounds.md", "contraction.md"}


def blocks(path: Path, language: str = "python") -> list[str]:
    return re.findall(rf"^``` ?{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.M | re.S)


# test_examples.py runs add-an-instrument.md and README.md, and looks at what comes of them.
PAGES = {path.name: path for path in sorted((ROOT / "docs").glob("*.md")) if blocks(path)}
del PAGES["add-an-instrument.md"]


def test_no_block_is_forgotten_and_those_that_do_not_run_say_why():
    assert len(PAGES) >= 19
    for page in (ROOT / "docs").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        fences = re.findall(r"^\s*``` ?\{?\.?(py\w*)", text, re.M)
        assert len(fences) == len(blocks(page)) + len(blocks(page, "py")), f"{page.name} has a fence of another form"
        for block in blocks(page, "py"):
            assert block.startswith(OTHERWISE), f"{page.name}: say in the first line what it needs"
            ast.parse(block)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else []) for page in PAGES]
)
def test_a_page_can_be_pasted(page, tmp_path, monkeypatch):
    if page in TRANSFORMERS:
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    name = f"page_{page.removesuffix('.md').replace('-', '_')}"
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)  # where a class that was pasted says it is from
    for number, block in enumerate(blocks(PAGES[page])):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of random weights, on purpose
            exec(compile(block, f"{page}, block {number + 1}", "exec"), vars(module))
    plt.close("all")
