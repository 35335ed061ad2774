"""Lipschitz: the constant of every block between two ends, what its weights promise and what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from lisse.instruments.jacobians import graph, graph_bytes, local_norm, samples_at_once
from lisse.maths.given import all_finite, overflow_advice
from lisse.networks.bounds import LayerBound, layer_bounds
from lisse.networks.bounds.layers import WHOLE_NETWORK
from lisse.networks.recorded import only_recorded
from lisse.profile import Chart, Line, Panel, Part, Quantity, Row
from lisse.run import Instrument, Run, option
from lisse.run.rows import largest_row, value_row
from lisse.taps import Tap


@dataclass(frozen=True)
class Lipschitz(Instrument):
    """Per block: the Lipschitz constant from above, by the weights alone, and from below, by its Jacobians at samples.

    The truth lies between the two, and the room between them is what is not known. A bound that is ``vacuous`` powers
    of ten above what was measured is left out, with the reason. Attention is bounded for tokens no larger than those
    seen.
    """

    points: int = option(8, "samples at which Jacobians are taken", quick=2, usual=4, least=1)
    max_iter: int = option(15, "most Lanczos steps for a Jacobian's norm", quick=6, least=1)
    tol: float = option(1e-2, "relative residual at which they stop", above=0)
    variance: float = option(0.0, "least variance of a token at a layer norm that may be relied on", least=0)
    vacuous: float = option(4.0, "powers of ten above the measured stretch from which a bound is left out", above=0)

    CHARTS: ClassVar[tuple[Chart, ...]] = (
        Chart(
            "lipschitz",
            "The Lipschitz constant of a block, from both sides",
            "What the weights prove, from above, and the largest local stretch that was measured, from below: the "
            "truth lies between the two. A bound that says nothing is not drawn.",
            (
                Panel(
                    "log10 of both ends",
                    (
                        Line("log_weights_bound", "proved, of the weights", {}, power=True),
                        Line("log_block_stretch", "measured", {}, power=True),
                    ),
                    powers=True,
                ),
            ),
            apart=True,
            lead=True,
        ),
    )
    QUANTITIES: ClassVar[tuple[Quantity, ...]] = (
        Quantity(
            "log_weights_bound",
            "bound of the weights (log10)",
            "The proved bound of how far the block can stretch any difference of two inputs, as a power of ten.",
            r"\log_{10} L, \quad \|f(x) - f(y)\|_2 \le L\|x - y\|_2",
            better="lower",
        ),
        Quantity(
            "log_block_stretch",
            "measured stretch (log10)",
            "The steepest small change at a few samples: how far the block stretches it at least, as a power of ten.",
            r"\log_{10} \max_x\|\partial f(x)/\partial x\|_2 \le \log_{10} L",
            better="lower",
        ),
        Quantity(
            "log_room",
            "bound over stretch (log10)",
            "How many powers of ten the bound of the weights is above the stretch that was measured: 0 is exact.",
            r"\log_{10}(L / \max_x\|\partial f(x)/\partial x\|_2)",
            better="lower",
            neutral=0.0,
        ),
    )

    SPARES: ClassVar[str] = "Give a smaller memory= or max_iter=."

    def seconds(self, per_sample: float, layers: int, n: int) -> float:
        """The Lanczos steps of every block; the bounds of the weights take about as long as a few hundred samples."""
        return (2.5 * min(self.points, n) * layers * self.max_iter + 300) * per_sample

    def bytes(self, run: Run) -> int:
        """The graph of a few samples and the Lanczos vectors, and a layer's weights once more."""
        weights = max((weight.nbytes for weight in run.model.parameters()), default=0)
        return graph_bytes(run, self.max_iter) + 2 * weights

    def fits(self, run: Run) -> str | None:
        """Any network of whose blocks one has a bound."""
        if (reason := only_recorded(run.model, "it reads weights")) is not None:
            return reason
        if run.taps.source is None:
            return "it has no place where a sample enters."
        return None

    def part(self, run: Run) -> Part:
        """Measure."""
        (example,) = run.data.batches(min(3, len(run)), stop=min(3, len(run)), device=run.device)
        names = [row.name for row in layer_bounds(run.model, example.inputs, bounded=False)]
        taps = {tap.name: tap for tap in run.taps.everywhere}
        spots = {name: pair for name in names if (pair := _ends(name, taps, run)) is not None}
        numbers = run.blocks(
            self,
            "stretch",
            run.take(self.points),
            lambda start, stop: self._at(run, spots, start, stop),
            task=f"{self.name}: stretch",
            step=samples_at_once(run, self.max_iter),
        )
        radii = {name: float(numbers[f"{name}/radius"].max()) for name in spots if f"{name}/radius" in numbers}
        bounds = layer_bounds(
            run.model, example.inputs, radius=radii, variance=self.variance, progress=run.progress, tol=1e-3
        )
        rows: list[Row] = []
        notes: list[str] = []
        reasons: dict[str, list[str]] = {}
        for row in bounds:
            layer = spots[row.name][1] if row.name in spots and row.name != WHOLE_NETWORK else None
            stretch = numbers.get(row.name)
            log_stretch = math.log10(float(stretch.max())) if stretch is not None and float(stretch.max()) > 0 else None
            if layer is None and row.name != WHOLE_NETWORK:
                continue
            if log_stretch is not None and stretch is not None:
                rows.append(largest_row("log_block_stretch", stretch.log10(), "lower", layer))
            if row.bound is None:
                reasons.setdefault(row.reason, []).append(row.name)
            elif log_stretch is not None and row.bound.log10 - log_stretch > self.vacuous:
                why = f"10^{row.bound.log10:.3g} says nothing: {_why(run.model, row)}"
                reasons.setdefault(why, []).append(row.name)
            elif math.isfinite(row.bound.log10):
                rows.append(value_row("log_weights_bound", row.bound.log10, "upper", 0, layer))
                if log_stretch is not None and stretch is not None:
                    rows.append(value_row("log_room", row.bound.log10 - log_stretch, "upper", len(stretch), layer))
        notes += [f"No bound at {', '.join(names[:3])}{_more(names)}: {why}" for why, names in reasons.items()]
        return self.part_of(rows, notes)

    def _at(self, run: Run, spots: Mapping[str, tuple[Tap, Tap]], start: int, stop: int) -> dict[str, Tensor]:
        """Jacobian norms and the size of what enters, of samples ``start … stop - 1``, by block."""
        (batch,) = run.data.batches(stop - start, start=start, stop=stop, device=run.device)
        numbers: dict[str, Tensor] = {}
        taps = {tap.name: tap for pair in spots.values() for tap in pair}
        with graph(run, list(taps.values()), batch.inputs, run.taps.source) as (_, activations, _):
            for name, (entry, end) in spots.items():
                x, y = activations[entry.name], activations[end.name]
                first = run.draw(f"lipschitz/{name}", start, stop - start, x.shape[1:])
                norm = local_norm(y, x, start=first, max_iter=self.max_iter, tol=self.tol) if x.requires_grad else None
                if norm is not None:
                    numbers[name] = norm.value.cpu()
                for spot, values in ((entry, x), (end, y)):
                    if not all_finite(values.detach()):
                        raise ValueError(
                            f"{self.name}: activations must be finite, got NaN or infinity at layer {spot.name}."
                            + overflow_advice(values)
                        )
                rows = x.detach() if x.ndim == 3 else x.detach().flatten(1)[:, None]
                numbers[f"{name}/radius"] = torch.linalg.vector_norm(rows.double(), dim=-1).amax(1).cpu()
        return numbers


def _ends(name: str, taps: Mapping[str, Tap], run: Run) -> tuple[Tap, Tap] | None:
    """Where a block begins and where it ends; of the network, the first layer and the answer."""
    if name == WHOLE_NETWORK:
        head = run.taps.head or run.last_block
        return (run.taps.source, head) if run.taps.source is not None and head is not None else None
    return (taps[f"{name}:in"], taps[name]) if f"{name}:in" in taps and name in taps else None


def _why(model: nn.Module, row: LayerBound) -> str:
    """What makes a bound useless: a norm that promises nothing, attention, or the depth of a product."""
    module = None if row.name == WHOLE_NETWORK else model.get_submodule(row.name.partition("#")[0])
    norms = (
        () if module is None else {type(part).__name__ for part in module.modules() if "Norm" in type(part).__name__}
    )
    if any(not name.startswith("Batch") for name in norms):
        return "its norm divides by a deviation of which nothing is promised (variance)."
    return "the constants of its layers multiply, as if every one were steepest in the same direction."


def _more(names: list[str]) -> str:
    return f" and {len(names) - 3} more" if len(names) > 3 else ""
