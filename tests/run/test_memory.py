"""Out of memory in the middle of a run: half as many samples at a time, the same samples and draws."""

import pytest
import torch
from torch import nn

import lisse
from lisse.instruments import ALL, Sensitivity
from lisse.networks import zoo
from lisse.taps import find


class Full(nn.Module):
    """A network on a device that has no room for more than ``most`` samples after its first ``calls`` forwards."""

    def __init__(self, network, most=10**9, calls=0):
        super().__init__()
        self.network, self.most, self.calls = network, most, calls

    def forward(self, x):
        self.calls -= 1
        if len(x) > self.most and self.calls < 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return self.network(x)


def numbers(profile):
    rows = {(row.quantity, row.layer, repr(sorted(dict(row.at).items()))): row for row in profile.rows}
    return {key: [x for x in (row.value, row.low, row.high) if x is not None] for key, row in rows.items()}


@pytest.fixture(scope="module")
def network():
    return zoo.build("vit_small", seed=0, depth=2, width=16, heads=2, size=8, patch=2, classes=3).eval()


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(40, 3, 8, 8, generator=generator), torch.arange(40) % 3


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind.SIDES == 1], ids=lambda kind: kind.__name__)
def test_a_full_device_gives_the_same_numbers_with_fewer_samples_at_a_time(kind, network, data):
    counts = [name for name in ("samples", "points") if name in kind.__dataclass_fields__]
    instrument = kind.sized("quick", **{counts[0]: 32})
    calm = lisse.measure(Full(network), data, instrument, batch=16)
    said = []
    full = lisse.measure(Full(network, most=5, calls=3), data, instrument, batch=16, progress=said.append)
    assert calm.rows
    assert [part.complete for part in full.parts] == [True]
    assert any("the device is full: from here on" in str(event.say) for event in said)
    assert full.provenance["batch"] < 16
    assert any("the same ones" in note for note in full.notes)
    expected, actual = numbers(calm), numbers(full)
    assert actual.keys() == expected.keys()
    for key, values in expected.items():
        assert actual[key] == pytest.approx(values, rel=2e-3, abs=1e-5, nan_ok=True), key


def test_one_sample_that_is_too_many_says_what_would_help(network, data):
    with pytest.raises(RuntimeError, match=r"no room for 1 sample at a time.*--layers.*dtype=bfloat16"):
        lisse.measure(Full(network, most=0, calls=3), data, Sensitivity(samples=8))
    with pytest.raises(RuntimeError, match=r"got OutOfMemoryError: .*Two samples are more than.*device_map=auto"):
        find(Full(network, most=0), data[0])


def test_statistics_of_a_batch_are_those_of_its_size(data):
    network = zoo.build("resnet20", seed=0, classes=3, size=8)
    with pytest.raises(RuntimeError, match="no room for 16 samples at a time"):
        lisse.measure(Full(network, 5, 3), data, Sensitivity(samples=32), batch=16, statistics="batch")


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind.SIDES == 1], ids=lambda kind: kind.__name__)
def test_a_layer_that_overflows_in_float16_is_named(kind, data):
    torch.manual_seed(0)
    network = zoo.build("vit_small", seed=0, depth=2, width=16, heads=2, size=8, patch=2, classes=3)
    with torch.no_grad():
        network.blocks[1].mlp.fc2.weight.mul_(1e6)
    model = network.half().eval()
    instrument = kind.sized("quick", **({"samples": 16} if "samples" in kind.__dataclass_fields__ else {}))
    with pytest.raises(ValueError, match=r"(blocks\.1|logits).*(float16|under)"):
        lisse.measure(model, data, instrument)
