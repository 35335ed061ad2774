import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

import lisse
from lisse.data import Dataset
from lisse.networks import zoo
from lisse.networks.isometric import Isometrically, IsometricTerm, isometric_loss
from lisse.training import Penalty, Recipe

X = torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3


def batch(inputs=X, targets=Y):
    return SimpleNamespace(inputs=inputs, targets=targets)


def convolutional():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 5, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(45, 3),
    )


# --- the term -------------------------------------------------------------------------------------------------------


def test_it_is_the_mean_loss_over_layers():
    a, b = torch.randn(12, 7), torch.randn(12, 2, 5)
    losses = [isometric_loss(X, z, Y) for z in (a, b)]
    assert float(IsometricTerm()({"a": a, "b": b}, batch())) == pytest.approx(float(sum(losses)) / 2)
    whole = IsometricTerm(within="all")({"a": a}, batch(targets=None))
    assert float(whole) == pytest.approx(float(isometric_loss(X, a)))
    halves = IsometricTerm(within=lambda b: b.targets % 2)({"a": a}, batch())
    assert float(halves) == pytest.approx(float(isometric_loss(X, a, Y % 2)))
    assert float(IsometricTerm(metric="cosine")({"a": a}, batch())) == pytest.approx(
        float(isometric_loss(X, a, Y, metric="cosine"))
    )
    code = IsometricTerm(scaling="code")({"a": a}, batch())
    assert float(code) == pytest.approx(float(isometric_loss(X, a, Y, scaling="code")), rel=1e-5)


def test_a_source_layer_stands_in_for_the_input():
    a, b = torch.randn(12, 7), torch.randn(12, 5)
    tokens = {"input_ids": torch.ones(12, 4, dtype=torch.long)}
    found = IsometricTerm(source="a")({"a": a, "b": b}, batch(tokens))
    assert float(found) == pytest.approx(float(isometric_loss(a, b, Y)))
    with pytest.raises(ValueError, match="Token ids have no distances"):
        IsometricTerm()({"a": a}, batch(tokens))
    with pytest.raises(ValueError, match="source must be one of the layers, got 'c'"):
        IsometricTerm(source="c")({"a": a}, batch())
    with pytest.raises(ValueError, match="another layer beside the source"):
        IsometricTerm(source="a")({"a": a}, batch())


def test_relative_does_not_depend_on_scale():
    a = torch.randn(12, 7)
    term = IsometricTerm(relative=True)
    assert float(term({"a": a}, batch())) == pytest.approx(float(term({"a": 30 * a}, batch())), rel=1e-4)
    assert float(term({"a": 5 * X.flatten(1)}, batch())) == pytest.approx(0.0, abs=1e-9)


def test_activations_that_are_not_finite_give_nan():
    a = torch.randn(12, 7, requires_grad=True)
    assert math.isnan(float(IsometricTerm()({"a": a * math.inf}, batch()).detach()))


def test_bad_terms():
    with pytest.raises(ValueError, match="within must be"):
        IsometricTerm(within="classes")
    for targets in (None, torch.rand(12)):  # numbers that all differ leave no pair, and a loss of 0
        with pytest.raises(ValueError, match="one class per sample, got"):
            IsometricTerm()({"a": torch.randn(12, 7)}, batch(targets=targets))
    with pytest.raises(TypeError, match="must be a tensor"):
        IsometricTerm()({"a": torch.randn(12, 7)}, batch(inputs=[1, 2]))


# --- lisse.train ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cnn", "vit"])
def test_training_with_it_lowers_it(kind):
    data = Dataset("toy", X, Y)
    found = {}
    for weight in (0.0, 1.0):
        if kind == "cnn":
            model, layers = convolutional(), ["3"]
        else:
            model = zoo.build("vit_small", size=8, classes=3, width=16, depth=2, heads=2)
            layers = ["blocks.*"]
        term = IsometricTerm(relative=True)
        recipe = Recipe(epochs=12, batch=12, optimizer="adam", lr=5e-3)
        training = lisse.train(model, data, recipe=recipe, penalties=[Penalty(term, weight, layers)], seed=0)
        assert training.status == "finished"
        found[weight] = [row["isometric"] for row in training.log][-1]
    assert found[1.0] < 0.8 * found[0.0]


# --- a plain loop ---------------------------------------------------------------------------------------------------


def test_a_plain_loop():
    network = convolutional()
    model = Isometrically(network, X, layers=["1", "3"], weight=0.5)
    logits = model(X)
    assert torch.equal(logits, network(X))
    seen = {"1": network[:2](X), "3": network[:4](X)}
    expected = 0.5 * IsometricTerm()(seen, batch())
    assert float(model.penalty(Y).detach()) == pytest.approx(float(expected.detach()))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    values = []
    for _ in range(10):
        loss = functional.cross_entropy(model(X), Y) + model.penalty(Y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        values.append(float(model.penalty(Y).detach()))
    assert values[-1] < values[0]


def test_a_loss_of_the_networks_own_is_raised_in_training_alone():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x, labels=None):
            z = self.inner(x)
            return {"loss": z.sum(), "logits": z}

    model = Isometrically(Own(), torch.randn(4, 4), layers="inner", weight=2.0)
    x = torch.randn(6, 4)
    labels = torch.arange(6) % 2
    found = model(x=x, labels=labels)
    expected = found["logits"].sum() + 2 * isometric_loss(x, found["logits"], labels)
    assert float(found["loss"].detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    model.eval()
    found = model(x=x, labels=labels)
    assert torch.equal(found["loss"], found["logits"].sum())


def test_bad_wrappers():
    with pytest.raises(ValueError, match="weight must be at least 0"):
        Isometrically(convolutional(), X, layers=["1"], weight=-1.0)
    with pytest.raises(RuntimeError, match="must follow a call"):
        Isometrically(convolutional(), X, layers=["1"], weight=1.0).penalty(Y)


# --- Hugging Face ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_hugging_face_trainer_trains_with_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        num_labels=3,
    )  # fmt: skip
    rows = [{"pixel_values": x, "labels": y} for x, y in zip(X, Y, strict=True)]
    term = IsometricTerm(relative=True)
    found = {}
    for weight in (0.0, 100.0):
        torch.manual_seed(0)
        network = transformers.ViTForImageClassification(config)
        layers = ["vit.layers.*"] if hasattr(network.vit, "layers") else ["vit.encoder.layer.*"]
        model = Isometrically(network, {"pixel_values": X}, layers=layers, weight=weight, term=term)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=12, num_train_epochs=20, learning_rate=5e-3,
            report_to=[], use_cpu=True, save_strategy="no", logging_strategy="no", disable_tqdm=True,
            remove_unused_columns=False, label_names=["labels"],
        )  # fmt: skip
        transformers.Trainer(model=model, args=arguments, train_dataset=rows).train()
        model.eval()
        model.weight = 1.0
        with torch.no_grad():
            assert model(pixel_values=X, labels=Y).logits.shape == (12, 3)
            found[weight] = float(model.penalty(Y))
    assert found[100.0] < 0.5 * found[0.0]
