from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lisse.maths.bounds import mean_field_multi_head, sequence_attention
from lisse.maths.transport import Measure, wasserstein
from lisse.networks import zoo
from lisse.networks.attention import weights_of
from lisse.networks.bounds import of_module, operator_norm
from lisse.networks.bounds.slopes import max_pool_slope, slope


def norm(matrix: torch.Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix.detach().double(), 2))


def ball(*shape: int, radius: float, seed: int) -> torch.Tensor:
    """Rows in the ball, some on its sphere."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    lengths = torch.rand(*shape[:-1], 1, generator=generator, dtype=torch.float64).clamp_min(0.5) * 2 - 1
    return radius * nn.functional.normalize(x, dim=-1) * lengths.sqrt()


def jacobian(module: nn.Module, x: torch.Tensor) -> float:
    wide = module.double().eval()
    found = torch.autograd.functional.jacobian(lambda one: wide(one[None])[0], x.double())
    return norm(found.reshape(-1, x.numel()))


# --- single layers ----------------------------------------------------------------------------------------------------


def test_linear_and_activations_multiply():
    first, second = nn.Linear(3, 4), nn.Linear(4, 2)
    found = of_module(nn.Sequential(first, nn.LeakyReLU(3.0), nn.Dropout(0.5), second, nn.Sigmoid()), radius=1)
    assert found.value == pytest.approx(norm(first.weight) * 3 * norm(second.weight) / 4, rel=1e-4)
    assert (found.kind, found.variant, found.valid) == ("upper", "corrected", True)
    assert 10**found.log10 == pytest.approx(found.value)


ACTIVATIONS = [
    nn.ReLU(), nn.ReLU6(), nn.Tanh(), nn.Sigmoid(), nn.Softsign(), nn.Softplus(beta=3), nn.LogSigmoid(), nn.Hardtanh(),
    nn.Tanhshrink(), nn.Softshrink(), nn.CELU(2.0), nn.SiLU(), nn.Mish(), nn.Hardswish(), nn.Hardsigmoid(), nn.SELU(),
    nn.GELU(), nn.GELU(approximate="tanh"), nn.LeakyReLU(0.1), nn.ELU(2.0), nn.PReLU(init=1.5),
]  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_slopes_are_the_largest_derivatives(activation):
    x = torch.linspace(-8, 8, 200_001, dtype=torch.float64, requires_grad=True)
    steepest = float(torch.autograd.grad(activation.double()(x).sum(), x)[0].abs().max())
    found = slope(activation)
    assert steepest <= found * (1 + 1e-9)
    assert steepest == pytest.approx(found, rel=1e-3)


def test_softmax_is_half():
    assert of_module(nn.Softmax(-1), radius=1, input_shape=(4,)).value == 0.5
    x = torch.tensor([0.0, 0.0, -50.0], dtype=torch.float64)
    assert jacobian(nn.Softmax(-1), x) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "options", [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2}, {"kernel_size": 3, "stride": 1}]
)
def test_max_pools_count_windows(options):
    pool = nn.MaxPool1d(**options)
    k, s = options["kernel_size"], options.get("stride", options["kernel_size"])
    assert max_pool_slope(pool) == pytest.approx(math.sqrt(-(-k // s)))
    x = torch.zeros(1, 1, 12, dtype=torch.float64)
    x[..., 6] = 1  # seen by every window that holds it
    assert float(pool(x).norm()) <= max_pool_slope(pool) + 1e-12


def test_convolutions_have_their_norm_for_the_size():
    layer = nn.Conv2d(3, 4, 3, padding=1, stride=2)
    found = of_module(layer, radius=1, input_shape=(3, 9, 9))
    assert found.value == pytest.approx(operator_norm(layer, (3, 9, 9)).upper, rel=2e-3)
    with pytest.raises(ValueError, match="input_shape must be given for Conv2d, got None"):
        of_module(layer, radius=1)


def test_layer_norm_needs_a_variance_to_be_small():
    layer = nn.LayerNorm(6, eps=1e-3)
    nn.init.constant_(layer.weight, -2.0)
    assert of_module(layer, radius=1).value == pytest.approx(2 / math.sqrt(1e-3))
    trusted = of_module(layer, radius=1, variance=0.5)
    assert trusted.value == pytest.approx(2 / math.sqrt(0.501))
    assert "variance at least 0.5" in str(trusted.hypotheses[-1])


# --- attention --------------------------------------------------------------------------------------------------------


def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12, vocab_size=9,
        attn_implementation="eager",
    )  # fmt: skip
    return transformers.BertModel(config).encoder.layer[0]


def vit() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12, image_size=8, patch_size=4,
        attn_implementation="eager",
    )  # fmt: skip
    model = transformers.ViTModel(config)
    return next(part for part in model.modules() if type(part).__name__ == "ViTLayer")


class Output(nn.Module):
    """The first of several outputs, and self-attention of torch's three inputs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        three = isinstance(self.module, nn.MultiheadAttention)
        found = self.module(x, x, x) if three else self.module(x)
        return found[0] if isinstance(found, tuple) else found


def layers(name: str) -> nn.Module:
    torch.manual_seed(0)
    return {
        "torch": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        "full": lambda: zoo.attention_only.FullWidthAttention(8, 3),
        "split": lambda: zoo.vit.SplitHeadAttention(8, 2),
        "bert self": lambda: bert().attention.self,
        "bert attention": lambda: bert().attention,
        "bert": bert,
        "vit attention": lambda: vit().attention,
        "vit": vit,
        "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True, activation="gelu"),
        "encoder post": lambda: nn.TransformerEncoderLayer(8, 2, 12, batch_first=True),
        "block": lambda: zoo.vit.Block(8, 2, 16, eps=1e-2),
        "residual": lambda: zoo.attention_only.AttentionLayer(8, 2, residual=True),
    }[name]()


ATTENTION = ("torch", "full", "split", "bert self", "vit attention")
WHOLE = (*ATTENTION, "bert attention", "bert", "vit", "encoder", "encoder post", "block", "residual")


@pytest.mark.parametrize("name", ATTENTION)
def test_the_weights_reproduce_the_layer(name):
    """A naive forward from the matrices that the bounds read, biases drawn."""
    module = layers(name)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    w = weights_of(module)
    x = torch.randn(5, 8, dtype=torch.float64)
    heads = []
    for m in range(len(w.query)):
        scores = (x @ w.query[m].T + w.query_bias[m]) @ (x @ w.key[m].T).T * w.scale
        heads.append(torch.softmax(scores, 1) @ x @ w.value[m].T + w.value_bias[m])
    naive = torch.cat(heads, 1) @ w.out.T + w.out_bias
    with torch.no_grad():
        torch.testing.assert_close(Output(module).double().eval()(x[None])[0], naive)


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_the_formula_of_its_norms(name):
    module = layers(name)
    w = weights_of(module)
    values, forms = [norm(v) for v in w.value], [w.scale * norm(k.T @ q) for q, k in zip(w.query, w.key, strict=True)]
    biases = [w.scale * float((k.T @ b).norm()) for k, b in zip(w.key, w.query_bias, strict=True)]
    expected = mean_field_multi_head(values, forms, norm(w.out), 1.5, bias_norms=biases).value
    found = of_module(module, radius=1.5)
    assert found.value == pytest.approx(expected, rel=1e-3)
    assert "norm at most 1.5" in str(found.hypotheses[0])
    parts = [sequence_attention(*one, 1.5, 4, bias_norm=c).value for *one, c in zip(values, forms, biases, strict=True)]
    flat = of_module(module, radius=1.5, metric="euclidean", input_shape=(4, 8))
    worst = of_module(module, radius=1.5, metric="worst_token").value
    assert flat.value == pytest.approx(min(norm(w.out) * math.hypot(*parts), 2 * worst), rel=1e-3)


@pytest.mark.parametrize("name", WHOLE)
def test_no_jacobian_and_no_measure_exceeds_the_bound(name):
    module = layers(name)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    radius = 1.2
    whole = Output(module).double().eval()
    # Found through tracing, too: Output is not known.
    flat = of_module(module, radius=radius, metric="euclidean", input_shape=(5, 8)).value
    if name in ATTENTION:
        traced = of_module(whole, radius=radius, metric="euclidean", input_shape=(5, 8))
        assert traced.value == pytest.approx(flat, rel=1e-9)
    measures = of_module(module, radius=radius)
    for seed in range(6):
        x, y = ball(5, 8, radius=radius, seed=seed), ball(5, 8, radius=radius, seed=seed + 50)
        assert jacobian(whole, x) <= flat
        y = x + 0.01 * (y - x)
        with torch.no_grad():
            moved = wasserstein(Measure(whole(x[None])[0]), Measure(whole(y[None])[0]), ground=2)
        assert float(moved / wasserstein(Measure(x), Measure(y), ground=2)) <= measures.value


def test_radius_and_metric_count():
    module = layers("split")
    values = [of_module(module, radius=r).value for r in (0.1, 1.0, 5.0)]
    assert values == sorted(values)
    assert values[0] < values[-1]
    tokens = [of_module(module, radius=1, metric="euclidean", input_shape=(t, 8)).value for t in (2, 20)]
    assert tokens[0] < tokens[1]
    # Measures do not count tokens.
    assert (
        of_module(module, radius=1, input_shape=(2, 8)).value == of_module(module, radius=1, input_shape=(9, 8)).value
    )


def test_the_radius_is_carried_to_the_attention():
    first, attention = nn.Linear(6, 8), layers("split")
    size = norm(first.weight)
    reach = size * 0.7 + float(first.bias.detach().double().norm())
    expected = size * of_module(attention, radius=reach).value
    assert of_module(nn.Sequential(first, nn.ReLU(), attention), radius=0.7).value == pytest.approx(expected, rel=1e-3)
    # A layer norm puts every token in its own ball, whatever came before; its γ and β belong to the weights behind it.
    layer = nn.LayerNorm(8)
    nn.init.normal_(layer.weight)
    nn.init.constant_(layer.bias, 0.1)
    folded = layers("split")
    with torch.no_grad():
        folded.qkv.bias += folded.qkv.weight @ layer.bias
        folded.qkv.weight *= layer.weight
        folded.qkv.weight -= folded.qkv.weight.mean(1, keepdim=True)
    expected = of_module(folded, radius=math.sqrt(8)).value / math.sqrt(layer.eps)
    assert of_module(nn.Sequential(layer, attention), radius=1e3).value == pytest.approx(expected, rel=1e-3)
    # And so does an attention: ‖W^O‖ √Σ(‖V_m‖R + ‖b_m‖)² + ‖b‖.
    w = weights_of(attention)
    mixed = math.hypot(*(norm(v) * 0.7 + float(b.norm()) for v, b in zip(w.value, w.value_bias, strict=True)))
    reach = norm(w.out) * mixed + float(w.out_bias.norm())
    expected = of_module(attention, radius=0.7).value * of_module(attention, radius=reach).value
    assert of_module(nn.Sequential(attention, attention), radius=0.7).value == pytest.approx(expected, rel=1e-3)


# --- whole networks ---------------------------------------------------------------------------------------------------

NETWORKS = [
    ("resnet20", {}, (3, 4, 4)),
    ("resnet18", {"in_channels": 1}, (1, 4, 4)),
    ("convolution_small", {}, (3, 4, 4)),
    ("attention_small", {"width": 8, "heads": 2, "depth": 2, "size": 8}, (3, 8, 8)),
    ("vit_small", {"width": 8, "heads": 2, "depth": 1, "size": 8, "eps": 0.1}, (3, 8, 8)),
]


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [pytest.param(*one, marks=[pytest.mark.slow] if one[0] == "resnet18" else []) for one in NETWORKS],
)
def test_whole_networks_are_followed_along_their_graph(name, options, shape):
    torch.manual_seed(0)
    network = zoo.build(name, **options).eval()
    found = of_module(network, radius=5.0, input_shape=shape, metric="euclidean")
    assert found.valid
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        x = torch.randn(shape, generator=generator)
        assert jacobian(network, 5 * x / x.norm()) <= found.value
    assert next(network.parameters()).dtype == torch.float64  # jacobian() made it so; of_module leaves it alone


def test_a_deep_network_overflows_into_its_logarithm():
    deep = nn.Sequential(*(nn.Linear(4, 4) for _ in range(400)))
    for layer in deep:
        nn.init.eye_(layer.weight)
        with torch.no_grad():
            layer.weight.mul_(10.0)
    found = of_module(deep, radius=1)
    assert found.value == math.inf
    assert found.log10 == pytest.approx(400, rel=1e-4)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.a(x))
        z = torch.cat([x + 0.5 * self.b(y), x - y], dim=-1)
        return z.reshape(len(z), 2, -1).mean(1)


def test_sums_products_and_joins_are_followed():
    module = Residual()
    a, b = norm(module.a.weight), norm(module.b.weight)
    found = of_module(module, radius=1, input_shape=(4,))
    assert found.value == pytest.approx(math.hypot(1 + 0.5 * a * b, 1 + a) / math.sqrt(2), rel=1e-4)
    assert jacobian(module, torch.randn(4)) <= found.value


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 999), depth=st.integers(1, 4), width=st.integers(1, 6))
def test_random_perceptrons_are_under_their_bound(seed, depth, width):
    torch.manual_seed(seed)
    parts: list[nn.Module] = []
    for _ in range(depth):
        parts += [nn.Linear(width, width), nn.GELU()]
    network = nn.Sequential(*parts)
    assert jacobian(network, torch.randn(width)) <= of_module(network, radius=1, input_shape=(width,)).value


# --- what is refused --------------------------------------------------------------------------------------------------


class Strange(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x).real


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Product(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


class Crossed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 1, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, 2 * x, 2 * x)[0]


def test_what_is_not_known_is_named():
    for module, words in (
        (nn.LSTM(3, 3), "LSTM has no known constant"),
        (nn.Sequential(nn.Linear(3, 3), nn.Bilinear(3, 3, 3)), "Bilinear has no known constant"),
        (Strange(), "the operation 'fft_fft' in Strange has no known constant"),
        (Branching(), "the structure of Branching must be known or traceable"),
        (Product(), "the operation 'mul' in Product"),
        (Crossed(), "MultiheadAttention must have one input"),
        (nn.MultiheadAttention(4, 1, kdim=3, vdim=3), "must be self-attention"),
    ):
        with pytest.raises(TypeError, match=words):
            of_module(module, radius=1, input_shape=(3, 4) if isinstance(module, Crossed) else None)


def test_what_is_no_map_of_tokens_is_refused_on_measures():
    network = nn.Sequential(nn.Flatten(), nn.Linear(8, 8))
    with pytest.raises(TypeError, match=r"'Flatten' is no map of tokens\. Take metric='euclidean'"):
        of_module(network, radius=1, metric="wasserstein", input_shape=(2, 4))
    with pytest.raises(TypeError, match="Conv1d is no map of tokens"):
        of_module(nn.Conv1d(2, 2, 1), radius=1, metric="wasserstein", input_shape=(2, 4))
    with pytest.raises(
        ValueError, match=r"must be tokens and features \[t, d\] in the wasserstein metric, got \[3, 8, 8\]"
    ):
        of_module(zoo.build("vit_small", width=6), radius=1, input_shape=(3, 8, 8))
    with pytest.raises(ValueError, match="input_shape must be given for attention in the euclidean metric"):
        of_module(layers("split"), radius=1, metric="euclidean")


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="radius must be finite and not negative, got -1"):
        of_module(nn.ReLU(), radius=-1)
    with pytest.raises(ValueError, match="variance must be finite and not negative, got -1"):
        of_module(nn.ReLU(), radius=1, variance=-1)
    with pytest.raises(ValueError, match="metric must be one of wasserstein, worst_token, euclidean, got 'w2'"):
        of_module(nn.ReLU(), radius=1, metric="w2")
    broken = nn.Linear(2, 2)
    nn.init.constant_(broken.weight, torch.inf)
    with pytest.raises(ValueError, match=r"Linear\.weight must be finite"):
        of_module(broken, radius=1)
