"""A network in the middle of its training: found under its wrappers, and left exactly as it was."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from lisse.identity import hash_tensor
from lisse.taps import model_device, plain, still
from lisse.taps.stillness import Statistics


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Whatever happens inside, a training around it does not notice: :func:`lisse.taps.still`, and more.

    Gradients are laid aside and put back (the same tensors), ``requires_grad`` as it was. Autocast is off inside:
    activations have the precision of the weights.
    """
    before = [(weight, weight.grad, weight.requires_grad) for weight in model.parameters()]
    device = model_device(model).type
    with ExitStack() as stack:
        if torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(still(model))
        for weight, _, _ in before:
            weight.grad = None
        try:
            yield
        finally:
            for weight, grad, requires in before:
                if weight.requires_grad != requires:
                    weight.requires_grad_(requires)
                weight.grad = grad
            reshard(model)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model without ``torch.compile``, DDP or Fabric around it, in whatever order they are."""
    while True:
        inner = plain(model)
        fabric = inner._modules.get("_original_module") if "_forward_module" in inner._modules else None
        if fabric is None:
            return inner
        model = fabric


def network(model: nn.Module, module: str | None, statistics: Statistics, *, alone: bool = True) -> nn.Module:
    """The plain network to measure: without wrappers, and the part of it that ``module`` names.

    What one process ``alone`` cannot run (without a forward, in pieces, or waiting for others) is a ``ValueError``; all
    processes together can run what ``fully_shard`` has spread.
    """
    root = unwrapped(model)
    if module is not None:
        try:
            root = unwrapped(root.get_submodule(module))
        except AttributeError as error:
            raise ValueError(
                f"Watch: module must name a part of {type(root).__name__}, got {module!r}. It has {_parts(root)}."
            ) from error
    if "forward" not in vars(root) and _without_forward(type(root)):
        raise ValueError(
            f"Watch: model must have a forward, got {type(root).__name__}, which has none. Give module=, the name of "
            f"the network inside it; it has {_parts(root)}."
        )
    sharded = reshard(root)
    spread = _spread(root)
    hint = ', or give ranks="all" and call the watch in every process' if sharded else ""
    if spread and (alone or not sharded or spread != "a DTensor"):
        raise ValueError(
            f"Watch: model must be whole in one process, got one that is spread over several ({spread}). "
            f"Gather its full state dict, and call watch.measure with a copy that has loaded it{hint}."
        )
    group = torch.distributed
    parallel = group.is_available() and group.is_initialized() and group.get_world_size() > 1
    if statistics == "batch" and parallel and any(isinstance(layer, nn.SyncBatchNorm) for layer in root.modules()):
        raise ValueError(
            "Watch: statistics must be 'running' for a SyncBatchNorm in several processes, got 'batch'. Only one of "
            "them measures, and would wait for the others' statistics forever."
        )
    return root


def weights_fingerprint(model: nn.Module) -> str:
    """A hash of parameters and buffers alone.

    Unlike :func:`~lisse.run.fingerprint.model_fingerprint` it does not see what compilers and trainers hang onto a
    module, which may be more after a step than before.
    """
    digest = hashlib.blake2b(digest_size=20)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode("utf-8", "surrogatepass"))
        hash_tensor(digest, tensor)
    return digest.hexdigest()


def first_process() -> bool:
    """Whether this is the only process, or the one of rank 0."""
    group = torch.distributed
    return not (group.is_available() and group.is_initialized()) or group.get_rank() == 0


def reshard(model: nn.Module) -> bool:
    """Whether the model is behind ``fully_shard``; what a forward has left gathered is given back then."""
    parts: list[Any] = [part for part in model.modules() if any(b.__name__ == "FSDPModule" for b in type(part).__mro__)]
    for part in parts:
        part.reshard()
    return bool(parts)


def from_first(value: bool) -> bool:
    """What the process of rank 0 has; ``value`` itself where there is no group."""
    group = torch.distributed
    if not (group.is_available() and group.is_initialized()):
        return value
    values = [value]
    group.broadcast_object_list(values)
    return values[0]


def _parts(model: nn.Module) -> str:
    return ", ".join(repr(name) for name, _ in model.named_children()) or "no parts"


def _without_forward(kind: type) -> bool:
    owner = next((base for base in kind.__mro__ if "forward" in vars(base)), nn.Module)
    # Lightning's modules inherit one that only calls that of nn.Module, which raises.
    return owner is nn.Module or owner.__name__ == "LightningModule"


def _spread(model: nn.Module) -> str:
    for module in model.modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            return "FSDP"
    for weight in model.parameters():
        if type(weight).__name__ == "DTensor" or hasattr(weight, "device_mesh"):
            return "a DTensor"
        if hasattr(weight, "ds_id"):
            return "DeepSpeed"
    return ""
