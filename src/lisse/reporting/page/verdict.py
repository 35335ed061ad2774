"""What the numbers say, in plain words. Every sentence names the rows that it rests on.

Two models are called different only where their intervals do not overlap. A number without an interval speaks of its
own samples and nothing else, and a model is never compared with one that was measured on other data.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lisse.profile import Quantity, Row
from lisse.reporting.page.axis import number
from lisse.reporting.page.entries import Entries, Entry, Model
from lisse.reporting.page.headline import HEADLINES, Headline, headline_entry, page_headlines

# Why a number does not tell two models apart.
WHY = {
    "overlap": "the intervals overlap in",
    "no interval": "there are no intervals to go by for",
    "not alike": "they were not measured alike in",
    "no value": "one of them has no value of",
}
Topic = Literal["overall", "comparison", "tear", "training", "sure", "caveat"]


@dataclass(frozen=True)
class Sentence:
    """A sentence, the numbers of the rows behind it, and what it is about.

    ``models`` are the places of the models it names; a caveat may rest on no row but on where profiles come from.
    """

    text: str
    rows: tuple[int, ...]
    topic: Topic
    models: tuple[int, ...]
    instrument: str = ""


@dataclass(frozen=True)
class Comparison:
    """Two models and one headline: who is better, ``None`` where the intervals overlap or there are none."""

    line: Headline
    quantity: Quantity
    entries: tuple[Entry, Entry]
    better: int | None
    reason: Literal["apart", "overlap", "no interval", "not alike", "no value"]


def verdict(entries: Entries) -> list[Sentence]:
    """All sentences: what tells the models apart, then each model by itself, then how sure this is."""
    found: list[Sentence] = []
    compared: list[Comparison] = []
    for a, b in itertools.combinations(entries.models, 2):
        some, said = _pair(entries, a, b)
        compared += some
        found += said
    for model in entries.models:
        if len(entries.models) == 1:
            found += _alone(entries, model)
        found += _tear(entries, model)
        found += _training(entries, model)
        found += _several(model)
    return [*found, *_sure(entries, compared)]


def compare(entries: Entries, a: Model, b: Model) -> list[Comparison]:
    """Two models by every headline that both have."""
    found = []
    for line in page_headlines(entries):
        mine, yours = headline_entry(entries, line, a.place), headline_entry(entries, line, b.place)
        if mine is None or yours is None:
            continue
        quantity = entries.quantities(mine.instrument)[line.quantity]
        if quantity.better == "neither":
            continue
        found.append(_compared(line, quantity, mine, yours))
    return found


def _compared(line: Headline, quantity: Quantity, mine: Entry, yours: Entry) -> Comparison:
    a, b, both = mine.row, yours.row, (mine, yours)
    if not math.isfinite(a.value) or not math.isfinite(b.value):
        return Comparison(line, quantity, both, None, "no value")
    if dict(a.at) != dict(b.at) or a.kind != b.kind:
        return Comparison(line, quantity, both, None, "not alike")
    ours, theirs = interval(a), interval(b)
    if ours is None or theirs is None:
        return Comparison(line, quantity, both, None, "no interval")
    if ours[1] < theirs[0] or theirs[1] < ours[0]:
        lower = mine if ours[1] < theirs[0] else yours
        higher = yours if lower is mine else mine
        return Comparison(line, quantity, both, (lower if quantity.better == "lower" else higher).model, "apart")
    return Comparison(line, quantity, both, None, "overlap")


def _pair(entries: Entries, a: Model, b: Model) -> tuple[list[Comparison], list[Sentence]]:
    both = (a.place, b.place)
    if a.data.get("fingerprint") != b.data.get("fingerprint"):
        text = (
            f"{a.name} and {b.name} were measured on different data "
            f"({a.data.get('name', '?')}, {b.data.get('name', '?')}): they are not compared."
        )
        return [], [Sentence(text, (), "caveat", both)]
    compared = compare(entries, a, b)
    rows = tuple(sorted(entry.index for one in compared for entry in one.entries))
    if a.fingerprint is not None and a.fingerprint == b.fingerprint:
        text = f"{a.name} and {b.name} are the same network, weight for weight: there is no difference to find."
        return compared, [Sentence(text, rows, "overall", both)]
    if not compared:
        text = f"{a.name} and {b.name} have no headline number in common, so nothing is said about which is better."
        return [], [Sentence(text, (), "overall", both)]
    names = {a.place: a.name, b.place: b.name}
    sentences = [_overall(a, b, compared, rows)]
    sentences += [Sentence(_told(one, names), tuple(e.index for e in one.entries), "comparison", both,
                           one.entries[0].instrument) for one in compared]  # fmt: skip
    return compared, sentences


def _overall(a: Model, b: Model, compared: Sequence[Comparison], rows: tuple[int, ...]) -> Sentence:
    names = {a.place: a.name, b.place: b.name}
    won: dict[tuple[int, str], list[str]] = {}
    for one in compared:
        if one.better is not None:
            won.setdefault((one.better, one.line.word), []).append(one.line.label)
    open_ = [one.line.label for one in compared if one.better is None]
    if not won:
        why = [f"{words} {_listed(labels)}" for reason, words in WHY.items()
               if (labels := [one.line.label for one in compared if one.reason == reason])]  # fmt: skip
        text = f"Nothing here tells {a.name} and {b.name} apart: {_listed(why)}."
        return Sentence(text, rows, "overall", (a.place, b.place))
    smooth = {better: labels for (better, word), labels in won.items() if word == "smoother"}
    rest: dict[int, list[str]] = {}
    for better, word in sorted((key for key in won if key[1] != "smoother"), key=lambda key: key[1]):
        rest.setdefault(better, []).append(word)
    first = sorted(smooth, key=lambda place: (-len(smooth[place]), names[place]))
    other = {a.place: b.name, b.place: a.name}
    said = [f"{names[place]} is smoother than {other[place]} by {_listed(smooth[place])}" for place in first]
    text = "; ".join(said) + "." if said else ""
    for place in sorted(rest, key=lambda place: names[place]):
        text += f"{' ' if text else ''}{names[place]} is {_listed(rest[place])} than {other[place]}."
    if open_:
        text += f" {_listed(open_)} {'does' if len(open_) == 1 else 'do'} not tell them apart."
    return Sentence(text, rows, "overall", (a.place, b.place))


def _told(one: Comparison, names: dict[int, str]) -> str:
    """One comparison in words; the better model comes first, else the smaller number."""
    first, second = sorted(one.entries, key=lambda e: (e.model != one.better, e.row.value, names[e.model]))
    label, values = (
        one.line.label,
        f"{shown(first)} for {names[first.model]}, {shown(second)} for {names[second.model]}",
    )
    if one.better is not None:
        return f"{label}: {values}. {names[first.model]} is {one.line.word}: the intervals do not overlap."
    if one.reason == "overlap":
        return f"{label}: {values}. The intervals overlap, so this does not tell them apart."
    if one.reason == "no interval":
        n = first.row.n if first.row.n == second.row.n else f"{first.row.n} and {second.row.n}"
        return (
            f"{label}: {values}. These are numbers of {n} samples without intervals: for others the order may differ."
        )
    if one.reason == "not alike":
        return f"{label}: {values}. They were not measured alike ({_unlike(first, second)}), so they are not compared."
    return f"{label}: {values}. One of them has no value."


def _unlike(a: Entry, b: Entry) -> str:
    keys = [key for key in {**a.row.at, **b.row.at} if a.row.at.get(key) != b.row.at.get(key)]
    said = [f"{key} {a.row.at.get(key, 'none')} and {b.row.at.get(key, 'none')}" for key in keys]
    return ", ".join(said) or f"{a.row.kind} and {b.row.kind}"


# -- one model --------------------------------------------------------------------------------------------------------


def _alone(entries: Entries, model: Model) -> list[Sentence]:
    """What a reader wants to know first of a model that stands alone: R_f against 1, and its accuracy."""
    by_quantity = {line.quantity: headline_entry(entries, line, model.place) for line in page_headlines(entries)}
    some = [by_quantity.get(name) for name in ("relative_stability", "clean_accuracy")]
    ratio, accuracy = (entry if entry is not None and math.isfinite(entry.row.value) else None for entry in some)
    parts = []
    if ratio is not None:
        ends = interval(ratio.row)
        if ends is None:
            how = f"{shown(ratio)} times as strongly as"
        else:
            how = "less" if ends[1] < 1 else "more" if ends[0] > 1 else ""
            how = f"{how} strongly than" if how else "about as strongly as"
        parts.append(f"answers smooth deformations of its input {how} noise of the same size (R_f {shown(ratio)})")
    if accuracy is not None:
        parts.append(f"has an accuracy of {shown(accuracy)} on these samples")
    if not parts:
        return []
    rows = tuple(entry.index for entry in (ratio, accuracy) if entry is not None)
    return [Sentence(f"{model.name} {' and '.join(parts)}.", rows, "overall", (model.place,))]


def _tear(entries: Entries, model: Model) -> list[Sentence]:
    """Where the largest tear is: the largest change rate, or without one the steepest layer."""
    line = HEADLINES[0]
    rates = _like_headline(entries, model, "change_rate", line)
    if rates:
        top, rivals = _largest(rates)
        text = (
            f"The largest tear of {model.name} is at {top.row.layer}{_depth(top)}: the step that the shape of the data "
            f"takes there differs from the step before it by {shown(top)} times its size."
        )
        return [_with_rivals(text, top, rivals, model)]
    steep = [entry for entry in entries.of("lipschitz_from_previous", model=model.place, instrument="sensitivity")
             if entry.row.at.get("over") in ("mean", None) and math.isfinite(entry.row.value)]  # fmt: skip
    if steep:
        top, rivals = _largest(steep)
        text = (
            f"The steepest layer of {model.name} is {top.row.layer}{_depth(top)}: it stretches small changes by "
            f"{shown(top)} or more."
        )
        return [_with_rivals(text, top, rivals, model)]
    text = f"Where {model.name} tears was not measured: that needs topology or sensitivity."
    return [Sentence(text, (), "caveat", (model.place,))]


def _like_headline(entries: Entries, model: Model, quantity: str, line: Headline) -> list[Entry]:
    """The rows of a quantity at the coordinates of the headline's row, where it has one."""
    whole = headline_entry(entries, line, model.place)
    some = entries.of(quantity, model=model.place, instrument=line.instrument)
    some = [entry for entry in some if math.isfinite(entry.row.value)]
    if whole is None:
        return [entry for entry in some if entry.row.at == some[0].row.at]
    return [entry for entry in some if dict(entry.row.at) == dict(whole.row.at)]


def _largest(some: Sequence[Entry]) -> tuple[Entry, list[Entry]]:
    """The largest row, and those whose intervals reach it."""
    top = max(some, key=lambda entry: entry.row.value)
    ends = interval(top.row)
    if ends is None:
        return top, []
    return top, [e for e in some if e is not top and (its := interval(e.row)) is not None and its[1] >= ends[0]]


def _with_rivals(text: str, top: Entry, rivals: Sequence[Entry], model: Model) -> Sentence:
    rows = (top.index, *(entry.index for entry in rivals))
    if interval(top.row) is None:
        text += " There is no interval, so another layer may be it on other samples."
    elif rivals:
        names = [str(entry.row.layer) for entry in sorted(rivals, key=lambda entry: -entry.row.value)]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        text += f" Within the intervals it might as well be at {_or(names[:3])}{more}."
    else:
        text += " No other layer's interval reaches it."
    return Sentence(text, rows, "tear", (model.place,), top.instrument)


def _training(entries: Entries, model: Model) -> list[Sentence]:
    """What training did to the headline numbers, where the same architecture was measured at initialisation."""
    if model.profile.provenance.get("weights") == "random":
        text = f"{model.name} has random weights, because its spec names no others: this is no trained network."
        return [Sentence(text, (), "caveat", (model.place,))]
    said: dict[str, list[str]] = {"lowered": [], "raised": [], "left": [], "open": []}
    rows: list[int] = []
    seeds = 0
    for line in page_headlines(entries):
        now = headline_entry(entries, line, model.place)
        if now is None or not math.isfinite(now.row.value):
            continue
        before = [
            entry
            for entry in entries.of(line.quantity, model=model.place, instrument=line.instrument, initial=True)
            if entry.row.depth == now.row.depth and dict(entry.row.at) == dict(now.row.at)
            and entry.row.kind == now.row.kind and math.isfinite(entry.row.value)
        ]  # fmt: skip
        if not before:
            continue
        seeds = max(seeds, len(before))
        rows += [now.index, *(entry.index for entry in before)]
        values = sorted(entry.row.value for entry in before)
        span = number(values[0]) if len(values) == 1 else f"{number(values[0])} … {number(values[-1])}"
        said[_moved(now, before)].append(f"{line.label} (from {span} to {shown(now)})")
    if not rows:
        return []
    words = {"lowered": "lowered {}", "raised": "raised {}", "left": "did not measurably change {}"}
    parts = [words[key].format(_listed(some)) for key, some in said.items() if some and key in words]
    text = f"Against random weights ({seeds} seed{'s' if seeds > 1 else ''}), training of {model.name} "
    text = text + "; it ".join(parts) + "." if parts else ""
    if said["open"]:
        text += f"{' ' if text else ''}Against random weights, without intervals: {_listed(said['open'])}."
    return [Sentence(text, tuple(rows), "training", (model.place,))]


def _several(model: Model) -> list[Sentence]:
    """That a model is several networks."""
    if model.networks == 1:
        return []
    text = (
        f"{model.name}: numbers are means over the networks, and intervals reach from the lowest to the highest of "
        "them, each with its own interval."
    )
    return [Sentence(text, (), "caveat", (model.place,))]


def _moved(now: Entry, before: Sequence[Entry]) -> str:
    """Whether training moved a number out of the reach of all that random weights give."""
    own, theirs = interval(now.row), [ends for entry in before if (ends := interval(entry.row)) is not None]
    if own is None or len(theirs) < len(before):
        return "open"
    if own[1] < min(low for low, _ in theirs):
        return "lowered"
    if own[0] > max(high for _, high in theirs):
        return "raised"
    return "left"


def _sure(entries: Entries, compared: Sequence[Comparison]) -> list[Sentence]:
    """How far this can be trusted."""
    rows = [entry for one in compared for entry in one.entries] or [
        entry
        for line in page_headlines(entries)
        for model in entries.models
        if (entry := headline_entry(entries, line, model.place)) is not None
    ]
    if not rows:
        return []
    places = tuple(model.place for model in entries.models)
    indices = tuple(sorted({entry.index for entry in rows}))
    sizes = sorted({entry.row.n for entry in rows})
    n = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    without = [entry for entry in rows if interval(entry.row) is None]
    if len(without) == len(rows):
        text = (
            f"How sure: the numbers above are those of {n} samples and have no intervals. Treat them as a first look."
        )
    else:
        text = (
            f"How sure: intervals rest on {n} samples, and two models are called different only where the intervals "
            "do not overlap, which is stricter than a test at the same level."
            if compared
            else f"How sure: intervals rest on {n} samples of the data."
        )
        if without:
            text += f" {_listed(sorted({_label(entry) for entry in without}))} came without an interval."
    if len(compared) > 5:
        text += f" {len(compared)} comparisons were made: one in twenty may mislead."
    seeds = {str(model.profile.provenance.get("seed")) for model in entries.models}
    found = [Sentence(text, indices, "sure", places)]
    if len(seeds) > 1:
        found.append(
            Sentence(f"The models were measured with different seeds ({_listed(sorted(seeds))}).", (), "caveat", places)
        )
    return found


def interval(row: Row) -> tuple[float, float] | None:
    """A row's interval over samples. The ends of an ``exact`` one are the range of several networks, which is none."""
    return None if row.low is None or row.high is None or row.kind == "exact" else (row.low, row.high)


def shown(entry: Entry) -> str:
    """A number with the sign of its kind and its interval."""
    row = entry.row
    sign = {"lower": "≥ ", "upper": "≤ ", "heuristic": "~ "}.get(row.kind, "")
    text = sign + number(row.value)
    return text if row.low is None else f"{text} [{number(row.low)}, {number(row.high)}]"


def _label(entry: Entry) -> str:
    own = (
        line.label for line in HEADLINES if (line.instrument, line.quantity) == (entry.instrument, entry.row.quantity)
    )
    return next(own, entry.row.quantity)


def _depth(entry: Entry) -> str:
    return "" if entry.row.depth is None else f" ({round(100 * entry.row.depth)} % of the depth)"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + f" and {words[-1]}"


def _or(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + f" or {words[-1]}"
