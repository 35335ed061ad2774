"""timm and torchvision, for real: their models through load_model, and our networks against theirs."""

import socket
import time

import huggingface_hub
import pytest
import torch

from lisse.models import load_model, save_checkpoint
from lisse.networks import zoo

timm = pytest.importorskip("timm")
torchvision = pytest.importorskip("torchvision")

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5,) * 3, (0.5,) * 3)

# Spec (random weights: nothing is downloaded), input size, statistics, classes. Adding a row is adding the test.
MODELS = [
    ("timm:resnet18?pretrained=false", (3, 224, 224), IMAGENET, 1000),
    ("timm:resnet18?pretrained=false&classes=7", (3, 224, 224), IMAGENET, 7),
    ("timm:vit_tiny_patch16_224?pretrained=false", (3, 224, 224), HALF, 1000),
    ("timm:mixer_s32_224?pretrained=false", (3, 224, 224), HALF, 1000),
    ("timm:efficientnet_b0?pretrained=false", (3, 224, 224), IMAGENET, 1000),
    ("timm:convnext_atto?pretrained=false", (3, 224, 224), IMAGENET, 1000),
    ("torchvision:resnet18?pretrained=false", (3, 224, 224), IMAGENET, 1000),
    ("torchvision:mobilenet_v3_small?pretrained=false&classes=5", (3, 224, 224), IMAGENET, 5),
    ("torchvision:efficientnet_b2?pretrained=false", (3, 288, 288), IMAGENET, 1000),
    ("torchvision:vit_b_16?pretrained=false", (3, 224, 224), IMAGENET, 1000),
]


@pytest.mark.parametrize(("spec", "size", "statistics", "classes"), MODELS)
def test_a_model_comes_with_its_own_preprocessing(spec, size, statistics, classes):
    model = load_model(spec)
    assert model.lisse.input_size == size
    assert (model.lisse.mean, model.lisse.std) == (pytest.approx(statistics[0]), pytest.approx(statistics[1]))
    assert model.lisse.classes == classes
    assert not model.training
    with torch.no_grad():
        assert model(torch.rand(1, *size)).shape == (1, classes)


def test_images_are_normalised_as_the_library_does():
    model = load_model("timm:vit_tiny_patch16_224?pretrained=false")
    images = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(model(images), model.network((images - 0.5) / 0.5))


@pytest.mark.parametrize("hub", ["timm", "torchvision"])
def test_the_seed_decides_and_the_random_state_stays(hub):
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    one, two, other = (load_model(f"{hub}:resnet18?pretrained=false&seed={s}").state_dict() for s in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert not torch.equal(one["network.conv1.weight"], other["network.conv1.weight"])


def test_options_go_to_the_library():
    model = load_model(
        "timm:vit_tiny_patch16_224?pretrained=false&img_size=32&patch_size=4&in_chans=3&classes=10&depth=2"
    )
    assert model.lisse.input_size == (3, 32, 32)
    assert len(model.network.blocks) == 2


@pytest.mark.parametrize("hub", ["timm", "torchvision"])
def test_a_weights_file_replaces_the_download_and_a_checkpoint_brings_it_back(hub, tmp_path):
    source = load_model(f"{hub}:resnet18?pretrained=false&seed=3")
    torch.save({"state_dict": source.network.state_dict()}, tmp_path / "w.pth")
    model = load_model(f"{hub}:resnet18?weights={tmp_path}/w.pth")
    path = save_checkpoint(model, tmp_path / "x.safetensors")
    with pytest.raises(
        ValueError, match=rf"not trusted to start. If you trust it: {hub}:resnet18\?weights=.*x.safetensors"
    ):
        load_model(str(path))
    again = load_model(f"{hub}:resnet18?weights={path}")
    images = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        assert torch.equal(model(images), source(images))
        assert torch.equal(again(images), source(images))


@pytest.mark.parametrize(
    ("spec", "error", "match"),
    [
        ("timm:resnet18x", ValueError, r"timm:NAME must name a model of timm .*, got 'resnet18x'"),
        ("timm:resnet1", ValueError, r"Did you mean .*resnet1"),
        ("torchvision:resnet1", ValueError, r"must name a classifier, got 'resnet1'. Did you mean resnet101"),
        ("timm:resnet18?pretrained=maybe", TypeError, r"pretrained must be true or false, got 'maybe'"),
        ("timm:resnet18?checkpoint_path=x.pth", ValueError, r"checkpoint_path must be left out"),
    ],
)
def test_bad_specs_are_explained(spec, error, match):
    with pytest.raises(error, match=match):
        load_model(spec)


@pytest.fixture
def names_asked(monkeypatch, tmp_path):
    """Every host name that is looked up, with empty caches; none is found."""
    asked = []

    def spy(host, *_, **__):
        asked.append(host)
        raise socket.gaierror("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", spy)
    monkeypatch.setattr(time, "sleep", lambda _: None)  # between the hub's tries
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("LISSE_DOWNLOAD", raising=False)
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    return asked


@pytest.mark.parametrize("spec", ["timm:resnet18", "timm:resnet18.tv_in1k", "torchvision:resnet18"])
def test_weights_are_not_fetched_unless_asked_for(spec, names_asked):
    with pytest.raises(
        ValueError, match=rf"weights of {spec} must be on this machine, .*\?download=true .*pretrained=false"
    ):
        load_model(spec)
    assert not names_asked
    with pytest.raises(OSError, match=r"."):
        load_model(f"{spec}?download=true")
    assert names_asked


def test_weights_in_the_cache_need_no_network(names_asked, tmp_path):
    source = load_model("torchvision:resnet18?pretrained=false&seed=3")
    name = torchvision.models.get_model_weights("resnet18").DEFAULT.url.rpartition("/")[2]
    (tmp_path / "checkpoints").mkdir()
    torch.save(source.network.state_dict(), tmp_path / "checkpoints" / name)
    assert torch.equal(load_model("torchvision:resnet18").network.conv1.weight, source.network.conv1.weight)
    assert not names_asked


# --- our networks are theirs ----------------------------------------------------------------------------------------


def compare(ours, theirs, size, *, by_name=True):
    """Their random weights, shaken, into ours; the same images through both in float64."""
    generator = torch.Generator().manual_seed(0)
    state = theirs.double().eval().state_dict()
    for name, tensor in state.items():
        if name.endswith("running_var"):
            tensor.copy_(1 + torch.rand(tensor.shape, generator=generator))
        elif tensor.is_floating_point():
            tensor.add_(0.05 * torch.randn(tensor.shape, generator=generator))
    ours = ours.double().eval()
    ours.load_state_dict(state if by_name else dict(zip(ours.state_dict(), state.values(), strict=True)))
    images = torch.rand(2, 3, size, size, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-9, atol=1e-9)


def test_vit_is_timms_vit_by_name():
    theirs = timm.create_model("vit_small_patch16_224", img_size=32, patch_size=4, num_classes=10, depth=3)
    compare(zoo.build("vit_small", depth=3), theirs, 32)


@pytest.mark.parametrize("name", ["efficientnet_b0", "efficientnet_b2"])
def test_efficientnet_is_timms_efficientnet_by_name(name):
    compare(zoo.build(name, stem_stride=2, classes=1000), timm.create_model(name), 64)


def test_efficientnet_is_torchvisions_efficientnet():
    """torchvision lists the same tensors in the same order."""
    theirs = torchvision.models.efficientnet_b0(weights=None)
    compare(zoo.build("efficientnet_b0", stem_stride=2, classes=1000), theirs, 64, by_name=False)


@pytest.mark.parametrize(("ours", "theirs"), [("vgg11", "vgg11"), ("vgg16_bn", "vgg16_bn"), ("vgg19", "vgg19")])
def test_vgg_has_torchvisions_convolutions(ours, theirs):
    mine, other = zoo.build(ours), getattr(torchvision.models, theirs)(weights=None)
    mine.features.load_state_dict(other.features.state_dict())
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(mine.eval().features(images), other.eval().features(images))


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "resnet101"])
def test_resnet_is_torchvisions_resnet_with_a_small_stem(name):
    theirs = getattr(torchvision.models, name)(weights=None, num_classes=10)
    theirs.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
    theirs.maxpool = torch.nn.Identity()
    with torch.no_grad():
        for module in theirs.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_var.uniform_(0.5, 1.5)
                module.running_mean.normal_(std=0.1)
    ours, state = zoo.build(name), theirs.state_dict()
    renamed = {key.replace("downsample", "shortcut").replace("fc.", "linear."): tensor for key, tensor in state.items()}
    ours.load_state_dict(renamed)
    images = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(ours.double().eval()(images), theirs.double().eval()(images), rtol=1e-9, atol=1e-9)
