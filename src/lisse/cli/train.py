"""``lisse train MODEL --data SPEC --out DIR``: a trained network in a folder; the same command resumes."""

from __future__ import annotations

import dataclasses
import difflib
import shlex
import sys
from typing import Any

import click
from click.core import ParameterSource

from lisse.cli import fields
from lisse.cli.outcome import arguments

DIVERGED = 4


def own_options() -> list[click.Parameter]:
    """What the command takes beside the fields of a recipe."""
    return [
        click.Argument(["model"]),
        click.Option(["--data"], required=True, metavar="SPEC", help="Data set; `lisse data` lists them."),
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
        click.Option(["--measure"], metavar="INSTRUMENT[,…]", help="Measure the test data while training."),
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


class Trainer(click.Command):
    """A command whose options are its own and every field of a recipe, which are known when they are needed."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Own options, then the recipe's."""
        from lisse.training.recipes import Recipe

        own = own_options()
        taken = {str(param.name) for param in own}
        more = fields.options([Recipe], taken, left_out={"epochs"})
        for option in more:
            option.help = str(option.help).partition("  [default")[0]
        return [*own, *more, *super().get_params(ctx)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Two sections of options."""
        params = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = [(param, param.get_help_record(ctx)) for param in params]
        own = [record for param, record in records if record and str(param.name).startswith("field_")]
        rest = [record for param, record in records if record and not str(param.name).startswith("field_")]
        for title, some in (("Options", rest), ("Instead of what the recipe says", own)):
            with formatter.section(title):
                formatter.write_dl(some)


def run(**values: Any) -> None:
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
        names = (
            "model",
            "data",
            "test",
            "batch",
            "epochs",
            "device",
            "devices",
            "precision",
            "head",
            "augment",
            "seed",
        )
        with arguments(ctx, *names):
            found = lisse.train(
                model,
                data,
                recipe=recipe,
                seed=values["seed"],
                device=values["device"],
                devices=values["devices"],
                test=test,
                out=values["out"],
                callbacks=watches,
                precision=values["precision"],
                channels_last=values["channels_last"],
                head=values["head"],
                checkpoint_seconds=values["checkpoint_seconds"],
                tensorboard=values["tensorboard"],
                progress=bar,
            )
    if not _first_process():
        return
    _print(found, measured=bool(watches))
    if found.status == "diverged":
        ctx.exit(DIVERGED)


def _print(found: Any, *, measured: bool) -> None:
    from lisse.cli.table import number, print_table

    frame = list(found.log)
    columns = [name for name in found.log.columns if name != "step"]
    shown = frame if len(frame) <= 12 else [*frame[:3], *frame[-7:]]
    if shown:
        print_table(columns, [[number(row[name]) if name in row else "" for name in columns] for row in shown])
        print()
    if found.status == "diverged":
        print(f"Diverged: the loss of step {found.step:,} of {found.steps:,} is not finite.")
    elif found.test is not None and found.test.accuracy is not None:
        score = found.test
        print(
            f"Test accuracy {score.accuracy:.2%} [{score.low:.2%}, {score.high:.2%}] "
            f"on {score.n:,} samples, error {score.error:.2%}, loss {number(score.loss)}."
        )
    elif found.test is not None:
        print(f"Test loss {number(found.test.loss)} on {found.test.n:,} samples.")
    steps = f"{found.steps:,} steps" if found.status == "finished" else f"{found.step:,} of {found.steps:,} steps"
    epochs = "1 epoch" if found.epoch == 1 else f"{number(found.epoch)} epochs"
    print(f"{steps}, {epochs}, {found.seconds:.1f} s of training.")
    sys.stdout.flush()
    where = shlex.quote(str(found.checkpoint))
    what = "weights" if found.status == "finished" else "last good weights"
    print(f"Saved {where} ({what}), {found.out / 'log.csv'}.", file=sys.stderr)
    profiles = found.out / "profiles"
    if measured and profiles.is_dir():
        where = shlex.quote(str(found.out))
        print(f"Profiles: {profiles}. Draw them: lisse figure time {where} -o time.png", file=sys.stderr)
    elif measured:
        print("Nothing was measured: the run had ended before. Choose another folder with --out.", file=sys.stderr)


def _recipe(ctx: click.Context, values: dict[str, Any]) -> Any:
    from lisse.training import RECIPES

    name = values["recipe"]
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=3, cutoff=0.4) or list(RECIPES)
        raise click.UsageError(f"no recipe {name!r}. The nearest: {', '.join(near)}", ctx)
    given = {
        key.removeprefix("field_"): value
        for key, value in values.items()
        if key.startswith("field_") and ctx.get_parameter_source(key) is ParameterSource.COMMANDLINE
    }
    if values["epochs"] is not None:
        given["epochs"] = values["epochs"]
    with arguments(ctx):
        return dataclasses.replace(RECIPES[name], **given)


def _list(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from lisse.cli.table import print_table
    from lisse.training import RECIPES

    header = ["recipe", "optimizer", "lr", "batch", "epochs", "schedule", "weight decay", "crop, flip"]
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
        ]
        for name, recipe in RECIPES.items()
    ]
    print_table(header, lines, left=(0, 1, 5, 7))
    ctx.exit(0)


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

    asked = values["test"]
    if asked == "none":
        return None
    if asked is None or asked in ("train", "test", "validation", "all"):
        test = lisse.load_data(values["data"], split=asked or "test", tokenizer=tokenizer)
        # Data without parts are the same whatever is asked for: no test, unless it was asked for.
        same = asked is None and test.fingerprint() == data.fingerprint()
        return None if same else test
    return lisse.load_data(asked, split="test", tokenizer=tokenizer)


def _instruments(ctx: click.Context, names: str | None) -> list[Any]:
    if names is None:
        return []
    from lisse.instruments import ALL

    known = {kind.__name__.lower(): kind for kind in ALL}
    made = []
    for name in (part.strip().lower() for part in names.split(",") if part.strip()):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or list(known)
            raise click.UsageError(f"no instrument {name!r}. The nearest: {', '.join(near)}", ctx)
        made.append(known[name]())
    return made


def _first_process() -> bool:
    import torch.distributed as processes

    return not processes.is_available() or not processes.is_initialized() or processes.get_rank() == 0


command = Trainer(
    "train",
    options_metavar="--data SPEC --out DIR [OPTIONS]",
    callback=run,
    help="""Train a model by a recipe; the same command resumes.

    MODEL is zoo:NAME, hf:NAME, timm:NAME, torchvision:NAME, package.module:factory or a .safetensors checkpoint to
    fine-tune. The folder gets the final weights (model.safetensors), the log (log.csv) and the last two checkpoints.
    Stopped at any moment, the same command goes on where it was. A run that diverges exits with code 4.
    """,
)
