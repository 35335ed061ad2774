"""The ten networks of Table 1, as printed and cut down, each with the recipe that trains it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import nn

from lisse.networks.zoo import seeded
from lisse.networks.zoo.convolutional import ConvolutionOnly
from lisse.networks.zoo.resnet import CifarResNet
from lisse.training import recipes
from lisse.training.recipes import Recipe

Family = Literal["Attn", "Conv", "ViT", "ResNet"]


@dataclass(frozen=True)
class Network:
    """A network to train and measure.

    ``spec`` is what ``load_model`` takes, ``training`` and ``measuring`` are how long each takes in about seconds (only
    the time left is reckoned from them), ``accuracy`` the six numbers of the paper's Table 2 in per cent: clean, then
    the five corruptions.
    """

    name: str
    label: str
    family: Family
    spec: str
    recipe: Recipe
    training: float
    measuring: float
    accuracy: tuple[float, ...] = ()

    def with_seed(self, seed: int) -> str:
        """The spec, started from ``seed``."""
        return f"{self.spec}{'&' if '?' in self.spec else '?'}seed={seed}"


# Table 2 of the paper, in per cent: clean, Gaussian noise, motion blur, snow, impulse noise, pixelate.
TABLE_2: Mapping[str, tuple[float, ...]] = {
    "attention_small": (34.2, 36.5, 32.5, 30.0, 35.2, 35.2),
    "attention_large": (12.0, 16.9, 17.2, 14.8, 16.9, 17.0),
    "convolution_small": (57.1, 31.3, 36.5, 38.0, 22.6, 42.7),
    "convolution_large": (85.7, 44.4, 51.2, 61.6, 23.8, 60.8),
    "vit_small": (77.8, 53.4, 54.0, 55.3, 39.1, 62.7),
    "vit_base": (85.2, 60.8, 69.9, 75.8, 42.2, 78.3),
    "vit_large": (87.0, 41.4, 39.8, 36.1, 40.3, 41.7),
    "resnet18": (90.9, 50.0, 63.0, 73.3, 32.8, 56.1),
    "resnet50": (91.4, 50.0, 60.3, 73.1, 33.9, 54.8),
    "resnet101": (91.8, 51.9, 61.2, 75.0, 35.1, 66.6),
}

_LABELS: Mapping[str, tuple[str, Family]] = {
    "attention_small": ("Attn (small)", "Attn"),
    "attention_large": ("Attn (large)", "Attn"),
    "convolution_small": ("Conv (small)", "Conv"),
    "convolution_large": ("Conv (large)", "Conv"),
    "vit_small": ("ViT (small)", "ViT"),
    "vit_base": ("ViT (base)", "ViT"),
    "vit_large": ("ViT (large)", "ViT"),
    "resnet18": ("ResNet18", "ResNet"),
    "resnet50": ("ResNet50", "ResNet"),
    "resnet101": ("ResNet101", "ResNet"),
}

_RECIPES: Mapping[Family, Recipe] = {
    "Attn": recipes.TOPOLIP_ATTENTION,
    "Conv": recipes.TOPOLIP_CONVOLUTION,
    "ViT": recipes.TOPOLIP_VIT,
    "ResNet": recipes.TOPOLIP_RESNET,
}

# About seconds on one H200 that nothing else uses: training, measuring.
_SECONDS: Mapping[str, tuple[float, float]] = {
    "attention_small": (150, 120),
    "attention_large": (1500, 130),
    "convolution_small": (300, 120),
    "convolution_large": (500, 120),
    "vit_small": (900, 140),
    "vit_base": (2400, 140),
    "vit_large": (7800, 280),
    "resnet18": (450, 110),
    "resnet50": (1300, 240),
    "resnet101": (2100, 480),
}


def printed() -> tuple[Network, ...]:
    """The networks of Table 1 for CIFAR-10, with the paper's epochs.

    No labels are smoothed, for none of them: a ViT with smoothed labels beside a ResNet without would differ in more
    than their layers. The MLP of ViTs has the ReLU that the paper prints.
    """
    return tuple(
        Network(
            name, label, family, f"zoo:{name}?mean=cifar10{'&activation=relu' if family == 'ViT' else ''}",
            dataclasses.replace(_RECIPES[family], label_smoothing=0.0), *_SECONDS[name], accuracy=TABLE_2[name],
        )
        for name, (label, family) in _LABELS.items()
    )  # fmt: skip


# Epochs that fit into minutes of a GPU, in one cycle: the large ones get fewer than their recipe's short form.
_MINUTES: Mapping[str, int] = {
    "attention_small": 10, "attention_large": 4, "convolution_small": 15, "convolution_large": 15,
    "vit_small": 20, "vit_base": 10, "vit_large": 5, "resnet18": 10, "resnet50": 10, "resnet101": 8,
}  # fmt: skip
_CYCLES: Mapping[Family, Recipe] = {
    "Attn": recipes.TOPOLIP_ATTENTION_SHORT,
    "Conv": recipes.TOPOLIP_CONVOLUTION_SHORT,
    "ViT": recipes.TOPOLIP_VIT_SHORT,
    "ResNet": recipes.TOPOLIP_RESNET_SHORT,
}


def in_minutes() -> tuple[Network, ...]:
    """The same networks at their printed size, in a tenth of the epochs or fewer."""
    return tuple(
        dataclasses.replace(
            network,
            recipe=dataclasses.replace(_CYCLES[network.family], epochs=_MINUTES[network.name], label_smoothing=0.0),
            training=network.training * _MINUTES[network.name] / network.recipe.epochs,
            measuring=network.measuring / 3,
        )
        for network in printed()
    )


_GREY = "in_channels=1&size=8&mean=0.3&std=0.37"
_OWN = "input_size=1,8,8&mean=0.3&std=0.37"
_HERE = "lisse_experiments.topolip.networks"
_SMALL: Mapping[str, str] = {
    "attention_small": f"zoo:attention_small?{_GREY}&patch=4&width=32&heads=2",
    "attention_large": f"zoo:attention_large?{_GREY}&patch=4&width=40&heads=3",
    "convolution_small": f"{_HERE}:narrow_small?{_OWN}",
    "convolution_large": f"{_HERE}:narrow_large?{_OWN}",
    "vit_small": f"zoo:vit_small?{_GREY}&patch=4&width=24&heads=3&depth=4",
    "vit_base": f"zoo:vit_base?{_GREY}&patch=4&width=48&heads=6&depth=4",
    "vit_large": f"zoo:vit_large?{_GREY}&patch=4&width=48&heads=6&depth=6",
    "resnet18": f"{_HERE}:resnet8?{_OWN}",
    "resnet50": f"{_HERE}:resnet14?{_OWN}",
    "resnet101": f"{_HERE}:resnet20?{_OWN}",
}
# Epochs and peak rate: enough to learn ten digits, without crops and flips, which digits of 8 × 8 pixels do not bear.
_SHORT: Mapping[Family, tuple[Recipe, int, float]] = {
    "Attn": (recipes.TOPOLIP_ATTENTION_SHORT, 3, 3e-3),
    "Conv": (recipes.TOPOLIP_CONVOLUTION_SHORT, 6, 3e-3),
    "ViT": (recipes.TOPOLIP_VIT_SHORT, 6, 1e-3),
    "ResNet": (recipes.TOPOLIP_RESNET_SHORT, 2, 0.1),
}


def small() -> tuple[Network, ...]:
    """The same ten cut down to some ten thousand weights, for 8 × 8 grey digits.

    The zoo's ResNets have a fixed width of 64: [he2016]'s CIFAR ResNets, 16 channels wide, stand for them.
    """
    networks = []
    for name, (label, family) in _LABELS.items():
        recipe, epochs, lr = _SHORT[family]
        recipe = dataclasses.replace(recipe, epochs=epochs, lr=lr, batch=64, crop=0, flip=False)
        networks.append(Network(name, label, family, _SMALL[name], recipe, 5.0, 5.0))
    return tuple(networks)


def narrow_small(*, seed: int = 0) -> nn.Module:
    """Conv (small) with a quarter of the channels, for one grey channel."""
    with seeded(seed):
        return ConvolutionOnly(1, (16,) * 8, 10)


def narrow_large(*, seed: int = 0) -> nn.Module:
    """Conv (large) with an eighth of the channels, for one grey channel."""
    with seeded(seed):
        return ConvolutionOnly(1, (8, 8, 16, 16, 32, 64, 128, 256, 256), 10)


def resnet8(*, seed: int = 0) -> nn.Module:
    """[he2016]'s CIFAR ResNet with one block a stage, for one grey channel."""
    with seeded(seed):
        return CifarResNet(1, 1, 10)


def resnet14(*, seed: int = 0) -> nn.Module:
    """The same with two."""
    with seeded(seed):
        return CifarResNet(2, 1, 10)


def resnet20(*, seed: int = 0) -> nn.Module:
    """The same with three."""
    with seeded(seed):
        return CifarResNet(3, 1, 10)
