"""A network in the middle of its training: found under its wrappers, and left exactly as it was."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import nn

from lisse.run.fingerprint import hash_tensor
from lisse.taps import model_device, plain, still
from lisse.taps.stillness import Statistics


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Whatever happens inside, a training around it does not notice: :func:`lisse.taps.still`, and more.

    Gradients are laid aside and put back (the same tensors), ``requires_grad`` as it was, the random states of Python
    and NumPy too. Autocast is off inside: activations have the precision of the weights.
    """
    before = [(weight, weight.grad, weight.requires_grad) for weight in model.parameters()]
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
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
            for weight, grad, wanted in before:
                if weight.requires_grad != wanted:
                    weight.requires_grad_(wanted)
                weight.grad = grad
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


def unwrapped(model: nn.Module) -> nn.Module:
    """The model without ``torch.compile``, DDP or Fabric around it, in whatever order they are."""
    while True:
        inner = plain(model)
        fabric = inner._modules.get("_original_module") if "_forward_module" in inner._modules else None
        if fabric is None:
            return inner
        model = fabric


def network(model: nn.Module, module: str | None, statistics: Statistics) -> nn.Module:
    """The plain network to measure: without wrappers, and the part of it that ``module`` names.

    What one process alone cannot run (without a forward, in pieces, or waiting for others) is a ``ValueError``.
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
    spread = _spread(root)
    if spread:
        raise ValueError(
            f"Watch: model must be whole in one process, got one that is spread over several ({spread}). "
            "Gather its full state dict, and call watch.measure with a copy that has loaded it."
        )
    group = torch.distributed
    several = group.is_available() and group.is_initialized() and group.get_world_size() > 1
    if statistics == "batch" and several and any(isinstance(each, nn.SyncBatchNorm) for each in root.modules()):
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
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hash_tensor(digest, tensor)
    return digest.hexdigest()


def first_process() -> bool:
    """Whether this is the only process, or the one of rank 0."""
    group = torch.distributed
    return not (group.is_available() and group.is_initialized()) or group.get_rank() == 0


def _parts(model: nn.Module) -> str:
    return ", ".join(repr(name) for name, _ in model.named_children()) or "no parts"


def _without_forward(kind: type) -> bool:
    owner = next((each for each in kind.__mro__ if "forward" in vars(each)), nn.Module)
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
