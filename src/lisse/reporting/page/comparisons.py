"""Two models by one headline number: on the same samples by paired differences, otherwise by their intervals.

All comparisons of a page are corrected together (Holm), so the word "different" costs more on a page that asks more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lisse.maths.comparison import (
    Difference,
    Statistic,
    cloud_difference,
    group_difference,
    holm,
    least_clouds,
    paired_difference,
    samples_to_decide,
    share_difference,
    statistic_of,
    weakest,
)
from lisse.maths.depth import subsamplings
from lisse.profile import Part, Quantity, order_of
from lisse.reporting.kinds import interval
from lisse.reporting.page.entries import Entries, Entry, PageModel
from lisse.reporting.page.headline import Heading, heading_entry, page_headings, role_of
from lisse.reporting.page.headline import roles as layer_roles
from lisse.run.seeds import MEMBERS

LEVEL = 0.95
#: Share of a value below which two models agree on a sample: what two builds of one function differ by in float32.
AGREEING = 1e-3
_FEW = 20  # samples below which a bootstrap is too narrow
_DEPTH_RESAMPLES = 999  # of a number over depth, which is computed once for every regular choice of layers
_DISTINCT = 0.9  # of samples that must be different ones: a sample that counts twice makes chance look like certainty
_PRINTED = 1e-3  # of a row's value: how near the statistic of its samples must come to be what was printed

Reason = Literal[
    "apart", "overlap", "open", "equal", "denominator", "same function", "one class", "repeated", "no interval",
    "not alike", "not as far", "no value",
]  # fmt: skip
Way = Literal["samples", "clouds", "networks", "intervals"]
ModelPair = tuple[PageModel, PageModel]


@dataclass(frozen=True)
class Comparison:
    """Two models and one headline: who is better, ``None`` where that is open.

    ``difference`` is that of the first less the second on the same samples or clouds (``way``), ``p`` its p value after
    Holm's correction for all comparisons of the page, ``needed`` how many samples (clouds, networks of each) would
    decide it.
    """

    heading: Heading
    entries: tuple[Entry, Entry]
    reason: Reason
    better: int | None = None
    way: Way = "intervals"
    difference: Difference | None = None
    p: float | None = None
    needed: float = math.inf

    @property
    def counts(self) -> bool:
        """Whether there was something to compare."""
        return self.reason in ("apart", "overlap", "open", "equal", "denominator")


def compare_pairs(entries: Entries, pairs: Iterable[ModelPair]) -> dict[tuple[int, int], list[Comparison]]:
    """Pairs of models by every judging headline that both have, corrected together; by the models' indices."""
    raw = {(first.index, second.index): _raw_comparisons(entries, first, second) for first, second in pairs}
    tests = [comparison for comparisons in raw.values() for comparison in comparisons if comparison.counts]
    # What has no p value still counts: it makes the correction of the others stricter.
    p = holm([1.0 if test.difference is None else test.difference.p for test in tests]) if tests else ()
    adjusted = {id(test): float(number) for test, number in zip(tests, p, strict=True)}
    return {
        indices: [_decision(entries, comparison, adjusted.get(id(comparison), 1.0), len(tests)) for comparison in pair]
        for indices, pair in raw.items()
    }


def _raw_comparisons(entries: Entries, first: PageModel, second: PageModel) -> list[Comparison]:
    comparisons = []
    for heading in page_headings(entries):
        left, right = (heading_entry(entries, heading, model.index) for model in (first, second))
        if left is not None and right is not None and heading.quantity.judges:
            comparisons.append(_raw_comparison(entries, heading, (left, right)))
    if not _same_function(entries, comparisons):
        return comparisons
    # What layers differ by then is how one function is written.
    return [
        replace(test, reason="same function", difference=None) if test.counts and test.reason != "equal" else test
        for test in comparisons
    ]


def _same_function(entries: Entries, comparisons: Iterable[Comparison]) -> bool:
    """Whether two models answer alike on every sample, by all numbers that are taken from input to output.

    At least one of these must be a real number of each sample (a margin, an attack's distance): networks that are
    right on the same samples may be different ones.
    """
    answers = [test for test in comparisons if test.counts and test.entries[0].row.layer is None]
    if not answers or any(test.reason != "equal" or test.way != "samples" for test in answers):
        return False
    heads = [(entries.models[test.entries[0].model], test.heading) for test in answers]
    arrays = [_array(model, heading.instrument, heading.quantity.name, "samples")[0] for model, heading in heads]
    return any(array is not None and len(np.unique(array[np.isfinite(array)])) >= _FEW for array in arrays)


def _raw_comparison(entries: Entries, heading: Heading, both: tuple[Entry, Entry]) -> Comparison:
    a, b = (entry.row for entry in both)
    if not math.isfinite(a.value) or not math.isfinite(b.value):
        return Comparison(heading, both, "no value")
    data = entries.models[both[0].model].data
    if data.get("distinct", math.inf) < _DISTINCT * data.get("samples", 0):
        return Comparison(heading, both, "repeated")
    if a.layer is None and data.get("labels") == 1:
        # Where all labels are alike, a network that never answers anything else is right, unmoved and robust.
        return Comparison(heading, both, "one class")
    roles = {role_of(entries.models[entry.model].profile, entry.row.layer) for entry in both} - {None}
    # A number of no layer speaks of what comes out: logits of the one are not hidden states of the other.
    heads = {"output" in names.values() for names in _roles_of(entries, both)} if a.layer is None else set()
    unlike = dict(a.at) != dict(b.at) or a.kind != b.kind or (a.layer is None) != (b.layer is None)
    if unlike or len(roles) > 1 or len(heads) > 1:
        return Comparison(heading, both, "not alike")
    if a.layer is not None and len({_cut_at(entries, entry) for entry in both}) > 1:
        return Comparison(heading, both, "not as far")
    paired = _paired(entries, heading.instrument, heading.quantity.name, both)
    if paired is not None:
        way, difference = paired
        # No disagreement on any sample is no difference, and no open one either.
        reason: Reason = "open" if difference.spread or difference.value else "equal"
        return Comparison(heading, both, reason, way=way, difference=difference)
    ends = interval(a), interval(b)
    return Comparison(heading, both, "no interval" if None in ends else "overlap")


def _cut_at(entries: Entries, entry: Entry) -> float | None:
    """The depth at which a number of blocks stands where later blocks were not read, ``None`` where all were."""
    provenance = entries.models[entry.model].profile.provenance
    last, layer = provenance.get("last_block"), entry.row.layer
    short = last is not None and role_of(entries.models[entry.model].profile, layer) == "block" and layer != last
    return float(entry.row.depth or 0.0) if short else None


def _roles_of(entries: Entries, both: tuple[Entry, Entry]) -> list[dict[str, str]]:
    """The roles of the layers of both models, where they are known."""
    layers = [layer_roles(entries.models[entry.model].profile) for entry in both]
    return [names for names in layers if names]


def _decision(entries: Entries, comparison: Comparison, p: float, count: int) -> Comparison:
    """Who is better, now that it is known how many comparisons the page makes."""
    left, right = comparison.entries
    lower = comparison.heading.quantity.better == "lower"
    difference = comparison.difference
    if difference is not None:
        comparison = replace(comparison, p=p)
        if comparison.reason == "open" and p <= 1 - LEVEL:
            better = left if (float(difference.value) < 0) == lower else right
            return _grounded(entries, comparison, better)
        return replace(comparison, needed=_needed(comparison.way, difference, count))
    if comparison.reason != "overlap":
        return comparison
    (low_a, high_a), (low_b, high_b) = (_widened(entry, count) for entry in comparison.entries)
    if not (high_a < low_b or high_b < low_a):
        return comparison
    better = left if (high_a < low_b) == lower else right
    return _grounded(entries, comparison, better)


def _grounded(entries: Entries, comparison: Comparison, better: Entry) -> Comparison:
    """A difference with the model that is better by it; by a ratio, only one whose numerator says the same.

    A ratio also falls where its denominator grows: a network that answers noise more is not one that answers
    deformations less.
    """
    parts = ratio_parts(entries, comparison)
    if parts:
        agrees = _apart(entries, parts[0])
        low = min(parts[0], key=lambda entry: entry.row.value)
        if not agrees or (low.model == better.model) != (comparison.heading.quantity.better == "lower"):
            return replace(comparison, reason="denominator")
    return replace(comparison, reason="apart", better=better.model)


def _apart(entries: Entries, both: tuple[Entry, Entry]) -> bool:
    """Whether two models differ in a number that is asked once: on the same samples, else by their intervals."""
    paired = _paired(entries, both[0].instrument, both[0].row.quantity, both)
    if paired is not None:
        return paired[1].p <= 1 - LEVEL
    first, second = (interval(entry.row) for entry in both)
    return first is not None and second is not None and (first[1] < second[0] or second[1] < first[0])


def ratio_parts(entries: Entries, comparison: Comparison) -> list[tuple[Entry, Entry]]:
    """Numerator and denominator of a ratio where it is compared, each of both models; empty where it is none."""
    parts = []
    for name in comparison.heading.headline.ratio:
        rows = [
            item
            for entry in comparison.entries
            for item in entries.of(name, model=entry.model, instrument=entry.instrument)
            if item.row.layer == entry.row.layer and dict(item.row.at) == dict(entry.row.at)
        ]
        if len(rows) == 2 and all(math.isfinite(item.row.value) and item.row.value > 0 for item in rows):
            parts.append((rows[0], rows[1]))
    return parts if len(parts) == 2 else []


def _needed(way: Way, difference: Difference, count: int) -> float:
    needed = samples_to_decide(float(difference.value), difference.spread, level=LEVEL, comparisons=count)
    return max(needed, float(least_clouds(count, level=LEVEL))) if way == "clouds" else needed


def _widened(entry: Entry, count: int) -> tuple[float, float]:
    r"""An interval, longer where the page compares so much that two which do not overlap are too weak a test.

    Two intervals of equal length that just touch are :math:`\sqrt 2 z` standard errors of the difference apart, enough
    for eight comparisons at 95 %; beyond, they are stretched to :math:`z_{1 - \alpha/2m}`.
    """
    row = entry.row
    assert row.low is not None
    assert row.high is not None
    quantile = float(torch.special.ndtri(torch.tensor(1 - (1 - LEVEL) / count / 2, dtype=torch.float64)))
    usual = float(torch.special.ndtri(torch.tensor((1 + LEVEL) / 2, dtype=torch.float64)))
    factor = max(1.0, quantile / (2**0.5 * usual))
    return row.value - factor * (row.value - row.low), row.value + factor * (row.high - row.value)


# -- the same samples --------------------------------------------------------------------------------------------------


def _paired(
    entries: Entries, instrument: str, quantity: str, both: tuple[Entry, Entry]
) -> tuple[Way, Difference] | None:
    """The difference on the same samples or clouds; ``None`` where the profiles do not hold the same ones.

    Of several networks, that of their numbers: then it is trainings that vary.
    """
    models = [entries.models[entry.model] for entry in both]
    if any(model.networks > 1 for model in models):
        groups = [np.array(_numbers(model, entry)) for model, entry in zip(models, both, strict=True)]
        # Numbers without intervals speak of their own few samples, also those of several networks.
        if None in map(interval, (entry.row for entry in both)) or not np.isfinite(np.concatenate(groups)).all():
            return None
        return "networks", group_difference(groups[0], groups[1], level=LEVEL, rounding=AGREEING)
    draws = [(model.profile.provenance.get("seed"), dict(order_of(model.profile))) for model in models]
    if draws[0] != draws[1]:  # other seeds and orders draw other samples
        return None
    ways: tuple[Way, ...] = ("samples", "clouds")
    for way in ways:
        (a, statistic), (b, other) = (_array(model, instrument, quantity, way) for model in models)
        if a is None or b is None or a.shape != b.shape or statistic != other:
            continue
        values = [entry.row.value for entry in both]
        swapped = a.tobytes() > b.tobytes()  # the order of the models must not matter
        pair, printed = ((b, a), values[::-1]) if swapped else ((a, b), values)
        difference = _difference(way, *pair, statistic, printed)
        if difference is not None:
            return way, _negated(difference) if swapped else difference
    return None


def _numbers(model: PageModel, entry: Entry) -> list[float]:
    """Of a row, the number of every network that a model stands for."""
    for part in model.profile.parts:
        for index, row in enumerate(part.rows):
            if row is entry.row and MEMBERS in part.arrays:
                return [float(number) for number in part.arrays[MEMBERS][index]]
    return [entry.row.value]


def _array(model: PageModel, instrument: str, quantity: str, way: str) -> tuple[np.ndarray | None, Statistic]:
    """The values of the samples (clouds) of a quantity, and what its number is of them."""
    part = next((part for part in model.profile.parts if part.instrument == instrument), Part(instrument))
    meaning = next((meaning for meaning in part.quantities if meaning.name == quantity), None)
    array = part.arrays.get(f"{way}/{quantity}")
    if array is None or meaning is None or array.ndim == 0:
        return None, "mean"
    return np.asarray(array, dtype=np.float64), _over(meaning, array.ndim)


def _over(quantity: Quantity, axes: int) -> Statistic:
    """The statistic of values of samples; of values at several layers ``[n, L]``, the number over depth."""
    if quantity.statistic == "largest":
        return _largest_mean
    return torch.mean if axes == 2 and quantity.statistic == "mean" else quantity.statistic


def _difference(way: Way, a: np.ndarray, b: np.ndarray, statistic: Statistic, values: list[float]) -> Difference | None:
    """First less second; ``None`` of too few samples, and where the arrays are not those behind the numbers."""
    rows = ~(np.isnan(a) | np.isnan(b)).reshape(len(a), -1).any(1)
    a, b = a[rows], b[rows]
    if len(a) < 2 or not all(_agrees(statistic, *pair) for pair in zip((a, b), values, strict=True)):
        return None
    a, b = _finite(a, b)
    options: dict[str, Any] = {"level": LEVEL, "rounding": AGREEING, "generator": torch.Generator().manual_seed(0)}
    if callable(statistic):
        return weakest([
            paired_difference(a[:, layers], b[:, layers], statistic, resamples=_DEPTH_RESAMPLES, **options)
            for layers in subsamplings(a.shape[1])
        ])  # fmt: skip
    if statistic == "mean" and set(np.unique([a, b])) <= {0.0, 1.0}:
        return share_difference(a, b, level=LEVEL)
    if way == "clouds" or (len(a) < _FEW and statistic == "mean"):
        return cloud_difference(a, b, **options)
    return paired_difference(a, b, statistic, **options)


def _largest_mean(values: Tensor) -> Tensor:
    return values.mean(0).max()


def _agrees(statistic: Statistic, array: np.ndarray, value: float) -> bool:
    number = statistic_of(array, statistic)
    return abs(number - value) <= _PRINTED * max(abs(value), 1e-12)


def _finite(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Infinite values (an attack that never succeeds) as finite ones beyond all others: a median does not mind."""
    both = np.stack([a, b])
    reach = 2 * np.abs(both[np.isfinite(both)]).max(initial=1.0)
    return np.clip(a, -reach, reach), np.clip(b, -reach, reach)


def _negated(difference: Difference) -> Difference:
    return replace(difference, value=-difference.value, low=-difference.high, high=-difference.low)
