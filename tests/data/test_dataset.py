from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lisse.data import Batch, Dataset


def images(n=10, seed=0):
    return torch.randint(0, 256, (n, 3, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_bytes_become_floats_between_0_and_1():
    x = torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1)
    (batch,) = Dataset("x", x).batches(3)
    assert isinstance(batch, Batch)
    assert batch.inputs.dtype == torch.float32
    torch.testing.assert_close(batch.inputs.flatten(), torch.tensor([0.0, 0.2, 1.0]))
    assert x.dtype == torch.uint8


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.float16, torch.bool])
def test_other_dtypes_pass_through(dtype):
    x = torch.ones(3, 2, dtype=dtype)
    (batch,) = Dataset("x", x).batches(5)
    assert batch.inputs.dtype == dtype
    assert torch.equal(batch.inputs, x)


def test_in_a_dict_masks_stay_bytes_and_images_do_not():
    x = {"pixel_values": images(2), "mask": torch.ones(2, 3, dtype=torch.uint8)}
    (batch,) = Dataset("x", x).batches(2)
    assert batch.inputs["pixel_values"].dtype == torch.float32
    assert batch.inputs["mask"].dtype == torch.uint8


@given(n=st.integers(1, 30), size=st.integers(1, 40), ends=st.tuples(st.integers(0, 30), st.integers(0, 30)))
def test_batches_are_the_slice_whatever_the_size(n, size, ends):
    start, stop = sorted(min(end, n) for end in ends)
    data = Dataset("x", torch.arange(n)[:, None].float(), torch.arange(n))
    got = list(data.batches(size, start, stop))
    assert [int(i) for batch in got for i in batch.targets] == list(range(start, stop))
    assert all(int(batch.inputs[0, 0]) == batch.start for batch in got)
    assert all(len(batch.targets) == size for batch in got[:-1])


def test_batches_default_to_everything():
    assert sum(len(batch.targets) for batch in Dataset("x", images(), torch.arange(10)).batches(4)) == 10
    assert next(iter(Dataset("x", images()).batches(4))).targets is None


def test_take_subset_sample_keep_everything_together():
    n = 9
    partner = Dataset("p", torch.arange(n)[:, None] + 100)
    data = Dataset("x", torch.arange(n)[:, None], torch.arange(n), torch.ones(n), partner, tuple("abcdefghi"))
    for part in (data.take(4), data.subset([8, 1, 1]), data.sample(5, 3)):
        assert torch.equal(part.inputs[:, 0], part.targets)
        assert torch.equal(part.partner.inputs[:, 0], part.targets + 100)
        assert len(part.lengths) == len(part) == len(part.partner)
        assert part.classes == data.classes
    assert data.subset([8, 1, 1]).targets.tolist() == [8, 1, 1]
    assert data.take(4).targets.tolist() == [0, 1, 2, 3]


def test_samples_are_distinct_nested_and_seeded():
    data = Dataset("x", torch.arange(100)[:, None])
    big = data.sample(50, 7).inputs[:, 0]
    assert len(set(big.tolist())) == 50
    assert torch.equal(data.sample(20, 7).inputs[:, 0], big[:20])
    assert not torch.equal(data.sample(50, 8).inputs[:, 0], big)
    before = torch.random.get_rng_state()
    data.sample(3, 1)
    assert torch.equal(before, torch.random.get_rng_state())


def test_fingerprint_sees_every_part_and_only_the_data():
    n = 4
    ids = torch.arange(n * 3).view(n, 3)

    numbers, threes = torch.arange(n), torch.full((n,), 3)

    def make(name="x", inputs=ids, targets=numbers, lengths=threes, partner=None, classes=None):
        return Dataset(name, inputs, targets, lengths, partner, classes).fingerprint()

    base = make()
    assert make() == base == make(name="other")
    other = ids.clone()
    other[2, 1] += 1
    lengths = torch.tensor([3, 3, 3, 2])
    changes = [
        make(inputs=other),
        make(inputs=ids.int()),
        make(inputs=ids.view(n, 3, 1)),
        make(inputs={"input_ids": ids}),
        make(targets=torch.tensor([0, 1, 2, 2])),
        make(targets=None),
        make(lengths=lengths),
        make(partner=Dataset("p", ids)),
        make(partner=Dataset("p", other)),
        make(classes=tuple("abcd")),
    ]
    assert len({base, *changes}) == len(changes) + 1
    assert make(inputs=ids.T.contiguous().T) == base  # the same numbers in another layout of memory


def test_fingerprint_is_computed_once(monkeypatch):
    data = Dataset("x", images())
    first = data.fingerprint()
    monkeypatch.setattr("lisse.data.dataset.hash_tensor", None)
    assert data.fingerprint() == first == data.to("cpu").fingerprint()


def test_integer_labels_become_int64():
    for dtype in (torch.uint8, torch.int32, torch.int8):
        assert Dataset("x", images(3), torch.tensor([0, 1, 2], dtype=dtype)).targets.dtype == torch.int64
    assert Dataset("x", images(3), torch.rand(3)).targets.dtype == torch.float32


BAD = [
    (lambda: Dataset("x", torch.zeros(0, 3)), ValueError, "at least one sample, got none in 'x'"),
    (lambda: Dataset("x", {}), TypeError, "must be a tensor or a dict of tensors, got an empty dict"),
    (lambda: Dataset("x", [1, 2]), TypeError, "got list. lisse.data.as_dataset converts"),
    (lambda: Dataset("x", torch.tensor(1.0)), ValueError, "samples as its first axis"),
    (lambda: Dataset("x", {"a": torch.zeros(3), "b": torch.zeros(2)}), ValueError, r"inputs\['b'\] .* got 2 and 3"),
    (lambda: Dataset("x", torch.zeros(3, 2), torch.zeros(2)), ValueError, "targets .* got 2 for 3 samples"),
    (lambda: Dataset("x", torch.zeros(3, 2), None, torch.ones(2)), ValueError, "lengths .* got 2 for 3"),
    (lambda: Dataset("x", torch.zeros(3, 2), None, torch.tensor([1, 2, 3])), ValueError, r"lie in 1 … 2 .* got 1 … 3"),
    (lambda: Dataset("x", torch.zeros(3, 2), None, torch.tensor([0, 2, 2])), ValueError, "got 0 … 2"),
    (
        lambda: Dataset("x", torch.zeros(3, 2), partner=Dataset("y", torch.zeros(2, 2))),
        ValueError,
        "partner must have 3",
    ),
    (
        lambda: Dataset("x", torch.zeros(3, 2), torch.tensor([0, 1, 2]), classes=("a", "b")),
        ValueError,
        r"lie in 0 … 1 \(2 classes\), got 2 at sample 2",
    ),
    (
        lambda: Dataset("x", torch.zeros(2, 2), torch.tensor([0, -1]), classes=("a", "b")),
        ValueError,
        "got -1 at sample 1",
    ),
    (lambda: Dataset("x", torch.zeros(2, 2), torch.rand(2), classes=("a", "b")), TypeError, "must be integers"),
    (lambda: Dataset("x", images()).batches(0), ValueError, "batches: size must be a positive integer, got 0"),
    (lambda: Dataset("x", images()).batches(3, 4, 11), ValueError, "got 4 and 11"),
    (lambda: Dataset("x", images()).batches(3, 5, 4), ValueError, "got 5 and 4"),
    (lambda: Dataset("x", images()).take(11), ValueError, "take: n must be an integer in 1 … 10, got 11"),
    (lambda: Dataset("x", images()).sample(3, 2**70), ValueError, "sample: seed must be an integer of at most 64 bits"),
    (lambda: Dataset("x", images()).sample(3, 0.5), TypeError, "sample: seed must be an integer"),
    (lambda: Dataset("x", images()).sample(0, 0), ValueError, "sample: n must"),
    (lambda: Dataset("x", images()).subset([10]), ValueError, "subset: indices must lie in 0 … 9"),
    (lambda: Dataset("x", images()).subset([-1]), ValueError, "subset: indices must lie"),
    (lambda: Dataset("x", images()).subset(torch.ones(10, dtype=torch.bool)), ValueError, "mask.nonzero"),
]


@pytest.mark.parametrize(("make", "kind", "match"), BAD)
def test_bad_input(make, kind, match):
    with pytest.raises(kind, match=match):
        make()


def test_samples_that_are_there_twice_are_counted_once():
    images = torch.rand(30, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    twice = torch.cat([images, images[:12]])
    assert Dataset("once", images).distinct() == 30
    assert Dataset("twice", twice, torch.arange(42)).distinct() == 30  # a label makes no other sample
    assert Dataset("parts", {"a": twice, "b": torch.arange(42) % 30}).distinct() == 30
    assert Dataset("parts", {"a": twice, "b": torch.arange(42)}).distinct() == 42
    assert Dataset("pairs", twice, partner=Dataset("other", torch.arange(42.0)[:, None])).distinct() == 42
    assert Dataset("many", torch.arange(2500) % 1100).distinct() == 1100
