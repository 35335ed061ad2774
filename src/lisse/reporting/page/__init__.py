"""The report: one HTML page that shows where a network is smooth and where it tears."""

from lisse.reporting.page.document import page, report

__all__ = ["page", "report"]
