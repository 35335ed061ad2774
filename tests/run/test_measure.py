from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

import lisse
from lisse.cli.export import write_csv
from lisse.data import Dataset, as_dataset
from lisse.instruments import (
    ALL,
    Contraction,
    Extremes,
    Isometry,
    Lipschitz,
    Propagation,
    Robustness,
    Sensitivity,
    Stability,
    Topology,
)
from lisse.profile import Part, Quantity, Row
from lisse.run import Instrument, Run


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


X = torch.rand(40, 6, generator=torch.Generator().manual_seed(1))


MEASURED: list[Instrument] = []


@dataclass(frozen=True)
class Mean(Instrument):
    scale: float = 1.0
    QUANTITIES: ClassVar = (Quantity("mean", "mean", "The mean."),)

    def part(self, run: Run) -> Part:
        MEASURED.append(self)
        rows = [
            Row("mean", self.scale * float(run.recording()[tap.name].mean()), "exact", len(run), tap.name, tap.depth)
            for tap in run.taps
        ]
        return Part(self.name, rows, self.QUANTITIES)


@dataclass(frozen=True)
class Never(Instrument):
    def fits(self, run: Run) -> str:
        return "it is never satisfied."

    def part(self, run: Run) -> Part:
        raise AssertionError("not to be called")


@dataclass(frozen=True)
class Fails(Instrument):
    def part(self, run: Run) -> Part:
        raise ArithmeticError("half-way")


def test_a_row_per_layer_and_where_it_came_from():
    model = network()
    profile = lisse.measure(model, Dataset("d", X), [Mean()], seed=4, name="small")
    assert [row.layer for row in profile.rows] == ["input", "1", "2"]
    assert profile.rows[0].value == pytest.approx(float(X.mean()))
    assert profile.rows[-1].value == pytest.approx(float(model(X).detach().mean()), rel=1e-5)
    origin = profile.provenance
    assert (profile.name, origin["data"]["name"], origin["data"]["samples"], origin["seed"]) == ("small", "d", 40, 4)
    assert [layer["shape"] for layer in origin["layers"]] == [[6], [5], [3]]
    assert origin["model"]["parameters"] == 6 * 5 + 5 + 5 * 3 + 3


def test_an_instrument_measures_by_itself():
    profile = Mean(scale=3.0).measure(network(), X)
    assert profile["mean"].options == {"scale": 3.0}
    assert profile.rows[0].value == pytest.approx(3 * float(X.mean()))


def test_instruments_share_one_clean_pass():
    model = network()
    run_samples = []
    model.register_forward_pre_hook(lambda _, args: run_samples.append(len(args[0])))
    lisse.measure(model, X, [Mean(), Sensitivity(samples=8, points=0)], batch=20)
    # Finding the layers, then every sample once, then the first three twice: whether they give the same bits.
    assert run_samples == [2, 3, 20, 20, 3, 3]


def test_an_instrument_that_does_not_fit_says_why():
    profile = lisse.measure(network(), X, [Never(), Mean()])
    assert profile["never"].notes == ("Not measured: it is never satisfied.",)
    assert len(profile["mean"].rows) == 3


def test_a_failing_instrument_raises_or_is_noted():
    with pytest.raises(ArithmeticError, match="half-way"):
        lisse.measure(network(), X, [Fails(), Mean()])
    profile = lisse.measure(network(), X, [Fails(), Mean()], on_error="note")
    assert profile["fails"].notes == ("Failed: ArithmeticError: half-way",)
    assert len(profile["mean"].rows) == 3


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(3, 4)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.first(a) * self.second(b)


def test_what_the_layers_have_to_say_is_in_every_part_with_numbers(tmp_path):
    traced = torch.jit.trace(network(), X)
    for _ in range(2):  # the second comes from the cache
        with pytest.warns(UserWarning, match="No layers were found between input and output"):
            profile = lisse.measure(traced, X, [Mean(), Never()], cache=tmp_path)
        assert "TorchScript" in profile["mean"].notes[0]
        assert profile["never"].notes == ("Not measured: it is never satisfied.",)
    with pytest.warns(UserWarning, match="several inputs: input is a, and b is not read"):
        profile = lisse.measure(Product(), ({"a": X, "b": X[:, :3]}, torch.arange(40) % 2), [Isometry(samples=20)])
    assert any("No gradients" in note and "the inputs are several (a, b)" in note for note in profile.notes)


def test_a_tuple_of_two_is_inputs_and_targets_and_says_so():
    with pytest.raises(RuntimeError, match=r"A tuple of two is \(inputs, targets\): name a model's several inputs"):
        lisse.measure(Product(), (X, X[:, :3]), [Mean()])


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4), nn.BatchNorm1d(4)).eval()


def test_batch_norms_that_have_never_seen_data_are_named():
    model = normed()
    with pytest.warns(UserWarning, match=r"2 batch norms have never seen data.*The first is 1.*statistics='batch'"):
        profile = lisse.measure(model, X, [Mean(), Never()])
    assert profile["mean"].notes[0].startswith("2 batch norms have never seen data: running statistics are 0 and 1")
    assert profile["never"].notes == ("Not measured: it is never satisfied.",), "it has no number to warn of"
    with torch.no_grad():
        model[1].train()(torch.rand(8, 5))
    with pytest.warns(UserWarning, match="1 batch norm has never seen data.*The first is 4"):
        lisse.measure(model, X, [Mean()])


@pytest.mark.parametrize("case", ["batch statistics", "no running ones", "counted", "loaded", "none at all"])
def test_batch_norms_that_have_statistics_are_not(case):
    model = network() if case == "none at all" else normed()
    for norm in (module for module in model if isinstance(module, nn.BatchNorm1d)):
        if case == "no running ones":
            norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
        elif case == "counted":
            norm.num_batches_tracked += 1
        elif case == "loaded":  # weights from elsewhere may lack the count
            norm.running_mean[0] = 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        statistics = "batch" if case == "batch statistics" else "running"
        assert not lisse.measure(model, X, [Mean()], statistics=statistics).notes


def test_a_cached_part_is_named_too_and_a_calibrated_network_no_more(tmp_path):
    model = normed()
    for _ in range(2):
        with pytest.warns(UserWarning, match="never seen data"):
            notes = lisse.measure(model, X, [Mean()], cache=tmp_path)["mean"].notes
        assert len(notes) == 1


@pytest.mark.parametrize(
    ("instruments", "error", "match"),
    [
        (Mean, TypeError, r"must be Instruments, got .*Mean.* Write Mean\(\)"),
        ([Mean], TypeError, r"must be Instruments, got .*Mean.* Write Mean\(\)"),
        (["mean"], TypeError, "must be Instruments, got 'mean'"),
        ([Mean(), Mean(scale=2.0)], ValueError, "must be different ones, got mean, mean"),
    ],
)
def test_bad_instruments(instruments, error, match):
    with pytest.raises(error, match=match):
        lisse.measure(network(), X, instruments)


def test_all_is_a_tuple_of_frozen_dataclasses_with_described_quantities():
    for kind in ALL:
        assert kind.__dataclass_params__.frozen
        assert kind.QUANTITIES
        assert all(quantity.says and quantity.label for quantity in kind.QUANTITIES)


def test_the_cache_serves_the_same_part_without_measuring(tmp_path):
    MEASURED.clear()
    first = lisse.measure(network(), X, [Mean()], cache=tmp_path)
    model = network()
    second = lisse.measure(model, X, [Mean()], cache=tmp_path)
    assert len(MEASURED) == 1
    assert second.parts == first.parts
    model[0].weight.data += 1
    third = lisse.measure(model, X, [Mean()], cache=tmp_path)
    assert third.rows[-1].value != first.rows[-1].value


def test_a_cache_that_cannot_be_written_is_said_and_loses_nothing(tmp_path):
    (tmp_path / "file").write_text("in the way")
    events = []
    profile = lisse.measure(network(), X, [Mean()], cache=tmp_path / "file", progress=events.append)
    assert len(profile.rows) == 3
    assert any(event.say.startswith("nothing more is kept in") for event in events)


def test_progress_true_shows_a_bar(capsys):
    lisse.measure(network(), X, [Mean()], progress=True)
    assert "forward: 40 of 40 samples" in capsys.readouterr().err


KILLED = """
    import sys, time, torch
    from dataclasses import dataclass
    from typing import ClassVar
    from torch import nn
    import lisse
    from lisse.profile import Part, Quantity, Row
    from lisse.run import Instrument

    @dataclass(frozen=True)
    class Slow(Instrument):
        QUANTITIES: ClassVar = (Quantity("sum", "sum", "A sum."),)
        def part(self, run):
            rows, new = [], []
            for tap in run.taps:
                def make(name=tap.name):
                    with open(sys.argv[2], "a") as log:
                        log.write(name + "\\n")
                    new.append(name)
                    # The third new piece is never done: however late the kill comes, it finds the process at work.
                    time.sleep(600 if sys.argv[4] == "killed" and len(new) > 2 else 0.05)
                    return {"sum": run.recording()[name].double().sum() + run.draw("a", 0, 1, (1,)).sum()}
                rows.append(Row("sum", float(run.piece(self, tap.name, make)["sum"]), "exact", 40, tap.name, tap.depth))
            return Part(self.name, rows, self.QUANTITIES)

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(6, 6), nn.Tanh())])
    x = torch.rand(40, 6)
    profile = lisse.measure(model, x, [Slow()], cache=sys.argv[1])
    profile.save(sys.argv[3])
"""


def test_killed_anywhere_a_rerun_does_only_what_is_missing_and_gives_the_same(tmp_path):
    script = tmp_path / "slow.py"
    script.write_text(textwrap.dedent(KILLED))

    def start(cache, log, out, end="whole"):
        command = [sys.executable, str(script), *(str(tmp_path / name) for name in (cache, log, out)), end]
        return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})

    assert start("whole", "whole.log", "whole.profile").wait() == 0
    dice = random.Random(0)
    kills = 3  # of twelve pieces two at most are done each time
    for _ in range(kills):
        process = start("killed", "killed.log", "killed.profile", "killed")
        log = tmp_path / "killed.log"
        before = len(log.read_text().splitlines()) if log.exists() else 0
        while not log.exists() or len(log.read_text().splitlines()) == before:  # wait for its first piece, then strike
            assert process.poll() is None
            time.sleep(0.005)
        time.sleep(dice.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert start("killed", "killed.log", "killed.profile").wait() == 0
    done = (tmp_path / "killed.log").read_text().splitlines()
    assert set(done) == set((tmp_path / "whole.log").read_text().splitlines())
    assert len(done) <= len(set(done)) + kills  # at most the piece under way was lost at each kill
    whole, killed = (lisse.Profile.load(tmp_path / f"{name}.profile") for name in ("whole", "killed"))
    assert whole.parts == killed.parts


def test_what_an_instrument_holds_is_announced_and_what_does_not_fit_is_refused(monkeypatch):
    """Before any work, with what would help; a budget that suffices is not spoken of."""
    model, data = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)), torch.rand(60, 6)
    said = []
    topology = Topology(samples=20, clouds=2)
    lisse.measure(model, data, topology, memory=1 << 14, progress=said.append)
    assert any("takes" in event.say and "beside memory=16384. Give landmarks=" in event.say for event in said)
    said.clear()
    lisse.measure(model, data, topology, progress=said.append)
    assert not any("beside memory" in event.say for event in said)
    monkeypatch.setattr("lisse.run.instrument.free_bytes", lambda device: 1000)
    (part,) = lisse.measure(model, data, topology).parts
    assert not part.rows
    assert re.search(r"Not measured: it takes .* GiB of memory, and .* are free\. Give landmarks=", part.notes[0])


@pytest.mark.parametrize(
    "kind", [Sensitivity, Stability, Isometry, Lipschitz, Robustness], ids=lambda kind: kind.__name__
)
def test_what_mathematics_takes_is_announced_and_grows_with_it(kind, monkeypatch):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))
    data = (torch.rand(200, 3, 4, 4), torch.arange(200) % 3)
    smaller, larger = (
        kind(**{key: n for key in ("samples", "points", "max_iter") if key in kind.__dataclass_fields__})
        for n in (10, 200)
    )
    run = Run(model, as_dataset(data), batch=10)
    assert 0 < smaller.bytes(run) < larger.bytes(run)
    monkeypatch.setattr("lisse.run.instrument.free_bytes", lambda device: 1000)
    (part,) = lisse.measure(model, data, smaller).parts
    assert not part.rows
    assert re.search(r"Not measured: it takes .* GiB of memory, and .* are free\. Give ", part.notes[0])


@pytest.mark.parametrize("kind", [Propagation, Contraction, Extremes], ids=lambda kind: kind.__name__)
def test_what_tables_of_tokens_take_is_announced_and_grows_with_their_square(kind, monkeypatch):
    needs = []
    for size in (16, 32):  # 17 tokens, 65 tokens
        model = lisse.load_model(f"zoo:vit_small?size={size}&width=24&depth=2")
        data = (torch.rand(8, 3, size, size), torch.arange(8) % 2)
        needs.append(kind(samples=8).bytes(Run(model, as_dataset(data), batch=4, memory=1 << 14)))
    assert 0 < 3 * needs[0] < needs[1]
    monkeypatch.setattr("lisse.run.instrument.free_bytes", lambda device: 1000)
    (part,) = lisse.measure(model, data, kind(samples=8)).parts
    assert not part.rows
    assert re.search(r"Not measured: it takes .* GiB of memory, and .* are free\. (Give|Take) ", part.notes[0])


def test_landmarks_need_less_and_more_points_need_more():
    run = Run(torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3)), as_dataset(torch.rand(3000, 6)))
    needs = [Topology(samples=n, landmarks=m).bytes(run) for n, m in ((1000, None), (2000, None), (2000, 500))]
    assert needs[2] < needs[0] < needs[1]
    assert Topology(samples=1000, dims=(0,)).bytes(run) < needs[0] / 5


def test_names_that_are_no_utf8_are_measured_and_written_as_a_table(tmp_path):
    """A file's name may bring lone surrogates to a layer's: no digest and no table stumbles over them."""
    model = nn.Sequential()
    model.add_module("a\udcff", nn.Linear(6, 5))
    model.add_module("b\udcfe", nn.Linear(5, 3))
    profile = lisse.measure(model, torch.rand(30, 6), Sensitivity(samples=10, clouds=1, points=0, draws=0))
    assert {"a\udcff", "b\udcfe"} < {row.layer for row in profile.rows}
    profile.save(tmp_path / "one.profile")
    write_csv([lisse.Profile.load(tmp_path / "one.profile")], str(tmp_path / "rows.csv"))
    assert r"a\udcff" in (tmp_path / "rows.csv").read_text("utf-8")
