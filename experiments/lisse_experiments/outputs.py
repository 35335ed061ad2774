"""What an experiment leaves in its folder: results, tables as CSV, figures as PNG, each file whole or not there."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lisse.profile_file import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def request_of(*options: object) -> str:
    """A hash of everything that was asked for: another plan does not take an old result for its own."""
    return hashlib.blake2b(json.dumps(options, sort_keys=True).encode(), digest_size=8).hexdigest()


def keep(file: Path, result: Mapping[str, Any]) -> None:
    """A result as a file of its own, which :func:`stored` gives back; its ``request`` says what it answers."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with writing(file) as written:
        written.write((json.dumps(result, indent=1) + "\n").encode())


def stored(file: Path, request: str) -> dict[str, Any] | None:
    """A result that answers this request."""
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return result if isinstance(result, dict) and result.get("request") == request else None


def csv_file(path: Path, lines: Iterable[Sequence[object]]) -> Path:
    """Lines of cells, the header first, written to ``path``."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    with writing(path) as file:
        file.write(text.getvalue().encode())
    return path


def png_files(figures: Iterable[tuple[str, Figure]], folder: Path, *, dpi: int = 150) -> list[Path]:
    """Figures by name as ``folder/NAME.png``; one that is drawn on demand is dropped before the next is drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures:
        path = folder / f"{name}.png"
        with writing(path) as file:
            figure.savefig(file, format="png", dpi=dpi)
        paths.append(path)
    return paths
