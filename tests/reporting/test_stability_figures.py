from __future__ import annotations

import numpy as np
import pytest

from lisse.instruments import Stability
from lisse.profile import Part, Profile, Row
from lisse.reporting import chart_figure, save_figure


def profile(r=0.2, *, cuts=(3,), deltas=(1.0,), name="net"):
    rows = []
    for cut in cuts:
        for delta in deltas:
            for depth, layer in ((0.0, "input"), (0.5, "block"), (1.0, "output")):
                g = 0.4 * delta**2
                value = (1 - depth) + depth * r
                values = {"relative_stability": value, "deformation_stability": g * value, "noise_stability": g}
                rows += [
                    Row(q, v, "estimate", 50, layer, depth, 0.9 * v, 1.1 * v, {"cut": cut, "delta": delta})
                    for q, v in values.items()
                ]
    return Profile((Part("stability", tuple(rows), Stability.QUANTITIES),), {"model": {"name": name}})


def curves(ax):
    return [line.get_ydata() for line in ax.lines if len(line.get_ydata()) > 2]


def test_d_g_and_r_by_layer(tmp_path):
    figure = chart_figure([profile(0.2, name="a"), profile(0.1, name="b")], "stability")
    d, g, r = figure.axes
    assert [ax.get_title("left")[0] for ax in figure.axes] == ["D", "G", "R"]
    np.testing.assert_allclose(curves(r), [[1, 0.6, 0.2], [1, 0.55, 0.1]])
    np.testing.assert_allclose(curves(g)[0], [0.4] * 3)
    np.testing.assert_allclose(curves(d)[1], [0.4, 0.22, 0.04])
    assert len(r.collections) == 2  # a band each
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
    assert " ".join(figure.texts[1].get_text().split()).endswith("Everywhere: cut=3 delta=1.")
    assert save_figure(figure, tmp_path / "a.png").stat().st_size > 0


def test_settings_are_chosen():
    several = profile(cuts=(3, 5), deltas=(0.5, 1.0))
    assert len(curves(chart_figure(several, "stability").axes[0])) == 4
    assert "Everywhere" not in chart_figure(several, "stability").texts[1].get_text()
    assert len(curves(chart_figure(several, "stability", where={"cut": 3}).axes[0])) == 2
    assert len(curves(chart_figure(several, "stability", where={"cut": 3, "delta": 1.0}).axes[0])) == 1
    with pytest.raises(ValueError, match=r"must hold what 'stability' draws at cut=4, got none of it in net"):
        chart_figure(several, "stability", where={"cut": 4})
