"""Spectra of kernels: the Mercer expansion, and how fast eigenvalues fall."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.maths.given import floating
from lisse.maths.integral.kernels import TokenKernel
from lisse.maths.integral.structure import symmetric_matrix


@dataclass(frozen=True, slots=True)
class Mercer:
    r"""Eigenvalues and eigenfunctions of a symmetric kernel, largest first.

    ``values`` ``[…, p]`` and ``functions`` ``[…, p, p]`` (one per column): :math:`A \psi_k = \lambda_k \psi_k` with
    :math:`A = D^{-1} K`, :math:`\sum_i \alpha_i \psi_k(i) \psi_l(i) = \delta_{kl}`; then :math:`K_{ij} = \sum_k
    \lambda_k \alpha_i \psi_k(i) \psi_k(j) \alpha_j`. ``positive``: no eigenvalue below zero, but for rounding.
    """

    values: Tensor
    functions: Tensor
    positive: bool


def mercer(kernel: TokenKernel | Tensor, *, alpha: Tensor | float | None = None) -> Mercer:
    r"""The Mercer expansion of a symmetric kernel ``[…, p, p]`` in the α-weighted product. O(p³).

    ``alpha`` is by default the row sums, for which the eigenvalues are those of the row-stochastic matrix: the largest
    is 1, with constant functions, and all lie in [0, 1] if K is positive semidefinite, in [-1, 1] if not. ``alpha=1.0``
    gives those of K itself; ``alpha=p`` of K with the uniform probability measure. From the symmetric
    :math:`D^{-1/2} K D^{-1/2}`, so they are real and the functions orthogonal.
    """
    k = symmetric_matrix("mercer", kernel)
    weights = k.sum(-1) if alpha is None else floating("mercer", "alpha", alpha).to(k).expand(k.shape[:-1])
    if not bool((weights > 0).all()):
        raise ValueError(f"mercer: alpha must be positive, got {float(weights.min())}.")
    root = weights.rsqrt()
    values, vectors = torch.linalg.eigh(root[..., :, None] * k * root[..., None, :])
    values, vectors = values.flip(-1), vectors.flip(-1)
    floor = -values.abs().amax() * values.shape[-1] * torch.finfo(values.dtype).eps
    return Mercer(values, root[..., :, None] * vectors, bool((values >= floor).all()))


@dataclass(frozen=True, slots=True)
class Decay:
    r"""How a spectrum falls: :math:`\lambda_k \approx e^{-rk}` or :math:`\lambda_k \approx k^{-s}`.

    ``rate`` r and ``power`` s are least-squares slopes of :math:`\log \lambda_k`; ``exponential_fit`` and ``power_fit``
    their R². ``effective_rank`` is :math:`(\sum\lambda)^2/\sum\lambda^2`, ``n`` the eigenvalues above the floor.
    """

    rate: float
    exponential_fit: float
    power: float
    power_fit: float
    effective_rank: float
    n: int


def spectral_decay(values: Tensor, *, tol: float | None = None) -> Decay:
    r"""The decay of eigenvalues ``[p]``, largest first, down to ``tol`` times the largest (default p · epsilon)."""
    spectrum = floating("spectral_decay", "values", values).double()
    if spectrum.ndim != 1 or not len(spectrum):
        raise ValueError(f"spectral_decay: values must be numbers in one row, got shape {list(spectrum.shape)}.")
    spectrum = spectrum.sort(descending=True).values
    epsilon = torch.finfo(torch.as_tensor(values).dtype if torch.is_tensor(values) else torch.float64).eps
    large = spectrum[spectrum > (len(spectrum) * epsilon if tol is None else tol) * spectrum[0]]
    if len(large) < 3:
        raise ValueError(f"spectral_decay: values must hold at least 3 above the floor, got {len(large)}.")
    index = torch.arange(1, len(large) + 1, dtype=torch.float64, device=large.device)
    rate, exponential = _line(index, large.log())
    power, straight = _line(index.log(), large.log())
    positive = spectrum.clamp_min(0)
    rank = float(positive.sum() ** 2 / positive.square().sum())
    return Decay(-rate, exponential, -power, straight, rank, len(large))


def _line(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Slope and R² of a least-squares line."""
    dx, dy = x - x.mean(), y - y.mean()
    slope = (dx @ dy) / (dx @ dx)
    total = dy @ dy
    return float(slope), float(1 - (dy - slope * dx).square().sum() / total) if float(total) > 0 else 1.0
