"""What a function is, as text: the same in every process, another when the function is another."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import dataclass

from torch import nn

from lisse.data.augmentation import CropFlip
from lisse.training.identity import described

SCRIPT = """
import functools
from dataclasses import dataclass
from torch import nn
from lisse.training.identity import described

def word(output, targets, name="a"):
    return name in {"mean", "sum", "none", "batch", "other"}

@dataclass
class Held:
    function: object

print(described(word))
print(described(functools.partial(word, nn.functional.cross_entropy, name=print)))
print(described(Held(word)))
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
    assert len({described(function) for function in functions}) == len(functions)
    assert described(penalty(2.0)) == described(penalty(2.0))


def test_partials_values_and_modules():
    @dataclass
    class Held:
        function: object
        sizes: tuple[int, ...] = (1, 2)

    loss = nn.functional.cross_entropy
    said = [
        described(functools.partial(loss, **options))
        for options in ({}, {"label_smoothing": 0.1}, {"label_smoothing": 0.2}, {"weight": loss}, {"weight": print})
    ]
    assert len(set(said)) == 5
    assert described(CropFlip(2, False)) == "CropFlip(padding=2, flip=False)"
    assert described(Held(loss)) != described(Held(loss, (1, 3))) != described(Held(print, (1, 3)))
    assert described(nn.SmoothL1Loss()) == "SmoothL1Loss()"
    assert described(print) == "builtins.print"
