"""From results to findings beside the paper's numbers, claims that hold or not, and tables as files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from lisse.experiments.form import Claim, Finding
from lisse.experiments.outputs import csv_file
from lisse.experiments.topolip.accuracy import ALL, CORRUPTIONS, SEVERITIES
from lisse.experiments.topolip.correlation import Correlation, rank_correlation
from lisse.experiments.topolip.networks import Family
from lisse.experiments.topolip.result import Result, Statistic
from lisse.profile import Row

ORDERS = (1, 2)
DIMS = (0, 1, "all")
NAMES: dict[Statistic, str] = {"max": "TopoLip", "mean": "mean change rate"}
DROPS = {"drop": "drop", "lost_share": "share of accuracy lost"}


# --- findings -------------------------------------------------------------------------------------------------------


def findings(results: Sequence[Result], seed: int) -> tuple[Finding, ...]:
    """Table 2, the change rates, and their rank correlation with the drop."""
    return (*_accuracies(results), *_rates(results), *_correlations(results, seed))


def _accuracies(results: Sequence[Result]) -> Iterable[Finding]:
    for result in results:
        network, theirs = result.network, result.network.accuracy
        for place, corruption in enumerate(("clean", *CORRUPTIONS)):
            clean = corruption == "clean"
            row = result.accuracy("accuracy" if clean else "mean_accuracy", corruption)
            said = CORRUPTIONS.get(corruption, corruption)
            yield _finding(
                f"table2/{network.name}/{corruption}", f"{network.label}, accuracy, {said}", row, result.note,
                scale=100, unit="%", theirs=theirs[place] if theirs else None, source="Table 2" if theirs else "",
                within=ACCURACY,
            )  # fmt: skip
        mean = sum(theirs[0] - value for value in theirs[1:]) / len(CORRUPTIONS) if theirs else None
        yield _finding(
            f"table2/{network.name}/drop", f"{network.label}, mean drop over the five corruptions",
            result.accuracy("drop", ALL), result.note, scale=100, unit="points", theirs=mean,
            source="Table 2" if theirs else "", within=ACCURACY,
        )  # fmt: skip


def _rates(results: Sequence[Result]) -> Iterable[Finding]:
    for result in results:
        for statistic, said in NAMES.items():
            for p in ORDERS:
                row = result.rate(statistic, p)
                yield _finding(
                    f"rate/{result.network.name}/{statistic}/W{p}", f"{result.network.label}, {said}, W{p}", row,
                    result.note or ("" if row else "no layers differ"),
                    within=None if row is None else RATE * max(row.value, 0.2),
                )  # fmt: skip


def _correlations(results: Sequence[Result], seed: int) -> Iterable[Finding]:
    for statistic, said in NAMES.items():
        for p in ORDERS:
            for quantity, drop in DROPS.items():
                found = correlation(results, statistic, p, quantity, seed)
                known = math.isfinite(found.low)
                yield Finding(
                    f"spearman/{statistic}/W{p}/{quantity}", f"Spearman's ρ of {said}, W{p}, and {drop}", found.value,
                    found.low if known else None, found.high if known else None, found.n, within=RHO,
                    note=f"permutation p = {found.p_value:.2g}" if known else "too few networks",
                )  # fmt: skip


def correlation(results: Sequence[Result], statistic: Statistic, p: int, quantity: str, seed: int) -> Correlation:
    """Over the networks that have both."""
    pairs = [(result.rate(statistic, p), result.accuracy(quantity, ALL)) for result in results]
    known = [(rate.value, drop.value) for rate, drop in pairs if rate is not None and drop is not None]
    return rank_correlation([rate for rate, _ in known], [drop for _, drop in known], seed=seed)


# How far a later smoke run may be: see README.md, "What may move".
ACCURACY, RATE, RHO = 4.0, 0.15, 0.2


def _finding(
    key: str, says: str, row: Row | None, note: str, *, scale: float = 1.0, unit: str = "",
    theirs: float | None = None, source: str = "", within: float | None = None,
) -> Finding:  # fmt: skip
    if row is None:
        return Finding(key, says, math.nan, unit=unit, theirs=theirs, source=source, within=within, note=note)
    low, high = (None if end is None else scale * end for end in (row.low, row.high))
    return Finding(key, says, scale * row.value, low, high, row.n, unit, theirs, source, within, note)


# --- claims ---------------------------------------------------------------------------------------------------------


PAIRS: tuple[tuple[Family, Family], ...] = (("Conv", "Attn"), ("ResNet", "ViT"))


def claims(results: Sequence[Result], seed: int) -> tuple[Claim, ...]:
    """What the paper says of its networks, decided by our intervals."""
    found = []
    for statistic, said in NAMES.items():
        for p in ORDERS:
            for above, below in PAIRS:
                found.append(
                    _above(results, statistic, p, above, below, f"every {above} has a larger {said} (W{p}) than every")
                )
    for statistic, said in NAMES.items():
        for p in ORDERS:
            rho = correlation(results, statistic, p, "drop", seed)
            holds = math.isfinite(rho.low) and rho.low > 0
            detail = f"ρ = {rho.value:.2f} [{rho.low:.2f}, {rho.high:.2f}], n = {rho.n}, p = {rho.p_value:.2g}"
            found.append(
                Claim(
                    f"goes-with-drop/{statistic}/W{p}",
                    f"{said} (W{p}) goes with the drop under corruption",
                    holds,
                    detail,
                    theirs=statistic == "max",
                )
            )
    found.append(_more_robust(results))
    found.append(_failed(results))
    return tuple(found)


def _above(results: Sequence[Result], statistic: Statistic, p: int, above: Family, below: Family, says: str) -> Claim:
    """Whether every network of one family lies above every network of another, intervals apart."""
    key = f"{above.lower()}-above-{below.lower()}/{statistic}/W{p}"
    high = _known(results, above, lambda result: result.rate(statistic, p))
    low = _known(results, below, lambda result: result.rate(statistic, p))
    return _apart(key, f"{says} {below}", high, low, theirs=statistic == "max")


def _more_robust(results: Sequence[Result]) -> Claim:
    vits = [result for result in results if result.network.name in ("vit_small", "vit_base")]
    high = _known(results, "ResNet", lambda result: result.accuracy("drop", ALL))
    low = _known(vits, "ViT", lambda result: result.accuracy("drop", ALL))
    return _apart(
        "vits-lose-less", "ViT (small) and ViT (base) lose less accuracy under corruption than every ResNet", high, low,
        theirs=True,
    )  # fmt: skip


def _failed(results: Sequence[Result]) -> Claim:
    result = next(result for result in results if result.network.name == "attention_large")
    clean = result.accuracy("accuracy", "clean")
    detail = result.note or (f"finished, accuracy {clean.value:.1%}" if clean else "")
    return Claim("attention-large-diverges", "the training of Attn (large) diverges", result.diverged, detail)


def _known(results: Sequence[Result], family: Family, row: object) -> list[tuple[str, Row]]:
    found = [(result.network.label, row(result)) for result in results if result.network.family == family]  # type: ignore[operator]
    return [(label, one) for label, one in found if one is not None]


def _apart(key: str, says: str, high: list[tuple[str, Row]], low: list[tuple[str, Row]], *, theirs: bool) -> Claim:
    """Holds where the lowest end of ``high`` is above the highest end of ``low``."""
    if not high or not low:
        return Claim(key, says, False, "not decided: no network of one side was measured", theirs)
    least = min(high, key=lambda pair: _end(pair[1], "low"))
    most = max(low, key=lambda pair: _end(pair[1], "high"))
    holds = _end(least[1], "low") > _end(most[1], "high")
    detail = f"{_shown(*least)} against {_shown(*most)}"
    return Claim(key, says, holds, detail, theirs)


def _end(row: Row, end: str) -> float:
    found = getattr(row, end)
    return row.value if found is None else float(found)


def _shown(label: str, row: Row) -> str:
    interval = "" if row.low is None else f" [{row.low:.3g}, {row.high:.3g}]"
    return f"{label} {row.value:.3g}{interval}"


# --- files ----------------------------------------------------------------------------------------------------------


def write_tables(results: Sequence[Result], folder: Path) -> list[Path]:
    """``table2.csv`` (every severity, the means and the differences) and ``rates.csv`` (H0, H1 and both)."""
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
    ]  # fmt: skip


def _table_2(results: Sequence[Result]) -> Iterable[list[object]]:
    for result in results:
        network, theirs = result.network, result.network.accuracy
        if result.diverged:
            yield [network.label, *[""] * 11, result.note]
            continue
        clean = result.accuracy("accuracy", "clean")
        assert clean is not None
        yield [
            network.label, "clean", 0, *_percent(clean), "", "", "", clean.n, theirs[0] if theirs else "", "", "",
        ]  # fmt: skip
        for place, corruption in enumerate(CORRUPTIONS):
            for severity in SEVERITIES:
                row = result.accuracy("accuracy", corruption, severity)
                if row is not None:
                    gap = f"{100 * (row.value - clean.value):.2f}"
                    yield [network.label, corruption, severity, *_percent(row), gap, "", "", row.n, "", "", ""]
            mean, drop = result.accuracy("mean_accuracy", corruption), result.accuracy("drop", corruption)
            assert mean is not None
            assert drop is not None
            gaps = [f"{-100 * value:.2f}" for value in (drop.value, drop.high or 0.0, drop.low or 0.0)]
            printed = [theirs[place + 1], f"{theirs[place + 1] - theirs[0]:.1f}"] if theirs else ["", ""]
            yield [network.label, corruption, "mean", *_percent(mean), *gaps, mean.n, *printed, ""]


def _rate_rows(results: Sequence[Result]) -> Iterable[list[object]]:
    for result in results:
        for statistic, said in NAMES.items():
            for p in ORDERS:
                for dim in DIMS:
                    row = result.rate(statistic, p, dim)
                    values = ["", "", "", ""] if row is None else [row.value, row.low, row.high, row.n]
                    yield [result.network.label, said, p, dim, *values, result.note]


def _percent(row: Row) -> list[str]:
    return ["" if value is None else f"{100 * value:.2f}" for value in (row.value, row.low, row.high)]
