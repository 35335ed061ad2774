"""Tables on standard output: drawn in a terminal, aligned columns of plain text in a pipe."""

from __future__ import annotations

import math
import sys
import unicodedata
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


def print_table(header: Sequence[str], lines: Iterable[Sequence[str]], *, left: Sequence[int] = (0,)) -> None:
    """Print a table; columns ``left`` are text, the others numbers. A terminal gets the columns that fit at a time."""
    cells = [[printable(text) for text in line] for line in (header, *lines)]
    if sys.stdout.isatty():
        cells[0] = [
            text.replace(" ", "\n", 1) if "=" in text else text for text in cells[0]
        ]  # coordinates under the quantity: narrower
        widths = [
            max(_width(part) for line in cells for part in line[place].split("\n")) for place in range(len(header))
        ]
        for block in _blocks(widths, left):
            _draw(cells, block, left)
    else:
        widths = [max(_width(line[place]) for line in cells) for place in range(len(header))]
        for line in cells:
            print("  ".join(_padded(text, widths[place], place in left) for place, text in enumerate(line)).rstrip())


def print_profile(profile: Profile) -> None:
    """One line per layer and a column per quantity, then the numbers that belong to no layer, meanings and notes.

    A profile of many columns shows the first sets of coordinates, whole, and names the others.
    """
    layers = list(profile.table().index)
    along = [row for row in profile.rows if row.layer is not None]
    rest = [row for row in profile.rows if row.layer is None]
    sets = list(dict.fromkeys((row.quantity, row.where()) for row in along))
    everywhere: dict[str, Value] = _common(along) if len(sets) > MOST_COLUMNS else {}
    columns: dict[tuple[str, str], dict[str, Row]] = {}
    for row in along:
        columns.setdefault((row.quantity, _where(row, everywhere)), {})[str(row.layer)] = row
    shown_sets, others = _first_sets(list(columns))
    if shown_sets:
        chosen = {" ".join(filter(None, key)): columns[key] for key in columns if key[1] in shown_sets}
        lines = [
            [layer, *(shown(column[layer]) if layer in column else "" for column in chosen.values())]
            for layer in layers
        ]
        print_table(["layer", *chosen], lines)
    if everywhere:
        print(printable("In every column: " + ", ".join(f"{key}={value}" for key, value in everywhere.items()) + "."))
    if others:
        print(printable(f"In the profile, not shown: the same for {'; '.join(others)}."))
    _print_rest(rest)
    used = {row.quantity for row in profile.rows}
    kinds = {row.kind for row in profile.rows}
    if used:
        print()
    for name, meaning in profile.quantities.items():
        if name in used:
            print(printable(f"{name}: {meaning.says}"))
    said = [text for kind, text in LEGEND.items() if kind in kinds]
    if any(row.low is not None for row in profile.rows):
        said.append("[low, high] is an interval over samples")
    if said:
        print("; ".join(said) + ".")
    for note in profile.notes:
        print(printable(f"Note: {note}"))


def _common(rows: Sequence[Row]) -> dict[str, Value]:
    """Coordinates that every row has, with the same value."""
    first = rows[0].at
    return {key: value for key, value in first.items() if all(row.at.get(key) == value for row in rows)}


def _where(row: Row, without: Mapping[str, Value]) -> str:
    return replace(row, at={key: value for key, value in row.at.items() if key not in without}).where()


def _first_sets(columns: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """Sets of coordinates whose columns are shown, and the others; a set is never torn."""
    counts: dict[str, int] = {}
    for _, where in columns:
        counts[where] = counts.get(where, 0) + 1
    sets, used = list(counts), 0
    for place, where in enumerate(sets):
        used += counts[where]
        if used > MOST_COLUMNS and place > 0:
            return sets[:place], sets[place:]
    return sets, []


def _print_rest(rest: Sequence[Row]) -> None:
    """Numbers of no layer: one to a line, or a table where several quantities have many coordinates."""
    places = list(dict.fromkeys(row.where() for row in rest))
    names = list(dict.fromkeys(row.quantity for row in rest))
    found = {(row.where(), row.quantity): row for row in rest}
    if len(rest) <= MOST_COLUMNS or len(names) < 2 or len(places) < 2 or len(found) < len(rest):
        for row in rest:
            print(printable(" ".join(filter(None, (row.quantity, row.where()))) + f": {shown(row)}"))
        return
    print()
    cells = [
        [place, *(shown(found[place, name]) if (place, name) in found else "" for name in names)] for place in places
    ]
    print_table(["", *names], cells)


def shown(row: Row) -> str:
    """A number with the sign of its kind and its interval: ``≥ 3.142 [2.9, 3.4]``."""
    text = SIGNS[row.kind] + number(row.value)
    if row.low is not None and row.high is not None:
        text += f" [{number(row.low, 3)}, {number(row.high, 3)}]"
    return text


def number(value: float, digits: int = 4) -> str:
    """A few significant digits, and no trailing noise."""
    return f"{value:.{digits}g}" if math.isfinite(value) else str(value)


def printable(text: str) -> str:
    """Text with control characters spelled out: a layer's name cannot move the cursor."""
    return "".join(c if unicodedata.category(c)[0] != "C" or c == "\u200d" else repr(c)[1:-1] for c in text)


def _blocks(widths: Sequence[int], left: Sequence[int]) -> list[list[int]]:
    """Columns in groups that fit the terminal, each led by the columns of text at the start."""
    import shutil

    room = shutil.get_terminal_size((100, 24)).columns
    lead = [place for place in range(len(widths)) if place in left and place <= max(left)]
    blocks, used = [list(lead)], sum(widths[place] + 3 for place in lead)
    start = used
    for place in range(len(widths)):
        if place in lead:
            continue
        if used + widths[place] + 3 > room and len(blocks[-1]) > len(lead):
            blocks.append(list(lead))
            used = start
        blocks[-1].append(place)
        used += widths[place] + 3
    return blocks


def _draw(cells: Sequence[Sequence[str]], block: Sequence[int], left: Sequence[int]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place in block:
        table.add_column(Text(cells[0][place]), justify="left" if place in left else "right", overflow="fold")
    for line in cells[1:]:
        table.add_row(*(Text(line[place], style="bold" if place == 0 else "") for place in block))
    Console(file=sys.stdout, emoji=False).print(table)


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text)


def _padded(text: str, width: int, left: bool) -> str:
    space = " " * (width - _width(text))
    return text + space if left else space + text
