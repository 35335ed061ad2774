"""A place in a model, and the context manager that listens there."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lisse.taps.stillness import attention_weights, model_device, plain

Path = tuple[str | int, ...]
Role = Literal["input", "stem", "block", "output", "chosen", "attention"]


@dataclass(frozen=True, slots=True)
class Tap:
    """A place in a model: which module, which of its calls in a forward, which side, which axis counts the samples.

    ``module`` is the module's path in ``named_modules()`` (``""``: the model itself), ``call`` counts its calls within
    one forward from 0, and ``path`` leads from the module's output (or its arguments) to the tensor. ``shape`` is one
    sample's, with the sample axis taken out; ``depth`` runs from 0 at the first layer to 1 at the last. ``calls`` is
    how often the module ran in the forward that found the tap (0: not known), and ``mixes`` says that a sample's
    activation changed with the samples beside it (batch statistics, or a network with randomness of its own).
    """

    name: str
    module: str
    call: int = 0
    side: Literal["in", "out"] = "out"
    axis: int = 0
    path: Path = ()
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    role: Role = "chosen"
    depth: float = 0.0
    kind: str = ""
    calls: int = 0
    mixes: bool = False

    @property
    def numel(self) -> int:
        """Numbers in one sample's activation."""
        return int(torch.Size(self.shape).numel())


_On = Callable[[Tap, Tensor], Tensor | None]


@contextmanager
def tapped(model: nn.Module, taps: Iterable[Tap], on: _On) -> Iterator[nn.Module]:
    """Call ``on(tap, activation)`` whenever a tap is reached; yields the module to run.

    The activation comes with its samples on axis 0. Where ``on`` returns a tensor, the network goes on with that one in
    its place (same layout: samples first). The hooks are gone when the block ends, also after an exception. A tap that
    did not fire in a completed forward is a ``RuntimeError`` at the end of the block.

    Run the module that is yielded (or ``model``): it is ``model`` without ``torch.compile`` and ``DataParallel``
    around it, whose hooks would not fire. The activation is the network's own tensor: a network may overwrite it in
    place later, so keep a copy of what you keep.
    """
    taps = tuple(taps)
    root = plain(model)
    modules = dict(root.named_modules())
    for tap in taps:
        if tap.module not in modules:
            raise ValueError(f"tapped: taps must name modules of the model, got {tap.module!r}, which it has not.")
    listening = _Listening(taps, on)
    with ExitStack() as stack:
        if any(tap.role == "attention" for tap in taps):
            stack.enter_context(attention_weights(root))
        stack.callback(root.register_forward_pre_hook(listening.begin, prepend=True).remove)
        for site in listening.sites:
            name, side = site
            if side == "in":
                hook = functools.partial(listening.before, site)
                handle = modules[name].register_forward_pre_hook(hook, with_kwargs=True)
            else:
                handle = modules[name].register_forward_hook(functools.partial(listening.after, site))
            stack.callback(handle.remove)
        stack.callback(root.register_forward_hook(listening.end).remove)
        yield root
        silent = [tap.name for tap in taps if tap not in listening.fired]
        if listening.forwards and silent:
            raise RuntimeError(
                f"tapped: {len(silent)} of {len(taps)} taps never fired: {', '.join(silent[:5])}. "
                "The forward took another way than when the taps were found."
            )


_Site = tuple[str, str]
"""A module's name and a side of it."""


class _Listening:
    """The hooks of one :func:`tapped` block: how often each site was called in this forward, and which taps fired."""

    def __init__(self, taps: Iterable[Tap], on: _On) -> None:
        self.on = on
        self.sites: dict[_Site, list[Tap]] = defaultdict(list)
        for tap in taps:
            self.sites[tap.module, tap.side].append(tap)
        self.calls: dict[_Site, int] = defaultdict(int)
        self.fired: set[Tap] = set()
        self.forwards = 0

    def begin(self, *_: Any) -> None:
        self.calls.clear()

    def end(self, *_: Any) -> None:
        self.forwards += 1
        for site, taps in self.sites.items():
            expected = taps[0].calls
            if expected and self.calls[site] > expected:
                raise RuntimeError(
                    f"tapped: {site[0] or 'the model'} must be called {expected} time(s) in a forward, as when its "
                    f"taps were found, got {self.calls[site]}. Its depth depends on the data."
                )

    def before(self, site: _Site, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        changed = self._fire(site, (args, kwargs))
        return None if changed[0] is args and changed[1] is kwargs else changed

    def after(self, site: _Site, _: nn.Module, args: Any, output: Any) -> Any:
        changed = self._fire(site, output)
        return None if changed is output else changed

    def _fire(self, site: _Site, structure: Any) -> Any:
        call = self.calls[site]
        self.calls[site] += 1
        for tap in self.sites[site]:
            if tap.call != call:
                continue
            value = element_at(structure, tap.path)
            if not isinstance(value, Tensor):
                raise RuntimeError(
                    f"tapped: {tap.name} gave no tensor at {list(tap.path)}, but {type(value).__name__}. "
                    "Find the taps again with an example of this kind of input."
                )
            self.fired.add(tap)
            new = self.on(tap, value.movedim(tap.axis, 0))
            if new is not None:
                structure = with_element(structure, tap.path, new.movedim(0, tap.axis))
        return structure


def feed(model: nn.Module, inputs: Any) -> Any:
    """Call a model on one batch: a dict as keyword arguments, a tuple as positional ones, anything else as it is."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple):
        return model(*inputs)
    return model(inputs)


def prepared(model: nn.Module, inputs: Any) -> Any:
    """A copy of a batch on the model's device, floating-point numbers in the model's precision.

    A copy, because networks may change their input in place (a normalisation, a first ReLU), and the data are not
    theirs.
    """
    weight = next((weight for weight in plain(model).parameters() if weight.is_floating_point()), None)
    device = model_device(model)

    def copied(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        cast = value.is_floating_point() and weight is not None
        return value.detach().to(device, weight.dtype if cast and weight is not None else value.dtype, copy=True)

    if isinstance(inputs, Mapping):
        return {key: copied(value) for key, value in inputs.items()}
    return tuple(map(copied, inputs)) if isinstance(inputs, (tuple, list)) else copied(inputs)


def tensors(structure: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """Every tensor in nested tuples, lists, dicts and dataclasses, with the path that leads to it, in order."""
    if isinstance(structure, Tensor):
        yield path, structure
    elif isinstance(structure, Mapping):
        for key, value in structure.items():
            yield from tensors(value, (*path, key))
    elif isinstance(structure, (tuple, list)):
        for key, value in enumerate(structure):
            yield from tensors(value, (*path, key))
    elif dataclasses.is_dataclass(structure):
        for item in dataclasses.fields(structure):
            yield from tensors(getattr(structure, item.name), (*path, item.name))


def element_at(structure: Any, path: Path) -> Any:
    """The element that ``path`` leads to, or ``None`` where the structure has no such place."""
    for key in path:
        try:
            indexed = isinstance(structure, (Mapping, tuple, list))
            structure = structure[key] if indexed else getattr(structure, str(key))
        except (KeyError, IndexError, AttributeError, TypeError):
            return None
    return structure


def with_element(structure: Any, path: Path, value: Tensor) -> Any:
    """A copy of the structure with ``value`` at ``path``; what lies beside the path is shared, not copied."""
    if not path:
        return value
    key = path[0]
    inner = with_element(element_at(structure, (key,)), path[1:], value)
    if isinstance(structure, tuple):
        items = [inner if index == key else item for index, item in enumerate(structure)]
        return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)
    changed = copy.copy(structure)
    if isinstance(structure, (list, Mapping)):
        changed[key] = inner
    else:
        object.__setattr__(changed, str(key), inner)
    return changed
