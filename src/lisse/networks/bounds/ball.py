"""What a network can do in a ball around a sample, proved by linear relaxation, and the radius that it certifies."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from lisse.maths.margin import competing_margins
from lisse.networks.attack.norms import Norm, norm_named
from lisse.networks.bounds.graph import UNTRACEABLE, foreign, traced
from lisse.networks.bounds.module import of_module
from lisse.networks.bounds.operators import AveragePool, BatchNorm, Convolution, Still
from lisse.networks.bounds.slopes import FUNCTIONS
from lisse.networks.zoo.resnet import PaddedShortcut
from lisse.taps import is_shortage

_UNIT = 2.0**-53
_GRID = 33  # points of an activation's interval at which its distance to a line is looked at
_OCTAVES = 40  # below the largest radius in which one is searched
# Lipschitz constants of derivatives: |σ''| where it exists, rounded up.
_BENDS: dict[type[nn.Module], float] = {
    nn.Tanh: 0.7699,
    nn.Sigmoid: 0.0963,
    nn.SiLU: 0.5001,
    nn.GELU: 0.82,
    nn.Softplus: 0.2501,
}
_MOVES = {"flatten", "reshape", "view", "squeeze", "unsqueeze", "contiguous", "clone", "detach", "dropout"}


@dataclass(eq=False)
class _Node:
    """One step of the forward: what it does, the nodes it reads, and what is known of it in the present ball."""

    kind: Literal["input", "affine", "sum", "entry", "pool"]
    inputs: tuple[_Node, ...] = ()
    function: Callable[[Tensor], Tensor] = lambda x: x
    magnitude: Callable[[Tensor], Tensor] = lambda x: x  # |L|, of an affine step
    module: nn.Module | None = None
    terms: int = 1
    shifted: Tensor | float = 0.0  # sizes of the terms of which its shift was made
    shape: torch.Size = field(default_factory=torch.Size)
    # Of the present ball, [n, *shape]:
    middle: Tensor = field(default_factory=lambda: torch.empty(0))
    reach: Tensor = field(default_factory=lambda: torch.empty(0))
    mass: Tensor = field(default_factory=lambda: torch.empty(0))
    lines: tuple[Tensor, ...] = ()

    @property
    def gamma(self) -> float:
        """Of a sum of as many terms as a product with a row has, with room to spare."""
        return self.forward + 4 * self.shape.numel() * _UNIT

    @property
    def forward(self) -> float:
        """Of a sum of as many terms as an entry has."""
        return 4 * (self.terms + 16) * _UNIT

    def ends(self) -> tuple[Tensor, Tensor]:
        return self.middle - self.reach, self.middle + self.reach

    def between(self, low: Tensor, high: Tensor) -> None:
        """Take the tighter of two enclosures, entry by entry."""
        old_low, old_high = self.ends()
        low, high = torch.maximum(low, old_low), torch.minimum(high, old_high)
        self.middle = (low + high) / 2
        self.reach = ((high - low) / 2).clamp_min(0) + 4 * _UNIT * (low.abs() + high.abs())


class Relaxation:
    r"""A network whose outputs in a ball around each sample are enclosed, in float64.

    Forwards, intervals ``middle ± reach`` go through every layer. Backwards, a linear function of the output is
    followed to the input ([zhang2018]): through an affine layer by its adjoint, through an activation σ on [l, u] by
    two lines that enclose it there, the lower one where the coefficient is positive, the upper where it is negative:

    .. math:: a^\top z \ge A x + c \ge A x_0 - \epsilon\|A\|_* + c.

    Before an activation the intervals are made tighter by the same walk from there, for units whose sign is open, where
    they are no more than ``refine``. Rounding is in the bounds: every affine layer adds
    :math:`\gamma(|L||z| + |b|)` to its interval, and :math:`\gamma\,|a|^\top(|L||z| + |b|)` is taken off in every step
    back, γ as many units of 2^-53 as a sum has terms, four times over. They hold for the real numbers of the weights; a
    forward in float32 differs.

    Layers: linear, convolutions, batch norm (evaluation), average and max pools, sums, reshapes, ReLU, leaky ReLU,
    tanh, sigmoid, SiLU, GELU, softplus. What is not known is refused by name.
    """

    def __init__(self, model: nn.Module, shape: tuple[int, ...], *, refine: int = 1024, chunk: int = 2**24) -> None:
        self.refine, self.chunk = refine, chunk
        network = copy.deepcopy(model).double().eval().requires_grad_(False)
        device = next((value.device for value in network.state_dict().values()), torch.device("cpu"))
        self.nodes = [_Node("input", shape=torch.Size(shape))]
        with torch.no_grad():
            probe = torch.rand(1, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
            self.end, output = self._through(network, self.nodes[0], probe)
            answer = network(probe.clone())
            far = (answer - output).abs().max() if isinstance(answer, Tensor) else math.inf
            if not far <= 1e-6 * (1e-6 + output.abs().max()):
                raise TypeError(
                    f"Relaxation: the steps of {type(network).__name__} must give what its forward gives, got "
                    "something else (a forward hook, or a branch that depends on values?)."
                )

    # -- the network as a list of steps --------------------------------------------------------------------------------

    def _through(self, module: nn.Module, node: _Node, zero: Tensor) -> tuple[_Node, Tensor]:
        single = None if foreign(module) else self._module(module, node, zero)
        if single is not None:
            return single
        name = type(module).__name__
        if name == "Normalised":
            mean, std = (torch.as_tensor(getattr(module, key)).to(zero) for key in ("mean", "std"))
            node, zero = self._affine(node, zero, lambda x: (x - mean) / std, lambda x: x / std)
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
                result: tuple[_Node, Tensor] = values[step.args[0]]
                return result
            else:
                args, options = fx.node.map_arg((step.args, step.kwargs), values.__getitem__)
                values[step] = self._step(step, module, list(args), dict(options), name)
        raise TypeError(f"Relaxation: the structure of {name} must have an output, got none.")

    def _step(self, step: fx.Node, root: nn.Module, args: list[Any], options: dict[str, Any], name: str) -> Any:
        spots = [value for value in args if isinstance(value, tuple) and value and isinstance(value[0], _Node)]
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
            node = _Node("sum", (spots[0][0], spots[1][0]), shape=output.shape[1:])
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

    def _module(self, module: nn.Module, node: _Node, zero: Tensor) -> tuple[_Node, Tensor] | None:
        if isinstance(module, nn.Linear | Convolution):
            size = copy.deepcopy(module)
            size.weight.copy_(module.weight.abs())
            size.bias = None
            terms = module.weight[0].numel()
            return self._affine(node, zero, module, size, terms=terms)
        if isinstance(module, BatchNorm) and module.running_var is not None and module.running_mean is not None:
            ones = [1, -1] + [1] * (zero.ndim - 2)
            scale = (module.running_var + module.eps).rsqrt() * (1.0 if module.weight is None else module.weight)
            shift = -module.running_mean * scale + (0.0 if module.bias is None else module.bias)
            s, t = scale.reshape(ones), shift.reshape(ones)
            behind = self._affine(node, zero, lambda x: s * x + t, lambda x: s.abs() * x)
            behind[0].shifted = (2 * (module.running_mean * scale).abs() + shift.abs()).reshape(ones)
            return behind
        if isinstance(module, AveragePool | Still | PaddedShortcut):
            return self._affine(node, zero, module, terms=zero.numel())
        if isinstance(module, nn.MaxPool2d):
            if module.padding not in (0, (0, 0)) or module.dilation not in (1, (1, 1)) or module.ceil_mode:
                raise TypeError("Relaxation: MaxPool2d must have no padding, dilation or ceil_mode, got one.")
            return self._added("pool", node, zero, module)
        if isinstance(module, nn.ReLU | nn.LeakyReLU) or type(module) in _BENDS:
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
        node: _Node,
        zero: Tensor,
        function: Callable[[Tensor], Tensor],
        magnitude: Callable[[Tensor], Tensor] | None = None,
        *,
        terms: int = 1,
    ) -> tuple[_Node, Tensor]:
        output = function(zero)
        new = _Node("affine", (node,), function, magnitude or function, terms=terms, shape=output.shape[1:])
        self.nodes.append(new)
        return new, output

    def _added(self, kind: Any, node: _Node, zero: Tensor, module: nn.Module) -> tuple[_Node, Tensor]:
        if hasattr(module, "inplace"):
            module.inplace = False  # type: ignore[assignment]
        output = module(zero)
        new = _Node(kind, (node,), module, module=module, shape=output.shape[1:])
        self.nodes.append(new)
        return new, output

    # -- bounds in a ball ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def lower(self, x: Tensor, eps: Tensor, norm: Norm, rows: Tensor) -> Tensor:
        """Lower bounds ``[n, k]`` of ``rows`` ``[n, k, …]`` times the output, in balls of radius ``eps`` ``[n]``."""
        self._enclose(x.double(), eps.double(), norm)
        return self._back(self.end, rows.double(), x.double(), eps.double(), norm)

    def _enclose(self, x: Tensor, eps: Tensor, norm: Norm) -> None:
        first = self.nodes[0]
        first.middle = x
        first.reach = _like(eps, x).expand_as(x) * (1 + 8 * _UNIT) + 4 * _UNIT * x.abs()
        for node in self.nodes[1:]:
            inside = node.inputs[0]
            if node.kind == "affine":
                size, shift = inside.middle.abs() + inside.reach, node.function(torch.zeros_like(inside.middle[:1]))
                node.mass = node.magnitude(size) * (1 + node.forward) + shift.abs() + node.shifted
                node.middle = node.function(inside.middle)
                node.reach = node.magnitude(inside.reach) * (1 + node.forward) + node.forward * node.mass
            elif node.kind == "sum":
                other = node.inputs[1]
                node.middle = inside.middle + other.middle
                node.mass = inside.middle.abs() + inside.reach + other.middle.abs() + other.reach
                node.reach = inside.reach + other.reach + node.forward * node.mass
            else:
                self._tighten(inside, x, eps, norm)
                if node.kind == "pool":
                    self._pool(node, inside)
                else:
                    self._squash(node, inside)

    def _tighten(self, node: _Node, x: Tensor, eps: Tensor, norm: Norm) -> None:
        """Walk back from the units whose sign is open in a sample."""
        low, high = node.ends()
        open_ = ((low < 0) & (high > 0)).flatten(1).any(0).nonzero().flatten()
        if not len(open_) or len(open_) > self.refine:
            return
        low, high = low.flatten(1).clone(), high.flatten(1).clone()
        widest = max(step.shape.numel() for step in self.nodes)
        for units in open_.split(max(1, self.chunk // (2 * len(x) * widest))):
            rows = torch.zeros(2 * len(units), node.shape.numel(), dtype=torch.float64, device=x.device)
            rows[torch.arange(len(units)), units] = 1.0
            rows[len(units) + torch.arange(len(units)), units] = -1.0
            ends = self._back(node, rows.reshape(1, -1, *node.shape).expand(len(x), -1, *node.shape), x, eps, norm)
            low[:, units], high[:, units] = ends[:, : len(units)], -ends[:, len(units) :]
        node.between(low.reshape(-1, *node.shape), high.reshape(-1, *node.shape))

    def _squash(self, node: _Node, inside: _Node) -> None:
        """Two lines around an activation on its interval, and the interval behind it."""
        low, high = inside.ends()
        width, module = high - low, node.module
        if isinstance(module, nn.ReLU | nn.LeakyReLU):
            leak = module.negative_slope if isinstance(module, nn.LeakyReLU) else 0.0
            above, below = node.function(high), node.function(low)
            chord = torch.where(width > 0, (above - below) / width.clamp_min(1e-300), 1.0).clamp(leak, 1.0)
            # The function is convex: any line is above it where it is above both ends.
            room = torch.maximum(above - chord * high, below - chord * low)
            top = room + 8 * _UNIT * (above.abs() + below.abs() + high.abs() + low.abs())
            flat = torch.full_like(low, leak)
            steep = torch.where(low >= 0, 1.0, torch.where(high <= 0, flat, torch.where(high > -low, 1.0, flat)))
            sure = (low >= 0) | (high <= 0)
            chord, top = torch.where(sure, steep, chord), torch.where(sure, 0.0, top)
            node.lines = (steep, torch.zeros_like(low), chord, top)
            ends = below, above
        else:
            bend = _BENDS[type(module)]  # type: ignore[index]
            above, below = node.function(high), node.function(low)
            chord = torch.where(width > 1e-9, (above - below) / width.clamp_min(1e-300), 0.0)
            shares = torch.linspace(0, 1, _GRID, dtype=torch.float64, device=low.device)
            gaps = torch.full_like(low, -torch.inf), torch.full_like(low, torch.inf)
            for share in shares:
                point = low + share * width
                gap = node.function(point) - chord * point
                gaps = torch.maximum(gaps[0], gap), torch.minimum(gaps[1], gap)
            # Between two points of distance h a function of bend C is within C h²/8 of its chord.
            slack = bend * (width / (_GRID - 1)) ** 2 / 8 + 64 * _UNIT * (1 + low.abs() + high.abs())
            slack = slack + torch.where(width > 1e-9, 0.0, 2 * width)
            if isinstance(module, nn.Softplus):
                slack = slack + math.exp(-module.threshold)  # where torch goes over to the identity
            node.lines = (chord, gaps[1] - slack, chord, gaps[0] + slack)
            ends = (
                torch.minimum(chord * low, chord * high) + gaps[1] - slack,
                torch.maximum(chord * low, chord * high) + gaps[0] + slack,
            )
        self._set(node, low.abs() + high.abs(), *ends)

    def _pool(self, node: _Node, inside: _Node) -> None:
        """From below the entry with the largest lower end; from above that one too, where it wins, else a constant."""
        low, high = inside.ends()
        pool = node.module
        assert isinstance(pool, nn.MaxPool2d)
        lowest, winners = nn.functional.max_pool2d(low, pool.kernel_size, pool.stride, return_indices=True)
        highest = node.function(high)
        sides = pool.kernel_size if isinstance(pool.kernel_size, tuple) else (pool.kernel_size,) * 2
        windows = [nn.functional.unfold(part, sides, stride=pool.stride) for part in (high, self._numbers(low))]
        shape = (len(low), low.shape[1], math.prod(sides), *node.shape[1:])
        tops, numbers = (part.reshape(shape) for part in windows)
        second = torch.where(numbers == winners[:, :, None].double(), -torch.inf, tops).amax(2)
        wins = second <= lowest
        node.lines = (winners, wins, torch.where(wins, 0.0, highest))
        self._set(node, node.function(low.abs() + high.abs()), lowest, highest)

    @staticmethod
    def _numbers(like: Tensor) -> Tensor:
        plane = torch.arange(like.shape[-2] * like.shape[-1], dtype=torch.float64, device=like.device)
        return plane.reshape(1, 1, *like.shape[-2:]).expand_as(like)

    @staticmethod
    def _set(node: _Node, size: Tensor, low: Tensor, high: Tensor) -> None:
        node.middle, node.reach = (low + high) / 2, (high - low) / 2 + 8 * _UNIT * (low.abs() + high.abs())
        node.mass = 2 * size + node.middle.abs() + node.reach

    def _back(self, start: _Node, rows: Tensor, x: Tensor, eps: Tensor, norm: Norm) -> Tensor:
        """Lower bounds ``[n, k]`` of ``rows`` times what ``start`` gives."""
        n, k = rows.shape[:2]
        coefficients: dict[_Node, Tensor] = {start: rows}
        constant = torch.zeros(n, k, dtype=torch.float64, device=x.device)
        added = constant.clone()  # of the terms' sizes, for the rounding of their sum
        for node in reversed(self.nodes[: self.nodes.index(start) + 1]):
            a = coefficients.pop(node, None)
            if a is None:
                continue
            if node.kind == "input":
                flat = a.flatten(2)
                size = flat.abs().sum(2) if norm == "linf" else torch.linalg.vector_norm(flat, dim=2)
                drift = 2 * node.gamma * (flat.abs() * (x.abs() + _like(eps, x)).flatten(1)[:, None]).sum(2)
                extra = (flat * x.flatten(1)[:, None]).sum(2) - eps[:, None] * size - drift
                constant, added = constant + extra, added + extra.abs()
                continue
            drift = node.gamma * (a.abs().flatten(2) * node.mass.flatten(1)[:, None]).sum(2)
            constant, added = constant - drift, added + drift
            for other, part, extra in self._pulled(node, a):
                constant, added = constant + extra, added + extra.abs()
                coefficients[other] = coefficients[other] + part if other in coefficients else part
        return constant - 8 * (len(self.nodes) + 4) * _UNIT * added

    def _pulled(self, node: _Node, a: Tensor) -> list[tuple[_Node, Tensor, Tensor]]:
        """Where coefficients go in one step back: node, coefficients there, and what becomes constant."""
        inside, (n, k) = node.inputs[0], a.shape[:2]
        if node.kind == "sum":
            return [(part, a, a.new_zeros(n, k)) for part in node.inputs]
        if node.kind == "affine":
            with torch.enable_grad():
                point = torch.zeros(n * k, *inside.shape, dtype=torch.float64, device=a.device, requires_grad=True)
                output = node.function(point)
                (pulled,) = torch.autograd.grad(output, point, a.reshape(output.shape))
            shift = node.function(torch.zeros(1, *inside.shape, dtype=torch.float64, device=a.device))
            return [(inside, pulled.reshape(n, k, *inside.shape), (a * shift[:, None]).flatten(2).sum(2))]
        positive, negative = a.clamp_min(0), a.clamp_max(0)
        if node.kind == "entry":
            steep, bottom, chord, top = (line[:, None] for line in node.lines)
            return [
                (inside, positive * steep + negative * chord, (positive * bottom + negative * top).flatten(2).sum(2))
            ]
        winners, wins, highest = (line[:, None] for line in node.lines)
        parts = (positive + negative * wins).flatten(3)
        spread = torch.zeros(n, k, inside.shape[0], inside.shape[1:].numel(), dtype=torch.float64, device=a.device)
        spread.scatter_add_(3, winners.flatten(3).expand_as(parts), parts)
        extra = torch.where(wins, 0.0, negative * highest).flatten(2).sum(2)
        return [(inside, spread.reshape(n, k, *inside.shape), extra)]


def ball_bounds(
    model: nn.Module, x: Tensor, eps: float | Tensor, *, norm: Norm | float | str, refine: int = 1024
) -> tuple[Tensor, Tensor]:
    r"""Proved ends ``[n, …]`` of the output for every input within ``eps`` of a sample of ``x`` ``[n, …]``.

    A finite ball, not a derivative: :class:`Relaxation` says how, which layers it knows, and how rounding is counted.
    ``eps`` is a number or one for each sample; ``refine`` is the most units of a layer from which a walk back makes
    intervals tighter (0: none; all of them is slow and best). Cost: one walk back for each output, and for each such
    unit one through the layers before it.
    """
    radius = torch.as_tensor(eps, dtype=torch.float64).expand(len(x)).to(x.device)
    if not bool((torch.isfinite(radius) & (radius >= 0)).all()):
        raise ValueError(f"ball_bounds: eps must be finite and not negative, got {eps}.")
    kind = norm_named("ball_bounds", norm)
    relaxation = Relaxation(model, tuple(x.shape[1:]), refine=refine)
    count = relaxation.end.shape.numel()
    units = torch.eye(count, dtype=torch.float64, device=x.device)
    rows = (
        torch.cat([units, -units])
        .reshape(1, 2 * count, *relaxation.end.shape)
        .expand(len(x), *[-1] * (1 + len(relaxation.end.shape)))
    )
    ends = relaxation.lower(x, radius, kind, rows)
    return ends[:, :count].reshape(-1, *relaxation.end.shape), -ends[:, count:].reshape(-1, *relaxation.end.shape)


def certified_radius(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    norm: Norm | float | str,
    largest: float,
    refine: int = 1024,
    batch: int = 16,
    steps: int = 12,
) -> Tensor:
    r"""A radius ``[n]`` in which no input has another answer than ``y``, proved, float64; 0 where the answer is wrong.

    .. math:: r_i = \max\{\epsilon \text{ tried}: \min_{c \ne y}\min_{\|x - x_i\| \le \epsilon} (z_y - z_c) > 0\}

    with the inner minimum from below by :class:`Relaxation`: ``r_i`` is a lower estimate of the distance to the nearest
    wrong answer, as :func:`lisse.networks.attack.attack_distance` is an upper one. Each sample has a bisection of its
    own on a scale of 40 octaves below ``largest``, ``steps`` halvings of them. Where the weights alone promise more
    (deep networks, and those that were kept Lipschitz), theirs is given: with L of :func:`of_module`,

    .. math:: r_i \ge \min_{c \ne y} (z_y - z_c) / (\sqrt2 L),

    over the root of the number of entries in ℓ∞. Its margins are those of a forward in float64, of which 1e-9 of the
    largest logit is taken off for its rounding. What lies outside the box of images counts as well. Cost: ``steps``
    times :func:`ball_bounds`.
    """
    kind = norm_named("certified_radius", norm)
    if not (math.isfinite(largest) and largest > 0):
        raise ValueError(f"certified_radius: largest must be positive and finite, got {largest}.")
    if steps < 1 or batch < 1 or len(x) != len(y):
        raise ValueError(
            f"certified_radius: steps and batch must be at least 1 and y as many as x, got {steps}, {batch}, {len(y)}."
        )
    relaxation = Relaxation(model, tuple(x.shape[1:]), refine=refine)
    if len(relaxation.end.shape) != 1:
        raise ValueError(f"certified_radius: model must give one number a class, got {list(relaxation.end.shape)}.")
    if not len(x):
        return torch.zeros(0, dtype=torch.float64, device=x.device)
    parts = zip(x.split(batch), y.split(batch), strict=True)
    radius = torch.cat([_searched(relaxation, *part, kind, float(largest), steps) for part in parts])
    promise = lipschitz_radius(model, x, y) / (x[0].numel() ** 0.5 if kind == "linf" else 1.0)
    return torch.maximum(radius, promise.clamp_max(largest))


def lipschitz_radius(model: nn.Module, x: Tensor, y: Tensor, *, tol: float = 1e-3) -> Tensor:
    r"""The radius ``[n]`` in ℓ2 that the weights alone certify: :math:`\min_{c \ne y} (z_y - z_c)/(\sqrt2 L)`, or 0.

    L is the bound of :func:`of_module`, and two logits differ by no more than √2 of it ([tsuzuku2018]); rounding as in
    :func:`certified_radius`. A network without such a bound, or with one beyond a float, certifies nothing. Cost: one
    forward.
    """
    try:
        bound = of_module(model, radius=1.0, input_shape=tuple(x.shape[1:]), metric="euclidean", tol=tol)
    except TypeError as refusal:
        if is_shortage(refusal):
            raise
        return torch.zeros(len(x), dtype=torch.float64, device=x.device)
    if bound.hypotheses or not math.isfinite(bound.value) or bound.value == 0:
        return torch.zeros(len(x), dtype=torch.float64, device=x.device)
    network = copy.deepcopy(model).double().eval()
    with torch.no_grad():
        logits = torch.cat([network(part.double()) for part in x.split(256)])
    margins = competing_margins(logits, y.to(logits.device)).amin(1) - 1e-9 * logits.abs().amax(1)
    return margins.clamp_min(0) / (math.sqrt(2) * bound.value * (1 + 1e-12))


def _searched(relaxation: Relaxation, x: Tensor, y: Tensor, norm: Norm, largest: float, steps: int) -> Tensor:
    classes = relaxation.end.shape.numel()
    units = torch.eye(classes, dtype=torch.float64, device=x.device)
    rows = units[y.to(x.device)][:, None] - units  # row c is z_y − z_c; that of y itself is 0
    labels = torch.nn.functional.one_hot(y.to(x.device), classes).bool()

    def certified(eps: Tensor) -> Tensor:
        margins = relaxation.lower(x, eps, norm, rows)
        return (margins > 0).logical_or(labels).all(1)

    radius = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    sound = certified(radius)
    floor, ceiling = torch.full_like(radius, -_OCTAVES), torch.zeros_like(radius)
    everywhere = certified(torch.full_like(radius, largest))
    for _ in range(steps):
        level = (floor + ceiling) / 2
        eps = largest * torch.exp2(level)
        proofs = certified(eps)
        radius = torch.where(proofs, torch.maximum(radius, eps), radius)
        floor, ceiling = torch.where(proofs, level, floor), torch.where(proofs, ceiling, level)
    return torch.where(sound, torch.where(everywhere, largest, radius), 0.0)


def _like(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (x.ndim - 1))
