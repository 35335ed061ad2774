"""The numbers of one block on one batch: Theorem 5.1's two sides, the kernel, how far it looks, the rank it adds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from lisse.maths.attention_distance import grid_distances, uniform_attention
from lisse.maths.integral import dot_decomposition, kernel_scores, offset_defect, row_distance, symmetry_defect
from lisse.maths.rank import gram_rank
from lisse.maths.variation import token_norm, token_variation
from lisse.networks.attention import Heads
from lisse.profile import Value

# The largest radius of the attention's profile over all radii; what lies further is told only where it is asked for.
PROFILE = 16


def key(quantity: str, **at: Value) -> str:
    """The name under which the values of a quantity at its coordinates are kept; :func:`quantity_at` reads it."""
    return json.dumps([quantity, at])


def is_key(name: str) -> bool:
    """Whether a name is a :func:`key`, and not that of an array."""
    return name.startswith("[")


def quantity_at(name: str) -> tuple[str, dict[str, Value]]:
    """The quantity and the coordinates of a :func:`key`."""
    quantity, at = json.loads(name)
    return quantity, at


def steps(
    v: Tensor, u: Tensor, z: Tensor, after: Tensor, mixed: Tensor | None, grid: tuple[int, int]
) -> dict[str, Tensor]:
    r"""Theorem 5.1 in four readings, one number per image each.

    v is what enters the block, u what enters the attention (after the norm in front of it), z the attention's output,
    ``after`` the block's, ``mixed`` :math:`\bar A u` with the mean :math:`\bar A` over heads: all [n, p, d].
    """
    size = token_norm(v), token_variation(v, grid=grid)  # of what these three begin with
    changes = {
        **step("sublayer", z, size, grid),
        **step("sublayer without skip", z - v, size, grid),
        **step("block", after - v, size, grid),
        key("norm", of="block"): size[0],
        key("variation", of="block"): size[1],
    }
    if mixed is None:
        return changes
    size = token_norm(u), token_variation(u, grid=grid)
    inside = {key("norm", of="attention"): size[0], key("variation", of="attention"): size[1]}
    return {**step("attention", mixed - u, size, grid), **inside, **changes}


def step(of: str, moved: Tensor, size: tuple[Tensor, Tensor], grid: tuple[int, int]) -> dict[str, Tensor]:
    """How far tokens moved [n, p, d], also over their norm and variation, and times the patches per side."""
    change = token_norm(moved)
    ratio = change / (size[0] + size[1])
    side = (grid[0] * grid[1]) ** 0.5
    return {key("change", of=of): change, key("ratio", of=of): ratio, key("scaled_ratio", of=of): side * ratio}


class Rings:
    """Distances on a grid as columns, so that one product of the attention with them gives every mean at once.

    ``radii`` are those that rows tell; ``every`` are these and 0 … :data:`PROFILE`, as far as the ``largest`` grid
    goes. A text that is shorter than the longest has a ``grid`` of its own, and the same columns.
    """

    def __init__(self, grid: tuple[int, int], radii: tuple[int, ...], largest: tuple[int, int]) -> None:
        euclidean, chebyshev = (grid_distances(grid, metric=metric) for metric in ("euclidean", "chebyshev"))
        self.radii = tuple(radius for radius in radii if radius < max(largest))
        self.every = self.radii_of(radii, max(largest))
        self.whole: Rings | None = None
        columns = [euclidean, *((chebyshev <= radius).double() for radius in self.every)]
        self.columns = torch.stack(columns, -1)  # [p, p, 1 + every]
        p = grid[0] * grid[1]
        self.uniform = torch.einsum("ij,ijr->r", uniform_attention(p), self.columns) / p

    @staticmethod
    def radii_of(radii: Sequence[int], reach: int) -> tuple[int, ...]:
        """Those within the ``reach`` of a grid, and 0 … :data:`PROFILE`."""
        return tuple(sorted({*(radius for radius in radii if radius < reach), *range(min(reach, PROFILE + 1))}))

    def column(self, radius: int) -> int:
        """The column of a radius."""
        return 1 + self.every.index(radius)

    def first(self, length: int) -> Rings:
        """Those of the first places of a line, which is their own: one table of distances serves every length."""
        line = copy(self)
        line.whole, line.columns = self, self.columns[:length, :length]
        line.uniform = torch.einsum("ij,ijr->r", uniform_attention(length), line.columns.double().cpu()) / length
        return line

    def like(self, matrix: Tensor) -> Tensor:
        """The columns in the type and on the device of ``matrix``."""
        if self.whole is not None:
            length = len(self.columns)
            self.columns = self.whole.like(matrix)[:length, :length]
            return self.columns
        if self.columns.dtype != matrix.dtype or self.columns.device != matrix.device:
            self.columns = self.columns.to(matrix)
        return self.columns

    def of(self, matrix: Tensor) -> Tensor:
        """Means over queries ``[…, 1 + every]`` of attention ``[…, p, p]``."""
        return matrix.flatten(-2) @ self.like(matrix).flatten(0, 1) / matrix.shape[-1]

    def masked(self, matrix: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The same for masked queries over unmasked keys, scaled to sum to 1, and what uniform weights would give.

        Weights may be negative, as those of (25) are: their sizes count.

        ``matrix`` ``[n, M, p, p]``, ``hidden`` ``[n, p]``: ``[n, M, 1 + every]`` and ``[n, 1 + every]``.
        """
        keys = (~hidden).to(matrix)
        rows = matrix.abs() * keys[:, None, None, :]
        rows = rows / rows.sum(-1, keepdim=True).clamp_min(1e-30)
        weights = hidden.to(matrix) / hidden.sum(1, keepdim=True)
        columns = self.like(matrix)
        means = torch.einsum("nmij,ni,ijr->nmr", rows, weights, columns)
        even = torch.einsum("nj,ni,ijr->nr", keys / keys.sum(1, keepdim=True), weights, columns)
        return means, even


def distances(by_head: Tensor, rings: Rings, **at: Value) -> dict[str, Tensor]:
    """Rows of :class:`Rings`: the mean over heads, and the nearest and the farthest head's distance."""
    rows = {
        key("attention_distance", over="mean", **at): by_head[..., 0].mean(1),
        key("attention_distance", over="nearest head", **at): by_head[..., 0].amin(1),
        key("attention_distance", over="farthest head", **at): by_head[..., 0].amax(1),
    }
    for radius in rings.radii:
        rows[key("attention_mass", radius=radius, **at)] = by_head[..., rings.column(radius)].mean(1)
    return rows


def kernel(heads: Heads, matrix: Tensor, grid: tuple[int, int], span: slice) -> dict[str, Tensor]:
    """Symmetry and translation invariance of the kernel on the patches, means over heads; ``matrix`` is theirs alone.

    ``span`` are the patches among the tokens. In the readings that [cao2022] puts in place of the dot product queries
    and keys are the layer's own; where a query may not look, it may not in these either.
    """
    numbers = {
        key("asymmetry", of="rows"): symmetry_defect(matrix).mean(1),
        key("offset_defect"): offset_defect(matrix.mean(1), grid=grid),
    }
    if heads.query is None or heads.key is None:
        return numbers
    q, k = (part[..., span, :].to(matrix) for part in (heads.query, heads.key))
    kind: Any = heads.reading
    paired = kind in ("rbf_w", "eq11_literal")
    # Not the layer's own scores: those leave out what is constant in a row, which the kernel's symmetry needs.
    scores = kernel_scores(q, k, kind=kind) if paired else kernel_scores(q, k, kind=kind, scale=heads.scale)
    raw = (scores - scores.amax((-2, -1), keepdim=True)).exp()
    numbers[key("asymmetry", of="kernel")] = symmetry_defect(raw).mean(1)
    readings = {
        "gauss_qk": kernel_scores(q, k, kind="gauss_qk", scale=heads.scale),
        "rbf_w": kernel_scores(q, k, kind="rbf_w"),
    }
    for name, scores in readings.items():
        if heads.shut is not None:
            scores = scores.masked_fill(heads.shut[..., span, span], -torch.inf)
        numbers[key("reading_distance", to=name)] = row_distance(matrix, scores.softmax(-1)).mean(1)
    terms = dot_decomposition(q, k, scale=heads.scale)
    for index, name in enumerate(("query", "key", "difference")):
        numbers[key("norm_term", of=name)] = terms.shares[..., index].mean(1)
    numbers[key("key_spread")] = terms.key_spread.mean(1)
    return numbers


def grams(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """Gram matrices of each image's tokens before a feed-forward network and of those on both sides of it, float64."""
    return _gram(before), _gram(torch.cat((before, after), 1))


def added_rank(before: Sequence[Tensor], both: Sequence[Tensor]) -> list[Tensor]:
    r"""Directions that feed-forward networks add to each image's tokens: rank[y; y'] - rank y, from :func:`grams`.

    Singular values under 1e-3 of the largest count as nothing. Attention stays in the span of its values; this is
    what the other half of the block brings ([cao2022] sec. 6). Those of one size are taken together.
    """
    ranks = []
    for side in (before, both):
        sizes: dict[Any, list[int]] = {}
        for index, gram in enumerate(side):
            sizes.setdefault((gram.shape[-1], gram.device), []).append(index)
        counts: dict[int, Tensor] = {}
        for indices in sizes.values():
            parts = [side[index] for index in indices]
            counts |= zip(indices, gram_rank(torch.cat(parts)).split([len(part) for part in parts]), strict=True)
        ranks.append(counts)
    return [(ranks[1][index] - ranks[0][index]).double() for index in range(len(before))]


def _gram(tokens: Tensor) -> Tensor:
    wide = tokens.double()
    return wide @ wide.mT if wide.shape[1] <= wide.shape[2] else wide.mT @ wide


def in_order(parts: Sequence[Mapping[str, Tensor]], groups: Sequence[Tensor]) -> dict[str, Tensor]:
    """Numbers of groups of samples, each put back where its sample is."""
    if len(groups) == 1:  # all samples, in order
        return {name: values.double() for name, values in parts[0].items()}
    order = torch.cat([*groups, torch.empty(0, dtype=torch.long)]).argsort()
    numbers: dict[str, Tensor] = {}
    for name in parts[0] if parts else ():
        values = torch.cat([part[name].double() for part in parts])
        order = order.to(values.device)
        numbers[name] = values[order]
    return numbers
