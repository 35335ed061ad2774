"""Figures of profiles. Needs matplotlib: ``pip install "lisse[report]"``; the only package that imports it."""

try:
    import matplotlib as _  # noqa: F401
except ImportError as error:
    raise ImportError(f'lisse.reporting: figures need matplotlib ({error}). pip install "lisse[report]"') from error

from lisse.reporting.depth import depth_figure, overview_figure
from lisse.reporting.figure import save_figure
from lisse.reporting.time import time_figure, time_heatmap, time_overview_figure

__all__ = ["depth_figure", "overview_figure", "save_figure", "time_figure", "time_heatmap", "time_overview_figure"]
