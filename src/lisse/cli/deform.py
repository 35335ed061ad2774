"""``lisse deform IMAGE``: a picture under a random smooth deformation, a grid of them, or an animation."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lisse.cli.files import load_picture
from lisse.cli.outcome import arguments

if TYPE_CHECKING:
    from torch import Tensor

    from lisse.maths.diffeomorphism import Diffeomorphism


@click.command()
@click.argument("image", type=click.Path())
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False),
    help="Where to: .png, .jpg, .webp, .gif…  [default: IMAGE-deformed.png here]",
)
@click.option(
    "--cut", type=float, multiple=True, help="Cut-off c of the frequencies; may be repeated for --grid.  [default: 3]"
)
@click.option("--delta", type=float, help="RMS displacement at the centre, in pixels.")
@click.option(
    "--temperature", type=float, multiple=True, help="Temperature T, instead of --delta; may be repeated for --grid."
)
@click.option("--seed", default=0, type=int, help="Of the random field.  [default: 0]")
@click.option(
    "--interpolation",
    default="bilinear",
    type=click.Choice(["bilinear", "bicubic", "gaussian", "nearest"]),
    help="[default: bilinear]",
)
@click.option(
    "--modes",
    default="paper",
    type=click.Choice(["paper", "code"]),
    help="Which modes the cut-off keeps.  [default: paper]",
)
@click.option(
    "--size", type=click.IntRange(min=2), help="Scale and crop the picture to a square of so many pixels first."
)
@click.option("--grid", is_flag=True, help="A grid over temperatures and cut-offs, the good region framed in green.")
@click.option("--phase", is_flag=True, help="The phase diagram of pictures of this size, without the pictures.")
@click.option("--animate", is_flag=True, help="An animated .gif or .webp of a growing temperature.")
@click.option("--frames", default=48, type=click.IntRange(2, 1000), help="Of the animation.  [default: 48]")
@click.pass_context
def command(ctx: click.Context, image: str, out: str | None, size: int | None, **values: Any) -> None:
    """Deform IMAGE by a maximum-entropy random diffeomorphism.

    Without --delta and --temperature, the field is half as large as the one that folds with probability one half.
    """
    _check(ctx, **values)
    kinds = {"grid": "grid.png", "phase": "phase.png", "animate": "growing.gif"}
    draw = _figure if values["grid"] or values["phase"] else _single
    ending = next((ending for kind, ending in kinds.items() if values[kind]), "deformed.png")
    saved = draw(ctx, load_picture(image, size=size), Path(out or f"{Path(image).stem}-{ending}"), **values)
    print(f"Saved {saved}", file=sys.stderr)


def _check(
    ctx: click.Context, *, grid: bool, phase: bool, animate: bool, delta: Any, temperature: Any, cut: Any, **_: Any
) -> None:
    """Options that do not go together."""
    if grid + phase + animate > 1:
        raise click.UsageError("--grid, --phase and --animate exclude each other", ctx)
    if delta is not None and (grid or phase):
        kind, instead = ("--grid", "give --temperature") if grid else ("--phase", "it shows every displacement")
        raise click.UsageError(f"--delta goes with one picture, not with {kind}: {instead}", ctx)
    if delta is not None and temperature:
        raise click.UsageError("--delta goes with one picture and without --temperature", ctx)
    if phase and temperature:
        raise click.UsageError("--phase draws all temperatures: leave --temperature out", ctx)
    if not (grid or phase) and (len(cut) > 1 or len(temperature) > 1):
        raise click.UsageError("several of --cut or --temperature go with --grid", ctx)


def _figure(
    ctx: click.Context, picture: Tensor, out: Path, *, cut: Any, temperature: Any, phase: bool, seed: int, modes: Any,
    interpolation: Any, **_: Any,
) -> Path:  # fmt: skip
    """The grid of pictures, or the phase diagram."""
    import numpy as np

    from lisse.maths.diffeomorphism import Diffeomorphism, phase_diagram
    from lisse.reporting import save_figure
    from lisse.reporting.deformation import deformation_grid, phase_figure

    size = (int(picture.shape[1]), int(picture.shape[2]))
    with arguments(ctx), warnings.catch_warnings():
        for value in cut:
            Diffeomorphism(size, value, modes=modes)  # warns of one above the pixels, here once
        warnings.filterwarnings("ignore", message="Diffeomorphism: cut ")
        if phase:
            cuts = sorted(cut) or _visible(picture, (2, 3, 4, 5, 7, 10, 15, 20, 30))
            temperatures = np.geomspace(1e-7, 1e-1, 13).tolist()
            figure = phase_figure(phase_diagram(size, cuts, temperatures, modes=modes, seed=seed))
        else:
            cuts = cut or _visible(picture, (3, 5, 10, 15, 30))
            options = {"interpolation": interpolation, "modes": modes, "seed": seed}
            figure = deformation_grid(picture, cuts=cuts, temperatures=sorted(temperature) or None, **options)
        return save_figure(figure, out)


def _visible(picture: Tensor, cuts: tuple[float, ...]) -> list[float]:
    """The cut-offs that the picture's pixels can show, and the first two at least: a figure compares."""
    side = min(picture.shape[1:])
    return [cut for index, cut in enumerate(cuts) if index < 2 or cut <= side]


def _single(
    ctx: click.Context, picture: Tensor, out: Path, *, cut: Any, delta: Any, temperature: Any, seed: int, modes: Any,
    interpolation: Any, animate: bool, frames: int, **_: Any,
) -> Path:  # fmt: skip
    """One picture, or one that moves."""
    import torch

    from lisse.maths.diffeomorphism import Diffeomorphism, deform, warn_if_folding
    from lisse.maths.diffeomorphism.modes import normals

    with arguments(ctx):
        ensemble = Diffeomorphism((picture.shape[1], picture.shape[2]), *(cut or (3.0,)), modes=modes)
        heat = temperature[0] if temperature else None if delta is None else float(ensemble.temperature(delta))
        if animate:
            from lisse.reporting.deformation import growing_pictures, save_animation

            if heat is not None:
                ensemble.delta(heat)  # complains about a temperature that is none
                warn_if_folding("lisse deform", ensemble, heat)
            options = {"frames": frames, "interpolation": interpolation, "seed": seed}
            return save_animation(growing_pictures(picture, ensemble, largest=heat, **options), out)
        heat = ensemble.temperature_range()[1] / 4 if heat is None else heat
        # As ensemble.sample(1, heat), but the warning about folding is this command's own.
        count = ensemble.mode_count
        draws = normals(1, 2 * count, torch.Generator().manual_seed(seed)).reshape(1, 2, count)
        field = ensemble.whitened_field(draws, heat)
    warn_if_folding("lisse deform", ensemble, heat)
    saved = _save(ctx, deform(picture[None], field, interpolation=interpolation)[0], out)
    _say(ensemble, heat, bool(field.bijective()))
    return saved


def _say(ensemble: Diffeomorphism, heat: float, bijective: bool) -> None:
    low, high = ensemble.temperature_range()
    print(f"c = {ensemble.cut:g}, T = {heat:.4g}, δ = {float(ensemble.delta(heat)):.4g} px at the centre (RMS),")
    print(f"{float(ensemble.delta(heat, at='average')):.4g} px over the picture. This field", end=" ")
    print("is a diffeomorphism." if bijective else "folds: it is no diffeomorphism.")
    print(f"Fields matter from T = {low:.3g} (δ = 0.5 px); half of them are bijective at {high:.3g}.")


def _save(ctx: click.Context, image: Tensor, path: Path) -> Path:
    from PIL import Image

    from lisse.profile_file import writing

    Image.init()
    kind = Image.EXTENSION.get(path.suffix.lower())
    if kind not in ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM"):
        raise click.UsageError(f"--out must end in .png, .jpg, .webp, .bmp, .tif or .gif, got {str(path)!r}", ctx)
    pixels = image.permute(1, 2, 0).numpy()
    grey = (pixels == pixels[..., :1]).all()
    picture = Image.fromarray(pixels[..., 0] if grey else pixels)
    with writing(path) as file:
        picture.save(file, format=kind, **({"quality": 95} if kind in ("JPEG", "WEBP") else {}))
    return path
