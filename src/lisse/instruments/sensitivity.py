"""Sensitivity: how large, how many-dimensional and how stretched the data are at every layer."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lisse.maths.intervals import across_clouds, bootstrap, disjoint_clouds
from lisse.maths.jacobian import effective_rank, jacobian_norm
from lisse.profile import Kind, Part, Quantity, Row
from lisse.recording import parse_bytes
from lisse.run import Instrument, Run
from lisse.taps import Tap, feed, prepared, still, tapped

_LEAST_CLOUD = 20  # fewer points are no cloud to speak of
_LEAST_SAMPLES = 8  # a bootstrap of fewer does not cover what it says
# How jacobian_norm and PyTorch say that a graph breaks off, or that an operation has no second derivative.
_WITHOUT = ("must depend on", "second derivatives", "does not require grad", "not implemented", "double back")


@dataclass(frozen=True)
class Sensitivity(Instrument):
    """Per layer: the norm, the effective rank, and the local Lipschitz constant from the input and the layer before.

    The Lipschitz constants are spectral norms of Jacobians at the samples, found by Lanczos iteration: every one is a
    lower estimate, and so is their maximum of the network's Lipschitz constant. For token ids, which have no
    derivative, "the input" is the first layer (the embedding).
    """

    samples: int = field(default=500, metadata={"help": "most samples in a cloud (norm, effective rank)"})
    clouds: int = field(default=5, metadata={"help": "disjoint clouds behind the effective rank's interval"})
    points: int = field(default=16, metadata={"help": "samples at which Jacobians are taken; 0 leaves them out"})
    max_iter: int = field(default=30, metadata={"help": "most Lanczos steps for a Jacobian's norm"})
    tol: float = field(default=1e-2, metadata={"help": "relative residual at which they stop"})
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
        wanted = 1 if self.quick else self.clouds
        # Clouds small enough for all of them, as long as they are clouds; else as many as there are.
        size = run.take(self.samples)
        if len(run) // wanted >= _LEAST_CLOUD:
            size = min(size, len(run) // wanted)
        total = run.take(size * wanted) // size * size
        clouds = disjoint_clouds(total, size, clouds=wanted, generator=run.generator("clouds"))
        recording = run.recording(total)
        if not self.quick and len(clouds) < wanted:
            notes.append(
                f"The effective rank rests on {len(clouds)} disjoint cloud(s) of {size} samples, not {wanted}: "
                f"there are {len(run)} samples." + (" One cloud gives no interval." if len(clouds) == 1 else "")
            )
        rows = []
        for place, tap in enumerate(run.taps):
            layer = tap.name

            def make(layer: str = layer) -> dict[str, Tensor]:
                points = recording[layer]
                sizes = [
                    torch.linalg.vector_norm(part.flatten(1), dim=1, dtype=_wide(part)) for part in points.split(64)
                ]
                ranks = [effective_rank(points, rows=cloud) for cloud in clouds]
                return {"norm": torch.cat(sizes).double(), "rank": torch.stack(ranks)}

            found = run.piece(self, ("cloud", layer), make)
            rows.append(self._mean("norm", "estimate", found["norm"], run, tap))
            rows.append(self._rank(found["rank"], size, tap))
            run.tell(f"{self.name}: clouds", place + 1, len(run.taps), "layers")
        return rows

    def _rank(self, ranks: Tensor, size: int, tap: Tap) -> Row:
        if len(ranks) == 1 or not bool(torch.isfinite(ranks).all()):
            return _row("effective_rank", ranks[0], "exact", size, tap, at={"cloud": size})
        interval = across_clouds(ranks, level=self.level)
        # A participation ratio is never under 1, nor is its mean; rounding must not say so.
        low, value, high = (max(1.0, float(end)) for end in (interval.low, interval.value, interval.high))
        return _row("effective_rank", value, "estimate", size * len(ranks), tap, low, high, at={"cloud": size})

    def _mean(self, quantity: str, kind: Kind, values: Tensor, run: Run, tap: Tap, **at: str) -> Row:
        """The mean over samples, with a bootstrap interval where there are enough samples for one to hold."""
        if self.quick or len(values) < _LEAST_SAMPLES:
            exact: Kind = "exact" if kind == "estimate" else kind
            return _row(quantity, values.mean(), exact, len(values), tap, at=at)
        interval = bootstrap(values, level=self.level, generator=run.generator(quantity + tap.name))
        return _row(quantity, interval.value, kind, len(values), tap, interval.low, interval.high, at=at)

    # -- local Lipschitz constants ---------------------------------------------------------------------------------

    def _stretch(self, run: Run, notes: list[str]) -> list[Row]:
        source = run.taps.source
        layers = [tap for tap in run.taps if source is not None and tap.name != source.name]
        mixed = [tap.name for tap in layers if tap.mixes]
        if mixed or source is None:
            notes.append(
                f"No local Lipschitz constants: a sample's activation at {', '.join(mixed[:3])}"
                f"{' and others' if len(mixed) > 3 else ''} changes with the samples beside it (batch statistics, or "
                "random numbers in the network), so it is no function of the sample."
            )
            return []
        points = run.take(min(self.points, 8) if self.quick else self.points)
        blocks = []
        step = self._step(run)
        for start in range(0, points, step):
            stop = min(start + step, points)
            block = functools.partial(self._block, run, source, layers, start, stop)
            blocks.append(run.piece(self, ("stretch", start, stop), block))
            run.tell(f"{self.name}: stretch", stop, points, "samples")
        rows, missing, unsettled = [], [], 0
        for place, tap in enumerate(layers):
            for quantity in ("lipschitz_from_input", "lipschitz_from_previous"):
                key = f"{quantity}/{place}"
                if any(key not in block for block in blocks):
                    missing.append(f"{tap.name} ({quantity.removeprefix('lipschitz_from_')})")
                    continue
                values = torch.cat([block[key] for block in blocks])
                unsettled += sum(int((~block[key + "/converged"].bool()).sum()) for block in blocks)
                rows.append(self._mean(quantity, "lower", values, run, tap, over="mean"))
                rows.append(_row(quantity, values.max(), "lower", len(values), tap, at={"over": "max"}))
        if not self.quick and points < _LEAST_SAMPLES:
            notes.append(f"{points} points are too few for an interval of the local Lipschitz constants.")
        if source.role != "input":
            notes.append(f"The input has no derivative (it holds integers): stretch is measured from {source.name}.")
        if run.readout is not None:
            notes.append(f"Stretch is that of all valid tokens together, not of the readout ({run.readout}).")
        if missing:
            notes.append(f"No derivative, so no Lipschitz constant, at {', '.join(missing)}.")
        if unsettled:
            notes.append(
                f"{unsettled} Jacobian norms had a residual over {self.tol:g} after {self.max_iter} steps; "
                "they are lower estimates all the same."
            )
        return rows

    def _step(self, run: Run) -> int:
        """How many samples at once: the Lanczos vectors and the graph within the run's memory, eight at most."""
        vectors = 2 * self.max_iter * max(tap.numel for tap in run.taps)
        graph = 24 * sum(tap.numel for tap in run.taps)
        return max(1, min(8, parse_bytes(run.memory) // (4 * (vectors + graph))))

    def _block(self, run: Run, source: Tap, taps: list[Tap], start: int, stop: int) -> dict[str, Tensor]:
        """Jacobian norms at samples ``start … stop - 1``, keyed by quantity and place of the layer."""
        kept: dict[str, Tensor] = {}

        def on(tap: Tap, activation: Tensor) -> Tensor:
            if tap.name == source.name:
                activation = activation.detach().requires_grad_()
            kept[tap.name] = activation
            return activation.clone()  # an in-place activation after it must not change what was kept

        (batch,) = run.data.batches(stop - start, start=start, stop=stop, device=run.device)
        mask = batch.inputs.get("attention_mask") if isinstance(batch.inputs, dict) else None
        found: dict[str, Tensor] = {}
        # Fused attention has no second derivative; the plain formula has.
        with still(run.model, statistics=run.statistics, grad=True, seed=run.seed), sdpa_kernel(SDPBackend.MATH):
            with tapped(run.model, [source, *taps], on):
                feed(run.model, prepared(run.model, batch.inputs))
            layers = [kept[source.name], *(kept[tap.name] for tap in taps)]
            for place in range(len(taps)):
                y = _valid(layers[place + 1], mask)
                for quantity, x in (("input", layers[0]), ("previous", layers[place])):
                    key = f"lipschitz_from_{quantity}/{place}"
                    if place == 0 and quantity == "previous":
                        same = {
                            name: value for name, value in found.items() if name.startswith("lipschitz_from_input/0")
                        }
                        found |= {name.replace("input", "previous"): value for name, value in same.items()}
                        continue
                    # Its first vector is the sample's own: the result does not depend on who shares the block.
                    first = run.draw(key, start, stop - start, x.shape[1:])
                    try:
                        norm = jacobian_norm(y, x, start=first, max_iter=self.max_iter, tol=self.tol)
                    except (ValueError, RuntimeError) as error:
                        if _has_no_derivative(error):
                            continue
                        raise
                    found[key] = norm.value.cpu()
                    found[key + "/converged"] = norm.converged.cpu()
        return found


def _valid(activation: Tensor, mask: Tensor | None) -> Tensor:
    """Token activations ``[n, t, d]`` with the padding set to zero: padding is not data, and must not stretch."""
    if mask is None or activation.ndim != 3 or mask.shape != activation.shape[:2]:
        return activation
    return activation * mask[..., None].to(activation.dtype)


def _has_no_derivative(error: Exception) -> bool:
    text = str(error)
    return any(words in text for words in _WITHOUT)


def _wide(tensor: Tensor) -> torch.dtype:
    """A precision to add squares up in."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _row(
    quantity: str,
    value: Tensor | float,
    kind: Kind,
    n: int,
    tap: Tap,
    low: Tensor | float | None = None,
    high: Tensor | float | None = None,
    *,
    at: Mapping[str, str | int] | None = None,
) -> Row:
    ends = {} if low is None or high is None else {"low": float(low), "high": float(high)}
    return Row(quantity, float(value), kind, n, tap.name, tap.depth, at=at or {}, **ends)
