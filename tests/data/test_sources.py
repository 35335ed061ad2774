from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from lisse.data import Dataset, load_data
from lisse.data.sources import SOURCES


def test_digits_are_sklearns():
    data = load_data("digits", split="all")
    pixels, labels = load_digits(return_X_y=True)
    np.testing.assert_array_equal(data.inputs.numpy().reshape(-1, 64) * 16, pixels)
    np.testing.assert_array_equal(data.targets.numpy(), labels)
    train, test = load_data("digits", split="train"), load_data("digits")
    assert (len(train), len(test)) == (1433, 364)
    assert test.inputs.shape[1:] == (1, 8, 8)
    share = test.targets.bincount() / data.targets.bincount()
    assert float((share - 0.2).abs().max()) < 0.01, "stratified"
    rows = {tuple(row) for row in train.inputs.flatten(1).tolist()}
    assert not any(tuple(row) in rows for row in test.inputs.flatten(1).tolist())
    assert load_data("digits", seed=5).fingerprint() == test.fingerprint(), "the split does not depend on the seed"


def test_limit_and_seed():
    full = load_data("digits")
    assert load_data("digits", limit=50, seed=3).fingerprint() == full.sample(50, 3).fingerprint()
    assert load_data("digits", limit=50, seed=4).fingerprint() != full.sample(50, 3).fingerprint()
    assert load_data("digits", limit=50, seed=None).fingerprint() == full.take(50).fingerprint()
    assert load_data("digits", limit=10**6).fingerprint() == full.fingerprint()


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if "?" in source.spec or name == "digits"])
def test_specs_as_listed_can_be_loaded(name):
    if SOURCES[name].takes == "name" and name not in ("imagenet", "cifar10-c"):
        assert isinstance(load_data(SOURCES[name].spec, limit=3), Dataset)


def test_options_change_what_they_say():
    assert len(load_data("rings?n=30")) == 30
    assert load_data("rings?n=30&noise=0").inputs[::2, 2].abs().max() == 0
    assert load_data("rings?n=30&noise=0&offset=5").inputs[1::2, 0].min() >= 4 - 1e-6
    assert load_data("rings?noise=0.5&noise_is=std").fingerprint() != load_data("rings?noise=0.5").fingerprint()
    assert len(load_data("torus?sectors=4").classes) == 4
    assert load_data("torus?major=5&noise=0").inputs.norm(dim=1).min() >= 4 - 1e-5
    assert load_data("torus?minor=0.1&noise=0").inputs[:, 2].abs().max() <= 0.1 + 1e-6
    assert load_data("stripe?d=3&n=7").inputs.shape == (7, 3)


@pytest.fixture
def factory_module(tmp_path, monkeypatch):
    (tmp_path / "their_data.py").write_text(
        textwrap.dedent(
            """
            import torch
            from torch.utils.data import DataLoader, TensorDataset

            def points(n=4, scale=1.0, name="x", odd=False, split="none", seed=-1):
                kind = {"train": 1, "test": 2}[split]
                return torch.full((n, 2), scale), torch.full((n,), kind * 100 + seed * 10 + odd)

            def loader():
                return DataLoader(TensorDataset(torch.arange(10.0)[:, None]), batch_size=3)

            def lazily():
                import their_helper
                return their_helper.numbers()

            class Large(torch.utils.data.Dataset):
                asked = []
                def __len__(self):
                    return 1000
                def __getitem__(self, index):
                    self.asked.append(index)
                    return torch.tensor([float(index)]), 0

            def endless():
                while True:
                    yield torch.zeros(5, 2)

            ready = torch.zeros(3, 2)
            """
        )
    )
    (tmp_path / "their_helper.py").write_text(
        "import torch\n\n\ndef numbers():\n    import their_last\n    yield torch.full((2, 1), their_last.VALUE)\n"
    )
    (tmp_path / "their_last.py").write_text("VALUE = 7.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    yield
    for name in ("their_data", "their_helper", "their_last"):
        sys.modules.pop(name, None)


def test_a_factory_may_import_when_it_is_called(factory_module):
    path = list(sys.path)
    assert load_data("their_data:lazily").inputs.tolist() == [[7.0], [7.0]]
    assert sys.path == path


def test_limit_bounds_what_a_factory_gives(factory_module):
    data = load_data("their_data:Large", limit=10, seed=4)
    asked = sys.modules["their_data"].Large.asked
    assert data.inputs.flatten().tolist() == asked
    assert asked == torch.randperm(1000, generator=torch.Generator().manual_seed(4))[:10].tolist()
    with pytest.warns(UserWarning, match="endless can only be read in its order, so limit=7 takes"):
        assert len(load_data("their_data:endless", limit=7)) == 7


def test_a_factory_without_splits_says_so(factory_module):
    for name in ("loader", "ready"):
        with pytest.warns(UserWarning, match=rf"'their_data:{name}'.* has no splits: 'train' is the whole of it"):
            load_data(f"their_data:{name}", split="train")


def test_a_persons_factory(factory_module):
    data = load_data("their_data:points?n=6&scale=2.5&odd=true", split="train", seed=3)
    assert data.name == "points"
    assert data.inputs.tolist() == [[2.5, 2.5]] * 6
    assert data.targets.tolist() == [131] * 6
    assert load_data("their_data:loader", limit=4, seed=None).inputs.flatten().tolist() == [0, 1, 2, 3]
    full = load_data("their_data:loader")
    assert len(full) == 10
    assert load_data("their_data:loader", limit=4, seed=1).fingerprint() == full.sample(4, 1).fingerprint()
    assert load_data("their_data:ready").inputs.shape == (3, 2)
    path = list(sys.path)
    load_data("their_data:ready")
    assert sys.path == path


def test_factory_errors(factory_module):
    with pytest.raises(ValueError, match="their_data:nothing must exist, got no 'nothing' in their_data"):
        load_data("their_data:nothing")
    with pytest.raises(ValueError, match=r"must be arguments of the factory, got an error: .*wrong"):
        load_data("their_data:points?wrong=1")
    with pytest.raises(
        ValueError, match=r"not_there must be importable, got no module 'not_there'. Install it, or run"
    ):
        load_data("not_there:points")


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("minst", r"must be one of digits, shapes, rings.*got 'minst'. Did you mean 'mnist'"),
        ("Digits", "Did you mean 'digits'"),
        ("cifar", "Did you mean 'cifar10'"),
        ("zzzz", "Check the spelling and the path"),
        ("mnist:x", "got no module 'mnist'. Did you mean 'mnist'"),
        ("rings?m=3", "options of 'rings' must be among: n, noise, noise_is, offset, got 'm'"),
        ("rings?nois=3", "Did you mean 'noise'"),
        ("digits?n=3", "must be among: none, got 'n'"),
        ("rings?n=x", r"option n of 'rings' must be an integer, got 'x'\. Write for example n=200\."),
        ("rings?noise=x", "option noise of 'rings' must be a number, got 'x'"),
        ("mnist?download=perhaps", "option download of 'mnist' must be true or false, got 'perhaps'"),
        ("rings?n", r"written \?name=value&name=value, got 'n'"),
        ("rings?n=1&n=2", "every option must be given once"),
        ("folder:", r"must be followed by what to load, got 'folder:'. Write folder:DIR"),
        ("text", "must be followed by what to load"),
    ],
)
def test_bad_specs(spec, match):
    with pytest.raises(ValueError, match=match):
        load_data(spec)


def test_bad_arguments():
    for bad in ("", 3, None):
        with pytest.raises(TypeError, match="spec must be a string such as 'digits'"):
            load_data(bad)
    for bad in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="limit must be a positive integer or None"):
            load_data("digits", limit=bad)
    with pytest.raises(TypeError, match="seed must be an integer of at most 64 bits, got"):
        load_data("digits", seed="x")
    for bad in (2**70, 2**64, -(2**63) - 1):
        with pytest.raises(ValueError, match=r"load_data: seed must be an integer of at most 64 bits, got -?\d+\. Any"):
            load_data("digits", limit=3, seed=bad)
    assert len(load_data("digits", limit=3, seed=2**64 - 1)) == 3
    with pytest.raises(ValueError, match="digits: split must be one of train, test, all, got 'val'"):
        load_data("digits", split="val")


def test_import_is_light():
    heavy = "sklearn, pandas, pooch, PIL, datasets, transformers, scipy"
    code = f"import sys, lisse.data; print([m for m in {heavy.split(', ')!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_hugging_face_folder(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = {"text": ["one two", "three", "four five six"], "label": [1, 0, 1]}
    names = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    made = datasets.Dataset.from_dict(rows, features=names)
    datasets.DatasetDict({"test": made, "train": made.select([0])}).save_to_disk(tmp_path / "disk")
    data = load_data(f"hfdata:{tmp_path}/disk")
    assert data.lengths.tolist() == [4, 3, 5]
    assert data.classes == ("no", "yes")
    assert data.targets.tolist() == [1, 0, 1]
    assert len(load_data(f"hfdata:{tmp_path}/disk", split="train")) == 1
    chosen, wanted = load_data(f"hfdata:{tmp_path}/disk", limit=2, seed=1), data.sample(2, 1)
    assert torch.equal(chosen.lengths, wanted.lengths)
    assert torch.equal(chosen.targets, wanted.targets)
    with pytest.raises(ValueError, match="must have a column 'z', got text, label"):
        load_data(f"hfdata:{tmp_path}/disk?inputs=z")
    with pytest.raises(ValueError, match="must be a data set with a split 'val'"):
        load_data(f"hfdata:{tmp_path}/disk", split="val")
    numbers = datasets.Dataset.from_dict({"x": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1]})
    numbers.save_to_disk(tmp_path / "numbers")
    assert load_data(f"hfdata:{tmp_path}/numbers").inputs.tolist() == [[1, 2], [3, 4]]


def test_hugging_face_images_and_pairs(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    pictures = [Image.new("RGB", (5, 4), (k, 0, 9)) for k in range(3)]
    made = datasets.Dataset.from_dict({"img": pictures, "label": [0, 1, 2]}).cast_column("img", datasets.Image())
    made.save_to_disk(tmp_path / "images")
    data = load_data(f"hfdata:{tmp_path}/images")
    assert data.inputs.shape == (3, 3, 4, 5)
    assert data.inputs.dtype == torch.uint8
    assert data.inputs[:, 0, 0, 0].tolist() == [0, 1, 2]
    monkeypatch.setattr("lisse.data.hub.CEILING", 100)
    with pytest.raises(ValueError, match=r"must fit in .* for 3 samples. Give limit="):
        load_data(f"hfdata:{tmp_path}/images")
    pairs = datasets.Dataset.from_dict({"premise": ["a b", "c"], "hypothesis": ["d", "e f g"], "label": [0, 1]})
    pairs.save_to_disk(tmp_path / "pairs")
    assert load_data(f"hfdata:{tmp_path}/pairs").partner.lengths.tolist() == [3, 5]


def test_hugging_face_without_the_network_or_the_library(monkeypatch):
    pytest.importorskip("datasets")
    asked = []
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.getaddrinfo", lambda *address, **_: asked.append(address) or [])
    with pytest.raises(ValueError, match=r"'hfdata:no-such-name-at-all' must be a data set.*\?download=true"):
        load_data("hfdata:no-such-name-at-all")
    with pytest.raises(ValueError, match=r"'hfdata:some/name' must be a data set.*\?download=true"):
        load_data("hfdata:some/name")
    assert asked == []
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r'pip install "lisse\[datasets\]"'):
        load_data("hfdata:cifar10")
