import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.similarity import CKAStream, linear_cka


def cloud(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def centred_hsic(x, y):
    n = len(x)
    h = torch.eye(n, dtype=torch.float64) - 1 / n
    return float(torch.trace(x @ x.T @ h @ y @ y.T @ h))


def u_statistic(x, y):
    """HSIC over all quadruples of different samples: the definition, for small n."""
    k, other = x @ x.T, y @ y.T
    n, total, count = len(x), 0.0, 0
    for i in range(n):
        for j in range(n):
            for q in range(n):
                for r in range(n):
                    if len({i, j, q, r}) == 4:
                        total += float(k[i, j] * (other[i, j] + other[q, r] - 2 * other[i, q]))
                        count += 1
    return total / count


def test_it_is_the_ratio_of_centred_gram_matrices():
    x, y = cloud(12, 4), cloud(12, 7, seed=1)
    exact = centred_hsic(x, y) / (centred_hsic(x, x) * centred_hsic(y, y)) ** 0.5
    assert float(linear_cka(x, y)) == pytest.approx(exact, rel=1e-12)
    wide = cloud(6, 50)
    assert float(linear_cka(wide, cloud(6, 3, seed=1))) == pytest.approx(
        centred_hsic(wide, cloud(6, 3, seed=1))
        / (centred_hsic(wide, wide) * centred_hsic(cloud(6, 3, seed=1), cloud(6, 3, seed=1))) ** 0.5
    )


def test_the_unbiased_one_is_the_u_statistic():
    x, y = cloud(6, 2), cloud(6, 3, seed=1) + 0.5
    exact = u_statistic(x, y) / abs(u_statistic(x, x) * u_statistic(y, y)) ** 0.5
    assert float(linear_cka(x, y, estimator="unbiased")) == pytest.approx(exact, rel=1e-9)


@settings(max_examples=30)
@given(st.integers(5, 20), st.integers(1, 6), st.integers(0, 1000), st.floats(0.1, 10))
def test_properties(n, d, seed, factor):
    x, y = cloud(n, d, seed), cloud(n, d + 1, seed + 1)
    rotation = torch.linalg.qr(cloud(d, d, seed + 2))[0]
    value = float(linear_cka(x, y))
    assert -1e-12 <= value <= 1 + 1e-12
    assert float(linear_cka(x, x)) == pytest.approx(1)
    for estimator in ("biased", "unbiased"):
        here = float(linear_cka(x, y, estimator=estimator))
        same = float(linear_cka(factor * x @ rotation + 3, y, estimator=estimator))
        if here == here:
            assert same == pytest.approx(here, rel=1e-6, abs=1e-8)
            assert float(linear_cka(y, x, estimator=estimator)) == pytest.approx(here)


def test_independent_clouds_look_alike_only_to_the_biased_one():
    pairs = [(cloud(20, 100, seed), cloud(20, 100, seed + 500)) for seed in range(40)]
    biased = torch.stack([linear_cka(x, y) for x, y in pairs])
    unbiased = torch.stack([linear_cka(x, y, estimator="unbiased") for x, y in pairs])
    assert float(biased.mean()) > 0.7
    assert abs(float(unbiased.mean())) < 4 * float(unbiased.std()) / 40**0.5


def test_a_stream_of_one_batch_is_the_unbiased_cka():
    layers = [cloud(16, 5), cloud(16, 3, seed=1), cloud(16, 8, seed=2).reshape(16, 2, 4)]
    stream = CKAStream()
    stream.update(layers)
    for i in range(3):
        for j in range(3):
            exact = linear_cka(layers[i], layers[j], estimator="unbiased")
            assert float(stream.value()[i, j]) == pytest.approx(float(exact))
    two = CKAStream()
    two.update(layers[:2], layers[1:])
    torch.testing.assert_close(two.value(), stream.value()[:2, 1:])


def test_batches_come_near_to_the_whole():
    n, x = 4000, cloud(4000, 6)
    y = x @ cloud(6, 6, 1) + 0.5 * cloud(n, 6, 2)
    stream = CKAStream()
    for start in range(0, n, 40):
        stream.update([x[start : start + 40], y[start : start + 40]])
    assert stream.batches == 100
    resampled = torch.stack(
        [
            stream.value(batches=torch.randint(100, (100,), generator=torch.Generator().manual_seed(s)).tolist())[0, 1]
            for s in range(50)
        ]
    )
    error = float(stream.value()[0, 1] - linear_cka(x, y, estimator="unbiased"))
    assert abs(error) < 4 * float(resampled.std())
    assert float(stream.value().diagonal().sub(1).abs().max()) < 1e-12


def test_a_stream_goes_on_from_its_tables():
    stream, layers = CKAStream(), [cloud(30, 4, 1), cloud(30, 6, 2), cloud(30, 4, 1) + cloud(30, 4, 3)]
    for start in (0, 10, 20):
        stream.update([layer[start : start + 10] for layer in layers])
    assert stream.tables.shape == (3, 3, 3)
    other = CKAStream.of(stream.tables[:2])
    other.update([layer[20:] for layer in layers])
    assert torch.equal(other.value(), stream.value())
    assert torch.equal(other.value(batches=[0, 0, 2]), stream.value(batches=[0, 0, 2]))


def test_gradients_and_a_single_point():
    x = cloud(6, 3).requires_grad_()
    for estimator in ("biased", "unbiased"):
        assert torch.autograd.gradcheck(lambda x, e=estimator: linear_cka(x, cloud(6, 4, 1), estimator=e), x)
    assert torch.isnan(linear_cka(torch.ones(5, 2), cloud(5, 2)))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: linear_cka(cloud(4, 2), cloud(5, 2)), "as many samples, got 4 and 5"),
        (lambda: linear_cka(cloud(1, 2), cloud(1, 2)), "at least 2 samples, got 1"),
        (lambda: linear_cka(cloud(3, 2), cloud(3, 2), estimator="unbiased"), "at least 4 samples, got 3"),
        (lambda: linear_cka(cloud(4, 2), cloud(4, 2), estimator="x"), "estimator must be one of biased, unbiased"),
        (lambda: linear_cka(cloud(4, 2)[:, 0], cloud(4, 2)), "x must be"),
        (lambda: CKAStream().value(), "after an update"),
        (lambda: CKAStream().update([]), "at least one layer"),
        (lambda: CKAStream().update([cloud(3, 2)]), "at least 4 a batch"),
        (lambda: CKAStream().update([cloud(4, 2)], [cloud(5, 2)]), "the same samples, got 4 and 5"),
    ],
)
def test_bad_input(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_another_number_of_layers_is_refused():
    stream = CKAStream()
    stream.update([cloud(4, 2)])
    with pytest.raises(ValueError, match="as many layers"):
        stream.update([cloud(4, 2), cloud(4, 2)])
