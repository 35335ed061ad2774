"""Five papers, headline by headline: what each says, what came out here, and at which scale.

``headlines.toml`` names for every headline the claims of ``expected.json`` that carry it, or why nothing was run.
Verdicts, numbers, intervals and dates are read from ``expected.json``, never written by hand:

    python -m lisse_experiments.headlines docs/papers.md
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lisse_experiments.form import clock, expected

HERE = Path(__file__).parent
# Where a claim was judged at several scales, the first of these counts.
LARGEST = ("paper", "sizes", "medium", "small", "smoke")

HEAD = """# Five papers, headline by headline

What each paper says, theirs beside ours, and the scale it was run at. Made from the committed numbers of
[the experiments](experiments.md) by `python -m lisse_experiments.headlines docs/papers.md`; not written by hand.

*Holds* and *fails* are beyond the interval beside them; where the interval covers both, the headline is *undecided*.
*In part* says that some of its claims hold and others fail or stay undecided. *n* counts what the interval was taken
over: samples, pairs, or seeds.
"""


@dataclass(frozen=True)
class Headline:
    """What a paper ``says``, ``where``, the ``claims`` that carry it with a word for each; a remark (``left``)."""

    says: str
    where: str = ""
    claims: Mapping[str, str] = field(default_factory=dict)
    findings: Sequence[str] = ()
    scale: str | None = None
    left: str = ""


@dataclass(frozen=True)
class Chapter:
    """A paper's headlines; ``seeds`` says how many trainings stand behind each scale."""

    paper: str
    title: str
    seeds: Mapping[str, str]
    headlines: tuple[Headline, ...]


def chapters(file: Path = HERE / "headlines.toml") -> list[Chapter]:
    """The papers of the file, in its order."""
    with file.open("rb") as stream:
        tables = tomllib.load(stream)
    return [
        Chapter(
            paper,
            table["title"],
            table["seeds"],
            tuple(Headline(**entry) for entry in table["headline"]),
        )
        for paper, table in tables.items()
    ]


def scale_of(headline: Headline, entries: Mapping[str, Any]) -> str:
    """The largest scale at which every claim and finding of a headline was taken."""
    for scale in (headline.scale,) if headline.scale else LARGEST:
        entry = entries.get(scale or "", {"claims": {}, "findings": {}})
        if all(key in entry["claims"] for key in headline.claims) and all(
            key in entry["findings"] for key in headline.findings
        ):
            return str(scale)
    raise KeyError(f"headlines: no scale has all of {', '.join((*headline.claims, *headline.findings))}.")


def verdict(answers: Sequence[bool | None]) -> str:
    """One word for the verdicts of the claims behind a headline."""
    kinds = set(answers)
    if len(kinds) == 1:
        return {True: "holds", False: "fails", None: "undecided"}[kinds.pop()]
    return "in part" if True in kinds else "fails in part, rest undecided"


def page(papers: Sequence[Chapter], folder: Path = HERE) -> str:
    """The whole page as Markdown."""
    sections = [HEAD]
    for chapter in papers:
        entries = expected(folder / chapter.paper)
        lines = [
            f"## {chapter.title}\n",
            "| the paper says | ours | scale | here |",
            "|---|---|---|---|",
            *(_row(headline, entries) for headline in chapter.headlines),
            "",
        ]
        lines += [
            f"*{scale.capitalize()}*: {chapter.seeds[scale]}; "
            f"{entry['machine']}, {entry['date']}, {clock(entry['seconds'])}.  "
            for scale, entry in entries.items()
        ]
        source = f"experiments/lisse_experiments/{chapter.paper}"
        lines.append(f"\nEvery number: `{source}/tables.md`; what was run and chosen: `{source}/method.md`.\n")
        sections.append("\n".join(lines))
    return "\n".join(sections)


def _row(headline: Headline, entries: Mapping[str, Any]) -> str:
    says = headline.says + (f" ({headline.where})" if headline.where else "")
    if not headline.claims:
        return f"| {says} | {headline.left} | | **not run** |"
    scale = scale_of(headline, entries)
    entry = entries[scale]
    ours = [_judged(entry["claims"][key], label) for key, label in headline.claims.items()]
    ours += [_number(entry["findings"][key]) for key in headline.findings]
    ours += [headline.left] if headline.left else []
    answer = verdict([entry["claims"][key]["holds"] for key in headline.claims])
    return f"| {says} | {'; '.join(ours)} | {scale} | **{answer}** |"


def _judged(claim: Mapping[str, Any], label: str) -> str:
    """A claim's numbers, with its verdict where it is one of several (it has a label then)."""
    detail = claim.get("detail") or claim["says"]
    if not label:
        return detail
    return f"{label}: {detail}" + {True: "", False: " (fails)", None: " (undecided)"}[claim["holds"]]


def _number(finding: Mapping[str, Any]) -> str:
    text = f"{finding['says']}: {finding['value']:.4g}"
    if finding.get("low") is not None:
        text += f" [{finding['low']:.4g}, {finding['high']:.4g}]"
    if finding.get("n"):
        text += f", n = {finding['n']:,}"
    return text + (f"; theirs {finding['theirs']:.4g}" if finding.get("theirs") is not None else "")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(chapters()), encoding="utf-8")
