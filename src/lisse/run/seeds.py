"""Several trainings of one network as one profile: means, and a band from the lowest to the highest of them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lisse.profile import Part, Profile, Row

MEMBERS = "networks"  # array [rows, n] of a joined part: the number of every network, row by row
SAME = ("data", "layers")  # what the provenance of all must agree in


def joined(profiles: Iterable[Profile], name: str) -> Profile:
    r"""One profile for n networks that differ in their weights alone, called ``name (n networks)``.

    A row is there where every network has it (instrument, quantity, layer, kind, coordinates):

    .. math:: v = \frac1n \sum_i v_i, \qquad \mathrm{low} = \min_i \mathrm{low}_i, \qquad
        \mathrm{high} = \max_i \mathrm{high}_i

    and a part keeps the number of every network (array ``networks`` ``[rows, n]``), by which two joined profiles are
    compared (:func:`~lisse.maths.comparison.group_difference`). ``exact``
    numbers have no interval of their own and get the range of the values; that is no interval over samples, and no
    page takes it for one. Bounds without intervals stay without. ``n`` is the number of samples, the smallest of all.

    Whoever joins networks says that they are the same but for the seed: profiles cannot tell a seed from another
    recipe. Other arrays (diagrams, images) are those of the first.
    """
    members = list(profiles)
    _check(members)
    count = f"{len(members)} networks"
    parts = []
    for instrument in dict.fromkeys(part.instrument for profile in members for part in profile.parts):
        alike = [part for profile in members for part in profile.parts if part.instrument == instrument]
        parts.append(_part(alike, len(members), count))
    return Profile(tuple(parts), _provenance(members, f"{name} ({count})"))


def _check(members: Sequence[Profile]) -> None:
    if not all(isinstance(profile, Profile) for profile in members):
        kinds = sorted({type(profile).__name__ for profile in members})
        raise TypeError(f"joined: profiles must be Profiles, got {kinds}. Load files with Profile.load.")
    if len(members) < 2:
        raise ValueError(f"joined: profiles must be two or more, got {len(members)}. One needs no joining.")
    for key in SAME:
        values = [_identity(profile, key) for profile in members]
        if any(value != values[0] for value in values):
            other = members[next(index for index, value in enumerate(values) if value != values[0])]
            raise ValueError(
                f"joined: profiles must have the same {key}, got others in {members[0].name} and {other.name}. "
                "Join networks of one architecture, measured on the same samples."
            )
    weights = [fingerprint for profile in members if (fingerprint := profile.about("model").get("fingerprint"))]
    if len(set(weights)) < len(weights):
        raise ValueError(
            "joined: profiles must be of different networks, got the same weights twice. "
            "A network that counts twice makes the band too narrow."
        )


def _identity(profile: Profile, key: str) -> Any:
    """The data by their fingerprint and, where they are text, their tokens; the layers by names and shapes."""
    if key == "data":
        data = profile.about("data")
        return data.get("fingerprint", data.get("name")), data.get("tokenizer")
    layers = profile.provenance.get("layers")
    return [(layer.get("name"), layer.get("shape")) for layer in layers] if isinstance(layers, list) else None


def _part(parts: Sequence[Part], networks: int, count: str) -> Part:
    by_key: dict[tuple[Any, ...], list[Row]] = {}
    for part in parts:
        for row in part.rows:
            key = (row.quantity, row.layer, row.kind, tuple(sorted(row.at.items(), key=lambda item: item[0])))
            by_key.setdefault(key, []).append(row)
    common = [rows for rows in by_key.values() if len(rows) == networks]
    notes = []
    if common:
        notes.append(f"Means over {count}; bands reach from the lowest to the highest of them, with their intervals.")
        if any(part.arrays for part in parts):
            notes.append(f"Pictures are those of the first of the {count}.")
    if len(common) < len(by_key):
        notes.append(f"Left out: {len(by_key) - len(common)} numbers that not every one of the {count} has.")
    notes += dict.fromkeys(note for part in parts for note in part.notes)
    first = parts[0]
    rows = tuple(_row(rows) for rows in common)
    quantities = {quantity.name: quantity for part in parts for quantity in part.quantities}
    arrays = {**first.arrays, MEMBERS: np.array([[row.value for row in rows] for rows in common])}
    return Part(first.instrument, rows, tuple(quantities.values()), tuple(notes), arrays, first.options, first.charts)


def _row(rows: Sequence[Row]) -> Row:
    first = rows[0]
    values = [row.value for row in rows]
    sound = all(map(math.isfinite, values))
    value = math.fsum(values) / len(values) if sound else math.nan
    n = min(row.n for row in rows)
    low, high = _ends(rows) if sound else (None, None)
    return Row(first.quantity, value, first.kind, n, first.layer, first.depth, low, high, first.at)


def _ends(rows: Sequence[Row]) -> tuple[float | None, float | None]:
    lows, highs = [row.low for row in rows], [row.high for row in rows]
    ends = [end for end in (*lows, *highs) if end is not None and not math.isnan(end)]
    if len(ends) == 2 * len(rows):
        return min(ends), max(ends)
    values = [row.value for row in rows]
    # A range of bounds would pass for an interval; and what no network changes needs no range.
    return (min(values), max(values)) if rows[0].kind == "exact" and len(set(values)) > 1 else (None, None)


def _provenance(members: Sequence[Profile], name: str) -> dict[str, Any]:
    models = [dict(profile.about("model")) for profile in members]
    weights = [str(model.get("fingerprint")) for model in models]
    model = {
        **models[0],
        "name": name,
        "spec": ", ".join(dict.fromkeys(str(model.get("spec") or model.get("name")) for model in models)),
        "fingerprint": hashlib.sha256("\n".join(sorted(weights)).encode()).hexdigest()[:40],
        "members": models,
    }
    provenance = {**members[0].provenance, "model": model}
    seconds = [profile.provenance.get("seconds") for profile in members]
    if all(isinstance(value, (int, float)) for value in seconds):
        provenance["seconds"] = sum(seconds)
    scores = [score for profile in members if (score := profile.about("score"))]
    provenance.pop("score", None)
    if len(scores) == len(members) and all("error" in score for score in scores):
        provenance["score"] = {
            "error": math.fsum(score["error"] for score in scores) / len(scores),
            "low": min(score.get("low", score["error"]) for score in scores),
            "high": max(score.get("high", score["error"]) for score in scores),
            "n": min(score.get("n", 0) for score in scores),
        }
    return provenance
