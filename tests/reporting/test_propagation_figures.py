from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import lisse
from lisse.instruments import Propagation, Sensitivity
from lisse.networks import zoo
from lisse.networks.decoder_frames import decoder_frames
from lisse.reporting import chart_figure, save_figure
from lisse.reporting.filmstrip import filmstrip_figure

IMAGES = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def network(name, **options):
    return zoo.build(name, size=8, patch=2, width=8, heads=2, depth=2, **options).eval()


@pytest.fixture(scope="module")
def profiles():
    autoencoder = network("mae_small", decoder_width=8, decoder_heads=2, decoder_depth=1)
    return [
        Propagation(kernels=4, lemma=1, ablation=True).measure(autoencoder, IMAGES, name="A$"),
        Propagation(kernels=4).measure(network("vit_small"), IMAGES, name="B"),
    ]


def test_a_figure_has_the_values_of_its_profiles(profiles, tmp_path):
    figure = chart_figure(profiles, "propagation")
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert sum(title.startswith("CKA") for title in titles) == 3  # encoder, decoder, the other model
    panel = next(ax for ax in figure.axes if ax.get_title(loc="left").startswith("n·ρ: block"))
    rows = [row.value for row in profiles[1].rows if row.quantity == "scaled_ratio" and row.at == {"of": "block"}]
    assert any(np.allclose(line.get_ydata(), rows) for line in panel.lines if len(line.get_ydata()) == len(rows))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["A$", "B"]
    assert save_figure(figure, tmp_path / "a.png").stat().st_size > 10_000
    alone = chart_figure(profiles[1], "propagation")
    assert not alone.legends


def test_axes_can_be_read(profiles):
    figure = chart_figure(profiles, "propagation")
    figure.canvas.draw()
    for ax in figure.axes:
        title = ax.get_title(loc="left")
        if title.startswith(("n·ρ", "norm")):
            low, high = ax.get_ylim()
            labels = [label.get_text() for label in ax.get_yticklabels() if low <= label.get_position()[1] <= high]
            assert len([text for text in labels if text]) >= 3, title
            assert not any(label.get_text() for label in ax.yaxis.get_minorticklabels()), title
        if title.startswith("CKA"):
            table = np.asarray(ax.images[0].get_array())
            assert len(ax.texts) == table.size
            low, high = ax.images[0].get_clim()
            assert high == 1
            assert low <= table.min()
    scales = {ax.images[0].get_clim() for ax in figure.axes if ax.get_title(loc="left").startswith("CKA")}
    assert len(scales) == 1  # the tables can be compared


def test_heads_are_dots_and_masked_patches_have_panels_of_their_own(profiles):
    figure = chart_figure(profiles, "propagation")
    panel = next(ax for ax in figure.axes if ax.get_title(loc="left").startswith("attention distance"))
    dots = np.concatenate([np.asarray(one.get_offsets()) for one in panel.collections if len(one.get_offsets()) > 1])
    arrays = [
        profiles[0]["propagation"].arrays["attention_distance_encoder"],
        profiles[0]["propagation"].arrays["attention_distance_decoder"],
        profiles[1]["propagation"].arrays["attention_distance"],
    ]
    for table in arrays:
        for one in table.reshape(-1):
            assert np.isclose(dots[:, 1], one).any()
    masked = next(ax for ax in figure.axes if "attention within one patch" in ax.get_title(loc="left"))
    rows = [row for row in profiles[0].rows if row.quantity == "attention_mass" and row.at.get("radius") == 1]
    for queries in ("masked, unmasked keys", "masked, weights of (25)", "masked, unmasked keys, uniform"):
        (value,) = [row.value for row in rows if row.at.get("queries") == queries]
        assert any(np.allclose(line.get_ydata(), [value]) for line in masked.lines), queries
    assert not any("mask" in ax.get_title(loc="left") for ax in chart_figure(profiles[1], "propagation").axes)


def test_layers_that_are_alike_are_told_apart(profiles):
    part = profiles[1]["propagation"]
    table = np.array([[1.0, 0.9962], [0.9962, 1.0]])
    alike = lisse.Profile((dataclasses.replace(part, arrays={"similarity": table}),))
    (ax,) = [ax for ax in chart_figure(alike, "propagation").axes if ax.get_title(loc="left").startswith("CKA")]
    assert ax.images[0].get_clim() == (0.99, 1.0)
    assert [text.get_text() for text in ax.texts] == ["1.000", ".996", ".996", "1.000"]
    table = np.array([[1.0, 0.43], [0.43, 1.0]])
    unlike = lisse.Profile((dataclasses.replace(part, arrays={"similarity": table}),))
    (ax,) = [ax for ax in chart_figure(unlike, "propagation").axes if ax.get_title(loc="left").startswith("CKA")]
    assert ax.images[0].get_clim() == (0.4, 1.0)
    assert [text.get_text() for text in ax.texts] == ["1.00", ".43", ".43", "1.00"]


def test_a_profile_without_propagation_is_refused():
    other = Sensitivity(points=0).measure(network("vit_small"), IMAGES)
    with pytest.raises(ValueError, match="must hold what Propagation measured, got"):
        chart_figure(other, "propagation")


def test_a_filmstrip_shows_every_frame_with_its_error(tmp_path):
    film = decoder_frames(network("mae_small", decoder_width=8, decoder_heads=2, decoder_depth=2), IMAGES[0])
    arrays = [part.numpy() for part in (film.image, film.visible, film.frames)]
    figure = filmstrip_figure(*arrays, film.errors.tolist(), hidden=film.hidden.numpy(), side=film.side, name="net")
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["image", "what the encoder sees", "decoder input", "layer 1 of 2", "layer 2 of 2"]
    assert figure.axes[4].get_xlabel() == f"error {film.errors[2]:.3f}"
    shown = np.asarray(figure.axes[4].images[0].get_array())
    assert np.allclose(shown, np.clip(np.moveaxis(arrays[2][-1], 0, -1), 0, 1), atol=1e-6)
    blank = np.asarray(figure.axes[1].images[0].get_array())[film.visible[0].isnan().numpy()]
    assert np.allclose(blank, 217 / 255)
    assert len(figure.axes[2].patches) == 2 * int((~film.hidden).sum())  # dark and bright
    assert not figure.axes[0].patches
    assert save_figure(figure, tmp_path / "a.svg").stat().st_size > 5_000
    said = " ".join(text.get_text() for text in figure.texts)
    assert "normalised pixels" not in said
    other = filmstrip_figure(*arrays, film.errors.tolist(), normalised_pixels=True)
    assert "normalised pixels" in " ".join(text.get_text().replace("\n", " ") for text in other.texts)


def test_grey_frames_and_frames_that_do_not_fit():
    film = decoder_frames(
        network("mae_small", in_channels=1, decoder_width=8, decoder_heads=2, decoder_depth=1), IMAGES[0, :1]
    )
    arrays = [part.numpy() for part in (film.image, film.visible, film.frames)]
    figure = filmstrip_figure(*arrays, film.errors.tolist())
    assert np.asarray(figure.axes[0].images[0].get_array()).shape == (8, 8, 3)
    with pytest.raises(ValueError, match="frames must be"):
        filmstrip_figure(*arrays, [0.1])


def test_the_page_takes_it(tmp_path, profiles):
    path = lisse.report(profiles, tmp_path / "page.html")
    assert "attention distance" in path.read_text(encoding="utf-8")
