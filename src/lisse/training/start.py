"""Where a training starts, or starts again: :func:`train`."""

from __future__ import annotations

import atexit
import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from lisse import taps
from lisse.progress import Bar, Event, Listener
from lisse.training.feed import Augment
from lisse.training.folder import Folder, content_digest
from lisse.training.loop import Loop
from lisse.training.penalty import Penalty
from lisse.training.plan import Lesson, Loss, TrainingPlan, folder_path, planned, weights_digest
from lisse.training.recipes import Recipe
from lisse.training.result import Callback, Score, Training


def train(
    model: nn.Module,
    data: Any,
    *,
    recipe: Recipe = Recipe(),  # noqa: B008 -- frozen
    epochs: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    test: Any = None,
    out: str | Path | None = None,
    loss: Loss | None = None,
    penalties: Sequence[Penalty] = (),
    augment: Augment | Sequence[Augment] | Literal["recipe"] | None = "recipe",
    lesson: Lesson | Literal["recipe"] | None = "recipe",
    callbacks: Sequence[Callback] = (),
    precision: str | None = None,
    devices: int = 1,
    channels_last: bool | None = None,
    head: str | None = None,
    test_every: int | None = None,
    checkpoint_seconds: float = 30.0,
    tensorboard: bool = False,
    progress: Listener | bool | None = None,
) -> Training:
    """Train ``model`` on ``data`` by ``recipe``, in place; with a folder, go on where an earlier call was stopped.

    Args:
        model: any ``nn.Module``; :func:`lisse.load_model` gives one that normalises images and can be saved whole.
        data: a Dataset, or what :func:`lisse.data.as_dataset` takes. Images that are bytes stay bytes on the device.
        recipe: the optimisation; ``epochs`` replaces the recipe's.
        seed: of the order, the augmentation and the network's own random numbers (dropout).
        device: where to train (default: where the model is); ``devices`` of them, each in a process of its own (DDP).
        test: data on which loss and accuracy are taken every ``test_every`` epochs (default: about a hundred times)
            and at the end.
        out: a folder for ``config.json``, ``log.csv``, ``checkpoints/``, ``model.safetensors`` and ``result.json``. The
            same call with the same folder resumes, or returns at once if the run has ended; another call is refused.
        loss: ``loss(output, targets)`` to a tensor of one number, a mean over samples (default: cross-entropy).
        penalties: terms that are added to the loss and may read activations.
        augment: what is done to images: the recipe's crops and flips, a ``CropFlip``, a function of a float batch
            ``[n, c, h, w]`` (torch's global generators are seeded for it), several of these, or ``None``.
        lesson: what a batch becomes before the network learns from it: the recipe's adversary or AugMix, a
            :class:`lisse.networks.attack.Adversary`, one of your own, or ``None``.
        callbacks: called with a :class:`Moment`.
        precision: Fabric's, such as ``"bf16-mixed"``.
        channels_last: memory layout of images (default: on CUDA).
        head: the module that learns at ``recipe.head_lr`` (default: the last linear layer).
        checkpoint_seconds: within an epoch, at most this much work is lost; the ends of epochs are checkpoints too
            where that costs less than a twentieth of the time.
        tensorboard: also write the log for TensorBoard, into ``out/tensorboard``.
        progress: ``True`` for a bar, or a function of :class:`lisse.progress.Event`.

    On a CPU the same call gives the same weights, whether it was stopped (``SIGKILL``) or not. A loss that is not
    finite ends the run with status ``"diverged"``. Under an adversary a few samples are attacked harder at the ends of
    epochs; where the network holds against its own adversary alone (catastrophic overfitting), the run ends with
    status ``"collapsed"`` and the last weights that did not. Global random state is left as it was, and so are the
    modes of the model's modules.
    """
    where = _device(model, device, devices)
    path = folder_path(out)
    if tensorboard and path is None:
        raise ValueError("train: out must be given with tensorboard=True, got None. Give a folder.")
    if not checkpoint_seconds >= 0:
        raise ValueError(f"train: checkpoint_seconds must be at least 0, got {checkpoint_seconds}. Leave it out.")
    if test_every is not None and (isinstance(test_every, bool) or not isinstance(test_every, int) or test_every < 1):
        raise ValueError(f"train: test_every must be a positive number of epochs, got {test_every!r}. Leave it out.")
    plan = planned(
        model, data, recipe=recipe, epochs=epochs, seed=seed, test=test, loss=loss, penalties=penalties,
        augment=augment, callbacks=callbacks, precision=precision, head=head,
        lesson=lesson,
    )  # fmt: skip
    batch = plan.recipe.batch or len(plan.data)
    if batch < devices:
        raise ValueError(f"train: batch must be at least the {devices} devices, got {batch}. Each needs a sample.")
    with ExitStack() as stack:
        tell: Listener | None = stack.enter_context(Bar()) if progress is True else progress or None
        fabric = fabric_for(where, devices, precision)
        folder = None if path is None else Folder(path)
        ended = None if folder is None else _opened(stack, fabric, folder, plan)
        if folder is not None and ended is not None:
            training = _ended(plan, folder, ended, tell)
            if training is not None:
                return training
        stack.enter_context(_undisturbed(model, fabric.device))
        loop = Loop(
            plan,
            fabric,
            folder,
            tell if fabric.is_global_zero else None,
            channels_last=channels_last,
            checkpoint_seconds=checkpoint_seconds,
            test_every=test_every or max(1, plan.recipe.epochs // 100),
            tensorboard=tensorboard,
        )
        return loop.run()


def _opened(stack: ExitStack, fabric: Any, folder: Folder, plan: TrainingPlan) -> dict[str, Any] | None:
    """Hold the folder and begin or recognise its run; how it ended, or ``None``. Errors reach every process."""
    error: Exception | None = None
    ended = None
    if fabric.is_global_zero:
        try:
            stack.enter_context(folder.lock())
            ended = folder.ended()
            if ended is not None and plan.config["model"].get("weights") == ended["weights"]:
                # The very model that this run made, handed in again.
                plan.config["model"]["weights"] = folder.begun_weights()
            folder.begin(plan.config)
        except Exception as caught:
            error = caught
    if fabric.world_size > 1:
        text, ended = fabric.broadcast((None if error is None else str(error), ended))
        if text is not None and error is None:
            raise RuntimeError(text)
    if error is not None:
        raise error
    return ended


def _ended(plan: TrainingPlan, folder: Folder, ended: dict[str, Any], tell: Listener | None) -> Training | None:
    """The result of a run that ended before this call; ``None`` where its files are not those that it wrote.

    Such a run ends once more, from its last checkpoint.
    """
    checkpoint = folder.final if ended["status"] == "finished" else folder.last_good
    try:
        log = folder.read_log()
        folder.load_model(plan.model, checkpoint)
        if weights_digest(taps.plain(plan.model)) != ended["weights"]:
            raise ValueError(f"{checkpoint} has other weights than the run ended with")
        # Weights may be whole, and the spec and the statistics beside them not.
        if ended.get("file", digest := content_digest(checkpoint)) != digest:
            raise ValueError(f"{checkpoint} has other bytes than the run ended with")
        if ended.get("log", digest := folder.log_digest()) != digest:
            raise ValueError("log.csv has other numbers than the run ended with")
    except (ValueError, OSError, RuntimeError) as error:
        if folder.newest() is None:
            raise ValueError(
                f"train: out must hold the files of its run, got {folder.path}, where {checkpoint.name} or log.csv is "
                f"missing or damaged, and no checkpoint is left ({error}). Choose another folder."
            ) from error
        if tell is not None:
            text = f"a file of the run in {folder.path} is missing or damaged, and made again ({error})"
            tell(Event("train", say=text, level="warning"))
        return None
    if tell is not None:
        how = "is finished" if ended["status"] == "finished" else f"{ended['status']} at step {ended['step']:,}"
        tell(Event("train", say=f"the run in {folder.path} {how}; nothing is left to do"))
    test = ended.get("test")
    return Training(
        status=ended["status"], step=ended["step"], steps=ended["steps"], epoch=ended["epoch"],
        epochs=ended["epochs"], log=log, test=None if test is None else Score(**test),
        seconds=ended["seconds"], checkpoint=checkpoint, out=folder.path, resumed=ended["step"], model=plan.model,
    )  # fmt: skip


@contextlib.contextmanager
def _undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Random state, modes and switches as they were, after the block."""
    benchmark = torch.backends.cudnn.benchmark
    cuda = [device] if device.type == "cuda" else []
    with (
        taps.modes_restored(model),
        torch.random.fork_rng(devices=cuda),
        torch.enable_grad(),
        torch.inference_mode(False),
    ):
        torch.backends.cudnn.benchmark = True
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = benchmark


def _device(model: nn.Module, device: str | torch.device | None, devices: int) -> torch.device:
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise ValueError(f"train: devices must be a positive integer, got {devices!r}. One is the default.")
    if not isinstance(model, nn.Module):
        return torch.device("cpu")
    try:
        kind = taps.model_device(model) if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"train: device must be one that torch knows, got {device!r}. Use 'cpu'.") from error
    if kind.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"train: device must be there, got {str(device)!r} without CUDA. Use device='cpu'.")
    if kind.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("train: device must be there, got 'mps' on a machine without it. Use device='cpu'.")
    if kind.type not in ("cpu", "cuda", "mps"):
        raise ValueError(f"train: device must be cpu, cuda or mps, got {str(device)!r}. Use 'cpu'.")
    return kind


def fabric_for(device: torch.device, devices: int, precision: str | None) -> Any:
    """A Fabric for ``devices`` devices of the kind of ``device``, launched; imports it (seconds) when first called."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from lightning_fabric import Fabric
        except ModuleNotFoundError:
            # the same library inside the distribution `lightning`
            from lightning.fabric import Fabric  # type: ignore[no-redef]
    for name in ("lightning_fabric", "lightning.fabric", "lightning_fabric.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)  # its greetings; errors and warnings still come
    numbers: Any = devices
    if device.type != "cpu" and devices == 1:
        numbers = [device.index or 0]
    options: dict[str, Any] = {"accelerator": device.type, "devices": numbers}
    if precision is not None:
        options["precision"] = precision
    if devices > 1:
        options["strategy"] = "ddp"
    try:
        fabric = Fabric(**options)
    except ValueError as error:
        text = str(error).splitlines()[0]
        raise ValueError(
            f"train: device, devices and precision must fit together, got {str(device)!r}, {devices} and "
            f"{precision!r} ({text[:200]}). Leave precision out, or write bf16-mixed."
        ) from error
    grouped = _in_a_group()
    fabric.launch()
    if not grouped and _in_a_group():
        atexit.register(_leave)
    return fabric


def _in_a_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _leave() -> None:
    """Leave the group of processes while the interpreter is whole.

    Fabric does so for NCCL alone. Threads of Gloo that are still there when the interpreter goes may take the process
    with them ("terminate called without an active exception", seldom), and a finished training ends with an error.
    """
    if _in_a_group():
        torch.distributed.destroy_process_group()
