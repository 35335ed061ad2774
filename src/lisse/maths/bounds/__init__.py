"""Closed-form Lipschitz bounds, each with its hypotheses: one file per source, all returning a :class:`Bound`."""

from lisse.maths.bounds.attention import (
    attention_gaussian,
    attention_on_ball,
    boltzmann_gibbs_lipschitz,
    key_lipschitz,
    lookup_norm,
    query_lipschitz,
)
from lisse.maths.bounds.between import attention_between, attention_worst_token, gaussian_worst_token
from lisse.maths.bounds.bound import Bound, Hypothesis
from lisse.maths.bounds.isometric import entropy_gradient, sample_gradient_norms, translation_gradient_norm
from lisse.maths.bounds.mean_field import (
    mean_field_attention,
    mean_field_attention_below,
    mean_field_multi_head,
    sequence_attention,
)
from lisse.maths.bounds.near import attention_near, attention_on_hull, keys_near, keys_on_hull
from lisse.maths.bounds.topolip import (
    batch_norm_lipschitz,
    convolution_tail_probability,
    layer_norm_lipschitz,
    tail_probability,
    topolip_attention,
    topolip_bound,
    topolip_convolution,
    topolip_resnet,
    topolip_transformer,
)
from lisse.moved import moved_names

__all__ = [
    "Bound",
    "Hypothesis",
    "attention_between",
    "attention_gaussian",
    "attention_near",
    "attention_on_ball",
    "attention_on_hull",
    "attention_worst_token",
    "batch_norm_lipschitz",
    "boltzmann_gibbs_lipschitz",
    "convolution_tail_probability",
    "entropy_gradient",
    "gaussian_worst_token",
    "key_lipschitz",
    "keys_near",
    "keys_on_hull",
    "layer_norm_lipschitz",
    "lookup_norm",
    "mean_field_attention",
    "mean_field_attention_below",
    "mean_field_multi_head",
    "query_lipschitz",
    "sample_gradient_norms",
    "sequence_attention",
    "tail_probability",
    "topolip_attention",
    "topolip_bound",
    "topolip_convolution",
    "topolip_resnet",
    "topolip_transformer",
    "translation_gradient_norm",
]

__getattr__ = moved_names(__name__)
