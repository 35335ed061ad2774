"""A file is the old one or the new one, whatever happens to the writer."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from profile_samples import example

from lisse import profile_file
from lisse.profile_file.replacement import write_tensors


def test_after_an_error_the_old_file_stays_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"old")

    def interrupted() -> None:
        with profile_file.writing(tmp_path / "x") as file:
            file.write(b"half of the new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (tmp_path / "x").read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]
    with profile_file.writing(tmp_path / "x") as file:
        file.write(b"new")
    assert (tmp_path / "x").read_bytes() == b"new"


def test_new_files_have_ordinary_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        assert profile_file.save(example(), tmp_path / "x").stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)


WRITER = """
import sys, numpy as np
from lisse import profile_file
print("ready", flush=True)
number = 0
while True:
    number += 1
    profile_file.save_arrays({"a": np.full(300_000, float(number)), "b": np.full(3, float(number))}, sys.argv[1])
"""


def half_written(writer: subprocess.Popen[bytes], folder: Path) -> None:
    """Stop the writer in the middle of a write, however slow the machine: the kill that follows finds it there."""
    # Its file, not its folder: between the two the folder is not locked yet, and the next writer may take it away.
    before = set(folder.glob(".x.*.tmp/new"))
    while True:
        writer.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(writer.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "the writer has ended by itself"
        if set(folder.glob(".x.*.tmp/new")) - before:
            return
        writer.send_signal(signal.SIGCONT)
        time.sleep(0.001)


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_writer_killed_in_the_middle_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    profile_file.save_arrays({"a": np.zeros(300_000), "b": np.zeros(3)}, path)
    halves = 0
    for attempt in range(8):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(0.02 + 0.013 * attempt)
        if attempt % 2:  # the others wherever they happen to be
            half_written(writer, tmp_path)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        arrays = profile_file.load_arrays(path)
        assert set(arrays["a"]) == set(arrays["b"])
        assert len(set(arrays["a"])) == 1
        halves += len(list(tmp_path.glob(".x.*.tmp")))
    assert halves > 0, "no writer was killed in the middle of a write: this test would prove nothing"


def test_tensors_that_share_memory_are_written_once_or_copied(tmp_path):
    from safetensors.torch import load_file

    values = torch.arange(6.0)
    tensors = {"a": values, "tied": values, "reshaped": values.reshape(2, 3), "part": values[:2], "empty": values[:0]}
    path = tmp_path / "deep" / "x.safetensors"
    write_tensors(path, tensors, {"note": "n"})
    state = load_file(path)
    assert list(state) == sorted(["a", "reshaped", "part", "empty"])
    assert all(torch.equal(state[name], tensors[name]) for name in state)
    assert [file.name for file in path.parent.iterdir()] == ["x.safetensors"]


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_what_a_killed_writer_left_is_removed_by_the_next_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"ready\n"
    half_written(writer, tmp_path)  # it is stopped, and lives
    others = [tmp_path / ".y.0123abcd.tmp", tmp_path / ".x.mine.tmp", tmp_path / ".x.tmp"]
    for other in others:
        other.write_bytes(b"not of x")
    profile_file.save_arrays({"a": np.zeros(2), "b": np.zeros(2)}, path)
    assert len(list(tmp_path.glob(".x.????????.tmp"))) == 1, "a living writer keeps its own"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    profile_file.save_arrays({"a": np.zeros(2), "b": np.zeros(2)}, path)
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])


def test_a_full_disk_is_said_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(OSError, match="No space left on device") as caught, profile_file.writing(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(path)
    assert not list(tmp_path.iterdir())
