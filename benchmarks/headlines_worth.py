"""What each headline is worth: the tables of docs/atlas.md, from the committed atlas.

    python benchmarks/headlines_worth.py            # prints them; --write puts them into docs/atlas.md

Within each family of at least 20 networks (widths × recipes × seeds), the cross-validated R² of a line through a
headline (its logarithm, where its scale is one) about test error and the outcomes that headlines declare, with 95 %
intervals over recipes.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from lisse.reporting.atlas import load_atlas, outcomes, worths

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "benchmarks" / "results" / "atlas.json"
PAGE = ROOT / "docs" / "atlas.md"
BEGIN, END = "<!-- worth: begin -->", "<!-- worth: end -->"


def tables(path: Path = TABLE) -> Iterator[str]:
    """Lines of Markdown."""
    rows, words = load_atlas(path)
    labels = [label for label, meaning in words.items() if not meaning.get("outcome")]
    counts = Counter(row.family for row in rows)
    failed = sum(bool(row.reason) for row in rows)
    yield (
        f"{len(rows)} rows, {failed} of them failed, of {len({row.weights for row in rows})} networks, in "
        f"{path.stat().st_size / 1e3:.0f} kB: "
        + "; ".join(f"{count} {family}" for family, count in counts.items())
        + "."
    )
    yield ""
    for title, outcome in outcomes(words).items():
        results = worths(rows, words, outcome)
        families = list(dict.fromkeys(worth.family for worth in results))
        sizes = {worth.family: (worth.n, worth.power.groups) for worth in results}
        yield f"**{title}**, R² for networks left out:"
        yield ""
        heads = [f"{name} ({sizes[name][0]} networks, {sizes[name][1]} recipes)" for name in families]
        yield f"| | {' | '.join(heads)} |"
        yield "|---|" + "---|" * len(families)
        for label in labels:
            powers = {worth.family: worth.power.skill for worth in results if worth.label == label}
            cells = [_cell(powers[name]) if name in powers else "" for name in families]
            if any(cells):
                yield f"| {label} | " + " | ".join(cells) + " |"
        yield ""


def _cell(interval: object) -> str:
    value, low, high = (float(getattr(interval, end)) for end in ("value", "low", "high"))
    if not math.isfinite(value):
        return "–"
    text = f"{value:.2f} [{low:.2f}, {high:.2f}]"
    return f"**{text}**" if low > 0 else text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    text = "\n".join(tables())
    print(text)
    if write:
        page = PAGE.read_text("utf-8")
        start, _, rest = page.partition(BEGIN)
        PAGE.write_text(f"{start}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}", "utf-8")


if __name__ == "__main__":
    main()
