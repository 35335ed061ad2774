"""One file per measurement. ``ALL`` is what the command line offers."""

from lisse.instruments.sensitivity import Sensitivity
from lisse.instruments.stability import Stability
from lisse.instruments.topology import Topology
from lisse.run import Instrument

ALL: tuple[type[Instrument], ...] = (Sensitivity, Stability, Topology)

__all__ = ["ALL", "Sensitivity", "Stability", "Topology"]
