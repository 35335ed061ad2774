"""Inside a trained autoencoder: Theorem 5.1 and (26) over the grid of patches, Figure 3's errors, non-local means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lisse.instruments.propagation.masked import interpolation, resized, with_side
from lisse.instruments.propagation.numbers import key
from lisse.maths.intervals import Interval, bootstrap
from lisse.maths.power_law import power_law
from lisse.maths.variation import propagated
from lisse.networks.decoder_frames import decoder_frames
from lisse.networks.masked import MaskedAutoencoder, masked_network, normalised
from lisse_experiments.form import Claim, Finding, above
from lisse_experiments.masked_autoencoders.nonlocal_means import pixel_patches
from lisse_experiments.masked_autoencoders.reconstruction import errors, hidden, nearest_filled, noise_for, painted

BANDWIDTHS = (0.05, 0.1, 0.2, 0.4)  # grey values, of which the best on training images is taken
PASSES = 3


@dataclass(frozen=True)
class Grids:
    """Over the ``sides`` of the grid: n·ρ of every block ``[images, blocks, sides]``, C of (26) ``[images, sides]``.

    ``blocks`` are the encoder's with every patch in view, then the decoder's. ``frames`` ``[images, 1 + L]`` are the
    root mean squares over hidden pixels of Figure 3, on the network's own grid; ``nonlocal_means`` and ``model``
    ``[images]`` mean squares of the two ways of painting the same pixels.
    """

    sides: tuple[int, ...]
    blocks: tuple[str, ...]
    scaled: Tensor
    constants: Tensor
    frames: Tensor
    nonlocal_means: Tensor
    model: Tensor


def on_grids(model: nn.Module, train: Tensor, test: Tensor, sides: Sequence[int], *, few: int, seed: int) -> Grids:
    """Images are floats in [0, 1]; the first ``few`` of ``test`` are taken to other sizes, with the same weights."""
    network = masked_network(model)
    if network is None:
        raise TypeError(f"on_grids: model must be a masked autoencoder, got {type(model).__name__}. Load one.")
    scaled, constants = [], []
    names: tuple[str, ...] = ()
    with torch.no_grad():
        for side in sides:
            larger = with_side(network, side)
            images = normalised(model, resized(test[:few], larger.size))
            noise = noise_for(len(images), larger, seed)
            steps = {**_encoder(larger, images), **_decoder(larger, images, noise)}
            names = tuple(steps)
            scaled.append(torch.stack(list(steps.values()), 1))
            logits = larger(images, noise)["logits"]
            covered = hidden(noise, larger.mask_ratio)
            constants.append(interpolation(larger, logits, images, covered)[key("interpolation_constant")])
        noise = noise_for(len(test), network, seed)
        frames = [decoder_frames(model, image, noise=row).errors for image, row in zip(test, noise, strict=True)]
        covered = hidden(noise, network.mask_ratio)
        patches = network.patchify(test)
        means = nonlocal_filled(network, patches, covered, _bandwidth(network, train, seed))
    return Grids(
        tuple(sides), names, torch.stack(scaled, -1), torch.stack(constants, -1), torch.stack(frames).double(),
        errors(means, patches, covered), errors(painted(model, test, noise), patches, covered),
    )  # fmt: skip


def _encoder(network: MaskedAutoencoder, images: Tensor) -> dict[str, Tensor]:
    tokens = network.embedded(images)
    first = (network.cls_token + network.pos_embed[:, :1]).expand(len(tokens), -1, -1)
    return _scaled("encoder", network.blocks, torch.cat((first, tokens), dim=1))


def _decoder(network: MaskedAutoencoder, images: Tensor, noise: Tensor) -> dict[str, Tensor]:
    order = noise.argsort(dim=1)
    tokens = network.filled(network.encode(images, order[:, : network.visible_count()]), order.argsort(dim=1))
    return _scaled("decoder", network.decoder_blocks, tokens)


def _scaled(half: str, blocks: Any, tokens: Tensor) -> dict[str, Tensor]:
    """n·ρ of each block ``[images]``; the class token is no place on the grid."""
    ratios = {}
    for index, block in enumerate(blocks):
        after = block(tokens)
        ratios[f"{half} {index + 1}"] = propagated(tokens[:, 1:].double(), after[:, 1:].double()).scaled
        tokens = after
    return ratios


def nonlocal_filled(network: MaskedAutoencoder, patches: Tensor, covered: Tensor, bandwidth: float) -> Tensor:
    r"""Hidden pixels as means of the visible ones, weighted by how alike their surroundings are ([buades2005]).

    (10) with a kernel that is not learned: :math:`\exp(-\|P_x - P_{x'}\|^2/h^2)` over visible x', where the
    surroundings of what is hidden are those of the last pass, and of the nearest visible patches before the first.
    """
    images = network.unpatchify(nearest_filled(patches, covered, network.side))
    visible_pixels = network.unpatchify((~covered)[..., None].expand_as(patches).to(patches))[:, 0] > 0.5
    filled = []
    for image, visible in zip(images, visible_pixels.flatten(1), strict=True):
        u = image
        for _ in range(PASSES):
            features, colours = pixel_patches(u, 5), u.flatten(1).T
            far = torch.cdist(features[~visible], features[visible]).square()
            means = (-far / bandwidth**2).softmax(-1) @ colours[visible]
            u = colours.clone().index_put_((~visible,), means).T.reshape(image.shape)
        filled.append(u)
    return network.patchify(torch.stack(filled))


def _bandwidth(network: MaskedAutoencoder, train: Tensor, seed: int) -> float:
    """The best of :data:`BANDWIDTHS` on 64 training images."""
    images = train[:64]
    covered, patches = hidden(noise_for(len(images), network, seed + 1), network.mask_ratio), network.patchify(images)
    scores = {h: errors(nonlocal_filled(network, patches, covered, h), patches, covered).mean() for h in BANDWIDTHS}
    return min(scores, key=lambda h: float(scores[h]))


# --- findings and claims --------------------------------------------------------------------------------------------


def grid_findings(by_network: Mapping[str, Grids], labels: Mapping[str, str], seed: int) -> list[Finding]:
    """Slopes in n, Figure 3 layer by layer, and non-local means."""
    numbers = []
    for name, grids in by_network.items():
        label = labels[name]
        slopes = {"constant": _slope(grids, grids.constants, seed)}
        slopes |= {f"n·ρ/{block}": _slope(grids, grids.scaled[:, i], seed) for i, block in enumerate(grids.blocks)}
        for key_, slope in slopes.items():
            kind, _, block = key_.partition("/")
            says = "Q5 slope in n of the constant of (26)" if kind == "constant" else f"Q2 slope in n of n·ρ, {block}"
            where = "q5/constant_slope" if kind == "constant" else f"q2/slope/{block.replace(' ', '')}"
            numbers.append(_finding(f"{where}/{name}", f"{says}, {label}", slope, 0.0, "bounded in n"))
        frames = bootstrap(grids.frames, generator=torch.Generator().manual_seed(seed))
        for layer in range(grids.frames.shape[1]):
            at = "what enters the decoder" if layer == 0 else f"decoder block {layer}"
            part = Interval(frames.value[layer], frames.low[layer], frames.high[layer], frames.n, frames.level)
            numbers.append(_finding(f"figure3/{layer}/{name}", f"Figure 3: error behind {at}, {label}", part))
        both = bootstrap(grids.nonlocal_means, generator=torch.Generator().manual_seed(seed))
        numbers.append(_finding(f"q2/error/nonlocal/{name}", f"Q2 error, non-local means, masks of {label}", both))
    return numbers


def grid_claims(grids: Grids, seed: int) -> list[Claim]:
    """Of one network: what Theorem 5.1, (26) and Figure 3 say over n and over depth."""
    slopes = [_slope(grids, grids.scaled[:, i], seed) for i in range(len(grids.blocks))]
    constant = _slope(grids, grids.constants, seed)
    falls = bootstrap(grids.frames[:, :-1] - grids.frames[:, 1:], generator=torch.Generator().manual_seed(seed))
    steps = [above((float(low), float(high))) for low, high in zip(falls.low, falls.high, strict=True)]
    less = bootstrap(grids.nonlocal_means - grids.model, generator=torch.Generator().manual_seed(seed))
    ends = f"{min(float(s.value) for s in slopes):.2f} to {max(float(s.value) for s in slopes):.2f}"
    return [
        Claim(
            "q2/bounded", "Q2 n·ρ of every block is bounded in n inside the network (slope not above 0)",
            _all(above((0.0, 0.0), (float(s.low), float(s.high))) for s in slopes),
            f"slopes {ends}, over n = {', '.join(map(str, grids.sides))}, images taken to each size",
        ),
        Claim(
            "q5/constant", "Q5 the constant of (26) does not grow with n (slope not above 0)",
            above((0.0, 0.0), (float(constant.low), float(constant.high))),
            f"slope {float(constant.value):.2f} [{float(constant.low):.2f}, {float(constant.high):.2f}]",
        ),
        Claim(
            "figure3", "every decoder block brings the picture nearer, through the last layer (Figure 3)", _all(steps),
            ", ".join(f"{float(value):.4f}" for value in grids.frames.mean(0)),
        ),
        Claim(
            "q2/beats_nonlocal", "the autoencoder paints better than non-local means",
            above((float(less.low), float(less.high))),
            f"by {float(less.value):.4f} [{float(less.low):.4f}, {float(less.high):.4f}] of "
            f"{float(grids.nonlocal_means.mean()):.4f}, n = {less.n}",
            theirs=False,
        ),
    ]  # fmt: skip


def _all(answers: Any) -> bool | None:
    """All hold, one fails, or it is open."""
    verdicts = list(answers)
    return False if False in verdicts else None if None in verdicts else True


def _slope(grids: Grids, values: Tensor, seed: int) -> Interval:
    """Of the logarithm over the sides, image by image ``[images, sides]``, with an interval over images."""
    x = torch.tensor(grids.sides, dtype=torch.float64)
    slopes = torch.stack([power_law(x, row.double()).slope.value for row in values])
    return bootstrap(slopes, generator=torch.Generator().manual_seed(seed))


def _finding(key_: str, says: str, interval: Interval, printed: float | None = None, source: str = "") -> Finding:
    value, low, high = (float(end) for end in (interval.value, interval.low, interval.high))
    return Finding(
        key_, says, value, low, high, interval.n, theirs=printed, source=source, within=0.15 * abs(value) + 0.1
    )
