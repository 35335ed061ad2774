"""Where a Transformer's attention can be read, whoever wrote it: inputs, heads, outputs, weights, and what they make.

A site is recognised by its projections, not by its class: three linear maps for queries, keys and values (or one for
all three) and their number of heads. Whether the weights say all that the layer does is not believed but checked: see
:func:`mode_of`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lisse.networks.attention_weights import AttentionWeights, _bias, _stacked
from lisse.networks.zoo.attention_only import FullWidthAttention
from lisse.taps import Tap, Taps, find
from lisse.taps.stillness import Statistics

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
    """

    name: str
    kind: str
    weights: AttentionWeights
    entry: Tap
    out: Tap
    heads: Tap | None = None
    keys: Tap | None = None
    copies: tuple[Tap, ...] = ()
    causal: bool = False

    @property
    def taps(self) -> list[Tap]:
        """All taps, each once."""
        return list(dict.fromkeys(tap for tap in (self.entry, self.keys, self.heads, self.out) if tap is not None))


@dataclass(frozen=True)
class _Parts:
    weights: AttentionWeights
    keys: str | None  # submodule whose input the keys are made of
    heads: tuple[str, Literal["in", "out"]] | None
    out: tuple[str, Literal["in", "out"]]


def has_attention(model: nn.Module) -> bool:
    """Whether a module of the model looks like attention; nothing is run."""
    return any(_parts(model, name, module) is not None for name, module in model.named_modules())


def attention_sites(
    model: nn.Module, example: Any, *, statistics: Statistics = "running", places: Taps | None = None
) -> tuple[list[AttentionSite], list[str]]:
    """The attention layers of a model in the order of its forward, and a sentence for each that cannot be read.

    ``example`` is a batch of samples; it runs twice, as in :func:`lisse.taps.find`. ``places`` are all places of the
    model (``find(model, example, ["**", "**:in"])``) where they are known already: then nothing is run.
    """
    parts = {
        name: found for name, module in model.named_modules() if (found := _parts(model, name, module)) is not None
    }
    if not parts:
        return [], []
    places = find(model, example, ["**", "**:in"], statistics=statistics) if places is None else places
    by_place = {(tap.module, tap.call, tap.side): tap for tap in places}
    sites, reasons = [], []
    for name, part in parts.items():
        module = model.get_submodule(name)
        calls = sorted({tap.call for tap in places if tap.module == name and tap.side == "in"})
        if not calls:
            why = next((one.reason for one in places.skipped if one.name.partition("#")[0] == name), "is never called")
            reasons.append(f"{name} {why}.")
        for call in calls:
            entry, out = by_place[name, call, "in"], by_place.get((part.out[0], call, part.out[1]))
            if out is None or len(entry.shape) != 2 or len(out.shape) != 2:
                reasons.append(f"{name} has no tokens [t, d] on both sides.")
                continue
            label = entry.name.removesuffix(":in")
            sites.append(
                AttentionSite(
                    label,
                    type(module).__name__,
                    part.weights,
                    replace(entry, name=f"{label}:entry"),
                    replace(out, name=f"{label}:out"),
                    _named(
                        by_place.get((part.heads[0], call, part.heads[1])) if part.heads else None, f"{label}:heads"
                    ),
                    _keys(module, entry, by_place.get((part.keys or "", call, "in")) if part.keys else None, label),
                    _copies(module, entry),
                    bool(getattr(module, "is_causal", False)),
                )
            )
    order = {tap: place for place, tap in enumerate(places)}
    sites.sort(key=lambda site: order[by_place[site.entry.module, site.entry.call, "in"]])
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
        open_ = open_ & torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    open_ = open_ | ~open_.any(-1, keepdim=True)
    return torch.zeros(open_.shape, dtype=torch.float64).masked_fill(~open_, -torch.inf)


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
    if keys.shape[-1] != site.weights.key.shape[-1] or queries.shape[-1] != site.weights.query.shape[-1]:
        return None
    orders: tuple[Mode, Mode] = ("causal", "full") if site.causal else ("full", "causal")
    for order in orders:
        if order == "causal" and queries.shape[1] != keys.shape[1]:
            continue
        added = masked(valid_keys, queries.shape[1], causal=order == "causal")
        _, _, made = attended(site.weights, queries, keys, added)
        if close(made, output, valid, tol):
            return order
    return None


def close(made: Tensor, seen: Tensor, valid: Tensor, tol: float) -> bool:
    """Whether two outputs agree on the valid tokens, up to ``tol`` of what the seen one varies."""
    if made.shape != seen.shape:
        return False
    truth = seen.double()[valid.bool()]
    size = float((truth - truth.mean(0)).norm()) + 1e-6 * float(truth.norm())
    return float((made[valid.bool()] - truth).norm()) <= tol * max(size, 1e-12)


def adds_a_table(site: AttentionSite, queries: Tensor, keys: Tensor, valid_keys: Tensor, rows: Tensor) -> bool:
    """Whether a layer's logits are those of its weights and a table that is the same for every sample.

    Relative positions and masks are such tables; turned or normalised queries are not. ``rows`` ``[b, M, t, s]`` are
    the layer's attention weights on two samples or more. Compared on the keys that all samples have.
    """
    if len(rows) < 2:
        return False
    plain, _, _ = attended(site.weights, queries, keys)
    shared = (valid_keys.bool()[:, None, None, :] & (rows > 1e-12)).all(0)
    if not bool(shared.any(-1).all()):
        return False
    rest = rows.double().clamp_min(1e-300).log() - plain.clamp_min(1e-300).log()
    rest = torch.where(shared, rest, 0.0)
    rest = rest - rest.sum(-1, keepdim=True) / shared.sum(-1, keepdim=True)  # a row's own constant cancels
    return float(torch.where(shared, rest - rest.mean(0), 0.0).abs().max()) <= 1e-2


# --- recognition ----------------------------------------------------------------------------------------------------


def _parts(model: nn.Module, name: str, module: nn.Module) -> _Parts | None:
    if isinstance(module, nn.MultiheadAttention):
        return _torch(name, module)
    owners = (module, getattr(module, "config", None))
    numbers = (getattr(owner, word, None) for owner in owners for word in _HEADS)
    heads = next((number for number in numbers if isinstance(number, int) and number > 0), None)
    found = None if heads is None else _projections(module)
    if heads is None or found is None:
        return None
    (q, bq), (k, _), (v, bv), key_name = found
    if len(q) % heads or len(q) % len(k) or (len(k) != len(v) and len(k) != len(q)):
        return None
    if len(k) < len(q) and len(k) % (len(q) // heads) == 0:  # keys and values shared by groups of heads
        k, v, bv = (_shared(part, heads, len(q) // heads) for part in (k, v, bv))
    if len(v) % heads or len(k) != len(q):
        return None
    end = _output(model, name, module, len(v))
    scale = getattr(module, "scaling", getattr(module, "scale", None))
    if isinstance(module, FullWidthAttention):
        scale = (module.heads / module.width) ** 0.5
    if isinstance(scale, Tensor) and scale.numel() == 1:
        scale = float(scale)
    scale = float(scale) if isinstance(scale, int | float) else (heads / len(q)) ** 0.5
    if end is None:
        weights = _stacked(q, k, v, bq, bv, torch.eye(len(v)), torch.zeros(len(v)), heads, scale)
        return _Parts(weights, key_name and f"{name}.{key_name}", (name, "out"), (name, "out"))
    weights = _stacked(q, k, v, bq, bv, end[1], end[2], heads, scale)
    return _Parts(weights, key_name and f"{name}.{key_name}", (end[0], "in"), (end[0], "out"))


def _shared(part: Tensor, heads: int, width: int) -> Tensor:
    """Rows of each group's map, once for every head of the group."""
    groups = part.unflatten(0, (-1, width))
    return groups.repeat_interleave(heads // len(groups), 0).flatten(0, 1)


_Map = tuple[Tensor, Tensor]


def _projections(module: nn.Module) -> tuple[_Map, _Map, _Map, str | None] | None:
    """Matrices and biases of queries, keys and values, and the submodule that makes the keys where it is one."""
    for names in _SEPARATE:
        maps = [found for name in names if (found := _linear(getattr(module, name, None))) is not None]
        if len(maps) == 3:
            return maps[0], maps[1], maps[2], names[1]
    asking, answering = _linear(getattr(module, "q_attn", None)), _linear(getattr(module, "c_attn", None))
    if asking is not None and answering is not None:
        (wk, wv), (bk, bv) = answering[0].chunk(2), answering[1].chunk(2)
        return asking, (wk, bk), (wv, bv), "c_attn"
    for name in ("c_attn", "qkv", "in_proj", "query_key_value"):
        fused = _linear(getattr(module, name, None))
        if fused is not None and len(fused[0]) % 3 == 0:
            (wq, wk, wv), (bq, bk, bv) = fused[0].chunk(3), fused[1].chunk(3)
            return (wq, bq), (wk, bk), (wv, bv), None
    return None


def _linear(layer: Any) -> _Map | None:
    """Matrix ``[out, in]`` and bias of a linear layer, also of the transposed kind that GPT-2 has."""
    if isinstance(layer, nn.Linear):
        return layer.weight, _bias(layer)
    weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
    if type(layer).__name__ == "Conv1D" and isinstance(weight, Tensor) and weight.ndim == 2:
        return weight.T, torch.zeros(weight.shape[1]) if bias is None else bias
    return None


def _output(model: nn.Module, name: str, module: nn.Module, width: int) -> tuple[str, Tensor, Tensor] | None:
    """The output map: a submodule of its own, or, as in BERT, one of its parent's ``output``."""
    for word in _OUT:
        child = getattr(module, word, None)
        inner = child[0] if isinstance(child, nn.Sequential) and len(child) else child
        found = _linear(inner)
        if found is not None and found[0].shape[1] == width:
            return f"{name}.{word}" + (".0" if inner is not child else ""), *found
    parent = name.rpartition(".")[0]
    dense = getattr(getattr(model.get_submodule(parent), "output", None), "dense", None)
    found = _linear(dense)
    if found is not None and found[0].shape[1] == width and name.rpartition(".")[2] in ("self", "attention"):
        return f"{parent}.output.dense".lstrip("."), *found
    return None


def _torch(name: str, module: nn.MultiheadAttention) -> _Parts | None:
    if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
        return None
    d = module.embed_dim
    bias = torch.zeros(3 * d) if module.in_proj_bias is None else module.in_proj_bias
    (q, k, v), (bq, _, bv) = module.in_proj_weight.chunk(3), bias.chunk(3)
    scale = (module.num_heads / d) ** 0.5
    weights = _stacked(q, k, v, bq, bv, module.out_proj.weight, _bias(module.out_proj), module.num_heads, scale)
    return _Parts(weights, None, None, (name, "out"))


def _named(tap: Tap | None, name: str) -> Tap | None:
    return None if tap is None else replace(tap, name=name)


def _keys(module: nn.Module, entry: Tap, found: Tap | None, label: str) -> Tap | None:
    if isinstance(module, nn.MultiheadAttention) and entry.path == (0, 0):
        return replace(entry, name=f"{label}:keys", path=(0, 1))
    return _named(found, f"{label}:keys")


def _copies(module: nn.Module, entry: Tap) -> tuple[Tap, ...]:
    """``nn.MultiheadAttention`` is given its input three times."""
    if not isinstance(module, nn.MultiheadAttention) or entry.path != (0, 0):
        return ()
    return tuple(replace(entry, name=f"{entry.name}:{place}", path=(0, place)) for place in (1, 2))
