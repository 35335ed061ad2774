from __future__ import annotations

import numpy as np
import pytest
import torch

import lisse
from lisse.instruments import Propagation, Sensitivity
from lisse.networks import zoo
from lisse.networks.decoder_frames import decoder_frames
from lisse.reporting import save_figure
from lisse.reporting.filmstrip import filmstrip_figure
from lisse.reporting.propagation import propagation_figure

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
    figure = propagation_figure(profiles)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert sum(title.startswith("CKA") for title in titles) == 3  # encoder, decoder, the other model
    panel = next(ax for ax in figure.axes if ax.get_title(loc="left").startswith("n·ρ: block"))
    rows = [row.value for row in profiles[1].rows if row.quantity == "scaled_ratio" and row.at == {"of": "block"}]
    assert any(np.allclose(line.get_ydata(), rows) for line in panel.lines if len(line.get_ydata()) == len(rows))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["A$", "B"]
    assert save_figure(figure, tmp_path / "a.png").stat().st_size > 10_000
    alone = propagation_figure(profiles[1])
    assert not alone.legends


def test_a_profile_without_propagation_is_refused():
    other = Sensitivity(points=0).measure(network("vit_small"), IMAGES)
    with pytest.raises(ValueError, match=r"must hold a Propagation, got \['sensitivity'\]"):
        propagation_figure(other)


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
    assert len(figure.axes[2].patches) == int((~film.hidden).sum())
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
