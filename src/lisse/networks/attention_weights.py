"""The matrices of a self-attention layer, whoever wrote it: one form for torch's, Hugging Face's and the zoo's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lisse.maths.spectral_norm import ROUNDING, norm_interval
from lisse.networks.zoo.attention_only import FullWidthAttention
from lisse.networks.zoo.vit import SplitHeadAttention

HUGGING_FACE = frozenset(
    f"{family}{kind}Attention"
    for family in ("Bert", "Roberta", "Electra", "ViT", "DeiT", "ViTMAE")
    for kind in ("Self", "SdpaSelf", "")
)


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    r"""Head m sends x_i to :math:`V_m\sum_jP_{ij}x_j`, :math:`P_{ij} \propto e^{s\langle Q_mx_i + b_m, K_mx_j\rangle}`.

    ``query``, ``key``, ``value`` ``[M, h, d]`` in float64, ``query_bias`` and ``value_bias`` ``[M, h]``, ``out``
    ``[d, M·h]``, ``out_bias`` ``[d]``, ``scale`` s. (A key's bias changes nothing: it cancels in the softmax.)
    """

    query: Tensor
    key: Tensor
    value: Tensor
    query_bias: Tensor
    value_bias: Tensor
    out: Tensor
    out_bias: Tensor
    scale: float

    def norms(self) -> tuple[list[float], list[float], list[float], float]:
        """Certain upper bounds: ‖V_m‖, ‖A_m‖ and ‖c_m‖ of each head, and ‖W^O‖; A = s KᵀQ, c = s Kᵀb."""
        values = [norm_interval(one).upper for one in self.value]
        a = []
        for q, k in zip(self.query, self.key, strict=True):
            size = float(q.norm()) * float(k.norm())
            error = 16 * (q.shape[0] + 8) * ROUNDING * size
            matrix = k.T @ q if 2 * len(q) >= q.shape[1] else None
            if matrix is None:
                # The rank is small: kᵀq has the norm of the product of the two triangular factors, each of which has a
                # relative error of order d h u ([higham2002] thm. 19.4).
                matrix = torch.linalg.qr(k.T).R @ torch.linalg.qr(q.T).R.T
                error += 32 * q.numel() * ROUNDING * size
            a.append(norm_interval(matrix, error=error).upper * self.scale)
        bias = torch.einsum("mhd,mh->md", self.key, self.query_bias).norm(dim=1)
        edge = 1 + 1e-12
        return (
            values,
            [x * edge for x in a],
            [float(c) * self.scale * edge for c in bias],
            norm_interval(self.out).upper,
        )


def attention_weights(module: nn.Module) -> AttentionWeights | None:
    """The weights of a self-attention layer, or None where ``module`` is none that is known.

    Known: ``nn.MultiheadAttention``, the zoo's two, and Hugging Face's :data:`HUGGING_FACE` (a ``…SelfAttention`` alone
    has no output map: the identity stands for it). Others may turn or shift queries by their positions, so that their
    weights alone do not say what they do.
    """
    if isinstance(module, nn.MultiheadAttention):
        return _torch(module)
    if isinstance(module, FullWidthAttention):
        scale = (module.heads / module.width) ** 0.5
        return _weights(module.query, module.key, module.value, module.out, module.heads, scale)
    if isinstance(module, SplitHeadAttention):
        if not module.plain:
            return None  # another kernel: the bounds of the dot product do not speak of it
        parts = zip(module.qkv.weight.chunk(3), _bias(module.qkv).chunk(3), strict=True)
        (q, bq), (k, _), (v, bv) = parts
        scale = (module.heads / module.width) ** 0.5
        return _stacked(q, k, v, bq, bv, module.proj.weight, _bias(module.proj), module.heads, scale)
    if type(module).__name__ not in HUGGING_FACE:
        return None
    for names in (("query", "key", "value"), ("q_proj", "k_proj", "v_proj")):
        layers = [getattr(module, name, None) for name in names]
        heads = getattr(module, "num_attention_heads", None)
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        if isinstance(heads, int) and len(linear) == 3:
            out = getattr(module, "o_proj", None)
            scale = getattr(module, "scaling", (heads / linear[0].out_features) ** 0.5)
            return _weights(linear[0], linear[1], linear[2], out, heads, float(scale))
    return None


def _torch(module: nn.MultiheadAttention) -> AttentionWeights:
    if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
        raise TypeError(
            "of_module: MultiheadAttention must be self-attention (one width, no bias_k or add_zero_attn), got another."
        )
    d = module.embed_dim
    bias = torch.zeros(3 * d) if module.in_proj_bias is None else module.in_proj_bias
    (q, k, v), (bq, _, bv) = module.in_proj_weight.chunk(3), bias.chunk(3)
    scale = (module.num_heads / d) ** 0.5
    return _stacked(q, k, v, bq, bv, module.out_proj.weight, _bias(module.out_proj), module.num_heads, scale)


def _weights(
    q: nn.Linear, k: nn.Linear, v: nn.Linear, out: nn.Linear | None, heads: int, scale: float
) -> AttentionWeights:
    width = v.out_features
    matrix = torch.eye(width) if out is None else out.weight
    shift = torch.zeros(width) if out is None else _bias(out)
    return _stacked(q.weight, k.weight, v.weight, _bias(q), _bias(v), matrix, shift, heads, scale)


def _bias(layer: nn.Linear) -> Tensor:
    return torch.zeros(layer.out_features) if layer.bias is None else layer.bias


def _stacked(
    q: Tensor, k: Tensor, v: Tensor, bq: Tensor, bv: Tensor, out: Tensor, out_bias: Tensor, heads: int, scale: float
) -> AttentionWeights:
    q, k, v, bq, bv, out, out_bias = (x.detach().double().cpu() for x in (q, k, v, bq, bv, out, out_bias))
    q, k, v = (x.reshape(heads, -1, x.shape[-1]) for x in (q, k, v))
    return AttentionWeights(q, k, v, bq.reshape(heads, -1), bv.reshape(heads, -1), out, out_bias, scale)
