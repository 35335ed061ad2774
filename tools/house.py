"""How the house stands: python tools/house.py [ROOT …], a table with a column for each tree. Reads files as text.

Files and lines of Python in src and in experiments, modules that one other module alone imports, functions that are too
complex (C901 of ruff, if it is installed), how many of the names that code gives are pronouns, public names with two
homes, and pairs of files that share a block of six lines to the letter.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path, PurePosixPath

# Words that stand for a noun somebody would have to guess.
WORDS = (
    "found some made said one given place places its theirs mine yours each own there here known wanted seen kept held "
    "taken told asked rest whole several others same begun now thing things what it them shown named chosen whatever "
    "such any"
)
PRONOUNS = frozenset(WORDS.split())
# One function of a form, which every member of a family has.
MEMBERS = "command main draw run settings findings claims write_tables results report Settings"
FORMS = frozenset(MEMBERS.split())
BLOCK = 6  # lines

Tree = dict[str, str]


def read_tree(folder: Path) -> Tree:
    """Sources by path, from the folder that holds the packages."""
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in sorted(folder.rglob("*.py"))}


def module_name(path: str) -> str:
    """``lisse.maths`` for ``lisse/maths/__init__.py``."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(path: str, node: ast.AST) -> Iterator[str]:
    """Modules that a statement may mean, and any text, which may be the path of one."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parents = PurePosixPath(path).parts[:-1]
        base = [*parents[: len(parents) - node.level + 1]] if node.level else []
        home = ".".join([*base, *([node.module] if node.module else [])])
        yield home
        yield from (f"{home}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def importers(tree: Tree) -> dict[str, set[str]]:
    """Which modules import each; packages are no fragments of anything and stay out, as do commands, which have one."""
    modules = {module_name(path): path for path in tree}
    uses: dict[str, set[str]] = {
        name: set()
        for name, path in modules.items()
        if not path.endswith(("__init__.py", "__main__.py")) and ".cli." not in name
    }
    for path, source in tree.items():
        for node in ast.walk(ast.parse(source)):
            for name in imported(path, node):
                if name in uses and name != module_name(path):
                    uses[name].add(module_name(path))
    return uses


def given_names(source: str) -> Iterator[str]:
    """Names that a file gives: to variables, arguments, functions and classes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name


def pronoun_share(tree: Tree) -> float:
    """The share of pronouns among all names that are given."""
    names = [name.strip("_") for source in tree.values() for name in given_names(source)]
    return sum(name in PRONOUNS for name in names) / max(1, len(names))


def names_with_two_homes(tree: Tree) -> list[str]:
    """Public names at the top of two files or more."""
    homes: dict[str, set[str]] = defaultdict(set)
    for path, source in tree.items():
        for node in ast.parse(source).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
            for target in targets:
                name = getattr(target, "id", getattr(target, "name", "_"))
                if isinstance(name, str) and not name.startswith("_"):
                    homes[name].add(path)
    return sorted(name for name, paths in homes.items() if len(paths) > 1 and name not in FORMS)


def shared_blocks(tree: Tree) -> list[tuple[str, str]]:
    """Pairs of files, or a file with itself, that have six lines of code in common, to the letter but for indentation.

    Imports, comments, blank lines and lone punctuation do not count as lines.
    """
    homes: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for path, source in tree.items():
        lines = [line.strip() for line in source.splitlines()]
        lines = [line for line in lines if re.search(r"\w", line) and not re.match(r"#|import |from \S+ import", line)]
        for index in range(len(lines) - BLOCK + 1):
            homes[tuple(lines[index : index + BLOCK])].append((path, index))
    pairs = set()
    for spots in homes.values():
        for (first, begin), (second, other) in combinations(spots, 2):
            if first != second or abs(begin - other) >= BLOCK:
                pairs.add((first, second))
    return sorted(pairs)


def complex_functions(folder: Path) -> int | None:
    """Functions with more than ten ways through; None without ruff."""
    ruff = shutil.which("ruff") or shutil.which("ruff", path=str(Path(sys.executable).parent))
    if ruff is None:
        return None
    options = ["--isolated", "--select", "C901", "--config", "lint.mccabe.max-complexity=10", "--output-format", "json"]
    report = subprocess.run([ruff, "check", *options, str(folder)], capture_output=True, text=True, check=False)
    return len(json.loads(report.stdout))


def measures(root: Path) -> dict[str, str]:
    """The numbers of one tree, by what they are called in the table."""
    tree = read_tree(root / "src")
    aside = [path for path in tree if path.startswith("lisse/experiments/")]  # where they once lay
    experiments = {path: tree.pop(path) for path in aside} | read_tree(root / "experiments")
    uses = importers(tree | experiments)
    single = [name for name in uses if len(uses[name]) == 1 and name.replace(".", "/") + ".py" in tree]
    complexity = complex_functions(root / "src")
    return {
        "files of src, without experiments": str(len(tree)),
        "lines of src, without experiments": f"{sum(text.count(chr(10)) for text in tree.values()):,}",
        "lines of experiments": f"{sum(text.count(chr(10)) for text in experiments.values()):,}",
        "modules with one importer": str(len(single)),
        "functions with C901 > 10": "?" if complexity is None else str(complexity),
        "pronouns among given names": f"{pronoun_share(tree):.1%}",
        "public names with two homes": str(len(names_with_two_homes(tree))),
        "pairs of files with a block in common": str(len(shared_blocks(tree))),
    }


def main(roots: list[str]) -> None:
    """Print the table."""
    columns = [measures(Path(root)) for root in roots or ["."]]
    for name in columns[0]:
        print(f"| {name} | " + " | ".join(column[name] for column in columns) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
