import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lisse.maths.attention_distance import (
    attention_distance,
    attention_mass,
    grid_distances,
    mass_profile,
    uniform_attention,
)

I, J = torch.arange(1, 10, dtype=torch.float64)[:, None], torch.arange(1, 5, dtype=torch.float64)
Y = torch.sin(0.45 * I * J) + 0.2 * torch.cos(I + J)


def weights(s):
    return torch.cos(s * (J[:, None] + 2 * J))


A = (Y @ weights(0.4) @ (Y @ weights(0.7)).T / 2).softmax(-1)


def random(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).softmax(-1)


def test_the_reference_grid():
    assert float(attention_distance(A).mean()) == pytest.approx(1.5920373256, abs=1e-10)
    assert float(attention_distance(uniform_attention(9)).mean()) == pytest.approx(1.4533112733, abs=1e-10)
    assert float(attention_mass(A, 1).mean()) == pytest.approx(0.5188800304, abs=1e-10)


def test_distances_on_a_grid():
    assert grid_distances((2, 3))[0].tolist() == pytest.approx([0, 1, 2, 1, 2**0.5, 5**0.5])
    assert grid_distances((2, 3), metric="chebyshev")[0].tolist() == [0, 1, 2, 1, 1, 2]
    assert float(attention_distance(torch.eye(6), grid=(2, 3)).max()) == 0
    shift = torch.eye(6).roll(1, 1)
    assert attention_distance(shift, grid=(1, 6)).tolist() == [1, 1, 1, 1, 1, 5]
    assert attention_distance(shift, grid=(2, 3)).tolist() == pytest.approx([1, 1, 5**0.5, 1, 1, 5**0.5])


def test_uniform_mass_is_the_share_of_places():
    mass = attention_mass(uniform_attention(25), 1)
    assert float(mass[12]) == pytest.approx(9 / 25)
    assert float(mass[0]) == pytest.approx(4 / 25)
    assert float(mass[2]) == pytest.approx(6 / 25)
    assert uniform_attention(4, like=torch.zeros(1, dtype=torch.float32)).dtype == torch.float32


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 100))
def test_the_profile_is_the_mass_at_every_radius(rows, columns, seed):
    a = random(2, rows * columns, rows * columns, seed=seed)
    profile = mass_profile(a, grid=(rows, columns))
    assert profile.shape == (2, rows * columns, max(rows, columns))
    for radius in range(max(rows, columns)):
        torch.testing.assert_close(profile[..., radius], attention_mass(a, radius, grid=(rows, columns)))
    torch.testing.assert_close(profile[..., -1], torch.ones_like(profile[..., -1]))


def test_masked_queries_over_unmasked_keys():
    a = random(3, 9, 9)
    masked = torch.ones(9, dtype=torch.bool)
    masked[[0, 2, 4, 8]] = False
    found = attention_distance(a, queries=masked, keys=~masked)
    assert found.shape == (3, 5)
    keys = [0, 2, 4, 8]
    row = a[1, 3, keys] / a[1, 3, keys].sum()
    assert float(found[1, 1]) == pytest.approx(float((row * grid_distances((3, 3))[3, keys]).sum()))
    by_index = attention_distance(a, queries=torch.tensor([1, 3, 5, 6, 7]), keys=torch.tensor(keys))
    torch.testing.assert_close(found, by_index)
    assert mass_profile(a, queries=masked, keys=~masked).shape == (3, 5, 3)
    torch.testing.assert_close(
        mass_profile(a, queries=masked, keys=~masked)[..., 1], attention_mass(a, 1, queries=masked, keys=~masked)
    )


def test_negative_weights_count_by_their_size():
    torch.testing.assert_close(attention_distance(-A), attention_distance(A))
    signs = torch.where(A > 0.1, A, -A)
    torch.testing.assert_close(attention_distance(signs), attention_distance(A))


def test_gradients():
    a = A.clone().requires_grad_()
    assert torch.autograd.gradcheck(attention_distance, a)
    assert torch.autograd.gradcheck(lambda a: attention_mass(a, 1), a)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: attention_distance(random(10, 10)), r"square grid, got 10. .* grid=\(rows, columns\)"),
        (lambda: attention_distance(random(9, 9), grid=(2, 4)), "as many places as there are tokens"),
        (
            lambda: attention_distance(random(10, 10), grid=(2.5, 4)),
            r"attention_distance: grid must be .* whole numbers",
        ),
        (lambda: attention_distance(A, grid=(9,)), r"grid must be \(rows, columns\), .*, got \(9,\)"),
        (lambda: grid_distances((9,)), r"grid must be \(rows, columns\), .*, got \(9,\)"),
        (lambda: attention_distance(random(9, 8)), r"attention must be \[..., p, p\]"),
        (lambda: attention_mass(A, -1), "radius must not be negative"),
        (lambda: attention_distance(A, keys=torch.tensor([9])), "keys must be indices below 9"),
        (lambda: attention_distance(A, queries=torch.zeros(9, dtype=torch.bool)), "queries must be indices"),
        (lambda: attention_distance(torch.eye(9), queries=torch.tensor([0]), keys=torch.tensor([1])), "a row of zeros"),
        (lambda: grid_distances((2, 2), metric="x"), "metric must be euclidean or chebyshev"),
        (lambda: grid_distances((0, 3)), r"grid must be \(rows, columns\), whole numbers of at least 1, got \(0, 3\)"),
        (lambda: grid_distances((2.5, 3)), r"grid must be .*, got \(2.5, 3\)"),
        (lambda: uniform_attention(0), "p must be at least 1"),
    ],
)
def test_bad_input(call, says):
    with pytest.raises(ValueError, match=says):
        call()
