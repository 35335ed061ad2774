"""What Stability feeds to a network: every sample's own fields and noise, whatever the batch size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.data import Batch
from lisse.maths.diffeomorphism import Diffeomorphism, Field, deform, half_temperature, undeformed
from lisse.maths.diffeomorphism.warp import Interpolation
from lisse.maths.relative_stability import sphere, squared_distances
from lisse.run import Run

_ROUND = 16  # proposals of a sample at a time where folded fields are drawn again
_MOST_TRIES = 200  # of a sample on average: conditioning on anything rarer gives fields unlike the ensemble's


@dataclass(frozen=True)
class Setting:
    """One cut-off and displacement, with the ensemble and the temperature they mean for this image size."""

    cut: float
    delta: float
    ensemble: Diffeomorphism
    temperature: float

    @property
    def name(self) -> str:
        """As in ``Row.where()``."""
        return f"cut={self.cut:g} delta={self.delta:g}"


@dataclass(frozen=True)
class FieldDraws:
    """What a pass over the images alone shows of all samples; everything is ``[n, fields]``.

    ``shift`` is the norm of τx - x, ``tries`` how many proposals folded before the one that is used, ``bijective``
    whether the one that is used is a diffeomorphism.
    """

    shift: Tensor
    tries: Tensor
    bijective: Tensor


@dataclass(frozen=True)
class Perturbations:
    """The fields and the noise of every sample of a run: functions of seed, sample and field number alone.

    Displacements at one cut-off share their normals, and all settings share their noise directions, so that
    differences between settings are not those of the draws.
    """

    run: Run
    interpolation: Interpolation
    reject: bool

    def clean(self, images: Tensor) -> Tensor:
        """What stands for x: the images, blurred where the interpolation blurs them even without a field."""
        return undeformed(images, interpolation=self.interpolation)

    def clean_batch(self, batch: Batch) -> Tensor:
        """What stands for the images of a batch."""
        assert isinstance(batch.inputs, Tensor)  # fits() has looked
        return self.clean(batch.inputs)

    def fields(self, setting: Setting, number: int, start: int, tries: Tensor) -> Field:
        """The ``number``-th field of samples from ``start`` on, after ``tries`` ``[b]`` rejected ones."""
        count, modes = len(tries), setting.ensemble.mode_count
        normals = self.run.draw(self._key(setting, number), start, count, (2, modes))
        for index in tries.nonzero()[:, 0].tolist():
            rounds = self._proposals(setting, number, start + index)
            proposal = int(tries[index]) - 1
            for _ in range(proposal // _ROUND):
                next(rounds)
            normals[index] = next(rounds)[proposal % _ROUND].to(normals.device)
        return setting.ensemble.whitened_field(normals, setting.temperature)

    def deformed(self, images: Tensor, setting: Setting, number: int, start: int, tries: Tensor) -> Tensor:
        """τx, each sample with a field of its own."""
        field = self.fields(setting, number, start, tries)
        return deform(images, field, interpolation=self.interpolation)

    def noisy(self, clean: Tensor, number: int, start: int, radius: float | Tensor) -> Tensor:
        """x + η, η uniform on the sphere of ``radius``; not clipped to [0, 1], which would shorten it."""
        directions = self.run.draw(f"stability/noise/{number}", start, len(clean), clean.shape[1:])
        return clean + sphere(directions.to(clean.dtype), radius)

    def draws(self, setting: Setting, fields: int, start: int, stop: int) -> dict[str, Tensor]:
        """The :class:`FieldDraws` of samples ``start … stop - 1``, without the network."""
        (batch,) = self.run.data.batches(stop - start, start=start, stop=stop, device=self.run.device)
        images, clean = batch.inputs, self.clean_batch(batch)
        assert isinstance(images, Tensor)
        columns: dict[str, list[Tensor]] = {"shift": [], "tries": [], "bijective": []}
        for number in range(fields):
            tries = torch.zeros(len(clean), dtype=torch.int64)
            good = bijective(self.fields(setting, number, start, tries)).cpu()
            if self.reject:
                tries = self._rejections(setting, number, start, good)
                good = torch.ones_like(good)
            deformed = self.deformed(images, setting, number, start, tries)
            columns["shift"].append(squared_distances(deformed, clean).sqrt().cpu())
            columns["tries"].append(tries)
            columns["bijective"].append(good)
        return {name: torch.stack(column, 1) for name, column in columns.items()}

    def strip(self, setting: Setting, draws: FieldDraws, count: int) -> Tensor:
        """The first samples as they are and deformed, to look at: bytes ``[2, count, c, h, w]``."""
        (batch,) = self.run.data.batches(count, stop=count, device=self.run.device)
        assert isinstance(batch.inputs, Tensor)  # fits() has looked
        deformed = self.deformed(batch.inputs, setting, 0, 0, draws.tries[:count, 0])
        images = torch.stack([self.clean(batch.inputs), deformed]).float()
        return images.clamp(0, 1).mul(255).round().to(torch.uint8).cpu()

    def _rejections(self, setting: Setting, number: int, start: int, good: Tensor) -> Tensor:
        """How many proposals of each sample fold before the first that does not; ``good`` says which need none more."""
        tries = torch.zeros(len(good), dtype=torch.int64)
        pending = {int(index): self._proposals(setting, number, start + int(index)) for index in (~good).nonzero()}
        while pending:
            indices = list(pending)
            for chunk in (indices[i : i + 64] for i in range(0, len(indices), 64)):
                normals = torch.cat([next(pending[index]) for index in chunk]).to(self.run.device)
                accepted = bijective(setting.ensemble.whitened_field(normals, setting.temperature)).cpu()
                for index, row in zip(chunk, accepted.reshape(-1, _ROUND), strict=True):
                    if bool(row.any()):
                        tries[index] += int(row.int().argmax()) + 1
                        del pending[index]
                    else:
                        tries[index] += _ROUND
            proposals = len(good) + int(tries.sum())
            if pending and proposals > _MOST_TRIES * len(good):
                half = float(half_temperature(setting.cut, modes=setting.ensemble.modes).value)
                raise ValueError(
                    f"Stability: delta must let fields be bijective, got {setting.delta:g} at cut {setting.cut:g}, "
                    f"where {len(good) - len(pending)} of {proposals} are. Half of them are at δ = "
                    f"{float(setting.ensemble.delta(half)):.3g}."
                )
        return tries

    def _proposals(self, setting: Setting, number: int, sample: int) -> Iterator[Tensor]:
        """A sample's further normals, in rounds ``[16, 2, M]``: a sequence of its own, however many it needs."""
        generator = self.run.generator(f"{self._key(setting, number)}/{sample}")
        while True:
            yield torch.randn(_ROUND, 2, setting.ensemble.mode_count, generator=generator, dtype=torch.float32)

    @staticmethod
    def _key(setting: Setting, number: int) -> str:
        return f"stability/field/{setting.cut:g}/{setting.ensemble.modes}/{number}"


def bijective(field: Field) -> Tensor:
    r"""Which fields are diffeomorphisms ``[count]``, as :meth:`Field.bijective`, but most are decided on a coarse grid.

    A grid point with :math:`\det(I - \nabla\tau) \le 0` proves a fold. The other way round, a trigonometric polynomial
    of degree c on a grid of step h is nowhere larger than its largest value there over :math:`\cos(\pi c h / 2)` along
    each axis; so with h < 1/(4c), :math:`\|\nabla\tau\| < \cos^2(\pi/8)` on the grid keeps it under 1 everywhere, and
    nothing folds. What is left is followed to its minimum.
    """
    side = field.cu.shape[-1]
    verdicts = torch.zeros(len(field), dtype=torch.bool, device=field.cu.device)
    for start in range(0, len(field), 256):
        chunk = field[start : start + 256]
        gradient = chunk.gradient(4 * side + 1)
        uu, uv, vu, vv = (gradient[:, a, b] for a in (0, 1) for b in (0, 1))
        folds = ((1 - uu) * (1 - vv) - uv * vu).flatten(1).amin(1) <= 0
        sure = gradient.square().sum((1, 2)).flatten(1).amax(1) < math.cos(math.pi / 8) ** 4
        undecided = (~folds & ~sure).nonzero()[:, 0]
        verdicts[start : start + 256] = sure
        if len(undecided):
            verdicts[start + undecided] = chunk[undecided].bijective(points=max(33, 10 * side + 1))
    return verdicts


def keep_memory() -> None:
    """Let glibc keep the memory of one forward for the next.

    It gives free memory back to the system beyond a threshold that follows the largest block freed so far, up to 32
    MiB; a forward then touches fresh pages every time, which costs a ResNet-56 15 % of its time. Such a block, never
    written to, is freed here. Elsewhere this does nothing.
    """
    torch.empty((32 << 20) - (1 << 16), dtype=torch.uint8)
