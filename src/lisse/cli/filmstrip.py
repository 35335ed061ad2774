"""``lisse figure filmstrip MODEL --image FILE -o FILE``: what a masked autoencoder's decoder paints, layer by layer."""

from __future__ import annotations

from typing import Any

import click

from lisse.cli.files import load_picture
from lisse.cli.outcome import arguments


def filmstrip(ctx: click.Context, model: str, image: str | None, seed: int, mask_ratio: float | None) -> Any:
    """The figure; prints each layer's error."""
    import lisse
    from lisse.cli.table import print_table
    from lisse.networks.decoder_frames import decoder_frames
    from lisse.networks.masked import masked_network
    from lisse.reporting.filmstrip import filmstrip_figure

    if image is None:
        raise click.UsageError("`filmstrip` goes with --image FILE", ctx)
    with arguments(ctx):
        loaded = lisse.load_model(model)
        network = masked_network(loaded)
        if network is None:
            raise click.UsageError(
                f"`filmstrip` needs a masked autoencoder, such as zoo:mae_small?weights=FILE or hf:FOLDER, got {model}",
                ctx,
            )
        picture, cut = _picture(image, network.in_channels, network.size)
        film = decoder_frames(loaded, picture, mask_ratio=mask_ratio, seed=seed)
    layers = len(film.frames) - 1
    names = ["decoder input", *(f"layer {index} of {layers}" for index in range(1, layers + 1))]
    lines = [[name, f"{error:.4f}"] for name, error in zip(names, film.errors.tolist(), strict=True)]
    print_table(["", "error (RMS of hidden pixels)"], lines)
    if cut:
        print(f"\n{cut}")
    if model.startswith("zoo:") and "weights=" not in model:
        print("\nThis network is not trained: its weights are random, and so is what it paints. Write ?weights=FILE.")
    if film.normalised_pixels:
        print(
            "\nThis network was trained on normalised pixels (its config says so): each patch is shown with the mean "
            "and contrast of the true image, which no network knew."
        )
    original, visible, frames = (part.cpu().numpy() for part in (film.image, film.visible, film.frames))
    return filmstrip_figure(
        original, visible, frames, film.errors.tolist(), hidden=film.hidden.cpu().numpy(), side=film.side,
        normalised_pixels=film.normalised_pixels, name=str(getattr(getattr(loaded, "lisse", None), "name", model)),
    )  # fmt: skip


def _picture(path: str, channels: int, size: int) -> tuple[Any, str]:
    """An image file [c, size, size] in [0, 1]: the middle square, resized; and a sentence on what became of it."""
    height, width = load_picture(path, grey=channels == 1).shape[1:]
    changes = ["cut to its middle square"] * (height != width)
    changes += [f"resized to {size} × {size}"] * (min(height, width) != size)
    sentence = f"{path} has {width} × {height} pixels: it was {' and '.join(changes)}." if changes else ""
    return load_picture(path, size=size, grey=channels == 1).float() / 255, sentence
