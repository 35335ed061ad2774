"""A traced forward holds no activation, and knows two tensors apart that lay in the same memory."""

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from lisse import taps
from lisse.taps.tracing import trace


class Counted(nn.Module):
    """Blocks that count, whenever one is done, how many of their results still have memory."""

    def __init__(self, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)) for _ in range(blocks)
        )
        self.results, self.most = [], 0

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
            self.results.append(StorageWeakRef(x.untyped_storage()))
            self.most = max(self.most, sum(not result.expired() for result in self.results))
        return x


@pytest.mark.parametrize("layers", [None, "**"])
def test_finding_layers_holds_no_activation(layers):
    model = Counted(40)
    assert len(taps.find(model, torch.rand(3, 500, 64), layers)) > 40
    assert len(model.results) == 80
    assert model.most <= 2  # what goes into a block, and what comes out


def test_what_is_kept_lies_in_memory_that_was_taken_before_the_first_activation():
    # Anything small that is taken in between splits memory in which the next activation would have had room.
    model = Counted(40)
    traced = trace(model, torch.rand(2, 500, 64), 2)
    rooms = [sketch.room for call in traced.calls for sketch in (*call.inputs.values(), *call.output.values())]
    assert len(rooms) == 2 * len(traced.calls) == 2 * 161
    assert all(room is rooms[0] for room in rooms)


def test_memory_that_is_used_again_is_another_tensor():
    memory = bytearray(2 * 8 * 4)
    places = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = nn.ModuleList(nn.Identity() for _ in range(20))

        def forward(self, x):
            for step in self.steps:
                y = x * 2
                x = torch.frombuffer(memory, dtype=torch.float32).view(2, 8).copy_(y)
                places.append(x.data_ptr())
                x = step(x)
            return x

    traced = trace(Net(), torch.rand(2, 8), 2)
    inputs = [sketch.address for call in traced.calls[1:] for sketch in call.inputs.values()]
    outputs = [sketch.address for call in traced.calls[1:] for sketch in call.output.values()]
    assert len(set(places)) == 1
    assert len(set(inputs)) == 20
    assert outputs == inputs


def test_what_was_overwritten_in_place_is_known_as_it_was():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(x).mul_(2)

    (inner,) = [call for call in trace(Net(), torch.rand(2, 8), 2).calls if call.module == "layer"]
    (outer,) = [call for call in trace(Net(), torch.rand(2, 8), 2).calls if call.module == ""]
    (before,), (after,) = inner.output.values(), outer.output.values()
    assert before.address[0] == after.address[0]
    assert before.address != after.address
    assert not torch.equal(before.rows(0), after.rows(0))


@pytest.mark.parametrize("shape", [(2, 3), (2, 0), (5, 2, 7), (2,), (2, 100, 99), (9, 2, 4000)])
def test_numbers_of_each_sample_are_kept_whole_where_they_are_few(shape):
    x = torch.rand(shape)
    axis = shape.index(2)
    (call,) = trace(nn.Identity(), x, 2).calls
    rows = call.output[()].rows(axis)
    expected = x.movedim(axis, 0).flatten(1) if x.ndim > 1 else x[:, None]
    assert rows.shape == (2, min(expected.shape[1], 4096))
    if expected.shape[1] <= 4096:
        assert torch.equal(rows, expected)
    else:
        assert torch.isin(rows, expected).all()
        twin = trace(nn.Identity(), torch.cat([x, x], axis)[(slice(None),) * axis + (slice(0, 3),)], 3)
        assert torch.equal(twin.calls[0].output[()].rows(axis)[:2], rows)


def test_an_output_that_differs_in_one_number_is_a_layer_of_its_own():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(4, 1, 8, batch_first=True) for _ in range(2))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            x = x.clone()
            x[0, 1234, 2] += 1
            return x

    with torch.no_grad():
        assert taps.find(Net(), torch.randn(3, 3000, 4)).names == ["input", "blocks.0", "blocks.1", "output"]
