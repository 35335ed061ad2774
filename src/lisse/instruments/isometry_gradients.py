"""How steep a network is at its data and beside them, and what bounds its gradients: the second half of Isometry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from lisse.maths.bounds import sample_gradient_norms, translation_gradient_norm
from lisse.maths.isometry import isometric_gradient
from lisse.maths.jacobian import jacobian_norm
from lisse.networks.attack import logits_of
from lisse.run import Run
from lisse.taps import Tap, feed, prepared, still, tapped

# How jacobian_norm and PyTorch say that a graph breaks off, or that an operation has no second derivative.
_WITHOUT = ("must depend on", "second derivatives", "does not require grad", "not implemented", "double back")


@dataclass(frozen=True)
class Steepness:
    """What was found at some samples, on or off the data; all ``[n]``, but ``norms`` by layer.

    ``slope``: norm of the cross-entropy's gradient in the representation Φ; ``jacobians``: Φ's, whole, where Φ is
    small enough.
    """

    l1: Tensor
    l2: Tensor
    slope: Tensor
    norms: dict[str, Tensor]
    converged: dict[str, Tensor]
    jacobians: Tensor | None
    representation: Tensor
    points: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """As a piece of work is kept."""
        plain = {"l1": self.l1, "l2": self.l2, "slope": self.slope, "phi": self.representation, "points": self.points}
        if self.jacobians is not None:
            plain["jacobians"] = self.jacobians
        for name, value in self.norms.items():
            plain[f"norm/{name}"], plain[f"converged/{name}"] = value, self.converged[name]
        return plain

    @classmethod
    def from_tensors(cls, found: Mapping[str, Tensor]) -> Steepness:
        """Back from :meth:`tensors`."""
        norms = {key.removeprefix("norm/"): value for key, value in found.items() if key.startswith("norm/")}
        converged = {name: found[f"converged/{name}"] for name in norms}
        return cls(
            found["l1"], found["l2"], found["slope"], norms, converged, found.get("jacobians"), found["phi"],
            found["points"],
        )  # fmt: skip


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
    whole: bool,
) -> Steepness | None:
    """Gradients and Jacobians at ``points`` ``[n, …]`` with ``labels``; ``None`` where the model gives no logits.

    ``whole`` also makes Φ's Jacobians in full, one backward pass per output.
    """
    kept: dict[str, Tensor] = {}

    def on(tap: Tap, activation: Tensor) -> Tensor:
        kept[tap.name] = activation
        return activation.clone()  # an in-place activation after it must not change what was kept

    norms: dict[str, Tensor] = {}
    converged: dict[str, Tensor] = {}
    with still(run.model, statistics=run.statistics, grad=True, seed=run.seed), sdpa_kernel(SDPBackend.MATH):
        x = prepared(run.model, points).requires_grad_()
        with tapped(run.model, [*layers, *([] if phi in layers else [phi])], on):
            output = feed(run.model, x.clone())  # a network may change its input in place
        try:
            logits = logits_of(output, len(x))
        except (TypeError, ValueError):  # features, a picture, one number: there is no cross-entropy to speak of
            return None
        if int(labels.min()) < 0 or int(labels.max()) >= logits.shape[1]:
            return None
        entropy = functional.cross_entropy(logits, labels.to(run.device), reduction="sum")
        first, slope = torch.autograd.grad(entropy, [x, kept[phi.name]], retain_graph=True, allow_unused=True)
        if first is None:
            return None
        for tap in layers:
            begin = run.draw(f"steep {where} {tap.name}", start, len(x), x.shape[1:]).to(x.dtype)
            try:
                found = jacobian_norm(kept[tap.name], x, start=begin, max_iter=max_iter, tol=tol)
            except (ValueError, RuntimeError) as error:
                if any(words in str(error) for words in _WITHOUT):
                    continue
                raise
            norms[tap.name], converged[tap.name] = found.value.cpu(), found.converged.cpu()
        jacobians = _jacobians(kept[phi.name], x) if whole else None
    flat = first.detach().double().flatten(1).cpu()
    steep = torch.zeros(len(x)) if slope is None else torch.linalg.vector_norm(slope.double().flatten(1), dim=1).cpu()
    return Steepness(
        flat.abs().sum(1), torch.linalg.vector_norm(flat, dim=1), steep, norms, converged, jacobians,
        kept[phi.name].detach().double().flatten(1).cpu(), x.detach().double().flatten(1).cpu(),
    )  # fmt: skip


def _jacobians(z: Tensor, x: Tensor) -> Tensor:
    """Every sample's Jacobian ``[n, m, d]``, float64, one backward pass for each output."""
    flat = z.flatten(1)
    rows = [
        torch.autograd.grad(flat[:, place].sum(), x, retain_graph=True)[0].detach().flatten(1)
        for place in range(flat.shape[1])
    ]
    return torch.stack(rows, 1).double().cpu()


@dataclass(frozen=True)
class Gradients:
    """The isometric loss of a cloud at Φ: gradients of samples and of a translation, and their bounds."""

    samples: Tensor
    sample_bounds: Tensor
    translation: float
    translation_bound: float
    translation_printed: float
    steep: Tensor


def isometric_gradients(x: Tensor, z: Tensor, jacobians: Tensor, labels: Tensor | None) -> Gradients:
    """Everything of eq. (6) and (14), measured and bounded, from the Jacobians themselves: exact, no iteration."""
    steep = torch.linalg.matrix_norm(jacobians, ord=2)
    gradient = isometric_gradient(x, z, jacobians, labels)
    k = float(steep.max())
    corrected = translation_gradient_norm(x, z, k, labels, local_norm=k)
    printed = translation_gradient_norm(x, z, k, labels, variant="printed")
    return Gradients(
        torch.linalg.vector_norm(gradient, dim=1), sample_gradient_norms(x, z, steep, labels),
        float(torch.linalg.vector_norm(gradient.sum(0))), corrected.value, printed.value, steep,
    )  # fmt: skip


def moved(run: Run, begin: int, stop: int, radius: float) -> Tensor:
    """Samples ``begin … stop - 1``, each moved by ``radius`` in a random direction of its own."""
    (batch,) = run.data.batches(stop - begin, start=begin, stop=stop, device=run.device)
    assert isinstance(batch.inputs, Tensor)
    if radius == 0:
        return batch.inputs
    noise = run.draw("off the data", begin, stop - begin, batch.inputs.shape[1:]).to(batch.inputs)
    size = torch.linalg.vector_norm(noise.flatten(1), dim=1).reshape(-1, *[1] * (noise.ndim - 1))
    return batch.inputs + radius * noise / size


def representation(layers: Sequence[Tap]) -> Tap:
    """Φ: the last layer before the logits; the only one where there is no other."""
    return layers[-2] if len(layers) > 1 else layers[-1]
