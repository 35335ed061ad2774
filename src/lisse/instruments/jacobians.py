"""A network's graph at some samples, and norms of its Jacobians there: what Sensitivity and Isometry share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lisse.maths.jacobian import JacobianNorm, jacobian_norm
from lisse.recording import parse_bytes
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
    with still(run.model, statistics=run.statistics, grad=True, seed=run.seed), sdpa_kernel(SDPBackend.MATH):
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


def samples_at_once(run: Run, max_iter: int, *, most: int = 8) -> int:
    """How many samples fit: the Lanczos vectors and the graph within the run's memory, ``most`` or a batch at most."""
    return max(1, min(most, run.batch, parse_bytes(run.memory) // _sample_bytes(run, max_iter)))


def graph_bytes(run: Run, max_iter: int, *, most: int = 8) -> int:
    """What they hold, so many at once: as much as the run's memory, or one sample's where that is more."""
    return samples_at_once(run, max_iter, most=most) * _sample_bytes(run, max_iter)


def _sample_bytes(run: Run, max_iter: int) -> int:
    """Of one sample: the Lanczos vectors, and the graph with that of its derivative."""
    vectors = 2 * max_iter * max(tap.numel for tap in run.taps)
    return 4 * (vectors + 24 * sum(tap.numel for tap in run.taps))
