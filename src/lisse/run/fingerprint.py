"""What a result depends on, as hashes: a model's weights, structure and code, and this package's own code."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import lisse
from lisse.taps import plain


def model_fingerprint(model: nn.Module) -> str:
    """A hash of what the model computes with.

    Parameters and buffers (names, dtypes, shapes, bytes), the module tree with its printed options, the values,
    tensors and functions among its attributes and hooks, and the source file of every class that is not PyTorch's own.

    Costs one pass over the weights (about a second per gigabyte).
    """
    root = plain(model)
    digest = hashlib.blake2b(digest_size=20)
    for name, tensor in (*root.named_parameters(), *root.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hash_tensor(digest, tensor)
    for name, module in root.named_modules():
        kind: Any = type(module)
        attributes = {
            key: _described(value)
            for key, value in vars(module).items()
            if key not in ("training", "_parameters", "_buffers", "_modules")
        }
        config: Any = getattr(module, "config", None)
        described = [name, kind.__module__, kind.__qualname__, module.extra_repr(), attributes]
        described.append(config.to_dict() if hasattr(config, "to_dict") else None)
        digest.update(json.dumps(described, sort_keys=True, default=repr).encode())
        digest.update(_class_source(kind).encode())
    return digest.hexdigest()


def hash_tensor(digest: Any, tensor: Tensor) -> None:
    """Feed a tensor's bytes to a hash, 64 MiB at a time, so that a view or a GPU tensor needs no full copy."""
    flat = tensor.detach().reshape(-1)
    step = max(1, 2**26 // max(1, flat.element_size()))
    for start in range(0, flat.numel(), step):
        piece = flat[start : start + step].cpu().contiguous()
        digest.update(piece.view(torch.uint8).numpy().data)


def digest_of(*values: Any) -> str:
    """A hash of plain JSON values, for keys of the cache."""
    return hashlib.blake2b(json.dumps(values, sort_keys=True, default=repr).encode(), digest_size=20).hexdigest()


@functools.cache
def package_fingerprint() -> str:
    """A hash of this package's own source, so that a new version never serves the numbers of an old one."""
    digest = hashlib.blake2b(digest_size=20)
    folder = Path(lisse.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def source_of(kind: type | Callable[..., Any]) -> str:
    """The source file that defines a class (an instrument written elsewhere changes with it), or its name."""
    try:
        return Path(inspect.getfile(kind)).read_text(encoding="utf-8", errors="replace")
    except (TypeError, OSError):
        return repr(kind)


@functools.lru_cache(maxsize=4096)
def _class_source(kind: Any) -> str:
    if kind.__module__.startswith("torch."):
        return str(torch.__version__)
    try:
        # The whole file: a forward may call functions that stand beside its class.
        return Path(inspect.getfile(kind)).read_text(encoding="utf-8", errors="replace")
    except (TypeError, OSError):
        code = getattr(kind.forward, "__code__", None)
        return repr(kind) if code is None else repr((code.co_code, code.co_consts, code.co_names))


def _described(value: Any) -> Any:
    """An attribute as something JSON can hold that changes when it does: tensors and functions by a hash."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (Tensor, np.ndarray)):
        tensor = torch.as_tensor(value) if value.dtype != object else torch.empty(0)
        digest = hashlib.blake2b(digest_size=20)
        hash_tensor(digest, tensor)
        return [str(value.dtype), list(value.shape), digest.hexdigest()]
    if isinstance(value, Mapping):
        return [_described(item) for item in value.values()] + [repr(key) for key in value if isinstance(key, str)]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, (tuple, list)):
        return [_described(item) for item in value]
    code = getattr(value, "__code__", None)
    if code is not None:
        constants = [constant for constant in code.co_consts if not hasattr(constant, "co_code")]
        cells = [_described(cell.cell_contents) for cell in value.__closure__ or () if _is_simple(cell)]
        return [code.co_code.hex(), repr(code.co_names), repr(constants), cells]
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _is_simple(cell: Any) -> bool:
    try:
        return isinstance(cell.cell_contents, (str, int, float, bool, tuple, Tensor, np.ndarray))
    except ValueError:  # an empty cell
        return False
