"""``lisse figure NAME PROFILE… -o FILE``: a chart or a quantity over depth, or of trainings against time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lisse.cli.files import load_profile
from lisse.cli.outcome import FileTrouble, arguments

if TYPE_CHECKING:
    from lisse.profile import Value
    from lisse.reporting.curves import Time, TimeScale


@click.command()
@click.argument("name")
@click.argument("profiles", nargs=-1, required=True, type=click.Path(), metavar="PROFILE...")
@click.option("-o", "--out", required=True, type=click.Path(dir_okay=False), help="Where to: .png, .svg or .pdf.")
@click.option("--where", multiple=True, metavar="KEY=VALUE", help="Only rows at this coordinate; may be repeated.")
@click.option("--quantity", "timed", metavar="NAME", help="With `time`: what to draw; without it, everything.")
@click.option("--layers", multiple=True, metavar="GLOB", help="With `time`: only these layers; may be repeated.")
@click.option("--heatmap", is_flag=True, help="With `time`: a map, layers upwards and time to the right.")
@click.option("--steps", is_flag=True, help="With `time`: against steps and not epochs.")
@click.option("--log-time", is_flag=True, help="With `time`: on a logarithmic axis.")
@click.option("--image", metavar="FILE", help="With `filmstrip`: the image to paint.")
@click.option("--seed", type=int, default=0, help="With `filmstrip`: of the mask.  [default: 0]")
@click.option("--mask-ratio", type=float, help="With `filmstrip`: share of hidden patches.  [default: the model's]")
@click.pass_context
def command(
    ctx: click.Context,
    name: str,
    profiles: tuple[str, ...],
    out: str,
    where: tuple[str, ...],
    timed: str | None,
    layers: tuple[str, ...],
    heatmap: bool,
    steps: bool,
    log_time: bool,
    image: str | None,
    seed: int,
    mask_ratio: float | None,
) -> None:
    """Draw NAME of the profiles, a line per model, with intervals.

    NAME is a chart that an instrument declares (such as its own name), or a quantity, which is drawn over depth; a
    wrong one lists all that the profiles have. With the word `overview`: every quantity, as small multiples. With the
    word `time` and the folders of trainings that were watched: against training time, a line per layer, and a colour
    per training if there are several. With `filmstrip`, a masked autoencoder in place of the profiles and --image:
    what its decoder paints, layer by layer.
    """
    from lisse.reporting import named_figure, save_figure

    figure: Any
    coordinates = dict(_coordinate(ctx, text) for text in where)
    if name != "filmstrip" and (image is not None or mask_ratio is not None):
        raise click.UsageError("--image and --mask-ratio go with `filmstrip`", ctx)
    if name == "filmstrip":
        from lisse.cli.filmstrip import filmstrip

        if len(profiles) != 1 or coordinates:
            raise click.UsageError("`filmstrip` takes one model, without --where", ctx)
        figure = filmstrip(ctx, profiles[0], image, seed, mask_ratio)
    elif name == "time" and any(Path(path).is_dir() for path in profiles):
        figure = _over_time(ctx, profiles, timed, coordinates, layers, heatmap, steps, log_time)
    else:
        if timed or layers or heatmap or steps or log_time:
            raise click.UsageError(
                "--quantity, --layers, --heatmap, --steps and --log-time go with `time` and the folder of a training",
                ctx,
            )
        with arguments(ctx):
            figure = named_figure([load_profile(path) for path in profiles], name, where=coordinates)
    with arguments(ctx):
        saved = save_figure(figure, Path(out))
    print(f"Saved {saved}", file=sys.stderr)


def _over_time(
    ctx: click.Context,
    folders: tuple[str, ...],
    quantity: str | None,
    where: dict[str, Value],
    layers: tuple[str, ...],
    heatmap: bool,
    steps: bool,
    log_time: bool,
) -> Any:
    from lisse.reporting import time_figure, time_heatmap, time_overview_figure
    from lisse.run import load_profiles

    try:
        trainings = [load_profiles(folder) for folder in folders]
    except ValueError as error:
        raise FileTrouble(str(error)) from error
    if quantity is None and (len(trainings) > 1 or where or heatmap):
        profiles = [profile for training in trainings for profile in training.values()]
        names = dict.fromkeys(name for profile in profiles for name in profile.quantities)
        raise click.UsageError(
            f"several trainings, --where and --heatmap go with --quantity; there are {', '.join(names)}", ctx
        )
    time: Time | None = "step" if steps else None
    scale: TimeScale = "log" if log_time else "linear"
    with arguments(ctx):
        if quantity is None:
            return time_overview_figure(trainings[0], layers=layers or None, time=time, scale=scale)
        if heatmap:
            if len(trainings) > 1 or log_time:
                raise click.UsageError("--heatmap draws one training, on a linear axis", ctx)
            return time_heatmap(trainings[0], quantity, where=where or None, layers=layers or None, time=time)
        labels = [Path(folder).resolve().name for folder in folders]
        labels = labels if len(set(labels)) == len(labels) else list(folders)
        drawn = dict(zip(labels, trainings, strict=True)) if len(trainings) > 1 else trainings[0]
        return time_figure(drawn, quantity, where=where or None, layers=layers or None, time=time, scale=scale)


def _coordinate(ctx: click.Context, text: str) -> tuple[str, Value]:
    from lisse.data.sources import guessed_value

    key, sign, value = text.partition("=")
    if not key or not sign:
        raise click.UsageError(f"--where takes KEY=VALUE, got {text!r}", ctx)
    return key, guessed_value(value)
