"""A profile with everything in it, random profiles, and zips made by hand."""

from __future__ import annotations

import json
import math
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lisse.profile import Chart, Headline, Line, Panel, Part, Profile, Quantity, Row

NORM = Quantity(
    "norm", "norm ‖z‖", "How long a layer's activations are.", r"\|z\|", "[x2020] eq. 1", "log", "lower", "1"
)
RATIO = Quantity(
    "ratio", "R", "A ratio.", headline=Headline("R_f", "D over G", prefers={"cut": (3, 5.0)}, alone="answers {than}"),
    lead=True, neutral=1.0,
    invariant=("rotation", "scale"),
)  # fmt: skip
CHART = Chart(
    "norms", "Norms: $", "By layer.",
    (
        Panel("a", (Line("norm", "x", {"p": 1, "over": "mean"}, band=("quantile", 0.05, 0.95)), Line("ratio"))),
        Panel(form="diagrams", arrays=("diagram/",)),
    ),
    columns=2, prefers={"dim": ("all", 0, 1)}, limits=(0.0, 1.0), lead=True,
)  # fmt: skip


def example() -> Profile:
    rows = (
        Row("norm", 1.5, "exact", 10, layer="stem", depth=0.0),
        Row("norm", math.nan, "estimate", 10, layer="層.1/ß", depth=0.5, low=-math.inf, high=math.inf),
        Row("norm", 2.0, "lower", 10, layer="out", depth=1.0, low=1.0, high=3.0, at={"p": 2, "δ": 0.5, "head": "a"}),
        Row("norm", -0.0, "heuristic", 0, at={"ok": True, "eps": math.inf}),
    )
    arrays = {
        "diagram/0": np.arange(6.0).reshape(2, 3),
        "..": np.array(3, dtype="<i2"),
        "größe": np.zeros((0, 4), "f4"),
    }
    notes = ("layer x was left out: no batch axis",)
    first = Part("sensitivity", rows, (NORM, RATIO), notes, arrays, {"samples": None}, (CHART,))
    second = Part("empty", options={"p": [1, math.inf], "nested": {"a": [True, None, "nan"]}})
    return Profile((first, second), {"model": {"name": "net"}, "seed": 0, "loss": math.nan, "nan": "nan"})


def same(a: Any, b: Any) -> bool:
    """Equal, with NaN equal to NaN, 0.0 unlike -0.0, True unlike 1, and order of keys kept."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        alike = isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape
        return alike and a.tobytes() == b.tobytes()
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, (Profile, Part, Row, Quantity, Chart)):
        return type(a) is type(b) and all(same(getattr(a, key), getattr(b, key)) for key in a.__dataclass_fields__)
    return type(a) is type(b) and a == b


TEXT = st.text(max_size=12)
FLOAT = st.floats(width=64)
SCALAR = st.none() | st.booleans() | st.integers() | FLOAT | TEXT
KEY = TEXT.filter(lambda key: key != "$float")
FREE = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=3), max_leaves=8
)
ARRAY = hnp.arrays(
    hnp.scalar_dtypes() | hnp.unicode_string_dtypes() | hnp.byte_string_dtypes() | hnp.array_dtypes(max_size=3),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    low, high = None, None
    if draw(st.booleans()):
        low, high = sorted((draw(st.floats(allow_nan=False)), draw(st.floats(allow_nan=False))))
    kind = draw(st.sampled_from(["exact", "estimate", "lower", "upper", "heuristic"]))
    at = draw(st.dictionaries(KEY, TEXT | st.integers() | FLOAT | st.booleans(), max_size=3))
    depth = draw(st.none() | st.floats(0, 1))
    return Row("norm", draw(FLOAT), kind, draw(st.integers(0)), draw(st.none() | TEXT), depth, low, high, at)


# A zip holds no lone surrogates in names; array names are checked separately.
NAME = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PARTS = st.builds(
    Part,
    TEXT,
    st.lists(rows(), max_size=4).map(tuple),
    st.just((NORM,)),
    st.lists(TEXT, max_size=3).map(tuple),
    st.dictionaries(NAME, ARRAY, max_size=3),
    st.dictionaries(KEY, FREE, max_size=3),
)
PROFILES = st.builds(Profile, st.lists(PARTS, max_size=3).map(tuple), st.dictionaries(KEY, FREE, max_size=3))
WITH_FILES = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def packed(path: Path, entries: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return path


def with_json(path: Path, document: Any, entries: dict[str, bytes] | None = None) -> Path:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return packed(path, {"profile.json": text, **(entries or {})})


def plain(**change: Any) -> dict[str, Any]:
    part = {"instrument": "i", "options": {}, "quantities": [], "rows": [], "notes": [], "arrays": []}
    return {"format": "lisse-profile", "version": 1, "provenance": {}, "parts": [part | change]}
