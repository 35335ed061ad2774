"""The matrices of a self-attention layer, whoever wrote it: one form for torch's, Hugging Face's and the zoo's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lisse.maths.spectral_norm import ROUNDING, norm_bounds, norm_interval
from lisse.networks.zoo.attention_only import FullWidthAttention
from lisse.networks.zoo.vit import SplitHeadAttention

#: The matrix ``[out, in]`` and the bias of a linear layer.
LinearMap = tuple[Tensor, Tensor]
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
        return norm_bounds(self.value).tolist(), *self.logit_norms(), norm_interval(self.out).upper

    def logit_norms(self) -> tuple[list[float], list[float]]:
        """Those of ‖A_m‖ and ‖c_m‖ alone."""
        h, d = self.query.shape[1:]
        sizes = self.query.flatten(1).norm(dim=1) * self.key.flatten(1).norm(dim=1)
        error = 16 * (h + 8) * ROUNDING * sizes
        if 2 * h >= d:
            matrices = self.key.mT @ self.query
        else:
            # The rank is small: kᵀq has the norm of the product of the two triangular factors, each of which has a
            # relative error of order d h u ([higham2002] thm. 19.4).
            left, right = (torch.linalg.qr(side.mT, mode="r").R for side in (self.key, self.query))
            matrices = left @ right.mT
            error = error + 32 * h * d * ROUNDING * sizes
        bias = torch.einsum("mhd,mh->md", self.key, self.query_bias).norm(dim=1)
        factor = self.scale * (1 + 1e-12)
        return ((norm_bounds(matrices) + error) * factor).tolist(), (bias * factor).tolist()


def weights_of(module: nn.Module) -> AttentionWeights | None:
    """The weights of a self-attention layer, or None where ``module`` is none that is known.

    Known: ``nn.MultiheadAttention``, the zoo's two, and Hugging Face's :data:`HUGGING_FACE` (a ``…SelfAttention`` alone
    has no output map: the identity stands for it). Others may turn or shift queries by their positions, so that their
    weights alone do not say what they do.
    """
    if isinstance(module, nn.MultiheadAttention):
        weights = torch_weights(module)
        if weights is None:
            raise TypeError(
                "of_module: MultiheadAttention must be self-attention (one width, no bias_k or add_zero_attn), got "
                "another."
            )
        return weights
    if isinstance(module, FullWidthAttention):
        maps = [linear_map(layer) for layer in (module.query, module.key, module.value)]
        return stacked_weights(maps, linear_map(module.out), module.heads, (module.heads / module.width) ** 0.5)
    if isinstance(module, SplitHeadAttention):
        if not module.plain:
            return None  # another kernel: the bounds of the dot product do not speak of it
        scale = (module.heads / module.width) ** 0.5
        return stacked_weights(thirds(linear_map(module.qkv)), linear_map(module.proj), module.heads, scale)
    heads = getattr(module, "num_attention_heads", None)
    if type(module).__name__ not in HUGGING_FACE or not isinstance(heads, int):
        return None
    for names in (("query", "key", "value"), ("q_proj", "k_proj", "v_proj")):
        layers = [layer for name in names if isinstance(layer := getattr(module, name, None), nn.Linear)]
        if len(layers) == 3:
            out = getattr(module, "o_proj", None)
            scale = float(getattr(module, "scaling", (heads / layers[0].out_features) ** 0.5))
            return stacked_weights(map(linear_map, layers), None if out is None else linear_map(out), heads, scale)
    return None


def torch_weights(module: nn.MultiheadAttention, device: torch.device | str = "cpu") -> AttentionWeights | None:
    """The weights of torch's own layer, or None where it is no self-attention or adds keys of its own."""
    if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
        return None
    d, heads = module.embed_dim, module.num_heads
    bias = torch.zeros(3 * d) if module.in_proj_bias is None else module.in_proj_bias
    maps = thirds((module.in_proj_weight, bias))
    return stacked_weights(maps, linear_map(module.out_proj), heads, (heads / d) ** 0.5, device)


def linear_map(layer: nn.Linear) -> LinearMap:
    """Matrix and bias, zero where it has none."""
    return layer.weight, torch.zeros(layer.out_features) if layer.bias is None else layer.bias


def thirds(stack: LinearMap) -> tuple[LinearMap, LinearMap, LinearMap]:
    """Queries', keys' and values' maps of a layer that makes all three."""
    q, k, v = zip(stack[0].chunk(3), stack[1].chunk(3), strict=True)
    return q, k, v


def stacked_weights(
    maps: Iterable[LinearMap],
    out: LinearMap | None,
    heads: int,
    scale: float,
    device: torch.device | str = "cpu",
) -> AttentionWeights:
    """Maps of queries, keys and values with their heads on top of each other; without ``out`` the identity is it."""
    (q, bq), (k, _), (v, bv) = maps
    matrix, shift = (torch.eye(len(v)), torch.zeros(len(v))) if out is None else out
    q, k, v, bq, bv, matrix, shift = (x.detach().double().to(device) for x in (q, k, v, bq, bv, matrix, shift))
    q, k, v = (x.reshape(heads, -1, x.shape[-1]) for x in (q, k, v))
    return AttentionWeights(q, k, v, bq.reshape(heads, -1), bv.reshape(heads, -1), matrix, shift, scale)
