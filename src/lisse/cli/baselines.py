"""What a report measures besides the models as they are: their accuracy, and the same architecture before training."""

from __future__ import annotations

import math
from typing import Any

CALIBRATION = 300


def score(model: Any, data: Any, n: int | None, batch: int, device: Any) -> dict[str, Any] | None:
    """Error on the first ``n`` samples with its interval; ``None`` where the labels do not fit the output."""
    import torch

    from lisse.maths.intervals import share_interval
    from lisse.taps import feed, prepared, still

    if data.targets is None or data.targets.ndim != 1 or data.targets.is_floating_point():
        return None
    total = len(data) if n is None else min(n, len(data))
    wrong = 0
    with still(model, statistics="running", seed=0):
        for some in data.batches(batch, stop=total, device=device):
            output = feed(model, prepared(model, some.inputs))
            output = getattr(output, "logits", output)
            if not isinstance(output, torch.Tensor) or output.ndim != 2 or output.shape[1] <= int(data.targets.max()):
                return None
            wrong += int((output.argmax(1) != some.targets.to(output.device)).sum())
    ends = share_interval(wrong / total, total)
    low, high = float(ends.low), float(ends.high)
    return {"error": wrong / total, "low": low, "high": high, "n": total} if math.isfinite(low) else None


def with_film(profile: Any, model: Any, data: Any, seed: int) -> Any:
    """The profile of a masked autoencoder with its decoder's frames: the first image, what is visible, every layer.

    Any other profile as it is. The frames go into Propagation's part, as ``filmstrip/…`` ``[1, columns, c, h, w]``.
    """
    import dataclasses

    import torch

    from lisse.networks.decoder_frames import decoder_frames
    from lisse.networks.masked import holds_masked

    place = next((k for k, part in enumerate(profile.parts) if part.instrument == "propagation" and part.rows), None)
    if place is None or not holds_masked(model):
        return profile
    (batch,) = data.batches(1, stop=1)
    try:
        film = decoder_frames(model, batch.inputs[0], seed=seed)
    except (ValueError, TypeError, RuntimeError) as error:
        return _noted(profile, place, f"No filmstrip of the decoder: {error}")
    visible = film.visible.nan_to_num(0.75)  # hidden patches are grey
    frames = torch.cat([film.image[None], visible[None], film.frames]).float().cpu().clamp(0, 1)
    title = "filmstrip/the image, what is visible, the decoder layer by layer"
    part = dataclasses.replace(
        profile.parts[place], arrays={**profile.parts[place].arrays, title: frames[None].numpy()}
    )
    return dataclasses.replace(profile, parts=(*profile.parts[:place], part, *profile.parts[place + 1 :]))


def with_left_out(profile: Any, size: str) -> Any:
    """The profile with a word about what its instruments can do and did not at this size."""
    from lisse.cli.sizes import LEFT_OUT

    for place, part in enumerate(profile.parts):
        note = LEFT_OUT.get(size, {}).get(part.instrument)
        if note is not None and part.rows:
            profile = _noted(profile, place, note)
    return profile


def _noted(profile: Any, place: int, note: str) -> Any:
    import dataclasses

    part = dataclasses.replace(profile.parts[place], notes=(*profile.parts[place].notes, note))
    return dataclasses.replace(profile, parts=(*profile.parts[:place], part, *profile.parts[place + 1 :]))


def at_start(spec: str, seed: int, device: str) -> Any | None:
    """The network of a spec with random weights, or ``None`` where lisse cannot build it without its weights.

    Only networks of the zoo: others' code may draw its weights any way, or fetch them.
    """
    import lisse
    from lisse.models.specs import Spec, parse

    model = lisse.load_model(spec, device="cpu")
    architecture = getattr(getattr(model, "lisse", None), "architecture", "")
    if not architecture.startswith("zoo:"):
        return None
    parsed, said = parse(architecture), parse(spec)
    options = {key: value for key, value in said.options.items() if key in ("mean", "std")}
    built = Spec(parsed.hub, parsed.name, {**parsed.options, **options, "seed": 1000 + seed}).without()
    return lisse.load_model(built, device=device)


def calibrated(model: Any, data: Any, batch: int, device: Any) -> Any:
    """Set the running statistics of batch norm from data: what a network computes when its training starts.

    A new network's running statistics are 0 and 1 and fit no data.
    """
    import torch
    from torch import nn

    from lisse.taps import feed, prepared

    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    norms = [module for module in norms if module.track_running_stats]
    if not norms:
        return model
    momenta = [module.momentum for module in norms]
    for module in norms:
        module.reset_running_stats()
        module.momentum = None  # the mean over all batches
        module.train()
    with torch.no_grad():
        for some in data.batches(batch, stop=min(len(data), CALIBRATION), device=device):
            if len(some.targets if some.targets is not None else some.inputs) > 1:
                feed(model, prepared(model, some.inputs))
    for module, momentum in zip(norms, momenta, strict=True):
        module.momentum = momentum
    return model.eval()
