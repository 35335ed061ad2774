"""Two samples as measures, before and after one attention layer: what the picture of two sentences is drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lisse.instruments.contraction_pairs import Metric, Pairs, Side, tokens_of
from lisse.maths.transport import transport_plan
from lisse.networks.attention_sites import AttentionSite
from lisse.taps import Tap, still, tapped


def picture(pairs: Pairs, site: AttentionSite, metric: Metric, count: int) -> dict[str, np.ndarray]:
    """Arrays of the first ``count`` pairs at one layer ([vuckovic2021] fig. 1).

    Per pair k and moment (``before``, ``after``): ``pair/k/MOMENT`` ``[n + m, 2]``, the tokens of both sides on their
    two principal axes; ``pair/k/MOMENT/plan`` ``[n, m]``, the optimal coupling; ``pair/k/MOMENT/distance``, its cost.
    ``pair/k/first`` and ``pair/k/second`` name the tokens.
    """
    run = pairs.run
    moments = {site.entry: "before", site.out: "after"}
    found: dict[str, np.ndarray] = {}
    first, second = pairs.sides(0, count)
    kept: list[dict[Tap, list[Tensor]]] = []
    with still(run.model, statistics=run.statistics, seed=run.seed):
        for side in (first, second):
            seen: dict[Tap, list[Tensor]] = {}

            def on(tap: Tap, activation: Tensor, side: Side = side, seen: dict[Tap, list[Tensor]] = seen) -> None:
                seen[tap] = tokens_of(activation, side.valid(tap, activation.shape[1]), tap.name)

            with tapped(run.model, list(moments), on):
                pairs.forward(side)
            kept.append(seen)
    for k in range(count):
        for tap, moment in moments.items():
            x, y = kept[0][tap][k].double(), kept[1][tap][k].double()
            plan = transport_plan(x, y, p=metric.p, ground=metric.ground)
            found[f"pair/{k}/{moment}"] = _axes(torch.cat([x, y])).numpy()
            found[f"pair/{k}/{moment}/plan"] = plan.coupling.numpy()
            found[f"pair/{k}/{moment}/distance"] = np.array([float(plan.value)])
        for side, name, tokens in ((first, "first", kept[0]), (second, "second", kept[1])):
            found[f"pair/{k}/{name}"] = np.array(_names(run.model, side, site.entry, k, len(tokens[site.entry][k])))
    return found


def _axes(points: Tensor) -> Tensor:
    """Points on their two principal axes, signs fixed so that the same points give the same picture."""
    centred = points - points.mean(0)
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    flat = torch.zeros(len(points), 2, dtype=torch.float64)
    flat[:, : min(2, s.shape[0])] = (u * s)[:, :2]
    signs = torch.sign(flat.gather(0, flat.abs().argmax(0, keepdim=True)))
    return flat * torch.where(signs == 0, 1.0, signs)


def _names(model: Any, side: Side, tap: Tap, k: int, count: int) -> list[str]:
    """The tokens as words where the model's tokenizer knows them, else their places."""
    tokenizer = getattr(getattr(model, "lisse", None), "tokenizer", None)
    ids = side.inputs.get("input_ids") if isinstance(side.inputs, dict) else None
    if ids is not None:
        row = ids[k].cpu()
        row = row[side.valid(tap, len(row))[k]]
        if len(row) == count:
            words = getattr(tokenizer, "convert_ids_to_tokens", None)
            return [str(word) for word in (words(row.tolist()) if words else row.tolist())]
    return [str(place) for place in range(count)]
