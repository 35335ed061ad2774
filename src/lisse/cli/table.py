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

    Where there are many columns, layers of which other things are measured (attention, and the blocks around it) are a
    table each, and a table shows the first sets of coordinates, of those the first quantities, and names the others.
    """
    along = [row for row in profile.rows if row.layer is not None]
    layers = list(profile.table().index) if along else []
    rest = [row for row in profile.rows if row.layer is None]
    sets = list(dict.fromkeys((row.quantity, row.where()) for row in along))
    everywhere: dict[str, Value] = _common(along) if len(sets) > MOST_COLUMNS else {}
    columns: dict[tuple[str, str], dict[str, Row]] = {}
    for row in along:
        columns.setdefault((row.quantity, _where(row, everywhere)), {})[str(row.layer)] = row
    others, left_out, used = list[tuple[str, str]](), list[str](), {row.quantity for row in rest}
    for place, group in enumerate(_alike(layers, columns) if len(columns) > MOST_COLUMNS else [layers] * bool(columns)):
        there = [key for key, column in columns.items() if any(layer in column for layer in group)]
        shown_sets = _first_sets(there)
        chosen = [key for key in there if key[1] in shown_sets]
        others += [key for key in there if key[1] not in shown_sets]
        left_out += [" ".join(filter(None, key)) for key in chosen[MOST_COLUMNS:]]
        chosen = chosen[:MOST_COLUMNS]
        used |= {quantity for quantity, _ in chosen}
        lines = [[layer, *(shown(columns[key][layer]) if layer in columns[key] else "" for key in chosen)]
                 for layer in group]  # fmt: skip
        if place:
            print()
        print_table(["layer", *(" ".join(filter(None, key)) for key in chosen)], lines)
    if left_out:
        print(printable(f"In the profile, not shown: {', '.join(dict.fromkeys(left_out))}. `--json` prints all."))
    if everywhere:
        print(printable("In every column: " + ", ".join(f"{key}={value}" for key, value in everywhere.items()) + "."))
    if others:
        elsewhere = dict.fromkeys(where for name, where in others if name in used and where)
        unseen = dict.fromkeys(name for name, where in others if name not in used or not where)
        told = [f"the same for {'; '.join(elsewhere)}"] * bool(elsewhere) + [", ".join(unseen)] * bool(unseen)
        more = " `--json` prints all." if unseen else ""
        print(printable(f"In the profile, not shown: {'; and '.join(told)}.{more}"))
    _print_rest(rest)
    kinds = {row.kind for row in profile.rows if row.quantity in used}
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


def _alike(layers: Sequence[str], columns: Mapping[tuple[str, str], Mapping[str, Row]]) -> list[list[str]]:
    """Layers in groups of which nearly the same is measured: half of the columns of the one with fewer, at least."""
    groups: list[tuple[set[tuple[str, str]], list[str]]] = []
    for layer in layers:
        mine = {key for key, column in columns.items() if layer in column}
        home = next((group for group in groups if 2 * len(mine & group[0]) >= min(len(mine), len(group[0]))), None)
        if home is None:
            groups.append((mine, [layer]))
        else:
            home[0].update(mine)
            home[1].append(layer)
    order = {key: place for place, key in enumerate(columns)}
    groups.sort(key=lambda group: min((order[key] for key in group[0]), default=len(order)))
    return [names for _, names in groups]


def _first_sets(columns: Sequence[tuple[str, str]]) -> list[str]:
    """Sets of coordinates whose columns are shown; a set is never torn."""
    counts: dict[str, int] = {}
    for _, where in columns:
        counts[where] = counts.get(where, 0) + 1
    sets, used = list(counts), 0
    for place, where in enumerate(sets):
        used += counts[where]
        if used > MOST_COLUMNS and place > 0:
            return sets[:place]
    return sets


def _print_rest(rest: Sequence[Row]) -> None:
    """Numbers of no layer: one to a line where they are few, else tables of the quantities that go together."""
    if len(rest) <= MOST_COLUMNS:
        _print_lines(rest)
        return
    for names in _together(rest):
        block = [row for row in rest if row.quantity in names]
        places = list(dict.fromkeys(row.where() for row in block))
        found = {(row.where(), row.quantity): row for row in block}
        if len(places) < 2 or len(found) < len(block):
            _print_lines(block)
        elif len(names) > 1:
            print()
            cells = [[where, *(_cell(found, where, name) for name in names)] for where in places]
            print_table(["", *names], cells)
        else:
            for keys in dict.fromkeys(tuple(row.at) for row in block):
                _print_grid([row for row in block if tuple(row.at) == keys])


def _together(rest: Sequence[Row]) -> list[list[str]]:
    """Quantities in groups: two that are measured at a common place stand in one table."""
    groups: list[tuple[set[str], list[str]]] = []
    for name in dict.fromkeys(row.quantity for row in rest):
        places = {row.where() for row in rest if row.quantity == name}
        met = [group for group in groups if group[0] & places]
        groups = [group for group in groups if not group[0] & places]
        groups.append(
            (places.union(*(group[0] for group in met)), [each for group in met for each in group[1]] + [name])
        )
    return [names for _, names in groups]


def _print_grid(rows: Sequence[Row]) -> None:
    """One quantity: its last coordinate that varies goes across, the others down."""
    varying = [key for key in rows[0].at if len({row.at[key] for row in rows}) > 1]
    if not varying:
        _print_lines(rows)
        return
    across = {key: value for key, value in rows[0].at.items() if key != varying[-1]}
    columns = list(dict.fromkeys(_where(row, across) for row in rows))
    down = list(dict.fromkeys(_where(row, {varying[-1]: ""}) for row in rows))
    found = {(_where(row, {varying[-1]: ""}), _where(row, across)): row for row in rows}
    print()
    print_table(
        [rows[0].quantity, *columns], [[line, *(_cell(found, line, column) for column in columns)] for line in down]
    )


def _cell(found: Mapping[tuple[str, str], Row], line: str, column: str) -> str:
    return shown(found[line, column]) if (line, column) in found else ""


def _print_lines(rows: Sequence[Row]) -> None:
    for row in rows:
        print(printable(" ".join(filter(None, (row.quantity, row.where()))) + f": {shown(row)}"))


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
