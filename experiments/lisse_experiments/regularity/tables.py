"""From distances, stretches and iterations to findings and claims, and the tables as files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from lisse.maths.intervals import across_clouds, bootstrap, share_interval
from lisse_experiments.form import Claim, Finding, above
from lisse_experiments.outputs import csv_file
from lisse_experiments.regularity.depth import Consensus, Inversion
from lisse_experiments.regularity.masked_lm import Quality
from lisse_experiments.regularity.negation import Distances
from lisse_experiments.regularity.pairs import KINDS, Stored
from lisse_experiments.regularity.statistics import Correlated, Welch, difference, pearson, ranked, welch, within
from lisse_experiments.regularity.stretches import Growth, Stretch, gaussian_ratio

ALPHA = 0.05


@dataclass(frozen=True, eq=False)
class Results:
    """All that was found. ``quality`` is ``None`` where the model was given and not trained here.

    ``moved`` are, by file of ``stored``, how far the comparable sentences move at the input of the model at hand, and
    their lengths.
    """

    distances: Distances
    quality: Quality | None
    stored: tuple[Stored, ...]
    stretches: tuple[Stretch, ...]
    growth: tuple[Growth, ...]
    first_violation: int
    inversions: tuple[Inversion, ...]
    single: tuple[Inversion, ...]
    guaranteed: float
    largest: float
    vanilla: Consensus
    scaled: Consensus
    injected: Consensus
    start_matters: float
    moved: Mapping[str, tuple[Tensor, list[str]]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Negation:
    """The statistics of Figure 2 over the pairs that are negated at all."""

    kinds: Welch
    predictions: Welch
    words: Welch
    within: Welch
    correlation: Correlated
    ranks: Correlated
    inside: Correlated
    over_templates: Correlated
    predictions_over_templates: Correlated


def negation(distances: Distances) -> Negation | None:
    """``None`` where one of the groups that are compared has fewer than two pairs."""
    stays, groups = distances.stays, [pair.group for pair in distances.pairs]
    first, second = (distances.of(kind) for kind in KINDS)
    sizes = [int(which.sum()) for which in (first, second, stays, ~stays)]
    if min(sizes) < 2:
        return None
    centred = within(distances.input, groups)
    return Negation(
        kinds=welch(distances.input[second], distances.input[first]),
        predictions=welch(distances.input[~stays], distances.input[stays]),
        words=welch(distances.words[~stays], distances.words[stays]),
        within=welch(centred[~stays], centred[stays]),
        correlation=pearson(distances.input, distances.output),
        ranks=pearson(ranked(distances.input), ranked(distances.output)),
        inside=pearson(centred, within(distances.output, groups)),
        over_templates=pearson(distances.input, distances.output, groups=groups),
        predictions_over_templates=difference(distances.input, ~stays, groups=groups),
    )


def conceptnet(distances: Distances) -> Distances | None:
    """The pairs of the paper's own source; ``None`` where there are none."""
    which = torch.tensor([pair.group.startswith("ConceptNet") for pair in distances.pairs])
    return distances.selection(which) if bool(which.any()) else None


# --- findings -------------------------------------------------------------------------------------------------------


def findings(results: Results, *, tolerances: bool) -> tuple[Finding, ...]:
    """Every number. ``tolerances``: how far a later run may be from it; what comes of a training gets more room."""
    loose = _Room(0.25 if tolerances else None)
    tight = _Room(1e-3 if tolerances else None)
    return (
        *_of_model(results, loose),
        *_of_negation(results.distances, loose),
        *_of_conceptnet(results.distances),
        *of_stored(results.stored, results.moved),
        *_of_bounds(results, _Room(0.03 if tolerances else None), tight),
        *_of_depth(results, tight),
    )


@dataclass(frozen=True)
class _Room:
    share: float | None

    def around(self, value: float, least: float = 0.0) -> float | None:
        """How far a later value may be away: a share of it, or ``least``."""
        return None if self.share is None else max(self.share * abs(value), least)


def _of_model(results: Results, room: _Room) -> list[Finding]:
    quality = results.quality
    if quality is None:
        return []
    numbers = []
    for key, says, interval in (("accuracy", "masked tokens found", quality.accuracy), ("loss", "loss", quality.loss)):
        value, low, high = (float(end) for end in (interval.value, interval.low, interval.high))
        note, unit = f"{quality.masked} masked tokens of n held-out texts", "nats" if key == "loss" else ""
        numbers.append(Finding(f"model/{key}", f"masked language model, {says}", value, low, high, quality.n, unit,
                             within=room.around(value, 0.1), note=note))  # fmt: skip
    return numbers


def _of_negation(distances: Distances, room: _Room) -> list[Finding]:
    result: list[Finding] = []

    def mean(key: str, says: str, values: Tensor) -> None:
        if len(values) > 1:
            estimate = across_clouds(values)  # Student's interval of a mean
            value, low, high = (float(end) for end in (estimate.value, estimate.low, estimate.high))
            result.append(Finding(key, says, value, low, high, len(values), within=room.around(value)))

    for kind in KINDS:
        mean(
            f"negation/input/{kind}",
            f"W1 of input embeddings, negation by {kind}, mean",
            distances.input[distances.of(kind)],
        )
        mean(
            f"negation/output/{kind}",
            f"ℓ1 distance at [MASK], negation by {kind}, mean",
            distances.output[distances.of(kind)],
        )
    for name, which in (("same", distances.stays), ("different", ~distances.stays)):
        mean(f"negation/input/{name}", f"W1 of input embeddings, {name} first prediction, mean", distances.input[which])
    share = share_interval(float(distances.stays.double().mean()), len(distances.stays))
    result.append(Finding(
        "negation/same", "pairs with the same first prediction", float(share.value), float(share.low),
        float(share.high), len(distances.stays), within=room.around(0.0, 0.25),
    ))  # fmt: skip
    tests = negation(distances)
    if tests is None:
        return result
    for key, says, estimate in (
        ("correlation", "correlation of W1 at the input and ℓ1 at [MASK] (Pearson)", tests.correlation),
        ("ranks", "the same of ranks (Spearman)", tests.ranks),
        ("inside", "the same within templates (Pearson)", tests.inside),
        ("templates", "the first (Pearson), interval over templates", tests.over_templates),
    ):
        result.append(
            Finding(
                f"negation/{key}",
                says,
                estimate.value,
                estimate.low,
                estimate.high,
                estimate.n,
                within=room.around(0.0, 0.3),
            )
        )
    estimate = tests.predictions_over_templates
    result.append(
        Finding(
            "negation/difference/templates",
            "W1 at the input, different minus same, interval over templates",
            estimate.value,
            estimate.low,
            estimate.high,
            estimate.n,
            within=None if room.share is None else 1.5 * (estimate.high - estimate.low),
        )
    )
    for key, says, test in (
        ("kinds", "W1 at the input, rewriting minus insertion", tests.kinds),
        ("predictions", "W1 at the input, different minus same first prediction", tests.predictions),
        ("words", "the same with word embeddings alone", tests.words),
        ("within", "the same within templates", tests.within),
    ):
        note = f"Welch: t = {test.t:.3g}, p = {test.p_value:.2g}"
        room_ = None if room.share is None else 1.5 * (test.high - test.low)
        result.append(Finding(f"negation/difference/{key}", says, test.difference, test.low, test.high, sum(test.n),
                              within=room_, note=note))  # fmt: skip
    return result


def _of_conceptnet(distances: Distances) -> list[Finding]:
    """The numbers of the paper's own source, which are few."""
    subset = conceptnet(distances)
    tests = None if subset is None else negation(subset)
    if subset is None or tests is None:
        return []
    share = share_interval(float(subset.stays.double().mean()), len(subset.stays))
    result = [Finding("conceptnet/same", "ConceptNet alone: pairs with the same first prediction", float(share.value),
                      float(share.low), float(share.high), len(subset.stays))]  # fmt: skip
    for key, says, estimate in (
        ("correlation", "correlation of W1 at the input and ℓ1 at [MASK] (Pearson)", tests.correlation),
        ("ranks", "the same of ranks (Spearman)", tests.ranks),
    ):
        result.append(
            Finding(
                f"conceptnet/{key}",
                f"ConceptNet alone: {says}",
                estimate.value,
                estimate.low,
                estimate.high,
                estimate.n,
            )
        )
    for key, says, test in (
        ("kinds", "W1 at the input, rewriting minus insertion", tests.kinds),
        ("predictions", "W1 at the input, different minus same first prediction", tests.predictions),
    ):
        note = f"Welch: t = {test.t:.3g}, p = {test.p_value:.2g}"
        result.append(Finding(f"conceptnet/difference/{key}", f"ConceptNet alone: {says}", test.difference, test.low,
                              test.high, sum(test.n), note=note))  # fmt: skip
    return result


def of_stored(stored: Sequence[Stored], moved: Mapping[str, tuple[Tensor, list[str]]]) -> list[Finding]:
    """How often published networks keep their first word, and how much further the input moves where they do not."""
    numbers = []
    for prediction in stored:
        where, label = f"stored/{prediction.file}/{prediction.network}", f"{prediction.network}, {prediction.file}"
        stays = [stay for stay, comparable in zip(prediction.stays, prediction.comparable, strict=True) if comparable]
        overlap = [
            share for share, comparable in zip(prediction.overlap, prediction.comparable, strict=True) if comparable
        ]
        if len(stays) < 2:
            continue
        share = share_interval(sum(stays) / len(stays), len(stays))
        mean = bootstrap(torch.tensor(overlap, dtype=torch.float64), generator=torch.Generator().manual_seed(0))
        for key, says, interval in (
            ("same", "same first prediction", share),
            ("overlap", "common words among the first 20", mean),
        ):
            value, low, high = (float(end) for end in (interval.value, interval.low, interval.high))
            numbers.append(Finding(f"{where}/{key}", f"{label}: {says}", value, low, high, len(stays), within=1e-5))
        for key, says, test in stored_tests(prediction, moved):
            note = f"Welch: t = {test.t:.3g}, p = {test.p_value:.2g}"
            numbers.append(
                Finding(
                    f"{where}/{key}", f"{label}: {says}", test.difference, test.low, test.high, sum(test.n), note=note
                )
            )
    return numbers


def stored_tests(prediction: Stored, moved: Mapping[str, tuple[Tensor, list[str]]]) -> list[tuple[str, str, Welch]]:
    """Figure 2c for a published network, over all sentences and among those of one length."""
    if prediction.file not in moved:
        return []
    distances, lengths = moved[prediction.file]
    pairs = zip(prediction.stays, prediction.comparable, strict=True)
    stays = torch.tensor([stay for stay, comparable in pairs if comparable])
    if min(int(stays.sum()), int((~stays).sum())) < 2:
        return []
    centred = within(distances, lengths)
    return [
        (
            "input",
            "W1 at the input of a proxy, different minus same first prediction",
            welch(distances[~stays], distances[stays]),
        ),
        ("length", "the same among sentences of one length", welch(centred[~stays], centred[stays])),
    ]


def _of_bounds(results: Results, searched: _Room, exact: _Room) -> list[Finding]:
    numbers = [
        Finding(
            f"tau/d{item.d}/r{item.radius:g}",
            f"τ of dot-product attention, d = {item.d}, R = {item.radius:g}, at least",
            item.measured,
            n=item.n,
            theirs=item.printed,
            source="Theorem 1, a bound",
            within=searched.around(item.measured),
            note=f"proved bound {item.corrected:.4g}",
        )
        for item in results.stretches
    ]
    numbers += [
        Finding(
            f"gaussian/n{item.n}", f"stretch of Gaussian attention, d = 1, {item.n:,} points", item.measured, n=1,
            theirs=item.intended, source="Theorem 2, a bound", within=exact.around(item.measured),
            note=f"literal reading {item.literal:.4g}",
        )
        for item in results.growth
    ]  # fmt: skip
    fixed = gaussian_ratio(12_000, 2.86, 1e-3)
    numbers.append(
        Finding("gaussian/24001", "the same, 24,001 points, r = 2.86, moved by 0.001", fixed, n=1, within=1e-4)
    )
    numbers.append(Finding("gaussian/first", "points from which Theorem 2 is exceeded", results.first_violation, n=1,
                         within=0.0))  # fmt: skip
    return numbers


def _of_depth(results: Results, room: _Room) -> list[Finding]:
    numbers = [
        Finding(
            f"invert/c{inversion.scale:g}",
            f"rate of inversion, 12 tokens, value scale {inversion.scale:g}",
            inversion.rate,
            n=inversion.tokens,
            within=room.around(inversion.rate, 1e-2),
            note="" if inversion.converged else "does not converge",
        )
        for inversion in results.inversions
    ]
    numbers += [
        Finding(
            f"invert/one/c{inversion.scale:g}",
            f"rate of inversion, one token, value scale {inversion.scale:g}",
            inversion.rate,
            n=1,
            within=room.around(inversion.rate),
            note="" if inversion.converged else "does not converge",
        )
        for inversion in results.single
    ]
    for key, says, value in (
        (
            "invert/guaranteed",
            "largest value scale with a guarantee (proved bound below 1 on the ball of all iterates)",
            results.guaranteed,
        ),
        ("invert/largest", "largest value scale that was inverted", results.largest),
        (
            "consensus/spread",
            "vanilla attention, 200 layers: largest distance between tokens",
            results.vanilla.spreads[-1],
        ),
        ("consensus/apart", "vanilla attention: distance between the ends of two inputs", results.vanilla.apart),
        ("scaled/apart", "values halved: distance between the ends of two inputs", results.scaled.apart),
        ("injected/apart", "values halved, with injection: distance between the ends", results.injected.apart),
        ("injected/start", "the same: distance between the ends of two starts", results.start_matters),
    ):
        numbers.append(Finding(key, says, value, n=1, within=room.around(value, 1e-6)))
    return numbers


# --- claims ---------------------------------------------------------------------------------------------------------


def claims(results: Results) -> tuple[Claim, ...]:
    """What the paper states, and what lisse says of its bounds."""
    subset = conceptnet(results.distances)
    return (
        *_negation_claims(results.distances),
        *(_paper_claims(subset, "conceptnet", ", ConceptNet alone") if subset is not None else ()),
        *stored_claims(results.stored, results.moved),
        *_bound_claims(results),
        *_depth_claims(results),
    )


def _paper_claims(distances: Distances, prefix: str, where: str = "") -> list[Claim]:
    """The statements of appendix D."""
    tests = negation(distances)
    if tests is None:
        return []
    kinds, changed = tests.kinds, tests.predictions
    return [
        Claim(
            f"{prefix}/kinds",
            f"the two types of negation move the input by different distances{where}",
            True if kinds.p_value < ALPHA else None,  # no test shows that two means are equal
            _welch(kinds),
        ),
        *(
            Claim(
                f"{prefix}/{key}",
                f"input and output distances are positively correlated ({name}){where}",
                above((estimate.low, estimate.high)),
                _ends(estimate),
            )
            for key, name, estimate in (
                ("correlation", "Pearson", tests.correlation),
                ("ranks", "Spearman", tests.ranks),
            )
        ),
        Claim(
            f"{prefix}/prediction",
            f"the input moves further where the prediction changes (Welch, α = 0.05){where}",
            above((changed.low, changed.high)),
            _welch(changed),
        ),
    ]


def _negation_claims(distances: Distances) -> list[Claim]:
    """The same, and whether they hold within templates and for other templates."""
    tests = negation(distances)
    if tests is None:
        return []
    inside, over, changed = tests.inside, tests.over_templates, tests.predictions_over_templates
    return [
        *_paper_claims(distances, "negation"),
        Claim("negation/inside", "input and output distances are positively correlated within templates",
              above((inside.low, inside.high)), _ends(inside), theirs=False),
        Claim("negation/templates", "input and output distances are positively correlated (Pearson, interval over "
              "templates)", above((over.low, over.high)), _ends(over), theirs=False),
        Claim("negation/within", "the input moves further where the prediction changes, within templates",
              above((tests.within.low, tests.within.high)), _welch(tests.within), theirs=False),
        Claim("negation/prediction-templates", "the input moves further where the prediction changes (interval over "
              "templates)", above((changed.low, changed.high)), _ends(changed), theirs=False),
    ]  # fmt: skip


def stored_claims(stored: Sequence[Stored], moved: Mapping[str, tuple[Tensor, list[str]]]) -> list[Claim]:
    """Figure 2c in networks that others have trained, on the sentences of which there are enough."""
    tests = [
        (key, test)
        for prediction in stored
        if prediction.file.startswith("NEG-1500")
        for key, _, test in stored_tests(prediction, moved)
    ]
    sentences = []
    for key, says, printed in (
        ("input", "the input of a proxy moves further where the prediction changes, in every published network", True),
        ("length", "the same among sentences of one length", False),
    ):
        looks = [test for name, test in tests if name == key]
        if not looks:
            continue
        answers = [above((test.low, test.high)) for test in looks]
        counts = [answers.count(answer) for answer in (True, False, None)]
        holds = False if False in answers else None if None in answers else True
        p_values = [test.p_value for test in looks]
        sentences.append(
            Claim(
                f"stored/{key}", says, holds,
                f"further in {counts[0]}, less far in {counts[1]}, undecided in {counts[2]} of {len(looks)} (network, "
                f"set of sentences); p {min(p_values):.2g} … {max(p_values):.2g}",
                theirs=printed,
            )
        )  # fmt: skip
    return sentences


def _welch(test: Welch) -> str:
    return f"{test.difference:.3g} [{test.low:.3g}, {test.high:.3g}], p = {test.p_value:.2g}"


def _ends(estimate: Correlated) -> str:
    return f"{estimate.value:.3g} [{estimate.low:.3g}, {estimate.high:.3g}]"


def _bound_claims(results: Results) -> list[Claim]:
    broken = [item for item in results.stretches if item.violated]
    where = ", ".join(f"d = {item.d}, R = {item.radius:g}" for item in broken)
    over = [item for item in results.stretches if item.measured > item.corrected * (1 + 1e-9)]
    late = [item for item in results.growth if item.measured > item.intended]
    low = [item for item in results.stretches if item.d == 1 and item.measured < 0.9 * item.below]
    return [
        Claim("bounds/theorem1", "no pair of measures exceeds Theorem 1 as printed", not broken,
              f"exceeded at {where}" if broken else ""),
        Claim("bounds/corrected", "no pair of measures exceeds Theorem 1 as corrected", not over, theirs=False),
        Claim("bounds/below", "on the line the search reaches 0.9 e^(R²/4)", not low, theirs=False),
        Claim("bounds/theorem2", "no points exceed Theorem 2", not late,
              f"exceeded from {results.first_violation:,} points on" if late else ""),
    ]  # fmt: skip


def _depth_claims(results: Results) -> list[Claim]:
    return [
        Claim(
            "depth/invertible",
            "where the constant is below 1 the residual block is inverted",
            all(
                inversion.converged and inversion.error < 1e-8
                for inversion in results.inversions
                if inversion.scale < results.guaranteed
            ),
        ),
        Claim(
            "depth/vanilla",
            "vanilla attention (values not scaled) is inverted",
            all(
                inversion.converged
                for inversion in (*results.inversions, *results.single)
                if math.isclose(inversion.scale, 1.0)
            ),
            theirs=False,
        ),
        Claim(
            "depth/forgets",
            "without injection the end does not depend on the input",
            results.vanilla.apart < 1e-9,
            f"two inputs end {results.vanilla.apart:.3g} apart, each in a consensus",
        ),
        Claim(
            "depth/forgets-scaled",
            "the same where the values make it a contraction",
            results.scaled.apart < 1e-9,
            theirs=False,
        ),
        Claim(
            "depth/injected",
            "with injection the end depends on the input, and not on the start",
            results.injected.apart > 1e-3 and results.start_matters < 1e-9,
        ),
    ]


# --- files ----------------------------------------------------------------------------------------------------------


def write_tables(results: Results, folder: Path) -> list[Path]:
    """``pairs.csv``: every pair with its distances; ``bounds.csv``: every stretch."""
    distances = results.distances
    pairs = [["sentence", "negation", "group", "kind", "w1_input", "w1_words", "l1_mask", "same_prediction"]]
    for index, pair in enumerate(distances.pairs):
        numbers = [f"{float(values[index]):.6g}" for values in (distances.input, distances.words, distances.output)]
        pairs.append([pair.sentence, pair.negation, pair.group, pair.kind, *numbers, str(int(distances.stays[index]))])
    bounds = [["d", "radius", "measured", "printed", "corrected", "move", "pairs tried"]]
    for stretch in results.stretches:
        numbers = [f"{value:.6g}" for value in (stretch.radius, stretch.measured, stretch.printed, stretch.corrected)]
        bounds.append([str(stretch.d), *numbers, stretch.move, str(stretch.n)])
    return [csv_file(folder / "pairs.csv", pairs), csv_file(folder / "bounds.csv", bounds)]
