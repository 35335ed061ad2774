"""Attention of every family of Transformers: what is read equals the model's own, or there is a reason."""

import dataclasses

import pytest
import torch
from families import FAMILIES, SAMPLES, network, transformers
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from lisse.instruments import Propagation
from lisse.networks.attention import attention_sites, heads_called, logits, rebuilds
from lisse.run import measure
from lisse.taps import AttentionCall, attending, attention_weights, feed, still

# Largest difference of two entries of an attention matrix: eager attention rounds its logits to the dtype, and these
# are as large as 30 here.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 0.15}
MEAN = {torch.float32: 1e-6, torch.bfloat16: 4e-3}


def calls_of(model, inputs):
    calls = []
    with still(model), attending(model, calls.append):
        feed(model, inputs)
    return calls


def own_attention(model, inputs):
    """All attention matrices that the model gives in its eager form, in any order."""
    with still(model), attention_weights(model):
        output = feed(model, {**inputs, "output_attentions": True})
    parts = [output, getattr(output, "text_model_output", None), getattr(output, "vision_model_output", None)]
    names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    return [matrix for part in parts for name in names for matrix in (getattr(part, name, None) or ())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_attention_equals_the_models_own(family, dtype):
    model, inputs = network(family, dtype)
    calls, own = calls_of(model, inputs), own_attention(model, inputs)
    assert calls
    assert len(own) == len(calls)
    assert {"softmax" if call.query is None else "call" for call in calls} == {FAMILIES[family][3]}
    for call in calls:
        matrix = heads_called(call).matrix.detach().double()
        valid = ~matrix.new_zeros(SAMPLES, matrix.shape[2], dtype=torch.bool)
        if "attention_mask" in inputs and inputs["attention_mask"].shape[1] == matrix.shape[2]:
            valid = inputs["attention_mask"].bool()  # what becomes of padding is nobody's
        errors = [
            (matrix - other.double()).abs().transpose(1, 2)[valid]
            if len(matrix) == SAMPLES
            else matrix - other.double()
            for other in own
            if other.shape == matrix.shape
        ]
        error = min((error.detach().abs() for error in errors), key=torch.max)
        assert float(error.max()) <= TOLERANCE[dtype]
        assert float(error.mean()) <= MEAN[dtype]
        if call.query is not None:
            read = valid if len(matrix) == SAMPLES else torch.ones(len(matrix), matrix.shape[2])
            assert rebuilds(call, read)
            assert not rebuilds(dataclasses.replace(call, scale=2 * call.scale), read)


# What Propagation cannot read, and the words in which it says so.
REASONS = {
    "swin": "folds 16 parts of each sample into the batch",
    "segformer": "or of fewer (merged)",
    "bloom": "model's own softmax",
    "gptj": "model's own softmax",
    "deberta_v2": "model's own softmax",
    "bart": "other tokens (cross-attention)",
    "t5": "other tokens (cross-attention)",
    "whisper": "other tokens (cross-attention)",
}
BLOCKS = {"swin": 0, "segformer": 1, "bart": 4, "t5": 4, "whisper": 4, "clip": 4}


@pytest.mark.parametrize("family", FAMILIES)
def test_propagation_reads_every_family_or_says_why_not(family):
    model, inputs = network(family)
    data = inputs if len(inputs) > 1 or "input_ids" in inputs else next(iter(inputs.values()))
    profile = measure(model, data, Propagation(samples=SAMPLES, kernels=2))
    layers = {row.layer for row in profile.rows if row.quantity == "attention_distance"}
    assert len(layers) == BLOCKS.get(family, 2)
    kernels = {row.layer for row in profile.rows if row.quantity == "norm_term"}
    assert kernels == (set() if FAMILIES[family][3] == "softmax" else layers)
    reason = REASONS.get(family)
    notes = " ".join(profile.notes)
    assert reason in notes if reason else "Not read" not in notes and "no kernel" not in notes


def test_no_attention_is_said():
    mamba = transformers.MambaModel(
        transformers.MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4)
    )
    ids = {"input_ids": torch.randint(0, 32, (4, 6))}
    assert attention_sites(mamba, ids) == ([], [])
    profile = measure(mamba, ids, Propagation(samples=4))
    assert any("MambaModel has none" in note for note in profile.notes)
    rwkv = transformers.RwkvModel(
        transformers.RwkvConfig(vocab_size=32, hidden_size=16, num_hidden_layers=2, context_length=8)
    )
    notes = measure(rwkv, ids, Propagation(samples=4)).notes  # what it calls attention is a recurrence
    assert any("what is called so gives no weights" in note for note in notes)


def test_a_model_is_as_it_was_after_it_was_listened_to():
    model, inputs = network("llama")
    from transformers.modeling_utils import AttentionInterface

    before, output = AttentionInterface.get_interface, feed(model, inputs).last_hidden_state
    with (
        pytest.raises(RuntimeError, match="stop"),
        attending(model, lambda call: (_ for _ in ()).throw(RuntimeError("stop"))),
    ):
        feed(model, inputs)
    assert AttentionInterface.get_interface is before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    with attending(model, lambda call: None):
        torch.testing.assert_close(feed(model, inputs).last_hidden_state, output, rtol=0, atol=0)


def test_kernels_that_keep_no_mask_give_way_to_the_eager_form():
    model, inputs = network("llama")
    model.config._attn_implementation = "flex_attention"
    calls = calls_of(model, inputs)
    assert model.config._attn_implementation == "flex_attention"
    assert all(rebuilds(call, torch.ones(call.query.shape[0], call.query.shape[2])) for call in calls)


class Home(nn.Module):
    """Attention that a person wrote with torch's own function, or with a softmax."""

    def __init__(self, fused):
        super().__init__()
        self.fused, self.maps = fused, nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.maps(x).unflatten(-1, (3, 2, 4)).movedim(-3, 0).transpose(2, 3)
        if self.fused:
            z = scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
        else:
            z = (q @ k.mT * 0.3 + torch.full((5, 5), -torch.inf).triu(1)).softmax(-1) @ v
        return x + z.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("fused", [True, False])
def test_a_persons_own_attention_is_read_by_what_it_calls(fused):
    torch.manual_seed(0)
    model, x = nn.Sequential(Home(fused), Home(fused)), torch.randn(4, 5, 8)
    calls = calls_of(model, x)
    assert [(call.module, call.number) for call in calls] == [("0", 0), ("1", 0)]
    q, k, _ = model[0].maps(x).detach().unflatten(-1, (3, 2, 4)).movedim(-3, 0).transpose(2, 3)
    expected = (q @ k.mT * 0.3 + torch.full((5, 5), -torch.inf).triu(1)).softmax(-1)
    torch.testing.assert_close(heads_called(calls[0]).matrix, expected)
    twice = nn.Sequential(*[model[0]] * 2)
    assert [(call.module, call.number) for call in calls_of(twice, x)] == [("0", 0), ("0", 1)]


def test_logits_by_hand():
    q, k = torch.tensor([[[[2.0], [1.0]]]]), torch.tensor([[[[1.0], [3.0]]]])
    call = AttentionCall("", 0, q, k, k, scale=0.5)
    assert logits(call)[0].tolist() == [[[[1.0, 3.0], [0.5, 1.5]]]]
    capped, _ = logits(dataclasses.replace(call, softcap=2.0))
    torch.testing.assert_close(capped, 2 * torch.tanh(torch.tensor([[[[0.5, 1.5], [0.25, 0.75]]]])))
    biased, _ = logits(dataclasses.replace(call, bias=torch.tensor([[0.0, 1.0], [2.0, 0.0]])))
    assert biased.tolist() == [[[[1.0, 4.0], [2.5, 1.5]]]]
    inf = float("inf")
    causal, shut = logits(dataclasses.replace(call, causal=True))
    assert causal.tolist() == [[[[1.0, -inf], [0.5, 1.5]]]]
    assert shut.tolist() == [[[[False, True], [False, False]]]]
    least = torch.finfo(torch.float32).min
    for mask in (torch.tensor([[True, False], [True, True]]), torch.tensor([[0.0, least], [0.0, 0.0]])):
        torch.testing.assert_close(logits(dataclasses.replace(call, mask=mask))[0], causal)
    matrix = heads_called(dataclasses.replace(call, sinks=torch.tensor([1.0]))).matrix
    torch.testing.assert_close(matrix[0, 0, 0], torch.tensor([1.0, 3.0, 1.0]).softmax(-1)[:2])
    groups = heads_called(dataclasses.replace(call, query=q.expand(1, 2, 2, 1))).matrix
    torch.testing.assert_close(groups[:, 1], heads_called(call).matrix[:, 0])
