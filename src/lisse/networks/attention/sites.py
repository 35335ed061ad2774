"""Where a Transformer's attention can be read, whoever wrote it: inputs, heads, outputs, weights, and what they make.

A site is recognised by its projections, not by its class: three linear maps for queries, keys and values (or one for
all three) and their number of heads; or by what it calls (:func:`lisse.taps.attending`). Whether the weights say all
that the layer does is not believed but checked: see :func:`mode_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lisse.networks.attention.weights import (
    AttentionWeights,
    LinearMap,
    linear_map,
    stacked_weights,
    thirds,
    torch_weights,
)
from lisse.networks.zoo.attention_only import FullWidthAttention
from lisse.taps import AttentionCall, Tap, Taps, attending, feed, find, prepared, still
from lisse.taps.stillness import Statistics
from lisse.taps.tracing import samples_of

Mode = Literal["full", "causal", "table"]
_SEPARATE = (
    ("query", "key", "value"),
    ("q_proj", "k_proj", "v_proj"),
    ("q_lin", "k_lin", "v_lin"),
    ("q", "k", "v"),
    ("to_q", "to_k", "to_v"),
)
_OUT = ("o_proj", "out_proj", "out_lin", "o", "out", "proj", "c_proj", "dense")
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "heads")


@dataclass(frozen=True)
class AttentionSite:
    """One call of one attention layer.

    ``entry`` is what comes in (the queries' source; after the norm in a pre-norm block), ``keys`` what enters the keys'
    map where that is a module of its own, ``heads`` the heads' outputs side by side, ``out`` the layer's output behind
    its output map, before the residual. ``copies`` are further arguments that hold the same tensor as ``entry``.
    ``count`` heads; ``read`` gives the weights, in float64 and on the host, when they are first asked for.
    """

    name: str
    kind: str
    count: int
    read: Callable[..., AttentionWeights] | None
    entry: Tap
    out: Tap
    heads: Tap | None = None
    keys: Tap | None = None
    copies: tuple[Tap, ...] = ()
    causal: bool = False

    @property
    def depth(self) -> float | None:
        """Where it is along depth."""
        return self.entry.depth

    @cached_property
    def weights(self) -> AttentionWeights:
        """Its maps head by head; of a layer whose maps are not known, a ``TypeError`` (see ``read``)."""
        if self.read is None:
            raise TypeError(f"AttentionSite: {self.name} must have maps that are known, got {self.kind}.")
        return self.read()

    def weights_on(self, device: torch.device) -> AttentionWeights:
        """The same where activations are: not kept, for in float64 those of all layers are four times the model."""
        if device.type == "cpu" or self.read is None:
            return self.weights
        return self.read(device=device)

    @property
    def taps(self) -> list[Tap]:
        """All taps, each once."""
        return list(dict.fromkeys(tap for tap in (self.entry, self.keys, self.heads, self.out) if tap is not None))


@dataclass(frozen=True)
class _Parts:
    count: int
    weights: Callable[..., AttentionWeights] | None
    keys: str | None  # submodule whose input the keys are made of
    heads: tuple[str, Literal["in", "out"]] | None
    out: tuple[str, Literal["in", "out"]]


def has_attention(model: nn.Module) -> bool:
    """Whether a module of the model looks like attention, by its maps or by its name; nothing is run."""
    return any(
        "attention" in type(module).__name__.lower() or _parts(model, name, module) is not None
        for name, module in model.named_modules()
    )


def attention_sites(
    model: nn.Module, example: Any, *, statistics: Statistics = "running", taps: Taps | None = None
) -> tuple[list[AttentionSite], list[str]]:
    """The attention layers of a model in the order of its forward, and a sentence for each that cannot be read.

    ``example`` is a batch of samples; it runs twice, as in :func:`lisse.taps.find`, and once more to see which
    modules call attention. ``taps`` are all taps of the model (``find(model, example, ["**", "**:in"])``) where they
    are there already.
    """
    layers = {
        name: parts for name, module in model.named_modules() if (parts := _parts(model, name, module)) is not None
    }
    if not layers and not has_attention(model):
        return [], []
    taps = find(model, example, ["**", "**:in"], statistics=statistics) if taps is None else taps
    layers |= _calling(model, example, statistics, layers)
    tap_at = {(tap.module, tap.call, tap.side): tap for tap in taps}
    sites, reasons = [], []
    for name, parts in layers.items():
        module = model.get_submodule(name)
        calls = sorted({tap.call for tap in taps if tap.module == name and tap.side == "in"})
        if not calls:
            skipped = (skip.reason for skip in taps.skipped if skip.name.partition("#")[0] == name)
            reasons.append(f"{name} {next(skipped, 'is never called')}.")
        for call in calls:
            entry, out = tap_at[name, call, "in"], tap_at.get((parts.out[0], call, parts.out[1]))
            if out is None or len(entry.shape) != 2 or len(out.shape) != 2:
                reasons.append(f"{name} has no tokens [t, d] on both sides.")
                continue
            heads = tap_at.get((parts.heads[0], call, parts.heads[1])) if parts.heads else None
            keys = tap_at.get((parts.keys, call, "in")) if parts.keys else None
            copies: tuple[Tap, ...] = ()
            if isinstance(module, nn.MultiheadAttention) and entry.path == (0, 0):  # it is given its input three times
                keys = replace(entry, path=(0, 1))
                copies = tuple(replace(entry, name=f"{entry.name}:{index}", path=(0, index)) for index in (1, 2))
            label = entry.name.removesuffix(":in")
            sites.append(
                AttentionSite(
                    label,
                    type(module).__name__,
                    parts.count,
                    parts.weights,
                    replace(entry, name=f"{label}:entry"),
                    replace(out, name=f"{label}:out"),
                    None if heads is None else replace(heads, name=f"{label}:heads"),
                    None if keys is None else replace(keys, name=f"{label}:keys"),
                    copies,
                    bool(getattr(module, "is_causal", False)),
                )
            )
    order = {tap: index for index, tap in enumerate(taps)}
    sites.sort(key=lambda site: order[tap_at[site.entry.module, site.entry.call, "in"]])
    return sites, reasons


def attended(
    weights: AttentionWeights, queries: Tensor, keys: Tensor, added: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """What the weights make of ``queries`` ``[b, t, d]`` and ``keys`` ``[b, s, d']``: rows, heads and output.

    Rows ``[b, M, t, s]``, heads ``[b, M, t, h]``, output ``[b, t, d_out]``, in float64; ``added`` (broadcast to the
    rows' shape) goes on the logits: a mask of -inf, a table of positions.
    """
    x, y = queries.double(), keys.double()
    q = torch.einsum("btd,mhd->bmth", x, weights.query) + weights.query_bias[None, :, None]
    k = torch.einsum("bsd,mhd->bmsh", y, weights.key)
    v = torch.einsum("bsd,mhd->bmsh", y, weights.value) + weights.value_bias[None, :, None]
    logits = weights.scale * (q @ k.transpose(-1, -2))
    rows = torch.softmax(logits if added is None else logits + added, -1)
    heads = rows @ v
    return rows, heads, heads.transpose(1, 2).flatten(2) @ weights.out.T + weights.out_bias


def from_rows(weights: AttentionWeights, keys: Tensor, rows: Tensor) -> Tensor:
    """The output ``[b, t, d_out]`` that ``rows`` ``[b, M, t, s]`` make of the values of ``keys``, in float64."""
    v = torch.einsum("bsd,mhd->bmsh", keys.double(), weights.value) + weights.value_bias[None, :, None]
    return (rows.double() @ v).transpose(1, 2).flatten(2) @ weights.out.T + weights.out_bias


def masked(valid_keys: Tensor, queries: int, *, causal: bool) -> Tensor:
    """What is added to logits where keys ``[b, s]`` are not all valid: 0 or -inf, ``[b, 1, t, s]``.

    A query to whom nothing is left (padding before the first word) looks at every key: what becomes of it is not read.
    """
    open_ = valid_keys.bool()[:, None, None, :].expand(-1, 1, queries, -1)
    if causal:
        keys = valid_keys.shape[1]
        open_ = open_ & open_.new_ones(queries, keys).tril(keys - queries)
    open_ = open_ | ~open_.any(-1, keepdim=True)
    return torch.zeros(open_.shape, dtype=torch.float64, device=open_.device).masked_fill(~open_, -torch.inf)


def mode_of(
    site: AttentionSite,
    queries: Tensor,
    keys: Tensor,
    valid: Tensor,
    valid_keys: Tensor,
    output: Tensor,
    *,
    tol: float = 1e-3,
) -> Mode | None:
    """Whether the weights alone give the layer's ``output``: every query sees all keys, or those before it, or neither.

    All arguments are one batch as it was read. ``None``: the layer does something else too (turned or normalised
    queries, a table of positions, dropped keys), and no bound of its weights speaks of it.
    """
    if site.read is None:
        return None
    weights = site.weights_on(queries.device)
    shapes = (keys.shape[-1], queries.shape[-1], output.shape)
    if shapes != (weights.key.shape[-1], weights.query.shape[-1], (*queries.shape[:2], len(weights.out_bias))):
        return None
    valid, valid_keys = (rows.bool().to(queries.device) for rows in (valid, valid_keys))
    orders: tuple[Mode, Mode] = ("causal", "full") if site.causal else ("full", "causal")
    most = _tolerance(output, valid, tol) ** 2
    for order in orders:
        if order == "causal" and queries.shape[1] != keys.shape[1]:
            continue
        added = masked(valid_keys, queries.shape[1], causal=order == "causal")
        # Sample by sample: a table of all pairs of tokens in float64, for every head, is large. Where the first ones
        # are too far off already, so are all of them.
        off = torch.zeros((), dtype=torch.float64, device=queries.device)
        for index, sample in enumerate(zip(queries.split(1), keys.split(1), added.split(1), strict=True)):
            part = slice(index, index + 1)
            apart = (attended(weights, *sample)[2] - output[part]).square().sum(-1)
            off = off + apart.where(valid[part], 0.0).sum()
            if (index == 0 or not off.is_cuda) and not bool(off <= most):
                break
        if bool(off <= most):
            return order
    return None


def close(computed: Tensor, output: Tensor, valid: Tensor, tol: float) -> bool:
    """Whether a computed output agrees with a layer's on the valid tokens, up to ``tol`` of what the layer's varies."""
    if computed.shape != output.shape:
        return False
    valid = valid.bool().to(output.device)
    return bool((computed[valid] - output.double()[valid]).norm() <= _tolerance(output, valid, tol))


def _tolerance(output: Tensor, valid: Tensor, tol: float) -> Tensor:
    """``tol`` of what an output varies on the valid tokens."""
    truth = output.double()[valid]
    return tol * ((truth - truth.mean(0)).norm() + 1e-6 * truth.norm()).clamp_min(1e-12)


def adds_a_table(site: AttentionSite, queries: Tensor, keys: Tensor, valid_keys: Tensor, rows: Tensor) -> bool:
    """Whether a layer's logits are those of its weights and a table that is the same for every sample.

    Relative positions and masks are such tables; turned or normalised queries are not. ``rows`` ``[b, M, t, s]`` are
    the layer's attention weights on two samples or more. Compared on the keys that all samples have.
    """
    if len(rows) < 2 or site.read is None:
        return False
    plain, _, _ = attended(site.weights_on(queries.device), queries, keys)
    shared = (valid_keys.bool().to(rows.device)[:, None, None, :] & (rows > 1e-12)).all(0)
    if not bool(shared.any(-1).all()):
        return False
    table = rows.double().clamp_min(1e-300).log() - plain.clamp_min(1e-300).log()
    table = torch.where(shared, table, 0.0)
    table = table - table.sum(-1, keepdim=True) / shared.sum(-1, keepdim=True)  # a row's own constant cancels
    return float(torch.where(shared, table - table.mean(0), 0.0).abs().max()) <= 1e-2


# --- recognition ----------------------------------------------------------------------------------------------------


def _calling(model: nn.Module, example: Any, statistics: Statistics, layers: Collection[str]) -> dict[str, _Parts]:
    """Modules that are not known by their maps and call attention all the same, by a forward on two samples."""
    counts: dict[str, int] = {}

    def on(call: AttentionCall) -> None:
        if call.module and call.module not in layers:
            counts[call.module] = (call.matrix if call.query is None else call.query).shape[1]  # type: ignore[union-attr]

    with still(model, statistics=statistics, seed=0), attending(model, on):
        feed(model, prepared(model, samples_of(example, 2)))
    return {name: _Parts(count, None, None, None, (name, "out")) for name, count in counts.items()}


def _parts(model: nn.Module, name: str, module: nn.Module) -> _Parts | None:
    if isinstance(module, nn.MultiheadAttention):
        if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
            return None
        return _Parts(module.num_heads, partial(_of_torch, module), None, None, (name, "out"))
    owners = (module, getattr(module, "config", None))
    numbers = (getattr(owner, word, None) for owner in owners for word in _HEADS)
    heads = next((number for number in numbers if isinstance(number, int) and number > 0), None)
    maps = None if heads is None else _projections(module)
    if heads is None or maps is None:
        return None
    (q, _), (k, _), (v, _), key_name = maps
    if len(q) % heads or len(q) % len(k) or (len(k) != len(v) and len(k) != len(q)):
        return None
    grouped = len(k) < len(q) and len(k) % (len(q) // heads) == 0
    width = len(q) if grouped else len(v)
    if width % heads or (len(k) != len(q) and not grouped):
        return None
    layer, _ = _output(model, name, module, width) or (None, None)
    keys = key_name and f"{name}.{key_name}"
    read = partial(_read, model, name, module, heads)
    return _Parts(heads, read, keys, (layer or name, "in" if layer else "out"), (layer or name, "out"))


def _of_torch(module: nn.MultiheadAttention, *, device: torch.device | str = "cpu") -> AttentionWeights:
    weights = torch_weights(module, device)
    assert weights is not None  # those without were left out
    return weights


def _read(
    model: nn.Module, name: str, module: nn.Module, heads: int, *, device: torch.device | str = "cpu"
) -> AttentionWeights:
    """The weights of a layer that was recognised."""
    maps = _projections(module)
    assert maps is not None
    (q, bq), (k, bk), (v, bv), _ = maps
    if len(k) < len(q):  # keys and values shared by groups of heads
        k, v, bv = (_shared(part, heads, len(q) // heads) for part in (k, v, bv))
    scale = getattr(module, "scaling", getattr(module, "scale", None))
    if isinstance(module, FullWidthAttention):
        scale = (module.heads / module.width) ** 0.5
    if isinstance(scale, Tensor) and scale.numel() == 1:
        scale = float(scale)
    scale = float(scale) if isinstance(scale, int | float) else (heads / len(q)) ** 0.5
    _, out = _output(model, name, module, len(v)) or (None, None)
    return stacked_weights(((q, bq), (k, bk), (v, bv)), out, heads, scale, device)


def _shared(part: Tensor, heads: int, width: int) -> Tensor:
    """Rows of each group's map, once for every head of the group."""
    groups = part.unflatten(0, (-1, width))
    return groups.repeat_interleave(heads // len(groups), 0).flatten(0, 1)


def _projections(module: nn.Module) -> tuple[LinearMap, LinearMap, LinearMap, str | None] | None:
    """Maps of queries, keys and values, and the submodule that makes the keys where it is one."""
    for names in _SEPARATE:
        maps = [part for name in names if (part := _linear(getattr(module, name, None))) is not None]
        if len(maps) == 3:
            return maps[0], maps[1], maps[2], names[1]
    asking, answering = _linear(getattr(module, "q_attn", None)), _linear(getattr(module, "c_attn", None))
    if asking is not None and answering is not None:
        key, value = zip(answering[0].chunk(2), answering[1].chunk(2), strict=True)
        return asking, key, value, "c_attn"
    for name in ("c_attn", "qkv", "in_proj", "query_key_value"):
        fused = _linear(getattr(module, name, None))
        if fused is not None and len(fused[0]) % 3 == 0:
            return *thirds(fused), None
    return None


def _linear(layer: Any) -> LinearMap | None:
    """Matrix ``[out, in]`` and bias of a linear layer, also of the transposed kind that GPT-2 has."""
    if isinstance(layer, nn.Linear):
        return linear_map(layer)
    weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
    if type(layer).__name__ == "Conv1D" and isinstance(weight, Tensor) and weight.ndim == 2:
        return weight.T, torch.zeros(weight.shape[1]) if bias is None else bias
    return None


def _output(model: nn.Module, name: str, module: nn.Module, width: int) -> tuple[str, LinearMap] | None:
    """The output map: a submodule of its own, or, as in BERT, one of its parent's ``output``."""
    for word in _OUT:
        child = getattr(module, word, None)
        inner = child[0] if isinstance(child, nn.Sequential) and len(child) else child
        out = _linear(inner)
        if out is not None and out[0].shape[1] == width:
            return f"{name}.{word}" + (".0" if inner is not child else ""), out
    parent, _, last = name.rpartition(".")
    out = _linear(getattr(getattr(model.get_submodule(parent), "output", None), "dense", None))
    if out is not None and out[0].shape[1] == width and last in ("self", "attention"):
        return f"{parent}.output.dense".lstrip("."), out
    return None
