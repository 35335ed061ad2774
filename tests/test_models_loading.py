"""load_model: the zoo, a person's own factory, devices, statistics; the hubs' errors. Hugging Face has its own file."""

import copy
import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from lisse.models import _TRAINED_ON_IMAGENET, ModelCard, Normalised, load_model, save_checkpoint
from lisse.models.declaration import STATISTICS
from lisse.networks import zoo


def test_a_network_of_the_zoo_comes_in_evaluation_mode_with_its_card():
    model = load_model("zoo:resnet20?classes=7")
    assert isinstance(model, Normalised)
    assert not any(module.training for module in model.modules())
    mean, std = STATISTICS["imagenet"]
    assert model.lisse == ModelCard(
        "resnet20", "image", spec="zoo:resnet20?classes=7", architecture="zoo:resnet20?classes=7",
        input_size=(3, 32, 32), mean=mean, std=std, classes=7,
    )  # fmt: skip
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 7)
    assert "network.layer1.0" in dict(model.named_modules())


def test_normalisation_happens_before_the_network():
    model = load_model("zoo:lenet?mean=0.1,0.2,0.3&std=0.4,0.5,0.6&seed=3")
    images = torch.rand(2, 3, 32, 32)
    mean, std = torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1), torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)
    torch.testing.assert_close(model(images), zoo.build("lenet", seed=3)((images - mean) / std))


@pytest.mark.parametrize(
    ("spec", "mean", "std"),
    [
        ("zoo:lenet", *STATISTICS["imagenet"]),
        ("zoo:lenet?in_channels=1&size=28", *STATISTICS["mnist"]),
        ("zoo:lenet?in_channels=2", (0.0, 0.0), (1.0, 1.0)),
        ("zoo:lenet?mean=cifar10", *STATISTICS["cifar10"]),
        ("zoo:lenet?mean=cifar10&std=imagenet", STATISTICS["cifar10"][0], STATISTICS["imagenet"][1]),
        ("zoo:lenet?mean=none", (0.0,) * 3, (1.0,) * 3),
        ("zoo:lenet?mean=0.5&std=0.25", (0.5,) * 3, (0.25,) * 3),
    ],
)
def test_statistics_of_the_zoo(spec, mean, std):
    assert (load_model(spec).lisse.mean, load_model(spec).lisse.std) == (mean, std)


def test_the_default_of_the_spec_in_the_seed_and_nothing_else():
    one, two, other = (load_model(f"zoo:lenet?seed={seed}").state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert not torch.equal(one["network.features.0.0.weight"], other["network.features.0.0.weight"])


def test_a_default_device_does_not_change_the_weights():
    expected = load_model("zoo:lenet").network.features[0][0].weight
    torch.set_default_device("meta")
    try:
        found = load_model("zoo:lenet").network.features[0][0].weight
    finally:
        torch.set_default_device("cpu")
    assert torch.equal(found, expected)


def test_vectors_and_text_are_not_normalised():
    vectors = load_model("zoo:fc4?features=30&classes=1")
    assert (vectors.lisse.kind, vectors.lisse.input_size) == ("plain", (30,))
    assert vectors(torch.randn(4, 30)).shape == (4, 1)
    pytest.importorskip("transformers")
    text = load_model("zoo:bert?layers=1&width=8&heads=2&vocabulary=30")
    assert (text.lisse.kind, text.lisse.input_size, text.lisse.mean) == ("text", None, None)


def test_weights_without_statistics_are_used_with_a_warning(tmp_path):
    torch.save(zoo.build("lenet", seed=4).state_dict(), tmp_path / "w.pt")
    with pytest.warns(UserWarning, match=r"w.pt does not say which normalisation .*imagenet is used. Add \?mean="):
        model = load_model(f"zoo:lenet?weights={tmp_path}/w.pt")
    assert torch.equal(model.network.features[0][0].weight, zoo.build("lenet", seed=4).features[0][0].weight)
    assert model.lisse.spec.endswith("w.pt")
    assert model.lisse.architecture == "zoo:lenet"


@pytest.mark.filterwarnings("error")
def test_statistics_given_or_published_do_not_warn(tmp_path, monkeypatch):
    torch.save(zoo.build("lenet").state_dict(), tmp_path / "w.pt")
    load_model(f"zoo:lenet?weights={tmp_path}/w.pt&mean=cifar10")
    torch.save({"state_dict": zoo.build("resnet20").state_dict()}, tmp_path / "r.th")
    monkeypatch.setitem(_TRAINED_ON_IMAGENET, hashlib.sha256((tmp_path / "r.th").read_bytes()).hexdigest(), "resnet20")
    assert load_model(f"zoo:resnet20?weights={tmp_path}/r.th").lisse.mean == STATISTICS["imagenet"][0]


def test_other_weights_of_a_published_network_warn(tmp_path):
    torch.save(zoo.build("resnet20").state_dict(), tmp_path / "mine.th")
    with pytest.warns(UserWarning, match=r"mine.th does not say which normalisation"):
        load_model(f"zoo:resnet20?weights={tmp_path}/mine.th")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["resnet20", "resnet32", "resnet44", "resnet56"])
def test_the_published_files_are_recognised(name):
    files = sorted(Path(os.environ.get("LISSE_DATA", "."), "checkpoints").glob(f"{name}-*.th"))
    if not files:
        pytest.skip("LISSE_DATA has no checkpoints")
    assert load_model(f"zoo:{name}?weights={files[0]}").lisse.mean == STATISTICS["imagenet"][0]


# --- factories ------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(
        textwrap.dedent(
            """
            import torch
            from torch import nn
            from lisse.models import declare

            def convolution(width=2, bias=True):
                return nn.Sequential(nn.Conv2d(3, width, 3, bias=bias), nn.AdaptiveAvgPool2d(1), nn.Flatten())

            def declared():
                return declare(convolution(), input_size=(3, 8, 8), mean="cifar10", classes=2)

            def greedy():
                import sys
                assert sys.path[0] != "." and sys.path[-1] == __file__.rpartition("/")[0]
                sys.path.remove(sys.path[-1])
                return convolution()

            ready = convolution(5)
            number = 3

            class Group:
                @staticmethod
                def make():
                    return convolution(4)

            def wrong():
                return 3
            """
        )
    )
    (tmp_path / "broken_models.py").write_text("import no_such_thing_at_all\n")
    monkeypatch.chdir(tmp_path)
    yield
    for name in ("own_models", "broken_models"):
        sys.modules.pop(name, None)


def test_a_factory_of_the_current_folder_gets_its_options(own_code):
    path = list(sys.path)
    model = load_model("own_models:convolution?width=4&bias=false")
    assert model[0].bias is None
    assert model(torch.rand(2, 3, 8, 8)).shape == (2, 4)
    assert (model.lisse.kind, model.lisse.mean, model.lisse.input_size) == ("plain", None, None)
    assert not model.training
    assert sys.path == path


def test_a_factory_can_be_declared_in_the_spec_or_in_the_code(own_code):
    spec = "own_models:convolution?width=4&mean=0.5&std=0.25&input_size=3,8,8"
    model = load_model(spec)
    assert (model.lisse.kind, model.lisse.mean, model.lisse.input_size) == ("image", (0.5,) * 3, (3, 8, 8))
    assert model.lisse.architecture == "own_models:convolution?width=4"
    assert load_model("own_models:declared").lisse.mean == STATISTICS["cifar10"][0]
    assert load_model("own_models:ready")(torch.rand(1, 3, 8, 8)).shape == (1, 5)
    assert load_model("own_models:Group.make")(torch.rand(1, 3, 8, 8)).shape == (1, 4)


def test_a_factory_takes_weights(own_code, tmp_path):
    source = nn.Sequential(nn.Conv2d(3, 2, 3))
    torch.save(source.state_dict(), tmp_path / "w.pt")
    model = load_model("own_models:declared?weights=w.pt")
    assert torch.equal(model.network[0].weight, source[0].weight)


def test_a_checkpoint_of_a_factory_brings_its_declaration(own_code, tmp_path):
    model = load_model("own_models:convolution?width=4&mean=0.5&std=0.25&input_size=3,8,8")
    path = save_checkpoint(model, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match=r"If you trust it: own_models:convolution\?width=4&weights=.*x.safetensors"):
        load_model(str(path))
    again = load_model(f"own_models:convolution?width=4&weights={path}")
    images = torch.rand(2, 3, 8, 8)
    assert torch.equal(again(images), model(images))
    assert again.lisse.std == (0.25,) * 3


def test_the_current_folder_comes_last_and_goes_again(own_code, tmp_path):
    """A file here does not hide a library, and a factory that changes sys.path does no harm."""
    (tmp_path / "colorsys.py").write_text("raise RuntimeError('the wrong one')")
    sys.modules.pop("colorsys", None)
    path = list(sys.path)
    with pytest.raises(ValueError, match=r"got no 'make' in colorsys"):
        load_model("colorsys:make")
    load_model("own_models:greedy")
    assert sys.path == path


@pytest.mark.parametrize(
    ("spec", "error", "match"),
    [
        (
            "no_such_package.models:make",
            ValueError,
            r"must be importable, got no module 'no_such_package'. Install it, or",
        ),
        ("broken_models:make", ModuleNotFoundError, r"No module named 'no_such_thing_at_all'"),
        ("own_models:convolutoin", ValueError, r"got no 'convolutoin' in own_models. Did you mean convolution\?"),
        ("own_models:number", TypeError, r"own_models:number must be a function or an nn.Module, got int"),
        ("own_models:wrong", TypeError, r"own_models:wrong must return an nn.Module, got int"),
        (
            "own_models:convolution?size=3",
            TypeError,
            r"must accept the options \{'size': 3\}, got: .*unexpected keyword",
        ),
        ("own_models:ready?width=3", ValueError, r"must be a function to take options \(width\), got a module"),
        ("own_models:declared?mean=0.5&std=1", ValueError, r"must be left out where the factory declares them"),
        ("own_models:convolution?mean=0.5&std=1", ValueError, r"input_size must be given with mean and std, got None"),
    ],
)
def test_bad_factories_are_explained(own_code, spec, error, match):
    with pytest.raises(error, match=match):
        load_model(spec)


def test_a_copy_keeps_its_card():
    model = load_model("zoo:lenet")
    assert copy.deepcopy(model).lisse == model.lisse


def test_heavy_libraries_wait_until_they_are_asked_for():
    program = (
        "import sys, lisse.models; lisse.models.load_model('zoo:lenet'); "
        "print(sorted({'transformers', 'timm', 'torchvision', 'matplotlib', 'datasets'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "[]"


# --- hubs that are not installed here -------------------------------------------------------------------------------


@pytest.mark.parametrize("hub", ["timm", "torchvision"])
def test_a_missing_hub_names_its_extra(hub, monkeypatch):
    monkeypatch.setitem(sys.modules, hub, None)
    with pytest.raises(ImportError, match=rf'load_model: {hub} must .* pip install "lisse\[{hub}\]"'):
        load_model(f"{hub}:resnet18")


def test_a_hub_made_for_another_torch_says_so(tmp_path, monkeypatch):
    """What torchvision does beside a CPU torch."""
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    with pytest.raises(
        ImportError, match=r"torchvision must fit the installed torch, .*operator torchvision::nms does"
    ):
        load_model("torchvision:resnet18")
