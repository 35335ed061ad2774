"""What a function is, as text that is the same in every process and changes when the function does."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from types import CodeType
from typing import Any

from torch import nn


def described(thing: Any) -> str:
    """A function, or a value that is called like one: name, code, defaults and plain values of its closure."""
    if isinstance(thing, functools.partial):
        named = [f"{key}={_said(value)}" for key, value in sorted(thing.keywords.items())]
        return f"{described(thing.func)}({', '.join([*map(_said, thing.args), *named])})"
    if isinstance(thing, nn.Module):
        return repr(thing)
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        values = [f"{field.name}={_said(getattr(thing, field.name))}" for field in dataclasses.fields(thing)]
        return f"{type(thing).__qualname__}({', '.join(values)})"
    code = getattr(thing, "__code__", None)
    name = f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"
    if code is None:
        return name
    defaults = [*map(_said, thing.__defaults__ or ())]
    defaults += [f"{key}={_said(value)}" for key, value in sorted((thing.__kwdefaults__ or {}).items())]
    cells = [_cell(cell) for cell in thing.__closure__ or ()]
    digest = hashlib.blake2b(repr((_code(code), defaults, cells)).encode(), digest_size=6)
    return f"{name} {digest.hexdigest()}"


def _said(value: Any) -> str:
    """A value without its address in memory: itself where it is plain, else what kind of thing it is."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_said, value))}]"
    return described(value) if callable(value) or dataclasses.is_dataclass(value) else type(value).__qualname__


def _code(code: CodeType) -> tuple[Any, ...]:
    return code.co_code, code.co_names, [_constant(constant) for constant in code.co_consts]


def _constant(constant: Any) -> Any:
    if isinstance(constant, CodeType):  # a function inside
        return _code(constant)
    # The order of a set of strings is another in every process.
    return sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant


def _cell(cell: Any) -> Any:
    try:
        value = cell.cell_contents
    except ValueError:  # empty
        return None
    return value if isinstance(value, (str, int, float, bool, tuple)) else type(value).__qualname__
