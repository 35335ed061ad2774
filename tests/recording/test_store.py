from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse import record
from lisse.recording import Store, budgets, parse_bytes
from lisse.recording.store import _Blocks


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2 * 2**30), ("500 MB", 500 * 10**6), ("1.5kib", 1536), (77, 77), ("12", 12), ("3B", 3)],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("wrong", ["", "GiB", "-1MB", 0, "1 XB", "1e3MB", None, True, "0"])
def test_bad_sizes(wrong):
    with pytest.raises(ValueError, match="memory must be bytes or a size"):
        parse_bytes(wrong)


@settings(deadline=None, max_examples=60)
@given(
    budget=st.integers(1, 4000),
    room=st.sampled_from([0, 500, 2000]),
    chunks=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    reserve=st.integers(0, 60),
    again=st.integers(0, 30),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
)
def test_rows_come_back_whatever_the_budget(budget, room, chunks, reserve, again, dtype):
    """Reserved or not, enough or too little, on the device, in memory, in files, read in between: the same rows."""
    generator = torch.Generator().manual_seed(sum(chunks))
    rows = {name: [torch.randn(n, *shape, generator=generator).to(dtype) for n in chunks] for name, shape in SHAPES}
    store = Store(budget, device=torch.device("cpu"), room=room)
    layout = {name: (shape, dtype) for name, shape in SHAPES}
    if reserve:
        store.reserve(layout, reserve)
    for place in range(len(chunks)):
        if again and place == len(chunks) // 2:
            store.reserve(layout, again)
        for name, _ in SHAPES:
            store.append(name, rows[name][place])
        if place == 1:
            store.read("small")
    assert store.resident <= budget
    assert store.on_device <= room
    for name, parts in rows.items():
        assert torch.equal(store.read(name), torch.cat(parts))
        assert store.rows(name) == sum(chunks)
    store.close()


SHAPES = [("small", (2,)), ("wide", (3, 4)), ("one", ())]


def test_what_is_read_from_a_file_may_be_written_to_without_harm():
    store = Store(1)
    store.append("a", torch.ones(4, 3))
    store.append("a", torch.ones(4, 3))
    store.read("a").zero_()
    assert torch.equal(store.read("a"), torch.ones(8, 3))


def test_memory_is_used_again_only_when_no_tensor_lies_in_it():
    blocks = _Blocks(2**23)
    first = blocks.empty((2**20,), torch.float32)
    first.fill_(1)
    part = first[10:20]
    where = first.data_ptr()
    second = blocks.empty((2**20,), torch.float32)
    assert second.data_ptr() != where
    del first
    assert blocks.empty((2**20,), torch.float32).data_ptr() != where  # a view still lies there
    assert part.tolist() == [1] * 10
    del part
    again = blocks.empty((2**20 - 5,), torch.float32)  # a little smaller fits too
    assert again.data_ptr() == where
    del again, second
    used = blocks.empty((2**22,), torch.float32)
    assert sum(map(len, blocks._blocks)) <= 2**23 + 2**24  # at most what may be kept, beside what is in use
    del used
    blocks.release()
    assert blocks._blocks == []


def test_recordings_that_are_gone_do_not_change_those_that_are_read():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4096), torch.nn.Linear(4096, 4096))
    kept = record(model, torch.zeros(200, 4))["0"]
    copy = kept.clone()
    for _ in range(3):
        record(model, torch.rand(200, 4))["0"]
    assert torch.equal(kept, copy)


def test_tensors_outlive_the_store():
    store = Store(1)
    store.append("a", torch.arange(6.0).reshape(3, 2))
    kept = store.read("a")
    store.close()
    assert kept.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_no_temporary_file_is_left_whatever_happens(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model, x = torch.nn.Linear(64, 64), torch.rand(300, 64)
    recording = record(model, x, memory="1kB")
    recording["output"]
    assert os.listdir(tmp_path) == []  # they have no directory entry even while in use
    recording.close()

    class Stop(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.calls = torch.nn.Linear(64, 64), 0

        def forward(self, x):
            self.calls += 1
            if self.calls > 3:
                raise KeyboardInterrupt
            return self.inner(x)

    with pytest.raises(KeyboardInterrupt):
        record(Stop(), x, memory="1kB")["inner"]
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_said_with_the_place():
    store = Store(1)
    with open("/dev/full", "wb") as full:
        store.append("a", torch.ones(1, 1))
        store._slots["a"].file = full
        with pytest.raises(OSError, match=r"took no more .*set TMPDIR"):
            store.append("a", torch.ones(10_000, 1))
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # let the buffer be flushed somewhere


MEMORY = """
    import os, resource, sys, torch
    from torch import nn
    import lisse
    from lisse.data import Batch
    torch.set_num_threads(1)
    megabytes, known = int(sys.argv[1]), sys.argv[2] == "known"

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, 1))
        def forward(self, x):
            return x * self.weight

    def peak():
        return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) / 1024

    # cheap to run, much to keep: 20 layers of 256 KiB per sample
    model = nn.Sequential(*[Scale() for _ in range(20)])
    samples, size = int(megabytes * 10 * 1024 / (21 * 256)), 16
    x = torch.rand(size, 1, 256, 256)
    lisse.record(model, x)["19"].sum()  # what importing and running cost without a recording to keep
    before = peak()
    total = size * (samples // size)
    stream = (Batch(x, None, start) for start in range(0, total, size))
    recording = lisse.record(model, stream, memory=megabytes * 2**20, max_samples=total if known else None)
    for name in recording:
        assert len(recording[name]) == total
        recording[name][::64].sum()
    kept = sum(tap.numel * 4 for tap in recording.taps) * total / 2**20
    batch = sum(tap.numel * 4 for tap in recording.taps) * size / 2**20
    print(kept, peak() - before, batch)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux's record of peak memory")
@pytest.mark.parametrize("known", ["known", "unknown"])
def test_peak_memory_at_ten_times_the_budget(known):
    budget = 120
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEMORY), str(budget), known], capture_output=True, text=True, check=True
    )
    kept, grown, batch = map(float, run.stdout.split())
    assert kept > 9.5 * budget
    assert grown <= budget + batch + 300, f"peak grew by {grown:.0f} MB for a budget of {budget} MB"


@pytest.mark.parametrize("reserved", [True, False])
def test_rows_lie_on_the_device_while_it_has_room_then_in_memory_then_in_files(reserved):
    rows = {name: torch.rand(60, width) for name, width in (("a", 10), ("b", 20), ("c", 40))}
    store = Store(60 * 20 * 4 * 2, device=torch.device("cpu"), room=60 * 10 * 4 * 2)
    if reserved:
        store.reserve({name: (tuple(values.shape[1:]), values.dtype) for name, values in rows.items()}, 60)
    for start in range(0, 60, 20):
        for name, values in rows.items():
            store.append(name, values[start : start + 20])
    assert store.on_device <= store.room
    assert store.resident <= store.budget
    if reserved:
        assert [store._slots[name].apart for name in "abc"] == [True, False, False]
        assert [store._slots[name].file is None for name in "abc"] == [True, True, False]
    for name, values in rows.items():
        assert torch.equal(store.read(name), values)


def test_a_stack_that_outgrows_the_device_moves_as_a_whole():
    rows = torch.rand(90, 10)
    store = Store(2**20, device=torch.device("cpu"), room=60 * 10 * 4 * 2)
    for start in range(0, 90, 30):
        store.reserve({"a": ((10,), rows.dtype)}, 30)
        store.append("a", rows[start : start + 30])
        assert torch.equal(store.read("a"), rows[: start + 30])
        assert store.on_device <= store.room
    assert store.on_device == 0
    assert store.resident == rows.numel() * 4


def test_a_full_device_is_no_error(monkeypatch):
    store = Store(2**20, device=torch.device("cpu"), room=2**20)

    empty = torch.empty

    def full(*shape, device=None, **options):
        if device is not None:
            raise torch.OutOfMemoryError("full")
        return empty(*shape, **options)

    monkeypatch.setattr("lisse.recording.store.torch.empty", full)
    store.reserve({"a": ((10,), torch.float32)}, 30)
    monkeypatch.undo()
    store.append("a", torch.ones(30, 10))
    assert store.on_device == 0
    assert torch.equal(store.read("a"), torch.ones(30, 10))


def test_what_is_said_of_memory_holds_for_device_and_machine(monkeypatch):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (8 * 2**30, 16 * 2**30))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: 3 * 2**30)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: 2**30)
    assert budgets(None, torch.device("cpu")) == (2 * 2**30, 0)
    assert budgets("1GiB", torch.device("cuda")) == (2**30, 2**30)
    assert budgets(None, torch.device("cuda")) == (2 * 2**30, 5 * 2**30)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (80 * 2**30, 80 * 2**30))
    assert budgets(None, torch.device("cuda")) == (2 * 2**30, 6 * 2**30)


@pytest.mark.parametrize("reserved", [True, False])
def test_a_stack_that_leaves_the_device_goes_to_a_file_where_memory_has_no_room(reserved):
    rows = torch.rand(90, 100)
    store = Store(20_000, device=torch.device("cpu"), room=60 * 100 * 4 * 2)
    for start in range(0, 90, 30):
        if reserved:
            store.reserve({"a": ((100,), rows.dtype)}, 30)
        store.append("a", rows[start : start + 30])
        assert store.resident <= store.budget
    assert store.on_device == 0
    assert torch.equal(store.read("a"), rows)
