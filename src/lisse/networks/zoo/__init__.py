"""The architectures that the papers measure, one file per family; :data:`NETWORKS` lists them all."""

from __future__ import annotations

import difflib
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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

NETWORKS: Mapping[str, Callable[..., nn.Module]] = {
    # TopoLip, Table 1
    "attention_small": attention_only.attention_small,
    "attention_large": attention_only.attention_large,
    "convolution_small": convolutional.convolution_small,
    "convolution_large": convolutional.convolution_large,
    "vit_small": vit.vit_small,
    "vit_base": vit.vit_base,
    "vit_large": vit.vit_large,
    "resnet18": resnet.resnet18,
    "resnet34": resnet.resnet34,
    "resnet50": resnet.resnet50,
    "resnet101": resnet.resnet101,
    # CIFAR ResNets with published weights
    "resnet20": resnet.resnet20,
    "resnet32": resnet.resnet32,
    "resnet44": resnet.resnet44,
    "resnet56": resnet.resnet56,
    # Relative stability toward diffeomorphisms
    "fc2": fully_connected.fc2,
    "fc4": fully_connected.fc4,
    "fc6": fully_connected.fc6,
    "lenet": lenet.lenet,
    "alexnet": lenet.alexnet,
    "vgg11": vgg.vgg11,
    "vgg11_bn": vgg.vgg11_bn,
    "vgg13": vgg.vgg13,
    "vgg13_bn": vgg.vgg13_bn,
    "vgg16": vgg.vgg16,
    "vgg16_bn": vgg.vgg16_bn,
    "vgg19": vgg.vgg19,
    "vgg19_bn": vgg.vgg19_bn,
    "efficientnet_b0": efficientnet.efficientnet_b0,
    "efficientnet_b2": efficientnet.efficientnet_b2,
    # Isometric representations
    "isometry": fully_connected.isometry,
    # Masked autoencoders
    "mae_small": mae.mae_small,
    "mae_base": mae.mae_base,
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
        near = [known for known in NETWORKS if name and known.startswith(name.lower().rstrip("_-"))]
        near = near or difflib.get_close_matches(name, NETWORKS, n=3, cutoff=0.5)
        advice = (
            f"Did you mean {', '.join(near[:-1])}{' or ' if near[:-1] else ''}{near[-1]}?"
            if near
            else f"There are: {', '.join(NETWORKS)}."
        )
        raise ValueError(f"build: name must be a network of the zoo, got {name!r}. {advice}")
    builder = NETWORKS[name]
    parameters = inspect.signature(builder).parameters
    hints = typing.get_type_hints(builder)
    for option, value in options.items():
        if option not in parameters:
            near = difflib.get_close_matches(option, parameters, n=1, cutoff=0.5)
            advice = f"Did you mean {near[0]}? " if near else ""
            raise ValueError(
                f"build: options of {name} must be among {', '.join((*parameters, 'seed'))}, got {option!r}. {advice}"
                "Leave out what you do not want to change."
            )
        if not _fits(value, hints[option]):
            wanted = _words(hints[option])
            raise TypeError(f"{name}: {option} must be {wanted}, got {value!r}. Write {option}={wanted}.")
    return {key: options.get(key, parameter.default) for key, parameter in parameters.items()}


def build(name: str, *, seed: int = 0, **options: Any) -> nn.Module:
    """A network of the zoo with random weights: the same name, options and seed give the same weights.

    ``options`` are those of the builder function (``NETWORKS[name]``). The global random state is left as it was.
    """
    chosen = settings(name, options)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(f"build: seed must be an integer in 0..2^63-1, got {seed!r}. Use seed=0.")
    if torch.get_default_device().type != "meta":
        with torch.device("meta"), seeded(seed):
            count = sum(parameter.numel() for parameter in NETWORKS[name](**chosen).parameters())
        if count > MOST_PARAMETERS:
            given = ", ".join(f"{option}={value}" for option, value in options.items())
            raise ValueError(
                f"build: {name} must have at most {MOST_PARAMETERS:,} parameters, got {count:,} with {given} "
                f"({4 * count / 1e9:,.0f} GB). Make it smaller."
            )
    with seeded(seed):
        return NETWORKS[name](**chosen)


def _fits(value: Any, hint: Any) -> bool:
    """Whether ``value`` is of the annotated type; an int may stand for a float, a bool never for a number."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in typing.get_args(hint))
    if origin is Literal:
        return value in typing.get_args(hint)
    if hint in (int, float):
        return isinstance(value, (int,) if hint is int else (int, float)) and not isinstance(value, bool)
    return isinstance(value, hint)


def _words(hint: Any) -> str:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_words(one) for one in typing.get_args(hint))
    if typing.get_origin(hint) is Literal:
        return " or ".join(str(one) for one in typing.get_args(hint))
    return {int: "an integer", float: "a number", bool: "true or false", type(None): "none"}.get(hint, str(hint))
