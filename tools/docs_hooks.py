"""What mkdocs does beyond Markdown: formulas become MathML, citations become links, references.bib becomes a list.

MathML is drawn by every current browser itself, so the site needs no script, no font and no network for its formulas.
A formula that cannot be converted, a citation of an unknown key, or a page that loads something from outside stops the
build.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

BIBLIOGRAPHY = Path(__file__).resolve().parent.parent / "docs" / "references.bib"
PLACE = "<!-- references -->"
ENTRY = re.compile(r"@\w+\{(?P<key>\w+),(?P<fields>.*?)\n\}", re.DOTALL)
FIELD = re.compile(r"(\w+)\s*=\s*\{(.*)\},?\s*$", re.MULTILINE)
CITATION = re.compile(r"\[([a-z]+(?:19|20)\d{2}[a-z]?)\](?![(\[:])")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
OUTSIDE = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^"'> ]+""")
LETTERS = {r"{\o}": "ø", r"{\L}": "Ł"}


def bibliography(text: str) -> dict[str, dict[str, str]]:
    """Key to fields, in the order of the file."""
    for code, letter in LETTERS.items():
        text = text.replace(code, letter)
    return {entry["key"]: dict(FIELD.findall(entry["fields"])) for entry in ENTRY.finditer(text)}


def reference(key: str, fields: dict[str, str]) -> str:
    """One entry as a line of Markdown, with an anchor that citations point to."""
    names = [" ".join(reversed(name.split(", "))) for name in fields["author"].split(" and ")]
    authors = names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
    journal = fields.get("booktitle") or fields.get("journal")
    volume = f" {fields['volume']}" if "volume" in fields else ""
    parts = [f"**{key}**{{ #{key} }} {authors}. *{fields['title'].rstrip('.')}*"]
    parts.append(f"{journal}{volume}, {fields['year']}" if journal else fields["year"])
    if "eprint" in fields:
        parts.append(f"[arXiv:{fields['eprint']}](https://arxiv.org/abs/{fields['eprint']})")
    if "note" in fields:
        parts.append(fields["note"])
    return re.sub(r"([?!])\*\. ", r"\1* ", ". ".join(parts)) + "."


def mathml(content: str) -> str:
    """The page with every formula as MathML."""

    def formula(match: re.Match[str]) -> str:
        display = "inline" if match[2] == "(" else "block"
        converted = convert(html.unescape(match[3]).strip(), display=display)
        if "\\" in converted:  # commands it does not know are passed on as they are
            raise ValueError(f"mathml: a formula must use commands latex2mathml knows, got {match[3].strip()}")
        return converted

    return FORMULA.sub(formula, content)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Lists the references where a page asks for them, and links ``[petrini2021]`` to its entry."""
    entries = bibliography(BIBLIOGRAPHY.read_text(encoding="utf-8"))
    if PLACE in markdown:
        listed = "\n".join(f"- {reference(key, fields)}" for key, fields in entries.items())
        return markdown.replace(PLACE, listed)
    cited = sorted(set(CITATION.findall(markdown)))
    for key in cited:
        if key not in entries:
            raise PluginError(f"{page.file.src_uri}: [{key}] must be a key of docs/references.bib, got none like it.")
    target = posixpath.relpath("references.md", posixpath.dirname(page.file.src_uri) or ".")
    return markdown + "\n\n" + "\n".join(f"[{key}]: {target}#{key}" for key in cited) + "\n"


def on_page_content(content: str, *, page: Any, **_: Any) -> str:
    """Formulas, after Markdown."""
    try:
        return mathml(content)
    except Exception as error:
        raise PluginError(f"{page.file.src_uri}: a formula could not be converted: {error!r}") from error


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """A page must not load anything from outside."""
    if match := OUTSIDE.search(output):
        raise PluginError(f"{page.file.src_uri}: must not load anything from outside, got {match[0]!r}.")
    return output
