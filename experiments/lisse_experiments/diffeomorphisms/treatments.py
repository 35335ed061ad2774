"""What is done to images and labels in training: the recipe's crops, none, diffeomorphisms, smoothed labels."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lisse.data.augmentation import CropFlip
from lisse.maths.diffeomorphism import Diffeomorphism, deform
from lisse.networks.augment import MaxEntropyDiffeo
from lisse.taps import still
from lisse.training.recipes import Recipe
from lisse_experiments.diffeomorphisms.adversary import worst_field


@dataclass(frozen=True)
class Treatment:
    """``crops`` are the recipe's own, or these, or none; ``fields`` are added after them.

    ``smoothing`` is that of the labels, in place of the recipe's.
    """

    name: str
    label: str
    crops: CropFlip | Literal["recipe"] | None = "recipe"
    fields: Literal["none", "random", "worst"] = "none"
    smoothing: float | None = None

    def recipe(self, recipe: Recipe) -> Recipe:
        """``recipe`` under this treatment."""
        return recipe if self.smoothing is None else dataclasses.replace(recipe, label_smoothing=self.smoothing)

    def augment(self, model: nn.Module, recipe: Recipe, *, cut: int, delta: float, steps: int) -> list[Any]:
        """What :func:`lisse.train` takes as ``augment``."""
        crops = recipe.augmentation if self.crops == "recipe" else self.crops
        transforms: list[Any] = [crops] if crops is not None else []
        if self.fields == "random":
            transforms.append(MaxEntropyDiffeo(cut, delta))
        elif self.fields == "worst":
            transforms.append(WorstDiffeo(model, cut, delta, steps))
        return transforms


PLAIN = Treatment("plain", "plain")
BARE = Treatment("bare", "no crops", crops=None)
SMOOTHED = Treatment("smoothed", "smoothed labels", smoothing=0.1)
RANDOM = Treatment("random", "max-entropy", fields="random")
WORST = Treatment("worst", "worst", fields="worst")


@dataclass(frozen=True)
class WorstDiffeo:
    r"""Each image deformed by the field that moves the network's output furthest, as [petrini2021] sec. 8 proposes.

    Gradient ascent of :math:`\|f(\tau x) - f(x)\|^2` over fields no larger than the root mean square of random ones at
    ``delta``, on the network as it is now, in evaluation mode: ``steps`` + 1 forwards and backwards a batch.
    """

    model: nn.Module = field(repr=False)
    cut: int
    delta: float
    steps: int

    def __call__(self, images: Tensor) -> Tensor:
        """Images ``[n, c, h, w]``, deformed."""
        ensemble = _ensemble((images.shape[-2], images.shape[-1]), self.cut)
        heat = float(ensemble.temperature(self.delta))
        half = functools.partial(torch.autocast, "cuda", torch.bfloat16, enabled=images.device.type == "cuda")

        def output(batch: Tensor) -> Tensor:
            with half():  # the network alone: fields are made in full precision
                answer: Tensor = self.model(batch)
            return answer.float()

        with still(self.model, grad=True):
            with torch.no_grad():
                clean = output(images)

            def moved(deformed: Tensor) -> Tensor:
                return (output(deformed) - clean).square().flatten(1).sum(1)

            worst = worst_field(moved, images, ensemble, heat, steps=self.steps)
        return deform(images, worst.field)


@functools.lru_cache(maxsize=8)
def _ensemble(size: tuple[int, int], cut: int) -> Diffeomorphism:
    return Diffeomorphism(size, cut)
