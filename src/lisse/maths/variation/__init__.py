"""Bounded variation on pixel and token grids, patches as a domain decomposition, and images from few patches."""

from __future__ import annotations

from lisse.maths.variation.cross import Cross, cross_approximation, dominant_rows, patch_cross
from lisse.maths.variation.patches import extension, patch_variation, patchify, unpatchify
from lisse.maths.variation.seminorm import (
    Propagated,
    bv_seminorm,
    propagated,
    token_norm,
    token_variation,
    total_variation,
    variation_field,
)

__all__ = [
    "Cross",
    "Propagated",
    "bv_seminorm",
    "cross_approximation",
    "dominant_rows",
    "extension",
    "patch_cross",
    "patch_variation",
    "patchify",
    "propagated",
    "token_norm",
    "token_variation",
    "total_variation",
    "unpatchify",
    "variation_field",
]
