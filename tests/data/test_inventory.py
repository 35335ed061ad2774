from __future__ import annotations

import hashlib
import json

from click.testing import CliRunner

from lisse.cli.data import command
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
