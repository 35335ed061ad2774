"""``lisse train MODEL --data SPEC --out DIR``: a trained network in a folder; the same command resumes."""

from __future__ import annotations

import dataclasses
import difflib
import shlex
import sys
from typing import Any

import click

from lisse.cli import completion, fields
from lisse.cli.outcome import arguments

DIVERGED = 4
# What goes to lisse.train as it is.
TRAIN_OPTIONS = (
    "seed", "device", "devices", "out", "precision", "channels_last", "head", "checkpoint_seconds", "tensorboard",
)  # fmt: skip
# What a person types may be wrong in, as errors call it.
TYPED = (
    "model", "data", "test", "batch", "epochs", "device", "devices", "precision", "head", "augment", "seed",
    "eps", "layers",
)  # fmt: skip


def command_options() -> list[click.Parameter]:
    """What the command takes beside the fields of a recipe."""
    return [
        click.Argument(["model"], shell_complete=completion.models),
        click.Option(
            ["--data"],
            required=True,
            metavar="SPEC",
            shell_complete=completion.data_sets,
            help="Data set; `lisse data` lists them.",
        ),
        click.Option(["--out"], required=True, type=click.Path(file_okay=False), help="Folder of the run."),
        click.Option(["--split"], default="train", metavar="NAME", help="Part to train on.  [default: train]"),
        click.Option(["--limit"], type=click.IntRange(min=1), help="Train on at most this many samples."),
        click.Option(
            ["--test"],
            metavar="SPEC|SPLIT",
            help="Another data set, or a part of the same one; none for no test.  [default: its part test]",
        ),
        click.Option(["--recipe"], default="default", metavar="NAME", help="One of those that --recipes lists."),
        click.Option(
            ["--recipes"], is_flag=True, is_eager=True, expose_value=False, callback=_list, help="List the recipes."
        ),
        click.Option(["--epochs"], type=int, help="Passes over the data.  [default: the recipe's]"),
        click.Option(["--seed"], type=int, default=0, help="Of everything random, also new weights.  [default: 0]"),
        click.Option(["--device"], metavar="NAME", help="Where to compute: cpu, cuda, cuda:1, mps."),
        click.Option(["--devices"], type=click.IntRange(min=1), default=1, help="How many of these.  [default: 1]"),
        click.Option(["--precision"], metavar="NAME", help="Such as bf16-mixed.  [default: 32-true]"),
        click.Option(["--channels-last/--no-channels-last"], default=None, help="Of images.  [default: on CUDA]"),
        click.Option(["--classes"], type=click.IntRange(min=1), help="Replace the classifier by one of as many."),
        click.Option(["--head"], metavar="MODULE", help="The classifier.  [default: the last linear layer]"),
        click.Option(
            ["--penalty", "penalties"],
            multiple=True,
            metavar="NAME=WEIGHT[@LAYER]",
            help="isometric=0.1@LAYER, gradient=0.1 or jacobian=0.01; LAYER head:in is what enters the classifier.",
        ),
        click.Option(
            ["--measure"],
            metavar="INSTRUMENT[,…]",
            shell_complete=completion.instruments,
            help="Measure the test data while training.",
        ),
        click.Option(["--every"], type=click.IntRange(min=1), default=1, help="Epochs between them.  [default: 1]"),
        click.Option(["--tensorboard"], is_flag=True, help="Also write the log for TensorBoard."),
        click.Option(
            ["--checkpoint-seconds"],
            type=click.FloatRange(min=0),
            default=30.0,
            help="Within an epoch, lose at most this much.  [default: 30]",
        ),
        click.Option(["--traceback"], is_flag=True, help="Show where an error came from."),
    ]  # fmt: skip


class Trainer(fields.FieldCommand):
    """A command whose options are its own and every field of a recipe, which are known when they are needed."""

    titles = ("Options", "Instead of what the recipe says")
    fields_first = False
    own_options = staticmethod(command_options)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's options, then the recipe's."""
        from lisse.training.recipes import Recipe

        params = self.own_options()
        recipe = fields.options([Recipe], {str(param.name) for param in params}, left_out={"epochs", "penalties"})
        for option in recipe:
            option.help = str(option.help).partition("  [default")[0]
        return [*params, *recipe, *super().get_params(ctx)]


def _train(**values: Any) -> None:
    """Load, train, print."""
    import lisse
    from lisse.models import tokenizer_for
    from lisse.progress import Bar
    from lisse.training import with_classes

    ctx = click.get_current_context()
    recipe = _recipe(ctx, values)
    instruments = _instruments(ctx, values["measure"])
    with arguments(ctx):
        model = _model(values)
        tokenizer = tokenizer_for(model)
        data = lisse.load_data(
            values["data"], split=values["split"], limit=values["limit"], seed=values["seed"], tokenizer=tokenizer
        )
        test = _test(values, data, tokenizer)
        if values["classes"] is not None:
            with_classes(model, values["classes"], seed=values["seed"], head=values["head"])
    watches = []
    with Bar() as bar:
        if instruments:
            watches = [lisse.Watch(test or data, instruments, every=values["every"], out=values["out"], progress=bar)]
        options = {key: values[key] for key in TRAIN_OPTIONS}
        with arguments(ctx, *TYPED):
            training = lisse.train(model, data, recipe=recipe, test=test, callbacks=watches, progress=bar, **options)
    if not _first_process():
        return
    _print(training, measured=bool(watches))
    if training.status != "finished":
        ctx.exit(DIVERGED)


def _print(training: Any, *, measured: bool) -> None:
    from lisse.cli.table import number_text, print_table
    from lisse.training.overfitting import WATCHED

    log = list(training.log)
    columns = [name for name in training.log.columns if name != "step"]
    lines = log if len(log) <= 12 else [*log[:3], *log[-7:]]
    if lines:
        print_table(columns, [[number_text(line[name]) if name in line else "" for name in columns] for line in lines])
        print()
    if training.status == "diverged":
        print(f"Diverged: the loss of step {training.step:,} of {training.steps:,} is not finite.")
    elif training.status == "collapsed":
        usual, harder = (log[-1][name] for name in WATCHED)
        print(
            f"Collapsed by step {training.step:,} of {training.steps:,}, catastrophic overfitting: accuracy "
            f"{usual:.2f} under the training's own adversary, {harder:.2f} under PGD. Try --adversary pgd, or a "
            "smaller --eps."
        )
    elif training.test is not None and training.test.accuracy is not None:
        score = training.test
        print(
            f"Test accuracy {score.accuracy:.2%} [{score.low:.2%}, {score.high:.2%}] "
            f"on {score.n:,} samples, error {score.error:.2%}, loss {number_text(score.loss)}."
        )
    elif training.test is not None:
        print(f"Test loss {number_text(training.test.loss)} on {training.test.n:,} samples.")
    steps = (
        f"{training.steps:,} steps"
        if training.status == "finished"
        else f"{training.step:,} of {training.steps:,} steps"
    )
    epochs = "1 epoch" if training.epoch == 1 else f"{number_text(training.epoch)} epochs"
    print(f"{steps}, {epochs}, {training.seconds:.1f} s of training.")
    sys.stdout.flush()
    checkpoint = shlex.quote(str(training.checkpoint))
    weights = "weights" if training.status == "finished" else "last good weights"
    print(f"Saved {checkpoint} ({weights}), {training.out / 'log.csv'}.", file=sys.stderr)
    profiles = training.out / "profiles"
    if measured and profiles.is_dir():
        folder = shlex.quote(str(training.out))
        print(f"Profiles: {profiles}. Draw them: lisse figure time {folder} -o time.png", file=sys.stderr)
    elif measured:
        print("Nothing was measured: the run had ended before. Choose another folder with --out.", file=sys.stderr)


def _recipe(ctx: click.Context, values: dict[str, Any]) -> Any:
    from lisse.training import RECIPES

    name = values["recipe"]
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=3, cutoff=0.4) or list(RECIPES)
        raise click.UsageError(f"no recipe {name!r}. The nearest: {', '.join(near)}", ctx)
    changes = {key.removeprefix("field_"): value for key, value in fields.typed(ctx).items()}
    if values["epochs"] is not None:
        changes["epochs"] = values["epochs"]
    if values["penalties"]:
        changes["penalties"] = values["penalties"]
    with arguments(ctx):
        return dataclasses.replace(RECIPES[name], **changes)


def _list(ctx: click.Context, _: click.Parameter, listed: bool) -> None:
    if not listed:
        return
    from lisse.cli.table import print_table
    from lisse.training import RECIPES

    header = ["recipe", "optimizer", "lr", "batch", "epochs", "schedule", "weight decay", "crop, flip", "smoother by"]
    lines = [
        [
            name,
            recipe.optimizer,
            f"{recipe.lr:g}" + (f", head {recipe.head_lr:g}" if recipe.head_lr else ""),
            str(recipe.batch or "all"),
            str(recipe.epochs),
            recipe.schedule,
            f"{recipe.weight_decay:g}",
            "yes" if recipe.augmentation else "no",
            _means(recipe),
        ]
        for name, recipe in RECIPES.items()
    ]
    print_table(header, lines, text_columns=(0, 1, 5, 7, 8))
    ctx.exit(0)


def _means(recipe: Any) -> str:
    """What a recipe does to make a network smoother."""
    means = list(recipe.penalties)
    means += [recipe.adversary] if recipe.adversary != "none" else []
    means += [f"augmix {recipe.augmix:g}"] if recipe.augmix else []
    return ", ".join(means + ([f"deform {recipe.deform:g} px"] if recipe.deform else []))


def _model(values: dict[str, Any]) -> Any:
    import lisse
    from lisse.models.specs import Spec, parse
    from lisse.networks.zoo import seeded

    spec = values["model"]
    parsed = parse(spec)
    if parsed.hub == "zoo" and values["seed"] and not {"seed", "weights"} & parsed.options.keys():
        spec = Spec(parsed.hub, parsed.name, {**parsed.options, "seed": values["seed"]}).without()
    with seeded(values["seed"]):  # for a factory that draws its weights without a seed of its own
        return lisse.load_model(spec)


def _test(values: dict[str, Any], data: Any, tokenizer: Any) -> Any:
    import lisse

    source = values["test"]
    if source == "none":
        return None
    if source is None or source in ("train", "test", "validation", "all"):
        test = lisse.load_data(values["data"], split=source or "test", tokenizer=tokenizer)
        # Data without parts are the same whatever is asked for: no test, unless it was asked for.
        return None if source is None and test.fingerprint() == data.fingerprint() else test
    return lisse.load_data(source, split="test", tokenizer=tokenizer)


def _instruments(ctx: click.Context, names: str | None) -> list[Any]:
    from lisse.instruments.by_name import kinds_named

    with arguments(ctx):
        return [] if names is None else [kind() for kind in kinds_named(names)]


def _first_process() -> bool:
    import torch.distributed as processes

    return not processes.is_available() or not processes.is_initialized() or processes.get_rank() == 0


command = Trainer(
    "train",
    options_metavar="--data SPEC --out DIR [OPTIONS]",
    callback=_train,
    help="""Train a model by a recipe; the same command resumes.

    MODEL is zoo:NAME, hf:NAME, timm:NAME, torchvision:NAME, package.module:factory or a .safetensors checkpoint to
    fine-tune. The folder gets the final weights (model.safetensors), the log (log.csv) and the last two checkpoints.
    Stopped at any moment, the same command goes on where it was. A run that diverges or collapses exits with code 4.
    """,
)
