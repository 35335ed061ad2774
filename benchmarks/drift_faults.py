"""Faults planted in networks, and what `lisse drift` says of them: the layer, the part, and the change of the answer.

Six families with random weights (biases drawn too, so that one can be dropped), and trained networks: ResNet-20 and
ResNet-56 from `LISSE_DATA`, MiniLM from `--minilm FOLDER`. Every family gets every fault that it has a place for, in
blocks drawn with the seed. Beside them what must raise no alarm: the same function with heads or hidden units permuted,
another precision, nothing at all. A case is measured once and kept in `--cases FILE` (JSON lines): run again to go on.

    python benchmarks/drift_faults.py [--rounds 2] [--families llama,vit] [--faults swapped,8-bit] [--minilm FOLDER]
                                      [--cases FILE] [--write]

About a quarter of an hour of one core for two rounds. `layer`: the first layer that parts is the right one. `part`:
right too (faults in a whole block have none). `factor 2`: the change of A's answer where that layer alone is B's,
beside B's true change. A fault whose answer stays within the noise does not count.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from timing import publish
from torch import Tensor, nn

import lisse
from lisse.instruments.drift import Drift

SAMPLES, TOKENS, BLOCKS = 32, 12, 4
LOOK = Drift(samples=SAMPLES, noise=24, swaps=16, alone=True, likeness=False)


@dataclass(frozen=True)
class Family:
    """A network, its data, and where its parts are: names with ``{}`` for the block, keyed by what they are."""

    name: str
    model: nn.Module
    data: Any
    blocks: tuple[str, ...]
    spots: Mapping[str, str]
    heads: int = 0


@dataclass(frozen=True)
class Fault:
    """A change of a network's block, the part it lies in (``""``: several) and the layer it must be found in.

    ``dtype``: both networks are in it.
    """

    name: str
    plant: Callable[[Family, nn.Module, str, torch.Generator], None]
    part: str
    layer: str = "{}"
    needs: tuple[str, ...] = ()
    batch: int = 32
    dtype: torch.dtype | None = None


# -- families ----------------------------------------------------------------------------------------------------------


def drawn(model: nn.Module, seed: int) -> nn.Module:
    """The model in evaluation mode, its vectors (biases, norms) drawn too, its statistics as of some data."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1, generator=generator)
                module.running_var.uniform_(0.5, 1.5, generator=generator)
    return model.eval()


def sentences(vocabulary: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, vocabulary, (SAMPLES, TOKENS), generator=generator)
    mask = torch.ones_like(ids)
    mask[: SAMPLES // 2, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask}


class Normalised(nn.Module):
    """Pictures minus a mean, over a deviation."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.mean, self.deviation, self.size, self.order = 0.45, 0.25, 32, [0, 1, 2]

    def forward(self, images: Tensor) -> Any:
        if self.size != images.shape[-1]:
            small = nn.functional.interpolate(images, size=self.size, mode="bilinear")
            images = nn.functional.interpolate(small, size=images.shape[-1], mode="bilinear")
        return self.network((images[:, self.order] - self.mean) / self.deviation)


BERT = {
    "query": "{}.attention.self.query", "key": "{}.attention.self.key", "value": "{}.attention.self.value",
    "out": "{}.attention.output.dense", "up": "{}.intermediate.dense", "down": "{}.output.dense",
    "norm": "{}.attention.output.LayerNorm", "activation": "{}.intermediate.intermediate_act_fn",
    "embedding": "embeddings.word_embeddings", "positions": "embeddings.position_embeddings",
    "scaled": "{}.attention.self",
}  # fmt: skip
LLAMA = {
    "query": "{}.self_attn.q_proj", "key": "{}.self_attn.k_proj", "value": "{}.self_attn.v_proj",
    "out": "{}.self_attn.o_proj", "up": "{}.mlp.up_proj", "down": "{}.mlp.down_proj", "norm": "{}.input_layernorm",
    "activation": "{}.mlp.act_fn", "embedding": "model.embed_tokens", "head": "lm_head", "rotary": "model.rotary_emb",
    "scaled": "{}.self_attn", "folded": "{}.post_attention_layernorm",
}  # fmt: skip
GPT2 = {
    "fused": "{}.attn.c_attn", "out": "{}.attn.c_proj", "up": "{}.mlp.c_fc", "down": "{}.mlp.c_proj", "norm": "{}.ln_1",
    "activation": "{}.mlp.act", "embedding": "transformer.wte", "head": "lm_head", "positions": "transformer.wpe",
}  # fmt: skip
VIT = {
    "query": "{}.attention.q_proj", "key": "{}.attention.k_proj", "value": "{}.attention.v_proj",
    "out": "{}.attention.o_proj", "up": "{}.mlp.fc1", "down": "{}.mlp.fc2", "norm": "{}.layernorm_before",
    "activation": "{}.mlp.activation_fn", "embedding": "network.vit.embeddings.patch_embeddings.projection",
    "head": "network.classifier", "picture": "", "scaled": "{}.attention",
}  # fmt: skip
RESNET = {"convolution": "{}.conv2", "norm": "{}.bn1", "activation": "{}.relu1", "embedding": "network.conv1",
          "head": "network.linear", "picture": "", "batch norm": "{}.bn1"}  # fmt: skip


def families(seed: int, minilm: str | None) -> Iterator[Family]:
    """All of them, random ones first."""
    import transformers as hf

    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "num_hidden_layers": BLOCKS, "num_attention_heads": 4, "intermediate_size": 64}
    words = {"vocab_size": 60, "max_position_embeddings": 64, "tie_word_embeddings": False, "pad_token_id": 0}
    bert = hf.BertForSequenceClassification(hf.BertConfig(**sizes, **words, num_labels=5))
    blocks = tuple(f"bert.encoder.layer.{index}" for index in range(BLOCKS))
    spots = BERT | {key: f"bert.{BERT[key]}" for key in ("embedding", "positions")} | {"head": "classifier"}
    yield Family("BERT", drawn(bert, seed), sentences(60, seed), blocks, spots, 4)
    shape = {"n_embd": 32, "n_layer": BLOCKS, "n_head": 4, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}
    gpt = hf.GPT2LMHeadModel(hf.GPT2Config(**shape, vocab_size=60, tie_word_embeddings=False))
    blocks = tuple(f"transformer.h.{index}" for index in range(BLOCKS))
    yield Family("GPT-2", drawn(gpt, seed), sentences(60, seed), blocks, GPT2, 4)
    blocks = tuple(f"model.layers.{index}" for index in range(BLOCKS))
    llama = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, **words))
    yield Family("Llama", drawn(llama, seed), sentences(60, seed), blocks, {**LLAMA, "turned": ""}, 4)
    qwen = hf.Qwen3ForCausalLM(hf.Qwen3Config(**sizes, **words, num_key_value_heads=4, head_dim=8))
    yield Family("Qwen3", drawn(qwen, seed), sentences(60, seed), blocks, {**LLAMA, "norm": "{}.self_attn.q_norm"}, 4)
    vit = hf.ViTForImageClassification(hf.ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=5))
    blocks = tuple(f"network.vit.layers.{index}" for index in range(BLOCKS))
    pictures = lisse.load_data("cifar10", limit=SAMPLES, seed=seed)
    yield Family("ViT", drawn(Normalised(vit), seed), pictures, blocks, VIT, 4)
    stages = {20: 3, 56: 9}
    yield resnet("ResNet-20, random", drawn(lisse.load_model("zoo:resnet20").network, seed), pictures, stages[20])
    for depth, name in ((20, "resnet20-12fca82f.th"), (56, "resnet56-4bfd9763.th")):
        weights = Path(os.environ.get("LISSE_DATA", "")) / "checkpoints" / name
        if weights.exists():
            model = lisse.load_model(f"zoo:resnet{depth}?weights={weights}")
            yield resnet(f"ResNet-{depth}, trained", model.network, pictures, stages[depth])
    if minilm:
        model = lisse.load_model(f"hf:{minilm}")
        blocks = tuple(f"encoder.layer.{index}" for index in range(6))
        yield Family("MiniLM, trained", model.eval(), sentences(20000, seed), blocks, BERT, 12)


def resnet(name: str, model: nn.Module, pictures: Any, depth: int) -> Family:
    blocks = tuple(f"network.layer{stage}.{index}" for stage in (1, 2, 3) for index in range(depth))
    return Family(name, Normalised(model).eval(), pictures, blocks, RESNET)


# -- faults ------------------------------------------------------------------------------------------------------------


def spot(family: Family, model: nn.Module, key: str, block: str) -> nn.Module:
    return model.get_submodule(family.spots[key].format(block))


def noisy(key: str, size: float = 0.05) -> Callable[..., None]:
    """A stale copy of a matrix: ``size`` of its own deviation added."""

    def plant(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
        weight = spot(family, model, key, block).weight
        weight.add_(size * weight.std() * torch.randn(weight.shape, generator=generator))

    return plant


def rounded(bits: int) -> Callable[..., None]:
    """Every matrix of the block in so many bits, with a scale for each row."""

    def plant(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
        for weight in model.get_submodule(block).parameters():
            if weight.ndim > 1:
                rows = weight.flatten(1)
                scale = rows.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
                weight.copy_(((rows / scale).round() * scale).reshape(weight.shape))

    return plant


def tuned(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
    for weight in model.get_submodule(block).parameters():
        weight.add_(0.01 * weight.abs().mean() * torch.randn(weight.shape, generator=generator))


def transposed(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
    weight = spot(family, model, "out", block).weight
    weight.copy_(weight.T.clone())


def without_bias(key: str) -> Callable[..., None]:
    def plant(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
        spot(family, model, key, block).bias.zero_()

    return plant


def low_rank(key: str, rank: int = 2, size: float = 0.05) -> Callable[..., None]:
    def plant(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
        weight = spot(family, model, key, block).weight
        left, right = (torch.randn(width, rank, generator=generator) for width in weight.shape)
        weight.add_((size * weight.std() * left @ right.T).to(weight.dtype))

    return plant


def other_epsilon(factor: float) -> Callable[..., None]:
    def plant(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
        norm = spot(family, model, "norm", block)
        name = next(name for name in ("variance_epsilon", "eps") if hasattr(norm, name))
        setattr(norm, name, factor * max(getattr(norm, name), 1e-6))

    return plant


def matrix_rounded(key: str) -> Callable[..., None]:
    """One matrix in 8 bits, a scale for each row."""

    def plant(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
        weight = spot(family, model, key, block).weight
        scale = weight.flatten(1).abs().amax(1).reshape(-1, *[1] * (weight.ndim - 1)) / 127
        weight.copy_((weight / scale).round() * scale)

    return plant


def row_dropped(key: str) -> Callable[..., None]:
    """One unit's weights are zero."""

    def plant(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
        spot(family, model, key, block).weight[1].zero_()

    return plant


def tanh_activation(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
    """The approximation of GELU, or GELU itself where the network has the approximation."""
    activation = spot(family, model, "activation", block)
    name = type(activation).__name__.lower()
    if "gelu" not in name:
        raise NotImplementedError
    parent, _, child = family.spots["activation"].format(block).rpartition(".")
    form = "none" if "new" in name or "tanh" in name else "tanh"
    setattr(model.get_submodule(parent), child, nn.GELU(approximate=form))


def positions_shifted(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
    weight = spot(family, model, "positions", block).weight
    weight.copy_(weight.roll(1, 0))


def other_scale(family: Family, model: Any, block: str, generator: torch.Generator) -> None:
    module: Any = spot(family, model, "scaled", block)
    module.scaling = 1.1 * module.scaling


def other_statistics(family: Family, model: Any, block: str, generator: torch.Generator) -> None:
    norm: Any = spot(family, model, "batch norm", block)
    norm.running_var.mul_(1.02)


class TurnedHead(nn.Linear):
    """Queries or keys whose first head goes round by another base, before the network's own base turns all."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        size = 8
        half = torch.arange(0, size, 2).float() / size
        angle = torch.arange(y.shape[1])[:, None] * (500000.0**-half - 10000.0**-half)
        first, second = y[..., : size // 2], y[..., size // 2 : size]
        turned = (first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos())
        return torch.cat([*turned, y[..., size:]], -1)


def head_turned(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
    for key in ("query", "key"):
        spot(family, model, key, block).__class__ = TurnedHead


def other_activation(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
    parent, _, name = family.spots["activation"].format(block).rpartition(".")
    smooth = "gelu" in type(spot(family, model, "activation", block)).__name__.lower()
    setattr(model.get_submodule(parent), name, nn.SiLU() if smooth else nn.GELU())


def answering(key: str, change: Callable[[Tensor], Tensor]) -> Callable[..., None]:
    """A module whose answer is changed on its way."""

    def plant(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
        spot(family, model, key, block).register_forward_hook(lambda _, args, output: change(output))

    return plant


def through(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda values: values.to(dtype).to(values.dtype)


def left_on(values: Tensor) -> Tensor:
    return nn.functional.dropout(values, 0.02, training=True)


class QuickGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (1.702 * x).sigmoid()


def quick_gelu(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
    parent, _, name = family.spots["activation"].format(block).rpartition(".")
    if "gelu" not in type(spot(family, model, "activation", block)).__name__.lower():
        raise NotImplementedError
    setattr(model.get_submodule(parent), name, QuickGelu())


def stored_in_bfloat16(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
    for weight in model.get_submodule(block).parameters():
        weight.copy_(weight.bfloat16())


def exchanged(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
    """A block and the next one in each other's place, where they are of one shape."""
    index = family.blocks.index(block) + 1
    if index == len(family.blocks):
        raise NotImplementedError
    parts = [model.get_submodule(name) for name in (block, family.blocks[index])]
    first, second = (dict(part.state_dict()) for part in parts)
    if any(first[name].shape != second[name].shape for name in first):
        raise NotImplementedError
    first = {name: value.clone() for name, value in first.items()}
    parts[0].load_state_dict(second)
    parts[1].load_state_dict(first)


def masked_otherwise(mask: Callable[[Tensor], Tensor | None]) -> Callable[..., None]:
    """Attention of a block that is given another mask, made of its states ``[n, t, d]``."""

    def plant(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            states = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.ndim == 3)
            rest = list(args[1:])
            if len(args) > 1:
                rest[0] = mask(states)
                return (args[0], *rest), kwargs
            return args, kwargs | {"attention_mask": mask(states)}

        spot(family, model, "scaled", block).register_forward_pre_hook(before, with_kwargs=True)

    return plant


class OneSided(nn.Conv2d):
    """A convolution that pads at the end alone, as those of other frameworks do with a stride."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(nn.functional.pad(x, (0, 2, 0, 2)), self.weight, self.bias, self.stride)


def one_sided(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
    spot(family, model, "convolution", block).__class__ = OneSided


def rare_token(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
    """The embedding of a token that is in a quarter of the sentences."""
    if not isinstance(family.data, dict):
        raise NotImplementedError
    ids = family.data["input_ids"]
    shares = {int(token): float((ids == token).any(1).float().mean()) for token in ids.unique()}
    token = min(shares, key=lambda token: abs(shares[token] - 0.25))
    spot(family, model, "embedding", block).weight[token].mul_(0.5)


def rotary(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
    module: Any = spot(family, model, "rotary", block)
    size = 2 * len(module.inv_freq)
    module.inv_freq = 500000.0 ** (-torch.arange(0, size, 2).float() / size)


def heads_of(weight: Tensor, heads: int, axis: int, order: list[int]) -> None:
    size = weight.shape[axis] // heads
    rows = torch.cat([torch.arange(head * size, (head + 1) * size) for head in order])
    weight.copy_(weight.index_select(axis, rows))


def swapped(*keys: str) -> Callable[..., None]:
    """The first two heads in each other's place, in these matrices."""

    def plant(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
        order = [1, 0, *range(2, family.heads)]
        for key in keys:
            module = spot(family, model, key, block)
            heads_of(module.weight, family.heads, 1 if key == "out" else 0, order)
            if key != "out" and module.bias is not None:
                heads_of(module.bias, family.heads, 0, order)

    return plant


def permuted_units(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
    up, down = (spot(family, model, key, block) for key in ("up", "down"))
    fused = type(up).__name__ == "Conv1D"
    order = torch.randperm(up.weight.shape[1 if fused else 0], generator=generator)
    up.weight.copy_(up.weight.index_select(1 if fused else 0, order))
    if up.bias is not None:
        up.bias.copy_(up.bias[order])
    gate = getattr(getattr(model.get_submodule(block), "mlp", None), "gate_proj", None)
    if gate is not None:
        gate.weight.copy_(gate.weight[order])
    down.weight.copy_(down.weight.index_select(0 if fused else 1, order))


def by_way_of(begin: Callable[[], Any], end: Callable[[Any], Any]) -> Callable[..., None]:
    """The same network with a switch turned while it runs."""

    def plant(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
        before: list[Any] = []

        def after(*_: Any) -> None:
            end(before.pop())

        model.register_forward_pre_hook(lambda *_: before.append(begin()))
        model.register_forward_hook(after)

    return plant


def autocast(dtype: torch.dtype) -> Callable[..., None]:
    def begin() -> Any:
        context = torch.autocast("cpu", dtype)
        context.__enter__()
        return context

    return by_way_of(begin, lambda context: context.__exit__(None, None, None))


def two_threads() -> int:
    count = torch.get_num_threads()
    torch.set_num_threads(2 if count == 1 else 1)
    return count


def other_kernels() -> Any:
    flags: Any = torch.backends.mkldnn.flags(enabled=False)
    flags.__enter__()
    return flags


def eager(family: Family, model: Any, block: str, generator: torch.Generator) -> None:
    for module in model.modules():
        if hasattr(module, "set_attn_implementation"):
            module.set_attn_implementation("eager")


def channels_last(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
    model.to(memory_format=torch.channels_last)


def norm_folded(family: Family, model: nn.Module, block: str, generator: torch.Generator) -> None:
    """A norm's weights in those of the matrices behind it."""
    norm, mlp = spot(family, model, "folded", block), model.get_submodule(f"{block}.mlp")
    for name in ("gate_proj", "up_proj"):
        mlp.get_submodule(name).weight.mul_(norm.weight)
    norm.weight.fill_(1.0)


def batch_norm_folded(family: Family, model: Any, block: str, generator: torch.Generator) -> None:
    """A batch norm in the convolution before it."""
    parent = model.get_submodule(block)
    parent.conv1 = torch.nn.utils.fuse_conv_bn_eval(parent.conv1, parent.bn1)
    parent.bn1 = nn.Identity()


def other_deviation(family: Family, model: Any, block: str, generator: torch.Generator) -> None:
    model.deviation = 0.255


def other_channels(family: Family, model: Any, block: str, generator: torch.Generator) -> None:
    model.order = [2, 1, 0]


def other_mean(family: Family, model: Any, block: str, generator: torch.Generator) -> None:
    model.mean = 0.5


def other_size(family: Family, model: Any, block: str, generator: torch.Generator) -> None:
    model.size = 28


FAULTS: tuple[Fault, ...] = (
    Fault("rotary base 500,000", rotary, "attention", "model.layers.0", ("rotary",)),
    Fault("norm epsilon × 100", other_epsilon(100), "norm", needs=("norm",)),
    Fault("norm epsilon × 3", other_epsilon(3), "norm", needs=("norm",)),
    Fault("one head's rotary base", head_turned, "attention", needs=("turned",)),
    Fault("scale of attention × 1.1", other_scale, "attention", needs=("scaled",)),
    Fault("two heads' queries swapped", swapped("query"), "attention", needs=("query",)),
    Fault("block in 8 bits", rounded(8), ""),
    Fault("block in 4 bits", rounded(4), ""),
    Fault("one matrix transposed", transposed, "attention", needs=("out",)),
    Fault("one matrix stale (MLP)", noisy("down"), "MLP", needs=("down",)),
    Fault("one matrix stale (value)", noisy("value"), "attention", needs=("value",)),
    Fault("one matrix stale (fused)", noisy("fused"), "attention", needs=("fused",)),
    Fault("one convolution stale", noisy("convolution"), "convolution", needs=("convolution",)),
    Fault("norm's weight stale", noisy("norm"), "norm", needs=("norm",)),
    Fault("bias dropped", without_bias("up"), "MLP", needs=("up",)),
    Fault("bias dropped (attention)", without_bias("out"), "attention", needs=("out",)),
    Fault("one matrix in 8 bits (MLP)", matrix_rounded("down"), "MLP", needs=("down",)),
    Fault("one convolution in 8 bits", matrix_rounded("convolution"), "convolution", needs=("convolution",)),
    Fault("one unit's weights zero", row_dropped("convolution"), "convolution", needs=("convolution",)),
    Fault("one unit's weights zero (out)", row_dropped("out"), "attention", needs=("out",)),
    Fault("GELU by tanh, or not", tanh_activation, "MLP", needs=("up", "activation")),
    Fault("batch norm's variance × 1.02", other_statistics, "norm", needs=("batch norm",)),
    Fault("rank 1, small (value)", low_rank("value", 1, 0.01), "attention", needs=("value",)),
    Fault("rank 1, small (MLP)", low_rank("down", 1, 0.01), "MLP", needs=("down",)),
    Fault("rank 1 in bfloat16 (MLP)", low_rank("up", 1), "MLP", needs=("up",), dtype=torch.bfloat16),
    Fault("block in 4 bits, in bfloat16", rounded(4), "", needs=("up",), dtype=torch.bfloat16),
    Fault("another activation, in bfloat16", other_activation, "MLP", needs=("up",), dtype=torch.bfloat16),
    Fault("keys in 8-bit floats", answering("key", through(torch.float8_e4m3fn)), "attention", needs=("key",)),
    Fault("norm's answer in bfloat16", answering("norm", through(torch.bfloat16)), "norm", needs=("norm",)),
    Fault("weights of a block stored in bfloat16", stored_in_bfloat16, ""),
    Fault("sigmoid for GELU", quick_gelu, "MLP", needs=("up", "activation")),
    Fault("dropout left on, 2 %", answering("activation", left_on), "MLP", needs=("up", "activation")),
    Fault("two blocks exchanged", exchanged, ""),
    Fault("padding is looked at", masked_otherwise(lambda states: None), "attention", needs=("scaled", "positions")),
    Fault(
        "the future is looked at",
        masked_otherwise(lambda x: x.new_zeros(1, 1, x.shape[1], x.shape[1])),
        "attention",
        needs=("scaled", "rotary"),
    ),
    Fault("a convolution padded on one side", one_sided, "convolution", needs=("convolution",)),
    Fault("a rare token's embedding halved", rare_token, "embedding", "stem", ("embedding", "down", "out")),
    Fault(
        "keys in 8-bit floats, in bfloat16",
        answering("key", through(torch.float8_e5m2)),
        "attention",
        needs=("key",),
        dtype=torch.bfloat16,
    ),
    Fault("two blocks exchanged, in bfloat16", exchanged, "", needs=("up",), dtype=torch.bfloat16),
    Fault("positions shifted by one", positions_shifted, "embedding", "stem", ("positions",)),
    Fault("another activation", other_activation, "MLP", needs=("up", "activation")),
    Fault("low-rank change (value)", low_rank("value"), "attention", needs=("value",)),
    Fault("low-rank change (MLP)", low_rank("up"), "MLP", needs=("up",)),
    Fault("block fine-tuned by 1 %", tuned, ""),
    Fault("embedding stale", noisy("embedding"), "embedding", "stem", ("embedding",)),
    Fault("head stale", noisy("head"), "head", "output", ("head",)),
    Fault("another mean of the pictures", other_mean, "embedding", "stem", ("picture",)),
    Fault("another deviation of the pictures", other_deviation, "embedding", "stem", ("picture",)),
    Fault("red and blue in each other's place", other_channels, "embedding", "stem", ("picture",)),
    Fault("pictures through 28 pixels", other_size, "embedding", "stem", ("picture",)),
)
HARMLESS = (
    Fault("autocast to bfloat16", autocast(torch.bfloat16), ""),
    Fault("autocast to float16", autocast(torch.float16), ""),
    Fault("nothing", lambda *_: None, ""),
    Fault("bfloat16", lambda family, model, *_: model.bfloat16(), ""),
    Fault("float64", lambda family, model, *_: model.double(), ""),
    Fault("heads swapped in all four", swapped("query", "key", "value", "out"), "", needs=("query",)),
    Fault("hidden units permuted", permuted_units, "", needs=("up",)),
    Fault("other batches", lambda *_: None, "", batch=5),
    Fault("other batches (13)", lambda *_: None, "", batch=13),
    Fault("float16", lambda family, model, *_: model.half(), ""),
    Fault("other threads", by_way_of(two_threads, torch.set_num_threads), ""),
    Fault("other kernels", by_way_of(other_kernels, lambda flags: flags.__exit__(None, None, None)), ""),
    Fault("attention in its eager form", eager, "", needs=("out",)),
    Fault("channels last", channels_last, "", needs=("convolution",)),
    Fault("norm folded into the matrices", norm_folded, "", needs=("folded",)),
    Fault("batch norm folded", batch_norm_folded, "", needs=("batch norm",)),
    Fault("bfloat16, other batches", lambda *_: None, "", batch=5, dtype=torch.bfloat16),
    Fault("bfloat16, eager attention", eager, "", needs=("out",), dtype=torch.bfloat16),
    Fault("bfloat16, heads in all four", swapped("query", "key", "value", "out"), "", needs=("query",),
          dtype=torch.bfloat16),
    Fault("bfloat16, hidden units permuted", permuted_units, "", needs=("up",), dtype=torch.bfloat16),
    Fault("bfloat16 and float16", lambda family, model, *_: model.half(), "", needs=("up",), dtype=torch.bfloat16),
)  # fmt: skip


def case(family: Family, fault: Fault, seed: int, harmless: bool) -> dict[str, Any] | None:
    """What is said of one planted fault; ``None`` where the family has no place for it."""
    if any(key not in family.spots for key in fault.needs):
        return None
    generator = torch.Generator().manual_seed(
        int.from_bytes(hashlib.blake2b(f"{family.name} {fault.name} {seed}".encode(), digest_size=4).digest(), "little")
    )
    block = family.blocks[int(torch.randint(len(family.blocks), (1,), generator=generator))]
    a = family.model if fault.dtype is None else copy.deepcopy(family.model).to(fault.dtype)
    b = copy.deepcopy(a)
    try:
        with torch.no_grad():
            fault.plant(family, b, block, generator)
    except (AttributeError, NotImplementedError):
        return None  # no bias to drop, for one
    look = replace(LOOK, alone=not harmless)
    profile = lisse.drift(a, b, family.data, instrument=look, batch=fault.batch, seed=seed)
    first = next((row for row in profile.rows if row.quantity == "first_parting"), None)
    answer = next(row for row in profile.rows if row.quantity == "drift" and row.depth == 1)
    alone = {row.layer: row.value for row in profile.rows if row.quantity == "alone"}
    layer = fault.layer.format(block)
    return {
        "family": family.name,
        "fault": fault.name,
        "seed": seed,
        "harmless": harmless,
        "layer": layer,
        "part": fault.part,
        "said": profile.notes[0],
        "first": None if first is None else first.layer,
        "first_part": None if first is None else first.at["part"],
        "change": answer.value,
        "predicted": None
        if first is None
        else alone.get(first.layer, answer.value if first.layer == "output" else None),
    }


# -- the table ---------------------------------------------------------------------------------------------------------


def table(cases: list[dict[str, Any]]) -> list[str]:
    """The sums, family by family, and what was missed."""
    lines = [
        "| network | faults | in the noise | first layer right | part right | change within factor 2 | false alarms |",
        "|---|---|---|---|---|---|---|",
    ]
    names = list(dict.fromkeys(entry["family"] for entry in cases))
    for name in (*names, "all"):
        rows = [entry for entry in cases if name in (entry["family"], "all")]
        faults = [entry for entry in rows if not entry["harmless"]]
        seen = [entry for entry in faults if not in_noise(entry)]
        parts = [entry for entry in seen if entry["part"]]
        quiet = [entry for entry in rows if entry["harmless"]]
        lines.append(
            f"| {name} | {len(faults)} | {len(faults) - len(seen)} | {sum(map(layer_right, seen))} of {len(seen)} | "
            f"{sum(map(part_right, parts))} of {len(parts)} | {sum(map(within, seen))} of {len(seen)} | "
            f"{sum(entry['first'] is not None for entry in quiet)} of {len(quiet)} |"
        )
    missed = [
        f"- {entry['family']}, {entry['fault']} at {entry['layer']} (seed {entry['seed']}): {entry['said']}"
        for entry in cases
        if (entry["harmless"] and entry["first"] is not None)
        or (
            not (entry["harmless"] or in_noise(entry))
            and not (layer_right(entry) and (part_right(entry) or not entry["part"]) and within(entry))
        )
    ]
    return [*lines, "", f"Missed, {len(missed)} in all:", "", *missed]


def in_noise(entry: Mapping[str, Any]) -> bool:
    return "does not part" in entry["said"]


def layer_right(entry: Mapping[str, Any]) -> bool:
    return bool(entry["first"] == entry["layer"])


def part_right(entry: Mapping[str, Any]) -> bool:
    return layer_right(entry) and bool(entry["first_part"] == entry["part"])


def within(entry: Mapping[str, Any]) -> bool:
    predicted = entry["predicted"]
    return bool(predicted) and abs(math.log2(predicted / entry["change"])) <= 1


def main() -> None:
    """Measure what is not measured yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="networks of every family, by seed")
    parser.add_argument("--faults", default="", help="only these, by a part of their name, with commas between")
    parser.add_argument("--families", default="", help="only these, by a part of their name, with commas between")
    parser.add_argument("--minilm", help="folder of all-MiniLM-L6-v2, as Hugging Face writes it")
    parser.add_argument("--cases", type=Path, default=Path(tempfile.gettempdir()) / "drift-faults.jsonl")
    parser.add_argument("--write", action="store_true", help="benchmarks/results/drift-faults.md")
    options = parser.parse_args()
    wanted, named = ([word.lower() for word in text.split(",") if word] for text in (options.families, options.faults))
    lines = options.cases.read_text("utf-8").splitlines() if options.cases.exists() else []
    cases = [json.loads(line) for line in lines]
    finished = {(entry["family"], entry["fault"], entry["seed"]) for entry in cases}
    for seed in range(options.rounds):
        for family in families(seed, options.minilm):
            if wanted and not any(word in family.name.lower() for word in wanted):
                continue
            for fault in (*FAULTS, *HARMLESS):
                if (family.name, fault.name, seed) in finished:
                    continue
                if named and not any(word in fault.name.lower() for word in named):
                    continue
                entry = case(family, fault, seed, fault in HARMLESS)
                if entry is not None:
                    cases.append(entry)
                    print(f"{family.name}, {fault.name} ({entry['layer']}): {entry['said']}", flush=True)
                    with options.cases.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(entry) + "\n")
    about = f"{SAMPLES} samples, {LOOK.noise} for noise, {LOOK.swaps} for swaps; seeds 0 to {options.rounds - 1}."
    body = "\n".join([about, "", *table(cases)])
    publish("drift-faults", "Planted faults", body, write=options.write, packages=["transformers"])


if __name__ == "__main__":
    main()
