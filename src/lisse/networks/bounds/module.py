"""The Lipschitz bound of a module from its weights: layer by layer, sum by sum, along the graph of its forward."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any, Literal, get_args

import torch
from torch import Tensor, fx, nn

from lisse.maths.bounds import Bound, Hypothesis, layer_norm_lipschitz, mean_field_multi_head, sequence_attention
from lisse.maths.bounds.bound import bound, log, log_sum
from lisse.maths.spectral_norm import norm_interval
from lisse.networks.bounds.blocks import Gated, ResidualSum, residual_sums, stack_of
from lisse.networks.bounds.graph import UNTRACEABLE, check_hooks, foreign, traced
from lisse.networks.bounds.operators import AveragePool, BatchNorm, Convolution, Still, Transposed, operator_norm
from lisse.networks.bounds.slopes import FUNCTIONS, gain, max_pool_slope, slope
from lisse.networks.bounds.tokens import (
    Affine,
    TokenAttention,
    is_token_norm,
    linear_parts,
    norm_parts,
    token_attention,
)
from lisse.networks.zoo.attention_only import FullWidthAttention
from lisse.networks.zoo.resnet import PaddedShortcut
from lisse.networks.zoo.vit import SplitHeadAttention
from lisse.taps import model_device

BoundMetric = Literal["wasserstein", "worst_token", "euclidean"]
_NORMS = (nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
_FUNCTIONAL_POOLS: dict[str, type[nn.Module]] = {
    "adaptive_avg_pool1d": nn.AdaptiveAvgPool1d,
    "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d,
    "max_pool1d": nn.MaxPool1d,
    "max_pool2d": nn.MaxPool2d,
    "avg_pool1d": nn.AvgPool1d,
    "avg_pool2d": nn.AvgPool2d,
}
_SAME = {"contiguous", "clone", "detach", "float", "double", "to", "type_as"}
_MOVED = {"flatten", "reshape", "view", "transpose", "permute", "squeeze", "unsqueeze", "unflatten", "movedim", "t"}


def of_module(
    module: nn.Module,
    *,
    radius: float,
    input_shape: Sequence[int] | None = None,
    metric: BoundMetric | None = None,
    variance: float = 0.0,
    tol: float = 1e-3,
) -> Bound:
    r"""An upper bound of a module's Lipschitz constant in evaluation mode, from its weights alone.

    ``radius`` is the largest ℓ2 norm of an input: of a token (last axis) where the input is tokens ``[t, d]``, of the
    whole sample otherwise. Only attention needs it, and it is followed from layer to layer. ``input_shape`` is that of
    one sample, without the batch; convolutions and pools need it, other layers do without.

    ``metric``:

    * ``"wasserstein"``: the module as a map of measures of tokens, :math:`W_1` with ℓ2 ground, any number of tokens.
      Attention has the corrected bound :func:`~lisse.maths.bounds.mean_field_attention` of each head, exponential in
      :math:`\|A\|R^2`. The default where there is attention without masks and positions.
    * ``"worst_token"``: the largest ℓ2 distance of a token from its partner, on both sides, for sequences of any length
      (and :math:`W_\infty` of measures where the module is a map of them). Attention has
      :func:`~lisse.maths.bounds.attention_worst_token`, polynomial in R, also with masks, tables and rotary positions,
      shared keys, norms of queries and keys, capped logits; all else acts token by token. The default elsewhere where
      there is attention.
    * ``"euclidean"``: ℓ2 over all entries of one sample. Attention has the smaller of √t times the worst token's, t
      the tokens of ``input_shape``, and :func:`~lisse.maths.bounds.sequence_attention` where its logits are bilinear.
      The default elsewhere.

    Layer norm has the constant :math:`\max|\gamma|/\sqrt{v + \epsilon}` with v = ``variance`` the least variance of a
    token that it meets: 0 promises nothing and makes it large; a greater one is taken on trust, and stands among the
    hypotheses. Linear layers and convolutions have their true operator norm for their input size
    (:func:`operator_norm`, from above, within ``tol`` where it is exact).

    Structure: what ``torch.fx`` can trace (sums, concatenations, reshapes, means, indexing; sequences and residual
    blocks of the zoo and most others), torch's encoder layers, and Hugging Face's layers like BERT's, ViT's, GPT-2's,
    Llama's, Qwen's, Gemma's, GPT-NeoX's, BLOOM's, OPT's and ModernBERT's; of a whole model of theirs, from the tokens
    that enter its first block to the norm behind the last. Compositions multiply, sums add. What a norm does last,
    γ ⊙ u + β, is made one with the weights behind it. A module or operation that is not known is refused by name. The
    product over a deep network is often beyond a float: ``log10`` has it. Dropout in training mode and batch
    statistics are not covered, masks not as maps of measures.
    """
    if not (math.isfinite(radius) and radius >= 0):
        raise ValueError(f"of_module: radius must be finite and not negative, got {radius}.")
    if not (math.isfinite(variance) and variance >= 0):
        raise ValueError(f"of_module: variance must be finite and not negative, got {variance}.")
    if metric not in (*get_args(BoundMetric), None):
        raise ValueError(f"of_module: metric must be one of {', '.join(get_args(BoundMetric))}, got {metric!r}.")
    for key, parameter in module.state_dict().items():
        if not bool(torch.isfinite(parameter).all()):
            raise ValueError(f"of_module: {type(module).__name__}.{key} must be finite, got NaN or infinity.")
    check_hooks("of_module", module)
    layers = [layer for part in module.modules() if (layer := token_attention(part)) is not None]
    ordered = any(layer.ordered or layer.turned for layer in layers)
    ground = metric or ("worst_token" if ordered else "wasserstein" if layers else "euclidean")
    if input_shape is None and ground == "euclidean" and layers:
        raise ValueError("of_module: input_shape must be given for attention in the euclidean metric, got None.")
    shape = _shape(module) if input_shape is None else tuple(int(size) for size in input_shape)
    if ground != "euclidean" and len(shape) != 2:
        raise ValueError(
            f"of_module: input_shape must be tokens and features [t, d] in the {ground} metric, got {list(shape)}. "
            "Take metric='euclidean', or one block of the network."
        )
    stack = stack_of(module)
    parts = (module,) if stack is None else stack
    walk = Walk(ground, variance, tol)
    zero = torch.zeros(1, *shape, dtype=torch.float64, device=model_device(module))
    end = State(0.0, radius, zero)
    with torch.no_grad():
        for part in parts:  # one at a time in double precision
            end = walk.through(copy.deepcopy(part).double().eval().requires_grad_(False), end)
    end = end.settled
    hypotheses = [Hypothesis(f"inputs have norm at most {radius:g}", True, "given")] if layers else []
    if stack is not None:
        reach = "it is the map from the tokens that enter the first block to those behind the last and its norm"
        hypotheses.append(Hypothesis(reach, True, "given"))
    if walk.trusted:
        variances = f"tokens have variance at least {variance:g} before each layer norm"
        hypotheses.append(Hypothesis(variances, True, "given"))
    return bound(end.log, hypotheses)


def _shape(module: nn.Module) -> tuple[int, ...]:
    """A shape for modules whose constant does not depend on it: two tokens of the first layer's width."""
    for part in module.modules():
        if isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d) or any(
            word in type(part).__name__ for word in ("Pool", "BatchNorm", "GroupNorm", "InstanceNorm")
        ):
            raise ValueError(
                f"of_module: input_shape must be given for {type(part).__name__}, got None. "
                "Its norm depends on the size of its input."
            )
        attention = token_attention(part)
        if attention is not None:
            return (2, int(attention.weights.query.shape[-1]))
        if isinstance(part, nn.Linear):
            return (2, part.in_features)
        if isinstance(part, nn.LayerNorm):
            return (2, *part.normalized_shape)
    return (2, 1)


@dataclass(frozen=True, slots=True)
class State:
    """A value inside the network: ``log`` of its Lipschitz constant in the input, ``radius``, and itself at input zero.

    ``radius`` bounds the norm of every row of the last axis where there are three axes (samples, tokens, features), and
    that of the whole sample otherwise.
    """

    log: float
    radius: float
    zero: Tensor
    affine: Affine | None = None  # the tokens are γ ⊙ u + β, and log and radius are those of u

    @property
    def settled(self) -> State:
        """Without it: log and radius of the tokens themselves."""
        if self.affine is None:
            return self
        size = float(self.affine.gain.abs().max())
        return State(self.log + log(size), size * self.radius + float(self.affine.shift.norm()), self.zero)

    @property
    def norm(self) -> float:
        """A bound of the norm of the whole sample."""
        return self.radius * (math.sqrt(self.zero.shape[1]) if self.zero.ndim == 3 else 1.0)


class Walk:
    """One walk through a module. ``trusted``: whether a layer norm made use of the variance that was given."""

    def __init__(self, metric: BoundMetric, variance: float, tol: float) -> None:
        self.metric, self.variance, self.tol = metric, variance, tol
        self.trusted = False

    @property
    def measures(self) -> bool:
        """Whether the order of tokens is not known."""
        return self.metric == "wasserstein"

    def through(self, module: nn.Module, x: State) -> State:
        """The state behind ``module``."""
        if foreign(module):
            return self._traced(module, x.settled)
        folded = self._folded(module, x)
        if folded is not None:
            return folded
        x = x.settled
        for step in (self._leaf, self._image_layer, self._declared):
            behind = step(module, x)
            if behind is not None:
                return behind
        stages = residual_sums(module)
        if stages is not None:
            return self._stages(stages, x)
        if isinstance(module, nn.Sequential):
            return self._chain(x, *module)
        if not list(module.children()) and type(module).__module__.startswith("torch.nn"):
            raise TypeError(_unknown(module))
        return self._traced(module, x)

    # --- single layers ----------------------------------------------------------------------------------------------

    def _folded(self, module: nn.Module, x: State) -> State | None:
        """Layers that a norm's γ and β are made one with."""
        attention = token_attention(module)
        if attention is not None:
            return self._attention(module, attention.before(x.affine), x)
        if isinstance(module, Gated):
            return self._gated(module, x)
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
            weight, bias = linear_parts(module)
            if x.affine is not None:
                weight, bias = x.affine.before(weight, bias)
            size = norm_interval(weight, tol=min(self.tol, 1e-5)).upper
            rows = 1.0 if x.zero.ndim in (2, 3) else math.sqrt(x.zero.numel() / x.zero.shape[-1])
            return State(x.log + log(size), size * x.radius + rows * float(bias.norm()), module(x.zero))
        return None

    def _leaf(self, module: nn.Module, x: State) -> State | None:
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
        return self._layer_norm(module, x) if is_token_norm(module) else None

    def _image_layer(self, module: nn.Module, x: State) -> State | None:
        """Layers that know no tokens."""
        linear = isinstance(module, Convolution | Transposed | BatchNorm | AveragePool)
        if not linear and not isinstance(module, (*_POOLS, *_NORMS, PaddedShortcut)):
            return None
        if self.metric != "euclidean":
            raise TypeError(f"of_module: {type(module).__name__} is no map of tokens. Take metric='euclidean'.")
        if linear:
            return self._scaled(module, x, operator_norm(module, x.zero.shape[1:], tol=self.tol, max_iter=0).upper)
        if isinstance(module, PaddedShortcut):
            return self._scaled(module, x, 1.0)
        if isinstance(module, _POOLS):
            return self._scaled(module, x, max_pool_slope(module))
        if getattr(module, "track_running_stats", False):
            raise TypeError(_unknown(module))
        self.trusted |= self.variance > 0
        return self._scaled(module, x, layer_norm_lipschitz(gain(module)[0], self.variance, eps=module.eps))  # type: ignore[arg-type]

    def _scaled(self, module: nn.Module, x: State, size: float, *, rows: bool = False) -> State:
        """Behind a map of constant ``size``: |f(x)| ≤ |f(0)| + size·|x|; ``rows``: every row of the last axis alone."""
        shift = _norm(module(torch.zeros_like(x.zero)))
        return State(x.log + log(size), shift + size * (x.radius if rows else x.norm), module(x.zero))

    def _layer_norm(self, module: nn.Module, x: State) -> State:
        if len(getattr(module, "normalized_shape", (1,))) != 1:
            raise TypeError(f"of_module: {type(module).__name__} must act on the last axis alone, got more axes.")
        gain, shift, eps, centred = norm_parts(module)
        size = layer_norm_lipschitz(1.0, self.variance, eps=eps)
        self.trusted |= self.variance > 0
        # Behind it a token lies in a ball, wherever it came from.
        rows = 1 if x.zero.ndim in (2, 3) else x.zero.numel() / len(gain)
        reach = min(math.sqrt(len(gain) * rows), size * x.radius)
        behind = State(x.log + log(size), reach, module(x.zero), Affine(gain, shift * math.sqrt(rows), centred))
        return behind if x.zero.ndim == 3 else behind.settled

    def _attention(self, module: nn.Module, layer: TokenAttention, x: State) -> State:
        weights = layer.weights
        if x.zero.ndim != 3 or len(x.zero) != 1:
            raise TypeError(
                f"of_module: {type(module).__name__} must be given tokens [t, d], samples first, "
                f"got {list(x.zero.shape)} with the sample's axis."
            )
        zero = torch.zeros(*x.zero.shape[:2], weights.out.shape[0], dtype=torch.float64, device=x.zero.device)
        if self.measures:
            if layer.turned or layer.norms is not None or layer.ordered:
                raise TypeError(f"of_module: {type(module).__name__} is no map of measures. Take metric='worst_token'.")
            values, a, biases, out = weights.norms()
            size = mean_field_multi_head(values, a, out, x.radius, bias_norms=biases).log10 * math.log(10)
            shifts = weights.value_bias.norm(dim=1).tolist()
            mixed = math.sqrt(sum((v * x.radius + shift) ** 2 for v, shift in zip(values, shifts, strict=True)))
            return State(x.log + size, out * mixed + float(weights.out_bias.norm()), zero)
        self.trusted |= layer.norms is not None and self.variance > 0
        size, reach = layer.worst_token(x.radius, self.variance)
        if self.metric == "euclidean":
            # max_i|Δ_i| ≤ |Δ| ≤ √t max_i|Δ_i|.
            size += 0.5 * math.log(x.zero.shape[1])
            if not layer.turned and layer.norms is None:
                values, a, biases, out = weights.norms()
                heads = [
                    sequence_attention(v, b, x.radius, x.zero.shape[1], bias_norm=c).log10 * math.log(10)
                    for v, b, c in zip(values, a, biases, strict=True)
                ]
                size = min(size, log(out) + 0.5 * log_sum(*(2 * head for head in heads)))
        return State(x.log + size, reach, zero)

    def _gated(self, module: Gated, x: State) -> State:
        r"""``down(act(g) ⊙ u)`` with g = Gx + b, u = Ux + c on the ball of radius R.

        With s the slope of act, :math:`|u_k| \le D_k = R\|U_k\| + |c_k|` and :math:`|\mathrm{act}(g_k)| \le E_k =
        s(R\|G_k\| + |b_k|) + |\mathrm{act}(0)|`, the derivative is at most :math:`s\|W\,\mathrm{diag}(D)\,G\| +
        \|W\,\mathrm{diag}(E)\,U\|` in the sense that any diagonal matrix of entries up to D may stand there: each
        product is the smaller of :math:`\|WD\|\|G\|` and :math:`\|WD^{1/2}\|\|D^{1/2}G\|`. ∎
        """
        s = slope(module.act)
        if s is None:
            raise TypeError(_unknown(module.act))
        parts = [linear_parts(part) for part in (module.gate, module.up)]
        (gate, b), (up, c) = parts if x.affine is None else [x.affine.before(*part) for part in parts]
        down, shift = linear_parts(module.down)
        zero = abs(float(module.act(torch.zeros(1, dtype=torch.float64))))
        opened = s * (x.radius * gate.norm(dim=1) + b.abs()) + zero
        raised = x.radius * up.norm(dim=1) + c.abs()

        def size(weight: Tensor) -> float:
            return norm_interval(weight, tol=min(self.tol, 1e-5)).upper

        total, sizes = 0.0, [size(matrix) for matrix in (gate, up, down)]
        for reach, matrix, norm, steep in ((raised, gate, sizes[0], s), (opened, up, sizes[1], 1.0)):
            root = reach.sqrt()
            total += steep * min(size(down * root) * size(root[:, None] * matrix), size(down * reach) * norm)
        middle = min(float((opened * raised).norm()), float(opened.max()) * (sizes[1] * x.radius + float(c.norm())))
        return State(x.log + log(total), sizes[2] * middle + float(shift.norm()), module(x.zero))

    # --- blocks whose forward is not traced ---------------------------------------------------------------------------

    def _declared(self, module: nn.Module, x: State) -> State | None:
        """A network that lisse's own declaration normalises first."""
        if type(module).__name__ != "Normalised" or not isinstance(getattr(module, "network", None), nn.Module):
            return None
        deviations, means = (torch.as_tensor(getattr(module, key)).to(x.zero) for key in ("std", "mean"))
        zero = (x.zero - means) / deviations
        size = 1 / float(deviations.min())
        shift = _norm((-means / deviations).expand_as(x.zero))
        return self.through(module.network, State(x.log + log(size), shift + size * x.norm, zero))  # type: ignore[arg-type]

    def _stages(self, stages: Iterable[ResidualSum], x: State) -> State:
        for stage in stages:
            for behind in [self._chain(x, *branch) for branch in stage.branches]:
                x = _sum(x, behind)
            if stage.end is not None:
                x = self.through(stage.end, x)
        return x

    def _chain(self, x: State, *modules: nn.Module) -> State:
        for module in modules:
            x = self.through(module, x)
        return x

    # --- everything else: the graph of the forward --------------------------------------------------------------------

    def _traced(self, module: nn.Module, x: State) -> State:
        name = type(module).__name__
        try:
            graph = traced(module)
        except UNTRACEABLE as error:
            raise TypeError(
                f"of_module: the structure of {name} must be known or traceable, got "
                f"{type(error).__name__}: {error}. Bound its parts one by one."
            ) from error
        values: dict[fx.Node, Any] = {}
        inputs = iter([x])
        for node in graph.nodes:
            if node.op == "output":
                return _first(values[node.args[0]] if isinstance(node.args[0], fx.Node) else node.args[0], name)
            if node.op == "placeholder":
                values[node] = next(inputs, node.args[0] if node.args else None)
            elif node.op == "get_attr":
                values[node] = operator.attrgetter(str(node.target))(module)
            else:
                args, options = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = self._node(node, module, list(args), dict(options), name)
        raise TypeError(f"of_module: the structure of {name} must have an output, got none.")

    def _node(self, node: fx.Node, root: nn.Module, args: list[Any], options: dict[str, Any], name: str) -> Any:
        if node.op == "call_module":
            return self._called(root.get_submodule(str(node.target)), args, options)
        word = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", str(node.target))
        run = (lambda *a, **k: getattr(a[0], word)(*a[1:], **k)) if node.op == "call_method" else node.target
        args, options = fx.node.map_aggregate((args, options), lambda v: v.settled if isinstance(v, State) else v)
        states = _states(args, options)
        if word == "getitem" and isinstance(args[0], tuple | list):
            return args[0][args[1]]
        if not states:
            return run(*args, **options)  # type: ignore[operator]
        plain = run(*_zeros(args), **_zeros(options))  # type: ignore[operator]
        if not isinstance(plain, Tensor):
            return plain  # a shape or a length
        if word in ("add", "iadd", "add_", "__add__", "__iadd__", "sub", "isub") and not options:
            return self._added(args, plain)
        if word == "cat":
            return self._concatenated(args[0], plain, args, options)
        if len(states) == 1:
            for rule in (self._entrywise, self._rearranged, self._pooled):
                behind = rule(word, states[0], plain, args, options)
                if behind is not None:
                    return behind
        raise TypeError(
            f"of_module: the operation {word!r} in {name} has no known constant. Bound its parts one by one."
        )

    def _entrywise(self, word: str, x: State, plain: Tensor, args: list[Any], options: dict[str, Any]) -> State | None:
        """An activation, a factor, or nothing at all."""
        if word in FUNCTIONS:
            # As a layer of the same settings: torch's take them in the order in which its functions do.
            layer = type(FUNCTIONS[word])(*args[1:], **options)
            return self._scaled(layer, x, slope(layer) or 1.0, rows=True)
        still = word == "dropout" and options.get("training", args[2:3] or True) in (False, [False])
        if still or (word in _SAME and plain.is_floating_point()):
            return replace(x, zero=plain)
        if word in ("mul", "imul", "truediv", "itruediv") and all(isinstance(a, State | int | float) for a in args[:2]):
            (c,) = [a for a in args[:2] if not isinstance(a, State)]
            product = word in ("mul", "imul")
            if product or isinstance(args[0], State):
                factor = abs(c) if product else 1 / abs(c)
                return State(x.log + log(factor), x.radius * factor, plain)
        return None

    def _rearranged(self, word: str, x: State, plain: Tensor, args: list[Any], options: dict[str, Any]) -> State | None:
        """Entries moved, picked or averaged."""
        if word in _MOVED or (word == "pad" and _zero_pad(args, options)):
            return self._moved(x, plain, word)
        if word == "getitem":
            return self._picked(x, plain, args[1])
        if word == "mean":
            return self._mean(x, plain, options.get("dim", args[1] if len(args) > 1 else None))
        return None

    def _pooled(self, word: str, x: State, plain: Tensor, args: list[Any], options: dict[str, Any]) -> State | None:
        """A pool that is called as a function, by the layer of that kind."""
        layer = _FUNCTIONAL_POOLS.get(word)
        if layer is None or self.metric != "euclidean":
            return None
        if word.startswith("adaptive"):
            return self.through(layer(options.get("output_size", args[-1])), x)
        return None if options else self.through(layer(*args[1:]), x)

    def _called(self, part: nn.Module, args: list[Any], options: dict[str, Any]) -> Any:
        states = _states(args, options)
        name = type(part).__name__
        if not states:
            return part(*args, **options)
        if any(state is not states[0] for state in states):
            raise TypeError(f"of_module: {name} must have one input, got several different ones.")
        if any(isinstance(value, Tensor) for value in _flat([*args, *options.values()])):
            raise TypeError(f"of_module: {name} must be called on its input alone, got a constant (a mask?) too.")
        behind = self.through(part, states[0])
        # These return their weights too.
        pair = token_attention(part) is not None and not isinstance(part, FullWidthAttention | SplitHeadAttention)
        return (behind, None) if pair else behind

    def _added(self, args: list[Any], plain: Tensor) -> State:
        parts = []
        for value in args[:2]:
            if isinstance(value, State):
                parts.append(value)
                continue
            constant = torch.as_tensor(value, dtype=torch.float64)
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
        return State(x.log, x.norm, plain)

    def _picked(self, x: State, plain: Tensor, index: Any) -> State:
        parts = index if isinstance(index, tuple) else (index,)
        if not all(isinstance(i, int | slice | EllipsisType) and not isinstance(i, bool) for i in parts):
            raise TypeError("of_module: indexing must be by numbers and slices, got something else.")
        self._tokens_stay("getitem")
        rows = len(plain) == 1 and x.zero.ndim == 3 and plain.ndim in (2, 3) and plain.shape[-1] == x.zero.shape[-1]
        if self.metric == "worst_token" and not rows:
            raise TypeError("of_module: picking features is no map of tokens. Take metric='euclidean'.")
        return State(x.log, x.radius if rows else x.norm, plain)

    def _mean(self, x: State, plain: Tensor, axis: Any) -> State:
        if x.zero.ndim == 3 and plain.ndim == 2 and axis in (1, -2, (1,), [1], (-2,), [-2]):
            # Over tokens: 1 on measures (the mean is 1-Lipschitz in W1) and of the worst token, 1/√t on sequences.
            less = 0.0 if self.metric != "euclidean" else 0.5 * math.log(x.zero.shape[1])
            return State(x.log - less, x.radius, plain)
        self._tokens_stay("mean")
        count = x.zero.numel() / plain.numel()
        return State(x.log - 0.5 * math.log(count), x.norm / math.sqrt(count), plain)

    def _concatenated(self, parts: Iterable[Any], plain: Tensor, args: list[Any], options: dict[str, Any]) -> State:
        self._tokens_stay("cat")
        states = [
            part if isinstance(part, State) else State(-math.inf, _norm(part.double()), part.double()) for part in parts
        ]
        axis = options.get("dim", args[1] if len(args) > 1 else 0) % plain.ndim
        rows = plain.ndim == 3 and axis == 1
        radii = [state.radius for state in states]
        if rows and self.metric == "worst_token":
            return State(max(state.log for state in states), max(radii), plain)
        radius = max(radii) if rows else math.sqrt(sum(r**2 for r in radii))
        return State(0.5 * log_sum(*(2 * state.log for state in states)), radius, plain)

    def _tokens_stay(self, word: str) -> None:
        if self.measures or (self.metric == "worst_token" and word not in ("getitem", "cat")):
            raise TypeError(f"of_module: the operation {word!r} is no map of tokens. Take metric='euclidean'.")


def _sum(a: State, b: State) -> State:
    a, b = a.settled, b.settled
    return State(log_sum(a.log, b.log), a.radius + b.radius, a.zero + b.zero)


def _first(value: Any, name: str) -> State:
    while isinstance(value, tuple | list) and value:
        value = value[0]
    if not isinstance(value, State):
        raise TypeError(f"of_module: the output of {name} must depend on its input, got {type(value).__name__}.")
    return value


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _flat(value)
        else:
            yield value


def _zero_pad(args: list[Any], options: dict[str, Any]) -> bool:
    """Whether :func:`torch.nn.functional.pad` is called with zeros; its other modes repeat entries."""
    return len(args) <= 2 and not options.get("value") and options.get("mode", "constant") == "constant"


def _states(args: list[Any], options: dict[str, Any]) -> list[State]:
    return [value for value in _flat([*args, *options.values()]) if isinstance(value, State)]


def _zeros(values: Any) -> Any:
    if isinstance(values, State):
        return values.zero
    if isinstance(values, list | tuple):
        return type(values)(_zeros(value) for value in values)
    if isinstance(values, dict):
        return {key: _zeros(value) for key, value in values.items()}
    return values


def _norm(x: Tensor) -> float:
    """Of the largest row where there are three axes, of everything otherwise."""
    if x.ndim == 3:
        return float(torch.linalg.vector_norm(x, dim=-1).max())
    return float(torch.linalg.vector_norm(x))


def _unknown(module: nn.Module) -> str:
    return f"of_module: {type(module).__name__} has no known constant. Bound the modules around it one by one."
