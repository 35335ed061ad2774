"""Batches: the same for one seed on every device and in every process, and every sample once an epoch."""

from __future__ import annotations

import pytest
import torch
from small_trainings import images

from lisse.data import Dataset, crop_flip
from lisse.data.augmentation import CropFlip
from lisse.training.feed import Feed, keyed

CPU = torch.device("cpu")


def feed(data: Dataset, batch: int | None = 8, **options) -> Feed:
    return Feed(data, **{"batch": batch, "seed": 0, "device": CPU, "dtype": torch.float32, **options})


def numbered(n: int = 21) -> Dataset:
    return Dataset("n", torch.arange(n).float()[:, None], torch.arange(n))


def seen(feed: Feed, epoch: int) -> list[int]:
    return [int(y) for k in range(feed.steps) for y in feed.get(epoch, k).targets]


def test_an_epoch_has_every_sample_once_in_an_order_of_its_own():
    first = feed(numbered())
    orders = [seen(first, epoch) for epoch in range(3)]
    assert all(sorted(order) == list(range(21)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    again = feed(numbered())
    assert again.get(2, 1).targets.tolist() == orders[2][8:16]  # without the batches before it
    assert seen(feed(numbered(), seed=1), 0) != orders[0]
    assert first.get(0, 2).start == 16
    assert torch.equal(first.get(0, 1).inputs[:, 0].long(), first.get(0, 1).targets)


def test_a_last_batch_of_one_sample_is_left_out():
    assert (feed(numbered(17)).steps, feed(numbered(18)).steps, feed(numbered(16)).steps) == (2, 3, 2)
    assert feed(numbered(17)).used == 16
    assert feed(numbered(18), world=3).steps == 2
    assert feed(numbered(1), batch=1).steps == 1


def test_the_full_batch_is_the_data_in_their_order():
    data = numbered()
    batch = feed(data, batch=None).get(5, 0)
    assert torch.equal(batch.inputs, data.inputs)
    batch.inputs.zero_()
    assert data.inputs.sum() > 0


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_a_batch(world):
    shares = [feed(numbered(24), rank=rank, world=world).get(0, 0).targets.tolist() for rank in range(world)]
    whole = feed(numbered(24)).get(0, 0).targets.tolist()
    assert sorted(place for share in shares for place in share) == sorted(whole)
    assert shares[0] == whole[::world]


def test_bytes_become_floats_and_floats_the_networks_precision():
    data = images(20)
    batch = feed(data).get(0, 0)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(keyed(0, "order", 0)))[:8]
    assert torch.equal(batch.inputs, data.inputs[order].float() / 255)
    assert feed(data, dtype=torch.float64).get(0, 0).inputs.dtype == torch.float64
    assert feed(numbered(), dtype=torch.float64).get(0, 0).inputs.dtype == torch.float64
    tokens = Dataset("t", {"input_ids": torch.randint(0, 9, (20, 5)), "mask": torch.ones(20, 5, dtype=torch.uint8)})
    inputs = feed(tokens).get(0, 0).inputs
    assert (inputs["input_ids"].dtype, inputs["mask"].dtype) == (torch.int64, torch.uint8)


def test_channels_last_changes_the_layout_and_nothing_else():
    for crops in (None, CropFlip(2, True)):
        plain, last = (feed(images(20), crops=crops, channels_last=b).get(1, 0).inputs for b in (False, True))
        assert torch.equal(plain, last)
        assert plain.is_contiguous()
        assert last.is_contiguous(memory_format=torch.channels_last)


def test_crops_are_those_of_crop_flip_and_independent_of_the_batch():
    data = images(20)
    crops = CropFlip(2, True)
    generator = torch.Generator().manual_seed(keyed(0, "crops", 3))
    draws = crops.draws(20, generator=generator)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(keyed(0, "order", 3)))
    whole = torch.cat([feed(data, crops=crops).get(3, k).inputs for k in range(3)])
    other = torch.cat([feed(data, batch=5, crops=crops).get(3, k).inputs for k in range(4)])
    assert torch.equal(whole, other)
    expected = crops.cut(crops.padded(data.inputs), order, draws)
    assert torch.equal(whole, expected.float() / 255)
    halves = [feed(data, crops=crops, rank=rank, world=2).get(3, 0).inputs for rank in (0, 1)]
    assert torch.equal(torch.stack(halves, 1).flatten(0, 1), whole[:8])
    assert not torch.equal(whole, torch.cat([feed(data, crops=crops).get(4, k).inputs for k in range(3)]))


def test_cut_is_a_naive_crop():
    data = images(6).inputs
    crops = CropFlip(1, True)
    draws = crops.draws(6, generator=torch.Generator().manual_seed(0))
    found = crops.cut(crops.padded(data), torch.arange(6), draws)
    for i in range(6):
        framed = torch.nn.functional.pad(data[i], (1, 1, 1, 1))
        y, x, turned = (int(v) for v in draws[:, i])
        part = framed[:, y : y + 6, x : x + 6]
        assert torch.equal(found[i], part.flip(-1) if turned else part)
    assert torch.equal(crop_flip(data, padding=1, generator=torch.Generator().manual_seed(0)), found)
    assert not CropFlip(1, False).draws(50)[2].any()
    assert CropFlip(0, True).draws(50)[:2].eq(0).all()


def test_keys_differ_by_seed_purpose_and_place():
    keys = {keyed(seed, purpose, index) for seed in range(5) for purpose in ("a", "b") for index in range(5)}
    assert len(keys) == 50
    assert all(0 <= key < 2**63 for key in keys)
