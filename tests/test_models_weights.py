"""Weights files: formats, wrappers, mismatches, checkpoints; and files that are damaged or hostile."""

import argparse
import json
import os
import pickle
import re
import struct
import zipfile
from collections import OrderedDict
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from lisse.models import declare, load_model, load_weights, read_weights, save_checkpoint
from lisse.models.checkpoints import read_declaration
from lisse.models.weights import metadata
from lisse.networks import zoo


def tiny():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(OrderedDict(a=nn.Linear(2, 3), b=nn.BatchNorm1d(3)))


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


# --- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".th", ".bin", ".ckpt"])
@pytest.mark.parametrize("old_format", [False, True])
@pytest.mark.parametrize("wrapper", [None, "state_dict", "model", "net"])
def test_pickled_weights_are_read(tmp_path, suffix, old_format, wrapper):
    state = tiny().state_dict()
    content = state if wrapper is None else {"epoch": 3, wrapper: state, "best": 0.5, "name": "x"}
    torch.save(content, tmp_path / f"w{suffix}", _use_new_zipfile_serialization=not old_format)
    assert same(read_weights(tmp_path / f"w{suffix}"), state)


def test_safetensors_are_read(tmp_path):
    state = tiny().state_dict()
    save_file(state, tmp_path / "w.safetensors")
    assert same(read_weights(tmp_path / "w.safetensors"), state)
    assert metadata(tmp_path / "w.safetensors") == {}
    assert read_declaration(tmp_path / "w.safetensors") is None


@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.", "network.", "module._orig_mod.", "model.", "model.module."]
)
def test_prefixes_of_wrappers_are_taken_off(prefix):
    source, target = tiny(), tiny()
    nn.init.constant_(source.a.weight, 7)
    load_weights(target, {prefix + name: tensor for name, tensor in source.state_dict().items()})
    assert (target.a.weight == 7).all()


def test_weights_of_the_bare_network_fit_the_wrapped_one():
    source, target = nn.Conv2d(3, 1, 1), declare(nn.Conv2d(3, 1, 1), input_size=(3, 4, 4))
    load_weights(target, source.state_dict())
    assert torch.equal(target.network.weight, source.weight)


def test_a_network_whose_own_names_begin_like_a_prefix_keeps_them():
    source, target = (
        nn.Sequential(OrderedDict(module=nn.Linear(2, 2))),
        nn.Sequential(OrderedDict(module=nn.Linear(2, 2))),
    )
    load_weights(target, source.state_dict())
    assert torch.equal(target.module.weight, source.module.weight)


def test_old_files_without_batch_counts_load():
    state = tiny().state_dict()
    del state["b.num_batches_tracked"]
    load_weights(tiny(), state)


def test_half_precision_weights_are_widened():
    state = {name: t.half() if t.is_floating_point() else t for name, t in tiny().state_dict().items()}
    target = tiny()
    load_weights(target, state)
    assert target.a.weight.dtype == torch.float32


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_warned_about(value):
    state = tiny().state_dict()
    state["a.bias"][1] = value
    with pytest.warns(UserWarning, match=r"w must hold finite numbers, got NaN or infinity in 1 tensors \(a.bias\)"):
        load_weights(tiny(), state, source="w")


@pytest.mark.parametrize("old_format", [False, True])
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, np.bool_])
def test_numpy_numbers_beside_the_weights_are_ignored(tmp_path, kind, old_format):
    before = torch.serialization.get_safe_globals()
    content = {"state_dict": tiny().state_dict(), "acc": kind(1), "best": [{"loss": kind(0)}]}
    torch.save(content, tmp_path / "w.ckpt", _use_new_zipfile_serialization=not old_format)
    assert same(read_weights(tmp_path / "w.ckpt"), tiny().state_dict())
    assert set(torch.serialization.get_safe_globals()) == set(before)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda s: s.pop("a.bias"), r"w must hold the parameters of Sequential, got 1 missing \(a.bias\)"),
        (lambda s: s.update({"c": torch.zeros(1)}), r"got 1 unexpected \(c\)"),
        (
            lambda s: s.update({"a.bias": torch.zeros(4)}),
            r"1 of another shape \(a.bias: \[4\] instead of \[3\]\). Check the architecture",
        ),
        (
            lambda s: (s.pop("a.bias"), s.update({f"c{i}": torch.zeros(1) for i in range(40)})),
            r"1 missing \(a.bias\); 40 unexpected \(c0, c1, c2, c3, c4, c5, … and 34 more\)",
        ),
        (
            lambda s: s.update({"a.weight": torch.zeros(3, 2, dtype=torch.complex64)}),
            r"numbers where Sequential has them, got 1 of another kind \(a.weight: complex64 instead of float32\)",
        ),
        (lambda s: s.update({"a.bias": torch.zeros(3, dtype=torch.int8)}), r"\(a.bias: int8 instead of float32\)"),
        (lambda s: s.update({"a.weight": torch.zeros(3, 2).to_sparse()}), r"dense tensors, got sparse .*\(a.weight\)"),
    ],
)
def test_what_does_not_fit_is_listed_and_nothing_is_copied(change, match):
    state = {name: tensor + 1 for name, tensor in tiny().state_dict().items()}
    change(state)
    target = tiny()
    with pytest.raises(ValueError, match=match):
        load_weights(target, state, source="w")
    assert same(target.state_dict(), tiny().state_dict())


def test_a_file_that_is_not_there_or_of_another_kind(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"read_weights: path must be a file, got .*none.pt', which is not there"
    ):
        read_weights(tmp_path / "none.pt")
    with pytest.raises(ValueError, match=r"path must end in .safetensors, .pt, .pth, .th, .bin, .ckpt, got .*w.npz"):
        read_weights(tmp_path / "w.npz")
    for name in ("folder", "folder.pt"):
        (tmp_path / name).mkdir()
        with pytest.raises(
            IsADirectoryError, match=rf"path must be a file, got .*{name}', a folder. Name a file in it"
        ):
            read_weights(tmp_path / name)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match=r"list.pt must hold a state dict .*, got a list without any"):
        read_weights(tmp_path / "list.pt")
    torch.save({}, tmp_path / "empty.pt")
    with pytest.raises(ValueError, match=r"got a dict without any"):
        read_weights(tmp_path / "empty.pt")


# --- checkpoints ----------------------------------------------------------------------------------------------------


def test_a_checkpoint_brings_the_model_back(tmp_path):
    model = load_model("zoo:lenet?in_channels=1&size=28&classes=4&seed=7&mean=0.3&std=0.2")
    with torch.no_grad():
        model.network.classifier[2].bias.fill_(3)
    path = save_checkpoint(model, tmp_path / "deep" / "x.safetensors")
    again = load_model(str(path))
    images = torch.rand(2, 1, 28, 28)
    assert torch.equal(model(images), again(images))
    assert (again.lisse.mean, again.lisse.std, again.lisse.input_size) == ((0.3,), (0.2,), (1, 28, 28))
    assert again.lisse.spec == str(path)
    assert again.lisse.architecture == "zoo:lenet?in_channels=1&size=28&classes=4&seed=7"
    # Once more round, from the reloaded model, and as the weights of a spec: its statistics come along.
    third = load_model(str(save_checkpoint(again, tmp_path / "y.safetensors")))
    assert torch.equal(model(images), third(images))
    fourth = load_model(f"zoo:lenet?in_channels=1&size=28&classes=4&weights={path}")
    assert torch.equal(model(images), fourth(images))


@pytest.mark.parametrize(
    ("trained", "asked", "differs"),
    [
        (
            "attention_small?width=8&depth=1&residual=true",
            "attention_small?width=8&depth=1",
            "residual=true instead of",
        ),
        ("vit_small?width=12&depth=1&heads=3", "vit_small?width=12&depth=1&heads=2", "heads=3 instead of 2"),
        ("vit_small?width=12&depth=1&eps=0.1", "vit_small?width=12&depth=1", "eps=0.1 instead of 1e-06"),
        ("efficientnet_b0?stem_stride=2", "efficientnet_b0", "stem_stride=2 instead of 1"),
        ("efficientnet_b0?padding=same", "efficientnet_b0", "padding=same instead of symmetric"),
        ("vgg11?size=28", "vgg11", "size=28 instead of 32"),
        ("isometry?activation=relu", "isometry", "activation=relu instead of tanh"),
        ("isometry", "fc4?in_channels=1&size=28&width=100", "isometry instead of fc4"),
    ],
)
def test_a_checkpoint_is_not_taken_for_another_network_of_the_same_shapes(tmp_path, trained, asked, differs):
    path = save_checkpoint(load_model(f"zoo:{trained}"), tmp_path / "x.safetensors")
    with pytest.raises(
        ValueError, match=rf"weights must be of the network asked for, .*{re.escape(differs)}"
    ) as caught:
        load_model(f"zoo:{asked}{'&' if '?' in asked else '?'}weights={path}")
    line = str(caught.value).rpartition(", or ")[2]
    assert load_model(line).lisse.name == load_model(str(path)).lisse.name == trained.split("?")[0]


def test_options_of_the_training_do_not_make_another_network(tmp_path):
    path = save_checkpoint(load_model("zoo:efficientnet_b0?dropout=0.5&seed=3"), tmp_path / "x.safetensors")
    assert load_model(f"zoo:efficientnet_b0?drop_path=0&weights={path}").lisse.name == "efficientnet_b0"
    assert load_model(f"zoo:efficientnet_b0?size=64&weights={path}").lisse.input_size == (3, 64, 64)


def test_a_checkpoint_of_a_network_with_tied_weights(tmp_path):
    pytest.importorskip("transformers")
    model = load_model("zoo:bert?layers=1&width=8&heads=2&vocabulary=30&positions=16")
    path = save_checkpoint(model, tmp_path / "x.safetensors")
    ids = torch.randint(0, 30, (2, 5))
    again = load_model(str(path))
    assert torch.equal(model(input_ids=ids).logits, again(input_ids=ids).logits)
    assert len(read_weights(path)) < len(model.state_dict())


def test_a_checkpoint_of_an_own_module_needs_a_spec(tmp_path):
    with pytest.raises(ValueError, match=r"save_checkpoint: spec must say how to build the network, got none"):
        save_checkpoint(tiny(), tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match=r"path must end in .safetensors, got .*x.pt"):
        save_checkpoint(tiny(), tmp_path / "x.pt", spec="zoo:lenet")
    save_checkpoint(zoo.build("lenet", seed=5), tmp_path / "x.safetensors", spec="zoo:lenet?weights=old.pt&seed=5")
    assert read_declaration(tmp_path / "x.safetensors")["spec"] == "zoo:lenet?seed=5"
    with pytest.warns(UserWarning, match=r"does not say which normalisation it was trained with; imagenet is used"):
        assert load_model(str(tmp_path / "x.safetensors")).lisse.name == "lenet"


def test_a_checkpoint_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    path = save_checkpoint(load_model("zoo:lenet"), tmp_path / "x.safetensors")
    before = path.read_bytes()

    def broken(tensors, filename, metadata):
        with open(filename, "wb") as file:
            file.write(b"half of it")
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.torch.save_file", broken)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(load_model("zoo:lenet?seed=1"), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_has_the_mode_of_any_new_file(tmp_path, monkeypatch):
    def never(mask):
        raise AssertionError("the mask belongs to the whole process, other threads write files too")

    (tmp_path / "other").write_text("")
    monkeypatch.setattr(os, "umask", never)
    path = save_checkpoint(load_model("zoo:lenet"), tmp_path / "x.safetensors")
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


def written(path, said):
    text = said if isinstance(said, str) else json.dumps(said)
    save_file(zoo.build("lenet").state_dict(), path, metadata={"lisse": text})
    return str(path)


def test_a_checkpoint_cannot_choose_code_to_run(tmp_path):
    marker = tmp_path / "ran"
    spec = f"os:system?command=touch%20{marker}"
    path = written(tmp_path / "x.safetensors", {"format": 1, "spec": spec})
    with pytest.raises(ValueError, match=r"which a file is not trusted to start. If you trust it: os:system"):
        load_model(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ("{", r"its lisse header cannot be read"),
        ("[" * 100_000, r"its lisse header cannot be read"),
        ([1], r"not of a format that this version knows"),
        ({"format": 2, "spec": "zoo:lenet"}, r"not of a format that this version knows"),
        ({"format": 1, "spec": 3}, r"not of a format that this version knows"),
        ({"format": 1, "spec": "hf:somebody/something"}, r"not trusted to start"),
        ({"format": 1, "spec": "other.safetensors"}, r"not trusted to start"),
        ({"format": 1, "spec": "timm:hf_hub:a/b"}, r"not trusted to start"),
        (
            {"format": 1, "spec": "timm:resnet18?pretrained=false"},
            r"not trusted to start. If you trust it: timm:resnet18",
        ),
        ({"format": 1, "spec": "torchvision:resnet18"}, r"not trusted to start"),
        ({"format": 1, "spec": "hf:.?attention=evil/kernel"}, r"not trusted to start"),
        ({"format": 1, "spec": "zoo:lenet?weights=other.pt"}, r"must hold its own weights"),
        ({"format": 1, "spec": "zoo:nothing"}, r"must be a network of the zoo"),
        ({"format": 1, "spec": "zoo:alexnet"}, r"must hold the parameters of AlexNet, got .*unexpected"),
        ({"format": 1, "spec": "zoo:vit_large?width=65536&size=4096&depth=2"}, r"must hold the parameters of Vision"),
        (
            {"format": 1, "spec": "zoo:lenet", "kind": "image", "mean": ["a"], "std": [1]},
            r"one finite number per channel",
        ),
        (
            {"format": 1, "spec": "zoo:lenet", "kind": "image", "mean": {"a": 1}, "std": [1]},
            r"finite number per channel",
        ),
        (
            {"format": 1, "spec": "zoo:lenet", "kind": "image", "mean": [0, 0, 0], "std": [1, 1, 0]},
            r"std must be positive",
        ),
    ],
)
def test_a_checkpoint_that_says_nonsense_is_refused(tmp_path, said, match):
    with pytest.raises(ValueError, match=match):
        load_model(written(tmp_path / "x.safetensors", said))


def test_other_safetensors_are_no_checkpoint(tmp_path):
    save_file(tiny().state_dict(), tmp_path / "x.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"without its spec \(metadata: format\). Write zoo:NAME\?weights="):
        load_model(str(tmp_path / "x.safetensors"))
    with pytest.raises(FileNotFoundError, match=r"got 'nothing.safetensors', which is not there"):
        load_model("nothing.safetensors")
    with pytest.raises(ValueError, match=r"a checkpoint must be loaded as it is, got options"):
        load_model(f"{tmp_path}/x.safetensors?classes=3")


# --- hostile and damaged files --------------------------------------------------------------------------------------


def resident(line):
    """A line of the kernel's account of this process, in MB."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{line}:\s+(\d+) kB", text)[1]) / 1024


@contextmanager
def bounded_memory(megabytes):
    """The resident memory of the block must never grow by more (measured where the kernel lets us).

    Not less than 100: the C library may keep 64 MB that were freed before, and growth inside them does not show.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    except OSError:
        yield
        return
    before = resident("VmRSS")
    yield
    assert resident("VmHWM") - before < megabytes


def test_the_memory_of_a_block_is_really_measured():
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("no /proc/self/clear_refs here")
    with pytest.raises(AssertionError), bounded_memory(100):
        torch.ones(100_000_000)


class Call:
    """Unpickled by a careless reader, makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("suffix", [".pt", ".th"])
@pytest.mark.parametrize("way", ["zip", "old", "plain", "plain2", "deep"])
def test_a_pickle_that_wants_to_run_code_is_refused(tmp_path, suffix, way):
    marker, path = tmp_path / "ran", tmp_path / f"w{suffix}"
    content = {"state_dict": {"a": torch.zeros(1)}, "extra": [{"x": Call(marker)}] if way == "deep" else Call(marker)}
    if way.startswith("plain"):
        path.write_bytes(pickle.dumps({"a": Call(marker)}, protocol=2 if way == "plain2" else 4))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=way != "old")
    with pytest.raises(ValueError, match=r"could run any code; it was not (run|opened)") as caught:
        read_weights(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert not marker.exists()


def test_objects_of_other_programs_are_refused_by_name(tmp_path):
    torch.save({"state_dict": tiny().state_dict(), "args": argparse.Namespace(lr=1)}, tmp_path / "w.pt")
    with pytest.raises(ValueError, match=r"wants to call argparse.Namespace while loading"):
        read_weights(tmp_path / "w.pt")
    torch.save(tiny(), tmp_path / "whole.pt")
    with pytest.raises(ValueError, match=r"wants to call torch.nn.modules"):
        read_weights(tmp_path / "whole.pt")


def test_a_zip_bomb_is_refused_before_it_unpacks(tmp_path):
    with zipfile.ZipFile(tmp_path / "w.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w/data.pkl", b"\0" * 300_000_000)
        archive.writestr("w/version", b"3")
    assert (tmp_path / "w.pt").stat().st_size < 1_000_000
    with bounded_memory(100), pytest.raises(ValueError, match=r"must be stored uncompressed, as torch.save writes it"):
        read_weights(tmp_path / "w.pt")


def test_overlapping_entries_are_refused(tmp_path):
    """A bomb without compression: many names for the same bytes."""
    torch.save({"a": torch.zeros(100_000)}, tmp_path / "w.pt")
    data = (tmp_path / "w.pt").read_bytes()
    with zipfile.ZipFile(tmp_path / "w.pt") as archive:
        directory = archive.start_dir
    end = data.index(b"PK\5\6", directory)
    entries = data[directory : data.index(b"PK\6\6", directory)]  # torch ends its archives in zip64's way, too
    count = struct.unpack("<H", data[end + 10 : end + 12])[0]
    forged = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 20 * count, 20 * count, 20 * len(entries), directory, 0)
    (tmp_path / "w.pt").write_bytes(data[:directory] + 20 * entries + forged)
    with pytest.raises(ValueError, match=r"must be stored uncompressed"):
        read_weights(tmp_path / "w.pt")


@pytest.mark.parametrize("length", [2**63, 2**40, 10**8, 3, 0])
def test_a_safetensors_header_with_an_absurd_length_is_refused(tmp_path, length):
    (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", length) + b"{}" + b"\0" * 50)
    with pytest.raises(ValueError, match=r"w.safetensors must be a whole weights file, got a damaged one"):
        read_weights(tmp_path / "w.safetensors")


@pytest.mark.parametrize("shape", [[10**12], [2**32, 2**32], [-1], ["a"], "x"])
def test_a_safetensors_header_with_absurd_shapes_is_refused(tmp_path, shape):
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}).encode()
    (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    with pytest.raises(ValueError, match=r"got a damaged one"):
        read_weights(tmp_path / "w.safetensors")


def test_a_storage_of_absurd_size_allocates_nothing(tmp_path):
    """The pickle inside says 2^40 numbers, the file holds four."""
    torch.save({"a": torch.zeros(4)}, tmp_path / "w.pt")
    with zipfile.ZipFile(tmp_path / "w.pt") as archive:
        parts = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    name = next(part for part in parts if part.endswith("data.pkl"))
    # BININT1 4 (the storage's length) becomes LONG1 2^40.
    assert parts[name].count(b"K\x04t") == 1
    parts[name] = parts[name].replace(b"K\x04t", b"\x8a\x06" + (2**40).to_bytes(6, "little") + b"t")
    with zipfile.ZipFile(tmp_path / "w.pt", "w") as archive:
        for part, content in parts.items():
            archive.writestr(part, content)
    with bounded_memory(100), pytest.raises(ValueError, match=r"got a damaged one"):
        read_weights(tmp_path / "w.pt")


def whole_files(folder):
    state = {"state_dict": {f"module.{name}": tensor for name, tensor in tiny().state_dict().items()}}
    torch.save(state, folder / "new.pt")
    torch.save(state, folder / "old.th", _use_new_zipfile_serialization=False)
    save_file(tiny().state_dict(), folder / "w.safetensors", metadata={"lisse": "{}"})
    return {path.suffix: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return whole_files(tmp_path_factory.mktemp("whole"))


def clear_or_right(path, data):
    """Reading gives tensors, or a ValueError of one line that names the file. Nothing else may happen."""
    path.write_bytes(data)
    try:
        tensors = read_weights(path)
    except ValueError as error:
        message = str(error)
    else:
        message = str(path)
        assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())
    assert str(path) in message
    assert "\n" not in message


@pytest.mark.parametrize("suffix", [".pt", ".th", ".safetensors"])
def test_every_truncation_gives_a_clear_error(tmp_path, whole, suffix):
    data = whole[suffix]
    for length in sorted({*range(0, 64), *range(64, len(data), max(1, len(data) // 80))}):
        path = tmp_path / f"cut{suffix}"
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match=f"cut{suffix}"):
            read_weights(path)


FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@FUZZ
@given(suffix=st.sampled_from([".pt", ".th", ".safetensors"]), data=st.binary(max_size=400))
@example(suffix=".pt", data=b"")
@example(suffix=".pt", data=b"\x80\x02.")
@example(suffix=".th", data=b"\x80\x02}q\x00.")
@example(suffix=".pt", data=b"PK\x03\x04")
@example(suffix=".safetensors", data=b"\x02" + b"\0" * 7 + b"{}")
@example(suffix=".safetensors", data=b"\x02" + b"\0" * 7 + b"[]")
def test_random_bytes_give_a_clear_error(tmp_path, suffix, data):
    clear_or_right(tmp_path / f"random{suffix}", data)


@FUZZ
@given(suffix=st.sampled_from([".pt", ".th", ".safetensors"]), place=st.floats(0, 1), byte=st.integers(1, 255))
def test_a_changed_byte_gives_tensors_or_a_clear_error(tmp_path, whole, suffix, place, byte):
    data = bytearray(whole[suffix])
    data[int(place * (len(data) - 1))] ^= byte
    clear_or_right(tmp_path / f"changed{suffix}", bytes(data))


def test_the_fuzzed_files_are_whole_to_begin_with(tmp_path):
    assert whole_files(tmp_path)
    for path in tmp_path.iterdir():
        assert read_weights(path)
