"""How alike the clouds of two layers are: similarity, the best rotation, holes, tokens as measures."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lisse.maths.drift import aligned_difference, ratio, valid_part
from lisse.maths.homology import diagram_distance, persistence
from lisse.maths.similarity import gram_cka
from lisse.maths.transport import wasserstein, wasserstein_infinity

CLOUD = 20  # samples that one number is of
COMPARED = 5 * CLOUD  # samples whose clouds are compared: five numbers have an interval
WIDEST = 1024  # of a layer that is turned onto another: an SVD of this size
MOST_TOKENS = 128
FEW_TOKENS = 16  # samples whose tokens are carried onto each other


def cloud_sums(name: str, a: Tensor, b: Tensor, mask: Tensor | None, start: int) -> dict[str, Tensor]:
    """What :func:`likeness` needs of a layer's activations ``[n, …]`` in A and B, left on their device.

    ``gram/LAYER`` ``[2, k, 20, 20]`` of clouds of twenty samples each; of all points ``cross/LAYER`` ``[d, d]`` and
    ``sizes/LAYER``. What is solved of them is small, and slow on a GPU.
    """
    a, b = valid_part(a, mask), valid_part(b, mask)
    count = min(len(a), COMPARED - start) // CLOUD
    sums = {f"gram/{name}": torch.stack([_grams(part, count) for part in (a, b)])} if count > 0 else {}
    if a.shape == b.shape and a.ndim > 2 and start < COMPARED:
        rows = [(part.movedim(1, -1) if part.ndim == 4 else part).flatten(0, -2) for part in (a, b)]
        points, width = rows[0].shape
        if width <= WIDEST and points >= 4 * width:  # of fewer points some rotation fits
            x, y = (part.double() for part in rows)
            sums[f"cross/{name}"] = x.T @ y
            sums[f"sizes/{name}"] = torch.stack([torch.linalg.vector_norm(part) for part in (x, y)])
    return sums


def _grams(values: Tensor, count: int) -> Tensor:
    clouds = [cloud.flatten(1).double() for cloud in values[: count * CLOUD].split(CLOUD)]
    return torch.stack([cloud @ cloud.T for cloud in (cloud - cloud.mean(0) for cloud in clouds)])


def likeness(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of sums on the CPU: ``cka/…`` and ``holes0/…``, ``holes1/…``, by finite clouds; and ``aligned/…``."""
    numbers: dict[str, list[Tensor]] = {}
    for key, value in sums.items():
        kind, _, name = key.partition("/")
        if kind == "cross" and bool(value.isfinite().all()):
            numbers[f"aligned/{name}"] = [aligned_difference(value, *sums[f"sizes/{name}"].square())]
        if kind != "gram":
            continue
        for x, y in value.transpose(0, 1):
            if not (bool(x.isfinite().all()) and bool(y.isfinite().all())):
                continue
            numbers.setdefault(f"cka/{name}", []).append(gram_cka(x, y))
            diagrams = [persistence(distances=_distances(gram)) for gram in (x, y)]
            for dim in (0, 1):
                change = torch.tensor(diagram_distance(*diagrams, dim=dim), dtype=torch.float64)
                total = diagrams[0].lifetimes(dim).sum().double() / 2  # the distance to a diagram without bars
                share = ratio(change, total) if change == 0 or total > 0 else change * torch.nan
                numbers.setdefault(f"holes{dim}/{name}", []).append(share)
    return {key: torch.stack(parts) for key, parts in numbers.items()}


def _distances(gram: Tensor) -> Tensor:
    squares = gram.diagonal()
    return (squares[:, None] + squares - gram - gram.T).clamp_min(0).fill_diagonal_(0).sqrt()


def token_distances(name: str, a: Tensor, b: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """W1 and W∞ between the measures of a sample's tokens, over the mean norm of its tokens in A, of the first samples.

    Solved on the CPU. None where activations are no tokens, or more than 128 a sample; NaN for a sample that is not
    finite.
    """
    if a.shape != b.shape or a.ndim != 3 or a.shape[1] > MOST_TOKENS:
        return {}
    first, second = (part[:FEW_TOKENS].double().cpu() for part in (a, b))
    values: dict[str, list[Tensor]] = {"tokens1": [], "tokensinf": []}
    for index, (x, y) in enumerate(zip(first, second, strict=True)):
        if mask is not None and mask.shape[1] == a.shape[1]:
            x, y = x[mask[index]], y[mask[index]]
        if not bool(x.isfinite().all() and y.isfinite().all()):
            for distances in values.values():
                distances.append(x.new_tensor(torch.nan))
            continue
        size = x.norm(dim=1).mean()
        values["tokens1"].append(ratio(wasserstein(x, y, ground=2), size))
        values["tokensinf"].append(ratio(wasserstein_infinity(x, y), size))
    return {f"{key}/{name}": torch.stack(parts) for key, parts in values.items()}
