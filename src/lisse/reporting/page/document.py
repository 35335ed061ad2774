"""report(): profiles to one self-contained HTML file, written whole or not at all."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

import lisse
from lisse.profile import Profile
from lisse.profile_file import number_to_json, writing
from lisse.reporting.page.axis import number
from lisse.reporting.page.entries import DARK, DASHES, LIGHT, Entries, Entry, Model, entries_of
from lisse.reporting.page.formulas import formula_html
from lisse.reporting.page.headline import headline_entry, page_headlines
from lisse.reporting.page.pictures import diagram_svg, diagrams, place_among_networks, strips, test_error
from lisse.reporting.page.sections import identifier, section
from lisse.reporting.page.verdict import Sentence, verdict

MOST_BYTES = 5_000_000
COLUMNS = ("model", "initial", "instrument", "quantity", "layer", "depth", "value", "low", "high", "kind", "n", "at")

STRIP_SAYS = {
    "stability": "Samples as they are, and deformed by the fields that were used, at the displacement δ.",
    "propagation": "The decoder from layer to layer: what each one holds of the picture.",
}


def report(profiles: Profile | Iterable[Profile], path: str | Path, *, title: str | None = None) -> Path:
    """Write one HTML page about ``profiles`` to ``path`` and return the path.

    The page opens from disk without a server or the network, holds its own data, and is written atomically. Profiles
    of the same model at initialisation (``provenance["reference"]``) become reference lines. What an instrument did
    not measure is said on the page with the reason.
    """
    path = Path(path)
    text = page(profiles, title=title)
    with writing(path) as file:
        file.write(text.encode("utf-8"))
    return path


def page(profiles: Profile | Iterable[Profile], *, title: str | None = None) -> str:
    """The page as text."""
    entries = entries_of(profiles)
    script = _text("page.js")
    shapes = diagrams(entries)
    said = verdict(entries)
    document = _environment().get_template("page.html").render(
        title=title or _title(entries),
        models=[_model(model, entries) for model in entries.models],
        colours=[(place, LIGHT[place % len(LIGHT)], DARK[place % len(DARK)]) for place in range(len(entries.models))],
        has_initial=any(model.initial for model in entries.models),
        overall=[
            one
            for one in said
            if one.topic == "overall" or (one.topic == "caveat" and (len(one.models) > 1 or len(entries.models) == 1))
        ],
        sentences=[one for one in said if one.topic in ("tear", "training", "sure")]
        + [one for one in said if one.topic == "caveat" and len(one.models) == 1 and len(entries.models) > 1],
        comparisons=[one for one in said if one.topic == "comparison"],
        headline=_headline(entries),
        place=place_among_networks(entries),
        sections=[_section(entries, name) for name in entries.instruments],
        shapes=_shapes(entries, shapes),
        papers=_papers(),
        data=_embedded({**_data(entries, said), "diagrams": shapes}),
        style=Markup(_text("page.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode(),
        version=lisse.__version__,
        number=number,
        cell=_cell,
        formula=formula_html,
        anchor=identifier,
        dashes=lambda place: DASHES[place % len(DASHES)],
        shapes_at=_home(entries, "diagram/"),
        place_at=identifier(_owner(entries, "relative_stability")),
        strip_says=lambda name: STRIP_SAYS.get(name, "Images that the instrument kept."),
    )  # fmt: skip
    if len(document) > MOST_BYTES:
        raise ValueError(
            f"report: profiles must fit on a page of {MOST_BYTES // 10**6} MB, got {len(document) / 1e6:.1f} MB. "
            "Give fewer models, or profiles with fewer layers or coordinates."
        )
    return document


# -- what the template reads -----------------------------------------------------------------------------------------


def _title(entries: Entries) -> str:
    names = [model.name for model in entries.models]
    return " and ".join(names) if len(names) < 3 else f"{len(names)} networks"


def _model(model: Model, entries: Entries) -> dict[str, Any]:
    said = model.profile.provenance
    given, skips = said.get("model"), said.get("skipped")
    about: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    skipped = skips if isinstance(skips, list) else []
    error = test_error(model)
    facts = [
        ("model", about.get("spec") or about.get("class")),
        ("networks", model.networks if model.networks > 1 else None),
        ("parameters", f"{about['parameters']:,}" if isinstance(about.get("parameters"), int) else None),
        ("accuracy", None if error is None else f"{1 - error:.1%} of {said['score'].get('n', '?'):,} samples"),
        ("data", f"{model.data.get('name', '?')}, {model.data.get('samples', '?')} samples" if model.data else None),
        ("layers", len(said["layers"]) if isinstance(said.get("layers"), list) else None),
        ("seed", said.get("seed")),
        ("device", said.get("device")),
        ("date", said.get("date")),
        ("took", f"{said['seconds']:,.0f} s" if isinstance(said.get("seconds"), (int, float)) else None),
        ("weights", str(about.get("fingerprint"))[:12] if about.get("fingerprint") else None),
        ("versions", ", ".join(f"{k} {v}" for k, v in said["versions"].items())
         if isinstance(said.get("versions"), Mapping) else None),
    ]  # fmt: skip
    return {
        "place": model.place,
        "name": model.name,
        "facts": [(key, value) for key, value in facts if value is not None],
        "skipped": [one for one in skipped if isinstance(one, Mapping)],
        "initial": len(model.initial),
    }


def _headline(entries: Entries) -> list[dict[str, Any]]:
    """A line per headline number, a cell per model."""
    found = []
    for line in page_headlines(entries):
        cells = [headline_entry(entries, line, model.place) for model in entries.models]
        first = next((cell for cell in cells if cell is not None), None)
        if first is None:
            continue
        quantity = entries.quantities(first.instrument)[line.quantity]
        found.append(
            {
                "label": line.label,
                "says": line.says or quantity.says,
                "better": quantity.better,
                "where": first.row.where() + (f" at {first.row.layer}" if first.row.layer and len(cells) == 1 else ""),
                "instrument": first.instrument,
                "cells": [_cell(cell) for cell in cells],
            }
        )
    return found


def _cell(entry: Entry | None) -> dict[str, Any] | None:
    if entry is None:
        return None
    row = entry.row
    sign = {"lower": "≥ ", "upper": "≤ ", "heuristic": "~ "}.get(row.kind, "")
    ends = None if row.low is None else f"[{number(row.low)}, {number(row.high)}]"
    return {"value": sign + number(row.value), "ends": ends, "row": entry.index}


def _section(entries: Entries, name: str) -> dict[str, Any]:
    made = section(entries, name)
    images = [(model, title, rows) for model, part in entries.parts(name) for title, rows in strips(part)]
    # Deformed images do not depend on the model: the same strip of two models is shown once.
    seen: dict[str, tuple[list[str], str, list[list[str]]]] = {}
    for model, title, rows in images:
        key = json.dumps([title, rows])
        seen.setdefault(key, ([], title, rows))[0].append(model.name)
    return {"made": made, "strips": [(", ".join(names), title, rows) for names, title, rows in seen.values()]}


def _shapes(entries: Entries, shapes: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The first view of the persistence diagrams, and the slider's range."""
    if not shapes:
        return None
    steps = max(len(each["layers"]) for each in shapes) - 1
    views = []
    for each in shapes:
        layer = each["layers"][-1]
        name = entries.models[each["model"]].name
        views.append({"model": each["model"], "name": name, "layer": layer["layer"], "svg": diagram_svg(layer, name)})
    dims = list(dict.fromkeys(dim for each in shapes for layer in each["layers"] for dim in layer["bars"]))
    cut = any(
        len(bars) < layer["total"][dim] for e in shapes for layer in e["layers"] for dim, bars in layer["bars"].items()
    )
    without = [model.name for model in entries.models if model.place not in {each["model"] for each in shapes}]
    return {"steps": max(1, steps), "views": views, "dims": dims, "cut": cut, "without": without}


def _home(entries: Entries, prefix: str) -> str:
    """The section of the instrument that keeps arrays of this kind."""
    for name in entries.instruments:
        for _, part in entries.parts(name):
            if any(key.startswith(prefix) for key in part.arrays):
                return identifier(name)
    return ""


def _owner(entries: Entries, quantity: str) -> str:
    return next((name for name in entries.instruments if quantity in entries.quantities(name)), "none")


def _data(entries: Entries, said: list[Sentence]) -> dict[str, Any]:
    """Everything the page's numbers come from, as plain JSON."""
    rows = []
    for entry in entries.rows:
        row = entry.row
        rows.append(
            [
                entry.model,
                entry.initial,
                entry.instrument,
                row.quantity,
                row.layer,
                row.depth,
                *(None if value is None else number_to_json(value) for value in (row.value, row.low, row.high)),
                row.kind,
                row.n,
                {key: number_to_json(v) if isinstance(v, float) else v for key, v in row.at.items()},
            ]
        )
    return {
        "lisse": lisse.__version__,
        "models": [model.name for model in entries.models],
        "provenance": [_jsonable(model.profile.provenance) for model in entries.models],
        "labels": {
            name: {each.name: each.label for each in entries.quantities(name).values()} for name in entries.instruments
        },
        "columns": COLUMNS,
        "rows": rows,
        "verdict": [{"text": one.text, "rows": one.rows, "topic": one.topic} for one in said],
    }


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def _embedded(document: Mapping[str, Any]) -> Markup:
    """JSON inside a script element: nothing in it can end the element or begin another."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


@functools.cache
def _papers() -> dict[str, str]:
    return json.loads(_text("papers.json"))


@functools.cache
def _environment() -> Environment:
    def load(name: str) -> str:
        return _text(name)

    made = Environment(
        autoescape=True, loader=FunctionLoader(load), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters["cited"] = _cited
    made.filters["truncated"] = _truncated
    return made


def _cited(reference: str) -> Markup:
    """``[petrini2021] eq. 4`` with the paper's authors, title and year in full."""
    key, _, rest = reference.partition("]")
    paper = _papers().get(key.lstrip("["))
    if paper is None:
        return Markup("{}").format(reference)
    return Markup("{}{}").format(paper, f", {rest.strip()}" if rest.strip() else "")


def _truncated(words: list[str], most: int = 6) -> str:
    """A list of names, cut where it grows long."""
    return ", ".join(words) if len(words) <= most else ", ".join(words[:most]) + ", …"


def _text(name: str) -> str:
    return files("lisse.reporting.page").joinpath("templates", name).read_text("utf-8")
