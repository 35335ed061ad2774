"""The reference case of R_f with everything fixed: images, fields, noise and network are formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lisse.maths.diffeomorphism import Diffeomorphism, deform
from lisse.maths.relative_stability import relative_stability, sphere, squared_distances

N, PLACES = 8, [(k, t) for k in range(3) for t in range(2)]
MODES = [(1, 1), (1, 2), (2, 1), (2, 2)]
WEIGHTS = np.sin(0.1 * np.arange(1, 6)[:, None] * np.arange(1, 65)) / 4


def picture(k):
    r, q = np.mgrid[:N, :N]
    return np.sin(0.7 * r + 0.4 * k) + np.cos(0.3 * q * (k + 1)) + 0.05 * r * q


def noise(k, t):
    return np.cos(1.7 * np.arange(1, 65) * (1 + k) + t)


def naive():
    """Pixel by pixel from the definitions: shifts ‖τx - x‖, numerators, denominators, pairs."""
    moved, at = [], (np.arange(N) + 0.5) / N
    for k, t in PLACES:
        x, out = picture(k), np.zeros((N, N))
        for r in range(N):
            for q in range(N):
                waves = {(i, j): np.sin(i * np.pi * at[q]) * np.sin(j * np.pi * at[r]) for i, j in MODES}
                u = sum(0.03 * np.cos(i + 2 * j + k + 3 * t) * wave for (i, j), wave in waves.items())
                v = sum(0.03 * np.sin(2 * i + j + 2 * k + t) * wave for (i, j), wave in waves.items())
                column, row = np.clip(q - N * u, 0, N - 1), np.clip(r - N * v, 0, N - 1)
                a, b = min(int(column), N - 2), min(int(row), N - 2)
                hats = [
                    (b + d, a + c, abs(1 - d - (row - b)) * abs(1 - c - (column - a))) for d in (0, 1) for c in (0, 1)
                ]
                out[r, q] = sum(x[y, z] * weight for y, z, weight in hats)
        moved.append(out.ravel())
    x = np.stack([picture(k).ravel() for k, _ in PLACES])
    shift = np.linalg.norm(np.stack(moved) - x, axis=1)
    eta = np.stack([noise(k, t) for k, t in PLACES])
    eta *= shift.mean() / np.linalg.norm(eta, axis=1, keepdims=True)
    y, top, bottom = (np.tanh(z @ WEIGHTS.T) for z in (x, np.stack(moved), x + eta))
    pairs = [((y[2 * i] - y[2 * j]) ** 2).sum() for i in range(3) for j in range(i + 1, 3)]
    return shift, ((top - y) ** 2).sum(1), ((bottom - y) ** 2).sum(1), np.array(pairs)


def test_relative_stability_of_fixed_images_fields_noise_and_network():
    i = torch.arange(1, 4, dtype=torch.float64)[:, None]
    j = i.T
    cu = torch.stack([0.03 * torch.cos(i + 2 * j + k + 3 * t) for k, t in PLACES])
    cv = torch.stack([0.03 * torch.sin(2 * i + j + 2 * k + t) for k, t in PLACES])
    x = torch.from_numpy(np.stack([picture(k) for k, _ in PLACES]))[:, None]
    moved = deform(x, Diffeomorphism((N, N), 3).field(cu, cv))
    shift, above, below, pairs = naive()
    found = squared_distances(moved, x).sqrt()
    np.testing.assert_allclose(found, shift, rtol=1e-11)
    eta = sphere(torch.from_numpy(np.stack([noise(k, t) for k, t in PLACES])).reshape(x.shape), float(found.mean()))

    def network(z):
        return torch.tanh(z.flatten(1) @ torch.from_numpy(WEIGHTS).T)

    y, top, bottom = network(x), *(network(z) for z in (moved, x + eta))
    numerators, denominators = squared_distances(top, y), squared_distances(bottom, y)
    np.testing.assert_allclose(numerators, above, rtol=1e-9)
    np.testing.assert_allclose(denominators, below, rtol=1e-9)
    np.testing.assert_allclose(squared_distances(y[[0, 0, 2]], y[[2, 4, 4]]), pairs, rtol=1e-11)
    for statistic, middle in (("mean", np.mean), ("median", np.median)):
        r = relative_stability(numerators, denominators, statistic=statistic)
        assert float(r) == pytest.approx(middle(above) / middle(below), rel=1e-9)
        # R = D/G, over the pairs of distinct images.
        d, g = (
            relative_stability(one, torch.from_numpy(pairs), statistic=statistic) for one in (numerators, denominators)
        )
        assert float(d / g) == pytest.approx(float(r), rel=1e-12)
