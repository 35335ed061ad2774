"""From results to findings beside the paper's numbers, claims that hold or not, and tables as files."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from lisse.profile import Row, Value
from lisse_experiments.form import Claim, Finding, above
from lisse_experiments.outputs import csv_file
from lisse_experiments.topolip.accuracy import ALL, CORRUPTIONS, SEVERITIES
from lisse_experiments.topolip.correlation import Correlation, rank_correlation
from lisse_experiments.topolip.networks import Family
from lisse_experiments.topolip.result import Result, Statistic

ORDERS = (1, 2)
DIMS: tuple[Value, ...] = (0, 1, "all")
NAMES: dict[Statistic, str] = {
    "max": "TopoLip", "mean": "mean change rate", "shape": "distance of shapes at the last block",
}  # fmt: skip
# The readings of TopoLip that the paper leaves open, beside W1 and W2: what is a layer, what the input is, H0 or H1.
READINGS: tuple[tuple[bool, bool, Value], ...] = tuple(itertools.product((True, False), (False, True), DIMS))
LIKE = 1.5  # two numbers are alike within this factor
DROPS = {"drop": "drop", "lost_share": "share of accuracy lost"}


# --- findings -------------------------------------------------------------------------------------------------------


def findings(results: Sequence[Result], seed: int) -> tuple[Finding, ...]:
    """Table 2, the change rates, and their rank correlation with the drop."""
    return (*_accuracies(results), *_rates(results), *_correlations(results, seed))


def _accuracies(results: Sequence[Result]) -> Iterable[Finding]:
    for result in results:
        network, printed = result.network, result.network.accuracy
        for index, corruption in enumerate(("clean", *CORRUPTIONS)):
            clean = corruption == "clean"
            row = result.accuracy("accuracy" if clean else "mean_accuracy", corruption)
            name = CORRUPTIONS.get(corruption, corruption)
            yield _finding(
                f"table2/{network.name}/{corruption}", f"{network.label}, accuracy, {name}", row, result.note,
                scale=100, unit="%", printed=printed[index] if printed else None, source="Table 2" if printed else "",
                within=ACCURACY,
            )  # fmt: skip
        mean = sum(printed[0] - value for value in printed[1:]) / len(CORRUPTIONS) if printed else None
        yield _finding(
            f"table2/{network.name}/drop", f"{network.label}, mean drop over the five corruptions",
            result.accuracy("drop", ALL), result.note, scale=100, unit="points", printed=mean,
            source="Table 2" if printed else "", within=ACCURACY,
        )  # fmt: skip


def _rates(results: Sequence[Result]) -> Iterable[Finding]:
    for result in results:
        for statistic, name in NAMES.items():
            for p in ORDERS:
                row = result.rate(statistic, p)
                yield _finding(
                    f"rate/{result.network.name}/{statistic}/W{p}", f"{result.network.label}, {name}, W{p}", row,
                    result.note or ("" if row else "no layers differ"),
                    within=None if row is None else RATE * max(row.value, 0.2),
                )  # fmt: skip


def _correlations(results: Sequence[Result], seed: int) -> Iterable[Finding]:
    for statistic, name in NAMES.items():
        for p in ORDERS:
            for quantity, drop in DROPS.items():
                rho = correlation(results, statistic, p, quantity, seed)
                bounded = math.isfinite(rho.low)
                yield Finding(
                    f"spearman/{statistic}/W{p}/{quantity}", f"Spearman's ρ of {name}, W{p}, and {drop}", rho.value,
                    rho.low if bounded else None, rho.high if bounded else None, rho.n, within=RHO,
                    note=f"permutation p = {rho.p_value:.2g}" if bounded else "too few networks",
                )  # fmt: skip


def correlation(results: Sequence[Result], statistic: Statistic, p: int, quantity: str, seed: int) -> Correlation:
    """Over the networks that have both."""
    pairs = [(result.rate(statistic, p), result.accuracy(quantity, ALL)) for result in results]
    points = [(rate.value, drop.value) for rate, drop in pairs if rate is not None and drop is not None]
    return rank_correlation([rate for rate, _ in points], [drop for _, drop in points], seed=seed)


# How far a later smoke run may be: see method.md, "What may move".
ACCURACY, RATE, RHO = 4.0, 0.15, 0.2


def _finding(
    key: str, says: str, row: Row | None, note: str, *, scale: float = 1.0, unit: str = "",
    printed: float | None = None, source: str = "", within: float | None = None,
) -> Finding:  # fmt: skip
    if row is None:
        return Finding(key, says, math.nan, unit=unit, theirs=printed, source=source, within=within, note=note)
    low, high = (None if end is None else scale * end for end in (row.low, row.high))
    return Finding(key, says, scale * row.value, low, high, row.n, unit, printed, source, within, note)


# --- claims ---------------------------------------------------------------------------------------------------------


PAIRS: tuple[tuple[Family, Family], ...] = (("Conv", "Attn"), ("ResNet", "ViT"))
RATES: tuple[Statistic, ...] = ("max", "mean")


def claims(results: Sequence[Result], seed: int) -> tuple[Claim, ...]:
    """What the paper says of its networks, decided by our intervals."""
    sentences = []
    for statistic in RATES:
        name = NAMES[statistic]
        for p in ORDERS:
            for upper, lower in PAIRS:
                sentences.append(
                    _above(results, statistic, p, upper, lower, f"every {upper} has a larger {name} (W{p}) than every")
                )
    for statistic, name in NAMES.items():
        for p in ORDERS:
            rho = correlation(results, statistic, p, "drop", seed)
            detail = f"ρ = {rho.value:.2f} [{rho.low:.2f}, {rho.high:.2f}], n = {rho.n}, p = {rho.p_value:.2g}"
            sentences.append(
                Claim(
                    f"goes-with-drop/{statistic}/W{p}",
                    f"{name} (W{p}) goes with the drop under corruption",
                    above((rho.low, rho.high)),
                    detail,
                    theirs=statistic == "max",
                )
            )
    sentences += [*_readings(results), *_alike(results)]
    sentences.append(_more_robust(results))
    sentences.append(_failed(results))
    return tuple(sentences)


def _above(results: Sequence[Result], statistic: Statistic, p: int, above: Family, below: Family, says: str) -> Claim:
    """Whether every network of one family lies above every network of another, intervals apart."""
    key = f"{above.lower()}-above-{below.lower()}/{statistic}/W{p}"
    high = _family_rows(results, above, lambda result: result.rate(statistic, p))
    low = _family_rows(results, below, lambda result: result.rate(statistic, p))
    return _apart(key, f"{says} {below}", high, low, printed=statistic == "max")


def _readings(results: Sequence[Result]) -> list[Claim]:
    """Whether the orders of families hang on what the paper leaves open; nothing where one cloud was measured."""
    sentences = []
    for p, (upper, lower) in itertools.product(ORDERS, PAIRS):
        answers = list(_orders(results, p, upper, lower))
        if any(answer is not None for answer in answers):
            counts = {
                word: answers.count(answer) for word, answer in (("holds", True), ("fails", False), ("is open", None))
            }
            holds = True if counts["holds"] == len(answers) else False if counts["fails"] else None
            sentences.append(
                Claim(
                    f"readings/{upper.lower()}-above-{lower.lower()}/W{p}",
                    f"every {upper} has a larger TopoLip (W{p}) than every {lower} in every reading",
                    holds,
                    ", ".join(f"{word} in {count}" for word, count in counts.items()) + f" of {len(answers)} readings "
                    "(head a layer or not, input raw or normalised, H0, H1 or both)",
                    theirs=False,
                )
            )
    return sentences


def _orders(results: Sequence[Result], p: int, upper: Family, lower: Family) -> Iterable[bool | None]:
    """Of every reading: whether every network of one family is above every one of the other."""
    for head, normalised, dim in READINGS:
        rate = functools.partial(Result.reading, p=p, dim=dim, head=head, normalised=normalised)
        high, low = (_family_rows(results, family, rate) for family in (upper, lower))
        yield _apart("", "", high, low, printed=False).holds


def _alike(results: Sequence[Result]) -> list[Claim]:
    """ViT (large) and ResNet101, of which the paper says that they are comparable; the factor is ours."""
    by_name = {result.network.name: result for result in results}
    pair = by_name.get("vit_large"), by_name.get("resnet101")
    sentences = []
    for key, says in (("W2", "TopoLip (W2)"), ("drop", "drop under corruption")):
        rows = [
            None if result is None else result.rate("max", 2) if key == "W2" else result.accuracy("drop", ALL)
            for result in pair
        ]
        holds, detail = None, "not measured"
        if rows[0] is not None and rows[1] is not None:
            (a, b), (c, d) = _ends(rows[0]), _ends(rows[1])
            inside, outside = b <= LIKE * c and d <= LIKE * a, a > LIKE * d or c > LIKE * b
            holds = True if inside else False if outside else None
            detail = f"{_row_text('ViT (large)', rows[0])} against {_row_text('ResNet101', rows[1])}"
        sentences.append(
            Claim(
                f"alike/{key}",
                f"ViT (large) has a {says} like ResNet101's (within a factor of {LIKE:g})",
                holds,
                detail,
            )
        )
    return sentences


def _more_robust(results: Sequence[Result]) -> Claim:
    vits = [result for result in results if result.network.name in ("vit_small", "vit_base")]
    high = _family_rows(results, "ResNet", lambda result: result.accuracy("drop", ALL))
    low = _family_rows(vits, "ViT", lambda result: result.accuracy("drop", ALL))
    return _apart(
        "vits-lose-less", "ViT (small) and ViT (base) lose less accuracy under corruption than every ResNet", high, low,
        printed=True,
    )  # fmt: skip


def _failed(results: Sequence[Result]) -> Claim:
    key, says = "attention-large-diverges", "the training of Attn (large) diverges"
    result = next((result for result in results if result.network.name == "attention_large"), None)
    if result is None:
        return Claim(key, says, None, "not trained yet")
    clean = result.accuracy("accuracy", "clean")
    detail = result.note or (f"finished, accuracy {clean.value:.1%}" if clean else "")
    return Claim(key, says, result.diverged, detail)


def _family_rows(results: Sequence[Result], family: Family, row: object) -> list[tuple[str, Row]]:
    pairs = [(result.network.label, row(result)) for result in results if result.network.family == family]  # type: ignore[operator]
    return [(label, value) for label, value in pairs if value is not None]


def _apart(key: str, says: str, high: list[tuple[str, Row]], low: list[tuple[str, Row]], *, printed: bool) -> Claim:
    """Holds where every one of ``high`` is above every one of ``low``, fails where one is below one, else undecided."""
    if not high or not low:
        return Claim(key, says, None, "no network of one side was measured", printed)
    least = min(high, key=lambda pair: _end(pair[1], "low"))
    most = max(low, key=lambda pair: _end(pair[1], "high"))
    orders = {above(_ends(upper), _ends(lower)) for _, upper in high for _, lower in low}
    holds = False if False in orders else None if None in orders else True
    detail = f"{_row_text(*least)} against {_row_text(*most)}"
    return Claim(key, says, holds, detail, printed)


def _ends(row: Row) -> tuple[float, float]:
    return _end(row, "low"), _end(row, "high")


def _end(row: Row, end: str) -> float:
    bound = getattr(row, end)
    return row.value if bound is None else float(bound)


def _row_text(label: str, row: Row) -> str:
    interval = "" if row.low is None else f" [{row.low:.3g}, {row.high:.3g}]"
    return f"{label} {row.value:.3g}{interval}"


# --- files ----------------------------------------------------------------------------------------------------------


def write_tables(results: Sequence[Result], folder: Path) -> list[Path]:
    """``table2.csv`` (every severity, means, differences), ``rates.csv`` (H0, H1 and both), ``readings.csv``."""
    return [
        csv_file(
            folder / "table2.csv",
            [["network", "corruption", "severity", "accuracy", "low", "high", "difference", "difference low",
              "difference high", "n", "theirs", "their difference", "note"], *_table_2(results)],
        ),
        csv_file(
            folder / "rates.csv",
            [["network", "quantity", "p", "dim", "value", "low", "high", "n", "note"], *_rate_rows(results)],
        ),
        csv_file(
            folder / "readings.csv",
            [["network", "p", "dim", "head", "input", "topolip", "low", "high", "clouds"], *_reading_rows(results)],
        ),
    ]  # fmt: skip


def _table_2(results: Sequence[Result]) -> Iterable[list[object]]:
    for result in results:
        network, accuracies = result.network, result.network.accuracy
        if result.diverged:
            yield [network.label, *[""] * 11, result.note]
            continue
        clean = result.accuracy("accuracy", "clean")
        assert clean is not None
        yield [
            network.label,
            "clean",
            0,
            *_percent(clean),
            "",
            "",
            "",
            clean.n,
            accuracies[0] if accuracies else "",
            "",
            "",
        ]
        for index, corruption in enumerate(CORRUPTIONS):
            for severity in SEVERITIES:
                row = result.accuracy("accuracy", corruption, severity)
                if row is not None:
                    gap = f"{100 * (row.value - clean.value):.2f}"
                    yield [network.label, corruption, severity, *_percent(row), gap, "", "", row.n, "", "", ""]
            mean, drop = result.accuracy("mean_accuracy", corruption), result.accuracy("drop", corruption)
            assert mean is not None
            assert drop is not None
            gaps = [f"{-100 * value:.2f}" for value in (drop.value, drop.high or 0.0, drop.low or 0.0)]
            printed = (
                [accuracies[index + 1], f"{accuracies[index + 1] - accuracies[0]:.1f}"] if accuracies else ["", ""]
            )
            yield [network.label, corruption, "mean", *_percent(mean), *gaps, mean.n, *printed, ""]


def _rate_rows(results: Sequence[Result]) -> Iterable[list[object]]:
    for result in results:
        for statistic, name in NAMES.items():
            for p in ORDERS:
                for dim in DIMS:
                    row = result.rate(statistic, p, dim)
                    values = ["", "", "", ""] if row is None else [row.value, row.low, row.high, row.n]
                    yield [result.network.label, name, p, dim, *values, result.note]


def _reading_rows(results: Sequence[Result]) -> Iterable[list[object]]:
    for result, p, (head, normalised, dim) in itertools.product(results, ORDERS, READINGS):
        row = result.reading(p, dim, head=head, normalised=normalised)
        source = "normalised" if normalised else "raw"
        numbers = ["", "", "", ""] if row is None else [row.value, row.low, row.high, row.n]
        yield [result.network.label, p, dim, "a layer" if head else "left out", source, *numbers]


def _percent(row: Row) -> list[str]:
    return ["" if value is None else f"{100 * value:.2f}" for value in (row.value, row.low, row.high)]
