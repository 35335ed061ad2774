"""What [chen2024] calls O() of its bounds: the terms that it keeps, for the sizes and widths of its examples."""

from __future__ import annotations

import math
from typing import Literal

from lisse.maths.bounds.bound import BoundVariant, checked


@checked(natural="d heads", above_zero="sigma")
def attention_order(d: int, sigma: float, *, heads: int | None = None) -> float:
    r"""The O() of [chen2024] Theorem 1: :math:`\sigma^5d^2`, or :math:`\sigma^6d^{5/2}M` with ``heads=M``.

    It is the second of two leading terms (:func:`attention_terms`), which leads only where σ³d√M ≳ 1.
    """
    return sigma**5 * d**2 if heads is None else sigma**6 * d**2.5 * heads


@checked(natural="d heads", above_zero="sigma p")
def attention_terms(d: int, sigma: float, *, p: float, heads: int | None = None) -> tuple[float, float]:
    r"""Both leading terms of the printed bound at t = p√d, s → 0.

    :math:`4p\sigma^2d + 16p^2\sigma^5d^2`, or :math:`8p\sigma^3d^{3/2}\sqrt M + 32p^2\sigma^6d^{5/2}M`.
    """
    if heads is None:
        return 4 * p * sigma**2 * d, 16 * p**2 * sigma**5 * d**2
    return 8 * p * sigma**3 * d**1.5 * math.sqrt(heads), 32 * p**2 * sigma**6 * d**2.5 * heads


@checked(natural="channels", above_zero="k sigma")
def convolution_order(k: int, channels: int, sigma: float, *, variant: BoundVariant = "printed") -> float:
    r"""The O() of [chen2024] Theorem 2, :math:`k\sqrt{\sigma C}`; corrected :math:`k\sigma\sqrt C`."""
    return k * math.sqrt(sigma * channels) if variant == "printed" else k * sigma * math.sqrt(channels)


@checked(natural="d heads", above_zero="sigma")
def transformer_order(d: int, sigma: float, *, heads: int) -> tuple[float, float, float]:
    r"""The terms whose largest [chen2024] §4.2 calls O(TF): 1, :math:`\sigma^7d^3M`, :math:`\sigma^{10}d^{9/2}M`.

    They take :math:`\|\gamma\| \approx \sigma\sqrt d`, a Euclidean norm, where the formula has the largest entry.
    """
    return 1.0, sigma**7 * d**3 * heads, sigma**10 * d**4.5 * heads


@checked(natural="channels", above_zero="k sigma")
def resnet_order(
    k: int, channels: int, sigma: float, *, exponent: Literal["printed", "consistent", "unit"] = "printed"
) -> tuple[float, float]:
    r"""The terms of O(Res): 1 and :math:`k^3\sigma^eC^c`.

    ``printed`` :math:`k^3\sigma^{5/2}C^3`; ``consistent`` :math:`k^3\sigma^{9/2}C^3`, what the formula gives with
    :math:`\|\gamma\| \approx \sigma\sqrt C`; ``unit`` :math:`k^3\sigma^{3/2}C^{3/2}` with γ = 1.
    """
    powers = {"printed": (2.5, 3.0), "consistent": (4.5, 3.0), "unit": (1.5, 1.5)}
    if exponent not in powers:
        raise ValueError(f"resnet_order: exponent must be one of {', '.join(powers)}, got {exponent!r}.")
    e, c = powers[exponent]
    return 1.0, k**3 * sigma**e * channels**c
