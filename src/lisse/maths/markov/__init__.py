"""Attention as a map of measures: kernels, the stretch of a map, inversion and fixed points."""

from lisse.maths.markov.inversion import FixedPoint, fixed_point, invert, invertible_scale, value_scale
from lisse.maths.markov.kernels import (
    AttentionKernel,
    Bilinear,
    DotProduct,
    FiniteKernel,
    Gaussian,
    Linear,
    MultiHeadKernel,
    Table,
    TransformerKernel,
    ball_projection,
    boltzmann_gibbs,
    evolve,
    projection,
    softmatch,
)
from lisse.maths.markov.stretch import Ball, Box, CrossPolytope, Witness, contraction

__all__ = [
    "AttentionKernel",
    "Ball",
    "Bilinear",
    "Box",
    "CrossPolytope",
    "DotProduct",
    "FiniteKernel",
    "FixedPoint",
    "Gaussian",
    "Linear",
    "MultiHeadKernel",
    "Table",
    "TransformerKernel",
    "Witness",
    "ball_projection",
    "boltzmann_gibbs",
    "contraction",
    "evolve",
    "fixed_point",
    "invert",
    "invertible_scale",
    "projection",
    "softmatch",
    "value_scale",
]
