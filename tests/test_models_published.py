"""The CIFAR ResNets trained by others reach their published errors, on the real test set."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from lisse.models import load_model

DATA = Path(os.environ.get("LISSE_DATA", "."))

# File, published test error in per cent (akamaster/pytorch_resnet_cifar10). Adding a row is adding the test.
PUBLISHED = [
    ("resnet20-12fca82f.th", 8.27),
    ("resnet32-d509ac18.th", 7.37),
    ("resnet44-014dd654.th", 6.90),
    ("resnet56-4bfd9763.th", 6.61),
]


@pytest.fixture(scope="module")
def cifar10():
    """The test set, decoded here rather than by lisse.data, so that the two do not share a mistake."""
    image = pytest.importorskip("PIL.Image")
    folder = DATA / "cifar10"
    if not (folder / "test.webp").is_file():
        pytest.skip("LISSE_DATA has no cifar10/test.webp")
    sheet = np.asarray(image.open(folder / "test.webp").convert("RGB"))
    images = sheet.reshape(500, 32, 20, 32, 3).transpose(2, 0, 1, 3, 4).reshape(-1, 32, 32, 3)
    labels = np.load(folder / "labels.npz")["test"]
    return torch.from_numpy(images.copy()).permute(0, 3, 1, 2), torch.from_numpy(labels).long()


@pytest.mark.large
@pytest.mark.parametrize(("file", "error"), PUBLISHED)
def test_published_weights_reach_their_published_error(file, error, cifar10):
    """n = 10,000, exact to one image; 9 to 25 s each on one core, in batches that stay near the processor."""
    images, labels = cifar10
    model = load_model(f"zoo:{file.split('-')[0]}?weights={DATA}/checkpoints/{file}")
    with torch.no_grad():
        wrong = sum(
            int((model(x.float() / 255).argmax(1) != y).sum())
            for x, y in zip(images.split(100), labels.split(100), strict=True)
        )
    assert len(images) == 10_000
    assert wrong / 100 == pytest.approx(error, abs=0.005)
