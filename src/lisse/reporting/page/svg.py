"""Elements of SVG as escaped text: whatever a model or a layer is called, it stays text."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

Point = tuple[float, float]


def element(name: str, *inside: str | Markup, **attributes: str | float | None) -> Markup:
    """``<name key="value">inside</name>``; ``class_`` is ``class``, ``data_row`` ``data-row``, ``None`` is left out."""
    parts = [
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    body = Markup("").join(inside)
    return Markup(f"<{name}{''.join(parts)}>{body}</{name}>" if body else f"<{name}{''.join(parts)}/>")


def text(at: Point, words: str, *, class_: str, anchor: str = "start", **more: str | float | None) -> Markup:
    """A text at a point."""
    return element("text", escape(words), x=at[0], y=at[1], class_=class_, text_anchor=anchor, **more)


def path_of(points: Sequence[Point | None]) -> str:
    """A path through points; ``None`` lifts the pen."""
    words, down = [], False
    for point in points:
        if point is None:
            down = False
            continue
        words.append(f"{'L' if down else 'M'}{_text(point[0])} {_text(point[1])}")
        down = True
    return "".join(words)


def mark_path(kind: str, at: Point, size: float) -> str:
    """The outline of a mark: its shape says what kind of number it is."""
    x, y = at
    if kind == "exact":
        s = size * 0.88
        return f"M{_text(x - s)} {_text(y - s)}h{_text(2 * s)}v{_text(2 * s)}h{_text(-2 * s)}z"
    if kind in ("lower", "upper"):
        up = -1 if kind == "lower" else 1
        s = size * 1.2
        return f"M{_text(x)} {_text(y + up * s)}L{_text(x + s)} {_text(y - up * s * 0.75)}H{_text(x - s)}z"
    if kind == "heuristic":
        s = size * 1.25
        return (
            f"M{_text(x)} {_text(y - s)}L{_text(x + s)} {_text(y)}L{_text(x)} {_text(y + s)}L{_text(x - s)} {_text(y)}z"
        )
    half = f"a{_text(size)} {_text(size)} 0 1 0 "
    return f"M{_text(x - size)} {_text(y)}{half}{_text(2 * size)} 0{half}{_text(-2 * size)} 0z"


def _text(value: str | float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
