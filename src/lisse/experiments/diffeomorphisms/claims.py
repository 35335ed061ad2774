"""The paper's sentences, and what its discussion proposes, decided from the numbers with their intervals."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence

from lisse.experiments.diffeomorphisms.networks import Source
from lisse.experiments.diffeomorphisms.plan import Settings
from lisse.experiments.diffeomorphisms.result import D, G, R, Result, Results, level, paired_ratio
from lisse.experiments.diffeomorphisms.stripe import last_octave
from lisse.experiments.diffeomorphisms.tables import LETTERS, error_law, stripe_levels
from lisse.experiments.form import Claim
from lisse.maths.intervals import Interval


def claims(results: Results, chosen: Settings, sources: Sequence[Source]) -> tuple[Claim, ...]:
    """All of them."""
    first = sources[0]
    return (
        *_training(results, chosen, first),
        *_sizes(results, chosen, first),
        *_layers(results, chosen, first),
        *_error(results, chosen, first),
        *_treatments(results, chosen, first),
        *_stripe(results, chosen),
        *_fields(results, sources),
    )


def change(above: Sequence[Result], below: Sequence[Result], quantity: str, *, cut: int, initial: bool = False) -> (
    Interval | None
):  # fmt: skip
    """The ratio of a quantity in two lots of networks of the same seeds; ``initial``: below, at initialisation."""
    which = "initial" if initial else "trained"
    return paired_ratio(
        [result.output(quantity, cut=cut) for result in above],
        [result.output(quantity, which, cut=cut) for result in below],
    )


def _training(results: Results, chosen: Settings, source: Source) -> Iterator[Claim]:
    found = {a.label: level(results.of(source, a.name), R, "initial", cut=chosen.cut) for a in chosen.architectures}
    values = {label: float(one.value) for label, one in found.items() if one is not None}
    yield Claim(
        "init/order-one", "R is of order one (⅓ … 3) at initialisation in every network",
        bool(values) and all(1 / 3 <= value <= 3 for value in values.values()),
        f"{min(values.values(), default=0):.2f} … {max(values.values(), default=0):.2f}",
    )  # fmt: skip
    for name in chosen.good:
        some = results.of(source, name)
        ratio = change(some, some, R, cut=chosen.cut, initial=True)
        yield _below(f"trained/{name}", f"training lowers R of {_label(chosen, name)}", ratio)
    for name in chosen.primitive:
        some = results.of(source, name)
        ratio = change(some, some, R, cut=chosen.cut, initial=True)
        if name == "lenet":  # "slightly insensitive" on CIFAR-10: 0.6
            yield _below(f"trained/{name}", f"training lowers R of {_label(chosen, name)} a little", ratio)
        else:
            yield _above(f"trained/{name}", f"training does not lower R of {_label(chosen, name)}", ratio, strict=False)


def _sizes(results: Results, chosen: Settings, source: Source) -> Iterator[Claim]:
    for name in chosen.good:
        sizes = results.sizes(source, name)
        if len(sizes) < 2:
            continue
        most, fewest = results.of(source, name, sizes[-1]), results.of(source, name, sizes[0])
        words = f"from P = {sizes[0]} to {sizes[-1]} in {_label(chosen, name)}"
        yield _below(f"P/R/{name}", f"R falls {words}", change(most, fewest, R, cut=chosen.cut))
        yield _above(f"P/G/{name}", f"the answer to noise G grows {words}", change(most, fewest, G, cut=chosen.cut))


def _layers(results: Results, chosen: Settings, source: Source) -> Iterator[Claim]:
    for name in chosen.good:
        some = results.of(source, name)
        shares = []
        for result in some:
            values = [row.value for row in result.rows(R, cut=chosen.cut)][1:]  # the input is no layer
            shares += [later <= earlier for earlier, later in itertools.pairwise(values)]
        if shares:
            yield Claim(
                f"layers/{name}", f"after training R falls with depth in {_label(chosen, name)}, at nine layers in ten",
                sum(shares) >= 0.9 * len(shares), f"at {sum(shares)} of {len(shares)} steps over {len(some)} seeds",
            )  # fmt: skip


def _error(results: Results, chosen: Settings, source: Source) -> Iterator[Claim]:
    laws = {quantity: error_law(results, chosen, source, quantity) for quantity in (R, D, G)}
    r = laws[R]
    if r is None:
        return
    low, high = float(r.correlation.low), float(r.correlation.high)
    yield Claim("error/R", "log R and log error are correlated over the networks", low > 0,
                f"{float(r.correlation.value):.2f} [{low:.2f}, {high:.2f}]")  # fmt: skip
    others = {q: abs(float(law.correlation.value)) for q, law in laws.items() if q != R and law is not None}
    yield Claim(
        "error/R-best", "the error is more strongly correlated with R than with D or G alone",
        low > 0 and all(float(r.correlation.value) > other for other in others.values()),
        ", ".join(f"{LETTERS[q]} {float(law.correlation.value):.2f}" for q, law in laws.items() if law is not None),
    )  # fmt: skip
    half = error_law(results, chosen, source, slope=0.5)
    assert half is not None
    value, low, high = (float(end) for end in (half.prefactor.value, half.prefactor.low, half.prefactor.high))
    yield Claim("error/prefactor", "error ≈ 0.24 √R: 0.24 lies in the interval of our prefactor",
                low <= 0.24 <= high, f"{value:.3g} [{low:.3g}, {high:.3g}]")  # fmt: skip


def _treatments(results: Results, chosen: Settings, source: Source) -> Iterator[Claim]:
    for name in chosen.treated:
        plain, label = results.of(source, name), _label(chosen, name)
        for treatment in chosen.treatments[1:]:
            ratio = change(results.of(source, name, treatment=treatment.name), plain, R, cut=chosen.cut)
            here = f"treatment/{name}/{treatment.name}"
            if treatment.fields == "none":
                value, smoothed = None if ratio is None else float(ratio.value), treatment.smoothing is not None
                yield Claim(f"{here}/R", f"{label}: {'smoothed labels' if smoothed else 'crops'} change R by less than "
                            "a factor of 2", value is not None and 0.5 < value < 2, _told(ratio), theirs=not smoothed,
                            )  # fmt: skip
                continue
            words = "random diffeomorphisms" if treatment.fields == "random" else "the worst diffeomorphisms"
            yield _below(f"{here}/R", f"{label}: training on {words} lowers R", ratio, theirs=False)
            apart = [a.error - b.error for a, b in zip(results.of(source, name, treatment=treatment.name), plain,
                                                       strict=False)]  # fmt: skip
            low, high = _student(apart)
            yield Claim(f"{here}/error", f"{label}: training on {words} lowers the test error", high < 0,
                        f"{100 * low:+.2f} … {100 * high:+.2f} points", theirs=False)  # fmt: skip


def _stripe(results: Results, chosen: Settings) -> Iterator[Claim]:
    found = stripe_levels(results, chosen)
    if len(found) < 2:
        return
    values = [float(value.value) for _, value in found]
    slope = last_octave([p for p, _ in found], values)
    yield Claim("stripe/slope", "stripe model: R ~ 1/P (slope within 0.3 of -1) on the last octave",
                abs(slope + 1) <= 0.3, f"slope {slope:.2f}")  # fmt: skip
    yield Claim("stripe/all", "stripe model: R ~ 1/P at every P", all(
        abs(last_octave([p for p, _ in found[: k + 2]], values[: k + 2]) + 1) <= 0.3 for k in range(len(found) - 1)
    ), ", ".join(f"{p}: {value:.2g}" for (p, _), value in zip(found, values, strict=True)))  # fmt: skip


def _fields(results: Results, sources: Sequence[Source]) -> Iterator[Claim]:
    shares = {}
    for source in sources:
        one = next((r for r in results.all if r.job.source is source and not r.diverged), None)
        for cut in source.cuts:
            row = one.setting("bijective_share", cut=cut) if one else None
            if row is not None:
                shares[f"{source.label} c = {cut}"] = row.value
    yield Claim("fields/bijective", "at δ = 1 at least half of the fields are diffeomorphisms at every cut-off",
                all(share >= 0.5 for share in shares.values()),
                ", ".join(f"{name}: {share:.0%}" for name, share in shares.items()))  # fmt: skip


def _student(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a mean; NaN with fewer than two values."""
    if len(values) < 2:
        return math.nan, math.nan
    from scipy.special import stdtrit

    mean, half = statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5
    half *= float(stdtrit(len(values) - 1, 0.975))
    return mean - half, mean + half


def _below(key: str, says: str, ratio: Interval | None, *, theirs: bool = True) -> Claim:
    return Claim(key, says, ratio is not None and float(ratio.high) < 1, _told(ratio), theirs)


def _above(key: str, says: str, ratio: Interval | None, *, strict: bool = True) -> Claim:
    """``strict``: the whole interval lies above 1; otherwise the value does."""
    holds = ratio is not None and float(ratio.low if strict else ratio.value) > 1
    return Claim(key, says, holds, _told(ratio))


def _told(ratio: Interval | None) -> str:
    if ratio is None:
        return "no value"
    return f"times {float(ratio.value):.2f} [{float(ratio.low):.2f}, {float(ratio.high):.2f}]"


def _label(chosen: Settings, name: str) -> str:
    return next(architecture.label for architecture in chosen.architectures if architecture.name == name)
