import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.variation import bv_seminorm, cross_approximation, dominant_rows, patch_cross, patchify

X = (torch.arange(64, dtype=torch.float64) + 0.5) / 64
IMAGE = 1 / (1 + 4 * (X[:, None] - X).square() + X[:, None] * X)


def low_rank(rank, h=32, w=32, seed=0):
    source = torch.Generator().manual_seed(seed)
    draw = {"generator": source, "dtype": torch.float64}
    return torch.randn(h, rank, **draw) @ torch.randn(rank, w, **draw)


# --- the printed proposition ----------------------------------------------------------------------------------------


def test_one_patch_per_row_and_column_does_not_determine_a_rank_one_image():
    a = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    b = torch.tensor([[1.0, 2.0], [0.5, 1.0]])
    assert torch.linalg.matrix_rank(a) == torch.linalg.matrix_rank(b) == 1
    assert torch.equal(a.diagonal(), b.diagonal())
    assert not torch.equal(a, b)


def test_nor_does_it_with_patches_of_four_by_four():
    # u = x yᵀ and u' = (s x)(y / s)ᵀ with s constant on each patch-row: equal on the diagonal patches, rank 1 both.
    scale = torch.tensor([1.0, 2.0, 4.0, 8.0]).repeat_interleave(4)
    x, y = torch.arange(1.0, 17.0), torch.arange(1.0, 17.0).flip(0)
    a, b = torch.outer(x, y), torch.outer(scale * x, y / scale)
    diagonal = [0, 5, 10, 15]
    assert torch.equal(patchify(a, 4)[diagonal], patchify(b, 4)[diagonal])
    assert float((a - b).abs().max()) > 10
    assert torch.linalg.matrix_rank(a) == torch.linalg.matrix_rank(b) == 1  # 1 < N_c = 4: the hypothesis holds
    # With a whole patch-row and patch-column both come back.
    for u in (a, b):
        assert float(patch_cross(u, 4).error) < 1e-3


# --- the corrected one ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", range(8))
def test_a_patch_cross_gives_a_rank_three_image_back(position):
    u = low_rank(3)
    found = cross_approximation(u, 3, method="patchcross", n=8, position=(position, position))
    assert float(found.error) < 1e-10
    assert found.rank == 3
    assert len(found.rows) == len(found.columns) == 4
    assert found.rows.tolist() == list(range(4 * position, 4 * position + 4))
    assert found.mask_ratio == pytest.approx((1 - 1 / 8) ** 2)
    assert int(found.visible.sum()) == 15 * 16


def test_the_mask_ratio_at_14_patches():
    u = low_rank(3, 56, 56)
    one = patch_cross(u, 14, rows=(2,), columns=(9,))
    assert one.mask_ratio == pytest.approx(0.862, abs=5e-4)
    assert float(one.error) < 1e-9
    assert patch_cross(u, 14, rows=(2, 5), columns=(9, 1)).mask_ratio == pytest.approx((12 / 14) ** 2)


def test_it_fails_where_the_rank_is_over_the_side_of_a_patch():
    u = low_rank(5)
    assert float(patch_cross(u, 8).error) > 1
    assert float(patch_cross(u, 8, rows=(0, 3), columns=(0, 3)).error) < 1e-9


def test_it_fails_where_the_meeting_patch_has_a_lower_rank():
    u = low_rank(2)
    u[:4] = u[0]  # the patch-row has rank 1
    assert float(patch_cross(u, 8).error) > 1
    assert float(patch_cross(u, 8, rows=(1,), columns=(1,)).error) < 1e-9


# --- pivoting -------------------------------------------------------------------------------------------------------


def test_the_reference_table():
    svd = [8.98, 2.20, 0.508, 0.119, 0.0274, 0.00638, 0.00146, 3.4e-4]
    aca = [21.2, 4.18, 2.70, 0.287, 0.0882, 0.0445, 0.00251, 0.00103]
    for rank, (best, crossed) in enumerate(zip(svd, aca, strict=True), 1):
        found = cross_approximation(IMAGE, rank, method="aca")
        assert float(found.error) == pytest.approx(crossed, rel=5e-3)
        assert float(found.optimum) == pytest.approx(best, rel=8e-3)
        assert float(cross_approximation(IMAGE, rank, method="svd").error) == pytest.approx(best, rel=8e-3)
    cross = [float(cross_approximation(IMAGE, r, method="patchcross", n=8, position=(3, 3)).error) for r in range(1, 9)]
    assert cross[6] == pytest.approx(0.51, abs=5e-3)
    # The eighth singular value of the patch is rounding. Truncated, nothing changes; kept, the error is as rounding has
    # it, a thousand times the optimum.
    assert cross[7] == pytest.approx(cross[6])
    kept = cross_approximation(IMAGE, 8, method="patchcross", n=8, position=(3, 3), tol=0.0)
    assert float(kept.error) > 300 * float(kept.optimum)
    assert float(kept.condition) > 1e15
    assert kept.rank == 8


def test_a_truncated_cross_has_the_condition_of_what_it_keeps():
    sigma = torch.linalg.svdvals(IMAGE[24:32, 24:32])
    for rank in (1, 3, 5):
        found = patch_cross(IMAGE, 8, rows=(3,), columns=(3,), rank=rank)
        assert found.rank == rank
        assert float(found.condition) == pytest.approx(float(sigma[0] / sigma[rank - 1]), rel=1e-4)
    found = patch_cross(IMAGE, 8, rows=(3,), columns=(3,), tol=float(sigma[2] / sigma[0]) / 2)
    assert found.rank == 3
    best = cross_approximation(IMAGE, 3, method="svd")
    assert float(found.optimum) == pytest.approx(float(best.error))
    assert float(found.bv_optimum) == pytest.approx(float(best.bv_error))
    assert float(found.bv_error) > float(found.bv_optimum)


@pytest.mark.parametrize("method", ["aca", "aca_partial", "maxvol"])
def test_the_result_says_what_it_is(method):
    found = cross_approximation(IMAGE, 4, method=method)
    rows, columns = found.rows, found.columns
    meeting = IMAGE[rows][:, columns]
    exact = IMAGE[:, columns] @ torch.linalg.inv(meeting) @ IMAGE[rows]
    torch.testing.assert_close(found.reconstruction, exact, rtol=1e-7, atol=1e-9)
    assert float(found.error) == pytest.approx(float((IMAGE - exact).norm()), rel=1e-6)
    assert float(found.bv_error) == pytest.approx(float(bv_seminorm(IMAGE - exact)), rel=1e-6)
    assert float(found.max_error) == pytest.approx(float((IMAGE - exact).abs().max()), rel=1e-6)
    assert float(found.condition) == pytest.approx(float(torch.linalg.cond(meeting)), rel=1e-6)
    assert float(found.bv_optimum) > 0
    assert found.mask_ratio == pytest.approx((60 / 64) ** 2)
    assert len(set(rows.tolist())) == len(set(columns.tolist())) == found.rank == 4
    # A cross is exact on the rows and columns that it keeps.
    torch.testing.assert_close(found.reconstruction[found.visible], IMAGE[found.visible], rtol=1e-8, atol=1e-10)


def test_maxvol_meets_its_bound_and_is_no_worse_than_the_pivots_it_begins_with():
    sigma = torch.linalg.svdvals(IMAGE)
    for rank in range(1, 9):
        found = cross_approximation(IMAGE, rank, method="maxvol")
        first = cross_approximation(IMAGE, rank, method="aca")

        def volume(cross):
            return float(torch.linalg.det(IMAGE[cross.rows][:, cross.columns]).abs())

        assert volume(found) >= volume(first) * 0.99
        assert float(found.max_error) <= (rank + 1) * float(sigma[rank])
        # Dominant: no other row (or column) in the place of one makes the volume larger by more than a hundredth.
        meeting = IMAGE[found.rows][:, found.columns]
        across = torch.linalg.solve(meeting, IMAGE[:, found.columns], left=False)
        down = torch.linalg.solve(meeting, IMAGE[found.rows])
        assert float(across.abs().max()) <= 1.02
        assert float(down.abs().max()) <= 1.02
    pivots, swapped = (cross_approximation(IMAGE, 3, method=method) for method in ("aca", "maxvol"))
    assert float(swapped.error) < 0.6 * float(pivots.error)  # at this rank the pivots are not dominant


@settings(max_examples=30)
@given(st.integers(1, 5), st.integers(0, 1000), st.sampled_from(["aca", "aca_partial", "maxvol"]))
def test_the_error_is_zero_at_the_rank_and_never_below_the_optimum(rank, seed, method):
    u = low_rank(rank, 12, 9, seed)
    # However small a pivot Gaussian matrices happen to have, the error is rounding times the condition of W.
    for asked in (rank, rank + 2):
        found = cross_approximation(u, asked, method=method)
        assert found.rank == rank
        assert float(found.error) <= 1e-12 * float(found.condition) * float(u.norm())
    for fewer in range(1, rank):
        found = cross_approximation(u, fewer, method=method)
        assert float(found.error) >= float(found.optimum) * (1 - 1e-9)


def test_maxvol_of_a_small_matrix_is_the_best_of_all():
    a = low_rank(3, 7, 3, seed=3)
    rows, converged = dominant_rows(a, tol=0.0)
    best = max(float(torch.linalg.det(a[list(c)]).abs()) for c in torch.combinations(torch.arange(7), 3).tolist())
    assert converged
    assert float(torch.linalg.det(a[rows]).abs()) > 0.5 * best  # dominant, not always the largest
    assert float(torch.linalg.solve(a[rows], a, left=False).abs().max()) <= 1 + 1e-9
    assert not dominant_rows(a[[0, 1, 2, 3, 4, 5, 6]], max_iter=0)[1]


def test_the_zero_image_and_other_kinds_of_numbers():
    found = cross_approximation(torch.zeros(4, 5), 2)
    assert found.rank == 0
    assert float(found.error) == 0
    assert cross_approximation(IMAGE.float(), 3).reconstruction.dtype == torch.float32
    assert float(cross_approximation(IMAGE.numpy(), 3).error) == float(cross_approximation(IMAGE, 3).error)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: cross_approximation(IMAGE, 0), "rank must lie in 1 … 64, got 0"),
        (lambda: cross_approximation(IMAGE, 65), "rank must lie in 1 … 64, got 65"),
        (lambda: cross_approximation(IMAGE, 2, method="x"), "method must be one of aca"),
        (lambda: cross_approximation(IMAGE[None], 2), r"u must be a matrix .* Take the channels one at a time"),
        (lambda: cross_approximation(IMAGE, 2, method="patchcross"), "n must be given"),
        (lambda: cross_approximation(IMAGE, 9, method="patchcross", n=8), "rank must lie in 1 … 8"),
        (lambda: patch_cross(IMAGE, 7), "n must divide the image's sides, got 7 for 64 × 64"),
        (lambda: patch_cross(IMAGE, 8, rows=(8,)), "rows must be different patches of 0 … 7"),
        (lambda: patch_cross(IMAGE, 8, columns=()), "columns must be different"),
        (lambda: patch_cross(IMAGE, 8, columns=(1, 1)), "columns must be different"),
        (lambda: patch_cross(torch.eye(8), 4, rows=(0,), columns=(1,)), "W = 0. Choose another position"),
        (lambda: dominant_rows(torch.zeros(2, 3)), "m ≥ r"),
        (lambda: dominant_rows(torch.ones(4, 2)), "full column rank"),
    ],
)
def test_bad_input(call, says):
    with pytest.raises(ValueError, match=says):
        call()
