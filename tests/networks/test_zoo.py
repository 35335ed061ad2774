"""The zoo: parameter counts, shapes, determinism, options, and equality with the networks of others."""

import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from lisse.libraries import extra
from lisse.networks import zoo
from lisse.networks.zoo.attention_only import FullWidthAttention
from lisse.networks.zoo.efficientnet import StochasticDepth
from lisse.networks.zoo.resnet import PaddedShortcut

TEXT = ("bert", "t5")
PAINT = ("mae_small", "mae_base")  # images to images
IMAGE = tuple(name for name in zoo.NETWORKS if name not in TEXT + PAINT)

# Name and options, parameters, where the number comes from. Adding a row is adding the test.
COUNTS = [
    # [he2016] Table 6 rounds to 0.27, 0.46, 0.66, 0.85 M; exact: akamaster/pytorch_resnet_cifar10's files.
    ("resnet20", {}, 269_722, "README of akamaster/pytorch_resnet_cifar10, 0.27 M"),
    ("resnet32", {}, 464_154, "ditto, 0.46 M"),
    ("resnet44", {}, 658_586, "ditto, 0.66 M"),
    ("resnet56", {}, 853_018, "ditto, 0.85 M"),
    ("resnet18", {}, 11_173_962, "kuangliu/pytorch-cifar"),
    ("resnet34", {}, 21_282_122, "kuangliu/pytorch-cifar"),
    ("resnet50", {}, 23_520_842, "kuangliu/pytorch-cifar"),
    ("resnet101", {}, 42_512_970, "kuangliu/pytorch-cifar"),
    ("vgg11_bn", {}, 9_231_114, "kuangliu/pytorch-cifar"),
    ("vgg13_bn", {}, 9_416_010, "kuangliu/pytorch-cifar"),
    ("vgg16_bn", {}, 14_728_266, "kuangliu/pytorch-cifar"),
    ("vgg19_bn", {}, 20_040_522, "kuangliu/pytorch-cifar"),
    ("vgg11", {}, 9_231_114 - 2 * 2752, "batch norm has two parameters per channel"),
    ("vgg13", {}, 9_416_010 - 2 * 2944, "ditto"),
    ("vgg16", {}, 14_728_266 - 2 * 4224, "ditto"),
    ("vgg19", {}, 20_040_522 - 2 * 5504, "ditto"),
    ("lenet", {}, 62_006, "kuangliu/pytorch-cifar"),
    ("lenet", {"in_channels": 1, "size": 28}, 44_426, "leonardopetrini/diffeo-sota: 16·4·4 features"),
    ("alexnet", {}, 23_272_266, "the CIFAR AlexNet of leonardopetrini/diffeo-sota"),
    ("efficientnet_b0", {"classes": 1000}, 5_288_548, "torchvision and timm, efficientnet_b0"),
    ("efficientnet_b2", {"classes": 1000}, 9_109_994, "torchvision and timm, efficientnet_b2"),
    ("efficientnet_b0", {}, 5_288_548 - 990 * 1281, "ten classes"),
    ("efficientnet_b2", {}, 9_109_994 - 990 * 1409, "ten classes"),
    ("fc2", {}, 3073 * 64 + 65 * 64 + 650, "by hand"),
    ("fc4", {}, 3073 * 64 + 3 * 65 * 64 + 650, "by hand"),
    ("fc6", {}, 3073 * 64 + 5 * 65 * 64 + 650, "by hand"),
    ("fc4", {"in_channels": 1, "size": 28}, 785 * 64 + 3 * 65 * 64 + 650, "by hand"),
    ("fc4", {"features": 30, "classes": 1}, 31 * 64 + 3 * 65 * 64 + 65, "by hand"),
    ("isometry", {}, 785 * 100 + 3 * 101 * 100 + 1010, "by hand: [784, 100, 100, 100, 100, 10]"),
    ("isometry", {"features": 3, "width": 20, "classes": 2}, 80 + 3 * 420 + 42, "by hand: [3, 20, 20, 20, 20, 2]"),
    ("attention_small", {}, 40 * 4 * 128**2 + (49 + 64) * 128 + 1290, "by hand: 4 M d² per layer, Definition 1"),
    ("attention_large", {}, 40 * 12 * 512**2 + (49 + 64) * 512 + 5130, "ditto"),
    ("convolution_small", {}, 28 * 64 + 7 * 577 * 64 + 650, "by hand"),
    (
        "convolution_large",
        {},
        sum(
            (9 * a + 1) * b
            for a, b in zip(
                (3, 64, 64, 128, 128, 256, 512, 1024, 2048), (64, 64, 128, 128, 256, 512, 1024, 2048, 2048), strict=True
            )
        )
        + 20_490,
        "by hand",
    ),
    (
        "vit_small",
        {},
        12 * (12 * 384**2 + 13 * 384) + (65 + 49 + 1 + 2 + 10) * 384 + 10,
        "by hand: 12 d² + 13 d a block",
    ),
    ("vit_base", {}, 12 * (12 * 768**2 + 13 * 768) + (65 + 49 + 1 + 2 + 10) * 768 + 10, "ditto"),
    ("vit_large", {}, 24 * (12 * 1024**2 + 13 * 1024) + (65 + 49 + 1 + 2 + 10) * 1024 + 10, "ditto"),
    ("vit_base", {"size": 224, "patch": 16, "classes": 1000}, 86_567_656, "timm and torchvision, ViT-B/16"),
    ("vit_large", {"size": 224, "patch": 16, "classes": 1000}, 304_326_632, "timm and torchvision, ViT-L/16"),
    (
        "mae_small",
        {},
        6 * (12 * 192**2 + 13 * 192)
        + (49 + 1 + 2) * 192
        + 4 * (12 * 128**2 + 13 * 128)
        + (193 + 1 + 2) * 128
        + 129 * 48,
        "by hand: patches, class token, norm; embedding, mask token, norm; pixels",
    ),
    ("mae_base", {}, 111_907_840 - 197 * (768 + 512), "facebookresearch/mae, less its fixed positions"),
    ("bert", {"layers": 12, "width": 768, "heads": 12}, 109_514_298, "BertForMaskedLM, bert-base-uncased"),
    (
        "bert",
        {"layers": 12, "width": 768, "heads": 12, "output": "hidden"},
        109_482_240,
        "BertModel, bert-base-uncased",
    ),
    ("bert", {"output": "hidden"}, 4_385_920, "google/bert_uncased_L-2_H-128_A-2"),
    ("t5", {}, 60_506_624, "t5-small"),
]


def meta(name, **options):
    """The network without memory: shapes and counts of the large ones cost nothing."""
    if name in TEXT:
        pytest.importorskip("transformers")
    with torch.device("meta"):
        return zoo.build(name, **options)


def count(network):
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(("name", "options", "parameters", "source"), COUNTS)
def test_parameter_counts_are_the_published_ones(name, options, parameters, source):
    assert count(meta(name, **options)) == parameters, source


def test_every_network_has_a_row_in_the_table():
    assert {row[0] for row in COUNTS} == set(zoo.NETWORKS)


@pytest.mark.parametrize(("channels", "size"), [(3, 32), (1, 28)])
@pytest.mark.parametrize("name", IMAGE)
def test_every_image_network_runs_in_the_papers_sizes(name, channels, size):
    network = meta(name, in_channels=channels, size=size, classes=7).eval()
    assert network(torch.empty(2, channels, size, size, device="meta")).shape == (2, 7)


@pytest.mark.parametrize("name", PAINT)
def test_masked_autoencoders_give_the_pixels_of_every_patch(name):
    network = meta(name, in_channels=3, size=32, patch=8).eval()
    assert network(torch.empty(2, 3, 32, 32, device="meta"))["logits"].shape == (2, 16, 8 * 8 * 3)


@pytest.mark.parametrize("name", ["resnet20", "vgg11", "alexnet", "lenet", "efficientnet_b0", "convolution_small"])
def test_larger_images_go_too(name):
    network = meta(name, size=64).eval()
    assert network(torch.empty(2, 3, 64, 64, device="meta")).shape == (2, 10)


@pytest.mark.parametrize("name", IMAGE + PAINT)
def test_every_printed_count_in_a_docstring_is_true(name):
    """The table of a family's module has the count of each of its networks."""
    builder = zoo.NETWORKS[name]
    page = sys.modules[getattr(builder, "func", builder).__module__].__doc__
    assert f"{count(meta(name)):,}" in page


@pytest.mark.parametrize("name", [name for name in zoo.NETWORKS if not name.startswith("vgg")])
def test_every_count_of_the_documentation_is_true(name):
    page = (Path(__file__).resolve().parents[2] / "docs" / "models.md").read_text("utf-8")
    assert f"{count(meta(name)):,}" in page


@pytest.mark.parametrize(
    ("name", "path", "blocks"),
    [
        ("resnet20", "layer1 layer2 layer3", 9),
        ("resnet56", "layer1 layer2 layer3", 27),
        ("resnet18", "layer1 layer2 layer3 layer4", 8),
        ("resnet101", "layer1 layer2 layer3 layer4", 33),
        ("vit_small", "blocks", 12),
        ("vit_large", "blocks", 24),
        ("attention_small", "blocks", 10),
        ("attention_large", "blocks", 10),
        ("convolution_small", "blocks", 8),
        ("convolution_large", "blocks", 9),
        ("fc6", "blocks", 6),
        ("isometry", "blocks", 4),
    ],
)
def test_there_is_one_module_per_block(name, path, blocks):
    network = meta(name)
    assert sum(len(network.get_submodule(part)) for part in path.split()) == blocks


def test_convolution_only_halves_the_image_where_the_width_doubles():
    strides = [m.stride[0] for m in meta("convolution_large").modules() if isinstance(m, nn.Conv2d)]
    assert strides == [1, 1, 2, 1, 2, 2, 2, 2, 1]
    same = meta("convolution_large", downsample=False)
    assert all(m.stride[0] == 1 for m in same.modules() if isinstance(m, nn.Conv2d))


# --- the same spec gives the same weights ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fc4", "lenet", "resnet20", "convolution_small", "bert"])
def test_the_seed_alone_decides_the_weights(name):
    if name == "bert":
        pytest.importorskip("transformers")
    torch.manual_seed(5)
    first = zoo.build(name).state_dict()
    torch.manual_seed(6)
    again = zoo.build(name, seed=0).state_dict()
    other = zoo.build(name, seed=1).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_building_leaves_the_random_state_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    zoo.build("lenet", seed=9)
    assert torch.equal(torch.rand(2), expected)


# --- closed forms ---------------------------------------------------------------------------------------------------


def test_full_width_attention_is_definition_1():
    """Against the formula of TopoLip's Definition 1, head by head and token by token, with 3 heads on d = 4."""
    generator = torch.Generator().manual_seed(0)
    d, heads, t = 4, 3, 5
    layer = FullWidthAttention(d, heads).double()
    x = torch.randn(t, d, generator=generator, dtype=torch.float64)
    q, k, v, out = layer.matrices()
    assert q.shape == (heads, d, d)
    assert out.shape == (d, heads * d)
    expected = torch.zeros(t, d, dtype=torch.float64)
    for i in range(t):
        outputs = []
        for m in range(heads):
            scores = torch.stack([(q[m] @ x[i]) @ (k[m] @ x[j]) / math.sqrt(d / heads) for j in range(t)])
            weights = scores.exp() / scores.exp().sum()
            outputs.append(sum(weights[j] * (v[m] @ x[j]) for j in range(t)))
        expected[i] = out @ torch.cat(outputs)
    torch.testing.assert_close(layer(x[None])[0], expected, rtol=1e-12, atol=1e-12)


def test_attention_of_one_token_is_the_value_map():
    layer = FullWidthAttention(6, 2).double()
    _, _, v, out = layer.matrices()
    x = torch.randn(1, 1, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0, 0], out @ torch.cat([v[0] @ x[0, 0], v[1] @ x[0, 0]]))


def test_attention_commutes_with_permutations():
    layer = FullWidthAttention(6, 2).double()
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    order = torch.randperm(7)
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order])


def test_residual_adds_the_input_and_sigma_sets_the_spread():
    plain = zoo.build("attention_small", width=16, depth=2)
    skip = zoo.build("attention_small", width=16, depth=2, residual=True)
    x = torch.randn(1, 3, 16)
    torch.testing.assert_close(skip.blocks[0](x), plain.blocks[0](x) + x)
    drawn = zoo.build("attention_small", width=64, sigma=0.3).blocks[0].attention.query.weight
    # Standard error of a standard deviation: σ/√(2n).
    assert abs(drawn.std().item() - 0.3) < 4 * 0.3 / math.sqrt(2 * drawn.numel())


def test_the_padded_shortcut_takes_every_second_pixel_between_zeros():
    x = torch.arange(2 * 16.0).reshape(1, 2, 4, 4)
    y = PaddedShortcut(2, 4)(x)
    assert y.shape == (1, 4, 2, 2)
    assert torch.equal(y[:, 1:3], x[:, :, ::2, ::2])
    assert not y[:, [0, 3]].any()


@pytest.mark.parametrize("depth", [11, 19])
def test_what_passes_a_plain_vgg_keeps_its_size_with_hes_initialisation(depth):
    """With PyTorch's, a layer divides the mean square by about six, and the deeper ones say nothing of the image."""
    images = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def apart(init):
        network = zoo.build(f"vgg{depth}", seed=0, init=init)
        with torch.no_grad():
            features = network.features(images).flatten(1)
        return (features - features.mean(0)).square().mean().sqrt()

    assert apart("he") > 0.02
    assert apart("torch") < 0.001
    assert torch.equal(
        zoo.build("vgg11", seed=0).features[0].weight, zoo.build("vgg11", seed=0, init="torch").features[0].weight
    )


def test_the_standard_deviation_of_hes_initialisation():
    weight = zoo.build("vgg16", seed=0, init="he").features[-3].weight  # 512 × 512 × 3 × 3
    n = weight.numel()
    assert abs(weight.std().item() / math.sqrt(2 / (512 * 9)) - 1) < 4 / math.sqrt(2 * n)


def test_an_initialisation_that_nobody_knows():
    with pytest.raises(TypeError, match="vgg16: init must be torch or he, got 'xavier'"):
        zoo.build("vgg16", init="xavier")


def test_small_images_are_centred_in_32_by_32():
    network = zoo.build("vgg11", in_channels=1, size=28)
    padded = network.pad(torch.ones(1, 1, 28, 28))
    assert padded.shape == (1, 1, 32, 32)
    assert padded[..., 2:30, 2:30].all()
    assert padded.sum() == 28 * 28


def test_stochastic_depth_keeps_the_mean_and_is_still_in_evaluation():
    drop = StochasticDepth(0.25)
    x = torch.ones(4000, 1)
    torch.manual_seed(0)
    y = drop(x)
    assert y.unique().tolist() == pytest.approx([0, 4 / 3])
    # Variance of one draw: p/(1-p) = 1/3.
    assert abs(y.mean().item() - 1) < 4 * math.sqrt(1 / 3 / 4000)
    assert torch.equal(drop.eval()(x), x)


# --- the networks of others -----------------------------------------------------------------------------------------


def shaken(network):
    """Every parameter and every batch statistic moved, so that none of them is at a value that hides a mistake."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if name.endswith("running_var"):
                tensor.copy_(1 + torch.rand(tensor.shape, generator=generator))
            elif tensor.is_floating_point():
                tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator))
    return network.double().eval()


def test_the_mlp_of_a_vit_may_have_the_relu_that_topolip_prints():
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plain, relu = (
        shaken(zoo.build("vit_small", width=12, heads=2, depth=1, activation=activation))
        for activation in ("gelu", "relu")
    )
    assert not torch.allclose(plain(images), relu(images))
    mlp = relu.blocks[0].mlp
    tokens = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(mlp(tokens), mlp.fc2(mlp.fc1(tokens).clamp_min(0)))


def test_vit_is_the_transformers_vit():
    transformers = pytest.importorskip("transformers")
    ours = shaken(zoo.build("vit_small", width=48, heads=6, depth=3, eps=1e-12))
    theirs = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=48, num_attention_heads=6, num_hidden_layers=3, intermediate_size=192, image_size=32,
            patch_size=4, num_labels=10,
        )
    ).double().eval()  # fmt: skip
    state = {
        "vit.embeddings.cls_token": ours.cls_token,
        "vit.embeddings.position_embeddings": ours.pos_embed,
        "vit.embeddings.patch_embeddings.projection": ours.patch_embed.proj,
        "vit.layernorm": ours.norm,
        "classifier": ours.head,
    }
    # Early 5.x still has the names of 4.x.
    new = "vit.layers.0.attention.q_proj.weight" in theirs.state_dict()
    stem = "vit.layers" if new else "vit.encoder.layer"
    inner = (
        [f"attention.{n}_proj" for n in "qkv"]
        if new
        else [f"attention.attention.{n}" for n in ("query", "key", "value")]
    )
    outer = (
        ("attention.o_proj", "mlp.fc1", "mlp.fc2")
        if new
        else (
            "attention.output.dense",
            "intermediate.dense",
            "output.dense",
        )
    )
    for i, block in enumerate(ours.blocks):
        at = f"{stem}.{i}"
        state |= {f"{at}.layernorm_before": block.norm1, f"{at}.layernorm_after": block.norm2}
        state |= {f"{at}.{n}": m for n, m in zip(outer, (block.attn.proj, block.mlp.fc1, block.mlp.fc2), strict=True)}
        for name, w, b in zip(inner, block.attn.qkv.weight.chunk(3), block.attn.qkv.bias.chunk(3), strict=True):
            state |= {f"{at}.{name}.weight": w, f"{at}.{name}.bias": b}
    flat = {}
    for name, value in state.items():
        if isinstance(value, nn.Module):
            flat |= {f"{name}.{key}": tensor for key, tensor in value.state_dict().items()}
        else:
            flat[name] = value
    theirs.load_state_dict(flat)
    images = torch.rand(3, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(ours(images), theirs(images).logits, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "width", "depth", "dim"), [("b0", 1.0, 1.0, 1280), ("b2", 1.1, 1.2, 1408)])
def test_efficientnet_is_the_transformers_efficientnet(name, width, depth, dim):
    """In TensorFlow's conventions, which transformers follows; both list their tensors in the same order."""
    transformers = pytest.importorskip("transformers")
    ours = shaken(zoo.build(f"efficientnet_{name}", stem_stride=2, padding="same", bn_eps=1e-3))
    theirs = transformers.EfficientNetForImageClassification(
        transformers.EfficientNetConfig(
            width_coefficient=width, depth_coefficient=depth, hidden_dim=dim, image_size=64, num_labels=10
        )
    ).double().eval()  # fmt: skip
    mine, target = ours.state_dict(), theirs.state_dict()
    assert [t.shape for t in mine.values()] == [t.shape for t in target.values()]
    theirs.load_state_dict(dict(zip(target, mine.values(), strict=True)))
    images = torch.rand(2, 3, 64, 64, dtype=torch.float64)
    torch.testing.assert_close(ours(images), theirs(images).logits, rtol=1e-9, atol=1e-9)


def test_t5_reads_the_source_shifted_when_no_target_is_given():
    pytest.importorskip("transformers")
    model = zoo.build("t5", layers=1, width=16, heads=2, hidden=32, vocabulary=40).eval()
    ids = torch.tensor([[5, 6, 7, 1], [8, 9, 1, 0]])
    mask = (ids != 0).long()
    expected = model.network(
        input_ids=ids, attention_mask=mask, decoder_input_ids=model.network._shift_right(ids)
    ).logits  # fmt: skip
    torch.testing.assert_close(model(ids, attention_mask=mask).logits, expected)
    assert ids[0, 0] == 5, "the person's ids are left alone"


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "error", "match"),
    [
        ("resnet21", {}, ValueError, r"build: name must be a network of the zoo, got 'resnet21'. Did you mean resnet"),
        ("???", {}, ValueError, r"There are: attention_small, .*t5\."),
        (
            "resnet20",
            {"clases": 10},
            ValueError,
            r"options of resnet20 must be among .*seed, got 'clases'. Did you mean c",
        ),
        ("resnet20", {"classes": "ten"}, TypeError, r"resnet20: classes must be an integer, got 'ten'"),
        ("resnet20", {"classes": True}, TypeError, r"classes must be an integer, got True"),
        ("resnet20", {"classes": 0}, ValueError, r"resnet20: classes must lie in 1\.\.100000, got 0"),
        ("resnet18", {"classes": 1_000_000}, ValueError, r"resnet18: classes must lie in 1\.\.100000, got 1000000"),
        (
            "vit_small",
            {"size": 30},
            ValueError,
            r"vit_small: size must be a multiple of patch \(4\), got 30. Use size=28",
        ),
        ("vit_small", {"heads": 5}, ValueError, r"width must be a multiple of heads \(5\), got 384"),
        ("vit_small", {"size": 10**9}, ValueError, r"size must lie in 1\.\.4096"),
        ("attention_large", {"sigma": -1.0}, ValueError, r"attention_large: sigma must be positive"),
        ("efficientnet_b0", {"padding": "valid"}, TypeError, r"padding must be symmetric or same, got 'valid'"),
        ("efficientnet_b0", {"dropout": 1.0}, ValueError, r"dropout must lie in \[0, 1\)"),
        ("lenet", {"size": 8}, ValueError, r"lenet: size must be at least 16, got 8"),
        ("fc4", {"features": 0}, ValueError, r"fc4: features must lie in 1"),
        ("isometry", {"activation": "gelu"}, TypeError, r"activation must be tanh or relu"),
        ("resnet20", {"seed": -1}, ValueError, r"seed must be an integer in 0\.\.2\^63-1, got -1"),
        ("vit_small", {"eps": -1.0}, ValueError, r"vit_small: eps must be positive and finite, got -1.0"),
        ("efficientnet_b0", {"bn_eps": 0.0}, ValueError, r"efficientnet_b0: bn_eps must be positive and finite"),
        ("bert", {"hidden": -5}, ValueError, r"bert: hidden must lie in 1\.\.1000000, got -5"),
        (
            "fc4",
            {"width": 65536},
            ValueError,
            r"fc4 must have at most .* parameters, got 13,087,145,994 with width=65536",
        ),
        ("bert", {"width": 10, "heads": 3}, ValueError, r"bert: width must be a multiple of heads"),
    ],
)
def test_bad_options_are_explained(name, options, error, match):
    with pytest.raises(error, match=match):
        zoo.build(name, **options)


def test_a_missing_library_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r'bert: transformers must .*pip install "lisse\[hf\]"'):
        zoo.build("bert")


def test_a_library_that_is_not_there_names_its_extra():
    with pytest.raises(ImportError, match=r'f: no_such_library must be installed, got none. pip install "lisse\[hf\]"'):
        extra("no_such_library", "hf", "f")
