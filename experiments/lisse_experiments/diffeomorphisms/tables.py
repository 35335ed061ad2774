"""From results to findings beside the paper's numbers, claims that hold or not, and tables as files."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lisse.maths.intervals import Interval
from lisse.maths.power_law import PowerLaw, geometric_mean
from lisse_experiments.diffeomorphisms import laws
from lisse_experiments.diffeomorphisms.networks import Source
from lisse_experiments.diffeomorphisms.plan import Settings
from lisse_experiments.diffeomorphisms.result import (
    D,
    G,
    R,
    Result,
    Results,
    level,
    local_slope,
    mean_error,
    positive_error,
)
from lisse_experiments.diffeomorphisms.stripe import last_octave
from lisse_experiments.form import Finding
from lisse_experiments.outputs import csv_file

LETTERS = {R: "R", D: "D", G: "G"}
# How far a later smoke run may be, as a share of the value; see method.md, "What may move".
RATIO, ERROR, FIT = 0.6, 0.05, 0.6
LARGER = 0.5  # of that, for a run at another scale: more images, more weights, less chance


def error_law(results: Results, plan: Settings, source: Source, quantity: str = R, *, which: str = "trained",
              cut: int | None = None, delta: float = 1.0, slope: float | None = None) -> PowerLaw | None:  # fmt: skip
    """log test error over the log of a quantity, one point per architecture (geometric means over seeds)."""
    cut = plan.cut if cut is None else cut
    networks, errors = [], []
    for architecture in plan.architectures:
        trainings = results.of(source, architecture.name)
        profiles = [
            result.profiles[which]
            for result in trainings
            if result.output(quantity, which, cut=cut, delta=delta) is not None
        ]
        error = positive_error(trainings)
        if profiles and error is not None:
            networks.append(profiles)
            errors.append(error)
    values = {float(laws.over_seeds(result, quantity, cut=cut, delta=delta).value) for result in networks}
    if len(networks) < 3 or len(values) < 2:
        return None
    return laws.error_law(networks, errors, quantity, slope=slope, cut=cut, delta=delta)


def stripe_levels(results: Results, plan: Settings) -> list[tuple[int, Interval]]:
    """R over P in the stripe model, geometric means over seeds."""
    lots = [(p, results.stripe(p)) for p in plan.stripe_sizes]
    return [(p, geometric_mean(torch.tensor([network.value for network in lot]))) for p, lot in lots if lot]


# --- findings -------------------------------------------------------------------------------------------------------


def findings(results: Results, plan: Settings, sources: Sequence[Source], *, paper: bool) -> tuple[Finding, ...]:
    """Table 1, the stabilities and errors, the fits, the treatments, the stripe model."""
    rows = (
        *_table_1(results, plan, sources[0]),
        *_levels(results, plan, sources, paper),
        *_curves(results, plan, sources),
        *_laws(results, plan, sources[0], paper),
        *_treatments(results, plan, sources[0]),
        *_stripes(results, plan),
    )
    factor = LARGER if paper else 1.0
    return tuple(
        finding if finding.within is None else replace(finding, within=factor * finding.within) for finding in rows
    )


def _table_1(results: Results, plan: Settings, source: Source) -> Iterator[Finding]:
    for architecture in plan.architectures:
        for result in results.of(source, architecture.name)[:1]:
            words = [f"depth {result.depth}", *(["batch norm"] * result.batch_norm), *(["skip"] * architecture.skip)]
            yield Finding(
                f"table1/{architecture.name}", f"{architecture.label}, parameters", result.parameters,
                note=", ".join(words), within=0.0,
            )  # fmt: skip


def _levels(results: Results, plan: Settings, sources: Sequence[Source], paper: bool) -> Iterator[Finding]:
    for source in sources:
        for cut in source.cuts:
            example = next((r for r in results.all if r.job.source is source and not r.diverged), None)
            row = example.setting("bijective_share", cut=cut) if example else None
            if row is not None:
                yield Finding(
                    f"bijective/{source.name}/c{cut}", f"share of bijective fields, {source.label}, c = {cut}, δ = 1",
                    row.value, row.low, row.high, row.n, within=0.1,
                )  # fmt: skip
        for architecture in plan.architectures:
            trainings = results.of(source, architecture.name)
            key, label = f"{source.name}/{architecture.name}", f"{architecture.label}, {source.label}"
            if not trainings:
                if any(r.job.architecture == architecture and r.job.source is source for r in results.all):
                    yield Finding(f"error/{key}", f"test error, {label}", math.nan, note="diverged")
                continue
            alone = "one network, n counts images" if len(trainings) == 1 else ""
            yield _finding(f"error/{key}", f"test error, {label}", mean_error(trainings), within=ERROR, note=alone)
            for cut in source.cuts:
                at = f"{key}/c{cut}"
                for which, words in (("initial", "at initialisation"), ("trained", "trained")):
                    printed = _printed(architecture.name, source.name, cut, which) if paper else None
                    yield _finding(
                        f"R/{which}/{at}", f"R, {label}, c = {cut}, {words}", level(trainings, R, which, cut=cut),
                        printed=printed, source="Section 3" if printed else "", share=RATIO, note=alone,
                    )  # fmt: skip
            for quantity in (D, G):
                yield _finding(
                    f"{LETTERS[quantity]}/trained/{key}",
                    f"{LETTERS[quantity]}, {label}, c = {source.cuts[0]}, trained",
                    level(trainings, quantity, cut=source.cuts[0]), share=RATIO, note=alone,
                )  # fmt: skip


def _printed(name: str, source: str, cut: int, which: str) -> float | None:
    """What the paper says in words: FullConn-L4 begins near 1, LeNet ends at 0.6 on CIFAR-10."""
    sentences = {("fc4", "cifar10", 3, "initial"): 1.0, ("lenet", "cifar10", 3, "trained"): 0.6}
    return sentences.get((name, source, cut, which))


def _curves(results: Results, plan: Settings, sources: Sequence[Source]) -> Iterator[Finding]:
    for source in sources:
        for name in plan.curves:
            label = next(a.label for a in plan.architectures if a.name == name)
            sizes = results.sizes(source, name)
            for p in sizes[:-1]:
                trainings = results.of(source, name, p)
                for quantity in (R, D, G):
                    yield _finding(
                        f"{LETTERS[quantity]}/P/{source.name}/{name}/{p}",
                        f"{LETTERS[quantity]}, {label}, {source.label}, P = {p}",
                        level(trainings, quantity, cut=source.cuts[0]), share=RATIO,
                    )  # fmt: skip
                yield _finding(f"error/P/{source.name}/{name}/{p}", f"test error, {label}, {source.label}, P = {p}",
                               mean_error(trainings), within=ERROR)  # fmt: skip
            for (p, q), slope in local_slopes(results, source, name).items():
                yield _finding(
                    f"slope/P/{source.name}/{name}/{p}-{q}",
                    f"local slope of log R over log P, {label}, {source.label}, P = {p} to {q}", slope, within=FIT,
                )  # fmt: skip
            law = size_law(results, source, name)
            if law is not None:
                yield _finding(
                    f"slope/P/{source.name}/{name}", f"slope of log R over log P, {label}, {source.label}", law.slope,
                    within=FIT, n=law.n,
                )  # fmt: skip


def local_slopes(results: Results, source: Source, name: str) -> dict[tuple[int, int], Interval]:
    """Of R over P between neighbouring sizes, over seeds."""
    sizes = results.sizes(source, name)
    return _slopes({p: results.by_seed(source, name, p) for p in sizes}, itertools.pairwise(sizes))


def range_slopes(results: Results, source: Source, name: str) -> dict[tuple[int, int], Interval]:
    """Of R over P between any two sizes, over seeds."""
    sizes = results.sizes(source, name)
    return _slopes({p: results.by_seed(source, name, p) for p in sizes}, itertools.combinations(sizes, 2))


def stripe_slopes(
    results: Results, plan: Settings, pairs: Iterable[tuple[int, int]] | None = None
) -> dict[tuple[int, int], Interval]:
    """Of the stripe model's R over P between neighbouring sizes, or these ``pairs``, over seeds."""
    values = {p: {network.seed: network.value for network in results.stripe(p)} for p in plan.stripe_sizes}
    return _slopes(values, itertools.pairwise(plan.stripe_sizes) if pairs is None else pairs)


def _slopes(
    values: Mapping[int, Mapping[int, float]], pairs: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], Interval]:
    slopes = {(p, q): local_slope(values[p], values[q], (p, q)) for p, q in pairs}
    return {pair: slope for pair, slope in slopes.items() if slope is not None}


def size_law(results: Results, source: Source, name: str) -> PowerLaw | None:
    """R over P."""
    cut = source.cuts[0]
    profiles = {}
    for p in results.sizes(source, name):
        trainings = [result for result in results.of(source, name, p) if result.output(R, cut=cut) is not None]
        if trainings:
            profiles[p] = [result.profiles["trained"] for result in trainings]
    if len(profiles) < 3:
        return None
    return laws.size_law(list(profiles.values()), list(profiles), R, cut=cut, delta=1.0)


def _laws(results: Results, plan: Settings, source: Source, paper: bool) -> Iterator[Finding]:
    free, half = (error_law(results, plan, source, slope=slope) for slope in (None, 0.5))
    if free is None or half is None:
        return
    yield _finding("fig5/slope", "slope of log error over log R", free.slope, n=free.n, within=FIT,
                   printed=0.5 if paper else None, source="Figure 5" if paper else "")  # fmt: skip
    yield _finding(
        "fig5/prefactor",
        "error / √R",
        half.prefactor,
        n=half.n,
        share=RATIO,
        printed=0.24 if paper else None,
        source="Figure 5; 0.2 in the abstract" if paper else "",
    )
    for quantity, printed in ((R, 0.97), (D, None), (G, None)):
        law = error_law(results, plan, source, quantity)
        if law is not None:
            yield _finding(
                f"correlation/{LETTERS[quantity]}", f"correlation of log error and log {LETTERS[quantity]}",
                law.correlation, n=law.n, within=FIT, printed=printed if paper else None,
                source="Figure 5" if paper and printed else "",
            )  # fmt: skip
    means = error_law(results, plan, source, which="trained/means")
    if means is not None:
        yield _finding("correlation/means", "correlation of log error and log R, means instead of medians",
                       means.correlation, n=means.n, within=FIT)  # fmt: skip


def _treatments(results: Results, plan: Settings, source: Source) -> Iterator[Finding]:
    for name in plan.treated:
        label = next(a.label for a in plan.architectures if a.name == name)
        for treatment in plan.treatments:
            trainings = results.of(source, name, treatment=treatment.name)
            key, words = f"treatment/{name}/{treatment.name}", f"{label}, {treatment.label}"
            for quantity in (R, D, G):
                interval = level(trainings, quantity, cut=plan.cut)
                yield _finding(f"{key}/{LETTERS[quantity]}", f"{LETTERS[quantity]}, {words}", interval, share=RATIO)
            yield _finding(f"{key}/error", f"test error, {words}", mean_error(trainings), within=ERROR)


def _stripes(results: Results, plan: Settings) -> Iterator[Finding]:
    levels = stripe_levels(results, plan)
    for p, value in levels:
        steps = [network.steps for network in results.stripe(p)]
        missed = sum(not network.converged for network in results.stripe(p))
        note = f"{missed} of {len(steps)} did not meet every margin" if missed else ""
        yield _finding(f"stripe/R/{p}", f"R, stripe model, P = {p}", value, share=RATIO, note=note)
    for (p, q), local in stripe_slopes(results, plan).items():
        yield _finding(f"stripe/slope/{p}-{q}", f"stripe model, local slope of log R over log P, P = {p} to {q}", local,
                       printed=-1.0, source="Figure 7", within=FIT)  # fmt: skip
    if len(levels) >= 2:
        slope = last_octave([p for p, _ in levels], [float(value.value) for _, value in levels])
        yield Finding("stripe/slope", "stripe model, slope of log R over log P on the last octave", slope,
                      theirs=-1.0, source="Figure 7", within=FIT)  # fmt: skip


def _finding(
    key: str, says: str, interval: Interval | None, *, printed: float | None = None, source: str = "",
    within: float | None = None, share: float | None = None, note: str = "", n: int | None = None,
) -> Finding:  # fmt: skip
    if interval is None:
        return Finding(key, says, math.nan, note="no value")
    value, low, high = (float(end) for end in (interval.value, interval.low, interval.high))
    bounded = math.isfinite(low) and math.isfinite(high)
    near = within if share is None else share * abs(value)
    return Finding(
        key,
        says,
        value,
        low if bounded else None,
        high if bounded else None,
        n or interval.n,
        theirs=printed,
        source=source,
        within=near,
        note=note,
    )


# --- tables as files ------------------------------------------------------------------------------------------------


def write_tables(results: Results, plan: Settings, sources: Sequence[Source], folder: Path) -> list[Path]:
    """``architectures.csv`` (Table 1) and ``stability.csv``: a line per training, cut-off and layer."""
    first = [trainings[0] for a in plan.architectures if (trainings := results.of(sources[0], a.name))]
    table = [["architecture", "depth", "parameters", "batch norm", "skip connections"]]
    table += [
        [r.job.architecture.label, str(r.depth), str(r.parameters), _yes(r.batch_norm), _yes(r.job.architecture.skip)]
        for r in first
    ]
    lines = [["architecture", "data", "P", "treatment", "seed", "error", "when", "cut", "layer", "R", "D", "G"]]
    lines += [line for result in results.all for line in _lines(result)]
    return [csv_file(folder / "architectures.csv", table), csv_file(folder / "stability.csv", lines)]


def _lines(result: Result) -> Iterator[list[str]]:
    job = result.job
    for which in ("initial", "trained"):
        for cut in job.source.cuts:
            columns = [result.rows(quantity, which, cut=cut) for quantity in (R, D, G)]
            for rows in zip(*columns, strict=True):
                yield [
                    job.architecture.label, job.source.label, str(job.p), job.treatment.label, str(job.seed),
                    f"{result.error:.6g}", which, str(cut), str(rows[0].layer), *(f"{row.value:.6g}" for row in rows),
                ]  # fmt: skip


def _yes(value: bool) -> str:
    return "yes" if value else "no"
