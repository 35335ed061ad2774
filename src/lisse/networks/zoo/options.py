"""What every builder of the zoo checks before it makes a network."""

from __future__ import annotations

import math

# Far above anything the papers use, far below what would fill a machine's memory by a slip of the finger.
LIMITS = {
    "in_channels": 4096,
    "size": 4096,
    "classes": 100_000,
    "features": 10_000_000,
    "width": 65_536,
    "depth": 1000,
    "layers": 1000,
    "heads": 1024,
}
# Parameters of one network, counted before it is made: 2.1 GB in float32. The largest of the papers has 0.3 · 10⁹.
MOST_PARAMETERS = 2**29


def check_sizes(function: str, **values: int) -> None:
    """Raise unless every value is at least 1 and no greater than its entry in :data:`LIMITS` (or 1,000,000)."""
    for name, value in values.items():
        most = LIMITS.get(name, 1_000_000)
        if not 1 <= value <= most:
            raise ValueError(f"{function}: {name} must lie in 1..{most}, got {value}. Give {name}=… in that range.")


def check_above_zero(function: str, **values: float) -> None:
    """Raise unless every value is positive and finite."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(
                f"{function}: {name} must be positive and finite, got {value}. Leave it out, or {name}=1e-6."
            )


def check_divisible(function: str, name: str, value: int, by: str, divisor: int) -> None:
    """Raise unless ``divisor`` divides ``value``."""
    if value % divisor:
        raise ValueError(
            f"{function}: {name} must be a multiple of {by} ({divisor}), got {value}. "
            f"Use {name}={max(divisor, value - value % divisor)}."
        )
