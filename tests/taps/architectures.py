"""Real architectures with the number of blocks along depth that they have. Adding a row is adding the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lisse.networks import zoo

SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
TOKENS = {"vocab_size": 50}


def image(size: int = 32) -> torch.Tensor:
    return torch.rand(3, 3, size, size, generator=torch.Generator().manual_seed(0))


def text(**more: Any) -> dict[str, Any]:
    ids = torch.randint(1, 50, (3, 9), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **dict.fromkeys(more, ids)}


def hf(kind: str, config: str, **options: Any) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, kind)(getattr(transformers, config)(**options)).eval()


def sequential() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 13 * 13, 10),
    )


class UNet(nn.Module):
    """As people write it by hand: levels that are Sequentials, one pooling and one interpolation for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.down3 = level(3, 4), level(4, 8), level(8, 16)
        self.up1, self.up2 = level(24, 8), level(12, 4)
        self.pool, self.up, self.head = nn.MaxPool2d(2), nn.Upsample(scale_factor=2), nn.Conv2d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down1(x)
        second = self.down2(self.pool(first))
        y = self.up1(torch.cat([self.up(self.down3(self.pool(second))), second], 1))
        return self.head(self.up2(torch.cat([self.up(y), first], 1)))


def level(before: int, after: int) -> nn.Sequential:
    first, second = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())


class Inside(nn.Module):
    """A U-Net that holds the next smaller one, and so on."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        deeper = [Inside(2 * width, depth - 1)] if depth else []
        up = nn.ConvTranspose2d(4 * width if depth else 2 * width, width, 2, 2)
        self.body = nn.Sequential(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU(), *deeper, up)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.body(x)], 1)


class OnePooling(nn.Module):
    """The first network of many tutorials: a pooling that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.pool = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5), nn.MaxPool2d(2)
        self.fc1, self.fc2 = nn.Linear(400, 20), nn.Linear(20, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.conv2(self.pool(torch.relu(self.conv1(x))))))
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


@dataclass(frozen=True)
class Architecture:
    name: str
    build: Callable[[], nn.Module]
    example: Callable[[], Any]
    blocks: int
    first: str  # the first layer: "input" for images, "stem" for token ids
    last: str  # "output" unless the last block is the output


def _row(name: str, build: Callable[[], nn.Module], example: Any, blocks: int, first: str, last: str) -> Architecture:
    return Architecture(name, build, example, blocks, first, last)


ARCHITECTURES = [
    _row("Sequential", sequential, image, 2, "input", "7"),
    _row("FC", lambda: zoo.build("fc4"), image, 4, "input", "head"),
    _row("VGG16-BN", lambda: zoo.build("vgg16_bn"), image, 13, "input", "classifier"),
    _row("LeNet", lambda: zoo.build("lenet"), image, 4, "input", "classifier.2"),
    _row("ResNet-20", lambda: zoo.build("resnet20"), image, 9, "input", "output"),
    _row("ResNet-56", lambda: zoo.build("resnet56"), image, 27, "input", "output"),
    _row("ResNet18", lambda: zoo.build("resnet18"), image, 8, "input", "output"),
    _row("ResNet50", lambda: zoo.build("resnet50"), image, 16, "input", "output"),
    _row("attention only", lambda: zoo.build("attention_small"), image, 10, "input", "output"),
    _row("zoo ViT", lambda: zoo.build("vit_small"), image, 12, "input", "output"),
    _row(
        "HF ViT",
        lambda: hf("ViTForImageClassification", "ViTConfig", **SMALL, image_size=32, patch_size=8),
        image,
        3,
        "input",
        "output",
    ),
    _row("BERT", lambda: hf("BertModel", "BertConfig", **SMALL, **TOKENS), text, 3, "stem", "encoder.layer.2"),
    _row("BERT for MLM", lambda: hf("BertForMaskedLM", "BertConfig", **SMALL, **TOKENS), text, 3, "stem", "output"),
    _row(
        "BERT of one layer",
        lambda: hf("BertModel", "BertConfig", **{**SMALL, "num_hidden_layers": 1}, **TOKENS),
        text,
        1,
        "stem",
        "encoder.layer.0",
    ),
    _row(
        "GPT-2",
        lambda: hf(
            "GPT2LMHeadModel",
            "GPT2Config",
            n_embd=32,
            n_layer=4,
            n_head=4,
            n_positions=16,
            bos_token_id=0,
            eos_token_id=0,
            **TOKENS,
        ),
        text,
        4,
        "stem",
        "output",
    ),
    _row(
        "ALBERT",
        lambda: hf("AlbertModel", "AlbertConfig", **{**SMALL, "num_hidden_layers": 5}, embedding_size=16, **TOKENS),
        text,
        5,
        "stem",
        "encoder.albert_layer_groups.0.albert_layers.0#4",
    ),
    _row(
        "HF ResNet",
        lambda: hf(
            "ResNetForImageClassification",
            "ResNetConfig",
            embedding_size=8,
            hidden_sizes=[16, 16, 32, 64],
            depths=[3, 4, 6, 3],
        ),
        lambda: image(64),
        16,
        "input",
        "output",
    ),
    _row(
        "EfficientNet-B0",
        lambda: hf(
            "EfficientNetForImageClassification",
            "EfficientNetConfig",
            width_coefficient=1.0,
            depth_coefficient=1.0,
            hidden_dim=1280,
            image_size=64,
        ),
        lambda: image(64),
        16,
        "input",
        "output",
    ),
    _row(
        "ViTMAE",
        lambda: hf(
            "ViTMAEForPreTraining",
            "ViTMAEConfig",
            **SMALL,
            image_size=32,
            patch_size=8,
            decoder_num_hidden_layers=2,
            decoder_hidden_size=32,
            decoder_num_attention_heads=4,
            decoder_intermediate_size=64,
        ),
        image,
        5,
        "input",
        "output",
    ),
    _row(
        "Swin",
        lambda: hf(
            "SwinForImageClassification",
            "SwinConfig",
            image_size=32,
            patch_size=2,
            embed_dim=16,
            depths=[2, 2, 6],
            num_heads=[2, 2, 2],
            window_size=4,
        ),
        image,
        10,
        "input",
        "output",
    ),
    _row(
        "ConvNeXt",
        lambda: hf(
            "ConvNextForImageClassification", "ConvNextConfig", hidden_sizes=[8, 8, 16, 16], depths=[2, 2, 3, 2]
        ),
        lambda: image(64),
        9,
        "input",
        "output",
    ),
    _row(
        "T5",
        lambda: hf(
            "T5ForConditionalGeneration",
            "T5Config",
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=3,
            num_heads=4,
            decoder_start_token_id=0,
            **TOKENS,
        ),
        lambda: text(decoder_input_ids=True),
        6,
        "stem",
        "output",
    ),
    _row(
        "nn.TransformerEncoder",
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 4).eval(),
        lambda: torch.rand(3, 7, 32),
        4,
        "input",
        "layers.3",
    ),
    _row("U-Net of Sequentials", UNet, image, 5, "input", "output"),
    _row("U-Net inside U-Nets", lambda: Inside(3, 2), image, 6, "input", "output"),
    _row("one pooling for all", OnePooling, image, 3, "input", "fc2"),
    _row("MobileNetV2", lambda: hf("MobileNetV2Model", "MobileNetV2Config"), lambda: image(64), 16, "input", "output"),
    _row(
        "BART",
        lambda: hf(
            "BartForConditionalGeneration",
            "BartConfig",
            d_model=32,
            encoder_layers=2,
            decoder_layers=3,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            **TOKENS,
        ),
        text,
        5,
        "stem",
        "output",
    ),
]
