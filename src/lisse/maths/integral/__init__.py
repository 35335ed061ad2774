"""Attention as an integral operator: kernels, their application without the matrix, spectra, and integral equations."""

from __future__ import annotations

from lisse.maths.integral.equations import (
    Solution,
    Tikhonov,
    fredholm_first,
    fredholm_second,
    skip_connection,
    tikhonov,
    tikhonov_functional,
)
from lisse.maths.integral.kernels import (
    Decomposition,
    Kind,
    TokenKernel,
    attention_kernel,
    dot_decomposition,
    kernel_scores,
)
from lisse.maths.integral.nonlocal_means import non_local_means, pixel_patches
from lisse.maths.integral.operators import IntegralOperator
from lisse.maths.integral.structure import (
    Decay,
    Mercer,
    mercer,
    offset_average,
    offset_defect,
    row_distance,
    row_sum_error,
    spectral_decay,
    symmetry_defect,
)

__all__ = [
    "Decay",
    "Decomposition",
    "IntegralOperator",
    "Kind",
    "Mercer",
    "Solution",
    "Tikhonov",
    "TokenKernel",
    "attention_kernel",
    "dot_decomposition",
    "fredholm_first",
    "fredholm_second",
    "kernel_scores",
    "mercer",
    "non_local_means",
    "offset_average",
    "offset_defect",
    "pixel_patches",
    "row_distance",
    "row_sum_error",
    "skip_connection",
    "spectral_decay",
    "symmetry_defect",
    "tikhonov",
    "tikhonov_functional",
]
