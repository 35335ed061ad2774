r"""Two models on the same samples: differences of a number, with an interval and a p value, and Holm's correction.

The samples are paired, so what varies is the *difference* on one sample. Two questions are asked of it. Would the
difference look like this if the two models were exchangeable on every sample? Swapping their values sample by sample
answers that exactly, whatever the distribution. Would it look like this if the models differed on every sample, but
not in this number? The interval answers that. A difference counts only where both say no: ``p`` is the larger of the
two, so it is never smaller than what the interval shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from lisse.maths.given import Values, check_integer, check_least, check_level, floating
from lisse.maths.intervals import Interval, _acceleration, _quantile, _Statistic, across_clouds, median, student

_ENUMERATED = 12  # pairs up to which all 2^n swaps are tried
_ROUNDING = 1e-12  # of the largest value: statistics that are nearer count as equal
_CHUNK = 2**20  # numbers of a batch of resampled pairs
_TINY = 1e-300  # below the line of a ratio: a resample in which nothing answers has a huge ratio, and no infinite one

#: What one number is of the samples of a model: also the ratio of two centres, of values ``[n, 2, …]``.
Statistic = _Statistic | Literal["ratio of means", "ratio of medians"]
_RATIOS = ("ratio of means", "ratio of medians")


@dataclass(frozen=True, slots=True)
class Difference(Interval):
    """First minus second model: the interval of the difference, and how surprising it is if there is none.

    ``p``: two-sided. ``spread``: standard deviation of the difference as if from one sample (one cloud), which
    :func:`samples_to_decide` asks for.
    """

    p: float
    spread: float


def paired_difference(
    a: Values,
    b: Values,
    statistic: Statistic = "mean",
    *,
    level: float = 0.95,
    resamples: int = 9999,
    rounding: float = 0.0,
    generator: torch.Generator | None = None,
) -> Difference:
    r""":math:`\theta(a) - \theta(b)` of per-sample values ``[n]`` of two models, row i of both from sample i.

    ``statistic`` θ is ``mean``; ``median`` (the difference of the medians, which are what is printed, not the median of
    the differences); ``ratio of medians`` or ``ratio of means`` of values ``[n, 2, …]``, the centre of the first over
    that of the second, each over all samples and trailing axes; or a function of ``[n, …]`` to one number, for what is
    no average of one value per sample: the largest of several layers' means.

    *Interval*: expanded BCa of resampled pairs, as in :func:`~lisse.maths.intervals.bootstrap`. *p*: the larger of

    - the share of swaps :math:`(a_i, b_i) \to (b_i, a_i)`, each with probability ½, whose :math:`|\theta(a) -
      \theta(b)|` reaches the observed one: all :math:`2^n` for n ≤ 12, else B random ones,
      :math:`(1 + \#)/(1 + B)` ([phipson2010]). Exact where the models are exchangeable sample by sample. For a mean
      it is also a test of equal means: :math:`\sum d_i^2` does not change under swaps, so :math:`|\bar d|` and
      Student's :math:`|t|` order the swaps alike, and the studentised test is valid without symmetry as n grows
      ([janssen1997]). For a median it is not (two models with equal medians, one spread wider, fool it); hence
    - one less the level at which the interval just reaches 0: with :math:`F` the share of resampled differences below
      0 and :math:`u = \Phi^{-1}(F) - z_0`, the BCa formula gives :math:`z = u/(1 + a u) - z_0` and
      :math:`p = 2\,T_{n-1}(-|z| \sqrt{(n-1)/n})`.

    So p ≤ 1 - level means an interval without 0, to the resolution 1/B; the smallest p is about 1/(1 + B) (four times
    that for 40 samples), which for the usual B leaves Holm's correction room for a hundred comparisons. Ties: samples
    on which both models agree change nothing in a swap, and equal statistics count as reaching it. ``rounding``: values
    that differ by no more than this share of the larger count as equal; what two builds of one function differ by is no
    difference of models.

    Cost: the statistic of 2 B resamples of n, 0.15 s for a mean and 0.3 s for a median of 1,000 samples.
    Fewer than about 20 samples: see :func:`cloud_difference`.
    """
    name = "paired_difference"
    pairs = _pairs(name, a, b, rounding)
    check_level(name, level)
    check_least(name, 100, resamples=resamples)
    if not callable(statistic) and statistic not in ("mean", "median", *_RATIOS):
        words = ", ".join(("mean", "median", *_RATIOS))
        raise ValueError(f"{name}: statistic must be {words} or a function, got {statistic!r}.")
    if statistic in _RATIOS and (pairs.ndim < 3 or pairs.shape[2] != 2):
        raise ValueError(f"{name}: a must be [n, 2, …] for a {statistic}, got {[len(pairs), *pairs.shape[2:]]}.")
    if statistic in ("mean", "median") and pairs.ndim > 2:
        raise ValueError(
            f"{name}: a must be one number per sample, got {list(pairs.shape[2:])} each. Give a function of them as "
            "statistic."
        )
    n = len(pairs)
    if statistic == "mean":
        pairs = pairs[:, 0] - pairs[:, 1]
    elif statistic in _RATIOS:
        # Each model in the unit of its own denominator: it does not count in a ratio, and a swap must not mix two.
        units = _centres(pairs[None], statistic)[0, :, 1]
        pairs = pairs / torch.where(units > 0, units, 1.0).view(1, 2, *[1] * (pairs.ndim - 2))
    value = float(_differences(pairs[None], statistic)[0])
    replicates = torch.cat([_differences(worlds, statistic) for worlds in _resampled(pairs, resamples, generator)])
    if not (math.isfinite(value) and bool(torch.isfinite(replicates).all())):
        raise ValueError(f"{name}: statistic must be finite on every resample, got NaN or infinity.")
    low, high, surprise = _bca(replicates, value, _skew(pairs, statistic), n, level)
    p = max(surprise, _swap_p(pairs, statistic, value, resamples, generator))
    number = torch.tensor(value, dtype=torch.float64)
    return Difference(number, low, high, n, level, p, float(replicates.std()) * n**0.5)


def cloud_difference(
    a: Values,
    b: Values,
    *,
    level: float = 0.95,
    resamples: int = 9999,
    rounding: float = 0.0,
    generator: torch.Generator | None = None,
) -> Difference:
    r"""Mean difference of a statistic of clouds ``[k]``: cloud i of both models holds the same samples. For few clouds.

    The interval is Student's, :math:`\bar d \pm t_{k-1} s/\sqrt k`. p is the larger of Student's and that of all
    :math:`2^k` swaps of clouds (k ≤ 12; beyond, ``resamples`` random ones). Student's alone is fooled by few clouds:
    swapping clouds between models that differ by nearly the same on every one leaves all k signs equal once in
    :math:`2^{k-1}` times, and Student's p is then as small as you like. The price: p is at least :math:`2^{1-k}`, so
    five clouds (0.0625) cannot decide anything at 95 %; :func:`least_clouds` says how many can.

    Exact under swaps; the interval is exact where differences are normal over clouds. ``rounding`` as in
    :func:`paired_difference`.
    """
    name = "cloud_difference"
    pairs = _pairs(name, a, b, rounding)
    if pairs.ndim != 2:
        raise ValueError(f"{name}: a must be one number per cloud, got shape {[len(pairs), *pairs.shape[2:]]}.")
    check_level(name, level)
    check_least(name, 100, resamples=resamples)
    differences = pairs[:, 0] - pairs[:, 1]
    interval = across_clouds(differences, level=level)
    k, mean, deviation = len(differences), float(interval.value), float(differences.std())
    error = deviation / k**0.5
    ratio = abs(mean) / error if error > 0 else math.inf if mean else 0.0
    p = max(_student_tails(k - 1, ratio), _swap_p(differences, "mean", mean, resamples, generator))
    return Difference(interval.value, interval.low, interval.high, k, level, p, deviation)


def group_difference(a: Values, b: Values, *, level: float = 0.95, rounding: float = 0.0) -> Difference:
    r"""Difference of the means of two groups of trainings ``[k]``, ``[m]``, a number of each network. Not paired.

    Welch's test and interval: :math:`t = (\bar a - \bar b)/\sqrt{s_a^2/k + s_b^2/m}` with the degrees of freedom of
    Welch and Satterthwaite ([welch1947]); exact to the third digit where numbers are normal over trainings, from two of
    each on. A group of one has no spread of its own and is given the other's (Student's test): then p asks whether
    that network could be of the other group. ``spread`` is that of the difference of one network of each.
    Means that differ by no more than ``rounding`` of the larger number, and no spread, are no difference.
    """
    name = "group_difference"
    check_level(name, level)
    check_least(name, 0, rounding=rounding)
    groups = [floating(name, word, side).detach().double().cpu() for word, side in (("a", a), ("b", b))]
    sizes = [len(group) if group.ndim == 1 else 0 for group in groups]
    if min(sizes) < 1 or sum(sizes) < 3:
        shapes = " and ".join(str(list(group.shape)) for group in groups)
        raise ValueError(f"{name}: a and b must be lists of numbers, three or more together, got shapes {shapes}.")
    variances = [float(group.var()) if len(group) > 1 else math.nan for group in groups]
    measured = [variance for variance in variances if not math.isnan(variance)]
    variances = [measured[0] if math.isnan(variance) else variance for variance in variances]
    value = float(groups[0].mean() - groups[1].mean())
    if not any(variances) and abs(value) <= rounding * float(torch.cat(groups).abs().max()):
        value = 0.0
    shares = [variance / size for variance, size in zip(variances, sizes, strict=True)]
    error = sum(shares) ** 0.5
    freedom = float(sum(sizes) - 2)
    if min(sizes) > 1 and error > 0:
        parts = (share / sum(shares) for share in shares)
        freedom = 1 / sum(part**2 / (size - 1) for part, size in zip(parts, sizes, strict=True))
    ratio = abs(value) / error if error > 0 else math.inf if value else 0.0
    half = student(freedom, level) * error
    middle, low, high = (torch.tensor(number, dtype=torch.float64) for number in (value, value - half, value + half))
    return Difference(middle, low, high, sum(sizes), level, _student_tails(freedom, ratio), sum(variances) ** 0.5)


def least_clouds(comparisons: int = 1, *, level: float = 0.95) -> int:
    r"""The fewest clouds with which :func:`cloud_difference` can decide among so many comparisons after Holm.

    The smallest k with :math:`2^{1-k} \le (1 - \text{level})/m`: 6 for one comparison at 95 %, 10 for twenty.
    """
    check_integer("least_clouds", 1, comparisons=comparisons)
    check_level("least_clouds", level)
    return math.ceil(1 + math.log2(comparisons / (1 - level)) - 1e-9)


def share_difference(a: Values, b: Values, *, level: float = 0.95) -> Difference:
    r"""Difference of two shares from paired answers ``[n]``, true or false for each sample: accuracies, for instance.

    Only samples on which the answers differ tell: r where only ``a`` is true, s where only ``b`` is. p is McNemar's,
    exact, with mid-p: :math:`2 P(X < \min(r, s)) + P(X = \min(r, s))`, X binomial of r + s trials of ½; it keeps its
    level in practice and is less timid than the exact test ([fagerland2013]). 1 where no answer differs.

    The interval is Tango's: all Δ for which the score test of a difference Δ,

    .. math:: \frac{|r - s - n \Delta|}{\sqrt{n (2 \tilde q + \Delta (1 - \Delta))}} \le z, \qquad
              \tilde q = \frac{\sqrt{B^2 - 8 n C} - B}{4 n}, \quad B = (2n - r + s) \Delta - r - s, \quad
              C = -s \Delta (1 - \Delta),

    does not reject, :math:`\tilde q` the likeliest share of s under Δ ([tango1998]). It excludes 0 exactly where
    McNemar's asymptotic :math:`|r - s|/\sqrt{r + s} > z`, has positive length without any disagreement, and stays in
    [-1, 1]. Each end by bisection to 1e-12.
    """
    name = "share_difference"
    check_level(name, level)
    pairs = _pairs(name, a, b, 0.0)
    if pairs.ndim != 2 or bool(((pairs != 0) & (pairs != 1)).any()):
        raise ValueError(f"{name}: a and b must be true or false for each sample, got {_excerpt(pairs)}.")
    n = len(pairs)
    first, second = (int(((pairs[:, side] - pairs[:, 1 - side]) > 0).sum()) for side in (0, 1))
    value = (first - second) / n
    ends = value, _tango_end(first, second, n, level), -_tango_end(second, first, n, level)
    deviation = max(0.0, (first + second) / n - value**2) ** 0.5
    middle, low, high = (torch.tensor(number, dtype=torch.float64) for number in ends)
    return Difference(middle, low, high, n, level, _mid_p(first, second), deviation)


def holm(p: Values | Sequence[float]) -> Tensor:
    r"""Holm's adjusted p values ``[m]``, in the order given: those at most α may be called different together.

    .. math:: \tilde p_{(i)} = \max_{j \le i} \min(1, (m - j + 1) p_{(j)})

    over p values sorted upwards. The chance of even one false call is at most α, however the comparisons depend on each
    other. Everything on the page counts, also what is not called different. Reference: [holm1979].
    """
    values = floating("holm", "p", p).double()
    if values.ndim != 1 or bool(((values < 0) | (values > 1)).any()):
        raise ValueError(f"holm: p must be a list of numbers in [0, 1], got {_excerpt(values)}.")
    if not len(values):
        return values
    ordered, order = values.sort()
    factors = torch.arange(len(values), 0, -1, dtype=torch.float64, device=values.device)
    adjusted = torch.empty_like(values)
    adjusted[order] = (factors * ordered).cummax(0).values.clamp_max(1)
    return adjusted


def weakest(differences: Sequence[Difference]) -> Difference:
    r"""The first difference, with the p value of the statement that *all* of them are there, with the same sign.

    A number over depth depends on which layers are read; it differs between two models only if it does for every
    regular choice of layers. The p value is the largest of all (1 where two signs disagree): an intersection–union
    test, which needs no correction for the number of its parts ([berger1982]).
    """
    parts = list(differences)
    if not parts:
        raise ValueError("weakest: differences must hold at least one, got none.")
    signs = {math.copysign(1.0, float(part.value)) if part.value else 0.0 for part in parts}
    return replace(parts[0], p=max(part.p for part in parts) if len(signs) == 1 else 1.0)


def samples_to_decide(
    difference: float, spread: float, *, level: float = 0.95, power: float = 0.8, comparisons: int = 1
) -> float:
    r"""How many samples would decide a difference of this size with probability ``power``; inf where it is 0.

    .. math:: n = \Bigl\lceil (z_{(1 + \text{level})/2} + z_{\text{power}})^2 \frac{s^2}{\delta^2}
              + \tfrac12 z_{(1 + \text{level})/2}^2 \Bigr\rceil

    with the spread s of one sample's difference (``Difference.spread``); the last term makes up for Student's tails
    ([guenther1981]): within one of the exact number for a normal mean. ``comparisons`` m puts (1 - level)/m in the
    place of 1 - level, the hardest threshold of Holm's. A difference that was itself estimated makes this an estimate:
    it says how large a study *this* difference asks for, not that it is there.
    """
    name = "samples_to_decide"
    check_level(name, level)
    check_least(name, 0, spread=spread)
    check_integer(name, 1, comparisons=comparisons)
    if not 0 < power < 1:
        raise ValueError(f"{name}: power must lie in (0, 1), got {power}.")
    if not math.isfinite(difference):
        raise ValueError(f"{name}: difference must be finite, got {difference}.")
    if difference == 0:
        return math.inf
    threshold, reserve = _normal_quantile(1 - (1 - level) / comparisons / 2), _normal_quantile(power)
    needed = ((threshold + reserve) * spread / difference) ** 2
    return float(math.ceil(max(2.0, needed + threshold**2 / 2)))


def _pairs(name: str, a: Values, b: Values, rounding: float) -> Tensor:
    """Values of both models as ``[n, 2, …]`` in float64; those that differ by rounding only are made equal."""
    first, second = (floating(name, word, side).detach().double().cpu() for word, side in (("a", a), ("b", b)))
    if first.shape != second.shape or first.ndim == 0:
        raise ValueError(
            f"{name}: a and b must be values of the same samples, got shapes {list(first.shape)} and "
            f"{list(second.shape)}."
        )
    if len(first) < 2:
        raise ValueError(f"{name}: a must hold at least 2 samples, got {len(first)}.")
    check_least(name, 0, rounding=rounding)
    pairs = torch.stack([first, second], 1)
    near = (first - second).abs() <= rounding * pairs.abs().amax(1)
    return torch.where(near[:, None], pairs.mean(1, keepdim=True), pairs)


def _differences(worlds: Tensor, statistic: Statistic) -> Tensor:
    """The statistic's difference ``[c]`` in each of c worlds ``[c, n, 2, …]``; of a mean, differences ``[c, n]``."""
    if callable(statistic):
        return torch.stack([_paired(statistic)(world) for world in worlds])
    if statistic == "mean":
        return worlds.mean(1)
    if statistic in _RATIOS:
        centres = _centres(worlds, statistic)
        sides = centres[..., 0] / centres[..., 1].clamp_min(_TINY)
    else:
        sides = median(worlds.transpose(0, 1))
    return sides[:, 0] - sides[:, 1]


def _centres(worlds: Tensor, statistic: Statistic) -> Tensor:
    """Of values ``[c, n, model, 2, …]``, the centres above and below the line ``[c, model, 2]``."""
    parts = worlds.movedim(1, 3).flatten(3)
    return median(parts.movedim(-1, 0)) if statistic == "ratio of medians" else parts.mean(-1)


def _paired(statistic: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def difference(pairs: Tensor) -> Tensor:
        first, second = (torch.as_tensor(statistic(pairs[:, side]), dtype=torch.float64) for side in (0, 1))
        if first.numel() != 1:
            raise ValueError(f"paired_difference: statistic must give one number, got shape {list(first.shape)}.")
        return (first - second).reshape(())

    return difference


def _chunks(pairs: Tensor, count: int) -> Iterator[int]:
    size = max(1, _CHUNK // pairs.numel())
    for start in range(0, count, size):
        yield min(size, count - start)


def _resampled(pairs: Tensor, count: int, generator: torch.Generator | None) -> Iterator[Tensor]:
    for size in _chunks(pairs, count):
        yield pairs[torch.randint(len(pairs), (size, len(pairs)), generator=generator)]


def _swapped(pairs: Tensor, swaps: Tensor) -> Tensor:
    """Worlds ``[c, n, 2, …]`` in which the pairs that ``swaps`` ``[c, n]`` names have changed sides."""
    if pairs.ndim == 1:
        return torch.where(swaps, -pairs, pairs)
    mask = swaps.reshape(*swaps.shape, *[1] * (pairs.ndim - 1))
    return torch.where(mask, pairs.flip(1), pairs)


def _swap_p(
    pairs: Tensor, statistic: Statistic, value: float, resamples: int, generator: torch.Generator | None
) -> float:
    n = len(pairs)
    reach = abs(value) - _ROUNDING * float(pairs.abs().max())
    if n <= _ENUMERATED:
        patterns = torch.arange(2**n)[:, None].bitwise_right_shift(torch.arange(n)).bitwise_and(1).bool()
        return float((_differences(_swapped(pairs, patterns), statistic).abs() >= reach).double().mean())
    count = 0
    for size in _chunks(pairs, resamples):
        swaps = torch.randint(2, (size, n), generator=generator, dtype=torch.bool)
        count += int((_differences(_swapped(pairs, swaps), statistic).abs() >= reach).sum())
    return (1 + count) / (1 + resamples)


def statistic_of(values: Values, statistic: Statistic = "mean") -> float:
    """The number that :func:`paired_difference` compares, of one model's values ``[n, …]``; infinite values count."""
    numbers = torch.as_tensor(values, dtype=torch.float64).detach().cpu()
    if callable(statistic):
        return float(statistic(numbers))
    if statistic == "mean":
        return float(numbers.mean())
    if statistic == "median":
        return float(median(numbers))
    return float(_differences(torch.stack([numbers, torch.zeros_like(numbers)], 1)[None], statistic)[0])


def _skew(pairs: Tensor, statistic: Statistic) -> float:
    if statistic == "mean":
        return float(_acceleration(pairs[:, None], "mean"))
    if statistic in ("median", "ratio of medians"):
        return 0.0  # the jackknife is inconsistent for a quantile
    return float(_acceleration(pairs, lambda world: _differences(world[None], statistic)[0]))


def _bca(replicates: Tensor, value: float, skew: float, n: int, level: float) -> tuple[Tensor, Tensor, float]:
    """Ends of the interval, and one less the level at which it just reaches 0."""
    from scipy.special import stdtrit

    def score(threshold: float) -> float:
        share = float((replicates < threshold).double().mean() + (replicates == threshold).double().mean() / 2)
        return _normal_quantile(min(max(share, 0.5 / len(replicates)), 1 - 0.5 / len(replicates)))

    bias, expansion = score(value), (n / (n - 1)) ** 0.5
    half = float(stdtrit(n - 1, (1 + level) / 2)) * expansion
    ends = []
    for z in (bias - half, bias + half):
        at = torch.special.ndtr(torch.tensor(bias + z / max(1 - skew * z, 1e-3), dtype=torch.float64))
        ends.append(_quantile(replicates.sort().values[None], at[None])[0])
    if value == 0:
        return ends[0], ends[1], 1.0
    u = score(0.0) - bias
    z = u / max(1 + skew * u, 1e-3) - bias
    # An end can only come to 0 from the value's own side; beyond, the interval of every level holds it.
    return ends[0], ends[1], 1.0 if z * value > 0 else _student_tails(n - 1, abs(z) / expansion)


def _student_tails(freedom: float, ratio: float) -> float:
    from scipy.special import stdtr

    return float(2 * stdtr(freedom, -ratio)) if math.isfinite(ratio) else 0.0


def _normal_quantile(share: float) -> float:
    return float(torch.special.ndtri(torch.tensor(share, dtype=torch.float64)))


def _mid_p(first: int, second: int) -> float:
    from scipy.special import bdtr

    trials, least = first + second, min(first, second)
    if trials == 0:
        return 1.0
    below = float(bdtr(least - 1, trials, 0.5)) if least else 0.0
    return min(1.0, below + float(bdtr(least, trials, 0.5)))


def _tango_end(first: int, second: int, n: int, level: float) -> float:
    """The lower end: the smallest Δ whose score does not exceed z."""
    z = _normal_quantile((1 + level) / 2)

    def exceeds(shift: float) -> bool:
        linear = (2 * n - first + second) * shift - first - second
        root = linear**2 + 8 * n * second * shift * (1 - shift)
        share = (max(root, 0.0) ** 0.5 - linear) / (4 * n)
        variance = n * (2 * share + shift * (1 - shift))
        return first - second - n * shift > z * max(variance, 0.0) ** 0.5

    below, above = -1.0, (first - second) / n
    if not exceeds(below):
        return below
    while above - below > 1e-13:
        middle = (below + above) / 2
        if middle in (below, above):
            break
        below, above = (middle, above) if exceeds(middle) else (below, middle)
    return above


def _excerpt(values: Tensor) -> str:
    return f"{values.flatten()[:6].tolist()}{' …' if values.numel() > 6 else ''} of shape {list(values.shape)}"
