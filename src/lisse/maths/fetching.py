"""Numbers of a device, brought over together: to wait for it once costs as much as to wait for one of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def fetched(numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU; those of a device in one copy for each dtype."""
    near: dict[str, Tensor] = {}
    for kind in dict.fromkeys((values.dtype, values.device) for values in numbers.values() if values.is_cuda):
        far = {name: values for name, values in numbers.items() if (values.dtype, values.device) == kind}
        flat = torch.cat([values.detach().flatten() for values in far.values()]).cpu()
        sizes = [values.numel() for values in far.values()]
        near |= {name: part.view(far[name].shape) for name, part in zip(far, flat.split(sizes), strict=True)}
    return {name: near.get(name, values) for name, values in numbers.items()}
