"""The loop against ten naive lines, every argument, callbacks, penalties, divergence."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from scipy.stats import binomtest
from small_trainings import RECIPE, convolutional, images, network, points, same
from torch import nn

import lisse
from lisse.data import Dataset
from lisse.data.augmentation import CropFlip
from lisse.training import Penalty, Recipe, Training, with_classes
from lisse.training.feed import keyed
from lisse.training.optimiser import rate_factor


def naive(model: nn.Module, data: Dataset, recipe: Recipe, *, seed: int = 0, penalty=None, smoothing: float = 0.0):
    """What train does, in ten lines."""
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    more = {"momentum": recipe.momentum, "nesterov": recipe.nesterov} if recipe.optimizer == "sgd" else {}
    optimiser = kinds[recipe.optimizer](
        model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay, fused=True, **more
    )
    per_epoch = math.ceil(len(data) / recipe.batch)
    losses = []
    for step in range(recipe.epochs * per_epoch):
        epoch, k = divmod(step, per_epoch)
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(keyed(seed, "order", epoch)))
        rows = order[k * recipe.batch : (k + 1) * recipe.batch]
        optimiser.param_groups[0]["lr"] = recipe.lr * rate_factor(recipe, step, recipe.epochs * per_epoch, per_epoch)
        output = model(data.inputs[rows])
        loss = nn.functional.cross_entropy(output, data.targets[rows], label_smoothing=smoothing)
        losses.append((loss.item(), len(rows)))
        total = loss if penalty is None else loss + penalty(model, data.inputs[rows])
        optimiser.zero_grad()
        total.backward()
        if recipe.clip:
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimiser.step()
    return losses, per_epoch


def trained(
    recipe: Recipe = RECIPE, data: Dataset | None = None, model: nn.Module | None = None, **options
) -> Training:
    return lisse.train(model or network(), data or points(), recipe=recipe, **options)


CHANGES = [
    {},
    {"optimizer": "adam", "lr": 0.01},
    {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
    {"momentum": 0.0},
    {"nesterov": True},
    {"weight_decay": 0.01},
    {"batch": 10},
    {"epochs": 1},
    {"schedule": "cosine"},
    {"schedule": "exponential", "gamma": 0.5},
    {"schedule": "onecycle", "warmup": 0.4},
    {"clip": 0.01},
    {"label_smoothing": 0.2},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_it_is_the_naive_loop_and_every_field_matters(changes):
    recipe = dataclasses.replace(RECIPE, **changes)
    ours, theirs = network(), network()
    found = trained(recipe, model=ours)
    losses, per_epoch = naive(theirs, points(), recipe, smoothing=recipe.label_smoothing)
    assert same(ours, theirs)
    assert (found.status, found.step, found.epoch) == ("finished", len(losses), recipe.epochs)
    first = losses[:per_epoch]
    assert found.log[0]["loss"] == pytest.approx(sum(v * n for v, n in first) / sum(n for _, n in first), rel=1e-6)
    if changes:
        assert not same(ours, trained().model)


def test_the_same_call_gives_the_same_weights_and_another_seed_others():
    first, again, other = (trained(seed=seed, model=network(dropout=0.3)).model for seed in (0, 0, 1))
    assert same(first, again)
    assert not same(first, other)


def test_dropout_differs_from_step_to_step_and_the_persons_random_state_stays():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    seen = []
    model = network(dropout=0.5).eval()

    def keep(activations, batch):
        seen.append((activations["2"] == 0).float())
        return activations["2"].sum() * 0

    trained(dataclasses.replace(RECIPE, batch=None), model=model, penalties=[Penalty(keep, 1.0, ("2",))])
    assert torch.equal(torch.get_rng_state(), before)
    assert not model.training
    assert not any(module.training for module in model)
    assert not torch.equal(seen[0], seen[1])


def test_epochs_replace_the_recipes_and_the_log_has_a_row_for_each():
    found = trained(epochs=5, test=points(30, seed=3))
    frame = found.frame()
    assert list(frame["epoch"]) == [1, 2, 3, 4, 5]
    assert list(frame["step"]) == [4, 8, 12, 16, 20]
    assert list(frame.columns) == ["epoch", "step", "loss", "accuracy", "lr", "seconds", "test_loss", "test_accuracy"]
    assert frame["loss"].iloc[-1] < frame["loss"].iloc[0]
    assert frame["seconds"].is_monotonic_increasing
    assert (found.steps, found.epochs, found.checkpoint, found.out) == (20, 5, None, None)


def test_the_test_score_is_the_models_with_wilsons_interval():
    test = points(30, seed=3)
    found = trained(test=test)
    output = found.model.eval()(test.inputs)
    right = int((output.argmax(1) == test.targets).sum())
    assert found.test.accuracy == pytest.approx(right / 30)
    assert found.test.error == pytest.approx(1 - right / 30)
    assert found.test.loss == pytest.approx(nn.functional.cross_entropy(output, test.targets).item(), rel=1e-5)
    theirs = binomtest(right, 30).proportion_ci(0.95, "wilson")
    assert (found.test.low, found.test.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert found.log[-1]["test_accuracy"] == found.test.accuracy


def test_test_every():
    found = trained(epochs=5, test=points(30, seed=3), test_every=2)
    assert [("test_loss" in row) for row in found.log] == [False, True, False, True, True]
    assert found.frame()["test_loss"].isna().tolist() == [True, False, True, False, False]


def test_training_data_test_data_and_modes_in_batch_norm():
    model = convolutional().eval()
    found = lisse.train(model, images(), recipe=RECIPE, test=images(20))
    assert int(model[1].num_batches_tracked) == found.steps  # the tests left the statistics alone
    assert not model.training


# --- what a person may bring -----------------------------------------------------------------------------------------


def test_a_loss_of_ones_own_on_targets_of_ones_own():
    data = points()
    data = Dataset("regression", data.inputs, data.inputs[:, :3] * 2)
    recipe = dataclasses.replace(RECIPE, optimizer="adam", lr=0.02)
    found = trained(recipe, data=data, test=data, loss=nn.functional.mse_loss, epochs=40)
    assert "accuracy" not in found.log.columns
    assert found.test.accuracy is None
    assert found.test.loss < found.log[0]["loss"] / 3


def test_tokens_in_a_dict_are_keywords():
    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.out = nn.Embedding(11, 8), nn.Linear(8, 2)

        def forward(self, input_ids, attention_mask):
            kept = self.embedding(input_ids) * attention_mask[..., None]
            return {"logits": self.out(kept.sum(1) / attention_mask.sum(1, keepdim=True))}

    ids = torch.randint(0, 11, (60, 5))
    data = Dataset("text", {"input_ids": ids, "attention_mask": torch.ones(60, 5)}, (ids[:, 0] > 5).long())
    found = lisse.train(Text(), data, recipe=dataclasses.replace(RECIPE, lr=0.5), epochs=30, test=data)
    assert found.test.accuracy > 0.6


def test_a_network_and_data_in_double_precision():
    data = points()
    model = network().double()
    found = trained(model=model, data=Dataset("d", data.inputs.double(), data.targets))
    assert next(found.model.parameters()).dtype == torch.float64
    true = trained(precision="64-true").model
    assert next(true.parameters()).dtype == torch.float64


def test_bf16_on_the_cpu_is_near_full_precision():
    exact, mixed = trained(epochs=1), trained(epochs=1, precision="bf16-mixed")
    assert next(mixed.model.parameters()).dtype == torch.float32
    assert mixed.log[0]["loss"] == pytest.approx(exact.log[0]["loss"], rel=0.02)
    assert mixed.log[0]["loss"] != exact.log[0]["loss"]


def test_augmentation_comes_from_the_recipe_or_the_argument():
    cropped = dataclasses.replace(RECIPE, crop=1, flip=True)

    def of(recipe, augment="recipe"):
        return lisse.train(convolutional(), images(), recipe=recipe, augment=augment).model

    plain = of(RECIPE)
    assert same(of(cropped), of(RECIPE, CropFlip(1, True)))
    assert same(of(cropped, None), plain)
    assert not same(of(cropped), plain)
    assert not same(of(cropped), of(RECIPE, CropFlip(1, False)))
    noisy = [of(RECIPE, lambda x: x + 0.1 * torch.randn_like(x)) for _ in range(2)]
    assert same(*noisy)
    assert not same(noisy[0], plain)
    assert not same(of(RECIPE, [CropFlip(1, True), lambda x: x * 0.5]), of(cropped))


def test_channels_last_is_a_layout():
    model = convolutional()
    found = lisse.train(model, images(), recipe=RECIPE, channels_last=True)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    plain = lisse.train(convolutional(), images(), recipe=RECIPE)
    assert found.log[-1]["loss"] == pytest.approx(plain.log[-1]["loss"], rel=1e-3)


# --- the head --------------------------------------------------------------------------------------------------------


def test_the_head_learns_at_its_own_rate():
    slow = dataclasses.replace(RECIPE, head_lr=1e-9)
    start, found = network(), trained(slow).model
    assert torch.allclose(found[5].weight, start[5].weight, atol=1e-6)
    assert not torch.allclose(found[0].weight, start[0].weight, atol=1e-3)
    named = trained(slow, head="0").model
    assert torch.allclose(named[0].weight, start[0].weight, atol=1e-6)
    assert not torch.allclose(named[5].weight, start[5].weight, atol=1e-3)
    with pytest.raises(ValueError, match=r"parameters, got 'top'\. Linear layers: 0, 3, 5"):
        trained(slow, head="top")


def test_a_new_classifier_keeps_the_rest_and_loads_by_itself(tmp_path):
    first = lisse.load_model("zoo:fc2?in_channels=1&size=8&mean=none")
    model = with_classes(lisse.load_model("zoo:fc2?in_channels=1&size=8&mean=none"), 4, seed=1)
    weights, before = model.state_dict(), first.state_dict()
    last = list(before)[-2:]
    assert all(torch.equal(weights[name], before[name]) for name in before if name not in last)
    assert weights[last[-1]].shape == (4,)
    assert with_classes(model, 4) is model
    data = Dataset("d", torch.rand(40, 1, 8, 8), torch.arange(40) % 4)
    found = lisse.train(model, data, recipe=RECIPE, out=tmp_path / "run")
    loaded = lisse.load_model(str(found.checkpoint))
    assert loaded.lisse.classes == 4
    assert same(loaded, model.eval())
    other = with_classes(lisse.load_model("zoo:fc2?in_channels=1&size=8&mean=none"), 4, seed=2)
    assert not same(other, with_classes(lisse.load_model("zoo:fc2?in_channels=1&size=8&mean=none"), 4, seed=1))
    with pytest.raises(ValueError, match="classes must be a positive integer, got 0"):
        with_classes(model, 0)
    with pytest.raises(ValueError, match="must have a linear classifier for a head"):
        with_classes(nn.Conv2d(1, 1, 1), 3)


# --- penalties -------------------------------------------------------------------------------------------------------


def squares(activations, batch):
    return sum((value**2).mean() for value in activations.values())


def test_a_penalty_reads_activations_with_gradient():
    ours, theirs = network(), network()
    found = trained(model=ours, penalties=[Penalty(squares, 0.5, ("0", "3"))])

    def by_hand(model, x):
        first = model[0](x)
        return 0.5 * ((first**2).mean() + (model[:4](x) ** 2).mean())

    naive(theirs, points(), RECIPE, penalty=by_hand)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert {"total", "squares"} <= set(found.log.columns)
    row = found.log[0]
    assert row["total"] == pytest.approx(row["loss"] + 0.5 * row["squares"], rel=1e-5)
    assert not any(module._forward_hooks for module in ours.modules())


def test_a_penalty_sees_the_activation_before_it_is_overwritten_and_the_batch():
    seen = {}

    def look(activations, batch):
        seen.update(activations=activations, batch=batch)
        return (activations["1"] < 0).float().mean() + 0 * activations["1"].sum()

    found = lisse.train(convolutional(), images(), recipe=RECIPE, penalties=[Penalty(look, 0.0, "1", name="negative")])
    assert found.log[0]["negative"] > 0.1  # the ReLU after it works in place
    assert len(seen["batch"].targets) == len(seen["activations"]["1"])
    assert seen["batch"].inputs.shape[1:] == (2, 6, 6)


def test_penalties_that_cannot_be():
    with pytest.raises(ValueError, match="'4x'"):
        trained(penalties=[Penalty(squares, 1.0, ("4x",))])
    with pytest.raises(ValueError, match="different names"):
        trained(penalties=[Penalty(squares, 1.0, "0"), Penalty(squares, 1.0, "3")])
    with pytest.raises(ValueError, match="weight must be a finite number, got nan"):
        Penalty(squares, math.nan, "0")
    with pytest.raises(ValueError, match="layers must name at least one layer"):
        Penalty(squares, 1.0)
    with pytest.raises(TypeError, match="function must be callable"):
        Penalty(3, 1.0, "0")
    with pytest.raises(ValueError, match="penalty lost must return one number as a tensor, got"):
        trained(penalties=[Penalty(lambda a, b: a["0"], 1.0, "0", name="lost")])


# --- callbacks -------------------------------------------------------------------------------------------------------


def test_callbacks_are_told_every_moment_in_order(tmp_path):
    told = []
    trained(epochs=2, callbacks=[told.append], out=tmp_path / "run")
    assert [(moment.when, moment.step) for moment in told] == [
        ("start", 0), *(("step", i) for i in (1, 2, 3, 4)), ("epoch", 4),
        *(("step", i) for i in (5, 6, 7, 8)), ("epoch", 8), ("end", 8),
    ]  # fmt: skip
    assert {moment.steps for moment in told} == {8}
    assert [moment.epoch for moment in told[:3]] == [0.0, 0.25, 0.5]
    assert told[0].epochs == 2
    assert told[0].out == tmp_path / "run"
    assert told[5].log["loss"] > 0
    assert isinstance(told[0].model, nn.Sequential)
    assert told[1].log["lr"] == 0.1


def test_a_callback_cannot_change_the_training():
    def meddle(moment):
        torch.rand(7)
        torch.manual_seed(moment.step)
        moment.model.eval()

    assert same(
        trained(model=network(dropout=0.3), callbacks=[meddle]).model, trained(model=network(dropout=0.3)).model
    )


def test_watch_measures_while_it_trains(tmp_path):
    from lisse.instruments import Sensitivity

    watch = lisse.Watch(points(20), [Sensitivity(samples=10, clouds=1)], every=1)
    model = trained(callbacks=[watch], out=tmp_path / "run").model
    assert list(watch.profiles) == [0, 4, 8, 12]
    assert same(model, trained().model)


# --- divergence ------------------------------------------------------------------------------------------------------


def exploding(at: int):
    count = [0]

    def loss(output, targets):
        count[0] += 1
        return nn.functional.cross_entropy(output, targets) * (math.inf if count[0] == at else 1.0)

    return loss


def test_a_loss_that_is_not_finite_ends_the_run_with_its_step():
    found = trained(loss=exploding(6))
    assert (found.status, found.step, found.test) == ("diverged", 6, None)
    assert found.epoch == 1.5
    assert len(found.log) == 1
    assert all(torch.isfinite(p).all() for p in found.model.parameters())


def test_a_diverged_run_keeps_its_last_good_weights_and_is_not_started_again(tmp_path):
    steps = {}

    def keep(moment):
        steps[moment.step] = {name: value.clone() for name, value in moment.model.state_dict().items()}

    wild = dataclasses.replace(RECIPE, lr=1e18, schedule="exponential")
    said = []
    model = lisse.load_model("zoo:fc2?in_channels=1&size=8&mean=none")
    data = Dataset("d", torch.rand(40, 1, 8, 8), torch.arange(40) % 4)
    options = {"recipe": wild, "out": tmp_path / "run", "checkpoint_seconds": 0.0}
    found = lisse.train(model, data, **options, callbacks=[keep], progress=said.append)
    assert found.status == "diverged"
    assert any("not finite: diverged" in event.say for event in said)
    assert found.checkpoint == tmp_path / "run" / "last-good.safetensors"
    good = lisse.load_model(str(found.checkpoint))
    assert all(torch.isfinite(p).all() for p in good.parameters())
    assert any(
        all(torch.equal(value, kept[name]) for name, value in good.state_dict().items()) for kept in steps.values()
    )
    assert same(good, model)
    calls = []
    fresh = lisse.load_model("zoo:fc2?in_channels=1&size=8&mean=none")
    again = lisse.train(fresh, data, **options, callbacks=[calls.append], progress=said.append)
    assert (again.status, again.step, calls) == ("diverged", found.step, [])
    assert f"diverged at step {found.step}" in said[-1].say
    assert same(fresh, good)
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize(("at", "step"), [(3, 4), (12, 12)], ids=["in the middle", "in the last step"])
def test_weights_that_are_not_finite_are_never_a_good_checkpoint(tmp_path, at, step):
    count = [0]

    def loss(output, targets):
        count[0] += 1
        broken = (0 * output.sum()).sqrt() if count[0] == at else 0.0  # itself 0, its gradient is not a number
        return nn.functional.cross_entropy(output, targets) + broken

    found = trained(loss=loss, out=tmp_path, checkpoint_seconds=0)
    assert (found.status, found.step) == ("diverged", step)
    assert all(torch.isfinite(p).all() for p in found.model.parameters())
    assert (tmp_path / "checkpoints" / f"step-{at - 1:012d}.safetensors").exists()
    assert not (tmp_path / "checkpoints" / f"step-{at:012d}.safetensors").exists()


def test_looking_less_often_finds_the_same_step(monkeypatch, tmp_path):
    from lisse.training import loop

    class Rare(loop.Loop):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.look_every = 50

    monkeypatch.setattr("lisse.training.start.Loop", Rare)
    rare = trained(loss=exploding(6), out=tmp_path / "a", checkpoint_seconds=0)
    assert (rare.status, rare.step) == ("diverged", 6)
    fine = trained()
    monkeypatch.undo()
    assert same(fine.model, trained().model)
    assert fine.log[1]["loss"] == trained().log[1]["loss"]


def test_slow_steps_are_looked_at_and_kept_more_often(monkeypatch, tmp_path):
    from lisse.training import loop

    class Rare(loop.Loop):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.look_every = 50

    kept = {}

    def see(moment):
        kept[moment.step] = {int(path.stem[5:]) for path in (tmp_path / str(patience) / "checkpoints").iterdir()}

    monkeypatch.setattr("lisse.training.start.Loop", Rare)
    for patience in (0.0, 1e9):  # no step is quick enough; all are
        monkeypatch.setattr(loop, "PATIENCE", patience)
        recipe = dataclasses.replace(RECIPE, batch=5, epochs=1)
        trained(recipe, out=tmp_path / str(patience), checkpoint_seconds=0, callbacks=[see])
        assert max(kept[9]) == (8 if patience == 0 else 1)


def test_a_diverged_run_says_which_checkpoint_was_good(tmp_path):
    found = trained(loss=exploding(6), out=tmp_path, checkpoint_seconds=0)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["status"], result["step"]) == ("diverged", 6)
    assert (result["checkpoint"], result["checkpoint_step"]) == ("last-good.safetensors", 5)
    assert found.checkpoint == tmp_path / result["checkpoint"]


@pytest.mark.parametrize(
    ("batch", "size", "expected"), [(16, 4, 1000), (16, 2**18, 16), (4, 2**18, 16), (50, 2**19, 50)]
)
def test_test_batches_are_small_where_samples_are_large(batch, size, expected):
    from types import SimpleNamespace

    from lisse.training.loop import Evaluation

    test = Dataset("large", torch.zeros(1, 1).expand(2, size), torch.zeros(2, dtype=torch.int64))
    plan = SimpleNamespace(test=test, recipe=dataclasses.replace(RECIPE, batch=batch))
    found = Evaluation(SimpleNamespace(device=torch.device("cpu")), plan, torch.float32, False)
    assert found.batch == expected


def test_the_score_does_not_depend_on_the_batch(monkeypatch):
    whole = trained(test=points(31, seed=2)).test
    monkeypatch.setattr("lisse.training.loop.BATCH", 7)
    parts = trained(test=points(31, seed=2)).test
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
    assert (parts.accuracy, parts.n) == (whole.accuracy, 31)


@pytest.mark.parametrize(
    ("loss", "got"),
    [
        (lambda o, t: nn.functional.cross_entropy(o, t, reduction="none"), r"shape \(16,\)"),
        (lambda o, t: 1.0, "float"),
    ],
)
def test_a_loss_that_is_not_one_number(loss, got):
    with pytest.raises(ValueError, match=f"loss must return one number as a tensor, got {got}"):
        trained(loss=loss)


def test_a_loss_of_shape_one_is_one_number():
    found = trained(loss=lambda o, t: nn.functional.cross_entropy(o, t)[None], test=points())
    assert same(found.model, trained(loss=nn.functional.cross_entropy).model)
    assert found.test.loss == pytest.approx(trained(test=points()).test.loss)


# --- bad input -------------------------------------------------------------------------------------------------------

GOOD = points()
HOLED = GOOD.inputs.clone()
HOLED[7, 2] = math.nan
BROKEN = network()
nn.init.constant_(BROKEN[3].bias, math.inf)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"model": "zoo:lenet"}, TypeError, "model must be an nn.Module, got str"),
        ({"recipe": "sgd"}, TypeError, "recipe must be a Recipe, got str"),
        ({"epochs": 0}, ValueError, "epochs must be an integer of at least 1, got 0"),
        ({"recipe": dataclasses.replace(RECIPE, batch=51)}, ValueError, "batch must not exceed the 50 samples"),
        ({"seed": 1.5}, TypeError, "seed must be an integer"),
        ({"data": Dataset("d", GOOD.inputs)}, ValueError, "data must have targets"),
        ({"data": Dataset("d", GOOD.inputs, GOOD.inputs)}, ValueError, "one integer label per sample"),
        ({"data": Dataset("d", GOOD.inputs, GOOD.targets + 1)}, ValueError, r"labels in 0 … 2, .* got 1 … 3"),
        ({"data": Dataset("d", GOOD.inputs, GOOD.targets - 1)}, ValueError, r"got -1 … 1 in 'd'.* count from 0\.$"),
        ({"test": Dataset("d", GOOD.inputs, GOOD.targets + 5)}, ValueError, "test must have labels in 0 … 2"),
        ({"data": Dataset("d", GOOD.inputs[:, :3], GOOD.targets)}, ValueError, r"data must fit the model, got .*\[3\]"),
        ({"test": Dataset("d", GOOD.inputs[:, :3], GOOD.targets)}, ValueError, r"test must fit the model, got .*\[3\]"),
        ({"data": Dataset("d", HOLED, GOOD.targets)}, ValueError, "data must hold finite numbers, .* sample 7 of 'd'"),
        ({"test": Dataset("d", HOLED, GOOD.targets)}, ValueError, "test must hold finite numbers, .* sample 7 of 'd'"),
        ({"model": BROKEN}, ValueError, r"model must have finite weights, got nan or inf in 3\.bias"),
        ({"devices": 17}, ValueError, "batch must be at least the 17 devices, got 16"),
        ({"data": torch.zeros(0, 4)}, ValueError, "at least one sample"),
        ({"recipe": dataclasses.replace(RECIPE, crop=2)}, ValueError, "augment must be left out for data that are no"),
        ({"callbacks": [3]}, TypeError, "callbacks must be callable with a Moment"),
        ({"penalties": [squares]}, TypeError, "penalties must be Penalty"),
        ({"loss": 3}, TypeError, "loss must be callable"),
        ({"device": "abacus"}, ValueError, "device must be one that torch knows"),
        ({"device": "meta"}, ValueError, "device must be cpu, cuda or mps"),
        ({"devices": 0}, ValueError, "devices must be a positive integer"),
        ({"precision": "8-wild"}, ValueError, "precision must fit together|device, devices and precision must"),
        ({"tensorboard": True}, ValueError, "out must be given with tensorboard=True"),
        ({"checkpoint_seconds": -1}, ValueError, "checkpoint_seconds must be at least 0"),
        ({"test_every": 0}, ValueError, "test_every must be a positive number"),
    ],
    ids=lambda value: "" if isinstance(value, type) else str(value)[:20],
)  # fmt: skip
def test_bad_input_is_refused_before_any_work(options, error, match, tmp_path):
    given = {"model": network(), "data": GOOD, "recipe": RECIPE, **options}
    calls = []
    with pytest.raises(error, match=match):
        lisse.train(given.pop("model"), given.pop("data"), **{"callbacks": [calls.append], **given})
    assert not calls


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="out must be a folder"):
        trained(out=tmp_path / "file")


def test_smoothing_does_not_go_with_a_loss_of_ones_own():
    with pytest.raises(ValueError, match="label_smoothing must be 0 where a loss is given"):
        trained(dataclasses.replace(RECIPE, label_smoothing=0.1), loss=nn.functional.cross_entropy)


def test_a_network_without_parameters_that_learn():
    model = network().requires_grad_(False)
    with pytest.raises(ValueError, match="must have parameters that learn"):
        trained(model=model)
