"""What an experiment leaves in its folder: tables as CSV, figures as PNG, each file whole or not there."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lisse.profile_file import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
