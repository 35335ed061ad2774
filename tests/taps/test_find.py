from __future__ import annotations

import pytest
import torch
from architectures import ARCHITECTURES, SMALL, TOKENS, OnePooling, UNet, hf, image, sequential, text
from torch import nn

from lisse import taps


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda row: row.name)
def test_blocks_of_real_architectures(architecture):
    found = taps.find(architecture.build(), architecture.example())
    assert len(found.blocks) == architecture.blocks
    assert found[0].name == architecture.first
    assert found[-1].name == (architecture.last or found.blocks[-1].name)
    assert [tap.depth for tap in found] == pytest.approx([i / (len(found) - 1) for i in range(len(found))])


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda row: row.name)
def test_every_tap_fires_with_its_shape_and_samples_first(architecture):
    model, example = architecture.build(), architecture.example()
    found = taps.find(model, example)
    shapes = {}
    with taps.still(model), taps.tapped(model, found, lambda tap, value: shapes.update({tap.name: value.shape})):
        taps.feed(model, example)
    assert {name: tuple(shape) for name, shape in shapes.items()} == {tap.name: (3, *tap.shape) for tap in found}


def test_a_weighted_layer_and_what_follows_it_is_one_layer():
    found = taps.find(sequential(), image())
    assert found.names == ["input", "3", "6", "7"]  # conv+norm+relu+pool, conv+relu+flatten, linear = the output
    assert [tap.kind for tap in found] == ["Sequential", "MaxPool2d", "Flatten", "Linear"]


@pytest.mark.parametrize(
    ("last", "role"),
    [
        ([nn.Linear(4, 2)], "output"),
        ([nn.Linear(4, 2), nn.LogSoftmax(1)], "output"),
        ([nn.Linear(4, 4), nn.ReLU()], "block"),  # features, not an answer
        ([nn.Linear(4, 4), nn.BatchNorm1d(4)], "block"),
    ],
    ids=["matrix", "log-probabilities", "features", "normalised"],
)
def test_the_last_matrix_of_a_plain_network_is_its_head(last, role):
    found = taps.find(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), *last), torch.rand(3, 6))
    assert [tap.role for tap in found] == ["input", "block", role]
    assert taps.find(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), *last), torch.rand(3, 6), ["1"]).head == (
        found[-1] if role == "output" else None
    )
    assert found.end == taps.find(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), *last), torch.rand(3, 6), ["input"]).end
    assert found.end == found.blocks[-1]
    only = taps.find(nn.Sequential(nn.Linear(6, 4)), torch.rand(3, 6))
    assert only[-1].role == "block"  # there is no other
    assert only.head == only.blocks.head == only[-1]


@pytest.mark.parametrize(
    ("operation", "roles"),
    [
        (lambda x: x / 2, ["input", "block", "output"]),
        (lambda x: x.log_softmax(1), ["input", "block", "output"]),
        (lambda x: x.softmax(1), ["input", "block", "output"]),
        (torch.relu, ["input", "block", "block", "output"]),  # features
        (lambda x: -x, ["input", "block", "block", "output"]),  # other decisions
        (lambda x: x + torch.arange(5), ["input", "block", "block", "output"]),
        (lambda x: x[:, :4], ["input", "block", "block", "output"]),
    ],
    ids=["temperature", "log-probabilities", "probabilities", "features", "negative", "shift of classes", "part"],
)
def test_an_operation_behind_a_head_that_changes_no_decision_belongs_to_it(operation, roles):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 5)

        def forward(self, x):
            return operation(self.head(self.body(x)))

    torch.manual_seed(0)
    assert [tap.role for tap in taps.find(Net(), torch.rand(3, 6))] == roles


def test_the_levels_of_a_u_net_are_its_blocks_and_a_shared_pooling_is_nobodys():
    assert taps.find(UNet(), image()).blocks.names == ["down1", "down2", "down3", "up1", "up2"]
    assert taps.find(OnePooling(), image()).names == ["input", "conv1", "conv2", "fc1", "fc2"]


def test_sequentials_side_by_side_are_no_levels():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
            self.heads = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2)) for _ in range(3))

        def forward(self, x):
            x = self.body(x)
            return [head(x) for head in self.heads]

    assert taps.find(Heads(), torch.rand(3, 6)).names[1:5] == ["body.0", "body.1", "body.2", "body.3"]


def test_the_stem_is_what_enters_the_first_block():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return x + self.b(torch.relu(self.a(x)))

    model = nn.Sequential(nn.Linear(6, 4), Block(), Block(), nn.Linear(4, 2))
    found = taps.find(model, torch.rand(3, 6))
    assert found.names == ["input", "stem", "1", "2", "output"]
    x, kept = torch.rand(5, 6), {}
    with taps.still(model), taps.tapped(model, found, lambda tap, value: kept.update({tap.name: value})):
        model(x)
    assert torch.equal(kept["stem"], model[0](x))
    assert torch.equal(kept["output"], model(x))
    assert torch.equal(kept["input"], x)


def test_a_module_named_stem_keeps_its_name():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Linear(4, 4)
            self.layers = nn.ModuleList(nn.TransformerEncoderLayer(4, 1, 8, batch_first=True) for _ in range(2))

        def forward(self, x):
            x = self.stem(x)
            for layer in self.layers:
                x = layer(x)
            return x

    found = taps.find(Net(), torch.rand(3, 2, 4))
    assert found.names == ["input", "(stem)", "layers.0", "layers.1"]
    assert taps.find(Net(), torch.rand(3, 2, 4), ["stem"]).names == ["stem"]


def test_the_sample_axis_need_not_be_the_first():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(5, 5)

        def forward(self, x):
            return self.inner(x.transpose(0, 1)).transpose(0, 1) + 1

    model = Net()
    (tap,) = taps.find(model, torch.rand(3, 7, 5), ["inner"])
    assert (tap.axis, tap.shape) == (1, (7, 5))
    x, kept = torch.rand(4, 7, 5), []
    with taps.tapped(model, [tap], lambda tap, value: kept.append(value)):
        model(x)
    torch.testing.assert_close(kept[0], model.inner(x))


def test_folded_windows_are_skipped_with_the_reason():
    swin = hf(
        "SwinModel",
        "SwinConfig",
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2],
        num_heads=[2],
        window_size=4,
    )
    found = taps.find(swin, image())
    reasons = {place.name: place.reason for place in found.skipped}
    assert "folds 16 parts of each sample into the batch" in reasons["encoder.layers.0.blocks.0.attention"]
    with pytest.raises(ValueError, match="folds 16 parts"):
        taps.find(swin, image(), ["encoder.layers.0.blocks.0.attention"])


def test_calls_of_one_module_have_names_of_their_own():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared = nn.Linear(3, 3)

        def forward(self, x):
            return self.shared(torch.relu(self.shared(x)))

    model = Twice()
    found = taps.find(model, torch.rand(2, 3))
    assert found.names == ["input", "shared#0", "shared#1"]
    x, kept = torch.rand(4, 3), []
    with taps.tapped(model, found, lambda tap, value: kept.append((tap.name, value))):
        model(x)
        model(x)  # counting begins anew with every forward
    assert [name for name, _ in kept] == ["input", "shared#0", "shared#1"] * 2
    assert torch.equal(kept[1][1], model.shared(x))
    assert torch.equal(kept[2][1], model(x))
    assert taps.find(model, torch.rand(2, 3), "shared").names == ["shared#0", "shared#1"]


def test_layers_are_chosen_by_name_and_glob():
    bert = hf("BertModel", "BertConfig", **SMALL, **TOKENS)
    assert taps.find(bert, text(), ["encoder.layer.*"]).names == [f"encoder.layer.{i}" for i in range(3)]
    assert taps.find(bert, text(), ["encoder.layer.?.attention"]).names == [
        f"encoder.layer.{i}.attention" for i in range(3)
    ]
    assert len(taps.find(bert, text(), ["encoder.layer.0.**"])) > 10
    chosen = taps.find(bert, text(), ["encoder.layer.2", "stem", "encoder.layer.0:in"])
    assert chosen.names == ["stem", "encoder.layer.0:in", "encoder.layer.2"]
    assert chosen[-1].depth == 1.0
    inner = taps.find(bert, text(), "encoder.layer.1.attention")[0]
    assert 1 / 3 < inner.depth < 2 / 3


def test_a_name_that_matches_nothing_names_the_nearest():
    with pytest.raises(ValueError, match=r"got 'encoder\.layers\.0'.*nearest are encoder\.layer\.0"):
        taps.find(hf("BertModel", "BertConfig", **SMALL, **TOKENS), text(), ["encoder.layers.0"])


def test_a_module_that_is_never_called_says_so():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    with pytest.raises(ValueError, match="'unused', never called"):
        taps.find(Net(), torch.rand(2, 2), ["unused"])


def test_an_output_made_in_place_from_the_last_block_is_a_layer_of_its_own():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(4, 1, 8, batch_first=True) for _ in range(2))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return torch.relu_(x)

    found = taps.find(Net(), torch.randn(3, 2, 4))
    assert found.names == ["input", "blocks.0", "blocks.1", "output"]


def test_a_layer_where_samples_mix_is_marked():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    assert [tap.mixes for tap in taps.find(model, torch.rand(4, 3))] == [False, False, False]
    assert [tap.mixes for tap in taps.find(model, torch.rand(4, 3), statistics="batch")] == [False, True, True]


def test_what_cannot_be_run_twice_says_so():
    with pytest.raises(RuntimeError, match="must run on two and on three samples of the data, got RuntimeError: mat1"):
        taps.find(nn.Linear(3, 3), torch.rand(4, 5))
    with pytest.raises(TypeError, match="got a TorchScript one"):
        taps.find(torch.jit.script(nn.Linear(3, 3)), torch.rand(4, 3))


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Parameter(torch.rand(3, 4)), nn.Parameter(torch.rand(4, 2))

    def forward(self, x):
        return torch.relu(x @ self.first) @ self.second


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.last = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 2)

    def forward(self, first, second, mask=None):
        return self.last(torch.relu(self.left(first) + self.right(second)))


def test_layers_that_no_module_stands_for_are_said():
    (note,) = taps.find(Functional(), torch.rand(4, 3)).notes
    assert "No layers were found between input and output: its forward calls no module" in note
    traced = torch.jit.trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), torch.rand(4, 3))
    (note,) = taps.find(traced, torch.rand(4, 3)).notes
    assert "TorchScript" in note
    assert "load the original nn.Module" in note
    assert len(taps.find(Functional(), torch.rand(4, 3), "output").notes) == 1, "also where one end was chosen"
    sound = [nn.Linear(3, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))]
    assert not any(taps.find(model, torch.rand(4, 3)).notes for model in sound)
    assert not taps.find(sound[2], torch.rand(4, 3), "2").notes, "an end alone was chosen of a network with layers"


@pytest.mark.parametrize("form", [tuple, dict])
def test_which_of_several_inputs_is_read_is_said(form):
    a, b = torch.rand(4, 3), torch.rand(4, 2)
    inputs = (a, b) if form is tuple else {"second": b, "first": a, "mask": torch.ones(4)}
    layers = taps.find(Sum(), inputs)
    read, other = ("first", "second") if form is tuple else ("second", "first")
    assert layers.notes == (f"The model takes several inputs: input is {read}, and {other} is not read.",)
    assert layers[0].shape == ((3,) if form is tuple else (2,))
    assert layers[1:].notes == layers.notes
    assert not taps.find(Sum(), inputs, "left").notes, "the input was not chosen"


def test_inside_inference_mode_gradients_still_work():
    with torch.inference_mode():
        x = torch.rand(4, 3)
        found = taps.find(nn.Linear(3, 3), x)
    assert found.names == ["input", "output"]


def test_a_float_mask_is_not_the_input():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3)

        def forward(self, attention_mask, x):
            return self.a(x) * attention_mask[..., None]

    found = taps.find(Net(), {"attention_mask": torch.ones(2, 5), "x": torch.rand(2, 5, 3)})
    assert found.names == ["input", "a"]
    assert found[0].shape == (5, 3)


def test_numbers_beside_token_ids_are_not_the_input():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.a = nn.Embedding(9, 3), nn.Linear(3, 3)

        def forward(self, input_ids, scale):
            return self.a(self.embedding(input_ids) * scale[:, None, None])

    found = taps.find(Net(), {"input_ids": torch.ones(2, 5, dtype=torch.long), "scale": torch.rand(2)})
    assert found.names == ["stem", "a"]


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        ("text", TypeError, "example must be a tensor, a dict of tensors or a tuple"),
        (torch.rand(0, 3), ValueError, "must hold samples on its first axis"),
        (torch.tensor(1.0), ValueError, "must hold samples on its first axis"),
    ],
)
def test_a_bad_example_is_refused(wrong, error, match):
    with pytest.raises(error, match=match):
        taps.find(nn.Linear(3, 3), wrong)


def test_a_model_without_samples_is_refused_with_the_reason():
    class Mean(nn.Module):
        def forward(self, x):
            return x.long().float().mean()

    with pytest.raises(ValueError, match="place where samples can be told apart"):
        taps.find(Mean(), torch.ones(3, 2, dtype=torch.long))


@pytest.mark.parametrize("attention_only", [False, True])
def test_attention_weights_and_what_they_multiply(attention_only):
    if attention_only:
        torch.manual_seed(0)
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 3).eval()
        example, names = torch.rand(3, 9, 32), [f"layers.{i}.self_attn" for i in range(3)]
    else:
        model = hf("BertModel", "BertConfig", **SMALL, **TOKENS)
        example, names = text(), [f"encoder.layer.{i}.attention.self" for i in range(3)]
    before = getattr(getattr(model, "config", None), "_attn_implementation", None)
    found = taps.find(model, example, attention=True)
    assert found.names == names
    kept = {}
    with taps.still(model):
        plain = taps.feed(model, example)
        with taps.tapped(model, found, lambda tap, value: kept.update({tap.name: value.clone()})):
            taps.feed(model, example)
        again = taps.feed(model, example)
    for weights in kept.values():
        assert weights.shape == (3, 4, 9, 9)
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4, 9))
    assert getattr(getattr(model, "config", None), "_attn_implementation", None) == before
    first, second = (out[0] if isinstance(out, tuple) or hasattr(out, "keys") else out for out in (plain, again))
    assert torch.equal(first, second)
    if not attention_only:  # the oracle: Hugging Face's own attention weights
        eager = hf("BertModel", "BertConfig", **SMALL, **TOKENS, attn_implementation="eager")
        eager.load_state_dict(model.state_dict())
        with torch.no_grad():
            theirs = eager(**example, output_attentions=True).attentions
        for ours, expected in zip(kept.values(), theirs, strict=True):
            torch.testing.assert_close(ours, expected)


def test_attention_of_a_model_without_any_is_an_error():
    with pytest.raises(ValueError, match="got no attention weights"):
        taps.find(sequential(), image(), attention=True)


def test_a_data_set_is_an_example():
    from lisse.data import Dataset
    from lisse.taps import find

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    data = Dataset("points", torch.randn(5, 4))
    assert find(model, data).names == find(model, data.inputs).names


def test_everywhere_is_every_place_without_another_forward():
    """Shares of samples that mix, depths and roles are those of a search for every place."""
    forwards = []
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).train()
    model.register_forward_pre_hook(lambda *_: forwards.append(1))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    places = taps.find(model, x, statistics="batch")
    everywhere, count = places.everywhere, len(forwards)
    assert count == 2
    assert len(everywhere) > len(places)
    assert list(everywhere) == list(taps.find(model, x, ["**", "**:in"], statistics="batch"))
    assert [tap.mixes for tap in everywhere if tap.name in ("0", "1", "3")] == [False, True, True]
