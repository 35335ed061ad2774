from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from lisse.models import load_model, save_checkpoint

SPEC = "zoo:mae_small?size=8&patch=2&width=8&heads=2&depth=1&decoder_width=8&decoder_heads=2&decoder_depth=2"


@pytest.fixture
def image(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    return str(tmp_path / "a.png")


def test_one_command_paints_an_image_file(lisse, image, tmp_path):
    out = tmp_path / "film.png"
    found = lisse("figure", "filmstrip", SPEC, "--image", image, "-o", str(out))
    assert found.exit_code == 0
    assert out.stat().st_size > 5_000
    lines = [line for line in found.stdout.splitlines() if "layer" in line]
    assert len(lines) == 2
    assert "normalised" not in found.stdout
    other = lisse("figure", "filmstrip", SPEC, "--image", image, "-o", str(out), "--seed", "1")
    assert other.stdout != found.stdout
    half = lisse("figure", "filmstrip", SPEC, "--image", image, "-o", str(out), "--mask-ratio", "0.5")
    assert half.stdout != found.stdout


def test_the_picture_has_the_networks_name_and_not_its_files(lisse, image, tmp_path):
    save_checkpoint(load_model(SPEC), tmp_path / "model.safetensors")
    out = tmp_path / "film.svg"
    found = lisse("figure", "filmstrip", str(tmp_path / "model.safetensors"), "--image", image, "-o", str(out))
    assert found.exit_code == 0
    assert "What the decoder paints: mae_small" in out.read_text(encoding="utf-8")


def test_a_checkpoint_on_normalised_pixels_is_recognised_and_said(lisse, image, tmp_path):
    save_checkpoint(load_model(SPEC + "&norm_pix=true"), tmp_path / "m.safetensors")
    found = lisse(
        "figure", "filmstrip", str(tmp_path / "m.safetensors"), "--image", image, "-o", str(tmp_path / "a.png")
    )
    assert found.exit_code == 0
    assert "trained on normalised pixels" in found.stdout


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((20, 30), "has 30 × 20 pixels: it was cut to its middle square and resized to 8 × 8."),
        ((8, 30), "has 30 × 8 pixels: it was cut to its middle square."),
        ((20, 20), "has 20 × 20 pixels: it was resized to 8 × 8."),
        ((8, 8), None),
    ],
)
def test_what_became_of_the_picture_is_said(lisse, tmp_path, shape, said):
    pixels = np.random.default_rng(0).integers(0, 255, (*shape, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    found = lisse("figure", "filmstrip", SPEC, "--image", str(tmp_path / "a.png"), "-o", str(tmp_path / "b.png"))
    assert found.exit_code == 0
    assert said in found.stdout if said else "pixels: it was" not in found.stdout


def test_a_network_with_random_weights_is_said_to_be_one(lisse, image, tmp_path):
    save_checkpoint(load_model(SPEC), tmp_path / "m.safetensors")
    out = ["--image", image, "-o", str(tmp_path / "b.png")]
    assert "This network is not trained" in lisse("figure", "filmstrip", SPEC, *out).stdout
    for spec in (str(tmp_path / "m.safetensors"), f"{SPEC}&weights={tmp_path / 'm.safetensors'}"):
        found = lisse("figure", "filmstrip", spec, *out)
        assert found.exit_code == 0
        assert "not trained" not in found.stdout


@pytest.mark.parametrize(
    ("words", "code", "match"),
    [
        ([SPEC], 2, "`filmstrip` goes with --image FILE"),
        (["zoo:lenet", "--image", "{image}"], 2, "needs a masked autoencoder"),
        ([SPEC, "--image", "nothing.png"], 3, "No such file"),
        ([SPEC, "--image", "{image}", "--mask-ratio", "1.5"], 2, "must lie in (0, 1)"),
        ([SPEC, SPEC, "--image", "{image}"], 2, "takes one model"),
    ],
)
def test_what_cannot_be_painted_is_said(lisse, image, tmp_path, words, code, match):
    given = [word.format(image=image) for word in words]
    found = lisse("figure", "filmstrip", *given, "-o", str(tmp_path / "a.png"))
    assert found.exit_code == code
    assert match in found.stderr


def test_the_options_belong_to_it(lisse, tmp_path, image):
    found = lisse("figure", "norm", "a.profile", "--image", image, "-o", str(tmp_path / "a.png"))
    assert found.exit_code == 2
    assert "go with `filmstrip`" in found.stderr
