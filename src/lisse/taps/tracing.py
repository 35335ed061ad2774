"""One traced forward: every call of every module, in order, with what went in and what came out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from lisse.taps.blocks import Call
from lisse.taps.tap import Path, feed, prepared, tensors


@dataclass
class Trace:
    """The calls of one forward, in the order in which they began."""

    calls: list[Call] = field(default_factory=list)

    def __getitem__(self, key: tuple[str, int]) -> Call | None:
        return self._index.get(key)

    @cached_property
    def _index(self) -> dict[tuple[str, int], Call]:
        return {(call.module, call.number): call for call in self.calls}


def trace(root: nn.Module, inputs: Any) -> Trace:
    """Run once with a hook on every module; keeps every call's inputs and outputs, hence every address distinct."""
    found, stack = Trace(), list[Call]()
    numbers: dict[str, int] = defaultdict(int)
    clock = iter(range(1 << 60))
    handles = []

    def enter(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            call = Call(module=name, number=numbers[name], kind=type(module), parent=stack[-1] if stack else None)
            call.weighted = _weighted(module)
            call.listed = name.rpartition(".")[0] in lists
            call.begin, call.inputs = next(clock), (args, kwargs)
            call.address_in = _address(_first_floating(call.inputs))
            call.versions_in = _versions(call.inputs)
            numbers[name] += 1
            found.calls.append(call)
            stack.append(call)

        return hook

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        call = stack.pop()
        call.end, call.output = next(clock), output
        call.address_out = _address(_first_floating(output))
        call.versions_out = _versions(output)

    modules = dict(root.named_modules())
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
        said = str(error).strip().partition("\n")[0]
        raise RuntimeError(
            f"find: model must run on two and on three samples of the data, got {type(error).__name__}: {said}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return found


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


def _first_floating(structure: Any) -> Tensor | None:
    return next((tensor for _, tensor in tensors(structure) if tensor.is_floating_point()), None)


def _versions(structure: Any) -> dict[Path, int]:
    """How often each tensor had been written to in place: a tensor of another version is no longer what it was."""
    return {path: tensor._version for path, tensor in tensors(structure)}


def _address(tensor: Tensor | None) -> tuple[int, int] | None:
    """Where a tensor lies: equal for a tensor and its reshaped views, so that a flatten in between changes nothing."""
    if tensor is None or tensor.is_nested or tensor.layout != torch.strided or tensor.numel() == 0:
        return None
    return tensor.data_ptr(), tensor.numel()


def _weighted(module: nn.Module) -> bool:
    """Has a matrix or kernel of its own: a norm's scale does not count, a parametrised weight does."""
    if isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)):
        return False
    own: list[Any] = list(module.parameters(recurse=False))
    if nn.utils.parametrize.is_parametrized(module):
        own.append(getattr(module, "weight", None))
    return any(isinstance(weight, Tensor) and weight.ndim >= 2 for weight in own)
