"""How large the measurements of a report are: a first look, the usual, and the papers' sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

Size = Literal["quick", "usual", "full"]

# Fields of instruments that differ from their defaults; a field that an instrument does not have is passed over. The
# defaults are the papers' sizes. Also a quick report has intervals: without them it could not compare.
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "quick": {
        "sensitivity": {"samples": 60, "clouds": 3, "points": 8, "max_iter": 3},
        "topology": {"samples": 100, "clouds": 3},
        "stability": {"samples": 150},
        "contraction": {"samples": 32, "points": 2, "max_iter": 8, "shown": 0},
        "propagation": {"samples": 40, "kernels": 8, "lemma": 2},
        # Jacobians of every layer at two places cost ten times the distances; Sensitivity has those at the data.
        "isometry": {"samples": 60, "clouds": 3, "points": 0, "holes": False},
        "robustness": {
            "samples": 64,
            "corruptions": ("gaussian_noise", "defocus_blur", "fog", "jpeg_compression"),
            "severities": (1, 3, 5),
            "attacks": ("noise", "fgsm"),
            "eps": (1 / 255, 2 / 255, 4 / 255),
            "sigma": (0.05, 0.1, 0.2),
        },
    },
    "usual": {
        "sensitivity": {"samples": 200, "points": 8, "max_iter": 15},
        "topology": {"samples": 200},
        "stability": {"samples": 500},
        "contraction": {"samples": 100, "points": 4},
        "propagation": {"samples": 100},
        "isometry": {"samples": 100, "points": 8, "max_iter": 15},
        "robustness": {"samples": 300, "severities": (1, 3, 5)},
    },
    "full": {},
}
SCORED = {"quick": 300, "usual": 2000, "full": None}  # samples on which accuracy is counted
#: What a size leaves out, for the page to say.
LEFT_OUT = {
    "quick": {
        "isometry": "Left out by --quick: gradients and Jacobians at the data and beside them, and the classes' holes.",
        "robustness": "Left out by --quick: all but four corruptions, two of their severities, and the pgd attack.",
    },
    "usual": {"robustness": "Left out at the usual size: severities 2 and 4. --full has them."},
}
LEAST_CLOUD = 30
START_SEEDS = {"quick": 1, "usual": 2, "full": 3}
#: What is also measured with random weights: the others say little about such a network, or take too long for that.
AT_START = ("topology", "stability")


def instruments(kinds: Sequence[type], size: Size) -> list[Any]:
    """The instruments at a size. One that the table does not know is taken with ``quick=True`` for a quick report."""
    made = []
    for kind in kinds:
        known = {item.name for item in dataclasses.fields(kind)}
        chosen = SIZES[size].get(kind.__name__.lower())
        if chosen is None:
            chosen = {"quick": True} if size == "quick" else {}
        made.append(kind(**{name: value for name, value in chosen.items() if name in known}))
    return made


def for_few(instruments: Sequence[Any], n: int) -> list[Any]:
    """Smaller clouds where ``n`` samples do not fill several of the size: one cloud has no interval.

    Clouds of fewer than ``LEAST_CLOUD`` samples say too little, so then it stays one cloud.
    """
    return [
        dataclasses.replace(each, samples=n // each.clouds)
        if getattr(each, "clouds", 1) > 1 and n // each.clouds < each.samples and n // each.clouds >= LEAST_CLOUD
        else each
        for each in instruments
    ]
