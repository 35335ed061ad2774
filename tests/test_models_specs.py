"""Specs taken apart, and cards and normalisation declared."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lisse.models import ModelCard, Normalised, declare, load_model
from lisse.models.declaration import LOOKS, STATISTICS, statistics
from lisse.models.specs import Spec, parse, read_value


@pytest.mark.parametrize(
    ("spec", "hub", "name", "options"),
    [
        ("zoo:resnet20", "zoo", "resnet20", {}),
        ("zoo:resnet20?weights=a/b-c.th&classes=10", "zoo", "resnet20", {"weights": "a/b-c.th", "classes": 10}),
        ("zoo:x?weights=12", "zoo", "x", {"weights": "12"}),
        ("zoo:x?weights=a+b%26c.pt", "zoo", "x", {"weights": "a+b&c.pt"}),
        ("zoo:x?mean=0.5,0.4,1&std=none&r=true", "zoo", "x", {"mean": (0.5, 0.4, 1), "std": None, "r": True}),
        ("hf:org/name", "hf", "org/name", {}),
        ("hf:./folder/model", "hf", "./folder/model", {}),
        ("timm:vit_base_patch16_224.augreg_in21k", "timm", "vit_base_patch16_224.augreg_in21k", {}),
        ("torchvision:resnet18?pretrained=false", "torchvision", "resnet18", {"pretrained": False}),
        ("my.package:make?width=3", "factory", "my.package:make", {"width": 3}),
        ("runs/a b/model.safetensors", "checkpoint", "runs/a b/model.safetensors", {}),
        ("C:\\runs\\model.safetensors", "checkpoint", "C:\\runs\\model.safetensors", {}),
    ],
)
def test_a_spec_is_taken_apart(spec, hub, name, options):
    assert parse(spec) == Spec(hub, name, options)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("0.5", 0.5),
        ("1e-3", 1e-3),
        ("true", True),
        ("False", False),
        ("none", None),
        ("1,2", (1, 2)),
        ("1,", (1,)),
        ("a,2", ("a", 2)),
        ("cifar10", "cifar10"),
        ("1_000", "1_000"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("", ""),
        ("٣", "٣"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_values_get_their_type(text, value):
    found = read_value(text)
    assert found == value
    assert type(found) is type(value)


VALUES = st.one_of(
    st.integers(-(10**9), 10**9), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none(),
    st.tuples(st.integers(-99, 99)), st.tuples(st.integers(-99, 99), st.floats(-1, 1)),
)  # fmt: skip


@given(
    st.sampled_from(["zoo", "hf", "timm", "torchvision"]),
    st.text(min_size=1).filter(lambda s: s.strip() == s),
    st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True).filter(lambda s: s != "weights"), VALUES, max_size=3),
    st.text(min_size=1).filter(lambda s: s.strip() == s),
)
def test_a_spec_written_out_is_the_same_spec(hub, name, options, weights):
    spec = Spec(hub, name, {**options, "weights": weights})
    assert parse(spec.without()) == spec
    assert parse(spec.without("weights")) == Spec(hub, name, options)


@pytest.mark.parametrize(
    ("spec", "error", "match"),
    [
        (3, TypeError, r"load_model: spec must be a string, got int. Use lisse.models.declare"),
        ("resnet20", ValueError, r"got 'resnet20'. Did you mean zoo:resnet20\?"),
        ("", ValueError, r"load_model: spec must be zoo:NAME, hf:"),
        ("zoo:", ValueError, r"must name a model after zoo:, got 'zoo:'"),
        ("a b:c d", ValueError, r"load_model: spec must be zoo:NAME"),
        ("net.pt", ValueError, r"which network the weights belong to, got 'net.pt'. Write zoo:NAME\?weights=net.pt"),
        ("zoo:resnet20?classes", ValueError, r"options must be key=value joined by &, got 'classes'"),
        ("zoo:resnet20?=3", ValueError, r"options must be key=value"),
        ("zoo:resnet20?size=32&size=28", ValueError, r"every option must be given once, got size twice"),
        ("zoo:resnet20?weights=", ValueError, r"weights must be a file, got nothing"),
        ("zoo:resnet22", ValueError, r"must be a network of the zoo, got 'resnet22'. Did you mean resnet"),
        ("zoo:resnet20?classses=3", ValueError, r"options of resnet20 must be among in_channels, size, classes, seed"),
        ("zoo:resnet20?classes=1.5", TypeError, r"resnet20: classes must be an integer, got 1.5"),
        ("zoo:resnet20?mean=0.5", ValueError, r"mean and std must be given together, got only mean"),
        ("zoo:resnet20?mean=0.5,0.5&std=1", ValueError, r"mean must be one finite number per channel \(3\)"),
        ("zoo:resnet20?mean=0.5&std=0", ValueError, r"std must be positive"),
        (
            "zoo:resnet20?mean=imagnet",
            ValueError,
            r"mean must be numbers or one of imagenet, cifar10, mnist, fashion-mnist, none",
        ),
        ("zoo:lenet?in_channels=1&size=28&mean=imagenet", ValueError, r"one value per channel \(1\)"),
        (
            "zoo:lenet?mean=123.7&std=58.4",
            ValueError,
            r"mean and std must be those of \[0, 1\] images, .*Divide them by 255",
        ),
        ("zoo:lenet?mean=0&std=255", ValueError, r"mean and std must be those of \[0, 1\] images"),
        ("net.ckpt", ValueError, r"which network the weights belong to, got 'net.ckpt'"),
        ("zoo:resnet", ValueError, r"Did you mean resnet18, resnet34, resnet50, resnet101, .* or resnet56\?"),
        ("zoo:fc4?features=3&mean=0&std=1", ValueError, r"mean and std must be left out for fc4, which takes vectors"),
    ],
)
def test_bad_specs_are_explained(spec, error, match):
    with pytest.raises(error, match=match):
        load_model(spec)


@pytest.mark.parametrize(
    ("spec", "advice"),
    [
        ("{}/tiny", "Did you mean hf:{}/tiny?"),
        ("{}/tiny/", "Did you mean hf:{}/tiny/?"),
        ("{}/tiny/config.json", "Did you mean hf:{}/tiny?"),
        ("{}/tiny?head=BertModel", "Did you mean hf:{}/tiny?head=BertModel?"),
        ("{}/50%25 tiny", "Did you mean hf:{}/50%25 tiny?"),
        ("{}/empty", "It is a folder, and without a config.json not one of Hugging Face's; name a file in it."),
        ("{}/nowhere", "Did you mean hf:{}/nowhere?"),
        ("someone/bert", "Did you mean hf:someone/bert?"),
        ("bert", "Did you mean zoo:bert?"),
        ("bert-base-uncased", "Did you mean hf:bert-base-uncased?"),
        ("restnet20?classes=3", "Did you mean zoo:resnet20?classes=3?"),
        ("", "See docs/models.md."),
    ],
)
def test_a_spec_without_a_hub_is_told_the_one_it_lacks(spec, advice, tmp_path):
    for folder in ("tiny", "50% tiny"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"^load_model: spec must be zoo:NAME") as caught:
        load_model(spec.format(tmp_path))
    assert str(caught.value).endswith(f". {advice.format(tmp_path)}")
    if advice.startswith("Did you mean"):  # and what is advised can be read
        parse(advice.format(tmp_path).removeprefix("Did you mean ")[:-1])


def test_a_folder_in_the_current_one_is_told_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "resnet20").mkdir()
    (tmp_path / "resnet20" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"got 'resnet20'\. Did you mean hf:resnet20\?$"):
        load_model("resnet20")


@pytest.mark.parametrize(("device", "match"), [("nowhere", "device must be one that torch knows, got 'nowhere'")])
def test_bad_devices_are_explained(device, match):
    with pytest.raises(ValueError, match=match):
        load_model("zoo:lenet", device=device)


# --- declarations ---------------------------------------------------------------------------------------------------


class First(nn.Module):
    """Gives back what it was given."""

    def forward(self, x):
        return x


def test_images_are_normalised_inside():
    model = declare(First(), input_size=(2, 1, 1), mean=(0.25, 0.5), std=(0.5, 2.0))
    images = torch.tensor([[1.0, 1.0], [0.0, 0.5]]).reshape(2, 2, 1, 1)
    assert model(images).flatten().tolist() == [1.5, 0.25, -0.5, 0.0]
    assert model.lisse == ModelCard("First", "image", input_size=(2, 1, 1), mean=(0.25, 0.5), std=(0.5, 2.0))


def test_without_statistics_the_input_is_taken_as_it_is():
    images = torch.rand(2, 3, 4, 4)
    assert torch.equal(declare(First(), input_size=(3, 4, 4))(images), images)


def test_the_statistics_follow_device_and_precision_but_are_no_weights():
    model = declare(nn.Conv2d(3, 1, 1), input_size=(3, 4, 4), mean="cifar10")
    assert set(model.state_dict()) == {"network.weight", "network.bias"}
    assert model.double().mean.dtype == torch.float64
    assert model(torch.rand(1, 3, 4, 4, dtype=torch.float64)).dtype == torch.float64
    assert model.to("meta").std.device.type == "meta"


def test_one_number_stands_for_all_channels_and_a_name_for_both():
    assert statistics(0.5, 0.25, 3) == ((0.5,) * 3, (0.25,) * 3)
    assert statistics("cifar10", None, 3) == STATISTICS["cifar10"]
    assert statistics("imagenet", "imagenet", 3) == STATISTICS["imagenet"]
    assert statistics(None, None, 2) == ((0.0, 0.0), (1.0, 1.0))


def test_a_text_or_plain_module_comes_back_itself():
    network = First()
    assert declare(network, kind="plain", input_size=(30,)) is network
    assert network.lisse.input_size == (30,)
    assert declare(First(), kind="text", tokenizer="t").lisse.tokenizer == "t"


def test_a_card_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        declare(First(), kind="plain").lisse.kind = "image"


def test_declaring_keeps_the_training_mode():
    assert declare(First().eval(), input_size=(1, 1, 1)).training is False
    assert declare(First(), input_size=(1, 1, 1)).training is True


@pytest.mark.parametrize(
    ("images", "error", "match"),
    [
        (torch.zeros(1, 3, 4, 4, dtype=torch.uint8), TypeError, r"floats in \[0, 1\], got torch.uint8. Divide uint8"),
        (torch.zeros(1, 1, 4, 4), ValueError, r"images must have shape \[n, 3, h, w\], got \[1, 1, 4, 4\]"),
        (torch.zeros(3, 4, 4), ValueError, r"got \[3, 4, 4\]. This model takes 3 channels"),
    ],
)
def test_images_of_another_kind_are_refused(images, error, match):
    with pytest.raises(error, match=match):
        Normalised(First(), (0, 0, 0), (1, 1, 1))(images)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"module": "net"}, TypeError, r"declare: module must be an nn.Module, got str"),
        ({"kind": "sound"}, ValueError, r"declare: kind must be image, text or plain, got 'sound'"),
        ({}, ValueError, r"declare: input_size must be \(channels, height, width\) for images, got None"),
        ({"input_size": (3, 32)}, ValueError, r"must be \(channels, height, width\) for images, got \(3, 32\)"),
        ({"input_size": (3, 0, 4)}, ValueError, r"input_size must be positive integers"),
        ({"kind": "plain", "mean": 0.5, "std": 1}, ValueError, r"mean and std must be left out for kind='plain'"),
        (
            {"input_size": (3, 4, 4), "std": 1.0},
            ValueError,
            r"declare: mean and std must be given together, got only s",
        ),
        ({"input_size": (1, 4, 4), "mean": float("nan"), "std": 1}, ValueError, r"one finite number per channel \(1\)"),
    ],
)
def test_bad_declarations_are_explained(arguments, error, match):
    with pytest.raises(error, match=match):
        declare(**{"module": First(), **arguments})


def test_a_module_is_declared_once():
    model = declare(nn.Conv2d(3, 1, 1), input_size=(3, 4, 4), mean="cifar10")
    with pytest.raises(ValueError, match=r"declare: module must not be declared yet, got one that is \(Conv2d\)"):
        declare(model, input_size=(3, 4, 4), mean="cifar10")
    with pytest.raises(ValueError, match=r"must not normalise inside if it is given mean and std"):
        declare(nn.Sequential(model, nn.ReLU()), input_size=(3, 4, 4), mean="cifar10")
    images = torch.rand(2, 3, 4, 4)
    longer = declare(nn.Sequential(model, nn.ReLU()), input_size=(3, 4, 4))
    assert torch.equal(longer(images), model(images).relu())


# --- images that are not what the model takes -----------------------------------------------------------------------


def test_images_in_other_units_are_refused_and_normalised_ones_warned_about():
    images = torch.rand(4, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    model = declare(First(), input_size=(3, 4, 4), mean="imagenet")
    for far in (images * 255, images * 255 - 128):
        with pytest.raises(ValueError, match=r"images must lie in \[0, 1\], got values from .* Divide images of 0…255"):
            model(far)
    with pytest.warns(UserWarning, match=r"images must lie in \[0, 1\], got values from .* leave that out"):
        model((images - model.mean) / model.std)
    with pytest.warns(UserWarning, match=r"images must lie in \[0, 1\]"):
        declare(First(), input_size=(3, 4, 4))(2 * images - 1)


@pytest.mark.filterwarnings("error")
def test_noise_goes_a_little_outside_and_later_batches_are_looked_at_too():
    model = declare(First(), input_size=(3, 4, 4))
    images = torch.rand(4, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    for _ in range(20):
        model(images + 0.1 * torch.randn(images.shape, generator=torch.Generator().manual_seed(1)))

    def all_later_ones():
        for _ in range(LOOKS):
            model(images * 255)

    with pytest.raises(ValueError, match=r"Divide images of 0…255"):
        all_later_ones()


@pytest.mark.filterwarnings("error:Normalised")
def test_looking_at_the_range_does_not_stand_in_the_way_of_torch_func():
    model = declare(nn.Sequential(nn.Flatten(), nn.Linear(12, 2), nn.Tanh()), input_size=(3, 2, 2), mean=0.5, std=0.5)
    images = torch.rand(2, 3, 2, 2)
    func = torch.func
    each = func.vmap(lambda image: model(image[None])[0])(images)
    torch.testing.assert_close(each, model(images))
    jacobian = func.jacrev(model)(images)
    torch.testing.assert_close(func.jacfwd(model)(images), jacobian)
    torch.testing.assert_close(
        func.vmap(func.jacrev(lambda image: model(image[None])[0]))(images)[0], jacobian[0, :, 0]
    )
    assert func.hessian(lambda x: model(x).sum())(images).shape == (2, 3, 2, 2) * 2
    assert torch.autograd.gradgradcheck(model.double(), (images.double().requires_grad_(),))
    assert model.to("meta")(images.to("meta")).shape == (2, 2)


def test_a_compiled_model_is_one_graph():
    model = declare(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), input_size=(3, 2, 2), mean=0.5, std=0.5)
    images = torch.rand(2, 3, 2, 2)
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(images), model(images))


def test_running_a_model_does_not_change_what_it_says_of_itself():
    """Its attributes are hashed for the cache of finished work."""
    model = declare(First(), input_size=(3, 4, 4))
    before = dict(vars(model))
    with pytest.warns(UserWarning, match=r"must lie in \[0, 1\]"):
        model(3 * torch.ones(2, 3, 4, 4))
    assert vars(model) == before


def test_images_of_another_size_are_refused_by_name_or_warned_about():
    vit = load_model("zoo:vit_small?width=12&heads=2&depth=1")
    with pytest.raises(ValueError, match=r"Normalised: images must be 32×32 for this network, got 28×28 \("):
        vit(torch.rand(1, 3, 28, 28))
    resnet = load_model("zoo:resnet20")
    with pytest.warns(UserWarning, match=r"images must be 32×32 to give what .*, got 28×28, which it also takes"):
        assert resnet(torch.rand(1, 3, 28, 28)).shape == (1, 10)


@pytest.mark.filterwarnings("error")
def test_images_of_the_declared_size_go_without_a_word():
    load_model("zoo:resnet20?size=28")(torch.rand(1, 3, 28, 28))


def test_statistics_of_fashion_mnist_by_name():
    assert load_model("zoo:lenet?in_channels=1&size=28&mean=fashion-mnist").lisse.mean == (0.2860,)
    assert load_model("zoo:lenet?in_channels=1&size=28&mean=fashion-mnist").lisse.std == (0.3530,)
