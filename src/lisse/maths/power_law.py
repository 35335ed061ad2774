r"""Power laws: straight lines between logarithms, with intervals, and geometric means.

Test error against relative stability ([petrini2021] fig. 5, footnote 3), or anything against the number of training
samples, follows :math:`y \approx a\,x^b`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.maths.given import check_level
from lisse.maths.intervals import Interval, across_clouds, no_interval, student


@dataclass(frozen=True, slots=True)
class PowerLaw:
    r""":math:`y \approx a\,x^b`: ``slope`` b, ``prefactor`` a, and the correlation of the logarithms.

    ``fixed`` says that the slope was given, not fitted (its interval is then that one number). ``residual`` is the
    standard deviation of the logarithms around the line.
    """

    slope: Interval
    prefactor: Interval
    correlation: Interval
    residual: float
    n: int
    fixed: bool

    def __call__(self, x: Tensor | float) -> Tensor:
        """The law at ``x``."""
        return self.prefactor.value * torch.as_tensor(x, dtype=torch.float64) ** self.slope.value


def power_law(x: Tensor, y: Tensor, *, slope: float | None = None, level: float = 0.95) -> PowerLaw:
    r"""Least squares of :math:`\log y = \log a + b \log x` over points ``[n]``, all positive.

    With :math:`s^2` the residual variance on n - 2 degrees of freedom and :math:`S` the sum of squares of
    :math:`\log x` around its mean :math:`m`, b has standard error :math:`s/\sqrt S` and log a
    :math:`s\sqrt{1/n + m^2/S}`; intervals are Student's, exact for normal errors of the logarithms. ``slope`` fixes b
    (½ for the paper's :math:`\epsilon_t \approx 0.2\sqrt{R_f}`) and leaves n - 1 degrees of freedom. The correlation is
    Pearson's of the logarithms (footnote 3), with Fisher's interval :math:`\tanh(\mathrm{artanh}\,r \pm z/\sqrt{n-3})`.
    At least 3 points; with 3 the correlation's interval is [-1, 1].
    """
    lx, ly = _logs("power_law", "x", x), _logs("power_law", "y", y)
    n = len(lx)
    if len(ly) != n:
        raise ValueError(f"power_law: y must have one value per x, got {len(ly)} for {n}.")
    if n < 3:
        raise ValueError(f"power_law: x must hold at least 3 points, got {n}. Two lie on a line whatever they are.")
    check_level("power_law", level)
    dx, dy = lx - lx.mean(), ly - ly.mean()
    across = dx.square().sum()
    if not float(across) > 0:
        raise ValueError("power_law: x must hold different values, got one value only.")
    b = dx @ dy / across if slope is None else torch.tensor(float(slope), dtype=torch.float64)
    log_a = ly.mean() - b * lx.mean()
    free = n - 2 if slope is None else n - 1
    s = ((ly - log_a - b * lx).square().sum() / free).sqrt()
    t = student(free, level)
    half_b = t * s / across.sqrt() if slope is None else torch.zeros((), dtype=torch.float64)
    half_a = t * s * (1 / n + (lx.mean().square() / across if slope is None else 0.0)) ** 0.5
    return PowerLaw(
        Interval(b, b - half_b, b + half_b, n, level),
        Interval(log_a.exp(), (log_a - half_a).exp(), (log_a + half_a).exp(), n, level),
        _correlation(dx, dy, level),
        float(s),
        n,
        slope is not None,
    )


def geometric_mean(values: Tensor, *, level: float = 0.95) -> Interval:
    r""":math:`\exp\overline{\log v}` of positive values ``[n]``, as [petrini2021] takes R_f over seeds.

    Student's interval of the mean logarithm; a single value has none (its ends are NaN).
    """
    logs = _logs("geometric_mean", "values", values)
    check_level("geometric_mean", level)
    if len(logs) == 1:
        return no_interval(logs.mean().exp(), 1, level)
    mean = across_clouds(logs, level=level)
    return Interval(mean.value.exp(), mean.low.exp(), mean.high.exp(), mean.n, level)


def _correlation(dx: Tensor, dy: Tensor, level: float) -> Interval:
    n = len(dx)
    down = dy.square().sum()
    if not float(down) > 0:  # a flat line has no correlation
        return no_interval(down * torch.nan, n, level)
    r = (dx @ dy / (dx.square().sum() * down).sqrt()).clamp(-1, 1)
    if n == 3:
        unit = torch.ones((), dtype=torch.float64)
        return Interval(r, -unit, unit, n, level)
    half = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)) / (n - 3) ** 0.5
    z = torch.atanh(r)
    return Interval(r, torch.tanh(z - half), torch.tanh(z + half), n, level)


def _logs(where: str, name: str, values: Tensor) -> Tensor:
    numbers = torch.as_tensor(values, dtype=torch.float64).cpu()
    if numbers.ndim != 1 or not len(numbers):
        raise ValueError(f"{where}: {name} must be numbers in one row, got shape {list(numbers.shape)}.")
    good = torch.isfinite(numbers) & (numbers > 0)
    if not bool(good.all()):
        worst = float(numbers[~good][0])
        raise ValueError(f"{where}: {name} must be positive and finite, got {worst}. Logarithms need that.")
    return numbers.log()
