"""A run that is stopped loses nothing: killed for real at random moments, in half-written files, on a full disk."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
from small_trainings import RECIPE, convolutional, images, network, points, same
from torch import nn

import lisse
from lisse.data import Dataset
from lisse.training import Penalty, Recipe, Training
from lisse.training import folder as folders
from lisse.training.folder import Folder

ADAM = Recipe(optimizer="adam", lr=0.01, batch=7, epochs=4, schedule="onecycle", crop=1, flip=True)
OPTIONS = {"recipe": ADAM, "checkpoint_seconds": 0.0}


class Noisy(nn.Module):
    """Dropout, batch norm: everything that remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = convolutional()
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self.drop(x))


def run(out: Path | None, model: nn.Module | None = None, **options) -> Training:
    return lisse.train(model or Noisy(), images(), test=images(20), out=out, **{**OPTIONS, **options})


class Stop(Exception):
    pass


def stopping(at: int):
    def stop(moment):
        if moment.when == "step" and moment.step == at:
            raise Stop

    return stop


@pytest.fixture(scope="module")
def whole() -> Training:
    return run(None)


def rows(found: Training) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in found.log]


@pytest.mark.parametrize(
    ("at", "seconds"), [(1, 0.0), (5, 0.0), (6, 0.0), (7, 0.0), (24, 0.0), (2, 1e9), (6, 1e9), (13, 1e9), (24, 1e9)]
)
def test_stopped_after_any_step_it_ends_with_the_same_weights_and_log(tmp_path, whole, at, seconds):
    with pytest.raises(Stop):
        run(tmp_path, checkpoint_seconds=seconds, callbacks=[stopping(at)])
    found = run(tmp_path, checkpoint_seconds=seconds)
    assert found.resumed <= at - 1
    assert seconds or found.resumed == at - 1
    assert same(found.model, whole.model)
    assert rows(found) == rows(whole)
    assert found.test == whole.test
    written = [line.split(",")[1] for line in (tmp_path / "log.csv").read_text().splitlines()]
    assert written == ["step", "6", "12", "18", "24"]


@pytest.mark.parametrize(
    "changes",
    [{"optimizer": "sgd", "nesterov": True}, {"optimizer": "adamw", "weight_decay": 0.1}, {"batch": None}],
    ids=str,
)
def test_every_optimiser_resumes(tmp_path, changes):
    recipe = dataclasses.replace(ADAM, **changes)
    with pytest.raises(Stop):
        run(tmp_path, recipe=recipe, callbacks=[stopping(3)])
    assert same(run(tmp_path, recipe=recipe).model, run(None, recipe=recipe).model)


def test_a_scaler_is_part_of_the_state(tmp_path):
    with pytest.raises(Stop):
        run(tmp_path, precision="bf16-mixed", callbacks=[stopping(9)])
    assert same(run(tmp_path, precision="bf16-mixed").model, run(None, precision="bf16-mixed").model)


def test_a_moment_is_never_lost_and_those_after_the_checkpoint_come_again(tmp_path):
    told: list[tuple[str, int]] = []

    def keep(moment):
        told.append((moment.when, moment.step))
        if told.count(("epoch", 12)) == 1 and told[-1] == ("epoch", 12):
            raise Stop

    with pytest.raises(Stop):
        run(tmp_path, callbacks=[keep])
    again = len(told)
    run(tmp_path, callbacks=[keep])
    assert told[again:][:3] == [("start", 11), ("step", 12), ("epoch", 12)]
    assert {("epoch", step) for step in (6, 12, 18, 24)} <= set(told)
    assert told[-1] == ("end", 24)


def test_only_two_checkpoints_are_kept_and_the_weights_at_the_end(tmp_path):
    model = lisse.load_model("zoo:fc2?in_channels=1&size=8&mean=none")
    data = Dataset("d", torch.rand(40, 1, 8, 8), torch.arange(40) % 10)
    found = lisse.train(model, data, recipe=RECIPE, out=tmp_path, checkpoint_seconds=0)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-000000000008.safetensors", "step-000000000009.safetensors"]
    assert {path.name for path in tmp_path.iterdir()} == {
        ".lock", "checkpoints", "config.json", "log.csv", "model.safetensors", "result.json",
    }  # fmt: skip
    assert found.checkpoint == tmp_path / "model.safetensors"
    assert same(lisse.load_model(str(found.checkpoint)), model)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert (tmp_path / "checkpoints" / names[0]).stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# --- killed ----------------------------------------------------------------------------------------------------------

FORK = multiprocessing.get_context("fork")


def killed(out: Path, after: float, **options) -> bool:
    """Start the run in a process of its own and kill it after a while; whether it was still running."""
    process = FORK.Process(target=run, args=(out,), kwargs=options, daemon=True)
    process.start()
    process.join(after)
    alive = process.is_alive()
    process.kill()  # SIGKILL; nothing if it has ended
    process.join()
    return alive


def killed_beyond(out: Path, step: int, after: float, **options) -> bool:
    """Kill the run a moment after its checkpoint of ``step``; it waits 25 steps on, however late the kill comes."""

    def wait(moment) -> None:
        if moment.when == "step" and moment.step >= step + 25:
            time.sleep(3600)

    process = FORK.Process(target=run, args=(out,), kwargs={**options, "callbacks": [wait]}, daemon=True)
    process.start()
    while process.is_alive() and not any(int(path.stem[5:]) >= step for path in out.glob("checkpoints/step-*")):
        time.sleep(0.001)
    process.join(after)
    alive = process.is_alive()
    process.kill()  # SIGKILL
    process.join()
    return alive


def test_killed_at_random_moments_it_ends_with_the_same_weights(tmp_path):
    options = {"epochs": 20}  # 120 steps
    expected = run(tmp_path / "whole", **options)
    dice = random.Random(0)
    steps = [0, *sorted(dice.sample(range(1, 90), 5))]
    alive = [killed_beyond(tmp_path / "killed", step, dice.uniform(0, 0.03), **options) for step in steps]
    assert all(alive)
    found = run(tmp_path / "killed", **options)
    assert found.resumed >= steps[-1] - 1
    assert same(found.model, expected.model)
    assert rows(found) == rows(expected)
    assert not list((tmp_path / "killed").rglob(".*.tmp"))


@pytest.mark.parametrize("place", ["half of it written", "written, not yet moved", "moved", "old ones not yet removed"])
def test_killed_while_a_checkpoint_is_written(tmp_path, whole, monkeypatch, place):
    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    save, replace, unlink = safetensors.torch.save_file, os.replace, Path.unlink
    count = [0]

    def half(tensors, path, metadata):
        save(tensors, path, metadata=metadata)
        count[0] += 1
        if count[0] == 9:
            with open(path, "rb+") as file:
                file.truncate(Path(path).stat().st_size // 2)
            die()

    def before(a, b):
        count[0] += "checkpoints" in str(b)
        if count[0] == 9:
            die()
        replace(a, b)

    def after(a, b):
        replace(a, b)
        count[0] += "checkpoints" in str(b)
        if count[0] == 9:
            die()

    def removing(path, **options):
        count[0] += path.suffix == ".safetensors"
        if count[0] == 9:
            die()
        unlink(path, **options)

    with monkeypatch.context() as patch:
        if place == "half of it written":
            patch.setattr(safetensors.torch, "save_file", half)
        elif place == "old ones not yet removed":
            patch.setattr(Path, "unlink", removing)
        else:
            patch.setattr(os, "replace", before if place.startswith("written") else after)
        assert not killed(tmp_path, 600)
        assert not (tmp_path / "result.json").exists()
    found = run(tmp_path)
    assert 0 < found.resumed < 24
    assert same(found.model, whole.model)
    assert rows(found) == rows(whole)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(tmp_path, whole):
    with pytest.raises(Stop):
        run(tmp_path, callbacks=[stopping(10)])
    newest = max((tmp_path / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-50])
    said = []
    found = run(tmp_path, progress=said.append)
    assert found.resumed == 8
    assert any(newest.name in event.say and event.level == "warning" for event in said)
    assert same(found.model, whole.model)


def test_a_damaged_checkpoint_does_not_stay_in_the_place_of_a_good_one(tmp_path):
    with pytest.raises(Stop):
        run(tmp_path, callbacks=[stopping(10)])
    damaged = tmp_path / "checkpoints" / "step-000000000020.safetensors"
    damaged.write_bytes(b"")
    with pytest.raises(Stop):
        run(tmp_path, callbacks=[stopping(12)])
    assert [path.stem for path in sorted(damaged.parent.iterdir())] == ["step-000000000010", "step-000000000011"]


def test_what_a_killed_process_half_wrote_is_removed_by_the_one_that_holds_the_folder(tmp_path):
    folder = Folder(tmp_path)
    folder.checkpoints.mkdir()
    left = [tmp_path / f".{name}.0123abcd.tmp" for name in ("config.json", "log.csv", "result.json")]
    left += [tmp_path / ".model.safetensors.01234567.tmp"]
    left += [folder.checkpoints / ".step-000000000003.safetensors.0123abcd.tmp"]
    others = [tmp_path / ".mine.tmp", tmp_path / ".log.csv.tmp"]
    for path in (*left, *others):
        path.write_text("half")
    # A second process of the same run reads while the first one may be writing.
    assert folder.latest() is None
    assert all(path.exists() for path in left)
    with folder.lock():
        assert not any(path.exists() for path in left)
        assert all(path.exists() for path in others)


# --- the same folder again -------------------------------------------------------------------------------------------


def test_a_finished_run_says_so_and_returns_at_once(tmp_path, whole):
    first = run(tmp_path)
    calls, said = [], []
    fresh = Noisy()
    again = run(tmp_path, model=fresh, callbacks=[calls.append], progress=said.append)
    assert not calls
    assert "is finished" in said[-1].say
    assert same(fresh, whole.model)
    assert (again.status, again.step, again.test, again.seconds) == ("finished", 24, first.test, first.seconds)
    assert [dict(row) for row in again.log] == [dict(row) for row in first.log]
    assert run(tmp_path, model=fresh).status == "finished"  # the trained model handed in again


def _gone(path: Path) -> None:
    path.unlink()


def _short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 4  # a bit of a weight, or of a number
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [_gone, _short, _flipped])
@pytest.mark.parametrize("name", ["model.safetensors", "result.json", "log.csv"])
def test_a_finished_run_vouches_for_its_files_or_makes_them_again(tmp_path, whole, name, damage):
    """Every file is read before it is said to be there: what is damaged is made again, of the last checkpoint."""
    run(tmp_path)
    before = (tmp_path / name).read_bytes()
    damage(tmp_path / name)
    again = run(tmp_path)
    assert again.status == "finished"
    assert same(again.model, whole.model)
    if name == "model.safetensors":
        assert (tmp_path / name).read_bytes() == before
        weights = Noisy()
        Folder(tmp_path).load_model(weights, tmp_path / name)
        assert same(weights, whole.model)
    assert Folder(tmp_path).ended() is not None
    assert again.test == whole.test


def test_a_finished_run_without_its_weights_or_a_checkpoint_is_an_error(tmp_path):
    run(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(
        ValueError, match=r"model\.safetensors or log\.csv is missing or damaged, and no checkpoint is left"
    ):
        run(tmp_path)


def test_a_finished_run_vouches_for_what_its_weights_say_of_themselves(tmp_path):
    def trained():
        model = lisse.load_model("zoo:fc2?in_channels=1&size=8&width=3&mean=0.5&std=0.25")
        lisse.train(model, lisse.load_data("digits", limit=20), recipe=Recipe(epochs=1, batch=10), seed=0, out=tmp_path)

    trained()
    path = tmp_path / "model.safetensors"
    before = path.read_bytes()
    path.write_bytes(before.replace(b"0.25", b"0.35"))
    assert path.read_bytes() != before
    trained()
    assert path.read_bytes() == before


def test_one_flipped_bit_of_a_checkpoint_is_seen(tmp_path, whole):
    with pytest.raises(Stop):
        run(tmp_path, callbacks=[stopping(10)])
    newest = max((tmp_path / "checkpoints").iterdir())
    content = newest.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    rng = random.Random(0)
    for position in (*rng.sample(range(8, header), 20), *rng.sample(range(header, len(content)), 20)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << rng.randrange(8)
        newest.write_bytes(damaged)
        with pytest.raises(ValueError, match="must be a checkpoint"):
            folders.read_checkpoint(newest)
    assert run(tmp_path).resumed == 8


@pytest.mark.parametrize("text", ["[]", "{}", "{", '{"model": 3}', "[" * 100_000])
def test_a_damaged_config_is_named(tmp_path, text):
    run(tmp_path, epochs=1)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"train: .*(damaged file|same run)"):
        run(tmp_path, epochs=1)


def test_a_spec_model_handed_in_again_is_known(tmp_path):
    model = lisse.load_model("zoo:fc2?in_channels=1&size=8&mean=none")
    data = Dataset("d", torch.rand(40, 1, 8, 8), torch.arange(40) % 10)
    for _ in range(2):
        assert lisse.train(model, data, recipe=RECIPE, out=tmp_path).status == "finished"


def test_a_spec_model_that_was_stopped_half_way_is_to_be_loaded_anew(tmp_path):
    model = lisse.load_model("zoo:fc2?in_channels=1&size=8&mean=none")
    data = Dataset("d", torch.rand(40, 1, 8, 8), torch.arange(40) % 10)
    with pytest.raises(Stop):
        lisse.train(model, data, recipe=RECIPE, out=tmp_path, checkpoint_seconds=0, callbacks=[stopping(4)])
    with pytest.raises(ValueError, match=r"model weights = .* Load the model anew"):
        lisse.train(model, data, recipe=RECIPE, out=tmp_path)
    anew = lisse.load_model("zoo:fc2?in_channels=1&size=8&mean=none")
    assert lisse.train(anew, data, recipe=RECIPE, out=tmp_path).resumed == 3


CHANGED = {
    "recipe": ({"recipe": dataclasses.replace(RECIPE, lr=0.2)}, "recipe lr = 0.1 instead of 0.2"),
    "epochs": ({"epochs": 4}, "recipe epochs = 3 instead of 4"),
    "seed": ({"seed": 3}, "seed = 0 instead of 3"),
    "data": ({"data": points(seed=1)}, "data fingerprint = "),
    "test": ({"test": points()}, "test = null instead of"),
    "model": ({"model": nn.Sequential(nn.Linear(4, 3))}, "model parameters = "),
    "loss": ({"loss": nn.functional.multi_margin_loss}, "loss = cross_entropy instead of"),
    "penalties": ({"penalties": [Penalty(lambda a, b: a["0"].mean(), 1.0, "0", name="mean")]}, "penalties mean = "),
    "precision": ({"precision": "bf16-mixed"}, "precision = 32-true instead of bf16-mixed"),
    "head": ({"head": "3"}, "head = null instead of 3"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    lisse.train(network(), points(), recipe=RECIPE, out=folder)
    return folder


@pytest.mark.parametrize("what", CHANGED)
def test_another_run_in_the_same_folder_is_refused_and_the_difference_named(finished, what):
    changes, said = CHANGED[what]
    options = {"model": network(), "data": points(), "recipe": RECIPE, **changes}
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*.*") if path.name != ".lock"}
    with pytest.raises(ValueError, match="that of the same run") as caught:
        lisse.train(options.pop("model"), options.pop("data"), out=finished, **options)
    assert said in str(caught.value)
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_another_seed_of_a_spec_is_another_run(tmp_path):
    data = Dataset("d", torch.rand(40, 1, 8, 8), torch.arange(40) % 10)
    spec = "zoo:fc2?in_channels=1&size=8&mean=none"
    lisse.train(lisse.load_model(spec), data, recipe=RECIPE, out=tmp_path)
    with pytest.raises(ValueError, match=r"model architecture = .* instead of .*seed=1"):
        lisse.train(lisse.load_model(spec + "&seed=1"), data, recipe=RECIPE, out=tmp_path)
    with pytest.raises(ValueError, match="model mean = "):
        lisse.train(lisse.load_model(spec.replace("none", "mnist")), data, recipe=RECIPE, out=tmp_path)


def test_files_that_are_not_of_a_run_are_left_alone(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=r"holds model\.safetensors but no config\.json"):
        run(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == b"mine"


def test_two_processes_cannot_write_one_folder(tmp_path):
    def meanwhile(moment):
        if moment.when == "step" and moment.step == 2:
            with pytest.raises(RuntimeError, match="where another training is writing"):
                run(tmp_path)
            raise Stop

    with pytest.raises(Stop):
        run(tmp_path, callbacks=[meanwhile])
    assert run(tmp_path).status == "finished"


# --- a full disk -----------------------------------------------------------------------------------------------------


def test_on_a_full_disk_the_last_good_checkpoint_survives(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True).returncode
    ):
        pytest.skip("needs the right to mount a small file system")
    try:
        filler = disk / "filler"

        def fill(moment):
            if moment.when == "step" and moment.step == 3:
                filler.write_bytes(bytes(disk_free(disk) - 100_000))

        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(72, 512), nn.ReLU(), nn.Linear(512, 3))
        start = {name: value.clone() for name, value in model.state_dict().items()}
        recipe = dataclasses.replace(ADAM, crop=0, flip=False)
        options = {"recipe": recipe, "out": disk / "run", "checkpoint_seconds": 0.0}
        with pytest.raises(OSError, match=r"the disk is full.*step-000000000002\.safetensors, is safe"):
            lisse.train(model, images(), **options, callbacks=[fill])
        filler.unlink()
        found = lisse.train(model, images(), **options)
        assert found.resumed == 2
        model.load_state_dict(start)
        assert same(found.model, lisse.train(model, images(), recipe=recipe).model)
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def disk_free(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def test_a_file_that_may_not_grow_is_a_clear_error_and_nothing_is_lost(tmp_path, whole):
    def limited(answer) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        def shrink(moment):
            if moment.when == "step" and moment.step == 4:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

        try:
            run(tmp_path, callbacks=[shrink])
        except OSError as error:
            answer.send(str(error))
        else:
            answer.send("no error")

    heard, answer = FORK.Pipe(duplex=False)
    process = FORK.Process(target=limited, args=(answer,))
    process.start()
    answer.close()
    said = heard.recv()  # a process that dies without a word is an EOFError
    process.join()
    assert "out must have room for a checkpoint" in said
    assert "step-000000000003.safetensors, is safe" in said
    found = run(tmp_path)
    assert found.resumed == 3
    assert same(found.model, whole.model)


# --- the files -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_safetensors_with_json_and_no_pickle(tmp_path):
    run(tmp_path)
    path = max((tmp_path / "checkpoints").iterdir())
    tensors, document = folders.read_checkpoint(path)
    assert document["step"] == 24
    assert {name.partition("/")[0] for name in tensors} == {"model", "optimizer", "log"}
    assert b"pickle" not in path.read_bytes()
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["recipe"]["lr"] == 0.01
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "finished"


def test_tied_weights_are_written_once_and_come_back(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.a.weight
            self.out = nn.Linear(4, 3)

        def forward(self, x):
            return self.out(self.b(torch.tanh(self.a(x))))

    torch.manual_seed(0)
    model = Tied()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(Stop):
        lisse.train(model, points(), recipe=RECIPE, out=tmp_path, callbacks=[stopping(5)], checkpoint_seconds=0)
    found = lisse.train(Tied(), points(), recipe=RECIPE, out=tmp_path).model
    model.load_state_dict(start)
    assert same(found, lisse.train(model, points(), recipe=RECIPE).model)


def test_tensorboard_has_the_log(tmp_path):
    pytest.importorskip("tensorboard")
    found = run(tmp_path, tensorboard=True, epochs=2)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("test_accuracy")] == [6, 12]
    assert events.Scalars("loss")[-1].value == pytest.approx(found.log[-1]["loss"], rel=1e-6)


def test_without_tensorboard_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"lisse\[tensorboard\]"):
        run(tmp_path, tensorboard=True)
