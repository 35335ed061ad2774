"""Relative stability across networks: over seeds, against test error, training-set size and displacement.

These functions read profiles that :class:`~lisse.instruments.Stability` made, and nothing else. A network is one
profile, or several of the same architecture with different seeds, which are brought together by geometric means as
[petrini2021] does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lisse.maths.intervals import Interval
from lisse.maths.power_law import PowerLaw, geometric_mean, power_law
from lisse.profile import Profile, Row

Network = Profile | Sequence[Profile]
STABILITIES = ("relative_stability", "deformation_stability", "noise_stability")


@dataclass(frozen=True)
class StabilityChange:
    """A quantity before and after, and the factor between them, each with an interval over seeds (or samples)."""

    before: Interval
    after: Interval
    factor: Interval


def stability_row(
    profile: Profile,
    quantity: str = "relative_stability",
    *,
    cut: float | None = None,
    delta: float | None = None,
    statistic: str | None = None,
    layer: str | None = None,
) -> Row:
    """The row of one quantity at one setting, of the last layer (the output) or of ``layer``.

    ``cut``, ``delta`` and ``statistic`` may be left out where the profile holds only one of them. A profile with
    several measurements that differ in another option is refused: which of them is meant cannot be told.
    """
    if quantity not in STABILITIES:
        raise ValueError(f"stability_row: quantity must be one of {', '.join(STABILITIES)}, got {quantity!r}.")
    rows = [row for row in profile.rows if row.quantity == quantity and row.layer is not None]
    if not rows:
        raise ValueError(f"stability_row: profile must hold {quantity}, got one of {profile.name} without. Measure it.")
    for name, value in (("cut", cut), ("delta", delta), ("statistic", statistic)):
        options = list(dict.fromkeys(row.at.get(name, "median") for row in rows))
        if value is None and len(options) > 1:
            raise ValueError(f"stability_row: {name} must be one of {', '.join(map(str, options))}, got none.")
        if value is not None:
            rows = [row for row in rows if row.at.get(name, "median") == value]
            if not rows:
                raise ValueError(f"stability_row: {name} must be one of {', '.join(map(str, options))}, got {value!r}.")
    _one_variant("stability_row", "profile", rows, beside=("cut", "delta", "statistic"))
    if layer is None:
        return max(rows, key=lambda row: row.depth if row.depth is not None else -1.0)
    matches = [row for row in rows if row.layer == layer]
    if not matches:
        names = [str(row.layer) for row in rows]
        raise ValueError(f"stability_row: layer must be one of {', '.join(names)}, got {layer!r}.")
    return matches[0]


def over_seeds(
    network: Network,
    quantity: str = "relative_stability",
    *,
    cut: float | None = None,
    delta: float | None = None,
    statistic: str | None = None,
    layer: str | None = None,
    level: float = 0.95,
) -> Interval:
    """The geometric mean over seeds with Student's interval of the logarithms; of one profile, its own interval.

    ``level`` is that of Student's interval. A profile's own interval has the level that it was measured with, NaN where
    the profile does not say. Seeds must have been measured alike: at one cut, δ, statistic and so on.
    """
    seeds = [network] if isinstance(network, Profile) else list(network)
    if not seeds:
        raise ValueError("over_seeds: network must be a profile or several, got none.")
    rows = [
        stability_row(profile, quantity, cut=cut, delta=delta, statistic=statistic, layer=layer) for profile in seeds
    ]
    _one_variant("over_seeds", "network", rows)
    if len(rows) == 1:
        row = rows[0]
        ends = (row.low, row.high) if row.low is not None and row.high is not None else (math.nan, math.nan)
        value, low, high = (torch.tensor(number, dtype=torch.float64) for number in (row.value, *ends))
        return Interval(value, low, high, row.n, _level_of(seeds[0], row))
    return geometric_mean(torch.tensor([row.value for row in rows], dtype=torch.float64), level=level)


def error_law(
    networks: Sequence[Network],
    errors: Sequence[float | Sequence[float]],
    quantity: str = "relative_stability",
    *,
    slope: float | None = None,
    cut: float | None = None,
    delta: float | None = None,
    statistic: str | None = None,
    layer: str | None = None,
    level: float = 0.95,
) -> PowerLaw:
    r"""Test error against R_f over networks: :math:`\epsilon_t \approx a R_f^b`, and the correlation of the logarithms.

    ``errors`` has one number (or one per seed) for every network. ``slope=0.5`` fits the prefactor of the paper's
    square root alone ([petrini2021] fig. 5: 0.2 in the abstract, 0.24 in the figure).
    """
    x = _values("error_law", networks, quantity, cut, delta, statistic, layer, level)
    if len(errors) != len(x):
        raise ValueError(f"error_law: errors must have one entry per network, got {len(errors)} for {len(x)}.")
    samples = [torch.as_tensor(sample, dtype=torch.float64).reshape(-1) for sample in errors]
    for index, sample in enumerate(samples):
        if not len(sample) or not bool((torch.isfinite(sample) & (sample > 0)).all()):
            raise ValueError(
                f"error_law: errors must be positive and finite, got {errors[index]} for network {index}. A network "
                "without an error has no place on a power law: leave it out."
            )
    means = [geometric_mean(sample).value for sample in samples]
    return power_law(torch.tensor(x, dtype=torch.float64), torch.stack(means), slope=slope, level=level)


def size_law(
    networks: Sequence[Network],
    sizes: Sequence[int],
    quantity: str = "relative_stability",
    *,
    cut: float | None = None,
    delta: float | None = None,
    statistic: str | None = None,
    layer: str | None = None,
    level: float = 0.95,
) -> PowerLaw:
    """R_f (or D_f, G_f) against the number of training samples P: R ≈ a P^b ([petrini2021] fig. 3, 6, 7)."""
    y = _values("size_law", networks, quantity, cut, delta, statistic, layer, level)
    if len(sizes) != len(y):
        raise ValueError(f"size_law: sizes must have one entry per network, got {len(sizes)} for {len(y)}.")
    return power_law(torch.as_tensor(sizes, dtype=torch.float64), torch.tensor(y, dtype=torch.float64), level=level)


def delta_law(
    network: Network,
    quantity: str = "relative_stability",
    *,
    cut: float | None = None,
    statistic: str | None = None,
    layer: str | None = None,
    level: float = 0.95,
) -> PowerLaw:
    """How a quantity scales with the displacement δ at one cut-off ([petrini2021] fig. 3 left, 21).

    Small displacements leave R_f where it is (slope 0: the network is linear over that distance), and D_f and G_f grow
    as δ² there.
    """
    deltas = displacements(network)
    y = [
        float(over_seeds(network, quantity, cut=cut, delta=d, statistic=statistic, layer=layer, level=level).value)
        for d in deltas
    ]
    return power_law(torch.tensor(deltas, dtype=torch.float64), torch.tensor(y, dtype=torch.float64), level=level)


def displacements(network: Network) -> list[float]:
    """Every δ that all profiles of a network hold, in order."""
    seeds = [network] if isinstance(network, Profile) else list(network)
    if not seeds:
        raise ValueError("displacements: network must be a profile or several, got none.")
    deltas = [
        {float(row.at["delta"]) for row in profile.rows if row.quantity == "relative_stability"} for profile in seeds
    ]
    return sorted(set.intersection(*deltas))


def training_change(
    initial: Network,
    trained: Network,
    quantity: str = "relative_stability",
    *,
    cut: float | None = None,
    delta: float | None = None,
    statistic: str | None = None,
    layer: str | None = None,
    level: float = 0.95,
) -> StabilityChange:
    r"""A quantity at initialisation and after training, and by what factor it changed ([petrini2021] fig. 3).

    The factor's interval adds the two intervals' half-widths of the logarithms in quadrature, on either side; it is NaN
    where one of them has no interval. Its level is theirs, NaN where they have two. Both must have been measured alike.
    """
    rows = [
        stability_row(profile, quantity, cut=cut, delta=delta, statistic=statistic, layer=layer)
        for network in (initial, trained) for profile in ([network] if isinstance(network, Profile) else network)
    ]  # fmt: skip
    _one_variant("training_change", "trained", rows)
    before, after = (
        over_seeds(network, quantity, cut=cut, delta=delta, statistic=statistic, layer=layer, level=level)
        for network in (initial, trained)
    )
    value = after.value / before.value
    down = torch.hypot((after.value / after.low).log(), (before.high / before.value).log())
    up = torch.hypot((after.high / after.value).log(), (before.value / before.low).log())
    shared = before.level if before.level == after.level else math.nan
    factor = Interval(value, value * (-down).exp(), value * up.exp(), min(before.n, after.n), shared)
    return StabilityChange(before, after, factor)


def _level_of(profile: Profile, row: Row) -> float:
    """The level of a row's interval, which the options of its part hold; NaN where nothing says it."""
    part = next(part for part in profile.parts if any(row is candidate for candidate in part.rows))
    level = part.options.get("level")
    return float(level) if isinstance(level, (int, float)) else math.nan


def _one_variant(where: str, name: str, rows: Sequence[Row], *, beside: Sequence[str] = ()) -> None:
    """Refuse rows that were measured in different ways, but for the coordinates ``beside``."""
    variants: list[dict[str, object]] = []
    for row in rows:
        # Beside cut and δ, a row says only what is not the default; the median is.
        complete = {"statistic": "median", **row.at}
        at: dict[str, object] = {key: complete[key] for key in sorted(complete) if key not in beside}
        if at not in variants:
            variants.append(at)
    if len(variants) > 1:
        keys = sorted({key for variant in variants for key in variant})
        apart = [key for key in keys if any(variant.get(key) != variants[0].get(key) for variant in variants)]
        ways = " and ".join(
            ", ".join(f"{key} {variant.get(key, 'by default')}" for key in apart) for variant in variants[:3]
        )
        raise ValueError(
            f"{where}: {name} must be measured in one way, got {ways}. Measure again, or keep one of them."
        )


def _values(
    where: str,
    networks: Sequence[Network],
    quantity: str,
    cut: float | None,
    delta: float | None,
    statistic: str | None,
    layer: str | None,
    level: float,
) -> list[float]:
    rows = [
        stability_row(
            network if isinstance(network, Profile) else network[0],
            quantity, cut=cut, delta=delta, statistic=statistic, layer=layer,
        )
        for network in networks if isinstance(network, Profile) or len(network)
    ]  # fmt: skip
    _one_variant(where, "networks", rows, beside=("cut", "delta"))
    return [
        float(over_seeds(network, quantity, cut=cut, delta=delta, statistic=statistic, layer=layer, level=level).value)
        for network in networks
    ]
