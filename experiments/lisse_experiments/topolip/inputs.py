"""The first step as the network sees it: the shape of normalised images, where TopoLip starts from raw ones."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lisse.instruments import Topology
from lisse.profile import Part
from lisse.run import Run


@dataclass(frozen=True)
class NormalisedInput(Topology):
    """Distances between the diagrams of normalised images and of the first layer, in the clouds of :class:`Topology`.

    ``(x - mean) / std`` channel by channel, as the network begins. The paper does not say which of the two its layer 0
    is. As arrays ``first/p=…/dim=…`` ``[k]``: what takes the place of the first of ``steps``.
    """

    mean: tuple[float, ...] = field(default=(0.0,), metadata={"help": "of the channels"})
    std: tuple[float, ...] = field(default=(1.0,), metadata={"help": "of the channels"})

    def part(self, run: Run) -> Part:
        """Measure."""
        clouds, (source, first, *_) = self._clouds(run), self._layers(run)
        recording = run.recording(clouds.samples)
        images = torch.as_tensor(recording[source.name])
        shape = (1, -1, *(1,) * (images.ndim - 2))
        mean, std = (torch.tensor(numbers, device=images.device).view(shape) for numbers in (self.mean, self.std))
        normalised = (images - mean) / std
        before, after = (
            run.piece(self, tap.name, functools.partial(self._of_layer, points, tap.name, clouds, run.device))
            for tap, points in ((source, {source.name: normalised}), (first, recording))
        )
        values, floors = self._of_pair(before, after, clouds)["whole"]
        distances: Tensor = torch.where(values <= floors, 0.0, values)
        names = (*self.dims, "all")
        arrays = {
            f"first/p={p:g}/dim={dim}": distances[:, i, j].numpy()
            for i, p in enumerate(self.p)
            for j, dim in enumerate(names)
        }
        return self.part_of((), (), arrays)
