"""``lisse deform``: the picture it writes is the library's, and what it says is true."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from lisse.maths.diffeomorphism import Diffeomorphism, deform


@pytest.fixture
def picture(folder):
    pixels = (torch.rand(20, 30, 3, generator=torch.Generator().manual_seed(0)) * 255).to(torch.uint8)
    Image.fromarray(pixels.numpy()).save(folder / "in.png")
    return pixels.permute(2, 0, 1)


def expected(picture, cut, temperature, seed=0, **options):
    field = Diffeomorphism((20, 30), cut).sample(1, temperature, generator=torch.Generator().manual_seed(seed))
    return deform(picture[None], field, **options)[0].permute(1, 2, 0).numpy()


def test_a_deformed_picture(lisse, folder, picture):
    done = lisse("deform", "in.png", "--cut", 4, "--delta", 1.5, "--seed", 3, "-o", "out.png")
    assert done.exit_code == 0, done.stderr
    temperature = Diffeomorphism((20, 30), 4).temperature(1.5)
    np.testing.assert_array_equal(np.asarray(Image.open("out.png")), expected(picture, 4, temperature, 3))
    assert "δ = 1.5 px" in done.stdout
    assert "is a diffeomorphism" in done.stdout
    assert "Saved out.png" in done.stderr


def test_without_a_name_the_picture_is_written_here(lisse, folder, picture):
    (folder / "deep").mkdir()
    (folder / "in.png").rename(folder / "deep" / "in.png")
    done = lisse("deform", "deep/in.png", "--delta", 1)
    assert done.exit_code == 0, done.stderr
    assert "Saved in-deformed.png" in done.stderr
    np.testing.assert_array_equal(
        np.asarray(Image.open("in-deformed.png")), expected(picture, 3, Diffeomorphism((20, 30), 3).temperature(1.0))
    )
    assert lisse("deform", "deep/in.png", "--animate", "--frames", 2).exit_code == 0
    assert (folder / "in-growing.gif").exists()


def test_temperature_and_interpolation(lisse, folder, picture):
    done = lisse("deform", "in.png", "--temperature", 1e-3, "--interpolation", "nearest", "-o", "out.bmp")
    assert done.exit_code == 0, done.stderr
    result = expected(picture, 3, 1e-3, interpolation="nearest")
    np.testing.assert_array_equal(np.asarray(Image.open("out.bmp")), result)


def test_the_default_is_half_of_what_folds_half_of_the_time(lisse, folder, picture):
    assert lisse("deform", "in.png", "-o", "out.png").exit_code == 0
    high = Diffeomorphism((20, 30), 3).temperature_range()[1]
    np.testing.assert_array_equal(np.asarray(Image.open("out.png")), expected(picture, 3, high / 4))


def test_a_grey_picture_stays_grey_and_size_crops(lisse, folder, picture):
    Image.fromarray(picture[0].numpy()).save("grey.png")
    assert lisse("deform", "grey.png", "--size", 16, "-o", "out.png").exit_code == 0
    with Image.open("out.png") as saved:
        assert (saved.mode, saved.size) == ("L", (16, 16))


def test_fields_that_fold_are_warned_of(shell, folder, picture):
    done = shell("lisse deform in.png --cut 15 --delta 3 -o out.png")
    assert done.returncode == 0
    assert "lisse: warning: lisse deform: 100% of the fields at cut 15" in done.stderr
    assert "folds: it is no diffeomorphism" in done.stdout
    half = done.stdout.split("half of them are bijective at ")[1].split(".\n")[0]
    assert f"(T = {half})" in done.stderr  # one number, wherever it is said


def test_an_animation_of_fields_that_fold_is_warned_of(shell, folder, picture):
    done = shell("lisse deform in.png --animate --frames 2 --cut 15 --delta 5 -o out.gif")
    assert done.returncode == 0
    assert done.stderr.count("lisse: warning: lisse deform: 100% of the fields at cut 15, δ = 5 px") == 1
    assert done.stderr.count("warning") == 1


@pytest.mark.parametrize("words", ["--temperature 1e-9", "--grid --cut 3", "--phase --cut 3", "--animate --frames 2"])
def test_a_cut_above_the_pixels_is_told_of_once_and_done(shell, folder, picture, words):
    done = shell(f"lisse deform in.png --cut 90 {words}")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("lisse: warning: Diffeomorphism: cut 90 is above the 20 pixels of a side") == 1
    assert done.stderr.count("warning") == 1


def test_the_figures_own_cuts_are_those_the_pixels_show(lisse, folder, picture, recwarn):
    assert lisse("deform", "in.png", "--size", 8, "--phase", "-o", "phase.png").exit_code == 0
    assert lisse("deform", "in.png", "--size", 2, "--phase", "-o", "phase.png").exit_code == 0  # two cuts all the same
    assert [str(one.message) for one in recwarn if "above the 8 pixels" in str(one.message)] == []


def test_grid_phase_and_animation(lisse, folder, picture):
    done = lisse("deform", "in.png", "--grid", "--cut", 3, "--cut", 4, "--temperature", 1e-4, "-o", "grid.png")
    assert done.exit_code == 0, done.stderr
    assert lisse("deform", "in.png", "--phase", "--cut", 2, "--cut", 3, "-o", "phase.svg").exit_code == 0
    done = lisse("deform", "in.png", "--animate", "--frames", 3, "--delta", 2, "-o", "a.gif")
    assert done.exit_code == 0, done.stderr
    with Image.open("a.gif") as saved:
        assert saved.n_frames == 4
    assert all((folder / name).stat().st_size > 500 for name in ("grid.png", "phase.svg", "a.gif"))


def test_the_codes_modes(lisse, folder, picture):
    options = ("--cut", 3, "--temperature", 1e-3, "-o")
    for rule in ("paper", "code"):
        assert lisse("deform", "in.png", "--modes", rule, *options, f"{rule}.png").exit_code == 0
        assert lisse("deform", "in.png", "--grid", "--modes", rule, *options, f"{rule}-grid.png").exit_code == 0
        done = lisse("deform", "in.png", "--phase", "--modes", rule, "--cut", 2, "--cut", 3, "-o", f"{rule}-phase.png")
        assert done.exit_code == 0, done.stderr
    field = Diffeomorphism((20, 30), 3, modes="code").sample(1, 1e-3, generator=torch.Generator().manual_seed(0))
    moved = deform(picture[None], field)[0].permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(np.asarray(Image.open("code.png")), moved)
    for kind in ("", "-grid", "-phase"):
        assert (folder / f"paper{kind}.png").read_bytes() != (folder / f"code{kind}.png").read_bytes()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--cut", "1"], 2, "cut must be at least √2"),
        (["--temperature", "-1"], 2, "temperature must be finite and at least 0"),
        (["--delta", "-1"], 2, "delta must be finite and at least 0"),
        (["--animate", "--delta", "-1"], 2, "delta must be finite"),
        (["--delta", "1", "--temperature", "1"], 2, "--delta goes with one picture"),
        (["--grid", "--delta", "1"], 2, "--delta goes with one picture, not with --grid: give --temperature"),
        (["--phase", "--delta", "1"], 2, "--delta goes with one picture, not with --phase"),
        (["--grid", "--temperature", "-1"], 2, "temperature must be finite and at least 0, got -1."),
        (["--cut", "1e7"], 2, "cut must be at most 4096"),
        (["--grid", "--animate"], 2, "exclude each other"),
        (["--cut", "3", "--cut", "4"], 2, "several of --cut or --temperature go with --grid"),
        (["--phase", "--temperature", "1"], 2, "leave --temperature out"),
        (["--interpolation", "area"], 2, "area"),
        (["-o", "out.xyz"], 2, "--out must end in .png"),
        (["--grid", "--cut", "3", "-o", "out.jpg"], 2, "path must end in .png"),
        (["--animate", "--frames", "2", "-o", "out.png"], 2, "path must end in .gif"),
    ],
)
def test_what_cannot_be_done_is_said(lisse, folder, picture, words, code, said):
    done = lisse("deform", "in.png", "-o", "out.png", *words)
    assert done.exit_code == code
    assert said in done.stderr


def test_no_picture(lisse, folder):
    (folder / "in.png").write_bytes(b"not a picture")
    assert lisse("deform", "in.png", "-o", "out.png").exit_code == 3
    done = lisse("deform", "nowhere.png", "-o", "out.png")
    assert done.exit_code == 3
    assert "No such file or directory: nowhere.png" in done.stderr
