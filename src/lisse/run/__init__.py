"""Run, Instrument, measure(): one model on one data set, measured by several instruments that share one pass."""

from lisse.run.instrument import Instrument, measure, profile_of
from lisse.run.options import Size, level_option, option
from lisse.run.pair import PairedLayer, RunPair, profile_of_pair
from lisse.run.run import Order, Run
from lisse.run.seeds import joined
from lisse.run.sequence import load_profiles
from lisse.run.watch import Watch

__all__ = [
    "Instrument",
    "Order",
    "PairedLayer",
    "Run",
    "RunPair",
    "Size",
    "Watch",
    "joined",
    "level_option",
    "load_profiles",
    "measure",
    "option",
    "profile_of",
    "profile_of_pair",
]
