"""Attention as an integral operator: kernels, their application without the matrix, and integral equations."""

from __future__ import annotations

import warnings
from typing import Any

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
    KernelKind,
    TokenKernel,
    attention_kernel,
    dot_decomposition,
    kernel_scores,
)
from lisse.maths.integral.operators import IntegralOperator
from lisse.maths.integral.structure import (
    offset_average,
    offset_defect,
    row_distance,
    row_sum_error,
    symmetry_defect,
)
from lisse.moved import moved_names

__all__ = [
    "Decomposition",
    "IntegralOperator",
    "KernelKind",
    "Solution",
    "Tikhonov",
    "TokenKernel",
    "attention_kernel",
    "dot_decomposition",
    "fredholm_first",
    "fredholm_second",
    "kernel_scores",
    "offset_average",
    "offset_defect",
    "row_distance",
    "row_sum_error",
    "skip_connection",
    "symmetry_defect",
    "tikhonov",
    "tikhonov_functional",
]


_moved = moved_names(__name__)


def __getattr__(name: str) -> Any:
    if name != "Kind":
        return _moved(name)
    warnings.warn("lisse.maths.integral.Kind will go: use KernelKind.", DeprecationWarning, stacklevel=2)
    return KernelKind
