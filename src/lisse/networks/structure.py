"""How a Lipschitz constant goes through a module: layer by layer, sum by sum, along the graph of its forward."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from lisse.maths.bounds import layer_norm_lipschitz, mean_field_multi_head, sequence_attention
from lisse.maths.bounds.bound import log, log_sum
from lisse.maths.spectral_norm import norm_interval
from lisse.networks.attention_weights import attention_weights
from lisse.networks.layer_bounds import FUNCTIONS, gain, max_pool_slope, slope
from lisse.networks.operator_norms import AveragePool, BatchNorm, Convolution, Still, Transposed, operator_norm
from lisse.networks.zoo.attention_only import FullWidthAttention
from lisse.networks.zoo.resnet import PaddedShortcut
from lisse.networks.zoo.vit import SplitHeadAttention

_NORMS = (nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
_SAME = {"contiguous", "clone", "detach", "float", "double", "to", "type_as"}
_MOVED = {"flatten", "reshape", "view", "transpose", "permute", "squeeze", "unsqueeze", "unflatten", "movedim", "t"}


@dataclass(frozen=True, slots=True)
class State:
    """A value inside the network: ``log`` of its Lipschitz constant in the input, ``radius``, and itself at input zero.

    ``radius`` bounds the norm of every row of the last axis where there are three axes (samples, tokens, features), and
    that of the whole sample otherwise.
    """

    log: float
    radius: float
    zero: Tensor

    @property
    def whole(self) -> float:
        """A bound of the norm of the whole sample."""
        return self.radius * (math.sqrt(self.zero.shape[1]) if self.zero.ndim == 3 else 1.0)


class Walk:
    """One walk through a module. ``trusted``: whether a layer norm made use of the variance that was given."""

    def __init__(self, measures: bool, variance: float, tol: float) -> None:
        self.measures, self.variance, self.tol = measures, variance, tol
        self.trusted = False

    def through(self, module: nn.Module, x: State) -> State:
        """The state behind ``module``."""
        for known in (self._leaf, self._block):
            found = known(module, x)
            if found is not None:
                return found
        if isinstance(module, nn.Sequential):
            for part in module:
                x = self.through(part, x)
            return x
        if not list(module.children()) and type(module).__module__.startswith("torch.nn"):
            raise TypeError(_unknown(module))
        return self._traced(module, x)

    # --- single layers ----------------------------------------------------------------------------------------------

    def _leaf(self, module: nn.Module, x: State) -> State | None:
        if attention_weights(module) is not None:
            return self._attention(module, x)
        size = slope(module)
        if size is not None:
            rows = not isinstance(module, nn.Softmax) or module.dim in (-1, x.zero.ndim - 1)
            if not rows:
                self._tokens_stay("softmax")
            return self._scaled(module, x, size, rows=rows)
        if isinstance(module, Still):
            if isinstance(module, nn.Flatten | nn.Unflatten):
                return self._moved(x, module(x.zero), type(module).__name__)
            return x
        if isinstance(module, nn.Linear):
            return self._scaled(module, x, norm_interval(module.weight, tol=min(self.tol, 1e-5)).upper, rows=True)
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            return self._layer_norm(module, x)
        images = Convolution | Transposed | BatchNorm | AveragePool
        if not isinstance(module, (*images.__args__, *_POOLS, *_NORMS, PaddedShortcut)):
            return None
        if self.measures:
            raise TypeError(f"of_module: {type(module).__name__} is no map of tokens. Take metric='euclidean'.")
        if isinstance(module, PaddedShortcut):
            return self._scaled(module, x, 1.0)
        if isinstance(module, _POOLS):
            return self._scaled(module, x, max_pool_slope(module))
        if isinstance(module, _NORMS):
            if getattr(module, "track_running_stats", False):
                raise TypeError(_unknown(module))
            size = layer_norm_lipschitz(gain(module)[0], self.variance, eps=module.eps)
            self.trusted |= self.variance > 0
            return self._scaled(module, x, size)
        return self._scaled(module, x, operator_norm(module, x.zero.shape[1:], tol=self.tol).upper)

    def _scaled(self, module: nn.Module, x: State, size: float, *, rows: bool = False) -> State:
        """Behind a map of constant ``size``: |f(x)| ≤ |f(0)| + size·|x|; ``rows``: every row of the last axis alone."""
        shift = _norm(module(torch.zeros_like(x.zero)))
        return State(x.log + log(size), shift + size * (x.radius if rows else x.whole), module(x.zero))

    def _layer_norm(self, module: nn.LayerNorm | nn.RMSNorm, x: State) -> State:
        if len(module.normalized_shape) != 1:
            raise TypeError(f"of_module: {type(module).__name__} must act on the last axis alone, got more axes.")
        width, (largest, shift) = module.normalized_shape[0], gain(module)
        eps = module.eps if module.eps is not None else torch.finfo(torch.float32).eps
        size = layer_norm_lipschitz(largest, self.variance, eps=eps)
        self.trusted |= self.variance > 0
        # Behind it a token lies in a ball, wherever it came from.
        ball = math.sqrt(width) * largest
        rows = 1 if x.zero.ndim in (2, 3) else x.zero.numel() / width
        reach = min(ball * math.sqrt(rows), size * x.radius) + shift * math.sqrt(rows)
        return State(x.log + log(size), reach, module(x.zero))

    def _attention(self, module: nn.Module, x: State) -> State:
        weights = attention_weights(module)
        if weights is None or x.zero.ndim != 3 or len(x.zero) != 1:
            raise TypeError(
                f"of_module: {type(module).__name__} must be given tokens [t, d], samples first, "
                f"got {list(x.zero.shape)} with the sample's axis."
            )
        values, a, biases, out = weights.norms()
        if self.measures:
            size = mean_field_multi_head(values, a, out, x.radius, bias_norms=biases).log10 * math.log(10)
        else:
            heads = [
                sequence_attention(v, b, x.radius, x.zero.shape[1], bias_norm=c).log10 * math.log(10)
                for v, b, c in zip(values, a, biases, strict=True)
            ]
            size = log(out) + 0.5 * log_sum(*(2 * head for head in heads))
        shifts = weights.value_bias.norm(dim=1).tolist()
        mixed = math.sqrt(sum((v * x.radius + shift) ** 2 for v, shift in zip(values, shifts, strict=True)))
        reach = out * mixed + float(weights.out_bias.norm())
        zero = torch.zeros(*x.zero.shape[:2], weights.out.shape[0], dtype=torch.float64)
        return State(x.log + size, reach, zero)

    # --- blocks whose forward is not traced ---------------------------------------------------------------------------

    def _block(self, module: nn.Module, x: State) -> State | None:
        name, part = type(module).__name__, module
        if isinstance(part, nn.TransformerEncoderLayer):
            act = part.activation if isinstance(part.activation, nn.Module) else FUNCTIONS.get(part.activation.__name__)
            if act is None:
                raise TypeError(f"of_module: {part.activation!r} in {name} has no known constant.")
            mlp = (part.linear1, act, part.linear2)
            if part.norm_first:
                x = _sum(x, self._chain(x, part.norm1, part.self_attn))
                return _sum(x, self._chain(x, part.norm2, *mlp))
            x = self.through(part.norm1, _sum(x, self._chain(x, part.self_attn)))
            return self.through(part.norm2, _sum(x, self._chain(x, *mlp)))
        kids = dict(module.named_children())
        if name.endswith("Attention") and {"self", "output"} <= kids.keys() and hasattr(kids["output"], "LayerNorm"):
            inside = self._chain(x, kids["self"], kids["output"].dense)  # type: ignore[arg-type]
            return self.through(kids["output"].LayerNorm, _sum(x, inside))  # type: ignore[arg-type]
        if name.endswith("Layer") and {"attention", "intermediate", "output"} <= kids.keys():
            up, down = kids["intermediate"], kids["output"]
            if hasattr(down, "LayerNorm") and isinstance(getattr(up, "intermediate_act_fn", None), nn.Module):
                x = self.through(kids["attention"], x)
                mlp = (up.dense, up.intermediate_act_fn, down.dense)  # type: ignore[assignment]
                return self.through(down.LayerNorm, _sum(x, self._chain(x, *mlp)))  # type: ignore[arg-type]
        if name.endswith("Layer") and {"attention", "layernorm_before", "layernorm_after", "mlp"} <= kids.keys():
            x = _sum(x, self._chain(x, kids["layernorm_before"], kids["attention"]))
            return _sum(x, self._chain(x, kids["layernorm_after"], kids["mlp"]))
        return None

    def _chain(self, x: State, *modules: nn.Module) -> State:
        for module in modules:
            x = self.through(module, x)
        return x

    # --- everything else: the graph of the forward --------------------------------------------------------------------

    def _traced(self, module: nn.Module, x: State) -> State:
        name = type(module).__name__
        try:
            graph = _Tracer(self).trace(module)
        except (
            TypeError,
            ValueError,
            NotImplementedError,
            RuntimeError,
            AttributeError,
            fx.proxy.TraceError,
        ) as failure:
            raise TypeError(
                f"of_module: the structure of {name} must be known or traceable, got "
                f"{type(failure).__name__}: {failure}. Bound its parts one by one."
            ) from failure
        seen: dict[fx.Node, Any] = {}
        inputs = iter([x])
        for node in graph.nodes:
            if node.op == "output":
                return _first(seen[node.args[0]] if isinstance(node.args[0], fx.Node) else node.args[0], name)
            if node.op == "placeholder":
                seen[node] = next(inputs, node.args[0] if node.args else None)
            elif node.op == "get_attr":
                seen[node] = operator.attrgetter(str(node.target))(module)
            else:
                args = fx.node.map_arg(node.args, seen.__getitem__)
                options = fx.node.map_arg(node.kwargs, seen.__getitem__)
                seen[node] = self._node(node, module, list(args), dict(options), name)
        raise TypeError(f"of_module: the structure of {name} must have an output, got none.")

    def _node(self, node: fx.Node, root: nn.Module, args: list[Any], options: dict[str, Any], name: str) -> Any:
        if node.op == "call_module":
            return self._called(root.get_submodule(str(node.target)), args, options)
        word = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", str(node.target))
        run = (lambda *a, **k: getattr(a[0], word)(*a[1:], **k)) if node.op == "call_method" else node.target
        states = _states(args, options)
        if word == "getitem" and isinstance(args[0], tuple | list):
            return args[0][args[1]]
        if not states:
            return run(*args, **options)  # type: ignore[operator]
        plain = run(*_zeros(args), **_zeros(options))  # type: ignore[operator]
        if not isinstance(plain, Tensor):
            return plain  # a shape or a length
        first = states[0]
        if word in ("add", "iadd", "add_", "__add__", "__iadd__", "sub") and not options:
            return self._added(args, plain)
        if len(states) == 1 or word == "cat":
            if word in FUNCTIONS:
                return self._scaled(FUNCTIONS[word], first, slope(FUNCTIONS[word]) or 1.0, rows=True)
            if word in _SAME or (word == "dropout" and options.get("training", args[2:3] or True) in (False, [False])):
                return replace(first, zero=plain)
            if word in _MOVED or (word == "pad" and not options.get("value") and len(args) <= 2):
                return self._moved(first, plain, word)
            if word == "getitem":
                return self._picked(first, plain, args[1])
            if word == "mean":
                return self._mean(first, plain, options.get("dim", args[1] if len(args) > 1 else None))
            if word == "cat":
                return self._concatenated(args[0], plain, args, options)
            if word in ("mul", "truediv") and all(isinstance(a, State | int | float) for a in args[:2]):
                (c,) = [a for a in args[:2] if not isinstance(a, State)]
                if word == "mul" or isinstance(args[0], State):
                    factor = abs(c) if word == "mul" else 1 / abs(c)
                    return State(first.log + log(factor), first.radius * factor, plain)
            if word in ("adaptive_avg_pool2d", "adaptive_avg_pool1d") and not self.measures:
                kind = nn.AdaptiveAvgPool2d if word.endswith("2d") else nn.AdaptiveAvgPool1d
                return self.through(kind(options.get("output_size", args[-1])), first)
            if word in ("max_pool2d", "max_pool1d", "avg_pool2d", "avg_pool1d") and not self.measures and not options:
                pool = {"max_pool2d": nn.MaxPool2d, "max_pool1d": nn.MaxPool1d, "avg_pool2d": nn.AvgPool2d}
                return self.through(pool.get(word, nn.AvgPool1d)(*args[1:]), first)
        raise TypeError(
            f"of_module: the operation {word!r} in {name} has no known constant. Bound its parts one by one."
        )

    def _called(self, part: nn.Module, args: list[Any], options: dict[str, Any]) -> Any:
        states = _states(args, options)
        name = type(part).__name__
        if not states:
            return part(*args, **options)
        if any(one is not states[0] for one in states):
            raise TypeError(f"of_module: {name} must have one input, got several different ones.")
        if any(isinstance(one, Tensor) for one in _flat([*args, *options.values()])):
            raise TypeError(f"of_module: {name} must be called on its input alone, got a constant (a mask?) too.")
        found = self.through(part, states[0])
        # These return their weights too.
        two = attention_weights(part) is not None and not isinstance(part, FullWidthAttention | SplitHeadAttention)
        return (found, None) if two else found

    def _added(self, args: list[Any], plain: Tensor) -> State:
        parts = []
        for one in args[:2]:
            if isinstance(one, State):
                parts.append(one)
                continue
            constant = torch.as_tensor(one, dtype=torch.float64)
            if self.measures and constant.ndim >= 2 and constant.shape[-2] > 1:
                raise TypeError(
                    "of_module: adding another constant to every token is no map of measures. Take metric='euclidean'."
                )
            parts.append(State(-math.inf, _norm(constant.expand_as(plain)), constant.expand_as(plain)))
        if parts[0].zero.shape != parts[1].zero.shape:
            raise TypeError(
                f"of_module: a sum must be of equal shapes, got {list(parts[0].zero.shape)} and "
                f"{list(parts[1].zero.shape)}."
            )
        return _sum(parts[0], parts[1])

    def _moved(self, x: State, plain: Tensor, word: str) -> State:
        """Entries in other places: an isometry."""
        if x.zero.shape == plain.shape and word not in ("transpose", "permute", "movedim", "t"):
            return replace(x, zero=plain)
        self._tokens_stay(word)
        return State(x.log, x.whole, plain)

    def _picked(self, x: State, plain: Tensor, index: Any) -> State:
        if isinstance(index, tuple) and any(i is None or isinstance(i, Tensor | State) for i in index):
            raise TypeError("of_module: indexing must be by numbers and slices, got something else.")
        self._tokens_stay("getitem")
        rows = x.zero.ndim == 3 and plain.ndim in (2, 3) and plain.shape[-1] == x.zero.shape[-1]
        return State(x.log, x.radius if rows else x.whole, plain)

    def _mean(self, x: State, plain: Tensor, axis: Any) -> State:
        if x.zero.ndim == 3 and plain.ndim == 2 and axis in (1, -2, (1,), [1], (-2,), [-2]):
            # Over tokens: 1 on measures (the mean is 1-Lipschitz in W1), 1/√t on sequences.
            less = 0.0 if self.measures else 0.5 * math.log(x.zero.shape[1])
            return State(x.log - less, x.radius, plain)
        self._tokens_stay("mean")
        count = x.zero.numel() / plain.numel()
        return State(x.log - 0.5 * math.log(count), x.whole / math.sqrt(count), plain)

    def _concatenated(self, parts: Iterable[Any], plain: Tensor, args: list[Any], options: dict[str, Any]) -> State:
        self._tokens_stay("cat")
        states = [
            one if isinstance(one, State) else State(-math.inf, _norm(one.double()), one.double()) for one in parts
        ]
        axis = options.get("dim", args[1] if len(args) > 1 else 0) % plain.ndim
        rows = plain.ndim == 3 and axis == 1
        radii = [one.radius for one in states]
        radius = max(radii) if rows else math.sqrt(sum(r**2 for r in radii))
        return State(0.5 * log_sum(*(2 * one.log for one in states)), radius, plain)

    def _tokens_stay(self, word: str) -> None:
        if self.measures:
            raise TypeError(f"of_module: the operation {word!r} is no map of tokens. Take metric='euclidean'.")


class _Tracer(fx.Tracer):
    """Traces through what is not known as a whole."""

    def __init__(self, walk: Walk) -> None:
        super().__init__()
        self.walk = walk

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Every child is looked at on its own, by :meth:`Walk.through`."""
        return True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """See :class:`_OneSample`."""
        return _OneSample(node, self)


class _OneSample(fx.Proxy):
    """A traced value that knows its length: one sample, as everywhere in this walk."""

    def __len__(self) -> int:
        return 1


def _sum(a: State, b: State) -> State:
    return State(log_sum(a.log, b.log), a.radius + b.radius, a.zero + b.zero)


def _first(value: Any, name: str) -> State:
    while isinstance(value, tuple | list) and value:
        value = value[0]
    if not isinstance(value, State):
        raise TypeError(f"of_module: the output of {name} must depend on its input, got {type(value).__name__}.")
    return value


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _flat(value)
        else:
            yield value


def _states(args: list[Any], options: dict[str, Any]) -> list[State]:
    return [one for one in _flat([*args, *options.values()]) if isinstance(one, State)]


def _zeros(value: Any) -> Any:
    if isinstance(value, State):
        return value.zero
    if isinstance(value, list | tuple):
        return type(value)(_zeros(one) for one in value)
    if isinstance(value, dict):
        return {key: _zeros(one) for key, one in value.items()}
    return value


def _norm(x: Tensor) -> float:
    """Of the largest row where there are three axes, of everything otherwise."""
    if x.ndim == 3:
        return float(torch.linalg.vector_norm(x, dim=-1).max())
    return float(torch.linalg.vector_norm(x))


def _unknown(module: nn.Module) -> str:
    return f"of_module: {type(module).__name__} has no known constant. Bound the modules around it one by one."
