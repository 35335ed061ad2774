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
    with pytest.raises(ValueError, match=r"fit in max_bytes=1,000,000, got more after 25,000 samples. Give limit="):
        as_dataset(endless, max_bytes=1_000_000)


def test_tiny_samples_are_bounded_too():
    endless = iter(lambda: torch.zeros(1), None)
    with pytest.raises(ValueError, match=r"fit in max_bytes=1,000,000, got more after 973 samples"):
        as_dataset(endless, max_bytes=1_000_000)


class Counting(torch.utils.data.Dataset):
    """Remembers which samples were asked for."""

    def __init__(self, n=1000):
        self.n, self.asked = n, []

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.asked.append(index)
        return torch.full((2,), float(index)), index


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: DataLoader(d, batch_size=4)])
def test_limit_with_a_seed_reads_only_what_is_drawn(wrap):
    wanted = as_dataset(wrap(Counting())).sample(10, 3)
    source = Counting()
    data = as_dataset(wrap(source), limit=10, seed=3)
    assert torch.equal(data.targets, wanted.targets)
    assert torch.equal(data.inputs, wanted.inputs)
    assert sorted(source.asked) == sorted(wanted.targets.tolist())
    first = Counting()
    assert as_dataset(wrap(first), limit=10).targets.tolist() == list(range(10))
    assert first.asked == list(range(10))
    assert len(as_dataset(wrap(Counting(5)), limit=10, seed=3)) == 5


def test_drop_last_is_not_drawn_from():
    loader = DataLoader(Counting(11), batch_size=4, drop_last=True)
    assert set(as_dataset(loader, limit=7, seed=0).targets.tolist()) <= set(range(8))


def test_what_can_only_be_iterated_gives_its_first_samples_and_says_so():
    taken = []

    def endless():
        index = 0
        while True:
            taken.append(index)
            yield torch.zeros(3, 2), torch.arange(3) + 3 * index
            index += 1

    with pytest.warns(UserWarning, match=r"can only be read in its order, so limit=5 takes its first samples"):
        data = as_dataset(endless(), limit=5, seed=1)
    assert data.targets.tolist() == [0, 1, 2, 3, 4]
    assert taken == [0, 1]
    with pytest.warns(UserWarning, match="can only be read in its order"):
        as_dataset(DataLoader(Counting(), batch_size=4, shuffle=True), limit=5, seed=1)


def test_a_list_is_drawn_from(recwarn):
    batches = [(torch.full((2, 1), float(k)), torch.tensor([2 * k, 2 * k + 1])) for k in range(20)]
    assert torch.equal(as_dataset(batches, limit=9, seed=2).targets, as_dataset(batches).sample(9, 2).targets)
    assert not recwarn.list


def test_the_global_random_state_is_left_alone():
    before = torch.random.get_rng_state()
    as_dataset(DataLoader(TensorDataset(torch.zeros(4, 2)), batch_size=2, shuffle=True))
    assert torch.equal(before, torch.random.get_rng_state())


def test_lists_of_samples():
    from PIL import Image

    images = [torch.full((3, 4, 4), k, dtype=torch.uint8) for k in range(3)]
    for answer in (int, np.int64, torch.tensor, float):
        data = as_dataset([(image, answer(k)) for k, image in enumerate(images)])
        assert data.inputs.shape == (3, 3, 4, 4)
        assert data.targets.tolist() == [0, 1, 2]
    assert as_dataset(((image, 5) for image in images), limit=2).targets.tolist() == [5, 5]
    assert as_dataset([([1.0, 2.0], 5), ([3.0, 4.0], 6)]).inputs.tolist() == [[1, 2], [3, 4]]
    assert as_dataset([Image.new("L", (4, 5), k) for k in range(2)]).inputs.shape == (2, 1, 5, 4)
    named = as_dataset([{"pixel_values": image, "label": k} for k, image in enumerate(images)])
    assert named.inputs["pixel_values"].shape == (3, 3, 4, 4)
    assert named.targets.tolist() == [0, 1, 2]
    assert as_dataset((images[:2], [0, 1])).inputs.shape == (2, 3, 4, 4)


def test_text_in_a_dict_is_left_out():
    rows = [{"x": torch.zeros(2), "path": f"{k}.png", "label": k} for k in range(4)]
    for thing in (DataLoader(rows, batch_size=2), rows):
        data = as_dataset(thing)
        assert sorted(data.inputs) == ["x"]
        assert data.targets.tolist() == [0, 1, 2, 3]
    with pytest.raises(TypeError, match=r"must hold tensors or numbers, got only text or nothing in \['a', 'b'\]"):
        as_dataset({"a": "text", "b": ["x", "y"]})


def test_sixteen_bit_pictures_are_scaled():
    from PIL import Image

    pixels = np.array([[0, 256, 257, 32896, 65535]], np.uint16)
    picture = Image.fromarray(pixels)
    assert picture.mode.startswith("I;16")
    assert as_dataset([(picture, 0)]).inputs.tolist() == [[[[0, 1, 1, 128, 255]]]]
    floats = Image.fromarray(np.array([[0.0, 0.5, 1.0]], np.float32))
    assert as_dataset([(floats, 0)]).inputs.tolist() == [[[[0, 128, 255]]]]
    for bad, got in ((np.array([[0.0, 300.0]], np.float32), "floats outside"), (np.array([[7]], np.int32), "32-bit")):
        with pytest.raises(ValueError, match=rf"must have 8- or 16-bit pixels or floats in \[0, 1\], got {got}"):
            as_dataset([(Image.fromarray(bad), 0)])


def test_wide_numbers():
    assert as_dataset(np.ones((2, 3), np.longdouble)).inputs.dtype == torch.float64
    assert as_dataset(np.ones((2, 3), np.uint16)).inputs.dtype == torch.int64
    for images in (np.ones((2, 1, 3, 3), np.uint16), torch.ones(2, 1, 3, 3, dtype=torch.uint16)):
        with pytest.raises(ValueError, match=r"must be bytes .uint8. or floats in .0, 1. for images, got torch.uint16"):
            as_dataset(images)


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
    (
        lambda: as_dataset([torch.zeros(1, 2), torch.zeros(1, 3)]),
        ValueError,
        "one shape and dtype in every sample and batch",
    ),
    (lambda: as_dataset(TensorDataset(torch.zeros(0, 2))), ValueError, "got none"),
    (lambda: as_dataset([{"a": torch.zeros(1)}, {"b": torch.zeros(1)}]), ValueError, "every batch must have 'a'"),
    (
        lambda: as_dataset([((torch.zeros(4, 2), torch.zeros(4, 3)), torch.zeros(4))]),
        TypeError,
        r"one tensor or a dict of tensors, got 2 in a tuple. Name several inputs by the model's arguments",
    ),
    (
        lambda: as_dataset(DataLoader([((torch.zeros(2), torch.zeros(2)), k) for k in range(4)], batch_size=2)),
        TypeError,
        "got 2 in a list. Name several inputs",
    ),
    (lambda: as_dataset([((torch.zeros(2), torch.zeros(3)), 1)]), TypeError, "got 2 in a tuple. Name several"),
    (lambda: as_dataset([{"x": torch.zeros(2, 3), "epoch": 3}]), ValueError, "got a single number for 'epoch'"),
    (lambda: as_dataset(torch.zeros(3), limit=2, seed=2**70), ValueError, "seed must be an integer of at most 64 bits"),
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


def test_vectors_of_several_lengths_are_no_batches_of_numbers():
    with pytest.raises(ValueError, match="must have one shape, got vectors of 3 and 4 numbers"):
        as_dataset([torch.rand(3), torch.rand(4)])
    assert len(as_dataset([torch.rand(3), torch.rand(3)])) == 6  # batches
