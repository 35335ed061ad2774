"""CIFAR-10-C: the official layout read and written, and frost's textures."""

from __future__ import annotations

import hashlib
import json
import os

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from lisse.cli.data import command
from lisse.data import Dataset, cifar, corrupted, frost_textures, load_data
from lisse.data.corrupted import check_corruptions, make_cifar10_c
from lisse.data.download import Remote
from lisse.maths.corruption import CORRUPTIONS, EXTRA, MAIN, corrupt

COUNT = 12


@pytest.fixture(autouse=True)
def few_images(monkeypatch):
    """Twelve images a severity instead of ten thousand."""
    monkeypatch.setattr(corrupted, "IMAGES", COUNT)
    monkeypatch.setattr(cifar, "BATCH", COUNT)


@pytest.fixture
def clean():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (COUNT, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return Dataset("cifar10", images, torch.arange(COUNT) % 10, classes=cifar.CLASSES)


@pytest.fixture
def official(data_folder):
    """A folder in the official layout: pixel (0, 0, 0) says which image it is."""
    folder = data_folder / "CIFAR-10-C"
    folder.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (5 * COUNT, 32, 32, 3)).astype(np.uint8)
    images[:, 0, 0, 0] = np.arange(5 * COUNT)
    np.save(folder / "fog.npy", images)
    np.save(folder / "labels.npy", np.tile(np.arange(COUNT) % 10, 5).astype(np.uint8))
    return folder


def textures(folder):
    folder.mkdir(parents=True)
    for k, remote in enumerate(corrupted.FROST):
        Image.new("RGB", (200 + k, 180), (30 * k, 20, 10)).save(folder / remote.name)
    return folder


# --- reading --------------------------------------------------------------------------------------------------------


def test_a_severity_of_the_official_files(official):
    data = load_data("cifar10-c?corruption=fog&severity=2")
    stored = np.load(official / "fog.npy")
    assert data.name == "cifar10-c fog 2"
    assert data.inputs.dtype == torch.uint8
    assert torch.equal(data.inputs, torch.from_numpy(stored[COUNT : 2 * COUNT]).permute(0, 3, 1, 2))
    assert data.targets.tolist() == [k % 10 for k in range(COUNT)]
    assert data.classes == cifar.CLASSES
    assert data.inputs.is_contiguous()


def test_all_severities(official):
    data = load_data("cifar10-c?corruption=fog")
    assert len(data) == 5 * COUNT
    assert data.inputs[:, 0, 0, 0].tolist() == list(range(5 * COUNT))


def test_a_limit_chooses_the_images_that_cifar10_chooses(official, data_folder, clean):
    folder = data_folder / "cifar10"
    folder.mkdir()
    row = np.hstack([clean.targets.numpy()[:, None].astype(np.uint8), clean.inputs.reshape(COUNT, -1).numpy()])
    row[:, 1] = np.arange(COUNT)
    (folder / "test_batch.bin").write_bytes(row.tobytes())
    for seed in (0, 3, None):
        chosen = load_data("cifar10", limit=5, seed=seed).inputs[:, 0, 0, 0].tolist()
        found = load_data("cifar10-c?corruption=fog&severity=3", limit=5, seed=seed)
        assert [k - 2 * COUNT for k in found.inputs[:, 0, 0, 0].tolist()] == chosen
        assert found.targets.tolist() == [k % 10 for k in chosen]


def test_only_what_is_asked_for_is_read(official, peak, monkeypatch):
    monkeypatch.setattr(corrupted, "IMAGES", 10_000)
    large = np.lib.format.open_memmap(official / "fog.npy", "w+", np.uint8, (50_000, 32, 32, 3))
    large[20_000:30_000, 0, 0, 0] = 7
    del large
    np.save(official / "labels.npy", np.zeros(50_000, np.uint8))
    data = load_data("cifar10-c?corruption=fog&severity=3", limit=100)
    assert data.inputs.shape == (100, 3, 32, 32)
    assert set(data.inputs[:, 0, 0, 0].tolist()) == {7}
    assert peak() < 8 << 20


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("cifar10-c", r"option corruption of 'cifar10-c' must be one of gaussian_noise, .*cifar10-c\?corruption=snow"),
        ("cifar10-c?corruption=frog", r"corruptions must be among .*got 'frog'. Did you mean 'f"),
        ("cifar10-c?corruption=fog&severity=6", "severity of 'cifar10-c' must be 1 … 5, got 6"),
        ("cifar10-c?corruption=fog&severity=-1", "got -1"),
        ("cifar10-c?corruption=fog&severity=x", "severity of 'cifar10-c' must be an integer"),
        ("cifar10-c?corruption=snow", r"snow.npy and labels.npy .*has fog.* lisse data make cifar10-c"),
        ("cifar10-c?corruption=main", "one of gaussian_noise"),
    ],
)
def test_wrong_requests(official, spec, match):
    with pytest.raises(ValueError, match=match):
        load_data(spec)


def test_nothing_there(data_folder):
    with pytest.raises(ValueError, match=r"got nothing there. Unpack the official CIFAR-10-C.tar there, or make"):
        load_data("cifar10-c?corruption=fog")
    with pytest.raises(ValueError, match="split must be one of test"):
        load_data("cifar10-c?corruption=fog", split="train")


@pytest.mark.parametrize(
    ("name", "array", "match"),
    [
        (
            "fog.npy",
            np.zeros((4, 32, 32, 3), np.uint8),
            r"must hold bytes of shape \(60, 32, 32, 3\), got uint8",
        ),
        ("fog.npy", np.zeros((60, 3, 32, 32), np.uint8), r"got uint8 of shape \(60, 3, 32, 32\)"),
        ("fog.npy", np.zeros((60, 32, 32, 3), np.float32), "got float32"),
        ("fog.npy", np.zeros((60, 32, 32, 3), np.int8), "got int8"),
        ("labels.npy", np.zeros(12, np.uint8), r"labels.npy must hold integers of shape \(60,\)"),
        ("labels.npy", np.zeros(60), "got float64"),
        ("labels.npy", np.full(60, 10), "must hold labels in 0 … 9"),
        ("labels.npy", np.array([None] * 60), "complete .npy file"),
    ],
)
def test_wrong_files(official, name, array, match):
    np.save(official / name, array, allow_pickle=True)
    with pytest.raises(ValueError, match=match):
        load_data("cifar10-c?corruption=fog&severity=1")


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_damaged_files(official, damage):
    content = (official / "fog.npy").read_bytes()
    (official / "fog.npy").write_bytes({"cut": content[:-100], "empty": b"", "text": b"hello" * 100}[damage])
    with pytest.raises(ValueError, match=r"must be a complete .npy file, got"):
        load_data("cifar10-c?corruption=fog&severity=1")


# --- writing --------------------------------------------------------------------------------------------------------


def test_what_is_written_is_the_layout_and_is_found(clean, tmp_path):
    made = make_cifar10_c(clean, corruptions=["contrast", "gaussian_noise"])
    folder = tmp_path / "cache" / "data" / "cifar10-c"
    assert made == [folder / "gaussian_noise.npy", folder / "contrast.npy", folder / "labels.npy"]
    stored = np.load(folder / "contrast.npy")
    assert stored.shape == (5 * COUNT, 32, 32, 3)
    assert stored.dtype == np.uint8
    for severity in range(1, 6):
        data = load_data(f"cifar10-c?corruption=contrast&severity={severity}")
        assert torch.equal(data.inputs, corrupt(clean.inputs, "contrast", severity))
        assert torch.equal(data.targets, clean.targets)
    assert sorted(os.listdir(folder)) == ["contrast.npy", "gaussian_noise.npy", "labels.npy", "made.json"]


def test_seeds_and_variants(clean, tmp_path, monkeypatch):
    def content(folder, name, **options):
        make_cifar10_c(clean, tmp_path / folder, corruptions=[name], **options)
        return np.load(tmp_path / folder / f"{name}.npy")

    first = content("a", "glass_blur")
    assert np.array_equal(first, content("b", "glass_blur"))
    assert not np.array_equal(first, content("c", "glass_blur", seed=1))
    assert not np.array_equal(first, content("d", "glass_blur", variant="corrected"))
    monkeypatch.setattr(corrupted, "_STEP", 5)
    assert np.array_equal(first, content("e", "glass_blur")), "the step of progress changes nothing"
    make_cifar10_c(clean, tmp_path / "f", corruptions=["fog", "glass_blur"])
    assert np.array_equal(first, np.load(tmp_path / "f" / "glass_blur.npy")), "nor what else is made"
    noise = content("g", "gaussian_noise").reshape(5, COUNT, -1).astype(int) - clean.inputs.permute(0, 2, 3, 1).reshape(
        COUNT, -1
    ).numpy().astype(int)
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.5, "every severity has its own"


def test_an_interrupted_call_can_be_repeated(clean, tmp_path, monkeypatch):
    calls = []

    def stop(images, name, severity, **options):
        calls.append(name)
        if name == "contrast" and severity == 3:
            raise KeyboardInterrupt
        return corrupt(images, name, severity, **options)

    monkeypatch.setattr(corrupted, "corrupt", stop)
    with pytest.raises(KeyboardInterrupt):
        make_cifar10_c(clean, tmp_path / "c", corruptions=["brightness", "contrast"])
    assert sorted(os.listdir(tmp_path / "c")) == ["brightness.npy", "labels.npy", "made.json"]
    monkeypatch.setattr(corrupted, "corrupt", lambda i, n, s, **o: calls.append(n) or corrupt(i, n, s, **o))
    short = tmp_path / "c" / "labels.npy"
    labels = short.read_bytes()
    short.write_bytes(labels[:-3])  # it has its name and not all of its bytes: it is not there already
    before, said = (tmp_path / "c" / "brightness.npy").stat().st_mtime_ns, []
    calls.clear()
    make_cifar10_c(clean, tmp_path / "c", corruptions=["brightness", "contrast"], progress=said.append)
    assert set(calls) == {"contrast"}
    assert short.read_bytes() == labels
    assert (tmp_path / "c" / "brightness.npy").stat().st_mtime_ns == before
    assert [event.say for event in said if event.task == "brightness"] == ["is there already"]
    assert [(event.done, event.total) for event in said if event.task == "contrast"][-1] == (5 * COUNT, 5 * COUNT)


def test_folders_are_not_mixed(clean, tmp_path, official):
    with pytest.raises(ValueError, match=r"out must be a new folder or one that lisse made, got .*not mixed"):
        make_cifar10_c(clean, official, corruptions=["contrast"])
    make_cifar10_c(clean, tmp_path / "c", corruptions=["contrast"])
    record = json.loads((tmp_path / "c" / "made.json").read_text())
    assert record["seed"] == 0
    assert record["variant"] == "hendrycks"
    with pytest.raises(ValueError, match="same seed, variant and clean images, got seed 0"):
        make_cifar10_c(clean, tmp_path / "c", corruptions=["contrast"], seed=1)
    with pytest.raises(ValueError, match="variant 'hendrycks'"):
        make_cifar10_c(clean, tmp_path / "c", corruptions=["contrast"], variant="corrected")
    with pytest.raises(ValueError, match="same seed"):
        make_cifar10_c(clean.take(4), tmp_path / "c", corruptions=["contrast"])
    (tmp_path / "c" / "made.json").write_text("[]")
    with pytest.raises(ValueError, match="same seed"):
        make_cifar10_c(clean, tmp_path / "c", corruptions=["contrast"])


def test_bad_input_of_the_writer(clean, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"got 'motionblur'. Did you mean 'motion_blur'"):
        make_cifar10_c(clean, tmp_path, corruptions=["motionblur"])
    with pytest.raises(ValueError, match="clean must hold byte images"):
        make_cifar10_c(Dataset("x", torch.zeros(2, 3, 8, 8)), tmp_path)
    with pytest.raises(ValueError, match="clean must have labels"):
        make_cifar10_c(Dataset("x", clean.inputs), tmp_path)
    with pytest.raises(TypeError, match="seed must be an integer"):
        make_cifar10_c(clean, tmp_path, seed=0.5)
    full = type("usage", (), {"free": 10})
    monkeypatch.setattr(corrupted.shutil, "disk_usage", lambda path: full)
    with pytest.raises(OSError, match=r"must have room for 184,320 bytes, got 10"):
        make_cifar10_c(clean, tmp_path / "new", corruptions=["contrast"])


def test_names_of_corruptions():
    assert check_corruptions("f", []) == CORRUPTIONS
    assert check_corruptions("f", ["all"]) == CORRUPTIONS
    assert check_corruptions("f", ["main"]) == MAIN
    assert check_corruptions("f", ["extra", "snow", "snow"]) == ("snow", *EXTRA)


def test_the_command(data_folder, tmp_path, clean):
    folder = data_folder / "cifar10"
    folder.mkdir()
    row = np.hstack([clean.targets.numpy()[:, None].astype(np.uint8), clean.inputs.reshape(COUNT, -1).numpy()])
    (folder / "test_batch.bin").write_bytes(row.tobytes())
    textures(data_folder / "frost")
    out = tmp_path / "made"
    result = CliRunner().invoke(
        command, ["make", "cifar10-c", "--out", str(out), "--corruptions", "frost, fog", "--seed", "2"]
    )
    assert result.exit_code == 0, result.output
    assert "2 corruptions and labels in" in result.stdout
    assert json.loads((out / "made.json").read_text())["seed"] == 2
    assert np.load(out / "frost.npy").shape == (5 * COUNT, 32, 32, 3)
    wrong = CliRunner().invoke(command, ["make", "cifar10-c", "--corruptions", "rain"])
    assert wrong.exit_code == 2
    assert "corruptions must be among" in wrong.output
    assert CliRunner().invoke(command, ["make", "cifar100-c"]).exit_code == 2


def listed():
    found = json.loads(CliRunner().invoke(command, ["--json"]).output)["data"]
    return next(item for item in found if item["name"] == "cifar10-c")


def test_the_list_says_how_much_is_there(official):
    item = next(
        i for i in json.loads(CliRunner().invoke(command, ["--json"]).output)["data"] if i["name"] == "cifar10-c"
    )
    assert item["state"] == "partial"
    assert item["place"] == str(official)
    for name in CORRUPTIONS:
        (official / f"{name}.npy").touch()
    item = next(
        i for i in json.loads(CliRunner().invoke(command, ["--json"]).output)["data"] if i["name"] == "cifar10-c"
    )
    assert item["state"] == "complete"


# --- frost ----------------------------------------------------------------------------------------------------------


def test_textures_are_found(data_folder):
    textures(data_folder / "frost")
    found = frost_textures()
    assert [tuple(t.shape) for t in found] == [(3, 180, 200 + k) for k in range(6)]
    assert all(t.dtype == torch.uint8 for t in found)
    assert found[2][:, 0, 0].tolist() == [60, 20, 10]


def test_textures_are_missing(data_folder):
    textures(data_folder / "frost")
    (data_folder / "frost" / "frost6.jpg").unlink()
    with pytest.raises(ValueError, match=r"frost1.png … frost6.jpg must be in a folder frost .*download=True"):
        frost_textures()


def test_textures_are_fetched_when_asked(tmp_path, monkeypatch):
    source = textures(tmp_path / "server")
    remotes = []
    for remote in corrupted.FROST:
        content = (source / remote.name).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        remotes.append(Remote(remote.name, ((source / remote.name).as_uri(),), len(content), digest))
    monkeypatch.setattr(corrupted, "FROST", tuple(remotes))
    assert len(frost_textures(download=True)) == 6
    assert (tmp_path / "cache" / "data" / "frost" / "frost3.png").is_file()
    assert len(frost_textures()) == 6, "and found again without the network"


@pytest.mark.large
def test_the_real_textures_are_the_published_ones():
    found = corrupted.places.files_in(("frost",), [(remote.name,) for remote in corrupted.FROST])
    if found is None:
        pytest.skip("no frost textures in LISSE_DATA")
    for path, remote in zip(found, corrupted.FROST, strict=True):
        assert path.stat().st_size == remote.size
        assert hashlib.sha256(path.read_bytes()).hexdigest() == remote.sha256
