"""LeNet (LeCun et al., 1998) with rectifiers and max-pooling, as it is used on CIFAR."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mixreg.models.narrow_convolution import NarrowConvolution
from mixreg.models.pooled_convolution import PooledConvolution


class LeNet(nn.Module):
    """Two convolutions and three dense layers; 62,006 parameters for 10 classes of 3 × 32 × 32.

    Args:
        num_classes: c.
        shape: of one image, channels × height × width, at least 16 × 16.
    """

    def __init__(self, num_classes: int = 10, shape: tuple[int, ...] = (3, 32, 32)) -> None:
        super().__init__()
        channels, height, width = shape
        self.conv1 = PooledConvolution(channels, 6, 5)
        self.conv2 = NarrowConvolution(6, 16, 5)
        self.fc1 = nn.Linear(16 * _after_two(height) * _after_two(width), 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, n × c, for x: n × channels × height × width."""
        # The same as pooling what is rectified, at a quarter of the rectifying.
        x = torch.relu(self.conv1(x))
        # Flattened first: with channels last that is a copy, and gradients of what is rectified lie as it does.
        x = torch.relu(torch.max_pool2d(self.conv2(x), 2).flatten(1))
        x = torch.relu(self.fc1(x))
        return self.fc3(torch.relu(self.fc2(x)))


def _after_two(side: int) -> int:
    """The side of an image after both convolutions and poolings."""
    return ((side - 4) // 2 - 4) // 2
