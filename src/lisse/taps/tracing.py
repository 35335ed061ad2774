"""One traced forward: every call of every module, in order, with a sketch of what went in and of what came out."""

from __future__ import annotations

import inspect
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from lisse.taps.blocks import Call, Sketch
from lisse.taps.tap import Path, feed, prepared, tensors

_MOST = 4096  # numbers of each sample that are kept, at random places: a change of 1 in 500 escapes once in 3,000


@dataclass
class Trace:
    """The calls of one forward of ``samples``, in the order in which they began; no activation is held.

    A place in memory may be another tensor's a moment later. A storage is known by a weak reference instead, and by a
    number of its own: memory is free all the same, and a reference that has expired is a storage that is gone. All
    numbers that are kept lie in room for ``tensors``, taken before the first activation: what is taken in between lies
    where an activation lay, however small it is, and the next one, too large for the rest, takes memory of its own.
    """

    samples: int
    tensors: int = 1
    calls: list[Call] = field(default_factory=list)
    _storages: dict[StorageWeakRef, int] = field(default_factory=dict)
    _sketches: dict[tuple[Any, ...], Sketch] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _rooms: dict[tuple[torch.device, torch.dtype], tuple[Tensor, int]] = field(default_factory=dict)
    _picks: dict[tuple[int, torch.device], Tensor] = field(default_factory=dict)

    def __getitem__(self, key: tuple[str, int]) -> Call | None:
        return self._index.get(key)

    @cached_property
    def _index(self) -> dict[tuple[str, int], Call]:
        return {(call.module, call.number): call for call in self.calls}

    def sketches(self, structure: Any) -> dict[Path, Sketch]:
        """What is kept of each tensor in nested tuples, lists and dicts."""
        return {path: self._sketch(tensor) for path, tensor in tensors(structure)}

    def _sketch(self, tensor: Tensor) -> Sketch:
        if tensor.is_nested or tensor.layout != torch.strided:
            return Sketch(() if tensor.is_nested else tuple(tensor.shape), tensor.dtype, strided=False)
        if not tensor.is_floating_point():
            return Sketch(tuple(tensor.shape), tensor.dtype)
        storage = StorageWeakRef(tensor.untyped_storage())
        number = self._storages.get(storage)
        if number is None:
            for reference in [reference for reference in self._storages if reference.expired()]:
                del self._storages[reference]
            number = self._storages[storage] = next(self._numbers)
        address = number, int(tensor.storage_offset()), tensor._version
        key = *address, tensor.shape, tensor.stride(), tensor.dtype
        if key not in self._sketches:
            self._sketches[key] = self._drawn(tensor.detach(), address)
        return self._sketches[key]

    def _drawn(self, tensor: Tensor, address: tuple[int, int, int]) -> Sketch:
        """The sum, and numbers of each sample: all where they are few, else at places drawn alike in every forward."""
        shape, kind = tuple(tensor.shape), (tensor.device, tensor.dtype)
        widths = {axis: tensor.numel() // size for axis, size in enumerate(shape) if size == self.samples}
        count = 1 + sum(self.samples * min(width, _MOST) for width in widths.values())
        room, start = self._rooms.get(kind, (tensor.new_empty(0), 0))
        if len(room) < start + count:
            room, start = tensor.new_empty(max(count, self.tensors * (1 + self.samples * _MOST))), 0
        torch.sum(tensor, tuple(range(tensor.ndim)), out=room[start])
        end, spans = start + 1, dict[int, slice]()
        for axis, width in widths.items():
            spans[axis] = slice(end, end := end + self.samples * min(width, _MOST))
            rows, copy = tensor.movedim(axis, 0), room[spans[axis]]
            if width <= _MOST:
                copy.view(rows.shape).copy_(rows)
            elif rows[0].is_contiguous():
                torch.index_select(rows.flatten(1), 1, self._spread(width, tensor.device), out=copy.view(len(rows), -1))
            else:  # flat, it would be a copy of the whole tensor
                index: Any = torch.unravel_index(self._spread(width, tensor.device), rows.shape[1:])
                copy.view(len(rows), -1).copy_(rows[:, *index])
        self._rooms[kind] = room, end
        return Sketch(shape, tensor.dtype, True, address, room, start, spans)

    def _spread(self, width: int, device: torch.device) -> Tensor:
        """Random places, alike in every forward and in memory's order: so they are read faster."""
        if (width, device) not in self._picks:
            picks = torch.randint(width, (_MOST,), generator=torch.Generator().manual_seed(width))
            self._picks[width, device] = picks.sort().values.to(device)
        return self._picks[width, device]


def trace(root: nn.Module, inputs: Any, samples: int) -> Trace:
    """Run once with a hook on every module; takes the memory of a forward, and a few numbers of each tensor."""
    modules = dict(root.named_modules())
    traced, stack = Trace(samples, len(modules)), list[Call]()
    numbers: dict[str, int] = defaultdict(int)
    clock = iter(range(1 << 60))
    handles = []

    def enter(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            call = Call(module=name, number=numbers[name], kind=type(module), parent=stack[-1] if stack else None)
            call.weighted = _weighted(module)
            call.listed = name.rpartition(".")[0] in lists
            call.begin, call.inputs = next(clock), traced.sketches((args, kwargs))
            numbers[name] += 1
            traced.calls.append(call)
            stack.append(call)

        return hook

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        call = stack.pop()
        call.end, call.output = next(clock), traced.sketches(output)
        call.stochastic = [path for path, tensor in tensors(output) if path and _stochastic(tensor)]

    lists = {name for name, module in modules.items() if isinstance(module, nn.ModuleList)}
    try:
        for name, module in modules.items():
            handles.append(module.register_forward_pre_hook(enter(name), with_kwargs=True, prepend=True))
            handles.append(module.register_forward_hook(leave))
        feed(root, prepared(root, inputs))
    except Exception as error:
        if isinstance(root, torch.jit.ScriptModule):
            raise TypeError(
                "find: model must be an nn.Module in Python, got a TorchScript one: load the original."
            ) from error
        reason = str(error).strip().partition("\n")[0]
        raise RuntimeError(
            f"find: model must run on two and on three samples of the data, got {type(error).__name__}: {reason}"
            f"{_advice(root, inputs, error)}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return traced


def _advice(root: nn.Module, inputs: Any, error: Exception) -> str:
    """What would help a model that does not run on its data; empty where that is not known."""
    if isinstance(error, torch.OutOfMemoryError):
        return (
            ". Two samples are more than the device has room for: take half the precision (?dtype=bfloat16), several "
            "devices (?device_map=auto), shorter texts (?length=) or smaller images."
        )
    lengths = [value.shape[1] for _, value in tensors(inputs) if value.ndim == 2 and not value.is_floating_point()]
    rooms = [
        module.num_embeddings - getattr(module, "offset", 0) - (1 + module.padding_idx if module.padding_idx else 0)
        for name, module in root.named_modules()
        if isinstance(module, nn.Embedding) and ("position" in name or name.rpartition(".")[2] == "wpe")
    ]
    if lengths and rooms and max(lengths) > min(rooms):
        return (
            f". Its texts have {max(lengths)} tokens and the model has positions for {min(rooms)}: cut them by "
            f"?length={min(rooms)} in the data's spec."
        )
    if isinstance(error, TypeError) and isinstance(inputs, Tensor) and "required positional argument" in str(error):
        return (
            ". A tuple of two is (inputs, targets): name a model's several inputs by its arguments, "
            "({'a': x1, 'b': x2}, targets)."
        )
    if isinstance(error, TypeError) and isinstance(inputs, Mapping):
        parameters = inspect.signature(root.forward).parameters.values()
        names = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
        if set(inputs) - set(names):
            return (
                f". A dict is given by name: its keys are {', '.join(map(str, inputs))}, and forward takes "
                f"{', '.join(names) or 'nothing by name'}. Rename the keys, give (inputs, targets), or wrap a model "
                "that takes the whole batch: def forward(self, **batch): return self.model(batch)."
            )
    return ""


def samples_of(example: Any, count: int) -> Any:
    """``count`` samples out of an example of any number of them (repeated where it has fewer)."""

    def pick(tensor: Tensor) -> Tensor:
        if tensor.ndim == 0 or len(tensor) == 0:
            raise ValueError(f"find: example must hold samples on its first axis, got shape {tuple(tensor.shape)}.")
        return tensor[torch.arange(count, device=tensor.device) % len(tensor)]

    if isinstance(example, Tensor):
        return pick(example)
    if isinstance(example, Mapping):
        return {key: pick(value) if isinstance(value, Tensor) else value for key, value in example.items()}
    if isinstance(example, tuple):
        return tuple(pick(value) if isinstance(value, Tensor) else value for value in example)
    raise TypeError(
        f"find: example must be a tensor, a dict of tensors or a tuple of tensors, got {type(example).__name__}."
    )


def _stochastic(tensor: Tensor) -> bool:
    """Whether this is ``[n, heads, queries, keys]`` with rows that are probabilities."""
    if tensor.is_nested or tensor.layout != torch.strided or tensor.ndim != 4 or not tensor.is_floating_point():
        return False
    sums = tensor.sum(-1, dtype=None if tensor.device.type == "mps" else torch.float64)
    return bool((tensor >= 0).all()) and bool(((sums - 1).abs() < 1e-3).all())


def _weighted(module: nn.Module) -> bool:
    """Has a matrix or kernel of its own: a norm's scale does not count, a parametrised weight does."""
    if isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)):
        return False
    weights: list[Any] = list(module.parameters(recurse=False))
    if nn.utils.parametrize.is_parametrized(module):
        weights.append(getattr(module, "weight", None))
    return any(isinstance(weight, Tensor) and weight.ndim >= 2 for weight in weights)
