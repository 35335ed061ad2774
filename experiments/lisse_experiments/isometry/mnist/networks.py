"""The networks of section 3.3: six weights of the isometric loss, two readings of it, several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from lisse.data import Dataset
from lisse.profile_file import load_arrays, save_arrays
from lisse_experiments.form import Task
from lisse_experiments.isometry.mnist.ensemble import Lesson, trained_ensemble

Reading = Literal["paper", "code"]
BETAS = (0.0, 0.001, 0.01, 0.1, 1.0, 10.0)
READINGS: tuple[Reading, ...] = ("paper", "code")
LOSSES: dict[Reading, str] = {"paper": "the paper's loss", "code": "the code's loss"}


@dataclass(frozen=True)
class Trained:
    """One network: which loss, which weight, which seed, and its parameters."""

    reading: Reading
    beta: float
    seed: int
    parameters: Mapping[str, Tensor]

    def network(self) -> nn.Sequential:
        """As a PyTorch module on images ``[n, 784]`` in [0, 1]; ``network[:-1]`` is the isometric layer."""
        layers: list[nn.Module] = []
        count = len(self.parameters) // 2
        for index in range(count):
            weight, bias = self.parameters[f"weight{index}"], self.parameters[f"bias{index}"]
            linear = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
            linear.load_state_dict({"weight": weight, "bias": bias})
            layers += [linear] if index == count - 1 else [linear, nn.Tanh()]
        return nn.Sequential(*layers).eval().requires_grad_(False)


def lesson(reading: Reading, beta: float, epochs: int) -> Lesson:
    """The paper's loss; or that of the authors' code, which multiplies the layer's distances by 10."""
    if reading == "paper":
        return Lesson(beta, epochs=epochs)
    return Lesson(beta, scale=10.0, start="orthogonal", epochs=epochs)


def pixels(data: Dataset) -> Tensor:
    """The images as rows ``[n, d]`` of floats in [0, 1]."""
    assert isinstance(data.inputs, Tensor)
    flat = data.inputs.flatten(1)
    return flat.float().div(255) if flat.dtype == torch.uint8 else flat.float()


def trained_networks(
    task: Task, data: Dataset, *, betas: Sequence[float], readings: Sequence[Reading], seeds: Sequence[int], epochs: int
) -> list[Trained]:
    """All of them, trained unless they are there already: a file each, ``out/mnist/networks``."""
    folder = task.out / "mnist" / "networks"
    folder.mkdir(parents=True, exist_ok=True)
    cases = [(reading, beta) for reading in readings for beta in betas]
    results: list[Trained] = []
    images: Tensor | None = None
    assert data.targets is not None
    for index, (reading, beta) in enumerate(cases):
        files = {seed: folder / f"{reading}-beta{beta:g}-{len(data)}x{epochs}-seed{seed}.arrays" for seed in seeds}
        missing = [seed for seed, file in files.items() if not file.is_file()]
        if missing:
            images = pixels(data) if images is None else images

            def tell(steps: int, total: int, index: int = index) -> None:
                task.tell("mnist: training", index + steps / total, len(cases), "losses")

            parameter_sets = trained_ensemble(images, data.targets, missing, lesson(reading, beta, epochs), tell=tell)
            for seed, parameters in zip(missing, parameter_sets, strict=True):
                save_arrays({name: value.numpy() for name, value in parameters.items()}, files[seed])
        results += [Trained(reading, beta, seed, _loaded(file)) for seed, file in files.items()]
    return results


def _loaded(file: Path) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in load_arrays(file).items()}
