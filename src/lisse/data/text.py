"""Text: files with one text a line, and pair files (jsonl, tsv, csv) whose second side becomes the partner."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lisse.data.bounded import read_all
from lisse.data.dataset import Dataset
from lisse.data.places import resolve
from lisse.data.request import Request
from lisse.data.tokens import encoded

#: Columns that are known to be the two sides of a pair.
PAIR_COLUMNS = (
    ("masked_sentence", "masked_negation"),
    ("context_aff", "context_neg"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("first", "second"),
    ("text", "pair"),
    ("a", "b"),
)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
SINGLE_COLUMNS = ("text", "sentence", "content")


class _Table(NamedTuple):
    """Rows of named values, and the line each came from."""

    rows: list[dict[str, Any]]
    lines: list[int]


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """A text file, plain, .gz or .xz."""
    content = read_all("load_data", path)
    try:
        return content.decode("utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding)
    except LookupError as error:
        raise ValueError(
            f"load_data: encoding must be one that Python knows, got {encoding!r}. Try utf-8 or latin-1."
        ) from error
    except UnicodeError as error:
        where = content[: getattr(error, "start", 0)].count(b"\n") + 1
        raise ValueError(
            f"load_data: {path} must be text in {encoding}, got other bytes in line {where}. "
            "Name its encoding, for example ?encoding=latin-1."
        ) from error


def text_file(
    request: Request,
    path: str,
    *,
    tokenizer: str = "",
    length: int = 128,
    vocabulary: int = 30522,
    encoding: str = "utf-8",
    first: str = "",
    second: str = "",
    label: str = "",
) -> Dataset:
    """A text file: one text a line (empty lines are skipped), or a .jsonl, .tsv or .csv file of texts or pairs.

    In a pair file ``first`` and ``second`` name the columns (the usual names are found without), and ``label`` a column
    of targets: numbers stay numbers (integers where all are whole and at least 0), words become classes. Every side is
    tokenized, padded on the right and carries its mask; see :func:`lisse.data.tokens.encoded` for ``tokenizer``,
    ``length`` and ``vocabulary``. A file has no splits: every split is the whole.
    """
    file = resolve(path)
    kind = next((s for s in reversed(file.suffixes) if s not in (".gz", ".xz")), "")
    content = read_text(file, encoding)
    request.warn_of_no_splits(str(file))
    name = file.name.split(".")[0]
    if kind in (".jsonl", ".ndjson", ".tsv", ".csv"):
        columns = {first, second, label} - {""}
        cells = {".tsv": _tabs, ".csv": _commas}.get(kind)
        table = _jsonl(content, file) if cells is None else _columns(cells(content, file), file, columns)
        sides = _sides(table, file, first, second)
    else:
        if first or second or label:
            raise ValueError(
                f"load_data: first, second and label must name columns of a .jsonl, .tsv or .csv file, got {file.name}."
                " Leave them out."
            )
        # Only "\n" ends a line: str.splitlines also cuts at form feeds and at U+0085 and U+2028, which occur in texts.
        lines = [(number, line.strip()) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
        table = _Table([{"text": line} for _, line in lines], [number for number, _ in lines])
        sides = ("text", "")
    if not table.rows:
        raise ValueError(f"load_data: {file} must hold at least one text, got an empty file. Check the path.")
    targets, classes = _targets(table, label, file)
    subset = request.choose(len(table.rows))
    order = range(len(table.rows)) if subset is None else subset.tolist()
    rows = [table.rows[index] for index in order]
    numbers = [table.lines[index] for index in order]
    encode = partial(encoded, tokenizer=tokenizer or request.tokenizer or "words", length=length, vocabulary=vocabulary)
    partner = encode(f"{name}: {sides[1]}", _column(rows, numbers, sides[1], file)) if sides[1] else None
    picked = None if targets is None else targets[torch.tensor(list(order))]
    return encode(name, _column(rows, numbers, sides[0], file), targets=picked, classes=classes, partner=partner)


def _jsonl(content: str, file: Path) -> _Table:
    rows, numbers = [], []
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"load_data: {file} must hold a JSON object in each line, got an error in line {number}: {error}. "
                "Correct or remove it."
            ) from error
        if not isinstance(row, dict):
            raise ValueError(
                f"load_data: {file} must hold a JSON object in each line, got {type(row).__name__} in line {number}. "
                "Correct or remove it."
            )
        rows.append(row)
        numbers.append(number)
    return _Table(rows, numbers)


def _tabs(content: str, file: Path) -> list[tuple[int, list[str]]]:
    """The cells of each line of a tab-separated file, as they stand: a quotation mark is a letter there."""
    return [(number, line.removesuffix("\r").split("\t")) for number, line in enumerate(content.split("\n"), 1)]


def _commas(content: str, file: Path) -> list[tuple[int, list[str]]]:
    """The cells of each row of a comma-separated file; a cell in quotation marks may hold commas and ends of lines."""
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    rows: list[tuple[int, list[str]]] = []
    try:
        rows.extend((reader.line_num, row) for row in reader)
    except csv.Error as error:
        raise ValueError(
            f"load_data: {file} must be comma-separated, got an error in line {reader.line_num}: {error}. "
            "Check its quotation marks."
        ) from error
    return rows


def _columns(numbered: list[tuple[int, list[str]]], file: Path, columns: set[str]) -> _Table:
    """Rows of cells; the first is a header if it has the names ``given`` or known ones.

    Without a header the columns are first, second, column3, …
    """
    lines = [(number, row) for number, row in numbered if any(cell.strip() for cell in row)]
    if not lines:
        return _Table([], [])
    usual = {name for pair in PAIR_COLUMNS for name in pair} | {*SINGLE_COLUMNS, "label", "item", "id"}
    top = [cell.strip() for cell in lines[0][1]]
    is_header = bool(usual & set(top)) or bool(columns and columns <= set(top))
    header = top if is_header and len(set(top)) == len(top) else None
    names = header or ["first", "second", *(f"column{k}" for k in range(3, len(top) + 1))][: max(1, len(top))]
    for number, row in lines:
        if len(row) != len(top):
            raise ValueError(
                f"load_data: {file} must have {len(top)} columns in every line, got {len(row)} in line {number}. "
                "Check what is between its cells."
            )
    body = lines[1:] if header else lines
    return _Table([dict(zip(names, row, strict=True)) for _, row in body], [number for number, _ in body])


def _sides(table: _Table, file: Path, first: str, second: str) -> tuple[str, str]:
    """The columns of the two sides; the second is empty for texts alone."""
    have = list(table.rows[0]) if table.rows else []
    for name in filter(None, (first, second)):
        if table.rows and name not in have:
            raise ValueError(
                f"load_data: {file} must have a column {name!r}, got {', '.join(map(repr, have))}. Name one of these."
            )
    if first:
        return first, second
    pair = next(((a, b) for a, b in PAIR_COLUMNS if a in have and b in have), None)
    if pair:
        return pair
    alone = next((name for name in (*SINGLE_COLUMNS, "first") if name in have), None)
    if alone or not have:
        return alone or "text", second
    raise ValueError(
        f"load_data: {file} must say which columns are texts, got {', '.join(map(repr, have))}. "
        "Give ?first=NAME&second=NAME."
    )


def _column(rows: list[dict[str, Any]], numbers: list[int], name: str, file: Path) -> list[str]:
    for row, number in zip(rows, numbers, strict=True):
        if not isinstance(row.get(name), str) or not row[name].strip():
            raise ValueError(
                f"load_data: {file} must have a text {name!r} in line {number}, got {row.get(name)!r}. "
                "Correct or remove it."
            )
    return [row[name] for row in rows]


def _targets(table: _Table, label: str, file: Path) -> tuple[torch.Tensor | None, tuple[str, ...] | None]:
    """Labels from a column: numbers stay numbers, words become classes in alphabetical order."""
    if not label:
        return None, None
    values = [row.get(label) for row in table.rows]
    if any(value is None for value in values):
        line = table.lines[values.index(None)]
        raise ValueError(f"load_data: {file} must have a {label!r} in every line, got none in line {line}. Add it.")
    if all(map(_is_number, values)):
        return _numbers([_float(value) for value in values], values, table.lines, label, file), None
    names = tuple(sorted({str(value) for value in values}))
    numbers = {name: index for index, name in enumerate(names)}
    return torch.tensor([numbers[str(value)] for value in values]), names


def _is_number(value: Any) -> bool:
    """A JSON number, or digits; not true and false, and not words that Python would read as one ("nan")."""
    if isinstance(value, str):
        return _NUMBER.fullmatch(value.strip()) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf


def _numbers(numbers: list[float], values: list[Any], lines: list[int], label: str, file: Path) -> torch.Tensor:
    """Integers where all are whole and at least 0 (then they can be labels), else float32."""
    wrong = next((k for k, number in enumerate(numbers) if not math.isfinite(number)), None)
    if wrong is not None:
        raise ValueError(
            f"load_data: {file} must have a finite {label!r} in every line, got {str(values[wrong])[:40]} "
            f"in line {lines[wrong]}. Correct or remove it."
        )
    integers = all(number.is_integer() and 0 <= number < 1 << 53 for number in numbers)
    return torch.tensor([int(number) for number in numbers]) if integers else torch.tensor(numbers)
