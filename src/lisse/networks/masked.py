"""Masked autoencoders whoever wrote them: weights to and from Hugging Face, the network inside a model, masks.

The network itself is :class:`lisse.networks.zoo.mae.MaskedAutoencoder`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lisse.libraries import extra
from lisse.networks.zoo.mae import MaskedAutoencoder, sincos_positions, visible_patches

__all__ = [
    "MaskedAutoencoder",
    "MaskedDecoder",
    "WholeEncoder",
    "from_huggingface",
    "holds_masked",
    "in_pixels",
    "masked_network",
    "masks",
    "normalised",
    "sincos_positions",
    "to_huggingface",
]

# Our name to Hugging Face's: of the whole network, and of a block. Transformers 5 and 4 name blocks differently.
WHOLE = {
    "cls_token": "vit.embeddings.cls_token",
    "pos_embed": "vit.embeddings.position_embeddings",
    "patch_embed.proj": "vit.embeddings.patch_embeddings.projection",
    "norm": "vit.layernorm",
    "decoder_embed": "decoder.decoder_embed",
    "mask_token": "decoder.mask_token",
    "decoder_pos_embed": "decoder.decoder_pos_embed",
    "decoder_norm": "decoder.decoder_norm",
    "decoder_pred": "decoder.decoder_pred",
}
BLOCKS: tuple[dict[str, str], ...] = (
    {
        "norm1": "layernorm_before",
        "attn.q": "attention.q_proj",
        "attn.k": "attention.k_proj",
        "attn.v": "attention.v_proj",
        "attn.proj": "attention.o_proj",
        "norm2": "layernorm_after",
        "mlp.fc1": "mlp.fc1",
        "mlp.fc2": "mlp.fc2",
    },
    {
        "norm1": "layernorm_before",
        "attn.q": "attention.attention.query",
        "attn.k": "attention.attention.key",
        "attn.v": "attention.attention.value",
        "attn.proj": "attention.output.dense",
        "norm2": "layernorm_after",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    },
)
# What ours has no other form of.
_SHAPE = {"hidden_act": "gelu", "qkv_bias": True}
STACKS = (("blocks", ("vit.layers", "vit.encoder.layer")), ("decoder_blocks", ("decoder.decoder_layers",)))


def masked_network(model: nn.Module) -> MaskedAutoencoder | None:
    """The masked autoencoder in ``model``: itself, the one it wraps, or a copy of Hugging Face's; ``None`` if none is.

    Hugging Face's ``ViTMAEForPreTraining`` is turned into ours with :func:`from_huggingface`, on its device and in its
    mode; the copy gives the same outputs.
    """
    network = _masked_inside(model)
    return network if network is None or isinstance(network, MaskedAutoencoder) else from_huggingface(network)


def holds_masked(model: nn.Module) -> bool:
    """Whether :func:`masked_network` finds one, without a copy of its weights."""
    return _masked_inside(model) is not None


def _masked_inside(model: nn.Module) -> nn.Module | None:
    for module in model.modules():
        if isinstance(module, MaskedAutoencoder) or type(module).__name__ == "ViTMAEForPreTraining":
            return module
    return None


class WholeEncoder(nn.Module):
    """The encoder of a masked autoencoder on every patch: nothing is hidden, so that the tokens fill their grid."""

    def __init__(self, network: MaskedAutoencoder) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """``images`` as the network takes them to [n, 1 + p, d]."""
        return self.network.encode(images)


class MaskedDecoder(nn.Module):
    """A masked autoencoder with a given mask per image; gives the logits alone."""

    def __init__(self, network: MaskedAutoencoder) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor, noise: Tensor) -> Tensor:
        """``images`` [n, c, h, w] and ``noise`` [n, p] to [n, p, patch²·c]."""
        logits: Tensor = self.network(images, noise)["logits"]
        return logits


def normalised(model: nn.Module, images: Tensor) -> Tensor:
    """``images`` as the network inside ``model`` takes them: less its mean, over its deviation, where it has these."""
    mean, std = getattr(model, "mean", None), getattr(model, "std", None)
    return (images - mean) / std if isinstance(mean, Tensor) and isinstance(std, Tensor) else images


def in_pixels(model: nn.Module, images: Tensor) -> Tensor:
    """The inverse of :func:`normalised`."""
    mean, std = getattr(model, "mean", None), getattr(model, "std", None)
    return images * std + mean if isinstance(mean, Tensor) and isinstance(std, Tensor) else images


def masks(count: int, patches: int, *, ratio: float = 0.75, generator: torch.Generator | None = None) -> Tensor:
    """``noise`` [count, patches] for a masked autoencoder: one random mask per image, uniform numbers in [0, 1)."""
    visible_patches("masks", patches, ratio)
    return torch.rand(count, patches, generator=generator)


def from_huggingface(model: nn.Module) -> MaskedAutoencoder:
    """Hugging Face's ``ViTMAEForPreTraining`` as ours: a copy of its weights, the same outputs up to rounding.

    Its position embeddings are copied too, also where they are all zero: some versions of transformers leave those of
    the decoder so in a model made from a config.
    """
    config: Any = getattr(model, "config", None)
    if getattr(config, "model_type", None) != "vit_mae" or not hasattr(model, "decoder"):
        raise TypeError(
            f"from_huggingface: model must be a ViTMAEForPreTraining, got {type(model).__name__}. The encoder alone "
            "(ViTMAEModel) cannot paint."
        )
    _check_config(config)
    state = model.state_dict()
    with torch.random.fork_rng(devices=[]):
        ours = MaskedAutoencoder(
            config.num_channels, _side(config.image_size), patch=_side(config.patch_size), width=config.hidden_size,
            heads=config.num_attention_heads, depth=config.num_hidden_layers,
            decoder_width=config.decoder_hidden_size, decoder_heads=config.decoder_num_attention_heads,
            decoder_depth=config.decoder_num_hidden_layers, mask_ratio=config.mask_ratio,
            norm_pix=config.norm_pix_loss, positions=False, eps=config.layer_norm_eps, hidden=config.intermediate_size,
            decoder_hidden=config.decoder_intermediate_size,
        )  # fmt: skip
    ours.load_state_dict(_ours(state, ours))
    weight = next(model.parameters())
    return ours.to(weight.device, weight.dtype).train(model.training)


def to_huggingface(model: MaskedAutoencoder) -> Any:
    """Ours as Hugging Face's ``ViTMAEForPreTraining``: a copy, the same outputs up to rounding. Needs ``lisse[hf]``."""
    if not isinstance(model, MaskedAutoencoder):
        raise TypeError(
            f"to_huggingface: model must be a MaskedAutoencoder, got {type(model).__name__}. masked_network(model) "
            "finds the one inside."
        )
    attention: Any = model.blocks[0].attn
    if not attention.plain:
        raise ValueError(
            f"to_huggingface: model must have the ordinary attention, got {attention.reading!r}"
            f"{' with a norm of queries and keys' if attention.q_norm is not None else ''}. Hugging Face has no other."
        )
    transformers = extra("transformers", "hf", "to_huggingface")
    width, decoder = model.norm.weight.numel(), model.decoder_norm.weight.numel()
    first: Any = model.decoder_blocks[0] if len(model.decoder_blocks) else None
    heads = 1 if first is None else first.attn.heads
    config = transformers.ViTMAEConfig(
        hidden_size=width, num_hidden_layers=len(model.blocks), num_attention_heads=attention.heads,
        intermediate_size=model.hidden, layer_norm_eps=model.norm.eps, image_size=model.size, patch_size=model.patch,
        num_channels=model.in_channels, decoder_num_attention_heads=heads, decoder_hidden_size=decoder,
        decoder_num_hidden_layers=len(model.decoder_blocks), decoder_intermediate_size=model.decoder_hidden,
        mask_ratio=model.mask_ratio, norm_pix_loss=model.norm_pix,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        copy = transformers.ViTMAEForPreTraining(config)
    state, entries = model.state_dict(), {}
    for name, other in _pairs(model, copy.state_dict()):
        if isinstance(name, tuple):
            stem, part, end = name
            entries[other] = state[f"{stem}.qkv.{end}"].chunk(3)["qkv".index(part)]
        else:
            entries[other] = state[name]
    copy.load_state_dict(entries)
    weight = next(model.parameters())
    return copy.to(weight.device, weight.dtype).train(model.training)


def _ours(state: Mapping[str, Tensor], model: MaskedAutoencoder) -> dict[str, Tensor]:
    parts: dict[str, dict[str, Tensor]] = {}
    entries: dict[str, Tensor] = {}
    for name, other in _pairs(model, state):
        if isinstance(name, tuple):
            stem, part, end = name
            parts.setdefault(f"{stem}.qkv.{end}", {})[part] = state[other]
        else:
            entries[name] = state[other]
    return entries | {name: torch.cat([three[part] for part in "qkv"]) for name, three in parts.items()}


def _pairs(model: MaskedAutoencoder, state: Mapping[str, Tensor]) -> list[tuple[str | tuple[str, str, str], str]]:
    """Our entry (or (attention, one of q k v, weight or bias)) and Hugging Face's, for every tensor of the network."""
    pairs: list[tuple[str | tuple[str, str, str], str]] = []
    for ours, other in WHOLE.items():
        pairs += [(ours + end, other + end) for end in ([""] if other in state else [".weight", ".bias"])]
    for stack, paths in STACKS:
        for index in range(len(getattr(model, stack))):
            stem, names = _block(state, paths, index)
            for ours, other in names.items():
                attention, _, part = ours.partition(".")
                for end in ("weight", "bias"):
                    split = attention == "attn" and part in ("q", "k", "v")
                    entry = (f"{stack}.{index}.attn", part, end) if split else f"{stack}.{index}.{ours}.{end}"
                    pairs.append((entry, f"{stem}.{other}.{end}"))
    missing = [other for _, other in pairs if other not in state]
    if missing:
        raise ValueError(
            f"from_huggingface: model must have the tensors of ViTMAEForPreTraining, got none called "
            f"{', '.join(missing[:3])}. Load it with its own class."
        )
    return pairs


def _block(state: Mapping[str, Tensor], paths: tuple[str, ...], index: int) -> tuple[str, dict[str, str]]:
    for path in paths:
        for names in BLOCKS:
            if f"{path}.{index}.{names['attn.q']}.weight" in state:
                return f"{path}.{index}", names
    return f"{paths[0]}.{index}", BLOCKS[0]


def _check_config(config: Any) -> None:
    wrong = [f"{key}={getattr(config, key)}" for key, fine in _SHAPE.items() if getattr(config, key) != fine]
    if wrong:
        raise ValueError(
            "from_huggingface: model must have the shape of [he2022] (GELU, biases of queries, keys and values), got "
            f"{', '.join(wrong)}. Propagation and decoder_frames need ours; the other instruments take it as it is."
        )


def _side(value: Any) -> int:
    sides = {int(side) for side in value} if isinstance(value, (list, tuple)) else {int(value)}
    if len(sides) != 1:
        raise ValueError(f"from_huggingface: model must take square images and patches, got {value}. Use square ones.")
    return sides.pop()
