import math

import pytest
import torch

from lisse.maths.variation import propagated
from lisse.models import load_model
from lisse.networks.masked import masked_network
from lisse_experiments.masked_autoencoders import grids
from lisse_experiments.masked_autoencoders.grids import Grids, grid_claims, grid_findings, nonlocal_filled, on_grids
from lisse_experiments.masked_autoencoders.reconstruction import hidden, noise_for

SPEC = (
    "zoo:mae_small?in_channels=1&size=16&patch=4&width=16&heads=2&depth=1&decoder_width=8&decoder_heads=2"
    "&decoder_depth=2&mean=0.3&std=0.4&seed=1"
)


@pytest.fixture(scope="module")
def model():
    return load_model(SPEC).eval()


def pictures(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 1, 16, 16, generator=torch.Generator().manual_seed(seed))


# --- non-local means --------------------------------------------------------------------------------------------------


def test_non_local_means_paint_with_visible_pixels_that_are_alike(model, monkeypatch):
    network = masked_network(model)
    images = pictures(2)
    noise = noise_for(2, network, 0)
    covered, patches = hidden(noise, network.mask_ratio), network.patchify(images)
    painted = nonlocal_filled(network, patches, covered, 0.2)
    assert torch.equal(painted[~covered], patches[~covered])  # what is seen stays
    for filled, image, row in zip(painted, patches, covered, strict=True):
        assert image[~row].min() <= filled[row].min() <= filled[row].max() <= image[~row].max()
    wide = nonlocal_filled(network, patches, covered, 1e4)  # all alike: the mean of the visible pixels
    for filled, image, row in zip(wide, patches, covered, strict=True):
        torch.testing.assert_close(filled[row], image[~row].mean().expand_as(filled[row]), rtol=1e-4, atol=1e-5)
    # One pass by plain loops, from the nearest visible patches.
    monkeypatch.setattr(grids, "PASSES", 1)
    ours = network.unpatchify(nonlocal_filled(network, patches, covered, 0.3))[0, 0]
    start = network.unpatchify(grids.nearest_filled(patches, covered, network.side))[0, 0]
    seen = network.unpatchify((~covered)[..., None].expand_as(patches).float())[0, 0] > 0.5
    framed = torch.nn.functional.pad(start[None, None], (2, 2, 2, 2), mode="reflect")[0, 0]
    y, x = (~seen).nonzero()[7].tolist()
    total = weight = 0.0
    for row, column in seen.nonzero().tolist():
        far = (framed[row : row + 5, column : column + 5] - framed[y : y + 5, x : x + 5]).square().mean()
        alike = math.exp(-float(far) / 0.3**2)
        total, weight = total + alike * float(start[row, column]), weight + alike
    assert float(ours[y, x]) == pytest.approx(total / weight, rel=1e-4)


# --- inside a network -------------------------------------------------------------------------------------------------


def test_on_its_own_grid_the_numbers_are_the_networks_own(model):
    test = pictures(5, seed=1)
    found = on_grids(model, pictures(8, seed=2), test, (4, 6, 8), few=3, seed=0)
    assert found.blocks == ("encoder 1", "decoder 1", "decoder 2")
    assert found.scaled.shape == (3, 3, 3)
    assert found.constants.shape == (3, 3)
    network = masked_network(model)
    with torch.no_grad():
        normal = (test[:3] - 0.3) / 0.4
        tokens = torch.cat((network.cls_token.expand(3, -1, -1), network.embedded(normal)), 1)
        moved = propagated(tokens[:, 1:].double(), network.blocks[0](tokens)[:, 1:].double())
        noise = noise_for(5, network, 0)
        logits = network((test - 0.3) / 0.4, noise)["logits"]
    torch.testing.assert_close(found.scaled[:, 0, 0], moved.scaled)
    assert found.frames.shape == (5, 3)
    covered = hidden(noise, network.mask_ratio)
    apart = network.unpatchify(logits) * 0.4 + 0.3 - test
    square = (network.patchify(apart).square().mean(-1) * covered).sum(1) / covered.sum(1)
    torch.testing.assert_close(found.model, square.double(), rtol=1e-4, atol=0)
    torch.testing.assert_close(found.frames[:, -1].square(), square.double(), rtol=1e-4, atol=0)
    with pytest.raises(TypeError, match="model must be a masked autoencoder"):
        on_grids(torch.nn.Identity(), test, test, (4, 6, 8), few=1, seed=0)


def made(growth: float, *, constant: float = 0.0, fall: float = 0.1, worse: float = 0.1) -> Grids:
    sides = torch.tensor([4.0, 8.0, 16.0]).double()
    half = 0.01 * torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(0)).double()
    noise = torch.cat([half, -half]).exp()  # no slope on average
    frames = 1 - fall * torch.arange(3).double() + 0.001 * noise[:, 0]
    return Grids(
        (4, 8, 16), ("encoder 1", "decoder 1"), sides**growth * noise, sides**constant * noise[:, 0], frames,
        0.2 + worse + 0.01 * noise[:, 0, 0], 0.2 + 0.01 * noise[:, 1, 0],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "key", "holds"),
    [
        ({"growth": -0.5}, "q2/bounded", True),
        ({"growth": 1.0}, "q2/bounded", False),
        ({"growth": 0.0}, "q2/bounded", None),
        ({"growth": 0.0, "constant": -0.5}, "q5/constant", True),
        ({"growth": 0.0, "constant": 0.5}, "q5/constant", False),
        ({"growth": 0.0}, "figure3", True),
        ({"growth": 0.0, "fall": -0.1}, "figure3", False),
        ({"growth": 0.0, "worse": -0.1}, "q2/beats_nonlocal", False),
        ({"growth": 0.0, "worse": 0.0}, "q2/beats_nonlocal", None),
    ],
)
def test_claims_are_decided_by_slopes_and_differences(options, key, holds):
    claims = {claim.key: claim.holds for claim in grid_claims(made(**options), 0)}
    assert claims[key] is holds


def test_findings_name_the_block_and_the_network():
    numbers = {finding.key: finding for finding in grid_findings({"mae": made(0.7, constant=0.3)}, {"mae": "MAE"}, 0)}
    assert set(numbers) == {
        "q5/constant_slope/mae", "q2/slope/encoder1/mae", "q2/slope/decoder1/mae", "figure3/0/mae", "figure3/1/mae",
        "figure3/2/mae", "q2/error/nonlocal/mae",
    }  # fmt: skip
    assert numbers["q2/slope/decoder1/mae"].value == pytest.approx(0.7, abs=0.02)
    assert numbers["q5/constant_slope/mae"].theirs == 0
    assert numbers["figure3/1/mae"].value == pytest.approx(0.9, abs=0.01)
