from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lisse import record
from lisse.data import Batch, Dataset
from lisse.recording import Recording


def network(inplace: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=inplace), nn.Flatten(), nn.Linear(144, 5)
    ).eval()


@pytest.fixture
def images():
    return torch.rand(230, 1, 8, 8)


def by_hand(model, x, size=100):
    """The naive version: run the modules one by one."""
    with torch.no_grad():
        hidden = torch.cat([model[3](model[2](model[1](model[0](part)))) for part in x.split(size)])
        output = torch.cat([model(part) for part in x.split(size)])
    return {"input": x, "3": hidden, "4": output}


@pytest.mark.parametrize("inplace", [True, False])
def test_equals_the_modules_run_by_hand(images, inplace):
    model = network(inplace)
    recording = record(model, images)
    assert list(recording) == ["input", "3", "4"]
    for name, expected in by_hand(model, images).items():
        assert torch.equal(recording[name], expected)


def test_an_activation_overwritten_in_place_is_recorded_as_it_was(images):
    model = network(inplace=True)
    recording = record(model, images, layers=["1", "2"])
    with torch.no_grad():
        normed = torch.cat([model[1](model[0](part)) for part in images.split(100)])
    assert torch.equal(recording["1"], normed)
    assert (recording["1"] < 0).any()
    assert torch.equal(recording["2"], normed.relu())


def test_the_forward_runs_when_a_layer_is_first_asked_for_and_once(images):
    model, forwards = network(), []
    handle = model.register_forward_hook(lambda *_: forwards.append(1))
    recording = record(model, images)
    found = len(forwards)  # find() runs it on two and on three samples
    assert found == 2
    assert list(recording) == ["input", "3", "4"]
    assert len(forwards) == found
    recording["3"], recording["4"]
    assert len(forwards) == found + 3
    handle.remove()


@pytest.mark.parametrize("kind", ["dataset", "tensor", "loader", "pairs", "batches", "tensors"])
def test_batches_of_any_kind_give_the_same(images, kind):
    targets = torch.arange(230)
    batches = {
        "dataset": Dataset("d", images, targets),
        "tensor": images,
        "loader": DataLoader(TensorDataset(images, targets), batch_size=100),
        "pairs": list(zip(images.split(100), targets.split(100), strict=True)),
        "batches": (Batch(part, None, 100 * i) for i, part in enumerate(images.split(100))),
        "tensors": iter(images.split(100)),
    }[kind]
    recording = record(network(), batches)
    for name, expected in by_hand(network(), images).items():
        assert torch.equal(recording[name], expected)
    if kind in ("dataset", "loader", "pairs"):
        assert torch.equal(recording.targets, targets)
    else:
        assert recording.targets is None


def test_dict_inputs():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3)

        def forward(self, x, scale):
            return self.a(x) * scale[:, None]

    model, x, scale = Net(), torch.rand(150, 3), torch.rand(150)
    recording = record(model, {"x": x, "scale": scale})
    torch.testing.assert_close(recording["output"], (model.a(x) * scale[:, None]).detach())


def test_tuples_of_inputs_and_a_closed_recording():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3)

        def forward(self, x, y):
            return self.a(x + y)

    model, x = Two(), torch.rand(20, 3)
    recording = record(model, [((x[:10], x[:10]), None), ((x[10:], x[10:]), None)])
    torch.testing.assert_close(recording["a"], model.a(2 * x).detach())
    recording.close()
    with pytest.raises(RuntimeError, match=r"no longer there \(it was closed\)"):
        recording["a"]


def test_max_samples(images):
    recording = record(network(), images, max_samples=120)
    assert recording.samples == 120
    for name, expected in by_hand(network(), images).items():
        assert torch.equal(recording[name], expected[:120])


def test_half_precision_storage(images):
    full, half = record(network(), images), record(network(), images, dtype=torch.float16)
    for name in full:
        assert half[name].dtype == torch.float16
        assert torch.equal(half[name], full[name].half())


def test_the_same_seed_data_and_batch_give_the_same_bits():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, x):
            return self.a(x) + torch.randn_like(x)

    model, data = Noisy(), Dataset("d", torch.rand(250, 6))
    whole = record(model, data.batches(50), seed=3)
    again = record(model, data.batches(50), seed=3)
    other = record(model, data.batches(50), seed=4)
    shards = [record(model, data.batches(50, a, b), seed=3) for a, b in ((0, 100), (100, 150), (150, 250))]
    merged = Recording.merge(shards)
    assert merged.samples == 250
    for name in whole:
        assert torch.equal(whole[name], again[name])
        assert torch.equal(whole[name], merged[name])
    assert not torch.equal(whole["output"], other["output"])
    noise = whole["output"] - whole["a"]
    assert not torch.allclose(noise[:50], noise[50:100])  # every batch has random numbers of its own
    assert torch.equal(whole["a"], other["a"])


def test_merge_refuses_shards_of_other_layers(images):
    with pytest.raises(ValueError, match="must have the same layers"):
        Recording.merge([record(network(), images), record(network(), images, layers=["3"])])
    with pytest.raises(ValueError, match="at least one recording"):
        Recording.merge([])


@pytest.mark.parametrize(("value", "shown"), [(float("nan"), "nan"), (float("inf"), "inf")])
def test_a_non_finite_activation_names_layer_and_sample(value, shown):
    class Poison(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            y = self.a(x)
            return self.b(torch.where(x[:, :1] == 137.0, torch.full_like(y, value), y))

    x = torch.arange(200.0)[:, None].repeat(1, 2)
    model = Poison()
    with pytest.raises(ValueError, match=rf"got {shown}|got nan"):
        record(model, x)["b"]
    with pytest.raises(ValueError, match=r"at layer b, sample 137 \(2 such numbers there\)"):
        record(model, x, layers=["a", "b"])["b"]
    broken = record(model, x)
    for error, match in ((ValueError, "sample 137"), (RuntimeError, "no longer there .*sample 137.*Record again")):
        with pytest.raises(error, match=match):
            broken["b"]
    kept = record(model, x, on_nonfinite="keep")["b"]
    assert (~torch.isfinite(kept)).any(1).nonzero().tolist() == [[137]]


def test_a_sum_that_overflows_is_no_infinity():
    model = nn.Sequential(nn.Identity(), nn.Linear(4, 4))
    nn.init.eye_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    x = torch.full((100, 4), 2e38)
    assert torch.equal(record(model, x)["1"], x)


def test_overflow_into_half_precision_is_an_error():
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, 1e5)
    with pytest.raises(ValueError, match="got inf at layer output"):
        record(model, torch.ones(3, 1), dtype=torch.float16)["output"]


def test_gradients_on_request(images):
    model = network()
    recording = record(model, images[:20], grad=True, layers=["1", "4"])
    (ours,) = torch.autograd.grad(recording["4"].pow(2).sum(), model[0].weight, retain_graph=True)
    (theirs,) = torch.autograd.grad(model(images[:20]).pow(2).sum(), model[0].weight)
    torch.testing.assert_close(ours, theirs)
    (through,) = torch.autograd.grad(recording["4"].sum(), recording._pass.graph["1"][0])
    assert through.abs().sum() > 0
    assert not record(model, images[:20])["4"].requires_grad


def test_training_mode_and_buffers_are_left_alone(images):
    model = network().train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for statistics in ("running", "batch"):
        record(model, images, statistics=statistics)["4"]
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_batch_statistics_change_what_is_recorded(images):
    running, batch = (record(network(), images, layers=["1"], statistics=s)["1"] for s in ("running", "batch"))
    torch.testing.assert_close(batch[:100].mean((0, 2, 3)), torch.zeros(4), atol=1e-5, rtol=0)
    assert not torch.allclose(running, batch)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True) for _ in range(2))

    def forward(self, input_ids, attention_mask):
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=attention_mask == 0)
        return x


@pytest.fixture
def padded():
    lengths = torch.randint(1, 8, (130,))
    mask = (torch.arange(7) < lengths[:, None]).long()
    return {"input_ids": torch.randint(0, 20, (130, 7)) * mask, "attention_mask": mask}, lengths


def test_readouts_leave_padding_out(padded):
    inputs, lengths = padded
    model = Tokens().eval()
    raw = record(model, inputs)["layers.1"]
    assert raw.shape == (130, 7, 6)
    mean = record(model, inputs, readout="mean")["layers.1"]
    expected = torch.stack([row[:length].mean(0) for row, length in zip(raw, lengths, strict=True)])
    torch.testing.assert_close(mean, expected)
    assert torch.equal(record(model, inputs, readout="cls")["layers.1"], raw[:, 0])
    tokens = record(model, inputs, readout="tokens")
    assert torch.equal(tokens["layers.1"], torch.cat([row[:n] for row, n in zip(raw, lengths, strict=True)]))
    assert torch.equal(tokens.owners, torch.arange(130).repeat_interleave(lengths))
    few = record(model, inputs, readout="tokens", max_samples=10)
    assert len(few["layers.1"]) == len(few.owners) == int(lengths[:10].sum())
    with pytest.raises(ValueError, match="readout must be 'tokens'"):
        _ = record(model, inputs).owners


def test_a_bad_token_names_its_sample(padded):
    inputs, _ = padded
    model = Tokens().eval()
    model.embedding.weight.data[7] = float("nan")
    inputs["input_ids"][inputs["input_ids"] == 7] = 8
    inputs["input_ids"][117, 0] = 7
    for readout in (None, "mean", "cls", "tokens"):
        with pytest.raises(ValueError, match="layer stem, sample 117"):
            record(model, inputs, readout=readout)["layers.1"]


def test_batches_of_different_length_ask_for_a_readout():
    model = Tokens().eval()
    batches = [{"input_ids": torch.ones(4, t, dtype=torch.long), "attention_mask": torch.ones(4, t)} for t in (5, 7)]
    with pytest.raises(ValueError, match=r"shape \(5, 6\) per sample, got \(7, 6\).*choose a readout"):
        record(model, batches)["layers.1"]
    assert record(model, batches, readout="mean")["layers.1"].shape == (8, 6)


def test_attention_recording(padded):
    inputs, lengths = padded
    recording = record(Tokens().eval(), inputs, attention=True)
    assert list(recording) == ["layers.0.self_attn", "layers.1.self_attn"]
    weights = recording["layers.1.self_attn"]
    assert weights.shape == (130, 2, 7, 7)
    assert (weights[3, :, :, lengths[3] :] == 0).all()  # no weight on padding


def test_progress_is_told(images):
    events = []
    record(network(), Dataset("d", images), progress=events.append)["4"]
    assert [(event.done, event.total) for event in events] == [(100, 230), (200, 230), (230, 230)]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"readout": "first"}, "readout must be one of cls, mean, tokens or None, got 'first'"),
        ({"on_nonfinite": "skip"}, "on_nonfinite must be one of error, keep, got 'skip'"),
        ({"max_samples": 0}, "max_samples must be at least 1, got 0"),
        ({"memory": "lots"}, "memory must be bytes or a size such as '2GiB', got 'lots'"),
        ({"layers": ["nowhere"]}, "layers must match a layer's name, got 'nowhere'"),
        ({"statistics": "none"}, "statistics must be one of running, batch, got 'none'"),
    ],
)
def test_bad_options(images, options, match):
    with pytest.raises(ValueError, match=match):
        record(network(), images, **options)


@pytest.mark.parametrize(
    ("batches", "error", "match"),
    [
        ([], ValueError, "at least one batch, got none"),
        (3, TypeError, "batches must be a Dataset, tensors or an iterable of batches, got int"),
        (["a"], TypeError, "a batch's inputs must be tensors, alone or in a dict or tuple, got str"),
    ],
)
def test_bad_batches(batches, error, match):
    with pytest.raises(error, match=match):
        record(network(), batches)


def test_an_unknown_layer_lists_the_known(images):
    with pytest.raises(KeyError, match="no layer 'x'; it has input, 3, 4"):
        record(network(), images)["x"]
