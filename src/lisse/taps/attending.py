"""What attention layers are given once queries and keys are turned, normalised and shared out: the calls themselves.

Most Transformers end in one of two functions. Hugging Face's hand queries, keys, values, mask, scale, soft cap and
table of positions to an attention interface, whichever kernel is behind it; others call torch's own
``scaled_dot_product_attention``. What arrives there needs no knowledge of the family. Where a layer calls neither, its
softmax is read: then the attention is known, and what it was made of is not.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lisse.taps.stillness import plain, switched_to_eager

_SOFTMAX = (torch.softmax, Tensor.softmax, nn.functional.softmax)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call of attention in one forward: the ``number``-th of ``module``.

    ``query`` ``[n, M, t, h]``, ``key`` and ``value`` ``[n, G, s, h]`` (G divides M: heads share them) as they are
    multiplied, behind rotations and norms. Logits are ``scale`` · q·k, plus ``bias``, capped by ``softcap`` · tanh(· /
    softcap), plus ``mask`` (numbers, or true where a query may look); ``causal``: and only back. ``sinks`` ``[M]`` are
    logits of nothing, which take their share. ``output`` ``[n, M, t, h]``. ``matrix`` and ``scores`` ``[n, M, t, s]``
    instead of all these where only the softmax was seen: what it gave, and what it was given.
    """

    module: str
    number: int
    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    output: Tensor | None = None
    mask: Tensor | None = None
    bias: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None
    sinks: Tensor | None = None
    causal: bool = False
    matrix: Tensor | None = None
    scores: Tensor | None = None

    def first(self, n: int = 1) -> AttentionCall:
        """The call of the first samples alone."""
        count = len(self.matrix if self.query is None else self.query)  # type: ignore[arg-type]
        names = ("query", "key", "value", "output", "mask", "bias", "matrix", "scores") if n < count else ()
        parts = {name: part[:n] for name in names if (part := getattr(self, name)) is not None and len(part) == count}
        return replace(self, **parts)


@contextmanager
def attending(
    model: nn.Module, on: Callable[[AttentionCall], None], modules: Collection[str] | None = None
) -> Iterator[None]:
    """Call ``on`` at every attention of a forward, of all modules or of these; nothing about the forward changes.

    But for one thing: kernels that keep no mask to read (flash, flex) give way to Hugging Face's eager form inside the
    block.
    """
    root = plain(model)
    calls = _Calls(root, on, modules)
    with ExitStack() as stack:
        stack.enter_context(switched_to_eager(root, but={"eager", "sdpa", None}))
        for module in calls.names:
            stack.callback(module.register_forward_pre_hook(calls.enter, prepend=True).remove)
            stack.callback(module.register_forward_hook(calls.leave).remove)
        stack.callback(root.register_forward_pre_hook(calls.begin, prepend=True).remove)
        library: Any = sys.modules.get("transformers.modeling_utils")  # not imported: no model of it
        if library is not None:
            _listen(stack, library.AttentionInterface, calls)
        stack.callback(calls.listen, False)
        yield


class _Calls:
    """Which module is running, for the how-manieth time in this forward, and what was seen there."""

    def __init__(self, root: nn.Module, on: Callable[[AttentionCall], None], modules: Collection[str] | None) -> None:
        self.on = on
        self.names = {module: name for name, module in root.named_modules() if modules is None or name in modules}
        self.numbers: dict[nn.Module, int] = defaultdict(int)
        self.running: list[nn.Module] = []
        self.inside = False  # an attention function that calls another
        self.functions = _Functions(self)
        self.listening = False

    def begin(self, *_: Any) -> None:
        self.numbers.clear()
        self.running.clear()
        self.listen(False)

    def enter(self, module: nn.Module, _: Any) -> None:
        self.numbers[module] += 1
        self.running.append(module)
        self.listen(True)

    def leave(self, *_: Any) -> None:
        if self.running:
            self.running.pop()
        self.listen(bool(self.running))

    def listen(self, on: bool) -> None:
        """To torch's functions, inside the modules alone: what is measured between them would cost as much again."""
        if on and not self.listening:
            self.functions.__enter__()
        elif self.listening and not on:
            self.functions.__exit__(None, None, None)
        self.listening = on

    def tell(self, module: nn.Module, **parts: Any) -> None:
        if module in self.names:
            self.on(AttentionCall(self.names[module], max(0, self.numbers[module] - 1), **parts))


def _listen(stack: ExitStack, interface: Any, calls: _Calls) -> None:
    """Between a model of Hugging Face and whichever function its attention interface gives it."""
    original = interface.get_interface

    def get_interface(self: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        function = original(self, name, default)

        def attention(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, *args: Any, **options: Any
        ) -> Any:
            outside, calls.inside = calls.inside, True
            try:
                result = function(module, query, key, value, mask, *args, **options)
            finally:
                calls.inside = outside
            ahead = options.get("is_causal")
            ahead = getattr(module, "is_causal", True) if ahead is None else ahead
            calls.tell(
                module, query=query, key=key, value=value, output=result[0].transpose(1, 2), mask=mask,
                bias=options.get("position_bias"), scale=_scale(options.get("scaling"), query),
                softcap=options.get("softcap"), sinks=options.get("s_aux"),
                causal=name == "sdpa" and mask is None and bool(ahead) and query.shape[2] > 1,
            )  # fmt: skip
            return result

        return attention

    interface.get_interface = get_interface
    stack.callback(setattr, interface, "get_interface", original)


class _Functions(TorchFunctionMode):
    """Torch's own attention, and the softmax of layers that have written theirs."""

    def __init__(self, calls: _Calls) -> None:
        super().__init__()
        self.calls = calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        calls = self.calls
        if calls.inside or not calls.running:
            return result
        if func is nn.functional.scaled_dot_product_attention:
            calls.tell(calls.running[-1], output=result, **_of_torch(*args, **kwargs))
        elif (
            func in _SOFTMAX and result.ndim == 4 and (kwargs.get("dim", args[1] if len(args) > 1 else None)) in (-1, 3)
        ):
            calls.tell(calls.running[-1], matrix=result, scores=kwargs.get("input", args[0] if args else None))
        return result


def _of_torch(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """The arguments of ``scaled_dot_product_attention`` in the words of :class:`AttentionCall`."""
    parts = {"query": query, "key": key, "value": value, "mask": attn_mask}
    return {**parts, "scale": _scale(scale, query), "causal": is_causal}


def _scale(scale: float | None, query: Tensor) -> float:
    return query.shape[-1] ** -0.5 if scale is None else float(scale)
