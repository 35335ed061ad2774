"""The numbers of one block on one batch: Theorem 5.1's two sides, the kernel, how far it looks, the rank it adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lisse.maths.attention_distance import grid_distances, uniform_attention
from lisse.maths.integral import dot_decomposition, kernel_scores, offset_defect, row_distance, symmetry_defect
from lisse.maths.variation import token_norm, token_variation
from lisse.networks.attention_heads import Heads
from lisse.profile import Value

# A quantity and its coordinates.
Key = tuple[str, tuple[tuple[str, Value], ...]]
# The largest radius of the attention's profile over all radii; what lies further is told only where it is asked for.
PROFILE = 16


def key(quantity: str, **at: Value) -> Key:
    """The key of a quantity at its coordinates."""
    return quantity, tuple(at.items())


def steps(
    v: Tensor, u: Tensor, z: Tensor, after: Tensor, mixed: Tensor | None, grid: tuple[int, int]
) -> dict[Key, Tensor]:
    r"""Theorem 5.1 in four readings, one number per image each.

    v is what enters the block, u what enters the attention (after the norm in front of it), z the attention's output,
    ``after`` the block's, ``mixed`` :math:`\bar A u` with the mean :math:`\bar A` over heads: all [n, p, d].
    """
    side = (grid[0] * grid[1]) ** 0.5
    changes = {"sublayer": z, "sublayer without skip": z - v, "block": after - v}
    sizes = {"block": (token_norm(v), token_variation(v, grid=grid))}  # of what all three begin with
    if mixed is not None:
        changes = {"attention": mixed - u, **changes}
        sizes["attention"] = token_norm(u), token_variation(u, grid=grid)
    found: dict[Key, Tensor] = {}
    for of, moved in changes.items():
        norm, variation = sizes.get(of, sizes["block"])
        change = token_norm(moved)
        ratio = change / (norm + variation)
        found[key("change", of=of)] = change
        found[key("ratio", of=of)] = ratio
        found[key("scaled_ratio", of=of)] = side * ratio
        if of in sizes:
            found[key("norm", of=of)] = norm
            found[key("variation", of=of)] = variation
    return found


class Rings:
    """Distances on a grid as columns, so that one product of the attention with them gives every mean at once.

    ``radii`` are those that rows tell; ``every`` are these and 0 … :data:`PROFILE`, as far as the ``whole`` grid goes.
    A text that is shorter than the longest has a ``grid`` of its own, and the same columns.
    """

    def __init__(self, grid: tuple[int, int], radii: tuple[int, ...], whole: tuple[int, int] | None = None) -> None:
        euclidean, chebyshev = (grid_distances(grid, metric=metric) for metric in ("euclidean", "chebyshev"))
        reach = max(whole or grid)
        self.radii = tuple(radius for radius in radii if radius < reach)
        self.every = tuple(sorted({*self.radii, *range(min(reach, PROFILE + 1))}))
        columns = [euclidean, *((chebyshev <= radius).double() for radius in self.every)]
        self.columns = torch.stack(columns, -1)  # [p, p, 1 + every]
        p = grid[0] * grid[1]
        self.uniform = torch.einsum("ij,ijr->r", uniform_attention(p), self.columns) / p

    def place(self, radius: int) -> int:
        """The column of a radius."""
        return 1 + self.every.index(radius)

    def like(self, matrix: Tensor) -> Tensor:
        """The columns in the type and on the device of ``matrix``."""
        if self.columns.dtype != matrix.dtype or self.columns.device != matrix.device:
            self.columns = self.columns.to(matrix)
        return self.columns

    def of(self, matrix: Tensor) -> Tensor:
        """Means over queries ``[…, 1 + every]`` of attention ``[…, p, p]``."""
        return matrix.flatten(-2) @ self.like(matrix).flatten(0, 1) / matrix.shape[-1]

    def chosen(self, matrix: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The same for masked queries over unmasked keys, scaled to sum to 1, and what uniform weights would give.

        Weights may be negative, as those of (25) are: their sizes count.

        ``matrix`` ``[n, M, p, p]``, ``hidden`` ``[n, p]``: ``[n, M, 1 + every]`` and ``[n, 1 + every]``.
        """
        keys = (~hidden).to(matrix)
        rows = matrix.abs() * keys[:, None, None, :]
        rows = rows / rows.sum(-1, keepdim=True).clamp_min(1e-30)
        weights = hidden.to(matrix) / hidden.sum(1, keepdim=True)
        columns = self.like(matrix)
        found = torch.einsum("nmij,ni,ijr->nmr", rows, weights, columns)
        even = torch.einsum("nj,ni,ijr->nr", keys / keys.sum(1, keepdim=True), weights, columns)
        return found, even


def distances(by_head: Tensor, rings: Rings, **at: Value) -> dict[Key, Tensor]:
    """Rows of :class:`Rings`: the mean over heads, and the nearest and the farthest head's distance."""
    found = {
        key("attention_distance", over="mean", **at): by_head[..., 0].mean(1),
        key("attention_distance", over="nearest head", **at): by_head[..., 0].amin(1),
        key("attention_distance", over="farthest head", **at): by_head[..., 0].amax(1),
    }
    for radius in rings.radii:
        found[key("attention_mass", radius=radius, **at)] = by_head[..., rings.place(radius)].mean(1)
    return found


def kernel(
    heads: Heads, matrix: Tensor, grid: tuple[int, int], first: int, *, causal: bool = False
) -> dict[Key, Tensor]:
    """Symmetry and translation invariance of the kernel on the patches, means over heads; ``matrix`` is theirs alone.

    ``first`` tokens come before the patches. In the readings that [cao2022] puts in place of the dot product queries
    and keys are the layer's own; with ``causal`` these too look back alone.
    """
    q, k = (part[..., first : first + matrix.shape[-1], :] for part in (heads.query, heads.key))
    kind: Any = heads.reading
    paired = kind in ("rbf_w", "eq11_literal")
    # Not the layer's own scores: those leave out what is constant in a row, which the kernel's symmetry needs.
    scores = kernel_scores(q, k, kind=kind) if paired else kernel_scores(q, k, kind=kind, scale=heads.scale)
    raw = (scores - scores.amax((-2, -1), keepdim=True)).exp()
    found = {
        key("asymmetry", of="rows"): symmetry_defect(matrix).mean(1),
        key("asymmetry", of="kernel"): symmetry_defect(raw).mean(1),
        key("offset_defect"): offset_defect(matrix.mean(1), grid=grid),
    }
    others = {
        "gauss_qk": kernel_scores(q, k, kind="gauss_qk", scale=heads.scale),
        "rbf_w": kernel_scores(q, k, kind="rbf_w"),
    }
    for name, other in others.items():
        if causal:
            other = other.masked_fill(torch.ones_like(other, dtype=torch.bool).triu(1), -torch.inf)
        found[key("reading_distance", to=name)] = row_distance(matrix, other.softmax(-1)).mean(1)
    terms = dot_decomposition(q, k, scale=heads.scale)
    for place, name in enumerate(("query", "key", "difference")):
        found[key("norm_term", of=name)] = terms.shares[..., place].mean(1)
    found[key("key_spread")] = terms.key_spread.mean(1)
    return found


def added_rank(before: Tensor, after: Tensor, *, tol: float = 1e-3) -> Tensor:
    r"""Directions that a feed-forward network adds to each image's tokens [n, p, d]: rank[y; y'] - rank y.

    Singular values under ``tol`` of the largest count as nothing. Attention stays in the span of its values; this is
    what the other half of the block brings ([cao2022] sec. 6).
    """
    return (_rank(torch.cat((before, after), 1), tol) - _rank(before, tol)).double()


def _rank(tokens: Tensor, tol: float) -> Tensor:
    _, p, d = tokens.shape
    wide = tokens.double()
    gram = wide @ wide.mT if p <= d else wide.mT @ wide
    values = torch.linalg.eigvalsh(gram).clamp_min(0)
    return (values > tol**2 * values[..., -1:]).sum(-1)


def joined(parts: Sequence[Mapping[Key, Tensor]], places: Sequence[Tensor], count: int) -> dict[Key, Tensor]:
    """Numbers of groups of samples, put back at the samples' places."""
    found: dict[Key, Tensor] = {}
    for name in parts[0]:
        whole = torch.empty(count, dtype=torch.float64)
        for part, place in zip(parts, places, strict=True):
            whole[place] = part[name].double().cpu()
        found[name] = whole
    return found
