"""The paper's figures from our numbers: what is drawn when. Needs matplotlib: ``pip install "lisse[report]"``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Circle
except ImportError as error:
    raise ImportError(f'reproduce: figures need matplotlib ({error}). pip install "lisse[report]"') from error

from lisse.data import Dataset, generators
from lisse.maths.diffeomorphism import Diffeomorphism, bijective_share, deform, phase_diagram
from lisse.maths.relative_stability import sphere
from lisse.reporting.figure import GREY, INK, PALETTE, panels
from lisse_experiments.diffeomorphisms.figures import curves, scatters
from lisse_experiments.diffeomorphisms.networks import Source
from lisse_experiments.diffeomorphisms.plan import Settings
from lisse_experiments.diffeomorphisms.result import D, G, R, Results
from lisse_experiments.diffeomorphisms.stripe import last_octave
from lisse_experiments.diffeomorphisms.tables import stripe_levels
from lisse_experiments.outputs import png_files

BLUE, ORANGE, GREEN = PALETTE[:3]


def draw(results: Results, plan: Settings, sources: Sequence[Source], test: Dataset, folder: Path) -> list[Path]:
    """All figures as ``figure-N.png``, numbered as in the paper; ``treatments.png`` is its discussion's.

    Those over the size of the training set need more than one size.
    """
    first = sources[0]
    figures: dict[str, Callable[[], Figure]] = {"figure-7": lambda: stripes(results, plan)}
    if plan.deltas:
        figures |= _over_networks(results, plan, sources, test)
    if plan.sizes:
        figures |= {
            "figure-6": lambda: curves.parts_over_size(results, plan, sources, bars=False),
            "figure-13": lambda: curves.over_size(results, plan, sources),
            "figure-18": lambda: scatters.trajectories(results, plan, first),
            "figure-22": lambda: curves.parts_over_size(results, plan, sources, bars=True),
        }
    return png_files(((name, figure()) for name, figure in figures.items()), folder)


def _over_networks(
    results: Results, plan: Settings, sources: Sequence[Source], test: Dataset
) -> dict[str, Callable[[], Figure]]:
    """Those that compare networks, displacements and treatments."""
    first = sources[0]
    return {
        "figure-1": lambda: phases(plan.cuts_drawn, plan.fields_drawn),
        "figure-1-samples": lambda: deformed_samples(photograph(), plan.fields_drawn),
        "figure-2": lambda: directions(test, plan.cut),
        "figure-3": lambda: curves.overview(results, plan, sources, plan.good, deltas=True),
        "figure-4": lambda: curves.overview(results, plan, sources, plan.primitive, deltas=False),
        "figure-5": lambda: scatters.against_error(results, plan, first, bars=False),
        "figure-12": lambda: curves.treatments(
            results, plan, first, [t for t in plan.treatments if t.fields == "none" and t.smoothing is None]
        ),
        "figure-14": lambda: curves.along_depth(results, plan, first),
        "figure-15-17": lambda: scatters.quantities_against_error(results, plan, first, (D, G, R)),
        "figure-19": lambda: scatters.against_error(results, plan, first, bars=True),
        "figure-20": lambda: scatters.sources_against_error(results, plan, sources),
        "figure-21": lambda: scatters.settings_against_error(results, plan, first),
        "treatments": lambda: curves.treatments(results, plan, first, plan.treatments),
    }


def photograph() -> Tensor:
    """A photograph of 320 × 320 pixels, the size of Figure 1: the middle of scikit-learn's ``china.jpg``."""
    from sklearn.datasets import load_sample_image

    pixels = torch.from_numpy(load_sample_image("china.jpg").copy()).permute(2, 0, 1)
    top, left = (pixels.shape[1] - 320) // 2, (pixels.shape[2] - 320) // 2
    return pixels[:, top : top + 320, left : left + 320]


# --- Figure 1 -------------------------------------------------------------------------------------------------------


def phases(cuts: Sequence[int], fields: int) -> Figure:
    """The plane of temperature and cut-off for images of 320 × 320 pixels, the region of good fields in green."""
    diagram = phase_diagram((320, 320), cuts, [1e-3], samples=fields)
    figure, (ax,) = panels(
        1, columns=1, width=6.8, height=4.2, title="Max-entropy deformations of 320 × 320 pixels", foot=0.5,
        says="Green: displacements of at least half a pixel by fields of which at least half are diffeomorphisms.",
    )  # fmt: skip
    low, pixel, half = (line.numpy() for line in (diagram.delta_half, diagram.delta_one, diagram.half))
    ax.fill_betweenx(diagram.cuts.numpy(), low, np.maximum(low, half), color=GREEN, alpha=0.22, lw=0)
    handles = []
    for line, colour, style, label in (
        (low, INK, ":", "δ = ½ pixel"), (pixel, INK, "--", "δ = 1 pixel"),
        (half, ORANGE, "-", f"half of {fields} fields bijective"),
    ):  # fmt: skip
        ax.plot(line, diagram.cuts.numpy(), color=colour, ls=style, lw=1.7)
        handles.append(Line2D([], [], color=colour, ls=style, label=label))
    for k, cut in enumerate(cut for cut in (3, 10, 30) if cut in cuts):
        ax.plot(pixel[list(cuts).index(cut)], cut, "o", ms=7, color=PALETTE[k])
    ax.grid(False)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_yticks(list(cuts), [str(cut) for cut in cuts])
    ax.minorticks_off()
    ax.set_xlabel("temperature T", size=9, color=INK)
    ax.set_ylabel("cut-off c", size=9, color=INK)
    figure.legend(handles=handles, loc="lower left", ncols=3, frameon=False, fontsize=9)
    return figure


def deformed_samples(image: Tensor, fields: int, *, cuts: Sequence[int] = (30, 10, 3), columns: int = 5) -> Figure:
    """The image ``[c, h, w]`` in bytes deformed over (T, c); one draw per row, its temperature growing to the right."""
    size = image.shape[-2], image.shape[-1]
    heats = np.geomspace(3e-7, 3e-2, columns).tolist()
    figure, axes = panels(
        len(cuts) * columns, columns=columns, width=1.75, height=1.95, title="Samples over temperature and cut-off",
        says="Green frames: δ of at least half a pixel and at least half of the fields bijective.", foot=0.1,
    )  # fmt: skip
    for index, ax in enumerate(axes):
        cut, heat = cuts[index // columns], heats[index % columns]
        ensemble = Diffeomorphism(size, cut)
        # Not sample(), which would warn of the fields that fold: they are what is shown.
        normals = torch.randn(1, 2, ensemble.mode_count, generator=torch.Generator().manual_seed(cut))
        field = ensemble.whitened_field(normals, heat)
        delta = float(ensemble.delta(heat))
        share = float(bijective_share(heat, cut, samples=fields).value)
        ax.imshow(deform(image[None], field)[0].permute(1, 2, 0).numpy())
        ax.grid(False)
        ax.set_xticks([])
        ax.set_yticks([])
        good = delta >= 0.5 and share >= 0.5
        ax.spines[:].set_visible(True)
        ax.spines[:].set_color(GREEN if good else "#d0d0d0")
        ax.spines[:].set_linewidth(3.5 if good else 0.8)
        ax.set_xlabel(f"δ = {delta:.3g} px, {share:.0%}", size=7.5, color=GREY)
        if index < columns:
            ax.set_title(f"T = {heat:.0e}", size=8.5, color=INK)
        if index % columns == 0:
            ax.set_ylabel(f"c = {cut}", size=9, color=INK)
    return figure


# --- Figure 2 -------------------------------------------------------------------------------------------------------


def directions(test: Dataset, cut: int, *, index: int = 3) -> Figure:
    """An image, its deformed one, and noise of the same length: the two directions that R compares."""
    inputs = next(test.batches(index + 1, 0, index + 1)).inputs
    assert isinstance(inputs, Tensor)
    image = inputs[index : index + 1]
    ensemble = Diffeomorphism((image.shape[-2], image.shape[-1]), cut)
    generator = torch.Generator().manual_seed(1)
    moved = deform(image, ensemble.sample(1, float(ensemble.temperature(1.0)), generator=generator))
    length = float((moved - image).norm())
    noisy = image + sphere(torch.randn(image.shape, generator=generator), length)
    figure, axes = panels(
        4, columns=4, width=2.4, height=2.6, title="Two ways to leave an image", foot=0.1,
        says="Both changed images lie at the same distance from x. R compares how far a network carries them.",
    )  # fmt: skip
    _sphere(axes[0])
    for ax, picture, label, colour in (
        (axes[1], image, "x", INK),
        (axes[2], moved, "τx: deformed", GREEN),
        (axes[3], noisy, "x + η: noise", ORANGE),
    ):
        pixels = picture[0].clamp(0, 1).permute(1, 2, 0).numpy()
        ax.imshow(pixels if pixels.shape[2] == 3 else pixels[..., 0], cmap="gray", vmin=0, vmax=1)
        ax.grid(False)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.spines[:].set_visible(True)
        ax.spines[:].set_color(colour)
        ax.spines[:].set_linewidth(2.5)
        ax.set_title(label if picture is image else f"{label}, ‖·‖ = {length:.2f}", size=10, color=colour)
    return figure


def _sphere(ax: Axes) -> None:
    ax.set_axis_off()
    ax.set_aspect("equal")
    ax.add_patch(Circle((0, 0), 1, fill=False, ec=GREY, lw=1.2))
    angle = np.linspace(0, 2 * np.pi, 200)
    ax.plot(np.cos(angle), 0.28 * np.sin(angle), ls="--", color=GREEN, lw=1.6)
    ax.plot([0, 0.94], [0, -0.095], color=GREEN, lw=1)
    ax.plot([0, -0.45], [0, 0.75], color=ORANGE, lw=1)
    for x, y, colour, label, dx, dy in (
        (0, 0, INK, "x", -0.18, -0.14), (0.94, -0.095, GREEN, "τx", 0.09, -0.05),
        (-0.45, 0.75, ORANGE, "x + η", 0.1, 0.0),
    ):  # fmt: skip
        ax.plot([x], [y], "o", ms=6, color=colour)
        ax.text(x + dx, y + dy, label, color=colour, size=10)
    ax.set_xlim(-1.15, 1.4)
    ax.set_ylim(-1.15, 1.15)


# --- Figure 7 -------------------------------------------------------------------------------------------------------


def stripes(results: Results, plan: Settings) -> Figure:
    """The stripe model: its points, and R over P with the line of slope -1."""
    figure, (left, right) = panels(
        2, columns=2, width=4.6, height=3.4, title="The stripe model",
        says="The label sees one direction of "
        f"{plan.stripe.d}. Dots: networks of one seed each; line: their geometric mean.", foot=0.15,
    )  # fmt: skip
    data = generators.stripe(400, d=2, seed=0)
    assert isinstance(data.inputs, Tensor)
    assert data.targets is not None
    x = data.inputs.numpy()
    for label, colour in ((0, ORANGE), (1, BLUE)):
        points = x[data.targets.numpy() == label]
        left.plot(points[:, 0], points[:, 1], "o", ms=3, color=colour, alpha=0.8)
    for edge in generators.STRIPE:
        left.axvline(edge, color=INK, lw=1.2)
    left.grid(False)
    left.set_xlabel("x∥, the direction of the label", size=9, color=INK)
    left.set_ylabel("x⊥", size=9, color=INK)
    levels = stripe_levels(results, plan)
    sizes, values = [p for p, _ in levels], [float(value.value) for _, value in levels]
    for network in results.stripes:
        right.errorbar(
            network.p,
            network.value,
            yerr=[[network.value - network.low], [network.high - network.value]],
            fmt="o",
            ms=3.5,
            color=BLUE,
            alpha=0.6,
            lw=0.8,
        )
    right.plot(sizes, values, color=BLUE, lw=1.6)
    right.plot(sizes[-2:], [1.6 * values[-1] * sizes[-1] / p for p in sizes[-2:]], color=INK, ls="--", lw=1.2)
    right.set_xscale("log", base=2)
    right.set_yscale("log")
    right.set_xticks(sizes, [str(p) for p in sizes])
    right.set_xlabel("training points P", size=9, color=INK)
    right.set_ylabel("R", size=9, color=INK)
    slope = last_octave(sizes, values)
    lines = [
        Line2D([], [], color=BLUE, label=f"R (slope {slope:.2f} on the last octave)"),
        Line2D([], [], color=INK, ls="--", label="slope -1"),
    ]
    right.legend(handles=lines, frameon=False, fontsize=8.5, loc="lower left")
    return figure
