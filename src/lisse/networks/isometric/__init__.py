"""Locally isometric networks: the loss that keeps distances within classes, and networks trained with it."""

from lisse.networks.isometric.fitting import fit
from lisse.networks.isometric.loss import isometric_loss, partition
from lisse.networks.isometric.network import IsometricLoss, LocallyIsometric
from lisse.networks.isometric.penalty import Isometrically, IsometricTerm
from lisse.networks.isometric.projection import IsometricProjection
from lisse.networks.isometric.stacked import StackedIsometric

__all__ = [
    "IsometricLoss",
    "IsometricProjection",
    "IsometricTerm",
    "Isometrically",
    "LocallyIsometric",
    "StackedIsometric",
    "fit",
    "isometric_loss",
    "partition",
]
