"""The inverse of deformation fields: fixed point, and damped Newton steps where that does not contract."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Steps of the fixed point: halving the error in each, they reach a millionth of a pixel.
PLAIN = 20
#: Points times modes of one piece of work.
_BUDGET = 1 << 22


def inverted(
    cu: Tensor, cv: Tensor, u: Tensor, v: Tensor, *, scale: tuple[float, float], pixels: tuple[int, int], tol: float,
    max_iter: int,
) -> tuple[Tensor, Tensor, Tensor, int]:  # fmt: skip
    r"""Solutions of :math:`a = -\tau(s - S a)` at the points s = (u, v) ``[n, points]`` of n fields, S = diag(scale).

    Gives a's two parts ``[n, points]``, the largest error in pixels of each field ``[n]`` and the number of steps.
    Fixed-point steps first. They contract where :math:`\nabla\tau` stays under 1 in norm, which a diffeomorphism may
    exceed; points that are left take Newton steps on :math:`F(a) = a + \tau(s - S a)`, shortened until
    :math:`|F|` falls. The Jacobian :math:`I - \nabla\tau\, S` is regular wherever a field does not fold, so that
    :math:`|F|` has no other minimum than 0 there.
    """
    au, av = -value_at(cu, u, v), -value_at(cv, u, v)
    error, steps = au, 0
    for steps in range(1, min(PLAIN, max_iter) + 1):
        at = (u - scale[0] * au, v - scale[1] * av)
        bu, bv = -value_at(cu, *at), -value_at(cv, *at)
        error = torch.maximum((bu - au).abs() * pixels[0], (bv - av).abs() * pixels[1])
        au, av = bu, bv
        if bool((error < tol).all()):
            return au, av, error.amax(1), steps
    # The error is that of the point before the last step, and where steps do not contract the last is no better.
    more = steps
    for k in range(len(cu)):
        for some in (error[k] >= tol).nonzero()[:, 0].split(max(1, _BUDGET // cu.shape[-1])):
            if steps < max_iter and len(some):
                au[k, some], av[k, some], error[k, some], taken = _newton(
                    cu[k], cv[k], u[k, some], v[k, some], scale, pixels, tol, max_iter - steps
                )
                more = max(more, steps + taken)
    return au, av, error.amax(1), more


def _newton(
    cu: Tensor, cv: Tensor, u: Tensor, v: Tensor, scale: tuple[float, float], pixels: tuple[int, int], tol: float,
    max_iter: int,
) -> tuple[Tensor, Tensor, Tensor, int]:  # fmt: skip
    """The same at points ``[m]`` of one field, from a = 0 on: every point has a step length of its own."""
    a = torch.zeros_like(u), torch.zeros_like(v)
    f, slope = _residual(cu, cv, u, v, a, scale)
    error, length, steps = _error(f, pixels), torch.ones_like(u), 0
    while steps < max_iter and bool((error >= tol).any()):
        steps += 1
        (uu, uv), (vu, vv) = slope
        determinant = uu * vv - uv * vu
        # Zero only where the field folds; there the step is refused until the point gives up.
        determinant = torch.where(determinant == 0, torch.finfo(u.dtype).tiny, determinant)
        ahead = ((vv * f[0] - uv * f[1]) / determinant, (uu * f[1] - vu * f[0]) / determinant)
        tried = (a[0] - length * ahead[0], a[1] - length * ahead[1])
        there, steeper = _residual(cu, cv, u, v, tried, scale)
        left = _error(there, pixels)
        better = left < error
        a = _where(better, tried, a)
        f = _where(better, there, f)
        slope = (_where(better, steeper[0], slope[0]), _where(better, steeper[1], slope[1]))
        error = torch.where(better, left, error)
        length = torch.where(better, (2 * length).clamp(max=1), length / 4)
    return *a, error, steps


def _where(choose: Tensor, one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return torch.where(choose, one[0], other[0]), torch.where(choose, one[1], other[1])


def _error(f: tuple[Tensor, Tensor], pixels: tuple[int, int]) -> Tensor:
    """How far a residual is from 0, in pixels."""
    return torch.hypot(f[0] * pixels[0], f[1] * pixels[1])


def _residual(
    cu: Tensor, cv: Tensor, u: Tensor, v: Tensor, a: tuple[Tensor, Tensor], scale: tuple[float, float]
) -> tuple[tuple[Tensor, Tensor], tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]:
    """F ``[m]`` by its two parts, and its Jacobian by rows."""
    i = _frequencies(cu)
    angle_u, angle_v = (u - scale[0] * a[0])[:, None] * i, (v - scale[1] * a[1])[:, None] * i
    sin_u, cos_u, sin_v, cos_v = angle_u.sin(), angle_u.cos() * i, angle_v.sin(), angle_v.cos() * i
    parts, rows = [], []
    for k, c in enumerate((cu, cv)):
        along = sin_u @ c
        parts.append(a[k] + (along * sin_v).sum(1))
        along_u, along_v = ((cos_u @ c) * sin_v).sum(1), (along * cos_v).sum(1)
        rows.append((float(k == 0) - scale[0] * along_u, float(k == 1) - scale[1] * along_v))
    return (parts[0], parts[1]), (rows[0], rows[1])


def value_at(c: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Σ C_ij sin(iπu) sin(jπv) ``[n, points]`` at scattered points ``[n, points]`` of each field."""
    i = _frequencies(c)
    return ((u[..., None] * i).sin() @ c * (v[..., None] * i).sin()).sum(-1)


def _frequencies(c: Tensor) -> Tensor:
    return torch.arange(1, c.shape[-1] + 1, dtype=c.dtype, device=c.device) * math.pi
