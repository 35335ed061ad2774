"""A network as a list of steps, each affine, a sum or an activation: what walks through it read and write."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from lisse.networks.bounds.graph import UNTRACEABLE, check_hooks, foreign, traced
from lisse.networks.bounds.operators import AveragePool, BatchNorm, Convolution, Still
from lisse.networks.bounds.slopes import FUNCTIONS
from lisse.networks.zoo.resnet import PaddedShortcut
from lisse.taps import is_shortage

ROUNDOFF = 2.0**-53
TINY = 1e-280  # over all that underflows in a sum of products
_GRID = 33  # points of an activation's interval at which its distance to a line is looked at
# Lipschitz constants of derivatives: |σ''| where it exists, rounded up.
BENDS: dict[type[nn.Module], float] = {
    nn.Tanh: 0.7699,
    nn.Sigmoid: 0.0963,
    nn.SiLU: 0.5001,
    nn.GELU: 0.82,
    nn.Softplus: 0.2501,
}
_MOVES = {"flatten", "reshape", "view", "squeeze", "unsqueeze", "contiguous", "clone", "detach", "dropout"}


def _itself(x: Tensor) -> Tensor:
    return x


@dataclass(eq=False)
class Node:
    """One step of the forward: what it does, the nodes it reads, and what is known of it in the present ball."""

    kind: Literal["input", "affine", "sum", "entry"]
    inputs: tuple[Node, ...] = ()
    function: Callable[[Tensor], Tensor] = _itself
    linear: Callable[[Tensor], Tensor] = _itself  # L, of an affine step
    magnitude: Callable[[Tensor], Tensor] = _itself  # |L|
    module: nn.Module | None = None
    terms: int = 1
    shifted: Tensor | float = 0.0  # sizes of the terms of which its shift was made
    shape: torch.Size = field(default_factory=torch.Size)
    monotone: tuple[Node, Callable[[Tensor], Tensor]] | None = (
        None  # what it is of a node before, growing in each entry
    )
    # Of the present ball, [n, *shape]:
    middle: Tensor = field(default_factory=lambda: torch.empty(0))
    reach: Tensor = field(default_factory=lambda: torch.empty(0))
    mass: Tensor = field(default_factory=lambda: torch.empty(0))
    lines: tuple[Tensor, ...] = ()
    straight: Tensor | float = 0.0  # how much of the reach is the tangent's

    @property
    def gamma(self) -> float:
        """Of a sum of as many terms as a product with a row has, with room to spare."""
        return self.forward + 4 * self.shape.numel() * ROUNDOFF

    @property
    def forward(self) -> float:
        """Of a sum of as many terms as an entry has."""
        return 4 * (self.terms + 16) * ROUNDOFF

    def ends(self) -> tuple[Tensor, Tensor]:
        """The interval of every entry."""
        return self.middle - self.reach, self.middle + self.reach

    def between(self, low: Tensor, high: Tensor) -> None:
        """Take the tighter of two enclosures, entry by entry; what is no number says nothing."""
        old_low, old_high = self.ends()
        low, high = (torch.where(torch.isfinite(end), end, old) for end, old in ((low, old_low), (high, old_high)))
        low, high = torch.maximum(low, old_low), torch.minimum(high, old_high)
        self.middle = (low + high) / 2
        self.reach = ((high - low) / 2).clamp_min(0) + 4 * ROUNDOFF * (low.abs() + high.abs())

    def departure(self, slope: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        r"""Ends of σ(z) − slope · z for z in [low, high], of an activation σ.

        A convex piecewise linear σ has them at the ends and at its kink. A smooth one is looked at on a grid of
        distance h: between two of its points a function of bend C is within :math:`C h^2/8` of its chord.
        """
        module = self.module
        if isinstance(module, nn.ReLU | nn.LeakyReLU):
            ends = torch.stack([self.function(end) - slope * end for end in (low, high)])
            ends = torch.cat([ends, torch.where((low < 0) & (high > 0), 0.0, ends[:1])])
            bottom, top = ends.amin(0), ends.amax(0)
            # On one side of the kink it is the line of that side, exactly.
            slack = torch.where((bottom == 0) & (top == 0), 0.0, 8 * ROUNDOFF * (low.abs() + high.abs()) + TINY)
            return bottom - slack, top + slack
        bend, width = BENDS[type(module)], high - low  # type: ignore[index]
        bottom, top = torch.full_like(low, torch.inf), torch.full_like(low, -torch.inf)
        for share in torch.linspace(0, 1, _GRID, dtype=torch.float64, device=low.device):
            point = low + share * width
            gap = self.function(point) - slope * point
            bottom, top = torch.minimum(bottom, gap), torch.maximum(top, gap)
        slack = bend * (width / (_GRID - 1)) ** 2 / 8 + 64 * ROUNDOFF * (1 + low.abs() + high.abs())
        if isinstance(module, nn.Softplus):
            slack = slack + math.exp(-module.threshold)  # where torch goes over to the identity
        return bottom - slack, top + slack


class Steps:
    """The steps of ``model`` on inputs of ``shape``, in float64: ``nodes`` in their order, ``end`` the output's.

    Layers: linear, convolutions, batch norm (evaluation), average and max pools, sums, reshapes, ReLU, leaky ReLU,
    tanh, sigmoid, SiLU, GELU, softplus. What is not known is refused by name.
    """

    def __init__(self, model: nn.Module, shape: tuple[int, ...]) -> None:
        check_hooks("Relaxation", model)
        network = copy.deepcopy(model).double().eval().requires_grad_(False)
        device = next((value.device for value in network.state_dict().values()), torch.device("cpu"))
        self.nodes = [Node("input", shape=torch.Size(shape))]
        with torch.no_grad():
            probe = torch.rand(1, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
            try:
                self.end, output = self._through(network, self.nodes[0], probe)
                answer = network(probe.clone())
            except (*UNTRACEABLE, LookupError) as error:
                if is_shortage(error) or str(error).startswith("Relaxation: "):
                    raise
                raise TypeError(
                    f"Relaxation: {type(network).__name__} must run on one sample of {list(shape)}, step by step, got "
                    f"{type(error).__name__}: {error}."
                ) from error
            far = (answer - output).abs().max() if isinstance(answer, Tensor) else math.inf
            if not far <= 1e-6 * (1e-6 + output.abs().max()):
                raise TypeError(
                    f"Relaxation: the steps of {type(network).__name__} must give what its forward gives, got "
                    "something else (a forward hook, or a branch that depends on values?)."
                )

    def _through(self, module: nn.Module, node: Node, zero: Tensor) -> tuple[Node, Tensor]:
        single = None if foreign(module) else self._module(module, node, zero)
        if single is not None:
            return single
        name = type(module).__name__
        if name == "Normalised":
            mean, std = (torch.as_tensor(getattr(module, key)).to(zero) for key in ("mean", "std"))
            node, zero = self._affine(node, zero, lambda x: (x - mean) / std, lambda x: x / std, lambda x: x / std)
            return self._through(module.network, node, zero)  # type: ignore[arg-type]
        if isinstance(module, nn.Sequential) and not foreign(module):
            for part in module:
                node, zero = self._through(part, node, zero)
            return node, zero
        try:
            graph = traced(module)
        except UNTRACEABLE as error:
            raise TypeError(f"Relaxation: the structure of {name} must be traceable, got {error}.") from error
        values: dict[fx.Node, Any] = {}
        for step in graph.nodes:
            if step.op == "placeholder":
                values[step] = (node, zero)
            elif step.op == "get_attr":
                raise TypeError(f"Relaxation: {name} uses a constant, {step.target}, of which no rule is known.")
            elif step.op == "output":
                result: tuple[Node, Tensor] = values[step.args[0]]
                return result
            else:
                args, options = fx.node.map_arg((step.args, step.kwargs), values.__getitem__)
                values[step] = self._step(step, module, list(args), dict(options), name)
        raise TypeError(f"Relaxation: the structure of {name} must have an output, got none.")

    def _step(self, step: fx.Node, root: nn.Module, args: list[Any], options: dict[str, Any], name: str) -> Any:
        spots = [value for value in args if isinstance(value, tuple) and value and isinstance(value[0], Node)]
        if step.op == "call_module":
            return self._through(root.get_submodule(str(step.target)), *spots[0])
        word = str(step.target) if step.op == "call_method" else getattr(step.target, "__name__", str(step.target))
        plain = [value[1] if any(value is spot for spot in spots) else value for value in args]
        method = step.op == "call_method"
        call: Any = getattr(type(plain[0]), word) if method else step.target
        output = call(*plain, **options)
        if not isinstance(output, Tensor):
            return output
        if word in ("add", "iadd", "add_", "__add__") and len(spots) == 2 and not options:
            shapes = [tuple(spot[1].shape[1:]) for spot in spots]
            if shapes[0] != shapes[1]:
                raise TypeError(f"Relaxation: a sum in {name} must be of one shape, got {shapes[0]} and {shapes[1]}.")
            node = Node("sum", (spots[0][0], spots[1][0]), shape=output.shape[1:])
            self.nodes.append(node)
            return node, output
        if len(spots) == 1:
            (node, zero) = spots[0]
            if word in FUNCTIONS:
                # As a layer of the same settings: torch's take them in the order in which its functions do.
                return self._through(type(FUNCTIONS[word])(*args[1:], **options), node, zero)
            if word in _MOVES and not (word == "dropout" and options.get("training", True)):
                tail = output.shape[1:]
                return self._affine(node, zero, lambda x: x.reshape(len(x), *tail))
            if word in ("mean", "avg_pool2d", "adaptive_avg_pool2d", "avg_pool1d"):
                settings = args[1:]
                return self._affine(node, zero, lambda x: call(x, *settings, **options), terms=zero.numel())
            if word == "max_pool2d":
                return self._through(nn.MaxPool2d(*args[1:], **options), node, zero)
        raise TypeError(f"Relaxation: the operation {word!r} in {name} must have a rule, got none.")

    def _module(self, module: nn.Module, node: Node, zero: Tensor) -> tuple[Node, Tensor] | None:
        if isinstance(module, nn.Linear | Convolution):
            weight = module.weight.detach()
            linear, size = _unbiased(module, weight), _unbiased(module, weight.abs())
            return self._affine(node, zero, module, linear, size, terms=weight[0].numel())
        if isinstance(module, BatchNorm) and module.running_var is not None and module.running_mean is not None:
            ones = [1, -1] + [1] * (zero.ndim - 2)
            scale = (module.running_var + module.eps).rsqrt() * (1.0 if module.weight is None else module.weight)
            shift = -module.running_mean * scale + (0.0 if module.bias is None else module.bias)
            s, t = scale.reshape(ones), shift.reshape(ones)
            behind = self._affine(node, zero, lambda x: s * x + t, lambda x: s * x, lambda x: s.abs() * x)
            behind[0].shifted = (2 * (module.running_mean * scale).abs() + shift.abs()).reshape(ones)
            return behind
        if isinstance(module, AveragePool | Still | PaddedShortcut):
            return self._affine(node, zero, module, terms=zero.numel())
        if isinstance(module, nn.MaxPool2d):
            if module.padding not in (0, (0, 0)) or module.dilation not in (1, (1, 1)) or module.ceil_mode:
                raise TypeError("Relaxation: MaxPool2d must have no padding, dilation or ceil_mode, got one.")
            return self._pool(module, node, zero)
        if isinstance(module, nn.ReLU | nn.LeakyReLU) or type(module) in BENDS:
            if isinstance(module, nn.Softplus) and module.beta != 1:
                raise TypeError(f"Relaxation: Softplus must have beta 1, got {module.beta}.")
            if isinstance(module, nn.LeakyReLU) and not 0 <= module.negative_slope <= 1:
                raise TypeError(f"Relaxation: LeakyReLU must have a slope in [0, 1], got {module.negative_slope}.")
            return self._added("entry", node, zero, copy.deepcopy(module))
        if not list(module.children()) and type(module).__module__.startswith("torch.nn"):
            raise TypeError(f"Relaxation: {type(module).__name__} must have a rule, got none.")
        return None

    def _affine(
        self,
        node: Node,
        zero: Tensor,
        function: Callable[[Tensor], Tensor],
        linear: Callable[[Tensor], Tensor] | None = None,
        magnitude: Callable[[Tensor], Tensor] | None = None,
        *,
        terms: int = 1,
    ) -> tuple[Node, Tensor]:
        output = function(zero)
        if magnitude is None and bool((function(torch.ones_like(zero)) < 0).any()):
            raise TypeError("Relaxation: an average must have a positive divisor, got a negative one.")
        parts = function, linear or function, magnitude or function
        new = Node("affine", (node,), *parts, terms=terms, shape=output.shape[1:])
        self.nodes.append(new)
        return new, output

    def _added(self, kind: Any, node: Node, zero: Tensor, module: nn.Module) -> tuple[Node, Tensor]:
        if hasattr(module, "inplace"):
            module.inplace = False  # type: ignore[assignment]
        output = module(zero)
        new = Node(kind, (node,), module, module=module, shape=output.shape[1:])
        self.nodes.append(new)
        return new, output

    def _pool(self, module: nn.MaxPool2d, node: Node, zero: Tensor) -> tuple[Node, Tensor]:
        """A maximum as pairs, max(a, b) = a + relu(b − a): its windows one behind another, halved until one is left."""
        sides, steps = ((part, part) if isinstance(part, int) else part for part in (module.kernel_size, module.stride))
        channels, (height, width) = zero.shape[1], module(zero).shape[2:]
        corners = [
            (slice(i, i + steps[0] * (height - 1) + 1, steps[0]), slice(j, j + steps[1] * (width - 1) + 1, steps[1]))
            for i in range(sides[0])
            for j in range(sides[1])
        ]
        node, zero = self._affine(node, zero, lambda x: torch.cat([x[:, :, i, j] for i, j in corners], 1))
        while zero.shape[1] > channels:
            node, zero = self._halved(node, zero, zero.shape[1] // channels // 2 * channels)
        return node, zero

    def _halved(self, node: Node, zero: Tensor, half: int) -> tuple[Node, Tensor]:
        """The first ``half`` channels, each the maximum with one of the second ``half``; what is left over stays."""
        spare = zero.shape[1] - 2 * half

        def firsts(x: Tensor) -> Tensor:
            return torch.cat([x[:, :half], x[:, 2 * half :]], 1)

        def larger(x: Tensor) -> Tensor:
            return torch.cat([torch.maximum(x[:, :half], x[:, half : 2 * half]), x[:, 2 * half :]], 1)

        apart = self._affine(
            node,
            zero,
            lambda x: x[:, half : 2 * half] - x[:, :half],
            None,
            lambda x: x[:, half : 2 * half] + x[:, :half],
        )
        over = self._added("entry", *apart, nn.ReLU())
        behind, _ = self._affine(*over, lambda x: nn.functional.pad(x, (0, 0, 0, 0, 0, spare)))
        first, _ = self._affine(node, zero, firsts)
        output = larger(zero)
        new = Node("sum", (first, behind), shape=output.shape[1:], monotone=(node, larger))
        self.nodes.append(new)
        return new, output


def _unbiased(module: nn.Module, weight: Tensor) -> nn.Module:
    """The layer with this weight and no bias, also where a parametrization computes the weight."""
    kind: Any = type(module).__mro__[1] if parametrize.is_parametrized(module) else type(module)
    layer: nn.Module = kind.__new__(kind)
    layer.__dict__.update(module.__dict__)
    layer._parameters, layer._modules = {"weight": nn.Parameter(weight, requires_grad=False), "bias": None}, {}
    return layer
