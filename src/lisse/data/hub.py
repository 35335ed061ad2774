"""Any data set of Hugging Face ``datasets`` (the extra ``lisse[datasets]``), by name or from a local folder."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lisse.data.bounded import CEILING
from lisse.data.conversion import tensor_of
from lisse.data.dataset import Dataset
from lisse.data.request import Request
from lisse.data.text import PAIR_COLUMNS, SINGLE_COLUMNS
from lisse.data.tokens import encoded
from lisse.libraries import brings_code, may_download, published_table, saved_table

INPUTS = ("image", "img", "pixel_values", "inputs", "x", "features")
LABELS = ("label", "labels", "target", "fine_label", "y")


def hub(
    request: Request,
    name: str,
    *,
    config: str = "",
    inputs: str = "",
    second: str = "",
    targets: str = "",
    tokenizer: str = "",
    length: int = 128,
    vocabulary: int = 30522,
    download: bool = False,
) -> Dataset:
    """``datasets.load_dataset(name, config, split=split)`` as a Dataset; a folder written by ``save_to_disk`` also.

    The columns are found by their usual names or given as ``inputs``, ``second`` (the other side of text pairs) and
    ``targets``. Images must have one size. Without ``download`` only what is already on this machine is used.
    """
    table = _table(name, config, request, download)
    order = request.choose(len(table))
    table = table if order is None else table.select(order.tolist())
    columns = list(table.column_names)
    for column in filter(None, (inputs, second, targets)):
        if column not in columns:
            raise ValueError(
                f"load_data: 'hfdata:{name}' must have a column {column!r}, got {', '.join(columns)}. "
                "Name one of these."
            )
    if not inputs:
        pair = next(((a, b) for a, b in PAIR_COLUMNS if a in columns and b in columns), None)
        inputs = next((c for c in INPUTS if c in columns), "") or (pair[0] if pair else "")
        second = second or (pair[1] if pair and inputs == pair[0] else "")
        inputs = inputs or next((c for c in SINGLE_COLUMNS if c in columns), "")
        if not inputs:
            raise ValueError(
                f"load_data: 'hfdata:{name}' must say which column is the input, got {', '.join(columns)}. "
                "Give ?inputs=NAME."
            )
    targets = targets or next((c for c in LABELS if c in columns and c != inputs), "")
    values = table[inputs]
    answers = torch.tensor(table[targets][:]) if targets else None
    classes = tuple(getattr(table.features[targets], "names", None) or ()) if targets else ()
    if answers is not None and classes and bool((answers == -1).all()):
        answers = None  # a test split whose labels are withheld
    extras: dict[str, Any] = {"targets": answers, "classes": classes or None}
    if isinstance(values[0], str):
        speaker = tokenizer or request.tokenizer or "words"
        encode = partial(encoded, tokenizer=speaker, length=length, vocabulary=vocabulary)
        partner = encode(f"{name}: {second}", table[second][:]) if second else None
        return encode(name, values[:], partner=partner, **extras)
    return Dataset(name, _stacked(values, name), **extras)


def _table(name: str, config: str, request: Request, download: bool) -> Any:
    split, network = request.split, may_download(download)
    folder = Path(os.path.expanduser(name))
    try:
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            table = saved_table(str(folder))
            if isinstance(table, dict) or not hasattr(table, "features"):
                return table[split]
            request.warn_of_no_splits(str(folder))
            return table
        return published_table(name, config or None, split, network=network)
    except ImportError as error:
        raise ValueError(
            f"load_data: 'hfdata:{name}' must have the datasets library, got none installed. "
            f'pip install "lisse[datasets]".'
        ) from error
    except Exception as error:  # datasets raises very many kinds
        if brings_code(error) or "scripts are no longer supported" in str(error):
            raise ValueError(
                f"load_data: 'hfdata:{name}' must be files of data, got a script that would make them; it was not run. "
                "Write package.module:factory around one that you trust."
            ) from None
        more = "" if network else " Add ?download=true (or LISSE_DOWNLOAD=1) to fetch it."
        raise ValueError(
            f"load_data: 'hfdata:{name}' must be a data set with a split {split!r}, "
            f"got {type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}.{more}"
        ) from error


def _stacked(values: Any, name: str) -> torch.Tensor:
    first = tensor_of(values[0], "inputs")
    total = first.numel() * first.element_size() * len(values)
    if total > CEILING:
        raise ValueError(
            f"load_data: 'hfdata:{name}' must fit in {CEILING >> 30} GiB, got {total / (1 << 30):.1f} GiB "
            f"for {len(values):,} samples. Give limit=."
        )
    parts = [tensor_of(value, "inputs") for value in values]
    shapes = {tuple(part.shape) for part in parts}
    if len(shapes) > 1:
        raise ValueError(
            f"load_data: 'hfdata:{name}' must have inputs of one size, got {', '.join(map(str, sorted(shapes)[:3]))}. "
            "Resize them first, or save them as an image folder and use folder:DIR?size=PIXELS."
        )
    stacked = torch.stack(parts)
    return stacked.float() if stacked.dtype == torch.float64 and not isinstance(values[0], np.ndarray) else stacked
