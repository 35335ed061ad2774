"""Maximum-entropy random deformations of images, after [petrini2021].

:class:`Diffeomorphism` is the ensemble of fields at a cut-off and an image size, :class:`Field` some fields out of it,
:func:`deform` the images they deform. The rest says where fields are bijective (:func:`phase_diagram`).
"""

from lisse.maths.diffeomorphism.ensemble import Accepted, Diffeomorphism
from lisse.maths.diffeomorphism.field import Field, Inverse
from lisse.maths.diffeomorphism.phase import (
    PhaseDiagram,
    bijective_share,
    critical_temperatures,
    half_temperature,
    phase_diagram,
    warn_if_folding,
)
from lisse.maths.diffeomorphism.warp import INTERPOLATIONS, SIGMA, blurred, deform, undeformed
from lisse.moved import moved_names

__all__ = [
    "INTERPOLATIONS",
    "SIGMA",
    "Accepted",
    "Diffeomorphism",
    "Field",
    "Inverse",
    "PhaseDiagram",
    "bijective_share",
    "blurred",
    "critical_temperatures",
    "deform",
    "half_temperature",
    "phase_diagram",
    "undeformed",
    "warn_if_folding",
]

__getattr__ = moved_names(__name__)
