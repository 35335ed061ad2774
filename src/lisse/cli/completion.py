"""What a shell may complete: networks of the zoo, data sets, instruments.

Their names are read from the source of their tables: a press of Tab must not wait for torch.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

_HUBS = ("hf:", "timm:", "torchvision:", "recorded:")
_TABLES = {"networks/zoo": "NETWORKS", "data/sources.py": "SOURCES", "instruments": "ALL"}


def models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Networks of the zoo, and the names of hubs; files where none begins so."""
    return _or_file([*(f"zoo:{name}" for name in table("networks/zoo")), *_HUBS], incomplete)


def data_sets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The data sets that ``lisse data`` lists; files where none begins so."""
    return _or_file(table("data/sources.py"), incomplete)


def instruments(ctx: click.Context, param: click.Parameter | None, incomplete: str) -> list[CompletionItem]:
    """The instruments that are not named yet, the last of several with commas between them."""
    before, comma, start = incomplete.rpartition(",")
    names = (name.lower() for name in table("instruments"))
    return [
        CompletionItem(before + comma + name)
        for name in names
        if name.startswith(start.lower()) and name not in before.split(",")
    ]


def table(module: str) -> list[str]:
    """The names in a table of a module, ``folder`` or ``folder/file.py``: keys of a dict, or classes in a tuple."""
    path = Path(__file__).parent.parent / module
    source = (path if path.suffix else path / "__init__.py").read_text(encoding="utf-8")
    (value,) = (
        statement.value
        for statement in ast.parse(source).body
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == _TABLES[module]
    )
    return list(_names(value))


def _names(value: ast.expr | None) -> Iterator[str]:
    if isinstance(value, ast.Dict):
        yield from (str(ast.literal_eval(key)) for key in value.keys if key is not None)
    elif isinstance(value, ast.Tuple):
        yield from map(ast.unparse, value.elts)


def _or_file(names: list[str], incomplete: str) -> list[CompletionItem]:
    matches = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return matches or [CompletionItem(incomplete, type="file")]


class Bash(BashComplete):
    """Bash takes ``zoo:resnet20`` for three words, and puts what is completed behind the last colon."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one that is completed, and that one, with the colons inside them."""
        words: list[str] = []
        raw = os.environ["COMP_WORDS"].split("\n")[1 : int(os.environ["COMP_CWORD"]) + 1]
        for word in raw:
            if words and (word.startswith(":") or words[-1].endswith(":")):
                words[-1] += word
            else:
                words.append(word)
        words = [(split_arg_string(word) or [""])[0] for word in words] or [""]
        *before, incomplete = words
        quoted = raw and raw[-1][:1] in ("'", '"')
        self.hidden = "" if quoted or not raw else incomplete.removesuffix(raw[-1].lstrip(":"))
        return before, incomplete

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """The part of an answer that Bash wants."""
        return f"{item.type},{item.value.removeprefix(self.hidden)}"


add_completion_class(Bash, "bash")
