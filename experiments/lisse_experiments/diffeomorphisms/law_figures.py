"""D, G and R of networks against test error, training-set size and displacement, each with its power law.

Figures of :mod:`lisse_experiments.diffeomorphisms.laws`; D, G and R along depth are a chart that Stability declares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from lisse.maths.intervals import Interval
from lisse.maths.power_law import PowerLaw
from lisse.profile import Profile
from lisse.reporting.figure import GREY, INK, PALETTE, panels, plain_text
from lisse.reporting.marks import foot, put_legend, visible
from lisse.reporting.series import legend_names
from lisse_experiments.diffeomorphisms.laws import Network, delta_law, displacements, error_law, over_seeds, size_law

TITLES = {
    "deformation_stability": "D: answer to deformations",
    "noise_stability": "G: answer to noise",
    "relative_stability": "R = D / G",
}
#: Marker and line of the first eight series, the next eight, and so on.
_STYLES = (("o", "-"), ("s", "--"), ("^", ":"), ("D", "-."))


def error_figure(
    networks: Sequence[Network],
    errors: Sequence[float | Sequence[float]],
    *,
    names: Sequence[str] | None = None,
    quantity: str = "relative_stability",
    cut: float | None = None,
    delta: float | None = None,
) -> Figure:
    """Test error against R_f, a point per network, with the fitted power law ([petrini2021] fig. 5; 15, 16: D, G).

    A network is a profile or several with different seeds; ``errors`` as in
    :func:`~lisse_experiments.diffeomorphisms.laws.error_law`.
    """
    law = error_law(networks, errors, quantity, cut=cut, delta=delta)
    intervals = [over_seeds(network, quantity, cut=cut, delta=delta) for network in networks]
    means = [float(np.exp(np.mean(np.log(np.atleast_1d(np.asarray(error, dtype=float)))))) for error in errors]
    labels = list(names) if names is not None else _names(networks)
    if len(labels) != len(intervals):
        raise ValueError(
            f"error_figure: names must have one entry per network, got {len(labels)} for {len(intervals)}."
        )
    prefactor = f"{float(law.prefactor.value):.3g} [{float(law.prefactor.low):.2g}, {float(law.prefactor.high):.2g}]"
    figure, (ax,) = panels(
        1,
        columns=1,
        width=6.4,
        height=4.6,
        title="Test error against " + TITLES[quantity],
        says=f"A point per network. Dashed: {prefactor} · {TITLES[quantity][0]}^{_ends(law.slope)}. Correlation of "
        f"the logarithms {_ends(law.correlation)}, n = {law.n}.",
        foot=foot(len(labels), 3),
    )
    for index, (interval, error) in enumerate(zip(intervals, means, strict=True)):
        _point(ax, float(interval.value), error, interval, index, across=True)
    _law(ax, law, [float(interval.value) for interval in intervals])
    _logarithmic(ax)
    plain_text(ax.set_xlabel(TITLES[quantity], size=10, color=INK))
    ax.set_ylabel("test error", size=10, color=INK)
    put_legend(figure, [_handle(label, index, line="") for index, label in enumerate(labels)], 3)
    return figure


def size_figure(
    networks: Sequence[Network], sizes: Sequence[int], *, cut: float | None = None, delta: float | None = None
) -> Figure:
    """D, G and R against the number of training samples, each with its power law ([petrini2021] fig. 6)."""
    laws = {name: size_law(networks, sizes, name, cut=cut, delta=delta) for name in TITLES}
    figure, axes = panels(
        3,
        columns=3,
        width=4.0,
        height=3.2,
        title="Stability against the number of training samples",
        says="Each over its fitted power law; the exponent with its interval is on top of each panel.",
        foot=0.15,
    )
    for ax, (name, law) in zip(axes, laws.items(), strict=True):
        for network, size in zip(networks, sizes, strict=True):
            interval = over_seeds(network, name, cut=cut, delta=delta)
            _point(ax, float(size), float(interval.value), interval, 0)
        _law(ax, law, list(map(float, sizes)))
        _logarithmic(ax)
        plain_text(ax.set_title(f"{TITLES[name]} ∝ P^{_ends(law.slope)}", loc="left", size=9.5, color=INK))
        ax.set_xlabel("training samples P", size=9, color=INK)
    return figure


def delta_figure(networks: Network | Sequence[Network], *, cut: float | None = None) -> Figure:
    """D, G and R at the output against the displacement δ, a line per network ([petrini2021] fig. 3 left, 21)."""
    drawn: list[Network] = [networks] if isinstance(networks, Profile) else list(networks)
    deltas = [displacements(network) for network in drawn]
    if any(len(values) < 2 for values in deltas):
        raise ValueError(f"delta_figure: networks must be measured at several delta, got {min(deltas, key=len)}.")
    figure, axes = panels(
        len(TITLES),
        columns=3,
        width=4.0,
        height=3.2,
        title="Stability against the size of the deformation",
        says="At the output. While a network is linear over so small a distance, R does not depend on δ, and D and G "
        "grow as its square.",
        foot=foot(len(drawn), 2),
    )
    for ax, name in zip(axes, TITLES, strict=True):
        for index, (network, values) in enumerate(zip(drawn, deltas, strict=True)):
            colour, marker, line = _style(index)
            intervals = [over_seeds(network, name, cut=cut, delta=value) for value in values]
            heights, low, high = ([float(getattr(interval, end)) for interval in intervals]
                                  for end in ("value", "low", "high"))  # fmt: skip
            ax.plot(values, heights, color=colour, marker=marker, ls=line, ms=4, lw=1.6)
            ax.fill_between(values, low, high, color=colour, alpha=0.18, linewidth=0)
        _logarithmic(ax)
        single = len(drawn) == 1 and len(deltas[0]) > 2
        slope = f", ∝ δ^{_ends(delta_law(drawn[0], name, cut=cut).slope)}" if single else ""
        plain_text(ax.set_title(TITLES[name] + slope, loc="left", size=9.5, color=INK))
        ax.set_xlabel("RMS displacement δ [pixels]", size=9, color=INK)
    put_legend(figure, [_handle(label, index) for index, label in enumerate(_names(drawn))], 2)
    return figure


def _names(networks: Sequence[Network]) -> list[str]:
    return legend_names([network if isinstance(network, Profile) else network[0] for network in networks])


def _style(index: int) -> tuple[str, str, str]:
    """Colour, marker and line of a series: where the colours begin anew, the others change."""
    return (PALETTE[index % len(PALETTE)], *_STYLES[index // len(PALETTE) % len(_STYLES)])


def _handle(text: str, index: int, *, line: str | None = None) -> Line2D:
    """A legend entry of a series; ``line`` replaces its line, \"\" by none."""
    colour, marker, dash = _style(index)
    ls = dash if line is None else line
    return Line2D([], [], color=colour, marker=marker, ls=ls, lw=2, ms=5.5, mec="white", mew=0.6, label=visible(text))


def _point(ax: Axes, x: float, y: float, interval: Interval, index: int, *, across: bool = False) -> None:
    low, high = float(interval.low), float(interval.high)
    colour, marker, _ = _style(index)
    if math.isfinite(low):
        draw: Any = ax.hlines if across else ax.vlines
        draw(y if across else x, low, high, color=colour, lw=1.3, alpha=0.7)
    ax.plot([x], [y], marker, color=colour, ms=6, mec="white", mew=0.6)


def _law(ax: Axes, law: PowerLaw, x: Sequence[float]) -> None:
    ends = np.geomspace(min(x), max(x), 50)
    ax.plot(ends, law(torch.from_numpy(ends)).numpy(), color=GREY, lw=1.2, ls="--")


def _ends(interval: Interval) -> str:
    return f"{float(interval.value):.2f} [{float(interval.low):.2f}, {float(interval.high):.2f}]"


def _logarithmic(ax: Axes) -> None:
    """Both axes, with plain numbers at 1, 2 and 5 times the powers of ten."""
    ax.set_xscale("log")
    ax.set_yscale("log", nonpositive="clip")
    for line in (ax.xaxis, ax.yaxis):
        line.set_major_locator(LogLocator(subs=(1, 2, 5)))
        line.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        line.set_minor_formatter(NullFormatter())
