"""Papers that a report may cite, made from docs/references.bib: `python tools/papers.py`.

The bibliography is not part of the wheel, and a report that is opened on a train should still name its papers.
"""

from __future__ import annotations

import json
from pathlib import Path

from docs_hooks import BIBLIOGRAPHY, bibliography

PAPERS = Path(__file__).resolve().parent.parent / "src" / "lisse" / "reporting" / "page" / "templates" / "papers.json"


def papers(text: str) -> dict[str, str]:
    """Key to one line: authors, title, year."""
    lines = {}
    for key, fields in bibliography(text).items():
        names = [name.partition(",")[0] for name in fields["author"].split(" and ")]
        authors = (
            names[0] if len(names) == 1 else f"{names[0]} and {names[1]}" if len(names) == 2 else f"{names[0]} et al."
        )
        eprint = f", arXiv:{fields['eprint']}" if "eprint" in fields else ""
        lines[key] = f"{authors} ({fields['year']}), {fields['title'].rstrip('.')}{eprint}"
    return lines


if __name__ == "__main__":
    index = papers(BIBLIOGRAPHY.read_text(encoding="utf-8"))
    PAPERS.write_text(json.dumps(index, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
