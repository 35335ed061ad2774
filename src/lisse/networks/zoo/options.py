"""What every builder of the zoo checks before it makes a network, and how it asks for an optional library."""

from __future__ import annotations

import importlib
import math
from types import ModuleType

# Far above anything the papers use, far below what would fill a machine's memory by a slip of the finger.
LIMITS = {
    "in_channels": 4096,
    "size": 4096,
    "classes": 1_000_000,
    "features": 10_000_000,
    "width": 65_536,
    "depth": 1000,
    "layers": 1000,
    "heads": 1024,
}
# Parameters of one network: 8.6 GB in float32. The largest of the papers has 0.3 · 10⁹.
MOST_PARAMETERS = 2**31


def positive(function: str, **values: int) -> None:
    """Raise unless every value is at least 1 and no greater than its entry in :data:`LIMITS` (or 1,000,000)."""
    for name, value in values.items():
        most = LIMITS.get(name, 1_000_000)
        if not 1 <= value <= most:
            raise ValueError(f"{function}: {name} must lie in 1..{most}, got {value}. Give {name}=… in that range.")


def above_zero(function: str, **values: float) -> None:
    """Raise unless every value is positive and finite."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(
                f"{function}: {name} must be positive and finite, got {value}. Leave it out, or {name}=1e-6."
            )


def divisible(function: str, name: str, value: int, by: str, divisor: int) -> None:
    """Raise unless ``divisor`` divides ``value``."""
    if value % divisor:
        raise ValueError(
            f"{function}: {name} must be a multiple of {by} ({divisor}), got {value}. "
            f"Use {name}={max(divisor, value - value % divisor)}."
        )


def extra(module: str, name: str, function: str) -> ModuleType:
    """Import an optional library, or say which extra of lisse brings it.

    A library can also be there and not importable: torchvision made for another torch stops with a ``RuntimeError``
    about missing operators. That is reported as an ``ImportError`` too, with the library's own words.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise ImportError(
            f'{function}: {module.split(".")[0]} must be installed, got none. pip install "lisse[{name}]"'
        ) from error
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        raise ImportError(
            f"{function}: {module.split('.')[0]} must fit the installed torch, got an error while importing it "
            f'({str(error).splitlines()[0]}). Install one made for this torch: pip install "lisse[{name}]"'
        ) from error
