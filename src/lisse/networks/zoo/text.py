"""Language models of any size, made by transformers (``pip install "lisse[hf]"``) with random weights.

``bert?layers=12&width=768&heads=12`` is bert-base (109,514,298 parameters with its masked-language head),
``t5`` is t5-small (60,506,624). Trained ones come through ``hf:DIR_OR_REPO``.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from lisse.libraries import extra
from lisse.networks.zoo.options import check_divisible, check_sizes


class EncoderDecoder(nn.Module):
    """An encoder–decoder that can be called with the source alone.

    Where no ``decoder_input_ids`` are given, the decoder reads the source shifted right by one (teacher forcing on
    the source itself), so that every layer on both sides can be measured with one kind of input. ``network`` is the
    transformers model.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        **inputs: Any,
    ) -> Any:
        """Token ids [n, t] to the transformers output (``logits`` [n, t, vocabulary])."""
        if decoder_input_ids is None:
            config: Any = self.network.config
            start = config.decoder_start_token_id
            if start is None:
                start = config.pad_token_id
            decoder_input_ids = input_ids.roll(1, dims=1)
            decoder_input_ids[:, 0] = 0 if start is None else start
        return self.network(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids, **inputs
        )


def bert(
    *,
    layers: int = 2,
    width: int = 128,
    heads: int = 2,
    hidden: int | None = None,
    vocabulary: int = 30522,
    positions: int = 512,
    output: Literal["masked", "hidden", "classes"] = "masked",
    classes: int = 2,
) -> nn.Module:
    """BERT ([devlin2019]) of any size; the default is bert-tiny (2 layers, width 128).

    ``hidden`` is the width of the feed-forward layer, 4·``width`` unless given. ``output`` chooses the head: masked
    language model, none (hidden states and pooler), or a classifier.
    """
    check_sizes(
        "bert", layers=layers, width=width, heads=heads, vocabulary=vocabulary, positions=positions, classes=classes
    )
    if hidden is not None:
        check_sizes("bert", hidden=hidden)
    check_divisible("bert", "width", width, "heads", heads)
    transformers = extra("transformers", "hf", "bert")
    config = transformers.BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width if hidden is None else hidden,
        vocab_size=vocabulary,
        max_position_embeddings=positions,
        num_labels=classes,
    )
    builders = {
        "masked": transformers.BertForMaskedLM,
        "hidden": transformers.BertModel,
        "classes": transformers.BertForSequenceClassification,
    }
    network = builders[output](config)
    # Early 5.x leaves input and output embeddings untied on the meta device, where sizes are checked.
    network.tie_weights()
    result: nn.Module = network
    return result


def t5(
    *, layers: int = 6, width: int = 512, heads: int = 8, hidden: int = 2048, vocabulary: int = 32128
) -> EncoderDecoder:
    """Encoder–decoder of T5 shape ([raffel2020]); the default is t5-small, 60,506,624 parameters."""
    check_sizes("t5", layers=layers, width=width, heads=heads, hidden=hidden, vocabulary=vocabulary)
    check_divisible("t5", "width", width, "heads", heads)
    transformers = extra("transformers", "hf", "t5")
    config = transformers.T5Config(
        num_layers=layers,
        num_decoder_layers=layers,
        d_model=width,
        d_kv=width // heads,
        num_heads=heads,
        d_ff=hidden,
        vocab_size=vocabulary,
        decoder_start_token_id=0,
    )
    network = transformers.T5ForConditionalGeneration(config)
    network.tie_weights()  # as for BERT
    return EncoderDecoder(network)
