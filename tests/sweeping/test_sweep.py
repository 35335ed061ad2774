"""sweep(): units measured once, whoever is killed; failures that are rows; nothing that depends on the executor."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from small_sweeps import NETWORK, Inline, dying, nothing, small

import lisse
from lisse.instruments import Sensitivity, Stability
from lisse.profile import Profile
from lisse.progress import Event
from lisse.sweeping import UnitOutcome, plan_of
from lisse.sweeping.claims import claim
from lisse.sweeping.driver import drained
from lisse.sweeping.pool import Workers, fitting_workers

#: Seconds after which a wait is a failure: far more than a busy machine needs.
LONG = 300


def numbers(folder: Path) -> dict[str, tuple]:
    """All that was measured, by file: parts (rows and arrays) and score."""
    files = sorted((folder / "profiles").glob("*.profile"))
    profiles = {path.name: Profile.load(path) for path in files}
    return {name: (profile.parts, profile.provenance.get("score")) for name, profile in profiles.items()}


def test_a_second_call_measures_nothing(tmp_path):
    events: list[Event] = []
    table = lisse.sweep(small(), out=tmp_path, executor=Inline(), progress=events.append)
    assert [outcome.status for _, outcome in table] == ["done", "done"]
    assert [(event.done, event.total) for event in events] == [(0, 2), (1, 2), (2, 2)]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "profiles").iterdir()}
    again = lisse.sweep(small(), out=tmp_path, executor=Inline())
    assert [outcome.status for _, outcome in again] == ["whole", "whole"]
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "profiles").iterdir()}
    assert list(again.frame()["error"]) == [outcome.score["error"] for _, outcome in table]
    assert not list((tmp_path / "claims").iterdir())


def test_data_with_other_bytes_are_trained_on_and_measured_again(tmp_path):
    path = tmp_path / "d.npz"
    training = {"models": NETWORK, "recipes": {"epochs": 1, "batch": 20}}
    plan = small(models=NETWORK, data=f"npz:{path}", trainings=[training])
    inputs, targets = np.random.default_rng(0).random((40, 1, 8, 8), np.float32), np.arange(40) % 10
    for factor, statuses in ((1, ["done", "done"]), (1, ["whole", "whole"]), (0.5, ["done", "done"])):
        np.savez(path, x=inputs * np.float32(factor), y=targets)
        table = lisse.sweep(plan, out=tmp_path / "runs", executor=Inline())
        assert [(outcome.status, outcome.reason) for _, outcome in table] == [(status, "") for status in statuses]


def test_a_profile_says_all_that_is_needed_to_make_it_again(tmp_path):
    plan = plan_of(small(models=[NETWORK], family="f"))
    lisse.sweep(plan, out=tmp_path, executor=Inline())
    (path,) = (tmp_path / "profiles").iterdir()
    provenance = Profile.load(path).provenance
    assert provenance["sweep"]["unit"] == dataclasses.asdict(plan.units[0])
    assert provenance["sweep"]["family"] == "f"
    assert provenance["score"]["n"] == 30
    assert provenance["weights"] == "random"
    assert path.name == plan.units[0].file_name


def test_numbers_are_those_of_measure(tmp_path):
    from lisse.instruments import Sensitivity

    lisse.sweep(small(models=[NETWORK], seeds=[3]), out=tmp_path, executor=Inline())
    ((parts, _),) = numbers(tmp_path).values()
    model = lisse.load_model(NETWORK + "&seed=3")
    profile = lisse.measure(model, lisse.load_data("digits", limit=30, seed=3), Sensitivity.sized("quick", samples=20),
                            seed=3)  # fmt: skip
    assert parts == profile.parts


def test_a_damaged_profile_and_one_of_other_code_are_measured_again(tmp_path, monkeypatch):
    lisse.sweep(small(), out=tmp_path, executor=Inline())
    first, second = sorted((tmp_path / "profiles").iterdir())
    first.write_bytes(first.read_bytes()[:100])
    before = Profile.load(second)
    table = lisse.sweep(small(), out=tmp_path, executor=Inline())
    assert sorted(outcome.status for _, outcome in table) == ["done", "whole"]
    assert Profile.load(first).rows
    monkeypatch.setattr("lisse.sweeping.unit.package_fingerprint", lambda: "another")
    table = lisse.sweep(small(), out=tmp_path, executor=Inline())
    assert [outcome.status for _, outcome in table] == ["done", "done"]
    assert Profile.load(second).parts == before.parts


def test_a_network_that_fails_is_a_row_with_its_reason(tmp_path):
    models = [NETWORK, "zoo:fc2?in_channels=1&size=9&mean=none", "small_sweeps:broken_network"]
    events: list[Event] = []
    table = lisse.sweep(small(models=models), out=tmp_path, executor=Inline(), progress=events.append)
    assert [outcome.status for _, outcome in table] == ["done", "failed", "failed"]
    assert [event.failed for event in events if not event.say] == [0, 0, 1, 2]
    reasons = [outcome.reason for _, outcome in table.failed]
    assert "64" in reasons[0]
    assert "no network today" in reasons[1]
    assert len(table.finished) == 1
    assert "2 failed" in repr(table)
    retried = lisse.sweep(small(models=models), out=tmp_path, executor=Inline())
    assert [outcome.status for _, outcome in retried] == ["whole", "failed", "failed"]


def test_failures_of_a_plan_are_those_of_its_last_form(tmp_path):
    broken = "small_sweeps:broken_network"

    def failures(models: list[str], name: str = "") -> int:
        path = tmp_path / f"{name}.toml"
        path.write_text(f"models = {models}\ndata = 'digits'\ninstruments = 'sensitivity'\nlimit = 30\n")
        plan = plan_of(path) if name == "b" else path if name else small(models=models)
        lisse.sweep(plan, out=tmp_path / "out", executor=Inline())
        return len(list((tmp_path / "out" / "failures").glob("*.json")))

    assert failures([broken], "a") == failures([broken], "a") == 1
    assert failures([broken + "?mean=none&input_size=1,8,8"], "b") == 2
    assert failures([broken], "") == 2 + 1  # other options: another unit
    (tmp_path / "out" / "failures" / "strange.json").write_text("[]")
    assert failures([NETWORK], "a") == 3
    assert failures([NETWORK], "") == 2
    assert failures([NETWORK], "b") == 1


def test_another_family_measures_nothing(tmp_path, monkeypatch):
    lisse.sweep(small(), out=tmp_path, executor=Inline())
    before = numbers(tmp_path)
    monkeypatch.setattr("lisse.sweeping.unit.measured", lambda *_, **__: pytest.fail("it is measured already"))
    table = lisse.sweep(small(family="small ones"), out=tmp_path, executor=Inline())
    assert [outcome.status for _, outcome in table] == ["whole", "whole"]
    assert numbers(tmp_path) == before
    for unit, outcome in table:
        about = Profile.load(outcome.file).provenance["sweep"]
        assert (about["family"], about["unit"]) == ("small ones", dataclasses.asdict(unit))


def test_a_training_of_other_code_is_made_again(tmp_path, monkeypatch):
    plan = small(models=[], trainings=[{"models": NETWORK, "recipes": {"epochs": 1, "batch": 20}, "limit": 60}])
    lisse.sweep(plan, out=tmp_path, executor=Inline())
    monkeypatch.setattr("lisse.sweeping.unit.package_fingerprint", lambda: "another")
    lisse.sweep(plan, out=tmp_path, executor=Inline())
    assert len(list((tmp_path / "trainings").iterdir())) == 2


def test_an_instrument_that_fails_is_measured_again_and_the_others_are_not(tmp_path, monkeypatch):
    plan = small(models=NETWORK, instruments=["sensitivity", "stability"])
    with monkeypatch.context() as patch:
        patch.setattr(Stability, "part", lambda self, run: (_ for _ in ()).throw(MemoryError("for the moment")))
        ((_, outcome),) = lisse.sweep(plan, out=tmp_path, executor=Inline())
    assert outcome.notes == ("stability: Failed: MemoryError: for the moment",)
    monkeypatch.setattr(Sensitivity, "part", lambda self, run: pytest.fail("it is measured already"))
    ((_, outcome),) = lisse.sweep(plan, out=tmp_path, executor=Inline())
    profile = Profile.load(outcome.file)
    assert (outcome.status, outcome.notes) == ("done", ())
    assert all(part.rows for part in profile.parts)
    ((_, outcome),) = lisse.sweep(plan, out=tmp_path, executor=Inline())
    assert outcome.status == "whole"
    assert not list((tmp_path / "pieces").iterdir())


def test_trainings_are_made_once_and_measured_on_every_data_set(tmp_path):
    training = {"models": NETWORK, "recipes": {"epochs": 1, "batch": 20}, "limit": 60, "seeds": [0, 1]}
    plan = small(models=[], trainings=[training], data=["digits", "shapes?n=30"])
    table = lisse.sweep(plan, out=tmp_path, executor=Inline())
    assert len(list((tmp_path / "trainings").iterdir())) == 2
    assert [(unit.data, outcome.status) for unit, outcome in table if unit.training.seed == 1] == [
        ("digits", "done"), ("shapes?n=30", "failed"),
    ]  # fmt: skip
    weights = {Profile.load(outcome.file).provenance["model"]["fingerprint"] for _, outcome in table.finished}
    assert len(weights) == 2


def test_a_training_that_diverges_is_a_row_with_its_reason(tmp_path):
    training = {"models": NETWORK, "recipes": {"recipe": "sgd", "lr": 1e30, "epochs": 1}, "limit": 200}
    table = lisse.sweep(small(models=[], trainings=[training]), out=tmp_path, executor=Inline())
    ((_, outcome),) = table
    assert "training diverged" in outcome.reason


def test_what_a_killed_worker_left_half_written_is_removed(tmp_path):
    (tmp_path / "failures").mkdir()
    left = [tmp_path / "failures" / ".0123.json.01234567.tmp", tmp_path / ".a.profile.89abcdef.tmp"]
    for path in left:
        path.mkdir()
        (path / "part").write_text("half")
    lisse.sweep(small(models=NETWORK), out=tmp_path, executor=Inline())
    assert not [path for path in left if path.exists()]


# --- deaths -----------------------------------------------------------------------------------------------------------


def test_a_death_is_tried_again_and_a_second_one_is_a_row(tmp_path):
    table = lisse.sweep(small(), out=tmp_path / "a", executor=Inline(deadly={0}), retries=1)
    assert [outcome.status for _, outcome in table] == ["done", "done"]
    table = lisse.sweep(small(), out=tmp_path / "b", executor=Inline(deadly={0, 2}), retries=1)
    assert [outcome.status for _, outcome in table] == ["killed", "done"]
    assert table.failed[0][1].reason == "its process died 2 times (gone)"
    table = lisse.sweep(small(), out=tmp_path / "c", executor=Inline(deadly={0}), retries=0)
    assert [outcome.status for _, outcome in table] == ["killed", "done"]


def test_work_that_another_process_has_is_asked_for_again(monkeypatch):
    monkeypatch.setattr("lisse.sweeping.driver.PATIENCE", 0.0)
    answers = iter(["busy", "done", "busy", "done"])
    rows = list(drained(["a", "b"], lambda task: UnitOutcome(next(answers), file=task), Inline()))
    assert [(task, outcome.status) for task, outcome in rows] == [("b", "done"), ("a", "done")]


def test_two_sweeps_share_the_work(tmp_path):
    plan = small(seeds=[0, 1])
    with ThreadPoolExecutor(2) as both:
        jobs = [both.submit(lisse.sweep, plan, out=tmp_path, executor=Inline()) for _ in range(2)]
        tables = [job.result(timeout=LONG) for job in jobs]
    statuses = [tuple(outcome.status for _, outcome in table) for table in tables]
    assert all(sorted(pair) in (["done", "whole"],) for pair in zip(*statuses, strict=True))
    lisse.sweep(plan, out=tmp_path / "alone", executor=Inline())
    assert numbers(tmp_path) == numbers(tmp_path / "alone")


def test_threads_give_the_same_numbers_bit_for_bit(tmp_path):
    plan = small(seeds=[0, 1, 2])
    with ThreadPoolExecutor(4) as threads:
        lisse.sweep(plan, out=tmp_path / "threads", executor=threads)
    lisse.sweep(plan, out=tmp_path / "alone", executor=Inline())
    assert numbers(tmp_path / "threads") == numbers(tmp_path / "alone")


def test_a_claim_is_one_process_own_and_ends_with_it(tmp_path):
    with claim(tmp_path / "a") as first, claim(tmp_path / "a") as second, claim(tmp_path / "b") as other:
        assert (first, second, other) == (True, False, True)
    with claim(tmp_path / "a") as third:
        assert third
    script = "import os, pathlib\nfrom lisse.sweeping.claims import claim\n"
    script += f"with claim(pathlib.Path({str(tmp_path / 'a')!r})):\n    os._exit(9)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=LONG).returncode == 9
    assert (tmp_path / "a").exists()
    with claim(tmp_path / "a") as fourth:
        assert fourth


@pytest.mark.slow
def test_a_killed_worker_takes_only_its_own_work(tmp_path):
    with Workers(2) as pool:
        tasks = [(number, str(tmp_path)) for number in range(5)]
        rows = {task[0]: outcome for task, outcome in drained(tasks, dying, pool, retries=1)}
    assert [rows[number].status for number in range(5)] == ["done", "done", "killed", "done", "done"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-0", "1-0", "1-1", "2-0", "2-1", "3-0", "4-0"]


def test_no_more_tasks_are_under_way_than_the_window():
    class Counting(ThreadPoolExecutor):
        window = 3
        under_way: ClassVar[list] = []

        def submit(self, fn, /, *args, **kwargs):
            future = super().submit(fn, *args, **kwargs)
            self.under_way.append(future)
            assert sum(not job.done() for job in self.under_way) <= self.window
            return future

    with Counting(8) as pool:
        assert sorted(task for task, _ in drained(range(40), nothing, pool)) == list(range(40))


def test_workers_are_as_many_as_there_is_room_for(monkeypatch):
    monkeypatch.setattr("lisse.sweeping.pool.cores", lambda: 8)
    monkeypatch.setattr("lisse.sweeping.pool.free_bytes", lambda device: 7 * 2**30)
    assert fitting_workers(memory="1GiB", threads=1, device="cpu", gpus=0) == (3, [])
    assert fitting_workers(memory="1GiB", threads=4, device="cpu", gpus=0) == (2, [])
    assert fitting_workers(memory="40GiB", threads=1, device="cpu", gpus=0) == (1, [])
    monkeypatch.setattr("lisse.sweeping.pool.free_bytes", lambda device: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert fitting_workers(memory="1GiB", threads=1, device="cuda", gpus=0.25) == (8, ["3", "5"])
    assert fitting_workers(memory="1GiB", threads=1, device="cuda:1", gpus=0.5) == (2, [])
    assert fitting_workers(memory="1GiB", threads=1, device="cuda", gpus=0) == (2, ["3", "5"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(ValueError, match="device must be there, got cuda, and this machine has no GPU"):
        fitting_workers(memory="1GiB", threads=1, device="cuda", gpus=0)


def test_bad_arguments_are_named(tmp_path):
    for changes, words in (
        ({"executor": "dask"}, "executor must be an Executor, 'ray' or None, got 'dask'"),
        ({"retries": -1}, "retries must be at least 0, got -1"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"gpus": -0.5}, "gpus must lie in 0..1, got -0.5"),
        ({"gpus": 2}, "gpus must lie in 0..1, got 2"),
        ({"gpus": 0.25}, "gpus must be 0 on device 'cpu', got 0.25"),
    ):
        with pytest.raises(ValueError, match=words):
            lisse.sweep(small(), out=tmp_path, **changes)


@pytest.mark.slow
def test_a_killed_sweep_leaves_no_process_and_goes_on(tmp_path):
    """SIGKILL to the driver when the first profile is there; the same command measures the others, once."""
    import psutil

    plan = tmp_path / "plan.toml"
    plan.write_text(
        f"models = ['{NETWORK}']\ndata = ['digits']\ninstruments = ['sensitivity']\nlimit = 30\nseeds = '0..5'\n"
        "[options.sensitivity]\nsamples = 20\n"
    )
    command = [sys.executable, "-m", "lisse", "sweep", str(plan), "--out", str(tmp_path / "out"), "--workers", "2"]
    profiles = tmp_path / "out" / "profiles"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + LONG
        try:
            while not list(profiles.glob("*.profile")):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < end, "no profile"
                time.sleep(0.01)
            workers = psutil.Process(process.pid).children(recursive=True)
        finally:
            process.kill()
    assert psutil.wait_procs(workers, timeout=LONG)[1] == []  # nobody outlives the parent
    early = {path.name: path.stat().st_mtime_ns for path in profiles.glob("*.profile")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG)
    assert done.returncode == 0, done.stderr
    assert "6 profiles" in done.stderr
    assert len(list(profiles.glob("*.profile"))) == 6
    assert early.items() <= {path.name: path.stat().st_mtime_ns for path in profiles.glob("*.profile")}.items()
    lisse.sweep(plan, out=tmp_path / "alone", executor=Inline())
    assert numbers(tmp_path / "out") == numbers(tmp_path / "alone")


def test_jobs_that_are_no_futures_are_waited_for_by_threads(tmp_path):
    """The recipe of docs/atlas.md for submitit, whose jobs have a ``result`` and nothing else of a future."""

    class Job:
        def __init__(self, fn, *args):
            self.result = lambda: fn(*args)

    class Jobs(ThreadPoolExecutor):
        def submit(self, fn, /, *args):
            return super().submit(lambda: Job(fn, *args).result())

    with Jobs(1) as jobs:
        table = lisse.sweep(small(), out=tmp_path, executor=jobs)
    assert [outcome.status for _, outcome in table] == ["done", "done"]
