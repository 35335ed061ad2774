"""From distances between neighbouring diagrams to the rows, curves and warnings of Topology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lisse.maths.change_rate import change_rate, cumulative_rate, mean_rate, rate_curve, topolip
from lisse.maths.intervals import across_clouds
from lisse.profile import Row, Value
from lisse.run.rows import clouds_row
from lisse.taps import Tap

_MOVES = 0.1  # a summary that changes by more than this share from half a cloud to a whole one has not settled
_SUMMARIES = {"topolip_change_rate": topolip, "mean_change_rate": mean_rate}


@dataclass(frozen=True)
class LayerDistances:
    """Distances between neighbouring layers ``[k, pairs]`` over clouds; NaN where one is missing.

    ``floors`` of the same shape: what rounding may make of two equal diagrams. ``at``: order, dimension, size of a
    cloud.
    """

    values: Tensor
    floors: Tensor
    at: Mapping[str, Value]

    @property
    def rates(self) -> Tensor:
        """Change rates ``[k, pairs - 1]``, with distances of the size of rounding taken for 0."""
        return change_rate(torch.where(self.equal, 0.0, self.values))

    @property
    def equal(self) -> Tensor:
        """``[k, pairs]``: where two diagrams are the same."""
        return self.values <= self.floors

    @property
    def missing(self) -> Tensor:
        """``[pairs]``: where there is no distance."""
        return self.values.isnan().any(0)

    def row(self, quantity: str, values: Tensor, level: float, tap: Tap | None = None) -> Row:
        """One number from its values over clouds ``[k]``; none of Topology's is ever negative."""
        return clouds_row(quantity, values, int(self.at["cloud"]), tap, self.at, level=level, least=0.0)


def row_coordinates(p: Sequence[float], dims: Sequence[int]) -> dict[tuple[int, int], dict[str, Value]]:
    """Where a number ``[…, p, dims]`` of :func:`with_all` stands: order, and dimension or ``all``."""
    orders = [int(order) if float(order).is_integer() else float(order) for order in p]
    names: Sequence[int | str] = (*dims, "all") if len(dims) > 1 else dims
    return {(i, j): {"p": order, "dim": dim} for i, order in enumerate(orders) for j, dim in enumerate(names)}


def with_all(values: Tensor, p: Sequence[float]) -> Tensor:
    """Beside the dimensions ``[…, p, dims]`` all of them together, :math:`(\\sum_k W_k^p)^{1/p}`."""
    if values.shape[-1] == 1:
        return values
    norms = [torch.linalg.vector_norm(values[..., index, :], ord=float(order), dim=-1) for index, order in enumerate(p)]
    return torch.cat([values, torch.stack(norms, -1)[..., None]], -1)


def layer_rows(taps: Sequence[Tap], distances: LayerDistances, level: float) -> list[Row]:
    """Distance, rate and cumulative rate along depth, without those that need a missing distance."""
    rates = distances.rates
    cumulative = cumulative_rate(rates)
    rows = []
    for index, tap in enumerate(taps[1:]):
        if not distances.missing[index]:
            rows.append(distances.row("diagram_distance", distances.values[:, index], level, tap))
        if index > 0 and not distances.missing[index - 1 : index + 1].any():
            rows.append(distances.row("change_rate", rates[:, index - 1], level, tap))
        if index > 0 and not distances.missing[: index + 1].any():
            rows.append(distances.row("cumulative_change_rate", cumulative[:, index - 1], level, tap))
    return rows


def summary_rows(distances: LayerDistances, level: float) -> list[Row]:
    """The largest and the mean rate; none where a distance is missing, for it might have been the largest."""
    if distances.missing.any():
        return []
    return [distances.row(name, summary(distances.rates), level) for name, summary in _SUMMARIES.items()]


def curves(distances: LayerDistances) -> dict[str, np.ndarray]:
    """Curves ``[k, 101]`` over normalised depth, cumulated first, interpolated then; ``steps`` ``[k, pairs]`` as is."""
    if distances.missing.any():
        return {}
    rates, at = distances.rates, distances.at
    series = {
        "diagram_distance": distances.values,
        "change_rate": rates,
        "cumulative_change_rate": cumulative_rate(rates),
    }
    arrays = {
        f"landscape/{name}/p={at['p']:g}/dim={at['dim']}": rate_curve(values).numpy() for name, values in series.items()
    }
    steps = torch.where(distances.equal, 0.0, distances.values)
    return arrays | {f"steps/p={at['p']:g}/dim={at['dim']}": steps.numpy()}


def equal_layers(taps: Sequence[Tap], steps: Sequence[LayerDistances]) -> list[str]:
    """Where rates have no value because the two diagrams before them are the same."""
    equal = torch.stack([distances.equal[:, :-1] for distances in steps])
    if not bool(equal.any()):
        return []
    indices = equal.any(0).any(0).nonzero()[:, 0].tolist()
    names = [f"{taps[index].name} = {taps[index + 1].name}" for index in indices]
    return [
        f"{int(equal.sum())} of {equal.numel()} change rates have no value and are left out of maximum and mean: the "
        f"diagrams before them are equal ({', '.join(names[:5])}{', …' if len(names) > 5 else ''})."
    ]


def unsettled(halved: Sequence[LayerDistances], steps: Sequence[LayerDistances], level: float) -> list[str]:
    """Warnings where summaries still move with the number of points, or vary too much to tell.

    Halves are parts of the clouds, so each cloud is compared with its own half: the change has an interval of its own,
    and what the clouds have in common does not blur it.
    """
    if not halved:
        return []
    moving: list[tuple[float, str]] = []
    unclear: list[tuple[float, str]] = []
    for small, large in zip(halved, steps, strict=True):
        if small.missing.any() or large.missing.any():
            continue
        for name, summary in _SUMMARIES.items():
            before, after = summary(small.rates), summary(large.rates)
            defined = ~(before.isnan() | after.isnan())
            before, after = before[defined], after[defined]
            if not len(after):
                continue
            size = float(after.mean())
            share = abs(float((after - before).mean())) / size if size else 0.0
            if share > _MOVES:
                words = f"{name} p={large.at['p']:g} dim={large.at['dim']}: {float(before.mean()):.3g} to {size:.3g}"
                (moving if _moves(after - before, level) else unclear).append((share, words))
    sizes = f"from {halved[0].at['cloud']} to {steps[0].at['cloud']} points a cloud"
    notes = []
    if moving:
        notes.append(
            f"Not settled: {len(moving)} of {2 * len(steps)} summaries still move by more than {_MOVES:.0%} {sizes} "
            f"(most: {max(moving)[1]}). Compare clouds of one size only, or take more samples."
        )
    if unclear:
        notes.append(
            f"Perhaps not settled: {len(unclear)} of {2 * len(steps)} summaries differ by more than {_MOVES:.0%} "
            f"{sizes} but vary as much from cloud to cloud (most: {max(unclear)[1]}). More clouds or more samples "
            "would tell."
        )
    return notes


def _moves(change: Tensor, level: float) -> bool:
    """Whether the change of each cloud ``[k]`` is one beyond chance; that of one cloud is taken for one."""
    if len(change) == 1:
        return True
    interval = across_clouds(change, level=level)
    return not float(interval.low) <= 0.0 <= float(interval.high)
