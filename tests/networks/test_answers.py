from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import nn

from lisse.networks.answers import answer_of, are_classes, hits, logits_of, right, unsquashed

LOGITS = torch.tensor([[0.1, 0.9, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 3.0], [1.0, 0.0, 0.0]])
LABELS = torch.tensor([1, 0, 1, 2])
RIGHT = torch.tensor([True, True, False, False])


class Named(NamedTuple):
    aux: torch.Tensor
    logits: torch.Tensor


def hugging_face(logits):
    return pytest.importorskip("transformers.modeling_outputs").SequenceClassifierOutput(logits=logits)


FORMS = {
    "tensor": lambda t: t,
    "dict": lambda t: {"loss": t.sum(), "logits": t},
    "tuple": lambda t: (t, t.sum()),
    "list": lambda t: [t],
    "attribute": lambda t: SimpleNamespace(logits=t),
    "named tuple": lambda t: Named(t.sum(), t),
    "Hugging Face": hugging_face,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [1, 4])
def test_logits_wherever_they_are(form, count):
    assert torch.equal(logits_of(FORMS[form](LOGITS[:count]), count), LOGITS[:count])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", [1, 3, 4, 500])
def test_right_answers_of_a_model(form, batch):
    class Model(nn.Module):
        def forward(self, x):
            return FORMS[form](x)

    assert torch.equal(right(Model(), LOGITS, LABELS, batch=batch), RIGHT)
    assert torch.equal(right(lambda x: FORMS[form](x), LOGITS, LABELS, batch=batch), RIGHT)
    assert right(Model(), LOGITS[:0], LABELS[:0]).shape == (0,)


def test_a_model_gets_its_own_precision_and_keeps_its_mode():
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).double().train()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(3))
        model[0].bias.zero_()
    assert torch.equal(right(model, LOGITS, LABELS), RIGHT)
    assert model.training


def test_probabilities_are_logits_again():
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    again = unsquashed(logits.softmax(1))
    torch.testing.assert_close(again - again.mean(1, keepdim=True), logits - logits.mean(1, keepdim=True))
    assert torch.equal(unsquashed(logits), logits)
    for other in (logits.softmax(1) * 2, logits.softmax(1) - 0.1, logits[:0]):
        assert torch.equal(unsquashed(other), other)
    assert bool(unsquashed(torch.tensor([[1.0, 0.0]])).isfinite().all())


def test_hits():
    assert torch.equal(hits(LOGITS, LABELS), RIGHT)
    assert hits(LOGITS[:1], LABELS[:1]).tolist() == [True]


@pytest.mark.parametrize(
    ("output", "error", "match"),
    [
        ((), TypeError, "logits_of: model must give logits .* got tuple"),
        (None, TypeError, "got NoneType"),
        ({"hidden": LOGITS}, TypeError, "got dict with hidden.*key 'logits'"),
        ((None, LOGITS), TypeError, "got tuple"),
        (LOGITS[:, None].expand(4, 5, 3), ValueError, r"logits \[4, classes\], got torch.float32 of shape \[4, 5, 3\]"),
        ((LOGITS.sum(), LOGITS), ValueError, r"of shape \[\]"),
        (LOGITS[:3], ValueError, r"logits \[4, classes\], got .* of shape \[3, 3\]"),
        (LOGITS[:, :1], ValueError, r"of shape \[4, 1\]"),
        (LOGITS.long(), ValueError, "got torch.int64"),
    ],
)
def test_what_is_no_logits(output, error, match):
    with pytest.raises(error, match=match):
        logits_of(output, 4)


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        (LABELS, 3, True),
        (LABELS, 2, False),  # more labels than outputs
        (LABELS - 1, 3, False),
        (LABELS[:1], 2, True),
        (LABELS[:0], 3, True),
        (LABELS.float(), 3, False),
        (LABELS > 0, 3, False),
        (LABELS[:, None], 3, False),
        (None, 3, False),
    ],
)
def test_labels_that_are_classes(labels, classes, expected):
    assert are_classes(labels, classes) is expected


def test_answers_that_are_no_logits():
    assert answer_of({"hidden": 1, "logits": 2}) == 2
    assert answer_of({"hidden": 1, "last_hidden_state": 2}) == 2
    assert answer_of({"hidden": 1, "other": 2}) == 1
    assert answer_of(LOGITS) is LOGITS
    assert answer_of((1, 2)) == (1, 2)
