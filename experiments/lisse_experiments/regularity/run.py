"""On the regularity of attention: negation in a masked language model, τ against its bounds, inversion and depth.

Paper     On the Regularity of Attention [vuckovic2021], sections 5 and 6, appendix D
Claim     Attention is Lipschitz in W1 with the constants of Theorems 1 and 2. In BERT, the further a negation moves the
          input, the further the [MASK] moves; and the input moves further where the prediction changes (Figure 2)
Command   lisse reproduce regularity [--scale smoke | paper] [--out FOLDER]; the same command goes on after a stop.
          --model hf:bert-base-uncased chooses the model of the paper scale; without it, one is trained. --units stored
          looks at the stored predictions alone, beside the input embeddings of --model, which needs no head
Hardware  smoke: 1 CPU core, 1 GB of memory; paper: 1 CPU core for the measurements, a GPU for the training
Time      smoke: under a minute; paper: 15 minutes on one core for 10,827 pairs and the searches, and the training
Expect    both: what expected.json says; paper: p < 0.05 in Figure 2c, a positive correlation in Figure 2a (neither by
          an interval over templates); Theorem 1 exceeded on small balls, Theorem 2 from 13,063 points on
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lisse.models import load_model
from lisse_experiments.form import About, Outcome, Task
from lisse_experiments.regularity import depth, masked_lm, negation, pairs, stretches, tables
from lisse_experiments.regularity.masked_lm import Quality, Recipe
from lisse_experiments.regularity.pairs import Pair, Stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

ABOUT = About(
    paper="regularity",
    title="On the Regularity of Attention",
    reference="vuckovic2021",
    claim="attention is Lipschitz in W1, and the further a negation moves the input, the further the [MASK] moves",
    needs={
        "smoke": "a CPU core, under a minute; template sentences and a tiny masked language model made here",
        "paper": "LISSE_DATA/negation; a masked language model by --model hf:…, or LISSE_DATA/text to train one",
    },
    folder=Path(__file__).parent,
    models="a masked language model of transformers",
    in_parts=True,
)
SCALES = (0.015, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)
FIGURE_1 = Pair("A beagle is a [MASK].", "A beagle is not a [MASK].")


@dataclass(frozen=True)
class Settings:
    """What differs between the scales."""

    dims: tuple[int, ...]
    radii: tuple[float, ...]
    budget: int
    halves: tuple[int, ...]
    recipe: Recipe


def settings(scale: str) -> Settings:
    """Of one scale."""
    if scale == "paper":
        return Settings(
            dims=(1, 2, 4, 8), radii=(0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0), budget=2000,
            halves=tuple(int(10 ** (power / 2)) for power in range(15)), recipe=Recipe(),
        )  # fmt: skip
    return Settings(
        dims=(1, 2), radii=(0.1, 0.2, 0.3, 0.5, 1.0, 2.0), budget=200, halves=(1, 10, 100, 1000, 10_000, 100_000),
        recipe=Recipe(layers=2, width=32, heads=2, vocabulary=300, length=16, tokens=1024, steps=250, lr=3e-3,
                      dropout=0.0, held_out=100, precision="64"),
    )  # fmt: skip


def run(task: Task) -> Outcome:
    """The model and its pairs, the searches, the iterations; then draw and fill the tables."""
    from lisse_experiments.regularity import figures  # here, so that a missing matplotlib is told before the work

    if task.units or task.minutes is not None:
        return stored_alone(task)
    plan = settings(task.scale)
    model, quality, description = _model(task, plan)
    every = pairs.templates() if task.scale == "smoke" else pairs.read_pairs()
    used = [pair for pair in every if pair.kind != "none"]
    distances = negation.kept_distances(
        task.out / "distances.arrays", model, used, device=task.device,
        tell=lambda finished, total: task.tell("pairs of sentences", finished, total, "pairs"),
    )  # fmt: skip
    count = len(plan.dims) * len(plan.radii)
    searched = stretches.kept_stretches(
        task.out / "stretches.json", plan.dims, plan.radii, budget=plan.budget, seed=task.seed,
        tell=lambda finished: task.tell("search for stretch", finished, count, "balls"),
    )  # fmt: skip
    first, second = depth.tokens_of(task.seed), depth.tokens_of(task.seed + 1)
    published = tuple(pairs.stored_predictions()) if task.scale == "paper" else ()
    results = tables.Results(
        distances=distances, quality=quality,
        stored=published, moved=_moved(model, published),
        stretches=tuple(searched), growth=tuple(stretches.growth(plan.halves)),
        first_violation=stretches.first_violation(),
        inversions=tuple(depth.inversions(SCALES, seed=task.seed)),
        single=tuple(depth.inversions((0.5, 0.9, 1.0), count=1, seed=task.seed)),
        guaranteed=depth.guaranteed_scale(), largest=depth.largest_invertible(seed=task.seed),
        vanilla=depth.without_injection(first, second), scaled=depth.without_injection(first, second, scale=0.5),
        injected=depth.with_injection(first, second, scale=0.5), start_matters=depth.depends_on_start(first, scale=0.5),
    )  # fmt: skip
    pictured = FIGURE_1 if task.scale == "paper" else used[0]
    drawn = figures.draw(
        results, negation.encodings(model, [pictured.sentence, pictured.negation]), pictured, description, task.out
    )
    notes = [f"Model: {description}."]
    if len(used) < len(every):
        notes.append(f"{len(every) - len(used)} of {len(every):,} pairs are left out: their negation is the sentence.")
    if task.scale == "paper":
        notes += _notes(published, description)
    files = (*drawn, *tables.write_tables(results, task.out))
    return Outcome(
        tables.findings(results, tolerances=task.scale == "smoke"), tables.claims(results), files, tuple(notes)
    )


def stored_alone(task: Task) -> Outcome:
    """The stored predictions beside a proxy's input embeddings, and nothing else."""
    if task.units != ("stored",) or task.minutes is not None:
        raise ValueError(f"reproduce: units must be stored for regularity, got {', '.join(task.units) or 'none'}.")
    if task.scale != "paper" or task.model is None:
        raise ValueError("reproduce: units must go with --scale paper and --model hf:…, got neither or one. Add them.")
    published, model = tuple(pairs.stored_predictions()), load_model(task.model)
    moved = _moved(model, published)
    return Outcome(
        tuple(tables.of_stored(published, moved)), tuple(tables.stored_claims(published, moved)),
        notes=tuple(_notes(published, Path(task.model.removeprefix("hf:")).name)), parts=("stored",),
    )  # fmt: skip


def _moved(model: Any, published: Sequence[Stored]) -> dict[str, tuple[Tensor, list[str]]]:
    """By file, how far its comparable sentences move at the input of ``model``."""
    files = {prediction.file: prediction.masked for prediction in published}
    return {file: negation.input_distances(model, masked) for file, masked in files.items()}


def _notes(published: Sequence[Stored], proxy: str) -> list[str]:
    if not published:
        return ["No stored predictions lie in LISSE_DATA/negation: that look is left out."]
    blank = {p.network: max(q.blank for q in published if q.network == p.network) for p in published if p.blank > 0.5}
    return [
        f"Stored predictions stand beside the input embeddings of {proxy}: a proxy, none of the five networks.",
        *(
            f"The lists of {network} begin with an empty word in up to {share:.0%} of the lines: it is left out, and "
            "the second stands for the first."
            for network, share in blank.items()
        ),
    ]


def _model(task: Task, plan: Settings) -> tuple[Any, Quality | None, str]:
    """The model, what it can do where it was trained here, and what to call it."""
    if task.model is not None:
        if task.scale == "smoke":
            raise ValueError(
                f"regularity: model must be left out at the smoke scale, got {task.model!r}. Add --scale paper."
            )
        model, folder = load_model(task.model), Path(task.model.removeprefix("hf:"))
        result = folder.parent / "result.json" if folder.is_dir() else folder  # a hub's name is no folder
        return model, masked_lm.quality_of(result) if result.is_file() else None, _name(folder, result)
    texts = pairs.sentences() if task.scale == "smoke" else masked_lm.texts_of(masked_lm.TEXT)
    folder = task.out / "masked_lm"
    quality = masked_lm.trained_quality(texts, plan.recipe, folder, device=task.device, progress=task.progress)
    model = load_model(f"hf:{folder / 'model'}")
    if task.scale == "smoke":
        return model, quality, "a tiny BERT trained on template sentences: synthetic, not a language model"
    return model, quality, _name(folder / "model", folder / "result.json")


def _name(folder: Path, result: Path) -> str:
    return masked_lm.description(result) if result.is_file() else folder.name
