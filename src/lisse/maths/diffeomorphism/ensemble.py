"""The maximum-entropy ensemble of deformation fields at one image size and cut-off."""

from __future__ import annotations

import math
import numbers
import warnings
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from lisse.maths.diffeomorphism.field import Field
from lisse.maths.diffeomorphism.modes import GridRule, ModeRule, check_rules, mode_mask, mode_places, normals, sines
from lisse.maths.given import all_finite, check_integer, check_word

Spot = Literal["centre", "average"]


@dataclass(frozen=True, slots=True)
class Accepted:
    """Fields that do not fold, with what it took: ``acceptance`` is ``len(field)`` over ``tried`` proposals."""

    field: Field
    acceptance: float
    tried: int


@dataclass(frozen=True)
class Diffeomorphism:
    r"""Max-entropy fields :math:`\tau` on images of ``size`` (h, w), with modes up to ``cut``.

    Coefficients are independent normals of variance :math:`T/(i^2 + j^2)` ([petrini2021] eq. 2): of all fields with
    :math:`\tau = 0` on the frame and a given mean :math:`\|\nabla\tau\|^2`, the ones of largest entropy.

    ``modes``: ``paper`` keeps i² + j² ≤ c², ``code`` keeps √(i² + j²) < c + ½ as the authors' public code does.
    ``grid``: ``cell`` puts pixel k at (k + ½)/n, ``linspace`` at k/(n - 1), as that code does.

    **Images that are not square.** The picture is stretched onto the unit square: :math:`\tau` has the same law for
    every size, :math:`\tau_u` counts in widths and :math:`\tau_v` in heights, and a pixel moves by
    :math:`(w \tau_u, h \tau_v)`. So the frame stays, :math:`\|\nabla\tau\|^2`, the determinant and with them
    bijectivity do not depend on the size, and with :math:`S_{odd} = \sum_{i, j\ odd} 1/(i^2 + j^2)` over the modes

    .. math:: \delta^2 = (h^2 + w^2)\, T\, S_{odd} \ \text{(centre)}, \qquad
              \overline{\delta^2} = (h^2 + w^2)\, T \sum_{ij} \frac{a_i b_j}{i^2 + j^2} \ \text{(image average)},

    :math:`a_i, b_j` the means of :math:`\sin^2(i\pi u), \sin^2(j\pi v)` over the pixels' columns and rows. On a square
    these are :math:`2 n^2 T S_{odd}` and (``cell``, c < n) :math:`\frac{n^2 T}{2} S_{all}`. Eq. 3, the asymptotic
    form, has :math:`n^2 = (h^2 + w^2)/2`.

    **Cut-offs above the pixels of a side** are allowed, with a warning: all sums and folding are those of the field on
    the square, but a pixel sees a mode i > n as the mode 2n - i (``cell``), so that between pixels the field does what
    no picture shows, and most of its folds are of that kind.
    """

    size: tuple[int, int]
    cut: float
    modes: ModeRule = field(default="paper", kw_only=True)
    grid: GridRule = field(default="cell", kw_only=True)

    def __post_init__(self) -> None:
        size = tuple(self.size) if isinstance(self.size, (tuple, list, torch.Size)) else self.size
        if not isinstance(size, tuple) or len(size) != 2 or not all(isinstance(n, numbers.Integral) for n in size):
            raise TypeError(f"Diffeomorphism: size must be (h, w) in pixels, got {self.size!r}. Try (32, 32).")
        size = (int(size[0]), int(size[1]))
        if min(size) < 2:
            raise ValueError(f"Diffeomorphism: size must be at least 2 pixels a side, got {size}.")
        object.__setattr__(self, "size", size)
        check_rules("Diffeomorphism", self.cut, self.modes, self.grid)
        if math.floor(self.cut) > min(size):
            # Told of as of this line, and not as of the caller's: Python then says it once for a size and a cut.
            warnings.warn(
                f"Diffeomorphism: cut {self.cut:g} is above the {min(size)} pixels of a side ({size[0]} × {size[1]}): "
                "modes beyond them alias, and the pixels do not show the field between them. "
                f"Use a cut of at most {min(size)}.",
                stacklevel=1,
            )

    @property
    def mode_mask(self) -> Tensor:
        """The modes that are kept, booleans ``[c, c]``, index ``[i - 1, j - 1]``."""
        return mode_mask(float(self.cut), self.modes).clone()

    @property
    def mode_count(self) -> int:
        """M, the number of modes; a field has 2 M coefficients."""
        return len(self._squares)

    @property
    def _squares(self) -> Tensor:
        return mode_places(float(self.cut), self.modes)[1]

    def sample(
        self,
        count: int,
        temperature: float | Tensor,
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Field:
        """``count`` independent fields at ``temperature`` (a number, or one per field ``[count]``).

        A generator on the CPU gives the same fields whatever the batch size (ten are five and then five more), the
        device and the dtype: normals are drawn in float32, sample by sample. ``device`` is the generator's by default.

        Warns, with the share that folds, where most fields at (the largest) ``temperature`` are no diffeomorphisms; not
        at temperature 1, the unit of fields that are to be scaled (``field * factor``). The first such call at a
        cut-off takes about a second, for :func:`half_temperature`.
        """
        check_integer("Diffeomorphism.sample", 0, count=count)
        heat = self._temperature("sample", temperature, count)
        if count and heat.numel():
            from lisse.maths.diffeomorphism.phase import warn_if_folding

            largest = float(heat.max())
            if largest != 1:
                warn_if_folding("Diffeomorphism.sample", self, largest)
        return self._drawn(count, temperature, generator, dtype, device)

    def _drawn(
        self,
        count: int,
        temperature: float | Tensor,
        generator: torch.Generator | None,
        dtype: torch.dtype,
        device: torch.device | str | None,
    ) -> Field:
        drawn = normals(count, 2 * self.mode_count, generator).to(device=device, dtype=dtype)
        return self.whitened_field(drawn.reshape(count, 2, self.mode_count), temperature)

    def whitened_field(self, normals: Tensor, temperature: float | Tensor) -> Field:
        r"""Fields from standard normals ``[count, 2, M]``: :math:`C_{ij} = \sqrt{T/(i^2 + j^2)}\, z_{ij}`.

        Index 0 of axis 1 is u, 1 is v; modes in the row-major order of :attr:`mode_mask`. Differentiable.
        :math:`\|\nabla\tau\|^2 = \frac{\pi^2}{4} T \|z\|^2`.
        """
        normals = torch.as_tensor(normals)
        if normals.ndim != 3 or normals.shape[1:] != (2, self.mode_count):
            raise ValueError(
                f"Diffeomorphism.whitened_field: normals must be [count, 2, {self.mode_count}], "
                f"got {list(normals.shape)}."
            )
        count, side = len(normals), math.floor(self.cut)
        size = self._temperature("whitened_field", temperature, count).to(normals).sqrt().reshape(-1, 1, 1)
        positions, squares = mode_places(float(self.cut), self.modes)
        weighted = normals * (size * squares.rsqrt().to(normals))
        dense = normals.new_zeros(count, 2, side * side).index_copy(2, positions.to(normals.device), weighted)
        cu, cv = dense.reshape(count, 2, side, side).unbind(1)
        return Field(cu, cv, self.size, self.grid)

    def field(self, cu: Tensor, cv: Tensor) -> Field:
        """The fields with given coefficients ``[count, c, c]`` (or ``[c, c]``, for one), index ``[i - 1, j - 1]``.

        i is the frequency along u. Coefficients of modes beyond the cut-off are left out.
        """
        both = [torch.as_tensor(c) for c in (cu, cv)]
        side = math.floor(self.cut)
        for name, c in zip(("cu", "cv"), both, strict=True):
            if c.ndim not in (2, 3) or c.shape[-2:] != (side, side):
                raise ValueError(
                    f"Diffeomorphism.field: {name} must be [count, {side}, {side}] at cut {self.cut}, "
                    f"got {list(c.shape)}. Index [i - 1, j - 1], i the frequency along u."
                )
            if not all_finite(c):
                raise ValueError(f"Diffeomorphism.field: {name} must be finite, got NaN or infinity among them.")
        if both[0].shape != both[1].shape:
            got = f"{list(both[0].shape)} and {list(both[1].shape)}"
            raise ValueError(f"Diffeomorphism.field: cu and cv must have one shape, got {got}.")
        dtype = torch.promote_types(both[0].dtype, both[1].dtype)
        dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
        keep = mode_mask(float(self.cut), self.modes).to(both[0].device)
        u, v = (torch.where(keep, c.to(dtype), 0).reshape(-1, side, side) for c in both)
        return Field(u, v, self.size, self.grid)

    def sample_bijective(
        self,
        count: int,
        temperature: float,
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        max_tries: int = 1000,
    ) -> Accepted:
        """``count`` fields out of the ensemble conditioned on being diffeomorphisms, by rejection.

        They are the first ones of :meth:`sample`'s sequence that do not fold, whatever the batch size (a generator on
        the CPU is left right behind the last one used). More than ``max_tries`` proposals per field are an error:
        conditioning so rare an event gives fields unlike the ensemble's.
        """
        check_integer("Diffeomorphism.sample_bijective", 1, count=count, max_tries=max_tries)
        self._temperature("sample_bijective", temperature, 1)
        source = torch.default_generator if generator is None else generator
        accepted: list[Field] = []
        tried, have = 0, 0
        while have < count:
            block = min(max(16, 2 * (count - have)), 1024)
            before = source.get_state()
            proposed = self._drawn(block, temperature, source, dtype, device)
            good = proposed.bijective().nonzero()[:, 0]
            if len(good) >= count - have:
                good = good[: count - have]
                block = int(good[-1]) + 1
                source.set_state(before)
                normals(block, 2 * self.mode_count, source)
            tried += block
            have += len(good)
            accepted.append(proposed[good])
            if have < count and tried >= max_tries * count:
                raise ValueError(
                    f"Diffeomorphism.sample_bijective: temperature must let fields be bijective, got {temperature} "
                    f"with {have} of {tried} proposals. Lower it: half are at {self.temperature_range()[1]:.3g}."
                )
        cu, cv = torch.cat([fields.cu for fields in accepted]), torch.cat([fields.cv for fields in accepted])
        return Accepted(Field(cu, cv, self.size, self.grid), count / tried, tried)

    def delta(self, temperature: float | Tensor, *, at: Spot = "centre", asymptotic: bool = False) -> float | Tensor:
        r"""δ, the RMS displacement in pixels at ``temperature``; a number gives a number, several a tensor.

        ``at`` the ``centre`` of the image (the paper's δ) or its root mean square over all pixels (``average``): exact
        sums at finite c (see the class). ``asymptotic`` gives eq. 3, :math:`\delta^2 = \frac{\pi}{4} n^2 T \ln c`,
        which is off by up to 27 % at the cut-offs in use. RMS of the vector's length: its mean is 0.886 δ.
        """
        value = self._temperature("delta", temperature)
        displacement = (value * self._square_per_temperature(at, asymptotic, "delta")).sqrt()
        return displacement if isinstance(temperature, Tensor) or displacement.ndim else float(displacement)

    def temperature(self, delta: float | Tensor, *, at: Spot = "centre", asymptotic: bool = False) -> float | Tensor:
        """The temperature at which the RMS displacement is ``delta`` pixels: the inverse of :meth:`delta`."""
        value = _at_least_0("temperature", "delta", delta)
        heat = value**2 / self._square_per_temperature(at, asymptotic, "temperature")
        return heat if isinstance(delta, Tensor) or heat.ndim else float(heat)

    def rms_displacement(self, temperature: float) -> Tensor:
        """The exact RMS displacement of every pixel, in pixels, float64 ``[h, w]``.

        Zero at the outermost pixels of a ``linspace`` grid, which lie on the frame; those of ``cell`` lie half a pixel
        inside of it and move a little.
        """
        mean = float(self._temperature("rms_displacement", temperature)) * self._mean_square()
        return ((self.size[0] ** 2 + self.size[1] ** 2) * mean).sqrt()

    def mean_gradient_norm(self, temperature: float) -> float:
        r"""The ensemble's mean of :meth:`Field.gradient_norm`: :math:`\frac{\pi^2}{2} T M`, exactly."""
        return math.pi**2 / 2 * float(self._temperature("mean_gradient_norm", temperature)) * self.mode_count

    def temperature_range(self, *, samples: int = 512, seed: int = 0) -> tuple[float, float]:
        """The temperatures between which fields matter and are diffeomorphisms: (δ = ½, half of them bijective).

        The first is exact; the second is the median critical temperature of ``samples`` fields
        (:func:`half_temperature` gives its interval). The second can be the smaller one: then no temperature does both.
        """
        from lisse.maths.diffeomorphism.phase import half_temperature

        half = half_temperature(self.cut, modes=self.modes, samples=samples, seed=seed)
        return float(self.temperature(0.5)), float(half.value)

    def _mean_square(self) -> Tensor:
        """E τ_u² at temperature 1 at each pixel ``[h, w]``."""
        side = math.floor(self.cut)
        weights = torch.zeros(side * side, dtype=torch.float64)
        positions, squares = mode_places(float(self.cut), self.modes)
        weights[positions] = 1 / squares
        h, w = self.size
        across, down = (sines(n, side, self.grid, torch.float64, torch.device("cpu")) ** 2 for n in (w, h))
        return down @ weights.reshape(side, side).T @ across.T

    def _square_per_temperature(self, at: str, asymptotic: bool, where: str) -> float:
        """δ²/T."""
        scale = self.size[0] ** 2 + self.size[1] ** 2
        check_word(f"Diffeomorphism.{where}", get_args(Spot), at=at)
        if asymptotic:
            if self.cut <= 1:
                raise ValueError(
                    f"Diffeomorphism.{where}: cut must be above 1 for the asymptotic form, got {self.cut}: ln c is 0."
                )
            return math.pi / 8 * scale * math.log(self.cut)
        if at == "average":
            return scale * float(self._mean_square().mean())
        positions, squares = mode_places(float(self.cut), self.modes)
        side = math.floor(self.cut)
        odd = ((positions // side + 1) % 2 == 1) & ((positions % side + 1) % 2 == 1)
        return scale * float((1 / squares[odd]).sum())

    def _temperature(self, where: str, temperature: float | Tensor, count: int | None = None) -> Tensor:
        value = _at_least_0(where, "temperature", temperature)
        if count is not None and value.ndim and value.shape != (count,):
            raise ValueError(
                f"Diffeomorphism.{where}: temperature must be a number or one per field [{count}], "
                f"got shape {list(value.shape)}."
            )
        return value


def _at_least_0(where: str, name: str, number: float | Tensor) -> Tensor:
    """A number or several as a tensor, float64 unless they are one already."""
    try:
        if isinstance(number, bool):
            raise TypeError
        value = torch.as_tensor(number, dtype=None if isinstance(number, Tensor) else torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"Diffeomorphism.{where}: {name} must be a number or several, got {number!r}.") from error
    good = torch.isfinite(value) & (value >= 0)
    if not bool(good.all()):
        raise ValueError(
            f"Diffeomorphism.{where}: {name} must be finite and at least 0, got {value[~good].flatten()[0]:g}."
        )
    return value
