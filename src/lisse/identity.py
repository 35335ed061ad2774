"""What a function, a class or a tensor is, as text or a hash: the same in every process, another when it is another."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def hash_tensor(digest: Any, tensor: Tensor) -> None:
    """Feed a tensor's bytes to a hash, 64 MiB at a time, so that a view or a GPU tensor needs no full copy."""
    values: Any = tensor.detach()
    values = values.to_local() if hasattr(values, "to_local") else values  # of a DTensor, what this process holds
    values = values.reshape(-1) if values.is_contiguous() else values
    rows = max(1, 2**26 // max(1, values[:1].numel() * values.element_size()))
    for start in range(0, len(values), rows):
        piece = values[start : start + rows]
        part = piece.cpu().contiguous().reshape(-1)
        # A weight of fully_shard must stay resizable, which NumPy's view of it would end.
        shared = isinstance(tensor, nn.Parameter) and part.data_ptr() == piece.data_ptr()
        part = part.clone() if shared else part
        digest.update(part.view(torch.uint8).numpy().data)


_MIXER = -7046029254386353131  # odd, with bits all over: 2⁶⁴ over the golden ratio
_WIDTH = 2**13  # words of a row


def checksum(tensor: Tensor) -> Tensor:
    r"""Two 64-bit sums of a tensor's bytes, on its device ``[2]``: other bytes of one word always have other sums.

    :math:`\sum_{rk} a_r b_k v_{rk} \bmod 2^{64}` over rows of words v of up to four bytes, with two pairs of sequences
    of odd weights a, b. It tells a tensor that was changed by a computation, not one that was made to deceive. Cost:
    some passes at the speed of the device's memory, and no transfer.
    """
    values = tensor.detach()
    values = (values.to_local() if hasattr(values, "to_local") else values).contiguous().reshape(-1)
    values = torch.view_as_real(values.resolve_conj()).reshape(-1) if values.is_complex() else values
    size = values.element_size()
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    words = values.view(kinds.get(size, torch.int32))
    rows = len(words) // _WIDTH
    parts = [*words[: rows * _WIDTH].view(-1, _WIDTH).split(2**24 // _WIDTH), words[None, rows * _WIDTH :]]
    columns = _odd(_WIDTH, words.device)
    sums = torch.cat(
        [torch.stack([(part * column[: part.shape[1]]).sum(1) for column in columns]) for part in parts], 1
    )
    return (sums * _odd(sums.shape[1], words.device)).sum(1)


def _odd(count: int, device: torch.device) -> Tensor:
    """Two sequences ``[2, count]`` of odd numbers that look drawn."""
    index = torch.arange(1, 1 + count, device=device)
    index = torch.stack([index, -index]) * _MIXER
    return (index ^ (index >> 29)) * _MIXER ^ (index << 17) | 1


def tensor_identity(tensor: Tensor | np.ndarray) -> str:
    """Type, shape and a hash of the numbers; of an array of objects the first two."""
    digest = hashlib.blake2b(digest_size=20)
    if tensor.dtype != object:
        hash_tensor(digest, torch.as_tensor(tensor))
    return f"{tensor.dtype} {list(tensor.shape)} {digest.hexdigest()}"


def function_identity(function: Any) -> str:
    """A function, or a value that is called like one: name, code, defaults and plain values of its closure."""
    if isinstance(function, functools.partial):
        options = [f"{key}={_value(value)}" for key, value in sorted(function.keywords.items())]
        return f"{function_identity(function.func)}({', '.join([*map(_value, function.args), *options])})"
    if isinstance(function, nn.Module):
        return repr(function)
    if dataclasses.is_dataclass(function) and not isinstance(function, type):
        fields = [f"{field.name}={_value(getattr(function, field.name))}" for field in dataclasses.fields(function)]
        return f"{type(function).__qualname__}({', '.join(fields)})"
    code = getattr(function, "__code__", None)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    if code is None:
        return name
    defaults = [*map(_value, function.__defaults__ or ())]
    defaults += [f"{key}={_value(value)}" for key, value in sorted((function.__kwdefaults__ or {}).items())]
    cells = [_cell(cell) for cell in function.__closure__ or ()]
    digest = hashlib.blake2b(repr((_code(code), defaults, cells)).encode(), digest_size=6)
    return f"{name} {digest.hexdigest()}"


@functools.lru_cache(maxsize=4096)
def class_source(kind: Any) -> str:
    """The whole file that defines a class, whose methods may call what stands beside it; PyTorch's own by its version.

    A class without a file (of a notebook, of ``exec``) is the code of its methods. What methods close over, where a
    function made the class, is no text of the file and comes beside it.
    """
    if kind.__module__.startswith("torch."):
        return str(torch.__version__)
    methods = [value for value in vars(kind).values() if hasattr(value, "__code__")]
    try:
        source = Path(inspect.getfile(kind)).read_text(encoding="utf-8", errors="replace")
    except (TypeError, OSError):
        return repr([kind, *map(function_identity, methods)])
    # Of a method that calls super(), the class itself is such a thing, too.
    cells = [cell for method in methods for cell in method.__closure__ or () if not _holds(cell, kind)]
    return source + "".join(repr(_cell(cell)) for cell in cells)


@functools.lru_cache(maxsize=4096)
def module_digest(name: str) -> str:
    """A hash of a person's module and of all that it imports from the folder that it stands in.

    The sources are read, and only packages around the module are run. That folder is the one on Python's path; of an
    installed module it is the package alone, and lisse itself is left out. Once a process, as importing is. Files that
    a module reads, and imports by computed names, are not seen.
    """
    with contextlib.suppress(ImportError, ValueError):  # a parent that is not there; a module without a spec
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
            return _tree_digest(name, Path(spec.origin))
    return ""


def _tree_digest(name: str, file: Path) -> str:
    root = file.parents[name.count(".") + (file.name == "__init__.py")]
    installed = root.name in ("site-packages", "dist-packages") or root == Path(sysconfig.get_path("stdlib"))
    names, contents = [name], dict[str, bytes]()
    while names:
        dotted = names.pop()
        base, top = root.joinpath(*dotted.split(".")), dotted.partition(".")[0]
        path = next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)
        foreign = top == "lisse" or (installed and top != name.partition(".")[0])
        if dotted in contents or path is None or foreign:
            continue
        contents[dotted] = path.read_bytes()
        names += _imports(contents[dotted], dotted if path.name == "__init__.py" else dotted.rpartition(".")[0])
    digest = hashlib.blake2b(digest_size=20)
    for dotted, content in sorted(contents.items()):
        digest.update(f"{dotted} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _imports(content: bytes, package: str) -> Iterator[str]:
    """Every module that a source may import, with its packages; ``from a import b`` may mean ``a.b``."""
    try:
        nodes = [*ast.walk(ast.parse(content))]
    except (SyntaxError, ValueError):  # whoever imports it says so
        return
    for node in nodes:
        targets = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package.rsplit(".", node.level - 1)[0] + "." if node.level and package else ""
            targets = [f"{start}{node.module + '.' if node.module else ''}{alias.name}" for alias in node.names]
        for target in targets:
            parts = target.split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _value(value: Any) -> str:
    """A value without its address in memory: itself where it is plain, else what kind of thing it is."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, (Tensor, np.ndarray)):
        return tensor_identity(value)
    return function_identity(value) if callable(value) or dataclasses.is_dataclass(value) else type(value).__qualname__


def _code(code: CodeType) -> tuple[Any, ...]:
    return code.co_code, code.co_names, [_constant(constant) for constant in code.co_consts]


def _constant(constant: Any) -> Any:
    if isinstance(constant, CodeType):  # a function inside
        return _code(constant)
    # The order of a set of strings is another in every process.
    return sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant


def _cell(cell: Any) -> Any:
    try:
        return _enclosed(cell.cell_contents)
    except ValueError:  # empty
        return None


def _holds(cell: Any, value: Any) -> bool:
    try:
        return cell.cell_contents is value
    except ValueError:  # empty
        return False


def _enclosed(value: Any) -> Any:
    if isinstance(value, (Tensor, np.ndarray)):
        return tensor_identity(value)
    if isinstance(value, tuple):
        return tuple(map(_enclosed, value))
    if hasattr(value, "__qualname__"):  # a function or a class, without what it encloses itself: that may be itself
        code = getattr(value, "__code__", None)
        return f"{value.__module__}.{value.__qualname__}", None if code is None else _code(code)
    return value if isinstance(value, (str, int, float, bool)) else type(value).__qualname__
