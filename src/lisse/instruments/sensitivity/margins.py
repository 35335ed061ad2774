"""How far samples are from the boundary of the network's answer to them, by the margins' gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from lisse.instruments.jacobians import graph
from lisse.instruments.origin import no_derivative
from lisse.maths.margin import competing_margins, margin_distance
from lisse.networks.answers import are_classes, hits, logits_of, unsquashed
from lisse.run import Run

MOST_CLASSES = 10  # those of the least margins whose gradients are taken
NORMS = {"l2": 2, "linf": 1}  # distances in a norm, and the order of the dual one, of gradients


def no_margins(run: Run) -> str | None:
    """Why there is no distance to a boundary; ``None`` where there may be."""
    if run.data.targets is None:
        return "there are no labels"
    if (reason := no_derivative(run)) is not None:
        return reason
    if run.taps.head is None:
        return "the network ends in its last block, which is no answer"
    if any(tap.mixes for tap in run.taps):
        return "a sample's answer changes with the samples beside it"
    return None


def margin_distances(run: Run, start: int, stop: int) -> dict[str, Tensor]:
    """Estimated distances ``[stop - start]`` by norm, in the unit of the input; nothing without logits for the labels.

    0 where the answer is wrong: a network that answers all alike is far from its boundary, and that is no merit. Of
    all classes, those whose margins are least (``MOST_CLASSES`` of them). Nothing is farther than the box that holds
    the samples is wide: beyond it there is no input to speak of.
    """
    (batch,) = run.data.batches(stop - start, start=start, stop=stop, device=run.device)
    with graph(run, [], batch.inputs) as (x, _, output):
        try:
            logits = unsquashed(logits_of(output, len(x)))
        except (TypeError, ValueError):  # features, a picture, one number: there is no decision
            return {}
        if not are_classes(run.data.targets, logits.shape[1]) or not logits.requires_grad:
            return {}
        assert batch.targets is not None  # no_margins() has looked
        right = hits(logits, batch.targets)
        margins = competing_margins(logits, logits.argmax(1))
        margins = margins.sort(1).values[:, :MOST_CLASSES]
        slopes = [
            torch.autograd.grad(margins[:, index].sum(), x, retain_graph=True)[0].flatten(1)
            for index in range(margins.shape[1])
        ]
    distances = {}
    for norm, dual in NORMS.items():
        lengths = torch.stack([torch.linalg.vector_norm(slope, ord=dual, dim=1) for slope in slopes], 1)
        distances[norm] = torch.where(right, margin_distance(margins.detach().double(), lengths.double()), 0.0).cpu()
    return distances
