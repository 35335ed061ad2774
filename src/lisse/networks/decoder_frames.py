"""Every layer of a masked autoencoder's decoder as an image ([cao2022] fig. 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from lisse.maths.given import floating
from lisse.networks.masked import in_pixels, masked_network, masks, normalised
from lisse.networks.zoo.mae import PIXEL_EPS
from lisse.taps import still


@dataclass(frozen=True)
class Film:
    """The frames of one image, all [c, h, w] in the units of the image that was given, and their errors.

    ``image``, ``visible`` (hidden patches are NaN), ``frames`` [1 + L, c, h, w]: the decoder's input (encoder output
    and mask tokens), then the output of each of its L blocks, each through the decoder's norm and its last layer;
    visible patches are those that the network paints, not the image's own. ``errors`` [1 + L] are root mean squares
    over hidden pixels, ``hidden`` [p] says which patches those are, ``side`` how many there are in a row. With
    ``normalised_pixels`` the network was trained on patches less their mean over their deviation: each patch is then
    given the true mean and deviation of its place, which no network knew. ``logits`` [p, patch²·c] are the model's own.
    """

    image: Tensor
    visible: Tensor
    frames: Tensor
    errors: Tensor
    hidden: Tensor
    side: int
    normalised_pixels: bool
    logits: Tensor


def decoder_frames(
    model: nn.Module, image: Tensor, *, mask_ratio: float | None = None, noise: Tensor | None = None, seed: int = 0
) -> Film:
    """The film of ``image`` [c, h, w], floats in the units that ``model`` takes ([0, 1] for models of ``load_model``).

    ``noise`` [p] chooses the mask (the largest are hidden); without it, it is drawn from ``seed``. Any masked
    autoencoder: the zoo's, or Hugging Face's ``ViTMAEForPreTraining``, whose config says whether pixels are normalised.
    """
    network = masked_network(model)
    if network is None:
        raise TypeError(
            f"decoder_frames: model must be a masked autoencoder, got {type(model).__name__}. Use zoo:mae_small, or "
            "Hugging Face's ViTMAEForPreTraining."
        )
    size, patches = (network.in_channels, network.size, network.size), network.side**2
    if not isinstance(image, (Tensor, np.ndarray)) or not torch.as_tensor(image).is_floating_point():
        raise TypeError(
            "decoder_frames: image must be a tensor of floats in the units that the model takes, got "
            f"{getattr(image, 'dtype', type(image).__name__)}. Divide pixels of 0 … 255 by 255."
        )
    image = floating("decoder_frames", "image", image)
    if tuple(image.shape) != size:
        raise ValueError(
            f"decoder_frames: image must have shape {list(size)}, which the network takes, got {list(image.shape)}. "
            "Resize it."
        )
    count = network.visible_count(mask_ratio)
    if noise is None:
        ratio = network.mask_ratio if mask_ratio is None else mask_ratio
        noise = masks(1, patches, ratio=ratio, generator=torch.Generator().manual_seed(seed))[0]
    noise = floating("decoder_frames", "noise", noise)
    if tuple(noise.shape) != (patches,):
        raise ValueError(
            f"decoder_frames: noise must have shape [{patches}], a number per patch, got {list(noise.shape)}. "
            "torch.rand makes it."
        )
    weight = next(network.parameters())
    pictures = image.to(weight)[None]
    normal = normalised(model, pictures)
    with still(network):
        order = noise.to(weight.device)[None].argsort(dim=1)
        restore = order.argsort(dim=1)
        tokens = network.filled(network.encode(normal, order[:, :count]), restore)
        painted = [network.painted(tokens)]
        for block in network.decoder_blocks:
            tokens = block(tokens)
            painted.append(network.painted(tokens))
    hidden = (restore >= count)[0]
    pixels = torch.cat(painted)
    if network.norm_pix:
        truth = network.patchify(normal)
        pixels = pixels * (truth.var(-1, keepdim=True) + PIXEL_EPS).sqrt() + truth.mean(-1, keepdim=True)
    frames = in_pixels(model, network.unpatchify(pixels))
    differences = (network.patchify(frames) - network.patchify(pictures))[:, hidden]
    visible = network.patchify(pictures).masked_fill(hidden[None, :, None], torch.nan)
    errors = differences.square().mean((1, 2)).sqrt()
    return Film(
        pictures[0], network.unpatchify(visible)[0], frames, errors, hidden, network.side, network.norm_pix,
        painted[-1][0],
    )  # fmt: skip
