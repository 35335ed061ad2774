"""Architectures of transformers with random weights, small, for images of 32 × 32: controls of an atlas.

Factories for a plan: ``random_transformers:vit`` from this folder. Weights are drawn with the seed of the sweep.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from lisse.models import declare

SMALL = {"num_labels": 10, "image_size": 32}


def _declared(model: Any) -> nn.Module:
    return declare(model.eval(), input_size=(3, 32, 32), mean="cifar10", classes=10)


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 96, "num_hidden_layers": 6, "num_attention_heads": 3, "intermediate_size": 384}
    return _declared(ViTForImageClassification(ViTConfig(patch_size=4, **sizes, **SMALL)))


def deit() -> nn.Module:
    from transformers import DeiTConfig, DeiTForImageClassification

    sizes = {"hidden_size": 96, "num_hidden_layers": 6, "num_attention_heads": 3, "intermediate_size": 384}
    return _declared(DeiTForImageClassification(DeiTConfig(patch_size=4, **sizes, **SMALL)))


def convnext() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(patch_size=2, hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 2, 1], **SMALL)
    return _declared(ConvNextForImageClassification(config))


def swin() -> nn.Module:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(patch_size=2, embed_dim=24, depths=[1, 1, 2], num_heads=[2, 4, 8], window_size=4, **SMALL)
    return _declared(SwinForImageClassification(config))


def resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes = {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1], "layer_type": "basic"}
    return _declared(ResNetForImageClassification(ResNetConfig(**sizes, num_labels=10)))
