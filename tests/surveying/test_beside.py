"""What a survey finds out besides the measurements."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lisse
from lisse.data import Dataset
from lisse.instruments import Propagation, Stability, Topology
from lisse.profile import Part, Profile, Quantity, Row
from lisse.run import Run
from lisse.run.accuracy import score
from lisse.run.calibration import calibrated
from lisse.surveying.beside import at_start, with_pictures
from lisse.surveying.networks import for_few


def test_the_error_is_counted_for_any_form_of_answer() -> None:
    class Wrapped(nn.Module):
        def __init__(self, wrap: Any) -> None:
            super().__init__()
            self.wrap, self.layer = wrap, nn.Identity()

        def forward(self, x: torch.Tensor) -> Any:
            return self.wrap(self.layer(x))

    labels = torch.arange(10) % 5
    data = Dataset("scores", nn.functional.one_hot((labels + (torch.arange(10) < 3)) % 5, 5).float(), labels)
    for batch in (1, 4, 10):
        for wrap in (lambda t: t, lambda t: {"logits": t}, lambda t: (t, None), lambda t: [t]):
            error = score(Run(Wrapped(wrap), data, batch=batch), None)
            assert error is not None
            assert (error["error"], error["n"]) == (0.3, 10)
    for wrap in (lambda t: t[:, None], lambda t: t[:, :4], lambda t: {"hidden": t}):
        assert score(Run(Wrapped(wrap), data), None) is None
    assert score(Run(Wrapped(lambda t: t), Dataset("inputs", data.inputs)), None) is None


def test_the_error_is_of_the_first_samples() -> None:
    data = Dataset("scores", torch.eye(4), torch.tensor([0, 1, 3, 2]))
    run = Run(nn.Sequential(nn.Identity()), data, order="given")
    first, everything = score(run, 2), score(run, None)
    assert first is not None
    assert everything is not None
    assert (first["error"], everything["error"]) == (0.0, 0.5)


def test_batch_norm_of_random_weights_fits_the_data() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)).eval()
    points = torch.randn(200, 3) * 5 + 7
    norm: Any = calibrated(model, Dataset("points", points), 100, "cpu")[0]  # type: ignore[index]
    assert torch.allclose(norm.running_mean, points.mean(0), atol=1e-4)
    assert torch.allclose(norm.running_var, points.view(2, 100, 3).var(1).mean(0), rtol=1e-4)
    assert norm.momentum == 0.1
    assert not norm.training


def test_a_network_at_its_start_has_other_weights_and_the_same_preprocessing() -> None:
    model = lisse.load_model("zoo:fc2?in_channels=1&size=8&seed=3&mean=0.25&std=0.5")
    run = Run(model, lisse.load_data("digits", limit=20))
    starts = [at_start(run, seed) for seed in (1000, 1001, 1000)]
    first, second, again = ([weight.sum().item() for weight in start.parameters()] for start in starts)
    assert first == again != second
    assert [weight.shape for weight in starts[0].parameters()] == [weight.shape for weight in model.parameters()]
    assert (starts[0].lisse.mean, starts[0].lisse.std) == (model.lisse.mean, model.lisse.std) == ((0.25,), (0.5,))  # type: ignore[union-attr]


def test_a_masked_autoencoder_gets_its_decoders_frames() -> None:
    small = "size=8&patch=2&width=16&heads=2&depth=1&decoder_width=16&decoder_heads=2&decoder_depth=2"
    model = lisse.load_model(f"zoo:mae_small?in_channels=1&{small}&mean=none")
    data = Dataset("pictures", torch.rand(4, 1, 8, 8))
    row = Row("ratio", 1.0, "exact", 4, "a", 0.5)
    before = Profile((Part("propagation", (row,), (Quantity("ratio", "ratio", "Says."),)),))
    after = with_pictures(
        before, Run(model, data, order="given"), [Propagation()], {"propagation": ["Left out: much."]}
    )
    ((title, film),) = after["propagation"].arrays.items()
    assert title.startswith("filmstrip/")
    assert film.shape == (1, 2 + 3, 1, 8, 8)  # the image, what is visible, the decoder's input and its two layers
    assert (film[0, 0] == data.inputs[0].numpy()).all()  # type: ignore[index]
    assert (film[0, 1] == 0.75).mean() > 0.5  # hidden patches are grey
    assert after.notes == ("Left out: much.",) or list(after.notes) == ["Left out: much."]
    other = lisse.load_model("zoo:fc2?in_channels=1&size=8&mean=none")
    assert with_pictures(before, Run(other, data), [Propagation()], {}) == before


def test_pictures_that_fail_are_a_note() -> None:
    class Blind(Propagation):
        def pictures(self, run: Run) -> Any:
            raise RuntimeError("no light")

    row = Row("ratio", 1.0, "exact", 4, "a", 0.5)
    part = Part("blind", (row,), (Quantity("ratio", "ratio", "Says."),))
    run = Run(nn.Sequential(nn.Identity()), Dataset("x", torch.rand(4, 3)))
    assert list(with_pictures(Profile((part,)), run, [Blind()], {}).notes) == ["No pictures: no light"]
    assert list(with_pictures(Profile((Part("blind"),)), run, [Blind()], {"blind": "Left."}).notes) == []


def test_few_samples_make_small_clouds_rather_than_no_interval() -> None:
    topology, stability = Topology.sized("quick"), Stability.sized("quick")
    assert for_few(topology, 120).samples == 40  # type: ignore[attr-defined]
    assert for_few(stability, 120) == stability
    assert for_few(topology, 89) == topology  # clouds of 29 say too little
    assert for_few(topology, 300) == topology


def test_statistics_that_cannot_be_set_are_refused() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)).eval()
    for batch, n in ((1, 20), (100, 1)):
        with pytest.raises(ValueError, match=r"calibrated: batch must hold at least 2 samples .* got batches of 1"):
            calibrated(model, Dataset("points", torch.randn(n, 3)), batch, "cpu")
    assert calibrated(nn.Linear(3, 2), Dataset("points", torch.randn(1, 3)), 1, "cpu") is not None, "it has no norms"
