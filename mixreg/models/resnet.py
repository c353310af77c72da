"""Residual networks (He et al., 2016): ResNet-34 for CIFAR, ResNet-50 for ImageNet, and a small one for CPUs.

Parameters are named as torchvision names them, so that its published weights load.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, planes, 3, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = _conv(planes, planes, 3)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = _shortcut(inputs, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        """N × inputs × h × w to n × planes × h/stride × w/stride."""
        out = torch.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return torch.relu(out + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """A 3 × 3 convolution between two 1 × 1 ones, around a shortcut; the stride sits on the middle one."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, planes, 1)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = _conv(planes, planes, 3, stride)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = _conv(planes, 4 * planes, 1)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.downsample = _shortcut(inputs, 4 * planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        """N × inputs × h × w to n × 4 planes × h/stride × w/stride."""
        out = torch.relu(self.bn1(self.conv1(x)))
        out = torch.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return torch.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """A stem, four (or fewer) stages of blocks that halve the side and double the width, and a linear head.

    Args:
        block: BasicBlock or Bottleneck.
        depths: blocks per stage.
        num_classes: c.
        channels: of the images.
        width: planes of the first stage.
        is_large: a 7 × 7 stem with stride 2 and max-pooling (ImageNet) instead of a 3 × 3 one (CIFAR).
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        num_classes: int,
        channels: int = 3,
        width: int = 64,
        is_large: bool = False,
    ) -> None:
        super().__init__()
        self.conv1 = _conv(channels, width, 7, 2) if is_large else _conv(channels, width, 3)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if is_large else nn.Identity()
        inputs = width
        self.stages = [f"layer{k}" for k in range(1, len(depths) + 1)]
        for k, (name, depth) in enumerate(zip(self.stages, depths, strict=True)):
            planes = width * 2**k
            blocks = []
            for b in range(depth):
                blocks.append(block(inputs, planes, 2 if b == 0 and k > 0 else 1))
                inputs = planes * block.expansion
            self.add_module(name, nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Logits, n × c, for x: n × channels × height × width."""
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = getattr(self, name)(x)
        return self.fc(x.mean((2, 3)))


def resnet34_cifar(num_classes: int = 10, channels: int = 3) -> ResNet:
    """The paper's ResNet-34 for CIFAR: a 3 × 3 stem, 21.3 million parameters."""
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes, channels)


def resnet50(num_classes: int = 1000, channels: int = 3) -> ResNet:
    """The paper's ResNet-50 for ImageNet, 25.6 million parameters; torchvision's weights load into it."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, channels, is_large=True)


def small_resnet(num_classes: int = 10, channels: int = 3) -> ResNet:
    """ResNet-8 (He et al.'s CIFAR family with one block per stage): 78,000 parameters, for CPUs."""
    return ResNet(BasicBlock, (1, 1, 1), num_classes, channels, width=16)
