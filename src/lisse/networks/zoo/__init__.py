"""The architectures that the papers measure, one file per family; :data:`NETWORKS` lists them all."""

from __future__ import annotations

import difflib
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from lisse.networks.zoo import (
    attention_only,
    convolutional,
    efficientnet,
    fully_connected,
    lenet,
    mae,
    resnet,
    text,
    vgg,
    vit,
)
from lisse.networks.zoo.options import MOST_PARAMETERS

#: Every network: its builder with what makes it this one. ``zoo:NAME?option=…`` changes the other options.
NETWORKS: Mapping[str, Callable[..., nn.Module]] = {
    # TopoLip, Table 1
    "attention_small": partial(attention_only.attention_network, "attention_small", width=128, heads=4),
    "attention_large": partial(attention_only.attention_network, "attention_large", width=512, heads=12),
    "convolution_small": partial(convolutional.convolution_network, "convolution_small"),
    "convolution_large": partial(convolutional.convolution_network, "convolution_large"),
    "vit_small": partial(vit.vit, "vit_small", width=384, heads=6, depth=12),
    "vit_base": partial(vit.vit, "vit_base", width=768, heads=12, depth=12),
    "vit_large": partial(vit.vit, "vit_large", width=1024, heads=16, depth=24),
    "resnet18": partial(resnet.resnet_of_imagenet, 18),
    "resnet34": partial(resnet.resnet_of_imagenet, 34),
    "resnet50": partial(resnet.resnet_of_imagenet, 50),
    "resnet101": partial(resnet.resnet_of_imagenet, 101),
    # CIFAR ResNets with published weights
    "resnet20": partial(resnet.resnet_of_cifar, 20),
    "resnet32": partial(resnet.resnet_of_cifar, 32),
    "resnet44": partial(resnet.resnet_of_cifar, 44),
    "resnet56": partial(resnet.resnet_of_cifar, 56),
    # Relative stability toward diffeomorphisms
    "fc2": partial(fully_connected.fc, 2),
    "fc4": partial(fully_connected.fc, 4),
    "fc6": partial(fully_connected.fc, 6),
    "lenet": lenet.lenet,
    "alexnet": lenet.alexnet,
    "vgg11": partial(vgg.vgg_plain, 11),
    "vgg11_bn": partial(vgg.vgg_bn, 11),
    "vgg13": partial(vgg.vgg_plain, 13),
    "vgg13_bn": partial(vgg.vgg_bn, 13),
    "vgg16": partial(vgg.vgg_plain, 16),
    "vgg16_bn": partial(vgg.vgg_bn, 16),
    "vgg19": partial(vgg.vgg_plain, 19),
    "vgg19_bn": partial(vgg.vgg_bn, 19),
    "efficientnet_b0": partial(efficientnet.efficientnet, "efficientnet_b0", 1.0, 1.0),
    "efficientnet_b2": partial(efficientnet.efficientnet, "efficientnet_b2", 1.1, 1.2, dropout=0.3),
    # Isometric representations
    "isometry": fully_connected.isometry,
    # Masked autoencoders
    "mae_small": partial(mae.mae, "mae_small"),
    "mae_base": partial(
        mae.mae,
        "mae_base",
        size=224,
        patch=16,
        width=768,
        heads=12,
        depth=12,
        decoder_width=512,
        decoder_heads=16,
        decoder_depth=8,
    ),
    # Regularity of attention: language models, through transformers
    "bert": text.bert,
    "t5": text.t5,
}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch's CPU generator starts from ``seed``; outside, it is as if nothing had happened."""
    # Not torch.manual_seed: that also reseeds every other device, which the fork would not put back.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def settings(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a network: those given, checked, and the defaults of the others (without ``seed``)."""
    if name not in NETWORKS:
        # The beginning of a name stands for its whole family.
        near = [other for other in NETWORKS if name and other.startswith(name.lower().rstrip("_-"))]
        near = near or difflib.get_close_matches(name, NETWORKS, n=3, cutoff=0.5)
        advice = (
            f"Did you mean {', '.join(near[:-1])}{' or ' if near[:-1] else ''}{near[-1]}?"
            if near
            else f"There are: {', '.join(NETWORKS)}."
        )
        raise ValueError(f"build: name must be a network of the zoo, got {name!r}. {advice}")
    builder = NETWORKS[name]
    parameters = inspect.signature(builder).parameters
    hints = typing.get_type_hints(builder.func if isinstance(builder, partial) else builder)
    for option, value in options.items():
        if option not in parameters:
            near = difflib.get_close_matches(option, [*parameters, "weights", "seed"], n=1, cutoff=0.5)
            advice = f"Did you mean {near[0]}? " if near else ""
            raise ValueError(
                f"build: options of {name} must be among {', '.join((*parameters, 'seed'))}, got {option!r}. {advice}"
                "Leave out what you do not want to change."
            )
        if not _fits(value, hints[option]):
            rule = _words(hints[option])
            raise TypeError(f"{name}: {option} must be {rule}, got {value!r}. Write {option}={rule}.")
    return {key: options.get(key, parameter.default) for key, parameter in parameters.items()}


def build(name: str, *, seed: int = 0, **options: Any) -> nn.Module:
    """A network of the zoo with random weights: the same name, options and seed give the same weights.

    ``options`` are those of the builder function (``NETWORKS[name]``). The global random state is left as it was.
    """
    complete = settings(name, options)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(f"build: seed must be an integer in 0..2^63-1, got {seed!r}. Use seed=0.")
    if torch.get_default_device().type != "meta":
        with torch.device("meta"), seeded(seed):
            count = sum(parameter.numel() for parameter in NETWORKS[name](**complete).parameters())
        if count > MOST_PARAMETERS:
            words = ", ".join(f"{option}={value}" for option, value in options.items())
            raise ValueError(
                f"build: {name} must have at most {MOST_PARAMETERS:,} parameters, got {count:,} with {words} "
                f"({4 * count / 1e9:,.0f} GB). Make it smaller."
            )
    with seeded(seed):
        return NETWORKS[name](**complete)


def _fits(value: Any, hint: Any) -> bool:
    """Whether ``value`` is of the annotated type; an int may stand for a float, a bool never for a number."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(hint))
    if origin is Literal:
        return value in typing.get_args(hint)
    if hint in (int, float):
        return isinstance(value, (int,) if hint is int else (int, float)) and not isinstance(value, bool)
    return isinstance(value, hint)


def _words(hint: Any) -> str:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_words(part) for part in typing.get_args(hint))
    if typing.get_origin(hint) is Literal:
        return " or ".join(str(value) for value in typing.get_args(hint))
    return {int: "an integer", float: "a number", bool: "true or false", type(None): "none"}.get(hint, str(hint))
