"""What Robustness does to the data: one case is one way of changing every sample, at one strength."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from lisse.data import Batch, Dataset
from lisse.maths.corruption import corrupt
from lisse.maths.diffeomorphism import Diffeomorphism, deform
from lisse.networks.answers import hits, logits_of
from lisse.networks.attack import attack, auto_attack, random_search, random_shift
from lisse.networks.attack.norms import NormBall
from lisse.profile import Value
from lisse.run import Run
from lisse.taps import Tap, feed, prepared, still

if TYPE_CHECKING:
    from lisse.instruments.robustness import Robustness

Axis = Literal["clean", "corruption", "attack", "noise", "deformation"]
Attack = Literal["noise", "fgsm", "pgd", "search", "autoattack"]
#: Samples that AutoAttack takes together, whatever the run's batch: its random numbers belong to the block.
_BLOCK = 100
_NOT_FINITE = 2
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
    options: Robustness
    n: int
    textures: Sequence[Tensor] | None = None
    bounds: tuple[float, float] | None = (0.0, 1.0)

    def right(self, case: Case) -> dict[str, Tensor]:
        """``right`` ``[n]``, bytes: 1 where the network is; ``still`` ``[n]`` (attacks): 1 where nothing moved.

        Samples as they are cost one forward: of these there may be more.
        """
        changed = self._changed(case)
        step = _BLOCK if case.at.get("attack") == "autoattack" else self.run.batch
        output = next((tap for tap in self.run.taps if tap.role == "output" and not tap.path), None)

        def answers(start: int, stop: int) -> dict[str, Tensor]:
            data = self.data if stop <= self.n else self.run.data
            (batch,) = data.batches(stop - start, start=start, stop=stop, device=self.run.device)
            assert isinstance(batch.inputs, Tensor)
            if case.axis == "clean" and output is not None:
                return self._fetched(right=self._hits(self._recorded(output, start, stop), batch))
            inputs = changed(batch)
            with still(self.run.model, statistics=self.run.statistics, seed=self.run.seed) as model, torch.no_grad():
                right = self._hits(feed(model, prepared(self.run.model, inputs)), batch)
            if case.axis != "attack":
                return self._fetched(right=right)
            return self._fetched(right=right, still=(inputs == batch.inputs).flatten(1).all(1).to(torch.uint8))

        task = f"{self.options.name}: {case.name}"
        n = self.options.passes(self.run) if case.axis == "clean" else self.n
        numbers = self.run.blocks(self.options, case.name, n, answers, task=task, step=step)
        numbers = {name: values.cpu() for name, values in numbers.items()}
        if bool((numbers["right"] == _NOT_FINITE).any()):
            raise ValueError(f"Robustness: logits must be finite, got NaN or infinity under {case.name}.")
        return numbers

    @functools.cached_property
    def data(self) -> Dataset:
        """The samples that are changed: every case asks for them, so they stay on a GPU that has room for them."""
        if self.run.device.type == "cpu":
            return self.run.data
        data = self.run.data.take(self.n)
        assert isinstance(data.inputs, Tensor)
        return data.to(self.run.device) if data.inputs.nbytes <= self.run.device_memory // 4 else data

    def _fetched(self, **numbers: Tensor) -> dict[str, Tensor]:
        """As they are: a GPU is waited for at the end of a case. Other processes take numbers from the host."""
        return {name: values.cpu() for name, values in numbers.items()} if self.run.processes else numbers

    def _recorded(self, output: Tap, start: int, stop: int) -> Tensor:
        """What the network answers to the samples as they are, from the pass that all instruments share."""
        answers: list[Tensor] = []
        for _ in self.run.clean(stop, [output], lambda _, activation: answers.append(activation.clone()), start=start):
            pass
        return torch.cat(answers)

    def _hits(self, output: object, batch: Batch) -> Tensor:
        """1 where the network is right, 0 where it is wrong."""
        logits = logits_of(output, batch.size, function="Robustness")
        assert batch.targets is not None
        right = hits(logits, batch.targets).to(torch.uint8)
        return right.masked_fill(~torch.isfinite(logits).all(1), _NOT_FINITE)

    def _changed(self, case: Case) -> Callable[[Batch], Tensor]:
        """The inputs of a batch under a case."""
        if case.axis == "corruption":
            images = self._corrupted(str(case.at["corruption"]), int(case.at["severity"]))
            return lambda batch: images()[batch.start : batch.start + batch.size]
        if case.axis == "attack":
            return lambda batch: self._attacked(case, batch)
        if case.axis == "noise":
            return lambda batch: self._noisy(batch, float(case.at["sigma"]))
        if case.axis == "deformation":
            ensemble, temperature = self._ensemble(case)
            return lambda batch: self._deformed(batch, ensemble, temperature)
        return lambda batch: batch.inputs  # type: ignore[return-value]  # fits() has looked

    def _noisy(self, batch: Batch, sigma: float) -> Tensor:
        x = batch.inputs
        assert isinstance(x, Tensor)
        moved = x + sigma * self.run.draw("robustness/noise", batch.start, len(x), x.shape[1:]).to(x)
        return moved if self.bounds is None else moved.clamp(*self.bounds)

    def _deformed(self, batch: Batch, ensemble: Diffeomorphism, temperature: float) -> Tensor:
        assert isinstance(batch.inputs, Tensor)
        normals = self.run.draw("robustness/field", batch.start, batch.size, (2, ensemble.mode_count))
        return deform(batch.inputs, ensemble.whitened_field(normals, temperature))

    def _ensemble(self, case: Case) -> tuple[Diffeomorphism, float]:
        assert isinstance(self.run.data.form, Tensor)
        h, w = self.run.data.form.shape[-2:]
        ensemble = Diffeomorphism((h, w), float(case.at["cut"]))
        return ensemble, float(ensemble.temperature(float(case.at["delta"])))

    def _corrupted(self, name: str, severity: int) -> Callable[[], Tensor]:
        """All images under a corruption, in [0, 1], made when they are first asked for."""
        options = self.options

        @functools.cache
        def corrupted() -> Tensor:
            generator = self.run.generator(f"robustness/{name}/{severity}")
            if self.run.device.type == "cuda":  # other numbers, and it does not wait for them
                generator = torch.Generator(self.run.device).manual_seed(generator.initial_seed())
            images = self.data.take(self.n).inputs
            assert isinstance(images, Tensor)
            steps = [
                corrupt(
                    part.to(self.run.device), name, severity, strength=options.strength, generator=generator,
                    variant=options.variant, textures=self.textures,
                )
                for part in images.split(_STEP)
            ]  # fmt: skip
            dataset = Dataset(name, torch.cat(steps))
            return next(iter(dataset.batches(self.n, device=self.run.device))).inputs  # type: ignore[return-value]

        return corrupted

    def _attacked(self, case: Case, batch: Batch) -> Tensor:
        x, y = batch.inputs, batch.targets
        assert isinstance(x, Tensor)
        assert y is not None
        model, eps, kind = self.run.model, float(case.at["eps"]), str(case.at["attack"])
        options, norm, bounds = self.options, self.options.norm, self.bounds
        if kind == "noise":
            directions = self.run.draw("robustness/direction", batch.start, len(x), x.shape[1:])
            return random_shift(x, norm=norm, eps=eps, bounds=bounds, directions=directions.to(x))
        if kind == "search":

            def directions_of(query: int) -> Tensor:
                return self.run.draw(f"robustness/search/{query}", batch.start, len(x), x.shape[1:]).to(x)

            return random_search(
                model,
                x,
                y,
                norm=norm,
                eps=eps,
                queries=options.queries,
                bounds=bounds,
                draw=directions_of,
            )
        if kind == "autoattack":
            seed = (self.run.seed + batch.start) % 2**31
            return auto_attack(model, x, y, norm=norm, eps=eps, bounds=bounds, seed=seed)
        if kind == "fgsm":
            return attack(model, x, y, method="fgsm", norm=norm, eps=eps, bounds=bounds)
        step = float(case.at["step"]) if "step" in case.at else None
        return attack(
            model, x, y, method="pgd", norm=norm, eps=eps, step=step, steps=options.steps, bounds=bounds,
            start=self._start(x, batch.start, eps) if options.random_start else None,
        )  # fmt: skip

    def _start(self, x: Tensor, start: int, eps: float) -> Tensor:
        """A point of the ball that belongs to the sample: uniform for ℓ∞, for ℓ2 of uniform direction and ε r^(1/d)."""
        ball = NormBall(x, self.options.norm, eps, self.bounds)
        if self.options.norm == "linf":
            drawn = self.run.draw("robustness/start", start, len(x), x.shape[1:], law="uniform") * 2 - 1
            return ball.back(x + eps * drawn.to(x))
        ways = self.run.draw("robustness/start", start, len(x), x.shape[1:]).to(x)
        radius = self.run.draw("robustness/radius", start, len(x), (1,), law="uniform").to(x) ** (1 / x[0].numel())
        flat = ways.flatten(1)
        return ball.back(x + eps * (radius * flat / flat.norm(dim=1, keepdim=True)).reshape(x.shape))
