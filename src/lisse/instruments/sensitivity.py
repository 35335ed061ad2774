"""Sensitivity: how large, how many-dimensional and how stretched the data are at every layer."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lisse.maths.intervals import across_clouds, bootstrap, disjoint_clouds
from lisse.maths.jacobian import effective_rank, jacobian_norm
from lisse.profile import Part, Quantity, Row
from lisse.run import Instrument, Run
from lisse.taps import Tap, feed, still, tapped


@dataclass(frozen=True)
class Sensitivity(Instrument):
    """Per layer: the norm, the effective rank, and the local Lipschitz constant from the input and the layer before.

    The Lipschitz constants are spectral norms of Jacobians at the samples, found by power iteration: every one is a
    lower estimate, and so is their maximum of the network's Lipschitz constant. For token ids, which have no
    derivative, "the input" is the first layer (the embedding).
    """

    samples: int = field(default=500, metadata={"help": "samples in a cloud (norm, effective rank)"})
    clouds: int = field(default=5, metadata={"help": "disjoint clouds behind the effective rank's interval"})
    points: int = field(default=32, metadata={"help": "samples at which Jacobians are taken; 0 leaves them out"})
    max_iter: int = field(default=30, metadata={"help": "most power iterations for a Jacobian's norm"})
    tol: float = field(default=1e-2, metadata={"help": "relative change at which power iteration stops"})
    level: float = field(default=0.95, metadata={"help": "confidence level of the intervals"})
    quick: bool = field(default=False, metadata={"help": "one cloud, few points, no intervals"})

    QUANTITIES: ClassVar[tuple[Quantity, ...]] = (
        Quantity(
            "norm",
            "norm ‖x‖",
            "How large activations are: the mean Euclidean norm over samples.",
            r"\frac1n\sum_i \|x_i\|_2",
            scale="log",
        ),
        Quantity(
            "effective_rank",
            "effective rank",
            "How many directions a cloud of samples spreads over; a cloud of n points shows n − 1 at most.",
            r"\left(\sum_i\lambda_i\right)^2 / \sum_i\lambda_i^2",
            scale="log",
        ),
        Quantity(
            "lipschitz_from_input",
            "stretch from the input",
            "How much the steepest small change of the input grows on its way to this layer (from below).",
            r"\left\|\partial x_l / \partial x_0\right\|_2",
            scale="log",
            better="lower",
        ),
        Quantity(
            "lipschitz_from_previous",
            "stretch from the layer before",
            "How much this layer alone stretches the steepest small change of what enters it (from below).",
            r"\left\|\partial x_l / \partial x_{l-1}\right\|_2",
            scale="log",
            better="lower",
        ),
    )

    def __post_init__(self) -> None:
        for name, least in (("samples", 2), ("clouds", 1), ("points", 0), ("max_iter", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"Sensitivity: {name} must be at least {least}, got {getattr(self, name)}.")
        if not 0 < self.level < 1:
            raise ValueError(f"Sensitivity: level must lie in (0, 1), got {self.level}.")
        if not self.tol > 0:
            raise ValueError(f"Sensitivity: tol must be positive, got {self.tol}.")

    def fits(self, run: Run) -> str | None:
        """Any network on at least two samples, one row each."""
        if run.readout == "tokens":
            return "it compares samples, and readout='tokens' makes every token a row of its own."
        return None if len(run) >= 2 else f"a cloud needs at least 2 samples, and {run.data.name} has {len(run)}."

    def part(self, run: Run) -> Part:
        """Measure."""
        notes: list[str] = []
        rows = self._clouds(run, notes)
        if self.points:
            rows += self._stretch(run, notes)
        return Part(self.name, tuple(rows), self.QUANTITIES, tuple(notes))

    # -- norm and effective rank -----------------------------------------------------------------------------------

    def _clouds(self, run: Run, notes: list[str]) -> list[Row]:
        size = run.take(self.samples)
        wanted = 1 if self.quick else self.clouds
        total = run.take(size * wanted) // size * size
        clouds = disjoint_clouds(total, size, clouds=wanted, generator=run.generator("clouds"))
        recording = run.recording(total)
        if not self.quick and len(clouds) < wanted:
            notes.append(
                f"The effective rank rests on {len(clouds)} disjoint cloud(s) of {size} samples, "
                f"not {wanted}: {run.data.name} has {len(run)} samples."
                + (" One cloud gives no interval." if len(clouds) == 1 else "")
            )
        rows = []
        for place, tap in enumerate(run.taps):
            layer = tap.name

            def make(layer: str = layer) -> dict[str, Tensor]:
                points = recording[layer]
                sizes = torch.cat([torch.linalg.vector_norm(p.flatten(1).double(), dim=1) for p in points.split(256)])
                return {"norm": sizes, "rank": torch.stack([effective_rank(points[cloud]) for cloud in clouds])}

            found = run.piece(self, ("cloud", layer), make)
            rows.append(self._sampled("norm", found["norm"], run, tap))
            rank = found["rank"]
            if len(rank) > 1 and bool(torch.isfinite(rank).all()):
                interval = across_clouds(rank, level=self.level)
                low = max(1.0, float(interval.low))  # a participation ratio is never under 1
                rows.append(_row("effective_rank", interval.value, "estimate", total, tap, low, interval.high))
            else:
                rows.append(_row("effective_rank", rank[0], "exact", size, tap))
            run.tell(f"{self.name}: clouds", place + 1, len(run.taps), "layers")
        return rows

    def _sampled(self, quantity: str, values: Tensor, run: Run, tap: Tap) -> Row:
        if self.quick:
            return _row(quantity, values.mean(), "exact", len(values), tap)
        interval = bootstrap(values, level=self.level, generator=run.generator(quantity + tap.name))
        return _row(quantity, interval.value, "estimate", len(values), tap, interval.low, interval.high)

    # -- local Lipschitz constants ---------------------------------------------------------------------------------

    def _stretch(self, run: Run, notes: list[str]) -> list[Row]:
        if run.statistics == "batch" and any(
            isinstance(module, torch.nn.modules.batchnorm._NormBase) for module in run.model.modules()
        ):
            notes.append("No local Lipschitz constants: with batch statistics each sample acts on the others.")
            return []
        points = run.take(min(self.points, 8) if self.quick else self.points)
        step = min(run.batch, 32)
        blocks = []
        for start in range(0, points, step):
            stop = min(start + step, points)
            block = functools.partial(self._block, run, start, stop)
            blocks.append(run.piece(self, ("stretch", start, stop), block))
        rows, missing, unsettled = [], [], 0
        source = run.taps[0].name
        for place, tap in enumerate(run.taps[1:], start=1):
            for quantity in ("lipschitz_from_input", "lipschitz_from_previous"):
                key = f"{quantity}/{place}"
                if any(key not in block for block in blocks):
                    missing.append(f"{tap.name} ({quantity.removeprefix('lipschitz_from_')})")
                    continue
                values = torch.cat([block[key] for block in blocks])
                unsettled += sum(int((~block[key + "/converged"].bool()).sum()) for block in blocks)
                rows += self._lower(quantity, values, run, tap)
        if run.taps[0].role != "input":
            notes.append(f"The input has no derivative (token ids): stretch is measured from {source}.")
        if missing:
            notes.append(f"No derivative, so no Lipschitz constant, at {', '.join(missing)}.")
        if unsettled:
            notes.append(
                f"{unsettled} Jacobian norms still moved by more than {self.tol:g} after {self.max_iter} iterations; "
                "they are lower estimates all the same."
            )
        return rows

    def _lower(self, quantity: str, values: Tensor, run: Run, tap: Tap) -> list[Row]:
        n = len(values)
        most = _row(quantity, values.max(), "lower", n, tap, over="max")
        if self.quick or n < 2:
            return [_row(quantity, values.mean(), "lower", n, tap, over="mean"), most]
        interval = bootstrap(values, level=self.level, generator=run.generator(quantity + tap.name))
        return [_row(quantity, interval.value, "lower", n, tap, interval.low, interval.high, over="mean"), most]

    def _block(self, run: Run, start: int, stop: int) -> dict[str, Tensor]:
        """Jacobian norms at samples ``start … stop - 1``, keyed by quantity and place of the layer."""
        kept: dict[str, Tensor] = {}

        def on(tap: Tap, activation: Tensor) -> Tensor:
            if tap.name == run.taps[0].name:
                activation = activation.detach().requires_grad_()
            kept[tap.name] = activation
            return activation.clone()  # an in-place activation after it must not change what was kept

        (batch,) = run.data.batches(stop - start, start=start, stop=stop, device=run.device)
        found: dict[str, Tensor] = {}
        warm: Tensor | None = None
        # Fused attention has no second derivative; the plain formula has.
        with still(run.model, statistics=run.statistics, grad=True, seed=run.seed), sdpa_kernel(SDPBackend.MATH):
            with tapped(run.model, run.taps, on):
                feed(run.model, batch.inputs)
            mask = batch.inputs.get("attention_mask") if isinstance(batch.inputs, dict) else None
            layers = [kept[tap.name] for tap in run.taps]
            for place in range(1, len(layers)):
                y = _valid(layers[place], mask)
                for quantity, x in (("input", layers[0]), ("previous", layers[place - 1])):
                    key = f"lipschitz_from_{quantity}/{place}"
                    if place == 1 and quantity == "previous":
                        if f"lipschitz_from_input/{place}" in found:
                            found[key] = found[f"lipschitz_from_input/{place}"]
                            found[key + "/converged"] = found[f"lipschitz_from_input/{place}/converged"]
                        continue
                    try:
                        norm = jacobian_norm(
                            y,
                            x,
                            start=warm if quantity == "input" else None,
                            max_iter=self.max_iter,
                            tol=self.tol,
                            generator=run.generator(f"{key} {start}"),
                        )
                    except (ValueError, RuntimeError) as error:
                        if _has_no_derivative(error):
                            continue
                        raise
                    if quantity == "input":
                        # The direction that grows most up to here is a good guess for the next layer.
                        warm = norm.direction
                    found[key] = norm.value.cpu()
                    found[key + "/converged"] = norm.converged.cpu()
                run.tell(f"{self.name}: stretch, samples {start} to {stop - 1}", place, len(layers) - 1, "layers")
        return found


def _valid(activation: Tensor, mask: Tensor | None) -> Tensor:
    """Token activations ``[n, t, d]`` with the padding set to zero: padding is not data, and must not stretch."""
    if mask is None or activation.ndim != 3 or mask.shape != activation.shape[:2]:
        return activation
    return activation * mask[..., None].to(activation.dtype)


def _has_no_derivative(error: Exception) -> bool:
    text = str(error)
    return any(words in text for words in ("must depend on", "does not require grad", "not implemented", "double back"))


def _row(
    quantity: str,
    value: Tensor,
    kind: str,
    n: int,
    tap: Tap,
    low: Tensor | float | None = None,
    high: Tensor | float | None = None,
    **at: str,
) -> Row:
    ends = {} if low is None or high is None else {"low": float(low), "high": float(high)}
    return Row(quantity, float(value), kind, n, tap.name, tap.depth, at=at, **ends)  # type: ignore[arg-type]
