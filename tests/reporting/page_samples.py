"""Small profiles, made by hand: every number is known."""

from __future__ import annotations

import numpy as np

from lisse.profile import EVERYTHING, Part, Profile, Quantity, Row

RATE = Quantity(
    "change_rate",
    "change rate",
    "How much a step differs from the one before.",
    r"r_l",
    "[chen2024] sec. 5",
    better="lower",
)
# The paper's number judges nothing; here it is declared to, so that there are two numbers by which models differ.
TOPOLIP = Quantity(
    "topolip_change_rate",
    "TopoLip",
    "The largest change rate.",
    r"\max_l r_l",
    "[chen2024] sec. 5",
    better="lower",
    invariant=EVERYTHING,
)
STABLE = Quantity(
    "relative_stability",
    "relative stability R",
    "Deformations over noise.",
    r"R = D / G",
    "[petrini2021] eq. 4",
    scale="log",
    better="lower",
)
LAYERS = ("input", "first", "second", "output")


def topology(rates: tuple[float, ...], *, half: float | None = 0.1, cloud: int = 50, arrays: bool = True) -> Part:
    """Change rates at every layer but the input, and the largest of them; ``half`` is half an interval's length."""
    at = {"p": 1, "dim": "all", "cloud": cloud}

    def row(quantity: str, value: float, layer: str | None = None, depth: float | None = None) -> Row:
        ends = {} if half is None else {"low": value - half, "high": value + half}
        return Row(quantity, value, "exact" if half is None else "estimate", 3 * cloud, layer, depth, at=at, **ends)

    rows = [
        row("change_rate", value, layer, place / 3)
        for place, (layer, value) in enumerate(zip(LAYERS[1:], rates, strict=True), 1)
    ]
    rows.append(row("topolip_change_rate", max(rates)))
    bars = {
        f"diagram/{layer}/H{dim}": np.array([[0.0 if dim == 0 else 0.5, 1.0 + k + place] for k in range(3 + place)])
        for place, layer in enumerate(LAYERS)
        for dim in (0, 1)
    }
    return Part(
        "topology", rows, (RATE, TOPOLIP), ("Means over 3 disjoint clouds.",), bars if arrays else {}, {"level": 0.95}
    )


def stability(values: tuple[float, ...], *, half: float | None = 0.01) -> Part:
    """R at every layer, at one setting."""
    rows = []
    for place, (layer, value) in enumerate(zip(LAYERS, values, strict=True)):
        ends = {} if half is None else {"low": value - half, "high": value + half}
        kind = "exact" if half is None else "estimate"
        rows.append(Row("relative_stability", value, kind, 100, layer, place / 3, at={"cut": 3, "delta": 1.0}, **ends))
    strip = np.zeros((2, 3, 1, 4, 4), dtype=np.uint8)
    return Part("stability", rows, (STABLE,), (), {"strip/cut=3 delta=1": strip}, {"level": 0.95})


def profile(
    name: str, *parts: Part, fingerprint: str | None = None, data: str = "points", seed: int = 0, **more: object
) -> Profile:
    """A profile with a provenance like that of a run."""
    said = {
        "model": {
            "name": name,
            "spec": f"zoo:{name}",
            "parameters": 10,
            "fingerprint": fingerprint or f"weights of {name}",
        },
        "data": {"name": data, "samples": 300, "fingerprint": f"bytes of {data}"},
        "layers": [{"name": layer, "depth": place / 3} for place, layer in enumerate(LAYERS)],
        "skipped": [{"name": "lost", "reason": "never ran."}],
        "seed": seed,
        "date": "2026-01-02T03:04:05+00:00",
        "seconds": 1.5,
        "versions": {"lisse": "0"},
    }
    return Profile(parts, {**said, **more})


def smooth(name: str = "smooth") -> Profile:
    """Small rates, and an R that falls."""
    return profile(name, topology((0.5, 1.0, 0.7)), stability((1.0, 0.8, 0.5, 0.2)))


def torn(name: str = "torn") -> Profile:
    """A large rate at ``second``, and an R that stays."""
    return profile(name, topology((0.5, 4.0, 0.7)), stability((1.0, 0.9, 0.8, 0.6)))
