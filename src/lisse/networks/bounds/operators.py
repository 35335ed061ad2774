"""The operator norm of a linear layer for its input size: never the norm of a reshaped weight."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from lisse.maths.jacobian import jacobian_norm
from lisse.maths.spectral_norm import ROUNDING, NormInterval, norm_interval
from lisse.networks.bounds.graph import check_hooks, foreign
from lisse.networks.zoo.efficientnet import SameConv2d
from lisse.taps import model_device

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
AveragePool = (
    nn.AvgPool1d | nn.AvgPool2d | nn.AvgPool3d | nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d | nn.AdaptiveAvgPool3d
)
Still = nn.Identity | nn.Flatten | nn.Unflatten | nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d
LINEAR = (*(kind for union in (Convolution, Transposed, BatchNorm, AveragePool) for kind in union.__args__), nn.Linear)
_CHUNK = 2**22


class OperatorNorm(NormInterval):
    """``lower`` ≤ ‖layer‖₂ ≤ ``upper`` for inputs of one shape, and their relative ``gap``; unpacks into the two."""

    __slots__ = ()


def operator_norm(
    module: nn.Module,
    input_shape: Sequence[int],
    *,
    tol: float = 1e-5,
    max_iter: int = 60,
    dense: int = 2**20,
    seed: int = 0,
) -> OperatorNorm:
    r"""Two certain ends of ‖L‖₂, L the linear part of ``module`` in evaluation mode on one sample of ``input_shape``.

    Norms are Euclidean over all entries of input and output. ``input_shape`` is that of a sample, without the batch:
    ``[c, h, w]`` for images. Everything is computed in float64 from the weights as they are.

    **Lower**: Golub–Kahan–Lanczos on the layer itself with products by L and its adjoint, no matrix; ``max_iter`` = 0
    leaves it out, and ``lower`` is then 0 where the upper end brings none. **Upper**:

    * *Small layers* (at most ``dense`` entries in the matrix): the matrix itself, made from unit inputs, and the
      certificate of :func:`lisse.maths.spectral_norm.norm_interval`. The gap is then about ``tol``.
    * *Convolutions* with zero padding, stride s: L = S T E. E puts the padded input on a torus of N pixels a
      side, N the padded size rounded up to a multiple of s: an isometry. T is the circular convolution on the torus; no
      window that is read wraps around. S keeps every s-th pixel of the first ones. So :math:`\|L\| \le \|S_sT\|` where
      :math:`S_s` keeps every s-th pixel of the whole torus, and that is block diagonal in the Fourier basis: with
      :math:`H(\omega) \in C^{out \times in}` the transform of the kernel, the blocks are :math:`s^{-D/2}[H(\omega +
      aN/s)]_a`, a over the :math:`s^D` aliases, one for each of the :math:`(N/s)^D` frequencies and each group. The
      difference to ‖L‖ is what the border takes away: under 1 % from about 16 pixels on, more on small images, which
      are dense.
    * With circular padding that keeps the size (and s divides it) the torus is the image, and the value is exact. Other
      circular paddings: at most m outputs are the same pixel of the torus, a factor √m. Reflecting and replicating:
      times the norm of the padding, √(largest number of copies of a pixel).
    * *Transposed convolutions* are adjoints of convolutions on their output. *Linear* layers act on the last axis.
      *Batch norm*: largest :math:`|\gamma|/\sqrt{v + \epsilon}`. *Average pools*: the Schur test, √(largest row sum ·
      largest column sum) of a matrix without negative entries. *Sequential*: the product, or the dense matrix.

    Other modules are refused by name. Cost on a torus: :math:`N^D/2` Cholesky factorisations of min(out, in·sᴰ).
    References: [sedghi2019] for the circular case, [delattre2023].
    """
    shape = tuple(int(size) for size in input_shape)
    if not shape or min(shape) < 1:
        raise ValueError(f"operator_norm: input_shape must hold sizes of at least 1, got {list(input_shape)}.")
    if dense < 0:
        raise ValueError(f"operator_norm: dense must not be negative, got {dense}.")
    name = type(module).__name__
    layer = copy.deepcopy(module).double().eval().requires_grad_(False)
    for key, parameter in layer.state_dict().items():
        if not bool(torch.isfinite(parameter).all()):
            raise ValueError(f"operator_norm: {name}.{key} must be finite, got NaN or infinity.")
    check_hooks("operator_norm", layer)
    _check_linear(layer)
    for part in layer.modules():  # no part of the map, and beside large ones the weights would be rounded away
        shifts = (part._parameters.get("bias"), part._buffers.get("running_mean"))
        for shift in shifts:
            if shift is not None:
                shift.zero_()
    zero = torch.zeros(1, *shape, dtype=torch.float64, device=model_device(layer))
    try:
        output = layer(zero)
    except (RuntimeError, ValueError) as failure:
        raise ValueError(
            f"operator_norm: input_shape must fit {name}, got {list(shape)} (a sample, no batch). {failure}"
        ) from failure
    if zero.numel() * output.numel() <= dense:
        return OperatorNorm(*norm_interval(_matrix(layer, zero, output), tol=tol))
    ends = _ends(layer, shape, tol)
    if not max_iter or math.isclose(ends.lower, ends.upper, rel_tol=10 * tol):
        return OperatorNorm(*ends)
    lower = _quotient(layer, zero, output, max_iter, seed)
    return OperatorNorm(min(max(lower, ends.lower), ends.upper), ends.upper)


def _quotient(layer: nn.Module, zero: Tensor, output: Tensor, max_iter: int, seed: int) -> float:
    """‖Lv‖/‖v‖ in float64 of a direction that Lanczos found in float32: a lower end, whatever the direction."""
    with torch.enable_grad():
        x = zero.float().requires_grad_()
        generator = torch.Generator().manual_seed(seed)
        estimate = jacobian_norm(copy.deepcopy(layer).float()(x), x, max_iter=max_iter, tol=1e-3, generator=generator)
    v = estimate.direction.double()
    size = float(torch.linalg.vector_norm(v))
    image = float(torch.linalg.vector_norm(layer(v) - output))
    # The shift is taken off again, and costs its own rounding.
    shift = 64 * ROUNDING * float(torch.linalg.vector_norm(output))
    exact = 1 - 64 * ROUNDING * math.sqrt(zero.numel() + output.numel())
    return max(0.0, (image - shift) / size * exact) if size else 0.0


def _check_linear(layer: nn.Module) -> None:
    kinds = Convolution | Transposed | BatchNorm | AveragePool | Still | nn.Linear | nn.Sequential
    for part in layer.modules() if isinstance(layer, nn.Sequential) else [layer]:
        if not isinstance(part, kinds) or foreign(part):
            raise TypeError(
                f"operator_norm: module must be a linear layer or a Sequential of them, got {type(part).__name__}. "
                "of_module bounds other modules."
            )
        if isinstance(part, BatchNorm) and part.running_var is None:
            raise ValueError(
                f"operator_norm: {type(part).__name__} must have running statistics, got none. "
                "With the statistics of the batch it is no linear map."
            )


def _matrix(layer: nn.Module, zero: Tensor, output: Tensor) -> Tensor:
    """Rows: images of the unit inputs, less that of zero."""
    units = torch.eye(zero.numel(), dtype=zero.dtype, device=zero.device).reshape(-1, *zero.shape[1:])
    return torch.cat([(layer(part) - output).flatten(1) for part in units.split(256)])


def _ends(layer: nn.Module, shape: tuple[int, ...], tol: float) -> NormInterval:
    """A certain upper end, and the lower end that comes with it (0 where none does)."""
    if isinstance(layer, nn.Linear):
        return norm_interval(layer.weight, tol=tol)
    if isinstance(layer, Convolution):
        return NormInterval(0.0, _convolution(layer, shape[-len(layer.kernel_size) :], tol))
    if isinstance(layer, Transposed):
        return NormInterval(0.0, _transposed(layer, shape, tol))
    if isinstance(layer, BatchNorm):
        variance = cast(Tensor, layer.running_var)
        scale = torch.ones_like(variance) if layer.weight is None else layer.weight
        slope = float((scale.abs() / torch.sqrt(variance + layer.eps)).max())
        return NormInterval(slope * (1 - 8 * ROUNDING), slope * (1 + 8 * ROUNDING))
    if isinstance(layer, AveragePool):
        return NormInterval(0.0, _schur(layer, shape))
    if isinstance(layer, nn.Sequential):
        upper, x = 1.0, torch.zeros(1, *shape, dtype=torch.float64, device=model_device(layer))
        for part in layer:
            upper *= _ends(part, tuple(x.shape[1:]), tol).upper * (1 + 2 * ROUNDING)
            x = part(x)
        return NormInterval(0.0, upper)
    return NormInterval(1.0, 1.0)


def _schur(layer: nn.Module, shape: tuple[int, ...]) -> float:
    with torch.enable_grad():
        x = torch.ones(1, *shape, dtype=torch.float64, requires_grad=True)
        y = layer(x)
        (columns,) = torch.autograd.grad(y.sum(), x)
    return math.sqrt(float(y.detach().max()) * float(columns.max())) * (1 + 64 * ROUNDING * math.sqrt(x.numel()))


def _convolution(layer: Convolution, size: tuple[int, ...], tol: float) -> float:
    # [left, right] of each axis; torch keeps them last axis first, and 'same' may be uneven.
    flat = layer.pads(size) if isinstance(layer, SameConv2d) else layer._reversed_padding_repeated_twice
    sides = [(flat[2 * k], flat[2 * k + 1]) for k in reversed(range(len(size)))]
    stride: tuple[int, ...] = layer.stride
    dilation: tuple[int, ...] = layer.dilation
    g = layer.groups
    kernel = layer.weight.reshape(g, layer.out_channels // g, layer.in_channels // g, -1)
    factor = 1.0
    if layer.padding_mode == "circular":
        torus, steps = list(size), list(stride)
        for k, side in enumerate(sides):
            reach = dilation[k] * (layer.kernel_size[k] - 1) + 1
            outputs = (size[k] + sum(side) - reach) // stride[k] + 1
            copies = -(-outputs // (size[k] // stride[k])) if size[k] % stride[k] == 0 else outputs * stride[k]
            if size[k] % stride[k]:
                # Outputs fall on the torus between the strides too: count those on one pixel, all pixels kept.
                steps[k] = 1
                copies = max(map([i * stride[k] % size[k] for i in range(outputs)].count, range(size[k])))
            factor *= math.sqrt(copies)
    else:
        steps = list(stride)
        torus = [-(-(n + sum(side)) // s) * s for n, side, s in zip(size, sides, stride, strict=True)]
        if layer.padding_mode != "zeros":
            factor = _padding_norm(layer, size, flat)
    return _on_torus(kernel, tuple(layer.kernel_size), dilation, torus, steps, tol) * factor * (1 + 8 * ROUNDING)


def _padding_norm(layer: Convolution, size: tuple[int, ...], flat: Sequence[int]) -> float:
    with torch.enable_grad():
        x = torch.ones(1, 1, *size, dtype=torch.float64, requires_grad=True)
        padded = nn.functional.pad(x, list(flat), mode=layer.padding_mode)
        (copies,) = torch.autograd.grad(padded.sum(), x)
    return math.sqrt(float(copies.max()))


def _transposed(layer: Transposed, shape: tuple[int, ...], tol: float) -> float:
    size = layer(layer.weight.new_zeros(1, *shape)).shape[-len(layer.kernel_size) :]
    stride: tuple[int, ...] = layer.stride
    dilation: tuple[int, ...] = layer.dilation
    padding = cast(tuple[int, ...], layer.padding)
    kernel = layer.weight.reshape(
        layer.groups, layer.in_channels // layer.groups, layer.out_channels // layer.groups, -1
    )
    torus = [-(-(n + 2 * p) // s) * s for n, p, s in zip(size, padding, stride, strict=True)]
    return _on_torus(kernel, tuple(layer.kernel_size), dilation, torus, list(stride), tol)


def _on_torus(
    kernel: Tensor, sides: tuple[int, ...], dilation: tuple[int, ...], torus: list[int], stride: list[int], tol: float
) -> float:
    """Norm of the strided circular convolution with ``kernel`` ``[groups, out, in, taps]``, from above."""
    groups, rows, columns, taps = kernel.shape
    positions = list(itertools.product(*(range(side) for side in sides)))
    coarse = [n // s for n, s in zip(torus, stride, strict=True)]
    # Real kernels: the opposite frequency has the conjugate block, so half of the last axis is enough.
    halves = [*map(range, coarse[:-1]), range(coarse[-1] // 2 + 1)]
    integers = partial(torch.tensor, device=kernel.device)
    frequencies = integers(list(itertools.product(*halves)))
    aliases = integers(list(itertools.product(*map(range, stride)))) * integers(coarse)
    offsets = integers(positions) * integers(dilation)
    size = integers(torus)
    fold = len(aliases)
    per = max(1, _CHUNK // (kernel.numel() // taps * fold))
    flat = kernel.permute(3, 0, 1, 2).reshape(taps, -1).to(torch.complex128)

    def blocks() -> Iterator[Tensor]:
        for part in frequencies.split(per):
            points = part[:, None] + aliases  # [f, a, D]
            # Whole turns are taken off in integers, so that the angle is exact to rounding.
            turns = ((points[:, :, None] * offsets) % size).double() / size
            angles = 2 * torch.pi * turns.sum(-1)
            phases = torch.polar(torch.ones_like(angles), angles)
            block = (phases.reshape(-1, taps) @ flat).reshape(len(part), fold, groups, rows, columns)
            yield (block.permute(0, 2, 3, 1, 4) / math.sqrt(fold)).reshape(-1, rows, fold * columns)

    blurred = float(torch.linalg.vector_norm(kernel.abs().sum(-1).flatten(1), dim=1).max())
    error = 16 * (taps + 16) * ROUNDING * blurred
    return norm_interval(blocks, tol=tol, error=error).upper
