"""Tables on standard output: drawn in a terminal, aligned columns of plain text in a pipe."""

from __future__ import annotations

import itertools
import math
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from lisse.profile import Profile, Row, Value

SIGNS = {"exact": "", "estimate": "", "lower": "≥ ", "upper": "≤ ", "heuristic": "~ "}
MOST_COLUMNS = 8
LEGEND = {
    "lower": "≥ from below: the true value is at least this",
    "upper": "≤ from above: the true value is at most this",
    "heuristic": "~ heuristic: no guarantee",
}


def print_table(header: Sequence[str], lines: Iterable[Sequence[str]], *, text_columns: Sequence[int] = (0,)) -> None:
    """Print a table; columns but ``text_columns`` are numbers. A terminal gets the columns that fit at a time."""
    cells = [[printable(text) for text in line] for line in (header, *lines)]
    if sys.stdout.isatty():
        # Coordinates under the quantity: narrower.
        cells[0] = [text.replace(" ", "\n", 1) if "=" in text else text for text in cells[0]]
    widths = [max(_width(part) for text in column for part in text.split("\n")) for column in zip(*cells, strict=True)]
    if sys.stdout.isatty():
        for block in _blocks(widths, text_columns):
            _draw(cells, block, text_columns)
    else:
        for line in cells:
            columns = enumerate(zip(line, widths, strict=True))
            print("  ".join(_padded(text, width, index in text_columns) for index, (text, width) in columns).rstrip())


def print_profile(profile: Profile, headlines: Mapping[str, Row] | None = None) -> None:
    """One line per layer and a column per quantity, then the numbers that belong to no layer, meanings and notes.

    Rows that are ``headlines``, by label, stand above all others: what a table leaves out is not left unsaid.
    Where there are many columns, layers of which other things are measured (attention, and the blocks around it) are a
    table each, and a table shows the first sets of coordinates, of those the first quantities, and names the others.
    """
    along = [row for row in profile.rows if row.layer is not None]
    single = [row for row in profile.rows if row.layer is None]
    names = _print_headlines(headlines or {})
    names |= _print_along(along, list(profile.table().index)) if along else set()
    _print_single(single)
    names |= {row.quantity for row in single}
    if names:
        print()
    for name, meaning in profile.quantities.items():
        if name in names:
            print(printable(f"{name}: {meaning.says}"))
    kinds = {row.kind for row in profile.rows if row.quantity in names}
    legend = [text for kind, text in LEGEND.items() if kind in kinds]
    if any(row.low is not None for row in profile.rows):
        legend.append("[low, high] is an interval over samples")
    if legend:
        print("; ".join(legend) + ".")
    for note in dict.fromkeys(profile.notes):
        print(printable(f"Note: {note}"))


def _print_headlines(headlines: Mapping[str, Row]) -> set[str]:
    """The numbers that stand for a profile, with interval and samples; returns their quantities."""
    lines = [
        [label, row.quantity, value_text(row), f"{row.n:,}", " ".join(filter(None, (row.layer, row.where())))]
        for label, row in headlines.items()
    ]
    if lines:
        print_table(["headline", "quantity", "value", "n", "at"], lines, text_columns=(0, 1, 4))
        print()
    return {row.quantity for row in headlines.values()}


def _print_along(rows: Sequence[Row], layers: Sequence[str]) -> set[str]:
    """Tables of layers; returns the quantities that are in them."""
    many = len({(row.quantity, row.where()) for row in rows}) > MOST_COLUMNS
    common = _common(rows) if many else {}
    columns: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        columns.setdefault((row.quantity, _where(row, common)), {})[str(row.layer)] = row
    hidden, cut, names = list[tuple[str, str]](), list[str](), set[str]()
    for index, group in enumerate(_alike(layers, columns) if len(columns) > MOST_COLUMNS else [layers]):
        keys = [key for key, column in columns.items() if any(layer in column for layer in group)]
        sets = _first_sets(keys)
        hidden += [key for key in keys if key[1] not in sets]
        labels = {" ".join(filter(None, key)): columns[key] for key in keys if key[1] in sets}
        cut += list(labels)[MOST_COLUMNS:]
        names |= {key[0] for key in [key for key in keys if key[1] in sets][:MOST_COLUMNS]}
        if index:
            print()
        cells = {(layer, label): row for label, column in labels.items() for layer, row in column.items()}
        _print_cells("layer", group, list(labels)[:MOST_COLUMNS], cells)
    if cut:
        print(printable(f"In the profile, not shown: {', '.join(dict.fromkeys(cut))}. `--json` prints all."))
    if common:
        print(printable("In every column: " + ", ".join(f"{key}={value}" for key, value in common.items()) + "."))
    if hidden:
        elsewhere = dict.fromkeys(where for name, where in hidden if name in names and where)
        nowhere = dict.fromkeys(name for name, where in hidden if name not in names or not where)
        texts = [f"the same for {'; '.join(elsewhere)}"] * bool(elsewhere) + [", ".join(nowhere)] * bool(nowhere)
        more = " `--json` prints all." if nowhere else ""
        print(printable(f"In the profile, not shown: {'; and '.join(texts)}.{more}"))
    return names


def _common(rows: Sequence[Row]) -> dict[str, Value]:
    """Coordinates that every row has, with the same value."""
    return {key: value for key, value in rows[0].at.items() if all(row.at.get(key) == value for row in rows)}


def _where(row: Row, without: Mapping[str, Value]) -> str:
    return replace(row, at={key: value for key, value in row.at.items() if key not in without}).where()


def _alike(layers: Sequence[str], columns: Mapping[tuple[str, str], Mapping[str, Row]]) -> list[list[str]]:
    """Layers in groups of which nearly the same is measured: half of the columns of the one with fewer, at least."""
    groups: list[tuple[set[tuple[str, str]], list[str]]] = []
    for layer in layers:
        keys = {key for key, column in columns.items() if layer in column}
        home = next((group for group in groups if 2 * len(keys & group[0]) >= min(len(keys), len(group[0]))), None)
        if home is None:
            groups.append((keys, [layer]))
        else:
            home[0].update(keys)
            home[1].append(layer)
    order = {key: index for index, key in enumerate(columns)}
    groups.sort(key=lambda group: min((order[key] for key in group[0]), default=len(order)))
    return [names for _, names in groups]


def _first_sets(columns: Sequence[tuple[str, str]]) -> list[str]:
    """Sets of coordinates whose columns fit into a table; a set is never torn, and the first is always there."""
    counts = Counter(where for _, where in columns)
    totals = itertools.accumulate(counts.values())
    return [
        where
        for index, (where, total) in enumerate(zip(counts, totals, strict=True))
        if not index or total <= MOST_COLUMNS
    ]


def _print_single(rows: Sequence[Row]) -> None:
    """Numbers of no layer: one to a line where they are few, else tables of the quantities that go together."""
    if len(rows) <= MOST_COLUMNS:
        _print_lines(rows)
        return
    for names in _together(rows):
        block = [row for row in rows if row.quantity in names]
        cells = {(row.where(), row.quantity): row for row in block}
        sets = list(dict.fromkeys(row.where() for row in block))
        if len(sets) < 2 or len(cells) < len(block):
            _print_lines(block)
        elif len(names) > 1:
            print()
            _print_cells("", sets, names, cells)
        else:
            for keys in dict.fromkeys(tuple(row.at) for row in block):
                _print_grid([row for row in block if tuple(row.at) == keys])


def _together(rows: Sequence[Row]) -> list[list[str]]:
    """Quantities in groups: two that are measured at common coordinates stand in one table."""
    groups: list[tuple[set[str], list[str]]] = []
    for name in dict.fromkeys(row.quantity for row in rows):
        sets = {row.where() for row in rows if row.quantity == name}
        met = [group for group in groups if group[0] & sets]
        groups = [group for group in groups if not group[0] & sets]
        groups.append((sets.union(*(group[0] for group in met)), [*(name for _, names in met for name in names), name]))
    return [names for _, names in groups]


def _print_grid(rows: Sequence[Row]) -> None:
    """One quantity: its last coordinate that varies goes across, the others down."""
    varying = [key for key in rows[0].at if len({row.at[key] for row in rows}) > 1]
    if not varying:
        _print_lines(rows)
        return
    across = {key: value for key, value in rows[0].at.items() if key != varying[-1]}
    cells = {(_where(row, {varying[-1]: ""}), _where(row, across)): row for row in rows}
    print()
    lines, columns = (list(dict.fromkeys(labels)) for labels in zip(*cells, strict=True))
    _print_cells(rows[0].quantity, lines, columns, cells)


def _print_cells(
    corner: str, lines: Sequence[str], columns: Sequence[str], cells: Mapping[tuple[str, str], Row]
) -> None:
    texts = {key: value_text(row) for key, row in cells.items()}
    print_table([corner, *columns], [[line, *(texts.get((line, column), "") for column in columns)] for line in lines])


def _print_lines(rows: Sequence[Row]) -> None:
    for row in rows:
        print(printable(" ".join(filter(None, (row.quantity, row.where()))) + f": {value_text(row)}"))


def value_text(row: Row) -> str:
    """A number with the sign of its kind and its interval: ``≥ 3.142 [2.9, 3.4]``."""
    text = SIGNS[row.kind] + number_text(row.value)
    if row.low is not None and row.high is not None:
        text += f" [{number_text(row.low, 3)}, {number_text(row.high, 3)}]"
    return text


def number_text(value: float, digits: int = 4) -> str:
    """A few significant digits, and no trailing noise."""
    return f"{value:.{digits}g}" if math.isfinite(value) else str(value)


def printable(text: str) -> str:
    """Text with control characters spelled out: a layer's name cannot move the cursor."""
    return "".join(c if unicodedata.category(c)[0] != "C" or c == "\u200d" else repr(c)[1:-1] for c in text)


def _blocks(widths: Sequence[int], text_columns: Sequence[int]) -> list[list[int]]:
    """Columns in groups that fit the terminal, each led by the columns of text at the start."""
    import shutil

    room = shutil.get_terminal_size((100, 24)).columns
    lead = [index for index in range(len(widths)) if index in text_columns]
    blocks = [list(lead)]
    for index in range(len(widths)):
        if index in lead:
            continue
        if sum(widths[other] + 3 for other in (*blocks[-1], index)) > room and len(blocks[-1]) > len(lead):
            blocks.append(list(lead))
        blocks[-1].append(index)
    return blocks


def _draw(cells: Sequence[Sequence[str]], block: Sequence[int], text_columns: Sequence[int]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index in block:
        table.add_column(Text(cells[0][index]), justify="left" if index in text_columns else "right", overflow="fold")
    for line in cells[1:]:
        table.add_row(*(Text(line[index], style="bold" if index == 0 else "") for index in block))
    Console(file=sys.stdout, emoji=False).print(table)


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text)


def _padded(text: str, width: int, from_left: bool) -> str:
    space = " " * (width - _width(text))
    return text + space if from_left else space + text
