"""``lisse improve MODEL --data SPEC --for attacks --out DIR``: fine-tune, and one page of before and after."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lisse.cli import train
from lisse.cli.outcome import arguments

#: Radius of the adversary where none is asked for: on images of one channel, which are mostly black or white.
GREY_RADIUS = 0.1
#: Samples under the strong attack that is printed.
ATTACKED = 500


def improving() -> list[click.Parameter]:
    """What the command takes beside the fields of a recipe."""
    apart = {"recipe", "recipes", "classes", "head", "measure", "every", "tensorboard", "checkpoint_seconds", "devices"}
    options = [option for option in train.command_options() if option.name not in apart]
    purpose = click.Option(
        ["--for", "recipe"], required=True, type=click.Choice(["attacks", "corruptions"]), help="What to withstand."
    )
    size = click.Option(["--full/--quick"], default=None, help="How much to measure.  [default: between the two]")
    return [*options[:2], purpose, *options[2:], size]


def _improve(**values: Any) -> None:
    """Load, train, measure both, print, write the page."""
    import lisse
    from lisse.cli.report import print_verdict
    from lisse.progress import Bar
    from lisse.reporting.page.sentence import Sentence

    ctx = click.get_current_context()
    recipe = train._recipe(ctx, values)
    with arguments(ctx):
        model = train._model(values)
        data = lisse.load_data(values["data"], split=values["split"], limit=values["limit"], seed=values["seed"])
        test = train._test(values, data, None) or data
    inputs = data.inputs
    grey = not isinstance(inputs, dict) and inputs.ndim == 4 and inputs.shape[1] == 1
    if grey and "field_eps" not in train.fields.typed(ctx):
        recipe = dataclasses.replace(recipe, eps=GREY_RADIUS)
    before, out = copy.deepcopy(model), Path(values["out"])
    size: Any = {None: "usual", True: "full", False: "quick"}[values["full"]]
    options = {key: values[key] for key in ("seed", "device", "precision", "channels_last")}
    with Bar(memory=True, keep=False) as bar:
        with arguments(ctx, *train.TYPED):
            training = lisse.train(model, data, recipe=recipe, test=test, out=out, progress=bar, **options)
        with arguments(ctx):
            profiles = lisse.survey(
                {"before": before, "after": model.eval()}, test, size=size, starts=0, device=values["device"],
                seed=values["seed"], cache=out / "cache", folder=out / "profiles", progress=bar,
            )  # fmt: skip
    train._print(training, measured=False)
    attacked = values["recipe"] == "attacks"
    answer = _under_attack(before, model, test, recipe) if attacked else _under_corruption(profiles)
    sentences = [*([Sentence(answer, (), "overall", (0, 1))] if answer else []), *lisse.verdict(profiles)]
    page = lisse.report(profiles, out / "report.html", title="Before and after", sentences=sentences)
    print_verdict(sentences)
    print(f"Saved {page}. Open it in a browser.", file=sys.stderr)
    if training.status != "finished":
        ctx.exit(train.DIVERGED)


def _under_attack(before: Any, after: Any, test: Any, recipe: Any) -> str:
    """What both answer right under a strong attack, with Wilson's intervals."""
    from lisse.maths.intervals import share_interval
    from lisse.networks.attack import standing
    from lisse.taps import model_device
    from lisse.training.plan import box_of

    n = min(ATTACKED, len(test))
    device = model_device(after)
    batch = next(test.batches(n, 0, n, device=device))
    intervals = []
    for model in (before.to(device), after):
        stood = standing(model, batch.inputs, batch.targets, norm=recipe.norm, eps=recipe.eps, bounds=box_of(test))
        intervals.append(share_interval(float(stood.double().mean()), n))
    shares = [(interval.value, interval.low, interval.high) for interval in intervals]
    return f"Right under APGD at {recipe.norm} {recipe.eps:.4g}: {_shares(shares)}, on {n} samples (from above)."


def _under_corruption(profiles: Any) -> str:
    """What both answer right of corrupted images; empty where it was not measured."""
    means = [
        [
            row
            for row in profile.rows
            if [*row.at] == ["corruption"] and profile.quantities[row.quantity].better == "higher"
        ]
        for profile in profiles
    ]
    overall = [row for rows in means for row in rows if row.at["corruption"] == "all"]
    if len(overall) != 2:
        return ""
    shares = [(row.value, row.low, row.high) for row in overall]
    return f"Right under corruptions, a mean over {len(means[0]) - 1}: {_shares(shares)}, on {overall[0].n} samples."


def _shares(shares: Sequence[Sequence[Any]]) -> str:
    """Shares and their intervals, the one before and the one after."""
    return ", ".join(
        f"{name} {value:.1%} [{low:.1%}, {high:.1%}]"
        for name, (value, low, high) in zip(("before", "after"), shares, strict=True)
    )


class Improver(train.Trainer):
    """A command whose options are its own and every field of a recipe."""

    own_options = staticmethod(improving)


command = Improver(
    "improve",
    options_metavar="--data SPEC --for attacks|corruptions --out DIR [OPTIONS]",
    callback=_improve,
    help="""Fine-tune a model so that it withstands attacks or corruptions, and write one page of before and after.

    MODEL as for `lisse train`, a .safetensors checkpoint for example. Against attacks it trains under PGD of seven
    steps, against corruptions with AugMix, the usual choices in print. On MNIST `lisse reproduce recipes` found FGSM
    level with PGD at a quarter of its cost, and no gain of AugMix; --adversary fgsm, --eps 4/255, --epochs 10,
    --crop 4 --flip and every other option of a recipe change it.
    Stopped at any moment, the same command goes on. The folder gets model.safetensors, report.html, the profiles and
    the log.
    """,
)
