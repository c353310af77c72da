"""Networks of the paper, and small ones: `build(name, sample_shape, num_classes)`."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from mixreg._support.near_misses import unknown
from mixreg.models.features import RandomFourierFeatures
from mixreg.models.lenet import LeNet
from mixreg.models.resnet import resnet34_cifar, resnet50, small_resnet
from mixreg.models.resnet9 import ResNet9

__all__ = [
    "MODELS",
    "LeNet",
    "RandomFourierFeatures",
    "ResNet9",
    "build",
    "mlp",
    "resnet34_cifar",
    "resnet50",
    "small_resnet",
]

Shape = tuple[int, ...]


def mlp(inputs: int, num_classes: int, width: int = 128, depth: int = 2) -> nn.Module:
    """A multilayer perceptron on flattened inputs, `depth` hidden layers of `width` units."""
    layers: list[nn.Module] = [nn.Flatten()]
    for size in [inputs] + [width] * (depth - 1):
        layers += [nn.Linear(size, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, num_classes))


def _images(make: Callable[[Shape, int], nn.Module], least: int) -> Callable[[Shape, int], nn.Module]:
    def build(shape: Shape, num_classes: int) -> nn.Module:
        if len(shape) != 3 or min(shape[1:]) < least:
            raise ValueError(
                f"this network takes images of at least {least} × {least}, got samples of shape {tuple(shape)}"
            )
        return make(shape, num_classes)

    return build


MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "lenet": _images(lambda shape, classes: LeNet(classes, shape), 16),
    "resnet34": _images(lambda shape, classes: resnet34_cifar(classes, shape[0]), 8),
    "resnet50": _images(lambda shape, classes: resnet50(classes, shape[0]), 32),
    "resnet9": _images(lambda shape, classes: ResNet9(classes, shape[0]), 8),
    "resnet9-16": _images(lambda shape, classes: ResNet9(classes, shape[0], 16), 8),
    "resnet9-64": _images(lambda shape, classes: ResNet9(classes, shape[0], 64), 8),
    "small-resnet": _images(lambda shape, classes: small_resnet(classes, shape[0]), 8),
    "random-features": lambda shape, classes: RandomFourierFeatures(math.prod(shape), classes),
    "mlp": lambda shape, classes: mlp(math.prod(shape), classes),
}


def build(name: str, shape: Shape, num_classes: int, seed: int = 0) -> nn.Module:
    """A network by name, with weights drawn from `seed`.

    Args:
        name: one of `MODELS`.
        shape: of one sample, channels first.
        num_classes: c, the width of the output.
        seed: of the initial weights; the global stream is left as it was.
    """
    if name not in MODELS:
        raise ValueError(unknown("model", name, MODELS, "or package.module:factory"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](shape, num_classes)
