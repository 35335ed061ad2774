"""Where fields are bijective: critical temperatures, the half-way temperature, and the (T, c) phase diagram."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.maths.diffeomorphism.ensemble import Diffeomorphism
from lisse.maths.diffeomorphism.modes import ModeRule, check_rules
from lisse.maths.intervals import Interval, share_interval


@dataclass(frozen=True, slots=True)
class PhaseDiagram:
    """[petrini2021] fig. 1 in numbers, for images of ``size``.

    ``cuts`` ``[a]``, ``temperatures`` ``[b]``; ``delta`` ``[a, b]``: exact RMS displacement at the centre in pixels;
    ``bijective`` ``[a, b]`` with ``low`` and ``high``: the share of fields that are diffeomorphisms, with a 95 % Wilson
    interval over ``samples`` fields per cut (the same fields for every temperature); ``half`` ``[a]``: the temperature
    at which half of them are; ``delta_half`` and ``delta_one`` ``[a]``: the temperatures with δ = ½ and δ = 1.
    ``green`` ``[a, b]``: δ ≥ ½ and at least half of the fields bijective.
    """

    size: tuple[int, int]
    cuts: Tensor
    temperatures: Tensor
    delta: Tensor
    bijective: Tensor
    low: Tensor
    high: Tensor
    half: Tensor
    delta_half: Tensor
    delta_one: Tensor
    samples: int

    @property
    def green(self) -> Tensor:
        """Where deformations are noticeable and, with probability at least ½, diffeomorphisms ``[a, b]``."""
        return (self.delta >= 0.5) & (self.bijective >= 0.5)


def critical_temperatures(cut: float, *, modes: ModeRule = "paper", samples: int = 512, seed: int = 0) -> Tensor:
    r"""The temperatures :math:`T^* = 1/\lambda_{\max}^2` at which random fields first fold ``[samples]``, float64.

    With coefficients fixed, :math:`\tau` grows like :math:`\sqrt T`; :math:`\lambda_{\max}` is that of the field at
    T = 1 (see :meth:`Field.critical_scale`). A sample of :math:`T^*` gives the share of bijective fields at every
    temperature at once, for images of any size: :math:`P(T) = P(T^* > T)`. Cost: about O(samples · c³ · 400).
    """
    check_rules("critical_temperatures", cut, modes)
    if samples < 1:
        raise ValueError(f"critical_temperatures: samples must be at least 1, got {samples}.")
    return _critical(float(cut), modes, samples, seed).clone()


@functools.lru_cache(maxsize=64)
def _critical(cut: float, modes: ModeRule, samples: int, seed: int) -> Tensor:
    ensemble = Diffeomorphism((2, 2), cut, modes=modes)
    fields = ensemble.sample(samples, 1.0, generator=torch.Generator().manual_seed(seed))
    return fields.critical_scale(points=max(65, 12 * math.floor(cut) + 1)).double() ** 2


def half_temperature(cut: float, *, modes: ModeRule = "paper", samples: int = 512, seed: int = 0) -> Interval:
    """T½(c): half of the fields are bijective there. The median critical temperature, with its 95 % interval.

    The interval is between order statistics (binomial), and so holds for any distribution; for very few samples it is
    the whole range.
    """
    from scipy.stats import binom

    ordered = critical_temperatures(cut, modes=modes, samples=samples, seed=seed).sort().values
    median = (ordered[(samples - 1) // 2] + ordered[samples // 2]) / 2
    rank = max(int(binom.ppf(0.025, samples, 0.5)) - 1, 0)
    return Interval(median, ordered[rank], ordered[samples - 1 - rank], samples, 0.95)


def bijective_share(
    temperature: float, cut: float, *, modes: ModeRule = "paper", samples: int = 512, seed: int = 0
) -> Interval:
    """The share of fields at ``temperature`` that are diffeomorphisms, with a 95 % Wilson interval."""
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"bijective_share: temperature must be finite and at least 0, got {temperature}.")
    critical = critical_temperatures(cut, modes=modes, samples=samples, seed=seed)
    return share_interval((critical > temperature).double().mean(), samples)


def phase_diagram(
    size: tuple[int, int],
    cuts: Sequence[float],
    temperatures: Sequence[float],
    *,
    modes: ModeRule = "paper",
    samples: int = 256,
    seed: int = 0,
) -> PhaseDiagram:
    """The (T, c) plane for images of ``size``: exact δ and the share of bijective fields at every crossing."""
    if not len(cuts) or not len(temperatures):
        raise ValueError("phase_diagram: cuts and temperatures must not be empty.")
    ensembles = [Diffeomorphism(size, cut, modes=modes) for cut in cuts]
    heat = torch.as_tensor(list(temperatures), dtype=torch.float64)
    delta = torch.stack([torch.as_tensor(ensemble.delta(heat)) for ensemble in ensembles])
    critical = [critical_temperatures(cut, modes=modes, samples=samples, seed=seed) for cut in cuts]
    share = torch.stack([(one[:, None] > heat).double().mean(0) for one in critical])
    interval = share_interval(share, samples)
    half = [half_temperature(cut, modes=modes, samples=samples, seed=seed).value for cut in cuts]
    at = {d: torch.tensor([float(e.temperature(d)) for e in ensembles], dtype=torch.float64) for d in (0.5, 1.0)}
    return PhaseDiagram(
        ensembles[0].size,
        torch.tensor([float(cut) for cut in cuts], dtype=torch.float64),
        heat, delta, share, interval.low, interval.high, torch.stack(half), at[0.5], at[1.0], samples,
    )  # fmt: skip


def warn_if_folding(where: str, ensemble: Diffeomorphism, temperature: float, *, samples: int = 512) -> None:
    """Warn, with the share that folds, where most fields of the ensemble at ``temperature`` are no diffeomorphisms."""
    share = bijective_share(temperature, ensemble.cut, modes=ensemble.modes, samples=samples)
    if float(share.value) < 0.5:
        half = float(half_temperature(ensemble.cut, modes=ensemble.modes, samples=samples).value)
        h, w = ensemble.size
        warnings.warn(
            f"{where}: {1 - float(share.value):.0%} of the fields at cut {ensemble.cut:g}, δ = "
            f"{float(ensemble.delta(temperature)):.3g} px on {h} × {w} pixels fold and are no diffeomorphisms. "
            f"Half of them are up to δ = {float(ensemble.delta(half)):.3g} px (T = {half:.3g}).",
            stacklevel=3,
        )
