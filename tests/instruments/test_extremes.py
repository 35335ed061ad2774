"""Extremes: the largest logit per head and the largest over the median activation."""

import math

import pytest
import torch
from torch import nn

import lisse
from lisse.instruments import Extremes, Topology
from lisse.maths.extremes import largest_logit, massive_activation
from lisse.networks import zoo


def test_by_hand():
    assert massive_activation(torch.tensor([[1.0, -2.0, 30.0], [2.0, 2.0, -2.0]])).tolist() == [15.0, 1.0]
    assert massive_activation(torch.tensor([[0.0, 0.0, 1.0]])).tolist() == [math.inf]
    tokens = torch.tensor([[[1.0, 2.0, 6.0], [100.0, 1e5, 1.0]]])
    assert massive_activation(tokens, torch.tensor([[1, 0]])).tolist() == [3.0]
    half = torch.tensor([[1.0, 2.0, 60000.0]], dtype=torch.float16)
    assert massive_activation(half).dtype == torch.float32
    logits = torch.tensor([[[[1.0, -math.inf], [3.0, 9.0]], [[-5.0, -6.0], [-7.0, -8.0]]]])
    assert largest_logit(logits).tolist() == [[9.0, -5.0]]
    assert largest_logit(logits, torch.tensor([[1, 0]])).tolist() == [[1.0, -5.0]]


def test_scale_and_order_change_nothing():
    x = torch.randn(4, 33, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(massive_activation(-7 * x[:, torch.randperm(33)]), massive_activation(x))


def test_a_network_by_hand():
    model = zoo.build("vit_small", seed=0, depth=2, width=16, heads=2, size=8, patch=2, classes=3).eval()
    images = torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    profile = lisse.measure(model, images, Extremes(samples=12), batch=5)
    recording = lisse.record(model, images)
    for name in recording:
        values = recording[name].flatten(1).abs()
        ratios = values.amax(1) / values.median(1).values
        rows = {
            row.at["over"]: row for row in profile.rows if row.layer == name and row.quantity == "massive_activation"
        }
        assert rows["max"].value == pytest.approx(float(ratios.max()), rel=1e-5)
        assert rows["mean"].value == pytest.approx(float(ratios.mean()), rel=1e-5)
        assert rows["mean"].low <= rows["mean"].value <= rows["mean"].high
    entries = []
    handle = model.blocks[1].attn.qkv.register_forward_hook(lambda m, a, o: entries.append(o))
    with torch.no_grad():
        model(images)
    handle.remove()
    q, k, _ = model.blocks[1].attn.split(entries[0])
    expected = (q @ k.mT * 8**-0.5).flatten(2).amax((0, 2))
    rows = [row for row in profile.rows if row.quantity == "largest_logit" and row.depth == 1.0]
    assert {row.at["head"]: row.value for row in rows if "head" in row.at} == pytest.approx(
        dict(enumerate(expected.tolist()))
    )
    assert max(expected.tolist()) == pytest.approx(next(row.value for row in rows if "over" in row.at))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_its_forward_makes_the_recording_of_others_and_changes_no_number(order):
    """In batches of 5, the last of 12 samples grows to 5 where 20 samples are recorded in passing."""
    model = zoo.build("vit_small", seed=0, depth=2, width=16, heads=2, size=8, patch=2, classes=3).eval()
    images = torch.rand(30, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    both = [Extremes(samples=12), Topology(samples=20, clouds=1, dims=(0,), p=(1,))]
    together = lisse.measure(model, images, [both[index] for index in order], batch=5)
    for instrument in both:
        (single,) = lisse.measure(model, images, instrument, batch=5).parts
        assert together[instrument.name].rows == single.rows
        assert {row.quantity for row in single.rows} >= {"largest_logit"} or instrument.name == "topology"


def test_padding_is_no_data_and_no_attention_is_said():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=16, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
        intermediate_size=16,
    )  # fmt: skip
    torch.manual_seed(0)
    model, ids = transformers.LlamaModel(config).eval(), torch.randint(3, 20, (9, 6))
    mask = (torch.arange(6) < 4).long().expand(9, 6)
    padded = lisse.measure(model, {"input_ids": ids, "attention_mask": mask}, Extremes(samples=9))
    short = lisse.measure(model, {"input_ids": ids[:, :4]}, Extremes(samples=9))
    for a, b in zip(padded.rows, short.rows, strict=True):
        assert (a.quantity, a.layer) == (b.quantity, b.layer)
        assert a.value == pytest.approx(b.value, rel=1e-4)
    plain = lisse.measure(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(9, 4), Extremes())
    assert any("No attention logits" in note for note in plain.notes)
    assert {row.quantity for row in plain.rows} == {"massive_activation"}
