import math

import pytest
import torch

from lisse.maths.integral import (
    attention_kernel,
)
from lisse_experiments.masked_autoencoders.nonlocal_means import non_local_means, pixel_patches
from lisse_experiments.masked_autoencoders.spectra import mercer, spectral_decay

I, J = torch.arange(1, 6, dtype=torch.float64)[:, None], torch.arange(1, 4, dtype=torch.float64)


Y = torch.sin(0.6 * I * J) + 0.05 * I


def weights(s, d=3):
    i = torch.arange(1, d + 1, dtype=torch.float64)
    return torch.cos(s * (i[:, None] + 2 * i))


Q, K, V = Y @ weights(0.4), Y @ weights(0.7), Y @ weights(1.1)


def tokens(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_mercer_gives_the_kernel_back():
    kernel = attention_kernel(Q, K, kind="rbf_w", gamma=0.5)
    found = mercer(kernel)
    psi, alpha = found.functions, kernel.alpha
    torch.testing.assert_close(kernel.matrix @ psi, psi * found.values)
    torch.testing.assert_close(psi.T @ (alpha[:, None] * psi), torch.eye(5, dtype=torch.float64))
    torch.testing.assert_close((alpha[:, None] * psi * found.values) @ (alpha[:, None] * psi).T, kernel.raw)
    first = psi[:, 0] / psi[0, 0]
    torch.testing.assert_close(first, torch.ones_like(first))
    plain = mercer(kernel.raw, alpha=1.0)
    torch.testing.assert_close(plain.values, torch.linalg.eigvalsh(kernel.raw).flip(0))
    torch.testing.assert_close(mercer(kernel.raw, alpha=5.0).values, plain.values / 5)
    literal = attention_kernel(Q, K, kind="eq11_literal", gamma=0.5)
    assert not mercer(literal).positive
    with pytest.raises(ValueError, match=r"kernel must be symmetric, .* Give the raw kernel"):
        mercer(kernel.matrix)
    with pytest.raises(ValueError, match="alpha must be positive"):
        mercer(kernel.raw, alpha=0.0)


def test_decay_of_known_spectra():
    place = torch.arange(1, 20, dtype=torch.float64)
    exponential = spectral_decay((-0.7 * place).exp())
    assert exponential.rate == pytest.approx(0.7)
    assert exponential.exponential_fit == pytest.approx(1)
    assert exponential.power_fit < 0.95
    power = spectral_decay(place**-2.5)
    assert power.power == pytest.approx(2.5)
    assert power.power_fit == pytest.approx(1)
    assert spectral_decay(torch.ones(6)).effective_rank == pytest.approx(6)
    assert spectral_decay((-0.7 * place).exp(), tol=1e-2).n == 7
    with pytest.raises(ValueError, match="at least 3"):
        spectral_decay(torch.tensor([1.0, 0.0, 0.0]))


def naive_means(image, h, patch, search):
    half = patch // 2
    c, rows, columns = image.shape
    padded = torch.nn.functional.pad(image[None], (half,) * 4, mode="reflect")[0]
    around = {(i, j): padded[:, i : i + patch, j : j + patch] for i in range(rows) for j in range(columns)}
    out = torch.zeros_like(image)
    for (i, j), mine in around.items():
        total, value = 0.0, torch.zeros(c, dtype=image.dtype)
        for (a, b), other in around.items():
            if search is None or max(abs(a - i), abs(b - j)) <= search:
                weight = math.exp(-float((mine - other).square().mean()) / h**2)
                total, value = total + weight, value + weight * image[:, a, b]
        out[:, i, j] = value / total
    return out


@pytest.mark.parametrize("search", [None, 2, 0])
def test_non_local_means_is_its_formula(search):
    u = tokens(2, 5, 6)
    found = non_local_means(u, 0.8, patch=3, search=search)
    torch.testing.assert_close(found, naive_means(u, 0.8, 3, search), rtol=1e-10, atol=1e-12)
    if search == 0:
        torch.testing.assert_close(found, u)


def test_non_local_means_is_attention_with_the_rbf_of_patches():
    u = tokens(6, 6)
    features = pixel_patches(u[None], 3)
    kernel = attention_kernel(features, torch.zeros_like(features), kind="rbf_w", gamma=1 / 0.5**2)
    torch.testing.assert_close(non_local_means(u, 0.5, patch=3).flatten(), kernel(u.reshape(-1, 1))[:, 0])
    wide = non_local_means(u, 0.5, patch=3, sigma=0.3)
    assert not torch.allclose(wide, non_local_means(u, 0.5, patch=3))
    torch.testing.assert_close(
        non_local_means(u, 0.5, patch=3, sigma=1e-2), non_local_means(u, 0.5, patch=1)
    )  # a Gaussian that sees the centre alone


def test_non_local_means_takes_noise_away():
    clean = torch.zeros(24, 24, dtype=torch.float64)
    clean[:, 12:] = 1
    noisy = clean + 0.15 * tokens(24, 24)
    found = non_local_means(noisy, 0.25, patch=5)
    assert float((found - clean).square().mean()) < 0.2 * float((noisy - clean).square().mean())


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: non_local_means(tokens(4), 1.0), "image must be"),
        (lambda: non_local_means(tokens(4, 4), 0.0), "bandwidth must be positive"),
        (lambda: non_local_means(tokens(4, 4), 1.0, patch=2), "patch must be odd"),
        (lambda: non_local_means(tokens(4, 4), 1.0, search=-1), "search must not be negative"),
        (lambda: non_local_means(tokens(4, 4), 1.0, patch=3, sigma=0.0), "sigma must be positive"),
    ],
)
def test_bad_input_to_non_local_means(call, says):
    with pytest.raises(ValueError, match=says):
        call()
