"""A bound is of what runs: classes that only look like torch's layers, hooks, work in place, options of functions."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lisse.networks.bounds import ball_bounds, of_module, operator_norm
from lisse.networks.bounds.tokens import linear_parts
from lisse.networks.zoo.efficientnet import SameConv2d


class Tenfold(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 10 * super().forward(input)


class Steeper(nn.ReLU):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 3 * super().forward(input)


class Twofold(nn.Sequential):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


class Standardised(nn.Conv2d):
    """Weight standardisation, as in BiT and NFNets."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self._conv_forward(input, 10 * self.weight / self.weight.std((1, 2, 3), keepdim=True), self.bias)


class Active(nn.BatchNorm2d):
    """Batch norm that also holds its activation, as in timm."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * F.silu(super().forward(input))


class Written(nn.Module):
    """Adds an activation to its input, which the activation wrote into where it is in place."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.first = part, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        y = self.part(h)
        return y + h


class AddedTo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        y = x
        y += self.linear(x)
        return y + x


class Viewed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(x)
        y = x.view(1, -1)
        x *= 5.0
        return y


class Function(nn.Module):
    def __init__(self, function, *, behind: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4) if behind else nn.Identity()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.linear(x))


def hooked() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda module, args, output: 10 * output)
    return layer


# Everything here either has a bound that holds or is refused.
SUSPECTS = {
    "derived linear": (lambda: Tenfold(4, 4), (4,)),
    "derived linear inside": (lambda: nn.Sequential(nn.ReLU(), Tenfold(4, 4)), (4,)),
    "derived activation": (lambda: nn.Sequential(nn.Linear(4, 4), Steeper()), (4,)),
    "derived sequence": (lambda: Twofold(nn.Linear(4, 4)), (4,)),
    "standardised convolution": (lambda: Standardised(2, 2, 3), (2, 5, 5)),
    "batch norm and activation": (lambda: nn.Sequential(Active(2), nn.Flatten()), (2, 4, 4)),
    "hook": (hooked, (4,)),
    "SELU in place": (lambda: Written(nn.SELU(inplace=True)), (4,)),
    "ReLU in place": (lambda: Written(nn.ReLU(inplace=True)), (4,)),
    "sequence in place": (lambda: Written(nn.Sequential(nn.SELU(inplace=True), nn.Linear(4, 4))), (4,)),
    "function in place": (lambda: Written(Function(lambda x: F.selu(x, True), behind=False)), (4,)),
    "method in place": (lambda: Written(Function(lambda x: x.relu_(), behind=False)), (4,)),
    "sum in place": (AddedTo, (4,)),
    "view written into": (Viewed, (4,)),
    "indices": (lambda: Function(lambda x: x[:, [0, 0, 0, 0]]), (4,)),
    "indices of samples": (lambda: Function(lambda x: x[[0, 0]]), (4,)),
    "reflected": (lambda: Function(lambda x: F.pad(x, (3, 3), mode="reflect")), (2, 4)),
    "gelu": (lambda: Function(F.gelu), (4,)),
    "softplus": (lambda: Function(lambda x: F.softplus(x, beta=3.0)), (4,)),
    "softplus, threshold": (lambda: Function(lambda x: F.softplus(x, 1.0, 0.1)), (4,)),
    "alpha": (lambda: Function(lambda x: torch.add(x, x, alpha=5.0)), (4,)),
    "whole numbers": (lambda: Function(lambda x: (10 * x).to(torch.int64).double()), (4,)),
}  # fmt: skip


def suspect(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(0)
    build, shape = SUSPECTS[name]
    return build().double().eval(), shape


@pytest.mark.parametrize("name", SUSPECTS)
def test_a_constant_holds_or_is_refused(name):
    module, shape = suspect(name)
    try:
        bound = of_module(module, radius=10.0, input_shape=shape, metric="euclidean").value
    except TypeError:
        return
    generator = torch.Generator().manual_seed(1)
    for _ in range(200):
        x, shift = (torch.randn(1, *shape, generator=generator, dtype=torch.float64) for _ in range(2))
        far = copy.deepcopy(module)(x + 1e-4 * shift) - copy.deepcopy(module)(x.clone())
        assert float(far.norm()) <= bound * 1e-4 * float(shift.norm()) * (1 + 1e-6)


@pytest.mark.parametrize("name", SUSPECTS)
def test_an_enclosure_holds_or_is_refused(name):
    module, shape = suspect(name)
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(2, *shape, generator=generator, dtype=torch.float64)
    for eps in (0.0, 0.3):
        try:
            low, high = ball_bounds(module, x, eps, norm="linf")
        except (TypeError, RuntimeError):
            return
        for _ in range(100):
            y = module(x + eps * (2 * torch.rand(x.shape, generator=generator, dtype=torch.float64) - 1))
            assert bool((low <= y).all() and (y <= high).all())


def test_these_keep_their_bounds():
    """What is ordinary stays known: an activation in place on a value that nobody reads again."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 4), nn.SiLU(inplace=True), nn.Linear(4, 4))
    assert of_module(network, radius=1.0, metric="euclidean").value > 0
    doubled = Written(nn.SELU(inplace=True))
    size = float(torch.linalg.matrix_norm(doubled.first.weight.double(), 2))
    assert of_module(doubled, radius=1.0, metric="euclidean").value == pytest.approx(2 * 1.7580994 * size, rel=1e-3)


@pytest.mark.parametrize(("stride", "sides"), [(1, (7, 7)), (1, (5, 6)), (2, (7, 6)), (3, (8, 7))])
def test_padding_that_is_made_in_the_forward_is_counted(stride, sides):
    torch.manual_seed(1)
    layer = SameConv2d(1, 2, (5, 3), stride=stride).double()
    layer.weight.data.abs_()
    x = torch.zeros(1, 1, *sides, dtype=torch.float64)
    matrix = torch.autograd.functional.jacobian(layer, x).reshape(-1, x.numel())
    exact = float(torch.linalg.matrix_norm(matrix, 2))
    assert exact <= operator_norm(layer, (1, *sides), dense=0).upper <= 1.5 * exact
    assert operator_norm(layer, (1, *sides)).upper == pytest.approx(exact, rel=1e-4)


def test_an_adapter_is_not_the_layer_that_it_stands_for():
    class Linear(nn.Module):  # as LoRA's: the base's weight under its own name
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(3, 3)

        @property
        def weight(self) -> torch.Tensor:
            return self.base.weight

    with pytest.raises(TypeError, match="must be a plain linear layer"):
        linear_parts(Linear())


def test_large_statistics_cancel_within_the_enclosure():
    norm = nn.BatchNorm1d(3).double().eval()
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.fill_(1e8)
    norm.running_var.fill_(0.3)
    norm.bias.data.fill_(1e8 / 0.3**0.5)
    x = torch.rand(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    low, high = ball_bounds(nn.Sequential(norm), x, 0.0, norm="linf")
    scale = 1 / (norm.running_var + norm.eps).sqrt()
    exact = (x - 1e8) * scale + norm.bias
    assert bool((low <= exact).all() and (exact <= high).all())


def test_what_reads_otherwise_is_refused_with_a_reason():
    with pytest.raises(TypeError, match=r"of_module: Linear must have no forward hooks"):
        of_module(hooked(), radius=1.0)
    with pytest.raises(TypeError, match=r"operator_norm: module must be a linear layer"):
        operator_norm(Tenfold(4, 4), (4,))
    with pytest.raises(TypeError, match="writes into a value that is read again"):
        of_module(Viewed(), radius=1.0, input_shape=(4,), metric="euclidean")

    class Branching(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return F.relu(input) if self.weight.sum() > 1e9 else super().forward(input)

    with pytest.raises(TypeError):
        ball_bounds(Branching(3, 3), torch.zeros(1, 3), 0.1, norm="l2")
