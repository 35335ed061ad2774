"""The frame of every page: one file that loads nothing, runs its own script alone, and escapes what others wrote."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

import lisse
from lisse.reporting.page.entries import DARK, LIGHT

#: Of a name, a family, a reason.
MOST_LETTERS = 400


def framed(name: str, *, title: str, colours: int, data: Mapping[str, Any], **values: Any) -> str:
    """The page of template ``name`` (``atlas/atlas``: HTML, style and script of ``reporting/atlas/templates``).

    The policy in its head lets this very script run and nothing else. ``colours`` is how many things have one of their
    own, and ``data`` what the script reads.
    """
    script = template_text(f"{name}.js")
    return _environment().get_template(f"{name}.html").render(
        title=title,
        colours=[(index, LIGHT[index % len(LIGHT)], DARK[index % len(DARK)]) for index in range(colours)],
        data=_script_json(data),
        style=Markup(template_text(f"{name}.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=lisse.__version__,
        **values,
    )  # fmt: skip


def template_text(name: str) -> str:
    """What stands in the file ``FOLDER/NAME`` of the templates."""
    folder, _, file = name.partition("/")
    return files("lisse.reporting").joinpath(folder, "templates", file).read_text("utf-8")


def brief(text: str) -> str:
    """A text that others wrote, cut where a page has no room, without signs that turn round the words after it."""
    text = text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…"
    return re.sub("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]", "\ufffd", text)


def _breakable(text: str) -> Markup:
    """A spec that a line may end in, behind each of its options."""
    return Markup("&amp;<wbr>").join(text.split("&"))


def _script_json(document: Mapping[str, Any]) -> Markup:
    """JSON inside a script element: nothing in it can end the element or begin another."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(template_text),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cited": _cited, "truncated": _truncated, "brief": brief, "breakable": _breakable}
    return environment


@functools.cache
def _papers() -> dict[str, str]:
    return json.loads(template_text("page/papers.json"))


def _cited(reference: str) -> Markup:
    """``[petrini2021] eq. 4`` with the paper's authors, title and year in full."""
    key, _, equation = reference.partition("]")
    paper = _papers().get(key.lstrip("["))
    if paper is None:
        return Markup("{}").format(reference)
    return Markup("{}{}").format(paper, f", {equation.strip()}" if equation.strip() else "")


def _truncated(words: list[str], most: int = 6) -> str:
    """A list of names, cut where it grows long."""
    return ", ".join(words) if len(words) <= most else ", ".join(words[:most]) + ", …"
