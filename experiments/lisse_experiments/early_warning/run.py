"""Early warning: what tells of a training that diverges before its loss does, and how often it does so for nothing.

Sources   the largest attention logit [dehghani2023], massive activations [sun2024], the norm of the gradient, and
          norms, ranks and stretches of lisse
Claim     none of a paper: tried, with thresholds from other trainings, against the gradient's norm
Command   lisse reproduce early_warning [--scale smoke | small] [--device cuda] [--out FOLDER]; goes on after a stop
Hardware  smoke: one CPU core; small: one CPU core, or a GPU
Time      smoke: under a minute; small: 51 minutes of a core that did other work as well
Expect    small: norms, massive activations, logits and stretches warn of 19 or 20 of 20 trainings, the gradient of 4
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

from torch import Tensor

from lisse.data.places import resolve
from lisse.data.text import read_text
from lisse.progress import Event
from lisse_experiments.early_warning import figures, tables, train
from lisse_experiments.early_warning.plan import Settings, Training, settings, trainings
from lisse_experiments.form import About, Outcome, Task
from lisse_experiments.outputs import keep, request_of, stored
from lisse_experiments.regularity.pairs import sentences
from lisse_experiments.steps import Steps

ABOUT = About(
    paper="early_warning",
    title="Early warning of trainings that diverge",
    reference="dehghani2023",
    claim="no paper's: does any watched quantity tell of a divergence before the loss, and how often for nothing?",
    needs={
        "smoke": "one CPU core, under a minute; template sentences made here",
        "small": "one CPU core for about an hour, or a GPU; LISSE_DATA/text",
    },
    folder=Path(__file__).parent,
)


def run(task: Task) -> Outcome:
    """Follow each training that has no file under ``out/trainings`` yet; then the table and the figure of all."""
    plan = settings(task.scale)
    todo = trainings(plan, task.seed)
    steps = Steps("early_warning", task.progress, [1.0] * len(todo))
    results: dict[Training, Any] = {}
    for index, training in enumerate(todo, 1):
        file = task.out / "trainings" / f"{training.way}-{training.seed}.json"
        question = request(plan, training)
        result = stored(file, question)
        if result is None:
            listen = steps.step(f"{index} of {len(todo)}, {training.name}", "training", ["train"])
            result = train.followed(
                plan, training, corpus_of(plan), device=task.device,
                tell=lambda done, listen=listen: listen(Event("train", done, plan.steps, "steps")),  # type: ignore[misc]
            )  # fmt: skip
            keep(file, {"request": question, **result})
            steps.finish()
        else:
            steps.skip()
        results[training] = result
    drawn = figures.draw(plan, results, task.out)
    return tables.outcome(plan, results, task.out, [drawn], [])


def request(plan: Settings, training: Training) -> str:
    """A hash of everything that was asked for: another plan does not take an old result for its own."""
    return request_of(dataclasses.asdict(plan), dataclasses.asdict(training))


@functools.lru_cache(maxsize=1)
def corpus_of(plan: Settings) -> Tensor:
    """Bytes of a text in pieces, once for all trainings."""
    text = "\n".join(sentences()) if plan.text is None else read_text(resolve(plan.text))[:2_000_000]
    return train.pieces(text.encode(), plan.length)
