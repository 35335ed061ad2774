"""The trained networks of the committed atlas in the small form that a report carries.

    python benchmarks/packaged_atlas.py            # says how large it is; --write puts it into the package

A network stands once for its weights, with its test error and the headlines that its instruments declare; random
weights are controls, and nobody's peers.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from lisse.profile_file.document import free_to_json
from lisse.reporting.atlas import AtlasRow, load_atlas
from lisse.reporting.declared import INSTRUMENTS
from lisse.reporting.page.headline import headings

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "benchmarks" / "results" / "atlas.json"
PACKED = ROOT / "src" / "lisse" / "reporting" / "page" / "networks.json"


def packed(path: Path = TABLE) -> str:
    rows, _ = load_atlas(path)
    groups: dict[str, list[AtlasRow]] = {}
    for row in rows:
        if row.unit is not None and not row.reason and row.error and (row.unit["training"] or "weights=" in row.spec):
            groups.setdefault(json.dumps([row.data, row.version, row.unit["instruments"]]), []).append(row)
    return "[" + ",\n".join(_group(members) for members in groups.values()) + "]\n"


def _group(rows: list[AtlasRow]) -> str:
    distinct = {row.weights: row for row in sorted(rows, key=lambda row: -row.seed)}  # the first seed of each
    options = rows[0].unit["instruments"]
    declared = headings((name, {item.name: item for item in INSTRUMENTS[name].QUANTITIES}) for name in options)
    columns = [heading for heading in declared if any(heading.label in row.numbers for row in rows)]
    head = {
        "data": rows[0].data,
        "fingerprints": sorted({row.data_hash for row in distinct.values()}),
        "version": rows[0].version,
        "options": free_to_json(options, "options"),
        "headlines": [[heading.instrument, heading.quantity.name] for heading in columns],
    }
    lines = []
    for row in sorted(distinct.values(), key=lambda row: (row.family, row.key)):
        numbers = [row.error, *(row.numbers.get(heading.label, (None,) * 3) for heading in columns)]
        lines.append(json.dumps([row.family, *(_short(end) for number in numbers for end in number[:3])],
                                separators=(",", ":")))  # fmt: skip
    return json.dumps(head, allow_nan=False)[:-1] + ', "networks": [\n' + ",\n".join(lines) + "]}"


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    write, text = parser.parse_args().write, packed()
    for group in json.loads(text):
        print(f"{group['data']}: {len(group['networks'])} networks, {len(group['headlines'])} headlines")
    print(f"{len(text.encode()):,} bytes")
    if write:
        PACKED.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
