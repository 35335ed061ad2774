"""Training on a CUDA device: resumed, diverged and watched as on a CPU."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from small_trainings import RECIPE, convolutional, images, network, points, same
from torch import nn

import lisse
from lisse.data import Dataset
from lisse.instruments import Sensitivity

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Stop(Exception):
    """Ends a training in the middle."""


def stopping(step: int):
    def callback(moment: object) -> None:
        if moment.when == "step" and moment.step == step:  # type: ignore[attr-defined]
            raise Stop

    return callback


@pytest.mark.parametrize("precision", [None, "bf16-mixed", "16-mixed"])
def test_a_stopped_training_goes_on_to_the_same_weights(tmp_path, precision):
    recipe = dataclasses.replace(RECIPE, momentum=0.9, epochs=4)
    common = {"recipe": recipe, "device": "cuda", "precision": precision}
    whole = network(dropout=0.3)
    lisse.train(whole, points(), **common)
    broken = network(dropout=0.3)
    with pytest.raises(Stop):
        lisse.train(broken, points(), out=tmp_path, checkpoint_seconds=0, callbacks=[stopping(9)], **common)
    again = network(dropout=0.3)
    found = lisse.train(again, points(), out=tmp_path, checkpoint_seconds=0, **common)
    assert 0 < found.resumed <= 9
    assert same(whole, again)


def test_the_first_bad_step_is_named_though_losses_are_read_rarely(tmp_path):
    targets = torch.zeros(40, dtype=torch.long)
    targets[7] = 2
    data = Dataset("one bad label", torch.zeros(40, 4), targets)

    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        bad = torch.where(targets == 2, torch.nan, 1.0)[:, None]
        return nn.functional.cross_entropy(output * bad, targets)

    recipe = dataclasses.replace(RECIPE, batch=1, epochs=2)
    on_cpu = lisse.train(network(), data, recipe=recipe, loss=loss)
    on_gpu = lisse.train(network(), data, recipe=recipe, loss=loss, device="cuda", out=tmp_path)
    assert on_cpu.status == on_gpu.status == "diverged"
    assert on_cpu.step == on_gpu.step
    good = network()
    lisse.training.folder.Folder(tmp_path).load_model(good, on_gpu.checkpoint)
    assert all(torch.isfinite(value).all() for value in good.state_dict().values())


def test_images_that_stay_on_the_device_give_the_cpus_loss():
    recipe = dataclasses.replace(RECIPE, crop=1, flip=True, lr=0.01)
    on_cpu, on_gpu = convolutional(), convolutional()
    ours = lisse.train(on_cpu, images(), recipe=recipe)
    theirs = lisse.train(on_gpu, images(), recipe=recipe, device="cuda")
    assert [row["loss"] for row in ours.log] == pytest.approx([row["loss"] for row in theirs.log], rel=1e-2)


def test_watching_changes_nothing():
    def trained(*callbacks: object) -> nn.Module:
        model = network(dropout=0.3)
        lisse.train(model, points(), recipe=RECIPE, device="cuda", callbacks=callbacks)  # type: ignore[arg-type]
        return model

    watch = lisse.Watch(points(n=30, seed=1), [Sensitivity(samples=10, points=2)], every=1)
    assert same(trained(), trained(watch))
    assert len(watch.profiles) >= 3
