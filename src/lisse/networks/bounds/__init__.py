"""The bounds of :mod:`lisse.maths.bounds` on a real module's weights, and norms of its linear layers."""

from lisse.networks.bounds.ball import ball_bounds, certified_radius, least_refine, lipschitz_radius
from lisse.networks.bounds.layers import LayerBound, layer_bounds
from lisse.networks.bounds.local import LocalBound, local_bounds
from lisse.networks.bounds.module import of_module
from lisse.networks.bounds.operators import OperatorNorm, operator_norm

__all__ = [
    "LayerBound",
    "LocalBound",
    "OperatorNorm",
    "ball_bounds",
    "certified_radius",
    "layer_bounds",
    "least_refine",
    "lipschitz_radius",
    "local_bounds",
    "of_module",
    "operator_norm",
]
