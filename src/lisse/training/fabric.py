"""The one place where Lightning Fabric is imported: devices, precision and processes are its work."""

from __future__ import annotations

import atexit
import logging
import warnings
from typing import Any

import torch


def fabric_for(device: torch.device, devices: int, precision: str | None) -> Any:
    """A Fabric for ``devices`` devices of the kind of ``device``, launched; imports it (seconds) when first called."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from lightning_fabric import Fabric
        except ModuleNotFoundError:
            # the same library inside the distribution `lightning`
            from lightning.fabric import Fabric  # type: ignore[no-redef]
    for name in ("lightning_fabric", "lightning.fabric", "lightning_fabric.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)  # its greetings; errors and warnings still come
    chosen: Any = devices
    if device.type != "cpu" and devices == 1:
        chosen = [device.index or 0]
    options: dict[str, Any] = {"accelerator": device.type, "devices": chosen}
    if precision is not None:
        options["precision"] = precision
    if devices > 1:
        options["strategy"] = "ddp"
    try:
        fabric = Fabric(**options)
    except ValueError as error:
        text = str(error).splitlines()[0]
        raise ValueError(
            f"train: device, devices and precision must fit together, got {str(device)!r}, {devices} and "
            f"{precision!r} ({text[:200]}). Leave precision out, or write bf16-mixed."
        ) from error
    there = _in_a_group()
    fabric.launch()
    if not there and _in_a_group():
        atexit.register(_leave)
    return fabric


def _in_a_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _leave() -> None:
    """Leave the group of processes while the interpreter is whole.

    Fabric does so for NCCL alone. Threads of Gloo that are still there when the interpreter goes may take the process
    with them ("terminate called without an active exception", seldom), and a finished training ends with an error.
    """
    if _in_a_group():
        torch.distributed.destroy_process_group()
