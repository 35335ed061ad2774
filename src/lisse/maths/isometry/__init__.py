"""How far a map keeps distances: distances with gradients, distortion, the gradient of the isometric loss."""

from .distances import cosine, euclidean, geodesic
from .distortion import Distortion, distance_histogram, distortion, pair_correlation
from .gradient import gap_direction, gap_sums, isometric_gradient, printed_gradient, translation_gradient

__all__ = [
    "Distortion",
    "cosine",
    "distance_histogram",
    "distortion",
    "euclidean",
    "gap_direction",
    "gap_sums",
    "geodesic",
    "isometric_gradient",
    "pair_correlation",
    "printed_gradient",
    "translation_gradient",
]
