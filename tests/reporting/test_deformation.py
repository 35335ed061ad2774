"""Pictures of deformations: their lines are the diagram's numbers, their frames its green region."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from PIL import Image

from lisse.maths.diffeomorphism import Diffeomorphism, deform, phase_diagram
from lisse.reporting import save_figure
from lisse.reporting.deformation import (
    GREEN,
    RED,
    deformation_grid,
    growing_pictures,
    phase_figure,
    save_animation,
)


def picture(h: int = 24, w: int = 32) -> torch.Tensor:
    drawn = torch.rand(3, h, w, generator=torch.Generator().manual_seed(0))
    return (drawn * 255).to(torch.uint8)


def test_the_lines_of_a_phase_figure_are_the_diagrams():
    diagram = phase_diagram((24, 32), (2, 3, 5), (1e-4, 1e-2), samples=32)
    (ax,) = phase_figure(diagram).axes
    lines = [np.asarray(line.get_xdata()) for line in ax.lines]
    for line, expected in zip(lines, (diagram.delta_half, diagram.delta_one, diagram.half), strict=True):
        np.testing.assert_allclose(line, expected)
    assert ax.get_xscale() == "log"
    with pytest.raises(ValueError, match="at least 2 cuts"):
        phase_figure(phase_diagram((24, 32), (3,), (1e-4,), samples=8))


def test_the_green_region_ends_where_its_lines_cross():
    # On 32 × 32 pixels they cross between c = 20 and 30: above, no field is both large enough and bijective.
    diagram = phase_diagram((32, 32), (2, 5, 20, 30), (1e-4,), samples=64)
    assert diagram.half[-1] < diagram.delta_half[-1]
    (ax,) = phase_figure(diagram).axes
    heat, cut = ax.collections[0].get_paths()[0].vertices.T
    left, right = (
        np.exp(np.interp(np.log(cut), diagram.cuts.log(), line.log())) for line in (diagram.delta_half, diagram.half)
    )
    assert (heat >= left * (1 - 1e-9)).all()
    assert (heat <= right * (1 + 1e-9)).all()
    assert 20 < cut.max() < 30
    assert cut.min() == 2


def test_a_grid_frames_the_green_region(tmp_path):
    cuts, heat = (3, 5), (1e-6, 2e-3, 1.0)
    figure = deformation_grid(picture(), cuts=cuts, temperatures=heat, samples=32)
    diagram = phase_diagram((24, 32), sorted(cuts, reverse=True), heat, samples=32)
    frames = [to_hex(ax.spines["left"].get_edgecolor()).upper() == GREEN for ax in figure.axes]
    assert frames == diagram.green.flatten().tolist()
    assert True in frames
    assert False in frames
    shown = figure.axes[1].images[0].get_array()
    field = Diffeomorphism((24, 32), 5).sample(1, 2e-3, generator=torch.Generator().manual_seed(0))
    expected = deform(picture()[None], field)[0].permute(1, 2, 0).numpy()
    assert np.abs(np.asarray(shown, float) - expected).max() <= 1
    assert save_figure(figure, tmp_path / "grid.png").exists()


def test_the_rule_of_a_grids_modes():
    options = {"cuts": (3,), "temperatures": (5e-3,), "samples": 32}
    field = Diffeomorphism((24, 32), 3, modes="code").sample(1, 5e-3, generator=torch.Generator().manual_seed(0))
    expected = deform(picture()[None], field)[0].permute(1, 2, 0).numpy()
    (ax,) = deformation_grid(picture(), modes="code", **options).axes
    assert np.abs(np.asarray(ax.images[0].get_array(), float) - expected).max() <= 1
    delta = float(Diffeomorphism((24, 32), 3, modes="code").delta(5e-3))
    assert f"δ = {delta:.2g} px" in ax.get_xlabel()


def test_displacements_and_temperatures_are_said_in_plain_numbers():
    figure = deformation_grid(torch.zeros(1, 200, 300), cuts=(3,), temperatures=(0, 2e-6, 1.0), samples=8)
    labels = [ax.get_xlabel().split(" px")[0] for ax in figure.axes]
    delta = Diffeomorphism((200, 300), 3).delta
    assert labels == ["δ = 0", f"δ = {delta(2e-6):.2f}", f"δ = {delta(1.0):.0f}"]
    assert [ax.get_title() for ax in figure.axes] == ["T = 0", "T = 2.0·10⁻⁶", "T = 1.0·10⁰"]


def test_a_grid_chooses_temperatures_that_span_the_green_region():
    figure = deformation_grid(picture(64, 64)[:1].float() / 255, cuts=(3,), samples=32, seed=1)
    green = [to_hex(ax.spines["left"].get_edgecolor()).upper() == GREEN for ax in figure.axes]
    assert green[0] is False
    assert green[-1] is False
    assert sum(green) >= 2


def test_an_animation_grows_and_says_when_it_folds(tmp_path):
    ensemble = Diffeomorphism((24, 32), 3)
    frames = growing_pictures(picture(), ensemble, frames=5)
    scale = frames[0].size[0] // 32
    first = np.asarray(frames[0])[: 24 * scale : scale, : 32 * scale : scale]
    np.testing.assert_array_equal(first, picture().permute(1, 2, 0).numpy())
    still, fold = (np.asarray(frame)[24 * scale :].reshape(-1, 3).astype(int) for frame in (frames[0], frames[-1]))
    assert (still[:, 1] - still[:, 0]).max() > 60  # green words
    assert (fold[:, 0] - fold[:, 2]).max() > 60  # red ones
    path = save_animation(frames, tmp_path / "a.gif")
    with Image.open(path) as saved:
        assert saved.n_frames == 8  # there and back
        assert saved.size == frames[0].size
    with pytest.raises(ValueError, match=r"path must end in \.gif"):
        save_animation(frames, tmp_path / "a.png")
    with pytest.raises(ValueError, match="there must be pictures"):
        save_animation([], tmp_path / "a.gif")
    with pytest.raises(ValueError, match="frames must be at least 2"):
        growing_pictures(picture(), ensemble, frames=1)


def test_an_animation_keeps_its_colours_in_one_palette(tmp_path):
    across, down = torch.meshgrid(torch.linspace(0, 1, 40), torch.linspace(0, 1, 30), indexing="xy")
    smooth = torch.stack([across, 0.3 * down, 1 - across])  # a picture without green or orange
    frames = growing_pictures(smooth, Diffeomorphism((30, 40), 3), frames=4)
    colours, words = set(), []
    with Image.open(save_animation(frames, tmp_path / "a.gif")) as saved:
        assert saved.n_frames == 6
        for place, frame in enumerate([*frames, frames[2], frames[1]]):
            saved.seek(place)
            there, given = (np.asarray(one.convert("RGB")) for one in (saved, frame))
            assert np.abs(there.astype(float) - given).mean() < 6
            colours |= {tuple(one) for one in there.reshape(-1, 3).tolist()}
            words.append({to_hex(np.array(one) / 255).upper() for one in there[30 * 7 :].reshape(-1, 3)})
    assert len(colours) <= 256
    assert all("#FFFFFF" in one for one in words)
    assert GREEN in words[0]
    assert RED in words[3]


@pytest.mark.parametrize(("h", "w"), [(24, 32), (16, 256), (16, 800)])
def test_the_words_below_an_animation_do_not_meet(h, w):
    ensemble = Diffeomorphism((h, w), 10)
    for frame in growing_pictures(torch.zeros(1, h, w), ensemble, frames=3):
        scale = frame.size[0] // w
        band = np.asarray(frame)[h * scale :].astype(int)
        coloured = np.argwhere(np.abs(band - band.mean(2, keepdims=True)).max(2) > 40)
        black = np.argwhere(band.max(2) < 100)
        apart = [
            coloured[:, axis].min() > black[:, axis].max() or coloured[:, axis].max() < black[:, axis].min()
            for axis in (0, 1)
        ]
        assert any(apart)
        assert band[-1].min() == 255  # nothing is cut off


def test_the_largest_temperature_of_an_animation():
    ensemble = Diffeomorphism((24, 32), 3)
    last = growing_pictures(picture(), ensemble, largest=1e-3, frames=2, seed=4)[-1]
    scale = last.size[0] // 32
    field = ensemble.sample(1, 1e-3, generator=torch.Generator().manual_seed(4))
    expected = deform(picture()[None], field)[0].permute(1, 2, 0).numpy()
    found = np.asarray(last)[: 24 * scale : scale, : 32 * scale : scale]
    assert np.abs(found.astype(float) - expected).max() <= 1


@pytest.mark.parametrize("image", [torch.ones(2, 8, 8), torch.ones(8, 8)])
def test_what_is_no_picture(image):
    with pytest.raises(ValueError, match=r"image must be \[1 or 3, h, w\]"):
        deformation_grid(image)
