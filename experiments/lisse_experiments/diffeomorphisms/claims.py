"""The paper's sentences, and what its discussion proposes, decided from the numbers with their intervals."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from lisse.maths.intervals import Interval
from lisse_experiments.diffeomorphisms.networks import Source
from lisse_experiments.diffeomorphisms.plan import Settings
from lisse_experiments.diffeomorphisms.result import D, G, R, Result, Results, level, paired_ratio
from lisse_experiments.diffeomorphisms.stripe import last_octave
from lisse_experiments.diffeomorphisms.tables import (
    LETTERS,
    error_law,
    local_slopes,
    range_slopes,
    stripe_levels,
    stripe_slopes,
)
from lisse_experiments.form import Claim

ENOUGH = 1000  # training samples that networks need to become stable (sec. 3)
# Our choices: how wide a range of P has to be to go as 1/P, and how far from -1 the interval of its slope may reach;
# how near to -1 a slope of the stripe model has to be, and on how many octaves.
RANGE, WIDEST, NEAR, LAST = 4, 0.5, 0.3, 4
WITHOUT_INVERSE = ("efficientnet_b0",)  # "a 1/P behavior cannot be identified" (sec. 6)


def claims(results: Results, plan: Settings, sources: Sequence[Source]) -> tuple[Claim, ...]:
    """All of them."""
    first = sources[0]
    return (
        *_training(results, plan, first),
        *_sizes(results, plan, first),
        *_layers(results, plan, first),
        *_error(results, plan, first),
        *_treatments(results, plan, first),
        *_stripe(results, plan),
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


def _training(results: Results, plan: Settings, source: Source) -> Iterator[Claim]:
    levels = {a.label: level(results.of(source, a.name), R, "initial", cut=plan.cut) for a in plan.architectures}
    values = {label: float(value.value) for label, value in levels.items() if value is not None}
    yield Claim(
        "init/order-one", "R is of order one (⅓ … 3) at initialisation in every network",
        bool(values) and all(1 / 3 <= value <= 3 for value in values.values()),
        f"{min(values.values(), default=0):.2f} … {max(values.values(), default=0):.2f}",
    )  # fmt: skip
    for name in plan.good:
        trainings = results.of(source, name)
        ratio = change(trainings, trainings, R, cut=plan.cut, initial=True)
        yield _below(f"trained/{name}", f"training lowers R of {_label(plan, name)}", ratio)
    for name in plan.primitive:
        trainings = results.of(source, name)
        ratio = change(trainings, trainings, R, cut=plan.cut, initial=True)
        if name == "lenet":  # "slightly insensitive" on CIFAR-10: 0.6
            yield _below(f"trained/{name}", f"training lowers R of {_label(plan, name)} a little", ratio)
        else:
            yield _above(f"trained/{name}", f"training does not lower R of {_label(plan, name)}", ratio, strict=False)


def _sizes(results: Results, plan: Settings, source: Source) -> Iterator[Claim]:
    for name in plan.good:
        sizes = results.sizes(source, name)
        if len(sizes) < 2:
            continue
        most, fewest = results.of(source, name, sizes[-1]), results.of(source, name, sizes[0])
        words = f"from P = {sizes[0]} to {sizes[-1]} in {_label(plan, name)}"
        yield _below(f"P/R/{name}", f"R falls {words}", change(most, fewest, R, cut=plan.cut))
        yield _above(f"P/G/{name}", f"the answer to noise G grows {words}", change(most, fewest, G, cut=plan.cut))
        if len(sizes) > 3:
            yield from _fall(results, plan, source, name)
    if {"resnet18", "efficientnet_b0"} <= set(plan.good):
        yield from _limited(results, source)


def _fall(results: Results, plan: Settings, source: Source, name: str) -> Iterator[Claim]:
    """How R falls with P: not below 10³ samples, at every step above, in a range as 1/P."""
    sizes, label = results.sizes(source, name), _label(plan, name)
    first = level(results.of(source, name, sizes[0]), R, cut=plan.cut)
    if sizes[0] < ENOUGH and first is not None:
        yield Claim(f"P/few/{name}", f"P = {sizes[0]} is too few: R of {label} is not below 1 yet",
                    _side(first, 1.0), _ends(first))  # fmt: skip
    slopes = {pair: slope for pair, slope in local_slopes(results, source, name).items() if pair[0] >= ENOUGH}
    falls = [_side(slope, 0.0, above=False) for slope in slopes.values()]
    yield Claim(
        f"P/monotone/{name}", f"from P = {ENOUGH} on R of {label} falls with every larger training set",
        False if False in falls else None if None in falls else bool(falls),
        "local slopes " + ", ".join(f"{p} to {q}: {_ends(slope)}" for (p, q), slope in slopes.items()),
    )  # fmt: skip
    ranges = {(p, q): slope for (p, q), slope in range_slopes(results, source, name).items() if q >= RANGE * p}
    inverse, detail = inverse_range(ranges)
    if name in WITHOUT_INVERSE:
        yield Claim(f"P/no-inverse/{name}", f"in no range of P (fourfold or more) R of {label} goes as 1/P",
                    None if inverse is None else not inverse, detail)  # fmt: skip
    else:
        yield Claim(
            f"P/inverse/{name}", f"in a range of P (fourfold or more) R of {label} goes as 1/P", inverse, detail
        )


def inverse_range(slopes: Mapping[tuple[int, int], Interval]) -> tuple[bool | None, str]:
    """Whether a range of P goes as 1/P, and the widest that does, else the steepest.

    One does if the interval of its slope holds -1 and lies within 0.5 of it. None does if every interval leaves -1 out.
    Otherwise it is undecided. "Approximately compatible … in a range of P", the paper says: of several ranges one is
    enough, so this asks little.
    """
    if not slopes:
        return None, "no value"
    compatible = {
        pair: slope
        for pair, slope in slopes.items()
        if -1 - WIDEST <= float(slope.low) <= -1 <= float(slope.high) <= -1 + WIDEST
    }
    excluded = all(float(slope.low) > -1 or float(slope.high) < -1 for slope in slopes.values())
    if compatible:
        p, q = max(compatible, key=lambda pair: pair[1] / pair[0])
    else:
        p, q = min(slopes, key=lambda pair: float(slopes[pair].value))
    return True if compatible else False if excluded else None, f"slope {_ends(slopes[p, q])} from P = {p} to {q}"


def _limited(results: Results, source: Source) -> Iterator[Claim]:
    """Sec. 6: in EfficientNets "the decrease in R_f is more limited" than in ResNets."""
    shared = sorted({*results.sizes(source, "resnet18")} & {*results.sizes(source, "efficientnet_b0")})
    if len(shared) < 2:
        return
    ends = shared[0], shared[-1]
    falls = {name: [results.by_seed(source, name, p) for p in ends] for name in ("resnet18", "efficientnet_b0")}
    seeds = sorted(set.intersection(*(set(values) for pair in falls.values() for values in pair)))
    ratio = paired_ratio(
        [falls["efficientnet_b0"][1][seed] / falls["efficientnet_b0"][0][seed] for seed in seeds],
        [falls["resnet18"][1][seed] / falls["resnet18"][0][seed] for seed in seeds],
    )
    yield Claim("P/limited", f"R falls less from P = {ends[0]} to {ends[1]} in EfficientNetB0 than in ResNet18",
                None if ratio is None else _side(ratio, 1.0), f"the fall {_factor_text(ratio)}")  # fmt: skip


def _layers(results: Results, plan: Settings, source: Source) -> Iterator[Claim]:
    for name in plan.good:
        trainings = results.of(source, name)
        shares = []
        for result in trainings:
            values = [row.value for row in result.rows(R, cut=plan.cut)][1:]  # the input is no layer
            shares += [later <= earlier for earlier, later in itertools.pairwise(values)]
        if shares:
            yield Claim(
                f"layers/{name}",
                f"after training R falls with depth in {_label(plan, name)}, at nine layers in ten",
                sum(shares) >= 0.9 * len(shares),
                f"at {sum(shares)} of {len(shares)} steps over {len(trainings)} seeds",
            )


def _error(results: Results, plan: Settings, source: Source) -> Iterator[Claim]:
    laws = {quantity: error_law(results, plan, source, quantity) for quantity in (R, D, G)}
    r = laws[R]
    if r is None:
        return
    low, high = float(r.correlation.low), float(r.correlation.high)
    yield Claim("error/R", "log R and log error are correlated over the networks", low > 0,
                f"{float(r.correlation.value):.2f} [{low:.2f}, {high:.2f}]")  # fmt: skip
    rivals = {q: abs(float(law.correlation.value)) for q, law in laws.items() if q != R and law is not None}
    yield Claim(
        "error/R-best", "the error is more strongly correlated with R than with D or G alone",
        low > 0 and all(float(r.correlation.value) > other for other in rivals.values()),
        ", ".join(f"{LETTERS[q]} {float(law.correlation.value):.2f}" for q, law in laws.items() if law is not None),
    )  # fmt: skip
    half = error_law(results, plan, source, slope=0.5)
    assert half is not None
    value, low, high = (float(end) for end in (half.prefactor.value, half.prefactor.low, half.prefactor.high))
    yield Claim("error/prefactor", "error ≈ 0.24 √R: 0.24 lies in the interval of our prefactor",
                low <= 0.24 <= high, f"{value:.3g} [{low:.3g}, {high:.3g}]")  # fmt: skip


def _treatments(results: Results, plan: Settings, source: Source) -> Iterator[Claim]:
    for name in plan.treated:
        plain, label = results.of(source, name), _label(plan, name)
        for treatment in plan.treatments[1:]:
            ratio = change(results.of(source, name, treatment=treatment.name), plain, R, cut=plan.cut)
            key = f"treatment/{name}/{treatment.name}"
            if treatment.fields == "none":
                value, smoothed = None if ratio is None else float(ratio.value), treatment.smoothing is not None
                says = f"{label}: {'smoothed labels' if smoothed else 'crops'} change R by less than a factor of 2"
                holds = value is not None and 0.5 < value < 2
                yield Claim(f"{key}/R", says, holds, _factor_text(ratio), theirs=not smoothed)
                continue
            words = "random diffeomorphisms" if treatment.fields == "random" else "the worst diffeomorphisms"
            yield _below(f"{key}/R", f"{label}: training on {words} lowers R", ratio, printed=False)
            apart = [a.error - b.error for a, b in zip(results.of(source, name, treatment=treatment.name), plain,
                                                       strict=False)]  # fmt: skip
            low, high = _student(apart)
            yield Claim(f"{key}/error", f"{label}: training on {words} lowers the test error", high < 0,
                        f"{100 * low:+.2f} … {100 * high:+.2f} points", theirs=False)  # fmt: skip


def _stripe(results: Results, plan: Settings) -> Iterator[Claim]:
    levels = stripe_levels(results, plan)
    if len(levels) < 2:
        return
    values = [float(value.value) for _, value in levels]
    octaves = list(stripe_slopes(results, plan).items())
    if len(octaves) >= LAST and plan.stripe_seeds > 3:
        near = itertools.takewhile(lambda item: abs(float(item[1].value) + 1) <= NEAR, reversed(octaves))
        last = len(list(near))
        ends = octaves[-max(last, 1)][0][0], octaves[-1][0][1]
        joint = stripe_slopes(results, plan, [ends])[ends]
        yield Claim(
            "stripe/local", f"stripe model: R ~ 1/P (local slope within {NEAR} of -1) on the last {LAST} octaves",
            last >= LAST, "; ".join([f"so on the last {last}, {ends[0]} to {ends[1]}: {_ends(joint)}",
            *(f"{p} to {q}: {_ends(local)}" for (p, q), local in octaves)]),
        )  # fmt: skip
    slope = last_octave([p for p, _ in levels], values)
    yield Claim("stripe/slope", "stripe model: R ~ 1/P (slope within 0.3 of -1) on the last octave",
                abs(slope + 1) <= 0.3, f"slope {slope:.2f}")  # fmt: skip
    yield Claim("stripe/all", "stripe model: R ~ 1/P at every P", all(
        abs(last_octave([p for p, _ in levels[: k + 2]], values[: k + 2]) + 1) <= 0.3 for k in range(len(levels) - 1)
    ), ", ".join(f"{p}: {value:.2g}" for (p, _), value in zip(levels, values, strict=True)))  # fmt: skip


def _fields(results: Results, sources: Sequence[Source]) -> Iterator[Claim]:
    shares = {}
    for source in sources:
        result = next((r for r in results.all if r.job.source is source and not r.diverged), None)
        for cut in source.cuts:
            row = result.setting("bijective_share", cut=cut) if result else None
            if row is not None:
                shares[f"{source.label} c = {cut}"] = row.value
    yield Claim("fields/bijective", "at δ = 1 at least half of the fields are diffeomorphisms at every cut-off",
                all(share >= 0.5 for share in shares.values()),
                ", ".join(f"{name}: {share:.0%}" for name, share in shares.items()))  # fmt: skip


def _side(interval: Interval, bound: float, *, above: bool = True) -> bool | None:
    """Whether the whole interval lies above (or below) ``bound``; ``None`` where it holds it, or has no ends."""
    low, high = float(interval.low), float(interval.high)
    if not (math.isfinite(low) and math.isfinite(high)) or low <= bound <= high:
        return None
    return (low > bound) == above


def _ends(interval: Interval) -> str:
    return f"{float(interval.value):.2f} [{float(interval.low):.2f}, {float(interval.high):.2f}]"


def _student(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a mean; NaN with fewer than two values."""
    if len(values) < 2:
        return math.nan, math.nan
    from scipy.special import stdtrit

    mean, half = statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5
    half *= float(stdtrit(len(values) - 1, 0.975))
    return mean - half, mean + half


def _below(key: str, says: str, ratio: Interval | None, *, printed: bool = True) -> Claim:
    return Claim(key, says, ratio is not None and float(ratio.high) < 1, _factor_text(ratio), printed)


def _above(key: str, says: str, ratio: Interval | None, *, strict: bool = True) -> Claim:
    """``strict``: the whole interval lies above 1; otherwise the value does."""
    holds = ratio is not None and float(ratio.low if strict else ratio.value) > 1
    return Claim(key, says, holds, _factor_text(ratio))


def _factor_text(ratio: Interval | None) -> str:
    if ratio is None:
        return "no value"
    return f"times {float(ratio.value):.2f} [{float(ratio.low):.2f}, {float(ratio.high):.2f}]"


def _label(plan: Settings, name: str) -> str:
    return next(architecture.label for architecture in plan.architectures if architecture.name == name)
