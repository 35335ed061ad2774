"""Common corruptions of images: CIFAR-10-C's and ImageNet-C's, at any size, and the mean corruption error."""

from lisse.maths.corruption.application import corrupt
from lisse.maths.corruption.parameters import CORRUPTIONS, EXTRA, MAIN, PARAMETERS
from lisse.maths.corruption.summary import corruption_errors, mean_corruption_error

__all__ = ["CORRUPTIONS", "EXTRA", "MAIN", "PARAMETERS", "corrupt", "corruption_errors", "mean_corruption_error"]
