"""Attention layers, whoever wrote them: where they can be read, their weights, and what they do head by head."""

from lisse.networks.attention.heads import Heads, heads_called, heads_of, heads_seen, logits, rebuilds
from lisse.networks.attention.sites import (
    AttentionSite,
    Mode,
    adds_a_table,
    attended,
    attention_sites,
    close,
    from_rows,
    has_attention,
    masked,
    mode_of,
)
from lisse.networks.attention.weights import AttentionWeights, weights_of

__all__ = [
    "AttentionSite",
    "AttentionWeights",
    "Heads",
    "Mode",
    "adds_a_table",
    "attended",
    "attention_sites",
    "close",
    "from_rows",
    "has_attention",
    "heads_called",
    "heads_of",
    "heads_seen",
    "logits",
    "masked",
    "mode_of",
    "rebuilds",
    "weights_of",
]
