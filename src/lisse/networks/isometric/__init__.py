"""Locally isometric networks: the loss that keeps distances within classes, and networks trained with it."""

from lisse.moved import moved_names
from lisse.networks.isometric.fitting import fit
from lisse.networks.isometric.loss import isometric_loss, partition
from lisse.networks.isometric.network import IsometricLoss, LocallyIsometric
from lisse.networks.isometric.penalty import Isometrically, IsometricTerm
from lisse.networks.isometric.stacked import StackedIsometric

__all__ = [
    "IsometricLoss",
    "IsometricTerm",
    "Isometrically",
    "LocallyIsometric",
    "StackedIsometric",
    "fit",
    "isometric_loss",
    "partition",
]

__getattr__ = moved_names(__name__)
