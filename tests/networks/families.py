"""Small networks of random weights, one per family of Transformers: what a table of attention is tried on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
WORDS, LENGTH, SAMPLES = 32, 10, 3
TEXT: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
IMAGE: dict[str, Any] = {
    "image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48,
}  # fmt: skip
PAIR: dict[str, Any] = {
    "vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
SHARED = {"num_key_value_heads": 2, "head_dim": 8}
WINDOW = {**SHARED, "sliding_window": 4}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


def texts(length: int = LENGTH, *, padded: bool = False) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, WORDS, (SAMPLES, length), generator=torch.Generator().manual_seed(0))
    if not padded:
        return {"input_ids": ids}
    mask = torch.arange(length) < torch.tensor([length, length - 3, length - 1])[:, None]
    return {"input_ids": ids, "attention_mask": mask.long()}


def images(size: int = 32) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.rand(SAMPLES, 3, size, size, generator=torch.Generator().manual_seed(0))}


def pairs() -> dict[str, torch.Tensor]:
    return {**texts(padded=True), "decoder_input_ids": texts(7)["input_ids"]}


# Family: its class, its options, what it is fed, and whether queries and keys are read ("call") or its softmax alone.
FAMILIES: dict[str, tuple[str, dict[str, Any], Callable[[], dict[str, torch.Tensor]], str]] = {
    "llama": ("LlamaModel", {**TEXT, "num_key_value_heads": 2}, texts, "call"),
    "qwen2": ("Qwen2Model", {**TEXT, "num_key_value_heads": 2}, texts, "call"),
    "qwen3": ("Qwen3Model", {**TEXT, **SHARED}, texts, "call"),
    "qwen3_moe": ("Qwen3MoeModel", {**TEXT, **SHARED, "num_experts": 4, "num_experts_per_tok": 2,
                                    "moe_intermediate_size": 16}, texts, "call"),
    "mistral": ("MistralModel", {**TEXT, **WINDOW}, texts, "call"),
    "mixtral": ("MixtralModel", {**TEXT, **SHARED, **EXPERTS}, texts, "call"),
    "gemma": ("GemmaModel", {**TEXT, "num_key_value_heads": 1, "head_dim": 8}, texts, "call"),
    "gemma2": ("Gemma2Model", {**TEXT, **WINDOW, "attn_logit_softcapping": 2.0}, texts, "call"),
    "gemma3": ("Gemma3TextModel", {**TEXT, **WINDOW}, texts, "call"),
    "phi": ("PhiModel", TEXT, texts, "call"),
    "phi3": ("Phi3Model", {**TEXT, "num_key_value_heads": 2}, texts, "call"),
    "gpt_neox": ("GPTNeoXModel", TEXT, texts, "call"),
    "gpt_oss": ("GptOssModel", {**TEXT, **WINDOW, **EXPERTS}, texts, "call"),
    "gpt2": ("GPT2Model", {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
                           "bos_token_id": 1, "eos_token_id": 2}, texts, "call"),
    "gptj": ("GPTJModel", {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
                           "rotary_dim": 4, "bos_token_id": 1, "eos_token_id": 2}, texts, "softmax"),
    "bloom": ("BloomModel", {"vocab_size": WORDS, "hidden_size": 32, "n_layer": 2, "n_head": 4}, texts, "softmax"),
    "falcon": ("FalconModel", {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2,
                               "num_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2}, texts, "call"),
    "modernbert": ("ModernBertModel", {**TEXT, "local_attention": 4, "global_attn_every_n_layers": 2,
                                       "cls_token_id": 1, "sep_token_id": 2}, lambda: texts(padded=True), "call"),
    "bert": ("BertModel", TEXT, lambda: texts(padded=True), "call"),
    "deberta_v2": ("DebertaV2Model", {**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
                   lambda: texts(padded=True), "softmax"),
    "bart": ("BartModel", PAIR, pairs, "call"),
    "t5": ("T5Model", {"vocab_size": WORDS, "d_model": 32, "d_kv": 8, "num_layers": 2, "num_heads": 4, "d_ff": 48},
           pairs, "call"),
    "whisper": ("WhisperModel", {**PAIR, "num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 16},
                lambda: {"input_features": torch.rand(SAMPLES, 8, 24), "decoder_input_ids": texts(7)["input_ids"]},
                "call"),
    "swin": ("SwinModel", {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2],
                           "window_size": 4}, images, "call"),
    "segformer": ("SegformerModel", {"image_size": 32, "hidden_sizes": [8, 16], "depths": [1, 1],
                                     "num_attention_heads": [1, 2], "num_encoder_blocks": 2, "sr_ratios": [2, 1],
                                     "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2]}, images, "call"),
    "vit": ("ViTModel", IMAGE, images, "call"),
    "dinov2": ("Dinov2Model", IMAGE, images, "call"),
    "clip": ("CLIPModel", {"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 16},
             lambda: {**texts(), **images()}, "call"),
}  # fmt: skip


def network(family: str, dtype: torch.dtype = torch.float32) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A network of a family, with weights that make its attention far from uniform, and three samples for it."""
    name, options, inputs, _ = FAMILIES[family]
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**options)).eval()
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.3, generator=generator)
    samples = {key: value.to(dtype) if value.is_floating_point() else value for key, value in inputs().items()}
    return model.to(dtype), samples
