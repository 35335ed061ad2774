"""Figure 3, painted images beside other ways of painting, and what Propagation saw."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lisse.models import load_model
from lisse.networks.decoder_frames import decoder_frames
from lisse.networks.masked import masked_network
from lisse.profile import Profile
from lisse.reporting.charts import chart_figure
from lisse.reporting.figure import INK, panels, save_figure
from lisse.reporting.filmstrip import filmstrip_figure
from lisse_experiments.masked_autoencoders.networks import FIRST, LABELS, LONG
from lisse_experiments.masked_autoencoders.pretrain import Work
from lisse_experiments.masked_autoencoders.reconstruction import (
    PrincipalComponents,
    hidden,
    mean_filled,
    nearest_filled,
    noise_for,
    painted,
)  # fmt: skip

IMAGES = 4  # images, of every way of painting


def draw(profiles: Mapping[str, Profile], work: Work, results: Mapping[str, Any], out: Path) -> tuple[Path, ...]:
    """All figures of a run."""
    best = next(name for name in (LONG, FIRST) if name in results)
    model = load_model(str(work.out / f"{best}.safetensors"))
    images = _floats(work.test.inputs)[:IMAGES]
    film = decoder_frames(model, images[0], seed=work.seed)
    image, visible, frames = (part.numpy() for part in (film.image, film.visible, film.frames))
    strip = filmstrip_figure(
        image, visible, frames, film.errors.tolist(), hidden=film.hidden.numpy(), side=film.side,
        normalised_pixels=film.normalised_pixels, name=LABELS[best][0],
    )  # fmt: skip
    drawn = [profiles[name] for name in ("mae", LONG, "random", "vit", "mae_rbf") if name in profiles]
    return (
        save_figure(strip, out / "figure-3.png"),
        save_figure(_ways(model, work, images), out / "painted.png"),
        save_figure(chart_figure(drawn, "propagation"), out / "propagation.png"),
    )


def _ways(model: torch.nn.Module, work: Work, images: torch.Tensor) -> Any:
    """A row per image: the image, what is seen, and each way of painting what is not."""
    network: Any = masked_network(model)
    noise = noise_for(len(images), network, work.seed)
    mask = hidden(noise, network.mask_ratio)
    patches = network.patchify(images)
    train = network.patchify(_floats(work.data.inputs)[:5000])
    other = hidden(noise_for(len(train), network, work.seed + 1), network.mask_ratio)
    ways = {
        "image": patches,
        "seen": patches.masked_fill(mask[..., None], 0.85),
        "mean": mean_filled(patches, mask, network.in_channels),
        "nearest": nearest_filled(patches, mask, network.side),
        "PCA": PrincipalComponents(train, other).filled(patches, mask),
        "MAE": painted(model, images, noise),
    }
    figure, axes = panels(
        len(images) * len(ways), columns=len(ways), width=1.3, height=1.35, title="Ways to paint hidden patches",
        says="Visible patches are the image's own in every column; grey is what nobody sees.", foot=0.05,
    )  # fmt: skip
    for index, ax in enumerate(axes):
        name = list(ways)[index % len(ways)]
        row = index // len(ways)
        pixels = torch.where(mask[..., None] | torch.tensor(name == "image"), ways[name], patches)
        picture = network.unpatchify(pixels.to(patches))[row].clamp(0, 1).permute(1, 2, 0).numpy()
        ax.imshow(picture.repeat(3, -1) if picture.shape[-1] == 1 else picture, interpolation="nearest")
        ax.set_xticks([])
        ax.set_yticks([])
        ax.grid(False)
        for spine in ax.spines.values():
            spine.set_visible(False)
        if row == 0:
            ax.set_title(name, size=9, color=INK)
    return figure


def _floats(inputs: Any) -> torch.Tensor:
    images: torch.Tensor = inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs.float()
    return images
