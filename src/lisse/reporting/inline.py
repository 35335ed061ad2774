"""A profile where a person works: as HTML in a notebook's output."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

from lisse.profile import Profile, Quantity, Row
from lisse.reporting.kinds import KINDS, interval
from lisse.reporting.page.axis import short_number
from lisse.reporting.page.headline import headline_rows
from lisse.reporting.page.svg import Point, element, path_of
from lisse.reporting.series import drawable

_WIDTH, _HEIGHT = 190.0, 54.0
_MOST = 12  # curves that are shown; the others are named
_TEXT = "font-size:12px;line-height:1.4;text-align:left"


def profile_html(profile: Profile) -> str:
    """The headlines of a profile as a table, and a small curve of every quantity over depth."""
    headline, quantities = headline_rows(profile), profile.quantities
    data = profile.about("data")
    about = [str(data.get("name")), f"{data.get('samples', 0):,} samples"] if data else []
    parts = [element("div", element("b", escape(profile.name)), escape(" · ".join(["", *about])))]
    if headline:
        cells = [(label, _value(row), row.kind, f"{row.n:,}", row.layer or row.where(), quantities[row.quantity].says)
                 for label, row in headline.items()]  # fmt: skip
        parts.append(_table(("headline", "value", "kind", "n", "at", "what it says"), cells))
    curves = {name: rows for name in quantities if len(rows := _line(profile, name)) > 1}
    cards = [_card(quantities[name], rows) for name, rows in list(curves.items())[:_MOST]]
    if cards:
        parts.append(element("div", *cards, style="display:flex;flex-wrap:wrap;gap:6px 18px;margin:6px 0"))
    unshown = [name for name in quantities if name not in list(curves)[:_MOST]]
    if unshown:
        parts.append(element("div", escape(f"Also measured: {', '.join(unshown)}.")))
    if profile.notes:
        notes = [element("li", escape(note)) for note in dict.fromkeys(profile.notes)]
        count = f"{len(notes)} note{'s' if len(notes) > 1 else ''}"
        parts.append(element("details", element("summary", escape(count)), element("ul", *notes)))
    hint = ".table() and .frame() are pandas tables, .plot() and .plot(QUANTITY) figures, .save(PATH) a file."
    parts.append(element("div", escape(hint), style="opacity:.6"))
    return str(element("div", *parts, style=_TEXT))


def _value(row: Row) -> str:
    text, ends = KINDS[row.kind].before + short_number(row.value), interval(row)
    return text if ends is None else f"{text} [{', '.join(map(short_number, ends))}]"


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> Markup:
    style = "text-align:left;padding:1px 10px 1px 0;vertical-align:top;min-width:4em"
    head = element("tr", *(element("th", escape(text), style=style) for text in header))
    body = (element("tr", *(element("td", escape(text or " "), style=style) for text in line)) for line in lines)
    return element("table", head, *body, style="border-collapse:collapse;margin:4px 0;font-size:12px")


def _line(profile: Profile, quantity: str) -> list[Row]:
    """The longest line of a quantity over depth: of its coordinates and kinds the one with the most layers."""
    lines: dict[tuple[object, ...], list[Row]] = {}
    for row in profile.rows:
        if row.quantity == quantity and row.layer is not None and row.depth is not None:
            lines.setdefault((row.kind, *sorted(row.at.items(), key=str)), []).append(row)
    rows = max(lines.values(), key=len, default=[])
    return sorted(rows, key=lambda row: row.depth or 0.0)


def _card(quantity: Quantity, rows: Sequence[Row]) -> Markup:
    """A curve, its ends in numbers, and what it is: a shape to look at, no axis to read from."""
    log = quantity.scale == "log"
    values = [row.value if drawable(row.value, log) else math.nan for row in rows]
    scaled = [math.log(value) if log and not math.isnan(value) else value for value in values]
    finite = [value for value in scaled if not math.isnan(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    room = high - low or 1.0
    points: list[Point | None] = [
        None if math.isnan(value) else
        (4 + (row.depth or 0.0) * (_WIDTH - 8), _HEIGHT - 6 - (value - low) / room * (_HEIGHT - 12))
        for row, value in zip(rows, scaled, strict=True)
    ]  # fmt: skip
    dots = [element("circle", cx=point[0], cy=point[1], r=2, fill="currentColor") for point in points if point]
    curve = element("path", d=path_of(points), fill="none", stroke="currentColor", stroke_width=1.3)
    picture = element("svg", curve, *dots, width=_WIDTH, height=_HEIGHT, role="img", aria_label=quantity.label)
    where = " ".join(filter(None, (rows[0].where(), "log" if log else "", rows[0].kind)))
    drawn = [value for value in values if not math.isnan(value)] or [math.nan]
    ends = f"{short_number(drawn[0])} → {short_number(drawn[-1])}, most {short_number(max(drawn))}"
    return element(
        "div",
        element("div", element("b", escape(quantity.name)), escape(f" {where}"), title=quantity.says),
        picture,
        element("div", escape(ends), style="opacity:.75"),
    )
