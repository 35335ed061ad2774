"""What profiles look like: the page, and figures, which need matplotlib (``pip install "lisse[report]"``)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lisse.reporting.depth import depth_figure, overview_figure
    from lisse.reporting.figure import save_figure
    from lisse.reporting.page import report
    from lisse.reporting.seeds import joined
    from lisse.reporting.time import time_figure, time_heatmap, time_overview_figure

_WHERE = {
    "depth_figure": "depth",
    "joined": "seeds",
    "overview_figure": "depth",
    "report": "page",
    "save_figure": "figure",
    "time_figure": "time",
    "time_heatmap": "time",
    "time_overview_figure": "time",
}

__all__ = [
    "depth_figure",
    "joined",
    "overview_figure",
    "report",
    "save_figure",
    "time_figure",
    "time_heatmap",
    "time_overview_figure",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'lisse.reporting' has no attribute {name!r}")
    try:
        if name not in ("joined", "report"):
            importlib.import_module("matplotlib")
        return getattr(importlib.import_module(f"lisse.reporting.{_WHERE[name]}"), name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ImportError(f'lisse.reporting: figures need matplotlib ({error}). pip install "lisse[report]"') from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
