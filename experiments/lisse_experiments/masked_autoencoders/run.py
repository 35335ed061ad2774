"""How to understand masked autoencoders: the paper's five questions, answered with measurements.

Paper     How to Understand Masked Autoencoders [cao2022], questions Q1 to Q5
Claim     Attention is an integral operator that propagates representations stably; the skip connection regularises;
          patches keep the information of low-rank images; the decoder matters; masked patches are interpolated globally
Command   lisse reproduce masked_autoencoders [--scale smoke | paper] [--out FOLDER]; the same command goes on;
          --units operators does what needs no network
Hardware  smoke: one CPU core, 1 GB of memory; paper: one GPU (written for an H200), 8 GB of memory
Time      smoke: about a minute of one core; paper: about 15 minutes, 9 of them training
Expect    both: what expected.json says; paper: error on hidden pixels 0.0209 after 150 epochs, 0.0155 after 408; linear
          probe 0.649 and 0.729; neighbouring layers alike; no symmetric kernel; (25) and Lemma 6.1 not confirmed
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from lisse.data import Dataset, load_data
from lisse.instruments import Propagation
from lisse.models import load_model
from lisse.profile import Profile
from lisse.run import measure
from lisse_experiments.form import About, Outcome, Task
from lisse_experiments.masked_autoencoders import grids, networks, tables
from lisse_experiments.masked_autoencoders.networks import Network
from lisse_experiments.masked_autoencoders.pretrain import Work, pretrained

ABOUT = About(
    paper="masked_autoencoders",
    title="How to understand masked autoencoders",
    reference="cao2022, Q1 to Q5",
    claim="attention propagates representations stably, the decoder matters, masked patches are interpolated globally",
    needs={
        "smoke": "one CPU core, about a minute; digits, which come with scikit-learn",
        "paper": "a GPU (about 15 minutes on an H200), CIFAR-10, the photographs of LISSE_DATA/images",
    },
    folder=Path(__file__).parent,
    in_parts=True,
)


@dataclass(frozen=True)
class Settings:
    """What differs between the scales: ``few`` images are taken to other grids, ``painted`` are painted by all ways."""

    data: str
    networks: tuple[Network, ...]
    propagation: Propagation
    precision: str | None
    batch: int
    few: int
    painted: int


def _floats(data: Dataset, device: str) -> Tensor:
    images = cast("Tensor", data.inputs).to(device)
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def settings(scale: str, device: str = "cpu") -> Settings:
    """Of one scale."""
    if scale == "paper":
        precision = "bf16-mixed" if device.startswith("cuda") else None
        look = Propagation(samples=500, kernels=64, lemma=16, sides=(4, 6, 8, 12, 16), ablation=True)
        return Settings("cifar10", networks.paper(), look, precision, 100, few=100, painted=1000)
    look = Propagation(samples=48, kernels=8, lemma=8, sides=(4, 6, 8), ablation=True)
    return Settings("digits", networks.small(), look, None, 64, few=24, painted=100)


def run(task: Task) -> Outcome:
    """Train what is not trained yet, measure it, draw, and fill the tables; then the experiments without networks.

    Trainings and their checkpoints lie in ``out/networks``, profiles in ``out/profiles``.
    """
    from lisse_experiments.masked_autoencoders import figures  # a missing matplotlib is told before the work
    from lisse_experiments.masked_autoencoders.operators import operators

    if task.units or task.minutes is not None:
        if task.units != ("operators",) or task.minutes is not None:
            raise ValueError(
                f"reproduce: units must be operators for masked_autoencoders, got {', '.join(task.units) or 'none'}."
            )
        return dataclasses.replace(operators(task), parts=task.units)
    plan = settings(task.scale, task.device)
    data, test = load_data(plan.data, split="train"), load_data(plan.data, split="test")
    work = Work(
        plan.networks, data, test, task.out / "networks", task.device, task.seed, precision=plan.precision,
        halved=task.scale == "paper",
    )  # fmt: skip
    results = pretrained(work, task.progress)
    profiles = {name: _profile(name, model, plan, task, test) for name, model in _models(work, plan).items()}
    inside = {
        name: grids.on_grids(
            load_model(str(work.out / f"{name}.safetensors"), device=work.device), _floats(data, work.device)[:64],
            _floats(test, work.device)[: plan.painted], plan.propagation.sides, few=plan.few, seed=task.seed,
        )
        for name in (networks.FIRST, networks.LONG)
        if name in results
    }  # fmt: skip
    files = figures.draw(profiles, work, results, task.out)
    without = operators(task)
    labels = {name: label for name, (label, _, _) in networks.LABELS.items()}
    return Outcome(
        (*tables.findings(results, profiles), *grids.grid_findings(inside, labels, task.seed), *without.findings),
        (
            *tables.claims(results, profiles),
            *grids.grid_claims(inside[networks.FIRST], task.seed),
            *without.claims,
        ),
        (*files, *without.files),
        (*tables.notes(results), *without.notes),
    )


def _models(work: Work, plan: Settings) -> dict[str, nn.Module]:
    """Those that are measured: every trained network, and the autoencoder as it starts."""
    models: dict[str, Any] = {
        network.name: load_model(str(work.out / f"{network.name}.safetensors"), device=work.device)
        for network in plan.networks
        if work.halved or network.name in ("mae", "vit")  # the smoke scale has no time for all
    }
    models["random"] = load_model(plan.networks[0].with_seed(work.seed), device=work.device)
    return models


def _profile(name: str, model: nn.Module, plan: Settings, task: Task, test: Dataset) -> Profile:
    file = task.out / "profiles" / f"{name}.profile"
    if file.is_file():
        return Profile.load(file)
    look = plan.propagation
    if name not in ("mae", "random"):  # the slope is asked of two networks alone: it takes the longest
        look = Propagation(samples=look.samples, kernels=look.kernels, lemma=look.lemma)
    labels = {network.name: network.label for network in plan.networks} | {"random": "MAE at its start"}
    profile = measure(
        model, test, look, seed=task.seed, order="given", batch=plan.batch, device=task.device, progress=task.progress,
        name=labels[name],
    )  # fmt: skip
    profile.save(file)
    return profile
