"""A profile as plain JSON and named arrays, and back: every type is checked on the way in and on the way out."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Set
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import quote

import numpy as np

from lisse.profile import Chart, Part, Profile, Quantity, Row
from lisse.profile_file.container import ArrayEntries, Fetch, excerpt, wrong

MAX_NESTING = 64
_NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_TAG = "$float"


def part_to_json(part: Part, index: int, entries: ArrayEntries) -> dict[str, Any]:
    """A part as JSON; its arrays go into ``entries`` under the names they have in the zip."""
    words = {"beside": part.beside, "finding": part.finding}  # only of parts of two networks
    return {
        **{key: text for key, text in words.items() if text},
        "instrument": part.instrument,
        "options": free_to_json(part.options, f"options of {part.instrument}"),
        "quantities": [_declared_to_json(quantity) for quantity in part.quantities],
        "charts": [_declared_to_json(chart) for chart in part.charts],
        "rows": [row_to_json(row) for row in part.rows],
        "notes": list(part.notes),
        "arrays": arrays_to_json(part.arrays, index, entries),
    }


def _declared_to_json(declared: Any) -> dict[str, Any]:
    """A quantity or chart, and what is inside it. What differs from the defaults is enough: they are the format's."""
    document = {}
    for item in fields(declared):
        value = getattr(declared, item.name)
        if value != (item.default_factory() if item.default_factory is not MISSING else item.default):
            document[item.name] = _value_to_json(value, f"{type(declared).__name__} {item.name}")
    return document


def _value_to_json(value: Any, where: str) -> Any:
    if is_dataclass(value):
        return _declared_to_json(value)
    return [_value_to_json(item, where) for item in value] if isinstance(value, tuple) else free_to_json(value, where)


def arrays_to_json(arrays: Mapping[str, np.ndarray], index: int, entries: ArrayEntries) -> list[str]:
    """The names of the arrays, which go into ``entries``; object, masked and foreign dtypes are refused."""
    for name, values in arrays.items():
        _text(name, "an array's name")
        if isinstance(values, np.ma.MaskedArray):
            raise ValueError(f"array {name!r} is masked; fill it first")
        array = np.asarray(values, order="C")
        if array.dtype.hasobject:
            raise ValueError(f"array {name!r} has dtype {array.dtype}, which only pickle could store")
        if np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(array.dtype)) != array.dtype:
            raise ValueError(f"array {name!r} has dtype {array.dtype}, which .npy does not know")
        entry = _entry(index, name)
        if len(entry) > 60_000:
            raise ValueError(f"an array's name has {len(name)} characters, more than a zip can hold")
        entries[entry] = array
    return list(arrays)


def free_to_json(value: Any, where: str, nesting: int = 0) -> Any:
    """Anything JSON has (provenance, options) with NaN and infinities as ``{"$float": "nan"}``."""
    if nesting > MAX_NESTING:
        raise ValueError(f"{where} is nested deeper than {MAX_NESTING}")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (str, int)):  # enumerations and other subclasses as what they are
        return str(value) if isinstance(value, str) else int(value)
    if isinstance(value, float):
        number = number_to_json(value)
        return {_TAG: number} if isinstance(number, str) else number
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == _TAG:
                raise ValueError(f"{where} has the key {key!r}; keys are strings other than {_TAG!r}")
        return {key: free_to_json(item, f"{where}.{key}", nesting + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [free_to_json(item, where, nesting + 1) for item in value]
    raise ValueError(f"{where} holds a {type(value).__name__}, which JSON does not have")


def number_to_json(value: float) -> float | str:
    """A number, or ``"nan"``, ``"inf"``, ``"-inf"``."""
    value = float(value)
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def row_to_json(row: Row) -> dict[str, Any]:
    """A row as strictly valid JSON; ``None`` and an empty ``at`` are left out, NaN and infinities become strings."""
    out: dict[str, Any] = {
        "quantity": row.quantity,
        "value": number_to_json(row.value),
        "kind": row.kind,
        "n": int(row.n),
    }
    if row.layer is not None:
        out["layer"] = row.layer
    for key in ("depth", "low", "high"):
        if getattr(row, key) is not None:
            out[key] = number_to_json(getattr(row, key))
    if row.at:
        out["at"] = free_to_json(row.at, f"at of {row.quantity}")
    return out


def profile_from_json(document: Any, fetch: Fetch) -> Profile:
    """The profile a document describes; ``fetch`` gives the array of an entry."""
    _keys(document, "the profile", {"provenance", "parts"})
    parts = [_part_from_json(part, index, fetch) for index, part in enumerate(_list(document["parts"], "parts"))]
    return Profile(tuple(parts), _mapping(document["provenance"], "provenance"))


def one_part_from_json(document: Any, fetch: Fetch) -> Part:
    """The single part a document describes."""
    _keys(document, "the part", {"part"})
    return _part_from_json(document["part"], 0, fetch)


def only_arrays_from_json(document: Any, fetch: Fetch) -> dict[str, np.ndarray]:
    """The arrays a document names."""
    _keys(document, "the file", {"arrays"})
    return _arrays_from_json(document["arrays"], 0, fetch)


def _part_from_json(document: Any, index: int, fetch: Fetch) -> Part:
    where = f"part {index}"
    needed, more = {"instrument", "options", "quantities", "rows", "notes", "arrays"}, {"charts", "beside", "finding"}
    _keys(document, where, needed, more)
    quantities, charts = (_list(document.get(key, []), f"{where}: {key}") for key in ("quantities", "charts"))
    return Part(
        _text(document["instrument"], f"{where}: instrument"),
        tuple(_row_from_json(row, where) for row in _list(document["rows"], f"{where}: rows")),
        tuple(_declared_from_json(Quantity, item, f"{where}: a quantity") for item in quantities),
        tuple(_text(note, f"{where}: a note") for note in _list(document["notes"], f"{where}: notes")),
        _arrays_from_json(document["arrays"], index, fetch),
        _mapping(document["options"], f"{where}: options"),
        tuple(_declared_from_json(Chart, item, f"{where}: a chart") for item in charts),
        beside=_text(document.get("beside", ""), f"{where}: beside"),
        finding=_text(document.get("finding", ""), f"{where}: finding"),
    )


def _declared_from_json(kind: type, document: Any, where: str) -> Any:
    """A quantity or chart, every field of which is what its annotation says."""
    if kind is Quantity and isinstance(document, dict):
        document = {key: value for key, value in document.items() if key != "peak"}  # it was a sentence once
    _keys(document, where, {item.name for item in fields(kind) if item.default is item.default_factory is MISSING},
          {item.name for item in fields(kind)})  # fmt: skip
    hints = get_type_hints(kind)
    return kind(**{key: _value_from_json(hints[key], value, f"{where}'s {key}") for key, value in document.items()})


def _value_from_json(hint: Any, value: Any, where: str) -> Any:
    origin, inside = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return _declared_from_json(hint, value, where)
    if origin is types.UnionType:  # a headline, or a value; None is a default, and so not in the file
        kinds = [kind for kind in inside if kind is not types.NoneType]
        complex_ = [kind for kind in kinds if is_dataclass(kind) or get_origin(kind) is not None]
        return _value_from_json(complex_[0], value, where) if complex_ else _scalar(tuple(kinds), value, where)
    if origin is tuple:
        return tuple(_value_from_json(inside[0], item, where) for item in _list(value, where))
    if origin is Mapping:
        return {key: _value_from_json(inside[1], item, where) for key, item in _mapping(value, where).items()}
    return _scalar((str,) if origin is Literal else (hint,), value, where)


def _scalar(kinds: tuple[type, ...], value: Any, where: str) -> Any:
    if type(value) is int and float in kinds and int not in kinds:
        return float(value)
    if type(value) not in kinds:
        words = {str: "a string", bool: "true or false", int: "an integer", float: "a number"}
        wrong(where, " or ".join(words[kind] for kind in kinds), value)
    return value


def _row_from_json(document: Any, where: str) -> Row:
    _keys(document, f"{where}: a row", {"quantity", "value", "kind", "n"}, {"layer", "depth", "low", "high", "at"})
    n = document["n"]
    if type(n) is not int:
        wrong(f"{where}: a row's n", "an integer", n)
    at = _mapping(document.get("at", {}), f"{where}: a row's at")
    for value in at.values():
        if not isinstance(value, (str, int, float)):
            wrong(f"{where}: a row's at", "strings and numbers", value)
    optional = {
        key: _number(document[key], f"{where}: a row's {key}") for key in ("depth", "low", "high") if key in document
    }
    return Row(
        _text(document["quantity"], f"{where}: a row's quantity"),
        _number(document["value"], f"{where}: a row's value"),
        _text(document["kind"], f"{where}: a row's kind"),  # type: ignore[arg-type]  # Row checks it
        n,
        layer=_text(document["layer"], f"{where}: a row's layer") if "layer" in document else None,
        at=at,
        **optional,
    )


def _arrays_from_json(document: Any, index: int, fetch: Fetch) -> dict[str, np.ndarray]:
    names = [_text(name, "an array's name") for name in _list(document, "arrays")]
    if len(set(names)) != len(names):
        raise ValueError("an array's name appears twice")
    return {name: fetch(_entry(index, name)) for name in names}


def _entry(index: int, name: str) -> str:
    try:
        return f"arrays/{index}/{quote(name, safe=' ()[],=+@')}.npy"
    except UnicodeEncodeError:
        raise ValueError(f"the array's name {name!r} is not valid Unicode") from None


def free_from_json(value: Any, where: str, nesting: int = 0) -> Any:
    """What :func:`free_to_json` wrote."""
    if nesting > MAX_NESTING:
        raise ValueError(f"{where} is nested deeper than {MAX_NESTING}")
    if isinstance(value, dict):
        if _TAG in value:
            if len(value) != 1 or not isinstance(value[_TAG], str):
                wrong(where, f'{{"{_TAG}": "nan" | "inf" | "-inf"}}', value)
            return _number(value[_TAG], where)
        return {key: free_from_json(item, where, nesting + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [free_from_json(item, where, nesting + 1) for item in value]
    return value


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or _TAG in value:
        wrong(where, "an object", value)
    thawed: dict[str, Any] = free_from_json(value, where)
    return thawed


def _number(value: Any, where: str) -> float:
    if isinstance(value, str) and value in _NONFINITE:
        return _NONFINITE[value]
    if type(value) not in (int, float):
        wrong(where, 'a number, "nan", "inf" or "-inf"', value)
    try:
        return float(value)
    except OverflowError:
        wrong(where, "a number of double precision", value)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        wrong(where, "a string", value)
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        wrong(where, "a list", value)
    return value


def _keys(value: Any, where: str, needed: Set[str], optional: Set[str] = frozenset()) -> None:
    if not isinstance(value, dict):
        wrong(where, "an object", value)
    if missing := sorted(needed - value.keys()):
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    if unknown := sorted(value.keys() - needed - optional):
        raise ValueError(f"{where} has the unknown {excerpt(unknown)}")
