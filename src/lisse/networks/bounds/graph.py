"""What is bounded is what runs: whose forward a layer has, and the graph of a forward with what works in place."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from torch import fx, nn

from lisse.networks.bounds.slopes import overridden
from lisse.networks.zoo.efficientnet import SameConv2d
from lisse.taps import is_shortage

# fmt: off
_VIEWS = frozenset({
    "flatten", "reshape", "view", "transpose", "permute", "squeeze", "unsqueeze", "unflatten", "movedim", "t",
    "getitem", "chunk", "split", "expand", "detach", "contiguous", "to", "float", "double", "type_as", "dropout",
})
# fmt: on
_IN_PLACE = frozenset({"iadd", "isub", "imul", "itruediv", "setitem"})
_VIEWING = nn.Identity | nn.Flatten | nn.Unflatten | nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d


def foreign(module: nn.Module) -> bool:
    """Whether it is derived from one of torch's layers and does something else, so that rules of that layer say nothing
    of it."""
    return overridden(module) and not isinstance(module, SameConv2d)


def check_hooks(where: str, module: nn.Module) -> None:
    """Refuse forward hooks, which can change what enters a module and what leaves it."""
    for name, part in module.named_modules():
        if part._forward_hooks or part._forward_pre_hooks:
            raise TypeError(
                f"{where}: {type(part).__name__} must have no forward hooks, which can change what it gives, got one "
                f"at {name or 'its root'}. Remove it (of weight_norm and spectral_norm, by remove_…)."
            )


def traced(module: nn.Module) -> fx.Graph:
    """The graph of a forward, children as they are called, with every value read as it is at that moment.

    What an operation writes in place is what later steps read. Where that cannot be said (a view of it, or a child that
    writes into its input) the module is refused: a residual sum of ``x`` behind an activation in place is none of x.
    """
    graph = _Tracer().trace(module)
    order = {node: index for index, node in enumerate(graph.nodes)}
    for node, value in list(_written(graph, module)):
        later = [user for user in value.users if order[user] > order[node]]
        single = node.op != "call_module" or not list(module.get_submodule(str(node.target)).children())
        aliases = [n for n in graph.nodes if n not in (node, value) and _root(n, module) is _root(value, module)]
        if any(order[user] > order[node] for n in aliases for user in n.users) or (later and not single):
            raise TypeError(f"{node.target} writes into a value that is read again. Give it inplace=False")
        for user in later:
            user.replace_input_with(value, node)
    return graph


def _writes(module: nn.Module) -> bool:
    """Whether a module writes into its input."""
    if isinstance(module, _VIEWING):
        return False
    if getattr(module, "inplace", False):
        return True
    if isinstance(module, nn.Sequential) and not overridden(module):
        first = next((part for part in module if not isinstance(part, _VIEWING)), None)
        return first is not None and _writes(first)
    if not list(module.children()) and type(module).__module__.startswith("torch.nn."):
        return False
    try:
        graph = _Tracer().trace(module)
    except Exception as error:
        if is_shortage(error):
            raise
        return False  # what cannot be traced is refused, or known as a whole
    return any(_root(value, module).op == "placeholder" for _, value in _written(graph, module))


def _written(graph: fx.Graph, module: nn.Module) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Steps that write in place, and the values that they write into."""
    for node in graph.nodes:
        if not node.args or not isinstance(value := node.args[0], fx.Node):
            continue
        word = _word(node)
        if node.op == "call_module":
            writes = _writes(module.get_submodule(str(node.target)))
        else:
            writes = (
                word in _IN_PLACE
                or (word.endswith("_") and not word.endswith("__"))
                or bool(node.kwargs.get("inplace"))
                or (node.op == "call_function" and word not in _VIEWS and any(arg is True for arg in node.args))
            )
        if writes:
            yield node, value


def _root(node: fx.Node, module: nn.Module) -> fx.Node:
    """The value that a chain of views begins with."""
    while node.args and isinstance(node.args[0], fx.Node):
        if node.op == "call_module":
            views = isinstance(module.get_submodule(str(node.target)), _VIEWING)
        else:
            views = _word(node) in _VIEWS
        if not views:
            break
        node = node.args[0]
    return node


def _word(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", str(node.target))


class _Tracer(fx.Tracer):
    """Traces through what is not known as a whole."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Every child is looked at on its own."""
        return True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """See :class:`_OneSample`."""
        return _OneSample(node, self)


class _OneSample(fx.Proxy):
    """A traced value that knows its length: one sample, as everywhere in these walks."""

    def __len__(self) -> int:
        return 1

    # fx takes ``y += z`` for ``y = y + z``, which leaves other names of y as they were.
    def __iadd__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})

    def __isub__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.isub, (self, other), {})

    def __imul__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.imul, (self, other), {})

    def __itruediv__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.itruediv, (self, other), {})


#: What tracing raises where a forward is not a graph.
UNTRACEABLE: tuple[Any, ...] = (
    TypeError,
    ValueError,
    NotImplementedError,
    RuntimeError,
    AttributeError,
    fx.proxy.TraceError,
)
