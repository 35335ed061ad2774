"""The architectures of Figure 5 and Table 1, as printed and cut down, the data, and the recipe that trains each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from lisse.data import Dataset, load_data, places
from lisse.models import load_model
from lisse.networks.zoo import seeded
from lisse.networks.zoo.convolutional import ConvolutionOnly
from lisse.training import recipes
from lisse.training.recipes import Recipe


@dataclass(frozen=True)
class Source:
    """A data set: what ``load_data`` takes, and what a network needs to read it.

    ``most`` samples of its training set are used, the same ones for every seed; all where it is ``None``.
    """

    name: str
    label: str
    spec: str
    options: str
    cuts: tuple[int, ...]
    most: int | None = None


@dataclass(frozen=True)
class Weights:
    """Weights that others have trained: a file in the folder ``checkpoints`` of the data, and on how many samples."""

    file: str
    p: int

    def path(self) -> Path | None:
        """Where it lies, if it is there."""
        files = places.files_in(["checkpoints"], [[self.file]])
        return files[0] if files else None


@dataclass(frozen=True)
class Architecture:
    """A network before it is trained.

    ``spec`` is what ``load_model`` takes, with the data's own options added where it is of the zoo; ``seconds`` how
    long a training takes, about (only the time left is reckoned from it). ``skip`` says that it has skip connections.
    A network with ``weights`` is not trained; it normalises its images as those who trained it did.
    """

    name: str
    label: str
    spec: str
    recipe: Recipe
    seconds: float
    skip: bool = False
    weights: Weights | None = None

    def model(self, source: Source, seed: int) -> Any:
        """The network at initialisation."""
        options = f"{source.options}&seed={seed}" if source.options and self.weights is None else f"seed={seed}"
        return self._loaded(options)

    def published(self) -> Any:
        """The network with the weights of others."""
        file = self.weights.path() if self.weights else None
        if file is None:
            raise ValueError(f"published: weights of {self.label} must lie in checkpoints, got none.")
        return self._loaded(f"weights={file}")

    def _loaded(self, options: str) -> Any:
        return load_model(f"{self.spec}{'&' if '?' in self.spec else '?'}{options}")


# --- Table 1 --------------------------------------------------------------------------------------------------------

BESIDE = ("shortcut", "squeeze", "se.", ".se")


def anatomy(model: nn.Module) -> dict[str, int | bool]:
    """Depth, parameters and batch norm, counted in the network itself.

    Depth counts convolutions and linear maps one after another: not those on a shortcut or in a squeeze-and-excitation,
    which lie beside the others.
    """
    layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, (nn.Conv2d, nn.Linear)) and not any(part in f"{name}." for part in BESIDE)
    ]
    return {
        "depth": len(layers),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "batch_norm": any(isinstance(module, nn.BatchNorm2d) for module in model.modules()),
    }


def has_batch_norm(model: nn.Module) -> bool:
    """Whether its activations at initialisation need the statistics of the batch."""
    return bool(anatomy(model)["batch_norm"])


# --- training sets of size P ----------------------------------------------------------------------------------------

LONGEST = 20  # the authors' cap of 5000 epochs, in units of the recipe's 250


def for_size(recipe: Recipe, p: int, total: int) -> Recipe:
    """``recipe`` for ``p`` of ``total`` samples: as many steps as on all of them, but at most 20 times the epochs.

    The batch shrinks where it would be more than a quarter of the samples.
    """
    if not 0 < p <= total:
        raise ValueError(f"for_size: p must lie in 1 … {total}, got {p}.")
    epochs = min(LONGEST * recipe.epochs, max(1, round(recipe.epochs * total / p)))
    batch = recipe.batch if recipe.batch is None or p == total else max(1, min(recipe.batch, p // 4))
    return dataclasses.replace(recipe, epochs=epochs, batch=batch)


def subset(data: Dataset, p: int, seed: int) -> Dataset:
    """``p`` samples drawn with ``seed``; the sets of one seed are nested."""
    return data if p == len(data) else data.sample(p, seed)


def loaded(sources: Sequence[Source]) -> tuple[dict[str, tuple[Dataset, Dataset]], list[str]]:
    """Train and test sets by name, and a sentence on each that is not there."""
    data, notes = {}, []
    for source in sources:
        try:
            train, test = load_data(source.spec, split="train"), load_data(source.spec, split="test")
            data[source.name] = train if source.most is None else subset(train, source.most, 0), test
        except (ValueError, OSError):  # whose text names folders of this machine, and the notes are committed
            notes.append(f"{source.label} is left out: it is not here. `lisse data` says where it is looked for.")
    return data, notes


def at_hand(architectures: Sequence[Architecture]) -> tuple[tuple[Architecture, ...], list[str]]:
    """Those that can be made, and a sentence on each whose weights are not there."""
    ready = tuple(
        architecture
        for architecture in architectures
        if architecture.weights is None or architecture.weights.path() is not None
    )
    lost = [architecture for architecture in architectures if architecture not in ready]
    return ready, [
        f"{architecture.label} is left out: checkpoints/{architecture.weights.file} is not among the data."
        for architecture in lost
        if architecture.weights
    ]


# --- as printed -----------------------------------------------------------------------------------------------------

CIFAR = Source("cifar10", "CIFAR-10", "cifar10", "mean=cifar10", (3, 5, 15))
MNIST = Source("mnist", "MNIST", "mnist", "in_channels=1&size=28&mean=mnist", (3, 5, 15))
FASHION = Source(
    "fashion-mnist", "Fashion-MNIST", "fashion-mnist", "in_channels=1&size=28&mean=fashion-mnist", (3, 5, 15)
)

_SMOOTHED, _FC = recipes.SGD_SHORT, recipes.DIFFEOMORPHISMS_FC_SHORT
# Labels are not smoothed, in the paper neither: that gathers the outputs of a class in a point and lowers R at the same
# error, twofold after 12 epochs and tenfold after 35 (method.md).
_SGD = dataclasses.replace(_SMOOTHED, label_smoothing=0.0)
# VGGs and AlexNet without batch norm do not start at a rate of 0.2.
_GENTLE = dataclasses.replace(_SGD, lr=0.05, clip=1.0)

# Name, label, recipe, seconds on an H200, skip connections. The fifteen that are trained on CIFAR-10 from scratch.
_PRINTED: tuple[tuple[str, str, Recipe, float, bool], ...] = (
    ("fc2", "FullConn-L2", _FC, 25, False),
    ("fc4", "FullConn-L4", _FC, 30, False),
    ("fc6", "FullConn-L6", _FC, 35, False),
    ("lenet", "LeNet", dataclasses.replace(_GENTLE, lr=0.1), 20, False),
    ("alexnet", "AlexNet", _GENTLE, 30, False),
    ("vgg11", "VGG11", _GENTLE, 30, False),
    ("vgg11_bn", "VGG11bn", _SGD, 30, False),
    ("vgg16", "VGG16", _GENTLE, 40, False),
    ("vgg16_bn", "VGG16bn", _SGD, 45, False),
    ("vgg19", "VGG19", _GENTLE, 50, False),
    ("vgg19_bn", "VGG19bn", _SGD, 55, False),
    ("resnet18", "ResNet18", _SGD, 60, True),
    ("resnet34", "ResNet34", _SGD, 100, True),
    ("resnet50", "ResNet50", _SGD, 180, True),
    ("efficientnet_b0", "EfficientNetB0", _SGD, 150, True),
)


_FROM_HE = ("vgg11", "vgg16", "vgg19")  # with PyTorch's initialisation the deeper two stay at chance


def printed() -> tuple[Architecture, ...]:
    """Fifteen of the families that Figure 5 names, which start from random weights."""
    return tuple(
        Architecture(name, label, f"zoo:{name}{'?init=he' if name in _FROM_HE else ''}", recipe, seconds, skip)
        for name, label, recipe, seconds, skip in _PRINTED
    )


# --- as printed, in minutes -----------------------------------------------------------------------------------------

_EPOCHS = 12


def in_minutes() -> tuple[Architecture, ...]:
    """The same fifteen with twelve epochs each."""
    short = []
    for architecture in printed():
        recipe = dataclasses.replace(architecture.recipe, epochs=_EPOCHS)
        short.append(
            dataclasses.replace(
                architecture, recipe=recipe, seconds=architecture.seconds * _EPOCHS / architecture.recipe.epochs
            )
        )
    return tuple(short)


# --- photographs on a CPU -------------------------------------------------------------------------------------------

CIFAR_SMALL = dataclasses.replace(CIFAR, most=10_000)
_MODEST = dataclasses.replace(_SMOOTHED, lr=0.1, weight_decay=5e-4, batch=128, epochs=20)
_MODEST_GENTLE = dataclasses.replace(_MODEST, lr=0.05, clip=1.0)
_MODEST_FC = dataclasses.replace(_FC, epochs=20)  # for VGG7 too: SGD hardly moves it in so few steps
_SELF = "lisse_experiments.diffeomorphisms.networks"
_COLOUR = "input_size=3,32,32"
# Name, label, spec, recipe, seconds of one core, skip connections.
_MODEST_ONES: tuple[tuple[str, str, str, Recipe, float, bool], ...] = (
    ("fc2", "FullConn-L2", "zoo:fc2", _MODEST_FC, 10, False),
    ("fc4", "FullConn-L4", "zoo:fc4", _MODEST_FC, 10, False),
    ("fc6", "FullConn-L6", "zoo:fc6", _MODEST_FC, 10, False),
    ("lenet", "LeNet", "zoo:lenet", _MODEST_GENTLE, 40, False),
    ("vgg7", "VGG7", f"{_SELF}:vgg7?{_COLOUR}", _MODEST_FC, 150, False),
    ("vgg7_bn", "VGG7bn", f"{_SELF}:vgg7_bn?{_COLOUR}", _MODEST, 180, False),
    ("resnet8", "ResNet8", f"{_SELF}:resnet8?{_COLOUR}", _MODEST, 330, True),
)
_PUBLISHED = {
    20: "resnet20-12fca82f.th",
    32: "resnet32-d509ac18.th",
    44: "resnet44-014dd654.th",
    56: "resnet56-4bfd9763.th",
}


def for_photographs() -> tuple[Architecture, ...]:
    """Seven that a CPU trains on 10,000 photographs in minutes, and the ResNets that others have trained on 50,000."""
    trained = (Architecture(*row) for row in _MODEST_ONES)
    published = (
        Architecture(f"published_resnet{depth}", f"published ResNet{depth}", f"zoo:resnet{depth}?mean=imagenet", _SGD,
                     1.5 * depth, True, Weights(file, 50_000))
        for depth, file in _PUBLISHED.items()
    )  # fmt: skip
    return (*trained, *published)


def vgg7(*, seed: int = 0, batch_norm: bool = False) -> nn.Module:
    """Six convolutions of 3 × 3 and a linear map, in the manner of the VGGs with an eighth of their channels."""
    with seeded(seed):
        stages: list[nn.Module] = []
        before = 3
        for channels, pool in ((16, True), (32, True), (64, False), (64, True), (128, False), (128, False)):
            stage: list[nn.Module] = [nn.Conv2d(before, channels, 3, padding=1)]
            stage += [nn.BatchNorm2d(channels)] if batch_norm else []
            stages.append(nn.Sequential(*stage, nn.ReLU(), *([nn.MaxPool2d(2)] if pool else [])))
            before = channels
        return nn.Sequential(*stages, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(before, 10))


def vgg7_bn(*, seed: int = 0) -> nn.Module:
    """:func:`vgg7` with batch norm."""
    return vgg7(seed=seed, batch_norm=True)


def resnet8(*, seed: int = 0) -> nn.Module:
    """[he2016]'s CIFAR ResNet with one block a stage."""
    return _one_block_a_stage(3, seed)


# --- cut down -------------------------------------------------------------------------------------------------------

DIGITS = Source("digits", "digits", "digits", "", (2, 3))
_GREY = "in_channels=1&size=8&mean=0.3&std=0.37"
_OWN = "input_size=1,8,8&mean=0.3&std=0.37"
_BRIEF = Recipe(lr=5e-3, epochs=6, batch=64)
_SMALL: Mapping[str, tuple[str, str, Recipe, float, bool]] = {
    "fc2": ("FullConn-L2", f"zoo:fc2?{_GREY}", _BRIEF, 1.0, False),
    "fc4": ("FullConn-L4", f"zoo:fc4?{_GREY}", _BRIEF, 1.0, False),
    "lenet": ("LeNet (3 × 3)", f"{_SELF}:small_lenet?{_OWN}", _BRIEF, 1.0, False),
    "conv": ("Conv", f"{_SELF}:small_convolution?{_OWN}", _BRIEF, 1.0, False),
    "resnet8": ("ResNet8", f"{_SELF}:small_resnet?{_OWN}", dataclasses.replace(_BRIEF, lr=1e-2), 2.0, True),
}


def for_digits() -> tuple[Architecture, ...]:
    """Five that stand for them on 8 × 8 digits: two fully connected ones, a LeNet, a plain CNN, a ResNet."""
    return tuple(
        Architecture(name, label, spec, recipe, seconds, skip)
        for name, (label, spec, recipe, seconds, skip) in _SMALL.items()
    )


def small_lenet(*, seed: int = 0) -> nn.Module:
    """LeNet with 3 × 3 kernels and padding, which leave something of 8 × 8 pixels."""
    with seeded(seed):
        return nn.Sequential(
            nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Sequential(nn.Conv2d(6, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Flatten(),
            nn.Sequential(nn.Linear(64, 120), nn.ReLU()),
            nn.Sequential(nn.Linear(120, 84), nn.ReLU()),
            nn.Linear(84, 10),
        )


def small_convolution(*, seed: int = 0) -> nn.Module:
    """Four convolutions and a mean pool."""
    with seeded(seed):
        return ConvolutionOnly(1, (16, 32, 32, 64), 10)


def small_resnet(*, seed: int = 0) -> nn.Module:
    """:func:`resnet8` for grey images."""
    return _one_block_a_stage(1, seed)


def _one_block_a_stage(channels: int, seed: int) -> nn.Module:
    from lisse.networks.zoo.resnet import CifarResNet

    with seeded(seed):
        return CifarResNet(1, channels, 10)
