"""The report: one HTML page that shows how smoothly networks carry their data, layer by layer."""

from lisse.reporting.page.document import page, report

__all__ = ["page", "report"]
