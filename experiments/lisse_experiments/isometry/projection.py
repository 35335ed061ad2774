"""IsometricProjection: a picture of the data in a few dimensions that keeps distances within classes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lisse.maths.given import Values
from lisse.networks.answers import hits
from lisse.networks.isometric.network import LocallyIsometric, fit


class IsometricProjection:
    r"""Points to ``dim`` dimensions, classes apart, distances within classes kept ([beshkov2022] §4.3).

    A :class:`LocallyIsometric` network whose last hidden layer has ``dim`` units without tanh, trained on
    :math:`\alpha L_{CSE} + \beta L_{ISO}` with all points in one batch; the embedding is that layer. Labels are given
    to :meth:`fit`, or found by hierarchical clustering (Ward's, ``clusters`` of them), as the paper proposes. New
    points are placed by :meth:`transform`.

    Data are centred and divided by their root mean square distance for training and put back to their own scale in the
    embedding, so that its distances compare with theirs. ``stress_`` is the relative error of within-class distances,
    :math:`\sqrt{\sum (d - d')^2 / \sum d^2}`, ``accuracy_`` the share of points that the classifier on the embedding
    gets right, ``labels_`` the labels used, ``losses_`` those of the epochs. Memory O(n²).
    """

    def __init__(
        self,
        dim: int = 2,
        *,
        hidden: Sequence[int] = (64, 64),
        clusters: int | None = None,
        alpha: float = 0.1,
        beta: float = 1.0,
        epochs: int = 2000,
        rate: float = 3e-3,
        seed: int = 0,
    ) -> None:
        for name, value, least in (("dim", dim, 1), ("epochs", epochs, 1), ("clusters", clusters, 1)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ValueError(f"IsometricProjection: {name} must be whole and at least {least}, got {value!r}.")
        for name, number in (("alpha", alpha), ("beta", beta), ("rate", rate)):
            if not (math.isfinite(number) and number >= 0):
                raise ValueError(f"IsometricProjection: {name} must be finite and at least 0, got {number!r}.")
        self.dim, self.hidden, self.clusters = dim, tuple(hidden), clusters
        self.alpha, self.beta, self.epochs, self.rate, self.seed = alpha, beta, epochs, rate, seed
        self.network: LocallyIsometric | None = None

    def fit(self, x: Values, labels: Values | None = None) -> IsometricProjection:
        """Learn the map from points ``[n, …]``, with ``labels`` ``[n]`` or clusters in their place."""
        points = _points(x)
        if len(points) < 2:
            raise ValueError(f"IsometricProjection: x must hold at least 2 points, got {len(points)}.")
        self._centre = points.mean(0)
        spread = (2 * (points - self._centre).square().sum(1).mean()).sqrt()
        self._scale = float(spread) or 1.0
        scaled = (points - self._centre) / self._scale
        self.labels_ = self._labels(scaled, labels)
        targets = torch.unique(self.labels_, return_inverse=True)[1]
        widths, classes = (*self.hidden, self.dim), int(targets.max()) + 1
        self.network = LocallyIsometric(points.shape[1], widths, classes, linear_end=True, seed=self.seed).double()
        self.losses_ = fit(
            self.network, scaled, targets, epochs=self.epochs, alpha=self.alpha, beta=self.beta, rate=self.rate
        )
        with torch.no_grad():
            flat = self.network.representation(scaled)
            self.accuracy_ = float(hits(self.network.head(flat), targets).double().mean())
            within = (targets[:, None] == targets[None]) & ~torch.eye(len(points), dtype=torch.bool)
            before, after = torch.cdist(scaled, scaled)[within], torch.cdist(flat, flat)[within]
            self.stress_ = float(((before - after).square().sum() / before.square().sum().clamp_min(1e-300)).sqrt())
        return self

    def transform(self, x: Values) -> Tensor:
        """Points ``[n, …]`` in ``dim`` dimensions, ``[n, dim]`` float64."""
        if self.network is None:
            raise RuntimeError(
                "IsometricProjection: fit must come before transform, got no fit yet. Call fit(x, labels)."
            )
        points = _points(x)
        if points.shape[1] != len(self._centre):
            raise ValueError(
                f"IsometricProjection: x must have {len(self._centre)} features as in fit, got {points.shape[1]}."
            )
        with torch.no_grad():
            return self.network.representation((points - self._centre) / self._scale) * self._scale

    def fit_transform(self, x: Values, labels: Values | None = None) -> Tensor:
        """:meth:`fit`, then :meth:`transform` of the same points."""
        return self.fit(x, labels).transform(x)

    def _labels(self, points: Tensor, labels: Values | None) -> Tensor:
        if labels is not None:
            targets = torch.as_tensor(labels)
            if targets.shape != (len(points),):
                raise ValueError(
                    f"IsometricProjection: labels must hold one for each of {len(points)} points, got shape "
                    f"{list(targets.shape)}. Leave them out to cluster."
                )
            return targets
        if self.clusters is None:
            raise ValueError("IsometricProjection: labels must be given, or clusters=k to find them, got neither.")
        if self.clusters > len(points):
            raise ValueError(
                f"IsometricProjection: clusters must not exceed the {len(points)} points, got {self.clusters}."
            )
        from scipy.cluster.hierarchy import fcluster, linkage

        return torch.from_numpy(
            fcluster(linkage(points.numpy(), "ward"), self.clusters, "maxclust").astype(np.int64) - 1
        )


def _points(x: Values) -> Tensor:
    points = torch.as_tensor(x).detach().cpu().double().flatten(1)
    if points.ndim != 2 or not bool(torch.isfinite(points).all()):
        raise ValueError("IsometricProjection: x must be finite points [n, d], got others.")
    return points
