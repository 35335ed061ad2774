"""Words: a name says what it holds, and a public word means one thing.

Each check is a function of a tree (path to source), so that it can be shown a planted mistake.
"""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SPEC = importlib.util.spec_from_file_location("house", ROOT / "tools" / "house.py")
house = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(house)
# Options of instruments that people have written down, and a column of committed results.
WRITTEN = {("instruments/isometry", "whole"), ("instruments/contraction", "shown"), ("form.py", "theirs")}
Tree = dict[str, str]


@pytest.fixture(scope="module")
def tree() -> Tree:
    return house.read_tree(ROOT / "src" / "lisse")


@pytest.fixture(scope="module")
def experiments() -> Tree:
    return house.read_tree(ROOT / "experiments" / "lisse_experiments")


@pytest.fixture(scope="module")
def tools() -> Tree:
    return house.read_tree(ROOT / "tools")


def pronouns(tree: Tree) -> list[str]:
    return [
        f"{path}: {name}"
        for path, source in tree.items()
        for name in house.given_names(source)
        if name.strip("_") in house.PRONOUNS
        and not any(path.startswith(start) and name == word for start, word in WRITTEN)
    ]


def test_names_are_nouns(tree, experiments, tools):
    assert pronouns(tree) == []
    assert pronouns(experiments) == []
    assert pronouns(tools) == []


@pytest.mark.parametrize(
    "source",
    ["found = 1", "for place, row in rows: pass", "def made(x): ...", "def f(given): ...", "rows = [one for one in x]",
     "with open(p) as it: pass", "_kept = 2", "lambda some: some"],
)  # fmt: skip
def test_a_pronoun_is_found(source):
    assert len(pronouns({"maths/a.py": source})) == 1


def test_nouns_are_left_alone():
    assert pronouns({"maths/a.py": "rows = [row for row in table]\nfor index, layer in enumerate(layers): pass"}) == []


def test_a_public_word_means_one_thing(tree):
    assert house.names_with_two_homes(tree) == []


def test_a_word_with_two_meanings_is_found():
    tree = {
        "a.py": "class Table: ...\n_private = 1",
        "b.py": "Table = list\n_private = 2",
        "c.py": "def command(): ...",
    }
    assert house.names_with_two_homes(tree) == ["Table"]


# --- documents that nobody else has ----------------------------------------------------------------------------------

# Put together from halves, so that this file does not cite them either.
CITATION = re.compile("SPEC" + r" [A-E][.-]?\w*\d|\bP-" + r"[A-E]\d")


def test_nothing_cites_what_is_not_in_the_repository():
    files = [path for folder in ("src", "tests", "experiments", "docs") for path in (ROOT / folder).rglob("*.py")]
    cited = [f"{path.name}: {text[0]}" for path in files for text in [CITATION.search(path.read_text("utf-8"))] if text]
    assert cited == []


def test_a_citation_of_it_is_found():
    assert CITATION.search("as in SPEC" + " A.3")
    assert CITATION.search("see P-" + "A2")
    assert not CITATION.search("--data SPEC A")
