"""How alike the clouds of two layers are: similarity, the best rotation, holes, tokens as measures."""

from __future__ import annotations

import torch
from torch import Tensor

from lisse.maths.drift import aligned_difference, ratio, valid_part
from lisse.maths.homology import diagram_distance, persistence
from lisse.maths.similarity import linear_cka
from lisse.maths.transport import wasserstein, wasserstein_infinity

CLOUD = 20  # samples that one number is of
WIDEST = 1024  # of a layer that is turned onto another: an SVD of this size
MOST_TOKENS = 128


def likeness(name: str, a: Tensor, b: Tensor, mask: Tensor | None, *, tokens: bool) -> dict[str, Tensor]:
    """Of activations ``[n, …]`` in A and B: ``cka/…``, ``aligned/…``, ``holes/…`` of clouds, ``tokens/…`` of samples.

    Clouds are of twenty samples each; ``aligned`` is of all points of the batch. ``tokens`` asks for the distances of
    measures of tokens as well, of the first samples. Where anything is not finite there is none of them.
    """
    if not (bool(torch.isfinite(a).all()) and bool(torch.isfinite(b).all())):
        return {}
    a, b = valid_part(a, mask), valid_part(b, mask)
    numbers = _of_clouds(name, a, b)
    if a.shape != b.shape or a.ndim < 3:
        return numbers
    rows = [(part.movedim(1, -1) if part.ndim == 4 else part).flatten(0, -2).double() for part in (a, b)]
    points, width = rows[0].shape
    if width <= WIDEST and points >= 4 * width:  # of fewer points some rotation fits
        squares = [part.square().sum() for part in rows]
        numbers[f"aligned/{name}"] = aligned_difference(rows[0].T @ rows[1], *squares).cpu().reshape(1)
    if tokens and a.ndim == 3 and a.shape[1] <= MOST_TOKENS:
        numbers |= _of_tokens(name, a, b, mask)
    return numbers


def _of_clouds(name: str, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    values: dict[str, list[Tensor]] = {"cka": [], "holes0": [], "holes1": []}
    for x, y in zip(a.split(CLOUD), b.split(CLOUD), strict=True):
        if len(x) < CLOUD:
            continue
        x, y = (part.flatten(1).double().cpu() for part in (x, y))
        values["cka"].append(linear_cka(x, y, estimator="unbiased"))
        diagrams = [persistence(part) for part in (x, y)]
        for dim in (0, 1):
            change = torch.tensor(diagram_distance(*diagrams, dim=dim), dtype=torch.float64)
            total = diagrams[0].lifetimes(dim).sum().double() / 2  # the distance to a diagram without bars
            values[f"holes{dim}"].append(ratio(change, total) if change == 0 or total > 0 else change * torch.nan)
    return {f"{key}/{name}": torch.stack(parts) for key, parts in values.items() if parts}


def _of_tokens(name: str, a: Tensor, b: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """W1 and W∞ between the measures of a sample's tokens, over the mean norm of its tokens in A."""
    values: dict[str, list[Tensor]] = {"tokens1": [], "tokensinf": []}
    for index in range(min(len(a), 16)):
        valid = slice(None) if mask is None or mask.shape[1] != a.shape[1] else mask[index].to(a.device)
        x, y = (part[index][valid].double().cpu() for part in (a, b))
        size = x.norm(dim=1).mean()
        values["tokens1"].append(ratio(wasserstein(x, y, ground=2), size))
        values["tokensinf"].append(ratio(wasserstein_infinity(x, y), size))
    return {f"{key}/{name}": torch.stack(parts) for key, parts in values.items()}
