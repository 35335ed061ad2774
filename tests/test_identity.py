"""What a function is, as text: the same in every process, another when the function is another."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from lisse import identity
from lisse.data.augmentation import CropFlip
from lisse.identity import checksum, class_source, function_identity, tensor_identity

SCRIPT = """
import functools
from dataclasses import dataclass
from torch import nn
from lisse.identity import function_identity

def word(output, targets, name="a"):
    return name in {"mean", "sum", "none", "batch", "other"}

@dataclass
class Held:
    function: object

print(function_identity(word))
print(function_identity(functools.partial(word, nn.functional.cross_entropy, name=print)))
print(function_identity(Held(word)))
"""


def test_it_is_the_same_in_every_process(capsys):
    environment = {**os.environ, "PYTHONHASHSEED": "1"}  # another order of the set than here
    there = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=environment)
    exec(compile(SCRIPT, "<string>", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == there.stdout
    assert " at 0x" not in there.stdout


def penalty(power: float, *, inside: float = 1.0, default: float = 2.0, keyword: float = 3.0):
    scale = inside

    def function(values, batch, base=default, *, times=keyword):
        return sum((lambda value: value * scale)(value) for value in values) ** power * base * times

    return function


def test_it_changes_with_code_constants_defaults_and_closure():
    functions = [
        penalty(2.0), penalty(3.0), penalty(2.0, inside=5.0), penalty(2.0, default=5.0), penalty(2.0, keyword=5.0),
        lambda values, batch: sum(values), lambda values, batch: sum(values) * 2,
        lambda values, batch: [value * 2 for value in values], lambda values, batch: [value * 3 for value in values],
        lambda values, _: (lambda value: value * 2)(values), lambda values, _: (lambda value: value * 3)(values),
        lambda values, batch: values in {"a", "b"}, lambda values, batch: values in {"a", "c"},
    ]  # fmt: skip
    assert len({function_identity(function) for function in functions}) == len(functions)
    assert function_identity(penalty(2.0)) == function_identity(penalty(2.0))


def test_partials_values_and_modules():
    @dataclass
    class Held:
        function: object
        sizes: tuple[int, ...] = (1, 2)

    loss = nn.functional.cross_entropy
    said = [
        function_identity(functools.partial(loss, **options))
        for options in ({}, {"label_smoothing": 0.1}, {"label_smoothing": 0.2}, {"weight": loss}, {"weight": print})
    ]
    assert len(set(said)) == 5
    assert function_identity(CropFlip(2, False)) == "CropFlip(padding=2, flip=False)"
    assert (
        function_identity(Held(loss)) != function_identity(Held(loss, (1, 3))) != function_identity(Held(print, (1, 3)))
    )
    assert function_identity(nn.SmoothL1Loss()) == "SmoothL1Loss()"
    assert function_identity(print) == "builtins.print"


def test_tensors_in_closures_and_defaults_count():
    def scaled(values):
        return lambda x: x * values

    def by_default(values):
        return lambda x, factor=values: x * factor

    for make in (scaled, by_default):
        values = [torch.ones(2), torch.ones(2), np.ones(2), torch.ones(2, 1), torch.zeros(2)]
        first, again, *others = (function_identity(make(value)) for value in values)
        assert first == again
        assert len({first, *others}) == 4
    assert function_identity(scaled((1, torch.ones(2)))) != function_identity(scaled((1, torch.zeros(2))))


def test_a_tensor_is_its_numbers_however_it_lies_in_memory():
    values = torch.arange(12.0).reshape(3, 4)
    same = [values, values.T.contiguous().T, values.clone().requires_grad_(), values.numpy()[:, :]]
    assert len({tensor_identity(value).partition(" ")[2] for value in same}) == 1
    strange = [values.T, values.double(), values.reshape(4, 3), torch.tensor(1.0), torch.empty(0, 4), values > 3]
    assert len({tensor_identity(value) for value in (values, *strange)}) == 7
    assert tensor_identity(np.array([object()])).startswith("object [1] ")


def test_classes_that_a_function_makes_are_told_apart_by_what_they_enclose():
    """Two networks of one such name and the same weights are two networks."""

    def network(activation):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()

            def forward(self, x):
                return activation(x)

        return Net

    def doubled(x):
        return 2 * x

    sources = [class_source(network(function)) for function in (torch.relu, torch.tanh, doubled, lambda x: 3 * x)]
    assert len(set(sources)) == 4
    assert class_source(network(torch.relu)) == sources[0]


def test_a_class_is_its_file_or_its_code():
    assert class_source(nn.Linear) == torch.__version__
    assert "def test_a_class_is_its_file_or_its_code" in class_source(type("Here", (), {"__module__": __name__}))
    without = []
    for factor in (2, 2, 3):  # as in a notebook's cell, run again
        names = {"__name__": "a_cell"}
        exec(f"class Double:\n    def part(self, x):\n        return x * {factor}", names)
        without.append(class_source(names["Double"]))
    assert without[0] == without[1] != without[2]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8, torch.bool, torch.complex64]
)
def test_the_checksum_of_a_tensor_is_that_of_its_bytes(dtype):
    values = (torch.rand(3, 40, generator=torch.Generator().manual_seed(0)) * 2).to(dtype)
    sums = checksum(values)
    assert torch.equal(sums, checksum(values.clone().reshape(40, 3)))
    assert torch.equal(sums, checksum(values.T.contiguous().T))
    for place in range(values.numel()):
        other = values.clone().reshape(-1)
        bytes_of = other.view(torch.uint8).reshape(len(other), -1)
        bytes_of[place, -1] ^= 1
        assert bool((checksum(other) != sums).all())  # weights are odd: no word can change without its sums
    swapped = torch.arange(8, dtype=torch.int64)
    assert not torch.equal(checksum(swapped), checksum(swapped.flip(0)))


@pytest.mark.parametrize("count", [0, 6, 7, 8, 100])
def test_the_checksum_goes_row_by_row(count, monkeypatch):
    """Sums of words, each times the odd weights of its row and of its column, against whole numbers of Python."""
    monkeypatch.setattr("lisse.identity._WIDTH", 7)
    words = torch.randint(-(2**31), 2**31, (count,), generator=torch.Generator().manual_seed(0)).int()
    weights = identity._odd(1 + count, words.device).tolist()
    assert all(weight % 2 for row in weights for weight in row)
    expected = [sum(row[k // 7] * row[k % 7] * word for k, word in enumerate(words.tolist())) for row in weights]
    assert [(total - other) % 2**64 for total, other in zip(checksum(words).tolist(), expected, strict=True)] == [0, 0]
