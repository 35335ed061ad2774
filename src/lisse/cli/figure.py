"""``lisse figure QUANTITY PROFILE… -o FILE``: a quantity over depth, or of trainings against time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lisse.cli.outcome import FileTrouble, arguments

if TYPE_CHECKING:
    from lisse.profile import Profile, Value
    from lisse.reporting.curves import Time, TimeScale


@click.command()
@click.argument("quantity")
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
    quantity: str,
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
    """Draw QUANTITY of the profiles over depth: a line per model, with intervals.

    With the word `overview` as QUANTITY: every quantity, as small multiples. With `topology`: how the shape of the data
    changes over normalised depth; with `diagrams` or `barcodes`: the shapes of one profile, layer by layer. With
    `stability`: D, G and R, the answers to smooth deformations and to noise. With
    `robustness`: accuracy against attacks, noise and deformations; with `corruptions`: by corruption. With the
    word `time` and the folders of trainings that were watched: against training time, a line per layer, and a colour
    per training if there are several. With `propagation`: what becomes of tokens along depth. With `filmstrip`, a
    masked autoencoder in place of the profiles and --image: what its decoder paints, layer by layer.
    """
    from lisse.reporting import depth_figure, overview_figure, save_figure

    figure: Any
    chosen = dict(_coordinate(ctx, text) for text in where)
    if quantity != "filmstrip" and (image is not None or mask_ratio is not None):
        raise click.UsageError("--image and --mask-ratio go with `filmstrip`", ctx)
    if quantity == "filmstrip":
        from lisse.cli.filmstrip import filmstrip

        if len(profiles) != 1 or chosen:
            raise click.UsageError("`filmstrip` takes one model, without --where", ctx)
        figure = filmstrip(ctx, profiles[0], image, seed, mask_ratio)
    elif quantity == "time" and any(Path(path).is_dir() for path in profiles):
        figure = _over_time(ctx, profiles, timed, chosen, layers, heatmap, steps, log_time)
    else:
        if timed or layers or heatmap or steps or log_time:
            raise click.UsageError(
                "--quantity, --layers, --heatmap, --steps and --log-time go with `time` and the folder of a training",
                ctx,
            )
        loaded = [load(path) for path in profiles]
        with arguments(ctx):
            if quantity == "overview" and all("overview" not in profile.quantities for profile in loaded):
                if chosen:
                    raise click.UsageError("--where goes with a quantity, not with the overview", ctx)
                figure = overview_figure(loaded)
            elif quantity in ("topology", "diagrams", "barcodes"):
                figure = _shape(ctx, quantity, loaded, chosen)
            elif quantity in ("contraction", "sentences"):
                figure = _attention(ctx, quantity, loaded, chosen)
            elif quantity in ("isometry", "histograms"):
                figure = _distances(ctx, quantity, loaded, chosen)
            elif quantity == "propagation":
                from lisse.reporting.propagation import propagation_figure

                if chosen:
                    raise click.UsageError("`propagation` goes without --where", ctx)
                figure = propagation_figure(loaded)
            elif quantity == "stability":
                figure = _stability(ctx, loaded, chosen)
            elif quantity in ("robustness", "corruptions"):
                figure = _robust(ctx, quantity, loaded, chosen)
            else:
                figure = depth_figure(loaded, quantity, where=chosen or None)
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
        known = dict.fromkeys(name for training in trainings for each in training.values() for name in each.quantities)
        raise click.UsageError(
            f"several trainings, --where and --heatmap go with --quantity; there are {', '.join(known)}", ctx
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
        names = [Path(folder).resolve().name for folder in folders]
        names = names if len(set(names)) == len(names) else list(folders)
        given = dict(zip(names, trainings, strict=True)) if len(trainings) > 1 else trainings[0]
        return time_figure(given, quantity, where=where or None, layers=layers or None, time=time, scale=scale)


def _shape(ctx: click.Context, what: str, profiles: list[Profile], where: dict[str, Value]) -> Any:
    from lisse.reporting.topology import barcode_figure, diagrams_figure, topology_figure

    if what == "topology":
        if set(where) - {"dim"}:
            raise click.UsageError("with `topology`, --where takes dim=0, dim=1, dim=2 or dim=all", ctx)
        return topology_figure(profiles, dim=str(where["dim"]) if "dim" in where else None)
    if where or len(profiles) > 1:
        raise click.UsageError(f"`{what}` draws one profile, without --where", ctx)
    return diagrams_figure(profiles[0]) if what == "diagrams" else barcode_figure(profiles[0])


def _stability(ctx: click.Context, profiles: list[Profile], where: dict[str, Value]) -> Any:
    from lisse.reporting.stability import stability_figure

    settings = {key: float(value) for key, value in where.items() if not isinstance(value, (bool, str))}
    if len(settings) < len(where) or set(where) - {"cut", "delta"}:
        raise click.UsageError("with `stability`, --where takes cut=NUMBER and delta=NUMBER", ctx)
    return stability_figure(profiles, cut=settings.get("cut"), delta=settings.get("delta"))


def _robust(ctx: click.Context, what: str, profiles: list[Profile], where: dict[str, Value]) -> Any:
    from lisse.reporting.robustness import corruption_figure, robustness_figure

    if where:
        raise click.UsageError(f"`{what}` goes without --where", ctx)
    return robustness_figure(profiles) if what == "robustness" else corruption_figure(profiles)


def _distances(ctx: click.Context, what: str, profiles: list[Profile], where: dict[str, Value]) -> Any:
    from lisse.reporting.isometry import histogram_figure, isometry_figure

    if what == "isometry":
        if where:
            raise click.UsageError("`isometry` draws everything, without --where", ctx)
        return isometry_figure(profiles)
    if set(where) - {"layer", "log"}:
        raise click.UsageError("with `histograms`, --where takes layer=NAME and log=true", ctx)
    layer = where.get("layer")
    return histogram_figure(profiles, layer=None if layer is None else str(layer), log=bool(where.get("log", False)))


def _attention(ctx: click.Context, what: str, profiles: list[Profile], where: dict[str, Value]) -> Any:
    from lisse.reporting.contraction import contraction_figure, sentences_figure

    if what == "contraction":
        if where:
            raise click.UsageError("`contraction` goes without --where", ctx)
        return contraction_figure(profiles)
    pair = where.get("pair", 0)
    if len(profiles) > 1 or set(where) - {"pair"} or not isinstance(pair, int):
        raise click.UsageError("`sentences` draws one profile; --where takes pair=0, pair=1, …", ctx)
    return sentences_figure(profiles[0], pair=pair)


def load(path: str) -> Profile:
    """A profile from a file; whatever is wrong with it is trouble with a file."""
    from lisse.profile import Profile

    try:
        return Profile.load(path)
    except ValueError as error:
        raise FileTrouble(str(error)) from error


def _coordinate(ctx: click.Context, text: str) -> tuple[str, Value]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise click.UsageError(f"--where takes KEY=VALUE, got {text!r}", ctx)
    if value.lower() in ("true", "false"):
        return key, value.lower() == "true"
    for kind in (int, float):
        try:
            return key, kind(value)
        except ValueError:
            continue
    return key, value
