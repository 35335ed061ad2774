"""Where fields are bijective: critical temperatures, the half-way temperature, and the (T, c) phase diagram."""

from __future__ import annotations

import functools
import math
import numbers
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.maths.diffeomorphism.ensemble import Diffeomorphism
from lisse.maths.diffeomorphism.modes import ModeRule, check_rules
from lisse.maths.given import check_integer
from lisse.maths.intervals import Interval, median, share_interval

#: What an estimate may cost, in fields times c³: 512 fields up to c = 32, a second or two.
_BUDGET = 1 << 24
#: The largest cut-off at which estimates draw fields; beyond, these are scaled.
_LARGEST = 64


@dataclass(frozen=True, slots=True)
class PhaseDiagram:
    """[petrini2021] fig. 1 in numbers, for images of ``size``.

    ``cuts`` ``[a]``, ``temperatures`` ``[b]``; ``delta`` ``[a, b]``: exact RMS displacement at the centre in pixels;
    ``bijective`` ``[a, b]`` with ``low`` and ``high``: the share of fields that are diffeomorphisms, with a 95 % Wilson
    interval over at least ``samples`` fields per cut (the same fields for every temperature); ``half`` ``[a]``: the
    temperature at which half of them are; ``delta_half`` and ``delta_one`` ``[a]``: those with δ = ½ and δ = 1.
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


def critical_temperatures(
    cut: float, *, modes: ModeRule = "paper", samples: int | None = None, seed: int = 0
) -> Tensor:
    r"""The temperatures :math:`T^* = 1/\lambda_{\max}^2` at which random fields first fold ``[samples]``, float64.

    With coefficients fixed, :math:`\tau` grows like :math:`\sqrt T`; :math:`\lambda_{\max}` is that of the field at
    T = 1 (see :meth:`Field.critical_scale`). A sample of :math:`T^*` gives the share of bijective fields at every
    temperature at once, for images of any size: :math:`P(T) = P(T^* > T)`. Cost: about O(samples · c³ · 400), a second
    or two with the default, 512 fields and above c = 32 fewer (at least 4); memory is bounded.
    """
    check_rules("critical_temperatures", cut, modes)
    samples = max(_affordable(cut, 512), 4) if samples is None else samples
    check_integer("critical_temperatures", 1, samples=samples)
    return _critical(float(cut), modes, int(samples), seed).clone()


def _affordable(cut: float, samples: int) -> int:
    return max(min(samples, _BUDGET // math.floor(cut) ** 3), 1)


def _estimated(where: str, cut: float, modes: ModeRule, samples: int, seed: int) -> Tensor:
    r"""Critical temperatures to estimate with, at a cost that neither c nor ``samples`` makes large.

    Above c₀ = 64, those of c₀ scaled by :math:`\frac{c_0^2 \ln c_0}{c^2 \ln c}`: :math:`\nabla\tau` has a variance that
    grows like :math:`c^2 T`, and the largest of about c² independent values squared grows like ln c more.
    """
    check_rules(where, cut, modes)
    check_integer(where, 1, samples=samples)
    if cut <= _LARGEST:
        return _critical(float(cut), modes, _affordable(cut, samples), seed)
    scale = _LARGEST**2 * math.log(_LARGEST) / (cut**2 * math.log(cut))
    return _critical(float(_LARGEST), modes, _affordable(_LARGEST, samples), seed) * scale


@functools.lru_cache(maxsize=64)
def _critical(cut: float, modes: ModeRule, samples: int, seed: int) -> Tensor:
    side = math.floor(cut)
    ensemble = Diffeomorphism((max(2, side), max(2, side)), cut, modes=modes)  # whose size does not matter here
    generator, temperatures = torch.Generator().manual_seed(seed), []
    for start in range(0, samples, block := max(1, _BUDGET // (2 * side * side))):
        fields = ensemble.sample(min(block, samples - start), 1.0, generator=generator)
        temperatures.append(fields.critical_scale(points=max(65, 12 * side + 1)).double() ** 2)
    return torch.cat(temperatures)


def half_temperature(cut: float, *, modes: ModeRule = "paper", samples: int = 512, seed: int = 0) -> Interval:
    """T½(c): half of the fields are bijective there. The median critical temperature, with its 95 % interval.

    The interval is between order statistics (binomial), and so holds for any distribution; for very few samples it is
    the whole range. Cost: a second or two at any cut. Above c = 32 fewer than ``samples`` fields are drawn (``n`` says
    how many), and above c = 64 those of 64 are scaled by 1/(c² ln c), the leading order; that this is an approximation,
    off by a few per cent at c = 128, is not in the interval.
    """
    from scipy.stats import binom

    ordered = _estimated("half_temperature", cut, modes, samples, seed).sort().values
    samples = len(ordered)
    rank = max(int(binom.ppf(0.025, samples, 0.5)) - 1, 0)
    return Interval(median(ordered), ordered[rank], ordered[samples - 1 - rank], samples, 0.95)


def bijective_share(
    temperature: float, cut: float, *, modes: ModeRule = "paper", samples: int = 512, seed: int = 0
) -> Interval:
    """The share of fields at ``temperature`` that are diffeomorphisms, with a 95 % Wilson interval.

    Of ``samples`` fields, or at large cuts of fewer, as in :func:`half_temperature`.
    """
    if not isinstance(temperature, numbers.Real) or not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"bijective_share: temperature must be finite and at least 0, got {temperature}.")
    critical = _estimated("bijective_share", cut, modes, samples, seed)
    return share_interval((critical > temperature).double().mean(), len(critical))


def phase_diagram(
    size: tuple[int, int],
    cuts: Sequence[float],
    temperatures: Sequence[float],
    *,
    modes: ModeRule = "paper",
    samples: int = 256,
    seed: int = 0,
) -> PhaseDiagram:
    """The (T, c) plane for images of ``size``: exact δ and the share of bijective fields at every crossing.

    Of ``samples`` fields per cut, or at large cuts of fewer, as in :func:`half_temperature`.
    """
    if not len(cuts) or not len(temperatures):
        raise ValueError("phase_diagram: cuts and temperatures must not be empty.")
    ensembles = [Diffeomorphism(size, cut, modes=modes) for cut in cuts]
    heat = torch.as_tensor(list(temperatures), dtype=torch.float64)
    delta = torch.stack([torch.as_tensor(ensemble.delta(heat)) for ensemble in ensembles])
    critical = [_estimated("phase_diagram", cut, modes, samples, seed) for cut in cuts]
    shares = [share_interval((sample[:, None] > heat).double().mean(0), len(sample)) for sample in critical]
    share, low, high = (
        torch.stack([getattr(interval, end) for interval in shares]) for end in ("value", "low", "high")
    )
    half = [half_temperature(cut, modes=modes, samples=samples, seed=seed).value for cut in cuts]
    at = {d: torch.tensor([float(e.temperature(d)) for e in ensembles], dtype=torch.float64) for d in (0.5, 1.0)}
    return PhaseDiagram(
        ensembles[0].size,
        torch.tensor([float(cut) for cut in cuts], dtype=torch.float64),
        heat, delta, share, low, high, torch.stack(half), at[0.5], at[1.0], min(map(len, critical)),
    )  # fmt: skip


def warn_if_folding(where: str, ensemble: Diffeomorphism, temperature: float) -> None:
    """Warn, with the share that folds, where most fields of the ensemble at ``temperature`` are no diffeomorphisms.

    A second or two for the first temperature of a cut-off that may fold, nothing for one that is far from it.
    """
    text = _folding(ensemble, float(temperature))
    if text:
        warnings.warn(f"{where}: {text}", stacklevel=3)


@functools.lru_cache(maxsize=256)
def _folding(ensemble: Diffeomorphism, temperature: float) -> str | None:
    if not _safe(float(ensemble.cut)) <= temperature < math.inf:
        return None
    share = bijective_share(temperature, ensemble.cut, modes=ensemble.modes)
    if float(share.value) >= 0.5:
        return None
    half = float(half_temperature(ensemble.cut, modes=ensemble.modes).value)
    h, w = ensemble.size
    return (
        f"{1 - float(share.value):.0%} of the fields at cut {ensemble.cut:g}, δ = "
        f"{float(ensemble.delta(temperature)):.3g} px on {h} × {w} pixels fold and are no diffeomorphisms. "
        f"Half of them are up to δ = {float(ensemble.delta(half)):.3g} px (T = {half:.3g})."
    )


def _safe(cut: float) -> float:
    """A temperature well below the half-way one of either rule: half of 1.6 · 4/(π³ c² ln c), c by a half larger."""
    return 3.2 / (math.pi**3 * (cut + 0.5) ** 2 * math.log(cut + 0.5))
