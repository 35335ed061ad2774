from __future__ import annotations

import pytest

from lisse.profile import Part, Profile, Quantity, Row
from lisse.reporting import chart_figure, save_figure

NAMES = (
    "clean_accuracy",
    "attack_accuracy",
    "noise_accuracy",
    "deformation_accuracy",
    "corruption_accuracy",
    "mean_accuracy",
)
QUANTITIES = tuple(Quantity(name, name, name) for name in NAMES)


def row(quantity, value, **at):
    return Row(quantity, value, "estimate", 100, low=value - 0.05, high=value + 0.05, at=at)


def profile(name: str = "a", *, shift: float = 0.0, rows=None) -> Profile:
    made = [row("clean_accuracy", 0.9)]
    for eps in (0.01, 0.02, 0.04):
        made += [
            row("attack_accuracy", 0.8 - shift - strength * eps, attack=attack, norm="linf", eps=eps)
            for attack, strength in (("noise", 1), ("fgsm", 8), ("pgd", 12), ("search", 2), ("autoattack", 14))
        ]
    made += [row("attack_accuracy", 0.5, attack="pgd", norm="linf", eps=0.5, step=step) for step in (0.01, 0.1)]
    made += [row("noise_accuracy", 0.9 - sigma, sigma=sigma) for sigma in (0.0, 0.1)]
    made += [row("deformation_accuracy", 0.9 - delta / 10, cut=3, delta=delta) for delta in (1.0, 2.0)]
    for place, kind in enumerate(("snow", "fog")):
        made += [row("corruption_accuracy", 0.9 - s / 10 - place / 10, corruption=kind, severity=s) for s in (1, 3, 5)]
        made.append(row("mean_accuracy", 0.6 - place / 10 - shift, corruption=kind))
    part = Part("robustness", tuple(made if rows is None else rows), QUANTITIES)
    return Profile((part,), {"model": {"name": name}})


def lines(ax):
    return [
        [tuple(map(float, pair)) for pair in zip(line.get_xdata(), line.get_ydata(), strict=True)]
        for line in ax.lines
        if len(line.get_xdata()) > 1
    ]


def test_every_axis_has_a_panel_with_the_rows_on_it(tmp_path):
    figure = chart_figure(profile(), "robustness")
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == [
        "under attack · norm=linf", "under PGD, by its step · attack=pgd norm=linf eps=0.5", "with Gaussian noise",
        "after a smooth deformation · cut=3", "under corruption, mean",
    ]  # fmt: skip
    under, step, noise, _, severity = figure.axes
    assert [(0.01, pytest.approx(0.68)), (0.02, pytest.approx(0.56)), (0.04, pytest.approx(0.32))] in lines(under)
    assert len([line for line in lines(under) if len(line) == 3]) == 5
    assert [(0.01, 0.5), (0.1, 0.5)] in lines(step)
    assert [(0.0, 0.9), (0.1, 0.8)] in lines(noise)
    assert [(1.0, pytest.approx(0.75)), (3.0, pytest.approx(0.55)), (5.0, pytest.approx(0.35))] in lines(severity)
    assert under.get_xscale() == "log"
    assert noise.get_xscale() == "linear"
    assert save_figure(figure, tmp_path / "a.png").stat().st_size > 10_000


def test_several_models_share_the_panels():
    figure = chart_figure([profile("a"), profile("b", shift=0.1)], "robustness")
    assert len([line for line in lines(figure.axes[0]) if len(line) == 3]) == 10
    texts = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert {"a", "b", *(f"attack={name}" for name in ("fgsm", "pgd", "autoattack", "search", "noise"))} <= set(texts)


def test_corruptions_are_sorted_from_worst_to_best():
    figure = chart_figure([profile("a"), profile("b", shift=0.1)], "corruptions")
    (ax,) = figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["fog", "snow"]
    points = sorted(float(line.get_xdata()[0]) for line in ax.lines if len(line.get_xdata()) == 1)
    assert points == pytest.approx([0.4, 0.5, 0.5, 0.6])


def test_what_they_refuse():
    other = Profile((Part("sensitivity"),), {"model": {"name": "x"}})
    with pytest.raises(
        ValueError, match="chart_figure: profiles must hold what Robustness measured, got 'x' without it"
    ):
        chart_figure(other, "robustness")
    bare = profile(rows=[row("clean_accuracy", 0.9)])
    with pytest.raises(ValueError, match="profiles must hold what 'robustness' draws, got none of it in a"):
        chart_figure(bare, "robustness")
    with pytest.raises(ValueError, match="must hold what 'corruptions' draws, got none"):
        chart_figure([bare], "corruptions")
