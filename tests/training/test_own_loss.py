from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import lisse
from lisse.data import Dataset
from lisse.training import RECIPES, Recipe

SPEC = (
    "zoo:mae_small?in_channels=1&size=8&patch=2&width=16&heads=2&depth=1"
    "&decoder_width=8&decoder_heads=2&decoder_depth=1"
)


def digits(n=96):
    return lisse.load_data("digits", split="train", limit=n)


def test_a_masked_autoencoder_trains_on_its_own_loss_without_labels():
    model = lisse.load_model(SPEC)
    data = digits()
    unlabelled = Dataset("digits", data.inputs)
    recipe = Recipe(optimizer="adamw", lr=3e-3, batch=32, epochs=6)
    found = lisse.train(model, unlabelled, recipe=recipe, test=unlabelled)
    assert found.log[-1]["loss"] < 0.8 * found.log[0]["loss"]
    assert found.test.accuracy is None
    inner = model.network.eval()
    normal = (data.inputs.float() - model.mean) / model.std
    with torch.no_grad():
        assert found.test.loss == pytest.approx(inner(normal)["loss"].item(), rel=1e-4)


def test_it_resumes_from_its_folder(tmp_path):
    recipe = Recipe(optimizer="adamw", lr=3e-3, batch=32, epochs=2)
    first = lisse.train(lisse.load_model(SPEC), digits(), recipe=recipe, out=tmp_path)
    again = lisse.train(lisse.load_model(SPEC), digits(), recipe=recipe, out=tmp_path)
    assert again.resumed == first.steps
    loaded = lisse.load_model(str(first.checkpoint))
    assert torch.equal(loaded(digits().inputs.float()[:2]), first.model.eval()(digits().inputs.float()[:2]))


def test_a_bare_network_that_returns_a_loss_is_taken_at_its_word():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return {"logits": x * self.weight, "loss": (self.weight - 3).square()}

    model = Own()
    lisse.train(model, Dataset("x", torch.rand(8, 2)), recipe=Recipe(lr=0.3, batch=8, epochs=60))
    assert float(model.weight) == pytest.approx(3, abs=0.2)


def test_a_loss_that_is_given_goes_before_the_networks_own():
    model = lisse.load_model(SPEC)
    recipe = Recipe(batch=32, epochs=1)
    found = lisse.train(model, digits(32), recipe=recipe, loss=lambda output, _: 0 * output.sum() + 5.0)
    assert found.log[0]["loss"] == pytest.approx(5.0)


def test_label_smoothing_has_no_place_there():
    recipe = dataclasses.replace(
        RECIPES["masked-autoencoders-short"], label_smoothing=0.1, crop=0, flip=False, batch=32
    )
    with pytest.raises(ValueError, match=r"label_smoothing must be 0 for .* which brings its own loss"):
        lisse.train(lisse.load_model(SPEC), digits(), recipe=recipe, epochs=1)
