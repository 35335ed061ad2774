"""``lisse export PROFILE… --csv FILE --tensorboard DIR``: profiles for other programs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from lisse.cli.files import load_profile
from lisse.cli.table import printable


@click.command()
@click.argument("profiles", nargs=-1, required=True, type=click.Path(), metavar="PROFILE...")
@click.option(
    "--csv", "table", type=click.Path(dir_okay=False), help="Every row as a line of one table; - for standard output."
)
@click.option("--tensorboard", "folder", type=click.Path(file_okay=False), help="Scalars, a run per model.")
@click.pass_context
def command(ctx: click.Context, profiles: tuple[str, ...], table: str | None, folder: str | None) -> None:
    """Write the rows of profiles as CSV, or as scalars for TensorBoard.

    For TensorBoard a profile along depth has the layer's number as its step; a profile of a training (of a watched
    run) has the training's step, and a scalar per layer.
    """
    if table is None and folder is None:
        raise click.UsageError("say what to write: --csv FILE, --tensorboard DIR, or both", ctx)
    loaded = [load_profile(path) for path in profiles]
    if table is not None:
        write_csv(loaded, table)
    if folder is not None:
        count = write_scalars(loaded, Path(folder))
        print(f"Wrote {count:,} scalars to {folder}. Look: tensorboard --logdir {folder}", file=sys.stderr)


def write_csv(profiles: list[Any], path: str) -> None:
    """All rows of all profiles as one table, with the model's name in front."""
    import io

    import pandas as pd

    from lisse.profile_file import writing
    from lisse.reporting.series import legend_names

    frames = []
    for name, profile in zip(legend_names(profiles), profiles, strict=True):
        frame = profile.frame()
        frame.insert(0, "model", name.encode("utf-8", "backslashreplace").decode())
        frames.append(frame.map(_inert).rename(columns=_inert))
    text = io.StringIO()
    pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True).to_csv(text, index=False)
    if path == "-":
        sys.stdout.write(text.getvalue())
        sys.stdout.flush()
        return
    with writing(Path(path)) as file:
        file.write(text.getvalue().encode("utf-8", "backslashreplace"))
    print(f"Saved {path}", file=sys.stderr)


def _inert(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula and no terminal for a command: a stranger chose the names."""
    if not isinstance(cell, str):
        return cell
    return f"'{printable(cell)}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else printable(cell)


def write_scalars(profiles: list[Any], folder: Path) -> int:
    """Scalars for TensorBoard, a folder per model; returns how many."""
    import math
    import warnings

    from lisse.reporting.series import legend_names

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            f'export: --tensorboard needs tensorboard ({error}). pip install "lisse[tensorboard]"'
        ) from error
    count = 0
    trained = all("training" in profile.provenance for profile in profiles)
    names = [profile.name for profile in profiles] if trained else legend_names(profiles)
    for name, profile in zip(names, profiles, strict=True):
        moment = profile.provenance.get("training", {}).get("step") if trained else None
        writer = SummaryWriter(str(folder / re.sub(r"[^\w.+-]+", "-", name)))
        layers = list(dict.fromkeys(row.layer for row in profile.rows if row.layer is not None))
        for part in profile.parts:
            for row in part.rows:
                if not math.isfinite(row.value):
                    continue
                tag = "/".join(filter(None, (part.instrument, row.quantity, row.where(), row.layer if trained else "")))
                step = moment if trained else layers.index(row.layer) if row.layer is not None else 0
                writer.add_scalar(tag, row.value, step)
                count += 1
        writer.close()
    return count
