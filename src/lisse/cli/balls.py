"""What ``lisse bounds --eps`` proves of balls around samples: the answers of a classifier, or blocks of tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from lisse.cli.outcome import arguments
from lisse.cli.table import LEGEND, SIGNS, number_text, print_table, printable

if TYPE_CHECKING:
    from torch import nn

    from lisse.networks.bounds import LocalBound
    from lisse.run import Run

SPEAKING = {"model", "data", "split", "eps", "ball", "samples", "seed", "layers", "device", "as_json", "out"}
LEAST = 5  # samples for an interval of a median
_VACUOUS = 1e4  # times the stretch at the sample: above it a bound says nothing


def ball_document(ctx: click.Context, model: nn.Module, values: dict[str, Any]) -> dict[str, Any]:
    """Everything that is proved in the balls ``eps`` around samples of the data, as plain JSON."""
    from lisse.networks.bounds.local import token_blocks

    for option in ctx.params.keys() - SPEAKING:
        if ctx.get_parameter_source(option) is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(f"--{option} says nothing of a ball around samples: leave it out beside --eps", ctx)
    if not values["data"]:
        raise click.UsageError("--eps is the radius of a ball around samples: say of which with --data", ctx)
    blocks = token_blocks(model)
    return (_blocks if blocks else _answers)(ctx, model, values)


def _blocks(ctx: click.Context, model: nn.Module, values: dict[str, Any]) -> dict[str, Any]:
    from lisse.cli.layers import example_of
    from lisse.networks.bounds import local_bounds
    from lisse.progress import Bar

    with arguments(ctx):
        example = example_of(ctx, model, values["data"], values["split"])
    with Bar() as bar, arguments(ctx):
        rows = local_bounds(
            model, example, values["eps"], layers=list(values["layers"]) or None, progress=bar
        )  # fmt: skip
    sizes = [size for row, size in zip(rows, values["eps"] * len(rows), strict=False)]
    return {
        "blocks": [
            {
                "name": row.name,
                "eps": size,
                "size": row.eps,
                "lower": _plain(row.lower),
                "upper": _plain(row.upper),
                "reason": row.reason or _vacuous(row),
            }
            for row, size in zip(rows, sizes, strict=True)
        ]
    }


def _vacuous(row: LocalBound) -> str:
    if row.upper <= _VACUOUS * row.lower:
        return ""
    size = f"10^{number_text(math.log10(row.upper), 3)}" if math.isfinite(row.upper) else "no number"
    return f"{size} in a ball of this size: what attention and slopes can turn by is more than what they are."


def _answers(ctx: click.Context, model: nn.Module, values: dict[str, Any]) -> dict[str, Any]:
    import lisse
    from lisse.progress import Bar, Event
    from lisse.run import Run

    if values["layers"]:
        raise click.UsageError("--layers chooses blocks of tokens, and this model has none", ctx)
    if min(values["eps"]) < 0 or not all(map(math.isfinite, values["eps"])):
        raise click.UsageError(f"--eps must be finite and not negative, got {min(values['eps'])}", ctx)
    radii: list[float] = []
    distances: list[float] = []
    with Bar() as bar, arguments(ctx):
        data = lisse.load_data(values["data"], split=values["split"])
        run = Run(model, data, seed=values["seed"], cache=False, progress=bar)
        count = run.take(values["samples"])
        for index in range(count):
            bar(Event("balls", index, count, "samples"))
            radius, distance = _ends(ctx, run, index, values["ball"])
            radii.append(radius)
            distances.append(distance)
        bar(Event("balls", count, count, "samples"))
    return {
        "ball": values["ball"],
        "seed": values["seed"],
        "n": count,
        "balls": [
            {
                "eps": eps,
                "proved": _share([radius >= max(eps, 1e-300) for radius in radii]),
                "not_reached": _share([distance > eps for distance in distances]),
            }
            for eps in values["eps"]
        ],
        "certified": _median(radii, run),
        "attacked": _median(distances, run),
        "samples": [
            {"certified": radius, "attacked": _plain(distance)}
            for radius, distance in zip(radii, distances, strict=True)
        ],
    }


def _ends(ctx: click.Context, run: Run, index: int, norm: Any) -> tuple[float, float]:
    """A proved distance to a wrong answer and one that an attack needs, of one sample."""
    from torch import Tensor

    from lisse.networks.attack import attack_distance
    from lisse.networks.bounds import certified_radius

    (batch,) = run.data.batches(1, start=index, stop=index + 1, device=run.device)
    x, y = batch.inputs, batch.targets
    if not isinstance(x, Tensor) or y is None:
        raise click.UsageError("--eps of a classifier asks for inputs of one tensor and their labels", ctx)
    unit = bool(((x >= 0) & (x <= 1)).all())
    width = 1.0 if unit else float(x.max() - x.min())
    largest = width * (x[0].numel() ** 0.5 if norm == "l2" else 1.0)
    bounds = (0.0, 1.0) if unit else None
    distance = attack_distance(run.model, x, y, norm=norm, largest=largest, steps=20, bounds=bounds)
    return float(certified_radius(run.model, x, y, norm=norm, largest=largest)), float(distance)


def _share(hits: Sequence[bool]) -> dict[str, float]:
    from lisse.maths.intervals import share_interval

    interval = share_interval(sum(hits) / len(hits), len(hits))
    return {"value": float(interval.value), "low": float(interval.low), "high": float(interval.high)}


def _median(values: Sequence[float], run: Run) -> dict[str, float | None]:
    """With its interval over samples, where they are enough for one and it is a number."""
    import torch

    from lisse.maths.intervals import bootstrap

    column = torch.tensor(values, dtype=torch.float64)
    if len(values) < LEAST or not bool(column.isfinite().all()):
        return {"value": _plain(float(column.median())), "low": None, "high": None}
    interval = bootstrap(column, "median", generator=run.generator("balls"))
    return {"value": float(interval.value), "low": float(interval.low), "high": float(interval.high)}


def print_balls(document: dict[str, Any]) -> None:
    """The table of :func:`ball_document`."""
    if "blocks" in document:
        _print_blocks(document["blocks"])
    else:
        _print_answers(document)


def _print_blocks(blocks: Sequence[dict[str, Any]]) -> None:
    lines = [
        (
            row["name"],
            number_text(row["eps"]),
            "" if row["lower"] is None else SIGNS["lower"] + number_text(row["lower"]),
            "none" if row["reason"] else SIGNS["upper"] + number_text(row["upper"]),
            "" if row["reason"] else number_text(row["upper"] / row["lower"], 3),
        )
        for row in blocks
    ]
    print_table(["block", "ε, of a token", "at the sample", "in the ball", "times"], lines)
    print()
    print("How far a block stretches a change of its tokens, ℓ2 over all of them; the ball: every token of its input")
    print("within ε, in shares of their mean norm, of the first sample's.")
    print("; ".join(LEGEND[kind] for kind in ("lower", "upper")) + ".")
    for row in blocks:
        if row["reason"]:
            print(printable(f"No bound of {row['name']} at ε = {number_text(row['eps'])}: {row['reason']}"))


def _print_answers(document: dict[str, Any]) -> None:
    lines = [
        (
            number_text(row["eps"]),
            SIGNS["lower"] + _interval_text(row["proved"]),
            SIGNS["upper"] + _interval_text(row["not_reached"]),
            str(document["n"]),
        )
        for row in document["balls"]
    ]
    print_table([f"ε, {document['ball']}", "proved right", "not reached by attack", "n"], lines)
    print()
    print(f"Median of {document['n']}: no wrong answer within {SIGNS['lower']}{_interval_text(document['certified'])}.")
    print(f"Median of {document['n']}: a wrong answer at {SIGNS['upper']}{_interval_text(document['attacked'])}.")
    both = [row for row in document["samples"] if row["certified"] > 0 and row["attacked"] is not None]
    if both:
        ratio = sorted(row["attacked"] / row["certified"] for row in both)[len(both) // 2]
        print(f"Attacked over certified, median of {len(both)}: {number_text(ratio, 3)}. The truth is between.")
    print("; ".join(LEGEND[kind] for kind in ("lower", "upper")) + "; [low, high] is an interval over samples.")


def _interval_text(interval: dict[str, float | None]) -> str:
    value, low, high = (interval[key] for key in ("value", "low", "high"))
    text = "no number" if value is None else number_text(value)
    return text if low is None or high is None else f"{text} [{number_text(low, 3)}, {number_text(high, 3)}]"


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
