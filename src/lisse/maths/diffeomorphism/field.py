"""Deformation fields: displacement, gradient, determinant, folding, inverse. Exact at every point, from sines."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lisse.maths.diffeomorphism.modes import coordinates, sines
from lisse.maths.given import check_integer, check_positive

#: Numbers that a pass over fine grids may hold at a time.
_BUDGET = 1 << 23
#: A point search ends on squares 4⁻⁸ of a cell wide.
_ZOOMS = 8
#: Steps of an inverse's fixed point: halving the error in each, they reach a millionth of a pixel.
_PLAIN = 20
#: Points times modes of one piece of an inverse.
_POINTS = 1 << 22


@dataclass(frozen=True, slots=True)
class Inverse:
    """The inverse of some fields: ``displacement`` ``[count, 2, h, w]`` in pixels, to give to :func:`deform`.

    ``converged`` ``[count]``: whether every pixel came under the tolerance; ``residual`` ``[count]``: the largest
    error in pixels of the composition, ``iterations``: steps made.
    """

    displacement: Tensor
    converged: Tensor
    residual: Tensor
    iterations: int


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    r"""Some fields :math:`\tau = (\tau_u, \tau_v)` on the unit square, by their coefficients.

    .. math:: \tau_u(u, v) = \sum_{ij} C_{ij} \sin(i \pi u) \sin(j \pi v), \quad
              \tau_v(u, v) = \sum_{ij} D_{ij} \sin(i \pi u) \sin(j \pi v)

    ([petrini2021] eq. 2): u runs along columns, v along rows, and :math:`\tau = 0` on the frame. ``cu`` and ``cv``
    ``[count, c, c]`` hold C and D at ``[i - 1, j - 1]``. ``size`` is ``(h, w)``; ``grid`` says where pixels lie on the
    unit square (see :class:`Diffeomorphism`). Made by :meth:`Diffeomorphism.sample` and :meth:`Diffeomorphism.field`.

    A field is a few numbers; what is derived from it is made when asked for and not kept. ``len(field)``, slices and
    ``field * factor`` (which multiplies the temperature by factor²) work. Gradients flow to the coefficients.
    """

    cu: Tensor
    cv: Tensor
    size: tuple[int, int]
    grid: str

    def __len__(self) -> int:
        return len(self.cu)

    def __getitem__(self, index: slice | Tensor) -> Field:
        if isinstance(index, int):
            raise TypeError("Field: index must be a slice or a tensor, got a number. Use field[i : i + 1].")
        return replace(self, cu=self.cu[index], cv=self.cv[index])

    def __mul__(self, factor: float | Tensor | np.ndarray) -> Field:
        factor = torch.as_tensor(factor) if isinstance(factor, np.ndarray) else factor
        if isinstance(factor, Tensor) and factor.ndim:
            if factor.shape != (len(self),):
                raise ValueError(
                    f"Field: factor must be a number or one per field [{len(self)}], got shape {list(factor.shape)}."
                )
            factor = factor.to(self.cu)[:, None, None]
        return replace(self, cu=self.cu * factor, cv=self.cv * factor)

    __rmul__ = __mul__
    __array_ufunc__ = None  # so that NumPy leaves array * field to __rmul__

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Field:
        """The same fields on another device or in another precision."""
        if (device is None or torch.device(device) == self.cu.device) and dtype in (None, self.cu.dtype):
            return self
        cu, cv = self.cu.to(device=device, dtype=dtype), self.cv.to(device=device, dtype=dtype)
        return replace(self, cu=cu, cv=cv)

    @property
    def displacement(self) -> Tensor:
        r"""``[count, 2, h, w]`` in pixels: :math:`w \tau_u` (columns), then :math:`h \tau_v` (rows).

        The deformed image at pixel (row, column) is the image at (row - v, column - u). Two small matrix products a
        field: O(c h (w + c)) each, not O(h w c²).
        """
        h, w = self.size
        side = self.cu.shape[-1]
        across = sines(w, side, self.grid, self.cu.dtype, self.cu.device)
        down = sines(h, side, self.grid, self.cu.dtype, self.cu.device)
        both = torch.stack([self.cu * w, self.cv * h], 1)  # [count, 2, i, j]
        # Sum over i first: [count, 2, j, w]; then over j, whose products are the large ones.
        return down @ (both.transpose(2, 3) @ across.T)

    def gradient_norm(self) -> Tensor:
        r"""The norm of eq. 1, :math:`\|\nabla\tau\|^2 = \int |\nabla\tau_u|^2 + |\nabla\tau_v|^2` ``[count]``.

        Squared, as the paper has it and calls it. Exact by Parseval: :math:`\frac{\pi^2}{4} \sum_{ij} (i^2 + j^2)
        (C_{ij}^2 + D_{ij}^2)`, on the unit square and so the same for every image size. Its mean at temperature T is
        :math:`\frac{\pi^2}{2} T M`, M the number of modes (:meth:`Diffeomorphism.mean_gradient_norm`).
        """
        i = torch.arange(1, self.cu.shape[-1] + 1, dtype=self.cu.dtype, device=self.cu.device)
        energy = (self.cu**2 + self.cv**2) * (i[:, None] ** 2 + i**2)
        return math.pi**2 / 4 * energy.sum((1, 2))

    def gradient(self, points: int) -> Tensor:
        r""":math:`\nabla\tau` ``[count, 2, 2, points, points]`` on the cell-centred grid (k + ½)/points of each side.

        Index ``[n, a, b, row, column]``: the derivative of :math:`\tau_a` along b, both in the order u, v.
        """
        check_integer("Field.gradient", 1, points=points)
        s = coordinates(points, "cell").to(self.cu)
        return _gradient_on_grid(self.cu, self.cv, s, s)

    def determinant(self, points: int) -> Tensor:
        r""":math:`\det(I - \nabla\tau)` ``[count, points, points]`` on the cell-centred grid (k + ½)/points."""
        return _determinant(self.gradient(points))

    def min_determinant(self, *, points: int | None = None) -> Tensor:
        r"""The least :math:`\det(I - \nabla\tau)` of each field ``[count]``, over the whole unit square.

        The least value on a grid that includes the frame (20c + 1 points a side, at least 65, for c > 50 no more than
        1001 and 10c + 1; or ``points``), followed from there to the local minimum with exact derivatives. Positive
        everywhere and :math:`\tau = 0` on the frame make :math:`s \mapsto s - \tau(s)` a diffeomorphism of the square;
        see :meth:`bijective`. Nothing here depends on the image's size. Cost: O(c points²) a field, c³ by default, in
        bounded memory.
        """
        return -self._peak(lambda gradient: -_determinant(gradient), points)

    def bijective(self, *, points: int | None = None) -> Tensor:
        """Which of the fields are diffeomorphisms ``[count]``: :meth:`min_determinant` is positive."""
        return self.min_determinant(points=points) > 0

    def critical_scale(self, *, points: int | None = None) -> Tensor:
        r"""How many times larger each field may become before it first folds ``[count]``: :math:`1/\lambda_{\max}`.

        :math:`\lambda_{\max}` is the largest positive real eigenvalue of :math:`\nabla\tau` over the square:
        :math:`\det(I - a \nabla\tau)` first vanishes at :math:`a = 1/\lambda_{\max}`. A field drawn at temperature T
        has the critical temperature :math:`T^* = T / \lambda_{\max}^2`: the same coefficients fold above it. Infinite
        for a field without such an eigenvalue (the zero field), NaN for one that is not finite. Points
        as in :meth:`min_determinant`.
        """
        largest = self._peak(_largest_real_eigenvalue, points)
        return torch.where(largest <= 0, torch.inf, 1 / largest)

    def inverse(self, *, tol: float = 1e-4, max_iter: int = 200) -> Inverse:
        r"""The inverse fields: :math:`\tau'(s) = -\tau(s - \tau'(s))`, by fixed point from :math:`-\tau(s)` on.

        With :math:`\phi(s) = s - \tau(s)` and :math:`\psi(s) = s - \tau'(s)`, :math:`\phi \circ \psi` is the identity
        where it converged: a deformed image is undone by :math:`\psi`. :math:`\tau` is evaluated exactly between the
        pixels, O(h w c²) a step and field. The fixed point contracts where :math:`\nabla\tau` stays under 1 in norm;
        a diffeomorphism may exceed that, and pixels that are not there after 20 steps take Newton steps of controlled
        length, so that the inverse of every diffeomorphism is found. Of a field that folds there is none: ``converged``
        is false, or some pixel's solution is one of several. ``tol`` is in pixels. Fields in half precision, which does
        not resolve a ``tol`` of that size, are worked in float32, and so is the result.
        """
        check_positive("Field.inverse", tol=tol, max_iter=max_iter)
        h, w = self.size
        wide = torch.promote_types(self.cu.dtype, torch.float32)
        cu, cv = self.cu.detach().to(wide), self.cv.detach().to(wide)
        s_u = coordinates(w, self.grid).to(cu)[None, None, :].expand(len(self), h, w).flatten(1)
        s_v = coordinates(h, self.grid).to(cu)[None, :, None].expand(len(self), h, w).flatten(1)
        # A pixel is 1/n of the side on the cell grid and 1/(n - 1) on linspace, and deform moves by n τ pixels on both:
        # that move is what must be undone.
        across, down = (n / (n - 1) if self.grid == "linspace" else 1.0 for n in (w, h))
        moves, residual, steps = torch.empty(len(self), 2, h * w).to(cu), cu.new_full((len(self),), torch.inf), 0
        for part in _chunks(len(self), h * w * (cu.shape[-1] + 4)):
            au, av, residual[part], count = _inverted(
                cu[part], cv[part], s_u[part], s_v[part],
                scale=(across, down), pixels=(w, h), tol=tol, max_iter=max_iter,
            )  # fmt: skip
            moves[part, 0], moves[part, 1], steps = au * w, av * h, max(steps, count)
        return Inverse(moves.reshape(len(self), 2, h, w), residual < tol, residual, steps)

    def _peak(self, height: Callable[[Tensor], Tensor], points: int | None) -> Tensor:
        """The largest value of a function of the gradient ``[…, 2, 2, rows, columns]`` over the closed square."""
        side = self.cu.shape[-1]
        points = max(65, min(20 * side, max(1000, 10 * side)) + 1) if points is None else points
        if points < 2:
            raise ValueError(
                f"Field: points must be at least 2, got {points}. 10 c is the least that resolves a field."
            )
        s = torch.linspace(0, 1, points, dtype=self.cu.dtype, device=self.cu.device)
        peaks = [self.cu.new_empty(0)]
        with torch.no_grad():
            for part in _chunks(len(self), 6 * points**2):
                cu, cv = self.cu[part], self.cv[part]
                # A fine grid goes row by row, in strips of at least as many as there are modes: fewer cost more.
                strip = max(_BUDGET // (6 * points), min(side, 1024))
                strips = [
                    height(_gradient_on_grid(cu, cv, s, s[top : top + strip])).flatten(1).max(1)
                    for top in range(0, points, strip)
                ]
                best, first = torch.stack([peak.values for peak in strips]).max(0)
                index = (
                    torch.stack([peak.indices for peak in strips]).gather(0, first[None])[0] + first * strip * points
                )
                peaks.append(_climbed(cu, cv, height, best, s[index % points], s[index // points], 1 / (points - 1)))
        return torch.cat(peaks)


def _climbed(
    cu: Tensor, cv: Tensor, height: Callable[[Tensor], Tensor], best: Tensor, u: Tensor, v: Tensor, reach: float
) -> Tensor:
    """The maximum near (u, v) ``[n]``, on 9 × 9 points around it that close in by 4 each time."""
    step = torch.linspace(-1, 1, 9, dtype=cu.dtype, device=cu.device)
    for _ in range(_ZOOMS):
        around_u, around_v = ((s[:, None] + reach * step).clamp(0, 1) for s in (u, v))
        value, index = height(_gradient_on_grid(cu, cv, around_u, around_v)).flatten(1).max(1)
        better = value > best
        best = torch.where(better, value, best)
        u = torch.where(better, around_u.gather(1, (index % 9)[:, None])[:, 0], u)
        v = torch.where(better, around_v.gather(1, (index // 9)[:, None])[:, 0], v)
        reach /= 4
    return best


def _chunks(count: int, weight: int) -> list[slice]:
    size = max(1, _BUDGET // max(weight, 1))
    return [slice(start, start + size) for start in range(0, count, size)]


def _gradient_on_grid(cu: Tensor, cv: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """∇τ ``[n, 2, 2, rows, columns]`` at the crossings of ``u`` ``[columns]`` and ``v`` ``[rows]`` (or ``[n, …]``)."""
    i = _frequencies(cu)
    angle_u, angle_v = u[..., None] * i, v[..., None] * i
    sin_u, cos_u, sin_v, cos_v = angle_u.sin(), angle_u.cos() * i, angle_v.sin(), angle_v.cos() * i
    rows = []
    for c in (cu, cv):
        along = c.transpose(1, 2)  # [n, j, i]
        rows.append(torch.stack([sin_v @ (along @ cos_u.mT), cos_v @ (along @ sin_u.mT)], 1))
    return torch.stack(rows, 1)


def _determinant(gradient: Tensor) -> Tensor:
    uu, uv, vu, vv = (gradient[:, a, b] for a in (0, 1) for b in (0, 1))
    return (1 - uu) * (1 - vv) - uv * vu


def _largest_real_eigenvalue(gradient: Tensor) -> Tensor:
    """The larger eigenvalue of each 2 × 2 matrix where they are real, 0 where they are a complex pair."""
    uu, uv, vu, vv = (gradient[:, a, b] for a in (0, 1) for b in (0, 1))
    inside = ((uu - vv) / 2) ** 2 + uv * vu
    return torch.where(inside < 0, 0.0, (uu + vv) / 2 + inside.clamp_min(0).sqrt())  # NaN stays NaN


# --- the inverse: fixed point, and damped Newton steps where that does not contract -----------------------------------


def _inverted(
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
    au, av = -_value_at(cu, u, v), -_value_at(cv, u, v)
    error, steps = au, 0
    for steps in range(1, min(_PLAIN, max_iter) + 1):
        at = (u - scale[0] * au, v - scale[1] * av)
        bu, bv = -_value_at(cu, *at), -_value_at(cv, *at)
        error = torch.maximum((bu - au).abs() * pixels[0], (bv - av).abs() * pixels[1])
        au, av = bu, bv
        if bool((error < tol).all()):
            return au, av, error.amax(1), steps
    # The error is that of the point before the last step, and where steps do not contract the last is no better.
    more = steps
    for k in range(len(cu)):
        for points in (error[k] >= tol).nonzero()[:, 0].split(max(1, _POINTS // cu.shape[-1])):
            if steps < max_iter and len(points):
                au[k, points], av[k, points], error[k, points], count = _newton(
                    cu[k], cv[k], u[k, points], v[k, points], scale, pixels, tol, max_iter - steps
                )
                more = max(more, steps + count)
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
        ahead_f, steeper = _residual(cu, cv, u, v, tried, scale)
        ahead_error = _error(ahead_f, pixels)
        better = ahead_error < error
        a = _where(better, tried, a)
        f = _where(better, ahead_f, f)
        slope = (_where(better, steeper[0], slope[0]), _where(better, steeper[1], slope[1]))
        error = torch.where(better, ahead_error, error)
        length = torch.where(better, (2 * length).clamp(max=1), length / 4)
    return *a, error, steps


def _where(choose: Tensor, yes: tuple[Tensor, Tensor], no: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return torch.where(choose, yes[0], no[0]), torch.where(choose, yes[1], no[1])


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


def _value_at(c: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Σ C_ij sin(iπu) sin(jπv) ``[n, points]`` at scattered points ``[n, points]`` of each field."""
    i = _frequencies(c)
    return ((u[..., None] * i).sin() @ c * (v[..., None] * i).sin()).sum(-1)


def _frequencies(c: Tensor) -> Tensor:
    return torch.arange(1, c.shape[-1] + 1, dtype=c.dtype, device=c.device) * math.pi
