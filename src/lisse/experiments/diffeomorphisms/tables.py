"""From results to findings beside the paper's numbers, claims that hold or not, and tables as files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lisse.experiments.diffeomorphisms.networks import Source
from lisse.experiments.diffeomorphisms.plan import Settings
from lisse.experiments.diffeomorphisms.result import D, G, R, Result, Results, level, mean_error, positive_error
from lisse.experiments.diffeomorphisms.stripe import last_octave
from lisse.experiments.form import Finding
from lisse.experiments.outputs import csv_file
from lisse.instruments import stability_fits
from lisse.maths.intervals import Interval
from lisse.maths.power_law import PowerLaw, geometric_mean

LETTERS = {R: "R", D: "D", G: "G"}
# How far a later smoke run may be, as a share of the value; see README.md, "What may move".
RATIO, ERROR, FIT = 0.6, 0.05, 0.6
LARGER = 0.5  # of that, for a run at another scale: more images, more weights, less chance


def error_law(results: Results, chosen: Settings, source: Source, quantity: str = R, *, which: str = "trained",
              cut: int | None = None, delta: float = 1.0, slope: float | None = None) -> PowerLaw | None:  # fmt: skip
    """log test error over the log of a quantity, one point per architecture (geometric means over seeds)."""
    cut = chosen.cut if cut is None else cut
    networks, errors = [], []
    for architecture in chosen.architectures:
        some = results.of(source, architecture.name)
        there = [one.profiles[which] for one in some if one.output(quantity, which, cut=cut, delta=delta) is not None]
        error = positive_error(some)
        if there and error is not None:
            networks.append(there)
            errors.append(error)
    values = {float(stability_fits.over_seeds(one, quantity, cut=cut, delta=delta).value) for one in networks}
    if len(networks) < 3 or len(values) < 2:
        return None
    return stability_fits.error_law(networks, errors, quantity, slope=slope, cut=cut, delta=delta)


def stripe_levels(results: Results, chosen: Settings) -> list[tuple[int, Interval]]:
    """R over P in the stripe model, geometric means over seeds."""
    found = [(p, results.stripe(p)) for p in chosen.stripe_sizes]
    return [(p, geometric_mean(torch.tensor([one.value for one in some]))) for p, some in found if some]


# --- findings -------------------------------------------------------------------------------------------------------


def findings(results: Results, chosen: Settings, sources: Sequence[Source], *, paper: bool) -> tuple[Finding, ...]:
    """Table 1, the stabilities and errors, the fits, the treatments, the stripe model."""
    found = (
        *_table_1(results, chosen, sources[0]),
        *_levels(results, chosen, sources, paper),
        *_curves(results, chosen, sources),
        *_laws(results, chosen, sources[0], paper),
        *_treatments(results, chosen, sources[0]),
        *_stripes(results, chosen),
    )
    factor = LARGER if paper else 1.0
    return tuple(one if one.within is None else replace(one, within=factor * one.within) for one in found)


def _table_1(results: Results, chosen: Settings, source: Source) -> Iterator[Finding]:
    for architecture in chosen.architectures:
        for result in results.of(source, architecture.name)[:1]:
            words = [f"depth {result.depth}", *(["batch norm"] * result.batch_norm), *(["skip"] * architecture.skip)]
            yield Finding(
                f"table1/{architecture.name}", f"{architecture.label}, parameters", result.parameters,
                note=", ".join(words), within=0.0,
            )  # fmt: skip


def _levels(results: Results, chosen: Settings, sources: Sequence[Source], paper: bool) -> Iterator[Finding]:
    for source in sources:
        for cut in source.cuts:
            one = next((r for r in results.all if r.job.source is source and not r.diverged), None)
            row = one.setting("bijective_share", cut=cut) if one else None
            if row is not None:
                yield Finding(
                    f"bijective/{source.name}/c{cut}", f"share of bijective fields, {source.label}, c = {cut}, δ = 1",
                    row.value, row.low, row.high, row.n, within=0.1,
                )  # fmt: skip
        for architecture in chosen.architectures:
            some = results.of(source, architecture.name)
            here, said = f"{source.name}/{architecture.name}", f"{architecture.label}, {source.label}"
            if not some:
                if any(r.job.architecture == architecture and r.job.source is source for r in results.all):
                    yield Finding(f"error/{here}", f"test error, {said}", math.nan, note="diverged")
                continue
            alone = "one network, n counts images" if len(some) == 1 else ""
            yield _finding(f"error/{here}", f"test error, {said}", mean_error(some), within=ERROR, note=alone)
            for cut in source.cuts:
                at = f"{here}/c{cut}"
                for which, words in (("initial", "at initialisation"), ("trained", "trained")):
                    theirs = _printed(architecture.name, source.name, cut, which) if paper else None
                    yield _finding(
                        f"R/{which}/{at}", f"R, {said}, c = {cut}, {words}", level(some, R, which, cut=cut),
                        theirs=theirs, source="Section 3" if theirs else "", share=RATIO, note=alone,
                    )  # fmt: skip
            for quantity in (D, G):
                yield _finding(
                    f"{LETTERS[quantity]}/trained/{here}",
                    f"{LETTERS[quantity]}, {said}, c = {source.cuts[0]}, trained",
                    level(some, quantity, cut=source.cuts[0]), share=RATIO, note=alone,
                )  # fmt: skip


def _printed(name: str, source: str, cut: int, which: str) -> float | None:
    """What the paper says in words: FullConn-L4 begins near 1, LeNet ends at 0.6 on CIFAR-10."""
    said = {("fc4", "cifar10", 3, "initial"): 1.0, ("lenet", "cifar10", 3, "trained"): 0.6}
    return said.get((name, source, cut, which))


def _curves(results: Results, chosen: Settings, sources: Sequence[Source]) -> Iterator[Finding]:
    for source in sources:
        for name in chosen.curves:
            label = next(a.label for a in chosen.architectures if a.name == name)
            sizes = results.sizes(source, name)
            for p in sizes[:-1]:
                some = results.of(source, name, p)
                for quantity in (R, D, G):
                    yield _finding(
                        f"{LETTERS[quantity]}/P/{source.name}/{name}/{p}",
                        f"{LETTERS[quantity]}, {label}, {source.label}, P = {p}",
                        level(some, quantity, cut=source.cuts[0]), share=RATIO,
                    )  # fmt: skip
            law = size_law(results, source, name)
            if law is not None:
                yield _finding(
                    f"slope/P/{source.name}/{name}", f"slope of log R over log P, {label}, {source.label}", law.slope,
                    within=FIT, n=law.n,
                )  # fmt: skip


def size_law(results: Results, source: Source, name: str) -> PowerLaw | None:
    """R over P."""
    cut = source.cuts[0]
    known = {}
    for p in results.sizes(source, name):
        some = [one for one in results.of(source, name, p) if one.output(R, cut=cut) is not None]
        if some:
            known[p] = [one.profiles["trained"] for one in some]
    if len(known) < 3:
        return None
    return stability_fits.size_law(list(known.values()), list(known), R, cut=cut, delta=1.0)


def _laws(results: Results, chosen: Settings, source: Source, paper: bool) -> Iterator[Finding]:
    free, half = (error_law(results, chosen, source, slope=slope) for slope in (None, 0.5))
    if free is None or half is None:
        return
    yield _finding("fig5/slope", "slope of log error over log R", free.slope, n=free.n, within=FIT,
                   theirs=0.5 if paper else None, source="Figure 5" if paper else "")  # fmt: skip
    yield _finding("fig5/prefactor", "error / √R", half.prefactor, n=half.n, share=RATIO,
                   theirs=0.24 if paper else None, source="Figure 5; 0.2 in the abstract" if paper else "")  # fmt: skip
    for quantity, theirs in ((R, 0.97), (D, None), (G, None)):
        law = error_law(results, chosen, source, quantity)
        if law is not None:
            yield _finding(
                f"correlation/{LETTERS[quantity]}", f"correlation of log error and log {LETTERS[quantity]}",
                law.correlation, n=law.n, within=FIT, theirs=theirs if paper else None,
                source="Figure 5" if paper and theirs else "",
            )  # fmt: skip
    means = error_law(results, chosen, source, which="trained/means")
    if means is not None:
        yield _finding("correlation/means", "correlation of log error and log R, means instead of medians",
                       means.correlation, n=means.n, within=FIT)  # fmt: skip


def _treatments(results: Results, chosen: Settings, source: Source) -> Iterator[Finding]:
    for name in chosen.treated:
        label = next(a.label for a in chosen.architectures if a.name == name)
        for treatment in chosen.treatments:
            some = results.of(source, name, treatment=treatment.name)
            here, said = f"treatment/{name}/{treatment.name}", f"{label}, {treatment.label}"
            for quantity in (R, D, G):
                found = level(some, quantity, cut=chosen.cut)
                yield _finding(f"{here}/{LETTERS[quantity]}", f"{LETTERS[quantity]}, {said}", found, share=RATIO)
            yield _finding(f"{here}/error", f"test error, {said}", mean_error(some), within=ERROR)


def _stripes(results: Results, chosen: Settings) -> Iterator[Finding]:
    found = stripe_levels(results, chosen)
    for p, value in found:
        steps = [one.steps for one in results.stripe(p)]
        missed = sum(not one.converged for one in results.stripe(p))
        note = f"{missed} of {len(steps)} did not meet every margin" if missed else ""
        yield _finding(f"stripe/R/{p}", f"R, stripe model, P = {p}", value, share=RATIO, note=note)
    if len(found) >= 2:
        slope = last_octave([p for p, _ in found], [float(value.value) for _, value in found])
        yield Finding("stripe/slope", "stripe model, slope of log R over log P on the last octave", slope,
                      theirs=-1.0, source="Figure 7", within=FIT)  # fmt: skip


def _finding(
    key: str, says: str, found: Interval | None, *, theirs: float | None = None, source: str = "",
    within: float | None = None, share: float | None = None, note: str = "", n: int | None = None,
) -> Finding:  # fmt: skip
    if found is None:
        return Finding(key, says, math.nan, note="no value")
    value, low, high = (float(end) for end in (found.value, found.low, found.high))
    known = math.isfinite(low) and math.isfinite(high)
    near = within if share is None else share * abs(value)
    return Finding(
        key, says, value, low if known else None, high if known else None, n or found.n, theirs=theirs, source=source,
        within=near, note=note,
    )  # fmt: skip


# --- tables as files ------------------------------------------------------------------------------------------------


def write_tables(results: Results, chosen: Settings, sources: Sequence[Source], folder: Path) -> list[Path]:
    """``architectures.csv`` (Table 1) and ``stability.csv``: a line per training, cut-off and layer."""
    first = [some[0] for a in chosen.architectures if (some := results.of(sources[0], a.name))]
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
