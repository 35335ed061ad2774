"""atlas(): one static page of every network that was measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lisse.profile import Profile
from lisse.profile_file import writing
from lisse.progress import Event, Listener
from lisse.reporting.atlas.rows import AtlasRow, Words, atlas_rows, save_atlas
from lisse.reporting.atlas.worth import outcomes, worths
from lisse.reporting.page.axis import short_number
from lisse.reporting.page.document import report
from lisse.reporting.page.entries import LIGHT
from lisse.reporting.page.frame import brief, framed


def atlas(
    sources: str | Path | Sequence[str | Path],
    path: str | Path,
    *,
    title: str = "Atlas",
    reports: bool = True,
    table: str | Path | None = None,
    progress: Listener | None = None,
) -> Path:
    """Write one page of every profile in ``sources`` to ``path``: a table, scatter plots, what each number is worth.

    ``sources`` are folders (searched for profiles, and for the failures of sweeps), profiles, and atlases that
    ``lisse atlas --table`` wrote. The page is one file and opens from disk, without a server or the network. With
    ``reports`` every network's own page is written to a folder beside it (``atlas-reports``), and linked; with
    ``table`` the rows are kept in a file, an atlas itself.
    """
    path = Path(path)
    rows, words, complaints = atlas_rows([sources] if isinstance(sources, (str, Path)) else list(sources))
    if not rows:
        raise ValueError(f"atlas: sources must hold profiles, got none in {sources}. " + " ".join(complaints[:1]))
    tell: Listener = progress or (lambda event: None)
    for complaint in complaints:
        tell(Event("atlas", say=f"left out: {complaint}", level="warning"))
    if table is not None:
        save_atlas(rows, words, table)
    links = _reports(rows, path, tell) if reports else {}
    with writing(path) as file:
        file.write(_atlas_text(rows, words, links, title, complaints).encode("utf-8", "backslashreplace"))
    return path


def _reports(rows: Sequence[AtlasRow], path: Path, tell: Listener) -> dict[str, str]:
    """A page for every profile, unless it is there and younger; by key, its address from the atlas."""
    folder = path.with_name(path.stem + "-reports")  # not its stem alone: that may be the folder of the sweep
    links = {}
    for index, row in enumerate(rows):
        if row.file:
            page = folder / f"{row.key}.html"
            if not page.exists() or page.stat().st_mtime < Path(row.file).stat().st_mtime:
                report(Profile.load(row.file), page, title=row.name)
            links[row.key] = f"{quote(folder.name)}/{page.name}"
        tell(Event("reports", index + 1, len(rows), "networks"))
    return links


def _atlas_text(
    rows: Sequence[AtlasRow],
    words: Words,
    links: Mapping[str, str],
    title: str,
    complaints: Sequence[str],
) -> str:
    order = list(dict.fromkeys(row.family for row in rows))
    rows = sorted(rows, key=lambda row: (order.index(row.family), row.name, row.seed))
    labels = list(dict.fromkeys(label for row in rows for label in row.numbers))
    families = list(dict.fromkeys(row.family for row in rows))
    datasets = sorted({row.data for row in rows})
    distinct = dict.fromkeys(row.setting for row in rows if row.setting)  # what failed has none
    settings = {setting: f"{index + 1}" for index, setting in enumerate(distinct)}
    numbers = ["test error", *labels, "parameters"]
    points = {
        "names": [brief(row.name) for row in rows],
        "families": list(map(brief, families)),
        "looks": [_look(index) for index in range(len(families))],
        "family": [families.index(row.family) for row in rows],
        "numbers": list(map(brief, numbers)),
        "data": [datasets.index(row.data) for row in rows],
        "setting": [int(settings.get(row.setting, 0)) - 1 for row in rows],
        "values": [[_number(row, name) for name in numbers] for row in rows],
    }
    return framed(
        "atlas/atlas",
        title=brief(title),
        labels=[(label, words.get(label, {}).get("says", "")) for label in labels],
        rows=[_line(row, index, families, labels, links, settings) for index, row in enumerate(rows)],
        families=families,
        datasets=datasets,
        networks=len({row.weights or row.key for row in rows}),
        settings=settings,
        kinds=_kinds(rows, settings),
        versions=Counter(row.version for row in rows if row.version).most_common(),
        failed=sum(bool(row.reason) for row in rows),
        worth=_worth_lines(rows, words),
        outcomes=list(outcomes(words)),
        complaints=complaints,
        colours=len(families),
        look=_look,
        data=points,
    )  # fmt: skip


def _kinds(rows: Sequence[AtlasRow], settings: Mapping[str, str]) -> list[str]:
    """Every setting in a few words: its data, its version where there are several, and how many rows it has."""
    versions = {row.version for row in rows if row.version}
    counts = Counter(row.setting for row in rows)
    members = {row.setting: row for row in reversed(rows)}
    lines = []
    for setting, number in settings.items():
        row, count = members[setting], counts[setting]
        words = [row.data, *([row.version] if len(versions) > 1 else []), f"{count} row{'' if count == 1 else 's'}"]
        lines.append(f"{number}: {brief(', '.join(words))}")
    return lines


def _line(
    row: AtlasRow,
    index: int,
    families: Sequence[str],
    labels: Sequence[str],
    links: Mapping[str, str],
    settings: Mapping[str, str],
) -> dict[str, Any]:
    """A row as a template draws it: words, and for each number its text, its interval and what it is sorted by."""
    cells = [_cell(row.error[:3] if row.error else None, row.error[3] if row.error else 0)]
    for label in labels:
        number = row.numbers.get(label)
        cells.append(_cell(number[:3] if number else None, number[3] if number else 0))
    return {
        "index": index,
        "row": row,
        "link": links.get(row.key, ""),
        "look": _look(families.index(row.family)),
        "cells": cells,
        "setting": settings.get(row.setting, ""),
    }


def _look(family: int) -> str:
    """The classes that colour a family; those that must share a colour are full, hollow and pale."""
    return f"m{family} turn{family // len(LIGHT) % 3}"


def _cell(number: Sequence[float | None] | None, n: int) -> dict[str, Any]:
    if number is None or number[0] is None:
        return {"text": "", "ends": "", "sort": "", "n": 0}
    value, (low, high) = float(number[0]), number[1:]
    ends = "" if low is None or high is None else f"[{short_number(low)}, {short_number(high)}]"
    sort = repr(value) if math.isfinite(value) else ("1e999" if value > 0 else "")
    return {"text": short_number(value), "ends": ends, "sort": sort, "n": n}


def _number(row: AtlasRow, name: str) -> float | None:
    """A number that can be drawn: the span of two of them is one as well."""
    if name == "test error":
        value = row.error[0] if row.error else None
    elif name == "parameters":
        value = row.parameters
    else:
        value = row.numbers[name][0] if name in row.numbers else None
    return float(f"{value:.6g}") if value is not None and abs(value) < 1e300 else None


def _worth_lines(rows: Sequence[AtlasRow], words: Words) -> list[dict[str, Any]]:
    """A line for each family, setting and headline, with a cell for each outcome, which may be empty."""
    lines: dict[tuple[str, str, str], dict[str, Any]] = {}
    numbers = outcomes(words)
    for title, outcome in numbers.items():
        for worth in worths(rows, words, outcome):
            if math.isfinite(float(worth.power.skill.value)):
                key = (worth.family, worth.setting, worth.label)
                cells = lines.setdefault(key, dict.fromkeys(numbers))
                cells[title] = {
                    "skill": _interval_text(worth.power.skill),
                    "rank": _interval_text(worth.power.rank),
                    "sure": float(worth.power.skill.low) > 0,
                    "n": worth.n,
                    "groups": worth.power.groups,
                }
    return [
        {
            "family": family,
            "setting": setting,
            "label": label,
            "cells": list(cells.values()),
            **{count: max(cell[count] for cell in cells.values() if cell) for count in ("n", "groups")},
        }
        for (family, setting, label), cells in sorted(lines.items(), key=lambda item: item[0][:2])
    ]


def _interval_text(interval: Any) -> str:
    value, low, high = (f"{float(end):.2f}" for end in (interval.value, interval.low, interval.high))
    return f"{value} [{low}, {high}]"
