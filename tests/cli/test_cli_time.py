"""``lisse figure time``: the figure of a training from its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from torch import nn

from lisse import reporting
from lisse.instruments import Sensitivity
from lisse.run import Watch

Run = Callable[..., Result]


def trained(out: str) -> str:
    torch.manual_seed(0)
    watch = Watch(torch.rand(9, 3), Sensitivity.sized("quick", points=0), out=out)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    for step in range(3):
        watch.measure(model, step=step, epoch=step / 2)
        model[0].weight.data *= 1.5
    return out


def test_figures_of_trainings(lisse: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = trained("runs/a"), trained("runs/b")
    calls: list[tuple[str, Any, Any]] = []
    for name in ("time_figure", "time_heatmap", "time_overview_figure"):
        real = getattr(reporting, name)

        def spy(*args: Any, real: Any = real, name: str = name, **options: Any) -> Any:
            calls.append((name, args, options))
            return real(*args, **options)

        monkeypatch.setattr(reporting, name, spy)
    plain = {"where": None, "layers": None, "time": None}
    for words, name, options in [
        ([a], "time_overview_figure", {"layers": None, "time": None, "scale": "linear"}),
        ([a, "--quantity", "norm"], "time_figure", plain | {"scale": "linear"}),
        ([a, b, "--quantity", "norm", "--steps", "--log-time", "--layers", "2"], "time_figure",
         plain | {"layers": ("2",), "time": "step", "scale": "log"}),
        ([a + "/profiles", "--quantity", "effective_rank", "--heatmap", "--where", "cloud=9"], "time_heatmap",
         plain | {"where": {"cloud": 9}}),
    ]:  # fmt: skip
        result = lisse("figure", "time", *words, "-o", "x.png")
        assert result.exit_code == 0, result.output
        assert (calls[-1][0], calls[-1][2]) == (name, options)
        assert (folder / "x.png").read_bytes().startswith(b"\x89PNG")
    assert list(calls[2][1][0]) == ["a", "b"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["time", "a", "b"], 2, "go with --quantity; there are norm, effective_rank"),
        (["time", "a", "--where", "p=1"], 2, "go with --quantity"),
        (["time", "a", "b", "--quantity", "norm", "--heatmap"], 2, "--heatmap draws one training"),
        (["time", "a", "--quantity", "nrom"], 2, "Did you mean 'norm'?"),
        (["time", "."], 3, "load_profiles: folder must hold files like profiles/step-00000000.profile"),
        (["norm", "a/profiles/step-00000000.profile", "--heatmap"], 2, "go with `time` and the folder of a training"),
    ],
)
def test_what_is_refused(lisse: Run, words: list[str], code: int, said: str) -> None:
    trained("a"), trained("b")
    done = lisse("figure", *words, "-o", "x.png")
    assert (done.exit_code, done.stderr.count("\n")) == (code, 1)
    assert said in done.stderr
