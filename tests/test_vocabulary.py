"""Words: a name says what it holds, and a public word means one thing.

Each check is a function of a tree (path to source), so that it can be shown a planted mistake.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Pronouns, participles and adverbs that stand for a noun somebody would have to guess.
WORDS = (
    "found some made said one given place places its theirs mine yours each own there here known wanted seen kept held "
    "taken told asked rest whole several others same begun now thing things what it them shown named chosen whatever "
    "such any"
)
PRONOUNS = frozenset(WORDS.split())
# Options of instruments that people have written down, and a column of committed results.
WRITTEN = {("instruments/isometry", "whole"), ("instruments/contraction", "shown"), ("form.py", "theirs")}
# Names that are the same on purpose: one function of a form, which every member of a family has.
FORMS = {
    "command",
    "main",
    "draw",
    "run",
    "settings",
    "findings",
    "claims",
    "write_tables",
    "results",
    "report",
    "Settings",
}

Tree = dict[str, str]


@pytest.fixture(scope="module")
def tree() -> Tree:
    package = ROOT / "src" / "lisse"
    return {path.relative_to(package).as_posix(): path.read_text("utf-8") for path in sorted(package.rglob("*.py"))}


@pytest.fixture(scope="module")
def experiments() -> Tree:
    package = ROOT / "experiments" / "lisse_experiments"
    return {path.relative_to(package).as_posix(): path.read_text("utf-8") for path in sorted(package.rglob("*.py"))}


def assigned(source: str) -> Iterator[tuple[int, str]]:
    """Names that a file gives: to variables, arguments, functions and classes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name


def pronouns(tree: Tree) -> list[str]:
    return [
        f"{path}:{line}: {name}"
        for path, source in tree.items()
        for line, name in assigned(source)
        if name.strip("_") in PRONOUNS and not any(path.startswith(start) and name == word for start, word in WRITTEN)
    ]


def test_names_are_nouns(tree, experiments):
    assert pronouns(tree) == []
    assert pronouns(experiments) == []


@pytest.mark.parametrize(
    "source",
    ["found = 1", "for place, row in rows: pass", "def made(x): ...", "def f(given): ...", "rows = [one for one in x]",
     "with open(p) as it: pass", "_kept = 2", "lambda some: some"],
)  # fmt: skip
def test_a_pronoun_is_found(source):
    assert len(pronouns({"maths/a.py": source})) == 1


def test_nouns_are_left_alone():
    assert pronouns({"maths/a.py": "rows = [row for row in table]\nfor index, layer in enumerate(layers): pass"}) == []


def twice(tree: Tree) -> dict[str, list[str]]:
    """Public top-level names that are defined in two files or more."""
    homes: dict[str, set[str]] = defaultdict(set)
    for path, source in tree.items():
        for node in ast.parse(source).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
            for target in targets:
                name = getattr(target, "id", getattr(target, "name", "_"))
                if isinstance(name, str) and not name.startswith("_"):
                    homes[name].add(path)
    return {name: sorted(paths) for name, paths in sorted(homes.items()) if len(paths) > 1 and name not in FORMS}


def test_a_public_word_means_one_thing(tree):
    assert twice(tree) == {}


def test_a_word_with_two_meanings_is_found():
    tree = {
        "a.py": "class Table: ...\n_private = 1",
        "b.py": "Table = list\n_private = 2",
        "c.py": "def command(): ...",
    }
    assert twice(tree) == {"Table": ["a.py", "b.py"]}


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
