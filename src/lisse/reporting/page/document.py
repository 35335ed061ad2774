"""report(): profiles to one self-contained HTML file, written whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import lisse
from lisse.profile import Profile
from lisse.profile_file import number_to_json, writing
from lisse.reporting.kinds import KINDS
from lisse.reporting.page.axis import short_number
from lisse.reporting.page.entries import DASHES, Entries, Entry, PageModel, entries_of
from lisse.reporting.page.frame import framed
from lisse.reporting.page.headline import Heading, heading_entry, page_headings, standing_layer
from lisse.reporting.page.peers import among_peers, test_error
from lisse.reporting.page.pictures import diagram_svg, diagrams, has_diagrams, image_strips
from lisse.reporting.page.sections import identifier, section
from lisse.reporting.page.sentence import TOP, Sentence
from lisse.reporting.page.svg import element
from lisse.reporting.page.verdict import verdict

MOST_BYTES = 5_000_000
# What stands behind the three lines, folded.
FOLDS = (
    ("Pair by pair", ("pair",)),
    ("Number by number", ("method", "comparison")),
    ("Each network by itself", ("training",)),
    ("To be known", ("caveat",)),
)
COLUMNS = ("model", "initial", "instrument", "quantity", "layer", "depth", "value", "low", "high", "kind", "n", "at")


@dataclass(frozen=True)
class Page:
    """A report as text: a notebook shows it in a frame of its own, :meth:`save` writes the file."""

    text: str
    height: int = 700

    def save(self, path: str | Path) -> Path:
        """Write the page, atomically; returns the path."""
        with writing(Path(path)) as file:
            file.write(self.text.encode("utf-8", "backslashreplace"))  # a lone surrogate of a file's name
        return Path(path)

    def __repr__(self) -> str:
        return f"Page({len(self.text):,} characters; .save(path) writes it)"

    def _repr_html_(self) -> str:
        """The page in a sandbox: its script sees nothing of the notebook."""
        return str(
            element("iframe", " ", srcdoc=self.text, sandbox="allow-scripts", width="100%", height=self.height,
                    style="border:1px solid #8884", title="lisse report")
        )  # fmt: skip


@overload
def report(
    profiles: Profile | Iterable[Profile],
    path: str | Path,
    *,
    title: str | None = None,
    sentences: Sequence[Sentence] | None = None,
) -> Path: ...
@overload
def report(
    profiles: Profile | Iterable[Profile], *, title: str | None = None, sentences: Sequence[Sentence] | None = None
) -> Page: ...
def report(
    profiles: Profile | Iterable[Profile],
    path: str | Path | None = None,
    *,
    title: str | None = None,
    sentences: Sequence[Sentence] | None = None,
) -> Path | Page:
    """Write one HTML page about ``profiles`` to ``path`` and return the path; without one, return the :class:`Page`.

    The page opens from disk without a server or the network, holds its own data, and is written atomically. Profiles
    of the same model at initialisation (``provenance["reference"]``) become reference lines. What an instrument did
    not measure is said on the page with the reason. ``sentences`` are those of :func:`~lisse.reporting.verdict`, where
    they are there already. A :class:`Page` is shown in a notebook as it is.
    """
    result = Page(page(profiles, title=title, sentences=sentences))
    return result if path is None else result.save(path)


def page(
    profiles: Profile | Iterable[Profile], *, title: str | None = None, sentences: Sequence[Sentence] | None = None
) -> str:
    """The page as text."""
    entries = entries_of(profiles)
    shapes = diagrams(entries)
    spoken = verdict(entries) if sentences is None else sentences
    document = framed(
        "page/page",
        title=title or _title(entries),
        models=[_model(model) for model in entries.models],
        colours=len(entries.models),
        has_initial=any(model.initial for model in entries.models),
        overall=[sentence for sentence in spoken if sentence.topic in TOP],
        folds=[(title, [sentence for sentence in spoken if sentence.topic in topics]) for title, topics in FOLDS],
        headline=_headline(entries),
        peers=among_peers(entries),
        sections=[_section(entries, name) for name in entries.instruments],
        shapes=_shapes(entries, shapes),
        data={**_data(entries, spoken), "diagrams": shapes},
        cell=_cell,
        anchor=identifier,
        dashes=lambda index: DASHES[index % len(DASHES)],
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


def _model(model: PageModel) -> dict[str, Any]:
    provenance = model.profile.provenance
    card, skipped = model.profile.about("model"), provenance.get("skipped")
    error = test_error(model)
    facts = [
        ("model", card.get("spec") or card.get("class")),
        ("networks", model.networks if model.networks > 1 else None),
        ("parameters", f"{card['parameters']:,}" if isinstance(card.get("parameters"), int) else None),
        ("accuracy", None if error is None else f"{1 - error:.1%} of {provenance['score'].get('n', '?'):,} samples"),
        ("data", f"{model.data.get('name', '?')}, {model.data.get('samples', '?')} samples" if model.data else None),
        ("layers", len(provenance["layers"]) if isinstance(provenance.get("layers"), list) else None),
        *((key, provenance.get(key)) for key in ("seed", "device", "date")),
        ("took", f"{provenance['seconds']:,.0f} s" if isinstance(provenance.get("seconds"), (int, float)) else None),
        ("weights", str(card.get("fingerprint"))[:12] if card.get("fingerprint") else None),
        ("versions", ", ".join(f"{key} {version}" for key, version in model.profile.about("versions").items()) or None),
    ]  # fmt: skip
    return {
        "index": model.index,
        "name": model.name,
        "facts": [(key, value) for key, value in facts if value is not None],
        "skipped": [tap for tap in skipped if isinstance(tap, Mapping)] if isinstance(skipped, list) else [],
        "initial": len(model.initial),
    }


def _headline(entries: Entries) -> list[dict[str, Any]]:
    """A line per headline number, a cell per model."""
    lines = []
    for heading in page_headings(entries):
        cells = [heading_entry(entries, heading, model.index) for model in entries.models]
        first = next((cell.row for cell in cells if cell is not None), None)
        if first is not None:
            lines.append(
                {
                    "label": heading.label,
                    "says": heading.headline.says or heading.quantity.says,
                    "better": heading.quantity.better,
                    "where": ", ".join(filter(None, (first.where(), _place_words(entries, heading, cells)))),
                    "judges": heading.quantity.judges,
                    "printed": bool(heading.quantity.reference),
                    "instrument": heading.instrument,
                    "cells": [cell and _cell(cell) for cell in cells],
                }
            )
    return lines


def _place_words(entries: Entries, heading: Heading, cells: Sequence[Entry | None]) -> str:
    """Where in the network a line's numbers stand, and over how many layers those are that belong to none."""
    numbers = [cell for cell in cells if cell is not None]
    layers = {cell.row.layer for cell in numbers}
    if len(layers) == 1 and None not in layers:
        return f"at {layers.pop()}"
    if layers == {None}:
        name = f"samples/{heading.quantity.name}"
        arrays = [part.arrays.get(name) for _, part in entries.parts(heading.instrument)]
        if any(array is not None and array.ndim == 1 for array in arrays):
            return ""  # a number of each sample, from input to output: not taken over layers
        counts = [_layer_count(entries, cell) for cell in numbers]
        return f"{' and '.join(dict.fromkeys(map(str, counts)))} layers read" if all(counts) else ""
    blocks = (standing_layer(entries.models[cell.model].profile, heading.quantity) for cell in numbers)
    if all(cell.row.layer == block for cell, block in zip(numbers, blocks, strict=True)):
        return "at the last block"
    return "" if None in layers else "at the last layer that has one"


def _layer_count(entries: Entries, cell: Entry) -> int:
    rows = (entry for entry in entries.rows if (entry.model, entry.instrument) == (cell.model, cell.instrument))
    return len({entry.row.layer for entry in rows if not entry.initial} - {None})


def _cell(entry: Entry) -> dict[str, Any]:
    row = entry.row
    ends = None if row.low is None else f"[{short_number(row.low)}, {short_number(row.high)}]"
    value = KINDS[row.kind].before + short_number(row.value)
    return {"value": value, "ends": ends, "n": f"{row.n:,}" if row.n else None, "row": entry.index}


def _section(entries: Entries, name: str) -> dict[str, Any]:
    # Images may not depend on the model: the same strip of two models is shown once.
    strips: dict[str, tuple[list[str], str, list[list[str]]]] = {}
    for model, part in entries.parts(name):
        for title, rows in image_strips(part):
            strips.setdefault(json.dumps([title, rows]), ([], title, rows))[0].append(model.name)
    says = next((chart.says for chart in entries.charts(name) if chart.panels[:1] and chart.panels[0].form == "images"),
                "Images that the instrument kept.")  # fmt: skip
    return {
        "section": section(entries, name),
        "strips": [(", ".join(names), title, rows) for names, title, rows in strips.values()],
        "strips_say": says,
    }


def _shapes(entries: Entries, shapes: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The first view of the persistence diagrams, the slider's range, and the section they stand in."""
    if not shapes:
        return None
    views = []
    for shape in shapes:
        layer, name = shape["layers"][-1], entries.models[shape["model"]].name
        views.append({"model": shape["model"], "name": name, "layer": layer["layer"], "svg": diagram_svg(layer, name)})
    layers = [layer for shape in shapes for layer in shape["layers"]]
    owner = next(name for name in entries.instruments for _, part in entries.parts(name) if has_diagrams(part))
    return {
        "steps": max(1, max(len(shape["layers"]) for shape in shapes) - 1),
        "views": views,
        "dims": list(dict.fromkeys(dim for layer in layers for dim in layer["bars"])),
        "cut": any(len(bars) < layer["total"][dim] for layer in layers for dim, bars in layer["bars"].items()),
        "without": [model.name for model in entries.models if model.index not in {shape["model"] for shape in shapes}],
        "section": identifier(owner),
    }


def _data(entries: Entries, sentences: Sequence[Sentence]) -> dict[str, Any]:
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
                {key: number_to_json(value) if isinstance(value, float) else value for key, value in row.at.items()},
            ]
        )
    return {
        "lisse": lisse.__version__,
        "models": [model.name for model in entries.models],
        "provenance": [_jsonable(model.profile.provenance) for model in entries.models],
        "labels": {
            name: {quantity.name: quantity.label for quantity in entries.quantities(name).values()}
            for name in entries.instruments
        },
        "columns": COLUMNS,
        "rows": rows,
        "verdict": [{"text": sentence.text, "rows": sentence.rows, "topic": sentence.topic} for sentence in sentences],
    }


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
