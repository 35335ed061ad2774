"""Activations that something else recorded: a folder of shards is a Recording that instruments read."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

import lisse
from lisse.cli import cli
from lisse.instruments import ALL, Isometry, Sensitivity, Topology
from lisse.networks import zoo
from lisse.networks.recorded import Recorded
from lisse.recording import recorded

N, SHARDS = 60, (25, 25, 10)


@pytest.fixture(scope="module")
def truth():
    """A network, its data, and what lisse itself records of it."""
    model = zoo.build("fc4", seed=0, features=12, classes=3, width=16).eval()
    x, y = torch.randn(N, 12, generator=torch.Generator().manual_seed(0)), torch.arange(N) % 3
    recording = lisse.record(model, x)
    return model, x, y, {name: recording[name].clone() for name in recording}


def written(folder, layers, form="safetensors", *, alone=False, labels=None):
    """Layers in shards, all of one shard in a file, or each array in a file of its own."""
    folder.mkdir(exist_ok=True)
    for index, rows in enumerate(torch.arange(N).split(SHARDS)):
        arrays = {name: values[rows].contiguous() for name, values in layers.items()}
        arrays |= {} if labels is None else {"labels": labels[rows]}
        for name, part in {key: {key: value} for key, value in arrays.items()}.items() if alone else [("", arrays)]:
            file = folder / f"{name or 'shard'}-{index:05d}.{form}"
            if form == "safetensors":
                save_file(part, file)
            elif alone:
                np.savez(file, part[name].numpy())
            else:
                np.savez(file, **{key: value.numpy() for key, value in part.items()})
    return folder


@pytest.mark.parametrize("form", ["safetensors", "npz"])
@pytest.mark.parametrize("alone", [False, True])
def test_a_folder_is_the_recording_that_was_written(tmp_path, truth, form, alone):
    _, _, y, layers = truth
    folder = written(tmp_path / "a", layers, form, alone=alone, labels=y)
    (folder / "layers.json").write_text(json.dumps(list(layers)))
    recording = recorded(folder)
    assert list(recording) == list(layers)
    assert recording.samples == N
    assert torch.equal(recording.targets, y)
    for name, values in layers.items():
        assert torch.equal(recording[name], values)


def test_half_precision_and_names_inside_names(tmp_path):
    layers = {f"model.layers.{k}{end}": torch.randn(N, 3, 4).bfloat16() for k in (10, 2) for end in ("", ".mlp")}
    recording = recorded(written(tmp_path / "a", {**layers, "inputs": torch.randn(N, 5)}), memory="1KiB")
    order = ["inputs", "model.layers.2", "model.layers.2.mlp", "model.layers.10", "model.layers.10.mlp"]
    assert list(recording) == order
    for name, values in layers.items():
        assert recording[name].dtype == torch.bfloat16
        assert torch.equal(recording[name], values)


def test_samples_come_in_any_order(tmp_path):
    values = torch.randn(N, 2)
    player = Recorded(written(tmp_path / "a", {"x": values}))
    rows = torch.tensor([30, 3, 4, 5, 24, 25, 59, 0])
    assert torch.equal(player(rows[:, None, None]), values[rows])


def rows_of(profile, *quantities):
    rows = {}
    for row in profile.rows:
        if row.quantity in quantities or not quantities:
            rows[row.quantity, row.layer, repr(sorted(dict(row.at).items()))] = row.value
    return rows


def test_what_needs_activations_alone_gives_the_same_numbers(tmp_path, truth):
    model, x, y, layers = truth
    written(tmp_path / "a", {**layers, "inputs": layers["input"]} if "inputs" not in layers else layers, labels=y)
    order = [name for name in layers if name != "input"]
    (tmp_path / "a" / "layers.json").write_text(json.dumps(["inputs", *order]))
    player = lisse.load_model(f"recorded:{tmp_path / 'a'}")
    for instrument in (Topology(samples=10, clouds=5), Isometry(samples=20, clouds=2), Sensitivity(samples=N)):
        own = rows_of(lisse.measure(model, (x, y), instrument))
        other = rows_of(lisse.measure(player, player.lisse.data, instrument))
        common = own.keys() & other.keys()
        assert {name for name, _, _ in common} >= {
            "topology": {"change_rate", "distance"} & {name for name, _, _ in own},
            "isometry": {"distance_error", "distance_correlation", "scale_free_distortion"} & {n for n, _, _ in own},
            "sensitivity": {"norm", "effective_rank"},
        }[instrument.name]
        assert len({layer for _, layer, _ in common}) >= len(order)
        for key in common:
            if key[0] not in ("margin_distance",):
                assert other[key] == pytest.approx(own[key], rel=1e-5, nan_ok=True), key


def test_every_instrument_measures_it_or_says_why_not(tmp_path, truth):
    _, _, y, layers = truth
    player = lisse.load_model(f"recorded:{written(tmp_path / 'a', layers, labels=y)}")
    profile = lisse.measure(player, player.lisse.data, [kind() for kind in ALL])
    assert all(part.rows or part.notes for part in profile.parts)
    assert {part.instrument for part in profile.parts if part.rows} >= {"topology", "isometry", "sensitivity"}
    reasons = {part.instrument: " ".join(part.notes) for part in profile.parts if not part.rows}
    for name in ("stability", "lipschitz", "robustness"):
        assert "there are recorded activations alone" in reasons[name]


def test_from_the_command_line(tmp_path, truth):
    _, _, y, layers = truth
    folder, out = written(tmp_path / "a", layers, "npz", labels=y), tmp_path / "a.profile"
    result = CliRunner().invoke(
        cli, ["measure", "topology", f"recorded:{folder}", "--samples", "10", "--out", str(out), "--no-cache"]
    )
    assert result.exit_code == 0, result.output
    assert {row.layer for row in lisse.Profile.load(out).rows} >= set(layers) - {"input"}


def test_another_folder_is_another_network(tmp_path):
    for k in range(2):
        written(tmp_path / str(k), {"x": torch.randn(N, 2)})
    first, second = (Recorded(tmp_path / str(k)).identity.tolist() for k in range(2))
    assert first != second


def test_bad_folders_are_named(tmp_path, truth):
    layers = {"a": torch.randn(N, 4), "b": torch.randn(N, 5)}
    with pytest.raises(ValueError, match="must be a folder of recorded layers"):
        Recorded(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"must hold .safetensors or .npz files, got neither"):
        Recorded(tmp_path / "empty")
    folder = written(tmp_path / "short", layers, alone=True)
    (folder / "b-00001.safetensors").unlink()
    with pytest.raises(ValueError, match=r"same samples, got 35 in 2 shards of b and 60 in 3 of the others"):
        Recorded(folder)
    folder = written(tmp_path / "other", layers)
    save_file({"a": torch.zeros(3, 5), "b": torch.zeros(3, 5)}, folder / "shard-00009.safetensors")
    with pytest.raises(ValueError, match=r"shard of a must have one shape .* got \[5\] .* in shard-00009.* \[4\]"):
        Recorded(folder)
    folder = written(tmp_path / "absent", layers)
    (folder / "layers.json").write_text('["a", "c"]')
    with pytest.raises(ValueError, match=r"must hold the layers of its layers.json, got none of c. It has a, b"):
        Recorded(folder)
    folder = tmp_path / "packed"
    folder.mkdir()
    np.savez_compressed(folder / "x.npz", a=np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"'a' is compressed and cannot be mapped; use numpy.savez"):
        Recorded(folder)
    np.savez(folder / "x.npz", a=np.array([object()]))
    with pytest.raises(ValueError, match=r"asks for .*'\|O'.*, which is not allowed"):
        Recorded(folder)
    (folder / "x.npz").write_bytes(b"PK nothing")
    with pytest.raises(ValueError, match="must be a whole file of arrays"):
        Recorded(folder)
    values = torch.randn(N, 4)
    values[33, 2] = float("nan")
    with pytest.raises(ValueError, match=r"must be finite, got nan at layer b, sample 33"):
        recorded(written(tmp_path / "nan", {"a": torch.randn(N, 4), "b": values})).samples  # noqa: B018
    with pytest.raises(ValueError, match="a recorded folder must be loaded as it is"):
        lisse.load_model(f"recorded:{tmp_path / 'nan'}?size=3")


@pytest.mark.parametrize("damage", [b"}(", b"[[", b"-6", b"99", b"\xff\xff", b"L,"])
def test_a_damaged_header_names_the_file(tmp_path, damage):
    np.savez(tmp_path / "x.npz", a=np.zeros((6, 4)))
    content = (tmp_path / "x.npz").read_bytes()
    at = content.index(b"(6, 4)")
    for place in (at, at + 1, content.index(b", }")):
        (tmp_path / "x.npz").write_bytes(content[:place] + damage + content[place + len(damage) :])
        with pytest.raises(ValueError, match=r"Recorded: .*x\.npz must be a whole file of arrays, stored as they are"):
            Recorded(tmp_path)


def test_one_layer_that_misses_a_file_says_which(tmp_path):
    folder = written(tmp_path / "a", {"a": torch.randn(N, 4), "b": torch.randn(N, 5), "c": torch.randn(N, 5)})
    save_file({"a": torch.randn(25, 4), "c": torch.randn(25, 5)}, folder / "shard-00001.safetensors")
    with pytest.raises(ValueError, match=r"got 35 in 2 shards of b and 60 in 3 of the others. Not in shard-00001"):
        Recorded(folder)
