"""The real data sets, under LISSE_DATA (make test-large)."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from lisse.cli.data import command
from lisse.data import cifar, load_data

pytestmark = [
    pytest.mark.large,
    pytest.mark.skipif(not os.environ.get("LISSE_DATA"), reason="LISSE_DATA is not set"),
]


def moments(data):
    x = data.inputs.double() / 255
    return x.mean((0, 2, 3)), x.std((0, 2, 3))


def test_mnist():
    train, test = load_data("mnist", split="train"), load_data("mnist")
    assert (len(train), len(test)) == (60000, 10000)
    mean, std = moments(train)
    assert float(mean) == pytest.approx(0.1307, abs=5e-5)
    assert float(std) == pytest.approx(0.3081, abs=5e-5)
    assert train.targets[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert test.targets.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_cifar10_once_per_process(monkeypatch):
    train, test = load_data("cifar10", split="train"), load_data("cifar10")
    assert train.targets.bincount().tolist() == [5000] * 10
    assert test.targets.bincount().tolist() == [1000] * 10
    torch.testing.assert_close(moments(train)[0], torch.tensor([0.49140, 0.48216, 0.44653]).double(), atol=1e-5, rtol=0)
    assert train.targets[:5].tolist() == [6, 9, 9, 4, 1]
    assert test.targets[:5].tolist() == [3, 8, 8, 0, 6]
    assert test.inputs[0, :, 0, 0].tolist() == [158, 112, 49]
    for reader in ("_sheets", "_archive", "_pickled", "_binary"):
        monkeypatch.setattr(cifar, reader, None)  # a second reading would call one of them
    assert torch.equal(load_data("cifar10", split="train").inputs, train.inputs)
    assert len(load_data("cifar10", limit=5)) == 5


def test_cifar10_sheets_as_the_readme_decodes_them():
    from PIL import Image

    sheet = np.asarray(Image.open(os.path.join(os.environ["LISSE_DATA"], "cifar10", "test.webp")).convert("RGB"))
    wanted = sheet.reshape(500, 32, 20, 32, 3).transpose(2, 0, 1, 3, 4).reshape(-1, 32, 32, 3)
    assert np.array_equal(load_data("cifar10").inputs.numpy().transpose(0, 2, 3, 1), wanted)


def test_negation_pairs_and_sentences():
    pairs = load_data("negation/negated_pairs_unique.jsonl")
    assert len(pairs) == len(pairs.partner) == 11163
    assert int((pairs.lengths < pairs.partner.lengths).sum()) > 10000
    text = load_data("text:text/wikipedia_sentences.txt.xz", limit=1000)
    assert len(text) == 1000
    assert len(load_data("negation/ettinger_NEG-136-NAT.tsv").partner) == 16


def test_photographs():
    assert load_data("folder:images?size=64").inputs.shape == (11, 3, 64, 64)


def test_listed_as_official():
    found = {item["name"]: item for item in json.loads(CliRunner().invoke(command, ["--json"]).output)["data"]}
    assert [file["official"] for file in found["mnist"]["files"]] == [True] * 4
    assert found["cifar10"]["state"] == "complete"
