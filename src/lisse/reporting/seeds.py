"""Several trainings of one network as one profile: means, and a band from the lowest to the highest of them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lisse.profile import Part, Profile, Row
from lisse.reporting.series import several

SAME = ("data", "layers")  # what the provenance of all must agree in


def joined(profiles: Iterable[Profile], name: str) -> Profile:
    r"""One profile for n networks that differ in their weights alone, called ``name (n networks)``.

    A row is there where every network has it (instrument, quantity, layer, kind, coordinates):

    .. math:: v = \frac1n \sum_i v_i, \qquad \mathrm{low} = \min_i \mathrm{low}_i, \qquad
        \mathrm{high} = \max_i \mathrm{high}_i

    so that two joined networks are apart only where each of the one is apart from each of the other. ``exact``
    numbers have no interval of their own and get the range of the values; that is no interval over samples, and no
    page takes it for one. Bounds without intervals stay without. ``n`` is the number of samples, the smallest of all.

    Whoever joins networks says that they are the same but for the seed: profiles cannot tell a seed from another
    recipe. Arrays (diagrams, images) are those of the first.
    """
    given = several(profiles, "joined")
    _check(given)
    count = f"{len(given)} networks"
    parts = []
    for instrument in dict.fromkeys(part.instrument for profile in given for part in profile.parts):
        own = [part for profile in given for part in profile.parts if part.instrument == instrument]
        parts.append(_part(own, len(given), count))
    return Profile(tuple(parts), _provenance(given, f"{name} ({count})"))


def _check(given: Sequence[Profile]) -> None:
    if len(given) < 2:
        raise ValueError(f"joined: profiles must be two or more, got {len(given)}. One needs no joining.")
    for key in SAME:
        values = [_told(profile, key) for profile in given]
        if any(value != values[0] for value in values):
            at = next(place for place, value in enumerate(values) if value != values[0])
            raise ValueError(
                f"joined: profiles must have the same {key}, got others in {given[0].name} and {given[at].name}. "
                "Join networks of one architecture, measured on the same samples."
            )
    weights = [fingerprint for profile in given if (fingerprint := _of(profile, "model").get("fingerprint"))]
    if len(set(weights)) < len(weights):
        raise ValueError(
            "joined: profiles must be of different networks, got the same weights twice. "
            "A network that counts twice makes the band too narrow."
        )


def _told(profile: Profile, key: str) -> Any:
    """The data by their fingerprint, the layers by names and shapes."""
    if key == "data":
        data = _of(profile, "data")
        return data.get("fingerprint", data.get("name"))
    layers = profile.provenance.get("layers")
    return [(one.get("name"), one.get("shape")) for one in layers] if isinstance(layers, list) else None


def _part(own: Sequence[Part], wanted: int, count: str) -> Part:
    by_key: dict[tuple[Any, ...], list[Row]] = {}
    for part in own:
        for row in part.rows:
            key = (row.quantity, row.layer, row.kind, tuple(sorted(row.at.items(), key=lambda item: item[0])))
            by_key.setdefault(key, []).append(row)
    whole = [rows for rows in by_key.values() if len(rows) == wanted]
    notes = []
    if whole:
        notes.append(f"Means over {count}; bands reach from the lowest to the highest of them, with their intervals.")
        if any(part.arrays for part in own):
            notes.append(f"Pictures are those of the first of the {count}.")
    if len(whole) < len(by_key):
        notes.append(f"Left out: {len(by_key) - len(whole)} numbers that not every one of the {count} has.")
    notes += dict.fromkeys(note for part in own for note in part.notes)
    first = own[0]
    rows = tuple(_row(rows) for rows in whole)
    quantities = {quantity.name: quantity for part in own for quantity in part.quantities}
    return Part(first.instrument, rows, tuple(quantities.values()), tuple(notes), first.arrays, first.options)


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


def _provenance(given: Sequence[Profile], name: str) -> dict[str, Any]:
    models = [dict(_of(profile, "model")) for profile in given]
    weights = [str(model.get("fingerprint")) for model in models]
    model = {
        **models[0],
        "name": name,
        "spec": ", ".join(dict.fromkeys(str(model.get("spec") or model.get("name")) for model in models)),
        "fingerprint": hashlib.sha256("\n".join(sorted(weights)).encode()).hexdigest()[:40],
        "members": models,
    }
    said = {**given[0].provenance, "model": model}
    seconds = [profile.provenance.get("seconds") for profile in given]
    if all(isinstance(some, (int, float)) for some in seconds):
        said["seconds"] = sum(seconds)
    scores = [score for profile in given if (score := _of(profile, "score"))]
    said.pop("score", None)
    if len(scores) == len(given) and all("error" in score for score in scores):
        said["score"] = {
            "error": math.fsum(score["error"] for score in scores) / len(scores),
            "low": min(score.get("low", score["error"]) for score in scores),
            "high": max(score.get("high", score["error"]) for score in scores),
            "n": min(score.get("n", 0) for score in scores),
        }
    return said


def _of(profile: Profile, key: str) -> Mapping[str, Any]:
    found = profile.provenance.get(key)
    return found if isinstance(found, Mapping) else {}
