"""The few numbers that stand for a profile: one per idea, chosen by a visible table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from lisse.profile import Profile, Quantity, Row, Value
from lisse.reporting.page.entries import Entries, Entry

T = TypeVar("T")


@dataclass(frozen=True)
class Headline:
    """A number of the first screen.

    ``instrument`` and ``quantity`` name the rows; of those without a layer, or else of those of the last layer, the one
    whose coordinates come first in ``prefers`` stands for all. ``word`` is what a better value makes a model.
    """

    label: str
    instrument: str
    quantity: str
    prefers: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    word: str = "smoother"
    says: str = ""


HEADLINES = (
    Headline("TopoLip", "topology", "topolip_change_rate", {"dim": ("all", 0, 1), "p": (1, 2)},
             says="the largest change rate of the data's shape"),
    Headline("R_f", "stability", "relative_stability", {"cut": (3,), "delta": (1.0,)},
             says="the output's answer to smooth deformations over its answer to noise"),
    Headline("bound over stretch", "contraction", "log_looseness", {}, "bounded more tightly",
             says="powers of ten between the proved bound and the largest stretch that was seen"),
    Headline("n·ρ", "propagation", "scaled_ratio", {},
             says="how much a layer changes its tokens, times the patches per side"),
    Headline("distortion", "isometry", "distance_error", {"pairs": ("all",)},
             says="how far distances between samples at the output are from those of the input"),
    Headline("stretch", "sensitivity", "lipschitz_from_input", {"over": ("mean", "max")},
             says="how much small changes of the input grow up to the output, from below"),
    Headline("mCE", "robustness", "mean_corruption_error", {}, "more robust",
             says="the mean error over corruptions and severities, not divided by a baseline's"),
    Headline("accuracy", "robustness", "clean_accuracy", {}, "more accurate",
             says="the share of samples classified right as they are"),
)  # fmt: skip


def headlines(known: Iterable[tuple[str, Mapping[str, Quantity]]]) -> list[Headline]:
    """The headlines of some instruments' quantities: the table's, and one for an instrument that it does not know.

    That one is the instrument's first quantity of which more or less is better.
    """
    found = []
    for name, quantities in known:
        own = [line for line in HEADLINES if line.instrument == name and line.quantity in quantities]
        if not own:
            first = next((some for some in quantities.values() if some.better != "neither"), None)
            own = [] if first is None else [Headline(first.label, name, first.name, word="better")]
        found += own
    return sorted(found, key=lambda line: HEADLINES.index(line) if line in HEADLINES else len(HEADLINES))


def page_headlines(entries: Entries) -> list[Headline]:
    """The headlines of all instruments on a page."""
    return headlines((name, entries.quantities(name)) for name in entries.instruments)


def headline_entry(entries: Entries, line: Headline, model: int, *, initial: bool = False) -> Entry | None:
    """The row that stands for a quantity of a model, or ``None`` where it has none."""
    some = entries.of(line.quantity, model=model, instrument=line.instrument, initial=initial)
    return chosen(some, line, lambda entry: entry.row)


def headline_row(profile: Profile, line: Headline) -> Row | None:
    """The row of a profile that a headline stands for."""
    rows = [row for part in profile.parts if part.instrument == line.instrument for row in part.rows]
    return chosen([row for row in rows if row.quantity == line.quantity], line, lambda row: row)


def chosen(some: Sequence[T], line: Headline, of: Callable[[T], Row]) -> T | None:
    """Of the rows of one quantity, the one that stands for them."""
    whole = [item for item in some if of(item).layer is None]
    if not whole:
        deepest = max((depth for item in some if (depth := of(item).depth) is not None), default=None)
        whole = [item for item in some if of(item).depth == deepest]

    def rank(item: T) -> tuple[float, ...]:
        row = of(item)
        places = [
            float(list(order).index(row.at[key])) if row.at.get(key) in order else float(len(order))
            for key, order in line.prefers.items()
        ]
        size = row.at.get("cloud")  # of clouds of several sizes, the largest
        larger = -float(size) if isinstance(size, (int, float)) else 0.0
        return (float("head" in row.at), *places, larger, 0.0 if math.isfinite(row.value) else 1.0)

    return min(whole, key=rank) if whole else None
