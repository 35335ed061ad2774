"""How steep a network is at its data and beside them, and what bounds its gradients: the second half of Isometry."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from lisse.instruments.jacobians import graph, local_norm
from lisse.networks.answers import are_classes, logits_of
from lisse.run import Run
from lisse.taps import Tap


def steepness(
    run: Run,
    points: Tensor,
    labels: Tensor,
    layers: Sequence[Tap],
    phi: Tap,
    *,
    start: int,
    where: str,
    max_iter: int,
    tol: float,
    jacobians: bool,
) -> dict[str, Tensor]:
    """Gradients and Jacobians at ``points`` ``[n, …]`` with ``labels``; nothing where the model gives no logits.

    ``l1``, ``l2``: norms of the cross-entropy's gradient in the input, ``slope``: in the representation Φ; ``norm/…``:
    of the Jacobian of each layer; all ``[n]``. With ``jacobians`` also those of Φ in full, one backward pass per
    output, and ``points`` and ``phi``: the input and Φ, flat.
    """
    taps = [*layers, *([] if phi in layers else [phi])]
    tensors: dict[str, Tensor] = {}
    with graph(run, taps, points) as (x, activations, output):
        try:
            logits = logits_of(output, len(x))
        except (TypeError, ValueError):  # features, a picture, one number: there is no cross-entropy to speak of
            return {}
        if not are_classes(labels, logits.shape[1]):
            return {}
        z = activations[phi.name]
        entropy = functional.cross_entropy(logits, labels.to(run.device), reduction="sum")
        gradient, slope = torch.autograd.grad(entropy, [x, z], retain_graph=True, allow_unused=True)
        if gradient is None:
            return {}
        for tap in layers:
            first = run.draw(f"steep {where} {tap.name}", start, len(x), x.shape[1:]).to(x.dtype)
            norm = local_norm(activations[tap.name], x, start=first, max_iter=max_iter, tol=tol)
            if norm is not None:
                tensors[f"norm/{tap.name}"] = norm.value
        if jacobians:
            tensors |= {"jacobians": _jacobians(z, x), "phi": _flat(z), "points": _flat(x)}
    flat = _flat(gradient)
    tensors["l1"], tensors["l2"] = flat.abs().sum(1), torch.linalg.vector_norm(flat, dim=1)
    tensors["slope"] = torch.zeros(len(x)) if slope is None else torch.linalg.vector_norm(_flat(slope), dim=1)
    return {name: values.cpu() for name, values in tensors.items()}


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().double().flatten(1)


def _jacobians(z: Tensor, x: Tensor) -> Tensor:
    """Every sample's Jacobian ``[n, m, d]``, float64, one backward pass for each output."""
    flat = z.flatten(1)
    rows = [
        torch.autograd.grad(flat[:, index].sum(), x, retain_graph=True)[0].detach().flatten(1)
        for index in range(flat.shape[1])
    ]
    return torch.stack(rows, 1).double()


def moved(run: Run, start: int, stop: int, radius: float) -> Tensor:
    """Samples ``start … stop - 1``, each moved by ``radius`` in a random direction of its own."""
    (batch,) = run.data.batches(stop - start, start=start, stop=stop, device=run.device)
    assert isinstance(batch.inputs, Tensor)
    if radius == 0:
        return batch.inputs
    noise = run.draw("off the data", start, stop - start, batch.inputs.shape[1:]).to(batch.inputs)
    size = torch.linalg.vector_norm(noise.flatten(1), dim=1).reshape(-1, *[1] * (noise.ndim - 1))
    return batch.inputs + radius * noise / size
