import math

import pytest
import torch

from lisse.maths.variation import patch_cross
from lisse_experiments import Finding, Outcome, Task
from lisse_experiments import study as experiment
from lisse_experiments.masked_autoencoders import operators as study
from lisse_experiments.masked_autoencoders.operators.lemma import (
    CONSTRUCTIONS,
    lemma_outcome,
    lemma_residuals,
    optimised_residual,
    residuals,
)
from lisse_experiments.masked_autoencoders.operators.skip import BETAS, skip_against_solve


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        # Smaller grids for Lemma 6.1, whose convex weights take the longest: as many, so that nothing else changes.
        patch.setattr(study, "residuals", lambda _, draws, **options: residuals((8, 9, 10), draws, **options))
        return study.operators(Task("smoke", tmp_path_factory.mktemp("operators")))


def test_the_ratio_of_theorem_51_at_known_sides():
    fixed = study.stability_ratio("smooth", "fixed", (8, 16, 32))
    assert fixed.mean == pytest.approx((0.456, 0.895, 1.770), abs=6e-4)
    assert study.stability_ratio("smooth", "shrinking", (8,)).mean == pytest.approx((0.208,), abs=5e-4)
    step = study.stability_ratio("step", "shrinking", (8, 32))
    assert step.mean[1] / step.mean[0] == pytest.approx(2, rel=0.01)  # √n
    assert step.supremum[1] / step.supremum[0] == pytest.approx(4, rel=0.01)  # n


def test_the_claims_come_out_as_worked_out(outcome):
    holds = {claim.key.removeprefix("operators/"): claim.holds for claim in outcome.claims}
    assert holds == {
        "theorem51/fixed": False,
        "theorem51/smooth": True,
        "theorem51/step": False,
        "tikhonov/weighted": True,
        "tikhonov/printed": False,
        "tikhonov/skip": False,
        "tikhonov/stable": True,
        "proposition31/recovery": False,
        "proposition31/low-rank": False,
        "proposition31/constant": True,
        "lemma61/slope": False,
    }
    assert all(finding.key.startswith("operators/") for finding in outcome.findings)
    assert all(math.isfinite(finding.value) for finding in outcome.findings)


def test_the_figures_are_there(outcome):
    assert [file.name for file in outcome.files] == [
        "theorem51.png",
        "tikhonov.png",
        "proposition31.png",
        "proposition31-pictures.png",
    ]
    assert all(file.read_bytes()[:4] == b"\x89PNG" for file in outcome.files)


def test_the_skip_connection_comes_near_to_the_solve_only_for_large_beta():
    image = torch.rand(32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = skip_against_solve(image, grid=4)
    assert found.betas == BETAS
    assert max(found.solve) < 1e-12
    assert list(found.skip) == sorted(found.skip, reverse=True)
    assert found.skip[-1] < 0.1 < found.skip[BETAS.index(0.1)]
    assert list(found.condition) == sorted(found.condition, reverse=True)
    assert found.first_condition > found.condition[0]


def test_errors_of_crosses_are_relative_to_the_picture_less_its_mean():
    pictures = study._generated(0)
    found = study.cross_errors(pictures)
    u = pictures["generated-0"]
    one = patch_cross(u, 14, rows=(7,), columns=(7,), tol=study.TRUNCATION)
    assert float(found.by_mask[0, 0]) == pytest.approx(float(one.error / (u - u.mean()).norm()), rel=1e-5)
    assert found.masks[0] == pytest.approx((13 / 14) ** 2)
    assert found.ranks == (1, 2, 4)  # below the side of a patch, 8
    assert bool((found.by_rank[:, 0:1] <= found.by_rank + 1e-6).all())  # nothing beats the SVD
    assert bool((found.by_rank.diff(dim=-1)[:, 0] <= 0).all())


def test_paper_scale_needs_photographs(tmp_path, monkeypatch):
    monkeypatch.setenv("LISSE_DATA", str(tmp_path))
    monkeypatch.setenv("LISSE_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match="photographs must lie in a folder images of LISSE_DATA"):
        study.photographs(size=28)


def test_photographs_are_grey_squares(tmp_path, monkeypatch):
    from PIL import Image

    (tmp_path / "images").mkdir()
    Image.new("RGB", (40, 30), (255, 0, 0)).save(tmp_path / "images" / "red.png")
    (tmp_path / "images" / "notes.txt").write_text("not a picture")
    monkeypatch.setenv("LISSE_DATA", str(tmp_path))
    (picture,) = study.photographs(size=28).values()
    assert picture.shape == (28, 28)
    assert float(picture.mean()) == pytest.approx(76 / 255)


@pytest.mark.large
def test_real_photographs_are_not_of_low_rank():
    pictures = study.photographs(size=56)
    found = study.cross_errors(pictures)
    assert len(found.names) >= 5
    assert float(found.by_mask[:, 0].mean()) > 0.5


# --- Lemma 6.1 ------------------------------------------------------------------------------------------------------


def test_a_residual_that_falls_like_one_over_n_is_seen_to():
    sides = (4, 8, 16)
    left = torch.zeros(8, 3, len(CONSTRUCTIONS), dtype=torch.float64)
    for place, n in enumerate(sides):
        left[:, place, 0] = 3.0 / n
        left[:, place, 1] = 2.0
    left[:, :, 2:4] = 1.0
    findings, (claim,) = lemma_outcome(left, sides, 0)
    slopes = {finding.key.rpartition("/")[2]: finding.value for finding in findings if "slope" in finding.key}
    assert slopes == pytest.approx({"restricted": -1, "zeroed": 0, "refitted": 0, "simplex": 0}, abs=1e-9)
    assert claim.holds
    left[:, :, 0] = 1.0
    assert not lemma_outcome(left, sides, 0)[1][0].holds


def test_neither_rounding_nor_an_interval_that_reaches_zero_falls_like_one_over_n():
    sides = (4, 8, 16)
    left = torch.ones(8, 3, len(CONSTRUCTIONS), dtype=torch.float64)
    left[:, :, 4] = torch.tensor([1e-5, 1e-9, 1e-13])
    findings, (claim,) = lemma_outcome(left, sides, 0)
    names = [finding.key.rpartition("/")[2] for finding in findings]
    assert names == [*CONSTRUCTIONS[:4], "optimised", "left"]
    assert not claim.holds
    for draw in range(8):
        left[draw, :, 0] = torch.tensor([float(n) ** (-3 if draw % 2 else 1) for n in sides])
    findings, (claim,) = lemma_outcome(left, sides, 0)
    assert findings[0].value == pytest.approx(-1)
    assert not claim.holds


def test_residuals_are_drawn_anew_and_ordered():
    left = residuals((4, 6), 2, seed=0)
    assert left.shape == (2, 2, 6)
    named = dict(zip(CONSTRUCTIONS, left.unbind(-1), strict=True))
    assert bool((named["restricted"] >= named["simplex"] - 1e-6).all())
    assert bool((named["simplex"] >= named["least_squares"] - 1e-6).all())
    assert torch.equal(left, residuals((4, 6), 2, seed=0))
    assert not torch.allclose(left[0], left[1])
    assert not torch.allclose(left, residuals((4, 6), 2, seed=1))


def test_maps_that_are_searched_for_leave_less_and_nothing_where_nothing_need_be_left():
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    hidden = torch.arange(40) % 4 > 0
    maps = [torch.randn(6, 6, generator=generator, dtype=torch.float64) for _ in range(3)]
    given = lemma_residuals(rows, hidden, *maps)
    found = [float(optimised_residual(rows, hidden, maps, steps=steps)) for steps in (1, 40)]
    q, k, v = (rows @ w for w in maps)
    z = ((q @ k.T / 6**0.5).softmax(-1) @ v)[hidden]
    design = torch.cat([(q[hidden] @ k[~hidden].T / 6**0.5).softmax(-1) @ rows[~hidden], torch.ones(30, 1)], 1)
    fitted = design @ torch.linalg.lstsq(design, z).solution  # one step: the given queries and keys, the best values
    assert found[0] == pytest.approx(float((fitted - z).norm(dim=-1).mean()), rel=1e-6)
    assert found[1] < 0.8 * found[0] < float(given.restricted[hidden].mean())
    same = [torch.zeros(6, 6, dtype=torch.float64), *maps[1:]]  # every query looks alike: one affine value is enough
    assert float(optimised_residual(rows, hidden, same, steps=1)) < 1e-9


def test_the_operators_alone_are_a_part(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "operators", lambda task: Outcome((Finding("operators/a", "a", 1.0),)))
    chosen = experiment("masked_autoencoders")
    assert chosen.run(Task("smoke", tmp_path, units=("operators",))).parts == ("operators",)
    with pytest.raises(ValueError, match="units must be operators for masked_autoencoders, got q1"):
        chosen.run(Task("smoke", tmp_path, units=("q1",)))
