"""What the numbers say, in plain words. Every sentence names the rows that it rests on.

Only numbers that judge (:attr:`lisse.profile.Quantity.judges`) call one model better than another. Two models on the
same samples are compared by paired differences, corrected for all comparisons of the page; where profiles do not hold
the samples, only intervals that do not overlap count. A number without an interval speaks of its own samples and
nothing else, and a model is never compared with one that was measured on other data.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from lisse.profile import Profile, tokenizers_apart
from lisse.reporting.page.axis import short_number
from lisse.reporting.page.comparisons import Comparison, ModelPair, compare_pairs, ratio_parts
from lisse.reporting.page.entries import Entries, Entry, PageModel, entries_of
from lisse.reporting.page.headline import heading_entry, page_headings, roles
from lisse.reporting.page.models import about
from lisse.reporting.page.sentence import TOPICS, Sentence, Topic, entry_text, listed
from lisse.reporting.page.summary import needed_words, summary

# Why a number does not tell two models apart.
WHY = {
    "overlap": "the intervals overlap in",
    "open": "chance explains the difference in",
    "equal": "they are equal on every sample in",
    "same function": "they answer alike on every sample, so that only how one function is written can differ in",
    "one class": "all samples are of one class, which a constant answer gets right, in",
    "repeated": "many samples are in the data more than once, which p values take for new ones, in",
    "no interval": "there are no intervals to go by for",
    "not alike": "they were not measured alike in",
    "not as far": "they were not read up to the same block for",
    "no value": "one of them has no value of",
}
_DENOMINATOR = "It is a ratio, and its numerator does not say the same: the denominator moved, and that judges nothing."


def verdict(profiles: Profile | Iterable[Profile] | Entries) -> list[Sentence]:
    """All sentences: three on what differs, how sure that is and what it means; then all that stands behind them.

    Each has its ``text``, its ``topic`` and the numbers of the ``rows`` it rests on, counted over all profiles.
    """
    entries = profiles if isinstance(profiles, Entries) else entries_of(profiles)
    pairs = list(itertools.combinations(entries.models, 2))
    compared = compare_pairs(entries, [pair for pair in pairs if _comparable(*pair) and not _twins(*pair)])
    sentences = [sentence for pair in pairs for sentence in _pair(entries, pair, compared.get(_indices(pair), []))]
    sentences += [sentence for model in entries.models for sentence in about(entries, model)]
    answers = [sentence for sentence in sentences if sentence.topic == "pair"]
    sentences += summary(entries, list(itertools.chain(*compared.values())), answers)
    sentences += _findings(entries)
    if len(answers) == 1:  # two models: what tells them apart is the first line
        sentences.remove(answers[0])
    return sorted(sentences, key=lambda sentence: TOPICS.index(sentence.topic))


def _findings(entries: Entries) -> list[Sentence]:
    """What instruments for two networks say in one sentence; of one pair it stands among the first lines."""
    parts = [(model, part) for model in entries.models for part in model.profile.parts if part.finding]
    sentences = []
    for model, part in parts:
        drawn = {line.quantity for chart in part.charts if chart.lead for panel in chart.panels for line in panel.lines}
        rows = [
            entry.index
            for entry in entries.rows
            if (entry.model, entry.instrument, entry.initial) == (model.index, part.instrument, False)
            and (not drawn or entry.row.quantity in drawn)
        ]
        models = [other.index for other in entries.models if other is model or other.name == part.beside]
        topic: Topic = "overall" if len(parts) == 1 else "pair"
        sentences.append(Sentence(part.finding, tuple(rows), topic, tuple(models), part.instrument))
    return sentences


def _indices(pair: ModelPair) -> tuple[int, int]:
    return pair[0].index, pair[1].index


def _comparable(a: PageModel, b: PageModel) -> bool:
    return a.data.get("fingerprint") == b.data.get("fingerprint")


def _twins(a: PageModel, b: PageModel) -> bool:
    """Whether two models are one network; it may be given other tokens of the same texts."""
    return a.fingerprint is not None and a.fingerprint == b.fingerprint


def _pair(entries: Entries, pair: ModelPair, compared: Sequence[Comparison]) -> list[Sentence]:
    a, b = pair
    both = _indices(pair)
    if not _comparable(a, b):
        text = (
            f"{a.name} and {b.name} were measured on different data "
            f"({a.data.get('name', '?')}, {b.data.get('name', '?')}): they are not compared."
        )
        return [Sentence(text, (), "pair", both)]
    tokens = tokenizers_apart(a.data, b.data)
    if _twins(a, b) and tokens is not None:
        text = (
            f"{a.name} and {b.name} are the same network, weight for weight, given other tokens of the same texts "
            f"({tokens[0]}; {tokens[1]}): what differs is what it read, so nothing is compared."
        )
        return [Sentence(text, _headline_indices(entries, both), "pair", both)]
    if _twins(a, b):
        text = f"{a.name} and {b.name} are the same network, weight for weight: there is no difference to find."
        return [Sentence(text, _headline_indices(entries, both), "pair", both)]
    notes = [*_heads(a, b), *_tokenizers(a, b)]
    if not compared:
        text = (
            f"{a.name} and {b.name} have no number in common that may judge, so nothing is said about which is better."
        )
        return [Sentence(text, _headline_indices(entries, both), "pair", both), *notes]
    names = {a.index: a.name, b.index: b.name}
    rows = tuple(sorted(entry.index for comparison in compared for entry in comparison.entries))
    sentences = [_answer(entries, pair, compared, rows), *notes]
    for comparison in compared:
        more, behind = _ratio_words(entries, comparison)
        indices = (*(entry.index for entry in comparison.entries), *behind)
        text = _comparison_words(comparison, names) + more
        sentences.append(Sentence(text, indices, "comparison", both, comparison.heading.instrument))
    return sentences


def _headline_indices(entries: Entries, models: Iterable[int]) -> tuple[int, ...]:
    numbers = (heading_entry(entries, heading, model) for heading in page_headings(entries) for model in models)
    return tuple(sorted(entry.index for entry in numbers if entry is not None))


def _heads(a: PageModel, b: PageModel) -> list[Sentence]:
    """That one of two models was read up to its head, and the other has none or was not."""
    layers = [roles(model.profile) for model in (a, b)]
    heads = ["output" in names.values() for names in layers]
    if not all(layers) or heads[0] == heads[1]:
        return []
    longer, shorter = (a, b) if heads[0] else (b, a)
    text = (
        f"{longer.name} was read up to its head, {shorter.name} up to its last block: numbers of layers are "
        "compared at the last block, which both have, and those of the output are not compared."
    )
    return [Sentence(text, (), "caveat", (a.index, b.index))]


def _tokenizers(a: PageModel, b: PageModel) -> list[Sentence]:
    """That two models were given other tokens of the same texts."""
    names = tokenizers_apart(a.data, b.data)
    if names is None:
        return []
    text = (
        f"{a.name} and {b.name} were measured on the same texts, but their tokenizers differ "
        f"({names[0]}; {names[1]}): a text is not the same tokens to both."
    )
    return [Sentence(text, (), "caveat", (a.index, b.index))]


def _answer(entries: Entries, pair: ModelPair, compared: Sequence[Comparison], rows: tuple[int, ...]) -> Sentence:
    """What tells two models apart, in one line."""
    names = {model.index: model.name for model in pair}
    other = dict(zip(_indices(pair), (model.name for model in reversed(pair)), strict=True))
    won: dict[int, dict[str, list[str]]] = {}
    for comparison in compared:
        if comparison.better is not None:
            makes = comparison.heading.headline.makes
            won.setdefault(comparison.better, {}).setdefault(makes, []).append(comparison.heading.label)
    clauses = []
    for better in sorted(won, key=lambda index: (-len(won[index].get("smoother", ())), names[index])):
        smoother = won[better].pop("smoother", [])
        words = [f"smoother than {other[better]} by {listed(smoother)}"] if smoother else []
        words += [makes if smoother else f"{makes} than {other[better]}" for makes in sorted(won[better])]
        if not smoother and len(words) > 1:
            words = [*sorted(won[better])[:-1], words[-1]]
        clauses.append(f"{names[better]} is {listed(words)}")
    labels = {reason: [test.heading.label for test in compared if test.reason == reason] for reason in WHY}
    moved = [
        f"{test.heading.label} (only its {_denominator(entries, test)} moved)"
        for test in compared
        if test.reason == "denominator"
    ]
    undecided = [label for reason in WHY for label in labels[reason]] + moved
    if clauses:
        text = "; ".join(clauses) + "."
        if undecided:
            text += f" {listed(undecided)} {'does' if len(undecided) == 1 else 'do'} not tell them apart."
    else:
        why = [f"{words} {listed(labels[reason])}" for reason, words in WHY.items() if labels[reason]]
        why += [f"the numerator is open in {listed(moved)}"] if moved else []
        text = f"Nothing here tells {listed(sorted(names.values()))} apart: {listed(why)}."
    return Sentence(text, rows, "pair", _indices(pair))


def _denominator(entries: Entries, comparison: Comparison) -> str:
    """What stands below in a ratio."""
    name = comparison.heading.headline.ratio[1]
    return entries.quantities(comparison.heading.instrument)[name].label


def _comparison_words(comparison: Comparison, names: dict[int, str]) -> str:
    """One comparison in words; the better model comes first, else the smaller number."""
    first, second = sorted(
        comparison.entries,
        key=lambda entry: (entry.model != comparison.better, entry.row.value, names[entry.model]),
    )
    values = f"{entry_text(first)} for {names[first.model]}, {entry_text(second)} for {names[second.model]}"
    n = first.row.n if first.row.n == second.row.n else f"{first.row.n} and {second.row.n}"
    makes = f"{names[first.model]} is {comparison.heading.headline.makes}"
    if comparison.difference is not None:
        why = _paired_words(comparison, makes, forward=first is comparison.entries[0])
    else:
        why = {
            "apart": f"{makes}: the intervals do not overlap.",
            "overlap": "The intervals overlap, so this does not tell them apart.",
            "denominator": f"The intervals do not overlap. {_DENOMINATOR}",
            "same function": "The two answer alike on every sample, by all numbers from input to output: this "
            "differs by how one function is written, and judges nothing.",
            "one class": "All samples are of one class, which a constant answer gets right, so this judges nothing.",
            "repeated": "Many samples are in the data more than once, which no interval knows: not compared.",
            "no interval": f"These are numbers of {n} samples without intervals: for others the order may differ.",
            "not alike": f"They were not measured alike ({_unlike(first, second)}), so they are not compared.",
            "not as far": "One was not read up to its last block, so they are not compared.",
            "no value": "One of them has no value.",
        }[comparison.reason]
    return f"{comparison.heading.label}: {values}. {why}"


def _paired_words(comparison: Comparison, makes: str, *, forward: bool) -> str:
    """What the same samples say: the difference of the model that is named first less the other."""
    difference = comparison.difference
    assert difference is not None
    unit = {"clouds": "clouds of samples", "networks": "networks"}.get(comparison.way, "samples")
    where = (
        f"Over {difference.n:,} networks" if comparison.way == "networks" else f"On the same {difference.n:,} {unit}"
    )
    if comparison.reason == "equal":
        return f"They are equal on all {difference.n:,} {unit}, up to rounding."
    numbers = [float(number) for number in (difference.value, difference.low, difference.high)]
    value, low, high = numbers if forward else (-numbers[0], -numbers[2], -numbers[1])
    text = (
        f"{where} they differ by {short_number(value)} [{short_number(low)}, "
        f"{short_number(high)}], p = {short_number(comparison.p)} after correction"
    )
    if comparison.reason in ("apart", "denominator"):
        return f"{text}: {makes}." if comparison.reason == "apart" else f"{text}. {_DENOMINATOR}"
    return f"{text}, so this does not tell them apart. {needed_words(comparison)}"


def _ratio_words(entries: Entries, comparison: Comparison) -> tuple[str, tuple[int, ...]]:
    """How the two parts of a ratio moved where the models differ in it, and the rows that say so."""
    parts = ratio_parts(entries, comparison) if comparison.reason in ("apart", "denominator") else []
    described = entries.quantities(comparison.heading.instrument)
    clauses = []
    for part in parts:
        values = sorted((entries.models[entry.model].name, entry_text(entry)) for entry in part)
        label = described[part[0].row.quantity].label
        clauses.append(f"{label} is {listed([f'{value} for {name}' for name, value in values])}")
    return "".join(f" {clause}." for clause in clauses), tuple(entry.index for part in parts for entry in part)


def _unlike(a: Entry, b: Entry) -> str:
    keys = [key for key in {**a.row.at, **b.row.at} if a.row.at.get(key) != b.row.at.get(key)]
    pairs = [f"{key} {a.row.at.get(key, 'none')} and {b.row.at.get(key, 'none')}" for key in keys]
    if not pairs and a.row.kind == b.row.kind:
        return "one at a head and one not"
    return ", ".join(pairs) or f"{a.row.kind} and {b.row.kind}"
