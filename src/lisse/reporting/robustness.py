"""Figures of the Robustness instrument: accuracy against attacks, noise and deformations, and by corruption."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from lisse.profile import Part, Profile, Row
from lisse.reporting.figure import GREY, INK, PALETTE, panels, plain_text
from lisse.reporting.series import legend_names, part_of, several

ATTACKS = {"noise": ":", "search": "-.", "fgsm": "--", "pgd": "-", "autoattack": (0, (5, 1, 1, 1, 1, 1))}
NAMES = {
    "noise": "noise of the same size",
    "search": "blind search",
    "fgsm": "FGSM",
    "pgd": "PGD",
    "autoattack": "AutoAttack",
}
MARKERS = {"noise": "x", "search": "D", "fgsm": "s", "pgd": "o", "autoattack": "*"}


@dataclass(frozen=True)
class Axis:
    """One way of making the input worse: the quantity, the coordinate along it, and what to write there."""

    quantity: str
    coordinate: str
    label: str
    title: str
    log: bool = False


AXES = (
    Axis("attack_accuracy", "eps", "ε", "under attack", log=True),
    Axis("attack_accuracy", "step", "step", "under PGD, by its step", log=True),
    Axis("noise_accuracy", "sigma", "σ", "with Gaussian noise"),
    Axis("deformation_accuracy", "delta", "δ, pixels", "after a smooth deformation"),
    Axis("corruption_accuracy", "severity", "severity", "under corruption, mean"),
)


def robustness_figure(profiles: Profile | Iterable[Profile]) -> Figure:
    """Accuracy along every axis that was measured, a colour per model, with intervals; dotted: clean accuracy."""
    given = several(profiles, "robustness_figure")
    parts, names = [part_of(profile, "robustness", "robustness_figure") for profile in given], legend_names(given)
    shown = [axis for axis in AXES if any(_rows(part, axis) for part in parts)]
    if not shown:
        raise ValueError(
            "robustness_figure: profiles must hold accuracies along some axis, got clean ones alone. "
            "Give eps, sigma, delta or corruptions."
        )
    used = list(dict.fromkeys(str(row.at["attack"]) for part in parts for row in _rows(part, AXES[0])))
    counts = sorted({row.n for part in parts for row in part.rows})
    figure, axes = panels(
        len(shown),
        columns=3,
        width=3.9,
        height=2.8,
        title="Accuracy when the input gets worse" + (f": {names[0]}" if len(names) == 1 else ""),
        says=f"{' or '.join(f'{n:,}' for n in counts)} samples; bands are intervals over samples. Dotted grey: clean "
        "accuracy. An attack should do more harm than noise of its size, and PGD more than FGSM.",
        foot=0.2 + 0.22 * (-(-len(names) // 3) + bool(used)),
        share=True,
    )
    for ax, axis in zip(axes, shown, strict=True):
        for place, part in enumerate(parts):
            _draw(ax, part, axis, PALETTE[place % len(PALETTE)])
        if axis.log and min(_along(ax), default=0.0) > 0:
            ax.set_xscale("log")
            _ticks(ax)
        for place, part in enumerate(parts):
            colour = PALETTE[place % len(PALETTE)] if len(parts) > 1 else GREY
            ax.axhline(_clean(part), color=colour, lw=0.9, ls=(0, (1, 2)))
        ax.set_ylim(-0.02, 1.02)
        ax.set_xlabel(axis.label, size=9, color=INK)
        plain_text(ax.set_title(axis.title, loc="left", size=10, color=INK))
    _legends(figure, names, used)
    return figure


def corruption_figure(profiles: Profile | Iterable[Profile]) -> Figure:
    """Mean accuracy over severities by corruption: a row per corruption, worst at the bottom, a mark per model."""
    given = several(profiles, "corruption_figure")
    parts, names = [part_of(profile, "robustness", "corruption_figure") for profile in given], legend_names(given)
    tables = [
        {str(row.at["corruption"]): row for row in part.rows if row.quantity == "mean_accuracy"} for part in parts
    ]
    kinds = [name for name in tables[0] if all(name in table for table in tables)]
    if not kinds:
        raise ValueError(
            "corruption_figure: profiles must share corruptions, got none in common. Measure them under the same ones."
        )
    kinds.sort(key=lambda name: sum(table[name].value for table in tables))
    figure, (ax,) = panels(
        1,
        columns=1,
        width=6.8,
        height=1.0 + 0.26 * len(kinds),
        title="Accuracy under corruption" + (f": {names[0]}" if len(names) == 1 else ""),
        says="The mean over severities, with its interval over images. Dotted: clean accuracy.",
        foot=0.2 + 0.22 * -(-len(names) // 3),
    )
    spread = 0.5 / max(1, len(parts))
    for place, (part, table) in enumerate(zip(parts, tables, strict=True)):
        colour = PALETTE[place % len(PALETTE)]
        shift = (place - (len(parts) - 1) / 2) * spread
        for height, name in enumerate(kinds):
            row = table[name]
            ax.plot([row.value], [height + shift], "o", color=colour, ms=5, mec="white", mew=0.5)
            if row.low is not None and row.high is not None:
                ax.hlines(height + shift, row.low, row.high, color=colour, lw=1.4, alpha=0.7)
        ax.axvline(_clean(part), color=colour, lw=0.9, ls=(0, (1, 2)))
    ax.set_yticks(range(len(kinds)), [name.replace("_", " ") for name in kinds])
    ax.grid(axis="x", color="#e4e4e4", linewidth=0.8)
    ax.grid(visible=False, axis="y")
    ax.set_xlim(0, 1.01)
    ax.set_xlabel("accuracy", size=9, color=INK)
    _legends(figure, names, [])
    return figure


def _clean(part: Part) -> float:
    return next(row.value for row in part.rows if row.quantity == "clean_accuracy")


def _rows(part: Part, axis: Axis) -> list[Row]:
    rows = [row for row in part.rows if row.quantity == axis.quantity and axis.coordinate in row.at]
    # With several steps a curve by ε would zigzag: it has a panel of its own, by step.
    return [row for row in rows if axis.coordinate == "step" or "step" not in row.at]


def _draw(ax: Axes, part: Part, axis: Axis, colour: str) -> None:
    rows = _rows(part, axis)
    if axis.coordinate == "severity":
        severities = sorted({int(row.at["severity"]) for row in rows})
        means = [_mean([row.value for row in rows if row.at["severity"] == severity]) for severity in severities]
        ax.plot(severities, means, color=colour, lw=1.6, marker="o", ms=4)
        ax.set_xticks(severities)
        return
    kinds = list(
        dict.fromkeys(
            (str(row.at.get("attack", "")), row.at.get("eps") if axis.coordinate == "step" else None) for row in rows
        )
    )
    for kind, eps in kinds:
        some = [
            row
            for row in rows
            if str(row.at.get("attack", "")) == kind and (axis.coordinate != "step" or row.at["eps"] == eps)
        ]
        some.sort(key=lambda row: float(row.at[axis.coordinate]))
        x, y = [float(row.at[axis.coordinate]) for row in some], [row.value for row in some]
        ax.plot(x, y, color=colour, lw=1.5, ls=ATTACKS.get(kind, "-"), marker=MARKERS.get(kind, "o"), ms=4)
        if all(row.low is not None and row.high is not None for row in some) and len(some) > 1:
            low, high = [row.low or 0.0 for row in some], [row.high or 0.0 for row in some]
            ax.fill_between(x, low, high, color=colour, alpha=0.13, linewidth=0)


def _along(ax: Axes) -> list[float]:
    return [float(x) for line in ax.lines for x in np.asarray(line.get_xdata(), dtype=float)]


def _ticks(ax: Axes) -> None:
    """Some of the sizes that were measured: a logarithmic axis over less than a decade has no ticks of its own."""
    sizes = sorted(set(_along(ax)))
    shown = sizes[:: -(-len(sizes) // 5)]
    ax.set_xticks(shown, [f"{size:.2g}" for size in shown])
    ax.xaxis.set_minor_locator(NullLocator())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _legends(figure: Figure, names: Sequence[str], attacks: Sequence[str]) -> None:
    height = 0.04 / float(figure.get_figheight())
    if len(names) > 1:
        handles = [Line2D([], [], color=PALETTE[k % len(PALETTE)], lw=2, label=name) for k, name in enumerate(names)]
        legend = figure.legend(handles=handles, loc="lower center", ncols=3, frameon=False, fontsize=9)
        for text in legend.get_texts():
            plain_text(text)
        height += 0.24 * -(-len(names) // 3) / float(figure.get_figheight())
    if attacks:
        lines = [
            Line2D([], [], color=INK, lw=1.4, ls=ATTACKS[name], marker=MARKERS[name], ms=4, label=NAMES[name])
            for name in attacks
        ]
        figure.legend(
            handles=lines, loc="lower center", ncols=5, frameon=False, fontsize=9, bbox_to_anchor=(0.5, height)
        )
