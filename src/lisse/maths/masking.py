r"""Masked patches in attention: the exact identity behind Lemma 6.1 of [cao2022], its constructions, (25) and (26)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lisse.maths.given import floating, square_grid
from lisse.maths.variation import bv_seminorm, patchify
from lisse.moved import moved_names


@dataclass(frozen=True, slots=True)
class MaskedAttention:
    r"""Attention split into unmasked and masked keys, for every query.

    ``output`` z ``[p, e]``, ``restricted`` :math:`z^N` (the softmax over unmasked keys alone), ``mass``
    :math:`a_i = \sum_{j \in M} A_{ij}` ``[p]``, ``masked_part`` :math:`\sum_{j \in M} A_{ij} v_j / a_i` (the mask
    token's value where all masked tokens are the same). Exactly :math:`z_i = (1 - a_i) z_i^N + a_i m_i`.
    """

    output: Tensor
    restricted: Tensor
    mass: Tensor
    masked_part: Tensor


def masked_attention(attention: Tensor, values: Tensor, masked: Tensor) -> MaskedAttention:
    r"""The identity :math:`z_i = (1 - a_i) z_i^N + a_i m_i` for attention ``[…, p, p]``, values ``[…, p, e]``.

    ``masked`` ``[p]`` is True at masked tokens, some but not all.
    """
    a, v, hidden = _head("masked_attention", attention, values, masked)
    mass = a[..., hidden].sum(-1)
    visible = a[..., ~hidden].sum(-1, keepdim=True)
    if not bool((visible > 0).all()):
        raise ValueError("masked_attention: attention must leave some weight on unmasked keys, got a row with none.")
    restricted = a[..., ~hidden] / visible @ v[..., ~hidden, :]
    part = a[..., hidden] / torch.where(mass > 0, mass, 1.0)[..., None] @ v[..., hidden, :]
    return MaskedAttention(a @ v, restricted, mass, part)


@dataclass(frozen=True, slots=True)
class LemmaResiduals:
    r"""What Lemma 6.1 leaves, ‖z_i - …‖₂ per query ``[p]``, in five constructions of the new maps.

    ``restricted``: the same maps, unmasked keys only: :math:`a_i \|v_m - z_i^N\|`. ``zeroed``: the mask token replaced
    by zero before the maps (masked keys then weigh :math:`e^0`, their values nothing). ``refitted``: restricted, with
    one affine map of the values, :math:`\hat v = v B + b`, fitted to all queries at once. ``simplex``: any convex
    weights over unmasked values, query by query (the distance to their convex hull). ``least_squares``: any weights at
    all, zero once the unmasked values span the space: trivial. Restricted ≥ simplex ≥ least squares, always.
    """

    restricted: Tensor
    zeroed: Tensor
    refitted: Tensor
    simplex: Tensor
    least_squares: Tensor


def attention_residuals(
    attention: Tensor,
    values: Tensor,
    masked: Tensor,
    *,
    zeroed: tuple[Tensor, Tensor] | None = None,
    queries: Tensor | None = None,
    tol: float = 1e-9,
) -> LemmaResiduals:
    r"""The same from attention ``[p, p]`` and values ``[p, e]`` of a real layer.

    ``zeroed`` is attention and values of the layer on tokens whose mask token is zero; without it masked values alone
    are set to zero (``zeroed`` is then :math:`a_i \|m_i\|`). ``queries`` (indices, or a mask of p) takes the residuals
    of some alone; the refit is that of all. ``tol`` is that of :func:`simplex_weights`, which takes most of the time.
    """
    a, v, hidden = _head("attention_residuals", attention, values, masked)
    split = masked_attention(a, v, hidden)
    z, norm = split.output, torch.linalg.vector_norm
    if zeroed is None:
        without = a[:, ~hidden] @ v[~hidden]
    else:
        zeroed_rows, zeroed_values = (floating("attention_residuals", "zeroed", part).to(a) for part in zeroed)
        without = zeroed_rows[:, ~hidden] @ zeroed_values[~hidden]
    design = torch.cat([split.restricted, torch.ones_like(z[:, :1])], 1)
    refit = design @ _least_squares(design, z)
    selection = slice(None) if queries is None else torch.as_tensor(queries).to(a.device)
    targets, visible = z[selection], v[~hidden]
    return LemmaResiduals(
        norm(targets - split.restricted[selection], dim=-1),
        norm(targets - without[selection], dim=-1),
        norm(targets - refit[selection], dim=-1),
        norm(targets - simplex_weights(targets, visible, tol=tol) @ visible, dim=-1),
        span_residual(targets, visible),
    )


def span_weights(targets: Tensor, points: Tensor) -> Tensor:
    r"""The weights ``[m, n]`` of least norm with the least :math:`\|z_i - \sum_j a_{ij} v_j\|`: those of (25)."""
    z, v = _pair("span_weights", targets, points)
    return _least_squares(v.T, z.T).T


def span_residual(targets: Tensor, points: Tensor) -> Tensor:
    r"""Distance of each target ``[m, e]`` from the span of the points ``[n, e]``: what (25) leaves. ``[m]``.

    (25) holds exactly only where the mask token's value lies in the span of the unmasked ones; what does hold is the
    span of those and the mask value together.
    """
    z, v = _pair("span_residual", targets, points)
    _, sigma, basis = torch.linalg.svd(v, full_matrices=False)
    basis = basis[sigma > max(v.shape) * torch.finfo(v.dtype).eps * sigma[0]] if len(sigma) else basis
    return torch.linalg.vector_norm(z - z @ basis.T @ basis, dim=-1)


def simplex_weights(targets: Tensor, points: Tensor, *, max_iter: int = 2000, tol: float = 1e-9) -> Tensor:
    r"""Convex weights ``[m, n]`` whose combination of the points ``[n, e]`` is nearest to each target ``[m, e]``.

    Accelerated projected gradient on :math:`\tfrac12\|z_i - a_i V\|^2` over the simplex, until the Frank–Wolfe gap,
    which bounds the excess of the objective, is below ``tol`` times :math:`\|V\|^2` of the centred points, or
    ``max_iter`` steps. [beck2009]
    """
    z, v = _pair("simplex_weights", targets, points)
    # Weights that sum to 1 do not see a common shift; without it the problem is far better conditioned.
    centre = v.mean(0)
    z, v = z - centre, v - centre
    gram, along = v @ v.T, z @ v.T
    size = torch.linalg.matrix_norm(gram, 2)
    a = torch.full_like(along, 1 / len(v))
    if not float(size) > 0:
        return a
    result = a.clone()
    rows = torch.arange(len(a), device=a.device)  # those that are not there yet
    ahead, momentum = a, torch.ones_like(a[:, :1])
    for step in range(max_iter):
        new = _to_simplex(ahead - (ahead @ gram - along) / size)
        # Begin a row's momentum again where it points uphill: the convergence is then linear near the solution.
        turned = ((ahead - new) * (new - a)).sum(-1, keepdim=True) > 0
        momentum = torch.where(turned, 1.0, momentum)
        following = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
        ahead = new + (momentum - 1) / following * (new - a)
        a, momentum = new, following
        if step % 10 == 9:
            slope = a @ gram - along
            open_ = (a * slope).sum(-1) - slope.amin(-1) > tol * size
            result[rows] = a
            if not bool(open_.any()):
                break
            rows, a, ahead, momentum, along = (x[open_] for x in (rows, a, ahead, momentum, along))
    result[rows] = a
    return result


@dataclass(frozen=True, slots=True)
class InterpolationBound:
    r"""Both sides of (26) for one image and its reconstruction.

    ``left`` ``[|M|]``: :math:`\|R v_i - u_i\|_{BV(\Omega_i)}` of masked patches; ``unmasked``: the largest of the
    unmasked ones; ``remainder``: :math:`n^{-1}\|u\|`; ``constant``: the least C for which (26) holds for every masked
    patch. The paper gives no C: it says something only if it stays the same over images and n.
    """

    left: Tensor
    unmasked: Tensor
    remainder: Tensor
    constant: Tensor


def interpolation_bound(
    reconstruction: Tensor, image: Tensor, masked: Tensor, *, grid: tuple[int, int] | None = None
) -> InterpolationBound:
    r"""Both sides of (26) for images ``[h, w]`` or ``[c, h, w]`` and a mask ``[p]`` over their patches.

    The norm on a patch is :math:`\|e\|_{BV} = \mathrm{mean}|e| + |e|_{BV}/N_{px}`, value and variation each as a mean
    over its pixels, and :math:`\|u\|` the root mean square: what (26) leaves open is read so that it does not grow with
    the resolution.
    """
    where = "interpolation_bound"
    estimate, u = floating(where, "reconstruction", reconstruction), floating(where, "image", image)
    if estimate.shape != u.shape or u.ndim not in (2, 3):
        raise ValueError(
            f"{where}: reconstruction and image must both be [h, w] or [c, h, w], got {list(estimate.shape)} and "
            f"{list(u.shape)}."
        )
    tokens = int(torch.as_tensor(masked).numel())
    rows, columns = square_grid(where, tokens, grid)
    hidden = _mask(where, masked, tokens).to(u.device)
    error = patchify(estimate - u, (rows, columns))
    h, w = u.shape[-2] // rows, u.shape[-1] // columns
    pieces = error.reshape(tokens, h, w, -1).permute(0, 3, 1, 2)
    norms = error.abs().mean(-1) + bv_seminorm(pieces) / (h * w)
    unmasked, remainder = norms[~hidden].max(), u.square().mean().sqrt() / tokens**0.5
    return InterpolationBound(norms[hidden], unmasked, remainder, norms[hidden].max() / (unmasked + remainder))


def _to_simplex(a: Tensor) -> Tensor:
    """Each row's nearest point of the probability simplex, by sorting."""
    ordered = a.sort(-1, descending=True).values
    sums = ordered.cumsum(-1) - 1
    index = torch.arange(1, a.shape[-1] + 1, device=a.device).to(a)
    count = (ordered * index > sums).sum(-1, keepdim=True)
    return (a - sums.gather(-1, count - 1) / count).clamp_min(0)


def _least_squares(design: Tensor, right: Tensor) -> Tensor:
    """The solution of least norm; also where the columns depend on each other."""
    return torch.linalg.pinv(design) @ right


def _pair(where: str, targets: Any, points: Any) -> tuple[Tensor, Tensor]:
    z, v = floating(where, "targets", targets), floating(where, "points", points)
    if z.ndim != 2 or v.ndim != 2 or z.shape[1] != v.shape[1] or not len(v):
        raise ValueError(
            f"{where}: targets and points must be [m, e] and [n, e], got {list(z.shape)} and {list(v.shape)}."
        )
    dtype = torch.promote_types(z.dtype, v.dtype)
    return z.to(dtype), v.to(dtype)


def _head(where: str, attention: Any, values: Any, masked: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Attention, values and mask that fit each other."""
    a, v = floating(where, "attention", attention), floating(where, "values", values)
    if a.ndim < 2 or v.ndim < 2 or a.shape[-1] != a.shape[-2] or v.shape[-2] != a.shape[-1]:
        raise ValueError(
            f"{where}: attention and values must be [..., p, p] and [..., p, e], got {list(a.shape)} and "
            f"{list(v.shape)}. Give a value per key."
        )
    return a, v.to(a), _mask(where, masked, a.shape[-1]).to(a.device)


def _mask(where: str, masked: Any, tokens: int) -> Tensor:
    """A boolean mask of some but not all tokens; indices and numbers are refused."""
    mask = torch.as_tensor(masked)
    if mask.dtype != torch.bool or mask.shape != (tokens,):
        raise ValueError(
            f"{where}: masked must be {tokens} booleans, True where a token is masked, got {mask.dtype} of shape "
            f"{list(mask.shape)}."
        )
    if bool(mask.all()) or not bool(mask.any()):
        raise ValueError(f"{where}: masked must hide some tokens but not all, got {int(mask.sum())} of {tokens}.")
    return mask


__getattr__ = moved_names(__name__)
