"""Whether a model fits where it is to lie, said before it is read."""

from __future__ import annotations

from pathlib import Path

import torch

_ADVICE = (
    "Load it in half the precision (?dtype=bfloat16), spread it over several devices (?device_map=auto), or take a "
    "machine with more. What is measured beside the weights is asked for by --memory, --batch, --layers and --limit."
)


def free_bytes(device: torch.device) -> int | None:
    """Memory that nobody uses on a device; ``None`` where that cannot be known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) if torch.cuda.is_available() else None
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    sizes = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(sizes["MemAvailable"].split()[0]) << 10 if "MemAvailable" in sizes else None


def check_room(needed: int, device: torch.device, name: str) -> None:
    """Refuse weights of ``needed`` bytes where fewer are free."""
    free = free_bytes(device)
    if free is not None and needed > free:
        raise ValueError(
            f"load_model: {name} must fit on {device}, got {_gigabytes(needed)} of weights and {_gigabytes(free)} "
            f"free. {_ADVICE}"
        )


def _gigabytes(count: int) -> str:
    return f"{count / 2**30:.3g} GiB"
