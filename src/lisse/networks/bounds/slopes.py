"""Lipschitz constants of single layers that have no weights to speak of: activations, pools, normalisations."""

from __future__ import annotations

import math

import torch
from torch import nn

# The largest slope of GELU is Φ(√2) + √2 φ(√2), that of SiLU 1.0998…; the others' to the digits given, rounded up.
_GELU = 0.5 * (1 + math.erf(1.0)) + math.sqrt(2) * math.exp(-1.0) / math.sqrt(2 * math.pi)
_SLOPES: dict[type[nn.Module], float] = {
    nn.ReLU: 1.0,
    nn.ReLU6: 1.0,
    nn.Tanh: 1.0,
    nn.Sigmoid: 0.25,
    nn.Softsign: 1.0,
    nn.Softplus: 1.0,
    nn.LogSigmoid: 1.0,
    nn.Hardtanh: 1.0,
    nn.Tanhshrink: 1.0,
    nn.Softshrink: 1.0,
    nn.CELU: 1.0,
    nn.SiLU: 1.0998394,
    nn.Mish: 1.0884983,
    nn.Hardswish: 1.5,
    nn.Hardsigmoid: 0.1666667,
    nn.SELU: 1.7580994,
    nn.Softmax: 0.5,
}
FUNCTIONS: dict[str, nn.Module] = {
    "relu": nn.ReLU(),
    "relu_": nn.ReLU(),
    "relu6": nn.ReLU6(),
    "gelu": nn.GELU(approximate="tanh"),  # the larger slope of the two
    "silu": nn.SiLU(),
    "tanh": nn.Tanh(),
    "sigmoid": nn.Sigmoid(),
    "mish": nn.Mish(),
    "hardswish": nn.Hardswish(),
    "softplus": nn.Softplus(),
}


def overridden(module: nn.Module) -> bool:
    """Whether a class derived from one of torch's layers has a forward of its own: it need not be that layer."""
    kind = type(module)
    base = next((b for b in kind.__mro__ if b.__module__.startswith("torch.nn.") and b is not nn.Module), nn.Module)
    if base is nn.Module:
        return False
    words = ("forward", "_conv_forward", "_sa_block", "_ff_block")
    return any(getattr(kind, word, None) is not getattr(base, word, None) for word in words)


def slope(module: nn.Module) -> float | None:
    """Lipschitz constant (ℓ2) of an activation, entry by entry, or of a softmax; None where it is none that is known.

    Hugging Face names its own: a GELU class of any kind has GELU's slope.
    """
    if overridden(module):
        return None
    if isinstance(module, nn.LeakyReLU):
        return max(1.0, abs(module.negative_slope))
    if isinstance(module, nn.ELU):
        return max(1.0, abs(module.alpha))
    if isinstance(module, nn.PReLU):
        return max(1.0, float(module.weight.detach().abs().max()))
    name = type(module).__name__
    if isinstance(module, nn.GELU):
        return _GELU * (1 + 1e-15) if module.approximate == "none" else 1.129
    if name in (
        "GELUActivation",
        "NewGELUActivation",
        "FastGELUActivation",
        "PytorchGELUTanh",
        "GELUTanh",
        "BloomGelu",
    ):
        return 1.13
    if name in ("SiLUActivation", "QuickGELUActivation"):  # x σ(cx) has one largest slope for every c
        return _SLOPES[nn.SiLU]
    return _SLOPES.get(type(module))


def max_pool_slope(module: nn.Module) -> float:
    """Max pooling: the root of the largest number of windows that one pixel is in."""
    dims = {nn.MaxPool1d: 1, nn.MaxPool2d: 2, nn.MaxPool3d: 3}[type(module)]  # type: ignore[index]
    kernel, stride, dilation = (
        value if isinstance(value, tuple) else (value,) * dims
        for value in (module.kernel_size, module.stride, module.dilation)
    )
    windows = 1
    for k, s, d in zip(kernel, stride, dilation, strict=True):
        # Windows that hold a pixel begin at pixel − d·i, i < k; of these only multiples of s are windows.
        step = s // math.gcd(s, d)
        windows *= -(-k // step)
    return math.sqrt(windows)


def gain(module: nn.Module) -> tuple[float, float]:
    """Largest |γ| and ‖β‖ of a normalisation; 1 and 0 where it has none."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    largest = 1.0 if weight is None else float(weight.detach().double().abs().max())
    return largest, 0.0 if bias is None else float(torch.linalg.vector_norm(bias.detach().double()))
