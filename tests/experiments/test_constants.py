from __future__ import annotations

import math
from pathlib import Path

import pytest
from matplotlib.colors import to_hex

from lisse.reporting import save_figure
from lisse.reporting.figure import PALETTE
from lisse_experiments.topolip.constants import Constant, Setting, constants, constants_figure


def row(layer: str, source: str, x: float, value: float, *, against: str = "sigma", valid: bool = True) -> Constant:
    kind = {"order": "heuristic", "printed": "heuristic", "corrected": "upper", "measured": "lower"}[source]
    return Constant(
        layer, source, against, x, value, math.log10(value) if value < math.inf else 400.0, kind, valid,
        value * 0.9, value * 1.1, 3,
    )  # fmt: skip


TABLE = [
    *(row("attention", "order", x, x**2) for x in (0.01, 0.1, 1)),
    *(row("convolution", "order", x, 0.5) for x in (0.01, 0.1, 1)),
    *(row("attention", "measured", x, 3 * x) for x in (0.01, 0.1, 1)),
    *(row("convolution", "measured", x, 0.2) for x in (0.01, 0.1, 1)),
    *(row("attention", "corrected", x, 10.0, valid=x < 1) for x in (0.01, 0.1)),
    row("attention", "corrected", 1, math.inf, valid=False),
]


def test_lines_are_the_tables_and_words_say_who_is_smoother():
    ax = constants_figure(TABLE).axes[0]
    assert ax.get_title(loc="left") == "O(): attention smoother up to 0.1\nmeasured: attention smoother up to 0.01"
    order = next(line for line in ax.lines if to_hex(line.get_color()).upper() == PALETTE[0].upper())
    assert list(order.get_xdata()) == [0.01, 0.1, 1]
    assert list(order.get_ydata()) == pytest.approx([1e-4, 1e-2, 1])
    assert order.get_linestyle() not in ("-", "solid")  # never drawn as a bound


def test_only_a_proved_bound_has_a_full_line_and_what_leaves_is_named():
    figure = constants_figure(TABLE, Setting(sigma=0.25))
    ax = figure.axes[0]
    full = [line for line in ax.lines if line.get_linestyle() == "-" and len(line.get_xdata()) > 2]
    assert len(full) == 1
    assert list(full[0].get_ydata())[:2] == [10.0, 10.0]
    assert [text.get_text() for text in ax.texts] == ["↑ 10^400"]
    assert any("σ = 0.25" in text.get_text() for text in figure.texts)
    marks = [line.get_markerfacecolor() for line in ax.lines if line.get_marker() == "D"]
    assert len(marks) == 2


def test_a_bound_that_is_not_valid_is_hollow():
    table = [row("attention", "corrected", 1, 2.0, valid=False), row("attention", "corrected", 2, 2.0)]
    marks = [line for line in constants_figure(table).axes[0].lines if line.get_marker() == "D"]
    assert [mark.get_markerfacecolor() for mark in marks] == ["white", PALETTE[0]]


def test_one_panel_per_sweep_saved_as_a_file(tmp_path: Path):
    other = [row("attention", "measured", x, x, against="d") for x in (16, 32)]
    figure = constants_figure([*TABLE, *other], title="A title")
    assert [ax.get_xlabel() for ax in figure.axes] == ["σ, spread of the weights", "d, width of tokens"]
    assert figure.texts[0].get_text() == "A title"
    assert save_figure(figure, tmp_path / "a.png").stat().st_size > 1000
    with pytest.raises(ValueError, match="table must hold at least one constant"):
        constants_figure([])


def test_the_measured_constants_are_those_of_the_theory_of_random_matrices():
    """The convolution ≈ 2σ whatever C, attention ≈ 2dσ²√M: at this initialisation the less smooth one."""
    table = constants(
        Setting(sigma=0.05, d=64, heads=4, channels=32, k=1), sweeps={"heads": (4,), "sigma": (0.001,)}, size=12
    )  # fmt: skip
    found = {(one.layer, one.source, one.against): one for one in table}
    assert found["convolution", "measured", "heads"].value == pytest.approx(0.1, rel=0.1)
    assert found["attention", "measured", "heads"].value == pytest.approx(0.71, rel=0.12)
    assert found["attention", "measured", "sigma"].value < found["convolution", "measured", "sigma"].value
    assert found["attention", "order", "heads"].value == pytest.approx(0.05**6 * 64**2.5 * 4)
    for layer in ("attention", "convolution"):
        measured, corrected = (found[layer, source, "heads"] for source in ("measured", "corrected"))
        assert measured.value <= corrected.value
        assert measured.low <= measured.value <= measured.high
        assert (measured.kind, measured.n) == ("lower", 3)
        assert (corrected.kind, corrected.valid) == ("upper", True)
        assert not found[layer, "printed", "heads"].valid
    # With weights this small the printed bound is under what was measured.
    assert found["attention", "printed", "sigma"].value < found["attention", "measured", "sigma"].value


def test_bad_sweeps_are_refused():
    with pytest.raises(ValueError, match=r"sweeps must be over .*, got 'width'"):
        constants(sweeps={"width": (1,)})
    with pytest.raises(ValueError, match="draws must be at least 2, got 1"):
        constants(draws=1)
