"""Figures by the names they had before instruments declared charts: they work for a release, with a warning."""

from __future__ import annotations

import warnings
from typing import Any

from lisse.moved import moved_names

FORMER_CHARTS = {
    "barcode_figure": "barcodes",
    "contraction_figure": "contraction",
    "corruption_figure": "corruptions",
    "diagrams_figure": "diagrams",
    "histogram_figure": "histograms",
    "isometry_figure": "isometry",
    "propagation_figure": "propagation",
    "robustness_figure": "robustness",
    "sentences_figure": "sentences",
    "stability_figure": "stability",
    "topology_figure": "topology",
}
_moved = moved_names(__name__)


def __getattr__(name: str) -> Any:
    if name not in FORMER_CHARTS:
        return _moved(name)
    chart = FORMER_CHARTS[name]

    def figure(profiles: Any, **where: Any) -> Any:
        from lisse.reporting.charts import chart_figure

        new = f"lisse.reporting.chart_figure(profiles, {chart!r}, where={{…}})"
        warnings.warn(f"{name} is now {new}.", DeprecationWarning, stacklevel=2)
        coordinates = {key: value for key, value in where.items() if value is not None and value is not False}
        return chart_figure(profiles, chart, where=coordinates)

    return figure
