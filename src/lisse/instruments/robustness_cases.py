"""What Robustness does to the data: one case is one way of changing every sample, at one strength."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from lisse.data import Batch, Dataset
from lisse.maths.corruption import corrupt
from lisse.maths.corruption.parameters import Strength, Variant
from lisse.maths.diffeomorphism import Diffeomorphism, deform
from lisse.networks.attack import attack, auto_attack, logits_of, random_search, random_shift
from lisse.networks.attack.norms import Ball, Norm
from lisse.profile import Value
from lisse.run import Run
from lisse.taps import feed, prepared, still

Axis = Literal["clean", "corruption", "attack", "noise", "deformation"]
Attack = Literal["noise", "fgsm", "pgd", "search", "autoattack"]
#: Samples that AutoAttack takes together, whatever the run's batch: its random numbers belong to the block.
_BLOCK = 100
_STEP = 500  # images corrupted at a time; the random numbers of a corruption run on from one such step to the next


@dataclass(frozen=True)
class Case:
    """One way of changing the samples. ``at`` are its coordinates in a row, and its name among the pieces."""

    axis: Axis
    at: Mapping[str, Value] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``corruption/snow/3``."""
        parts = (f"{value:g}" if isinstance(value, float) else str(value) for value in self.at.values())
        return "/".join([self.axis, *parts])

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True)
class Changes:
    """How every case of a run is made. Random numbers belong to samples, not to batches."""

    run: Run
    n: int
    strength: Strength = "cifar"
    variant: Variant = "hendrycks"
    textures: Sequence[Tensor] | None = None
    norm: Norm = "linf"
    steps: int = 10
    random_start: bool = False
    queries: int = 20
    bounds: tuple[float, float] | None = (0.0, 1.0)

    def right(self, case: Case) -> dict[str, Tensor]:
        """``right`` ``[n]``, bytes: 1 where the network is; ``still`` ``[n]`` (attacks): 1 where nothing moved."""
        found: list[Tensor] = []
        same: list[Tensor] = []
        with still(self.run.model, statistics=self.run.statistics, seed=self.run.seed) as model, torch.no_grad():
            for inputs, clean, targets in self._batches(case):
                logits = logits_of(feed(model, prepared(self.run.model, inputs)), len(inputs), function="Robustness")
                if not bool(torch.isfinite(logits).all()):
                    raise ValueError(f"Robustness: logits must be finite, got NaN or infinity under {case.name}.")
                found.append((logits.argmax(1) == targets.to(logits.device)).to(torch.uint8).cpu())
                if case.axis == "attack":
                    same.append((inputs == clean).flatten(1).all(1).to(torch.uint8).cpu())
        made = {"right": torch.cat(found)}
        return {**made, "still": torch.cat(same)} if same else made

    def _batches(self, case: Case) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Changed inputs, clean inputs and targets."""
        if case.axis == "corruption":
            yield from self._corrupted(str(case.at["corruption"]), int(case.at["severity"]))
            return
        ensemble = self._ensemble(case) if case.axis == "deformation" else None
        size = _BLOCK if case.at.get("attack") == "autoattack" else self.run.batch
        for batch in self.run.data.batches(size, stop=self.n, device=self.run.device):
            assert isinstance(batch.inputs, Tensor)
            assert batch.targets is not None
            x = batch.inputs
            if case.axis == "noise":
                draws = self.run.draw("robustness/noise", batch.start, len(x), x.shape[1:])
                moved = x + float(case.at["sigma"]) * draws.to(x)
                moved = moved if self.bounds is None else moved.clamp(*self.bounds)
            elif ensemble is not None:
                normals = self.run.draw("robustness/field", batch.start, len(x), (2, ensemble[0].mode_count))
                moved = deform(x, ensemble[0].whitened_field(normals, ensemble[1]))
            elif case.axis == "attack":
                moved = self._attacked(case, batch)
            else:
                moved = x
            yield moved, x, batch.targets

    def _ensemble(self, case: Case) -> tuple[Diffeomorphism, float]:
        assert isinstance(self.run.data.inputs, Tensor)
        h, w = self.run.data.inputs.shape[-2:]
        ensemble = Diffeomorphism((h, w), float(case.at["cut"]))
        return ensemble, float(ensemble.temperature(float(case.at["delta"])))

    def _corrupted(self, name: str, severity: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        images, targets = self.run.data.inputs, self.run.data.targets
        assert isinstance(images, Tensor)
        assert targets is not None
        generator = self.run.generator(f"robustness/{name}/{severity}")
        held: list[tuple[Tensor, Tensor]] = []
        for start in range(0, self.n, _STEP):
            part = images[start : min(start + _STEP, self.n)].to(self.run.device)
            made = corrupt(
                part, name, severity, strength=self.strength, generator=generator, variant=self.variant,
                textures=self.textures,
            )  # fmt: skip
            held.append((made, targets[start : start + len(part)]))
        whole = Dataset(name, torch.cat([made for made, _ in held]), torch.cat([target for _, target in held]))
        for batch in whole.batches(self.run.batch, device=self.run.device):
            assert isinstance(batch.inputs, Tensor)
            assert batch.targets is not None
            yield batch.inputs, batch.inputs, batch.targets

    def _attacked(self, case: Case, batch: Batch) -> Tensor:
        x, y = batch.inputs, batch.targets
        assert isinstance(x, Tensor)
        assert y is not None
        model, eps, kind = self.run.model, float(case.at["eps"]), str(case.at["attack"])
        if kind == "noise":
            directions = self.run.draw("robustness/direction", batch.start, len(x), x.shape[1:])
            return random_shift(x, norm=self.norm, eps=eps, bounds=self.bounds, directions=directions.to(x))
        if kind == "search":

            def directions_of(query: int) -> Tensor:
                return self.run.draw(f"robustness/search/{query}", batch.start, len(x), x.shape[1:]).to(x)

            return random_search(
                model, x, y, norm=self.norm, eps=eps, queries=self.queries, bounds=self.bounds, draw=directions_of
            )
        if kind == "autoattack":
            seed = (self.run.seed + batch.start) % 2**31
            return auto_attack(model, x, y, norm=self.norm, eps=eps, bounds=self.bounds, seed=seed)
        if kind == "fgsm":
            return attack(model, x, y, method="fgsm", norm=self.norm, eps=eps, bounds=self.bounds)
        step = float(case.at["step"]) if "step" in case.at else None
        return attack(
            model, x, y, method="pgd", norm=self.norm, eps=eps, step=step, steps=self.steps, bounds=self.bounds,
            start=self._start(x, batch.start, eps) if self.random_start else None,
        )  # fmt: skip

    def _start(self, x: Tensor, start: int, eps: float) -> Tensor:
        """A point of the ball that belongs to the sample: uniform for ℓ∞, for ℓ2 of uniform direction and ε r^(1/d)."""
        ball = Ball(x, self.norm, eps, self.bounds)
        if self.norm == "linf":
            drawn = self.run.draw("robustness/start", start, len(x), x.shape[1:], law="uniform") * 2 - 1
            return ball.back(x + eps * drawn.to(x))
        ways = self.run.draw("robustness/start", start, len(x), x.shape[1:]).to(x)
        radius = self.run.draw("robustness/radius", start, len(x), (1,), law="uniform").to(x) ** (1 / x[0].numel())
        flat = ways.flatten(1)
        return ball.back(x + eps * (radius * flat / flat.norm(dim=1, keepdim=True)).reshape(x.shape))
