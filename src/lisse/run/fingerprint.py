"""What a result depends on, as hashes: a model's weights, structure and code, and this package's own code."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

import lisse
from lisse.identity import checksum, class_source, function_identity, hash_tensor, tensor_identity
from lisse.maths.fetching import fetched
from lisse.taps import plain


def model_fingerprint(model: nn.Module) -> str:
    """A hash of what the model computes with.

    Parameters and buffers (names, dtypes, shapes, bytes), the module tree with its printed options, the values,
    tensors and functions among its attributes and hooks, and the source file of every class that is not PyTorch's own.

    Costs one pass over the weights (about two seconds per gigabyte). Weights on a GPU are brought over once: hashed
    again, they are known by their checksums, which the device makes.
    """
    root = plain(model)
    digest = _weights_digest(root)
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
        digest.update(class_source(kind).encode())
    return digest.hexdigest()


_KNOWN: OrderedDict[tuple[Any, ...], Any] = OrderedDict()  # of weights on GPUs by their checksums, the last few
_MOST_KNOWN = 16


def _weights_digest(root: nn.Module) -> Any:
    """A digest that was fed names, dtypes, shapes and bytes of all parameters and buffers."""
    tensors = {
        f"{name} {tensor.dtype} {tuple(tensor.shape)}\n": tensor
        for name, tensor in (*root.named_parameters(), *root.named_buffers())
    }
    on_gpu = bool(tensors) and all(tensor.is_cuda for tensor in tensors.values())
    sums = fetched({title: checksum(tensor) for title, tensor in tensors.items()}) if on_gpu else {}
    key = tuple((title, *pair.tolist()) for title, pair in sums.items()) or None
    if key is not None and key in _KNOWN:
        _KNOWN.move_to_end(key)
        return _KNOWN[key].copy()
    digest = hashlib.blake2b(digest_size=20)
    for title, tensor in tensors.items():
        digest.update(title.encode("utf-8", "surrogatepass"))
        hash_tensor(digest, tensor)
    if key is not None:
        _KNOWN[key] = digest.copy()
        while len(_KNOWN) > _MOST_KNOWN:
            _KNOWN.popitem(last=False)
    return digest


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


@functools.cache
def library_versions() -> dict[str, str]:
    """The libraries whose numbers lisse's rest on, torch apart; those that are not installed are left out."""
    versions = {}
    for name in ("numpy", "scipy", "gudhi", "numba", "POT"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _described(value: Any) -> Any:
    """An attribute as something JSON can hold that changes when it does: tensors and functions by a hash."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (Tensor, np.ndarray)):
        return tensor_identity(value)
    if isinstance(value, Mapping):
        return [_described(item) for item in value.values()] + [repr(key) for key in value if isinstance(key, str)]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, (tuple, list)):
        return [_described(item) for item in value]
    if isinstance(value, functools.partial) or hasattr(value, "__code__"):
        return function_identity(value)
    return f"{type(value).__module__}.{type(value).__qualname__}"
