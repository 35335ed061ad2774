"""Run, Instrument, measure(): one model on one data set, measured by several instruments that share one pass."""

from lisse.run.instrument import Instrument, measure
from lisse.run.run import Run
from lisse.run.sequence import load_profiles
from lisse.run.watch import Watch

__all__ = ["Instrument", "Run", "Watch", "load_profiles", "measure"]
