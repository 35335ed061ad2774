from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lisse.data import Dataset, as_dataset


def test_dataset_is_itself():
    data = Dataset("x", torch.zeros(3, 2))
    assert as_dataset(data) is data
    assert as_dataset(data, name="y").name == "y"
    assert len(as_dataset(data, limit=2)) == 2


@pytest.mark.parametrize(
    "x", [torch.rand(4, 2), np.random.default_rng(0).random((4, 2)), [[1, 2], [3, 4], [5, 6], [7, 8]]]
)
def test_values(x):
    data = as_dataset(x, name="mine")
    assert data.name == "mine"
    np.testing.assert_array_equal(data.inputs.numpy(), np.asarray(x))


@pytest.mark.parametrize("dtype", [">f4", "<i8", ">i2", "u1", "?"])
def test_byte_orders(dtype):
    x = np.arange(6).reshape(3, 2).astype(dtype)
    np.testing.assert_array_equal(as_dataset(x).inputs.numpy(), x)


def test_reversed_and_readonly_arrays():
    x = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(as_dataset(x[::-1]).inputs.numpy(), x[::-1])
    x.setflags(write=False)
    as_dataset(x).inputs.add_(0)


def test_pair_and_dict():
    data = as_dataset((np.zeros((3, 2)), [0, 1, 2]))
    assert data.targets.tolist() == [0, 1, 2]
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]])
    data = as_dataset({"input_ids": torch.ones(3, 3).long(), "attention_mask": mask, "labels": [4, 5, 6]})
    assert data.lengths.tolist() == [2, 1, 3]
    assert data.targets.tolist() == [4, 5, 6]
    assert sorted(data.inputs) == ["attention_mask", "input_ids"]


def test_batch_encoding():
    class BatchEncoding(dict):
        pass

    assert as_dataset(BatchEncoding(input_ids=[[1, 2]], attention_mask=[[1, 0]])).lengths.tolist() == [1]


def test_loader_torch_dataset_and_iterables_agree():
    x, y = torch.rand(10, 3), torch.arange(10)
    wanted = Dataset("x", x, y).fingerprint()
    assert as_dataset(TensorDataset(x, y)).fingerprint() == wanted
    assert as_dataset(DataLoader(TensorDataset(x, y), batch_size=4)).fingerprint() == wanted
    assert as_dataset((x[i : i + 3], y[i : i + 3]) for i in range(0, 10, 3)).fingerprint() == wanted
    assert as_dataset([(x[:5], y[:5]), (x[5:], y[5:])]).fingerprint() == wanted
    assert as_dataset(Dataset("x", x, y).batches(4)).fingerprint() == wanted


def test_limit_stops_early():
    class Endless(IterableDataset):
        def __iter__(self):
            index = 0
            while True:
                yield torch.full((2,), float(index)), index
                index += 1

    data = as_dataset(Endless(), limit=7)
    assert data.targets.tolist() == list(range(7))
    assert len(as_dataset(DataLoader(Endless(), batch_size=4), limit=7)) == 7


def test_memory_is_bounded():
    endless = iter(lambda: torch.zeros(1000, 10), None)
    with pytest.raises(ValueError, match=r"fit in max_bytes=1,000,000, got more after 26,000 samples. Give limit="):
        as_dataset(endless, max_bytes=1_000_000)


def test_token_batches_padded_differently_are_padded_together():
    batches = [
        {"input_ids": torch.ones(2, 3).long(), "attention_mask": torch.ones(2, 3).long()},
        {"input_ids": torch.ones(1, 5).long(), "attention_mask": torch.ones(1, 5).long()},
    ]
    data = as_dataset(batches)
    assert data.lengths.tolist() == [3, 3, 5]
    assert data.inputs["input_ids"].shape == (3, 5)


def test_pictures_from_a_torch_dataset():
    from PIL import Image

    class Pictures(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return Image.new("RGB", (4, 3), (index, 2, 3)), index

    data = as_dataset(Pictures())
    assert data.inputs.shape == (2, 3, 3, 4)
    assert data.inputs.dtype == torch.uint8
    assert data.inputs[1, :, 0, 0].tolist() == [1, 2, 3]


BAD = [
    (lambda: as_dataset("digits"), TypeError, "lisse.load_data reads specs"),
    (lambda: as_dataset(3.5), ValueError, "first axis, got a single number"),
    (lambda: as_dataset(object()), TypeError, "got object"),
    (lambda: as_dataset(np.array(["a", "b"])), TypeError, "must hold numbers"),
    (lambda: as_dataset(np.array([{}, {}])), TypeError, "must hold numbers, got dtype object"),
    (lambda: as_dataset([[1, 2], [3]]), ValueError, "rectangular"),
    (lambda: as_dataset((1, 2, 3)), ValueError, "got 3 items"),
    (lambda: as_dataset(iter([])), ValueError, "at least one sample, got none"),
    (lambda: as_dataset([torch.zeros(1, 2), torch.zeros(1, 3)]), ValueError, "one shape and dtype in every batch"),
    (lambda: as_dataset(TensorDataset(torch.zeros(0, 2))), ValueError, "got none"),
    (lambda: as_dataset([{"a": torch.zeros(1)}, {"b": torch.zeros(1)}]), ValueError, "every batch must have 'a'"),
    (lambda: as_dataset(torch.zeros(3), limit=0), ValueError, "limit must be a positive integer"),
    (
        lambda: as_dataset({"input_ids": torch.ones(1, 3), "attention_mask": torch.tensor([[0, 1, 1]])}),
        ValueError,
        "padding before a token .sample 0.",
    ),
]


@pytest.mark.parametrize(("make", "kind", "match"), BAD)
def test_bad_input(make, kind, match):
    with pytest.raises(kind, match=match):
        make()
