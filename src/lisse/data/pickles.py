"""The pickles of CIFAR-10, read without running anything in them.

A pickle is a program. This reader knows the few names that a dict of NumPy arrays needs, and stands in for each with
an object of its own, made anew for every file, that only holds what it is given; any other name is refused before
anything is called. The program's text is read once beforehand, so that no size in it can exceed the file.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_TYPES = {"u1", "i1", "b", "B", "i2", "i4", "i8", "u2", "u4", "u8", "f4", "f8"}
#: A CIFAR-10 batch has 31 MB.
LARGEST_BATCH = 256 << 20


class _Kind:
    """Stands in for ``numpy.dtype``: a name, a byte order."""

    def __init__(self, name: Any, *_: Any) -> None:
        name = name.decode("ascii") if isinstance(name, bytes) else name
        if not isinstance(name, str) or name.lstrip("<>|=") not in _TYPES:
            raise pickle.UnpicklingError(f"a dtype {name!r}")
        self.name = name

    def __setstate__(self, state: Any) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else "|"
        order = order.decode("ascii") if isinstance(order, bytes) else order
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"a byte order {order!r}")
        self.name = order + self.name.lstrip("<>|=")


class _Array:
    """Stands in for ``numpy.ndarray`` while it is being rebuilt; ``array`` once shape, kind and bytes agree."""

    array: np.ndarray

    def __setstate__(self, state: Any) -> None:
        if not (isinstance(state, tuple) and len(state) == 5):
            raise pickle.UnpicklingError("an array of unknown form")
        _, shape, kind, fortran, content = state
        self.fill(content, kind, shape, "F" if fortran else "C")

    def fill(self, content: Any, kind: Any, shape: Any, order: Any) -> None:
        """Make the array of ``content``."""
        plain = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
        if not (plain and isinstance(kind, _Kind) and isinstance(content, bytes | bytearray) and order in ("C", "F")):
            raise pickle.UnpicklingError("an array of unknown form")
        dtype = np.dtype(kind.name)
        if math.prod(shape) * dtype.itemsize != len(content):
            raise pickle.UnpicklingError(f"an array of shape {shape} with {len(content)} bytes")
        self.array = np.frombuffer(content, dtype).reshape(shape, order=order)


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _frombuffer(content: Any, kind: Any, shape: Any, order: Any, *_: Any) -> _Array:
    array = _Array()
    array.fill(content, kind, shape, order)
    return array


class _Call:
    """What a pickle gets for a name: it can be called and not changed.

    The opcode BUILD writes into whatever lies on the stack; a function or a class handed out as it is would stay
    altered for the whole process.
    """

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a change to a function")


_NAMES: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _Kind,
    ("numpy", "ndarray"): _reconstruct,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _frombuffer for core in ("core", "_core")},
}


class _Reader(pickle.Unpickler):
    """An unpickler that finds only the stand-ins."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.budget = 2 * len(content)

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for a name, or a refusal."""
        if (module, name) == ("_codecs", "encode"):
            return _Call(self.encode)
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"the name {module}.{name}, which a pickle could run")
        return _Call(_NAMES[module, name])

    def encode(self, text: Any, encoding: Any = "latin1") -> bytes:
        """Bytes written by Python 3 in protocol 2 (at most twice the file in all)."""
        encoding = encoding.decode("ascii") if isinstance(encoding, bytes) else encoding
        if not isinstance(text, str) or encoding != "latin1":
            raise pickle.UnpicklingError(f"a text in the encoding {encoding!r}")
        self.budget -= len(text)
        if self.budget < 0:
            raise pickle.UnpicklingError("more content than the file can hold")
        return text.encode("latin1")

    def persistent_load(self, pid: Any) -> Any:
        """Never."""
        raise pickle.UnpicklingError("a reference to something outside")


def read_pickle(content: bytes, path: Path | str) -> dict[str, Any]:
    """The dict in a pickle of plain values and NumPy arrays (``path`` is only for errors); its keys as str.

    Refuses every other pickle with a ValueError, before anything in it could run.
    """
    if len(content) > LARGEST_BATCH:
        raise ValueError(
            f"load_data: {path} must have at most {LARGEST_BATCH:,} bytes, got {len(content):,}. "
            "It is not a CIFAR-10 batch."
        )
    try:
        # genops reads the text only: every length and memo number must be one that the file can really have.
        for opcode, argument, _ in pickletools.genops(content):
            if "PUT" in opcode.name and isinstance(argument, int) and argument > len(content):
                raise pickle.UnpicklingError(f"a memo number {argument}")
            if opcode.name in ("EXT1", "EXT2", "EXT4"):
                raise pickle.UnpicklingError("an extension code")
        batch = _Reader(content).load()
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(
            f"load_data: {path} must be a pickle of plain arrays, got {error or type(error).__name__}. "
            "Nothing in it was run; it is damaged or hostile: fetch the official file again."
        ) from error
    if not isinstance(batch, dict):
        raise ValueError(f"load_data: {path} must hold a dict, got {type(batch).__name__}. It is not a CIFAR-10 batch.")
    values = {key.decode("latin1") if isinstance(key, bytes) else str(key): entry for key, entry in batch.items()}
    return {key: getattr(entry, "array", None) if isinstance(entry, _Array) else entry for key, entry in values.items()}
