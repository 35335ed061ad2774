"""The bounds of :mod:`lisse.maths.bounds` on a real module's weights, followed through its structure."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from lisse.maths.bounds import Bound, Hypothesis
from lisse.maths.bounds.bound import bound
from lisse.networks.attention_weights import attention_weights
from lisse.networks.operator_norms import OperatorNorm, operator_norm
from lisse.networks.structure import State, Walk

__all__ = ["OperatorNorm", "of_module", "operator_norm"]


def of_module(
    module: nn.Module,
    *,
    radius: float,
    input_shape: Sequence[int] | None = None,
    metric: Literal["wasserstein", "euclidean"] | None = None,
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
      :math:`\|A\|R^2`. The default where there is attention.
    * ``"euclidean"``: ℓ2 over all entries of one sample. Attention has
      :func:`~lisse.maths.bounds.sequence_attention` for the tokens of ``input_shape``. The default elsewhere.

    Layer norm has the constant :math:`\max|\gamma|/\sqrt{v + \epsilon}` with v = ``variance`` the least variance of a
    token that it meets: 0 promises nothing and makes it large; a greater one is taken on trust, and stands among the
    hypotheses. Linear layers and convolutions have their true operator norm for their input size
    (:func:`operator_norm`, from above, within ``tol`` where it is exact).

    Structure: what ``torch.fx`` can trace (sums, concatenations, reshapes, means, indexing; sequences and residual
    blocks of the zoo and most others), torch's encoder layers, and Hugging Face's BERT and ViT layers. Compositions
    multiply, sums add. A module or operation that is not known is refused by name. The product over a deep network is
    often beyond a float: ``log10`` has it. Masks, dropout in training mode and batch statistics are not covered.
    """
    if not (math.isfinite(radius) and radius >= 0):
        raise ValueError(f"of_module: radius must be finite and not negative, got {radius}.")
    if not (math.isfinite(variance) and variance >= 0):
        raise ValueError(f"of_module: variance must be finite and not negative, got {variance}.")
    if metric not in ("wasserstein", "euclidean", None):
        raise ValueError(f"of_module: metric must be 'wasserstein' or 'euclidean', got {metric!r}.")
    for key, parameter in module.state_dict().items():
        if not bool(torch.isfinite(parameter).all()):
            raise ValueError(f"of_module: {type(module).__name__}.{key} must be finite, got NaN or infinity.")
    tokens = any(attention_weights(part) is not None for part in module.modules())
    chosen = metric or ("wasserstein" if tokens else "euclidean")
    if input_shape is None and chosen == "euclidean" and tokens:
        raise ValueError("of_module: input_shape must be given for attention in the euclidean metric, got None.")
    shape = _shape(module) if input_shape is None else tuple(int(size) for size in input_shape)
    if chosen == "wasserstein" and len(shape) != 2:
        raise ValueError(
            f"of_module: input_shape must be tokens and features [t, d] in the wasserstein metric, got {list(shape)}. "
            "Take metric='euclidean', or one block of the network."
        )
    still = copy.deepcopy(module).double().cpu().eval().requires_grad_(False)
    walk = Walk(chosen == "wasserstein", variance, tol)
    zero = torch.zeros(1, *shape, dtype=torch.float64)
    with torch.no_grad():
        end = walk.through(still, State(0.0, radius, zero))
    said = [Hypothesis(f"inputs have norm at most {radius:g}", True, "given")] if tokens else []
    if walk.trusted:
        said.append(Hypothesis(f"tokens have variance at least {variance:g} before each layer norm", True, "given"))
    return bound(end.log, said)


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
        weights = attention_weights(part)
        if weights is not None:
            return (2, int(weights.query.shape[-1]))
        if isinstance(part, nn.Linear):
            return (2, part.in_features)
        if isinstance(part, nn.LayerNorm):
            return (2, *part.normalized_shape)
    return (2, 1)
