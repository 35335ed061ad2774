"""The three lines on top of a page and in a terminal: what differs, how sure that is, what it means for a person."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from lisse.profile import version_of
from lisse.reporting.kinds import interval
from lisse.reporting.page.comparisons import Comparison, ratio_parts
from lisse.reporting.page.entries import Entries, Entry
from lisse.reporting.page.headline import Heading, heading_entry, page_headings
from lisse.reporting.page.sentence import Sentence, entry_text, listed

_MOST_SAMPLES = 1_000_000  # beyond, a difference is not worth deciding
_MOST_CLAUSES = 2  # that the first line says of a model alone


def summary(entries: Entries, compared: Sequence[Comparison], answers: Sequence[Sentence]) -> list[Sentence]:
    """At most three sentences, and those on the method behind them; ``answers`` are what tells each pair apart."""
    if not answers:
        lines = _alone(entries)
    elif len(answers) == 1:
        lines = [Sentence(answers[0].text, answers[0].rows, "overall", answers[0].models)]
    else:
        lines = [_many(entries, compared, answers)]
    return [*lines, *_sure(entries, compared), *_meaning(entries, compared)]


# -- what differs -----------------------------------------------------------------------------------------------------


def _alone(entries: Entries) -> list[Sentence]:
    """What a reader wants to know first of a model that stands alone: what its headlines say by themselves."""
    (model,) = entries.models
    clauses, rows = [], []
    for heading in _meant(entries):
        entry = heading_entry(entries, heading, model.index)
        if entry is not None:
            # A profile may come from anywhere: its words are filled in, never run as a format.
            words = heading.headline.alone.replace("{than}", _than(entry, heading.quantity.neutral))
            clauses.append(words.replace("{value}", entry_text(entry)))
            rows.append(entry.index)
    text = f"{model.name} {listed(clauses)}." if clauses else ""
    return [Sentence(text, tuple(rows), "overall", (model.index,))] if rows else []


def _meant(entries: Entries) -> list[Heading]:
    """Of a model alone, the few headlines that say something without another model beside it."""
    return [
        heading
        for heading in page_headings(entries)
        if heading.headline.alone
        and (entry := heading_entry(entries, heading, entries.models[0].index)) is not None
        and math.isfinite(entry.row.value)
    ][:_MOST_CLAUSES]


def _than(entry: Entry, neutral: float | None) -> str:
    """How a number compares with the one at which nothing is gained or lost."""
    ends = interval(entry.row)
    if ends is None or neutral is None:
        return f"{entry_text(entry)} times as strongly as"
    if ends[0] <= neutral <= ends[1]:
        return "about as strongly as"
    return "less strongly than" if ends[1] < neutral else "more strongly than"


def _many(entries: Entries, compared: Sequence[Comparison], answers: Sequence[Sentence]) -> Sentence:
    """Of more than two models, how many pairs differ, and who is better most often."""
    decided = [comparison for comparison in compared if comparison.better is not None]
    pairs = {tuple(entry.model for entry in comparison.entries) for comparison in decided}
    text = f"{len(pairs)} of {len(answers)} pairs of networks differ in a number that judges"
    counts = [(sum(test.better == model.index for test in decided), model.name) for model in entries.models]
    ranked = sorted(((count, name) for count, name in counts if count), key=lambda item: (-item[0], item[1]))
    if ranked:
        best = listed([f"{name} in {count}" for count, name in ranked])
        text += f"; the better one is {best} of {len(decided)} cases"
    rows = tuple(sorted({index for sentence in answers for index in sentence.rows}))
    return Sentence(f"{text}.", rows, "overall", tuple(model.index for model in entries.models))


# -- how sure ---------------------------------------------------------------------------------------------------------


def _sure(entries: Entries, compared: Sequence[Comparison]) -> list[Sentence]:
    """How far the first line can be trusted, and how that was found out."""
    headings = {(heading.instrument, heading.quantity.name): heading for heading in page_headings(entries)}
    rows = [entry for comparison in compared for entry in comparison.entries] or [
        entry
        for heading in headings.values()
        for model in entries.models
        if (entry := heading_entry(entries, heading, model.index)) is not None
    ]
    if not rows:
        return []
    indices = tuple(model.index for model in entries.models)
    sizes = sorted({entry.row.n for entry in rows if entry.row.n} or {0})  # what the weights prove rests on no sample
    n = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    without = [entry for entry in rows if interval(entry.row) is None]
    tests = [comparison for comparison in compared if comparison.counts]
    if tests:
        text = _tests_words(entries, tests, n)
    elif sizes == [0]:
        text = "these numbers are proved of the weights alone, and rest on no sample."
    elif len(without) == len(rows):
        text = f"the numbers are those of {n} samples and have no intervals: treat them as a first look."
    else:
        text = f"intervals rest on {n} samples of the data."
    random = sorted(model.name for model in entries.models if model.profile.provenance.get("weights") == "random")
    if random:
        text += f" {listed(random)} {'has' if len(random) == 1 else 'have'} random weights, never trained."
    sentences = [Sentence(f"How sure: {text}", tuple(sorted({entry.index for entry in rows})), "sure", indices)]
    if tests:
        sentences.append(Sentence(_method_words(tests), sentences[0].rows, "method", indices))
    if without and len(without) < len(rows):
        labels = {headings[entry.instrument, entry.row.quantity].label for entry in without}
        text = f"{listed(sorted(labels))} came without an interval."
        sentences.append(Sentence(text, tuple(entry.index for entry in without), "method", indices))
    seeds = {str(model.profile.provenance.get("seed")) for model in entries.models}
    if len(seeds) > 1:
        text = f"The models were measured with different seeds ({listed(sorted(seeds))})."
        sentences.append(Sentence(text, (), "caveat", indices))
    versions = {version_of(model.profile) for model in entries.models}
    if len(versions) > 1:
        text = (
            f"The models were measured by different versions of lisse ({listed(sorted(versions))}), which may define a "
            "number in another way: measure them again by one."
        )
        sentences.append(Sentence(text, (), "caveat", indices))
    return sentences


def _tests_words(entries: Entries, tests: Sequence[Comparison], n: str) -> str:
    """How many comparisons were made, of what, and what they do not speak of."""
    which = "the same " if any(test.difference is not None for test in tests) else ""
    count = f"{len(tests)} comparison{'s' if len(tests) > 1 else ''}"
    text = f"{count} on {which}{n} samples, corrected together."
    if not entries.joined:
        files = "Two files" if len(entries.models) == 2 else "Files"
        text += f" {files} were compared, not two ways of training: for those, --join several seeds of each."
    return text


def _method_words(tests: Sequence[Comparison]) -> str:
    """How the comparisons were made, in a test's own words."""
    paired = [test for test in tests if test.difference is not None]
    clauses = []
    if paired:
        ways = {"network by network (Welch)" if test.way == "networks" else "sample by sample" for test in paired}
        clauses.append(
            f"Numbers are compared {listed(sorted(ways))} and corrected together (Holm): at most one page in twenty "
            "calls different what is not"
        )
    if len(paired) < len(tests):
        cause = "the profiles do not hold the values of the same samples"
        subject = f"{len(tests) - len(paired)} of them are" if paired else "Numbers are"
        clauses.append(f"{subject} compared only by intervals that do not overlap, because {cause}")
    return "; ".join(clauses) + "."


# -- what it means ----------------------------------------------------------------------------------------------------


def _meaning(entries: Entries, compared: Sequence[Comparison]) -> list[Sentence]:
    """What a person may take from the first line, and what not."""
    indices = tuple(model.index for model in entries.models)
    if len(entries.models) == 1:
        headings = _meant(entries)
        rows = [entry for heading in headings if (entry := heading_entry(entries, heading, indices[0])) is not None]
        return _meanings(headings, [], rows, indices)
    tests = [comparison for comparison in compared if comparison.counts]
    if not tests:
        return []
    decided = [test for test in tests if test.better is not None]
    rows = [entry for test in decided or tests for entry in test.entries]
    if decided:
        headings = list({test.heading.label: test.heading for test in decided}.values())
        # What a person asks first is which is smoother; what else differs is plain enough.
        headings.sort(key=lambda heading: heading.headline.makes != "smoother")
        return _meanings(headings, [_moved(entries, test) for test in decided], rows, indices)
    text = "What it means: these samples give no reason to prefer one of them."
    undecided = [test for test in tests if test.reason == "open" and test.needed <= _MOST_SAMPLES]
    if undecided:
        nearest = min(undecided, key=lambda test: (test.way, test.needed))
        text += f" Nearest to a decision is {nearest.heading.label}. {needed_words(nearest)}"
    return [Sentence(text, tuple(sorted({entry.index for entry in rows})), "meaning", indices)]


def _meanings(
    headings: Sequence[Heading], moved: Iterable[str], rows: Sequence[Entry], models: tuple[int, ...]
) -> list[Sentence]:
    """What the first of these numbers means, with the evidence there is that it matters."""
    heading = next((heading for heading in headings if heading.headline.evidence), next(iter(headings), None))
    if heading is None:
        return []
    text = heading.headline.evidence or f"{heading.label} is {heading.headline.says or heading.quantity.says}"
    text = text.rstrip(".") + "."
    if not heading.headline.evidence and heading.headline.makes == "smoother":
        text += " Smoother is not by itself more accurate or harder to attack."
    text = " ".join(["What it means:", text, *filter(None, moved)])
    return [Sentence(text, tuple(sorted({entry.index for entry in rows})), "meaning", models)]


def _moved(entries: Entries, comparison: Comparison) -> str:
    """Which part of a ratio moved, where two models differ in it."""
    clauses, parts = [], ratio_parts(entries, comparison)
    for part in parts:
        label = entries.quantities(comparison.heading.instrument)[part[0].row.quantity].label
        ends = [interval(entry.row) for entry in part]
        low = min(part, key=lambda entry: entry.row.value)
        if all(ends) and (ends[0][1] < ends[1][0] or ends[1][1] < ends[0][0]):  # type: ignore[index]
            clauses.append(f"{label} is lower for {entries.models[low.model].name}")
    if not parts:
        return ""
    text = listed(clauses) if clauses else "which of its two parts moved is open"
    return f"Of {comparison.heading.label}, {text}."


def needed_words(comparison: Comparison) -> str:
    """How many samples an open difference asks for."""
    unit = {"clouds": "clouds", "networks": "networks of each"}.get(comparison.way, "samples")
    if comparison.needed > _MOST_SAMPLES:
        return f"A difference of this size is too small for any number of {unit} that is worth measuring."
    return f"About {comparison.needed:,.0f} {unit} would decide a difference of this size."
