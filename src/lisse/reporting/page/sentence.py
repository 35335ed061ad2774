"""A sentence of the page: its words, the rows it rests on, what it is about; and numbers in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from lisse.reporting.kinds import KINDS
from lisse.reporting.page.axis import short_number
from lisse.reporting.page.entries import Entry

# Order on a page and in a terminal: the three lines (what differs, how sure, what it means), then what is folded.
Topic = Literal["overall", "sure", "meaning", "caveat", "method", "pair", "comparison", "training"]
TOPICS = get_args(Topic)
TOP = TOPICS[:3]


@dataclass(frozen=True)
class Sentence:
    """A sentence, the numbers of the rows behind it, and what it is about.

    ``models`` are the indices of the models it names; a caveat may rest on no row but on where profiles come from.
    """

    text: str
    rows: tuple[int, ...]
    topic: Topic
    models: tuple[int, ...]
    instrument: str = ""


def entry_text(entry: Entry) -> str:
    """A number with the sign of its kind and its interval."""
    row = entry.row
    text = KINDS[row.kind].before + short_number(row.value)
    return text if row.low is None else f"{text} [{short_number(row.low)}, {short_number(row.high)}]"


def listed(words: Sequence[str], last: str = "and") -> str:
    """``a, b and c``."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + f" {last} {words[-1]}"
