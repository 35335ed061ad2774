"""Printed, corrected and measured constants of attention and convolution, against the sizes they depend on."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lisse.networks.constants import Constant, Setting
from lisse.reporting.figure import GREY, INK, PALETTE, panels

_COLOURS = {"attention": PALETTE[0], "convolution": PALETTE[1]}
_SOURCES = {
    "order": ("the paper's O(), not a bound", (0, (1, 1.6)), None),
    "printed": ("printed formula in full, not a bound", (0, (5, 2)), None),
    "corrected": ("corrected, proved upper bound (hollow: its tail bound promises nothing here)", "-", None),
    "measured": ("measured, mean of draws with interval", "none", "o"),
}
_NAMES = {
    "sigma": "σ, spread of the weights",
    "d": "d, width of tokens",
    "heads": "M, heads",
    "k": "k, kernels of 2k + 1 pixels",
    "channels": "C, channels",
}
_TOP, _BOTTOM = 7.0, -6.0


def constants_figure(table: Sequence[Constant], setting: Setting = Setting(), *, title: str = "") -> Figure:  # noqa: B008
    """One panel per sweep of :func:`lisse.networks.constants.constants`, all on one logarithmic axis.

    What is not a theorem is dotted or dashed; a full line is a proved bound; points are measured. Under each panel
    stands which layer the measurement and which the printed O() calls the smoother one. Bounds above 10⁷ leave the
    panel, and an arrow says so.
    """
    if not table:
        raise ValueError("constants_figure: table must hold at least one constant, got none.")
    sweeps = list(dict.fromkeys(row.against for row in table))
    says = (
        "Lipschitz constants at TopoLip's initialisation, the other sizes held at "
        f"σ = {setting.sigma:g}, d = {setting.d}, M = {setting.heads}, k = {setting.k}, C = {setting.channels}. "
        "Over each panel: which of the two the paper's O() calls the smoother layer, and which one measurement finds."
    )
    figure, axes = panels(
        len(sweeps), columns=3, width=3.6, height=3.3, title=title or "Which layer is smoother?", says=says, foot=0.7,
        share=True,
    )  # fmt: skip
    for ax, name in zip(axes, sweeps, strict=True):
        rows = [row for row in table if row.against == name]
        for layer, colour in _COLOURS.items():
            for source, (_, style, mark) in _SOURCES.items():
                points = sorted((r.x, r) for r in rows if r.layer == layer and r.source == source)
                if not points:
                    continue
                xs = [x for x, _ in points]
                heights = [10 ** min(r.log10, 30.0) for _, r in points]
                if source == "measured":
                    spread = [
                        [max(0.0, r.value - max(r.low, 10**_BOTTOM)) for _, r in points],
                        [max(0.0, r.high - r.value) for _, r in points],
                    ]
                    ax.errorbar(xs, heights, spread, fmt=mark or "o", color=colour, ms=4.5, lw=1.2, capsize=2, zorder=4)
                    continue
                ax.plot(xs, heights, color=colour, linestyle=style, lw=1.7, zorder=3)
                if source == "corrected":
                    for x, row in points:
                        if row.log10 <= _TOP:
                            face = colour if row.valid else "white"
                            ax.plot([x], [row.value], "D", ms=4, color=colour, mfc=face, zorder=4)
                    gone = [row for _, row in points if row.log10 > _TOP]
                    if gone:
                        ax.annotate(
                            f"↑ 10^{gone[-1].log10:,.0f}", (gone[-1].x, 10**_TOP), xytext=(0, -30), size=7.5,
                            textcoords="offset points", ha="right", color=colour,
                        )  # fmt: skip
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_ylim(10**_BOTTOM, 10**_TOP)
        ticks = sorted({row.x for row in rows})
        if name != "sigma":
            ax.set_xticks(ticks, [f"{x:g}" for x in ticks])
            ax.minorticks_off()
        ax.set_xlabel(_NAMES.get(name, name), color=INK, size=9.5)
        ax.set_title(_verdict(rows), size=8.5, color=GREY, loc="left")
    handles = [Line2D([], [], color=colour, lw=4, label=layer) for layer, colour in _COLOURS.items()]
    for source, (label, style, mark) in _SOURCES.items():
        shape = "D" if source == "corrected" else mark
        handles.append(Line2D([], [], color=INK, linestyle=style, marker=shape, ms=4.5, lw=1.7, label=label))
    figure.legend(handles=handles, loc="lower left", ncols=3, frameon=False, fontsize=8.5, bbox_to_anchor=(0.01, 0.01))
    return figure


def _verdict(rows: Sequence[Constant]) -> str:
    """Which layer is the smoother one, by the paper's O() and by measurement, along one sweep."""
    lines = []
    for source, word in (("order", "O()"), ("measured", "measured")):
        pairs = {layer: {r.x: r.value for r in rows if r.source == source and r.layer == layer} for layer in _COLOURS}
        both = sorted(pairs["attention"].keys() & pairs["convolution"].keys())
        wins = [x for x in both if pairs["attention"][x] < pairs["convolution"][x]]
        if not both:
            continue
        if len(wins) == len(both):
            text = "attention smoother"
        elif not wins:
            text = "convolution smoother"
        elif wins == both[: len(wins)]:
            text = f"attention smoother up to {wins[-1]:g}"
        elif wins == both[-len(wins) :]:
            text = f"attention smoother from {wins[0]:g}"
        else:
            text = f"attention smoother at {len(wins)} of {len(both)}"
        lines.append(f"{word}: {text}")
    return "\n".join(lines)
