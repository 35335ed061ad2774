"""One file per measurement. ``ALL`` is what the command line offers."""

from lisse.instruments.sensitivity import Sensitivity
from lisse.instruments.topology import Topology
from lisse.run import Instrument

ALL: tuple[type[Instrument], ...] = (Sensitivity, Topology)

__all__ = ["ALL", "Sensitivity", "Topology"]
