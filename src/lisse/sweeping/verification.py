"""A profile or a row measured again: the same, what differs, or why it cannot be made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lisse.models.specs import parse
from lisse.profile import Profile
from lisse.sweeping.trust import reaches
from lisse.sweeping.unit import Unit, measured

#: ``same``: every number to its last digit; ``close``: within :data:`CLOSE`.
Agreement = Literal["same", "close", "different"]
#: What other processors and versions of libraries may change in a number, relative to it.
CLOSE = 1e-4
#: More than any machine has, and less than what ends a process.
MOST_THREADS = 1024


@dataclass(frozen=True)
class Verification:
    """How a second measurement agrees with the first, in a word and in sentences."""

    agreement: Agreement
    says: tuple[str, ...]
    profile: Profile


class Unmakeable(ValueError):
    """A row that says neither weights nor a recipe from which it could be made again, or that asks for too much."""


def unit_again(
    about: Mapping[str, Any], *, model: str | None = None, data: str | None = None, trust: bool = False
) -> Unit:
    """The unit that makes a profile again: what its sweep was asked for, or what a measurement says of itself.

    ``model`` is a spec that takes the place of the network, whose weights are then compared; ``data`` one that takes
    the place of the data. Without ``trust`` nothing else that the file names is imported, opened or fetched.
    :class:`Unmakeable` says what is missing.
    """
    document = about.get("unit")
    if document is None:
        document = _document(about, model, data)
    try:
        unit = _unit(document, model, data)
        asks = [] if trust else reaches(unit, wishes=tuple(filter(None, (model, data))))
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise Unmakeable(f"cannot: the file asks for what is no measurement ({error}).") from error
    if asks:
        raise Unmakeable(
            f"cannot: the file asks {', '.join(asks)}, and it is not trusted to. If you know who wrote it, give "
            "--trust; or give --model and --data yourself."
        )
    parsed = parse(unit.model)
    for name in filter(None, (parsed.options.get("weights"), parsed.name if parsed.hub == "checkpoint" else None)):
        if not Path(str(name)).expanduser().is_file():
            raise Unmakeable(f"cannot: no weights and no recipe. {name} is not here; give --model SPEC.")
    return unit


def _unit(document: Mapping[str, Any], model: str | None, data: str | None) -> Unit:
    """The unit of a document that anybody may have written."""
    unit = Unit.of(document)
    if data is not None:
        unit = dataclasses.replace(unit, data=data)
    if model is not None:
        unit = dataclasses.replace(unit, model=model, training=None)
    if unit.training is not None:
        _ = unit.training.full_recipe  # refuses what could not train
    if not 1 <= unit.threads <= MOST_THREADS:
        raise ValueError(f"{unit.threads} threads")
    return unit


def _document(about: Mapping[str, Any], model: str | None, data: str | None) -> dict[str, Any]:
    if "instruments" not in about:
        raise Unmakeable("cannot: the row does not say how it was measured. Verify the profile that it was made of.")
    spec = model or about.get("spec")
    if not spec:
        raise Unmakeable("cannot: no weights and no recipe. The network came from no spec; give --model SPEC.")
    if data is None:
        raise Unmakeable(
            f"cannot: the profile names its data ({about.get('data')}) and not their spec; give --data SPEC."
        )
    for key, usual in (("statistics", "running"), ("readout", None), ("order", "drawn")):
        if about.get(key, usual) != usual:
            raise Unmakeable(
                f"cannot: it was measured with {key} {about[key]!r}, which a unit of a sweep does not have."
            )
    options = {name: dict(values) for name, values in about["instruments"]}
    return {"model": spec, "data": data, "instruments": options, "seed": about["seed"], "batch": about["batch"]}


def measured_origin(profile: Profile) -> dict[str, Any]:
    """What :func:`unit_again` reads, of a profile that a sweep, a survey or a measurement made."""
    about = profile.provenance
    sweep = about.get("sweep")
    model, data, order = (dict(about.get(key) or {}) for key in ("model", "data", "order"))
    return {
        "unit": sweep.get("unit") if isinstance(sweep, Mapping) else None,
        "spec": model.get("spec"),
        "data": data.get("name"),
        "instruments": [(part.instrument, part.options) for part in profile.parts],
        "seed": about.get("seed", 0),
        "batch": about.get("batch", 100),
        "statistics": about.get("statistics", "running"),
        "order": order.get("by", "given"),
        "weights": model.get("weights"),
        "data_hash": data.get("fingerprint"),
    }


def verified(
    before: Mapping[str, float],
    unit: Unit,
    numbers: Any,
    *,
    weights: str | None,
    data_hash: str | None,
    digits: int = 17,
) -> Verification:
    """Measure a unit now, and compare ``numbers(profile)`` with those of ``before``, by name.

    ``weights`` and ``data_hash`` are the hashes of before, where they are known; ``digits`` those of a number.
    """
    profile = measured(unit)
    about = profile.provenance
    says = []
    if weights and weights != about["model"]["weights"]:
        says.append(f"The weights differ: {weights} was measured, {about['model']['weights']} is here.")
    if data_hash and data_hash != about["data"]["fingerprint"]:
        says.append(f"The data differ: {data_hash} was measured, {about['data']['fingerprint']} is here.")
    apart = says != []
    after = numbers(profile)
    missing = [name for name in before if name not in after]
    if missing:
        says.append(f"{len(missing)} of {len(before)} numbers are not there now, the first is {missing[0]}.")
    gaps = {name: relative_gap(before[name], after[name]) for name in before if name in after}
    moved = {name: gap for name, gap in gaps.items() if gap > 10.0 ** (1 - digits)}
    for name, gap in sorted(moved.items(), key=lambda item: -item[1])[:5]:
        says.append(f"{name}: {before[name]:.9g} before, {after[name]:.9g} now ({gap:.1e} of it).")
    if len(moved) > 5:
        says.append(f"{len(moved)} of {len(before)} numbers differ in all.")
    largest = max(moved.values(), default=0.0)
    agreement: Agreement = "different" if apart or missing or largest > CLOSE else "close" if moved else "same"
    words = {
        "same": f"the same: {len(gaps)} numbers, to the last digit.",
        "close": f"the same but for rounding: {len(gaps)} numbers within {largest:.1e}.",
        "different": f"different: {len(gaps) - len(moved)} of {len(before)} numbers agree.",
    }
    return Verification(agreement, (words[agreement], *says), profile)


def all_numbers(profile: Profile) -> dict[str, float]:
    """Every row of a profile, by instrument, quantity, layer and coordinates."""
    return {
        " ".join(filter(None, (part.instrument, row.quantity, row.layer or "", row.where()))): row.value
        for part in profile.parts
        for row in part.rows
    }


def relative_gap(a: float, b: float) -> float:
    """|a − b| / max(|a|, |b|); 0 where both are not a number, infinite where one of them is not finite."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b))
