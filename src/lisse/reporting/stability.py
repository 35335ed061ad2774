"""Figures of the Stability instrument: D, G and R by layer, against test error, training-set size and displacement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from lisse.instruments.stability_fits import (
    QUANTITIES,
    Network,
    delta_law,
    displacements,
    error_law,
    over_seeds,
    size_law,
)
from lisse.maths.intervals import Interval
from lisse.maths.power_law import PowerLaw
from lisse.profile import Profile, Row
from lisse.reporting.figure import GREY, INK, PALETTE, panels, plain_text
from lisse.reporting.marks import foot, put_legend, visible
from lisse.reporting.series import legend_names, several

TITLES = {
    "deformation_stability": "D: answer to deformations",
    "noise_stability": "G: answer to noise",
    "relative_stability": "R = D / G",
}
#: Marker and line of the first eight series, the next eight, and so on.
_STYLES = (("o", "-"), ("s", "--"), ("^", ":"), ("D", "-."))


def stability_figure(
    profiles: Profile | Iterable[Profile], *, cut: float | None = None, delta: float | None = None
) -> Figure:
    """D, G and R along depth, a line per model and setting ([petrini2021] fig. 14).

    ``cut`` and ``delta`` choose among several settings; without them all are drawn. The legend says how many of the
    fields are diffeomorphisms where not all of them are.
    """
    given = several(profiles, "stability_figure")
    names = legend_names(given)
    lines: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for name, profile in zip(names, given, strict=True):
        for row in profile.rows:
            wanted = all(value is None or row.at.get(key) == value for key, value in (("cut", cut), ("delta", delta)))
            if row.quantity in TITLES and row.depth is not None and wanted:
                lines.setdefault((name, row.where()), {}).setdefault(row.quantity, []).append(row)
    if not lines:
        raise ValueError(
            f"stability_figure: profiles must hold Stability's rows at cut={cut}, delta={delta}, got none. "
            "lisse measure stability makes them."
        )
    whole = {
        (name, row.where()): row.value
        for name, profile in zip(names, given, strict=True)
        for row in profile.rows
        if row.quantity == "bijective_share"
    }
    labels = [
        label + (f" ({whole[key]:.0%} bijective)" if whole.get(key, 1.0) < 0.995 else "")
        for key, label in zip(lines, _labels(list(lines)), strict=True)
    ]
    figure, axes = panels(
        3,
        columns=3,
        width=4.2,
        height=3.2,
        title="Answer to smooth deformations and to noise of the same size"
        + (f": {names[0]}" if len(names) == 1 else ""),
        says="Squared distances over those between two samples. Where R falls far under 1 along depth, the network has "
        "learnt to ignore smooth deformations more than noise." + _one_setting(list(lines)),
        foot=foot(len(lines), 2),
    )
    for ax, quantity in zip(axes, TITLES, strict=True):
        for place, by in enumerate(lines.values()):
            rows = sorted(by.get(quantity, []), key=lambda row: row.depth or 0.0)
            rows = [row for row in rows if math.isfinite(row.value) and row.value > 0]
            _band(ax, [row.depth or 0.0 for row in rows], rows, place)
        _log(ax, "y")
        ax.set_xlim(-0.04, 1.04)
        ax.set_xlabel("depth (0: first layer, 1: last)", size=9, color=INK)
        plain_text(ax.set_title(TITLES[quantity], loc="left", size=10, color=INK))
    axes[2].axhline(1.0, color=GREY, lw=1.0, ls=":")
    put_legend(figure, [_handle(label, place) for place, label in enumerate(labels)], 2)
    return figure


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
    :func:`~lisse.instruments.stability_fits.error_law`.
    """
    law = error_law(networks, errors, quantity, cut=cut, delta=delta)
    found = [over_seeds(each, quantity, cut=cut, delta=delta) for each in networks]
    mean = [float(np.exp(np.mean(np.log(np.atleast_1d(np.asarray(each, dtype=float)))))) for each in errors]
    labels = list(names) if names is not None else legend_names([_first(each) for each in networks])
    if len(labels) != len(found):
        raise ValueError(f"error_figure: names must have one entry per network, got {len(labels)} for {len(found)}.")
    figure, (ax,) = panels(
        1,
        columns=1,
        width=6.4,
        height=4.6,
        title="Test error against " + TITLES[quantity],
        says=f"A point per network. {_told(law, TITLES[quantity][0])}",
        foot=foot(len(labels), 3),
    )
    for place, (interval, error) in enumerate(zip(found, mean, strict=True)):
        _point(ax, float(interval.value), error, interval, place, across=True)
    _law(ax, law, [float(interval.value) for interval in found])
    for axis in "xy":
        _log(ax, axis)
    plain_text(ax.set_xlabel(TITLES[quantity], size=10, color=INK))
    ax.set_ylabel("test error", size=10, color=INK)
    put_legend(figure, [_handle(label, place, line="") for place, label in enumerate(labels)], 3)
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
        for axis in "xy":
            _log(ax, axis)
        plain_text(ax.set_title(f"{TITLES[name]} ∝ P^{_ends(law.slope)}", loc="left", size=9.5, color=INK))
        ax.set_xlabel("training samples P", size=9, color=INK)
    return figure


def delta_figure(networks: Network | Sequence[Network], *, cut: float | None = None) -> Figure:
    """D, G and R at the output against the displacement δ, a line per network ([petrini2021] fig. 3 left, 21)."""
    given: list[Network] = [networks] if isinstance(networks, Profile) else list(networks)
    labels = legend_names([_first(each) for each in given])
    figure, axes = panels(
        len(QUANTITIES),
        columns=3,
        width=4.0,
        height=3.2,
        title="Stability against the size of the deformation",
        says="At the output. While a network is linear over so small a distance, R does not depend on δ, and D and G "
        "grow as its square.",
        foot=foot(len(given), 2),
    )
    for ax, name in zip(axes, TITLES, strict=True):
        for place, network in enumerate(given):
            (colour, marker, line), deltas = _style(place), displacements(network)
            if len(deltas) < 2:
                raise ValueError(f"delta_figure: networks must be measured at several delta, got {deltas}.")
            found = [over_seeds(network, name, cut=cut, delta=d) for d in deltas]
            ax.plot(deltas, [float(one.value) for one in found], color=colour, marker=marker, ls=line, ms=4, lw=1.6)
            low, high = [float(one.low) for one in found], [float(one.high) for one in found]
            ax.fill_between(deltas, low, high, color=colour, alpha=0.18, linewidth=0)
        for axis in "xy":
            _log(ax, axis)
        slope = (
            f", ∝ δ^{_ends(delta_law(given[0], name, cut=cut).slope)}" if len(given) == 1 and len(deltas) > 2 else ""
        )
        plain_text(ax.set_title(TITLES[name] + slope, loc="left", size=9.5, color=INK))
        ax.set_xlabel("RMS displacement δ [pixels]", size=9, color=INK)
    put_legend(figure, [_handle(label, place) for place, label in enumerate(labels)], 2)
    return figure


def _first(network: Network) -> Profile:
    return network if isinstance(network, Profile) else network[0]


def _labels(keys: Sequence[tuple[str, str]]) -> list[str]:
    models, ats = {name for name, _ in keys}, {at for _, at in keys}
    return [at if len(models) == 1 else name if len(ats) == 1 else f"{name}, {at}" for name, at in keys]


def _one_setting(keys: Sequence[tuple[str, str]]) -> str:
    """The setting in words where several models share it, and so no label says it."""
    (at, *others), models = dict.fromkeys(at for _, at in keys), {name for name, _ in keys}
    return f" All lines: {at}." if not others and len(models) > 1 else ""


def _style(place: int) -> tuple[str, str, str]:
    """Colour, marker and line of the place-th series: where the colours begin anew, the others change."""
    again = place // len(PALETTE) % len(_STYLES)
    return (PALETTE[place % len(PALETTE)], *_STYLES[again])


def _handle(text: str, place: int, *, line: str | None = None) -> Line2D:
    """A legend entry of the place-th series; ``line`` replaces its line, \"\" by none."""
    colour, marker, own = _style(place)
    ls = own if line is None else line
    return Line2D([], [], color=colour, marker=marker, ls=ls, lw=2, ms=5.5, mec="white", mew=0.6, label=visible(text))


def _band(ax: Axes, x: Sequence[float], rows: Sequence[Row], place: int) -> None:
    colour, marker, line = _style(place)
    ax.plot(x, [row.value for row in rows], color=colour, marker=marker, ls=line, ms=3.5, lw=1.5)
    if rows and all(row.low is not None and row.high is not None for row in rows):
        low, high = [row.low or 0.0 for row in rows], [row.high or 0.0 for row in rows]
        if len(rows) > 1:
            ax.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        else:  # a single layer: a band over nothing would not be seen
            ax.vlines(x, low, high, color=colour, lw=1.3, alpha=0.7)


def _point(ax: Axes, x: float, y: float, interval: Interval, place: int, *, across: bool = False) -> None:
    low, high = float(interval.low), float(interval.high)
    colour, marker, _ = _style(place)
    if math.isfinite(low):
        draw: Any = ax.hlines if across else ax.vlines
        draw(y if across else x, low, high, color=colour, lw=1.3, alpha=0.7)
    ax.plot([x], [y], marker, color=colour, ms=6, mec="white", mew=0.6)


def _law(ax: Axes, law: PowerLaw, x: Sequence[float]) -> None:
    ends = np.geomspace(min(x), max(x), 50)
    ax.plot(ends, law(torch.from_numpy(ends)).numpy(), color=GREY, lw=1.2, ls="--")


def _told(law: PowerLaw, letter: str) -> str:
    prefactor = f"{float(law.prefactor.value):.3g} [{float(law.prefactor.low):.2g}, {float(law.prefactor.high):.2g}]"
    return (
        f"Dashed: {prefactor} · {letter}^{_ends(law.slope)}. Correlation of the logarithms "
        f"{_ends(law.correlation)}, n = {law.n}."
    )


def _ends(interval: Interval) -> str:
    return f"{float(interval.value):.2f} [{float(interval.low):.2f}, {float(interval.high):.2f}]"


def _log(ax: Axes, axis: str) -> None:
    if axis == "x":
        ax.set_xscale("log")
    else:
        ax.set_yscale("log", nonpositive="clip")
    line: Any = ax.xaxis if axis == "x" else ax.yaxis
    line.set_major_locator(LogLocator(subs=(1, 2, 5)))
    line.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    line.set_minor_formatter(NullFormatter())
