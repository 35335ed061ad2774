"""What profiles look like: the page, and figures, which need matplotlib (``pip install "lisse[report]"``)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lisse.reporting.charts import chart_figure, charts_of, named_figure
    from lisse.reporting.depth import depth_figure, overview_figure
    from lisse.reporting.figure import save_figure
    from lisse.reporting.page import report
    from lisse.reporting.page.verdict import verdict
    from lisse.reporting.time import time_figure, time_heatmap, time_overview_figure
    from lisse.run.seeds import joined

_HOMES = {
    "reporting.charts": "chart_figure charts_of named_figure",
    "reporting.depth": "depth_figure overview_figure",
    "reporting.figure": "save_figure",
    "reporting.page": "report",
    "reporting.page.verdict": "verdict",
    "reporting.time": "time_figure time_heatmap time_overview_figure",
    "run.seeds": "joined",
}
_WHERE = {name: f"lisse.{home}" for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "chart_figure",
    "charts_of",
    "depth_figure",
    "joined",
    "named_figure",
    "overview_figure",
    "report",
    "save_figure",
    "time_figure",
    "time_heatmap",
    "time_overview_figure",
    "verdict",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'lisse.reporting' has no attribute {name!r}")
    try:
        if name not in ("joined", "report", "verdict"):
            importlib.import_module("matplotlib")
        return getattr(importlib.import_module(_WHERE[name]), name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ImportError(f'lisse.reporting: figures need matplotlib ({error}). pip install "lisse[report]"') from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
