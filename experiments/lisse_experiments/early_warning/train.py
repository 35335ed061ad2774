"""One training of a small Transformer, with its loss at every step and what was watched of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lisse.instruments import Extremes, Sensitivity
from lisse.profile import Profile
from lisse.run import Watch
from lisse_experiments.early_warning.plan import NORMS, Settings, Training, rate

BYTES = 256


def network(plan: Settings, training: Training) -> nn.Module:
    """A Llama, or with norms of queries and keys a Qwen3, with weights from the training's seed."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": BYTES, "hidden_size": plan.width, "intermediate_size": 4 * plan.width,
        "num_hidden_layers": plan.layers, "num_attention_heads": plan.heads, "num_key_value_heads": plan.heads,
        "head_dim": plan.width // plan.heads, "max_position_embeddings": plan.length, "use_cache": False,
        "attn_implementation": "eager", "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(training.seed)
        if training.way in NORMS:
            return Qwen3ForCausalLM(Qwen3Config(**sizes))
        return LlamaForCausalLM(LlamaConfig(**sizes))


def pieces(corpus: bytes, length: int) -> Tensor:
    """``[n, length]`` bytes of a text, one piece behind the other."""
    values = torch.frombuffer(bytearray(corpus), dtype=torch.uint8).long()
    return values[: len(values) // length * length].reshape(-1, length)


def followed(
    plan: Settings, training: Training, corpus: Tensor, *, device: str, tell: Callable[[int], None]
) -> dict[str, Any]:
    """Train, and look before every ``every``-th step: ``losses``, and per quantity its value at each look.

    No gradient is clipped. A training ends early once its loss is not finite.
    """
    probes, texts = corpus[: plan.watched], corpus[plan.watched :]
    model = network(plan, training).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01)
    draws = torch.Generator().manual_seed(training.seed)
    watch = Watch(
        {"input_ids": probes}, [Extremes(samples=plan.watched), Sensitivity(samples=plan.watched, points=2)],
        every=1,
    )  # fmt: skip
    losses: list[float] = []
    looks: list[dict[str, float]] = []
    for step in range(plan.steps):
        ids = texts[torch.randint(len(texts), (plan.batch,), generator=draws)].to(device)
        for group in optimiser.param_groups:
            group["lr"] = rate(plan, training, step)
        look = watched(watch.measure(model, step=step)) if step % plan.every == 0 else None
        model.train()
        optimiser.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        gradient = float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
        if look is not None:
            looks.append({"gradient": gradient, **look})
        losses.append(float(loss.detach()))
        tell(step + 1)
        if not math.isfinite(losses[-1]):
            break
        optimiser.step()
    return {"losses": losses, "looks": looks}


def watched(profile: Profile | None) -> dict[str, float]:
    """One number a quantity: the largest logit of any head, massive activation and norm of any layer, and so on."""
    if profile is None:
        return {}
    values: dict[str, list[float]] = {}
    for row in profile.rows:
        at = dict(row.at)
        if row.quantity == "largest_logit" and at.get("over") != "heads":
            continue
        if row.quantity == "massive_activation" and at.get("over") != "max":
            continue
        if row.value is not None and math.isfinite(row.value):
            values.setdefault(row.quantity, []).append(float(row.value))
    # Rank is lost where it is smallest; everything else is too large where it is largest.
    return {name: min(numbers) if name == "effective_rank" else max(numbers) for name, numbers in values.items()}
