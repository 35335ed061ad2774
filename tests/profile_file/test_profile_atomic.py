"""A file is the old one or the new one, whatever happens to the writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from profile_samples import example

from lisse import profile_file


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
    before = set(folder.glob(".x.*.tmp"))
    while True:
        writer.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(writer.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "the writer has ended by itself"
        if len(before | set(folder.glob(".x.*.tmp"))) > len(before):
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
