"""The table of recipes: what each way of training buys, and what it costs.

Sources   adversaries [wong2020], [madry2018], [zhang2019]; penalties [drucker1992], [hoffman2019], [beshkov2022];
          AugMix [hendrycks2020]; deformations [petrini2021]
Claim     training on attacked samples makes a network withstand attacks, AugMix corruptions; keeping distances and
          deforming images buy neither
Command   lisse reproduce recipes [--scale smoke | medium | paper] [--units fgsm:0,plain] [--minutes 8] [--out FOLDER];
          goes on after a stop, and with --units or --minutes does a part
Hardware  smoke: one CPU core; medium: one CPU core; paper: one GPU, 8 GB of its memory
Time      smoke: under a minute; medium: about half an hour of one core; paper: run in part, 4 of 22 networks in
          7 minutes of an H200 by three processes at once, each with its --units, and the same --out
Expect    paper: random-start FGSM 79.5 % clean and 44.9 % under PGD of 50 steps and 10 starts at 8/255, PGD 76.6 and
          47.3 % (what [wong2020]'s program gives with its defaults)
"""

from __future__ import annotations

import dataclasses
import functools
import time
from pathlib import Path
from typing import Any

from lisse.data import Dataset, load_data
from lisse.models import load_model
from lisse.training import train
from lisse_experiments.form import About, Outcome, Task, machine
from lisse_experiments.outputs import keep, request_of, stored
from lisse_experiments.recipes import measured, tables
from lisse_experiments.recipes.plan import Settings, Unit, settings, units
from lisse_experiments.steps import Steps

ABOUT = About(
    paper="recipes",
    title="What each way of training buys",
    reference="wong2020",
    claim="training on attacked samples withstands attacks, AugMix corruptions; keeping distances buys neither",
    needs={
        "smoke": "one CPU core, under a minute; digits, which come with scikit-learn",
        "medium": "one CPU core, half an hour; MNIST",
        "paper": "a GPU (run in part: 4 of 22 networks took 7 minutes of an H200, three at once); CIFAR-10",
    },
    folder=Path(__file__).parent,
    in_parts=True,
)


def run(task: Task) -> Outcome:
    """Train and measure each network that has no result under ``out/units`` yet; the table is of all that have one."""
    plan = settings(task.scale)
    todo = units(plan, task.seed, task.units)
    end = None if task.minutes is None else time.monotonic() + 60 * task.minutes
    steps = Steps("recipes", task.progress, [cost(plan, unit) for unit in todo])
    longest = 0.0
    left: list[str] = []
    for index, unit in enumerate(todo, 1):
        file = file_of(task, unit)
        if stored(file, request(plan, unit)) is not None:
            steps.skip()
            continue
        if end is not None and time.monotonic() + longest * 0.8 > end:
            left.append(unit.name)
            continue
        start = time.monotonic()
        listen = steps.step(f"{index} of {len(todo)}, {unit.name}", "training and measuring", ["train"])
        result = result_of(plan, unit, task, listen)
        keep(file, result)
        longest = max(longest, time.monotonic() - start)
        steps.finish()
    everything = units(plan, task.seed)
    files = {unit: stored(file_of(task, unit), request(plan, unit)) for unit in everything}
    results = {unit: answer for unit, answer in files.items() if answer is not None}
    if not results:
        raise ValueError(f"reproduce: minutes must be enough for one network, got {task.minutes}. Give more.")
    missing = [unit.name for unit in everything if unit not in results]
    notes = [f"Not done yet: {', '.join(missing)}. The same command goes on."] if missing else []
    return tables.outcome(plan, results, task.out, notes)


def cost(plan: Settings, unit: Unit) -> float:
    """Passes over the training data, as a weight for the bar."""
    recipe = plan.recipes[unit.recipe]
    passes = {"none": 1.0, "fgsm": 2.0, "pgd": 8.0, "trades": 10.0}[recipe.adversary]
    return recipe.epochs * (passes + 2.0 * bool(recipe.augmix) + 1.5 * any("@" not in p for p in recipe.penalties)) + 8


def file_of(task: Task, unit: Unit) -> Path:
    """Where the result of a network is kept."""
    folder = task.out / "units"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{unit.recipe}-{unit.seed}.json"


def request(plan: Settings, unit: Unit) -> str:
    """A hash of everything that was asked for: another plan does not take an old result for its own."""
    recipe = plan.recipes[unit.recipe]
    options = {
        key: value for key, value in dataclasses.asdict(plan).items() if key not in ("recipes", "seeds", "printed")
    }
    return request_of(dataclasses.asdict(recipe), options, unit.recipe in plan.printed, unit.seed)


@functools.lru_cache(maxsize=1)
def data_of(name: str, limit: int | None) -> tuple[Dataset, Dataset]:
    """Training and test data, once for all networks of a start."""
    return load_data(name, split="train", limit=limit, seed=0), load_data(name, split="test", seed=None)


def result_of(plan: Settings, unit: Unit, task: Task, listen: Any) -> dict[str, Any]:
    """Train one network and measure it."""
    data, test = data_of(plan.data, plan.limit)
    model = load_model(f"{plan.network}&seed={unit.seed}")
    recipe = plan.recipes[unit.recipe]
    folder = task.out / "networks" / unit.name.replace(":", "-")
    gpu = task.device.startswith("cuda")
    training = train(
        model, data, recipe=recipe, seed=unit.seed, device=task.device, test=test, out=folder,
        precision=plan.precision if gpu else None, test_every=recipe.epochs, progress=listen, checkpoint_seconds=120,
    )  # fmt: skip
    for checkpoint in (folder / "checkpoints").glob("*"):  # the weights are in a file of their own
        checkpoint.unlink()
    start = time.monotonic()
    model = model.to(task.device).eval()
    numbers = measured.numbers(
        model, test, plan, seed=unit.seed, device=task.device, printed=unit.recipe in plan.printed
    )
    clean = training.test
    if clean is None:  # a collapsed network is measured with its last good weights
        numbers["clean"] = measured.share(measured.answers(model, test, len(test), task.device))
    else:
        numbers["clean"] = {"value": clean.accuracy, "low": clean.low, "high": clean.high, "n": clean.n}
    return {
        "recipe": unit.recipe, "seed": unit.seed, "request": request(plan, unit), "status": training.status,
        "seconds": training.seconds, "epochs": training.epoch, "measuring": time.monotonic() - start,
        "machine": machine(task.device), "numbers": numbers,
    }  # fmt: skip
