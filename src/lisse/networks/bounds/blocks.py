"""The blocks of Transformers as sums of branches: what a block does token by token, by whatever names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lisse.networks.bounds.slopes import FUNCTIONS
from lisse.networks.bounds.tokens import linear_parts

_LIKE_LLAMA = frozenset(f"{name}DecoderLayer" for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Phi3"))
_SANDWICHED = frozenset({"Gemma2DecoderLayer", "Gemma3DecoderLayer"})
_ENDS = ("norm", "ln_f", "final_layer_norm", "final_norm", "layernorm")
_PLAIN_MLPS = (
    ("c_fc", "act", "c_proj"),
    ("fc1", "activation_fn", "fc2"),
    ("lin1", "activation", "lin2"),
    ("dense_h_to_4h", "act", "dense_4h_to_h"),
    ("dense_h_to_4h", "gelu_impl", "dense_4h_to_h"),
)


class Gated(nn.Module):
    """``down(act(gate x) ⊙ up x)``: the MLP of most language models."""

    def __init__(self, gate: nn.Module, act: nn.Module, up: nn.Module, down: nn.Module) -> None:
        super().__init__()
        self.gate, self.act, self.up, self.down = gate, act, up, down

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [n, t, d] to [n, t, d]."""
        out: Tensor = self.down(self.act(self.gate(x)) * self.up(x))
        return out


@dataclass(frozen=True)
class ResidualSum:
    """x + the sum of ``branches``, each a chain of modules, then ``end`` where there is one."""

    branches: tuple[tuple[nn.Module, ...], ...]
    end: nn.Module | None = None


def residual_sums(block: nn.Module) -> tuple[ResidualSum, ...] | None:
    """The stages of a block, or None where it is none that is known. Dropout is at rest, and left out."""
    name = type(block).__name__
    if not (type(block).__module__.startswith("transformers.") or isinstance(block, nn.TransformerEncoderLayer)):
        return None  # a model's own code may mean something else by the same names
    kids: dict[str, Any] = dict(block.named_children())
    chains: tuple[tuple[nn.Module, ...], tuple[nn.Module, ...]]
    part = kids.get
    if name in _LIKE_LLAMA:
        chains = (kids["self_attn"],), _mlp(kids["mlp"])
        return _normed(chains, (kids["input_layernorm"], kids["post_attention_layernorm"]), first=True)
    if name in _SANDWICHED:
        first = (kids["input_layernorm"], kids["self_attn"], kids["post_attention_layernorm"])
        second = (kids["pre_feedforward_layernorm"], *_mlp(kids["mlp"]), kids["post_feedforward_layernorm"])
        return ResidualSum((first,)), ResidualSum((second,))
    if name == "GPT2Block" and "crossattention" not in kids:
        return _normed(((kids["attn"],), _mlp(kids["mlp"])), (kids["ln_1"], kids["ln_2"]), first=True)
    if name == "ModernBertEncoderLayer":
        return _normed(((kids["attn"],), _mlp(kids["mlp"])), (kids["attn_norm"], kids["mlp_norm"]), first=True)
    if name in ("GPTNeoXLayer", "BloomBlock"):
        if getattr(block, "apply_residual_connection_post_layernorm", False):
            return None
        attention = (kids["input_layernorm"], part("attention") or kids["self_attention"])
        mlp = (kids["post_attention_layernorm"], *_mlp(kids["mlp"]))
        if getattr(block, "use_parallel_residual", False):
            return (ResidualSum((attention, mlp)),)
        return ResidualSum((attention,)), ResidualSum((mlp,))
    if isinstance(block, nn.TransformerEncoderLayer):
        act = block.activation if isinstance(block.activation, nn.Module) else FUNCTIONS.get(block.activation.__name__)
        if act is None:
            raise TypeError(f"of_module: {block.activation!r} in {name} has no known constant.")
        chains = (block.self_attn,), (block.linear1, act, block.linear2)
        return _normed(chains, (block.norm1, block.norm2), first=block.norm_first)
    if name.endswith("Attention") and {"self", "output"} <= kids.keys() and hasattr(kids["output"], "LayerNorm"):
        return (ResidualSum(((kids["self"], kids["output"].dense),), kids["output"].LayerNorm),)
    if (
        name.endswith("Layer")
        and {"attention", "intermediate", "output"} <= kids.keys()
        and "crossattention" not in kids
    ):
        up, down = kids["intermediate"], kids["output"]
        inner = residual_sums(kids["attention"])
        if inner and hasattr(down, "LayerNorm") and isinstance(getattr(up, "intermediate_act_fn", None), nn.Module):
            return (*inner, ResidualSum(((up.dense, up.intermediate_act_fn, down.dense),), down.LayerNorm))
    if name.endswith("Layer") and {"attention", "layernorm_before", "layernorm_after", "mlp"} <= kids.keys():
        chains = (kids["attention"],), _mlp(kids["mlp"])
        return _normed(chains, (kids["layernorm_before"], kids["layernorm_after"]), first=True)
    if name == "OPTDecoderLayer":
        chains = (kids["self_attn"],), _mlp(block)
        norms = kids["self_attn_layer_norm"], kids["final_layer_norm"]
        return _normed(chains, norms, first=bool(block.do_layer_norm_before))
    if name == "TransformerBlock" and {"attention", "sa_layer_norm", "ffn", "output_layer_norm"} <= kids.keys():
        chains = (kids["attention"],), _mlp(kids["ffn"])
        return _normed(chains, (kids["sa_layer_norm"], kids["output_layer_norm"]), first=False)
    return None


def _normed(
    chains: tuple[tuple[nn.Module, ...], tuple[nn.Module, ...]], norms: tuple[nn.Module, nn.Module], *, first: bool
) -> tuple[ResidualSum, ...]:
    """Two residual sums with their norms before the branch, or behind the sum."""
    if first:
        return tuple(ResidualSum(((norm, *chain),)) for norm, chain in zip(norms, chains, strict=True))
    return tuple(ResidualSum((chain,), norm) for norm, chain in zip(norms, chains, strict=True))


def _mlp(module: nn.Module) -> tuple[nn.Module, ...]:
    """An MLP as a chain; as it is where it is not known."""
    kids = dict(module.named_children())
    for words in _PLAIN_MLPS:
        if set(words) <= kids.keys():
            return tuple(kids[word] for word in words)
    if {"gate_proj", "up_proj", "down_proj", "act_fn"} <= kids.keys():
        return (Gated(kids["gate_proj"], kids["act_fn"], kids["up_proj"], kids["down_proj"]),)
    if {"gate_up_proj", "down_proj", "activation_fn"} <= kids.keys():
        return (Gated(*_halves(kids["gate_up_proj"], kids["activation_fn"]), kids["down_proj"]),)
    if {"Wi", "act", "Wo"} <= kids.keys():
        return (Gated(*_halves(kids["Wi"], kids["act"]), kids["Wo"]),)
    return (module,)


def _halves(layer: nn.Module, act: nn.Module) -> tuple[nn.Module, nn.Module, nn.Module]:
    """The gate, its activation and the other half of a linear map that makes both."""
    halves = []
    for weight, bias in zip(*(part.chunk(2) for part in linear_parts(layer)), strict=True):
        half = nn.Linear(weight.shape[1], len(weight), device="meta")
        half.weight, half.bias = (nn.Parameter(part.detach(), requires_grad=False) for part in (weight, bias))
        halves.append(half)
    return halves[0], act, halves[1]


def stack_of(model: nn.Module) -> tuple[nn.Module, ...] | None:
    """The known blocks of a Transformer in their order, and the norm behind them; None where it has no such stack."""
    for name, part in model.named_modules():
        if isinstance(part, nn.ModuleList) and len(part) and all(residual_sums(block) is not None for block in part):
            owners = [model.get_submodule(owner) for owner in _owners(name)]
            ends = [getattr(owner, word, None) for owner in owners for word in _ENDS]
            return (*part, *[end for end in ends if isinstance(end, nn.Module)][:1])
    return None


def _owners(name: str) -> list[str]:
    """The module that holds ``name``, and the one that holds that."""
    owner = name.rpartition(".")[0]
    return [owner, owner.rpartition(".")[0]]
