"""A forward that leaves no trace: modes, batch-norm buffers, random state and switches are put back afterwards."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

Statistics = Literal["running", "batch"]


def plain(model: nn.Module) -> nn.Module:
    """The model without ``torch.compile``, ``DataParallel`` or ``DistributedDataParallel`` around it.

    Parameters are shared, so what is read off it is the person's model. Hooks on the wrappers' children do not fire
    (compile) or fire in replicas (DataParallel).
    """
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(inner, nn.Module):
            model = inner
        elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        else:
            return model


def is_dispatched(model: nn.Module) -> bool:
    """Whether accelerate has put the model on its devices: it must not be moved as a whole."""
    return any(getattr(module, "hf_device_map", None) is not None for module in model.modules())


def placed_on(model: nn.Module, device: str | torch.device | None) -> nn.Module:
    """The model on ``device``, or where it is if that is ``None`` or accelerate's choice."""
    return model if device is None or is_dispatched(model) else model.to(device)


def model_device(model: nn.Module) -> torch.device:
    """Where the model's parameters (or buffers) are; the CPU for a model without any."""
    tensor = next(itertools.chain(plain(model).parameters(), plain(model).buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device


def tracking_norms(model: nn.Module) -> dict[str, nn.modules.batchnorm._BatchNorm]:
    """The batch norms that keep running statistics, by name."""
    return {
        name: module
        for name, module in plain(model).named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None
    }


def unseen_norms(model: nn.Module) -> list[str]:
    """The batch norms that have never seen data, by name: their running statistics are 0 and 1 and fit no data.

    A count of batches above 0 means that they have, whatever the statistics; weights from elsewhere may lack the count.
    """
    return [
        name
        for name, norm in tracking_norms(model).items()
        if not norm.num_batches_tracked
        and norm.running_mean is not None
        and norm.running_var is not None
        and not bool(norm.running_mean.any())
        and bool((norm.running_var == 1).all())
    ]


@contextmanager
def modes_restored(model: nn.Module) -> Iterator[list[nn.Module]]:
    """The modules, whose modes (training or not) are after the block what they were before it."""
    modules = list(model.modules())
    modes = [module.training for module in modules]
    try:
        yield modules
    finally:
        for module, mode in zip(modules, modes, strict=True):
            if module.training != mode:
                module.training = mode


@contextmanager
def still(
    model: nn.Module, *, statistics: Statistics = "running", grad: bool = False, seed: int | None = None
) -> Iterator[nn.Module]:
    """Evaluation mode inside the block; modes, buffers and random state as they were after it.

    ``statistics="batch"`` lets batch norms use the statistics of the batch (as at initialisation, when the running
    ones mean nothing); their buffers are put back. ``grad`` keeps the graph. With ``seed`` the forward's own random
    numbers are reproducible; with or without it the global random states of PyTorch, NumPy and Python afterwards are
    those from before. Parameters are not copied: a forward that writes its own leaves them changed.

    Inside, PyTorch's fast path for Transformer encoders is off (it returns nested tensors and skips modules), and
    compiled submodules run eagerly, so that every module's hooks fire.
    """
    if statistics not in get_args(Statistics):
        raise ValueError(f"still: statistics must be one of running, batch, got {statistics!r}.")
    root = plain(model)
    with ExitStack() as stack:
        modules = stack.enter_context(modes_restored(root))
        norms = [module for module in modules if isinstance(module, nn.modules.batchnorm._NormBase)]
        stack.enter_context(torch.inference_mode(False))
        buffers = [
            (module, name, buffer, buffer.detach().clone())
            for module in modules
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        stack.enter_context(torch.random.fork_rng(devices=_devices(root)))
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002 -- a forward may draw from it
        if seed is not None:
            reseed(root, seed)
        stack.enter_context(torch.set_grad_enabled(grad))
        fast = torch.backends.mha.get_fastpath_enabled()
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        if any(hasattr(module, "_orig_mod") or module._compiled_call_impl is not None for module in modules):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            # The attribute and not eval(): a model may do more than change modes there (merge adapters, for one).
            for module in modules:
                if module.training:  # setting an attribute of a module is slow
                    module.training = False
            if statistics == "batch":
                for norm in norms:
                    norm.training = True
            yield root
        finally:
            with torch.no_grad():
                for (module, name, buffer, before), other in zip(buffers, _changed(buffers), strict=True):
                    module._buffers[name] = buffer
                    if other:  # only then: a graph that was kept may hold this very tensor
                        buffer.copy_(before)


def _changed(buffers: Sequence[tuple[nn.Module, str, Tensor, Tensor]]) -> list[bool]:
    """Which buffers are not what they were; a GPU is waited for once."""
    if not any(buffer.is_cuda for _, _, buffer, _ in buffers):
        return [not torch.equal(buffer, before) for _, _, buffer, before in buffers]
    device = next(buffer.device for _, _, buffer, _ in buffers if buffer.is_cuda)
    flags = [(buffer != before).any().to(device, non_blocking=True) for _, _, buffer, before in buffers]
    return list(torch.stack(flags).tolist())


def reseed(model: nn.Module, seed: int) -> None:
    """Seed the global generators that a forward of this model draws from; call it inside :func:`still`.

    Not ``torch.manual_seed``: that would reseed every device, also those that :func:`still` does not put back.
    """
    seed %= 2**63
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    for device in _devices(model):
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


@contextmanager
def attention_weights(model: nn.Module) -> Iterator[None]:
    """Attention modules return their weights inside the block, and compute as before after it.

    Hugging Face models use fused attention, which gives no weights: they are switched to the eager form and back.
    ``nn.MultiheadAttention`` is asked for the weights of every head.
    """
    with ExitStack() as stack:
        stack.enter_context(switched_to_eager(model))
        for module in plain(model).modules():
            if isinstance(module, nn.MultiheadAttention):
                stack.callback(module.register_forward_pre_hook(_ask_for_weights, with_kwargs=True).remove)
        yield


@contextmanager
def switched_to_eager(model: nn.Module, but: Collection[str | None] = ("eager",)) -> Iterator[None]:
    """Hugging Face's models in their eager form of attention, but those in one of these forms."""
    configs: dict[int, Any] = {}
    with ExitStack() as stack:
        for module in plain(model).modules():
            config: Any = getattr(module, "config", None)
            if id(config) not in configs and getattr(config, "_attn_implementation", "eager") not in but:
                configs[id(config)] = config
                stack.callback(setattr, config, "_attn_implementation", config._attn_implementation)
                config._attn_implementation = "eager"
        yield


def _ask_for_weights(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    # forward(query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
    if len(args) > 4:
        args = (*args[:4], True, *args[5:6], *((False,) if len(args) > 6 else ()), *args[7:])
    else:
        kwargs = {**kwargs, "need_weights": True}
    return args, kwargs if len(args) > 6 else {**kwargs, "average_attn_weights": False}


def _devices(model: nn.Module) -> list[torch.device]:
    if not torch.cuda.is_initialized():  # then nothing can be there, and a deep network need not be walked through
        return []
    devices = {tensor.device for tensor in itertools.chain(model.parameters(), model.buffers())}
    return [device for device in devices if device.type == "cuda"]
