from __future__ import annotations

import hashlib
import json

from click.testing import CliRunner

from lisse.cli.data import command
from lisse.data import cifar
from lisse.data.sources import SOURCES


def listed(*options):
    result = CliRunner().invoke(command, options)
    assert result.exit_code == 0, result.output
    return result.output


def test_everything_is_listed():
    text = listed()
    for source in SOURCES.values():
        assert source.spec in text
        assert source.about in text
    assert "download=true" in text


def test_json_with_checksums(data_folder):
    (data_folder / "mnist").mkdir()
    for name in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        (data_folder / "mnist" / name).write_bytes(b"not the real one")
    found = json.loads(listed("--json"))
    by_name = {item["name"]: item for item in found["data"]}
    assert found["places"][0] == {"label": "LISSE_DATA", "folder": str(data_folder), "exists": True}
    assert by_name["digits"]["state"] == "embedded"
    assert by_name["mnist"]["state"] == "partial"
    assert by_name["mnist"]["files"][0]["sha256"] == hashlib.sha256(b"not the real one").hexdigest()
    assert by_name["mnist"]["files"][0]["official"] is False
    assert by_name["cifar10"]["state"] == "missing"
    assert "DIFFERS" in listed()


def test_rows_stay_in_their_columns(data_folder, monkeypatch):
    deep = data_folder / ("a-very-long-folder-name-" * 6)
    (deep / "mnist").mkdir(parents=True)
    for name in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        (deep / "mnist" / name).write_bytes(b"x" * 2000)
    monkeypatch.setenv("LISSE_DATA", str(deep))
    lines = listed().splitlines()
    starts = {next(line for line in lines if line.startswith(s.spec + " ")).index(s.about) for s in SOURCES.values()}
    assert len(starts) == 1
    assert all(len(line) <= 100 for line in lines if str(deep) not in line)
    assert sum(str(deep) in line for line in lines) == 2  # where mnist is, and where was searched


def test_pickles_of_cifar_have_published_checksums(data_folder, monkeypatch):
    folder = data_folder / "cifar10"
    folder.mkdir()
    for name, content in (("test_batch", b"the real one"), *((f"data_batch_{k}", b"another") for k in range(1, 6))):
        (folder / name).write_bytes(content)
        monkeypatch.setitem(cifar.OFFICIAL, name, (12, hashlib.md5(b"the real one").hexdigest()))
    found = {item["name"]: item for item in json.loads(listed("--json"))["data"]}["cifar10"]["files"]
    assert [file["official"] for file in found] == [False] * 5 + [True]
    assert "no published checksum" not in listed()
