"""layers, figure, compare and demo."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from lisse.cli.layers import tree
from lisse.instruments import Robustness, Stability, Topology
from lisse.profile import Part, Profile, Quantity, Row
from lisse.taps import Tap

Run = Callable[..., Result]
MODEL = "tiny_models:sound"
Q = (Quantity("norm", "norm", "How long."), Quantity("rank", "rank", "How many."))


def saved(
    path: str, *values: float, kind: str = "exact", data: str = "f", half: float | None = None, seed: int = 0
) -> str:
    rows = [
        Row("norm", value, kind, 1, f"l{place}", place / len(values),  # type: ignore[arg-type]
            None if half is None else value - half, None if half is None else value + half, {"p": 1})
        for place, value in enumerate(values)
    ]  # fmt: skip
    rows.append(Row("rank", 1.0, "exact", 1))
    provenance = {"model": {"name": Path(path).stem}, "data": {"name": data, "fingerprint": data}, "seed": seed}
    Profile((Part("s", tuple(rows), Q),), provenance).save(path)
    return path


# -- layers ------------------------------------------------------------------------------------------------------------


def test_layers_shows_shapes_sizes_and_a_tree(lisse: Run) -> None:
    result = lisse("layers", "zoo:resnet20")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["layer", "role", "kind", "shape", "parameters", "MB", "per", "1,000"]
    assert "│  ├─ layer1" in lines
    first = next(line for line in lines if "├─ 0" in line)
    assert first.split() == [
        "│",
        "│",
        "├─",
        "0",
        "block",
        "BasicBlock",
        "16",
        "×",
        "32",
        "×",
        "32",
        "4,672",
        "65.54",
    ]  # 2 · (16 · 16 · 9 + 32)
    assert lines[-1] == "12 layers, 421.9 MB per 1,000 samples, 269,722 parameters."


def test_layers_as_json_says_the_same(lisse: Run) -> None:
    document = json.loads(lisse("layers", "zoo:resnet20", "--json").stdout)
    layer = document["layers"][2]
    assert layer["name"] == "network.layer1.0"
    assert layer["shape"] == [16, 32, 32]
    assert layer["megabytes_per_1000"] == 16 * 32 * 32 * 4 * 1000 / 1e6
    assert [item["depth"] for item in document["layers"]][::11] == [0.0, 1.0]


def test_layers_takes_data_and_globs_and_says_what_was_skipped(lisse: Run, folder: Path) -> None:
    (folder / "importable" / "folding_models.py").write_text(
        "from torch import nn\n\n\nclass Fold(nn.Module):\n"
        "    def forward(self, x):\n        return x.reshape(-1, 1)\n\n\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.fold, self.line = Fold(), nn.Linear(3, 2)\n"
        "    def forward(self, x):\n        self.fold(x)\n        return self.line(x)\n"
    )
    result = lisse("layers", "folding_models:Net", "--data", "points.npz", "--layers", "line")
    assert result.exit_code == 0, result.stderr
    assert "└─ line  block  Linear  2" in result.stdout
    assert "1 layers" in result.stdout
    assert "Skipped 1:\n  fold folds 3 parts of each sample into the batch" in result.stdout
    assert "input" not in result.stdout.split("Skipped")[0]


def test_layers_says_what_is_not_seen(lisse: Run, folder: Path) -> None:
    (folder / "importable" / "functional_models.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.a = nn.Parameter(torch.ones(3, 3))\n"
        "        self.b = nn.Parameter(torch.ones(3, 2))\n\n    def forward(self, x):\n"
        "        return (x @ self.a).relu() @ self.b\n",
        encoding="utf-8",
    )
    result = lisse("layers", "functional_models:Net", "--data", "points.npz")
    assert "Note: No layers were found between input and output: its forward calls no module" in result.stdout
    document = json.loads(lisse("layers", "functional_models:Net", "--data", "points.npz", "--json").stdout)
    assert len(document["notes"]) == 1


def test_layers_without_an_example_asks_for_one(lisse: Run) -> None:
    result = lisse("layers", MODEL)
    assert (result.exit_code, "give an example with --data" in result.stderr) == (2, True)
    result = lisse("layers", MODEL, "--data", "points.npz", "--layers", "frist")
    assert (result.exit_code, "The nearest are" in result.stderr) == (2, True)


def test_a_tree_draws_single_branches_together_and_keeps_the_order() -> None:
    names = ["input", "a.b.0", "a.b.1", "a.b.1.x", "c.d"]
    lines = [(branch + name, tap and tap.name) for branch, name, tap in tree([Tap(name, "") for name in names])]
    assert lines == [
        ("├─ input", "input"),
        ("├─ a.b", None),
        ("│  ├─ 0", "a.b.0"),
        ("│  └─ 1", "a.b.1"),
        ("│     └─ x", "a.b.1.x"),
        ("└─ c.d", "c.d"),
    ]


# -- figure ------------------------------------------------------------------------------------------------------------


def test_figure_writes_the_picture_of_the_rows(lisse: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lisse.reporting import charts

    drawn = []
    real = charts.depth_figure
    monkeypatch.setattr(charts, "depth_figure", lambda *args, **kw: drawn.append((args, kw)) or real(*args, **kw))
    a, b = saved("a.profile", 1.0, 2.0), saved("b.profile", 3.0, 4.0)
    result = lisse("figure", "norm", a, b, "-o", "pictures/x.png", "--where", "p=1")
    assert result.exit_code == 0, result.stderr
    ((profiles, quantity), options) = drawn[0]
    assert ([profile.name for profile in profiles], quantity, options) == (["a", "b"], "norm", {"where": {"p": 1}})
    assert (folder / "pictures" / "x.png").read_bytes().startswith(b"\x89PNG")
    assert lisse("figure", "overview", a, "-o", "all.svg").exit_code == 0
    assert "<svg" in (folder / "all.svg").read_text()


def test_figure_of_a_chart(lisse: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from lisse.instruments import Stability
    from lisse.reporting import charts
    from lisse.run import measure

    images = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    measure(torch.nn.Flatten(), images, Stability.sized("quick", cut=(2, 3))).save("s.profile")
    drawn = []
    real = charts.chart_figure
    monkeypatch.setattr(charts, "chart_figure", lambda *args, **kw: drawn.append(kw["where"]) or real(*args, **kw))
    assert lisse("figure", "stability", "s.profile", "-o", "s.png").exit_code == 0
    assert (folder / "s.png").read_bytes().startswith(b"\x89PNG")
    assert (
        lisse("figure", "stability", "s.profile", "-o", "s.svg", "--where", "cut=2", "--where", "delta=1").exit_code
        == 0
    )
    assert drawn == [{}, {"cut": 2, "delta": 1}]
    for words, said in (
        (["--where", "cut=7"], "must hold what 'stability' draws at cut=7, got none"),
        (["--where", "p=1"], "where of 'stability' must take cut=… and delta=…, got p=1"),
        (["--where", "cut=three"], "must hold what 'stability' draws at cut=three, got none"),
    ):
        result = lisse("figure", "stability", "s.profile", "-o", "x.png", *words)
        assert (result.exit_code, said in result.stderr) == (2, True), result.stderr
    result = lisse("figure", "stability", saved("a.profile", 1.0), "-o", "x.png")
    assert (result.exit_code, "Run `lisse measure stability MODEL --data SPEC`" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["nrm", "a.profile", "-o", "x.png"],
            "name must be one of norm, rank, overview, got 'nrm'. Did you mean 'norm'?",
        ),
        (["rank", "a.profile", "-o", "x.png"], "must have rows along depth"),
        (["norm", "a.profile", "-o", "x.bmp"], "must end in .png, .svg, .pdf"),
        (["norm", "a.profile", "-o", "x.png", "--where", "p"], "--where takes KEY=VALUE, got 'p'"),
        (["norm", "a.profile", "-o", "x.png", "--where", "p=2.5"], "where must match some rows"),
        (["overview", "a.profile", "-o", "x.png", "--where", "p=1"], "not with the overview"),
        (["norm", "-o", "x.png"], "Missing argument 'PROFILE...'"),
    ],
)
def test_figure_refuses(lisse: Run, words: list[str], said: str) -> None:
    saved("a.profile", 1.0, 2.0)
    result = lisse("figure", *words)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


def test_a_damaged_profile_is_trouble_with_a_file(lisse: Run, folder: Path) -> None:
    path = Path(saved("a.profile", 1.0))
    path.write_bytes(path.read_bytes()[:-30])
    result = lisse("figure", "norm", path, "-o", "x.png")
    assert (result.exit_code, "a.profile" in result.stderr) == (3, True)


# -- compare -----------------------------------------------------------------------------------------------------------


def test_compare_puts_rows_side_by_side(lisse: Run) -> None:
    a, b = (
        saved("a.profile", 1.0, 5.0, kind="estimate", half=0.5),
        saved("b.profile", 3.0, 5.2, kind="estimate", half=0.5),
    )
    result = lisse("compare", a, b)
    assert result.exit_code == 0, result.stderr
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["quantity", "layer", "where", "a", "b", "b", "-", "a", "apart"],
        ["norm", "l0", "p=1", "1", "3", "2", "yes"],
        ["norm", "l1", "p=1", "5", "5.2", "0.2", "no"],
        ["rank", "1", "1", "0", "no"],
    ]
    assert "a: a.profile (a), b: b.profile (b); 3 rows in both." in result.stderr
    assert "warning" not in result.stderr
    assert len(lisse("compare", a, b, "--apart").stdout.splitlines()) == 2


def test_compare_as_json_is_strict(lisse: Run) -> None:
    result = lisse("compare", saved("a.profile", math.nan), saved("b.profile", 1.0), "--json")
    rows = [json.loads(line, parse_constant=lambda name: pytest.fail(name)) for line in result.stdout.splitlines()]
    assert (rows[0]["a"], rows[0]["b"], rows[0]["apart"]) == ("nan", 1.0, None)


def test_compare_warns_of_what_else_differs_and_fails_without_common_rows(lisse: Run) -> None:
    a, b = saved("a.profile", 1.0, data="f"), saved("b.profile", 1.0, 2.0, data="g", seed=1)
    result = lisse("compare", a, b)
    assert "lisse: warning: the two were measured on different data (f and g)." in result.stderr
    assert "lisse: warning: seed differs (0 and 1)." in result.stderr
    assert "1 only in b" in result.stderr
    for path, tokenizer in ((a, "words"), (b, "bytes")):
        text = {"name": "f", "fingerprint": "f", "tokenizer": {"name": tokenizer, "fingerprint": tokenizer}}
        Profile(Profile.load(path).parts, {"model": {"name": path}, "data": text}).save(path)
    result = lisse("compare", a, b)
    assert "lisse: warning: tokenizers differ (words; bytes): the texts are the same" in result.stderr
    assert "different data" not in result.stderr
    Profile((), {"model": {"name": "empty"}}).save("c.profile")
    result = lisse("compare", a, "c.profile")
    assert result.exit_code == 1
    assert "have no rows in common: a.profile has norm, rank; empty has no rows." in result.stderr


# -- demo --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_demo_trains_measures_draws_and_works_twice(lisse: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Those whose numbers are printed; tests/browser runs the whole demo.
    kinds = (Topology, Stability, Robustness)
    monkeypatch.setattr("lisse.cli.demo._instruments", lambda: [kind.sized("quick") for kind in kinds])
    outputs = []
    for _ in range(2):
        result = lisse("demo", "--out", "a b", "--epochs", 3)
        assert result.exit_code == 0, result.stderr
        outputs.append(result.stdout)
    assert outputs[0] == outputs[1]


def test_demo_makes_a_page_of_two_networks(lisse: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Three instruments here; tests/browser looks at the whole page.
    kinds = (Topology, Stability)
    monkeypatch.setattr("lisse.cli.demo._instruments", lambda: [kind.sized("quick") for kind in kinds])
    result = lisse("demo", "--out", "a b", "--epochs", 1)
    assert result.exit_code == 0, result.stderr
    profile = Profile.load(folder / "a b" / "plain.profile")
    assert profile.name == "plain"
    stable = [row.layer for row in profile["stability"].rows if row.quantity == "relative_stability"]
    assert stable == ["input", "conv1", "conv2", "conv3", "hidden", "scores"]
    assert Profile.load(folder / "a b" / "deformed.profile")["topology"].rows
    for name in ("plain", "deformed"):
        said = rf"{name}: [\d.]+% of 1,000 new images right; R_f [\d.]+ with random weights, [\d.]+ trained"
        assert re.search(said, result.stdout)
    assert "How sure" in result.stdout
    page = (folder / "a b" / "report.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "Failed: " not in page
    assert (folder / "a b" / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "Page     a b/report.html" in result.stdout
    assert "train plain: 1 of 1 epochs" in result.stderr
    names = ["deformed.profile", "figure.png", "plain.profile", "report.html"]
    assert sorted(path.name for path in (folder / "a b").iterdir()) == names


def test_demo_without_matplotlib_still_makes_the_page(
    lisse: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from lisse import reporting

    monkeypatch.setattr(sys.modules["lisse"], "reporting", reporting)  # importing anew replaces it; this puts it back
    for name in [name for name in sys.modules if name.startswith("lisse.reporting")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("lisse.cli.demo._instruments", lambda: [Topology.sized("quick")])
    result = lisse("demo", "--epochs", 1)
    assert result.exit_code == 0, result.stderr
    assert "left out: lisse.reporting: figures need matplotlib" in result.stdout
    assert 'pip install "lisse[report]"' in result.stdout
    assert (folder / "lisse-demo" / "report.html").exists()
