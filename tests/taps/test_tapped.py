from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from architectures import SMALL, TOKENS, hf, text
from torch import nn

from lisse import taps
from lisse.taps.tap import element_at, tensors, with_element


def hooks_left(model: nn.Module) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks)
        for module in model.modules()
    )


class Out:
    Pair = namedtuple("Pair", "first second")

    @dataclass
    class Data:
        loss: float
        state: torch.Tensor


@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda x: x, ()),
        (lambda x: (x, "other"), (0,)),
        (lambda x: [None, x], (1,)),
        (lambda x: Out.Pair("a", x), (1,)),
        (lambda x: {"loss": None, "state": x}, ("state",)),
        (lambda x: Out.Data(0.5, x), ("state",)),
        (lambda x: ({"deep": [x]},), (0, "deep", 0)),
    ],
)
def test_structures_are_read_and_rewritten(wrap, path):
    x, y = torch.rand(2), torch.rand(2)
    structure = wrap(x)
    assert [found for found, _ in tensors(structure)] == [path]
    assert element_at(structure, path) is x
    changed = with_element(structure, path, y)
    assert element_at(changed, path) is y
    assert element_at(structure, path) is x  # the original is untouched
    assert type(changed) is type(structure)


@pytest.mark.parametrize("kind", ["tensor", "tuple", "dict", "dataclass"])
def test_outputs_of_any_structure(kind):
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            y = self.linear(x)
            return {"tensor": y, "tuple": (y, None), "dict": {"a": y}, "dataclass": Out.Data(1.0, y)}[kind]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            out = self.inner(x)
            (value,) = [tensor for _, tensor in tensors(out)]
            return value * 2

    model, x = Net(), torch.rand(4, 3)
    found = taps.find(model, x, ["inner"])
    kept = []
    with taps.tapped(model, found, lambda tap, value: kept.append(value)):
        model(x)
    assert torch.equal(kept[0], model.inner.linear(x))
    with taps.tapped(model, found, lambda tap, value: torch.ones_like(value)):
        assert torch.equal(model(x), torch.full((4, 3), 2.0))


def test_hugging_face_outputs_are_replaced_too():
    bert = hf("BertModel", "BertConfig", **SMALL, **TOKENS)
    found = taps.find(bert, text(), ["encoder"])
    with taps.still(bert), taps.tapped(bert, found, lambda tap, value: torch.zeros_like(value)):
        assert not bert(**text()).last_hidden_state.any()


def test_the_input_of_a_module_is_replaced():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    found = taps.find(model, torch.rand(2, 3), ["1:in"])
    with taps.tapped(model, found, lambda tap, value: torch.zeros_like(value)):
        torch.testing.assert_close(model(torch.rand(4, 3)), model[1].bias.expand(4, 2))


def test_no_hook_survives_an_exception_half_way():
    class Breaks(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
            self.broken = False

        def forward(self, x):
            x = self.a(x)
            if self.broken:
                raise RuntimeError("half-way")
            return self.b(x)

    model = Breaks().train()
    found = taps.find(model, torch.rand(2, 2))
    assert hooks_left(model) == 0
    model.broken = True
    with pytest.raises(RuntimeError, match="half-way"):
        taps.find(model, torch.rand(2, 2))
    assert hooks_left(model) == 0
    with pytest.raises(RuntimeError, match="half-way"), taps.still(model), taps.tapped(model, found, lambda *_: None):
        model(torch.rand(2, 2))
    assert hooks_left(model) == 0
    assert model.training


def test_a_tap_that_never_fires_is_an_error():
    class Moody(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
            self.skip = False

        def forward(self, x):
            return self.a(x) if self.skip else self.b(self.a(x))

    model = Moody()
    found = taps.find(model, torch.rand(2, 2), ["b"])
    model.skip = True
    with pytest.raises(RuntimeError, match="1 of 1 taps never fired: b"), taps.tapped(model, found, lambda *_: None):
        model(torch.rand(2, 2))


def test_a_depth_that_depends_on_the_data_is_an_error():
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.times = nn.Linear(2, 2), 1

        def forward(self, x):
            for _ in range(self.times):
                x = self.a(x)
            return x

    model = Loop()
    found = taps.find(model, torch.rand(2, 2), ["a"])
    model.times = 2
    with (
        pytest.raises(RuntimeError, match=r"a must be called 1 time\(s\) in a forward.*got 2"),
        taps.tapped(model, found, lambda *_: None),
    ):
        model(torch.rand(2, 2))


def test_a_foreign_tap_is_refused():
    found = taps.find(nn.Sequential(nn.Linear(2, 2)), torch.rand(2, 2), ["0"])
    with (
        pytest.raises(ValueError, match="must name modules of the model, got '0'"),
        taps.tapped(nn.Linear(2, 2), found, lambda *_: None),
    ):
        pass


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel], ids=["compile", "DataParallel"])
def test_wrapped_models_are_unwrapped(wrap):
    inner = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    found = taps.find(wrap(inner), torch.rand(2, 3))
    assert found.names == ["input", "1", "2"]
    kept = []
    with taps.tapped(wrap(inner), found, lambda tap, value: kept.append(value)) as model:
        model(torch.rand(5, 3, device=taps.model_device(model)))  # DataParallel moves it where there is a GPU
    assert [len(value) for value in kept] == [5, 5, 5]


def test_a_compiled_submodule_runs_eagerly_inside():
    block = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    model = nn.Sequential(nn.Linear(3, 3), torch.compile(block))
    in_place = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    in_place.compile()
    assert taps.find(model, torch.rand(2, 3)).names == ["input", "0", "1.1", "1.2"]
    assert taps.find(in_place, torch.rand(2, 3)).names == ["input", "1"]


def test_still_puts_everything_back():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    model.train()
    model[1].eval()  # a frozen submodule stays frozen
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state, fast = torch.get_rng_state(), torch.backends.mha.get_fastpath_enabled()
    for statistics in ("running", "batch"):
        with taps.still(model, statistics=statistics, seed=3):
            assert not torch.is_grad_enabled()
            assert not torch.is_inference_mode_enabled()
            assert not torch.backends.mha.get_fastpath_enabled()
            assert [module.training for module in model] == [False, statistics == "batch", False]
            model(torch.rand(8, 3))
            torch.rand(3)
    assert [module.training for module in model] == [True, False, True]
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in before.items())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert torch.is_grad_enabled()


def test_a_buffer_that_was_replaced_is_put_back():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls = self.calls + 1  # another tensor, not the same one changed
            return x

    model = Counts()
    before = model.calls
    with taps.still(model):
        model(torch.rand(2))
    assert model.calls is before
    assert model.calls == 0


def test_batch_statistics_are_the_batchs():
    norm = nn.BatchNorm1d(2, affine=False)
    x = torch.randn(50, 2) * 3 + 1
    with taps.still(norm, statistics="batch"):
        torch.testing.assert_close(norm(x).mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    with taps.still(norm):
        torch.testing.assert_close(norm(x), x, atol=1e-3, rtol=1e-3)
    with (
        pytest.raises(ValueError, match="statistics must be one of running, batch, got 'none'"),
        taps.still(norm, statistics="none"),
    ):
        pass


def test_still_with_a_seed_repeats_the_forwards_own_randomness():
    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    model, x = Noisy(), torch.zeros(3)
    with taps.still(model, seed=1):
        first = model(x)
    with taps.still(model, seed=1):
        assert torch.equal(model(x), first)
    with taps.still(model, seed=2):
        assert not torch.equal(model(x), first)


def test_a_transformer_encoder_with_a_padding_mask_gives_plain_tensors():
    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 3)

        def forward(self, x, mask):
            return self.encoder(x, src_key_padding_mask=mask)

    model = Padded().eval()
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[1, 3:] = True
    found = taps.find(model, {"x": torch.rand(3, 5, 8), "mask": mask})
    assert found.names == ["input", "encoder.layers.0", "encoder.layers.1", "encoder.layers.2"]
    assert all(tap.shape == (5, 8) for tap in found)
