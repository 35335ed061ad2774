"""A network's graph at some samples, and norms of its Jacobians there: what Sensitivity and Isometry share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lisse.maths.jacobian import JacobianNorm, jacobian_norm
from lisse.run import Run
from lisse.taps import Tap, feed, prepared, still, tapped

# How jacobian_norm and PyTorch say that a graph breaks off, or that an operation has no second derivative.
_WITHOUT = ("must depend on", "second derivatives", "does not require grad", "not implemented", "double back")


@contextmanager
def graph(
    run: Run, taps: Sequence[Tap], inputs: Any, source: Tap | None = None
) -> Iterator[tuple[Any, dict[str, Tensor], Any]]:
    """The inputs as the model takes them, activations by layer with their graph, and the model's answer.

    Derivatives may be taken inside the block. The graph begins at the inputs, or at the activation of ``source``.
    """
    activations: dict[str, Tensor] = {}

    def on(tap: Tap, activation: Tensor) -> Tensor:
        if source is not None and tap.name == source.name:
            activation = activation.detach().requires_grad_()
        activations[tap.name] = activation
        return activation.clone()  # an in-place activation after it must not change what was read

    # Fused attention has no second derivative; the plain formula has.
    with (
        still(run.model, statistics=run.statistics, grad=True, seed=run.seed),
        sdpa_kernel(SDPBackend.MATH),
        _constant(run.model),
    ):
        x = prepared(run.model, inputs)
        if source is None:
            x.requires_grad_()
        with tapped(run.model, taps, on):
            output = feed(run.model, x.clone() if source is None else x)  # a network may change its input in place
        yield x, activations, output


def local_norm(y: Tensor, x: Tensor, *, start: Tensor, max_iter: int, tol: float) -> JacobianNorm | None:
    """:func:`~lisse.maths.jacobian.jacobian_norm`, or ``None`` where ``y`` has no derivative in ``x``."""
    try:
        return jacobian_norm(y, x, start=start, max_iter=max_iter, tol=tol)
    except (ValueError, RuntimeError) as error:
        if any(words in str(error) for words in _WITHOUT):
            return None
        raise


@contextmanager
def _constant(model: nn.Module) -> Iterator[None]:
    """Without a gradient in the weights: the graph then keeps none of what only that would need."""
    weights = [weight for weight in model.parameters() if weight.requires_grad and weight.is_leaf]
    try:
        for weight in weights:
            weight.requires_grad_(False)
        yield
    finally:
        for weight in weights:
            weight.requires_grad_()


def samples_at_once(run: Run, max_iter: int, *, most: int | None = None) -> int:
    """How many samples fit: the Lanczos vectors and the graph within the run's memory, ``most`` or a batch at most."""
    most = (8 if run.device.type == "cpu" else 32) if most is None else most
    return max(1, min(most, run.batch, _room(run) // _sample_bytes(run, max_iter)))


def graph_bytes(run: Run, max_iter: int, *, most: int | None = None) -> int:
    """What they hold, so many at once: as much as the run's memory, or one sample's where that is more."""
    return samples_at_once(run, max_iter, most=most) * _sample_bytes(run, max_iter)


def _room(run: Run) -> int:
    """Bytes for graphs: the run's memory, on a GPU less what is held there beside the weights, or a quarter."""
    if run.device.type != "cuda":
        return run.device_memory
    weights = sum(t.nbytes for t in (*run.model.parameters(), *run.model.buffers()) if t.device == run.device)
    beside = torch.cuda.memory_allocated(run.device) - weights
    return max(run.device_memory - beside, run.device_memory // 4)


def _sample_bytes(run: Run, max_iter: int) -> int:
    """Of one sample: the Lanczos vectors, and the graph with that of its derivative.

    On a GPU the graph is measured: a guess that is too low ends in a full device.
    """
    sizes = [tap.numel for tap in run.taps]
    if run.device.type == "cpu":
        return 4 * 2 * max_iter * max(sizes) + 24 * sum(tap.numel * tap.dtype.itemsize for tap in run.taps)
    source = run.taps[0] if run.taps.source is None else run.taps.source
    ends = max(max(source.numel, before) + after for before, after in itertools.pairwise([sizes[0], *sizes]))
    vectors = max_iter * ends * max(tap.dtype.itemsize for tap in run.taps)
    return vectors + run.once("graph bytes", lambda: kept_bytes(run, source))


def kept_bytes(run: Run, source: Tap) -> int:
    """What one sample's graph from ``source`` to the last layer keeps, with that of its derivative; no weights."""
    (batch,) = run.data.batches(1, stop=1, device=run.device)
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*run.model.parameters(), *run.model.buffers())}
    sizes: dict[int, int] = {}

    def noted(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # the tensor itself, kept by the graph that it came from, would never be freed

    taps = [source, *(tap for tap in run.taps if tap.name != source.name)]
    with (
        torch.autograd.graph.saved_tensors_hooks(noted, lambda tensor: tensor),
        graph(run, taps, batch.inputs, source) as (_, activations, _),
        suppress(RuntimeError),  # where there is no derivative, what was kept up to there
    ):
        for activation in activations.values():
            noted(activation)
        y = activations[taps[-1].name]
        covector = torch.zeros_like(y, requires_grad=True)
        torch.autograd.grad(y, activations[source.name], covector, create_graph=True, allow_unused=True)
    return sum(sizes.values())
