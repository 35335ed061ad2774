"""Where changes along depth are measured from: the first place of a network at which samples have distances."""

from __future__ import annotations

import torch
from torch import Tensor

from lisse.run import Run
from lisse.taps import Tap


def origin_of(run: Run) -> Tap:
    """The input as the model is given it; for token ids, which have no distances, the first layer.

    Also where other layers were chosen, as long as it can be read without a forward: what is measured between it and
    a layer does not depend on which layers are read between them.
    """
    source = run.taps.source
    if source is None:
        return run.taps[0]
    return source if has_points(run, source) else run.taps[0]


def has_points(run: Run, tap: Tap) -> bool:
    """Whether :func:`points_at` can read a layer."""
    return tap.name in run.taps.names or (tap.role == "input" and isinstance(run.data.form, Tensor))


def origin_note(run: Run) -> list[str]:
    """A word where distances do not come from the input."""
    origin, source = origin_of(run), run.taps.source
    if source is None or origin.name != source.name:
        return [f"Distances are compared with those of {origin.name}, the first layer that was chosen."]
    return [] if origin.role == "input" else [
        f"The input has no distances (it holds integers): they are those of {origin.name}."
    ]  # fmt: skip


def no_derivative(run: Run) -> str | None:
    """Why nothing can be derived in what the model is given; ``None`` where it can."""
    if run.taps.source is None or run.taps.source.role != "input":
        return "the input has no derivative (token ids)"
    form = run.data.form
    return None if isinstance(form, Tensor) else f"the inputs are several ({', '.join(form)}), and one is derived in"


def points_at(run: Run, tap: Tap, n: int) -> Tensor:
    """The first ``n`` samples at a layer ``[n, …]``: what was recorded, or the inputs where they were not."""
    return run.recording(n)[tap.name] if tap.name in run.taps.names else inputs_of(run, n)


def inputs_of(run: Run, n: int) -> Tensor:
    """The first ``n`` inputs as they are given, flat ``[n, d]``: where the run is, or the host where they are many."""
    form = run.data.form
    small = isinstance(form, Tensor) and form[:1].nbytes * n <= run.device_memory // 4
    home = run.device if small else torch.device("cpu")
    return torch.cat([batch.inputs.flatten(1).to(home) for batch in run.batches(n)])  # type: ignore[union-attr]


def box_width(inputs: Tensor) -> dict[str, float]:
    """The largest distance in the box that holds inputs ``[n, …]``, by norm."""
    flat = inputs.flatten(1)
    sides = flat.amax(0).double() - flat.amin(0).double()
    return {"l2": float(torch.linalg.vector_norm(sides)), "linf": float(sides.max())}
