"""Measuring while training: when, what is kept, and that the training does not notice."""

from __future__ import annotations

import copy
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lisse
from lisse.instruments import Sensitivity
from lisse.profile import Part, Profile, Quantity, Row
from lisse.run import Instrument, Run, Watch, load_profiles
from lisse.run.untouched import unwrapped

G = torch.Generator().manual_seed(1)
X, Y = torch.rand(48, 6, generator=G), torch.randint(3, (48,), generator=G)
SEEN = torch.rand(20, 6, generator=G)
MEASURED: list[int] = []


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.3), nn.Linear(5, 3))


@dataclass(frozen=True)
class Mean(Instrument):
    scale: float = 1.0
    QUANTITIES: ClassVar = (Quantity("mean", "mean", "The mean."), Quantity("all", "all", "The mean of all."))

    def part(self, run: Run) -> Part:
        MEASURED.append(len(MEASURED))
        means = {tap: self.scale * float(run.recording()[tap.name].mean()) for tap in run.taps}
        rows = [Row("mean", mean, "exact", len(run), tap.name, tap.depth, at={"p": 1}) for tap, mean in means.items()]
        return Part(self.name, [*rows, Row("all", sum(means.values()), "exact", len(run))], self.QUANTITIES)


@dataclass(frozen=True)
class Rude(Instrument):
    """Leaves gradients, random states, modes, buffers and switches behind."""

    QUANTITIES: ClassVar = (Quantity("none", "none", "Nothing."),)

    def part(self, run: Run) -> Part:
        model = run.model
        model.train()
        with torch.enable_grad():
            model(run.data.inputs).sum().backward()
        for weight in model.parameters():
            weight.requires_grad_(False)
        torch.manual_seed(99), np.random.seed(99), random.seed(99)  # noqa: NPY002
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean += 1
        return Part(self.name, (), self.QUANTITIES)


@dataclass(frozen=True)
class Fails(Instrument):
    def part(self, run: Run) -> Part:
        raise ArithmeticError("half-way")


@dataclass
class At:
    model: nn.Module
    when: str
    step: int
    epoch: float
    steps: int = 0
    epochs: int = 0
    out: Path | None = None
    log: dict[str, float] = field(default_factory=dict)


def train(
    model: nn.Module, *callbacks: Callable[[Any], object], epochs: int = 2, out: Path | None = None, lr: float = 0.1,
    state: Any = None, stop: int | None = None, wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> Any:  # fmt: skip
    """Four steps an epoch; ``stop`` ends it like a kill and gives a state to go on from."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    step, per = 0, 4
    torch.manual_seed(7)
    if state is not None:
        model.load_state_dict(state[0]), optimiser.load_state_dict(state[1]), torch.set_rng_state(state[2])
        step = state[3]
    model.train()

    def tell(when: str) -> None:
        for callback in callbacks:
            callback(At(wrap(model), when, step, step / per, per * epochs, epochs, out, {"loss": 1.5}))

    tell("start")
    while step < per * epochs:
        batch = torch.randint(48, (12,))
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(X[batch]), Y[batch]).backward()
        optimiser.step()
        step += 1
        tell("step")
        if step % per == 0:
            tell("epoch")
        if step == stop:
            return copy.deepcopy((model.state_dict(), optimiser.state_dict(), torch.get_rng_state(), step))
    tell("end")
    return None


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([value.double().flatten() for value in model.state_dict().values()])


@pytest.fixture(autouse=True)
def _count() -> None:
    MEASURED.clear()


# -- when ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [0, 4, 8, 12]),
        ({"every": 2}, [0, 8, 12]),
        ({"every": None}, [0, 12]),
        ({"every": None, "steps": (1, 2, 7, 99)}, [0, 1, 2, 7, 12]),
        ({"every": None, "steps": (0,), "start": False, "end": False}, [0]),
        ({"every": 2, "start": False}, [8, 12]),
        ({"every": 2, "end": False}, [0, 8]),
    ],
)
def test_it_measures_where_it_should_and_nowhere_twice(options: dict[str, Any], steps: list[int]) -> None:
    watch = Watch(SEEN, Mean(), **options)
    train(network(), watch, epochs=3)
    assert list(watch.profiles) == steps
    assert len(MEASURED) == len(steps)


def test_a_profile_knows_its_place_in_the_training_and_is_what_measure_gives() -> None:
    watch, models = Watch(SEEN, [Mean(), Sensitivity(clouds=1, points=2)], seed=3, name="net"), {}
    train(network(), watch, lambda moment: models.setdefault(moment.step, copy.deepcopy(moment.model)))
    for step, profile in watch.profiles.items():
        alone = lisse.measure(models[step], SEEN, [Mean(), Sensitivity(clouds=1, points=2)], seed=3, name="net")
        assert profile.parts == alone.parts
        assert (profile.name, profile.provenance["model"]) == ("net", alone.provenance["model"])
    training = watch.profiles[4].provenance["training"]
    assert {key: training[key] for key in ("step", "epoch", "steps", "epochs", "when", "log")} == {
        "step": 4, "epoch": 1.0, "steps": 8, "epochs": 2, "when": "epoch", "log": {"loss": 1.5},
    }  # fmt: skip


def test_options_reach_the_measurement() -> None:
    options: dict[str, Any] = {"layers": ["4"], "seed": 5, "batch": 7, "statistics": "batch"}
    watch = Watch(SEEN, Mean(), **options, name="other", memory="1MiB")
    profile = watch.measure(network(), step=0)
    assert profile is not None
    assert {row.layer for row in profile.rows} == {"4", None}
    origin = profile.provenance
    assert (origin["seed"], origin["batch"], origin["statistics"], profile.name) == (5, 7, "batch", "other")
    running = Watch(SEEN, Mean(), layers=["4"], batch=7).measure(network(), step=0)
    assert running is not None
    assert running.rows != profile.rows


def test_a_loop_of_ones_own() -> None:
    watch, model = Watch(SEEN, Mean()), network()
    first = watch.measure(model, step=10, epoch=0.5)
    assert watch.measure(model, step=10) is first  # the same weights
    model[0].weight.data += 1
    second = watch.measure(model, step=10)
    assert second is not first
    watch.measure(model, step=20)
    assert list(watch.profiles) == [10, 20]
    watch.measure(model, step=0)  # back in time: another training
    assert list(watch.profiles) == [0]


def test_the_table_has_a_line_per_row_step_and_layer() -> None:
    watch = Watch(SEEN, Mean())
    assert len(watch.frame()) == 0
    train(network(), watch)
    frame = watch.frame()
    assert list(frame.columns[:4]) == ["step", "epoch", "instrument", "quantity"]
    rows = [(step, row.quantity, row.value) for step, profile in watch.profiles.items() for row in profile.rows]
    assert list(zip(frame["step"], frame["quantity"], frame["value"], strict=True)) == rows
    assert frame[frame["step"] == 8]["epoch"].unique().tolist() == [2.0]
    assert set(frame["p"].dropna()) == {1}


# -- the training does not notice ----------------------------------------------------------------------------------


def test_weights_are_the_same_bits_with_and_without_watching() -> None:
    alone, watched = network(), network()
    train(alone)
    instruments = [Sensitivity(points=2, samples=10), Rude(), Mean()]
    watch = Watch(SEEN, instruments, steps=range(8))
    train(watched, watch)
    assert len(watch.profiles) == 9
    assert torch.equal(weights(alone), weights(watched))


def test_a_rude_instrument_leaves_no_trace() -> None:
    model = network()
    model(X).sum().backward()
    model[4].weight.requires_grad_(False)
    model[4].eval()
    before = weights(model)
    grads = [(weight.grad, None if weight.grad is None else weight.grad.clone()) for weight in model.parameters()]
    random.seed(5), np.random.seed(5)  # noqa: NPY002
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    profile = Watch(SEEN, Rude(), on_error="raise").measure(model, step=0)
    assert profile is not None
    assert torch.equal(weights(model), before)
    for weight, (grad, values) in zip(model.parameters(), grads, strict=True):
        assert weight.grad is grad
        assert grad is None or torch.equal(grad, values)
    assert [weight.requires_grad for weight in model.parameters()] == [True] * 4 + [False, True]
    assert [module.training for module in model] == [True] * 4 + [False]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()  # noqa: NPY002
    assert random.getstate() == states[2]


def test_an_error_leaves_no_trace_either_and_the_training_goes_on() -> None:
    alone, watched = network(), network()
    train(alone)
    watch = Watch(SEEN, [Fails(), Mean()])
    with pytest.warns(UserWarning, match="Watch: at step 4, fails failed: ArithmeticError: half-way"):
        train(watched, watch)
    assert torch.equal(weights(alone), weights(watched))
    assert watch.profiles[4]["fails"].notes == ("Failed: ArithmeticError: half-way",)
    assert len(watch.profiles[4]["mean"].rows) > 1


def test_a_measurement_that_cannot_begin_is_noted_or_raised() -> None:
    watch = Watch(torch.rand(9, 4), Mean())  # of another width
    with pytest.warns(UserWarning, match="Watch: at step 0, mean failed: "):
        train(network(), watch)
    assert all(profile["mean"].notes[0].startswith("Failed: ") for profile in watch.profiles.values())
    with pytest.raises((ValueError, RuntimeError)):
        train(network(), Watch(torch.rand(9, 4), Mean(), on_error="raise"))


def test_nan_weights_are_noted() -> None:
    model = network()
    model[0].weight.data.fill_(float("nan"))
    watch = Watch(SEEN, Sensitivity(points=0))
    with pytest.warns(UserWarning, match="at step 3, sensitivity failed"):
        watch.measure(model, step=3)


def test_autocast_around_it_does_not_change_the_numbers() -> None:
    model, watch = network(), Watch(SEEN, Mean())
    plain = watch.measure(model, step=0)
    with torch.autocast("cpu", torch.bfloat16):
        inside = Watch(SEEN, Mean()).measure(model, step=0)
        assert torch.is_autocast_enabled("cpu")
    assert plain is not None
    assert inside is not None
    assert inside.parts == plain.parts


def test_lisse_train_takes_a_watch_and_gives_it_its_folder(tmp_path: Path) -> None:
    from lisse.training import Recipe
    from lisse.training import train as lisse_train

    alone, watched, watch = network(), network(), Watch(SEEN, [Mean(), Rude()], steps=(3,))
    lisse_train(alone, (X, Y), recipe=Recipe(batch=12), epochs=2, out=tmp_path / "alone")
    lisse_train(watched, (X, Y), recipe=Recipe(batch=12), epochs=2, out=tmp_path / "watched", callbacks=[watch])
    assert torch.equal(weights(alone), weights(watched))
    assert list(watch.profiles) == [0, 3, 4, 8]
    assert load_profiles(tmp_path / "watched") == watch.profiles


# -- wrappers ------------------------------------------------------------------------------------------------------


def fabric(model: nn.Module) -> nn.Module:
    from lightning_fabric import Fabric

    return Fabric(accelerator="cpu", devices=1).setup_module(model)  # type: ignore[return-value]


@pytest.mark.parametrize(
    "wrap",
    [torch.compile, nn.DataParallel, fabric, lambda m: fabric(torch.compile(m)), lambda m: torch.compile(fabric(m))],
    ids=["compile", "parallel", "fabric", "fabric of compile", "compile of fabric"],
)  # fmt: skip
def test_wrapped_models_are_measured_through_the_plain_module(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = network()
    plain = Watch(SEEN, Mean()).measure(model, step=0)
    wrapped = wrap(model)
    assert unwrapped(wrapped) is model
    profile = Watch(SEEN, Mean(), on_error="raise").measure(wrapped, step=0)
    assert profile is not None
    assert plain is not None
    assert profile.parts == plain.parts
    assert profile.provenance["training"] == plain.provenance["training"]  # with the hash of the weights


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()


def test_module_names_the_network_inside() -> None:
    whole = Watch(SEEN, Mean()).measure(network(), step=0)
    inside = Watch(SEEN, Mean(), module="net").measure(Holder(), step=0)
    assert inside is not None
    assert whole is not None
    assert inside.parts == whole.parts
    with pytest.raises(ValueError, match=r"Watch: module must name a part of Holder, got 'nat'\. It has 'net'\."):
        Watch(SEEN, Mean(), module="nat", on_error="raise").measure(Holder(), step=0)
    with pytest.raises(ValueError, match=r"Watch: model must have a forward, got Holder.*it has 'net'\."):
        Watch(SEEN, Mean(), on_error="raise").measure(Holder(), step=0)


def test_only_rank_zero_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    group, watch = torch.distributed, Watch(SEEN, Mean())
    monkeypatch.setattr(group, "is_initialized", lambda: True)
    monkeypatch.setattr(group, "get_rank", lambda: 1)
    monkeypatch.setattr(group, "get_world_size", lambda: 2)
    train(network(), watch)
    assert watch.measure(network(), step=0) is None
    assert watch.profiles == {}
    monkeypatch.setattr(group, "get_rank", lambda: 0)
    assert watch.measure(network(), step=0) is not None
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(network())
    with pytest.raises(ValueError, match="Watch: statistics must be 'running' for a SyncBatchNorm"):
        Watch(SEEN, Mean(), statistics="batch", on_error="raise").measure(synced, step=0)


def test_a_model_in_pieces_is_refused() -> None:
    model = network()
    model[0].weight.ds_id = 1  # as DeepSpeed marks what it spreads
    with pytest.raises(ValueError, match=r"Watch: model must be whole in one process, got .*DeepSpeed"):
        Watch(SEEN, Mean(), on_error="raise").measure(model, step=0)


# -- files ---------------------------------------------------------------------------------------------------------


def steps_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_profiles_are_files_by_step(tmp_path: Path) -> None:
    watch = Watch(SEEN, Mean(), out=tmp_path / "a")
    train(network(), watch)
    assert steps_of(tmp_path / "a" / "profiles") == [f"step-0000000{step}.profile" for step in (0, 4, 8)]
    for folder in (tmp_path / "a", tmp_path / "a" / "profiles"):
        assert load_profiles(folder) == watch.profiles
    other = Watch(SEEN, Mean())
    train(network(), other, out=tmp_path / "b")  # the training's own folder
    assert [profile.parts for profile in lisse.load_profiles(tmp_path / "b").values()] == [
        profile.parts for profile in watch.profiles.values()
    ]


def test_a_killed_training_that_goes_on_measures_only_what_is_missing(tmp_path: Path) -> None:
    whole = Watch(SEEN, Mean(), steps=(6,))
    train(network(), whole, epochs=3)
    model = network()
    state = train(model, epochs=3, stop=5)
    MEASURED.clear()
    train(network(), Watch(SEEN, Mean(), steps=(6,), out=tmp_path), epochs=3, stop=8)  # killed after step 8
    assert len(MEASURED) == 4
    again = Watch(SEEN, Mean(), steps=(6,), out=tmp_path)
    train(network(), again, epochs=3, state=state)
    assert len(MEASURED) == 5  # the end alone
    assert list(again.profiles) == [0, 4, 6, 8, 12]
    assert [profile.parts for profile in again.profiles.values()] == [
        profile.parts for profile in whole.profiles.values()
    ]
    assert load_profiles(tmp_path) == again.profiles


@pytest.mark.parametrize(
    "change",
    [{"instruments": Mean(scale=2.0)}, {"data": SEEN[:10]}, {"seed": 1}, {"batch": 9}, {"layers": ["4"]},
     {"instruments": [Mean(), Sensitivity(points=0)]}],
    ids=["options", "data", "seed", "batch", "layers", "instruments"],
)  # fmt: skip
def test_another_measurement_is_made_again(tmp_path: Path, change: dict[str, Any]) -> None:
    options: dict[str, Any] = {"data": SEEN, "instruments": Mean()}
    train(network(), Watch(**options, out=tmp_path))
    MEASURED.clear()
    train(network(), Watch(**options, out=tmp_path))
    assert MEASURED == []
    train(network(), Watch(**(options | change), out=tmp_path))
    assert len(MEASURED) == 3
    assert len(steps_of(tmp_path / "profiles" / "replaced")) == 3
    assert len(load_profiles(tmp_path)) == 3


def test_another_training_in_the_same_folder_does_not_mix(tmp_path: Path) -> None:
    train(network(), Watch(SEEN, Mean(), out=tmp_path), epochs=4)
    other = Watch(SEEN, Mean(), out=tmp_path, every=2)
    train(network(), other, epochs=2, lr=0.01)
    assert load_profiles(tmp_path) == other.profiles
    assert list(other.profiles) == [0, 8]
    assert steps_of(tmp_path / "profiles" / "replaced") == [f"step-{step:08d}.profile" for step in (4, 8, 12, 16)]


def test_a_damaged_file_and_a_failed_one_are_made_again(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="fails failed"):
        train(network(), Watch(SEEN, [Mean(), Fails()], out=tmp_path))
    MEASURED.clear()
    with pytest.warns(UserWarning, match="fails failed"):
        train(network(), Watch(SEEN, [Mean(), Fails()], out=tmp_path))
    assert len(MEASURED) == 3
    train(network(), Watch(SEEN, Mean(), out=tmp_path))
    path = tmp_path / "profiles" / "step-00000004.profile"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"step-00000004\.profile"):
        load_profiles(tmp_path)
    MEASURED.clear()
    with pytest.warns(UserWarning, match="a profile is damaged and does not count"):
        train(network(), Watch(SEEN, Mean(), out=tmp_path))
    assert len(MEASURED) == 1
    assert list(load_profiles(tmp_path)) == [0, 4, 8]


def test_a_folder_that_cannot_be_written_is_said_and_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    watch = Watch(SEEN, Mean(), out=tmp_path / "file")
    with pytest.warns(UserWarning, match="the profile of step 0 is not on disk"):
        train(network(), watch)
    assert len(watch.profiles) == 3


def test_a_folder_without_profiles(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"load_profiles: folder must hold files like profiles/step-00000000\.profile"):
        load_profiles(tmp_path)


KILLED = """
    import sys, time
    sys.path.insert(0, sys.argv[2])
    from pathlib import Path
    import torch
    from test_watch import Mean, Watch, SEEN, network, train
    torch.set_num_threads(1)
    watch = Watch(SEEN, Mean(), out=sys.argv[1], steps=range(100))
    train(network(), lambda moment: print(moment.step, flush=True), watch, epochs=25)
"""


@pytest.mark.slow
def test_killed_for_real_at_any_moment_no_file_is_half_written(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(textwrap.dedent(KILLED))
    command = [sys.executable, str(script), str(tmp_path / "out"), str(Path(__file__).parent)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 20:
            time.sleep(0.013)
            process.send_signal(signal.SIGKILL)
            break
    process.wait()
    process.stdout.close()
    there = load_profiles(tmp_path / "out")  # raises on a damaged one
    assert list(there)[:20] == list(range(20))
    MEASURED.clear()
    watch = Watch(SEEN, Mean(), out=tmp_path / "out", steps=range(100))
    train(network(), watch, epochs=25)
    assert len(MEASURED) + len(there) >= 101
    assert len(MEASURED) <= 101


# -- Lightning -----------------------------------------------------------------------------------------------------


def lightning(
    package: str, *callbacks: Any, folder: Path, save: Path | None = None, resume: Path | None = None, **options: Any
) -> nn.Module:
    pl = pytest.importorskip(package, reason=f"{package} is not installed")

    class Module(pl.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: torch.Tensor) -> Any:
            return self.net(x)

        def training_step(self, batch: Any, _: int) -> Any:
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, _: int) -> Any:
            self.log("validation", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    torch.manual_seed(3)
    module = Module()
    torch.manual_seed(4)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        **({"max_epochs": 2} | quiet | {"enable_checkpointing": False} | options),
        accelerator="cpu", default_root_dir=folder, callbacks=list(callbacks), num_sanity_val_steps=2,
    )  # fmt: skip
    data = TensorDataset(X, Y)
    trainer.fit(module, DataLoader(data, 12, shuffle=True), DataLoader(data, 24), ckpt_path=resume)
    if save is not None:
        trainer.save_checkpoint(save)
    return module


PACKAGES = ["pytorch_lightning", "lightning.pytorch"]


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("package", PACKAGES)
def test_a_real_lightning_trainer(package: str, tmp_path: Path) -> None:
    alone = lightning(package, folder=tmp_path)
    watch = Watch(SEEN, [Mean(), Sensitivity(points=2, samples=10), Rude()], steps=(3,), module="net", out=tmp_path)
    watched = lightning(package, watch.lightning(), folder=tmp_path)
    assert torch.equal(weights(alone), weights(watched))
    assert list(watch.profiles) == [0, 3, 4, 8]
    epochs = [profile.provenance["training"]["epoch"] for profile in watch.profiles.values()]
    assert epochs == [0.0, 0.75, 1.0, 2.0]
    last = lisse.measure(watched.net, SEEN, [Mean()])  # type: ignore[arg-type]
    assert watch.profiles[8]["mean"].rows == last.rows
    assert load_profiles(tmp_path) == watch.profiles


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_lightning_accumulates_breaks_off_and_goes_on(tmp_path: Path) -> None:
    package = PACKAGES[0]
    watch = Watch(SEEN, Mean(), steps=(1,))
    lightning(package, watch.lightning(), folder=tmp_path, accumulate_grad_batches=2)
    assert list(watch.profiles) == [0, 1, 2, 4]
    broken = Watch(SEEN, Mean(), every=2, module="net")  # 6 steps: an epoch and a half
    lightning(package, broken.lightning(), folder=tmp_path, max_steps=6, max_epochs=-1)
    assert [(step, p.provenance["training"]["epoch"]) for step, p in broken.profiles.items()] == [(0, 0.0), (6, 1.5)]
    resumed = Watch(SEEN, Mean(), module="net", out=tmp_path / "out")
    lightning(package, resumed.lightning(), folder=tmp_path, max_epochs=1, save=tmp_path / "one.ckpt")
    again = Watch(SEEN, Mean(), module="net", out=tmp_path / "out")
    MEASURED.clear()
    lightning(package, again.lightning(), folder=tmp_path, max_epochs=3, resume=tmp_path / "one.ckpt")
    assert (list(again.profiles), len(MEASURED)) == ([0, 4, 8, 12], 2)
    assert load_profiles(tmp_path / "out") == again.profiles


def test_lightning_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PACKAGES, "lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="pip install lightning"):
        Watch(SEEN, Mean()).lightning()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"Watch\.trainer: transformers must be installed"):
        Watch(SEEN, Mean()).trainer()


# -- Hugging Face --------------------------------------------------------------------------------------------------


def hugging(*callbacks: Any, folder: Path, **options: Any) -> nn.Module:
    pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate, which is not installed")
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, num_labels=3,
        max_position_embeddings=16,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    tokens = torch.randint(1, 30, (24, 6), generator=torch.Generator().manual_seed(6))
    samples = [{"input_ids": tokens[place], "labels": Y[place]} for place in range(24)]
    arguments = TrainingArguments(
        str(folder / "hf"), **({"num_train_epochs": 2, "save_strategy": "no"} | options), report_to="none", seed=8,
        per_device_train_batch_size=6, use_cpu=True, disable_tqdm=True, learning_rate=1e-2, logging_strategy="no",
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=samples, callbacks=list(callbacks)).train()
    return model


TOKENS = {"input_ids": torch.randint(1, 30, (16, 6), generator=torch.Generator().manual_seed(9))}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_real_hugging_face_trainer(tmp_path: Path) -> None:
    alone = hugging(folder=tmp_path)
    watch = Watch(TOKENS, [Mean(), Sensitivity(points=2, samples=8, clouds=1)], steps=(3,), out=tmp_path)
    watched = hugging(watch.trainer(), folder=tmp_path)
    assert torch.equal(weights(alone), weights(watched))
    assert [(step, p.provenance["training"]["epoch"]) for step, p in watch.profiles.items()] == [
        (0, 0.0), (3, 0.75), (4, 1.0), (8, 2.0),
    ]  # fmt: skip
    last = lisse.measure(watched, TOKENS, [Mean()])
    assert watch.profiles[8]["mean"].rows == last.rows
    assert not any("Failed" in note for profile in watch.profiles.values() for note in profile.notes)
    assert load_profiles(tmp_path) == watch.profiles


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_hugging_face_trainer_that_breaks_off_measures_at_its_end(tmp_path: Path) -> None:
    watch = Watch(TOKENS, Mean(), every=2)
    hugging(watch.trainer(), folder=tmp_path, max_steps=6)
    assert list(watch.profiles) == [0, 6]


# -- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"every": 0}, ValueError, "Watch: every must be a positive number of epochs or None, got 0"),
        ({"every": True}, ValueError, "Watch: every must be"),
        ({"steps": (3, -1)}, ValueError, "Watch: steps must be integers from 0 on, got -1"),
        ({"on_error": "ignore"}, ValueError, "Watch: on_error must be one of note, raise, got 'ignore'"),
        ({"statistics": "none"}, ValueError, "Watch: statistics must be one of running, batch, got 'none'"),
        ({"every": None, "start": False, "end": False}, ValueError, "Watch: every must be given"),
        ({"instruments": Mean}, TypeError, r"Watch: instruments must be Instruments, got .* Write Mean\(\)"),
        ({"instruments": []}, ValueError, "Watch: instruments must be different ones, got none"),
        ({"instruments": [Mean(), Mean(2.0)]}, ValueError, "Watch: instruments must be different ones, got mean, mean"),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        Watch(**({"data": SEEN, "instruments": Mean()} | options))


@pytest.mark.parametrize("step", [-1, 1.5, True])
def test_bad_steps(step: Any) -> None:
    with pytest.raises(ValueError, match=r"Watch\.measure: step must be an integer from 0 on"):
        Watch(SEEN, Mean()).measure(network(), step=step)


def test_profiles_made_outside_a_training_have_no_place_in_one() -> None:
    from lisse.run.sequence import training_of

    assert training_of(Profile(())) == {}
