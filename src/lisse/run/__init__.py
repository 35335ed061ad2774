"""Run, Instrument, measure(): one model on one data set, measured by several instruments that share one pass."""

from lisse.run.instrument import Instrument, measure
from lisse.run.run import Run

__all__ = ["Instrument", "Run", "measure"]
