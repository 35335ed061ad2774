r"""Attention layers as maps of sequences of tokens, with all that stands between their weights and their softmax.

Rotary positions, heads that share keys and values, norms of queries and keys, capped logits, masks and tables of
positions: the worst token's stretch (:mod:`lisse.maths.bounds.between`) is bounded with all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lisse.maths.bounds.between import of_token_maps, on_ball
from lisse.maths.bounds.bound import log
from lisse.maths.spectral_norm import norm_bounds, norm_interval
from lisse.networks.attention.weights import AttentionWeights, LinearMap, weights_of
from lisse.networks.bounds.graph import foreign
from lisse.networks.zoo.vit import SplitHeadAttention

#: Layers of Hugging Face that turn queries and keys by their positions, and others that are known besides those of
#: :func:`weights_of`; each is compared with its own forward in the tests.
ROTARY = frozenset(
    f"{family}Attention"
    for family in ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Gemma3", "Phi3", "GPTNeoX", "ModernBert")
)
KNOWN = ROTARY | {"GPT2Attention", "OPTAttention", "BloomAttention", "DistilBertSelfAttention"}
# Other scalings stretch queries and keys as well, by a factor that lies in another module.
_ISOMETRIC = ("default", "linear", "dynamic", "llama3", "proportional")
_SEPARATE = (("q_proj", "k_proj", "v_proj"), ("q_lin", "k_lin", "v_lin"))
_FUSED = ("c_attn", "Wqkv", "qkv_proj", "query_key_value")
_OUT = ("o_proj", "out_proj", "out_lin", "c_proj", "Wo", "dense")


@dataclass(frozen=True, slots=True)
class Affine:
    """x = ``gain`` ⊙ u + ``shift``, what a norm does last; ``centred``: the entries of u sum to zero."""

    gain: Tensor
    shift: Tensor
    centred: bool

    def before(self, weight: Tensor, bias: Tensor) -> LinearMap:
        """``weight`` ``[…, d]`` and ``bias`` ``[…]`` as a map of u."""
        gain, shift = self.gain.to(weight), self.shift.to(weight)
        folded = weight * gain
        return (folded - folded.mean(-1, keepdim=True) if self.centred else folded), bias + weight @ shift


@dataclass(frozen=True, slots=True)
class TokenAttention:
    """An attention layer whose heads all have keys and values of their own (shared ones are repeated).

    ``key_bias`` ``[M, h]``; ``ordered``: a mask or positions, so that it is no map of measures; ``turned``: rotary
    positions or a cap, so that the product of queries and keys is not bilinear in the tokens; ``norms``: largest gain
    and ε of the norms that queries and keys pass first.
    """

    weights: AttentionWeights
    key_bias: Tensor
    ordered: bool
    turned: bool = False
    norms: tuple[tuple[float, float], tuple[float, float]] | None = None

    def before(self, affine: Affine | None) -> TokenAttention:
        """The same on u, where the tokens are x = γ ⊙ u + β."""
        if affine is None:
            return self
        w = self.weights
        query, query_bias = affine.before(w.query, w.query_bias)
        key, key_bias = affine.before(w.key, self.key_bias)
        value, value_bias = affine.before(w.value, w.value_bias)
        folded = replace(w, query=query, key=key, value=value, query_bias=query_bias, value_bias=value_bias)
        return replace(self, weights=folded, key_bias=key_bias)

    def worst_token(self, radius: float, variance: float) -> tuple[float, float]:
        r"""log of the bound of the worst token's stretch on the ball of ``radius``, and a bound of the outputs' norms.

        A head has :math:`\|V_h\|b_h` with the bracket :math:`b_h = 1 + R^2\|A_h\| + R\,G_h`
        (:func:`lisse.maths.bounds.attention_worst_token`), or of :func:`lisse.maths.bounds.between.of_token_maps` where
        it is turned or has norms. Together: :math:`\min_t \|W^O D^t\|\,\|(y_h^{1-t})_h\|_2` over t = 0, ½, 1 with
        :math:`y_h = \|V_h\|b_h`, D their diagonal, or :math:`\sum_h\|W^O_hV_h\|b_h`.
        """
        w = self.weights
        values, out = norm_bounds(w.value).tolist(), norm_interval(w.out).upper
        if self.norms is None and not self.turned:
            pairs = zip(*w.logit_norms(), strict=True)
            brackets = [on_ball(1.0, a, radius, bias_norm=c).value for a, c in pairs]
        else:
            sides = [
                self._side(side, matrix, bias, radius, variance)
                for side, (matrix, bias) in enumerate(((w.query, w.query_bias), (w.key, self.key_bias)))
            ]
            brackets = [of_token_maps(1.0, radius, w.scale, q, k) for q, k in zip(*sides, strict=True)]
        sizes = torch.tensor([v * b for v, b in zip(values, brackets, strict=True)], dtype=torch.float64)
        outs = w.out.unflatten(1, (len(values), -1))
        together = [out * float(sizes.norm())]
        for t in (0.5, 1.0):
            weighted = (outs * sizes.to(outs)[:, None] ** t).flatten(1)
            together.append(norm_interval(weighted).upper * float((sizes ** (1 - t)).norm()))
        # ‖o v‖ is the norm of r v, with the small factor r of o = q r.
        alone = norm_bounds(torch.linalg.qr(outs.movedim(1, 0), mode="r").R @ w.value).tolist()
        together.append(sum(size * b for size, b in zip(alone, brackets, strict=True)) * (1 + 1e-12))
        shifts = w.value_bias.norm(dim=1).tolist()
        mixed = math.sqrt(sum((v * radius + shift) ** 2 for v, shift in zip(values, shifts, strict=True)))
        return log(min(together)), out * mixed + float(w.out_bias.norm())

    def _side(
        self, side: int, matrices: Tensor, biases: Tensor, radius: float, variance: float
    ) -> list[tuple[float, float]]:
        """Slope and largest norm of each head's queries (0) or keys (1)."""
        sizes = norm_bounds(matrices).tolist()
        if self.norms is None:
            shifts = biases.norm(dim=1).tolist()
            return [(size, size * radius + shift) for size, shift in zip(sizes, shifts, strict=True)]
        gain, eps = self.norms[side]
        slope, ball = gain / math.sqrt(variance + eps), gain * math.sqrt(matrices.shape[1])
        return [(slope * size, ball) for size in sizes]


def token_attention(module: nn.Module) -> TokenAttention | None:
    """What is known of an attention layer, or None where it is none or not known."""
    plain = None if isinstance(module, SplitHeadAttention) and module.q_norm is not None else weights_of(module)
    if plain is not None:
        return TokenAttention(plain, torch.zeros_like(plain.query_bias), bool(getattr(module, "is_causal", False)))
    if isinstance(module, SplitHeadAttention):
        return _zoo(module)
    name = type(module).__name__
    if name not in KNOWN or not type(module).__module__.startswith("transformers."):  # not a model's own code
        return None
    if name in ROTARY:
        _check_rotation(name, getattr(module, "config", None))
    weights, key_bias = _read(module, name)
    norms = [getattr(module, side, None) for side in ("q_norm", "k_norm")]
    gains = None if norms[0] is None or norms[1] is None else (_gain(norms[0]), _gain(norms[1]))
    turned = name in ROTARY or getattr(module, "attn_logit_softcapping", None) is not None
    ordered = name != "DistilBertSelfAttention"
    return TokenAttention(weights, key_bias, ordered, turned, gains)


def _zoo(module: SplitHeadAttention) -> TokenAttention | None:
    if module.reading != "dot" or module.q_norm is None or module.k_norm is None:
        return None
    maps = [(w, b) for w, b in zip(module.qkv.weight.chunk(3), module.qkv.bias.chunk(3), strict=True)]
    scale = (module.heads / module.width) ** 0.5
    weights, key_bias = _stacked(maps, module.proj, module.width // module.heads, scale)
    return TokenAttention(weights, key_bias, False, True, (_gain(module.q_norm), _gain(module.k_norm)))


def _gain(norm: nn.Module) -> tuple[float, float]:
    gain, _, eps, _ = norm_parts(norm)
    return float(gain.abs().max()), eps


def _check_rotation(name: str, config: Any) -> None:
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    settings = [value for value in rope.values() if isinstance(value, dict)] or [rope]
    for setting in settings:
        kind = setting.get("rope_type", setting.get("type", "default"))
        if kind not in _ISOMETRIC:
            raise TypeError(
                f"of_module: the rotary positions of {name} must be isometries, got rope_type {kind!r}, which also "
                "scales queries and keys."
            )


def _read(module: nn.Module, name: str) -> tuple[AttentionWeights, Tensor]:
    """The maps of a known layer, and the bias of its keys."""
    sizes = (getattr(module, word, None) for word in ("head_dim", "head_size", "attention_head_size"))
    width = next(int(size) for size in sizes if size)
    scale = float(getattr(module, "scaling", getattr(module, "inv_norm_factor", width**-0.5)))
    out = next(layer for word in _OUT if isinstance(layer := getattr(module, word, None), nn.Module))
    for words in _SEPARATE:
        layers = [getattr(module, word, None) for word in words]
        if all(isinstance(layer, nn.Module) for layer in layers):
            return _stacked([linear_parts(layer) for layer in layers], out, width, scale)  # type: ignore[arg-type]
    weight, bias = linear_parts(
        next(layer for word in _FUSED if isinstance(layer := getattr(module, word, None), nn.Module))
    )
    if name in ("GPTNeoXAttention", "BloomAttention"):  # head after head, each with its three maps
        parts = weight.unflatten(0, (-1, 3, width)).unbind(1), bias.unflatten(0, (-1, 3, width)).unbind(1)
        maps = [(w.flatten(0, 1), b.flatten()) for w, b in zip(*parts, strict=True)]
    else:
        rows = linear_parts(out)[0].shape[1]
        keys = (len(weight) - rows) // 2
        maps = list(zip(weight.split([rows, keys, keys]), bias.split([rows, keys, keys]), strict=True))
    return _stacked(maps, out, width, scale)


def _stacked(
    maps: list[LinearMap], out: nn.Module, width: int, scale: float
) -> tuple[AttentionWeights, Tensor]:  # fmt: skip
    q, k, v = (weight.detach().double().unflatten(0, (-1, width)) for weight, _ in maps)
    bq, bk, bv = (bias.detach().double().unflatten(0, (-1, width)) for _, bias in maps)
    shared = len(q) // len(k)
    k, v, bk, bv = (part.repeat_interleave(shared, 0) for part in (k, v, bk, bv))
    matrix, shift = (part.detach().double() for part in linear_parts(out))
    return AttentionWeights(q, k, v, bq, bv, matrix, shift, scale), bk


def linear_parts(layer: nn.Module) -> LinearMap:
    """Matrix ``[out, in]`` and bias of a linear layer, also of Hugging Face's transposed ``Conv1D``."""
    turned = type(layer).__name__ == "Conv1D"
    if foreign(layer) or not (turned or isinstance(layer, nn.Linear)):
        # An adapter (LoRA) or a quantised layer shows the weights of another, and does something else.
        raise TypeError(
            f"of_module: {type(layer).__module__}.{type(layer).__name__} must be a plain linear layer, got one with a "
            "forward of its own. Merge adapters into the weights first."
        )
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor)
    weight = weight.T if turned else weight
    return weight, weight.new_zeros(len(weight)) if not isinstance(bias, Tensor) else bias


def norm_parts(module: nn.Module) -> tuple[Tensor, Tensor, float, bool]:
    """γ, β, ε of a layer norm or a norm by the root mean square of the last axis, and whether it takes off the mean.

    Norms of Hugging Face are recognised by their name and by what they do: some keep γ, some γ − 1.
    """
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        (width,) = module.normalized_shape
        like = torch.zeros(width, dtype=torch.float64, device=_device(module))
        gain = like + 1 if module.weight is None else module.weight.detach().double()
        shift = getattr(module, "bias", None)
        eps = module.eps if module.eps is not None else torch.finfo(torch.float32).eps
        centred = isinstance(module, nn.LayerNorm)
        return gain, like if shift is None else shift.detach().double(), float(eps), centred
    weight: Any = module.weight
    eps = float(getattr(module, "variance_epsilon", getattr(module, "eps", 0.0)))
    probe = torch.randn(len(weight), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scaled = (probe / (probe.square().mean() + eps).sqrt()).to(weight.device)
    with torch.no_grad():
        output = module(probe.to(weight))
    for gain in (weight.detach().double(), 1 + weight.detach().double()):
        if torch.allclose(output.double(), gain * scaled, rtol=5e-2, atol=1e-2 * float(gain.abs().max())):
            return gain, torch.zeros_like(gain), eps, False
    raise TypeError(f"of_module: {type(module).__name__} must divide by the root mean square, got something else.")


def is_token_norm(module: nn.Module) -> bool:
    """Whether :func:`norm_parts` speaks of it."""
    name = type(module).__name__
    return isinstance(module, nn.LayerNorm | nn.RMSNorm) or (
        name.endswith(("RMSNorm", "T5LayerNorm")) and isinstance(getattr(module, "weight", None), Tensor)
    )


def _device(module: nn.Module) -> torch.device:
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
