"""``lisse deform IMAGE``: a picture under a random smooth deformation, a grid of them, or an animation."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lisse.cli.outcome import FileTrouble, arguments

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
def command(
    ctx: click.Context,
    image: str,
    out: str | None,
    cut: tuple[float, ...],
    delta: float | None,
    temperature: tuple[float, ...],
    seed: int,
    interpolation: str,
    modes: str,
    size: int | None,
    grid: bool,
    phase: bool,
    animate: bool,
    frames: int,
) -> None:
    """Deform IMAGE by a maximum-entropy random diffeomorphism.

    Without --delta and --temperature, the field is half as large as the one that folds with probability one half.
    """
    if grid + phase + animate > 1:
        raise click.UsageError("--grid, --phase and --animate exclude each other", ctx)
    many = grid or phase
    if delta is not None and many:
        kind, instead = ("--grid", "give --temperature") if grid else ("--phase", "it shows every displacement")
        raise click.UsageError(f"--delta goes with one picture, not with {kind}: {instead}", ctx)
    if delta is not None and temperature:
        raise click.UsageError("--delta goes with one picture and without --temperature", ctx)
    if phase and temperature:
        raise click.UsageError("--phase draws all temperatures: leave --temperature out", ctx)
    if not many and (len(cut) > 1 or len(temperature) > 1):
        raise click.UsageError("several of --cut or --temperature go with --grid", ctx)
    picture = _read(image, size)
    if out is None:
        kind = "grid.png" if grid else "phase.png" if phase else "growing.gif" if animate else "deformed.png"
        out = f"{Path(image).stem}-{kind}"
    if many:
        saved = _figure(ctx, picture, out, cut, temperature, interpolation, modes, seed, phase)
    else:
        saved = _single(
            ctx, picture, out, (cut or (3.0,))[0], delta, temperature, seed, interpolation, modes, animate, frames
        )
    print(f"Saved {saved}", file=sys.stderr)


def _read(path: str, size: int | None) -> Tensor:
    import torch

    from lisse.data.images import read_image

    if not Path(path).exists():
        raise FileTrouble(f"No such file or directory: {path}")
    try:
        return torch.from_numpy(read_image(Path(path), size=size).copy())
    except ValueError as error:
        raise FileTrouble(str(error)) from error


def _figure(
    ctx: click.Context,
    picture: Tensor,
    out: str,
    cuts: tuple[float, ...],
    temperatures: tuple[float, ...],
    interpolation: str,
    modes: str,
    seed: int,
    phase: bool,
) -> Path:
    import numpy as np

    from lisse.maths.diffeomorphism import Diffeomorphism, phase_diagram
    from lisse.reporting import save_figure
    from lisse.reporting.deformation import deformation_grid, phase_figure

    size = (int(picture.shape[1]), int(picture.shape[2]))
    with arguments(ctx), warnings.catch_warnings():
        for cut in cuts:
            Diffeomorphism(size, cut, modes=modes)  # type: ignore[arg-type]  # warns of one above the pixels, here once
        warnings.filterwarnings("ignore", message="Diffeomorphism: cut ")
        if phase:
            chosen = sorted(cuts) or _shown(picture, (2, 3, 4, 5, 7, 10, 15, 20, 30))
            heat = np.geomspace(1e-7, 1e-1, 13).tolist()
            figure = phase_figure(phase_diagram(size, chosen, heat, modes=modes, seed=seed))  # type: ignore[arg-type]
        else:
            figure = deformation_grid(
                picture,
                cuts=cuts or _shown(picture, (3, 5, 10, 15, 30)),
                temperatures=sorted(temperatures) or None,
                interpolation=interpolation,  # type: ignore[arg-type]
                modes=modes,  # type: ignore[arg-type]
                seed=seed,
            )
        return save_figure(figure, Path(out))


def _shown(picture: Tensor, cuts: tuple[float, ...]) -> list[float]:
    """The cut-offs that the picture's pixels can show, and the first two at least: a figure compares."""
    side = min(picture.shape[1:])
    return [cut for place, cut in enumerate(cuts) if place < 2 or cut <= side]


def _single(
    ctx: click.Context,
    picture: Tensor,
    out: str,
    cut: float,
    delta: float | None,
    temperature: tuple[float, ...],
    seed: int,
    interpolation: str,
    modes: str,
    animate: bool,
    frames: int,
) -> Path:
    import torch

    from lisse.maths.diffeomorphism import Diffeomorphism, deform, warn_if_folding
    from lisse.maths.diffeomorphism.modes import normals

    with arguments(ctx):
        ensemble = Diffeomorphism((picture.shape[1], picture.shape[2]), cut, modes=modes)  # type: ignore[arg-type]
        given = temperature[0] if temperature else None if delta is None else float(ensemble.temperature(delta))
        if animate:
            from lisse.reporting.deformation import growing_pictures, save_animation

            if given is not None:
                ensemble.delta(given)  # complains about a temperature that is none
                warn_if_folding("lisse deform", ensemble, given)
            shown = growing_pictures(
                picture, ensemble, largest=given, frames=frames, interpolation=interpolation, seed=seed  # type: ignore[arg-type]
            )  # fmt: skip
            return save_animation(shown, Path(out))
        heat = ensemble.temperature_range()[1] / 4 if given is None else given
        # As ensemble.sample(1, heat), but the warning about folding is this command's own.
        count = ensemble.mode_count
        drawn = normals(1, 2 * count, torch.Generator().manual_seed(seed)).reshape(1, 2, count)
        field = ensemble.whitened_field(drawn, heat)
    warn_if_folding("lisse deform", ensemble, heat)
    moved = deform(picture[None], field, interpolation=interpolation)[0]  # type: ignore[arg-type]
    saved = _save(ctx, moved, out)
    _say(ensemble, heat, bool(field.bijective()))
    return saved


def _say(ensemble: Diffeomorphism, heat: float, bijective: bool) -> None:
    low, high = ensemble.temperature_range()
    print(f"c = {ensemble.cut:g}, T = {heat:.4g}, δ = {float(ensemble.delta(heat)):.4g} px at the centre (RMS),")
    print(f"{float(ensemble.delta(heat, at='average')):.4g} px over the picture. This field", end=" ")
    print("is a diffeomorphism." if bijective else "folds: it is no diffeomorphism.")
    print(f"Fields matter from T = {low:.3g} (δ = 0.5 px); half of them are bijective at {high:.3g}.")


def _save(ctx: click.Context, image: Tensor, out: str) -> Path:
    from PIL import Image

    from lisse.profile_file import writing

    path = Path(out)
    Image.init()
    kind = Image.EXTENSION.get(path.suffix.lower())
    if kind not in ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM"):
        raise click.UsageError(f"--out must end in .png, .jpg, .webp, .bmp, .tif or .gif, got {out!r}", ctx)
    pixels = image.permute(1, 2, 0).numpy()
    grey = (pixels == pixels[..., :1]).all()
    picture = Image.fromarray(pixels[..., 0] if grey else pixels)
    with writing(path) as file:
        picture.save(file, format=kind, **({"quality": 95} if kind in ("JPEG", "WEBP") else {}))
    return path
