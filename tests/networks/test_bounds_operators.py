from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from lisse.networks.bounds import operator_norm


def truth(layer: nn.Module, shape: tuple[int, ...]) -> float:
    """The matrix from unit inputs, one by one, and its SVD."""
    wide = layer.double()
    zero = torch.zeros(1, *shape, dtype=torch.float64)
    units = torch.eye(zero.numel(), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        found = torch.linalg.matrix_norm((wide(units) - wide(zero)).flatten(1), 2)
    layer.float()
    return float(found)


def between(layer: nn.Module, shape: tuple[int, ...], **options: int) -> tuple[float, float]:
    true = truth(layer.eval(), shape)
    found = operator_norm(layer, shape, **options)
    assert found.lower <= true * (1 + 1e-13)
    assert true <= found.upper
    return found.lower / true - 1, found.upper / true - 1


with torch.random.fork_rng(devices=[]):  # the same weights whatever was imported before
    torch.manual_seed(0)
    SMALL = [
        (nn.Linear(7, 5), (7,)),
        (nn.Linear(7, 5), (3, 7)),
        (nn.Conv1d(3, 4, 5, stride=2, padding=1), (3, 17)),
        (nn.Conv2d(2, 3, 3, padding=1), (2, 7, 6)),
        (nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2), (4, 6, 6)),
        (nn.Conv2d(2, 3, (3, 2), stride=(2, 3), padding="valid"), (2, 8, 9)),
        (nn.Conv2d(2, 2, 3, padding="same"), (2, 5, 6)),
        (nn.Conv2d(2, 3, 3, padding=2, padding_mode="reflect"), (2, 6, 6)),
        (nn.Conv2d(2, 3, 3, padding=2, padding_mode="replicate", stride=2), (2, 6, 6)),
        (nn.Conv2d(2, 3, 3, padding=4, padding_mode="circular"), (2, 6, 6)),
        (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular", stride=2), (2, 7, 6)),
        (nn.Conv3d(1, 2, 2, padding=1), (1, 4, 3, 4)),
        (nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1, output_padding=1), (3, 5, 4)),
        (nn.ConvTranspose1d(4, 4, 4, stride=3, groups=2, dilation=2), (4, 9)),
        (nn.AvgPool2d(3, stride=2, padding=1), (2, 7, 7)),
        (nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), (2, 7, 7)),
        (nn.AdaptiveAvgPool2d(3), (1, 7, 8)),
        (nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 5)), (2, 6, 6)),
    ]


@pytest.mark.parametrize(
    ("layer", "shape"), SMALL, ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else None
)
def test_dense_is_exact_and_the_rest_is_certain(layer, shape):
    below, above = between(layer, shape)
    assert -1e-6 < below <= above < 1e-5
    below, above = between(layer, shape, dense=0)
    assert below > -2e-2
    assert above < 3  # borders, paddings and products cost something


@settings(deadline=None, max_examples=60)
@given(
    c=st.integers(1, 3), out=st.integers(1, 3), groups=st.integers(1, 2), k=st.integers(1, 4), stride=st.integers(1, 3),
    padding=st.integers(0, 3), dilation=st.integers(1, 2), h=st.integers(3, 7), w=st.integers(3, 7),
    mode=st.sampled_from(["zeros", "circular", "replicate", "reflect"]), seed=st.integers(0, 999),
)  # fmt: skip
def test_any_convolution_lies_between(c, out, groups, k, stride, padding, dilation, h, w, mode, seed):
    assume(min(h, w) + 2 * padding >= dilation * (k - 1) + 1)
    assume(mode == "zeros" or padding < min(h, w))
    torch.manual_seed(seed)
    layer = nn.Conv2d(
        c * groups, out * groups, k, stride=stride, padding=padding, dilation=dilation, groups=groups,
        padding_mode=mode if padding else "zeros",
    )  # fmt: skip
    between(layer, (c * groups, h, w), dense=0)


def test_circular_padding_is_exact_by_fourier():
    for layer, shape in (
        (nn.Conv2d(3, 5, 3, padding=1, padding_mode="circular"), (3, 8, 6)),
        (nn.Conv2d(3, 5, 5, padding=2, padding_mode="circular", stride=2), (3, 8, 6)),
        (nn.Conv1d(4, 4, 3, padding=1, padding_mode="circular", groups=2), (4, 9)),
    ):
        below, above = between(layer, shape, dense=0)
        assert above < 1e-5
        assert below > -1e-4


def test_the_reshaped_weight_is_another_number():
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 3, 3, padding=1, bias=False)
    nn.init.ones_(layer.weight)
    reshaped = float(torch.linalg.matrix_norm(layer.weight.detach().reshape(3, -1), 2))
    found = operator_norm(layer, (3, 16, 16))
    assert found.lower > 2 * reshaped  # 27 on the inside against √81 = 9
    assert 26 < found.lower < 27
    # And it depends on the size of the image.
    assert operator_norm(layer, (3, 4, 4)).upper < found.lower


def test_the_border_matters_less_on_larger_images():
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 4, 3, padding=1)
    gaps = [operator_norm(layer, (4, n, n), dense=0).gap for n in (4, 8, 16, 32)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.01


def test_options_do_what_they_say():
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 4, 3, padding=1)
    quick = operator_norm(layer, (4, 12, 12), dense=0, max_iter=1)
    other = operator_norm(layer, (4, 12, 12), dense=0, max_iter=1, seed=1)
    long = operator_norm(layer, (4, 12, 12), dense=0)
    assert quick.lower < 0.9 * long.lower
    assert quick.lower != other.lower
    assert operator_norm(nn.Linear(9, 9), (9,), tol=0.1).gap > 0.04
    lower, upper = long
    assert (lower, upper) == (long.lower, long.upper)


def test_batch_norm_in_evaluation():
    layer = nn.BatchNorm2d(3)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, -4.0, 2.0]))
        layer.running_var.copy_(torch.tensor([0.1, 3.0, 0.25]))
    found = operator_norm(layer.train(), (3, 64, 64))
    expected = 2 / (0.25 + 1e-5) ** 0.5
    assert found.lower <= expected * (1 + 1e-7)
    assert found == pytest.approx((expected, expected), rel=1e-6)
    assert layer.training  # left as it was
    assert layer.weight.dtype == torch.float32


def test_bad_input_is_refused():
    with pytest.raises(TypeError, match="module must be a linear layer or a Sequential of them, got ReLU"):
        operator_norm(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), (3,))
    with pytest.raises(ValueError, match=r"input_shape must fit Conv2d, got \[3, 8, 8\]"):
        operator_norm(nn.Conv2d(2, 2, 3), (3, 8, 8))
    with pytest.raises(ValueError, match=r"input_shape must hold sizes of at least 1, got \[\]"):
        operator_norm(nn.Linear(2, 2), ())
    with pytest.raises(ValueError, match="BatchNorm1d must have running statistics"):
        operator_norm(nn.BatchNorm1d(2, track_running_stats=False), (2,))
    with pytest.raises(ValueError, match="dense must not be negative, got -1"):
        operator_norm(nn.Linear(2, 2), (2,), dense=-1)
    broken = nn.Linear(2, 2)
    nn.init.constant_(broken.weight, torch.nan)
    with pytest.raises(ValueError, match=r"Linear\.weight must be finite"):
        operator_norm(broken, (2,))


def test_a_large_shift_hides_nothing_of_a_small_weight():
    """What does not depend on the input is no part of the map, however large: 1 beside 1e17."""
    convolution = nn.Conv1d(1, 1, 1)
    convolution.weight.data.fill_(1.0)
    convolution.bias.data.fill_(1e17)
    norm = nn.BatchNorm1d(1).eval()
    norm.running_mean.fill_(-1e17)
    for layer, shape in ((convolution, (1, 1)), (norm, (1,))):
        ends = operator_norm(layer, shape)
        assert ends.lower == pytest.approx(1.0, rel=1e-4)
        assert ends.upper >= 1 - 1e-5
    assert float(convolution.bias.detach()) == pytest.approx(1e17)  # a person's layer stays as it is
