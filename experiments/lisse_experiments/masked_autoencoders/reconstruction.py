"""Painting hidden patches: by a masked autoencoder, and by what is not learned, or learned by counting pairs of pixels.

Images are [0, 1]; an error is the mean square over the hidden pixels of one image, so that every way is judged on the
same pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lisse.networks.masked import MaskedAutoencoder, in_pixels, masked_network, masks, normalised
from lisse.networks.zoo.mae import PIXEL_EPS, visible_patches

COMPONENTS = (2, 4, 8, 16, 32, 64, 128, 256)


def noise_for(count: int, network: MaskedAutoencoder, seed: int) -> Tensor:
    """One mask per image, the same for every way of painting."""
    generator = torch.Generator().manual_seed(seed)
    return masks(count, network.side**2, ratio=network.mask_ratio, generator=generator)


def hidden(noise: Tensor, ratio: float) -> Tensor:
    """Which patches [n, p] a network hides for ``noise`` at ``ratio``: true where hidden."""
    p = noise.shape[1]
    return noise.argsort(dim=1).argsort(dim=1) >= visible_patches("hidden", p, ratio)


def painted(model: torch.nn.Module, images: Tensor, noise: Tensor, *, batch: int = 500) -> Tensor:
    """A model's patches [n, p, patch²·c] in [0, 1] units; images [n, c, h, w] in [0, 1].

    A network trained on normalised patches is given each patch's true mean and deviation, as [he2022] draws it.
    """
    network: Any = masked_network(model)
    parts = []
    with torch.no_grad():
        for start in range(0, len(images), batch):
            part = images[start : start + batch]
            normal = normalised(model, part)
            patches = network(normal, noise[start : start + batch].to(part.device))["logits"]
            if network.norm_pix:
                truth = network.patchify(normal)
                patches = patches * (truth.var(-1, keepdim=True) + PIXEL_EPS).sqrt() + truth.mean(-1, keepdim=True)
            parts.append(network.patchify(in_pixels(model, network.unpatchify(patches))))
    return torch.cat(parts)


def mean_filled(patches: Tensor, mask: Tensor, channels: int) -> Tensor:
    """Every hidden pixel is the mean of the visible ones of its channel."""
    n, p, d = patches.shape
    pixels = patches.reshape(n, p, d // channels, channels)
    visible = (~mask)[:, :, None, None].to(patches)
    mean = (pixels * visible).sum((1, 2)) / (visible.sum((1, 2)) * (d // channels))
    return mean[:, None, None, :].expand_as(pixels).reshape(n, p, d)


def nearest_filled(patches: Tensor, mask: Tensor, side: int) -> Tensor:
    """Every hidden patch is the nearest visible one on the grid (of several, the first)."""
    at = torch.arange(side * side, device=patches.device)
    positions = torch.stack((at // side, at % side), 1).double()
    distances = torch.cdist(positions, positions, compute_mode="donot_use_mm_for_euclid_dist")
    far = distances[None].masked_fill(mask[:, None, :], torch.inf)
    nearest = far.argmin(-1)
    return patches.gather(1, nearest[..., None].expand_as(patches))


class PrincipalComponents:
    r"""Inpainting by probabilistic principal components ([tipping1999]): the mean of the hidden pixels given the rest.

    Images are :math:`\mu + Pc + \varepsilon`, :math:`c \sim N(0, \Lambda - \sigma^2)`, :math:`\varepsilon \sim N(0,
    \sigma^2)`, with the leading eigenvectors P and eigenvalues Λ of the training images' covariance and σ² the mean of
    the others. Given the visible pixels v, :math:`c = (P_v^\top P_v + \sigma^2(\Lambda - \sigma^2)^{-1})^{-1}
    P_v^\top(x_v - \mu_v)`. The number of components is the one of :data:`COMPONENTS` that paints a tenth of the
    training images best.
    """

    def __init__(self, patches: Tensor, mask: Tensor) -> None:
        flat = patches.flatten(1).double()
        count = max(8, len(flat) // 10)
        fitted = flat[count:] if len(flat) > 2 * count else flat
        self.mean = fitted.mean(0)
        centred = fitted - self.mean
        values, vectors = torch.linalg.eigh(centred.T @ centred / len(fitted))
        self.values, self.vectors = values.flip(0).clamp_min(0), vectors.flip(1)
        validation = min(count, len(mask), 512)
        scores = {
            k: float(
                errors(
                    self.filled(patches[:validation], mask[:validation], k), patches[:validation], mask[:validation]
                ).mean()
            )
            for k in COMPONENTS
            if k < min(fitted.shape)
        }
        self.components = min(scores, key=scores.__getitem__)

    def filled(self, patches: Tensor, mask: Tensor, components: int | None = None, *, batch: int = 200) -> Tensor:
        """Patches with every hidden one painted."""
        k = self.components if components is None else components
        basis, noise = self.vectors[:, :k], self.values[k:].mean()
        prior = noise / (self.values[:k] - noise).clamp_min(1e-12)
        parts = []
        for start in range(0, len(patches), batch):
            part, covered = patches[start : start + batch], mask[start : start + batch]
            visible = (~covered)[..., None].expand_as(part).flatten(1).double()
            centred = (part.flatten(1).double() - self.mean) * visible
            gram = torch.einsum("nd,dk,dl->nkl", visible, basis, basis) if k <= 16 else _gram(visible, basis)
            scores = torch.linalg.solve(gram + torch.diag(prior), centred @ basis)
            parts.append((self.mean + scores @ basis.T).reshape(part.shape).to(patches.dtype))
        return torch.cat(parts)


class BestLinear:
    r"""The best estimate of the hidden pixels that is linear in the visible ones: a Gaussian's conditional mean.

    :math:`\mu_h + \Sigma_{hv}(\Sigma_{vv} + \varepsilon I)^{-1}(x_v - \mu_v)` with the training images' mean and
    covariance; ε is 10⁻³ of a pixel's mean variance. Principal components come here as their number grows.
    """

    def __init__(self, patches: Tensor) -> None:
        flat = patches.flatten(1).double()
        self.mean = flat.mean(0)
        centred = flat - self.mean
        self.covariance = centred.T @ centred / len(flat)
        self.noise = 1e-3 * self.covariance.diagonal().mean()

    def filled(self, patches: Tensor, mask: Tensor, *, batch: int = 50) -> Tensor:
        """Patches with every hidden one painted; each image hides as many."""
        parts = []
        for start in range(0, len(patches), batch):
            part, covered = patches[start : start + batch], mask[start : start + batch]
            visible = (~covered)[..., None].expand_as(part).flatten(1)
            at = visible.nonzero()[:, 1].reshape(len(part), -1)  # [n, v]
            centred = (part.flatten(1).double() - self.mean).gather(1, at)
            within = self.covariance[at[:, :, None], at[:, None, :]]
            within.diagonal(dim1=1, dim2=2).add_(self.noise)
            weights = torch.cholesky_solve(centred[..., None], torch.linalg.cholesky(within))
            spread = torch.zeros(len(part), len(self.mean), dtype=torch.float64, device=part.device)
            estimate = self.mean + spread.scatter_(1, at, weights[..., 0]) @ self.covariance
            parts.append(estimate.reshape(part.shape).to(patches.dtype))
        return torch.cat(parts)


@dataclass(frozen=True)
class Fitted:
    """What counting pairs of pixels of the training images gives."""

    components: PrincipalComponents
    linear: BestLinear


def _gram(visible: Tensor, basis: Tensor) -> Tensor:
    return torch.stack([(basis * row[:, None]).T @ basis for row in visible])


def errors(painted: Tensor, patches: Tensor, mask: Tensor) -> Tensor:
    """Mean square over the hidden pixels, one number per image."""
    square = (painted - patches).double().square().mean(-1)
    return (square * mask).sum(1) / mask.sum(1)


def all_errors(
    model: torch.nn.Module, train: Tensor, test: Tensor, *, seed: int, fitted: Fitted | None = None
) -> tuple[Mapping[str, Tensor], Fitted]:
    """Errors per test image of the model and of the four other ways; ``train``, ``test`` are floats in [0, 1]."""
    network = masked_network(model)
    if network is None:
        raise TypeError(f"all_errors: model must be a masked autoencoder, got {type(model).__name__}. Load one.")
    noise = noise_for(len(test), network, seed)
    mask = hidden(noise, network.mask_ratio).to(test.device)
    patches = network.patchify(test)
    if fitted is None:
        other = hidden(noise_for(len(train), network, seed + 1), network.mask_ratio).to(train.device)
        training = network.patchify(train)
        fitted = Fitted(PrincipalComponents(training, other), BestLinear(training))
    ways = {
        "model": painted(model, test, noise),
        "mean": mean_filled(patches, mask, network.in_channels),
        "nearest": nearest_filled(patches, mask, network.side),
        "pca": fitted.components.filled(patches, mask),
        "linear": fitted.linear.filled(patches, mask),
    }
    return {name: errors(filled, patches, mask).cpu() for name, filled in ways.items()}, fitted
