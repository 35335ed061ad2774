"""Pretrains the networks, and asks what they learned: painted patches against other ways, linear probes.

Command   python -m lisse_experiments.masked_autoencoders.pretrain --device cuda --out FOLDER --at-once 7
Needs     CIFAR-10 (LISSE_DATA); about 16 minutes on an H200. ``--data digits --minutes 0.5`` runs on a CPU.
Leaves    FOLDER/results.json, and a checkpoint per network in half precision. What is there is not done again.

One network this small leaves a large GPU idle between its kernels; ``--at-once`` trains several side by side, a process
each. ``--minutes`` finds numbers of epochs that fit them; without it they are those of the committed numbers.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lisse.data import Dataset, load_data
from lisse.maths.intervals import bootstrap
from lisse.models import load_model, save_checkpoint
from lisse.networks.masked import masked_network
from lisse.networks.zoo.vit import SplitHeadAttention
from lisse.profile_file import writing
from lisse.training import Training, train
from lisse_experiments.form import machine
from lisse_experiments.masked_autoencoders import networks
from lisse_experiments.masked_autoencoders.networks import SUPERVISED, Network
from lisse_experiments.masked_autoencoders.probe import Probe, features, linear_probe
from lisse_experiments.masked_autoencoders.reconstruction import Fitted, all_errors

# An H200 by its data sheet, dense bf16 and memory: a floor that nothing goes under.
FLOPS, BYTES = 9.89e14, 4.8e12
MOST_EPOCHS = 800


@dataclass(frozen=True)
class Work:
    """What is trained on what, and where results go."""

    networks: tuple[Network, ...]
    data: Dataset
    test: Dataset
    out: Path
    device: str
    seed: int = 0
    minutes: float | None = None  # None: as many epochs as the recipes say
    precision: str | None = None
    halved: bool = True  # checkpoints in half precision


@contextmanager
def fused(model: nn.Module) -> Iterator[None]:
    """Inside, attention runs in torch's fused kernel."""
    modules = [module for module in model.modules() if isinstance(module, SplitHeadAttention)]
    for module in modules:
        module.fused = True
    try:
        yield
    finally:
        for module in modules:
            module.fused = False


def seconds_per_epoch(model: nn.Module, network: Network, work: Work) -> float:
    """Of a training: two epochs of a few batches, the second one timed."""
    batch = network.recipe.batch or len(work.data)
    count = min(len(work.data), 20 * batch)
    few = work.data.take(count)
    recipe = dataclasses.replace(network.recipe, epochs=3)
    with fused(trial := copy.deepcopy(model)):
        log = train(trial, few, recipe=recipe, device=work.device, precision=work.precision).log
    return (log[2]["seconds"] - log[0]["seconds"]) / 2 * len(work.data) / count


def epochs_for(network: Network, work: Work) -> int:
    """The recipe's epochs, or as many as fit the time: the same for every masked network, and the same after a stop."""
    if work.minutes is None:
        return network.recipe.epochs
    file = work.out / "epochs.json"
    lengths = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if network.name not in lengths:
        alike = [sibling for sibling in work.networks if sibling.masked == network.masked]
        seconds = sum(
            seconds_per_epoch(_loaded(sibling.with_seed(work.seed), work), sibling, work) for sibling in alike
        )
        share = 1.0 if len(alike) == len(work.networks) else 1 - SUPERVISED if network.masked else SUPERVISED
        epochs = max(1, min(MOST_EPOCHS, int(work.minutes * 60 * share / seconds)))
        lengths |= {sibling.name: epochs for sibling in alike}
        file.write_text(json.dumps(lengths), encoding="utf-8")
    return int(lengths[network.name])


def trained_model(network: Network, work: Work, progress: Any = None) -> tuple[nn.Module, Training | None]:
    """The trained model; with the training, unless there is a checkpoint of it and no more."""
    file, folder = work.out / f"{network.name}.safetensors", work.out / "runs" / network.name
    if file.is_file() and not folder.is_dir():
        return _loaded(str(file), work), None
    model = _loaded(network.with_seed(work.seed), work)  # a run that has ended is read from its folder
    epochs = epochs_for(network, work)
    with fused(model):
        training = train(
            model, work.data, recipe=network.recipe, epochs=epochs, seed=work.seed, device=work.device, test=work.test,
            out=folder, precision=work.precision, test_every=max(1, epochs // 4),
            progress=progress,
        )  # fmt: skip
    if training.status != "finished":
        raise RuntimeError(f"pretrain: {network.name} must learn, got a loss that is not finite at {training.step}.")
    # Half precision is what is kept, so it is what is measured.
    save_checkpoint(copy.deepcopy(model).half() if work.halved else model, file)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return _loaded(str(file), work), training


def _loaded(spec: str, work: Work) -> nn.Module:
    return load_model(spec, device=work.device)


def evaluated(model: nn.Module, work: Work, fitted: Fitted | None) -> tuple[dict[str, Any], Any]:
    """Painting (where the model paints) and the linear probe of a model as it is."""
    answers: dict[str, Any] = {}
    train_images, test_images = _floats(work.data, work.device), _floats(work.test, work.device)
    if masked_network(model) is not None:
        errors, fitted = all_errors(model, train_images, test_images, seed=work.seed, fitted=fitted)
        answers["errors"] = {name: _mean(values, work.seed) for name, values in errors.items()}
        answers["less"] = {
            name: _mean(values - errors["model"], work.seed) for name, values in errors.items() if name != "model"
        }
        answers["components"] = fitted.components.components
    y, labels = _labels(work.data, work.device), _labels(work.test, work.device)
    answers["probe"] = _probe_entry(
        linear_probe(features(model, train_images), y, features(model, test_images), labels)
    )
    return answers, fitted


def throughput(training: Training, network: Network, model: nn.Module, work: Work) -> dict[str, float]:
    """Images a second over the whole training, and how many the arithmetic and the memory of an H200 would allow.

    Arithmetic: three forwards' products. Memory: what the forward saves for the backward, written once, read once.
    """
    used = training.epochs * len(work.data)
    inner = masked_network(model)
    speeds = {"images_per_second": used / training.seconds, "seconds": training.seconds, "epochs": training.epochs}
    if inner is None:
        return speeds
    visible = inner.visible_count() + 1
    flops = 0.0
    halves = ((inner.blocks, inner.norm, visible), (inner.decoder_blocks, inner.decoder_norm, inner.side**2 + 1))
    for blocks, norm, tokens in halves:
        d = norm.weight.numel()
        for _ in blocks:
            flops += 2 * tokens * 12 * d * d + 4 * tokens * tokens * d
    for layer, tokens in (
        (inner.patch_embed.proj, inner.side**2), (inner.decoder_embed, visible), (inner.decoder_pred, inner.side**2),
    ):  # fmt: skip
        flops += 2 * tokens * layer.weight.numel()
    saved, count = _saved(copy.deepcopy(model).train(), work), min(64, len(work.data))
    speeds |= {"flops_per_image": 3 * flops, "saved_bytes_per_image": saved / count}
    floor = max(3 * flops / FLOPS, 2 * saved / count / BYTES)
    return {**speeds, "floor_images_per_second": 1 / floor}


def _saved(model: nn.Module, work: Work) -> float:
    """Bytes that autograd keeps for the backward of 64 images, without weights."""
    images = _floats(work.data, work.device)[:64]
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    mixed = work.precision == "bf16-mixed"
    inner: Any = masked_network(model)
    kinds = torch.autocast(torch.device(work.device).type, torch.bfloat16, enabled=mixed)
    with fused(model), kinds, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = inner(images)["loss"]  # keeps every saved tensor alive, so that addresses differ
    del loss
    return float(sum(sizes.values()))


def pretrained(work: Work, progress: Any = None) -> dict[str, Any]:
    """Train and evaluate everything that is not in ``out`` yet; what ``results.json`` then holds."""
    work.out.mkdir(parents=True, exist_ok=True)
    file = work.out / "results.json"
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    results.setdefault("machine", machine(work.device))
    results.setdefault("data", {"name": work.data.name, "train": len(work.data), "test": len(work.test)})
    results.setdefault("seed", work.seed)
    fitted: Fitted | None = None
    start = time.perf_counter()

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - start:6.1f} s] {text}", flush=True)

    for network in work.networks:
        if network.name in results and (work.out / f"{network.name}.safetensors").is_file():
            continue
        model, training = trained_model(network, work, progress)
        answers, fitted = evaluated(model, work, fitted)
        answers["spec"] = network.spec
        if training is not None:
            answers["log"] = _log_sample(training)
            answers["training"] = throughput(training, network, model, work)
            answers["test_loss"] = training.test.loss if training.test is not None else math.nan
            if training.test is not None and training.test.accuracy is not None:
                score = training.test
                answers["accuracy"] = {"value": score.accuracy, "low": score.low, "high": score.high, "n": score.n}
        results[network.name] = answers
        _write(file, results)
        brief = {key: value for key, value in answers.items() if key not in ("log", "spec")}
        say(f"{network.label}: {json.dumps(brief)}")
    first = work.networks[0]
    if "random" not in results and first.name == networks.FIRST:
        answers, fitted = evaluated(_loaded(first.with_seed(work.seed), work), work, fitted)
        results["random"] = {**answers, "spec": first.spec}
        flat = [_floats(data, work.device).flatten(1) for data in (work.data, work.test)]
        y, labels = _labels(work.data, work.device), _labels(work.test, work.device)
        results["pixels"] = {"probe": _probe_entry(linear_probe(flat[0], y, flat[1], labels))}
        _write(file, results)
        say(f"random start: {json.dumps(answers)}; pixels: {json.dumps(results['pixels'])}")
    return results


def side_by_side(work: Work, at_once: int, command: Sequence[str]) -> None:
    """Every network in a process of its own, ``at_once`` at a time; results and checkpoints are then put together.

    ``command`` starts this module with everything but the network's name and its folder.
    """
    file = work.out / "results.json"
    work.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if "alone" not in results:  # before the others come: side by side, none has the device to itself
        first = work.networks[0]
        seconds = seconds_per_epoch(_loaded(first.with_seed(work.seed), work), first, work)
        results["alone"] = {"network": first.name, "images_per_second": len(work.data) / seconds}
        _write(file, results)
    waiting = [network.name for network in work.networks if network.name not in results]
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name = waiting.pop(0)
                running[name] = subprocess.Popen([*command, "--only", name, "--out", str(work.out / "parts" / name)])
            for name in [name for name, process in running.items() if process.poll() is not None]:
                if code := running.pop(name).returncode:
                    raise RuntimeError(f"pretrain: {name} must end well, got exit code {code}. Its lines are above.")
                part = work.out / "parts" / name
                results |= json.loads((part / "results.json").read_text(encoding="utf-8"))
                results[name].get("training", {})["side_by_side"] = True
                (part / f"{name}.safetensors").replace(work.out / f"{name}.safetensors")
                _write(file, results)
                shutil.rmtree(part)
            time.sleep(0.2)
    finally:
        for process in running.values():
            process.terminate()
    (work.out / "parts").rmdir()


def _log_sample(training: Training) -> list[Any]:
    """About twenty epochs of the log, the last one among them."""
    rows = list(training.log)
    sample = rows[:: -max(1, len(rows) // 20)][::-1]
    return [{key: row[key] for key in ("epoch", "loss", "test_loss") if key in row} for row in sample]


def _write(file: Path, results: Mapping[str, Any]) -> None:
    with writing(file) as written:
        written.write((json.dumps(results, indent=1) + "\n").encode())


def _floats(data: Dataset, device: str) -> Tensor:
    assert isinstance(data.inputs, Tensor)
    images = data.inputs.to(device)
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def _labels(data: Dataset, device: str) -> Tensor:
    assert data.targets is not None
    return data.targets.to(device)


def _mean(values: Tensor, seed: int) -> dict[str, float]:
    interval = bootstrap(values.double(), generator=torch.Generator().manual_seed(seed))
    return {"value": float(interval.value), "low": float(interval.low), "high": float(interval.high), "n": interval.n}


def _probe_entry(probe: Probe) -> dict[str, float]:
    return {"value": probe.accuracy, "low": probe.low, "high": probe.high, "n": probe.n, "decay": probe.decay}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", default="cifar10", choices=["cifar10", "digits"])
    parser.add_argument("--minutes", type=float, help="of training, over all networks, in place of their own epochs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=1, help="networks trained side by side, a process each")
    parser.add_argument("--only", nargs="*", help="names of networks")
    options = parser.parse_args()
    if options.at_once < 1 or (options.at_once > 1 and options.minutes is not None):
        parser.error("--at-once must be positive, and above 1 without --minutes: times of shared devices tell little.")
    available = networks.paper() if options.data == "cifar10" else networks.small()
    selected = tuple(network for network in available if not options.only or network.name in options.only)
    cuda = options.device.startswith("cuda")
    if cuda:
        torch.set_float32_matmul_precision("high")
    work = Work(
        selected,
        load_data(options.data, split="train"),
        load_data(options.data, split="test"),
        options.out,
        options.device,
        options.seed,
        options.minutes,
        "bf16-mixed" if cuda else None,
    )
    if options.at_once > 1:
        command = [
            sys.executable, "-m", "lisse_experiments.masked_autoencoders.pretrain", "--device", options.device,
            "--data", options.data, "--seed", str(options.seed),
        ]  # fmt: skip
        side_by_side(work, options.at_once, command)
        return
    pretrained(work)
    # The logs are in results.json as far as they matter; a folder of eight files is easier to carry.
    shutil.rmtree(options.out / "runs", ignore_errors=True)
    (options.out / "epochs.json").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
